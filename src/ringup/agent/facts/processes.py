"""Listening processes and leftovers of earlier runs; other users' sockets need root."""

import os
import select
import time

from ringup.agent.proc.files import numbered, pause, required, user_names
from ringup.agent.proc.process import (
    HZ,
    cgroups,
    descriptors,
    environ,
    has_bit,
    moves,
    name_and_fields,
    owner,
    raw_environ,
    words,
)
from ringup.agent.proc.programs import launcher
from ringup.agent.proc.sockets import LISTENING, end, tcp
from ringup.secret_names import shown_words

MOST_LISTENERS = 2000
MOST_LEFTOVERS = 300
FD_SECONDS = 3.0
MOST_BLOCKED = 50
BLOCKED_S = 2.0
"""A slow but working disk answers sooner, or lets its process run in between."""

SHELLS = (
    "sh", "bash", "dash", "zsh", "ksh", "fish", "timeout", "env", "nohup", "setsid", "stdbuf", "nice", "time",
)  # fmt: skip
TERMINALS = ("tmux", "screen", "ssh-agent", "gpg-agent", "dbus-daemon", "mosh-server", "emacs")
REMOTE = ("ssh", "pdsh", "clush", "parallel-ssh", "pssh")
WAITERS = ("sleep", "tail", "pause", "cat")
"""Programs that a container's script becomes after it has started everything."""
INITS = (
    "systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runit", "runsvdir",
    "sshd",
) + WAITERS  # fmt: skip
"""An init (process 1) that starts no jobs later: its children started with it, or are orphans."""
BORN_WITH_S = 5.0
"""A container's init may start its eldest child, the container's own job, this many seconds after itself."""


class ProcessTable:
    def __init__(self, root):
        self.root = root
        self.users = user_names(root)
        self.uptime_s = float(required(root + "/proc/uptime").split()[0])
        self.uid = os.getuid()
        self.parents, self.commands, self.starts, self.uids, self.states = {}, {}, {}, {}, {}
        self.sessions, self.environments = {}, {}
        for pid in numbered(root + "/proc"):
            self.add(pid)

    def add(self, pid):
        name, fields = name_and_fields(pid, self.root)
        uid = owner(pid, self.root)
        if len(fields) > 19 and uid >= 0:
            self.parents[pid], self.starts[pid] = int(fields[1]), int(fields[19])
            self.states[pid], self.sessions[pid] = fields[0].decode(), int(fields[3])
            self.commands[pid], self.uids[pid] = name, uid

    def environment(self, pid):
        """Variables of a process of our user, {} if they cannot be read."""
        if pid not in self.environments:
            pairs = environ(pid, self.root).items()
            self.environments[pid] = dict([w.decode("utf-8", "replace") for w in pair] for pair in pairs)
        return self.environments[pid]

    def words(self, pid):
        return words(pid, self.root)

    def may_read(self, pid):
        return self.uids[pid] == self.uid or self.uid == 0

    def own(self):
        """Processes of our user without this one, its ancestors, and the kernel's."""
        us = self.ancestors(os.getpid())
        return [
            p for p, above in self.parents.items() if self.uids[p] == self.uid and p not in us and above != 2
        ]

    def ancestors(self, pid):
        """pid, its parent, ... up to process 1 or to the end of the table."""
        chain = []
        while pid in self.parents and pid not in chain:
            chain.append(pid)
            pid = self.parents[pid]
        return chain

    def facts(self, pid, evidence="", is_blocked=False):
        """For a process blocked in the kernel, only its status is read: other reads would hang as well."""
        command, run_id = self.commands[pid], ""
        if not is_blocked:
            command = " ".join(shown_words(self.words(pid)[:60]))[:400] or "[%s]" % command
            run_id = self.environment(pid).get("RINGUP_RUN", "")
        return {
            "pid": pid, "command": command, "run_id": run_id, "evidence": evidence,
            "user": self.users.get(self.uids[pid], str(self.uids[pid])),
            "age_s": max(0.0, self.uptime_s - self.starts[pid] / HZ),
        }  # fmt: skip


def owners(table, inodes):
    """inode -> pid, for the processes whose descriptors we may read."""
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    found = {}
    end = time.time() + FD_SECONDS
    for pid in sorted(table.parents):
        if len(found) == len(wanted) or time.time() > end:
            break
        for name in descriptors(pid, table.root) if table.may_read(pid) else ():
            # The first one is the eldest: the process that listens, not one that inherited the socket.
            if name in wanted:
                found.setdefault(wanted[name], pid)
    return found


