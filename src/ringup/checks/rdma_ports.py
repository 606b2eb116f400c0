"""RDMA ports and devices: down, unmanaged, slow, unlike the peers', of two kinds, for management."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from ringup import problems
from ringup.checks import interfaces, verbs
from ringup.checks.net import listed
from ringup.checks.verbs import View
from ringup.facts import Cluster, Node, RdmaPort
from ringup.nccl import choice, rdma
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import printable, twice_quoted

READS = verbs.READS
USES = (*verbs.USES, *interfaces.USES, "routes")


def subject(node: Node, port: RdmaPort) -> str:
    return f"rdma:{node.name}/{port.name}"


def waits_for_manager(port: RdmaPort) -> bool:
    """An InfiniBand link that is up and whose port nobody has configured."""
    linked = port.physical_state.replace("_", "").lower() == "linkup"
    return port.link_layer == "InfiniBand" and port.state == "INIT" and linked


def is_named(view: View, node: Node, port: RdmaPort) -> bool:
    """Whether NCCL_IB_HCA names this very device."""
    accepted = rdma.hca_filter(view.environment(node), choice.version_of(node.interpreter.nccl))
    return not accepted.negate and any(item.name == port.device for item in accepted.items)


def missed(view: View, node: Node, port: RdmaPort) -> bool:
    """Whether a port that is not active should be: it is named, or most peers that have it use it."""
    others = view.owners[port.name] - 1
    return is_named(view, node, port) or (
        view.is_peers_main(node, port.name) and 2 * view.active[port.name] >= others
    )


@check(problems.RDMA_PORT_NOT_ACTIVE, reads=READS, uses=USES)
def rdma_port_not_active(cluster: Cluster) -> Iterator[Finding]:
    """What is down everywhere is meant so; an interface that is down is said by its own rule."""
    view = verbs.view_of(cluster)
    idle = [
        (node, port)
        for node in view.nodes
        for port in view.allowed(node)
        if port.state not in ("ACTIVE", "") and not waits_for_manager(port) and missed(view, node, port)
    ]
    said = downs_told(cluster) if idle else set()
    for node, port in idle:
        if interfaces.subject(node, port.netdev) not in said:
            yield not_active(view, node, port)


def downs_told(cluster: Cluster) -> set[str]:
    """Interfaces of which another rule says that they are down."""
    return {f.subject for f in interfaces.interface_down(cluster) if isinstance(f, Finding)}


def not_active(view: View, node: Node, port: RdmaPort) -> Finding:
    cut = {"disabled": "enable it", "polling": "nothing answers: cable, transceiver or switch port"}
    advice = cut.get(port.physical_state.lower(), "look at cable, transceiver and switch port")
    left = view.taken[node.name]
    return Finding(
        f"{node.name} {port.name}",
        found=f"state {port.state}, link {port.physical_state or 'not told'}"
        + ("" if left else "; no other port is left, NCCL takes TCP there"),
        wanted="state ACTIVE, as on the other nodes",
        node=node.name,
        severity=view.loss(node),
        fix=Fix(
            f"{advice}; until then leave it out on every node",
            env={"NCCL_IB_HCA": f"^={port.name}"} if left else {},
            commands=(f"ssh {shlex.quote(node.name)} ibstatus {twice_quoted(port.name)}",),
        ),
    )


@check("no-subnet-manager", reads=READS, uses=USES)
def no_subnet_manager(cluster: Cluster) -> Iterator[Finding]:
    """
    An InfiniBand port has its link and waits for a subnet manager.

    Why: the port stays in state INIT and is never used; without a manager the whole fabric is dead,
    however good its cables.

    Fix: start the subnet manager (`opensm`, or the switch's own), and see that it reaches this port.

    In logs: `NET/IB : No device found.`
    """
    view = verbs.view_of(cluster)
    waiting = [(node, port) for node in view.nodes for port in view.allowed(node) if waits_for_manager(port)]
    if not waiting:
        return
    where, alone = verbs.places(waiting)
    needed = any(missed(view, n, p) or not view.taken[n.name] for n, p in waiting)
    worst: Severity = "error" if any(view.is_stranded(n) for n, _ in waiting) else "warning"
    managers = [f"{p.name} sm_lid {p.sm_lid}" for _, p in waiting if p.sm_lid]
    yield Finding(
        where,
        found=f"state INIT with the link up on {len(waiting)} port{'s' if len(waiting) > 1 else ''}"
        + (f" ({listed(managers)})" if managers else ", subnet manager: none"),
        wanted="state ACTIVE: a subnet manager has configured the port",
        node=alone,
        severity=view.at_most(worst if needed else "note"),
        fix=Fix(
            "start the subnet manager, on one node or the switch",
            commands=(
                f"ssh {shlex.quote(waiting[0][0].name)} sudo systemctl start opensm",
                f"ssh {shlex.quote(waiting[0][0].name)} sudo sminfo -C {twice_quoted(waiting[0][1].device)}",
            ),
        ),
    )


def speeds_told(cluster: Cluster) -> set[str]:
    """Interfaces of which another rule says that they are slower than the peers'."""
    return {f.subject for f in interfaces.link_speed_below_peers(cluster) if isinstance(f, Finding)}


@check("rdma-rate-low", reads=READS, uses=USES, severity="warning")
def rdma_rate_low(cluster: Cluster) -> Iterator[Finding]:
    """
    An RDMA port runs slower than the same port of the other nodes.

    Why: lanes or a generation were lost when the link came up; the slowest link sets the pace of all.

    Fix: reseat or change the cable, look at its error counters and at the switch port.
    """
    view = verbs.view_of(cluster)
    said = speeds_told(cluster) if view.users else set()
    for name in view.users:
        here = {n.name: p for n in view.nodes for p in view.taken[n.name] if p.name == name and p.rate_gbit_s}
        rates = {node: p.rate_gbit_s or 0.0 for node, p in here.items()}
        wanted = verbs.usual(rates)
        for node, rate in rates.items():
            port = here[node]
            if isinstance(wanted, float) and rate < wanted:
                if f"interface:{node}/{port.netdev}" in said:
                    continue
                lanes = f", {port.width} lanes" if port.width else ""
                yield Finding(
                    f"{node} {name}",
                    found=f"{rate:g} Gbit/s{lanes}",
                    wanted=f"{wanted:g} Gbit/s, as {name} of the other nodes",
                    node=node,
                    severity=view.at_most("warning"),
                    fix=Fix(
                        "reseat or change cable and transceiver; look at the switch port",
                        commands=(
                            f"ssh {shlex.quote(node)} ibstatus {twice_quoted(port.device)}:{port.number}",
                        ),
                    ),
                )


@check(problems.RDMA_DEVICE_SET_DIFFERS, reads=READS, uses=USES)
def rdma_device_set_differs(cluster: Cluster) -> Iterator[Finding]:
    """Devices that are there; one whose port is down, or that cannot be opened, is said by another rule."""
    view = verbs.view_of(cluster)
    there = {n.name: {p.name for p in n.rdma_ports} for n in view.nodes}
    asked = {n.name: n for n in view.nodes if view.is_asked(n) and not lacks_module(n)}
    lacking: dict[str, list[str]] = {}
    extra: dict[str, list[str]] = {}
    for name in view.users:
        without = [n for n in asked if name not in there[n]]
        if 2 * len(without) <= len(asked):
            for node in without:
                lacking.setdefault(node, []).append(name)
        else:
            for node in set(asked) - set(without):
                extra.setdefault(node, []).append(name)
    if (lacking or extra) and only_names_differ(view, asked):
        yield Finding(
            "RDMA device names",
            found=listed(f"{n}: {few(p.name for p in view.main[n])}" for n in asked),
            wanted="the same names on every node, so that one NCCL_IB_HCA fits all",
            severity="note",
        )
    else:
        for odd, said in ((lacking, "lacks"), (extra if not lacking else {}, "alone has")):
            for node, names in odd.items():
                yield unlike(view, asked[node], f"{said} {few(names)}")
    yield from kinds_differ(view)


def lacks_module(node: Node) -> bool:
    """Whether an adapter is there without any RDMA device, because that side's driver is not loaded."""
    known = "verbs" not in node.unknown
    return known and not node.rdma_ports and bool(node.verbs.bound) and "mlx5_ib" not in node.verbs.modules


def only_names_differ(view: View, nodes: Iterable[str]) -> bool:
    """Whether every node has the same sequence of ports under other names."""
    return len({tuple((p.link_layer, p.rate_gbit_s) for p in view.main[n]) for n in nodes}) == 1


def unlike(view: View, node: Node, what: str) -> Finding:
    owned = [{p.device for p in n.rdma_ports} for n in view.nodes if n.rdma_ports]
    common = sorted(set.intersection(*owned))
    return Finding(
        f"{node.name} RDMA devices",
        found=f"{node.name} {what}; ports in use: {listed(f'{n} {len(p)}' for n, p in view.main.items())}",
        wanted="the same devices on every node",
        node=node.name,
        severity=view.loss(node),
        fix=Fix(
            "find the device that is missing (`lspci -d 15b3:`, dmesg), or name the common ones everywhere",
            env={"NCCL_IB_HCA": "=" + ",".join(common)} if common and view.taken[node.name] else {},
            commands=(f"ssh {shlex.quote(node.name)} rdma link",),
        ),
    )


def kinds_differ(view: View) -> Iterator[Finding]:
    """Firmware or board of the same port that is not everywhere the same: no fault, but worth knowing."""
    odd = []
    for name, here in view.by_name().items():
        for what in ("hca_type", "board_id", "firmware"):
            groups: dict[str, list[str]] = {}
            for node, port in here.items():
                groups.setdefault(str(getattr(port, what)), []).append(node)
            groups.pop("", None)
            if len(groups) > 1:
                told = listed(f"{printable(value, 40)} on {few(nodes)}" for value, nodes in groups.items())
                odd.append(f"{what} of {name}: {told}")
                break
    if odd:
        yield Finding(
            "RDMA devices",
            found=listed(odd),
            wanted="one kind of adapter with one firmware",
            severity="note",
            fix=Fix("bring all to one firmware"),
        )


@check(problems.MIXED_LINK_LAYERS_SELECTED, reads=READS, uses=USES)
def mixed_link_layers_selected(cluster: Cluster) -> Iterator[Finding]:
    """Harmless where the n-th ports agree on all nodes, but the slower kind carries data as well."""
    view = verbs.view_of(cluster)
    mixed = {n.name: view.taken[n.name] for n in view.nodes if is_mixed(view.taken[n.name])}
    if not mixed:
        yield from unlike_kinds(view)
        return
    orders = {tuple(p.link_layer for p in view.taken[n.name]) for n in view.nodes}
    name, ports = next(iter(mixed.items()))
    node = next(n for n in view.nodes if n.name == name)
    main = rdma.wanted(ports)
    left = [p for p in ports if p.link_layer != main[0].link_layer]
    value = rdma.hca_value([p for p in main if p not in left], node.rdma_ports)
    yield Finding(
        f"{few(mixed)} {left[0].name if left else ''}".strip(),
        found=f"NCCL takes {few((rdma.shown(p) for p in ports), 9)}",
        wanted=f"ports of one network: NCCL_IB_HCA={value}",
        node=name if len(mixed) == 1 else None,
        subject=subject(node, left[0]),
        severity=view.at_most("error" if len(orders) > 1 else "warning"),
        fix=Fix("name the ports of one kind", env={"NCCL_IB_HCA": value}),
    )


def unlike_kinds(view: View) -> Iterator[Finding]:
    """Nodes of one kind each, but not of the same: the n-th port of one meets the n-th of another."""
    kinds = {n.name: view.taken[n.name][0].link_layer for n in view.nodes if view.taken[n.name]}
    known = Counter(k for k in kinds.values() if k)
    if len(known) < 2:
        return
    common, _ = known.most_common(1)[0]
    odd = [name for name, kind in kinds.items() if kind and kind != common]
    yield Finding(
        few(odd),
        found=f"NCCL takes {few(rdma.shown(p) for p in view.taken[odd[0]])}",
        wanted=f"{common}, as on {next(name for name, kind in kinds.items() if kind == common)}",
        node=odd[0] if len(odd) == 1 else None,
        severity=view.at_most("error"),
        fix=Fix("use ports of one kind on all nodes; where there are none: NCCL_IB_DISABLE=1 on all"),
    )


def is_mixed(ports: tuple[RdmaPort, ...]) -> bool:
    return {"InfiniBand", "Ethernet"} <= {p.link_layer for p in ports}


@check("management-port-selected", reads=READS, uses=USES, severity="warning")
def management_port_selected(cluster: Cluster) -> Iterator[Finding]:
    """
    NCCL would also use an RDMA port that is far slower than the others: a management or storage port.

    Why: every device it finds becomes a lane for data, whatever the lane is for, and the slow one drags.

    Fix: leave it out: `NCCL_IB_HCA=^=mlx5_bond_0`.

    In logs: a device too many in the `NET/IB : Using` line.
    """
    view = verbs.view_of(cluster)
    found: list[tuple[Node, RdmaPort]] = []
    for node in view.nodes:
        ports = view.taken[node.name]
        main = rdma.wanted(ports)
        # A port that peers use at its full rate lost it here: another rule says so.
        slow = [p for p in ports if p not in main and not view.is_peers_main(node, p.name)]
        found += [(node, p) for p in slow if not is_mixed(ports)]
    if not found:
        return
    node, port = found[0]
    where, alone = verbs.places(found)
    best = max(p.rate_gbit_s or 0 for p in view.main[node.name])
    default = {
        r.interface for r in node.routes if r.destination == "default" and "routes" not in node.unknown
    }
    role = f", {port.netdev} has the default route" if port.netdev in default else ""
    value = f"^={port.device}"
    yield Finding(
        where,
        found=f"{port.name} at {port.rate_gbit_s:g} Gbit/s among ports of {best:g} Gbit/s{role}",
        wanted="the fast ports only",
        node=alone,
        subject=subject(node, port),
        severity=view.at_most("warning" if role else "note"),
        fix=Fix("leave it out", env={"NCCL_IB_HCA": value}),
    )
