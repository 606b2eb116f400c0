"""
What watching costs: CPU time of looks against that of the ranks, and step times with and without.

    python bench/watch.py [--nproc 1] [--pairs 24]

A silent run computes and all-reduces on two nodes simulated on this machine.  In every second turn of 5 s
it is looked at as in a whole window of 60 s: both of a pair of turns meet the same state of a shared
machine. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_hangs import free_port  # noqa: E402  (the checkout is no package)

from ringup.agent_bundle import program  # noqa: E402

TURN_S, DEFAULT_S = 5, 60
JOB = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
weight, steps = torch.randn(256, 256), []
end = torch.tensor([time.monotonic() + float(sys.argv[1])])
dist.broadcast(end, 0)
while True:
    began = time.monotonic()
    for _ in range(8):
        weight = torch.tanh(weight @ weight)
    over = torch.tensor([float(time.monotonic() > end)])
    dist.all_reduce(over)
    steps.append((began, time.monotonic() - began))
    if over.item():
        break
if dist.get_rank() == 0:
    open(sys.argv[2], "w").writelines(f"{began} {took}\\n" for began, took in steps)
dist.destroy_process_group()
"""


def command(folder: Path, nproc: int, seconds: float, window_s: float) -> list[str]:
    """The run."""
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", str(nproc), "--quiet"]
    words += ["--backend", "gloo", "--env", f"MASTER_PORT={free_port()}", "--log-dir", str(folder / "log")]
    return [*words, "--hang-report", f"{window_s:g}", "--", "job.py", str(seconds), str(folder / "result")]


def step_times(nproc: int, pairs: int) -> list[tuple[float, float]]:
    """
    Of one silent run, by pair of turns: median step time of rank 0 with looks going on, and without, in ms.

    What a window's watching does on both nodes is done in each second turn: a look at counters and one at
    stacks on each.  Watching itself is off, so that no other look falls into a turn.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        seconds = 2 * TURN_S * pairs
        run = subprocess.Popen(
            command(folder, nproc, seconds + 5, 0),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_ranks_run("count")
        turns = []
        for turn in range(2 * pairs):
            began = time.monotonic()
            if turn % 2:
                for mode in ("count", "stacks"):
                    subprocess.run(look(mode), capture_output=True)
                    subprocess.run(look(mode), capture_output=True)
            time.sleep(max(0.0, began + TURN_S - time.monotonic()))
            turns.append((began, time.monotonic()))
        if run.wait():
            sys.exit("the run failed")
        steps = [tuple(map(float, line.split())) for line in (folder / "result").read_text().splitlines()]
    medians = [
        statistics.median(took * 1e3 for began, took in steps if first <= began < last)
        for first, last in turns
    ]
    return list(zip(medians[1::2], medians[::2], strict=True))


def look(mode: str) -> list[str]:
    """One look at the ranks of this machine."""
    return [sys.executable, "-c", program("snapshot.main"), mode, "", ""]


def until_ranks_run(mode: str) -> None:
    """Wait until a look finds ranks, and torch is imported."""
    until = time.monotonic() + 60
    while (
        b'"rank"' not in subprocess.run(look(mode), capture_output=True).stdout and time.monotonic() < until
    ):
        time.sleep(0.2)
    time.sleep(6)


def look_cpu_s(nproc: int, mode: str, repeat: int) -> float:
    """CPU seconds of one look while such a run goes on."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        run = subprocess.Popen(
            command(folder, nproc, 25, 0),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_ranks_run(mode)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(repeat):
            subprocess.run(look(mode), capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        run.wait()
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return used / repeat


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=24)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; 2 nodes x {args.nproc}")
    count, stacks = (look_cpu_s(args.nproc, mode, 10) for mode in ("count", "stacks"))
    # Per window one look at counters, and in a silence one at stacks; ranks use a core each.
    share = (count + stacks) / (DEFAULT_S * args.nproc)
    print(f"a look at counters: {count * 1e3:.0f} ms of CPU, with stacks: {stacks * 1e3:.0f} ms")
    print(f"of the ranks' CPU time, with the default window: {share:.3%} (wanted: under 1 %)")
    times = step_times(args.nproc, args.pairs)
    ratios = sorted(on / off for on, off in times)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"step: {statistics.median(off for _, off in times):.2f} ms; watched {DEFAULT_S / TURN_S:g} times as"
    )
    print(f"often as by default / not watched, in turns of {TURN_S} s: {middle:.3f}")
    print(f"(half of {len(ratios)} pairs within {low:.3f} and {high:.3f})")
    return 0 if share < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
