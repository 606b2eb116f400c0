"""
Measure collectives over sizes, check their results, and judge the rate against the link's.

Columns and formulas are nccl-tests'.  With more than two nodes they are also measured in pairs, which
names the slow one.  Where the link's rate cannot be read nothing is judged; --link-gbit states it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringup.commands import common, pods, proving
from ringup.errors import UsageError
from ringup.units import parse_size_bytes, show_bytes

if TYPE_CHECKING:
    from ringup.prove import Benched, Tested
    from ringup.report import Style

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(text: str) -> int:
    """
    A size in bytes; K, M and G are powers of 1024.

    >>> size("64M"), size("1024"), size("1KiB")
    (67108864, 1024, 1024)
    """
    try:
        size_bytes = parse_size_bytes(text)
    except ValueError:
        size_bytes = 0
    if not 4 <= size_bytes <= 64 * GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is no size from 4 to 64G, such as 64M")
    return size_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup bench`."""
    proving.add_arguments(parser)
    from ringup.prove.job import OPS

    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--op",
        choices=(*OPS, "all"),
        default="all_reduce",
        metavar="OP",
        help=f"the collective: {', '.join(OPS)} or all (all_reduce)",
    )
    group.add_argument("--min", type=size, default=KIB, metavar="SIZE", help="first size (1K)")
    group.add_argument("--max", type=size, metavar="SIZE", help="last size (1G with GPUs, else 64M)")
    group.add_argument("--no-pairs", action="store_true", help="do not measure nodes in pairs")
    group.add_argument("--plot", metavar="F", help="write a picture (.png or .svg; needs matplotlib)")


def arguments(args: argparse.Namespace, backend: str) -> tuple[str, ...]:
    """What our program is told."""
    from ringup.prove import job

    ops = job.OPS if args.op == "all" else (args.op,)
    last = args.max or max(args.min, GIB if backend == "nccl" else 64 * MIB)
    sizes = ",".join(map(str, job.sizes(args.min, last)))
    return (",".join(ops), sizes, "0" if args.no_pairs else "1")


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Check, start, measure, judge; 1 for a wrong result or a slow link."""
    if args.max and args.max < args.min:
        raise UsageError("--max is less than --min", hint="for example --min 1K --max 64M")
    if args.plot:
        plot_library(args.plot)
    started = proving.start("bench", args, arguments, on_line=Table(args.json, args.quiet))
    if isinstance(started, int):
        return started
    from ringup.prove import benched, job, link, show, tested
    from ringup.report import Style, envelope

    ops = job.OPS if args.op == "all" else (args.op,)
    rate = link.link_rate(started.cluster, started.plan, started.backend)
    outcome = benched.benched(
        started.plan,
        started.told,
        rate,
        started.backend,
        ops,
        proving.channels(started),
        is_whole=started.result.outcome == "ok",
    )
    ended = tested.tested(started.plan, started.told, started.result)
    if args.json:
        print(json.dumps(envelope(**show.bench_json(outcome, ended))))
    else:
        style = Style(sys.stdout)
        lines = last_lines(started.result.outcome, outcome, ended, style)
        print("\n".join(["", *show.bench_lines(outcome), *lines]))
    if args.plot:
        draw(args.plot, outcome)
    if started.result.outcome == "interrupted":
        return started.result.exit_code
    if started.result.outcome != "ok":
        return 1
    return 0 if outcome.correct and outcome.verdict != "slow" else 1


def last_lines(how: str, outcome: Benched, ended: Tested, style: Style) -> list[str]:
    """The verdict; who stood in the way where the measurement did not come to its end."""
    from ringup.prove import show

    lines = []
    if how == "interrupted":
        lines.append(style("warning", "interrupted: not measured to the end"))
    elif how != "ok":
        lines += [*show.test_lines(ended), style("error", f"not measured to the end: {show.culprits(ended)}")]
    if not outcome.correct:
        lines.append(style("error", "a result was wrong: `ringup test` finds the rank"))
    if how == "ok":
        colour = {"ok": "ok", "slow": "warning", "not_judged": "dim"}[outcome.verdict]
        lines.append(style(colour, f"{outcome.verdict.replace('_', ' ')}: {outcome.because}"))
    return lines


class Table:
    """Shows rows as they are measured."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.stream = sys.stderr if as_json else sys.stdout
        self.quiet = quiet and as_json
        self.op = ""

    def __call__(self, line: dict[str, object]) -> None:
        if line["kind"] != "row" or self.quiet:
            return
        from ringup.prove import benched, show

        row = benched.row(line)
        if row.op != self.op:
            self.op = row.op
            print(f"\n{row.op}\n{show.HEAD}", file=self.stream)
        print(show.row_line(row), file=self.stream, flush=True)


def plot_library(path: str) -> None:
    """Raises UsageError early where no picture can be made."""
    import importlib.util

    if Path(path).suffix not in (".png", ".svg"):
        raise UsageError(f"--plot {path!r} is neither .png nor .svg", hint="for example --plot rate.svg")
    folder = Path(path).parent
    if not folder.is_dir():
        raise UsageError(f"--plot {path}: {folder} is no directory", hint="make it, or name another one")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib", hint="pip install 'ringup[plot]'; the terminal shows a curve"
        )


def draw(path: str, outcome: Benched) -> None:
    """Bus bandwidth over size, one line an operation; the link's rate where it is known."""
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
    axes.set(xlabel="size", ylabel="bus bandwidth (GB/s)", title=title(outcome))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if outcome.rows:
        axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        common.say(f"ringup: {path} was not written: {error.strerror}")
    pyplot.close(figure)


def title(outcome: Benched) -> str:
    """What a picture says above itself."""
    nodes = f"{outcome.nodes} node{'s' * (outcome.nodes != 1)}"
    return f"{outcome.ranks} rank{'s' * (outcome.ranks != 1)} on {nodes}, {outcome.backend}"
