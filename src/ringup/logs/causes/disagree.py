"""What the ranks were doing when they stopped: behind, apart, busy, wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.counted import counted_behind, counted_mismatches
from ringup.logs.causes.recorded import agreeing, recorded_behind, recorded_mismatches, recorded_standing
from ringup.logs.causes.signs import bars_at_a_limit, busy, went_on
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_GROUP = re.compile(r"\[PG (?:ID )?(\d+|\w+)[^\]]*\]")


def timeouts(story: Story) -> list[Event]:
    """Collectives that ran into their limit, not those that failed at once with a network error."""
    return [e for e in story.all("work") if "work-async" not in story.tags_at(e)]


def waiting(story: Story) -> dict[int, Event]:
    """The earliest collective each rank says it timed out in."""
    found: dict[int, Event] = {}
    for event in timeouts(story):
        if event.rank is None or not event["op"]:
            continue
        known = found.get(event.rank)
        if known is None or (event.number("seq") and event.number("seq") < known.number("seq")):
            found[event.rank] = event
    return found


def _states(story: Story) -> dict[int, Event]:
    """The watchdog's own numbers (enqueued, completed) per rank."""
    return {e.rank: e for e in story.all("work-state") if e.rank is not None}


def _missing_ranks(story: Story, spoke: set[int]) -> list[int]:
    """Ranks that must exist and did not speak: gaps below the highest, or up to a printed world size."""
    sizes = [c.nranks for c in story.communicators] + [e.number("nranks") for e in story.all("topology")]
    top = max([*spoke, *(s - 1 for s in sizes if s)], default=-1)
    return [r for r in range(min(top + 1, 100_000)) if r not in spoke]


def _ended_beside(story: Story, bar: Event) -> bool:
    """Whether a run ended at a bar that is not training's own, and no scheduler's limit ended it."""
    limited = any(e[f] for e in story.all("cancelled") for f in e.fields if f.startswith("why"))
    ended = story.has("exit", "exit-signal", "exception", "cancelled", "killed-word", "nccl-system")
    training = re.search(r"(?i)epoch|train|\bloss", bar.text)
    return ended and not (limited or training or went_on(story))


@cause("rank-busy-while-others-wait")
def rank_busy(story: Story) -> Iterator[Cause]:
    """
    One rank (often 0) does long work while the others stand in a collective and hit the limit.

    Why: tokenizing, indexing, downloading, saving or evaluating on one rank only.

    Fix: do that work before init or in another process; a larger time-out in `init_process_group`;
    asynchronous or sharded saving.

    In logs: `main_process_first` with a time-out, a progress bar near the limit, `Saving` one
    time-out earlier.
    """
    first = story.all("main-first")
    bars = bars_at_a_limit(story)
    store = [e for e in story.all("store-get") if re.search(r"(?i)time", e["reason"])]
    waits = story.all(
        "work",
        "monitored-victim",
        "gloo-recv-timeout",
        "store-wait",
        "work-aborted",
        "rdzv-timeout",
        "store-timeout",
    )
    words = [e for e in busy(story) if e.tag == "busy-word"]
    if first and (store or waits or bars or story.has("exception", "traceback")):
        yield seen(
            [*first, *bars, *store, *waits[:2]],
            "one rank prepares data inside main_process_first, the others run into the time-out",
            "high",
        )
    elif bars and (waits or store or story.has("traceback")):
        yield seen(
            [*bars, *waits[:2], *store],
            f"one rank is still busy ({bars[0]['what'] or 'a progress bar'}) when the others give up",
            "high",
        )
    elif bars and _ended_beside(story, bars[-1]):
        yield seen(bars, "a progress bar stands at a time-out's limit", "low")
    elif saved := _one_timeout_before(story, words):
        yield seen(
            [*saved, *waits[:2]],
            "the last thing said before the wait is long work of one rank",
            "high" if len(saved) > 1 else "medium",
        )
    elif words and (waits or store) and _before(words, [*waits, *store]):
        yield seen(
            [*words[-2:], *store, *waits[:2]],
            "long work of one rank stands right before the time-out",
            "medium",
        )
    elif store:
        yield seen(
            store,
            "rank 0 did not answer within the limit: busy before its first collective, or gone",
            "medium",
        )
    else:
        early = [e for e in story.all("work") if 0 < e.number("seq") <= 3 and e.number("nin") == 1]
        if early and not _missing_ranks(story, set(waiting(story))):
            yield seen(
                early,
                "the time-out is in one of the first, one-element collectives: a rank is late to start",
                "low",
            )


def _one_timeout_before(story: Story, words: list[Event]) -> list[Event]:
    """Busy lines whose clock stands one time-out before a watchdog's."""
    for work in story.all("work"):
        limit = (work.number("ran") or work.number("timeout")) / 1000
        if not limit or work.time_s is None:
            continue
        for word in reversed(words):
            if word.time_s is None or (word.line >= work.line and word.file == work.file):
                continue
            gap = (work.time_s - word.time_s) % 86400
            if 0.9 * limit <= gap <= 1.15 * limit + 30:
                return [word, work]
    return []


