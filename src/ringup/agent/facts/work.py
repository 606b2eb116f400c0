"""The job's directory, script and disks; the response time of each path."""

import os
import select
import time

from ringup.agent.proc.command import Child
from ringup.agent.proc.files import space, text
from ringup.agent.proc.process import state, waited_s

LARGEST_SCRIPT_BYTES = 64 << 20
NO_FILE = {"path": "", "exists": False}
LOOK_S = 5.0
"""Of the part's seven seconds.  A slower path is on a file server that is down; an automounter is faster."""


def sha256(path, size):
    if size > LARGEST_SCRIPT_BYTES:
        return ""
    try:
        from _sha256 import sha256 as make  # gone in 3.12; hashlib costs 5 ms
    except ImportError:
        from hashlib import sha256 as make
    digest = make()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def file_fact(path):
    """Existence, size and content, or why they cannot be read; a directory has no content."""
    fact = {"path": path, "exists": False}
    try:
        fact.update(size_bytes=os.path.getsize(path), exists=True)
        if os.path.isfile(path):
            fact["sha256"] = sha256(path, fact["size_bytes"])
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        fact["error"] = error.strerror or str(error)
    return fact


def looks(paths):
    """Seconds of a stat() of each path, in a child; paths after one that does not answer are skipped."""
    child, late = Child(lambda write_end: stat_each(paths, write_end)), []
    begin = child.began
    while child.status is None and not late:
        queued_s = waited_s(child.pid)
        if select.select([child.fd], [], [], LOOK_S)[0]:
            child.read()
            begin = time.monotonic()
        elif state(child.pid) == "R" or waited_s(child.pid) - queued_s > LOOK_S / 2:
            continue  # it waited for a CPU
        elif not select.select([child.fd], [], [], 0)[0]:  # nor did it answer while we had no CPU
            late = [{"took_s": time.monotonic() - begin, "answered": False}]
            child.give_up()
    answers = [{"took_s": float(line)} for line in child.data.split()] + late
    return [dict(answer, path=path) for path, answer in zip(paths, answers)]


def stat_each(paths, write_end):
    for path in paths:
        begin, queued_s = time.monotonic(), waited_s()
        os.path.exists(path)
        took_s = time.monotonic() - begin - (waited_s() - queued_s)
        os.write(write_end, b"%.6f\n" % max(0.0, took_s))


def disks(places):
    """Free space of each file system below these directories; another rule reports missing directories."""
    found, seen = [], set()
    for path in places:
        try:
            device = os.stat(path).st_dev
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            found.append(space(path))
    return found


def revision(directory):
    """The commit that git has checked out in the directory or above it, "" for none; git is not run."""
    at = os.path.abspath(directory)
    while at != "/" and not os.path.exists(at + "/.git"):
        at = os.path.dirname(at)
    folder = at + "/.git"
    if os.path.isfile(folder):  # a worktree or a submodule
        named = text(folder).partition("gitdir: ")[2]
        folder = os.path.join(at, named)
    head = text(folder + "/HEAD")
    if not head.startswith("ref: "):
        return head[:64]
    name = head[5:]
    for place in (folder, os.path.join(folder, text(folder + "/commondir"))):
        packed = text(place + "/packed-refs", 1 << 22).splitlines()
        found = [text(place + "/" + name)] + [line.split()[0] for line in packed if line.endswith(" " + name)]
        if any(found):
            return next(filter(None, found))[:64]
    return ""


def questions(request, root):
    directory, script = request.get("chdir", ""), request.get("script", "")
    directory = directory or os.getcwd()
    path = os.path.join(directory, script) if script else ""
    env = request.get("env", {})
    temporary = env.get("TMPDIR") or os.environ.get("TMPDIR", "")
    logs = os.path.dirname(env.get("NCCL_DEBUG_FILE") or os.environ.get("NCCL_DEBUG_FILE", ""))
    places = [directory] + [os.path.join(directory, p) for p in (temporary, logs) if p]
    seen = places + ([path] if path else []) + request.get("paths", [])
    yield "looks", lambda: looks(list(dict.fromkeys(seen)))
    yield "chdir", lambda: file_fact(directory)
    # Python runs the __main__.py of a directory or package.
    folder = path[:-3] if request.get("is_module") else path
    script = os.path.join(folder, "__main__.py") if os.path.isdir(folder) else path
    # A module may be installed elsewhere.
    is_asked = path and (os.path.isfile(script) or not request.get("is_module"))
    yield "script", lambda: file_fact(script) if is_asked else NO_FILE
    yield "disks", lambda: disks(places)
    yield "revision", lambda: revision(directory)
