"""`ringup test`: from what the ranks told to which of them are fine, and whose fault it is where not."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ringup.launch import RunResult
from ringup.logs.blame import is_consequence
from ringup.plan import NodePlan, Plan
from ringup.prove import RankState, Tested
from ringup.prove.lines import Line, number, numbers, text
from ringup.units import printable, show_bytes

_PLACE = re.compile(r"\[\S+\.(?:cc|cpp|cu|h|hpp):\d+\] ?")
_ADVICE = re.compile(
    r"(?:\. )?(?:This is typically caused by|Exception raised from|For debugging consider"
    r"|Search for `\w+' in|CUDA kernel errors might be) .*"
)
_TIMED_OUT = re.compile(r"tim(?:ed|e) ?out|connectFullMesh failed", re.IGNORECASE)
"""
Who waited in vain is not at fault for that; nor is known who is, where all have answered.  Gloo's connections
have two ends.
"""
_CONNECTION = "gloo/transport/"
"""In the place of every error of a connection of Gloo's, whatever the words."""
_CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}
"""Which no launcher ends a rank with."""

_TOLD = {"error", "refused", "missing", "result"}
"""What a rank tells of what became of it."""

SILENT = "fell silent: the others waited for it"

Told = Mapping[int, Sequence[Line]]


class Seen:
    """What the ranks' lines and the run's end say together."""

    def __init__(self, told: Told, result: RunResult) -> None:
        self.kinds = {rank: {line["kind"]: line for line in lines} for rank, lines in told.items()}
        self.result = result
        self.missing = _named(told, "missing")
        waits = [line for lines in told.values() for line in lines if line["kind"] == "missing"]
        self.waited_s = max((number(line, "waited_s") for line in waits), default=0.0)
        self.suspects = _named(told, "suspects")
        self.was_isolated = any("suspects" in kinds for kinds in self.kinds.values())
        refused = {r for r, kinds in self.kinds.items() if "refused" in kinds and "missing" not in kinds}
        self.crashed = {end.rank: end.code for end in result.ranks if end.code in _CRASHES}
        self.died = self._died() or set(self.crashed)
        self.held_up = _held_up(result)
        self.culprits = self.missing | refused | self.died | set(self.held_up)

    def _died(self) -> set[int]:
        """The rank whose end was the first failure, where it ended without a word of ours."""
        failure = self.result.failure
        # torch's watchdog, too, ends with SIGABRT who has waited for another.
        if failure is None or failure.rank is None or failure.is_consequence:
            return set()
        told = _TOLD & set(self.kinds.get(failure.rank, {}))
        # A launcher ends its other ranks by SIGTERM when one has failed.
        is_crash = (failure.code or 0) < 0 and failure.code != -signal.SIGTERM
        return {failure.rank} if is_crash or not told else set()

    def others(self) -> str:
        """Why a rank could not be tested that is not at fault."""
        if self.missing or self.held_up:
            return f"waited for {_ranks(self.missing or set(self.held_up))}"
        if self.culprits:
            return f"{_ranks(self.culprits)} had ended before"
        failure = self.result.failure
        if failure is None:
            return "the run ended before"
        return failure.what if failure.rank is None else f"rank {failure.rank} had ended before"


def _held_up(result: RunResult) -> dict[int, str]:
    """Of a run that was ended as hung: the ranks that all others waited for, and where each was."""
    hangs = [hang for hang in result.record.get("hangs", ()) if hang["verdict"] == "stalled"]
    missing = hangs[-1]["missing"] if result.outcome == "hung" and hangs else []
    return {one["rank"]: one["where"] for one in missing if isinstance(one["rank"], int)}


def untold(told: Told, result: RunResult) -> bool:
    """Whether the first failure is none of which our program has told: a crash, a launcher, a node."""
    failure = result.failure
    return failure is not None and (failure.rank is None or bool(Seen(told, result).died))


def _named(told: Told, kind: str) -> set[int]:
    lines = [line for lines in told.values() for line in lines if line["kind"] == kind]
    return {int(rank) for line in lines for rank in numbers(line, "ranks")}


def _ranks(ranks: set[int]) -> str:
    """
    Some ranks in words.

    >>> _ranks({3}), _ranks({2, 1})
    ('rank 3', 'ranks 1, 2')
    """
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def tested(plan: Plan, told: Told, result: RunResult) -> Tested:
    """What became of every rank."""
    seen = Seen(told, result)
    states = [
        _state(node, rank, seen)
        for node in plan.nodes
        for rank in range(node.first_rank, node.first_rank + node.nproc)
    ]
    return Tested(tuple(states), tuple(sorted(seen.suspects)), tuple(_notes(seen)))


def _notes(seen: Seen) -> list[str]:
    notes = []
    if seen.was_isolated and not seen.suspects:
        failed = [text(kinds["suspects"], "error") for kinds in seen.kinds.values() if "suspects" in kinds]
        why = next(filter(None, failed), "no smaller group of ranks gave a wrong result")
        notes.append(f"{why}: whose fault it is cannot be told")
    for rank, kinds in sorted(seen.kinds.items()):
        hello = kinds.get("hello", {})
        near, may = number(hello, "gpu_numa", -1), numbers(hello, "numa")
        if near >= 0 and may and near not in may:
            where = ", ".join(f"{n:g}" for n in may)
            notes.append(f"rank {rank} may run on NUMA node {where} only, its GPU is at node {near:g}")
    return notes


