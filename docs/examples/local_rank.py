"""Wants --local-rank, as torch.distributed.launch passes it."""

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, required=True)
options = parser.parse_args()

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank()))
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(
        f"{dist.get_world_size()} ranks, sum {total.item():.0f}, local rank {options.local_rank}", flush=True
    )
dist.destroy_process_group()
