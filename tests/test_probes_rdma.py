"""RDMA ports as the facts script reads them from sysfs, on trees made as the kernel makes them."""

from __future__ import annotations

from pathlib import Path

from ringup.facts import Gid, Node
from ringup.nccl import network
from ringup.nccl.network import Known
from tests.test_probes import ask, request_of

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
    assert (first.guid, first.lid) == ("1070fd030011aa01", 3)
    assert (second.device, second.netdev) == ("mlx5_10", "eth2")
    assert second.gids[1] == Gid(2, "::ffff:10.10.10.11", "RoCE v2", "eth2")


def test_a_device_whose_file_a_container_lacks_cannot_be_opened(tmp_path: Path) -> None:
    folder = device(tmp_path, "mlx5_0", "0000:21:00.0", "1070:fd03:0011:aa01")
    port(folder, 1, "4: ACTIVE", "InfiniBand", "200 Gb/sec (4X HDR)", (IB_GID, "", ""))
    (tmp_path / "sys/devices/pci0000:00/0000:21:00.0/infiniband_verbs/uverbs0").mkdir(parents=True)
    node = asked(tmp_path)
    assert not node.rdma_ports[0].can_open
    assert network.predict(Known(node, (2, 27, 7)), {}).network != "IB"
    files = tmp_path / "dev/infiniband"
    files.mkdir(parents=True)
    (files / "uverbs0").write_text("")
    assert asked(tmp_path).rdma_ports[0].can_open


def test_files_that_say_nonsense_spoil_no_other_fact(tmp_path: Path) -> None:
    folder = device(tmp_path, "mlx5_0", "0000:21:00.0", "?")
    port(folder, 1, "", "", "fast", ("not a gid", "", ""))
    node = ask(request_of(root=str(tmp_path)), parts=("rdma", "network"))
    assert node.interfaces and "rdma_ports" in node.unknown
