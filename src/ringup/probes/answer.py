"""
A node's answer to the facts script -> a frozen Node; nothing in an answer is trusted.

Output may be binary, cut, huge or a lie: every string is bounded and made printable,
every value must have its field's type and a possible size, and what does not is
`unknown` with the reason, alone.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ringup.facts import (
    Address,
    Clock,
    Counters,
    Host,
    Interface,
    Listener,
    NcclAnswer,
    Node,
    PciDevice,
    PortRanges,
    Resolution,
    Unreached,
    unreached_node,
)
from ringup.nccl.choice import version_of
from ringup.parse import nccl_conf
from ringup.parse.frames import Frames, split_frames
from ringup.parse.gpus import gpu_uuids, visible_count
from ringup.parse.nccl_answer import parse_nccl_answer
from ringup.probes import devices, plain
from ringup.probes.script import FIELDS
from ringup.probes.shapes import TYPES
from ringup.probes.voice import seconds
from ringup.reach import Answer
from ringup.units import printable

LONGEST_TEXT = 4096
MOST_ITEMS = 100_000
DEEPEST = 12
MOST_GPUS = 4096
MOST_BRIDGES = 64
"""Above one PCI function; a domain has 256 buses, real machines stack fewer than ten."""
LOST_AFTER_S = 4.0
"""An answer that was announced and of which nothing came for so long is lost; before that it is late."""

AFTER_SETUP = ("interpreter", "torchrun_on_path", "limits", "environment", "gpu_count", "nccl_answer")
"""Fields that mean nothing when --setup failed."""


_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class Garbage(ValueError):
    """A value that cannot be what it says it is."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a node was asked and when, by the launcher's clock."""

    host: Host
    token: str
    parts: tuple[str, ...]
    env: Mapping[str, str]
    """The user's --env."""
    began_s: float
    """time.time() before the script was sent."""


def safe(value: Any, depth: int = 0) -> Any:
    """
    Plain data with every string bounded and printable.

    >>> safe({"a\\x1b": ["\\x07", 1]})
    {'a\\\\x1b': ['\\\\x07', 1]}
    """
    if isinstance(value, str):
        return printable(value, LONGEST_TEXT)
    if depth > DEEPEST or (isinstance(value, list | dict) and len(value) > MOST_ITEMS):
        raise Garbage("too deep or too long")
    if isinstance(value, list):
        return [safe(v, depth + 1) for v in value]
    if isinstance(value, dict):
        return {printable(str(k), 200): safe(v, depth + 1) for k, v in value.items()}
    return value


def _address(text: str) -> None:
    ipaddress.ip_address(text.partition("%")[0])


def _port(number: int) -> None:
    if not 0 < number < 65536:
        raise Garbage(f"{number} is not a port")


def check(value: Any) -> None:
    """Raise ValueError when a value's numbers or addresses are impossible; walks into collections."""
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            if value < 0 or (isinstance(value, int) and value > 1 << 62) or math.isnan(value):
                raise Garbage(f"{value} is not possible")
        case Address():
            if not 0 <= value.prefix_length <= ipaddress.ip_address(value.address).max_prefixlen:
                raise Garbage(f"{value.address}/{value.prefix_length} is not an address")
        case Listener():
            _address(value.address)
            _port(value.port)
            check(value.process)
        case PortRanges():
            _port(value.ephemeral_first)
            _port(value.ephemeral_last)
        case PciDevice():
            if not all(_BUS_ID.fullmatch(bus) for bus in (value.bus_id, *value.above)):
                raise Garbage(f"{value.bus_id} is not a PCI address")
            if len(value.above) > MOST_BRIDGES:
                raise Garbage(f"{len(value.above)} bridges above {value.bus_id} are not possible")
        case Resolution():
            for address in value.addresses:
                _address(address)
            check(value.took_s)
        case tuple():
            for item in value:
                check(item)
        case Mapping():
            check(tuple(value.values()))
        case _ if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                check(getattr(value, field.name))


def counters(raw: Any) -> tuple[Counters, ...]:
    """
    The counters a node told; () for anything else.

    >>> counters([{"of": "tcp", "at_s": 1.5, "totals": {"ListenOverflows": 2}}])
    (Counters(of='tcp', at_s=1.5, totals={'ListenOverflows': 2}),)
    >>> counters([{"of": "tcp", "at_s": -1}])
    ()
    """
    try:
        made = msgspec.convert(safe(raw), tuple[Counters, ...])
        check(made)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()
    return made


