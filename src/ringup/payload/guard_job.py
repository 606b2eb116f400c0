"""The job on this node: started once, ended by SIGTERM and then SIGKILL, followed until nothing is left."""

import os
import signal
import time

import guard_tree as tree
from guard_ranks import Output, Ranks, wait_code
from guard_spool import Tail

PR_SET_PDEATHSIG = 1
LAUNCHER = -1
"""The "rank" under which the launcher's own output travels."""
UNKILLABLE_S = 6.0
"""How long after the first SIGKILL a process may take to go; past it it is reported as left."""
LEFT_BEHIND_S = 1.0
"""Grace for what still runs when its launcher has failed."""
UNASKED_S = 3.0
"""After a launcher that ended well, what still runs may end by itself: uploads, writers of checkpoints."""

# What --setup changes must reach the job, so it runs in the shell that then becomes the job; as
# the probes do, in bash where there is one.  Its text is not an argument: it may hold a secret.
_SETUP = 'ringup_setup=$RINGUP_SETUP; unset RINGUP_SETUP; eval "$ringup_setup"; unset ringup_setup; exec "$@"'


class Job:
    """`over` once nothing of it is left (or what is left cannot be ended)."""

    def __init__(self, order, loop, up, began):
        self.order, self.loop, self.up, self.began = order, loop, up, began
        self.run_id, self.place = order["run_id"], str(order["node"])
        self.end_reason = ""
        self.told_at = 0.0
        """Monotonic time of the first SIGTERM from us; 0 before."""
        self.over = False
        self.launcher = 0
        self.launcher_ended = True
        self.tail = Tail()
        self.outputs = []
        self.ranks = None
        self.told = set()
        self.tell_rest_at = self.kill_at = float("inf")
        self.first_kill_at = 0.0
        self.oom_kills = tree.oom_kills()
        self.stayed = {}
        """pid -> command of what had to be ended though the job's launcher had ended well."""

    # -- start ---------------------------------------------------------------------------------

    def start(self):
        """Start the launcher's words; once."""
        if self.launcher or self.end_reason:
            return
        try:
            self.ranks = Ranks(self.loop, self.up, lambda: self.told_at)
        except OSError as error:
            self._fail("no socket in the run's directory: %s" % error.strerror)
            return
        try:
            pipes = [os.pipe(), os.pipe()]
            failed_read, failed_write = os.pipe()
            pid = os.fork()
        except OSError as error:
            self._fail("no process can be started: %s (`ulimit -u`, `ulimit -n`)" % error.strerror)
            return
        if pid == 0:
            self._become_launcher([write_end for _, write_end in pipes], failed_write)
        os.close(failed_write)
        for stream, (read_end, write_end) in enumerate(pipes, 1):
            os.close(write_end)
            output = Output(read_end, LAUNCHER, stream, self.tail, self.up)
            self.outputs.append(output)
            self.loop.watch(read_end, lambda o=output: self._read(o))
        words = os.read(failed_read, 4096).decode("utf-8", "replace")
        os.close(failed_read)
        self.launcher, self.launcher_ended = pid, False
        if words:
            self.up().send({"type": "problem", "words": words, "at": time.monotonic()})
        else:
            self.up().send({"type": "started", "pid": pid, "at": time.monotonic()})

    def _fail(self, words):
        self.up().send({"type": "problem", "words": words, "at": time.monotonic()})
        self.end(words, 0)

    def _become_launcher(self, outputs, failed):
        """In the child; never returns."""
        step = "start"
        try:
            os.setsid()
            # Dies with the guard even if the sentinel died with it.
            tree.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (*range(1, 32), signal.SIGXFSZ):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (outputs[0], 1), (outputs[1], 2)):
                os.dup2(source, target)
            environ = dict(os.environ)
            for name in self.order.get("unset", ()):
                environ.pop(name, None)
            environ.update(self.order["env"])
            environ.update({tree.TAG: self.run_id, tree.PLACE: self.place, "RINGUP_GUARD": self.ranks.name})
            step = "enter %s" % self.order["chdir"]
            os.chdir(self.order["chdir"] or os.path.expanduser("~"))
            environ["PWD"] = os.getcwd()
            words = list(self.order["words"])
            step = "start %s" % words[0]
            if self.order.get("setup"):
                environ["RINGUP_SETUP"] = self.order["setup"]
                script = ["-c", _SETUP, "ringup-setup"] + words
                try:
                    os.execvpe("bash", ["bash"] + script, environ)
                except FileNotFoundError:
                    os.execvpe("sh", ["sh"] + script, environ)
            os.execvpe(words[0], words, environ)
        except BaseException as error:
            reason = getattr(error, "strerror", None) or str(error)
            os.write(failed, ("cannot %s: %s" % (step, reason)).encode("utf-8", "replace")[:4000])
        finally:
            os._exit(127)

    # -- while it runs -------------------------------------------------------------------------

    def _read(self, output):
        if output.read() is False:
            self.outputs.remove(output)
            self.loop.forget(output.fd)
            os.close(output.fd)

    def reap(self):
        """Children have ended: the launcher, or orphans that fell to us."""
        for pid, status in tree.reap().items():
            if pid == self.launcher:
                self._launcher_ended(wait_code(status))

    def _launcher_ended(self, code):
        self.launcher_ended = True
        if self.ranks:
            self.ranks.take_news()
        for output in list(self.outputs):
            while output in self.outputs and output.read():
                pass
        self.up().send({
            "type": "launcher-exit", "code": code, "at": time.monotonic(), "told_at": self.told_at,
            "tail": self.tail.text(),
        })  # fmt: skip
        if not self.end_reason and code != 0:
            self.end("its launcher has ended", LEFT_BEHIND_S)
        elif not self.end_reason:
            now = time.monotonic()
            self.end_reason = "its launcher has ended"
            self.tell_rest_at, self.kill_at = now + UNASKED_S, now + UNASKED_S + LEFT_BEHIND_S

    # -- end -----------------------------------------------------------------------------------

    def end(self, reason, grace_s):
        """SIGTERM now, SIGKILL after `grace_s`; a later call can only make it sooner."""
        now = time.monotonic()
        self.kill_at = min(self.kill_at, now + grace_s)
        if self.told_at or self.over:
            return
        self.end_reason, self.told_at = reason, now
        self.up().send({"type": "ending", "reason": reason, "at": now})
        self.tell_rest_at = now + grace_s / 3
        if not self.launcher_ended:
            self._tell(self.launcher, (tree.stat(self.launcher) or (0, -1))[1])
        # Ranks hear it from their shims, once, however often their launcher repeats it.
        for rank in self.ranks.all if self.ranks else ():
            if not rank.ended:
                self._tell(rank.shim, rank.shim_started)

    def _tell(self, pid, started):
        if pid not in self.told and tree.send(pid, started, signal.SIGTERM):
            self.told.add(pid)

    def on_time(self, now):
        """To be called often while it ends, and now and then before."""
        if self.over or not self.end_reason:
            return
        left = self.members()
        if not left and self.launcher_ended:
            self._finish({})
        elif now >= self.kill_at:
            self.first_kill_at = self.first_kill_at or now
            for pid, started in left.items():
                tree.send(pid, started, signal.SIGKILL)
            self.reap()
            if now - self.first_kill_at > UNKILLABLE_S:
                self._finish(left)
        elif now >= self.tell_rest_at:
            self._tell_rest(left)

    def members(self):
        """Every process of the job: pid -> start time."""
        return tree.members(
            self.run_id, self.place, os.getpid(), self.began, spare=(os.getpid(), os.getppid())
        )

    def _tell_rest(self, left):
        """SIGTERM to those nobody told; what a rank itself started is the rank's to end."""
        self.tell_rest_at = float("inf")
        ranks = {r.pid for r in self.ranks.all} if self.ranks else set()
        table = tree.table()
        if not self.told_at:
            self.stayed = {pid: tree.command(pid) for pid in left}
        for pid, started in left.items():
            above, seen = pid, 0
            while above in table and above not in ranks and seen < 100:
                above, seen = table[above][0], seen + 1
            if above not in ranks:
                self._tell(pid, started)

    def _finish(self, left):
        if self.ranks:
            self.ranks.close()
        for output in list(self.outputs):
            self._read(output)
        commands = [[pid, tree.command(pid)] for pid in left]
        stayed = [[pid, words] for pid, words in self.stayed.items()]
        ended = {"type": "ended", "left": commands, "stayed": stayed, "at": time.monotonic()}
        self.up().send({**ended, "oom_kills": tree.oom_kills() - self.oom_kills})
        self.over = True
