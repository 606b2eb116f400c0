"""
A small GPT of characters, trained with DistributedDataParallel: an example to launch, fit for a laptop.

    ringup run -H node[1-2] -- train.py config.toml --epochs 4

Started by torchrun (or anything that sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR).  It goes on from its
snapshot where there is one, uses NCCL where there are GPUs and Gloo where there are none.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass(frozen=True)
class Config:
    """What config.toml may set."""

    text: str = "text.txt"
    snapshot: str = "snapshot.pt"
    block: int = 64
    """Characters that the model sees at once."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1
    batch: int = 32
    """Of one rank."""
    epochs: int = 4
    learning_rate: float = 3e-4
    clip: float = 1.0


def read_config(path: Path, **given: object) -> Config:
    """`name = value` lines; what is given on the command line wins."""
    kinds = {f.name: type(f.default) for f in fields(Config)}
    found: dict[str, object] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.split("#")[0].partition("=")
        if equals:
            found[name.strip()] = kinds[name.strip()](value.strip().strip('"'))
    return Config(**{**found, **{k: v for k, v in given.items() if v is not None}})  # type: ignore[arg-type]


class Characters(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of a text: each predicts the same window one character on."""

    def __init__(self, text: str, block: int) -> None:
        self.alphabet = sorted(set(text))
        number = {character: n for n, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([number[character] for character in text])
        self.block = block

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = index * self.block
        window = self.codes[at : at + self.block + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """Attention to what came before, then a small network; both beside the signal."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.before, self.between = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attend = nn.Linear(config.width, 3 * config.width)
        self.merge = nn.Linear(config.width, config.width)
        self.think = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        size, length, width = signal.shape
        parts = self.attend(self.before(signal)).view(size, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        signal = signal + self.merge(seen.transpose(1, 2).reshape(size, length, width))
        return signal + self.think(self.between(signal))


class CharGpt(nn.Module):
    """Characters in, a guess of the next one out."""

    def __init__(self, config: Config, alphabet_size: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet_size, config.width)
        self.places = nn.Embedding(config.block, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.guess = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, alphabet_size))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.guess(self.blocks(self.characters(codes) + self.places(places)))


class Trainer:
    """The model on this rank's device, the loop, the snapshots."""

    def __init__(self, config: Config, data: Characters, device: torch.device) -> None:
        self.config, self.device, self.rank = config, device, dist.get_rank()
        model = CharGpt(config, len(data.alphabet)).to(device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        self.first_epoch = 0
        if Path(config.snapshot).exists():
            saved = torch.load(config.snapshot, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first_epoch = saved["epoch"] + 1
        self.model = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None
        )
        self.sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=config.batch, sampler=self.sampler)
        self.precision = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()

    def run(self) -> None:
        """All epochs that are left."""
        for epoch in range(self.first_epoch, self.config.epochs):
            self.sampler.set_epoch(epoch)
            began, total = time.monotonic(), torch.zeros(2, device=self.device)
            for codes, following in self.loader:
                total += torch.stack([self.step(codes, following), torch.ones((), device=self.device)])
            dist.all_reduce(total)  # every rank: the mean over the whole world
            if self.rank == 0:
                seconds = time.monotonic() - began
                print(f"epoch {epoch}: loss {total[0] / total[1]:.3f} in {seconds:.1f} s", flush=True)
                self.save(epoch)
            dist.barrier()

    def step(self, codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """One batch; its loss."""
        codes, following = codes.to(self.device), following.to(self.device)
        with self.precision:
            guess = self.model(codes)
            loss = functional.cross_entropy(guess.flatten(0, 1), following.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def save(self, epoch: int) -> None:
        """A snapshot that is whole or not there."""
        state = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": epoch,
        }
        unfinished = Path(self.config.snapshot + ".new")
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.config.snapshot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--snapshot")
    args = parser.parse_args()
    config = read_config(args.config, epochs=args.epochs, snapshot=args.snapshot)
    text = (args.config.parent / config.text).read_text(encoding="utf-8")

    local_rank = int(os.environ["LOCAL_RANK"])
    with_gpus = torch.cuda.is_available()
    if with_gpus:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if with_gpus else "gloo")
    torch.manual_seed(1)
    try:
        device = torch.device("cuda", local_rank) if with_gpus else torch.device("cpu")
        Trainer(config, Characters(text, config.block), device).run()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
