"""
The book both ways of counting write into: columns, rows of iterations, processes, communicators.

The engines decide which lines are plain calls and count those in bulk; every other line comes here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b

from ringup.logs.counts.grammar import (
    INIT,
    POINT_TO_POINT,
    PREFIX,
    STAGE,
    STAGE_INDEX,
    VIA,
    WARN,
    collapse,
    fields_of,
    heads_in,
    iteration_of,
    label_of,
)
from ringup.logs.counts.model import (
    MASK,
    MAX_COLUMNS,
    MAX_DEVICES,
    MAX_KINDS,
    MAX_PROCESSES,
    MAX_SEQUENCES,
    MAX_TRANSPORTS,
    MAX_WARNINGS,
    RADIX,
    TAIL,
    Column,
    Comm,
    Line,
    Part,
    Process,
    Sequence,
    SequenceKey,
    Warn,
)
from ringup.logs.counts.rows import Rows

Batch = list[tuple[int, int, bytes]]
"""Line number, offset, line."""


def field_hash(kind: str, count: str, datatype: str, op: str, root: str) -> int:
    """64 bits that stand for what a call asked for; the same in every process."""
    words = f"{kind} {count} {datatype} {op if op in '01234' else 'own'} {root}"
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "little")


def text_of(raw: bytes) -> str:
    """A line as text of bounded length."""
    return raw[:1024].decode("utf-8", "replace")


class Ledger:
    """Writes a `Part`."""

    def __init__(
        self,
        part: Part,
        iteration: re.Pattern[bytes] | None,
        other: Callable[[Batch], None] | None,
        known: Iterable[tuple[str, str, str]] = (),
    ) -> None:
        self.part = part
        self._iteration = iteration
        self._other = other
        self._hosts: dict[str, list[str]] = {}
        self._labels: dict[tuple[str, str], str] = {}
        for host, pid, label in known:
            self._labels[host, pid] = label
            self._whole_host(host, pid)
        self._columns: dict[Column, int] = {}
        self._kinds: set[str] = set()
        self._names: dict[bytes, str] = {}
        self._generation: dict[tuple[str, str, str], int] = {}
        self._comm_counts: dict[tuple[str, str], int] = {}
        self._begun: tuple[bytes, str | None] = (b"", None)
        self.rows = Rows(part)

    # Columns and rows

    def name(self, raw: bytes | None) -> str:
        """Text of a name, the same object each time."""
        if raw is None:
            return ""
        known = self._names.get(raw)
        if known is None:
            if len(self._names) > 4 * MAX_PROCESSES:
                self._names.clear()
            known = self._names.setdefault(bytes(raw), raw.decode("utf-8", "replace"))
        return known

    def column(self, match: re.Match[bytes], prefix: bytes) -> int:
        """The number of the column a collective line's head belongs to."""
        process = self.process(self.name(match["host"]), self.name(match["pid"]), prefix)
        device = self.name(match["dev"])
        if len(process.devices) < MAX_DEVICES:
            process.devices.add(device)
        elif device not in process.devices:
            device = ""
        return self.number_of(Column(process.host, process.pid, device, self._kind(match["kind"])))

    def _kind(self, raw: bytes) -> str:
        """The kind's name; NCCL has some fifteen, a log may claim any number."""
        kind = self.name(raw)
        if kind not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                return "other"
            self._kinds.add(kind)
        return kind

    def number_of(self, column: Column) -> int:
        """A column's number, a new one where it was not seen before."""
        number = self._columns.get(column)
        if number is None and len(self._columns) >= MAX_COLUMNS:
            column = Column("", "", "", "other")
            number = self._columns.get(column)
        if number is None:
            number = self._columns[column] = len(self.part.columns)
            self.part.columns.append(column)
        return number

    def process(self, host: str, pid: str, prefix: bytes = b"") -> Process:
        """The record of a process; past MAX_PROCESSES one nameless record takes all others."""
        processes = self.part.processes
        known = processes.get((host, pid))
        if known is None:
            host = self._whole_host(host, pid)
            if len(processes) >= MAX_PROCESSES:
                host, pid = "", ""
            label = self._labels.get((host, pid), "")
            known = processes.setdefault((host, pid), Process(host, pid, label))
        if prefix and not known.label:
            known.label = label_of(prefix, whole=True)
            self.rows.labels_changed()
        return known

    def _whole_host(self, host: str, pid: str) -> str:
        """
        The host's name as other lines of this process id have it, where a torn line left more or less.

        `gpu` + `node1:9:9 [0] NCCL` is node1, and what follows a tear may begin inside the name.
        """
        hosts = self._hosts.setdefault(pid, [])
        for known in hosts:
            if len(known) > 2 and (host.endswith(known) or (known.endswith(host) and not host.isdigit())):
                return known
        if len(self._hosts) <= MAX_PROCESSES and len(hosts) < 64:
            hosts.append(host)
        return host

    def flush(self, counts: Iterable[tuple[int, int]]) -> None:
        """Add calls by column to the iteration each process is in."""
        self.rows.flush(counts)

    def iteration(self, raw: bytes) -> str | None:
        """The iteration that a line begins; of each line this is asked twice."""
        if raw is not self._begun[0]:
            name = iteration_of(raw, self._iteration) if self._iteration is not None else None
            self._begun = (raw, name)
        return self._begun[1]

    # Calls that are not plain lines, or that need their fields

    def odd_line(self, number: int, offset: int, raw: bytes) -> bool:
        """Count each call of a line; whether it is just one whole call."""
        heads = heads_in(raw)
        whole = len(heads) == 1
        columns = [self.column(m, b"" if i else raw[: m.start()]) for i, m in enumerate(heads)]
        for i, (match, column) in enumerate(zip(heads, columns, strict=True)):
            end = None
            if i + 1 < len(heads):
                after = heads[i + 1]
                glued = len(after["host"] or b"") - len(self.part.columns[columns[i + 1]].host.encode())
                end = after.start() + max(0, glued)
            self.flush([(column, 1)])
            fields = fields_of(raw, match, end)
            if fields:
                self.call(column, fields, number, offset, raw)
            else:
                of = self.part.columns[column]
                self.part.torn[of.host, of.pid] = self.part.torn.get((of.host, of.pid), 0) + 1
                whole = False
        return whole

    def call(self, column: int, fields: re.Match[bytes], number: int, offset: int, raw: bytes) -> None:
        """One call with all its fields, appended to its sequence."""
        if not self.part.numbered:
            return
        of = self.part.columns[column]
        sequence = self.sequence(of.host, of.pid, self.name(fields[8]), int(fields[9]))
        sequence.kinds[of.kind] = sequence.kinds.get(of.kind, 0) + 1
        sequence.last = (offset, number, raw)
        if of.kind in POINT_TO_POINT:
            return
        self.append(sequence, self.hash_of(of.kind, fields), offset, number, of.kind)

    def append(self, sequence: Sequence, asked: int, offset: int, number: int, kind: str) -> None:
        """One more collective of a sequence, what it asked for as a hash."""
        if sequence.first is None:
            sequence.first = (offset, number)
        sequence.count += 1
        sequence.digest = (sequence.digest * RADIX + asked) & MASK
        sequence.tail.append((asked, offset, number, kind))
        if len(sequence.tail) > 4 * TAIL:
            del sequence.tail[:-TAIL]
        if sequence.count % sequence.step == 0:
            sequence.reached(offset, number)

    def hash_of(self, kind: str, fields: re.Match[bytes]) -> int:
        """The hash of a call's fields."""
        return field_hash(kind, *(fields[i].decode() for i in (4, 5, 6, 7)))

    def sequence(self, host: str, pid: str, pointer: str, nranks: int) -> Sequence:
        """The calls of a process on the communicator that now has this pointer."""
        sequences = self.part.sequences
        key = (host, pid, pointer, self._generation.get((host, pid, pointer), 0))
        known = sequences.get(key)
        if known is None:
            if len(sequences) >= MAX_SEQUENCES:
                key = ("", "", "", 0)
            known = sequences.setdefault(key, Sequence(nranks=nranks))
        return known

    # All other lines

    def is_boundary(self, raw: bytes) -> bool:
        """Whether calls before and after this line must be told apart."""
        return (b"- Init " in raw and INIT.search(raw) is not None) or self.iteration(raw) is not None

    def other(self, batch: Batch) -> None:
        """Hand lines that are not plain calls to whoever asked for them."""
        if self._other is not None and batch:
            self._other(batch)

    def read_line(self, number: int, offset: int, raw: bytes) -> None:
        """Learn from one line that is no call: process, Init, transport, warning, iteration."""
        if b"NCCL " not in raw:
            name = self.iteration(raw)
            if name is not None:
                self.rows.mark(name, label_of(raw[:40]))
            return
        head = PREFIX.search(raw[:400])
        if not head:
            return
        process = self.process(self.name(head["host"]), self.name(head["pid"]), raw[: head.start()])
        line = Line(offset, number, text_of(raw))
        process.first = process.first or line
        process.last = line
        stage = STAGE.search(raw)
        if stage and stage.lastgroup:
            process.stage = max(process.stage, STAGE_INDEX[stage.lastgroup])
        if b" via " in raw:
            self._transport(process.host, raw)
        elif b"- Init " in raw:
            self._init(process, raw)
        elif b"NCCL WARN " in raw:
            self._warning(process, raw, line)

    def _transport(self, host: str, raw: bytes) -> None:
        match = VIA.search(raw)
        if match:
            transports = self.part.transports
            key = (host, self.name(match["via"]))
            if key in transports or len(transports) < MAX_TRANSPORTS:
                transports[key] = transports.get(key, 0) + 1

    def _warning(self, process: Process, raw: bytes, line: Line) -> None:
        process.warnings += 1
        process.first_warning = process.first_warning or line
        match = WARN.search(raw)
        text = collapse(match["text"] if match else raw).decode("utf-8", "replace").strip()
        warnings = self.part.warnings
        known = warnings.get(text)
        if known:
            warnings[text] = Warn(text, known.first, known.count + 1)
        elif len(warnings) < MAX_WARNINGS:
            warnings[text] = Warn(text, line, 1)
        else:
            self.part.warnings_dropped += 1

    def _init(self, process: Process, raw: bytes) -> None:
        match = INIT.search(raw)
        if not match:
            return
        host, pid, pointer = place = (process.host, process.pid, self.name(match["pointer"]))
        generation = self._generation.get(place, 0)
        comms, sequences = self.part.comms, self.part.sequences
        known = comms.get((*place, generation))
        started = match["state"] == b"START"
        if started or (known is not None and known.complete) or (*place, generation) in sequences:
            # Set up again at the same address: what was called before belongs to a communicator that is gone.
            generation += 1
            self._generation[place] = generation
            known = None
        if known is None:
            if len(comms) >= MAX_SEQUENCES:
                return
            known = comms[host, pid, pointer, generation] = self._comm(process, match)
        known.started |= started
        known.complete |= not started
        if known.comm_id is None and match["id"]:
            known.comm_id = self.name(match["id"])

    def _comm(self, process: Process, match: re.Match[bytes]) -> Comm:
        parent = None
        if match["parent"]:
            of = self.name(match["parent"])
            now = self._generation.get((process.host, process.pid, of), 0)
            split = self.name(match["split"]) if match["split"] else None
            parent = (of, now, split, self.name(match["color"]))
        order = self.comm_count(process.host, process.pid)
        self.count_comm(process.host, process.pid, order + 1)
        if len(process.devices) < MAX_DEVICES:
            process.devices.add(self.name(match["dev"]))
        return Comm(
            pointer=self.name(match["pointer"]),
            rank=int(match["rank"][:9]),
            nranks=int(match["nranks"][:9]),
            device=self.name(match["dev"]),
            comm_id=self.name(match["id"]) if match["id"] else None,
            parent=parent,
            order=order,
        )

    # Which communicator a pointer means

    def now(self, key: SequenceKey) -> SequenceKey:
        """The communicator that has this key's pointer at this place of the file."""
        return (*key[:3], self._generation.get(key[:3], 0))

    def use(self, key: SequenceKey) -> None:
        """From here on the pointer means this communicator."""
        self._generation[key[:3]] = key[3]

    def comm_count(self, host: str, pid: str) -> int:
        """Communicators a process has set up so far."""
        return self._comm_counts.get((host, pid), 0)

    def count_comm(self, host: str, pid: str, count: int) -> None:
        """Communicators a process has set up so far, told."""
        self._comm_counts[host, pid] = max(count, self._comm_counts.get((host, pid), 0))

    def last_of(self, lines: list[bytes], line: int, end: int) -> None:
        """Remember the last line that says anything; `end` is where the line after these would begin."""
        for i in range(len(lines) - 1, -1, -1):
            end -= len(lines[i]) + 1
            if lines[i] and not lines[i].isspace():
                self.part.last = Line(end, line + i, text_of(lines[i].rstrip(b"\r")))
                return

    def close(self) -> None:
        """Cut what was kept for speed to what is promised."""
        for sequence in self.part.sequences.values():
            del sequence.tail[:-TAIL]
            if sequence.last:
                sequence.last = (*sequence.last[:2], sequence.last[2].rstrip(b"\r")[:1024])
