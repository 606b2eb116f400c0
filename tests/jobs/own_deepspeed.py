"""A DeepSpeed engine that starts torch.distributed itself."""

import argparse
import os

import deepspeed
import torch
from ending import formed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
deepspeed.add_config_arguments(parser)
arguments = parser.parse_args()

# Else DeepSpeed compiles it first, for most of a minute on each node.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1000},
)
engine.backward(engine(torch.full((1, 4), float(engine.global_rank))).sum())
engine.step()
total = torch.tensor(float(engine.global_rank + 1))
deepspeed.comm.all_reduce(total)
formed(engine.world_size, total.item())
torch.distributed.destroy_process_group()
# About one process in a hundred aborts as Python tears torch 2.13 and DeepSpeed 0.19 down: not tested here.
os._exit(0)
