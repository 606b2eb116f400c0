"""A rule that raises is named and left out; every other rule answers, and the exit code tells of the bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REGISTRIES = {
    "check": "from ringup import checks, rules; rules.CHECKS",
    "logs": "from ringup.logs import causes; from ringup.logs.rule import CAUSES; CAUSES",
    "lint": "from ringup import lint; from ringup.lint.rule import SCRIPT; SCRIPT",
}
BROKEN = """
import sys
{imports}
table, name = {table}, sys.argv.pop(1)
entry = table[name]
def raises(*evidence, **facts):
    raise TypeError("planted")
    yield
if isinstance(entry, tuple):
    table[name] = (entry[0], raises)
else:
    import dataclasses
    table[name] = dataclasses.replace(entry, function=raises)
from ringup.cli.command_line import main
main()
"""


def ringup_with_broken(registry: str, rule: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`ringup WORDS`, where one rule raises."""
    imports, _, table = REGISTRIES[registry].rpartition("; ")
    return subprocess.run(
        [sys.executable, "-c", BROKEN.format(imports=imports, table=table), rule, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )


def is_named(done: subprocess.CompletedProcess[str], rule: str) -> None:
    assert done.returncode == 70, done.stderr
    assert f"internal error in {rule}: TypeError" in done.stderr
    assert "report this bug" in done.stderr and "Traceback" not in done.stderr


CHECKED = "open-files-too-low"


@pytest.mark.slow
def test_a_broken_check_is_not_checked_and_all_others_are() -> None:
    done = ringup_with_broken("check", CHECKED, "check", "--local", "2", "--json")
    is_named(done, CHECKED)
    answer = json.loads(done.stdout)
    broken = [s for s in answer["not_checked"] if s["rule"] == CHECKED]
    assert [s["reason"] for s in broken] == [f"internal error in {CHECKED}: TypeError"]
    assert "planted" in broken[0]["traceback"]
    assert len(answer["nodes"]) == 2 and answer["pairs"]
    text = ringup_with_broken("check", CHECKED, "check", "--local", "2")
    assert f"{CHECKED}: internal error in {CHECKED}: TypeError" in text.stdout


@pytest.mark.torch
def test_a_command_that_checks_first_goes_on_and_says_so_in_its_json() -> None:
    done = ringup_with_broken("check", CHECKED, "test", "--local", "1", "--nproc", "1", "--json")
    is_named(done, CHECKED)
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert [s["rule"] for s in answer["not_checked"]] == [CHECKED]


@pytest.mark.torch
def test_a_broken_check_does_not_stop_a_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; print('trained'); sys.exit(int(sys.argv[1]))")
    words = ("run", "--local", "1", "--nproc", "1", "--with", "python", "--log-dir")
    done = ringup_with_broken("check", CHECKED, *words, str(tmp_path / "a"), "--", str(script), "0")
    assert done.returncode == 0 and f"internal error in {CHECKED}" in done.stderr
    assert "trained" in done.stdout
    assert json.loads(next(tmp_path.glob("a/**/run.json")).read_text())["outcome"] == "ok"
    done = ringup_with_broken("check", CHECKED, *words, str(tmp_path / "b"), "--", str(script), "5")
    assert done.returncode == 5 and f"internal error in {CHECKED}" in done.stderr


@pytest.mark.slow
def test_a_broken_cause_leaves_the_other_causes(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    done = ringup_with_broken("logs", "rank-raised-exception", "logs", "--json", str(log))
    is_named(done, "rank-raised-exception")
    answer = json.loads(done.stdout)
    assert [s["rule"] for s in answer["not_checked"]] == ["rank-raised-exception"]
    assert answer["causes"][0]["rule"] == "gpu-out-of-memory"


@pytest.mark.slow
def test_a_broken_lint_rule_leaves_the_other_findings(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\nx = y.cuda()\n")
    sound = subprocess.run(
        [sys.executable, "-m", "ringup", "lint", "--json", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = {f["rule"] for f in json.loads(sound.stdout)["findings"]}
    assert found
    rule = sorted(found)[0]
    done = ringup_with_broken("lint", rule, "lint", "--json", str(script))
    is_named(done, rule)
    answer = json.loads(done.stdout)
    assert [s["rule"] for s in answer["not_checked"]] == [rule]
    assert {f["rule"] for f in answer["findings"]} == found - {rule}


@pytest.mark.slow
def test_the_bundle_holds_the_traceback(tmp_path: Path) -> None:
    log, target = tmp_path / "rank0.log", tmp_path / "b.tar.gz"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    words = ("bundle", "--no-nodes", "-o", str(target), str(log))
    is_named(ringup_with_broken("logs", "gpu-out-of-memory", *words), "gpu-out-of-memory")
    with tarfile.open(target) as archive:
        packed = archive.extractfile("b/internal-errors.txt")
        assert packed is not None
        assert "TypeError: planted" in packed.read().decode()
