"""What a node told of its GPUs -> facts; each fact that is missing has its own reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ringup.facts import Gpu, GpuDriver
from ringup.parse import gpus as parse
from ringup.units import printable

_VERSION = re.compile(r"(?:Kernel Module|for \w+)\s+(\d{2,4}(?:\.\d+){1,3})\b")
_LIBRARY = re.compile(r"NVML library version: ([\d.]{3,20})")
SMI_FIELDS = ("gpus", "gpu_links", "gpu_processes")
NO_TOOL = "the NVIDIA driver is loaded, no nvidia-smi is on PATH"


class _Told(msgspec.Struct):
    """One program's answer."""

    lines: list[str] = []
    status: int | None = None
    silent_s: float = 0.0
    stuck: bool = False

    @property
    def words(self) -> str:
        return printable(" / ".join(line for line in self.lines if line.strip()), 300)


class _Nvidia(msgspec.Struct):
    """What payload/facts_gpu.py tells of NVIDIA's driver."""

    told: dict[str, _Told] = {}
    fields: list[str] = []
    refused: list[str] = []
    lost: list[str] = []
    version: list[str] = []
    peer_memory: list[str] = []
    fabric_manager: str = "hidden"


class _Kernel(msgspec.Struct):
    lines: list[str] = []
    uptime_s: float = 0.0


