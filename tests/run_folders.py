"""Folders as `ringup run` leaves them, with planted ends, for timelines, traces and pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringup.runtime.record import run_json
from ringup.timeline import marks

BEGAN_S = 1000.0
"""Of the run's clock."""
STARTED = 1_700_000_000.0


@dataclass
class Planted:
    """What one rank does: seconds after the start."""

    rank: int
    node: str = "node0"
    began_s: float | None = 2.0
    output: Sequence[tuple[float, str]] = ()
    ended_s: float | None = None
    code: int | None = None
    calls: Sequence[marks.RecordedCall] = ()
    error_s: float | None = 0.001


def call(
    number: int, begun_s: float, ended_s: float | None, op: str = "all_reduce", **more: Any
) -> marks.RecordedCall:
    """Of the default group; `is_done` unless its end is None."""
    named = {"group": "0:default_pg", "number": number, "is_p2p": False, "op": op, "sizes": ((8,),)}
    named |= {"dtypes": ("Float",), "where": "train.py:48", "is_done": ended_s is not None}
    return marks.RecordedCall(
        **{**named, "begun_s": BEGAN_S + begun_s, "ended_s": ended_s and BEGAN_S + ended_s, **more}
    )


def write(folder: Path, ranks: Sequence[Planted], outcome: str = "ok", **known: Any) -> Path:
    """A run's folder: run.json, ringup.log, the ranks' output, the times of all that."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[bytes] = []
    times = marks.Recorder(lines.append)
    times.note(marks.Began(BEGAN_S))
    for one in ranks:
        file = f"rank-{one.rank:05d}-{one.node}.log"
        if one.began_s is not None:
            times.note(marks.RankBegan(BEGAN_S + one.began_s, one.rank, one.node, file, one.error_s))
        text = ""
        for at_s, line in one.output:
            times.output(file, BEGAN_S + at_s, len(line.encode()) + 1)
            text += line + "\n"
        if text:
            (folder / file).write_text(text, encoding="utf-8")
        if one.calls:
            times.note(marks.Calls(BEGAN_S + 30.0, one.rank, [*one.calls]))
        if one.ended_s is not None:
            times.note(marks.RankEnded(BEGAN_S + one.ended_s, one.rank, one.code or 0))
    times.flush()
    (folder / marks.FILE).write_bytes(b"".join(lines))
    content = run_json(
        "20260101-000000-abcd", outcome=outcome, exit_code=known.pop("exit_code", 0), started=STARTED, **known
    )
    content["ranks"] = [
        {"rank": p.rank, "local_rank": 0, "node": p.node, "pid": 100 + p.rank, "code": p.code} for p in ranks
    ]
    content["plan"] = {"nodes": _nodes(ranks), "env": [], "job": {"script": "train.py"}}
    (folder / "run.json").write_text(json.dumps(content, indent=1))
    (folder / "ringup.log").write_text(f"{outcome} after {content['seconds']:g} s\n")
    return folder


def _nodes(ranks: Sequence[Planted]) -> list[Mapping[str, Any]]:
    by_node: dict[str, list[int]] = {}
    for one in ranks:
        by_node.setdefault(one.node, []).append(one.rank)
    return [{"node": node, "nproc": len(found), "first_rank": min(found)} for node, found in by_node.items()]


def hang(missing: int, where: str = "data.py:14 in fetch") -> dict[str, Any]:
    """Fields of run.json of a run in which one rank did not come: quiet from 10 s on, seen at 30 s."""
    hung = {
        "at_s": 30.0,
        "quiet_s": 20.0,
        "verdict": "stalled",
        "rule": "rank-fell-behind",
        "headline": f"rank {missing} is missing from all_reduce",
        "missing": [{"rank": missing, "node": "node0", "where": where}],
        "apart": [],
        "collective": "all_reduce",
        "lines": ["3 ranks: all_reduce, train.py:48"],
    }
    return {"hangs": [hung], "seconds": 40.0, "exit_code": 124}


def coll_lines(host: str, rank: int, ranks: int, calls: int) -> str:
    """NCCL's lines of a set-up and of all-reduces, with a step line every fifty."""
    head = f"{host}:{1000 + rank}:{1000 + rank} [{rank % 8}] NCCL INFO "
    device = rank % 8
    comm = f"comm 0x55d0 rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId 1000 commId 0xabc"
    found = [f"{head}ncclCommInitRank {comm} - Init {state}" for state in ("START", "COMPLETE")]
    for n in range(calls):
        buffers = f"sendbuff 0x7f{n % 7:06x}00 recvbuff 0x7f{n % 7:06x}00"
        asked = f"count 1024 datatype 7 op 0 root 0 comm 0x55d0 [nranks={ranks}] stream 0x5600"
        found.append(f"{head}AllReduce: opCount {n:x} {buffers} {asked}")
        if n % 50 == 0:
            found.append(f"step {n // 50} loss 2.0")
    return "\n".join(found) + "\n"
