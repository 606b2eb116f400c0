"""
Our all_reduce figures against a plain torch loop, on the same ranks in the same run.

    python bench/prove.py [--nproc 2] [--rounds 600] [--sizes 65536,1048576,16777216]

Each round times a batch of calls of a size both ways, in turns; the median of the ratios counts.
Needs torch; Gloo on CPU.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PAYLOAD = Path(__file__).parent.parent / "src" / "ringup" / "agent"
LIMIT = 0.03
BATCH_S = 0.04
"""Short, so that both of a pair meet the same state of a shared machine."""


def plain(tensor: torch.Tensor, count: int) -> float:
    """What anybody would write: a barrier, a batch of calls, the mean over calls and ranks in seconds."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    spent = torch.tensor([(time.perf_counter() - began) / count])
    dist.all_reduce(spent)
    return float(spent) / dist.get_world_size()


def ours(world: Any, case: Any, count: int) -> float:
    """What `ringup bench` does with one batch."""
    import torch
    import torch.distributed as dist

    from ringup.agent.collective import bandwidth

    spent = torch.tensor([sum(bandwidth.spent(world, None, case, count)) / count])
    dist.all_reduce(spent)
    return float(spent) / dist.get_world_size()


def rank(sizes: list[int], rounds: int) -> None:
    """One of the ranks."""
    import torch
    import torch.distributed as dist

    from ringup.agent.collective import bandwidth
    from ringup.agent.collective.world import World

    if hasattr(os, "sched_setaffinity"):
        # Ranks that wander between the cores differ by a third from one batch to the next.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    world = World("gloo", 60, 120)
    world.arrive()
    world.join()
    worst = 0.0
    for size in sizes:
        case = bandwidth.Case("all_reduce", size, world, list(range(world.size)), None)
        tensor = torch.zeros(size // 4)
        once = torch.tensor([min(plain(tensor, 5) for _ in range(5))])
        dist.all_reduce(once, op=dist.ReduceOp.MAX)
        count = max(5, int(BATCH_S / float(once)))
        ratios = []
        for turn in range(rounds):
            # The second of a pair finds warm caches: both are second as often.
            if turn % 2:
                theirs = plain(tensor, count)
                ratios.append(ours(world, case, count) / theirs)
            else:
                mine = ours(world, case, count)
                ratios.append(mine / plain(tensor, count))
        ratio = statistics.median(ratios)
        worst = max(worst, abs(ratio - 1))
        if world.rank == 0:
            low, _, high = statistics.quantiles(ratios, n=4)
            print(
                f"{size:>10} bytes  ours / plain {ratio:.3f}  (half of {rounds} pairs of {count} calls "
                f"within {low:.3f} and {high:.3f})",
                flush=True,
            )
    if world.rank == 0:
        print(f"worst {100 * worst:.1f} % (limit {100 * LIMIT:.0f} %)", flush=True)
    world.leave()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--sizes", default="65536,1048576,16777216")
    words = parser.parse_args()
    if "RANK" in os.environ:
        rank([int(size) for size in words.sizes.split(",")], words.rounds)
        return
    print(f"{words.nproc} ranks, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={words.nproc}", "--standalone"]
    subprocess.run([*start, __file__, *sys.argv[1:]], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
