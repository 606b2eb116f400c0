"""`ringup test`: evaluates the ranks' reports: which ranks pass, and which rank causes a failure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from ringup.collective_tests import CorrectnessReport, RankState
from ringup.collective_tests.rank_records import Line, number, numbers, text
from ringup.logs.blame import is_consequence
from ringup.planning import Plan
from ringup.runtime import RunResult
from ringup.units import plural, printable, show_bytes, show_ranks

_PLACE = re.compile(r"\[[^\s[]{1,200}\.(?:cc|cpp|cu|h|hpp):\d+\] ?")
_ADVICE = re.compile(
    r"(?:\. )?(?:This is typically caused by|Exception raised from|For debugging consider"
    r"|Search for `\w+' in|CUDA kernel errors might be) .*"
)
_TIMED_OUT = re.compile(r"tim(?:ed|e) ?out|connectFullMesh failed", re.IGNORECASE)
"""A rank that waited in vain is not at fault; a connection of Gloo has two ends."""
_CONNECTION = "gloo/transport/"
"""Part of the source path in every connection error of Gloo, whatever the message."""
_CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
"""Signals that no launcher uses to end a rank."""

_OUTCOMES = {"error", "refused", "missing", "result"}
SILENT = "stopped responding: the others waited for it"

Records = Mapping[int, Sequence[Line]]


class RankEvidence:
    def __init__(self, records: Records, result: RunResult) -> None:
        self.kinds = {rank: {line["kind"]: line for line in lines} for rank, lines in records.items()}
        self.result = result
        lines = [line for lines in records.values() for line in lines]
        waits = [line for line in lines if line["kind"] == "missing"]
        self.missing = {int(rank) for line in waits for rank in numbers(line, "ranks")}
        self.waited_s = max((number(line, "waited_s") for line in waits), default=0.0)
        searched = [line for line in lines if line["kind"] == "suspects"]
        self.suspects = {int(rank) for line in searched for rank in numbers(line, "ranks")}
        self.searches = [text(line, "error") for line in searched]
        refused = {r for r, kinds in self.kinds.items() if "refused" in kinds and "missing" not in kinds}
        self.crashed = {end.rank: end.code for end in result.ranks if end.code in _CRASHES}
        self.died = self._died() or set(self.crashed)
        # For a run ended as hung: the ranks that all others waited for, and the place of each.
        held = result.stall["missing"] if result.outcome == "hung" and result.stall else []
        self.held_up = {one["rank"]: one["where"] for one in held if isinstance(one["rank"], int)}
        self.culprits = self.missing | refused | self.died | set(self.held_up)

    def _died(self) -> set[int]:
        """The rank whose end was the first failure, if it ended without a message from ringup."""
        failure = self.result.failure
        # torch's watchdog also ends waiting ranks with SIGABRT.
        if failure is None or failure.rank is None or failure.is_consequence:
            return set()
        # A launcher ends its other ranks by SIGTERM after one has failed.
        is_crash = (failure.code or 0) < 0 and failure.code != -signal.SIGTERM
        return {failure.rank} if is_crash or not _OUTCOMES & set(self.kinds.get(failure.rank, {})) else set()

    def others(self) -> str:
        """Why a rank that is not at fault could not be tested."""
        if self.missing or self.held_up:
            return f"waited for {show_ranks(self.missing or set(self.held_up))}"
        if self.culprits:
            return f"{show_ranks(self.culprits)} had ended before"
        failure = self.result.failure
        if failure is None:
            return "the run ended before"
        return failure.what if failure.rank is None else f"rank {failure.rank} had ended before"


def is_unreported(records: Records, result: RunResult) -> bool:
    """Whether no rank reports the first failure itself: a crash, a launcher, a node."""
    failure = result.failure
    return failure is not None and (failure.rank is None or bool(RankEvidence(records, result).died))


def report(plan: Plan, records: Records, result: RunResult) -> CorrectnessReport:
    seen, states = RankEvidence(records, result), []
    for node in plan.nodes:
        for local_rank in range(node.nproc):
            rank = node.first_rank + local_rank
            error, is_cause = _error(rank, seen)
            hello = seen.kinds.get(rank, {}).get("hello", {})
            device, name = text(hello, "device"), text(hello, "name")
            shown = printable(device if name in ("", device) else f"{device} {name}", 120)
            bus_id = printable(text(hello, "bus_id"), 20)
            state = RankState(rank, node.node, local_rank, shown, error is None, error, is_cause, bus_id)
            states.append(state)
    return CorrectnessReport(tuple(states), tuple(sorted(seen.suspects)), tuple(_notes(seen)))


def _notes(seen: RankEvidence) -> list[str]:
    why = next(filter(None, seen.searches), "no smaller group of ranks gave a wrong result")
    notes = [f"{why}: the faulty rank is unknown"] if seen.searches and not seen.suspects else []
    for rank, kinds in sorted(seen.kinds.items()):
        hello = kinds.get("hello", {})
        near, may = number(hello, "gpu_numa", -1), numbers(hello, "numa")
        if near >= 0 and may and near not in may:
            where = ", ".join(f"{n:g}" for n in may)
            notes.append(f"rank {rank} may run on NUMA node {where} only, its GPU is at node {near:g}")
    return notes


def _error(rank: int, seen: RankEvidence) -> tuple[str | None, bool]:
    """The rank's problem, and whether the rank is at fault."""
    kinds = seen.kinds.get(rank, {})
    if "done" in kinds and kinds["done"].get("ok") is True:
        return None, False
    if rank in seen.missing and "error" in kinds:
        return _own_words(kinds, {})
    if rank in seen.missing:
        never = "it never responded (torch may take longer to load: --wait)"
        began = "it had begun" if "hello" in kinds else never
        late = f"did not arrive within {seen.waited_s:g} s; {began}"
        return SILENT if "arrived" in kinds else late, True
    if rank in seen.held_up:
        where = seen.held_up[rank]
        return SILENT + f" ({where})" * bool(where), True
    if "refused" in kinds and "missing" not in kinds:
        return text(kinds["refused"], "error"), True
    failure = seen.result.failure
    if rank in seen.died and failure is not None and failure.rank == rank:
        return f"ended: {failure.what}", True
    if rank in seen.died:
        return f"ended: killed by {signal.Signals(-(seen.crashed[rank] or 0)).name}", True
    listed = kinds.get("result", {}).get("wrong")
    wrong = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    if wrong and "error" not in wrong and "error" not in kinds:
        return wrong_words(wrong), rank in seen.suspects or wrong.get("op") == "memory"
    if rank in seen.suspects:
        return "its data made the results of others wrong", True
    if seen.suspects and "result" in kinds and not wrong:
        return None, False
    # It did not finish; its own error counts if no other rank is known to be at fault.
    if not seen.culprits and ("error" in kinds or wrong):
        return _own_words(kinds, wrong)
    if failure is not None and failure.rank == rank and not _OUTCOMES & set(kinds):
        return f"ended because of another rank: {failure.what}", False
    if kinds or failure is not None:
        return "not tested: " + seen.others(), False
    return "never started", True


