"""A node's GPUs, the processes that use them, their links and driver, and the PCI tree above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU; rate 0 for an inactive link."""

    number: int
    gbyte_s: float
    errors: int | None = None
    """Sum of replay, recovery and CRC errors since the driver was loaded; None if unknown."""


@dataclass(frozen=True)
class Gpu:
    """One GPU from its vendor's tool; None (or "") for "[N/A]", and if the driver is too old."""

    index: int
    """The tool's number, in PCI order; CUDA's number differs if the GPUs differ."""
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    """In the format of sysfs, "0000:18:00.0"."""
    is_visible: bool = True
    """Whether CUDA_VISIBLE_DEVICES lets the job use it."""
    memory_bytes: int = 0
    used_bytes: int | None = None
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
    link_width: int | None = None
    max_link_width: int | None = None
    fabric_state: str = ""
    """"Completed", "In Progress", "Not Started"; "" for a GPU without an NVLink fabric."""
    fabric_status: str = ""
    recovery_action: str = ""
    """The action that the driver requests: "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"."""
    trouble: str = ""
    """Text in place of values: "GPU requires reset", "GPU is lost", "Unknown Error"."""
    nvlinks: tuple[NvLink, ...] = ()


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU, as the driver sees it; a container may see none."""

    gpu: int
    """Index of the GPU."""
    pid: int
    name: str = ""
    used_bytes: int | None = None


@dataclass(frozen=True)
class GpuLink:
    """The path between two GPUs, `first` < `second` by index."""

    first: int
    second: int
    peer: str = ""
    """Whether one may read the other's memory: "OK", or the reason ("CNS", "GNS", "TNS", "NS", "DR", "U")."""
    path: str = ""
    """"NV18", "PIX", "PXB", "PHB", "NODE", "SYS", as in nvidia-smi."""


@dataclass(frozen=True)
class GpuDriver:
    """The GPU driver of a node; `version` is "" if none is loaded."""

    version: str = ""
    """Of the loaded kernel module."""
    is_open: bool = False
    """Whether it is NVIDIA's open kernel module, which offers DMA-BUF."""
    library: str = ""
    """Version of the user-space library, if the driver reports that it differs."""
    error: str = ""
    """nvidia-smi's error text after a failure."""
    lost: tuple[str, ...] = ()
    """PCI addresses of GPUs that the driver has bound but cannot reach."""
    peer_memory: str = ""
    """The module by which RDMA devices reach GPU memory, "" for none: "nvidia_peermem", "nv_peer_mem"."""
    fabric_manager: Literal["running", "absent", "hidden"] = "hidden"
    """"hidden": this process list is not the machine's own (a container)."""
    silent_s: float = 0.0
    """Seconds of waiting for nvidia-smi without an answer; 0 if it answered."""
    is_stuck: bool = False
    """nvidia-smi hung inside the kernel, where no signal reaches it."""
    refused: tuple[str, ...] = ()
    """Fields that this driver's nvidia-smi does not know."""


@dataclass(frozen=True)
class KernelEvent:
    """The last of `count` equal Xid (GPU) or SXid (NVSwitch) messages in the kernel log."""

    kind: Literal["xid", "sxid"]
    bus_id: str
    code: int
    text: str = ""
    age_s: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class PciDevice:
    """A GPU, NVSwitch, NIC or bridge in sysfs; None for missing values (old kernel, virtual machine)."""

    bus_id: str
    """ "0000:18:00.0"."""
    above: tuple[str, ...] = ()
    """Bus ids of the bridges up to its root complex, the root port first."""
    root: str = ""
    """The root complex, "pci0000:00"."""
    vendor: int = 0
    device: int = 0
    class_code: int = 0
    """Class and subclass: 0x0300 and 0x0302 GPU, 0x0200 Ethernet, 0x0207 InfiniBand, 0x0604 bridge, ..."""
    driver: str = ""
    numa_node: int | None = None
    link_gt_s: float | None = None
    """Current rate of one lane, GT/s."""
    max_link_gt_s: float | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    iommu_group: int | None = None
    """None: no IOMMU handles it."""
    iommu_type: str = ""
    """ "identity", "DMA", "DMA-FQ"."""
    acs_control: int | None = None
    """Access control register of a bridge; None if it has none, or only root may read it."""
    correctable_errors: int | None = None
    """AER counts since boot."""
    nonfatal_errors: int | None = None
    fatal_errors: int | None = None
    ids: tuple[int, int] = (0, 0)
    """Subsystem vendor and device."""

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is a display or 3D controller of NVIDIA (PCI class 0x03)."""
        return self.vendor == 0x10DE and self.class_code in (0x0300, 0x0302)

    @property
    def is_own_gpu(self) -> bool:
        """An NVIDIA GPU that is not passed through to a virtual machine."""
        return self.is_nvidia_gpu and self.driver != "vfio-pci"

    @property
    def is_nvswitch(self) -> bool:
        """NVSwitches are bridges of class 0x0680 ("other")."""
        return self.vendor == 0x10DE and self.class_code == 0x0680

    @property
    def is_bridge(self) -> bool:
        return self.class_code == 0x0604


@dataclass(frozen=True)
class Processor:
    """The machine's CPU, which determines the link between sockets."""

    vendor: str = ""
    """ "GenuineIntel", "AuthenticAMD"; "" on other architectures."""
    family: int = 0
    model: int = 0
