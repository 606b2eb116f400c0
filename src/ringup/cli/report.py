"""
Write one page to forward: what happened, why, where, and what to do, with pictures.

RUN is a run's name or folder; logs of any job also work, and so does a file written by --save, alone or with
logs.  Without an argument, the newest run.  The page is one file: no script, nothing fetched, light and dark,
printable; secrets are removed.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ringup.cli import collective, launching, options, pipeline, runs
from ringup.output import terminal

OPTIONS = (
    options.words("paths", "RUN", "a run, its folder, logs, or a file of --save (the newest run)"),
    options.value("-o --output", "F", "the page (report.html)", "report.html", options.writable),
    options.flag("--quiet", "print nothing but errors"),
)


def run(args: argparse.Namespace) -> int:
    from ringup import bundle
    from ringup.output import html_page

    paths = runs.paths_of(args.paths)
    page = html_page.Page("report", shlex.join(["ringup", "report", *map(terminal.path_shown, paths)]))
    facts = [path for path in paths if is_facts(path)]
    if logs := [path for path in paths if path not in facts]:
        html_page.add_logs_of(page, logs)
        facts += [str(saved) for path in logs if (saved := Path(path) / launching.FACTS_FILE).is_file()]
        for path in logs:
            html_page.add_bench_of(page, Path(path) / collective.BENCH_FILE)
    for path in facts[:1]:
        html_page.add_check(page, pipeline.judge(bundle.load(Path(path))).report)
    terminal.write(Path(args.output), html_page.render(page))
    terminal.say(f"page written: {terminal.path_shown(args.output)}", quiet=args.quiet)
    return 0


def is_facts(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            head = file.read(4096)
    except OSError:
        return False
    return head.lstrip()[:1] == b"{" and b'"schema"' in head and b'"cluster"' in head
