"""
Ask one node for its facts: parts run side by side, each in a child with a deadline.

Runs on a node by Python 3.8+ (3.6 does), standard library only, started as

    python3 -E -S -c BOOT ringup-facts RUNNER

where BOOT unpacks $RU_PROGRAM into PARTS (name -> source) and runs this file's source;
$RU_TOKEN and $RU_REQUEST say what is asked (variables, so that `ps` stays readable).
Every part defines `questions(request, root)`, which gives pairs of a field of facts.Node
and a function that answers with its value or raises.  `root` is where /proc, /sys and /etc
are looked for, "" except in tests.

Why children: reading /proc/PID/cmdline, a statvfs on a dead NFS server or a look-up may
hang where no signal reaches; a child can be abandoned, a thread cannot.

Start-up is what this costs (64 nodes on two cores), hence no json, socket or re here:
each is 7-8 ms of CPU on a machine where bare Python is 7.
"""

import os
import select
import sys
import time

try:
    from _json import encode_basestring_ascii as quote
except ImportError:  # not CPython
    from json.encoder import encode_basestring_ascii as quote

LONGEST_TEXT = 4096
LONGEST_ANSWER_BYTES = 1 << 20


def written(value):
    """JSON of plain data; text is bounded, bytes that are no UTF-8 are shown as escapes."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return quote(value[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else "null"
    if isinstance(value, dict):
        return "{%s}" % ",".join("%s:%s" % (written(str(k)), written(v)) for k, v in value.items())
    return "[%s]" % ",".join([written(v) for v in value])


END = "end"
WAITED = '"?waited":%r'
"""Seconds a part had no processor: what it missed meanwhile proves nothing."""


def words_of(error):
    """The system's own words, or the kind of any other error and its words."""
    if isinstance(error, OSError):
        return str(error)
    return "%s: %s" % (type(error).__name__, error)


