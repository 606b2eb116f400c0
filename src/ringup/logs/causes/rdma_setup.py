"""RDMA and network plugins: why they are not used, or do not start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup.logs.causes.symptoms import first_value, on
from ringup.logs.causes.transports import channels, name_ranks, parted
from ringup.logs.evidence import HostNetworks, LogEvidence
from ringup.logs.lines import Event, ranks_of
from ringup.logs.outcome import made_do
from ringup.logs.patterns import OF_ROLE
from ringup.logs.rule import Cause, Confidence, Found, cause, report
from ringup.rules import Fix
from ringup.units import assignment, printable

_DEVICE_NAME = re.compile(
    r"(?i)^[\^=]*(?:mlx[45]|mthca|hfi1?|bnxt_re|irdma|i40iw|erdma|efa|roce|rocep|ibp|qedr|cxgb|siw"
    r"|rxe|rdma|hns|ionic|mana|xscale|hca)"
)

_RDMA_PLUGIN = r"(?i)IBext|RDMA|\bOFI\b|-ofi\b|Libfabric|\befa\b|sharp"


def _on_sockets(log: LogEvidence) -> Iterator[tuple[HostNetworks, Event]]:
    """Hosts whose data uses TCP although NCCL searched for RDMA, and the line that reports none."""
    for host in log.hosts.values():
        line = next(iter(host.events.get("ib-none") or log.all("ib-open-failed")), None)
        on_tcp = host.kind in ("Socket", "") and not host.ib_devices
        if line and on_tcp and host.value("NCCL_IB_DISABLE") != "1":
            yield host, line


def _intent(log: LogEvidence, host: HostNetworks) -> list[Event]:
    found = [host.env[n] for n in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL") if n in host.env]
    if host.value("NCCL_IB_DISABLE") == "0":
        found.append(host.env["NCCL_IB_DISABLE"])
    found += [e for e in log.all("plugin-loaded", has=_RDMA_PLUGIN) if e.host == host.name]
    found += [e for e in host.events.get("net-using", ()) if re.search(r"\]ib\w*:", e.text)]
    found += log.all("ibstatus-device", "ibdev2netdev", "rdma-link", "ib-driver-missing")[:2]
    there = log.all("offered-interface", kind="infiniband")
    found += [e for e in there if e.host in (host.name, "")][:1]
    others = [h for h in log.hosts.values() if h is not host and h.ib_devices]
    return found + [e for h in others for e in h.events.get("net-using", ())][:1]


def _ports_down(log: LogEvidence, wanted: str) -> list[Event]:
    """Lines of pasted tools that show that a wanted device's port is not up."""
    names = {re.sub(r"[\^=:].*", "", w.lstrip("^=")) for w in wanted.split(",") if w}
    down = log.all("ibdev2netdev", state="(?i)down") + log.all("rdma-link", state="(?i)(?!active$).*")
    return [e for e in down if e["device"] in names]


@cause("rdma-port-not-active")
def rdma_port_not_active(log: LogEvidence) -> Iterator[Cause | None]:
    for host, line in _on_sockets(log):
        wanted = host.value("NCCL_IB_HCA")
        if down := _ports_down(log, wanted):
            text = f"NCCL_IB_HCA names {wanted}, whose port is down: NCCL fell back to TCP"
            events = [host.env["NCCL_IB_HCA"], *down, line]
            yield report(events, text, severity="warning", nodes=[host.name] if host.name else ())


@cause("rdma-port-not-active", overcome=None, fallback=True)
def listed_as_not_active(log: LogEvidence) -> Found:
    """Pasted lists of ports: one with a link that no subnet manager has set up, or none that is active."""
    named = log.all("ibstatus-device")
    if used := log.all("port-state", port=r"\d+", state="(?i)(?!active$).*"):  # by a program that needs it
        return report(used, f"port {used[0]['port']} of the RDMA device is {used[0]['state']}", "medium")
    ports = [e for e in log.all("port-state") if any(e.file == d.file and e.line > d.line for d in named)]
    if linked := [e for e in ports if e["state"].lower() in ("init", "initializing", "armed")]:
        return report(linked, "the link of an RDMA port is up, and no subnet manager has set it up", "medium")
    down = all(e["state"].lower() == "down" for e in ports)
    return report(ports if down else [], "of the RDMA ports that are listed none is active", "low")


