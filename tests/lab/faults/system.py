"""What surrounds a job on a host: limits of its cgroup, memory, stuck processes, slow paths, its user."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping

from ..cluster import Lab
from .base import done_and_undone, environment, fault

# Mounted and never served: what looks at it waits in the kernel until it is killed.
DEAD_FUSE = """
import ctypes, os, sys, time
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
data = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fd
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", ctypes.c_ulong(0), data):
    raise OSError(ctypes.get_errno(), "mount")
print("mounted", flush=True)
time.sleep(3600)
"""

# Children that have ended and that nobody takes away.
ZOMBIES = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os._exit(0)
print("all", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def instead(lab: Lab, host: str, files: Mapping[str, str]) -> Iterator[None]:
    """Files of /proc or /sys that say something else."""
    with contextlib.ExitStack() as stack:
        for path, text in files.items():
            own = f"/run/instead{path.replace('/', '_')}"
            do = f"printf %s {shlex.quote(text)} > {own}; mount --bind {own} {path}"
            stack.enter_context(done_and_undone(lab, host, do, f"umount -l {path}; rm {own}"))
        yield


@contextlib.contextmanager
def tree(lab: Lab, host: str, top: str, files: Mapping[str, str]) -> Iterator[None]:
    """A folder of /proc or /sys that holds these files and nothing else; None makes a folder."""
    lines = [f"mount -t tmpfs -o mode=755 tmpfs {top}"]
    for name, text in files.items():
        path = shlex.quote(f"{top}/{name}")
        lines.append(f"mkdir -p $(dirname {path}); printf %s {shlex.quote(text)} > {path}")
    with done_and_undone(lab, host, "; ".join(lines), f"umount -l {top}"):
        yield


@contextlib.contextmanager
def running(lab: Lab, host: str, program: str, *words: str) -> Iterator[None]:
    """A Python program on a host that says a word once it is ready."""
    before = {p.pid for p in lab.processes(host)}
    quoted = " ".join(shlex.quote(w) for w in words)
    start = f"python3 -c {shlex.quote(program)} {quoted} </dev/null 2>/run/program.err >/run/program.out &"
    ready = "for try in $(seq 5000); do [ -s /run/program.out ] && exit; sleep 0.01; done"
    lab.sh(host, f"rm -f /run/program.out; ({start}); {ready}; cat /run/program.err; exit 1")
    own = [p for p in lab.processes(host) if p.pid not in before]
    try:
        yield
    finally:
        lab.sh(host, f"kill -KILL {' '.join(str(p.host_pid) for p in own)} 2>/dev/null || true")


@fault("numa-balancing")
def numa_balancing(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host with two memory nodes moves pages between them automatically."""
    files = {"node0/cpulist": "0", "node1/cpulist": "1"}
    with (
        tree(lab, host, "/sys/devices/system/node", files),
        instead(lab, host, {"/proc/sys/kernel/numa_balancing": "1\n"}),
    ):
        yield


