"""Variables that are already set: all are kept, and each is judged by its effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ringup.model import Cluster, RdmaPort
from ringup.nccl import rdma_devices, traps, variables
from ringup.nccl.interface_choice import Version
from ringup.nccl.selection import Prediction
from ringup.network.predictions import Selection, predicted
from ringup.planning.network import choose_network
from ringup.units import grouped, printable, summarize_names

Verdict = Literal[
    "right", "no-op", "harmful", "changes", "site", "debugging", "typo", "obsolete", "leftover",
    "contradicting", "not judged",
]  # fmt: skip
"""
The effect of a variable here: needed, none, harmful, another choice than NCCL's own, to be confirmed by the
site's network team, only for output or tests.  It has no effect if it is misspelt, if this release does not
read it, if it is for another cloud's machines, or if another variable overrides it.
"""

PREFIXES = (
    *("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_CPP_", "TORCH_SHOW_", "TORCH_FR_"),
    *("CUDA_LAUNCH_", "FI_", "OFI_NCCL_"),
)
OF_IMAGES = ("NCCL_VERSION",)
"""NVIDIA's images set these to describe their content; NCCL does not read them."""


@dataclass(frozen=True)
class Kept:
    """A variable as it is set on one node (None: on all), and its effect."""

    name: str
    value: str
    verdict: Verdict
    because: str
    node: str | None = None


def kept(cluster: Cluster) -> tuple[Kept, ...]:
    """Every variable that is already set, node by node; once if all nodes agree."""
    joined = choose_network(cluster)
    interfaces = joined.interfaces if joined else {}
    reached = {name: one for name, one in predicted(cluster).nodes.items() if not one.node.unreached}
    found = grouped((k, name) for name, s in reached.items() for k in judged(s, interfaces.get(name, "")))
    everywhere = sum(not n.unreached for n in cluster.nodes)
    made = [k for k, nodes in found.items() if len(nodes) == everywhere]
    made += [replace(k, node=n) for k, nodes in found.items() if len(nodes) != everywhere for n in nodes]
    return tuple(sorted(made, key=lambda k: (k.name, k.node or "")))


