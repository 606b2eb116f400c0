"""
One of N equal pods without ssh: which one, how many, where the first is, and the token they share.

    RINGUP_INDEX or JOB_COMPLETION_INDEX     this pod's index; 0 leads
    RINGUP_NODES, JOB_COMPLETIONS or NNODES  how many there are
    RINGUP_HEAD, or JOB-0.RINGUP_SERVICE     name or address of the first
    RINGUP_TOKEN or RINGUP_TOKEN_FILE        the shared secret; without it nothing of this applies
    RINGUP_PORT (29100)                      where the first hears the others
    RINGUP_WAIT_S (300)                      how long everybody waits for everybody
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringup.errors import NodesError
from ringup.hosts.nodeset import LONGEST_NAME, MOST_NODES, NAME
from ringup.units import printable

PORT = 29100
"""Below the ephemeral ports (32768 and up on Linux) and beside none that torch uses."""
WAIT_S = 300.0
SHORTEST_TOKEN = 16
SECRETS = ("RINGUP_TOKEN", "RINGUP_TOKEN_FILE")
MAKE_ONE = "openssl rand -hex 32, in a Secret that every pod gets as RINGUP_TOKEN"


@dataclass(frozen=True)
class Pod:
    """Where this process stands among its equals."""

    index: int
    count: int
    name: str
    """What the others may call it."""
    head: str
    """Name or address of index 0."""
    port: int
    wait_s: float
    token: bytes = field(repr=False)


def from_environment(
    environ: Mapping[str, str],
    hostname: str,
    read: Callable[[str], str] = lambda path: Path(path).read_text(),
) -> Pod | None:
    """
    The pod these variables tell of; None without a token.

    Raises NodesError where they do not fit together, saying which one.
    """
    if not any(environ.get(name) for name in SECRETS):
        return None
    index = _number(environ, 0, MOST_NODES - 1, "RINGUP_INDEX", "JOB_COMPLETION_INDEX")
    count = _number(environ, 1, MOST_NODES, "RINGUP_NODES", "JOB_COMPLETIONS", "NNODES")
    if index >= count:
        raise NodesError(
            f"index {index} of {count} pods", hint="indices begin at 0; RINGUP_NODES is the number of pods"
        )
    own = hostname.split(".")[0]
    service = environ.get("RINGUP_SERVICE", "")
    name = f"{own}.{service}" if service else own
    wait_s = _number(environ, 1, 86400, "RINGUP_WAIT_S", default=int(WAIT_S))
    return Pod(
        index,
        count,
        _name(name, "this pod"),
        _head(environ, own, service, index),
        _number(environ, 1, 65535, "RINGUP_PORT", default=PORT),
        float(wait_s),
        _token(environ, read),
    )


def without_secrets() -> dict[str, str]:
    """This process's environment as everything that is started may have it."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def _number(
    environ: Mapping[str, str], least: int, most: int, *names: str, default: int | None = None
) -> int:
    given = next(((name, environ[name]) for name in names if environ.get(name)), None)
    if given is None:
        if default is not None:
            return default
        raise NodesError(f"{names[0]} is not set", hint=f"give every pod {' or '.join(names)}")
    name, text = given
    if not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        raise NodesError(f"{name}={printable(text, 60)!r}", hint=f"a whole number from {least} to {most}")
    return int(text)


def _head(environ: Mapping[str, str], own: str, service: str, index: int) -> str:
    """RINGUP_HEAD, else JOB-0.SERVICE from this pod's own JOB-INDEX."""
    given = environ.get("RINGUP_HEAD", "")
    if given:
        return _name(given, "RINGUP_HEAD")
    job, dash, number = own.rpartition("-")
    if not dash or number != str(index):
        raise NodesError(
            f"the first pod's name cannot be told from this one's, {printable(own, 100)}",
            hint="give every pod RINGUP_HEAD, name or address of the one with index 0",
        )
    return _name(f"{job}-0.{service}" if service else f"{job}-0", "the first pod")


def _name(text: str, what: str) -> str:
    if not NAME.fullmatch(text.strip("[]").replace(":", "a")) or len(text) > LONGEST_NAME:
        raise NodesError(f"{what}: {printable(text, 100)!r} is no host name", hint="a DNS name or an address")
    return text.strip("[]")


def _token(environ: Mapping[str, str], read: Callable[[str], str]) -> bytes:
    token, path = (environ.get(name, "") for name in SECRETS)
    if token and path:
        raise NodesError("RINGUP_TOKEN and RINGUP_TOKEN_FILE are both set", hint="give one of them")
    if path:
        try:
            token = read(path)
        except (OSError, ValueError) as error:
            raise NodesError(
                f"RINGUP_TOKEN_FILE {printable(path, 200)} cannot be read", hint=str(error)
            ) from error
    token = token.strip()
    if len(token) < SHORTEST_TOKEN:
        raise NodesError(f"the token is shorter than {SHORTEST_TOKEN} characters", hint=MAKE_ONE)
    return token.encode()
