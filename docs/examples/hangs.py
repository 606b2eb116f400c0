"""Only rank 0 saves, and a barrier waits inside the `if`: the other ranks never come."""

from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
loss = torch.ones(1000, device=device)


def save(step: int) -> None:
    """Write a checkpoint."""
    if rank == 0:
        print(f"step {step}: saving", flush=True)
        Path(f"checkpoint-{step}").write_text(str(loss.mean().item()))
        dist.barrier()


for step in range(4):
    dist.all_reduce(loss)
    if step == 2:
        save(step)
dist.destroy_process_group()
