"""
GPUs: the driver's files and the answers of nvidia-smi.

All nvidia-smi queries run in parallel under one deadline, which is shorter than that of this part; a query
that hangs does not delay the others.  The lines are sent unchanged: parse/gpus.py reads them.
"""

import os
import time

from ringup.agent.proc.command import command, wait, which
from ringup.agent.proc.files import listed, numbered, pause, text
from ringup.agent.proc.process import moves

FIELDS = (
    "index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used",
    "clocks_throttle_reasons.active", "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending",
    "remapped_rows.failure", "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count",
    "retired_pages.pending", "mig.mode.current", "compute_mode", "power.limit", "temperature.gpu",
    "pcie.link.width.current", "pcie.link.width.max", "fabric.state", "fabric.status", "gpu_recovery_action",
)  # fmt: skip
"""Fields that `nvidia-smi --help-query-gpu` of releases 590 to 610 lists; older ones lack the last few."""
RENAMED = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}
"""The first name is known to every release so far, the second one since 535."""
REFUSED = "is not a valid field to query"
NO_DEVICES = "No devices were found"
MOST_REFUSED = 10
STUCK_LOOK_S = 0.6
"""
While a driver initializes GPUs, its process sleeps uninterruptibly for moments, and so does every process
that waits for its lock.  The kernel is stuck only if none of the queries makes progress.
"""
MOST_LINES = 6000
PEER_MEMORY = (
    ("nvidia_peermem", "/sys/module/nvidia_peermem"),
    ("nv_peer_mem", "/sys/module/nv_peer_mem"),
    ("nv_mem", "/sys/kernel/mm/memory_peers/nv_mem/version"),
    ("nv_mem_nc", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"),
)
"""Kernel modules and files that let NICs reach GPU memory; NCCL before 2.23 checks only the last two."""


def answer_of(child):
    """The lines that a command printed, and whether it ended."""
    # Tabs and the underline of `topo -m` would not survive in the answer.
    text = child.output().replace("\x1b[4m", "").replace("\x1b[0m", "").replace("\t", " ")
    silent_s = 0.0 if child.status is not None else time.monotonic() - child.began
    lines = text.splitlines()[:MOST_LINES]
    return {"lines": lines, "status": child.status, "silent_s": silent_s, "stuck": child.stuck}


def run_until(running, end):
    """Run these children until all have ended, or abandon them at `end`."""
    late = wait(running, end)
    before = [moves(child.pid) for child in late]
    stuck = bool(late) and None not in before
    if stuck:
        pause(STUCK_LOOK_S)
        stuck = [moves(child.pid) for child in late] == before
    for child in late:
        child.give_up(stuck)


def query(tool, fields):
    return command([tool, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"])


def nvidia_smi(tool, several, seconds):
    """Query name -> answer; and the fields of the last query."""
    end = time.monotonic() + seconds
    words = {
        "apps": ["--query-compute-apps=gpu_uuid,pid,used_memory,name", "--format=csv,noheader,nounits"],
        "nvlink": ["nvlink", "--status"],
        "nvlink_errors": ["nvlink", "-e"],
    }
    if several:
        words["peers"] = ["topo", "-p2p", "r"]
        words["matrix"] = ["topo", "-m"]
    fields, refused = list(FIELDS), []
    running = {name: command([tool] + rest) for name, rest in words.items()}
    running["gpus"] = query(tool, fields)
    run_until(running.values(), end)
    while len(refused) < MOST_REFUSED and time.monotonic() < end:
        # Its error about one field that it does not know replaces the whole answer.
        before, is_refused, _ = running["gpus"].output().partition(REFUSED)
        field = before.strip().rpartition(" ")[2].strip('"')
        if not running["gpus"].status or not is_refused or field not in fields:
            break
        if field in RENAMED:
            fields[fields.index(field)] = RENAMED[field]
        else:
            fields.remove(field)
            refused.append(field)
        running["gpus"] = query(tool, fields)
        run_until([running["gpus"]], end)
    answers = {name: answer_of(child) for name, child in running.items()}
    return {"outputs": answers, "fields": fields, "refused": refused}


def lost(root, answered):
    """GPUs that the driver has and nvidia-smi does not list, without those whose device file is hidden."""
    found = []
    base = root + "/proc/driver/nvidia/gpus"
    for bus in listed(base):
        # nvidia-smi writes the PCI domain with eight digits, the driver's files with four.
        if bus.lower()[-10:] in answered:
            continue
        lines = text("%s/%s/information" % (base, bus)).splitlines()
        minor = dict(line.partition(":")[::2] for line in lines).get("Device Minor", "").strip()
        if not minor.isdigit():
            continue
        try:
            os.close(os.open("%s/dev/nvidia%s" % (root, minor), os.O_RDWR | os.O_NONBLOCK))
        except OSError as error:
            if error.errno in (1, 2, 6, 13):
                continue
        found.append(bus.lower())
    return found


def fabric_manager(root):
    """Whether nv-fabricmanager runs; "hidden" if this process table is not the machine's."""
    for pid in numbered(root + "/proc"):
        # The kernel keeps only 15 characters of a name.
        if text("%s/proc/%d/comm" % (root, pid)).startswith("nv-fabricmanag"):
            return "running"
    return "absent" if text(root + "/proc/2/comm") == "kthreadd" else "hidden"


def nvidia(root, seconds):
    """All facts of the NVIDIA driver; None without one."""
    version = text(root + "/proc/driver/nvidia/version")
    if not version and not os.path.exists(root + "/dev/nvidiactl") and not os.path.exists(root + "/dev/dxg"):
        return None
    tool = which("nvidia-smi")
    names = listed(root + "/proc/driver/nvidia/gpus")
    answer = nvidia_smi(tool, len(names) != 1, seconds) if tool else {}
    lines = answer["outputs"]["gpus"]["lines"] if answer else []
    at = FIELDS.index("pci.bus_id")
    answered = [row.split(",")[at].strip().lower()[-10:] for row in lines if row.count(",") > at]
    none = any(NO_DEVICES in line for line in lines)
    answer["lost"] = lost(root, answered) if answered or none else []
    answer["version"] = version.splitlines()[:1]
    answer["peer_memory"] = [name for name, path in PEER_MEMORY if os.path.exists(root + path)]
    answer["fabric_manager"] = fabric_manager(root)
    return answer


def kernel_log(root):
    """Lines about Xid and SXid in the kernel's log, and the machine's uptime."""
    path = root + "/dev/kmsg"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise OSError("the kernel log is hidden in this container: check on the host")
    except PermissionError:
        restricted = text(root + "/proc/sys/kernel/dmesg_restrict") == "1"
        because = "kernel.dmesg_restrict is 1" if restricted else "/dev/kmsg may not be read"
        raise OSError("the kernel log needs root (%s)" % because)
    found, rest, end = [], b"", time.monotonic() + 2.0
    while time.monotonic() < end:
        try:
            block = os.read(fd, 65536)
        except BlockingIOError:
            break
        except BrokenPipeError:  # the next record has been overwritten
            continue
        if not block:
            break
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        found += [line for line in lines if b"Xid (" in line]
    os.close(fd)
    up = text(root + "/proc/uptime").split()
    kept = [line.decode("utf-8", "replace")[:500] for line in found[-500:]]
    return {"lines": kept, "uptime_s": float(up[0]) if up else 0.0}


def questions(request, root):
    seconds = request["limits"]["gpu"] * 0.8
    yield "nvidia", lambda: nvidia(root, seconds)
    driven = bool(text(root + "/proc/driver/nvidia/version"))
    yield "kernel", lambda: kernel_log(root) if driven else None
    yield "amd", lambda: os.path.exists(root + "/dev/kfd")
