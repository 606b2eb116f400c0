"""Slices of one file put together, exactly: what a slice took over stands in the slice before it."""

from __future__ import annotations

from collections.abc import Iterable

from ringup.logs.counts.ledger import Ledger
from ringup.logs.counts.model import (
    MASK,
    MAX_TRANSPORTS,
    MAX_WARNINGS,
    RADIX,
    TAIL,
    Comm,
    Part,
    Process,
    Row,
    Sequence,
    SequenceKey,
    Warn,
)


class Merger:
    """Puts slices together as they come."""

    def __init__(self) -> None:
        self.whole = Part()
        self._ledger: Ledger | None = None

    def put(self, part: Part) -> None:
        """The next slice.  Raises ValueError for one counted in another way than those before."""
        if self._ledger is None:
            self.whole = Part(engine=part.engine, numbered=part.numbered)
            self._ledger = Ledger(self.whole, None, None)
        if part.numbered != self.whole.numbered or part.engine != self.whole.engine:
            raise ValueError("slices of one file must be counted in the same way")
        _put(self.whole, part, self._ledger)


def merge(parts: Iterable[Part]) -> Part:
    """One file from its slices in order.  Raises ValueError for slices counted in different ways."""
    merger = Merger()
    for part in parts:
        merger.put(part)
    return merger.whole


def _put(whole: Part, part: Part, ledger: Ledger) -> None:
    _put_processes(whole, part, ledger)
    _put_rows(whole, part, ledger)
    _put_sequences(whole, part, ledger)
    for key, n in part.transports.items():
        if key in whole.transports or len(whole.transports) < MAX_TRANSPORTS:
            whole.transports[key] = whole.transports.get(key, 0) + n
    for text, warn in part.warnings.items():
        known = whole.warnings.get(text)
        if known:
            whole.warnings[text] = Warn(text, known.first, known.count + warn.count)
        elif len(whole.warnings) < MAX_WARNINGS:
            whole.warnings[text] = Warn(text, warn.first.moved(whole.bytes, whole.lines), warn.count)
        else:
            whole.warnings_dropped += warn.count
    whole.warnings_dropped += part.warnings_dropped
    for process, n in part.torn.items():
        whole.torn[process] = whole.torn.get(process, 0) + n
    if part.last:
        whole.last = part.last.moved(whole.bytes, whole.lines)
    whole.bytes += part.bytes
    whole.lines += part.lines


def _put_rows(whole: Part, part: Part, ledger: Ledger) -> None:
    columns = [ledger.number_of(column) for column in part.columns]
    # A label that marked its own iterations before goes on with its last one.
    earlier = [whole.label_rows.get(whole.label_of(column), -1) for column in columns]
    own_row = []
    known: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for i, row in enumerate(part.rows):
        if i and row.name is not None:
            own_row.append(ledger.rows.mark(row.name, row.by))
        else:
            own_row.append(len(whole.rows) - 1)
        if not _adopt(whole, row, own_row[i], columns, earlier, known):
            _put_cells(whole, row, own_row[i], columns, earlier)
    for label, at in part.label_rows.items():
        whole.label_rows[label] = own_row[at]
    whole.rows_pooled |= part.rows_pooled


def _adopt(
    whole: Part,
    row: Row,
    own_row: int,
    columns: list[int],
    earlier: list[int],
    known: dict[tuple[int, ...], tuple[int, ...] | None],
) -> bool:
    """A done row that goes into one new row as it is: rows of the same columns are looked at once."""
    packed = row.packed
    if packed is None or own_row != len(whole.rows) - 1:
        return False
    keys, counts = packed
    if keys not in known:
        parted = any(earlier[key >> 1] >= 0 for key in keys if not key & 1)
        moved = tuple(2 * columns[key >> 1] + (key & 1) for key in keys)
        # Past MAX_COLUMNS two columns may have become one.
        known[keys] = None if parted or len(set(moved)) < len(moved) else moved
    ours = known[keys]
    return ours is not None and whole.rows[-1].adopt(ours, counts)


