"""
The first of N equal pods hears the others, and reaches them by the connections they opened.

Every other pod opens a control connection and, for each of a few waiting shells, two more (see `wire`).
Nothing that comes from a stranger has an effect: no proof, no line.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ringup.errors import NodesError
from ringup.facts import Host
from ringup.hosts.pod import Pod
from ringup.reach import proof
from ringup.reach.proof import Message, Refused
from ringup.reach.wire import Line
from ringup.units import printable, show_seconds

SHELLS = 4
"""Waiting shells a pod opens: one serves, the others are for when it is lost or busy."""
GREETED_AT_ONCE = 64
TOLD_EVERY_S = 10.0
AGAIN_S = 5.0

Say = Callable[[str], None]


@dataclass
class _Peer:
    """Another pod, as far as it has come."""

    name: str
    address: str
    instance: str
    control: socket.socket | None = None
    outs: dict[int, tuple[socket.socket, str]] = field(default_factory=dict)
    errs: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return self.control is not None and len(self.outs) == len(self.errs) == SHELLS

    def close(self) -> None:
        """Let go of all its connections."""
        for one in (self.control, *(out for out, _ in self.outs.values()), *self.errs.values()):
            if one is not None:
                one.close()


class Pods:
    """All pods, gathered: who they are, and the lines to them."""

    def __init__(self, own: str, peers: Iterable[_Peer]) -> None:
        self.own = own
        self._controls = [peer.control for peer in peers if peer.control is not None]
        self._lines = {
            peer.name: deque(Line(peer.outs[n][0], peer.errs[n], peer.outs[n][1]) for n in sorted(peer.outs))
            for peer in peers
        }
        self.hosts = (Host(own), *(Host(name) for name in self._lines))

    def take(self, name: str) -> Line | None:
        """A line to a pod that was not used yet; None when there is none left."""
        lines = self._lines.get(name)
        return lines.popleft() if lines else None

    def finish(self, code: int) -> None:
        """Tell every pod how the run ended, and let go; may be called twice."""
        for control in self._controls:
            with contextlib.suppress(OSError):
                control.sendall(proof.encode({"end": code}))
            control.close()
        self._controls = []
        for lines in self._lines.values():
            for line in lines:
                line.out.close()
                line.err.close()
            lines.clear()


class _Gathering:
    """Hears pods until all have come."""

    def __init__(self, pod: Pod, say: Say) -> None:
        self.pod, self.say = pod, say
        self.peers: dict[int, _Peer] = {}
        self.refused: dict[str, str] = {}
        """Who was turned away -> why; the latest of a hundred."""
        self.is_open = True
        self._news: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._greeted = threading.Semaphore(GREETED_AT_ONCE)
        self._listener = listen(pod.port)
        threading.Thread(target=self._accept, daemon=True).start()

    # -- greeting, in threads ------------------------------------------------------------------

    def _accept(self) -> None:
        while self.is_open:
            self._greeted.acquire()
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection, plain(address[0])), daemon=True).start()

    def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            connection.settimeout(proof.STEP_S)
            proof.keep_alive(connection)
            hello = proof.decode(proof.read_line(connection))
            self._prove(connection, address, hello)
            words = self._admit(connection, address, hello)
            if words:
                raise Refused(words)
        except Refused as refused:
            with contextlib.suppress(OSError):
                connection.sendall(proof.encode({"refused": str(refused), "final": refused.final}))
            connection.close()
            self._note(address, hello, str(refused))
        except (OSError, ValueError):
            connection.close()  # a port scan, a health check, a pod that ended meanwhile
        finally:
            self._greeted.release()

    def _prove(self, connection: socket.socket, address: str, hello: Message) -> None:
        if hello.get("version") != proof.VERSION or not isinstance(hello.get("nonce"), str):
            raise ConnectionError("no hello of ours")
        nonce = proof.new_nonce()
        answer = {"nonce": nonce, "proof": proof.proof(self.pod.token, "head", hello, nonce)}
        connection.sendall(proof.encode(answer))
        said = proof.decode(proof.read_line(connection))
        if not proof.is_proof(said.get("proof"), self.pod.token, "peer", hello, nonce):
            raise Refused("it holds another token than the head")

    def _note(self, address: str, hello: Message, words: str) -> None:
        who = f"{address} (says: index {printable(str(hello.get('index')), 10)}"
        who += f", {printable(str(hello.get('name')), 100)})"
        with self._lock:
            if self.refused.get(who) != words and len(self.refused) < 100:
                self.refused[who] = words
                self._news.put(f"turned away {who}: {words}")

    def _admit(self, connection: socket.socket, address: str, hello: Message) -> str:
        """Take a proven pod's connection in; why not, or ""."""
        index, instance, role = hello.get("index"), hello.get("instance"), str(hello.get("role"))
        if hello.get("count") != self.pod.count:
            return f"it counts {hello.get('count')} pods, the head {self.pod.count}"
        if not isinstance(index, int) or not 0 <= index < self.pod.count:
            return f"there is no index {index} of {self.pod.count}"
        if index == 0:
            return f"index 0 is taken by {self.pod.name}, the head"
        with self._lock:
            if not self.is_open:
                return "the run has begun"
            peer = self.peers.get(index)
            if peer is not None and peer.instance != instance:
                if peer.control is None or not is_gone(peer.control):
                    return f"index {index} is taken by {peer.name} ({peer.address})"
                peer.close()  # it was started anew
                peer = None
            if peer is None:
                name = known_name(str(hello.get("name")), address)
                peer = self.peers[index] = _Peer(name, address, str(instance))
            self._keep(peer, connection, role, str(hello.get("loop")))
            # The connection is the pod's from here on; its first line on it must be this one.
            connection.sendall(proof.encode({"welcome": True}))
            connection.settimeout(None)
        self._news.put("")
        return ""

    def _keep(self, peer: _Peer, connection: socket.socket, role: str, loop: str) -> None:
        kind, _, number = role.partition(" ")
        if kind == "control":
            peer.control = connection
        elif kind in ("out", "err") and number.isdecimal() and int(number) < SHELLS and loop.isalnum():
            if kind == "out":
                peer.outs[int(number)] = (connection, loop)
            else:
                peer.errs[int(number)] = connection
        else:
            raise ConnectionError("no such role")

    # -- waiting, in the caller's thread -------------------------------------------------------

    def missing(self) -> list[int]:
        """Indices that have not come."""
        with self._lock:
            whole = {n for n, peer in self.peers.items() if peer.is_whole and not is_gone(peer.control)}
        return [n for n in range(1, self.pod.count) if n not in whole]

    def wait(self) -> None:
        """
        Until all have come.

        Raises NodesError when the time is over, or when another pod leads already.
        """
        until = time.monotonic() + self.pod.wait_s
        told = time.monotonic() + TOLD_EVERY_S
        asked = 0.0
        while missing := self.missing():
            now = time.monotonic()
            if now > until:
                raise NodesError(self._words(missing), hint=self._hint())
            if now - asked > AGAIN_S:
                asked = now
                other_head(self.pod)
            if now > told:
                told = now + TOLD_EVERY_S
                self.say(f"waiting for {indices(missing)} of {self.pod.count}")
            with contextlib.suppress(queue.Empty):
                words = self._news.get(timeout=0.2)
                if words:
                    self.say(words)

    def _words(self, missing: list[int]) -> str:
        words = f"{indices(missing)} of {self.pod.count} did not come within {show_seconds(self.pod.wait_s)}"
        return "\n".join([words, *(f"turned away {who}: {why}" for who, why in self.refused.items())])

    def _hint(self) -> str:
        if self.refused:
            return "every pod needs the same token and count, and an index of its own"
        return f"is it running, and may it connect to {self.pod.name} port {self.pod.port} (network policy)?"

    def close(self) -> None:
        """Hear nobody any more."""
        with self._lock:
            self.is_open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def indices(numbers: list[int]) -> str:
    """
    >>> indices([1]), indices([1, 2, 5])
    ('index 1', 'indices 1, 2, 5')
    """
    more = ", ..." if len(numbers) > 20 else ""
    return f"ind{'ices' if len(numbers) > 1 else 'ex'} {', '.join(map(str, numbers[:20]))}{more}"


