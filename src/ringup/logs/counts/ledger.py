"""
The tables that an engine fills: columns, rows of iterations, processes, communicators.

The engine decides which lines are plain calls and counts those in bulk; every other line comes here.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

from ringup.logs.counts.model import (
    MAX_CELLS,
    MAX_COLUMNS,
    MAX_KINDS,
    MAX_PROCESSES,
    MAX_SEQUENCES,
    MAX_TRANSPORTS,
    Column,
    Comm,
    Part,
    ProcessKey,
    Row,
    Sequence,
    SequenceKey,
)
from ringup.logs.counts.plain import PlainEngine, arguments_number
from ringup.logs.grammar import (
    CALL_MARK,
    HEAD,
    INIT,
    POINT_TO_POINT,
    PREFIX,
    VIA,
    WORDS,
    bare,
    fields_of,
    iteration_of,
    label_of,
)

Other = Callable[[int, bytes, "bytes | None"], int]
"""
Takes a line by its number, and its words (their indices in the list, two bytes each) or None if unknown.

It wants every line up to the line number that it returns.
"""

MAX_SHOWN_BYTES = 64 << 10
"""Bytes of a line that are passed on."""


def shortened(line: bytes) -> bytes:
    """A line of bounded length, with its beginning and its end."""
    half = MAX_SHOWN_BYTES // 2
    return line if len(line) <= MAX_SHOWN_BYTES else line[:half] + line[-half:]


@functools.lru_cache(4 * MAX_PROCESSES)
def text_of(raw: bytes | None) -> str:
    """Text of a name, the same object each time."""
    return "" if raw is None else raw.decode("utf-8", "replace")


def _has_from(first: int, found: bytes) -> bool:
    """Whether any of these word numbers is one that counting reads: `first` and up."""
    return max(memoryview(found).cast("H"), default=-1) >= first


class Ledger:
    """Writes a `Part`."""

    def __init__(
        self,
        iteration: re.Pattern[bytes] | None = None,
        other: Other | None = None,
        engine: str = "",
        words: Collection[bytes] = (),
    ) -> None:
        self.engine = self._engine(engine)
        if iteration is None and (words or other is None):
            self.engine.look_for([*words, *WORDS])
        self.engine.until = sys.maxsize if other else 0
        self._is_read = functools.lru_cache(MAX_COLUMNS)(functools.partial(_has_from, len(words)))
        self.part = Part()
        self.rows = _Rows(self.part)
        self._iteration = iteration
        self._other = other
        self._hosts: dict[str, list[str]] = {}
        self._columns: dict[Column, int] = {}
        self._kinds: set[str] = set()

        self._generation: dict[tuple[str, str, str], int] = {}
        self._comm_counts: dict[ProcessKey, int] = {}
        self._sequences: dict[SequenceKey, int] = {}

    def _engine(self, name: str) -> Any:
        """The native engine where it was compiled, else plain Python with the same answers."""
        if name != "python":
            try:
                from ringup.logs.counts.core import Engine  # type: ignore[import-not-found]

                # With a random seed, lines cannot be crafted to be mistaken for another.
                return Engine(self, int.from_bytes(os.urandom(8), "little"))
            except ImportError:
                if name:
                    raise
        return PlainEngine(self)

    def feed(self, block: bytes) -> None:
        self.engine.feed(block)

    def finish(self) -> Part:
        self.engine.finish()
        return self.updated()

    def updated(self) -> Part:
        part, engine = self.part, self.engine
        self.rows.flush(engine.take_counts())
        part.lines, part.bytes = engine.line - 1, engine.offset
        if engine.last:
            offset, line, raw = engine.last
            part.lines = max(part.lines, line)  # one without a newline that is too long to be stored
            part.last = (offset, line, raw.rstrip(b"\r"))
        for key, (kinds, count, blocks, tail, last) in zip(self._sequences, engine.calls(), strict=False):
            sequence = part.sequences[key]
            named = [(part.columns[column].kind, n) for column, n in kinds]
            sequence.kinds = {kind: sum(n for k, n in named if k == kind) for kind, _ in named}
            sequence.count, sequence.blocks = count, array("Q", blocks)
            sequence.tail = [(*call[:3], part.columns[call[3]].kind) for call in tail]
            sequence.last = (last[0], last[1], last[2].rstrip(b"\r")[:1024]) if last else None
        return part

    # Questions of an engine

    def column(self, prefix: bytes, head: bytes) -> int:
        """Twice the number of the column that a head belongs to, plus 1 for a Send or Recv."""
        match = HEAD.search(head + CALL_MARK)
        assert match, head
        return self._code(self._column(match, prefix))

    def sequence(self, column: int, pointer: bytes, nranks: int) -> int:
        """The number of the sequence of a column's process on the communicator that has this pointer now."""
        of, text = self.part.columns[column], text_of(pointer)
        key = (of.host, of.pid, text, self._generation.get((of.host, of.pid, text), 0))
        if key not in self._sequences and len(self._sequences) >= MAX_SEQUENCES:
            key = ("", "", "", 0)
        if key not in self._sequences:
            self._sequences[key] = len(self._sequences)
            self.part.sequences[key] = Sequence(nranks=nranks)
        return self._sequences[key]

    def odd(self, line: int, raw: bytes, found: bytes | None) -> None:
        """
        A line that is not a plain call: it may contain several calls, none, or half of one.

        `found`: numbers of its words, None if an engine does not know all.
        """
        raw = raw.rstrip(b"\r")
        if (found is None or self._is_read(found)) and self._counts(raw):
            return
        if raw and self._other is not None:
            self.engine.until = self._other(line, shortened(raw), found)

    def _counts(self, raw: bytes) -> bool:
        """Read a line for counting; whether it is a call and nothing else."""
        begun = iteration_of(raw, self._iteration)
        is_init = b"- Init " in raw and INIT.search(raw) is not None
        if is_init or begun is not None:  # calls before this line belong elsewhere
            self.rows.flush(self.engine.take_counts())
        if is_init:
            self.engine.forget()
        text = bare(shortened(raw))
        if CALL_MARK in text and self._calls(text):
            return True
        self._read(text, begun)
        return False

    # Columns and rows

    def _code(self, column: int) -> int:
        return column * 2 + (self.part.columns[column].kind in POINT_TO_POINT)

    def _column(self, match: re.Match[bytes], prefix: bytes) -> int:
        process = self._process(text_of(match["host"]), text_of(match["pid"]), prefix)
        return self._number_of(Column(*process, text_of(match["dev"]), self._kind(match["kind"])))

    def _kind(self, raw: bytes) -> str:
        """The kind's name; NCCL has about fifteen, but a log may contain any number."""
        kind = text_of(raw)
        if kind not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                return "other"
            self._kinds.add(kind)
        return kind

    def _number_of(self, column: Column) -> int:
        number = self._columns.get(column)
        if number is None and len(self._columns) >= MAX_COLUMNS:
            column = Column("", "", "", "other")
            number = self._columns.get(column)
        if number is None:
            number = self._columns[column] = len(self.part.columns)
            self.part.columns.append(column)
        return number

    def _process(self, host: str, pid: str, prefix: bytes = b"") -> ProcessKey:
        """A process by its whole host name; above MAX_PROCESSES one nameless process for all others."""
        processes = self.part.processes
        if (host, pid) not in processes:
            host = self._whole_host(host, pid)
            if len(processes) >= MAX_PROCESSES:
                host, pid = "", ""
        if not processes.setdefault((host, pid), "") and (label := label_of(prefix, whole=True)):
            processes[host, pid] = label
            self.rows.labels_changed()
        return host, pid

    def _whole_host(self, host: str, pid: str) -> str:
        """
        The host's name as other lines of this process id have it, if a torn line changed it.

        `gpu` + `node1:9:9 [0] NCCL` is node1, and the text after a tear may begin inside the name.
        """
        hosts = self._hosts.setdefault(pid, [])
        for known in hosts:
            if len(known) > 2 and (host.endswith(known) or (known.endswith(host) and not host.isdigit())):
                return known
        if len(self._hosts) <= MAX_PROCESSES and len(hosts) < 64:
            hosts.append(host)
        return host

    def _calls(self, raw: bytes) -> bool:
        """Count each call of a line; whether it is just one whole call."""
        heads = list(HEAD.finditer(raw))
        whole = len(heads) == 1
        columns = [self._column(m, b"" if i else raw[: m.start()]) for i, m in enumerate(heads)]
        for i, (match, column) in enumerate(zip(heads, columns, strict=True)):
            end = None
            if i + 1 < len(heads):
                after = heads[i + 1]
                glued = len(after["host"] or b"") - len(self.part.columns[columns[i + 1]].host.encode())
                end = after.start() + max(0, glued)
            self.rows.flush({column: 1})
            fields = fields_of(raw, match, end)
            if fields:
                asked = arguments_number(match["kind"], raw[fields.start(4) : fields.end(7)])
                sequence = self.sequence(column, fields[8], int(fields[9][:9]))
                self.engine.append(sequence, self._code(column), asked, raw[:1024])
            else:
                of = self.part.columns[column]
                self.part.torn[of.host, of.pid] = self.part.torn.get((of.host, of.pid), 0) + 1
                whole = False
        return whole

    def _read(self, raw: bytes, begun: str | None) -> None:
        """Learn from one line that is not a call: process, Init, transport, the iteration's begin."""
        if b"NCCL " not in raw:
            if begun is not None:
                self.rows.mark(begun, label_of(raw[:40]))
            return
        head = PREFIX.search(raw[:400])  # an excerpt may lack the process
        host, pid, prefix = (head["host"], head["pid"], raw[: head.start()]) if head else (b"", b"", b"")
        process = self._process(text_of(host), text_of(pid), prefix)
        if b" via " in raw and (match := VIA.search(raw)):
            transports, key = self.part.transports, (process[0], text_of(match["via"]))
            if key in transports or len(transports) < MAX_TRANSPORTS:
                transports[key] = transports.get(key, 0) + 1
        elif b"- Init " in raw:
            self._init(process, raw)

    def _init(self, process: ProcessKey, raw: bytes) -> None:
        match = INIT.search(raw)
        if not match:
            return
        place = (*process, text_of(match["pointer"]))
        generation = self._generation.get(place, 0)
        comms, sequences = self.part.comms, self.part.sequences
        known = comms.get((*place, generation))
        started = match["state"] == b"START"
        if started or (known is not None and known.complete) or (*place, generation) in sequences:
            # Set up again at the same address: earlier calls belong to a communicator that is gone.
            generation += 1
            self._generation[place] = generation
            known = None
        if known is None:
            key = (*place, generation)
            if len(comms) >= MAX_SEQUENCES:
                return
            known = comms[key] = self._comm(process, match)
        known.started |= started
        known.complete |= not started
        if known.comm_id is None and match["id"]:
            known.comm_id = text_of(match["id"])

    def _comm(self, process: ProcessKey, match: re.Match[bytes]) -> Comm:
        parent = None
        if match["parent"]:
            of = text_of(match["parent"])
            now = self._generation.get((*process, of), 0)
            split = text_of(match["split"]) if match["split"] else None
            parent = (of, now, split, text_of(match["color"]))
        order = self._comm_counts.get(process, 0)
        self._comm_counts[process] = order + 1
        return Comm(
            host=process[0],
            pid=process[1],
            pointer=text_of(match["pointer"]),
            rank=int(match["rank"][:9]),
            nranks=int(match["nranks"][:9]),
            device=text_of(match["dev"]),
            comm_id=text_of(match["id"]) if match["id"] else None,
            parent=parent,
            order=order,
        )


