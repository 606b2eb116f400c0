"""`ringup test`: from what the ranks told to which of them are fine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringup.launch import RunResult
from ringup.plan import NodePlan, Plan
from ringup.prove import RankState, Tested
from ringup.prove.lines import Line, number, numbers, text
from ringup.units import printable


def tested(plan: Plan, told: Mapping[int, Sequence[Line]], result: RunResult) -> Tested:
    """What became of every rank."""
    missing = {
        int(r)
        for lines in told.values()
        for x in lines
        if x["kind"] == "missing"
        for r in numbers(x, "ranks")
    }
    suspects = {
        int(r)
        for lines in told.values()
        for x in lines
        if x["kind"] == "suspects"
        for r in numbers(x, "ranks")
    }
    states = [
        _state(node, rank, told.get(rank, ()), missing, suspects, result)
        for node in plan.nodes
        for rank in range(node.first_rank, node.first_rank + node.nproc)
    ]
    return Tested(tuple(states), tuple(sorted(suspects)))


def _state(
    node: NodePlan, rank: int, lines: Sequence[Line], missing: set[int], suspects: set[int], result: RunResult
) -> RankState:
    kinds = {line["kind"]: line for line in lines}
    error, is_cause = _error(rank, kinds, missing, suspects, result)
    return RankState(
        rank=rank,
        node=node.node,
        local_rank=rank - node.first_rank,
        device=device_words(kinds.get("hello")),
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


def _error(
    rank: int, kinds: Mapping[str, Line], missing: set[int], suspects: set[int], result: RunResult
) -> tuple[str | None, bool]:
    """Why the rank is not fine, and whether the fault is its own."""
    if "done" in kinds and kinds["done"].get("ok") is True:
        return None, False
    ended = next((r for r in result.ranks if r.rank == rank), None)
    failed = result.failure is not None and result.failure.rank == rank
    if "result" in kinds:
        wrong = kinds["result"].get("wrong")
        if kinds["result"].get("ok") is not True and isinstance(wrong, list) and wrong:
            own = rank in suspects or not suspects
            return wrong_words(wrong[0] if isinstance(wrong[0], dict) else {}), own
        if rank in suspects:
            return "its part made the results of others wrong", True
        if any(True for _ in suspects):
            return None, False
    if "refused" in kinds and "missing" not in kinds:
        return text(kinds["refused"], "error"), True
    if rank in missing:
        where = "it had begun" if "hello" in kinds else "it never said a word"
        return f"did not arrive; {where}", True
    if "missing" in kinds:
        return "not tested: " + _others(missing, result), False
    if "error" in kinds:
        return text(kinds["error"], "error"), failed
    if failed and result.failure is not None:
        return f"ended: {result.failure.what}", True
    if "hello" in kinds:
        return "not tested: " + _others(missing, result), False
    if ended is None:
        return "never started", True
    return "ended before it said a word", failed


def _others(missing: set[int], result: RunResult) -> str:
    if missing:
        shown = ", ".join(str(r) for r in sorted(missing)[:8])
        return f"waited for rank{'s' * (len(missing) != 1)} {shown}"
    if result.failure is not None and result.failure.rank is not None:
        return f"rank {result.failure.rank} had ended before"
    return "the run ended before"


def wrong_words(wrong: Line) -> str:
    """
    A wrong result in words.

    >>> wrong_words({"op": "all_reduce", "count": 1021, "index": 3, "wrong": 1021, "found": 13, "wanted": 12})
    'all_reduce of 1021 elements: element 3 is 13, wanted 12 (1021 wrong)'
    """
    op, count = text(wrong, "op"), int(number(wrong, "count"))
    if "error" in wrong:
        return printable(f"{op} of {count} elements: {text(wrong, 'error')}", 400)
    at, bad = int(number(wrong, "index")), int(number(wrong, "wrong"))
    found, wanted = number(wrong, "found"), number(wrong, "wanted")
    source = f", from rank {int(number(wrong, 'from'))}" if "from" in wrong else ""
    return printable(
        f"{op} of {count} elements: element {at}{source} is {found:g}, wanted {wanted:g} ({bad} wrong)", 400
    )
