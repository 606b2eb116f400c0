"""Programs on the node (their paths and output), and work in a child process that can be abandoned."""

import os
import select
import time

from ringup.agent.proc.process import state

LONGEST_OUTPUT = 1 << 20


def fork(work):
    """Run `work(write_end)` in a child, which may hang; returns its pid and the read end of the pipe."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        # This must not return: the stack belongs to the parent.
        try:
            os.close(read_end)
            work(write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    return pid, read_end


class Child:
    """A child and its output; `status` is None while it runs, 128 + N after a signal."""

    def __init__(self, work, most_bytes=LONGEST_OUTPUT):
        self.data, self.status, self.signal, self.most_bytes = b"", None, 0, most_bytes
        self.began, self.stuck = time.monotonic(), False
        self.pid, self.fd = fork(work)

    def read(self):
        block = os.read(self.fd, 65536)
        self.data += block
        if block and len(self.data) < self.most_bytes:
            return False
        os.close(self.fd)
        if block:
            os.kill(self.pid, 9)
        status = os.waitpid(self.pid, 0)[1]
        self.signal = status & 127
        self.status = 128 + self.signal if self.signal else status >> 8
        return True

    def give_up(self, stuck=False, wait=os.WNOHANG):
        self.stuck = stuck
        os.close(self.fd)
        os.kill(self.pid, 9)
        # A process in uninterruptible sleep is left to the kernel.
        os.waitpid(self.pid, wait)

    def output(self):
        return self.data.decode("utf-8", "backslashreplace")


def wait(children, until):
    """Read the output of children until a (monotonic) time; returns those that have not ended."""
    late = list(children)
    while late:
        left = max(0.0, until - time.monotonic())
        ready = select.select([child.fd for child in late], [], [], left)[0]
        if not ready:
            break
        late = [child for child in late if child.fd not in ready or not child.read()]
    return late


def command(words):
    def become(write_end):
        try:
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            os.execv(words[0], words)
        except BaseException as error:
            os.write(2, ("%s: %s" % (words[0], error)).encode("utf-8", "replace"))
            os._exit(127)

    return Child(become)


def output_of(words, seconds, most=0.0):
    """Output of a program within `seconds`, `most` while it is busy; OSError with its last output."""
    child = command(words)
    end = child.began + seconds
    while wait([child], end):
        if end >= child.began + most or state(child.pid) not in ("R", "D"):
            child.give_up(wait=0)
            printed = child.output().strip()[-300:]
            late = "%s gave no answer within %.3g s" % (words[0], end - child.began)
            raise OSError("%s; output so far: %s" % (late, printed) if printed else late)
        end += 0.5
    text, status = child.output().strip(), child.status
    if status:
        how = "signal %d" % child.signal if child.signal else "exit status %d" % status
        raise OSError("%s ended with %s: %s" % (words[0], how, text[-300:]))
    return text


def which(name, path=None):
    """The path of a program that the job's shell would run, "" for none."""
    if "/" in name:
        return os.path.abspath(name) if os.path.isfile(name) and os.access(name, os.X_OK) else ""
    # A python3 that is a shim (pyenv) extends our PATH; RU_PATH has that of the job's shell.
    given = os.environ.get("RU_PATH") or os.environ.get("PATH", os.defpath)
    for directory in (given if path is None else path).split(":"):
        found = os.path.abspath(os.path.join(directory or ".", name))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return ""
