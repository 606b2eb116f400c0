"""
GPUs: what the driver's files say, and what nvidia-smi (or rocm-smi) answers.

All questions to nvidia-smi run side by side under one deadline of their own, within that of this part;
one that hangs takes no other along.  Lines are sent as they came: parse/gpus.py reads them.
"""

import os
import select
import time

FIELDS = (
    "index", "name", "uuid", "pci.bus_id", "memory.total", "memory.used", "clocks.sm", "clocks.max.sm",
    "clocks_throttle_reasons.active", "ecc.errors.uncorrected.volatile.total", "remapped_rows.pending",
    "remapped_rows.failure", "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count",
    "retired_pages.pending", "mig.mode.current", "compute_mode", "power.limit", "temperature.gpu",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "vbios_version", "compute_cap", "fabric.state", "fabric.status", "gpu_recovery_action",
)  # fmt: skip
"""As `nvidia-smi --help-query-gpu` of releases 590 to 610 lists them; older ones lack the last few."""
RENAMED = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}
"""The first name is known to every release so far, the second since 535."""
REFUSED = "is not a valid field to query"
NO_DEVICES = "No devices were found"
MOST_REFUSED = 10
STUCK_LOOK_S = 0.6
"""
A driver that starts GPUs sleeps uninterruptibly for moments, and who waits for its lock all the while: the
kernel is stuck only where none of those that ask moves.
"""
MOST_LINES = 6000
MOST_BYTES = 1 << 20
PEER_MEMORY = (
    ("nvidia_peermem", "/sys/module/nvidia_peermem"),
    ("nv_peer_mem", "/sys/module/nv_peer_mem"),
    ("nv_mem", "/sys/kernel/mm/memory_peers/nv_mem/version"),
    ("nv_mem_nc", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"),
)
"""What lets NICs reach GPU memory and where that shows; NCCL before 2.23 looks at the last two alone."""
REMAPPED = ("remapped_rows.pending", "remapped_rows.failure")
"""Older releases tell these under --query-remapped-rows only."""


def read(path, most=4096):
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def listed(path):
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def which(name):
    for directory in (os.environ.get("RU_PATH") or os.environ.get("PATH", os.defpath)).split(":"):
        found = os.path.abspath(os.path.join(directory or ".", name))
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return ""


class Command:
    """One program, running; its output and how it ended."""

    def __init__(self, words):
        self.data, self.status, self.began, self.stuck = b"", None, time.monotonic(), False
        self.fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(write_end, 1)
                os.dup2(write_end, 2)
                os.execv(words[0], words)
            finally:
                os._exit(127)
        os.close(write_end)

    def read(self):
        """A chunk of its answer; True once it is over."""
        block = os.read(self.fd, 65536)
        self.data += block
        if block and len(self.data) < MOST_BYTES:
            return False
        os.close(self.fd)
        if block:
            os.kill(self.pid, 9)
        status = os.waitpid(self.pid, 0)[1]
        self.status = status >> 8 if not status & 127 else 128 + (status & 127)
        return True

    def give_up(self, stuck):
        """Too late."""
        self.stuck = stuck
        os.close(self.fd)
        os.kill(self.pid, 9)
        # What is in uninterruptible sleep is left to the kernel.
        os.waitpid(self.pid, os.WNOHANG)

    def text(self):
        return self.data.decode("utf-8", "replace")

    def told(self):
        # Tabs and the underline of `topo -m` would not survive as they are.
        text = self.text().replace("\x1b[4m", "").replace("\x1b[0m", "").replace("\t", " ")
        silent_s = 0.0 if self.status is not None else time.monotonic() - self.began
        lines = text.splitlines()[:MOST_LINES]
        return {"lines": lines, "status": self.status, "silent_s": silent_s, "stuck": self.stuck}


def run_until(running, end):
    """Let all of these (name -> Command) come to their end, or give them up at `end`."""
    waiting = {command.fd: command for command in running.values()}
    while waiting:
        left = end - time.monotonic()
        ready = select.select(list(waiting), [], [], max(0.0, left))[0] if left > 0 else []
        if not ready and left <= 0:
            break
        for fd in ready:
            if waiting[fd].read():
                del waiting[fd]
    late = list(waiting.values())
    before = [moves(command.pid) for command in late]
    stuck = bool(late) and None not in before
    if stuck:
        select.select([], [], [], STUCK_LOOK_S)
        stuck = [moves(command.pid) for command in late] == before
    for command in late:
        command.give_up(stuck)


def moves(pid):
    """How often a process has left the processor; None unless it sleeps where no signal reaches it."""
    if read("/proc/%d/stat" % pid).rpartition(")")[2].split()[:1] != ["D"]:
        return None
    return [line for line in read("/proc/%d/status" % pid, 1 << 16).splitlines() if "_switches:" in line]


def refused_field(command):
    """The field this nvidia-smi does not know: it names one and answers nothing else."""
    text = command.text()
    if command.status and REFUSED in text:
        return text.partition(REFUSED)[0].strip().rpartition(" ")[2].strip('"')
    return ""


def query(tool, fields):
    return Command([tool, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"])


def nvidia_smi(tool, several, seconds):
    """Name of a question -> what was said to it, with the fields that were asked in the end."""
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
    running = {name: Command([tool] + rest) for name, rest in words.items()}
    running["gpus"] = query(tool, fields)
    run_until(running, end)
    while len(refused) < MOST_REFUSED and time.monotonic() < end:
        field = refused_field(running["gpus"])
        if field not in fields:
            break
        if field in RENAMED:
            fields[fields.index(field)] = RENAMED[field]
        else:
            fields.remove(field)
            refused.append(field)
        running["gpus"] = query(tool, fields)
        run_until({"gpus": running["gpus"]}, end)
    if REMAPPED[0] in refused and time.monotonic() < end:
        asked = "--query-remapped-rows=gpu_bus_id," + ",".join(REMAPPED)
        running["remapped"] = Command([tool, asked, "--format=csv,noheader,nounits"])
        run_until({"remapped": running["remapped"]}, end)
        if running["remapped"].status == 0:
            refused = [field for field in refused if field not in REMAPPED]
    told = {name: command.told() for name, command in running.items()}
    return {"told": told, "fields": fields, "refused": refused}


def lost(root, answered):
    """
    GPUs the driver has and nvidia-smi does not list, though this user may open their device file.

    One whose file is absent or forbidden is hidden from us (a container, a scheduler's cgroup), not lost.
    """
    found = []
    base = root + "/proc/driver/nvidia/gpus"
    for bus in listed(base):
        # nvidia-smi writes the domain with eight digits, the driver's files with four.
        if bus.lower()[-10:] in answered:
            continue
        about = dict(
            line.partition(":")[::2] for line in read("%s/%s/information" % (base, bus)).splitlines()
        )
        minor = about.get("Device Minor", "").strip()
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
    """Whether nv-fabricmanager runs; "hidden" where this is not the machine's own list of processes."""
    for number in listed(root + "/proc"):
        # The kernel keeps 15 characters of a name.
        if number.isdigit() and read("%s/proc/%s/comm" % (root, number)).startswith("nv-fabricmanag"):
            return "running"
    return "absent" if read(root + "/proc/2/comm") == "kthreadd" else "hidden"


def nvidia(root, seconds):
    """All of the NVIDIA driver's; None where there is none."""
    version = read(root + "/proc/driver/nvidia/version")
    if not version and not os.path.exists(root + "/dev/nvidiactl") and not os.path.exists(root + "/dev/dxg"):
        return None
    tool = which("nvidia-smi")
    names = listed(root + "/proc/driver/nvidia/gpus")
    answer = nvidia_smi(tool, len(names) != 1, seconds) if tool else {}
    lines = answer["told"]["gpus"]["lines"] if answer else []
    at = FIELDS.index("pci.bus_id")
    answered = [row.split(",")[at].strip().lower()[-10:] for row in lines if row.count(",") > at]
    none = any(NO_DEVICES in line for line in lines)
    answer["lost"] = lost(root, answered) if answered or none else []
    answer["version"] = version.splitlines()[:1]
    answer["peer_memory"] = [name for name, path in PEER_MEMORY if os.path.exists(root + path)]
    answer["fabric_manager"] = fabric_manager(root)
    return answer


def amd(root, seconds):
    """rocm-smi's answer; None where there is no AMD compute device."""
    if not os.path.exists(root + "/dev/kfd"):
        return None
    tool = which("rocm-smi")
    if not tool:
        raise OSError("AMD GPUs are here, and no rocm-smi on PATH that could tell of them")
    words = [tool, "--showproductname", "--showbus", "--showmeminfo", "vram", "--json"]
    running = {"amd": Command(words)}
    run_until(running, time.monotonic() + seconds)
    return running["amd"].told()


def kernel_log(root):
    """Lines about Xid and SXid in the kernel's log, and how long the machine has been up."""
    path = root + "/dev/kmsg"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise OSError("the kernel log is not shown here (a container): look on the machine itself")
    except PermissionError:
        restricted = read(root + "/proc/sys/kernel/dmesg_restrict") == "1"
        because = "kernel.dmesg_restrict is 1" if restricted else "/dev/kmsg may not be read"
        raise OSError("the kernel log needs root (%s)" % because)
    found, rest, end = [], b"", time.monotonic() + 2.0
    while time.monotonic() < end:
        try:
            block = os.read(fd, 65536)
        except BlockingIOError:
            break
        except BrokenPipeError:  # what was next has been overwritten
            continue
        if not block:
            break
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        found += [line for line in lines if b"Xid (" in line]
    os.close(fd)
    up = read(root + "/proc/uptime").split()
    kept = [line.decode("utf-8", "replace")[:500] for line in found[-500:]]
    return {"lines": kept, "uptime_s": float(up[0]) if up else 0.0}


def questions(request, root):
    seconds = request["limits"]["gpu"] * 0.8
    yield "nvidia", lambda: nvidia(root, seconds)
    driven = bool(read(root + "/proc/driver/nvidia/version"))
    yield "kernel", lambda: kernel_log(root) if driven else None
    yield "amd", lambda: amd(root, seconds * 0.5)
