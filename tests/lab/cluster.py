"""A cluster of N hosts on this one machine: namespaces, veth cables, bridges and a real sshd on each."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import wiring
from .wiring import Nic, Port

CHECKOUT = Path(__file__).resolve().parents[2]
STATE = Path("/run/ringup-lab")
TOOLS = ("ip", "nft", "tc", "ss", "ssh", "sshd", "ssh-keygen", "tini", "nc", "ping", "nsenter", "unshare")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MINIMAL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What a non-interactive ssh command finds: the venv is not on it ("torchrun: command not found")."""
NEWPID = 0x20000000  # CLONE_NEWPID of <linux/sched.h>
# A machine's own defaults must not show in the hosts: new network namespaces inherit them.
SYSCTL = {
    "net/ipv4/ip_forward": 0,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/tcp_mtu_probing": 0,
    "net/ipv6/conf/all/disable_ipv6": 0,
    "net/ipv6/conf/default/disable_ipv6": 0,
    "net/ipv6/conf/default/accept_dad": 0,
}
_libc = ctypes.CDLL(None, use_errno=True)


@functools.cache
def missing() -> str:
    """Why no lab can be built on this machine; empty when one can."""
    if sys.platform != "linux":
        return "needs Linux namespaces"
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in TOOLS if not _which(tool)]
    if absent:
        return f"needs {', '.join(absent)} (Debian: openssh-server iproute2 nftables tini netcat-openbsd iputils-ping)"
    tried = subprocess.run(
        [
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "ip",
            "link",
            "add",
            "b",
            "type",
            "bridge",
        ],
        capture_output=True,
        text=True,
    )
    return f"namespaces are not permitted: {tried.stderr.strip()[:200]}" if tried.returncode else ""


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


@dataclass(frozen=True)
class Process:
    """One process on a host."""

    pid: int
    """As this machine numbers it (good for `os.kill` here)."""
    host_pid: int
    """As the host itself numbers it."""
    ppid: int
    state: str
    """One letter of proc(5); Z is a zombie."""
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)


@dataclass
class Host:
    """One host of a lab."""

    name: str
    ports: list[Port]
    state: Path
    pid: int = 0
    """Its init, as this machine numbers it."""
    env: dict[str, str] = field(default_factory=dict)
    """What sessions on it find set, beside PATH; written by `Lab.write_sshd`."""
    path: str = MINIMAL_PATH
    """PATH of its non-interactive ssh commands."""

    @property
    def address(self) -> str:
        """Its first card's address."""
        return self.ports[0].address

    @property
    def addresses(self) -> dict[str, str]:
        """Card name -> IPv4 address."""
        return {port.name: port.address for port in self.ports}

    def port(self, nic: str | None = None) -> Port:
        """A card by name or by switch; the first without one."""
        if nic is None:
            return self.ports[0]
        return next(p for p in self.ports if nic in (p.name, p.switch))

    def etc(self, name: str) -> Path:
        """A file of its /etc, to be edited in place (a rename would not be seen)."""
        return self.state / "etc" / name

    @property
    def ssh_dir(self) -> Path:
        """Its /root/.ssh."""
        return self.state / "ssh"


