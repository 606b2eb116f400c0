"""
Whole machines from compact descriptions: `tests/recorded/platforms/NAME/machine.json` -> a tree -> facts.

The tree holds what the kernel and the drivers show, in their formats (Documentation/ABI/stable/
sysfs-class-infiniband, testing/sysfs-bus-pci, testing/sysfs-class-net, /proc/driver/nvidia); the real parts
of the facts script read it.  `@` in a description stands for the node's number.  Interfaces come to us by
netlink, which no tree can hold: their dump is replaced, what is read from sysfs for them is not.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec

from ringup.collectors.probe_script import FIELDS
from ringup.model import Cluster, Interface, Interpreter, Node, Resolution
from tests import clusters as c
from tests.test_facts import ask, request_of

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "platforms"
PAYLOAD = HERE.parent / "src" / "ringup" / "agent"
NAMES = sorted(p.parent.name for p in RECORDED.glob("*/machine.json"))
PARTS = ("rdma", "counters", "gpu", "pci", "machine", "home")
"""Those that read nothing but the tree."""
CLASSES = {"gpu": 0x030200, "vga": 0x030000, "ib": 0x020700, "eth": 0x020000, "bridge": 0x060400}
DRIVERS = {"gpu": "nvidia", "vga": "nvidia", "bridge": "pcieport"}
GPU_HEAD = (
    "index, name, uuid, pci.bus_id, memory.total, memory.used, clocks.current.sm, clocks.max.sm, "
    "clocks_throttle_reasons.active, ecc.errors.uncorrected.volatile.total, remapped_rows.pending, "
    "remapped_rows.failure, retired_pages.single_bit_ecc.count, retired_pages.double_bit.count, "
    "retired_pages.pending, mig.mode.current, compute_mode, power.limit, temperature.gpu, "
    "pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max, vbios_version, "
    "compute_cap, fabric.state, fabric.status, gpu_recovery_action"
)


def described(name: str, number: int) -> dict[str, Any]:
    """A description, for node `number`."""
    text = (RECORDED / name / "machine.json").read_text()
    made: dict[str, Any] = json.loads(text.replace("@", str(number)))
    return made


class Tree:
    """Files and links below one folder."""

    def __init__(self, root: Path, machine: dict[str, Any]) -> None:
        self.root, self.machine = root, machine
        self.place: dict[str, str] = {}
        """PCI address -> its folder below sys/devices."""
        for folder in ("sys/class/net", "sys/bus/pci/devices"):
            (root / folder).mkdir(parents=True)
        for line in machine["pci"]:
            self.pci(line)
        for device in machine.get("rdma", []):
            self.rdma(device)
        if machine.get("rdma"):
            self.libraries()
        for interface in machine["interfaces"]:
            self.interface(interface)
        self.proc()
        if machine.get("gpus"):
            self.gpus(machine["gpus"])

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(self.root / target)

    def pci(self, line: str) -> None:
        """ "pci0000:20 20:01.1 21:00.0 | ib 15b3:101b mlx5_core 0 16.0x16": the way, and its end."""
        way, _, about = line.partition("|")
        top, *addresses = way.split()
        folder = f"sys/devices/{top}"
        kind, ids, driver, numa, link = about.split()
        for place, address in enumerate(addresses):
            bus = f"0000:{address}"
            folder += f"/{bus}"
            if bus in self.place:
                continue
            self.place[bus] = folder
            last = place == len(addresses) - 1
            what = (kind, ids, driver) if last else ("bridge", "1022:1483", "pcieport")
            self.function(folder, bus, *what, numa=numa, link=link)

    def function(
        self, folder: str, bus: str, kind: str, ids: str, driver: str, *, numa: str, link: str
    ) -> None:
        vendor, device = ids.split(":")
        rate, lanes = link.split("x")
        values = {
            "class": f"0x{CLASSES[kind]:06x}",
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "subsystem_vendor": f"0x{vendor}",
            "subsystem_device": "0x0000",
            "numa_node": numa,
            "current_link_speed": f"{rate} GT/s PCIe",
            "max_link_speed": f"{rate} GT/s PCIe",
            "current_link_width": lanes,
            "max_link_width": lanes,
        }
        for name, value in values.items():
            self.write(f"{folder}/{name}", f"{value}\n")
        self.link(f"sys/bus/pci/devices/{bus}", folder)
        self.write(f"sys/bus/pci/drivers/{driver}/bind", "")
        self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/drivers/{driver}/{bus}", folder)
        self.write(f"sys/module/{driver}/refcnt", "1\n")

    def rdma(self, device: dict[str, Any]) -> None:
        """A device with its ports, as /sys/class/infiniband has it."""
        name, folder = device["name"], f"sys/class/infiniband/{device['name']}"
        self.link(f"{folder}/device", self.place[f"0000:{device['on']}"])
        number = len(list((self.root / "sys/class/infiniband_verbs").glob("uverbs*")))
        self.write(f"{self.place['0000:' + device['on']]}/infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
        self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
        self.write(f"dev/infiniband/uverbs{number}", "")
        self.write(f"{folder}/node_type", device.get("node_type", "1: CA") + "\n")
        for key in ("sys_image_guid", "fw_ver", "hca_type", "board_id"):
            if key in device:
                self.write(f"{folder}/{key}", f"{device[key]}\n")
        for number, port in enumerate(device["ports"], start=1):
            here = f"{folder}/ports/{number}"
            for key in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid"):
                self.write(f"{here}/{key}", f"{port[key]}\n")
            if port["link_layer"] == "InfiniBand":
                self.write(f"{here}/pkeys/0", "0xffff\n")
                self.write(f"{here}/pkeys/1", "0x0000\n")
            for index, (gid, kind, netdev) in enumerate(port["gids"]):
                self.write(f"{here}/gids/{index}", f"{gid}\n")
                if kind:
                    self.write(f"{here}/gid_attrs/types/{index}", f"{kind}\n")
                    self.write(f"{here}/gid_attrs/ndevs/{index}", f"{netdev}\n")

    def libraries(self) -> None:
        """libibverbs with the drivers of these devices, and the kernel's side of it."""
        folder = "usr/lib/x86_64-linux-gnu"
        self.write(f"{folder}/libibverbs.so.1", "")
        for driver in ("mlx5", "efa"):
            self.write(f"{folder}/libibverbs/lib{driver}-rdmav34.so", "")
        for module in ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib"):
            self.write(f"sys/module/{module}/refcnt", "1\n")

    def interface(self, about: dict[str, Any]) -> None:
        folder = f"sys/class/net/{about['name']}"
        self.write(f"{folder}/ifindex", f"{about['index']}\n")
        self.write(f"{folder}/speed", f"{about.get('speed', -1)}\n")
        self.write(f"{folder}/duplex", "full\n" if "speed" in about else "unknown\n")
        for low in about.get("lower", []):
            self.link(f"{folder}/lower_{low}", f"sys/class/net/{low}")
        if "on" in about:
            device = self.place[f"0000:{about['on']}"]
            self.link(f"{folder}/device", device)
            self.write(f"{device}/net/{about['name']}/dev_port", f"{about.get('port', 0)}\n")
            self.write(f"{device}/net/{about['name']}/dev_id", "0x0\n")

    def proc(self) -> None:
        about = "".join(f"{name}\t: {value}\n" for name, value in self.machine["cpuinfo"].items())
        files = {
            "proc/cpuinfo": f"processor\t: 0\n{about}\n",
            "proc/cmdline": self.machine.get("cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro") + "\n",
            "proc/uptime": "864000.00 100.00\n",
            "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
            "proc/vmstat": "oom_kill 0\npswpin 0\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
            "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-1.scope\n",
            "proc/sys/kernel/numa_balancing": "0\n",
            "proc/sys/kernel/yama/ptrace_scope": "0\n",
            "proc/sys/kernel/dmesg_restrict": "0\n",
            "proc/2/comm": "kthreadd\n",
            "dev/kmsg": "6,1,1000,-;Linux version 6.8.0\n",
            "sys/devices/system/node/node0/cpulist": "0-63\n",
            "sys/class/dmi/id/sys_vendor": self.machine["product"].split("|")[0] + "\n",
            "sys/class/dmi/id/product_name": self.machine["product"].split("|")[1] + "\n",
        }
        for name, text in {**files, **self.machine.get("files", {})}.items():
            self.write(name, text)

    def gpus(self, about: dict[str, Any]) -> None:
        """The driver's files, and a nvidia-smi that plays the answers written here."""
        kinds = {bus: (self.root / folder / "class").read_text()[:6] for bus, folder in self.place.items()}
        buses = sorted(bus for bus, kind in kinds.items() if kind in ("0x0302", "0x0300"))
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX {about.get('module', 'Open Kernel Module')} for x86_64  "
            f"{about['driver']}  Release Build  (dvs-builder@x)\nGCC version:  gcc version 11.4.0\n",
        )
        self.write("sys/module/nvidia/version", f"{about['driver']}\n")
        self.write("dev/nvidiactl", "")
        rows = [GPU_HEAD]
        for index, bus in enumerate(buses):
            minor = f"Model: \t\t {about['name']}\nBus Location: \t {bus}\nDevice Minor: \t {index}\n"
            self.write(f"proc/driver/nvidia/gpus/{bus}/information", minor)
            self.write(f"dev/nvidia{index}", "")
            uuid = f"GPU-0a0b0c0d-1111-2222-3333-{index:012d}"
            rows.append(
                f"{index}, {about['name']}, {uuid}, 0000{bus.upper()}, {about['memory_mib']}, 0, 345, "
                f"{about['clock']}, 0x0000000000000001, {about['ecc']}, {about['remapped']}, "
                f"{about['remapped']}, [N/A], [N/A], [N/A], {about['mig']}, Default, {about['power']}, 38, "
                f"{about['gen']}, {about['gen']}, 16, 16, 96.00.A5.00.01, {about['cc']}, "
                f"{about.get('fabric', '[N/A], [N/A]')}, None"
            )
        names = [f"GPU{n}" for n in range(len(buses))]
        peers = [[" X " if a == b else about["peer"] for b in names] for a in names]
        paths = [[" X " if a == b else about["path"] for b in names] for a in names]
        self.write("smi/gpus.csv", "\n".join(rows) + "\n")
        self.write("smi/p2p.txt", table(names, peers))
        self.write("smi/matrix.txt", table(names, paths))
        self.write("bin/nvidia-smi", "")
        player = shlex.quote(str(HERE / "bin" / "nvidia-smi"))
        words = (
            f"RINGUP_RECORDED={shlex.quote(str(self.root / 'smi'))} exec {shlex.quote(sys.executable)} -ES"
        )
        self.write("bin/nvidia-smi", f'#!/bin/sh\n{words} {player} "$@"\n')
        (self.root / "bin/nvidia-smi").chmod(0o755)


