"""The pair tests: agent/pairtest runs on every node at once; `Round.unknown` has the nodes that fail."""

from __future__ import annotations

import itertools
import json
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from ringup import progress
from ringup.agent_bundle import program
from ringup.collectors import pair_schedule
from ringup.collectors.node_answer import checked, counters, starved
from ringup.collectors.pair_schedule import Endpoint, Target
from ringup.model import Counters, Job, Link, LinkPurpose, Node, Resolution, Unreached, cpu_starvation
from ringup.transport import KeepsErrors, Request, Transport, cpu
from ringup.units import printable, safe_data

ROUND_S = 8.5
"""Longest time of a faulty round: 3.6 s of patience, 3 s for the large message, and a margin."""
LEAST_START_S = 5.0
START_S = 12.0
START_PER_ANSWER = 2.0
"""
Time for the slowest node to begin: this, plus this for each second of its earlier answer.

Its connection is already open; without the limit one hung python3 would hold up all other nodes.
"""
LOOKUP_S = 4.0
TURN_S = 0.25
ANSWER_LIMIT_BYTES = 16 << 20
"""Longest output of one node; a node that sends more is not trusted."""

LATE_LINKS = ("timed out", "no answer", "answer lost", "large message lost", "large answer lost", "")
"""Errors of an attempt (agent/pairtest/connections.py) that a longer wait might have avoided."""

