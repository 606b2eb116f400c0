"""Who tries what, on made-up nodes."""

from __future__ import annotations

import random

from ringup.collectors import pair_schedule
from ringup.model import Host, Job, Node, PortRanges, Route
from tests.clusters import interface, node


def names(count: int) -> list[str]:
    return [f"n{k}" for k in range(count)]


def test_sixteen_nodes_try_everybody_and_seventeen_do_not() -> None:
    assert all(len(p) == 15 for p in pair_schedule.partners(names(16)).values())
    assert all(len(p) < 16 for p in pair_schedule.partners(names(17)).values())
    assert (pair_schedule.describe(16), pair_schedule.describe(17) != "") == ("", True)


def test_a_long_list_is_covered_both_ways_at_a_bounded_cost() -> None:
    found = pair_schedule.partners(names(1000))
    pairs = {(a, b) for a, peers in found.items() for b in peers}
    assert all((b, a) in pairs for a, b in pairs)
    assert {len(p) for p in found.values()} == {18}
    assert all(a not in p and len(set(p)) == len(p) for a, p in found.items())


def test_the_words_of_the_schedule_count_the_peers_tried() -> None:
    assert pair_schedule.describe(64).startswith("11 of 63 peers tried by each node")


def test_addresses_of_interfaces_that_are_up_are_tried_and_no_others() -> None:
    one = node(
        "a",
        interface("eth0", "10.0.0.1/24", "fe80::1/64", "fd00::1/64"),
        interface("eth1", "10.1.0.1/24", up=False),
        interface("eth2", "169.254.3.1/16"),
    )
    found = [e.address for e in pair_schedule.endpoints(one)]
    assert found == ["10.0.0.1", "fd00::1"] or found == ["10.0.0.1", "fd00::1", "169.254.3.1"]


def test_a_played_node_listens_on_its_own_address_alone() -> None:
    played = Node(name="a", host=Host("a", local=True, address="127.0.0.3"), interfaces=node("x").interfaces)
    assert [e.address for e in pair_schedule.endpoints(played)] == ["127.0.0.3"]


def test_a_bridge_with_a_real_port_is_a_network_and_docker0_is_not() -> None:
    one = node(
        "a",
        interface("eth0", master="br0"),
        interface("br0", "10.0.0.1/24", kind="bridge"),
        interface("veth1", kind="veth", master="docker0"),
        interface("docker0", "172.17.0.1/16", kind="bridge"),
    )
    assert {e.interface: e.minor for e in pair_schedule.endpoints(one)} == {"br0": False, "docker0": True}


def test_a_bridge_of_open_vswitch_that_leads_out_is_a_network() -> None:
    one = node(
        "a",
        interface("ens3", master="ovs-system"),
        interface("br-ex", "10.0.0.1/24", kind="bridge"),
        interface("docker0", "172.17.0.1/16", kind="bridge"),
        routes=(Route("default", "br-ex"), Route("172.17.0.0/16", "docker0")),
    )
    assert {e.interface: e.minor for e in pair_schedule.endpoints(one)} == {"br-ex": False, "docker0": True}


def test_ports_where_all_listen_exist_whatever_the_kernels_range_is() -> None:
    for first, last in ((65500, 65535), (65535, 1), (1, 3), (32768, 60999)):
        head = node("a", ports=PortRanges(first, last))
        found = {pair_schedule.meeting_port(head, random.Random(k), {40000}) for k in range(200)}
        assert min(found) >= 1024 and max(found) <= 65535 and len(found) > 30


def test_an_interface_with_hundreds_of_addresses_is_not_tried_on_all() -> None:
    one = node("a", interface("ipvs0", *(f"10.9.{k}.1/32" for k in range(200))))
    assert len(pair_schedule.endpoints(one)) == pair_schedule.ADDRESSES_PER_INTERFACE


def test_ephemeral_ports_avoid_what_any_node_reserves() -> None:
    nodes = [
        Node(name="a", ports=PortRanges(32768, 60999)),
        Node(name="b", ports=PortRanges(50000, 50079, tuple(range(50000, 50010)))),
    ]
    found = pair_schedule.ephemeral_ports(nodes, random.Random(1))
    assert len(found) == 7 and all(50010 <= p <= 50079 for p in found)


def test_nodes_with_no_common_ephemeral_range_have_no_spread() -> None:
    nodes = [Node(name="a", ports=PortRanges(20000, 30000)), Node(name="b", ports=PortRanges(40000, 50000))]
    assert pair_schedule.ephemeral_ports(nodes, random.Random(1)) == []


def test_the_wanted_port_comes_first_and_there_are_others_inside_and_below_the_ephemeral_range() -> None:
    head = Node(name="a", ports=PortRanges(32768, 60999))
    found = pair_schedule.rendezvous_ports(head, Job(port=12345), random.Random(1), [])
    assert found[:2] == [12345, 29500]
    assert any(p < 29500 and p != 12345 for p in found) and sum(p >= 32768 for p in found) == 2


def test_several_interfaces_in_one_subnet_are_each_tried_as_a_source() -> None:
    own = pair_schedule.endpoints(
        node(
            "a",
            interface("eth0", "10.0.0.1/24"),
            interface("eth1", "10.0.0.2/24"),
            interface("eth2", "10.5.0.1/24"),
        )
    )
    target = pair_schedule.endpoints(node("b", interface("eth0", "10.0.0.3/24")))[0]
    found = pair_schedule.ways(target, own)
    assert [(w.bound, w.interface, w.always) for w in found[:3]] == [
        ("source", "eth0", True),
        ("source", "eth1", True),
        ("source", "eth2", False),
    ]
    assert not any(w.always for w in found if w.bound == "device")


def test_an_address_the_caller_owns_too_is_tried_once_and_briefly() -> None:
    a, b = (
        node(n, interface("eth0", f"10.0.0.{k}/24"), interface("docker0", "172.17.0.1/16", kind="bridge"))
        for k, n in enumerate("ab", start=1)
    )
    ready = {n.name: pair_schedule.endpoints(n) for n in (a, b)}
    ports = {(n, e.address): 40000 for n, ends in ready.items() for e in ends}
    found = pair_schedule.targets([a, b], ready, ports, {"a": [5, 6], "b": [5, 6]}, [29500])["b"]
    docker = [t for t in found if t.endpoint.address == "172.17.0.1"]
    assert [(t.purpose, t.patience_s, t.ways) for t in docker] == [
        ("interface", pair_schedule.MINOR_PATIENCE_S, ())
    ]


def test_many_peers_together_try_every_port_of_the_spread() -> None:
    nodes = [node(f"n{k}", interface("eth0", f"10.0.0.{k + 1}/24")) for k in range(9)]
    ready = {n.name: pair_schedule.endpoints(n) for n in nodes}
    ports = {(n, e.address): 40000 for n, ends in ready.items() for e in ends}
    spread = {n.name: list(range(50000, 50008)) for n in nodes}
    found = pair_schedule.targets(nodes, ready, ports, spread, [29500])
    tried = {
        t.port
        for rows in found.values()
        for t in rows
        if t.purpose == "ephemeral" and t.endpoint.node == "n4"
    }
    assert tried == set(range(50000, 50008))
