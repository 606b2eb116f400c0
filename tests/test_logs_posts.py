"""Posts: what people write about a run, where no line of it is by a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.posts import MOST_BYTES
from ringup.logs.read import Diagnosis, read_logs

PORT = "RuntimeError: The server socket has failed to listen: port: 29500, EADDRINUSE: Address already in use"
RETRY = "node7:58:60 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1"
ERRORS = {PORT: "port-in-use", RETRY: "rdma-retry-exceeded"}


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "post.txt").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path / "post.txt")])


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    "sentence",
    [
        "Hi all, I am training on 2 nodes with 8 GPUs and it fails with `{}`. Any idea?",
        "My training fails: {}",
        "I am getting the error {} when I start the second node. Does someone know why?",
        'We see "{}" on all ranks and nothing happens after that.',
        "The log of the first node shows `{}` and then the job ends.",
    ],
)
def test_an_error_inside_a_sentence_is_named_without_confidence(
    tmp_path: Path, sentence: str, error: str
) -> None:
    cause = diagnose(tmp_path, "Two nodes\n\n" + sentence.format(error) + "\n").causes[0]
    assert (cause.rule, cause.confidence, cause.severity) == (ERRORS[error], "low", "error")
    assert cause.text.endswith("; only a post says so")
    assert cause.evidence[0].line == 3
    assert error[:40] in cause.evidence[0].text


@pytest.mark.parametrize(
    "post",
    [
        f"I fixed `{PORT}` by another port. Thanks!",
        f"I fixed it: {PORT} was caused by a process of yesterday.",
        f"I no longer see `{PORT}` with the new release.",
        f"Since the update I do not get {PORT} any more.",
        f"How can I avoid `{PORT}` when I start two jobs?",
        "I trained on two nodes for a week. It works fine and never hangs.",
        "I have two nodes with 8 GPUs each. Which launcher is best?",
        "Hello, we want to use `torch.distributed.elastic` on 4 nodes. Which `rdzv_backend` is best?",
        "We want training to survive when a node fails. I propose to restart the job if a rank hangs.",
        "I get the same speed with `TimeoutError` handling switched off.",
    ],
)
def test_a_post_without_a_failure_is_no_alarm(tmp_path: Path, post: str) -> None:
    assert diagnose(tmp_path, post + "\n").healthy


@pytest.mark.parametrize(
    "post, what",
    [
        ("My training hangs at init_process_group on two nodes, no output at all.", "stands still"),
        ("Two nodes freeze\n\nHello, after the first epoch nothing happens.", "stands still"),
        ("I start the script on both nodes and it never starts.", "stands still"),
        ("I run the example on 2 nodes. The second node crashes.", "failed"),
        ("I used one node before. On two nodes the second is killed.", "failed"),
        ("大家好,多机训练卡住不动", "stands still"),
    ],
)
def test_a_failure_that_only_people_report_is_told_and_not_named(
    tmp_path: Path, post: str, what: str
) -> None:
    cause = diagnose(tmp_path, post + "\n").causes[0]
    assert (cause.rule, cause.confidence) == ("unnamed-failure", "low")
    assert cause.text.startswith(f"a post says that the job {what}, and no line shows why: ")


def test_lines_of_a_program_come_before_what_people_write(tmp_path: Path) -> None:
    found = diagnose(tmp_path, f"I get `{PORT}` sometimes. Today this:\n\n{RETRY}\n")
    assert found.causes[0].rule == ERRORS[RETRY]
    assert "a post" not in found.causes[0].text


def test_a_log_of_a_run_that_trained_is_not_read_as_a_post(tmp_path: Path) -> None:
    steps = "".join(f"step {n}/9 loss {2 - n / 9:.3f}\n" for n in range(1, 10))
    assert diagnose(tmp_path, f"I try again, it hangs often\n{steps}").healthy


def test_the_first_line_of_a_program_is_no_title(tmp_path: Path) -> None:
    assert diagnose(tmp_path, "killed 2 processes of before\nWe use 2 nodes\n").healthy


def test_a_large_file_is_not_read_as_a_post(tmp_path: Path) -> None:
    text = f"My training fails: {PORT}\n"
    assert not diagnose(tmp_path, text).healthy
    assert diagnose(tmp_path, text + "a line of no meaning\n" * (MOST_BYTES // 20)).healthy
