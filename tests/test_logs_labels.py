"""Labels of any form: who printed a line is learnt from the file, and out of JSON records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ringup.logs.labels import Labels, front_of
from ringup.logs.read import Diagnosis, read_logs
from tests.logs_said import SAID

OWN_PREFIX = re.compile(r"(?m)^([\w-]+):(\d+):\d+ (?:\[\d+\] )?((?:\S+ )*?NCCL )")
"""NCCL's HOST:PID:TID [GPU]."""
OF_SEVERAL_HOSTS = [
    (rule, text)
    for rule, text in SAID
    if 1 < len({m[1] for m in OWN_PREFIX.finditer(text)}) < len(OWN_PREFIX.findall(text))
]
"""With a host that prints twice: what is another word on every line is no label."""
FORMS = (
    r"[\1] \3",
    r"\1: \3",
    r"<\1> \3",
    r"(\1, pid \2) \3",
    r"\1 | \3",
    r"host=\1 pid=\2 | \3",
    r"1767322345.123 [\1] \3",
    r"2026-01-02T03:04:05Z \1> \3",
)


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text + "\n", encoding="utf-8")
    return read_logs([str(log)])


@pytest.mark.parametrize("form", FORMS)
def test_nccl_lines_without_host_and_pid_belong_to_the_label_before_them(tmp_path: Path, form: str) -> None:
    assert len(OF_SEVERAL_HOSTS) > 10
    for rule, text in OF_SEVERAL_HOSTS:
        labelled = OWN_PREFIX.sub(form, text)
        assert [c.rule for c in diagnose(tmp_path, labelled).causes][:1] == [rule], labelled


@pytest.mark.parametrize("before", ["[node3] ", "[pod/train-worker-0/pytorch] ", "<n2> ", "gpu-a7> "])
def test_a_label_of_any_form_does_not_hide_the_beginning_of_a_message(tmp_path: Path, before: str) -> None:
    text = "  entrypoint       : True\n  min_nodes        : 2\n  max_nodes        : 2"
    found = diagnose(tmp_path, "\n".join(before + line for line in text.split("\n"))).causes
    assert [c.rule for c in found] == ["launcher-argument-misread"]


def test_a_loggers_json_records_are_read_as_the_lines_they_hold(tmp_path: Path) -> None:
    for rule, text in SAID:
        if rule == "node-rank-duplicate" and "machine_rank" in text:
            continue  # one host's name before both: one host that prints its settings twice
        records = [{"level": "INFO", "host": "n7", "message": line} for line in text.split("\n")]
        found = diagnose(tmp_path, "\n".join(map(json.dumps, records))).causes
        assert [c.rule for c in found][:1] == [rule], text


