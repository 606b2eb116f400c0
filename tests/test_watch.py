"""When a run is looked at, and what is made of the answers: nodes that answer as told, no clock."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

from ringup.hang import HangWatch
from ringup.planning import NodePlan
from ringup.runtime import Event
from ringup.runtime.node_state import Clock
from ringup.timeline.marks import Recorder

C10D = "/v/site-packages/torch/distributed/distributed_c10d.py"
WAITS = [[C10D, 1, "all_reduce"], ["/home/u/train.py", 88, "main"]]
SLEEPS = [["/home/u/train.py", 12, "load"]]


def rank(number: int, frames: list[Any], cpu_s: float = 1.0) -> dict[str, Any]:
    """What a node says of one rank."""
    return {
        "rank": number, "local_rank": number, "world_size": 2, "run": "r", "node": "0", "job": ["", "", ""],
        "pid": 100 + number, "started": 1, "age_s": 9.0, "state": "S", "wchan": "", "syscall": "",
        "cpu_s": cpu_s, "io_bytes": 0, "switches": 0, "command": "python", "children": [],
        "threads": [[frames, "main"]],
    }  # fmt: skip


NODE = {
    "memory_bytes": 1, "memory_available_bytes": 1, "swapped_pages": 0, "oom_kills": 0,
    "cgroup_oom_kills": 0, "disks": [], "interfaces": {},
}  # fmt: skip


@dataclasses.dataclass
class Node:
    """As much of a `NodeRun` as a watch sees; answers at once, with the ranks it is given."""

    ranks_now: list[dict[str, Any]]
    name: str = "node0"
    state: str = "running"
    output_s: float = 0.0
    clock_s: float = 0.0
    look: dict[str, Any] = dataclasses.field(default_factory=dict)
    asked: list[str] = dataclasses.field(default_factory=list)
    traffic: dict[str, int] = dataclasses.field(default_factory=dict)
    mute_on: str = ""
    ranks: dict[int, Any] = dataclasses.field(default_factory=dict)
    plan: NodePlan = dataclasses.field(default_factory=lambda: NodePlan("node0", 0, 2, 0, "", "", (), {}))
    clock: Clock = dataclasses.field(default_factory=Clock)
    noted: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """In the record of times."""

    @property
    def output(self) -> SimpleNamespace:
        return SimpleNamespace(times=Recorder(lambda line: self.noted.append(json.loads(line))))

    def tell(self, **message: Any) -> None:
        self.asked.append(message["mode"])
        self.look = {
            "type": "look", "number": message["number"], "mode": message["mode"], "at": self.clock_s,
            "wall_ns": 10**18, "ranks": self.ranks_now, "node": {**NODE, "interfaces": self.traffic},
        }  # fmt: skip
        if message["mode"] == self.mute_on:
            self.look = {"type": "look", "number": message["number"], "problem": "it gave nothing"}


class Played:
    """A watch with a window of 60 s on one node, its clock moved by hand."""

    def __init__(self, *ranks: dict[str, Any], end_after_s: float = 0.0) -> None:
        self.watch = HangWatch(60.0, end_after_s)
        self.now_s = self.began_s = self.watch._began_s
        self.node = Node(list(ranks), output_s=self.now_s)
        self.events: list[Event] = []
        self.reason = ""

    def go(self, seconds: float, *, prints: bool = False) -> Played:
        """Let time pass, half a second at a time."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            self.node.clock_s = self.now_s
            self.node.output_s = self.now_s if prints else self.node.output_s
            self.reason = self.reason or self.watch.on_time(self.now_s, [self.node], self.events.append)  # type: ignore[list-item]
        return self

    def hangs(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "hang"]


STUCK = (rank(0, WAITS), rank(1, SLEEPS))


def test_nobody_is_asked_for_stacks_while_something_is_printed() -> None:
    played = Played(*STUCK)
    for second in range(170):
        played.node.ranks_now = [rank(n, SLEEPS, cpu_s=second) for n in range(2)]
        played.go(1, prints=True)
    assert set(played.node.asked) == {"count"} and len(played.node.asked) <= 3
    assert not played.events


def test_a_silence_is_explained_when_the_window_is_over_and_once() -> None:
    played = Played(*STUCK).go(59.5)
    assert played.node.asked == ["count"] and not played.events
    played.go(2)
    assert played.node.asked == ["count", "stacks"]
    assert len(played.hangs()) == 1 and "rank 1 (node0) is missing from all_reduce" in played.hangs()[0]
    played.go(400)
    assert len(played.hangs()) == 1 and len(played.watch.reports) == 1
    assert played.reason == ""


def test_a_run_is_ended_only_when_that_was_asked_for_and_not_before() -> None:
    played = Played(*STUCK, end_after_s=100.0).go(99)
    assert played.hangs() and not played.reason
    assert played.go(15).reason.startswith("hung for ")


def test_a_run_is_not_ended_for_the_last_ten_seconds_of_its_silence() -> None:
    played = Played(rank(0, WAITS), rank(1, SLEEPS, cpu_s=1.0), end_after_s=60.0).go(40)
    played.node.ranks_now = [rank(0, WAITS), rank(1, SLEEPS, cpu_s=11.0)]
    assert not played.go(25).reason and not played.hangs()
    assert played.go(80).reason.startswith("hung for ")


def test_a_run_that_computes_is_never_ended() -> None:
    played = Played(*STUCK, end_after_s=100.0)
    for second in range(400):
        played.node.ranks_now = [rank(0, WAITS), rank(1, SLEEPS, cpu_s=second)]
        played.go(1)
    assert not played.reason and not played.hangs()
    # Again only of a silence twice as long, not every minute.
    assert [event.kind for event in played.events] == ["quiet"] * 2
    assert "rank 1 (node0) is busy; 1 wait in all_reduce" in played.events[0].text


