"""
PyTorch's flight recorder: its dumps read, those of all ranks compared.

Fields as `torch/csrc/distributed/c10d/FlightRecorderDetail.hpp` writes them: dump versions 2.0 to 2.10,
torch 2.3 to 2.13, of NCCL and (since 2.9) Gloo process groups.  A dump is a pickle that may come from
anywhere: nothing but plain data is taken from it.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringup.units import printable

LONGEST_DUMP_BYTES = 256 << 20
MOST_ENTRIES = 20_000

# Whose input has the same size on every rank; the others may be uneven by design.
_EVEN = (
    "all_reduce",
    "allreduce",
    "broadcast",
    "reduce",
    "barrier",
    "all_gather_base",
    "reduce_scatter_base",
)


class FlightError(ValueError):
    """Bytes that are no dump; the words say why."""


@dataclass(frozen=True)
class Entry:
    """One collective or transfer that a rank has begun."""

    group: str
    """The process group's own name and description: "0:default_pg"."""
    number: int
    """Among the group's collectives (or transfers), from 1."""
    is_p2p: bool
    op: str
    """Without its backend: "all_reduce"."""
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_done: bool
    where: str
    """"train.py:88" of the call, "" where the dump has no stacks."""

    @property
    def call(self) -> str:
        """ "all_reduce [8] Float"."""
        sizes = ", ".join(str(list(size)) for size in self.sizes[:4])
        return " ".join(word for word in (self.op, sizes, ", ".join(sorted(set(self.dtypes))[:4])) if word)

    @property
    def signature(self) -> tuple[object, ...]:
        """What must be the same on every rank."""
        op = self.op.lstrip("_")
        return (op, self.sizes, self.dtypes) if op in _EVEN else (op, self.dtypes)


@dataclass(frozen=True)
class Flight:
    """One rank's dump."""

    version: str
    entries: tuple[Entry, ...]
    """In the order they were begun; the oldest may be lost."""
    members: Mapping[str, tuple[int, ...]]
    """Group -> global ranks, where the dump tells."""
    problem: str = ""


@dataclass(frozen=True)
class Difference:
    """A group on whose next collective the ranks do not agree."""

    group: str
    ranks: tuple[int, ...]
    """Whoever is behind, or does otherwise than most; empty when there is no majority."""
    text: str
    where: str = ""
    """The line of their own last (or differing) call."""


class _Plain(pickle.Unpickler):
    """Lists, dicts, numbers and strings: what c10d's pickler writes.  Names of anything else end it."""

    def find_class(self, module: str, name: str) -> Any:
        raise FlightError(f"it names {printable(module, 60)}.{printable(name, 60)}, which no dump does")


