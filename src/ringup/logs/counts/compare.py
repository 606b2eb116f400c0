"""Who is behind, and who called something else: by each rank's own numbering, never by opCount."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ringup.logs.counts.model import MASK, RADIX
from ringup.logs.counts.run import Behind, Communicator, Member, Mismatch, Party, Span, Unlocated

MAX_CALL_BYTES = 2048
"""A line of a call with all that launchers put before it."""

_BACK = pow(RADIX, -1, 1 << 64)


def behind_in(communicator: Communicator) -> Iterable[Behind]:
    """Members that have called fewer collectives than the furthest, the last first."""
    members = [m for m in communicator.members if m.judged]
    positions = {m.position for m in members}
    if len(positions) < 2:
        return
    top = max(positions)
    for member in sorted(members, key=lambda m: m.position):
        if member.position == top:
            continue
        last = member.calls.last
        yield Behind(
            rank=member.name,
            communicator=communicator.id,
            collective=_kind_at(members, member.position),
            index=member.position,
            ahead=sum(m.position > member.position for m in members),
            by=top - member.position,
            host=member.host,
            pid=member.pid,
            file=member.file,
            last=(last[0], last[1], last[2].decode("utf-8", "replace")) if last else None,
        )


def _kind_at(members: list[Member], index: int) -> str:
    """What most ranks called at a place, as far as the kept ends of their sequences reach."""
    kinds = Counter(c[3] for m in members if (c := _call_at(m, index)))
    return kinds.most_common(1)[0][0] if kinds else ""


def _call_at(member: Member, index: int) -> tuple[int, int, int, str] | None:
    at = index - member.position + len(member.calls.tail)
    return member.calls.tail[at] if 0 <= at < len(member.calls.tail) else None


def _digest_at(member: Member, index: int) -> int | None:
    """Digest of the first `index` collectives: the whole one with the later calls taken out."""
    calls = member.calls
    known = calls.milestones.get(index)
    if known:
        return known[0]
    later = calls.count - index
    if later > len(calls.tail) or later < 0:
        return 0 if index == 0 else None
    digest = calls.digest
    for asked, *_ in reversed(calls.tail[len(calls.tail) - later :]):
        digest = ((digest - asked) * _BACK) & MASK
    return digest


def differences(communicator: Communicator) -> tuple[list[Mismatch], list[Unlocated]]:
    """Where the sequences of a communicator's ranks part, over what every rank has called."""
    members = [m for m in communicator.members if m.judged and m.position]
    if len(members) < 2:
        return [], []
    common = min(m.position for m in members)
    if _agree(members, common):
        return [], []
    begin = max(m.position - len(m.calls.tail) for m in members)
    if begin < common and _agree(members, begin):
        index = next(i for i in range(begin, common) if len({_asked(m, i) for m in members}) > 1)
        return [_mismatch(communicator.id, members, index)], []
    return [], [_unlocated(communicator.id, members, common)]


def _agree(members: list[Member], index: int) -> bool:
    """Whether all called the same first `index` collectives; False also where that cannot be told."""
    digests = {_digest_at(m, index) for m in members}
    return len(digests) == 1 and None not in digests


def _asked(member: Member, index: int) -> int | None:
    call = _call_at(member, index)
    return call[0] if call else None


def _mismatch(communicator: str, members: list[Member], index: int) -> Mismatch:
    groups: dict[int | None, list[Member]] = defaultdict(list)
    for member in members:
        groups[_asked(member, index)].append(member)
    # Of two groups of one size the one with rank 0 counts as usual: no better sign is left.
    usual, *rest = sorted(groups.values(), key=lambda g: (-len(g), g[0].rank or 0))
    odd = [m for group in rest for m in group]
    return Mismatch(
        communicator=communicator,
        index=index,
        odd=tuple(_party(m, index) for m in odd[:64]),
        usual=_party(usual[0], index),
        skipped=all(_skips(m, usual[0], index) for m in odd),
    )


def _skips(odd: Member, usual: Member, index: int) -> bool:
    """Whether a rank goes on, one place early, as another does."""
    pairs = []
    for i in range(index, odd.position):
        ours, theirs = _asked(odd, i), _asked(usual, i + 1)
        if ours is None or theirs is None:
            break
        pairs.append(ours == theirs)
    return bool(pairs) and all(pairs)


def _party(member: Member, index: int) -> Party:
    _, offset, line, kind = _call_at(member, index) or (0, 0, 0, "")
    return Party(member.name, member.host, member.pid, member.file, offset, line, kind)


def _unlocated(communicator: str, members: list[Member], common: int) -> Unlocated:
    """The narrowest span between milestones in which the sequences part."""
    step = max(m.calls.step for m in members)
    shared = range(step, common + 1, step)
    first = max((i for i in shared if _agree(members, i)), default=0)
    last = min((i for i in shared if i > first and not _agree(members, i)), default=common)
    spans = []
    for member in members:
        calls = member.calls
        begin = calls.milestones.get(first, (0, *(calls.first or (0, 1))))
        end = calls.milestones.get(last, (0, *(calls.last or (0, 1))[:2]))
        spans.append(Span(member, begin[1], begin[2], end[1] + MAX_CALL_BYTES))
    return Unlocated(communicator, first, last, tuple(spans), any(m.calls.sliced for m in members))
