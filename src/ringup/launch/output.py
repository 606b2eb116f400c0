"""The ranks' output: live lines with a `node:rank` prefix, and one file per rank as it came."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringup.launch import Event
from ringup.launch.node import LAUNCHER, has_shims
from ringup.launch.pump import Pump
from ringup.launch.show import clean
from ringup.launch.transports import NCCL_LINE
from ringup.plan import NodePlan
from ringup.units import printable, show_bytes

TERMINAL_BYTES = 4 << 20
FILES_BYTES = 64 << 20
LONGEST_PARTIAL_BYTES = 64 << 10
PARTIAL_SHOWN_AFTER_S = 2.0
"""A line without an end (a progress bar, a prompt) is shown this often."""
MOST_OPEN_FILES = 200


def file_name(node: NodePlan, rank: int) -> str:
    """
    The file a rank's output is in.

    >>> file_name(NodePlan("fe80::1%eth0", 1, 2, 2, "", "", (), {}), 3)
    'rank-00003-fe80__1_eth0.log'
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", node.node)[:100]
    if rank == LAUNCHER:
        return f"node{node.rank}-launcher.log"
    return f"rank-{rank:05d}-{safe}.log"


@dataclass
class _Partial:
    file: str
    data: bytes = b""
    since_s: float = 0.0


class Terminal:
    """Whole lines to where the user looks; drops and says so when nobody reads."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        self._write = write
        self._pump = Pump("terminal", TERMINAL_BYTES)
        self._missed = 0

    def lines(self, lines: list[str]) -> None:
        """Show lines, safe already."""
        if self._write is None or not lines:
            return
        if self._missed and self._put(f"[{self._missed} lines not shown here; the files have them]\n"):
            self._missed = 0
        if self._missed or not self._put("\n".join(lines) + "\n"):
            self._missed += len(lines)

    def later(self, action: Callable[[], object]) -> None:
        """Show something else in its turn; the user's terminal may be stuck, we must not be."""

        def guarded() -> None:
            with contextlib.suppress(OSError, ValueError):
                action()

        self._pump.put(guarded, 100)

    def _put(self, text: str) -> bool:
        return self._pump.put(lambda: self._out(text), len(text))

    def _out(self, text: str) -> None:
        if self._write is None:
            return
        try:
            self._write(text)
        except (OSError, ValueError):
            self._write = None  # a pipe closed by its reader, a terminal that is gone: the files go on

    def close(self) -> None:
        """Show what is waiting, if somebody reads."""
        self._pump.close(2.0)


