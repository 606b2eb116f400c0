"""
Bytes that the ranks' TCP connections have received and sent: recv() and send() are not in /proc/PID/io.

A rank in another network namespace (a container) has no connections here: its interfaces are read instead.

Numbers are from linux/sock_diag.h, linux/inet_diag.h and linux/tcp.h.
"""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import struct

from ringup.agent.proc.files import link, traffic
from ringup.agent.proc.netlink import SOCK_DIAG, attributes, dump
from ringup.agent.proc.process import below, descriptors

SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO = 20, 2
ESTABLISHED, CLOSE_WAIT = 1, 8
TIMER, TRIES, OTHER, INODE, AFTER_MESSAGE = 2, 3, 24, 68, 72
"""Offsets in struct inet_diag_msg; at its end the attributes begin.  Timer 1 is that of retransmissions."""
LEAST_TRIES = 5
"""Retransmissions in a row: at least six seconds without an answer, as the kernel doubles 0.2 s each time."""
BYTES_ACKED = 120
"""Offset in struct tcp_info of tcpi_bytes_acked, which tcpi_bytes_received follows (Linux 4.1)."""
UINT, BOTH = struct.Struct("=I"), struct.Struct("=QQ")
MOST_ENDS = 8
MOST_SOCKETS = 256
"""Of a process, those with most bytes."""
LEAST_BYTES = 4 << 10
"""Connections with fewer bytes are left out: a rank has thousands that were only opened."""


def connections(late=None):
    """
    Link in /proc/PID/fd -> bytes, of the TCP connections in this namespace; None if unknown.

    `late` gets those whose data was sent again LEAST_TRIES times without an answer: link -> the other end.
    """
    states, found = 1 << ESTABLISHED | 1 << CLOSE_WAIT, {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            wanted = 1 << (INET_DIAG_INFO - 1)
            body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, wanted, states)
            # A partial answer would make old connections look new later.
            for data in dump(SOCK_DIAG_BY_FAMILY, body, protocol=SOCK_DIAG, needs_all=True):
                size, socket_link = bytes_moved(data), "socket:[%d]" % UINT.unpack_from(data, INODE)
                if size >= LEAST_BYTES:
                    found[socket_link] = size
                if late is not None and data[TIMER] == 1 and data[TRIES] >= LEAST_TRIES:
                    other = data[OTHER : OTHER + (4 if data[0] == socket.AF_INET else 16)]
                    late[socket_link] = socket.inet_ntop(data[0], bytes(other)).replace("::ffff:", "")
    except OSError:
        return None
    return found


def bytes_moved(data):
    """Received, and sent and acknowledged, of one connection; 0 if the kernel does not report it."""
    info = attributes(data, AFTER_MESSAGE).get(INET_DIAG_INFO, b"")
    return sum(BOTH.unpack_from(info, BYTES_ACKED)) if len(info) >= BYTES_ACKED + BOTH.size else 0


def namespace(pid):
    """A rank's network namespace; "" if it is that of this process, or unknown."""
    own = link("/proc/%d/ns/net" % pid)
    return "" if own == link("/proc/self/ns/net") else own


def transfers(ranks, children):
    """
    Process -> `busiest` of its connections; None if the kernel does not report it.

    `ranks` with the processes below them that the answer names; the connections of others count as the
    rank's.  Inherited connections are only listed at the rank: a hundred workers would repeat them.
    A rank in another `namespace` has the interfaces there instead.
    """
    late = {}
    known, found = connections(late), {}
    for one in ranks:
        if late and not one["namespace"]:
            own = set().union(*map(descriptors, below([one["pid"]], children)))
            one["unanswered"] = sorted({late[link] for link in own & late.keys()})[:MOST_ENDS]
        if one["namespace"]:
            found[one["pid"]] = [0, {name: sum(both) for name, both in traffic(one["pid"]).items()}]
        elif known is not None:
            named = [child["pid"] for child in one["children"]]
            others = set(below([one["pid"]], children)).difference(named)
            own = known.keys() & set().union(*map(descriptors, others))
            found[one["pid"]] = busiest(known, own)
            found.update((pid, busiest(known, known.keys() & set(descriptors(pid)) - own)) for pid in named)
    return None if known is None and not found else found


def busiest(known, own):
    """[The most bytes of any connection that is left out, {inode: bytes}]."""
    order = sorted(own, key=lambda one: -known[one])
    left_out = known[order[MOST_SOCKETS]] if len(order) > MOST_SOCKETS else LEAST_BYTES
    return [left_out, {one[len("socket:[") : -1]: known[one] for one in order[:MOST_SOCKETS]}]
