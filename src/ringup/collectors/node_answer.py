"""
A node's answer to the facts script as a frozen Node; every value in the answer is untrusted.

Every string is bounded and made printable.  A value of the wrong type or an impossible value becomes
`unknown` with the reason, without affecting others.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from ringup.collectors import gpus
from ringup.collectors.probe_script import FIELDS, LIMITS_S
from ringup.model import (
    Address,
    Clock,
    Counters,
    Host,
    Interpreter,
    Listener,
    NcclAnswer,
    Node,
    PciDevice,
    PortRanges,
    Resolution,
    Unreached,
    cpu_starvation,
    unreached_node,
)
from ringup.nccl.interface_choice import version_of
from ringup.parse.frames import Frames, split_frames
from ringup.parse.gpus import gpu_uuids, shown_to, visible_count
from ringup.parse.nccl import of_release, parse_nccl_answer
from ringup.secrets import redact_data
from ringup.transport import Answer
from ringup.units import printable, safe_data

LONGEST_TEXT = 4096
MOST_GPUS = 4096
MOST_BRIDGES = 64
"""Most bridges above one PCI function; a domain has 256 buses, real machines stack fewer than ten."""
NO_PYTHON = "no python3 on this node"
LOST_AFTER_S = 4.0
"""Seconds without a byte after which an announced answer is lost; before that it is only late."""

AFTER_SETUP = ("interpreter", "torchrun_on_path", "limits", "environment", "gpu_count", "nccl_answer")
"""Fields without meaning if --setup failed."""
LATE = re.compile(r"(.* gave )?no answer within |timed out after ")
"""Texts of agent/facts/ for a missed limit, in both rounds."""
SLOW_S = 1.0
"""Every rule accepts shorter times."""
_EMPTY = Node("")
"""Unknown fields of a node have these values."""
_Made = TypeVar("_Made")
_TYPES: dict[str, Any] = get_type_hints(Node) | {"nccl_conf": tuple[tuple[str, tuple[str, ...]], ...]}
"""Field of Node -> type of the value that a node sends for it."""
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _is_port(number: int) -> bool:
    return 0 < number < 65536


_POSSIBLE: dict[type, Callable[[Any], object]] = {
    Address: lambda a: 0 <= a.prefix_length <= ip_address(a.address).max_prefixlen,
    Listener: lambda one: ip_address(one.address) and _is_port(one.port),
    PortRanges: lambda ports: _is_port(ports.ephemeral_first) and _is_port(ports.ephemeral_last),
    PciDevice: lambda d: len(d.above) <= MOST_BRIDGES and all(map(_BUS_ID.fullmatch, (d.bus_id, *d.above))),
    Resolution: lambda found: [ip_address(address) for address in found.addresses] or True,
    int: lambda number: 0 <= number <= 1 << 62,
    float: lambda number: number >= 0,  # false for NaN
}
"""Type -> whether a value is possible; a ValueError means that it is not."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """The request to a node, and its time by the launcher's clock."""

    host: Host
    token: str
    parts: tuple[str, ...]
    env: Mapping[str, str]
    """The user's --env."""
    began_s: float
    """time.time() before the script was sent."""


def check(value: Any) -> None:
    """Raise ValueError for impossible numbers or addresses; includes collections."""
    if type(value) in _POSSIBLE and not _POSSIBLE[type(value)](value):
        raise ValueError(f"{value} is not possible")
    if dataclasses.is_dataclass(value):
        value = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for item in value:
            check(item)


def checked(raw: Any, kind: type[_Made]) -> _Made:
    """Plain data as a value of this type; ValueError, TypeError or OverflowError if it does not fit."""
    made = msgspec.convert(raw, kind)
    check(made)
    return made


def counters(raw: Any) -> tuple[Counters, ...]:
    """
    A node's counters; () for anything else.

    >>> counters([{"of": "tcp", "at_s": 1.5, "totals": {"ListenOverflows": 2}}])
    (Counters(of='tcp', at_s=1.5, totals={'ListenOverflows': 2}),)
    >>> counters([{"of": "tcp", "at_s": -1}])
    ()
    """
    try:
        return checked(safe_data(raw, LONGEST_TEXT), tuple[Counters, ...])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return ()