def table(names: list[str], cells: list[list[str]]) -> str:
    """As `nvidia-smi topo` prints it."""
    rows = ["\t" + "\t".join(names)]
    rows += ["\t".join([name, *row]) for name, row in zip(names, cells, strict=True)]
    return "\n".join(rows) + "\n"


def interfaces(tree: Tree) -> tuple[Interface, ...]:
    """What the facts script makes of a netlink dump and of the tree's sysfs."""
    part: dict[str, Any] = {"__name__": "ringup_network"}
    exec(compile((PAYLOAD / "facts" / "network.py").read_text(), "network", "exec"), part)
    found = {}
    for about in tree.machine["interfaces"]:
        master = next((i["index"] for i in tree.machine["interfaces"] if i["name"] == about.get("master")), 0)
        addresses = [
            {"address": a.address, "prefix_length": a.prefix_length, "family": a.family, "scope": a.scope}
            for a in map(c.address, about.get("addresses", []))
        ]
        found[about["index"]] = {
            "name": about["name"],
            "index": about["index"],
            "is_up": about.get("up", True),
            "has_carrier": about.get("carrier", about.get("up", True)),
            "mtu_bytes": about.get("mtu", 1500),
            "master": master,
            "arp_type": about.get("type", 1),
            "info": about.get("info", ""),
            "addresses": addresses,
        }
    part["links"], part["add_addresses"] = (lambda: found), (lambda links: None)
    return msgspec.convert(part["interfaces"](str(tree.root)), tuple[Interface, ...])


