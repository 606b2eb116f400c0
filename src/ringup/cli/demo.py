"""
Run a real two-node training on this one machine: no root, no ssh, no GPU.

Two nodes are simulated on loopback addresses. ringup checks them, trains a small character model on them, and
searches for leftovers.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import ringup
from ringup.cli import run as run_command
from ringup.cli.options import folder, positive, ranks, value
from ringup.cli.parser import Parser
from ringup.errors import LaunchError
from ringup.output import terminal

OPTIONS = (
    value("--nodes", "N", "nodes to simulate (2)", 2, positive),
    value("--nproc", "N", "ranks on each (2)", 2, ranks),
    value("--steps", "N", "training steps (60)", 60, positive),
    value("--log-dir", "D", "where the ranks' output is kept (a directory of its own)", None, folder),
)


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        hint = "`make demo` in a clone gets one, or: pip install torch"
        raise LaunchError(f"{sys.executable} has no torch, and the demo trains with it", hint=hint)
    script = Path(str(ringup.__file__)).parent / "agent" / "demo_train.py"
    log_dir = ["--log-dir", args.log_dir] if args.log_dir else []
    words = [
        *("--local", str(args.nodes), "--nproc", str(args.nproc), "--backend", "gloo"),
        *("--python", sys.executable, *log_dir, "--", str(script), "--steps", str(args.steps)),
    ]
    terminal.say(f"$ ringup run {' '.join(words)}\n")
    code = run_command.run(Parser("ringup demo", None, run_command.OPTIONS).parse_args(words))
    if code == 0:
        where = terminal.path_shown(args.log_dir or "runs")
        following = "Next, with two machines of yours: ringup check -H node0,node1"
        terminal.say(f"The output stays in {where}.  {following}")
    return code
