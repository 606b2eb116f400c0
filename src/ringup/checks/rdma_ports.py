"""RDMA ports and devices: down, slow, unlike those of the peers, of two kinds; and present but unusable."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from ringup.checks import interfaces, verbs
from ringup.checks.environment import at_variable
from ringup.checks.network_setup import listed
from ringup.checks.software import most_common, most_common_number
from ringup.checks.verbs import View
from ringup.model import Cluster, Node, RdmaPort
from ringup.nccl import rdma_devices
from ringup.rules import Finding, Place, Severity, at, check, ssh
from ringup.units import assignment, grouped, plural, printable, summarize_names

READS = verbs.READS
PROVIDERS = {"mlx5_core": "mlx5", "mlx4_core": "mlx4", "efa": "efa"}
"""Kernel driver -> the matching driver of libibverbs (rdma-core, providers/)."""


def waits_for_manager(port: RdmaPort) -> bool:
    """An InfiniBand port whose link is up, but which no subnet manager has configured."""
    linked = port.physical_state.replace("_", "").lower() == "linkup"
    return port.link_layer == "InfiniBand" and port.state == "INIT" and linked


def missed(view: View, node: Node, port: RdmaPort) -> bool:
    """Whether a port should be active: NCCL_IB_HCA names it, or most peers use their port of this name."""
    accepted = rdma_devices.hca_filter(view.of(node).environment, view.of(node).version)
    if not accepted.negate and any(name == port.device for name, _ in accepted.items):
        return True
    return view.is_peers_main(node, port.name) and 2 * view.active[port.name] >= view.owners[port.name] - 1


@check("rdma-port-not-active", reads=READS, scope="rdma")
def rdma_port_not_active(view: View, cluster: Cluster) -> Iterator[Finding]:
    """Without ports that are down on every node, or whose interface is down (`interface-down`)."""
    every = [(n, p) for n in view.nodes for p in view.allowed(n) if p.state not in ("ACTIVE", "")]
    idle = [(n, p) for n, p in every if not waits_for_manager(p) and missed(view, n, p)]
    down = {f.subject for f in interfaces.interface_down(cluster, view)} if idle else set()
    cut = {"disabled": "enable it", "polling": "no link: cable, transceiver or switch port"}
    for node, port in idle:
        if interfaces.subject(node, port.netdev) in down:
            continue
        advice = cut.get(port.physical_state.lower(), "check cable, transceiver and switch port")
        left = view.taken[node.name]
        yield at(node, port.name).finding(
            found=f"state {port.state}, link {port.physical_state or 'unknown'}"
            + ("" if left else "; no other port is usable, so NCCL uses TCP there"),
            wanted="state ACTIVE, as on the other nodes",
            severity=view.loss(node),
            fix=f"{advice}; until then leave it out on every node",
            run=f"ibstatus {shlex.quote(port.name)}",
            env=without(view, node, port.name) if left else {},
        )


def without(view: View, node: Node, name: str) -> dict[str, str]:
    """NCCL_IB_HCA without one port; a list that is set stays one, so that no other port comes in."""
    if not view.of(node).environment.get("NCCL_IB_HCA"):
        return {"NCCL_IB_HCA": f"^={name}"}
    everywhere = set.intersection(*({p.name for p in ports} for ports in view.main.values() if ports))
    left = [p for p in view.main[node.name] if p.name in everywhere - {name}]
    return {"NCCL_IB_HCA": rdma_devices.hca_value(left, node.rdma_ports)} if left else {}


@check("no-subnet-manager", reads=READS, scope="rdma")
def no_subnet_manager(view: View) -> Iterator[Finding]:
    """
    An InfiniBand port has its link and waits for a subnet manager.

    Why: the port stays in state INIT and is never used.

    Why, fabric: Without a manager the whole fabric is dead, however good its cables.

    Fix: check cable, switch port and partition of this port: other ports are active, so a manager runs.

    Fix, fabric: start the subnet manager (`opensm`, or the switch's own), and see that it reaches this port.
    In logs: `NET/IB : No device found.`
    """
    waiting = [(node, port) for node in view.nodes for port in view.allowed(node) if waits_for_manager(port)]
    if not waiting:
        return
    needed = any(missed(view, n, p) or not view.taken[n.name] for n, p in waiting)
    worst: Severity = "error" if any(view.is_stranded(n) for n, _ in waiting) else "warning"
    managers = [f"{p.name} sm_lid {p.sm_lid}" for _, p in waiting if p.sm_lid]
    every = [p for node in view.nodes for p in node.rdma_ports if p.link_layer == "InfiniBand"]
    is_alive = any(p.is_active for p in every)
    said = ", other ports are active" if is_alive else ", subnet manager: none"
    asks = f"sudo sminfo -C {shlex.quote(waiting[0][1].device)}"
    finding = verbs.places(waiting).finding(
        found=f"state INIT with the link up on {plural(len(waiting), 'port')}"
        + (f" ({listed(managers)})" if managers else said),
        wanted="state ACTIVE: a subnet manager has configured the port",
        severity=worst if needed else "note",
        run=(asks,) if is_alive else ("sudo systemctl start opensm", asks),
    )
    yield finding if is_alive else replace(finding, case="fabric")


@check("rdma-rate-low", reads=READS, scope="rdma", severity="warning")
def rdma_rate_low(view: View, cluster: Cluster) -> Iterator[Finding]:
    """
    An RDMA port runs slower than the same port of the other nodes.

    Why: lanes or a generation were lost when the link came up; the slowest link sets the pace of all.
    Fix: reseat or change the cable, look at its error counters and at the switch port.
    """
    slow = {f.subject for f in interfaces.link_speed_below_peers(cluster, view)} if view.users else set()
    for name in view.users:
        here = {n.name: p for n in view.nodes for p in view.taken[n.name] if p.name == name and p.rate_gbit_s}
        rates = {node: p.rate_gbit_s or 0.0 for node, p in here.items()}
        wanted = most_common_number(rates.values())
        for node, rate in rates.items():
            port = here[node]
            if rate < wanted and f"interface:{node}/{port.netdev}" not in slow:
                lanes = f", {port.width} lanes" if port.width else ""
                yield at(node, name).finding(
                    found=f"{rate:g} Gbit/s{lanes}",
                    wanted=f"{wanted:g} Gbit/s, as {name} of the other nodes",
                    run=f"ibstatus {shlex.quote(port.device)}:{port.number}",
                )


@check("rdma-device-set-differs", reads=READS, scope="rdma")
def rdma_device_set_differs(view: View) -> Iterator[Finding]:
    """Existing devices only; other rules report ports that are down and devices that cannot be opened."""
    there = {n.name: {p.name for p in n.rdma_ports} for n in view.nodes}
    asked = {n.name: n for n in view.nodes if view.of(n).tries_rdma and not lacks_module(n)}
    lacking: dict[str, list[str]] = {}
    extra: dict[str, list[str]] = {}
    for name in view.users:
        without = [n for n in asked if name not in there[n]]
        is_usual = 2 * len(without) <= len(asked)
        for node in without if is_usual else [n for n in asked if name in there[n]]:
            (lacking if is_usual else extra).setdefault(node, []).append(name)
    kinds = {tuple((p.link_layer, p.rate_gbit_s) for p in view.main[n]) for n in asked}
    if (lacking or extra) and len(kinds) == 1:  # the same ports in the same order, with different names
        yield Place("RDMA device names", ()).finding(
            found=listed(f"{n}: {summarize_names(p.name for p in view.main[n])}" for n in asked),
            wanted="the same names on every node, so that one NCCL_IB_HCA fits all",
            severity="note",
        )
    else:
        for odd, verb in ((lacking, "lacks"), (extra if not lacking else {}, "alone has")):
            for node, names in odd.items():
                yield unlike(view, asked[node], f"{verb} {summarize_names(names)}")
    yield from kinds_differ(view)


def lacks_module(node: Node) -> bool:
    """Whether an adapter has no RDMA device because its RDMA driver is not loaded."""
    return not node.rdma_ports and bool(node.verbs.bound) and "mlx5_ib" not in node.verbs.modules


def unlike(view: View, node: Node, what: str) -> Finding:
    owned = [{p.device for p in ports} for ports in view.main.values() if ports]
    common = sorted(set.intersection(*owned))
    return at(node, "RDMA devices").finding(
        found=f"{node.name} {what}; ports in use: {listed(f'{n} {len(p)}' for n, p in view.main.items())}",
        wanted="the same devices on every node",
        severity=view.loss(node),
        fix="find the device that is missing (`lspci -d 15b3:`, dmesg), or name the common ones everywhere",
        run="rdma link",
        env={"NCCL_IB_HCA": "=" + ",".join(common)} if common and view.taken[node.name] else {},
    )


def kinds_differ(view: View) -> Iterator[Finding]:
    """Firmware or board of a port differs between nodes: a note, not a fault."""
    odd = []
    mains = grouped((p.name, (n, p)) for n, ports in view.main.items() for p in ports)
    for name, here in mains.items():
        for what in ("hca_type", "board_id", "firmware"):
            groups = grouped((str(v), node) for node, port in here if (v := getattr(port, what)))
            if len(groups) > 1:
                words = (f"{printable(v, 40)} on {summarize_names(nodes)}" for v, nodes in groups.items())
                odd.append(f"{what} of {name}: {listed(words)}")
                break
    if odd:
        yield Place("RDMA devices", ()).finding(
            found=listed(odd),
            wanted="one kind of adapter with one firmware",
            severity="note",
            fix="bring all to one firmware",
        )


@check("mixed-link-layers-selected", reads=READS, scope="rdma")
def mixed_link_layers_selected(view: View) -> Iterator[Finding]:
    """Harmless if the n-th ports agree on all nodes, but the slower kind carries data as well."""
    mixed = [n for n in view.nodes if is_mixed(view.taken[n.name])]
    if not mixed:
        yield from unlike_kinds(view)
        return
    orders = {tuple(p.link_layer for p in view.taken[n.name]) for n in view.nodes}
    node, ports = mixed[0], view.taken[mixed[0].name]
    main = rdma_devices.wanted(ports)
    left = [p for p in ports if p.link_layer != main[0].link_layer]
    value = rdma_devices.hca_value([p for p in main if p not in left], node.rdma_ports)
    yield at(mixed, left[0].name if left else "", f"rdma:{node.name}/{left[0].name}").finding(
        found=f"NCCL takes {summarize_names((rdma_devices.shown(p) for p in ports), 9)}",
        wanted=f"ports of one network: {assignment('NCCL_IB_HCA', value)}",
        severity="error" if len(orders) > 1 else "warning",
        fix="name the ports of one kind",
        env={"NCCL_IB_HCA": value},
    )


def unlike_kinds(view: View) -> Iterator[Finding]:
    """Nodes whose ports are of one kind each, but not all of the same kind: the n-th ports do not match."""
    kinds = {n.name: view.taken[n.name][0].link_layer for n in view.nodes if view.taken[n.name]}
    common = most_common(kinds.values())
    odd = [name for name, kind in kinds.items() if kind and kind != common]
    if odd:
        yield at(odd).finding(
            found=f"NCCL takes {summarize_names(rdma_devices.shown(p) for p in view.taken[odd[0]])}",
            wanted=f"{common}, as on {next(name for name, kind in kinds.items() if kind == common)}",
            fix="use ports of one kind on all nodes; where there are none: NCCL_IB_DISABLE=1 on all",
        )


def is_mixed(ports: tuple[RdmaPort, ...]) -> bool:
    return {"InfiniBand", "Ethernet"} <= {p.link_layer for p in ports}


@check("management-port-selected", reads=READS, scope="rdma", severity="warning")
def management_port_selected(view: View) -> Iterator[Finding]:
    """
    NCCL would also use an RDMA port that is far slower than the others: a management or storage port.

    Why: every device it finds becomes a lane for data, whatever the lane is for, and the slow one slows all
    down.
    Fix: leave it out: `NCCL_IB_HCA=^=mlx5_bond_0`.
    In logs: a device too many in the `NET/IB : Using` line.
    """
    taken = [(n, p) for n in view.nodes if not is_mixed(view.taken[n.name]) for p in view.taken[n.name]]
    # A port that peers use at its full rate is slow here: `rdma-rate-low` reports it.
    found = [(n, p) for n, p in taken if p not in view.main[n.name] and not view.is_peers_main(n, p.name)]
    if not found:
        return
    node, port = found[0]
    best = max(p.rate_gbit_s or 0 for p in view.main[node.name])
    default = {r.interface for r in node.routes if r.destination == "default"}
    role = f", {port.netdev} has the default route" if port.netdev in default else ""
    yield verbs.places(found, f"rdma:{node.name}/{port.name}").finding(
        found=f"{port.name} at {port.rate_gbit_s:g} Gbit/s among ports of {best:g} Gbit/s{role}",
        wanted="the fast ports only",
        severity="warning" if role else "note",
        fix="leave it out",
        env={"NCCL_IB_HCA": f"^={port.device}"},
    )


@check("uverbs-not-accessible", reads=READS, scope="rdma")
def uverbs_not_accessible(node: Node, view: View) -> Iterator[Finding]:
    """One finding per node, whatever the number of devices."""
    shut = [p for p in view.ready(node) if not p.can_open]
    # A container sees the machine's devices, and may be given one of them alone.
    has_own = bool(node.container.kind) and any(p.can_open for p in view.ready(node))
    if shut and not has_own:
        names = summarize_names(p.device for p in shut)
        yield at(node, "/dev/infiniband").finding(
            found=f"the device files of {names} are missing, or this user cannot open them",
            wanted="/dev/infiniband/uverbs* readable and writable for the job's user",
            severity=view.loss(node),
            run=("ls -l /dev/infiniband", "sudo usermod -aG rdma $USER"),
        )


@check("ib-char-device-without-module", reads=(*READS, "verbs"), scope="rdma")
def ib_char_device_without_module(node: Node, view: View) -> Iterator[Finding]:
    """
    A kernel module of RDMA is not loaded.

    Why: without `mlx5_ib` an adapter is a plain network card, without `ib_uverbs` no program can use its
    RDMA side; NCCL reports no device and uses TCP.
    Fix: `modprobe mlx5_ib ib_uverbs`, and load them at boot (`/etc/modules-load.d/rdma.conf`).
    In logs: `NET/IB : No device found.`
    """
    module, words = "", ""
    if lacks_module(node) and any(view.main.values()):
        module = "mlx5_ib"
        words = f"{summarize_names(node.verbs.bound)} has its driver mlx5_core and no RDMA device"
    elif view.ready(node) and not node.verbs.has_char_devices:
        module, words = "ib_uverbs", "RDMA devices exist, but none has a device file"
    if module:
        yield at(node, module).finding(
            found=f"{words}: {module} is not loaded",
            wanted=f"the kernel module {module}, as on the other nodes",
            severity=view.loss(node),
            run=f"sudo modprobe {module}",
        )


@check("ib-userspace-missing", reads=(*READS, "verbs"), scope="rdma")
def ib_userspace_missing(node: Node, view: View) -> Iterator[Finding]:
    """
    RDMA devices are present, but the library to use them is missing.

    Why: NCCL loads `libibverbs.so.1` when it starts; without it, or without the library's driver for the
    adapter, it finds no device and uses TCP.
    Fix: install the packages `libibverbs1 librdmacm1 ibverbs-providers` (Debian, Ubuntu) or `rdma-core`
    in the image.
    In logs: `Failed to open libibverbs.so`.
    """
    ports = [p for p in view.ready(node) if p.can_open]
    if not ports or not node.verbs.has_char_devices:
        return
    needed = {PROVIDERS[p.driver] for p in ports if p.driver in PROVIDERS}
    absent = sorted(needed - set(node.verbs.providers)) if node.verbs.providers else []
    if node.verbs.error:
        words = f"libibverbs.so.1 cannot be loaded: {printable(node.verbs.error, 200)}"
    elif absent:
        providers = summarize_names(node.verbs.providers)
        words = f"{node.verbs.library} has no driver {summarize_names(absent)}, only {providers}"
    else:
        return
    yield at(node, "libibverbs").finding(
        found=words,
        wanted="libibverbs.so.1 and its driver for the adapter",
        severity=view.loss(node),
        commands=("apt-get install libibverbs1 librdmacm1 ibverbs-providers",),
    )


@check("rdma-device-name-missing", reads=READS, scope="rdma")
def rdma_device_name_missing(node: Node, view: View, cluster: Cluster) -> Iterator[Finding]:
    """The value matches none of the node's active ports."""
    value = view.of(node).environment.get("NCCL_IB_HCA", "")
    usable = [p for p in node.rdma_ports if p.is_active and p.link_layer != "Unspecified"]
    if not (value and usable and view.of(node).tries_rdma) or view.allowed(node):
        return
    netdevs = {p.netdev: p.device for p in node.rdma_ports if p.netdev}
    named = [netdevs[w] for w in value.lstrip("^=").split(",") if w in netdevs]
    yield at_variable(cluster, node, "NCCL_IB_HCA").finding(
        found=f"NCCL_IB_HCA={printable(value, 100)} names none of "
        + summarize_names(p.device for p in usable)
        + (f"; that is the interface of {summarize_names(named)}" if named else ""),
        wanted="names of RDMA devices of this node",
        severity=view.loss(node),
        fix="unset it, or name devices",
        env={"NCCL_IB_HCA": "=" + ",".join(named)} if named else {},
        commands=["unset NCCL_IB_HCA", ssh(node, "rdma link")],
    )


@check("ipoib-used-for-data", reads=READS, scope="rdma")
def ipoib_used_for_data(node: Node, view: View, cluster: Cluster) -> Iterator[Finding]:
    """If verbs would work but are turned off; other rules report why they do not work."""
    own = {**node.nccl_conf, **node.environment}
    left_on = rdma_devices.is_disabled(own) and "NCCL_IB_DISABLE" not in cluster.job.env
    ready = [p for p in node.rdma_ports if p.is_active and p.link_layer == "InfiniBand" and p.can_open]
    if verbs.lacks_verbs(node) or view.of(node).tries_rdma or left_on or not ready:
        return
    over = {p.netdev for p in ready} | {i.name for i in node.interfaces if i.kind == "infiniband"}
    carried = [c.interface for c in view.of(node).sockets if c.interface in over]
    if carried:
        environment = view.of(node).environment
        off = {n: environment[n] for n in ("NCCL_IB_DISABLE", "NCCL_NET") if environment.get(n)}
        settings = summarize_names(f"{n}={v}" for n, v in off.items())
        yield at(node, carried[0]).finding(
            found=f"data over TCP on {summarize_names(carried)}, as {settings}",
            wanted=f"RDMA on {summarize_names(p.name for p in ready)}",
            severity="warning",
            commands=tuple(f"unset {name}" for name in off),
        )
