"""`ringup trace`: Chrome trace events that a strict reader takes, with the calls that `logs` counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from ringup.cli.command_line import dispatch
from ringup.errors import RingupError
from ringup.logs.read import read_logs
from ringup.timeline import marks
from tests import run_folders
from tests.run_folders import Planted, call

PLACE = {"pid": {"type": "integer", "minimum": 1}, "tid": {"type": "integer", "minimum": 0}}
TIME = {"ts": {"type": "number", "minimum": 0}, "name": {"type": "string", "minLength": 1}}


def kind(ph: str, *needed: str, **fields: Any) -> dict[str, Any]:
    known = {
        "ph": {"const": ph},
        **PLACE,
        **TIME,
        "cat": {"type": "string"},
        "args": {"type": "object"},
        **fields,
    }
    return {
        "type": "object",
        "properties": known,
        "required": ["ph", "pid", "tid", "ts", "name", *needed],
        "additionalProperties": False,
    }


NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1}
NAME = {"type": "object", "properties": {"name": {"type": "string"}, "sort_index": {"type": "integer"}}}
ID = {"type": "integer", "minimum": 1}
EVENT = {
    "oneOf": [
        kind("X", "dur", dur={"type": "number", "minimum": 0}),
        kind("i", "s", s={"enum": ["t", "p", "g"]}),
        kind("C", "args", args=NUMBERS),
        kind(
            "M",
            "args",
            args=NAME,
            name={"enum": [f"{w}_{n}" for w in ("process", "thread") for n in ("name", "sort_index")]},
        ),
        kind("s", "id", "cat", id=ID),
        kind("f", "id", "cat", "bp", id=ID, bp={"const": "e"}),
    ]
}
"""Chrome's "Trace Event Format", the events that Perfetto's "Other formats" page lists as read."""
DOCUMENT = {
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {"type": "array", "items": EVENT},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}


def traced(path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """The events of a trace, after everything that must hold for any was checked."""
    out = tmp_path / "trace.json"
    assert dispatch(["trace", str(path), "-o", str(out), "--quiet"]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(DOCUMENT).validate(document)
    events: list[dict[str, Any]] = document["traceEvents"]
    open_ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    last: dict[tuple[int, int], float] = {}
    for one in (event for event in events if event["ph"] == "X"):
        thread, begin, end = (one["pid"], one["tid"]), one["ts"], one["ts"] + one["dur"]
        assert begin >= last.get(thread, 0.0), "slices of a thread come in order"
        last[thread] = begin
        while open_ends[thread] and open_ends[thread][-1] <= begin + 0.01:
            open_ends[thread].pop()
        assert not open_ends[thread] or end <= open_ends[thread][-1] + 0.01, "slices of a thread nest"
        open_ends[thread].append(end)
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in events if one["ph"] in "Xisf"} <= named
    _check_arrows(events)
    return events


def _check_arrows(events: list[dict[str, Any]]) -> None:
    """Each arrow has one begin and one end, in this order, each in a slice of its thread."""
    slices = {(one["pid"], one["tid"], one["ts"]) for one in events if one["ph"] == "X"}
    begins = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    assert Counter(one["ph"] for one in events)["s"] == len(begins)
    assert begins.keys() == ends.keys()
    for number, one in begins.items():
        assert one["ts"] <= ends[number]["ts"] and one["tid"] != ends[number]["tid"]
        for end in (one, ends[number]):
            assert (end["pid"], end["tid"], end["ts"]) in slices


def calls_of(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(
        one["name"] for one in events if one.get("cat") in ("collective", "transfer") and one["ph"] == "X"
    )


def test_a_hang_has_a_track_a_rank_its_calls_and_an_arrow_to_who_came_last(tmp_path: Path) -> None:
    calls = {
        n: [call(1, 8.0 + n, 11.5), call(2, 12.0, 12.1)] + ([] if n == 2 else [call(3, 12.5, None)])
        for n in range(4)
    }
    ranks = [Planted(n, f"node{n // 2}", ended_s=31.0, code=-15, calls=calls[n]) for n in range(4)]
    events = traced(run_folders.write(tmp_path / "run", ranks, "hung", **run_folders.hang(2)), tmp_path)
    names = {(one["pid"], one["args"]["name"]) for one in events if one["name"] == "thread_name"}
    assert {(1, "rank 0"), (2, "rank 3"), (2, "rank 2: default_pg")} <= names
    assert calls_of(events) == {"all_reduce": 11}
    pending = [one for one in events if one.get("args", {}).get("end") == "not ended"]
    assert [one["ts"] + one["dur"] for one in pending] == [31e6] * 3
    first = next(one for one in events if one["ph"] == "s")
    last = next(one for one in events if one["ph"] == "f")
    assert (first["ts"], last["ts"]) == (8e6, 11e6) and last["pid"] == 2
    assert {one["args"]["bytes"] for one in events if one["name"] == "all_reduce"} == {32}


def test_calls_that_overlap_still_nest(tmp_path: Path) -> None:
    calls = [call(1, 5.0, 9.0), call(2, 6.0, 8.0), call(3, 6.5, 12.0), call(4, 7.0, None), call(5, 7.5, None)]
    ranks = [Planted(0, ended_s=20.0, code=-15, calls=calls)]
    events = traced(run_folders.write(tmp_path / "run", ranks, "hung", seconds=20.0), tmp_path)
    assert calls_of(events) == {"all_reduce": 5}


def test_transfers_have_a_track_for_each_way_and_counters_are_rates(tmp_path: Path) -> None:
    calls = [call(1, 5.0, 6.0, op="send 0->1", is_p2p=True), call(1, 5.5, 5.8, op="recv 0<-1", is_p2p=True)]
    folder = run_folders.write(tmp_path / "run", [Planted(0, ended_s=9.0, code=0, calls=calls)], seconds=9.0)
    with (folder / marks.FILE).open("ab") as file:
        for at_s, cpu_s in ((3.0, 1.0), (5.0, 4.0)):
            file.write(msgspec.json.encode(marks.Used(run_folders.BEGAN_S + at_s, 0, cpu_s, 100)) + b"\n")
    events = traced(folder, tmp_path)
    ways = [(one["name"], one["args"]["peers"]) for one in events if one.get("cat") == "transfer"]
    assert ways == [("send", "0->1"), ("recv", "0<-1")]
    assert len({one["tid"] for one in events if one.get("cat") == "transfer"}) == 2
    rates = {one["name"]: one["args"]["value"] for one in events if one["ph"] == "C"}
    assert rates == {"rank 0 CPUs": 1.5, "rank 0 bytes per s": 0.0}


def test_a_run_that_was_never_started_has_no_trace(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    with pytest.raises(RingupError, match="no rank is in it"):
        dispatch(["trace", str(run_folders.write(tmp_path / "run", [], "check-stopped")), "-o", str(out)])
    assert not out.exists()


def test_calls_are_those_that_logs_counts(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"r{rank}.log").write_text(run_folders.coll_lines(f"n{rank // 2}", rank, 4, 120 - rank))
    events = traced(tmp_path, tmp_path / "..")
    assert calls_of(events) == read_logs([str(tmp_path)]).run.collectives == {"AllReduce": 474}
    threads = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert threads == {f"rank {n}{of}" for n in range(4) for of in ("", ": 0xabc")}


def test_a_communicator_set_up_again_at_the_same_pointer_is_another_group(tmp_path: Path) -> None:
    for rank in range(2):
        again = run_folders.coll_lines("n0", rank, 2, 3).replace("0xabc", "0xdef")
        (tmp_path / f"r{rank}.log").write_text(run_folders.coll_lines("n0", rank, 2, 5) + again)
    events = traced(tmp_path, tmp_path / "..")
    calls = Counter(one["args"]["group"] for one in events if one.get("cat") == "collective")
    assert calls == {"0xabc": 10, "0xdef": 6}


def test_lines_of_calls_with_times_have_arrows(tmp_path: Path) -> None:
    planted = []
    for rank in range(2):
        lines = run_folders.coll_lines("n0", rank, 2, 10).splitlines()
        output = [(5.0 + rank / 2 + n, line) for n, line in enumerate(lines)]
        planted.append(Planted(rank, "n0", output=output, ended_s=30.0, code=0))
    events = traced(run_folders.write(tmp_path / "run", planted, seconds=30.0), tmp_path)
    assert sum(one["ph"] == "s" for one in events) == 10


def test_words_of_nodes_and_logs_stay_words(tmp_path: Path) -> None:
    evil = '"}],"x":[{"</script><script>alert(1)\x1b[2J\u202e'
    ranks = [
        Planted(
            0,
            f"n{evil}"[:40].replace("/", "_"),
            ended_s=9.0,
            code=0,
            calls=[call(1, 5.0, 6.0, op=evil, where=evil)],
        )
    ]
    events = traced(run_folders.write(tmp_path / "run", ranks, seconds=9.0), tmp_path)
    (one,) = [one for one in events if one.get("cat") == "collective"]
    assert one["name"].startswith('"}],"x":[{"</script>')
    assert not any(c in json.dumps(events, ensure_ascii=False) for c in "\x1b\u202e")


def test_a_time_that_no_clock_tells_apart_gets_no_arrow(tmp_path: Path) -> None:
    ranks = [
        Planted(n, f"node{n}", ended_s=9.0, code=0, calls=[call(1, 5.0 + n / 100, 6.0)], error_s=0.02)
        for n in range(2)
    ]
    events = traced(run_folders.write(tmp_path / "run", ranks, seconds=9.0), tmp_path)
    assert not [one for one in events if one["ph"] in "sf"]


MEASURE = """
import sys
from ringup.cli.command_line import dispatch
code = dispatch(["trace", sys.argv[1], "-o", sys.argv[2], "--quiet"])
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(code, int(peak) >> 10)
"""
"""Its own peak: getrusage() also counts that of the process which has started it."""


@pytest.mark.slow
def test_a_million_events_of_64_ranks_take_at_most_200_mib(tmp_path: Path) -> None:
    for rank in range(64):
        (tmp_path / f"r{rank}.log").write_text(run_folders.coll_lines(f"n{rank // 8}", rank, 64, 15_625))
    words = [sys.executable, "-c", MEASURE, str(tmp_path), str(tmp_path / "out.json")]
    code, mib = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert code == "0" and int(mib) <= 200
    with (tmp_path / "out.json").open() as file:
        assert sum(1 for _ in file) > 1_000_000
