"""Lines: who printed them, what they say, and what hostile ones cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringup.logs import lines
from ringup.logs.lines import Gate, clean, excerpt, head_of, looks_like_host, matches, seconds_of
from ringup.logs.patterns import PATTERNS, TAGS
from ringup.logs.patterns.needles import needles_of
from ringup.logs.patterns.tags import ROLES, Pattern
from ringup.logs.scan import Scanner

GATE = Gate()


def tags(raw: bytes) -> dict[str, dict[str, str]]:
    return {tag: fields for tag, fields, _ in matches(clean(raw), GATE(raw))}


@pytest.mark.parametrize(
    ("line", "host", "pid", "device", "rank", "label"),
    [
        ("n1:41:77 [3] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>", "n1", "41", "3", None, ""),
        ("4: n1:41:77 [3] NCCL INFO x", "n1", "41", "3", None, "4"),
        ("[1,6]<stdout>:n1:41:77 [3] init.cc:497 NCCL WARN x", "n1", "41", "3", 6, ""),
        ("[rank12]:[E1123 00:52:57.66 ProcessGroupNCCL.cpp:607] [Rank 12] Watchdog", "", "", "", 12, ""),
        ("2026-01-02T03:20:21.001125857Z n1:41:77 [5] NCCL INFO x", "n1", "41", "5", None, ""),
        ("[2026-05-05 06:16:47] n1:41:77 [5] misc/socket.cc:46 NCCL WARN x", "n1", "41", "5", None, ""),
        ("  | 2026-01-02T07:42:11.525Z | algo-1:17:18 [2] NCCL INFO x", "algo-1", "17", "2", None, ""),
        ("6:16:47 n1:41:77 [5] NCCL INFO x", "n1", "41", "5", None, ""),
        ("n1: n1:41:77 [3] misc/x.cc:3 (f) NCCL WARN x", "n1", "41", "3", None, "n1"),
        ("gpu-7: Traceback (most recent call last):", "gpu-7", "", "", None, "gpu-7"),
        ("(RayWorker pid=92, ip=10.0.24.1) mlx5: got completion", "10.0.24.1", "92", "", None, ""),
        ("srun: error: n4: task 17: Exited with exit code 1", "n4", "", "", None, ""),
        ("n1.cluster.org:41:77 [0] NCCL INFO x", "n1", "41", "0", None, ""),
        ("RuntimeError: no", "", "", "", None, ""),
        ("train.py: error: unrecognized arguments", "", "", "", None, ""),
    ],
)
def test_who_printed_a_line_is_read_from_every_prefix_form(
    line: str, host: str, pid: str, device: str, rank: int | None, label: str
) -> None:
    head = head_of(line)
    assert (head.host, head.pid, head.device, head.rank, head.label) == (host, pid, device, rank, label)


def test_errors_and_programs_are_not_taken_for_hosts() -> None:
    assert not any(
        map(looks_like_host, ["ValueError", "main.py", "bash", "python3", "srun", "E1120", "step2", "12"])
    )
    assert all(map(looks_like_host, ["node1", "gpu-a", "VM2", "localhost", "10.0.0.4"]))


def test_clock_times_of_several_forms_are_comparable() -> None:
    first = seconds_of("[E1123 00:52:57.664949121 ProcessGroupNCCL.cpp:607] x")
    later = seconds_of("[E1123 01:02:57.664949121 ProcessGroupNCCL.cpp:607] x")
    assert first is not None and later is not None and later - first == pytest.approx(600)
    assert seconds_of("2026-02-18 10:28:25,496 - root - INFO") is not None
    assert seconds_of("no time here") is None


def test_the_files_of_a_run_are_looked_at_through_one_gate() -> None:
    """To make one costs as much as a small file: of hundreds of ranks most of the time went there."""
    assert Scanner()._gate is Scanner()._gate


def test_a_gate_that_has_seen_many_words_still_remembers_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_MAX_KNOWN", 4)
    gate = Gate()
    for word in gate.words[:50]:
        assert not gate(b"...")
        assert all(
            any(n.encode() in word for n in pattern.needles) for pattern in gate(b"..." + word.upper())
        )
        assert gate(b"..." + word.upper()) and gate._patterns_of.cache_info().currsize <= 4


def test_a_line_of_another_shape_of_numbers_is_still_read() -> None:
    assert "nccl-version" in tags(b"NCCL version 2.20.5+cuda12.1")
    assert tags(b"NCCL version 2.9.6+cuda11.2")["nccl-version"]["version"] == "2.9.6"


def test_words_with_digits_open_the_gate_for_every_line_of_that_shape() -> None:
    assert "eaddrinuse" not in tags(b"x failed (errno: 11 - Resource temporarily unavailable)")
    assert "eaddrinuse" in tags(b"x failed (errno: 98 - Resource temporarily unavailable)")


def test_two_records_torn_into_one_line_are_both_seen() -> None:
    said = tags(
        b"n1:4:4 [0] NCCL INFO NET/IB : No device fon2:5:5 [0] NCCL INFO NET/IB : No device found."
        b"n1:4:4 [0] NCCL INFO Using network Socket"
    )
    assert {"ib-none", "using-network"} <= set(said)


def test_control_sequences_and_other_encodings_are_harmless() -> None:
    raw = (
        b"\x1b]0;title\x07\x1b[31mn1:4:4 [0] NCCL WARN Bootstrap : no socket interface found\x1b[0m\x00\xff\r"
    )
    text = clean(raw)
    assert "\x1b" not in text and "\x00" not in text and "\r" not in text
    assert "no-socket-interface" in tags(raw)
    assert clean(b"\x1b(B\x1b[1A\x1bPx\x1b\\ten \x1b]of title") == "ten of title"


def test_a_progress_bar_with_carriage_returns_is_one_line() -> None:
    raw = b"Map:  1%|  | 1/100 [00:01<01:39,\rMap: 70%|## | 70/100 [29:58<12:01, 1.2 it/s]"
    assert "\r" not in clean(raw)
    assert "progress" in tags(raw)


def test_of_a_line_without_end_only_head_and_tail_are_read() -> None:
    raw = b"x" * 3_000_000 + b" CUDA out of memory"
    assert len(clean(raw)) < 5_000
    assert "gpu-oom" in tags(raw)


def test_an_excerpt_shows_what_matched() -> None:
    text = "a" * 5_000 + " uncorrectable ECC error " + "b" * 5_000
    assert "uncorrectable ECC" in excerpt(text, 5_001)
    assert len(excerpt(text, 5_001)) < 400


def test_every_pattern_has_needles() -> None:
    for pattern in PATTERNS:
        assert pattern.needles and all(len(n) > 1 and n == n.lower() for n in pattern.needles), pattern.tag


@pytest.mark.alike
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.tag)
def test_a_needle_is_in_every_line_that_its_pattern_matches(pattern: Pattern) -> None:
    texts = st.from_regex(re.compile(pattern.text, re.ASCII), alphabet=st.characters(max_codepoint=126))

    @settings(max_examples=5, database=None, deadline=None, derandomize=True)
    @given(texts)
    def holds(text: str) -> None:
        assert any(needle in text.lower() for needle in pattern.needles)

    holds()


@pytest.mark.parametrize(
    "pattern, needles",
    [
        (r"exit code \d", ("exit code ",)),
        (r"(?:error|failed) ?: x", ("error: x", "error : x", "failed: x", "failed : x")),
        (r"colou?r \d+ of", ("color ", "colour ")),
        (r"(?:[A-Z]\w*(?:Error|Exit)):", ("error:", "exit:")),
        (r"(?:maybe)?(?!not)(?<=before) \d{0,3}sure{2,3}", ("sure",)),
        (r"a\.b\(\)|[Cc]losed", ("a.b()", "closed")),
        (r"\d+|word", ()),
    ],
)
def test_needles_of(pattern: str, needles: tuple[str, ...]) -> None:
    assert set(needles_of(pattern)) == set(needles)


def test_the_roles_of_tags_are_known() -> None:
    assert {role for row in TAGS.values() for role in row.roles} == set(ROLES)


def test_no_pattern_is_open_ended() -> None:
    for pattern in PATTERNS:
        assert not any(p in pattern.text for p in (".*", ".+", r"\S+", r"\S*", r"\w+", r"\w*")), pattern.tag


@pytest.mark.slow
def test_a_hostile_line_costs_little() -> None:
    """Backtracking shows as a regex that never ends; the test's own timeout would end it."""
    for pattern in PATTERNS:
        for needle in pattern.needles[:3]:
            for fill in (" ", "a", "0", "/", "[", "a.b/"):
                pattern.regex.search((needle + fill * 2048)[:2048])
                pattern.regex.search(((needle + fill) * 2048)[:2048])


def test_a_rank_names_itself_below_a_task_of_mpirun() -> None:
    assert head_of("[1,0]<stderr>:[rank3]:[E410 01:50:33.8 ProcessGroupNCCL.cpp:1895] x").rank == 3
    assert head_of("[1,2]<stderr>:ValueError: raised on rank 5").rank == 2