LOOK_BACK = 8
"""Iterations that a labelled rank may lag behind the first to print a mark."""


class _Rows:
    """
    Writes the rows of a part: the iteration of a call, and packing of old rows.

    A process whose label prints marks follows those; all others follow the last mark of any process.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._packed: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._packed_rows = 0
        self._cells = 0
        self._is_pooled = False
        self._lined_up = 0
        """Columns whose labels are known."""
        self._own: dict[int, int] = {}
        """Row a column's label opened last; not of columns whose label opened none."""
        self._labelled: dict[str, list[int]] = {}

    def labels_changed(self) -> None:
        self._lined_up = 0

    def _line_up(self) -> None:
        part = self._part
        if self._lined_up < len(part.columns):
            self._lined_up = len(part.columns)
            self._own, self._labelled = {}, defaultdict(list)
            for i in range(len(part.columns)):
                label = part.label_of(i)
                self._labelled[label].append(i)
                if label in part.label_rows:
                    self._own[i] = part.label_rows[label]

    def flush(self, counts: dict[int, int]) -> None:
        """Add calls by column to the current iteration of each process; takes over the dictionary."""
        part = self._part
        if part.label_rows:
            self._line_up()
            for column in sorted(self._own.keys() & counts.keys()):
                cells = part.rows[self._own[column]].cells
                cells[column] = cells.get(column, 0) + counts.pop(column)
        cells = part.rows[-1].cells
        for column in cells.keys() & counts.keys():
            cells[column] += counts.pop(column)
        cells.update(counts)

    def mark(self, name: str, label: str) -> None:
        """A trainer's line: the following calls belong to this iteration."""
        part, rows = self._part, self._part.rows
        at = len(rows) - 1
        if rows[at].name != name:
            oldest = max(part.label_rows.get(label, 0), at - LOOK_BACK, 0)
            late = (i for i in range(at - 1, oldest, -1) if label and rows[i].name == name)
            found = next(late, None)
            at = self._open_row(name) if found is None else found
        if label:
            self._line_up()
            own = self._labelled.get(label, ())
            if label not in part.label_rows:
                # Calls of a label before its first mark are before all marks.
                before = rows[0].cells
                for row in rows[max(1, len(rows) - LOOK_BACK) :]:
                    for column in filter(row.cells.__contains__, own):
                        before[column] = before.get(column, 0) + row.cells.pop(column)
            part.label_rows[label] = at
            for column in own:
                self._own[column] = at

    def _open_row(self, name: str) -> int:
        part = self._part
        if self._cells > MAX_CELLS:
            if not self._is_pooled:
                self._is_pooled = True
                part.rows.append(Row("later"))
            return len(part.rows) - 1
        part.rows.append(Row(name))
        while self._packed_rows < len(part.rows) - 2 * LOOK_BACK:
            # The 8 keeps runs of empty rows within bounds too.
            self._cells += 8 + part.rows[self._packed_rows].pack(self._packed)
            self._packed_rows += 1
        return len(part.rows) - 1
