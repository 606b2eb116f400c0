"""A node's GPUs, what holds them, how they are linked, and their driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU; rate 0 is a link that is not active."""

    number: int
    gbyte_s: float
    errors: int | None = None
    """Replay, recovery and CRC errors together since the driver was loaded; None where not told."""


@dataclass(frozen=True)
class Gpu:
    """
    One GPU, as its vendor's tool lists it.

    None (or "") where the tool did not tell: the driver is too old for the question, or the GPU does
    not have such a thing ("[N/A]").
    """

    index: int
    """The tool's number, in PCI order; not CUDA's where GPUs differ."""
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    """As sysfs writes it, "0000:18:00.0"."""
    is_visible: bool = True
    """Whether CUDA_VISIBLE_DEVICES leaves it to the job."""
    vendor: Literal["nvidia", "amd"] = "nvidia"
    memory_bytes: int = 0
    used_bytes: int | None = None
    compute_capability: str = ""
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttle_reasons: int | None = None
    """Bits of nvmlClocksEventReasons (nvml.h)."""
    ecc_uncorrected: int | None = None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    retirement_pending: bool | None = None
    is_mig: bool | None = None
    compute_mode: str = ""
    """ "Default", "Exclusive_Process", "Prohibited"."""
    power_limit_w: float | None = None
    temperature_c: float | None = None
    link_generation: int | None = None
    max_link_generation: int | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    vbios: str = ""
    fabric_state: str = ""
    """ "Completed", "In Progress", "Not Started"; "" for a GPU that joins no NVLink fabric."""
    fabric_status: str = ""
    recovery_action: str = ""
    """What the driver wants done with it: "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"."""
    trouble: str = ""
    """What stood in place of values: "GPU requires reset", "GPU is lost", "Unknown Error"."""
    nvlinks: tuple[NvLink, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU, as the driver sees it; in a container that may be none at all."""

    gpu: int
    """Index of the GPU."""
    pid: int
    name: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True)
class GpuLink:
    """What lies between two GPUs, `first` < `second` by index."""

    first: int
    second: int
    peer: str = ""
    """Whether one may read the other's memory: "OK", or why not ("CNS", "GNS", "TNS", "NS", "DR", "U")."""
    path: str = ""
    """ "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", in nvidia-smi's words."""


@dataclass(frozen=True)
class GpuDriver:
    """The GPU driver of a node; `version` is "" where none is loaded."""

    version: str = ""
    """Of the loaded kernel module."""
    is_open: bool = False
    """Whether it is NVIDIA's open kernel module, which offers DMA-BUF."""
    library: str = ""
    """Version of the user's library, where it says that it differs."""
    error: str = ""
    """nvidia-smi's own words where it failed."""
    lost: tuple[str, ...] = ()
    """PCI addresses of GPUs the driver drives and cannot speak to."""
    peer_memory: str = ""
    """The module by which RDMA devices reach GPU memory, "" for none: "nvidia_peermem", "nv_peer_mem"."""
    fabric_manager: Literal["running", "absent", "hidden"] = "hidden"
    """Hidden: this is not the machine's own process list (a container)."""
    silent_s: float = 0.0
    """Seconds nvidia-smi was waited for in vain; 0 when it answered."""
    is_stuck: bool = False
    """nvidia-smi hung inside the kernel, where no signal reaches it."""
    refused: tuple[str, ...] = ()
    """Fields this driver's nvidia-smi does not know."""


@dataclass(frozen=True)
class KernelEvent:
    """The last of `count` equal Xid (of a GPU) or SXid (of an NVSwitch) messages in the kernel log."""

    kind: Literal["xid", "sxid"]
    bus_id: str
    code: int
    text: str = ""
    age_s: float = 0.0
    count: int = 1
