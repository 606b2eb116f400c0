"""
The ranks of `ringup test` and `ringup bench`: presence, device, agreement.

They agree through the rendezvous store and never through the collectives under test.  Each result is one line
of JSON after MARK on stdout, which the launcher reads from the rank's file.
"""

import datetime
import glob
import json
import os
import re
import time

import torch
import torch.distributed as dist

from ringup.agent.facts import machine
from ringup.agent.proc.files import numbers, text

MARK = "@ringup "
BEHIND_S = 15.0
"""Ranks may notice the failure of a common operation this many seconds apart."""
WATCHDOG_LATER_S = 60.0
LONGEST_ERROR = 600
OURS_TO_TIME = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0"}
"""
`World.wait` enforces the limit.  By default torch's watchdog (ProcessGroupNCCL.cpp, `handleException`) aborts
the waiting rank, which looks like a crash of that rank.
"""
OWN = re.compile(r"(?:CUDA|HIP|NCCL) (?:driver |communicator )?error|(?:CUDA|HIP) out of memory")
"""How torch's message begins when the device or NCCL fails; before torch 2.9 such errors have no class."""


def report(kind, **fields):
    print(MARK + json.dumps(dict(kind=kind, rank=int(os.environ.get("RANK", "-1")), **fields)), flush=True)


def short(error):
    return ("%s: %s" % (type(error).__name__, " ".join(str(error).split())))[:LONGEST_ERROR]


class Refused(Exception):
    """This rank cannot take part; the text has the reason."""


def is_own(error):
    """
    Whether an exception is this rank's own fault, so that no roll call is needed.

    A slow or lost peer never causes a device error.  A peer can cause an NCCL error, which then mentions it;
    but a rank that is inside NCCL's set-up cannot answer a roll call, and would be reported as missing.
    """
    kinds = [getattr(torch, name, None) for name in ("OutOfMemoryError", "AcceleratorError")]
    kinds.append(getattr(torch.cuda, "OutOfMemoryError", None))
    if not isinstance(error, RuntimeError) or isinstance(error, tuple(kind for kind in kinds if kind)):
        return True
    return OWN.match(str(error)) is not None


def device_of(backend, local_rank):
    """This rank's device, its name, memory in bytes and NUMA node.  Raises Refused without a device."""
    if backend != "nccl":
        return torch.device("cpu"), {"name": "cpu", "memory_bytes": 0, "gpu_numa": None}
    if not torch.cuda.is_available():
        words = "torch %s sees no CUDA device here" % torch.__version__
        try:
            torch.cuda.init()
        except Exception as error:  # it has torch's reason
            words += ": " + short(error)
        raise Refused(words)
    visible, mask = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if local_rank >= visible:
        words = "no CUDA device %d for local rank %d: %d visible" % (local_rank, local_rank, visible)
        raise Refused(words + (" (CUDA_VISIBLE_DEVICES=%s)" % mask[:200] if mask is not None else ""))
    torch.cuda.set_device(local_rank)
    about = torch.cuda.get_device_properties(local_rank)
    known = {"name": about.name, "memory_bytes": about.total_memory, "gpu_numa": None, "bus_id": ""}
    if hasattr(about, "pci_bus_id"):  # torch 2.6
        bus = "%04x:%02x:%02x.0" % (about.pci_domain_id, about.pci_bus_id, about.pci_device_id)
        numa = text("/sys/bus/pci/devices/%s/numa_node" % bus)
        known.update(bus_id=bus, gpu_numa=int(numa) if numa.isdigit() else None)
    return torch.device("cuda", local_rank), known


