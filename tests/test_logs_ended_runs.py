"""Logs of faults caused on purpose under torchrun and other launchers, shortened: the first cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import read_logs

RECORDED = Path(__file__).parent / "recorded" / "ended_runs"
CASES = [
    # name, cause, confidence, ranks, words of the first evidence
    ("sigabrt", "rank-crashed", "medium", (1,), "exitcode  : -6"),
    ("sigfpe-terminate", "rank-crashed", "medium", (1,), "std::length_error"),
    ("os-exit-3", "rank-raised-exception", "medium", (1,), "exitcode  : 3"),
    ("cpu-limit", "rank-killed", "high", (1,), "exitcode  : -24"),
    ("readonly-fs", "rank-raised-exception", "high", (0,), "[Errno 30] Read-only file system"),
    ("data-url", "rank-raised-exception", "high", (0,), "urlopen error"),
    ("stdout-closed", "rank-raised-exception", "high", (0,), "BrokenPipeError"),
    ("tool-fails", "rank-raised-exception", "high", (0,), "CalledProcessError"),
    ("thread-raises", "rank-raised-exception", "medium", (1,), "record 17 of shard-001.bin"),
]


@pytest.mark.parametrize(("name", "rule", "confidence", "ranks", "words"), CASES, ids=[c[0] for c in CASES])
def test_the_first_cause(name: str, rule: str, confidence: str, ranks: tuple[int, ...], words: str) -> None:
    one = read_logs([str(RECORDED / f"{name}.log")]).causes[0]
    assert (one.rule, one.confidence, one.ranks) == (rule, confidence, ranks)
    assert words in one.evidence[0].text


def test_threads_that_still_ran_abort_a_rank_that_was_already_ending(tmp_path: Path) -> None:
    log = (RECORDED / "sigabrt.log").read_text(encoding="utf-8")
    (tmp_path / "run.log").write_text(
        f"terminate called without an active exception\n{log}", encoding="utf-8"
    )
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.ranks) == ("peer-died-first", ())


def test_a_key_that_nobody_sets_names_no_rank(tmp_path: Path) -> None:
    waits = "DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//model_id\n"
    (tmp_path / "run.log").write_text(f"[rank1]: torch.distributed.{waits}", encoding="utf-8")
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.ranks) == ("rank-busy-while-others-wait", ())
