"""One process a node, which spawns one per GPU and counts ranks over the nodes."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--world-size", default=-1, type=int, help="number of nodes")
parser.add_argument("--rank", default=-1, type=int, help="node rank")
parser.add_argument("--dist-url", default="env://")
parser.add_argument("--dist-backend", default="nccl")
parser.add_argument("-j", "--workers", default=4, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")


def main() -> None:
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus_per_node = torch.cuda.device_count()
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(None, ngpus_per_node, args)


def main_worker(gpu: int, ngpus_per_node: int, args: argparse.Namespace) -> None:
    args.gpu = gpu
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(
            backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank
        )
    torch.cuda.set_device(args.gpu)
    model = nn.Linear(10, 10).cuda(args.gpu)
    model = DistributedDataParallel(model, device_ids=[args.gpu])
    best = validate(model, args)
    if not args.multiprocessing_distributed or args.rank % ngpus_per_node == 0:
        torch.save({"best": best}, "checkpoint.pt")
    dist.destroy_process_group()


def validate(model: nn.Module, args: argparse.Namespace) -> torch.Tensor:
    total = torch.zeros(1).cuda(args.gpu)
    if args.distributed:
        dist.all_reduce(total)
    return total


if __name__ == "__main__":
    main()
