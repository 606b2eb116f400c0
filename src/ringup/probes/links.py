"""What the nodes said in the round of pairs, read as links; whatever makes no sense is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringup.facts import Link, LinkPurpose, Resolution
from ringup.probes.schedule import Endpoint, Target, Way
from ringup.probes.voice import Voice
from ringup.units import printable


@dataclass(frozen=True)
class Reverse:
    """One reverse look-up: the name of an address, as a node's resolver gives it."""

    address: str
    name: str = ""
    error: str = ""
    took_s: float = 0.0


def order_of(names: Sequence[str]) -> Callable[[Link], tuple[Any, ...]]:
    """Links in the user's order of nodes, interfaces before ports, routed before explanations."""
    place = {n: i for i, n in enumerate(names)}
    purposes = {"interface": 0, "rendezvous": 1, "ephemeral": 2}
    ways = {"routed": 0, "source": 1, "device": 2}

    def key(link: Link) -> tuple[Any, ...]:
        return (
            place[link.src],
            place[link.dst],
            purposes[link.purpose],
            link.address,
            ways[link.bound],
            link.port,
            link.src_interface,
        )

    return key


def held_links(head: Voice | None, voices: Mapping[str, Voice], ports: Sequence[int]) -> Iterable[Link]:
    """Rendezvous ports the head could not bind: nobody needs to try them."""
    held = (head.ready or {}).get("held") if head else None
    if head is None or not isinstance(held, dict):
        return
    for port in ports:
        words = held.get(str(port))
        if words is None:
            continue
        for end in head.endpoints:
            for name, voice in voices.items():
                mine = {e.address for e in voice.endpoints}
                if voice.listening and name != head.node.name and not end.minor and end.address not in mine:
                    yield link_to(name, end, port, "rendezvous", error=printable(str(words), 100))


def unbound_links(voices: Mapping[str, Voice]) -> Iterable[Link]:
    """Addresses a node could not listen on itself: nobody needs to try them."""
    for voice in voices.values():
        failed = (voice.ready or {}).get("failed")
        for end in voice.endpoints:
            words = failed.get(end.address) if isinstance(failed, dict) else None
            for name, other in voices.items():
                if words and other.listening and other is not voice:
                    yield link_to(name, end, 0, "interface", error=printable(str(words), 100))


def link_to(src: str, end: Endpoint, port: int, purpose: LinkPurpose, **more: Any) -> Link:
    """A failed link unless `more` says otherwise."""
    values: dict[str, Any] = {"src_interface": "", "ok": False, **more}
    return Link(
        src=src,
        dst=end.node,
        dst_interface=end.interface,
        address=end.address,
        port=port,
        purpose=purpose,
        **values,
    )


def read_row(
    row: list[Any], voice: Voice, owners: Mapping[str, str], voices: Mapping[str, Voice]
) -> Link | None:
    """One result of a node as a link; None for a row that makes no sense."""
    try:
        number, kind, value, ok, large, error, source, rtt_us, rate, answered, stranger, sent, again = row
        target = voice.targets[number] if number >= 0 else None
        if target is None or kind not in ("routed", "source", "device"):
            return None
        src, end = voice.node.name, target.endpoint
        other = owners.get(answered, "")
        own = end.address in {e.address for e in voice.endpoints}
        if not ok and (other == src or (own and not other)):
            error, other = "own address", ""
        elif not ok and error == "timed out" and saw_request(voices[end.node], voice, target):
            error = "answer lost"
        return link_to(
            src,
            end,
            target.port,
            target.purpose,
            src_interface=source_interface(voice, kind, str(value), str(source), target.ways),
            ok=bool(ok),
            error=printable(str(error), 100),
            rtt_ms=round(figure(rtt_us) / 1000, 3) if ok and rtt_us else None,
            large_packet_ok=bool(large) if large is not None else None,
            bound=kind,
            stranger=bool(stranger) or bool(answered and not other and error != "own address"),
            mbyte_s=figure(rate) or None,
            segments=int(figure(sent)),
            retransmitted=int(figure(again)),
            answered_by=other if other != end.node else "",
        )
    except (ValueError, TypeError, IndexError):
        return None


def source_interface(voice: Voice, kind: str, value: str, source: str, ways: Sequence[Way]) -> str:
    """The interface an attempt left by, as far as the socket's own address tells."""
    for way in ways:
        if way.bound == kind and way.value == value:
            return way.interface
    return next((e.interface for e in voice.endpoints if e.address == source), "")


def saw_request(dst: Voice, src: Voice, target: Target) -> bool:
    """Whether the far node holds a connection request of ours that was never completed."""
    mine = [e.address for e in src.endpoints]  # no set: what a node told need not be hashable
    return any(
        s[0] in mine and s[1] == target.endpoint.address and s[2] == target.port for s in dst.half_open
    )


def figure(value: Any) -> float:
    """
    A number a node gave.

    Raises ValueError or TypeError for anything that is none, or not finite.
    """
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("beyond any float") from error
    if not math.isfinite(number):
        raise ValueError(f"not finite: {value!r}")
    return number


def look_ups(rows: Iterable[list[Any]]) -> Iterable[tuple[str, tuple[str, ...], str, float]]:
    """(asked, found, error, seconds) of the rows that make sense."""
    for asked, found, error, took_s in rows:
        try:
            answers = tuple(printable(str(a), 300) for a in found)
            yield printable(str(asked), 300), answers, printable(str(error), 200), figure(took_s)
        except (ValueError, TypeError):
            continue


def read_names(rows: Iterable[list[Any]]) -> Iterable[Resolution]:
    """What a node's resolver made of the names."""
    return (Resolution(*row) for row in look_ups(rows))


def read_reverse(rows: Iterable[list[Any]]) -> Iterable[Reverse]:
    """What a node's resolver made of the addresses."""
    for address, found, error, took_s in look_ups(rows):
        yield Reverse(address, found[0] if found else "", error, took_s)
