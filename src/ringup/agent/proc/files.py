"""Files of /proc, /sys and others: reads are bounded, and an absent file reads as empty."""

import os
import select


def pause(seconds):
    """Sleep; time.sleep fails with EINVAL under libfaketime (Debian 12)."""
    select.select([], [], [], seconds)


def read(path, most=65536):
    """The file's first bytes; b"" if it is gone or we may not read it."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = piece = file.read(most) or b""
            while piece and len(data) < most:
                piece = file.read(most - len(data)) or b""
                data += piece
            return data
    except OSError:
        return b""


def text(path, most=65536):
    """Content of a small file, stripped; "" if unreadable (sysfs fails so for unset values)."""
    return read(path, most).decode("utf-8", "backslashreplace").strip()


def required(path, most=65536):
    """Content of a file that always exists; raises OSError if it does not."""
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "backslashreplace").strip()


def optional(path, default=""):
    """Content of a file that may be absent; raises if it is forbidden or broken."""
    try:
        return required(path)
    except (FileNotFoundError, NotADirectoryError):
        return default


def link(path, folder=None):
    try:
        return os.readlink(path, dir_fd=folder)
    except OSError:
        return ""


def integer(text, base=10):
    """A whole number; 0 for other text."""
    try:
        return int(text, base)
    except ValueError:
        return 0


def numbers(path, names):
    """`name value` lines of a file in /proc: name -> number."""
    found = {}
    for line in text(path, 1 << 20).splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) > 1 and fields[0] in names and fields[1].isdigit():
            found[fields[0]] = int(fields[1])
    return found


def listed(path):
    """Names in a directory, sorted; empty if it is gone or we may not read it."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def numbered(path):
    """Names in a directory that are numbers, ascending: processes, descriptors, ports."""
    return sorted(int(name) for name in listed(path) if name.isdigit())


def paired(path, head):
    """For a file like /proc/net/snmp: the names in the first line with this head -> numbers of the second."""
    lines = [line.split() for line in text(path).splitlines() if line.startswith(head)]
    return {name: integer(value) for name, value in zip(*lines[:2])}


def traffic(pid="self"):
    """Interface -> bytes received and sent, in the network namespace of a process."""
    rows = [line.partition(":")[::2] for line in text("/proc/%s/net/dev" % pid, 1 << 20).splitlines()[2:]]
    counts = {name.strip(): rest.split() for name, rest in rows}
    return {name: (int(own[0]), int(own[8])) for name, own in counts.items() if len(own) > 8}


def space(path):
    """Space of the file system of a directory."""
    st = os.statvfs(path)
    return {
        "path": path,
        "total_bytes": st.f_blocks * st.f_frsize,
        "free_bytes": st.f_bavail * st.f_frsize,
        "read_only": bool(st.f_flag & 1),
    }


SHM_NAMES = ("nccl-", "torch_", "sem.mp-", "sem.loky-")
"""In /dev/shm: NCCL's buffers, torch's tensors, semaphores of Python's multiprocessing and of joblib."""


def maker(path):
    """The pid in the name of a file in /dev/shm: torch_PID_..., sem.loky-PID-...; None for other names."""
    name = os.path.basename(path)
    for begin, end in (("torch_", "_"), ("sem.loky-", "-")):
        if name.startswith(begin):
            return integer(name[len(begin) :].partition(end)[0])
    return None


def passwd(root=""):
    """uid -> fields of /etc/passwd, the first line of each; a directory server might not answer."""
    lines = [line.split(":") for line in text(root + "/etc/passwd", 1 << 20).splitlines()]
    return {int(fields[2]): fields for fields in reversed(lines) if len(fields) > 5 and fields[2].isdigit()}


def user_names(root=""):
    return {uid: fields[0] for uid, fields in passwd(root).items()}
