"""What single rules say: words, places and fixes that the table of cases does not look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ringup.checks  # noqa: F401
from ringup.checks import paths
from ringup.checks.network_setup import lossy_networks
from ringup.model import (
    Address,
    Cluster,
    FileFact,
    GpuDriver,
    Host,
    Job,
    Limits,
    Link,
    Listener,
    Look,
    Memory,
    Node,
    Process,
    RdmaPort,
    Resolution,
    Space,
)
from ringup.network.predictions import Predictions
from ringup.planning import expected
from ringup.planning.minimal_env import minimal_env
from ringup.planning.network import decide
from ringup.rules import Finding, Skipped, run_checks
from tests import clusters as c
from tests.rule_cases import on_node1, seen, two


def judged(cluster: Cluster) -> list[Finding]:
    return [f for f in run_checks(cluster)[0] if f.severity != "note"]


def one(cluster: Cluster, rule: str = "") -> Finding:
    found = [f for f in judged(cluster) if rule in ("", f.rule)]
    assert len(found) == 1, [f"{f.rule}: {f.found}" for f in found]
    return found[0]


def not_checked(cluster: Cluster, rule: str) -> list[Skipped]:
    return [s for s in run_checks(cluster)[1] if s.rule == rule]


def test_digits_of_other_scripts_are_no_numbers_and_no_bug_of_ours() -> None:
    port = RdmaPort("mlx5_0", 1, "ACTIVE", "LinkUp", "Ethernet", 100.0, "enp99s0")
    odd = c.changed(
        c.healthy(job=Job(script="train.py", launcher="deepspeed")),
        "node1",
        interpreter=replace(c.TORCH, torch="2.²", nccl="2.²", cuda="²"),
        kernel="6.²",
        gpu_count=1,
        gpu_driver=GpuDriver("²"),
        rdma_ports=(port,),
        environment={"NCCL_IB_TC": "²", "CUDA_VISIBLE_DEVICES": "²", "NCCL_IB_HCA": "mlx5_0:²"},
    )
    run_checks(odd)
    assert minimal_env(odd, debug=True).env
    assert expected(Predictions(odd), None)


# Paths.


def test_a_network_that_fails_both_ways_is_one_finding_with_both_directions() -> None:
    cluster = two(
        broken=[("*", "*", "10.12.5.64", "timed out"), ("*", "*", "10.12.5.65", "no route to host")]
    )
    finding = one(cluster)
    assert finding.rule == "peer-unreachable-on-interface"
    assert "node1 -> node0 em1 10.12.5.64: timed out" in finding.found
    assert "node0 -> node1 em1 10.12.5.65: no route to host" in finding.found
    assert finding.fix is not None
    assert finding.fix.env == {"NCCL_SOCKET_IFNAME": "=enp99s0", "GLOO_SOCKET_IFNAME": "enp99s0"}


def test_an_unreachable_card_that_nobody_uses_is_no_finding() -> None:
    nodes = [
        c.node(
            f"node{k}",
            c.interface("enp1s0", f"10.0.0.{k + 1}/24"),
            c.interface("bmc0", f"169.253.{k}.1/24"),
        )
        for k in range(2)
    ]
    broken = [("*", "*", "169.253.0.1", "timed out"), ("*", "*", "169.253.1.1", "timed out")]
    assert judged(c.cluster(*nodes, broken=broken, job=Job(backend="gloo"))) == []


def test_nccl_picks_one_card_and_only_carries_data_over_the_others() -> None:
    fast = [c.interface("enp99s0", f"90.91.33.{64 + k}/24") for k in (0, 1)]
    em1 = c.interface("em1", "10.12.5.64/24")
    nodes = (c.node("node0", fast[0], em1, own="10.12.5.64"), c.node("node1", fast[1]))
    finding = one(c.cluster(*nodes, broken=[("node1", "node0", "10.12.5.64", "timed out")]))
    assert "NCCL would also carry data over it" in finding.found
    assert "first in kernel order" not in finding.found


def test_the_same_card_counts_where_nccl_takes_it() -> None:
    nodes = [
        c.node(
            f"node{k}",
            c.interface("enp1s0", f"10.0.0.{k + 1}/24"),
            c.interface("bmc0", f"169.253.{k}.1/24"),
        )
        for k in range(2)
    ]
    cluster = c.cluster(*nodes, broken=[("*", "*", "169.253.0.1", "timed out")])
    assert one(cluster).where == "node0 bmc0"


def test_all_networks_cut_is_one_finding_that_lists_every_path() -> None:
    finding = one(two(broken=[("*", "*", "*", "timed out")]))
    for part in ("em1 10.12.5.64", "em1 10.12.5.65", "enp99s0 90.91.33.64", "enp99s0 90.91.33.65"):
        assert part in finding.found
    assert finding.fix is not None
    assert any("90.91.33" in command or "10.12.5" in command for command in finding.fix.commands)


def test_a_node_no_pair_test_spoke_of_is_not_checked_and_does_not_spoil_the_others() -> None:
    cluster = c.healthy(3, pairs_unknown={"node2": "no answer"})
    kept = tuple(li for li in cluster.links if "node2" not in (li.src, li.dst))
    cluster = replace(cluster, links=kept)
    assert [f.rule for f in judged(cluster)] == ["pairs-not-tested"]
    assert [(s.node, s.reason) for s in not_checked(cluster, "path-mtu-black-hole")] == [
        ("node2", "pairs: no answer")
    ]


def test_no_pair_tried_at_all_is_said_and_is_no_fault() -> None:
    cluster = replace(c.healthy(), links=())
    assert judged(cluster) == []
    assert [s.reason for s in not_checked(cluster, "no-common-network")] == [
        "pairs: no node was tried from another"
    ]


def test_failed_attempts_bound_to_a_device_explain_and_prove_nothing() -> None:
    base = c.healthy()
    extra = replace(base.links[0], ok=False, error="timed out", bound="device", large_packet_ok=None)
    assert judged(replace(base, links=(*base.links, extra))) == []


def test_a_bad_node_among_many_is_blamed_for_all_of_its_paths() -> None:
    cluster = c.cluster(
        *(c.two_networks(k) for k in range(5)),
        broken=[
            ("*", "node3", "10.12.5.67", "large message lost"),
            ("node3", "*", "*", "large answer lost"),
        ],
    )
    links = tuple(
        replace(li, large_packet_ok=True, error="")
        if li.src == "node3" and li.dst_interface == "enp99s0" and li.purpose == "interface"
        else li
        for li in cluster.links
    )
    finding = one(replace(cluster, links=links))
    assert (finding.rule, finding.where, finding.node) == ("path-mtu-black-hole", "node3 em1", "node3")


def test_black_holes_name_the_mtus() -> None:
    cluster = c.healthy(broken=[("node0", "node1", "*", "large message lost")])
    assert "node1 enp99s0 1500 bytes" in one(cluster).found


def test_a_filter_on_node1_alone_is_a_cut_direction_since_no_low_port_was_tried_there() -> None:
    base = c.healthy()
    links = c.breaks(base.links, "node0", "node1", "*", "timed out")
    finding = one(replace(base, links=links))
    assert (finding.rule, finding.node) == ("asymmetric-reachability", "node1")


def test_edges_carry_the_interfaces_of_both_ends() -> None:
    edge = next(iter(paths.edges(two(broken=[("node1", "node0", "10.12.5.64", "timed out")]))))
    assert (edge.src_interface, edge.interface, edge.network) == ("em1", "em1", "10.12.5.0/24")


def test_played_nodes_are_not_judged_by_addresses_they_share() -> None:
    nodes = [
        c.node(
            f"127.0.0.{k}", c.interface("lo0", f"127.0.0.{k}/8"), own="127.0.1.1", hostname="vm", boot_id="x"
        )
        for k in (2, 3)
    ]
    assert judged(c.cluster(*nodes, is_local=True)) == []


# Interfaces.


def test_docker0_is_no_duplicate_and_no_unreachable_interface() -> None:
    docker = c.interface("docker0", "172.17.0.1/16", kind="bridge")
    nodes = [c.node(f"node{k}", c.interface("enp1s0", f"10.0.0.{k + 1}/24"), docker) for k in range(2)]
    assert judged(c.cluster(*nodes, broken=[("*", "*", "172.17.0.1", "own address")])) == []


@pytest.mark.parametrize("others", [(), (c.unreached("node1", "ssh-timeout"),)])
def test_a_free_port_of_the_only_node_that_answered_is_not_down(others: tuple[Node, ...]) -> None:
    free = c.interface("eno2", has_carrier=False)
    alone = c.node("node0", c.interface("enp1s0", "10.0.0.1/24"), free)
    assert "interface-down" not in {f.rule for f in judged(c.cluster(alone, *others))}


def test_a_doubled_address_hides_no_failure_of_other_nodes() -> None:
    card = {"speed_gbit_s": 100.0}
    twice = c.node("node1", c.interface("enp99s0", "10.0.0.10/24", "10.0.0.11/24", **card))
    nodes = (c.plain(0), twice, c.plain(2), c.plain(3))
    broken = [("node2", "node3", "10.0.0.13", "timed out"), ("node3", "node2", "10.0.0.12", "timed out")]
    found = {f.rule: f for f in judged(c.cluster(*nodes, broken=broken))}
    assert set(found) == {"same-address-on-two-nodes", "no-common-network"}
    assert "node2 -> node3 enp99s0 10.0.0.13: timed out" in found["no-common-network"].found


def test_what_a_run_takes_out_of_the_environment_is_said() -> None:
    left = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "GROUP_RANK": "0", "RANK": "0", "PET_NNODES": "2"}
    cluster = c.changed(c.healthy(), "node1", environment=left)
    plan = decide(cluster)
    assert plan is not None and set(plan.nodes[1].unset) == set(left)
    said = one(cluster, "launcher-environment-preset").found
    assert all(name in said for name in left)


def test_a_name_in_capitals_is_the_node_s_own_name() -> None:
    first = c.node("Node0", c.interface("enp1s0", "10.0.0.1/24"), hostname="node0.cluster")
    unknown = (Resolution("Node0", (), "Name or service not known"),)
    second = c.node("node1", c.interface("enp1s0", "10.0.0.2/24"), peer_names=unknown)
    finding = one(c.cluster(first, second), "hostname-unresolvable-from-peer")
    assert (finding.severity, finding.where) == ("error", "node1")


@pytest.mark.parametrize(
    ("address", "said"), [("10.0.0.10/24", "are one machine"), ("10.0.0.11/24", "to NCCL")]
)
def test_clones_and_containers_are_not_said_to_be_one_machine(address: str, said: str) -> None:
    card = c.interface("enp99s0", address, speed_gbit_s=100.0)
    docker = c.interface("docker0", "172.17.0.1/16", kind="bridge", has_carrier=False)
    twin = c.node("node1", card, docker, hostname="node0", boot_id="boot-node0", gpu_count=1)
    found = [f for f in judged(c.cluster(c.plain(0, gpu_count=1), twin)) if f.rule == "same-machine-twice"]
    assert [f.severity for f in found] == ["error"] and said in found[0].found


def test_a_node_that_waited_for_a_dead_path_is_not_called_slow_as_well() -> None:
    looks = (Look("/nfs/data", 5.0, answered=False),)
    cluster = c.changed(c.healthy(3), "node1", looks=looks, answer_s=6.2)
    assert one(cluster).rule == "nfs-mount-slow"


def test_swap_in_use_is_told_where_the_kernel_keeps_no_account_of_pressure() -> None:
    """As on Red Hat's kernels, which are booted with psi=0."""
    memory = Memory(8 * c.GIB, 4 * c.GIB, stalled_share=None)
    cluster = c.changed(c.healthy(), "node1", memory=memory, memory_bytes=64 * c.GIB)
    found = [f for f in run_checks(cluster)[0] if f.rule == "swap-in-use"]
    assert [(f.severity, f.found) for f in found] == [("note", "4 GiB of 8 GiB swap used")]


