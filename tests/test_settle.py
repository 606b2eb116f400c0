"""What the plan avoids is a warning that says how; what no plan avoids stays an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import ringup.checks  # noqa: F401
from ringup.cli import pipeline
from ringup.model import Cluster, Interpreter, Job, Listener, Process, Resolution
from ringup.planning import mitigations, network
from ringup.rules import Finding, run_checks
from tests import clusters as c
from tests.rule_cases import doubled, filtered, name_on_docker, seen, two


def judged(cluster: Cluster) -> list[Finding]:
    """All findings above a note, settled against the plan that this cluster allows."""
    findings, _ = run_checks(cluster)
    plan = network.decide(cluster, "run")
    return [f for f in mitigations.weigh(findings, plan, cluster) if f.severity != "note"]


def one(cluster: Cluster) -> Finding:
    found = judged(cluster)
    assert len(found) == 1, [f"{f.rule}: {f.found}" for f in found]
    return found[0]


def test_article_002_is_a_warning_that_names_node_interface_address_and_direction() -> None:
    finding = one(c.article_002())
    assert (finding.severity, finding.node, finding.where) == ("warning", "node0", "node0 em1")
    assert "node1 -> node0 em1 10.12.5.64" in finding.found
    assert finding.worked_around_by is not None
    assert "enp99s0" in finding.worked_around_by
    assert "GLOO_SOCKET_IFNAME=enp99s0" in finding.worked_around_by
    assert finding.fix is not None
    assert finding.fix.env["GLOO_SOCKET_IFNAME"] == "enp99s0"


def test_article_002_stays_an_error_for_who_insists_on_that_interface() -> None:
    env = {"NCCL_SOCKET_IFNAME": "em1", "GLOO_SOCKET_IFNAME": "em1"}
    found = judged(c.article_002(job=Job(env=env)))
    assert {f.severity for f in found if f.subject == "interface:node0/em1"} == {"error"}


def test_without_a_plan_nothing_is_avoided() -> None:
    finding = one(two(broken=[("*", "*", "*", "timed out")]))
    assert (finding.rule, finding.severity, finding.worked_around_by) == ("no-common-network", "error", None)


def test_a_missing_interpreter_makes_no_error_of_what_a_plan_would_avoid() -> None:
    whole = c.article_002(job=Job(python="/usr/bin/nopython"))
    without = whole
    for name in ("node0", "node1"):
        without = c.changed(without, name, interpreter=Interpreter(""))
    before, after = ({f.rule: f.severity for f in pipeline.judge(each).findings} for each in (whole, without))
    assert pipeline.judge(without).plan is None
    assert before == {rule: severity for rule, severity in after.items() if rule in before}
    assert [rule for rule in after if rule not in before] == ["python-or-launcher-missing"]


def test_a_node_that_was_not_reached_makes_no_error_of_what_the_others_avoid() -> None:
    nodes = [*c.article_002().nodes, c.unreached("node2", "ssh-timeout")]
    found = {
        f.rule: f.severity for f in pipeline.judge(replace(c.article_002(), nodes=tuple(nodes))).findings
    }
    assert [rule for rule, severity in found.items() if severity == "error"] == ["ssh-timeout"]


def networks_19216(**own: str) -> Cluster:
    """Two nodes on 192.168.7.x whose own names are as given."""
    nodes = []
    for k in (0, 1):
        card = c.interface("enp99s0", f"192.168.7.{10 + k}/24", speed_gbit_s=10.0)
        docker = c.interface("docker0", "172.17.0.1/16", kind="bridge")
        nodes.append(c.node(f"node{k}", card, docker, own=own.get(f"node{k}")))
    return c.cluster(*nodes)


@pytest.mark.parametrize("name", ["node0", "node1"])
@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("127.0.1.1", "hostname-resolves-to-loopback"),
        ("172.17.0.1", "virtual-interface-chosen"),
        ("fd00::7", "hostname-resolves-to-ipv6-only"),
        ("192.168.7.99", "hostname-resolves-to-wrong-address"),
        ("", "own-hostname-unresolvable"),
    ],
)
def test_a_wrong_name_is_worked_around(name: str, address: str, rule: str) -> None:
    finding = one(networks_19216(**{name: address}))
    assert (finding.rule, finding.severity, finding.node) == (rule, "warning", name)
    assert finding.worked_around_by is not None
    assert "GLOO_SOCKET_IFNAME=enp99s0" in finding.worked_around_by


@pytest.mark.parametrize("error", ["Name or service not known", "Temporary failure in name resolution"])
def test_a_peer_that_does_not_know_the_heads_name_is_worked_around(error: str) -> None:
    finding = one(c.changed(c.healthy(), "node1", peer_names=(seen("node0", error=error),)))
    assert (finding.rule, finding.severity) == ("hostname-unresolvable-from-peer", "warning")
    assert (finding.node, finding.subject) == ("node1", "name:node0")


def test_a_peer_with_a_dead_address_for_the_heads_name_is_worked_around() -> None:
    finding = one(c.changed(c.healthy(), "node1", peer_names=(seen("node0", "10.0.0.99"),)))
    assert finding.severity == "warning"
    assert "node0 is 10.0.0.99 on node1" in finding.found


def test_no_names_known_anywhere_is_one_finding_a_node() -> None:
    cluster = c.healthy()
    for name, peer in (("node0", "node1"), ("node1", "node0")):
        nothing = Resolution(name, (), "Name or service not known")
        cluster = c.changed(cluster, name, own_name=nothing, peer_names=(replace(nothing, name=peer),))
    found = judged(cluster)
    assert [(f.rule, f.node, f.severity) for f in found] == [
        ("own-hostname-unresolvable", "node0", "warning"),
        ("own-hostname-unresolvable", "node1", "warning"),
    ]


STRANGER = Listener("0.0.0.0", 29500, "bob", Process(77, "bob", 3600.0, "nc -l 29500"))


def busy(**more: object) -> Cluster:
    base = c.changed(c.healthy(**more), "node0", listeners=(STRANGER,))  # type: ignore[arg-type]
    return replace(base, links=c.breaks(base.links, "*", "node0", "*", "port held", "29500"))


def test_a_busy_port_is_avoided_by_another_and_its_holder_is_named() -> None:
    finding = one(busy())
    assert (finding.rule, finding.severity, finding.node) == ("port-in-use", "warning", "node0")
    assert finding.worked_around_by == "the rendezvous is on port 29501"
    for word in ("77", "bob", "1 h", "nc -l 29500"):
        assert word in finding.found


def test_a_busy_port_the_user_insists_on_stays_an_error() -> None:
    assert one(busy(job=Job(port=29500))).severity == "error"


def test_a_stale_run_on_the_port_is_named_once_and_avoided() -> None:
    stale = c.process()
    listener = Listener("0.0.0.0", 29500, "ada", stale)
    base = c.changed(c.healthy(), "node0", leftovers=(stale, c.process(4243)), listeners=(listener,))
    base = replace(base, links=c.breaks(base.links, "*", "node0", "*", "port held", "29500"))
    finding = one(base)
    assert (finding.rule, finding.severity) == ("orphan-of-earlier-run", "warning")
    assert "4242" in finding.found
    assert "29500" in finding.found
    assert finding.worked_around_by


@pytest.mark.parametrize("error", ["timed out", "connection refused"])
def test_a_filtered_port_is_avoided_by_another(error: str) -> None:
    finding = one(filtered("29500", error)())
    assert (finding.rule, finding.severity, finding.node) == ("rendezvous-port-filtered", "warning", "node0")
    assert finding.worked_around_by == "the rendezvous is on port 29501"


def test_only_one_port_open_stops_the_run() -> None:
    base = c.healthy()
    links = c.breaks(base.links, "*", "node0", "*", "timed out")
    opened = {id(new): old for old, new in zip(base.links, links, strict=True)}
    kept = tuple(opened[id(li)] if li.port == 29500 else li for li in links)
    finding = one(replace(base, links=kept))
    assert (finding.rule, finding.severity, finding.node) == ("firewall-drops-high-ports", "error", "node0")


def test_one_direction_cut_on_the_only_network_stops_the_run() -> None:
    for src, dst in (("node0", "node1"), ("node1", "node0")):
        finding = one(c.healthy(broken=[(src, dst, "*", "timed out")]))
        assert (finding.rule, finding.severity, finding.node) == ("asymmetric-reachability", "error", dst)
        assert f"{src} -> {dst}" in finding.found


def test_one_direction_of_packets_cut_is_seen_from_both_ends_and_named_once() -> None:
    finding = one(
        c.healthy(broken=[("node1", "node0", "*", "timed out"), ("node0", "node1", "*", "answer lost")])
    )
    assert (finding.rule, finding.node) == ("asymmetric-reachability", "node0")
    assert "node1 -> node0" in finding.found


def test_a_black_hole_on_one_of_two_networks_is_avoided() -> None:
    broken = [
        ("node0", "node1", "10.12.5.65", "large message lost"),
        ("node1", "node0", "10.12.5.64", "large answer lost"),
    ]
    finding = one(two(broken=broken))
    assert (finding.rule, finding.severity, finding.where) == ("path-mtu-black-hole", "warning", "node1 em1")
    assert finding.worked_around_by is not None
    assert "enp99s0" in finding.worked_around_by


def test_a_black_hole_on_the_only_network_stops_the_run() -> None:
    finding = one(c.healthy(broken=[("node0", "node1", "*", "large message lost")]))
    assert (finding.rule, finding.severity, finding.node) == ("path-mtu-black-hole", "error", "node1")


def test_a_doubled_address_on_the_only_network_stops_the_run() -> None:
    finding = one(doubled())
    assert (finding.rule, finding.severity) == ("same-address-on-two-nodes", "error")


def test_a_name_on_docker0_does_not_hide_behind_a_plan_that_needs_it() -> None:
    finding = one(name_on_docker())
    assert (finding.severity, finding.where) == ("warning", "node0 docker0")


def test_one_of_two_cards_down_is_avoided() -> None:
    from tests.rule_cases import down

    finding = one(down(1, is_up=False, has_carrier=False))
    assert (finding.rule, finding.severity, finding.where) == ("interface-down", "warning", "node1 em1")
    assert one(down(0, is_up=True, has_carrier=False)).where == "node0 em1"


def test_interfaces_named_differently_are_no_fault() -> None:
    nodes = [
        c.node("node0", c.interface("enp99s0", "10.0.0.1/24", speed_gbit_s=10.0)),
        c.node("node1", c.interface("ens13", "10.0.0.2/24", speed_gbit_s=10.0)),
    ]
    assert judged(c.cluster(*nodes)) == []


def test_a_routed_fabric_of_point_to_point_links_is_no_fault() -> None:
    nodes = [c.node(f"node{k}", c.interface("eth0", f"10.9.{k}.0/31", speed_gbit_s=100.0)) for k in range(3)]
    assert judged(c.cluster(*nodes)) == []


def test_a_preset_variable_that_names_no_interface_stays_an_error() -> None:
    finding = one(c.changed(c.healthy(), "node1", environment={"GLOO_SOCKET_IFNAME": "eth7"}))
    assert (finding.rule, finding.severity, finding.node) == ("interface-name-missing", "error", "node1")
    assert "GLOO_SOCKET_IFNAME=eth7" in finding.found


def test_launcher_variables_are_unset_by_the_plan() -> None:
    finding = one(c.changed(c.healthy(), "node1", environment={"PET_NNODES": "1"}))
    assert finding.worked_around_by == "PET_NNODES is unset for the job"


def test_torchrun_off_the_path_is_avoided_by_the_interpreters_path() -> None:
    finding = one(c.changed(c.healthy(), "node1", torchrun_on_path=""))
    assert (finding.rule, finding.severity, finding.node) == ("launcher-not-on-path", "warning", "node1")
    assert finding.worked_around_by is not None
    assert "/opt/venv/bin/python" in finding.worked_around_by


def test_missing_or_other_torch_stops_the_run() -> None:
    old = replace(c.TORCH, torch="2.6.0")
    for interpreter in (Interpreter("/usr/bin/python3", "3.11.2"), old, Interpreter("")):
        finding = one(c.changed(c.healthy(), "node1", interpreter=interpreter))
        assert (finding.severity, finding.node) == ("error", "node1")


def test_findings_come_worst_first() -> None:
    cluster = c.changed(c.article_002(), "node1", interpreter=Interpreter("/usr/bin/python3", "3.11.2"))
    assert [f.severity for f in judged(cluster)] == ["error", "warning"]


def test_what_stops_the_job_comes_before_what_another_plan_would_avoid() -> None:
    base = c.article_002()
    links = c.breaks(base.links, "node1", "node0", "90.91.33.64", "timed out")
    found = judged(replace(base, links=links))
    assert [f.rule for f in found] == ["asymmetric-reachability", "peer-unreachable-on-interface"]


def test_a_bad_link_of_one_node_in_many_is_put_down_to_that_node() -> None:
    finding = one(c.healthy(4, broken=[("*", "node2", "*", "timed out"), ("node2", "*", "*", "answer lost")]))
    assert finding.node == "node2"


class TestOfAValueThatMatchesNothing:
    """`--env NCCL_SOCKET_IFNAME=ib`: no interface is called so."""

    @pytest.mark.parametrize("gpus", [8, None])
    def test_it_is_no_way_round_an_interface_where_the_job_may_use_nccl(self, gpus: int | None) -> None:
        cluster = with_gpus(c.article_002(job=Job(env={"NCCL_SOCKET_IFNAME": "ib"})), gpus)
        found = judged(cluster)
        missing = [f for f in found if f.rule == "interface-name-missing"]
        assert [f.node for f in missing] == ["node0", "node1"]
        assert all("NCCL_SOCKET_IFNAME=ib" in f.found for f in missing)
        assert all("NCCL_SOCKET_IFNAME" not in (f.worked_around_by or "") for f in found)
        assert {f.severity for f in found if f.subject == "interface:node0/em1"} == {"error"}

    def test_it_is_no_part_of_gloos_way_round(self) -> None:
        cluster = with_gpus(c.article_002(job=Job(env={"NCCL_SOCKET_IFNAME": "ib"})), 0)
        em1 = next(f for f in judged(cluster) if f.subject == "interface:node0/em1")
        assert em1.worked_around_by == "ranks use enp99s0 (90.91.33.64), by GLOO_SOCKET_IFNAME=enp99s0"

    def test_gloos_is_no_way_round_either(self) -> None:
        found = judged(with_gpus(c.article_002(job=Job(env={"GLOO_SOCKET_IFNAME": "ib"})), 0))
        assert {f.severity for f in found if f.subject == "interface:node0/em1"} == {"error"}
        assert all("GLOO_SOCKET_IFNAME" not in (f.worked_around_by or "") for f in found)

    def test_a_users_value_that_leads_away_is_named_as_the_way_round(self) -> None:
        env = {"NCCL_SOCKET_IFNAME": "=enp99s0"}
        em1 = next(f for f in judged(with_gpus(c.article_002(job=Job(env=env)), 8)) if "em1" in f.where)
        assert em1.severity == "warning"
        assert "NCCL_SOCKET_IFNAME='=enp99s0' and GLOO_SOCKET_IFNAME=enp99s0" in (em1.worked_around_by or "")


def with_gpus(cluster: Cluster, count: int | None) -> Cluster:
    """The same with so many GPUs on each node; None: they could not be counted."""
    more: dict[str, object] = {"unknown": {"gpu_count": "no answer"}}
    if count is not None:
        more = {"gpu_count": count}
    return replace(cluster, nodes=tuple(replace(n, **more) for n in cluster.nodes))  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [c.article_002, name_on_docker], ids=["article", "docker"])
def test_a_setting_that_matches_no_interface_is_never_the_way_one_is_avoided(
    made: Callable[[], Cluster],
) -> None:
    findings = judged(replace(made(), job=Job(env={"NCCL_SOCKET_IFNAME": "eth"})))
    assert "interface-name-missing" in {f.rule for f in findings}
    ways = [f.worked_around_by or "" for f in findings if f.rule != "interface-name-missing"]
    assert ways and not any("NCCL_SOCKET_IFNAME" in way for way in ways)
