"""A cluster of N hosts on this one machine: namespaces, veth cables, bridges and a real sshd on each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import machine, wiring
from .host import MINIMAL_PATH, Host, light_torch
from .machine import CHECKOUT, STATE, SYSTEM_PATH, Process
from .wiring import Nic

# A new network namespace inherits the machine's own settings; those must not show.
SYSCTL = {
    "net/ipv4/ip_forward": 0,
    "net/ipv4/conf/all/rp_filter": 0,
    "net/ipv4/conf/default/rp_filter": 0,
    "net/ipv4/tcp_mtu_probing": 0,
    "net/ipv6/conf/all/disable_ipv6": 0,
    "net/ipv6/conf/default/disable_ipv6": 0,
    "net/ipv6/conf/default/accept_dad": 0,
}
TEXT_PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}


class Lab:
    """
    N hosts that live until the `with` block ends, this process ends, or `ttl_s` has passed.

    `hosts`: how many (node0, node1, ...) or their names.  `net`: the first host's address on the data
    network.  `nics`: all cards, instead of the one that `net` gives.  `mgmt`: one more card `eno1` with
    this first address, through which ssh goes, while names go on meaning the data network; `names`: the
    switch they mean instead.  `docker0`: Docker's bridge on every host.  `venv_on_path`: ssh commands
    find this interpreter's programs.
    """

    def __init__(
        self,
        hosts: int | Sequence[str] = 2,
        net: str = "10.0.0.10/24",
        *,
        nics: Sequence[Nic] | None = None,
        mgmt: str = "",
        names: str = "",
        docker0: bool = False,
        venv_on_path: bool = False,
        ttl_s: float = 900,
    ) -> None:
        cards = list(nics) if nics is not None else [Nic(address=net)]
        if mgmt:
            cards.append(Nic("eno1", mgmt, "mgmt", ifindex=5))
        host_names = [f"node{n}" for n in range(hosts)] if isinstance(hosts, int) else list(hosts)
        self.docker0, self.ttl_s = docker0, ttl_s
        self.names_switch = names or cards[0].switch
        self.ssh_switch = "mgmt" if mgmt else cards[0].switch
        self.ports = wiring.plug(host_names, cards)
        STATE.mkdir(mode=0o700, exist_ok=True)
        machine.sweep()
        self.state = Path(tempfile.mkdtemp(dir=STATE, prefix=f"{os.getpid()}-"))
        self._lock = machine.locked(self.state)
        path = f"{sys.prefix}/bin:{MINIMAL_PATH}" if venv_on_path else MINIMAL_PATH
        self.hosts = [Host(name, self.ports[name], self.state / name, path) for name in host_names]
        self.ssh_config = self.state / "ssh_config"
        self.pid = 0
        self._init: subprocess.Popen[str] | None = None
        self._children: list[subprocess.Popen[Any]] = []
        self._faults = contextlib.ExitStack()
        try:
            self._build()
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
        if self._lock < 0:
            return
        with contextlib.suppress(Exception):  # its time may have passed
            self.heal()
        # The kernel ends a PID namespace only when all in it are reaped, and these only we can reap.
        for child in self._children:
            child.kill()
            child.wait()
        if self._init is not None:
            assert self._init.stdin is not None and self._init.stdout is not None
            self._init.stdin.close()  # the order to end
            try:
                self._init.wait(60)
            except subprocess.TimeoutExpired:
                self._init.kill()
                self._init.wait()
            self._init.stdout.close()
        shutil.rmtree(self.state, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def _build(self) -> None:
        known = [(h.port(self.names_switch).address, h.name) for h in self.hosts]
        known += [(port.address, f"{h.name}-{port.switch}") for h in self.hosts for port in h.ports]
        for host in self.hosts:
            host.write_files(known)
        (self.state / "stage").mkdir()
        (self.state / "spec.json").write_text(json.dumps(self._spec()))
        machine.allow_neighbours(len(self.hosts))
        with tempfile.TemporaryFile("w+") as log:
            self._init = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")), str(self.state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PATH": SYSTEM_PATH},
                start_new_session=True,  # Ctrl-C in `lab shell` is for the shell
            )
            self._write_keys()
            assert self._init.stdout is not None
            fabric_pid, host_pids = self._init.stdout.readline(), self._init.stdout.readline()
            if not host_pids:
                self._init.wait(60)
                log.seek(0)
                raise RuntimeError(f"the lab did not come up: {log.read()}")
        self.pid = int(fabric_pid)
        outer = machine.children_of(self.pid)
        for host in self.hosts:
            host.pid = outer[json.loads(host_pids)[host.name]]
        self._write_access()
        self._own = {host.name: {p.pid for p in machine.processes_of(host.pid)} for host in self.hosts}

    def _spec(self) -> dict[str, Any]:
        fabric = wiring.fabric_batch(self.ports)
        hosts = []
        for position, host in enumerate(self.hosts):
            batch = wiring.host_batch(host.ports, self.ports)
            if self.docker0:
                cable, own = wiring.docker0_batch(host.name, position)
                fabric += cable
                batch += own
            hosts.append({"name": host.name, "batch": "\n".join(batch)})
        return {
            "ttl_s": self.ttl_s,
            "sshd": machine.which("sshd"),
            "sysctl": SYSCTL,
            "keep": machine.kept_paths(),
            "fabric": fabric,
            "forwarding": [p.fabric_end for own in self.ports.values() for p in own if p.routed],
            "hosts": hosts,
        }

    # --- ssh --------------------------------------------------------------------------------------

    def _write_keys(self) -> None:
        """One client key for every host and for outside; every host may log in to every other."""
        key = self.state / "id_ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", key], check=True)
        public = key.with_suffix(".pub").read_text()
        for host in self.hosts:
            shutil.copy(key, host.ssh_dir / "id_ed25519")
            (host.ssh_dir / "authorized_keys").write_text(public)
            (host.ssh_dir / "config").write_text(f"{self._host_blocks()}Host *\n  BatchMode yes\n")

    def _host_blocks(self) -> str:
        """Names for ssh alone, so that the way in outlives what a fault does to /etc/hosts."""
        return "".join(f"Host {h.name}\n  HostName {h.port(self.ssh_switch).address}\n" for h in self.hosts)

    def _write_access(self) -> None:
        """Every host's key under its name and addresses; the way in from outside, through the fabric."""
        known = ""
        for host in self.hosts:
            kind, key = host.etc("ssh/ssh_host_ed25519_key.pub").read_text().split()[:2]
            known += f"{','.join([host.name, *host.addresses.values()])} {kind} {key}\n"
        for path in self.known_hosts_files:
            path.write_text(known)
        self.ssh_config.write_text(
            f"{self._host_blocks()}Host *\n"
            f"  BatchMode yes\n  User root\n  IdentityFile {self.state}/id_ed25519\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.state}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            f"  ProxyCommand nsenter --net=/proc/{self.pid}/ns/net nc -N %h %p\n"
        )

    @property
    def known_hosts_files(self) -> list[Path]:
        """Outside's, then each host's own."""
        return [self.state / "known_hosts", *(host.ssh_dir / "known_hosts" for host in self.hosts)]

    @property
    def ssh_config_files(self) -> list[Path]:
        """Outside's, then each host's own."""
        return [self.ssh_config, *(host.ssh_dir / "config" for host in self.hosts)]

    def reload_sshd(self, host: str | int | Host) -> None:
        """Have the host's sshd learn its path and environment anew; returns when it listens."""
        h = self.host(host)
        h.write_sshd_config()
        # On SIGHUP sshd executes itself anew, and writes its PID file again once it listens.
        self.sh(h, "pid=$(cat /run/sshd.pid); rm /run/sshd.pid; kill -HUP $pid")
        self.sh(h, "until [ -s /run/sshd.pid ]; do sleep 0.01; done")

    # --- commands ---------------------------------------------------------------------------------

    def host(self, host: str | int | Host) -> Host:
        """A host by itself, its name or its number."""
        if isinstance(host, Host):
            return host
        return self.hosts[host] if isinstance(host, int) else next(h for h in self.hosts if h.name == host)

    def _enter(self, host: Host, env: Mapping[str, str] | None, cwd: str | Path) -> list[str]:
        """Words that run what follows on a host, but in the caller's PID namespace; the venv is active."""
        words = {
            "HOME": "/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"),
            "VIRTUAL_ENV": sys.prefix,
            **light_torch(),
            "PATH": f"{sys.prefix}/bin:{SYSTEM_PATH}",
            **host.env,
            **(env or {}),
        }
        spaces = ["--mount", "--uts", "--ipc", "--net"]
        assignments = [f"{name}={value}" for name, value in words.items()]
        return ["nsenter", "--target", str(host.pid), *spaces, "env", "-i", f"--chdir={cwd}", *assignments]

    def launcher_prefix(
        self, host: str | int | Host, *, env: Mapping[str, str] | None = None, cwd: str | Path = CHECKOUT
    ) -> list[str]:
        """Words that run what follows on a host.  A signal sent to it stays outside: `popen` is for that."""
        words = self._enter(self.host(host), env, cwd)
        return [*words[:3], "--pid", *words[3:]]

    def popen(
        self,
        host: str | int | Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = CHECKOUT,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command on a host.  `pid` is the command's own, so signals reach it; it leads a session."""
        h = self.host(host)
        options.setdefault("start_new_session", True)
        with machine.children_join(h.pid):
            child = subprocess.Popen([*self._enter(h, env, cwd), *argv], **options)
        self._children = [*(c for c in self._children if c.returncode is None), child]
        return child

    def run(
        self,
        host: str | int | Host,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = CHECKOUT,
        timeout_s: float = 60,
        text: str | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as a user logged in there; `text` is its stdin."""
        stdin = subprocess.DEVNULL if text is None else subprocess.PIPE
        child = self.popen(host, argv, env=env, cwd=cwd, stdin=stdin, **TEXT_PIPES)
        return machine.finish(child, argv, timeout_s, text, check)

    def ssh(
        self, host: str, *command: str, timeout_s: float = 60, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """ssh from outside."""
        argv = ["ssh", "-F", str(self.ssh_config), host, *command]
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, **TEXT_PIPES)
        return machine.finish(child, argv, timeout_s, None, check)

    def sh(self, host: str | int | Host, script: str, timeout_s: float = 60) -> str:
        """A shell script as root on a host, which must succeed within its time; its output."""
        return self.run(host, ["sh", "-ec", script], cwd="/", timeout_s=timeout_s, check=True).stdout

    def fabric(self, script: str) -> str:
        """A shell script among the switches, which must succeed; its output."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "sh", "-ec", script]
        return subprocess.run(enter, check=True, capture_output=True, text=True, timeout=60).stdout

    # --- what is there ----------------------------------------------------------------------------

    def processes(self, host: str | int | Host, match: str | None = None) -> list[Process]:
        """What runs on a host beside its init and sshd; with `match` in its command or environment."""
        h = self.host(host)
        # tini starts its child when the lab is already up.
        own, tinis = self._own[h.name], ("sleep", "infinity")
        found = [p for p in self.everything(h) if p.pid not in own and p.command[-2:] != tinis]
        return found if match is None else [p for p in found if p.mentions(match)]

    def everything(self, host: str | int | Host) -> list[Process]:
        """What runs on a host, its init and sshd included."""
        return list(machine.processes_of(self.host(host).pid))

    def listening(self, host: str | int | Host, port: int) -> bool:
        """Whether anything on a host listens on a TCP port."""
        return self.host(host).listens(port)

    # --- faults -----------------------------------------------------------------------------------

    def fault(self, name: str, **options: Any) -> None:
        """Break something, by the name that `FAULTS` knows it by; `heal` mends it."""
        self._faults.enter_context(self.broken(name, **options))

    def broken(self, name: str, **options: Any) -> contextlib.AbstractContextManager[None]:
        """The same for the length of a `with` block."""
        from .faults import FAULTS

        return FAULTS[name].inject(self, **options)

    def heal(self) -> None:
        """Mend every fault, the last one first."""
        self._faults.close()
