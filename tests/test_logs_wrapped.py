"""Logs as a terminal of some width shows them: its breaks are no ends of lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ringup.logs.read import Diagnosis, read_logs
from ringup.logs.wrapped import joined_lines

WATCHDOG = (
    "[rank{0}]:[E1127 20:{1:02}:15.081509146 ProcessGroupNCCL.cpp:681] [Rank {0}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=63, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran"
    " for 600088 milliseconds before timing out."
)
STATES = ("ImagePullBackOff", "Running", "CrashLoopBackOff", "Completed")
RAISED = """\
Traceback (most recent call last):
  File "/home/user/a-project-with-a-long-name/scripts/train_with_a_long_name.py", line 88, in <module>
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint, {}=None)
  File "/opt/conda/envs/an-environment/lib/python3.11/site-packages/package/trainer.py", line 2206, in train
    return inner_training_loop(args=args, resume_from_checkpoint=resume_from_checkpoint, trial=trial)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 \
GiB of which 1.12 GiB is free. Process 1 has 78.02 GiB memory in use."""
MISMATCH = (
    "node{0}:{1}:{1} [{2}] NCCL INFO {3}: opCount {4} sendbuff 0x7f0000000000 recvbuff 0x7f0000001000"
    " count 16777216 datatype 7 op 0 root 0 comm 0x55d0c0ffee{2} [nranks=2] stream 0x55d0beef{2}"
)
SETUP = (
    "node0:{0}:{0} [0] NCCL INFO comm 0x55d0c0ffee0 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
)


def shown(text: str, width: int) -> str:
    """A text as a terminal of `width` columns breaks it."""
    return "".join(
        f"{line[at : at + width]}\n"
        for line in text.splitlines()
        for at in range(0, max(len(line), 1), width)
    )


def read(folder: Path, text: str) -> Diagnosis:
    (folder / "a.log").write_text(text)
    return read_logs([str(folder / "a.log")])


@pytest.mark.parametrize("width", [66, 80, 100])
@pytest.mark.parametrize(
    "lines",
    [["step 1 loss 2.5", *(WATCHDOG.format(rank, rank) for rank in (0, 1, 3))], [RAISED.format("trial")] * 2],
    ids=["watchdog", "traceback"],
)
def test_a_terminal_s_breaks_change_no_answer(tmp_path: Path, lines: list[str], width: int) -> None:
    text = shown("\n".join(lines), width)
    whole, broken = read(tmp_path, "\n".join([*lines, ""])), read(tmp_path, text)
    assert [(c.rule, c.confidence) for c in broken.causes] == [(c.rule, c.confidence) for c in whole.causes]
    first = broken.causes[0].evidence[0]
    assert first.text == whole.causes[0].evidence[0].text
    assert text.splitlines()[first.line - 1][:20] in first.text, "the line in the file, where it begins"
    assert broken.logs[0].lines == text.count("\n")


@pytest.mark.parametrize("width", [76, 80, 100])
def test_breaks_between_words_change_no_answer(tmp_path: Path, width: int) -> None:
    lines = ["step 1 loss 2.5", *(WATCHDOG.format(rank, rank) for rank in (0, 1, 3)), RAISED.splitlines()[-1]]
    text = "".join(f"{part}\n" for line in lines for part in textwrap.wrap(line, width) or [""])
    whole, broken = read(tmp_path, "\n".join([*lines, ""])), read(tmp_path, text)
    assert [(c.rule, c.confidence) for c in broken.causes] == [(c.rule, c.confidence) for c in whole.causes]
    first = broken.causes[0].evidence[0]
    assert text.splitlines()[first.line - 1][:20] in first.text, "the line in the file, where it begins"
    found = joined_lines(text.encode())
    assert found is not None
    assert len(found.data) == len(text), "each line begins at its byte"


def test_calls_that_differ_are_found_in_broken_lines(tmp_path: Path) -> None:
    kinds = {0: ["AllReduce", "AllReduce", "Broadcast"], 1: ["AllReduce", "AllReduce", "AllGather"]}
    lines = [
        MISMATCH.format(0, 100 + rank, rank, kind, n) for rank in kinds for n, kind in enumerate(kinds[rank])
    ]
    found = [read(tmp_path, text) for text in ("\n".join(lines), shown("\n".join(lines), 90))]
    assert [c.rule for c in found[0].causes] == [c.rule for c in found[1].causes] == ["collective-mismatch"]


@pytest.mark.parametrize(
    "lines",
    [
        [SETUP.format(100 + n) for n in range(20)],
        ["warnings.warn(" + "x" * 90 + " deprecated.", "  warnings.warn(text, stacklevel=2)"] * 9,
        ["=" * 80, "torchrun FAILED", "=" * 80, "Failures:", "=" * 80],
        [
            f"Rank {n} ended with exit code 1, its log is in /scratch/run/rank{n}.log: read it."
            for n in range(9)
        ],
        ["n1: bash: /opt/conda/envs/train/bin/python: No such file or directory", "pdsh@n0: n1: exited"] * 2,
        [f"trainer-{n}               0/1     {s:16}   {n}             10m" for n, s in enumerate(STATES)],
        ["start", "a" * 60 + " of binary: /usr/bin/python", "RuntimeError: " + "b" * 72, ""],
        ["READY   STATUS                  AGE", "1/1     Running                 1m"]
        + [f"train       vit-worker-{n}     0/1     Init:ImagePullBackOff   {n}          11m" for n in "123"],
        [
            f"src/host/init/init.cu:nvshmemi_{n}_common_init_with_a_long_name:10: non-zero status 7"
            for n in "ab"
        ]
        * 2,
        [line.ljust(120) for line in ("Traceback:", '  File "/a/train.py", line 3', "    main(", "  at(x")]
        * 2,
    ],
    ids=[
        "one-form",
        "two-lines-each",
        "rules",
        "sentences",
        "twice",
        "rows",
        "equal-by-chance",
        "rows-that-grow",
        "names",
        "filled",
    ],
)
def test_lines_of_one_length_are_lines(lines: list[str]) -> None:
    assert joined_lines("\n".join(lines).encode()) is None


def test_a_joined_line_begins_at_its_byte() -> None:
    text = shown(f"{RAISED.format('a')}\n{RAISED.format('b')}\n", 80)
    found = joined_lines(text.encode())
    assert found is not None
    assert len(found.data) == len(text)
    for number, line in enumerate(found.data.splitlines(), 1):
        at = sum(len(one) + 1 for one in text.splitlines()[: found.line(number) - 1])
        assert text.encode()[at : at + 9] == (line + b"\n")[:9]
