"""
What earlier runs left on this node: listed, and where it is proven and asked for, ended.

Runs as `clean MODE GRACE_S`, MODE being "list" or "kill", and prints one line of JSON.
Only processes and files of our own user are judged.  What belongs to a living job is never
offered: its launcher lives, or the guard of its run does, or it carries the rendezvous of a
living job and began after that (a daemon which a rank has started).
"""

import json
import os
import signal
import sys
import time

import clean_files
import clean_strays
import facts_processes as processes
import guard_tree as tree
from clean_strays import descriptors, is_python

ROUNDS = 3
"""What fled from a process that was ended is found by looking again."""
KILL_S = 3.0
MOST = 200
"""Entries of each kind that are told."""

STAYING = ("tmux", "screen", "ssh-agent", "gpg-agent", "dbus-daemon", "sshd", "node", "emacs", "mosh-server")
"""Programs that live on by design, with the variables of the shell they were started from."""
NOTEBOOKS = ("jupyter", "ipykernel", "ipython", "tensorboard", "wandb")

SETTLED_TRIES = 20
FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of linux/proc_ns.h: from any other, processes outside cannot be seen."""


def rendezvous(env):
    """What the ranks of one job have in common."""
    return tuple(env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))


def guarded_runs(table):
    """Runs whose guard lives here."""
    label = tree.GUARD + ":"
    found = set()
    for pid, uid in table.uids.items():
        if uid == table.uid:
            found.update(w[len(label) :] for w in table.words(pid)[-1:] if w.startswith(label))
    return found


class Look:
    """The jobs of our user at one moment, each by its topmost process."""

    def __init__(self):
        for _ in range(SETTLED_TRIES):
            if self._take():
                break
            tree.pause(0.005)
        guarded = guarded_runs(self.table)
        fates = {}
        for top, pids in self.members.items():
            fates[top] = processes.fate(self.table, top, self.jobs)
            if any(self._env(pid).get(tree.TAG) in guarded for pid in pids):
                fates[top] = "running: the guard of its run lives"
        self._spare_daemons(fates)
        self.ports = {}
        for _, port, uid, inode in processes.listening(""):
            if uid == self.table.uid:
                self.ports["socket:[%s]" % inode] = port
        self.running = [self._entry(top, fates[top]) for top in fates if fates[top][:7] == "running"]
        self.left = [self._entry(top, fates[top]) for top in fates if fates[top][:6] == "orphan"]

    def _take(self):
        """
        All processes of this moment; whether it is a moment to judge by.

        A shell that is ending is still the parent of what it has started when it has no words any more
        (do_exit frees its memory before it gives its children away): it would pass for their topmost.
        """
        self.table = processes.Table("")
        self.jobs = processes.jobs_of(self.table)
        self.strays = clean_strays.find(self.table, self.jobs)
        self.jobs.update({pid: evidence for pid, (evidence, _) in self.strays.items()})
        self.children, self.members = {}, {}
        for pid, parent in self.table.parents.items():
            self.children.setdefault(parent, []).append(pid)
        for pid in sorted(self.jobs):
            self.members.setdefault(processes.topmost(self.table, pid, self.jobs), []).append(pid)
        return all(self.table.words(top) for top in self.members)

    def _env(self, pid):
        return self.table.environment(pid)

    def _spare_daemons(self, fates):
        began = {}
        for top, fate in fates.items():
            if fate.startswith("running"):
                for pid in self.members[top]:
                    key = rendezvous(self._env(pid))
                    began[key] = min(self.table.starts[top], began.get(key, self.table.starts[top]))
        for top, fate in fates.items():
            if fate.startswith("orphan"):
                for pid in self.members[top]:
                    key = rendezvous(self._env(pid))
                    if any(key) and self.table.starts[pid] >= began.get(key, self.table.starts[pid] + 1):
                        fates[top] = "running: has the rendezvous of a living job and began after it"

    def victims(self, top):
        """
        What would be ended with it: pid -> start time, parents first.

        A shell above the job goes along when it has nothing else to do.
        """
        found = []
        todo = list(self.members[top])
        while todo:
            pid = todo.pop(0)
            if pid not in found:
                found.append(pid)
                todo += self.children.get(pid, ())
        for pid in self.members[top]:
            for above in self.table.ancestors(pid)[1:] if pid != top else ():
                if above not in found and all(child in found for child in self.children[above]):
                    found.append(above)
                if above == top:
                    break
        found.sort(key=lambda pid: len(self.table.ancestors(pid)))
        return {pid: self.table.starts[pid] for pid in found}

    def _entry(self, top, fate):
        first = top if top in self.jobs else self.members[top][0]
        entry = self.table.facts(top, "%s; %s" % (fate, self.jobs[first]))
        held = {fd for pid in self.victims(top) for fd in descriptors(pid)}
        gpus = {name for name in held if name.startswith("/dev/nvidia") and name[11:].isdigit()}
        if gpus:
            entry["evidence"] += "; has open " + ", ".join(sorted(gpus))
        return {
            "pid": top,
            "started": self.table.starts[top],
            "age_s": entry["age_s"],
            "command": entry["command"],
            "evidence": entry["evidence"],
            "run": self._env(first).get(tree.TAG, ""),
            "ports": sorted({self.ports[name] for name in held if name in self.ports}),
            "processes": len(self.victims(top)),
            "doubt": self._doubt(top, first) if fate.startswith("orphan") else "",
        }

    def _doubt(self, top, first):
        """Why it may be wanted after all; "" when it is proven to be left over."""
        env = self._env(first)
        if all(self._env(pid).get(tree.TAG) for pid in self.members[top]):
            return ""  # such a process lives under its run's guard, and that is gone
        if self.strays.get(first, ("", ""))[1]:
            return self.strays[first][1]
        if processes.ignores_hangup(self.table, top):
            return "it ignores hang-up (nohup), as a job does that is meant to outlive its terminal"
        name = self.table.commands[top]
        words = " ".join(self.table.words(top)[:6])
        if name.split(":")[0] in STAYING or any(word in words for word in NOTEBOOKS):
            return "%s lives on by design, with the variables of whoever started it" % name
        if env.get("TORCHELASTIC_RUN_ID") and "RANK" in env:
            return ""  # torchrun's agent has set this, and no agent is above it
        known = processes.launcher(self.table.words(first)) or is_python(self.table.words(first))
        if not known and first not in self.strays:
            return "it is no Python program: it may only have inherited these variables"
        return clean_strays.listened_to(self.table, top, self.victims(top))


def same(entry):
    """What must not have changed between looking and ending."""
    return entry["pid"], entry["started"], entry["evidence"], entry["doubt"]


def end(victims, grace_s):
    """
    TERM, then KILL what is still there after the grace, with all it has started meanwhile.

    Returns (whether KILL was needed, pid -> command of what lives on).
    """
    known = dict(victims)

    def alive():
        now = tree.table()
        children = {}
        for pid, (parent, _) in now.items():
            children.setdefault(parent, []).append(pid)
        todo = [pid for pid, started in known.items() if pid in now and now[pid][1] == started]
        found = {}
        while todo:
            pid = todo.pop()
            if pid not in found:
                found[pid] = known[pid] = now[pid][1]
                todo += children.get(pid, ())
        return found

    for pid, started in victims.items():
        tree.send(pid, started, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while alive() and time.monotonic() < until:
        tree.pause(0.05)
    killed, left = tree.kill_all(alive, KILL_S)
    return bool(killed), left


def end_proven(grace_s):
    """End what two looks in a row agree on; pid and start time -> entry with how it ended."""
    ended = {}
    for _ in range(ROUNDS):
        seen = {same(entry) for entry in Look().left if not entry["doubt"]}
        if not seen:
            break
        look = Look()
        for entry in look.left:
            if same(entry) not in seen:
                continue
            killed, left = end(look.victims(entry["pid"]), grace_s)
            if not left:
                entry["signal"] = "KILL" if killed else "TERM"
                ended[entry["pid"], entry["started"]] = entry
    return list(ended.values())


def unseen(table):
    """What could not be judged, in words."""
    words = []
    others = set()
    for pid in table.parents:
        uid = table.uids[pid]
        # Root has processes everywhere: only a launcher of root's is worth a word.
        if uid != table.uid and (uid or processes.launcher(table.words(pid))):
            others.add(uid)
    if others:
        names = sorted(table.users.get(uid, str(uid)) for uid in others)
        more = ", ..." if len(names) > 8 else ""
        words.append("processes of other users: %s%s" % (", ".join(names[:8]), more))
    if 1 not in table.parents:
        words.append("processes of other users: this node hides them (hidepid)")
    for pid, uid in table.uids.items():
        if uid == table.uid and pid in table.parents and len(words) < 20:
            try:
                with open("/proc/%d/environ" % pid, "rb"):
                    pass
            except PermissionError:
                words.append("process %d (%s): its environment cannot be read" % (pid, table.commands[pid]))
            except OSError:
                pass
    return words


def main(mode, grace_s, folder=clean_files.SHM):
    """Look, end what may be ended, look again; the answer as plain data."""
    try:
        first_namespace = os.readlink("/proc/self/ns/pid") == FIRST_PID_NAMESPACE
    except OSError:
        first_namespace = False
    ended = end_proven(grace_s) if mode == "kill" else []
    files = clean_files.shared_files(folder, first_namespace) if os.path.isdir(folder) else []
    removed = clean_files.remove(files) if mode == "kill" else []
    look = Look()
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
