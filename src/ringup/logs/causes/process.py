"""One process ended: exceptions, signals, the scheduler, leftovers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import (
    CONSEQUENCE_TAGS,
    HARMLESS_XID,
    NOT_EXPLAINING,
    UNBACKED,
    made_do,
    refused_semaphores,
    went_on,
    xid_codes,
)
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, last_look, seen
from ringup.logs.story import Story

_SIGNALS = {
    "SIGHUP": 1,
    "HANGUP": 1,
    "SIGINT": 2,
    "SIGILL": 4,
    "ILLEGAL INSTRUCTION": 4,
    "SIGTRAP": 5,
    "SIGABRT": 6,
    "ABORTED": 6,
    "SIGBUS": 7,
    "BUS ERROR": 7,
    "SIGFPE": 8,
    "FLOATING POINT EXCEPTION": 8,
    "SIGKILL": 9,
    "KILLED": 9,
    "OUT OF MEMORY": 9,
    "SIGSEGV": 11,
    "SEGMENTATION FAULT": 11,
    "SIGPIPE": 13,
    "SIGTERM": 15,
    "TERMINATED": 15,
}
"""Numbers on Linux; srun prints the words, launchers the names."""

WRAPPERS = re.compile(
    r"(?i)(?:^|\.)(?:ChildFailedError|DistBackendError|DistError|DistStoreError|DistNetworkError"
    r"|CalledProcessError|ActorDiedError|RayActorError|RayTaskError\S*|"
    r"ProcessRaisedException|ProcessExitedException|Rendezvous\w*|SystemExit|KeyboardInterrupt"
    r"|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|"
    r"ConnectionAbortedError|EOFError|SignalException|EngineDeadError|WorkerCrashedError"
    r"|TimeoutExpired|CancelledError|RemoteError|XlaRuntimeError|"
    r"EngineCore\w*|NodeDiedError|GeneratorExit|BackendCompilerFailed)$"
)
"""Exceptions that only carry another failure: what they wrap is what counts."""

_EITHER_WAY = re.compile(
    r"(?:common|likely|possible|potential) (?:root )?(?:causes|reasons)|\(1\) the process (?:is|was) killed"
    r"|may have been (?:killed|terminated)",
    re.I,
)
"""Sentences that list what may have happened (Ray prints one for every dead worker): they say nothing."""

_LAUNCHER_FRAMES = re.compile(
    r"torch/distributed/(?:run|launch|elastic)|deepspeed/launcher|accelerate/commands"
)


def signal_of(event: Event) -> int:
    """
    The signal that ended a process, 0 for none: from -9, 137, 247, a name or a word.

    Shells print 128+N, Python's subprocess -N, DeepSpeed's launcher 256-N.
    """
    for name in ("signal", "signal2", "signal3"):
        if event.number(name):
            return event.number(name)
    word = event["name"].upper()
    if word:
        return _SIGNALS.get(word, 0)
    code = event.number("code") or event.number("code2")
    if code < 0:
        return -code
    if 128 < code < 160:
        return code - 128
    return 256 - code if code >= 241 else 0


def exits(story: Story) -> list[tuple[int, Event]]:
    """Every exit that tells a signal or a code above 0, as (signal, event)."""
    found = []
    for event in story.all("exit", "exit-signal"):
        number = signal_of(event)
        if number or event.number("code") > 0:
            found.append((number, event))
    return found


def _who(events: list[Event]) -> str:
    ranks = sorted({e.rank for e in events if e.rank is not None})
    if ranks:
        return f"rank {', '.join(map(str, ranks))}"
    local = next((e["local"] for e in events if e["local"]), "")
    return f"local rank {local}" if local else "a rank"


def _cancelled_before(story: Story, event: Event) -> bool:
    return any(
        c.file == event.file
        and c.line < event.line
        and re.search(r"CANCELLED|TIME LIMIT|PREEMPT|death signal|walltime", c.text)
        for c in story.all("cancelled")
    )


@cause(problems.OOM_KILLER_RAN, passing=True)
def oom_killer_ran(story: Story) -> Iterator[Cause]:
    said = [e for e in story.all("oom-kill") if not re.search(r"CUDA out of memory|torch\.", e.text)]
    said = [e for e in said if not _EITHER_WAY.search(e.text) or re.search(r"(?i)Detected \d+ oom", e.text)]
    if said:
        yield seen(said, "a process was killed for host memory, and the log says so")


@cause("rank-killed", passing=True)
def rank_killed(story: Story) -> Iterator[Cause]:
    """
    A rank got SIGKILL from outside; the log does not say by whom.

    Why: the kernel's OOM killer most often, also the scheduler or a person; -9 alone does not tell.

    Fix: `dmesg`, the cgroup's memory.events (oom_kill), the scheduler's accounting of that host.

    In logs: `exitcode: -9`, `Signal 9 (SIGKILL)`, `Killed` with no Python error.
    """
    killed = [e for number, e in exits(story) if number == 9 and not _cancelled_before(story, e)]
    words = [
        e
        for e in story.all("killed-word")
        if not _cancelled_before(story, e) and not _EITHER_WAY.search(e.text)
    ]
    words = [
        e
        for e in words
        if not re.search(
            r"(?i)kill(?:ed|ing)? (?:by|all|old|existing|subprocess|process)|Killing|sigkill_handler"
            r"|forcefully|Sending",
            e.text,
        )
    ]
    if any(e["ends"] for e in story.all("exit")):
        words = []  # the launcher ended the other ranks, and then itself
    words += [e for e in story.all("loader-killed") if e["signal"].lower() == "killed"]
    if killed or words:
        ranks = [e.rank for e in killed if e.rank is not None]
        yield seen(
            [*killed, *words],
            f"{_who(killed)} was killed with SIGKILL; the log does not say by whom",
            "high" if killed else "medium",
            ranks=ranks,
        )


@cause("rank-crashed", passing=True)
def rank_crashed(story: Story) -> Iterator[Cause]:
    """
    A rank died of its own fatal signal.

    Why: a native library or a compiled extension; also a broken stack or ulimit.

    Fix: `PYTHONFAULTHANDLER=1`, a core dump, the last `what():` line of that process.

    In logs: `exitcode: -11`, `Segmentation fault`.
    """
    unbacked = any(UNBACKED in e.text for e in story.all("crash-word"))
    fatal = [e for n, e in exits(story) if n in (4, 5, 8, 11) or (n == 7 and not unbacked)]
    words = [
        e
        for e in story.all("crash-word")
        if not _EITHER_WAY.search(e.text)
        and UNBACKED not in e.text
        and not re.search(
            r"(?i)DataLoader|\bworkers? (?:\(pid|process|is)|bus error .{0,20}worker\b|shared memory|\babort",
            e.text,
        )
    ]
    words += [e for e in story.all("loader-killed") if e["signal"].lower() in ("segmentation", "sigsegv")]
    if fatal or words:
        yield seen([*fatal, *words], f"{_who(fatal)} died of a fatal signal of its own", "high")
        return
    explained = story.has(
        "work",
        "work-aborted",
        "watchdog-stuck",
        "gloo-mesh",
        "cpp-what",
        "nccl-remote",
        "gloo-no-address",
        "gloo-name-not-here",
    ) or any(not WRAPPERS.search(e["type"]) for e in story.all("exception"))
    aborted = [e for number, e in exits(story) if number == 6]
    if aborted and not explained:
        yield seen(
            aborted,
            f"{_who(aborted)} aborted (SIGABRT); the reason stands above in that rank's output",
            "low",
        )


@last_look("rank-crashed")
def aborted_with_a_word(story: Story) -> Iterator[Cause]:
    """An abort that says of what, or leaves a core, and nothing else tells more."""
    ends = [
        e for e in story.all("abort-word") if re.search(r"core dumped|terminate called|Assertion", e.text)
    ]
    ends += [e for number, e in exits(story) if number == 6]
    what = story.all("cpp-what")
    if ends and not (story.has("work", "watchdog-stuck") or any(map(story.overcome, ends))):
        said = next((f": {e['text'][:120]}" for e in what if e["text"]), "; its last words stand above")
        yield seen([*ends, *what], f"{_who(ends)} aborted (SIGABRT){said}", "low")


@cause("rank-raised-exception", passing=True)
def rank_raised_exception(story: Story) -> Iterator[Cause]:
    """
    One rank ended with an exception no other name covers.

    Why: its traceback tells; closed or reset connections on the other ranks follow from it.

    Fix: that traceback, on that rank and host.

    In logs: a traceback on one rank, peers that print closed or reset connections.
    """
    own = [e for e in story.all("exception") if _is_own(story, e) and not story.overcome(e)]
    if not own:
        yield from _kernel_failed(story)
        yield from _ended_elsewhere(story)
        yield from _loader_gone(story)
        yield from _checkpoint_unfit(story)
        return
    yield _raised(story, own)


@last_look("rank-raised-exception")
def exception_in_other_words(story: Story) -> Iterator[Cause]:
    """An exception that speaks of what another cause is about, where that cause did not come about."""
    left = [e for e in story.all("exception") if _is_of_the_program(story, e) and not made_do(e)]
    left = [e for e in left if not story.overcome(e) and "cancelled" not in story.tags_at(e)]
    if left:
        yield _raised(story, left)


def _raised(story: Story, own: list[Event]) -> Cause:
    # torch's hook for uncaught exceptions puts the rank before every line.
    traced = [e for e in own if e["traceback"] or re.search(r"\[rank\d+\]: ", e.text)]
    first = (traced or own)[0]
    same = [e for e in own if e["type"] == first["type"]]
    kind = first["type"].rsplit(".", 1)[-1]
    at = f" at {first['frame']}" if first["frame"] and "site-packages" not in first["frame"] else ""
    mild = not traced or (
        went_on(story) and not story.has("exit", "child-failed", "nccl-remote", "gloo-closed")
    )
    settled = story.has("exit", "child-failed", "gloo-closed", "gloo-reset", "closed-by-peer")
    text = f"{_who([first])} raised {kind}: {first['text'][:120]}".rstrip(": ") + at
    return seen(
        same,
        text,
        "high" if traced and settled else "low" if mild else "medium",
        severity="warning" if mild and not traced and not settled else None,
    )


def _kernel_failed(story: Story) -> Iterator[Cause]:
    """A GPU kernel of the program itself broke; NCCL's watchdog only reports it."""
    faults = [e for e in story.all("illegal-access") if not story.tags_at(e) & {"cuda-failure"}]
    if faults and not story.has("sxid", "ecc") and HARMLESS_XID.issuperset(xid_codes(story)):
        asserted = any("assert" in e.text for e in faults)
        what = "an assertion in a GPU kernel failed" if asserted else "a GPU kernel broke"
        yield seen(
            faults,
            f"{what} on {_who(faults[:1])}; CUDA_LAUNCH_BLOCKING=1 shows which call",
            "high" if asserted else "medium",
        )


