"""Causes by the state of the ranks when they stopped: behind, different calls, busy, wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ringup.logs.causes.pasted_stacks import standing_elsewhere, standing_together
from ringup.logs.causes.recorder_dumps import (
    agreeing,
    recorded_behind,
    recorded_mismatches,
    recorded_standing,
)
from ringup.logs.causes.symptoms import (
    NEXT_TIME,
    bars_at_a_limit,
    ended_as,
    garbled_objects,
    waits_of_the_program,
)
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event, by_rank, ranks_of
from ringup.logs.outcome import is_preparing
from ringup.logs.rule import MAX_EVIDENCE, Cause, Confidence, Found, cause, report
from ringup.logs.run_record import INTERRUPTED
from ringup.rules import Fix
from ringup.units import grouped, ranges, show_ranks

if TYPE_CHECKING:
    from ringup.logs.counts.run import Behind, Member

_NO_WORK = (
    r"#\d+ \S{1,80} from |^\s{0,20}File \"|Warning: |\w \.{6}|100%\|.{0,250}\[00:\d\d<|0%\|.{0,250}\[00:00<\?"
    r"|(?i:tokenizers[_:])"
)
"""Lines that only name work: stack frames, warnings, settings; bars just begun or ended within a minute."""
_GROUP = re.compile(r"\[PG (?:ID )?(\w{1,64})[^]\w][^]]{0,300}\]")


def _timeouts(log: LogEvidence) -> list[Event]:
    """Collectives that ran into their limit, not those that failed at once with a network error."""
    return [e for e in log.all("work") if "work-async" not in log.tags_at(e)]


def _waiting(log: LogEvidence) -> dict[int, Event]:
    """The earliest collective in which each rank reports a timeout."""
    found: dict[int, Event] = {}
    for event in _timeouts(log):
        if event.rank is not None and event["op"]:
            known = found.setdefault(event.rank, event)
            if 0 < event.number("seq") < known.number("seq"):
                found[event.rank] = event
    return found


def _waiting_in_gloo(log: LogEvidence) -> dict[int, Event]:
    """The call in each rank's traceback, if every rank ran into Gloo's limit: it prints no numbers."""
    late = ranks_of(log.all("gloo-recv-timeout"))
    calls = by_rank(log.all("collective-frame"))
    ranks = ranks_of(log.events)
    return calls if late == ranks == calls.keys() else {}


_IN_GROUP = re.compile(r"\[Rank (\d{1,7})\]|\[PG [^\]]{0,80}?Rank (\d{1,7})\]")
"""A rank's number inside its group, as the watchdog prints it; the label `[rankN]` has the global one."""


def _members(log: LogEvidence) -> list[int]:
    """
    The global ranks of the sub-group whose collective timed out, [] for the default group.

    Two numbers of a rank, in the group and among all, give the first member and the distance of two.
    """
    pairs: dict[int, int] = {}
    for event in log.all("work", "work-state"):
        match = _IN_GROUP.search(event.text)
        if match and event.rank is not None:
            pairs.setdefault(int(match[1] or match[2]), event.rank)
    if len(pairs) < 2 or all(inside == rank for inside, rank in pairs.items()):
        return []
    (low, first), (high, last) = min(pairs.items()), max(pairs.items())
    step, rest = divmod(last - first, high - low)
    if rest or step < 1 or any(first + (n - low) * step != rank for n, rank in pairs.items()):
        return []
    sizes = {c.nranks for c in log.communicators if c.nranks > high}
    size = min(sizes, default=high + 1)
    return [first + (n - low) * step for n in range(min(size, 100_000))]


def _missing_ranks(log: LogEvidence, present: set[int]) -> list[int]:
    """Ranks that must exist and printed nothing: gaps below the highest, or up to a printed world size."""
    if members := _members(log):
        return [rank for rank in members if rank not in present]
    sizes = [c.nranks for c in log.communicators] + [e.number("nranks") for e in log.all("topology")]
    ended = ranks_of(log.all("exit"))  # torchrun's table names all that it ended
    top = max([*present, *ended, *(s - 1 for s in sizes if s)], default=-1)
    return [r for r in range(min(top + 1, 100_000)) if r not in present]


