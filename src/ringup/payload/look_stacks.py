"""
Where in its Python code a process of ours is.

By its own faulthandler where rank_main.py (or the job itself) has left the file that says so: a file in
memory named ringup-stack, and a handler for SIGWINCH (SIGURG for all threads) that writes there.  No
signal is sent to a process without both, and a process that has lost the handler since ignores these.
Else by py-spy, where the node has it.  Else not at all, with the reason.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import guard_tree as tree

FILE = "/memfd:ringup-stack"
FLIGHT = "/memfd:ringup-flight:"
FLIGHT_S = 7.0
LONGEST_FLIGHT_BYTES = 8 << 20
"""Two hundred entries with forty frames each are 1.3 MB."""
MOST_ENTRIES, LEAST_ENTRIES = 4000, 20
"""Of all ranks of a node together, at 350 bytes each; of a rank at least."""
UNREAD = ("output_sizes", "output_dtypes", "op_id", "thread_id", "thread_name", "duration_ms")
UNREAD += ("time_discovered_started_ns", "time_discovered_completed_ns")
RUNNER = "rank_main.py"
ANSWER_S = 1.0
"""How long a process may take to write its stack; a loaded machine needs it."""
SETTLED_S = 0.05
PYSPY_S = 8.0
MOST_FRAMES = 100
LONGEST_DUMP_BYTES = 256 << 10
SYS_TGKILL = {"x86_64": 234, "aarch64": 131, "ppc64le": 250, "riscv64": 131}
LONGEST_SOURCE_BYTES = 1 << 20
LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?/|^<")
FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def status(pid):
    """The fields of /proc/PID/status that we use, as text."""
    found = {}
    for line in tree.read("/proc/%d/status" % pid).decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found


def stack_file(pid):
    """The open file that faulthandler writes to, as a path; "" where there is none."""
    folder = "/proc/%d/fd/" % pid
    try:
        # It was opened before the script began, so it is among the lowest.
        for fd in sorted(os.listdir(folder), key=int):
            if os.readlink(folder + fd).startswith(FILE):
                return folder + fd
    except (OSError, ValueError):
        pass
    return ""


def handles(pid, number):
    """Whether a process has a handler of its own for a signal (proc(5): SigCgt)."""
    try:
        return bool(int(status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)
    except ValueError:
        return False


def by_signal(pid, started, all_threads=False):
    """
    [(frames, name of the thread)], innermost frame first; or words of why there are none.

    A main thread that takes no signals (state D) is asked about through another of its threads.
    """
    path = stack_file(pid)
    if not path:
        return "it was not started by ringup"
    state = (status(pid).get("State") or "?")[0]
    if state in "Tt":
        return "it is stopped and answers no signal"
    aside = state == "D"
    number = signal.SIGURG if all_threads or aside else signal.SIGWINCH
    if not handles(pid, number):
        return "it has taken the signal for something else"
    try:
        before = os.stat(path).st_size
        if not (ask_aside(pid, number) if aside else tree.send(pid, started, number)):
            return "it could not be asked"
        text = answer(path, before)
    except OSError as error:
        return error.strerror or "it could not be asked"
    return threads_of(text) or "it did not answer within %g s" % ANSWER_S


def ask_aside(pid, number):
    """Send the signal to a thread that is not the main one; False when there is none that takes it."""
    import ctypes

    call = SYS_TGKILL.get(os.uname().machine)
    for name in sorted(os.listdir("/proc/%d/task" % pid), key=int):
        state = tree.read("/proc/%d/task/%s/stat" % (pid, name), 1024).rpartition(b")")[2].split()[:1]
        if call and int(name) != pid and state in ([b"S"], [b"R"]):
            return ctypes.CDLL(None).syscall(call, pid, int(name), int(number)) == 0
    return False


def answer(path, before):
    """What was added to the file, once it is whole."""
    until = time.monotonic() + ANSWER_S
    size, since = before, time.monotonic()
    text = ""
    while time.monotonic() < until:
        now = os.stat(path).st_size
        if now != size:
            size, since = now, time.monotonic()
            with open(path, "rb") as file:
                file.seek(before)
                text = file.read(LONGEST_DUMP_BYTES).decode("ascii", "replace")
            last = text[:-1].rpartition("\n")[2]  # the outermost frame
            if text.endswith("\n") and RUNNER in last and last.endswith(" in <module>"):
                return text
        if size > before and time.monotonic() - since > SETTLED_S * 4:
            return text
        tree.pause(0.002)
    return text


def threads_of(text):
    """
    faulthandler's text as [(frames, title)]; the main thread, which it writes last, comes first.

    A frame is [file, line, function], innermost first; our own frames are left out.
    """
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
    """pid -> what torch's flight recorder has, as its rank tells it (rank_main.let_ask), where it does."""
    asked, found = {}, {}
    for pid in pids:
        try:
            asked[pid] = ask_flight(pid)
        except (OSError, ValueError):
            pass
    most = max(LEAST_ENTRIES, MOST_ENTRIES // max(1, len(asked)))
    until = time.monotonic() + FLIGHT_S
    while asked and time.monotonic() < until:
        tree.pause(0.02)
        for pid, (path, before) in list(asked.items()):
            count, size = header(path)
            try:
                with open(path, "rb") as file:
                    file.seek(8)
                    if count > before:
                        said = brief(json.loads(file.read(min(size, LONGEST_FLIGHT_BYTES))), most)
                        found[pid] = said if said["entries"] or pid not in found else found[pid]
            except (AttributeError, OSError, RecursionError, TypeError, ValueError):
                continue
            if count >= before + 2:
                del asked[pid]
    return found


def brief(plain, most):
    """A dump with what is read of it: the last entries, of each the line of its call alone."""
    entries = [e for e in plain.get("entries") or () if isinstance(e, dict)]
    for entry in entries:
        for name in UNREAD:
            entry.pop(name, None)
        frames = [(str(f.get("filename")), f) for f in entry.get("frames") or ()]
        entry["frames"] = [f for name, f in frames if not LIBRARY.search(name) and "/torch/" not in name][:1]
    return dict(plain, entries=entries[-most:])


def ask_flight(pid):
    """(the file the answer comes in, how many have come before).  Raises OSError, ValueError."""
    folder = "/proc/%d/fd/" % pid
    for fd in sorted(os.listdir(folder), key=int):
        link = os.readlink(folder + fd)
        if link.startswith(FLIGHT):
            number = link[len(FLIGHT) :].split()[0]
            pipe = folder + number
            if not number.isdigit() or not os.readlink(pipe).startswith("pipe:["):
                raise ValueError
            before = header(folder + fd)[0]
            end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(end, b"?")
            os.close(end)
            return folder + fd, before
    raise ValueError


def header(path):
    """(count of answers, length of the last one)."""
    data = tree.read(path, 8).ljust(8, b"\0")
    return int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little")


def pyspy(pid):
    """The path of a py-spy that may look at a process: beside its Python, on its PATH, or on ours."""
    env = tree.environ(pid)
    # A virtual environment's Python is a link: what it was called tells where its tools are.
    places = [os.path.dirname(os.fsdecode(tree.read("/proc/%d/cmdline" % pid).split(b"\0")[0]))]
    try:
        places.append(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))
    except OSError:
        pass
    places.append(os.path.dirname(sys.executable))
    for name in (b"VIRTUAL_ENV", b"CONDA_PREFIX"):
        if env.get(name):
            places.append(os.path.join(os.fsdecode(env[name]), "bin"))
    places += os.fsdecode(env.get(b"PATH", b"")).split(":") + os.environ.get("PATH", "").split(":")
    for place in places:
        path = os.path.join(place, "py-spy")
        if place.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def by_pyspy(pid):
    """As `by_signal`, from `py-spy dump --json`, without stopping the process."""
    path = pyspy(pid)
    if not path:
        return "no py-spy on this node"
    words = [path, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PYSPY_S
        )
    except subprocess.TimeoutExpired:
        return "py-spy did not end within %g s" % PYSPY_S
    except OSError as error:
        return "py-spy: %s" % error.strerror
    if done.returncode:
        return "py-spy: %s" % (
            complaint(done.stderr.decode("utf-8", "replace")) or "code %d" % done.returncode
        )
    try:
        found = []
        for thread in json.loads(done.stdout):
            # Since Python 3.11 it gives qualified names: "Queue.get", where a code object says "get".
            frames = [
                [str(f["filename"]), int(f["line"]), str(f["name"]).rpartition(".")[2]]
                for f in thread["frames"]
            ]
            frames = [f for f in frames if not f[0].endswith("/" + RUNNER)][:MOST_FRAMES]
            first = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
            found.append((not first, frames, str(thread.get("thread_name") or "")))
    except (ValueError, KeyError, TypeError):
        return "py-spy's answer cannot be read"
    found.sort(key=lambda thread: thread[0])
    return [thread[1:] for thread in found if thread[1]] or "py-spy found no Python stack"


