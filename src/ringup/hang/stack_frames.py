"""
A rank's place, from its stack: waiting for others, or at a line of its own code.

Names of functions are torch's, read in 2.13 and 2.4 (`torch/distributed/distributed_c10d.py`,
`torch/autograd/graph.py`, `torch/cuda/`, `torch/utils/data/dataloader.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ringup.agent.snapshot import stack_frames
from ringup.hang.snapshots import Child, Frame, RankLook

Kind = Literal["collective", "meeting", "backward", "device", "own", "unknown"]

_C10D = re.compile(r"torch/distributed/(?:distributed_c10d|_functional_collectives|nn/functional)\.py$")
_MEETING_FILE = re.compile(r"torch/distributed/(?:rendezvous|elastic/[^/]+(?:/[^/]+){0,8}|device_mesh)\.py$")
_DDP = re.compile(r"torch/(?:nn/parallel/distributed|distributed/utils)\.py$")
_COLLECTIVE = re.compile(
    r"_?(?:all_gather|all_reduce|all_to_all|barrier|batch_isend_irecv|broadcast|gather|monitored_barrier|i?recv"
    r"|reduce|scatter|i?send|wait|coalescing_manager)\w*$"
)
TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Prefixes of calls in which not every rank of a group takes part."""
_JAX = re.compile(r"jax/experimental/multihost_utils\.py$")
_JAX_DEVICE = re.compile(r"jax/_src/(?:array|api|interpreters/\w+)\.py$")
_MEETING = re.compile(
    r"(?:init_process_group|new_(?:sub)?group\w*|split_group|destroy_process_group|init_device_mesh"
    r"|_store_based_barrier|_new_process_group_helper)$"
)
_DDP_WAITS = {
    "_verify_param_shape_across_processes": "the check of parameter shapes",
    "_sync_module_states": "the broadcast of parameters",
    "_sync_params_and_buffers": "the broadcast of parameters",
    "_sync_buffers": "the broadcast of buffers",
}
# Calls in which Python waits for the GPU. They are C functions, visible only in the line that calls them.  A
# copy to the GPU from ordinary memory also waits, unless it is non-blocking (torch 2.13, Copy.cu).
_DEVICE_CALL = re.compile(
    r"\.(?:item|cpu|tolist|numpy|synchronize)\(|\.(?:to|cuda)\((?!.{0,200}\bnon_blocking ?= ?True)"
)
# A store of the script waits inside C++.
_STORE = re.compile(r"\b(?:TCPStore\(|store\.(?:get|wait)\()")
_MODULE_FILE = re.compile(r"torch/nn/modules/module\.py$")
"""Moving a model is work, not waiting."""
_DEVICE_FILE = re.compile(r"torch/cuda/(?:__init__|streams)\.py$")
_TRACKER = re.compile(r"multiprocessing/(?:resource_tracker|forkserver)\.py$")
"""Python's helper processes, not workers."""
_SYNC = ("fsync", "fdatasync", "sync", "msync")
_WORK_WAIT = re.compile(r"\.wait\(\s*\)|\bwait_tensor\b")
_WRITEBACK = re.compile(
    r"balance_dirty|folio_wait|wait_on_page|jbd2_|ext4_|xfs_|xlog_|btrfs_|wbt_|rq_qos_|submit_bio|blk_|io_schedule"
)
"""Kernel functions in which a writer waits for its disk (fs/, block/ and mm/, Linux 4.18 to 6.18)."""


