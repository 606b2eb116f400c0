"""
Our all_reduce figures against a plain torch loop, on the same ranks in the same run.

    python bench/prove.py [--nproc 2] [--rounds 5] [--sizes 65536,1048576,16777216]

Each round times a size both ways, in turns; the median of the ratios counts.  Needs torch; Gloo on CPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

PAYLOAD = Path(__file__).parent.parent / "src" / "ringup" / "payload"
LIMIT = 0.03


def plain(size_bytes: int, seconds: float) -> float:
    """What anybody would write: warm up, barrier, a batch of calls, the mean."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(size_bytes // 4)
    for _ in range(5):
        dist.all_reduce(tensor)
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(tensor)
    once = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    count = max(20, int(seconds / float(once)))
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    spent = torch.tensor([(time.perf_counter() - began) / count])
    dist.all_reduce(spent)
    return float(spent) / dist.get_world_size()


def rank(sizes: list[int], rounds: int) -> None:
    """One of the ranks."""
    sys.path.insert(0, str(PAYLOAD))
    import prove_sweep
    from prove_world import World

    world = World("gloo", 60, 120)
    world.arrive()
    world.join()
    members = list(range(world.size))
    worst = 0.0
    for size in sizes:
        ratios = []
        for _ in range(rounds):
            case = prove_sweep.Case("all_reduce", size, world, members, None)
            by_rank, _ = prove_sweep.measure(world, None, case)
            ours = sum(one[0] for one in by_rank) / len(by_rank)
            ratios.append(ours / plain(size, 0.5))
        ratio = statistics.median(ratios)
        worst = max(worst, abs(ratio - 1))
        if world.rank == 0:
            shown = " ".join(f"{r:.3f}" for r in ratios)
            print(f"{size:>10} bytes  ours / plain {ratio:.3f}  [{shown}]", flush=True)
    if world.rank == 0:
        print(f"worst {100 * worst:.1f} % (limit {100 * LIMIT:.0f} %)", flush=True)
    world.leave()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="65536,1048576,16777216")
    words = parser.parse_args()
    if "RANK" in os.environ:
        rank([int(size) for size in words.sizes.split(",")], words.rounds)
        return
    print(f"{words.nproc} ranks, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={words.nproc}", "--standalone"]
    subprocess.run([*start, __file__, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
