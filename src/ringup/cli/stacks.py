"""
Show where every rank of a running job is in its code, whether ringup started it or not; equal stacks once.

Ranks are found by their environment (RANK and WORLD_SIZE; Slurm's or MPI's); only your own processes.  A
stack comes from the rank itself if `ringup run` started it, else from py-spy if the node has it or
--with-py-spy sends it; nothing is installed, and no process without a handler for it gets a signal.

Exit code 0 if ranks were found, 1 if there were none or a node could not be queried.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from ringup.cli import options, request
from ringup.cli.watched_job import job_named
from ringup.errors import UsageError
from ringup.flight_recorder import dump
from ringup.flight_recorder.compare import compare, groups_of
from ringup.hang import grouping, pyspy
from ringup.hang.activity import troubles
from ringup.hang.snapshots import JobLook, NodeLook, jobs, look
from ringup.hang.stack_frames import place_of
from ringup.output import folding, terminal
from ringup.rules import ssh, with_ssh_config
from ringup.transport import Transport
from ringup.units import grouped, printable, show_ranks, show_seconds, summarize_names

FLIGHT = "also compare the ranks' collectives, from torch's flight recorder in ranks started by ringup"
OPTIONS = (
    options.value("name", "RUN", "a run, on its nodes unless others are named", "", nargs="?"),
    options.NODES,
    options.PYTHON,
    options.value("--run", "RUN", "only this run's ranks", ""),
    options.flag("--full", "whole stacks, equal ones once"),
    options.flag("--threads", "every thread's stack (implies --full)"),
    options.flag("--flight", FLIGHT),
    options.flag("--with-py-spy", "send this machine's py-spy to nodes without one; it is removed after use"),
    options.JSON,
    options.QUIET,
)


def job_lines(job: JobLook, full: bool) -> Iterator[str]:
    name = f"run {job.run}" if job.run else f"job at {job.address or 'no rendezvous'}"
    age = show_seconds(max(rank.age_s for rank in job.ranks))
    places = summarize_names((rank.node for rank in job.ranks), 8)
    of = "processes that the script has started" if job.is_spawned else f"of {job.world_size} ranks"
    yield f"{name}: {len(job.ranks)} {of} on {places}, {age} old"
    yield from (f"  {line}" for line in (full_lines(job) if full else grouping.lines(job.ranks)))
    if job.unseen:
        yield f"  not seen: {show_ranks(job.unseen)}: ended, or on nodes that -H does not name"


def node_lines(nodes: tuple[NodeLook, ...]) -> Iterator[str]:
    """Problems of the nodes themselves, and the report of NCCL's RAS service."""
    for node in nodes:
        yield from (f"{node.node}: {words}" for words in troubles(None, node.state))
    yield from grouping.ras_lines(nodes)


def full_lines(job: JobLook) -> Iterator[str]:
    groups = grouped(((r.frames, r.threads, "" if r.frames else r.why_not), r) for r in job.ranks)
    for ranks in sorted(groups.values(), key=len, reverse=True):
        yield grouping.group_line(grouping.group(ranks)[0]) if not ranks[0].frames else grouping.who(ranks)
        yield from (f"  {line}" for line in grouping.stack_lines(ranks[0].frames))
        for name, frames in ranks[0].threads:
            yield f"  {name}"
            yield from (f"    {line}" for line in grouping.stack_lines(frames))


def job_json(job: JobLook) -> dict[str, Any]:
    return {
        "run": job.run,
        "address": job.address,
        "world_size": job.world_size,
        "not_seen": list(job.unseen),
        "groups": [
            {"ranks": [r.rank for r in g.ranks], "place": g.place, "doing": g.doing}
            for g in grouping.group(job.ranks)
        ],
        "ranks": [{**asdict(rank), "place": place_of(rank.frames)} for rank in job.ranks],
    }


