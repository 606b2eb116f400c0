"""Starts its ranks itself (`spawned_stuck.py spawn|fork`); the last one of the job sleeps."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(local_rank, node, nodes, count):
    rank, world = node * count + local_rank, nodes * count
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)
    if rank == world - 1:
        time.sleep(3600)  # here
    dist.all_reduce(torch.ones(8))


if __name__ == "__main__":
    numbers = tuple(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    mp.start_processes(work, args=numbers, nprocs=numbers[2], start_method=sys.argv[1])