@cause("rdma-device-name-missing")
def rdma_device_name_missing(log: LogEvidence) -> Found:
    events: list[Event] = []
    nodes: list[str] = []
    value = ""
    listed = log.all("ibdev2netdev", "rdma-link", "ibstatus-device")
    known = sorted({first_value([e], "device", "device2", "device3") for e in listed})
    for host, line in _on_sockets(log):
        wanted = host.value("NCCL_IB_HCA")
        first = wanted.split(",")[0].split(":")[0].lstrip("^=")
        absent = bool(known) and not any(k.startswith(first) for k in known)
        if first and not _ports_down(log, wanted) and (absent or not _DEVICE_NAME.match(first)):
            nodes += [host.name] if host.name else []
            value = wanted
            events += [host.env["NCCL_IB_HCA"], line, *host.events.get("net-using", [])[:1]]
    devices = f" ({', '.join(known)})" if known else ""
    fix = Fix(f"NCCL_IB_HCA takes device names{devices}: correct or unset it")
    text = f"NCCL_IB_HCA={value} names no RDMA device (an interface name?): data goes over TCP"
    return report(events, text, severity="warning", nodes=nodes, fix=fix)


def _network(event: Event) -> str:
    return event["net"] or event["via"].partition("NET/")[2].partition("/")[0]


def _minority_on_sockets(log: LogEvidence) -> Cause | None:
    """A few ranks use TCP while most use InfiniBand or RoCE; their own lines may have the reason."""
    lines = [e for e in log.all("using-network", "channel", "channel-loose") if e.pid and _network(e)]
    slow, others = parted(lines, lambda e: _network(e) != "Socket")
    fast = [event for event in others.values() if _network(event) == "IB"]
    if not slow or len(slow) >= len(fast):
        return None
    why = log.all("ib-none", "ib-open-failed", "ib-library-missing")
    why += log.all("env-set", name="NCCL_IB_DISABLE|NCCL_NET|NCCL_IB_HCA")
    why = sorted((e for e in why if (e.host, e.pid) in slow), key=lambda e: e.place)
    events = list(slow.values())
    reason = f" (its log: {printable(why[0].text[-120:])})" if why else ""
    uses = "uses" if len(slow) == 1 else "use"
    text = f"{name_ranks(events)} {uses} TCP sockets, {len(fast)} others InfiniBand or RoCE{reason}"
    hosts, ranks = [e.host for e in events], ranks_of(events)
    return report([*events, *why[:2], fast[0]], text, nodes=hosts, ranks=ranks)


@cause("fell-back-to-sockets", severity="warning")
def fell_back_to_sockets(log: LogEvidence) -> Found:
    """
    RDMA is available or requested, but data goes over TCP without an error.

    Why: NCCL takes the next network when one has no usable device; TCP is several times slower.
    Fix: check the device's name (NCCL_IB_HCA), its port's state, `/dev/infiniband` in the container,
    libibverbs, the plugin; prove it with `Using network IB`.
    In logs: `NET/IB : No device found`, then `Using network Socket`.
    """
    if found := _minority_on_sockets(log):
        return found
    events: list[Event] = []
    nodes: dict[str, None] = {}
    used_ib = log.good is not None and "IB" in log.good.facts.get("network", ())
    for host, line in _on_sockets(log):
        intent = _intent(log, host)
        if (intent or used_ib) and host.kind == "Socket":
            events += [*intent[:2], line, *host.events.get("using-network", [])[:1]]
            nodes[host.name] = None
    for event in log.all("ib-library-missing"):
        host = log.host(event)
        if host.value("NCCL_IB_HCA") and host.kind == "Socket" and event.host not in nodes:
            events.append(event)
            nodes[event.host] = None
    text = "RDMA is available or requested, but NCCL uses TCP sockets"
    text = "NCCL used IB in the other run, and TCP sockets in this one" if used_ib else text
    return report(events, text, "medium", nodes=filter(None, nodes))


