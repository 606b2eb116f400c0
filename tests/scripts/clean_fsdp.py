"""FSDP: a summary over all ranks, the state gathered by all and written by one."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

local_rank = int(os.environ["LOCAL_RANK"])
rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])


def setup() -> None:
    dist.init_process_group("nccl")


def cleanup() -> None:
    dist.destroy_process_group()


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    total = torch.zeros(2).to(local_rank)
    for batch in loader:
        loss = model(batch.to(local_rank)).sum()
        loss.backward()
        optimizer.step()
        total[0] += loss.item()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"loss {total[0] / world_size}")
    return total


def main() -> None:
    setup()
    torch.cuda.set_device(local_rank)
    data = torch.randn(64, 10)
    sampler = DistributedSampler(data, rank=rank, num_replicas=world_size)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    model = FullyShardedDataParallel(nn.Linear(10, 10), auto_wrap_policy=policy, device_id=local_rank)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train(model, loader, optimizer)
    dist.barrier()
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
    cleanup()


if __name__ == "__main__":
    main()
