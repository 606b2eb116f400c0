"""RDMA: why it is not used, and what went wrong where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, hang
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import HostStory, Story, is_link_local
from ringup.rules import Fix

_DEVICE_NAME = re.compile(
    r"(?i)^[\^=]*(?:mlx[45]|mthca|hfi1?|bnxt_re|irdma|i40iw|erdma|efa|roce|rocep|ibp|qedr|cxgb|siw"
    r"|rxe|rdma|hns|ionic|mana|xscale|hca)"
)
_RETRY = ("12", "13")


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
    found += [
        e
        for e in host.events.get("plugin-loaded", [])
        if re.search(r"IBext|RDMA|OFI|Libfabric|efa|sharp", e.text, re.I)
    ]
    found += [
        e
        for e in story.all("plugin-loaded")
        if e.host == host.name and re.search(r"IBext|RDMA|OFI|efa|sharp", e.text, re.I)
    ]
    found += [e for e in host.events.get("net-using", []) if re.search(r"\]ib[\w]*:", e.text)]
    found += list(story.all("ibstatus-device", "ibdev2netdev", "rdma-link"))[:2]
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


@cause("rdma-device-name-missing", severity="warning")
def rdma_device_name_missing(story: Story) -> Iterator[Cause]:
    """
    NCCL_IB_HCA names nothing that exists or is ACTIVE.

    Why: it takes RDMA device names (mlx5_0), not interface names (ib0, ens13np0); without a match NCCL falls
    back to TCP without a word.

    Fix: device names as in `ibv_devinfo -l` or `rdma link`, or unset it.

    In logs: `NCCL_IB_HCA set to ib0`, then `NET/IB : No device found`.
    """
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
        done = story.init_complete and not failed
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


def _is_roce(story: Story) -> list[Event]:
    found = [e for e in story.all("net-using") if "/RoCE" in e.text]
    found += [
        e
        for e in story.all("env-set")
        if e["name"] in ("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_ROCE_VERSION_NUM")
    ]
    return found


@cause(problems.GID_MISSING_OR_WRONG)
def gid_missing_or_wrong(story: Story) -> Iterator[Cause]:
    said = [
        e
        for e in story.all("modify-qp")
        if re.search(
            r"Invalid argument|Network is unreachable|No route|Address not available|with (?:22|101)\b",
            e.text,
        )
    ]
    roce = _is_roce(story)
    if said:
        yield seen(
            [*said, *roce[:1]],
            "a RoCE queue pair cannot be brought up: its GID has no routable address or not the peer's kind",
        )
        return
    retry = [e for e in story.all("wc-error") if e["status"] in _RETRY]
    link_local = [e for e in retry if re.search(r"(?i)localGid:? ?fe80", e.text)]
    if link_local:
        yield seen([*link_local, *roce[:1]], "the queue pair uses a link-local GID (fe80::)", "medium")
    elif retry and roce:
        yield seen(
            [*roce, *retry],
            "RoCE with a chosen GID index and no answer from the peer: compare `show_gids` on both",
            "low",
        )


@cause("rdma-peer-unreachable")
def rdma_peer_unreachable(story: Story) -> Iterator[Cause]:
    """
    A queue pair to the peer cannot be brought up.

    Why: the RoCE addresses are not routed to each other, or the rails are not joined.

    Fix: addresses and routes of the RoCE ports; `NCCL_CROSS_NIC=0` when only pairs across rails fail;
    `ib_write_bw` on that pair.

    In logs: `ibv_modify_qp failed with error Connection timed out`.
    """
    said = [
        e
        for e in story.all("modify-qp")
        if re.search(r"timed out|with 110\b|Host is unreachable|No route to host", e.text)
    ]
    if said:
        yield seen(said, "the address of a queue pair's peer cannot be resolved or reached", "high")


@cause("rdma-retry-exceeded")
def rdma_retry_exceeded(story: Story) -> Iterator[Cause]:
    """
    Packets to one peer were not acknowledged (InfiniBand status 12).

    Why: at once after init the ports cannot reach each other (GID, subnet, rails); after hours a link or
    congestion; always one device: that port.

    Fix: `ib_write_bw` on the named pair and device; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT only for
    congestion.

    In logs: `Got completion ... with status=12`, `IBV_WC_RETRY_EXC_ERR(12) ... vendor err 129`.
    """
    said = [e for e in story.all("wc-error") if e["status"] in _RETRY or "RETRY_EXC" in e["name"].upper()]
    if said:
        devices = sorted({e["hca"] for e in said if e["hca"]})
        peers = sorted({e["peer"] for e in said if e["peer"]})
        text = f"no acknowledgement from {', '.join(peers[:3]) or 'a peer'}"
        if devices:
            text += f" on {', '.join(devices[:3])}"
        yield seen(said, text, "medium")


@cause(problems.LINK_FLAPPED)
def link_flapped(story: Story) -> Iterator[Cause]:
    said = [
        e
        for e in story.all("async-event")
        if re.search(r"port (?:error|down|err|active|state)|link (?:down|error)", e["event"], re.I)
    ]
    kernel = story.all("ib-port-down")
    if said or kernel:
        ranks = {e.rank for e in said if e.rank is not None}
        yield seen(
            [*said, *kernel],
            "an RDMA port went down during the run",
            "high" if said else "medium",
            ranks=ranks,
        )


@cause("rdma-adapter-event")
def rdma_adapter_event(story: Story) -> Iterator[Cause]:
    """
    The RDMA adapter reported a change or fault of its own.

    Why: a changed GID table means that addresses of a RoCE port changed under the job; a
    catastrophic event is
    the adapter's hardware or firmware.

    Fix: stable addresses (no DHCP renewals, no container network edits); reset or replace the adapter.

    In logs: `Got async event : GID table change`, `local catastrophic error`, `device fatal`.
    """
    said = [
        e
        for e in story.all("async-event")
        if not re.search(r"port (?:error|down|err|active|state)|link (?:down|error)", e["event"], re.I)
    ]
    if not said:
        return
    adapter = [
        e for e in said if re.search(r"GID|catastrophic|fatal|LID|SM |client|device", e["event"], re.I)
    ]
    mild = all(re.search(r"non-fatal|GID table changed", e.text) for e in said) and failure(story) is None
    yield seen(
        said,
        f"the adapter reported: {said[0]['event'].strip()}",
        "high" if adapter else "low",
        severity="warning" if mild else None,
    )


@cause(problems.MEMLOCK_TOO_LOW)
def memlock_too_low(story: Story) -> Iterator[Cause]:
    refused = story.all("ib-no-memory")
    said = [
        e
        for e in story.all("memlock-said")
        if re.search(
            r"current|too (?:low|small)|Please|limit(?:ed)? (?:is|to|reached)|unlimited'", e.text, re.I
        )
    ]
    memory = [e for e in refused if e["reason"] or "Cannot allocate" in e.text]
    bare = [
        e
        for e in refused
        if not e["reason"] and not re.search(r"Invalid argument|No such|Bad address|Operation not", e.text)
    ]
    goes_on = any(h.kind == "Socket" for h in story.hosts.values()) and not story.has(
        "nccl-system", "exit", "exception"
    )
    if memory or said:
        yield seen(
            [*said, *memory, *bare],
            "memory cannot be locked for RDMA: the process's memlock limit",
            "high",
            severity="warning" if goes_on else None,
        )
    elif bare:
        yield seen(
            bare, "a queue or memory region is refused; the usual reason is the memlock limit", "medium"
        )


@cause(problems.ACS_ENABLED)
def acs_enabled(story: Story) -> Iterator[Cause]:
    errors = story.all("wc-error")
    protection = [e for e in errors if e["status"] == "4" or "LOC_PROT" in e["name"].upper()]
    flushed = [e for e in errors if (e["status"] == "5" or "WR_FLUSH" in e["name"].upper())]
    others = [e for e in errors if e not in flushed]
    if protection:
        sure = any(e["vendor"] == "81" for e in protection)
        yield seen(
            protection,
            "the NIC may not touch the GPU's memory: GPUDirect is blocked (ACS, or ATS in a VM)",
            "medium" if sure else "low",
        )
    elif (
        flushed
        and not others
        and any(e["vendor"] == "249" for e in flushed)
        and not story.has("exit", "ray-died", "nccl-remote", "exception")
    ):
        yield seen(
            flushed, "queue pairs are flushed as the first error: ACS or firmware, or the peer ended", "low"
        )


@cause(problems.GPUDIRECT_MODULE_MISSING)
def gpudirect_module_missing(story: Story) -> Iterator[Cause]:
    off = [e for e in story.all("gdr-disabled") if "distance" not in e.text and "Socket" not in e.text]
    paths = [
        e for e in story.all("channel", "channel-loose") if "NET/IB" in e["via"] or "Libfabric" in e["via"]
    ]
    direct = {e.host for e in paths if "GDRDMA" in e["via"]}
    without = {e.host for e in paths if "GDRDMA" not in e["via"]} - direct
    ib = any(h.ib_devices or h.kind.startswith("IB") for h in story.hosts.values())
    if off and (ib or paths):
        yield seen(
            off, "GPUDirect RDMA is off: the peer-memory module is absent or not known to this NCCL", "high"
        )
    elif direct and without:
        lines = [e for e in paths if e.host in without][:2] + [e for e in paths if e.host in direct][:1]
        yield seen(
            lines,
            f"channels of {', '.join(sorted(without)) or 'one host'} go without GPUDirect, others have it",
            "high",
            nodes=sorted(without),
        )


@cause(problems.NETWORK_PLUGIN_MISSING)
def network_plugin_missing(story: Story) -> Iterator[Cause]:
    loaded = {e.host: e for e in story.all("plugin-loaded") if e.host}
    none = {e.host: e for e in story.all("plugin-none") if e.host and e.host not in loaded}
    named = [e for e in story.all("net-not-found") if e["net"] and e["net"].upper() not in ("IB", "SOCKET")]
    if loaded and none:
        failed = failure(story) or hang(story)
        yield seen(
            [*none.values(), *loaded.values()],
            f"{', '.join(sorted(none))} lacks the network plugin that {', '.join(sorted(loaded))} loaded",
            "high",
            severity=None if failed else "warning",
            nodes=sorted(none),
        )
    elif named:
        yield seen(named, f"the network {named[0]['net']} is asked for and no plugin offers it", "medium")


@cause("network-plugin-init-failed")
def network_plugin_init_failed(story: Story) -> Iterator[Cause]:
    """
    The network plugin loaded and gave up, or the network asked for could not start.

    Why: no device or permission in the container, too little locked memory, or a libfabric that does not fit.

    Fix: EFA devices and memlock in the container, the libfabric of the plugin; unset NCCL_NET to
    see what works.

    In logs: `aws-ofi-nccl initialization failed`, `Error: network IB not found`.
    """
    forced = [e for e in story.all("net-not-found") if not e["net"] or e["net"].upper() in ("IB", "SOCKET")]
    said = [e for e in story.all("plugin-init-failed") if e["plugin"].upper() not in ("IB", "SOCKET")]
    if forced:
        yield seen(
            [*forced, *story.all("ib-none")[:1]],
            "the network that NCCL_NET asks for could not start",
            "medium",
        )
    elif said:
        goes_on = any(h.kind == "Socket" for h in story.hosts.values()) or story.init_complete
        yield seen(
            said,
            "the network plugin gave up" + (", the job goes on over TCP" if goes_on else ""),
            "high",
            severity="warning" if goes_on else None,
        )


@cause("sharp-unavailable", severity="warning")
def sharp_unavailable(story: Story) -> Iterator[Cause]:
    """
    In-network reduction was offered and refused; NCCL goes on point-to-point.

    Why: the switch's aggregation trees are taken, or no SHARP daemon answers.

    Fix: none needed; `NCCL_COLLNET_ENABLE=0` to be quiet.

    In logs: `Cannot create SHARP job(-11)`, `Cannot initialize CollNet, using point-to-point`.
    """
    said = [
        e
        for e in story.all("sharp-off")
        if not re.search(r"Cannot initialize CollNet|disabling CollNet", e.text)
    ]
    if said:
        yield seen(said, "SHARP was offered and refused; NCCL goes on without it", "high")


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


def link_local_gid(text: str) -> bool:
    """Whether a completion's local GID is a link-local address."""
    found = re.search(r"(?i)localGid:? ?(\S+)", text)
    return bool(found and is_link_local(found[1]))
