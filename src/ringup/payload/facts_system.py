"""Who the node and its user are, the job shell's limits and environment: nothing here can block for long."""

import os
import resource

try:
    import _socket as socket  # the C half: `import socket` costs 8 ms more
except ImportError:
    import socket


PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "TORCHELASTIC_",
    "PET_",
    "MASTER_",
    "OMP_",
    "CUDA_",
    "HIP_",
    "ROCR_",
    "RINGUP_",
    "UCX_",
    "FI_",
    "OFI_NCCL_",
    "OMPI_",
)
NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "http_proxy",
    "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR",
)  # fmt: skip
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"
IPC_LOCK = 14
MOST_VARIABLES = 500


def read(path, most=65536):
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "backslashreplace")


def user_name(uid, root):
    """From /etc/passwd alone: a directory server that does not answer must not hold us up."""
    try:
        for line in read(root + "/etc/passwd", 1 << 20).splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2] == str(uid):
                return fields[0]
    except OSError:
        pass
    if uid == os.getuid():
        return os.environ.get("USER") or os.environ.get("LOGNAME") or str(uid)
    return str(uid)


def without_password(value):
    """http://user:password@proxy -> http://(hidden)@proxy."""
    head, found, tail = value.partition("://")
    if found and "@" in tail.split("/")[0]:
        return head + found + HIDDEN + "@" + tail.partition("@")[2]
    return value


def environment():
    """Variables that steer a job, as the job's shell has them; secret-looking values stay on the node."""
    chosen = {}
    for name, value in sorted(os.environ.items()):
        if not (name in NAMES or name.startswith(PREFIXES)) or len(chosen) >= MOST_VARIABLES:
            continue
        secret = any(word in name.upper() for word in SECRETS)
        chosen[name[:200]] = HIDDEN if secret else without_password(value)
    return chosen


def limit(kind):
    """Soft limit; None is unlimited."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def locks_freely(root):
    """
    Whether locked memory is not limited whatever the limit says (capabilities(7), CAP_IPC_LOCK).

    Not root of a user namespace of its own: the kernel asks for the right on the machine.
    """
    try:
        if [int(n) for n in read(root + "/proc/self/uid_map").split()] != [0, 0, 4294967295]:
            return False
        for line in read(root + "/proc/self/status").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> IPC_LOCK & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def limits(root):
    return {
        "memlock_bytes": limit(resource.RLIMIT_MEMLOCK),
        "locks_freely": locks_freely(root),
        "open_files": limit(resource.RLIMIT_NOFILE),
        "processes": limit(resource.RLIMIT_NPROC),
    }


def memory_bytes(root):
    for line in read(root + "/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo has no MemTotal")


def ports(root):
    base = root + "/proc/sys/net/ipv4/"
    first, last = read(base + "ip_local_port_range").split()
    reserved = []
    for piece in read(base + "ip_local_reserved_ports").strip().split(","):
        low, _, high = piece.partition("-")
        if low:
            reserved += range(int(low), min(int(high or low), 65535) + 1)
    return {"ephemeral_first": int(first), "ephemeral_last": int(last), "reserved": reserved[:65536]}


def questions(request, root):
    yield "hostname", socket.gethostname
    yield "boot_id", lambda: read(root + "/proc/sys/kernel/random/boot_id").strip()
    yield "uid", os.getuid
    yield "user", lambda: user_name(os.getuid(), root)
    yield "kernel", lambda: os.uname().release
    yield "machine", lambda: os.uname().machine
    yield "cpu_count", lambda: len(os.sched_getaffinity(0))
    yield "memory_bytes", lambda: memory_bytes(root)
    yield "uptime_s", lambda: float(read(root + "/proc/uptime").split()[0])
    yield "limits", lambda: limits(root)
    yield "ports", lambda: ports(root)
    yield "environment", environment
