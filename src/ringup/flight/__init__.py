"""
PyTorch's flight recorder: its dumps read, those of all ranks compared.

Pure: bytes in, differences out.
"""

from __future__ import annotations

from ringup.flight.compare import Difference, Group, compare, groups_of, show_group, show_ranks, standing
from ringup.flight.dump import LONGEST_DUMP_BYTES, Entry, Flight, FlightError, from_data, may_be, read

__all__ = [
    "LONGEST_DUMP_BYTES",
    "Difference",
    "Entry",
    "Flight",
    "FlightError",
    "Group",
    "compare",
    "from_data",
    "groups_of",
    "may_be",
    "read",
    "show_group",
    "show_ranks",
    "standing",
]
