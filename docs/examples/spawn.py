"""Starts its ranks itself, with mp.spawn: one machine is written into the code."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, world_size: int) -> None:
    """One rank: add up the rank numbers."""
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    if rank == 0:
        print(f"{world_size} ranks, sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    mp.spawn(work, args=(2,), nprocs=2)
