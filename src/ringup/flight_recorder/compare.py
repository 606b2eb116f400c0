"""
Compares the dumps of several ranks: ranks that are behind, ranks that call something else, ranks that all
wait.

Each rank's collectives on a process group are matched only by number.  Transfers (send, recv) are not
compared, because each pair counts its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ringup.flight_recorder.dump import Entry, Flight
from ringup.units import show_ranks

# No rank finishes one of these before all ranks have entered it.
_MEETING = ("all_reduce", "allreduce", "barrier", "all_gather", "allgather", "reduce_scatter", "all_to_all")

Numbered = Mapping[int, Entry]


class Group(NamedTuple):
    name: str
    calls: Mapping[int, Numbered]
    """Rank -> its collectives by number."""
    members: frozenset[int]
    """Ranks of the group, with or without a dump, as far as known."""
    is_shifted: bool
    """
    It contains transfers: NCCL's process group counts a batch of them as a collective, but only on the ranks
    that take part (`startCoalescing`, torch 2.4 to 2.13), so equal numbers may be different calls.
    """

    @property
    def shown(self) -> str:
        return show_group(self.name)


@dataclass(frozen=True)
class Difference:
    """A group whose ranks do not agree on the next collective."""

    group: str
    ranks: tuple[int, ...]
    """Ranks that are behind or differ from most; empty without a majority."""
    text: str
    where: str = ""
    """The line of these ranks' last (or differing) call."""
    kind: Literal["behind", "mismatch"] = "behind"
    number: int = 0
    """The first collective that is missing or differs."""
    odd: Mapping[int, Entry | None] = field(default_factory=dict)
    """These ranks' own call: the last one (None if there is none), or the differing one."""
    usual: Mapping[int, Entry] = field(default_factory=dict)
    """The others' calls with that number."""
    doubt: str = ""
    """Why the difference may not be real."""


def groups_of(flights: Mapping[int, Flight]) -> list[Group]:
    """The groups, by name; groups of one name but different members are separate."""
    calls: dict[tuple[str, tuple[int, ...]], dict[int, dict[int, Entry]]] = {}
    shifted = set()
    for rank, flight in flights.items():
        for entry in flight.entries:
            key = (entry.group, flight.members.get(entry.group, ()))
            if entry.is_p2p or entry.op == "coalesced":
                shifted.add(entry.group)
            if not entry.is_p2p:
                calls.setdefault(key, {}).setdefault(rank, {})[entry.number] = entry
    for name, members in [key for key in calls if not key[1]]:
        # A rank that does not report the members belongs to the one group of that name that contains it.
        fitting = [key for key in calls if key[0] == name and key[1]]
        for rank in list(calls[name, members]):
            mine = [key for key in fitting if rank in key[1]]
            if len(mine) == 1:
                calls[mine[0]][rank] = calls[name, members].pop(rank)
    found = []
    for (name, listed), ranks in sorted(calls.items()):
        everybody = set(flights) if name.endswith(":default_pg") and not listed else set()
        if ranks:
            found.append(Group(name, ranks, frozenset({*listed, *ranks, *everybody}), name in shifted))
    return found


def compare(flights: Mapping[int, Flight]) -> list[Difference]:
    """
    Differences between the ranks' collectives, group by group: different calls first, then ranks that are
    behind.

    A rank that is behind in a collective that others have finished was dumped earlier: not a difference.
    Groups that ranks entered in another order are one difference.
    """
    found = [d for group in groups_of(flights) if (d := _different_call(group) or _behind(group, flights))]
    circle = _circle([one for one in found if one.kind == "behind" and not one.doubt])
    return [_crossed(circle), *(one for one in found if one not in circle)] if circle else found


def roots(differences: Sequence[Difference]) -> list[tuple[Difference, list[int]]]:
    """Each difference with the ranks behind in it that do not wait for others in another group."""
    found = []
    for one in differences:
        waiting = {rank for other in differences if other is not one for rank in _pending(other)}
        found.append((one, sorted(set(one.odd) - waiting)))
    return [pair for pair in found if pair[1]]


def _pending(one: Difference) -> Numbered:
    """Rank -> the call in which it waits for the ranks that are behind."""
    return {rank: call for rank, call in one.usual.items() if not call.is_done}


def _circle(behind: list[Difference]) -> list[Difference]:
    """Groups in which each rank that is behind waits in another one of them; empty if there are none."""
    while behind:
        free = [one for one, _ in roots(behind)]
        if not free:
            return behind
        behind = [one for one in behind if one not in free]
    return []


def _crossed(circle: Sequence[Difference]) -> Difference:
    """The calls in which ranks wait that entered groups in another order, group by group."""
    places = []
    for one in circle[:3]:
        calls = _pending(one)
        call = next(iter(calls.values()))
        is_in = "is" if len(calls) == 1 else "are"
        shown = f"{show_ranks(sorted(calls))} {is_in} in collective {call.number} of {show_group(one.group)}"
        places.append(f"{shown} ({call.call_at})")
    text = f"{', '.join(places)}: each waits for {'the other' if len(circle) == 2 else 'another'}"
    odd = {rank: call for one in circle[1:] for rank, call in _pending(one).items()}
    first = circle[0]
    return Difference(first.group, (), text, "", "mismatch", first.number, odd, _pending(first))


