"""
How the guards of a detached run connect: `Gate` on the head node, `Joining` on every other.

Both sides authenticate by TLS before any message is read.
"""

import contextlib
import errno
import os
import time

import _socket as socket
from ringup.agent.guard.arrivals import Arrivals
from ringup.agent.guard.link import Link
from ringup.agent.guard.messages import FROM_GUARD, FROM_HEAD
from ringup.agent.guard.spool import Spool
from ringup.agent.guard.tls import CLIENT, SERVER, Tls, context, missing
from ringup.agent.proc.sockets import family

STRANGERS = 64
"""Connections in addition to those of the awaited nodes."""
JOIN_S = 15.0
AGAIN_S = 0.2


def as_link(connection, spool, table, tls=None):
    """A Link over a connected socket, which lives as long as the process."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fd = connection.detach()
    os.set_blocking(fd, False)
    return Link(fd, fd, spool, table, tls)


def listen(address, ports):
    """A socket that listens on the first free port of these, else on any port."""
    from socket import create_server  # a head without other nodes needs none

    for port in ports:
        with contextlib.suppress(OSError):
            return create_server((address, port), family=family(address), backlog=1024)
    return create_server((address, 0), family=family(address), backlog=1024)


class Gate:
    """Listens for the `awaited` nodes; calls `welcome(node, link)` for each that has authenticated."""

    def __init__(self, loop, message, awaited, welcome):
        self.loop, self.awaited, self.welcome = loop, awaited, welcome
        self.context = context(message["identity"], SERVER)
        self.listener = listen(message["address"], message["ports"])
        self.arrivals = Arrivals(self.listener, len(awaited) + STRANGERS, self._connect, self._close)
        self.port = self.listener.getsockname()[1]
        loop.watch(self.listener.fileno(), self._accept)

    def close(self):
        self.loop.forget(self.listener.fileno())
        self.listener.close()
        for link in list(self.arrivals.links):
            self._close(link)

    def on_time(self, now):
        self.arrivals.on_time(now)

    def _close(self, link, _address="", _why=""):
        self.arrivals.links.pop(link, None)
        self.loop.forget(link.read_fd)
        os.close(link.read_fd)

    def _accept(self):
        with contextlib.suppress(OSError):
            self.arrivals.accept()

    def _connect(self, fd, _address):
        link = as_link(socket.socket(fileno=fd), Spool(), FROM_GUARD, Tls(self.context, SERVER))
        self.loop.watch(link.read_fd, lambda: self._receive(link))
        return link

    def _receive(self, link):
        link.receive()
        link.flush()
        if link.ended or link.gone:
            self._close(link)
        elif link.tls.is_open:
            # The certificate, which the launcher issued, has the node's number.
            kind, _, number = link.tls.peer().partition("-")
            node = int(number) if kind == "node" and number.isdigit() and len(number) < 9 else -1
            if node not in self.awaited:
                self._close(link)
                return
            del self.arrivals.links[link]
            self.awaited.discard(node)
            link.send({"type": "welcome"})
            link.flush()
            self.welcome(node, link)


class Joining:
    """Connects to the head; when `on_time` returns True, `link` is the connection or `problem` the reason."""

    def __init__(self, loop, message, spool):
        self.loop, self.spool = loop, spool
        self.address, self.port = message["address"], message["port"]
        self.until, self.again_at = time.monotonic() + JOIN_S, 0.0
        self.link, self.own = None, "?"
        self.is_in, self.problem = False, missing()
        if not self.problem:
            self.context = context(message["identity"], CLIENT)
            self._connect()

    def on_time(self, now):
        """Retry or give up; True once it is over.  To be called after every turn of the loop."""
        if self.is_in or self.problem:
            return True
        if now > self.until:
            self._fail("not admitted within %.0f s" % JOIN_S)
        elif self.again_at and now >= self.again_at:
            self._connect()
        return bool(self.problem)

    def _connect(self):
        self.again_at = 0.0
        connection = socket.socket(family(self.address), socket.SOCK_STREAM)
        connection.setblocking(False)
        number = connection.connect_ex((self.address, self.port))
        if number not in (0, errno.EINPROGRESS):
            connection.close()
            self._fail(os.strerror(number))
            return
        self.own = connection.getsockname()[0]
        self.link = as_link(connection, self.spool, FROM_HEAD, Tls(self.context, CLIENT))
        self.loop.watch(self.link.read_fd, self._receive)

    def _receive(self):
        messages = self.link.receive()
        self.link.flush()
        if any(message["type"] == "welcome" for message in messages):
            self.loop.forget(self.link.read_fd)
            self.is_in = True
        elif self.link.tls.problem:
            self.problem = (
                "the program at %s port %d is not the head of this run (%s). Another host or process has its "
                "address; nothing was sent to it. This node's address is %s"
                % (self.address, self.port, self.link.error, self.own)
            )
            self._drop()
        elif self.link.ended and self.link.error:
            self._fail(self.link.error)
        elif self.link.ended:
            # The head had no room: strangers may occupy it for some seconds.
            self._drop()
            self.again_at = time.monotonic() + AGAIN_S

    def _fail(self, why):
        self._drop()
        how = (self.address, self.port, self.own, why)
        self.problem = "no connection to the head at %s port %d from %s: %s" % how

    def _drop(self):
        if self.link:
            self.loop.forget(self.link.read_fd)
            os.close(self.link.read_fd)
        self.link = None
