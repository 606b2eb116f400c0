"""The choice of network, the traps of settings, and which device a GPU uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringup.model import Node, RdmaPort
from ringup.nccl import selection, topology, traps
from ringup.nccl.selection import Known, Prediction
from ringup.nccl.topology import Path as Way
from ringup.nccl.topology import Where, choose
from ringup.network.predictions import together
from ringup.parse.topology import Cpu, Net, Pci, Topology, parse_topology
from tests import clusters as c

RECORDED = Path(__file__).parent / "recorded" / "predict"
OLD, MIDDLE, NEW = (2, 20, 5), (2, 27, 7), (2, 30, 7)
IB = RdmaPort("mlx5_0", 1, "ACTIVE", link_layer="InfiniBand", rate_gbit_s=200.0, netdev="ib0")


def node(*ports: RdmaPort, unknown: dict[str, str] | None = None) -> Node:
    cards = c.numbered(c.interface("eth0", "10.0.0.1/24"), c.interface("docker0", "172.17.0.1/16"))
    return Node("n1", interfaces=cards, rdma_ports=ports, unknown=unknown or {})


def of(*ports: RdmaPort, version: tuple[int, ...] = MIDDLE, **env: str) -> Prediction:
    return selection.predict(Known(node(*ports), version), env)


def test_rdma_goes_before_sockets() -> None:
    made = of(IB)
    assert (made.network, made.interfaces, made.oob) == ("IB", ("mlx5_0:1/IB",), "eth0")
    assert made.log_line == "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"


@pytest.mark.parametrize("value", ["1", "2", "0x1"])
def test_ib_disable_leaves_sockets(value: str) -> None:
    assert of(IB, NCCL_IB_DISABLE=value).network == "Socket"


@pytest.mark.parametrize("value", ["0", "", "true"])
def test_a_value_that_counts_as_0_disables_nothing(value: str) -> None:
    made = of(IB, NCCL_IB_DISABLE=value)
    assert made.network == "IB"
    assert any("not a number" in b for b in made.because) == (value == "true")


@pytest.mark.parametrize("value", ["Socket", "socket", "SOCKET"])
def test_nccl_net_forces_sockets_in_any_case(value: str) -> None:
    assert of(IB, NCCL_NET=value).network == "Socket"


@pytest.mark.parametrize(
    ("version", "line"),
    [(OLD, "Error: network IB not found."), (MIDDLE, "Failed to initialize any NET plugin")],
)
def test_nccl_net_ib_without_a_device_fails_instead_of_falling_back(
    version: tuple[int, ...], line: str
) -> None:
    made = of(replace(IB, state="DOWN"), version=version, NCCL_NET="IB")
    assert (made.network, made.log_line) == ("", line)


def test_another_network_needs_a_plugin_and_is_told_as_not_known() -> None:
    made = of(IB, NCCL_NET="AWS Libfabric")
    assert made.network == "AWS Libfabric" and made.confidence == "low"
    assert of(IB, NCCL_NET_PLUGIN="aws-ofi").confidence == "low"
    assert of(IB, NCCL_NET_PLUGIN="none").confidence == "high"


def test_efa_devices_alone_leave_sockets_and_ask_for_the_plugin() -> None:
    made = of(RdmaPort("rdmap0s6", 1, "ACTIVE", link_layer="Unspecified"))
    assert made.network == "Socket" and any("OFI" in m for m in made.missing)


def test_the_bootstrap_of_a_comm_id_is_by_subnet_and_the_filter_does_not_count() -> None:
    made = of(NCCL_COMM_ID="172.17.0.9:1234", NCCL_SOCKET_IFNAME="eth0")
    assert made.bootstrap is not None and made.bootstrap.interface == "docker0"
    assert any("NCCL_COMM_ID" in b for b in made.because)
    assert of(NCCL_COMM_ID="192.0.2.1:1234").log_line == "NET/Socket : No usable listening interface found"


def test_what_is_not_known_is_named_and_lowers_the_confidence() -> None:
    made = selection.predict(Known(node(unknown={"rdma_ports": "no sysfs"}), MIDDLE), {})
    assert made.confidence == "low" and "no sysfs" in made.missing[0]
    made = selection.predict(Known(node(IB, unknown={"interfaces": "not pasted"}), MIDDLE), {})
    assert (made.network, made.bootstrap, made.oob) == ("IB", None, "")
    made = selection.predict(Known(node(IB), MIDDLE, version_is_known=False), {})
    assert made.confidence == "medium"


def test_with_rdma_disabled_unknown_devices_do_not_matter() -> None:
    made = selection.predict(
        Known(node(unknown={"rdma_ports": "no sysfs"}), MIDDLE), {"NCCL_IB_DISABLE": "1"}
    )
    assert made.confidence == "high"


def test_what_the_nodes_shell_has_counts_below_what_is_asked() -> None:
    shell = replace(node(IB), environment={"NCCL_IB_DISABLE": "1"})
    assert selection.predict(Known(shell, MIDDLE), {}).network == "Socket"
    assert selection.predict(Known(shell, MIDDLE), {"NCCL_IB_DISABLE": "0"}).network == "IB"


# Several nodes.


def of_both(*nodes: Node, **env: str) -> list[str]:
    """What the first node's prediction says because of the second."""
    alone = [selection.predict(Known(n, MIDDLE), env) for n in nodes]
    made = together(nodes, alone)
    return [b for b in made[0].because if b not in alone[0].because]


