"""
Write the file that starts the job without ringup: for a batch scheduler, ssh, docker or Kubernetes.

KIND is one of slurm pbs lsf ssh docker k8s-job jobset pytorchjob trainjob volcano.  With nodes named (or
--from), what was found there goes into the file, each variable with its reason; without, a job file finds
its network when it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import posixpath
import re
import sys
from pathlib import Path

from ringup.commands import check, common, lint
from ringup.commands.parser import SCRIPT_WORDS, Parser
from ringup.errors import LaunchError, UsageError
from ringup.facts import Cluster
from ringup.plan import EnvVar, Plan
from ringup.plan.command import LAUNCHERS
from ringup.script import KINDS, Asked, kinds
from ringup.units import printable

IN_CONTAINERS = ("docker", "k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")
"""Kinds whose paths are those of an image."""
KNOWN_NODES = ("ssh", "docker")
"""Kinds that name the nodes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup script`."""
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help="what the file is for")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="[options] -- SCRIPT ARGS", help="the training script"
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """All but the KIND, which may stand before or behind them."""
    group = parser.add_argument_group("the file")
    group.add_argument("--output", metavar="F", help="write it there instead of to stdout")
    group.add_argument("--nproc", type=common.positive, default=0, metavar="N", help="ranks per node")
    common.add_launcher_argument(group, LAUNCHERS)
    group.add_argument("--launcher-args", default="", metavar="'...'", help="options for the launcher itself")
    group.add_argument("--rdzv", choices=("static", "c10d"), default="static", help="(static)")
    group.add_argument("--debug", action="store_true", help="also what shows where a job hangs")
    group.add_argument("--image", default="", metavar="IMAGE", help="docker, Kubernetes: container image")
    group.add_argument("--namespace", default="", metavar="NS", help="Kubernetes: namespace")
    group.add_argument(
        "--rdma",
        default="",
        metavar="RESOURCE",
        help="Kubernetes: RDMA resource, e.g. rdma/hca_shared_devices_a",
    )
    add_batch_arguments(parser)
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser, strict=False)
    parser.add_argument("--json", action="store_true", help="the file's text as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """What a scheduler is asked for."""
    group = parser.add_argument_group("schedulers")
    group.add_argument("--nodes", type=common.positive, default=0, metavar="N", help="how many nodes")
    group.add_argument("--name", default="", metavar="NAME", help="the job's name (default: the script's)")
    group.add_argument(
        "--queue",
        "--partition",
        default="",
        metavar="Q",
        help="partition (Slurm) or queue (PBS, LSF, Volcano)",
    )
    group.add_argument("--account", default="", metavar="A", help="who pays")
    group.add_argument("--time", default="", metavar="H:M:S", help="time limit")
    group.add_argument(
        "--gpus", type=common.count, metavar="N", help="GPUs per node (default: as many as ranks)"
    )
    group.add_argument("--cpus", type=common.positive, default=0, metavar="N", help="CPUs per node")
    group.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPT",
        help="further option of the scheduler, e.g. --option=--qos=high; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    """Look at the nodes where there are some, write the file."""
    kind, quiet = args.kind, args.quiet
    parser = Parser(f"ringup script {kind}", __doc__)
    add_options(parser)
    parser.add_argument("script", nargs="*", metavar=SCRIPT_WORDS)
    args = parser.read(args.rest, args)
    from ringup.commands.run import script_words
    from ringup.report import envelope

    words = script_words(args, "ringup script KIND [options] -- train.py ARGS")
    show_lint(args, words[0])
    asked = asked_from(args, words, kind)
    warn_of_missing(asked, kind)
    text = kinds()[kind](asked)
    if args.json:
        print(json.dumps(envelope(kind=kind, text=text)))
    elif not args.output:
        print(text, end="")
    if not args.output:
        return 0
    common.write(Path(args.output), text, executable=text.startswith("#!"))
    common.say(f"written: {args.output}", quiet=quiet)
    return 0


def warn_of_missing(asked: Asked, kind: str) -> None:
    """A script that is not here may be where the job will run, or misspelt; an image is not looked into."""
    folder = Path(asked.job.chdir or ".")
    in_image = kind in IN_CONTAINERS and kind != "docker"
    if not in_image and folder.is_dir() and not os.path.lexists(folder / asked.job.script):
        script, where = printable(asked.job.script, 200), printable(str(folder), 200)
        common.say(f"warning: no {script} in {where} on this machine; the job will look for it there")


def show_lint(args: argparse.Namespace, script: str) -> None:
    """What the script's text tells, where it lies here; sets `args.launcher` if it was not given."""
    from ringup import report

    style = report.Style(sys.stderr)
    for finding in lint.before_run(args, script):
        if finding.severity != "note":
            common.say("\n".join(report.brief_lines(finding, style)), quiet=args.quiet)


def asked_from(args: argparse.Namespace, words: list[str], kind: str) -> Asked:
    """
    What the file is to start.

    Raises UsageError when a count or a value cannot be.
    """
    job = common.job_from(args, words)
    contained = kind in IN_CONTAINERS
    if kind != "ssh" and (args.chdir or (contained and kind != "docker")):
        # From where the file is submitted, or of the image: not from here.
        job = dataclasses.replace(job, chdir=args.chdir)
    if "MASTER_ADDR" in job.env and kind not in KNOWN_NODES:
        raise UsageError(
            "--env MASTER_ADDR: the job finds that address when it runs",
            hint="--env GLOO_SOCKET_IFNAME=eth0 names the network it is to be on",
        )
    cluster = looked_at(args, words)
    plan, env = decided(cluster, args, contained)
    nodes = args.nodes or (len(cluster.nodes) if cluster else 0)
    nproc = args.nproc or ranks(plan) or (1 if LAUNCHERS[job.launcher].by_node else 0)
    if kind in KNOWN_NODES and cluster and nodes != len(cluster.nodes):
        raise UsageError(
            f"--nodes {nodes}, but {len(cluster.nodes)} are named", hint="leave --nodes out: all are taken"
        )
    if nodes < 1 or nproc < 1:
        raise UsageError(
            "how many nodes?" if nodes < 1 else "how many ranks has a node?",
            hint="--nodes N --nproc N, or nodes that may be looked at (-H)",
        )
    gpus = args.gpus if args.gpus is not None else 0 if job.backend == "gloo" else nproc
    own = tuple(
        EnvVar(k, v, "yours (--env)") for k, v in job.env.items() if k not in ("MASTER_ADDR", "MASTER_PORT")
    )
    return Asked(
        job=job,
        nodes=nodes,
        nproc=nproc,
        gpus=gpus,
        name=name_of(args.name or posixpath.basename(job.script).removesuffix(".py")),
        python=interpreter(args.python, cluster, contained),
        plan=plan,
        targets={n.name: f"{n.host.user}@{n.host.name}" for n in cluster.nodes if n.host.user}
        if cluster
        else {},
        env=(*(v for v in env if v.name not in job.env), *own),
        queue=plain("--queue", args.queue),
        account=plain("--account", args.account),
        time=plain("--time", args.time),
        cpus=args.cpus,
        options=tuple(plain("--option", option) for option in args.option),
        image=plain("--image", getattr(args, "image", "")),
        namespace=plain("--namespace", getattr(args, "namespace", "")),
        rdma=plain("--rdma", getattr(args, "rdma", "")),
    )


def name_of(text: str) -> str:
    """
    A name that every scheduler takes.

    >>> name_of("my train!"), name_of("--")
    ('my-train', 'job')
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:60] or "job"


def plain(option: str, text: str) -> str:
    """
    A value that may stand in a directive: one line, printable.

    Raises UsageError otherwise.
    """
    if not text.isprintable():
        raise UsageError(f"{option} {text!r} is not one line of text", hint="give a plain word")
    return text


def looked_at(args: argparse.Namespace, words: list[str]) -> Cluster | None:
    """The nodes that are named, or saved facts; None where neither is given."""
    if args.from_file:
        from ringup import bundle

        saved, job = bundle.load(Path(args.from_file)), common.job_from(args, words)
        known = (check.not_looked_at(node, saved.job, job) for node in saved.nodes)
        return dataclasses.replace(saved, nodes=tuple(known))
    if not any(getattr(args, name) is not None for name in ("hosts", "hostfile", "local")):
        return None
    hosts = common.nodes_from(args)
    from ringup import reach

    with reach.open(hosts, ssh_config=args.ssh_config) as door:
        cluster = check.collect(door, common.job_from(args, words), args, check.Progress(args.quiet))
    check.save(cluster, args)
    return cluster


def decided(
    cluster: Cluster | None, args: argparse.Namespace, contained: bool
) -> tuple[Plan | None, tuple[EnvVar, ...]]:
    """
    The plan for the nodes that were looked at, and what is to be set; what will stop the job is said.

    Raises LaunchError when they allow no plan.
    """
    from ringup import report
    from ringup.plan import least

    if cluster is None:
        nothing = Cluster(())
        return None, tuple(least.debugging(nothing, ".")) if getattr(args, "debug", False) else ()
    cluster = dataclasses.replace(cluster, job=common.job_from(args, args.script))
    findings, _, plan = check.judge(cluster, "job")
    # An image brings its own interpreter and files along.
    errors = [f for f in findings if f.severity == "error" and not contained]
    for finding in report.folded(errors):
        common.say("\n".join(report.brief_lines(finding, report.Style(sys.stderr))))
    if plan is None:
        raise LaunchError(
            "these nodes allow no plan: a node, its interpreter or a common network is missing",
            hint="`ringup check` with the same options says which",
        )
    made = least.least(cluster, debug=getattr(args, "debug", False))
    for note in made.notes:
        common.say(f"note: {note}", quiet=args.quiet)
    return plan, made.env


def ranks(plan: Plan | None) -> int:
    """Ranks of a node where all have the same number, else 0."""
    counts = {node.nproc for node in plan.nodes} if plan else set()
    return counts.pop() if len(counts) == 1 else 0


def interpreter(given: str, cluster: Cluster | None, contained: bool) -> str:
    """`--python`, else in an image `python3`, else what the nodes have, else that of the environment here."""
    from ringup import probes

    if given or contained:
        return given or "python3"
    found = {node.interpreter.path for node in cluster.nodes} if cluster else set()
    if len(found) == 1 and "" not in found:
        return found.pop()
    return probes.default_interpreter(os.environ) or probes.own_interpreter() or "python3"
