"""
What watching costs: CPU time of looks against that of the ranks, and step times with and without.

    python bench/watch.py [--nproc 2] [--seconds 20] [--repeat 3]

A silent run computes and all-reduces on two nodes played on this machine; with watching, its window is
4 s, fifteen times as short as by default, so that looks are frequent enough to be seen.  Turns alternate.
Needs torch.
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

from ringup.launch.program import look_program  # noqa: E402

WINDOW_S, DEFAULT_S = 4, 60
JOB = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
weight, times = torch.randn(256, 256), []
end = torch.tensor([time.monotonic() + float(sys.argv[1])])
dist.broadcast(end, 0)
while True:
    began = time.monotonic()
    for _ in range(8):
        weight = torch.tanh(weight @ weight)
    over = torch.tensor([float(time.monotonic() > end)])
    dist.all_reduce(over)
    times.append(time.monotonic() - began)
    if over.item():
        break
times.sort()
used = time.process_time()
if dist.get_rank() == 0:
    print("result", times[len(times) // 2] * 1e3, used, flush=True)
    open(sys.argv[2], "w").write(f"{times[len(times) // 2] * 1e3} {used}")
dist.destroy_process_group()
"""


def command(folder: Path, nproc: int, seconds: float, window_s: float) -> list[str]:
    """The run."""
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", str(nproc), "--quiet"]
    words += ["--backend", "gloo", "--env", f"MASTER_PORT={free_port()}", "--log-dir", str(folder / "log")]
    return [*words, "--hang-report", f"{window_s:g}", "--", "job.py", str(seconds), str(folder / "result")]


def step_ms(nproc: int, seconds: float, window_s: float) -> float:
    """Median step time of rank 0 over one run."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "job.py").write_text(JOB)
        done = subprocess.run(
            command(folder, nproc, seconds, window_s), cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        return float((folder / "result").read_text().split()[0])


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
        words = [sys.executable, "-c", look_program(), mode, "", ""]
        until = time.monotonic() + 60
        while b'"rank"' not in subprocess.run(words, capture_output=True).stdout and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(6)  # torch is imported by now
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(repeat):
            subprocess.run(words, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        run.wait()
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return used / repeat


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; 2 nodes x {args.nproc}")
    count, stacks = (look_cpu_s(args.nproc, mode, 10) for mode in ("count", "stacks"))
    # Per window one look at counters, and in a silence one at stacks; ranks use a core each.
    share = (count + stacks) / (DEFAULT_S * args.nproc)
    print(f"a look at counters: {count * 1e3:.0f} ms of CPU, with stacks: {stacks * 1e3:.0f} ms")
    print(f"of the ranks' CPU time, with the default window: {share:.3%} (wanted: under 1 %)")
    found: dict[float, list[float]] = {0: [], WINDOW_S: []}
    for _ in range(args.repeat):
        for window_s, times in found.items():
            times.append(step_ms(args.nproc, args.seconds, window_s))
            print(f"window {window_s:g} s: median step {times[-1]:.2f} ms", flush=True)
    off, on = (statistics.median(times) for times in found.values())
    print(f"step time with a window of {WINDOW_S} s against none: {on / off - 1:+.1%}")
    return 0 if share < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
