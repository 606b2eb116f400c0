"""TCP sockets from /proc."""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import struct
from binascii import unhexlify


from ringup.agent.proc.files import read

ESTABLISHED, ASKED_FOR, LISTENING = b"01", b"03", b"0A"
MOST_TABLE_BYTES = 64 << 20


def tcp(state=b"", folder="/proc", most_bytes=MOST_TABLE_BYTES):
    """(local end, other end, user id, inode) of TCP sockets in a network namespace; `end` parses ends."""
    for name in ("tcp", "tcp6"):
        for line in read("%s/net/%s" % (folder, name), most_bytes).split(b"\n")[1:-1]:  # the last may be cut
            fields = line.split(None, 10)
            if len(fields) > 9 and fields[3] == (state or fields[3]):
                yield fields[1], fields[2], int(fields[7]), fields[9].decode()


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def port(text):
    return int(text.rpartition(b":")[2], 16)


def end(text):
    """Address and port, from hexadecimal numbers of four bytes; IPv4 within IPv6 becomes IPv4."""
    packed = unhexlify(text.partition(b":")[0])
    packed = b"".join(struct.pack(">I", n) for n in struct.unpack("=%dI" % (len(packed) // 4), packed))
    if packed[:12] == bytes(10) + b"\xff\xff":
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), port(text)
