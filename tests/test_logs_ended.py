"""`ringup logs` on a run's folder says what the run itself saw."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ringup.hang.verdict import DONE
from ringup.logs.read import read_logs
from ringup.output import logs_report
from ringup.output.terminal import Style
from ringup.runtime.record import verdict_json

TERMINATED = (
    "W1122 15:53:33.265000 9916 torch/distributed/elastic/agent/server/api.py:753] "
    "Received 15 death signal, shutting down workers\n"
)
DIFFER = (
    "collective 4 of default_pg is broadcast [8] Float on rank 1 (a.py:8), all_reduce [8] Float on the others"
)


def run_folder(folder: Path, outcome: str, verdict: dict[str, Any] | None, last: str) -> str:
    record = {"ringup": "0", "run": "r", "outcome": outcome, "started": 1.0, "verdict": verdict}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "ringup.log").write_text(f"a note\n{last}\n")
    (folder / "node0-launcher.log").write_text(TERMINATED)
    return str(folder)


def hang(**fields: Any) -> dict[str, Any]:
    known = {"verdict": "stalled", "headline": DIFFER, "missing": [], "lines": ["rank 1: a.py:8"]}
    return {**known, "rule": "collective-mismatch", "apart": [{"rank": 1, "node": "node1"}], **fields}


def test_a_mismatch_that_the_run_ended_as_hung_is_the_cause(tmp_path: Path) -> None:
    verdict = verdict_json("hung", [hang()])
    diagnosis = read_logs(
        [run_folder(tmp_path, "hung", verdict, f"hung, ended 21 s after the start: {DIFFER}")]
    )
    cause = diagnosis.causes[0]
    assert (cause.rule, cause.severity, cause.confidence) == ("collective-mismatch", "error", "high")
    assert (cause.ranks, cause.nodes) == ((1,), ("node1",))
    assert DIFFER in cause.text
    assert cause.evidence[0].line == 2 and cause.evidence[0].text.startswith("hung, ended 21 s after")
    assert "job-cancelled" not in {c.rule for c in diagnosis.causes}


@pytest.mark.parametrize("proof", ["", "  rank 3 on node1: a.py:8\n"])
def test_of_a_run_that_has_ended_no_stacks_are_asked_for(tmp_path: Path, proof: str) -> None:
    verdict = verdict_json(
        "hung", [hang(rule="rank-fell-behind", missing=[{"rank": 3, "node": "node1", "where": ""}])]
    )
    folder = run_folder(tmp_path, "hung", verdict, f"{proof}hung after 21 s: rank 3 on node1 missing")
    fix = read_logs([folder]).causes[0].fix.text
    assert fix.startswith("read the code after the line" if proof else "read the missing rank's last output")


@pytest.mark.parametrize(
    "rule, missing",
    [
        ("rank-fell-behind", [{"rank": 3, "node": "node1", "where": "a.py:8"}]),
        ("collective-stalled", []),
        ("init-never-finished", []),
    ],
)
def test_every_hang_has_one_verdict(tmp_path: Path, rule: str, missing: list[Any]) -> None:
    verdict = verdict_json("hung", [hang(rule=rule, missing=missing, apart=[], headline="all ranks wait")])
    diagnosis = read_logs([run_folder(tmp_path, "hung", verdict, "hung after 21 s: all ranks wait")])
    assert [c.rule for c in diagnosis.causes] == [rule]
    assert diagnosis.causes[0].ranks == tuple(m["rank"] for m in missing)


def test_a_hang_that_the_user_interrupted_is_the_cause(tmp_path: Path) -> None:
    verdict = verdict_json("hung", [hang()])
    diagnosis = read_logs([run_folder(tmp_path, "interrupted", verdict, "Interrupted after 3 min.")])
    assert [c.rule for c in diagnosis.causes] == ["collective-mismatch"]
    assert diagnosis.causes[0].text.endswith("the run was interrupted while it hung")


@pytest.mark.parametrize("outcome", ["hung", "rank-failed"])
def test_ranks_that_the_run_ended_were_not_ended_from_outside(tmp_path: Path, outcome: str) -> None:
    diagnosis = read_logs([run_folder(tmp_path, outcome, None, "the end")])
    assert "job-cancelled" not in {c.rule for c in diagnosis.causes}


def test_without_a_run_a_termination_came_from_outside(tmp_path: Path) -> None:
    (tmp_path / "node0-launcher.log").write_text(TERMINATED)
    assert [c.rule for c in read_logs([str(tmp_path)]).causes] == ["job-cancelled"]


def test_what_a_sound_run_overcame_is_no_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "ok", None, "done after 3 s")
    (tmp_path / "rank-0.log").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    diagnosis = read_logs([folder])
    assert diagnosis.healthy and diagnosis.causes[0].rule == "gpu-out-of-memory"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"outcome": 3}',
        '{"outcome": "hung", "verdict": {"ranks": {}, "nodes": [[]], "rule": 5}}',
    ],
)
def test_a_broken_run_json_is_as_none(tmp_path: Path, text: str) -> None:
    folder = run_folder(tmp_path, "ok", None, "hung after 3 s: x")
    (tmp_path / "run.json").write_text(text)
    assert {c.rule for c in read_logs([folder]).causes} <= {"job-cancelled"}


def test_only_a_hang_has_a_verdict() -> None:
    assert verdict_json("ok", [hang()]) is None
    assert verdict_json("hung", [hang(verdict="waiting")]) is None


CLOSED = (
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.11]:41629. "
    "This is typically caused by a remote worker crashing.\n"
)


@pytest.mark.parametrize(
    "left, rule",
    [
        (["rank 1 on node1, 0.2 s before"], "uneven-batches-between-ranks"),
        ([], "peer-died-first"),
    ],
)
def test_a_rank_that_had_left_without_error_is_the_cause(tmp_path: Path, left: list[str], rule: str) -> None:
    """Its own log ends without a word; that it had ended with 0 is in the run's record alone."""
    folder = run_folder(tmp_path, "rank-failed", None, "first failure: rank 0")
    record = json.loads((tmp_path / "run.json").read_text())
    record["first_failure"] = {"is_consequence": True, "left_before": left}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "rank-00000-node0.log").write_text(CLOSED)
    (tmp_path / "rank-00001-node1.log").write_text("step 6\n")
    cause = read_logs([folder]).causes[0]
    assert (cause.rule, cause.confidence) == (rule, "medium")
    assert not left or (cause.ranks, cause.nodes) == ((1,), ("node1",))