def listen(port: int) -> socket.socket:
    """
    A listener on every address of this pod, IPv6 too where there is any.

    Raises NodesError when the port is taken.
    """
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise NodesError(
            f"port {port} cannot be listened on: {error.strerror}", hint="RINGUP_PORT, the same for every pod"
        ) from error


def is_gone(connection: socket.socket | None) -> bool:
    """Whether the other side of a control connection has closed it."""
    if connection is None:
        return True
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def plain(address: str) -> str:
    """
    >>> plain("::ffff:10.0.0.1"), plain("fd00::1")
    ('10.0.0.1', 'fd00::1')
    """
    return address.removeprefix("::ffff:") if "." in address else address


def known_name(name: str, address: str) -> str:
    """What a pod calls itself, where that means its address; else the address."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        found = set()
    return name if plain(address) in found else plain(address)


def other_head(pod: Pod) -> None:
    """
    Look who answers where the first pod should be.

    Raises NodesError when that is another one which holds our token: two have index 0.
    """
    try:
        with socket.create_connection((pod.head, pod.port), timeout=2) as probe:
            if probe.getsockname()[0] == probe.getpeername()[0]:
                return
            address = plain(str(probe.getpeername()[0]))
        told = {"index": 0, "count": pod.count, "name": pod.name, "role": "control", "instance": "another"}
        proof.dial((pod.head, pod.port), pod.token, told, wait_s=2)
    except Refused as refused:
        if "index 0 is taken" in str(refused):
            raise NodesError(
                f"two pods say that they are index 0: {pod.name} and the one at {pod.head} ({address})",
                hint="every pod needs an index of its own (RINGUP_INDEX or JOB_COMPLETION_INDEX)",
            ) from refused
    except OSError:
        return  # its name is not in the DNS yet, or leads elsewhere: the others will tell


def gather(pod: Pod, say: Say) -> Pods:
    """
    Wait for every other pod and take its lines.

    Raises NodesError when not all have come in time; those that have are told.
    """
    gathering = _Gathering(pod, say)
    try:
        gathering.wait()
    except BaseException as error:
        gathering.close()
        code = error.exit_code if isinstance(error, NodesError) else 130
        words = str(error).split("\n", 1)[0]
        for peer in gathering.peers.values():
            if peer.control is not None:
                with contextlib.suppress(OSError):
                    peer.control.sendall(proof.encode({"end": code, "words": words}))
            peer.close()
        raise
    gathering.close()
    return Pods(pod.name, [gathering.peers[n] for n in sorted(gathering.peers)])
