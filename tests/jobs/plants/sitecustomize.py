"""
Faults planted in one rank of `ringup test` (or in "all"), told by RINGUP_PLANT="RANK:FAULT".

Put on PYTHONPATH; Python imports it before anything else.  Also leaves out a quarter of torch's import.
"""

import os
import signal
import sys
import time
import types

sys.modules["torch._meta_registrations"] = types.ModuleType("for tensors without data")


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

    def wrong_once(tensor, *args, **kwargs):
        dist.all_reduce = real
        return wrong_input(tensor, *args, **kwargs)

    def wrong_then_breaks(tensor, *args, **kwargs):
        if kwargs.get("group") is not None:
            raise RuntimeError("Connection closed by peer")
        return wrong_input(tensor, *args, **kwargs)

    def raises(error):
        def failing(*_args, **_kwargs):
            raise error

        return failing

    def no_cpu():
        """This process, and many that want its processor as well."""
        import subprocess

        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        spin = "import os, time\nend = time.time() + 90\nwhile os.getppid() != 1 and time.time() < end: pass"
        for _ in range(8):
            subprocess.Popen([sys.executable, "-S", "-c", spin], env={})

    def out_of_memory():
        import torch

        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    def bad_memory():
        import torch

        xor, calls = torch.Tensor.__xor__, []

        def spoilt(tensor, other):
            calls.append(1)
            found = xor(tensor, other)
            if len(calls) == 1:
                found[3] += 1
            return found

        torch.Tensor.__xor__ = spoilt

    def in_the_middle(end):
        calls = []

        def counted(*args, **kwargs):
            calls.append(1)
            if len(calls) == 3:
                end()
            return real(*args, **kwargs)

        return counted

    def set_up_fails(*_args, **_kwargs):
        """As with NCCL: one rank is refused, the others wait in its set-up and hear nothing of us."""
        if os.environ["RANK"] == "1":
            raise dist.DistBackendError("NCCL error in: NCCLUtils.cpp:93, unhandled cuda error")
        time.sleep(600)

    if fault == "bad-memory":
        return bad_memory()
    if fault == "no-cpu":
        return no_cpu()
    faults = {
        "wrong-input": wrong_input,
        "wrong-output": wrong_output,
        "wrong-once": wrong_once,
        "times-out": times_out,
        "set-up-fails": set_up_fails,
        "wrong-then-breaks": wrong_then_breaks,
        "out-of-memory": in_the_middle(raises(out_of_memory())),
        "loses-its-peer": in_the_middle(raises(RuntimeError("Connection closed by peer"))),
        "dies": in_the_middle(lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        "stops": in_the_middle(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
        "sleeps": in_the_middle(lambda: time.sleep(600)),
    }
    dist.all_reduce = faults[fault]
    return None


rank, _, fault = os.environ.get("RINGUP_PLANT", "").partition(":")
if (
    "RANK" in os.environ
    and rank in (os.environ["RANK"], "all")
    and any(w.endswith("prove.py") for w in sys.orig_argv)
):
    plant(fault)
