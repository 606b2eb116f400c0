"""
One of N equal pods without ssh: its index, their number, the first one's address, and the shared token.

    RINGUP_INDEX or JOB_COMPLETION_INDEX     this pod's index; 0 leads
    RINGUP_NODES, JOB_COMPLETIONS or NNODES  how many there are
    RINGUP_HEAD, or JOB-0.RINGUP_SERVICE     name or address of the first
    RINGUP_TOKEN or RINGUP_TOKEN_FILE        the shared secret
    RINGUP_PORT (29100)                      where the first hears the others
    RINGUP_WAIT_S (300)                      how long everybody waits for everybody
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringup.errors import NodesError
from ringup.hosts.nodeset import LONGEST_NAME, MOST_NODES, NAME
from ringup.units import printable
from ringup.version import SITE

PORT = 29100
"""Below the ephemeral ports (32768 and up on Linux), and not a port of torch."""
WAIT_S = 300.0
LONGEST_TOKEN = 4096
SECRETS = ("RINGUP_TOKEN", "RINGUP_TOKEN_FILE")
WANTED_BITS = 128
WORD_BITS = 13
"""A word from a list of 8,000, as in passphrases."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_BITS = 122
_LETTERS = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")
_KNOWN = "qwertyuiop asdfghjkl zxcvbnm password "
"""Sequences that count as seen before."""
MAKE_ONE = "make one with: openssl rand -hex 32 (in a Secret that every pod gets as RINGUP_TOKEN)"


@dataclass(frozen=True)
class Pod:
    """This process's place among the equal pods."""

    index: int
    count: int
    name: str
    """Its name for the other pods."""
    head: str
    """Name or address of index 0."""
    port: int
    wait_s: float
    token: bytes = field(repr=False)


def from_environment(environ: Mapping[str, str], hostname: str) -> Pod | None:
    """The pod of these variables; None without any.  Raises NodesError if one is missing, or contradicts."""
    if not any(environ.get(name) for name in SECRETS):
        _check_alone(environ)
        return None
    index = _number(environ, 0, MOST_NODES - 1, "RINGUP_INDEX", "JOB_COMPLETION_INDEX")
    count = _number(environ, 1, MOST_NODES, "RINGUP_NODES", "JOB_COMPLETIONS", "NNODES")
    if index >= count:
        hint = "indices begin at 0; RINGUP_NODES is the number of pods"
        raise NodesError(f"index {index} of {count} pods", hint=hint)
    own = hostname.split(".")[0]
    service = environ.get("RINGUP_SERVICE", "")
    name = f"{own}.{service}" if service else own
    return Pod(
        index,
        count,
        _name(name, "this pod"),
        _head(environ, own, service, index),
        _number(environ, 1, 65535, "RINGUP_PORT", default=PORT),
        float(_number(environ, 1, 86400, "RINGUP_WAIT_S", default=int(WAIT_S))),
        _token(environ),
    )


def _check_alone(environ: Mapping[str, str]) -> None:
    """Raise NodesError for one of several pods without the token: each would train alone."""
    hint = f"every pod needs the same RINGUP_TOKEN ({SITE}/how/pods/); --local 1 takes this pod alone"
    if ours := next(filter(environ.get, ("RINGUP_NODES", "RINGUP_HEAD", "RINGUP_SERVICE")), ""):
        raise NodesError(f"{ours} is set, and RINGUP_TOKEN is not", hint=hint)
    if index := environ.get("JOB_COMPLETION_INDEX"):
        missing = "RINGUP_TOKEN and RINGUP_NODES are not set"
        raise NodesError(f"this is pod {printable(index, 9)} of an Indexed Job, and {missing}", hint=hint)


def without_secrets() -> dict[str, str]:
    """This process's environment for child processes, without secrets."""
    return {name: value for name, value in os.environ.items() if name not in SECRETS}


