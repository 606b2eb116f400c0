"""
Compare two runs, saved facts or environments: what differs that matters, worst first.

A and B are a run's folder, a file of `check --save`, or the output of `env --json`; A is the one that worked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ringup import bundle, differences
from ringup.cli import options, pipeline
from ringup.differences import FactChange, Side
from ringup.errors import UsageError
from ringup.hosts.folding import node_set
from ringup.output import terminal
from ringup.rules import Finding, Skipped
from ringup.units import grouped, printable

LARGEST_BYTES = 1 << 30
MOST_LINES, MOST_VARIANTS = 10, 3
HINT = "name a run's folder (runs/RUN), a file of `check --save F`, or one with `env --json`"
OPTIONS = (
    options.Row(
        ("before",), {"metavar": "A", "help": "what worked: runs/RUN, a file of --save or env --json"}
    ),
    options.Row(("after",), {"metavar": "B", "help": "what does not work, of the same kind"}),
    options.group(
        "output",
        options.JSON,
        options.flag("--all", f"every difference, not the first {MOST_LINES}", dest="unfolded"),
        options.HTML,
        options.QUIET,
    ),
)


def run(args: argparse.Namespace) -> int:
    """1 if B has something of severity error that A has not."""
    a, b = side(args.before), side(args.after)
    found, lacking = differences.compare(a, b), differences.not_compared(a, b)
    heads = [f"{name} {s.path}: {printable(s.head)}" for name, s in (("A", a), ("B", b))]
    if args.html:
        from ringup.output import html_page

        terminal.write(Path(args.html), html_page.diff_page(heads, [cells(d, b) for d in found], lacking))
        terminal.say(f"page written: {terminal.path_shown(args.html)}", quiet=args.quiet)
    if args.json:
        both = {name: {"path": s.path, "kind": s.kind, "head": s.head} for name, s in (("a", a), ("b", b))}
        terminal.print_json(**both, differences=found, not_compared=lacking)
    else:
        every = found if args.unfolded else folded(found)
        shown = [cells(d, b) for d in (every if args.unfolded else every[:MOST_LINES])]
        terminal.show("\n".join([*heads, "", *lines(shown, len(every), lacking)]))
    return int(any(d.severity == "error" for d in found))


def side(path: str) -> Side:
    """The run, facts or environment of an argument.  Raises UsageError."""
    from ringup.differences import sides

    place = Path(path) if Path(path).exists() else Path("runs") / path
    file = place / "run.json" if place.is_dir() else place
    shown = terminal.path_shown(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(LARGEST_BYTES)
        keys = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if "cluster" in keys:
            judged = pipeline.judge(bundle.load(file))
            selected = [expected.prediction for expected in judged.report.predictions]
            found: list[Finding | Skipped] = [*judged.findings, *judged.skipped]
            return sides.of_facts(shown, judged.cluster, found, judged.plan, selected)
        if "run" in keys:
            return sides.of_run(shown, file.parent, data)
        if "env" in keys and "pairs" not in keys:
            return sides.of_environment(shown, data)
    except OSError as error:
        raise UsageError(f"{terminal.path_shown(file)}: {error.strerror}", hint=HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown}: {printable(str(error), 200)}", hint=HINT) from error
    raise UsageError(f"{shown}: not a run, saved facts or an environment", hint=HINT)


def folded(found: Sequence[FactChange]) -> list[FactChange]:
    """A fact that changed in many ways (each node's address) as one change, with the text of the first."""
    shown = []
    for same in grouped(((d.severity, d.topic, d.name), d) for d in found).values():
        first, others = same[0], f" and {len(same) - 1} others"
        if first.topic != "problem" and len(same) > MOST_VARIANTS:
            nodes, before, after = [n for d in same for n in d.nodes], first.before, first.after
            shown.append(replace(first, nodes=(*nodes,), before=before + others, after=after + others))
        else:
            shown += same
    return shown


def cells(one: FactChange, now: Side) -> tuple[str, ...]:
    """Severity, subject, place ("" for everywhere), before and after, as text."""
    what = one.name if one.topic in ("outcome", "node") else f"{one.topic} {one.name}"
    what = f"new {what}" if one.topic == "problem" and not one.before else what
    where = "" if set(one.nodes) == set(now.nodes) else node_set(printable(n, 64) for n in one.nodes)
    before = one.before or "none"
    after = one.after or ("not found any more" if one.topic == "problem" else "none")
    change = f" ({one.change:+.0%})" if one.change is not None else ""
    return (one.severity, *(printable(text, 300) for text in (what, where, before, after + change)))


def lines(rows: Sequence[Sequence[str]], count: int, lacking: Sequence[str]) -> list[str]:
    """A line for each difference, the number of further ones, and what could not be compared."""
    style = terminal.Style(sys.stdout)
    text = []
    for severity, what, where, before, after in rows:
        place = f" on {where}" if where else ""
        change = after if what.startswith("new problem ") else f"{before} -> {after}"
        words = f"{severity:<7}  {what}{place}: {change}"
        first, *more = terminal.wrapped(words, style.width, "", "         ")
        text += [style(severity, first[:7]) + first[7:], *more]
    text += [f"and {count - len(rows)} more: --all shows them"] if count > len(rows) else []
    text += [f"not compared: {printable(why, 300)}" for why in lacking]
    return text if rows else [*text, style("ok", "No difference that matters was found.")]
