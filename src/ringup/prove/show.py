"""`ringup test` and `ringup bench` for people, and as JSON's plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ringup.prove import Benched, RankState, Row, Tested
from ringup.prove.benched import stragglers
from ringup.units import printable, show_bytes

HEAD = f"{'size':>9}  {'time (us)':>11}  {'algbw (GB/s)':>12}  {'busbw (GB/s)':>12}  result"
MOST_RANKS = 16
CURVE_WIDTH = 40


def test_json(tested: Tested) -> dict[str, Any]:
    """As INTERFACE.md promises it; `suspects` beside it."""
    return {
        "ranks": [
            {k: v for k, v in asdict(rank).items() if k != "is_cause"} | {"is_cause": rank.is_cause}
            for rank in tested.ranks
        ],
        "ok": tested.ok,
        "suspects": list(tested.suspects),
    }


def test_lines(tested: Tested) -> list[str]:
    """The ranks that are not fine first, those whose fault it is before all; then the rest, folded."""
    bad = sorted((r for r in tested.ranks if not r.ok), key=lambda r: (not r.is_cause, r.rank))
    lines = [f"  {_who(rank)}: {printable(rank.error or '', 400)}" for rank in bad[:MOST_RANKS]]
    if len(bad) > MOST_RANKS:
        lines.append(f"  ... {len(bad) - MOST_RANKS} more ranks are in --json")
    fine = [r for r in tested.ranks if r.ok]
    if fine:
        devices = sorted({r.device.partition(" ")[2] or r.device for r in fine})
        lines.append(f"  {len(fine)} rank{'s' * (len(fine) != 1)} right, on {', '.join(devices)}")
    if len(tested.suspects) > 1:
        names = ", ".join(map(str, tested.suspects))
        lines.append(
            f"  one of ranks {names} makes the results wrong; with these ranks they cannot be told apart"
        )
    return lines


def _who(rank: RankState) -> str:
    device = f" ({printable(rank.device, 80)})" if rank.device else ""
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


def bench_json(benched: Benched) -> dict[str, Any]:
    """As INTERFACE.md promises it; with several operations the rows of the others are in `more`."""

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
        "notes": list(benched.notes),
        "transports": benched.transports,
    }


def bench_lines(benched: Benched) -> list[str]:
    """What is said below the rows."""
    first = [row for row in benched.rows if row.op == benched.ops[0]]
    lines = curve(first)
    if benched.pairs:
        lines += ["", "nodes in pairs (all_reduce):"]
        lines += [
            f"  {a} - {b}: {p.busbw_gbyte_s:.3g} GB/s" for p in benched.pairs[:40] for a, b in [p.nodes]
        ]
    if benched.transports:
        shown = ", ".join(f"{via} x{n}" for via, n in sorted(benched.transports.items()))
        lines += ["", f"NCCL's channels: {printable(shown, 400)}"]
    lines += [f"note: {note}" for note in (*benched.notes, *stragglers(first))]
    return lines
