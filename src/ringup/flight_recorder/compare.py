"""
What the dumps of several ranks show together: who is behind, who called something else, who all wait.

Each rank's collectives on a process group are matched by number alone.  Transfers (send, recv) are not
compared: each pair counts its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ringup.flight_recorder.dump import Entry, Flight
from ringup.units import show_ranks

# Nobody has finished one before everybody has entered it.
_MEETING = ("all_reduce", "allreduce", "barrier", "all_gather", "allgather", "reduce_scatter", "all_to_all")

Numbered = Mapping[int, Entry]


@dataclass(frozen=True)
class Group:
    name: str
    calls: Mapping[int, Numbered]
    """Rank -> its collectives by number."""
    members: frozenset[int]
    """Ranks that belong to it, with or without a dump, as far as is known."""
    is_shifted: bool
    """There are transfers in it: NCCL's process group counts a batch of them as a collective, on those ranks
    alone that take part (`startCoalescing`, torch 2.4 to 2.13), so equal numbers may be different calls."""

    @property
    def shown(self) -> str:
        return show_group(self.name)


@dataclass(frozen=True)
class Difference:
    """A group on whose next collective the ranks do not agree."""

    group: str
    ranks: tuple[int, ...]
    """Whoever is behind, or does otherwise than most; empty when there is no majority."""
    text: str
    where: str = ""
    """The line of their own last (or differing) call."""
    kind: Literal["behind", "mismatch"] = "behind"
    number: int = 0
    """The first collective that they lack, or that differs."""
    odd: Mapping[int, Entry | None] = field(default_factory=dict)
    """Those ranks' own call: their last one (None: none at all), or the differing one."""
    usual: Mapping[int, Entry] = field(default_factory=dict)
    """The others' calls under that number."""
    doubt: str = ""
    """Why it may be otherwise."""


def groups_of(flights: Mapping[int, Flight]) -> list[Group]:
    """The groups, by name; two of one name and other members are two groups."""
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
        # Who does not tell the members belongs to the one group of the name that has it.
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
    Where the ranks' collectives differ, group by group: a different call first, then who is behind.

    Who is behind in a collective that others have finished was looked at earlier than they: no difference.
    Groups that ranks entered in another order are one difference.
    """
    found: list[Difference] = []
    for group in groups_of(flights):
        difference = _different_call(group) or _behind(group, flights)
        if difference:
            found.append(difference)
    circle = _circle([one for one in found if one.kind == "behind" and not one.doubt])
    return [_crossed(circle), *(one for one in found if one not in circle)] if circle else found


def roots(differences: Sequence[Difference]) -> list[tuple[Difference, list[int]]]:
    """Each difference with those behind in it who do not themselves wait for others, in another group."""
    found = []
    for one in differences:
        waiting = {rank for other in differences if other is not one for rank in _pending(other)}
        found.append((one, sorted(set(one.odd) - waiting)))
    return [pair for pair in found if pair[1]]


def _pending(one: Difference) -> Numbered:
    """Rank -> the call in which it waits for those behind."""
    return {rank: call for rank, call in one.usual.items() if not call.is_done}


def _circle(behind: list[Difference]) -> list[Difference]:
    """The groups in which everybody who is behind waits in another one of them; empty for none."""
    while behind:
        free = [one for one, _ in roots(behind)]
        if not free:
            return behind
        behind = [one for one in behind if one not in free]
    return []


def _crossed(circle: Sequence[Difference]) -> Difference:
    """What ranks that entered groups in another order wait in, group by group."""
    places = []
    for one in circle[:3]:
        calls = _pending(one)
        call = next(iter(calls.values()))
        is_in = "is" if len(calls) == 1 else "are"
        shown = f"{show_ranks(sorted(calls))} {is_in} in collective {call.number} of {show_group(one.group)}"
        places.append(f"{shown} ({call.call}{f', {call.where}' if call.where else ''})")
    text = f"{', '.join(places)}: each waits for {'the other' if len(circle) == 2 else 'another'}"
    odd = {rank: call for one in circle[1:] for rank, call in _pending(one).items()}
    first = circle[0]
    return Difference(first.group, (), text, "", "mismatch", first.number, odd, _pending(first))


def standing(flights: Mapping[int, Flight]) -> list[tuple[Group, int, dict[int, Entry]]]:
    """Groups whose ranks, as far as seen, all stand in one and the same call: its number, the calls."""
    found = []
    for group in groups_of(flights):
        last = {rank: max(entries) for rank, entries in group.calls.items()}
        calls = {rank: group.calls[rank][number] for rank, number in last.items()}
        alike = len(set(last.values())) == 1 and len({call.signature for call in calls.values()}) == 1
        if alike and len(calls) > 1 and not any(call.is_done for call in calls.values()):
            found.append((group, next(iter(last.values())), calls))
    return found


def show_group(name: str) -> str:
    """A group's description where it has one of its own: "default_pg", "group 7"."""
    number, _, described = name.partition(":")
    return described if described not in ("", "undefined") else f"group {number}"


