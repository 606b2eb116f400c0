"""
OpenSSH's client: its command line, its progress, and the meaning of its error texts.

Only LogLevel DEBUG1 shows how far a silent connection got, also through jump hosts, and a user's own
`LogLevel QUIET` would hide why it failed.  These lines are removed from stderr: ssh ends each of its own
lines with CR LF, the node's lines do not.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence

from ringup.model import Host, ReachFailure, Unreached
from ringup.transport.client_errors import ClientErrors, Phase, how_ended
from ringup.units import printable, show_seconds

# OpenSSH 7.4 to 10.0, sshconnect.c, kex.c, packet.c and sshconnect2.c; later lines have priority.
_PHASES = {
    Phase.PROXIED: re.compile(rb"debug1: Executing proxy command:"),
    Phase.RESOLVED: re.compile(rb"debug1: Connecting to "),
    Phase.CONNECTED: re.compile(rb"debug1: Connection established\."),
    Phase.BANNER: re.compile(rb"debug1: Remote protocol version "),
    Phase.KEYS: re.compile(rb"debug1: SSH2_MSG_NEWKEYS received"),
    Phase.LOGGED_IN: re.compile(rb"(debug1: Authentication succeeded|Authenticated to )"),
}
_ENDPOINT = re.compile(rb"debug1: Connecting to .* (\[\S+\] port \d+)")

_WORDS: dict[ReachFailure, re.Pattern[str]] = {
    "ssh-host-key-changed": re.compile(
        r"(?i)HOST IDENTIFICATION HAS|REVOKED HOST KEY|Host key for .{1,300} has changed"
    ),
    "ssh-host-key-unknown": re.compile(r"Host key verification failed|host key is known for"),
    "ssh-key-refused": re.compile(
        r"Permission denied \(|Too many authentication failures|No supported authentication"
    ),
    "ssh-name-unknown": re.compile(r"Could not resolve hostname|Name or service not known|name resolution"),
    "ssh-connection-refused": re.compile(r"Connection refused"),
    "ssh-no-route": re.compile(r"No route to host|Network is unreachable|Host is down"),
    "ssh-timeout": re.compile(r"(?i)timed out|Timeout, server"),
}
_SECONDARY = re.compile(r"^(@{5,}|\s*$|\*\* |Warning: Permanently added|kex_exchange_identification:$)")

# sshd's MaxStartups (10:30:100) drops connections before the banner if many arrive at once (jump hosts).
_DROPPED = re.compile(r"(kex|ssh)_exchange_identification: (Connection closed|read: Connection reset)")

OWN_LIMIT_S = 10.0
"""Shortest time after which ssh gives up on its own: ConnectTimeout, or the keep-alive below."""


def command(
    host: Host, login_command: str, ssh_config: str | None, connect_timeout_s: float, *, shared: bool = False
) -> list[str]:
    """
    The command line of one connection.

    The user's settings for host key checking apply: BatchMode turns "ask" into a refusal.  Forwardings,
    RemoteCommand and a tty from the user's configuration would break or delay this.

    A control socket is used only if `shared`: a master that is killed or hangs takes its connections with it,
    and no deadline works on it.  But a login with a code typed by hand needs the user's own master.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, math.ceil(connect_timeout_s))}",
        "ConnectionAttempts=1",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ControlMaster=no",
        "ClearAllForwardings=yes",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "LogLevel=DEBUG1",
    ]
    if not shared:
        options.append("ControlPath=none")
    config, user = ["-F", ssh_config] if ssh_config else [], ["-l", host.user] if host.user else []
    chosen = [word for option in options for word in ("-o", option)]
    return ["ssh", "-T", *config, *chosen, *user, "--", host.name, login_command]


