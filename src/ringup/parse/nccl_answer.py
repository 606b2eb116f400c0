"""What NCCL's own library said when it was asked (see payload/facts_nccl.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ringup.facts import NcclAnswer

MARK = "ringup-nccl "
_USING = re.compile(r"Bootstrap ?: Using ([^\s:]{1,64}):(\S{1,80})<\d+>")
_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{1,80}) set by environment to (.{0,300}?)\.?\s*$")
_WARNED = re.compile(r"NCCL WARN (.{1,300})")
_PLUGIN = re.compile(r"NCCL INFO ((?:NET|ENV|TUNER|PROFILER)/Plugin.{0,300}|.{0,80}[Pp]lugin .{0,200})")


def version_text(number: int) -> str:
    """
    ncclGetVersion's number as NCCL is called; from 2.9 on there are two digits for the minor release.

    >>> version_text(22005), version_text(2708), version_text(23007), version_text(0)
    ('2.20.5', '2.7.8', '2.30.7', '')
    """
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}" if number >= 2000 else ""


def parse_nccl_answer(
    lines: Iterable[str], asked_with: Mapping[str, str] | None = None, not_asked: str = ""
) -> NcclAnswer:
    """
    The facts in the lines a node told.  Raises ValueError where there is neither an answer nor a reason.

    >>> made = parse_nccl_answer(["ringup-nccl library /l/libnccl.so.2", "ringup-nccl version 22005",
    ...     "n1:7:7 [0] NCCL INFO Bootstrap : Using ib0:10.1.0.1<0>", "ringup-nccl result 0"])
    >>> made.version, made.interface, made.address
    ('2.20.5', 'ib0', '10.1.0.1')
    """
    if not_asked:
        return NcclAnswer(not_asked=not_asked)
    told, said = dict[str, str](), list[str]()
    for line in lines:
        name, _, value = line.partition(MARK)[2].partition(" ")
        if line.startswith(MARK):
            told[name] = value
        else:
            said.append(line)
    if "missing" in told:
        return NcclAnswer(not_asked=told["missing"])
    if "library" not in told or not told.get("result", "").isdigit() or not told.get("version", "").isdigit():
        raise ValueError("the library did not answer")
    using = next((m for line in said if (m := _USING.search(line))), None)
    return NcclAnswer(
        library=told["library"],
        version=version_text(int(told["version"][:9])),
        result=int(told["result"][:9]),
        interface=using[1] if using else "",
        address=using[2].partition("%")[0] if using else "",
        environment={m[1]: m[2] for line in said if (m := _SET.search(line))},
        asked_with={k: v for k, v in (asked_with or {}).items() if v},
        net_plugin=told.get("plugin"),
        plugins=tuple(m[1] for line in said if (m := _PLUGIN.search(line)))[:8],
        errors=tuple(dict.fromkeys(m[1] for line in said if (m := _WARNED.search(line))))[:8],
    )
