"""
The Python stack of a process of the same user.

1.  By a thread in the process (rank_main.py starts it with the framework), which holds the interpreter's
lock.
2.  By its faulthandler, if rank_main.py (or the job itself) has set it up: a file in memory named
ringup-stack, and a handler for SIGWINCH (SIGURG for all threads) that writes there.  The handler has no lock,
and an incomplete frame crashes the process.  So only a waiting process is signalled; or one whose thread
cannot have the lock, because it is in C code.  A process without the file and the handler gets no signal, and
one that has lost the handler since ignores it.
3.  By py-spy, if the node has it or the launching side has sent it.  Else there is no stack, only the
reasons.
"""

import binascii
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib

from ringup.agent.guard.tree import send
from ringup.agent.proc.command import which
from ringup.agent.proc.files import link, numbered, pause, read, text
from ringup.agent.proc.process import HZ, environ, has_bit, moves, stat_fields, state, status, words
from ringup.agent.snapshot.stack_frames import own_frame

FILE, THREADS, FLIGHT = "/memfd:ringup-stack", "/memfd:ringup-threads:", "/memfd:ringup-flight:"
FLIGHT_S = 7.0
LONGEST_ANSWER_BYTES = 8 << 20
"""Two hundred entries with forty frames each are 1.3 MB."""
MOST_ENTRIES, LEAST_ENTRIES = 4000, 20
"""For all ranks of a node together, at 350 bytes each; the minimum for one rank."""
UNREAD = ("output_sizes", "output_dtypes", "op_id", "thread_id", "thread_name", "duration_ms")
UNREAD += ("time_discovered_started_ns",)
RUNNER = "rank_main.py"
STOPPED = "it is stopped and answers nothing"
ANSWER_S = 2.0
"""Seconds for a process to write its stack; a loaded machine needs them."""
REST_S = 0.1
HELD_S = 0.2
"""CPU time of a main thread after which our thread would have got the lock from Python code (every 5 ms)."""
SETTLED_S = 0.05
PYSPY_S = 8.0
MOST_FRAMES = 100
LONGEST_DUMP_BYTES = 256 << 10
SYS_TGKILL = {"x86_64": 234, "aarch64": 131, "ppc64le": 250, "riscv64": 131}
LONGEST_SOURCE_BYTES = 1 << 20
FORBIDDEN = re.compile("Permission denied|Operation not permitted")
FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def memory_file(pid, name):
    """The path of a file in memory that rank_main.py opened in that process; "" for none."""
    # its descriptor is one of the lowest
    paths = ("/proc/%d/fd/%d" % (pid, fd) for fd in numbered("/proc/%d/fd" % pid))
    return next((path for path in paths if link(path).startswith(name)), "")


class Request:
    """A request for a process's stack, for its own thread to answer."""

    def __init__(self, pid):
        self.pid, self.rest, self.used = pid, moves(pid, states="SD"), used(pid)
        try:
            self.path, self.before = ask(pid, THREADS)
        except (OSError, ValueError):
            self.path = ""
        self.until, self.size = time.monotonic() + ANSWER_S, 0

    def answer(self):
        while self.path:
            count, data = answered(self.path, self.before)
            self.size = len(data)
            found = threads_of(data.decode("ascii", "replace")) if count > self.before else []
            if found:
                return found
            if state(self.pid) in ("T", "t"):
                return STOPPED
            if time.monotonic() > self.until:
                return "it did not answer within %g s" % ANSWER_S
            pause(0.002)
        return "it has no thread for this"

    def is_safe(self):
        """Whether a signal to its main thread cannot interrupt Python code."""
        at_rest = self.rest is not None and moves(self.pid, states="SD") == self.rest
        return at_rest or bool(self.path) and used(self.pid) - self.used > HELD_S


def used(pid):
    return sum(map(int, stat_fields("%d/task/%d" % (pid, pid))[11:13])) / HZ


def by_signal(request, started):
    """[(frames, thread)], innermost first, or why there are none; all threads if the main one is in D."""
    pid = request.pid
    path = memory_file(pid, FILE)
    if not path:
        return "it was not started by ringup"
    how = state(pid)
    if how in ("T", "t"):
        return STOPPED
    aside = how == "D"
    number = signal.SIGURG if aside else signal.SIGWINCH
    if not has_bit(pid, "SigCgt", number - 1):
        return "it uses this signal for something else"
    if not request.is_safe() or aside and runs(pid):
        return "it runs Python code, which a signal may not interrupt"
    try:
        os.truncate(path, 0)
        if not (signal_thread(pid, number) if aside else send(pid, started, number)):
            return "it could not be queried"
        text = written(path)
        request.size += len(text)
    except OSError as error:
        return error.strerror or "it could not be queried"
    return threads_of(text) or "it did not answer within %g s" % ANSWER_S


def runs(pid):
    return any(state("%d/task/%d" % (pid, thread)) == "R" for thread in numbered("/proc/%d/task" % pid))


