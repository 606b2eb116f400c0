"""Progress of a training: its checkpoints on the nodes, and the steps in its output."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ringup.agent_bundle import program
from ringup.logs.grammar import step_in
from ringup.transport import Answer, Transport
from ringup.units import COLOURS, printable, summarize_names

LIMIT_S = 8.0
"""Seconds for a node's file servers; the working directory of a large project takes one second."""
CONNECTION_S = 4.0
MOST_BYTES = 1 << 16
LONGEST_LINE = 512
"""Bytes of a line of output that are searched for a step."""
FIRST_LINES = 3
"""Lines with steps before the first step is determined: an evaluation also counts from 0."""
EPOCH = 1_000_000
"""Steps that restart at 0 in each epoch are shown as epoch x 1,000,000 + step."""


class TrainingProgress(NamedTuple):
    value: float
    """A step; the content of the file of --progress; or a time, in seconds since the epoch."""
    source: str
    """The file or directory that it comes from, safe to print."""
    group: str = ""
    """Only values of the same group are comparable: the checkpoints of one directory."""
    incomplete: tuple[str, ...] = ()
    """Newer checkpoints that are incomplete."""

    @property
    def warning(self) -> str:
        """The incomplete checkpoint that a script which takes the newest entry would load; else ""."""
        names = summarize_names(self.incomplete, 2)
        return f"the newest checkpoint is incomplete: {names}" if names else ""


class _Entry(msgspec.Struct):
    value: float
    kind: str
    source: str
    group: str
    at_s: float


class _Found(msgspec.Struct):
    best: _Entry | None
    incomplete: list[str]


def read(reach: Transport, path: str, folders: Mapping[str, str]) -> TrainingProgress | None:
    """The newest complete checkpoint, None without one; `path`: --progress; `folders`: the job's, by node."""
    arguments = {node: (path, folder, f"{LIMIT_S:g}") for node, folder in folders.items()}
    answers = reach.run(
        program("checkpoints"),
        arguments,
        label="ringup-progress",
        doing="progress",
        limit_s=LIMIT_S + CONNECTION_S,
        most_bytes=MOST_BYTES,
    )
    found = [one for one in map(_decoded, answers) if one is not None]
    best = max((one.best for one in found if one.best), key=lambda e: (e.at_s, e.value), default=None)
    if best is None:
        return None
    names = sorted({printable(name) for one in found for name in one.incomplete})[:4]
    group = f"{best.kind} {printable(best.group, 4096)}"
    return TrainingProgress(best.value, printable(best.source), group, tuple(names))


def _decoded(answer: Answer) -> _Found | None:
    try:
        return msgspec.json.decode(answer.stdout, type=_Found)
    except (ValueError, RecursionError):
        return None


def saved(old: TrainingProgress | None, new: TrainingProgress | None) -> tuple[float | None, float | None]:
    """`saved_from` and `saved_to` of an attempt; the first is unknown if the two cannot be compared."""
    if new is None:
        return None, None
    return old.value if old and old.group == new.group else None, new.value


_HINTS = b"step", b"iter", b"ep", b"|", b"loss"
"""Every line with a position contains one of them, in any case."""
_CONTROL = re.compile(COLOURS.pattern.encode())
_EPOCH_AT = re.compile(rb"(?i)(?<![\w/.-])(?:epoch|ep)['\"]?[ \t:=#\[]{1,4}(\d{1,6})(?![\d.]*\.\d|\d)")
_BAR = re.compile(
    rb"^(.{0,60}?)\s*\d{1,3}%\|[^|]{0,200}\|\s{0,8}(\d{1,12})/(\d{1,12}) \[[^\]]{0,60}(?:/it|it/s|step)"
)
_TRAINING = re.compile(rb"(?i)(?:train|epoch|step|iter)[^|]{0,50}$")
_LOSS = re.compile(rb"^\W{0,40}\{'[\w/]{0,20}loss': .{1,300}'epoch': '?(\d{1,6}(?:\.\d{1,12})?)'?[,}]")


class StepReader:
    """
    Follows the output of the ranks for the training's progress.

    >>> reader = StepReader()
    >>> for line in (b"Map: 9%|# | 900/1000 [00:01<00:02, 9.0it/s]", b"step 7 loss 2.1", b"lr 0.1 step 0.5"):
    ...     reader.read(line, now_s=3.0)
    >>> reader.step, reader.first_s
    (7, 3.0)
    """

    def __init__(self) -> None:
        self.first_s: float | None = None
        """Time of the first step, on the caller's clock."""
        self._furthest: dict[str, float] = {}
        self._begin: dict[str, float] = {}
        """The furthest of the first lines."""
        self._lines = Counter[str]()

    @property
    def step(self) -> float | None:
        """The highest step, from the best source in the output; None without one."""
        steps = "step", "epoch and step"  # not comparable: a script may name the epoch once in each epoch
        kinds = sorted(steps, key=lambda kind: -self._lines[kind])
        found = (self._furthest.get(kind) for kind in (*kinds, "bar", "loss"))
        return next((step for step in found if step is not None), None)

    def read(self, line: bytes, now_s: float) -> None:
        """One line of a rank's output, without ringup's prefix."""
        line = line[-LONGEST_LINE:] if b"\r" in line else line[:LONGEST_LINE]
        line = line.rstrip(b"\r\n").rpartition(b"\r")[2]
        small = line.lower()
        if not any(hint in small for hint in _HINTS):
            return
        if (found := _position(_CONTROL.sub(b"", line))) is None:
            return
        kind, value = found
        self.first_s = now_s if self.first_s is None else self.first_s
        self._furthest[kind] = max(value, self._furthest.get(kind, value))
        self._lines[kind] += 1
        if self._lines[kind] == FIRST_LINES:
            self._begin[kind] = self._furthest[kind]

    def starts_over(self, earlier: StepReader) -> bool:
        """Whether it begins where an earlier attempt began; progress bars always start at 0."""
        begins = [(kind, n, earlier._begin.get(kind, -1)) for kind, n in self._begin.items() if kind != "bar"]
        return any(at <= before < earlier._furthest[kind] for kind, at, before in begins)


def _position(line: bytes) -> tuple[str, float] | None:
    """The kind of a line that shows a step, and the step; None for other lines."""
    if bar := _BAR.match(line):
        is_training = not bar[1].strip(b" |:") or _TRAINING.search(bar[1])
        epoch = _EPOCH_AT.search(bar[1])
        # A bar of one epoch restarts in the next one.
        return ("bar", int(bar[2]) + (int(epoch[1]) * EPOCH if epoch else 0)) if is_training else None
    if loss := _LOSS.match(line):
        return "loss", float(loss[1])
    step, epoch = _step(line), _EPOCH_AT.search(line)
    if step is None:
        return ("loss", float(epoch[1])) if epoch and b"loss" in line else None
    return ("epoch and step", step + int(epoch[1]) * EPOCH) if epoch else ("step", step)


def _step(line: bytes) -> int | None:
    if (found := step_in(line)) is None:
        return None
    number = found[1] or found[3] or found[4].rpartition(b"[")[2]
    return int(re.sub(rb"[,_]", b"", number)) * (1000 if found[2] else 1)
