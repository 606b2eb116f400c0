"""Cases of the rules about GPUs, their driver and the PCI tree; see tests/rule_cases.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ringup.model import (
    Cluster,
    Gpu,
    GpuDriver,
    GpuLink,
    GpuProcess,
    Interpreter,
    KernelEvent,
    Node,
    NvLink,
    PciDevice,
    RdmaPort,
)
from tests import clusters as c
from tests.rule_cases import AND_ALSO, FIRES, QUIET

BUSES = ("0000:19:00.0", "0000:1a:00.0", "0000:99:00.0", "0000:9a:00.0")
CARDS = ("0000:1b:00.0", "0000:9b:00.0")
DRIVER = GpuDriver("590.48.01", is_open=True, peer_memory="nvidia_peermem", fabric_manager="running")
OTHER = GpuProcess(1, 4711, "python train.py", 20 << 30)


def gpu(index: int, **more: Any) -> Gpu:
    """A healthy H100."""
    values: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{index}",
        "bus_id": BUSES[index],
        "memory_bytes": 80 << 30,
        "used_bytes": 0,
        "throttle_reasons": 1,
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "is_mig": False,
        "compute_mode": "Default",
        "power_limit_w": 700.0,
        "fabric_state": "Completed",
        "fabric_status": "Success",
        "recovery_action": "None",
        "nvlinks": tuple(NvLink(k, 26.562, 0) for k in range(18)),
    }
    return Gpu(index, **{**values, **more})


def device(bus: str, *above: str, numa: int = 0, kind: int = 0x0604, **more: Any) -> PciDevice:
    values: dict[str, Any] = {
        "root": f"pci0000:{(above or (bus,))[0][5:7]}",
        "vendor": 0x10DE if kind in (0x0302, 0x0680) else 0x15B3,
        "class_code": kind,
        "numa_node": numa,
        "link_gt_s": 32.0,
        "max_link_gt_s": 32.0,
        "link_width": 16,
        "max_link_width": 16,
        "driver": "nvidia" if kind == 0x0302 else "",
        "correctable_errors": 0,
        "nonfatal_errors": 0,
        "fatal_errors": 0,
    }
    return PciDevice(bus, above, **{**values, **more})


def tree() -> tuple[PciDevice, ...]:
    """Two sockets, below each a switch with two GPUs and a card, all in one IOMMU group."""
    found: list[PciDevice] = []
    for numa, (port, up, down, first) in enumerate((("16", "17", "18", 0x19), ("96", "97", "98", 0x99))):
        root, top = f"0000:{port}:01.0", f"0000:{up}:00.0"
        found += [device(root, numa=numa), device(top, root, numa=numa)]
        for k in range(3):
            bridge = f"0000:{down}:{k:02x}.0"
            found.append(device(bridge, root, top, numa=numa))
            kind = 0x0302 if k < 2 else 0x0207
            bus = f"0000:{first + k:02x}:00.0"
            group = {"iommu_group": numa, "iommu_type": "identity"}
            found.append(device(bus, root, top, bridge, numa=numa, kind=kind, **group))
    return tuple(found)


def port(k: int, **more: Any) -> RdmaPort:
    values: dict[str, Any] = {
        "state": "ACTIVE",
        "physical_state": "LinkUp",
        "link_layer": "InfiniBand",
        "rate_gbit_s": 400.0,
        "bus_id": CARDS[k],
        "guid": f"00000000000000a{k}",
    }
    return RdmaPort(f"mlx5_{k}", 1, **{**values, **more})


def machine(k: int, **more: Any) -> Node:
    """Node k of a healthy GPU cluster without RDMA."""
    values: dict[str, Any] = {
        "gpu_count": 4,
        "gpus": tuple(gpu(i) for i in range(4)),
        "gpu_links": tuple(GpuLink(a, b, "OK", "NV18") for a in range(4) for b in range(a + 1, 4)),
        "gpu_driver": DRIVER,
        "pci": tree(),
        "uptime_s": 864000.0,
    }
    return c.plain(k, **{**values, **more})


def cluster(count: int = 2, **second: Any) -> Callable[[], Cluster]:
    """Healthy GPU machines, of which node1 has these facts."""
    return lambda: c.cluster(*(machine(k, **(second if k == 1 else {})) for k in range(count)))


def all_of(**facts: Any) -> Callable[[], Cluster]:
    """GPU machines that all have these facts."""
    return lambda: c.cluster(*(machine(k, **facts) for k in range(2)))


def gpus(which: int, **more: Any) -> dict[str, Any]:
    return {"gpus": tuple(gpu(i, **(more if i == which else {})) for i in range(4))}


def pci(bus: str, **more: Any) -> dict[str, Any]:
    return {"pci": tuple(replace(d, **more) if d.bus_id == bus else d for d in tree())}


def event(code: int, age_s: float = 60.0, bus: str = BUSES[1], **more: Any) -> dict[str, Any]:
    return {
        "kernel_events": (
            KernelEvent(**{"kind": "xid", "bus_id": bus, "code": code, "age_s": age_s, **more}),
        )
    }


PORTS = (port(0), port(1))
ALONE: dict[str, Any] = {"gpu_driver": GpuDriver(), "gpus": (), "gpu_links": (), "gpu_count": 0}

FIRES["gpu-missing"] = cluster(gpu_driver=replace(DRIVER, lost=(BUSES[2],)), **event(79, bus=BUSES[2]))
QUIET["gpu-missing"] = cluster(gpus=tuple(gpu(i) for i in range(3)))  # A scheduler gave three of four.
FIRES["gpu-held-by-other-process"] = cluster(gpu_processes=(OTHER,))
# The driver's own reserve, and a rank that is another rule's business.
QUIET["gpu-held-by-other-process"] = cluster(**gpus(0, used_bytes=600 << 20))
FIRES["gpu-throttled"] = cluster(**gpus(3, throttle_reasons=0x48, temperature_c=91.0))
QUIET["gpu-throttled"] = cluster(**gpus(3, throttle_reasons=0x4))  # At its power cap, as it should be.
FIRES["nvidia-smi-hangs"] = cluster(gpu_driver=replace(DRIVER, silent_s=6.4, is_stuck=True))
QUIET["nvidia-smi-hangs"] = cluster()
FIRES["mig-or-compute-mode"] = cluster(**gpus(0, compute_mode="Prohibited"))
QUIET["mig-or-compute-mode"] = cluster(**gpus(0, compute_mode="Exclusive_Process"))
FIRES["gpus-not-alike"] = cluster(**gpus(2, power_limit_w=350.0))
QUIET["gpus-not-alike"] = cluster(**gpus(2, power_limit_w=None))
FIRES["p2p-not-supported"] = cluster(gpu_links=(GpuLink(0, 1, "CNS", "PHB"), GpuLink(0, 2, "OK", "NV18")))
QUIET["p2p-not-supported"] = cluster(gpu_links=(GpuLink(0, 1, "", "NV18"),))

FIRES["ecc-uncorrectable"] = cluster(
    **{**gpus(1, ecc_uncorrected=2, remap_pending=True, recovery_action="Reset"), **event(48)}
)
QUIET["ecc-uncorrectable"] = cluster(**gpus(1, ecc_uncorrected=None))
FIRES["row-remap-pending"] = cluster(**gpus(1, remap_failed=True))
QUIET["row-remap-pending"] = cluster(**gpus(1, remap_pending=None))
FIRES["retired-pages-full"] = cluster(**gpus(1, retired_pages=61))
QUIET["retired-pages-full"] = cluster(**gpus(1, retired_pages=12))
FIRES["recovery-action-needed"] = cluster(**gpus(1, recovery_action="Drain and Reset"), **event(119))
QUIET["recovery-action-needed"] = cluster(**gpus(1, recovery_action=""))
FIRES["xid-in-kernel-log"] = cluster(
    **event(79, text="GPU has fallen off the bus."), **gpus(1, recovery_action="")
)
QUIET["xid-in-kernel-log"] = cluster(**event(31))  # Usually the program's own fault.
FIRES["sxid-in-kernel-log"] = cluster(
    **event(20034, bus="0000:c1:00.0", kind="sxid", text="Fatal, Link 30 LTSSM Fault Up")
)
QUIET["sxid-in-kernel-log"] = cluster()
FIRES["nvlink-inactive"] = cluster(
    **gpus(1, nvlinks=tuple(NvLink(k, 26.562 * (k > 3), 0) for k in range(18)))
)
QUIET["nvlink-inactive"] = all_of(gpus=tuple(gpu(i, nvlinks=(NvLink(0, 0.0),)) for i in range(4)))
FIRES["nvlink-errors"] = cluster(**gpus(1, nvlinks=tuple(NvLink(k, 26.562, 9) for k in range(18))))
QUIET["nvlink-errors"] = all_of(gpus=tuple(gpu(i, nvlinks=(NvLink(0, 26.562, 30),)) for i in range(4)))
FIRES["fabric-manager-not-running"] = cluster(
    **gpus(0, fabric_state="In Progress", fabric_status="N/A"),
    gpu_driver=replace(DRIVER, fabric_manager="absent"),
)
QUIET["fabric-manager-not-running"] = cluster(**gpus(0, fabric_state="", fabric_status=""))

FIRES["pcie-link-degraded"] = cluster(**pci(BUSES[1], link_width=8))
QUIET["pcie-link-degraded"] = cluster(**pci(BUSES[1], link_gt_s=2.5))  # Idle GPUs lower their links' speed.
FIRES["pcie-errors"] = cluster(**pci(BUSES[1], nonfatal_errors=3))
QUIET["pcie-errors"] = cluster(**pci(BUSES[1], correctable_errors=4000))  # In ten days.


def far() -> Cluster:
    """On node1 the card of the second switch is in the first socket's other slot."""
    moved = tuple(
        replace(d, above=("0000:40:01.0",), root="pci0000:40", numa_node=0) if d.bus_id == CARDS[1] else d
        for d in tree()
    )
    return c.cluster(machine(0, rdma_ports=PORTS), machine(1, rdma_ports=PORTS, pci=moved))