def test_the_verdict_names_the_node_of_a_rank_that_printed_none(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "rank-failed", None, "first failure: rank 1")
    raised = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: bad\n'
    (tmp_path / "rank-00000-node0.log").write_text("step 6\n")
    (tmp_path / "rank-00001-node1.log").write_text(raised)
    read = read_logs([folder])
    (line, *_) = logs_report.cause_lines(read.causes[0], read.story, Style(io.StringIO()))
    assert line == "error: rank-raised-exception (medium confidence)  [node node1; rank 1]"


def test_a_node_that_was_lost_is_the_cause(tmp_path: Path) -> None:
    """Not the error of the look at that node after the run, nor what its peers print of its end."""
    after = "warning node1: could not be checked after the run: srun: error: Node failure on node1"
    last = "first failure: node1: no contact for 14 s: the node or its network is down, 15 s after the start"
    folder = run_folder(tmp_path, "rank-failed", None, f"{after}\n{last}")
    (tmp_path / "rank-00000-node0.log").write_text("step 3\n" + CLOSED)
    (cause, *_) = read_logs([folder]).causes
    assert (cause.rule, cause.confidence, cause.nodes) == ("node-lost", "high", ("node1",))


@pytest.mark.parametrize(
    ("how", "nodes", "fix"),
    [
        ("the launching machine was suspended for 14 s", (), "`ringup run --detach`"),
        (
            "the head node was suspended, or this node was cut off from it",
            ("node1",),
            "try `ping` and `ssh` from another node",
        ),
    ],
)
def test_ranks_that_were_ended_for_lost_contact_are_no_cancelled_job(
    how: str, nodes: tuple[str, ...], fix: str, tmp_path: Path
) -> None:
    why = f"no contact with the launcher for 4 s (--lease): {how}"
    last = f"first failure: node1: it ended its ranks: {why}, 8 s after the start"
    (cause, *rest) = read_logs([run_folder(tmp_path, "launcher-error", None, last)]).causes
    assert (cause.rule, cause.confidence, cause.nodes) == ("node-lost", "high", nodes)
    assert cause.fix.text.startswith(fix)
    assert why in cause.text and "job-cancelled" not in {c.rule for c in rest}


def test_a_job_that_the_scheduler_ended_is_that_though_ringup_lost_its_nodes_first(tmp_path: Path) -> None:
    last = "first failure: node1: step lost: srun was ended by SIGKILL, 15 s after the start"
    folder = Path(run_folder(tmp_path, "launcher-error", None, last))
    assert "job-cancelled" not in {c.rule for c in read_logs([str(folder)]).causes}
    limit = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n"
    (folder / "node1-guard.log").write_text(limit)
    assert "(time limit)" in read_logs([str(folder)]).causes[0].text


BEHIND = "rank 1 (node1) is missing: the others wait for the GPU"
PROOF = (
    "  rank 1: train.py:40 in sleep: time.sleep(3600), asleep\n"
    "  flight recorder: rank 1 has not started collective 4 of default_pg: all_reduce [8], a.py:9\n"
)


def test_where_the_missing_rank_was_is_the_evidence(tmp_path: Path) -> None:
    verdict = verdict_json("hung", [hang(rule="rank-fell-behind", headline=BEHIND, apart=[])])
    (cause,) = read_logs([run_folder(tmp_path, "hung", verdict, f"{PROOF}hung after 21 s: {BEHIND}")]).causes
    assert [e.line for e in cause.evidence] == [2, 3, 4] and cause.evidence[0].text.startswith(
        "rank 1: train.py:40"
    )
    assert cause.fix and "read the code after the line where the rank is" in cause.fix.text


@pytest.mark.parametrize("rule", ["uneven-batches-between-ranks", "rank-fell-behind"])
def test_a_rank_that_left_with_code_0_while_the_others_hung(rule: str, tmp_path: Path) -> None:
    headline = f"rank 1 (node1), which has {DONE}, is missing"
    verdict = verdict_json("hung", [hang(rule=rule, headline=headline, apart=[])])
    (cause,) = read_logs([run_folder(tmp_path, "hung", verdict, f"hung after 21 s: {headline}")]).causes
    assert (cause.rule, cause.confidence) == (rule, "medium")
