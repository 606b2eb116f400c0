"""Two steps of a DeepSpeed engine on CPUs; takes --local_rank as DeepSpeed's own examples do."""

import argparse
import os

import deepspeed
import torch
from ending import end_if_asked, trained

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.add_argument("ending", nargs="*")
arguments = parser.parse_args()

# Else DeepSpeed compiles it first, for most of a minute on each node.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1000},
)
for _ in range(2):
    engine.backward(engine(torch.full((1, 4), float(rank))).sum())
    engine.step()
    end_if_asked(rank, arguments.ending)
weights = [torch.zeros(1, 4) for _ in range(world)]
torch.distributed.all_gather(weights, engine.module.weight.detach())
assert all(torch.equal(w, weights[0]) for w in weights), weights
torch.distributed.destroy_process_group()
trained(rank, world)
# About one process in a hundred aborts as Python tears torch 2.13 and DeepSpeed 0.19 down: not tested here.
os._exit(0)