def test_going_on_is_said_and_a_second_hang_is_reported_again() -> None:
    played = Played(*STUCK).go(70)
    played.node.ranks_now = [rank(0, SLEEPS, cpu_s=30.0), rank(1, SLEEPS, cpu_s=30.0)]
    played.go(15, prints=True)
    assert "continues" in played.hangs()[-1] and len(played.hangs()) == 2
    played.node.ranks_now = [rank(0, WAITS, cpu_s=31.0), rank(1, SLEEPS, cpu_s=31.0)]
    played.go(140)
    assert len(played.hangs()) == 3 and "is missing from" in played.hangs()[-1]


def test_a_line_printed_again_and_again_does_not_hide_a_hang() -> None:
    played = Played(*STUCK).go(200, prints=True)
    assert len(played.hangs()) == 1 and "is missing from all_reduce" in played.hangs()[0]


def test_a_rank_that_polls_and_prints_does_not_hide_a_hang() -> None:
    played = Played(*STUCK)
    for second in range(200):
        polls = {**rank(1, SLEEPS), "switches": 20 * second, "syscall": "clock_nanosleep"}
        played.node.ranks_now = [rank(0, WAITS), polls]
        played.go(1, prints=True)
    assert len(played.hangs()) == 1 and "is missing from all_reduce" in played.hangs()[0]


def test_slow_steps_after_a_hang_are_its_end_though_they_use_no_cpu() -> None:
    played = Played(*STUCK).go(70)
    for second in range(40):
        played.node.ranks_now = [
            {**rank(n, SLEEPS), "switches": 20 * second, "syscall": "clock_nanosleep"} for n in range(2)
        ]
        played.go(1, prints=True)
    assert len(played.hangs()) == 2 and "continues" in played.hangs()[-1]


def test_another_programs_traffic_is_not_the_end_of_a_hang() -> None:
    played = Played(rank(0, WAITS), rank(1, WAITS)).go(70)
    assert len(played.hangs()) == 1 and "nothing moves" in played.hangs()[0]
    for second in range(200):
        played.node.traffic = {"eth0": second << 20}
        played.go(1)
    assert len(played.hangs()) == 1


def test_an_idle_service_that_prints_is_left_alone() -> None:
    played = Played(rank(0, SLEEPS), rank(1, SLEEPS)).go(300, prints=True)
    assert not played.events


def test_everybody_waiting_has_the_flight_recorder_asked_before_it_is_said() -> None:
    played = Played(rank(0, WAITS), rank(1, WAITS)).go(62)
    assert played.node.asked == ["count", "stacks", "flight"]
    assert len(played.hangs()) == 1 and "at the same line" in played.hangs()[0]
    used = [one for one in played.node.noted if one["what"] == "used"]
    assert len(used) == 6 and used[0] == {
        "what": "used", "at_s": used[0]["at_s"], "rank": 0, "cpu_s": 1.0, "io_bytes": 0
    }  # fmt: skip


def test_a_flight_recorder_that_does_not_answer_hides_no_hang() -> None:
    played = Played(rank(0, WAITS), rank(1, WAITS))
    played.node.mute_on = "flight"
    played.go(62)
    assert played.node.asked[-1] == "flight" and len(played.hangs()) == 1


SPINS = [["/home/u/train.py", 90, "step", "loss.item()"]]


def pending(seconds: float) -> dict[str, Any]:
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
    }
    entry |= {
        "state": "scheduled",
        "time_created_ns": 10**18,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
    }
    return {"version": "2.10", "entries": [entry], "now_ns": 10**18 + int(seconds * 1e9)}


def test_ranks_that_spin_and_call_different_things_are_ended_once_that_is_sure() -> None:
    played = Played(end_after_s=100.0)
    for second in range(140):
        ranks = [{**rank(n, SPINS, cpu_s=second), "flight": pending(second)} for n in range(2)]
        ranks[1]["flight"]["entries"][0]["profiling_name"] = "nccl:broadcast"
        played.node.ranks_now = ranks
        played.go(1)
    assert played.reason.startswith("hung for ") and len(played.hangs()) == 1
    assert "collective 1 of default_pg is " in played.hangs()[0]


def test_cpu_time_spent_on_answering_us_is_not_taken_for_progress() -> None:
    played = Played(rank(0, WAITS), rank(1, WAITS)).go(62)
    played.node.ranks_now = [rank(n, WAITS, cpu_s=3.0) for n in range(2)]
    played.go(5)
    played.node.ranks_now = [rank(n, WAITS, cpu_s=9.0) for n in range(2)]
    played.go(100)
    assert len(played.hangs()) == 1


def test_a_node_that_does_not_answer_holds_nothing_up() -> None:
    played = Played(*STUCK)
    played.node.tell = lambda **message: played.node.asked.append(message["mode"])  # type: ignore[method-assign]
    played.go(400)
    assert not played.hangs() and len(played.node.asked) > 2


def test_a_run_that_is_over_is_not_looked_at() -> None:
    played = Played(*STUCK)
    played.node.state = "over"
    assert not played.go(300).node.asked


def test_a_run_that_hangs_and_prints_is_ended_in_time() -> None:
    played = Played(*STUCK, end_after_s=300.0).go(299, prints=True)
    assert len(played.hangs()) == 1 and not played.reason
    played.go(120, prints=True)
    assert played.reason.startswith("hung for ")
