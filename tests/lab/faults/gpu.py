"""GPUs that are not there: the kernel's files and nvidia-smi's answers, bound over a host's own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.gpu_machine import CARDS, GEN4, GPUS, GpuMachine

from ..cluster import Lab
from .base import environment, fault

PLACES = (
    "sys/bus", "sys/module", "proc/driver", "proc/bus/pci/devices", "proc/cpuinfo", "proc/cmdline",
    "dev/kmsg",
)  # fmt: skip
"""What is bound over a host's own; /proc/uptime stays, processes are dated by it."""


def missing() -> str:
    """Which of them this machine has not got, as some containers; nothing can be bound there."""
    return ", ".join(f"/{place}" for place in PLACES if not Path("/", place).exists())


machines: dict[tuple[int, str], GpuMachine] = {}
"""A lab's process and a host of it -> its files, while it plays a GPU machine."""


@contextlib.contextmanager
def _machine(lab: Lab, host: str) -> Iterator[None]:
    # /var/tmp is the disk that all hosts share; the rest of /tmp and /run is their own.
    place = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="ringup-gpu-"))
    made = GpuMachine(place / "m")
    own = lab.host(host)
    lab.sh(host, "; ".join(f"mount --bind {made.root}/{p} /{p}" for p in PLACES))
    try:
        with environment(lab, host, PATH=f"{made.root}/bin:{own.path}"):
            machines[lab.pid, own.name] = made
            yield
    finally:
        machines.pop((lab.pid, own.name), None)
        lab.sh(host, "; ".join(f"umount -l /{p}" for p in reversed(PLACES)))
        shutil.rmtree(place)


def _contents(root: Path) -> dict[Path, bytes | Path]:
    """Every file's text and every link's target."""
    found: dict[Path, bytes | Path] = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            found[path] = path.readlink()
        elif path.is_file():
            found[path] = path.read_bytes()
    return found


@contextlib.contextmanager
def _kept(root: Path) -> Iterator[None]:
    """The files are what they were again afterwards; in place, for some are bound elsewhere."""
    before = _contents(root)
    try:
        yield
    finally:
        for path, now in _contents(root).items():
            was = before.get(path)
            if was == now:
                continue
            if was is None or isinstance(was, Path):
                path.unlink()
            if isinstance(was, Path):
                path.symlink_to(was)
            elif was is not None:
                path.write_bytes(was)
        for path, was in before.items():
            if isinstance(was, bytes) and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(was)


XID = "NVRM: Xid (PCI:{}): {}, pid='<unknown>', name=<unknown>, {}"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
MISMATCH = "18 Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.71\n"
LOST = "Unable to determine the device handle for GPU2: 0000:99:00.0: Unknown Error\n"
UUID = "GPU-0a0b0c0d-1111-2222-3333-000000000001"


def _lost(m: GpuMachine) -> None:
    m.forget_gpu(2)
    m.says("warns", LOST)
    m.kernel_says(XID.format("0000:99:00", 79, "GPU has fallen off the bus."))


def _few_links(m: GpuMachine) -> None:
    text = (m.smi / "nvlink.txt").read_text()
    head, gpu1, rest = text.partition("GPU 1:")
    m.says("nvlink.txt", head + gpu1 + rest.replace("26.562 GB/s", "<inactive>", 4))


def _link_errors(m: GpuMachine) -> None:
    text = (m.smi / "nvlink-errors.txt").read_text()
    head, gpu1, rest = text.partition("GPU 1:")
    m.says("nvlink-errors.txt", head + gpu1 + rest.replace("CRC Errors: 0", "CRC Errors: 41", 1))


def _old_driver(m: GpuMachine) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\n"
    m.write("proc/driver/nvidia/version", line)


def _without_nvlink(m: GpuMachine) -> None:
    m.says("matrix.txt", (m.smi / "matrix.txt").read_text().replace("NV18", "PIX"))


def _acs(m: GpuMachine) -> None:
    _without_nvlink(m)
    m.set_group(GPUS[1], 77, "identity")


