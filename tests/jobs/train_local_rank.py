"""A script of torch 1's time: it must be told --local_rank, with an underscore."""

import argparse
import os

import torch
import torch.distributed as dist
from ending import end_if_asked, trained

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.add_argument("ending", nargs="*")
arguments = parser.parse_args()
assert arguments.local_rank == int(os.environ["LOCAL_RANK"])

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.full((8,), float(rank + 1))
dist.all_reduce(total)
assert total[0] == world * (world + 1) / 2, total
end_if_asked(rank, arguments.ending)
dist.barrier()
dist.destroy_process_group()
trained(rank, world)
