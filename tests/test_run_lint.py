"""What the text of a script tells stops `ringup run` where its ranks could not form one world."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringup import bundle
from ringup.cli import command_line
from ringup.cli.pipeline import refused
from tests import clusters as c

SPAWN = """\
import os
import torch.distributed as dist
import torch.multiprocessing as mp

def main(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    dist.destroy_process_group()

mp.spawn(main, args=(2,), nprocs=2)
"""
SPAWN_OF_NODES = """\
import os
import torch.distributed as dist
import torch.multiprocessing as mp

def main(index, per_node):
    rank = int(os.environ["NODE_RANK"]) * per_node + index
    dist.init_process_group("gloo", rank=rank, world_size=2 * per_node)
    dist.destroy_process_group()

mp.spawn(main, args=(2,), nprocs=2)
"""
LOCAL_RANK = """\
import argparse
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, required=True)
local_rank = parser.parse_args().local_rank
dist.init_process_group("gloo")
dist.destroy_process_group()
"""


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Saved facts of two nodes that are ready to run; the scripts lie in the current directory."""
    monkeypatch.chdir(tmp_path)
    bundle.save(c.healthy(2), tmp_path / "facts.json")
    for name, text in (("spawn.py", SPAWN), ("nodes.py", SPAWN_OF_NODES), ("local.py", LOCAL_RANK)):
        (tmp_path / name).write_text(text)
    return str(tmp_path / "facts.json")


def tried(facts: str, *words: str) -> int:
    return command_line.dispatch(["run", "--from", facts, "--dry-run", "--nproc", "2", *words])


def test_a_script_whose_spawned_ranks_would_form_a_world_per_node_is_not_started(
    facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(facts, "--", "spawn.py") == 1
    said = capsys.readouterr().err
    assert "error  spawn.py:7  spawn-knows-one-node" in said
    assert "error  spawn.py:6  master-address-in-code" in said
    assert "nothing was started; --anyway starts despite errors" in said


def test_it_is_started_despite_that_where_it_is_asked_for(facts: str) -> None:
    assert tried(facts, "--anyway", "--", "spawn.py") == 0


def test_spawned_ranks_that_count_nodes_are_started_once_a_node(
    facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(facts, "--", "nodes.py") == 0
    assert "--with spawn: it starts its own ranks" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "launch", "python", "deepspeed"])
def test_a_launcher_under_which_each_rank_would_spawn_all_ranks_is_refused(
    facts: str, launcher: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(facts, "--with", launcher, "--", "nodes.py") == 1
    said = capsys.readouterr().err
    assert "error  nodes.py:10  ranks-started-twice" in said
    assert f"`--with spawn -- nodes.py` in place of `--with {launcher}`" in said


def test_a_required_local_rank_is_passed_or_the_run_is_stopped(
    facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for fitting in ((), ("--with", "launch")):
        assert tried(facts, *fitting, "--", "local.py") == 0
    assert tried(facts, "--with", "torchrun", "--", "local.py", "--local-rank", "{local_rank}") == 0
    capsys.readouterr()
    assert tried(facts, "--with", "torchrun", "--", "local.py") == 1
    said = capsys.readouterr().err
    assert "error  local.py:5  local-rank-argument-missing" in said
    assert "`--with launch -- local.py` in place of `--with torchrun`" in said


def test_a_script_that_trains_in_one_process_is_not_started_on_several_ranks(
    facts: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = "import torch\nfrom net import Net\nfor x in d:\n    Net()(x).sum().backward()\n"
    (tmp_path / "plain.py").write_text(code)
    assert tried(facts, "--", "plain.py") == 0  # net.py may join ranks: there is none to read
    (tmp_path / "net.py").write_text("from torch.nn import Linear as Net\n")
    assert tried(facts, "--", "python", "plain.py") == 1
    assert "error  plain.py:4  ranks-train-alone" in capsys.readouterr().err
    assert command_line.dispatch(["lint", "plain.py"]) == 0
    said = capsys.readouterr().out
    assert "note  plain.py:4  ranks-train-alone" in said and said.endswith("1 note\n")
    (tmp_path / "net.py").write_text("import torch.distributed\nfrom torch.nn import Linear as Net\n")
    assert tried(facts, "--", "python", "plain.py") == 0


DETECTRON = (
    "from detectron2.engine import launch\nlaunch(main, args.num_gpus, args.num_machines, args.rank)\n"
)
OF_NODES = (
    "--num-machines {node_count} --machine-rank {node_rank} --dist-url tcp://{master_addr}:{master_port}"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("det.py --num-gpus 2", "spawn-knows-one-node"),
        ("det.py --num-gpus 2 --num-machines 2 --machine-rank 0", "--machine-rank 0 on every node"),
        ("nodes.py --rank=0 --world-size 2", "--rank 0 on every node"),
        (f"det.py --num-gpus 2 {OF_NODES}", ""),
        ("nodes.py --rank={node_rank}", ""),
    ],
)
def test_a_script_that_starts_its_ranks_gets_another_number_on_each_node(
    facts: str, words: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "det.py").write_text(DETECTRON)
    assert tried(facts, "--", *words.split()) == bool(said)
    err = capsys.readouterr().err
    assert said in err and "--with spawn: it starts its own ranks" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rank=0, world_size=2", "every rank calls itself rank 0; this run has 4 ranks"),
        ("init_method='tcp://10.0.0.1:2', world_size=8, rank=r", "world_size=8 is written in the code"),
        ("rank=r, world_size=4", ""),
        ("rank=0 if first else 1, world_size=4", ""),
    ],
)
def test_numbers_in_the_script_that_no_run_of_these_ranks_has_stop_it(
    facts: str, given: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(
        LOCAL_RANK.split("\n", 2)[1] + f"\ndist.init_process_group('gloo', {given})\n"
    )
    assert tried(facts, "--", "own.py") == bool(said)
    shown = capsys.readouterr().err
    assert said in shown and ("  world-size-in-code\n" in shown) == bool(said)
    bundle.save(c.healthy(1), tmp_path / "one.json")
    alone = ["run", "--from", str(tmp_path / "one.json"), "--dry-run", "--nproc", "1", "--", "own.py"]
    assert command_line.dispatch(alone) == 0


def test_one_rank_alone_may_be_started_in_any_way(facts: str, tmp_path: Path) -> None:
    bundle.save(c.healthy(1), tmp_path / "one.json")
    alone = ["run", "--from", str(tmp_path / "one.json"), "--dry-run", "--nproc", "1"]
    assert command_line.dispatch([*alone, "--with", "torchrun", "--", "spawn.py"]) == 0


def test_a_missing_script_is_no_reason_to_name_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line.dispatch(["run", "--local", "1", "--nproc", "1", "--", "gone.py"]) == 1
    assert "--anyway does not help: no rank can start until this is fixed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("severity", "until"), [("error", "this is fixed"), ("warning", "this can be checked")]
)
def test_without_a_plan_the_reason_is_an_error_or_a_gap(
    severity: str, until: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ringup.output.console.check_text", lambda *_, **__: "")
    judged: Any = SimpleNamespace(
        findings=[SimpleNamespace(severity=severity, rule="")], skipped=[], plan=None, brief=None
    )
    args: Any = SimpleNamespace(strict=False, anyway=False, unfolded=False)
    assert refused(judged, args) == 1
    assert f"--anyway does not help: no rank can start until {until}" in capsys.readouterr().err
