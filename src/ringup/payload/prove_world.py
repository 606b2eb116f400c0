"""
The ranks of `ringup test` and `ringup bench`: who is there, on which device, and how they agree.

What is agreed goes through the rendezvous store and never through the collectives under test.
Each result is one line of JSON behind MARK on stdout, which the launcher reads from the rank's file.
"""

import datetime
import glob
import json
import os
import re
import sys
import time

import torch
import torch.distributed as dist

MARK = "@ringup "
BEHIND_S = 15.0
"""How much later than another a rank may see that the operation they shared has failed."""
WATCHDOG_LATER_S = 60.0
LONGEST_ERROR = 600
OURS_TO_TIME = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0"}
"""
`World.wait` keeps the limit.  As it is by default torch's watchdog (ProcessGroupNCCL.cpp, `handleException`)
aborts whoever waits, which would be taken for that rank's own crash.
"""
OWN = re.compile(r"(?:CUDA|HIP|NCCL) (?:driver |communicator )?error|(?:CUDA|HIP) out of memory")
"""How torch begins what the device or NCCL refused; before torch 2.9 that has no class of its own."""


def say(kind, **fields):
    """One line for the launcher."""
    line = {"kind": kind, "rank": int(os.environ.get("RANK", "-1"))}
    line.update(fields)
    sys.stdout.write(MARK + json.dumps(line) + "\n")
    sys.stdout.flush()


def short(error):
    """An exception in one bounded line."""
    text = " ".join(str(error).split())
    return ("%s: %s" % (type(error).__name__, text))[:LONGEST_ERROR]


class Refused(Exception):
    """This rank cannot take part; the words say why."""


