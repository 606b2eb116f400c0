"""Proofs that a process is a leftover.  A variable proves nothing: it is inherited (docs/how/clean.md)."""

import contextlib
import os
import re
import stat
import time

from ringup.agent.facts import processes
from ringup.agent.guard import tree
from ringup.agent.proc import programs
from ringup.agent.proc.files import link, listed, read
from ringup.agent.proc.process import HZ, descriptors, environ
from ringup.agent.proc.sockets import port, tcp

SHIMS = ("rank.py", "rank_main.py")
"""ringup's programs that start the ranks, in the run's directory."""
STAYING = processes.TERMINALS + ("sshd", "node")
"""Programs that keep running by design and have the variables of the shell that started them."""
SERVICES = {
    "jupyter", "ipykernel", "ipython", "tensorboard", "wandb", "http", "uvicorn", "gunicorn", "flask",
    "streamlit", "gradio", "mlflow", "visdom", "ray", "raylet", "dask", "celery", "vllm", "sglang", "aim",
}  # fmt: skip
"""Python programs that keep running by design."""
STARTED_WITHIN_S = 5.0
"""torchrun starts its workers within this time after it has made their directories."""
EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"

GPUS = "/dev/nvidia"
PORTS = (29500, 29400, 23456)
"""Default ports: torch's store, its c10d rendezvous, Kubeflow."""
ADDRESSES = ("MASTER_ADDR=", "JAX_COORDINATOR_ADDRESS=")
IN_FRONT = ("export", "env", "exec", "nohup", "setsid", "time", "bash", "sh", "-c", "-l", "-lc")
"""Words that may come before a program."""
VALUES_OF = {"ssh": "BbcDEeFIiJLlmOopQRSWw"}
VALUES_OF_OTHERS = "wxfltugRXoLShH"
"""Letters of the options with a value: of ssh, of pdsh and similar."""
FORK = "--multiprocessing-fork"
"""Argument of processes that Python's multiprocessing (and torch's) spawns."""
UNSURE = "no other sign of a job: it may still be wanted"


def is_run_dir(name, run):
    """Whether a directory is named like the run's directory on a node: RUN-0."""
    return bool(run) and name.startswith(run + "-") and name[len(run) + 1 :].isdigit()


def noted_sessions(folder, run):
    """Session -> start time, from the file that the run's guard keeps in the run's directory."""
    found = {}
    try:
        known = os.lstat(folder)
    except OSError:
        return found
    private = stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid() and not known.st_mode & 0o077
    if private and is_run_dir(os.path.basename(folder), run):
        for line in read(os.path.join(folder, tree.SESSIONS), 1 << 20).splitlines():
            fields = line.split()
            if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
                found[int(fields[0])] = int(fields[1])
    return found


def gpus(held):
    return sorted({name for name in held if name.startswith(GPUS) and name[len(GPUS) :].isdigit()})


