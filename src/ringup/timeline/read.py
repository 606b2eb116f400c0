"""Makes a timeline from a run's folder, or from logs and dumps of any job."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ringup import saved_run
from ringup.errors import LogsError
from ringup.logs import counts, files
from ringup.logs.evidence import LogEvidence
from ringup.logs.read import Diagnosis, read_attempts, read_logs
from ringup.saved_run import SavedRun
from ringup.timeline import PENDING, SCRIPT, CallSource, RankLine, Role, Timeline, Track
from ringup.timeline.calls import CallReader, FileCalls, Group, Kinds, Places, recorded
from ringup.timeline.marks import Times, byte_s, recorded_calls
from ringup.timeline.marks import read as times_in

MOST_RANKS = 1 << 16
ROLES: dict[str, Role] = {
    "rank-fell-behind": "missing",
    "uneven-batches-between-ranks": "missing",
    "collective-mismatch": "differs",
}


def folder_of(diagnosis: Diagnosis) -> Path | None:
    """The folder of the run with these logs; None if they are from several folders, or from no run."""
    folders = {Path(info.path).parent for info in diagnosis.logs}
    found = [folder for folder in folders if (folder / saved_run.FILE).is_file()]
    return found[0] if len(found) == 1 else None


@dataclass
class _Reading:
    diagnosis: Diagnosis
    folder: Path | None
    record: SavedRun | None
    times: Times | None
    kinds: Kinds = field(default_factory=dict)
    ranks: dict[int, RankLine] = field(default_factory=dict)
    is_ordered: bool = False
    """Whether calls have only their order, no times."""
    own: dict[int, RankLine] = field(default_factory=dict)
    """Ranks that the script started itself, by their number, or by minus their pid."""

    def rank(self, number: int) -> RankLine:
        return self.ranks.setdefault(number, RankLine(number))

    def seen(self, number: int) -> RankLine | None:
        """The rank with that name among the run's processes, if known."""
        return (self.own if any(one >= 0 for one in self.own) else self.ranks).get(number)


def read(paths: Sequence[str]) -> tuple[Diagnosis, Path | None]:
    """
    Diagnosis of logs, and the folder of their run; None without one.

    For a restarted run, those of the attempt that failed first.  Raises LogsError if there is nothing to
    read; a run that has printed nothing yet has an empty diagnosis.
    """
    if attempts := files.attempts(paths):
        diagnosis = read_attempts(attempts)[0]
        return diagnosis, folder_of(diagnosis)
    try:
        diagnosis = read_logs(paths)
    except LogsError:
        if len(paths) != 1 or saved_run.read(Path(paths[0])) is None:
            raise
        return Diagnosis([], LogEvidence([], []), counts.join({})), Path(paths[0])
    return diagnosis, folder_of(diagnosis)


def timeline_of(diagnosis: Diagnosis, folder: Path | None) -> Timeline:
    """The timeline of the run in a folder, or of any job's logs and dumps, with this diagnosis."""
    record, times = (saved_run.read(folder), times_in(folder)) if folder else (None, None)
    reading = _Reading(diagnosis, folder, record, times)
    _add_ranks(reading)
    source = _add_recorded(reading)
    from_logs = _add_logs(reading, not source)
    found = Timeline([], 0.0, kinds=[*reading.kinds], source=source or from_logs)
    found.ranks = [reading.ranks[number] for number in sorted(reading.ranks)]
    _set_end(found, reading)
    _add_verdict(found, reading)
    if reading.is_ordered:
        found.clock = "order"
    elif reading.times:
        errors = [one.error_s for one in reading.times.ranks.values()]
        errors += [own.error_s for own in reading.times.own]
        known = [error_s for error_s in errors if error_s is not None]
        found.clock, found.clock_error_s = "one", max(known) if len(known) == len(errors) else None
    return found


