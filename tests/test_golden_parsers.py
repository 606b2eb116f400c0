"""What the parsers make of many slightly damaged outputs of tools."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup import units
from ringup.model import Gpu
from ringup.parse import (
    frames,
    gpus,
    interfaces,
    nccl,
    pasted,
    rdma_output,
    topology,
)
from tests.golden_files import compare, part_of
from tests.variations import difference, texts

RECORDED = Path(__file__).parent / "recorded"
CHANGES = 40
Parse = Callable[[str], Any]
GPUS = [Gpu(n, uuid=f"GPU-{n}", bus_id=f"0000:{n + 1}a:00.0", name=f"G{n // 3}") for n in range(4)]


def rows(text: str) -> tuple[Gpu, ...]:
    """nvidia-smi's CSV below the names of its fields."""
    names, _, body = text.partition("\n")
    return gpus.parse_gpus(body.split("\n"), [name.strip() for name in names.split(",")])


def addresses(text: str) -> dict[str, Any]:
    return dict(zip(("found", "in_kernel_order"), interfaces.parse_addresses(text), strict=True))


def paste(text: str) -> list[Any]:
    tools = [
        *rdma_output.IN_LIBRARY_ORDER,
        rdma_output.parse_rdma,
        rdma_output.parse_ibdev2netdev,
        rdma_output.parse_show_gids,
    ]
    return [[tool(text) for tool in tools], pasted.parse_pasted(text)]


PASTED: dict[str, str] = {
    "ibv_devinfo": "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t20.31.1014\n"
    "\tnode_guid:\t\t\t506b:4b03:00c2:5e1a\n\tsys_image_guid:\t\t\t506b:4b03:00c2:5e1a\n\tphys_port_cnt:\t\t\t2\n"
    "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n"
    "\t\t\tsm_lid:\t\t\t1\n\t\t\tport_lid:\t\t7\n\t\t\tlink_layer:\t\tInfiniBand\n"
    "\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:506b:4b03:00c2:5e1a\n"
    "\t\tport:\t2\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tlink_layer:\t\tEthernet\n"
    "\t\t\tGID[  3]:\t\t::ffff:10.0.0.4, RoCE v2",
    "rdma link": "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 7 sm_lid 1 lmc 0 state ACTIVE "
    "physical_state LINK_UP netdev ib0\nlink mlx5_1/1 state DOWN physical_state DISABLED netdev ens1np0\n"
    "1/1: mlx4_0/1: state ACTIVE physical_state LINK_UP",
    "show_gids": "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n---\t----\t-----\t---\n"
    "mlx5_0\t1\t0\tfe80:0000:0000:0000:526b:4bff:fec2:5e1a\t\t\tv1\tens1\n"
    "mlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:0a00:0004\t10.0.0.4  \tv2\tens1\nn_gids_found=2",
    "ibdev2netdev": "0000:2e:00.0 mlx5_1 (MT4123 - MCX653105A-HDAT) ConnectX-6 VPI fw 20.31.1014 "
    "port 1 (ACTIVE) ==> ib0 (Up)\nmlx5_2 port 1 ==> ens1np0 (Down)",
    "ifconfig": "eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9000\n"
    "        inet 10.0.0.4  netmask 255.255.255.0  broadcast 10.0.0.255\n"
    "        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>\n        ether 52:54:00:12:34:56\n\n"
    "docker0: flags=4099<UP,BROADCAST,MULTICAST>  mtu 1500\n        inet 172.17.0.1  netmask 0xffff0000",
    "ip brief": "lo               UNKNOWN        127.0.0.1/8 ::1/128 \n"
    "eth0             UP             10.0.0.4/24 fe80::1/64 \nib0@if3 DOWN 10.1.0.4/16",
}
SMALL: dict[str, tuple[Parse, str]] = {
    "uuids": (gpus.gpu_uuids, (RECORDED / "nvidia" / "mig.txt").read_text()),
    "processes": (
        lambda t: gpus.parse_processes(t.split("\n"), GPUS),
        "GPU-0, 4711, 2566, python train.py\nGPU-1, 12, [N/A], a, b\nGPU-9, 1, 1, x",
    ),
    "kernel": (
        lambda t: gpus.parse_kernel_events(t.split("\n"), 100.0),
        "4,99,60000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        "[   50.250000] NVRM: Xid (PCI:0000:3b:00): 79, pid=5, again\n"
        "3,7,1000000,-;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 44\n6,1,1,-;other",
    ),
    "nccl.conf": (
        lambda t: [
            nccl.parse_nccl_conf(t.split("\n")),
            [
                nccl.of_release(
                    [("/etc/nccl.conf", t.split("\n")), ("~/.nccl.conf", ["NCCL_NET=IB"])], (2, n)
                )
                for n in (4, 22, 28)
            ],
        ],
        "NCCL_DEBUG=WARN\n#NCCL_IB_HCA=x\nNCCL_NET = Socket # no\nNCCL_X\n =y\nNCCL_DEBUG=INFO",
    ),
    "nccl answer": (
        lambda t: nccl.parse_nccl_answer(t.split("\n"), {"A": "1", "B": ""}),
        "ringup-nccl library /l/libnccl.so.2\nringup-nccl version 22005\nringup-nccl plugin x\n"
        "n1:7:7 [0] NCCL INFO Bootstrap : Using ib0:fe80::1%ib0<0>\n"
        "n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0\n"
        "n1:7:7 [0] init.cc:1 NCCL WARN something failed\nringup-nccl result 0",
    ),
    "frames": (
        lambda t: frames.split_frames(t.encode(), "t"),
        "noise\n\x1et begin\nmore\n\x1et facts\n{}\n\x1et end\nafter",
    ),
    "gid": (
        lambda t: [rdma_output.gid_of(x) for x in t.split("\n")],
        "fe80::1\n0000:0000:0000:0000:0000:ffff:0a00:0004\n::",
    ),
    "state": (
        lambda t: [rdma_output.state_of(x) for x in t.split("\n")],
        "4: ACTIVE\nPORT_DOWN (1)\nInit\nx",
    ),
    "names": (lambda t: [units.natural(x) for x in t.split("\n")], "mlx5_10\nmlx5_2\nx\n1a2"),
}


