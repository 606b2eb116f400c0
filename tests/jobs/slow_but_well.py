"""
A training that is silent for long, and well: `slow_but_well.py HOW[,HOW ...] SECONDS`; ends by itself.

One after the other, each for so many seconds; who computes takes a quarter of a processor and wakes seldom.

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

seconds = float(sys.argv[2])
COMPUTES = """
import time
end = time.monotonic() + %s
while time.monotonic() < end:
    pause = time.monotonic() + 0.2
    while time.monotonic() < pause:
        sum(range(10000))
    time.sleep(0.6)
"""


def compute(seconds):
    """Use the processor."""
    exec(COMPUTES % seconds, {})


class Items(torch.utils.data.Dataset):
    """The first item takes long."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        compute(0 if index else seconds)
        return torch.ones(2)


def wait_well(how, end):
    if how == "tokenise" and rank == 0:
        compute(seconds)
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
                time.sleep(1)
    elif how == "fetch" and rank == 0:
        drips = f"import sys, time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end:"
        drips += " sys.stdout.buffer.write(bytes(8192)); sys.stdout.flush(); time.sleep(0.2)"
        with subprocess.Popen([sys.executable, "-c", drips], stdout=subprocess.PIPE) as server:
            while server.stdout.read(4096):
                pass
    elif how == "compile" or (how == "first_step" and rank == 1):
        subprocess.run([sys.executable, "-c", COMPUTES % seconds], check=True)
    elif how == "loader":
        for _ in torch.utils.data.DataLoader(Items(), num_workers=1):
            pass
    elif how == "uneven":
        over = torch.zeros(1)
        while not over.item():
            if rank == 1:
                pause = time.monotonic() + 0.1
                while time.monotonic() < pause:
                    sum(range(10000))
                time.sleep(0.2)
            over = torch.tensor([float(time.monotonic() > end)])
            dist.all_reduce(over)
    dist.all_reduce(torch.ones(8)) if how == "first_step" else dist.barrier()


dist.init_process_group("gloo")
rank = dist.get_rank()
for how in sys.argv[1].split(","):
    print("begin", how, flush=True)
    wait_well(how, time.monotonic() + seconds)
print("end", flush=True)
dist.destroy_process_group()
