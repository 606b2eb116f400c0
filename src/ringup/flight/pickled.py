"""
A pickle from anywhere as plain data: dictionaries, lists, tuples, strings and numbers, and nothing else.

The standard reader is not used, even with all names refused: a few bytes make it fill memory (a memo number
of two thousand million) or compute for years (the hash of a tuple that holds another twice, forty deep).
Operations as `Lib/pickletools.py` describes them; the ones left out make objects, which no dump has.
"""

from __future__ import annotations

import struct
from typing import Any

from ringup.units import printable

MOST_PARTS = 4_000_000
"""Lists, dictionaries, tuples: an empty one is one byte of the file and 60 of memory."""

_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_TEXT = {0x58: 4, 0x8C: 1, 0x8D: 8}
_WHOLE = {0x4B: 1, 0x4D: 2}
_KEYS = {str, int, bool, type(None)}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}


class NotPlain(ValueError):
    """Bytes that are no pickle of plain data; the words say why."""


def load(data: bytes) -> Any:
    """What was pickled.  Raises NotPlain."""
    if data[:1] != b"\x80":
        raise NotPlain("not a pickle of protocol 2 or later")
    try:
        return _load(data)
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error) as error:
        if isinstance(error, NotPlain):
            raise
        raise NotPlain("it is torn, or no plain data") from error


def _load(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    at, parts = 2, 0
    while True:
        op = data[at]
        at += 1
        if op == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif op == 0x28:  # MARK
            marks.append(stack)
            stack = []
        elif op == 0x71:  # BINPUT
            memo[data[at]] = stack[-1]
            at += 1
        elif op in _WHOLE:
            end = at + _WHOLE[op]
            stack.append(int.from_bytes(data[at:end], "little"))
            at = end
        elif op in _TEXT:
            start = at + _TEXT[op]
            end = start + int.from_bytes(data[at:start], "little")
            if end > len(data):
                raise NotPlain("it breaks off")
            stack.append(data[start:end].decode("utf-8", "replace"))
            at = end
        elif op in (0x5D, 0x7D, 0x29):  # EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
            parts += 1
            if parts > MOST_PARTS:
                raise NotPlain("it has more parts than any dump")
            stack.append([] if op == 0x5D else {} if op == 0x7D else ())
        elif op == 0x65:  # APPENDS
            items, stack = stack, marks.pop()
            _list(stack[-1]).extend(items)
        elif op == 0x75:  # SETITEMS
            items, stack = stack, marks.pop()
            _set(stack[-1], items)
        elif op == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
            at += 4
        elif op == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
            at += 4
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op in _CONSTANTS:
            stack.append(_CONSTANTS[op])
        elif op == 0x4A:  # BININT
            stack.append(int.from_bytes(data[at : at + 4], "little", signed=True))
            at += 4
        elif op == 0x8A:  # LONG1
            end = at + 1 + data[at]
            stack.append(int.from_bytes(data[at + 1 : end], "little", signed=True))
            at = end
        elif op in _TUPLES:
            parts += 1
            count = _TUPLES[op]
            if len(stack) < count or parts > MOST_PARTS:
                raise NotPlain("a tuple of more than there is")
            stack[-count:] = [tuple(stack[-count:])]
        elif op == 0x74:  # TUPLE
            items, stack = stack, marks.pop()
            stack.append(tuple(items))
        elif op == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", data[at : at + 8])[0])
            at += 8
        elif op == 0x61:  # APPEND
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif op == 0x73:  # SETITEM
            value, key = stack.pop(), stack.pop()
            _set(stack[-1], [key, value])
        elif op == 0x95:  # FRAME, of use to streams alone
            at += 8
        elif op == 0x2E:  # STOP
            return stack[-1]
        else:
            named = printable(data[at : at + 80].split(b"\n")[0].decode("latin-1"), 60)
            raise NotPlain(f"it makes objects ({op:#x} {named}), which no dump does")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotPlain("it adds to what is no list")
    return value


def _set(value: Any, items: list[Any]) -> None:
    if not isinstance(value, dict) or not set(map(type, items[::2])) <= _KEYS:
        raise NotPlain("a dictionary whose keys are no words")
    value.update(zip(items[::2], items[1::2], strict=True))