def signal_thread(pid, number):
    """Signal a thread other than the main one; False if none accepts it."""
    import ctypes

    call = SYS_TGKILL.get(os.uname().machine)
    for thread in numbered("/proc/%d/task" % pid):
        if call and thread != pid and state("%d/task/%d" % (pid, thread)) in ("S", "R"):
            return ctypes.CDLL(None).syscall(call, pid, thread, int(number)) == 0
    return False


def written(path):
    """The output of a handler in an empty file, once it is complete."""
    size, since, text = 0, time.monotonic(), ""
    until = since + ANSWER_S
    while time.monotonic() < until:
        now = os.stat(path).st_size
        if now != size:
            size, since = now, time.monotonic()
            text = read(path, LONGEST_DUMP_BYTES).decode("ascii", "replace")
            last = text[:-1].rpartition("\n")[2]  # the outermost frame
            if text.endswith("\n") and RUNNER in last and last.endswith(" in <module>"):
                return text
        if size and time.monotonic() - since > SETTLED_S * 4:
            return text
        pause(0.002)
    return text


def threads_of(text):
    """faulthandler's text as [(frames, title)], the main thread first; a frame is [file, line, function]."""
    found = []
    for line in text.splitlines():
        match = FRAME.match(line)
        if match and found:
            name, number, function = match.groups()
            if not name.endswith("/" + RUNNER) and len(found[-1][0]) < MOST_FRAMES:
                found[-1][0].append([name, int(number) if number.isdigit() else 0, function])
        elif line.endswith("(most recent call first):"):
            found.append(([], line.split(" (")[0]))
    whole = [thread for thread in found if thread[0]]
    return whole[::-1]