def has_control_path(argv: Sequence[str]) -> bool:
    """Whether the user's configuration has a control socket for this host; no machine is contacted."""
    try:
        words = [argv[0], "-G", *argv[1:-1]]
        shown = subprocess.run(words, capture_output=True, timeout=2, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    paths = re.findall(rb"^controlpath (.*)$", shown, re.MULTILINE)
    return bool(paths) and paths[0] != b"none"


class Errors(ClientErrors):
    """ssh's stderr, with ssh's progress."""

    CHATTER = (
        *(b"debug1: ", b"debug2: ", b"debug3: ", b"OpenSSH_"),
        *(b"Authenticated to ", b"Transferred: sent ", b"Bytes per second: "),
    )
    MARKS = (b"\r",)

    def __init__(self) -> None:
        super().__init__()
        self.phase = Phase.BEGUN
        self.proxied = False
        self.endpoint = ""

    def _is_own(self, line: bytes) -> bool:
        return line.endswith(b"\r\n")

    def _note(self, line: bytes) -> None:
        for phase, pattern in _PHASES.items():
            if pattern.match(line):
                self.proxied = self.proxied or phase is Phase.PROXIED
                self.phase = max(self.phase, phase)
        if endpoint := _ENDPOINT.match(line):
            self.endpoint = printable(endpoint[1].decode("ascii", "replace"), 80)

    def said(self) -> str:
        """ssh's own last lines; the node's if ssh printed none."""
        return "\n".join(self._own or self._others)

    def words(self) -> str:
        """The lines with the cause, joined; else the last three."""
        lines = [line for line in self.said().split("\n") if not _SECONDARY.match(line)]
        kind = classify(self.said())
        telling = [line for line in lines if classify(line) == kind and kind != "ssh-failed"][-1:]
        telling += [line for line in lines if line.startswith("Offending ")]
        return printable(" / ".join(telling or lines[-3:]), 400)

    def was_dropped(self) -> bool:
        """Whether sshd dropped the connection before its banner; then a second try may succeed."""
        said = self.said()
        return classify(said) == "ssh-failed" and bool(_DROPPED.search(said))

    def ended_early(self, code: int, noise: str) -> Unreached:
        if self.phase is Phase.LOGGED_IN:
            how = f"logged in, but the shell ended with {code} before it answered"
            return Unreached("no-answer", f"{how}: {noise or self.words() or 'no output'}")
        kind = classify(self.said())
        words = self.words() or f"ssh ended with {code} and printed nothing"
        if kind == "ssh-timeout" and self.phase in (Phase.CONNECTED, Phase.BANNER) and not self.proxied:
            kind = "ssh-key-exchange-hangs"
        if kind == "ssh-timeout" and self.proxied:
            words += f" ({_PROXIED})"
        if self.endpoint and self.endpoint.strip("[").split("]")[0] not in words:
            words += f" ({self.endpoint})"
        return Unreached(kind, words)

    def stuck(self, silent_s: float) -> Unreached:
        kind, words = _STUCK[self.phase]
        words += f" within {show_seconds(silent_s)}" + (f" ({self.endpoint})" if self.endpoint else "")
        said = self.words() if self.phase is Phase.LOGGED_IN else ""
        return Unreached(kind, f"{words}: {said}" if said else words)

    def lost(self, code: int) -> Unreached:
        if code < 0:
            return Unreached("ssh-failed", how_ended("the ssh client", code))
        if (kind := classify(self.said())) not in ("ssh-timeout", "ssh-no-route"):
            kind = "ssh-failed"
        return Unreached(kind, f"connection lost: {self.words() or f'ssh ended with {code}'}")


def classify(words: str) -> ReachFailure:
    """
    The kind of failure in ssh's error text.

    >>> classify("ssh: connect to host node1 port 22: No route to host")
    'ssh-no-route'
    """
    return next((kind for kind, pattern in _WORDS.items() if pattern.search(words)), "ssh-failed")


_PROXIED = "through a proxy or jump host; either it or the node does not answer"

_STUCK: dict[Phase, tuple[ReachFailure, str]] = {
    Phase.BEGUN: ("ssh-timeout", "ssh did not start to connect (name lookup?)"),
    Phase.PROXIED: ("ssh-timeout", f"nothing came {_PROXIED}"),
    Phase.RESOLVED: ("ssh-timeout", "no TCP connection"),
    Phase.CONNECTED: ("ssh-key-exchange-hangs", "TCP connects, but no banner of sshd came"),
    Phase.BANNER: (
        "ssh-key-exchange-hangs",
        "short packets pass (TCP, banner), but the key exchange, which needs long ones, does not end",
    ),
    Phase.KEYS: ("ssh-timeout", "keys are exchanged, but the login does not end"),
    Phase.LOGGED_IN: ("no-answer", "logged in, but the shell did not answer"),
}
