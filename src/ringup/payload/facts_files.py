"""
Directories and files of the job on this node.

Three parts share this source: `spaces` (/dev/shm, /tmp), `work` (the job's directory
and script) and `home` (cache directory, NCCL's configuration files), so that one dead
file server leaves the other two known.
"""

import os

LARGEST_SCRIPT_BYTES = 64 << 20
NO_FILE = {"path": "", "exists": False}
ROOM_BYTES = 16 << 20
"""A run keeps its program, environment and spooled output there."""


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
    Texts of the files NCCL reads, the one that wins first.

    NCCL_CONF_FILE, else ~/.nccl.conf; then /etc/nccl.conf (initEnv in NCCL's src/misc/param.cc).
    """
    named = request.get("env", {}).get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
    home = os.environ.get("HOME") or os.path.expanduser("~")
    texts = []
    for path in (named or home + "/.nccl.conf", root + "/etc/nccl.conf"):
        try:
            with open(path, "rb") as file:
                texts.append(file.read(65536).decode("utf-8", "backslashreplace"))
        except OSError as error:
            if error.errno not in (2, 20):  # absent is an answer, forbidden is not
                raise
    # A text in the answer is bounded at 4096 characters, a file of variables need not be.
    return [[line for line in text.splitlines() if "=" in line][:500] for text in texts]


def spaces(request, root):
    return {"shm": lambda: space(root + "/dev/shm"), "tmp": lambda: space(root + "/tmp")}


def work(request, root):
    directory, script = request.get("chdir", ""), request.get("script", "")
    directory = directory or os.getcwd()
    return {
        "chdir": lambda: file_fact(directory),
        "script": lambda: file_fact(os.path.join(directory, script)) if script else NO_FILE,
    }


def home(request, root):
    return {"cache": cache, "nccl_conf": lambda: configurations(request, root)}


def questions(request, root):
    # `__name__` tells which of the three parts this is.
    part = __name__.rpartition("_")[2]
    return {"spaces": spaces, "work": work, "home": home}[part](request, root).items()
