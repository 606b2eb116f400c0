"""Counting: exact against the generator's truth, with either engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.nccl_lines import VERSIONS, Plan, Truth
from bench.nccl_logs import generate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringup.logs import counts, files, read
from ringup.logs.scan import Scan, Scanner
from tests import fuzz_counts
from tests.logs_said import HEALTHY, SAID

ENGINES = ("python", "native") if find_spec("ringup.logs.counts.core") else ("python",)


def blocks(data: bytes, size: int = files.BLOCK_BYTES) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.slow
def test_a_line_without_an_end_is_counted_in_bounded_memory() -> None:
    for engine in ENGINES:
        part = counts.scan((b"x" * 65536 for _ in range(100)), engine=engine)
        assert (part.lines, part.bytes) == (1, 6_553_600)


def read_folder(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.log"))}


def count(files: dict[str, bytes], engine: str = "python") -> counts.Run:
    return counts.join(
        {name: counts.scan(blocks(data, 65536), engine=engine) for name, data in files.items()}
    )


def reader(files: dict[str, bytes]) -> Any:
    return lambda file, start, end: blocks(files[file][start:end], 10_000)


def check(run: counts.Run, truth: Truth) -> None:
    assert run.collectives == truth.collectives
    assert run.by_rank == truth.by_rank
    rows = [(i.name, i.counts) for i in run.by_iteration]
    assert rows == [(row["iteration"], row["counts"]) for row in truth.by_iteration]
    assert run.transports_by_host == truth.transports
    torn = [sum(part.torn.values()) for part in run.parts.values()]
    assert sum(torn) == sum(truth.torn.values())
    assert {name: part.last[2].decode() for name, part in run.parts.items() if part.last} == truth.last_lines
    assert sum(part.lines for part in run.parts.values()) == truth.lines
    assert sum(part.bytes for part in run.parts.values()) == truth.bytes
    check_sequences(run, truth)


def check_sequences(run: counts.Run, truth: Truth) -> None:
    kinds = {
        c.id: {m.name: m.calls.kinds for m in c.members if m.calls.kinds}
        for c in run.by_communicator.values()
        if c.kinds
    }
    assert kinds == truth.comm_kinds
    for name, positions in truth.positions.items():
        ours = {m.name: m.position for m in run.by_communicator[name].members if m.name in positions}
        assert ours == positions
    lowest: dict[str, int] = {}
    for b in run.behind:
        lowest[b.communicator] = min(b.index, lowest.get(b.communicator, b.index))
    behind = sorted(
        f"{b.communicator} {b.member.name}" for b in run.behind if b.index == lowest[b.communicator]
    )
    assert behind == sorted(truth.behind)
    begun = {f"{c.rank}" for part in run.parts.values() for c in part.comms.values() if not c.complete}
    assert sorted(begun) == sorted(truth.incomplete)


PLANS = [
    Plan(),
    Plan(layout="per-rank", marks="all"),
    Plan(layout="per-rank", marks="first", seed=1),
    Plan(label="srun", marks="all", seed=2),
    Plan(label="torchrun", marks="all", seed=3, ranks=12),
    Plan(label="mpirun", marks="first", seed=4),
    Plan(label="none", marks="none", seed=5),
    Plan(socket_rank=5, warnings=7, seed=6),
    Plan(torn=0.05, iterations=6, seed=7),
    Plan(torn=0.2, label="srun", iterations=6, seed=8),
    Plan(carriage_returns=True, seed=9),
    Plan(stamps="nccl", label="srun", marks="all", iterations=8, seed=15),
    Plan(stamps="kubectl", iterations=8, seed=16),
    Plan(stamps="nccl", torn=0.1, iterations=8, seed=17),
    Plan(stamps="kubectl", layout="per-rank", iterations=8, seed=18),
    Plan(ranks=1, ranks_per_node=1, seed=10),
    Plan(fault="stalled", fault_rank=3, seed=11),
    Plan(fault="missing", fault_rank=3, seed=12, layout="per-rank", marks="none"),
    Plan(fault="count", fault_rank=6, seed=13),
    Plan(fault="no-init", fault_rank=2, seed=14, version="2.24"),
    *(Plan(version=v, split=int(v[2:]) >= 18, seed=20 + i) for i, v in enumerate(VERSIONS)),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: f"{p.version}-{p.layout}-{p.label}-{p.fault}-{p.seed}")
def test_every_count_is_the_truth(tmp_path: Path, plan: Plan, engine: str) -> None:
    truth = generate(plan, tmp_path)
    check(count(read_folder(tmp_path), engine), truth)


def of_rccl(line: str) -> str:
    """A line as RCCL words it (its enqueue.cc, init.cc)."""
    if " opCount " in line and " stream " in line:
        return line.replace(" count ", " acc (nil) count ", 1) + " task 0 globalrank 3"
    return line.replace(" - Init COMPLETE", " localSize 296 used 58720256 bytes on core 12 - Init COMPLETE")


WRITTEN: dict[str, Callable[[str], str]] = {
    "rccl": of_rccl,
    "syslog": lambda line: f"Jan  2 03:20:21 head python[770]: {line}",
    "clock": lambda line: f"06:16:47 {line}",
    "short clock": lambda line: f"6:16:47 AM {line}",
    "day": lambda line: f"May 05 06:16:47 {line}",
    "coloured": lambda line: f"\x1b[32m{line}\x1b[0m",
    "docker": lambda line: json.dumps(
        {"log": line + "\n", "stream": "stdout"}, separators=(",", ":")
    ).replace(">", "\\u003e"),
}
"""What collectors make of lines, and RCCL."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", WRITTEN)
def test_what_collectors_write_around_lines_changes_no_count(tmp_path: Path, form: str, engine: str) -> None:
    generate(Plan(fault="stalled", fault_rank=3), tmp_path)
    plain = read_folder(tmp_path)
    written = {
        name: "".join(WRITTEN[form](line) + "\n" for line in data.decode().splitlines()).encode()
        for name, data in plain.items()
    }

    def told(run: counts.Run) -> list[object]:
        rows = [(i.name, i.counts) for i in run.by_iteration]
        kinds = {c.id: c.kinds for c in run.by_communicator.values()}
        behind = [(b.member.name, b.communicator, b.index) for b in run.behind]
        return [
            run.by_rank,
            rows,
            kinds,
            run.transports_by_host,
            behind,
            [part.torn for part in run.parts.values()],
        ]

    assert told(count(written, engine)) == told(count(plain, engine))


