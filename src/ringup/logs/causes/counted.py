"""What the counted COLL lines show: ranks behind, and ranks that call something else."""

from __future__ import annotations

from ringup.logs.causes.signs import failure, hang
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, seen
from ringup.logs.story import Story


def counted_behind(story: Story) -> list[Cause]:
    """Ranks whose own sequence of calls is shorter than their peers', from the counted COLL lines."""
    run = story.run
    if run is None or not run.behind:
        return []
    stood = hang(story) or failure(story)
    paths = {info.path: n for n, info in enumerate(story.files)}
    furthest = min(run.behind, key=lambda b: (-b.ahead, -b.by))
    place = (furthest.communicator, furthest.index)
    worst = [b for b in run.behind if (b.communicator, b.index) == place][:8]
    events = [
        Event(
            "coll",
            paths.get(b.file, 0),
            b.last[1],
            b.last[2][:300],
            host=b.host,
            pid=b.pid,
            rank=_number(b.rank),
        )
        for b in worst
        if b.last is not None
    ]
    first = worst[0]
    text = (
        f"rank {first.rank} has not called {first.collective or 'the next collective'} #{first.index} "
        f"of communicator {first.communicator}; {first.ahead} ranks have"
    )
    if stood is None:
        text += " (if the job stands still, look there)"
    found = seen(
        [*events, stood],
        text,
        "high" if stood else "medium",
        severity=None if stood else "warning",
        nodes=[b.host for b in worst if b.host],
        ranks=[n for b in worst if (n := _number(b.rank)) is not None],
    )
    return [found]


def counted_mismatches(story: Story) -> list[Cause]:
    """Ranks that called something else as their n-th collective, from the counted COLL lines."""
    if not story.mismatches:
        return []
    first = min(story.mismatches, key=lambda m: m.index)
    paths = {info.path: n for n, info in enumerate(story.files)}
    parties = [*first.odd[:4], first.usual]
    events = [
        Event(
            "coll", paths.get(p.file, 0), p.line, p.text[:300], host=p.host, pid=p.pid, rank=_number(p.rank)
        )
        for p in parties
    ]
    odd = ", ".join(p.rank for p in first.odd[:8])
    differs = " and ".join(first.differs) or "call"
    text = (
        f"rank {odd} differs from the others in {differs} at collective #{first.index} of "
        f"communicator {first.communicator}"
    )
    if first.skipped:
        text = (
            f"rank {odd} left out {first.usual.kind or 'a collective'} #{first.index} of "
            f"communicator {first.communicator}"
        )
    ranks = [n for p in first.odd if (n := _number(p.rank)) is not None]
    return [seen(events, text, "high", nodes=[p.host for p in first.odd if p.host], ranks=ranks)]


def _number(rank: str) -> int | None:
    return int(rank) if rank.isdigit() and len(rank) < 10 else None