def told(parse: Parse, text: str) -> list[str]:
    """Every fact that says anything, one a line; the kind of a refusal."""
    try:
        made = parse(text)
    except Exception as error:
        return [type(error).__name__]
    return [*flat(made, "")]


def flat(value: Any, name: str) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from flat(one, f"{name}.{key}")
    elif (
        isinstance(value, list | tuple)
        and value
        and any(isinstance(one, dict | list | tuple) or dataclasses.is_dataclass(one) for one in value)
    ):
        for number, one in enumerate(value):
            yield from flat(one, f"{name}.{number}")
    elif value or value is False:
        yield f"{name} {value!r}"


def changed(parse: Parse, text: str, seed: str, most: int = CHANGES) -> Iterator[str]:
    usual = told(parse, text)
    yield from (f"    {number}: {line}" for number, line in enumerate(usual))
    for done, other in (*texts(text, most, seed), ("nothing", ""), ("cut short", text[: len(text) * 2 // 3])):
        lines = told(parse, other)
        if lines != usual:
            yield f"  {done}"
            yield from difference(usual, lines)


def without_head(path: Path) -> str:
    text = path.read_text()
    return text.partition("\n")[2] if text.startswith("# from") else text


def test_damaged_output_of_ip_is_read_as_before() -> None:
    def answers() -> Iterator[str]:
        for path in sorted(RECORDED.glob("ip/*.txt")):
            yield path.stem
            yield from changed(addresses, without_head(path), path.stem)

    compare("parse-ip.txt", answers())


@pytest.mark.parametrize("part", range(3))
def test_damaged_pasted_output_is_read_as_before(part: int) -> None:
    files = {path.stem: path.read_text() for path in sorted(RECORDED.glob("predict/*.txt"))}

    def answers() -> Iterator[str]:
        pasted = {**files, **PASTED}
        for name in part_of(pasted, part, 3):
            text = pasted[name]
            yield name
            yield from changed(paste, text, name)

    compare(f"parse-pasted-{part}.txt", answers())


def test_two_pastes_of_one_node_are_put_together_as_before() -> None:
    def answers() -> Iterator[str]:
        for (one, text), (other, more) in zip(
            PASTED.items(), [*PASTED.items()][3:] + [*PASTED.items()][:3], strict=True
        ):
            yield f"{one} and {other}"
            yield from told(
                lambda t, more=more: pasted.together(pasted.parse_pasted(t), pasted.parse_pasted(more)), text
            )

    compare("parse-together.txt", answers())


def test_a_damaged_topology_is_read_as_before() -> None:
    def answers() -> Iterator[str]:
        yield from changed(
            topology.parse_topology, (RECORDED / "predict" / "hdr-topology.xml").read_text(), "xml", 80
        )
        for path in sorted(RECORDED.glob("nvidia/*/matrix.txt")):
            yield path.parent.name
            yield from changed(topology.parse_topo_matrix, without_head(path), path.parent.name)

    compare("parse-topology.txt", answers())


def test_damaged_output_of_nvidia_smi_is_read_as_before() -> None:
    def answers() -> Iterator[str]:
        for folder in sorted(path for path in RECORDED.glob("nvidia/*") if path.is_dir()):

            def text(name: str, folder: Path = folder) -> str:
                path = folder / name
                return without_head(path) if path.exists() else ""

            yield folder.name
            yield from changed(rows, text("gpus.csv"), folder.name, 60)
            links = text("nvlink-errors.txt").split("\n")
            yield from changed(
                lambda t, links=links: gpus.parse_nvlinks(t.split("\n"), links),
                text("nvlink.txt"),
                folder.name,
            )
            status = text("nvlink.txt").split("\n")
            yield from changed(
                lambda t, status=status: gpus.parse_nvlinks(status, t.split("\n")),
                text("nvlink-errors.txt"),
                folder.name,
            )
            matrix = text("matrix.txt").split("\n")
            yield from changed(
                lambda t, matrix=matrix: gpus.parse_links(t.split("\n"), matrix), text("p2p.txt"), folder.name
            )

    compare("parse-nvidia.txt", answers())


@pytest.mark.parametrize("name", SMALL)
def test_damaged_output_of_a_small_tool_is_read_as_before(name: str) -> None:
    parse, text = SMALL[name]
    compare(f"parse-{re.sub('[. ]', '-', name)}.txt", changed(parse, text, name, 80))


def test_visible_devices_are_counted_as_before() -> None:
    values = (
        None,
        "",
        "0",
        "3,1",
        "0,4,1",
        "-1,0",
        "NoDevFiles",
        "1,1",
        "0, 1",
        "GPU-1",
        "GPU-",
        "MIG-x",
        "GPU-1,GPU-3",
        "x",
    )

    def answers() -> Iterator[str]:
        for value in values:
            for order in (None, "PCI_BUS_ID"):
                for known in (GPUS, GPUS[:3]):
                    seen = [g.is_visible for g in gpus.shown_to(known, value, order)]
                    yield f"{value} {order} {gpus.visible_count(len(known), value)} {seen}"
        yield from (
            f"{text} {gpus.bus_id(text)}"
            for text in ("00000000:1A:00.0", "1a:00", "0000:1a:00", "", "x", "1a:00.3")
        )
        yield from (f"{n} {frames.number(n)}" for n in ("", "0", "9" * 11, "9" * 12, "-1", "1.0", "²"))
        yield from (
            f"{n} {nccl.version_text(n)}" for n in (2304, 2708, 2804, 9999, 10000, 20304, 22005, 22809, 0)
        )

    compare("parse-visible.txt", answers())
