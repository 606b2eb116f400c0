"""The files of a run aligned: named ranks, communicators joined by commId, iterations by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ringup.logs.counts.compare import behind_in, differences
from ringup.logs.counts.model import Comm, Part, Row, Sequence, SequenceKey
from ringup.logs.counts.run import (
    Communicator,
    Counts,
    Iteration,
    Member,
    Mismatch,
    RankNames,
    Run,
    Unlocated,
)
from ringup.units import grouped


def join(parts: Mapping[str, Part]) -> Run:
    names = _rank_names(parts)
    totals: Counts = Counter()
    by_rank: dict[str, Counts] = defaultdict(Counter)
    by_host: dict[str, Counts] = defaultdict(Counter)
    for part in parts.values():
        by_column = [0] * len(part.columns)
        for row in part.rows:
            for column, n in row.items():
                by_column[column] += n
        for of, n in zip(part.columns, by_column, strict=True):
            if n:
                totals[of.kind] += n
                by_rank[names.of(of.host, of.pid, of.device)][of.kind] += n
        for (host, via), n in part.transports.items():
            by_host[host][via] += n
    communicators = _communicators(parts, names)
    found = [differences(c) for c in communicators.values()]
    return Run(
        collectives=totals,
        by_rank=by_rank,
        by_iteration=_iterations(parts),
        by_communicator=communicators,
        behind=tuple(b for c in communicators.values() for b in behind_in(c)),
        mismatches=tuple(one for one in found if isinstance(one, Mismatch)),
        unlocated=tuple(one for one in found if isinstance(one, Unlocated)),
        transports=sum(by_host.values(), Counter()),
        transports_by_host=by_host,
        parts=dict(parts),
    )


# Names of ranks


def _rank_names(parts: Mapping[str, Part]) -> RankNames:
    """A rank is its number in the largest communicator of its process or device; else its own label."""
    comms: dict[tuple[str, str], list[Comm]] = defaultdict(list)
    labels: dict[tuple[str, str], str] = {}
    for part in parts.values():
        for key, comm in part.comms.items():
            comms[key[0], key[1]].append(comm)
        for process, label in part.processes.items():
            labels[process] = label or labels.get(process, "")
    names = RankNames()
    for (host, pid), own in comms.items():
        devices = {c.device for c in own}
        for device in devices:
            world = max((c for c in own if c.device == device), key=lambda c: (c.nranks, -c.order))
            names[host, pid, device if len(devices) > 1 else ""] = str(world.rank)
    used = Counter(labels.values())
    for (host, pid), label in labels.items():
        if label and used[label] == 1 and not comms:
            names[host, pid, ""] = label
    return names


# Iterations


def _iterations(parts: Mapping[str, Part]) -> list[Iteration]:
    rows: dict[tuple[str | None, int], list[tuple[list[str], Row]]] = {(None, 0): []}
    for part in parts.values():
        seen: Counter[str | None] = Counter()
        kinds = [column.kind for column in part.columns]
        for row in part.rows:
            rows.setdefault((row.name, seen[row.name]), []).append((kinds, row))
            seen[row.name] += 1
    found = [Iteration(name, cells) for (name, _), cells in rows.items() if cells]
    return [one for one in found if one.name is not None or one.counts]


# Communicators


def _communicators(parts: Mapping[str, Part], names: RankNames) -> dict[str, Communicator]:
    members: dict[str, list[Member]] = defaultdict(list)
    nranks: dict[str, int] = {}
    strangers: list[tuple[str, Part, SequenceKey]] = []
    for file, part in parts.items():
        for key in sorted({*part.comms, *part.sequences}):
            comm = part.comms.get(key)
            if comm is None:
                strangers.append((file, part, key))
                continue
            name = _name_of(part, key)
            nranks[name] = comm.nranks
            members[name].append(_member(file, part, key, names, comm))
    _place_strangers(strangers, members, nranks, names)
    result = {}
    for name, found in members.items():
        ranks = Counter(m.rank for m in found)
        if any(n > 1 for r, n in ranks.items() if r is not None):
            found = [replace(m, judged=False) for m in found]
        found.sort(key=lambda m: (m.rank is None, m.rank or 0, m.name))
        result[name] = Communicator(name, nranks[name], tuple(found))
    return result


def _member(file: str, part: Part, key: SequenceKey, names: RankNames, comm: Comm | None) -> Member:
    host, pid = key[:2]
    device = comm.device if comm else ""
    name = names.of(host, pid, device)
    rank = comm.rank if comm else int(name) if name.isdigit() else None
    calls = part.sequences.get(key) or Sequence()
    return Member(rank, name, host, pid, file, key, calls, judged=(host, pid) not in part.torn)


def _name_of(part: Part, key: SequenceKey, depth: int = 0) -> str:
    """commId; for a split's child (none since 2.23) parent, split and color; else the order of creation."""
    comm = part.comms.get(key)
    if comm is None or depth > 8:
        return "?"
    if comm.comm_id:
        return comm.comm_id
    if comm.parent:
        of = (key[0], key[1], comm.parent[0], comm.parent[1])
        split = comm.parent[2]
        if split is None:
            twins = [c for k, c in part.comms.items() if k[:2] == key[:2] and c.parent and not c.comm_id]
            same = [c.order for c in twins if c.parent and c.parent[:2] == comm.parent[:2]]
            split = f"#{sorted(same).index(comm.order)}"
        return f"{_name_of(part, of, depth + 1)} split {split} color {comm.parent[3]}"
    older = [
        c for k, c in part.comms.items() if k[:2] == key[:2] and not c.comm_id and c.device == comm.device
    ]
    order = sorted(c.order for c in older if c.nranks == comm.nranks).index(comm.order)
    return f"{comm.nranks} ranks #{order}"


def _place_strangers(
    strangers: list[tuple[str, Part, SequenceKey]],
    members: dict[str, list[Member]],
    nranks: dict[str, int],
    names: RankNames,
) -> None:
    """
    Communicators whose Init lines are not in the log (NCCL_DEBUG_SUBSYS=COLL).

    A communicator that has as many ranks as there are processes, once in each, must be the world.  The
    members of the others are unknown: their calls are counted but not aligned.
    """
    processes = {key[:2] for _, part, key in strangers}
    sizes = grouped((part.sequences[key].nranks, key) for _, part, key in strangers)
    for file, part, key in strangers:
        size = part.sequences[key].nranks
        world = size == len(processes) == len(sizes[size]) == len({k[:2] for k in sizes[size]})
        name = f"world of {size} ranks" if world else f"{key[0]}:{key[1]} {key[2]}"
        nranks[name] = size
        member = _member(file, part, key, names, None)
        members[name].append(member if world else replace(member, judged=False))
