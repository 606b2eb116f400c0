"""NCCL's choice of network, against sixteen real runs (2 nodes, one A800 each, NCCL 2.20.5)."""

from __future__ import annotations

import pytest

from ringup.facts import Interface
from ringup.nccl import choice
from ringup.nccl.devices import Port, devices, integer, network
from tests import clusters as c

VERSION = (2, 20, 5)
PORTS = (
    Port("mlx5_0", 1, "ACTIVE", "Ethernet", "/sys/devices/pci0000:59/0000:59:00.0"),
    Port("mlx5_1", 1, "ACTIVE", "InfiniBand", "/sys/devices/pci0000:60/0000:61:00.0"),
    Port("mlx5_2", 1, "DOWN", "Ethernet", "/sys/devices/pci0000:a0/0000:a1:00.0"),
    Port("mlx5_3", 1, "ACTIVE", "InfiniBand", "/sys/devices/pci0000:b0/0000:b1:00.0"),
)
INTERFACES: tuple[Interface, ...] = c.numbered(
    c.interface("ens21f0", "10.1.1.25/24"),
    c.interface("ens13np0", "10.10.10.110/24"),
    c.interface("ens17np0", up=False),
    c.interface("ib0", "fe80::966d:ae03:fc:e52c/64", kind="infiniband"),
    c.interface("ib1", "20.20.20.25/24", kind="infiniband"),
)
OOB = "[RO]; OOB ib1:20.20.20.25<0>"
SOCKETS = "NET/Socket : Using [0]ib1:20.20.20.25<0> [1]ib0:fe80::966d:ae03:fc:e52c%ib0<0>"


@pytest.mark.parametrize(
    ("hca", "line"),
    [
        ("", f"NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [2]mlx5_3:1/IB {OOB}"),
        ("mlx5_0", f"NET/IB : Using [0]mlx5_0:1/RoCE {OOB}"),
        ("mlx5_1", f"NET/IB : Using [0]mlx5_1:1/IB {OOB}"),
        ("mlx5_3", f"NET/IB : Using [0]mlx5_3:1/IB {OOB}"),
        ("mlx5_2", SOCKETS),
        ("ib0", SOCKETS),
        ("ib1", SOCKETS),
        ("ens13np0", SOCKETS),
        ("ens17np0", SOCKETS),
        ("ens21f0", SOCKETS),
    ],
)
def test_the_ten_real_runs_with_ib_allowed_print_the_predicted_line(hca: str, line: str) -> None:
    environment = {"NCCL_IB_DISABLE": "0"} | ({"NCCL_IB_HCA": hca} if hca else {})
    found = network(PORTS, INTERFACES, environment, VERSION)
    assert found.line == line
    first = choice.interfaces(INTERFACES, environment, VERSION, 1)[0]
    assert choice.bootstrap_line(first, VERSION) == "Bootstrap : Using ib1:20.20.20.25<0>"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("", SOCKETS),
        ("ib0", "NET/Socket : Using [0]ib0:fe80::966d:ae03:fc:e52c%ib0<0>"),
        ("ib1", "NET/Socket : Using [0]ib1:20.20.20.25<0>"),
        ("ens13np0", "NET/Socket : Using [0]ens13np0:10.10.10.110<0>"),
        ("ens21f0", "NET/Socket : Using [0]ens21f0:10.1.1.25<0>"),
        ("ens17np0", ""),
    ],
)
def test_the_six_real_runs_without_ib_print_the_predicted_line(name: str, line: str) -> None:
    environment = {"NCCL_IB_DISABLE": "1"} | ({"NCCL_SOCKET_IFNAME": name} if name else {})
    found = network(PORTS, INTERFACES, environment, VERSION)
    assert found.line == line
    assert found.name == ("Socket" if line else "")
    assert "NCCL_IB_DISABLE=1" in found.because


def test_the_fall_back_says_why() -> None:
    found = network(PORTS, INTERFACES, {"NCCL_IB_HCA": "ib0"}, VERSION)
    assert found.because == ("NCCL_IB_HCA=ib0 matches none of mlx5_0, mlx5_1, mlx5_3",)
    assert network((), INTERFACES, {}, VERSION).because == ("no RDMA device",)
    assert network(PORTS[2:3], INTERFACES, {}, VERSION).because == ("no RDMA port is ACTIVE",)


def test_a_forced_network_that_is_not_there_leaves_none() -> None:
    assert network((), INTERFACES, {"NCCL_NET": "IB"}, VERSION).name == ""
    assert network(PORTS, INTERFACES, {"NCCL_NET": "socket"}, VERSION).name == "Socket"
    assert network(PORTS, INTERFACES, {"NCCL_NET": "AWS Libfabric"}, VERSION).name == ""


def test_ib_needs_an_ip_interface_to_meet_on() -> None:
    found = network(PORTS, (), {}, VERSION)
    assert (found.name, found.because[0]) == ("", "no IP interface for the out-of-band connections")


def test_devices_are_sorted_by_pci_path_from_2_29_on() -> None:
    turned = tuple(reversed(PORTS))
    assert [p.device for p in devices(turned, {}, VERSION)] == ["mlx5_3", "mlx5_1", "mlx5_0"]
    assert [p.device for p in devices(turned, {}, (2, 30, 7))] == ["mlx5_0", "mlx5_1", "mlx5_3"]
    unsorted = {"NCCL_IB_DEVICE_PCI_ORDER": "0"}
    assert [p.device for p in devices(turned, unsorted, (2, 30, 7))] == ["mlx5_3", "mlx5_1", "mlx5_0"]


@pytest.mark.parametrize(("version", "count"), [((2, 18, 3), 16), ((2, 18, 5), 32)])
def test_no_more_devices_are_taken_than_nccl_has_room_for(version: tuple[int, ...], count: int) -> None:
    many = tuple(Port(f"mlx5_{k}", 1, "ACTIVE", "InfiniBand") for k in range(40))
    assert len(devices(many, {}, version)) == count


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("0x10", 16), ("010", 8), ("-1", -1), ("on", 0), ("", 0), ("09", 0)]
)
def test_numbers_are_read_as_strtoll_does(text: str, value: int) -> None:
    assert integer(text, 0) == value
