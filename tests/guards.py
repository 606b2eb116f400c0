"""Guards as plain local processes, talked to over pipes: what the tests of guard and launch share."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ringup.agent_bundle import program, source

PATIENCE_S = 60.0
"""Bound of every wait; a loaded machine needs it, a test that passes never reaches it."""
ROOM = 6
"""A promise in seconds is asserted at this many times its value: one busy machine plays all hosts."""

OF_LOAD = frozenset({"answer-slow", "reverse-dns-slow", "tcp-retransmits-high"})
"""Rules that a busy machine makes true beside what a test is about: the processes of all hosts share it."""


def but_load(findings: Iterable[dict[str, Any]], about: str = "") -> list[dict[str, Any]]:
    """Findings of a check without those of load, but for the rule that the test is about."""
    return [one for one in findings if one["rule"] == about or one["rule"] not in OF_LOAD]


def wait_for(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll until `what()` is true and give its value; a costly look is taken less often."""
    until = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        value = what()
        if value:
            return value
        ended = time.monotonic()
        assert ended < until, f"not within {patience_s:.0f} s: {why}"
        time.sleep(min(max(0.01, 4 * (ended - began)), 0.25))


def free_port() -> int:
    """
    A port that nobody listens on, below those that the kernel hands out for connections (32768 and up).

    The kernel's own choice of a free port may be somebody's connection a moment later.
    """
    for _ in range(1000):
        port = 10_000 + secrets.randbelow(18_000)
        with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", port)):
            return port
    raise AssertionError("no free port")


def tagged(run_id: str) -> list[int]:
    """Processes of this machine whose environment carries the run's tag."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if b"RINGUP_RUN=" + run_id.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process still runs (a zombie does not)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class GuardedNode:
    """One guard and the messages it has sent; `before` is Python that its program begins with."""

    def __init__(
        self,
        folder: Path,
        words: list[str],
        *,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        before: str = "",
        **order: Any,
    ) -> None:
        self.run_id = "t" + secrets.token_hex(6)
        self.run_dir = folder / f"{self.run_id}-0"
        self.messages: list[dict[str, Any]] = []
        self.rest = b""
        self.process = subprocess.Popen(
            [python, "-c", before + program("guard.main"), f"ringup-guard:{self.run_id}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.order = {
            "run_id": self.run_id,
            "node": 0,
            "words": [w.replace("{RUN_DIR}", str(self.run_dir)) for w in words],
            "env": {k: v.replace("{RUN_DIR}", str(self.run_dir)) for k, v in (env or {}).items()},
            "unset": [],
            "chdir": str(folder),
            "setup": "",
            "run_dir": str(self.run_dir),
            "lease_s": 2 * PATIENCE_S,  # no launcher beats here
            "grace_s": 0.5,
            "rank_source": program("rank.rank"),
            "main_source": source("rank.rank_main"),
            "look_source": program("snapshot.main"),
            **order,
        }
        self.tell(self.order)

    def __enter__(self) -> GuardedNode:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        with contextlib.suppress(OSError):
            os.kill(self.process.pid, signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        left = tagged(self.run_id)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to the guard."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def go(self) -> GuardedNode:
        """Start the job."""
        self.tell({"type": "go"})
        return self

    def read(self, wait_s: float = 0.0) -> bool:
        """Take what has come; False at the end."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], wait_s)[0]:
            return True
        data = os.read(self.process.stdout.fileno(), 65536)
        *whole, self.rest = (self.rest + data).split(b"\n")
        self.messages += [json.loads(line) for line in whole if line.strip()]
        return bool(data)

    def get(self, kind: str, **fields: Any) -> dict[str, Any] | None:
        """The first message of a kind that has these fields."""
        for message in self.messages:
            if message["type"] == kind and all(message.get(k) == v for k, v in fields.items()):
                return message
        return None

    def wait(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for such a message."""

        def look() -> dict[str, Any] | None:
            more = self.read(0.02)
            found = self.get(kind, **fields)
            assert found or more, f"the guard ended without {kind}: {self.messages}"
            return found

        return wait_for(look, f"message {kind} {fields}")  # type: ignore[no-any-return]

    def wait_end(self) -> int:
        """Read to the end; the guard's exit code."""
        wait_for(lambda: not self.read(0.02), "the guard's end")
        return self.process.wait(PATIENCE_S)

    def output(self, rank: int) -> bytes:
        """What a rank (-1: the launcher) has written, as far as it has come."""
        return b"".join(
            base64.b64decode(m["data"]) for m in self.messages if m["type"] == "out" and m["rank"] == rank
        )


def python_job(folder: Path, source: str, name: str = "job.py") -> dict[str, str]:
    """A Python file as the script of rank 0; the environment that names it."""
    path = folder / name
    path.write_text(source)
    return {"RINGUP_SCRIPT": str(path), "RANK": "0", "LOCAL_RANK": "0"}


SHIM = [sys.executable, "-S", "-E", "{RUN_DIR}/rank.py"]
"""A launcher of one rank: the shim itself."""
