"""
Print the environment variables that change something on this cluster, each with its reason.

What is set already is kept, and judged: on stderr, or in the JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from ringup import __version__
from ringup.commands import check, common
from ringup.facts import Cluster
from ringup.plan import EnvVar
from ringup.plan.least import Least
from ringup.units import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup env`."""
    parser.add_argument(
        "--format",
        choices=("shell", "json", "slurm", "docker", "k8s"),
        default="shell",
        help="default: shell",
    )
    parser.add_argument("--debug", action="store_true", help="also what shows where a job hangs")
    parser.add_argument("--log-dir", default=".", metavar="D", help="where --debug's files go (default: .)")
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def _collected(args: argparse.Namespace) -> Cluster:
    if args.from_file:
        return check.loaded(args)
    hosts = common.nodes_from(args)
    from ringup import reach

    job = common.job_from(args)
    with reach.open(hosts, ssh_config=args.ssh_config) as door:
        cluster = check.collect(door, job, args, check.Progress(args.quiet))
    check.save(cluster, args)
    return cluster


def run(args: argparse.Namespace) -> int:
    """Collect, decide, print."""
    from ringup.plan.formats import FORMATS, Machine
    from ringup.plan.least import least

    cluster = _collected(args)
    made = least(cluster, debug=args.debug, log_dir=args.log_dir)
    if args.json or args.format == "json":
        print(json.dumps(as_json(made)))
    else:
        named = as_nodes_call_themselves(made.env, cluster)
        machine = dataclasses.replace(Machine.of(cluster), is_decided=not made.notes)
        print(FORMATS[args.format](named, machine))
        for line in beside(made):
            common.say(line, quiet=args.quiet)
    return 3 if args.strict and made.notes else 0


def as_nodes_call_themselves(env: tuple[EnvVar, ...], cluster: Cluster) -> tuple[EnvVar, ...]:
    """Variables of one node under that node's own short host name, which a script there can ask for."""
    own = {n.name: n.hostname.split(".")[0] or n.name for n in cluster.nodes}
    if len(set(own.values())) < len(own):
        return env
    return tuple(dataclasses.replace(v, node=own[v.node]) if v.node else v for v in env)


def as_json(made: Least) -> dict[str, Any]:
    """The variables as in `check --json`, and what is set already."""
    from ringup.report import env_json, kept_json

    return {
        "ringup": __version__,
        "schema": 1,
        "env": env_json(made.env),
        "kept": kept_json(made.kept),
        "notes": [printable(n, 1000) for n in made.notes],
        "explained": [printable(n, 1000) for n in made.explained],
    }


def beside(made: Least) -> list[str]:
    """What people should know besides the variables."""
    from ringup.report import kept_lines

    lines = [printable(f"note: {note}", 1000) for note in made.notes]
    lines += [f"kept: {line}" for line in kept_lines(made.kept)]
    lines += [printable(line, 1000) for line in made.explained]
    return lines
