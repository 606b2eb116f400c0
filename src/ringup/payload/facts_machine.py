"""The machine and what confines the job's shell on it: cgroup limits, memory, kernel settings; files only."""

import os


def read(path, most=65536):
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "backslashreplace")


def read_or(path, default=""):
    """A file that may well be absent; one that is forbidden or broken still raises."""
    try:
        return read(path).strip()
    except (FileNotFoundError, NotADirectoryError):
        return default


def cgroups(root):
    """
    Controller -> directories of this process's cgroup and all above it, innermost first.

    Version 2 is the controller "" (one hierarchy for all); see cgroups(7).  In a container the
    path may be the machine's, of which nothing is mounted: the mount's own top is what counts then.
    """
    found = {}
    for line in read(root + "/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(",") if names else [""]:
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
    """Numbers in a file of each cgroup, None where there is no limit."""
    found = []
    for place in places:
        words = read_or(place + "/" + name).split()
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


def memory_of(groups):
    # Without a limit version 1 says 2^63 less a page.
    found = limits_in(groups.get("", []), "memory.max")
    found += limits_in(groups.get("memory", []), "memory.limit_in_bytes")
    numbers = [row[0] for row in found if row[0] < 1 << 60]
    return min(numbers) if numbers else None


def processes_of(groups):
    found = limits_in(groups.get("", []), "pids.max") + limits_in(groups.get("pids", []), "pids.max")
    return min(row[0] for row in found) if found else None


def oom_kills_of(groups):
    """
    Of this very cgroup, not of those above it, which other jobs share; nothing of the machine's top.

    Where nothing of the path is there but the mount's top, that is this cgroup: docker's under version 1.
    """
    count = 0
    for name, file in (("", "memory.events"), ("memory", "memory.oom_control")):
        places = groups.get(name, [])
        there = [place for place in places if os.path.isdir(place)]
        for place in there if len(there) == 1 else places[:1]:
            for line in read_or(place + "/" + file).splitlines():
                if line.startswith("oom_kill "):
                    count += int(line.split()[1])
    return count


def kind_of_container(root):
    """The file or variable that each container runtime leaves in its containers."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") or os.path.isdir(root + "/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    if os.path.exists(root + "/.dockerenv"):
        return "docker"
    if os.path.exists(root + "/run/.containerenv"):
        return "podman"
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    # systemd writes down what its manager's container= said; see the CONTAINER_INTERFACE page.
    named = os.environ.get("container") or read_or(root + "/run/systemd/container")
    return named[:40]


def container(root):
    groups = cgroups(root)
    paths = read_or(root + "/proc/self/cgroup")
    return {
        "kind": kind_of_container(root),
        "cpus": cpus_of(groups),
        "memory_bytes": memory_of(groups),
        "processes": processes_of(groups),
        "oom_kills": oom_kills_of(groups),
        "has_login_session": "/session-" in paths or "/user@" in paths,
    }


def memory(root):
    total = used = kills = 0
    counters = read(root + "/proc/vmstat").splitlines()
    for line in read_or(root + "/proc/swaps").splitlines()[1:]:  # absent in a kernel without swap
        fields = line.split()
        if len(fields) >= 4 and "/zram" not in fields[0]:  # that is memory, not a disk
            total += int(fields[-3]) * 1024
            used += int(fields[-2]) * 1024
    for line in counters:
        if line.startswith("oom_kill "):
            kills = int(line.split()[1])
    return {
        "swap_total_bytes": total,
        "swap_used_bytes": used,
        "stalled_share": stalled(root),
        "oom_kills": kills,
    }


def stalled(root):
    try:
        text = read(root + "/proc/pressure/memory")
    except OSError:  # psi=0 answers "not supported"
        return None
    for word in text.split("\n")[0].split():
        if word.startswith("avg60="):
            return float(word[6:]) / 100.0
    return None


def numa(root):
    base = root + "/sys/devices/system"
    # A kernel without NUMA has no such folder.
    names = os.listdir(base + "/node") if "node" in os.listdir(base) else ["node0"]
    return {
        "nodes": len([n for n in names if n.startswith("node") and n[4:].isdigit()]),
        "is_balancing": read_or(root + "/proc/sys/kernel/numa_balancing", "0") != "0",
    }


def remove_ipc(root):
    """
    The setting of systemd-logind as logind.conf(5) orders its files, "" where nothing sets it.

    "no" where systemd is not the init, as sd_booted(3) tells: nobody removes anything then.
    """
    if not os.path.isdir(root + "/run/systemd/system"):
        return "no"
    found = {}
    for place in ("/usr/lib/systemd", "/run/systemd", "/etc/systemd"):
        try:
            names = os.listdir(root + place + "/logind.conf.d")
        except OSError:
            names = []
        for name in names:
            if name.endswith(".conf"):
                found[name] = root + place + "/logind.conf.d/" + name
    value = ""
    for path in [root + "/etc/systemd/logind.conf"] + [found[n] for n in sorted(found)]:
        for line in read_or(path).splitlines():
            name, equals, text = line.partition("=")
            if equals and name.strip() == "RemoveIPC":
                value = text.strip().lower()
    return value


def lingers(root):
    """Whether systemd keeps the user's manager, and the IPC, without any login (`loginctl enable-linger`)."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    return bool(name) and "/" not in name and os.path.exists(root + "/var/lib/systemd/linger/" + name)


def ptrace_scope(root):
    if not os.path.isdir(root + "/proc/sys/kernel"):
        raise OSError("/proc/sys/kernel is not there")
    return int(read_or(root + "/proc/sys/kernel/yama/ptrace_scope", "0"))


def product(root):
    """Vendor and model as the firmware tells them: on clouds that is the kind of instance."""
    base = root + "/sys/class/dmi/id/"
    return " ".join(p for p in (read_or(base + "sys_vendor"), read_or(base + "product_name")) if p)


def ofed(root):
    """Version of the vendor's RDMA drivers; the kernel's own carry none, and "" is told."""
    for name in ("mlx_compat", "mlx5_core", "mlx4_core"):
        version = read_or(root + "/sys/module/" + name + "/version")
        if version:
            return version
    return ""


def questions(request, root):
    yield "container", lambda: container(root)
    yield "memory", lambda: memory(root)
    yield "numa", lambda: numa(root)
    yield "ptrace_scope", lambda: ptrace_scope(root)
    yield "remove_ipc", lambda: "no" if lingers(root) else remove_ipc(root)
    yield "product", lambda: product(root)
    yield "ofed", lambda: ofed(root)
