"""What an ordinary user could not see is listed, with what root would run."""

from __future__ import annotations

import io
from dataclasses import replace

from ringup.checks import privileges
from ringup.cli import pipeline
from ringup.model import Cluster, Host, Listener, Unreached, unreached_node
from ringup.output import console
from ringup.rules import Finding, Fix, Skipped
from tests import clusters as c


def as_user(uid: int) -> Cluster:
    made = c.healthy()
    for name in ("node0", "node1"):
        made = c.changed(made, name, uid=uid)
    return made


def added(cluster: Cluster) -> list[Skipped]:
    return pipeline.judge(cluster).skipped


def test_root_has_nothing_to_add() -> None:
    assert added(as_user(0)) == []


def test_for_an_ordinary_user_every_entry_says_why_and_what_to_run() -> None:
    entries = added(as_user(1000))
    assert {s.node for s in entries} == {"node0", "node1"}
    assert all(s.reason.startswith("needs root: ") and "sudo" in s.as_root and s.is_partial for s in entries)


def test_a_port_whose_owner_is_hidden_is_among_them_and_an_own_one_is_not() -> None:
    own = Listener("0.0.0.0", 8000, "ada", c.process())
    hidden = Listener("0.0.0.0", 22, "root")
    rules = {
        n.name: {s.rule for s in added(c.changed(as_user(1000), n.name, listeners=(li,))) if s.node == n.name}
        for n, li in zip(as_user(1000).nodes, (own, hidden), strict=True)
    }
    assert "port-in-use" not in rules["node0"] and "port-in-use" in rules["node1"]


def test_what_only_root_sees_more_of_does_not_fail_a_strict_check() -> None:
    entries = added(as_user(1000))
    assert pipeline.exit_code([], entries, strict=True) == 0
    assert pipeline.exit_code([], [*entries, Skipped("clock-skew", "node1", "no time")], strict=True) == 3


def test_a_fact_that_was_refused_comes_with_the_command() -> None:
    refused = Skipped(
        "xid-in-kernel-log", "node1", "kernel_events: [Errno 13] Permission denied: '/dev/kmsg'"
    )
    late = Skipped("clock-skew", "node1", "clock: timed out")
    first, second = privileges.would_add(as_user(0), [refused, late])
    assert "dmesg" in first.as_root and not first.is_partial
    assert second == late


def test_root_sees_no_more_of_a_node_that_refuses_the_login() -> None:
    lost = unreached_node(Host("node1"), Unreached("ssh-key-refused", "Permission denied (publickey)."))
    cluster = replace(as_user(0), nodes=(as_user(0).nodes[0], lost))
    judged = pipeline.judge(cluster)
    assert any("Permission denied" in s.reason for s in judged.skipped)
    assert [s for s in judged.skipped if s.as_root] == []
    assert "sudo" not in console.check_text(judged.brief, console.Style(io.StringIO()))


def test_the_report_has_one_line_a_rule_whatever_the_number_of_nodes() -> None:
    cluster = c.healthy(5)
    for node in cluster.nodes:
        cluster = c.changed(cluster, node.name, uid=1000)
    judged = pipeline.judge(cluster)
    text = console.check_text(judged.brief, console.Style(io.StringIO()))
    block = text.partition("more checks as root")[2].split("\n\n")[0]
    assert "\nnot checked" not in text
    assert block.count("orphan-of-earlier-run on node[0-4] (5 nodes): ") == 1
    assert len(block.splitlines()) <= 2 * len({s.rule for s in judged.skipped}) + 1


def test_commands_with_sudo_are_for_the_administrators_unless_the_user_is_root() -> None:
    fix = Fix("Raise it.", commands=("sudo sysctl -w net.core.somaxconn=4096",))
    one = Finding("node0", "128", "4096", "node0", fix, "warning", rule="listen-queue-overflow", why="So.")
    for uid in (0, 1000):
        report = console.Report(as_user(uid), [one], [], None)
        text = console.check_text(report, console.Style(io.StringIO()))
        assert "sudo sysctl" in text
        assert (console.WITHOUT_ROOT in text) == (uid != 0)
