"""
Ranks that are behind, and ranks that called something else: by each rank's own numbering, never by opCount.

A difference far back is found in a second reading of the few lines that can contain it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ringup.logs.counts.model import BLOCK_CALLS, NamedCall
from ringup.logs.counts.plain import arguments_number
from ringup.logs.counts.run import Behind, Communicator, Member, Mismatch, Party, Unlocated
from ringup.logs.grammar import CALL_MARK, HEAD, POINT_TO_POINT, bare, fields_of
from ringup.units import grouped

MAX_CALL_BYTES = 2048
"""A line of a call with all prefixes of launchers."""

MIN_SKIPS = 64
"""Calls after a difference that are compared, to distinguish a skipped call from another call."""

FIELD_NAMES = ("count", "datatype", "op", "root")

Read = Callable[[str, int, int], Iterable[bytes]]
"""Blocks of a file (by name) from an offset to an offset."""


class _Window:
    """A member's collectives from a block's first on, as far as they have been read again."""

    def __init__(self, member: Member, first: int) -> None:
        blocks, at = member.calls.blocks, 3 * (first // BLOCK_CALLS)
        self.member = member
        self.offset, self.line = blocks[at + 1 : at + 3]
        end = blocks[at + 4] if at + 4 < len(blocks) else member.calls.last[0] if member.calls.last else 0
        self.end = end + MAX_CALL_BYTES
        self.calls: list[NamedCall] = []


def behind_in(communicator: Communicator) -> Iterable[Behind]:
    """Members that have called fewer collectives than the furthest, the last first."""
    members = [m for m in communicator.members if m.judged]
    top = max((m.position for m in members), default=0)
    for member in sorted(members, key=lambda m: m.position):
        if member.position < top:
            ahead = sum(m.position > member.position for m in members)
            called = (_calls_from(m, member.position)[:1] for m in members)  # as far as the stored ends reach
            kinds = Counter(call[3] for calls in called for call in calls)
            kind = kinds.most_common(1)[0][0] if kinds else ""
            yield Behind(member, communicator.id, kind, member.position, ahead, top - member.position)


def _calls_from(member: Member, index: int) -> list[NamedCall]:
    """A member's collectives from a position on; empty if the stored end does not reach back to it."""
    at = index - member.position + len(member.calls.tail)
    return member.calls.tail[at:] if at >= 0 else []


def differences(communicator: Communicator) -> Mismatch | Unlocated | None:
    """Positions where the sequences of a communicator's ranks differ, over the calls that every rank made."""
    members = [m for m in communicator.members if m.judged and m.position]
    if len(members) < 2:
        return None
    common = min(m.position for m in members)
    kept = max(m.position - len(m.calls.tail) for m in members)
    blocks = common // BLOCK_CALLS
    digests = (m.calls.blocks[: 3 * blocks : 3] for m in members)
    differing = (n for n, own in enumerate(zip(*digests, strict=True)) if len(set(own)) > 1)
    first = next(differing, blocks) * BLOCK_CALLS
    if first >= common:
        return None
    if first < kept:
        return Unlocated(communicator.id, first, min(first + BLOCK_CALLS, common), tuple(members))
    calls = [(m, _calls_from(m, first)) for m in members]
    return _first_difference(communicator.id, first, common - first, calls)


def _first_difference(
    communicator: str, first: int, most: int, called: list[tuple[Member, list[NamedCall]]]
) -> Mismatch | None:
    """Where the calls differ, over at most so many; the lists begin at the `first`."""
    rows = enumerate(zip(*(calls[:most] for _, calls in called), strict=False))
    at = next((n for n, row in rows if len({asked for asked, *_ in row}) > 1), None)
    if at is None:
        return None
    groups = grouped((calls[at][0], (member, calls[at:])) for member, calls in called)
    # Of two groups of equal size, the one with rank 0 counts as usual: there is no better sign.
    usual, *rest = sorted(groups.values(), key=lambda g: (-len(g), g[0][0].rank or 0))
    odd = [one for group in rest for one in group]
    parties = [Party(member, *calls[0][1:]) for member, calls in (usual[0], *odd[:64])]
    skipped = all(_skips(calls, usual[0][1][1:]) for _, calls in odd)
    return Mismatch(communicator, first + at, tuple(parties[1:]), parties[0], skipped)