def standing(flights: Mapping[int, Flight]) -> list[tuple[Group, int, dict[int, Entry]]]:
    """Groups whose known ranks are all in the same call: its number, the calls."""
    found = []
    for group in groups_of(flights):
        last = {rank: max(entries) for rank, entries in group.calls.items()}
        calls = {rank: group.calls[rank][number] for rank, number in last.items()}
        alike = len(set(last.values())) == 1 and len({call.signature for call in calls.values()}) == 1
        if alike and len(calls) > 1 and not any(call.is_done for call in calls.values()):
            found.append((group, next(iter(last.values())), calls))
    return found


def show_group(name: str) -> str:
    """A group's description if it has one: "default_pg", "group 7"."""
    number, _, described = name.partition(":")
    return described if described not in ("", "undefined") else f"group {number}"


def _different_call(group: Group) -> Difference | None:
    """The first number with different calls, among the ranks that have it."""
    ranks = group.calls
    for number in sorted({n for entries in ranks.values() for n in entries}):
        calls = {rank: entries[number] for rank, entries in sorted(ranks.items()) if number in entries}
        counts = Counter(call.signature for call in calls.values())
        if len(counts) < 2:
            continue
        (most, times), (_, second) = counts.most_common(2)
        others = [rank for rank, call in calls.items() if call.signature != most]
        usual = {rank: call for rank, call in calls.items() if call.signature == most}
        odd, common = calls[others[0]], next(iter(usual.values()))
        at = f" ({odd.where})" if odd.where else ""
        text = f"collective {number} of {group.shown} is {odd.call} on {show_ranks(others)}{at}"
        text += f", {common.call} on the others{f' ({common.where})' if common.where else ''}"
        # Whether the calls of the odd rank are those of the others from the following one on.
        own, theirs = ranks[others[0]], ranks[next(iter(usual))]
        shifted = [(own[n], theirs[n + 1]) for n in own if n >= number and n + 1 in theirs]
        if shifted and all(one.signature == other.signature for one, other in shifted):
            text += f", which {show_ranks(others)} left out"
        known, of = tuple(others) if times > second else (), {rank: calls[rank] for rank in others}
        doubt = _doubt(group, number, others, usual)
        return Difference(group.name, known, text, odd.where, "mismatch", number, of, usual, doubt)
    return None


def _doubt(group: Group, number: int, others: Iterable[int], usual: Iterable[int]) -> str:
    """Why the difference at a number may not be real, or not the first."""
    if group.is_shifted:
        return "sends and receives of this group may count as collectives, so the numbers may not fit"
    before = [[number - 1 in group.calls[rank] for rank in ranks] for ranks in (others, usual)]
    if number > 1 and not all(map(any, before)):
        return "earlier records are lost, so the ranks may have diverged earlier"
    return ""


def _behind(group: Group, flights: Mapping[int, Flight]) -> Difference | None:
    """Ranks that have begun fewer collectives than the others."""
    last = {rank: max(entries) for rank, entries in group.calls.items()}
    # Without entries, a rank certainly has begun none only if no records are lost.
    last |= {r: 0 for r in group.members if r in flights and r not in last and flights[r].is_whole}
    most = max(last.values())
    while True:
        behind = tuple(sorted(rank for rank, number in last.items() if number < most))
        if not behind:
            return None
        least = min(last[rank] for rank in behind)
        if not _went_on(group, least):
            break
        last = {rank: number for rank, number in last.items() if number > least}
    lowest = tuple(rank for rank in behind if last[rank] == least)
    entered = {rank: entries[least + 1] for rank, entries in group.calls.items() if least + 1 in entries}
    ahead = next(entries[most] for entries in group.calls.values() if most in entries)
    own = {rank: group.calls[rank][last[rank]] if last[rank] else None for rank in lowest}
    first = own[lowest[0]]
    furthest = max(last[rank] for rank in behind)
    if least + 1 == most:
        has = "has" if len(behind) == 1 else "have"
        text = f"{show_ranks(behind)} {has} not started collective {most} of {group.shown}: {ahead.call_at}"
    else:
        begun = f"{least}" if least == furthest else f"{least} to {furthest}"
        text = f"{show_ranks(behind)} started {begun} collectives of {group.shown}, "
        text += f"the others {most} ({ahead.call_at})"
    lost = "" if entered else "the others' records of the first that it lacks are lost"
    doubt = _doubt(group, 1, (), ()) or lost
    usual = entered or {r: entries[most] for r, entries in group.calls.items() if most in entries}
    where = first.where if first else ""
    return Difference(group.name, behind, text, where, "behind", least + 1, own, usual, doubt)


def _went_on(group: Group, number: int) -> bool:
    """Whether a rank has finished the collective after this number, for which every rank is needed."""
    for calls in group.calls.values():
        later = [call for n, call in calls.items() if n > number and call.is_done]
        done = [call for call in later if call.op.lstrip("_").startswith(_MEETING)]
        # Gloo also ends a collective with an error; then the next one does not begin.
        if any(not call.is_gloo for call in done) or len(done) > 1:
            return True
    return False
