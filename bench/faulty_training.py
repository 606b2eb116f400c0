"""
The job of bench/fault_campaign.py: `faulty_training.py FOLDER STEPS [HOW:WHO:STEP:ATTEMPTS ...]`.

An all-reduce and a checkpoint in each step; resumes.  WHO is a rank, "all" or a node's name; STEP 0 is before
the process group; ATTEMPTS is "*" or numbers joined by "+".
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

FOLDER, STEPS, STEP_S = Path(sys.argv[1]), int(sys.argv[2]), 0.2
CHECKPOINT = FOLDER / "checkpoint.pt"
RANK, ATTEMPT = int(os.environ["RANK"]), os.environ["RINGUP_ATTEMPT"]
OOM = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which"
    " 2.31 GiB is free. Process 4711 has 76.79 GiB memory in use."
)


def replace(path: Path, data: bytes) -> None:
    """A reader finds the old or the new file."""
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def save(step: int) -> None:
    unfinished = CHECKPOINT.with_suffix(".new")
    torch.save({"step": step, "weights": torch.ones(1000)}, unfinished)
    unfinished.replace(CHECKPOINT)
    replace(FOLDER / "step", str(step).encode())


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashed() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raised(error: Exception) -> None:
    raise error


def disk_full() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def truncated() -> None:
    """A checkpoint that is not written to its end, under its name."""
    data = CHECKPOINT.read_bytes()
    CHECKPOINT.write_bytes(data[: len(data) // 2])
    killed()


def port_taken() -> None:
    """Somebody listens where the ranks meet."""
    globals()["listener"] = socket.create_server(("", int(os.environ["MASTER_PORT"])))


def loader_worker_killed() -> None:
    batches = iter(DataLoader(range(1000), num_workers=1, persistent_workers=True))
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    for _ in batches:
        time.sleep(0.01)


def left_behind() -> None:
    """A child in a session of its own that ignores SIGTERM and knows nothing of the run; then a failure."""
    words = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1e6)"
    subprocess.Popen([sys.executable, "-S", "-c", words], env={}, start_new_session=True)
    time.sleep(1)
    killed()


def local_module() -> None:
    sys.path.append("/root/lib")
    __import__("only_local")


def wrong_arguments() -> None:
    argparse.ArgumentParser().parse_args(["--nonsense"])


HOW = {
    "name": lambda: raised(NameError("name 'modle' is not defined")),
    "type": lambda: raised(TypeError("unsupported operand type(s) for +: 'int' and 'str'")),
    "value": lambda: raised(ValueError("bad batch")),
    "connection": lambda: raised(ConnectionError("('Connection aborted.', RemoteDisconnected())")),
    "oom": lambda: raised(torch.OutOfMemoryError(OOM)),
    "ecc": lambda: raised(RuntimeError("CUDA error: uncorrectable ECC error encountered")),
    "import": lambda: __import__("nonexistent_module"),
    "exit": lambda: os._exit(3),
    "kill": killed,
    "segv": crashed,
    "full": disk_full,
    "truncate": truncated,
    "port": port_taken,
    "loader": loader_worker_killed,
    "leave": left_behind,
    "local": local_module,
    "arguments": wrong_arguments,
    "shape": lambda: dist.all_reduce(torch.ones(50_000)),
    "uneven": lambda: sys.exit(0),
    "lasts": lambda: time.sleep(1e6),
}


def break_at(step: int) -> None:
    for fault in sys.argv[3:]:
        how, who, when, attempts = fault.split(":")
        is_here = who in ("all", str(RANK), os.uname().nodename)
        if is_here and int(when) == step and (attempts == "*" or ATTEMPT in attempts.split("+")):
            HOW[how]()


def main() -> None:
    break_at(0)
    first = int(torch.load(CHECKPOINT, weights_only=True)["step"]) + 1 if CHECKPOINT.exists() else 1
    dist.init_process_group("gloo")
    for step in range(first, STEPS + 1):
        time.sleep(STEP_S)
        break_at(step)
        dist.all_reduce(torch.ones(1000))
        if RANK == 0:
            save(step)
            print(f"step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
