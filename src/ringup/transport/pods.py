"""The first of N equal pods uses the connections that the others open: control connections, and shells."""

from __future__ import annotations

import queue
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from ringup.agent.guard import arrivals
from ringup.errors import NodesError
from ringup.hosts.pod import Pod
from ringup.keys import Authority
from ringup.model import Host
from ringup.transport import pod_link
from ringup.transport.client import FDS_SPARE, allow_open_files
from ringup.transport.pod_admission import PLACES, Admission, Say, listen
from ringup.transport.pod_link import End, Hello, Link, Refused, Welcome
from ringup.units import printable, show_seconds

SHELLS = 4
"""Waiting shells that a pod opens: one is used, the others are spares for a lost or busy one."""
REPORT_EVERY_S = 10.0
AGAIN_S = 5.0
RESOLVED_AT_ONCE = 32
ITSELF = "this is the first pod itself"


@dataclass
class _Peer:
    name: str
    address: str
    instance: str
    control: Link
    shells: dict[int, Link] = field(default_factory=dict)

    def close(self) -> None:
        for link in (self.control, *self.shells.values()):
            link.close()


class Pods:
    def __init__(self, own: str, peers: Mapping[str, _Peer]) -> None:
        self.own, self._peers = own, peers
        self.hosts = (Host(own), *map(Host, peers))

    def take(self, name: str) -> Link | None:
        """An unused shell of a pod; None if there is none left."""
        shells = self._peers[name].shells if name in self._peers else {}
        return shells.pop(min(shells)) if shells else None

    def finish(self, code: int) -> None:
        """Send every pod the run's exit code, and close; may be called twice."""
        for peer in self._peers.values():
            peer.control.say(End(code & 255))
            peer.close()


class _Gathering:
    """Accepts pods until all have come."""

    def __init__(self, pod: Pod, say: Say) -> None:
        """Listen; raises NodesError if that is impossible."""
        self.pod, self.say = pod, say
        self.peers: dict[int, _Peer] = {}
        self.instance = secrets.token_hex(8)
        self._rivals: queue.SimpleQueue[NodesError] = queue.SimpleQueue()
        self._is_over = threading.Event()
        with ExitStack() as opened:  # closes all if the rest fails
            # Listen first, so that pods which dial meanwhile wait and need not dial again.
            listener = opened.enter_context(listen(pod.port))
            self._selector = opened.enter_context(selectors.DefaultSelector())
            authority = Authority(pod.token)
            context = pod_link.server_context(authority)
            self._admission = Admission(listener, context, self._selector, self._on_hello, say)
            opened.callback(self._admission.close)
            context = pod_link.client_context(authority, pod.index)
            threading.Thread(target=self._look_for_rivals, args=(context,), daemon=True).start()
            self._open = opened.pop_all()

    def _on_hello(self, connection: Link, address: str, hello: Hello) -> None:
        """Admit an authenticated pod's connection; raises Refused."""
        index = hello.index
        if hello.instance == self.instance:
            raise Refused(ITSELF)
        if hello.count != self.pod.count:
            raise Refused(f"it counts {hello.count} pods, the head {self.pod.count}")
        if not 0 <= index < self.pod.count:
            raise Refused(f"there is no index {index} of {self.pod.count}")
        if index == 0:
            raise Refused(f"index 0 is taken by {self.pod.name}, the head")
        peer = self.peers.get(index)
        if peer is not None and peer.instance != hello.instance:
            raise Refused(f"index {index} is taken by {printable(peer.name, 100)} ({peer.address})")
        if hello.shell is None:
            if peer is not None:
                peer.close()  # it did not get our welcome, and dials again
            self.peers[index] = _Peer(hello.name, address, hello.instance, connection)
            connection.attach(self._selector, self._on_control, lambda _: self._on_gone(index, connection))
        elif peer is None or hello.shell >= SHELLS:
            raise Refused("a shell without a control connection", final=False)
        else:
            connection.detach()
            connection.loop = hello.loop
            peer.shells[hello.shell] = connection
        connection.say(Welcome())

    def _on_control(self, kind: int, content: bytes) -> None:
        raise ConnectionError("a pod must not send on its control connection")

    def _on_gone(self, index: int, control: Link) -> None:
        peer = self.peers.get(index)
        if peer is not None and peer.control is control:
            peer.close()
            del self.peers[index]

    def _look_for_rivals(self, context: ssl.SSLContext) -> None:
        """Runs in a thread: the other pod or the DNS may not answer."""
        while True:
            try:
                other_head(self.pod, context, self.instance)
            except NodesError as error:
                self._rivals.put(error)
                return
            if self._is_over.wait(AGAIN_S):
                return

    def missing(self) -> list[int]:
        whole = {n for n, peer in self.peers.items() if len(peer.shells) == SHELLS}
        return [n for n in range(1, self.pod.count) if n not in whole]

    def wait(self) -> None:
        """Wait until all have come; NodesError at the time limit, or if another pod already leads."""
        until = time.monotonic() + self.pod.wait_s
        reported = time.monotonic() + REPORT_EVERY_S
        while missing := self.missing():
            self._admission.turn(0.2)
            if (now := time.monotonic()) > until:
                late = f"did not come within {show_seconds(self.pod.wait_s)}"
                lost = f"{indices(missing)} of {self.pod.count} {late}"
                where = f"{self.pod.name} port {self.pod.port}"
                hint = f"is it running, and may it connect to {where} (network policy)?"
                if self._admission.strangers:
                    hint = "every pod needs the same token and count, and an index of its own"
                raise NodesError("\n".join([lost, *self._admission.turned_away()]), hint=hint)
            if not self._rivals.empty():
                raise self._rivals.get()
            if now > reported:
                reported = now + REPORT_EVERY_S
                self.say(f"waiting for {indices(missing)} of {self.pod.count}")
        for line in self._admission.turned_away(least=2):
            self.say(line)

    def close(self) -> None:
        self._is_over.set()
        for peer in self.peers.values():
            peer.control.detach()
        self._open.close()

    def named(self) -> dict[str, _Peer]:
        """Every pod that has come, by index, with a unique name."""
        peers = sorted(self.peers.items())
        with ThreadPoolExecutor(RESOLVED_AT_ONCE) as pool:
            known = [*pool.map(lambda peer: known_name(peer[1].name, peer[1].address), peers)]
        names: dict[str, _Peer] = {}
        for (index, peer), name in zip(peers, known, strict=True):
            # Several pods behind one address have different names.
            choices = (name, peer.name, pod_link.certified(index))
            names[next(n for n in choices if n not in names and n != self.pod.name)] = peer
        return names


