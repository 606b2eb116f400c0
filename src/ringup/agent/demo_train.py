"""A small character model for `ringup demo`: an ordinary data-parallel script that does not use ringup."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TEXT = (
    "a rank waits for a rank that waits for a rank; the first to fall is the one to find. "
    "check the link before the launch, name the cause before the blame, leave no process behind. "
) * 40
BATCH, CONTEXT = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}, local rank {os.environ['LOCAL_RANK']}, joined", flush=True)

    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(c) for c in TEXT])
    torch.manual_seed(0)
    wide, out = nn.Linear(24 * CONTEXT, 128), nn.Linear(128, len(letters))
    layers = nn.Embedding(len(letters), 24), nn.Flatten(), wide, nn.GELU(), out
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shuffle = torch.Generator().manual_seed(rank)

    for step in range(1, args.steps + 1):
        at = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=shuffle)
        x = torch.stack([data[i : i + CONTEXT] for i in at.tolist()])
        loss = F.cross_entropy(model(x), data[at + CONTEXT])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 15 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:3d}  loss {mean.item() / world:.3f}", flush=True)
    dist.barrier()
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
