"""RDMA: why it is not used, and what went wrong where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, hang, trained
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import HostStory, Story
from ringup.rules import Fix

_DEVICE_NAME = re.compile(
    r"(?i)^[\^=]*(?:mlx[45]|mthca|hfi1?|bnxt_re|irdma|i40iw|erdma|efa|roce|rocep|ibp|qedr|cxgb|siw"
    r"|rxe|rdma|hns|ionic|mana|xscale|hca)"
)

_RDMA_PLUGIN = re.compile(r"(?i)IBext|RDMA|\bOFI\b|-ofi\b|Libfabric|\befa\b|sharp")


def _on_sockets(story: Story) -> Iterator[tuple[HostStory, Event]]:
    """Hosts whose data goes over TCP although NCCL looked for RDMA, and the line that says it found none."""
    for host in story.hosts.values():
        if host.kind not in ("Socket", "") or host.ib_devices:
            continue
        said = host.no_ib or next(iter(story.all("ib-open-failed")), None)
        if said and host.value("NCCL_IB_DISABLE") != "1":
            yield host, said


def _intent(story: Story, host: HostStory) -> list[Event]:
    """What shows that RDMA was meant or is there."""
    found = [host.env[n] for n in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL") if n in host.env]
    if host.value("NCCL_IB_DISABLE") == "0":
        found.append(host.env["NCCL_IB_DISABLE"])
    found += [e for e in host.events.get("plugin-loaded", []) if _RDMA_PLUGIN.search(e.text)]
    found += [e for e in story.all("plugin-loaded") if e.host == host.name and _RDMA_PLUGIN.search(e.text)]
    found += [e for e in host.events.get("net-using", []) if re.search(r"\]ib[\w]*:", e.text)]
    found += list(story.all("ibstatus-device", "ibdev2netdev", "rdma-link", "ib-driver-missing"))[:2]
    there = story.all("offered-interface")
    found += [e for e in there if e["kind"] == "infiniband" and e.host in (host.name, "")][:1]
    found += [
        e
        for o in story.hosts.values()
        if o is not host and o.ib_devices
        for e in o.events.get("net-using", [])
    ][:1]
    return found


def _ports_down(story: Story, wanted: str) -> list[Event]:
    """Lines of pasted tools that say a wanted device's port is not up."""
    names = {re.sub(r"[\^=:].*", "", w.lstrip("^=")) for w in wanted.split(",") if w}
    down = [e for e in story.all("ibdev2netdev") if e["device"] in names and e["state"].lower() == "down"]
    down += [e for e in story.all("rdma-link") if e["device"] in names and e["state"].upper() != "ACTIVE"]
    return down


@cause(problems.RDMA_PORT_NOT_ACTIVE)
def rdma_port_not_active(story: Story) -> Iterator[Cause]:
    for host, said in _on_sockets(story):
        down = _ports_down(story, host.value("NCCL_IB_HCA"))
        if down:
            yield seen(
                [host.env["NCCL_IB_HCA"], *down, said],
                f"NCCL_IB_HCA names {host.value('NCCL_IB_HCA')}, whose port is down: NCCL fell back to TCP",
                "high",
                severity="warning",
                nodes=[host.name] if host.name else (),
            )


@cause(problems.RDMA_DEVICE_NAME_MISSING)
def rdma_device_name_missing(story: Story) -> Iterator[Cause]:
    hosts: list[str] = []
    events: list[Event] = []
    value = ""
    known = {e["device"] for e in story.all("ibdev2netdev", "rdma-link", "ibstatus-device")}
    for host, said in _on_sockets(story):
        wanted = host.value("NCCL_IB_HCA")
        first = wanted.split(",")[0].split(":")[0].lstrip("^=")
        absent = bool(known) and not any(k.startswith(first) for k in known)
        if first and not _ports_down(story, wanted) and (absent or not _DEVICE_NAME.match(first)):
            hosts.append(host.name)
            value = wanted
            events += [host.env["NCCL_IB_HCA"], said, *host.events.get("net-using", [])[:1]]
    if events:
        devices = sorted(known)
        fix = Fix(
            f"NCCL_IB_HCA takes device names{' (' + ', '.join(devices) + ')' if devices else ''}: "
            f"correct or unset it",
        )
        yield seen(
            events,
            f"NCCL_IB_HCA={value} names no RDMA device (an interface name?): data goes over TCP",
            "high",
            severity="warning",
            nodes=[h for h in hosts if h],
            fix=fix,
        )


@cause("fell-back-to-sockets", severity="warning")
def fell_back_to_sockets(story: Story) -> Iterator[Cause]:
    """
    RDMA was meant or is present, and data goes over TCP without an error.

    Why: NCCL takes the next network when one has no usable device; TCP is several times slower.

    Fix: per reason: the device's name (NCCL_IB_HCA), its port's state, `/dev/infiniband` in the container,
    libibverbs, the plugin; prove it with `Using network IB`.

    In logs: `NET/IB : No device found`, then `Using network Socket`.
    """
    events: list[Event] = []
    nodes: list[str] = []
    for host, said in _on_sockets(story):
        intent = _intent(story, host)
        if intent and host.kind == "Socket":
            events += [*intent[:2], said, *host.events.get("using-network", [])[:1]]
            nodes.append(host.name)
    missing = [
        e
        for e in story.all("ib-library-missing")
        if story.host(e).value("NCCL_IB_HCA") and story.host(e).kind == "Socket"
    ]
    for event in missing:
        if event.host not in nodes:
            events.append(event)
            nodes.append(event.host)
    if events:
        yield seen(
            events,
            "RDMA was meant or is there, yet NCCL uses TCP sockets",
            "medium",
            nodes=[n for n in nodes if n],
        )


