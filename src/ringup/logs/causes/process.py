"""One process ended: exceptions, signals, the scheduler, leftovers."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import PurePath

from ringup.logs.causes.symptoms import (
    LAUNCHER_FRAMES,
    OWN_MODULES,
    UNBACKED,
    broken_kernels,
    first_value,
    garbled_objects,
    of_the_web,
    refused_semaphores,
    xid_codes,
)
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event, actor_of, ranks_of
from ringup.logs.outcome import RANK_PROGRAMS, made_do
from ringup.logs.patterns import OF_ROLE, forms
from ringup.logs.rule import A_TRACEBACK, Cause, Confidence, Found, cause, report
from ringup.rules import Fix, Severity
from ringup.units import first_of_each, printable, show_ranks

_NAMES = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM"
_NAMES += " STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ"
_SIGNALS = {f"SIG{name}": number for number, name in enumerate(_NAMES.split(), 1)}
_SIGNALS |= {"HANGUP": 1, "ILLEGAL INSTRUCTION": 4, "ABORTED": 6, "BUS ERROR": 7, "KILLED": 9}
_SIGNALS |= {"FLOATING POINT EXCEPTION": 8, "OUT OF MEMORY": 9, "SEGMENTATION FAULT": 11, "TERMINATED": 15}
"""Numbers on Linux; srun prints the words, launchers the names."""


def signal_of(event: Event) -> int:
    """
    The signal that ended a process, 0 for none: from -9, 137, 247, a name or a word.

    Shells print 128+N, Python's subprocess -N, DeepSpeed's launcher 256-N; 255 is `exit(-1)`, and ssh's own.
    """
    if number := event.number("signal") or event.number("signal2") or event.number("signal3"):
        return number
    if event["name"]:
        return _SIGNALS.get(event["name"].upper(), 0)
    code = event.number("code") or event.number("code2")
    if code < 0:
        return -code
    if 128 < code < 160:
        return code - 128
    return 256 - code if 241 <= code < 255 else 0


def exits(log: LogEvidence) -> list[tuple[int, Event]]:
    """Every exit with a signal or a code above 0, as (signal, event); Hydra's EXIT STRING is of the first."""
    found = [(signal_of(e), e) for e in log.all("exit", "exit-signal")]
    said = {e.number("signal3") for _, e in found if e["signal3"]}
    found = [(number, e) for number, e in found if not (said and e["signal2"] and number not in said)]
    return [(number, e) for number, e in found if number or e.number("code") > 0]


def _first_ended(log: LogEvidence) -> list[tuple[int, Event]]:
    """Ends that a launcher reports as the first failure, as (signal, event)."""
    titles = [(t.file, t.line) for t in log.all("child-failed", has="Root Cause")]
    below = {(file, line + by) for file, line in titles for by in range(1, _BELOW_A_TITLE)}
    return [(number, e) for number, e in exits(log) if e["first"] or e.place in below]


def _ended_by_itself(log: LogEvidence, ends: list[Event]) -> list[Event]:
    """
    Ends by a signal without those that follow from another process's own exit.

    A launcher ends the rest after the first exit with a code above 0.  Where ranks lost a peer, that exit may
    follow from the signal.
    """
    own = [e for number, e in exits(log) if not number]
    if lost := log.all(*OF_ROLE["consequence"]):
        if any(e.tag != "wrapping" for e in lost):
            return ends
        # Horovod and Open MPI name the first end below such a line.
        below = {(e.file, e.line + n) for e in lost for n in range(_BELOW_A_TITLE)}
        own = [e for e in own if e.place in below]
    first = first_of_each((e.file, e.line) for e in own)
    return [e for e in ends if e["first"] or e.line < first.get(e.file, e.line + 1)]


def _who(events: list[Event]) -> str:
    if ranks := ranks_of(events):
        return show_ranks(ranks)
    local, index = first_value(events, "local"), first_value(events, "index")
    return f"local rank {local}" if local else f"spawned process {index}" if index else "a rank"


_ABOVE = "; that rank's output above has the reason"
_COUNTED = re.compile(r"(?i)Detected \d+ oom")


def _steps(events: list[Event]) -> set[str]:
    """The Slurm steps (JOB.STEP) that lines name."""
    found = (re.search(r"\bStep(?:Id=| )(\d+\.\w+)", e.text, re.IGNORECASE) for e in events)
    return {match[1] for match in found if match}


_COUNTED_KILL = re.compile(r"ringup: (\S{1,255}): the kernel ended .{1,99} \(oom-killer-ran\)$")
"""A line of ringup's own (runtime/node_state.py): a node's counter includes other jobs."""