def gpu_count(raw: Mapping[str, Any], visible: str | None) -> int:
    """
    GPUs the job sees, from counts of directories and device files (see payload/facts_software.py).

    Raises ValueError, with the reason, where that cannot be told.
    """
    proc, devices, listed = raw.get("proc"), raw.get("devices"), raw.get("listed")
    if isinstance(listed, list):
        return visible_count(len(gpu_uuids("\n".join(map(str, listed)))), visible)
    if raw.get("reason"):
        raise Garbage(str(raw["reason"]))
    if not isinstance(devices, int) or not isinstance(proc, int | None):
        raise Garbage("counts expected")
    if not 0 <= devices < MOST_GPUS or not 0 <= (proc or 0) < MOST_GPUS:
        raise Garbage(f"{devices} devices and {proc} GPUs are not possible")
    if proc is None and devices == 0:
        if raw.get("driver"):
            raise Garbage("the NVIDIA driver is loaded, its list of GPUs cannot be read")
        if raw.get("amd"):
            raise Garbage("AMD GPUs are not counted")
        return 0
    # A container may be shown the machine's /proc and only its own device files.
    return visible_count(devices if proc is None else min(proc, devices), visible)


class _Told(msgspec.Struct):
    """What payload/facts_nccl.py sends."""

    lines: list[str] = []
    asked_with: dict[str, str] = {}
    not_asked: str = ""


def _prepared(name: str, raw: Any) -> Any:
    """A field's raw value brought into the shape of its type."""
    if name in ("limits", "container"):
        if not isinstance(raw, dict):
            raise Garbage("an object expected")
        return {k: math.inf if v is None else v for k, v in raw.items()}
    if name == "nccl_answer":
        told = msgspec.convert(raw, _Told)
        return msgspec.to_builtins(parse_nccl_answer(told.lines, told.asked_with, told.not_asked))
    if name == "cache" and raw is None:
        return {"path": "", "total_bytes": 0, "free_bytes": 0}
    return raw


def _fields_of(
    part: str, raw: bytes, why_missing: str, values: dict[str, Any], unknown: dict[str, str]
) -> None:
    """One part of the facts into `values`, or into `unknown`."""
    try:
        facts = safe(msgspec.json.decode(raw))
        if not isinstance(facts, dict):
            raise Garbage("an object expected")
    except (ValueError, RecursionError) as error:
        unknown.update(dict.fromkeys(FIELDS[part], f"garbage: {printable(str(error), 200)}"))
        return
    why_missing = str(facts.get("?", why_missing))
    values.setdefault("cpu_waits", {})[part] = seconds(facts.get("?waited"))
    if part == "gpu":
        found, missing = devices.gpu_fields(facts, why_missing)
        values.update(found)
        unknown.update(missing)
        return
    for name in FIELDS[part]:
        told = "gpus" if name == "gpu_count" else name
        if told not in facts:
            unknown[name] = printable(str(facts.get(f"?{told}", why_missing)), 400)
            continue
        try:
            if name == "gpu_count":
                values["counted gpus"] = msgspec.convert(facts["gpus"], dict[str, Any])
                continue
            value = msgspec.convert(_prepared(name, facts[name]), TYPES[name])
            check(value)
            values[name] = value
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            unknown[name] = f"garbage: {printable(str(error), 200)}"


