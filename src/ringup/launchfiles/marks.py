"""
Values that only the run knows, as single characters in a text: never split, unchanged by a second reading.

A mark keeps the unknown value's name and the place where the shell would expand it: on the batch node, in
each task, in each round of a loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

FIRST, MOST = 0xE000, 6000
BREAK, EMPTY = "\uf8ff", "\uf8fe"
"""Between two words, and in place of an empty word, during the expansion."""
_PRIVATE = re.compile("[\ue000-\uf8ff]")


class Mark(NamedTuple):
    name: str
    """A variable's name, `$(command)`, or one of the names below."""
    site: str
    """here, batch, task or loop."""

    @property
    def is_shell(self) -> bool:
        """Whether a shell can expand what people see of it."""
        return self.name[:1] not in ("@", "{")


NODES = "@nodes"
"""The names of the allocation's nodes."""
NAMES = "@names"
"""The names of all nodes in one word."""
NODE_COUNT = "@node-count"
COUNT_NAMES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", NODE_COUNT)
"""Names of the allocation's number of nodes."""
SLOT_COUNT = "@slot-count"
"""Lines of a node file that names a node once for each of its tasks."""
FIRST_NODE, FIRST_ADDRESS = "@first-node", "@first-address"
OTHER_NODE = "@other-node"
OWN_NAME, OWN_ADDRESS = "@own-name", "@own-address"
"""Of the machine that expands it."""
GPU_COUNT = "@gpu-count"
SHOWN = {
    NODES: "(names of the nodes)",
    NAMES: "(names of all nodes)",
    NODE_COUNT: "(number of nodes)",
    SLOT_COUNT: "(lines of the node file)",
    FIRST_NODE: "(first node)",
    FIRST_ADDRESS: "(address of the first node)",
    OTHER_NODE: "(another node)",
    OWN_NAME: "$(hostname)",
    OWN_ADDRESS: "$(hostname -i)",
    GPU_COUNT: "(number of GPUs)",
}


@dataclass
class Marks:
    """The unknown values of one file."""

    _signs: dict[Mark, str] = field(default_factory=dict)
    _marks: dict[str, Mark] = field(default_factory=dict)

    def make(self, name: str, site: str) -> str:
        """The character for an unknown value."""
        mark = Mark(name[:200], site)
        if mark not in self._signs:
            sign = chr(FIRST + min(len(self._signs), MOST))
            self._signs[mark] = sign
            self._marks.setdefault(sign, mark if len(self._marks) < MOST else Mark("?", site))
        return self._signs[mark]

    def of(self, text: str) -> Mark | None:
        """The single mark of a text; None for any other text."""
        return self._marks.get(text)

    def all_of(self, text: str) -> list[Mark]:
        return [mark for sign in _PRIVATE.findall(text) if (mark := self.of(sign))]

    @property
    def names(self) -> set[str]:
        """Of all unknown values: variables' names, `$(command)`."""
        return {mark.name for mark in self._signs}

    def as_written(self, text: str) -> str:
        """With a template's values as the file has them, and all other marks."""
        named = ((m[0], self.of(m[0])) for m in _PRIVATE.finditer(text))
        for sign, mark in named:
            text = text.replace(sign, mark.name) if mark and mark.name[:1] == "{" else text
        return text

    def shown(self, text: str) -> str:
        """For people: `$NAME` in place of each mark, `${NAME}` if a letter follows."""
        shown = _PRIVATE.sub(lambda m: _shown(self.of(m[0])) + m[0], text)
        return _PRIVATE.sub("", re.sub(rf"\$(\w+){_PRIVATE.pattern}(?=\w)", r"${\1}", shown))


def _shown(mark: Mark | None) -> str:
    name = mark.name if mark else "?"
    return SHOWN.get(name) or (name if name[:1] in ("$", "{") else f"${name}")


def is_mark(text: str) -> bool:
    return len(text) == 1 and bool(_PRIVATE.match(text))


def has_mark(text: str) -> bool:
    return bool(_PRIVATE.search(text))


def without_marks(text: str) -> str:
    """A file's text without characters that look like marks."""
    return _PRIVATE.sub("\ufffd", text)
