"""
Collects one node's facts: the parts run in parallel, each in a child process with a deadline.

Runs on a node by Python 3.8+ (3.6 does), standard library only, started as

    python3 -E -S -c BOOT ringup-facts RUNNER

where BOOT runs $RU_PROGRAM (agent_bundle.py); $RU_TOKEN and $RU_REQUEST hold the request (as variables, so
that `ps` stays readable).  Every part is a module in this directory and defines `questions(request, root)`,
which yields pairs of a field of the answer and a function that returns its value or raises.  `root` is the
prefix of /proc, /sys and /etc, "" except in tests.

Why children: reading /proc/PID/cmdline, a statvfs on a dead NFS server or a lookup may hang where no signal
reaches it.  A child process can be abandoned, a thread cannot.

The start-up time dominates (64 nodes on two cores), hence no json, socket or re here: each costs 7-8 ms of
CPU on a machine where bare Python costs 7.
"""

import os
import select
import stat
import sys
import time
from _json import encode_basestring_ascii, make_encoder

from ringup.agent.proc.command import fork
from ringup.agent.proc.files import listed, pause, read
from ringup.agent.proc.process import state, waits_s


LONGEST_TEXT = 4096
LONGEST_ANSWER_BYTES = 1 << 20
REAP_S = 0.2


