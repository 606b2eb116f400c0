"""
The table of tags: what programs print, by meaning, one file a program.

A new wording is one more pattern in its tag's row; a new tag is one row more.  A pattern needs a fixed
string of some characters (a test tells which has none): lines without it are never tried.
"""

from __future__ import annotations

from ringup.logs.patterns import frameworks, nccl, nccl_faults, progress, rendezvous, system, torch
from ringup.logs.patterns.tags import ROLES, Pattern, Tag

TAGS: dict[str, Tag] = {
    row.name: row
    for module in (nccl, nccl_faults, rendezvous, torch, system, frameworks, progress)
    for row in module.TAGS
}
PATTERNS: tuple[Pattern, ...] = tuple(pattern for row in TAGS.values() for pattern in row.patterns)
SETTING_UP = frozenset(row.name for row in nccl.TAGS)
"""Lines of every rank's set-up: thousands on a large job."""
OF_ROLE = {
    role: dict.fromkeys(row.name for row in TAGS.values() if role in row.roles).keys() for role in ROLES
}
"""Role -> its tags, in the order of the table."""
