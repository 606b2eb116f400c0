"""
Prove that every rank computes what it should: device, memory, and collectives with checked results.

The ranks are started as `ringup run` starts them.  A rank that does not arrive is named; where results
are wrong, the ranks that make them wrong are searched for, nodes in pairs and a node by halves.
"""

from __future__ import annotations

import argparse
import json
import sys

from ringup.commands import pods, proving


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup test`."""
    proving.add_arguments(parser)


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Check, start, compare; 1 when any rank is not fine."""
    started = proving.start("test", args)
    if isinstance(started, int):
        return started
    from ringup.prove import show, tested
    from ringup.report import Style, envelope

    outcome = tested.tested(started.plan, started.told, started.result)
    is_interrupted = started.result.outcome == "interrupted"
    style = Style(sys.stdout)
    if args.json:
        print(json.dumps(envelope(**show.test_json(outcome))))
    elif is_interrupted:
        print(style("warning", "interrupted: not every rank was tested"))
    else:
        print("\n".join(show.test_lines(outcome)))
        print(style("ok" if outcome.ok else "error", show.test_verdict(outcome)))
    if is_interrupted:
        return started.result.exit_code
    return 0 if outcome.ok else 1