def _put_cells(whole: Part, row: Row, own_row: int, columns: list[int], earlier: list[int]) -> None:
    following = []
    for key, count in zip(*row.cells(), strict=True):
        column = columns[key >> 1]
        if key & 1:
            whole.rows[own_row].add(column, True, count)
        elif earlier[key >> 1] < 0:
            following.append((column, count))
        else:
            whole.rows[earlier[key >> 1]].add(column, True, count)
    whole.rows[-1].follow(following)


def _put_processes(whole: Part, part: Part, ledger: Ledger) -> None:
    for theirs in part.processes.values():
        ours: Process = ledger.process(theirs.host, theirs.pid)
        ours.label = ours.label or theirs.label
        ours.devices |= theirs.devices
        ours.stage = max(ours.stage, theirs.stage)
        ours.warnings += theirs.warnings
        shift = (whole.bytes, whole.lines)
        ours.first = ours.first or (theirs.first and theirs.first.moved(*shift))
        ours.last = theirs.last.moved(*shift) if theirs.last else ours.last
        ours.first_warning = ours.first_warning or (
            theirs.first_warning and theirs.first_warning.moved(*shift)
        )


def _put_sequences(whole: Part, part: Part, ledger: Ledger) -> None:
    keys = sorted({*part.sequences, *part.comms}, key=lambda key: key[3])
    moved: dict[SequenceKey, SequenceKey] = {}
    base: dict[tuple[str, str, str], int] = {}
    for key in keys:
        moved[key] = _key_in_whole(whole, part, key, ledger, base)
    for key, comm in sorted(part.comms.items(), key=lambda item: item[1].order):
        known = whole.comms.get(moved[key])
        if known is None:
            ours = Comm(**vars(comm))
            ours.order = ledger.comm_count(key[0], key[1])
            if ours.parent:
                of = (key[0], key[1], ours.parent[0], ours.parent[1])
                ours.parent = (of[2], moved.get(of, ledger.now(of))[3], *ours.parent[2:])
            whole.comms[moved[key]] = ours
            ledger.count_comm(key[0], key[1], ours.order + 1)
        else:
            known.started |= comm.started
            known.complete |= comm.complete
            known.comm_id = known.comm_id or comm.comm_id
    for key, sequence in part.sequences.items():
        _extend(whole.sequences.setdefault(moved[key], Sequence()), sequence, whole)


def _key_in_whole(
    whole: Part, part: Part, key: SequenceKey, ledger: Ledger, base: dict[tuple[str, str, str], int]
) -> SequenceKey:
    """The same communicator in the whole file: a pointer used again is another one.  Oldest use first."""
    host, pid, pointer, generation = key
    now = ledger.now(key)
    if generation:
        now = (host, pid, pointer, base.setdefault(key[:3], now[3]) + generation)
    elif key in part.comms:
        # Init COMPLETE without START: the end of one begun before, or of NCCL before 2.16 a new one.
        known = whole.comms.get(now)
        if (known is not None and known.complete) or now in whole.sequences:
            now = (host, pid, pointer, now[3] + 1)
    ledger.use(now)
    base.setdefault(key[:3], now[3])
    return now


def _extend(ours: Sequence, theirs: Sequence, whole: Part) -> None:
    shift, lines = whole.bytes, whole.lines
    if not ours.count and not ours.sliced and not shift:
        ours.milestones, ours.step = dict(theirs.milestones), theirs.step
    elif theirs.count:
        ours.sliced = True
    for kind, n in theirs.kinds.items():
        ours.kinds[kind] = ours.kinds.get(kind, 0) + n
    ours.digest = (ours.digest * pow(RADIX, theirs.count, 1 << 64) + theirs.digest) & MASK
    ours.count += theirs.count
    ours.tail = (ours.tail + [(h, o + shift, n + lines, k) for h, o, n, k in theirs.tail])[-TAIL:]
    if ours.first is None and theirs.first:
        ours.first = (theirs.first[0] + shift, theirs.first[1] + lines)
    ours.nranks = ours.nranks or theirs.nranks
    if theirs.last:
        ours.last = (theirs.last[0] + shift, theirs.last[1] + lines, theirs.last[2])
