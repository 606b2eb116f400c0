"""A `Reach` that starts programs as plain processes, each behind a prefix such as `ip netns exec NS`."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ringup.facts import Host
from ringup.reach import Channel, Listener


class PlainChannel:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def close_stdin(self) -> None:
        assert self.process.stdin
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class PlainReach:
    def __init__(self, prefixes: Mapping[str, Sequence[str]], python: str = sys.executable) -> None:
        self.prefixes, self.python = prefixes, python
        self.hosts = tuple(Host(n) for n in prefixes)
        self.selector = selectors.DefaultSelector()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, program: str, arguments: tuple[str, ...], listener: Listener) -> Channel:
        words = [*self.prefixes[node], self.python, "-c", program, *arguments]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.processes[node] = process
        for pipe, hear in ((process.stdout, listener.on_output), (process.stderr, listener.on_errors)):
            assert pipe
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_READ, (node, process, hear, listener))
        return PlainChannel(process)

    def turn(self, timeout_s: float) -> None:
        for key, _ in self.selector.select(timeout_s):
            node, process, hear, listener = key.data
            data = os.read(key.fd, 1 << 16)
            if data:
                hear(node, data)
                continue
            self.selector.unregister(key.fileobj)
            if not any(k.data[1] is process for k in self.selector.get_map().values()):
                listener.on_exit(node, process.wait(), None)

    def ask(self, scripts: Any, **more: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """End what still runs; says which programs did not leave by themselves."""
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()
