"""
Finds processes and files that earlier runs left on this node; ends proven leftovers if requested.

Runs as `clean MODE GRACE_S`, MODE being "list" or "kill", and prints one line of JSON. Only processes and
files of our own user are judged; clean/proof.py has the proofs.  A process is never listed if its job is
alive: its launcher lives, or its run's guard lives, or it has the rendezvous of a living job and began after
that job (a daemon that a rank started).
"""

import json
import os
import signal
import sys
import time

from ringup.agent.clean import proof, shm
from ringup.agent.facts import processes
from ringup.agent.guard import tree
from ringup.agent.proc import programs
from ringup.agent.proc.files import link, pause
from ringup.agent.proc.process import below, children_of, descriptors, family

ROUNDS = 3
"""Rounds of searching and ending: a process can fork while its parent is being ended."""
KILL_S = 3.0
MOST = 200
"""Entries of each kind in the answer."""
SETTLED_TRIES = 20


def rendezvous(env):
    """Equal for all ranks of one job."""
    return tuple(env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))


class Jobs:
    """The jobs of our user at one moment; the key of each is its topmost process."""

    def __init__(self):
        for _ in range(SETTLED_TRIES):
            if self._take():
                break
            pause(0.005)
        own = [pid for pid, uid in self.table.uids.items() if uid == self.table.uid]
        labels = [word.partition(":") for pid in own for word in self.table.words(pid)[-1:]]
        guarded = {run for name, colon, run in labels if colon and name == tree.GUARD}
        self.judge = proof.Judge(self.table, self.strays, guarded)
        self.judged = {}
        fates = {}
        for top, pids in self.members.items():
            found = [processes.fate(self.table, pid, self.jobs) for pid in pids]
            fates[top] = next((fate for fate in found if fate[:7] == "running"), found[0])
            if any(self.table.environment(pid).get(tree.TAG) in self.judge.guarded for pid in pids):
                fates[top] = "running: the guard of its run lives"
        self._spare_daemons(fates)
        listening = [one for one in processes.listening("") if one[2] == self.table.uid]
        self.ports = {"socket:[%s]" % inode: port for _, port, _, inode in listening}
        self.running = [self._entry(top, fates[top]) for top in fates if fates[top][:7] == "running"]
        self.left = [self._entry(top, fates[top]) for top in fates if fates[top][:6] == "orphan"]

    def _take(self):
        """
        Read all processes; False if the moment is unsuitable and the caller must try again.

        A shell that is ending stays the parent of its children after its command line has become empty
        (do_exit frees its memory before it gives them away): it would be taken for the topmost process.
        """
        self.table = processes.ProcessTable("")
        self.jobs = processes.jobs_of(self.table)
        self.strays = proof.strays(self.table, self.jobs)
        self.jobs.update({pid: evidence for pid, (evidence, _) in self.strays.items()})
        self.children, self.members = children_of(self.table.parents), {}
        for pid in sorted(self.jobs):
            self.members.setdefault(processes.topmost(self.table, pid, self.jobs), []).append(pid)
        return all(self.table.words(top) for top in self.members)

    def _spare_daemons(self, fates):
        starts, began = self.table.starts, {}
        for top, fate in fates.items():
            for pid in self.members[top] if fate.startswith("running") else ():
                key = rendezvous(self.table.environment(pid))
                began[key] = min(starts[top], began.get(key, starts[top]))
        for top, fate in fates.items():
            for pid in self.members[top] if fate.startswith("orphan") else ():
                key = rendezvous(self.table.environment(pid))
                if any(key) and starts[pid] >= began.get(key, starts[pid] + 1):
                    fates[top] = "running: has the rendezvous of a living job and began after it"

    def below(self, pids):
        """These processes and their descendants, without those of another job or a living run."""
        return below(pids, self.children, self.judge.elsewhere)

    def verdicts(self, top):
        """(pid, proof, doubt) of the job's processes that have no ancestor in the job."""
        if top not in self.judged:
            pids = self.members[top]
            first = [pid for pid in pids if not set(self.table.ancestors(pid)[1:]) & set(pids)]
            self.judged[top] = [(pid, *self.judge.judge(pid, self.below([pid]))) for pid in first]
        return self.judged[top]

    def victims(self, top):
        """
        Processes to end for this job: pid -> start time, parents first.

        A shell above the job is included if it has no other children and is not interactive.
        """
        verdicts = self.verdicts(top)
        proven = [pid for pid, why, _ in verdicts if why]
        found = self.below(proven or [pid for pid, _, _ in verdicts])
        for pid in proven:
            for above in self.table.ancestors(pid)[1:] if pid != top else ():
                is_told = any(not word.startswith("-") for word in self.table.words(above)[1:])
                if is_told and above not in found and all(c in found for c in self.children[above]):
                    found.append(above)
                if above == top:
                    break
        found.sort(key=lambda pid: len(self.table.ancestors(pid)))
        return {pid: self.table.starts[pid] for pid in found}

    def _entry(self, top, fate):
        first = top if top in self.jobs else self.members[top][0]
        entry = self.table.facts(top, "%s; %s" % (fate, self.jobs[first]))
        victims = self.victims(top)
        held = {fd for pid in victims for fd in descriptors(pid)}
        if proof.gpus(held):
            entry["evidence"] += "; has open " + ", ".join(proof.gpus(held))
        verdicts = self.verdicts(top) if fate.startswith("orphan") else []
        proofs = [why for _, why, _ in verdicts if why]
        entry["evidence"] += "; " + proofs[0] if proofs else ""
        doubt = verdicts[0][2] if verdicts and not proofs else ""
        ports = sorted({self.ports[name] for name in held if name in self.ports})
        run = self.table.environment(first).get(tree.TAG, "")
        entry.update(started=self.table.starts[top], run=run, ports=ports)
        return dict(entry, processes=len(victims), doubt=doubt)


