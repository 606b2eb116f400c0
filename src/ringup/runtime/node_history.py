"""Nodes that ended runs in the last 30 days, with their later runs; a record in the cache directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from ringup.model import PastRuns
from ringup.runtime.record import replace_file
from ringup.units import printable

FILE = "nodes.json"
KEPT_S = 30 * 86400.0
MOST_NODES, MOST_RUNS = 2000, 20
"""Most nodes in the record (those used last), and most runs of each."""
MOST_BYTES = 16 << 20
RECENT = 5
"""Last runs of a node that count for its judgement (`model.PastRuns.ended_lately`)."""
LOCK_S, PAUSE_S = 2.0, 0.02
LONGEST_NAME = 300


class _Entry(msgspec.Struct, array_like=True):
    at_s: float
    """Time of the record, in seconds since the epoch."""
    run: str
    cause: str
    """Why the node ended it; "" if it did not."""


class _File(msgspec.Struct):
    nodes: dict[str, list[_Entry]] = {}


def cache_dir() -> Path:
    """The only directory outside the logs that ringup writes to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringup"


def add(run: str, nodes: Sequence[str], blamed: Collection[str] = (), cause: str = "") -> bool:
    """Record an ended attempt (one per run); False on failure, because a full disk must not end a run."""
    if not blamed and not _load().keys() & set(nodes):
        return True
    with contextlib.suppress(OSError), _locked():
        known = _load()
        now = time.time()
        for node in dict.fromkeys((*nodes, *blamed)):
            why = (cause or "unknown")[:LONGEST_NAME] if node in blamed else ""
            if why or node in known:
                _note(known.setdefault(node[:LONGEST_NAME], []), _Entry(now, run[:LONGEST_NAME], why))
        _save(known)
        return True
    return False


def _note(entries: list[_Entry], new: _Entry) -> None:
    """Add a run; for a recorded run only its cause."""
    if (same := next((one for one in entries if one.run == new.run), None)) is None:
        entries.append(new)
    elif new.cause:
        same.at_s, same.cause = new.at_s, new.cause


def records() -> dict[str, PastRuns]:
    """Nodes that ended a run, those that ended the most first."""
    found = {printable(node): _past(entries) for node, entries in _load().items()}
    return dict(sorted(found.items(), key=lambda pair: (-pair[1].ended, -pair[1].last_s, pair[0])))


def forget(node: str) -> bool:
    """Remove a node from the record; returns whether it was in it.  Raises OSError."""
    with _locked():
        known = _load()
        if is_known := known.pop(node, None) is not None:
            _save(known)
        return is_known


def _past(entries: Sequence[_Entry]) -> PastRuns:
    ended = [one for one in entries if one.cause]
    lately = sum(1 for one in entries[-RECENT:] if one.cause)
    causes = dict.fromkeys(printable(one.cause) for one in reversed(ended))
    last_s = max((one.at_s for one in ended), default=0.0)
    return PastRuns(len(entries), len(ended), lately, min(len(entries), RECENT), tuple(causes), last_s)


def _load() -> dict[str, list[_Entry]]:
    """Nodes and their runs of the last 30 days, oldest first; empty if the file cannot be read."""
    known: dict[str, list[_Entry]] = {}
    oldest = time.time() - KEPT_S
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with (cache_dir() / FILE).open("rb") as file:
            saved = msgspec.json.decode(file.read(MOST_BYTES), type=_File)
        for node, entries in saved.nodes.items():
            recent = sorted((one for one in entries if one.at_s >= oldest), key=lambda one: one.at_s)
            if any(one.cause for one in recent[-MOST_RUNS:]):
                known[node] = recent[-MOST_RUNS:]
    return known


def _save(known: dict[str, list[_Entry]]) -> None:
    used_last = sorted(known, key=lambda node: known[node][-1].at_s)[-MOST_NODES:]
    content = {"schema": 1, "nodes": {node: known[node][-MOST_RUNS:] for node in sorted(used_last)}}
    replace_file(cache_dir() / FILE, json.dumps(msgspec.to_builtins(content)) + "\n")


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One writer at a time.  Raises OSError if the lock is not free after a moment."""
    cache_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    until = time.monotonic() + LOCK_S
    with (cache_dir() / f".{FILE}.lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
        yield
