"""Printing a plan, and `run.json`: the plan, the result, the leftovers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ringup import saved_run
from ringup.errors import RingupError, writing
from ringup.planning import Plan
from ringup.rules import PROBLEMS, Finding, complete
from ringup.runtime import LAUNCHER, Failure, Options, Outcome, RankEnd, RunResult, blame
from ringup.runtime.blame import TRACEBACK, End
from ringup.runtime.node_state import NodeRun
from ringup.runtime.output import Output, end_words, file_name
from ringup.safe_files import replacing
from ringup.secrets import HIDDEN, holds_secret, redact, redact_data, redact_env, redact_words, safe
from ringup.units import printable, show_ranks, show_seconds, summarize_names, word
from ringup.version import __version__

FILE = saved_run.FILE
LONGEST_SHOWN = 2000
PROGRESS_S = 1.0
SAME_MOMENT_S = 0.5


def plan_json(plan: Plan) -> dict[str, Any]:
    job = dataclasses.replace(
        plan.job,
        env=redact_env(plan.job.env),
        setup=redact(plan.job.setup),
        arguments=redact_words(plan.job.arguments),
        launcher_arguments=redact_words(plan.job.launcher_arguments),
    )
    nodes = [
        dataclasses.replace(
            n,
            env=redact_env(n.env),
            preset=redact_env(n.preset),
            setup=redact(n.setup),
            words=redact_words(n.words),
        )
        for n in plan.nodes
    ]
    env = [dataclasses.replace(v, value=HIDDEN) if holds_secret(v.name, v.value) else v for v in plan.env]
    whole = dataclasses.replace(plan, job=job, nodes=tuple(nodes), env=tuple(env), files={})
    plain: dict[str, Any] = msgspec.to_builtins(whole)
    if math.isinf(plan.job.time_left_s):  # JSON has no infinity
        del plain["job"]["time_left_s"]
    return plain


def plan_text(plan: Plan, export: str = "") -> str:
    """
    Each node's part in shell syntax (for reading only): secrets hidden, values quoted and printable.

    `export`: a further line with variables.
    """
    parts = []
    for node in plan.nodes:
        reasons = {**node.reasons, **{v.name: v.because for v in plan.env}}
        lines = [f"# {printable(node.node)}: node {node.rank}"]
        if node.chdir:
            lines.append(f"cd {_word(node.chdir)}")
        lines += [f"unset {_word(variable)}" for variable in node.unset]
        for variable, value in node.env.items():
            quoted = word(value) if value.isprintable() else _word(value)
            shown = HIDDEN if holds_secret(variable, value) else quoted
            because = f"  # {printable(reasons[variable])}" if variable in reasons else ""
            lines.append(f"export {variable}={shown}{because}")
        lines += [export] * bool(export)
        if node.setup:
            lines.append(safe(node.setup, LONGEST_SHOWN))
        lines.append("exec " + " ".join(_word(one) for one in redact_words(node.words)))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _word(text: str) -> str:
    """
    Quoted for a shell, and safe for a terminal: text with control characters becomes $'...'.

    >>> _word("a b"), _word("a\\nb")
    ("'a b'", "$'a\\\\nb'")
    """
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped, LONGEST_SHOWN)}'"


def verdict_json(outcome: str, hangs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The cause of a hang that ended a run: the rule of `ringup logs`, ranks, nodes and evidence."""
    stalled = [hang for hang in hangs if hang["verdict"] == "stalled"]
    if outcome != "hung" or not stalled:
        return None
    last = stalled[-1]
    who = [one for one in last["missing"] or last.get("apart", ()) if one["rank"] is not None]
    return {
        "rule": last.get("rule", ""),
        "text": last["headline"],
        "ranks": [one["rank"] for one in who],
        "nodes": list(dict.fromkeys(one["node"] for one in who)),
        "evidence": last["lines"],
    }


def run_json(
    run_id: str, *, outcome: str, exit_code: int | None, started: float, **known: Any
) -> dict[str, Any]:
    """The object, `exit_code` None while it runs; `known`: fields of a run whose ranks were never seen."""
    content = {
        "ringup": __version__,
        "schema": 1,
        "run": run_id,
        "outcome": outcome,
        "exit_code": exit_code,
        "started": started,
        "seconds": 0.0,
        "detached": False,
        "plan": None,
        "findings": [],
        "ranks": [],
        "first_failure": None,
        "cleanup": [],
        "hangs": [],
        "verdict": verdict_json(outcome, known.get("hangs", ())),
        "transports": {},
        "save": None,
        "attempts": [],
        "restart": None,
        "scheduler_restarts": scheduler_restarts(os.environ),
        "notes": [],
    }
    shown: dict[str, Any] = redact_data({**content, **msgspec.to_builtins(known)})
    return shown


