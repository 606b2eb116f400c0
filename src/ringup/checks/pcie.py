"""The PCI tree between GPUs, NICs and CPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from ringup.checks.verbs import rose
from ringup.model import Cluster, Node, PciDevice
from ringup.nccl import pci
from ringup.parse.topology import DISTANCES, Distance
from ringup.rules import Finding, Place, Severity, Skipped, at, check
from ringup.units import grouped, printable, show_seconds, summarize_names

CORRECTABLE_PER_MIN = 10.0
CORRECTABLE_LEAST = 1000
GPU_IDLE = 0x1
"""Bit of nvmlClocksEventReasons; an idle GPU lowers its link's speed."""
AMD = 0x1002
"""Vendor id of AMD's GPUs; root ports of AMD's CPUs have 0x1022."""
NETWORK = (0x0200, 0x0207)
REDIRECTS = 0b1100
"""Bits of the ACS control register: requests and completions between peers are redirected upstream."""


def kind_of(device: PciDevice) -> str:
    if device.is_nvidia_gpu:
        return "GPU"
    if device.is_nvswitch:
        return "NVSwitch"
    return "bridge" if device.is_bridge else "network card" if device.class_code in NETWORK else "device"


def place_of(node: Node, device: PciDevice) -> Place:
    return at(node, f"{kind_of(device)} {printable(device.bus_id, 40)}")


def may_rest(node: Node, device: PciDevice) -> bool:
    """Whether the link may be slow only because it is idle: a GPU that is not known to be busy."""
    if device.vendor == AMD:  # a GPU, or the switch on its board: its activity is unknown
        return True
    if not device.is_nvidia_gpu:
        return False
    gpu = next((g for g in node.gpus if g.bus_id == device.bus_id), None)
    return gpu is None or gpu.throttle_reasons is None or bool(gpu.throttle_reasons & GPU_IDLE)