def indices(numbers: list[int]) -> str:
    """
    >>> indices([1]), indices([1, 2, 5])
    ('index 1', 'indices 1, 2, 5')
    """
    more = ", ..." if len(numbers) > 20 else ""
    return f"ind{'ices' if len(numbers) > 1 else 'ex'} {', '.join(map(str, numbers[:20]))}{more}"


def known_name(name: str, address: str) -> str:
    """A pod's own name if it resolves to its address, else the address."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        found = set()
    return name if address in found else address


def other_head(pod: Pod, context: ssl.SSLContext, instance: str) -> None:
    """Raises NodesError if another pod with our token answers as the first one: two have index 0."""
    try:
        with socket.create_connection((pod.head, pod.port), timeout=2) as probe:
            if probe.getsockname()[0] == probe.getpeername()[0]:
                return
            address = arrivals.plain(str(probe.getpeername()[0]))
        pod_link.dial((pod.head, pod.port), context, Hello(2, 0, pod.count, pod.name, instance)).close()
    except Refused as refused:
        if str(refused) != ITSELF:
            hint = "every pod needs an index of its own (RINGUP_INDEX or JOB_COMPLETION_INDEX)"
            problem = f"two pods claim index 0: {pod.name} and the one at {pod.head} ({address})"
            raise NodesError(problem, hint=hint) from refused
    except (OSError, UnicodeError):
        return  # its name is not in the DNS yet, or is wrong: the other pods will report it


def gather(pod: Pod, say: Say) -> Pods:
    """Wait for every other pod.  Raises NodesError if some are late, and notifies the others."""
    allow_open_files(pod.count * (1 + SHELLS) + PLACES + FDS_SPARE)
    gathering = _Gathering(pod, say)
    try:
        gathering.wait()
        gathering.close()
        return Pods(pod.name, gathering.named())
    except BaseException as error:
        gathering.close()
        code = error.exit_code if isinstance(error, NodesError) else 130
        words = printable(str(error).split("\n", 1)[0], pod_link.LONGEST_WORDS)
        for peer in gathering.peers.values():
            peer.control.say(End(code, words))
            peer.close()
        raise