@cause("oom-killer-ran", overcome=None)
def oom_killer_ran(log: LogEvidence) -> Found:
    lines = log.all("oom-kill", lacks=r"CUDA out of memory|torch\.")
    lines = [e for e in lines if not re.search(forms.EITHER_WAY, e.text) or _COUNTED.search(e.text)]
    lines = [e for e in lines if not log.outcome.overcome(e)]
    victims = {name for e in lines if (name := e["victim"] or e["victim2"])}
    known = {e.pid for e in log.events if e.pid} | {e["pid"] for e in log.all("exit", "exit-signal")} - {""}
    is_rank = any(RANK_PROGRAMS.match(v) for v in victims) or known & {e["pid"] for e in lines}
    killed = {e.host for e in [e for number, e in exits(log) if number == 9] + log.all("loader-killed")}
    if all((own := _COUNTED_KILL.match(e.text)) and not killed & {"", own[1]} for e in lines):
        text = "the kernel killed a process for host memory, perhaps another job's: no rank there got SIGKILL"
        return report(lines, text, "low", severity="note")
    steps, failed = (_steps(found) for found in (lines, log.all("cancelled")))
    if steps and failed and steps.isdisjoint(failed) and not victims:
        text = f"the kernel killed a process of step {min(steps)} for host memory; step {min(failed)} ended"
        return report(lines, text, "low")
    if not victims or is_rank or killed:
        return report(lines, "a process was killed for host memory, and the log says so")
    text = f"the kernel killed {', '.join(sorted(victims))} for host memory, which may be another job's"
    return report(lines, text, "low")


@cause("node-lost", overcome=None)
def node_lost(log: LogEvidence) -> Found:
    """
    A node and the launcher lost contact, and ringup or the scheduler ended the run.

    Why: the node crashed, was powered off or booted again, its network was cut, or the launching machine was
    suspended.
    Fix: try `ping` and `ssh` from another node; look at its `uptime`, console and state in the scheduler.
    In logs: `first failure: node1: no contact for 14 s: the node or its network is down`,
    `srun: error: Node failure on node1`, `CANCELLED AT ... DUE TO NODE FAILURE`.
    """
    lost = log.all("node-silent")
    nodes = [e["host"] for e in lost if e["host"]]
    ended = _ended_for_a_node(log)
    which = ", ".join(dict.fromkeys(nodes)) or "a node of the job"
    if not ended and any(e["by_ray"] for e in lost):
        text = f"{which} missed Ray's heartbeats: it is down, cut off or too busy, or its raylet was killed"
        return report(lost, text, "medium", nodes=nodes)
    if not ended and any(e["by_mpi"] for e in lost):
        text = f"mpirun lost its daemon on {which}: the node is gone or cut off, or the daemon was killed"
        return report(lost, text, "medium", nodes=nodes)
    if "the launching machine" in (why := first_value(lost, "why")):
        fix = Fix("`ringup run --detach` does not need the launching machine; or a longer `--lease`.")
        return report(lost, f"{which} ended its ranks: {why}", nodes=(), fix=fix)
    if why:
        return report(lost, f"{which} ended its ranks: {why}", nodes=nodes)
    return report([*lost, *ended], f"{which} stopped responding: down, or cut off", nodes=nodes)


def _ended_for_a_node(log: LogEvidence) -> list[Event]:
    """The lines by which a scheduler ended the job for the failure of a node."""
    if not re.fullmatch("node(?: failure|_fail|lost)", log.outcome.limit):
        return []
    return [e for e in log.outcome.from_outside if re.search("CANCELLED|NODE_FAIL|NodeLost", e.text)]


@cause("node-lost", overcome=None, fallback=True)
def listed_as_down(log: LogEvidence) -> Found:
    """Nodes that a scheduler lists as down; they need not be the job's."""
    down = [] if log.outcome.from_outside else log.all("node-down")  # a preempted pod's node is not ready
    nodes = {e["host"]: e for e in down if e["host"]}
    why = first_value(down, "why", "why2") or first_value(down, "state")
    text = f"{', '.join([*nodes][:4]) or 'a node'} is out of service: {why}"
    return report(down, text, "medium", nodes=nodes)


_OF_A_CRASH = (4, 5, 6, 7, 8, 11)

_WHO_ENDS_A_RANK = Fix(
    "find who ended it at that time: the scheduler's accounting of that job (`sacct -j JOB`), other users'"
    " `pkill`, the script's own signals and timers; SIGXCPU, SIGXFSZ: a limit of `ulimit -a`."
)


_MORE_TIME = Fix("a longer --save-grace, or a handler of the signal that saves, and then exits, sooner.")


_RANKS = r"python|torchrun|deepspeed|accelerate|run|exec|\bsh\b|bash|\.(?:sh|py)\b|\$"
_OF_ANOTHER_COMMAND = rf"\d Killed {{1,40}}(?!.{{0,200}}(?:{_RANKS}))\S"
"""A shell's report on a command that starts no rank."""


