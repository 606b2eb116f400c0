"""
The ranks of `ringup test` and `ringup bench`: presence, device, agreement.

They agree through the rendezvous store and never through the collectives under test.
Each result is one line of JSON behind MARK on stdout, which the launcher reads from the rank's file.
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
"""How much later than another a rank may see that the operation they shared has failed."""
WATCHDOG_LATER_S = 60.0
LONGEST_ERROR = 600
OURS_TO_TIME = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0"}
"""
`World.wait` keeps the limit.  By default torch's watchdog (ProcessGroupNCCL.cpp, `handleException`) aborts
the rank that waits, which looks like a crash of that rank.
"""
OWN = re.compile(r"(?:CUDA|HIP|NCCL) (?:driver |communicator )?error|(?:CUDA|HIP) out of memory")
"""How torch begins what the device or NCCL refused; before torch 2.9 that has no class of its own."""


def report(kind, **fields):
    print(MARK + json.dumps(dict(kind=kind, rank=int(os.environ.get("RANK", "-1")), **fields)), flush=True)


def short(error):
    return ("%s: %s" % (type(error).__name__, " ".join(str(error).split())))[:LONGEST_ERROR]


class Refused(Exception):
    """This rank cannot take part; the words say why."""


def numa_nodes():
    """NUMA nodes this rank may run on, as sysfs names them; [] where the kernel tells none."""
    mine = os.sched_getaffinity(0)
    paths = glob.glob("/sys/devices/system/node/node[0-9]*/cpu[0-9]*")
    pairs = [re.findall(r"\d+", path)[-2:] for path in paths]
    return sorted({int(node) for node, cpu in pairs if int(cpu) in mine})


def is_own(error):
    """
    Whether an exception is this rank's own, so that no roll call is needed.

    No slow or lost peer causes a device error.  A peer may cause one of NCCL's, as its text then says; but a
    rank that is in NCCL's set-up meanwhile cannot answer, and would be taken for the missing one.
    """
    kinds = [getattr(torch, name, None) for name in ("OutOfMemoryError", "AcceleratorError")]
    kinds.append(getattr(torch.cuda, "OutOfMemoryError", None))
    if not isinstance(error, RuntimeError) or isinstance(error, tuple(kind for kind in kinds if kind)):
        return True
    return OWN.match(str(error)) is not None


def device_of(backend, local_rank):
    """This rank's device, its name, memory in bytes and NUMA node.  Raises Refused where there is none."""
    if backend != "nccl":
        return torch.device("cpu"), {"name": "cpu", "memory_bytes": 0, "gpu_numa": None}
    if not torch.cuda.is_available():
        raise Refused("torch %s sees no CUDA device here%s" % (torch.__version__, why_no_cuda()))
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


def why_no_cuda():
    """torch's own error when it must use CUDA; "" for none."""
    try:
        torch.cuda.init()
        return ""
    except Exception as error:
        return ": " + short(error)


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
        known.update(device=str(self.device), numa=numa_nodes(), cpus=len(os.sched_getaffinity(0)))
        report("hello", torch=torch.__version__, backend=backend, **known)
        self.arrive_s = arrive_s
        self.began_s = time.monotonic()
        wait = datetime.timedelta(seconds=arrive_s)
        self.store = next(iter(dist.rendezvous("env://", timeout=wait)))[0]
        self.nodes = {}
        self.rounds = 0

    def arrive(self):
        """Wait for all ranks and set `nodes`: the node's rank -> its ranks.  Raises Refused as `exchange`."""
        env = os.environ
        node = env.get("GROUP_RANK") or env.get("RINGUP_NODE") or str(self.rank // self.local_size)
        for rank, name in enumerate(self.exchange("arrived", node, self.arrive_s, 0.05)):
            self.nodes.setdefault(name, []).append(rank)
        report("arrived")

    def exchange(self, stage, value, limit_s, apart_s):
        """
        Every rank's text at a stage, in the order of ranks; reports missing ranks and raises Refused.

        Waits for one rank after the other: a thousand ranks would ask the store a million times else.
        Answers another rank's roll call meanwhile.
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
        """The process group; the limit bounds its operations (NCCL: in `wait`, its watchdog comes later)."""
        self.begin()
        store, timeout = dist.PrefixStore("prove", self.store), self.timeout()
        dist.init_process_group(
            self.backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout
        )

    def timeout(self):
        """Of a group's operations; torch gives every group its own, else half an hour."""
        limit_s = self.limit_s + (WATCHDOG_LATER_S if self.backend == "nccl" else 0.0)
        return datetime.timedelta(seconds=limit_s)

    def group(self, members):
        """A group of some ranks; every rank calls this, in the same order."""
        return dist.new_group(members, timeout=self.timeout())

    def begin(self):
        """Operations begin, on all ranks about now: what fails is seen by all within the limit."""
        self.began_s = time.monotonic()

    def roll_call(self):
        """After a failed operation: report the ranks that do not answer.  Raises Refused for any."""
        waits_s = max(0.0, self.began_s + self.limit_s - time.monotonic()) + BEHIND_S
        try:
            self.store.set("roll", "-")
            self.exchange("failed", "-", waits_s, 0.05)
        except Refused:
            raise
        except Exception:  # the store has gone with rank 0
            pass

    def agree(self, stage, value):
        """Every rank's value at a stage, in the order of ranks.  Raises Refused as `exchange`."""
        limit_s = self.limit_s + 2 * BEHIND_S
        return list(map(json.loads, self.exchange(stage, json.dumps(value), limit_s, 0.005)))

    def free_bytes(self):
        """Memory this rank may fill: its GPU's, or its share of its node's; None where unknown."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info()[0]
        available = numbers("/proc/meminfo", ("MemAvailable",)).get("MemAvailable")
        if not available:
            return None
        limited = machine.memory_left("")  # of a container or a job
        free = available * 1024 if limited is None else min(available * 1024, limited)
        return free // self.local_size

    def wait(self):
        """
        Until the device has done what it was given.

        Raises RuntimeError after the limit: `torch.cuda.synchronize` would wait for a peer without end,
        until torch's watchdog ends this process without a message from ringup.
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
        """End together: rank 0, which has the store, last."""
        self.agree("end", True)
        if self.rank == 0:
            time.sleep(0.2)
        if fine or self.backend != "nccl":  # NCCL would wait for operations that have failed
            dist.destroy_process_group()