def _before(words: list[Event], waits: list[Event]) -> bool:
    return any(w.file == e.file and 0 < e.line - w.line < 200 for w in words for e in waits)


@cause(problems.RANK_FELL_BEHIND)
def rank_fell_behind(story: Story) -> Iterator[Cause]:
    yield from agreeing(recorded_behind(story), _said_behind(story))


def _said_behind(story: Story) -> Iterator[Cause]:
    for event in story.all("run-hung")[:1]:  # `ringup run` has looked at every rank
        ranks = [int(r) for r in re.findall(r"\d+", event["ranks"]) if len(r) < 9]
        text = f"rank {story.show_ranks(ranks)} never came to {event['op']}; the run was ended as hung"
        yield seen([event], text, "high", ranks=ranks, nodes=event["nodes"].split(", "))
        return
    if counted := counted_behind(story):
        yield from counted
        return
    named = story.all("monitored-barrier")
    if named:
        missing = [int(r) for e in named for r in re.findall(r"\d+", e["ranks"]) if len(r) < 9]
        yield seen(
            named, f"rank {story.show_ranks(missing)} never reached the barrier", "high", ranks=missing
        )
        return
    stalled = story.all("horovod-stalled", "xla-threads", "desync-report", "jax-late-barrier")
    if stalled:
        missing = [
            int(r)
            for e in stalled
            for r in re.findall(r"\d+", e["missing"] or (e["ranks"] if e.tag == "horovod-stalled" else ""))
            if len(r) < 9
        ]
        text = (
            f"rank {story.show_ranks(missing)} never came"
            if missing
            else "some participants of a collective never came"
        )
        yield seen(stalled, text, "high" if missing else "medium", ranks=missing)
        return
    spoke = waiting(story)
    sequences = {e.number("seq") for e in spoke.values() if e["seq"]}
    states = _states(story)
    enqueued = {r: e.number("enqueued") for r, e in states.items()}
    behind = sorted(r for r, n in enqueued.items() if n < max(enqueued.values()) and not _other_group(states))
    if not spoke and not states:
        lonely = [e for e in timeouts(story) if e["op"]]
        lonely = lonely or [e for e in story.all("work-aborted") if "due to a collective timeout" in e.text]
        lonely = lonely or story.all("gloo-recv-timeout")
        if lonely:
            yield seen(
                lonely,
                "a rank waited in a collective until the limit; which rank is missing is not in this log",
                "low",
            )
        return
    if behind:
        yield seen(
            [states[r] for r in behind] + list(states.values()),
            f"rank {story.show_ranks(behind)} enqueued fewer collectives",
            "medium",
            ranks=behind,
        )
        return
    if len(sequences) > 1:
        return
    everyone = set(spoke) | set(states)
    missing = _missing_ranks(story, everyone)
    gathered = next(iter(spoke.values()), None)
    if missing and len(everyone) > 1 and len(missing) <= max(2, len(everyone)):
        text = (
            f"ranks {story.show_ranks(everyone)} wait, rank {story.show_ranks(missing[:8])} is "
            "silent: look there"
        )
        yield seen([*spoke.values(), *states.values()], text, "medium", ranks=missing[:64])
    elif len(everyone) == 1 or missing:
        event = gathered or next(iter(states.values()))
        who = f"rank {event.rank}" if len(everyone) == 1 else f"ranks {story.show_ranks(everyone)}"
        text = f"{who} waited until the limit; who did not come is not in this log"
        yield seen([event, *states.values()], text, "low", ranks=())


def _other_group(states: dict[int, Event]) -> bool:
    """Whether the numbers belong to different process groups and cannot be compared."""
    groups = {m[1] for e in states.values() if (m := _GROUP.search(e.text))}
    return len(groups) > 1


@cause("uneven-batches-between-ranks")
def uneven_batches(story: Story) -> Iterator[Cause]:
    """
    A rank ran out of data and left the loop; the others wait for it.

    Why: shards or iterable data sets of unequal length.

    Fix: equal lengths, `drop_last=True`, the Join context, or end by a collective decision.

    In logs: step lines end on one rank, the others stop in the next all-reduce.
    """
    words = story.all("uneven-word")
    waits = story.all("work", "gloo-recv-timeout", "gloo-closed", "work-state")
    done = [e for e in story.all("epoch-done") if e.rank is not None]
    stuck = {e.rank for e in waits if e.rank is not None}
    finished = [e for e in done if e.rank not in stuck]
    ran_out = [e for e in words if re.search(r"exhausted all|still have inputs", e.text)]
    if ran_out:
        yield seen(ran_out, "a rank has no input left while others still have some", "high")
    elif words and waits:
        yield seen(
            [*words, *waits[:3]],
            "the data is said to be of unequal length, and ranks wait for one that left the loop",
            "medium",
        )
    elif finished and waits:
        yield seen(
            [*finished, *waits[:3]],
            f"rank {story.show_ranks(e.rank for e in finished if e.rank is not None)} says it is "
            f"done while others wait",
            "medium",
        )


