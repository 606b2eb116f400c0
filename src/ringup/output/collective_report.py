"""`ringup test` and `ringup bench` as text, and as JSON's plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ringup.collective_tests import BandwidthReport, CorrectnessReport, Pair, RankState, Row
from ringup.collective_tests.bandwidth import stragglers
from ringup.hosts.folding import node_set
from ringup.model import cpu_starvation
from ringup.output.folding import NodeText, merge_equal
from ringup.units import grouped, plural, printable, show_bytes, show_ranks, summarize_names

HEAD = f"{'size':>9}  {'time (us)':>11}  {'algbw (GB/s)':>12}  {'busbw (GB/s)':>12}  result"
MOST_RANKS = 16
FEW_RANKS, FEW_PAIRS = 4, 8
"""Up to this many ranks or pairs are shown one by one."""
CURVE_WIDTH, FARTHEST_LIMIT = 40, 4.0
"""Width in columns; a limit this many times above the best rate would flatten the curve."""


def test_lines(report: CorrectnessReport, *, unfolded: bool = False) -> list[str]:
    """The faulty ranks (equal errors in one line), then the others, then the ranks that are right."""
    causes = [r for r in report.ranks if r.is_cause]
    lines = [f"  {_who(rank)}: {printable(rank.error or '', 400)}" for rank in causes]
    if not unfolded and len(causes) > FEW_RANKS:
        lines = _equal_errors(causes)
    lines += _others([r for r in report.ranks if not r.ok and not r.is_cause], bool(causes))
    fine = [r for r in report.ranks if r.ok]
    if fine:
        devices = sorted({r.device.partition(" ")[2] or r.device for r in fine})
        lines.append(f"  {plural(len(fine), 'rank')} correct, on {', '.join(devices)}")
    if len(report.suspects) > 1:
        names = ", ".join(map(str, report.suspects))
        lines.append(f"  one of ranks {names} makes the results wrong; these ranks cannot show which one")
    return [*lines, *(f"  note: {printable(note, 400)}" for note in report.notes[:MOST_RANKS])]


def _equal_errors(ranks: Sequence[RankState]) -> list[str]:
    """A line for each kind of error; quantities in it may differ."""
    errors = [
        NodeText(f"rank {r.rank}", (printable(r.error or "", 400),), (r.node,), r.device.partition(" ")[2])
        for r in ranks
    ]
    lines = []
    for one in merge_equal(errors):
        same = [ranks[place] for place in one.places]
        nodes = node_set(printable(r.node, 64) for r in same)
        who = _who(same[0]) if len(same) == 1 else f"{show_ranks(r.rank for r in same)} on {nodes}"
        lines.append(f"  {who}: {one.texts[0]}")
    left = len(lines) - MOST_RANKS
    return [*lines[:MOST_RANKS], *([f"  and {left} more errors: --all shows them"] if left > 0 else [])]


def _others(ranks: Sequence[RankState], by_cause: bool) -> list[str]:
    """Ranks that are not at fault, those with the same text in one line."""
    errors, seen = [(rank.error or "", rank.rank) for rank in ranks], "wrong results, see above"
    by_words = grouped((seen if by_cause and "wanted" in e else printable(e, 400), r) for e, r in errors)
    lines = [f"  {show_ranks(named)}: {why}" for why, named in [*by_words.items()][:MOST_RANKS]]
    if len(by_words) > MOST_RANKS:
        lines.append(f"  ... {len(by_words) - MOST_RANKS} more are in --json")
    return lines


def test_verdict(report: CorrectnessReport) -> str:
    if report.ok:
        return "every rank computes correct results: memory, all_reduce, broadcast, all_gather"
    return f"not every rank is fine: {culprits(report)}"


def culprits(report: CorrectnessReport) -> str:
    """The faulty ranks in one line."""
    causes = [f"rank {r.rank} on {printable(r.node, 64)}" for r in report.ranks if r.is_cause]
    if not causes:
        words = {(r.error or "").removeprefix("not tested: ") for r in report.ranks if not r.ok}
        return printable(words.pop(), 400) if len(words) == 1 else "no faulty rank identified"
    if len(causes) > 1 and len(report.suspects) == len(causes):
        return "one of " + ", ".join(causes[:4]) + ", ..." * (len(causes) > 4)
    return summarize_names(causes, 3)


def _who(rank: RankState) -> str:
    at = f" at {rank.bus_id}" if rank.bus_id else ""
    device = f" ({printable(rank.device, 80)}{at})" if rank.device else ""
    return f"rank {rank.rank} on {printable(rank.node, 64)}, local rank {rank.local_rank}{device}"


def row_line(row: Row) -> str:
    result = "right" if row.correct else "WRONG on rank " + ", ".join(map(str, row.wrong_ranks[:8]))
    rates = f"{row.algbw_gbyte_s:>12.4g}  {row.busbw_gbyte_s:>12.4g}"
    return f"{show_bytes(row.size_bytes):>9}  {row.time_us:>11.1f}  {rates}  {result}"


def curve(rows: Sequence[Row], limit_gbyte_s: float | None = None) -> list[str]:
    """Bus bandwidth by size, as bars of one scale for all sizes, and the link's limit below them."""
    most = max((row.busbw_gbyte_s for row in rows), default=0.0)
    if len(rows) < 2 or most <= 0 or not math.isfinite(most):
        return []
    limit = limit_gbyte_s or 0.0
    is_near = limit <= FARTHEST_LIMIT * most
    scale = CURVE_WIDTH / max(most, limit if is_near else 0.0)
    bars = [(show_bytes(row.size_bytes), "#", row.busbw_gbyte_s) for row in rows]
    bars += [("the link", "-", limit)] * (limit > 0 and is_near)
    lines = [f"{name:>9}  {mark * round(scale * rate)} {rate:.3g}" for name, mark, rate in bars]
    far = f" the link  carries {limit:.3g}, off this scale"
    return [f"{rows[0].op}: bus bandwidth (GB/s) by size", *lines, *([] if is_near else [far])]


