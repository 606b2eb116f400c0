"""The network device of each GPU: by bandwidth of the path, then by length (NCCL src/graph, 2.18 to 2.30)."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ringup.nccl.interface_choice import Version
from ringup.parse.topology import Cpu, Matrix, Pci, Topology
from ringup.units import summarize_names

ORDER = ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")
"""Kinds of path, from close to far."""
Element = TypeVar("Element", Cpu, Pci)
_LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""GT/s -> units of 100 Mbit/s per lane, kvDictPciGen; other rates count as 60."""
SMALL_STEP: Version = (2, 30, 7)
"""From this release on, a GPU's number is taken modulo the number of GPUs that share its devices."""
INTEL_LATER: Version = (2, 26, 0)
"""Only later releases have separate figures for Sapphire and Emerald Rapids."""


@dataclass(frozen=True)
class Path:
    """A path between a GPU and a device."""

    gbyte_s: float
    kind: str
    gpudirect: bool = False
    """Data bypasses the CPU's memory: `/GDRDMA` in the log."""
    is_known: bool = True
    """Whether the device's rate is known; NCCL takes 10 Gbit/s for one that is not."""

    def __str__(self) -> str:
        return f"{self.gbyte_s:g} GB/s {self.kind}" if self.is_known else self.kind


@dataclass(frozen=True)
class Where:
    """The facts about one network device that the choice needs."""

    name: str
    place: str
    """Possible names in the tree, separated by `/`: RDMA device, interface, PCI address."""
    speed_mbit_s: float


@dataclass(frozen=True)
class Use:
    """GPU `gpu` sends through `device`."""

    gpu: int
    device: str
    because: str
    gpudirect: bool = False


def pci_gbyte_s(pci: Pci) -> float:
    """
    NCCL's bandwidth for a PCI link.

    >>> pci_gbyte_s(Pci("0000:63:00.0", 0, "16.0 GT/s PCIe", 16))
    24.0
    """
    match = re.match(r"[\d.]+", pci.link_gt_s)
    return (pci.link_width or 16) * _LANE.get(match[0].removesuffix(".0") if match else "", 60) / 80


def cpu_gbyte_s(cpu: Cpu, version: Version) -> float:
    if cpu.arch in ("ppc64", "arm64"):
        return 32.0 if cpu.arch == "ppc64" else 6.0
    if cpu.vendor == "AuthenticAMD":
        return 16.0
    if cpu.vendor == "GenuineIntel" and cpu.family == 6:
        steps = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0)) if version >= INTEL_LATER else ((0x55, 10.0),)
        return next((rate for model, rate in steps if cpu.model >= model), 6.0)
    return 6.0 if cpu.vendor else 5000.0


def _generation(pci: Pci, level: int) -> int:
    """Generation of a Broadcom PEX switch, 0 for anything else."""
    vendor, device, sub_vendor, sub_device = pci.ids
    whole = vendor << 48 | device << 32 | sub_vendor << 16 | sub_device
    if whole & ~0xFFF == 0x1000C0101000A000:
        return 4
    return 5 if whole & ~0xFFF == 0x1000C03010000000 | level * 0x1000 else 0


def flattened(top: Element) -> Element:
    """The tree with two-level Broadcom PEX switches as one, as NCCL treats them."""
    children = tuple(map(flattened, top.children))
    generation = _generation(top, 0) if isinstance(top, Pci) else 0
    if generation:
        kept = [c for c in children if c.gpu is not None or c.nets or _generation(c, 1) != generation]
        for child in children:
            if child not in kept:
                kept += child.children
        children = tuple(kept)
    return dataclasses.replace(top, children=children)


@dataclass(frozen=True)
class _Spot:
    cpu: int
    way: tuple[Pci, ...] = ()
    gpudirect: bool = False

    @property
    def to_cpu_gbyte_s(self) -> float:
        return min((pci_gbyte_s(p) for p in self.way), default=5000.0)


