"""
Watches the ranks on this node for `ringup top`: prints snapshots, each as one line of JSON.

Arguments: EVERY JOURNAL. Every EVERY seconds it reads counters; it reads stacks less often.  JOURNAL: the
journal that the head of a detached run writes ("" elsewhere).  `MODE NUMBER` on stdin requests one more
snapshot; its answer has the number.  It ends at end of file on stdin, or after a minute without a byte.

The ranks have priority: it runs at the lowest priority, and pauses after each piece of work, so that in total
it uses less than one percent of a core.
"""

import json
import os
import resource
import select
import sys
import time

from ringup.agent.proc.files import integer, listed
from ringup.agent.proc.process import stat, status
from ringup.agent.snapshot import main
from ringup.agent.snapshot.gpus import Gpus
from ringup.agent.snapshot.stack_frames import WAITS_IN

SHARES = {"ranks": 0.001, "count": 0.003, "stacks": 0.004, "asked": 0.01}
"""Most CPU time for each kind of work, as a share of one core; requests wait for it."""
EVERY_S = {"ranks": 10.0, "stacks": 10.0, "asked": 1.0}
FIRST_S = 1.1
"""
Seconds until the second count, whatever the first one cost, because the user waits for a picture.  The pause
after the second one is short, too: it includes the start of NVML's thread.
"""
MODES = ("count", "stacks", "threads", "flight")
SILENT_S = 60.0
MOST_ASKED_S = 10.0
"""The longest wait of a requested snapshot."""
TAIL_BYTES = 64 << 10
"""Of the journal, per line; more than that is left out."""


class Journal:
    """The new end of a detached run's journal (agent/guard/journal.py): lines of JSON."""

    def __init__(self, folder):
        self.folder, self.places = folder, {}

    def lines(self):
        if not self.folder:
            return []
        names = sorted((n for n in listed(self.folder) if n.startswith("out-")), key=lambda n: integer(n[4:]))
        return [
            line for name in ["control"] + names[-1:] for line in self._new(os.path.join(self.folder, name))
        ]

    def _new(self, path):
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                place = max(self.places.get(path, 0), size - TAIL_BYTES)
                file.seek(place)
                data = file.read(TAIL_BYTES)
        except OSError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        skipped = data.find(b"\n") + 1 if place > self.places.get(path, 0) else 0
        self.places[path] = place + len(data)
        return data[skipped:].decode("utf-8", "replace").splitlines()


def waits_for_spawned(rank):
    """Whether its main thread is in torch.multiprocessing.spawn (or start_processes)."""
    frames = rank["threads"][0][0] if rank.get("threads") else []
    return any(frame[0].endswith(WAITS_IN) for frame in frames)


def cpu_s():
    """CPU seconds of this process, its threads, and its children that have ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


class Watch:
    def __init__(self, every_s, journal):
        self.every_s, self.used_s = dict(EVERY_S, count=every_s), cpu_s()
        self.due = dict.fromkeys(SHARES, 0.0)
        self.journal, self.gpus, self.ranks, self.asked = Journal(journal), Gpus(), None, []
        self.counts, self.parents = 0, set()
        """Ranks that wait for processes that they started as ranks."""

    def work(self, kind, now):
        """Do the work of a kind, and schedule its pause."""
        mode, number = self.asked.pop(0) if kind == "asked" else (kind, 0)
        if kind == "ranks" or mode != "count" or not self.is_whole():
            self.ranks = main.RanksHere("", "")
        if kind != "ranks":
            self.tell(mode, number)
        before, self.used_s = self.used_s, cpu_s()
        rest_s = (self.used_s - before) / SHARES[kind]
        if kind == "asked":
            rest_s = min(rest_s, MOST_ASKED_S)
        least_s = self.every_s[kind]
        if kind == "count":
            self.counts += 1
            least_s = FIRST_S if self.counts == 1 else least_s
            rest_s = rest_s if self.counts > 2 else 0.0
        self.due[kind] = now + max(least_s, rest_s)

    def is_whole(self):
        return bool(self.ranks and self.ranks.all) and all(
            stat(pid) and stat(pid)[1] == self.ranks.table[pid][1] for pid, _ in self.ranks.all
        )

    def tell(self, mode, number):
        answer = main.snapshot(self.ranks, mode, mode != "count" or number, self.parents)
        if mode != "count":
            self.parents = {rank["pid"] for rank in answer["ranks"] if waits_for_spawned(rank)}
        for (pid, key), rank in zip(self.ranks.all, answer["ranks"]):
            visible = main.first(self.ranks.env.get(pid, {}), "CUDA_VISIBLE_DEVICES")
            self.add_use(rank, key[2], visible)
            for child in rank["children"] if pid in self.parents else ():
                self.add_use(child, -1, "")
        self.gpus.wanted.set()
        print(json.dumps(dict(answer, number=number, printed=self.journal.lines())), flush=True)

    def add_use(self, found, local_rank, visible):
        pids = main.below([found["pid"]], self.ranks.children)
        resident = status(found["pid"]).get("VmRSS", "").partition(" ")[0]
        found.update(memory_bytes=integer(resident) * 1024, gpu=self.gpus.of_rank(pids, local_rank, visible))

    def run(self):
        rest, last = b"", time.monotonic()
        while True:
            now = time.monotonic()
            kinds = [kind for kind in SHARES if kind != "asked" or self.asked]
            next_one = min(kinds, key=lambda kind: self.due[kind])
            if self.due[next_one] <= now:
                self.work(next_one, now)
                continue
            ready = select.select([0], [], [], min(self.due[next_one] - now, SILENT_S))[0]
            data = os.read(0, 4096) if ready else b""
            if (ready and not data) or (not ready and now - last > SILENT_S):
                return
            last = now if data else last
            *lines, rest = (rest + data)[-4096:].split(b"\n")
            for mode, _, number in (line.decode("utf-8", "replace").partition(" ") for line in lines):
                if mode in MODES and number.isdigit():
                    self.asked = [one for one in self.asked if one[0] != mode] + [(mode, int(number))]


if __name__ == "__main__":
    os.nice(19)
    Watch(float(sys.argv[1]), sys.argv[2]).run()