def test_a_node_called_as_a_placeholder_is_named_once_in_commands() -> None:
    finding = one(c.cluster(c.unreached("GPUHOST7", "ssh-no-route")), "ssh-no-route")
    assert finding.fix is not None and finding.fix.commands[0] == "ping -c 3 GPUHOST7"
    refused = one(c.cluster(c.unreached("HOST", "ssh-key-refused")), "ssh-key-refused")
    assert refused.fix is not None and refused.fix.commands[0] == "ssh-copy-id HOST"


def veths(gpu_count: int) -> Cluster:
    """Docker hosts on which a container runs: its cable has a link-local address only."""
    nodes = [
        c.node(
            f"node{k}",
            c.interface("enp1s0", f"10.0.0.{k + 1}/24"),
            c.interface("veth12", "fe80::9/64", kind="veth", master="docker0"),
            gpu_count=gpu_count,
        )
        for k in range(2)
    ]
    return c.cluster(*nodes)


def test_a_containers_veth_matters_only_where_nccl_will_run() -> None:
    assert {(f.rule, f.severity) for f in run_checks(veths(0))[0]} == {("virtual-interface-chosen", "note")}
    assert {(f.rule, f.severity) for f in run_checks(veths(8))[0]} == {("virtual-interface-chosen", "error")}


