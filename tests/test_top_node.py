"""The process on a node behind `ringup top`: what it tells, how little it takes, that it never stays."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.agent.snapshot import gpus, watch
from ringup.agent_bundle import program
from ringup.hang.snapshots import decode
from ringup.hang.stack_frames import place_of
from ringup.transport import bootstrap
from tests.guards import tagged, wait_for
from tests.test_attach import Detached, wait_script
from tests.test_look import PYTHON, Rank


class Program:
    """The program, started as on a node, in the end closed by end of file."""

    def __init__(self, journal: str = "", every_s: float = 1.0) -> None:
        words = f"{every_s:g}", journal
        start, self.source = bootstrap.python_script(PYTHON, "ringup-top", program("snapshot.watch"), words)
        self.process = subprocess.Popen(["sh", "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.write(self.source)

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def until(self, number: int) -> dict[str, Any]:
        while (found := self.answer())["number"] != number:
            pass
        return found

    def close(self) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait(30)


@contextlib.contextmanager
def started(**options: Any) -> Iterator[Program]:
    one = Program(**options)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_counters_come_by_themselves_stacks_when_asked_and_it_ends_with_its_reader(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as rank, started() as one:
        first = one.answer()
        assert first["mode"] == "count" and first["number"] == 0 and first["printed"] == []
        assert os.getpriority(os.PRIO_PROCESS, one.process.pid) in (0, 19)
        one.write(b"nonsense\nstacks x\nexec 1\n\n")
        numbers = itertools.count(7)

        def answered() -> dict[str, Any]:
            """With its stack: the rank tells it once it sleeps."""
            one.write(b"stacks %d\n" % (number := next(numbers)))
            found = one.until(number)
            assert found["mode"] == "stacks"
            (mine,) = [look for look in decode("n", found).ranks if look.run == rank.run]
            assert mine.frames or mine.why_not
            return found if place_of(mine.frames).where == "train.py:4" else {}

        asked = wait_for(answered, "a stack")
        (plain,) = [look for look in asked["ranks"] if look["run"] == rank.run]
        assert plain["memory_bytes"] > 1 << 20 and plain["gpu"] is None
        assert rank.process.poll() is None
        assert one.close() == 0


@pytest.mark.slow
def test_a_rank_that_ends_and_one_that_begins_are_noticed(tmp_path: Path) -> None:
    with started() as one:
        one.answer()
        with Rank(tmp_path, "time.sleep(60)") as rank:
            runs = {rank.run}

            def seen() -> bool:
                return runs <= {look["run"] for look in one.answer()["ranks"]}

            wait_for(seen, "the rank")
        wait_for(lambda: not seen(), "no rank")


@pytest.mark.slow
def test_the_output_and_the_exits_of_a_detached_run_come_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Detached(tmp_path, wait_script(tmp_path / "go"))
    run.up()
    with started(journal=f"{run.plan.nodes[0].run_dir}.journal") as one:
        first = "\n".join(one.answer()["printed"])
        assert first.count('"type": "out"') + first.count('"type":"out"') >= 4 and "began" in first
        (tmp_path / "go").touch()
        ends = ""
        while "finished" not in ends:
            ends += "\n".join(one.answer()["printed"])
        assert ends.count('"exit"') == 4
    run.follow()
    assert not tagged(run.plan.run_id)


def test_a_journal_that_is_written_fast_is_read_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "out-0").write_bytes(b"old\n" * 10)
    (tmp_path / "out-9").write_bytes(b"x\n")
    (tmp_path / "out-10").write_bytes(b"first\n" + b"y" * 99 + b"\n" + b"12345\n" * 40_000 + b"half")
    journal = watch.Journal(str(tmp_path))
    lines = journal.lines()
    assert set(lines) == {"12345"} and 10_000 < len(lines) < 11_000
    assert journal.lines() == []
    with (tmp_path / "out-10").open("ab") as file:
        file.write(b"-whole\nnext\n")
    assert journal.lines() == ["half-whole", "next"]
    assert watch.Journal(str(tmp_path / "none")).lines() == [] and watch.Journal("").lines() == []


class Costly(watch.Watch):
    """Work that takes as much CPU time as it is told."""

    def __init__(self) -> None:
        super().__init__(2.0, "")
        self.told: list[tuple[str, int]] = []

    def tell(self, mode: str, number: int) -> None:
        self.told.append((mode, number))


@pytest.mark.parametrize("cost_s", [0.001, 0.02, 0.5])
def test_it_rests_so_long_that_it_takes_less_than_a_percent_of_a_core(
    cost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0.0]
    monkeypatch.setattr(watch, "cpu_s", lambda: used[0])
    monkeypatch.setattr(watch.main, "RanksHere", lambda *_: None)
    one, now = Costly(), 0.0
    while now < 1000.0:
        kind = min(("ranks", "count", "stacks"), key=lambda kind: one.due[kind])
        now = max(now, one.due[kind])
        used[0] += cost_s
        one.work(kind, now)
    assert (used[0] - 4 * cost_s) / now < 0.0081  # without the first work of each kind, and the second count
    modes = [mode for mode, _ in one.told]
    if cost_s == 0.001:
        assert modes.count("count") >= 499 and modes.count("stacks") >= 99


def test_the_first_three_counts_and_the_stacks_come_whatever_they_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = [0.0]
    monkeypatch.setattr(watch, "cpu_s", lambda: used[0])
    monkeypatch.setattr(watch.main, "RanksHere", lambda *_: None)
    one, now = Costly(), 5.0
    while len(one.told) < 4:
        kind = min(("ranks", "count", "stacks"), key=lambda kind: one.due[kind])
        now = max(now, one.due[kind])
        used[0] += 0.2
        one.work(kind, now)
    assert [mode for mode, _ in one.told] == ["count", "stacks", "count", "count"] and now < 8.5


def test_whoever_asks_again_and_again_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [0.0]
    monkeypatch.setattr(watch, "cpu_s", lambda: used[0])
    monkeypatch.setattr(watch.main, "RanksHere", lambda *_: None)
    one = Costly()
    one.asked = [("stacks", 1), ("stacks", 2)]
    used[0] += 0.05
    one.work("asked", 100.0)
    assert one.due["asked"] == 105.0 and one.told == [("stacks", 1)]
    used[0] += 5.0
    one.work("asked", 105.0)
    assert one.due["asked"] == 105.0 + watch.MOST_ASKED_S


NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { if ((long)d == 2) return 3; u[0] = 97; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 80; m[2] = 60 + (long)d; return 0; }
struct process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) {
  if (*n < 3) return 7;
  *n = PROCESSES;
  for (unsigned i = 0; i < *n; i++) {
    p[i].pid = i == 2 ? 7 : 100 * (long)d + i;
    p[i].memory = i == 1 ? -1 : i == 2 ? 4 * (long)d : 50;
  }
  return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler for a library that answers as NVML does")
@pytest.mark.parametrize("processes", [3, 0])
def test_a_rank_has_the_gpu_that_it_uses(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    words = [
        "cc",
        "-shared",
        "-fPIC",
        f"-DPROCESSES={processes}",
        "-o",
        str(library),
        str(tmp_path / "nvml.c"),
    ]
    subprocess.run(words, check=True)
    load = gpus.ctypes.CDLL
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: load(str(library)))
    one = gpus.Gpus()
    wait_for(lambda: one.found, "NVML's answer")
    if processes:
        shares = [{n * 100: 50, n * 100 + 1: None, 7: 4 * n} for n in (1, 2)]
        assert one.found == [(97, 61, shares[0]), (None, 62, shares[1])]
        assert one.of_rank([5, 201], 0, "") == [None, 62, None]  # its share is not told
        assert one.of_rank([7], 0, "") == [None, 62, 8]  # it has most there, and a little on the first
        assert one.of_rank([100, 101, 200 + 9], 0, "") == [97, 61, 50]
        assert one.of_rank([5], 0, "") is None  # the processes are seen, and it is none of them
    else:  # as in a container
        assert one.of_rank([5], 1, "") == [None, 62, None] and one.of_rank([5], 1, "1,0") == [97, 61, None]
        assert [one.of_rank([5], *known) for known in ((2, ""), (-1, ""), (0, "GPU-1f"), (0, "7"))] == [
            None
        ] * 4


def test_a_node_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(gpus.ctypes, "CDLL", absent)
    assert gpus.Gpus().of_rank([1], 0, "") is None


@pytest.mark.slow
def test_without_a_word_for_a_minute_it_ends() -> None:
    """Of a reader whose end nobody has told the node of."""
    code = "from ringup.agent.snapshot import watch; watch.SILENT_S = 0.5; watch.Watch(1.0, '').run()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.wait(60) == 0
