"""Causes in dumps of torch's flight recorder: ranks behind, different calls, all ranks in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringup.flight_recorder.compare import Difference, Group, compare, groups_of, roots, show_group, standing
from ringup.flight_recorder.dump import Entry
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.rule import CONFIDENCES, MAX_EVIDENCE, Cause, Confidence, report
from ringup.units import show_ranks

LONG_S = 10.0
"""Seconds; a collective that all ranks have entered ends sooner."""

DEFAULT_TIMEOUT_S = 1800.0
COPIED_S = 600.0
"""Seconds; a file written longer than this after the timeout was copied, so its time is useless."""


def recorded_mismatches(log: LogEvidence) -> Cause | None:
    """Ranks that called something else with one number of a process group."""
    for one in _differences(log, "mismatch"):
        is_vague = "may not fit" in one.doubt
        if is_vague and _waited(log, one.usual) is None:
            continue
        versions = {dump.flight.version for dump in log.recorded.dumps.values()}
        confidence: Confidence = "low" if is_vague else "medium" if one.doubt or len(versions) > 1 else "high"
        return _report(log, one, one.text, confidence, one.ranks or sorted({*one.odd, *one.usual}))
    return None


def recorded_behind(log: LogEvidence) -> Cause | None:
    """Ranks that have not entered a collective in which others are."""
    for one, ranks in roots(_differences(log, "behind")):
        stood = _waited(log, one.usual)
        if stood is None and "may not fit" in one.doubt:
            continue
        rank, last = ranks[0], one.odd.get(ranks[0])
        elsewhere = _elsewhere(log, rank, one.group)
        text = (
            f"{show_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} not entered collective {one.number} "
            f"of {show_group(one.group)} ({next(iter(one.usual.values())).call_at}); "
            f"{show_ranks(sorted(one.usual))} {stood or 'entered it'}"
        )
        if elsewhere:
            text += f"; rank {rank} is in {elsewhere.call_at} of {show_group(elsewhere.group)}"
        elif last and last.where:
            text += f"; rank {rank}'s last call there was at {last.where}"
        if stood is None:
            text += " (if the job hangs, look there)"
        sure = stood is not None and "file" not in stood
        confidence: Confidence = "low" if one.doubt else "high" if sure and not elsewhere else "medium"
        found = _report(log, one, text, confidence, ranks)
        return found if stood or not found else replace(found, severity="warning")
    return _unseen(log) or _alone(log)


def _elsewhere(log: LogEvidence, rank: int, group: str) -> Entry | None:
    """The call of another group, or the transfer, in which a rank is."""
    last = next(reversed(log.recorded.dumps[rank].flight.entries), None)
    return last if last and not last.is_done and (last.is_p2p or last.group != group) else None


def recorded_standing(log: LogEvidence) -> Cause | None:
    """All ranks of a process group are in one call: it does not finish."""
    for group, number, calls in _standing(log):
        if not group.members - set(calls) and (stood := _waited(log, calls)):
            call = next(iter(calls.values())).call_at
            text = f"all {len(calls)} ranks of {group.shown} entered collective {number} ({call}) and {stood}"
            return report(_events(log, calls, MAX_EVIDENCE), text, "medium", ranks=calls)
    return None


def _unseen(log: LogEvidence) -> Cause | None:
    """Ranks that left no dump, if all others of their process group wait in one call."""
    gone = set(not_seen(log))
    for group, number, calls in _standing(log):
        missing = sorted(gone & group.members or (gone if group.name.endswith(":default_pg") else ()))
        if missing and (stood := _waited(log, calls)):
            text = (
                f"{show_ranks(sorted(calls))} entered collective {number} of {group.shown} "
                f"({next(iter(calls.values())).call_at}) and {stood}; "
                f"{show_ranks(missing)} left no dump: look at its process and its log"
            )
            return report(_events(log, calls, MAX_EVIDENCE), text, "low", ranks=missing[:64])
    return None


def _alone(log: LogEvidence) -> Cause | None:
    """The only dump ends in a call that did not finish: the others' dumps would show the faulty rank."""
    dumps = log.recorded.dumps
    calls = {rank: call for rank, dump in dumps.items() for call in dump.flight.entries[-1:]}
    stood = _waited(log, calls)
    if len(dumps) != 1 or not stood or any(call.is_done or call.is_p2p for call in calls.values()):
        return None
    ((rank, call),) = calls.items()
    text = (
        f"rank {rank} entered collective {call.number} of {show_group(call.group)} ({call.call_at}) "
        f"and {stood}; no other rank's dump is here to tell who did not come: collect those of all ranks"
    )
    return report(_events(log, calls, 1), text, "low", ranks=())


