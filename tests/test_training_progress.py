"""How far a training got: real checkpoints on disk, and what trainers print."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import hosts
from ringup.agent import checkpoints
from ringup.agent_bundle import program
from ringup.recovery.training_progress import EPOCH, StepReader, TrainingProgress, read, saved
from ringup.transport import Transport

NOW = time.time()
OLDEST = sorted(map(str, Path.home().glob(".pyenv/versions/3.8*/bin/python")))


def archive() -> bytes:
    """A file as torch.save writes it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 1000)
    return data.getvalue()


ZIP = archive()


def put(top: Path, *paths: str, data: bytes = b"x", age_s: float = 0.0) -> None:
    """Files with this content, each with the directory it is in, so old."""
    for name in paths:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        for one in (path, path.parent):
            os.utime(one, (NOW - age_s, NOW - age_s))


def progress(folder: Path, path: str = "") -> TrainingProgress | None:
    """As `ringup run` reads it: by the program, on a node."""
    with Transport(hosts.local_nodes(1)) as transport:
        return read(transport, path, {transport.hosts[0].name: str(folder)})


def value(folder: Path, path: str = "") -> float | None:
    found = progress(folder, path)
    return found.value if found else None


# -- --progress ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1200", 1200), ("  7\n", 7), ('{"step": 42, "loss": 0.5}', 42), ("3.5e3", 3500), ("-1", -1), ("", None),
     ("nothing yet", None), ("nan", None), ("9" * 400, None)],
)  # fmt: skip
def test_a_file_holds_a_number(text: str, expected: float | None, tmp_path: Path) -> None:
    put(tmp_path, "step.txt", data=text.encode("latin-1"))
    assert checkpoints.answer("step.txt", str(tmp_path), 5.0)["best"] == (
        None
        if expected is None
        else {
            **checkpoints.entry(str(tmp_path / "step.txt"), expected, str(tmp_path / "step.txt"), NOW),
            "at_s": pytest.approx(NOW),
        }
    )


@pytest.mark.parametrize("data", [ZIP, b"\x80\x02\0step7", b"\0\xff"])
def test_a_checkpoint_that_is_written_again_counts_by_time(data: bytes, tmp_path: Path) -> None:
    put(tmp_path, "ck-500.pt", data=data, age_s=50)
    found = progress(tmp_path, "ck-500.pt")
    assert found and found.group.startswith("time ") and found.value == pytest.approx(NOW - 50, abs=1)


def test_half_a_checkpoint_is_no_progress(tmp_path: Path) -> None:
    put(tmp_path, "ck.pt", data=ZIP[:-30])
    found = checkpoints.answer("ck.pt", str(tmp_path), 5.0)
    assert found == {"best": None, "incomplete": [str(tmp_path / "ck.pt")]}


def test_a_file_of_progress_is_read_on_the_node(tmp_path: Path) -> None:
    put(tmp_path, "step", data=b"1200")
    file = str(tmp_path / "step")
    assert progress(tmp_path, "step") == TrainingProgress(1200, file, f"step {file}")
    assert progress(Path("/"), file) == TrainingProgress(1200, file, f"step {file}")
    assert progress(tmp_path, "missing") is None


def test_the_newest_complete_entry_of_a_directory_counts(tmp_path: Path) -> None:
    put(tmp_path, "out/checkpoint-9000/model.pt", data=ZIP, age_s=5000)
    put(tmp_path, "out/checkpoint-500/model.pt", data=ZIP, age_s=60)
    put(tmp_path, "out/checkpoint-600/model.pt", data=ZIP[:-30], age_s=10)
    put(tmp_path, "out/checkpoint-700.tmp/model.pt", "out/.checkpoint-800/model.pt", data=ZIP)
    put(tmp_path, "out/events.out.tfevents.1700000000.node1", "out/train-2024.log")
    found = progress(tmp_path, "out")
    assert found
    assert (found.value, found.source) == (500, str(tmp_path / "out/checkpoint-500"))
    assert found.incomplete == (
        str(tmp_path / "out/checkpoint-600"),
        str(tmp_path / "out/checkpoint-700.tmp"),
    )
    assert not found.group.startswith("time ")


