"""
Reads one dump of PyTorch's flight recorder as plain data.

Fields as `torch/csrc/distributed/c10d/FlightRecorderDetail.hpp` writes them (before torch 2.6 `TraceUtils.h`
and `NCCLUtils.hpp`): dump versions 1.1 to 2.10, torch 2.2 to 2.13, of NCCL and (since torch 2.9) Gloo process
groups. 1.x counts collectives and transfers in one `seq_id` and identifies groups only by number; 2.0 has
`process_group`, `collective_seq_id`, `p2p_seq_id`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ringup.agent.snapshot import stack_frames
from ringup.units import printable

LONGEST_DUMP_BYTES = 64 << 20
"""torch's default, two thousand entries with their frames, is about 2 MB."""
MOST_ENTRIES = 20_000

# Their inputs have the same size on every rank; inputs of others may be uneven by design.
_EVEN = (
    *("all_reduce", "allreduce", "broadcast", "reduce", "barrier"),
    *("all_gather_base", "reduce_scatter_base"),
)
_shown = lru_cache(4096)(printable)
_OWN_WORDS = (b"pg_config", b"pg_status", b"collective_seq_id", b"nccl_comm_state")


class FlightError(ValueError):
    """Bytes that are not a dump; the text has the reason."""


class Entry(NamedTuple):
    """One collective or transfer that a rank has begun."""

    group: str
    """The process group's name and description: "0:default_pg"."""
    number: int
    """Among the group's collectives (or transfers), from 1."""
    is_p2p: bool
    op: str
    """Without its backend: "all_reduce"."""
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_done: bool
    """Completed.  For Gloo: ended, with or without an error; its entries have no more (torch 2.13)."""
    where: str
    """"train.py:88" of the call, "" if the dump has no stacks."""
    record: int = 0
    """`record_id`: number of earlier entries of this rank."""
    place: int = 0
    """Among the dump's entries, from 1."""
    state: str = ""
    is_gloo: bool = False
    is_timed_out: bool = False
    """The watchdog of NCCL's process group gave it up."""
    begun_ns: int = 0
    """Since 1970, by the rank's own clock; 0 if the dump lacks it."""
    timeout_ms: int = 0
    ended_ns: int = 0
    """When its end was noticed; 0 if the dump lacks it (Gloo, torch 2.13)."""

    @property
    def call(self) -> str:
        """ "all_reduce [8] Float"."""
        sizes = ", ".join(str(list(size)) for size in self.sizes[:4])
        return " ".join(word for word in (self.op, sizes, ", ".join(sorted(set(self.dtypes))[:4])) if word)

    @property
    def call_at(self) -> str:
        """ "all_reduce [8] Float, train.py:88"."""
        return f"{self.call}, {self.where}" if self.where else self.call

    @property
    def signature(self) -> tuple[object, ...]:
        """Must be the same on every rank; for a tensor the number of its elements, not its shape."""
        op = self.op.lstrip("_")
        if op == "scatter":  # with Gloo only the root has an input (AsyncScatterWork, torch 2.13)
            return (op,)
        return (op, tuple(map(math.prod, self.sizes)), self.dtypes) if op in _EVEN else (op, self.dtypes)


@dataclass(frozen=True)
class Flight:
    """One rank's dump."""

    version: str
    entries: tuple[Entry, ...]
    """In the order of their begin; the oldest may be lost."""
    members: Mapping[str, tuple[int, ...]]
    """Group -> global ranks, if the dump has them."""
    problem: str = ""
    is_whole: bool = False
    """No record of this rank is lost: a collective without an entry has not begun."""
    now_ns: int = 0
    """Time of the dump, by the rank's own clock; 0 if unknown."""

    def age_s(self, entry: Entry) -> float:
        return max(0.0, (self.now_ns - entry.begun_ns) / 1e9) if self.now_ns and entry.begun_ns else 0.0


