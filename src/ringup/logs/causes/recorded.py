"""What dumps of torch's flight recorder show: ranks behind, ranks apart, all ranks in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ringup.flight import Difference, Entry, Group, compare, groups_of, show_group, show_ranks, standing
from ringup.logs.causes.signs import failure, hang
from ringup.logs.lines import Event
from ringup.logs.rule import CONFIDENCES, MAX_EVIDENCE, Cause, Confidence, seen
from ringup.logs.story import Story

if TYPE_CHECKING:
    from ringup.logs.dumps import Dump

LONG_S = 10.0
"""A collective of ranks that are all there is over sooner."""

DEFAULT_TIMEOUT_S = 1800.0
COPIED_S = 600.0
"""A file written longer than this after the time-out was copied: its time tells nothing."""


def recorded_mismatches(story: Story) -> list[Cause]:
    """Ranks that called something else under one number of a process group."""
    found = []
    for one in _differences(story, "mismatch"):
        stood = _stood(story, one)
        if "may not fit" in one.doubt:
            if stood is None:
                continue
            confidence: Confidence = "low"
        else:
            confidence = "medium" if one.doubt or _versions(story) > 1 else "high"
        text = _with_doubt(story, one.text, one.doubt)
        ranks = one.ranks or sorted({*(one.odd or {}), *(one.usual or {})})
        nodes = _nodes(story, ranks)
        found.append(seen(_evidence(story, one), text, confidence, nodes=nodes, ranks=ranks))
    return found[:1]


def recorded_behind(story: Story) -> list[Cause]:
    """Ranks that have not entered a collective in which others are."""
    found = []
    differences = _differences(story, "behind")
    for one, ranks in _roots(differences):
        stood = _stood(story, one)
        if stood is None and "may not fit" in one.doubt:
            continue
        call = next(iter((one.usual or {}).values()))
        elsewhere = _elsewhere(story, ranks[0], one.group)
        text = (
            f"{show_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} not entered collective {one.number} "
        )
        text += f"of {show_group(one.group)} ({_call(call)}); "
        text += f"{show_ranks(sorted(one.usual or ()))} {stood or 'entered it'}"
        last = (one.odd or {}).get(ranks[0])
        if elsewhere:
            text += f"; rank {ranks[0]} stands in {_call(elsewhere)} of {show_group(elsewhere.group)}"
        elif last and last.where:
            text += f"; rank {ranks[0]}'s last call there was at {last.where}"
        if stood is None:
            text += " (if the job stands still, look there)"
        sure = stood is not None and "file" not in stood
        confidence: Confidence = "low" if one.doubt else "high" if sure and not elsewhere else "medium"
        found.append(
            seen(
                _evidence(story, one),
                _with_doubt(story, text, one.doubt),
                confidence,
                severity=None if stood else "warning",
                nodes=_nodes(story, ranks),
                ranks=ranks,
            )
        )
    return found[:1] or _unseen(story) or _alone(story)


def _roots(differences: list[Difference]) -> list[tuple[Difference, list[int]]]:
    """
    Each difference with those behind who do not themselves wait for others, in another group.

    Where everybody behind waits elsewhere (two groups entered in another order), all stay.
    """
    found = []
    for one in differences:
        waiting = {rank for other in differences if other is not one for rank in other.usual or ()}
        ranks = sorted(set(one.odd or ()) - waiting)
        if ranks:
            found.append((one, ranks))
    return found or [(one, sorted(one.odd or ())) for one in differences if one.odd]


def _elsewhere(story: Story, rank: int, group: str) -> Entry | None:
    """The call of another group, or the transfer, in which a rank stands itself."""
    entries = story.recorded.dumps[rank].flight.entries if story.recorded else ()
    last = entries[-1] if entries else None
    return last if last and not last.is_done and (last.is_p2p or last.group != group) else None


def recorded_standing(story: Story) -> list[Cause]:
    """All ranks of a process group stand in one call: it does not finish."""
    for group, number, calls in _standing(story):
        if group.members - set(calls) or not (stood := _waited(story, calls)):
            continue
        call = next(iter(calls.values()))
        text = (
            f"all {len(calls)} ranks of {group.shown} entered collective {number} ({_call(call)}) and {stood}"
        )
        return [seen(_events(story, calls, MAX_EVIDENCE), text, "medium", ranks=sorted(calls))]
    return []


def _unseen(story: Story) -> list[Cause]:
    """Ranks that left no dump, where all others of their process group wait in one call."""
    gone = set(not_seen(story))
    for group, number, calls in _standing(story):
        missing = sorted(gone & group.members or (gone if group.name.endswith(":default_pg") else ()))
        if not missing or not (stood := _waited(story, calls)):
            continue
        call = next(iter(calls.values()))
        text = (
            f"{show_ranks(sorted(calls))} entered collective {number} of {group.shown} ({_call(call)}) "
            f"and {stood}; {show_ranks(missing)} left no dump: look at its process and its log"
        )
        return [seen(_events(story, calls, MAX_EVIDENCE), text, "low", ranks=missing[:64])]
    return []


def _alone(story: Story) -> list[Cause]:
    """The one dump there is ends in a call that did not: whose fault it is the others' would tell."""
    if story.recorded is None or len(story.recorded.dumps) != 1:
        return []
    ((rank, dump),) = story.recorded.dumps.items()
    last = {rank: dump.flight.entries[-1]} if dump.flight.entries else {}
    if not last or last[rank].is_done or last[rank].is_p2p or not (stood := _waited(story, last)):
        return []
    call = last[rank]
    text = (
        f"rank {rank} entered collective {call.number} of {show_group(call.group)} ({_call(call)}) "
        f"and {stood}; no other rank's dump is here to tell who did not come: collect those of all ranks"
    )
    return [seen(_events(story, last, 1), text, "low", ranks=())]


