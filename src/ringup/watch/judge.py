"""
What two looks at a silent run say.

*Stalled* is said only when others wait and who is missing has gained neither CPU time nor bytes, or
when everybody waits and nothing moves.  Whether a rank waits is read from its stack, never from its CPU
time: NCCL polls while it waits, Gloo sleeps.  Everything else is said as what it is: busy, with what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ringup.flight import compare
from ringup.looks import NodeLook, RankLook, fold
from ringup.looks.moves import Move, busiest_child, flowing, identity, moves, troubles, written
from ringup.looks.places import Place, doing, place_of, waits_for_disk
from ringup.looks.spawned import spread
from ringup.units import printable, show_bytes

Kind = Literal["stalled", "busy", "flowing", "waiting", "meeting", "idle", "unknown"]
MOST_NAMED = 8


@dataclass(frozen=True)
class Ended:
    """A rank that ended with code 0."""

    rank: int
    node: str


@dataclass(frozen=True)
class Missing:
    """A rank the others wait for."""

    rank: int
    """Below 0 when only its script knows it."""
    node: str
    where: str
    """"data.py:14 in fetch: ...", or what the kernel says."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a silence."""

    kind: Kind
    headline: str
    lines: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    collective: str = ""
    is_open: bool = False
    """Whether the flight recorder may tell more: everybody waits, somewhere."""

    @property
    def is_stalled(self) -> bool:
        """Whether it will not go on by itself, as far as can be told."""
        return self.kind == "stalled"


@dataclass(frozen=True)
class _Seen:
    """One rank, judged."""

    look: RankLook
    place: Place
    move: Move | None
    disk_bytes_per_s: float = 0.0
    """Of its node, while it waits for that."""

    @property
    def is_idle(self) -> bool:
        if self.look.state in ("T", "t"):
            return True
        # Ready to run is not stuck: so little CPU time is what a crowded node has left for it.
        return self.look.state != "R" and self.move is not None and self.move.is_idle

    @property
    def works(self) -> bool:
        """Whether it, or the disk it waits for, gets on."""
        return not self.is_idle or (self.disk_bytes_per_s > 0 and self.look.state not in ("T", "t"))

    @property
    def waits(self) -> bool:
        """Whether it waits for others.  In backward() only idleness tells waiting from computing."""
        if self.look.state in ("T", "t"):
            return False
        if self.place.kind == "backward":
            return self.is_idle and self.look.state != "D"
        return self.place.waits

    @property
    def is_open(self) -> bool:
        """Whether it may wait or not: no stack, and the kernel does not say either."""
        return self.place.kind == "unknown" and not doing(self.look)


def judge(
    first: Sequence[NodeLook], second: Sequence[NodeLook], *, ended: Iterable[Ended] = (), expected: int = 0
) -> Verdict:
    """`first` some seconds before `second`, which has stacks; `ended` are ranks gone with code 0."""
    first, second = spread(first, second)
    known = moves(first, second)
    disks = written(first, second)
    ranks = [
        _Seen(r, place_of(r.frames), known.get(identity(r)), _disk(r, disks.get(node.node, 0.0)))
        for node in second
        for r in node.ranks
    ]
    ranks.sort(key=lambda seen: (seen.look.rank, seen.look.node))
    lines = (*_flight_lines(second), *fold.ras_lines(second), *_node_lines(first, second))
    if not ranks:
        return Verdict("unknown", "no rank is seen on the nodes", lines)
    waiting = [seen for seen in ranks if seen.waits]
    gone = [one for one in ended if one.rank not in {seen.look.rank for seen in ranks}]
    missing = [seen for seen in ranks if not seen.waits and not seen.is_open]
    busy = [seen for seen in missing if seen.works]
    folded = tuple(fold.lines(seen.look for seen in ranks))
    if not waiting:
        return _nobody_waits(first, ranks, busy, folded, lines)
    if busy:
        return _busy(first, busy, waiting, lines)
    silent = [node.node for node in second if node.problem]
    if silent:
        names = ", ".join(printable(name, 64) for name in silent[:MOST_NAMED])
        return Verdict("unknown", f"what the ranks on {names} do is not known", (*folded, *lines))
    if missing or gone:
        return _missing(missing, gone, waiting, folded, lines)
    if 0 < len(ranks) < expected - len(gone):
        count = f"{len(ranks)} of {expected} ranks have started"
        return Verdict("meeting", f"{count}, and wait for the others", (*folded, *lines))
    return _all_wait(first, second, ranks, waiting, folded, lines)


