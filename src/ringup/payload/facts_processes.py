"""
Who listens on which port, and what earlier runs have left behind.

Both need one walk over /proc.  Owners and environments of other users' processes
cannot be read without root; such a listener is reported with its user alone.
"""

import os
import select
import sys
import time

try:
    import _socket as socket  # the C half: `import socket` costs 8 ms more
except ImportError:
    import socket


HZ = os.sysconf("SC_CLK_TCK")
MOST_LISTENERS = 2000
MOST_LEFTOVERS = 300
EXEC_TRIES = 200  # a millisecond apart: under load an exec waits for a CPU
FD_SECONDS = 3.0
MOST_BLOCKED = 50
BLOCKED_S = 2.0
"""A disk that is merely slow answers sooner, or lets its process run in between."""
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")

SHELLS = (
    "sh", "bash", "dash", "zsh", "ksh", "fish", "timeout", "env", "nohup", "setsid", "stdbuf", "nice", "time",
)  # fmt: skip
WAITERS = ("sleep", "tail", "pause", "cat")
"""What the script of a container becomes once it has started everything."""
INITS = (
    "systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "runit", "runsvdir",
    "sshd",
) + WAITERS  # fmt: skip
"""A process 1 that starts no jobs later on: what hangs directly under it came with it, or is an orphan."""
BORN_WITH_S = 5.0
"""How long after itself a container's init may start its eldest child: the container's own job."""

LAUNCHERS = {
    "torchrun": "torchrun", "accelerate": "accelerate launch", "deepspeed": "deepspeed",
    "colossalai": "colossalai run", "llamafactory-cli": "llamafactory-cli",
}  # fmt: skip
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.launch": "deepspeed", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip


def read(path, most=65536):
    with open(path, "rb") as file:
        return file.read(most)


def names_of_users(root):
    """uid -> name from /etc/passwd alone: a directory server that does not answer must not hold us up."""
    found = {}
    try:
        for line in read(root + "/etc/passwd", 1 << 20).decode("utf-8", "replace").splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2].isdigit():
                found.setdefault(int(fields[2]), fields[0])
    except OSError:
        pass
    return found


class Table:
    """The processes of this node at one moment."""

    def __init__(self, root):
        self.root = root
        self.users = names_of_users(root)
        self.uptime_s = float(read(root + "/proc/uptime").split()[0])
        self.uid = os.getuid()
        self.parents, self.commands, self.starts, self.uids, self.states = {}, {}, {}, {}, {}
        self.sessions, self.environments = {}, {}
        for name in os.listdir(root + "/proc"):
            if name.isdigit():
                self.add(int(name))

    def add(self, pid):
        path = "%s/proc/%d" % (self.root, pid)
        try:
            stat = read(path + "/stat").decode("utf-8", "replace")
            # The name stands in parentheses and may hold anything, parentheses too.
            head, _, tail = stat.rpartition(")")
            fields = tail.split()
            self.parents[pid], self.starts[pid] = int(fields[1]), int(fields[19])
            self.commands[pid] = head.partition("(")[2]
            self.uids[pid] = os.stat(path).st_uid
            self.states[pid], self.sessions[pid] = fields[0], fields[3]
        except (OSError, IndexError, ValueError):
            self.parents.pop(pid, None)

    def environment(self, pid):
        """Variables of a process of ours, {} where they cannot be read."""
        if pid not in self.environments:
            pairs = self.environ(pid).split(b"\0") if self.uids.get(pid) == self.uid else []
            text = [pair.decode("utf-8", "replace").partition("=") for pair in pairs if b"=" in pair]
            self.environments[pid] = {name: value for name, _, value in text}
        return self.environments[pid]

    def environ(self, pid):
        """
        Read again while a process becomes another program: /proc shows no variables then.

        A process without variables shows their place (env_start, env_end of proc(5)), twice the same.
        """
        path = "%s/proc/%d/" % (self.root, pid)
        place = []
        for _ in range(EXEC_TRIES):
            try:
                data = read(path + "environ", 1 << 20)
                # Threads of the kernel, and a process that is ending, have no program.
                if data or not os.readlink(path + "exe"):
                    return data
                before, place = place, read(path + "stat").rpartition(b")")[2].split()[47:49]
                if place == before and b"0" not in place:
                    return b""
            except OSError:
                return b""
            select.select([], [], [], 0.001)
        return b""

    def words(self, pid):
        try:
            raw = read("%s/proc/%d/cmdline" % (self.root, pid))
        except OSError:
            return []
        return [w.decode("utf-8", "backslashreplace") for w in raw.rstrip(b"\0").split(b"\0")] if raw else []

    def ancestors(self, pid):
        """pid, its parent, ... up to process 1 or to where the table ends."""
        chain = []
        while pid in self.parents and pid not in chain:
            chain.append(pid)
            pid = self.parents[pid]
        return chain

    def facts(self, pid, evidence=""):
        user = self.users.get(self.uids[pid], str(self.uids[pid]))
        return {
            "pid": pid, "ppid": self.parents[pid], "user": user,
            "age_s": max(0.0, self.uptime_s - self.starts[pid] / float(HZ)),
            "command": shown(self.words(pid)) or "[%s]" % self.commands[pid],
            "run_id": self.environment(pid).get("RINGUP_RUN", ""), "evidence": evidence,
        }  # fmt: skip


