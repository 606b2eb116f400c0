"""
Directories and files of the job on this node.

Three parts share this source: `spaces` (/dev/shm, /tmp), `work` (the job's directory
and script) and `home` (cache directory, NCCL's configuration files), so that one dead
file server leaves the other two known.
"""

import os
import select
import time

LARGEST_SCRIPT_BYTES = 64 << 20
NO_FILE = {"path": "", "exists": False}
MOST_SHM = 200
ROOM_BYTES = 16 << 20
"""A run keeps its program, environment and spooled output there."""
LOOK_S = 5.0
"""Of the part's seven seconds: what takes longer is on a file server that is down, and no automounter's."""


def space(path):
    st = os.statvfs(path)
    return {
        "path": path,
        "total_bytes": st.f_blocks * st.f_frsize,
        "free_bytes": st.f_bavail * st.f_frsize,
        "read_only": bool(st.f_flag & 1),
    }


def sha256(path, size):
    if size > LARGEST_SCRIPT_BYTES:
        return ""
    try:
        from _sha256 import sha256 as make  # gone in 3.12; hashlib costs 5 ms
    except ImportError:
        from hashlib import sha256 as make
    digest = make()
    with open(path, "rb") as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def file_fact(path):
    """Existence, size and content; a directory has no content."""
    if not os.path.exists(path):
        return {"path": path, "exists": False}
    size = os.path.getsize(path)
    regular = os.path.isfile(path)
    return {"path": path, "exists": True, "size_bytes": size, "sha256": sha256(path, size) if regular else ""}


def script_fact(path):
    """The script; of a directory Python runs __main__.py."""
    return file_fact(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)


def usable(path):
    """The space under a directory that is ours or can be made by us, else None."""
    uid = os.getuid()
    try:
        st = os.lstat(path)
    except OSError:
        st = None
    # A directory of ours under /tmp that another user made first is a trap.
    if st is not None and (st.st_uid != uid or not os.path.isdir(path)):
        return None
    parent = path
    while not os.path.isdir(parent) and len(parent) > 1:
        parent = os.path.dirname(parent)
    if not os.access(parent, os.W_OK | os.X_OK):
        return None
    found = space(parent)
    found["path"] = path
    return None if found["read_only"] else found


def cache():
    """The first of three places with room, else the first that can be written at all."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if base.startswith("/") else home + "/.cache"
    name = "ringup-%d" % os.getuid()
    places = []
    for path in (base + "/ringup", "/dev/shm/" + name, "/tmp/" + name):
        try:
            places.append(usable(path))
        except OSError:
            pass
    places = [p for p in places if p]
    return next((p for p in places if p["free_bytes"] >= ROOM_BYTES), places[0] if places else None)


def configurations(request, root):
    """
    [[source, lines], ...] of the files NCCL may read, in the order of who wins.

    "named" is NCCL_CONF_FILE, "passwd" and "home" are .nccl.conf in the directory of the user's
    entry in /etc/passwd and in $HOME (one of the two counts, by NCCL's release), then "system".
    """
    named = request.get("env", {}).get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
    entry, variable = passwd_home(root), os.environ.get("HOME", "")
    places = [("named", named or "")]
    places += [("passwd", entry and entry + "/.nccl.conf"), ("home", variable and variable + "/.nccl.conf")]
    found = []
    for source, path in places + [("system", root + "/etc/nccl.conf")]:
        try:
            if not path:
                continue
            with open(path, "rb") as file:
                text = file.read(65536).decode("utf-8", "backslashreplace")
        except OSError as error:
            if error.errno not in (2, 20):  # absent is an answer, forbidden is not
                raise
            text = ""
        # A text in the answer is bounded at 4096 characters, a file of variables need not be.
        found.append([source, [line for line in text.splitlines() if "=" in line][:500]])
    return found


def passwd_home(root):
    """Home directory of /etc/passwd, else the system's own answer where a directory server knows the user."""
    uid = str(os.getuid())
    try:
        with open(root + "/etc/passwd", "rb") as file:
            for line in file.read(1 << 20).decode("utf-8", "replace").splitlines():
                fields = line.split(":")
                if len(fields) > 5 and fields[2] == uid:
                    return fields[5]
    except OSError:
        pass
    import pwd  # may ask a directory server; this part may be late

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def looks(paths):
    """
    How long one stat() of each path takes, in a process of its own that may be given up.

    What comes after a path that does not answer is not looked at any more.  Nothing is concluded
    from a process that only waits for its turn on a busy machine.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            for path in paths:
                begin, queued_s = time.monotonic(), queued()
                try:
                    os.stat(path)
                except OSError:
                    pass
                took_s = time.monotonic() - begin - (queued() - queued_s)
                os.write(write_end, b"%.6f\n" % max(0.0, took_s))
        finally:
            os._exit(0)
    os.close(write_end)
    found, data, begin = [], b"", time.monotonic()
    while len(found) < len(paths):
        if select.select([read_end], [], [], LOOK_S)[0]:
            block = os.read(read_end, 4096)
            data += block
            times = data.split(b"\n")[:-1]
            found = [{"path": p, "took_s": float(t)} for p, t in zip(paths, times)]
            begin = time.monotonic()
            if not block:
                break
        elif not runs(pid):
            took_s = time.monotonic() - begin
            found.append({"path": paths[len(found)], "took_s": took_s, "answered": False})
            os.kill(pid, 9)
            break
    os.close(read_end)
    os.waitpid(pid, os.WNOHANG)
    return found


def queued():
    """Seconds this process has waited for a processor (Documentation/scheduler/sched-stats.rst)."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read(128).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read(4096).rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def disks(places):
    """The space of each file system below these directories, once; what is missing is said elsewhere."""
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
    """Commit that git has checked out in the directory or above it, "" for none; git itself is not run."""
    at = os.path.abspath(directory)
    while not os.path.exists(at + "/.git"):
        if at in ("/", ""):
            return ""
        at = os.path.dirname(at)
    folder = at + "/.git"
    if os.path.isfile(folder):  # a worktree or a submodule
        named = text_of(folder).partition("gitdir: ")[2]
        folder = os.path.join(at, named)
    head = text_of(folder + "/HEAD")
    if not head.startswith("ref: "):
        return head[:64]
    name = head[5:]
    common = text_of(folder + "/commondir")
    for place in (folder, os.path.join(folder, common) if common else folder):
        found = text_of(place + "/" + name)
        if found:
            return found[:64]
        for line in text_of(place + "/packed-refs", 1 << 22).splitlines():
            if line.endswith(" " + name):
                return line.split()[0][:64]
    return ""


def text_of(path, most=4096):
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "backslashreplace").strip()
    except OSError:
        return ""