def test_down_everywhere_means_unused() -> None:
    nodes = [
        c.node(f"node{k}", c.interface("eno1", f"10.0.0.{k + 1}/24"), c.interface("eno2", up=False))
        for k in range(3)
    ]
    assert judged(c.cluster(*nodes)) == []


def test_a_card_that_lost_its_address_with_its_link_is_missed_by_its_peers() -> None:
    nodes = [
        c.node(
            f"node{k}", c.interface("eno1", f"10.0.0.{k + 1}/24"), c.interface("eno2", f"10.1.0.{k + 1}/24")
        )
        for k in range(2)
    ]
    nodes.append(c.node("node2", c.interface("eno1", "10.0.0.3/24"), c.interface("eno2", up=False)))
    assert one(c.cluster(*nodes)).where == "node2 eno2"


def test_a_stranger_at_a_nodes_address_is_named() -> None:
    finding = one(c.healthy(broken=[("*", "node1", "*", "stranger answered")]))
    assert (finding.rule, finding.node) == ("same-address-on-two-nodes", "node1")


# Names.


def test_a_peer_that_knows_the_wrong_name_everyone_knows_is_not_named_twice() -> None:
    cluster = c.changed(c.healthy(), "node0", own_name=seen("node0", "127.0.1.1"))
    cluster = c.changed(cluster, "node1", peer_names=(seen("node0", "127.0.1.1"),))
    assert one(cluster).rule == "hostname-resolves-to-loopback"


