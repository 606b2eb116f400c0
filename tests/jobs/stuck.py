"""
A training in which one rank does what the first argument says from its fourth step on.

`stuck.py HOW [RANK] [FOLDER]`; each rank prints its steps until then.  HOW names a function below; the
line that a report is to name ends with "# here".
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

how = sys.argv[1]
culprit = int(sys.argv[2]) if len(sys.argv) > 2 else 1
folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("/tmp")


class Items(torch.utils.data.Dataset):
    """The fourth item of the culprit never comes."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 3 and how == "loader" and rank == culprit:
            Path(fifo()).read_bytes()  # here
        return torch.ones(8)


def fifo():
    """A FIFO that nobody writes to."""
    path = folder / f"fifo-{os.getpid()}"
    os.mkfifo(path)
    return path


def sleep():
    time.sleep(3600)  # here


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)  # here


def skip():
    """Does not take part in this step's all_reduce but in the next one's; the last has nobody to meet."""
    global skipped
    skipped = True


def other_kind():
    dist.barrier()  # here


def other_shape():
    dist.all_reduce(torch.ones(3))  # here


def read():
    path = fifo()
    end = os.open(path, os.O_RDWR)
    os.read(end, 1)  # here


def polled():
    """As read(); the other ranks poll for the result in their own code, as float() of a GPU's tensor does."""
    read()


def disk():
    """In state D: whoever makes a child as vfork does waits for it, and nothing can interrupt that."""
    # The child opens the FIFO before it becomes another program, and stays there.
    opens = [(os.POSIX_SPAWN_OPEN, 0, fifo(), os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)  # here


def oom():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(0)


def nothing():
    pass


dist.init_process_group("gloo")
rank = dist.get_rank()
skipped = False
workers = 1 if how == "loader" else 0
loader = torch.utils.data.DataLoader(Items(), batch_size=1, num_workers=workers)
for step, batch in enumerate(loader):
    if step == 3 and rank == culprit and how != "loader":
        print(f"rank {rank} {how}", flush=True)
        globals()[how]()
    if how == "polled":
        work = dist.all_reduce(batch, async_op=True)
        while not work.is_completed():
            pass
    elif not skipped or step != 3:
        dist.all_reduce(batch)
    if skipped and step == 3:
        dist.broadcast(torch.ones(2), src=culprit)
    print(f"step {step}", flush=True)
    time.sleep(0.2)