class _Counted(msgspec.Struct):
    """Counts of directories and device files (agent/facts/software.py)."""

    devices: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)]
    proc: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)] | None = None
    listed: list[str] | None = None
    amd: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)] = 0


def gpu_count(raw: Any, environment: Mapping[str, str]) -> int:
    """
    GPUs the job sees.

    For AMD, ROCR_VISIBLE_DEVICES chooses first, then HIP_VISIBLE_DEVICES (or CUDA's variable) among the
    remaining ones (rocm.docs.amd.com, "GPU isolation techniques").

    >>> gpu_count({"devices": 0, "amd": 4}, {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"})
    1
    >>> listed = {"devices": 1, "listed": ["GPU 0: A (UUID: GPU-1)", "  MIG 1g.5gb Device 0: (UUID: MIG-2)"]}
    >>> gpu_count(listed, {}), gpu_count(listed, {"CUDA_VISIBLE_DEVICES": "MIG-2,MIG-3"})
    (1, 1)
    """
    counted = msgspec.convert(raw, _Counted)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if counted.listed is not None:
        found = visible_count(len(gpu_uuids("\n".join(counted.listed))), visible)
        # A process sees one MIG instance, and then no other GPU (NVIDIA's MIG user guide, "CUDA visibility").
        is_mig = "MIG-" in "".join(counted.listed) if visible is None else "MIG-" in visible
        return min(found, 1) if is_mig else found
    if counted.proc is None and counted.devices == 0:
        left = visible_count(counted.amd, environment.get("ROCR_VISIBLE_DEVICES"))
        return visible_count(left, environment.get("HIP_VISIBLE_DEVICES", visible))
    # A container may see the machine's /proc but only its own device files.
    most = counted.devices if counted.proc is None else counted.proc
    return visible_count(min(most, counted.devices), visible)


class _NcclOutput(msgspec.Struct):
    lines: list[str] = []
    asked_with: dict[str, str] = {}
    not_asked: str = ""


def _prepared(name: str, raw: Any, environment: Mapping[str, str]) -> Any:
    """A field's raw value in the shape of its type."""
    if name == "gpu_count":
        return gpu_count(raw, environment)
    if name in ("limits", "container"):
        if not isinstance(raw, dict):
            raise ValueError("an object expected")
        return {k: math.inf if v is None else v for k, v in raw.items()}
    if name == "nccl_answer":
        output = msgspec.convert(raw, _NcclOutput)
        if output.not_asked:
            return {"not_asked": output.not_asked}
        return msgspec.to_builtins(parse_nccl_answer(output.lines, output.asked_with))
    if name == "cache" and raw is None:
        return {"path": "", "total_bytes": 0, "free_bytes": 0}
    return raw


_Seconds = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]


class _Head(msgspec.Struct):
    """The message of agent/facts/main.py: its parts, and facts about all of them."""

    parts: dict[str, msgspec.Raw] = {}
    failed: dict[str, str] = {}
    """Part -> why its facts are unknown."""
    absent: list[str] = []
    """Parts that the node does not have: their fields keep their empty defaults."""
    begin: _Seconds | None = None
    end: _Seconds | None = None
    load: _Seconds | None = None
    runner: str = ""
    """A Python (3.8+)."""