def test_a_record_tells_host_and_rank_and_holds_a_whole_traceback(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "/job/t.py", line 4, in step\nZeroDivisionError: no'
    record = {"severity": "ERROR", "hostname": "n7", "rank": 3, "msg": "step failed", "exc_info": trace}
    first = diagnose(tmp_path, json.dumps(record)).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("rank-raised-exception", (3,), ("n7",))
    assert "t.py:4" in first.text


def test_logfmt_lines_are_read_as_their_messages(tmp_path: Path) -> None:
    words = (
        "Traceback (most recent call last):",
        '  File \\"/job/t.py\\", line 4, in step',
        "ZeroDivisionError: no",
    )
    text = "\n".join(f'time="2026-11-23T10:00:01Z" level=error msg="{word}" rank=3 host=n7' for word in words)
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("rank-raised-exception", (3,), ("n7",))
    assert first.text.endswith("ZeroDivisionError: no at /job/t.py:4")


def test_what_is_no_json_or_says_nothing_stays_as_it_is(tmp_path: Path) -> None:
    for text in (
        "{" * 5000 + "}",
        '{"loss": 2.1, "lr": 0.1}',
        "{'loss': 2.1}",
        'msg="a',
        "loss=2.1 lr=0.1",
        '{"message": 3}',
        "{}",
    ):
        assert diagnose(tmp_path, text).causes == []


@pytest.mark.parametrize(
    "lines",
    [
        [f"[INFO] step {n}" for n in range(20)],
        [f"step-{n}: loss 2.{n}" for n in range(20)],
        [f"[{n}/20] loss 2.{n}" for n in range(20)],
        ["machine_rank: 0", "num_machines: 2", "machine_rank: 0", "num_machines: 2"],
        ["one line of words"],
    ],
)
def test_levels_steps_and_settings_are_no_labels(lines: list[str]) -> None:
    labels = Labels()
    labels.learn(lines)
    assert {labels.split(line)[0] for line in lines} == {""}


def test_a_label_that_names_a_rank_gives_it(tmp_path: Path) -> None:
    text = "\n".join(f"(node{r // 2}, rank {r}) starting" for r in range(4))
    text += "\n(node1, rank 3) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    text += "\n(node1, rank 3) giving up"
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("gpu-out-of-memory", (3,), ("node1",))


def test_the_rank_in_an_actors_name_is_no_host(tmp_path: Path) -> None:
    text = "\n".join(f"(PolicyWorker[rank={r}] pid=7{r}, ip=10.1.2.{r}) starting" for r in (3, 4) * 8)
    text += "\n(PolicyWorker[rank=3] pid=73, ip=10.1.2.3) CUDA out of memory. Tried to allocate 2.00 GiB."
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("gpu-out-of-memory", (3,), ("10.1.2.3",))


@pytest.mark.parametrize(
    "names", [("train2.py:88", "data.py:12"), ("trainer", "data"), ("src.train", "src.data2")]
)
def test_a_logger_or_a_line_of_code_before_a_message_is_no_host(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    train, data = names
    text = (
        f"[{data}] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n[{data}] retry\n"
    )
    first = diagnose(tmp_path, text + f"[{train}] giving up\n[{train}] exit").causes[0]
    assert (first.rule, first.nodes) == ("gpu-out-of-memory", ())
    steps = "\n".join(f"[{train}] step {n} loss 2.{n}" for n in (1, 2, 3))
    assert [c.severity for c in diagnose(tmp_path, text + steps).causes] == ["note"]


VIEWERS = {
    "cat -n": "{:6}\t{}",
    "less -N": "{:7} {}",
    "nl": "{:6}  {}",
    "gh run view --log": "train\tRun tests\t2026-11-27T10:00:00.1234567Z {1}",
}
SEEN = [
    "Starting 2 ranks",
    "Traceback (most recent call last):",
    '  File "/home/user/train.py", line 8, in <module>',
    "    main()",
    "RuntimeError: Expected all tensors to be on the same device",
]


@pytest.mark.parametrize("form", VIEWERS.values(), ids=VIEWERS)
def test_what_a_viewer_puts_in_front_of_each_line_is_no_part_of_it(tmp_path: Path, form: str) -> None:
    plain = diagnose(tmp_path, "".join(f"{line}\n" for line in SEEN)).causes[0]
    shown = "".join(form.format(number, line) + "\n" for number, line in enumerate(SEEN, 1))
    found = diagnose(tmp_path, shown).causes[0]
    assert (found.rule, found.confidence, found.text) == (plain.rule, plain.confidence, plain.text)
    assert [event.line for event in found.evidence] == [event.line for event in plain.evidence]


def test_numbers_of_a_table_are_its_own(tmp_path: Path) -> None:
    rows = [f"{2**n:12} {2**n // 4:12}  float  sum  -1  26.1  0.01  0.02  0" for n in range(3, 20)]
    assert front_of([row.encode() for row in rows]) is None


@pytest.mark.parametrize("around", ['"{}"', "    message: {}", "worker failed: task: {!r}"])
def test_a_text_with_escaped_ends_of_lines_is_read_line_by_line(tmp_path: Path, around: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 9, in <module>\n'
        "    torch.cuda.set_device(local_rank)\n"
        "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
    )
    escaped = text.replace("\n", "\\n") if "!r" not in around else text
    (tmp_path / "a.log").write_text("a line\n" + around.format(escaped) + "\n")
    (tmp_path / "b.log").write_text(text)
    names = [read_logs([str(tmp_path / name)]).causes[0].rule for name in ("a.log", "b.log")]
    assert names[0] == names[1]


FAILED = [
    "node7:58:58 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>",
    "",
    "node7:58:58 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    'node7:58:58 [0] NCCL INFO init "comm" failed, bootstrap.cc:89 -> 3',
]
TOLD = ["loading", "", "libnet: the channel 3 could not be opened: Invalid argument"]
SOUND = [
    "node7:58:58 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>",
    "",
    "node7:58:58 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
    "node7:58:61 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
]


def row(line: str) -> str:
    quoted = line.replace('"', '""')
    return f'2026-11-20T10:00:00.123Z,node7,"{quoted}"'


@pytest.mark.parametrize(
    "form",
    [
        row,
        "2026-11-20 10:00:00,123 - root - ERROR - {}".format,
        "ERROR - {}".format,
        "2026-11-20 10:00:00,123 INFO driver.py:33 {}".format,
    ],
    ids=["a collector's table", "logging", "a level", "a place in the code"],
)
@pytest.mark.parametrize(
    "lines, rule",
    [(FAILED, "interface-name-missing"), (TOLD, "unnamed-failure"), (SOUND, None)],
    ids=["failed", "told", "sound"],
)
def test_what_a_collector_adds_to_every_line_changes_no_answer(
    tmp_path: Path, form: Callable[[str], str], lines: list[str], rule: str | None
) -> None:
    (tmp_path / "a.log").write_text("\n".join(map(form, lines)) + "\n")
    found = read_logs([str(tmp_path / "a.log")])
    assert next((c.rule for c in found.causes if c.severity == "error"), None) == rule