def differences(flights: Mapping[int, dump.Flight]) -> list[str]:
    if not flights:
        return ["no rank returned its flight recorder"]
    found = [f"flight recorder: {one.text}" for one in compare(flights)]
    known = [f"rank {rank}: {one.problem}" for rank, one in flights.items() if one.problem]
    members = {rank for group in groups_of(flights) for rank in group.members}
    if lacking := sorted(members - set(flights)):
        known.append(f"flight recorder: nothing of {show_ranks(lacking)}, of the same groups")
    agree = f"flight recorder: {len(flights)} ranks have begun the same collectives in every group"
    return (found or [agree]) + known


def remedies(nodes: tuple[NodeLook, ...], is_local: bool, ssh_config: str = "") -> Iterator[str]:
    """How to get the stacks that are missing because a node has no py-spy."""
    found = [(r.python, name) for name, ranks in pyspy.lacking(nodes).items() for r in ranks]
    here = "sends this machine's" if pyspy.own() else "needs one on this machine, too"
    for python, names in grouped(dict.fromkeys(found)).items():
        command = f"{shlex.quote(python or 'python3')} -m pip install py-spy"
        yield f"hint: no py-spy on {summarize_names(names)}: --with-py-spy {here}; or install it there:"
        for name in names[:3]:
            yield f"  $ {command if is_local else with_ssh_config(ssh(name, command), ssh_config)}"


def unreadable(nodes: tuple[NodeLook, ...]) -> list[str]:
    """For nodes without ranks: users whose Python processes could not be read."""
    advice = "only a user's own processes are read, so run `ringup stacks` as that user"
    words = {}
    for node in nodes:
        users = [f"{printable(user, 40)} ({count})" for user, count in node.state.others.items()]
        if users:
            words[node.node] = f"Python processes of other users: {summarize_names(users)}; {advice}"
    return folding.of_nodes(words)


def transport_of(args: argparse.Namespace) -> Transport:
    """To the nodes of the named run, unless nodes are named.  Raises UsageError, LaunchError."""
    name = PurePath(args.name).name  # its folder is named like the run
    if name and not re.fullmatch(r"\d{8}-\d{6}-[\w.]+", name):
        several = ",".join(filter(None, [args.hosts, name]))
        hint = f"name nodes as one word: -H {several}; `ringup runs` lists runs"
        raise UsageError(f"{args.name!r} is not the name of a run", hint=hint)
    args.run, args.log_dir = args.run or name, None
    if not name or request.named(args):
        return request.open_transport(args, args.python)
    job = job_named(args)
    return Transport(job.hosts, ssh_config=job.ssh_config, python=args.python)


def run(args: argparse.Namespace) -> int:
    mode = "flight" if args.flight else "threads" if args.threads else "stacks"
    sent = pyspy.packed() if args.with_py_spy else ""
    with transport_of(args) as transport:
        nodes = look(transport, mode=mode, run=args.run)
        is_local = all(host.local for host in transport.hosts)
        if sent and (names := list(pyspy.lacking(nodes))):
            again = look(transport, mode=mode, run=args.run, pyspy=sent, names=names)
            by_name = {node.node: node for node in again}
            nodes = tuple(by_name.get(node.node, node) for node in nodes)
    found = jobs(nodes, args.run)
    if args.json:
        of_nodes = [{"name": n.node, "problem": n.problem, "state": n.state, "ras": n.ras} for n in nodes]
        terminal.print_json(jobs=[*map(job_json, found)], nodes=of_nodes)
    else:
        for job in found:
            terminal.show("\n".join(job_lines(job, args.full or args.threads)))
            if args.flight:
                flights = {rank.rank: rank.flight for rank in job.ranks if rank.flight}
                terminal.show("\n".join(f"  {line}" for line in differences(flights)))
        for line in node_lines(nodes):
            terminal.show(line)
    terminal.say(*folding.of_nodes({n.node: f"not checked: {n.problem}" for n in nodes if n.problem}))
    terminal.say(*remedies(nodes, is_local, args.ssh_config or ""), *unreadable(nodes), quiet=args.quiet)
    request.hint_python((node.problem for node in nodes), args)
    if not found:
        run = f"run {printable(args.run, 80)} has" if args.run else "you have"
        terminal.say(f"{run} no running ranks on these nodes (others: -H NODES)")
    return 0 if found and not any(node.problem for node in nodes) else 1
