"""
Print the environment variables that change something on this cluster, each with its reason.

Variables that are already set are kept; their effect is shown on stderr, or in the JSON.
"""

from __future__ import annotations

import argparse
import dataclasses

from ringup.cli import options, pipeline
from ringup.output import terminal
from ringup.output.console import kept_json, kept_lines
from ringup.units import printable

OPTIONS = (
    options.choice("--format", ("shell", "json", "slurm", "docker", "k8s"), "default: shell", "shell"),
    options.flag("--debug", "also variables that show where a job hangs"),
    options.value("--log-dir", "D", "where --debug's files go (default: .)", "."),
    *(options.NODES, options.JOB, options.STRICT),
    options.flag("--json", "the same as --format json"),
    options.ALL,
    options.QUIET,
)


def run(args: argparse.Namespace) -> int:
    from ringup.planning.env_formats import FORMATS, Machine
    from ringup.planning.minimal_env import minimal_env

    cluster = pipeline.cluster_of(args)
    made = minimal_env(cluster, debug=args.debug, log_dir=args.log_dir)
    if args.json or args.format == "json":
        terminal.print_json(
            env=made.env,
            kept=kept_json(made.kept),
            notes=[printable(n, 1000) for n in made.notes],
            explained=[printable(n, 1000) for n in made.explained],
        )
    else:
        # A script on a node can read the node's own short host name.
        own = {n.name: n.hostname.split(".")[0] or n.name for n in cluster.nodes}
        own = own if len(set(own.values())) == len(own) else {name: name for name in own}
        named = tuple(dataclasses.replace(v, node=own[v.node]) if v.node else v for v in made.env)
        harmful = tuple(sorted({one.name for one in made.kept if one.verdict == "harmful"}))
        machine = dataclasses.replace(Machine.of(cluster), is_decided=not made.notes, harmful=harmful)
        print(FORMATS[args.format](named, machine))
        if len(cluster.nodes) == 1 and not cluster.nodes[0].unreached:
            words = f"note: only {cluster.nodes[0].name} was checked; name all nodes of a job: -H node0,node1"
            terminal.say(words, quiet=args.quiet)
        kept = (f"kept: {line}" for line in kept_lines(made.kept, unfolded=args.unfolded))
        for line in (*(f"note: {note}" for note in made.notes), *kept, *made.explained):
            terminal.say(printable(line, 1000), quiet=args.quiet)
    return pipeline.say_unreached(cluster.nodes) or (3 if args.strict and made.notes else 0)
