"""
A training in which one rank ends in its third step, as the arguments say, and the others wait for it.

`fails_in_step.py RANK exit|kill|raise FOLDER`; the file FOLDER/failed is written just before.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

failing, how, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1000):
    if step == 3 and rank == failing:
        print(f"rank {rank} ends by {how}", flush=True)
        (folder / "failed").touch()
        if how == "exit":
            os._exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the loss is no number")
    dist.all_reduce(torch.ones(8))
    print(f"step {step}", flush=True)