@cause("rank-killed", overcome=None)
def rank_killed(log: LogEvidence) -> Found:
    """
    A rank got SIGKILL (or, first of all, SIGTERM) from outside; the log does not say by whom.

    Why: the kernel's OOM killer most often, also the scheduler or a person; -9 alone does not tell.
    Fix: look at `dmesg`, the cgroup's memory.events (oom_kill), the scheduler's accounting; for a pod at
    `kubectl describe pod` (Last State, OOMKilled).
    In logs: `exitcode: -9`, `Signal 9 (SIGKILL)`, `Killed` with no Python error.
    """
    sent = {e["pid"] for e in log.all("closing-signal")} - {""}  # by the agent, which later sends SIGKILL
    ours = {e.place for _, e in exits(log) if e["pid"] in sent}
    killed = log.outcome.before_the_end(e for n, e in exits(log) if n == 9 and e.place not in ours)
    killed = _ended_by_itself(log, killed)
    other = r"|kill(?:ed|ing)? (?:by|all|old|existing|(?:sub)?process)|Killing|sigkill_handler|forcefully"
    other += "|force-kill|ing with SIGKILL"
    words = log.all(
        "killed-word", lacks=f"{forms.EITHER_WAY}{other}|Sending|{forms.OF_A_HANDLER}|{_OF_ANOTHER_COMMAND}"
    )
    words = [e for e in words if not (e.place in ours or log.outcome.overcome(e))]
    words = _ended_by_itself(log, log.outcome.before_the_end(words))
    if any(e["ends"] for e in log.all("exit")):
        words = []  # the launcher ended the other ranks, and then itself
    workers = log.all("loader-killed", signal="(?i)killed")
    by = "was killed with SIGKILL; the log does not say by whom"
    if workers and not (killed or words):
        text = f"a worker of {_who(workers)}'s data loader {by}"
        return report(workers, text, "medium", ranks=ranks_of(workers))
    ended = [e for number, e in _first_ended(log) if number not in (0, *_OF_A_CRASH)][:1]
    ended = ended or [e for number, e in exits(log) if number == 15 and e["noticed"]][:1]
    by_agent = log.outcome.from_outside or any(e["pid"] in sent or not (sent or e["noticed"]) for e in ended)
    ended = [e for e in ended if e["first"] or not by_agent or signal_of(e) != 15]
    if ended and not (killed or words):
        if log.ended and log.ended.outcome == "not-saved":
            text = f"{_who(ended)} had not saved its state when the time for it was over, and ringup ended it"
            return report(ended, text, "high", fix=_MORE_TIME, ranks=ranks_of(ended))
        name = ended[0]["name"] or f"SIG{_NAMES.split()[signal_of(ended[0]) - 1]}"
        how = "a SIGTERM from outside" if name == "SIGTERM" else name
        how += "" if name.startswith("SIGX") else "; the log does not say who sent it"
        text = f"{_who(ended)} ended first, by {how}"
        return report(ended, text, "medium", fix=_WHO_ENDS_A_RANK, ranks=ranks_of(ended))
    text = f"{_who(killed)} {by}"
    ranks = ranks_of(killed)
    return report([*killed, *words, *workers], text, "high" if killed else "medium", ranks=ranks)


_ENDS_ALREADY = "called without an active exception"
"""C++ aborts a process that leaves while its threads still run: something else made it leave."""


@cause("rank-crashed", overcome=None)
def rank_crashed(log: LogEvidence) -> Found:
    """
    A rank died of its own fatal signal.

    Why: a native library or a compiled extension; also a broken stack or ulimit.
    Fix: set `PYTHONFAULTHANDLER=1`; read the last `what():` line of that process, or a core dump.
    In logs: `exitcode: -11`, `Segmentation fault`.
    """
    unbacked = bool(log.all("crash-word", has=UNBACKED))
    fatal = [e for n, e in exits(log) if n in (4, 5, 8, 11) or (n == 7 and not unbacked)]
    fatal = _ended_by_itself(log, fatal)
    other = (
        r"|NVRM: |DataLoader|\bworkers? (?:\(pid|process|is)|bus error .{0,20}worker\b|shared memory|\babort|"
    )
    words = log.all(
        "crash-word", lacks=f"{forms.EITHER_WAY}{other}{UNBACKED}|{forms.OF_A_HANDLER}|{forms.ONLY_NAMED}"
    )
    words = _ended_by_itself(log, words + log.all("loader-killed", signal="(?i)segmentation|sigsegv"))
    if fatal or words:
        is_sure = bool(fatal) or any(forms.OF_A_HANDLER_CALLED.search(e.text) for e in words)
        died = fatal or [e for number, e in _first_ended(log) if number == 6]
        text = f"{_who(died)} crashed with a fatal signal"
        return report([*fatal, *words], text, "high" if is_sure else "medium", ranks=ranks_of(died) or None)
    if log.all("abort-word", has=_ENDS_ALREADY) and not log.has("cpp-what"):
        return None
    if first := _aborted_first(log):
        return first
    of_gloo = log.has("gloo-mesh", "gloo-no-address", "gloo-name-not-here")
    if of_gloo or log.has("work", "work-aborted", "watchdog-stuck", "nccl-remote", "jax-died"):
        return None
    if own_exceptions(log) or any(len(log.tags_at(e)) > 1 for e in log.all("cpp-what")):
        return None
    aborted = [e for number, e in exits(log) if number == 6]
    # Python's handler of the signal and C++ print on the rank that died, not on its peers.
    said = log.all("abort-word", has="Fatal Python error|terminate called|core dumped|received at time")
    words = [] if any(re.search("c10::|gloo::|nccl", e.text) for e in said) else said
    what = log.all("cpp-what") if aborted or words else []
    reason = f": {first_value(what, 'text')[:120]}" if what else _ABOVE
    text = f"{_who(aborted)} aborted (SIGABRT){reason}"
    return report([*what, *aborted, *words], text, "medium" if aborted and words else "low")