def _state(node: NodePlan, rank: int, seen: Seen) -> RankState:
    error, is_cause = _error(rank, seen)
    return RankState(
        rank=rank,
        node=node.node,
        local_rank=rank - node.first_rank,
        device=device_words(seen.kinds.get(rank, {}).get("hello")),
        bus_id=printable(text(seen.kinds.get(rank, {}).get("hello", {}), "bus_id"), 20),
        ok=error is None,
        error=error,
        is_cause=is_cause,
    )


def device_words(hello: Line | None) -> str:
    """
    The device a rank said it uses.

    >>> device_words({"device": "cuda:0", "name": "NVIDIA H100"})
    'cuda:0 NVIDIA H100'
    """
    if hello is None:
        return ""
    device, name = text(hello, "device"), text(hello, "name")
    return printable(device if name in ("", device) else f"{device} {name}", 120)


def _error(rank: int, seen: Seen) -> tuple[str | None, bool]:
    """Why the rank is not fine, and whether the fault is its own."""
    kinds = seen.kinds.get(rank, {})
    if "done" in kinds and kinds["done"].get("ok") is True:
        return None, False
    if rank in seen.missing and "error" in kinds:
        return _own_words(kinds, {})
    if rank in seen.missing:
        return _missing_words(kinds, seen.waited_s), True
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
    wrong = _first_wrong(kinds)
    if wrong and "error" not in wrong and "error" not in kinds:
        return wrong_words(wrong), rank in seen.suspects or wrong.get("op") == "memory"
    if rank in seen.suspects:
        return "its part made the results of others wrong", True
    if seen.suspects and "result" in kinds and not wrong:
        return None, False
    return _broken(kinds, wrong, seen, rank)


def _broken(kinds: Mapping[str, Line], wrong: Line, seen: Seen, rank: int) -> tuple[str, bool]:
    """A rank that did not come to its end; its own words count where nobody else is known to be at fault."""
    if not seen.culprits and ("error" in kinds or wrong):
        return _own_words(kinds, wrong)
    failure = seen.result.failure
    if failure is not None and failure.rank == rank and not _TOLD & set(kinds):
        return f"ended, because of another: {failure.what}", False
    if kinds or failure is not None:
        return "not tested: " + seen.others(), False
    return "never started", True


def _own_words(kinds: Mapping[str, Line], wrong: Line) -> tuple[str, bool]:
    """What a rank said when it failed, and whether that is its own fault by these words."""
    said = text(kinds.get("error", wrong), "error")
    words = plain(said) if "error" in kinds else wrong_words(wrong)
    return words, not (is_consequence(words) or _TIMED_OUT.search(words) or _CONNECTION in said)


def _first_wrong(kinds: Mapping[str, Line]) -> dict[str, Any]:
    wrong = kinds.get("result", {}).get("wrong")
    return wrong[0] if isinstance(wrong, list) and wrong and isinstance(wrong[0], dict) else {}


def _missing_words(kinds: Mapping[str, Line], waited_s: float) -> str:
    if "arrived" in kinds:
        return SILENT
    if "hello" in kinds:
        return f"did not arrive within {waited_s:g} s; it had begun"
    where = "it never said a word (torch may take longer to load: --wait)"
    return f"did not arrive within {waited_s:g} s; {where}"


def plain(error: str) -> str:
    """
    An exception without the file it was raised in, and without advice.

    >>> plain("RuntimeError: [/gloo/pair.cc:553] Connection closed by peer. This is typically caused by x")
    'RuntimeError: Connection closed by peer'
    """
    return _ADVICE.sub("", _PLACE.sub("", error)).strip()


def wrong_words(wrong: Line) -> str:
    """
    A wrong result in words.

    >>> wrong_words({"op": "all_reduce", "count": 1021, "index": 3, "wrong": 1021, "found": 13, "wanted": 12})
    'all_reduce of 1021 elements: element 3 is 13, wanted 12 (1021 wrong)'
    """
    op, count = text(wrong, "op"), int(number(wrong, "count"))
    of = f"{op} of {count} element{'s' * (count != 1)}"
    if op == "memory":
        of = f"{show_bytes(count)} of its memory, written and read back"
    if "error" in wrong:
        return printable(f"{of}: {plain(text(wrong, 'error'))}", 400)
    at, bad = int(number(wrong, "index")), int(number(wrong, "wrong"))
    found, wanted = number(wrong, "found"), number(wrong, "wanted")
    source = f", from rank {int(number(wrong, 'from'))}" if "from" in wrong else ""
    many = f" ({bad} wrong)" if count > 1 else ""
    return printable(f"{of}: element {at}{source} is {found:g}, wanted {wanted:g}{many}", 400)