def gpu_fields(raw: Mapping[str, Any], why_missing: str) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Values of the fields of Node about GPUs, and why the others are unknown.

    Never raises for what a node says: garbage makes its own fields unknown.
    """
    values: dict[str, Any] = {"kernel_events": (), "gpu_driver": GpuDriver()}
    values.update(dict.fromkeys(SMI_FIELDS, ()))
    unknown: dict[str, str] = {}
    readers = (
        ("nvidia", (*SMI_FIELDS, "gpu_driver"), _nvidia),
        ("kernel", ("kernel_events",), _kernel),
        ("amd", SMI_FIELDS, _amd),
    )
    for key, fields, reader in readers:
        reason = printable(str(raw.get(f"?{key}", why_missing)), 400)
        if f"?{key}" in raw or key not in raw:
            # What NVIDIA's tool told stands, whatever became of AMD's.
            unknown.update({f: reason for f in fields if key != "amd" or not values.get(f)})
        elif raw.get(key) is not None:
            try:
                told, missing = reader(raw[key])
            except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
                told, missing = {}, dict.fromkeys(fields, f"garbage: {printable(str(error), 200)}")
            values.update(told)
            unknown.update(missing)
    return {k: v for k, v in values.items() if k not in unknown}, unknown


def _kernel(raw: Any) -> tuple[dict[str, Any], dict[str, str]]:
    told = msgspec.convert(raw, _Kernel)
    return {"kernel_events": parse.parse_kernel_events(told.lines, told.uptime_s)}, {}


def _amd(raw: Any) -> tuple[dict[str, Any], dict[str, str]]:
    told = msgspec.convert(raw, _Told)
    if told.status != 0:
        raise ValueError(f"rocm-smi: {_why(told)}")
    rest = "AMD GPUs: their links and processes are not read"
    return {"gpus": parse.parse_rocm_smi("\n".join(told.lines))}, {"gpu_links": rest, "gpu_processes": rest}


def _why(told: _Told) -> str:
    """Why an answer is none."""
    if told.status is None:
        return f"no answer within {told.silent_s:.1f} s"
    return f"exit status {told.status}: {told.words}"


def _nvidia(raw: Any) -> tuple[dict[str, Any], dict[str, str]]:
    said = msgspec.convert(raw, _Nvidia)
    driver = _driver(said)
    if not said.told:
        return {"gpu_driver": driver}, dict.fromkeys(SMI_FIELDS, NO_TOOL)
    answer = said.told.get("gpus", _Told())
    gpus = parse.parse_gpus(answer.lines, said.fields)
    if not gpus:
        return {"gpu_driver": driver}, dict.fromkeys(SMI_FIELDS, f"nvidia-smi: {_why(answer)}")
    if "remapped" in said.told:
        gpus = parse.parse_remapped(said.told["remapped"].lines, gpus)
    unknown = {}
    links, errors = said.told.get("nvlink", _Told()), said.told.get("nvlink_errors", _Told())
    found = parse.parse_nvlinks(links.lines, errors.lines)
    gpus = tuple(replace(g, nvlinks=found.get(g.index, ())) for g in gpus)
    values: dict[str, Any] = {"gpu_driver": driver, "gpus": gpus}
    apps = said.told.get("apps", _Told())
    if apps.status == 0:
        values["gpu_processes"] = parse.parse_processes(apps.lines, gpus)
    else:
        unknown["gpu_processes"] = f"nvidia-smi --query-compute-apps: {_why(apps)}"
    peers, matrix = said.told.get("peers"), said.told.get("matrix")
    if peers is None or peers.status == 0:
        lines = peers.lines if peers else []
        values["gpu_links"] = parse.parse_links(lines, matrix.lines if matrix else [])
    else:
        unknown["gpu_links"] = f"nvidia-smi topo -p2p r: {_why(peers)}"
    return values, unknown


def _driver(said: _Nvidia) -> GpuDriver:
    """Of the first line of /proc/driver/nvidia/version, and how nvidia-smi failed."""
    line = said.version[0] if said.version else ""
    version = _VERSION.search(line)
    answer = said.told.get("gpus", _Told(status=0))
    failed = bool(answer.status)
    library = _LIBRARY.search("\n".join(answer.lines)) if failed else None
    return GpuDriver(
        version=version[1] if version else "",
        is_open="Open Kernel Module" in line,
        library=library[1].rstrip(".") if library else "",
        error=answer.words if failed else "",
        lost=tuple(dict.fromkeys(filter(None, [*map(parse.bus_id, said.lost), *_no_handle(answer.lines)]))),
        peer_memory=said.peer_memory[0][:40] if said.peer_memory else "",
        fabric_manager=said.fabric_manager if said.fabric_manager in ("running", "absent") else "hidden",  # type: ignore[arg-type]
        silent_s=round(max([t.silent_s for t in said.told.values() if t.status is None] or [0.0]), 1),
        is_stuck=any(t.stuck for t in said.told.values()),
        refused=tuple(f[:80] for f in said.refused[:20]),
    )


def _no_handle(lines: Sequence[str]) -> list[str]:
    """
    Addresses in nvidia-smi's "Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error".

    >>> _no_handle(["Unable to determine the device handle for GPU 0000:01:00.0: Not Found"])
    ['0000:01:00.0']
    """
    pattern = re.compile(r"Unable to determine the device handle for [^\n]*?([0-9a-fA-F]{4,8}:\w\w:\w\w\.\d)")
    return [parse.bus_id(match[1]) for line in lines if (match := pattern.search(line))]


def seen_by_job(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs marked as CUDA_VISIBLE_DEVICES leaves them."""
    if any(g.vendor == "amd" for g in gpus):
        return gpus
    return parse.shown_to(gpus, environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER"))


def amd_count(gpus: tuple[Gpu, ...], environment: Mapping[str, str]) -> int | None:
    """
    AMD GPUs that the job sees, None where there are none or others too.

    ROCR_VISIBLE_DEVICES chooses first, HIP_VISIBLE_DEVICES (or CUDA's variable) among what it leaves;
    rocm.docs.amd.com, "GPU isolation techniques".

    >>> amd_count((Gpu(0, vendor="amd"), Gpu(1, vendor="amd")), {"HIP_VISIBLE_DEVICES": "1"})
    1
    """
    if not gpus or any(g.vendor != "amd" for g in gpus):
        return None
    left = parse.visible_count(len(gpus), environment.get("ROCR_VISIBLE_DEVICES"))
    return parse.visible_count(
        left, environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    )
