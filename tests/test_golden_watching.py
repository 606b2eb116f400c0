"""What is said of silent runs, for many slightly different ranks, dumps and moments."""

from __future__ import annotations

import dataclasses
import pickle
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import ringup.hang
from ringup.flight_recorder import dump
from ringup.flight_recorder.compare import compare as differences
from ringup.flight_recorder.dump import from_data
from ringup.hang import grouping, stack_frames
from ringup.hang.activity import busiest_child, flowing, identity, moves, troubles, written
from ringup.hang.snapshots import Child, Frame, NodeLook, NodeState, RankLook, Ras, decode, spread
from ringup.hang.verdict import Missing, judge
from tests import flight_dumps
from tests import test_flight as recorder
from tests import test_judge as scene
from tests import test_watch as play
from tests.golden_files import compare, part_of
from tests.test_judge import (
    AT_GPU,
    LOADS,
    RAS,
    SLEEPS,
    SPINS,
    WAITS,
    own,
    rank,
    recorded,
    waits,
    with_flights,
)
from tests.variations import below, literals, sweep

pytestmark = pytest.mark.slow

DISK = (Frame("/home/u/train.py", 40, "save", "torch.save(model, path)"),)
IMPORTS = (Frame("<frozen importlib._bootstrap>", 1, "_find_and_load"), own(2, "<module>", "import torch"))
PTXAS = Child(9, "/usr/bin/ptxas kernel.ptx", "R", "", "", 9.0, parent=103, started=5)
WORKER = Child(
    10,
    "python train.py",
    "D",
    "nfs_wait",
    "read of /data/x",
    0.0,
    (Frame("/home/u/data.py", 5, "get"),),
    is_python=True,
)
SPAWNED = tuple(
    Child(
        200 + n,
        "python train.py",
        "S",
        "",
        "",
        0.0,
        (*(SLEEPS if n == 2 else waits()),),
        parent=100,
        started=9,
        is_python=True,
    )
    for n in range(3)
)
TRACKER = dataclasses.replace(
    SPAWNED[0], pid=300, command="python -c from multiprocessing.resource_tracker import main"
)
BELOW = dataclasses.replace(SPAWNED[0], pid=301, parent=200)
THREE = [rank(n, waits()) for n in range(3)]
SCENES: dict[str, list[RankLook]] = {
    "one sleeps": [*THREE, rank(3, SLEEPS, syscall="clock_nanosleep")],
    "one computes": [*THREE, rank(3, SLEEPS, cpu_s=9.8, state="R")],
    "one reads": [*THREE, rank(3, LOADS, io=1 << 20, switches=50)],
    "one polls": [*THREE, rank(3, SLEEPS, switches=200, cpu_s=0.1)],
    "one compiles": [*THREE, rank(3, (own(5, "step"),), cpu_s=9.0, children=(PTXAS,))],
    "one has a worker": [*THREE, rank(3, LOADS, children=(WORKER, PTXAS))],
    "one writes": [*THREE, rank(3, DISK, state="D", wchan="balance_dirty_pages", syscall="write of /out/x")],
    "one is stopped": [*THREE, rank(3, (), state="T", why_not="it is stopped")],
    "one is not seen": [*THREE, rank(3, (), why_not="no py-spy", faults=20)],
    "one imports": [*THREE, rank(3, IMPORTS, faults=40, io=1 << 14)],
    "one is elsewhere": [*THREE, rank(3, waits("broadcast", 91))],
    "halves": [*THREE[:2], *(rank(n, waits("barrier", 9)) for n in (2, 3))],
    "all wait": [*THREE, rank(3, waits())],
    "all spin": [*SPINS, rank(3, AT_GPU["item"], cpu_s=10.0, state="R")],
    "spin, pending": [*with_flights(SPINS, *[recorded(80.0)] * 3), rank(3, SLEEPS, flight=recorded(90.0, number=3, done=True))],
    "spin, apart": with_flights([*SPINS, rank(3, AT_GPU["item"], cpu_s=10.0)], *[recorded(80.0)] * 3, recorded(80.0, op="broadcast")),
    "wait, behind": with_flights([*THREE, rank(3, waits("barrier", 7))], *[recorded(60.0)] * 3, recorded(60.0, number=3, done=True)),
    "transfers": [*(rank(n, waits("recv", 40)) for n in range(3)), rank(3, waits("all_reduce", 50))],
    "meeting": [rank(n, waits("init_process_group", 3)) for n in range(2)],
    "nobody waits": [rank(n, SLEEPS, syscall="clock_nanosleep") for n in range(4)],
    "nobody waits, works": [rank(n, SLEEPS, cpu_s=n * 1.0) for n in range(4)],
    "nobody": [],
    "spawned": [rank(0, scene.JOIN, children=SPAWNED)],
    "spawned, with others": [rank(0, scene.JOIN, children=(*SPAWNED, TRACKER, BELOW, dataclasses.replace(PTXAS, parent=100)))],
    "one spawns": [rank(0, scene.JOIN, children=SPAWNED), rank(1, waits())],
    **{f"waits in {name}": [*(rank(n, frames) for n in range(3)), rank(3, SLEEPS)] for name, frames in WAITS.items()},
    **{f"at the GPU by {name}": [rank(n, frames, cpu_s=5.0 * (n % 2)) for n in range(4)] for name, frames in AT_GPU.items()},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Moment:
    """What `judge` is given."""

    first: tuple[NodeLook, ...]
    second: tuple[NodeLook, ...]
    ended: tuple[Missing, ...] = ()
    expected: int = 4


def moment(ranks: Sequence[RankLook], **more: Any) -> Moment:
    none: dict[str, Any] = {
        "cpu_s": 0.0,
        "io_bytes": 0,
        "switches": 0,
        "faults": 0,
        "frames": (),
        "flight": None,
    }
    bare = {"cpu_s": 0.0}
    before = [
        dataclasses.replace(
            r, **none, children=tuple(dataclasses.replace(c, **bare, frames=()) for c in r.children)
        )
        for r in ranks
    ]
    state = NodeState(1 << 40, 1 << 39, disks=(("/out", 1 << 30, 1 << 40),), interfaces={"eth0": 10})
    later = dataclasses.replace(state, interfaces={"eth0": 20}, written_bytes=5)
    made = scene.nodes(before, 0.0, state=state), scene.nodes(list(ranks), 10.0, state=later)
    if more.pop("ras", False):
        ras = Ras("localhost:28028", "json", RAS, "")
        made = tuple([dataclasses.replace(node, ras=ras) for node in side] for side in made)  # type: ignore[assignment]
    return Moment(tuple(made[0]), tuple(made[1]), **more)


def said(one: Moment) -> Iterator[str]:
    verdict = judge(one.first, one.second, ended=one.ended, expected=one.expected)
    yield f"{verdict.kind} {verdict.rule} {verdict.headline}"
    yield from (f"line {line}" for line in verdict.lines)
    yield from (f"missing {m.rank} {m.node} {m.where}" for m in verdict.missing)
    yield f"in {verdict.collective}, open {verdict.is_open}, apart {verdict.apart}"


def looked(one: Moment) -> Iterator[str]:
    """What the parts below the verdict say."""
    first, second = spread(one.first, one.second)
    for key, move in moves(first, second).items():
        yield f"{key} {move} nothing {move.uses_nothing} idle {move.is_idle}"
    yield f"flowing {flowing(first, second)} written {written(first, second)}"
    old = {identity(r): r for node in first for r in node.ranks}
    for node in second:
        yield from (f"trouble {line}" for line in troubles(one.first[0].state, node.state))
        yield from (f"fold {line}" for line in grouping.lines(node.ranks))
        for r in node.ranks:
            yield f"{r.rank} {stack_frames.place_of(r.frames)} {stack_frames.doing(r)} {stack_frames.waits_for_disk(r)} {stack_frames.reads(r)}"
            yield from (
                f"{r.rank} {stack_frames.doing(c)} {stack_frames.waits_for_disk(c)}" for c in r.children
            )
            if identity(r) in old:
                yield f"{r.rank} {busiest_child(old[identity(r)], r)}"
            yield from grouping.stack_lines(r.frames)
    yield from grouping.ras_lines(second)


WORDS = (*literals(stack_frames), "write of /x", "futex_wait", "D", "R", "T", "Z", "t")


@pytest.mark.alike
@pytest.mark.parametrize("part", range(4))
def test_a_silence_is_judged_as_before(part: int) -> None:
    def answers() -> Iterator[str]:
        for name in part_of(SCENES, part, 4):
            yield name
            yield from sweep(moment(SCENES[name]), said, seed=name, most=90, words=WORDS)
            yield "  what the ranks do"
            yield from sweep(moment(SCENES[name]), looked, seed=name, most=40, words=WORDS, each=1)

    compare(f"silence-{part}.txt", answers())


def test_a_silence_with_more_known_is_judged_as_before() -> None:
    def answers() -> Iterator[str]:
        for name in ("all wait", "one sleeps", "all spin", "spin, pending", "halves"):
            for more in (
                {"ras": True},
                {"ended": (Missing(3, "node1", "ended with code 0"),)},
                {"expected": 8},
            ):
                ranks = SCENES[name][: 3 if "ended" in more else 4]
                yield f"{name} {more}"
                yield from sweep(moment(ranks, **more), said, seed=(name, more), most=40, words=WORDS)

    compare("silence-more.txt", answers())


# --- flight recorder


def call(name: str = "all_reduce", size: int = 8, **more: Any) -> Any:
    return flight_dumps.call(name, size, **more)


def dumps(*calls: list[Any], **more: Any) -> dict[int, Any]:
    return {n: flight_dumps.dump(one, **more) for n, one in enumerate(calls)}


COMMON = [call(), call("broadcast", 4), call()]
DUMPS: dict[str, dict[int, Any]] = {
    "agree": dumps(COMMON, COMMON, COMMON),
    "behind": dumps(COMMON, COMMON, COMMON[:2]),
    "two behind": dumps(COMMON, COMMON, COMMON[:1], COMMON[:2]),
    "size": dumps(COMMON, COMMON, [*COMMON[:2], call(size=9)]),
    "call": dumps(COMMON, COMMON, [*COMMON[:2], call("barrier")]),
    "lost": {**dumps(COMMON, COMMON), 2: flight_dumps.dump(COMMON, lost=2)},
    "waits": dumps([*COMMON, flight_dumps.waits()], [*COMMON, flight_dumps.waits()], COMMON),
    "group": dumps([call(group="1:tp"), call()], [call(group="1:tp"), call()], [call()], ranks=range(3)),
    "transfers": dumps(
        [call("send 0->1", is_p2p=True), call()], [call("recv 0->1", is_p2p=True), call()], [call()]
    ),
    "uneven": dumps([call("all_to_all", 3)], [call("all_to_all", 4)], [call("all_gather", 4)]),
    "gloo": dumps(COMMON, COMMON, COMMON[:2], library="gloo"),
    "old": dumps(COMMON, COMMON, COMMON[:2], version="1.5"),
    "written": {
        n: {"version": "2.10", "entries": [recorder.entry(1), recorder.waits(2 + n % 2)]} for n in range(3)
    },
}


def compared(data: dict[int, Any]) -> Iterator[str]:
    flights = {number: from_data(one) for number, one in data.items()}
    for number, flight in flights.items():
        yield f"{number} {flight.version} {flight.problem}"
        yield from (
            f"{number} {e.group} {e.number} {e.call} {e.where} {e.is_done} {flight.age_s(e)}"
            for e in flight.entries
        )
    yield from (f"{d.kind} {d.ranks} {d.text} {d.where} {d.doubt}" for d in differences(flights))


@pytest.mark.parametrize("part", range(2))
def test_dumps_are_compared_as_before(part: int) -> None:
    def answers() -> Iterator[str]:
        for name in part_of(DUMPS, part, 2):
            yield name
            yield from sweep(
                DUMPS[name],
                compared,
                seed=name,
                most=240,
                words=("gloo:barrier", "nccl:all_gather", "completed", "scheduled"),
            )

    compare(f"dumps-{part}.txt", answers())


def test_damaged_files_of_dumps_are_read_as_before() -> None:
    plain = {
        "a": [1, 300, 70_000, -5, 1 << 40, 2.5, True, None, "x", "é" * 300],
        "b": ((), (1,), (1, 2), (1, 2, 3, 4), {3: {}}),
    }

    def loaded(data: bytes) -> str:
        try:
            return repr(dump.unpickled(data))[:400]
        except dump.NotPlain as error:
            return f"not plain: {error}"

    def answers() -> Iterator[str]:
        for name, value in {"plain": plain, "dump": DUMPS["behind"][0]}.items():
            for protocol in (1, 2, 4, 5):
                data = pickle.dumps(value, protocol)
                usual = loaded(data)
                yield f"{name} {protocol} {usual}"
                for number in range(80):
                    place = below(len(data), name, protocol, number)
                    new = (data[place] + 1, 0x61, 0x2E, 0x28, 0x73, 0x85)[number % 6] % 256
                    changed = loaded(data[:place] + bytes([new]) + data[place + 1 :])
                    cut = loaded(data[:place])
                    yield from (f"  {place} {new} {one}" for one in (changed, cut) if one != usual)
        for value in (pickle, [object], {(1, 2): 3}, [b"x"], {1: [[]] * 3}):
            yield loaded(pickle.dumps(value, 2)) if value is not pickle else loaded(b"cos\nsystem\n.")

    compare("pickles.txt", answers())


# --- when it looks


def step(seconds: float, *ranks: dict[str, Any], prints: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "prints": prints,
        "ranks": list(ranks),
        "state": "running",
        "mute_on": "",
        **more,
    }


def both(one: Any, other: Any, cpu_s: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    return [{**play.rank(n, frames, cpu_s), **more} for n, frames in enumerate((one, other))]


STORIES: dict[str, list[dict[str, Any]]] = {
    "stuck": [step(75, *play.STUCK)],
    "prints": [step(100, *play.STUCK, prints=True)],
    "all wait": [step(80, *both(play.WAITS, play.WAITS))],
    "works": [step(30, *both(play.WAITS, play.SLEEPS, cpu_s=n * 30.0)) for n in range(6)],
    "goes on": [step(70, *play.STUCK), step(15, *both(play.SLEEPS, play.SLEEPS, 30.0), prints=True), step(70, *play.STUCK)],
    "over": [step(50, *play.STUCK), step(40, *play.STUCK, state="over")],
    "mute": [step(65, *both(play.WAITS, play.WAITS), mute_on="flight"), step(65, *play.STUCK, mute_on="count")],
    "spins": [step(20, *both(play.SPINS, play.SPINS, n * 20.0, flight=play.pending(n * 20.0))) for n in range(6)],
    "comes late": [step(70, play.STUCK[0]), step(70, *play.STUCK)],
}  # fmt: skip


@pytest.mark.parametrize("end_after_s", [0.0, 90.0])
def test_a_run_is_watched_as_before(monkeypatch: pytest.MonkeyPatch, end_after_s: float) -> None:
    monkeypatch.setattr(ringup.hang, "time", types.SimpleNamespace(monotonic=lambda: 1024.0))

    def watched(story: list[dict[str, Any]]) -> Iterator[str]:
        played = play.Played(end_after_s=end_after_s)
        for one in story:
            played.node.ranks_now = one["ranks"]
            played.node.state, played.node.mute_on = one["state"], one["mute_on"]
            played.go(min(one["seconds"], 200.0), prints=one["prints"])
        yield from (f"asked {mode}" for mode in played.node.asked)
        for event in played.events:
            # What follows are the words of msgspec's release.
            yield f"{event.kind} {event.text.partition(' cannot be read:')[0]}"
        yield f"ends: {played.reason}"

    def answers() -> Iterator[str]:
        for name, story in STORIES.items():
            yield name
            yield from sweep(story, watched, seed=name, most=70, words=("D", "R", "T"))

    compare(f"watch-{end_after_s:.0f}.txt", answers())


def test_what_a_node_says_is_decoded_as_before() -> None:
    child = {
        "pid": 7,
        "command": "python x",
        "state": "D",
        "wchan": "w",
        "syscall": "read",
        "cpu_s": 1.0,
        "threads": [[play.SLEEPS, "main"]],
    }
    one = {**play.rank(0, play.WAITS), "children": [child], "node": "1", "flight": play.pending(3.0)}
    given = {
        "at": 1.0,
        "mode": "stacks",
        "ranks": [one, play.rank(1, play.SPINS)],
        "node": {**play.NODE, "disks": [["/", 1, 2]]},
    }

    def decoded(data: dict[str, Any]) -> Iterator[str]:
        made = decode("n0", data, ("a", "b"))
        yield f"{made.node} {made.at_s} {made.mode} {made.state} {bool(made.problem)}"
        for r in made.ranks:
            yield f"{dataclasses.replace(r, flight=None)} {bool(r.flight)}"

    compare("decoded.txt", sweep(given, decoded, seed="decoded", most=300))