def _own_words(kinds: Mapping[str, Line], wrong: Line) -> tuple[str, bool]:
    """The error that a rank reported, and whether it shows that this rank is at fault."""
    error = text(kinds.get("error", wrong), "error")
    words = plain(error) if "error" in kinds else wrong_words(wrong)
    return words, not (is_consequence(words) or _TIMED_OUT.search(words) or _CONNECTION in error)


def plain(error: str) -> str:
    """
    An exception without its source file and without advice.

    >>> plain("RuntimeError: [/gloo/pair.cc:553] Connection closed by peer. This is typically caused by x")
    'RuntimeError: Connection closed by peer'
    """
    return _ADVICE.sub("", _PLACE.sub("", error)).strip()


def wrong_words(wrong: Line) -> str:
    """
    A wrong result as text.

    >>> wrong_words({"op": "all_reduce", "count": 1021, "index": 3, "wrong": 1021, "found": 13, "wanted": 12})
    'all_reduce of 1,021 elements: element 3 is 13, wanted 12 (1021 wrong)'
    """
    op, count = text(wrong, "op"), int(number(wrong, "count"))
    of = f"{op} of {plural(count, 'element')}"
    if op == "memory":
        of = f"{show_bytes(count)} of its memory, written and read back"
    if "error" in wrong:
        return printable(f"{of}: {plain(text(wrong, 'error'))}", 400)
    at, bad = int(number(wrong, "index")), int(number(wrong, "wrong"))
    found, wanted = number(wrong, "found"), number(wrong, "wanted")
    source = f", from rank {int(number(wrong, 'from'))}" if "from" in wrong else ""
    many = f" ({bad} wrong)" if count > 1 else ""
    return printable(f"{of}: element {at}{source} is {found:g}, wanted {wanted:g}{many}", 400)