def _add_ranks(reading: _Reading) -> None:
    """Every rank of the plan, of run.json and of the logs, each with its begin and end."""
    record, times = reading.record, reading.times
    starts_own = record is not None and record.plan is not None and record.plan.job.launcher == "spawn"
    for node in record.plan.nodes if record and record.plan and not starts_own else ():
        for number in range(node.first_rank, min(node.first_rank + node.nproc, MOST_RANKS)):
            reading.rank(number).node = node.node
    for one in record.ranks if record else ():
        if 0 <= one.rank < MOST_RANKS:
            reading.rank(one.rank).node, reading.rank(one.rank).code = one.node, one.code
    for number, began in times.ranks.items() if times else ():
        if 0 <= number < MOST_RANKS:
            line = reading.rank(number)
            line.node, line.began_s, line.clock_error_s = began.node, began.at_s, began.error_s
    for number, ended in times.ends.items() if times else ():
        if number in reading.ranks:
            reading.ranks[number].ended_s, reading.ranks[number].code = ended.at_s, ended.code
    for place, own in enumerate(times.own if times else (), MOST_RANKS):
        line = reading.rank(place)
        line.name = f"rank {own.rank}" if own.rank >= 0 else f"process {own.pid}"
        line.node, line.began_s, line.clock_error_s = own.node, own.at_s, own.error_s
        reading.own[own.rank if own.rank >= 0 else -own.pid] = line
    for line in reading.ranks.values() if reading.own else ():
        line.name = line.name or SCRIPT
    for number, used in times.used.items() if times else ():
        if known := reading.seen(number):
            known.use = used
    if not record or (starts_own and not reading.own):
        for info in reading.diagnosis.story.files:
            if info.rank is not None and 0 <= info.rank < MOST_RANKS:
                line = reading.rank(info.rank)
                line.node = line.node or info.host
        for communicator in reading.diagnosis.run.by_communicator.values():
            for member in communicator.members:
                if member.name.isdigit() and int(member.name) < MOST_RANKS:
                    line = reading.rank(int(member.name))
                    line.node = line.node or member.host


def _add_recorded(reading: _Reading) -> CallSource:
    """Collectives of torch's flight recorder, from the watch, else from dumps."""
    times, dumps = reading.times, reading.diagnosis.story.recorded.dumps
    if times and times.calls:
        for number, found in times.calls.items():
            if line := reading.seen(number):
                line.tracks = list(recorded(found.calls, reading.kinds))
        return "watch"
    begun = [e.begun_ns for dump in dumps.values() for e in dump.flight.entries if e.begun_ns]
    if not begun:
        return ""
    started_ns = round(reading.record.started * 1e9) if reading.record else min(begun)
    for number, dump in dumps.items():
        calls = recorded_calls(dump.flight.entries, started_ns)
        reading.rank(number).tracks = list(recorded(calls, reading.kinds))
    return "dumps"


def _places(diagnosis: Diagnosis, path: str) -> Places:
    found = {}
    for communicator in diagnosis.run.by_communicator.values():
        for member in communicator.members:
            if member.file == path:
                _, pid, pointer, uses = member.key
                rank = int(member.name) if member.name.isdigit() else None
                found[pid, pointer, uses] = Group(communicator.id, communicator.nranks, rank)
    return found


def _add_logs(reading: _Reading, with_calls: bool) -> CallSource:
    """
    Steps, NCCL's set-up and, if wanted, NCCL's log lines of calls.

    Stamps of lines and times of a record or of dumps have no common origin: they are not mixed.
    """
    if not reading.times and (reading.record or not with_calls):
        return ""
    found = [*_read_logs(reading)]
    has_times = any(one.has_times for _, one in found)
    found = [(owner, one) for owner, one in found if one.has_times or not has_times]
    has_calls = with_calls and any(one.tracks for _, one in found)
    reading.is_ordered = has_calls and not has_times
    base_s = min((one.first_s for _, one in found if has_times and not reading.times), default=0.0)
    for owner, one in found:
        if owner is not None and owner in reading.ranks and one.first_s <= one.last_s:
            line = reading.ranks[owner]
            line.first_s = min(one.first_s - base_s, math.inf if line.first_s is None else line.first_s)
            line.last_s = max(one.last_s - base_s, -math.inf if line.last_s is None else line.last_s)
            line.steps.extend(at_s - base_s for at_s in one.steps)
        for number, (begun_s, ended_s) in one.init_s.items():
            if number in reading.ranks:
                reading.ranks[number].init_s = (begun_s - base_s, ended_s - base_s)
        for (rank, _), track in one.tracks.items() if has_calls else ():
            if rank is not None and rank < MOST_RANKS:
                if base_s:
                    track.begun_s = array("d", (max(at_s - base_s, 0.0) for at_s in track.begun_s))
                reading.rank(rank).tracks.append(track)
    return "lines" if has_calls else ""


