"""
List leftovers of earlier runs on the nodes: processes, the ports they hold, files in /dev/shm.

--kill ends only proven leftovers: it checks each again on the node, sends TERM, then KILL after 3 s.  Only
your own processes; never those of a living job, of another batch job or of a container.  An inherited
environment variable proves nothing: the page how/clean of the documentation explains it.

Exit code 0 if nothing is left, 1 if something is or a node could not be checked.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from ringup.cli import options, request
from ringup.output import folding, terminal
from ringup.runtime.clean import Left, NodeLeftovers, SharedFile, leftovers
from ringup.units import plural, show_bytes, show_seconds

OPTIONS = (
    options.NODES,
    options.PYTHON,
    options.flag("--kill", "end proven leftovers"),
    options.JSON,
    options.QUIET,
)


def process_lines(one: Left, state: str) -> Iterator[str]:
    ports = f", port{'s' * (len(one.ports) > 1)} {', '.join(map(str, one.ports))}" if one.ports else ""
    more = f", {one.processes} processes" if one.processes > 1 else ""
    yield f"  {state:<8}  pid {one.pid}, {show_seconds(one.age_s)} old{ports}{more}: {one.command}"
    yield f"            {one.evidence.removeprefix('running: ')}"
    if one.doubt:
        yield f"            not proven: {one.doubt}"
        yield f"            to end it, on this node: kill {one.pid}"


def file_line(one: SharedFile, state: str) -> str:
    doubt = f"; not proven: {one.doubt}" if one.doubt else ""
    return f"  {state:<8}  {one.path}, {show_bytes(one.size_bytes)}, {show_seconds(one.age_s)} old{doubt}"


def node_lines(node: NodeLeftovers, kill: bool) -> Iterator[str]:
    if node.error:
        yield f"not checked: {node.error}"
        return
    done = len(node.ended) + len(node.removed)
    count = len(node.left) + len(node.files)
    state = plural(count, "leftover") if count else "no leftovers"
    yield f"{state}{f', {done} ended or removed' if done else ''}"
    for one in node.ended:
        yield from process_lines(one, f"ended {one.signal}")
    yield from (file_line(file, "removed") for file in node.removed)
    for one in node.left:
        yield from process_lines(one, "left")
        if kill and not one.doubt:
            yield "            not ended: it did not exit, or changed meanwhile"
    yield from (file_line(file, "left") for file in node.files)
    for one in node.running:
        yield from process_lines(one, "running")
    yield from (f"  unknown   {words}" for words in node.unseen)


def kill_command(args: argparse.Namespace) -> str:
    """The command that ends the leftovers on the same nodes."""
    given = {"-H": args.hosts, "--hostfile": args.hostfile, "--exclude-from": args.exclude_from}
    given |= {"--local": args.local, "--ssh-config": args.ssh_config, "--python": args.python}
    words = "".join(f" {option} {shlex.quote(str(value))}" for option, value in given.items() if value)
    return f"ringup clean --kill{words}{' --groups' * args.groups}"


def hints(nodes: tuple[NodeLeftovers, ...], args: argparse.Namespace) -> Iterator[str]:
    doubts = [one.doubt for node in nodes for one in node.left]
    doubts += [file.doubt for node in nodes for file in node.files]
    if not args.kill and not all(doubts):
        yield f"to end the proven leftovers: {kill_command(args)}"
    if any(doubts):
        yield "--kill ends only proven leftovers; the `kill` line under an entry ends that process"


def run(args: argparse.Namespace) -> int:
    with request.open_transport(args, args.python) as transport:
        nodes = leftovers(transport, kill=args.kill)
    if args.json:
        terminal.print_json(kill=args.kill, nodes=nodes)
    else:
        words = {node.node: "\n".join(node_lines(node, args.kill)) for node in nodes}
        terminal.show("\n".join(folding.of_nodes(words)))
    request.hint_python((node.error for node in nodes), args)
    terminal.say(*(f"hint: {words}" for words in hints(nodes, args)), quiet=args.quiet)
    return 0 if all(node.is_clean for node in nodes) else 1
