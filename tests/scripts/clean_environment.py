"""Everything from torchrun's variables, defaults for a single process, gloo where there is no GPU."""

import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def environment() -> tuple[int, int, int]:
    return (
        int(os.environ.get("RANK", 0)),
        int(os.environ.get("LOCAL_RANK", 0)),
        int(os.environ.get("WORLD_SIZE", 1)),
    )


def is_main_process() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def main() -> None:
    rank, local_rank, world_size = environment()
    os.environ.setdefault("MASTER_ADDR", "localhost")
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "29555"
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=5))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    model = DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
    for step in range(10):
        model(torch.randn(4, 8, device=device)).sum().backward()
        count = torch.tensor([step], device=device)
        dist.all_reduce(count)
        if is_main_process():
            print(rank, world_size, count.item())
    if rank == 0:
        print("first")
        dist.barrier()
    else:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