def test_a_name_matters_less_where_gloo_is_told_its_interface() -> None:
    cluster = c.changed(c.healthy(), "node1", own_name=seen("node1", "127.0.1.1"))
    cluster = replace(cluster, job=Job(env={"GLOO_SOCKET_IFNAME": "enp99s0"}))
    assert judged(cluster) == []


@pytest.mark.parametrize(
    "told",
    [
        {"own_name": Resolution("node1", (), "no answer within 5.5 s", 5.5)},
        {"peer_names": (Resolution("node0", (), "no answer within 4 s", 4.0),)},
        {
            "own_name": Resolution("node1", (), "no answer within 5.5 s", 5.5),
            "unknown": {"reverse_lookup_s": "no name of another node resolves here"},
        },
    ],
)
def test_a_name_that_was_not_waited_for_is_slow_and_not_unknown(told: dict[str, Any]) -> None:
    finding = one(on_node1(**told)())
    assert (finding.rule, finding.severity, finding.node) == ("reverse-dns-slow", "warning", "node1")
    assert "did not end within" in finding.found and "does not know" not in finding.found


def test_a_name_that_was_hardly_waited_for_is_not_checked() -> None:
    cluster = on_node1(own_name=Resolution("node1", (), "no answer within 0 s", 0.0))()
    found, skipped = run_checks(cluster)
    assert found == []
    assert ("node1", "name lookups were given up after 0.0 s") in [
        (s.node, s.reason) for s in skipped if s.rule == "reverse-dns-slow"
    ]