def _read_logs(reading: _Reading) -> Iterator[tuple[int | None, FileCalls]]:
    """The rank of a log, from the run's file name or the log's content, and its calls."""
    for info in reading.diagnosis.logs:
        name, owner = Path(info.path).name, info.rank
        lengths = reading.times.files.get(name) if reading.times else None
        if info.path == "-" or (reading.times and lengths is None):
            continue
        time_of = partial(byte_s, lengths) if lengths else None
        if reading.folder and name.startswith(("rank-", "nccl-")) and name[5:10].isdigit():
            owner = int(name[5:10])
        reader = CallReader(reading.kinds, _places(reading.diagnosis, info.path), owner, time_of)
        try:
            yield owner, reader.read(files.blocks(info.path))
        except OSError:
            continue


def _set_end(found: Timeline, reading: _Reading) -> None:
    """When the run ended, and each rank's first and last sign of life."""
    record = reading.record
    for line in found.ranks:
        times = [at_s for track in line.tracks for at_s in (track.begun_s[0], track.begun_s[-1])]
        lengths = reading.times.of_rank(line.rank) if reading.times else ()
        times += [lengths[0].since_s, lengths[-1].at_s] if lengths else []
        times += [at_s for at_s in (line.first_s, line.last_s) if at_s is not None]
        if times:
            line.first_s, line.last_s = min(times), max(times)
    ends = [at_s for line in found.ranks for at_s in (line.ended_s, line.last_s) if at_s is not None]
    tracks = [track for line in found.ranks for track in line.tracks]
    ends += [at_s for track in tracks for at_s in track.ended_s[-8:] if math.isfinite(at_s)]
    if record:
        found.started = record.started
        if any(line.ended_s is None for line in found.ranks):
            ends.append(record.seconds)
    found.end_s = max(ends, default=0.0)


def _add_verdict(found: Timeline, reading: _Reading) -> None:
    """The named ranks, since when the others wait, and when the first failed."""
    record, ranks = reading.record, reading.ranks
    hang = record.stall if record else None
    if record and record.verdict:
        named = [reading.seen(number) for number in record.verdict.ranks]
        named += [reading.own.get(-one.pid) for one in hang.missing if one.rank is None] if hang else []
        for known in filter(None, named):
            known.role = ROLES.get(record.verdict.rule, "named")
    failure = record.first_failure if record else None
    if failure and failure.rank in ranks:
        ranks[failure.rank].role, ranks[failure.rank].failed_s = "failed", failure.at_s
    if not any(line.role for line in found.ranks):
        # The ranks of the first cause, unless it names most of them.
        cause = next((c for c in reading.diagnosis.causes if c.severity == "error"), None)
        if cause and 2 * len(cause.ranks) <= len(found.ranks):
            for line in (ranks[number] for number in cause.ranks if number in ranks):
                line.role = ROLES.get(cause.rule, "named")
    _set_differing_calls(found)
    for one in hang.missing if hang else ():
        absent = reading.own.get(-one.pid) if one.rank is None else reading.seen(one.rank)
        if absent:
            absent.where = one.where
    for line in found.ranks:
        pending = _first_pending(line.tracks)
        if pending:
            track, place = pending
            kind = found.kinds[track.kind[place]]
            line.where = line.where or " ".join(filter(None, (kind.op, kind.where)))
            line.waits_s = None if line.role == "missing" else track.begun_s[place]
        elif hang and line.role != "missing" and line.code != 0 and line.name != SCRIPT:
            line.waits_s = max(hang.at_s - hang.quiet_s, 0.0)


def _set_differing_calls(found: Timeline) -> None:
    """For ranks whose calls differ: the call of each at the place where the first of them still waits."""
    odd = [line for line in found.ranks if line.role == "differs"]
    pending = [one for line in odd if (one := _first_pending(line.tracks))]
    if not pending:
        return
    first, place = min(pending, key=lambda one: one[0].begun_s[one[1]])
    for line in odd:
        for track in line.tracks:
            if track.group == first.group and first.number[place] in track.number:
                kind = found.kinds[track.kind[track.number.index(first.number[place])]]
                line.where = " ".join(filter(None, (kind.op, kind.what, kind.where)))


def _first_pending(tracks: Iterable[Track]) -> tuple[Track, int] | None:
    found = [(track, n) for track in tracks for n, ended_s in enumerate(track.ended_s) if ended_s == PENDING]
    return min(found, key=lambda one: one[0].begun_s[one[1]], default=None)