def same(entry):
    """The fields that must not change between listing and ending."""
    return entry["pid"], entry["started"], entry["evidence"], entry["doubt"]


def end(victims, grace_s, spares=lambda pid: ""):
    """
    Send SIGTERM, then SIGKILL to processes that remain after the grace period, descendants included.

    Processes for which `spares` returns a text are not ended.  Returns (whether SIGKILL was needed, pid ->
    command of the processes that remain).
    """
    known = dict(victims)

    def alive():
        now, children = family()
        alive = [pid for pid, started in known.items() if pid in now and now[pid][1] == started]
        roots = [pid for pid in alive if pid in victims or not spares(pid)]
        found = below(roots, children, lambda pid: pid not in victims and spares(pid))
        known.update((pid, now[pid][1]) for pid in found)
        return {pid: known[pid] for pid in found}

    for pid, started in victims.items():
        tree.send(pid, started, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while alive() and time.monotonic() < until:
        pause(0.05)
    killed, left = tree.kill_all(alive, KILL_S)
    return bool(killed), left


def end_proven(grace_s):
    """End leftovers that two successive searches find; (pid, start time) -> entry with the signal."""
    ended = {}
    for _ in range(ROUNDS):
        if not (seen := {same(entry) for entry in Jobs().left if not entry["doubt"]}):
            break
        look = Jobs()
        for entry in look.left:
            if same(entry) not in seen:
                continue
            killed, left = end(look.victims(entry["pid"]), grace_s, look.judge.elsewhere)
            if not left:
                entry["signal"] = "KILL" if killed else "TERM"
                ended[entry["pid"], entry["started"]] = entry
    return list(ended.values())


def unseen(table):
    words, foreign = [], {pid: table.uids[pid] for pid in table.parents if table.uids[pid] != table.uid}
    # Root has many processes everywhere: only a launcher of root is reported.
    others = {uid for pid, uid in foreign.items() if uid or programs.launcher(table.words(pid))}
    if others:
        names = sorted(table.users.get(uid, str(uid)) for uid in others)
        more = ", ..." if len(names) > 8 else ""
        words.append("processes of other users: %s%s" % (", ".join(names[:8]), more))
    if 1 not in table.parents:
        words.append("processes of other users: this node hides them (hidepid)")
    for pid in [pid for pid, uid in table.uids.items() if uid == table.uid]:
        path = "/proc/%d/environ" % pid
        if len(words) < 20 and not os.access(path, os.R_OK) and os.path.exists(path):
            words.append("process %d (%s): its environment cannot be read" % (pid, table.commands[pid]))
    return words


def main(mode, grace_s, folder=tree.SHM):
    """Search, end what may be ended, search again; the answer as plain data."""
    first_namespace = link("/proc/self/ns/pid") == tree.FIRST_PID_NAMESPACE
    ended = end_proven(grace_s) if mode == "kill" else []
    files = shm.shared_files(folder, first_namespace) if os.path.isdir(folder) else []
    removed = shm.remove(files) if mode == "kill" else []
    look = Jobs()
    return {
        "type": "clean",
        "ended": ended[:MOST],
        "left": look.left[:MOST],
        "running": look.running[:MOST],
        "removed": removed[:MOST],
        "files": [entry for entry, _ in files if entry not in removed][:MOST],
        "unseen": unseen(look.table),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], float(sys.argv[2]))), flush=True)
