"""Files of /proc, /sys and others: bounded, and absent ones read as nothing."""

import os
import select


def pause(seconds):
    """Sleep; not by time.sleep, which fails under libfaketime (Debian 12) with EINVAL."""
    select.select([], [], [], seconds)


def read(path, most=65536):
    """The file's first bytes; b"" when it is gone or not ours to read."""
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
    """What a small file holds, stripped; "" where it cannot be read, as sysfs answers for what is not set."""
    return read(path, most).decode("utf-8", "backslashreplace").strip()


def required(path, most=65536):
    """The same of a file that is always there; raises OSError where it is not."""
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "backslashreplace").strip()


def optional(path, default=""):
    """The same of a file that may well be absent; one that is forbidden or broken still raises."""
    try:
        return required(path)
    except (FileNotFoundError, NotADirectoryError):
        return default


def link(path):
    """Where a link leads; "" where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def integer(text, base=10):
    """The whole number that a text is; 0 for anything else."""
    try:
        return int(text, base)
    except ValueError:
        return 0


def numbers(path, names):
    """`name value` lines of a file of /proc: name -> number."""
    found = {}
    for line in text(path, 1 << 20).splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) > 1 and fields[0] in names and fields[1].isdigit():
            found[fields[0]] = int(fields[1])
    return found


def listed(path):
    """Names in a directory, sorted; none where it is gone or not ours."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def numbered(path):
    """The names there that are numbers, rising: processes, descriptors, ports."""
    return sorted(int(name) for name in listed(path) if name.isdigit())


def paired(path, head):
    """Of a file like /proc/net/snmp: the names in the first line with this head -> numbers of the second."""
    lines = [line.split() for line in text(path).splitlines() if line.startswith(head)]
    return {name: integer(value) for name, value in zip(*lines[:2])}


def traffic():
    """Interface -> bytes it has received and sent, in this network namespace."""
    rows = [line.partition(":")[::2] for line in text("/proc/net/dev", 1 << 20).splitlines()[2:]]
    counts = {name.strip(): rest.split() for name, rest in rows}
    return {name: (int(own[0]), int(own[8])) for name, own in counts.items() if len(own) > 8}


def space(path):
    """The file system below a directory."""
    st = os.statvfs(path)
    return {
        "path": path,
        "total_bytes": st.f_blocks * st.f_frsize,
        "free_bytes": st.f_bavail * st.f_frsize,
        "read_only": bool(st.f_flag & 1),
    }


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