def bench_json(report: BandwidthReport, ended: CorrectnessReport) -> dict[str, Any]:
    """`bench --json`; `more` holds the rows of further operations, `failed` the ranks that did not finish."""
    plain = asdict(report)
    rows = grouped((row.pop("op"), row) for row in plain.pop("rows"))
    first, *others = plain.pop("ops")
    link = plain.pop("link")
    return {
        **plain,
        "op": first,
        "rows": rows.get(first, []),
        "more": [{"op": op, "rows": rows.get(op, [])} for op in others],
        "link_gbit_s": link["gbit_s"],
        "notes": _notes(report),
        "failed": [asdict(rank) for rank in ended.ranks if rank.is_cause],
    }


def _pair_lines(pairs: Sequence[Pair], unfolded: bool) -> list[str]:
    """A line for each pair; of many that had CPU time, the median and range, and the pairs far from it."""
    is_folded = len(pairs) > FEW_PAIRS and not unfolded
    well = [pair for pair in pairs if is_folded and pair.starved < cpu_starvation.SHARE]
    rates = [NodeText(" - ".join(p.nodes), (f"{p.busbw_gbyte_s:.3g} GB/s",), (), p.stage) for p in well]
    shown = set(well)
    lines = [f"  {plural(len(one.places), 'pair')}: {one.texts[0]}" for one in merge_equal(rates)]
    for pair in (pair for pair in pairs if pair not in shown):
        is_starved = pair.starved >= cpu_starvation.SHARE
        why = f" (no CPU time for up to {pair.starved:.0%} of it)" if is_starved else ""
        lines.append(f"  {' - '.join(pair.nodes)}: {pair.busbw_gbyte_s:.3g} GB/s{why}")
    return lines


def bench_lines(report: BandwidthReport, *, unfolded: bool = False) -> list[str]:
    lines: list[str] = []
    for op in report.ops:
        limit = report.expected_busbw_gbyte_s if op == report.ops[0] else None
        if bars := curve([row for row in report.rows if row.op == op], limit):
            lines += [*bars, ""]
    lines = lines[:-1]
    if report.pairs:
        lines += ["", "nodes in pairs (all_reduce):"]
        lines += _pair_lines(report.pairs, unfolded)
    if report.transports:
        shown = ", ".join(f"{via} x{n}" for via, n in sorted(report.transports.items()))
        lines += ["", f"NCCL's channels: {printable(shown, 400)}"]
    notes = [note if note.startswith("warning: ") else f"note: {note}" for note in _notes(report)]
    left = 0 if unfolded else len(notes) - MOST_RANKS
    return [*lines, *notes] if left <= 0 else [*lines, *notes[:MOST_RANKS], f"and {left} more notes: --all"]


def _notes(report: BandwidthReport) -> list[str]:
    notes = list(report.notes)
    for op in report.ops:
        of = f"{op}: " * (len(report.ops) > 1)
        notes += [of + late for late in stragglers([row for row in report.rows if row.op == op])]
    return notes
