"""The exact place where sequences part, from a second look at the few lines that can hold it."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ringup.logs.counts.grammar import CALL_MARK, POINT_TO_POINT, bare, fields_of, heads_in
from ringup.logs.counts.ledger import field_hash
from ringup.logs.counts.run import Member, Mismatch, Party, Span, Unlocated

Read = Callable[[str, int, int], Iterable[bytes]]
"""Blocks of a file (by name) from an offset to an offset."""

MAX_CALLS = 400_000
"""Calls held at a time, over all ranks: 24 bytes each."""

FIELD_NAMES = ("count", "datatype", "op", "root")


@dataclass
class _Window:
    """Some calls of one member, from the n-th on."""

    span: Span
    first: int
    asked: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lines: array[int] = field(default_factory=lambda: array("Q"))


def locate(unlocated: Unlocated, read: Read) -> Mismatch | None:
    """Where the sequences part; None when they are equal as far as every rank has called."""
    spans = list(unlocated.spans)
    first = unlocated.first
    room = max(64, MAX_CALLS // len(spans))
    begun = first > 0
    while True:
        windows = _windows(spans, first, room, begun, read)
        common = min(len(w.asked) for w in windows)
        for i in range(common):
            if len({w.asked[i] for w in windows}) > 1:
                return explain(_mismatch(unlocated.communicator, windows, i), read)
        if common < room or not common:
            return None
        first += common
        spans = [replace(w.span, offset=w.offsets[common - 1], line=w.lines[common - 1]) for w in windows]
        begun = True


def _windows(spans: list[Span], first: int, room: int, begun: bool, read: Read) -> list[_Window]:
    windows = {(*s.member.key, s.member.file): _Window(s, first) for s in spans}
    by_file: dict[str, list[_Window]] = defaultdict(list)
    for window in windows.values():
        by_file[window.span.member.file].append(window)
    for file, wanted in by_file.items():
        _fill(file, wanted, room, begun, read)
    return list(windows.values())


def _fill(file: str, wanted: list[_Window], room: int, begun: bool, read: Read) -> None:
    by_place: dict[tuple[str, str], list[_Window]] = defaultdict(list)
    for window in wanted:
        by_place[window.span.member.key[1:3]].append(window)
    start = min(wanted, key=lambda w: w.span.offset).span
    end = max(w.span.end for w in wanted)
    left = len(wanted)
    for offset, line, raw in _lines(read(file, start.offset, end), start.offset, start.line):
        for host, pid, pointer, asked in _calls(raw):
            at = _of_host(by_place.get((pid, pointer), ()), host)
            if at is None or offset < at.span.offset + begun or offset >= at.span.end:
                continue
            if len(at.asked) < room:
                at.asked.append(asked)
                at.offsets.append(offset)
                at.lines.append(line)
                left -= len(at.asked) == room
        if not left:
            return


def _of_host(windows: Iterable[_Window], host: str) -> _Window | None:
    """The window of a host, whose name a torn line may have made longer or shorter."""
    near = None
    for window in windows:
        known = window.span.member.host
        if known == host:
            return window
        if host.endswith(known) or known.endswith(host):
            near = window
    return near


def _lines(blocks: Iterable[bytes], offset: int, line: int) -> Iterator[tuple[int, int, bytes]]:
    carry = b""
    for block in blocks:
        lines = (carry + block).split(b"\n")
        carry = lines.pop()
        for raw in lines:
            yield offset, line, raw
            offset += len(raw) + 1
            line += 1
    if carry:
        yield offset, line, carry


def _calls(raw: bytes) -> Iterator[tuple[str, str, str, int]]:
    """Host, process id, communicator pointer and hash of the collectives in a line."""
    if CALL_MARK not in raw:
        return
    raw = bare(raw)
    heads = heads_in(raw)
    for i, head in enumerate(heads):
        fields = fields_of(raw, head, heads[i + 1].start() if i + 1 < len(heads) else None)
        kind = head["kind"].decode()
        if fields and kind not in POINT_TO_POINT:
            host, pid = (head["host"] or b"").decode("utf-8", "replace"), (head["pid"] or b"").decode()
            yield host, pid, fields[8].decode(), field_hash(kind, *(fields[n].decode() for n in (4, 5, 6, 7)))


def _mismatch(communicator: str, windows: list[_Window], at: int) -> Mismatch:
    groups: dict[int, list[_Window]] = defaultdict(list)
    for window in windows:
        groups[window.asked[at]].append(window)
    usual, *rest = sorted(groups.values(), key=lambda g: (-len(g), g[0].span.member.rank or 0))
    odd = [w for group in rest for w in group]
    return Mismatch(
        communicator=communicator,
        index=windows[0].first + at,
        odd=tuple(_party(w, at) for w in odd[:64]),
        usual=_party(usual[0], at),
        skipped=all(_skips(w.asked[at : at + 64], usual[0].asked[at + 1 : at + 65]) for w in odd),
    )


def _skips(odd: array[int], usual: array[int]) -> bool:
    shared = min(len(odd), len(usual))
    return shared > 0 and odd[:shared] == usual[:shared]


def _party(window: _Window, at: int) -> Party:
    member: Member = window.span.member
    return Party(member.name, member.host, member.pid, member.file, window.offsets[at], window.lines[at], "")


def explain(mismatch: Mismatch, read: Read) -> Mismatch:
    """The mismatch with each party's line read and what differs named."""
    usual = _read_party(mismatch.usual, read)
    odd = tuple(_read_party(p, read) for p in mismatch.odd)
    differs = [] if all(p.kind == usual.kind for p in odd) else ["kind"]
    for i, name in enumerate(FIELD_NAMES):
        if any(p.fields[i] != usual.fields[i] for p in odd):
            differs.append(name)
    return replace(mismatch, usual=usual, odd=odd, differs=tuple(differs))


def _read_party(party: Party, read: Read) -> Party:
    raw = b"".join(read(party.file, party.offset, party.offset + 2048)).partition(b"\n")[0].rstrip(b"\r")
    raw = bare(raw)
    heads = [h for h in heads_in(raw) if (h["pid"] or b"").decode() == party.pid] or heads_in(raw)
    fields = fields_of(raw, heads[0]) if heads else None
    text = raw[:1024].decode("utf-8", "replace")
    if not fields:
        return replace(party, text=text)
    words = (fields[4].decode(), fields[5].decode(), fields[6].decode(), fields[7].decode())
    return replace(party, kind=heads[0]["kind"].decode(), text=text, fields=words)
