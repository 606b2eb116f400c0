"""A world that never formed is named at the end of a run; nothing is said where one did or none was meant."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringup.agent.guard import messages, world
from ringup.agent.proc import sockets
from ringup.logs.read import read_logs
from ringup.output.console import Style, run_lines
from ringup.planning import NodePlan
from ringup.runtime.node_state import NodeRun, NodeWorld, RankWorld
from ringup.runtime.record import never_formed
from tests.test_launch import Run

ALONE = {"has_group": True}
JOINED = {"has_group": True, "is_joined": True}


SAID: dict[str, Any] = {"rank": 0, "world_size": 0, "has_group": True, "is_joined": False, "remote": []}


def node_run(name: str, address: str, nproc: int, world: NodeWorld | None) -> NodeRun:
    plan = NodePlan(name, 0, nproc, 0, "", address, (), {})
    return NodeRun(plan, None, None, world=world)  # type: ignore[arg-type]


def node(index: int, *ranks: dict[str, Any], nproc: int = 0) -> NodeRun:
    """Node `index` at 10.0.0.{index}, with docker0's address as every node has it."""
    nproc = nproc or len(ranks)
    seen = [RankWorld(**{"rank": index * nproc + n, **rank}) for n, rank in enumerate(ranks)]
    address = f"10.0.0.{index}"
    return node_run(f"node{index}", address, nproc, NodeWorld([address, "127.0.0.1", "172.17.0.1"], seen))


def found(*nodes: NodeRun) -> str:
    return "".join(finding.found for finding in never_formed(nodes))


def test_ranks_with_a_process_group_each_and_no_connection_are_named() -> None:
    said = "no connection was seen between 2 parts of the run: rank 0 on node0, rank 1 on node1"
    assert found(node(0, ALONE), node(1, ALONE)) == said


def test_ranks_that_spawned_a_world_on_each_node_are_named() -> None:
    spawned = {**ALONE, "rank": -1}
    said = found(node(0, spawned, nproc=4), node(1, spawned, nproc=4))
    assert said.endswith("2 parts of the run: node0 (all of its ranks), node1 (all of its ranks)")


def test_two_worlds_of_a_node_each_are_named_by_their_ranks() -> None:
    said = found(node(0, JOINED, JOINED), node(1, JOINED, JOINED))
    assert said.endswith("2 parts of the run: ranks 0-1 on node0, ranks 2-3 on node1")


def test_ranks_whose_framework_counted_one_process_are_named_whatever_they_were_connected_to() -> None:
    alone = {"world_size": 1, "has_group": True, "is_joined": True, "remote": ["10.0.0.0"]}
    said = "each of the 2 ranks counted one process in its world: rank 0 on node0, rank 1 on node1"
    assert found(node(0, alone), node(1, alone)) == said


@pytest.mark.parametrize(
    "nodes",
    [
        (node(0, {**ALONE, "remote": ["10.0.0.1"]}), node(1, {**ALONE, "remote": ["10.0.0.0"]})),
        (node(0, JOINED), node(1, {**ALONE, "remote": ["10.0.0.0"]})),
        (node(0, JOINED, JOINED),),
        (node(0, ALONE),),
        (node(0, {}), node(1, {})),
        (node(0, ALONE), node(1, {})),
        (node(0, {**ALONE, "world_size": 2}), node(1, ALONE)),
        (node(0, {**ALONE, "world_size": -1}), node(1, {**ALONE, "world_size": -1})),
        (node(0, {"world_size": 1}), node(1, {})),
        (node(0, ALONE), node_run("node1", "10.0.0.1", 1, None)),
        (node(0, ALONE, nproc=2), node(1, ALONE, nproc=2)),
        (node(0, ALONE), node(1)),
    ],
    ids=[
        "connected",
        "connected as one of them saw",
        "one node",
        "one rank",
        "no process group",
        "a process group in one rank alone",
        "a rank that counted all",
        "engines with worlds of their own",
        "one rank that counted itself alone",
        "a node that told nothing",
        "ranks that nobody saw",
        "a node without ranks",
    ],
)
def test_nothing_is_said_of_what_was_not_seen_to_be_apart(nodes: tuple[NodeRun, ...]) -> None:
    assert found(*nodes) == ""


def test_nodes_played_on_one_machine_are_connected_by_loopback() -> None:
    def played(address: str, rank: int) -> NodeRun:
        return node_run(
            address, address, 1, NodeWorld(["127.0.0.1", "192.0.2.2"], [RankWorld(rank=rank, **JOINED)])
        )

    assert found(played("127.0.0.2", 0), played("127.0.0.3", 1)) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": "x"},
        {"addresses": ["1" * 65]},
        {"ranks": [{**SAID, "rank": "0"}]},
        {"ranks": [{**SAID, "world_size": 1 << 40}]},
        {"ranks": [{**SAID, "remote": ["a"] * 65}]},
        {"ranks": [{**SAID, "more": 1}]},
        {"ranks": [{"rank": 0}]},
        {"ranks": [SAID] * 4097},
    ],
)
def test_what_a_node_says_is_taken_whole_or_not_at_all(change: dict[str, Any]) -> None:
    def checked(message: dict[str, Any]) -> dict[str, Any] | None:
        return messages.Checker(messages.FROM_GUARD).check(message)  # type: ignore[no-any-return]

    whole = {"type": "world", "addresses": ["::1"], "ranks": [SAID]}
    assert checked({**whole, **change}) is None
    taken = checked(whole)
    assert taken and msgspec.convert(taken, NodeWorld) == NodeWorld(["::1"], [RankWorld(**SAID)])


# -- what the guard sees ------------------------------------------------------------------------