def secret(name):
    return any(word in name.upper() for word in SECRETS)


def shown(words):
    """A command line for people: bounded, values of secret-looking options hidden."""
    out, hide = [], False
    for word in words[:60]:
        name, equals, _ = word.partition("=")
        if hide and not word.startswith("-"):
            word = "(hidden)"
        elif equals and secret(name):
            word = name + "=(hidden)"
        hide = word.startswith("-") and not equals and secret(word)
        out.append(word)
    return " ".join(out)[:400]


def unpacked(text):
    """ "0100007F" -> "127.0.0.1": words of four bytes in the machine's order, as the kernel prints them."""
    raw = bytearray.fromhex(text)
    for at in range(0, len(raw), 4):
        raw[at : at + 4] = raw[at : at + 4][::-1] if sys.byteorder == "little" else raw[at : at + 4]
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, bytes(raw))


def listening(root):
    """(address, port, uid, inode) of every listening TCP socket of this network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            file = open("%s/proc/net/%s" % (root, name))
        except OSError:
            if name == "tcp6":  # IPv6 switched off
                continue
            raise
        with file:
            next(file, "")
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A":
                    address, _, port = fields[1].partition(":")
                    found.append((unpacked(address), int(port, 16), int(fields[7]), fields[9]))
    return found


def owners(table, inodes):
    """inode -> pid, for the processes whose descriptors may be read."""
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    found = {}
    end = time.time() + FD_SECONDS
    for pid in sorted(table.parents):
        if len(found) == len(wanted) or time.time() > end:
            break
        if table.uids[pid] != table.uid and table.uid != 0:
            continue
        path = "%s/proc/%d/fd" % (table.root, pid)
        try:
            for fd in os.listdir(path):
                try:
                    inode = wanted.get(os.readlink(path + "/" + fd))
                except OSError:
                    continue
                # The first is the eldest: who listens, not who inherited.
                if inode and inode not in found:
                    found[inode] = pid
        except OSError:
            continue
    return found


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


def launcher(words):
    """Which launcher a command line is, "" for none: `vim torchrun.md` and `ssh n torchrun` are not."""
    if not words:
        return ""
    program = os.path.basename(words[0])
    if program in LAUNCHERS:
        return LAUNCHERS[program]
    if not program.startswith("python"):
        return ""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 1
    if at + 1 < len(words) and words[at] == "-m":
        return MODULES.get(words[at + 1], "")
    return LAUNCHERS.get(os.path.basename(words[at]), "") if at < len(words) else ""


def rank_evidence(env, own):
    """What in an environment says "rank of a distributed job"; "" when nothing does."""
    if env.get("RINGUP_RUN") and env["RINGUP_RUN"] != own.get("RINGUP_RUN"):
        return "run tag %s" % env["RINGUP_RUN"][:80]
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    # In a pod the whole container may carry these: then they prove nothing.
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
    try:
        text = read("%s/proc/%d/cgroup" % (table.root, pid)).decode("utf-8", "replace")
    except OSError:
        return ""
    for piece in text.split():
        unit = next((p for p in reversed(piece.split("/")) if p.endswith(".service")), "")
        if unit and not unit.startswith(("ssh", "user@", "cron", "crond", "containerd", "docker")):
            return unit
    return ""


def ignores_hangup(table, pid):
    try:
        for line in read("%s/proc/%d/status" % (table.root, pid)).decode("utf-8", "replace").splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def topmost(table, pid, jobs):
    """From a process of a job up over its launchers and the shells around them."""
    top = pid
    for above in table.ancestors(pid)[1:]:
        if above in jobs or (above != 1 and table.commands[above] in SHELLS):
            top = above
        else:
            break
    return top


def came_with_init(table, top):
    """Whether a child of process 1 is what its container was started for, and no orphan."""
    of_script = table.commands[1] in WAITERS and table.sessions[top] == table.sessions[1]
    began, eldest = min((table.starts[pid], pid) for pid, parent in table.parents.items() if parent == 1)
    return of_script or (eldest == top and began - table.starts[1] <= BORN_WITH_S * HZ)


def fate(table, pid, jobs):
    """ "orphan: ..." when nobody is above the job any more, else "running: ..." with who is."""
    top = topmost(table, pid, jobs)
    parent = table.parents[top]
    name = table.commands.get(parent, "")
    if parent not in (0, 1) and name != "systemd":
        return "running: under %s (pid %d)" % (name or "a process that cannot be seen", parent)
    unit = service(table, top)
    if unit:
        return "running: service %s" % unit
    # Without a name /proc hides it from us (hidepid), as it does with an init of root's.
    if parent == 1 and name and (name not in INITS or came_with_init(table, top)):
        return "running: started by process 1 (%s)" % name
    if parent == 0:
        return "running: started from outside this container"
    return "orphan: its parent is gone" + (", hang-up ignored (nohup)" if ignores_hangup(table, top) else "")


def jobs_of(table):
    """Ranks and launchers of our user, running or not: pid -> what says so."""
    own = dict(os.environ)
    us = set(table.ancestors(os.getpid()))
    jobs = {}
    for pid in table.parents:
        if table.uids[pid] != table.uid or pid in us or table.parents[pid] == 2:
            continue
        evidence = rank_evidence(table.environment(pid), own)
        if not evidence:
            named = launcher(table.words(pid))
            evidence = "%s command line" % named if named else ""
        if evidence:
            jobs[pid] = evidence
    return jobs


def leftovers(table):
    """Ranks and launchers of ours, each with evidence; those whose launcher lives are said to be running."""
    jobs = jobs_of(table)
    found = [table.facts(pid, "%s; %s" % (fate(table, pid, jobs), jobs[pid])) for pid in sorted(jobs)]
    # Orphans first, should there be more than are told.
    return sorted(found, key=lambda p: not p["evidence"].startswith("orphan"))[:MOST_LEFTOVERS]


def switches(table, pid):
    """How often a process has left the processor; None once it is no longer in uninterruptible sleep."""
    count = 0
    try:
        for line in read("%s/proc/%d/status" % (table.root, pid)).decode("utf-8", "replace").splitlines():
            if line.startswith("State:") and line.split()[1] != "D":
                return None
            if "voluntary_ctxt_switches:" in line:
                count += int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return count


def blocked(table):
    """
    Processes that sleep uninterruptibly all through BLOCKED_S, with how long they were watched.

    Nothing is waited for where there is none.  Threads of the kernel (children of 2) sleep so by design.
    """
    count = {
        pid: switches(table, pid)
        for pid, state in table.states.items()
        if state == "D" and pid != 2 and table.parents.get(pid) != 2
    }
    for pause in (0.1, BLOCKED_S - 0.1):
        count = {pid: n for pid, n in count.items() if n is not None}
        if count:
            select.select([], [], [], pause)
        count = {pid: n for pid, n in count.items() if switches(table, pid) == n}
    return sorted(count)[:MOST_BLOCKED]


def stuck(table):
    zombies = [pid for pid, state in table.states.items() if state == "Z"]
    found = []
    for pid in blocked(table):
        # Its command line is not asked for: that look would hang as the process does.
        found.append({
            "pid": pid, "ppid": table.parents[pid], "command": table.commands[pid],
            "user": table.users.get(table.uids[pid], str(table.uids[pid])),
            "age_s": max(0.0, table.uptime_s - table.starts[pid] / float(HZ)),
            "evidence": "waiting in the kernel for %g s and more" % BLOCKED_S,
        })  # fmt: skip
    return {
        "processes": len(table.states), "zombies": len(zombies),
        "own_zombies": len([pid for pid in zombies if table.uids[pid] == table.uid]),
        "blocked": found,
    }  # fmt: skip


def questions(request, root):
    table = Table(root)
    yield "listeners", lambda: listeners(table)
    yield "leftovers", lambda: leftovers(table)
    yield "stuck", lambda: stuck(table)