PINNED = Job(env={"NCCL_SOCKET_IFNAME": "=em1", "GLOO_SOCKET_IFNAME": "em1"})


def with_second(count: int = 3, job: Job = PINNED, **fields: Any) -> Cluster:
    """em1 and a second NIC, enp99s0, which has these fields on node1, or addresses on all nodes."""
    made = []
    for k in range(count):
        node = c.two_networks(k, own=f"10.12.5.{64 + k}")
        card = node.interfaces[2]
        if "addresses" in fields or k == 1:
            card = replace(card, **fields)
        made.append(replace(node, interfaces=(*node.interfaces[:2], card)))
    return c.cluster(*made, job=job)


@pytest.mark.parametrize(("job", "severity"), [(PINNED, "note"), (Job(), "error")])
def test_an_interface_that_is_down_matters_if_the_job_would_use_it(job: Job, severity: str) -> None:
    found = run_checks(with_second(job=job, is_up=False, has_carrier=False))[0]
    assert ("interface-down", severity) in [(f.rule, f.severity) for f in found]


@pytest.mark.parametrize(("job", "severity"), [(PINNED, "note"), (Job(), "error")])
def test_one_address_of_every_nodes_bmc_matters_if_the_job_would_use_it(job: Job, severity: str) -> None:
    same = (c.address("192.168.100.1/24"),)
    found = [f for f in run_checks(with_second(job=job, addresses=same))[0] if f.rule.startswith("same-a")]
    assert [f.severity for f in found] == [severity] and "BMC" in str(found[0].fix)


def test_the_link_speed_of_a_network_that_the_job_does_not_use_is_a_note() -> None:
    base = [c.two_networks(k) for k in range(3)]
    slow = replace(base[1].interfaces[1], speed_gbit_s=10.0)
    base[1] = replace(base[1], interfaces=c.numbered(slow, base[1].interfaces[2]))
    env = {"NCCL_SOCKET_IFNAME": "=enp99s0", "GLOO_SOCKET_IFNAME": "enp99s0"}
    speeds = [f for f in run_checks(c.cluster(*base, job=Job(env=env)))[0] if "speed" in f.rule]
    assert [(f.rule, f.severity) for f in speeds] == [("link-speed-below-peers", "note")]


def test_what_gloo_announces_is_not_known_while_the_resolver_is_silent() -> None:
    cluster = on_node1(own_name=Resolution("node1", (), "no answer within 5.5 s", 5.5))()
    made = expected(Predictions(cluster), None)[1].prediction
    assert made.bootstrap is None and "no answer within 5.5 s" in made.missing[0]


def test_one_node_is_no_reason_to_judge_names() -> None:
    node = c.plain(0, own_name=Resolution("node0", ("127.0.1.1",)))
    assert judged(c.cluster(node)) == []


def test_a_name_unknown_on_several_nodes_is_one_finding() -> None:
    cluster = c.healthy(4)
    for name in ("node1", "node2"):
        others = tuple(r for r in cluster.node(name).peer_names if r.name != "node0")
        cluster = c.changed(cluster, name, peer_names=(seen("node0", error="not known"), *others))
    finding = one(cluster)
    assert (finding.node, finding.where) == (None, "node0")
    assert "node1 does not know node0" in finding.found
    assert "node2 does not know node0" in finding.found