def listening(root):
    """(address, port, user id, inode) of every listening TCP socket of this network namespace."""
    os.stat(root + "/proc/net/tcp")  # raises OSError if nothing can be read
    return [end(own) + (uid, inode) for own, _, uid, inode in tcp(LISTENING, root + "/proc")]


def listeners(table):
    sockets = listening(table.root)
    by_inode = owners(table, {inode for _, _, _, inode in sockets})
    out = []
    for address, port, uid, inode in sorted(sockets, key=lambda s: (s[1], s[0]))[:MOST_LISTENERS]:
        pid = by_inode.get(inode)
        process = table.facts(pid) if pid in table.parents else None
        user = table.users.get(uid, str(uid))
        out.append({"address": address, "port": port, "user": user, "process": process})
    return out


def rank_evidence(env, own):
    """The variables that mark a rank of a distributed job; "" without any."""
    if env.get("RINGUP_RUN") and env["RINGUP_RUN"] != own.get("RINGUP_RUN"):
        return "run tag %s" % env["RINGUP_RUN"][:80]
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    # In a pod the whole container may have these variables: then they prove nothing.
    if all(n in env for n in names) and [env[n] for n in names] != [own.get(n) for n in names]:
        return "rank %s of %s, MASTER_ADDR=%s" % tuple(env[n][:60] for n in names)
    if env.get("TORCHELASTIC_RUN_ID") and env["TORCHELASTIC_RUN_ID"] != own.get("TORCHELASTIC_RUN_ID"):
        return "torchrun environment"
    coordinator = env.get("JAX_COORDINATOR_ADDRESS")
    if coordinator and coordinator != own.get("JAX_COORDINATOR_ADDRESS"):
        return "JAX environment, coordinator %s" % coordinator[:60]
    return ""


def service(table, pid):
    """The systemd service a process belongs to, "" for login sessions and containers."""
    for path in cgroups(pid, table.root).values():
        unit = next((p for p in reversed(path.split("/")) if p.endswith(".service")), "")
        if unit and not unit.startswith(("ssh", "user@", "cron", "crond", "containerd", "docker")):
            return unit
    return ""


def ignores_hangup(table, pid):
    return has_bit(pid, "SigIgn", 0, table.root)


def output_is_lost(root, pid):
    """Whether the output is a pipe without a reader, or a closed terminal; None if that is hidden."""
    lost = None
    for fd in (1, 2):
        path = "%s/proc/%d/fd/%d" % (root, pid, fd)
        try:
            name = os.readlink(path)
            ended = name.startswith("/dev/pts/") and name.endswith(" (deleted)")
            lost = bool(lost) or ended or (name.startswith("pipe:") and has_no_reader(path))
        except OSError:
            continue
    return lost


def twin(table, pid):
    """An orphan that the same start forked for another node, above an ssh; 0 for none."""
    if not has_remote(table, pid):
        return 0
    key = table.parents[pid], table.sessions[pid], table.words(pid), raw_environ(pid, table.root)
    for other, session in table.sessions.items():
        if other != pid and session == key[1] and table.parents.get(other) == key[0]:
            same = (table.words(other), raw_environ(other, table.root)) == key[2:]
            if same and has_remote(table, other):
                return other
    return 0


def has_remote(table, pid):
    return any(above == pid and table.commands[child] in REMOTE for child, above in table.parents.items())


