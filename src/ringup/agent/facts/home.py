"""The user's own files: the cache directory and NCCL's configuration."""

import os

from ringup.agent.proc.files import optional, passwd, space

ROOM_BYTES = 16 << 20
"""A run stores its program and environment there; a detached run also stores its journal."""


def usable(path):
    """The free space under a directory that this user owns or can create, else None."""
    parent = path
    while not os.path.isdir(parent) and len(parent) > 1:
        parent = os.path.dirname(parent)
    try:
        # Another user may have created the directory under /tmp first, to read the files written there.
        if os.path.lexists(path) and (os.lstat(path).st_uid != os.getuid() or not os.path.isdir(path)):
            return None
        found = dict(space(parent), path=path)
    except OSError:
        return None
    return None if found["read_only"] or not os.access(parent, os.W_OK | os.X_OK) else found


def cache():
    """The first of three places with enough room, else the first writable one."""
    home = os.environ.get("HOME") or os.path.expanduser("~")
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if base.startswith("/") else home + "/.cache"
    name = "ringup-%d" % os.getuid()
    places = list(filter(None, map(usable, (base + "/ringup", "/dev/shm/" + name, "/tmp/" + name))))
    return next((p for p in places if p["free_bytes"] >= ROOM_BYTES), places[0] if places else None)


def configurations(request, root):
    """
    [[source, lines], ...] of the files NCCL may read; the first one takes precedence.

    "named" is NCCL_CONF_FILE; "passwd" and "home" are .nccl.conf in the home directory of /etc/passwd and in
    $HOME (NCCL's release decides which one counts); then "system".
    """
    named = request.get("env", {}).get("NCCL_CONF_FILE") or os.environ.get("NCCL_CONF_FILE")
    entry, variable = passwd_home(root), os.environ.get("HOME", "")
    places = [("named", named), ("passwd", entry and entry + "/.nccl.conf")]
    places += [("home", variable and variable + "/.nccl.conf"), ("system", root + "/etc/nccl.conf")]
    # A text in the answer has at most 4096 characters; a file of variables may be longer.
    return [
        [source, [line for line in optional(path).splitlines() if "=" in line][:500]]
        for source, path in places
        if path
    ]


def passwd_home(root):
    """Home directory from /etc/passwd, else the system's answer if a directory server knows the user."""
    known = passwd(root).get(os.getuid())
    if known:
        return known[5]
    import pwd  # may query a directory server; this part may be slow

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def questions(request, root):
    yield "cache", cache
    yield "nccl_conf", lambda: configurations(request, root)