def _number(env: Mapping[str, str], least: int, most: int, *names: str, default: int | None = None) -> int:
    given = next(((name, env[name]) for name in names if env.get(name)), None)
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
    if given := environ.get("RINGUP_HEAD", ""):
        return _name(given, "RINGUP_HEAD")
    job, dash, number = own.rpartition("-")
    if not dash or number != str(index):
        problem = f"the first pod's name is not known: {printable(own, 100)} does not end in -{index}"
        hint = "set RINGUP_HEAD in every pod: name or address of the pod with index 0"
        raise NodesError(problem, hint=hint)
    return _name(f"{job}-0.{service}" if service else f"{job}-0", "the first pod")


def _name(text: str, what: str) -> str:
    if not NAME.fullmatch(text.strip("[]").replace(":", "a")) or len(text) > LONGEST_NAME:
        found = f"{what}: {printable(text, 100)!r} is not a host name"
        raise NodesError(found, hint="a DNS name or an address")
    return text.strip("[]")


def _token(environ: Mapping[str, str]) -> bytes:
    token, path = (environ.get(name, "") for name in SECRETS)
    if token and path:
        raise NodesError("RINGUP_TOKEN and RINGUP_TOKEN_FILE are both set", hint="give one of them")
    if path:
        try:
            token = Path(path).read_text()
        except (OSError, ValueError) as error:
            problem = f"RINGUP_TOKEN_FILE {printable(path, 200)} cannot be read"
            raise NodesError(problem, hint=str(error)) from error
    token = token.strip()
    if len(token) > LONGEST_TOKEN:
        raise NodesError(f"the token is longer than {LONGEST_TOKEN:,} characters", hint=MAKE_ONE)
    if (bits := strength_bits(token)) < WANTED_BITS:
        words = f"about {bits:.0f} bits of strength, it needs {WANTED_BITS}"
        raise NodesError(f"the token looks too weak: {words}", hint=MAKE_ONE)
    return token.encode("utf-8", "surrogateescape")


def strength_bits(token: str) -> float:
    """
    Bits of strength of a generated token; fewer if it repeats, counts up or contains words.

    1 in 10,000 random tokens in hex is wrongly called weak, 1 in 500 in base64, 1 in 13 in base32.

    >>> strength_bits("9f3c1a7be2d84456a0b1c7d9e8f20314"), strength_bits("0123456789abcdef" * 4) < 128
    (128.0, True)
    """
    if _UUID.fullmatch(token):
        return _UUID_BITS
    guessed = _predictable(token)
    runs = _LETTERS.finditer(token)
    words = [word for word in runs if sum(c in "aeiou" for c in word[0].lower()) * 4 >= len(word[0])]
    plain = len(token) - len(guessed.union(*(range(*word.span()) for word in words)))
    # A few characters of a random token may by chance continue others or look like a word.
    if plain <= 0.4 * len(token) or len(guessed) >= 0.4 * len(token):
        return plain * _bits_per_character(token) / 2 + len(words) * WORD_BITS
    return len(token) * _bits_per_character(token)


def _bits_per_character(token: str) -> float:
    kinds = set(token)
    if token.isdecimal():
        return math.log2(10)
    if kinds <= set("0123456789abcdef") or kinds <= set("0123456789ABCDEF"):
        return 4.0
    return 5.0 if token == token.lower() or token == token.upper() else 6.0


def _predictable(token: str) -> set[int]:
    """Indices that continue the preceding ones (aaaa, 1234, a1a1), or whose last four characters repeat."""
    code = [ord(character) for character in token]
    known = _KNOWN + token.lower()
    begin = len(_KNOWN)
    found = set()
    for at in range(len(token)):
        steps = (step for step in (1, 2) if at >= 2 * step)
        runs_on = any(code[at] - code[at - step] == code[at - step] - code[at - 2 * step] for step in steps)
        last = begin + at + 1
        repeats = at >= 3 and known.find(known[last - 4 : last]) < last - 4
        if runs_on or repeats:
            found.add(at)
    return found