def _disk(look: RankLook, rate: float) -> float:
    return rate if waits_for_disk(look) or any(map(waits_for_disk, look.children)) else 0.0


def _named(seen: Sequence[_Seen]) -> tuple[Missing, ...]:
    return tuple(
        Missing(one.look.rank, one.look.node, fold.where(one.place, doing(one.look))) for one in seen
    )


def _collective(waiting: Sequence[_Seen]) -> str:
    """Where most of those who wait are: "all_reduce"."""
    return Counter(seen.place.what for seen in waiting).most_common(1)[0][0] if waiting else ""


def _missing(
    missing: list[_Seen],
    gone: list[Ended],
    waiting: list[_Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    names = [f"{fold.name(seen.look)} ({seen.look.node})" for seen in missing]
    names += [f"rank {one.rank} ({one.node}), which has ended with code 0," for one in gone]
    who = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED))
    what = _collective(waiting)
    verb = "is" if len(names) == 1 else "are"
    named = _named(missing) + tuple(Missing(one.rank, one.node, "ended with code 0") for one in gone)
    return Verdict("stalled", f"{who} {verb} missing from {what}", (*folded, *lines), named, what)


def _busy(
    first: Sequence[NodeLook], busy: list[_Seen], waiting: list[_Seen], lines: tuple[str, ...]
) -> Verdict:
    what = _collective(waiting)
    who = fold.who([seen.look for seen in busy])
    said = [_busy_line(first, seen) for seen in busy[:3]]
    said += fold.lines(seen.look for seen in waiting)
    verb = "is" if len(busy) == 1 else "are"
    return Verdict("busy", f"{who} {verb} busy; {len(waiting)} wait in {what}", (*said, *lines), (), what)


def _busy_line(first: Sequence[NodeLook], seen: _Seen) -> str:
    """ "rank 0 (node0): tokenize.py:33 in main; 98 % of a core, 12 MiB read or written"."""
    line = f"{fold.name(seen.look)} ({seen.look.node}): {fold.where(seen.place, doing(seen.look))}"
    move = seen.move
    if move is None or move.seconds <= 0:
        return f"{line}; it has just begun"
    share = move.cpu_s / move.seconds
    line += f"; {share:.0%} of a core, {show_bytes(move.io_bytes)} read or written in {move.seconds:.0f} s"
    if move.is_idle and seen.look.state == "R":
        line += "; it is ready to run, and hardly gets a processor"
    if seen.disk_bytes_per_s:
        line += f"; its node writes {show_bytes(seen.disk_bytes_per_s)}/s to disks and file servers"
    old = [rank for node in first for rank in node.ranks if identity(rank) == identity(seen.look)]
    child = busiest_child(old[0], seen.look) if old else ""
    return f"{line}, most by {printable(child, 80)}" if child else line


