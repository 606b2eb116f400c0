"""The round of pairs between hosts with broken networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from ringup.collectors import pair_schedule, pairs
from ringup.collectors.pairs import Round, prove
from ringup.model import Cluster, Host, Job, Link, Node
from ringup.network.reachability import cut_pairs, networks, places, port_filters, repeats
from ringup.parse.interfaces import parse_addresses
from ringup.transport import Transport
from tests.guards import wait_for
from tests.lab import Lab, Nic

pytestmark = [pytest.mark.lab, pytest.mark.slow]

Shared = Callable[..., Lab]
ARTICLE_002 = "90.91.33.64/24"
TWO_CARDS = (
    Nic("eno1", "10.1.0.10/24", "mgmt"),
    Nic(("ib0", "ib1"), "10.2.0.10/24", "ib", address6="fd00::10/64"),
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the patience of the round: the programs of all nodes share this machine."""
    monkeypatch.setattr(pair_schedule, "PATIENCE_S", 3 * pair_schedule.PATIENCE_S)
    monkeypatch.setattr(pairs, "ROUND_S", 5 * pairs.ROUND_S)


def nodes_of(lab: Lab) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=h.name,
            host=Host(h.name),
            interfaces=parse_addresses(lab.sh(h, "ip -d addr"))[0],
            answer_s=30.0,  # who has answered slowly gets more time to begin
        )
        for h in lab.hosts
    )


def proved(lab: Lab, nodes: tuple[Node, ...] = (), budget_s: float = 110.0, job: Job | None = None) -> Round:
    nodes = nodes or nodes_of(lab)
    with Transport(tuple(n.host for n in nodes), ssh_config=str(lab.ssh_config)) as door:
        return prove(door, nodes, job or Job(), budget_s=budget_s)


def cluster(lab: Lab, **options: int) -> Cluster:
    nodes = nodes_of(lab)
    return Cluster(nodes, proved(lab, nodes, **options).links)


def routed(links: Iterable[Link]) -> dict[tuple[str, str], str]:
    """(src, address) -> error of the plain attempts to interfaces."""
    return {
        (li.src, li.address): li.error for li in links if li.purpose == "interface" and li.bound == "routed"
    }


def without_a_word(links: Iterable[Link]) -> list[Link]:
    return [li for li in links if not li.ok or li.error or li.large_packet_ok is False]


@contextmanager
def filtered(lab: Lab, host: str, chain: str) -> Iterator[None]:
    """One chain of nft rules, separated by ";"."""
    lab.run(host, ["nft", "-f", "-"], text=f"table ip one {{\nchain c {{ {chain}; }}\n}}\n", check=True)
    try:
        yield
    finally:
        lab.sh(host, "nft delete table ip one")


def test_a_healthy_pair_is_proven_on_every_network_and_family(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, nics=TWO_CARDS)
    found = cluster(lab)
    assert without_a_word(found.links) == []
    assert {(li.src_interface, li.dst_interface) for li in found.links if li.src == "node0"} == {
        ("eno1", "eno1"),
        ("ib0", "ib1"),
    }
    assert [dict(n.interfaces) for n in networks(found)] == [
        {"node0": "eno1", "node1": "eno1"},
        {"node0": "ib0", "node1": "ib1"},
        {"node0": "ib0", "node1": "ib1"},
    ]
    assert [n.family for n in networks(found)] == ["inet", "inet", "inet6"]


def test_the_dead_card_of_article_002_is_named_with_the_failing_direction(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, net=ARTICLE_002)
    with lab.broken("article-002"):
        found = cluster(lab)
    (bad,) = (place for rows in places(found).values() for place in rows if not place.works)
    assert (bad.node, bad.interface, [(li.src, li.error) for li in bad.failed]) == (
        "node0", "em1", [("node1", "timed out")],
    )  # fmt: skip
    assert dict(networks(found)[0].addresses) == {"node0": "90.91.33.64", "node1": "90.91.33.65"}
    failed = [li for li in found.links if not li.ok and li.purpose == "interface"]
    assert {li.bound for li in failed} == {"routed", "source", "device"}
    assert {li.src_interface for li in failed} == {"enp99s0"}


