"""Slurm's srun as the way to the nodes, played by a program on PATH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ringup import hosts
from ringup.errors import NodesError
from ringup.model import Host
from ringup.transport import Answer, Transport, srun

ALLOCATION = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "node[0-1]",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_NTASKS": "16",
    "SLURM_GPUS_PER_TASK": "1",
    "SLURM_STDOUTMODE": "/dev/null",
    "SLURM_SUBMIT_DIR": "/home/ada",
    "SLURM_CPUS_PER_TASK": "4",
}
PLAYED = """\
#!/bin/bash
# Plays srun: NODE "gone" is refused, "silent" never begins, others are this machine.
{ printf '%s\\n' "$*" | head -1; env | grep -E '^(SLURM|SRUN)_' | sort | tr '\\n' ' '; echo; } >>"$PLAYED"
while [[ $1 == -* ]]; do case $1 in --nodelist=*) node=${1#*=} ;; esac; shift; done
case $node in
gone) echo "srun: error: Unable to create step for job 77: Job/step already completing" >&2; exit 1 ;;
silent) exec sleep 60 ;;
drops) echo "srun: error: Node failure on drops" >&2; (sleep 0.3; kill -9 $$) & ;;
esac
echo "srun: cluster configuration lacks support for cpu binding" >&2
exec "$@"
"""


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An allocation of Slurm's, as its variables tell; what srun was asked stands in the file."""
    (tmp_path / "srun").write_text(PLAYED)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PLAYED", str(tmp_path / "played"))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))]:
        monkeypatch.delenv(name)
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "played"


def ask(script: str, *names: str, deadline_s: float = 20, **options: object) -> dict[str, Answer]:
    """The answers of these nodes of the allocation."""
    nodes = [Host(name, in_slurm=True) for name in names]
    with Transport(nodes, **options) as transport:  # type: ignore[arg-type]
        return transport.ask(dict.fromkeys(names, script), deadline_s=deadline_s)


def test_the_nodes_of_the_allocation_are_reached_through_one_step_each(allocation: Path) -> None:
    found = hosts.from_allocation(ALLOCATION)
    assert found is not None
    with Transport(found) as transport:
        for _ in range(2):
            answers = transport.ask({h.name: "echo out; echo err >&2; exit 3" for h in found}, deadline_s=20)
            for answer in answers.values():
                assert (answer.stdout, answer.stderr, answer.code) == (b"out\n", b"err\n", 3)
    lines = allocation.read_text().splitlines()
    steps = [line for line in lines if line.startswith("--jobid")]
    assert len(steps) == 2
    for node in ("node0", "node1"):
        (step,) = [line for line in steps if f"--nodelist={node} " in line]
        assert {"--jobid=77", "--overlap", "--nodes=1", "--ntasks=1"} <= set(step.split())
    assert not [line for line in lines if not line.startswith("--jobid") and line.strip()], lines


def test_the_node_is_told_what_one_task_a_node_would_be_told(allocation: Path) -> None:
    script = "env | grep ^SLURM_ | sort"
    answers = ask(script, "node0", "node1")
    told = dict(line.split("=", 1) for line in answers["node1"].stdout.decode().splitlines())
    assert told["SLURM_NODEID"] == told["SLURM_PROCID"] == "1"
    assert told["SLURM_NTASKS"] == told["SLURM_NNODES"] == told["SLURM_STEP_NUM_NODES"] == "2"
    assert told["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert told["SLURM_JOB_ID"] == "77"
    assert told["SLURM_SUBMIT_DIR"] == "/home/ada"
    assert told["SLURM_CPUS_PER_TASK"] == "4"
    assert "SLURM_STDOUTMODE" not in told


def test_a_node_that_is_refused_has_sruns_words_and_the_others_answer(allocation: Path) -> None:
    answers = ask("echo here", "gone", "node1")
    assert answers["node1"].stdout == b"here\n"
    error = answers["gone"].error
    assert error is not None
    assert error.kind == "srun-failed"
    assert "Job/step already completing" in error.words


def test_a_step_that_does_not_begin_is_given_up_at_the_deadline(allocation: Path) -> None:
    answers = ask("echo here", "silent", "node1", deadline_s=1.0)
    error = answers["silent"].error
    assert error is not None
    assert error.kind == "srun-failed"
    assert "no step began within" in error.words


def test_a_step_that_is_lost_says_why(allocation: Path) -> None:
    error = ask("sleep 20", "drops")["drops"].error
    assert error is not None
    assert error.kind == "srun-failed"
    assert error.words == "step lost: srun: error: Node failure on drops"


def test_a_given_ssh_configuration_means_ssh(allocation: Path, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'Host key verification failed.' >&2; exit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    error = ask("echo here", "node0", ssh_config="config")["node0"].error
    assert error is not None
    assert error.kind != "srun-failed"
    assert not allocation.exists()


def test_where_there_is_no_srun_it_is_not_the_way(tmp_path: Path) -> None:
    assert not srun.is_here({**ALLOCATION, "PATH": str(tmp_path)})
    assert not srun.is_here({"PATH": os.environ["PATH"]})


def test_each_of_several_tasks_is_refused() -> None:
    with pytest.raises(NodesError, match="task 3 of 16 that srun started") as caught:
        hosts.from_allocation({**ALLOCATION, "SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "3"})
    assert "without srun" in caught.value.hint


def test_several_tasks_a_node_are_told_of() -> None:
    (note,) = hosts.notes(ALLOCATION)
    assert note.startswith("ntasks-per-node is 8: torchrun needs one task per node")
    assert hosts.notes({**ALLOCATION, "SLURM_NTASKS_PER_NODE": "1"}) == []
    assert hosts.notes({}) == []


def test_a_client_that_was_killed_is_not_blamed_on_what_it_said_before() -> None:
    errors = srun.Errors()
    errors.feed(b"srun: cluster configuration lacks support for cpu binding\n")
    assert errors.lost(-9).words == "step lost: srun was ended by SIGKILL"
    assert errors.ended_early(1, "").words == "srun ended with 1 and printed nothing"


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_sruns_own_lines_are_no_output_of_the_node(size: int) -> None:
    text = b"one\nsrun: error: bad\nsru\nslurmstepd: error: *** STEP 1.0 CANCELLED ***\nsrun\nlast"
    errors = srun.Errors()
    passed = b"".join(errors.feed(text[i : i + size]) for i in range(0, len(text), size))
    assert passed == b"one\nsru\nsrun\nlast"
    assert errors.words() == "srun: error: bad / slurmstepd: error: *** STEP 1.0 CANCELLED ***"


def test_named_nodes_of_the_allocation_are_reached_through_srun(
    allocation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = hosts.of_allocation(hosts.expand("node1,other,ada@node0"), ALLOCATION)
    assert [(h.name, h.in_slurm) for h in marked] == [("node1", True), ("other", False), ("node0", False)]
    assert hosts.of_allocation(hosts.expand("node1"), {}) == hosts.expand("node1")


def test_check_says_which_node_srun_did_not_reach(
    allocation: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringup.cli import command_line

    monkeypatch.setenv("SLURM_JOB_NODELIST", "gone")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1")
    assert command_line.dispatch(["check", "--json", "--python", sys.executable]) == 1
    (finding,) = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["severity"] == "error"]
    assert finding["rule"] == "srun-failed"
    assert "Job/step already completing" in finding["found"]
