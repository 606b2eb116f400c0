"""
What earlier runs left on the nodes: processes, the ports they hold, files in /dev/shm.

Lists by default.  --kill ends only what is proven to be left over: looked at again on the node at
that moment, TERM, then KILL after 3 s.  Only your own processes; never those of a living job.

Exit code 0 when nothing is left, 1 when something is or a node could not be looked at.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from ringup.clean import Left, NodeLeftovers, SharedFile, look
from ringup.commands import common
from ringup.units import show_bytes, show_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup clean`."""
    common.add_node_arguments(parser)
    parser.add_argument("--python", default="", metavar="PY", help="interpreter on the nodes (python3)")
    parser.add_argument("--kill", action="store_true", help="end what is proven to be a leftover")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    parser.add_argument("--quiet", action="store_true", help="no hints, only the result")


def process_lines(one: Left, state: str) -> Iterator[str]:
    """One job's topmost process, what it holds, and why we say so."""
    ports = f", port{'s' * (len(one.ports) > 1)} {', '.join(map(str, one.ports))}" if one.ports else ""
    more = f", {one.processes} processes" if one.processes > 1 else ""
    yield f"  {state:<8}  pid {one.pid}, {show_seconds(one.age_s)} old{ports}{more}: {one.command}"
    yield f"            {one.evidence}"
    if one.doubt:
        yield f"            not proven: {one.doubt}"


def file_line(one: SharedFile, state: str) -> str:
    """One file in shared memory."""
    doubt = f"; not proven: {one.doubt}" if one.doubt else ""
    return f"  {state:<8}  {one.path}, {show_bytes(one.size_bytes)}, {show_seconds(one.age_s)} old{doubt}"


def node_lines(node: NodeLeftovers, kill: bool) -> Iterator[str]:
    """All that is to say of a node."""
    if node.error:
        yield f"{node.node}: could not be looked at: {node.error}"
        return
    done = len(node.ended) + len(node.removed)
    count = len(node.left) + len(node.files)
    state = f"{count} left" if count else "nothing left"
    yield f"{node.node}: {state}{f', {done} ended or removed' if done else ''}"
    for one in node.ended:
        yield from process_lines(one, f"ended {one.signal}")
    for file in node.removed:
        yield file_line(file, "removed")
    for one in node.left:
        yield from process_lines(one, "left")
        if kill and not one.doubt:
            yield "            not ended: it would not go, or changed while it was looked at"
    for file in node.files:
        yield file_line(file, "left")
    for one in node.running:
        yield from process_lines(one, "running")
    for words in node.unseen:
        yield f"  not seen  {words}"


def hints(nodes: tuple[NodeLeftovers, ...], kill: bool) -> Iterator[str]:
    """What to do about what is left."""
    doubts = [one.doubt for node in nodes for one in node.left]
    doubts += [file.doubt for node in nodes for file in node.files]
    if not kill and not all(doubts):
        yield "`ringup clean --kill` with the same nodes ends what is proven"
    if any("no python3 on this node" in node.error for node in nodes):
        yield "--python PATH names a Python (3.8 or newer) that the node has"
    if any(doubts):
        yield "what is not proven is never ended here: if it is not wanted, `kill PID` on its node"


def run(args: argparse.Namespace) -> int:
    """Look, perhaps end, show."""
    hosts = common.nodes_from(args)
    from ringup import reach, report

    with reach.open(hosts, ssh_config=args.ssh_config) as door:
        if args.python:
            door.interpreters.update({host.name: args.python for host in door.hosts})
        nodes = look(door, kill=args.kill)
    if args.json:
        print(json.dumps(report.envelope(kill=args.kill, nodes=[asdict(node) for node in nodes])))
    else:
        for node in nodes:
            print("\n".join(node_lines(node, args.kill)))
    for words in hints(nodes, args.kill):
        common.say(f"hint: {words}", quiet=args.quiet)
    return 0 if all(node.is_clean for node in nodes) else 1