def quote(text):
    return encode_basestring_ascii(text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8"))


encode = make_encoder(None, list, quote, None, ":", ",", False, False, False)  # the format of package json


def written(value):
    """JSON of plain data.  Text is bounded; bytes that are not UTF-8 become escapes."""
    return "".join(encode(value, 0))


END = "end"
WAITED = '"?waited":%r'
"""Seconds a part had no CPU. Its missing answers prove nothing if it waited."""


def words_of(error):
    """The operating system's error text; for any other error its class and text."""
    return str(error) if isinstance(error, OSError) else "%s: %s" % (type(error).__name__, error)


def longest_wait_s(pid):
    """The longest time that a thread of the process was ready to run but had no CPU, in seconds."""
    return round(max(waits_s(pid), default=0.0), 3)


def tell(fd, line):
    left = (line + "\n").encode("ascii")
    while left:
        left = left[os.write(fd, left) :]


class Probe:
    def __init__(self, name, request, root):
        self.name, self.data = name, b""
        self.pid, self.fd = fork(lambda write_end: self.work(request, root, write_end))

    def work(self, request, root, write_end):
        """In the child: no descriptor here (or in an abandoned child) may keep the answer's pipe open."""
        os.setpgid(0, 0)
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        try:
            part = __import__("ringup.agent.facts." + self.name, fromlist=["questions"])
            # Each answer is sent at once: a later question that hangs does not lose the earlier answers.
            for name, question in part.questions(request, root):
                try:
                    line = written(name) + ":" + written(question())
                except Exception as error:
                    line = written("?" + name) + ":" + written(words_of(error))
                tell(write_end, line)
        except BaseException as error:
            tell(write_end, '"?":' + written(words_of(error)))
        tell(write_end, WAITED % longest_wait_s("self"))
        tell(write_end, END)

    def read(self):
        data = os.read(self.fd, 65536)
        self.data += data
        return not data or len(self.data) > LONGEST_ANSWER_BYTES

    def result(self, reason=""):
        """(JSON of its answers, why the rest is missing)."""
        lines = self.data.decode("ascii", "replace").split("\n")[:-1]
        if lines and lines[-1] == END:
            lines.pop()
        elif len(self.data) > LONGEST_ANSWER_BYTES:
            reason = "answer longer than %d bytes" % LONGEST_ANSWER_BYTES
        else:
            reason = reason or "the probe died without an answer"
            lines.append(WAITED % longest_wait_s(self.pid))
        return "{%s}" % ",".join(lines), reason

    def end(self):
        """Kill it and its descendants; returns its pid."""
        os.close(self.fd)
        try:
            os.killpg(self.pid, 9)
        except OSError:
            pass
        return self.pid


def reap(pids, limit_s=0.0):
    """Wait for killed children; a process in uninterruptible sleep is left to the kernel."""
    until = time.monotonic() + limit_s
    while pids:
        for pid in list(pids):
            try:
                gone = os.waitpid(pid, os.WNOHANG)[0]
            except OSError:
                gone = pid
            if gone:
                pids.remove(pid)
        if time.monotonic() >= until:
            return
        pause(0.001)


def listener():
    """[stdout], which becomes readable when its reader closes the pipe; [] if stdout is not a pipe."""
    try:
        return [1] if stat.S_ISFIFO(os.fstat(1).st_mode) else []
    except OSError:
        return []


def run(parts, request, root, limits):
    """Name -> (JSON text, why fields are missing).  A part that lacks CPU time gets the longest deadline."""
    longest = max(limits.values(), default=0.0)
    begin = time.monotonic()
    children, results, given, ended, out = {}, {}, dict(limits), [], listener()
    for name in parts:
        try:
            child = Probe(name, request, root)
            children[child.fd] = child
        except OSError as error:
            results[name] = ("{}", "cannot start a process: %s" % error.strerror)
    while children:
        now = time.monotonic() - begin
        for child in [c for c in children.values() if now >= given[c.name]]:
            if now < max(2 * limits[child.name], longest) and state(child.pid) == "R":
                given[child.name] += limits[child.name] / 4.0
                continue
            results[child.name] = child.result("timed out after %g s" % given[child.name])
            del children[child.fd]
            ended.append(child.end())
        if not children:
            break
        reap(ended)
        wait = min(given[c.name] for c in children.values()) - now
        ready = select.select(list(children) + out, [], [], max(0.0, wait))[0]
        for fd in ready:
            if fd in out:  # the connection is lost: nobody waits for an answer
                ended += [child.end() for child in children.values()]
                reap(ended, REAP_S)
                sys.exit(1)
            if children[fd].read():
                results[children[fd].name] = children[fd].result()
                ended.append(children.pop(fd).end())
    reap(ended, REAP_S)
    return results


def is_present(part, root):
    """Whether a node has the hardware of a part; a GPU without driver is in the kernel's PCI list (10de)."""
    places = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    if any(os.path.exists(root + place) for place in places):
        return True
    if part == "gpu":
        return False
    if b"\t10de" in read(root + "/proc/bus/pci/devices", 1 << 20):
        return True
    return bool(listed(root + "/sys/class/infiniband"))


def new_python(runner):
    """A Python of 3.8 or later for our other programs: this one, or another on PATH; "" for none."""
    if sys.version_info >= (3, 8):
        return runner
    places = os.environ.get("PATH", os.defpath).split(":")
    names = ["%s/python3.%d" % (place, minor) for minor in range(15, 7, -1) for place in places]
    return next((name for name in names if name.startswith("/") and os.access(name, os.X_OK)), "")


def rename(name):
    """Set the name that `ps` shows; it also identifies our zombies, whose command line is empty."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def main():
    """
    Print one frame of JSON.

    {"begin", "end", "runner", "load", "failed": {part: reason}, "parts": {part: {field: value,
    "?field": reason, "?waited": seconds}}}
    """
    token, runner = os.environ.pop("RU_TOKEN"), sys.argv[2]
    # Our own launcher wrote it with repr(); importing json would cost time.
    request = eval(os.environ.pop("RU_REQUEST"), {"__builtins__": {}})
    request["runner"] = runner
    rename("ringup-facts")
    limits = request["limits"]
    begin = time.time()
    root = request.get("root", "")
    parts = request["parts"]
    absent = [n for n in request.get("where_present", ()) if n in parts and not is_present(n, root)]
    results = run([n for n in parts if n not in absent], request, root, limits)
    answered = ["%s:%s" % (written(n), text) for n, (text, _) in results.items()]
    failed = {n: reason for n, (_, reason) in results.items() if reason}
    load = float((read("/proc/loadavg").split() or [0])[0])  # of the last minute
    head = {"begin": begin, "runner": new_python(runner), "failed": failed, "absent": absent, "load": load}
    body = '%s,"parts":{%s},"end":' % (written(head)[:-1], ",".join(answered))
    out = sys.stdout
    # The length goes first, in a packet of its own: if it arrives and the rest does not, large packets are
    # lost on the way (an MTU black hole on ssh's path).
    out.write("\n\x1e%s ready %d\n" % (token, len(body)))
    out.flush()
    pause(0.01)
    out.write("\x1e%s facts\n%s%r}\n\x1e%s end\n" % (token, body, time.time(), token))
    out.flush()


if __name__ == "__main__":
    main()