def test_a_peer_without_any_route_says_so_at_once(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, net=ARTICLE_002)
    with lab.broken("article-002-no-route"):
        assert routed(cluster(lab).links)["node1", "10.12.5.64"] == "network unreachable"


def test_docker0_on_every_host_is_seen_for_what_it_is(shared_lab: Shared) -> None:
    found = cluster(shared_lab(hosts=2, docker0=True))
    assert routed(found.links) == {
        ("node0", "10.0.0.11"): "",
        ("node0", "172.17.0.1"): "own address",
        ("node1", "10.0.0.10"): "",
        ("node1", "172.17.0.1"): "own address",
    }
    assert [li.purpose for li in found.links if li.address == "172.17.0.1"] == ["interface", "interface"]


def test_an_address_of_two_other_hosts_is_told_by_the_token(shared_lab: Shared) -> None:
    lab = shared_lab(
        hosts=3, nics=[Nic("eno1", "10.1.0.10/24", "mgmt"), Nic("data0", "10.2.0.10/24", "data")]
    )
    with lab.broken("duplicate-address", host="node1", of="node0", nic="data0"):
        links = cluster(lab).links
    seen = {
        (li.dst, li.ok, li.error, li.answered_by)
        for li in links
        if li.src == "node2"
        and li.address == "10.2.0.10"
        and li.purpose == "interface"
        and li.bound == "routed"
    }
    assert seen in (
        {("node0", True, "", ""), ("node1", False, "another node answered", "node0")},
        {("node1", True, "", ""), ("node0", False, "another node answered", "node1")},
    )


@pytest.mark.parametrize(("fault", "error"), [("fw-ports", "timed out"), ("fw-reject", "connection refused")])
def test_a_closed_rendezvous_port_is_told_from_the_others(shared_lab: Shared, fault: str, error: str) -> None:
    lab = shared_lab(hosts=2)
    with lab.broken(fault):
        found = cluster(lab)
    (((src, dst, address), ports),) = port_filters(found).items()
    closed = {li.port: li.error for li in found.links if (li.src, li.address) == (src, address) and not li.ok}
    assert (src, dst, closed) == ("node1", "node0", {29500: error})
    assert len(ports) >= 4 and len(networks(found)) == 1


