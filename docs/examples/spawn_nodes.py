"""Starts its ranks itself, with mp.spawn, and can do so on several nodes."""

import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(local_rank: int, options: argparse.Namespace) -> None:
    """One rank: add up the rank numbers."""
    rank = options.node_rank * options.nproc + local_rank
    world_size = options.nodes * options.nproc
    dist.init_process_group("gloo", init_method=options.dist_url, rank=rank, world_size=world_size)
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    if rank == 0:
        print(f"{world_size} ranks, sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist-url", default="tcp://127.0.0.1:29500")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--nproc", type=int, default=2)
    found = parser.parse_args()
    mp.spawn(work, args=(found,), nprocs=found.nproc)
