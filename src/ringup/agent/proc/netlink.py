"""Requests to the kernel over netlink (linux/netlink.h)."""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import os
import struct
from errno import EMSGSIZE

ROUTE, SOCK_DIAG = 0, 4
MOST_BYTES, MOST_WHOLE_BYTES = 8 << 20, 32 << 20


def dump(kind, body, flags=0x301, protocol=ROUTE, needs_all=False):
    """
    Yield the body of each message that answers a dump (or, with other flags, a request).

    A longer answer is cut off at MOST_BYTES; if the caller `needs_all`, it fails at MOST_WHOLE_BYTES.
    """
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    try:
        sock.settimeout(2.0)
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        total = 0
        while total < (MOST_WHOLE_BYTES if needs_all else MOST_BYTES):
            data = sock.recv(1 << 18)
            total += len(data)
            offset = 0
            while offset + 16 <= len(data):
                length, what = struct.unpack_from("=IH", data, offset)
                if what == 3:  # NLMSG_DONE
                    return
                if what == 2:  # NLMSG_ERROR
                    code = -struct.unpack_from("=i", data, offset + 16)[0]
                    raise OSError(code, os.strerror(code))
                if length < 16:
                    return
                yield data[offset + 16 : offset + length]
                offset += (length + 3) & ~3
        if needs_all:
            raise OSError(EMSGSIZE, os.strerror(EMSGSIZE))
    finally:
        sock.close()


def nested(data, offset=0):
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def attributes(data, offset):
    return dict(nested(data, offset))
