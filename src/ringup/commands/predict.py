"""
Say which interfaces and devices NCCL will choose, and why, before it does.

From live nodes, from a saved collection (--from), or from pasted command output (--output).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ringup import __version__
from ringup.commands import common
from ringup.errors import PastedError, UsageError
from ringup.facts import Cluster, Node
from ringup.nccl import across, choice, network, rdma, shown
from ringup.nccl.network import Known, Prediction
from ringup.parse.pasted import MOST_CHARACTERS, Pasted, parse_pasted, together
from ringup.parse.topology import Topology, parse_topology
from ringup.plan import expected
from ringup.units import printable

UNNAMED = "node"
NOT_PASTED = {
    "interfaces": "paste `ip addr`",
    "rdma_ports": "paste `ibstatus` or `rdma link`",
}

NOT_UNDERSTOOD = "nothing in it is output of a tool that is read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup predict`."""
    group = parser.add_argument_group("what to predict from")
    group.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="[NODE=]FILE",
        help="pasted output of ibstatus, ibstat, ibdev2netdev, rdma link, ibv_devinfo, show_gids, ip addr, "
        "ifconfig, nvidia-smi topo -m in any mix, other lines ignored; repeatable, - is standard input",
    )
    group.add_argument(
        "--topo",
        action="append",
        default=[],
        metavar="[NODE=]FILE",
        help="topology as NCCL_TOPO_DUMP_FILE writes it: which device each GPU uses",
    )
    group.add_argument("--nccl", default="", metavar="VERSION", help="NCCL's version, for example 2.27.7")
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    output.add_argument("--quiet", action="store_true", help="no progress, only the result")


def run(args: argparse.Namespace) -> int:
    """Gather what is known, predict for each node, show."""
    env = common.environment_from(args.env)
    version = _version(args.nccl)
    pasted = _pasted(args.output, is_all=not args.from_file and not _names_nodes(args))
    if args.output and not args.from_file and not _names_nodes(args):
        nodes: tuple[Node, ...] = tuple(Node(name, unknown=dict(NOT_PASTED)) for name in pasted)
    else:
        nodes = _collected(args).nodes
    nodes += tuple(Node(n, unknown=dict(NOT_PASTED)) for n in pasted if n not in {x.name for x in nodes})
    dumps = _dumps(args.topo, [node.name for node in nodes])
    knowns = [_known(node, pasted.get(node.name), dumps.get(node.name), version) for node in nodes]
    predictions = across.together([k.node for k in knowns], [network.predict(k, env) for k in knowns])
    predictions = tuple(_with_better(k, env, p) for k, p in zip(knowns, predictions, strict=True))
    if args.json:
        made = {"ringup": __version__, "schema": 1, "nodes": [shown.as_json(p) for p in predictions]}
        print(json.dumps(made))
    else:
        print("\n\n".join(shown.as_text(p) for p in predictions))
    return 3 if args.strict and any(p.missing for p in predictions) else 0


def _version(text: str) -> choice.Version | None:
    """`--nccl`, None when it was not given.  Raises UsageError for what is no version."""
    if not text:
        return None
    version = choice.version_of(text)
    if version == choice.ASSUMED and not text.startswith("2.27.7"):
        raise UsageError(f"--nccl {text!r} is not a version", hint="for example --nccl 2.20.5")
    return version


def _names_nodes(args: argparse.Namespace) -> bool:
    return any(value is not None for value in (args.hosts, args.hostfile, args.local))


def _collected(args: argparse.Namespace) -> Cluster:
    """Facts of the nodes: saved, or asked for now."""
    from ringup.commands import check

    if args.from_file:
        return check.loaded(args)
    hosts = common.nodes_from(args)
    from ringup import reach

    job, progress = common.job_from(args), check.Progress(args.quiet)
    with reach.open(hosts, ssh_config=args.ssh_config) as door:
        if args.save:
            cluster = check.collect(door, job, args, progress)
        else:
            # What is saved must serve `check` too; a prediction needs no pair.
            from ringup.probes import Facts, facts_deadline_s

            deadline_s = facts_deadline_s(len(hosts), job, args.timeout)
            cluster = Cluster(Facts(door, job, deadline_s, progress).ask(), job=job)
            progress.done()
    check.save(cluster, args)
    return cluster


def _split(word: str) -> tuple[str, str]:
    """
    NODE and FILE of `[NODE=]FILE`; a file whose own name holds = is found first.

    >>> _split("n1=ib.txt"), _split("ib.txt")
    (('n1', 'ib.txt'), ('', 'ib.txt'))
    """
    node, equals, path = word.partition("=")
    if not equals or Path(word).exists():
        return "", word
    return node, path


