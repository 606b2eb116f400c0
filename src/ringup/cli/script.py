"""
Write the file that starts the job without ringup: for a batch scheduler, ssh, docker or Kubernetes.

KIND is one of slurm pbs lsf ssh docker k8s-job jobset pytorchjob trainjob volcano.  With -H, the file has the
settings that the check found, each variable with its reason.  In a batch file the ranks use the first node's
name; with --find-network the file has a program that finds the network at its start.

--from FILE reads facts from --save, or a job file, a manifest or a shell file: then the new file starts the
job of FILE, and the differences are listed.

With --max-restarts, --spares or --save-signal the job needs ringup: it starts `ringup run`, and the file has
the settings that the scheduler needs for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import os
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ringup.cli import before_run, from_file, options, pipeline, request
from ringup.cli.options import Options, Row
from ringup.cli.restarts import LEFT_AFTER_SAVE_S, RESTARTS, check_node_count, policy_from
from ringup.errors import LaunchError, UsageError
from ringup.jobfiles import BATCH, KINDS, KNOWN_NODES, LIMITED, PODS, Asked, Restarts, quoting
from ringup.model import Cluster, Job
from ringup.output import console, terminal
from ringup.planning import EnvVar, Plan, minimal_env
from ringup.planning.launchers import LAUNCHERS
from ringup.secrets import redact_words
from ringup.transport.interpreters import default_interpreter
from ringup.units import printable, signal_name

IN_CONTAINERS = ("docker", *PODS)
"""Kinds whose paths are inside an image."""
OURS = {
    *("slurm", "nodes", "name", "queue", "account", "time", "cpus", "gpus", "option"),
    *("script", "help", "hosts", "hostfile", "local", "ssh_config", "from_file", "save", "html"),
    *("output", "image", "namespace", "rdma", "master_port", "find_network"),
    *("detach", "dry_run", "log_dir", "env", "json", "chdir"),
}
"""Options that are not passed unchanged to the job."""


SCRIPT = options.words("script", options.KIND_WORDS, "kind of file, training script and its arguments")
FILE = options.group(
    "the file",
    options.value("--output", "F", "write to this file instead of stdout", None, options.writable),
    options.value("--nproc", "N", "ranks per node", None, options.gpus_or(options.positive)),
    request.LAUNCHER,
    options.value("--launcher-args", "'...'", "options for the launcher itself", ""),
    options.WRAP,
    options.RENDEZVOUS,
    options.flag("--find-network", "slurm, pbs, lsf: a program in the file finds the network when it runs"),
    options.flag("--debug", "also variables that show where a job hangs"),
    options.value("--image", "IMAGE", "docker, Kubernetes: container image", ""),
    options.value("--namespace", "NS", "Kubernetes: namespace", ""),
    options.value("--rdma", "RESOURCE", "Kubernetes: RDMA resource, e.g. rdma/hca_shared_devices_a", ""),
)
OPTIONS = (
    *(FILE, options.SCHEDULERS, options.NODES, options.JOB, options.COLLECTING, RESTARTS),
    options.flag("--json", "the file's text as JSON on stdout"),
    options.QUIET,
    SCRIPT,
)


def run(args: argparse.Namespace) -> int:
    kind, *args.script = args.script or [""]
    if kind not in KINDS:
        near = [one for one in KINDS if kind and one.startswith(kind)]
        near = near or difflib.get_close_matches(kind, KINDS, 1)
        what = f"{printable(kind, 60)!r} is not a kind of file" if kind else "no kind of file was given"
        hint = f"one of {' '.join(KINDS)} comes before --"
        hint = f"did you mean {near[0]}? {hint}" if near else hint
        raise UsageError(what, hint=hint)
    from ringup.jobfiles.templating import render

    if args.from_file and from_file.is_launch_file(args.from_file):
        path, args.from_file = args.from_file, None
        args.script = args.script or from_file.fill(args, path, kind)
        from_file.explain(args, path)
    args.kind = kind
    words = request.script_words(args, "ringup script KIND [options] -- train.py ARGS")
    show_lint(args, request.job_from(args, words).file)
    show_unused(args, kind)
    asked = asked_from(args, words, kind)
    args.python = asked.python
    inner = [*inner_options(args, (FILE, options.JOB, options.COLLECTING, RESTARTS), asked.job), "--", *words]
    asked = with_restarts(args, asked, kind, asked.python, inner)
    folder, name = Path(asked.job.chdir or "."), asked.job.script
    is_file = asked.job.kind == "script" and kind not in PODS  # an image's files are unknown
    if is_file and folder.is_dir() and not os.path.lexists(folder / name):
        what = f"no {printable(name, 200)} in {printable(str(folder), 200)} on this machine"
        terminal.say(f"warning: {what}; the job will look for it there")
    warn_of_secrets(asked.job)
    text = render(kind, asked)
    if args.json:
        terminal.print_json(kind=kind, text=text)
    elif not args.output:
        print(text, end="")
    if args.output:
        terminal.write(Path(args.output), text, executable=text.startswith("#!"))
        terminal.say(f"written: {terminal.path_shown(args.output)}", quiet=args.quiet)
    return 0


_USED = {
    "queue": (*BATCH, *PODS),
    "account": BATCH,
    "option": BATCH,
    "time": LIMITED,
    "image": IN_CONTAINERS,
    "namespace": PODS,
    "rdma": PODS,
    "find_network": BATCH,
}
"""Option -> the kinds of file in which it has an effect."""


def show_unused(args: argparse.Namespace, kind: str) -> None:
    """A warning for each option without effect in this kind of file."""
    for name, kinds in _USED.items():
        if getattr(args, name, None) and kind not in kinds:
            option = f"--{name.replace('_', '-')}"
            is_slurms = (name, kind) == ("image", "slurm")
            more = "; -- srun --container-image=IMAGE ... names one" if is_slurms else ""
            terminal.say(f"warning: {option} has no effect in {kind}: it is for {' '.join(kinds)}{more}")
    if kind in PODS and not getattr(args, "image", ""):
        words = "note: the file has IMAGE in place of an image's name: --image gives it"
        terminal.say(words, quiet=args.quiet)


def warn_of_secrets(job: Job) -> None:
    """An argument is visible in the file; a variable need not be."""
    words = (*job.arguments, *job.launcher_arguments, job.setup)
    if redact_words(words) != words:
        terminal.say(
            "warning: the job file contains a secret (from the script's arguments or --setup) that everyone "
            "who may read the file, or run ps on a node, can see: export it and pass --env NAME"
        )


def show_lint(args: argparse.Namespace, script: str) -> None:
    """Print the findings in the script if it is on this machine; set `args.launcher` if not given."""
    style = terminal.Style(sys.stderr)
    before_run.before_run(args, script)
    for finding in before_run.softened([*args.script_findings, *before_run.misfit(args)]):
        if finding.severity != "note":
            terminal.say(*console.brief_lines(finding, style), quiet=args.quiet)


def asked_from(args: argparse.Namespace, words: list[str], kind: str) -> Asked:
    """The job that the file starts.  Raises UsageError for an invalid count or value."""
    # Slurm forwards exported variables; and the file is for later use.
    job = request.job_from(argparse.Namespace(**{**vars(args), "no_forward": True}), words)
    contained = kind in IN_CONTAINERS
    if "MASTER_ADDR" in job.env and kind not in KNOWN_NODES:
        hint = "--env GLOO_SOCKET_IFNAME=eth0 names the network to use"
        raise UsageError("--env MASTER_ADDR: the job finds that address when it runs", hint=hint)
    cluster = named_nodes(args, job)
    plan = plan_of(cluster, contained, args.quiet) if cluster else None
    is_bare = not has_restarts(args)  # else ringup in the job decides the other variables
    env = plan.env if plan and is_bare else ()
    if getattr(args, "debug", False) and is_bare:
        env += tuple(minimal_env.debugging(cluster or Cluster(()), "."))
    nodes, nproc = _counts(args, kind, LAUNCHERS[job.launcher].by_node, cluster, plan)
    if kind != "ssh" and (args.chdir or kind in PODS):
        # The directory of submission or of the image, not the current one.
        job = dataclasses.replace(job, chdir=args.chdir)
    if re.fullmatch(r"[\d.]{1,9}[A-Za-z]{1,9}", args.time):
        quoting.seconds(args.time)  # UsageError: no scheduler reads `25h`
    own = {k: v for k, v in job.env.items() if k not in ("MASTER_ADDR", "MASTER_PORT")}
    copied = getattr(args, "copied", {})
    given = tuple(
        EnvVar(k, v, f"from {copied[k]}" if k in copied else "kept: set by you") for k, v in own.items()
    )
    named = [node for node in cluster.nodes if node.host.user] if cluster else []
    may_have_gpus = not cluster or any(n.gpu_count or "gpu_count" in n.unknown for n in cluster.nodes)
    no_gpus = not (args.nproc or may_have_gpus)
    return Asked(
        job=job,
        nodes=nodes,
        nproc=nproc,
        gpus=args.gpus if args.gpus is not None else 0 if job.backend == "gloo" or no_gpus else nproc,
        name=name_of(args.name or posixpath.basename(job.script).removesuffix(".py")),
        python=interpreter(args.python, cluster, contained),
        plan=plan,
        targets={n.name: f"{n.host.user}@{n.host.name}" for n in named},
        env=tuple(v for v in env if v.name not in job.env) + given,
        queue=quoting.word(args.queue, "--queue "),
        account=quoting.word(args.account, "--account "),
        time=quoting.word(args.time, "--time "),
        cpus=args.cpus,
        log=getattr(args, "log", ""),
        chunk=getattr(args, "chunk", ""),
        options=tuple(quoting.line(option, "--option ") for option in args.option),
        image=quoting.line(getattr(args, "image", ""), "--image "),
        namespace=quoting.line(getattr(args, "namespace", ""), "--namespace "),
        rdma=quoting.line(getattr(args, "rdma", ""), "--rdma "),
        container=getattr(args, "container", ()),
        live=getattr(args, "live", ()),
        wait_s=900 if kind in PODS else 300,
        finds_network=getattr(args, "find_network", True),
    )


def _counts(
    args: argparse.Namespace, kind: str, is_by_node: bool, cluster: Cluster | None, plan: Plan | None
) -> tuple[int, int]:
    """(nodes, ranks on each) of the file.  Raises UsageError if one is not known."""
    nodes = args.nodes or (len(cluster.nodes) if cluster else 0)
    counts = {node.nproc for node in plan.nodes} if plan else set()
    nproc = args.nproc or (next(iter(counts)) if len(counts) == 1 else int(is_by_node)) or args.gpus or 0
    if kind in KNOWN_NODES and cluster and nodes != len(cluster.nodes):
        wrong = f"--nodes {nodes}, but {len(cluster.nodes)} are named"
        raise UsageError(wrong, hint="leave --nodes out: all are taken")
    if nodes < 1 or nproc < 1:
        wrong = f"the number of {'nodes' if nodes < 1 else 'ranks per node'} is not known"
        if nodes >= 1 and len(counts) > 1:
            wrong = f"the nodes have {' and '.join(map(str, sorted(counts)))} ranks, a job file one number"
        way = "" if getattr(args, "slurm", False) else ", or name the nodes with -H"
        missing = [f"--{name} N" for name, count in (("nodes", nodes), ("nproc", nproc)) if count < 1]
        raise UsageError(wrong, hint=f"give {' and '.join(missing)}{way}")
    return nodes, nproc


def has_restarts(args: argparse.Namespace) -> bool:
    """Whether an option for restarts or saving is given: then the job needs ringup."""
    return any(getattr(args, row.dest) != row.settings["default"] for row in RESTARTS.rows)


def with_restarts(
    args: argparse.Namespace, asked: Asked, kind: str, python: str, inner: Iterable[str]
) -> Asked:
    """The job as `ringup run` with the arguments `inner` if it restarts or saves.  Raises UsageError."""
    if not has_restarts(args):
        return asked
    policy_from(args)
    check_node_count(args, asked.nodes)
    for option, value in (("--spares", args.spares), ("--min-nodes", args.min_nodes)):
        if value and kind in PODS:
            wrong = f"{option}: in Kubernetes the controller replaces a lost pod, or ends the job"
            raise UsageError(wrong, hint="leave it out")
    found = Restarts(
        words=(python, "-m", "ringup", "run", *inner),
        most=args.max_restarts,
        spares=args.spares,
        signal=signal_name(args.save_signal).removeprefix("SIG") if args.save_signal else "",
        notice_s=math.ceil(args.save_grace) + LEFT_AFTER_SAVE_S if args.save_signal else 0,
    )
    return dataclasses.replace(asked, restarts=found)


def inner_options(args: argparse.Namespace, own: Options, job: Job) -> Iterator[str]:
    """The options of the run inside the job: all of `own` that differ from their defaults."""
    for row in (row for one in own for row in ((one,) if isinstance(one, Row) else one.rows)):
        value: Any = getattr(args, row.dest)
        if row.dest not in OURS and value != row.settings.get("default", False):
            name = next(name for name in row.names if name.startswith("--"))
            for one in value if isinstance(value, list) else [value]:
                shown = signal_name(one).removeprefix("SIG") if row.dest == "save_signal" else one
                yield name if one is True else f"{name}={shown}"
    if job.port:
        yield f"--master-port={job.port}"
    # Only the name: the file has the values, and the job's environment has those of secrets.
    yield from (f"--env={name}" for name in request.environment_from(args.env) if name != "MASTER_PORT")


def name_of(text: str) -> str:
    """
    A name that every scheduler accepts.

    >>> name_of("my train!"), name_of("--")
    ('my-train', 'job')
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:60] or "job"