@cause(problems.IPOIB_USED_FOR_DATA)
def ipoib_used_for_data(story: Story) -> Iterator[Cause]:
    for host, said in _on_sockets(story):
        carrying = [n for net, i in host.used if (n := host.device(net, i)).startswith("ib")]
        if carrying:
            yield seen(
                [said, *host.events.get("net-using", [])[:1], *host.events.get("channel", [])[:1]],
                f"data goes over TCP on the InfiniBand interface "
                f"{carrying[0]}{f' of {host.name}' if host.name else ''}",
                "medium",
            )


@cause(problems.UVERBS_NOT_ACCESSIBLE)
def uverbs_not_accessible(story: Story) -> Iterator[Cause]:
    said = story.all("ib-open-failed")
    if not said:
        return
    some_work = any(h.ib_devices for h in story.hosts.values()) or any(
        "NET/IB" in e["via"] for e in story.all("channel", "channel-loose")
    )
    device = next((e["device"] for e in said if e["device"]), "")
    yield seen(
        said,
        f"the RDMA device {device or 'that is listed'} cannot be opened in this process or container",
        "medium" if some_work else "high",
        severity="warning",
    )


@cause(problems.RDMA_DEVICE_SET_DIFFERS)
def rdma_device_set_differs(story: Story) -> Iterator[Cause]:
    counted = story.all("nic-count")
    opened = story.all("ib-open-failed")
    using = [e for e in story.all("channel", "channel-loose") if "NET/IB" in e["via"]]
    failed = failure(story) or hang(story)
    hosts = {h.name: h for h in story.hosts.values() if h.ib_devices and h.events.get("net-using")}
    sizes = {len(h.ib_devices) for h in hosts.values()}
    if opened and using:
        yield seen(
            [*opened, *using[:2]],
            f"one host cannot open {opened[0]['device'] or 'a device'} that channels are planned on",
            "medium",
        )
    elif counted:
        yield seen(counted, "ranks see different numbers of network devices", "medium")
    elif len(sizes) > 1:
        lists = "; ".join(f"{h.name}: {len(h.ib_devices)}" for h in hosts.values())
        done = trained(story) or (story.init_complete and not failed)
        yield seen(
            [h.events["net-using"][0] for h in hosts.values()],
            f"hosts offer different numbers of RDMA devices ({lists})",
            "medium",
            severity="warning" if done or not failed else None,
        )


@cause("rdma-device-unusable")
def rdma_device_unusable(story: Story) -> Iterator[Cause]:
    """
    A device NCCL chose does not work where the job runs.

    Why: it belongs to another network namespace, is a virtual function of someone else, or leads to a fabric
    that does not join the nodes.

    Fix: leave it out: `NCCL_IB_HCA=^<device>`; host network for the container, or the right virtual function.

    In logs: `ibv_modify_qp failed with error No such device`; tens of devices in `NET/IB : Using`.
    """
    said = [
        e
        for e in story.all("modify-qp")
        if re.search(r"No such device|Protocol not|Operation not (?:supported|permitted)", e.text)
    ]
    if said:
        device = next((e["device"] for e in said if e["device"]), "")
        yield seen(
            said,
            f"the RDMA device {device or 'NCCL chose'} does not work here: "
            f"{said[0]['reason'].lower() or 'no such device'}",
        )
        return
    failed = failure(story) or hang(story)
    for host in story.hosts.values():
        if len(host.ib_devices) > 16:
            listed = host.events.get("net-using", [])
            yield seen(
                listed[:2],
                f"{len(host.ib_devices)} RDMA devices are offered{f' on {host.name}' if host.name else ''}: "
                "virtual functions that are not this container's?",
                "low",
                severity=None if failed else "warning",
            )
            return
    network = [e for e in story.all("net-not-found") if e["net"].upper() == "IB"]
    if network:
        yield seen(network, "NCCL_NET=IB is forced where no RDMA device can be used", "low")


@cause(problems.MIXED_LINK_LAYERS_SELECTED)
def mixed_link_layers_selected(story: Story) -> Iterator[Cause]:
    refused = story.all("link-layer")
    if refused:
        yield seen(refused, "InfiniBand and Ethernet devices cannot be connected to each other")
        return
    for host in story.hosts.values():
        kinds = {
            ("IB" if "/IB" in d else "RoCE"): d
            for d in host.ib_devices.values()
            if "/IB" in d or "/RoCE" in d
        }
        if len(kinds) < 2:
            continue
        used = {host.device(net, i).rsplit("/", 1)[-1] for net, i in host.used if host.device(net, i)}
        if len(used) == 1:
            continue
        yield seen(
            host.events.get("net-using", [])[:1],
            f"an Ethernet port ({kinds['RoCE']}) is among the InfiniBand "
            f"devices{f' of {host.name}' if host.name else ''}",
            "medium",
            severity="warning" if used else "note",
        )
        return