def test_a_communicator_named_behind_a_transport_is_no_part_of_it() -> None:
    line = b"n1:4:9 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] via P2P/IPC comm 0x7f%d nRanks 04\n"
    run = counts.join({"x": counts.scan([line % 1, line % 2])})
    assert run.transports == {"P2P/IPC": 2}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", ["merged", "per-rank"])
@pytest.mark.parametrize("hang", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", ["missing", "count", "datatype", "root", "kind"])
def test_the_rank_that_calls_something_else_is_found(
    tmp_path: Path, fault: str, hang: bool, layout: str, engine: str
) -> None:
    plan = Plan(
        fault=fault,
        fault_rank=5,
        fault_iteration=2,
        iterations=60,
        hang=hang,
        layout=layout,
        layers=12,
        seed=31,
    )
    truth = generate(plan, tmp_path)
    files = read_folder(tmp_path)
    run = count(files, engine)
    found = [counts.explain(m, reader(files)) for m in run.mismatches]
    found += [m for u in run.unlocated if (m := counts.locate(u, reader(files)))]
    assert truth.mismatch is not None
    assert [m.index for m in found] == [truth.mismatch["index"]]
    assert [p.member.name for p in found[0].odd] == truth.mismatch["ranks"]
    assert found[0].communicator == truth.mismatch["communicator"]
    assert found[0].skipped == truth.mismatch["skipped"]
    if truth.mismatch["differs"]:
        assert list(found[0].differs) == truth.mismatch["differs"]
    for party in (*found[0].odd, found[0].usual):
        line = files[party.member.file].split(b"\n")[party.line - 1].decode()
        assert line == party.text


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_give_the_truth_and_the_place(tmp_path: Path, processes: int) -> None:
    plan = Plan(
        fault="count",
        fault_rank=5,
        hang=False,
        iterations=40,
        layers=12,
        warnings=4,
        seed=5,
        layout="per-rank",
    )
    truth = generate(plan, tmp_path)
    paths = [str(path) for path in sorted(tmp_path.glob("*.log"))]
    counted = read.count_files(paths, processes=processes)
    run = counts.join({path: one[0] for path, one in counted.items() if not isinstance(one, str)})
    truth.last_lines = {str(tmp_path / name): line for name, line in truth.last_lines.items()}
    check(run, truth)
    assert truth.mismatch is not None
    found = read.read_logs(paths, processes=processes).story.mismatches
    assert [(m.index, [p.member.name for p in m.odd]) for m in found] == [(truth.mismatch["index"], ["5"])]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_other_line_is_handed_on_once(tmp_path: Path, engine: str) -> None:
    generate(Plan(warnings=3, seed=4), tmp_path)
    data = (tmp_path / "job.log").read_bytes()
    seen: list[tuple[int, bytes]] = []
    counts.scan(blocks(data, 5000), fuzz_counts.taker(seen), engine=engine)
    wanted = [(i + 1, raw) for i, raw in enumerate(data.split(b"\n")) if raw and b": opCount " not in raw]
    assert seen == wanted


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_with_broken_fields_is_counted_by_kind_and_called_torn(engine: str) -> None:
    good = call("nod1:1:1 [0] ", "AllReduce", "8", "0x55d000000000", FAR, FAR)
    broken = good.replace(b"count 8 datatype 7 op 0 root 0", b"count \x00      007aadeooopprttty")
    part = counts.scan([good + b"\n" + broken + b"\n"], engine=engine)
    assert counts.join({"a": part}).collectives == {"AllReduce": 2}
    assert part.torn == {("nod1", "1"): 1}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pointer_used_again_is_another_communicator(engine: str) -> None:
    text = ""
    for id_ in ("0x1", "0x2"):
        for r in (0, 1):
            comm = f"comm 0x55{r} rank {r} nranks 2 cudaDev 0 commId {id_}"
            text += f"n{r}:{r}:{r} [0] NCCL INFO {comm} - Init START\n"
        for r in (0, 1):
            text += call(f"n{r}:{r}:{r} [0] ", "AllReduce", "8", f"0x55{r}", FAR, FAR).decode() + "\n"
    run = counts.join({"a": counts.scan([text.encode()], engine=engine)})
    assert {c.id: [m.position for m in c.members] for c in run.by_communicator.values()} == {
        "0x1": [1, 1],
        "0x2": [1, 1],
    }
    assert run.behind == ()


def test_without_init_lines_only_the_world_is_lined_up() -> None:
    text = b""
    for r in (0, 1):
        for _ in range(3 - r):
            text += call(f"n{r}:{r}:{r} [0] ", "AllReduce", "8", f"0x55{r}", FAR, FAR) + b"\n"
    run = counts.join({"a": counts.scan([text])})
    assert [(b.member.name, b.communicator, b.index) for b in run.behind] == [("n1:1", "world of 2 ranks", 2)]
    lost = counts.join({"a": counts.scan([text.replace(b"nranks=2", b"nranks=4")])})
    assert lost.behind == ()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=3000), st.deferred(lambda: mutated())))