@fault("swapping")
def swapping(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host has moved memory to a disk, and tasks wait for it."""
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    pressure = "some avg10=31.00 avg60=22.40 avg300=9.00 total=900000\n"
    swaps = f"{head}/dev/sda2                               partition\t8388604\t\t4194304\t\t-2\n"
    with instead(lab, host, {"/proc/swaps": swaps, "/proc/pressure/memory": pressure}):
        yield


@fault("cgroup-tight")
def cgroup_tight(lab: Lab, host: str = "node1", version: int = 2) -> Iterator[None]:
    """A container or a scheduler gives a host half a CPU and 32 processes."""
    two = {"cpu.max": "50000 100000\n", "memory.max": "max\n", "pids.max": "32\n"}
    one = {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n", "pids/pids.max": "32\n"}
    with tree(lab, host, "/sys/fs/cgroup", one if version == 1 else two):
        yield


@fault("oom-killed")
def oom_killed(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The kernel killed three processes of this container for memory."""
    with tree(lab, host, "/sys/fs/cgroup", {"memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\n"}):
        yield


@fault("counters-of-memory")
def counters_of_memory(lab: Lab, host: str = "node1", oom_kills: int = 3) -> Iterator[None]:
    """A host's memory counters do not change; they are in a file that a test may edit."""
    with instead(lab, host, {"/proc/vmstat": f"pswpin 0\noom_kill {oom_kills}\n"}):
        yield


@fault("zombies")
def zombies(lab: Lab, host: str = "node1", count: int = 60) -> Iterator[None]:
    """Children that have ended and that their parent does not reap."""
    with running(lab, host, ZOMBIES, str(count)):
        yield


@fault("dead-mount")
def dead_mount(lab: Lab, host: str = "node1", path: str = "/run/dead") -> Iterator[None]:
    """A file system whose server never answers."""
    made = not lab.sh(host, f"if [ -d {path} ]; then echo there; else mkdir -p {path}; fi")
    try:
        with running(lab, host, DEAD_FUSE, path):
            yield
    finally:
        lab.sh(host, f"umount -l {path} 2>/dev/null || true" + (f"; rmdir {path}" if made else ""))


@fault("dead-tmpdir")
def dead_tmpdir(lab: Lab, host: str = "node1") -> Iterator[None]:
    """TMPDIR is on a file server that is down."""
    with dead_mount(lab, host), environment(lab, host, TMPDIR="/run/dead"):
        yield


@fault("stuck-process")
def stuck_process(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A process waits in the kernel for a file server that is down."""
    with dead_mount(lab, host):
        lab.sh(host, "(stat /run/dead </dev/null >/dev/null 2>&1 &)")
        waits = "grep -l '^State:.D' /proc/[0-9]*/status"
        lab.sh(host, f"until {waits} 2>/dev/null; do sleep 0.01; done")
        try:
            yield
        finally:
            lab.sh(host, "pkill -KILL -x stat || true")


@fault("full-tmpdir")
def full_tmpdir(lab: Lab, host: str = "node1") -> Iterator[None]:
    """TMPDIR is a separate file system, and full."""
    do = "mkdir /run/scratch; mount -t tmpfs -o size=1m,mode=1777 tmpfs /run/scratch"
    fill = "cat /dev/zero > /run/scratch/full 2>/dev/null || true"
    with (
        done_and_undone(lab, host, f"{do}; {fill}", "umount -l /run/scratch; rmdir /run/scratch"),
        environment(lab, host, TMPDIR="/run/scratch"),
    ):
        yield


@fault("shm-left")
def shm_left(lab: Lab, host: str = "node1", mib: int = 80) -> Iterator[None]:
    """An ended run left a file of torch's in /dev/shm."""
    path = "/dev/shm/torch_99999_1234567890_0"
    with done_and_undone(lab, host, f"head -c {mib}M /dev/zero > {path}", f"rm {path}"):
        yield


@fault("ptrace-forbidden")
def ptrace_forbidden(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The kernel lets no process trace another (kernel.yama.ptrace_scope=3)."""
    # The kernel may have no Yama, and no file can be made in /proc: the folder is covered.
    top = "/proc/sys/kernel"
    keep = f"boot=$(cat {top}/random/boot_id); name=$(cat {top}/hostname)"
    with contextlib.ExitStack() as stack:
        make = (
            f"mkdir {top}/random {top}/yama; echo $boot > {top}/random/boot_id; echo $name > {top}/hostname"
        )
        do = f"{keep}; mount -t tmpfs -o mode=755 tmpfs {top}; {make}; echo 3 > {top}/yama/ptrace_scope"
        stack.enter_context(done_and_undone(lab, host, do, f"umount -l {top}"))
        yield


@fault("remove-ipc")
def remove_ipc(lab: Lab, host: str = "node1") -> Iterator[None]:
    """systemd-logind runs and removes the shared memory of users who log out."""
    folder = "/run/systemd/logind.conf.d"
    do = f"mkdir -p /run/systemd/system {folder}; printf '[Login]\\nRemoveIPC=yes\\n' > {folder}/site.conf"
    with done_and_undone(lab, host, do, "rm -r /run/systemd"):
        yield


@fault("nccl-conf")
def nccl_conf(lab: Lab, host: str = "node1", line: str = "NCCL_SOCKET_NTHREADS=2") -> Iterator[None]:
    """The user's .nccl.conf sets a variable."""
    with done_and_undone(lab, host, f"echo {shlex.quote(line)} > /root/.nccl.conf", "rm /root/.nccl.conf"):
        yield


@fault("rc-prints")
def rc_prints(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A shell's start-up file prints a greeting even without a terminal."""
    with done_and_undone(lab, host, "echo 'echo Welcome to the cluster' > /root/.bashrc", "rm /root/.bashrc"):
        yield


@fault("commits-differ")
def commits_differ(lab: Lab, host: str = "node1", path: str = "/root/project") -> Iterator[None]:
    """The job's directory has another commit checked out on a host."""
    with contextlib.ExitStack() as stack:
        for own in lab.hosts:
            commit = ("b" if own.name == host else "a") * 40
            do = f"mkdir -p {path}/.git; echo {commit} > {path}/.git/HEAD"
            stack.enter_context(done_and_undone(lab, own.name, do, f"rm -r {path}"))
        yield


@fault("script-elsewhere")
def script_elsewhere(lab: Lab, host: str = "node1", path: str = "/root/project") -> Iterator[None]:
    """The job's directory is missing on a host."""
    with contextlib.ExitStack() as stack:
        for own in [h for h in lab.hosts if h.name != host]:
            stack.enter_context(done_and_undone(lab, own.name, f"mkdir {path}", f"rmdir {path}"))
        yield


@fault("torch-with-cuda")
def torch_with_cuda(lab: Lab, version: str = "2.8.0", preload_on: str = "") -> Iterator[None]:
    """PYTHONPATH makes every host use a torch that reports CUDA, and its NCCL."""
    site = "/run/site"
    text = f"__version__ = '{version}'\\ncuda = '12.8'\\n"
    folders = f"{site}/nvidia_nccl_cu12-2.27.3.dist-info {site}/nvidia/nccl/lib {site}/torch"
    # Any library that loads will do: ld.so complains about one that does not.
    copy = "cp $(find /lib /usr/lib -name 'libm.so.6' | head -n 1)"
    do = (
        f'mkdir -p {folders}; touch {site}/torch/__init__.py; printf "{text}" > {site}/torch/version.py;'
        f" {copy} {site}/nvidia/nccl/lib/libnccl.so.2; {copy} /run/libnccl.so.2.18.3"
    )
    with contextlib.ExitStack() as stack:
        for own in lab.hosts:
            stack.enter_context(done_and_undone(lab, own.name, do, f"rm -r {site} /run/libnccl*"))
            preload = {"LD_PRELOAD": "/run/libnccl.so.2.18.3"} if own.name == preload_on else {}
            stack.enter_context(environment(lab, own.name, PYTHONPATH=site, **preload))
        yield


@fault("two-nccl")
def two_nccl(lab: Lab, host: str = "node1") -> Iterator[None]:
    """As torch-with-cuda, and on a host LD_PRELOAD loads another NCCL than that of torch's wheel."""
    with torch_with_cuda(lab, preload_on=host):
        yield


@fault("variables")
def variables(lab: Lab, host: str = "node1", **values: str) -> Iterator[None]:
    """A host's sessions have these variables set (default: NCCL_P2P_DISABLE=1)."""
    with environment(lab, host, **(values or {"NCCL_P2P_DISABLE": "1"})):
        yield


@fault("same-name")
def same_name(lab: Lab, host: str = "node1", name: str = "node0") -> Iterator[None]:
    """A host has the host name of another."""
    own = lab.host(host).name
    with done_and_undone(lab, host, f"hostname {name}", f"hostname {own}"):
        yield


@fault("cloned")
def cloned(lab: Lab, host: str = "node1", of: str = "node0") -> Iterator[None]:
    """A host is a copy of another that was never restarted: the same boot id."""
    boot = lab.sh(of, "cat /proc/sys/kernel/random/boot_id").strip()
    with instead(lab, host, {"/proc/sys/kernel/random/boot_id": f"{boot}\n"}):
        yield


@fault("no-python")
def no_python(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host has neither the venv nor any python on its PATH, nor most other programs."""
    own = lab.host(host)
    before, own.path = own.path, "/run/bin"
    # What no login does without: the shell's own words do the rest.
    do = "mkdir /run/bin; ln -s /bin/sh /bin/cat /run/bin/; python=$(readlink -f /usr/bin/python3)"
    try:
        with done_and_undone(
            lab,
            host,
            f"{do}; mount --bind /dev/null $python",
            "umount -l $(readlink -f /usr/bin/python3); rm -r /run/bin",
        ):
            lab.reload_sshd(own)
            yield
    finally:
        own.path = before
        lab.reload_sshd(own)


@fault("blind")
def blind(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host's sessions cannot see /proc and /sys."""
    # sshd itself goes on: it needs neither once it listens.
    do = "mount -t tmpfs -o mode=755 tmpfs /sys; mount -t tmpfs -o mode=755 tmpfs /proc"
    # umount(8) wants /proc itself.
    call = "import ctypes; c = ctypes.CDLL(None); exit(c.umount2(b'/proc', 2) or c.umount2(b'/sys', 2))"
    with done_and_undone(lab, host, do, f'python3 -c "{call}"'):
        yield


@fault("ordinary-user")
def ordinary_user(lab: Lab, name: str = "ada", uid: int = 4242) -> Iterator[None]:
    """Every host has an ordinary user, who may log in to every other host as root may."""
    home = f"/run/{name}"
    with contextlib.ExitStack() as stack:
        for own in lab.hosts:
            entry = f"{name}:*:{uid}:{uid}::{home}:/bin/bash"
            do = (
                f"mkdir -p {home}/.ssh; cp -r /root/.ssh/. {home}/.ssh; chown -R {uid}:{uid} {home};"
                f" chmod 700 {home}/.ssh; cp /etc/passwd /run/passwd; echo '{entry}' >> /run/passwd;"
                " chmod 644 /run/passwd; mount --bind /run/passwd /etc/passwd"
            )
            undo = f"umount -l /etc/passwd; rm -r {home} /run/passwd"
            stack.enter_context(done_and_undone(lab, own.name, do, undo))
        yield
