"""The ranks' programs on CUDA, which is played: a module `torch` of a few lines that finishes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringup.collective_tests.correctness import plain
from tests.test_prove import PAYLOAD

CUDA = """
class OutOfMemoryError(RuntimeError): pass
class AcceleratorError(RuntimeError): pass
class device:
    def __init__(self, type, index=0): self.type, self.index = type, index
    def __str__(self): return f"{self.type}:{self.index}"
class Event:
    def __init__(self, enable_timing=False): pass
    def record(self): pass
    def query(self): return False
class About:
    name, total_memory, pci_domain_id, pci_bus_id, pci_device_id = "H100", 80 << 30, 0, 0x18, 0
class cuda:
    Event = Event
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 8)
    set_device = staticmethod(lambda index: None)
    get_device_properties = staticmethod(lambda index: About)
    mem_get_info = staticmethod(lambda: (3 << 30, 80 << 30))
float32 = float64 = uint8 = int64 = None
tensor = lambda values, **more: values
zeros_like = lambda values: list(values)
__version__ = "2.13.0"
"""
DISTRIBUTED = """
class DistBackendError(RuntimeError): pass
all_gather_single = reduce_scatter_single = print
closed = []
def destroy_process_group(): closed.append(1)
def all_gather(into, own, group=None): into[0][:] = own
def rendezvous(*args, **more): yield (None, 0, 1)
"""


@pytest.fixture
def torch_there(tmp_path: Path) -> Path:
    (tmp_path / "torch" / "distributed").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text(CUDA)
    (tmp_path / "torch" / "distributed" / "__init__.py").write_text(DISTRIBUTED)
    return tmp_path


def rank(there: Path, program: str) -> Any:
    """What a program said last that has `world`, a rank of NCCL's that alone is all ranks."""
    before = (
        "import os, sys, json, torch.distributed as dist\n"
        "from ringup.agent.collective import bandwidth as s, world as w\n"
        "world = w.World('nccl', 1.0, 0.05)\n"
        "world.agree = lambda stage, value: [value]\n"
        "tell = lambda value: print(json.dumps(value))\n"
    )
    env = {"PYTHONPATH": f"{PAYLOAD}:{there}", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "3"}
    env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", before + program], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("@ringup "))


def test_a_rank_tells_where_its_gpu_is_since_cudas_numbers_are_its_own(torch_there: Path) -> None:
    told = rank(torch_there, "")
    assert (told["kind"], told["device"], told["bus_id"]) == ("hello", "cuda:3", "0000:18:00.0")


def test_torchs_watchdog_may_not_end_a_rank_that_waits(torch_there: Path) -> None:
    assert rank(torch_there, "tell(os.environ['TORCH_NCCL_ASYNC_ERROR_HANDLING'])") == "0"


def test_a_device_that_is_never_done_is_waited_for_as_long_as_the_limit(torch_there: Path) -> None:
    words = rank(torch_there, "try: world.wait()\nexcept RuntimeError as e: tell([str(e), w.is_own(e)])")
    assert words == ["Timed out: the device was not done after 0.05 s", False]


@pytest.mark.parametrize(("fine", "closed"), [(True, 1), (False, 0)])
def test_a_group_that_failed_is_left_and_not_closed_since_that_waits_for_the_device(
    torch_there: Path, fine: bool, closed: int
) -> None:
    program = f"w.time.sleep = lambda seconds: None\nworld.leave({fine})\ntell(len(dist.closed))"
    assert rank(torch_there, program) == closed


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        ("RuntimeError('CUDA error: uncorrectable ECC error encountered')", True),
        ("RuntimeError('CUDA driver error: invalid argument')", True),
        ("w.torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 1.00 GiB')", True),
        ("dist.DistBackendError('NCCL error in: NCCLUtils.cpp:77, unhandled cuda error')", True),
        ("ValueError('x')", True),
        ("RuntimeError('Timed out: the device was not done after 120 s')", False),
        ("RuntimeError('[/gloo/pair.cc:553] Connection closed by peer [10.0.0.2]:41')", False),
    ],
)
def test_what_a_device_or_nccl_refused_is_told_at_once_and_the_others_are_not_asked(
    torch_there: Path, error: str, is_own: bool
) -> None:
    assert rank(torch_there, f"tell(w.is_own({error}))") is is_own


def test_a_batch_does_not_fill_the_queue_of_a_gpu(torch_there: Path) -> None:
    program = (
        "counts = []\n"
        "s.spent = lambda world, group, case, count: counts.append(count) or [1e-5] * count\n"
        "s.most = lambda world, group, value: 1e-5\n"
        "class Case: members = [0]; check = lambda self: True\n"
        "world.wait = lambda: None\n"
        "s.measure(world, None, Case())\ntell(max(counts))"
    )
    assert rank(torch_there, program) == 400


def test_sizes_for_which_a_gpu_in_use_has_no_memory_are_left_out(torch_there: Path) -> None:
    told = rank(torch_there, "fit = s.that_fit(world, [1 << 28, 1 << 29, 1 << 30])\ntell(fit)")
    assert told == [1 << 28, 1 << 29]


def test_an_error_of_cuda_is_told_without_torchs_advice() -> None:
    error = (
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered Search for "
        "`cudaErrorECCUncorrectable' in https://docs.nvidia.com/x for more information. CUDA kernel errors "
        "might be asynchronously reported at some other API call"
    )
    assert plain(error) == "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
