"""Known defects: a row fits by its lines and by the version that the log prints, and by nothing less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ringup.logs.causes  # noqa: F401  (fills the registry)
from ringup.logs.defects import Defect, defects, numbers
from ringup.logs.read import read_logs
from ringup.logs.rule import CAUSES
from ringup.output.logs_report import as_json
from tests.regex_cost import cost
from tests.test_linear import MOST_STEPS

ROWS = pytest.mark.parametrize("defect", defects(), ids=lambda defect: defect.id)


@ROWS
def test_a_row_is_whole(defect: Defect) -> None:
    assert re.fullmatch(
        r"https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull|releases/tag)/[\w.-]+", defect.url
    )
    assert defect.rules <= set(CAUSES)
    assert defect.line or defect.needs or defect.min_ranks or defect.rules == {"all-reduce-wrong"}
    assert defect.package and len(defect.text) > 10
    if defect.since and defect.fixed_in:
        assert numbers(defect.since) < numbers(defect.fixed_in)
    if defect.is_plain:
        assert defect.line


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({defect.id for defect in defects()}) == len(defects()) >= 40


@ROWS
def test_the_patterns_of_a_row_cost_time_in_proportion_to_the_text(defect: Defect) -> None:
    for pattern in filter(None, (defect.line, defect.needs, defect.version)):
        assert cost(pattern) <= MOST_STEPS


FOREIGN = (
    "n1:5:5 [0] NCCL INFO NCCL version {version}+cuda12.9\n"
    "n1:5:6 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1000 - Init START\n"
    "n1:5:7 [0] misc/socket.cc:484 NCCL WARN socketFinalizeAccept: wrong magic 74656d2f != 7970663b\n"
    "[rank0]:[E626 04:20:11.1 ProcessGroupNCCL.cpp:690] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=6) ran for 6\n"
)


def first(tmp_path: Path, text: str) -> dict[str, object]:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return dict(as_json(read_logs([str(tmp_path / "job.log")]))["causes"][0])


def test_a_version_with_the_defect_is_told_with_its_fix_and_link(tmp_path: Path) -> None:
    cause = first(tmp_path, FOREIGN.format(version="2.27.3"))
    assert cause["known_defect"] == {
        "id": "NCCL issue 1808",
        "versions": "NCCL 2.16 up to 2.30.7",
        "fixed_in": "2.30.7",
        "url": "https://github.com/NVIDIA/nccl/issues/1808",
    }


@pytest.mark.parametrize("version", ["2.30.7", "2.31.1"])
def test_a_version_without_the_defect_has_none(tmp_path: Path, version: str) -> None:
    assert first(tmp_path, FOREIGN.format(version=version))["known_defect"] is None


def test_a_log_without_a_version_has_none(tmp_path: Path) -> None:
    text = FOREIGN.format(version="2.27.3").split("\n", 1)[1]
    assert first(tmp_path, text)["known_defect"] is None


def test_an_undefined_symbol_needs_no_version(tmp_path: Path) -> None:
    text = "ImportError: /env/torch/lib/libtorch_cuda.so: undefined symbol: ncclAlltoAll\n"
    cause = first(tmp_path, text)
    assert cause["known_defect"] is not None
    assert cause["rule"] == "two-nccl-libraries"
