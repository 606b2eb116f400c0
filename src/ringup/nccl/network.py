"""
The whole of NCCL's choice on one node: bootstrap, network, devices, and the line it will print.

A pure function of facts, environment and version; what is not known is named, and the confidence told.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ringup.facts import Node, RdmaPort
from ringup.nccl import choice, gids, names, pci, plugins, rdma, topology, traps
from ringup.nccl.choice import Choice
from ringup.nccl.known import Known, Notes, Prediction
from ringup.nccl.used import devices_used

__all__ = ["Known", "Prediction", "predict"]


def predict(known: Known, env: Mapping[str, str]) -> Prediction:
    """What NCCL does on this node with `env` set beyond the node's own environment."""
    node = _located(known)
    known = dataclasses.replace(known, node=node)
    environment = choice.effective(node, env)
    notes = Notes()
    if not known.version_is_known:
        shown = ".".join(map(str, known.version))
        how = "" if node.interpreter.path else " (--nccl VERSION)"
        notes.doubts.append(f"NCCL's version is not known, {shown} is assumed{how}")
    found = _bootstrap(known, environment, notes)
    traps_found = traps.all_traps(environment, node.interfaces, node.rdma_ports, known.version)
    if found is None and "interfaces" not in node.unknown:
        line = "Bootstrap : no socket interface found"
        if environment.get("NCCL_COMM_ID"):
            line = "NET/Socket : No usable listening interface found"
        notes.because.append("no interface is left for the bootstrap: every communicator fails")
        return _made(known, None, "", notes, traps_found, log_line=line)
    if _only_dead_interfaces(known, environment):
        value = environment["NCCL_SOCKET_IFNAME"]
        notes.because.append(
            f"NCCL_SOCKET_IFNAME={value} leaves only interfaces of ports that are DOWN, which seldom have an "
            "address: every communicator fails"
        )
        return _made(known, None, "", notes, traps_found, log_line="Bootstrap : no socket interface found")
    return _with_network(known, environment, found, notes, traps_found)


def _located(known: Known) -> Node:
    """The node with PCI addresses of its RDMA devices where only the dump knows them."""
    where = {net.name: way[-1].bus_id for _, way in known.topology.devices() for net in way[-1].nets}
    if not where:
        return known.node
    ports = [
        p if p.bus_id else dataclasses.replace(p, bus_id=where.get(p.device, ""))
        for p in known.node.rdma_ports
    ]
    return dataclasses.replace(known.node, rdma_ports=tuple(ports))


def _bootstrap(known: Known, environment: Mapping[str, str], notes: Notes) -> Choice | None:
    node = known.node
    if "interfaces" in node.unknown:
        notes.missing.append(f"the interfaces and their addresses ({node.unknown['interfaces']})")
        return None
    if environment.get("NCCL_COMM_ID"):
        found = tuple(choice.in_subnet_of(node.interfaces, environment["NCCL_COMM_ID"]))[:1]
    else:
        found = choice.interfaces(node.interfaces, environment, known.version, 1)
    first = _as_told(known, environment, found[0] if found else None, notes)
    if first is None:
        return None
    if first.address.lower().startswith("fe80:"):
        notes.because.append(
            f"{first.interface} has only a link-local address: peers connect only if it has the same index "
            "on every node"
        )
    if not known.interfaces_in_kernel_order:
        others = choice.interfaces(node.interfaces, environment, known.version, 2)
        if len(others) > 1 or len(node.interfaces) > 2:
            notes.doubts.append(
                "ifconfig sorts interfaces by name, NCCL takes the kernel's order (`ip addr` shows it)"
            )
    return first


def _as_told(
    known: Known, environment: Mapping[str, str], ours: Choice | None, notes: Notes
) -> Choice | None:
    """NCCL's own answer where it was asked this very question, with what contradicts it; else ours."""
    told = choice.asked(known.node, environment) if known.asked_counts else None
    if ours:
        notes.because.append(f"bootstrap on {ours.interface} {choice.shown(ours)}: {ours.because}")
    if not told:
        return ours
    if (told.interface, told.address) == ((ours.interface, ours.address) if ours else ("", "")):
        words = "the same" if ours else "; ".join(told.errors)
        notes.because.append(f"NCCL {told.version} itself, asked on this node, says {words}")
        return ours
    said = f"{told.interface} {told.address}" if told.interface else "; ".join(told.errors)
    notes.because = [f"NCCL {told.version} itself, asked on this node, says: {said}"]
    expected = f"{ours.interface} {ours.address}" if ours else "nothing"
    notes.doubts.append(f"by the rules of its source it would take {expected}: please report this")
    return Choice(told.interface, told.address, "NCCL said so") if told.interface else None