def _read(path: str, option: str) -> str:
    """A file's text, no more than is ever parsed.  Raises UsageError when it cannot be read."""
    try:
        if path == "-":
            return sys.stdin.read(MOST_CHARACTERS + 1)
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{option} {path}: {words}", hint="name a readable file, or - for stdin") from error


def _pasted(words: list[str], is_all: bool) -> dict[str, Pasted]:
    """
    Node -> what was pasted for it; without NODE it is for the one node there is.

    Raises PastedError where nothing was understood and it `is_all` that is known.
    """
    split = [_split(word) for word in words]
    named = list(dict.fromkeys(node for node, _ in split if node))
    if len(named) > 1 and any(not node for node, _ in split):
        raise UsageError("--output FILE without NODE= among several nodes", hint="write --output NODE=FILE")
    found: dict[str, Pasted] = {}
    not_understood = []
    for node, path in split:
        name = node or (named[0] if named else UNNAMED)
        made = parse_pasted(_read(path, "--output"))
        if made.is_cut:
            common.say(f"{printable(path)}: only its first {MOST_CHARACTERS >> 20} Mi characters were read")
        not_understood += [path] if made.is_empty else []
        found[name] = together(found[name], made) if name in found else made
    if is_all and split and len(not_understood) == len(split):
        raise PastedError(
            f"{', '.join(not_understood[:3])}: {NOT_UNDERSTOOD}",
            hint="paste what `ip addr` and `ibstatus` (or `rdma link`) print there; --help names all tools",
        )
    for path in not_understood:
        common.say(f"{printable(path)}: {NOT_UNDERSTOOD}; it counts as not given")
    return found


def _dumps(words: list[str], nodes: list[str]) -> dict[str, Topology]:
    """Node -> its topology; without NODE= it holds for all, as nodes of a kind are built alike."""
    found: dict[str, Topology] = {}
    for word in words:
        node, path = _split(word)
        try:
            made = parse_topology(_read(path, "--topo"))
        except ValueError as error:
            raise UsageError(
                f"--topo {path}: {error}", hint="give a file that NCCL_TOPO_DUMP_FILE named"
            ) from error
        if node and node not in nodes:
            raise UsageError(
                f"--topo {word}: no node is called {node}", hint=f"nodes: {', '.join(nodes[:8])}"
            )
        found.update(dict.fromkeys([node] if node else nodes, made))
    return found


def _known(
    node: Node, pasted: Pasted | None, topology: Topology | None, version: choice.Version | None
) -> Known:
    """Facts of a node with what was pasted for it on top."""
    unknown = dict(node.unknown)
    if pasted and pasted.interfaces:
        unknown.pop("interfaces", None)
        node = dataclasses.replace(node, interfaces=pasted.interfaces)
    if pasted and pasted.rdma_ports:
        unknown.pop("rdma_ports", None)
        node = dataclasses.replace(node, rdma_ports=pasted.rdma_ports)
    base = expected.known(dataclasses.replace(node, unknown=unknown))
    pasted = pasted or Pasted()
    own_order = not pasted.interfaces or pasted.interfaces_in_kernel_order
    return dataclasses.replace(
        base,
        version=version or base.version,
        version_is_known=bool(version) or base.version_is_known,
        interfaces_in_kernel_order=own_order,
        devices_in_library_order=not pasted.rdma_ports or pasted.devices_in_library_order,
        asked_counts=not pasted.interfaces and version in (None, base.version),
        topology=topology or base.topology,
        is_live_tree=base.is_live_tree and topology is None,
        matrix=pasted.matrix if pasted.matrix.distance else base.matrix,
    )


def _with_better(known: Known, env: Mapping[str, str], made: Prediction) -> Prediction:
    """The prediction with what would serve the job better, where a list of devices would."""
    environment = choice.effective(known.node, env)
    if made.network != "IB" or environment.get("NCCL_IB_HCA"):
        return made
    taken = rdma.ports(known.node.rdma_ports, environment, known.version).taken
    chosen = rdma.wanted(taken)
    left = [p for p in taken if p not in chosen]
    if not left or not chosen:
        return made
    out = ", ".join(f"{rdma.shown(p)} ({p.rate_gbit_s:g} Gbit/s)" for p in left)
    value = rdma.hca_value(chosen, known.node.rdma_ports)
    better = (
        f"better: NCCL_IB_HCA='{value}', which leaves out {out}, of another network than {chosen[0].name}"
    )
    return dataclasses.replace(made, because=(*made.because, better))