def _iommu(m: GpuMachine) -> None:
    _without_nvlink(m)
    for k, bus in enumerate(GPUS):
        m.set_group(bus, 10 * (k // 2), "DMA-FQ")


def _closed_driver(m: GpuMachine) -> None:
    text = (m.root / "proc/driver/nvidia/version").read_text()
    m.write(
        "proc/driver/nvidia/version", text.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
    )
    shutil.rmtree(m.root / "sys/module/nvidia_peermem")


CHANGES: dict[str, Callable[[GpuMachine], object]] = {
    "lost": _lost,
    "no-driver": lambda m: shutil.rmtree(m.root / "proc/driver/nvidia"),
    "held": lambda m: m.says("apps.csv", f"{UUID}, 4711, 20480, /opt/conda/bin/python\n"),
    "hot": lambda m: m.set_gpu(
        3, clocks_throttle_reasons__active="0x0000000000000048", temperature__gpu="92"
    ),
    "hangs": lambda m: m.says("hangs", ""),
    "ecc": lambda m: m.set_gpu(1, ecc__errors__uncorrected__volatile__total="3", gpu_recovery_action="Reset"),
    "remap": lambda m: m.set_gpu(1, remapped_rows__failure="Yes"),
    "retired": lambda m: m.set_gpu(1, retired_pages__double_bit__count="61", retired_pages__pending="No"),
    "reset": lambda m: m.set_gpu(1, gpu_recovery_action="Reset", clocks__current__sm="[GPU requires reset]"),
    "xid": lambda m: m.kernel_says(
        XID.format("0000:1a:00", 119, "Timeout after 6s of waiting for RPC response")
    ),
    "sxid": lambda m: m.kernel_says(SXID),
    "nvlinks": _few_links,
    "nvlink-errors": _link_errors,
    "fabric": lambda m: m.set_gpu(0, fabric__state="In Progress", fabric__status="N/A"),
    "peers": lambda m: m.says("p2p.txt", (m.smi / "p2p.txt").read_text().replace("OK", "CNS", 1)),
    "narrow": lambda m: m.set_pci(GPUS[1], current_link_width="8"),
    "slow-card": lambda m: m.set_pci(CARDS[0], current_link_speed=GEN4),
    "bus-errors": lambda m: m.set_pci(GPUS[1], aer_dev_nonfatal="DLP 2\nUnsupReq 1\nTOTAL_ERR_NONFATAL 3"),
    "acs": _acs,
    "iommu": _iommu,
    "prohibited": lambda m: m.set_gpu(2, compute_mode="Prohibited"),
    "mig": lambda m: m.set_gpu(2, mig__mode__current="Enabled"),
    "less-power": lambda m: m.set_gpu(2, power__limit="350.00"),
    "library": lambda m: m.says("fails", MISMATCH),
    "old-driver": _old_driver,
}
"""What can be wrong with a GPU machine."""

WITH_CARDS: dict[str, Callable[[GpuMachine], object]] = {
    "no-gpudirect": _closed_driver,
    "far-card": lambda m: m.move_card(1, "pci0000:40", "0000:40:01.0", 0),
}
"""What can be wrong with one that has RDMA devices too (the fault `rdma`)."""


@contextlib.contextmanager
def spoilt(lab: Lab, host: str, what: str) -> Iterator[None]:
    """One of CHANGES or WITH_CARDS on a host that plays a GPU machine."""
    made = machines[lab.pid, host]
    with _kept(made.root):
        {**CHANGES, **WITH_CARDS}[what](made)
        yield


@fault("gpu-machines")
def gpu_machines(lab: Lab, what: str = "", host: str = "node1") -> Iterator[None]:
    """Files and nvidia-smi show four GPUs on every host; `what` (lost, hot) is wrong on one."""
    with contextlib.ExitStack() as stack:
        for each in lab.hosts:
            stack.enter_context(_machine(lab, each.name))
        if what:
            stack.enter_context(spoilt(lab, host, what))
        yield
