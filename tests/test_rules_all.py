"""Every rule has a case that fires, one that stays quiet, a text, and reads only what it declares."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringup.checks
import ringup.logs.causes  # noqa: F401  (both fill their registries)
from ringup import lint
from ringup.lint.rule import ACROSS, SCRIPT, SHELL
from ringup.logs.rule import CAUSES
from ringup.model import Address, Cluster, Host, Interface, Link, Node, Resolution, Unreached, unreached_node
from ringup.planning import mitigations, network
from ringup.recovery.table import _TEXT as TABLE
from ringup.rules import CHECKS, PROBLEMS, Finding, run_checks
from ringup.rules.problems import TEXTS
from tests import clusters as c
from tests import rule_cases_gpu, rule_cases_machine, rule_cases_rdma  # noqa: F401 (they add their cases)
from tests.rule_cases import AND_ALSO, FIRES, QUIET

NAMES = list(CHECKS)
FIELDS = {f.name for f in dataclasses.fields(Node)}
ALWAYS = {"name", "host", "unknown", "unreached"}


def findings(name: str, cluster: Cluster) -> list[Finding]:
    """What one rule says of a cluster."""
    return run_checks(cluster, {name: CHECKS[name]})[0]


@functools.cache
def firing(name: str) -> Cluster:
    """A cluster with this fault."""
    return FIRES[name]()


def serious(cluster: Cluster) -> list[str]:
    """Names of all findings above a note, of all rules."""
    return [f.rule for f in run_checks(cluster)[0] if f.severity != "note"]


def test_every_problem_that_explain_lists_is_found_by_some_rule() -> None:
    """Each rule of these tables has a case that fires: here, in test_logs_causes.py or in test_lint.py."""
    found = {*CHECKS, *CAUSES, *SCRIPT, *SHELL, *ACROSS, lint.NOT_READABLE.name}
    assert set(PROBLEMS) == found, "a text in rules/problems.py without a rule, or a rule without a text"


ONCE = """
class Once(dict):
    def __setitem__(self, name, value):
        assert self.setdefault(name, value) == value, f"twice: {name}"

