"""`ringup bench`: rows, the verdict against the link's rate, and the slow node or link."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from ringup.collective_tests import BandwidthReport, LinkRate, Pair, Row, Slow, at_best
from ringup.collective_tests.link_rate import carries
from ringup.collective_tests.rank_records import Line, number, numbers, text
from ringup.model import cpu_starvation
from ringup.nccl.plugins import network_name
from ringup.planning import Plan
from ringup.units import grouped, printable, show_bytes, summarize_names

SLOW_BELOW = {"tcp": 0.5, "rdma": 0.65, "nvlink": 0.65}
"""
Share of the link's rate below which a plateau is slow.  TCP reaches 60-90 % of the smaller of NIC and CPU, an
all-reduce over RDMA 70-80 %, a ring over NVLink 69-82 % (stas00/ml-engineering, network/benchmarks; Azure's
health checks).
"""
SLOW_PAIR = 0.75
"""Share of the other nodes' median; below it, NVIDIA's resiliency extension calls a rank a straggler."""
GLOO_FILLS = ("all_reduce", "all_gather")
"""
Gloo's operations that can fill a link.  On a link limited to 200 Mbit/s reduce_scatter reaches 46 % of it,
send_recv and all_to_all of two nodes 52 %, all_reduce 95 % (measured, torch 2.13).
"""
STEADY = 0.05
"""At a plateau, two doublings of the size change the bus bandwidth by less than this share."""
FALLEN = 0.5
"""
Share of the best bandwidth at smaller sizes; below it, a size is reported.  Where NCCL changes its algorithm
or protocol, the bandwidth drops less.
"""
LEAST_PEAK_BYTES = 1 << 20
LEAST_CALLS, LEAST_TIME_US = 5, 10_000.0
"""Of a size that alone is reported: fewer calls, or a shorter time, may be noise."""
LOSSY = 0.01
"""Share of retransmitted segments that is reported as loss: a traffic shaper alone causes less."""
LEAST_SEGMENTS = 1000
AGAIN = "again"
"""The stage of agent/collective/bandwidth.py that measures slow nodes again."""
TOO_FAST = 1.1
BUSY = 0.8
"""CPUs in use by a rank above which the CPU may limit Gloo, which copies with one thread."""
_NET = re.compile(r"NET/([^/]+)/(\d+)(?:\(\d+\))?((?:/.*)?)$")
FUSED = 0.5
"""Share of the expected NICs: NCCL may fuse the two ports of one NIC into a device."""


def report(
    plan: Plan,
    records: Mapping[int, Sequence[Line]],
    link: LinkRate,
    backend: str,
    ops: Sequence[str],
    channels: Mapping[str, Mapping[str, int]],
    is_whole: bool = True,
) -> BandwidthReport:
    """The result of `ringup bench`, with a verdict unless cut short; `channels`: transports by host."""
    lines = [line for rank in sorted(records) for line in records[rank]]
    rows = tuple(row(line) for line in lines if line["kind"] == "row")
    pairs = tuple(_pair(line, plan) for line in lines if line["kind"] == "pair")
    slow, unsure = slow_nodes(pairs)
    notes = [*_notes(plan, lines), *unsure]
    notes += [note for op in ops for note in drops([one for one in rows if one.op == op])]
    expected = carries(link, plan, ops[0])
    lossy = any("packets are lost" in note for note in notes)
    fills = backend == "nccl" or ops[0] in GLOO_FILLS
    verdict, because = judge([r for r in rows if r.op == ops[0]], expected, link, slow, lossy, fills)
    if verdict == "slow":
        because = "; ".join([because, *slow_reasons(channels, plan, link.devices)])
    if not is_whole:
        verdict, because = "not_judged", "not measured to the end"
    return BandwidthReport(
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
    figures = ("time_us", "algbw_gbyte_s", "busbw_gbyte_s", "p99_us", "busy")
    values: dict[str, Any] = {name: number(line, name) for name in figures}
    values |= {name: int(number(line, name)) for name in ("size_bytes", "iterations")}
    values |= {name: tuple(numbers(line, name)) for name in ("median_us", "waited_us")}
    values |= {"op": printable(text(line, "op"), 30), "correct": line.get("correct") is True}
    return Row(**values, wrong_ranks=tuple(map(int, numbers(line, "wrong_ranks"))), starved=_share(line))


def _share(line: Line) -> float:
    return min(1.0, max(0.0, number(line, "starved")))


def _node_of(plan: Plan, rank: float) -> str:
    return next((n.node for n in plan.nodes if n.first_rank <= rank < n.first_rank + n.nproc), "?")


def _pair(line: Line, plan: Plan) -> Pair:
    a, b = ([*numbers(line, "ranks"), -1, -1])[:2]
    nodes = (_node_of(plan, a), _node_of(plan, b))
    return Pair(nodes, number(line, "busbw_gbyte_s"), _share(line), printable(text(line, "stage"), 20))


def _notes(plan: Plan, lines: Sequence[Line]) -> list[str]:
    notes = []
    for line in lines:
        sent, again = number(line, "segments"), number(line, "retransmitted")
        op, size = text(line, "op"), show_bytes(int(number(line, "size_bytes")))
        if line["kind"] == "stopped":
            seconds = number(line, "seconds")
            notes.append(f"{op}: nothing larger than {size} tried, one call took {seconds:.1f} s")
        elif line["kind"] == "left_out" and line["rank"] == 0:
            free = show_bytes(int(number(line, "free_bytes")))
            notes.append(f"{size} and more left out: rank {number(line, 'of'):g} has {free} of memory free")
        elif line["kind"] == "unsupported" and line["rank"] == 0:
            notes.append(f"{op} of {size} was not measured: {text(line, 'error')}")
        elif line["kind"] == "tcp" and sent >= LEAST_SEGMENTS and again / sent >= LOSSY:
            share = f"{100 * again / sent:.1f} % of its TCP segments"
            notes.append(f"{_node_of(plan, line['rank'])}: {share} retransmitted: packets are lost")
    return [printable(note, 400) for note in notes]


def slow_reasons(channels: Mapping[str, Mapping[str, int]], plan: Plan, cards: int) -> list[str]:
    """Reasons why NCCL's channels are slow, with the hosts; `cards`: NICs that a node's ranks should use."""
    expected = {t.network for t in plan.transports} - {""}
    hosts = sorted(channels.items())
    found = grouped((words, host) for host, counts in hosts for words in _of_host(counts, expected, cards))
    everywhere = len(hosts) if len(hosts) > 1 else 0
    return [
        f"{words} on {'every node' if len(own) == everywhere else printable(summarize_names(own, 3), 200)}"
        for words, own in found.items()
    ]


def _of_host(counts: Mapping[str, int], expected: set[str], cards: int) -> Iterator[str]:
    lines = [(network_name(m[1]), m[2], m[3]) for via in counts if (m := _NET.match(via))]
    fast = [line for line in lines if line[0] != "Socket"]
    if len(fast) < len(lines) and expected and "Socket" not in expected:
        yield f"NCCL uses Socket (TCP), not {' or '.join(sorted(expected))},"
    if fast and not any("GDRDMA" in rest for _, _, rest in fast):
        yield "NCCL uses no GPUDirect RDMA, the data passes through host memory,"
    used = {card for network, card, _ in fast if network == "IB"}
    if used and len(used) < FUSED * cards:
        yield f"NCCL uses {len(used)} of {cards} cards"
    inside = {via.partition("/")[0] for via in counts}
    if "SHM" in inside and "P2P" not in inside:
        yield "NCCL uses host memory (SHM) between the GPUs of a node, not P2P,"


def plateau(rows: Sequence[Row]) -> tuple[float, bool]:
    """The best bus bandwidth in GB/s (the largest buffers may exceed a cache), and whether it is steady."""
    if not rows:
        return 0.0, False
    best = max(row.busbw_gbyte_s for row in rows)
    last = [row.busbw_gbyte_s for row in rows[-3:]]
    steady = len(last) == 3 and all(abs(b - a) < STEADY * a for a, b in pairwise(last))
    return best, steady or rows[-1].busbw_gbyte_s < best


def drops(rows: Sequence[Row]) -> list[str]:
    """A text if the bandwidth of one operation falls far below what smaller sizes reached; [] if not."""
    peak, fallen = None, []
    for row in rows:
        if row.size_bytes < LEAST_PEAK_BYTES:
            continue
        if peak and at_best(row.busbw_gbyte_s, row.starved) < FALLEN * peak.busbw_gbyte_s:
            fallen.append((row, peak))
        elif peak is None or row.busbw_gbyte_s > peak.busbw_gbyte_s:
            peak = row
    if len(fallen) == 1:
        row = fallen[0][0]
        is_sure = row.iterations >= LEAST_CALLS and row.iterations * row.time_us >= LEAST_TIME_US
        fallen = fallen if is_sure else []
    if not fallen:
        return []
    best = fallen[0][1]
    figures = (f"{row.busbw_gbyte_s:.3g} GB/s at {show_bytes(row.size_bytes)}" for row, _ in fallen)
    of = f"{best.busbw_gbyte_s:.3g} GB/s at {show_bytes(best.size_bytes)}"
    words = f"{rows[0].op}: bus bandwidth falls from {of} to {summarize_names(figures, 3)}"
    return [f"warning: {words}: congestion, lost packets or a throttled device; measure these sizes again"]


def judge(
    rows: Sequence[Row],
    expected: float | None,
    link: LinkRate,
    slow: Sequence[Slow],
    lossy: bool = False,
    fills: bool = True,
) -> tuple[Literal["ok", "slow", "not_judged"], str]:
    """The verdict on the first operation and the reason; `fills`: it can fill a healthy link."""
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
        words = "NCCL did not use a ring, or " if link.over != "tcp" else ""
        return "not_judged", f"{of_link}: {words}part of the data used another path"
    if share >= SLOW_BELOW[link.over]:
        return "ok", of_link
    fastest = max(rows, key=lambda row: row.busbw_gbyte_s)
    if at_best(share, fastest.starved) >= SLOW_BELOW[link.over]:
        return "not_judged", f"{of_link}, but {_no_cpu(fastest.starved)}"
    if lossy:
        return "slow", f"{of_link}; packets are lost (see above), and TCP waits for them"
    doubt = link.doubt
    if not fills:
        doubt = f"Gloo's {rows[0].op} leaves half of a link unused: see all_reduce"
    elif fastest.busy >= BUSY:
        doubt = "a rank kept a CPU busy: the CPU, not the link, may be the limit"
    elif not steady:
        doubt = "it was still rising: measure larger sizes (--max)"
    return ("not_judged", f"{of_link}, but {doubt}") if doubt else ("slow", of_link)


def _no_cpu(share: float) -> str:
    return f"the ranks had no CPU time for up to {share:.0%} of that: measure again on idle nodes"


def slow_nodes(pairs: Sequence[Pair]) -> tuple[tuple[Slow, ...], list[str]]:
    """
    Nodes that are slow with every partner, and texts about nodes that may only have lacked CPU time.

    A node's speed is that of its best pair.  A node looks slow if its speed is below SLOW_PAIR of the median
    of all nodes, and below SLOW_PAIR of what healthy pairs reached in the second measurement.  It is slow if
    pairs with two healthy-looking partners confirm it, and so does every second measurement.  The time that
    ranks waited for a CPU is not counted against a node.
    """
    met = grouped((node, pair) for pair in pairs for node in pair.nodes)
    if len(met) < 3:
        return (), []
    best = {node: max(pair.busbw_gbyte_s for pair in own) for node, own in met.items()}
    # Only some nodes were measured again; a quiet moment then must not raise the limit for the others.
    before = [[pair.busbw_gbyte_s for pair in own if pair.stage != AGAIN] for own in met.values()]
    usual = statistics.median_high(max(speeds, default=0.0) for speeds in before)
    looks = {node for node in met if best[node] < SLOW_PAIR * usual}
    beside = [p.busbw_gbyte_s for p in pairs if p.stage == AGAIN and not looks.intersection(p.nodes)]
    usual = min(usual, max(beside, default=usual))
    found, unsure = [], []
    floor = SLOW_PAIR * usual
    for node in [node for node in met if node in looks and best[node] < floor]:
        shown = [pair for pair in met[node] if at_best(pair.busbw_gbyte_s, pair.starved) < floor]
        partners = {other for pair in met[node] for other in pair.nodes} - {node}
        figures = f"{best[node]:.3g} GB/s, not {usual:.3g}"
        clear = {other for pair in shown for other in pair.nodes} - looks
        if len(clear) > 1 and all(pair in shown for pair in met[node] if pair.stage == AGAIN):
            words = f"{node} with {summarize_names(sorted(partners))}: {figures} as other pairs"
            found.append(Slow(node, words, best[node], usual))
        elif len(partners - looks) > 1:
            waited = max(pair.starved for pair in met[node])
            unsure.append(f"{node} was slower than others ({figures}), but {_no_cpu(waited)}")
    return tuple(found), unsure


def stragglers(rows: Sequence[Row]) -> list[str]:
    """Ranks whose median is far above the others' in most large sizes; an average would hide them."""
    large = [row for row in rows if len(row.median_us) > 2][-5:]
    late: dict[int, list[float]] = {}
    """Rank -> share of its time for which it waited for a CPU, in each size."""
    for row in large:
        usual = statistics.median(row.median_us)
        for rank, median in enumerate(row.median_us):
            if usual and median > 1.25 * usual:
                waited = row.waited_us[rank] if rank < len(row.waited_us) else 0.0
                late.setdefault(rank, []).append(min(1.0, waited / median))
    notes = []
    for rank, parts in late.items():
        if len(large) > 2 and len(parts) > len(large) // 2:
            sizes, share = f"{len(parts)} of the {len(large)} largest sizes", statistics.median(parts)
            cpu = f"; it waited for a CPU for {share:.0%} of the time" * (share >= cpu_starvation.SHARE)
            notes.append(f"rank {rank} took over 1.25 times the ranks' median in {sizes}{cpu}")
    return notes
