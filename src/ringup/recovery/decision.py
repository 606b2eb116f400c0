"""Decides after a failed attempt, as a pure function: user, re-check, table, limits, in this order."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from ringup.recovery import table
from ringup.rules import Confidence
from ringup.units import plural, printable, show_ranks, summarize_names

Action = Literal["stop", "same", "exclude", "shrink"]
Stopped = Literal["", "will-fail-again", "no-progress", "limit", "no-nodes", "user"]
"""Why there is no further attempt; "" if there is one."""
LONGEST_WAIT_S = 300.0
LONG_S = 600.0
"""An attempt of unknown progress that ran this many seconds counts as training."""
SAME_STEP = 0.01
"""Steps that differ by at most this share count as equal: most scripts print every 10th or 100th step."""
MOST_UNSAVED = 10
"""Times --max-restarts: most restarts in total while no checkpoint advances."""
DO_NOT_REQUEUE, MAY_REQUEUE = 93, 75
"""Exit codes for a scheduler (docs/reference/exit-codes.md)."""
_FOR_SCHEDULERS = {"will-fail-again": DO_NOT_REQUEUE, "no-progress": DO_NOT_REQUEUE, "no-nodes": MAY_REQUEUE}
USAGE_CODE = 2
"""argparse's exit code for invalid arguments."""
LONGEST_DETAIL = 4096
ONLY_THERE = "no rank of another node raised it: that node's software differs"


@dataclass(frozen=True)
class FailureCause:
    """The root cause of a failed attempt: the first one of `ringup logs`, else the run's own verdict."""

    rule: str = ""
    """A cause of the catalogue; "" if none was found."""
    confidence: Confidence = "low"
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    detail: str = ""
    """Separates crashes of one rule: "ValueError: bad batch", "Xid 79"."""
    only_there: bool = False
    """The failure is in one node's software (a module, a library), and no other node had it."""


@dataclass(frozen=True)
class EndedAttempt:
    nodes: tuple[str, ...]
    """In the order of their node ranks."""
    cause: FailureCause
    seconds: float
    exit_code: int | None = None
    """The exit code of `ringup run`."""
    saved_from: float | None = None
    """Progress at its start from the best source, e.g. a checkpoint's step; None if unknown."""
    saved_to: float | None = None
    """The same at its end."""
    step: float | None = None
    """The last step in its output; None without one."""
    first_step_s: float | None = None
    """Seconds from its start to its first step."""
    is_hung: bool = False


@dataclass(frozen=True)
class Recheck:
    """The check between two attempts, of the failed attempt's nodes and the spares."""

    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node -> rules of severity error that did not apply to it before the first attempt."""
    unreachable: frozenset[str] = frozenset()
    unclean: frozenset[str] = frozenset()
    """Nodes that could not prove that the failed attempt left nothing."""
    rebooted: frozenset[str] = frozenset()
    """Nodes with another boot id than at the start."""
    warnings: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Node -> rules of severity warning that did not apply to it before the first attempt."""

    @property
    def explaining(self) -> dict[str, str]:
        """Nodes with a fault that may have ended the attempt, and the fault."""
        found = dict.fromkeys(sorted(self.rebooted), "rebooted")
        found |= {node: summarize_names(rules, 2) for node, rules in self.findings.items() if rules}
        return found | dict.fromkeys(sorted(self.unreachable), "unreachable")

    @property
    def unusable(self) -> dict[str, str]:
        return dict.fromkeys(sorted(self.unclean), "processes left of this run") | self.explaining


@dataclass(frozen=True)
class Policy:
    """The user's settings: `--max-restarts`, `--min-nodes`, `--restart-on`, `--no-restart-on`."""

    max_restarts: int = 0
    """Restarts in a row without progress."""
    min_nodes: int = 0
    """0 for the number at the start."""
    restart_on: frozenset[int | str] = frozenset()
    """Exit codes and names of causes."""
    no_restart_on: frozenset[int | str] = frozenset()


@dataclass(frozen=True)
class Decision:
    action: Action
    because: str
    """A sentence without its full stop."""
    nodes: tuple[str, ...] = ()
    """Of the next attempt, in the order of their node ranks; () for "stop"."""
    excluded: tuple[str, ...] = ()
    """Nodes of the failed attempt that the next one does not use."""
    wait_s: float = 0.0
    stopped: Stopped = ""
    restarts_left: int = 0
    """Of `max_restarts`, after the next attempt's start."""

    @property
    def scheduler_code(self) -> int | None:
        """Exit code for a batch job or pod; None for the attempt's own code (docs/how/restarts.md)."""
        return _FOR_SCHEDULERS.get(self.stopped)


