"""
A tiny data-parallel training: a few steps, one checked all-reduce each.

`train.py [--steps N]`; prints one line when a rank is ready and one when it has finished.
"""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=5)
steps = parser.parse_args().steps

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
weight = torch.zeros(8)
for step in range(steps):
    gradient = torch.full((8,), float(rank + 1))
    dist.all_reduce(gradient)
    assert gradient[0] == world * (world + 1) / 2, gradient
    weight -= 0.1 * gradient / world
    if rank == 0:
        print(f"step {step} weight {weight[0]:.3f}", flush=True)
# More than one packet's worth, whatever the link's MTU: all of it must arrive.
large = torch.full((300_000,), 1.0)
dist.all_reduce(large)
assert large.sum() == 300_000 * world
dist.barrier()
dist.destroy_process_group()
print(f"trained to the end: rank {rank} of {world} on {os.uname().nodename}", flush=True)
