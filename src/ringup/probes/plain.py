"""Facts of a node that has no python: what plain commands can say, and why the rest is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringup.facts import Interpreter, Limits, PortRanges
from ringup.parse.ip import parse_ip_links, parse_ip_routes
from ringup.parse.plain import parse_df, parse_getent, parse_ulimit
from ringup.probes.script import FIELDS
from ringup.units import printable

REASON = "no python3 on this node that could look"


def _word(text: str) -> str:
    """A one-line answer.  Raises ValueError when the command said nothing."""
    if not text.strip():
        raise ValueError("the command said nothing")
    return printable(text.strip().splitlines()[0], 300)


def _interfaces(plain: Mapping[str, str]) -> Any:
    found = parse_ip_links(plain.get("link", "") + "\n" + plain.get("addr", ""))
    if not found:
        raise ValueError("`ip` is missing or shows nothing")
    return found


def _routes(plain: Mapping[str, str]) -> Any:
    if not plain.get("link"):
        raise ValueError("`ip` is missing")
    return parse_ip_routes(plain.get("route", ""))


def _interpreter(plain: Mapping[str, str]) -> Interpreter:
    """None; unless one is there and could not run our program, which is another matter."""
    found = plain.get("python", "").strip()
    if found:
        raise ValueError(f"{_word(found)} could not run our program")
    return Interpreter("")


def _ports(plain: Mapping[str, str]) -> PortRanges:
    first, last = plain.get("ports", "").split()
    return PortRanges(int(first), int(last))


READERS: dict[str, Callable[[Mapping[str, str]], Any]] = {
    "hostname": lambda p: _word(p.get("hostname", "")),
    "boot_id": lambda p: _word(p.get("boot_id", "")),
    "user": lambda p: _word(p.get("user", "")),
    "uid": lambda p: int(_word(p.get("uid", ""))),
    "kernel": lambda p: _word(p.get("uname", "")).split()[0],
    "machine": lambda p: _word(p.get("uname", "")).split()[1],
    "cpu_count": lambda p: int(_word(p.get("nproc", ""))),
    "memory_bytes": lambda p: int(_word(p.get("meminfo", "")).split()[1]) * 1024,
    "limits": lambda p: Limits(parse_ulimit(p.get("memlock", ""), 1024), parse_ulimit(p.get("nofile", ""))),
    "ports": _ports,
    "interfaces": _interfaces,
    "routes": _routes,
    "own_name": lambda p: parse_getent(_word(p.get("hostname", "")), p.get("hosts", "")),
    "shm": lambda p: parse_df(p.get("shm", ""), "/dev/shm"),
    "tmp": lambda p: parse_df(p.get("tmp", ""), "/tmp"),
    "interpreter": _interpreter,
    "torchrun_on_path": lambda p: p.get("torchrun", "").strip()[:300],
}
"""Field -> what reads it; raises ValueError or IndexError where it cannot."""


def decoded(
    plain: Mapping[str, str], parts: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Values, reasons for the rest, and the times the node told, as for a python answer."""
    values: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    for name in [field for part in parts for field in FIELDS[part]]:
        if name not in READERS:
            unknown[name] = REASON
            continue
        try:
            values[name] = READERS[name](plain)
        except (ValueError, IndexError, OverflowError) as error:
            unknown[name] = f"{REASON}, and plainly: {printable(str(error), 120)}"
    text = plain.get("clock", "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        return values, unknown, {}
    # `date +%s` is whole seconds: it is anywhere in that second.
    return values, unknown, {"begin": int(text) + 1.0, "end": float(text)}