def _between(gpu: _Spot, card: _Spot, furthest: str, speed: float, by_cpus: float) -> Path:
    """
    NCCL's path; `furthest`: the longest kind with GPUDirect, `speed`: the device's, `by_cpus`: that of the
    link between CPUs, both in GB/s.
    """

    def is_direct(kind: str) -> bool:
        return gpu.gpudirect and card.gpudirect and ORDER.index(kind) <= ORDER.index(furthest)

    shared = len(posixpath.commonprefix([[(p.bus_id, p.index) for p in spot.way] for spot in (gpu, card)]))
    own, rest = gpu.way[shared:], card.way[shared:]
    kind = "PIX" if len(own) + len(rest) <= 2 else "PXB"
    if shared and is_direct(kind):
        rate = min([pci_gbyte_s(p) for p in (*own, *rest)] or [5000.0])
        return Path(min(rate, speed), kind, True)
    rate = min(gpu.to_cpu_gbyte_s, card.to_cpu_gbyte_s, speed)  # data passes the GPU's CPU
    if gpu.cpu == card.cpu:
        return Path(rate, "PHB", not shared and is_direct("PHB"))
    return Path(min(rate, by_cpus), "SYS", is_direct("SYS"))


def gdr_level(environment: Mapping[str, str]) -> str:
    """
    NCCL_NET_GDR_LEVEL: the longest path from a GPU to a device for GPUDirect RDMA.

    Old numbers 0 to 4 as in `ncclGetLevel` (src/graph/paths.cc); PXB if unset or invalid.

    >>> gdr_level({"NCCL_NET_GDR_LEVEL": "3"}), gdr_level({})
    ('PHB', 'PXB')
    """
    value = environment.get("NCCL_NET_GDR_LEVEL", "")
    numbers = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
    if value.isascii() and value.isdigit():
        return numbers[min(int(value[:3]), 5)]
    return value if value in ORDER else "PXB"


def paths(
    topology: Topology, devices: Sequence[Where], version: Version, level: str = "PXB"
) -> dict[int, dict[str, Path]]:
    """GPU -> device -> path, in the tree's order; `level` (`gdr_level`): the longest kind for GPUDirect."""
    flat = Topology(tuple(flattened(cpu) for cpu in topology.cpus))
    gpus: dict[int, _Spot] = {}
    cards: dict[str, _Spot] = {}
    for cpu, way in flat.devices():
        number, last = flat.cpus.index(cpu), way[-1]
        if last.gpu is not None:
            gpus[last.gpu] = _Spot(number, way, last.gpu_gpudirect)
        cards[last.bus_id] = _Spot(number, way, any(n.gpudirect for n in last.nets))
        cards |= {net.name: _Spot(number, way, net.gpudirect) for net in last.nets}
    for number, cpu in enumerate(flat.cpus):
        cards |= {net.name: _Spot(number) for net in cpu.nets}
    found: dict[int, dict[str, Path]] = {}
    places = [(w, next((n for n in w.place.split("/") if n and n in cards), "")) for w in devices]
    located = [(w, cards[place]) for w, place in places if place]
    located.sort(key=lambda one: one[1].way[-1].index if one[1].way else 0)
    for gpu, spot in sorted(gpus.items()):
        by_cpus = cpu_gbyte_s(flat.cpus[spot.cpu], version)
        for where, card in located:
            path = _between(spot, card, level, (where.speed_mbit_s or 10000.0) / 8000, by_cpus)
            found.setdefault(gpu, {})[where.name] = replace(path, is_known=bool(where.speed_mbit_s))
    return found


def matrix_paths(matrix: Matrix, devices: Sequence[Where]) -> dict[int, dict[str, Path]]:
    """The same from `nvidia-smi topo -m`, which has distances but no bandwidths: PCI gen 4 x16 is assumed."""
    kinds = {"NODE": "PHB", "X": "LOC"}
    found: dict[int, dict[str, Path]] = {}
    for (gpu, name), cell in sorted(matrix.items()):
        for device in devices:
            if name in device.place.split("/"):
                kind = kinds.get(cell, cell)
                rate = min((device.speed_mbit_s or 10000.0) / 8000, 16.0 if kind == "SYS" else 24.0)
                path = Path(rate, kind, is_known=bool(device.speed_mbit_s))
                found.setdefault(gpu, {})[device.name] = path
    return found


