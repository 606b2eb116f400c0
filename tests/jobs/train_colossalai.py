"""A few checked sums in a group that ColossalAI has made from torchrun's variables."""

import sys

import colossalai
import torch
import torch.distributed as dist
from ending import end_if_asked, trained

colossalai.launch_from_torch(backend="gloo", verbose=False)
rank, world = dist.get_rank(), dist.get_world_size()
for _ in range(3):
    total = torch.full((8,), float(rank + 1))
    dist.all_reduce(total)
    assert total[0] == world * (world + 1) / 2, total
    end_if_asked(rank, sys.argv[1:])
dist.destroy_process_group()
trained(rank, world)
