"""What NCCL's RAS and torch's flight recorder know of ranks of which every one waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringup.flight import Difference, Entry, Flight, compare
from ringup.looks import NodeLook, fold
from ringup.watch.seen import Missing, Seen, Verdict


def by_ras(
    first: Sequence[NodeLook], second: Sequence[NodeLook], ranks: Sequence[Seen]
) -> tuple[list[Seen], str]:
    """Whom NCCL holds to be behind in both reports alike, and in what words.  Containers share pids."""
    counted: list[Seen] = []
    silent: list[Seen] = []
    for behind in fold.ras_behind(first) & fold.ras_behind(second):
        same = [seen for seen in ranks if seen.look.pid == behind.pid]
        if len(same) > 1:
            same = [seen for seen in same if seen.look.node == behind.host]
        found = counted if behind.is_counted else silent
        found += [seen for seen in same if seen not in found]
    words = "NCCL counts fewer collectives than on the others" if counted else "no answer to NCCL's RAS"
    return sorted(counted or silent, key=lambda seen: seen.look.rank), words


def by_recorder(
    ranks: list[Seen],
    folded: tuple[str, ...],
    lines: tuple[str, ...],
    what: str,
    *,
    only: str = "",
    is_long: bool = False,
) -> Verdict | None:
    """
    Who calls something else, or is behind, by torch's flight recorder; nobody where that is in doubt.

    `is_long`: only where those calls have been pending for long.  Who spins at its GPU and is behind may
    compute there.
    """
    flights = {seen.look.rank: seen.look.flight for seen in ranks if seen.look.flight}
    for difference in compare(flights):
        if difference.doubt or (only and difference.kind != only):
            continue
        late = [seen for seen in ranks if seen.look.rank in difference.ranks]
        if difference.kind == "behind" and any(seen.may_compute for seen in late):
            continue
        if difference.kind == "behind" and len(late) > len(difference.usual or ()):
            continue  # most of them: it may as well be the others who are where they should not be
        if is_long and not _is_long(difference, flights, ranks[0].long_s):
            continue
        named = tuple(
            Missing(seen.look.rank, seen.look.node, difference.where or seen.place.where) for seen in late
        )
        if named or difference.kind == "mismatch":
            return Verdict("stalled", difference.text, (*folded, *lines), named, what)
    return None


def _is_long(difference: Difference, flights: Mapping[int, Flight], long_s: float) -> bool:
    """Whether the calls that do not fit each other, or that somebody lacks, have been pending for long."""
    calls: list[tuple[int, Entry | None]] = [*(difference.usual or {}).items()]
    if difference.kind == "mismatch":
        calls += (difference.odd or {}).items()
    return bool(calls) and all(
        not call.is_done and flights[rank].age_s(call) >= long_s for rank, call in calls if call
    )
