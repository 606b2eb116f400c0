"""Any bytes at all: never an exception, evidence always on a line that exists, output always harmless."""

from __future__ import annotations

import io
import json
import random
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringup.errors import LogsError
from ringup.logs import files
from ringup.logs.read import read_logs
from ringup.output import logs_report as show
from ringup.output.terminal import Style
from tests.logs_said import HEALTHY, SAID

TEXTS = [t.encode() for _, t in SAID] + [t.encode() for t in HEALTHY]

WRONG = (b"99999999999999999999999", b"-1", b"0", b"")


def judge(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "x.log"
        log.write_bytes(data)
        try:
            diagnosis = read_logs([str(log)])
        except LogsError:
            is_binary = files._is_binary(data[: files._HEAD_BYTES])
            assert not data or data.startswith(tuple(files._UNPACK)) or is_binary  # nothing unpacked
            return
        lines = data.split(b"\n")
        for cause in diagnosis.causes:
            assert cause.evidence or cause.rule
            for event in cause.evidence:
                assert 1 <= event.line <= len(lines)
        json.dumps(show.as_json(diagnosis))
        text = show.as_text(diagnosis, Style(io.StringIO()), verbose=True)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def mutated(seed: int) -> bytes:
    """A few texts cut, shuffled, interleaved, doubled, and sprinkled with bytes."""
    chance = random.Random(seed)
    data = b"\n".join(chance.sample(TEXTS, 3))
    for _ in range(chance.randint(1, 4)):
        lines = data.split(b"\n")
        match chance.randint(0, 6):
            case 0:
                data = data[: chance.randint(0, len(data))]
            case 1:
                chance.shuffle(lines)
                data = b"\n".join(lines)
            case 2:
                other = chance.choice(TEXTS).split(b"\n")
                data = b"\n".join(x for pair in zip(lines, other * len(lines), strict=False) for x in pair)
            case 3:
                torn = bytearray(data)
                for _ in range(20):
                    if torn:
                        torn[chance.randrange(len(torn))] = chance.randrange(256)
                data = bytes(torn)
            case 4:
                data = data.replace(b"\n", b"", chance.randint(1, 5))
            case 5:
                data = re.sub(rb"\d+", lambda m: chance.choice([m[0], *WRONG]), data)
            case _:
                data = data * 3
    return data


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_without_an_exception(data: bytes) -> None:
    judge(data)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(TEXTS), max_size=4), st.text(max_size=200))
def test_any_mixture_of_known_lines_is_read_without_an_exception(texts: list[bytes], noise: str) -> None:
    judge(noise.encode("utf-8", "surrogatepass").join(texts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_mutated_logs_are_read_without_an_exception(seed: int) -> None:
    for n in range(8):
        judge(mutated(seed * 1000 + n))