def _aborted_first(log: LogEvidence) -> Cause | None:
    """The rank that ended first aborted, and its own log has nothing of another's end."""
    first = [e for number, e in _first_ended(log) if number == 6][:1]
    of_others = log.all(*OF_ROLE["consequence"], "work", "work-aborted", "watchdog-stuck", "exception")
    ranks = {e.rank for e in of_others if not log.tags_at(e) & {"abort-word", "child-failed"}}
    own = {e.rank for e in first} | ({None} if not first or not first[0]["first"] else set())
    if not first or own & ranks:
        return None
    said = [e for e in log.all("cpp-what", "abort-word") if e.rank in own]
    said = [e for e in said if not log.tags_at(e) & {"exit", "exit-signal"}]
    if any(log.tags_at(e) - {"cpp-what", "abort-word"} - OF_ROLE["context"] for e in said):
        return None  # another cause has its reason
    what = next((e["text"] for e in said if e["text"]), "")[:120]
    text = f"{_who(first)} ended first, by an abort (SIGABRT){': ' + what if what else ''}"
    return report([*said, *first], text, "medium", ranks=ranks_of(first))


@cause("rank-raised-exception", overcome=None)
def rank_raised_exception(log: LogEvidence) -> Found:
    """
    One rank ended with an exception that no other cause covers.

    Why: its traceback has the reason; closed or reset connections on the other ranks follow from it.
    Fix: correct the error that the traceback shows, on that rank and host.
    In logs: a traceback on one rank, peers that print closed or reset connections.
    """
    if of_a_thread := _thread_ended(log):
        return of_a_thread
    if own := own_exceptions(log):
        own = [*filter(_is_its_own, own)]
        return _raised(log, own) if own else None
    return _kernel_failed(log), _ended_elsewhere(log), _loader_gone(log), _checkpoint_unfit(log)


_PROCESS_GONE = re.compile(r"process(?:es)? .{0,40}\b(?:abruptly|died|killed)\b")


def own_exceptions(log: LogEvidence) -> list[Event]:
    """Exceptions of the program after which the run did not work, and whose text no other cause covers."""
    own = [e for e in log.all("exception") if _is_of_the_program(log, e) and not log.outcome.overcome(e)]
    own = [e for e in own if not LAUNCHER_FRAMES.search(e["frame"])]
    if log.has("oom-kill", "killed-word"):
        own = [e for e in own if not _PROCESS_GONE.search(e["text"])]
    garbled = garbled_objects(log)
    own = [e for e in own if e not in garbled]
    if all(e["carried"] for e in own):  # Ray's head names a type, and the line above it has the details
        told = {(e.file, e["type"].rpartition(".")[2]) for e in log.all("exception") if not e["carried"]}
        own = [e for e in own if (e.file, e["type"]) not in told]
    return [e for e in own if not _of_others(log, e) - OF_ROLE["context"]]


def _of_others(log: LogEvidence, event: Event) -> set[str]:
    """The tags with which an exception may belong to another cause."""
    missing = [e for e in log.at(event.file, event.line) if e.tag == "module-missing"]
    of_nobody = {"module-missing"} if not any(OWN_MODULES.match(e["module"]) for e in missing) else set()
    return _tags_with(log, event) - of_nobody


@cause("rank-raised-exception", overcome=None, fallback=True)
def exception_in_other_words(log: LogEvidence) -> Found:
    """An exception about another cause's subject, if that cause was not found."""
    left = [*filter(_is_its_own, _in_other_words(log))]
    return _raised(log, left) if left else None


def _in_other_words(log: LogEvidence) -> list[Event]:
    left = [e for e in log.all("exception") if _is_of_the_program(log, e) and not made_do(e)]
    left = [e for e in left if not log.outcome.overcome(e) and "cancelled" not in log.tags_at(e)]
    if log.has("exit", "child-failed"):  # else a launcher's own exception ended it
        left = [e for e in left if not LAUNCHER_FRAMES.search(e["frame"])]
    return left