def read(data: bytes, most: int = MOST_ENTRIES) -> Flight:
    """A dump, pickled or JSON, with its last `most` entries.  Raises FlightError."""
    if len(data) > LONGEST_DUMP_BYTES:
        raise FlightError("larger than any dump")
    try:
        is_json = data[:64].lstrip()[:1] == b"{"
        if is_json and data.count(b"[") + data.count(b"{") > MOST_PARTS:
            raise FlightError("it has more parts than any dump")
        plain = json.loads(data) if is_json else unpickled(data)
    except Exception as error:  # not UTF-8, nested too deep, a number too long
        raise FlightError(f"not a flight recorder dump: {printable(str(error), 200)}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("entries", []), list | tuple):
        raise FlightError("not a flight recorder dump: not a dictionary with entries")
    if "version" not in plain:
        raise FlightError("not a flight recorder dump: it has no version")
    return from_data(plain, most)


def may_be(head: bytes) -> bool:
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return any(word in head for word in (*_OWN_WORDS, b"entries"))
    return head.lstrip()[:1] == b"{" and any(b'"%b"' % word in head for word in _OWN_WORDS)


def from_data(plain: Mapping[Any, Any], most: int = MOST_ENTRIES) -> Flight:
    """A dump from plain data; invalid entries are left out."""
    given = plain.get("entries")
    entries = list(given) if isinstance(given, list | tuple) else []
    known: dict[Any, Any] = {}
    first = max(0, len(entries) - max(1, min(most, MOST_ENTRIES)))
    found = [_entry(e, n + 1, known) for n, e in enumerate(entries[first:], first) if isinstance(e, dict)]
    kept = tuple(e for e in found if e)
    # Complete: no record is missing, and every group's first entry is number 1.
    firsts = {(entry.group, entry.is_p2p): entry.number for entry in reversed(kept)}
    is_whole = len(kept) == len(entries) and all(entry.record == n for n, entry in enumerate(kept))
    return Flight(
        _word(plain.get("version"), 20),
        kept,
        _members(plain.get("pg_config")),
        _word(plain.get("problem"), 300),
        is_whole and all(number == 1 for number in firsts.values()),
        _integer(plain.get("now_ns")),
    )


def _word(value: object, limit: int) -> str:
    """Text, or a number as text; the text of other objects could be endless."""
    if isinstance(value, str):
        return _shown(value[: limit + 1], limit)
    return str(value) if isinstance(value, int | float) and abs(value) < 1 << 62 else ""


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else 0


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(tuple(map(_integer, size[:16])) for size in value[:64] if isinstance(size, list | tuple))


def _entry(e: dict[Any, Any], place: int, known: dict[Any, Any]) -> Entry | None:
    name = e.get("process_group")
    if isinstance(name, list | tuple) and name:
        group = ":".join(_word(word, 60) for word in name[:2])
    else:  # before version 2.0 of the dump format
        group = str(_integer(e.get("pg_id")))
    library, _, op = _word(e.get("profiling_name"), 80).rpartition(":")
    is_p2p = e.get("is_p2p") is True or op.startswith(("send ", "recv "))
    number = _integer(e.get("p2p_seq_id" if is_p2p else "collective_seq_id", e.get("seq_id")))
    if number <= 0:
        return None
    dtypes = e.get("input_dtypes")
    is_gloo = library == "gloo"
    state = _word(e.get("state"), 20)
    is_retired = e.get("retired") is True

    def once(value: Any) -> Any:
        """Share equal values: thousands of entries have only a few."""
        return known.setdefault(value, value)

    return Entry(
        once(group),
        number,
        is_p2p,
        once(op),
        once(_sizes(e.get("input_sizes"))),
        once(tuple(_word(d, 30) for d in dtypes[:64]) if isinstance(dtypes, list | tuple) else ()),
        state == "completed" or (is_gloo and is_retired),
        once(_where(e.get("frames"))),
        _integer(e.get("record_id", -1)),
        place,
        once(state),
        is_gloo,
        is_retired and not is_gloo and state != "completed",
        _integer(e.get("time_created_ns")),
        _integer(e.get("timeout_ms")),
        _integer(e.get("time_discovered_completed_ns")),
    )


def _where(frames: object) -> str:
    known = [f for f in frames[:200] if isinstance(f, dict)] if isinstance(frames, list | tuple) else []
    files = [str(frame.get("filename") or "")[-4096:] for frame in known]
    at = stack_frames.own_frame(files)
    name = printable(files[at].rpartition("/")[2], 100) if at >= 0 else ""
    return f"{name}:{_integer(known[at].get('line'))}" if at >= 0 else ""


def _members(config: object) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, group in list(config.items())[:10_000] if isinstance(config, dict) else ():
        if not isinstance(group, dict) or not isinstance(group.get("ranks"), str):
            continue
        try:
            ranks = json.loads(group["ranks"][: 1 << 20])
        except (ValueError, RecursionError):
            continue
        if isinstance(ranks, list) and ranks:
            key = f"{_word(name, 60)}:{_word(group.get('desc'), 60)}"
            found[key] = tuple(sorted(_integer(rank) for rank in ranks))
    return found


MOST_PARTS = 4_000_000
"""Lists, dictionaries, tuples: an empty one takes one byte in the file and 60 in memory."""

_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_TEXT = {0x58: 4, 0x8C: 1, 0x8D: 8}
_WHOLE = {0x4B: (1, False), 0x4D: (2, False), 0x4A: (4, True)}
_FROM_MEMO = {0x68: 1, 0x6A: 4}
_TO_MEMO = {0x71: 1, 0x72: 4, 0x94: 0}
_EMPTY = {0x5D: list, 0x7D: dict, 0x29: tuple}
_KEYS = {str, int, bool, type(None)}
_TUPLES = frozenset([0x74, 0x85, 0x86, 0x87])
_PARTS = _TUPLES.union(_EMPTY)
_TAKES = {0x61: 1, 0x65: 0, 0x73: 2, 0x75: 0, 0x74: 0, 0x85: 1, 0x86: 2, 0x87: 3}
"""APPEND, APPENDS, SETITEM, SETITEMS and tuples: number of items on top; 0 for all since the last MARK."""


class NotPlain(ValueError):
    """Bytes that are not a pickle of plain data; the text has the reason."""


def unpickled(data: bytes) -> Any:
    """
    Pickled dictionaries, lists, tuples, strings and numbers, and nothing else.  Raises NotPlain.

    The standard reader is unsafe, even with all names refused: a few bytes can make it fill the memory (a
    memo number of two thousand million) or compute for years (the hash of a tuple that contains another
    twice, forty deep).  Operations are those of `Lib/pickletools.py`; the missing ones create objects, which
    no dump has.
    """
    if data[:1] != b"\x80":
        raise NotPlain("not a pickle of protocol 2 or later")
    try:
        return _unpickled(data)
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error) as error:
        if isinstance(error, NotPlain):
            raise
        raise NotPlain("it is damaged, or not plain data") from error


