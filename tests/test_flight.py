"""Dumps of torch's flight recorder: read as plain data alone, and compared."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringup.flight_recorder.compare import compare, roots
from ringup.flight_recorder.dump import Flight, FlightError, from_data, read

DUMPS = """\
import sys, torch, torch.distributed as dist; torch._inductor = None  # whose import takes seconds
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(8))
group = dist.new_group([0, 1], group_desc="pair")
dist.broadcast(torch.ones(2, 3), 0, group=group)
if rank == 0:
    work = dist.all_reduce(torch.ones(3, dtype=torch.int64), async_op=True)  # rank 1 never comes
open(f"{folder}/{rank}.pickle", "wb").write(_dump_fr_trace(True, True, False))
text = _dump_fr_trace_json(True, False)
open(f"{folder}/{rank}.json", "wb").write(text if isinstance(text, bytes) else text.encode())
print("written", flush=True)
import time; time.sleep(60)
"""


EVERY = """\
import sys, torch, torch.distributed as dist; torch._inductor = None  # whose import takes seconds
from torch._C._distributed_c10d import _dump_fr_trace
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=3)
one, many = torch.ones(4), [torch.ones(4) for _ in range(3)]
root = rank == 1
dist.all_reduce(one)
dist.broadcast(one, 1)
dist.broadcast_object_list([{"a": rank}], 1)
dist.reduce(one, 1)
dist.all_gather(many, one)
dist.all_gather_object([None] * 3, "x" * rank)
dist.all_gather_into_tensor(torch.ones(12), one)
dist.gather(one, many if root else None, 1)
dist.gather_object(rank, [None] * 3 if root else None, 1)
dist.scatter(one, many if root else None, 1)
dist.scatter_object_list([None], ["a", "b", "c"] if root else None, 1)
dist.reduce_scatter_tensor(one, torch.ones(12))
dist.all_to_all_single(torch.ones(3), torch.ones(3))
dist.all_to_all_single(torch.ones(3 * (rank + 1)), torch.ones(6), [rank + 1] * 3, [1, 2, 3])
dist.barrier()
dist.monitored_barrier()
pair = dist.new_group([0, 2])
if rank != 1:
    dist.all_reduce(one, group=pair)
