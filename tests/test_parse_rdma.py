"""Pasted output of RDMA, address and topology tools, in any mix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup.parse import interfaces, pasted, rdma_output, topology

RECORDED = Path(__file__).parent / "recorded" / "predict"


def text(name: str) -> str:
    return (RECORDED / name).read_text()


def test_the_three_tools_complete_each_other() -> None:
    for port in pasted.parse_pasted(text("hdr-node.txt")).rdma_ports:
        assert port.state and port.link_layer and port.rate_gbit_s and port.netdev


def test_each_tool_alone_knows_the_state_of_every_port() -> None:
    states = ["ACTIVE", "ACTIVE", "DOWN", "ACTIVE"]
    whole = text("hdr-node.txt")
    assert [p.state for p in rdma_output.parse_ibstatus(whole)] == states
    assert [p.state for p in rdma_output.parse_rdma_link(whole)] == states
    # The third is an Ethernet port; an IPoIB interface that is down would say nothing of its port.
    assert [p.state for p in rdma_output.parse_ibdev2netdev(whole)] == states


def test_ibstat_shows_eight_hcas_and_a_bond() -> None:
    found = rdma_output.parse_ibstat(text("eight-hcas.txt"))
    assert [p.device for p in found] == [*(f"mlx5_{n}" for n in range(8)), "mlx5_bond_0"]
    assert {p.rate_gbit_s for p in found} == {200.0, 50.0} and all(p.state == "ACTIVE" for p in found)


def test_a_device_with_two_ports_gives_both() -> None:
    whole = "CA 'mlx4_0'\n\tNumber of ports: 2\n\tPort 1:\n\t\tState: Down\n\tPort 2:\n\t\tState: Active\n"
    assert [(p.name, p.state) for p in rdma_output.parse_rdma(whole)] == [
        ("mlx4_0:1", "DOWN"),
        ("mlx4_0:2", "ACTIVE"),
    ]


def test_ibdev2netdev_with_details_gives_the_pci_address() -> None:
    line = "0000:2e:00.0 mlx5_1 (MT4123 - MCX653105A-HDAT) ConnectX-6 VPI fw 20.31.1014 "
    line += "port 1 (ACTIVE) ==> ib0 (Up)"
    found = rdma_output.parse_ibdev2netdev(line)[0]
    assert (found.device, found.bus_id, found.state, found.netdev) == (
        "mlx5_1",
        "0000:2e:00.0",
        "ACTIVE",
        "ib0",
    )


def test_rdma_link_of_an_older_iproute2_is_read() -> None:
    line = "1/1: mlx5_0/1: state ACTIVE physical_state LINK_UP netdev eth2 netdev_index 4 \n"
    assert rdma_output.parse_rdma_link(line)[0].netdev == "eth2"


def test_devices_listed_by_name_are_put_in_the_kernels_order() -> None:
    whole = "".join(f"CA 'mlx5_{n}'\n" for n in (0, 1, 10, 11, 2))
    assert [p.device for p in rdma_output.parse_rdma(whole)] == [
        "mlx5_0",
        "mlx5_1",
        "mlx5_2",
        "mlx5_10",
        "mlx5_11",
    ]


def test_the_library_s_own_order_is_kept() -> None:
    whole = "CA 'mlx5_0'\nCA 'mlx5_1'\nlink mlx5_1/1 state ACTIVE physical_state LINK_UP netdev eth1\n"
    whole += "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0\n"
    assert [p.device for p in rdma_output.parse_rdma(whole)] == ["mlx5_1", "mlx5_0"]


def test_gids_of_show_gids_join_the_port_of_ibv_devinfo() -> None:
    found = rdma_output.parse_rdma(text("roce.txt"))
    assert [len(p.gids) for p in found] == [4, 6]
    assert found[1].gids[3].kind == "RoCE v2" and found[1].gids[3].netdev == "eth3.200"
    assert found[0].guid == "0a0027fffe505005"


ONE_WAY = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.5", "fe80::5"]}


@pytest.mark.parametrize(
    "shown",
    [
        "lo   UNKNOWN  127.0.0.1/8 \neth0@if7  UP  10.0.0.5/24 fe80::5/64 \n",
        "1: lo    inet 127.0.0.1/8 scope host lo\n2: eth0    inet 10.0.0.5/24 scope global eth0\n"
        "2: eth0    inet6 fe80::5/64 scope link \n",
        "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536\n    inet 127.0.0.1/8 scope host lo\n"
        "2: eth0@if7: <UP,LOWER_UP> mtu 1500 state UP\n    inet 10.0.0.5/24 scope global eth0\n"
        "    inet6 fe80::5/64 scope link \nepoch 1\n    inet 10.99.0.1/24 scope global eth9\n",
        "lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536\n        inet 127.0.0.1  netmask 255.0.0.0\n\n"
        "eth0: flags=4163<UP,RUNNING>  mtu 1500\n        inet 10.0.0.5  netmask 255.255.255.0\n"
        "        inet6 fe80::5  prefixlen 64  scopeid 0x20<link>\n",
        "lo        Link encap:Local Loopback  \n          inet addr:127.0.0.1  Mask:255.0.0.0\n"
        "          UP LOOPBACK RUNNING  MTU:65536  Metric:1\n\n"
        "eth0      Link encap:Ethernet  HWaddr 0a:00:27:00:00:05  \n"
        "          inet addr:10.0.0.5  Bcast:10.0.0.255  Mask:255.255.255.0\n"
        "          inet6 addr: fe80::5/64 Scope:Link\n"
        "          UP BROADCAST RUNNING MULTICAST  MTU:1500  Metric:1\n",
    ],
    ids=["ip-brief", "ip-oneline", "ip-addr", "ifconfig", "ifconfig-old"],
)
def test_every_way_of_showing_addresses_tells_the_same(shown: str) -> None:
    found = pasted.parse_pasted("some log line\n" + shown).interfaces
    assert {i.name: [a.address for a in i.addresses] for i in found} == ONE_WAY
    assert all(a.prefix_length in (8, 24, 64) for i in found for a in i.addresses)


def test_ifconfig_does_not_tell_the_kernels_order() -> None:
    assert not interfaces.parse_addresses(text("desktop.txt"))[1]


def test_nccls_own_lines_are_never_taken_for_facts() -> None:
    line = "n1:1:1 [0] NCCL INFO link mlx5_7/1 state ACTIVE physical_state LINK_UP netdev eth7\n"
    assert pasted.parse_pasted(line).rdma_ports == ()


def test_the_matrix_names_cards_by_the_legend() -> None:
    found = topology.parse_topo_matrix(text("eight-gpus-topo-m.txt"))
    assert len(found) == 64
    assert (found[0, "mlx5_0"], found[0, "mlx5_1"], found[0, "mlx5_7"]) == ("PXB", "NODE", "SYS")


def test_a_topology_dump_gives_the_way_down_to_each_device() -> None:
    ways = {
        w[-1].bus_id: [p.bus_id for p in w]
        for _, w in topology.parse_topology(text("hdr-topology.xml")).devices()
    }
    assert ways["0000:41:00.0"] == ["0000:40:00.0", "0000:41:00.0"]
    assert len(ways) == 7


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "<system>",
        '<!DOCTYPE s [<!ENTITY a "aaaa">]><system>&a;</system>',
        "<system>" + "<pci>" * 500 + "</pci>" * 500 + "</system>",
        "<system>" + "<pci/>" * 30000 + "</system>",
        "</system><system",
    ],
)
def test_what_is_no_dump_is_refused(hostile: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        topology.parse_topology(hostile)


@given(st.text(max_size=400))
def test_no_paste_breaks_a_parser(shown: str) -> None:
    pasted.parse_pasted(shown)


LINES = [line for path in sorted(RECORDED.glob("*.txt")) for line in path.read_text().splitlines()]


@given(st.lists(st.sampled_from(LINES), max_size=60))
def test_no_mix_of_real_lines_breaks_a_parser(lines: list[str]) -> None:
    pasted.parse_pasted("\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "mlx5_0 (" + "x" * 1500 + "\n",
        "link " + "a/" * 700 + "\n",
        "CA 'mlx5_0'\n",
        "eth0 UP " + "1.1.1.1/8 " * 150 + "x\n",
    ],
)
def test_a_hostile_paste_costs_seconds_at_most(line: str) -> None:
    pasted.parse_pasted(line * (500_000 // len(line)))


def test_a_second_port_has_the_guid_of_its_device() -> None:
    whole = "CA 'mlx4_0'\n\tSystem image GUID: 0x1070fd030014aa04\n\tNumber of ports: 2\n"
    whole += "\tPort 1:\n\t\tState: Down\n\tPort 2:\n\t\tState: Active\n"
    first, second = rdma_output.parse_ibstat(whole)
    assert first.guid == second.guid == "1070fd030014aa04"
    assert (first.state, second.state) == ("DOWN", "ACTIVE")


@pytest.mark.parametrize("value", ["", "(5)", "\x1b[2J", "4096" * 30, "x (y)"])
def test_values_no_tool_prints_spoil_no_port(value: str) -> None:
    whole = f"hca_id:\tmlx5_0\n\tfw_ver:\t{value}\n\t\tport:\t1\n\t\t\tstate:\t{value}\n"
    for port in rdma_output.parse_ibv_devinfo(whole):
        assert port.name == "mlx5_0:1" and "\x1b" not in port.state


@pytest.mark.parametrize(("deeper", "refused"), [(0, False), (1, True)])
def test_a_topology_dump_is_refused_only_beyond_its_deepest_level(deeper: int, refused: bool) -> None:
    levels = topology.DEEPEST - 2 + deeper  # below <system> and <cpu>
    text = f'<system version="1"><cpu>{"<pci>" * levels}{"</pci>" * levels}</cpu></system>'
    if refused:
        with pytest.raises(ValueError, match="too many elements"):
            topology.parse_topology(text)
    else:
        assert topology.parse_topology(text).cpus


@pytest.mark.parametrize(
    "shown", ["docker0  UP  172.17.0.1/16\n", "3: docker0    inet 172.17.0.1/16 scope global docker0\n"]
)
def test_a_bridge_is_known_by_its_name_where_the_output_has_no_details(shown: str) -> None:
    assert [i.kind for i in interfaces.parse_addresses(shown)[0]] == ["bridge"]


def test_padded_states_and_peers_of_tunnels_are_read() -> None:
    line = "0000:3b:00.0 mlx5_0 (MT4123 - X) ConnectX-6 fw 20.31.1014 port 1 (DOWN  ) ==> ib0 (Down)"
    assert [(p.name, p.state, p.netdev) for p in rdma_output.parse_ibdev2netdev(line)] == [
        ("mlx5_0:1", "DOWN", "ib0")
    ]
    brief = "eth0 UP 10.0.0.5/24 metric 100 fe80::1/64\ntun0 UNKNOWN 10.8.0.2 peer 10.8.0.1/32\n"
    found, _ = interfaces.parse_addresses(brief)
    assert [(i.name, [a.address for a in i.addresses]) for i in found] == [
        ("eth0", ["10.0.0.5", "fe80::1"]),
        ("tun0", ["10.8.0.2"]),
    ]
