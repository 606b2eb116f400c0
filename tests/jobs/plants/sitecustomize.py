"""
Faults planted in one rank of `ringup test`, told by RINGUP_PLANT="RANK:FAULT".

Put on PYTHONPATH; Python imports it before anything else.
"""

import os
import sys
import time


def plant(fault):
    """Break this process."""
    if fault == "never-arrives":
        time.sleep(600)
    import torch.distributed as dist

    real = dist.all_reduce

    def wrong_input(tensor, *args, **kwargs):
        tensor.add_(1)
        return real(tensor, *args, **kwargs)

    def wrong_output(tensor, *args, **kwargs):
        work = real(tensor, *args, **kwargs)
        tensor.view(-1)[-1] += 1
        return work

    def times_out(*_args, **_kwargs):
        raise RuntimeError("Timed out waiting 1000ms for recv operation to complete")

    faults = {"wrong-input": wrong_input, "wrong-output": wrong_output, "times-out": times_out}
    dist.all_reduce = faults[fault]


rank, _, fault = os.environ.get("RINGUP_PLANT", "").partition(":")
if rank and os.environ.get("RANK") == rank and any(w.endswith("prove.py") for w in sys.orig_argv):
    plant(fault)