def node(name: str, number: int, root: Path) -> Node:
    """Node `number` of a platform: what the real parts of the facts script tell of its tree."""
    tree = Tree(root, described(name, number))
    machine = tree.machine
    env = {"PATH": f"{root}/bin:{os.environ['PATH']}", "HOME": str(root / "home")}
    told = ask(request_of(root=str(root)), parts=PARTS, env=env)
    own = ("cache", "shm", "tmp", "shm_files")
    known = {f: getattr(told, f) for part in PARTS for f in FIELDS[part] if f not in own}
    made = c.node(f"node{number}")
    known["counters"] = tuple(replace(counted, at_s=0.0) for counted in told.counters)
    verbs = told.verbs
    library = verbs.library.removeprefix(str(root))
    known["verbs"] = replace(verbs, library=library, bound=tuple(sorted(verbs.bound)))
    first = interfaces(tree)
    own = next(i for i in first if i.name == machine["own"]).usable_addresses[0].address
    return replace(
        made,
        **known,
        unknown={k: v for k, v in told.unknown.items() if k in known},
        interfaces=first,
        own_name=Resolution(made.name, (own,)),
        kernel=machine.get("kernel", "6.8.0-45-generic"),
        gpu_count=len(told.gpus),
        interpreter=Interpreter("/opt/venv/bin/python", "3.11.7", *machine["torch"]),
    )


def cluster(name: str, folder: Path) -> Cluster:
    """Two nodes of a platform, every pair of which reaches each other."""
    nodes = [node(name, k, folder / str(k)) for k in range(2)]
    names = tuple(n.own_name for n in nodes)
    return c.cluster(*(replace(n, peer_names=tuple(r for r in names if r.name != n.name)) for n in nodes))


def told(one: Node) -> dict[str, Any]:
    """A node's facts that say anything, as plain data."""
    empty = Node("")
    kept = {f.name: getattr(one, f.name) for f in fields(one)}
    plain: dict[str, Any] = msgspec.to_builtins(
        {k: v for k, v in kept.items() if v != getattr(empty, k) and k not in ("peer_names", "host")},
        str_keys=True,
    )
    return {k: bare(v) for k, v in plain.items()}


def bare(value: Any) -> Any:
    """Without what is empty."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if v not in (None, "", 0, 0.0, False, (), [], {})}
    if isinstance(value, list | tuple):
        return [bare(v) for v in value]
    return "unlimited" if value == float("inf") else value
