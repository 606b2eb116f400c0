"""
OpenSSH's own client: its command line, how far it got, and what its words mean.

The client runs at LogLevel DEBUG1 because that is the only way to learn how far a silent
connection got (connected? banner? key exchange? logged in?), also through jump hosts, and
because a user's own `LogLevel QUIET` would hide why it failed.  Those lines are taken out of
stderr again; ssh ends each of its own lines with CR LF, the node's lines do not.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum

from ringup.facts import Host, ReachFailure, Unreached
from ringup.units import printable, show_seconds


class Phase(IntEnum):
    """How far a connection got, in order."""

    BEGUN = 0
    PROXIED = 1
    RESOLVED = 2
    CONNECTED = 3
    BANNER = 4
    KEYS = 5
    LOGGED_IN = 6


# OpenSSH 7.4 to 10.0, sshconnect.c, kex.c, packet.c and sshconnect2.c; later lines win.
_PHASES = (
    (re.compile(rb"debug1: Executing proxy command:"), Phase.PROXIED),
    (re.compile(rb"debug1: Connecting to "), Phase.RESOLVED),
    (re.compile(rb"debug1: Connection established\."), Phase.CONNECTED),
    (re.compile(rb"debug1: Remote protocol version "), Phase.BANNER),
    (re.compile(rb"debug1: SSH2_MSG_NEWKEYS received"), Phase.KEYS),
    (re.compile(rb"(debug1: Authentication succeeded|Authenticated to )"), Phase.LOGGED_IN),
)
_CHATTER = (
    b"debug1: ",
    b"debug2: ",
    b"debug3: ",
    b"OpenSSH_",
    b"Authenticated to ",
    b"Transferred: sent ",
    b"Bytes per second: ",
)
_ENDPOINT = re.compile(rb"debug1: Connecting to .* (\[\S+\] port \d+)")

_WORDS: tuple[tuple[re.Pattern[str], ReachFailure], ...] = (
    (
        re.compile(
            r"REMOTE HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY|Host key for .* has changed",
            re.IGNORECASE,
        ),
        "ssh-host-key-changed",
    ),
    (re.compile(r"Host key verification failed|host key is known for"), "ssh-host-key-unknown"),
    (
        re.compile(
            r"Permission denied \(|Too many authentication failures|No supported authentication methods"
        ),
        "ssh-key-refused",
    ),
    (re.compile(r"Could not resolve hostname|Name or service not known|name resolution"), "ssh-name-unknown"),
    (re.compile(r"Connection refused"), "ssh-connection-refused"),
    (re.compile(r"No route to host|Network is unreachable|Host is down"), "ssh-no-route"),
    (re.compile(r"timed out|Timeout, server", re.IGNORECASE), "ssh-timeout"),
)
_SECONDARY = re.compile(r"^(@{5,}|\s*$|\*\* |Warning: Permanently added|kex_exchange_identification:$)")

# sshd's MaxStartups (10:30:100 by default) drops connections before the banner when many
# arrive at once, as they do on a jump host.
_DROPPED = re.compile(r"(kex|ssh)_exchange_identification: (Connection closed|read: Connection reset)")

OWN_LIMIT_S = 10.0
"""ssh waits no less before it gives up by itself: ConnectTimeout, or the keep-alive below."""
_ALIVE_INTERVAL_S = 5
_ALIVE_COUNT = 3


def command(
    host: Host, login_command: str, *, ssh_config: str | None, connect_timeout_s: float, shared: bool = False
) -> list[str]:
    """
    The words of one connection.

    Nothing here makes host key checking weaker than the user's own: BatchMode turns "ask"
    into a refusal, and StrictHostKeyChecking is left alone.  Forwardings, RemoteCommand and
    a tty from the user's configuration are for people at a prompt and would break or delay this.

    No control socket is made, and none is used unless `shared`: a master that is killed or
    hangs takes its connections with it, and none of the deadlines hold on it.  But where a
    login takes a password or a code typed by hand, the user's own master is the only way in.
    """
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={max(1, math.ceil(connect_timeout_s))}",
        "ConnectionAttempts=1",
        f"ServerAliveInterval={_ALIVE_INTERVAL_S}",
        f"ServerAliveCountMax={_ALIVE_COUNT}",
        "ControlMaster=no",
        "ClearAllForwardings=yes",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "LogLevel=DEBUG1",
    ]
    if not shared:
        options.append("ControlPath=none")
    words = ["ssh", "-T"]
    if ssh_config:
        words += ["-F", ssh_config]
    for option in options:
        words += ["-o", option]
    if host.user:
        words += ["-l", host.user]
    return [*words, "--", host.name, login_command]


def has_control_path(argv: Sequence[str]) -> bool:
    """Whether the user's configuration names a control socket for this host; no machine is asked."""
    try:
        shown = subprocess.run(
            [argv[0], "-G", *argv[1:-1]], capture_output=True, timeout=2, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    paths = re.findall(rb"^controlpath (.*)$", shown, re.MULTILINE)
    return bool(paths) and paths[0] != b"none"


class Errors:
    """ssh's stderr: takes its own chatter out, notes how far it got, keeps the last words."""

    KEPT_LINES = 20
    LONGEST_LINE = 8192

    def __init__(self) -> None:
        self.phase = Phase.BEGUN
        self.proxied = False
        self.endpoint = ""
        self._own: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._others: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._line = b""
        self._passed = False
        """Whether the beginning of this line was already given out."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that are not chatter; the beginning of a line that may be chatter is held back."""
        *lines, last = data.split(b"\n")
        passed = [self._piece(line + b"\n") for line in lines]
        if last:
            passed.append(self._piece(last))
        return b"".join(passed)

    def _piece(self, piece: bytes) -> bytes:
        """One line, or its beginning or a further part of it."""
        ends, passed = piece.endswith(b"\n"), self._passed
        line = self._line + piece
        if not passed and any(line.startswith(c) or c.startswith(line) for c in _CHATTER):
            if not ends and len(line) < self.LONGEST_LINE:
                self._line = line
                return b""
            if line.endswith(b"\r\n"):
                self._line = b""
                self._note(line)
                return b""
        if ends:
            kept = self._own if line.endswith(b"\r\n") else self._others
            kept.append(line.decode("utf-8", "replace").strip())
        self._line = b"" if ends else line[: self.LONGEST_LINE]
        self._passed = not ends
        return piece if passed else line

    def _note(self, line: bytes) -> None:
        for pattern, phase in _PHASES:
            if pattern.match(line):
                self.proxied = self.proxied or phase is Phase.PROXIED
                self.phase = max(self.phase, phase)
        endpoint = _ENDPOINT.match(line)
        if endpoint:
            self.endpoint = printable(endpoint[1].decode("ascii", "replace"), 80)

    def said(self) -> str:
        """ssh's own last lines; the node's where ssh said nothing."""
        return "\n".join(self._own or self._others)

    def words(self) -> str:
        """The lines that tell the cause, in one; else the last three."""
        lines = [line for line in self.said().split("\n") if not _SECONDARY.match(line)]
        kind = classify(self.said())
        telling = [line for line in lines if classify(line) == kind and kind != "ssh-failed"][-1:]
        telling += [line for line in lines if line.startswith("Offending ")]
        return printable(" / ".join(telling or lines[-3:]), 400)

    def was_dropped(self) -> bool:
        """Whether sshd dropped the connection before its banner, which a second try may survive."""
        said = self.said()
        return classify(said) == "ssh-failed" and bool(_DROPPED.search(said))

    def ended_early(self, code: int, noise: str) -> Unreached:
        """Why a connection ended before the node's shell had answered."""
        if self.phase is Phase.LOGGED_IN:
            said = noise or self.words() or "nothing was said"
            return Unreached(
                "no-answer", f"logged in, but the shell ended with {code} before it answered: {said}"
            )
        kind = classify(self.said())
        words = self.words() or f"ssh ended with {code} and said nothing"
        if kind == "ssh-timeout" and self.phase in (Phase.CONNECTED, Phase.BANNER) and not self.proxied:
            kind = "ssh-key-exchange-hangs"
        if kind == "ssh-timeout" and self.proxied:
            words += f" ({_PROXIED})"
        if self.endpoint and self.endpoint.strip("[").split("]")[0] not in words:
            words += f" ({self.endpoint})"
        return Unreached(kind, words)

    def stuck(self, silent_s: float) -> Unreached:
        """What a connection that says nothing more is stuck in."""
        kind, words = _STUCK[self.phase]
        endpoint = f" ({self.endpoint})" if self.endpoint else ""
        said = self.words() if self.phase is Phase.LOGGED_IN else ""
        return Unreached(
            kind, f"{words} within {show_seconds(silent_s)}{endpoint}{': ' + said if said else ''}"
        )

    def lost(self, code: int, show_signal: Callable[[int], str]) -> Unreached:
        """Why a connection that had served ended."""
        if code < 0:
            return Unreached("ssh-failed", f"the ssh client was ended by {show_signal(-code)}")
        kind = classify(self.said())
        if kind not in ("ssh-timeout", "ssh-no-route"):
            kind = "ssh-failed"
        return Unreached(kind, f"connection lost: {self.words() or f'ssh ended with {code}'}")


def classify(words: str) -> ReachFailure:
    """
    The kind of failure ssh's words tell of.

    >>> classify("ssh: connect to host node1 port 22: No route to host")
    'ssh-no-route'
    """
    return next((kind for pattern, kind in _WORDS if pattern.search(words)), "ssh-failed")


_PROXIED = "through a proxy or jump host; whether it or the node is silent cannot be told"

_STUCK: dict[Phase, tuple[ReachFailure, str]] = {
    Phase.BEGUN: ("ssh-timeout", "ssh did not come to connect (name look-up?)"),
    Phase.PROXIED: (
        "ssh-timeout",
        f"nothing came {_PROXIED}",
    ),
    Phase.RESOLVED: ("ssh-timeout", "no TCP connection"),
    Phase.CONNECTED: ("ssh-key-exchange-hangs", "TCP connects, but no banner of sshd came"),
    Phase.BANNER: (
        "ssh-key-exchange-hangs",
        "short packets pass (TCP, banner), but the key exchange, which needs long ones, does not end",
    ),
    Phase.KEYS: ("ssh-timeout", "keys are exchanged, but the login does not end"),
    Phase.LOGGED_IN: ("no-answer", "logged in, but the shell did not answer"),
}