def not_seen(log: LogEvidence) -> list[int]:
    """Ranks that must exist and left no dump that could be used."""
    if not log.recorded.dumps:
        return []
    members = {rank for group in groups_of(log.recorded.flights) for rank in group.members}
    top = max([*log.recorded.dumps, *members, *(comm.nranks - 1 for comm in log.communicators)])
    return [rank for rank in range(min(top + 1, 100_000)) if rank not in log.recorded.dumps]


def agreeing(recorded: Cause | None, printed: Cause | None) -> list[Cause | None]:
    """Results from dumps and lines: one cause with the evidence of both if they name the same ranks."""
    if not recorded or not printed or (printed.ranks and not {*printed.ranks} & {*recorded.ranks}):
        return [printed, recorded]
    of_dumps = MAX_EVIDENCE - min(MAX_EVIDENCE // 2, len(printed.evidence))
    both = replace(
        recorded,
        evidence=(*recorded.evidence[:of_dumps], *printed.evidence)[:MAX_EVIDENCE],
        confidence=min(recorded.confidence, printed.confidence, key=CONFIDENCES.index),
        nodes=tuple(dict.fromkeys((*recorded.nodes, *printed.nodes))),
        severity=printed.severity if recorded.severity else None,
    )
    return [both]


def _differences(log: LogEvidence, kind: str) -> list[Difference]:
    flights = log.recorded.flights
    found = [one for one in compare(flights) if one.kind == kind] if len(flights) > 1 else []
    # If several groups differ, the first wait is the cause of the later ones.
    return sorted(found, key=lambda one: (bool(one.doubt), _begun_ns(one.usual)))


def _standing(log: LogEvidence) -> list[tuple[Group, int, dict[int, Entry]]]:
    return standing(log.recorded.flights) if len(log.recorded.dumps) > 1 else []


def _begun_ns(calls: Mapping[int, Entry]) -> int:
    return max((call.begun_ns for call in calls.values()), default=0)


def _waited(log: LogEvidence, calls: Mapping[int, Entry]) -> str | None:
    """Evidence that these calls did not finish in time, as part of a sentence; None if there is none."""
    if any(call.is_timed_out for call in calls.values()):
        return "waited there until the timeout"
    if not calls:
        return None
    begun_ns = _begun_ns(calls)
    limit_s = max(call.timeout_ms for call in calls.values()) / 1000 or DEFAULT_TIMEOUT_S
    if begun_ns and (waited_s := (log.recorded.last_ns - begun_ns) / 1e9) >= 0.98 * limit_s:
        return f"waited there for {waited_s:.0f} s, the whole timeout"
    if log.outcome.stopped:
        return "wait there"
    dumps = log.recorded.dumps
    waits_s = [dumps[rank].written_s - begun_ns / 1e9 for rank in calls if rank in dumps and begun_ns]
    waited_s = min(waits_s, default=0.0)
    if 0.98 * limit_s <= waited_s <= limit_s + COPIED_S:
        return f"waited there for {waited_s:.0f} s, the whole timeout"
    if LONG_S <= waited_s <= limit_s:
        return f"had waited there for {waited_s:.0f} s when the dump's file was written"
    return None


def _report(
    log: LogEvidence, one: Difference, text: str, confidence: Confidence, ranks: Sequence[int]
) -> Cause | None:
    """A difference as a cause; dumps name no hosts, but the largest communicators in the logs do."""
    size = max((comm.nranks for comm in log.communicators), default=0)
    hosts = {comm.rank: comm.host for comm in log.communicators if comm.nranks == size and comm.host}
    text += f"; {one.doubt}" if one.doubt else ""
    if missing := not_seen(log):
        text += f"; no dump of {show_ranks(missing)}"
    events = _events(log, one.odd, 3) + _events(log, one.usual, 2)
    return report(events, text, confidence, nodes=[hosts[r] for r in ranks if r in hosts], ranks=ranks)


def _events(log: LogEvidence, calls: Mapping[int, Entry | None], most: int) -> list[Event]:
    paths = {info.path: n for n, info in enumerate(log.files)}
    found = []
    for rank, call in list(calls.items())[:most]:
        text = "nothing begun in this group"
        if call:
            text = f"rank {rank} record_id {call.record}: {call.call}, collective_seq_id {call.number} "
            text += f"of {call.group}, {call.state}" + (f", {call.where}" if call.where else "")
        file = paths.get(log.recorded.dumps[rank].path, 0)
        found.append(Event("flight", file, call.place if call else 0, text[:300], rank=rank))
    return found