def _decoded(frames: Frames, asked: Asked) -> tuple[dict[str, Any], dict[str, str], _Head]:
    """The values of Node's fields, why others are unknown, and the facts about all of them."""
    values: dict[str, Any] = {}
    fields = [field for part in asked.parts for field in FIELDS[part]]
    unknown = dict.fromkeys(fields, NO_PYTHON)
    if not frames.facts:
        if frames.python:
            found = printable(frames.python.splitlines()[0], 300)
            unknown["interpreter"] = f"{NO_PYTHON}: {found} could not run ringup's program"
        elif unknown.pop("interpreter", ""):
            values["interpreter"] = Interpreter("")
        return values, unknown, _Head()
    try:
        head = msgspec.json.decode(frames.facts, type=_Head)
    except (ValueError, RecursionError) as error:
        return {}, dict.fromkeys(fields, f"garbage: {printable(str(error), 200)}"), _Head()
    unknown = {}
    for part in (part for part in asked.parts if part not in head.absent):
        try:
            plain = msgspec.json.decode(bytes(head.parts.get(part, b"{}")))
            facts = msgspec.convert(safe_data(redact_data(plain), LONGEST_TEXT), dict[str, Any])
            waited_s = msgspec.convert(facts.get("?waited", 0.0), _Seconds)
        except (ValueError, RecursionError) as error:
            unknown |= dict.fromkeys(FIELDS[part], f"garbage: {printable(str(error), 200)}")
            continue
        why_missing = str(facts.get("?", head.failed.get(part, "the node did not report it")))
        values.setdefault("cpu_waits", {})[part] = waited_s
        if part == "gpu":
            known, missing = gpus.gpu_fields(facts, why_missing)
            values |= known
            unknown |= missing
            continue
        environment = {**values.get("environment", {}), **asked.env}
        for name in FIELDS[part]:
            if name not in facts:
                unknown[name] = printable(str(facts.get(f"?{name}", why_missing)), 400)
                continue
            try:
                values[name] = checked(_prepared(name, facts[name], environment), _TYPES[name])
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                unknown[name] = f"garbage: {printable(str(error), 200)}"
    return values, unknown, head


def clock_between(began_s: float, begin: float | None, end: float | None, ended_s: float) -> Clock | None:
    """
    A node's clock, from its own start and end times within our times of request and answer.

    The offset lies in [end - ended_s, begin - began_s]. None if that is empty or not a time.

    >>> clock_between(100.0, 190.3, 190.4, 100.8)
    Clock(offset_s=89.95, error_s=0.35)
    """
    if begin is None or end is None:
        return None
    low, high = end - ended_s, begin - began_s
    if low > high + 0.001:
        return None
    return Clock(round((low + high) / 2, 6), round(max(0.0, high - low) / 2, 6))


def _setup_error(frames: Frames) -> str:
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


def why_no_answer(answer: Answer, frames: Frames) -> Unreached | None:
    if frames.ended and (frames.facts or frames.python is not None):
        return None
    if answer.error is not None:
        is_late = answer.error.kind == "no-answer" and answer.silent_s < LOST_AFTER_S
        is_sure = not is_late and answer.error.kind != "no-cpu-time"
        if frames.announced_bytes is not None and not frames.ended and is_sure:
            words = f"its answer of {frames.announced_bytes:,} bytes was announced and never arrived"
            return Unreached("ssh-long-answer-lost", words)
        return answer.error
    last = (answer.stderr or answer.stdout).decode("utf-8", "replace").strip().splitlines()[-3:]
    words = printable(" / ".join(last), 300) or "nothing at all"
    if answer.truncated:
        words = "too much to read, beginning with " + words[:100]
    return Unreached("no-answer", f"it did not answer with facts but with: {words}")