def users(root):
    """uid -> name of /etc/passwd."""
    found = {}
    for line in text_of(root + "/etc/passwd", 1 << 20).splitlines():
        fields = line.split(":")
        if len(fields) > 2:
            found.setdefault(fields[2], fields[0])
    return found


def owner(name, root):
    """Whether the process that made a file lives: torch writes its number into the name (torch_PID_...)."""
    pid = name.split("_")[1:2]
    if not name.startswith("torch_") or not pid or not pid[0].isdigit():
        return "unknown"
    return "lives" if os.path.exists(root + "/proc/" + pid[0]) else "gone"


def shm_files(root):
    """Files of NCCL's, torch's and of POSIX semaphores; who uses them only `ringup clean` looks for."""
    found, names = [], None
    for name in os.listdir(root + "/dev/shm"):
        if not name.startswith(("nccl-", "torch_", "sem.")):
            continue
        try:
            st = os.lstat(root + "/dev/shm/" + name)
        except OSError:
            continue  # gone meanwhile
        names = users(root) if names is None else names
        found.append(
            {
                "name": name,
                "size_bytes": st.st_blocks * 512,
                "user": names.get(str(st.st_uid), str(st.st_uid)),
                "age_s": max(0.0, time.time() - max(st.st_mtime, st.st_ctime)),
                "owner": owner(name, root),
            }
        )
    return sorted(found, key=lambda f: -f["size_bytes"])[:MOST_SHM]


def spaces(request, root):
    return {
        "shm": lambda: space(root + "/dev/shm"),
        "tmp": lambda: space(root + "/tmp"),
        "shm_files": lambda: shm_files(root),
    }


def work(request, root):
    directory, script = request.get("chdir", ""), request.get("script", "")
    directory = directory or os.getcwd()
    path = os.path.join(directory, script) if script else ""
    env = request.get("env", {})
    temporary = env.get("TMPDIR") or os.environ.get("TMPDIR", "")
    logs = os.path.dirname(env.get("NCCL_DEBUG_FILE") or os.environ.get("NCCL_DEBUG_FILE", ""))
    places = [directory] + [os.path.join(directory, p) for p in (temporary, logs) if p]
    seen = places + ([path] if path else []) + request.get("paths", [])
    return {
        "looks": lambda: looks(list(dict.fromkeys(seen))),
        "chdir": lambda: file_fact(directory),
        "script": lambda: script_fact(path) if path else NO_FILE,
        "disks": lambda: disks(places),
        "revision": lambda: revision(directory),
    }


def home(request, root):
    return {"cache": cache, "nccl_conf": lambda: configurations(request, root)}


def questions(request, root):
    # `__name__` tells which of the three parts this is.
    part = __name__.rpartition("_")[2]
    return {"spaces": spaces, "work": work, "home": home}[part](request, root).items()