def decide(
    attempts: Sequence[EndedAttempt],
    recheck: Recheck,
    spares: Sequence[str],
    policy: Policy,
    random: Callable[[], float],
) -> Decision:
    """The decision after the last of `attempts`; `spares` in the user's order; `random`: `random.random`."""
    history = _History(attempts)
    used, unusable = history.restarts_used, recheck.unusable
    left = max(0, policy.max_restarts - used)
    judgement = _judged(history, recheck, policy)
    if judgement.stopped:
        return Decision("stop", judgement.because, stopped=judgement.stopped, restarts_left=left)
    excluded = {**judgement.excluded, **unusable}
    fresh = [s for s in dict.fromkeys(spares) if s not in history.seen and s not in unusable]
    plan = _with_spares(history.last.nodes, {**judgement.suspected, **excluded}, fresh, policy.min_nodes)
    if plan.stopped:  # a mere suspicion does not justify a stop
        plan = _with_spares(history.last.nodes, excluded, fresh, policy.min_nodes)
    because = f"{plan.because}: {judgement.because}" if judgement.because else plan.because
    if plan.stopped:
        return replace(plan, because=because, restarts_left=left)
    if not policy.max_restarts:
        return Decision("stop", f"--max-restarts is 0; a restart may help, {because}", stopped="limit")
    if used >= policy.max_restarts:
        because = f"{plural(used, 'restart')} in a row without progress, --max-restarts "
        return Decision("stop", f"{because}{policy.max_restarts} allows no more", stopped="limit")
    if (count := history.restarts_since_saved) >= MOST_UNSAVED * policy.max_restarts:
        because = f"{plural(count, 'restart')}, and no checkpoint is seen to advance"
        return Decision("stop", because, stopped="limit")
    wait_s = 0.0 if plan.excluded else backoff_s(used + judgement.is_shared, random)
    return replace(plan, because=because, wait_s=wait_s, restarts_left=left - 1)


def backoff_s(failures: int, random: Callable[[], float]) -> float:
    """
    Seconds to wait after this many restarts without progress: at most 1, 10, 20, 40, ... 300.

    Full jitter, from 0 to that: runs that fail together must not all restart together.

    >>> [backoff_s(failures, lambda: 1.0) for failures in (0, 1, 2, 9)]
    [1.0, 10.0, 20.0, 300.0]
    """
    return random() * (min(LONGEST_WAIT_S, 10.0 * 2 ** min(failures - 1, 10)) if failures else 1.0)


# -- the attempts so far -------------------------------------------------------------------------


class _History:
    """The attempts of a run, and what each added to the progress."""

    def __init__(self, attempts: Sequence[EndedAttempt]) -> None:
        self.attempts, self.last = attempts, attempts[-1]
        self.seen = {node for one in attempts for node in one.nodes}
        self.advanced: list[bool] = []
        """Whether each attempt made progress: saved progress, else steps, else time."""
        saved_at, saved, best, step = 0, -math.inf, -math.inf, -math.inf
        for number, one in enumerate(attempts):
            saved = max(saved, -math.inf if one.saved_from is None else one.saved_from)
            if one.saved_to is not None:
                # Another directory's steps are not comparable; its first value only counts if it is the best.
                is_on = one.saved_to > (best if one.saved_from is None else saved)
                saved = one.saved_to if one.saved_from is None else max(saved, one.saved_to)
                saved_at, best = number if is_on else saved_at, max(best, one.saved_to)
            elif one.step is not None:
                is_on = one.step > step
            else:
                is_long = one.seconds >= max(LONG_S, 3 * (one.first_step_s or 0.0))
                is_other = number == 0 or not _alike(attempts[number - 1].cause, one.cause)
                is_on = is_long and is_other and not one.is_hung
            step = max(step, -math.inf if one.step is None else one.step)
            self.advanced.append(is_on)
        latest = max((n for n, is_on in enumerate(self.advanced) if is_on), default=0)
        self.restarts_used = len(attempts) - 1 - latest
        """Restarts in a row without progress."""
        self.restarts_since_saved = len(attempts) - 1 - saved_at
        self.since = attempts[latest:-1]
        """The attempt that last made progress, and later ones, without the last attempt."""
        self.blamed_before = {node for one in attempts[:-1] for node in _suspects(one.cause)}
        """Nodes whose fault may have ended an earlier attempt."""
        self.blamed_since = {node for one in self.since for node in _suspects(one.cause)}
        """The same, without progress since."""

    @property
    def has_worked(self) -> bool:
        return any(self.advanced) or any(one.step is not None for one in self.attempts)

    @property
    def same_nodes(self) -> int:
        """Attempts without progress up to the last one, all on the last one's nodes."""
        latest = zip(reversed(self.attempts), reversed(self.advanced), strict=True)
        return len([*takewhile(lambda one: one[0].nodes == self.last.nodes and not one[1], latest)])

    @property
    def twin(self) -> int:
        """The number (from 1) of an earlier attempt with the same crash at the same step, 0 for none."""
        tolerance = 0.0 if self.advanced[-1] else SAME_STEP
        for number, one in enumerate(self.attempts[:-1], 1):
            if one.step is None or self.last.step is None or not _alike(one.cause, self.last.cause):
                continue
            if abs(one.step - self.last.step) <= tolerance * max(abs(one.step), abs(self.last.step)):
                return number
        return 0

    @property
    def is_confirmed(self) -> bool:
        """
        Whether the last attempt failed like an earlier one, without progress since.

        The same cause is enough, on any rank: it may be chance which rank prints it first.  Only for an
        exception of the script must the rank or the text also be the same.
        """
        cause = self.last.cause
        is_enough = cause.rule not in ("", "rank-raised-exception") and cause.confidence != "low"
        same = [one.cause for one in self.since if one.cause.rule == cause.rule]
        return not self.advanced[-1] and any(is_enough or _alike(one, cause) for one in same)