def test_no_bytes_are_an_error(data: bytes) -> None:
    for engine in ENGINES:
        part = counts.scan(blocks(data, 700), engine=engine)
        run = counts.join({"a": part, "b": counts.scan([data], engine=engine)})
        assert part.bytes == len(data)
        assert sum(run.collectives.values()) == sum(
            n for kinds in run.by_rank.values() for n in kinds.values()
        )
        for mismatch in run.mismatches:
            counts.explain(mismatch, reader({"a": data, "b": data}))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(streams()))
    for _ in range(draw(st.integers(0, 8)) if data else 0):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    return bytes(data)


def summary(part: counts.Part) -> Any:
    """Everything a part says, in comparable form."""
    return {
        "rows": [(row.name, sorted((str(part.columns[c]), n) for c, n in row.items())) for row in part.rows],
        "labels": part.label_rows,
        "processes": part.processes,
        "comms": {k: vars(c) for k, c in part.comms.items()},
        "sequences": {
            k: (s.kinds, s.count, list(s.blocks), s.tail, s.last, s.nranks) for k, s in part.sequences.items()
        },
        "transports": part.transports,
        "torn": part.torn,
        "last": part.last,
        "size": (part.lines, part.bytes),
    }


def call(prefix: str, kind: str, count: str, comm: str, send: str, receive: str, op: int = 0) -> bytes:
    text = f"{prefix}NCCL INFO {kind}: opCount {count:.2} sendbuff {send} recvbuff {receive} count {count}"
    return f"{text} datatype 7 op {op} root 0 comm {comm} [nranks=2] stream 0x55d000001000".encode()


