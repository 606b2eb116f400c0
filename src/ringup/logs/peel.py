"""The message of a line: what is left without the labels, clocks and severities of those who passed it on."""

from __future__ import annotations

import re

from ringup.logs.labels import Labels
from ringup.logs.lines import NO_LABELS, body_of
from ringup.logs.patterns.forms import WRAPPING

MOST_LAYERS = 6

_WORD = re.compile(r"[A-Za-z]{3}")


def message_of(text: str, labels: Labels = NO_LABELS) -> str:
    """
    A line's message.

    >>> message_of("22: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error")
    'nvidia-container-cli: ldcache error'
    >>> message_of("[rank3]:[E410 01:50:33.8 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank 3] watchdog")
    'watchdog'
    """
    for _ in range(MOST_LAYERS):
        body = body_of(text, labels)
        match = WRAPPING.match(body)
        rest = body[match.end() :] if match else body
        if rest == text or not _WORD.search(rest):
            return text
        text = rest
    return text
