"""The way in: keys, refusals, slowness, resets."""

from __future__ import annotations

from collections.abc import Iterator

from ..cluster import Lab
from .base import NEW_TCP, edited, fault, filtered
from .links import no_carrier
from .names import everyone, named


@fault("ssh-key-unknown")
def ssh_key_unknown(lab: Lab, host: str = "node1") -> Iterator[None]:
    """No known_hosts file has the host's key."""
    paths = lab.known_hosts_files
    with edited(*paths):
        for path in paths:
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if not line.startswith(f"{host},")))
        yield


@fault("ssh-key-changed")
def ssh_key_changed(lab: Lab, host: str = "node1") -> Iterator[None]:
    """All known_hosts files have another key for the host."""
    paths = lab.known_hosts_files
    other = (lab.state / "id_ed25519.pub").read_text().split()[1]
    with edited(*paths):
        for path in paths:
            rows = [line.split() for line in path.read_text().splitlines()]
            changed = [[*row[:2], other] if row[0].startswith(f"{host},") else row for row in rows]
            path.write_text("".join(" ".join(row) + "\n" for row in changed))
        yield


@fault("ssh-key-refused")
def ssh_key_refused(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The host accepts no key."""
    path = lab.host(host).ssh_dir / "authorized_keys"
    with edited(path):
        path.write_text("")
        yield


@fault("ssh-refused")
def ssh_refused(lab: Lab, host: str = "node1") -> Iterator[None]:
    """New connections to the host's ssh port are refused, as without an sshd; open ones continue."""
    with filtered(lab, host, f"tcp dport 22 {NEW_TCP} reject with tcp reset"):
        yield


@fault("ssh-dropped")
def ssh_dropped(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The host's ssh port does not answer; Linux's own connect gives up after about two minutes."""
    with filtered(lab, host, "tcp dport 22 drop"):
        yield


@fault("ssh-no-route")
def ssh_no_route(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The card that ssh uses has no carrier: "No route to host" after 3 s."""
    with no_carrier(lab, host, "ssh"):
        yield


@fault("ssh-name-unknown")
def ssh_name_unknown(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The host's name resolves nowhere, and ssh's config does not have it."""
    paths = lab.ssh_config_files
    with named(lab, everyone(lab), host, ""), edited(*paths):
        for path in paths:
            before, block, after = path.read_text().partition(f"Host {host}\n")
            assert block
            path.write_text(before + after.split("\n", 1)[1])
        yield


@fault("ssh-slow-shell")
def ssh_slow_shell(lab: Lab, host: str = "node1", delay_s: float = 8) -> Iterator[None]:
    """Every ssh session on the host takes 8 s to start."""
    path = lab.host(host).ssh_dir / "rc"
    path.write_text(f"sleep {delay_s}\n")
    try:
        yield
    finally:
        path.unlink()


@fault("ssh-reset")
def ssh_reset(lab: Lab) -> Iterator[None]:
    """Every open ssh connection is reset, once; new ones work."""
    kill = "ss --tcp --kill '( sport = :22 or dport = :22 )' >/dev/null"
    for host in lab.hosts:
        lab.sh(host, kill)
    lab.fabric(kill)
    yield