def _decoded(frames: Frames, asked: Asked) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Values, reasons and head of a python answer."""
    values: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    try:
        head = msgspec.json.decode(frames.facts, type=dict[str, msgspec.Raw])
        parts = msgspec.json.decode(head.pop("parts"), type=dict[str, msgspec.Raw])
        plain_head = {k: safe(msgspec.json.decode(v)) for k, v in head.items()}
    except (ValueError, KeyError, RecursionError, msgspec.MsgspecError) as error:
        reason = f"garbage: {printable(str(error), 200)}"
        return {}, dict.fromkeys([f for p in asked.parts for f in FIELDS[p]], reason), {}
    failed = plain_head.get("failed")
    failed = failed if isinstance(failed, dict) else {}
    absent = plain_head.get("absent")
    for part in asked.parts:
        if isinstance(absent, list) and part in absent:
            continue  # its fields' empty defaults are the answer
        why_missing = str(failed.get(part, "the node did not tell"))
        _fields_of(part, bytes(parts.get(part, b"{}")), why_missing, values, unknown)
    return values, unknown, plain_head


def clock_between(began_s: float, begin: object, end: object, ended_s: float) -> Clock | None:
    """
    A node's clock from its own times of beginning and end, within ours of asking and hearing.

    The offset lies in [end - ended_s, begin - began_s].  None when that is empty or no time.

    >>> clock_between(100.0, 190.3, 190.4, 100.8)
    Clock(offset_s=89.95, error_s=0.35)
    """
    if not (isinstance(begin, int | float) and isinstance(end, int | float)):
        return None
    try:
        low, high = end - ended_s, begin - began_s
    except OverflowError:  # an integer beyond any float
        return None
    if not math.isfinite(low) or not math.isfinite(high) or low > high + 0.001 or abs(low) > 1e10:
        return None
    return Clock(round((low + high) / 2, 6), round(max(0.0, high - low) / 2, 6))


def _setup_error(frames: Frames) -> str:
    """What --setup said when it failed."""
    if frames.setup_failed is None:
        return ""
    if frames.setup_code is not None:
        how = f"exit status {frames.setup_code}"
    elif frames.setup_failed == 124:
        how = "stopped, it took too long"
    else:
        how = f"it ended the shell with exit status {frames.setup_failed}"
    words = printable(" / ".join(frames.setup_words.splitlines()[-5:]), 400)
    return f"{how}: {words}" if words else how


def _local_interfaces(interfaces: tuple[Interface, ...], address: str) -> tuple[Interface, ...]:
    """Of a node played here: the loopback with the one address it plays on, which peers are told."""
    return tuple(
        dataclasses.replace(i, addresses=(Address(address, 8, "inet", "global"),))
        for i in interfaces
        if i.kind == "loopback"
    )


def why_no_answer(answer: Answer, frames: Frames) -> Unreached | None:
    """Why there is nothing to read in an answer, None when there is."""
    if frames.ended and (frames.facts or frames.plain):
        return None
    if answer.error is not None:
        is_late = answer.error.kind == "no-answer" and answer.silent_s < LOST_AFTER_S
        is_sure = not is_late and answer.error.kind != "no-cpu-time"
        if frames.announced_bytes is not None and not frames.ended and is_sure:
            words = f"its answer of {frames.announced_bytes:,} bytes was announced and never arrived"
            return Unreached("ssh-long-answer-lost", words)
        return answer.error
    said = (answer.stderr or answer.stdout).decode("utf-8", "replace").strip()
    words = printable(" / ".join(said.splitlines()[-3:]), 300) or "nothing at all"
    if answer.truncated:
        words = "too much to read, beginning with " + words[:100]
    return Unreached("no-answer", f"instead of facts it said: {words}")


def node_from(answer: Answer, asked: Asked, *, heard_s: float, noise: str = "") -> tuple[Node, str]:
    """
    The node an answer describes, and the path of a Python (3.8+) that runs there, "" if none.

    `heard_s` is time.time() at its arrival.  Never raises for what a node says.
    """
    frames = split_frames(answer.stdout, asked.token)
    failure = why_no_answer(answer, frames)
    if failure is not None:
        return unreached_node(asked.host, failure), ""
    if frames.facts:
        values, unknown, head = _decoded(frames, asked)
    else:
        values, unknown, head = plain.decoded(frames.plain, asked.parts)
    raw_gpus = values.pop("counted gpus", None)
    if raw_gpus is not None and "gpu_count" not in unknown:
        environment = values.get("environment", {})
        visible = asked.env.get("CUDA_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
        try:
            values["gpu_count"] = gpu_count(raw_gpus, visible)
        except (ValueError, TypeError, AttributeError) as error:
            unknown["gpu_count"] = printable(str(error), 200)
    if "gpus" in values:
        environment = {**values.get("environment", {}), **asked.env}
        values["gpus"] = devices.seen_by_job(values["gpus"], environment)
        shown = sum(g.is_visible for g in values["gpus"])
        if shown and "gpu_count" in values:
            # A scheduler's cgroup hides GPUs whose files are there; one that is lost has its files still.
            values["gpu_count"] = min(values["gpu_count"], shown)
        amd = devices.amd_count(values["gpus"], environment)
        if amd is not None and "gpu_count" in unknown:
            del unknown["gpu_count"]
            values["gpu_count"] = amd
    if "nccl_conf" in values:
        release = version_of(values["interpreter"].nccl if "interpreter" in values else "")
        values["nccl_conf"] = nccl_conf.of_release(values["nccl_conf"], release)
    setup_error = _setup_error(frames)
    if setup_error:
        unknown.update(dict.fromkeys(AFTER_SETUP, f"--setup failed: {setup_error}"))
        values = {k: v for k, v in values.items() if k not in AFTER_SETUP}
    values["load"] = seconds(head.get("load"))
    clock = clock_between(asked.began_s, head.get("begin"), head.get("end"), heard_s)
    if clock is None:
        unknown["clock"] = "the node told no usable time"
    else:
        values["clock"] = clock
    if asked.host.local and asked.host.address and "interfaces" in values:
        values["interfaces"] = _local_interfaces(values["interfaces"], asked.host.address)
        if "nccl_answer" in values:
            # It saw all of this machine's interfaces, of which the node played here has one.
            told = values["nccl_answer"]
            values["nccl_answer"] = NcclAnswer(told.library, told.not_asked, told.version)
    if "interpreter" in values and values.get("nccl_answer", NcclAnswer()).version:
        # Not always the wheel's: LD_LIBRARY_PATH and LD_PRELOAD may bring another.
        loaded = values["nccl_answer"].version
        values["interpreter"] = dataclasses.replace(values["interpreter"], nccl=loaded)
    before = printable(" / ".join(frames.noise.decode("utf-8", "replace").split("\n")).strip(" /"), 400)
    node = Node(
        name=asked.host.name,
        host=asked.host,
        answer_s=answer.took_s,
        setup_error=setup_error,
        shell_noise=noise or before,
        unknown=unknown,
        **values,
    )
    return node, _usable_python(head)


def _usable_python(head: Mapping[str, Any]) -> str:
    """The python every program of ours can run on, as the node found it."""
    runner = head.get("runner")
    return runner if isinstance(runner, str) and runner.startswith("/") else ""