def scheduler_restarts(environ: Mapping[str, str]) -> int | None:
    """
    Number of restarts of this job by Slurm or JobSet; None if unknown.

    Slurm sets its variable from the first restart on (sbatch(1)).

    >>> scheduler_restarts({"SLURM_JOB_ID": "7"}), scheduler_restarts({"SLURM_RESTART_COUNT": "2"})
    (0, 2)
    """
    text = environ.get("SLURM_RESTART_COUNT") or environ.get("JOBSET_RESTART_ATTEMPT") or ""
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return 0 if environ.get("SLURM_JOB_ID") else None


def write(log_dir: Path, content: Mapping[str, Any]) -> None:
    replace_file(log_dir / FILE, json.dumps(content, indent=1) + "\n")


def replace_file(path: Path, text: str, mode: int = 0o666) -> None:
    """Readers see the old or the new text, never a part; the umask applies to `mode`.  Raises OSError."""
    with replacing(path, mode) as fresh:  # JSON escapes bytes that are not text (names of nodes, files)
        fresh.write_text(text, encoding="ascii")


def short(end: End) -> str:
    if end.kind == "node":
        return f"{printable(end.node)}: {end.words}"
    if end.words:
        return f"the {end.kind} on {printable(end.node)}: {end.words}"
    who = f"rank {end.rank}" if end.kind == "rank" else f"the {end.kind}"
    how = end_words(end.own_code or 0)
    if end.own_code == -signal.SIGTERM and 0 < end.told_s <= end.at_s:
        how = "ended by ringup with SIGTERM (15)"
    if end.raised:
        how = f"{printable(end.raised)} ({how})"
    elif end.torn_down:
        how = "killed by SIGABRT (6): a native thread still ran when it was torn down, often at the very end"
    elif end.failed_s < end.told_s <= end.at_s:
        how = f"a traceback; it went on until ringup ended it ({end_words(end.code or 0).partition(':')[0]})"
    return f"{who} on {printable(end.node)}: {how}"


