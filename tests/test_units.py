"""Sizes, rates, durations and harmless text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import units


@pytest.mark.parametrize("text", ["", "x", "12Q", "1.2.3M", "-4"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_size_bytes(text)


@given(st.text())
def test_printable_text_never_moves_the_cursor(text: str) -> None:
    shown = units.printable(text, 50)
    assert all(c.isprintable() for c in shown)


@given(st.text(min_size=500))
def test_printable_text_is_bounded(text: str) -> None:
    assert len(units.printable(text, 50)) <= 50 * len("\\U0001f600")
