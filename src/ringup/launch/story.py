"""What is written down about a run, while it goes on and at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ringup.errors import LaunchError
from ringup.launch import Failure, Outcome, RankEnd, RunResult, blame, record
from ringup.launch.blame import TRACEBACK, End
from ringup.launch.node import LAUNCHER, NodeRun
from ringup.launch.output import Output, file_name
from ringup.launch.show import end_words, shell_code
from ringup.plan import Plan
from ringup.rules import Finding
from ringup.units import printable, show_seconds

PROGRESS_S = 1.0
SAME_MOMENT_S = 0.5


def short(end: End) -> str:
    """An end in one line."""
    if end.kind == "node":
        return f"{printable(end.node)}: {end.words}"
    who = f"rank {end.rank}" if end.kind == "rank" else f"the {end.kind}"
    how = end_words(end.own_code or 0)
    if end.raised:
        how = f"{printable(end.raised)} ({how})"
    elif end.torn_down:
        how = "killed by SIGABRT (6): a native thread still ran when it was torn down, often at the very end"
    elif end.failed_s < end.told_s <= end.at_s:
        how = f"a traceback; it went on until ringup ended it ({end_words(end.code or 0).partition(':')[0]})"
    return f"{who} on {printable(end.node)}: {how}"


class Story:
    """What is written down about a run, while it goes on and at its end."""

    def __init__(
        self,
        plan: Plan,
        log_dir: Path,
        findings: list[Finding],
        is_consequence: Callable[[str], bool],
        *,
        detached: bool = False,
        is_told_again: bool = False,
    ) -> None:
        """`is_told_again`: by `attach`; what run.json says stands until more is heard of the run."""
        self.detached = detached
        self.plan, self.log_dir, self.findings = plan, log_dir, findings
        self.is_consequence = is_consequence
        self.started = time.time()
        self.started_s = time.monotonic()
        self.ended_s = 0.0
        """On the clock `started_s` is on; 0 means now, on ours."""
        self.hung = False
        """Ended because it made no progress."""
        self.hangs: list[dict[str, object]] = []
        """What was seen while it made none."""
        self.transports: Callable[[], dict[str, object]] = dict
        """What NCCL was expected to use, and what it said."""
        self._next_s = 0.0
        self._known: tuple[int, ...] = (-1, -1)
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
            if not (is_told_again and (log_dir / record.FILE).exists()):
                record.write(log_dir, self._content("running", None))
        except OSError as error:
            raise LaunchError(
                f"{log_dir} cannot be written: {error.strerror}", hint="name another directory with --log-dir"
            ) from error

    def set_clock(self, started_s: float, started: float, ended_s: float) -> None:
        """Times are those of a detached run's head node: monotonic, since the epoch, monotonic."""
        if started_s:
            self.started_s, self.started, self.ended_s = started_s, started, ended_s or started_s

    def seconds(self) -> float:
        """How long the run has taken."""
        return (self.ended_s or time.monotonic()) - self.started_s

    def _content(self, outcome: str, exit_code: int | None, **more: object) -> dict[str, object]:
        return record.run_json(
            self.plan,
            outcome=outcome,
            exit_code=exit_code,
            started=self.started,
            seconds=self.seconds(),
            findings=self.findings,
            detached=self.detached,
            hangs=self.hangs,
            transports=self.transports(),
            **more,  # type: ignore[arg-type]
        )

    def note_progress(self, nodes: Sequence[NodeRun], output: Output) -> None:
        """Write run.json again when ranks have started or ended, once a second at most."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + PROGRESS_S
        ranks = _ranks(nodes)
        known = (len(ranks), sum(r.code is not None for r in ranks), len(self.hangs))
        if known != self._known:
            self._known = known
            content = self._content("running", None, ranks=ranks)
            output.later(lambda: record.write(self.log_dir, content))

    def result(
        self,
        nodes: Sequence[NodeRun],
        output: Output,
        cleanup: list[Finding],
        *,
        interrupted: int = 0,
        running: int | None = None,
    ) -> RunResult:
        """
        The end of the story, written down.

        `interrupted` is the exit code when the user ended it, `running` when it goes on without us.
        """
        for node in nodes:
            if node.errors:
                output.to_file(f"node{node.plan.rank}-guard.log", node.errors)
        found = blame.first([end for n in nodes for end in n.ends], self.is_consequence)
        outcome: Outcome
        failure = None
        if running is not None:
            outcome, exit_code = "running", running
        elif interrupted:
            outcome, exit_code = "interrupted", interrupted
        elif self.hung:
            outcome, exit_code = "hung", 124
        elif found:
            failure = self._failure(found[0], found[1], nodes)
            outcome = "rank-failed" if found[0].kind in ("rank", "job") else "launcher-error"
            exit_code = shell_code(found[0].own_code) if found[0].own_code else 4
        else:
            outcome, exit_code = "ok", 0
        notes = [note for node in nodes for note in node.notes]
        output.close()
        if output.problem:
            notes.append(output.problem)
        ranks = tuple(sorted(_ranks(nodes), key=lambda r: (r.rank, r.node)))
        content = self._content(
            outcome, exit_code, ranks=ranks, failure=failure, cleanup=cleanup, notes=notes
        )
        try:
            record.write(self.log_dir, content)
        except OSError as error:  # how the run ended is told all the same
            notes.append(f"{self.log_dir}/{record.FILE} tells no end: it cannot be written: {error.strerror}")
            content["notes"] = list(notes)
        return RunResult(
            self.plan.run_id,
            outcome,
            exit_code,
            failure,
            ranks,
            tuple(cleanup),
            tuple(notes),
            str(self.log_dir),
            self.seconds(),
            content,
        )

    def _failure(self, end: End, is_consequence: bool, nodes: Sequence[NodeRun]) -> Failure:
        node = next(n for n in nodes if n.name == end.node)
        what = short(end)
        if end.kind == "launcher":
            what += ", before any of its ranks had failed"
        file = self.log_dir / file_name(node.plan, end.rank if end.rank is not None else LAUNCHER)
        return Failure(
            node=end.node,
            rank=end.rank,
            code=end.code,
            what=what,
            at_s=end.failed_s - self.started_s,
            wall_time=self.started + end.failed_s - self.started_s,
            lines=_last_lines(end.lines),
            file=str(file) if end.kind != "node" and file.exists() else "",
            is_consequence=is_consequence,
            left_before=tuple(_left_before(nodes, end.failed_s)) if is_consequence else (),
        )


def _left_before(nodes: Sequence[NodeRun], failed_s: float) -> Iterator[str]:
    """
    Ranks that were gone, with code 0, when another failed for the want of one; the last one first.

    Peers see a process's connections close some milliseconds before its parent sees its end.
    """
    gone = [(at_s, node.ranks[pid]) for node in nodes for pid, at_s in node.done_s.items()]
    for at_s, rank in sorted(gone, key=lambda one: -one[0])[:8]:
        if at_s < failed_s + SAME_MOMENT_S:
            ago = f"{show_seconds(failed_s - at_s)} before" if at_s < failed_s else "at the same moment"
            yield f"rank {rank.rank} on {printable(rank.node)}, {ago}"


def _ranks(nodes: Sequence[NodeRun]) -> list[RankEnd]:
    return [rank for node in nodes for rank in node.ranks.values()]


def _last_lines(lines: tuple[str, ...], most: int = 25) -> tuple[str, ...]:
    """The last traceback, or the last lines."""
    for i in range(max(0, len(lines) - 60), len(lines)):
        if TRACEBACK in lines[i]:
            return lines[i:]
    return lines[-most:]