def second(*ports: RdmaPort, address: str = "10.0.0.2/24") -> Node:
    return replace(node(*ports), name="n2", interfaces=c.numbered(c.interface("eth0", address)))


def test_nodes_that_choose_alike_are_not_commented() -> None:
    assert of_both(node(IB), second(IB)) == [] and of_both(node(), second()) == []


def test_a_node_that_falls_back_alone_is_named() -> None:
    assert "n2 chooses Socket, this node IB" in of_both(node(IB), second(replace(IB, state="DOWN")))[0]


def test_devices_that_would_meet_others_of_another_kind_are_named() -> None:
    bond = replace(IB, device="mlx5_bond_0", link_layer="Ethernet")
    assert "n2 lists mlx5_0:1/IB" in of_both(node(bond, IB), second(IB))[0]


def test_bootstraps_in_two_subnets_are_named() -> None:
    assert "two subnets" in of_both(node(), second(address="10.9.0.2/24"))[0]


def test_a_link_local_bootstrap_needs_the_same_number_on_every_node() -> None:
    first = replace(node(), interfaces=c.numbered(c.interface("ib0", "fe80::1/64")))
    other = c.numbered(c.interface("eth0"), c.interface("ib0", "fe80::2/64"))
    found = of_both(first, replace(first, name="n2", interfaces=other))
    assert "ib0 is interface 2 here and 3 on n2" in found[0]


# Traps.


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_SOCKET_IFNAME": "==eth0"}, "one = too many"),
        ({"NCCL_IB_HCA": "==mlx5_0"}, "one = too many"),
        ({"NCCL_SOCKET_IFNAME": "^==eth0"}, "one = too many"),
        ({"NCCL_SOCKET_IFNAME": "eth0, eth1"}, "blanks count as part of the name"),
        ({"NCCL_SOCKET_IFNAME": '"eth0"'}, "quotes are part of the name"),
        ({"NCCL_SOCKET_IFNAME": "=^eth0"}, "^ must come before ="),
        ({"NCCL_SOCKET_IFNAME": "e"}, "one character"),
        ({"NCCL_IB_HCA": "^"}, "excludes everything"),
        ({"NCCL_SOCKET_IFNAME": "eth7"}, "no interface begins with eth7"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "no interface is called eth"),
        ({"NCCL_SOCKET_IFNAME": "eth0:1"}, "what follows : is ignored"),
        ({"NCCL_SOCKET_IFNAME": "mlx5_0"}, "its interface is ib0"),
        ({"NCCL_SOCKET_IFNAME": "^ib"}, "does not exclude lo or docker"),
        ({"NCCL_SOCKET_IFNAME": ",".join(f"x{n}" for n in range(17))}, "only the first 16 names"),
        ({"NCCL_SOCKET_FAMILY": "INET"}, "neither AF_INET nor AF_INET6"),
        ({"NCCL_IB_HCA": "ib0"}, "it is mlx5_0's"),
        ({"NCCL_IB_HCA": "eth0"}, "eth0 is an interface"),
        ({"NCCL_IB_HCA": "mlx4"}, "no device begins with mlx4"),
        ({"NCCL_IB_HCA": "mlx5_0:2"}, "has no port 2"),
        ({"NCCL_IB_HCA": "mlx5_1"}, "also mlx5_10"),
        ({"NCCL_IB_HCA": "mlx5", "NCCL_IB_DISABLE": "1"}, "changes nothing: NCCL_IB_DISABLE=1"),
        ({"NCCL_IB_GID_INDEX": "3"}, "the ports are InfiniBand"),
        ({"NCCL_OOB_NET_IFNAME": "mlx5_0"}, "without NCCL_OOB_NET_ENABLE=1"),
    ],
)
def test_a_trap_is_explained(env: dict[str, str], words: str) -> None:
    ports = [IB, replace(IB, device="mlx5_1", netdev=""), replace(IB, device="mlx5_10", netdev="")]
    found = traps.all_traps(env, node().interfaces, ports, MIDDLE)
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_SOCKET_IFNAME": "eth0"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_FAMILY": "AF_INET6"},
        {"NCCL_IB_HCA": "=mlx5_0:1"},
        {"NCCL_IB_HCA": "mlx5"},
        {"NCCL_IB_DISABLE": "0"},
    ],
)
def test_a_setting_that_means_what_it_says_is_not_commented(env: dict[str, str]) -> None:
    assert traps.all_traps(env, node().interfaces, [IB], MIDDLE) == ()


# Which device a GPU uses.


def recorded_tree() -> Topology:
    return parse_topology((RECORDED / "hdr-topology.xml").read_text())


def three() -> list[Where]:
    return [Where("a", "mlx5_0", 100000), Where("b", "mlx5_1", 200000), Where("c", "mlx5_3", 200000)]


