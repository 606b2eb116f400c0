"""Ranks that a script starts for one machine, as PyTorch's first tutorial has them; they stay for a while."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ending import formed


def main(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    until = time.monotonic() + float(sys.argv[1])
    go_on = torch.ones(1)
    while go_on:
        total = torch.tensor(float(rank + 1))
        dist.all_reduce(total)
        go_on.fill_(time.monotonic() < until)
        dist.broadcast(go_on, 0)
        time.sleep(0.1)
    formed(world_size, total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