class World:
    def __init__(self, backend, arrive_s, limit_s):
        self.backend, self.limit_s = backend, limit_s
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        os.environ.update(OURS_TO_TIME)
        self.device, known = device_of(backend, self.local_rank)
        if backend != "nccl":
            torch.set_num_threads(1)
        cpus = os.sched_getaffinity(0)
        paths = glob.glob("/sys/devices/system/node/node[0-9]*/cpu[0-9]*")
        pairs = [re.findall(r"\d+", path)[-2:] for path in paths]
        numa = sorted({int(node) for node, cpu in pairs if int(cpu) in cpus})
        known.update(device=str(self.device), numa=numa, cpus=len(cpus))
        report("hello", torch=torch.__version__, backend=backend, **known)
        self.arrive_s = arrive_s
        self.began_s = time.monotonic()
        self.store = next(iter(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=arrive_s))))[0]
        self.nodes = {}
        self.rounds = 0

    def arrive(self):
        """Wait for all ranks and set `nodes`: node rank -> its ranks.  Raises Refused like `exchange`."""
        env = os.environ
        node = env.get("GROUP_RANK") or env.get("RINGUP_NODE") or str(self.rank // self.local_size)
        for rank, name in enumerate(self.exchange("arrived", node, self.arrive_s, 0.05)):
            self.nodes.setdefault(name, []).append(rank)
        report("arrived")

    def exchange(self, stage, value, limit_s, apart_s):
        """
        The text of every rank at a stage, ordered by rank; reports missing ranks and raises Refused.

        Waits for one rank after the other: otherwise a thousand ranks would query the store a million times.
        Answers other ranks' roll calls meanwhile.
        """
        keys = ["%s/%d" % (stage, rank) for rank in range(self.size)]
        self.store.set(keys[self.rank], value)
        ends, answered = time.monotonic() + limit_s, False
        for key in keys:
            while not self.store.check([key]):
                if time.monotonic() > ends:
                    missing = [rank for rank, one in enumerate(keys) if not self.store.check([one])]
                    report("missing", ranks=missing[:64], waited_s=round(limit_s, 1))
                    raise Refused("%d of %d ranks did not come to %s" % (len(missing), self.size, stage))
                if not answered and self.store.check(["roll"]):
                    self.store.set("failed/%d" % self.rank, "-")
                    answered = True
                time.sleep(apart_s)
        return [self.store.get(key).decode() for key in keys]

    def join(self):
        """Join the process group.  Its limit applies to operations (NCCL's: `wait` is earlier than that)."""
        self.begin()
        own = {"store": dist.PrefixStore("prove", self.store), "timeout": self.timeout()}
        dist.init_process_group(self.backend, rank=self.rank, world_size=self.size, **own)

    def timeout(self):
        """Timeout of a group's operations; without it torch uses half an hour for every new group."""
        limit_s = self.limit_s + (WATCHDOG_LATER_S if self.backend == "nccl" else 0.0)
        return datetime.timedelta(seconds=limit_s)

    def group(self, members):
        """Make a group of ranks; every rank must call this, in the same order."""
        return dist.new_group(members, timeout=self.timeout())

    def begin(self):
        """Start the clock for operations that all ranks begin now; all notice a failure within the limit."""
        self.began_s = time.monotonic()

    def roll_call(self):
        """After a failed operation: report the ranks that do not answer.  Raises Refused if there are any."""
        waits_s = max(0.0, self.began_s + self.limit_s - time.monotonic()) + BEHIND_S
        try:
            self.store.set("roll", "-")
            self.exchange("failed", "-", waits_s, 0.05)
        except Refused:
            raise
        except Exception:  # the store was lost with rank 0
            pass

    def agree(self, stage, value):
        """The value of every rank at a stage, ordered by rank.  Raises Refused as `exchange` does."""
        limit_s = self.limit_s + 2 * BEHIND_S
        return list(map(json.loads, self.exchange(stage, json.dumps(value), limit_s, 0.005)))

    def free_bytes(self):
        """Memory this rank may fill: its GPU's, or its share of the node's; None if unknown."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info()[0]
        if not (available := numbers("/proc/meminfo", ("MemAvailable",)).get("MemAvailable")):
            return None
        limited = machine.memory_left("")  # of a container or a job
        free = available * 1024 if limited is None else min(available * 1024, limited)
        return free // self.local_size

    def wait(self):
        """
        Wait until the device has finished its work.

        Raises RuntimeError after the limit.  `torch.cuda.synchronize` would wait forever for a peer, until
        torch's watchdog ends this process without a message from ringup.
        """
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        ends = time.monotonic() + self.limit_s
        while not done.query():
            if time.monotonic() > ends:
                raise RuntimeError("Timed out: the device was not done after %g s" % self.limit_s)
            time.sleep(0.0001)

    def leave(self, fine):
        """End together; rank 0, which has the store, is the last."""
        self.agree("end", True)
        if self.rank == 0:
            time.sleep(0.2)
        if fine or self.backend != "nccl":  # NCCL would wait for failed operations
            dist.destroy_process_group()