@cause(problems.COLLECTIVE_MISMATCH)
def collective_mismatch(story: Story) -> Iterator[Cause]:
    yield from agreeing(recorded_mismatches(story), _said_mismatch(story))


def _said_mismatch(story: Story) -> Iterator[Cause]:
    if counted := counted_mismatches(story):
        yield from counted
        return
    said = story.all("flight-mismatch", "preamble", "horovod-mismatch", "data-truncated")
    if said:
        yield seen(
            said,
            "two ranks are in different collectives, or in one with different sizes",
            "high" if said[0].tag != "data-truncated" else "medium",
        )
        return
    spoke = waiting(story)
    kinds: dict[tuple[str, str, str], list[Event]] = defaultdict(list)
    for event in spoke.values():
        kinds[event["seq"], event["op"].upper(), event["nin"]].append(event)
    if len(kinds) > 1 and len({k[1:] for k in kinds}) > 1 and all(k[0] for k in kinds):
        numbers = [int(k[0]) for k in kinds if len(k[0]) < 15]
        if max(numbers) - min(numbers) <= 50:
            shown = "; ".join(
                f"rank {e[0].rank}: {k[1]} #{k[0]} of {k[2]}" for k, e in list(kinds.items())[:3]
            )
            yield seen(
                [e for events in kinds.values() for e in events[:2]],
                f"ranks wait in different collectives ({shown})",
                "medium",
            )
            return
    if len({k[0] for k in kinds}) > 1:
        yield seen(
            [e for events in kinds.values() for e in events[:2]],
            "ranks time out at different sequence numbers: another group, or out of step",
            "low",
        )
        return
    mild = story.all("mismatched-collective")
    if mild and not story.has("wc-error"):
        yield seen(mild, "NCCL suspects mismatched collectives around a rank", "low")


@cause("collective-stalled")
def collective_stalled(story: Story) -> Iterator[Cause]:
    """
    Every rank that speaks stands in the same collective and none is missing, or the watchdog itself
    is blocked.

    Why: the transfer does not finish: a link, a GPU, a driver call; or one silent rank.

    Fix: link and hardware tests (`ringup bench`), native stacks (`ringup stacks`), the flight recorder.

    In logs: one SeqNum on all ranks, `watchdog got stuck for 480 seconds`.
    """
    yield from agreeing(recorded_standing(story), _said_stalled(story))


def _said_stalled(story: Story) -> Iterator[Cause]:
    stuck = story.all("watchdog-stuck")
    spoke = waiting(story)
    if stuck:
        yield seen(stuck, "the watchdog itself is blocked in a CUDA or NCCL call", "medium")
        return
    sequences = {(e["seq"], e["op"]) for e in spoke.values()}
    if len(spoke) > 1 and len(sequences) == 1:
        event = next(iter(spoke.values()))
        missing = _missing_ranks(story, set(spoke))
        yield seen(
            spoke.values(),
            f"ranks {story.show_ranks(spoke)} stand in the same {event['op'].lower()} #{event['seq']}",
            "low" if missing else "medium",
        )


@cause("model-differs-between-ranks")
def model_differs(story: Story) -> Iterator[Cause]:
    """
    DDP found different parameters on different ranks.

    Why: another config, checkpoint or branch on one rank.

    Fix: the same config and checkpoint everywhere; build the model from one seed.

    In logs: `DDP expects same model across all ranks`, `appears not to match sizes of the same param`.
    """
    counts = [e for e in story.all("ddp-same-model") if e.number("theirs") > 0]
    shapes = story.all("ddp-shapes")
    if counts or shapes:
        yield seen([*counts, *shapes], "ranks hold different models", "high" if counts else "medium")


@cause("ddp-unused-parameters")
def ddp_unused_parameters(story: Story) -> Iterator[Cause]:
    """
    Parameters took no part in the loss, or twice.

    Why: DDP waits for a gradient of every parameter in every iteration.

    Fix: `find_unused_parameters=True`, or use them all; no reentrant checkpointing around shared parameters.

    In logs: `Expected to have finished reduction in the prior iteration`.
    """
    said = story.all("ddp-unused")
    said = [e for e in said if "unused-warning" not in story.tags_at(e)]
    if said and any(
        re.search(
            r"finished reduction|ready twice|ready only|not used in prod|receive grad|output tens", e.text
        )
        for e in said
    ):
        yield seen(said, "parameters took no part in the loss of an iteration")


@cause(problems.ALL_REDUCE_WRONG)
def all_reduce_wrong(story: Story) -> Iterator[Cause]:
    rows = [
        e
        for e in story.all("nccl-tests-row")
        if (e["wrong"] not in ("0", "N/A", "")) or (e["wrong2"] not in ("0", "N/A", ""))
    ]
    values = story.all("wrong-values")
    checks = [
        e for e in story.all("sum-check") if not re.search(r"timed? ?out|SeqNum|Watchdog|opCount", e.text)
    ]
    if rows or values:
        yield seen([*rows, *values], "a collective finished with wrong numbers", "high")
    elif checks and (story.init_complete or story.has("traceback")):
        yield seen(checks, "a check of a collective's result failed after init was complete", "medium")