def node_from(answer: Answer, asked: Asked, *, heard_s: float, noise: str = "") -> tuple[Node, str]:
    """The node of an answer, and a Python (3.8+) on it or ""; `heard_s`: time.time() at the answer's end."""
    frames = split_frames(answer.stdout, asked.token)
    if (failure := why_no_answer(answer, frames)) is not None:
        return unreached_node(asked.host, failure), ""
    values, unknown, head = _decoded(frames, asked)
    if "gpus" in values:
        environment = {**values.get("environment", {}), **asked.env}
        visible, order = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER")
        values["gpus"] = shown_to(values["gpus"], visible, order)
        if (shown := sum(g.is_visible for g in values["gpus"])) and "gpu_count" in values:
            # A scheduler's cgroup hides GPUs but not their files; a lost GPU also still has its files.
            values["gpu_count"] = min(values["gpu_count"], shown)
    if "nccl_conf" in values:
        release = version_of(values["interpreter"].nccl if "interpreter" in values else "")
        values["nccl_conf"] = of_release(values["nccl_conf"], release)
    if setup_error := _setup_error(frames):
        unknown.update(dict.fromkeys(AFTER_SETUP, f"--setup failed: {setup_error}"))
        values = {k: v for k, v in values.items() if k not in AFTER_SETUP}
    values["load"] = head.load or 0.0
    if (clock := clock_between(asked.began_s, head.begin, head.end, heard_s)) is None:
        unknown["clock"] = "the node reported no usable time"
    else:
        values["clock"] = clock
    if asked.host.local and asked.host.address and "interfaces" in values:
        # A simulated node has only the loopback, with its own address.
        address = (Address(asked.host.address, 8, "inet", "global"),)
        loopback = [i for i in values["interfaces"] if i.kind == "loopback"]
        values["interfaces"] = tuple(dataclasses.replace(i, addresses=address) for i in loopback)
        if nccl := values.get("nccl_answer"):
            # The node saw all of this machine's interfaces; a simulated node has only one.
            values["nccl_answer"] = NcclAnswer(nccl.library, nccl.not_asked, nccl.version)
    loaded = values.get("nccl_answer", NcclAnswer()).version
    if "interpreter" in values and loaded:
        # Not always the wheel's NCCL: LD_LIBRARY_PATH and LD_PRELOAD may load another.
        values["interpreter"] = dataclasses.replace(values["interpreter"], nccl=loaded)
    before = printable(frames.noise.decode("utf-8", "replace").replace("\n", " / ").strip(" /"), 400)
    node = Node(
        name=asked.host.name,
        host=asked.host,
        answer_s=answer.took_s,
        setup_error=setup_error,
        shell_noise=noise or before,
        unknown=unknown,
        **values,
    )
    return node, head.runner if head.runner.startswith("/") else ""


def starved(node: Node, waited_s: float) -> str:
    """Why facts are unknown that a busy node could not answer in time."""
    return cpu_starvation.words(node.name, waited_s, node.load, node.cpu_count)


def withdrawn(node: Node) -> Node:
    """The node without limits and durations that took too long; values that were read are kept."""
    unknown = dict(node.unknown)
    for part, waited_s in node.cpu_waits.items():
        for name in FIELDS.get(part, ()):
            if LATE.match(unknown.get(name, "")) and cpu_starvation.excuses(waited_s, LIMITS_S[part]):
                unknown[name] = starved(node, waited_s)
    for name, (waited_s, took_s) in doubtful(node).items():
        if name not in unknown and took_s >= SLOW_S and cpu_starvation.excuses(waited_s, took_s):
            unknown[name] = starved(node, waited_s)
    own_name = node.own_name
    if own_name.took_s >= SLOW_S:
        # It answered: only the time beyond its wait for a CPU counts.
        took_s = max(0.0, own_name.took_s - node.cpu_waits.get("names", 0.0))
        own_name = dataclasses.replace(own_name, took_s=took_s)
    taken = {name: getattr(_EMPTY, name) for name in unknown.keys() - node.unknown.keys()}
    return dataclasses.replace(node, **{"own_name": own_name, **taken, "unknown": unknown})


def doubtful(node: Node) -> dict[str, tuple[float, float]]:
    """Field -> seconds without a CPU, and the seconds that its value reports for another program."""
    waits = node.cpu_waits
    names_s = waits.get("names", 0.0)
    looked_up_s = max(names_s, waits.get("pairs", 0.0))  # each round resolves some names
    return {
        "own_name": (names_s, late_s([(node.own_name.error, node.own_name.took_s)])),
        "peer_names": (looked_up_s, late_s((r.error, r.took_s) for r in node.peer_names)),
        "reverse_lookup_s": (looked_up_s, node.reverse_lookup_s),
        "looks": (waits.get("work", 0.0), max((look.took_s for look in node.looks), default=0.0)),
        "gpu_driver": (waits.get("gpu", 0.0), node.gpu_driver.silent_s),
    }


def late_s(answers: Iterable[tuple[str, float]]) -> float:
    """The longest time of a (error, seconds) pair whose error is a missed limit; 0.0 if there is none."""
    return max((took_s for error, took_s in answers if LATE.match(error)), default=0.0)