def flights(pids):
    """pid -> (dump of the flight recorder, bytes the rank wrote for it), by `rank_main.flight_reader`."""
    asked, found, written = {}, {}, {}
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            asked[pid] = ask(pid, FLIGHT)
    most = max(LEAST_ENTRIES, MOST_ENTRIES // max(1, len(asked)))
    until = time.monotonic() + FLIGHT_S
    while asked and time.monotonic() < until:
        pause(0.02)
        for pid, (path, before) in list(asked.items()):
            count, data = answered(path, before)
            try:
                if count > before:
                    written.setdefault(pid, {})[count] = len(data)
                    dump = brief(json.loads(data), most)
                    found[pid] = dump if dump["entries"] or pid not in found else found[pid]
            except (AttributeError, OSError, RecursionError, TypeError, ValueError):
                continue
            if count >= before + 2:
                del asked[pid]
    return {pid: (dump, sum(written[pid].values())) for pid, dump in found.items()}


def brief(plain, most):
    """A dump without unused parts: only the last entries, each with only the user's frame."""
    entries = [e for e in plain.get("entries") or () if isinstance(e, dict)]
    for entry in entries:
        for name in UNREAD:
            entry.pop(name, None)
        frames = entry.get("frames") or []
        at = own_frame([str(f.get("filename") or "") for f in frames])
        entry["frames"] = frames[at : at + 1] if at >= 0 else []
    return dict(plain, entries=entries[-most:])


def ask(pid, name):
    """
    Send a request to a thread of rank_main.py: (the file of its answer, the number of earlier answers).

    Raises OSError or ValueError without such a thread: a forked child has its parent's file.
    """
    path = memory_file(pid, name)
    owner, _, number = link(path)[len(name) :].partition(" ")[0].partition(":")
    pipe = "/proc/%d/fd/%s" % (pid, number)
    if owner != status(pid).get("NSpid", str(pid)).split()[-1] or not link(pipe).startswith("pipe:["):
        raise ValueError
    before = answered(path)[0]
    end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.write(end, b"?")
    os.close(end)
    return path, before


def answered(path, before=0):
    """(count of answers, the last one if there are more than `before`)."""
    count = int.from_bytes(read(path, 4), "little")
    data = read(path, 8 + LONGEST_ANSWER_BYTES) if count > before else b""
    return int.from_bytes(data[:4], "little") or count, data[8 : 8 + int.from_bytes(data[4:8], "little")]


def pyspy(pid):
    """The path of py-spy: next to the process's Python, on its PATH, or on ours; "" for none."""
    # A virtual environment's Python is a link: its tools are next to the link.
    pythons = [(words(pid) or [""])[0], link("/proc/%d/exe" % pid), sys.executable]
    paths = os.fsdecode(environ(pid).get(b"PATH", b"")) + ":" + os.environ.get("PATH", "")
    folders = [os.path.dirname(python) for python in pythons] + paths.split(":")
    return which("py-spy", ":".join(folder for folder in folders if folder.startswith("/")) or "/")


NO_PYSPY = "no py-spy on this node"
SENT = ["", NO_PYSPY]
"""The path of the py-spy that the launching side sent; the reason if there is none."""


def unpack(sent):
    """Put a py-spy ("MACHINE:BASE64", zlib inside) into an unnamed file, which cannot be left behind."""
    machine, _, packed = sent.partition(":")
    if machine != os.uname().machine:
        SENT[:] = "", "the py-spy that was sent is for %s, this node is %s" % (machine, os.uname().machine)
        return
    problem = "every directory for a temporary file is mounted noexec"
    for folder in (os.environ.get("TMPDIR") or "/tmp", "/dev/shm", os.path.expanduser("~")):
        try:
            if os.statvfs(folder).f_flag & os.ST_NOEXEC:
                continue
            written, path = tempfile.mkstemp(prefix="ringup-", dir=folder)
            with open(written, "wb") as file:
                try:
                    os.fchmod(written, 0o700)
                    # A file that is open for writing cannot be run.
                    reading = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                finally:
                    os.unlink(path)
                file.write(zlib.decompress(binascii.a2b_base64(packed)))
        except OSError as error:
            problem = "%s: %s" % (folder, error.strerror)
        else:
            SENT[:] = "/proc/%d/fd/%d" % (os.getpid(), reading), ""
            return
    SENT[:] = "", "the py-spy that was sent cannot be run: " + problem


SCOPES = {"1": "only its parent may", "2": "only root may", "3": "nobody may"}


def forbidden(scope):
    """Why py-spy may not read a process of its own user; `scope`: Yama's setting, "" without Yama."""
    if scope not in SCOPES:
        return " (a container needs the capability SYS_PTRACE for this)"
    root = "; root can: sysctl kernel.yama.ptrace_scope=0" if scope != "3" else ""
    return " (kernel.yama.ptrace_scope is %s: %s read a process%s)" % (scope, SCOPES[scope], root)


def by_pyspy(pid):
    """The same as `by_signal`, from `py-spy dump --json`, without stopping the process."""
    path = pyspy(pid) or SENT[0]
    if not path:
        return SENT[1]
    command = [path, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PYSPY_S)
    except subprocess.TimeoutExpired:
        return "py-spy did not end within %g s" % PYSPY_S
    except OSError as error:
        return "py-spy: %s" % error.strerror
    if done.returncode:
        error = done.stderr.partition(b"Stack backtrace:")[0].decode("utf-8", "replace")
        why = forbidden(text("/proc/sys/kernel/yama/ptrace_scope")) if FORBIDDEN.search(error) else ""
        return "py-spy: %s%s" % (" ".join(error.split())[:300] or "code %d" % done.returncode, why)
    try:
        found = []
        for thread in json.loads(done.stdout):
            # Since Python 3.11 it has qualified names: "Queue.get", where a code object has "get".
            calls = [(str(f["filename"]), int(f["line"]), str(f["name"])) for f in thread["frames"]]
            own = [call for call in calls if not call[0].endswith("/" + RUNNER)][:MOST_FRAMES]
            frames = [[file, line, name.rpartition(".")[2]] for file, line, name in own]
            first = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
            found.append((not first, frames, str(thread.get("thread_name") or "")))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "py-spy's answer cannot be read"
    found.sort(key=lambda thread: thread[0])
    return [thread[1:] for thread in found if thread[1]] or "py-spy found no Python stack"


def sources(processes):
    """[index, frame, line of source] of the user's innermost frame and of the innermost frame."""
    places = []
    for i, process in enumerate(processes):
        frames = (process.get("threads") or [[[]]])[0][0]
        own = max(0, own_frame([frame[0] for frame in frames]))
        places += [(j != own, i, j, *frames[j][:2]) for j in sorted({own, 0}) if frames]
    # Libraries last: they may be on another file server, which may not answer.
    for _, i, j, name, number in sorted(places):
        text = line_of(processes[i]["pid"], name, number)
        if text:
            yield [i, j, text]


def line_of(pid, name, number):
    """A line of a file as a process sees it: in a container the same path may be another file."""
    path = "/proc/%d/%s" % (pid, "root" + name if name.startswith("/") else "cwd/" + name)
    if not number or not os.path.isfile(path):
        return ""
    lines = read(path, LONGEST_SOURCE_BYTES).split(b"\n", number)
    return b"".join(lines[number - 1 :][:1]).decode("utf-8", "replace").strip()[:200]


def stack(request, started, all_threads=False):
    """A process's stack: {"threads": [...], "how": ..., "why_not": ...}."""
    reasons = []
    for how in ("thread", "signal", "py-spy"):
        if how == "thread":
            found = request.answer()
        else:
            found = by_signal(request, started) if how == "signal" else by_pyspy(request.pid)
        if not isinstance(found, str):
            found = found[: 64 if all_threads else 1]
            return {"threads": [[f, name] for f, name in found], "how": how, "why_not": ""}
        reasons.append(found)
    reasons = dict.fromkeys(reasons if request.path else reasons[1:])
    return {"threads": [], "how": "", "why_not": "; ".join(reasons)}
