"""Rank 3 reads a file that is not there; the other ranks wait for it."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
weights = torch.ones(1000)
if rank == 3:
    with open("data/shard-3.bin", "rb") as file:
        weights += len(file.read())
dist.all_reduce(weights)
dist.destroy_process_group()
