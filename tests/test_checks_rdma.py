"""What the RDMA rules leave alone, and which of several rules speaks of one fault."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import ringup.checks  # noqa: F401
from ringup.model import (
    Bond,
    Cluster,
    Container,
    Gid,
    Job,
    Limits,
    Link,
    Node,
    RdmaPort,
    Risen,
    SocketLimits,
    Verbs,
)
from ringup.planning import mitigations, network
from ringup.rules import Finding, run_checks
from tests import clusters as c
from tests import rule_cases_rdma as r
from tests.rule_cases import FIRES


def serious(cluster: Cluster) -> list[tuple[str, str | None]]:
    """Rule and severity of what is above a note."""
    return [(f.rule, f.severity) for f in run_checks(cluster)[0] if f.severity != "note"]


def noted(cluster: Cluster) -> set[str]:
    return {f.rule for f in run_checks(cluster)[0] if f.severity == "note"}


def only(cluster: Cluster, rule: str) -> Finding:
    found = [f for f in run_checks(cluster)[0] if f.rule == rule]
    assert len(found) == 1
    return found[0]


def management(k: int, state: str = "ACTIVE") -> tuple[Any, ...]:
    """A fast InfiniBand port and a slower RoCE port for management."""
    return r.ib(0), r.roce(1, f"10.11.0.{k + 10}", rate_gbit_s=25.0, state=state)


@pytest.mark.parametrize("cluster", [r.healthy_ib(), r.healthy_roce(), r.with_plugin()])
def test_sound_hardware_gives_nothing_at_all(cluster: Cluster) -> None:
    assert run_checks(cluster)[0] == []


RDMA = [
    name for name in r.OWN if not name.startswith(("backlog", "bond", "conntrack", "interface", "socket"))
]


@pytest.mark.parametrize("rule", RDMA)
def test_gloo_has_no_rdma_and_hears_of_none(rule: str) -> None:
    cluster = replace(FIRES[rule](), job=Job(backend="gloo"))
    assert rule not in {f.rule for f in run_checks(cluster)[0]}


@pytest.mark.parametrize("rule", RDMA)
def test_without_a_gpu_or_a_backend_it_is_only_worth_knowing(rule: str) -> None:
    base = FIRES[rule]()
    cluster = replace(base, nodes=tuple(replace(n, gpu_count=0) for n in base.nodes))
    assert {f.severity for f in run_checks(cluster)[0] if f.rule == rule} <= {"note"}


@pytest.mark.parametrize("rule", RDMA)
def test_one_machine_alone_uses_no_network(rule: str) -> None:
    base = FIRES[rule]()
    alone = replace(base, nodes=base.nodes[-1:], links=())
    assert rule not in {f.rule for f in run_checks(alone)[0]}


# Ports.


def test_a_management_port_that_is_down_on_one_node_is_missed_by_nobody() -> None:
    cluster = r.nodes(lambda k: management(k, "DOWN" if k else "ACTIVE"))
    assert "rdma-port-not-active" not in {f.rule for f in run_checks(cluster)[0]}


def test_a_port_that_nccl_ib_hca_leaves_out_may_be_down() -> None:
    down = FIRES["rdma-port-not-active"]()
    assert serious(replace(down, job=Job(env={"NCCL_IB_HCA": "=mlx5_0"}))) == []


def test_a_port_that_nccl_ib_hca_names_is_missed_even_where_it_is_down_everywhere() -> None:
    cluster = r.nodes(lambda k: (r.ib(0), r.ib(1, state="DOWN")), job=Job(env={"NCCL_IB_HCA": "=mlx5_1"}))
    assert {rule for rule, _ in serious(cluster)} == {"rdma-port-not-active"}


def test_the_last_port_that_goes_is_an_error_and_one_of_two_a_warning() -> None:
    assert serious(FIRES["rdma-port-not-active"]()) == [("rdma-port-not-active", "warning")]
    alone = r.nodes(lambda k: (r.ib(0, state="DOWN" if k else "ACTIVE"),))
    assert serious(alone) == [("rdma-port-not-active", "error")]


def test_an_interface_that_is_down_is_named_and_not_its_port_as_well() -> None:
    base = r.nodes(
        lambda k: r.two_rails(k) if not k else (r.two_rails(k)[0], replace(r.two_rails(k)[1], state="DOWN"))
    )
    node = base.node("node1")
    dead = tuple(
        replace(i, is_up=False, has_carrier=False) if i.name == "eth1" else i for i in node.interfaces
    )
    links = c.breaks(base.links, "*", "*", "10.11.0.11", "no route to host")
    cluster = replace(c.changed(base, "node1", interfaces=dead), links=links)
    assert {rule for rule, _ in serious(cluster)} == {"interface-down"}


def test_a_roce_port_as_slow_as_its_link_is_named_once() -> None:
    base = r.with_port(r.two_rails, rate_gbit_s=25.0)()
    slow = tuple(
        replace(i, speed_gbit_s=25.0) if i.name == "eth1" else i for i in base.node("node1").interfaces
    )
    assert serious(c.changed(base, "node1", interfaces=slow)) == [("link-speed-below-peers", "warning")]


@pytest.mark.parametrize(
    ("address", "family", "fix"),
    [
        ("2001:db8::{}", "", "export NCCL_IB_ADDR_FAMILY=AF_INET6"),
        ("2001:db8::{}", "AF_INET6", ""),
        ("::ffff:10.0.9.{}", "AF_INET6", "unset NCCL_IB_ADDR_FAMILY"),
        ("", "AF_INET6", "a global IPv6 address"),
        ("", "", "an IPv4 address"),
    ],
)
def test_gids_of_the_address_family_that_nccl_uses(address: str, family: str, fix: str) -> None:
    def ports(k: int) -> tuple[RdmaPort, ...]:
        own = address.format(k + 1)
        gids = r.table("10.9.9.9")[:2] + ((Gid(2, own, "IB/RoCE v1"), Gid(3, own, "RoCE v2")) if own else ())
        return (r.roce(0, "10.9.9.9", gids=gids),)

    cluster = replace(r.nodes(ports), job=Job(env={"NCCL_IB_ADDR_FAMILY": family} if family else {}))
    found = [f for f in run_checks(cluster)[0] if f.rule == "gid-missing-or-wrong"]
    assert bool(found) == bool(fix)
    assert all(fix in str(f.fix) for f in found)


def test_a_fabric_without_manager_is_one_finding_for_all_nodes() -> None:
    cluster = r.nodes(lambda k: (r.ib(0, state="INIT", sm_lid=0), r.ib(1, state="INIT", sm_lid=0)), 4)
    assert serious(cluster) == [("no-subnet-manager", "warning")]
    assert only(cluster, "no-subnet-manager").node is None


def test_a_second_card_nobody_manages_anywhere_is_a_note() -> None:
    cluster = r.nodes(lambda k: (r.ib(0), r.ib(1, state="INIT", sm_lid=0)))
    assert serious(cluster) == [] and noted(cluster) == {"no-subnet-manager"}


def test_a_roce_port_in_state_init_waits_for_no_manager() -> None:
    cluster = r.with_port(r.two_rails, state="INIT")()
    assert serious(cluster) == [("rdma-port-not-active", "warning")]


def test_a_port_at_half_its_rate_is_slow_and_not_a_management_port() -> None:
    assert serious(r.with_port(r.two_ib, rate_gbit_s=50.0, width=1)()) == [("rdma-rate-low", "warning")]


def test_devices_under_other_names_are_a_note() -> None:
    cluster = r.nodes(lambda k: (r.ib(2 * k), r.ib(2 * k + 1)))
    assert serious(cluster) == [] and noted(cluster) == {"rdma-device-set-differs"}


def test_a_device_that_only_one_node_has_is_named_there() -> None:
    cluster = r.nodes(lambda k: (r.ib(0), r.ib(1)) if k == 2 else (r.ib(0),), 4)
    found = only(cluster, "rdma-device-set-differs")
    assert (found.node, found.severity) == ("node2", "warning") and "alone has mlx5_1:1" in found.found


def test_another_firmware_is_a_note_with_both() -> None:
    cluster = r.with_port(r.two_ib, firmware="20.39.2048")()
    assert serious(cluster) == []
    assert "20.31.1014 on node0; 20.39.2048 on node1" in only(cluster, "rdma-device-set-differs").found


def test_an_adapter_without_its_rdma_driver_is_no_missing_device() -> None:
    modules = ("ib_uverbs", "mlx5_core")
    base = r.nodes(lambda k: () if k else r.two_ib(0))
    cluster = c.changed(base, "node1", verbs=replace(r.VERBS, modules=modules))
    assert serious(cluster) == [("ib-char-device-without-module", "error")]


def test_a_node_without_any_device_cannot_join_those_that_have() -> None:
    base = r.nodes(lambda k: () if k else r.two_ib(0))
    cluster = c.changed(base, "node1", verbs=replace(r.VERBS, bound=()))
    assert serious(cluster) == [("rdma-device-set-differs", "error")]


def test_the_plan_leaves_a_port_of_another_network_out_and_says_how() -> None:
    for rule in ("mixed-link-layers-selected", "management-port-selected"):
        cluster = FIRES[rule]()
        found = mitigations.weigh(run_checks(cluster)[0], network.decide(cluster, "r"), cluster)
        said = [f for f in found if f.rule == rule]
        assert [f.severity for f in said] == ["warning"]
        assert str(said[0].worked_around_by).startswith("NCCL_IB_HCA='=")


def test_a_list_of_one_s_own_is_kept_and_so_is_the_finding() -> None:
    cluster = replace(FIRES["mixed-link-layers-selected"](), job=Job(env={"NCCL_IB_HCA": "mlx5"}))
    found = mitigations.weigh(run_checks(cluster)[0], network.decide(cluster, "r"), cluster)
    assert [f.worked_around_by for f in found if f.rule == "mixed-link-layers-selected"] == [None]


# Access.


def test_where_nobody_can_open_devices_all_use_tcp_and_none_hangs() -> None:
    cluster = r.nodes(lambda k: tuple(replace(p, can_open=False) for p in r.two_ib(k)))
    assert {severity for _, severity in serious(cluster)} == {"warning"}


def test_a_library_without_the_adapter_s_driver_is_named() -> None:
    cluster = c.changed(r.healthy_ib(), "node1", verbs=replace(r.VERBS, providers=("efa", "rxe")))
    assert "has no driver mlx5, only efa, rxe" in only(cluster, "ib-userspace-missing").found


def test_a_library_whose_drivers_could_not_be_listed_is_left_alone() -> None:
    assert serious(c.changed(r.healthy_ib(), "node1", verbs=replace(r.VERBS, providers=()))) == []


def test_rdma_left_off_in_a_shell_is_said_by_one_rule() -> None:
    env = {"NCCL_IB_DISABLE": "1"}
    base = r.healthy_ib()
    cluster = replace(base, nodes=tuple(replace(n, environment=env) for n in base.nodes))
    assert {rule for rule, _ in serious(cluster)} == {"harmful-env-left-on"}


def test_rdma_turned_off_where_there_is_none_harms_nobody() -> None:
    env = {"NCCL_IB_DISABLE": "1"}
    without = c.healthy()
    cluster = replace(without, nodes=tuple(replace(n, environment=env) for n in without.nodes))
    assert "harmful-env-left-on" not in {f.rule for f in run_checks(cluster)[0]}
    unknown = replace(cluster, nodes=tuple(replace(n, unknown={"rdma_ports": "?"}) for n in cluster.nodes))
    assert "harmful-env-left-on" in {f.rule for f in run_checks(unknown)[0]}


# Marks and addresses.


def test_roce_v1_everywhere_is_a_warning_as_it_works_up_to_the_first_router() -> None:
    v1 = (Gid(0, "fe80::1", "IB/RoCE v1", "eth0"), Gid(1, "fe80::1", "RoCE v2", "eth0"))
    cluster = r.nodes(lambda k: (r.roce(0, f"10.10.0.{k + 10}", gids=v1),))
    assert {(rule, s) for rule, s in serious(cluster)} == {("gid-missing-or-wrong", "warning")}


def test_a_driver_that_tells_no_kind_of_gid_is_not_judged() -> None:
    def told(k: int) -> tuple[Gid, ...]:
        return tuple(replace(g, kind="") for g in r.table(f"10.10.0.{k + 10}", netdev="eth0"))

    assert serious(r.nodes(lambda k: (r.roce(0, f"10.10.0.{k + 10}", gids=told(k)),))) == []


def test_nccl_before_2_21_is_helped_by_the_plan() -> None:
    old = replace(c.TORCH, nccl="2.20.5", torch="2.3.0")
    base = r.healthy_roce()
    cluster = replace(base, nodes=tuple(replace(n, interpreter=old) for n in base.nodes))
    found = mitigations.weigh(run_checks(cluster)[0], network.decide(cluster, "r"), cluster)
    said = [f for f in found if f.rule == "gid-missing-or-wrong"]
    assert {f.severity for f in said} == {"warning"} and len(said) == 2
    assert all("NCCL_IB_GID_INDEX=3" in str(f.worked_around_by) for f in said)


def test_the_same_small_mtu_everywhere_is_slow_on_a_fast_link_and_no_matter_on_a_slow_one() -> None:
    assert serious(r.low_mtu(1500, 1500)()) == [("rdma-mtu-low", "warning")]
    base = r.low_mtu(1500, 1500)()
    slower = tuple(
        replace(n, rdma_ports=tuple(replace(p, rate_gbit_s=25.0) for p in n.rdma_ports)) for n in base.nodes
    )
    assert serious(replace(base, nodes=slower)) == []


def test_iwarp_has_no_packets_of_4096_bytes_to_miss() -> None:
    base = r.low_mtu(1500, 1500)()
    iwarp = tuple(
        replace(
            n,
            rdma_ports=tuple(
                replace(p, driver="irdma", gids=tuple(replace(g, kind="") for g in p.gids))
                for p in n.rdma_ports
            ),
        )
        for n in base.nodes
    )
    assert run_checks(replace(base, nodes=iwarp))[0] == []


def test_an_mtu_that_differs_under_roce_is_said_once_and_louder() -> None:
    cluster = r.low_mtu(9000, 1500)()
    assert serious(cluster) == [("rdma-mtu-low", "warning")] and "mtu-differs" not in noted(cluster)


def test_every_port_in_a_subnet_of_its_own_is_a_routed_fabric() -> None:
    cluster = r.nodes(lambda k: (r.roce(0, f"10.{10 + k}.0.1"), r.roce(1, f"10.{20 + k}.0.1")), 3)
    assert "gid-subnets-differ" not in {f.rule for f in run_checks(cluster)[0]}


@pytest.mark.parametrize(
    ("keys", "found"),
    [((0xFFFF,), False), ((0x7FFF,), False), ((0x8001,), True), ((0,), True), ((0x8001, 0xFFFF), True)],
)
def test_one_node_s_partition_is_held_against_the_others(keys: tuple[int, ...], found: bool) -> None:
    base = r.nodes(r.two_ib, 3)
    ports = (r.ib(0), r.ib(1, pkeys=keys))
    cluster = c.changed(base, "node1", rdma_ports=ports)
    assert ("pkey-table-empty" in {f.rule for f in run_checks(cluster)[0]}) is found


def test_two_limited_members_cannot_talk_to_each_other() -> None:
    cluster = r.nodes(lambda k: (r.ib(0, pkeys=(0x7FFF,)),))
    assert serious(cluster) == [("pkey-table-empty", "error")]


def test_nccl_ib_pkey_says_which_key_counts() -> None:
    cluster = r.nodes(lambda k: (r.ib(0, pkeys=(0xFFFF, 0x8001 + k)),), job=Job(env={"NCCL_IB_PKEY": "1"}))
    assert serious(cluster) == [("pkey-table-empty", "error")]


def test_a_port_that_trusts_vlan_priorities_is_fine_while_nothing_is_marked() -> None:
    assert serious(r.nodes(lambda k: (r.roce(0, f"10.10.0.{k + 10}", trust="pcp"),))) == []


def one_subnet(arp_ignore: int) -> Cluster:
    base = r.nodes(lambda k: (r.roce(0, f"10.10.0.{k + 10}"), r.roce(1, f"10.10.0.{k + 110}")))
    return replace(
        base,
        nodes=tuple(
            replace(n, interfaces=tuple(replace(i, arp_ignore=arp_ignore) for i in n.interfaces))
            for n in base.nodes
        ),
    )


def test_rails_in_one_subnet_that_answer_for_each_other_are_named() -> None:
    assert serious(one_subnet(0)) == [("several-interfaces-one-subnet", "warning")] * 2
    assert serious(one_subnet(1)) == []


def test_a_node_on_which_nothing_was_set_up_for_roce_is_named_once() -> None:
    def port(k: int) -> Any:
        return r.roce(0, f"10.10.0.{k + 10}", pfc=0 if k == 1 else 8, trust="pcp" if k == 1 else "dscp")

    assert serious(r.nodes(lambda k: (port(k),), 3)) == [("dscp-not-trusted", "warning")]


# What rises.


def test_a_slow_rise_of_symbol_errors_is_a_note() -> None:
    cluster = r.rising("rdma:mlx5_1:1", symbol_error=3)()
    assert serious(cluster) == [] and noted(cluster) == {"symbol-errors"}


def test_a_link_that_came_back_is_an_error_and_one_that_was_retrained_a_warning() -> None:
    assert serious(r.rising("rdma:mlx5_1:1", link_downed=1)()) == [("link-flapped", "error")]
    assert serious(r.rising("rdma:mlx5_1:1", link_error_recovery=9)()) == [("link-flapped", "warning")]
    both = r.rising("rdma:mlx5_1:1", link_downed=1, link_error_recovery=9)()
    assert serious(both) == [("link-flapped", "error")]


def test_counters_of_a_port_nccl_does_not_take_are_nobody_s_business() -> None:
    cluster = replace(FIRES["symbol-errors"](), job=Job(env={"NCCL_IB_HCA": "=mlx5_0"}))
    assert "symbol-errors" not in {f.rule for f in run_checks(cluster)[0]}


def test_a_link_that_changed_once_is_down_or_up_and_twice_has_flapped() -> None:
    def changes(count: int) -> Cluster:
        return c.changed(
            c.healthy(), "node1", rises=(Risen("interface:enp99s0", 2.0, {"carrier_changes": count}),)
        )

    assert serious(changes(1)) == []
    assert serious(changes(2)) == [("interface-errors", "warning")]


def test_what_was_looked_at_once_is_not_checked_and_says_why() -> None:
    base = r.healthy_ib()
    cluster = c.changed(base, "node1", unknown={"rises": "the counters were read once only: no answer"})
    findings, skipped = run_checks(cluster)
    assert findings == []
    assert {(s.rule, s.node) for s in skipped} >= {("link-flapped", "node1"), ("interface-errors", "node1")}
    assert all("read once only" in s.reason for s in skipped)


def test_connections_that_nobody_took_in_time_are_counted_on_the_head() -> None:
    rises = (Risen("tcp", 2.0, {"ListenOverflows": 4}),)
    assert serious(c.changed(c.healthy(), "node0", rises=rises)) == [("backlog-overflow", "warning")]
    assert serious(c.changed(c.healthy(), "node1", rises=rises)) == []


def test_a_slow_interface_to_meet_on_is_no_fault_where_data_goes_over_rdma() -> None:
    cluster = r.healthy_roce()
    assert not [f for f in run_checks(cluster)[0] if f.rule == "slow-interface-chosen"]
    off = replace(cluster, job=Job(env={"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eno1"}))
    assert {f.rule for f in run_checks(off)[0]} == {"slow-interface-chosen"}


def test_half_duplex_is_slow_whatever_the_rate() -> None:
    base = c.healthy()
    half = tuple(
        replace(i, duplex="half") if i.name == "enp99s0" else i for i in base.node("node1").interfaces
    )
    assert serious(c.changed(base, "node1", interfaces=half)) == [("slow-interface-chosen", "warning")]


def test_links_are_not_needed_to_judge_ports() -> None:
    none: tuple[Link, ...] = ()
    assert "rdma-rate-low" in {f.rule for f in run_checks(replace(FIRES["rdma-rate-low"](), links=none))[0]}


def test_locked_memory_stops_nobody_who_has_no_gpu() -> None:
    low = Limits(65536.0, 65536)
    cluster = c.changed(r.healthy_roce(), "node1", limits=low)
    assert serious(cluster) == [("memlock-too-low", "error")]
    root = replace(low, locks_freely=True)
    assert serious(c.changed(r.healthy_roce(), "node1", limits=root)) == []
    without = replace(cluster, nodes=tuple(replace(n, gpu_count=0) for n in cluster.nodes))
    assert serious(without) == [] and "memlock-too-low" in noted(without)
    gloo = run_checks(replace(cluster, job=Job(backend="gloo")))[0]
    assert "memlock-too-low" not in {f.rule for f in gloo}


# Nonsense.

WORDS = ("", "x", "mlx5_0", "ib0", "eno1", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "\x1b[2J", "$(id)")
ENV = {
    "NCCL_IB_HCA": ("mlx5", "=mlx5_0", "^", "==a", "^=mlx5_1:1", ","),
    "NCCL_IB_GID_INDEX": ("3", "x", "-1", "99"),
    "NCCL_IB_PKEY": ("1", "99", "-3"),
    "NCCL_IB_TC": ("106",),
    "NCCL_IB_DISABLE": ("1",),
}


def any_port(dice: random.Random) -> RdmaPort:
    return RdmaPort(
        dice.choice(("mlx5_0", "mlx5_1", "mlx5_bond_0", "", "rdmap0s6")),
        dice.choice((0, 1, 2, -1)),
        dice.choice(("ACTIVE", "DOWN", "INIT", "", "?")),
        dice.choice(("LinkUp", "Polling", "")),
        dice.choice(("InfiniBand", "Ethernet", "Unspecified", "")),
        dice.choice((None, 0.0, 100.0, 200.0, -1.0)),
        dice.choice(WORDS),
        bus_id=dice.choice(("", "0000:2e:00.0", "x")),
        gids=tuple(
            Gid(dice.choice((0, 1, 3, -5)), dice.choice(WORDS), dice.choice(("", "RoCE v2", "IB/RoCE v1")))
            for _ in range(dice.choice((0, 1, 3)))
        ),
        can_open=dice.random() < 0.7,
        pkeys=tuple(dice.choice((0, 0xFFFF, 0x7FFF, -1)) for _ in range(dice.choice((0, 1, 3)))),
        driver=dice.choice(("mlx5_core", "efa", "")),
        traffic_class=dice.choice((None, 0, 106)),
        trust=dice.choice(("", "pcp", "dscp", "?")),
        pfc=dice.choice((None, 0, 8, 300)),
    )


def any_node(dice: random.Random, k: int) -> Node:
    kinds = ("symbol_error", "link_downed", "rx_drops", "carrier_changes", "rx_errors", "ListenOverflows")
    things = ("rdma:mlx5_0:1", "interface:enp99s0", "tcp", "x", "rdma:rdmap0s6:1")
    facts = ("rdma_ports", "verbs", "rises", "bonds", "socket_limits", "interfaces", "environment", "routes")
    return replace(
        c.plain(k),
        rdma_ports=tuple(any_port(dice) for _ in range(dice.choice((0, 1, 2, 4)))),
        environment={n: dice.choice(v) for n, v in ENV.items() if dice.random() < 0.2},
        gpu_count=dice.choice((0, 8)),
        verbs=Verbs(
            dice.choice(("", "/l")),
            dice.choice(("", "e")),
            dice.choice(((), ("mlx5",), ("x",))),
            has_char_devices=dice.random() < 0.8,
            bound=dice.choice(((), ("0000:2e:00.0",))),
        ),
        rises=tuple(
            Risen(dice.choice(things), dice.choice((0.0, 2.0)), {dice.choice(kinds): dice.choice((1, 1000))})
            for _ in range(3)
        ),
        bonds=(Bond(dice.choice(("enp99s0", "b")), "m", "layer2", ("a", "b"), dice.choice(((), ("a",)))),),
        socket_limits=SocketLimits(*(dice.choice((0, 1, 10**6)) for _ in range(5))),
        unknown={f: "why" for f in facts if dice.random() < 0.05},
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_hardware_that_cannot_be_is_judged_without_a_traceback(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        job = Job(backend=dice.choice(("", "nccl", "gloo")))
        cluster = c.cluster(*(any_node(dice, k) for k in range(dice.choice((1, 2, 3, 4)))), job=job)
        found = mitigations.weigh(run_checks(cluster)[0], network.decide(cluster, "r"), cluster)
        assert all(f.severity in ("error", "warning", "note") and f.found for f in found)


def test_a_name_that_only_sockets_read_is_no_fault_where_rdma_carries_the_data() -> None:
    base = r.healthy_ib()
    # With NCCL_COMM_ID the bootstrap looks for its subnet, and IFNAME is read for sockets alone.
    env = {"NCCL_COMM_ID": "10.0.0.10:5000", "NCCL_SOCKET_IFNAME": "eth77"}

    def named(**more: str) -> set[str]:
        nodes = tuple(replace(n, environment={**env, **more}) for n in base.nodes)
        return {f.rule for f in run_checks(replace(base, nodes=nodes))[0]}

    assert "interface-name-missing" not in named()
    assert "interface-name-missing" in named(NCCL_IB_DISABLE="1")


@pytest.mark.parametrize(
    ("job", "nodes_say", "is_told"),
    [
        ({"NCCL_NET": "Socket"}, {}, True),
        ({"NCCL_IB_DISABLE": "1"}, {}, True),
        ({}, {"NCCL_IB_DISABLE": "1"}, False),  # the node's own setting is judged elsewhere
    ],
)
def test_data_over_ipoib_is_told_where_the_job_asks_for_it(
    job: dict[str, str], nodes_say: dict[str, str], is_told: bool
) -> None:
    cluster = replace(FIRES["ipoib-used-for-data"](), job=Job(env={**job, "NCCL_SOCKET_IFNAME": "ib0"}))
    cluster = replace(cluster, nodes=tuple(replace(n, environment=nodes_say) for n in cluster.nodes))
    assert ("ipoib-used-for-data" in {f.rule for f in run_checks(cluster)[0]}) == is_told


def test_a_list_of_devices_stays_one_that_lets_no_other_port_in() -> None:
    """With `^=` the management port of another network would be taken as well."""
    job = Job(env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})

    def ports(k: int, state: str = "ACTIVE") -> tuple[RdmaPort, ...]:
        down = "DOWN" if k == 1 else "ACTIVE"
        return r.ib(0), r.ib(1, state=down), r.roce(2, f"10.11.0.{k + 10}", rate_gbit_s=25.0)

    fix = only(r.nodes(ports, 3, job=job), "rdma-port-not-active").fix
    assert fix is not None and fix.env == {"NCCL_IB_HCA": "=mlx5_0"}
    lacks = r.nodes(lambda k: tuple(p for p in ports(0) if not (k == 1 and p.device == "mlx5_1")), 3, job=job)
    assert all("mlx5_2" not in f.fix.env.get("NCCL_IB_HCA", "") for f in run_checks(lacks)[0] if f.fix)


def test_no_second_manager_is_started_where_one_serves_other_ports() -> None:
    one = only(r.with_port(r.two_ib, state="INIT", sm_lid=0)(), "no-subnet-manager")
    assert one.fix is not None and not any("opensm" in command for command in one.fix.commands)
    assert "whole fabric is dead" not in one.why
    none = only(r.nodes(lambda k: (r.ib(0, state="INIT", sm_lid=0),)), "no-subnet-manager")
    assert none.fix is not None and any("opensm" in command for command in none.fix.commands)
    assert "whole fabric is dead" in none.why


def test_a_pod_that_may_open_its_own_device_alone_is_sound() -> None:
    shut = r.with_port(r.two_ib, can_open=False)()
    boxed = c.changed(shut, "node1", container=Container(kind="kubernetes"))
    assert "uverbs-not-accessible" in {f.rule for f in run_checks(shut)[0]}
    assert "uverbs-not-accessible" not in {f.rule for f in run_checks(boxed)[0]}


@pytest.mark.parametrize("field", ["traffic_class", "trust"])
def test_the_odd_one_out_is_asked_to_change_and_not_the_many(field: str) -> None:
    usual, odd = {"traffic_class": (106, 162), "trust": ("pcp", "dscp")}[field]
    own = lambda k: {"trust": "dscp", "traffic_class": 106} | {field: odd if k == 3 else usual}  # noqa: E731
    one = only(r.nodes(lambda k: (r.roce(0, f"10.10.0.{k + 10}", **own(k)),), 4), "dscp-not-trusted")
    assert one.node == "node3" and one.fix is not None
    assert all(str(usual) in command for command in one.fix.commands)
