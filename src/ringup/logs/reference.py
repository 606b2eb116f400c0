"""What a log that went well holds, as the measure of another (`--against`)."""

from __future__ import annotations

from dataclasses import dataclass

from ringup.logs.forms import shape_of
from ringup.logs.peel import message_of


@dataclass(frozen=True)
class Reference:
    """The forms of its lines; its settings, versions and sizes by name."""

    forms: frozenset[str]
    facts: dict[str, frozenset[str]]

    def has(self, text: str) -> bool:
        """Whether a line of this form is in it, too."""
        return shape_of(message_of(text)) in self.forms
