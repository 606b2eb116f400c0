"""How many GPUs a job sees."""

from __future__ import annotations

import re

_GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: ([\w-]+)\))?\s*$", re.MULTILINE)


def gpu_uuids(text: str) -> list[str]:
    """
    UUID of each GPU in the output of `nvidia-smi -L` ("" where it shows none); MIG slices are not counted.

    >>> gpu_uuids("GPU 0: NVIDIA H200 (UUID: GPU-5a1)\\n  MIG 1g.18gb  Device  0: (UUID: MIG-77)\\n")
    ['GPU-5a1']
    """
    return [match[3] or "" for match in _GPU_LINE.finditer(text)]


def visible_count(total: int, cuda_visible_devices: str | None) -> int:
    """
    GPUs left of `total` by CUDA_VISIBLE_DEVICES; None is unset, "" hides all.

    As the CUDA runtime reads it (CUDA C Programming Guide, "CUDA Environment Variables"): the
    list ends at the first index that does not exist, and a name twice hides everything.
    UUIDs cannot be judged from a count and are taken to exist.

    >>> visible_count(8, None), visible_count(8, "0,1"), visible_count(8, ""), visible_count(2, "0,5,1")
    (8, 2, 0, 1)
    >>> visible_count(8, "GPU-1a2b,GPU-3c4d"), visible_count(8, "-1"), visible_count(4, "1,1")
    (2, 0, 0)
    """
    if cuda_visible_devices is None:
        return total
    chosen: list[str] = []
    for word in cuda_visible_devices.split(","):
        name = word.strip()
        digits = re.match(r"[+-]?\d+", name)
        if digits:
            if not 0 <= int(digits[0]) < total:
                break
            name = str(int(digits[0]))
        elif not name.startswith(("GPU-", "MIG-")):
            break
        chosen.append(name)
    if len(set(chosen)) < len(chosen):
        return 0
    return min(len(chosen), total)