def test_entries_without_a_step_count_by_time(tmp_path: Path) -> None:
    put(tmp_path, "out/model.pt", data=ZIP, age_s=50)
    put(tmp_path, "out/optimizer.pt", data=b"", age_s=10)
    found = progress(tmp_path, "out")
    assert found
    assert found.group.startswith("time ")
    assert found.value == pytest.approx(NOW - 50, abs=1)


def test_an_empty_directory_is_no_progress(tmp_path: Path) -> None:
    assert progress(tmp_path, ".") is None


def test_sharded_checkpoints_are_complete_with_their_metadata(tmp_path: Path) -> None:
    put(tmp_path, "out/step_10/__0_0.distcp", "out/step_10/.metadata", age_s=9)
    put(tmp_path, "out/step_20/__0_0.distcp")
    assert value(tmp_path, "out") == 10


# -- markers of frameworks -----------------------------------------------------------------------

LAYOUTS = {
    "Megatron-LM": ({"out/latest_checkpointed_iteration.txt": b"3000"}, 3000),
    "Megatron-LM, released": ({"out/latest_checkpointed_iteration.txt": b"release"}, None),
    "DLRover": ({"ckpt/dlrover_latest.txt": b"120\n"}, 120),
    "DeepSpeed": ({"out/latest": b"global_step40", "out/global_step40/mp_rank_00_model_states.pt": ZIP}, 40),
    "DeepSpeed, without what it names": ({"out/latest": b"global_step40"}, None),
    "DeepSpeed, that names another place": ({"out/latest": b"../../../etc/global_step40"}, None),
    "transformers": ({"a/checkpoint-500/trainer_state.json": b"{}", "a/checkpoint-500/model.bin": b"x"}, 500),
    "transformers, half": (
        {"a/checkpoint-500/trainer_state.json": b"{}", "a/checkpoint-500/optimizer.pt": ZIP[:-30]}, None),
    "torch.distributed.checkpoint": ({"c/step-30/.metadata": b"x", "c/step-30/__0_0.distcp": b"x"}, 30),
    "Lightning": ({"v/version_0/checkpoints/epoch=3-step=500.ckpt": ZIP, "v/last.ckpt": ZIP}, 500),
    "too deep": ({"a/b/c/d/e/f/latest_checkpointed_iteration.txt": b"5"}, None),
    "a data set": ({"data/train-00001.parquet": b"x", "latest": b"news", "setup.py": b"1"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_known_markers_are_found_below_the_working_directory(name: str, tmp_path: Path) -> None:
    files, expected = LAYOUTS[name]
    for path, data in files.items():
        put(tmp_path, path, data=data)
    found = checkpoints.answer("", str(tmp_path), 5.0)["best"]
    assert (found and found["value"]) == expected


def test_composers_link_names_the_batch(tmp_path: Path) -> None:
    put(tmp_path, "ep1-ba500-rank0.pt", data=ZIP)
    (tmp_path / "latest-rank0").symlink_to("ep1-ba500-rank0.pt")
    assert value(tmp_path) == 500


def test_a_checkpoint_in_one_file_counts_by_time(tmp_path: Path) -> None:
    put(tmp_path, "snapshot.pt", data=ZIP, age_s=30)
    put(tmp_path, "snapshot.pt.new", data=ZIP[:-30])
    assert value(tmp_path) == pytest.approx(NOW - 30, abs=1)


def test_an_older_experiment_is_not_taken_for_this_one(tmp_path: Path) -> None:
    put(tmp_path, "old/checkpoint-9000/trainer_state.json", age_s=90000)
    before = progress(tmp_path)
    put(tmp_path, "new/checkpoint-100/trainer_state.json")
    after = progress(tmp_path)
    assert before
    assert after
    assert (before.value, after.value) == (9000, 100)
    assert saved(before, after) == (None, 100)
    assert saved(after, after) == (100, 100)
    assert saved(None, after) == (None, 100)
    assert saved(after, None) == (None, None)


# -- hostile files -------------------------------------------------------------------------------


def test_names_that_lie_neither_hang_nor_break(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")
    os.mkfifo(tmp_path / "latest_checkpointed_iteration.txt")
    os.mkfifo(tmp_path / "last.ckpt")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "latest-rank0").symlink_to("latest-rank0")
    put(tmp_path, "\x1b[2J\n/checkpoint-5/trainer_state.json", f"checkpoint-{'9' * 200}/trainer_state.json")
    put(tmp_path, os.fsdecode(b"\xff\xfe/checkpoint-7/trainer_state.json"))
    found = progress(tmp_path)
    assert found
    assert found.value in (5, 7)
    assert found.source.isprintable()
    assert all(name.isprintable() for name in found.incomplete)


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "/proc/self/mem"])
def test_what_is_no_file_holds_no_number(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert checkpoints.answer(name, str(tmp_path), 5.0)["best"] is None


def test_a_large_tree_is_walked_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST_ENTRIES", 50)
    for number in range(60):
        put(tmp_path, f"a{number}/file")
    put(tmp_path, "z/latest_checkpointed_iteration.txt", data=b"5")
    walked = sum(len(files) for _, files in checkpoints.below(str(tmp_path), time.monotonic() + 60))
    assert walked <= 50


def test_a_walk_ends_in_time(tmp_path: Path) -> None:
    put(tmp_path, "latest_checkpointed_iteration.txt", data=b"5")
    assert list(checkpoints.below(str(tmp_path), time.monotonic() - 1)) == []


def test_a_file_server_that_is_down_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "blocked")
    monkeypatch.setattr(checkpoints, "answer", lambda *given: (tmp_path / "blocked").read_bytes())
    assert checkpoints.main("", str(tmp_path), 0.2) == {"best": None, "incomplete": [], "late": True}


@pytest.mark.parametrize("printed", ["", "{", "[]", '{"best": 1}', '{"best": {"value": 1e999}}', "[" * 9999])
def test_an_answer_that_is_none_is_no_progress(printed: str, tmp_path: Path) -> None:
    from ringup.recovery import training_progress
    from ringup.transport import Answer

    assert training_progress._decoded(Answer("n", printed.encode())) is None


# -- output --------------------------------------------------------------------------------------

LINES = {
    "step 1200 loss 2.11": 1200,
    "[rank0]: step 99 loss 2.1": 99,
    "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.12}": 0.12,
    "{'train/global_step': 40, 'loss': 1.0}": None,
    " 12%|#2        | 120/1000 [00:12<01:28, 9.98it/s]": 120,
    "\r 12%|#2   | 120/1000 [00:12<01:28, 9.98it/s]\r 13%|#3   | 130/1000 [00:13<01:27, 1.1s/it]": 130,
    "Epoch 3:  45%|####5     | 45/100 [00:05<00:06, 8.3it/s, loss=2.1]": 3 * EPOCH + 45,
    "Training:  45%|####5     | 45/100 [00:05<00:06, 8.3it/s]": 45,
    "Map:  71%|#######   | 71000/100000 [30:02<12:01, 40.1 examples/s]": None,
    "Loading checkpoint shards: 100%|##########| 4/4 [00:15<00:00,  3.85s/it]": None,
    " [2024-05-01 10:00:00] iteration      100/  500000 | consumed samples:  25600 | lm loss: 9.1E+00": 100,
    "Epoch 2 | step: 30/900 | loss 0.4": 2 * EPOCH + 30,
    "epoch 3: loss 0.512 in 1.2 s": 3,
    "'global_step': 77": 77,
    "resumed at global_step=500": 500,
    "iter 30: loss 3.1": 30,
    "steps: 40 loss: 2.1 iter time (s): 0.350 samples/sec: 22.8": 40,
    "Inference steps: 50": None,
    "Epoch: [3][ 10/500]\tTime 0.350 ( 0.361)\tLoss 6.9e+00 (6.9e+00)": 3 * EPOCH + 10,
    "step 12,345 loss 2.0": 12_345,
    "Step: 1,234/100,000": 1234,
    "step 10_000 loss 2.0": 10_000,
    "step 10k loss 1": 10_000,
    "step=10, skipped=0": 10,
    "step=10,skipped=0": 10,
    "\x1b[32mstep\x1b[0m 5": 5,
    "\x1b[31mstep: 10  \x1b[32mloss:  8.0": 10,
    "\x1b[?25lstep 7": 7,
    "max step: 100000, step 5": 5,
    "time per step: 350 ms": None,
    "step: 350 ms": None,
    "tokens per step = 524288": None,
    "step time: 350 ms": None,
    "gradient accumulation step: 64": None,
    "Max step: 100000": None,
    "Total step = 100000": None,
    "num step 100": None,
    "save every step: 500": None,
    "warmup step: 2000": None,
    "max_steps = 1000, warmup_step=10": None,
    "Total optimization steps = 1,000": None,
    "step 0.1": None,
    "slurmstepd: error: StepId=123.0": None,
    "step 123.batch": None,
    "Epoch 3": None,
    "loss 3.1": None,
    "step " + "9" * 5000: None,
    "x" * 600 + " step 5": None,
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:30])
def test_steps_in_the_output(line: str) -> None:
    reader = StepReader()
    reader.read(line.encode() + b"\n", 1.0)
    assert reader.step == LINES[line]
    assert (reader.first_s is None) == (LINES[line] is None)