class Output:
    """A `Sink`: every rank's bytes to its file, its lines to the terminal."""

    def __init__(
        self,
        log_dir: Path,
        write: Callable[[str], object] | None,
        on_lines: Callable[[NodePlan, list[bytes]], object] | None = None,
        *,
        nccl_apart: bool = False,
    ) -> None:
        """`on_lines` hears whole lines; `nccl_apart`: NCCL's INFO lines have a file of their own."""
        self._on_lines, self._nccl_apart = on_lines, nccl_apart
        self.log_dir = log_dir
        self.terminal = Terminal(write)
        self.problem = ""
        """Why the files are not complete; "" while they are."""
        self._is_problem_told = False
        self._pump = Pump("files", FILES_BYTES)
        self._partials: dict[tuple[str, int, int], _Partial] = {}
        self._open: dict[str, int] = {}
        self._begun: set[str] = set()

    def on_rank_output(self, node: NodePlan, rank: int, stream: int, data: bytes) -> None:
        """Keep the bytes; show whole lines of ranks, not what their launcher says."""
        is_quiet = rank == LAUNCHER and has_shims(node)
        if is_quiet or not self._nccl_apart:
            self.to_file(file_name(node, rank), data)
        if is_quiet:
            return
        key = (node.node, rank, stream)
        partial = self._partials.setdefault(key, _Partial(file_name(node, rank)))
        *lines, rest = (partial.data + data).split(b"\n")
        if self._on_lines and lines:
            self._on_lines(node, lines)
        if self._nccl_apart:
            lines = self._sorted_out(partial, lines)
        if len(rest) > LONGEST_PARTIAL_BYTES:
            lines.append(rest)
            self._file_unfinished(partial, rest)
            rest = b""
        self._show(key, lines)
        if lines or not partial.data:
            partial.since_s = time.monotonic()
        partial.data = rest

    def _sorted_out(self, partial: _Partial, lines: list[bytes]) -> list[bytes]:
        """The lines that are the job's own; those and NCCL's go to their files."""
        own: list[bytes] = []
        nccl: list[bytes] = []
        for line in lines:
            (nccl if NCCL_LINE in line else own).append(line)
        if own:
            self.to_file(partial.file, b"\n".join(own) + b"\n")
        if nccl:
            self.to_file(partial.file.replace("rank-", "nccl-", 1), b"\n".join(nccl) + b"\n")
        return own

    def _file_unfinished(self, partial: _Partial, data: bytes) -> None:
        if self._nccl_apart:
            self.to_file(partial.file, data)

    def on_lost_output(self, node: NodePlan, size_bytes: int) -> None:
        """Say that output was dropped on its way."""
        words = f"{show_bytes(size_bytes)} of output dropped: it came faster than it could be taken"
        self.terminal.lines([f"{printable(node.node)}| [{words}]"])
        self._is_problem_told = self._is_problem_told or not self.problem
        self.problem = self.problem or f"{node.node}: {words}"

    def on_time(self, now_s: float) -> None:
        """Show lines that have waited long for their end."""
        for key, partial in self._partials.items():
            if partial.data and now_s - partial.since_s > PARTIAL_SHOWN_AFTER_S:
                self._show(key, [partial.data])
                self._file_unfinished(partial, partial.data)
                partial.data, partial.since_s = b"", now_s

    def _show(self, key: tuple[str, int, int], lines: list[bytes]) -> None:
        rank = f":{key[1]}" if key[1] >= 0 else ""
        prefix = f"{printable(key[0], 60)}{rank}| "
        self.terminal.lines([prefix + clean(line.decode("utf-8", "replace")) for line in lines])

    # -- files ---------------------------------------------------------------------------------

    def to_file(self, name: str, data: bytes) -> None:
        """Append to a file of the log directory, later, in the writing thread."""
        if not self._pump.put(lambda: self._append(name, data), len(data) + 200):
            self.problem = (
                self.problem or f"{self.log_dir} takes data too slowly; some output is missing there"
            )

    def tell_problem(self, tell: Callable[[Event], object]) -> None:
        """Say once, while there is time to make room, that files are not complete."""
        if self.problem and not self._is_problem_told:
            self._is_problem_told = True
            tell(Event("problem", self.problem))

    def later(self, action: Callable[[], None]) -> None:
        """Do something with files in their turn."""

        def guarded() -> None:
            try:
                action()
            except OSError as error:
                self.problem = self.problem or f"{self.log_dir}: {error.strerror}"

        self._pump.put(guarded, 200)

    def _append(self, name: str, data: bytes) -> None:
        try:
            fd = self._open.get(name)
            if fd is None:
                fd = self._open_file(name)
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            self.problem = self.problem or f"{self.log_dir / name}: {error.strerror}"

    def _open_file(self, name: str) -> int:
        if len(self._open) >= MOST_OPEN_FILES:
            os.close(self._open.pop(next(iter(self._open))))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fresh = os.O_TRUNC if name not in self._begun else 0
        self._begun.add(name)
        fd = self._open[name] = os.open(self.log_dir / name, flags | fresh, 0o644)
        return fd

    def flush(self) -> None:
        """Show what is left of unfinished lines."""
        for key, partial in self._partials.items():
            if partial.data:
                self._show(key, [partial.data])
                self._file_unfinished(partial, partial.data)
                partial.data = b""

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is waiting and close everything."""
        self.flush()
        self.terminal.close()
        if not self._pump.close(timeout_s):
            self.problem = self.problem or f"{self.log_dir} does not take what is written to it"
            return
        if self._pump.problem:
            self.problem = self.problem or f"{self.log_dir}: not all was written: {self._pump.problem}"
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