def test_only_the_wanted_port_open_is_seen_as_that_and_in_its_direction(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    with lab.broken("fw-highports"):
        found = cluster(lab)
    (((src, dst, address), ports),) = port_filters(found).items()
    errors = {li.error for li in found.links if (li.src, li.address) == (src, address) and not li.ok}
    assert (src, dst, ports, errors) == ("node1", "node0", (29500,), {"timed out"})
    assert (networks(found), cut_pairs(found)) == ((), (("node1", "node0"),))
    assert routed(found.links)["node0", "10.0.0.11"] == ""


def test_one_direction_cut_is_one_direction(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    with lab.broken("fw-oneway"):
        found = cluster(lab)
    assert cut_pairs(found) == (("node1", "node0"),)


def test_when_only_the_answers_vanish_the_way_there_is_not_blamed(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    rules = (
        "type filter hook input priority 0; tcp dport 22 accept; tcp sport 22 accept; ip saddr 10.0.0.11 drop"
    )
    with filtered(lab, "node0", rules):
        links = cluster(lab).links
    assert routed(links) == {("node1", "10.0.0.10"): "timed out", ("node0", "10.0.0.11"): "answer lost"}


def test_an_mtu_black_hole_on_one_card_leaves_the_other(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, nics=TWO_CARDS)
    with lab.broken("mtu-blackhole", host="node1", nic="ib1"):
        found = cluster(lab)
    assert routed(found.links)["node0", "10.2.0.11"] == "large message lost"
    assert [dict(n.interfaces) for n in networks(found)] == [{"node0": "eno1", "node1": "eno1"}]
    assert cut_pairs(found) == ()


def test_a_black_hole_one_way_is_named_with_its_direction(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, nics=TWO_CARDS)
    with filtered(lab, "node0", "type filter hook input priority 0; iifname ib0 meta length > 1400 drop"):
        found = routed(cluster(lab).links)
    assert found["node1", "10.2.0.10"] == "large message lost"
    assert found["node0", "10.2.0.11"] == "large answer lost"


@pytest.mark.parametrize("percent", [5, 20])
def test_loss_is_counted_and_never_taken_for_a_cut(shared_lab: Shared, percent: int) -> None:
    lab = shared_lab(hosts=2, nics=TWO_CARDS)
    with lab.broken("loss", host="node1", nic="ib1", percent=percent):
        found = cluster(lab)
    assert [li for li in without_a_word(found.links) if li.bound == "routed"] == []
    where = {(li.dst, li.address): li.dst_interface for li in found.links}
    assert {where[dst, address] for _, dst, address in repeats(found)} <= {"ib0", "ib1"}
    if percent == 20:
        assert sum(affected for affected, _ in repeats(found).values()) >= 5


def test_routed_point_to_point_links_share_no_subnet_and_work(lab: Shared) -> None:
    made = lab(hosts=3, nics=[Nic("eno1", "10.1.0.10/24", "mgmt"), Nic("swp1", "10.9.0.0/31", "fabric")])
    found = cluster(made)
    assert without_a_word(found.links) == []
    fabric = {"node0": "swp1", "node1": "swp1", "node2": "swp1"}
    assert fabric in [dict(n.interfaces) for n in networks(found)]
    with made.broken("nic-down", host="node2", nic="swp1"):
        down = cluster(made)
    assert [dict(n.interfaces)["node0"] for n in networks(down)] == ["eno1"]


def test_a_slow_card_comes_after_a_fast_one(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2, nics=TWO_CARDS)

    def best() -> str:
        return dict(networks(cluster(lab))[0].interfaces)["node0"]

    assert best() == "eno1"
    with lab.broken("slow-nic", host="node1", nic="eno1"):
        # One short message to each, which other work on this machine may delay.
        wait_for(lambda: best() == "ib0", "the fast card comes first")


def test_a_redirected_port_is_a_stranger(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    rules = "type nat hook prerouting priority -100; tcp dport 29501 redirect to :22"
    with filtered(lab, "node0", rules):
        links = cluster(lab).links
    assert [(li.error, li.stranger) for li in links if li.port == 29501] == [("stranger answered", True)]


def test_seventeen_hosts_are_covered_without_trying_every_pair(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=17)
    nodes = nodes_of(lab)
    proof = proved(lab, nodes)
    assert proof.schedule.startswith("8 of 16 peers tried by each node")
    assert without_a_word(proof.links) == [] and proof.unknown == {}
    assert len({li.src for li in proof.links if li.purpose == "rendezvous"}) == 16
    assert len(networks(Cluster(nodes, proof.links))) == 1


def test_nothing_is_left_on_the_hosts(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    proved(lab)
    for host in lab.hosts:
        lab.sh(host, "while pgrep python3 >/dev/null; do sleep 0.05; done")
    left = [lab.sh(h, "ss -Hltn sport ge 1024 | wc -l").strip() for h in lab.hosts]
    assert left == ["0", "0"]


def test_a_clock_that_lies_changes_nothing(shared_lab: Shared) -> None:
    lab = shared_lab(hosts=2)
    nodes = nodes_of(lab)
    hosts = tuple(n.host for n in nodes)
    with lab.broken("clock"), Transport(hosts, ssh_config=str(lab.ssh_config)) as door:
        proof = prove(door, nodes, Job(), budget_s=110, names=["node0", "nosuch"])
    assert without_a_word(proof.links) == [] and proof.unknown == {}
    known, unknown = proof.clients["node1"].names
    assert known.addresses == ("10.0.0.10",) and unknown.error