# Ports and leftovers.


def test_a_port_held_by_somebody_who_cannot_be_seen_is_still_named() -> None:
    cluster = c.changed(c.healthy(), "node0", listeners=(Listener("0.0.0.0", 29500, "root"),))
    assert "a process of root that this user cannot see" in one(cluster).found


def test_another_port_of_the_users_is_the_one_that_is_judged() -> None:
    held = (Listener("0.0.0.0", 29500, "root"),)
    cluster = c.changed(c.healthy(job=Job(port=29600)), "node0", listeners=held)
    assert judged(cluster) == []


def test_ipv6_alone_is_no_harm_where_the_only_ipv4_address_is_a_link_local_one() -> None:
    def rules(*addresses: Address) -> set[str]:
        card = replace(c.interface("eth0", "fd00::1/64"), addresses=(c.address("fd00::1/64"), *addresses))
        set_there = {"NCCL_SOCKET_FAMILY": "AF_INET6"}
        return {f.rule for f in judged(c.cluster(c.node("node0", card, environment=set_there)))}

    of_the_bmc = Address("169.254.3.1", 16, "inet", "link")
    assert "harmful-env-left-on" not in rules(of_the_bmc)
    assert "harmful-env-left-on" in rules(of_the_bmc, c.address("10.0.0.1/24"))


def test_a_torchrun_on_no_path_is_a_note_where_somebody_else_starts_it() -> None:
    cluster = c.healthy()
    none = replace(cluster, nodes=tuple(replace(n, torchrun_on_path="") for n in cluster.nodes))
    assert {f.rule for f in run_checks(none)[0]} == {"launcher-not-on-path"}
    assert run_checks(replace(none, job=Job(script="train.py")))[0] == []


def test_a_python_that_differs_is_shown_by_a_command_that_shows_it() -> None:
    other = replace(c.healthy().nodes[1].interpreter, version="3.12.1")
    finding = one(on_node1(interpreter=other)(), "python-versions-differ")
    assert finding.fix and finding.fix.commands[0].endswith("python --version")


def test_an_orphan_that_holds_nothing_is_a_warning() -> None:
    finding = one(on_node1(leftovers=(c.process(),))())
    assert (finding.rule, finding.severity) == ("orphan-of-earlier-run", "warning")
    for word in ("pid 4242", "ada", "2 h", "python train.py"):
        assert word in finding.found


def test_a_running_job_that_holds_the_port_is_no_orphan() -> None:
    alive = c.process(evidence="running: its parent is sshd (pid 812)")
    cluster = c.changed(
        c.healthy(), "node0", leftovers=(alive,), listeners=(Listener("0.0.0.0", 29500, "ada", alive),)
    )
    assert (one(cluster).rule, one(cluster).fix.text) == ("port-in-use", "end that process if it is yours")  # type: ignore[union-attr]
    named = replace(cluster, job=Job(port=29500))
    assert one(named).fix.text.startswith("leave --master-port out")  # type: ignore[union-attr]


def test_a_node_without_swap_that_waits_for_memory_is_not_said_to_swap() -> None:
    finding = one(on_node1(memory=Memory(0, 0, 0.2), memory_bytes=64 * c.GIB)(), "swap-in-use")
    assert finding.found == "there is no swap, tasks waited for memory in 20% of the last minute"
    assert "swap" not in finding.wanted and finding.fix and "swap" not in finding.fix.text


def test_a_directory_that_no_node_has_may_be_misspelt() -> None:
    nowhere = FileFact("/nosuch", False)
    some = one(on_node1(chdir=nowhere)(), "directory-missing")
    assert some.fix and "correct its name" not in some.fix.text
    cluster = c.changed(c.changed(c.healthy(), "node0", chdir=nowhere), "node1", chdir=nowhere)
    everywhere = [f for f in judged(cluster) if f.rule == "directory-missing"]
    assert len(everywhere) == 2 and all(f.fix and "correct its name" in f.fix.text for f in everywhere)


