"""`ringup test` and `ringup bench` for people, and as JSON's plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ringup.facts import starved
from ringup.prove import Benched, Pair, RankState, Row, Tested
from ringup.prove.benched import stragglers
from ringup.units import printable, show_bytes

HEAD = f"{'size':>9}  {'time (us)':>11}  {'algbw (GB/s)':>12}  {'busbw (GB/s)':>12}  result"
MOST_RANKS = 16
CURVE_WIDTH = 40


def test_json(tested: Tested) -> dict[str, Any]:
    """As INTERFACE.md promises it; whose fault it is, `suspects` and `notes` beside it."""
    return {
        "ranks": [asdict(rank) for rank in tested.ranks],
        "ok": tested.ok,
        "suspects": list(tested.suspects),
        "notes": list(tested.notes),
    }


def test_lines(tested: Tested) -> list[str]:
    """Whose fault it is, rank by rank; what became of the others; the ranks that are fine, folded."""
    causes = [r for r in tested.ranks if r.is_cause]
    lines = [f"  {_who(rank)}: {printable(rank.error or '', 400)}" for rank in causes[:MOST_RANKS]]
    if len(causes) > MOST_RANKS:
        lines.append(f"  ... {len(causes) - MOST_RANKS} more ranks are in --json")
    lines += _others([r for r in tested.ranks if not r.ok and not r.is_cause], bool(causes))
    fine = [r for r in tested.ranks if r.ok]
    if fine:
        devices = sorted({r.device.partition(" ")[2] or r.device for r in fine})
        lines.append(f"  {len(fine)} rank{'s' * (len(fine) != 1)} right, on {', '.join(devices)}")
    if len(tested.suspects) > 1:
        names = ", ".join(map(str, tested.suspects))
        lines.append(
            f"  one of ranks {names} makes the results wrong; with these ranks they cannot be told apart"
        )
    return [*lines, *(f"  note: {printable(note, 400)}" for note in tested.notes[:MOST_RANKS])]


def _others(ranks: Sequence[RankState], by_cause: bool) -> list[str]:
    """Ranks that are not at fault, those with the same words in one line."""
    by_words: dict[str, list[int]] = {}
    for rank in ranks:
        words = printable(rank.error or "", 400)
        is_wrong = by_cause and "wanted" in words
        by_words.setdefault("wrong results, by what is said above" if is_wrong else words, []).append(
            rank.rank
        )
    lines = []
    for words, named in list(by_words.items())[:MOST_RANKS]:
        shown = ", ".join(map(str, named[:8])) + (f", ... ({len(named)} in all)" if len(named) > 8 else "")
        lines.append(f"  rank{'s' * (len(named) != 1)} {shown}: {words}")
    if len(by_words) > MOST_RANKS:
        lines.append(f"  ... {len(by_words) - MOST_RANKS} more are in --json")
    return lines


def test_verdict(tested: Tested) -> str:
    """The last line."""
    if tested.ok:
        return "every rank computes what it should: memory, all_reduce, broadcast, all_gather"
    return f"not every rank is fine: {culprits(tested)}"


def culprits(tested: Tested) -> str:
    """Whose fault it is, in few words."""
    causes = [f"rank {r.rank} on {printable(r.node, 64)}" for r in tested.ranks if r.is_cause]
    if not causes:
        words = {(r.error or "").removeprefix("not tested: ") for r in tested.ranks if not r.ok}
        return printable(words.pop(), 400) if len(words) == 1 else "none was seen to be at fault by itself"
    if len(causes) > 1 and len(tested.suspects) == len(causes):
        return "one of " + ", ".join(causes[:4]) + ", ..." * (len(causes) > 4)
    return ", ".join(causes[:3]) + (f" and {len(causes) - 3} more" if len(causes) > 3 else "")


def _who(rank: RankState) -> str:
    at = f" at {rank.bus_id}" if rank.bus_id else ""
    device = f" ({printable(rank.device, 80)}{at})" if rank.device else ""
    return f"rank {rank.rank} on {printable(rank.node, 64)}, local rank {rank.local_rank}{device}"


def row_line(row: Row) -> str:
    """One size, nccl-tests' columns."""
    result = "right" if row.correct else "WRONG on rank " + ", ".join(map(str, row.wrong_ranks[:8]))
    return (
        f"{show_bytes(row.size_bytes):>9}  {row.time_us:>11.1f}  {row.algbw_gbyte_s:>12.4g}  "
        f"{row.busbw_gbyte_s:>12.4g}  {result}"
    )


def curve(rows: Sequence[Row]) -> list[str]:
    """Bus bandwidth by size, as bars of one scale for all sizes."""
    most = max((row.busbw_gbyte_s for row in rows), default=0.0)
    if len(rows) < 2 or most <= 0 or not math.isfinite(most):
        return []
    return [
        f"{show_bytes(row.size_bytes):>9}  {'#' * round(CURVE_WIDTH * row.busbw_gbyte_s / most)}"
        f" {row.busbw_gbyte_s:.3g}"
        for row in rows
    ]


def bench_json(benched: Benched, ended: Tested) -> dict[str, Any]:
    """
    As INTERFACE.md promises it; with several operations the rows of the others are in `more`.

    `failed` holds the ranks for which it did not come to its end.
    """

    def rows(op: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in asdict(r).items() if k != "op"} for r in benched.rows if r.op == op]

    return {
        "op": benched.ops[0],
        "nodes": benched.nodes,
        "ranks": benched.ranks,
        "backend": benched.backend,
        "rows": rows(benched.ops[0]),
        "more": [{"op": op, "rows": rows(op)} for op in benched.ops[1:]],
        "link_gbit_s": benched.link.gbit_s,
        "expected_busbw_gbyte_s": benched.expected_busbw_gbyte_s,
        "verdict": benched.verdict,
        "because": benched.because,
        "slow": [asdict(s) for s in benched.slow],
        "pairs": [asdict(p) for p in benched.pairs],
        "notes": _notes(benched),
        "transports": benched.transports,
        "failed": [asdict(rank) for rank in ended.ranks if rank.is_cause],
    }


def _pair_line(pair: Pair) -> str:
    a, b = pair.nodes
    waited = f" (no CPU time for up to {pair.starved:.0%} of it)" if pair.starved >= starved.SHARE else ""
    return f"  {a} - {b}: {pair.busbw_gbyte_s:.3g} GB/s{waited}"


def bench_lines(benched: Benched) -> list[str]:
    """What is said below the rows."""
    first = [row for row in benched.rows if row.op == benched.ops[0]]
    lines = curve(first)
    if benched.pairs:
        lines += ["", "nodes in pairs (all_reduce):"]
        lines += [_pair_line(pair) for pair in benched.pairs[:40]]
    if benched.transports:
        shown = ", ".join(f"{via} x{n}" for via, n in sorted(benched.transports.items()))
        lines += ["", f"NCCL's channels: {printable(shown, 400)}"]
    lines += [f"note: {note}" for note in _notes(benched)]
    return lines


def _notes(benched: Benched) -> list[str]:
    """What else was noticed; who straggled in which operation, where there are several."""
    notes = list(benched.notes)
    for op in benched.ops:
        of = f"{op}: " * (len(benched.ops) > 1)
        notes += [of + late for late in stragglers([row for row in benched.rows if row.op == op])]
    return notes