def _numbers(text: str) -> list[int]:
    return [int(r) for r in re.findall(r"\d+", text) if len(r) < 9]


def _ended_beside(log: LogEvidence, bar: Event) -> bool:
    """Whether a run failed at a progress bar that is not training's own, and nobody ended it."""
    ended = log.has("exit", "exit-signal", "exception", "killed-word", "nccl-system")
    at_work = log.outcome.limit or log.outcome.went_on or re.search(r"(?i)epoch|train|\bloss", bar.text)
    return ended and not at_work


@cause("rank-busy-while-others-wait")
def rank_busy(log: LogEvidence) -> Found:
    """
    One rank (often 0) does long work while the others wait in a collective until the timeout.

    Why: tokenizing, indexing, downloading, saving or evaluating on one rank only.
    Fix: do that work before init or in another process; a larger timeout in `init_process_group`;
    asynchronous or sharded saving.
    In logs: `main_process_first` with a timeout, a progress bar near the limit, `Saving` one
    timeout earlier.
    """
    first, bars = log.all("main-first"), bars_at_a_limit(log)
    words = log.all("busy-word", lacks=_NO_WORK)
    store = log.all("store-get", reason="(?i).*time.*")
    expired = ("gloo-recv-timeout", "rdzv-timeout", "store-timeout")
    waits = log.all("work", "monitored-victim", "store-wait", "work-aborted", *expired)
    if first and (store or waits or bars or log.has("exception")):
        text = "one rank prepares data inside main_process_first, the others run into the timeout"
        sure: Confidence = "high" if store or waits else "low"
        return report([*first, *bars, *store, *waits[:2]], text, sure)
    prepares = [bar for bar in bars if is_preparing(bar)] if log.has("traceback") else []
    if bars and (waits or store or prepares or log.has("exception", "wait-poll")):
        text = f"one rank is still busy ({bars[0]['what'] or 'a progress bar'}) when the others give up"
        return report([*bars, *waits[:2], *store], text, "high" if waits or store else "low")
    if bars and _ended_beside(log, bars[-1]):
        return report(bars, "a progress bar stopped at a timeout's limit", "low")
    if saved := _one_timeout_before(log, words):
        text = "the last output before the wait is long work of one rank"
        return report([*saved, *waits[:2]], text, ranks=ranks_of(saved) or None)
    begun = {e.file: e.line for e in log.all("training-begins")}
    words = [w for w in words if w.line > begun.get(w.file, 0)]  # work above that line has ended
    if any(w.file == e.file and 0 < e.line - w.line < 200 for w in words for e in [*waits, *store]):
        busy = ranks_of(words[-2:]) or None
        text = f"long work of {show_ranks(busy) if busy else 'one rank'} precedes the timeout"
        return report([*words[-2:], *store, *waits[:2]], text, "medium", ranks=busy)
    if store:
        text = "rank 0 did not answer within the limit: busy before its first collective, or gone"
        return report(store, text, "medium")
    if keyed := [e for e in waits_of_the_program(log) if e["key"]]:
        text = f"nobody set {keyed[0]['key']} within the limit: the rank that sets it is busy, or gone"
        return report(keyed, text, "medium", ranks=())
    if elsewhere := standing_elsewhere(log):
        return elsewhere
    early = [e for e in log.all("work") if 0 < e.number("seq") <= 3 and e.number("nin") == 1]
    text = "the timeout is in one of the first, one-element collectives: a rank is late to start"
    return report(early, text, "low") if not _missing_ranks(log, set(_waiting(log))) else None


def _one_timeout_before(log: LogEvidence, words: list[Event]) -> list[Event]:
    """Busy lines whose time is one timeout before a watchdog's."""
    for work in log.all("work"):
        limit_s = (work.number("ran") or work.number("timeout")) / 1000
        for word in reversed(words):
            if not limit_s or word.time_s is None or work.time_s is None:
                continue
            before = word.line < work.line or word.file != work.file
            if before and 0.9 * limit_s <= (work.time_s - word.time_s) % 86400 <= 1.15 * limit_s + 30:
                return [word, work]
    return []