def test_the_processes_of_another_run_are_told_once() -> None:
    alive = [c.process(n, age_s=50.0 - n, run_id=f"r{n // 4}", evidence="running") for n in range(8)]
    findings = run_checks(on_node1(leftovers=tuple(alive))())[0]
    found = next(f for f in findings if f.rule == "other-job-running").found
    assert found.count("pid ") == 2 and found.count(", and 3 more of that run") == 2
    assert found.startswith("pid 0 of ada, 50 s old: python train.py (running), and 3 more")


def test_the_processes_of_a_job_that_ringup_did_not_start_are_told_once() -> None:
    words = ["a torchrun process", *(f"rank {n} of 8" for n in range(8))]
    alive = [
        c.process(n, age_s=50.0 - n, evidence=f"running: its parent is sshd (pid 9); {w}")
        for n, w in enumerate(words)
    ]
    findings = run_checks(on_node1(leftovers=tuple(alive))())[0]
    found = next(f for f in findings if f.rule == "other-job-running").found
    assert found.endswith(
        "(running: its parent is sshd (pid 9); a torchrun process), and 8 more with that parent"
    )


def test_what_processes_call_themselves_cannot_draw_on_the_terminal() -> None:
    evil = Process(7, "bob", 5.0, "x\x1b[2J" + "y" * 5000)
    cluster = c.changed(c.healthy(), "node0", listeners=(Listener("::", 29500, "bob", evil),))
    found = one(cluster).found
    assert "\x1b" not in found
    assert len(found) < 400


# The rest.


@pytest.mark.parametrize(("gpu_count", "severity"), [(0, "note"), (1, "warning"), (8, "error")])
def test_docker_s_64_mib_of_shm_weigh_by_the_gpus(gpu_count: int, severity: str) -> None:
    small = Space("/dev/shm", 64 * 1024**2, 64 * 1024**2)
    nodes = [c.plain(k, shm=small, gpu_count=gpu_count) for k in range(2)]
    assert {f.severity for f in run_checks(c.cluster(*nodes))[0] if f.rule == "shm-too-small"} == {severity}


def test_the_usual_limit_of_1024_open_files_is_enough_for_a_small_job() -> None:
    nodes = [c.plain(k, limits=Limits(65536, 1024)) for k in range(2)]
    assert run_checks(c.cluster(*nodes))[0] == []


def test_torch_that_pip_records_otherwise_is_seen() -> None:
    odd = replace(c.TORCH, packages={"torch": "2.6.0"})
    assert one(on_node1(interpreter=odd)()).rule == "torch-versions-differ"


def test_the_head_decides_between_two_versions_of_torch() -> None:
    finding = one(on_node1(interpreter=replace(c.TORCH, torch="2.6.0"))())
    assert finding.node == "node1"
    assert finding.wanted.startswith("2.13.0")


def test_torch_missing_everywhere_is_named_on_every_node() -> None:
    bare = replace(c.TORCH, torch="", nccl="", cuda="")
    cluster = c.cluster(*(c.plain(k, interpreter=bare) for k in range(2)))
    assert [(f.rule, f.node) for f in judged(cluster)] == [
        ("torch-missing", "node0"),
        ("torch-missing", "node1"),
    ]


def test_links_to_unknown_nodes_are_ignored() -> None:
    ghost = Link("ghost", "node0", "", "enp99s0", "10.0.0.10", 1, ok=False, error="timed out")
    cluster = c.healthy()
    assert judged(replace(cluster, links=(*cluster.links, ghost))) == []


# More ranks than a machine can carry.


def with_ranks(cluster: Cluster, nproc: int, **facts: Any) -> list[Finding]:
    nodes = tuple(replace(n, cpu_count=2, memory_bytes=24 * c.GIB, **facts) for n in cluster.nodes)
    return run_checks(replace(cluster, nodes=nodes, job=Job(nproc=nproc)))[0]


