"""`ringup bench`: rows, the verdict against the link's rate, and the node or link that is slow."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from ringup.facts import starved
from ringup.plan import Plan
from ringup.prove import Benched, LinkRate, Pair, Row, Slow, at_best, why
from ringup.prove.lines import Line, number, numbers, text
from ringup.prove.link import carries
from ringup.units import printable, show_bytes

SLOW_BELOW = {"tcp": 0.5, "rdma": 0.65, "nvlink": 0.65}
"""
Share of the link's rate under which a plateau is slow: TCP reaches 60-90 % of the smaller of NIC and CPU,
an all-reduce over RDMA 70-80 %, a ring over NVLink 69-82 % (stas00/ml-engineering, network/benchmarks;
Azure's health checks).
"""
SLOW_PAIR = 0.75
"""Of the median of the others: the score under which NVIDIA's resiliency extension names a straggler."""
GLOO_FILLS = ("all_reduce", "all_gather")
"""
Which of Gloo's operations use all of a link: on a shaped one of 200 Mbit/s reduce_scatter reaches 46 % of it,
send_recv and all_to_all of two nodes 52 %, all_reduce 95 % (measured, torch 2.13).
"""
STEADY = 0.05
"""A plateau: two doublings change the bus bandwidth by less."""
LOSSY = 0.01
"""Part of the segments sent again from which loss is named: a shaped queue alone stays below."""
LEAST_SEGMENTS = 1000
AGAIN = "again"
"""The stage of payload/prove_sweep.py in which those are measured again who would be named."""
TOO_FAST = 1.1
BUSY = 0.8
"""Processors in use by a rank from which a processor may be what bounds Gloo: it copies by one thread."""


def benched(
    plan: Plan,
    told: Mapping[int, Sequence[Line]],
    link: LinkRate,
    backend: str,
    ops: Sequence[str],
    channels: Mapping[str, Mapping[str, int]],
    is_whole: bool = True,
) -> Benched:
    """
    Everything that `ringup bench` says; a measurement that was cut short is not judged.

    `channels` is what NCCL's lines say after `via`, counted by host; empty with Gloo.
    """
    lines = [line for rank in sorted(told) for line in told[rank]]
    rows = tuple(row(line) for line in lines if line["kind"] == "row")
    pairs = tuple(_pair(line, plan) for line in lines if line["kind"] == "pair")
    slow, unsure = slow_nodes(pairs)
    notes = [*_notes(lines), *_loss(plan, told), *unsure]
    expected = carries(link, plan, ops[0])
    lossy = any("packets are lost" in note for note in notes)
    fills = backend == "nccl" or ops[0] in GLOO_FILLS
    verdict, because = judge([r for r in rows if r.op == ops[0]], expected, link, slow, lossy, fills)
    if verdict == "slow":
        because = "; ".join([because, *why.reasons(channels, plan, link.devices)])
    if not is_whole:
        verdict, because = "not_judged", "not measured to the end"
    return Benched(
        ops=tuple(ops),
        nodes=len(plan.nodes),
        ranks=plan.world_size,
        backend=backend,
        rows=rows,
        pairs=pairs,
        link=link,
        expected_busbw_gbyte_s=expected,
        verdict=verdict,
        because=because,
        slow=slow,
        notes=tuple(notes),
        transports=dict(sum((Counter(counts) for counts in channels.values()), Counter[str]())),
    )


def row(line: Line) -> Row:
    return Row(
        op=printable(text(line, "op"), 30),
        size_bytes=int(number(line, "size_bytes")),
        time_us=number(line, "time_us"),
        algbw_gbyte_s=number(line, "algbw_gbyte_s"),
        busbw_gbyte_s=number(line, "busbw_gbyte_s"),
        correct=line.get("correct") is True,
        iterations=int(number(line, "iterations")),
        median_us=tuple(numbers(line, "median_us")),
        p99_us=number(line, "p99_us"),
        wrong_ranks=tuple(int(r) for r in numbers(line, "wrong_ranks")),
        starved=_share(line),
        waited_us=tuple(numbers(line, "waited_us")),
        busy=number(line, "busy"),
    )


def _share(line: Line) -> float:
    return min(1.0, max(0.0, number(line, "starved")))


def _node_of(plan: Plan, rank: float) -> str:
    found = [n.node for n in plan.nodes if n.first_rank <= rank < n.first_rank + n.nproc]
    return found[0] if found else "?"


def _pair(line: Line, plan: Plan) -> Pair:
    a, b = ([*numbers(line, "ranks"), -1, -1])[:2]
    nodes = (_node_of(plan, a), _node_of(plan, b))
    return Pair(nodes, number(line, "busbw_gbyte_s"), _share(line), printable(text(line, "stage"), 20))


def _notes(lines: Sequence[Line]) -> list[str]:
    notes = []
    for line in lines:
        op, size = text(line, "op"), show_bytes(int(number(line, "size_bytes")))
        if line["kind"] == "stopped":
            notes.append(
                f"{op}: nothing larger than {size} tried, one call took {number(line, 'seconds'):.1f} s"
            )
        elif line["kind"] == "left_out" and line["rank"] == 0:
            free = show_bytes(int(number(line, "free_bytes")))
            notes.append(f"{size} and more left out: rank {number(line, 'of'):g} has {free} of memory free")
        elif line["kind"] == "unsupported" and line["rank"] == 0:
            notes.append(f"{op} of {size} was not measured: {text(line, 'error')}")
    return [printable(note, 400) for note in notes]


def _loss(plan: Plan, told: Mapping[int, Sequence[Line]]) -> list[str]:
    """Nodes whose kernel had to send much again while we measured."""
    notes = []
    for rank in sorted(told):
        for line in told[rank]:
            sent, again = number(line, "segments"), number(line, "retransmitted")
            if line["kind"] == "tcp" and sent >= LEAST_SEGMENTS and again / sent >= LOSSY:
                share = 100 * again / sent
                notes.append(
                    f"{_node_of(plan, rank)}: {share:.1f} % of its TCP segments sent again: packets are lost"
                )
    return notes


def plateau(rows: Sequence[Row]) -> tuple[float, bool]:
    """
    The best bus bandwidth in GB/s, and whether it has settled: the last two doublings changed it little.

    The best and not the last, since the largest buffers may fall out of a cache.
    """
    if not rows:
        return 0.0, False
    best = max(row.busbw_gbyte_s for row in rows)
    last = [row.busbw_gbyte_s for row in rows[-3:]]
    steady = len(last) == 3 and all(abs(b - a) < STEADY * a for a, b in pairwise(last))
    return best, steady or rows[-1].busbw_gbyte_s < best


def judge(
    rows: Sequence[Row],
    expected: float | None,
    link: LinkRate,
    slow: Sequence[Slow],
    lossy: bool = False,
    fills: bool = True,
) -> tuple[Literal["ok", "slow", "not_judged"], str]:
    """The verdict on the first operation, in a word and in words; `fills`: it uses all of a healthy link."""
    best, steady = plateau(rows)
    if slow:
        return "slow", "; ".join(s.found for s in slow)
    if not rows:
        return "not_judged", "nothing was measured"
    if expected is None and link.gbit_s is not None:
        of = "links of a GPU" if link.over == "nvlink" else "cards a node"
        return "not_judged", f"{rows[0].op} uses one of {link.devices} {of}, which one is not known"
    if expected is None:
        return "not_judged", link.source
    share = best / expected
    of_link = f"{best:.3g} GB/s bus bandwidth is {100 * share:.0f} % of what {link.source} can carry"
    if share > TOO_FAST:
        words = "NCCL took no ring, or " if link.over != "tcp" else ""
        return "not_judged", f"{of_link}: {words}the data went over something else, too"
    if share >= SLOW_BELOW[link.over]:
        return "ok", of_link
    fastest = max(rows, key=lambda row: row.busbw_gbyte_s)
    waited = fastest.starved
    if at_best(share, waited) >= SLOW_BELOW[link.over]:
        return "not_judged", f"{of_link}, but {_no_cpu(waited)}"
    if lossy:
        return "slow", f"{of_link}; packets are lost (see above), and TCP waits for them"
    if not fills:
        return (
            "not_judged",
            f"{of_link}, but Gloo's {rows[0].op} leaves half of a link unused: see all_reduce",
        )
    if fastest.busy >= BUSY:
        return (
            "not_judged",
            f"{of_link}, but a rank kept a processor busy: that, not the link, may be the bound",
        )
    if not steady:
        return "not_judged", f"{of_link}, but it was still rising: measure larger sizes (--max)"
    if link.doubt:
        return "not_judged", f"{of_link}, but {link.doubt}"
    return "slow", of_link


def _no_cpu(share: float) -> str:
    return f"the ranks had no CPU time for up to {share:.0%} of that: measure again when less runs there"


def slow_nodes(pairs: Sequence[Pair]) -> tuple[tuple[Slow, ...], list[str]]:
    """
    Nodes that are slow with whomever they meet, and words on those that may have lacked CPU time only.

    A node's speed is that of its best pair; it looks slow below SLOW_PAIR of the median of all nodes, and of
    what healthy pairs reached when it was measured again.  It is slow when two partners that do not look
    slow show it, and whoever met it again, counted as if nobody had waited for a processor.
    """
    met: dict[str, list[Pair]] = {}
    for pair in pairs:
        for node in pair.nodes:
            met.setdefault(node, []).append(pair)
    if len(met) < 3:
        return (), []
    best = {node: max(pair.busbw_gbyte_s for pair in own) for node, own in met.items()}
    # Not everybody was measured again: a quiet moment then is no measure for the others.
    before = [[pair.busbw_gbyte_s for pair in own if pair.stage != AGAIN] for own in met.values()]
    usual = statistics.median_high(max(speeds, default=0.0) for speeds in before)
    looks = {node for node in met if best[node] < SLOW_PAIR * usual}
    beside = [p.busbw_gbyte_s for p in pairs if p.stage == AGAIN and not looks.intersection(p.nodes)]
    usual = min(usual, max(beside, default=usual))
    found, unsure = [], []
    for node in [node for node in met if node in looks and best[node] < SLOW_PAIR * usual]:
        shown = [pair for pair in met[node] if pair.at_best_gbyte_s < SLOW_PAIR * usual]
        partners = {other for pair in met[node] for other in pair.nodes} - {node}
        figures = f"{best[node]:.3g} GB/s, not {usual:.3g}"
        clear = {other for pair in shown for other in pair.nodes} - looks
        if len(clear) > 1 and all(pair in shown for pair in met[node] if pair.stage == AGAIN):
            words = f"{node} is slow with {' and '.join(sorted(partners))}: {figures}"
            found.append(Slow(node, words, best[node], usual))
        elif len(partners - looks) > 1:
            waited = max(pair.starved for pair in met[node])
            unsure.append(f"{node} was slower than others ({figures}), but {_no_cpu(waited)}")
    return tuple(found), unsure


def stragglers(rows: Sequence[Row]) -> list[str]:
    """Ranks whose own median is far above the others' in most large sizes; told, not averaged away."""
    large = [row for row in rows if len(row.median_us) > 2][-5:]
    late: dict[int, list[float]] = {}
    """Rank -> the part of its time for which it waited for a processor, in each size."""
    for row in large:
        usual = statistics.median(row.median_us)
        for rank, median in enumerate(row.median_us):
            if usual and median > 1.25 * usual:
                waited = row.waited_us[rank] if rank < len(row.waited_us) else 0.0
                late.setdefault(rank, []).append(min(1.0, waited / median))
    return [
        f"rank {rank} took over 1.25 times the ranks' median in {len(parts)} of the {len(large)} "
        "largest sizes" + _for_want_of_cpu(statistics.median(parts))
        for rank, parts in late.items()
        if len(large) > 2 and len(parts) > len(large) // 2
    ]


def _for_want_of_cpu(share: float) -> str:
    return f"; it waited for a processor for {share:.0%} of the time" if share >= starved.SHARE else ""
