"""
Test that every rank computes correct results: device, memory, and collectives with checked results.

The ranks are started as `ringup run` starts them.  A missing rank is named.  After wrong results, ringup
tests nodes, then their ranks, in pairs to find the faulty ranks.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from ringup.cli import collective, pods
from ringup.output import collective_report as show
from ringup.output import terminal

OPTIONS = collective.OPTIONS


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Check, start, compare; 1 if any rank fails."""
    started = collective.start("test", args)
    if isinstance(started, int):
        return started
    outcome, style = started.ended, terminal.Style(sys.stdout)
    if args.json:
        more = {"ok": outcome.ok, "backend": started.backend, "warnings": started.warnings}
        terminal.print_json(**asdict(outcome), **more)
    elif started.result.outcome == "interrupted":
        terminal.show(style("warning", "interrupted: not every rank was tested"))
    else:
        warnings = (style("warning", f"warning: {w}") for w in started.warnings)
        terminal.show("\n".join([*warnings, *show.test_lines(outcome, unfolded=args.unfolded)]))
        terminal.show(style("ok" if outcome.ok else "error", show.test_verdict(outcome)))
    if args.html:
        from ringup.output import html_page

        page = html_page.Page("test")
        html_page.add_test(page, outcome)
        terminal.write(Path(args.html), html_page.check_page(started.check, page))
    return started.code(outcome.ok)
