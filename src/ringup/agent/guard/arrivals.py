"""
Accepted connections that have not authenticated yet, of a head node's guard and of the first pod.

Each lasts at most HANDSHAKE_S.  Above the limit, the network with the most connections loses its oldest one.
"""

import collections
import errno
import time

import _socket as socket

HANDSHAKE_S = 10.0
ACCEPTED_AT_ONCE = 16
"""Handshakes in progress continue before more connections are accepted."""
UNFINISHED = "not authenticated within %.0f s" % HANDSHAKE_S
CROWDED = "too many unauthenticated connections"


class Arrivals:
    """`connect(fd, address)` returns a link or raises OSError; `refuse(link, address, why)` closes it."""

    def __init__(self, listener, most, connect, refuse):
        self.listener, self.most, self.connect, self.refuse = listener, most, connect, refuse
        self.links = {}
        """In the order of arrival -> (address, since when)."""
        listener.setblocking(False)

    def accept(self):
        """Accept what has come; OSError if the process has no file descriptor left, not even an arrival's."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                fd, address = self.listener._accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    if not self.links:
                        raise
                    self._refuse(self._worst(), CROWDED)
                return
            address = plain(address[0])
            try:
                link = self.connect(fd, address)
            except OSError:
                continue  # already gone
            self.links[link] = address, time.monotonic()
            if len(self.links) > self.most:
                self._refuse(self._worst(), CROWDED)

    def on_time(self, now):
        for link in [link for link, (_, since) in self.links.items() if now - since > HANDSHAKE_S]:
            self._refuse(link, UNFINISHED)

    def _refuse(self, link, why):
        address, _ = self.links.pop(link)
        self.refuse(link, address, why)

    def _worst(self):
        crowd = collections.Counter(network(address) for address, _ in self.links.values())
        crowded = crowd.most_common(1)[0][0]
        return next(link for link, (address, _) in self.links.items() if network(address) == crowded)


def plain(address):
    """An address of an IPv4 client as IPv4, also if the listener is IPv6."""
    return address[7:] if address.startswith("::ffff:") else address


def network(address):
    """The unit by which connections are counted: an IPv4 address, or the /64 of an IPv6 address."""
    host = address.partition("%")[0]
    return socket.inet_pton(socket.AF_INET6, host)[:8] if ":" in host else host
