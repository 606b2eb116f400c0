"""One host of a lab: its cards, its files, its sshd."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .wiring import Port

MINIMAL_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What a non-interactive ssh command finds: the venv is not on it ("torchrun: command not found")."""

SSHD = """\
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 100:30:200
MaxSessions 100
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
"""


def light_torch() -> dict[str, str]:
    """The variable that shortens the import of torch, where the tests ask for it (tests/light_torch.py)."""
    path = os.environ.get("LIGHT_TORCH_IN_LAB")
    return {"LIGHT_TORCH": path} if path else {}


@dataclass
class Host:
    """One host.  What stands in `state` is bound into it, so an edit in place is seen there at once."""

    name: str
    ports: list[Port]
    state: Path
    path: str = MINIMAL_PATH
    """PATH of its non-interactive ssh commands."""
    env: dict[str, str] = field(default_factory=dict)
    """What every session on it finds set, beside PATH; sshd learns of a change from `Lab.reload_sshd`."""
    command: str = ""
    """What sshd runs in place of a session's own command, which is then $SSH_ORIGINAL_COMMAND."""
    pid: int = 0
    """Its init, as this machine numbers it."""

    @property
    def address(self) -> str:
        """Its first card's address."""
        return self.ports[0].address

    @property
    def addresses(self) -> dict[str, str]:
        """Card name -> IPv4 address."""
        return {port.name: port.address for port in self.ports}

    def port(self, nic: str | None = None) -> Port:
        """A card by its name or its switch; without one, the first."""
        return self.ports[0] if nic is None else next(p for p in self.ports if nic in (p.name, p.switch))

    def etc(self, name: str) -> Path:
        """A file of its /etc, to be edited in place (a rename would not be seen)."""
        return self.state / "etc" / name

    @property
    def ssh_dir(self) -> Path:
        """Its /root/.ssh."""
        return self.state / "ssh"

    def listens(self, port: int) -> bool:
        """Whether anything on it listens on a TCP port."""
        tables = [Path(f"/proc/{self.pid}/net/{name}") for name in ("tcp", "tcp6")]
        rows = [row.split() for t in tables if t.exists() for row in t.read_text().splitlines()[1:]]
        return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)

    def write_sshd_config(self) -> None:
        words = {"PATH": self.path, **light_torch(), **self.env}
        # Only the first SetEnv line counts (sshd_config of OpenSSH 9.2), so all stand on one.
        line = "SetEnv " + " ".join(f'"{name}={value}"' for name, value in words.items())
        forced = f"ForceCommand {self.command}\n" if self.command else ""
        self.etc("ssh/sshd_config").write_text(f"{SSHD}{line}\n{forced}")

    def write_files(self, known: Sequence[tuple[str, str]]) -> None:
        """What is its own below /etc, before it is started; `known` are (address, name) pairs."""
        self.etc("ssh").mkdir(parents=True)
        self.ssh_dir.mkdir(mode=0o700)
        (self.state / "boot_id").write_text(f"{uuid.uuid4()}\n")
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost", *(" ".join(pair) for pair in known)]
        files: Mapping[str, str] = {
            "hosts": "".join(f"{line}\n" for line in lines),
            "hostname": f"{self.name}\n",
            # Else the machine's own resolver or nss-myhostname would answer what is to be unknown.
            "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
            "resolv.conf": "",
        }
        for name, text in files.items():
            if Path("/etc", name).exists():
                self.etc(name).write_text(text)
        self.write_sshd_config()