@cause("rank-fell-behind")
def rank_fell_behind(log: LogEvidence) -> Found:
    ended = ended_as(log, "rank-fell-behind")
    if ended and _LEFT_WELL in ended.text:
        return replace(ended, confidence="medium", fix=_SAME_CALLS)  # which call was too many is not known
    if _of_one_call(log) and (left := _ended_without_error(log)):
        return replace(left, fix=_SAME_CALLS)
    return ended or agreeing(recorded_behind(log), _printed_behind(log))


def _printed_behind(log: LogEvidence) -> Cause | None:
    judged = log.ended and log.ended.verdict.rule
    for event in log.all("run-hung")[: not judged]:  # `ringup run` has checked every rank
        ranks = _numbers(event["ranks"] or " ".join(re.findall(r"\brank \d+", event["who"])))
        nodes = event["nodes"].split(", ") if event["nodes"] else re.findall(r"\(([^()]+)\)", event["who"])
        what = event["op"] or "what the others wait for"
        text = f"{show_ranks(ranks)} never came to {what}; the run was ended as hung"
        return report([event], text, ranks=ranks, nodes=nodes, fix=NEXT_TIME)
    if log.run and log.run.behind:
        return _counted_behind(log, log.run.behind)
    if named := log.all("monitored-barrier"):
        missing = [r for e in named for r in _numbers(e["ranks"])]
        who = show_ranks(missing) if missing else "a rank"
        return report(named, f"{who} did not reach the barrier in time", ranks=missing)
    if stalled := log.all("horovod-stalled", "xla-threads", "desync-report", "jax-late-barrier"):
        lists = [e["missing"] or (e["ranks"] if e.tag == "horovod-stalled" else "") for e in stalled]
        missing = _numbers(" ".join(lists))
        who = f"{show_ranks(missing)}" if missing else "some participants of a collective"
        return report(stalled, f"{who} never came", "high" if missing else "medium", ranks=missing)
    return _by_ras(log) or _silent(log)


def _by_ras(log: LogEvidence) -> Cause | None:
    """Ranks that launched fewer collectives than others of a communicator, by the report of NCCL's RAS."""
    found: list[dict[int, list[Event]]] = [{}]
    at = 0
    for event in log.all("ras-count"):
        if event["kind"]:
            found.append({})
            continue
        at = at if event["one"] else event.number("op")
        found[-1].setdefault(at, []).append(event)
    counts = max(filter(None, found), key=lambda one: max(one) - min(one), default={})
    if len(counts) < 2:
        return None
    least, most = min(counts), max(counts)
    ranks = [int(e["rank"] or e["one"]) for e in counts[least] if not e["many"]]
    who = show_ranks(ranks) if ranks else f"{counts[least][0]['many']} ranks"
    text, events = f"{who} launched {least} collectives, others {most}", [*counts[least], *counts[most]]
    if most - least > 1:
        return report(events, text, "medium", ranks=ranks)
    text += ": usual in a running job; it hangs if a second report has the same numbers"
    return report(events, text, "low", severity="warning", ranks=ranks)