def _only_dead_interfaces(known: Known, environment: Mapping[str, str]) -> bool:
    """Addresses unknown, and every known interface the filter allows is one of a port that is DOWN."""
    value = environment.get("NCCL_SOCKET_IFNAME", "")
    if "interfaces" not in known.node.unknown or len(value) < 2 or value.startswith("^"):
        return False
    accepted = names.parse(value)
    allowed = [p for p in known.node.rdma_ports if p.netdev and accepted.accepts(p.netdev)]
    named = {item.name for item in accepted.items}
    return bool(allowed) and named <= {p.netdev for p in allowed} and all(p.state == "DOWN" for p in allowed)


def _with_network(
    known: Known,
    environment: Mapping[str, str],
    found: Choice | None,
    notes: Notes,
    traps_found: tuple[str, ...],
) -> Prediction:
    forced = environment.get("NCCL_NET", "")
    plugin = _plugin(known, environment, notes)
    if forced and forced.lower() not in ("ib", "socket"):
        notes.missing.append(f"whether a plugin with a network called {forced} is there")
        notes.because.append(
            f"NCCL_NET={forced}: only a network of that name, from a plugin; else init fails"
        )
        return _made(known, found, forced, notes, traps_found)
    if forced.lower() != "socket":
        made = _verbs(known, environment, notes)
        if not made.taken and _has_efa(known.node):
            if plugin:
                notes.because.append("EFA devices are the plugin's, through libfabric")
                return _made(known, found, "OFI", notes, traps_found)
            if plugin is None:
                notes.missing.append("whether the OFI plugin is there, which drives EFA devices")
            else:
                notes.because.append("no OFI plugin is there: the EFA devices are left unused")
        if made.taken:
            return _over_verbs(known, environment, found, made, notes, traps_found)
        if forced:
            line = f"Error: network {forced} not found."
            if known.version >= (2, 27, 0):
                line = "Failed to initialize any NET plugin"
            notes.because.append(f"NCCL_NET={forced} forbids falling back: init fails")
            return _made(known, found, "", notes, traps_found, log_line=line)
    else:
        notes.because.append(f"NCCL_NET={forced}: RDMA devices are not looked at")
        notes.fell_back = f"NCCL_NET={forced}" if known.node.rdma_ports else ""
    return _over_sockets(known, environment, found, notes, traps_found)


def _plugin(known: Known, environment: Mapping[str, str], notes: Notes) -> str | None:
    """The network plugin NCCL loads first; "" for none, None where that is not known."""
    named = environment.get("NCCL_NET_PLUGIN", "")
    found = plugins.loads(known.node, environment)
    if environment.get("NCCL_NET", "").lower() in ("ib", "socket"):
        return found  # only a network of that very name is used
    if found:
        notes.missing.append(f"what the network plugin {found} finds: if it finds devices, it goes first")
    elif found is None and named:
        notes.missing.append(f"whether the plugin NCCL_NET_PLUGIN={named} loads: if it does, it goes first")
    elif named and named.lower() != "none":
        notes.because.append(
            f"NCCL_NET_PLUGIN={named}: no such plugin is found, NCCL's own networks are used"
        )
    return found


def _has_efa(node: Node) -> bool:
    return any(p.device.startswith(("efa", "rdmap")) and p.can_open for p in node.rdma_ports)


def _verbs(known: Known, environment: Mapping[str, str], notes: Notes) -> rdma.Ports:
    """The RDMA ports NCCL would take; why none is said."""
    node = known.node
    if rdma.is_disabled(environment):
        said = " (it says `Failed to initialize NET plugin IB`)" if known.version >= (2, 27, 0) else ""
        value = environment["NCCL_IB_DISABLE"]
        notes.because.append(f"NCCL_IB_DISABLE={value}: RDMA devices are not looked at{said}")
        notes.fell_back = f"NCCL_IB_DISABLE={value}" if node.rdma_ports else ""
        return rdma.Ports()
    if "rdma_ports" in node.unknown:
        taken = "" if "interfaces" in node.unknown else "; taken as none"
        notes.missing.append(f"the RDMA devices ({node.unknown['rdma_ports']}){taken}")
        return rdma.Ports()
    if node.rdma_ports and "verbs" not in node.unknown and node.verbs.error:
        notes.fell_back = f"no libibverbs: NCCL falls back to sockets ({node.verbs.error})"
        notes.because.append(notes.fell_back)
        return rdma.Ports()
    made = rdma.ports(
        node.rdma_ports,
        environment,
        known.version,
        in_library_order=known.devices_in_library_order,
        near=pci.nearness(node),
    )
    notes.because += made.because
    notes.doubts += made.doubts
    notes.missing += made.missing
    if not made.taken and node.rdma_ports:
        notes.because.append(
            "no RDMA port is left: NCCL says `NET/IB : No device found.` and falls back to sockets"
        )
        notes.fell_back = "; ".join(made.because)
    elif not made.taken:
        notes.because.append("there is no RDMA device")
    return made


