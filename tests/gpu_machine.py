"""
A machine with four H100s and two network cards, as files: what the kernel shows and what nvidia-smi says.

    socket 0   16:01.0 - switch 17:00.0 - 18:00.0 GPU 19:00.0, 18:01.0 GPU 1a:00.0, 18:02.0 card 2e:00.0
    socket 1   96:01.0 - switch 97:00.0 - 98:00.0 GPU 99:00.0, 98:01.0 GPU 9a:00.0, 98:02.0 card a8:00.0

The tree follows Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats, and what the
driver itself writes below /proc/driver/nvidia.  Links are absolute, so it may be read where it stands.
"""

from __future__ import annotations

import csv
import io
import shlex
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "nvidia"
DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build  (dvs-builder@x)\n"
)
GCC = "GCC version:  gcc version 11.4.0\n"
GPUS = ("0000:19:00.0", "0000:1a:00.0", "0000:99:00.0", "0000:9a:00.0")
CARDS = ("0000:2e:00.0", "0000:a8:00.0")
"""Those of tests/rdma_tree.py, so that a machine can have both."""
GEN5, GEN4 = "32.0 GT/s PCIe", "16.0 GT/s PCIe"


class GpuMachine:
    """All below one folder; healthy until something is changed."""

    def __init__(self, root: Path, says: str = "h100-sxm") -> None:
        """`says` is a folder of tests/recorded/nvidia: what nvidia-smi answers."""
        self.root = root
        self.smi = root / "smi"
        shutil.copytree(RECORDED / says, self.smi)
        self._driver()
        for number, (socket, switch, first) in enumerate((("16", "17", "19"), ("96", "97", "99"))):
            self._socket(number, socket, switch, int(first, 16))
        self.write(
            "proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu\n\n"
        )
        self.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro\n")
        self.write("proc/uptime", "864000.00 100.00\n")
        self.write("proc/bus/pci/devices", "00c8\t10de2330\t0\n")
        self.write("proc/sys/kernel/dmesg_restrict", "0\n")
        self.write("dev/kmsg", "6,1,1000,-;Linux version 6.8.0\n")
        for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"):
            self.write(f"dev/{name}", "")
        self.write("sys/module/nvidia/version", "590.48.01\n")
        self.write("sys/module/nvidia_peermem/version", "590.48.01\n")
        (root / "bin").mkdir()
        tool = root / "bin" / "nvidia-smi"
        player = shlex.quote(str(HERE / "bin" / "nvidia-smi"))
        words = (
            f"RINGUP_RECORDED={shlex.quote(str(self.smi))} exec {shlex.quote(sys.executable)} -ES {player}"
        )
        tool.write_text(f'#!/bin/sh\n{words} "$@"\n')
        tool.chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        """A file of the tree."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _driver(self) -> None:
        self.write("proc/driver/nvidia/version", DRIVER + GCC)
        for minor, bus in enumerate(GPUS):
            about = f"Model: \t\t NVIDIA H100 80GB HBM3\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            self.write(f"proc/driver/nvidia/gpus/{bus}/information", about)

    def _socket(self, number: int, socket: str, switch: str, first: int) -> None:
        root = f"pci0000:{socket}"
        down = f"{int(switch, 16) + 1:02x}"
        port, up = f"0000:{socket}:01.0", f"0000:{switch}:00.0"
        self._function((root, port), 0x060400, 0x8086, "pcieport", number, "")
        self._function((root, port, up), 0x060400, 0x1000, "pcieport", number, "")
        for k in range(3):
            bridge, bus = f"0000:{down}:{k:02x}.0", f"0000:{first + k:02x}:00.0" if k < 2 else CARDS[number]
            self._function((root, port, up, bridge), 0x060400, 0x1000, "pcieport", number, "")
            kind = (0x030200, 0x10DE, "nvidia") if k < 2 else (0x020700, 0x15B3, "mlx5_core")
            self._function((root, port, up, bridge, bus), kind[0], kind[1], kind[2], number, str(10 * number))

    def _function(
        self, way: tuple[str, ...], kind: int, vendor: int, driver: str, numa: int, group: str
    ) -> None:
        folder = f"sys/devices/{'/'.join(way)}"
        values = {
            "class": f"0x{kind:06x}",
            "vendor": f"0x{vendor:04x}",
            "device": "0x2330",
            "subsystem_vendor": "0x0000",
            "subsystem_device": "0x0000",
            "numa_node": str(numa),
            "current_link_speed": GEN5,
            "max_link_speed": GEN5,
            "current_link_width": "16",
            "max_link_width": "16",
            "aer_dev_correctable": "RxErr 0\nBadTLP 0\nTOTAL_ERR_COR 0",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
            "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
        }
        for name, value in values.items():
            self.write(f"{folder}/{name}", f"{value}\n")
        listed = self.root / "sys/bus/pci/devices"
        listed.mkdir(parents=True, exist_ok=True)
        (listed / way[-1]).symlink_to(self.root / folder)
        drivers = self.root / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (self.root / folder / "driver").symlink_to(drivers)
        if group:
            self.set_group(way[-1], int(group), "identity")

    def move_card(self, number: int, root: str, port: str, numa: int) -> None:
        """A network card sits below another root port."""
        (self.root / "sys/bus/pci/devices" / CARDS[number]).unlink()
        self._function((root, port, CARDS[number]), 0x020700, 0x15B3, "mlx5_core", numa, "99")

    def function(self, bus: str) -> Path:
        """The folder of a PCI function."""
        return (self.root / "sys/bus/pci/devices" / bus).resolve()

    def set_pci(self, bus: str, **values: str) -> None:
        """Files of a PCI function."""
        for name, value in values.items():
            (self.function(bus) / name).write_text(f"{value}\n")

    def set_group(self, bus: str, group: int, kind: str) -> None:
        """Its IOMMU group, and that group's type."""
        folder = self.root / f"sys/kernel/iommu_groups/{group}"
        self.write(f"sys/kernel/iommu_groups/{group}/type", f"{kind}\n")
        link = self.function(bus) / "iommu_group"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)

    def set_gpu(self, index: int, **values: str) -> None:
        """Values nvidia-smi tells of a GPU; `__` in a name is a dot."""
        path = self.smi / "gpus.csv"
        head, *lines = path.read_text().splitlines()
        rows = list(csv.DictReader(lines, skipinitialspace=True))
        rows[index].update({name.replace("__", "."): value for name, value in values.items()})
        out = io.StringIO()
        table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        path.write_text(f"{head}\n{out.getvalue()}")

    def forget_gpu(self, index: int) -> None:
        """nvidia-smi lists it no more."""
        path = self.smi / "gpus.csv"
        lines = path.read_text().splitlines(keepends=True)
        del lines[2 + index]
        path.write_text("".join(lines))

    def says(self, name: str, text: str) -> None:
        """Another answer of nvidia-smi (tests/bin/nvidia-smi names the files)."""
        (self.smi / name).write_text(text)

    def kernel_says(self, *lines: str, age_s: float = 60.0) -> None:
        """Lines of the kernel's log, that long ago."""
        at = int((864000.0 - age_s) * 1e6)
        self.write("dev/kmsg", "".join(f"4,{n},{at + n},-;{line}\n" for n, line in enumerate(lines)))