def _skips(odd: list[NamedCall], usual: list[NamedCall]) -> bool:
    """Whether a rank continues, one position early, like another."""
    pairs = list(zip(odd, usual, strict=False))
    return bool(pairs) and all(one[0] == other[0] for one, other in pairs)


def locate(unlocated: Unlocated, read: Read) -> Mismatch | None:
    """Where the sequences differ; None if the calls that every rank made are equal."""
    windows = [_Window(member, unlocated.first) for member in unlocated.members]
    most = unlocated.last - unlocated.first
    for file, own in grouped((window.member.file, window) for window in windows).items():
        # Calls after the block show whether a rank skipped one.
        _fill(file, own, most + MIN_SKIPS, read)
    called = [(window.member, window.calls) for window in windows]
    found = _first_difference(unlocated.communicator, unlocated.first, most, called)
    return found and explain(found, read)


def _fill(file: str, windows: list[_Window], room: int, read: Read) -> None:
    by_place = grouped((window.member.key[1:3], window) for window in windows)
    start = min(windows, key=lambda window: window.offset)
    end = max(window.end for window in windows)
    left = len(windows)
    for offset, line, raw in _lines(read(file, start.offset, end), start.offset, start.line):
        for host, pid, pointer, asked, kind in _calls(raw):
            at = _of_host(by_place.get((pid, pointer), ()), host)
            if at and at.offset <= offset < at.end and len(at.calls) < room:
                at.calls.append((asked, offset, line, kind))
                left -= len(at.calls) == room
        if not left:
            return


def _of_host(windows: Iterable[_Window], host: str) -> _Window | None:
    """The window of a host, whose name a torn line may have made longer or shorter."""
    near = None
    for window in windows:
        known = window.member.host
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


def _calls(raw: bytes) -> Iterator[tuple[str, str, str, int, str]]:
    """Host, process id, communicator pointer, arguments' number and kind of the collectives in a line."""
    if CALL_MARK not in raw:
        return
    raw = bare(raw)
    heads = list(HEAD.finditer(raw))
    for i, head in enumerate(heads):
        fields = fields_of(raw, head, heads[i + 1].start() if i + 1 < len(heads) else None)
        kind = head["kind"].decode()
        if fields and kind not in POINT_TO_POINT:
            host, pid = (head["host"] or b"").decode("utf-8", "replace"), (head["pid"] or b"").decode()
            asked = arguments_number(head["kind"], raw[fields.start(4) : fields.end(7)])
            yield host, pid, fields[8].decode(), asked, kind


def explain(mismatch: Mismatch, read: Read) -> Mismatch:
    """The mismatch with the line of each party, and the differing fields."""
    usual = _read_party(mismatch.usual, read)
    odd = tuple(_read_party(p, read) for p in mismatch.odd)
    differs = [] if all(p.kind == usual.kind for p in odd) else ["kind"]
    differs += [n for i, n in enumerate(FIELD_NAMES) if any(p.fields[i] != usual.fields[i] for p in odd)]
    return replace(mismatch, usual=usual, odd=odd, differs=tuple(differs))


def _read_party(party: Party, read: Read) -> Party:
    member, end = party.member, party.offset + MAX_CALL_BYTES
    raw = bare(b"".join(read(member.file, party.offset, end)).partition(b"\n")[0].rstrip(b"\r"))
    party = replace(party, text=raw[:1024].decode("utf-8", "replace"))
    heads = sorted(HEAD.finditer(raw), key=lambda head: (head["pid"] or b"").decode() != member.pid)
    fields = fields_of(raw, heads[0]) if heads else None
    if not fields:
        return party
    asked = tuple(field.decode() for field in fields.group(4, 5, 6, 7))
    return replace(party, kind=heads[0]["kind"].decode(), fields=asked)