_OF_A_STALE_HANDLE = Fix(
    "`stat` the path on that node and on another one. Stale on that node alone: mount it again there. Gone on"
    " both: only one rank deletes or replaces files, after a barrier."
)


@cause("shared-file-raced", overcome=None)
def shared_file_raced(log: LogEvidence) -> Found:
    found = [e for e in log.all("stale-file") if not made_do(e)]
    if found:
        text = "a handle of the shared file system is stale: its file was deleted or replaced, or its server"
        return report(found, f"{text} exported it again", "medium", fix=_OF_A_STALE_HANDLE)
    gone = [e for e in log.all("file-gone") if not (made_do(e) or log.outcome.overcome(e))]
    ranks = ranks_of(log.events)
    there = [e for e in gone if e["exists"] or e["exists2"]]
    if there and (len(ranks) > 1 or any(ranks)):
        path = first_value(there, "path2", "path3")
        return report(there, f"{_who(there)} made or removed {path} while another rank did, too", "medium")
    return None


@cause("file-not-shared", overcome=None)
def file_not_shared(log: LogEvidence) -> Found:
    gone = [e for e in log.all("file-gone") if not (made_do(e) or log.outcome.overcome(e))]
    ranks = ranks_of(log.events)
    missing = [e for e in gone if e["path"] and e["path"] == gone[0]["path"]]
    some = ranks_of(missing)
    if len({e.label for e in missing}) > 1 and "cache" in missing[0]["path"].lower():
        text = f"{missing[0]['path']} is missing on several nodes: what one rank makes there is not shared"
        return report(missing, text, "medium")
    if not some or len(some) == len(ranks):
        return None
    text = f"{missing[0]['path']} is missing on {show_ranks(some)} alone: not shared, or deleted too early"
    first, others = {e.host for e in log.events if e.rank == 0}, {e.host for e in missing}
    # Rank 0 makes such files, and its node has this one.
    is_elsewhere = all(first) and all(others) and bool(first) and first.isdisjoint(others)
    return report(missing, text, "high" if is_elsewhere else "medium")


def _raised(log: LogEvidence, own: list[Event]) -> Cause | None:
    # torch's hook for uncaught exceptions puts the rank before every line.
    traced = [e for e in own if e["traceback"] or re.search(r"\[rank\d+\]: |^E {3,}\w", e.text)]
    uncaught = [e for e in traced if e["uncaught"]]
    first = next((e for e in uncaught or traced or own if not e["carried"]), own[0])
    aborts = (e for e in log.all("exit", has="(?i)errorcode") if e.file == first.file)  # mpi4py's run
    if first.rank is None and (by := [e for e in aborts if 0 < e.line - first.line < _BELOW_A_TITLE]):
        first = replace(first, rank=by[0].rank)
    kind = first["type"].rpartition(".")[2]
    inner = _inside(log, first)
    who = _who([first, *(e for e in own if (e["type"], e["text"]) == (first["type"], first["text"]))])
    text = f"{who} raised {kind}: {printable(first['text'], 120)}".rstrip(": ")
    if inner:
        words = printable(inner["text"], 120)
        text = f"{who} raised {kind}, and inside it {inner['type']}: {words}"
    if first["frame"] and "site-packages" not in first["frame"]:
        text += f" at {first['frame']}"
    source = _raised_from(log, first)
    text += "".join(f", from {e['type']}: {printable(e['text'], 120)}" for e in source)
    below = [c for c in log.clues if c.event.place == (first.file, first.line + 1)]
    below = below if first["text"].endswith(":") else []  # what an exception says goes on there
    text += "".join(f": {clue.message[:160]}" for clue in below)
    if "more than 1EB" in first["text"]:
        text += (
            "; no program needs so much: another collective's data was taken for a size, or a shape is wrong"
        )
    ended = log.has("exit", "child-failed", "nccl-remote", "gloo-closed")
    mild = not traced or (log.outcome.went_on and not ended)
    settled = log.has("exit", "child-failed", "gloo-closed", "gloo-reset", "closed-by-peer")
    same = [first, *(e for e in own if e["type"] == first["type"] and e is not first)]
    sure: Confidence = "high" if traced and settled else "low" if mild else "medium"
    evidence = [*([inner] if inner else ()), *same[:1], *source, *(clue.event for clue in below), *same[1:]]
    # Nothing below it, not even its end: it may as well be the output's last line before the process ended.
    goes_on = made_do(first) or log.outcome.from_outside or log.outcome.work_after(first)
    is_last = log.files[first.file].lines - first.line < MOST_BELOW and not goes_on
    severity: Severity | None = "warning" if mild and not (traced or settled or is_last) else None
    if hiding := _hides_a_module(first):
        text = f"{hiding} has the name of a module: what imports that module gets this file instead"
        rename = Fix(f"give {hiding} another name, and delete its __pycache__.")
        return report(evidence, text, sure, severity=severity, fix=rename)
    words = " ".join([f"{kind}: {first['text']}", *(clue.message for clue in below)])
    known = (*forms.FIXES, *(forms.MEANINGS if " [Errno " in words else ()))
    fixes = (Fix(f"{text}.") for one, text in known if one.regex.search(words))
    return report(evidence, text, sure, severity=severity, fix=next(fixes, None))


