"""DDP started by torchrun, the model on a device counted from the rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def demo() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = rank % torch.cuda.device_count()
    model = DDP(nn.Linear(10, 10).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = model(torch.randn(20, 10).to(device)).sum()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    demo()
