"""
What two looks at a silent run say.

*Stalled* is said only when others wait and who is missing has gained neither CPU time nor bytes, or
when everybody waits and nothing moves.  Whether a rank waits is read from its stack, never from its CPU
time: NCCL polls while it waits, Gloo sleeps.  Everything else is said as what it is: busy, with what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ringup.flight import compare
from ringup.looks import NodeLook, RankLook, fold
from ringup.looks.moves import busiest_child, flowing, identity, moves, troubles, written
from ringup.looks.places import TRANSFERS, doing, place_of, waits_for_disk
from ringup.looks.spawned import spread
from ringup.reachability import few
from ringup.units import printable, show_bytes
from ringup.watch.evidence import by_ras, by_recorder
from ringup.watch.seen import PENDING_S, Ended, Missing, Seen, Verdict

MOST_NAMED = 8
GPU = ("the GPU", "the devices")
LEAST_ROUNDS = 3


def judge(
    first: Sequence[NodeLook],
    second: Sequence[NodeLook],
    *,
    ended: Iterable[Ended] = (),
    expected: int = 0,
    long_s: float = PENDING_S,
) -> Verdict:
    """
    `first` some seconds before `second`, which has stacks; `ended` are ranks gone with code 0.

    A collective that has been pending for `long_s` is waited for.
    """
    first, second = spread(first, second)
    known = moves(first, second)
    disks = written(first, second)
    ranks = [
        Seen(r, place_of(r.frames), known.get(identity(r)), _disk(r, disks.get(node.node, 0.0)), long_s)
        for node in second
        for r in node.ranks
    ]
    ranks.sort(key=lambda seen: (seen.look.rank, seen.look.node))
    lines = (
        *_flight_lines(second),
        *_no_recorder(second),
        *fold.ras_lines(second),
        *_node_lines(first, second),
    )
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
        return _busy(first, busy, missing, waiting, lines)
    silent = [node.node for node in second if node.problem]
    if silent:
        names = ", ".join(printable(name, 64) for name in silent[:MOST_NAMED])
        return Verdict("unknown", f"what the ranks on {names} do is not known", (*folded, *lines))
    if round_about := _goes_round(ranks, missing):
        idle = all(seen.is_idle for seen in ranks)
        return Verdict("idle" if idle else "waiting", round_about, (*folded, *lines))
    if (missing or gone) and _is_proven(missing, waiting):
        return _missing(missing, gone, waiting, folded, lines)
    if missing or gone:
        return _perhaps(missing, gone, waiting, folded, lines)
    if 0 < len(ranks) < expected - len(gone):
        count = f"{len(ranks)} of {expected} ranks have started"
        return Verdict("meeting", f"{count}, and wait for the others", (*folded, *lines))
    return _all_wait(first, second, ranks, waiting, folded, lines)


def _disk(look: RankLook, rate: float) -> float:
    return rate if waits_for_disk(look) or any(map(waits_for_disk, look.children)) else 0.0


def _named(seen: Sequence[Seen]) -> tuple[Missing, ...]:
    return tuple(
        Missing(one.look.rank, one.look.node, fold.where(one.place, doing(one.look))) for one in seen
    )


def _collective(waiting: Sequence[Seen]) -> str:
    """Where most of those who wait are: "all_reduce"."""
    return Counter(seen.place.what for seen in waiting).most_common(1)[0][0] if waiting else ""


def _in(what: str) -> str:
    """ "in all_reduce", "for the GPU"."""
    return f"for {what}" if what in GPU else f"in {what}"


def _is_proven(missing: Sequence[Seen], waiting: Sequence[Seen]) -> bool:
    """
    Whether those who wait do so for others.

    Where all of them spin at the GPU, that may have work of its own, and who is missing may be done with its
    part: it has ended, or polls with time.sleep until the others have.
    """
    if not all(seen.spins for seen in waiting):
        return True
    if any(seen.look.flight and seen.look.flight.entries for seen in waiting):
        return False  # nothing of theirs has been pending for long
    return not all(seen.is_asleep for seen in missing)


def _goes_round(ranks: Sequence[Seen], missing: Sequence[Seen]) -> str:
    """
    Whether all this is a loop that hardly works, in words.

    The flight recorder tells of collectives begun since the first look; without it, that every main thread
    has woken several times, which one that waits for others does not (our own signals wake it twice), and
    that who is missing sleeps.
    """
    for seen in ranks:
        flight = seen.look.flight
        newest = max(flight.entries, key=lambda e: e.begun_ns, default=None) if flight else None
        if flight and newest and seen.move and 0 < flight.age_s(newest) < seen.move.seconds:
            return f"{fold.name(seen.look)} has begun a collective {flight.age_s(newest):.0f} s ago"
    asleep = all(seen.is_asleep for seen in missing)
    if asleep and all(seen.move and seen.is_idle and seen.move.switches >= LEAST_ROUNDS for seen in ranks):
        return "the ranks wake now and then, and use next to nothing"
    return ""


def _perhaps(
    missing: list[Seen],
    gone: list[Ended],
    waiting: list[Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    who = [f"{fold.name(seen.look)} ({seen.look.node}) uses nothing" for seen in missing]
    who += [f"rank {one.rank} ({one.node}) has ended with code 0" for one in gone]
    words = f"{few(who, MOST_NAMED)}; {_at_gpu(waiting)}"
    return Verdict("waiting", words, (*folded, *lines), (), _collective(waiting), True)


def _at_gpu(waiting: Sequence[Seen]) -> str:
    verb = "waits" if len(waiting) == 1 else "wait"
    return (
        f"{fold.who([s.look for s in waiting])} {verb} for the GPU, and whether that computes cannot be told"
    )


def _missing(
    missing: list[Seen],
    gone: list[Ended],
    waiting: list[Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    names = [f"{fold.name(seen.look)} ({seen.look.node})" for seen in missing]
    names += [f"rank {one.rank} ({one.node}), which has ended with code 0," for one in gone]
    who = few(names, MOST_NAMED)
    what = _collective(waiting)
    verb = "is" if len(names) == 1 else "are"
    named = _named(missing) + tuple(Missing(one.rank, one.node, "ended with code 0") for one in gone)
    words = f"{who} {verb} missing" + (f": the others wait for {what}" if what in GPU else f" from {what}")
    is_open = all(seen.spins for seen in waiting) or (not gone and all(seen.is_asleep for seen in missing))
    return Verdict("stalled", words, (*folded, *lines), named, what, is_open)


def _busy(
    first: Sequence[NodeLook],
    busy: list[Seen],
    missing: list[Seen],
    waiting: list[Seen],
    lines: tuple[str, ...],
) -> Verdict:
    what = _collective(waiting)
    who = fold.who([seen.look for seen in busy])
    said = [_busy_line(first, seen) for seen in busy[:3]]
    said += fold.lines(seen.look for seen in missing if not seen.works)
    said += fold.lines(seen.look for seen in waiting)
    verb = "is" if len(busy) == 1 else "are"
    is_open = all(seen.place.kind == "backward" for seen in busy)
    words = f"{who} {verb} busy; {len(waiting)} wait {_in(what)}"
    return Verdict("busy", words, (*said, *lines), (), what, is_open)


def _busy_line(first: Sequence[NodeLook], seen: Seen) -> str:
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
    if move.is_idle and seen.fills:
        line += "; what it reads arrives"
    old = [rank for node in first for rank in node.ranks if identity(rank) == identity(seen.look)]
    child = busiest_child(old[0], seen.look) if old else ""
    return f"{line}, most by {printable(child, 80)}" if child else line


def _nobody_waits(
    first: Sequence[NodeLook],
    ranks: list[Seen],
    busy: list[Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    if busy:
        still = fold.lines(seen.look for seen in ranks if not seen.works)
        is_open = all(seen.place.kind == "backward" for seen in busy)
        said = (*[_busy_line(first, s) for s in busy[:2]], *still, *lines)
        return Verdict("busy", "ranks are busy", said, (), "", is_open)
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
    ranks: list[Seen],
    waiting: list[Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
) -> Verdict:
    what = _collective(waiting)
    flows = flowing(first, second)
    idle = all(seen.is_idle for seen in ranks)
    if flows:
        # It may be somebody else's; calls that do not fit each other never end, whatever flows.
        known = by_recorder(ranks, folded, lines, what, only="mismatch") if idle else None
        node, name, rate = flows[0]
        words = f"{_waiters(ranks, what)}, and data flows ({show_bytes(rate)}/s on {node} {name})"
        return known or Verdict("flowing", words, folded, (), what, idle)
    held, said = by_ras(first, second, ranks)
    if held and not any(seen.may_compute for seen in held):
        # Launched less than the others in both reports, and no more in the second: it did not call.
        names = fold.who([seen.look for seen in held])
        headline = f"{names}: {said}"
        return Verdict("stalled", headline, (*folded, *lines), _named(held), what)
    known = by_recorder(ranks, folded, lines, what, is_long=not idle)
    if known:
        return known
    if not idle:
        words = "CPU is spent, as NCCL does while it waits, so it cannot be told whether they proceed"
        return Verdict("waiting", f"{_waiters(ranks, what)}; {words}", (*folded, *lines), (), what, True)
    if all(seen.may_compute for seen in waiting):
        words = f"{_waiters(ranks, what)}, and whether that computes cannot be told"
        return Verdict("waiting", words, (*folded, *lines), (), what, True)
    return _by_place(ranks, waiting, folded, lines, what)


def _waiters(ranks: Sequence[Seen], what: str) -> str:
    """Who waits, where nobody is seen to do anything else; of whom no stack tells is said."""
    unseen = [seen.look for seen in ranks if not seen.waits]
    if not unseen:
        return f"every rank waits {_in(what)}"
    return f"{len(ranks) - len(unseen)} wait {_in(what)}; what {fold.who(unseen)} does cannot be seen"


def _by_place(
    ranks: list[Seen], waiting: list[Seen], folded: tuple[str, ...], lines: tuple[str, ...], what: str
) -> Verdict:
    """Who waits somewhere else than most."""
    groups: dict[tuple[str, str], list[Seen]] = {}
    for seen in waiting:
        groups.setdefault((seen.place.what, seen.place.where), []).append(seen)
    first, *rest = sorted(groups.values(), key=len, reverse=True)
    odd = [seen for group in rest for seen in group]
    at_gpu = [seen for seen in odd if seen.may_compute]
    # Who is not in a transfer between others need not be.
    if odd and len(first) > len(odd) and not at_gpu and not first[0].place.what.startswith(TRANSFERS):
        names = fold.who([seen.look for seen in odd])
        where = " and ".join(sorted({fold.where(seen.place) for seen in odd})[:2])
        others = fold.where(first[0].place)
        headline = f"{names} wait{'s' * (len(odd) == 1)} in {where}, the others in {others}"
        return Verdict("stalled", headline, (*folded, *lines), _named(odd), what, True)
    if at_gpu:
        return Verdict("waiting", _at_gpu(at_gpu), (*folded, *lines), (), what, True)
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


def _no_recorder(second: Sequence[NodeLook]) -> Iterable[str]:
    """That torch's flight recorder was asked, and has nothing of anybody."""
    flights = [rank.flight for node in second for rank in node.ranks if rank.flight]
    if flights and not any(flight.entries or flight.problem for flight in flights):
        yield "torch's flight recorder could tell more, and is off (`ringup env --debug` names its variable)"


def _node_lines(first: Sequence[NodeLook], second: Sequence[NodeLook]) -> Iterable[str]:
    before = {node.node: node.state for node in first if not node.problem}
    for node in second:
        name = printable(node.node, 64)
        if node.problem:
            yield f"{name}: {node.problem}"
        else:
            yield from (f"{name}: {words}" for words in troubles(before.get(node.node), node.state))