dist.all_reduce(one)
open(f"{folder}/{rank}", "wb").write(_dump_fr_trace(True, True, False))
print("written", flush=True)
sys.stdin.read()
"""


def entry(number: int, op: str = "nccl:all_reduce", sizes: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": op,
        "input_sizes": sizes or [[8]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "frames": [
            {"filename": "/v/site-packages/torch/distributed/c10d_logger.py", "line": 1, "name": "wrapper"},
            {"filename": "/home/u/train.py", "line": 80 + number, "name": "step"},
        ],
        **more,
    }


def waits(number: int, **more: Any) -> dict[str, Any]:
    return entry(number, **{"state": "started", **more})


def dump(*entries: dict[str, Any], **more: Any) -> Flight:
    return read(pickle.dumps({"version": "2.10", "entries": list(entries), **more}, protocol=2))


def test_an_entry_is_read_with_the_users_line() -> None:
    (one,) = dump(entry(3)).entries
    assert (one.group, one.number, one.call, one.is_done) == (
        "0:default_pg",
        3,
        "all_reduce [8] Float",
        True,
    )
    assert one.where == "train.py:83"


PACKAGES = "/v/lib/python3.11/site-packages"
UNDER = (f"{PACKAGES}/torch/distributed/distributed_c10d.py", f"{PACKAGES}/torch/nn/parallel/distributed.py")
OVER = ("<frozen runpy>", "<frozen runpy>", "/home/u/.cache/ringup/run-0/rank_main.py")


@pytest.mark.parametrize(
    ("files", "where"),
    [
        (("/home/u/model.py", f"{PACKAGES}/lightning/loop.py", "/home/u/train.py"), "model.py:3"),
        (
            (f"{PACKAGES}/accelerate/utils/operations.py", f"{PACKAGES}/accelerate/scripts/loop.py"),
            "loop.py:4",
        ),
        ((f"{PACKAGES}/package/models/gpt.py", f"{PACKAGES}/package/train.py"), "gpt.py:3"),
        (("/usr/lib/python3/dist-packages/tool/main.py",), "main.py:3"),
        ((), ""),
    ],
)
def test_a_call_stands_in_the_users_file_and_never_in_the_runner_of_the_script(
    files: tuple[str, ...], where: str
) -> None:
    frames = [{"filename": file, "line": n} for n, file in enumerate((*UNDER, *files, *OVER), start=1)]
    (one,) = dump(entry(1, frames=frames)).entries
    assert one.where == where


def test_a_retired_gloo_entry_is_done_and_a_retired_nccl_entry_is_not() -> None:
    gloo, nccl = dump(
        entry(1, "gloo:all_reduce", state="scheduled", retired=True), entry(2, state="started", retired=True)
    ).entries
    assert gloo.is_done and not nccl.is_done


def test_the_rank_that_is_behind_is_named_with_its_last_call() -> None:
    flights = {0: dump(entry(1), waits(2)), 1: dump(entry(1)), 2: dump(entry(1), waits(2))}
    (one,) = compare(flights)
    assert one.ranks == (1,) and one.where == "train.py:81"
    assert one.text == (
        "rank 1 has not started collective 2 of default_pg: all_reduce [8] Float, train.py:82"
    )


def test_ranks_that_are_unequally_behind_are_not_given_one_count() -> None:
    flights = {
        0: dump(entry(1), waits(2)),
        1: dump(entry(1)),
        2: dump(entry(1), waits(2), waits(3)),
        3: dump(entry(1), waits(2), waits(3)),
    }
    (one,) = compare(flights)
    assert one.text.startswith("ranks 0-1 started 1 to 2 collectives of default_pg, the others 3 ")


@pytest.mark.parametrize(
    "other",
    [{"op": "nccl:broadcast"}, {"sizes": [[9]]}, {"input_dtypes": ["Half"]}],
    ids=["op", "size", "dtype"],
)
def test_another_call_under_the_same_number_comes_before_being_behind(other: dict[str, Any]) -> None:
    flights = {n: dump(entry(1), entry(2), entry(3)) for n in range(3)}
    flights[3] = dump(entry(1), entry(2, **other))
    (one,) = compare(flights)
    assert one.ranks == (3,) and one.text.startswith("collective 2 of default_pg is ")


def test_uneven_sizes_are_no_mismatch_where_they_may_be_uneven() -> None:
    flights = {n: dump(entry(1, "nccl:all_to_all", sizes=[[n + 1]])) for n in range(3)}
    assert compare(flights) == []


def test_a_scatter_of_which_only_the_root_has_an_input_is_no_mismatch() -> None:
    root = entry(1, "gloo:scatter", sizes=[[2], [2]], input_dtypes=["Float", "Float"])
    other = entry(1, "gloo:scatter", input_dtypes=[]) | {"input_sizes": []}
    assert compare({0: dump(root), 1: dump(other)}) == []


def test_ranks_that_agree_have_no_difference() -> None:
    assert compare({n: dump(entry(1), entry(2)) for n in range(4)}) == []


def test_a_ring_buffer_that_lost_its_beginning_is_compared_where_both_have_entries() -> None:
    old = dump(*(entry(n) for n in range(1, 5)))
    late = dump(*(entry(n) for n in range(3, 5)))
    assert compare({0: old, 1: late}) == []


def test_groups_are_judged_apart_and_a_member_without_entries_is_behind() -> None:
    config = {"7": {"name": "7", "desc": "tp", "ranks": "[0, 1]"}}
    in_group = waits(1, process_group=("7", "tp"))
    flights = {0: dump(in_group, pg_config=config), 1: dump(pg_config=config), 2: dump()}
    (one,) = compare(flights)
    assert one.group == "7:tp" and one.ranks == (1,)


def of(group: str, number: int, **more: Any) -> dict[str, Any]:
    return entry(number, process_group=(group, f"tp{group}"), **more)


def test_groups_entered_in_another_order_are_one_difference_and_nobody_is_behind() -> None:
    first = dump(of("1", 1), of("2", 1), of("1", 2, state="started"))
    other = dump(of("1", 1), of("2", 1), of("2", 2, state="started"))
    (one,) = compare({0: first, 1: other})
    assert (one.kind, one.ranks, set(one.odd), set(one.usual)) == ("mismatch", (), {1}, {0})
    assert one.text == (
        "rank 0 is in collective 2 of tp1 (all_reduce [8] Float, train.py:82), "
        "rank 1 is in collective 2 of tp2 (all_reduce [8] Float, train.py:82): each waits for the other"
    )


def test_a_circle_of_three_groups_is_found() -> None:
    flights = {
        rank: dump(*(of(g, 1) for g in "123"), of(str(rank + 1), 2, state="started")) for rank in range(3)
    }
    (one, *others) = compare(flights)
    assert one.kind == "mismatch" and one.text.endswith("each waits for another") and not others


def test_who_waits_for_a_rank_that_waits_for_nobody_makes_no_circle() -> None:
    """Rank 1 is behind in group 1, for it waits in group 2, for rank 2."""
    flights = {
        0: dump(of("1", 1), of("1", 2, state="started")),
        1: dump(of("1", 1), of("2", 1), of("2", 2, state="started")),
        2: dump(of("2", 1)),
    }
    found = compare(flights)
    assert [one.kind for one in found] == ["behind", "behind"]
    assert [(one.group, ranks) for one, ranks in roots(found)] == [("2:tp2", [2])]


def test_transfers_between_pairs_are_not_compared() -> None:
    send = entry(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=5)
    assert compare({0: dump(send), 1: dump()}) == []


def test_a_dump_of_torch_2_3_is_read() -> None:
    old = {"seq_id": 4, "pg_id": 0, "profiling_name": "nccl:all_reduce", "input_sizes": [[2]]}
    (one,) = read(pickle.dumps({"version": "1.5", "entries": [old | {"state": "scheduled"}]})).entries
    assert (one.group, one.number, one.is_done) == ("0", 4, False)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/ringup-flight-ran",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"version": "2.10", "entries": [Runs()]}),
        b"cos\nsystem\n(S'true'\ntR.",
        b"",
        b"{",
        b"[]",
        b"not a dump at all",
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": []}),
        pickle.dumps({"version": "2.10", "entries": 3}),
        b"\x80\x04" + b"(" * 100_000,
    ],
)
def test_what_is_no_dump_is_refused_and_nothing_of_it_runs(data: bytes) -> None:
    with pytest.raises(FlightError):
        read(data)
    assert not Path("/tmp/ringup-flight-ran").exists()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*entry(1), "is_p2p", "p2p_seq_id", "retired", "pg_id", "seq_id"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(FIELDS, PLAIN, max_size=6), max_size=4), PLAIN)
def test_nothing_that_stands_in_a_dump_breaks_the_reader(entries: list[Any], config: Any) -> None:
    flight = from_data({"version": 3, "entries": entries, "pg_config": config})
    compare({0: flight, 1: dump(entry(1))})


@pytest.mark.slow
@pytest.mark.torch
def test_gloos_own_dumps_of_this_torch_are_read(tmp_path: Path) -> None:
    (tmp_path / "dumps.py").write_text(DUMPS)
    command = [sys.executable, str(tmp_path / "dumps.py")]
    ranks = [
        subprocess.Popen([*command, str(n), str(tmp_path / "store"), str(tmp_path)], stdout=subprocess.PIPE)
        for n in range(2)
    ]
    for rank in ranks:
        assert rank.stdout and rank.stdout.readline() == b"written\n"
    for rank in ranks:
        rank.kill()
        rank.wait()
    for form in ("pickle", "json"):
        flights = {n: read((tmp_path / f"{n}.{form}").read_bytes()) for n in range(2)}
        assert [e.op for e in flights[0].entries] == [*["all_reduce"] * 3, "broadcast", "all_reduce"]
        (one,) = compare(flights)
        assert one.ranks == (1,) and "all_reduce [3] Long" in one.text, one
        if form == "pickle":
            assert "dumps.py:10" in one.text
    assert json.loads((tmp_path / "0.json").read_bytes())["version"] == flights[0].version


@pytest.mark.slow
@pytest.mark.torch
def test_of_ranks_that_agree_no_kind_of_gloos_collectives_is_a_difference(tmp_path: Path) -> None:
    (tmp_path / "every.py").write_text(EVERY)
    words = [str(tmp_path / "store"), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ranks = [
        subprocess.Popen([sys.executable, str(tmp_path / "every.py"), str(n), *words], **pipes)  # type: ignore[call-overload]
        for n in range(3)
    ]
    said = [rank.stdout.readline() for rank in ranks]
    for rank in ranks:
        rank.communicate(b"")
    assert said == [b"written\n"] * 3
    flights = {n: read((tmp_path / str(n)).read_bytes()) for n in range(3)}
    assert compare(flights) == []
    assert {"scatter", "gather", "all_to_all"} <= {e.op for e in flights[0].entries}
