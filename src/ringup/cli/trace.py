"""
Write the activity of every rank as a trace: drag the file into https://ui.perfetto.dev.

RUN is a run's name or folder; logs and dumps of torch's flight recorder of any job also work.  Without an
argument, the newest run.  One track per rank (launch, NCCL's set-up, steps, waiting, the failure) and one for
each of its process groups: collectives and transfers with their sizes, and an arrow from the first rank in a
collective to the last one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ringup import bundle
from ringup.cli import options, runs
from ringup.errors import RingupError, writing
from ringup.output import terminal
from ringup.units import plural

OPTIONS = (
    options.words("paths", "RUN", "a run, its folder, or logs and dumps (the newest run)"),
    options.value("-o --output", "F", "the file (trace.json)", "trace.json", options.writable),
    options.flag("--quiet", "print nothing but errors"),
)


def run(args: argparse.Namespace) -> int:
    from ringup.output import timeline_report
    from ringup.timeline import trace
    from ringup.timeline.read import read, timeline_of

    timeline = timeline_of(*read(paths := runs.paths_of(args.paths)))
    if not timeline.ranks:
        where = ", ".join(map(terminal.path_shown, paths[:3]))
        raise RingupError(f"{where}: no rank is in it", hint="name a run that was started, or logs of one")
    count, shown = 0, terminal.path_shown(args.output)
    with (
        writing(shown),
        bundle.whole(Path(args.output)) as place,
        place.open("w", encoding="utf-8") as file,
    ):
        for text in trace.document(timeline, timeline_report.about(timeline)):
            count += text.count('"ph":')
            file.write(text)
    ranks = plural(len(timeline.ranks), "rank")
    terminal.say(f"trace written: {shown}: {plural(count, 'event')} of {ranks}", quiet=args.quiet)
    terminal.say("open https://ui.perfetto.dev and drag the file into it", quiet=args.quiet)
    return 0