def _suspects(cause: FailureCause) -> tuple[str, ...]:
    """The nodes that a cause suspects; an exception of the script does not suspect its node."""
    is_sign = table.ROWS.get(cause.rule, table.UNKNOWN).kind in ("exclude", "repeat", "setup")
    is_local = cause.only_there or table.LOCAL_DISK.search(cause.detail[:LONGEST_DETAIL])
    return cause.nodes if is_sign or is_local else ()


def _alike(one: FailureCause, other: FailureCause) -> bool:
    """Whether two failures have the same cause, on the same rank or with the same text."""
    if not one.rule or (one.rule, one.detail) != (other.rule, other.detail):
        return False
    if one.detail:
        return True
    if one.ranks or other.ranks:
        return bool(set(one.ranks) & set(other.ranks))
    return bool(set(one.nodes) & set(other.nodes))


# -- the cause -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judgement:
    """The action for a cause: stop, or continue without some nodes."""

    because: str
    stopped: Stopped = ""
    excluded: Mapping[str, str] = field(default_factory=dict)
    suspected: Mapping[str, str] = field(default_factory=dict)
    """Not used if other nodes can replace them."""
    is_shared: bool = False
    """Other runs wait for the same service (storage, a hub)."""


def _judged(history: _History, recheck: Recheck, policy: Policy) -> _Judgement:
    """By the user's setting, the re-check, the same crash twice, the table, in this order."""
    last, cause = history.last, history.last.cause
    words = {last.exit_code, cause.rule} - {None, ""}
    if given := sorted(map(str, words & policy.no_restart_on)):
        return _Judgement(f"--no-restart-on {given[0]}", "will-fail-again")
    if given := sorted(map(str, words & policy.restart_on)):
        return _Judgement(f"--restart-on {given[0]}")
    row = table.ROWS.get(cause.rule, table.UNKNOWN)
    if row.kind == "user":
        return _Judgement(f"{_who(cause)}; {row.why}", "user")
    judgement = _by_table(history, row, recheck)
    faults = recheck.explaining.keys() & set(last.nodes)
    is_certain = bool(judgement.stopped) and cause.confidence == "high"
    if faults & set(cause.nodes) or (faults and not is_certain):
        return replace(judgement, because=f"{_who(cause)}; the check before the restart fails", stopped="")
    if twin := history.twin:
        alike = f"attempts {twin} and {len(history.attempts)} ended alike at step {last.step:g}"
        return _Judgement(f"{alike} ({_who(cause)}): it would fail again", "will-fail-again")
    if judgement.stopped or judgement.excluded:
        return judgement
    tries = table.STORAGE_TRIES if judgement.is_shared else row.tries
    if history.same_nodes > tries:
        without = f"{history.same_nodes} attempts in a row without progress on the same nodes"
        return _Judgement(f"{without}, the last by {_who(cause)}", "no-progress")
    return judgement