def _nobody_waits(
    first: Sequence[NodeLook],
    ranks: list[_Seen],
    busy: list[_Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    if busy:
        return Verdict("busy", "ranks are busy", (*[_busy_line(first, s) for s in busy[:2]], *lines))
    held = [seen for seen in ranks if seen.look.state in ("T", "t", "D")]
    if held and all(seen.is_idle for seen in ranks):
        names = fold.who([seen.look for seen in held])
        words = "cannot go on, and no rank does anything"
        return Verdict("stalled", f"{names} {words}", (*folded, *lines), _named(held))
    if all(seen.is_idle for seen in ranks):
        return Verdict("idle", "no rank computes, reads or writes", (*folded, *lines))
    return Verdict("unknown", "no stack could be read", (*folded, *lines))


def _all_wait(
    first: Sequence[NodeLook],
    second: Sequence[NodeLook],
    ranks: list[_Seen],
    waiting: list[_Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    what = _collective(waiting)
    flows = flowing(first, second)
    idle = all(seen.is_idle for seen in ranks)
    if flows:
        # It may be somebody else's; calls that do not fit each other never end, whatever flows.
        known = _by_recorder(ranks, folded, lines, what, only="mismatch") if idle else None
        node, name, rate = flows[0]
        words = f"{_waiters(ranks, what)}, and data flows ({show_bytes(rate)}/s on {node} {name})"
        return known or Verdict("flowing", words, folded, (), what, idle)
    held = _behind_by_ras(first, second, ranks)
    if held:
        # Launched less than the others in both reports, and no more in the second: it did not call.
        names = fold.who([seen.look for seen in held])
        headline = f"{names}: NCCL counts fewer collectives than on the others"
        return Verdict("stalled", headline, (*folded, *lines), _named(held), what)
    if not idle:
        words = "CPU is spent, as NCCL does while it waits, so it cannot be told whether they proceed"
        return Verdict("waiting", f"{_waiters(ranks, what)}; {words}", (*folded, *lines), (), what)
    return _by_recorder(ranks, folded, lines, what) or _by_place(ranks, waiting, folded, lines, what)


def _waiters(ranks: Sequence[_Seen], what: str) -> str:
    """Who waits, where nobody is seen to do anything else; of whom no stack tells is said."""
    unseen = [seen.look for seen in ranks if not seen.waits]
    if not unseen:
        return f"every rank waits in {what}"
    return f"{len(ranks) - len(unseen)} wait in {what}; what {fold.who(unseen)} does cannot be seen"


def _behind_by_ras(
    first: Sequence[NodeLook], second: Sequence[NodeLook], ranks: Sequence[_Seen]
) -> list[_Seen]:
    """Whom NCCL holds to be behind in both reports alike.  Containers use one pid on many nodes."""
    found = []
    for behind in fold.ras_behind(first) & fold.ras_behind(second):
        same = [seen for seen in ranks if seen.look.pid == behind.pid]
        if len(same) > 1:
            same = [seen for seen in same if seen.look.node == behind.host]
        found += [seen for seen in same if seen not in found]
    return sorted(found, key=lambda seen: seen.look.rank)


def _by_recorder(
    ranks: list[_Seen], folded: tuple[str, ...], lines: tuple[str, ...], what: str, *, only: str = ""
) -> Verdict | None:
    """Who calls something else, or is behind, by torch's flight recorder; nobody where that is in doubt."""
    flights = {seen.look.rank: seen.look.flight for seen in ranks if seen.look.flight}
    for difference in compare(flights):
        if difference.doubt or (only and difference.kind != only):
            continue
        named = tuple(
            Missing(seen.look.rank, seen.look.node, difference.where or seen.place.where)
            for seen in ranks
            if seen.look.rank in difference.ranks
        )
        if named or difference.kind == "mismatch":
            return Verdict("stalled", difference.text, (*folded, *lines), named, what)
    return None


def _by_place(
    ranks: list[_Seen], waiting: list[_Seen], folded: tuple[str, ...], lines: tuple[str, ...], what: str
) -> Verdict:
    """Who waits somewhere else than most."""
    groups: dict[tuple[str, str], list[_Seen]] = {}
    for seen in waiting:
        groups.setdefault((seen.place.what, seen.place.where), []).append(seen)
    first, *rest = sorted(groups.values(), key=len, reverse=True)
    if rest and len(first) > len(rest[0]):
        odd = [seen for group in rest for seen in group]
        names = fold.who([seen.look for seen in odd])
        where = " and ".join(sorted({fold.where(seen.place) for seen in odd})[:2])
        others = fold.where(first[0].place)
        headline = f"{names} wait{'s' * (len(odd) == 1)} in {where}, the others in {others}"
        return Verdict("stalled", headline, (*folded, *lines), _named(odd), what, True)
    if rest:
        words = "the ranks wait in different collectives"
        return Verdict("stalled", words, (*folded, *lines), (), what, True)
    if len(waiting) < len(ranks):
        return Verdict("stalled", _waiters(ranks, what), (*folded, *lines), (), what, True)
    hint = "no interface carries data; they may disagree about which call this is, its shape or its type"
    headline = f"every rank waits in {what}, at the same line, and nothing moves"
    return Verdict("stalled", headline, (*folded, hint, *lines), (), what, True)


def _flight_lines(second: Sequence[NodeLook]) -> Iterable[str]:
    flights = {rank.rank: rank.flight for node in second for rank in node.ranks if rank.flight}
    for difference in compare(flights)[:3]:
        doubt = f" (in doubt: {difference.doubt})" if difference.doubt else ""
        yield f"flight recorder: {difference.text}{doubt}"


def _node_lines(first: Sequence[NodeLook], second: Sequence[NodeLook]) -> Iterable[str]:
    before = {node.node: node.state for node in first if not node.problem}
    for node in second:
        name = printable(node.node, 64)
        if node.problem:
            yield f"{name}: {node.problem}"
        else:
            yield from (f"{name}: {words}" for words in troubles(before.get(node.node), node.state))
