"""The PCI tree above a node's GPUs and network cards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PciDevice:
    """
    One PCI function as sysfs shows it: a GPU, an NVSwitch, a network card, or a bridge above one.

    None where sysfs does not tell: an older kernel, no PCI Express, a virtual machine.
    """

    bus_id: str
    """ "0000:18:00.0"."""
    above: tuple[str, ...] = ()
    """Bus ids of the bridges between it and its root complex, the root port first."""
    root: str = ""
    """The root complex, "pci0000:00"."""
    vendor: int = 0
    device: int = 0
    class_code: int = 0
    """Class and subclass: 0x0300 and 0x0302 GPU, 0x0200 Ethernet, 0x0207 InfiniBand, 0x0604 bridge, ..."""
    driver: str = ""
    numa_node: int | None = None
    link_gt_s: float | None = None
    """Rate of one lane now, GT/s."""
    max_link_gt_s: float | None = None
    link_width: int | None = None
    max_link_width: int | None = None
    iommu_group: int | None = None
    """None: no IOMMU is at work for it."""
    iommu_type: str = ""
    """ "identity", "DMA", "DMA-FQ"."""
    acs_control: int | None = None
    """Access control register of a bridge; None where it has none, or only root may see it."""
    correctable_errors: int | None = None
    """AER counts since boot."""
    nonfatal_errors: int | None = None
    fatal_errors: int | None = None
    ids: tuple[int, int] = (0, 0)
    """Subsystem vendor and device."""

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is a display or 3D controller of NVIDIA's (PCI class 0x03)."""
        return self.vendor == 0x10DE and self.class_code in (0x0300, 0x0302)

    @property
    def is_nvswitch(self) -> bool:
        """NVSwitches are bridges of class 0x0680 ("other")."""
        return self.vendor == 0x10DE and self.class_code == 0x0680

    @property
    def is_bridge(self) -> bool:
        return self.class_code == 0x0604


@dataclass(frozen=True)
class Processor:
    """The machine's processor, of which the link between sockets follows."""

    vendor: str = ""
    """ "GenuineIntel", "AuthenticAMD"; "" on other architectures."""
    family: int = 0
    model: int = 0