@check("pcie-link-degraded", reads=("pci",), severity="warning", scope="gpus")
def pcie_link_degraded(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU's, network card's or switch's PCI Express link runs narrower or slower than both of its ends can.

    Why: every byte between GPU, card and memory passes it; half the lanes are half the bandwidth, and it is
    often the first sign of a device that will fall off the bus.
    Fix: reseat the board or riser, check the slot and BIOS settings, then replace it.
    """
    every = grouped(((d.bus_id, d.vendor, d.device), d.link_width or 0) for n in cluster.nodes for d in n.pci)
    widest = {place_and_kind: max(widths) for place_and_kind, widths in every.items()}
    for node in cluster.nodes:
        by_bus = {d.bus_id: d for d in node.pci}
        for device in node.pci:
            # A root or downstream port describes the link below it, as does the device there.
            if device.is_bridge and len(device.above) % 2 == 0:
                continue
            # Ports of a virtual machine may report any value; only the comparison with peers counts there.
            wide, fast = (0, 0.0) if node.virtual_machine else best_link(device, by_bus)
            wide = max(wide, widest[device.bus_id, device.vendor, device.device])
            narrow = 0 < (device.link_width or 0) < wide
            slow = 0 < (device.link_gt_s or 0) < fast and not may_rest(node, device)
            if not (narrow or slow):
                continue
            lanes, rate = "x{0} " if narrow else "", "{1:g} GT/s" if slow else ""
            words = (lanes + rate).strip()
            yield place_of(node, device).finding(
                found=f"link {words.format(device.link_width, device.link_gt_s)}",
                wanted=words.format(wide, fast),
                run=f"sudo lspci -vvs {shlex.quote(device.bus_id)}",
            )


def bus_matters(node: Node) -> Severity:
    """A warning if data use the bus: RDMA devices, or GPUs without NVLink to each other."""
    cards = any(p.is_active for p in node.rdma_ports)
    paths = [link.path for link in node.gpu_links] if "gpu_links" not in node.unknown else [""]
    return "warning" if cards or any(not path.startswith("NV") for path in paths) else "note"


def best_link(device: PciDevice, by_bus: Mapping[str, PciDevice]) -> tuple[int, float]:
    """The most lanes and GT/s that both ends of the link above a device support; 0 if unknown."""
    port = by_bus.get(device.above[-1]) if device.above else None
    if port is None or not (device.max_link_width and port.max_link_width):
        return 0, 0.0
    rates = [d.max_link_gt_s for d in (device, port) if d.max_link_gt_s]
    return min(device.max_link_width, port.max_link_width), min(rates, default=0.0)


@check("pcie-errors", reads=("pci", "uptime_s"), scope="gpus")
def pcie_errors(node: Node) -> Iterator[Finding]:
    """Errors that rise during the check; of the errors since boot only uncorrectable or frequent ones."""
    for device in node.pci:
        errors = bus_errors(node, device)
        if not errors or device.bus_id in node.gpu_driver.lost:
            continue
        found, severity = errors
        run = f"grep . {shlex.quote(f'/sys/bus/pci/devices/{device.bus_id}')}/aer_dev_*"
        yield place_of(node, device).finding(found=found, wanted="none", severity=severity, run=run)


def bus_errors(node: Node, device: PciDevice) -> tuple[str, Severity] | None:
    rise = rose(node, f"pci:{device.bus_id}")
    worse = rise.by.get("fatal_errors", 0) + rise.by.get("nonfatal_errors", 0)
    often = rise.by.get("correctable_errors", 0)
    if worse:
        return f"{worse} uncorrectable bus errors in {show_seconds(rise.over_s)}", "error"
    if often >= CORRECTABLE_PER_MIN:
        return f"{often} correctable bus errors in {show_seconds(rise.over_s)}", "warning"
    worse = (device.fatal_errors or 0) + (device.nonfatal_errors or 0)
    often = device.correctable_errors or 0
    per_min = often / max(1.0, node.uptime_s / 60)
    if worse:
        return f"{worse} uncorrectable bus errors since boot", "warning"
    if often >= CORRECTABLE_LEAST and per_min > CORRECTABLE_PER_MIN:
        return f"{often} correctable bus errors since boot, {per_min:.0f} a minute", "warning"
    return None


@check("gpu-nic-far-apart", reads=("gpus", "pci", "rdma_ports"), severity="warning", scope="gpus")
def gpu_nic_far_apart(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU's nearest RDMA device is on another CPU socket; on a peer node it is close to the GPU.

    Why: NCCL then leaves GPUDirect out for that GPU, and its data crosses the link between CPU sockets.
    Fix: put the NIC in the same slot as on the other nodes; in a virtual machine, the provider's topology
    file (NCCL_TOPO_FILE).
    """
    nearest = {n.name: nearest_cards(n) for n in cluster.nodes}
    counts = {n.name: len(pci.cards_of(n)) for n in cluster.nodes}
    ways = grouped((gpu, own) for found in nearest.values() for gpu, (own, _) in found.items())
    bests = {gpu: min(own, key=DISTANCES.index) for gpu, own in ways.items()}
    near = [gpu for gpu, best in bests.items() if best in ("PIX", "PXB", "PHB")]
    for node in cluster.nodes:
        own = nearest[node.name]
        far = [gpu for gpu in own if gpu in near and own[gpu][0] in ("NODE", "SYS")]
        # Another rule reports a missing NIC.
        if far and counts[node.name] == max(counts.values()):
            way, card = own[far[0]]
            yield at(node, f"GPU {summarize_names(far, 8)}").finding(
                found=f"nearest is {printable(card, 40)}, {way} away",
                wanted=f"{bests[far[0]]}, as on other nodes",
                run="nvidia-smi topo -m",
            )


def nearest_cards(node: Node) -> dict[int, tuple[Distance, str]]:
    """GPU -> its nearest RDMA device, for the GPUs the job sees."""
    found: dict[int, tuple[Distance, str]] = {}
    cards = pci.cards_of(node)
    for gpu, device in pci.gpus_of(node).items() if cards else ():
        ways = [(pci.distance(device, card), name) for name, card in cards.items()]
        found[gpu] = min(ways, key=lambda way: DISTANCES.index(way[0]))
    return found


@check("gpudirect-module-missing", reads=("gpu_driver", "rdma_ports", "kernel"), scope="gpus")
def gpudirect_module_missing(node: Node) -> Iterator[Finding]:
    """DMA-BUF (the open kernel module on Linux 5.12) replaces the module.  GeForce boards have neither."""
    drivers = {d.bus_id: d.driver for d in node.pci}
    ports = [p for p in node.rdma_ports if p.is_active and drivers.get(p.bus_id) != "efa"]
    consumer = bool(node.gpus) and all("GeForce" in g.name for g in node.gpus)
    if ports and node.gpu_driver.version and not consumer and not pci.has_gpudirect(node):
        kind = "open" if node.gpu_driver.is_open else "proprietary"
        yield at(node).finding(
            found=f"neither nvidia_peermem nor DMA-BUF ({kind} driver {node.gpu_driver.version}, "
            f"Linux {printable(node.kernel, 40)})",
            wanted=f"a way from {summarize_names([p.device for p in ports])} into GPU memory",
            run="sudo modprobe nvidia-peermem",
        )


def peers_of_interest(node: Node) -> list[PciDevice]:
    """GPUs and RDMA NICs: the devices that send data to each other over the bus."""
    cards = {p.bus_id for p in node.rdma_ports}
    return [d for d in node.pci if d.is_nvidia_gpu or d.bus_id in cards]


@check("acs-enabled", reads=("pci",), scope="gpus")
def acs_enabled(node: Node) -> Iterator[Finding | Skipped]:
    """
    From the register if the check runs as root, else from IOMMU groups: the kernel puts devices below one
    switch into one group unless ACS separates them (pci_acs_path_enabled).  In a virtual machine ACS cannot
    be turned off.
    """
    if node.virtual_machine:
        return
    devices = [d for d in peers_of_interest(node) if d.above]
    below_switches = [(a, b) for a, b in combinations(devices, 2) if a.above[-1] != b.above[-1]]
    pairs = [(a, b) for a, b in below_switches if pci.distance(a, b) in ("PIX", "PXB")]
    if not pairs:
        return
    registers = {d.bus_id: d.acs_control for d in node.pci if d.acs_control is not None}
    ports = list(dict.fromkeys(d.above[-1] for pair in pairs for d in pair))
    if all(p in registers for p in ports):
        redirecting = [p for p in ports if registers[p] & REDIRECTS]
        if redirecting:
            names = summarize_names(redirecting)
            yield acs_finding(node, redirecting, f"{names} redirect peer-to-peer traffic to the CPU")
        return
    if any(o.startswith("pcie_acs_override") for o in node.boot_options):
        yield Skipped("", node.name, "with pcie_acs_override, IOMMU groups do not show ACS")
        return
    in_groups = [(a, b) for a, b in pairs if a.iommu_group is not None and b.iommu_group is not None]
    if not in_groups:
        yield Skipped("", node.name, "without an IOMMU only root can see this: sudo lspci -vvv | grep ACSCtl")
        return
    apart = [(a, b) for a, b in in_groups if a.iommu_group != b.iommu_group]
    if apart:
        one, other = apart[0]
        found = f"{one.bus_id} and {other.bus_id} are below one switch, in IOMMU groups "
        ports = list(dict.fromkeys(d.above[-1] for pair in apart for d in pair))
        yield acs_finding(node, ports, f"{found}{one.iommu_group} and {other.iommu_group}")


def acs_finding(node: Node, ports: Sequence[str], found: str) -> Finding:
    return at(node, f"{len(ports)} ports of PCI switches").finding(
        found=printable(found, 200),
        wanted="no ACS between GPUs and NICs below one switch",
        severity=bus_matters(node),
        fix="ACS off on these ports (until the next boot), or in the BIOS",
        run=[f"sudo setpci -s {shlex.quote(p)} ECAP_ACS+0x6.w=0000" for p in ports[:8]],
    )


@check("iommu-translating", reads=("pci", "machine"), severity="warning", scope="gpus")
def iommu_translating(node: Node) -> Iterator[Finding]:
    """
    The IOMMU translates addresses of GPUs and NICs, on a machine that is not virtual.

    Why: transfers between them go through the CPU and are slow; on some boards they hang or corrupt data.
    Fix: `iommu=pt` on the kernel's command line (or the IOMMU off in the BIOS), then reboot.
    """
    # On architectures other than x86 this is normal.
    if node.virtual_machine or node.machine != "x86_64":
        return
    devices = peers_of_interest(node)
    translated = [d for d in devices if d.iommu_type.startswith("DMA")]
    if len(devices) > 1 and translated:
        options = " ".join(node.boot_options)
        yield at(node, f"{len(translated)} GPUs and cards").finding(
            found=f"IOMMU groups of type {translated[0].iommu_type}"
            + (f"; booted with {printable(options, 120)}" if options else ""),
            wanted="type identity",
            severity=bus_matters(node),
            run="sudo grubby --update-kernel=ALL --args=iommu=pt",
        )