def test_a_number_of_ranks_that_cannot_be_meant_is_told_with_both_numbers() -> None:
    found = [f for f in with_ranks(c.healthy(1), 3000) if f.severity != "note"]
    memory = next(f for f in found if f.rule == "ranks-exceed-memory")
    assert (memory.severity, memory.found) == ("error", "24 GiB of memory and 2 CPUs for 3,000 ranks")
    assert "processors-fewer-than-ranks" not in {f.rule for f in found}
    few = next(f for f in with_ranks(c.healthy(1), 300) if f.rule == "processors-fewer-than-ranks")
    assert (few.severity, few.found) == ("warning", "2 CPUs for 300 ranks")


@pytest.mark.parametrize(("nproc", "severity"), [(2, None), (3, "note"), (32, "note"), (33, "warning")])
def test_ranks_that_take_turns_are_a_note_until_nobody_can_have_meant_them(
    nproc: int, severity: str | None
) -> None:
    found = [f for f in with_ranks(c.healthy(1), nproc) if f.rule == "processors-fewer-than-ranks"]
    assert [f.severity for f in found] == [severity] * (severity is not None)
    assert not any(f.rule == "ranks-exceed-memory" for f in with_ranks(c.healthy(1), nproc))


def test_nodes_played_on_one_machine_share_its_processors_and_memory() -> None:
    cluster = replace(c.healthy(8), is_local=True)
    rules = {f.rule: f for f in with_ranks(cluster, 50)}
    assert "50 ranks, 400 in all on this machine" in rules["ranks-exceed-memory"].found
    assert "ranks-exceed-memory" not in {f.rule for f in with_ranks(c.healthy(8), 50)}


@pytest.mark.parametrize(
    ("host", "told"), [(Host("node0", slots=64), True), (Host("node0", slots=64, in_batch=True), False)]
)
def test_slots_of_a_host_file_beyond_the_gpus_are_told(host: Host, told: bool) -> None:
    cluster = c.cluster(replace(c.plain(0), host=host, gpu_count=8, cpu_count=128))
    found = [f.found for f in judged(cluster) if f.rule == "nproc-exceeds-gpus"]
    assert found == ["64 processes requested, 8 GPUs are visible"] * told


def test_slots_of_a_host_file_are_ranks() -> None:
    found = with_ranks(c.healthy(1), 0, host=Host("node0", slots=1000))
    assert "ranks-exceed-memory" in {f.rule for f in found}


# Variables that nobody reads.


@pytest.mark.parametrize(
    ("name", "gpus", "backend", "severity"),
    [
        ("NCCL_SOCKET_IFNAME", 0, "", "warning"),
        ("NCCL_SOCKET_IFNAME", 8, "", "error"),
        ("NCCL_SOCKET_IFNAME", 0, "nccl", "error"),
        ("GLOO_SOCKET_IFNAME", 0, "", "error"),
    ],
)
def test_a_name_that_only_nccl_reads_stops_no_job_without_gpus(
    name: str, gpus: int, backend: str, severity: str
) -> None:
    nodes = tuple(replace(n, gpu_count=gpus) for n in c.healthy().nodes)
    cluster = replace(c.healthy(), nodes=nodes, job=Job(backend=backend, env={name: "eth99"}))
    found = [f.severity for f in run_checks(cluster)[0] if f.rule == "interface-name-missing"]
    assert found == [severity] * 2


@pytest.mark.parametrize(("every", "severe"), [(1, True), (3, True), (8, False)])
def test_one_node_that_loses_packets_stands_out_and_is_severe_by_its_share(every: int, severe: bool) -> None:
    base = c.healthy(8)
    links = tuple(
        replace(li, segments=9, retransmitted=int(li.src == "node3" and k % every == 0))
        for k, li in enumerate(base.links)
    )
    (found,) = lossy_networks(replace(base, links=links))
    assert (found.way[0], found.alone, found.severe) == ("node3", True, severe)