def not_seen(story: Story) -> list[int]:
    """Ranks that must exist and left no dump that could be used."""
    recorded = story.recorded
    if recorded is None or not recorded.dumps:
        return []
    members = {rank for group in groups_of(recorded.flights) for rank in group.members}
    sizes = [comm.nranks for comm in story.communicators]
    top = max([*recorded.dumps, *members, *(size - 1 for size in sizes)])
    return [rank for rank in range(min(top + 1, 100_000)) if rank not in recorded.dumps]


def agreeing(recorded: list[Cause], said: Iterator[Cause]) -> Iterator[Cause]:
    """What the dumps show and what the lines say: one cause with both evidences where they name the same."""
    told = list(said)
    if not recorded:
        yield from told
        return
    first = recorded[0]
    for one in told:
        if one.ranks and not set(one.ranks) & set(first.ranks):
            yield one
            continue
        half = MAX_EVIDENCE // 2
        best = min(first.confidence, one.confidence, key=CONFIDENCES.index)
        evidence = (*first.evidence[: MAX_EVIDENCE - min(half, len(one.evidence))], *one.evidence)[
            :MAX_EVIDENCE
        ]
        nodes = tuple(dict.fromkeys((*first.nodes, *one.nodes)))
        severity = one.severity if first.severity else None
        first = replace(first, evidence=evidence, confidence=best, nodes=nodes, severity=severity)
    yield first


def _differences(story: Story, kind: str) -> list[Difference]:
    if story.recorded is None or len(story.recorded.dumps) < 2:
        return []
    found = [one for one in compare(story.recorded.flights) if one.kind == kind]
    # Where several groups differ the first wait is the cause of the later ones.
    return sorted(found, key=lambda one: (bool(one.doubt), _begun_ns(one.usual or {})))


def _standing(story: Story) -> list[tuple[Group, int, dict[int, Entry]]]:
    if story.recorded is None or len(story.recorded.dumps) < 2:
        return []
    return standing(story.recorded.flights)


def _begun_ns(calls: Mapping[int, Entry]) -> int:
    return max((call.begun_ns for call in calls.values()), default=0)


def _stood(story: Story, one: Difference) -> str | None:
    return _waited(story, one.usual or {})


def _waited(story: Story, calls: Mapping[int, Entry]) -> str | None:
    """What tells that these calls did not finish in time, in words; None where nothing does."""
    if any(call.is_timed_out for call in calls.values()):
        return "waited there until the time-out"
    if not calls or story.recorded is None:
        return None
    begun_ns = _begun_ns(calls)
    limit_s = max(call.timeout_ms for call in calls.values()) / 1000 or DEFAULT_TIMEOUT_S
    if begun_ns and (waited_s := (story.recorded.last_ns - begun_ns) / 1e9) >= 0.98 * limit_s:
        return f"waited there for {waited_s:.0f} s, the whole time-out"
    if hang(story) or failure(story):
        return "wait there"
    dumps: dict[int, Dump] = story.recorded.dumps
    waits_s = [dumps[rank].written_s - begun_ns / 1e9 for rank in calls if rank in dumps and begun_ns]
    waited_s = min(waits_s, default=0.0)
    if 0.98 * limit_s <= waited_s <= limit_s + COPIED_S:
        return f"waited there for {waited_s:.0f} s, the whole time-out"
    if LONG_S <= waited_s <= limit_s:
        return f"had waited there for {waited_s:.0f} s when the dump's file was written"
    return None


def _nodes(story: Story, ranks: Iterable[int]) -> list[str]:
    """Where ranks run, as the largest communicators of the logs have it; a dump does not tell."""
    size = max((comm.nranks for comm in story.communicators), default=0)
    hosts = {comm.rank: comm.host for comm in story.communicators if comm.nranks == size and comm.host}
    return list(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts))


def _versions(story: Story) -> int:
    return len({f.version for f in story.recorded.flights.values()}) if story.recorded else 0


def _with_doubt(story: Story, text: str, doubt: str) -> str:
    missing = not_seen(story)
    if doubt:
        text += f"; {doubt}"
    return f"{text}; no dump of {show_ranks(missing)}" if missing else text


def _call(call: Entry) -> str:
    return f"{call.call}, {call.where}" if call.where else call.call


def _evidence(story: Story, one: Difference) -> list[Event]:
    return _events(story, one.odd or {}, 3) + _events(story, one.usual or {}, 2)


def _events(story: Story, calls: Mapping[int, Entry | None], most: int) -> list[Event]:
    """The dump's record of each rank's call."""
    assert story.recorded is not None
    paths = {info.path: n for n, info in enumerate(story.files)}
    found = []
    for rank, call in list(calls.items())[:most]:
        path = story.recorded.dumps[rank].path
        words = "nothing begun in this group"
        if call:
            words = f"rank {rank} record_id {call.record}: {call.call}, collective_seq_id {call.number} "
            words += f"of {call.group}, {call.state}" + (f", {call.where}" if call.where else "")
        place = call.place if call else 0
        found.append(Event("flight", paths.get(path, 0), place, words[:300], rank=rank))
    return found
