"""`ringup top` on nodes that are played: `python -m tests.top_played RANKS` draws on this terminal."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, NoReturn

from ringup.cli import command_line, top
from ringup.cli.watched_job import WatchedJob
from ringup.model import Host
from ringup.transport import Listener
from tests.test_watch import NODE, SLEEPS, WAITS, rank

RANKS_A_NODE = 8
ODD = 301
"""The rank that is missing from what the others wait in."""


class PlayedNode:
    """What a node answers: every rank waits, but for one; the program's channel, too."""

    def __init__(self, name: str, first: int, world_size: int, listener: Listener) -> None:
        self.name, self.first, self.world_size, self.listener = name, first, world_size, listener
        self.due_s, self.began_s, self.told = 0.0, time.monotonic(), 0

    def write(self, data: bytes) -> None:
        for line in data.decode().splitlines():
            mode, _, number = line.partition(" ")
            if mode:
                self.tell(mode, int(number))

    def tell(self, mode: str, number: int = 0) -> None:
        answer = {
            **look(self.first, self.world_size, mode, time.monotonic()),
            "number": number,
            "printed": [],
        }
        self.listener.on_output(json.dumps(answer).encode() + b"\n")

    def on_time(self, now_s: float) -> None:
        if now_s >= self.due_s:
            self.due_s, self.told = now_s + 1.0, self.told + 1
            self.tell("stacks" if self.told % 8 == 1 else "count")


def look(first: int, world_size: int, mode: str, at_s: float) -> dict[str, Any]:
    """A node's answer; `first`: the number of its first rank."""
    numbers = range(first, min(first + RANKS_A_NODE, world_size))
    frames = [(SLEEPS if number == ODD else WAITS) if mode != "count" else [] for number in numbers]
    ranks = [
        {
            **rank(number, shown), "world_size": world_size, "memory_bytes": 3 << 30,
            "gpu": [97.0, 61 << 30, 60 << 30],
        }
        for number, shown in zip(numbers, frames, strict=True)
    ]  # fmt: skip
    node = {**NODE, "interfaces": {"ib0": 0, "eno1": int(at_s * 5000)}}
    answer = {"type": "look", "mode": mode, "at": at_s, "ranks": ranks, "node": node, "ras": None}
    return {**answer, "transfers": {}}


class PlayedTransport:
    """As much of a `Transport` as `Top` uses."""

    def __init__(self, hosts: tuple[Host, ...], world_size: int) -> None:
        self.hosts, self.world_size = hosts, world_size
        self.nodes: list[PlayedNode] = []
        self.interpreters: dict[str, str] = {}

    def start(self, name: str, program: str, words: object, listener: Listener, *, label: str) -> PlayedNode:
        self.nodes.append(PlayedNode(name, len(self.nodes) * RANKS_A_NODE, self.world_size, listener))
        return self.nodes[-1]

    def turn(self, timeout_s: float) -> None:
        time.sleep(0.02)
        for node in self.nodes:
            node.on_time(time.monotonic())

    def __enter__(self) -> PlayedTransport:
        return self

    def __exit__(self, *error: object) -> None: ...


def hosts_for(world_size: int) -> tuple[Host, ...]:
    return tuple(Host(f"node{number}") for number in range((world_size + RANKS_A_NODE - 1) // RANKS_A_NODE))


def main(world_size: int, *words: str) -> NoReturn:
    """`ringup top WORDS` on that many ranks."""
    hosts = hosts_for(world_size)
    top.job_named = lambda args: WatchedJob("r", hosts, None)  # type: ignore[assignment]
    top.Transport = lambda hosts, **options: PlayedTransport(hosts, world_size)  # type: ignore[assignment, misc]
    command_line.main(["top", *words])
    raise AssertionError


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
