"""Variables of a script or job file: names that no program reads, values with an unexpected meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ringup.launchfiles.marks import has_mark
from ringup.lint.job_file import JobFile
from ringup.lint.ranks import Reading
from ringup.lint.rule import SCRIPT, SHELL, Found, fault
from ringup.nccl import traps, variables
from ringup.units import LONGEST_LINE, printable

FILTERS = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_OOB_NET_IFNAME")
"""Their values may begin with ^ and =."""
_NAME = re.compile(r"(?<![\w$.{/-])(?:NCCL|GLOO)_[A-Z0-9_]{2,60}(?==)")
_COMMENT = re.compile(r"(?:^|\s)#")
_INTERFACE = re.compile(r"(?:ib|eth|em|bond)\d+|en[opsxP]\w+")
_DEVICE = re.compile(r"(?:mlx[45]|bnxt_re|irdma|hfi1|rocep)_?\w{0,20}\d\w{0,20}(?::\d{1,3})?")


class Setting(NamedTuple):
    line: int
    name: str
    value: str
    """As the program sees it; "" if it is not literal."""


def settings(read: JobFile | Reading) -> Iterator[Setting]:
    """The settings of a file, as far as they are literal."""
    if isinstance(read, JobFile):
        for word in read.job.assigned:
            name, _, value = word.text.partition("=")
            yield Setting(word.line, name, "" if has_mark(value) else value)
        for launch in read.launches:
            pairs = launch.env.items() if launch.replicas is not None else ()
            # ${NAME} in a manifest: envsubst fills it in
            yield from (
                Setting(launch.line, name, "" if has_mark(v) or v[:1] == "$" else v) for name, v in pairs
            )
        return
    for name, given, node in read.environment_writes():
        for constant in read.constants(given)[:1] or [""]:
            yield Setting(getattr(node, "lineno", 1), name, str(constant))
    for call in read.script.named("os.environ.setdefault"):
        name, value = (getattr(a, "value", "") for a in [*call.node.args, None, None][:2])
        if isinstance(name, str):
            yield Setting(call.line, name, str(value))


def _named(read: JobFile | Reading) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable of NCCL and Gloo that is set, in a shell file in any way (docker -e)."""
    if isinstance(read, Reading):
        yield from ((one.line, one.name) for one in settings(read))
        return
    for number, line in enumerate(read.text.split("\n"), 1):
        for name in dict.fromkeys(_NAME.findall(_COMMENT.split(line[:LONGEST_LINE])[0])):
            yield number, name


_READ = re.compile(r"\$\{?(\w{1,80})")
_PASSED = re.compile(r"(?:export|declare -x|-e|-x|--env)[ =](\w{1,80})")


def _is_own(text: str, name: str) -> bool:
    """Whether a file reads a variable itself and passes it to no program."""
    return name in _READ.findall(text) and name not in _PASSED.findall(text)


@fault("unknown-nccl-variable", SHELL, severity="warning")
@fault("unknown-nccl-variable", SCRIPT, severity="warning")
def unknown_nccl_variable(read: JobFile | Reading) -> Found:
    for line, name in _named(read):
        if (meant := variables.meant(name)) and not (isinstance(read, JobFile) and _is_own(read.text, name)):
            found = f"neither NCCL nor Gloo reads {printable(name, 80)}"
            yield read.finding(line, found, meant, subject=f"env:{name}")


@fault("nccl-filter-never-matches", SHELL, severity="warning")
@fault("nccl-filter-never-matches", SCRIPT, severity="warning")
def nccl_filter_never_matches(read: JobFile | Reading) -> Found:
    """
    A list of interfaces or RDMA devices for NCCL is written so that an entry matches nothing.

    Why: NCCL compares every letter: `==eth0` matches names that begin with `=`, a blank is part of the
    name, and `^` counts in front of `=` only.

    Fix: `^` and `=` once, in this order, in front of names without blanks: `^=eth0,eth1`.
    """
    for one in settings(read):
        for sentence in traps.spelling(one.name, one.value, 1 << 16) if one.name in FILTERS else ():
            wanted = "^ and = once, names without blanks"
            yield read.finding(one.line, printable(sentence, 200), wanted, subject=f"env:{one.name}")
            break


@fault("value-begins-with-equals", SHELL, severity="warning")
def value_begins_with_equals(job: JobFile) -> Found:
    """
    A variable is assigned with two equals signs.

    Why: the shell takes the first one; the second is the first letter of the value.  Only NCCL's lists of
    names (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) know such a value.

    Fix: write one `=`.
    """
    lines = job.text.split("\n")
    for word in job.job.assigned:
        name, _, value = word.text.partition("=")
        is_comparison = "((" in lines[word.line - 1] or value == "="  # a separator: IFS='='
        if value.startswith("=") and name not in FILTERS and not is_comparison:
            found = f"the value of {name} is {printable(value, 80)!r}: the shell takes one = only"
            yield job.finding(word.line, found, "one =", subject=f"env:{name}")


@fault("rdma-device-name-missing", SHELL, severity="warning")
@fault("rdma-device-name-missing", SCRIPT, severity="warning")
def rdma_device_name_missing(read: JobFile | Reading) -> Found:
    """NCCL_IB_HCA with names of network interfaces."""
    for one in settings(read):
        items = re.split(",", one.value.lstrip("^=")) if one.name == "NCCL_IB_HCA" else ()
        if names := [item for item in items if _INTERFACE.fullmatch(item.partition(":")[0])]:
            found = f"{one.name}={printable(one.value, 80)}: {names[0]} is a network interface"
            wanted = "RDMA devices, as `ls /sys/class/infiniband` shows them: mlx5_0"
            yield read.finding(one.line, found, wanted, severity="warning")


@fault("interface-name-missing", SHELL, severity="warning")
@fault("interface-name-missing", SCRIPT, severity="warning")
def interface_name_missing(read: JobFile | Reading) -> Found:
    """NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME with names of RDMA devices."""
    for one in settings(read):
        items = one.value.lstrip("^=").split(",") if one.name.endswith("_SOCKET_IFNAME") else ()
        if names := [item for item in items if _DEVICE.fullmatch(item)]:
            found = f"{one.name}={printable(one.value, 80)}: {names[0]} is an RDMA device"
            wanted = "network interfaces, as `ip -br addr` shows them"
            yield read.finding(one.line, found, wanted, severity="warning")
