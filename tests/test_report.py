"""What is shown: text for people, JSON as promised, a page that runs nothing."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import shlex
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest
from markupsafe import escape

from ringup.cli import explain
from ringup.logs import read
from ringup.logs.evidence import LogEvidence
from ringup.logs.rule import Cause
from ringup.model import Address, Cluster, Interface, Interpreter, Job, Link, Node
from ringup.output import console, html_page
from ringup.output import logs_report as show
from ringup.output.terminal import Style, fitted
from ringup.planning import EnvVar, Plan
from ringup.planning.preset_variables import Kept
from ringup.rules import PROBLEMS, Finding, Fix, Skipped
from ringup.runtime import RunResult, record

NASTY = "<script>alert(1)</script>\x1b[31m\u202e"

CARD = Interface("eth0", 2, "physical", True, True, 1500, 10.0, addresses=(Address("10.0.0.1", 24),))
NODE = Node("node0", interfaces=(CARD,), interpreter=Interpreter("/py", torch="2.13.0"))
CLUSTER = Cluster(
    nodes=(NODE, replace(NODE, name="node1")),
    links=(
        Link("node0", "node1", "eth0", "eth0", "10.0.0.2", 40000, True, rtt_ms=0.2, large_packet_ok=True),
        Link("node1", "node0", "eth0", "eth0", "10.0.0.1", 40000, False, error="timed out"),
    ),
)
FINDING = Finding(
    where=f"node0 {NASTY}",
    found=NASTY,
    wanted="quiet",
    severity="error",
    rule="port-in-use",
    why="because",
    fix=Fix("do this", env={"A": NASTY}, commands=("ls",)),
)
PLAN = Plan("id", Job(), (), (EnvVar("A", "b", "needed"),), "10.0.0.1", 29500, 2, notes=("meet on eth0",))


def text(**changes: object) -> str:
    return console.check_text(console.Report(CLUSTER, [FINDING], [], PLAN), console.Style(io.StringIO()))


def test_text_for_a_terminal_holds_no_control_characters() -> None:
    shown = text()
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert "\\x1b[31m" in shown


def test_the_number_of_good_paths_is_told() -> None:
    assert "1 of 2 paths" in text()


def test_an_error_forbids_to_start() -> None:
    assert "Not ready" in text().splitlines()[-1]


def test_a_quiet_cluster_is_ready_to_run() -> None:
    shown = console.check_text(console.Report(CLUSTER, [], [], PLAN), console.Style(io.StringIO()))
    assert "Ready to run" in shown.splitlines()[-1]


def test_what_was_not_checked_is_listed_with_its_reason_once() -> None:
    skipped = [Skipped(f"rule-{i}", "node1", "no answer") for i in range(5)]
    lines = console.skipped_lines(skipped)
    assert lines == ["  node1: rule-0, rule-1, rule-2 and 2 more: no answer"]


def test_one_reason_for_many_facts_and_nodes_is_one_line() -> None:
    failed = "--setup failed: exit status 1: hi"
    skipped = [
        Skipped(rule, node, "; ".join(f"{fact}: {failed}" for fact in facts))
        for node in ("n0", "n1", "n2", "n3")
        for rule, facts in (("a", ("limits",)), ("b", ("limits", "gpu_count")), ("c", ("environment",)))
    ]
    skipped += [Skipped("clock-skew", "n0", "clock: timed out"), Skipped("d", "n0", "x: late; y: denied")]
    assert console.skipped_lines(skipped) == [
        f"  n0, n1, n2, n3: a, b, c: {failed}",
        "  n0: clock-skew: clock: timed out",
        "  n0: d: x: late; y: denied",
    ]


def test_json_has_the_promised_keys_and_no_infinity() -> None:
    limits = replace(NODE.limits, memlock_bytes=float("inf"))
    cluster = replace(CLUSTER, nodes=(replace(NODE, limits=limits),))
    answer = json.loads(
        json.dumps(console.check_json(console.Report(cluster, [FINDING], [], PLAN)), allow_nan=False)
    )
    assert set(answer) >= {"ringup", "schema", "nodes", "findings", "not_checked", "pairs", "env"}
    assert set(answer["findings"][0]) == {
        *("rule", "severity", "node", "where", "found", "wanted", "why", "worked_around_by", "fix", "help")
    }
    assert answer["pairs"] == [] or set(answer["pairs"][0]) >= {"src", "dst", "ok", "error", "rtt_ms"}
    assert answer["env"] == [{"name": "A", "value": "b", "node": None, "because": "needed"}]


def test_the_page_shows_hostile_words_as_words() -> None:
    html = html_page.check_page(console.Report(CLUSTER, [FINDING], [Skipped("r", NASTY, NASTY)], PLAN))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html and "\u202e" not in html


def test_the_page_shows_no_secret_of_a_finding() -> None:
    finding = replace(FINDING, found="WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567")
    html = html_page.check_page(console.Report(CLUSTER, [finding], [], PLAN))
    assert "WANDB_API_KEY=" in html and "0123456789abcdef" not in html


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = html_page.check_page(console.Report(CLUSTER, [FINDING], [], PLAN))
    assert "://" not in html and "src=" not in html and "href" not in html


def test_the_page_says_what_is_set_already_and_what_is_open() -> None:
    kept = [Kept("NCCL_DEBUG", NASTY, "debugging", f"only words {NASTY}", "node0")]
    html = html_page.check_page(
        console.Report(CLUSTER, [], [], replace(PLAN, open=("which card is open",)), (), kept)
    )
    assert "NCCL_DEBUG=&#39;&lt;script" in html and "which card is open" in html
    assert "<script" not in html and "\x1b" not in html


def test_one_finding_on_many_nodes_is_shown_once_with_its_places() -> None:
    same = [replace(FINDING, where=f"node{i}", node=f"node{i}", found="no torch") for i in range(6)]
    merged = console.folded([*same, FINDING])
    assert [f.where for f in merged] == ["node[0-5] (6 nodes)", FINDING.where]


def on_node(name: str, command: str, text: str = "load it") -> Finding:
    return replace(FINDING, where=name, node=name, fix=Fix(text, commands=(command,)))


def test_a_finding_on_three_nodes_shows_the_commands_of_all_three() -> None:
    same = [on_node(f"node{i}", f"ssh node{i} 'modprobe nvidia_peermem'") for i in range(3)]
    (merged,) = console.folded(same)
    assert merged.fix is not None
    assert merged.fix.commands == tuple(f"ssh node{i} 'modprobe nvidia_peermem'" for i in range(3))


def test_what_many_nodes_are_to_do_is_one_command_with_all_their_names() -> None:
    same = [on_node(f"node{i}", f"ssh node{i} 'modprobe nvidia_peermem'") for i in range(40)]
    (merged,) = console.folded(same)
    assert merged.fix is not None
    (command,) = merged.fix.commands
    names = " ".join(f"node{i}" for i in range(40))
    assert command == f"for node in {names}; do ssh \"$node\" 'modprobe nvidia_peermem'; done"


def test_findings_with_other_fixes_are_not_folded() -> None:
    same = [on_node("node0", "true"), on_node("node1", "true", "unload it")]
    assert [f.where for f in console.folded(same)] == ["node0", "node1"]


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[TextIO]:
    """A stream that is a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (100, 100), (190, 190), (12, 40), (0, 100)])
