"""The commands, and the parser of each; a command's module is imported when needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringup.cli.parser import Parser

COMMANDS = {
    "check": "check every node and test every pair of nodes; start nothing",
    "run": "check, decide, launch, watch, clean up",
    "attach": "follow a run started with --detach",
    "runs": "list the runs of a log directory: state, nodes, script, outcome, cause",
    "top": "watch a running job: one row per rank, worst first, and the verdict on a hang",
    "diff": "compare two runs, saved facts or environments: what differs, worst first",
    "stacks": "show where every rank of a running job is in its code",
    "lint": "find what breaks on several nodes in a training script or job file",
    "test": "test every rank: device, memory, collectives with checked results",
    "bench": "measure collectives over sizes, compare with the link's rate, name the slow node",
    "sweep": "try the network settings that differ, print their rates and the one to keep",
    "script": "write the file that starts the job without ringup: Slurm, PBS, LSF, ssh, docker, Kubernetes",
    "clean": "list leftovers of earlier runs on the nodes, end the proven ones",
    "env": "print the environment variables that matter here, each with its reason",
    "predict": "predict which interfaces and devices NCCL will choose, and why",
    "logs": "name the root cause from NCCL, torch and launcher output",
    "report": "write one page to forward: verdict, timeline, network, findings of a run, logs or facts",
    "trace": "write the activity of every rank over time, for Perfetto",
    "explain": "explain a problem and how to fix it",
    "bundle": "pack facts, findings and logs for a bug report, secrets removed",
    "completion": "print the completion for bash, zsh or fish",
    "config": "print every option's value and where it comes from",
    "schema": "print the JSON Schema of a command's --json",
    "demo": "run a real two-node training on this one machine: no root, no ssh, no GPU",
}
"""Name -> one line.  The module is `ringup.cli.NAME`."""


def parser_for(name: str) -> Parser:
    from ringup.cli.parser import Parser

    module = importlib.import_module(f"ringup.cli.{name}")
    parser = Parser(f"ringup {name}", module.__doc__, module.OPTIONS)
    parser.kinds = getattr(module, "KINDS", ())
    parser.set_defaults(run_command=module.run)
    return parser
