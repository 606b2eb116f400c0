"""
A training that is silent for long, and well: `slow_but_well.py HOW SECONDS`; ends by itself.

    tokenise    rank 0 computes, the others wait for it in a barrier
    save        rank 0 writes a checkpoint piece by piece, the others wait
    checkpoint  rank 0 saves 256 MB by torch.save, again and again, the others wait
    compile     every rank waits for a compiler of its own
    first_step  rank 1 alone waits for its compiler, the others for it in all_reduce
    fetch       rank 0 reads a slow server's answer, the others wait
    loader      a DataLoader's worker computes its first batch
    uneven      steps with all_reduce in which rank 1 computes longest, nothing printed
"""

import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

how, seconds = sys.argv[1], float(sys.argv[2])


def compute(until):
    """Use the processor."""
    total = 0
    while time.monotonic() < until:
        total += sum(range(10000))
    return total


class Items(torch.utils.data.Dataset):
    """The first item takes long."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        compute(time.monotonic() + (seconds if index == 0 else 0))
        return torch.ones(2)


dist.init_process_group("gloo")
rank = dist.get_rank()
print("begin", flush=True)
end = time.monotonic() + seconds
if how == "tokenise" and rank == 0:
    compute(end)
elif how == "save" and rank == 0:
    with tempfile.TemporaryFile(dir=".") as file:
        while time.monotonic() < end:
            file.write(os.urandom(1 << 18))
            os.fsync(file.fileno())
            time.sleep(0.05)
elif how == "checkpoint" and rank == 0:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        while time.monotonic() < end:
            torch.save({f"layer {n}": torch.ones(1 << 20) for n in range(64)}, f"{folder}/model.pt")
elif how == "fetch" and rank == 0:
    drips = f"import sys, time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end:"
    drips += " sys.stdout.buffer.write(bytes(8192)); sys.stdout.flush(); time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", drips], stdout=subprocess.PIPE) as server:
        while server.stdout.read(4096):
            pass
elif how == "compile" or (how == "first_step" and rank == 1):
    busy = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: sum(range(10000))"
    subprocess.run([sys.executable, "-c", busy], check=True)
elif how == "loader":
    for _ in torch.utils.data.DataLoader(Items(), num_workers=1):
        pass
elif how == "uneven":
    while True:
        compute(time.monotonic() + (0.3 if rank == 1 else 0.02))
        over = torch.tensor([float(time.monotonic() > end)])
        dist.all_reduce(over)
        if over.item():
            break
dist.all_reduce(torch.ones(8)) if how == "first_step" else dist.barrier()
print("end", flush=True)
dist.destroy_process_group()