def best(options: Mapping[str, Path]) -> list[str]:
    """The devices with the largest bandwidth, and of these the closest, in the tree's order."""
    key = {name: (-path.gbyte_s, ORDER.index(path.kind)) for name, path in options.items()}
    return [name for name in options if key[name] == min(key.values())]


def mirrored(number: int, power: int) -> int:
    """
    The low bits of a number in reverse order, within a power of two: NCCL's mirrorBits.

    >>> [mirrored(n, 4) for n in range(4)]
    [0, 2, 1, 3]
    """
    bits = power.bit_length() - 1
    return int(f"{number % power:0{bits}b}"[::-1], 2) if bits else 0


def choose(
    found: Mapping[int, Mapping[str, Path]], environment: Mapping[str, str], version: Version
) -> tuple[list[Use], list[str]]:
    """The devices of each GPU on all its channels, from its paths; and possible reasons for other devices."""
    uses: list[Use] = []
    doubts: list[str] = []
    for gpu, options in found.items():
        if not (near := best(options)):
            continue
        # The GPUs with the best path to the device.
        sharing = [int(g) for g in best({str(g): o[near[0]] for g, o in found.items() if near[0] in o})]
        for name in _spread(gpu, near, sharing, environment, version):
            uses.append(Use(gpu, name, _reason(name, options, near), options[name].gpudirect))
    if any(len(o) > 1 and not all(path.is_known for path in o.values()) for o in found.values()):
        doubts.append("the rates of some devices are not known: NCCL takes 10 Gbit/s (ibstatus shows them)")
    if any(len(best(o)) > 1 for o in found.values()) and len(found) > 1:
        doubts.append("several GPUs share equally good devices: the ring search may pair them otherwise")
    if len(found) > 1 and any(o[n].kind in ("PHB", "SYS") for o in found.values() for n in best(o)):
        doubts.append("a GPU without a device of its own may send by way of another over NVLink (PXN)")
    return uses, doubts


def _spread(
    gpu: int, near: list[str], sharing: list[int], environment: Mapping[str, str], version: Version
) -> list[str]:
    """The devices of all channels, first channel first."""
    count = len(near)
    start = gpu % max(1, len(sharing)) if version >= SMALL_STEP else gpu
    if version < (2, 19):
        start = sharing.index(gpu) if gpu in sharing else gpu
    if count & (count - 1) == 0 and version >= (2, 19):
        start = mirrored(start, count)
    each = -(-count // max(1, len(sharing)))
    policy = environment.get("NCCL_NETDEVS_POLICY", "") if version >= (2, 28, 3) else ""
    if policy.upper() == "ALL":
        each = count
    elif match := re.fullmatch(r"MAX:(\d{1,6})", policy.upper()):
        each = min(max(1, int(match[1])), count)
    return list(dict.fromkeys(near[(start + channel) % count] for channel in range(each)))


def _reason(name: str, options: Mapping[str, Path], near: list[str]) -> str:
    best_first = sorted(options.items(), key=lambda pair: (-pair[1].gbyte_s, ORDER.index(pair[1].kind)))
    shown = f"({summarize_names(f'{n} {p}' for n, p in best_first)})"
    if options[name].gpudirect:
        shown += ", with GPUDirect RDMA"
    if len(options) == 1:
        return f"the only one {shown}"
    if len(near) > 1:
        return f"one of {len(near)} equally good {shown}"
    if not any(path.is_known for path in options.values()):
        return f"the closest {shown}"
    widest = [n for n, p in options.items() if p.gbyte_s == options[name].gbyte_s]
    return f"{'most bandwidth' if len(widest) == 1 else 'closest of the fastest'} {shown}"