def complaint(text):
    """What py-spy says went wrong, with the innermost cause, without its own calls that follow."""
    lines = [line.strip() for line in text.split("Stack backtrace:")[0].splitlines() if line.strip()]
    causes = [line.partition(": ")[2] for line in lines if line.split(":")[0].isdigit()]
    return "; ".join(line[:200].replace("Error: ", "", 1) for line in lines[:1] + causes[-1:])


def telling(process):
    """(a main thread's frames, which of them tell most: the innermost outside libraries, the innermost)."""
    frames = (process.get("threads") or [[[]]])[0][0]
    own = next((i for i, frame in enumerate(frames) if not LIBRARY.search(frame[0])), 0)
    return frames, list(dict.fromkeys((own, 0))) if frames else []


def sources(processes):
    """[index, frame, text] of the lines that those frames stand at: what they call may be no Python."""
    for which in (0, 1):  # libraries last: their file server may be another, and not answer
        for i, process in enumerate(processes):
            frames, indexes = telling(process)
            for j in indexes[which : which + 1]:
                text = line_of(process["pid"], *frames[j][:2])
                if text:
                    yield [i, j, text]


def line_of(pid, name, number):
    """A line of a file as a process sees it: in a container the same name may be another file here."""
    path = "/proc/%d/%s" % (pid, "root" + name if name.startswith("/") else "cwd/" + name)
    if not number or not os.path.isfile(path):
        return ""
    lines = tree.read(path, LONGEST_SOURCE_BYTES).split(b"\n", number)
    return b"".join(lines[number - 1 :][:1]).decode("utf-8", "replace").strip()[:200]


def stack(pid, started, all_threads=False):
    """What is known of a process's stack: {"threads": [...], "how": ..., "why_not": ...}."""
    reasons = []
    for how, look in (("signal", by_signal), ("py-spy", lambda pid, *_: by_pyspy(pid))):
        found = look(pid, started, all_threads)
        if not isinstance(found, str):
            return {"threads": [[f, name] for f, name in found[:64]], "how": how, "why_not": ""}
        reasons.append(found)
    return {"threads": [], "how": "", "why_not": "; ".join(reasons)}
