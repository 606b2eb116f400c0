"""
The messages of guards: every kind, the bounds of its fields, and how many are accepted.

Nodes and the launching side use the same tables.  A message is accepted or dropped as a whole: its kind has a
row, every field is within its bounds, no field is missing (except `maybe`), and the row's count is not used
up.  Other fields are dropped.  No message carries code: programs come with the order, through ssh or srun.

A new message is a new row here; tests/test_guard_messages.py then sends it with arbitrary values.
"""

import json
import time

BEAT_S, FIRST_BEATS_S = 2.0, 0.1
"""Seconds between beats: frequent in the first second, for good clock offsets, which short runs need too."""
DRIFT = 100e-6
"""Most seconds per second by which the clocks of two machines drift apart."""
ACKNOWLEDGE_EVERY_BYTES = 64 << 10
LONGEST_LINE_BYTES = 8 << 20
"""The answer to a `look` may have 6 MiB."""
MOST_PARTS = 1 << 20
"""Commas and brackets in a line: an empty list takes two bytes there and 56 in memory."""
DEEPEST = 12
"""The answer to a `look` nests 8 deep."""
LONGEST_NUMBER = 25
"""Characters.  Before Python 3.11, the time to read an integer grows with the square of its digits."""


# -- fields ----------------------------------------------------------------------------------


def whole(low, high):
    return lambda value: type(value) is int and low <= value <= high


def text(longest):
    return lambda value: isinstance(value, str) and len(value) <= longest


def seconds(value):
    return type(value) in (int, float) and abs(value) < 1e15


def duration(value):
    """Seconds, at most some days."""
    return type(value) in (int, float) and 0 <= value < 1e6


def flag(value):
    return isinstance(value, bool)


def one_of(*words):
    return lambda value: isinstance(value, str) and value in words


def listed(check, most):
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(check, value))


def process(value):
    """`[pid, command]`."""
    return isinstance(value, list) and len(value) == 2 and PID(value[0]) and isinstance(value[1], str)


def record(**checks):
    """An object with these fields and no others."""
    return lambda value: (
        isinstance(value, dict)
        and set(value) == set(checks)
        and all(check(value[name]) for name, check in checks.items())
    )


def maybe(check):
    """The field may be missing."""
    return (check,)


WORDS = text(8192)
BLOB = text(256 << 10)
"""Base64."""
NODE = whole(0, 1 << 16)
RANK = whole(-1, 1 << 24)
"""-1: a launcher."""
PID = whole(0, 1 << 32)
CODE = whole(-128, 255)
BYTES = whole(0, 1 << 60)
PORT = whole(0, 65535)
NUMBER = whole(0, 1 << 60)
"""Number of a request; its answer has the same number."""
PROCESSES = listed(process, 1 << 16)
ADDRESSES = listed(text(64), 64)
IDENTITY = record(key=text(8192), certificate=text(8192), authority=text(8192))
"""A key, its certificate, and the authority that signed it: PEM."""
SEEN_RANK = record(rank=RANK, world_size=whole(-1, 1 << 24), has_group=flag, is_joined=flag, remote=ADDRESSES)
"""A rank as world.py describes it."""


# -- messages --------------------------------------------------------------------------------


class Row:
    """A kind of message with these fields: at most `most` in all, or `a_second`."""

    def __init__(self, most=0, a_second=0, is_open=False, **fields):
        """With `is_open`, other fields are kept, too."""
        self.most, self.a_second, self.is_open = most, a_second, is_open
        self.fields = fields

    def checked(self, message):
        found = dict(message) if self.is_open else {"type": message["type"]}
        for name, check in self.fields.items():
            if name in message:
                if not (check[0] if isinstance(check, tuple) else check)(message[name]):
                    return None
                found[name] = message[name]
            elif not isinstance(check, tuple):
                return None
        return found


MOST_RANKS = 4096
"""Ranks of one node."""

_COMMON = {
    "beat": Row(a_second=100, sent=seconds, acknowledged=maybe(BYTES)),
    "ack": Row(a_second=100_000, acknowledged=BYTES),
    "go": Row(most=1),
    "end": Row(most=1000, reason=maybe(WORDS), grace_s=maybe(duration)),
    "look": Row(a_second=20, number=NUMBER, mode=one_of("count", "stacks", "threads", "flight")),
}

SAVE_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that the shim of a rank passes on (agent/rank/rank.py)."""

FROM_LAUNCHER = {
    **_COMMON,
    "signal": Row(most=1, name=one_of(*SAVE_SIGNALS)),
    "host": Row(
        most=1, address=text(64), ports=listed(PORT, 100), nodes=listed(NODE, 1 << 16),
        identity=maybe(IDENTITY),  # of no use where there is one node
    ),
    "join": Row(most=1, address=text(64), port=PORT, identity=IDENTITY),
    "take-over": Row(most=1),
}  # fmt: skip
"""To a guard, from the launcher."""

FROM_HEAD = {**_COMMON, "welcome": Row(most=1), "leave": Row(most=1)}
"""To a guard, from the head node's."""

