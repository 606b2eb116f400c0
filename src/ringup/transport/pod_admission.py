"""The first pod's listener: admits the pods that have the token, and counts the others by their reasons."""

from __future__ import annotations

import functools
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable

from ringup.agent.guard import arrivals
from ringup.errors import NodesError
from ringup.transport import pod_link
from ringup.transport.pod_link import Hello, Link, Refusal, Refused
from ringup.units import printable

PLACES = 256
STRANGERS_KEPT = 100

Say = Callable[[str], None]


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
        self._arrivals = arrivals.Arrivals(listener, PLACES, self._connect, self._turn_away)
        self.strangers: Counter[tuple[str, str]] = Counter()
        """(address, reason) -> refused connections."""
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def turn(self, timeout_s: float) -> None:
        """Wait for connections and data; close connections that take too long."""
        pod_link.turn(self._selector, timeout_s)
        self._arrivals.on_time(time.monotonic())

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()
        for link in self._arrivals.links:
            link.close()
        self._arrivals.links.clear()

    def turned_away(self, least: int = 1) -> list[str]:
        """A line for each stranger and reason with many refused connections, and their number."""
        return [
            f"turned away {who}{f' {times:,} times' if times > 1 else ''}: {why}"
            for (who, why), times in self.strangers.items()
            if times >= least
        ]

    def _accept(self) -> None:
        try:
            self._arrivals.accept()
        except OSError as error:
            problem = f"no more connections can be accepted: {error.strerror}"
            raise NodesError(problem, hint="allow ringup more open files (ulimit -n)") from error

    def _connect(self, fd: int, address: str) -> Link:
        link = Link(socket.socket(fileno=fd), self._context)
        hooks = (functools.partial(hook, link, address) for hook in (self._on_frame, self._on_end))
        link.attach(self._selector, *hooks)
        return link

    def _on_frame(self, link: Link, address: str, kind: int, content: bytes) -> None:
        try:
            hello = pod_link.decode(kind, content, Hello)
            if link.peer != pod_link.certified(hello.index):
                raise Refused(f"it claims index {hello.index} with the certificate of {link.peer}")
            if link.unread_bytes:
                raise Refused("it sent data too early")
            self._on_hello(link, address, hello)
        except (Refused, ConnectionError) as error:
            link.say(Refusal(str(error), not isinstance(error, Refused) or error.final))
            self._turn_away(link, f"{address} ({printable(link.peer, 40)})", str(error))
        else:
            del self._arrivals.links[link]

    def _on_end(self, link: Link, address: str, error: OSError) -> None:
        # A port scan or a health check closes without sending anything: not reported.
        is_worth_a_line = isinstance(error, ssl.SSLError) and not isinstance(error, pod_link.CLOSED)
        self._turn_away(link, address, pod_link.explain(error) if is_worth_a_line else "")

    def _turn_away(self, link: Link, who: str, why: str) -> None:
        self._arrivals.links.pop(link, None)
        link.close()
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
