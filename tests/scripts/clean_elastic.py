"""Elastic training: snapshots, resumed after a restart, the trainer in a class."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def ddp_setup() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model: nn.Module, data: DataLoader, path: str) -> None:
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model.to(self.local_rank)
        self.data = data
        self.epochs_run = 0
        self.path = path
        if Path(path).exists():
            self._load(path)
        self.model = DistributedDataParallel(self.model, device_ids=[self.local_rank])

    def _load(self, path: str) -> None:
        snapshot = torch.load(path, map_location=f"cuda:{self.local_rank}")
        self.model.load_state_dict(snapshot["model"])
        self.epochs_run = snapshot["epochs"]

    def _save(self, epoch: int) -> None:
        torch.save({"model": self.model.module.state_dict(), "epochs": epoch}, self.path)

    def train(self, epochs: int) -> None:
        for epoch in range(self.epochs_run, epochs):
            self.data.sampler.set_epoch(epoch)
            for batch in self.data:
                self.model(batch.to(self.local_rank)).sum().backward()
            if self.global_rank == 0 and epoch % 2 == 0:
                self._save(epoch)


def main() -> None:
    ddp_setup()
    data = torch.randn(64, 10)
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    Trainer(nn.Linear(10, 1), loader, "snapshot.pt").train(4)
    destroy_process_group()


if __name__ == "__main__":
    main()