@cause("ipoib-used-for-data")
def ipoib_used_for_data(log: LogEvidence) -> Iterator[Cause | None]:
    for host, line in _on_sockets(log):
        carrying = [n for net, i in host.used if (n := host.device(net, i)).startswith("ib")]
        if carrying:
            of = f" of {host.name}" if host.name else ""
            text = f"data goes over TCP on the InfiniBand interface {carrying[0]}{of}"
            shown = [*host.events.get("net-using", [])[:1], *host.events.get("channel", [])[:1]]
            yield report([line, *shown], text, "medium")


@cause("uverbs-not-accessible")
def uverbs_not_accessible(log: LogEvidence) -> Found:
    closed = log.all("ib-open-failed")
    some_work = any(h.ib_devices for h in log.hosts.values()) or channels(log, ".*NET/IB.*")
    device = first_value(closed, "device") or "that is listed"
    text = f"the RDMA device {device} cannot be opened in this process or container"
    return report(closed, text, "medium" if some_work else "high", severity="warning")


@cause("rdma-device-set-differs")
def rdma_device_set_differs(log: LogEvidence) -> Found:
    closed, using = log.all("ib-open-failed"), channels(log, ".*NET/IB.*")
    if closed and using:
        device = closed[0]["device"] or "a device"
        text = f"one host cannot open {device} that channels are planned on"
        return report([*closed, *using[:2]], text, "medium")
    text = "ranks see different numbers of network devices"
    counted = log.all("nic-count")
    if log.all("nic-count", lacks="(?i)ignoring"):
        return report(counted, text, "medium")
    if counted:
        return report(counted, text + ", which NCCL ignores", "low", severity="note")
    lists = {h.name: h for h in log.hosts.values() if h.ib_devices and h.events.get("net-using")}
    if len({len(h.ib_devices) for h in lists.values()}) < 2:
        return None
    shown = "; ".join(f"{name}: {len(h.ib_devices)}" for name, h in lists.items())
    text = f"hosts offer different numbers of RDMA devices ({shown})"
    mild = log.outcome.trained or not log.outcome.stopped
    events = [h.events["net-using"][0] for h in lists.values()]
    return report(events, text, "medium", severity="warning" if mild else None)


@cause("rdma-device-unusable")
def rdma_device_unusable(log: LogEvidence) -> Found:
    """
    A device NCCL chose does not work where the job runs.

    Why: it belongs to another network namespace, is a virtual function of someone else, or leads to a fabric
    that does not join the nodes.
    Fix: leave it out: `NCCL_IB_HCA=^<device>`; host network for the container, or the right virtual function.
    In logs: `ibv_modify_qp failed with error No such device`; tens of devices in `NET/IB : Using`.
    """
    absent = r"No such device|Protocol not|Operation not (?:supported|permitted)"
    if refused := log.all("modify-qp", has=absent):
        device = first_value(refused, "device") or "NCCL chose"
        reason = refused[0]["reason"].lower() or "no such device"
        return report(refused, f"the RDMA device {device} does not work here: {reason}")
    for host in log.hosts.values():
        if len(host.ib_devices) > 16:
            text = f"{len(host.ib_devices)} RDMA devices are offered{on(host.name)}: "
            text += "virtual functions that are not this container's?"
            listed = host.events.get("net-using", [])[:2]
            return report(listed, text, "low", severity=None if log.outcome.stopped else "warning")
    text = "NCCL_NET=IB is forced where no RDMA device can be used"
    return report(log.all("net-not-found", net="(?i)ib"), text, "low")