def _different_call(group: Group) -> Difference | None:
    """The first number that is not the same call on all ranks that have it."""
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
        if _left_out(ranks[others[0]], ranks[next(iter(usual))], number):
            text += f", which {show_ranks(others)} left out"
        return Difference(
            group.name,
            tuple(others) if times > second else (),
            text,
            odd.where,
            "mismatch",
            number,
            {rank: calls[rank] for rank in others},
            usual,
            _doubt(group, number, others, usual),
        )
    return None


def _left_out(odd: Numbered, usual: Numbered, number: int) -> bool:
    """Whether one's calls are the other's from the next one on."""
    pairs = [(odd[n], usual[n + 1]) for n in odd if n >= number and n + 1 in usual]
    return bool(pairs) and all(one.signature == other.signature for one, other in pairs)


def _doubt(group: Group, number: int, others: Iterable[int], usual: Iterable[int]) -> str:
    """Why a difference at a number may be none, or not the first."""
    if group.is_shifted:
        return "sends and receives of this group may count as collectives, so the numbers may not fit"
    before = [[number - 1 in group.calls[rank] for rank in ranks] for ranks in (others, usual)]
    if number > 1 and not all(map(any, before)):
        return "earlier records are lost, so the ranks may have diverged earlier"
    return ""


def _behind(group: Group, flights: Mapping[int, Flight]) -> Difference | None:
    """Who has begun fewer collectives than the others."""
    last = {rank: max(entries) for rank, entries in group.calls.items()}
    # Of a rank without entries it is known that it has begun none only where none are lost.
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
    call = f"{ahead.call}{f', {ahead.where}' if ahead.where else ''}"
    if least + 1 == most:
        has = "has" if len(behind) == 1 else "have"
        text = f"{show_ranks(behind)} {has} not started collective {most} of {group.shown}: {call}"
    else:
        begun = f"{least}" if least == furthest else f"{least} to {furthest}"
        text = (
            f"{show_ranks(behind)} started {begun} collectives of {group.shown}, the others {most} ({call})"
        )
    doubt = "" if entered else "the others' records of the first that it lacks are lost"
    doubt = _doubt(group, 1, (), ()) or doubt
    usual = entered or {r: entries[most] for r, entries in group.calls.items() if most in entries}
    where = first.where if first else ""
    return Difference(group.name, behind, text, where, "behind", least + 1, own, usual, doubt)


def _went_on(group: Group, number: int) -> bool:
    """Whether somebody has finished the collective after this number, which takes everybody's part in it."""
    for entries in group.calls.values():
        done = [
            n
            for n, e in entries.items()
            if n > number and e.is_done and e.op.lstrip("_").startswith(_MEETING)
        ]
        # Gloo ends a collective in an error, too; then the next one is not begun.
        if any(not entries[n].is_gloo for n in done) or len(done) > 1:
            return True
    return False
