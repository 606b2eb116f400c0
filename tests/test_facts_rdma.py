"""RDMA ports as the facts script reads them from sysfs, on trees made as the kernel makes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ringup.agent.facts import rdma
from ringup.model import Gid, Node, Verbs, risen
from ringup.nccl import selection
from ringup.nccl.selection import Known
from tests.rdma_tree import tree
from tests.test_facts import ask, request_of

IB_GID = "fe80:0000:0000:0000:1070:fd03:0011:aa01"
UNSET = "0000:0000:0000:0000:0000:0000:0000:0000"


def device(root: Path, name: str, bus: str, guid: str) -> Path:
    """A device with the link to its PCI function, as in /sys/class/infiniband."""
    function = root / "sys/devices/pci0000:00" / bus
    function.mkdir(parents=True)
    folder = root / "sys/class/infiniband" / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(function)
    (folder / "sys_image_guid").write_text(f"{guid}\n")
    return folder


def port(folder: Path, number: int, state: str, layer: str, rate: str, *gids: tuple[str, str, str]) -> None:
    here = folder / "ports" / str(number)
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (here / name).mkdir(parents=True)
    values = {"state": state, "phys_state": "5: LinkUp", "link_layer": layer, "rate": rate, "lid": "0x3"}
    for name, value in values.items():
        (here / name).write_text(f"{value}\n")
    for index, (gid, kind, netdev) in enumerate(gids):
        (here / "gids" / str(index)).write_text(f"{gid}\n")
        if kind:
            (here / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
        if netdev:
            (here / "gid_attrs/ndevs" / str(index)).write_text(f"{netdev}\n")


def asked(root: Path) -> Node:
    return ask(request_of(root=str(root)), parts=("rdma",))


def test_a_node_without_rdma_has_none_and_says_no_more(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    node = asked(tmp_path)
    assert node.rdma_ports == () and "rdma_ports" not in node.unknown


def test_without_sysfs_the_ports_are_unknown(tmp_path: Path) -> None:
    assert "/sys is not mounted" in asked(tmp_path).unknown["rdma_ports"]


def test_an_infiniband_and_a_roce_port_are_read_in_the_kernels_order(tmp_path: Path) -> None:
    roce = device(tmp_path, "mlx5_10", "0000:42:00.0", "0a00:2700:0010:1001")
    v4 = "0000:0000:0000:0000:0000:ffff:0a0a:0a0b"
    port(
        roce, 1, "4: ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)",
        ("fe80:0000:0000:0000:0a00:27ff:fe10:1001", "IB/RoCE v1", "eth2"),
        (UNSET, "", ""),
        (v4, "RoCE v2", "eth2"),
    )  # fmt: skip
    fast = device(tmp_path, "mlx5_2", "0000:21:00.0", "1070:fd03:0011:aa01")
    port(fast, 1, "4: ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)", (IB_GID, "IB/RoCE v1", ""))
    interface = tmp_path / "sys/devices/pci0000:00/0000:21:00.0/net/ib0"
    interface.mkdir(parents=True)
    (interface / "dev_port").write_text("0\n")
    (interface / "dev_id").write_text("0x0\n")

    first, second = asked(tmp_path).rdma_ports
    assert (first.device, first.state, first.link_layer) == ("mlx5_2", "ACTIVE", "InfiniBand")
    assert (first.rate_gbit_s, first.netdev, first.bus_id) == (200.0, "ib0", "0000:21:00.0")
    assert first.guid == "1070fd030011aa01"
    assert (second.device, second.netdev) == ("mlx5_10", "eth2")
    assert second.gids[1] == Gid(2, "::ffff:10.10.10.11", "RoCE v2", "eth2")


def test_a_device_whose_file_a_container_lacks_cannot_be_opened(tmp_path: Path) -> None:
    folder = device(tmp_path, "mlx5_0", "0000:21:00.0", "1070:fd03:0011:aa01")
    port(folder, 1, "4: ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)", (IB_GID, "", ""))
    (tmp_path / "sys/devices/pci0000:00/0000:21:00.0/infiniband_verbs/uverbs0").mkdir(parents=True)
    node = asked(tmp_path)
    assert not node.rdma_ports[0].can_open
    assert selection.predict(Known(node, (2, 27, 7)), {}).network != "IB"
    files = tmp_path / "dev/infiniband"
    files.mkdir(parents=True)
    (files / "uverbs0").write_text("")
    assert asked(tmp_path).rdma_ports[0].can_open


def test_files_that_say_nonsense_spoil_no_other_fact(tmp_path: Path) -> None:
    folder = device(tmp_path, "mlx5_0", "0000:21:00.0", "?")
    port(folder, 1, "", "", "fast", ("not a gid", "", ""))
    node = ask(request_of(root=str(tmp_path)), parts=("rdma", "network"))
    assert node.interfaces and "rdma_ports" in node.unknown


# Trees as a kernel shows them, whole.


def tree_of(root: Path, kind: str, **changes: str) -> Node:
    """The node with such devices; of port 1 of the first one (`mlx5_0`) some files say something else."""
    made = tree(kind, {"eth2": "10.2.0.10", "eth3": "10.3.0.10"})
    made.changed({f"mlx5_0/{path.replace('__', '/')}": text for path, text in changes.items()}).write(root)
    return ask(request_of(root=str(root)), parts=("rdma", "counters"))


def test_an_infiniband_port_tells_its_manager_lanes_partitions_and_board(tmp_path: Path) -> None:
    port = tree_of(tmp_path, "ib", ports__1__pkeys__1="0x7fff").rdma_ports[0]
    assert (port.sm_lid, port.width, port.pkeys) == (6, 4, (0xFFFF, 0x7FFF))
    assert (port.driver, port.firmware, port.hca_type) == ("mlx5_core", "20.31.1014", "MT4123")
    assert (port.board_id, port.traffic_class) == ("MT_0000000222", None)


def test_a_key_in_the_middle_of_the_table_that_is_empty_keeps_its_place(tmp_path: Path) -> None:
    port = tree_of(tmp_path, "ib", ports__1__pkeys__2="0x8001").rdma_ports[0]
    assert port.pkeys == (0xFFFF, 0, 0x8001)


@pytest.mark.parametrize(
    ("text", "value"), [("Global tclass=106", 106), ("106", 106), ("0", 0), ("-1", None), ("tclass=-1", None)]
)
def test_a_traffic_class_is_read_in_every_form_of_the_driver(
    tmp_path: Path, text: str, value: int | None
) -> None:
    node = tree_of(tmp_path, "roce", tc__1__traffic_class=text)
    assert [p.traffic_class for p in node.rdma_ports] == [value, None]


def test_roce_has_no_partitions_and_efa_no_link_layer(tmp_path: Path) -> None:
    assert {p.pkeys for p in tree_of(tmp_path / "a", "roce").rdma_ports} == {()}
    ports = tree_of(tmp_path / "b", "efa").rdma_ports
    assert [(p.driver, p.link_layer) for p in ports] == [("efa", "Unspecified")] * 2


def test_what_a_port_s_interface_trusts_is_read_where_the_driver_tells(tmp_path: Path) -> None:
    qos = tmp_path / "sys/class/net/eth2/qos"
    qos.mkdir(parents=True)
    (qos / "trust").write_text("dscp\n")
    assert [p.trust for p in tree_of(tmp_path, "roce").rdma_ports] == ["dscp", ""]


def test_a_node_without_adapter_is_not_asked_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    assert asked(tmp_path).verbs == Verbs()


def test_the_library_with_its_drivers_and_the_kernel_modules_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    (folder / "libibverbs").mkdir(parents=True)
    (folder / "libibverbs.so.1").write_text("")
    (folder / "libibverbs/libmlx5-rdmav34.so").write_text("")
    for module in ("mlx5_ib", "ib_uverbs"):
        (tmp_path / "sys/module" / module).mkdir(parents=True)
    (tmp_path / "sys/bus/pci/drivers/mlx5_core/0000:2e:00.0").mkdir(parents=True)
    found = tree_of(tmp_path, "ib").verbs
    assert found.library == f"{folder}/libibverbs.so.1" and not found.error and found.has_char_devices
    assert (found.providers, found.bound) == (("mlx5",), ("0000:2e:00.0",))
    assert set(found.modules) == {"mlx5_ib", "ib_uverbs"}


def test_a_library_that_is_not_there_is_told_with_the_loader_s_words(tmp_path: Path) -> None:
    found = tree_of(tmp_path, "ib").verbs
    assert (found.library, found.error) == ("", "libibverbs.so.1: cannot open shared object file")


def test_counters_above_zero_are_totals_and_what_grows_has_risen(tmp_path: Path) -> None:
    before = tree_of(tmp_path, "ib", ports__1__counters__symbol_error="7").counters
    assert {c.of: dict(c.totals) for c in before if c.of.startswith("rdma:")} == {
        "rdma:mlx5_0:1": {"symbol_error": 7},
        "rdma:mlx5_1:1": {},
    }
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error").write_text("19\n")
    after = ask(request_of(root=str(tmp_path)), parts=("counters",)).counters
    rises = {r.of: dict(r.by) for r in risen(before, after)}
    assert rises["rdma:mlx5_0:1"] == {"symbol_error": 12} and rises["rdma:mlx5_1:1"] == {}


def test_an_interface_s_errors_and_dropped_connections_are_counted(tmp_path: Path) -> None:
    statistics = tmp_path / "sys/class/net/eth2/statistics"
    statistics.mkdir(parents=True)
    (statistics / "rx_crc_errors").write_text("3\n")
    (statistics / "rx_dropped").write_text("900\n")
    (statistics.parent / "carrier_changes").write_text("2\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    head, row = "TcpExt: SyncookiesSent ListenOverflows ListenDrops", "TcpExt: 0 5 5"
    (tmp_path / "proc/net/netstat").write_text(f"{head}\n{row}\nIpExt: InOctets\nIpExt: 1\n")
    found = {c.of: dict(c.totals) for c in ask(request_of(root=str(tmp_path)), parts=("counters",)).counters}
    assert found["interface:eth2"] == {"rx_crc_errors": 3, "carrier_changes": 2}
    assert found["tcp"] == {"ListenOverflows": 5}


def test_of_hundreds_of_interfaces_the_cards_are_counted(tmp_path: Path) -> None:
    for name in (*(f"gw{k}" for k in range(300)), "veth1", "zen0"):
        (tmp_path / "sys/class/net" / name / "statistics").mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "statistics/rx_errors").write_text("1\n")
    (tmp_path / "sys/class/net/zen0/device").mkdir()
    found = ask(request_of(root=str(tmp_path)), parts=("counters",)).counters
    names = [c.of for c in found if c.of.startswith("interface:")]
    assert names[0] == "interface:zen0" and len(names) == 64 and "interface:veth1" not in names


@pytest.mark.parametrize("kind", ["ib", "roce", "efa"])
@pytest.mark.parametrize("text", ["", "\x1b[2J\x00", "9" * 5000, "0x" + "f" * 500, "-1", "²", "é" * 4000])
def test_whatever_a_driver_writes_into_its_files_the_node_answers(
    tmp_path: Path, kind: str, text: str
) -> None:
    made = tree(kind, {"eth2": "10.2.0.10", "eth3": "10.3.0.10"})
    made.files = dict.fromkeys(made.files, text)
    made.write(tmp_path)
    node = ask(request_of(root=str(tmp_path)), parts=("rdma", "counters"))
    assert len(node.rdma_ports) == 2 or "rdma_ports" in node.unknown
    assert node.verbs.has_char_devices
    assert all("\x1b" not in p.firmware and len(p.firmware) <= 4096 for p in node.rdma_ports)


def test_a_counter_of_all_ones_counts_nothing_and_spoils_no_other(tmp_path: Path) -> None:
    node = tree_of(tmp_path, "ib", ports__1__counters__symbol_error=str(2**64 - 1))
    assert {c.of: dict(c.totals) for c in node.counters if c.of.startswith("rdma")} == {
        "rdma:mlx5_0:1": {},
        "rdma:mlx5_1:1": {},
    }


# Flow control, as the kernel answers RTM_GETDCB: made by the layout of linux/dcbnl.h, never recorded.


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


@pytest.mark.parametrize(
    ("apps", "dscp"),
    [((), False), ((b"\x01\x03\x06\x89",), False), ((b"\x01\0\0\0", b"\x05\x03\x1a\0"), True)],
)
def test_an_answer_about_flow_control_tells_priorities_and_whether_dscp_counts(
    apps: tuple[bytes, ...], dscp: bool
) -> None:
    pfc = attribute(2, bytes([8, 0b1000, 0, 0]) + bytes(128))
    table = attribute(3, b"".join(attribute(1, app) for app in apps))
    body = attribute(1, b"eth2\0") + attribute(13 | 0x8000, attribute(1, bytes(59)) + pfc + table)
    assert rdma.dcb_settings(bytes(4) + body) == (8, dscp)


@pytest.mark.parametrize(
    "answer", [b"", bytes(4), bytes(4) + b"\xff" * 9, bytes(4) + attribute(13, b"\x01\0")]
)
def test_an_answer_that_is_cut_or_nonsense_tells_nothing(answer: bytes) -> None:
    assert rdma.dcb_settings(answer) == (None, False)


def test_an_interface_without_flow_control_tells_nothing() -> None:
    assert rdma.dcb("lo") == (None, False) and rdma.dcb("no-such-card") == (None, False)