NAMED = """
import socket, sys, threading
is_named = threading.Event()
def named():
    with open("/proc/self/task/%d/comm" % threading.get_native_id(), "w") as file:
        file.write("pt_gloo_runloop")
    is_named.set()
    threading.Event().wait()
threading.Thread(target=named, daemon=True).start()
is_named.wait()
"""
LISTENS = """
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::", 0))
server.listen()
print(server.getsockname()[1], flush=True)
"""
CONNECTS = "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
STAYS = "print('up', flush=True)\nsys.stdin.read()\n"


class Played:
    """Ranks that are subprocesses, and a guard's `World` that looks at them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks: list[subprocess.Popen[str]] = []
        self.world = world.World(types.SimpleNamespace(order={"world_size": 2, "env": {}}))
        self.now_s = 1000.0
        monkeypatch.setattr(world, "time", types.SimpleNamespace(monotonic=lambda: self.now_s))

    def start(self, text: str, *arguments: str) -> str:
        """Start a rank; its first line."""
        words = [sys.executable, "-c", NAMED + text + STAYS, *arguments]
        rank = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ranks.append(rank)
        assert rank.stdout
        return rank.stdout.readline().strip()

    def look(self) -> list[tuple[bool, bool]]:
        """(has a process group, is joined) of each rank, after two reads."""
        for _ in range(2):
            self.world.read({rank.pid: None for rank in self.ranks})
            self.now_s += world.LASTING_S
        seen = [self.world.seen[rank.pid] for rank in self.ranks]
        return [(one.has_group, one.is_joined) for one in seen]

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.communicate("")


def test_a_connection_between_two_ranks_joins_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with Played(monkeypatch) as played:
        port = played.start(LISTENS + "print('up', flush=True)\npeer, _ = server.accept()\n")
        played.start(CONNECTS, port)
        assert played.look() == [(True, True), (True, True)]


def test_connections_within_the_tree_of_a_rank_join_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with Played(monkeypatch) as played:
        child = f"import socket, sys\n{CONNECTS}sys.stdin.read()\n"
        text = (
            "import subprocess\n" + LISTENS + "port = str(server.getsockname()[1])\n"
            f"child = subprocess.Popen([sys.executable, '-c', {child!r}, port])\n"
            "peer, _ = server.accept()\n"
        )
        for _ in range(2):
            played.start(text)
            stdout = played.ranks[-1].stdout
            assert stdout and stdout.readline() == "up\n"
        assert played.look() == [(True, False), (True, False)]


def test_a_connection_to_another_process_of_the_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with Played(monkeypatch) as played, socket.create_server(("127.0.0.1", 0)) as server:
        played.start(CONNECTS, str(server.getsockname()[1]))
        connection, _ = server.accept()
        with connection:
            assert played.look() == [(True, True)]


def test_a_group_that_only_one_read_has_seen_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # The threads are read after the sockets: it may have been set up in between.
    with Played(monkeypatch) as played:
        played.start("")
        (rank,) = played.ranks
        for now_s, has_group in ((1.0, False), (1.4, False), (1.6, True)):
            played.now_s = now_s
            played.world.read({rank.pid: None})
            assert played.world.seen[rank.pid].has_group is has_group


def test_addresses_are_read_as_the_kernel_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with Played(monkeypatch) as played:
        end = sockets.end
        assert played.world.is_wanted
    assert sys.byteorder == "little"
    assert end(b"0100007F:07E8") == ("127.0.0.1", 2024)
    assert end(b"0000000000000000FFFF00000100000A:0016") == ("10.0.0.1", 22)
    assert end(b"000080FE00000000FF00FC000100E0FE:0016")[0].startswith("fe80::")


# -- runs ---------------------------------------------------------------------------------------

COUNTED = """
import types
sys.modules["accelerate.state"] = types.SimpleNamespace(
    PartialState=types.SimpleNamespace(_shared_state={{"num_processes": {count}}}))
"""


@pytest.mark.slow
def test_it_is_said_on_the_screen_in_run_json_and_by_logs(tmp_path: Path) -> None:
    run = Run(tmp_path, COUNTED.format(count=1), nproc=1)
    assert (run.result.outcome, run.result.exit_code) == ("ok", 0)
    (finding,) = run.record["findings"]
    assert (finding["rule"], finding["severity"]) == ("world-never-formed", "warning")
    assert run.record["cleanup"] == []
    with (tmp_path / "screen").open("w") as stream:
        lines = run_lines(run.result, Style(stream))
    assert "warning the run: each of the 2 ranks counted one process in its world" in lines[0]
    assert lines[1] == "  wanted: one world of 2 ranks (`ringup explain world-never-formed`)"
    assert lines[2].startswith("  fix        `ringup lint train.py` names the line")
    (run.log_dir / "ringup.log").write_text("".join(f"{line}\n" for line in lines))
    (cause,) = read_logs([str(run.log_dir)]).causes
    assert (cause.rule, cause.severity) == ("world-never-formed", "warning")
    assert cause.text.startswith("each of the 2 ranks counted one process")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "print('a preprocessing script that shards by RANK')",
        COUNTED.format(count=2),
        COUNTED.format(count="None"),
    ],
)
def test_sound_runs_and_scripts_without_a_process_group_are_left_alone(tmp_path: Path, script: str) -> None:
    run = Run(tmp_path, script, nproc=1)
    assert (run.result.outcome, run.record["findings"]) == ("ok", [])


@pytest.mark.slow
def test_the_script_finds_no_trace_of_what_tells_it(tmp_path: Path) -> None:
    script = "assert not [name for name in os.environ if 'WORLD_FD' in name]\n"
    run = Run(tmp_path, script + "os.execv('/bin/true', ['true'])", nproc=1)
    assert run.result.outcome == "ok", os.fsdecode(run.text)