def trains(table, pid, held):
    env = table.environment(pid)
    return any(name in env for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")) or bool(gpus(held))


def strays(table, jobs):
    """
    pid -> (evidence, doubt) of our user's orphans that look like training but show no job variables.

    A spawned rank shows its parent's initial variables.  The ssh of a start loop runs on the launching
    machine and keeps ranks on other nodes alive.  A forked rank shows only the GPU that it holds.
    """
    usual = {"socket:[%s]" % i: port for _, port, _, i in processes.listening(table.root) if port in PORTS}
    found = {}
    for pid in table.own():
        parent = table.parents[pid]
        if pid in jobs or (parent not in (0, 1) and table.commands.get(parent, "") != "systemd"):
            continue
        if processes.fate(table, pid, {pid: ""}).startswith("orphan"):
            if verdict := stray(table, pid, usual):
                found[pid] = verdict
    return found


def stray(table, pid, usual):
    """(evidence, doubt) of one process, or None."""
    if not (words := table.words(pid)):
        return None
    program, text = os.path.basename(words[0]), " ".join(words[1:])
    if program in processes.REMOTE:
        if start := remote_start(program, words[1:]):
            return "%s that started %s" % (program, start), ""
        return ("%s that started python" % program, UNSURE) if "python" in text else None
    if not programs.is_python(words):
        return None
    held = descriptors(pid)
    if FORK in words:
        return "spawned by a Python process that is gone", "" if trains(table, pid, held) else UNSURE
    spawned = [child for child, above in table.parents.items() if above == pid and FORK in table.words(child)]
    if any(trains(table, child, descriptors(child)) for child in spawned):
        is_lost = processes.output_is_lost("", pid)
        return "a Python process that has spawned ranks", "" if is_lost else UNSURE
    if gpus(held):
        return "a Python process that holds a GPU", UNSURE
    if ports := sorted({usual[name] for name in held if name in usual}):
        return "a Python process that listens on port %d" % ports[0], UNSURE
    return None


def remote_start(program, words):
    """The launcher that ssh (or pdsh ...) runs on the other node, by the place of its name; "" for none."""
    takes, hosts, at = VALUES_OF.get(program, VALUES_OF_OTHERS), program == "ssh", 0
    while at < len(words) and (hosts or words[at].startswith("-")):
        is_option = words[at].startswith("-")
        hosts = hosts and is_option
        at += 2 if is_option and not words[at].startswith("--") and words[at][-1] in takes else 1
    has_address = False
    for part in re.split(r"[;&|\n(){}]", " ".join(words[at:])):
        left = re.sub("[\"']", " ", part).split()
        while left and (left[0] in IN_FRONT or re.match(r"[A-Za-z_]\w*=", left[0])):
            has_address = left.pop(0).startswith(ADDRESSES) or has_address
        started = programs.launcher(left) or ("a rank" if has_address and programs.script(left) else "")
        if started:
            return started
    return ""


def reads(table, pipe, own):
    """A process outside the job that has the pipe open for reading (if we may see that); else 0."""
    for pid in table.parents:
        folder = "/proc/%d/fd/" % pid
        for fd in listed(folder) if pid not in own and table.may_read(pid) else ():
            with contextlib.suppress(OSError):
                if os.readlink(folder + fd) == pipe and not os.lstat(folder + fd).st_mode & 0o200:
                    return pid
    return 0


class Judge:
    def __init__(self, table, strays, guarded):
        self.table, self.strays, self.guarded = table, strays, guarded
        self.sockets = {"socket:[%s]" % inode: (port(own), port(peer)) for own, peer, _, inode in tcp()}
        """Name -> (own port, the peer's port) of every TCP socket; the peer's port of a listener is 0."""
        low, high = (read(EPHEMERAL) or b"32768 60999").split()[:2]
        self.ephemeral = range(int(low), int(high) + 1)
        self.booted_at = time.time() - float(read("/proc/uptime").split()[0])

    def judge(self, pid, own):
        """(proof, doubt) of a process without a parent; one of them is "".  `own` are its descendants."""
        if away := self.elsewhere(pid):
            return "", "it belongs to " + away
        if run := self.table.environment(pid).get(tree.TAG):
            proof = self._of_ringup(pid, run)
            return proof, "" if proof else "it may only have inherited the tag of run %s" % run[:80]
        is_worker = self._is_torchrun_worker(pid)
        if doubt := "" if is_worker else self._wanted(pid, own):
            return "", doubt
        if pid in self.strays:
            evidence, doubt = self.strays[pid]
            doubt = doubt or (self._serves(pid) if programs.is_python(self.table.words(pid)) else "")
            return "" if doubt else evidence, doubt
        return self._of_others(pid, is_worker)

    def elsewhere(self, pid):
        """The other job, container or living run that a process belongs to; "" for none."""
        found = environ(pid)
        run = found.get(tree.TAG.encode(), b"").decode("utf-8", "replace")
        return "run %s, whose guard lives" % run if run in self.guarded else tree.elsewhere(pid, found)

    def _of_ringup(self, pid, run):
        words = self.table.words(pid)
        paths = map(os.path.split, words if programs.launcher(words) else [programs.script(words)])
        if any(name in SHIMS and is_run_dir(os.path.basename(folder), run) for folder, name in paths):
            return "its command line is of run %s" % run
        session = self.table.sessions[pid]
        noted = noted_sessions(self.table.environment(pid).get(tree.DIRECTORY, ""), run)
        is_noted = session in noted and self.table.starts[pid] >= noted[session]
        if is_noted and self.table.starts.get(session, noted[session]) == noted[session]:
            return "its session is in the directory of run %s" % run
        return ""

    def _of_others(self, pid, is_worker):
        """The proof for a launcher that is not ringup's, or for a rank of such a launcher."""
        words, env = self.table.words(pid), self.table.environment(pid)
        unread = "no process reads its output any more" if processes.output_is_lost("", pid) else ""
        if programs.launcher(words):
            twin = processes.twin(self.table, pid)
            unread = unread or (twin and "the start that has forked it and process %d is gone" % twin) or ""
            return unread, "" if unread else "the launcher is running; its output cannot be checked"
        if not programs.script(words):
            return "", "it does not run a Python script: it may only have inherited these variables"
        meets = self._meeting_port(pid)
        if meets and any((own == meets and not peer) or peer == meets for own, peer in self._held(pid)):
            return "it has a socket of its job's port %d" % meets, ""
        if serves := self._serves(pid):
            return "", serves
        if is_worker:
            return "torchrun has made %s for it" % os.path.dirname(env["TORCHELASTIC_ERROR_FILE"]), ""
        return unread, "" if unread else "it may only have inherited these variables"

    def _held(self, pid):
        """(own port, the peer's port) of its TCP sockets."""
        return {self.sockets[name] for name in descriptors(pid) if name in self.sockets}

    def _meeting_port(self, pid):
        env = self.table.environment(pid)
        named = env.get("MASTER_PORT") or env.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[2]
        return int(named) if named.isdigit() else 0

    def _serves(self, pid):
        """The fixed port, not its job's, on which it listens, as a doubt; "" for none."""
        meets = self._meeting_port(pid)
        ports = (own for own, peer in self._held(pid) if not peer and own not in self.ephemeral)
        served = sorted(own for own in ports if own != meets)
        return "it serves port %d" % served[0] if served else ""

    def _is_torchrun_worker(self, pid):
        """Whether it started like a torchrun worker, shortly after torchrun made the worker's directory."""
        words, env = self.table.words(pid), self.table.environment(pid)
        if words[1:2] != ["-u"] or not programs.script(words) or "RANK" not in env:
            return False
        try:
            folder = os.lstat(os.path.dirname(env["TORCHELASTIC_ERROR_FILE"]))
        except (KeyError, OSError):
            return False
        began = self.booted_at + self.table.starts[pid] / HZ
        own = stat.S_ISDIR(folder.st_mode) and folder.st_uid == self.table.uid
        leads = self.table.sessions[pid] == pid
        return own and leads and abs(began - folder.st_mtime) < STARTED_WITHIN_S

    def _wanted(self, pid, own):
        """A sign that it should keep running; "" without one."""
        if processes.ignores_hangup(self.table, pid):
            return "it ignores SIGHUP (nohup), like a job that must outlive its terminal"
        name = self.table.commands[pid]
        parts = set(re.split(r"[/\s.:=-]+", " ".join(self.table.words(pid)[:6])))
        if name.split(":")[0] in STAYING or parts & SERVICES:
            return "%s keeps running by design, with the variables of the process that started it" % name
        for path in ("/proc/%d/fd/1" % pid, "/proc/%d/fd/2" % pid):
            output = link(path)
            if os.path.isfile(path):
                return "its output goes to a file, like that of a job detached on purpose"
            if output.startswith(("/dev/pts/", "/dev/tty")) and not output.endswith(" (deleted)"):
                return "its output goes to a terminal that is open"
            reader = reads(self.table, output, own) if output.startswith("pipe:") else 0
            if reader:
                return "process %d (%s) reads its output" % (reader, self.table.commands[reader])
        return ""
