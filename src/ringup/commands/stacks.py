"""
Where every rank of a running job is in its code, ours or not, merged.

Ranks are found by their environment (RANK and WORLD_SIZE; Slurm's or MPI's); only your own processes.
A stack comes from the rank itself where `ringup run` started it, else from py-spy where the node has
that; nothing is installed, and no signal is sent to a process that has not asked for it.

Exit code 0 when ranks were found, 1 when there were none or a node could not be asked.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringup import flight
from ringup.commands import common
from ringup.errors import LogsError
from ringup.looks import NodeLook, RankLook, fold
from ringup.looks.moves import troubles
from ringup.looks.places import place_of
from ringup.stacks import JobLook, jobs, look
from ringup.units import show_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup stacks`."""
    common.add_node_arguments(parser)
    parser.add_argument("--python", default="", metavar="PY", help="interpreter on the nodes (python3)")
    parser.add_argument("--run", default="", metavar="RUN", help="only this run's ranks")
    parser.add_argument("--full", action="store_true", help="whole stacks, equal ones once")
    parser.add_argument("--threads", action="store_true", help="every thread's stack (implies --full)")
    parser.add_argument(
        "--flight",
        nargs="*",
        metavar="DUMP",
        help="what torch's flight recorder tells of the ranks' collectives, asked of ranks started by "
        "ringup, or read from the files named (those NCCL's time-out left)",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    parser.add_argument("--quiet", action="store_true", help="no notes, only the result")


def job_lines(job: JobLook, full: bool) -> Iterator[str]:
    """One job."""
    nodes = list(dict.fromkeys(rank.node for rank in job.ranks))
    name = f"run {job.run}" if job.run else f"job at {job.address or 'no rendezvous'}"
    age = show_seconds(max(rank.age_s for rank in job.ranks))
    places = ", ".join(nodes[:8]) + (", ..." if len(nodes) > 8 else "")
    count = f"{len(job.ranks)} of {job.world_size} ranks"
    if job.is_spawned:
        count = f"{len(job.ranks)} processes that the script has started"
    yield f"{name}: {count} on {places}, {age} old"
    yield from (f"  {line}" for line in (full_lines(job) if full else fold.lines(job.ranks)))
    if job.unseen:
        yield f"  not seen: ranks {fold.numbers(job.unseen)}, on nodes not asked or ended"


def node_lines(nodes: tuple[NodeLook, ...]) -> Iterator[str]:
    """What is wrong with the nodes themselves, and what NCCL's own service tells."""
    for node in nodes:
        yield from (f"{node.node}: {words}" for words in troubles(None, node.state))
    yield from fold.ras_lines(nodes)


def full_lines(job: JobLook) -> Iterator[str]:
    """Whole stacks, equal ones once."""
    groups: dict[object, list[RankLook]] = {}
    for rank in job.ranks:
        groups.setdefault((rank.frames, rank.threads, "" if rank.frames else rank.why_not), []).append(rank)
    for ranks in sorted(groups.values(), key=lambda g: -len(g)):
        yield fold.group_line(fold.group(ranks)[0]) if not ranks[0].frames else fold.who(ranks)
        yield from (f"  {line}" for line in fold.stack_lines(ranks[0].frames))
        for name, frames in ranks[0].threads:
            yield f"  {name}"
            yield from (f"    {line}" for line in fold.stack_lines(frames))


def as_json(nodes: tuple[NodeLook, ...], found: list[JobLook]) -> dict[str, Any]:
    """Everything that is known."""
    return {
        "jobs": [
            {
                "run": job.run,
                "address": job.address,
                "world_size": job.world_size,
                "not_seen": list(job.unseen),
                "groups": [
                    {"ranks": [r.rank for r in g.ranks], "place": asdict(g.place), "doing": g.doing}
                    for g in fold.group(job.ranks)
                ],
                "ranks": [{**asdict(rank), "place": asdict(place_of(rank.frames))} for rank in job.ranks],
            }
            for job in found
        ],
        "nodes": [
            {
                "name": node.node,
                "problem": node.problem,
                "state": asdict(node.state),
                "ras": asdict(node.ras) if node.ras else None,
            }
            for node in nodes
        ],
    }


def differences(flights: Mapping[int, flight.Flight]) -> list[str]:
    """Where the ranks' collectives differ, in lines."""
    if not flights:
        return ["no rank has told what its flight recorder has"]
    found = [f"flight recorder: {one.text}" for one in flight.compare(flights)]
    known = [f"rank {rank}: {one.problem}" for rank, one in flights.items() if one.problem]
    members = {rank for group in flight.groups_of(flights) for rank in group.members}
    if lacking := sorted(members - set(flights)):
        known.append(f"flight recorder: nothing of {flight.show_ranks(lacking)}, of the same groups")
    agree = f"flight recorder: {len(flights)} ranks have begun the same collectives in every group"
    return (found or [agree]) + known


def from_files(paths: list[str], *, plain_json: bool = False) -> int:
    """Compare dumps; the rank is the number at the end of the file's name.  1 when they differ."""
    flights: dict[int, flight.Flight] = {}
    for path in paths:
        number = re.search(r"(\d+)(?:\.\w+)?$", Path(path).name)
        try:
            with Path(path).open("rb") as file:
                data = file.read(flight.LONGEST_DUMP_BYTES + 1)
            rank = int(number[1]) if number else len(flights)
            if rank in flights:
                raise LogsError(
                    f"{path}: a second dump of rank {rank}", hint="name the dumps of one run only"
                )
            flights[rank] = flight.read(data)
        except (OSError, flight.FlightError) as error:
            words = error.strerror if isinstance(error, OSError) else error
            raise LogsError(
                f"{path}: {words}", hint="name dumps such as nccl_trace_rank_0, one per rank"
            ) from error
    lines = differences(flights)
    if plain_json:
        from ringup.report import envelope

        print(json.dumps(envelope(flight=lines, ranks=sorted(flights))))
    else:
        print("\n".join(lines))
    return 1 if flight.compare(flights) else 0


def run(args: argparse.Namespace) -> int:
    """Look and show."""
    if args.flight:
        return from_files(args.flight, plain_json=args.json)
    hosts = common.nodes_from(args)
    from ringup import reach, report

    with reach.open(hosts, ssh_config=args.ssh_config) as door:
        if args.python:
            door.interpreters.update({host.name: args.python for host in door.hosts})
        mode = "flight" if args.flight is not None else "threads" if args.threads else "stacks"
        nodes = look(door, mode=mode)
    found = jobs(nodes, args.run)
    if args.json:
        print(json.dumps(report.envelope(**as_json(nodes, found))))
    else:
        for job in found:
            print("\n".join(job_lines(job, args.full or args.threads)))
            if args.flight is not None:
                flights = {rank.rank: rank.flight for rank in job.ranks if rank.flight}
                print("\n".join(f"  {line}" for line in differences(flights)))
        for line in node_lines(nodes):
            print(line)
    for node in nodes:
        if node.problem:
            common.say(f"{node.node}: could not be looked at: {node.problem}")
    if any("no python3 on this node" in node.problem for node in nodes):
        common.say("hint: --python PATH names a Python (3.8 or newer) that the node has", quiet=args.quiet)
    if not found:
        print("no rank of a job of yours runs on these nodes", file=sys.stderr)
    return 0 if found and not any(node.problem for node in nodes) else 1