def test_bandwidth_comes_before_distance() -> None:
    found = topology.paths(recorded_tree(), three(), OLD)[0]
    assert found == {"b": Way(24.0, "PHB"), "a": Way(12.0, "PHB"), "c": Way(16.0, "SYS")}
    assert [u.device for u in choose({0: found}, {}, OLD)[0]] == ["b"]


def test_with_gpudirect_the_path_stays_below_the_switch() -> None:
    text = (RECORDED / "hdr-topology.xml").read_text().replace('maxconn="262144" gdr="0"', 'gdr="1"')
    assert topology.paths(parse_topology(text), three(), OLD)[0]["a"] == Way(12.0, "PIX", True)


@pytest.mark.parametrize(
    ("vendor", "model", "version", "rate"),
    [
        ("AuthenticAMD", 1, OLD, 16.0),
        ("GenuineIntel", 0x4F, OLD, 6.0),
        ("GenuineIntel", 0x55, OLD, 10.0),
        ("GenuineIntel", 0x8F, OLD, 10.0),
        ("GenuineIntel", 0x8F, NEW, 22.0),
        ("GenuineIntel", 0xCF, NEW, 40.0),
    ],
)
def test_the_link_between_cpus_has_nccls_figure(
    vendor: str, model: int, version: tuple[int, ...], rate: float
) -> None:
    assert topology.cpu_gbyte_s(Cpu(0, "x86_64", vendor, 6, model), version) == rate


def eight(count: int) -> dict[int, dict[str, Way]]:
    """Eight GPUs equally far from `count` cards."""
    return {g: {f"n{k}": Way(24.0, "PXB") for k in range(count)} for g in range(8)}


def test_gpus_spread_over_equal_devices_by_their_numbers_mirrored() -> None:
    used = {u.gpu: u.device for u in choose(eight(4), {}, OLD)[0]}
    assert [used[g] for g in range(4)] == ["n0", "n2", "n1", "n3"]
    assert choose(eight(4), {}, OLD)[1]


def test_three_devices_are_taken_in_turn() -> None:
    used = [u.device for u in choose(eight(3), {}, OLD)[0]]
    assert used == ["n0", "n1", "n2", "n0", "n1", "n2", "n0", "n1"]


def test_one_gpu_uses_all_equal_devices_on_its_channels() -> None:
    found = {0: eight(2)[0]}
    assert [u.device for u in choose(found, {}, OLD)[0]] == ["n0", "n1"]
    assert [u.device for u in choose(found, {"NCCL_NETDEVS_POLICY": "MAX:1"}, NEW)[0]] == ["n0"]


def test_broadcom_switches_of_two_levels_count_as_one() -> None:
    ids = (0x1000, 0xC010, 0x1000, 0xA096)
    gpu = Pci("0000:03:00.0", 3, "16.0 GT/s PCIe", 16, gpu=0, gpu_gpudirect=True)
    card = Pci("0000:05:00.0", 5, "16.0 GT/s PCIe", 16, nets=(Net("mlx5_0", 200000, True),))
    below = (
        Pci("0000:02:00.0", 2, "16.0 GT/s PCIe", 16, ids, children=(gpu,)),
        Pci("0000:04:00.0", 4, "16.0 GT/s PCIe", 16, ids, children=(card,)),
    )
    tree = Topology((Cpu(0, children=(Pci("0000:01:00.0", 1, "16.0 GT/s PCIe", 16, ids, children=below),)),))
    assert topology.paths(tree, [Where("a", "mlx5_0", 200000)], OLD)[0]["a"].kind == "PIX"


def test_a_device_the_dump_does_not_show_is_not_guessed() -> None:
    ports = (IB, replace(IB, device="mlx5_9"))
    made = selection.predict(Known(node(*ports), OLD, topology=recorded_tree()), {})
    assert made.used == () and any("mlx5_9" in d for d in made.doubts)


def direct(level: str, switch: bool = True) -> Way:
    """The path to a card with GPUDirect, below the GPU's switch or only of the same processor."""
    text = (RECORDED / "hdr-topology.xml").read_text().replace('gdr="0"', 'gdr="1"')
    furthest = topology.gdr_level({"NCCL_NET_GDR_LEVEL": level})
    found = topology.paths(parse_topology(text), three(), OLD, furthest)
    return found[0]["a" if switch else "b"]


@pytest.mark.parametrize(
    ("level", "way"), [("", Way(12.0, "PIX", True)), ("LOC", Way(12.0, "PHB")), ("0", Way(12.0, "PHB"))]
)
def test_a_gdr_level_nearer_than_the_card_sends_the_path_by_way_of_the_cpu(level: str, way: Way) -> None:
    assert direct(level) == way


@pytest.mark.parametrize(
    ("level", "used"), [("", False), ("PXB", False), ("PHB", True), ("3", True), ("SYS", True)]
)
def test_gpudirect_over_the_cpu_is_used_only_where_the_level_allows_it(level: str, used: bool) -> None:
    assert direct(level, switch=False) == Way(24.0, "PHB", used)
