"""One host's own trouble: taken ports, stale runs, limits, small or full disks, clock, environment."""

from __future__ import annotations

import contextlib
import resource
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..cluster import Lab
from .base import done_and_undone, environment, fault

# Where Debian's package puts it; found by what faketime(1) itself preloads.
LIBFAKETIME = "faketime/libfaketime.so.1"

# libfaketime 0.9.10 makes clock_nanosleep() to a monotonic deadline, which is time.sleep(), fail with
# EINVAL when it leaves the monotonic clock alone; without time.sleep() no torchrun lives.
SLEEP_WITHOUT_NANOSLEEP = (
    "import select, time\ntime.sleep = lambda s: select.select([], [], [], s) and None\n"
)

STALE_TRAINING = """
import os, socket, time
listener = socket.create_server(("", int(os.environ["MASTER_PORT"])), backlog=64)
kept = []
while True:
    kept.append(listener.accept())
"""


@contextlib.contextmanager
def _listening(lab: Lab, host: str, port: int, argv: Sequence[str], env: dict[str, str]) -> Iterator[None]:
    """A process on a host whose parent is the host's init; returns when it listens."""
    before = {process.pid for process in lab.processes(host)}
    # The shell goes and its child stays: an orphan, as every leftover of a run is.
    lab.run(host, ["sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *argv], env=env, check=True)
    left = [process for process in lab.processes(host) if process.pid not in before]
    try:
        there = f"ss -Hltn sport = :{port} | grep -q ."
        lab.sh(host, f"until {there}; do sleep 0.01; done")
        yield
    finally:
        pids = " ".join(str(process.host_pid) for process in left)
        lab.sh(host, f"while kill -KILL {pids} 2>/dev/null; do sleep 0.01; done")


@fault("port-busy")
def port_busy(lab: Lab, host: str = "node0", port: int = 29500) -> Iterator[None]:
    """A program that is not a training run listens on a port."""
    with _listening(lab, host, port, ["nc", "-lk", str(port)], {}):
        yield


@fault("stale-run")
def stale_run(lab: Lab, host: str = "node0", port: int = 29500) -> Iterator[None]:
    """A rank of an earlier run was left behind and holds the port."""
    env = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": lab.host(host).address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
    }
    lab.run(
        host,
        ["sh", "-ec", "mkdir -p /root/earlier; cat > /root/earlier/train.py"],
        text=STALE_TRAINING,
        check=True,
    )
    try:
        with _listening(lab, host, port, [sys.executable, "-u", "/root/earlier/train.py"], env):
            yield
    finally:
        lab.sh(host, "rm -r /root/earlier")


@fault("small-shm")
def small_shm(lab: Lab, host: str = "node1", size: str = "64k") -> Iterator[None]:
    """/dev/shm holds 64 kB, as in a container without --shm-size."""
    do = f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm"
    with done_and_undone(lab, host, do, "umount -l /dev/shm"):
        yield


@fault("full-tmp")
def full_tmp(lab: Lab, host: str = "node1") -> Iterator[None]:
    """/tmp is full."""
    # The host's own /tmp is made small, not covered: this checkout and its Python may lie below it.
    do = "mount -o remount,size=64k /tmp; cat /dev/zero > /tmp/full 2>/dev/null || true"
    with done_and_undone(lab, host, do, "rm /tmp/full; mount -o remount,size=50% /tmp"):
        yield


def sshd_of(lab: Lab, host: str) -> int:
    """The process id of a host's sshd out here."""
    own = lab.host(host)
    number = int(Path(f"/proc/{own.pid}/root/run/sshd.pid").read_text())
    return next(p.pid for p in lab.everything(own) if p.host_pid == number)


@contextlib.contextmanager
def _limited(lab: Lab, host: str, kind: int, value: int) -> Iterator[None]:
    """A soft limit of sshd, and so of every session that it starts from now on."""
    sshd = sshd_of(lab, host)
    before = resource.prlimit(sshd, kind)
    # The hard limit stays: to raise it again needs CAP_SYS_RESOURCE, which root in a container lacks.
    resource.prlimit(sshd, kind, (value, before[1]))
    try:
        yield
    finally:
        resource.prlimit(sshd, kind, before)


@fault("low-nofile")
def low_nofile(lab: Lab, host: str = "node1", value: int = 64) -> Iterator[None]:
    """An ssh session may open 64 files."""
    with _limited(lab, host, resource.RLIMIT_NOFILE, value):
        yield


@fault("low-memlock")
def low_memlock(lab: Lab, host: str = "node1", value_bytes: int = 65536) -> Iterator[None]:
    """An ssh session may lock 64 kB of memory and cannot raise that (no CAP_IPC_LOCK)."""
    own = lab.host(host)
    own.command = 'exec setpriv --bounding-set -ipc_lock /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    lab.reload_sshd(own)
    try:
        with _limited(lab, host, resource.RLIMIT_MEMLOCK, value_bytes):
            yield
    finally:
        own.command = ""
        lab.reload_sshd(own)


@fault("clock")
def clock(lab: Lab, host: str = "node1", ahead_s: int = 90) -> Iterator[None]:
    """A host's clock is 90 s ahead in every process that a session on it starts."""
    library = next(Path("/usr/lib").glob(f"**/{LIBFAKETIME}"), None)
    if library is None:
        raise RuntimeError("the clock fault needs faketime (Debian: faketime)")
    patch = shlex.quote(SLEEP_WITHOUT_NANOSLEEP)
    lab.sh(host, f"mkdir -p /run/clock; printf %s {patch} > /run/clock/sitecustomize.py")
    # Only what the time of day is: deadlines on the monotonic clock must stay what they are.
    with environment(
        lab,
        host,
        PYTHONPATH="/run/clock",
        LD_PRELOAD=str(library),
        FAKETIME=f"{ahead_s:+d}s",
        DONT_FAKE_MONOTONIC="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        NO_FAKE_STAT="1",
    ):
        yield


@fault("ifname-absent")
def ifname_absent(
    lab: Lab, host: str = "node1", variable: str = "GLOO_SOCKET_IFNAME", value: str = "eth7"
) -> Iterator[None]:
    """A host's sessions have GLOO_SOCKET_IFNAME set to an interface that does not exist."""
    with environment(lab, host, **{variable: value}):
        yield