def named_nodes(args: argparse.Namespace, job: Job) -> Cluster | None:
    """The nodes on the command line, or saved facts, for this job; None without either."""
    if args.from_file:
        from ringup import bundle

        return pipeline.with_job(bundle.load(Path(args.from_file)), job)
    if not request.named(args):
        return None
    with request.open_transport(args) as transport:
        return pipeline.collect(transport, job, args)


def plan_of(cluster: Cluster, contained: bool, quiet: bool) -> Plan:
    """The plan for these nodes; shows errors that will stop the job.  Raises LaunchError if there is none."""
    judged = pipeline.judge(cluster, "job")
    # An image has its own interpreter and files.
    errors = [f for f in judged.findings if f.severity == "error" and not contained]
    for finding in console.folded(errors, cluster):
        terminal.say(*console.brief_lines(finding, terminal.Style(sys.stderr)))
    if judged.plan is None:
        wrong = "these nodes allow no plan: a node, its interpreter or a common network is missing"
        raise LaunchError(wrong, hint="`ringup check` with the same options says which")
    terminal.say(*(f"note: {note}" for note in judged.plan.open), quiet=quiet)
    return judged.plan


def interpreter(given: str, cluster: Cluster | None, contained: bool) -> str:
    """`--python`, else in an image `python3`, else the nodes' interpreter, else that of our environment."""
    if given or contained:
        return given or "python3"
    found = {node.interpreter.path for node in cluster.nodes} if cluster else set()
    if len(found) == 1 and "" not in found:
        return found.pop()
    return default_interpreter(os.environ) or "python3"
