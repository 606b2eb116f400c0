"""
Predict which interfaces and devices NCCL will choose, and why.

From live nodes, from a saved collection (--from), or from pasted command output (--output).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringup.cli import options, pipeline, request
from ringup.cli.text_files import read_text
from ringup.errors import PastedError, UsageError
from ringup.model import Node
from ringup.nccl import interface_choice, rdma_devices, selection
from ringup.nccl.selection import Known, Prediction
from ringup.network.predictions import known as known_of
from ringup.network.predictions import together as compared
from ringup.output import prediction_report, terminal
from ringup.parse.pasted import MOST_CHARACTERS, Pasted, hosts_in, parse_pasted, together, unwrapped
from ringup.parse.topology import Topology, parse_topology
from ringup.units import printable, ranges, summarize_names

NOT_PASTED = {"interfaces": "paste `ip addr`", "rdma_ports": "paste `ibstatus` or `rdma link`"}
NOT_UNDERSTOOD = "no output of a supported tool"
OUTPUT = (
    "pasted output of ibstatus, ibstat, ibdev2netdev, rdma link, ibv_devinfo, show_gids, fi_info, ip addr, "
    "ifconfig, nvidia-smi topo -m and -p2p r in any mix, other lines ignored; repeatable, - is standard input"
)
TOPOLOGY = "topology as NCCL_TOPO_DUMP_FILE writes it: which device each GPU uses"
OPTIONS = (
    options.group(
        "what to predict from",
        options.words("pasted", "[NODE=]FILE", "the same as --output"),
        options.many("--output", "[NODE=]FILE", OUTPUT),
        options.many("--topo", "[NODE=]FILE", TOPOLOGY),
        options.value("--nccl", "VERSION", "NCCL's version, for example 2.27.7", ""),
    ),
    *(options.NODES, options.JOB, options.STRICT),
    options.group("output", options.JSON, options.ALL, options.QUIET),
)


def run(args: argparse.Namespace) -> int:
    env = request.environment_from(args.env)
    version = interface_choice.version_of(args.nccl) if args.nccl else None
    is_unread = version == interface_choice.ASSUMED and not args.nccl.startswith("2.27.7")
    if version and (is_unread or version < (2,)):
        raise UsageError(f"--nccl {args.nccl!r} is not a version", hint="for example --nccl 2.20.5")
    args.output = [*args.pasted, *args.output]
    is_all = not args.from_file and not request.named(args)
    pasted = _pasted(args.output, is_all=is_all)
    if args.output and is_all:
        nodes: tuple[Node, ...] = tuple(Node(name, unknown=dict(NOT_PASTED)) for name in pasted)
    elif args.from_file or args.save:  # saved facts must also serve `check`
        nodes = pipeline.cluster_of(args).nodes
    else:  # a prediction needs no tests of pairs
        from ringup.collectors import facts, facts_deadline_s

        job = request.job_from(args)
        with request.open_transport(args) as transport:
            nodes = facts(transport, job, facts_deadline_s(len(transport.hosts), job, args.timeout))
    nodes += tuple(Node(n, unknown=dict(NOT_PASTED)) for n in pasted if n not in {x.name for x in nodes})
    dumps = _dumps(args.topo, [node.name for node in nodes])
    knowns = [_known(node, pasted.get(node.name), dumps.get(node.name), version) for node in nodes]
    predictions = compared([k.node for k in knowns], [selection.predict(k, env) for k in knowns])
    predictions = tuple(_with_better(k, env, p) for k, p in zip(knowns, predictions, strict=True))
    if args.json:
        terminal.print_json(nodes=[prediction_report.as_json(p) for p in predictions])
    else:
        terminal.show(prediction_report.predict_text(predictions, unfolded=args.unfolded))
    is_unsure = args.strict and any(p.missing for p in predictions)
    return pipeline.say_unreached(nodes) or (3 if is_unsure else 0)


def _split(word: str) -> tuple[str, str]:
    """
    NODE and FILE of `[NODE=]FILE`; a file whose name contains = is found first.

    >>> _split("n1=ib.txt"), _split("ib.txt")
    (('n1', 'ib.txt'), ('', 'ib.txt'))
    """
    node, equals, path = word.partition("=")
    if not equals or Path(word).exists():
        return "", word
    return node, path


def _pasted(words: list[str], is_all: bool) -> dict[str, Pasted]:
    """Node -> its pasted output.  Raises PastedError if that `is_all` and nothing was understood."""
    split = [_split(word) for word in words]
    named = list(dict.fromkeys(node for node, _ in split if node))
    if len(named) > 1 and any(not node for node, _ in split):
        raise UsageError("--output FILE without NODE= among several nodes", hint="write --output NODE=FILE")
    found: dict[str, Pasted] = {}
    not_understood = []
    for node, path in split:
        name = node or (named[0] if named else "node")
        text = unwrapped(read_text(path, MOST_CHARACTERS + 1))
        parts = hosts_in(text) if not node else {"": text}
        if "part 2" in parts:
            again = f"{len(parts)} nodes, or one node at other times"
            terminal.say(f"{printable(path)}: the same devices again with other values: {again}")
        for host, part in parts.items():
            made = parse_pasted(part)
            _say_left(path, text, made, is_whole=len(parts) == 1)
            not_understood += [path] if made.is_empty and len(parts) == 1 else []
            own = host or name
            found[own] = together(found[own], made) if own in found else made
    if is_all and split and len(not_understood) == len(split):
        hint = "paste what `ip addr` and `ibstatus` (or `rdma link`) print there; --help names all tools"
        raise PastedError(f"{', '.join(not_understood[:3])}: {NOT_UNDERSTOOD}", hint=hint)
    for path in not_understood:
        terminal.say(f"{printable(path)}: {NOT_UNDERSTOOD} in it; ignored")
    return found


def _say_left(path: str, text: str, made: Pasted, *, is_whole: bool) -> None:
    """Print the parts of a paste that were not read, not understood or not needed."""
    if made.is_cut:
        terminal.say(f"{printable(path)}: only its first {MOST_CHARACTERS >> 20} Mi characters were read")
    if made.not_understood and is_whole and not made.is_empty:
        first = text.splitlines()[made.not_understood[0] - 1].strip()
        numbers = ("line " if len(made.not_understood) == 1 else "lines ") + ranges(made.not_understood)
        terminal.say(f"{printable(path)}: {numbers} not understood ({printable(first, 60)!r})")
    for tool in made.unused:
        terminal.say(f"{printable(path)}: {tool}: NCCL's choice does not depend on it")
    if made.is_part:
        terminal.say(f"{printable(path)}: a part of the interfaces, as lo is missing: paste all of `ip addr`")
    # Of `nvidia-smi topo -p2p`.
    refused = [f"GPU{a}-GPU{b} {cell}" for (a, b), cell in made.peers.items() if a < b and cell != "OK"]
    words = f"no peer access: {summarize_names(refused, 8)}; NCCL uses shared memory between these GPUs"
    if made.peers:
        words = words if refused else "all pairs of GPUs have peer access"
        terminal.say(f"{printable(path)}: {words}; the choice of the network does not depend on it")


def _dumps(words: list[str], nodes: list[str]) -> dict[str, Topology]:
    """Node -> its topology; without NODE= it applies to all, because similar nodes are built alike."""
    found: dict[str, Topology] = {}
    for word in words:
        node, path = _split(word)
        try:
            made = parse_topology(read_text(path, MOST_CHARACTERS + 1))
        except ValueError as error:
            hint = "give a file that NCCL_TOPO_DUMP_FILE named; `nvidia-smi topo -m` goes to --output"
            raise UsageError(f"--topo {path}: {error}", hint=hint) from error
        if node and node not in nodes:
            hint = f"nodes: {', '.join(nodes[:8])}"
            raise UsageError(f"--topo {word}: no node is called {node}", hint=hint)
        found.update(dict.fromkeys([node] if node else nodes, made))
    return found


def _known(
    node: Node, pasted: Pasted | None, topology: Topology | None, version: interface_choice.Version | None
) -> Known:
    """Facts of a node, replaced by its pasted output where there is some."""
    pasted = pasted or Pasted()
    if pasted.is_part and not any(i.is_up and i.usable_addresses for i in pasted.interfaces):
        # The interface that NCCL will take is one of those that were left out.
        pasted = dataclasses.replace(pasted, interfaces=())
        node = dataclasses.replace(node, unknown={**node.unknown, "interfaces": "only a part was pasted"})
    found: dict[str, Any] = {name: value for name in NOT_PASTED if (value := getattr(pasted, name))}
    unknown = {name: why for name, why in node.unknown.items() if name not in found}
    environment = {**node.environment, **pasted.environment}
    base = known_of(dataclasses.replace(node, unknown=unknown, environment=environment, **found))
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
        matrix=pasted.matrix or base.matrix,
    )


def _with_better(known: Known, env: Mapping[str, str], made: Prediction) -> Prediction:
    """The prediction with a better list of devices, if there is one."""
    environment = interface_choice.effective(known.node, env)
    if made.network != "IB" or environment.get("NCCL_IB_HCA"):
        return made
    taken = rdma_devices.ports(known.node.rdma_ports, environment, known.version).taken
    chosen = rdma_devices.wanted(taken)
    left = [p for p in taken if p not in chosen]
    if not left or not chosen:
        return made
    out = ", ".join(f"{rdma_devices.shown(p)} ({p.rate_gbit_s:g} Gbit/s)" for p in left)
    value = rdma_devices.hca_value(chosen, known.node.rdma_ports)
    why = f"which leaves out {out}, on another network than {chosen[0].name}"
    return dataclasses.replace(made, because=(*made.because, f"better: NCCL_IB_HCA='{value}', {why}"))