def _silent(log: LogEvidence) -> Cause | None:
    """Ranks that are behind, from the timed-out ranks and the watchdog's (enqueued, completed)."""
    timed_out = _waiting(log)
    # The watchdog also prints its numbers if a call failed because of a peer's end.
    failed = ranks_of(e for e in log.all("work-async") if "timeout" not in e["text"].lower())
    states = {r: e for r, e in by_rank(log.all("work-state")).items() if r not in failed or r in timed_out}
    events = [*timed_out.values(), *states.values()]
    if not events:
        lonely = [e for e in _timeouts(log) if e["op"]] or _timeouts(log)
        lonely = lonely or log.all("work-aborted", has="due to a collective timeout")
        in_gloo = by_rank(log.all("gloo-recv-timeout"))
        stood = ranks_of(log.all("collective-frame"))
        apart = [rank for rank in _missing_ranks(log, {*in_gloo}) if rank not in stood]
        if 0 < 2 * len(apart) <= len(in_gloo):
            text = f"{show_ranks(in_gloo)} waited in Gloo until the limit, {show_ranks(apart)} did not"
            return report(in_gloo.values(), f"{text}: look there", "medium", ranks=apart)
        if len(_waiting_in_gloo(log)) > 1:
            return None
        text = "a rank waited in a collective until the limit; which rank is missing is not in this log"
        return report(lonely or log.all("gloo-recv-timeout", "hccl-timeout"), text, "low", ranks=())
    groups = {m[1] for e in states.values() if (m := _GROUP.search(e.text))}
    # A rank that has enqueued the call in which others are waits in it, or in one that does not match,
    # however few it has enqueued since.
    stuck = [
        e.number("completed") + 1 for e in states.values() if e.number("completed") < e.number("enqueued")
    ]
    behind = sorted(r for r, e in states.items() if e.number("enqueued") < min(stuck, default=0))
    if behind and len(groups) < 2:  # the numbers of two groups cannot be compared
        text = f"{show_ranks(behind)} enqueued fewer collectives"
        return report([*(states[r] for r in behind), *states.values()], text, "medium", ranks=behind)
    if late := _still_in_it(log):
        text = f"{show_ranks(ranks_of(late))} is in a collective that the others have completed: look there"
        return report([*late, *states.values()], text, "medium", ranks=ranks_of(late))
    if len({e.number("seq") for e in timed_out.values() if e["seq"]}) > 1:
        return None
    everyone = {*timed_out, *states}
    missing = _missing_ranks(log, everyone)
    who = show_ranks(everyone)
    if _members(log) and 2 * len(missing) > len(everyone):
        return None  # a part of the group's log: no rank is known to be silent
    # -1: none has ever completed one, and perhaps none can.
    is_first = bool(states) and all(e["completed"] == "-1" for e in states.values())
    if len(everyone) > 1 and 0 < len(missing) <= len(everyone) and not is_first:
        text = f"{who} wait, {show_ranks(missing[:8])} reports nothing: look there first"
        return report(events, text, "medium", ranks=missing[:64])
    if len(everyone) > 1 and not missing:
        return None
    text = f"{who} waited until the limit; the missing rank's log is not among these files"
    return report([events[0], *states.values()], text, "low", ranks=())


