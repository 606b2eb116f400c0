"""Check every node and test every pair of nodes; start nothing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ringup.cli import options, pipeline, pods
from ringup.output import terminal

FORMAT = options.choice("--format", ("text", "json", "junit"), "text, json, or junit: XML on stdout", "text")
_FAILING = "write the names of nodes with errors, one per line, for srun --exclude=F and --exclude-from F"
FAILING = options.value("--failing", "F", _FAILING, None, options.writable)
OPTIONS = (*options.CHECK, FORMAT, FAILING)


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    from ringup.output import console

    judged = pipeline.judge(pipeline.cluster_of(args))
    pipeline.write_page(judged, args)
    if args.failing:
        bad = {f.node for f in judged.findings if f.severity == "error"}
        names = [node.name for node in judged.cluster.nodes if node.unreached or node.name in bad]
        terminal.write(Path(args.failing), "".join(f"{name}\n" for name in names))
    if args.json or args.format == "json":
        print(json.dumps(console.check_json(judged.report)))
    elif args.format == "junit":
        names = [node.name for node in judged.cluster.nodes]
        from ringup.output import sarif_junit

        print(sarif_junit.junit(names, judged.findings, judged.skipped, args.strict))
        text = console.check_text(judged.report, terminal.Style(sys.stderr), unfolded=args.unfolded)
        terminal.say(text, quiet=args.quiet)
    else:
        terminal.show(console.check_text(judged.report, terminal.Style(sys.stdout), unfolded=args.unfolded))
    return pipeline.exit_code(judged.findings, judged.skipped, args.strict)