def test_findings_are_as_wide_as_the_terminal(
    columns: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    wordy = replace(FINDING, where="node0", found="found it " * 60, fix=Fix("do it " * 90))
    with terminal(columns) as stream:
        lines = console.finding_lines(wordy, console.Style(stream))
    assert width - 9 < max(map(len, lines)) <= width


def test_a_rules_first_error_or_warning_ends_with_the_address_of_its_page_on_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    rules = ["hostname-resolves-to-wrong-address", "shm-too-small", "shm-too-small", "swap-in-use"]
    found = [replace(FINDING, rule=rule, severity="error", worked_around_by=None) for rule in rules]
    found[-1] = replace(found[-1], severity="note")
    with terminal(40) as stream:
        text = fitted("\n".join(console.findings_lines(found, Style(stream))), stream)
    pages = [line for line in text.splitlines() if "://" in line]
    assert pages == [f"  more       {PROBLEMS[rule].page}" for rule in rules[:2]]


def test_findings_in_a_pipe_or_file_are_100_wide() -> None:
    lines = console.finding_lines(replace(FINDING, found="found it " * 60), console.Style(io.StringIO()))
    assert 91 < max(map(len, lines)) <= 100


def test_a_style_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(70) as stream:
        style = Style(stream)
    assert (style.width, style.on) == (70, False)


def test_a_run_that_the_check_stopped_is_recorded_with_the_keys_of_any_other(tmp_path: Path) -> None:
    stopped = record.run_json("r1", outcome="check-stopped", exit_code=1, started=0, findings=[FINDING])
    record.write(tmp_path, stopped)
    written = json.loads((tmp_path / record.FILE).read_text())
    plan = record.plan_json(PLAN)
    usual = record.run_json("r", outcome="ok", exit_code=0, started=0, plan=plan, findings=[FINDING])
    assert list(written) == list(usual)
    assert (written["run"], written["outcome"], written["exit_code"]) == ("r1", "check-stopped", 1)
    assert written["findings"] == json.loads(json.dumps(usual["findings"]))


def test_the_list_of_problems_keeps_its_columns_on_a_terminal_and_is_a_line_each_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ringup.checks  # noqa: F401  (fills the registry)

    shown = list(explain.listed(PROBLEMS.values()))
    assert len("\n".join(shown).splitlines()) == len(PROBLEMS)
    with terminal(80) as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        lines = "\n".join(explain.listed(PROBLEMS.values())).splitlines()
    assert len(lines) > len(PROBLEMS) and max(map(len, lines)) <= 80


def test_a_value_from_a_node_or_a_log_does_nothing_when_its_export_is_pasted() -> None:
    evil = "=e$(id)`id`;id #'"
    fix = Fix("do this", env={"NCCL_SOCKET_IFNAME": evil})
    said = console.finding_lines(replace(FINDING, fix=fix), console.Style(io.StringIO()))
    cause = Cause("text", "low", severity="error", fix=fix, rule="some-rule")
    diagnosis = read.Diagnosis(
        [cause], LogEvidence([], []), SimpleNamespace(transports={}, collectives={}, by_communicator={})
    )  # type: ignore
    said += show.cause_lines(cause, diagnosis.story, Style(io.StringIO()))
    (pasted, same) = [line.strip() for line in said if "export" in line]
    assert pasted == same and shlex.split(pasted) == ["export", f"NCCL_SOCKET_IFNAME={evil}"]
    check = html_page.check_page(console.Report(CLUSTER, [replace(FINDING, fix=fix)], [], None))
    for html in (check, html_page.logs_page(diagnosis)):
        assert f"<pre>{escape(pasted)}</pre>" in html


def test_a_warning_before_a_run_says_what_is_wanted_unless_it_is_worked_around() -> None:
    style = console.Style(io.StringIO())
    clock = Finding("node1", "90 s ahead", "clocks within 1 s", severity="warning", rule="clock-skew")
    told = ["warning node1: 90 s ahead", "  wanted: clocks within 1 s (`ringup explain clock-skew`)"]
    assert console.brief_lines(clock, style) == told
    assert console.brief_lines(replace(clock, severity="note"), style) == ["note node1: 90 s ahead"]
    avoided = console.brief_lines(replace(clock, worked_around_by="it is ignored"), style)
    assert avoided[1:] == ["  worked around: it is ignored"]


def test_a_run_that_was_ended_as_hung_says_last_who_was_missing() -> None:
    missing = [{"rank": n, "node": f"node{n // 2}", "where": f"train.py:4: wait({NASTY})"} for n in (1, 2)]
    hangs = [{"verdict": "busy", "missing": [], "collective": ""}]
    hangs += [{"verdict": "stalled", "missing": missing, "collective": "all_reduce"}]
    result = RunResult("r", "hung", 124, None, (), (), (), "logs", 13.0, {"hangs": hangs})
    lines = console.run_lines(result, console.Style(io.StringIO()))
    assert lines[-1] == "hung, ended 13 s after the start: ranks 1, 2 on node0, node1 missing from all_reduce"
    assert lines[0] == "where each was in the code:"
    assert lines[1].startswith("  rank 1 (node0): train.py:4: wait(") and "\x1b" not in "".join(lines)
    there = (
        "2 ranks (0, 3): all_reduce, train.py:9",
        f"rank 1 (node0): {missing[0]['where']}",
        "  its process 7: read",
    )
    known = replace(result, record={"hangs": [{**hangs[1], "lines": there}]})
    shown = console.run_lines(known, console.Style(io.StringIO()))[:-1]
    places = ["  rank 1 (node0)", "  rank 2 (node1)", "  2 ranks (0, 3)"]
    assert [line.partition(": ")[0] for line in shown[1:]] == places
    unknown = replace(result, record={"hangs": hangs[:1]})
    assert console.run_lines(unknown, console.Style(io.StringIO())) == ["hung, ended 13 s after the start"]


@pytest.mark.parametrize(
    ("rank", "collective", "headline"),
    [
        (
            1,
            "all_reduce",
            "collective 4 of default_pg is all_reduce [3] Float on rank 1, all_reduce [8] on the others",
        ),
        (1, "the GPU", "rank 1 (node0) is missing: the others wait for the GPU"),
        (None, "all_reduce", "process 4711 (node0) is missing from all_reduce"),
    ],
)
def test_a_rank_that_came_or_has_no_number_is_not_said_to_have_been_missing_from_a_collective(
    rank: int | None, collective: str, headline: str
) -> None:
    missing = [{"rank": rank, "node": "node0", "where": "train.py:4"}]
    hang = {"verdict": "stalled", "missing": missing, "collective": collective, "headline": headline}
    result = RunResult("r", "hung", 124, None, (), (), (), "logs", 13.0, {"hangs": [hang]})
    assert (
        console.run_lines(result, console.Style(io.StringIO()))[-1]
        == f"hung, ended 13 s after the start: {headline}"
    )


def test_a_run_that_hung_when_it_was_interrupted_says_what_held_it_up() -> None:
    verdict = {"rule": "collective-mismatch", "text": f"all ranks wait {NASTY}", "ranks": [], "nodes": []}
    result = RunResult("r", "interrupted", 130, None, (), (), (), "logs", 13.0, {"verdict": verdict})
    lines = console.run_lines(result, console.Style(io.StringIO()))
    assert lines[-2].startswith("no progress before it was interrupted: all ranks wait")
    assert lines[-1].startswith("Interrupted after 13 s") and "\x1b" not in "".join(lines)
    missing = [{"rank": 1, "node": "node0", "where": "train.py:4: wait()"}]
    hang = {"verdict": "stalled", "missing": missing, "collective": "all_reduce"}
    held = replace(result, record={"verdict": verdict, "hangs": [hang]})
    assert "  rank 1 (node0): train.py:4: wait()" in console.run_lines(held, console.Style(io.StringIO()))


@pytest.mark.parametrize("left", ["could not be checked after the run: no answer", ""])
def test_an_interrupted_run_calls_every_node_ended_only_where_all_were_looked_at(left: str) -> None:
    findings = (Finding("node1", left, "nothing left", severity="warning"),) if left else ()
    result = RunResult("r", "interrupted", 130, None, (), findings, (), "logs", 13.0)
    told = console.run_lines(result, console.Style(io.StringIO()))
    assert any("on any node" in line for line in told) != bool(left)
    assert any(left in line for line in told)
