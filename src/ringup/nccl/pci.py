"""
Distances between GPUs and NICs on a node's PCI tree, and that tree as NCCL builds it.

Distances are nvidia-smi's (legend of `nvidia-smi topo -m`).  The tree is built like NCCL's own from sysfs,
`ncclTopoGetXmlFromSys` in src/graph/xml.cc: one element for two neighbouring bridges, the slower end of a
link, one CPU per NUMA node.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from ringup.model import Node, PciDevice
from ringup.parse.topology import Cpu, Distance, Net, Pci, Topology
from ringup.units import grouped


def distance(one: PciDevice, other: PciDevice) -> Distance:
    """
    The kind of path between two devices of one node.

    PIX at most one switch, PXB several, PHB a common root complex, NODE a common NUMA node, SYS the link
    between CPU sockets.  With an unknown NUMA node, the two count as near.

    >>> switch = ("0000:16:01.0", "0000:17:00.0")
    >>> gpu = PciDevice("0000:19:00.0", (*switch, "0000:18:00.0"), "pci0000:16", numa_node=0)
    >>> distance(gpu, PciDevice("0000:1a:00.0", (*switch, "0000:18:01.0"), "pci0000:16", numa_node=0))
    'PIX'
    >>> distance(gpu, PciDevice("0000:98:00.0", ("0000:97:01.0",), "pci0000:97", numa_node=1))
    'SYS'
    """
    shared = len(posixpath.commonprefix([(*one.above, one.bus_id), (*other.above, other.bus_id)]))
    if shared:
        return "PIX" if max(len(one.above), len(other.above)) - shared <= 1 else "PXB"
    if one.root == other.root:
        return "PHB"
    known = one.numa_node is not None and other.numa_node is not None
    return "SYS" if known and one.numa_node != other.numa_node else "NODE"


def cards_of(node: Node) -> dict[str, PciDevice]:
    """RDMA device -> its PCI function, for devices in the tree."""
    by_bus = {device.bus_id: device for device in node.pci}
    return {p.device: by_bus[p.bus_id] for p in node.rdma_ports if p.bus_id in by_bus}


def gpus_of(node: Node) -> dict[int, PciDevice]:
    """GPU's index -> its PCI function, for visible GPUs in the tree."""
    by_bus = {device.bus_id: device for device in node.pci}
    return {gpu.index: by_bus[gpu.bus_id] for gpu in node.gpus if gpu.is_visible and gpu.bus_id in by_bus}


def has_gpudirect(node: Node) -> bool:
    """Whether RDMA can reach GPU memory: by a peer-memory module, or DMA-BUF (open module, Linux 5.12)."""
    driver, kernel = node.gpu_driver, re.match(r"(\d{1,4})\.(\d{1,4})", node.kernel)
    has_dma_buf = driver.is_open and kernel is not None and (int(kernel[1]), int(kernel[2])) >= (5, 12)
    return bool(driver.peer_memory) or has_dma_buf


def topology(node: Node) -> Topology:
    """Visible GPUs and RDMA devices in the tree that NCCL would build; without CPUs if unknown."""
    by_bus = {device.bus_id: device for device in node.pci}
    visible = [g for g in node.gpus if g.is_visible]
    gpus = {g.bus_id: n for n, g in enumerate(visible) if g.bus_id in by_bus}
    ports = [p for p in node.rdma_ports if p.bus_id in by_bus]
    speeds = ((p, int(min(p.rate_gbit_s or 0, 1e6) * 1000)) for p in ports)
    nets = grouped((p.bus_id, Net(p.device, mbit_s, has_gpudirect(node))) for p, mbit_s in speeds)
    below: dict[tuple[int, str], list[str]] = {}
    """NUMA node and bus ("" for the CPU) -> the elements below."""
    for device in (by_bus[bus] for bus in sorted({*gpus, *nets})):
        numa, parent = device.numa_node or 0, ""
        # The device and every second bridge above it, topmost first: a switch is one, a root port none.
        for bus in (*device.above, device.bus_id)[::-1][::2][::-1]:
            if bus not in below.setdefault((numa, parent), []):
                below[numa, parent].append(bus)
            parent = bus
    order = {bus: n for n, bus in enumerate(sorted(by_bus))}

    def element(numa: int, bus: str, above: tuple[str, ...] = ()) -> Pci:
        device = by_bus.get(bus, PciDevice(bus))
        speed, lanes = _link(device, by_bus)
        return Pci(
            bus,
            order.get(bus, 0),
            speed,
            lanes,
            (device.vendor, device.device, *device.ids),
            gpus.get(bus),
            bus in gpus and has_gpudirect(node),
            tuple(nets.get(bus, ())),
            # An untrusted node may send a tree that is inconsistent.
            tuple(
                element(numa, child, (*above, bus))
                for child in below.get((numa, bus), ())
                if child not in (*above, bus)
            ),
        )

    arch, cpu = {"aarch64": "arm64", "ppc64le": "ppc64"}.get(node.machine, node.machine), node.processor
    roots = ((numa, found) for (numa, parent), found in sorted(below.items()) if not parent)
    trees = ((numa, tuple(element(numa, bus) for bus in found)) for numa, found in roots)
    return Topology(tuple(Cpu(numa, arch, cpu.vendor, cpu.family, cpu.model, tree) for numa, tree in trees))


def _link(device: PciDevice, by_bus: Mapping[str, PciDevice]) -> tuple[str, int]:
    """The link's speed as sysfs writes it, and its lanes: the smaller maximum of its two ends."""
    ends = [device, *([by_bus[device.above[-1]]] if device.above and device.above[-1] in by_bus else [])]
    speeds = [end.max_link_gt_s for end in ends if end.max_link_gt_s]
    lanes = [end.max_link_width for end in ends if end.max_link_width]
    return f"{min(speeds):.1f} GT/s PCIe" if speeds else "", min(lanes, default=0)
