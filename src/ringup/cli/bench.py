"""
Measure collectives over sizes, check their results, and judge the rate against the link's.

Columns and formulas are those of nccl-tests.  With more than two nodes, pairs of nodes are also measured, to
find the slow node.  If the link's rate cannot be read, there is no verdict; --link-gbit states the rate.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ringup import progress
from ringup.cli import collective, options, pods
from ringup.collective_tests import BandwidthReport, CorrectnessReport, bandwidth, link_rate
from ringup.collective_tests.job import OPS, sizes
from ringup.errors import UsageError
from ringup.output import collective_report as show
from ringup.output import terminal
from ringup.units import parse_size_bytes, plural, show_bytes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
size = options.number("a size from 4 to 64G, such as 64M", 4, 64 * GIB, parse_size_bytes)
OP = f"the collective: {', '.join(OPS)} or all (all_reduce)"
PLOT = "write a picture (.png or .svg; needs matplotlib)"
OPTIONS = (
    *collective.OPTIONS,
    options.group(
        "what to measure",
        options.choice("--op", (*OPS, "all"), OP, "all_reduce", metavar="OP"),
        options.value("--min", "SIZE", "first size (1K)", KIB, size),
        options.value("--max", "SIZE", "last size (1G with GPUs, else 64M)", None, size),
        options.flag("--no-pairs", "do not measure nodes in pairs"),
        options.value("--plot", "F", PLOT, None, options.writable),
    ),
)


def arguments(args: argparse.Namespace, backend: str) -> tuple[str, ...]:
    """Of the program that the ranks run: operations, sizes, whether to measure pairs of nodes."""
    last = args.max or max(args.min, GIB if backend == "nccl" else 64 * MIB)
    return ",".join(ops_of(args)), ",".join(map(str, sizes(args.min, last))), "0" if args.no_pairs else "1"


def ops_of(args: argparse.Namespace) -> tuple[str, ...]:
    return OPS if args.op == "all" else (args.op,)


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Check, start, measure, judge; 1 for a wrong result or a slow link."""
    if args.max and args.max < args.min:
        raise UsageError("--max is less than --min", hint="for example --min 1K --max 64M")
    if args.plot:
        plot_library(args.plot)
    started = collective.start("bench", args, arguments, on_line=table(args))
    if isinstance(started, int):
        return started
    how = started.result.outcome
    outcome = report_of(started, ops_of(args), collective.channels(started))
    if args.json:
        terminal.print_json(**show.bench_json(outcome, started.ended), warnings=started.warnings)
    else:
        style = terminal.Style(sys.stdout)
        lines = [style("warning", f"warning: {w}") for w in started.warnings]
        lines += last_lines(how, outcome, started.ended, style)
        terminal.show("\n".join(["", *show.bench_lines(outcome, unfolded=args.unfolded), *lines]))
    if args.plot:
        draw(args.plot, outcome)
    (started.log_dir / collective.BENCH_FILE).write_bytes(msgspec.json.encode(outcome))
    if args.html:
        from ringup.output import html_page

        page = html_page.Page("bench")
        html_page.add_bench(page, outcome)
        terminal.write(Path(args.html), html_page.check_page(started.check, page))
    return started.code(how == "ok" and outcome.correct and outcome.verdict != "slow")


def report_of(
    started: collective.Started, ops: Sequence[str], channels: Mapping[str, Mapping[str, int]]
) -> BandwidthReport:
    """The measurements, with the verdict against the link's rate."""
    link = link_rate.link_rate(started.cluster, started.plan, started.backend)
    found, is_whole = started.records, started.result.outcome == "ok"
    return bandwidth.report(started.plan, found, link, started.backend, ops, channels, is_whole)


def last_lines(how: str, made: BandwidthReport, ended: CorrectnessReport, style: terminal.Style) -> list[str]:
    """The verdict; if the measurement did not finish, the ranks that failed."""
    lines = []
    if how == "interrupted":
        lines.append(style("warning", "interrupted before the measurement finished"))
    elif how != "ok":
        why = f"the measurement did not finish: {show.culprits(ended)}"
        lines += [*show.test_lines(ended), style("error", why)]
    if not made.correct:
        lines.append(style("error", "a result was wrong: `ringup test` finds the rank"))
    if how == "ok":
        colour = {"ok": "ok", "slow": "warning", "not_judged": "dim"}[made.verdict]
        lines.append(style(colour, f"{made.verdict.replace('_', ' ')}: {made.because}"))
    return lines


def table(args: argparse.Namespace) -> Callable[[dict[str, object]], None]:
    stream, ops = sys.stderr if args.json else sys.stdout, [""]

    def on_line(line: dict[str, object]) -> None:
        if line["kind"] != "row" or (args.quiet and args.json):
            return
        row = bandwidth.row(line)
        progress.hide()
        if row.op != ops[-1]:
            ops.append(row.op)
            print(f"\n{row.op}\n{show.HEAD}", file=stream)
        print(show.row_line(row), file=stream, flush=True)

    return on_line


def plot_library(path: str) -> None:
    if Path(path).suffix not in (".png", ".svg"):
        raise UsageError(f"--plot {path!r} is neither .png nor .svg", hint="for example --plot rate.svg")
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'ringup[plot]'; the terminal shows a curve"
        raise UsageError("--plot needs matplotlib", hint=hint)


def draw(path: str, outcome: BandwidthReport) -> None:
    """Bus bandwidth over size, one line per operation; with the link's rate if known."""
    from matplotlib import pyplot  # the extra `plot`

    pyplot.switch_backend("Agg")

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for op in dict.fromkeys(row.op for row in outcome.rows):
        points = [(row.size_bytes, row.busbw_gbyte_s) for row in outcome.rows if row.op == op]
        axes.plot(*zip(*points, strict=True), marker="o", label=op)
    if outcome.expected_busbw_gbyte_s:
        axes.axhline(outcome.expected_busbw_gbyte_s, linestyle="--", color="grey", label="the link")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size_bytes, _position: show_bytes(size_bytes))
    title = f"{plural(outcome.ranks, 'rank')} on {plural(outcome.nodes, 'node')}, {outcome.backend}"
    axes.set(xlabel="size", ylabel="bus bandwidth (GB/s)", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if outcome.rows:
        axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        terminal.say(f"ringup: {terminal.path_shown(path)} was not written: {error.strerror}")
    pyplot.close(figure)