def _ended_elsewhere(story: Story) -> Iterator[Cause]:
    """The launcher's summary names the first rank that failed; why, only that rank's own output says."""
    codes = [e for number, e in exits(story) if not number and not _cancelled_before(story, e)]
    first = [e for e in codes if e["root"]] or codes
    told = any(not WRAPPERS.search(e["type"]) for e in story.all("exception"))
    proven = [e for e in first if e["first"]]
    if proven:
        # Whoever follows every process's end knows which came first: what peers say of it followed.
        said = f"{_who(proven[:1])} ended first, with exit code {proven[0]['code']}; its own output says why"
        yield seen(proven[:1], said, "medium")
        return
    if first and not told and not story.has("illegal-access", *CONSEQUENCE_TAGS):
        yield seen(
            first[:1],
            f"{_who(first[:1])} ended first with exit code {first[0]['code']}; its own output says why",
            "low",
        )


def _loader_gone(story: Story) -> Iterator[Cause]:
    """A data loader's worker ended and nothing tells of what."""
    gone = [e for e in story.all("loader-exited") if not story.overcome(e)]
    told = story.has("loader-killed", "loader-bus", "shm-torch", "oom-kill", "killed-word", "too-many-files")
    if gone and not told:
        text = "a data loader's worker ended without a word: host memory or /dev/shm most often; "
        yield seen(gone, text + "num_workers=0 shows an error of its own", "low")