FAR, NEAR, WORLD = (
    "0x7f0000000001",
    "(nil)",
    "comm 0x55d000000000 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x77",
)
PIECES = st.sampled_from(
    [
        call("nod1:1:1 [0] ", "AllReduce", "8", "0x55d000000000", FAR, FAR),
        call("nod2:2:2 [1] ", "AllGather", "123456", "0x55d000000f00", FAR, FAR),
        call("3: node-3:33333:44444 [3] ", "Send", "1", "0x5500", FAR, NEAR),
        call("[0] ", "Recv", "123", "0x5500", NEAR, "0x7f", op=7),
        f"nod1:1:1 [0] NCCL INFO {WORLD} - Init START".encode(),
        f"nod1:1:1 [0] NCCL INFO {WORLD} - Init COMPLETE".encode(),
        b"nod2:2:2 [1] NCCL INFO comm 0x55d000000f00 rank 1 nranks 2 cudaDev 1 commId 0x77 - Init COMPLETE",
        b"nod1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via NET/IB/0",
        b"nod2:2:2 [1] x.cc:7 NCCL WARN something 0x7f failed",
        b"iteration 5/ 100 | loss 1",
        b"3: step 6",
        b"Epoch: [1][ 20/500]",
        b"\r  5%|#  | 5/100\r",
        b"",
        b"\x00\xff\x1b[31m",
        b"NCCL INFO AllReduce: opCount",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(PIECES, max_size=60))
    out = []
    for piece in pieces:
        cut = draw(st.integers(0, len(piece))) if draw(st.integers(0, 9)) == 0 else len(piece)
        out.append(piece[:cut] + draw(st.sampled_from([b"\n", b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n"])))
    return b"".join(out)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.sampled_from([1, 7, 64, 500, 1 << 20]))
def test_both_engines_say_the_same(data: bytes, size: int) -> None:
    said = [fuzz_counts.said(data, size, engine) for engine in ENGINES]
    assert all(one == said[0] for one in said)


def scanned(data: bytes, engine: str) -> Scan:
    scanner = Scanner()
    counts.scan(blocks(data), scanner.take, engine=engine, words=scanner.words)
    return scanner.result()


TEXTS = [text.encode() for _, text in SAID] + [text.encode() for text in HEALTHY]
FILL = b"".join(b"loaded shard %d of a data set\n" % n for n in range(500))
"""So many lines that the form of the labels is known: from there on lines are left out."""


def test_an_engine_that_leaves_out_lines_leaves_out_nothing_that_is_read() -> None:
    handed = 0
    for texts in (TEXTS, TEXTS[::-1]):
        data = FILL + b"\nnothing of interest here\n".join(texts)
        read = [scanned(data, engine) for engine in ENGINES]
        assert all(one == read[0] for one in read)
        handed += sum(len(one.events) for one in read)
    assert handed > 1000 * len(ENGINES)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.sampled_from(TEXTS), st.binary(max_size=80)), max_size=12),
    st.sampled_from([b"\n", b"\n\x1b[31mred\x1b[0m\n", b"\x1b[0m\n{", b"\r\n&lt;", b"\nplain words\n"]),
)
def test_engines_that_leave_out_lines_read_the_same(texts: list[bytes], between: bytes) -> None:
    read = [scanned(FILL + between.join(texts), engine) for engine in ENGINES]
    assert all(one == read[0] for one in read)


def test_both_engines_say_the_same_of_what_fuzzing_has_found() -> None:
    """`python tests/fuzz_counts.py` extends these inputs."""
    for data, size in fuzz_counts.inputs():
        said = [fuzz_counts.said(data, size, engine) for engine in ENGINES]
        assert all(one == said[0] for one in said), data
        assert said[0][0]["size"][1] == len(data)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("calls", [1, 63, 64, 65, 128, 129, 700])
def test_a_difference_is_found_at_every_place(calls: int, engine: str) -> None:
    for at in {0, calls // 2, calls - 1}:
        kinds = ["AllReduce"] * calls
        odd = [*kinds[:at], "Broadcast", *kinds[at + 1 :]]
        # One rank is far ahead: what it called where the others stand is kept no more.
        ranks = ((0, kinds), (1, odd), (2, kinds + ["AllGather"] * 1000))
        text = b"".join(
            call(f"n{r}:{r}:{r} [0] ", kind, "8", f"0x55{r}", FAR, FAR).replace(b"nranks=2", b"nranks=3")
            + b"\n"
            for r, own in ranks
            for kind in own
        )
        run = count({"a": text}, engine)
        found = [*run.mismatches, *(counts.locate(u, reader({"a": text})) for u in run.unlocated)]
        assert [(m and m.index, m and [p.member.pid for p in m.odd]) for m in found] == [(at, ["1"])]