@cause("mixed-link-layers-selected")
def mixed_link_layers_selected(log: LogEvidence) -> Found:
    if refused := log.all("link-layer"):
        return report(refused, "InfiniBand and Ethernet devices cannot be connected to each other")
    for host in log.hosts.values():
        infiniband = [d for d in host.ib_devices.values() if "/IB" in d]
        ethernet = [d for d in host.ib_devices.values() if "/RoCE" in d and "/IB" not in d]
        used = {host.device(net, i).rpartition("/")[2] for net, i in host.used if host.device(net, i)}
        if infiniband and ethernet and len(used) != 1:
            of = f" of {host.name}" if host.name else ""
            text = f"an Ethernet port ({ethernet[-1]}) is among the InfiniBand devices{of}"
            listed = host.events.get("net-using", [])[:1]
            names = "=" + ",".join(d.partition("/")[0] for d in infiniband)
            fix = Fix(f"name one kind: {assignment('NCCL_IB_HCA', names)}") if "{" not in names else None
            return report(listed, text, "medium", severity="warning" if used else "note", fix=fix)
    return None


@cause("network-plugin-missing")
def network_plugin_missing(log: LogEvidence) -> Found:
    loaded = {e.host: e for e in log.all("plugin-loaded") if e.host}
    none = {e.host: e for e in log.all("plugin-none") if e.host and e.host not in loaded}
    if loaded and none:
        lacking = sorted(none)
        text = f"{', '.join(lacking)} lacks the network plugin that {', '.join(sorted(loaded))} loaded"
        mild = log.outcome.went_on and not log.outcome.stopped
        events = [*none.values(), *loaded.values()]
        return report(events, text, severity="warning" if mild else None, nodes=lacking)
    named = [e for e in log.all("net-not-found") if e["net"].upper() not in ("", "IB", "SOCKET")]
    text = f"the network {first_value(named, 'net')} is requested but no plugin provides it"
    return report(named, text, "medium")


@cause("network-plugin-init-failed")
def network_plugin_init_failed(log: LogEvidence) -> Found:
    """
    The network plugin loaded and failed, or the requested network could not start.

    Why: no device or permission in the container, too little locked memory, or a libfabric that does not fit.
    Fix: check EFA devices and memlock in the container, and the libfabric of the plugin; unset NCCL_NET to
    see what works.
    In logs: `aws-ofi-nccl initialization failed`, `Error: network IB not found`.
    """
    forced = log.all("net-not-found", net="(?i)(?:ib|socket)?")
    failed = log.all("plugin-init-failed", plugin="(?i)(?!(?:ib|socket)$).*")
    failed = [e for e in failed if "plugin-register" not in log.tags_at(e) and not made_do(e)]
    bare = {e.file: e.line for e in failed[:1] if "initialization failed" in e.text}  # the reason is above
    why = [e for e in log.all("warn", has="NET/OFI ") if e.line < bare.get(e.file, 0)][:2]
    if forced:
        text = "the network that NCCL_NET asks for could not start"
        text = "the network plugin gave up, and NCCL found no other network" if failed else text
        return report([*why, *failed, *forced, *log.all("ib-none")[:1]], text, "medium")
    goes_on = any(h.kind == "Socket" for h in log.hosts.values()) or log.outcome.set_up
    elsewhere = log.outcome.failed is not None and not log.has(*OF_ROLE["nccl"])
    text = "the network plugin gave up" + (", the job goes on over TCP" if goes_on else "")
    sure: Confidence = "high"
    if failed and all(e["other"] for e in failed):
        elsewhere = False  # MPI's own abort follows from it
        text, sure = f"the network of MPI could not start: {failed[0]['other']}", "medium"
    last = max((e.line for e in failed), default=0)
    is_open = bool(failed) and log.outcome.stopped is None and log.files[failed[0].file].lines > last + 20
    mild = goes_on or elsewhere or is_open
    return report([*why, *failed], text, sure, severity="warning" if mild else None)


@cause("sharp-unavailable", severity="warning")
def sharp_unavailable(log: LogEvidence) -> Found:
    """
    In-network reduction was offered and refused; NCCL goes on point-to-point.

    Why: the switch's aggregation trees are taken, or no SHARP daemon answers.
    Fix: none needed; `NCCL_COLLNET_ENABLE=0` to be quiet.
    In logs: `Cannot create SHARP job(-11)`, `Cannot initialize CollNet, using point-to-point`.
    """
    refused = log.all("sharp-off", lacks="Cannot initialize CollNet|disabling CollNet")
    return report(refused, "SHARP was offered and refused; NCCL goes on without it")