def _checkpoint_unfit(story: Story) -> Iterator[Cause]:
    """The lines below a load_state_dict's error, where the error itself was not kept."""
    sizes = story.all("state-dict")
    if sizes and not went_on(story) and not story.has("exception"):
        yield seen(sizes, f"{_who(sizes[:1])} loads a checkpoint that does not fit the model", "low")


def _is_own(story: Story, event: Event) -> bool:
    """Whether an exception is the program's own, and no text that another name covers."""
    return _is_of_the_program(story, event) and not (_said_with(story, event) - NOT_EXPLAINING)


def _said_with(story: Story, event: Event) -> set[str]:
    return story.tags_at(event, below=2 if re.search(r"(?i)nccl|gloo|cuda|hip", event.text) else 0)


def _is_of_the_program(story: Story, event: Event) -> bool:
    """Whether an exception is neither a wrapping, nor a warning, nor the consequence of another's end."""
    empty_file = event["type"] == "EOFError" and event["text"]  # a pipe that closed has no words
    if (WRAPPERS.search(event["type"]) and not empty_file) or re.search(
        r"Exception ignored in|Caught \w+ in DataLoader worker|other ranks still have inputs", event.text
    ):
        return False
    if re.search(r"(?i)(?:warning)$", event["type"]) or _LAUNCHER_FRAMES.search(event["frame"]):
        return False
    return not (_said_with(story, event) & CONSEQUENCE_TAGS) and event not in refused_semaphores(story)