@dataclass(frozen=True)
class Place:
    kind: Kind
    """"own" is the user's code or a library it called; "unknown": no stack."""
    what: str
    """"all_reduce", "backward", "DataLoader next"; "" for other code."""
    where: str
    """"train.py:88" (the innermost line outside libraries), "" if unknown."""
    function: str = ""
    source: str = field(default="", compare=False)
    """The line's text; not read if a file server may not answer."""

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks (or for the GPU, which may wait for them)."""
        return self.kind in ("collective", "meeting", "backward", "device")


def place_of(frames: tuple[Frame, ...]) -> Place:
    """
    A rank's place, from its stack.

    >>> place_of((Frame("/v/site-packages/torch/distributed/distributed_c10d.py", 9, "barrier"),
    ...           Frame("/home/u/train.py", 88, "step")))
    Place(kind='collective', what='barrier', where='train.py:88', function='step', source='')
    """
    if not frames:
        return Place("unknown", "", "")
    own = frames[max(0, stack_frames.own_frame([frame.file for frame in frames]))]
    kind, what = _wait_of(frames, own)
    name = own.file.rstrip("/").rpartition("/")[2]
    return Place(kind, what, f"{name}:{own.line}", own.function, own.source)


def _wait_of(frames: tuple[Frame, ...], own: Frame) -> tuple[Kind, str]:
    found: tuple[Kind, str] = ("own", "")
    # The outermost one counts: all_gather_object calls all_gather.
    for frame in frames:
        in_c10d = _C10D.search(frame.file)
        in_jax = _JAX.search(frame.file) and frame.function[:1] != "_"
        if in_jax or (in_c10d and _COLLECTIVE.match(frame.function)):
            found = ("collective", frame.function)
        elif _MEETING_FILE.search(frame.file) or (in_c10d and _MEETING.match(frame.function)):
            found = ("meeting", frame.function if _MEETING.match(frame.function) else "the rendezvous")
        elif _DDP.search(frame.file) and frame.function in _DDP_WAITS:
            found = ("collective", _DDP_WAITS[frame.function])
        elif frame is own:
            break
    return _library_wait(frames, own) if found[0] == "own" else found


def _library_wait(frames: tuple[Frame, ...], own: Frame) -> tuple[Kind, str]:
    inner = frames[: frames.index(own) + 1]
    for frame in inner:
        if frame.file.endswith("torch/autograd/graph.py") and frame.function == "_engine_run_backward":
            return "backward", "backward"
        if frame is inner[0] and _DDP.search(frame.file) and frame.function == "_pre_forward":
            return "backward", "forward"  # it rebuilds its buckets, with sizes from rank 0
        if _DEVICE_FILE.search(frame.file) and frame.function in ("synchronize", "wait", "query"):
            return "device", "synchronize"
        if _JAX_DEVICE.search(frame.file) and frame.function in ("block_until_ready", "_value"):
            return "device", "the devices"
        if "torch/utils/data/dataloader.py" in frame.file:
            return "own", "DataLoader next"
    # The innermost line may be in a library: a gradient scaler's `v.item()`, a trainer's `handle.wait()`.
    if store := _STORE.search(inner[0].source):
        return "meeting", store[0][:-1]
    if _WORK_WAIT.search(inner[0].source):
        return "collective", "wait of a collective"
    if _DEVICE_CALL.search(inner[0].source) and not _MODULE_FILE.search(inner[0].file):
        return "device", "the GPU"
    return "own", ""


def child_place(children: tuple[Child, ...]) -> tuple[Child, Place] | None:
    """The most informative child: one in user code, stopped or uninterruptible ones first."""
    own = [c for c in children if c.frames and not any(_TRACKER.search(f.file) for f in c.frames[:3])]
    known = [(child, place) for child in own if (place := place_of(child.frames)).where]

    def order(pair: tuple[Child, Place]) -> tuple[bool, bool, bool]:
        # A DataLoader's worker may wait for its next index.
        waits_for_work = any(
            f.function == "get" and f.file.endswith("multiprocessing/queues.py") for f in pair[0].frames
        )
        return waits_for_work, pair[0].state not in "DT", pair[1].waits

    return min(known, key=order, default=None)


_STATES = {
    "T": "stopped (state T; `kill -CONT` lets it go on)",
    "t": "stopped by a debugger",
    "D": "in a system call that cannot be interrupted (state D)",
    "Z": "ended, and its parent has not noticed",
}


def doing(look: RankLook | Child) -> str:
    """From the kernel: "asleep", "in read of /data/pipe"; "" if it runs or waits in a collective."""
    if look.state in _STATES:
        more = f" in {look.wchan}" if look.wchan and look.state == "D" else ""
        return _STATES[look.state] + more
    return _call(look.syscall, look.wchan)


def waits_for_disk(one: RankLook | Child) -> bool:
    """Whether it waits until its data is on disk.  Those bytes were counted before, so no counter moves."""
    if one.syscall:
        return one.syscall.startswith((*_SYNC, "close")) or one.wchan == "balance_dirty_pages"
    # With Yama's ptrace_scope 1, only parents of the process may see the system call.
    return one.state == "D" and bool(_WRITEBACK.match(one.wchan))


def reads(look: RankLook) -> bool:
    """Whether it is inside a read from a file, which may take long."""
    if look.syscall:
        return look.syscall.startswith(("read of /", "pread64 of /")) or look.state == "D"
    return look.state == "D" or look.wchan.startswith(("fuse_", "request_wait", "nfs", "rpc_", "folio_wait"))


_LOCKS = ("flock", "fcntl")
_CALLS = ("read", "write", "openat", "close", "wait4", "recv", "send", "connect", "pread", *_LOCKS, *_SYNC)


def _call(syscall: str, wchan: str) -> str:
    """
    Text for a system call.

    >>> _call("read of /data/in.fifo", "pipe_read"), _call("clock_nanosleep", ""), _call("futex", "")
    ('in read of /data/in.fifo', 'asleep', '')
    """
    if "nanosleep" in (syscall or wchan):
        return "asleep"
    if wchan in ("wait_for_partner", "fifo_open"):
        return "opening a FIFO that nobody has open at its other end"
    if syscall.startswith(_CALLS):
        return f"in {syscall}"
    if wchan.startswith(("pipe_", "fuse_", "request_wait", "nfs", "rpc_", "folio_wait", "io_schedule")):
        return f"in the kernel's {wchan}"
    return ""
