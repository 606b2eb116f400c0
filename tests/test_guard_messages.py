"""Whatever bytes reach a reader of guards' messages: only what its table allows comes out, and few of it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringup.agent.guard import messages

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS | st.just("x" * 300_000) | st.just(1 << 70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TABLES = {
    "from launcher": messages.FROM_LAUNCHER,
    "from head": messages.FROM_HEAD,
    "from reader": messages.FROM_READER,
    "from guard": messages.FROM_GUARD,
    "in journal": messages.IN_JOURNAL,
    "from journal": messages.FROM_JOURNAL,
}
KINDS = [(where, kind) for where, table in TABLES.items() for kind in table]


def deep(levels: int) -> bytes:
    return b'{"type":"problem","at":1.0,"words":' + b"[" * levels + b"]" * levels + b"}"


def good(row: Any) -> dict[str, Any]:
    """Values that the fields of a row accept."""
    key = {"key": "k", "certificate": "c", "authority": "a"}
    candidates = (1, "count", "SIGUSR1", True, [], [[1, "sh"]], key, {"type": "look"})
    checks = {name: c[0] if isinstance(c, tuple) else c for name, c in row.fields.items()}
    return {name: next(v for v in candidates if check(v)) for name, check in checks.items()}


@pytest.mark.parametrize("where, kind", KINDS)
def test_every_kind_of_message_passes_when_it_is_whole_and_not_when_a_field_is_missing(
    where: str, kind: str
) -> None:
    row = TABLES[where][kind]
    message = {"type": kind, **good(row)}
    assert messages.Checker(TABLES[where]).read(json.dumps(message).encode()) == message
    needed = [name for name, check in row.fields.items() if not isinstance(check, tuple)]
    for name in needed:
        less = {key: value for key, value in message.items() if key != name}
        assert messages.Checker(TABLES[where]).check(less) is None


@pytest.mark.parametrize(
    ("check", "within", "without"),
    [
        (messages.whole(0, 2), (0, 2), (-1, 3, 1.0, True, "1", None)),
        (messages.text(2), ("", "ab"), ("abc", b"a", 1)),
        (messages.seconds, (-1.5, 999e12), (1e15, -1e15, "1", True)),
        (messages.duration, (0, 999_999.5), (-0.1, 1e6, True)),
        (messages.listed(messages.flag, 2), ([], [True, False]), ([True] * 3, [1], (True,))),
        (messages.process, ([1, "sh"],), ([1], [1, "sh", 2], [-1, "sh"], [1, 2], "1s")),
        (messages.record(a=messages.flag), ({"a": True},), ({}, {"a": 1}, {"a": True, "b": 1}, [])),
    ],
)
def test_a_field_takes_what_is_within_its_bounds_and_nothing_else(
    check: Any, within: tuple[Any, ...], without: tuple[Any, ...]
) -> None:
    assert [value for value in within if not check(value)] == []
    assert [value for value in without if check(value)] == []


@pytest.mark.parametrize("mode", ["count", "stacks", "threads", "flight", "exec", ""])
def test_a_snapshot_of_no_known_mode_is_not_taken(mode: str) -> None:
    asked = messages.Checker(messages.FROM_LAUNCHER).check({"type": "look", "number": 1, "mode": mode})
    assert (asked is not None) == (mode in ("count", "stacks", "threads", "flight"))


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGKILL", "SIGSTOP", "10"])
def test_no_other_signal_than_one_to_save_at_is_sent(name: str) -> None:
    asked = messages.Checker(messages.FROM_LAUNCHER).check({"type": "signal", "name": name})
    assert (asked is not None) == (name == "SIGUSR1")


def test_fields_that_a_row_does_not_name_come_with_the_answer_to_a_snapshot_alone() -> None:
    kept = set()
    for where, kind in KINDS:
        message = {"type": kind, **good(TABLES[where][kind]), "program": "import os"}
        found = messages.Checker(TABLES[where]).check(message)
        assert found
        if "program" in found:
            kept.add((where, kind))
    assert kept == {("from guard", "look"), ("in journal", "look")}


@UNHURRIED
@given(where=st.sampled_from(sorted(TABLES)), data=st.data())
def test_no_message_comes_out_with_a_field_that_its_row_does_not_allow(where: str, data: Any) -> None:
    table = TABLES[where]
    kind = data.draw(st.sampled_from(sorted(table)))
    row = table[kind]
    names = st.sampled_from([*row.fields, "source", "node"])
    message = {**good(row), **data.draw(st.dictionaries(names, VALUES)), "type": kind}
    checker = messages.Checker(table)
    found = checker.read(json.dumps(message).encode())
    if found is None:
        assert checker.refused == 1
        return
    allowed = {"type", *row.fields}
    assert row.is_open or set(found) <= allowed
    for name in set(found) & set(row.fields):
        check = row.fields[name]
        assert (check[0] if isinstance(check, tuple) else check)(found[name])


@UNHURRIED
@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b'{"type":"go"}\n', deep(100_000)]), max_size=9)
)
def test_any_bytes_at_all_are_survived(pieces: list[bytes]) -> None:
    lines, checker = messages.Lines(), messages.Checker(messages.FROM_LAUNCHER)
    for piece in pieces:
        for line in lines.feed(piece):
            assert checker.read(line) in (None, {"type": "go"})


@pytest.mark.parametrize(
    "line",
    [
        deep(20),
        deep(100_000),
        b'{"type":"problem","words":"x","at":' + b"9" * 1_000_000 + b"}",
        b'{"type":"problem","words":"x","at":NaN}',
        b'{"type":"problem","words":"x","at":-Infinity}',
        b'{"type":"problem","words":"x","at":1e999}',
        b'{"type":"problem","words":"x","at":true}',
        b'{"type":"problem","words":"' + b"x" * 9000 + b'"}',
        '{"type":"problem","words":"x"}'.encode("utf-16"),
        b'{"type":"problem","words":"\xff"}',
        b'{"type":["problem"],"words":"x"}',
        b'["type","problem"]',
        b'{"type":"look","number":1,"ranks":' + b"[" + b"[]," * 600_000 + b"[]]}",
        b'{"type":"look","number":1,"ranks":' + b"[" * 15 + b"]" * 15 + b"}",
        b"{",
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_a_message_out_of_bounds_is_left_out_and_counted(line: bytes) -> None:
    checker = messages.Checker(messages.FROM_GUARD)
    assert checker.read(line) is None
    assert checker.refused == 1
    assert checker.read(b'{"type":"problem","words":"x"}')


def test_an_endless_line_takes_no_more_memory_than_the_longest_allowed() -> None:
    lines = messages.Lines()
    tracemalloc.start()
    for _ in range(1000):
        assert lines.feed(b"x" * 65536) == []
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * messages.LONGEST_LINE_BYTES
    assert lines.feed(b'{"type":"go"}\n{"type":"go"}\n') == [b'{"type":"go"}'], (
        "the long line's rest is one, too"
    )
    assert lines.feed(b'{"type":"go"}\n') == [b'{"type":"go"}']
    assert lines.too_long == 1


@pytest.mark.parametrize("kind", sorted(messages.FROM_GUARD.keys() - {"out"}))
def test_a_flood_of_one_kind_is_cut_off_and_the_other_kinds_still_pass(kind: str) -> None:
    row = messages.FROM_GUARD[kind]
    line = json.dumps({"type": kind, **good(row)}).encode()
    checker = messages.Checker(messages.FROM_GUARD)
    for _ in range(3 * max(row.most, row.a_second)):
        checker.read(line)
    assert checker.refused > row.most
    other = "ended" if kind != "ended" else "problem"
    assert checker.check({"type": other, **good(messages.FROM_GUARD[other])})
