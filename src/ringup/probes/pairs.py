"""
Prove who reaches whom: start the payload on every node, let all try at once, gather the links.

A node that fails or stays silent ends up in `Proof.unknown`; the others wait for it no
longer than the budget allows.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ringup.facts import Counters, Job, Link, Node, Resolution, Unreached, starved
from ringup.probes import doubts, schedule
from ringup.probes import links as links_of
from ringup.probes.answer import counters
from ringup.probes.schedule import Target
from ringup.probes.voice import Voice, integers, listened
from ringup.reach import Reach, cpu

ROUND_S = 8.5
"""Longest a faulty round lasts once all listen: 3.6 s of patience, 3 s for the large message, and room."""
LEAST_START_S = 5.0
START_S = 12.0
START_PER_ANSWER = 2.0
"""
How long the slowest node may take to begin: this, and for each second it took to answer before.

Its connection is open by now; without the bound one hung python3 would hold up all the others.
"""
LOOKUP_S = 4.0
TURN_S = 0.25
PARTS = ("pairs_wire", "pairs_names", "counters", "pairs")


@dataclass(frozen=True)
class Proof:
    """What the round showed."""

    links: tuple[Link, ...] = ()
    schedule: str = ""
    """How the pairs were chosen when not all were tried; "" means every pair."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Node -> why the round says nothing about it."""
    peer_names: Mapping[str, tuple[Resolution, ...]] = field(default_factory=dict)
    reverse: Mapping[str, tuple[links_of.Reverse, ...]] = field(default_factory=dict)
    counters: Mapping[str, tuple[Counters, ...]] = field(default_factory=dict)
    """Of nodes that told them when all was tried."""
    cpu_waits: Mapping[str, float] = field(default_factory=dict)
    """Node -> seconds its program had no processor."""
    starved: tuple[str, ...] = ()
    """Nodes of `unknown` about which nothing is said for that reason."""


