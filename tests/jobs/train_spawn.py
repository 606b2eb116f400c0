"""A script that starts its ranks itself, as PyTorch's imagenet example does: RANK counts nodes."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ending import end_if_asked, trained


def work(local_rank, node, nodes, count, arguments):
    rank, world = node * count + local_rank, nodes * count
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world)
    total = torch.full((8,), float(rank + 1))
    dist.all_reduce(total)
    assert total[0] == world * (world + 1) / 2, total
    end_if_asked(rank, arguments)
    dist.barrier()
    dist.destroy_process_group()
    trained(rank, world)


if __name__ == "__main__":
    numbers = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    mp.spawn(work, args=(*numbers, sys.argv[1:]), nprocs=numbers[2])
