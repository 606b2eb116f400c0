"""
A tiny examples/chargpt of one step in STEP_S seconds, for ever: `paced_training.py FOLDER STEP_S`.

Writes FOLDER/checkpoints/snapshot.pt each epoch and then its step into FOLDER/step; rank 0 adds a line of
JSON for each step to FOLDER/steps.jsonl: its number, loss, time and run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "chargpt"
sys.path.insert(0, str(EXAMPLE))

import train  # noqa: E402  (an example, no package)

if TYPE_CHECKING:
    import torch

FOLDER, STEP_S = Path(sys.argv[1]), float(sys.argv[2])
CONFIG = f"""\
text = {EXAMPLE}/text.txt
snapshot = {FOLDER}/checkpoints/snapshot.pt
block = 64
layers = 1
heads = 2
width = 32
batch = 4
epochs = 1000000
"""


def replace(path: Path, text: str) -> None:
    """A reader finds the old or the new file."""
    unfinished = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)


class Paced(train.Trainer):
    def number(self) -> int:
        """Steps that the optimizer has made, those before a restart too."""
        states = self.optimizer.state.values()
        return int(next(iter(states))["step"]) if states else 0

    def note(self, **known: Any) -> None:
        if self.rank == 0:
            words = {"run": os.environ.get("RINGUP_RUN", ""), "t": time.time(), **known}
            with (FOLDER / "steps.jsonl").open("a") as file:
                file.write(json.dumps(words) + "\n")

    def step(self, codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        began_s = time.monotonic()
        loss = super().step(codes, following)
        self.note(step=self.number(), loss=round(float(loss), 4))
        if self.rank == 0:
            print(f"step {self.number()} loss {float(loss):.3f}", flush=True)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began_s)))
        return loss

    def save(self, epoch: int) -> None:
        super().save(epoch)
        replace(FOLDER / "step", str(self.number()))
        self.note(saved=self.number())


if __name__ == "__main__":
    config = FOLDER / "config.toml"
    replace(config, CONFIG)  # by every rank, the same
    train.Trainer = Paced  # type: ignore[misc]
    sys.argv[1:] = [str(config)]
    train.main()
