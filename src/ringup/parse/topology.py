"""How GPUs and NICs sit on the PCI tree: NCCL's topology dump, and `nvidia-smi topo -m`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_BYTES = 8 << 20
MOST_ELEMENTS = 20_000
DEEPEST = 64
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")


@dataclass(frozen=True)
class Net:
    """A network device as a dump lists it: under the PCI device it sits on."""

    name: str
    speed_mbit_s: int
    gpudirect: bool
    guid: str = ""


@dataclass(frozen=True)
class Pci:
    """One element of the tree: a bridge, a GPU or a card; `index` is its place in the file."""

    bus_id: str
    index: int
    link_gt_s: str = ""
    """As sysfs has it: "16.0 GT/s PCIe"."""
    link_width: int = 0
    ids: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Vendor, device, subsystem vendor, subsystem device."""
    gpu: int | None = None
    """CUDA's number of the GPU here, None for anything else."""
    gpu_gpudirect: bool = False
    nvlinks: int = 0
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
    """What a dump says."""

    cpus: tuple[Cpu, ...] = ()

    def devices(self) -> Iterator[tuple[Cpu, tuple[Pci, ...]]]:
        """Every element with the CPU it hangs from and the path down to it, in the file's order."""
        for cpu in self.cpus:
            stack: list[tuple[Pci, ...]] = [(child,) for child in reversed(cpu.children)]
            while stack:
                path = stack.pop()
                yield cpu, path
                stack += [(*path, child) for child in reversed(path[-1].children)]


@dataclass(frozen=True)
class Matrix:
    """`nvidia-smi topo -m`: how far each NIC is from each GPU, in nvidia-smi's words."""

    distance: dict[tuple[int, str], str] = field(default_factory=dict)
    """(GPU, RDMA device) -> "PIX", "PXB", "PHB", "NODE" or "SYS"."""


def parse_topology(text: str) -> Topology:
    """
    A file as NCCL_TOPO_DUMP_FILE writes it.  Raises ValueError for anything else.

    >>> made = parse_topology('<system version="1"><cpu numaid="0"><pci busid="0000:63:00.0">'
    ...     '<gpu dev="0" rank="0" gdr="1"/></pci></cpu></system>')
    >>> made.cpus[0].children[0].bus_id, made.cpus[0].children[0].gpu
    ('0000:63:00.0', 0)
    """
    # Entities could make a small file huge; NCCL writes none.
    if len(text) > MOST_BYTES or "<!" in text.replace("<!--", ""):
        raise ValueError("too large, or with a document type: not a topology dump")
    start = text.find("<system")
    if start < 0:
        raise ValueError("no <system> element: not a topology dump")
    try:
        root = ElementTree.fromstring(text[start : text.rindex("</system>") + len("</system>")])
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        raise ValueError(f"not a topology dump: {error}") from error
    if sum(1 for _ in root.iter()) > MOST_ELEMENTS or _depth(root) > DEEPEST:
        raise ValueError("too many elements for a topology dump")
    index = {element: n for n, element in enumerate(root.iter())}
    return Topology(tuple(_cpu(e, index) for e in root if e.tag == "cpu"))


def _depth(element: ElementTree.Element) -> int:
    level, deepest = [element], 0
    while level and deepest <= DEEPEST:
        level, deepest = [child for e in level for child in e], deepest + 1
    return deepest


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
        (
            _whole(element, "vendor"),
            _whole(element, "device"),
            _whole(element, "subsystem_vendor"),
            _whole(element, "subsystem_device"),
        ),
        None if gpu is None else _whole(gpu, "dev", -1),
        gpu is not None and _whole(gpu, "gdr") > 0,
        0 if gpu is None else len(gpu.findall("nvlink")),
        _nets(element),
        tuple(_pci(e, index) for e in element if e.tag == "pci"),
    )


def _nets(element: ElementTree.Element) -> tuple[Net, ...]:
    return tuple(
        Net(net.get("name", ""), _whole(net, "speed"), _whole(net, "gdr") > 0, net.get("guid", ""))
        for nic in element
        if nic.tag == "nic"
        for net in nic
        if net.tag == "net"
    )


def parse_topo_matrix(text: str) -> Matrix:
    """
    The table of `nvidia-smi topo -m`, its NICs under the names its legend gives.

    >>> parse_topo_matrix("\\tGPU0\\tNIC0\\tCPU Affinity\\nGPU0\\t X \\tPXB\\t0-63\\nNIC0\\tPXB\\t X \\n"
    ...     "NIC Legend:\\n\\n  NIC0: mlx5_0\\n").distance
    {(0, 'mlx5_0'): 'PXB'}
    """
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    head = next(
        (n for n, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), -1
    )
    if head < 0:
        return Matrix()
    columns: list[str] = []
    for word in lines[head].split():
        if word in ("CPU", "NUMA", "Affinity"):
            break
        columns.append(word)
    legends = (re.match(r"^\s+(NIC\d+): (\S+)\s*$", line) for line in lines[head:])
    legend: dict[str, str] = {match[1]: match[2] for match in legends if match}
    found = {}
    for line in lines[head + 1 : head + 1 + 2 * len(columns)]:
        words = line.split()
        gpu = re.fullmatch(r"GPU(\d{1,4})", words[0]) if words else None
        if not gpu:
            continue
        for name, cell in zip(columns, words[1:], strict=False):
            if not name.startswith("GPU") and _CELL.fullmatch(cell):
                found[int(gpu[1]), legend.get(name, name)] = cell
    return Matrix(found)
