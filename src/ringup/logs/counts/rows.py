"""Calls of each iteration: which row a call belongs to, and old rows made small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ringup.logs.counts.model import MAX_CELLS, Part, Row

LOOK_BACK = 8
"""Iterations a labelled rank may lag behind the first to print a mark."""


class Rows:
    """Writes the rows of a part."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._packed: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._packed_rows = 0
        self._cells = 0
        self._own_rows: list[int] | None = None
        """Row each column's label opened last, -1 where its label opened none."""
        self._labelled: dict[str, list[int]] = {}

    def labels_changed(self) -> None:
        """A process has got its label."""
        self._own_rows = None

    def flush(self, counts: Iterable[tuple[int, int]]) -> None:
        """Add calls by column to the iteration each process is in."""
        part = self._part
        if not part.label_rows:
            part.rows[-1].follow(counts)
            return
        if self._own_rows is None or len(self._own_rows) < len(part.columns):
            labels = [part.label_of(i) for i in range(len(part.columns))]
            self._own_rows = [part.label_rows.get(label, -1) for label in labels]
            self._labelled = defaultdict(list)
            for i, of in enumerate(labels):
                self._labelled[of].append(i)
        own_rows = self._own_rows
        following = []
        for column, count in counts:
            own = own_rows[column]
            if own < 0:
                following.append((column, count))
            else:
                part.rows[own].add(column, True, count)
        part.rows[-1].follow(following)

    def mark(self, name: str, label: str) -> int:
        """A trainer's line: what follows belongs to this iteration; the number of its row."""
        part = self._part
        rows = part.rows
        at = len(rows) - 1
        if rows[at].name != name:
            oldest = max(part.label_rows.get(label, 0), at - LOOK_BACK, 0)
            late = (
                next((i for i in range(at - 1, oldest, -1) if rows[i].name == name), None) if label else None
            )
            at = self._open_row(name, label) if late is None else late
        if label:
            part.label_rows[label] = at
            if self._own_rows is not None:
                for column in self._labelled.get(label, ()):
                    self._own_rows[column] = at
        return at

    def _open_row(self, name: str, label: str) -> int:
        part = self._part
        if self._cells > MAX_CELLS:
            if not part.rows_pooled:
                part.rows_pooled = True
                part.rows.append(Row("later", label))
            return len(part.rows) - 1
        part.rows.append(Row(name, label))
        while self._packed_rows < len(part.rows) - 2 * LOOK_BACK:
            # The 8 keeps runs of empty rows within bounds too.
            self._cells += 8 + part.rows[self._packed_rows].pack(self._packed)
            self._packed_rows += 1
        return len(part.rows) - 1