def _over_verbs(
    known: Known,
    environment: Mapping[str, str],
    found: Choice | None,
    made: rdma.Ports,
    notes: Notes,
    traps_found: tuple[str, ...],
) -> Prediction:
    oob, oob_shown = "", "INTERFACE:ADDRESS"
    if "interfaces" not in known.node.unknown:
        first = found
        if environment.get("NCCL_COMM_ID"):
            first = next(iter(choice.interfaces(known.node.interfaces, environment, known.version, 1)), None)
        if not first:
            notes.because.append("NET/IB : No IP interface found.")
            return _over_sockets(known, environment, found, notes, traps_found)
        oob, oob_shown = first.interface, f"{first.interface}:{choice.shown(first)}"
    layers = {p.link_layer for p in made.taken if p.link_layer}
    if len(layers) > 1:
        notes.because.append("RoCE and InfiniBand are both listed: NCCL prefers neither by its kind")
    for port in made.taken:
        chosen = gids.gid_index(port, environment, known.version)
        if port.link_layer == "Ethernet":
            notes.because.append(chosen.because)
    devices = [
        topology.Where(d.name, "/".join(n for p in d.ports for n in (p.device, p.bus_id)), d.speed_mbit_s)
        for d in made.devices
    ]
    used = devices_used(known, environment, devices, notes)
    return _made(
        known,
        found,
        "IB",
        notes,
        traps_found,
        interfaces=tuple(rdma.shown(p) for p in made.taken),
        oob=oob,
        used=used,
        log_line=rdma.line(made, environment, known.version, oob_shown),
    )


def _over_sockets(
    known: Known,
    environment: Mapping[str, str],
    found: Choice | None,
    notes: Notes,
    traps_found: tuple[str, ...],
) -> Prediction:
    node = known.node
    if "interfaces" in node.unknown:
        passed_over = rdma.is_disabled(environment) or environment.get("NCCL_NET", "").lower() == "socket"
        told = passed_over or "rdma_ports" not in node.unknown  # else nothing speaks for any network
        return _made(known, found, "Socket" if told else "", notes, traps_found)
    chosen = choice.interfaces(node.interfaces, environment, known.version, choice.MAX_INTERFACES)
    if not chosen:
        notes.because.append("no interface is left for sockets: init fails")
        return _made(known, found, "", notes, traps_found)
    if len(chosen) > 1:
        notes.because.append(f"all {len(chosen)} interfaces become devices that carry data")
    by_netdev = {p.netdev: p for p in node.rdma_ports if p.netdev}
    devices = []
    for one in chosen:
        port = by_netdev.get(one.interface, RdmaPort("", 0))
        interface = node.interface(one.interface)
        rate = (interface.speed_gbit_s if interface else None) or port.rate_gbit_s or 0.0
        devices.append(
            topology.Where(one.interface, f"{one.interface}/{port.device}/{port.bus_id}", rate * 1000)
        )
    used = devices_used(known, environment, devices, notes)
    for use in used:
        local = next(c for c in chosen if c.interface == use.device)
        if local.address.lower().startswith("fe80:"):
            notes.because.append(
                f"data of GPU {use.gpu} goes over {use.device}, which has a link-local address only"
            )
    return _made(
        known,
        found,
        "Socket",
        notes,
        traps_found,
        interfaces=tuple(f"{c.interface}:{choice.shown(c)}" for c in chosen),
        used=used,
        log_line=choice.sockets_line(chosen),
    )


def _made(
    known: Known,
    found: Choice | None,
    network: str,
    notes: Notes,
    traps_found: tuple[str, ...],
    *,
    interfaces: tuple[str, ...] = (),
    oob: str = "",
    used: tuple[topology.Use, ...] = (),
    log_line: str = "",
) -> Prediction:
    return Prediction(
        known.node.name,
        found,
        network,
        interfaces,
        oob,
        used,
        choice.bootstrap_line(found, known.version) if found else "",
        log_line,
        tuple(dict.fromkeys([*traps_found, *notes.because])),
        tuple(dict.fromkeys(notes.doubts)),
        tuple(dict.fromkeys(notes.missing)),
        notes.fell_back if network == "Socket" else "",
    )