class Lab:
    """
    N hosts that live until the `with` block ends, the process ends, or `ttl_s` has passed.

    `hosts`: how many (node0, node1, ...) or their names.  `net`: the first host's address on the data
    network.  `nics`: all cards, instead of the one `net` gives.  `mgmt`: a first card `eno1` with this
    address, through which ssh goes; names still mean the data network.  `docker0`: Docker's bridge on
    every host.  `venv_on_path`: ssh commands find this interpreter's programs.  `names`: the switch whose
    addresses the host names stand for.
    """

    def __init__(
        self,
        hosts: int | Sequence[str] = 2,
        net: str = "10.0.0.10/24",
        *,
        nics: Sequence[Nic] | None = None,
        mgmt: str = "",
        docker0: bool = False,
        venv_on_path: bool = False,
        names: str = "",
        ttl_s: float = 900,
    ) -> None:
        cards = list(nics) if nics is not None else [Nic(address=net)]
        if mgmt:
            cards.append(Nic("eno1", mgmt, "mgmt"))
        host_names = [f"node{n}" for n in range(hosts)] if isinstance(hosts, int) else list(hosts)
        self.docker0, self.ttl_s = docker0, ttl_s
        self.names_switch = names or cards[0].switch
        self.ssh_switch = "mgmt" if mgmt else cards[0].switch
        STATE.mkdir(mode=0o700, exist_ok=True)
        _sweep()
        self.state = Path(tempfile.mkdtemp(dir=STATE, prefix=f"{os.getpid()}-"))
        self._lock = _locked(self.state)
        path = f"{sys.prefix}/bin:{MINIMAL_PATH}" if venv_on_path else MINIMAL_PATH
        ports = wiring.plug(host_names, cards)
        self.hosts = [Host(name, ports[name], self.state / name, path=path) for name in host_names]
        self.ssh_config = self.state / "ssh_config"
        self.pid = 0
        self._init: subprocess.Popen[str] | None = None
        self._faults = contextlib.ExitStack()
        try:
            self._build(ports)
        except BaseException:
            self.close()
            raise

    # --- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process, namespace and cable of the lab; may be called twice."""
        init, self._init = self._init, None
        if init is None:
            return
        assert init.stdin is not None
        init.stdin.close()  # this is the order to end
        try:
            init.wait(30)
        except subprocess.TimeoutExpired:
            init.kill()
            init.wait()
        if init.stdout is not None:
            init.stdout.close()
        shutil.rmtree(self.state, ignore_errors=True)
        os.close(self._lock)

    def _build(self, ports: dict[str, list[Port]]) -> None:
        fabric, batches = (
            wiring.fabric_batch(ports),
            {h.name: wiring.host_batch(h.ports, ports) for h in self.hosts},
        )
        for position, host in enumerate(self.hosts):
            self._write_host(host)
            if self.docker0:
                outer, own = wiring.docker0_batch(host.name, position)
                fabric += outer
                batches[host.name] += own
        spec = {
            "ttl_s": self.ttl_s,
            "sshd": _which("sshd"),
            "sysctl": SYSCTL,
            "keep": _kept_paths(),
            "fabric": fabric,
            "forwarding": [p.fabric_end for own in ports.values() for p in own if p.routed],
            "hosts": [{"name": h.name, "batch": "\n".join(batches[h.name])} for h in self.hosts],
        }
        (self.state / "stage").mkdir()
        (self.state / "spec.json").write_text(json.dumps(spec))
        _allow_neighbours(len(self.hosts))
        with tempfile.TemporaryFile("w+") as log:
            self._init = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(self.state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PATH": f"{SYSTEM_PATH}"},
                start_new_session=True,  # Ctrl-C in `lab shell` is for the shell
            )
            self._write_keys()
            assert self._init.stdout is not None
            first, second = self._init.stdout.readline(), self._init.stdout.readline()
            if not second:
                self._init.wait(30)
                log.seek(0)
                raise RuntimeError(f"the lab did not come up: {log.read()}")
        self.pid = int(first)
        outer = _children_of(self.pid)
        for host in self.hosts:
            host.pid = outer[json.loads(second)[host.name]]
        self.write_known_hosts()
        self._own = {host.name: {p.pid for p in self._all_processes(host)} for host in self.hosts}

    # --- files ------------------------------------------------------------------------------------

    def _write_host(self, host: Host) -> None:
        (host.state / "etc/ssh").mkdir(parents=True)
        host.ssh_dir.mkdir(mode=0o700)
        (host.state / "boot_id").write_text(f"{uuid.uuid4()}\n")
        known = "".join(f"{h.port(self.names_switch).address} {h.name}\n" for h in self.hosts)
        known += "".join(f"{p.address} {h.name}-{p.switch}\n" for h in self.hosts for p in h.ports)
        host.etc("hosts").write_text(f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{known}")
        host.etc("hostname").write_text(f"{host.name}\n")
        # Without these two a machine's own resolver or nss-myhostname would answer what we made unknown.
        host.etc("nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")
        if Path("/etc/resolv.conf").exists():
            host.etc("resolv.conf").write_text("")
        (host.state / "etc/ssh/sshd_config").write_text(self._sshd_config(host))

    def _sshd_config(self, host: Host) -> str:
        words = {"PATH": host.path, **host.env}
        environment = " ".join(f'"{name}={value}"' for name, value in words.items())
        lines = [
            "HostKey /etc/ssh/ssh_host_ed25519_key",
            "PidFile /run/sshd.pid",
            "AuthorizedKeysFile .ssh/authorized_keys",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "UseDNS no",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 100:30:200",
            "MaxSessions 100",
            "AcceptEnv LANG LC_*",
            "Subsystem sftp internal-sftp",
            f"SetEnv {environment}",
        ]
        return "\n".join(lines) + "\n"

    def _write_keys(self) -> None:
        """One client key for every host and for outside; each host may log in to each."""
        key = self.state / "id_ed25519"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key)], check=True
        )
        public = key.with_suffix(".pub").read_text()
        inside = "BatchMode yes\nIdentityFile /root/.ssh/id_ed25519\n" + self._host_names()
        for host in self.hosts:
            shutil.copy(key, host.ssh_dir / "id_ed25519")
            (host.ssh_dir / "authorized_keys").write_text(public)
            (host.ssh_dir / "config").write_text(inside)
            (host.ssh_dir / "known_hosts").write_text("")
        self.ssh_config.write_text(
            self._host_names()
            + f"Host *\n  BatchMode yes\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            + f"  UserKnownHostsFile {self.state}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            + f"  ProxyCommand nsenter --net={self.state}/net nc -N %h %p\n"
        )
        (self.state / "net").symlink_to("/dev/null")

    def _host_names(self) -> str:
        return "".join(f"Host {h.name}\n  HostName {h.port(self.ssh_switch).address}\n" for h in self.hosts)

    def write_known_hosts(self) -> None:
        """Every host's key under its name and addresses, for every host and for outside."""
        (self.state / "net").unlink()
        (self.state / "net").symlink_to(f"/proc/{self.pid}/ns/net")
        lines = []
        for host in self.hosts:
            key = (host.state / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2]
            lines.append(f"{','.join([host.name, *host.addresses.values()])} {' '.join(key)}\n")
        for path in self.known_hosts_files():
            path.write_text("".join(lines))

    def known_hosts_files(self) -> list[Path]:
        """Outside's, then each host's own."""
        return [self.state / "known_hosts", *(host.ssh_dir / "known_hosts" for host in self.hosts)]

    # --- commands ---------------------------------------------------------------------------------

    def host(self, host: str | int | Host) -> Host:
        """A host by itself, its name or its number."""
        if isinstance(host, Host):
            return host
        return self.hosts[host] if isinstance(host, int) else next(h for h in self.hosts if h.name == host)

    def _environment(self, host: Host, env: Mapping[str, str] | None) -> list[str]:
        """A user logged in with the venv active."""
        words = {
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            "VIRTUAL_ENV": sys.prefix,
            "PATH": f"{sys.prefix}/bin:{SYSTEM_PATH}",
            **host.env,
            **(env or {}),
        }
        return [f"{name}={value}" for name, value in words.items()]

    def launcher_prefix(
        self, host: str | int | Host, *, env: Mapping[str, str] | None = None, cwd: str | Path = CHECKOUT
    ) -> list[str]:
        """
        Words that run what follows on a host.  A signal sent to it stays outside: use `popen` for that.
        """
        h = self.host(host)
        enter = ["nsenter", "--target", str(h.pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        return [*enter, "env", "-i", f"--chdir={cwd}", *self._environment(h, env)]

    def popen(
        self,
        host: str | int | Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = CHECKOUT,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """
        Start a command on a host.  The `pid` is the command's own, so signals reach it; it leads a session.
        """
        h = self.host(host)
        words = [w for w in self.launcher_prefix(h, env=env, cwd=cwd) if w != "--pid"]
        options.setdefault("start_new_session", True)
        with _children_join(h.pid):
            return subprocess.Popen([*words, *argv], **options)

    def run(
        self,
        host: str | int | Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = CHECKOUT,
        timeout_s: float = 60,
        input: str | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; past `timeout_s` its session is killed and TimeoutExpired raised."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        return _finish(
            self.popen(host, argv, env=env, cwd=cwd, stdin=stdin, **pipes), argv, timeout_s, input, check
        )

    def ssh(
        self, host: str, *command: str, timeout_s: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """ssh from outside, with the lab's config."""
        argv = ["ssh", "-F", str(self.ssh_config), host, *command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **pipes)
        return _finish(child, argv, timeout_s, None, check)

    def sh(self, host: str | int | Host, script: str, timeout_s: float = 60) -> str:
        """A shell script as root on a host, which must succeed; its output."""
        return self.run(host, ["sh", "-ec", script], cwd="/", timeout_s=timeout_s, check=True).stdout

    def fabric(self, *argv: str) -> str:
        """A command among the switches, which must succeed; its output."""
        enter = ["nsenter", "--target", str(self.pid), "--net", *argv]
        return subprocess.run(enter, check=True, capture_output=True, text=True, timeout=60).stdout

    # --- what is there ----------------------------------------------------------------------------

    def _all_processes(self, host: Host) -> Iterator[Process]:
        space = os.stat(f"/proc/{host.pid}/ns/pid").st_ino
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
                if os.stat(path / "ns/pid").st_ino == space:
                    yield _process(path)

    def processes(self, host: str | int | Host, match: str | None = None) -> list[Process]:
        """What runs on a host beside its init and sshd; with `match` in its command or in a `NAME=value` of its environment."""
        h = self.host(host)
        found = [p for p in self._all_processes(h) if p.pid not in self._own[h.name]]
        if match is None:
            return found
        return [
            p
            for p in found
            if match in " ".join(p.command) or any(match in f"{k}={v}" for k, v in p.environ.items())
        ]

    def listening(self, host: str | int | Host, port: int) -> bool:
        """Whether anything on a host listens on a TCP port."""
        tables = [Path(f"/proc/{self.host(host).pid}/net/{name}") for name in ("tcp", "tcp6")]
        rows = [
            row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]
        ]
        return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def write_sshd(self, host: Host) -> None:
        """Write the host's sshd configuration again and have it read; returns when it listens."""
        (host.state / "etc/ssh/sshd_config").write_text(self._sshd_config(host))
        # sshd executes itself anew on SIGHUP, and writes its PID file again once it listens.
        self.sh(host, "pid=$(cat /run/sshd.pid); rm /run/sshd.pid; kill -HUP $pid")
        for _ in range(2000):
            if Path(f"/proc/{host.pid}/root/run/sshd.pid").exists():
                return
            time.sleep(0.005)
        raise RuntimeError(f"sshd of {host.name} did not come back")

    # --- faults -----------------------------------------------------------------------------------

    def fault(self, name: str, **options: Any) -> None:
        """Break something, by the name `faults.FAULTS` knows it; `heal` mends it."""
        self._faults.enter_context(self.broken(name, **options))

    def broken(self, name: str, **options: Any) -> contextlib.AbstractContextManager[None]:
        """The same for the length of a `with` block."""
        from .faults import FAULTS

        return FAULTS[name].break_it(self, **options)

    def heal(self) -> None:
        """Mend every fault, the last one first."""
        self._faults.close()


# --- this machine -------------------------------------------------------------------------------------


def _finish(
    child: subprocess.Popen[str], argv: Sequence[str], timeout_s: float, input: str | None, check: bool
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = child.communicate(input, timeout=timeout_s)
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


@contextlib.contextmanager
def _children_join(pid: int) -> Iterator[None]:
    """Children of this thread are born in that process's PID namespace, so nothing stands between us and them."""
    own, other = os.open("/proc/self/ns/pid", os.O_RDONLY), os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    try:
        if _libc.setns(other, NEWPID) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        _libc.setns(own, NEWPID)
        os.close(own)
        os.close(other)


def _status(path: Path) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines() if ":\t" in line)


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


def _children_of(pid: int) -> dict[int, int]:
    """PID as the lab numbers it -> as this machine does, for the children of `pid`."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = _status(path)
            if int(status["PPid"]) == pid:
                found[int(status["NSpid"].split()[1])] = int(path.name)
    return found


def _kept_paths() -> list[str]:
    """The interpreter, its venv and the checkout: visible on every host, wherever they lie."""
    wanted = sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, CHECKOUT)})
    return [p for p in wanted if not any(p.startswith(f"{other}/") for other in wanted)]


def _allow_neighbours(hosts: int) -> None:
    """All hosts share this kernel's neighbour tables; 64 that all talk need 4,032 entries, the default is 1,024."""
    for family in ("ipv4", "ipv6"):
        for name, each in (("gc_thresh3", 4), ("gc_thresh2", 2)):
            path = Path(f"/proc/sys/net/{family}/neigh/default/{name}")
            if hosts > 16 and path.exists() and int(path.read_text()) < each * hosts * hosts:
                path.write_text(str(each * hosts * hosts))


def _locked(state: Path) -> int:
    handle = os.open(state / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _sweep() -> None:
    """Remove what a killed lab left of its directory; a living one holds its lock."""
    for lock in STATE.glob("*/lock"):
        try:
            handle = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        os.close(handle)


def next_address(host: Host, nic: str | None, step: int) -> str:
    """An address `step` past the host's own."""
    return str(ipaddress.ip_address(host.port(nic).address) + step)