def _by_table(history: _History, row: table.Row, recheck: Recheck) -> _Judgement:
    last, cause = history.last, history.last.cause
    kind, is_shared = _kind(history, row)
    why = ONLY_THERE if kind == "exclude" and cause.only_there else row.why
    reason = f"{_who(cause)}; {why}"
    again = _Judgement(reason, is_shared=is_shared)
    if kind == "stop" and cause.confidence == "high":
        return _Judgement(reason, "will-fail-again")
    if kind in ("stop", "confirm"):
        if history.is_confirmed:
            return _Judgement(f"{_who(cause)} again without progress", "will-fail-again")
        return again
    blamed = [node for node in last.nodes if node in cause.nodes]
    if kind in ("exclude", "repeat"):
        signs = {node: table.SIGNS.intersection(recheck.warnings.get(node, ())) for node in blamed}
        suspected = {n: f"{cause.rule}, {summarize_names(sorted(s), 2)}" for n, s in signs.items() if s}
        again = replace(again, suspected=suspected)
    if kind == "exclude":
        sure = [n for n in blamed if cause.confidence != "low" or n in history.blamed_before]
        return replace(again, excluded=dict.fromkeys(sure, cause.rule)) if sure else again
    if kind == "repeat":
        twice = [n for n in blamed if n in history.blamed_since and not history.advanced[-1]]
        is_few = len(last.nodes) == 1 or 2 * len(twice) <= len(last.nodes)
        return replace(again, excluded=dict.fromkeys(twice, f"{cause.rule} twice")) if is_few else again
    if kind == "setup":
        joined = set(blamed) - set(history.attempts[0].nodes) if history.has_worked else set()
        is_few = 0 < 2 * len(blamed) < len(last.nodes) or bool(blamed and joined == set(blamed))
        if is_few and cause.confidence != "low":
            return replace(again, excluded=dict.fromkeys(blamed, cause.rule))
        if history.is_confirmed or not (history.has_worked or cause.confidence == "low"):
            return _Judgement(reason, "will-fail-again")
    return again


def _kind(history: _History, row: table.Row) -> tuple[table.Kind, bool]:
    """The kind of the row for this failure; and whether other runs wait for the same service."""
    last, cause = history.last, history.last.cause
    if cause.rule == "gpu-out-of-memory" and not history.has_worked:
        return "stop", False
    if cause.rule == "xid-in-kernel-log":
        codes = set(map(int, re.findall(r"\bXid (\d{1,3})\b", cause.detail)))
        is_hardware = "fatal" in cause.detail or codes & table.HARDWARE_XIDS
        return ("exclude" if is_hardware else row.kind), False
    if cause.rule == "disk-full" and table.LOCAL_DISK.search(cause.detail[:LONGEST_DETAIL]):
        return ("repeat" if set(cause.nodes) < set(last.nodes) else row.kind), False
    if cause.rule != "rank-raised-exception":
        return row.kind, False
    if table.TRANSIENT.search(cause.detail[:LONGEST_DETAIL]):
        return "same", True
    if cause.only_there and set(cause.nodes) < set(last.nodes) and not history.is_confirmed:
        return "exclude", False
    name = cause.detail.partition(":")[0].rpartition(".")[2]
    is_wrong = name in table.WRONG_CODE or last.exit_code == USAGE_CODE
    return ("stop" if is_wrong and not history.has_worked else row.kind), False


def _who(cause: FailureCause) -> str:
    """The cause and its place: "rank-killed on node1 (rank 3)"."""
    nodes = f" on {summarize_names(cause.nodes, 3)}" if cause.nodes else ""
    ranks = f" ({show_ranks(cause.ranks, 3)})" if cause.ranks else ""
    detail = f": {printable(cause.detail, 120)}" if cause.detail else ""
    return f"{cause.rule or 'no cause found'}{nodes}{ranks}{detail}"


# -- the nodes -----------------------------------------------------------------------------------


def _with_spares(
    nodes: Sequence[str], excluded: Mapping[str, str], spares: Sequence[str], min_nodes: int
) -> Decision:
    """The next attempt's nodes: a spare replaces each excluded one; fewer nodes if that is allowed."""
    out = [node for node in nodes if node in excluded]
    taken = dict(zip(out, spares, strict=False))
    following = tuple(taken.get(node, node) for node in nodes if node in taken or node not in excluded)
    if not out:
        return Decision("same", "on the same nodes", following)
    why = summarize_names(f"{node} ({excluded[node]})" for node in out)
    if len(taken) == len(out):
        which = "spare" if len(out) == 1 else "spares"
        because = f"without {why}, with {which} {summarize_names(taken.values())}"
        return Decision("exclude", because, following, tuple(out))
    if min_nodes and len(following) >= min_nodes:
        because = f"without {why}, on {len(following)} of {plural(len(nodes), 'node')}"
        return Decision("shrink", because, following, tuple(out))
    short = f"{plural(len(following), 'node')} left of {len(nodes)}" if following else "no node is left"
    allowed = f"fewer than --min-nodes {min_nodes}" if min_nodes else "--min-nodes allows no fewer"
    return Decision("stop", f"without {why} {short}, no spare, {allowed}", stopped="no-nodes")
