"""
Build the namespaces of one lab and hold them until told to end.

A program, not a module: `python init.py STATE_DIR`, run by `Lab` with a pipe on stdin.  It ends, and
with it every host, when that pipe closes or after `ttl_s`, whichever is first.

    this process                 stays outside, waits, removes STATE_DIR
    `- fabric                    PID 1 of the lab: own network (the switches), mount and PID namespace
       |- node0                  PID 1 of a host: network, mount, UTS, IPC and PID namespaces
       `- node1                  ... nested, so the kernel ends every process of a lab with its fabric
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

# From <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>; the same on every architecture.
NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    """A libc call by its name; its errno as OSError."""
    words = [os.fsencode(a) if isinstance(a, (str, Path)) else a for a in args]
    if getattr(libc, name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}({', '.join(map(str, args))}): {os.strerror(number)}")


def mount(source, target, kind=None, flags=0, data=None):
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def die_with_parent():
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(argv, text=""):
    """Run one command to its end; what it printed becomes the error when it fails."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()[:2000]}")


def private_mounts():
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")


def cover(target, keep, stage):
    """A fresh tmpfs on `target`, with the (source, path) pairs of `keep` that lie below it bound into it."""
    mode = "1777" if target in ("/tmp", "/dev/shm") else "755"
    mount("tmpfs", stage, "tmpfs", data=f"mode={mode}")
    for source, path in keep:
        if Path(target) in Path(path).parents:
            below = stage / Path(path).relative_to(target)
            below.mkdir(parents=True, exist_ok=True)
            mount(source, below, flags=MS_BIND | MS_REC)
    mount(stage, target, flags=MS_MOVE)


def furnish(host, state, keep):
    """Everything that the host sees as its own: name, /proc, /sys, /etc, /root, /tmp, /run, /dev/shm."""
    private_mounts()
    call("sethostname", host["name"], len(host["name"].encode()))
    stage, own = state / "stage", state / host["name"]
    mount("sysfs", stage, "sysfs")
    if Path("/sys/fs/cgroup").is_dir():
        mount("/sys/fs/cgroup", stage / "fs/cgroup", flags=MS_BIND | MS_REC)
    mount(stage, "/sys", flags=MS_MOVE)
    for path in (own / "etc").iterdir():
        mount(path, Path("/etc") / path.name, flags=MS_BIND)
    mount(own / "boot_id", "/proc/sys/kernel/random/boot_id", flags=MS_BIND)
    kept = [(path, path) for path in keep] + [(own / "ssh", "/root/.ssh")]
    for target in ("/root", "/dev/shm", "/tmp", "/run"):  # /run last: it hides `state`
        cover(target, kept, stage)
    Path("/run/sshd").mkdir()


def start_sshd(command):
    """sshd leaves for the background before it listens, and writes its PID file after (OpenSSH sshd.c)."""
    run(command)
    end = time.monotonic() + 60
    while not Path("/run/sshd.pid").exists():
        if time.monotonic() > end:
            raise OSError("sshd does not listen")
        time.sleep(0.002)


def set_sysctls(values):
    for name, value in values.items():
        path = Path("/proc/sys") / name
        if path.exists():
            path.write_text(str(value))


def be_host(host, spec, state, go, ready):
    """PID 1 of a host: furnish it, wait until its cables are there, start sshd, become tini."""
    die_with_parent()
    call("unshare", NEWNS | NEWUTS | NEWIPC)
    furnish(host, state, spec["keep"])
    run(
        [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            host["name"],
            "-f",
            "/etc/ssh/ssh_host_ed25519_key",
        ]
    )
    set_sysctls(spec["sysctl"])
    os.read(go, 1)
    run(["ip", "-batch", "-"], host["batch"])
    start_sshd([spec["sshd"]])
    os.chdir("/root")
    os.write(ready, b"1")
    os.execvp("tini", ["tini", "--", "sleep", "infinity"])


def be_fabric(spec, state):
    """PID 1 of the lab: fork the hosts, lay the cables, then wait for the end."""
    die_with_parent()
    call("unshare", NEWNS)
    private_mounts()
    set_sysctls(spec["sysctl"])
    own_net, own_pid = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/self/ns/pid", os.O_RDONLY)
    go, cables_laid = os.pipe()
    ready, tell_ready = os.pipe()
    pids = {}
    for host in spec["hosts"]:
        # Before the fork, so that both are there when it returns.  Only from one's own PID namespace can
        # another be made.
        call("setns", own_pid, NEWPID)
        call("unshare", NEWPID | NEWNET)
        pid = os.fork()
        if pid == 0:
            os.close(cables_laid)
            os.close(ready)
            be_host(host, spec, state, go, tell_ready)
        pids[host["name"]] = pid
    call("setns", own_net, NEWNET)
    call("setns", own_pid, NEWPID)
    os.close(tell_ready)
    batch = spec["fabric"]
    run(
        ["ip", "-batch", "-"],
        "\n".join(" ".join(str(pids[w[1:]]) if w[:1] == "@" else w for w in line.split()) for line in batch),
    )
    set_sysctls({f"net/ipv4/conf/{link}/forwarding": 1 for link in spec["forwarding"]})
    os.write(cables_laid, b"1" * len(pids))
    up = 0
    while up < len(pids):
        got = len(os.read(ready, 4096))
        if not got:
            raise OSError("a host did not come up")
        up += got
    print(json.dumps(pids), flush=True)
    os.close(1)
    end = time.monotonic() + spec["ttl_s"]
    while (left := end - time.monotonic()) > 0:
        if select.select([0], [], [], left)[0] and not os.read(0, 4096):
            break


def end_visitors():
    """End what entered the fabric from outside (ssh's ProxyCommand): it would keep the switches alive."""
    fabric = Path("/proc/self/ns/net").stat().st_ino
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) != os.getpid() and (path / "ns/net").stat().st_ino == fabric:
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            pass  # it ended meanwhile


def main():
    state = Path(sys.argv[1])
    spec = json.loads((state / "spec.json").read_text())
    call("unshare", NEWNET | NEWPID)
    pid = os.fork()
    if pid == 0:
        be_fabric(spec, state)
        os._exit(0)
    print(pid, flush=True)
    os.close(1)
    os.waitpid(pid, 0)
    end_visitors()
    shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # In a forked child the parent's clean-up must not run, and a host must not live on half made.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
