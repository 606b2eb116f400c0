"""The job on this node: started once, ended by SIGTERM and then SIGKILL, followed until nothing is left."""

import contextlib
import os
import signal
import subprocess
import time

from ringup.agent.guard import tree
from ringup.agent.guard.ranks import Output, Ranks, wait_code
from ringup.agent.guard.spool import Tail
from ringup.agent.guard.world import World
from ringup.agent.proc.command import which
from ringup.agent.proc.process import below, command, family, stat

PR_SET_PDEATHSIG = 1
LAUNCHER = -1
"""The "rank" of the launcher's own output."""
UNKILLABLE_S = 6.0
"""Seconds after the first SIGKILL; a process that remains longer is reported."""
LEFT_BEHIND_S = 1.0
"""Grace period for the remaining processes after their launcher has failed."""
FINISH_S = 3.0
"""After a launcher exits with 0, other processes may finish: uploads, writers of checkpoints."""

# --setup runs in the shell that becomes the job, so that its changes reach the job; in bash if available.
# Its text is not an argument, because it may contain a secret.
_SETUP = 'ringup_setup=$RINGUP_SETUP; unset RINGUP_SETUP; eval "$ringup_setup"; unset ringup_setup; exec "$@"'


class Job:
    """`over` once no process of it is left (or the remaining ones cannot be ended)."""

    def __init__(self, order, loop, up, began):
        self.order, self.loop, self.up, self.began = order, loop, up, began
        self.run_id, self.place = order["run_id"], str(order["node"])
        self.end_reason = ""
        self.sigterm_at = 0.0
        """Monotonic time of our first SIGTERM; 0 before."""
        self.over = False
        self.process = None
        self.launcher = 0
        self.launcher_ended = True
        self.tail = Tail()
        self.outputs = []
        self.ranks = None
        self.terminated = set()
        self.sigterm_rest_at = self.kill_at = float("inf")
        self.first_kill_at = 0.0
        self.shared = {}
        """The job's files in shared memory when its end begins."""
        self.oom_kills = tree.oom_kills()
        self.world = World(self)
        self.stayed = {}
        """pid -> command of processes that ran on after the launcher exited with 0."""

    def start(self):
        """Start the launcher; once."""
        if self.launcher or self.end_reason:
            return
        problem = "no socket in the run's directory (choose a local one by XDG_CACHE_HOME)"
        try:
            self.ranks = Ranks(self.loop, self.up, lambda: self.sigterm_at)
            problem = "no process can be started (`ulimit -u`, `ulimit -n`)"
            self._start_launcher()
        except (OSError, ValueError) as error:
            name = getattr(error, "filename", None)  # subprocess names the file that the child could not use
            if name or isinstance(error, ValueError):
                enters = name == self.order["chdir"]
                problem = "cannot enter %s" % name if enters else "cannot start %s" % self.order["words"][0]
            words = "%s: %s" % (problem, getattr(error, "strerror", None) or error)
            self.up().send({"type": "problem", "words": words[:4000], "at": time.monotonic()})
            self.end(words[:4000], 0)

    def _start_launcher(self):
        words, folder = list(self.order["words"]), self.order["chdir"] or os.path.expanduser("~")
        env = {name: value for name, value in os.environ.items() if name not in self.order.get("unset", ())}
        env.update(self.order["env"])
        env.update({tree.TAG: self.run_id, tree.PLACE: self.place, tree.DIRECTORY: os.getcwd()})
        env["PWD"] = os.path.realpath(folder)
        if self.order.get("setup"):
            env["RINGUP_SETUP"] = self.order["setup"]
            shell = which("bash", env.get("PATH", os.defpath)) or "sh"
            words = [shell, "-c", _SETUP, "ringup-setup"] + words
        pipes = [os.pipe(), os.pipe()]
        try:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[1][1], cwd=folder, env=env,
                start_new_session=True, preexec_fn=_forget_guard,
            )  # fmt: skip
        finally:
            for stream, (read_end, write_end) in enumerate(pipes, 1):
                os.close(write_end)
                self.outputs.append(Output(read_end, LAUNCHER, stream, self.tail, self.loop, self.up))
        self.launcher, self.launcher_ended = self.process.pid, False
        tree.note_session(self.launcher, (stat(self.launcher) or (0, 0))[1])
        self.up().send({"type": "started", "pid": self.launcher, "at": time.monotonic()})

    def reap(self):
        for pid, status in tree.reap().items():
            if pid == self.launcher:
                self._launcher_ended(wait_code(status))

    def _launcher_ended(self, code):
        self.launcher_ended = True
        self.ranks.receive_all()
        for output in self.outputs:
            output.drain()
        now = time.monotonic()
        self.up().send({
            "type": "launcher-exit", "code": code, "at": now, "sigterm_at": self.sigterm_at,
            "tail": self.tail.text(),
        })  # fmt: skip
        if not self.end_reason and code != 0:
            self.end("its launcher has ended", LEFT_BEHIND_S)
        elif not self.end_reason:
            self.end_reason = "its launcher has ended"
            self.sigterm_rest_at, self.kill_at = now + FINISH_S, now + FINISH_S + LEFT_BEHIND_S

    def end(self, reason, grace_s):
        """SIGTERM now, SIGKILL after `grace_s`; a later call can only make it sooner."""
        now = time.monotonic()
        self.kill_at = min(self.kill_at, now + grace_s)
        if self.sigterm_at or self.over:
            return
        self.end_reason, self.sigterm_at = reason, now
        self.up().send({"type": "ending", "reason": reason, "at": now})
        ranks = {rank.pid for rank in self._ranks() if rank.pid}
        self.shared = tree.shared_memory(ranks | self._members().keys())
        self.sigterm_rest_at = now + grace_s / 3
        if not self.launcher_ended:
            self._sigterm(self.launcher, (stat(self.launcher) or (0, -1))[1])
        for rank in self._ranks():
            if not rank.ended:
                self._sigterm(rank.shim, rank.shim_started)

    def _ranks(self):
        return self.ranks.all if self.ranks else ()

    def _members(self):
        parents = (os.getpid(), os.getppid())
        return tree.members(self.run_id, self.place, os.getpid(), self.began, spare=parents)

    def signal(self, number):
        """Send a signal that does not end the job to every rank; without shims, to the launcher."""
        shims = [rank for rank in self._ranks() if rank.pid and not rank.ended]
        for rank in shims:
            tree.send(rank.shim, rank.shim_started, number)
        if not (shims or self.launcher_ended or "RINGUP_SCRIPT" in self.order["env"]):
            tree.send(self.launcher, (stat(self.launcher) or (0, -1))[1], number)

    def _sigterm(self, pid, started):
        if pid not in self.terminated and tree.send(pid, started, signal.SIGTERM):
            self.terminated.add(pid)

    def on_time(self, now):
        """To be called every second, and more often while the job ends."""
        self.world.on_time(now)
        if self.over or not self.end_reason:
            return
        left = self._members()
        if not left and self.launcher_ended:
            self._finish({})
        elif now >= self.kill_at:
            self.first_kill_at = self.first_kill_at or now
            for pid, started in left.items():
                tree.send(pid, started, signal.SIGKILL)
            self.reap()
            if now - self.first_kill_at > UNKILLABLE_S:
                self._finish(left)
        elif now >= self.sigterm_rest_at:
            # SIGTERM to all other processes except those that a rank started: the rank ends them.
            self.sigterm_rest_at = float("inf")
            ranks = {rank.pid for rank in self._ranks() if rank.pid}
            if not self.sigterm_at:
                self.stayed = {pid: command(pid) for pid in left}
            for pid in left.keys() - set(below(ranks, family()[1])):
                self._sigterm(pid, left[pid])

    def _finish(self, left):
        if not left:
            for path, status in tree.unused(self.shared).items():
                with contextlib.suppress(OSError):
                    tree.remove_file(path, status)
        if self.ranks:
            self.ranks.close()
        for output in self.outputs:
            output.read()
        self.world.report(self.up())
        self.up().send({
            "type": "ended", "left": [[pid, command(pid)] for pid in left],
            "stayed": list(self.stayed.items()), "at": time.monotonic(),
            "oom_kills": tree.oom_kills() - self.oom_kills,
        })  # fmt: skip
        self.over = True


def _forget_guard():
    """In the launcher's process before exec: it dies with the guard even if the sentinel died, too."""
    tree.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
