"""A node's answer about its GPUs as facts; each missing fact has its own reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from ringup.model import GpuDriver
from ringup.parse import gpus as parse
from ringup.units import printable

_VERSION = re.compile(r"(?:Kernel Module|for \w+)\s+(\d{2,4}(?:\.\d+){1,3})\b")
_LIBRARY = re.compile(r"NVML library version: ([\d.]{3,20})")
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for [^\n]{0,80}?([0-9a-fA-F]{4,8}:\w\w:\w\w\.\d)"
)
"""nvidia-smi's "Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error"."""
SMI_FIELDS = ("gpus", "gpu_links", "gpu_processes")
NO_TOOL = "the NVIDIA driver is loaded, no nvidia-smi is on PATH"


class _Output(msgspec.Struct):
    lines: list[str] = []
    status: int | None = None
    silent_s: float = 0.0
    stuck: bool = False

    @property
    def words(self) -> str:
        return printable(" / ".join(line for line in self.lines if line.strip()), 300)


class _Nvidia(msgspec.Struct):
    """The answers of agent/facts/gpu.py about NVIDIA's driver."""

    outputs: dict[str, _Output] = {}
    fields: list[str] = []
    refused: list[str] = []
    lost: list[str] = []
    version: list[str] = []
    peer_memory: list[str] = []
    fabric_manager: Literal["running", "absent", "hidden"] = "hidden"


class _Kernel(msgspec.Struct):
    lines: list[str] = []
    uptime_s: float = 0.0


def gpu_fields(raw: Mapping[str, Any], why_missing: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of Node's GPU fields, and why others are unknown; invalid data only affect their own fields."""
    values: dict[str, Any] = {"kernel_events": (), "gpu_driver": GpuDriver()}
    values.update(dict.fromkeys(SMI_FIELDS, ()))
    unknown: dict[str, str] = {}
    readers = (("nvidia", (*SMI_FIELDS, "gpu_driver"), _nvidia), ("kernel", ("kernel_events",), _kernel))
    for key, fields, reader in readers:
        if f"?{key}" in raw or key not in raw:
            unknown |= dict.fromkeys(fields, printable(str(raw.get(f"?{key}", why_missing)), 400))
        elif raw[key] is not None:
            try:
                found, missing = reader(raw[key])
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                found, missing = {}, dict.fromkeys(fields, f"garbage: {printable(str(error), 200)}")
            values |= found
            unknown |= missing
    if raw.get("amd") and not values["gpus"]:
        unknown |= dict.fromkeys(SMI_FIELDS, "AMD GPUs are only counted")
    return {k: v for k, v in values.items() if k not in unknown}, unknown


def _kernel(raw: Any) -> tuple[dict[str, Any], dict[str, str]]:
    log = msgspec.convert(raw, _Kernel)
    return {"kernel_events": parse.parse_kernel_events(log.lines, log.uptime_s)}, {}


def _why(output: _Output) -> str:
    if output.status is None:
        return f"no answer within {output.silent_s:.1f} s"
    return f"exit status {output.status}: {output.words}"


def _nvidia(raw: Any) -> tuple[dict[str, Any], dict[str, str]]:
    answers = msgspec.convert(raw, _Nvidia)
    driver = _driver(answers)
    if not answers.outputs:
        return {"gpu_driver": driver}, dict.fromkeys(SMI_FIELDS, NO_TOOL)
    answer = answers.outputs.get("gpus", _Output())
    if not (gpus := parse.parse_gpus(answer.lines, answers.fields)):
        return {"gpu_driver": driver}, dict.fromkeys(SMI_FIELDS, f"nvidia-smi: {_why(answer)}")
    unknown = {}
    links, errors = answers.outputs.get("nvlink", _Output()), answers.outputs.get("nvlink_errors", _Output())
    found = parse.parse_nvlinks(links.lines, errors.lines)
    gpus = tuple(replace(g, nvlinks=found.get(g.index, ())) for g in gpus)
    values: dict[str, Any] = {"gpu_driver": driver, "gpus": gpus}
    apps = answers.outputs.get("apps", _Output())
    if apps.status == 0:
        values["gpu_processes"] = parse.parse_processes(apps.lines, gpus)
    else:
        unknown["gpu_processes"] = f"nvidia-smi --query-compute-apps: {_why(apps)}"
    peers, matrix = answers.outputs.get("peers"), answers.outputs.get("matrix")
    if peers is None or peers.status == 0:
        lines = peers.lines if peers else []
        values["gpu_links"] = parse.parse_links(lines, matrix.lines if matrix else [])
    else:
        unknown["gpu_links"] = f"nvidia-smi topo -p2p r: {_why(peers)}"
    return values, unknown


def _driver(answers: _Nvidia) -> GpuDriver:
    """From the first line of /proc/driver/nvidia/version, and nvidia-smi's failure."""
    line = answers.version[0] if answers.version else ""
    version = _VERSION.search(line)
    answer = answers.outputs.get("gpus", _Output(status=0))
    failed = bool(answer.status)
    library = _LIBRARY.search("\n".join(answer.lines)) if failed else None
    no_handle = _NO_HANDLE.findall("\n".join(answer.lines))
    return GpuDriver(
        version=version[1] if version else "",
        is_open="Open Kernel Module" in line,
        library=library[1].rstrip(".") if library else "",
        error=answer.words if failed else "",
        lost=tuple(filter(None, dict.fromkeys(map(parse.bus_id, [*answers.lost, *no_handle])))),
        peer_memory=answers.peer_memory[0][:40] if answers.peer_memory else "",
        fabric_manager=answers.fabric_manager,
        silent_s=round(max([t.silent_s for t in answers.outputs.values() if t.status is None] or [0.0]), 1),
        is_stuck=any(t.stuck for t in answers.outputs.values()),
        refused=tuple(f[:80] for f in answers.refused[:20]),
    )