_Port = Annotated[int, msgspec.Meta(gt=0, lt=65536)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Figure = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One attempt, as agent/pairtest/connections.py reports it."""

    target: _Count
    bound: Literal["routed", "source", "device"]
    value: str
    ok: bool
    large: bool | None
    error: str
    source: str
    rtt_us: _Figure | None
    rate: _Figure | None
    answered: str
    """The token of another program that answered."""
    stranger: bool
    sent: _Count
    again: _Count


class Message(msgspec.Struct):
    """A message of agent/pairtest/main.py; its fields depend on `op`."""

    op: Literal["ready", "links", "half", "looked-up", "done"]
    ports: dict[str, _Port] = {}
    """Address -> port it listens on."""
    failed: dict[str, str] = {}
    ephemeral: list[_Port] = []
    rendezvous: list[_Port] = []
    held: dict[str, str] = {}
    """Port of the rendezvous -> why the node cannot have it."""
    links: list[Row] = []
    seen: list[tuple[str, str, int]] = []
    """Source, destination and destination port of connection requests that were never completed."""
    names: list[dict[str, Any]] = []
    reverse_s: list[_Figure] = []
    counters: Any = None
    waited: _Figure = 0.0


_decode = msgspec.json.Decoder(Message).decode


class PairClient(KeepsErrors):
    """The messages of one node's program; a `Listener` of it."""

    def __init__(self, node: Node, answer: str) -> None:
        self.node = node
        self.answer = answer
        """The token it sends to nodes that connect."""
        self.endpoints = pair_schedule.endpoints(node)
        self.channel: Request | None = None
        self.failure = ""
        self.ready: Message | None = None
        """Set once peers can try it."""
        self.targets: list[Target] = []
        self.rows: list[Row] = []
        self.half_open: set[tuple[str, str, int]] = set()
        self.names: tuple[Resolution, ...] = ()
        self.reverse_s: tuple[float, ...] = ()
        """Seconds that its reverse lookups took."""
        self.counters: tuple[Counters, ...] = ()
        """Counters at the end of the round."""
        self.waited_s = 0.0
        """Seconds that its program waited for a CPU."""
        self.done = False
        self.looked_up = False
        self._rest = b""
        self._came_bytes = 0

    def say(self, **order: Any) -> None:
        """Send one order; it is lost silently if the node is gone."""
        if self.channel is not None:
            self.channel.write(json.dumps(order).encode() + b"\n")

    def on_output(self, data: bytes) -> None:
        self._came_bytes += len(data)
        if self._came_bytes > ANSWER_LIMIT_BYTES:
            self.fail(f"printed more than {ANSWER_LIMIT_BYTES >> 20} MiB")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._take(_decode(line))
            except (ValueError, TypeError, OverflowError, RecursionError):
                # A login script may print.  Any other program never becomes ready.
                self.on_errors(line + b"\n")

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        if error is not None:
            self.fail(error.words)
        elif not self.done:
            last = printable(self.last_error(), 200)
            self.fail(f"the pair test ended with {code}" + (f": {last}" if last else ""))

    def _take(self, message: Message) -> None:
        self.rows += message.links
        self.half_open.update(message.seen)
        if message.op == "ready":
            self.ready = message
        elif message.op == "looked-up":
            self.names = checked(safe_data(message.names), tuple[Resolution, ...])
            self.reverse_s = tuple(message.reverse_s)
            self.looked_up = True
        elif message.op == "done":
            self.done = True
            self.counters, self.waited_s = counters(message.counters), message.waited


class Round:
    def __init__(self, reach: Transport, nodes: Sequence[Node], job: Job) -> None:
        self.reach, self.nodes, self.job = reach, nodes, job
        reasons = {node.name: why_not(node) for node in nodes}
        self.unknown = {name: reason for name, reason in reasons.items() if reason}
        """Node -> why the round has no result for it."""
        self.clients = {n.name: PairClient(n, secrets.token_hex(16)) for n in nodes if not reasons[n.name]}
        self.rendezvous: list[int] = []
        self.waited_s = cpu.waited_s()
        self.links: tuple[Link, ...] = ()
        self.schedule = ""
        """How the pairs were chosen if not all were tried; "" means every pair."""
        self.starved: list[str] = []
        """Nodes of `unknown` that were CPU-starved."""

    def begin(self, names: Sequence[str], reverse: Sequence[str], deadline_s: float) -> None:
        if not (asked := [v.node for v in self.clients.values()]):
            return
        dice, run, head = random.Random(secrets.randbits(64)), secrets.token_hex(16), self.nodes[0]
        spread = pair_schedule.ephemeral_ports(asked, dice)
        self.rendezvous = pair_schedule.rendezvous_ports(head, self.job, dice, spread)
        port = pair_schedule.meeting_port(head, dice, {*spread, *self.rendezvous})
        for name, client in self.clients.items():
            client.channel = self.reach.start(name, program("pairtest.main"), (), client)
            client.say(
                op="begin",
                run=run,
                answer=client.answer,
                alone=client.endpoints[0].address if client.node.host.local else "",
                listen=list(dict.fromkeys(e.address for e in client.endpoints)),
                port=port,
                ephemeral=spread,
                rendezvous=self.rendezvous if name == head.name else [],
                names=list(names),
                reverse=list(reverse),
                lookup_s=LOOKUP_S,
                deadline_s=int(deadline_s) + 5,
            )
            client.looked_up = not names and not reverse

    def wait(self, until: Callable[[PairClient], bool], deadline: float, on_turn: Callable[[], None]) -> None:
        """Turn until `until` is true for every node that has not failed, or until a monotonic deadline."""
        while any(not v.failure and not until(v) for v in self.clients.values()):
            if (left := deadline - time.monotonic()) <= 0:
                return
            self.reach.turn(min(left, TURN_S))
            on_turn()

    def try_all(self) -> None:
        live = {n: (v, v.ready) for n, v in self.clients.items() if v.ready and not v.failure}
        own = {n: {e.address for e in v.endpoints} for n, (v, _) in live.items()}
        ports = {(n, a): p for n, (_, one) in live.items() for a, p in one.ports.items() if a in own[n]}
        ready = {n: tuple(e for e in v.endpoints if (n, e.address) in ports) for n, (v, _) in live.items()}
        ephemeral = {n: one.ephemeral for n, (_, one) in live.items()}
        head = self.nodes[0].name
        held = live[head][1].rendezvous if head in live else []
        planned = pair_schedule.targets(self.nodes, ready, ports, ephemeral, held)
        for name, (client, _) in live.items():
            client.targets = planned[name]
            orders = []
            for number, target in enumerate(client.targets):
                end, limits = target.endpoint, (target.large_bytes, target.patience_s)
                ways = [[w.bound, w.value, w.always] for w in target.ways]
                token = self.clients[end.node].answer
                orders.append([number, end.address, target.port, token, *limits, ways])
            client.say(op="try", targets=orders)

    def give_up(self, client: PairClient, what: str, limit_s: float) -> None:
        """Fail a node that missed a limit; if it or this machine lacked a CPU, that is the reason."""
        own_s, there_s = cpu.waited_s() - self.waited_s, max(client.node.cpu_waits.values(), default=0.0)
        reason = f"did not {what} the pair test within {limit_s:.0f} s"
        if not client.failure and cpu_starvation.excuses(max(own_s, there_s), limit_s):
            reason = cpu.words(own_s) if own_s >= there_s else starved(client.node, there_s)
            self.starved.append(client.node.name)
        client.fail(reason)

    def conclude(self) -> None:
        """All reports, as links in the user's order of nodes."""
        owners = {v.answer: n for n, v in self.clients.items()}
        rows = (read_row(row, v, owners, self.clients) for v in self.clients.values() for row in v.rows)
        links = [*refused_links(self), *filter(None, rows)]
        self.unknown.update({n: v.failure for n, v in self.clients.items() if v.failure})
        waits = {n: v.waited_s for n, v in self.clients.items()}
        for name in starved_ends(links, waits, pair_schedule.PATIENCE_S):
            if name not in self.unknown:
                self.starved.append(name)
                self.unknown[name] = starved(self.clients[name].node, waits[name])
        self.schedule = pair_schedule.describe(sum(bool(v.ready) for v in self.clients.values()))
        place = {node.name: position for position, node in enumerate(self.nodes)}
        # Interfaces before ports, the kernel's routes before other ways.
        purposes, ways = ("interface", "rendezvous", "ephemeral"), ("routed", "source", "device")
        links.sort(key=lambda li: (ways.index(li.bound), li.port, li.src_interface))
        links.sort(key=lambda li: (place[li.src], place[li.dst], purposes.index(li.purpose), li.address))
        self.links = tuple(links)


@progress.line()
def prove(
    reach: Transport,
    nodes: tuple[Node, ...],
    job: Job,
    *,
    budget_s: float,
    names: Sequence[str] = (),
    reverse: Sequence[str] = (),
) -> Round:
    """Try every pair both ways on every interface within `budget_s`; all resolve `names` and `reverse`."""
    started = time.monotonic()
    talk = Round(reach, nodes, job)
    if len(talk.clients) < 2 and not names and not reverse:
        return talk
    talk.begin(names, reverse, budget_s)
    clients = talk.clients.values()

    def show_listening() -> None:
        progress.show(f"pairs: {sum(bool(v.ready) for v in clients)} of {len(clients)} nodes listen")

    def show_tried() -> None:
        wanted, tried = sum(len(v.targets) for v in clients), sum(len(v.rows) for v in clients)
        progress.show(f"pairs: {min(wanted, tried)} of {wanted} connections tried")

    slowest_s = max((v.node.answer_s for v in clients), default=0.0)
    start_s = max(budget_s - ROUND_S, min(LEAST_START_S, budget_s / 2))
    start_s = min(start_s, START_S + START_PER_ANSWER * slowest_s)
    talk.wait(lambda v: bool(v.ready), started + start_s, show_listening)
    for client in clients:
        if not client.ready:
            talk.give_up(client, "begin", start_s)
    talk.try_all()
    until = min(time.monotonic() + ROUND_S, started + budget_s + 1)
    talk.wait(lambda v: v.done and v.looked_up, until, show_tried)
    for client in clients:
        if not client.done:
            talk.give_up(client, "end", time.monotonic() - started)
        if not client.failure:
            client.say(op="end")
    talk.conclude()
    return talk


def why_not(node: Node) -> str:
    if node.unreached is not None:
        return f"not reached: {node.unreached.words}"
    if node.host.local:
        return ""
    if "interfaces" in node.unknown:
        return f"its interfaces are not known: {node.unknown['interfaces']}"
    return "" if pair_schedule.endpoints(node) else "no interface that is up has an address peers could use"


def refused_links(talk: Round) -> Iterable[Link]:
    """Links to addresses and rendezvous ports on which a node could not listen: nothing needs to try them."""
    for client in talk.clients.values():
        failed = client.ready.failed if client.ready else {}
        held = client.ready.held if client.ready and client.node is talk.nodes[0] else {}
        for end, (name, other) in itertools.product(client.endpoints, talk.clients.items()):
            if other.ready and other is not client:
                is_own = end.address in {e.address for e in other.endpoints}
                for port in talk.rendezvous if not end.minor and not is_own else ():
                    if str(port) in held:
                        yield link_to(name, end, port, "rendezvous", error=printable(held[str(port)], 100))
                if end.address in failed:
                    yield link_to(name, end, 0, "interface", error=printable(failed[end.address], 100))


def link_to(src: str, end: Endpoint, port: int, purpose: LinkPurpose, **more: Any) -> Link:
    """A failed link unless `more` says otherwise."""
    values: dict[str, Any] = {"src_interface": "", "ok": False, **more}
    values |= {"dst": end.node, "dst_interface": end.interface, "address": end.address}
    return Link(src=src, port=port, purpose=purpose, **values)


def read_row(
    row: Row, client: PairClient, owners: Mapping[str, str], clients: Mapping[str, PairClient]
) -> Link | None:
    """One result of a node as a link; None for an attempt that was not in its schedule."""
    if row.target >= len(client.targets):
        return None
    target = client.targets[row.target]
    src, end, error = client.node.name, target.endpoint, row.error
    other = owners.get(row.answered, "")
    mine = {e.address for e in client.endpoints}
    if not row.ok and (other == src or (end.address in mine and not other)):
        error, other = "own address", ""
    elif not row.ok and error == "timed out":
        # Whether the other node has a connection request from us that was never completed.
        seen = clients[end.node].half_open
        if any((address, end.address, target.port) in seen for address in mine):
            error = "answer lost"
    by_way = (w.interface for w in target.ways if (w.bound, w.value) == (row.bound, row.value))
    by_address = (e.interface for e in client.endpoints if e.address == row.source)
    return link_to(
        src,
        end,
        target.port,
        target.purpose,
        src_interface=next(by_way, next(by_address, "")),
        ok=row.ok,
        error=printable(error, 100),
        rtt_ms=round(row.rtt_us / 1000, 3) if row.ok and row.rtt_us else None,
        large_packet_ok=row.large,
        bound=row.bound,
        stranger=row.stranger or bool(row.answered and not other and error != "own address"),
        mbyte_s=row.rate or None,
        segments=row.sent,
        retransmitted=row.again,
        answered_by=other if other != end.node else "",
    )


def starved_ends(links: Iterable[Link], waits: Mapping[str, float], limit_s: float) -> list[str]:
    """Nodes that were CPU-starved while an attempt from or to them got no answer in time."""
    found = [
        end
        for link in links
        if not (link.ok and link.large_packet_ok is not False) and link.error in LATE_LINKS
        for end in (link.src, link.dst)
        if cpu_starvation.excuses(waits.get(end, 0.0), limit_s)
    ]
    return list(dict.fromkeys(found))
