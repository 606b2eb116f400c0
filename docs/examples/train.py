"""Average one number over all ranks, 20 times."""

import torch
import torch.distributed as dist

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
loss = torch.ones(1000, device=device) * rank
for step in range(20):
    dist.all_reduce(loss)
    loss /= world
    if rank == 0 and step % 10 == 0:
        print(f"step {step} of 20, {world} ranks", flush=True)
dist.destroy_process_group()
