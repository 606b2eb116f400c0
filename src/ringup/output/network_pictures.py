"""Pictures of a network: reachability, the devices of each node, and rates."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ringup.draw import matrix
from ringup.draw.boxes import Box, Tie, boxes
from ringup.draw.curve import curves
from ringup.model import Cluster, Link, Node, cpu_starvation
from ringup.nccl import pci
from ringup.nccl.selection import Prediction
from ringup.network.predictions import Expected
from ringup.output.console import Report, tested_paths
from ringup.secrets import safe
from ringup.units import grouped, natural, plural, summarize_names

if TYPE_CHECKING:
    from ringup.collective_tests import BandwidthReport, Pair

MOST_IN_TABLE, MOST_NODES, MOST_MAPS, MOST_BOXES = 32, 2000, 4, 16
SLOW_SHARE = 0.7
"""A pair slower than this share of the median is marked."""
SLOW_TIMES, LEAST_SLOW_MS = 5, 1.0
"""A round trip is named if it is this many times the median and at least this long."""


class Figure(NamedTuple):
    title: str
    words: str
    """Its meaning, in a sentence."""
    picture: str = ""
    """SVG or an image; "" if the table is the picture."""
    names: Sequence[str] = ()
    cells: Sequence[Sequence[tuple[str, str]]] = ()
    """Of a table of nodes: words and class of each cell."""
    lines: Sequence[str] = ()


class Cell(NamedTuple):
    """For two nodes: text and class in a table, the colour in an image."""

    text: str
    kind: str
    colour: int = matrix.NOT_TRIED


WORKS, PARTLY, FAILS = ("✔", "ok", matrix.WORKS), ("◐", "part", matrix.PARTLY), ("✖", "bad", matrix.FAILS)
short = functools.partial(safe, limit=64)


def of_cluster(report: Report) -> Iterator[Figure]:
    tried, bad = tested_paths(report.cluster)
    if tried:
        yield _reach("Paths between nodes", report.cluster, tried)
        interfaces = dict.fromkeys(link.dst_interface for link in bad)
        if len({link.dst_interface for link in tried}) > 1:
            for name in islice(interfaces, MOST_MAPS):
                to_it = [link for link in tried if link.dst_interface == name]
                yield _reach(f"Paths to {short(name)}", report.cluster, to_it)
    yield from _node_maps(report)


def _matrix(
    title: str,
    words: str,
    names: Sequence[str],
    cells: Mapping[tuple[str, str], Cell],
    legend: Sequence[str],
    lines: Sequence[str] = (),
) -> Figure:
    """Node x node as a table; as an image, with its legend, if there are too many nodes for a table."""
    if len(names) <= MOST_IN_TABLE:
        table = [[cells.get((a, b), Cell("", "same" if a == b else ""))[:2] for b in names] for a in names]
        return Figure(title, words, names=names, cells=table, lines=lines)
    places = {name: place for place, name in enumerate(names[:MOST_NODES])}
    rows = [[matrix.SAME if a == b else matrix.NOT_TRIED for b in places] for a in places]
    for (a, b), cell in cells.items():
        if a in places and b in places:
            rows[places[a]][places[b]] = cell.colour
    order = f"Nodes in order, from {short(names[0])} (top left) to {short(names[-1])}."
    return Figure(title, words, matrix.image(rows, words), lines=[order, *legend, *lines])


def _reach(title: str, cluster: Cluster, links: Sequence[Link]) -> Figure:
    """Node x node: the number of tested paths that work."""
    names = [node.name for node in cluster.nodes][:MOST_NODES]
    tried = grouped(((link.src, link.dst), link.works) for link in links)
    good = sum(map(sum, tried.values()))
    words = f"{good:,} of {len(links):,} paths work (row: from, column: to)."
    if lines := [*_bad_rows(names, tried), *_slow_paths(links)]:
        words += f" {lines[0]}"
    cells = {}
    for pair, answers in tried.items():
        mark, kind, colour = WORKS if all(answers) else PARTLY if any(answers) else FAILS
        cells[pair] = Cell(f"{mark} {sum(answers)}/{len(answers)}", kind, colour)
    shades = "Blue works, orange with a stripe works in part, red with a cross fails, white was not tested."
    return _matrix(title, words, names, cells, [shades], lines[1:])


def _bad_rows(names: Sequence[str], tried: dict[tuple[str, str], list[bool]]) -> Iterator[str]:
    """The nodes whose whole row or column fails, then the worst pairs."""
    named: set[tuple[int, str]] = set()
    for at, word in ((0, "from"), (1, "to")):
        of: dict[str, list[bool]] = {name: [] for name in names}
        for pair, answers in tried.items():
            of.setdefault(pair[at], []).append(any(answers))
        found = [name for name, answers in of.items() if len(answers) > 1 and not any(answers)]
        if found and len(found) < len(names):
            named.update((at, name) for name in found)
            yield f"No path {word} {summarize_names(map(short, found), 8)} works."
    pairs = [
        f"{short(src)} to {short(dst)}"
        for (src, dst), answers in tried.items()
        if not all(answers) and (0, src) not in named and (1, dst) not in named
    ]
    if pairs:
        yield f"Not every path works: {summarize_names(pairs, 10)}."


def _slow_paths(links: Sequence[Link]) -> Iterator[str]:
    times = {link: link.rtt_ms for link in links if link.rtt_ms is not None}
    if times:
        usual = median(times.values())
        yield f"Median round trip: {usual:.3g} ms."
        slow = [one for one in times.items() if one[1] > max(SLOW_TIMES * usual, LEAST_SLOW_MS)]
        slow.sort(key=lambda one: -one[1])
        named = (f"{short(a.src)} to {short(a.dst)} {short(a.dst_interface)} ({ms:.3g} ms)" for a, ms in slow)
        if slow:
            yield f"Much slower: {summarize_names(named, 10)}."


def _node_maps(report: Report) -> Iterator[Figure]:
    kinds: dict[object, tuple[list[str], Node, Expected | None]] = {}
    expected = {one.prediction.name: one for one in report.predictions}
    for node in report.cluster.nodes:
        if not node.unreached:
            made = expected.get(node.name)
            cards = tuple(i.name for i in node.interfaces), tuple(p.device for p in node.rdma_ports)
            shape = (*cards, node.gpu_count, made.prediction.likeness if made else None)
            kinds.setdefault(shape, ([], node, made))[0].append(node.name)
    for names, node, made in islice(kinds.values(), MOST_MAPS):
        if node.rdma_ports or any(i.kind != "loopback" for i in node.interfaces):
            yield _node_map(names, node, made)
    if len(kinds) > MOST_MAPS:
        yield Figure("More kinds of nodes", f"{len(kinds) - MOST_MAPS} more kinds of nodes are not drawn.")


def _interfaces(made: Prediction | None) -> set[str]:
    """The devices, interfaces and bootstrap interface of a selection."""
    if made is None:
        return set()
    boot = {made.bootstrap.interface} if made.bootstrap else set()
    return {entry.partition(":")[0] for entry in made.interfaces} | boot


def _node_map(names: Sequence[str], node: Node, expected: Expected | None) -> Figure:
    made = expected.prediction if expected else None
    alone = _interfaces(expected.alone if expected else None)
    devices = {one.bus_id: one for one in node.pci}
    used = {(use.gpu, use.device.partition(":")[0]) for use in made.used} if made else set()
    chosen = {name for _, name in used} | _interfaces(made)
    boot = made.bootstrap.interface if made and made.bootstrap else ""
    left = [Box(f"GPU {gpu.index}", short(gpu.name)) for gpu in node.gpus[:MOST_BOXES]]
    cards: dict[str, str] = {}
    right = []
    for port in node.rdma_ports[:MOST_BOXES]:
        cards[port.device] = port.bus_id
        rate = f"{port.rate_gbit_s:g} Gb/s " if port.rate_gbit_s else ""
        name, words = f"{short(port.device)}:{port.number}", short(f"{rate}{port.link_layer} {port.state}")
        right.append(Box(name, words, port.device in chosen))
    for one in [i for i in node.interfaces if i.kind != "loopback"][: MOST_BOXES - len(right)]:
        state = "" if one.is_linked else " (down)"
        addresses = ", ".join(a.address for a in one.usable_addresses[:2]) or "no address"
        words = f"{addresses}{state}" + (", bootstrap" if one.name == boot else "")
        words += ", used if nothing is set" if one.name in alone - chosen else ""
        right.append(Box(short(one.name), short(words), one.name in chosen))
    ties = []
    for row, gpu in enumerate(node.gpus[:MOST_BOXES]):
        for column, port in enumerate(node.rdma_ports[:MOST_BOXES]):
            if (gpu.index, port.device) in used:
                a, b = devices.get(gpu.bus_id), devices.get(cards[port.device])
                how = pci.distance(a, b) if a and b else ""
                ties.append(Tie(row, column, how, how in ("NODE", "SYS")))
    who = summarize_names(map(short, names), 8)
    if made and made.network:
        taken = summarize_names(map(short, sorted(chosen)), 8) or "no device"
        words = f"{short(made.network)} is expected to use {taken} ({made.confidence} confidence)."
    else:
        words = "Which devices will be used is not known."
    if ties:
        words += " Lines: which NIC a GPU uses, with their PCI distance; dashed: far, across CPUs."
    elif not node.gpus:
        words += " The GPUs are not known." if "gpus" in node.unknown else " No GPU was found."
    left = left or [Box("CPU", plural(node.cpu_count, "CPU") if node.cpu_count else "CPUs not known")]
    return Figure(f"Node map: {who}", words, boxes(left, right, ties, f"{who}: {words}"))


def of_bench(outcome: BandwidthReport) -> Iterator[Figure]:
    """A curve for each operation with the limit, and the pairs of nodes."""
    found = grouped((short(r.op), (float(r.size_bytes), r.busbw_gbyte_s)) for r in outcome.rows)
    best = max((r.busbw_gbyte_s for r in outcome.rows), default=0.0)
    limit = outcome.expected_busbw_gbyte_s
    known = f"{limit:.3g} GB/s is expected of the link ({outcome.link.source})" if limit else ""
    unknown = "the link's rate is not known"
    words = f"At best {best:.3g} GB/s; {known or unknown}."
    if picture := curves(found, limit, words):
        yield Figure("Bandwidth over size", words, picture)
    pairs = [pair for pair in outcome.pairs if pair.stage != "again"]
    if len(pairs) > 1:
        yield _pairs(outcome, pairs)


def _pairs(outcome: BandwidthReport, pairs: Sequence[Pair]) -> Figure:
    """Node x node: rates; a slow pair is marked unless it lacked CPU time.  `bandwidth` judges nodes."""
    by_nodes = {frozenset(pair.nodes): pair for pair in pairs}
    names = sorted({name for pair in pairs for name in pair.nodes}, key=natural)
    rates = [pair.busbw_gbyte_s for pair in by_nodes.values()]
    fastest, usual = max(rates), median(rates)
    words = f"Pairs of nodes: median {usual:.3g} GB/s, slowest {min(rates):.3g} GB/s."
    if outcome.slow:
        words += f" Slow: {summarize_names((short(one.node) for one in outcome.slow), 8)}."
    cells = {}
    for (a, b), rate, starved in ((p.nodes, p.busbw_gbyte_s, p.starved) for p in by_nodes.values()):
        cell = Cell(f"{rate:.3g}", "ok", matrix.rate(rate / fastest if fastest else 0.0))
        if starved >= cpu_starvation.SHARE:
            cell = Cell(f"({rate:.3g})", "", matrix.PARTLY)
        elif rate < SLOW_SHARE * usual:
            cell = Cell(f"✖ {rate:.3g}", "bad", matrix.FAILS)
        cells[a, b] = cells[b, a] = cell
    if len(names) <= MOST_IN_TABLE:
        if any(pair.starved >= cpu_starvation.SHARE for pair in pairs):
            words += " Pairs in brackets lacked CPU time."
        return _matrix("Bandwidth of pairs (GB/s)", words, names, cells, ())
    worst = sorted(by_nodes.values(), key=lambda pair: pair.busbw_gbyte_s)[:10]
    slowest = [f"{' - '.join(map(short, pair.nodes))} {pair.busbw_gbyte_s:.3g} GB/s" for pair in worst]
    legend = (
        f"Dark to yellow: 0 to {fastest:.3g} GB/s. Red with a cross: slower than {SLOW_SHARE:.0%} of the"
        " median. Orange with a stripe: lacked CPU time. White: not measured.",
        f"Slowest: {', '.join(slowest)}.",
    )
    return _matrix("Bandwidth of pairs", words, names, cells, legend)