def _still_in_it(log: LogEvidence) -> list[Event]:
    """The watchdog's numbers of the few ranks whose last collective all the others have completed."""
    states = by_rank(log.all("work-state", lacks="(?i)remote process"))
    groups = {m[1] for e in states.values() if (m := _GROUP.search(e.text))}
    done = sorted(e.number("completed") for e in states.values())
    middle = done[len(done) // 2] if done else 0
    late = [e for e in states.values() if e.number("completed") < e.number("enqueued") <= middle]
    others = [e for e in states.values() if e not in late]
    is_clear = len(others) > 2 * len(late) and all(e.number("completed") >= middle for e in others)
    return late if is_clear and len(groups) < 2 else []


def _counted_behind(log: LogEvidence, behind: tuple[Behind, ...]) -> Cause:
    """Ranks with a shorter sequence of calls than their peers, from the counted COLL lines."""
    first = min(behind, key=lambda b: (-b.ahead, -b.by))
    worst = [b for b in behind if (b.communicator, b.index) == (first.communicator, first.index)][:8]
    ends = [(b.member, *b.member.calls.last[1:]) for b in worst if b.member.calls.last]
    events = [_counted(log, member, line, raw.decode("utf-8", "replace")) for member, line, raw in ends]
    text = (
        f"rank {first.member.name} has not called {first.collective or 'the next collective'} #{first.index} "
        f"of communicator {first.communicator}; {first.ahead} ranks have"
    )
    ranks = tuple(sorted({n for b in worst if (n := _number(b.member.name)) is not None}))
    nodes = tuple(dict.fromkeys(b.member.host for b in worst if b.member.host))
    if stood := log.outcome.hang or log.outcome.failed:
        return Cause(text, "high", (*events, stood)[:MAX_EVIDENCE], nodes, ranks)
    text += " (if the job hangs, look there)"  # a rank that called nothing has no line to quote
    return Cause(text, "medium", (*events[:MAX_EVIDENCE],), nodes, ranks, "warning")


def _counted_mismatch(log: LogEvidence) -> Cause | None:
    """Ranks that called something else as their n-th collective, from the counted COLL lines."""
    if not log.mismatches:
        return None
    first = min(log.mismatches, key=lambda m: m.index)
    odd = ", ".join(p.member.name for p in first.odd[:8])
    place = f"#{first.index} of communicator {first.communicator}"
    text = (
        f"rank {odd} differs from the others in {' and '.join(first.differs) or 'call'} at collective {place}"
    )
    if first.skipped:
        text = f"rank {odd} left out {first.usual.kind or 'a collective'} {place}"
    events = [_counted(log, p.member, p.line, p.text) for p in [*first.odd[:4], first.usual]]
    ranks = [n for p in first.odd if (n := _number(p.member.name)) is not None]
    return report(events, text, nodes=[p.member.host for p in first.odd if p.member.host], ranks=ranks)


def _counted(log: LogEvidence, of: Member, line: int, text: str) -> Event:
    file = next((n for n, info in enumerate(log.files) if info.path == of.file), 0)
    return Event("coll", file, line, text[:300], host=of.host, pid=of.pid, rank=_number(of.name))


def _number(rank: str) -> int | None:
    return int(rank) if rank.isdigit() and len(rank) < 10 else None


_SAME_CALLS = Fix(
    "every rank must make the same calls: as many batches (`drop_last=True`, the Join context), none by one"
    " rank alone, each with the same size and type."
)


@cause("uneven-batches-between-ranks")
def uneven_batches(log: LogEvidence) -> Found:
    """
    A rank ran out of data and left the loop; the others wait for it.

    Why: shards or iterable data sets of unequal length.
    Fix: use equal lengths, `drop_last=True` or the Join context, or let all ranks agree when to end.
    In logs: step lines end on one rank, the others stop in the next all-reduce.
    """
    if ended := ended_as(log, "uneven-batches-between-ranks"):
        return replace(ended, confidence="medium", fix=_SAME_CALLS)  # it may have left for another reason
    if ran_out := log.all("uneven-word", has="exhausted all|still have inputs"):
        return report(ran_out, "a rank has no input left while others still have some")
    if (left := _left_the_loop(log)) and (apart := _apart(log)):
        who = show_ranks(ranks_of(left))
        text = f"{who} ended an epoch that others had not ended: {apart.text}"
        sure: Confidence = "low" if apart.confidence == "low" else "medium"
        return report([*left, *apart.evidence], text, sure, ranks=apart.ranks)
    recorded = _ended_without_error(log)
    if recorded and not _of_one_call(log):
        return recorded
    waits = log.all("work", "gloo-recv-timeout", "gloo-closed", "work-state")
    waits = [e for e in waits if not log.outcome.overcome(e)]
    stuck = {e.rank for e in waits} | {None}
    finished = [e for e in log.all("epoch-done") if e.rank not in stuck]
    ranks = ranges(ranks_of(finished))
    text = f"rank {ranks} says it is done while others wait"
    if finished and waits:
        return report([*finished, *waits[:3]], text, "medium")
    gone = _gone_ahead(log)
    ranks = ranges(ranks_of(gone))
    text = f"rank {ranks} had come further, and ended without error"
    return report([*gone, *waits[:3]], text, "medium") if gone else None


def _of_one_call(log: LogEvidence) -> bool:
    """Whether others wait in a call that is not known, or of one number: it need not be of each step."""
    interrupted = log.ended is not None and log.ended.outcome in INTERRUPTED
    return interrupted or any(0 < e.number("nin") <= 2 for e in log.all("work"))


def _ended_without_error(log: LogEvidence) -> Cause | None:
    """Ranks that ended with code 0, by the run's own record, before the others lost them in a collective."""
    left = log.ended.left_before if log.ended else ()
    lost = [e for e in log.all("gloo-closed", "gloo-reset", "closed-by-peer") if not log.outcome.overcome(e)]
    if not left or not lost:
        return None
    named = [match for one in left if (match := _LEFT.match(one))]
    ranks, nodes = [int(match[1]) for match in named], [match[2] for match in named]
    text = f"{show_ranks(ranks)} ended without error while others were in a collective"
    return report(lost[:3], text, "medium", ranks=ranks, nodes=nodes)


_LEFT_WELL = "ended with code 0"
"""The verdict's words (`ringup.hang.verdict.DONE`)."""
_LEFT = re.compile(r"rank (\d{1,6}) on ([^\s,]{1,255})")


def _gone_ahead(log: LogEvidence) -> list[Event]:
    """Steps of ranks that got further than one whose peer was gone, and that no launcher lists."""
    closed = {e.rank for e in log.all("gloo-closed", "closed-by-peer")} - {None}
    ends = log.all("exit", "exit-signal", "child-failed", "exception")
    if not closed or not log.has("exit") or log.has("closing-signal", "cancelled") or len(log.hosts) > 1:
        return []
    steps = by_rank(log.all("step"))
    most = max((e.number("step") for rank, e in steps.items() if rank in closed), default=1 << 60)
    failed = {e.rank for e in ends}
    return [e for rank, e in steps.items() if rank not in failed and e.number("step") > most]


def _left_the_loop(log: LogEvidence) -> list[Event]:
    """The ends of an epoch that some ranks printed and others, which print their own, had not reached."""
    ended = by_rank(log.all("epoch-done"))
    epochs = {rank: int(m[1]) if (m := _EPOCH.search(e.text)) else 0 for rank, e in ended.items()}
    ahead = {rank for rank, epoch in epochs.items() if epoch == max(epochs.values())}
    behind = ranks_of(log.all("step", "loss", "epoch-done")) - ahead
    waiting = _waiting(log)
    calls = [{(e["op"], e["nin"]) for r, e in waiting.items() if r in side} for side in (ahead, behind)]
    return [ended[rank] for rank in sorted(ahead)] if behind and calls[0].isdisjoint(calls[1]) else []


_EPOCH = re.compile(r"epoch\D{0,4}(\d{1,6})", re.IGNORECASE)


def _apart(log: LogEvidence) -> Cause | None:
    return _counted_mismatch(log) or _printed_mismatch(log)


@cause("collective-mismatch")
def collective_mismatch(log: LogEvidence) -> Found:
    seen = None if _left_the_loop(log) else _apart(log)  # that is the reason, and another cause has it
    return ended_as(log, "collective-mismatch") or agreeing(recorded_mismatches(log), seen)


def _printed_mismatch(log: LogEvidence) -> Cause | None:
    if apart := log.all("flight-mismatch", "preamble", "horovod-mismatch", "data-truncated"):
        text = "two ranks are in different collectives, or in one with different sizes"
        return report(apart, text, "medium" if apart[0].tag == "data-truncated" else "high")
    if garbled := garbled_objects(log):
        text = "a rank took another collective's data for the size or the bytes of an object"
        return report(garbled, f"{text}: the ranks are in different collectives", "medium")
    through = by_rank(log.all("collective-frame"))
    if len({e["op"] for e in through.values()}) > 1 and log.has("gloo-recv-timeout", "gloo-closed", "work"):
        shown = "; ".join(f"rank {rank}: {e['op']}" for rank, e in sorted(through.items())[:3])
        return report(through.values(), f"ranks end in different collectives ({shown})", "medium")
    every = list(_waiting(log).values())
    waits = [e for e in every if e["nin"]] or every  # the end of a log may cut off a size
    kinds = grouped(((e["seq"], e["op"].upper(), e["nin"]), e) for e in waits)
    events = [e for same in kinds.values() for e in same[:2]]
    is_apart = len({(op, size) for _, op, size in kinds}) > 1 and all(seq for seq, _, _ in kinds)
    if is_apart and not _still_in_it(log):
        numbers = [int(seq) for seq, _, _ in kinds if len(seq) < 15]
        if numbers and max(numbers) - min(numbers) <= 50:
            shown = "; ".join(
                f"rank {same[0].rank}: {op} #{seq} of {size}"
                for (seq, op, size), same in [*kinds.items()][:3]
            )
            events += log.all("size-mismatch")[:1]
            return report(events, f"ranks wait in different collectives ({shown})", "medium")
    if len({seq for seq, _, _ in kinds}) > 1:
        if _still_in_it(log):
            return None
        text = "ranks time out at different sequence numbers: another group, or out of step"
        return report(events, text, "low")
    return report(
        log.all("mismatched-collective"), "NCCL suspects mismatched collectives around a rank", "low"
    )


@cause("collective-stalled")
def collective_stalled(log: LogEvidence) -> Found:
    """
    Every rank whose log is here waits in the same collective and none is missing, or the watchdog itself is
    blocked.

    Why: the transfer does not finish: a link, a GPU, a driver call; or one silent rank.
    Fix: test the network (`ringup check`, `ringup bench`); look at native stacks (`ringup stacks`) and the
    flight recorder.
    In logs: one SeqNum on all ranks, `watchdog got stuck for 480 seconds`.
    """
    return ended_as(log, "collective-stalled") or agreeing(recorded_standing(log), _printed_stalled(log))


def _printed_stalled(log: LogEvidence) -> Cause | None:
    if stuck := log.all("watchdog-stuck"):
        return report(stuck, "the watchdog itself is blocked in a CUDA or NCCL call", "medium")
    waiting = _waiting(log) or _waiting_in_gloo(log)
    calls = {(e["seq"], e["op"]) for e in waiting.values()}
    if len(waiting) < 2 or len(calls) > 1:
        return standing_together(log)
    ((seq, op),) = calls
    text = f"{show_ranks(waiting)} wait in the same {op.lower()}{seq and f' #{seq}'}"
    return report(waiting.values(), text, "low" if _missing_ranks(log, set(waiting)) else "medium")


@cause("model-differs-between-ranks")
def model_differs(log: LogEvidence) -> Found:
    """
    DDP found different parameters on different ranks.

    Why: another config, checkpoint or branch on one rank.
    Fix: use the same config and checkpoint everywhere; build the model from one seed.
    In logs: `DDP expects same model across all ranks`, `appears not to match sizes of the same param`.
    """
    counts = [e for e in log.all("ddp-same-model") if e.number("theirs") > 0]
    events = [*counts, *log.all("ddp-shapes")]
    # Ranks that are in different collectives take each other's data for a number of parameters.
    is_doubtful = log.has("size-mismatch") and _printed_mismatch(log) is not None
    sure: Confidence = "low" if is_doubtful else "high" if counts else "medium"
    return report(events, "ranks hold different models", sure)


_REDUCTION = re.compile(
    r"finished reduction|ready twice|ready only|not used in prod|receive grad|output tens"
)


@cause("ddp-unused-parameters")
def ddp_unused_parameters(log: LogEvidence) -> Found:
    """
    Parameters took no part in the loss, or twice.

    Why: DDP waits for a gradient of every parameter in every iteration.
    Fix: set `find_unused_parameters=True`, or use all; no reentrant checkpointing of shared parameters.
    In logs: `Expected to have finished reduction in the prior iteration`.
    """
    unused = [e for e in log.all("ddp-unused") if "unused-warning" not in log.tags_at(e)]
    is_error = any(_REDUCTION.search(e.text) for e in unused)
    return report(unused, "parameters took no part in the loss of an iteration") if is_error else None


@cause("all-reduce-wrong", overcome="error")
def all_reduce_wrong(log: LogEvidence) -> Found:
    right = ("0", "N/A", "")
    rows = [e for e in log.all("nccl-tests-row") if {e["wrong"], e["wrong2"]} - {*right}]
    if wrong := [*rows, *log.all("wrong-values")]:
        return report(wrong, "a collective finished with wrong numbers")
    if not log.outcome.set_up and not log.has("traceback"):
        return None
    checks = log.all("sum-check", lacks=r"timed? ?out|SeqNum|Watchdog|opCount")
    return report(checks, "a check of a collective's result failed after init was complete", "medium")
