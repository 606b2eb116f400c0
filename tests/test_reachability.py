"""What links add up to."""

from __future__ import annotations

from dataclasses import replace

from ringup.model import Cluster, Node
from ringup.network.reachability import cut_pairs, networks, places, port_filters, repeats
from tests.clusters import article_002, breaks, cluster, healthy, interface, links, node, two_networks


def chosen(one: Cluster) -> list[dict[str, str]]:
    return [dict(n.interfaces) for n in networks(one)]


def failing(cluster: Cluster) -> list[tuple[str, str, list[str]]]:
    """Node, interface and who failed to reach it how."""
    rows = [place for rows in places(cluster).values() for place in rows if not place.works]
    return [(p.node, p.interface, [f"{li.src}: {li.error}" for li in p.failed]) for p in rows]


def test_a_healthy_cluster_has_the_one_network_and_nothing_excluded() -> None:
    one = cluster(
        *(node(f"n{k}", interface("eth0", f"10.0.0.{k + 1}/24", speed_gbit_s=100.0)) for k in (0, 1))
    )
    (net,) = networks(one)
    assert (dict(net.addresses), net.speed_gbit_s) == ({"n0": "10.0.0.1", "n1": "10.0.0.2"}, 100.0)
    assert (failing(one), cut_pairs(one), port_filters(one), repeats(one)) == ([], (), {}, {})


def test_article_002_leaves_the_other_card_and_says_why() -> None:
    one = article_002()
    assert chosen(one) == [{"node0": "enp99s0", "node1": "enp99s0"}]
    assert failing(one) == [("node0", "em1", ["node1: timed out"])]
    assert cut_pairs(one) == ()


def test_one_direction_cut_leaves_no_network_and_names_the_direction() -> None:
    one = cluster(*(two_networks(k) for k in (0, 1)), broken=[("node1", "node0", "*", "timed out")])
    assert (networks(one), cut_pairs(one)) == ((), (("node1", "node0"),))


def test_a_black_hole_excludes_a_network_but_cuts_nothing() -> None:
    one = cluster(
        *(two_networks(k) for k in (0, 1)), broken=[("*", "node1", "10.12.5.65", "large message lost")]
    )
    assert chosen(one) == [{"node0": "enp99s0", "node1": "enp99s0"}]
    assert cut_pairs(one) == ()


def test_the_faster_card_comes_first_whatever_its_place() -> None:
    nodes = [
        node(
            f"n{k}",
            interface("eno1", f"10.1.0.{k + 1}/24", speed_gbit_s=1.0),
            interface("ib0", f"10.2.0.{k + 1}/24", speed_gbit_s=200.0, kind="infiniband"),
        )
        for k in (0, 1)
    ]
    assert [n["n0"] for n in chosen(cluster(*nodes))] == ["ib0", "eno1"]


def test_a_card_measured_far_slower_comes_last_though_its_rate_is_unknown() -> None:
    nodes = [
        node(f"n{k}", interface("eth0", f"10.1.0.{k + 1}/24"), interface("eth1", f"10.2.0.{k + 1}/24"))
        for k in (0, 1)
    ]
    one = cluster(*nodes)
    slow = [
        replace(li, mbyte_s=12.0) if "eth0" in (li.src_interface, li.dst_interface) else li
        for li in one.links
    ]
    assert [n["n0"] for n in chosen(replace(one, links=tuple(slow)))] == ["eth1", "eth0"]
    stall = [replace(li, mbyte_s=12.0) if li.address == "10.1.0.1" else li for li in one.links]
    assert [n["n0"] for n in chosen(replace(one, links=tuple(stall)))] == ["eth0", "eth1"]


def test_a_tunnel_is_used_only_where_nothing_else_joins_all() -> None:
    nodes = [
        node(
            f"n{k}",
            interface("wg0", f"10.1.0.{k + 1}/24", kind="tunnel"),
            interface("eth0", f"10.2.0.{k + 1}/24"),
        )
        for k in (0, 1)
    ]
    assert [n["n0"] for n in chosen(cluster(*nodes))] == ["eth0", "wg0"]
    assert chosen(cluster(*nodes, broken=[("n0", "n1", "10.2.0.2", "timed out")])) == [
        {"n0": "wg0", "n1": "wg0"}
    ]