def judged(selection: Selection, interface: str = "") -> Iterator[Kept]:
    """The variables of one node's ranks, each judged; `interface` is the planned interface of the ranks."""
    working = selection
    # If the bootstrap fails, no variable has a visible effect: others are judged without the one at fault.
    for name in ("NCCL_COMM_ID", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME"):
        if working.environment.get(name) and working.choice.bootstrap is None:
            working = working.with_env(**{name: ""})
    for name, value in sorted(selection.environment.items()):
        if name.startswith(PREFIXES) and name not in OF_IMAGES:
            one = working if working.environment[name] == value else working.with_env(**{name: value})
            verdict, because = judge(name, one, interface)
            places = (("the shell", selection.node.environment), ("nccl.conf", selection.node.nccl_conf))
            losing = [f"{where} has {own[name]}" for where, own in places if own.get(name, value) != value]
            if losing:
                winner = "--env" if name in selection.env else "the shell"
                because += f"; {' and '.join(losing)}, and {winner} wins"
            yield Kept(name, value, verdict, because)


def judge(name: str, one: Selection, interface: str = "") -> tuple[Verdict, str]:
    row = variables.row_of(name)
    if meant := variables.meant(name):
        return "typo", f"no program reads this name; {meant} is similar"
    # Whether it is read depends on the release, which may be an assumption.
    if unread := variables.unread(name, one.version) if one.node.interpreter.nccl else "":
        return "obsolete", unread
    if foreign := _foreign(name, one):
        return foreign
    if ruled_out := traps.ruled_out(name, one.environment):
        return "contradicting", ruled_out
    if row.kind == "experiment":
        return "debugging", f"for experiments: {row.what}"
    return JUDGES[row.kind](name, one, interface) if row.kind else ("not judged", "kept as it is")


def _foreign(name: str, one: Selection) -> tuple[Verdict, str] | None:
    """For a setting of one cloud's machines; None on these machines, and for any other setting."""
    cloud = variables.owner(name, one.environment[name])
    product = "" if "product" in one.node.unknown else one.node.product
    if not cloud or variables.MACHINES[cloud] in product.lower():
        return None
    if not product:
        return "site", f"it is for {cloud}'s machines; the cloud of this one is unknown"
    return "leftover", f"it is for {cloud}'s machines, and this one is {printable(product, 60)}"


def _debugging(name: str, one: Selection, _interface: str) -> tuple[Verdict, str]:
    if name == "NCCL_DEBUG_FILE" and "%p" not in one.environment[name]:
        return "harmful", "all ranks of a node write into one file; %h and %p make it one for each"
    if name == "NCCL_DEBUG" and one.environment[name].upper() not in traps.LOG_LEVELS:
        return "no-op", f"nothing is logged: the levels are {', '.join(traps.LOG_LEVELS)}"
    return "debugging", variables.row_of(name).what


def _gloo(_name: str, one: Selection, interface: str) -> tuple[Verdict, str]:
    """Compares the addresses that Gloo announces with and without it."""
    own = [c.interface for c in one.gloo]
    alone = [c.interface for c in one.with_env(GLOO_SOCKET_IFNAME="").gloo]
    if not own:
        return "harmful", "Gloo finds no interface of that name here, and fails"
    if own == alone:
        return "no-op", f"Gloo takes {own[0]} without it as well"
    if own == [interface]:
        return "right", f"the ranks use {interface}; by default Gloo takes {alone[0] if alone else 'none'}"
    return "changes", f"Gloo takes {', '.join(own)} with it, {', '.join(alone) or 'none'} without it"


def _steering(name: str, one: Selection, interface: str) -> tuple[Verdict, str]:
    """Compares NCCL's choices with and without it."""
    other = one.with_env(**{name: ""})
    with_it, without = one.choice, other.choice
    found = traps.all_traps(one.environment, one.node.interfaces, one.node.rdma_ports, one.version)
    # The line that shows a verdict begins with the setting already.
    prefix = f"{name}={one.environment[name]}: "
    trapped = "; ".join(trap.removeprefix(prefix) for trap in found if trap.startswith(name))
    if _choice(with_it) == _choice(without):
        if name == "NCCL_IB_DISABLE" and not rdma_devices.is_disabled(one.environment):
            return "no-op", f"{one.environment[name]} is the default: RDMA is used where there is any"
        if name.startswith("NCCL_IB_") and without.network == "Socket":
            return "no-op", trapped or "no RDMA port is used here"
        same = f"NCCL chooses the same without it: {_shown(without)}"
        return "no-op", trapped or (same if without.network else "it changes nothing")
    if not with_it.network and without.network:
        failure = with_it.log_line or "init fails"
        return "harmful", trapped or f"NCCL fails with it ({failure}); without it: {_shown(without)}"
    if with_it.network == "Socket" and without.network == "IB":
        return "harmful", trapped or f"NCCL does not use RDMA; without it: {_shown(without)}"
    # A choice is right if the plan would have made it, too.
    if name == "NCCL_IB_HCA":
        is_right = used_ports(one) == (*rdma_devices.wanted(used_ports(other)),) != ()
    else:
        boot = with_it.bootstrap
        is_right = name == "NCCL_SOCKET_IFNAME" and boot is not None and boot.interface == interface
    choices = f"{_shown(with_it)}; without it: {_shown(without)}"
    return ("right", f"needed here: {choices}") if is_right else ("changes", f"with it: {choices}")


def _choice(made: Prediction) -> tuple[object, ...]:
    boot = made.bootstrap
    return boot and (boot.interface, boot.address), made.network, made.interfaces, made.oob


def _shown(made: Prediction) -> str:
    boot = f"bootstrap on {made.bootstrap.interface}, " if made.bootstrap else ""
    # Without the address, which differs per node, nodes that choose alike are shown as one.
    names = [i.partition(":")[0] if made.network == "Socket" else i for i in made.interfaces]
    return f"{boot}network {made.network or 'none'} {' '.join(names)}".strip()


def used_ports(one: Selection) -> tuple[RdmaPort, ...]:
    """The RDMA ports that NCCL uses in this environment; empty if it uses sockets."""
    return one.rdma_ports if one.choice.network == "IB" else ()


def _gid_index(_name: str, one: Selection, _interface: str) -> tuple[Verdict, str]:
    """Compares it with the entry that NCCL would take without it."""
    if not (ports := [p for p in used_ports(one) if p.link_layer == "Ethernet"]):
        return "no-op", "it is read for RoCE only, and no RoCE port is used here"
    without = one.with_env(NCCL_IB_GID_INDEX="").environment
    own = [one.gid(p) for p in ports]
    best = [rdma_devices.gid_index(p, without, max(one.version, rdma_devices.CHOOSES_GIDS)) for p in ports]
    if any(b.index is None for b in best):
        return "site", "the GID tables are not known: whether the index is right is unknown"
    if not (wrong := [(o, b) for o, b in zip(own, best, strict=True) if o.index != b.index]):
        if one.version >= rdma_devices.CHOOSES_GIDS:
            return "no-op", "NCCL takes the same entry without it (from 2.21 on it looks for it)"
        return "right", "before 2.21 NCCL takes index 0 without it, a link-local entry of RoCE v1"
    is_bad = any(o.gid is None or "v2" not in o.gid.kind for o, _ in wrong)
    shown = "; ".join(f"{o.because}, by default NCCL takes {b.index}" for o, b in wrong)
    return ("harmful" if is_bad else "changes"), shown


def _fabric(name: str, one: Selection, _interface: str) -> tuple[Verdict, str]:
    """Settings of RDMA traffic: no effect without RDMA, else to be confirmed by the site's network team."""
    ports = used_ports(one)
    if "rdma_ports" in one.node.unknown:
        return "not judged", "the RDMA devices of this node are not known"
    if not ports:
        return "no-op", "no RDMA port is used here"
    default = {"NCCL_IB_TIMEOUT": ack_timeout(one.version), "NCCL_IB_QPS_PER_CONNECTION": 1}.get(name, 0)
    value = variables.number(one.environment, name, default)
    if name in ("NCCL_IB_TC", "NCCL_IB_FIFO_TC"):
        if all(p.link_layer == "InfiniBand" for p in ports):
            return "no-op", "traffic classes are for RoCE, the ports are InfiniBand (NCCL_IB_SL counts there)"
        dscp = f"DSCP {value >> 2}"
        return "site", f"{dscp}: right if the switches' lossless class has it, which a node cannot see"
    if name == "NCCL_IB_TIMEOUT":
        words = f"each try waits {try_s(value):.2g} s for a lost packet ({try_s(default):.2g} s by default)"
        if value == default:
            return "no-op", f"{words}: the default of this release"
        return "site", f"{words}: it hides a bad link longer and repairs nothing"
    if name != "NCCL_IB_QPS_PER_CONNECTION":
        return "site", "depends on the fabric; must be equal on all nodes"
    if value == default:
        return "no-op", "1 is the default"
    return "site", "spreads a connection over the paths of an ECMP fabric; must be equal on all nodes"


JUDGES: dict[str, Callable[[str, Selection, str], tuple[Verdict, str]]] = {
    "debugging": _debugging,
    "gloo": _gloo,
    "gid": _gid_index,
    "fabric": _fabric,
    "steering": _steering,
}
"""Kind of variable (`nccl/variables.json`) -> the function that judges it."""


def ack_timeout(version: Version) -> int:
    """Default of NCCL_IB_TIMEOUT: 14, from 2.14 on 18, from 2.23 on 20 (net_ib of each release)."""
    return 20 if version >= (2, 23, 4) else 18 if version >= (2, 14, 3) else 14


def try_s(ack_timeout: int) -> float:
    return float(4.096e-6 * 2 ** min(31, max(0, ack_timeout)))


# RoCE settings are explained, never set: a node sees neither the lossless traffic class nor the paths.

RETRIES = 7
"""Default of NCCL_IB_RETRY_CNT."""


def roce_explained(cluster: Cluster) -> list[str]:
    """A few sentences if some node sends over RoCE, else none."""
    known = (s for s in predicted(cluster).nodes.values() if "rdma_ports" not in s.node.unknown)
    users = [s for s in known if s.roce_ports]
    if not users or cluster.job.backend == "gloo":
        return []
    usual = max(ack_timeout(s.version) for s in users)
    now = ", ".join(_set_to("NCCL_IB_TIMEOUT", users)) or f"{usual}, the default"
    pairs = ", ".join(_set_to("NCCL_IB_QPS_PER_CONNECTION", users)) or "1, the default"
    return [
        f"RoCE on {summarize_names(s.node.name for s in users)}:",
        f"  NCCL_IB_GID_INDEX: {_explained_gid_index(users)}",
        f"  NCCL_IB_TC: {_traffic_class(users)}",
        f"  NCCL_IB_TIMEOUT: {now}; at {usual} NCCL tries {RETRIES} times for {try_s(usual):.2g} s each."
        " A higher value survives the reboot of a switch, but also hides a bad link for that time",
        f"  NCCL_IB_QPS_PER_CONNECTION: {pairs}; 4 or 8 help only on a fabric with several equal paths"
        " (ECMP): measure with `ringup bench`, and set the same value on all nodes",
    ]


def _set_to(name: str, users: Sequence[Selection]) -> list[str]:
    return sorted({v for s in users if (v := s.environment.get(name, ""))})


def _explained_gid_index(users: Sequence[Selection]) -> str:
    found = []
    for one in users:
        for made in map(one.gid, one.roce_ports):
            gid = f"{made.gid.gid} {made.gid.kind}" if made.gid else "an entry that is not known"
            found.append(f"{made.index} ({gid})" if made.index is not None else "the entry in its table")
    shown = summarize_names(dict.fromkeys(found))
    if all(one.version >= rdma_devices.CHOOSES_GIDS for one in users):
        return f"leave it unset: NCCL since 2.21 finds the entry itself, here {shown}"
    return f"NCCL before 2.21 takes index 0 if it is not set; here it uses {shown}"


def _traffic_class(users: Sequence[Selection]) -> str:
    if values := _set_to("NCCL_IB_TC", users):
        shown = ", ".join(f"{v} (DSCP {int(v) >> 2})" if v.isdecimal() else v for v in values)
        return f"{shown}, set by the site and kept; right if the switches' lossless class has this DSCP"
    if marked := sorted({p.traffic_class for s in users for p in s.roce_ports if p.traffic_class}):
        shown = ", ".join(f"{v} (DSCP {v >> 2})" for v in marked)
        return f"leave it unset; the driver marks all RoCE traffic here with {shown}"
    return (
        "not set. Do not guess it: ask the administrators of the switches for the DSCP of the lossless"
        " class, and set 4 times that number on every node. Without such a class (or with PFC on all traffic)"
        " leave it unset"
    )