FIRES["gpu-nic-far-apart"] = far
QUIET["gpu-nic-far-apart"] = all_of(rdma_ports=PORTS[:1])  # All nodes are made that way.
CLOSED = replace(DRIVER, is_open=False, peer_memory="")
FIRES["gpudirect-module-missing"] = lambda: c.cluster(
    machine(0, rdma_ports=PORTS), machine(1, rdma_ports=PORTS, gpu_driver=CLOSED)
)
QUIET["gpudirect-module-missing"] = all_of(rdma_ports=PORTS, gpu_driver=replace(DRIVER, peer_memory=""))
OVER_PCI = {"gpu_links": (GpuLink(0, 1, "OK", "PIX"),)}
FIRES["acs-enabled"] = cluster(**pci(BUSES[1], iommu_group=77), **OVER_PCI)
QUIET["acs-enabled"] = cluster(**pci(BUSES[1], iommu_group=77), virtual_machine="QEMU Standard PC")
FIRES["iommu-translating"] = cluster(**pci(BUSES[1], iommu_type="DMA-FQ"), **OVER_PCI)
QUIET["iommu-translating"] = cluster(**pci(BUSES[1], iommu_type="DMA-FQ"), virtual_machine="QEMU Standard PC")

OLD = Interpreter("/opt/venv/bin/python", "3.11.7", "2.7.1", "12.8", "2.26.2")
FIRES["driver-too-old-for-cuda"] = all_of(interpreter=OLD, gpu_driver=replace(DRIVER, version="470.82.01"))
AND_ALSO["driver-too-old-for-cuda"] = {"driver-too-old-for-cuda"}  # On each of the two nodes.
QUIET["driver-too-old-for-cuda"] = all_of(interpreter=OLD, gpu_driver=replace(DRIVER, version="525.60.13"))
FIRES["driver-versions-differ"] = cluster(gpu_driver=replace(DRIVER, version="590.44.02"))
QUIET["driver-versions-differ"] = cluster(**ALONE, pci=())
FIRES["driver-library-mismatch"] = cluster(
    gpu_driver=replace(
        DRIVER, error="Failed to initialize NVML: Driver/library version mismatch", library="595.71"
    ),
    gpus=(),
    unknown={"gpus": "nvidia-smi: exit status 18"},
)
QUIET["driver-library-mismatch"] = cluster()