_INSTALLED = re.compile(r"/lib(?:64)?/python3|-packages/")


def _hides_a_module(event: Event) -> str:
    """The program's own file that has the name of one of Python's modules, if an import failed in it."""
    found = forms.OF_AN_IMPORT.search(event["text"])
    if not found:
        return ""
    if module := found["module"]:  # Python's own code knows its modules' names
        where = _INSTALLED.findall(event["inner"]) if module in sys.stdlib_module_names else []
        return f"{module}.py" if where and "-packages/" not in where else ""
    file = found["file"] or found["other"] or event["frame"].rpartition(":")[0]
    own = PurePath(file).stem in sys.stdlib_module_names and not _INSTALLED.search(file)
    return file if found["file"] or own else ""


def _raised_from(log: LogEvidence, outer: Event) -> list[Event]:
    """The exception that Python reports as the direct cause of another."""
    links = [e.line for e in log.all("direct-cause") if (e.file, e.rank) == (outer.file, outer.rank)]
    links = [line for line in links if 0 < outer.line - line < A_TRACEBACK]
    before = [e for e in log.all("exception") if (e.file, e.rank) == (outer.file, outer.rank)]
    return [e for e in before if links and e.line < links[-1]][-1:]


MOST_BELOW = 3
"""The last lines of a file, an exception's own among them."""


def _inside(log: LogEvidence, outer: Event) -> Event | None:
    """The exception whose traceback is the message of another, as of torch's checkpoints."""
    below = [e for e in log.at(outer.file, outer.line + 1) if e.tag == "traceback" and e.rank == outer.rank]
    if not below and not outer["text"].endswith("Traceback (most recent call last):"):
        return None
    later = (e for e in log.all("exception") if e.file == outer.file and e.line > outer.line)
    inner = next((e for e in later if (e.rank, e.label) == (outer.rank, outer.label)), None)
    if inner is None or inner.pid != outer.pid or forms.WRAPPERS.search(inner["type"]):
        return None
    is_same = (inner["type"], inner["text"]) == (outer["type"], outer["text"])  # of another rank
    return None if is_same else inner


def _kernel_failed(log: LogEvidence) -> Cause | None:
    """A GPU kernel of the program itself broke; NCCL's watchdog only reports it."""
    faults = [e for e in broken_kernels(log) if not made_do(e) and "cuda-failure" not in log.tags_at(e)]
    if log.has("sxid", "ecc") or not forms.PROGRAM_XIDS.issuperset(xid_codes(log)):
        return None
    asserted = any("assert" in e.text for e in faults)
    gpu, cuda = (
        ("NPU", "ASCEND") if any("core e" in e.text or "507" in e.text for e in faults) else ("GPU", "CUDA")
    )
    what = f"an assertion in a {gpu} kernel failed" if asserted else f"a kernel on the {gpu} broke"
    text = f"{what} on {_who(faults[:1])}; {cuda}_LAUNCH_BLOCKING=1 shows which call"
    return report(faults, text, "high" if asserted else "medium")


_ITS_OUTPUT = Fix("read that rank's output up to this line.")
_ITS_CODE = Fix("read that rank's output; if it is empty, find what ends the script: `sys.exit`, `os._exit`.")
_ITS_ARGUMENTS = Fix("correct the script's arguments; the lines above show those that it takes.")
_BELOW_A_TITLE = 12
"""Lines of an elastic agent's table of one failure."""


_OF_A_PROGRAM = r"(?:subprocess\.)?(?:CalledProcessError|TimeoutExpired)|BrokenPipeError"
"""About a program that a rank starts, or that reads its output: of the rank that ended first its reason."""


