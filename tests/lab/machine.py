"""What a lab needs of this machine: namespaces entered, its processes read, its leftovers swept."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = Path("/run/ringup-lab")
TOOLS = ("ip", "nft", "tc", "ss", "ssh", "sshd", "ssh-keygen", "tini", "nc", "ping", "nsenter", "unshare")
PACKAGES = "openssh-server openssh-client iproute2 nftables tini netcat-openbsd iputils-ping procps"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEWPID = 0x20000000  # CLONE_NEWPID of <linux/sched.h>
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def missing() -> str:
    """Why no lab can be built on this machine; empty when one can."""
    if sys.platform != "linux":
        return "needs Linux namespaces"
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in TOOLS if not which(tool)]
    if absent:
        return f"needs {', '.join(absent)} (Debian: {PACKAGES})"
    spaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]
    tried = subprocess.run(
        [*spaces, "ip", "link", "add", "name", "lab0", "type", "bridge"], capture_output=True, text=True
    )
    return f"namespaces are not permitted: {tried.stderr.strip()[:200]}" if tried.returncode else ""


def which(tool: str) -> str | None:
    """A program's path; sshd and nft lie in sbin, which a user's PATH may lack."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


@dataclass(frozen=True)
class Process:
    """One process on a host."""

    pid: int
    """As this machine numbers it (good for `os.kill` here)."""
    host_pid: int
    """As the host itself numbers it."""
    ppid: int
    """As this machine numbers it."""
    state: str
    """One letter of proc(5); Z is a zombie."""
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)

    def mentions(self, text: str) -> bool:
        """Whether its command or a `NAME=value` of its environment holds the text."""
        return text in " ".join(self.command) or any(text in f"{k}={v}" for k, v in self.environ.items())


def processes_of(init_pid: int) -> Iterator[Process]:
    """Every process in the PID namespace of `init_pid`."""
    space = Path(f"/proc/{init_pid}/ns/pid").stat().st_ino
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError):  # it ended meanwhile
            if (path / "ns/pid").stat().st_ino == space:
                yield _process(path)


def _process(path: Path) -> Process:
    status = _status(path)
    environ = (path / "environ").read_bytes().decode(errors="replace").split("\0")
    return Process(
        pid=int(path.name),
        host_pid=int(status["NSpid"].split()[-1]),
        ppid=int(status["PPid"]),
        state=status["State"][0],
        command=tuple((path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]),
        environ=dict(word.split("=", 1) for word in environ if "=" in word),
    )


def _status(path: Path) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines() if ":\t" in line)


def children_of(pid: int) -> dict[int, int]:
    """PID as the lab numbers it -> as this machine does, for the children of `pid`."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = _status(path)
            if int(status["PPid"]) == pid:
                found[int(status["NSpid"].split()[1])] = int(path.name)
    return found


@contextlib.contextmanager
def children_join(pid: int) -> Iterator[None]:
    """This thread's children are born in the PID namespace of `pid`: no process stands between."""
    own, other = os.open("/proc/self/ns/pid", os.O_RDONLY), os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        if _libc.setns(other, NEWPID) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        _libc.setns(own, NEWPID)
        os.close(own)
        os.close(other)


def finish(
    child: subprocess.Popen[str], argv: Sequence[str], timeout_s: float, text: str | None, check: bool
) -> subprocess.CompletedProcess[str]:
    """A child's end and output; past `timeout_s` its whole session is killed and TimeoutExpired raised."""
    try:
        out, err = child.communicate(text, timeout=timeout_s)
    except BaseException as exc:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a grandchild may hold the pipe
            out, err = child.communicate(timeout=2)
            if isinstance(exc, subprocess.TimeoutExpired):
                exc.output, exc.stderr = out, err
        raise
    if check and child.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {child.returncode}: {err.strip()[-2000:]}")
    return subprocess.CompletedProcess(argv, child.returncode, out, err)


def kept_paths() -> list[str]:
    """The interpreter, its venv and the checkout: visible on every host, wherever they lie."""
    wanted = sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, CHECKOUT)})
    return [p for p in wanted if not any(p.startswith(f"{other}/") for other in wanted)]


def allow_neighbours(hosts: int) -> None:
    """
    Raise the limits of the neighbour tables, which all hosts share, when they are too low.

    64 hosts that all talk to each other need 4,032 entries; Linux starts with 1,024.
    """
    for family in ("ipv4", "ipv6"):
        for name, each in (("gc_thresh3", 4), ("gc_thresh2", 2)):
            path = Path(f"/proc/sys/net/{family}/neigh/default/{name}")
            if hosts > 16 and path.exists() and int(path.read_text()) < each * hosts * hosts:
                path.write_text(str(each * hosts * hosts))


def locked(state: Path) -> int:
    """A lock on a lab's directory, held while its owner lives."""
    handle = os.open(state / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def sweep() -> None:
    """Remove what killed labs left of their directories; a living one holds its lock."""
    for lock in STATE.glob("*/lock"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)