class RunRecord:
    def __init__(self, options: Options, *, is_attached: bool) -> None:
        """`is_attached`: run.json is not changed until more is known about the run."""
        self.plan, self.log_dir, self.detached = options.plan, options.log_dir, options.detach
        self.findings = [*options.findings]
        self._on_record = options.on_record
        self.started = time.time()
        self.started_s = time.monotonic()
        self.ended_s = 0.0
        """On the clock of `started_s` (a detached run's: the head's); 0: now, on this machine's clock."""
        self.hung = False
        self.hung_then = False
        """Whether it made no progress when it was interrupted."""
        self.joined_s = self.stopping_s = 0.0
        """When the last rank had started, and the first request to end the run; monotonic, 0 for never."""
        self.save: dict[str, Any] | None = None
        """How the ranks saved their state before an end from outside."""
        self.hangs: list[dict[str, object]] = []
        self.transports: Callable[[], dict[str, object]] = dict
        """The transports that were expected, and NCCL's own lines about them."""
        self._next_s = 0.0
        self._is_final = False
        """Whether run.json has the end: later writes of earlier states are dropped."""
        self._known = (0, 0, 0)
        with writing(self.log_dir, "name another directory with --log-dir"):
            self.log_dir.mkdir(parents=True, exist_ok=True)
            if not is_attached:
                self._write(self._content("running", None))

    def seconds(self) -> float:
        return (self.ended_s or time.monotonic()) - self.started_s

    def _content(self, outcome: str, exit_code: int | None, **known: object) -> dict[str, object]:
        if outcome in ("interrupted", "not-saved") and self.hung_then:
            known["verdict"] = verdict_json("hung", self.hangs)
        return run_json(
            self.plan.run_id,
            outcome=outcome,
            exit_code=exit_code,
            started=self.started,
            seconds=round(self.seconds(), 3),
            detached=self.detached,
            plan=plan_json(self.plan),
            findings=self.findings,
            hangs=self.hangs,
            save=self.save,
            transports=self.transports(),
            **known,
        )

    def _write(self, content: Mapping[str, Any]) -> None:
        write(self.log_dir, content)
        self._on_record(content)

    def note_progress(self, nodes: Sequence[NodeRun], output: Output) -> None:
        """Write run.json again after ranks have started or ended, at most once a second."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PROGRESS_S
        ranks = _ranks(nodes)
        known = (len(ranks), sum(r.code is not None for r in ranks), len(self.hangs))
        if known != self._known:
            self._known = known
            content = self._content("running", None, ranks=ranks)
            output.later(lambda: None if self._is_final else self._write(content))

    def broke_off(self, error: BaseException, nodes: Sequence[NodeRun]) -> None:
        """Record that ringup itself has failed; never raises."""
        self._is_final = True
        if isinstance(error, RingupError):
            exit_code, words = error.exit_code, str(error)
        elif isinstance(error, KeyboardInterrupt):
            exit_code, words = 130, "interrupted"
        else:
            exit_code, words = 70, f"a bug in ringup: {type(error).__name__}: {error}"
        outcome = "interrupted" if exit_code == 130 else "launcher-error"
        notes = [printable(words, 1000)]
        with contextlib.suppress(OSError):
            try:
                content = self._content(outcome, exit_code, ranks=_ranks(nodes), notes=notes)
            except Exception:  # this may be the bug itself
                content = run_json(
                    self.plan.run_id, outcome=outcome, exit_code=exit_code, started=self.started, notes=notes
                )
            self._write(content)

    def result(
        self,
        nodes: Sequence[NodeRun],
        output: Output,
        cleanup: list[Finding],
        *,
        interrupted: int = 0,
        running: int | None = None,
    ) -> RunResult:
        """Write the end to run.json; exit codes: `interrupted` by the user, `running` if it continues."""
        for node in nodes:
            if node.errors:
                output.to_file(f"node{node.plan.rank}-guard.log", node.errors)
        outcome, exit_code, failure = self._outcome(nodes, interrupted, running)
        notes = [note for node in nodes for note in node.notes]
        words = "messages of its guard: malformed, or too many"
        notes += [f"{printable(n.name)}: ignored {n.refused} {words}" for n in nodes if n.refused]
        apart = never_formed(nodes)
        self.findings += apart
        output.close()
        notes += [output.problem] if output.problem else []
        ranks = _ranks(nodes)
        code = None if outcome == "running" else exit_code
        known = {"ranks": ranks, "first_failure": failure, "cleanup": cleanup, "notes": notes}
        content = self._content(outcome, code, **known)
        self._is_final = True
        try:
            self._write(content)
        except OSError as error:  # the command shows how the run ended anyway
            notes.append(f"{self.log_dir}/{FILE} has no outcome: it cannot be written: {error.strerror}")
            content["notes"] = list(notes)
        # Times from a head node are not on our clock.
        heard_s = (time.monotonic() if self.ended_s else node.heard_s for node in nodes if node.lost)
        return RunResult(
            self.plan.run_id,
            outcome,
            exit_code,
            failure,
            tuple(ranks),
            (*apart, *cleanup),
            tuple(notes),
            str(self.log_dir),
            self.seconds(),
            content,
            output.problem,
            tuple(node.name for node in nodes if node.lost),
            max(heard_s, default=0.0),
            self._phases(nodes, failure),
        )

    def _phases(self, nodes: Sequence[NodeRun], failure: Failure | None) -> dict[str, float]:
        if self.ended_s:  # the clock is that of a detached run's head
            end_s = self.ended_s - self.started_s - failure.at_s if failure else 0.0
            return {"end": round(max(0.0, end_s), 3)}
        now = time.monotonic()
        noticed_s = self.stopping_s or now
        ended_s = [node.heard_s for node in nodes if node.lost]
        ended_s += [self.started_s + failure.at_s] if failure else []
        phases = {"notice": noticed_s - min(ended_s, default=noticed_s), "end": now - noticed_s}
        if self.joined_s:
            phases["start"] = self.joined_s - self.started_s
        return {name: round(max(0.0, seconds), 3) for name, seconds in phases.items()}

    def _outcome(
        self, nodes: Sequence[NodeRun], interrupted: int, running: int | None
    ) -> tuple[Outcome, int, Failure | None]:
        if running is not None:
            return "running", running, None
        if interrupted and not self.save:
            return "interrupted", interrupted, None
        if self.hung:
            return "hung", 124, None
        found = None
        if ends := [end for node in nodes for end in node.ends]:
            from ringup.logs.blame import is_consequence  # importing its table of patterns is slow

            found = blame.first(ends, is_consequence)
        if self.save:
            saved: Outcome = self.save["result"]
            failure = self._failure(*found, nodes) if found and saved == "not-saved" else None
            return saved, interrupted, failure
        if not found:
            return "ok", 0, None
        end = found[0]
        code = end.own_code or 4
        outcome: Outcome = "rank-failed" if end.kind in ("rank", "job") else "launcher-error"
        # Signals as exit codes, as in a shell.
        return outcome, code if code > 0 else 128 - code, self._failure(*found, nodes)

    def _failure(self, end: End, is_consequence: bool, nodes: Sequence[NodeRun]) -> Failure:
        node = next(n for n in nodes if n.name == end.node)
        what = short(end)
        if end.kind == "launcher" and not end.words:
            what += ", before any of its ranks had failed"
        # Nodes' clocks may be wrong, and nodes may lie: no failure is before the start or after the end.
        at_s = min(max(end.failed_s - self.started_s, 0.0), self.seconds())
        file = self.log_dir / file_name(node.plan, end.rank if end.rank is not None else LAUNCHER)
        lines = end.lines
        begin = next((i for i in range(len(lines))[-60:] if TRACEBACK in lines[i]), len(lines) - 25)
        return Failure(
            node=end.node,
            rank=end.rank,
            code=end.code,
            what=what,
            at_s=at_s,
            wall_time=self.started + at_s,
            lines=lines[max(0, begin) :],
            file=str(file) if end.kind != "node" and file.exists() else "",
            is_consequence=is_consequence,
            left_before=tuple(_left_before(nodes, end)) if is_consequence else (),
        )


def _left_before(nodes: Sequence[NodeRun], end: End) -> Iterator[str]:
    """
    Ranks that had exited with code 0 when another failed because a peer was gone; the last one first.

    Peers see a process's connections close some milliseconds before its parent sees its end, on a busy
    machine seconds.  A node whose address is in the error counts at any time.
    """
    text, failed_s = "\n".join(end.lines), end.failed_s
    gone = [(at_s, node, node.ranks[pid]) for node in nodes for pid, at_s in node.done_s.items()]
    for at_s, node, rank in sorted(gone, key=lambda one: -one[0])[:8]:
        is_named = f"[{node.plan.address}]" in text or f" {node.plan.address}<" in text
        if at_s < max(failed_s + SAME_MOMENT_S, end.at_s) or is_named:
            ago = f"{show_seconds(failed_s - at_s)} before" if at_s < failed_s else "at the same moment"
            yield f"rank {rank.rank} on {printable(rank.node)}, {ago}"


def _ranks(nodes: Sequence[NodeRun]) -> list[RankEnd]:
    ranks = [rank for node in nodes for rank in node.ranks.values()]
    return sorted(ranks, key=lambda rank: (rank.rank, rank.node, rank.pid))


def never_formed(nodes: Sequence[NodeRun]) -> list[Finding]:
    """
    A world that never formed: a finding if the sockets of several ranks show that they never connected.

    There is no finding unless every rank of every node was seen, and each either counted only itself in its
    world, or had a process group but no connection to the others.
    """
    count = sum(node.plan.nproc for node in nodes)
    ranks = [(node.name, one) for node in nodes if node.world for one in node.world.ranks]
    if count < 2 or not all(_is_complete(node) for node in nodes):
        return []
    if all(one.world_size == 1 for _, one in ranks):
        shown = summarize_names(f"rank {one.rank} on {printable(name, 64)}" for name, one in ranks)
        found = f"each of the {count} ranks counted one process in its world: {shown}"
    else:
        groups = sorted(_groups(nodes), key=lambda group: (group[0][1], group[0][0]))
        if len(groups) < 2 or not all(0 <= one.world_size < count and one.has_group for _, one in ranks):
            return []
        shown = summarize_names(map(_group_words, groups))
        found = f"no connection was seen between {len(groups)} parts of the run: {shown}"
    finding = Finding("the run", found, f"one world of {count} ranks")
    return [complete(finding, PROBLEMS["world-never-formed"])]


def _is_complete(node: NodeRun) -> bool:
    """Whether each of its ranks was seen, or all of them as one."""
    if node.world is None:
        return False
    numbers = [one.rank for one in node.world.ranks]
    return numbers == [-1] or (len(set(numbers)) == len(numbers) == node.plan.nproc and -1 not in numbers)


def _groups(nodes: Sequence[NodeRun]) -> Iterator[list[tuple[str, int]]]:
    """Ranks connected, directly or through others, as (node, rank); those of a node are one group."""
    group = {node.name: {node.name} for node in nodes}
    machine = {node.name: set(node.world.addresses) for node in nodes if node.world}
    own = {node.name: {node.plan.address} | machine[node.name] for node in nodes}
    joined: dict[str, list[int]] = {node.name: [] for node in nodes}
    for node in nodes:
        for one in node.world.ranks if node.world else ():
            addresses = set(one.remote) - own[node.name]
            peers = {name for name in own if addresses & own[name]}
            if one.is_joined:  # simulated nodes on one machine have all of its addresses
                peers |= {name for name in machine if machine[name] == machine[node.name]}
            if not peers:
                yield [(node.name, one.rank)]
                continue
            joined[node.name].append(one.rank)
            both = set().union(group[node.name], *(group[name] for name in peers))
            for name in both:
                group[name] = both
    for names in {frozenset(names) for names in group.values()}:
        found = [(node.name, rank) for node in nodes if node.name in names for rank in joined[node.name]]
        if found:
            yield found


def _group_words(group: Sequence[tuple[str, int]]) -> str:
    names = summarize_names(printable(name, 64) for name, _ in group)
    ranks = [rank for _, rank in group]
    return f"{names} (all of its ranks)" if -1 in ranks else f"{show_ranks(ranks)} on {names}"
