"""
Bytes that the ranks' TCP connections have received: recv() is not counted in /proc/PID/io.

Numbers are from linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h.
"""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import os
import struct

from ringup.agent.proc.netlink import SOCK_DIAG, dump
from ringup.agent.proc.process import below

SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO = 20, 2
ESTABLISHED, CLOSE_WAIT = 1, 8
INODE, AFTER_MESSAGE = 68, 72
"""Offsets in struct inet_diag_msg: its last field, and its end, where the attributes begin."""
BYTES_RECEIVED = 128
"""Offset of tcpi_bytes_received in struct tcp_info (Linux 4.1)."""
UINT, ULONG, ATTRIBUTE = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=HH")
MOST_SOCKETS = 256
"""Of a process, those that have received most."""
LEAST_BYTES = 4 << 10
"""Connections with fewer bytes are left out: a rank has thousands that were only opened."""


def connections():
    """Link in /proc/PID/fd -> bytes received, of the TCP connections in this namespace; None if unknown."""
    states, found = 1 << ESTABLISHED | 1 << CLOSE_WAIT, {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            wanted = 1 << (INET_DIAG_INFO - 1)
            body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, wanted, states)
            # A partial answer would make old connections look new later.
            for data in dump(SOCK_DIAG_BY_FAMILY, body, protocol=SOCK_DIAG, needs_all=True):
                size = bytes_received(data)
                if size >= LEAST_BYTES:
                    found["socket:[%d]" % UINT.unpack_from(data, INODE)] = size
    except OSError:
        return None
    return found


def bytes_received(data):
    """From an answer for one connection; 0 if the kernel does not report it."""
    offset = AFTER_MESSAGE
    while offset + 4 <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if kind == INET_DIAG_INFO and length >= 4 + BYTES_RECEIVED + 8:
            return ULONG.unpack_from(data, offset + 4 + BYTES_RECEIVED)[0]
        offset += max(4, (length + 3) & ~3)
    return 0


def links(pid):
    """The targets of a process's file descriptors."""
    found = set()
    try:
        at = os.open("/proc/%d/fd" % pid, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return found
    try:
        for name in os.listdir(at):
            try:
                found.add(os.readlink(name, dir_fd=at))
            except OSError:  # closed meanwhile
                continue
    except OSError:  # the process has ended
        pass
    finally:
        os.close(at)
    return found


def received(ranks, children):
    """
    Process -> `busiest` of its connections; None if the kernel does not report it.

    `ranks` with the processes below them that the answer names; the connections of others count as the
    rank's.  Inherited connections are only listed at the rank: a hundred workers would repeat them.
    """
    known, found = connections(), {}
    if known is None:
        return None
    for one in ranks:
        named = [child["pid"] for child in one["children"]]
        others = set(below([one["pid"]], children)).difference(named)
        own = set().union(*map(links, others)) & known.keys()
        found[one["pid"]] = busiest(known, own)
        found.update((pid, busiest(known, links(pid) & known.keys() - own)) for pid in named)
    return found


def busiest(known, own):
    """[The most bytes of any connection that is left out, {inode: bytes received}]."""
    order = sorted(own, key=lambda one: -known[one])
    left_out = known[order[MOST_SOCKETS]] if len(order) > MOST_SOCKETS else LEAST_BYTES
    return [left_out, {one[len("socket:[") : -1]: known[one] for one in order[:MOST_SOCKETS]}]
