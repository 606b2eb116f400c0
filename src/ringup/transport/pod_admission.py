"""
The first pod's listener, with a limited number of unauthenticated connections.

An unauthenticated connection has a slot for at most 10 s.  If all slots are in use, the address with the most
connections loses its oldest one.  An authenticated connection frees its slot at once.
"""

from __future__ import annotations

import errno
import functools
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ringup.addresses import subnet
from ringup.errors import NodesError
from ringup.transport import pod_link
from ringup.transport.pod_link import Hello, Link, Refusal, Refused
from ringup.units import printable, show_seconds

PLACES = 256
ACCEPTED_AT_ONCE = 16
"""Handshakes in progress continue before more connections are accepted."""
STRANGERS_KEPT = 100
UNFINISHED = f"not authenticated within {show_seconds(pod_link.ADMITTED_WITHIN_S)}"
CROWDED = "too many unauthenticated connections"

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Guest:
    link: Link
    address: str
    source: str
    until: float


class Admission:
    """Accepts connections under a selector, and passes on those of pods that have the token."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        selector: selectors.BaseSelector,
        on_hello: Callable[[Link, str, Hello], None],
        say: Say,
    ) -> None:
        """`on_hello` gets an authenticated connection, its address and its hello; it may raise Refused."""
        self._context, self._selector, self._on_hello, self._say = context, selector, on_hello, say
        self._listener = listener
        self._guests: dict[Link, _Guest] = {}
        """In the order of arrival."""
        self.strangers: Counter[tuple[str, str]] = Counter()
        """(address, reason) -> refused connections."""
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def turn(self, timeout_s: float) -> None:
        """Wait for connections and data; close connections that take too long."""
        pod_link.turn(self._selector, timeout_s)
        now = time.monotonic()
        while self._guests and (guest := next(iter(self._guests.values()))).until < now:
            self._turn_away(guest, guest.address, UNFINISHED)

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()
        for guest in self._guests.values():
            guest.link.close()
        self._guests.clear()

    def turned_away(self, least: int = 1) -> list[str]:
        """A line for each stranger and reason with many refused connections, and their number."""
        return [
            f"turned away {who}{f' {times:,} times' if times > 1 else ''}: {why}"
            for (who, why), times in self.strangers.items()
            if times >= least
        ]

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return  # the other side went away
                if not self._guests:
                    problem = f"no more connections can be accepted: {error.strerror}"
                    raise NodesError(problem, hint="allow ringup more open files (ulimit -n)") from error
                self._make_room(0)
                return
            self._make_room(PLACES - 1)
            try:
                fresh = Link(connection, self._context)
            except OSError:
                continue  # already gone
            shown, until = plain(address[0]), time.monotonic() + pod_link.ADMITTED_WITHIN_S
            guest = self._guests[fresh] = _Guest(fresh, shown, source(shown), until)
            hooks = (functools.partial(hook, guest) for hook in (self._on_frame, self._on_end))
            fresh.attach(self._selector, *hooks)

    def _make_room(self, most: int) -> None:
        if len(self._guests) <= most or not self._guests:
            return
        crowd = Counter(guest.source for guest in self._guests.values()).most_common(1)[0][0]
        oldest = next(guest for guest in self._guests.values() if guest.source == crowd)
        self._turn_away(oldest, oldest.address, CROWDED)

    def _on_frame(self, guest: _Guest, kind: int, content: bytes) -> None:
        who = f"{guest.address} ({printable(guest.link.peer, 40)})"
        try:
            hello = pod_link.decode(kind, content, Hello)
            if guest.link.peer != pod_link.certified(hello.index):
                raise Refused(f"it claims index {hello.index} with the certificate of {guest.link.peer}")
            if guest.link.unread_bytes:
                raise Refused("it sent data too early")
            self._on_hello(guest.link, guest.address, hello)
        except (Refused, ConnectionError) as error:
            guest.link.say(Refusal(str(error), not isinstance(error, Refused) or error.final))
            self._turn_away(guest, who, str(error))
        else:
            del self._guests[guest.link]

    def _on_end(self, guest: _Guest, error: OSError) -> None:
        # A port scan or a health check closes without sending anything: not reported.
        is_worth_a_line = isinstance(error, ssl.SSLError) and not isinstance(error, pod_link.CLOSED)
        self._turn_away(guest, guest.address, pod_link.explain(error) if is_worth_a_line else "")

    def _turn_away(self, guest: _Guest, who: str, why: str) -> None:
        self._guests.pop(guest.link, None)
        guest.link.close()
        if not why or ((who, why) not in self.strangers and len(self.strangers) >= STRANGERS_KEPT):
            return
        self.strangers[who, why] += 1
        if self.strangers[who, why] == 1:
            self._say(f"turned away {who}: {why}")


def listen(port: int) -> socket.socket:
    """Listen on every address of this pod, including IPv6 if available; NodesError if the port is in use."""
    try:
        both = socket.has_dualstack_ipv6()
        where, family = ("::", socket.AF_INET6) if both else ("", socket.AF_INET)
        return socket.create_server((where, port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError as error:
        hint = "RINGUP_PORT, the same for every pod"
        raise NodesError(f"port {port} cannot be listened on: {error.strerror}", hint=hint) from error


def plain(address: str) -> str:
    """
    >>> plain("::ffff:10.0.0.1"), plain("fd00::1")
    ('10.0.0.1', 'fd00::1')
    """
    return address.removeprefix("::ffff:") if "." in address else address


def source(address: str) -> str:
    """
    The unit for one machine's connections: an IPv4 address, or the /64 of an IPv6 address.

    >>> source("10.0.0.1"), source("fd00::1:2"), source("fe80::1%eth0")
    ('10.0.0.1', 'fd00::/64', 'fe80::/64')
    """
    return subnet(address.partition("%")[0], 64) if ":" in address else address
