"""
A real two-node run on this one machine: no root, no ssh, no GPU.

Two nodes are played on loopback addresses.  They are checked, a small character model
is trained over them on CPU, and what was left behind is looked for.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import ringup
from ringup.commands import common
from ringup.commands import run as run_command
from ringup.commands.parser import Parser
from ringup.errors import LaunchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup demo`."""
    parser.add_argument("--nodes", type=common.positive, default=2, metavar="N", help="nodes to play (2)")
    parser.add_argument("--nproc", type=common.ranks, default=2, metavar="N", help="ranks on each (2)")
    parser.add_argument("--steps", type=common.positive, default=60, metavar="N", help="training steps (60)")
    parser.add_argument(
        "--log-dir", metavar="D", help="where the ranks' output is kept (a directory of its own)"
    )


def words(args: argparse.Namespace, script: Path) -> list[str]:
    """The `ringup run` the demo stands for."""
    log_dir = ["--log-dir", args.log_dir] if args.log_dir else []
    return [
        *("--local", str(args.nodes), "--nproc", str(args.nproc), "--backend", "gloo"),
        *("--python", sys.executable, *log_dir, "--"),
        *(str(script), "--steps", str(args.steps)),
    ]


def run(args: argparse.Namespace) -> int:
    """Show the command, then run it."""
    if importlib.util.find_spec("torch") is None:
        raise LaunchError(
            f"{sys.executable} has no torch, and the demo trains with it",
            hint="`make demo` in a clone gets one, or: pip install torch",
        )
    script = Path(str(ringup.__file__)).parent / "payload" / "demo_train.py"
    asked = words(args, script)
    print(f"$ ringup run {' '.join(asked)}\n", file=sys.stderr, flush=True)
    parser = Parser("ringup demo")
    run_command.add_arguments(parser)
    return run_command.run(parser.parse_args(asked))
