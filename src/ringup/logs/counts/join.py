"""The files of a run lined up: ranks named, communicators joined by commId, iterations by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ringup.logs.counts.compare import behind_in, differences
from ringup.logs.counts.model import Comm, Part, Row, Sequence, SequenceKey
from ringup.logs.counts.run import (
    Communicator,
    Counts,
    Iterations,
    Member,
    RankNames,
    Run,
    add,
)

MAX_SILENT = 10_000


def join(parts: Mapping[str, Part]) -> Run:
    """A run from its files, by name."""
    names = _rank_names(parts)
    totals: Counts = {}
    by_rank: dict[str, Counts] = {}
    rows = _rows(parts)
    for part in parts.values():
        for column, n in _column_totals(part).items():
            of = part.columns[column]
            add(totals, of.kind, n)
            add(by_rank.setdefault(names.of(of.host, of.pid, of.device), {}), of.kind, n)
    communicators, notes = _communicators(parts, names)
    found = [differences(c) for c in communicators.values()]
    by_host: dict[str, Counts] = {}
    for part in parts.values():
        for (host, via), n in part.transports.items():
            add(by_host.setdefault(host, {}), via, n)
    return Run(
        collectives=totals,
        by_rank=by_rank,
        by_iteration=Iterations(rows, names),
        by_communicator=communicators,
        behind=tuple(b for c in communicators.values() for b in behind_in(c)),
        mismatches=tuple(m for ms, _ in found for m in ms),
        unlocated=tuple(u for _, us in found for u in us),
        silent=tuple(_silent(communicators.values())),
        incomplete=tuple(
            (c.id, m.name) for c in communicators.values() for m in c.members if m.started and not m.complete
        ),
        transports=dict(sum((Counter(v) for v in by_host.values()), Counter())),
        transports_by_host=by_host,
        warnings=tuple((file, w) for file, part in parts.items() for w in part.warnings.values()),
        torn={names.of(*process): n for part in parts.values() for process, n in part.torn.items()},
        not_judged=tuple(notes),
        parts=dict(parts),
        names=names,
    )


# Names of ranks


def _rank_names(parts: Mapping[str, Part]) -> RankNames:
    """A rank is its number in the largest communicator of its process or device; else its own label."""
    comms: dict[tuple[str, str], list[Comm]] = defaultdict(list)
    labels: dict[tuple[str, str], str] = {}
    for part in parts.values():
        for key, comm in part.comms.items():
            comms[key[0], key[1]].append(comm)
        for process in part.processes.values():
            if process.label or (process.host, process.pid) not in labels:
                labels[process.host, process.pid] = process.label
    by_device: dict[tuple[str, str, str], str] = {}
    by_process: dict[tuple[str, str], str] = {}
    for of, own in comms.items():
        devices = {c.device for c in own}
        for device in devices:
            world = max((c for c in own if c.device == device), key=lambda c: (c.nranks, -c.order))
            if len(devices) > 1:
                by_device[of[0], of[1], device] = str(world.rank)
            else:
                by_process[of] = str(world.rank)
    unnamed = [of for of in labels if of not in comms]
    used = Counter(labels[of] for of in unnamed)
    for of in unnamed:
        if labels[of] and used[labels[of]] == 1 and not comms:
            by_process[of] = labels[of]
    return RankNames(by_device, by_process)


# Iterations


def _column_totals(part: Part) -> dict[int, int]:
    if part.engine == "numpy":
        # Loaded already by the engine; of many iterations this was a third of the joining.
        return _numpy_totals(part)
    totals: dict[int, int] = {}
    for row in part.rows:
        for key, n in zip(*row.cells(), strict=True):
            totals[key >> 1] = totals.get(key >> 1, 0) + n
    return {column: n for column, n in totals.items() if n}


def _numpy_totals(part: Part) -> dict[int, int]:
    import numpy as np

    totals: np.typing.NDArray[np.int64] = np.zeros(len(part.columns) * 2, np.int64)
    for row in part.rows:
        keys, numbers = row.cells()
        # A row has each key once.
        totals[list(keys)] += np.fromiter(numbers, np.int64, len(keys))
    both = totals[0::2] + totals[1::2]
    return {int(column): int(both[column]) for column in both.nonzero()[0]}


def _rows(parts: Mapping[str, Part]) -> list[tuple[str | None, list[tuple[Part, Row]]]]:
    rows: dict[tuple[str | None, int], list[tuple[Part, Row]]] = {(None, 0): []}
    for part in parts.values():
        seen: Counter[str | None] = Counter()
        for row in _settled(part):
            rows.setdefault((row.name, seen[row.name]), []).append((part, row))
            seen[row.name] += 1
    return [(name, cells) for (name, _), cells in rows.items() if cells and (name is not None or _any(cells))]


def _any(cells: list[tuple[Part, Row]]) -> bool:
    return any(next(row.items(), None) is not None for _, row in cells)


def _settled(part: Part) -> Iterable[Row]:
    """The rows; calls of a label before the first mark of its own stand before all marks."""
    own_labels = {i for i in range(len(part.columns)) if part.label_of(i) in part.label_rows}
    early_keys = {2 * column for column in own_labels}
    if not any(not early_keys.isdisjoint(keys) for keys in {row.cells()[0] for row in part.rows}):
        return part.rows
    rows = [Row(row.name, row.by) for row in part.rows]
    for at, row in enumerate(part.rows):
        for column, own, n in row.items():
            early = not own and column in own_labels
            rows[0 if early else at].add(column, own, n)
    return rows


# Communicators


def _communicators(parts: Mapping[str, Part], names: RankNames) -> tuple[dict[str, Communicator], list[str]]:
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
    notes = _place_strangers(strangers, members, nranks, names)
    result = {}
    for name, found in members.items():
        ranks = Counter(m.rank for m in found)
        if any(n > 1 for r, n in ranks.items() if r is not None):
            notes.append(
                f"communicator {name}: a rank stands in the logs twice, so its calls are not lined up"
            )
            found = [_unjudged(m) for m in found]
        found.sort(key=lambda m: (m.rank is None, m.rank or 0, m.name))
        result[name] = Communicator(name, nranks[name], tuple(found))
    torn = sorted({names.of(*p) for part in parts.values() for p in part.torn})
    if torn:
        notes.append(f"calls of rank {', '.join(torn[:8])} are cut off in the log: not lined up with others")
    return result, notes


def _unjudged(member: Member) -> Member:
    return Member(**{**vars(member), "judged": False})


def _member(file: str, part: Part, key: SequenceKey, names: RankNames, comm: Comm | None) -> Member:
    host, pid = key[:2]
    device = comm.device if comm else ""
    name = names.of(host, pid, device)
    rank = comm.rank if comm else int(name) if name.isdigit() else None
    return Member(
        rank=rank,
        name=name,
        host=host,
        pid=pid,
        file=file,
        key=key,
        calls=part.sequences.get(key) or Sequence(),
        started=comm.started if comm else False,
        complete=comm.complete if comm else False,
        judged=part.numbered and (host, pid) not in part.torn,
    )


def _name_of(part: Part, key: SequenceKey, depth: int = 0) -> str:
    """commId; of a split's child (none since 2.23) parent, split and color; else the order of making."""
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
) -> list[str]:
    """
    Communicators whose Init lines are not in the log (NCCL_DEBUG_SUBSYS=COLL).

    The one that has as many ranks as there are processes, once in each, can only be the world.
    """
    processes = {key[:2] for _, part, key in strangers}
    sizes: dict[int, list[SequenceKey]] = defaultdict(list)
    for _, part, key in strangers:
        sizes[part.sequences[key].nranks].append(key)
    notes = []
    lost = 0
    for file, part, key in strangers:
        size = part.sequences[key].nranks
        world = size == len(processes) == len(sizes[size]) == len({k[:2] for k in sizes[size]})
        name = f"world of {size} ranks" if world and not members.get("") else f"{key[0]}:{key[1]} {key[2]}"
        lost += not world
        nranks[name] = size
        member = _member(file, part, key, names, None)
        members[name].append(member if world else _unjudged(member))
    if lost:
        notes.append(
            f"{lost} communicators have no Init line in the log (NCCL_DEBUG_SUBSYS without INIT):"
            " who belongs together is not known, so their calls are counted but not lined up"
        )
    return notes


def _silent(communicators: Iterable[Communicator]) -> Iterable[tuple[str, int]]:
    """Ranks below nranks no line was found of; none where only one rank's log is there."""
    left = MAX_SILENT
    for c in communicators:
        ranks = {m.rank for m in c.members}
        if None in ranks or len(ranks) < 2:
            continue
        for rank in range(min(c.nranks, left + len(ranks))):
            if rank not in ranks and left:
                left -= 1
                yield c.id, rank