from ringup import rules
from ringup.lint import rule as faults
from ringup.logs import rule as causes
rules.PROBLEMS, rules.CHECKS = Once(rules.PROBLEMS), Once()
faults.SCRIPT, faults.SHELL, faults.ACROSS, causes.CAUSES = Once(), Once(), Once(), Once()
import ringup.checks, ringup.lint, ringup.logs.causes
print(len(faults.SHELL) + len(rules.CHECKS) + len(causes.CAUSES))
"""


def test_a_name_is_of_one_rule_in_each_table_and_of_one_text() -> None:
    done = subprocess.run([sys.executable, "-c", ONCE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and int(done.stdout) > 250, done.stderr
    heads = re.findall(r"(?m)^([a-z][a-z-]+), (?:error|warning|note): ", TEXTS)
    causes = [name for line in TABLE.splitlines() if line.startswith("    ") for name in line.split()]
    assert len({*heads}) == len(heads) > 50 and len({*causes}) == len(causes) > 50
    for name, problem in PROBLEMS.items():
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name)
        assert problem.summary and problem.why and problem.fix, name


def test_every_rule_has_both_cases_and_no_case_is_for_nothing() -> None:
    assert set(FIRES) == set(NAMES), "FIRES in tests/rule_cases*.py needs one case of each check"
    assert set(QUIET) == set(NAMES), "QUIET in tests/rule_cases*.py needs one case of each check"


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_fires(name: str) -> None:
    found = findings(name, firing(name))
    assert found, "no finding"
    for finding in found:
        assert finding.where and finding.found and finding.wanted
        assert finding.why and finding.fix and finding.fix.text


@pytest.mark.parametrize("name", NAMES)
def test_the_rule_stays_quiet(name: str) -> None:
    assert findings(name, QUIET[name]()) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_fault_is_named_once(name: str) -> None:
    found = [f for f in run_checks(firing(name))[0] if f.severity != "note" or f.rule == name]
    if name in AND_ALSO:
        assert {f.rule for f in found} == AND_ALSO[name]
    else:
        assert [f.rule for f in found] == [name], [f"{f.rule}: {f.found}" for f in found]


@pytest.mark.parametrize("name", NAMES)
def test_the_text_says_what_why_and_how(name: str) -> None:
    problem = CHECKS[name].problem
    assert problem.summary and problem.why and problem.fix
    assert problem.summary.endswith(".")


NO_VERB = re.compile(
    r"(?:the|a|an|one|no|only|as|same|other|another|each|every|all|less|fewer|more|newer|double)\b"
)


def test_a_fix_begins_with_what_to_do() -> None:
    fixes = [(p.name, text) for p in PROBLEMS.values() for label, _, text in p.parts if label == "Fix"]
    assert [fix for fix in fixes if NO_VERB.match(fix[1])] == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_healthy_cluster_gives_nothing_at_all(count: int) -> None:
    assert run_checks(c.healthy(count))[0] == []


def test_a_cluster_without_nodes_is_no_fault() -> None:
    assert run_checks(Cluster(()))[0] == []


NOTHING = Node("")


def without(cluster: Cluster, field: str, *names: str) -> Cluster:
    """One fact of these nodes (of all, if none is named) could not be read."""
    absent = {field: getattr(NOTHING, field)}
    nodes = tuple(
        replace(n, **absent, unknown={**n.unknown, field: "could not be read"})
        if not names or n.name in names
        else n
        for n in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


@pytest.mark.parametrize("name", NAMES)
def test_a_fact_that_could_not_be_read_is_no_fault(name: str) -> None:
    healthy = c.healthy(3)
    for field in FIELDS - ALWAYS:
        found = findings(name, without(healthy, field, "node1"))
        assert [f for f in found if f.severity != "note"] == [], field


ELSEWHERE = {
    ("symbol-errors", "rises"): "link-flapped says it for all counters of RDMA ports",
    ("receive-errors", "rises"): "the same",
    ("transmit-discards", "rises"): "the same",
    ("transport-retries", "rises"): "the same",
    ("virtual-interface-chosen", "own_name"): "NCCL's choice is judged without Gloo's",
    ("slow-interface-chosen", "own_name"): "the same",
    ("two-nccl-libraries", "nccl_answer"): "LD_PRELOAD is judged",
    ("cgroup-limits-tight", "cpu_count"): "the limit itself is judged",
    ("oom-killer-ran", "rises"): "the counts since boot are judged",
    ("rdma-device-name-missing", "environment"): "the job's own variables are judged",
    ("gid-missing-or-wrong", "environment"): "the same",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_that_an_unreadable_fact_hides_is_shown_as_not_checked(name: str) -> None:
    for field in FIELDS - ALWAYS:
        answers = run_checks(without(firing(name), field), {name: CHECKS[name]})
        assert any(answers) != ((name, field) in ELSEWHERE), field


@pytest.mark.parametrize("name", NAMES)
def test_a_node_that_was_not_reached_is_not_judged(name: str) -> None:
    cluster = c.cluster(c.plain(0), c.plain(1), c.unreached("node2", "ssh-timeout", "Connection timed out"))
    found, skipped = run_checks(cluster, {name: CHECKS[name]})
    assert [f.rule for f in found] == (["ssh-timeout"] if name == "ssh-timeout" else [])
    if CHECKS[name].reads:
        assert {(s.node, s.reason.split(": ")[1]) for s in skipped} >= {("node2", "not reached")}


HOSTILE = "x; touch /tmp/ringup-was-here $(id) 'y\" \n-rf"


@pytest.mark.parametrize("name", NAMES)
def test_names_from_outside_stay_one_word_in_the_commands_to_paste(name: str) -> None:
    cluster = firing(name)
    renamed = {n.name: f"{n.name}{HOSTILE}" for n in cluster.nodes}
    nodes = tuple(
        unreached_node(Host(renamed[n.name]), Unreached(n.unreached.kind, HOSTILE))
        if n.unreached
        else replace(n, name=renamed[n.name], host=Host(renamed[n.name]))
        for n in cluster.nodes
    )
    links = tuple(replace(li, src=renamed[li.src], dst=renamed[li.dst]) for li in cluster.links)
    for finding in findings(name, replace(cluster, nodes=nodes, links=links)):
        for command in finding.fix.commands if finding.fix else ():
            words = shlex.split(command)
            assert "touch" not in words, command
            assert not any(w in ("$(id)", "-rf", "/tmp/ringup-was-here") for w in words), command


WORDS = st.sampled_from(
    ["", "x", "10.0.0.1", "127.0.0.1", "fe80::1%eth0", "999.1.1.1", "node0", "\x1b[2J", "a b", "$(id)"]
)


@st.composite
def nonsense(draw: st.DrawFn) -> Cluster:
    """A cluster as a broken or malicious node (or bundle) might describe itself."""
    nodes = []
    for k in range(draw(st.integers(1, 3))):
        interfaces = tuple(
            Interface(
                draw(WORDS),
                draw(st.integers(-1, 3)),
                draw(st.sampled_from(["physical", "loopback", "bridge", "veth"])),
                is_up=draw(st.booleans()),
                has_carrier=draw(st.booleans()),
                mtu_bytes=draw(st.integers(-1, 9000)),
                speed_gbit_s=draw(st.sampled_from([None, 0.0, -1.0, 100.0])),
                addresses=tuple(
                    Address(draw(WORDS), draw(st.integers(-1, 200)), draw(st.sampled_from(["inet", "inet6"])))
                    for _ in range(draw(st.integers(0, 2)))
                ),
                rp_filter=draw(st.integers(0, 2)),
            )
            for _ in range(draw(st.integers(0, 3)))
        )
        nodes.append(
            replace(
                c.plain(k),
                interfaces=interfaces,
                own_name=Resolution(draw(WORDS), tuple(draw(st.lists(WORDS, max_size=2)))),
                peer_names=tuple(Resolution(draw(WORDS), (draw(WORDS),)) for _ in range(2)),
                environment=dict(draw(st.lists(st.tuples(st.sampled_from(VARIABLES), WORDS), max_size=3))),
                hostname=draw(WORDS),
                answer_s=draw(st.sampled_from([0.0, 99.0])),
            )
        )
    ends = st.sampled_from([n.name for n in nodes])
    links = tuple(
        Link(
            draw(ends),
            draw(ends),
            draw(WORDS),
            draw(WORDS),
            draw(WORDS),
            29500,
            ok=draw(st.booleans()),
            error=draw(st.sampled_from(["timed out", "answer lost", "own address", "large message lost"])),
            large_packet_ok=draw(st.sampled_from([None, True, False])),
            purpose=draw(st.sampled_from(["interface", "rendezvous", "ephemeral"])),
        )
        for _ in range(draw(st.integers(0, 6)))
    )
    return Cluster(tuple(nodes), links)


VARIABLES = [
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_COMM_ID",
    "NCCL_SOCKET_FAMILY",
    "PET_X",
    "RANK",
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(nonsense())
def test_nonsense_from_nodes_is_judged_without_a_traceback(cluster: Cluster) -> None:
    findings, _ = run_checks(cluster)
    plan = network.decide(cluster, "r")
    for finding in mitigations.weigh(findings, plan, cluster):
        assert finding.severity in ("error", "warning", "note")
