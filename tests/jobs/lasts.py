"""
A rank that only lasts: `lasts.py [--local_rank=N]`; `lasts.py spawn` starts two with torch.multiprocessing.

What is told of it by its environment (LABEL=...) is for the tests to find it by.
"""

import sys
import time


def last(_index: int = 0) -> None:
    time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        import torch.multiprocessing as mp

        mp.spawn(last, nprocs=2)
    last()