FROM_READER = {
    "beat": Row(a_second=100, acknowledged=BYTES),
    "end": _COMMON["end"],
    "look": Row(node=NODE, a_second=1000, **_COMMON["look"].fields),
}
"""To the head's guard, from `ringup attach`."""

FROM_GUARD = {
    "beat": Row(a_second=100, echo=seconds, clock=seconds),
    "ready": Row(most=1, pid=PID, guard=PID, clock=seconds, python=text(100), reaper=flag),
    "started": Row(most=1, pid=PID, at=seconds),
    "rank": Row(most=MOST_RANKS, rank=RANK, local_rank=RANK, pid=PID, at=seconds),
    "out": Row(a_second=100_000, rank=RANK, fd=whole(1, 2), at=seconds, data=BLOB),
    "dropped": Row(a_second=100, bytes=BYTES),
    "exit": Row(
        most=MOST_RANKS, rank=RANK, local_rank=RANK, pid=PID, code=CODE, at=seconds, traceback_at=seconds,
        sigterm_at=seconds, lost=flag, tail=BLOB, late=maybe(whole(0, 64)),
    ),
    "launcher-exit": Row(most=1, code=CODE, at=seconds, sigterm_at=seconds, tail=BLOB),
    "problem": Row(most=100, words=WORDS, at=maybe(seconds)),
    "ending": Row(most=1, reason=WORDS, at=seconds),
    "ended": Row(most=1, left=PROCESSES, stayed=PROCESSES, at=seconds, oom_kills=whole(-(1 << 40), 1 << 40)),
    "world": Row(most=1, addresses=ADDRESSES, ranks=listed(SEEN_RANK, MOST_RANKS)),
    "guard-lost": Row(
        most=1, status=whole(0, 65535), stuck=flag, at=seconds, killed=PROCESSES, left=PROCESSES
    ),
    "look": Row(a_second=20, is_open=True, number=NUMBER),
    "hosting": Row(most=1, port=PORT, problem=WORDS),
    "joined-head": Row(most=1, problem=WORDS),
    "detached": Row(most=2, problem=WORDS),
    "left": Row(most=1),
}  # fmt: skip
"""From a guard, to the launcher or the head's guard."""

IN_JOURNAL = {
    **FROM_GUARD,
    "clock": Row(a_second=1000, ahead=seconds, error=maybe(duration)),
    "lost": Row(most=1, words=WORDS, at=seconds),
    "refused": Row(most=1, count=BYTES),
}
"""Of one node, from the head's guard to `ringup attach`."""

FROM_JOURNAL = {
    "began": Row(most=1, at=seconds, wall=seconds),
    "finished": Row(most=1, at=seconds, reason=WORDS, lost_bytes=BYTES),
    "gone": Row(most=1),
    "replayed": Row(most=1),
    "look": Row(a_second=1000, node=NODE, answer=lambda value: True),  # its reader checks it
}
"""Of the run as a whole."""

# -- from bytes to messages ------------------------------------------------------------------


class Lines:
    """Cuts bytes into lines; drops and counts lines that are too long."""

    def __init__(self):
        self.rest, self.too_long, self._skips = b"", 0, False

    def feed(self, data):
        *whole, self.rest = (self.rest + data).split(b"\n")
        if whole and self._skips:
            self._skips = False
            del whole[0]
        if len(self.rest) > LONGEST_LINE_BYTES:
            self.too_long += not self._skips
            self._skips = True
        if self._skips:
            self.rest = b""
        return whole


def _number(digits):
    """Also called for NaN and Infinity, which it refuses."""
    if len(digits) > LONGEST_NUMBER or not abs(float(digits)) < float("inf"):
        raise ValueError("not a finite number of bounded length")
    return int(digits) if digits.lstrip("-").isdigit() else float(digits)


def parse(line):
    """The object in a line of JSON; None for anything else, for deep nesting, and for too many parts."""
    if len(line) > LONGEST_LINE_BYTES or sum(map(line.count, (b",", b"[", b"{"))) > MOST_PARTS:
        return None
    try:
        found = json.loads(line.decode(), parse_int=_number, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and is_shallow(found) else None


def is_shallow(value):
    """Whether nothing in it is nested deeper than DEEPEST."""
    level = [value]
    for _ in range(DEEPEST):
        within = [one.values() if isinstance(one, dict) else one for one in level]
        level = [part for parts in within for part in parts if isinstance(part, (dict, list))]
        if not level:
            return True
    return False


class Checker:
    """Checks one sender's messages; `refused` counts the dropped ones."""

    def __init__(self, table):
        self.table = table
        self.refused = 0
        self._counts, self._second, self._until = {}, {}, 0.0

    def read(self, line):
        return self.check(parse(line) or {}) if line.strip() else None

    def check(self, message):
        kind = message.get("type")
        row = self.table.get(kind) if isinstance(kind, str) else None
        checked = row.checked(message) if row and self._has_room(kind, row) else None
        self.refused += checked is None
        return checked

    def _has_room(self, kind, row):
        if not row.most and time.monotonic() >= self._until:
            self._until = time.monotonic() + 1.0
            self._second.clear()
        counts = self._counts if row.most else self._second
        counts[kind] = counts.get(kind, 0) + 1
        return counts[kind] <= (row.most or row.a_second)
