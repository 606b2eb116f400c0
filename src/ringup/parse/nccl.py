"""The answer of NCCL's library (see agent/facts/nccl.py), and its configuration files, parsed like NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ringup.model import NcclAnswer
from ringup.nccl import lines

MARK = "ringup-nccl "
_USING = re.compile(lines.bounded(lines.BOOTSTRAP))
_SET = re.compile(lines.bounded(lines.ENVIRONMENT))
_WARNED = re.compile(lines.WARN + r"(.{1,300})")
_PLUGIN = re.compile(r"NCCL INFO ((?:NET|ENV|TUNER|PROFILER)/Plugin.{0,300}|.{0,80}[Pp]lugin .{0,200})")

NAMED_SINCE = (2, 23, 4)
"""NCCL reads NCCL_CONF_FILE from this release on."""
HOME_SINCE = (2, 30, 3)
"""From this release on ~ is $HOME; before, the directory in passwd (userHomeDir in src/misc/param.cc)."""


def version_text(number: int) -> str:
    """
    ncclGetVersion's number as a version; from 2.9 on the minor release has two digits.

    >>> version_text(22005), version_text(2708), version_text(23007), version_text(0)
    ('2.20.5', '2.7.8', '2.30.7', '')
    """
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}" if number >= 2000 else ""


def parse_nccl_answer(answer: Sequence[str], asked_with: Mapping[str, str]) -> NcclAnswer:
    """
    The facts in the lines of an answer.  Raises ValueError if they have neither an answer nor a reason.

    >>> made = parse_nccl_answer(["ringup-nccl library /l/libnccl.so.2", "ringup-nccl version 22005",
    ...     "n1:7:7 [0] NCCL INFO Bootstrap : Using ib0:10.1.0.1<0>", "ringup-nccl result 0"], {})
    >>> made.version, made.interface, made.address
    ('2.20.5', 'ib0', '10.1.0.1')
    """
    marked = (line.removeprefix(MARK).partition(" ") for line in answer if line.startswith(MARK))
    own = {name: value for name, _, value in marked}
    log = [line for line in answer if not line.startswith(MARK)]
    if "missing" in own:
        return NcclAnswer(not_asked=own["missing"])
    if "library" not in own or not own.get("result", "").isdigit() or not own.get("version", "").isdigit():
        raise ValueError("the library did not answer")
    using = next((m for line in log if (m := _USING.search(line))), None)
    return NcclAnswer(
        library=own["library"],
        version=version_text(int(own["version"][:9])),
        result=int(own["result"][:9]),
        interface=using["interface"] if using else "",
        address=using["address"].partition("%")[0] if using else "",
        environment={m[1]: m[2] for line in log if (m := _SET.search(line))},
        asked_with={k: v for k, v in asked_with.items() if v},
        net_plugin=own.get("plugin"),
        plugins=tuple(m[1] for line in log if (m := _PLUGIN.search(line)))[:8],
        errors=tuple(dict.fromkeys(m[1] for line in log if (m := _WARNED.search(line))))[:8],
    )


def parse_nccl_conf(*files: Iterable[str]) -> dict[str, str]:
    """
    Variables in files, the user's before /etc/nccl.conf: lines that begin with `#` or lack `=` are skipped.

    The first line with a name has priority.  As in setEnvFile of NCCL's src/misc/param.cc, names and values
    end after 1023 bytes, and blanks stay: `NCCL_DEBUG = INFO` sets "NCCL_DEBUG ", which has no effect.

    >>> parse_nccl_conf(["# a comment", "NCCL_DEBUG=INFO", " NCCL_IB_DISABLE=1"], ["NCCL_DEBUG=WARN", "off"])
    {'NCCL_DEBUG': 'INFO', ' NCCL_IB_DISABLE': '1'}
    """
    found: dict[str, str] = {}
    for line in (line for file in files for line in file):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name[:1023], value[:1023])
    return found


def of_release(files: Iterable[tuple[str, Sequence[str]]], version: tuple[int, ...]) -> dict[str, str]:
    """
    Variables that this release of NCCL takes from (source, lines) of agent/facts/home.py.

    >>> files = [("passwd", ["NCCL_NET=IB"]), ("home", ["NCCL_NET=Socket"]), ("system", ["NCCL_NTHREADS=64"])]
    >>> of_release(files, (2, 27, 7)), of_release(files, (2, 30, 7))["NCCL_NET"]
    ({'NCCL_NET': 'IB', 'NCCL_NTHREADS': '64'}, 'Socket')
    """
    found = dict(files)
    own = "home" if version >= HOME_SINCE else "passwd"
    if "named" in found and version >= NAMED_SINCE:
        own = "named"
    return parse_nccl_conf(found.get(own, ()), found.get("system", ()))