def test_interfaces_named_differently_are_joined_by_their_network() -> None:
    nodes = [
        node("n0", interface("eth0", "10.1.0.1/24"), interface("eth1", "10.2.0.1/24")),
        node("n1", interface("eth0", "10.2.0.2/24"), interface("eth1", "10.1.0.2/24")),
    ]
    assert chosen(cluster(*nodes)) == [{"n0": "eth0", "n1": "eth1"}, {"n0": "eth1", "n1": "eth0"}]


def test_a_routed_fabric_without_common_subnets_is_joined_by_the_way_taken() -> None:
    nodes = [
        node("n0", interface("eno1", "10.1.0.1/24"), interface("swp1", "10.9.0.0/31")),
        node("n1", interface("eno1", "10.1.0.2/24"), interface("swp2", "10.9.0.2/31")),
    ]
    one = cluster(*nodes)
    way = [replace(li, src_interface="swp2") if li.address == "10.9.0.0" else li for li in one.links]
    assert {"n0": "swp1", "n1": "swp2"} in chosen(replace(one, links=tuple(way)))


def test_two_cards_in_one_subnet_are_paired_by_name() -> None:
    nodes = [
        node(f"n{k}", interface("eth0", f"10.1.0.{k + 1}/24"), interface("eth1", f"10.1.0.{k + 101}/24"))
        for k in (0, 1)
    ]
    assert chosen(cluster(*nodes)) == [{"n0": "eth0", "n1": "eth0"}, {"n0": "eth1", "n1": "eth1"}]


def test_families_are_not_mixed_and_ipv4_comes_first() -> None:
    nodes = [node(f"n{k}", interface("eth0", f"10.1.0.{k + 1}/24", f"fd00::{k + 1}/64")) for k in (0, 1)]
    assert [(n.family, n.addresses["n1"]) for n in networks(cluster(*nodes))] == [
        ("inet", "10.1.0.2"),
        ("inet6", "fd00::2"),
    ]
    six = [node("n0", interface("eth0", "10.1.0.1/24")), node("n1", interface("eth0", "fd00::2/64"))]
    assert networks(cluster(*six)) == ()


def test_a_node_nobody_tried_leaves_no_network() -> None:
    one = healthy(3)
    unproven = tuple(li for li in one.links if "node2" not in (li.src, li.dst))
    assert networks(replace(one, links=unproven)) == ()
    assert networks(healthy(1)) == ()


def test_attempts_bound_to_a_source_or_device_prove_nothing() -> None:
    one = article_002()
    bound = tuple(replace(li, ok=True, large_packet_ok=True, error="", bound="source") for li in one.links)
    assert networks(replace(one, links=bound)) == ()
    assert cut_pairs(replace(one, links=bound)) == ()


def test_docker0_on_every_node_is_no_network_even_where_it_answers_itself() -> None:
    one = healthy()
    own = breaks(one.links, "*", "*", "172.17.0.1", "own address")
    assert chosen(replace(one, links=own)) == [{"node0": "enp99s0", "node1": "enp99s0"}]
    assert port_filters(replace(one, links=own)) == {}


def test_a_filter_is_ports_of_one_address_answering_differently() -> None:
    one = healthy()
    high = breaks(one.links, "node1", "node0", "10.0.0.10", "timed out", ports="high")
    ((where, ports),) = port_filters(replace(one, links=high)).items()
    assert where == ("node1", "node0", "10.0.0.10")
    assert {29500, 29501, 29502} <= set(ports) and max(ports) < 32768


def test_a_held_port_is_no_filter() -> None:
    one = healthy()
    held = breaks(one.links, "node1", "node0", "10.0.0.10", "port held", ports="29500")
    assert port_filters(replace(one, links=held)) == {}


def test_repeats_are_counted_over_all_connections_to_an_address() -> None:
    nodes: tuple[Node, ...] = healthy().nodes
    counted = [
        replace(
            li, segments=10, retransmitted=2 if li.address == "10.0.0.11" and li.port in (35000, 40123) else 0
        )
        for li in links(nodes)
    ]
    assert repeats(Cluster(nodes, tuple(counted))) == {("node0", "node1", "10.0.0.11"): (2, 4)}