def test_the_furthest_step_of_all_ranks_counts_and_steps_go_before_bars() -> None:
    reader = StepReader()
    for at, line in enumerate(
        [b"epoch 0: loss 4", b" 5%|# | 50/1000 [0:1<0:2, 9it/s]", b"step 7", b"step 9", b"step 8"]
    ):
        reader.read(line, float(at))
    assert (reader.step, reader.first_s) == (9, 0.0)


def test_a_line_that_names_the_epoch_is_not_compared_with_lines_that_do_not() -> None:
    reader = StepReader()
    for line in (b"epoch 1 finished at step 500", b"step 600", b"step 900"):
        reader.read(line, 1.0)
    assert reader.step == 900


@given(st.binary(max_size=900))
def test_any_line_is_read(line: bytes) -> None:
    reader = StepReader()
    reader.read(line, 1.0)
    assert reader.step is None or reader.step >= 0


@pytest.mark.skipif(not OLDEST, reason="no Python 3.8 here")
def test_the_oldest_python_runs_the_program(tmp_path: Path) -> None:
    put(tmp_path, "checkpoint-3/trainer_state.json")
    words = [OLDEST[0], "-c", program("checkpoints"), "", str(tmp_path), "5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["best"]["value"] == 3


def test_the_program_answers_in_json_whatever_the_names_are(tmp_path: Path) -> None:
    put(tmp_path, "checkpoint-3/trainer_state.json")
    assert json.loads(json.dumps(checkpoints.main("", str(tmp_path), 5.0)))["best"]["value"] == 3


@pytest.mark.parametrize(
    "earlier, now, is_over",
    [
        ("step {}", "step {}", True),
        ("{}%|#| {}/100 [00:01<00:02, 9.0it/s]", "{}%|#| {}/100 [00:01<00:02, 9.0it/s]", False),
        ("step {}", "epoch {} loss 0.1", False),
    ],
)
def test_a_training_that_begins_again_is_noticed(earlier: str, now: str, is_over: bool) -> None:
    """Not by a bar of progress: that of a resumed training begins at 0, too."""
    before, after = StepReader(), StepReader()
    for step in range(1, 20):
        before.read(earlier.format(step, step).encode(), 0.0)
    seen = []
    for step in range(1, 5):
        after.read(now.format(step, step).encode(), 0.0)
        seen.append(after.starts_over(before))
    assert seen == [False, False, is_over, is_over]


def test_a_training_that_resumes_does_not_begin_again() -> None:
    """An evaluation counts from 1 first; the last steps are done twice."""
    before, after = StepReader(), StepReader()
    for step in range(1, 20):
        before.read(b"step %d" % step, 0.0)
    for line in (b"eval step 1", b"step 15", b"step 16"):
        after.read(line, 0.0)
        assert not after.starts_over(before)
    for step in range(17, 30):
        after.read(b"step %d" % step, 0.0)
        assert not after.starts_over(before)