def cpu_list(text):
    """
    The numbers in "0-3,8".

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def numa_nodes():
    """NUMA nodes this rank may run on, as sysfs names them; [] where the kernel tells none."""
    mine = os.sched_getaffinity(0)
    found = []
    for path in glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"):
        try:
            with open(path) as file:
                if mine & cpu_list(file.read()):
                    found.append(int(path.split("/node")[-1].split("/")[0]))
        except (OSError, ValueError):
            continue
    return sorted(found)


def cpu_wait_s():
    """
    Seconds in which this process's threads were ready to run and had no processor.

    The second figure of schedstat (Documentation/scheduler/sched-stats.rst); 0 where it is not counted.
    """
    nanoseconds = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path) as file:
                nanoseconds += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):  # a thread that has just ended
            continue
    return nanoseconds / 1e9


def is_own(error):
    """
    Whether an exception is this rank's own affair, so that there is nothing to ask the others.

    No peer that is slow or gone makes one of the device.  One of NCCL may be a peer's doing, its words tell;
    but who is in NCCL's set-up meanwhile cannot answer, and would be taken for the one that is missing.
    """
    kinds = [getattr(torch, name, None) for name in ("OutOfMemoryError", "AcceleratorError")]
    kinds.append(getattr(torch.cuda, "OutOfMemoryError", None))
    if not isinstance(error, RuntimeError) or isinstance(error, tuple(kind for kind in kinds if kind)):
        return True
    return OWN.match(str(error)) is not None


def device_of(backend, local_rank):
    """
    The device this rank uses and what is known of it: name, memory in bytes, NUMA node of a GPU.

    Raises Refused where there is none.
    """
    if backend != "nccl":
        return torch.device("cpu"), {"name": "cpu", "memory_bytes": 0, "gpu_numa": None}
    if not torch.cuda.is_available():
        raise Refused("torch %s sees no CUDA device here%s" % (torch.__version__, why_no_cuda()))
    visible = torch.cuda.device_count()
    if local_rank >= visible:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        words = "no CUDA device %d for local rank %d: %d visible" % (local_rank, local_rank, visible)
        raise Refused(words + (" (CUDA_VISIBLE_DEVICES=%s)" % mask[:200] if mask is not None else ""))
    torch.cuda.set_device(local_rank)
    about = torch.cuda.get_device_properties(local_rank)
    bus, numa = "", None
    try:
        bus = "%04x:%02x:%02x.0" % (about.pci_domain_id, about.pci_bus_id, about.pci_device_id)
        with open("/sys/bus/pci/devices/%s/numa_node" % bus) as file:
            numa = int(file.read())
    except (AttributeError, OSError, ValueError):  # torch has told the bus since 2.6
        pass
    known = {"name": about.name, "memory_bytes": about.total_memory, "gpu_numa": numa, "bus_id": bus}
    return torch.device("cuda", local_rank), known


def why_no_cuda():
    """What torch says when it is to use CUDA all the same; "" where it says nothing."""
    try:
        torch.cuda.init()
    except Exception as error:
        return ": " + short(error)
    return ""


class World:
    """This rank among the others."""

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
        say("hello", torch=torch.__version__, backend=backend, **known)
        self.arrive_s = arrive_s
        self.began_s = time.monotonic()
        wait = datetime.timedelta(seconds=arrive_s)
        self.store = next(iter(dist.rendezvous("env://", timeout=wait)))[0]
        self.nodes = {}
        self.rounds = 0

    def arrive(self):
        """
        Wait until every rank has come this far; raises Refused with the ranks that did not.

        Afterwards `nodes` holds the ranks of every node, by the node's rank.
        """
        node = (
            os.environ.get("GROUP_RANK") or os.environ.get("RINGUP_NODE") or str(self.rank // self.local_size)
        )
        self.store.set("arrived/%d" % self.rank, node)
        missing = self.awaited("arrived", self.arrive_s, 0.05)
        if missing:
            say("missing", ranks=missing[:64], count=len(missing), waited_s=self.arrive_s)
            raise Refused("%d of %d ranks did not arrive" % (len(missing), self.size))
        for rank in range(self.size):
            name = self.store.get("arrived/%d" % rank).decode()
            self.nodes.setdefault(name, []).append(rank)
        say("arrived")

    def awaited(self, stage, limit_s, apart_s):
        """
        The ranks that have not come to a stage within so many seconds; [] as soon as all have.

        Asks for one rank at a time: the store of a thousand ranks would be asked a million times else.
        A roll call by another is answered meanwhile.
        """
        ends, answered = time.monotonic() + limit_s, False
        for rank in range(self.size):
            while not self.store.check(["%s/%d" % (stage, rank)]):
                if time.monotonic() > ends:
                    return [r for r in range(rank, self.size) if not self.store.check(["%s/%d" % (stage, r)])]
                if not answered and self.store.check(["roll"]):
                    self.store.set("failed/%d" % self.rank, "")
                    answered = True
                time.sleep(apart_s)
        return []

    def join(self):
        """
        The process group, its operations bounded by the limit; with NCCL by `wait`, its watchdog comes later.
        """
        self.begin()
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore("prove", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=self.timeout(),
        )

    def timeout(self):
        """Of a group's operations; torch gives every group its own, half an hour where none is told."""
        limit_s = self.limit_s + (WATCHDOG_LATER_S if self.backend == "nccl" else 0.0)
        return datetime.timedelta(seconds=limit_s)

    def group(self, members):
        """A group of some ranks; every rank calls this, in the same order."""
        return dist.new_group(members, timeout=self.timeout())

    def begin(self):
        """Operations begin, on all ranks about now: what fails is seen by all within the limit."""
        self.began_s = time.monotonic()

    def roll_call(self):
        """
        An operation failed here: tell which ranks do not even answer, where the store can be asked.

        Others may still wait in it, for all of its limit.  Raises Refused when there are any.
        """
        waits_s = max(0.0, self.began_s + self.limit_s - time.monotonic()) + BEHIND_S
        try:
            self.store.set("roll", "")
            self.store.set("failed/%d" % self.rank, "")
            missing = self.awaited("failed", waits_s, 0.05)
        except Exception:  # the store has gone with rank 0
            return
        if missing:
            say("missing", ranks=missing[:64], count=len(missing), waited_s=round(waits_s, 1), stage="failed")
            raise Refused("%d ranks do not answer" % len(missing))

    def agree(self, stage, value):
        """
        What every rank has to say at a stage, in the order of ranks.

        Raises Refused with the ranks that said nothing within the limit.
        """
        self.store.set("%s/%d" % (stage, self.rank), json.dumps(value))
        waited_s = self.limit_s + 2 * BEHIND_S
        missing = self.awaited(stage, waited_s, 0.005)
        if missing:
            say("missing", ranks=missing[:64], count=len(missing), waited_s=waited_s, stage=stage)
            raise Refused("%d ranks said nothing at %s" % (len(missing), stage))
        return [json.loads(self.store.get("%s/%d" % (stage, rank))) for rank in range(self.size)]

    def free_bytes(self):
        """Memory this rank may fill: its GPU's, or its share of its node's; None where nobody tells."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info()[0]
        try:
            with open("/proc/meminfo") as file:
                told = dict(line.split(":", 1) for line in file)
            return int(told["MemAvailable"].split()[0]) * 1024 // self.local_size
        except (OSError, ValueError, KeyError):
            return None

    def wait(self):
        """
        Until the device has done what it was given.

        Raises RuntimeError after the limit: `torch.cuda.synchronize` would wait for a peer without end,
        until torch's watchdog ends this process without a word of ours.
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
        """
        The end, together: nobody takes the store away while others still ask it.

        With NCCL a group is closed only where all went well: it waits for what the device was given.
        """
        self.agree("end", True)
        if self.rank == 0:
            time.sleep(0.2)
        if fine or self.backend != "nccl":
            dist.destroy_process_group()