def _ended_elsewhere(log: LogEvidence) -> Cause | None:
    """The launcher's summary names the first rank that failed; only that rank's own output has the reason."""
    codes = log.outcome.before_the_end((e for number, e in exits(log) if not number))
    # A program that follows every process's end knows which came first: messages of peers follow from it.
    if proven := [e for e in codes if e["first"]][:1]:
        if any(e.rank == proven[0].rank for e in _in_other_words(log)):
            return None  # its own output is here
        text = f"{_who(proven)} ended first, with exit code {proven[0]['code']}"
        if last := log.last_words(proven[0].rank):
            if log.tags_at(last) & OF_ROLE["consequence"]:
                return None  # it waited for another, or lost it
            if proven[0]["code"] == "2" and forms.REFUSES_ARGUMENTS.search(last.text):
                said = f"{_who(proven)} refused its arguments: {last.text[:160]}"
                return report([last, *proven], said, "high", fix=_ITS_ARGUMENTS)
            said = f"{text}; its last line: {last.text[:160]}"
            return report([last, *proven], said, "medium", fix=_ITS_OUTPUT)
        return report(proven, f"{text}; no line here says why", "medium", fix=_ITS_CODE)
    roots = log.all("child-failed", has="Root Cause")
    first = [e for _, e in _first_ended(log) if e in codes]
    first = first or [e for e in codes if e.rank is not None] or codes
    # The others' lost connections follow from the rank whose end the launcher saw first.
    lost = log.has(*OF_ROLE["consequence"])
    spoke = {e.rank for e in log.all("exception", *OF_ROLE["consequence"])} | {None}
    own = [e for e in log.all("exception") if _is_of_the_program(log, e)]
    heard = {e.rank for e in log.events if e.tag in ("step", "loss", "saved", "epoch-done")}
    if None not in {e.rank for e in log.all(*OF_ROLE["consequence"]) if e.tag not in OF_ROLE["weak"]}:
        # Each lost connection shows its rank, so a rank of the world without one printed none.
        heard |= {e.number("rank") for e in log.all("rank-of-world")}
    nameless = [e for e in log.all("exception") if e.rank is None and "child-failed" not in log.tags_at(e)]
    if roots and not nameless:
        heard |= ranks_of(first)  # torch puts the rank before every line of an exception
    silent = [e for e in first if roots and lost and not own and e.rank in heard - spoke]
    reasons = [e for e in log.all("exception", type=_OF_A_PROGRAM) if e.rank in ranks_of(first) and roots]
    if reasons:
        return _raised(log, reasons)
    if lost and not (silent or own):
        # Python's code for an exception, also for one that follows from another's end, is 1.
        silent = first = [e for e in codes if e["local"] and e["code"] != "1"]
    if lost and not silent:
        return None
    if not first or log.has("illegal-access"):
        return None
    if not silent and not all(forms.WRAPPERS.search(e["type"]) for e in log.all("exception")):
        return None
    text = f"{_who(first[:1])} ended first with exit code {first[0]['code']}: read its own output"
    refused = [c for c in log.clues if forms.REFUSES_ARGUMENTS.search(c.message)]
    if refused and first[0]["code"] == "2":
        text = f"{_who(first[:1])} refused its arguments: {refused[0].message[:160]}"
        return report([refused[0].event, *first[:1]], text, "high", fix=_ITS_ARGUMENTS)
    return report(first[:1], text, "medium" if silent else "low", fix=_ITS_CODE)


def _thread_ended(log: LogEvidence) -> Cause | None:
    """A thread of the rank for which the others wait ended before, and that rank went on without it."""
    threads = [e for e in log.all("exception") if e["thread"]]
    waited = log.all("exception", type=r"_?queue\.(?:Empty|Full)", thread="")
    if died := [e for e in threads for w in waited[:1] if e.file == w.file and e.line < w.line]:
        text = f"a thread ended with {_called(died[-1])}; {_who(waited[:1])} then waited for it in vain"
        return report([died[-1], waited[0]], text, "medium", ranks=ranks_of(waited))
    if not log.ended or log.ended.verdict.rule != "rank-fell-behind":
        return None
    ranks = {*log.ended.verdict.ranks}
    died = [e for e in threads if e.rank in ranks]
    if not died:
        return None
    text = f"a thread of {_who(died[:1])}, for which the others wait, ended with {_called(died[0])}"
    return report([*died, log.ended.line], text, "medium", ranks=ranks_of(died))


def _called(raised: Event) -> str:
    where = f" at {raised['frame']}" * bool(raised["frame"])
    return f"{raised['type'].rpartition('.')[2]}{where}: {raised['text'][:120]}"


def _loader_gone(log: LogEvidence) -> Cause | None:
    if log.has("loader-killed", "loader-bus", "shm-torch", "oom-kill", "killed-word", "too-many-files"):
        return None
    gone = [e for e in log.all("loader-exited") if not log.outcome.overcome(e)]
    text = "a data loader's worker ended without a message: host memory or /dev/shm most often; "
    return report(gone, text + "num_workers=0 shows an error of its own", "low")


def _checkpoint_unfit(log: LogEvidence) -> Cause | None:
    """The lines below a load_state_dict's error, if the error line itself is not in the log."""
    if log.outcome.went_on or log.has("exception"):
        return None
    sizes = log.all("state-dict")
    return report(sizes, f"{_who(sizes[:1])} loads a checkpoint that does not fit the model", "low")


def _tags_with(log: LogEvidence, event: Event) -> set[str]:
    tags = log.tags_at(event, below=2 if re.search(r"(?i)nccl|gloo|cuda|hip", event.text) else 0)
    return {*tags} - ({"reset-by-peer", "name-unknown"} if of_the_web(event) else set())  # no rank's


