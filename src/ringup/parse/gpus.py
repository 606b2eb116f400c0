"""GPUs from nvidia-smi's output, and the number of them that a job sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ringup.model import Gpu, GpuLink, GpuProcess, KernelEvent, NvLink
from ringup.units import COLOURS, MIB

MOST_GPUS = 256
_GPU_LINE = re.compile(r"^GPU (\d+): (.{0,300}?)(?: \(UUID: ([\w-]+)\))?[ \t\r]*$", re.MULTILINE)
_BUS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")
_NOTHING = ("N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Unknown]", "")
_TROUBLE = re.compile(r"(?i)\[?(GPU requires reset|GPU is lost|Unknown Error|Insufficient Permissions)\]?")
_LINK = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|(<inactive>))")
_ALL_INACTIVE = re.compile("all links are inActive")
_ERRORS = re.compile(r"^\s*Link (\d+): (?:Replay|Recovery|CRC) Errors: (\d+)")
_XID = re.compile(r"(?:NVRM: X|(S)X)id \(PCI:([0-9a-fA-F:.]+)\): (\d{1,9})(?!\d)(.*)")


def gpu_uuids(text: str) -> list[str]:
    """
    UUID of each GPU in the output of `nvidia-smi -L` ("" if it shows none); without MIG slices.

    >>> gpu_uuids("GPU 0: NVIDIA H200 (UUID: GPU-5a1)\\n  MIG 1g.18gb  Device  0: (UUID: MIG-77)\\n")
    ['GPU-5a1']
    """
    return [match[3] or "" for match in _GPU_LINE.finditer(text)]


def visible_count(total: int, cuda_visible_devices: str | None) -> int:
    """
    GPUs that CUDA_VISIBLE_DEVICES leaves of `total`; None is unset, "" hides all.

    As the CUDA runtime reads it (CUDA C Programming Guide, "CUDA Environment Variables"): the list ends at
    the first index that does not exist, and a duplicate hides everything.  UUIDs cannot be checked against a
    count and are assumed to exist.

    >>> visible_count(8, None), visible_count(8, "0,1"), visible_count(8, ""), visible_count(2, "0,5,1")
    (8, 2, 0, 1)
    >>> visible_count(8, "GPU-1a2b,GPU-3c4d"), visible_count(8, "-1"), visible_count(4, "1,1")
    (2, 0, 0)
    """
    return total if cuda_visible_devices is None else min(len(_chosen(total, cuda_visible_devices)), total)


def _chosen(total: int, cuda_visible_devices: str) -> list[str]:
    chosen: list[str] = []
    for word in cuda_visible_devices.split(","):
        name = word.strip()
        if digits := re.match(r"[+-]?\d+", name):
            if not 0 <= int(digits[0]) < total:
                break
            name = str(int(digits[0]))
        elif not name.startswith(("GPU-", "MIG-")):
            break
        chosen.append(name)
    return [] if len(set(chosen)) < len(chosen) else chosen


def shown_to(
    gpus: Sequence[Gpu], cuda_visible_devices: str | None, order: str | None = None
) -> tuple[Gpu, ...]:
    """
    The GPUs, each with a mark whether the job sees it.

    CUDA numbers by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID: if the GPUs differ, an index is ambiguous,
    and all count as visible.

    >>> [g.is_visible for g in shown_to([Gpu(0), Gpu(1)], "1")]
    [False, True]
    """
    if cuda_visible_devices is None:
        return tuple(gpus)
    chosen = _chosen(len(gpus), cuda_visible_devices)
    alike = len({g.name for g in gpus}) < 2 or order == "PCI_BUS_ID"
    if any(w.startswith("MIG-") for w in chosen) or (not alike and any(w.isdecimal() for w in chosen)):
        return tuple(gpus)

    def seen(gpu: Gpu) -> bool:
        return any(w == str(gpu.index) or (w.startswith("GPU-") and gpu.uuid.startswith(w)) for w in chosen)

    return tuple(replace(g, is_visible=seen(g)) for g in gpus)


def bus_id(text: str) -> str:
    """
    A PCI address in the format of sysfs, "" for other text.

    >>> bus_id("00000000:1A:00.0"), bus_id("0000:3b:00"), bus_id("x")
    ('0000:1a:00.0', '0000:3b:00.0', '')
    """
    if not (match := _BUS.fullmatch(text.strip())):
        return ""
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def parse_gpus(lines: Iterable[str], fields: Sequence[str]) -> tuple[Gpu, ...]:
    """
    Answer of `nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits`.

    Other lines (warnings about a GPU that does not answer) are skipped.

    >>> parse_gpus(["0, NVIDIA L4, [N/A]"], ["index", "name", "gpu_recovery_action"])[0].name
    'NVIDIA L4'
    """
    found = []
    for line in lines:
        values = [v.strip() for v in line.split(",")]
        trouble = next((m[1] for v in values if (m := _TROUBLE.fullmatch(v)) and "Perm" not in m[1]), "")
        known = [(n, v) for n, v in zip(fields, values, strict=False) if v not in _NOTHING]
        row = {name: value for name, value in known if not _TROUBLE.fullmatch(value)}
        index = _whole(row, "index")
        if len(values) == len(fields) and index is not None and index < MOST_GPUS:
            found.append(_gpu(index, row, trouble))
    return tuple(found)


def _whole(row: Mapping[str, str], name: str) -> int | None:
    match = re.match(r"\d{1,15}(?!\d)", row.get(name, ""))
    return int(match[0]) if match else None


def _number(row: Mapping[str, str], name: str) -> float | None:
    match = re.match(r"\d{1,15}(?:\.\d{1,9})?(?!\d)", row.get(name, ""))
    return float(match[0]) if match else None


def _yes(row: Mapping[str, str], name: str) -> bool | None:
    return {"yes": True, "no": False, "enabled": True, "disabled": False}.get(row.get(name, "").lower())


def _gpu(index: int, row: Mapping[str, str], trouble: str) -> Gpu:
    reasons = row.get("clocks_throttle_reasons.active") or row.get("clocks_event_reasons.active", "")
    pages = [_whole(row, f"retired_pages.{n}.count") for n in ("single_bit_ecc", "double_bit")]
    retired = [p for p in pages if p is not None]
    used = _whole(row, "memory.used")
    return Gpu(
        index=index,
        name=row.get("name", ""),
        uuid=row.get("uuid", ""),
        bus_id=bus_id(row.get("pci.bus_id", "")),
        memory_bytes=(_whole(row, "memory.total") or 0) * MIB,
        used_bytes=None if used is None else used * MIB,
        throttle_reasons=int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", reasons) else None,
        ecc_uncorrected=_whole(row, "ecc.errors.uncorrected.volatile.total"),
        remap_pending=_yes(row, "remapped_rows.pending"),
        remap_failed=_yes(row, "remapped_rows.failure"),
        retired_pages=sum(retired) if retired else None,
        retirement_pending=_yes(row, "retired_pages.pending"),
        is_mig=_yes(row, "mig.mode.current"),
        compute_mode=row.get("compute_mode", ""),
        power_limit_w=_number(row, "power.limit"),
        temperature_c=_number(row, "temperature.gpu"),
        link_width=_whole(row, "pcie.link.width.current"),
        max_link_width=_whole(row, "pcie.link.width.max"),
        # Some releases write "state  Completed" and "status Success".
        fabric_state=row.get("fabric.state", "").removeprefix("state").strip(),
        fabric_status=row.get("fabric.status", "").removeprefix("status").strip(),
        recovery_action=row.get("gpu_recovery_action", ""),
        trouble=trouble,
    )


def parse_processes(lines: Iterable[str], gpus: Sequence[Gpu]) -> tuple[GpuProcess, ...]:
    """
    Answer of `--query-compute-apps=gpu_uuid,pid,used_memory,name`, with numbers in MiB.

    >>> parse_processes(["GPU-5a, 4711, 2566, python train.py"], [Gpu(3, uuid="GPU-5a")])
    (GpuProcess(gpu=3, pid=4711, name='python train.py', used_bytes=2690646016),)
    """
    index = {g.uuid: g.index for g in gpus if g.uuid}
    found = []
    for line in lines:
        words = [w.strip() for w in line.split(",", 3)]
        if len(words) == 4 and words[0] in index and words[1].isdecimal() and len(words[1]) < 10:
            used = int(words[2]) * MIB if words[2].isdecimal() and len(words[2]) < 12 else None
            found.append(GpuProcess(index[words[0]], int(words[1]), words[3][:200], used))
    return tuple(found)


def parse_nvlinks(status: Sequence[str], errors: Iterable[str] = ()) -> dict[int, tuple[NvLink, ...]]:
    """
    GPU -> its links, from `nvidia-smi nvlink --status` and `nvidia-smi nvlink -e`.

    nvidia-smi lists no links for a GPU whose links are all inactive: one inactive link represents them.

    >>> parse_nvlinks(["GPU 0: NVIDIA A100 (UUID: GPU-5a)", " Link 0: 25 GB/s", " Link 1: <inactive>"],
    ...     ["GPU 0: NVIDIA A100 (UUID: GPU-5a)", " Link 0: Replay Errors: 2", " Link 0: CRC Errors: 1"])
    {0: (NvLink(number=0, gbyte_s=25.0, errors=3), NvLink(number=1, gbyte_s=0.0, errors=None))}
    """
    counted: dict[tuple[int, int], int] = {}
    for gpu, match in _of_gpus(errors, _ERRORS):
        counted[gpu, int(match[1])] = counted.get((gpu, int(match[1])), 0) + int(match[2])
    found: dict[int, tuple[NvLink, ...]] = {}
    for gpu, match in _of_gpus(status, _LINK):
        link = NvLink(int(match[1]), float(match[2] or 0.0), counted.get((gpu, int(match[1]))))
        found[gpu] = (*found.get(gpu, ()), link)[:64]
    for gpu, _ in _of_gpus(status, _ALL_INACTIVE):
        found.setdefault(gpu, (NvLink(0, 0.0),))
    return found


def _of_gpus(lines: Iterable[str], pattern: re.Pattern[str]) -> Iterable[tuple[int, re.Match[str]]]:
    gpu = -1
    for line in lines:
        if head := _GPU_LINE.match(line):
            gpu = int(head[1][:6])
        elif 0 <= gpu < MOST_GPUS and (match := pattern.search(line)):
            yield gpu, match


def gpu_table(lines: Iterable[str]) -> dict[tuple[int, str], str]:
    """
    GPU rows of a table such as `nvidia-smi topo -p2p r` or `topo -m`: (GPU, column) -> cell.

    >>> gpu_table([" GPU0 NIC0", " GPU0 X PXB", " NIC0 PXB X"])
    {(0, 'GPU0'): 'X', (0, 'NIC0'): 'PXB'}
    """
    columns: list[str] = []
    found: dict[tuple[int, str], str] = {}
    for line in lines:
        words = COLOURS.sub("", line).split() or [""]
        if words[0] == "GPU0" and "X" not in words:
            columns = words
        elif match := re.fullmatch(r"GPU(\d{1,3})", words[0]):
            found.update(zip(((int(match[1]), name) for name in columns), words[1:], strict=False))
    return found


def parse_square(lines: Iterable[str]) -> dict[tuple[int, int], str]:
    """
    Cells between GPUs of such a table.

    >>> parse_square([" GPU0 GPU1", " GPU0 X CNS", " GPU1 CNS X"])
    {(0, 1): 'CNS', (1, 0): 'CNS'}
    """
    cells = gpu_table(lines).items()
    numbers = {name: int(name[3:]) for (_, name), _ in cells if re.fullmatch(r"GPU\d{1,3}", name)}
    return {(row, numbers[name]): cell[:8] for (row, name), cell in cells if name in numbers and cell != "X"}


def parse_links(peers: Iterable[str], matrix: Iterable[str] = ()) -> tuple[GpuLink, ...]:
    """Pairs of GPUs from `topo -p2p r` and `topo -m`; of two directions, the failing one counts."""
    allowed, paths = parse_square(peers), parse_square(matrix)
    found = []
    for one, other in sorted({(min(pair), max(pair)) for pair in (*allowed, *paths)}):
        both = [allowed.get((one, other), ""), allowed.get((other, one), "")]
        peer = next((cell for cell in both if cell and cell != "OK"), both[0])
        found.append(GpuLink(one, other, peer, paths.get((one, other), "")))
    return tuple(found)


def parse_kernel_events(lines: Iterable[str], uptime_s: float) -> tuple[KernelEvent, ...]:
    """
    Xid and SXid in lines of /dev/kmsg ("PRIORITY,NUMBER,MICROSECONDS,-;TEXT"), the last of each.

    >>> parse_kernel_events(["4,99,60000000,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."],
    ...     100.0)[0].age_s
    40.0
    """
    found: dict[tuple[Literal["xid", "sxid"], str, int], KernelEvent] = {}
    for line in lines:
        if match := _XID.search(line):
            stamp = re.match(r"\d+,\d+,(\d{1,18}),", line)
            age_s = round(max(0.0, uptime_s - int(stamp[1]) / 1e6), 1) if stamp else 0.0
            kind: Literal["xid", "sxid"] = "sxid" if match[1] else "xid"
            key = kind, bus_id(match[2]), int(match[3])
            before = found.pop(key, None)
            text = match[4].strip(" ,")[:200]
            found[key] = KernelEvent(*key, text, age_s, before.count + 1 if before else 1)
    return tuple(found.values())