def _unpickled(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    at, parts = 2, 0

    def number(size: int, signed: bool = False) -> int:
        nonlocal at
        at += size
        return int.from_bytes(data[at - size : at], "little", signed=signed)

    while True:
        op = data[at]
        at += 1
        parts += op in _PARTS
        if parts > MOST_PARTS:
            raise NotPlain("it has more parts than any dump")
        if op in _FROM_MEMO:
            stack.append(memo[number(_FROM_MEMO[op])])
        elif op in _TO_MEMO:
            size = _TO_MEMO[op]
            memo[number(size) if size else len(memo)] = stack[-1]
        elif op in _WHOLE:
            stack.append(number(*_WHOLE[op]))
        elif op == 0x8A:  # LONG1
            stack.append(number(number(1), True))
        elif op in _TEXT:
            size = number(_TEXT[op])
            if at + size > len(data):
                raise NotPlain("it breaks off")
            stack.append(data[at : at + size].decode("utf-8", "replace"))
            at += size
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", data[at : at + 8])[0])
            at += 8
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op == 0x28:  # MARK
            marks.append(stack)
            stack = []
        elif op in _TAKES:
            if count := _TAKES[op]:
                items, stack[-count:] = stack[-count:], []
            else:
                items, stack = stack, marks.pop()
            if len(items) < count:
                raise NotPlain("it takes more items than there are")
            if op in _TUPLES:
                stack.append(tuple(items))
            else:
                _add(stack[-1], items, op in (0x73, 0x75))
        elif op == 0x95:  # FRAME, only useful for streams
            at += 8
        elif op == 0x2E:  # STOP
            return stack[-1]
        else:
            named = printable(data[at : at + 80].split(b"\n")[0].decode("latin-1"), 60)
            raise NotPlain(f"it makes objects ({op:#x} {named}), which no dump does")


def _add(to: Any, items: list[Any], is_set: bool) -> None:
    if not is_set:
        if not isinstance(to, list):
            raise NotPlain("it adds to an object that is not a list")
        to.extend(items)
        return
    if not isinstance(to, dict) or not set(map(type, items[::2])) <= _KEYS:
        raise NotPlain("a dictionary with keys that are not strings")
    to.update(zip(items[::2], items[1::2], strict=True))