def waited_s(pid):
    """
    Seconds the thread of a process that waited longest was ready to run and had no processor.

    The second figure of schedstat (Documentation/scheduler/sched-stats.rst); 0 where it is not counted.
    """
    longest, folder = 0, "/proc/%s/task" % pid
    try:
        for thread in os.listdir(folder):
            with open("%s/%s/schedstat" % (folder, thread), "rb") as file:
                longest = max(longest, int(file.read(200).split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    return round(longest / 1e9, 3)


def load():
    """Load average of the last minute; None where the kernel does not tell."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def tell(fd, line):
    left = (line + "\n").encode("ascii")
    while left:
        left = left[os.write(fd, left) :]


class Child:
    """One part, running in a process of its own."""

    def __init__(self, name, source, request, root):
        self.name = name
        self.data = b""
        self.fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            # From here on nothing may return: the parent's stack belongs to the parent.
            try:
                os.setpgid(0, 0)
                os.close(self.fd)
                self.work(source, request, root, write_end)
            finally:
                os._exit(1)
        os.close(write_end)

    def work(self, source, request, root, write_end):
        """In the child: nothing it (or an abandoned child of it) holds may keep the answer's pipe open."""
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        part = {"__name__": "ringup_" + self.name}
        try:
            exec(compile(source, self.name, "exec"), part)
            # Told one by one: what hangs later does not take the earlier ones along.
            for name, question in part["questions"](request, root):
                try:
                    line = written(name) + ":" + written(question())
                except Exception as error:
                    line = written("?" + name) + ":" + written(words_of(error))
                tell(write_end, line)
        except BaseException as error:
            tell(write_end, '"?":' + written(words_of(error)))
        tell(write_end, WAITED % waited_s("self"))
        tell(write_end, END)
        os._exit(0)

    def read(self):
        """A chunk of its answer; True once it is over."""
        data = os.read(self.fd, 65536)
        self.data += data
        return not data or len(self.data) > LONGEST_ANSWER_BYTES

    def result(self, reason=""):
        """(JSON of what it told, why the rest is missing)."""
        lines = self.data.decode("ascii", "replace").split("\n")[:-1]
        if lines and lines[-1] == END:
            lines.pop()
        elif len(self.data) > LONGEST_ANSWER_BYTES:
            reason = "answer longer than %d bytes" % LONGEST_ANSWER_BYTES
        else:
            reason = reason or "the probe died without an answer"
            lines.append(WAITED % waited_s(self.pid))
        return "{%s}" % ",".join(lines), reason

    def end(self):
        """Kill with all it started, and reap; what is in uninterruptible sleep is left to the kernel."""
        os.close(self.fd)
        try:
            os.killpg(self.pid, 9)
            os.waitpid(self.pid, os.WNOHANG)
        except OSError:
            pass


def wants_cpu(pid):
    """Whether a process is only waiting for its turn: a busy node is no reason to give up."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def run(parts, request, root, limits):
    """
    Name -> (JSON text, why fields are missing).

    A part has its limit in seconds; while it only waits for the processor, as long as the slowest may take.
    """
    longest = max(limits.values(), default=0.0)
    begin = time.monotonic()
    children, results, given = {}, {}, dict(limits)
    for name in parts:
        try:
            child = Child(name, parts[name], request, root)
            children[child.fd] = child
        except OSError as error:
            results[name] = ("{}", "cannot start a process: %s" % error.strerror)
    while children:
        now = time.monotonic() - begin
        for child in [c for c in children.values() if now >= given[c.name]]:
            if now < max(2 * limits[child.name], longest) and wants_cpu(child.pid):
                given[child.name] += limits[child.name] / 4.0
                continue
            results[child.name] = child.result("timed out after %g s" % given[child.name])
            del children[child.fd]
            child.end()
        if not children:
            break
        wait = min(given[c.name] for c in children.values()) - now
        ready = select.select(list(children), [], [], max(0.0, wait))[0]
        for fd in ready:
            if children[fd].read():
                results[children[fd].name] = children[fd].result()
                children.pop(fd).end()
    return results


def is_present(part, root):
    """
    Whether a node has what a part asks of: a look at a few paths costs less than a process.

    A GPU without a driver is in the kernel's list of PCI devices all the same (vendor 10de, NVIDIA).
    """
    places = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    if any(os.path.exists(root + place) for place in places):
        return True
    if part == "gpu":
        return False
    try:
        with open(root + "/proc/bus/pci/devices", "rb") as file:
            if b"\t10de" in file.read():
                return True
    except OSError:
        pass
    return os.path.isdir(root + "/sys/class/infiniband") and bool(os.listdir(root + "/sys/class/infiniband"))


def new_python(runner):
    """A Python of 3.8 or later, which our other programs need: this one, or another on PATH; "" for none."""
    if sys.version_info >= (3, 8):
        return runner
    places = os.environ.get("PATH", os.defpath).split(":")
    names = ["%s/python3.%d" % (place, minor) for minor in range(15, 7, -1) for place in places]
    return next((name for name in names if name.startswith("/") and os.access(name, os.X_OK)), "")


def main(parts):
    """
    Print one frame of JSON.

    {"begin", "end", "runner", "load", "failed": {part: reason}, "parts": {part: {field: value,
    "?field": reason, "?waited": seconds}}}
    """
    token, runner = os.environ.pop("RU_TOKEN"), sys.argv[2]
    # Our own launcher wrote it with repr(); json would cost its import.
    request = eval(os.environ.pop("RU_REQUEST"), {"__builtins__": {}})
    request["runner"] = runner
    wanted = {name: parts[name] for name in request["parts"]}
    limits = request["limits"]
    begin = time.time()
    root = request.get("root", "")
    absent = [n for n in request.get("where_present", ()) if n in wanted and not is_present(n, root)]
    results = run({n: s for n, s in wanted.items() if n not in absent}, request, root, limits)
    answered = ["%s:%s" % (written(n), text) for n, (text, _) in results.items()]
    failed = {n: reason for n, (_, reason) in results.items() if reason}
    head = {"begin": begin, "runner": new_python(runner), "failed": failed, "absent": absent, "load": load()}
    body = '%s,"parts":{%s},"end":' % (written(head)[:-1], ",".join(answered))
    out = sys.stdout
    # The length goes ahead alone, in a packet of its own: if it arrives and the rest
    # does not, large packets are lost on the way (an MTU black hole on ssh's path).
    out.write("\n\x1e%s ready %d\n" % (token, len(body)))
    out.flush()
    # Not time.sleep: it fails with EINVAL under libfaketime (a node with a clock of its own).
    select.select([], [], [], 0.01)
    out.write("\x1e%s facts\n%s%r}\n\x1e%s end\n" % (token, body, time.time(), token))
    out.flush()


if __name__ == "__main__":
    main(PARTS)  # noqa: F821 (given by BOOT)