@cause("terminal-closed", passing=True)
def terminal_closed(story: Story) -> Iterator[Cause]:
    """
    The launcher got SIGHUP: its terminal or ssh session ended.

    Why: a process of an interactive login is ended with it.

    Fix: tmux, `setsid`, `systemd-run`, `sbatch`, or `ringup run --detach`.

    In logs: `Received 1 death signal`, `closing signal SIGHUP`.
    """
    said = story.all("sighup") + [e for number, e in exits(story) if number == 1]
    if said:
        yield seen(said, "the launcher was hung up on: its terminal or ssh session ended")


@cause("job-cancelled", severity="warning")
def job_cancelled(story: Story) -> Iterator[Cause]:
    """
    The scheduler or a user ended the job; this is no failure of the program.

    Why: scancel, a time limit, preemption or Ctrl-C.

    Fix: for a time limit, checkpoints and a longer limit; otherwise nothing.

    In logs: `CANCELLED AT ... DUE TO TIME LIMIT`, `Received 15 death signal`.
    """
    said = [e for e in story.all("cancelled") if not re.search(r"closing signal", e.text)]
    if story.has("exit", "exception", "closing-signal"):  # the launcher sends it when a rank of its own ends
        said = [e for e in said if not re.search(r"Received SIG\w+: \d", e.text)]
    if not said:
        return
    why = next((e[f].lower() for e in said for f in e.fields if f.startswith("why") and e[f]), "")
    yield seen(
        said,
        f"the job was ended from outside{f' ({why})' if why else ''}",
        "high",
        severity="warning" if why and not went_on(story) else "note",
        ranks=(),
    )


@cause(problems.ORPHAN_OF_EARLIER_RUN)
def orphan_of_earlier_run(story: Story) -> Iterator[Cause]:
    rows = story.all("orphan-row") if story.has("ps-header") else []
    words = story.all("gpu-process-left")
    beats = story.repeats.get("keepalive-failed", 0)
    if rows:
        pids = ", ".join(dict.fromkeys(e["pid"] for e in rows))
        yield seen(rows, f"processes {pids} live on with parent 1: their launcher is gone", "high")
    elif words and story.has("eaddrinuse", "gpu-oom"):
        yield seen(words, "processes of an earlier run are still there", "medium")
    elif beats >= 8:
        yield seen(
            story.all("keepalive-failed"),
            f"an agent goes on without its rendezvous: {beats} keep-alive failures",
            "medium",
        )