def read(data: bytes) -> Flight:
    """A dump, pickled (`_dump_nccl_trace`, `_dump_fr_trace`, the files of a time-out) or JSON.

    Raises FlightError.
    """
    if len(data) > LONGEST_DUMP_BYTES:
        raise FlightError("larger than any dump")
    try:
        if data[:1] == b"{":
            plain = json.loads(data)
        else:
            plain = _Plain(io.BytesIO(data)).load()
    except FlightError:
        raise
    except Exception as error:  # a torn or hostile pickle may raise nearly anything
        raise FlightError(f"no flight recorder dump: {printable(str(error), 200)}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("entries", []), list | tuple):
        raise FlightError("no flight recorder dump: not a dictionary with entries")
    if "version" not in plain:
        raise FlightError("no flight recorder dump: it has no version")
    return from_data(plain)


def from_data(plain: Mapping[Any, Any]) -> Flight:
    """A dump already made plain; entries that are none are left out."""
    entries = plain.get("entries")
    found = (
        [_entry(e) for e in entries[-MOST_ENTRIES:] if isinstance(e, dict)]
        if isinstance(entries, list)
        else []
    )
    return Flight(
        printable(str(plain.get("version", "")), 20),
        tuple(e for e in found if e),
        _members(plain.get("pg_config")),
        printable(str(plain.get("problem", "")), 300),
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else 0


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        tuple(_integer(n) for n in size[:16]) for size in value[:64] if isinstance(size, list | tuple)
    )


def _entry(e: dict[Any, Any]) -> Entry | None:
    name = e.get("process_group")
    if isinstance(name, list | tuple) and name:
        group = ":".join(printable(str(word), 60) for word in name[:2])
    else:  # before 2.2 of the dump's format, torch 2.4
        group = str(_integer(e.get("pg_id")))
    is_p2p = e.get("is_p2p") is True
    number = _integer(e.get("p2p_seq_id" if is_p2p else "collective_seq_id", e.get("seq_id")))
    op = printable(str(e.get("profiling_name", "")), 80)
    dtypes = e.get("input_dtypes")
    is_gloo = op.startswith("gloo:")
    # Gloo's entries stay "scheduled" and are retired when done (2.13); NCCL's retired alone has timed out.
    done = e.get("state") == "completed" or (is_gloo and e.get("retired") is True)
    if number <= 0:
        return None
    return Entry(
        group,
        number,
        is_p2p,
        op.rpartition(":")[2],
        _sizes(e.get("input_sizes")),
        tuple(printable(str(d), 30) for d in dtypes[:64]) if isinstance(dtypes, list | tuple) else (),
        done,
        _where(e.get("frames")),
    )


def _where(frames: object) -> str:
    """The innermost frame outside torch."""
    for frame in frames[:200] if isinstance(frames, list | tuple) else ():
        if isinstance(frame, dict):
            file = str(frame.get("filename", ""))
            if "/torch/" not in file and "-packages/" not in file and file:
                return f"{printable(file.rpartition('/')[2], 100)}:{_integer(frame.get('line'))}"
    return ""


def _members(config: object) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        if isinstance(group, dict):
            try:
                ranks = json.loads(str(group.get("ranks", "[]")))
            except (ValueError, RecursionError):
                continue
            if isinstance(ranks, list) and ranks:
                key = f"{printable(str(name), 60)}:{printable(str(group.get('desc', '')), 60)}"
                found[key] = tuple(sorted(_integer(rank) for rank in ranks))
    return found


def compare(flights: Mapping[int, Flight]) -> list[Difference]:
    """
    Where the ranks' collectives differ, group by group: a different call first, then who is behind.

    Transfers (send, recv) are not compared: each pair counts its own.
    """
    groups: dict[str, dict[int, dict[int, Entry]]] = {}
    for rank, flight in flights.items():
        for entry in flight.entries:
            if not entry.is_p2p:
                groups.setdefault(entry.group, {}).setdefault(rank, {})[entry.number] = entry
    found = []
    for group, ranks in sorted(groups.items()):
        members = {r for flight in flights.values() for r in flight.members.get(group, ())} & set(flights)
        difference = _different_call(group, ranks) or _behind(group, ranks, members)
        if difference:
            found.append(difference)
    return found


def _show(group: str) -> str:
    return group.rpartition(":")[2] or group


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _different_call(group: str, ranks: Mapping[int, Mapping[int, Entry]]) -> Difference | None:
    """The first collective that is not the same everywhere."""
    common = set.intersection(*(set(entries) for entries in ranks.values()))
    for number in sorted(common):
        calls = {rank: entries[number] for rank, entries in ranks.items()}
        counts = Counter(call.signature for call in calls.values())
        if len(counts) < 2:
            continue
        (most, times), (_, second) = counts.most_common(2)
        others = [rank for rank, call in sorted(calls.items()) if call.signature != most]
        usual = next(call for call in calls.values() if call.signature == most)
        odd = calls[others[0]]
        who = tuple(others) if times > second else ()
        at = f" ({odd.where})" if odd.where else ""
        text = f"collective {number} of {_show(group)} is {odd.call} on {_ranks(others)}{at}"
        text += f", {usual.call} on the others{f' ({usual.where})' if usual.where else ''}"
        return Difference(group, who, text, odd.where)
    return None


def _behind(group: str, ranks: Mapping[int, Mapping[int, Entry]], members: set[int]) -> Difference | None:
    """Who has begun fewer collectives than the others."""
    last = {rank: max(ranks[rank], default=0) if rank in ranks else 0 for rank in members | set(ranks)}
    most = max(last.values())
    behind = tuple(sorted(rank for rank, number in last.items() if number < most))
    if not behind:
        return None
    ahead = next(entries[most] for entries in ranks.values() if most in entries)
    own = ranks.get(behind[0], {}).get(last[behind[0]])
    text = f"{_ranks(behind)} of {_show(group)}: {last[behind[0]]} collectives begun, the others {most}"
    text += f" ({ahead.call}{f', {ahead.where}' if ahead.where else ''})"
    return Difference(group, behind, text, own.where if own else "")
