"""
Dumps of torch's flight recorder as its versions write them, made from the fields in their sources.

1.4: `TraceUtils.h` of torch 2.3; 2.0: the same of torch 2.4; 2.3: `NCCLUtils.hpp` of torch 2.5; 2.7 and 2.10:
`FlightRecorder.hpp` of torch 2.7 and 2.13.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSIONS = ("1.4", "2.0", "2.3", "2.7", "2.10")
BEGUN_NS = 1_767_225_600_000_000_000
STEP_NS = 20_000_000
TIMEOUT_MS = 600_000

Call = dict[str, Any]


def call(op: str = "all_reduce", size: int | list[int] = 8, dtype: str = "Float", **more: Any) -> Call:
    """One call; `state`, `group`, `retired`, `line` and any field of the dump may be given."""
    sizes = [size] if isinstance(size, int) else size
    return {"op": op, "sizes": [sizes], "dtype": dtype, **more}


def waits(op: str = "all_reduce", size: int | list[int] = 8, **more: Any) -> Call:
    """A call that has not ended."""
    return call(op, size, **{"state": "started", **more})


def dump(
    calls: Iterable[Call],
    version: str = "2.10",
    *,
    lost: int = 0,
    ranks: Iterable[int] = (),
    begun_ns: int = BEGUN_NS,
    library: str = "nccl",
) -> dict[str, Any]:
    """One rank's dump; of its calls the first `lost` have left the ring."""
    entries: list[dict[str, Any]] = []
    numbers: dict[tuple[str, bool], int] = {}
    for record, one in enumerate(calls):
        group, is_p2p = one.get("group", "0:default_pg"), one.get("is_p2p", False)
        numbers[group, is_p2p] = number = numbers.get((group, is_p2p), 0) + 1 + one.get("burnt", 0)
        entry = {
            "record_id": record,
            "pg_id": int(group.split(":")[0]),
            "op_id": record + 1,
            "profiling_name": f"{library}:{one['op']}",
            "time_created_ns": begun_ns + record * STEP_NS,
            "input_sizes": one["sizes"],
            "output_sizes": one["sizes"],
            "state": one.get("state", "completed"),
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "retired": one.get("retired", one.get("state", "completed") == "completed"),
            "frames": [
                {"name": "wrapper", "filename": "/v/lib/site-packages/torch/c10d_logger.py", "line": 83},
                {"name": "step", "filename": "/home/u/train.py", "line": one.get("line", 80 + record)},
            ],
        }
        if version.startswith("1."):
            entry["seq_id"] = number
        else:
            entry |= {
                "process_group": tuple(group.split(":")),
                "collective_seq_id": 0 if is_p2p else number,
                "p2p_seq_id": number if is_p2p else 0,
                "is_p2p": is_p2p,
                "input_dtypes": [one["dtype"]],
                "output_dtypes": [one["dtype"]],
            }
        if version not in ("1.4", "2.0"):
            entry["timeout_ms"] = TIMEOUT_MS
        if version == "2.10":
            entry |= {"thread_id": "140", "thread_name": "pt_main_thread"}
        entries.append(entry)
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}} if ranks else {}
    made = {"version": version, "pg_config": config, "entries": entries[lost:]}
    if version not in ("1.4", "2.0"):
        made["pg_status"] = {}
    if version in ("2.7", "2.10"):
        made["nccl_version" if version == "2.7" else "comm_lib_version"] = "2.27.5"
    return made


def written(
    folder: Path, dumps: dict[int, dict[str, Any]], form: str = "pickle", *, age_s: float = 0
) -> Path:
    """A folder of them, named as torch names them, each written `age_s` after its last entry was begun."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, one in dumps.items():
        path = folder / (f"nccl_trace_rank_{rank}" + (".json" if form == "json" else ""))
        path.write_bytes(json.dumps(one).encode() if form == "json" else pickle.dumps(one, protocol=2))
        if age_s and one["entries"]:
            written_s = one["entries"][-1]["time_created_ns"] / 1e9 + age_s
            os.utime(path, (written_s, written_s))
    return folder