class Round:
    """The whole conversation; a `Listener` of every node's program."""

    def __init__(self, reach: Reach, nodes: Sequence[Node], job: Job) -> None:
        self.reach, self.nodes, self.job = reach, nodes, job
        self.voices: dict[str, Voice] = {}
        self.unknown: dict[str, str] = {}
        for node in nodes:
            reason = why_not(node)
            if reason:
                self.unknown[node.name] = reason
            else:
                self.voices[node.name] = Voice(node, secrets.token_hex(16))
        self.run = secrets.token_hex(16)
        self.dice = random.Random(secrets.randbits(64))
        self.rendezvous: list[int] = []
        self.starved: list[str] = []
        self.waited_s = cpu.waited_s()

    def on_output(self, node: str, data: bytes) -> None:
        """Of `reach.Listener`."""
        self.voices[node].hear(data)

    def on_errors(self, node: str, data: bytes) -> None:
        """Of `reach.Listener`."""
        self.voices[node].hear_errors(data)

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """Of `reach.Listener`."""
        self.voices[node].ended(code, error)

    def begin(self, names: Sequence[str], reverse: Sequence[str], deadline_s: float) -> None:
        """Have every node listen, and resolve on the side."""
        program = payload_source()
        asked = [v.node for v in self.voices.values()]
        if not asked:
            return
        spread = schedule.ephemeral_ports(asked, self.dice)
        head = self.nodes[0]
        self.rendezvous = schedule.rendezvous_ports(head, self.job, self.dice, spread)
        taken = {*spread, *self.rendezvous}
        meeting = schedule.meeting_port(head, self.dice, taken)
        for name, voice in self.voices.items():
            voice.channel = self.reach.start(name, program, (), self)
            voice.say(
                op="begin",
                run=self.run,
                answer=voice.answer,
                alone=voice.endpoints[0].address if voice.node.host.local else "",
                listen=list(dict.fromkeys(e.address for e in voice.endpoints)),
                port=meeting,
                ephemeral=spread,
                rendezvous=self.rendezvous if name == head.name else [],
                names=list(names),
                reverse=list(reverse),
                lookup_s=LOOKUP_S,
                deadline_s=int(deadline_s) + 5,
            )
            voice.looked_up = not names and not reverse

    def wait(self, until: Callable[[Voice], bool], deadline: float, on_turn: Callable[[], None]) -> None:
        """Turn until every node that has not failed satisfies `until`, or the (monotonic) deadline."""
        while any(not v.failure and not until(v) for v in self.voices.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.reach.turn(min(left, TURN_S))
            on_turn()

    def try_all(self) -> None:
        """Tell every node that listens whom to try."""
        live = {n: v for n, v in self.voices.items() if v.ready and not v.failure}
        ports = {(n, a): p for n, v in live.items() for a, p in listened(v)}
        ready = {n: tuple(e for e in v.endpoints if (n, e.address) in ports) for n, v in live.items()}
        ephemeral = {n: integers(v.ready, "ephemeral") for n, v in live.items()}
        head = live.get(self.nodes[0].name)
        held = integers(head.ready, "rendezvous") if head else []
        planned = schedule.targets(self.nodes, ready, ports, ephemeral, held)
        for name, voice in live.items():
            voice.targets = planned[name]
            voice.say(op="try", targets=[self.order(i, t) for i, t in enumerate(voice.targets)])

    def order(self, number: int, target: Target) -> list[Any]:
        """A target as the payload reads it."""
        return [
            number,
            target.endpoint.address,
            target.port,
            self.voices[target.endpoint.node].answer,
            target.large_bytes,
            target.patience_s,
            [[w.bound, w.value, w.always] for w in target.ways],
        ]

    def give_up(self, voice: Voice, what: str, limit_s: float) -> None:
        """A node that missed a limit; where it or this machine had no processor, that is the reason."""
        own_s, there_s = cpu.waited_s() - self.waited_s, starved.longest(voice.node.cpu_waits)
        reason = f"did not {what} the pair test within {limit_s:.0f} s"
        if not voice.failure and starved.excuses(max(own_s, there_s), limit_s):
            reason = cpu.words(own_s) if own_s >= there_s else doubts.why(voice.node, there_s)
            self.starved.append(voice.node.name)
        voice.fail(reason)

    def end(self) -> None:
        """Send everyone home."""
        for voice in self.voices.values():
            if not voice.failure:
                voice.say(op="end")


def prove(
    reach: Reach,
    nodes: tuple[Node, ...],
    job: Job,
    *,
    budget_s: float,
    names: Sequence[str] = (),
    reverse: Sequence[str] = (),
    on_progress: Callable[[str], None] | None = None,
) -> Proof:
    """
    Try every pair on every interface, both directions, within `budget_s` seconds.

    Every node also resolves `names` and looks up the addresses in `reverse`.  Nothing here
    raises because a node fails.
    """
    show = on_progress or (lambda text: None)
    started = time.monotonic()
    talk = Round(reach, nodes, job)
    if len(talk.voices) < 2 and not names and not reverse:
        return Proof(unknown=talk.unknown)
    talk.begin(names, reverse, budget_s)
    count = len(talk.voices)

    def starting() -> None:
        show(f"pairs: {sum(v.listening for v in talk.voices.values())} of {count} nodes listen")

    slowest_s = max((v.node.answer_s for v in talk.voices.values()), default=0.0)
    start_s = max(budget_s - ROUND_S, min(LEAST_START_S, budget_s / 2))
    start_s = min(start_s, START_S + START_PER_ANSWER * slowest_s)
    talk.wait(lambda v: v.listening, started + start_s, starting)
    for voice in talk.voices.values():
        if not voice.listening:
            talk.give_up(voice, "begin", start_s)
    talk.try_all()
    wanted = sum(len(v.targets) for v in talk.voices.values())

    def trying() -> None:
        told = sum(len(v.rows) for v in talk.voices.values())
        show(f"pairs: {min(wanted, told)} of {wanted} connections tried")

    talk.wait(
        lambda v: v.done and v.looked_up, min(time.monotonic() + ROUND_S, started + budget_s + 1), trying
    )
    for voice in talk.voices.values():
        if not voice.done:
            talk.give_up(voice, "end", time.monotonic() - started)
    talk.end()
    return proof(talk)


def why_not(node: Node) -> str:
    """Why a node takes no part; "" when it does."""
    if node.unreached is not None:
        return f"not reached: {node.unreached.words}"
    if node.host.local:
        return ""
    if "interfaces" in node.unknown:
        return f"its interfaces are not known: {node.unknown['interfaces']}"
    return "" if schedule.endpoints(node) else "no interface that is up has an address peers could use"


@cache
def payload_source() -> str:
    """The program every node runs: its parts, one after the other."""
    folder = resources.files("ringup") / "payload"
    return "\n\n".join((folder / f"{part}.py").read_text(encoding="utf-8") for part in PARTS)


def proof(talk: Round) -> Proof:
    """What all said, as links."""
    head = talk.voices.get(talk.nodes[0].name)
    owners = {v.answer: n for n, v in talk.voices.items()}
    links = [*links_of.held_links(head, talk.voices, talk.rendezvous), *links_of.unbound_links(talk.voices)]
    for voice in talk.voices.values():
        for row in voice.rows:
            link = links_of.read_row(row, voice, owners, talk.voices)
            if link is not None:
                links.append(link)
    unknown = dict(talk.unknown)
    unknown.update({n: v.failure for n, v in talk.voices.items() if v.failure})
    waits = {n: v.waited_s for n, v in talk.voices.items()}
    ends = [n for n in doubts.starved_ends(links, waits, schedule.PATIENCE_S) if n not in unknown]
    unknown.update({n: doubts.why(talk.voices[n].node, waits[n]) for n in ends})
    return Proof(
        links=tuple(sorted(links, key=links_of.order_of([n.name for n in talk.nodes]))),
        schedule=schedule.describe(sum(v.listening for v in talk.voices.values())),
        unknown=unknown,
        peer_names={
            n: tuple(links_of.read_names(v.names or []))
            for n, v in talk.voices.items()
            if v.names is not None
        },
        reverse={
            n: tuple(links_of.read_reverse(v.reverse or []))
            for n, v in talk.voices.items()
            if v.reverse is not None
        },
        counters={n: read for n, v in talk.voices.items() if (read := counters(v.counted))},
        cpu_waits=waits,
        starved=(*talk.starved, *ends),
    )
