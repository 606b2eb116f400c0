"""The machine and the limits of the job's shell: cgroups, memory, space, shared memory, settings."""

import os
import time

from ringup.agent.proc import files, process
from ringup.agent.proc.files import listed, maker, numbers, optional, required, space, text, user_names

MOST_SHM = 200
UNLIMITED = 1 << 60
"""Version 1 of cgroups writes nearly 2^63 for "no limit"."""

MARKS = (
    ("kubernetes", "KUBERNETES_SERVICE_HOST", "/var/run/secrets/kubernetes.io"),
    ("docker", "/.dockerenv"),
    ("podman", "/run/.containerenv"),
    ("apptainer", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"),
)


def cgroups(root):
    """
    Controller -> directories of this process's cgroup and all above it, innermost first.

    Version 2 has the controller "" (one hierarchy for all); see cgroups(7).  In a container the path may be
    the machine's path, which is not mounted there: then the top of the mount counts.
    """
    found = {}
    required(root + "/proc/self/cgroup")
    for names, path in process.cgroups("self", root).items():
        for name in names.split(","):
            if name.startswith("name="):
                continue
            top = root + "/sys/fs/cgroup" + ("/" + name if name else "")
            if not name and os.path.isdir(top + "/unified"):
                top += "/unified"
            places, at = [], path.rstrip("/")
            while at:
                places.append(top + at)
                at = at.rpartition("/")[0]
            found[name] = places + [top]
    return found


def limits_in(places, name):
    """Numbers in one file of each cgroup, None for no limit."""
    found = []
    for place in places:
        words = optional(place + "/" + name).split()
        if words and words[0] not in ("max", "-1"):
            found.append([int(w) for w in words])
    return found


def cpus_of(groups):
    quotas = [row[0] / float(row[1]) for row in limits_in(groups.get("", []), "cpu.max") if len(row) > 1]
    for place in groups.get("cpu", []):
        quota = limits_in([place], "cpu.cfs_quota_us")
        period = limits_in([place], "cpu.cfs_period_us")
        if quota and period and quota[0][0] > 0 and period[0][0] > 0:
            quotas.append(quota[0][0] / float(period[0][0]))
    return min(quotas) if quotas else None


def least(groups, *files):
    """The smallest limit in these files (controller, name), None for no limit."""
    rows = [row for controller, name in files for row in limits_in(groups.get(controller, []), name)]
    return min((row[0] for row in rows if row[0] < UNLIMITED), default=None)


def memory_left(root):
    """Bytes that this process's cgroups may still use, None without a limit; file cache counts as free."""
    groups, left = cgroups(root), []
    for name, limit, usage, cache in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for place in groups.get(name, []):
            rows = limits_in([place], limit) + limits_in([place], usage)
            if len(rows) == 2 and rows[0][0] < UNLIMITED:
                cached = numbers(place + "/memory.stat", (cache,)).get(cache, 0)
                left.append(max(0, rows[0][0] - rows[1][0] + cached))
    return min(left, default=None)


def oom_kills_of(groups):
    """
    Of this cgroup, not of those above it, which other jobs share; never of the machine's root cgroup.

    If only the top of the mount exists, it is this cgroup (docker's under version 1).
    """
    count = 0
    for name, file in (("", "memory.events"), ("memory", "memory.oom_control")):
        places = groups.get(name, [])
        there = [place for place in places if os.path.isdir(place)]
        for place in there if len(there) == 1 else places[:1]:
            count += numbers(place + "/" + file, ("oom_kill",)).get("oom_kill", 0)
    return count


def kind_of_container(root):
    """The file or variable that each container runtime leaves in its containers."""
    for kind, *marks in MARKS:
        if any(os.path.exists(root + mark) if "/" in mark else os.environ.get(mark) for mark in marks):
            return kind
    # systemd stores the `container=` of its container manager; see the CONTAINER_INTERFACE page.
    named = os.environ.get("container") or optional(root + "/run/systemd/container")
    return named[:40]


def container(root):
    groups = cgroups(root)
    paths = optional(root + "/proc/self/cgroup")
    return {
        "kind": kind_of_container(root),
        "cpus": cpus_of(groups),
        "memory_bytes": least(groups, ("", "memory.max"), ("memory", "memory.limit_in_bytes")),
        "processes": least(groups, ("", "pids.max"), ("pids", "pids.max")),
        "oom_kills": oom_kills_of(groups),
        "has_login_session": "/session-" in paths or "/user@" in paths,
    }


def memory(root):
    total = used = 0
    for line in optional(root + "/proc/swaps").splitlines()[1:]:  # absent in a kernel without swap
        fields = line.split()
        if len(fields) >= 4 and "/zram" not in fields[0]:  # swap space in memory, not on a disk
            total += int(fields[-3]) * 1024
            used += int(fields[-2]) * 1024
    required(root + "/proc/vmstat")
    return {
        "swap_total_bytes": total,
        "swap_used_bytes": used,
        "stalled_share": stalled(root),
        "oom_kills": numbers(root + "/proc/vmstat", ("oom_kill",)).get("oom_kill", 0),
    }


def stalled(root):
    line = text(root + "/proc/pressure/memory").partition("\n")[0]  # psi=0 answers "not supported"
    shares = [word[6:] for word in line.split() if word.startswith("avg60=")]
    return float(shares[0]) / 100.0 if shares else None


def numa(root):
    base = root + "/sys/devices/system"
    # A kernel without NUMA has no such folder.
    names = os.listdir(base + "/node") if "node" in os.listdir(base) else ["node0"]
    return {
        "nodes": len([n for n in names if n.startswith("node") and n[4:].isdigit()]),
        "is_balancing": optional(root + "/proc/sys/kernel/numa_balancing", "0") != "0",
    }


def remove_ipc(root):
    """RemoveIPC from logind.conf(5)'s files, in their order; "" if unset; "no" if the init is not systemd."""
    if not os.path.isdir(root + "/run/systemd/system"):
        return "no"
    found = {}
    for place in ("/usr/lib/systemd", "/run/systemd", "/etc/systemd"):
        for name in listed(root + place + "/logind.conf.d"):
            if name.endswith(".conf"):
                found[name] = root + place + "/logind.conf.d/" + name
    value = ""
    for path in [root + "/etc/systemd/logind.conf"] + [found[n] for n in sorted(found)]:
        for line in optional(path).splitlines():
            name, equals, setting = line.partition("=")
            if equals and name.strip() == "RemoveIPC":
                value = setting.strip().lower()
    return value


def lingers(root):
    """Whether systemd keeps the user's manager and IPC objects without a login (`loginctl enable-linger`)."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    return bool(name) and "/" not in name and os.path.exists(root + "/var/lib/systemd/linger/" + name)


def ptrace_scope(root):
    if not os.path.isdir(root + "/proc/sys/kernel"):
        raise OSError("/proc/sys/kernel is not there")
    return int(optional(root + "/proc/sys/kernel/yama/ptrace_scope", "0"))


def product(root):
    """Vendor and model from the firmware; on clouds that is the instance type."""
    base = root + "/sys/class/dmi/id/"
    return " ".join(p for p in (optional(base + "sys_vendor"), optional(base + "product_name")) if p)


def owner(name, root):
    """Whether the process that made a file lives, if the file's name has its pid."""
    pid = maker(name)
    if not pid:
        return "unknown"
    return "lives" if os.path.exists("%s/proc/%d" % (root, pid)) else "gone"


def shm_files(root):
    """A job's files in shared memory; only `ringup clean` checks which processes use them."""
    found, known = [], user_names(root)
    for name in os.listdir(root + "/dev/shm"):
        if not name.startswith(files.SHM_NAMES):
            continue
        try:
            st = os.lstat(root + "/dev/shm/" + name)
        except OSError:
            continue  # gone meanwhile
        age_s = max(0.0, time.time() - max(st.st_mtime, st.st_ctime))
        user, size = known.get(st.st_uid, str(st.st_uid)), st.st_blocks * 512
        found.append(
            {"name": name, "size_bytes": size, "user": user, "age_s": age_s, "owner": owner(name, root)}
        )
    return sorted(found, key=lambda f: -f["size_bytes"])[:MOST_SHM]


def questions(request, root):
    yield "container", lambda: container(root)
    yield "memory", lambda: memory(root)
    yield "numa", lambda: numa(root)
    yield "ptrace_scope", lambda: ptrace_scope(root)
    yield "remove_ipc", lambda: "no" if lingers(root) else remove_ipc(root)
    yield "product", lambda: product(root)
    yield "shm", lambda: space(root + "/dev/shm")
    yield "tmp", lambda: space(root + "/tmp")
    yield "shm_files", lambda: shm_files(root)
