"""Which RDMA ports NCCL takes, in which order, fused how; which GID; as its source has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringup.model import Gid, RdmaPort
from ringup.nccl import rdma_devices

OLD, MIDDLE, NEW = (2, 20, 5), (2, 27, 7), (2, 30, 7)


def port(
    device: str, number: int = 1, state: str = "ACTIVE", layer: str = "InfiniBand", **more: object
) -> RdmaPort:
    return replace(RdmaPort(device, number, state, link_layer=layer, rate_gbit_s=200.0), **more)  # type: ignore[arg-type]


def taken(ports: list[RdmaPort], version: tuple[int, ...] = OLD, **env: str) -> list[str]:
    return [rdma_devices.shown(p) for p in rdma_devices.ports(ports, env, version).taken]


@pytest.mark.parametrize("state", ["DOWN", "INIT", "ARMED"])
def test_only_active_ports_are_taken(state: str) -> None:
    assert taken([port("mlx5_0", state=state), port("mlx5_1")]) == ["mlx5_1:1/IB"]


def test_roce_and_infiniband_are_both_taken_in_list_order_whatever_their_rate() -> None:
    ports = [port("mlx5_0", layer="Ethernet", rate_gbit_s=25.0), port("mlx5_1", rate_gbit_s=400.0)]
    assert taken(ports) == ["mlx5_0:1/RoCE", "mlx5_1:1/IB"]


def test_a_link_layer_of_neither_kind_is_left_to_plugins() -> None:
    made = rdma_devices.ports([port("rdmap0s6", layer="Unspecified")], {}, OLD)
    assert made.taken == () and "plugin" in made.because[0]


def test_a_device_that_cannot_be_opened_is_not_taken() -> None:
    made = rdma_devices.ports([port("mlx5_0", can_open=False), port("mlx5_1")], {}, OLD)
    assert [p.device for p in made.taken] == ["mlx5_1"] and "/dev/infiniband" in made.because[0]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("mlx5_1:2", ["mlx5_1:2"]),
        ("^mlx5_1", ["mlx5_0:1"]),
        ("^=mlx5_1", ["mlx5_0:1", "mlx5_10:1"]),
        ("==mlx5_1", []),
        ("mlx5_0, mlx5_10", ["mlx5_0:1"]),
        ("^", []),
    ],
)
def test_the_hca_filter_is_followed_to_the_letter(value: str, names: list[str]) -> None:
    ports = [port("mlx5_0"), port("mlx5_1"), port("mlx5_1", 2), port("mlx5_10")]
    assert [t.split("/")[0] for t in taken(ports, NCCL_IB_HCA=value, NCCL_IB_MERGE_NICS="0")] == names


@pytest.mark.parametrize(("version", "count"), [((2, 18, 3), 16), ((2, 18, 5), 32), (NEW, 32)])
def test_the_number_of_devices_is_bounded_as_in_each_version(version: tuple[int, ...], count: int) -> None:
    assert len(taken([port(f"mlx5_{n}") for n in range(40)], version)) == count


def test_from_2_29_7_on_devices_stand_in_order_of_their_pci_addresses() -> None:
    ports = [port("mlx5_0", bus_id="0000:a8:00.0"), port("mlx5_1", bus_id="0000:2e:00.0")]
    assert taken(ports, (2, 29, 3)) == ["mlx5_0:1/IB", "mlx5_1:1/IB"]
    assert taken(ports, (2, 29, 7)) == ["mlx5_1:1/IB", "mlx5_0:1/IB"]
    assert taken(ports, NEW, NCCL_IB_DEVICE_PCI_ORDER="0") == ["mlx5_0:1/IB", "mlx5_1:1/IB"]


def test_without_pci_addresses_the_new_order_is_doubted() -> None:
    assert "PCI address" in rdma_devices.ports([port("a"), port("b")], {}, NEW).doubts[0]
    assert rdma_devices.ports([port("a"), port("b")], {}, MIDDLE).doubts == ()


def two_of_one_card() -> list[RdmaPort]:
    return [
        port("mlx5_0", bus_id="0000:2e:00.0", guid="1070fd0300aa0001"),
        port("mlx5_1", bus_id="0000:2e:00.1", guid="1070fd0300aa0001"),
        port("mlx5_2", bus_id="0000:a8:00.0", guid="1070fd0300bb0001"),
    ]


def test_ports_of_one_card_are_fused_from_2_20_on() -> None:
    assert [d.name for d in rdma_devices.ports(two_of_one_card(), {}, (2, 19, 4)).devices] == [
        "mlx5_0:1",
        "mlx5_1:1",
        "mlx5_2:1",
    ]
    for version in (OLD, MIDDLE, NEW):
        made = rdma_devices.ports(two_of_one_card(), {}, version)
        assert [d.name for d in made.devices] == ["mlx5_0+mlx5_1", "mlx5_2:1"]
        assert made.devices[0].speed_mbit_s == 400000


@pytest.mark.parametrize(
    ("version", "env"),
    [(OLD, {"NCCL_IB_MERGE_NICS": "0"}), (MIDDLE, {"NCCL_NET_MERGE_LEVEL": "LOC"})],
)
def test_fusing_can_be_turned_off(version: tuple[int, ...], env: dict[str, str]) -> None:
    assert len(rdma_devices.ports(two_of_one_card(), env, version).devices) == 3


def test_ports_of_different_kinds_are_never_fused() -> None:
    one, other, _ = two_of_one_card()
    assert len(rdma_devices.ports([one, replace(other, link_layer="Ethernet")], {}, MIDDLE).devices) == 2


def test_the_line_shows_fused_ports_in_braces_up_to_2_23_only() -> None:
    made = rdma_devices.ports(two_of_one_card(), {}, OLD)
    assert rdma_devices.line(made, {}, OLD, "ib0:10.0.0.1") == (
        "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB [RO]; OOB ib0:10.0.0.1<0>"
    )
    assert rdma_devices.line(
        rdma_devices.ports(two_of_one_card(), {}, MIDDLE), {}, MIDDLE, "ib0:10.0.0.1"
    ) == ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]; OOB ib0:10.0.0.1<0>")


def test_without_relaxed_ordering_the_line_has_a_blank_in_its_place() -> None:
    env = {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}
    assert " [0]mlx5_0:1/IB ; OOB " in rdma_devices.line(
        rdma_devices.ports([port("mlx5_0")], env, OLD), env, OLD, "eth0:10.0.0.5"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("0", 0), ("0x1", 1), ("010", 8), ("-1", -1), ("true", 0), ("1abc", 1), (" 7", 7)],
)
def test_numbers_are_read_as_strtoll_reads_them(text: str, value: int) -> None:
    assert rdma_devices.number({"NCCL_IB_DISABLE": text}, "NCCL_IB_DISABLE", 5) == value


# GIDs.

LOCAL1, LOCAL2 = Gid(0, "fe80::1", "IB/RoCE v1"), Gid(1, "fe80::1", "RoCE v2")
V4_1, V4_2 = Gid(2, "::ffff:10.0.0.1", "IB/RoCE v1"), Gid(3, "::ffff:10.0.0.1", "RoCE v2")
VLAN = Gid(5, "::ffff:10.9.0.1", "RoCE v2")
V6 = Gid(6, "2001:db8::1", "RoCE v2")


def index(*table: Gid, version: tuple[int, ...] = MIDDLE, layer: str = "Ethernet", **env: str) -> int | None:
    return rdma_devices.gid_index(port("mlx5_0", layer=layer, gids=table), env, version).index


def test_the_first_ipv4_entry_is_taken_and_then_replaced_by_the_first_v2() -> None:
    assert index(LOCAL1, LOCAL2, V4_1, V4_2, VLAN) == 3
    assert index(LOCAL1, LOCAL2, V4_1) == 2


def test_the_address_listed_first_wins_even_if_it_is_a_vlans() -> None:
    assert index(LOCAL1, LOCAL2, replace(VLAN, index=2), replace(V4_2, index=3)) == 2


def test_a_range_keeps_other_subnets_out() -> None:
    table = (LOCAL1, LOCAL2, V4_1, V4_2, VLAN)
    assert index(*table, NCCL_IB_ADDR_RANGE="10.9.0.0/16") == 5
    assert index(*table, NCCL_IB_ADDR_RANGE="10.9.0.0") == 3
    assert index(*table, NCCL_IB_ADDR_RANGE="2001:db8::/32") == 3


def test_version_and_family_can_be_asked_for() -> None:
    table = (LOCAL1, LOCAL2, V4_1, V4_2, V6)
    assert index(*table, NCCL_IB_ROCE_VERSION_NUM="1") == 2
    assert index(*table, NCCL_IB_ADDR_FAMILY="AF_INET6") == 6


def test_without_an_ipv4_address_index_0_stays() -> None:
    assert index(LOCAL1, LOCAL2) == 0


def test_before_2_21_the_index_is_0_unless_set() -> None:
    assert index(LOCAL1, LOCAL2, V4_1, V4_2, version=OLD) == 0
    assert index(LOCAL1, LOCAL2, V4_1, V4_2, version=OLD, NCCL_IB_GID_INDEX="3") == 3


def test_on_infiniband_the_index_is_not_looked_at() -> None:
    assert index(LOCAL1, layer="InfiniBand", NCCL_IB_GID_INDEX="3") == 0


def test_a_table_that_is_not_known_gives_no_index() -> None:
    assert index(LOCAL1) is None


def test_an_index_the_port_does_not_have_is_said() -> None:
    made = rdma_devices.gid_index(
        port("m", layer="Ethernet", gids=(LOCAL1, V4_2)), {"NCCL_IB_GID_INDEX": "7"}, MIDDLE
    )
    assert made.index == 7 and "does not have" in made.because


@pytest.mark.parametrize(
    ("version", "name", "value", "is_doubted"),
    [
        (MIDDLE, "NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_2", True),
        (MIDDLE, "NCCL_NET_MERGE_LEVEL", "PIX", True),
        (MIDDLE, "NCCL_NET_MERGE_LEVEL", "PORT", False),
        (OLD, "NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_2", False),
    ],
)
def test_fusing_by_hand_is_doubted_where_the_version_reads_it(
    version: tuple[int, ...], name: str, value: str, is_doubted: bool
) -> None:
    made = rdma_devices.ports(two_of_one_card(), {name: value}, version)
    assert [d.name for d in made.devices] == ["mlx5_0+mlx5_1", "mlx5_2:1"]
    assert any(name in doubt for doubt in made.doubts) == is_doubted


def test_no_more_than_four_ports_become_one() -> None:
    cards = [port(f"mlx5_{n}", bus_id=f"0000:10:00.{n}") for n in range(6)]
    made = rdma_devices.ports(cards, {}, MIDDLE)
    assert [len(d.ports) for d in made.devices] == [4, 2]
