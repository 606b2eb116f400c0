"""The positions of GPUs and NICs on the PCI tree: NCCL's topology dump, and `nvidia-smi topo -m`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ringup.parse.gpus import gpu_table
from ringup.units import lines_of

MOST_BYTES = 8 << 20
MOST_ELEMENTS = 20_000
DEEPEST = 64
Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
DISTANCES: tuple[Distance, ...] = get_args(Distance)
"""From close to far."""
_LEGEND = re.compile(r"^\s+(NIC\d+): (\S+)\s*$")


@dataclass(frozen=True)
class Net:
    """A network device in a dump, below its PCI device."""

    name: str
    speed_mbit_s: int
    gpudirect: bool


@dataclass(frozen=True)
class Pci:
    """One element of the tree: a bridge, a GPU or a NIC; `index` is its position in the file."""

    bus_id: str
    index: int
    link_gt_s: str = ""
    """In sysfs's format: "16.0 GT/s PCIe"."""
    link_width: int = 0
    ids: tuple[int, ...] = (0, 0, 0, 0)
    """Vendor, device, subsystem vendor, subsystem device."""
    gpu: int | None = None
    """CUDA's number of the GPU, None for other devices."""
    gpu_gpudirect: bool = False
    nets: tuple[Net, ...] = ()
    children: tuple[Pci, ...] = ()


@dataclass(frozen=True)
class Cpu:
    """One NUMA node, root of its own tree."""

    numa: int
    arch: str = ""
    vendor: str = ""
    family: int = 0
    model: int = 0
    children: tuple[Pci, ...] = ()
    nets: tuple[Net, ...] = ()


@dataclass(frozen=True)
class Topology:
    cpus: tuple[Cpu, ...] = ()

    def devices(self) -> Iterator[tuple[Cpu, tuple[Pci, ...]]]:
        """Every element with its CPU and the path down to it, in the file's order."""
        for cpu in self.cpus:
            stack: list[tuple[Pci, ...]] = [(child,) for child in reversed(cpu.children)]
            while stack:
                path = stack.pop()
                yield cpu, path
                stack += [(*path, child) for child in reversed(path[-1].children)]


Matrix = Mapping[tuple[int, str], str]
"""Distance of each NIC from each GPU: (GPU, RDMA device) -> "PIX", "PXB", "PHB", "NODE" or "SYS"."""


def parse_topology(text: str) -> Topology:
    """
    A file written by NCCL_TOPO_DUMP_FILE. Raises ValueError for other text.

    >>> made = parse_topology('<system version="1"><cpu numaid="0"><pci busid="0000:63:00.0">'
    ...     '<gpu dev="0" rank="0" gdr="1"/></pci></cpu></system>')
    >>> made.cpus[0].children[0].bus_id, made.cpus[0].children[0].gpu
    ('0000:63:00.0', 0)
    """
    # XML entities could make a small file huge; NCCL writes none.
    if len(text) > MOST_BYTES or "<!" in text.replace("<!--", ""):
        raise ValueError("too large, or with a document type: not a topology dump")
    if (start := text.find("<system")) < 0:
        raise ValueError("no <system> element: not a topology dump")
    try:
        root = ElementTree.fromstring(text[start : text.rindex("</system>") + len("</system>")])
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"not a topology dump: {error}") from error
    index = {element: n for n, element in enumerate(root.iter())}
    level, depth = [root], 0
    while level and depth <= DEEPEST:
        level, depth = [child for e in level for child in e], depth + 1
    if len(index) > MOST_ELEMENTS or depth > DEEPEST:
        raise ValueError("too many elements for a topology dump")
    return Topology(tuple(_cpu(e, index) for e in root if e.tag == "cpu"))


def _whole(element: ElementTree.Element, name: str, default: int = 0) -> int:
    try:
        return int(element.get(name, ""), 0)
    except ValueError:
        return default


def _cpu(element: ElementTree.Element, index: dict[ElementTree.Element, int]) -> Cpu:
    return Cpu(
        _whole(element, "numaid"),
        element.get("arch", ""),
        element.get("vendor", ""),
        _whole(element, "familyid"),
        _whole(element, "modelid"),
        tuple(_pci(e, index) for e in element if e.tag == "pci"),
        _nets(element),
    )


def _pci(element: ElementTree.Element, index: dict[ElementTree.Element, int]) -> Pci:
    gpu = element.find("gpu")
    return Pci(
        element.get("busid", "").lower(),
        index[element],
        element.get("link_speed", ""),
        _whole(element, "link_width"),
        (*(_whole(element, n) for n in ("vendor", "device", "subsystem_vendor", "subsystem_device")),),
        None if gpu is None else _whole(gpu, "dev", -1),
        gpu is not None and _whole(gpu, "gdr") > 0,
        _nets(element),
        tuple(_pci(e, index) for e in element if e.tag == "pci"),
    )


def _nets(element: ElementTree.Element) -> tuple[Net, ...]:
    nets = (net for nic in element.findall("nic") for net in nic.findall("net"))
    return tuple(Net(n.get("name", ""), _whole(n, "speed"), _whole(n, "gdr") > 0) for n in nets)


def parse_topo_matrix(text: str) -> Matrix:
    """
    NICs in the table of `nvidia-smi topo -m`, with the names of its legend.

    >>> parse_topo_matrix("\\tGPU0\\tNIC0\\tCPU Affinity\\nGPU0\\t X \\tPXB\\t0-63\\nNIC0\\tPXB\\t X \\n"
    ...     "NIC Legend:\\n\\n  NIC0: mlx5_0\\n")
    {(0, 'mlx5_0'): 'PXB'}
    """
    lines = lines_of(text)
    legend = {match[1]: match[2] for line in lines if (match := _LEGEND.match(line))}
    return {
        (gpu, legend.get(name, name)): cell
        for (gpu, name), cell in gpu_table(lines).items()
        if cell in DISTANCES and not name.startswith(("GPU", "CPU", "NUMA", "Affinity"))
    }