_HARMLESS = re.compile(r"Exception ignored in|Caught \w+ in DataLoader worker|other ranks still have inputs")
_OF_THE_HOST = re.compile(
    r"</torch_\S{1,80}>: Cannot allocate memory|Input/output error"
    r"|Transport endpoint is not connected|cannot open shared object|Failed to read data from the socket"
)
"""Errors of a machine, an installation or a peer, by whatever exception they come up."""


def _is_its_own(event: Event) -> bool:
    """Whether an exception shows a fault of the program; a rank that waits in vain is not at fault."""
    waits = event["type"].lower().endswith(("timeout", "timeouterror")) or forms.WAITED_IN_VAIN.search(
        event["text"]
    )
    return not (waits or _OF_THE_HOST.search(event["text"]))


def _is_of_the_program(log: LogEvidence, event: Event) -> bool:
    """Whether an exception is neither a wrapper, nor a warning, nor the consequence of another's end."""
    empty_file = event["type"] == "EOFError" and event["text"]  # a closed pipe has no message
    # Python prints no colon without a message: this one of torch's spawn begins on the next line.
    if event["type"] == "Exception" and not event["text"]:
        return False
    if (forms.WRAPPERS.search(event["type"]) and not empty_file) or _HARMLESS.search(event.text):
        return False
    if event["type"] == "KeyError" and "logging/__init__.py" in event["frame"]:
        return False  # a level that logging has not seen, which it handles
    if event["thread"] and actor_of(event.text) and _INSTALLED.search(event["frame"]):
        return False  # of one of Ray's own actors, no rank
    stopped = log.outcome.interrupted.get((event.file, event.label), event.line)
    if event["type"].lower().endswith("warning") or stopped < event.line:
        return False
    return not (_tags_with(log, event) & OF_ROLE["consequence"]) and event not in refused_semaphores(log)


@cause("terminal-closed", overcome=None)
def terminal_closed(log: LogEvidence) -> Found:
    """
    The launcher got SIGHUP: its terminal or ssh session ended.

    Why: a process of an interactive login is ended with it.
    Fix: use tmux, `setsid`, `systemd-run`, `sbatch`, or `ringup run --detach`.
    In logs: `Received 1 death signal`, `closing signal SIGHUP`.
    """
    events = log.all("sighup") + [e for number, e in exits(log) if number == 1]
    failed = log.outcome.failed
    if failed:  # a shell whose work has failed is hung up on later
        late = [e for e in events if " Hangup " in e.text and e.file == failed.file and e.line > failed.line]
        events = [e for e in events if e not in late]
    return report(events, "the launcher got SIGHUP: its terminal or ssh session ended")


@cause("job-cancelled", severity="warning", overcome="warning")
def job_cancelled(log: LogEvidence) -> Found:
    """
    The scheduler or a user ended the job; the program did not fail.

    Why: scancel, a time limit, preemption or Ctrl-C.
    Fix: for a time limit, checkpoints and a longer limit; otherwise nothing.
    In logs: `CANCELLED AT ... DUE TO TIME LIMIT`, `Received 15 death signal`.
    """
    why = log.outcome.limit
    of_a_node = _ended_for_a_node(log)
    if of_a_node and not all(map(log.outcome.overcome, of_a_node)):
        return None  # no person's wish
    text = f"the job was ended from outside{f' ({why})' if why else ''}"
    mild = not why or log.outcome.went_on
    return report(log.outcome.from_outside, text, severity="note" if mild else "warning", ranks=())


@cause("nfs-mount-slow")
def nfs_mount_slow(log: LogEvidence) -> Found:
    silent, blocked = log.all("server-silent"), log.all("task-blocked")
    text = f"the file server {first_value(silent, 'server')} does not answer: what reads from it waits"
    if blocked and (silent or log.has("storage-frame")):
        text = text if silent else f"{blocked[0]['task']} waits in the kernel for a network file system"
        return report([*silent, *blocked], text, "medium")
    return report(silent, text, "medium", severity=None if log.outcome.stopped else "warning")


@cause("orphan-of-earlier-run", overcome="error")
def orphan_of_earlier_run(log: LogEvidence) -> Found:
    rows, words = log.all("orphan-row"), log.all("gpu-process-left", lacks="raylet")
    if rows and log.has("ps-header"):
        pids = ", ".join(dict.fromkeys(e["pid"] for e in rows))
        return report(rows, f"processes {pids} live on with parent 1: their launcher is gone")
    if words and (log.has("eaddrinuse", "gpu-oom") or any(e["held"] for e in words)):
        return report(words, "processes of an earlier run are still there", "medium")
    beats = log.repeats["keepalive-failed"]
    text = f"an agent goes on without its rendezvous: {beats} keep-alive failures"
    return report(log.all("keepalive-failed"), text, "medium") if beats >= 8 else None