def has_no_reader(path):
    """Whether nobody reads from the pipe that a descriptor writes to, in any container."""
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(pipe, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    finally:
        os.close(pipe)


def topmost(table, pid, jobs):
    """The topmost process of a job: its launcher, or a shell around it."""
    top = pid
    for above in table.ancestors(pid)[1:]:
        if above in jobs or (above != 1 and table.commands[above] in SHELLS):
            top = above
        else:
            break
    return top


def came_with_init(table, top):
    """Whether a child of process 1 is the container's own job, not an orphan."""
    of_script = table.commands[1] in WAITERS and table.sessions[top] == table.sessions[1]
    began, eldest = min((table.starts[pid], pid) for pid, parent in table.parents.items() if parent == 1)
    return of_script or (eldest == top and began - table.starts[1] <= BORN_WITH_S * HZ)


def fate(table, pid, jobs):
    """Begins with "orphan:" if the job has no launcher any more, else "running: ..." with its launcher."""
    top = topmost(table, pid, jobs)
    parent = table.parents[top]
    name = table.commands.get(parent, "")
    if parent not in (0, 1) and name != "systemd":
        return "running: its parent is %s (pid %d)" % (name or "a process that this user cannot see", parent)
    unit = service(table, top)
    if unit:
        return "running: service %s" % unit
    # If /proc hides it from us (hidepid, or an init of root), it has no name.
    if parent == 1 and name and (name not in INITS or came_with_init(table, top)):
        return "running: started by process 1 (%s)" % name
    if parent == 0:
        return "running: started from outside this container"
    chain = table.ancestors(pid)
    launchers = [one for one in chain[: chain.index(top) + 1] if launcher(table.words(one))]
    found = "orphan: its parent is gone"
    if launchers and output_is_lost(table.root, launchers[-1]) is False and not twin(table, launchers[-1]):
        found = "running: its launcher lives, and its output is not lost"
    return found + (", hang-up ignored (nohup)" if ignores_hangup(table, top) else "")


def is_ours(table, pid):
    """
    Whether a process is part of ringup: the launcher, its shells and ssh, the agents and guards on nodes.

    False for ranks and their launchers.  An ended process has only its name.
    """
    name = table.commands.get(pid, "")
    if name.startswith("ringup") or table.states.get(pid) in ("D", "Z", None):
        return name.startswith("ringup")
    line = table.words(pid)
    if "-c" in line[1:4] and any(word.startswith("ringup-") for word in line):
        return True
    return line[1:3] == ["-m", "ringup"] or any(": ringup; ru_T=" in word[:60] for word in line)


def jobs_of(table):
    """Ranks and launchers of our user, running or not: pid -> evidence."""
    own, jobs = dict(os.environ), {}
    for pid in table.own():
        # A shell, an editor or a terminal's server may have inherited exported variables.
        hands_on = table.commands[pid] in SHELLS or table.commands[pid].split(":")[0] in TERMINALS
        evidence = "" if hands_on else rank_evidence(table.environment(pid), own)
        if not evidence:
            named = launcher(table.words(pid))
            evidence = "a %s process" % named if named else ""
        if evidence and not is_ours(table, pid):
            jobs[pid] = evidence
    return jobs


def leftovers(table):
    """Ranks and launchers of our user, with evidence; it begins with "running:" if the launcher lives."""
    jobs = jobs_of(table)
    found = [table.facts(pid, "%s; %s" % (fate(table, pid, jobs), jobs[pid])) for pid in sorted(jobs)]
    # Orphans first, because the list is bounded.
    return sorted(found, key=lambda p: not p["evidence"].startswith("orphan"))[:MOST_LEFTOVERS]


def blocked(table):
    """
    Processes in uninterruptible sleep during all of BLOCKED_S; and how long they were watched.

    No time is spent if there are none.  Kernel threads (children of 2) are left out: they sleep so by design.
    """
    count = {
        pid: moves(pid, table.root)
        for pid, how in table.states.items()
        if how == "D" and pid != 2 and table.parents.get(pid) != 2 and not is_ours(table, pid)
    }
    for seconds in (0.1, BLOCKED_S - 0.1):
        count = {pid: n for pid, n in count.items() if n is not None}
        if count:
            pause(seconds)
        count = {pid: n for pid, n in count.items() if moves(pid, table.root) == n}
    return sorted(count)[:MOST_BLOCKED]


def stuck(table):
    ended = [pid for pid, state in table.states.items() if state == "Z"]
    zombies = [pid for pid in ended if not (is_ours(table, pid) or is_ours(table, table.parents[pid]))]
    words = "waiting in the kernel for %g s and more" % BLOCKED_S
    return {
        "processes": len(table.states) - len(ended) + len(zombies), "zombies": len(zombies),
        "own_zombies": len([pid for pid in zombies if table.uids[pid] == table.uid]),
        "blocked": [table.facts(pid, words, is_blocked=True) for pid in blocked(table)],
    }  # fmt: skip


def questions(request, root):
    table = ProcessTable(root)
    yield "listeners", lambda: listeners(table)
    yield "leftovers", lambda: leftovers(table)
    yield "stuck", lambda: stuck(table)
