"""The node's name and user, the limits and environment of the job's shell; nothing here blocks for long."""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import os
import resource


from ringup.agent.proc.files import numbers, required, user_names
from ringup.agent.proc.process import has_bit
from ringup.secret_names import HIDDEN, is_secret, without_password

PREFIXES = (
    "NCCL_", "GLOO_", "TORCH_", "TORCHELASTIC_", "PET_", "MASTER_", "OMP_", "CUDA_", "HIP_", "ROCR_",
    "RINGUP_", "UCX_", "FI_", "OFI_NCCL_", "OMPI_",
)  # fmt: skip
NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "http_proxy",
    "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR",
    "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS",
    "ACCELERATE_USE_CPU", "DS_ACCELERATOR", "JAX_CPU_COLLECTIVES_IMPLEMENTATION",
)  # fmt: skip
IPC_LOCK = 14
MOST_VARIABLES = 500


def user_name(root):
    uid = os.getuid()
    return user_names(root).get(uid) or os.environ.get("USER") or os.environ.get("LOGNAME") or str(uid)


def environment():
    """Variables that affect a job, as the job's shell has them; values that look secret stay on the node."""
    chosen = {}
    for name, value in sorted(os.environ.items()):
        if not (name in NAMES or name.startswith(PREFIXES)) or len(chosen) >= MOST_VARIABLES:
            continue
        hides = is_secret(name) or is_secret(name, value)
        chosen[name[:200]] = HIDDEN if hides else without_password(value)
    return chosen


def limit(kind):
    """Soft limit; None for unlimited."""
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def locks_freely(root):
    """Whether memory can be locked without a limit: CAP_IPC_LOCK, outside a user namespace."""
    try:
        if [int(n) for n in required(root + "/proc/self/uid_map").split()] != [0, 0, 4294967295]:
            return False
    except OSError:
        return False
    return has_bit("self", "CapEff", IPC_LOCK, root)


def limits(root):
    return {
        "memlock_bytes": limit(resource.RLIMIT_MEMLOCK),
        "locks_freely": locks_freely(root),
        "open_files": limit(resource.RLIMIT_NOFILE),
        "processes": limit(resource.RLIMIT_NPROC),
    }


def memory_bytes(root):
    required(root + "/proc/meminfo")
    return numbers(root + "/proc/meminfo", ("MemTotal",))["MemTotal"] * 1024


def ports(root):
    base = root + "/proc/sys/net/ipv4/"
    first, last = required(base + "ip_local_port_range").split()
    reserved = []
    for piece in required(base + "ip_local_reserved_ports").split(","):
        low, _, high = piece.partition("-")
        if low:
            reserved += range(int(low), min(int(high or low), 65535) + 1)
    return {"ephemeral_first": int(first), "ephemeral_last": int(last), "reserved": reserved[:65536]}


def questions(request, root):
    yield "hostname", socket.gethostname
    yield "boot_id", lambda: required(root + "/proc/sys/kernel/random/boot_id")
    yield "uid", os.getuid
    yield "user", lambda: user_name(root)
    yield "kernel", lambda: os.uname().release
    yield "machine", lambda: os.uname().machine
    yield "cpu_count", lambda: len(os.sched_getaffinity(0))
    yield "memory_bytes", lambda: memory_bytes(root)
    yield "uptime_s", lambda: float(required(root + "/proc/uptime").split()[0])
    yield "limits", lambda: limits(root)
    yield "ports", lambda: ports(root)
    yield "environment", environment
