"""
Bytes to events: what a line says (its tag and fields) and who said it.

Pure: lines in, events out.  A line is decoded and matched only when it holds one of the
wordings' words; its shape (the line without digits) is remembered, so a training loop's
thousands of alike lines cost one dictionary look-up each.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ringup.logs.wordings import (
    Wording,
    frameworks,
    nccl,
    nccl_faults,
    rdma_tools,
    rendezvous,
    schedulers,
    system,
    torch,
)

LINE_BYTES = 2048
"""What is looked at of one line: its head and, of a longer one, its tail.  NCCL cuts lines at 1 KiB."""

TEXT_CHARS = 300
"""What is kept of a line as evidence."""

WORDINGS: tuple[Wording, ...] = (
    *nccl.SETUP,
    *nccl_faults.FAULTS,
    *rendezvous.LAUNCH,
    *rendezvous.STORE,
    *rendezvous.GLOO,
    *torch.WATCHDOG,
    *torch.TRAINING,
    *torch.ELASTIC,
    *system.SHELL,
    *system.CUDA,
    *system.KERNEL,
    *schedulers.TAKEN_AWAY,
    *frameworks.FRAMEWORKS,
    *rdma_tools.LISTED,
)


class Head(NamedTuple):
    """What stands in front of a message: who printed it and when."""

    host: str = ""
    pid: str = ""
    device: str = ""
    rank: int | None = None
    label: str = ""
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing said once: `file` is an index into the story's files, `line` counts from 1."""

    tag: str
    file: int
    line: int
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    pid: str = ""
    device: str = ""
    rank: int | None = None
    label: str = ""
    time_s: float | None = None

    def __getitem__(self, name: str) -> str:
        """A field's text, "" where the wording did not carry it."""
        return self.fields.get(name) or ""

    def number(self, name: str) -> int:
        """A field as a number, 0 where the wording did not carry it."""
        text = self.fields.get(name) or ""
        return int(text) if text.lstrip("-").isdigit() and len(text) < 19 else 0


_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_ESCAPED = re.compile(r"&(?:lt|gt|amp|quot|#39|#x27);")
_REPEATED = re.compile(r" {0,4}\[repeated \d{1,6}x across cluster\].{0,200}$")
_CLOCK = re.compile(
    r"(?:(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _])?"
    r"(?<!\d)(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?"
)
_GLOG = re.compile(r"\[?[EWIF](?P<date>\d{3,4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>\.\d+)?")
_NCCL = re.compile(
    r"(?<![\w.-])(?!\d{1,2}:\d\d:\d\d )(?P<host>[A-Za-z0-9][\w.-]{0,80}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<device>-?\d+)\] )?(?=.{0,160}(?:NCCL|INFO|WARN|NET/OFI) )"
)
_RANK = re.compile(
    r"\[(?:[Rr]ank|RANK) ?(\d{1,7})\]|\[PG [^\]]{0,80}?Rank (\d{1,7})\]|\[\d+,(\d{1,7})\]<std|\bon rank:? "
    r"(\d{1,7})\b|\[trainer(\d{1,7})\]:"
)
_LOCAL = re.compile(r"\[default(\d{1,4})\]:")
_RAY = re.compile(r"\((?P<name>\w+) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?\)")
_STAMP = re.compile(
    r"[\s|]*(?:\d{13}\s)?\[?\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{8,40}\]?(?: std(?:out|err) [FP] )?[\s|]*"
)
_TASK = re.compile(r"\s*(\d{1,6}): ")
_SRUN = re.compile(r"(?:srun|slurmstepd)\S*: error: ([A-Za-z][\w.-]*): task")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,62}): ?")
_NOT_A_HOST = re.compile(
    r"(?i).*(?:error|exception|warning|warn|info|note|hint|debug|fatal|usage|traceback)$|.*\.(?:py"
    r"|sh|cc|cu|cpp|h|c|so|yaml|json|log)$"
    r"|\d+|(?:bash|sh|zsh|ssh|srun|sbatch|slurmstepd|python\d*|torchrun|deepspeed|accelerate|mpirun"
    r"|pdsh\S*|line|file|rank\d*|step\d*|epoch\d*|ids?|gpu\d*"
    r"|mlx5|nvrm|iter\d*|utf-8|http|https|tcp|udp|ipv[46]|ucx|cuda\d*|nccl\d*|net|e\d+|w\d+|i\d+"
    r"|f\d+|v\d+|pid|host|time|exitcode|sha\d+|md5|fp\d+|bf\d+|int\d+)"
)
_LABEL = re.compile(
    r"\s*(?:\[\d+,\d+\]<std\w{3}>:|\[(?:[Rr]ank|default|trainer) ?\d+(?:\|\d+)?\]:"
    r"|\(\w+ pid=\d+(?:, ip=[\d.]+)?\)|[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S{1,80} \S{1,80}\[\d+\]:"
    r"|\[std(?:out|err)\]|\[[\w.-]{1,63}\] (?:out|err):|[\w./-]{1,80} {0,8}\||\||>|\d{1,6}:|\[\d{1,7}\]"
    r"|\[[\w.-]{1,63}:\d+\]:"
    r"|\[?[EWIF]\d{3,4} [\d:.]{8,18} (?:\d+ )?[\w/.-]{1,120}:\d+\]|\[(?:INFO|WARNING|ERROR|DEBUG)\]"
    r"|\[[\w.]{1,80}:\d+:\w{1,80}\]"
    r"|(?:INFO|WARNING|ERROR|DEBUG)(?: \d\d-\d\d [\d:]{8} \[?[\w./]{1,80}:\d+\]|:)?)(?: |(?=\S))"
)
_DIGITS = b"0123456789"
_MAX_SHAPES = 20_000


def clean(raw: bytes) -> str:
    """
    A line as text without terminal control sequences; of a long one its head and tail.

    >>> clean(b"a\\x1b[31mred\\x1b[0m\\r")
    'ared'
    """
    if len(raw) > LINE_BYTES:
        raw = raw[: LINE_BYTES * 3 // 4] + b" ... " + raw[-LINE_BYTES // 4 :]
    text = raw.decode("utf-8", "replace")
    if text.startswith('{"log":"'):
        text = _of_docker(text)
    if "&" in text and _ESCAPED.search(text):
        text = html.unescape(text)
    if text.startswith("│"):
        text = text[1:].rstrip("│ \r").removeprefix(" ")
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    text = _CONTROL.sub("", text)
    return text.rstrip("\r\n").replace("\r", " ")


def _of_docker(text: str) -> str:
    """The message in a record of Docker's json-file driver; the record itself where it is no JSON."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    message = record.get("log") if isinstance(record, dict) else None
    return message.rstrip("\n") if isinstance(message, str) else text


def looks_like_host(name: str) -> bool:
    """
    Whether a word before a colon can be a host's name rather than a program's or an error's.

    >>> looks_like_host("node1"), looks_like_host("RuntimeError"), looks_like_host("train.py")
    (True, False, False)
    """
    if name == "localhost":
        return True
    return any(c.isdigit() or c == "-" for c in name) and not _NOT_A_HOST.fullmatch(name)


def seconds_of(text: str) -> float | None:
    """Seconds of the first clock time in a line's head, from the year's start where the date is there."""
    head = text[:120]
    match = _GLOG.search(head)
    if match:
        date = match["date"].zfill(4)
        days = int(date[:2]) * 31 + int(date[2:])
    else:
        match = _CLOCK.search(head)
        if not match:
            return None
        days = int(match["month"]) * 31 + int(match["day"]) if match["month"] else 0
    clock = int(match["h"]) * 3600 + int(match["m"]) * 60 + int(match["s"])
    return days * 86400.0 + clock + float((match["f"] or "").replace(",", ".") or 0)


def head_of(text: str) -> Head:
    """Who printed a line: host, pid, device and rank from NCCL's own prefix and from launchers' labels."""
    host, pid, device, label = "", "", "", ""
    rank: int | None = None
    start = text[:400]
    stamp = _STAMP.match(start)
    if stamp:
        start = start[stamp.end() :]
    match = _TASK.match(start)
    if match:
        label, start = match[1], start[match.end() :]
    else:
        match = _HOST.match(start)
        if match and looks_like_host(match["host"]) and not _NCCL.match(start):
            host = label = match["host"]
    match = _NCCL.search(start)
    if match:
        host, pid, device = match["host"].split(".")[0], match["pid"], match["device"] or ""
    match = _RANK.search(start)
    if match:
        rank = int(next(g for g in match.groups() if g))
    match = _RAY.search(start)
    if match and not pid:
        host, pid = match["ip"] or host, match["pid"]
    match = _SRUN.search(start)
    if match:
        host = match[1]
    match = _LOCAL.match(start)
    if match and not label:
        label = f"local{match[1]}"
    return Head(host, pid, device, rank, label, seconds_of(text))


def body_of(text: str) -> str:
    """
    A line without what launchers and log collectors put in front, for patterns on a message's beginning.

    >>> body_of("worker-0: [rank3]:   exitcode  : -9")
    '  exitcode  : -9'
    """
    for _ in range(4):
        match = _LABEL.match(text) or _STAMP.match(text)
        if not match:
            match = _HOST.match(text)
            if not match or not looks_like_host(match["host"]):
                return text
        text = text[match.end() :]
    return text


_Numbered = tuple[Wording, tuple[bytes, ...]]
"""A wording, and its words with digits."""
_Found = tuple[tuple[Wording, ...], tuple[_Numbered, ...], "re.Pattern[bytes] | None"]
"""For lines of one shape: what is worth trying, what is if such a word is there, and what finds any such."""


def _any_of(words: Iterable[bytes]) -> re.Pattern[bytes] | None:
    """What finds any of these words; None where there are none."""
    parts = sorted({re.escape(word) for word in words})
    return re.compile(b"|".join(parts)) if parts else None


class Gate:
    """Which wordings a line may hold, by the words in it; remembered by the line's shape."""

    def __init__(self, wordings: Iterable[Wording] = WORDINGS) -> None:
        by_needle: dict[bytes, list[Wording]] = {}
        self._order: dict[int, int] = {}
        for number, wording in enumerate(wordings):
            self._order[id(wording)] = number
            for needle in wording.needles:
                by_needle.setdefault(needle.encode(), []).append(wording)
        self._plain: list[tuple[bytes, tuple[Wording, ...]]] = []
        self._digits: list[tuple[bytes, tuple[Wording, ...]]] = []
        for word, found in by_needle.items():
            has_digit = any(b in _DIGITS for b in word)
            (self._digits if has_digit else self._plain).append((word, tuple(found)))
        self._seen: dict[bytes, _Found] = {}

    def __call__(self, line: bytes) -> tuple[Wording, ...]:
        """The wordings worth trying on this line; empty for nearly every line."""
        shape = line.translate(None, _DIGITS) if len(line) <= LINE_BYTES else line[: LINE_BYTES // 2]
        found = self._seen.get(shape)
        if found is None:
            if len(self._seen) >= _MAX_SHAPES:
                self._seen.clear()
            found = self._seen[shape] = self._look(line)
        sure, numbered, probe = found
        if probe is None:
            return sure
        low, is_cut = line.lower(), len(line) > LINE_BYTES
        if not is_cut and not probe.search(low):
            return sure
        more = (w for w, words in numbered if is_cut or any(word in low for word in words))
        return self._ordered((*sure, *more))

    def _look(self, line: bytes) -> _Found:
        """Words with digits ("errno: 98") may be there when their letters are: the shape has no digits."""
        if len(line) > 16 * LINE_BYTES:
            line = line[: 8 * LINE_BYTES] + b" " + line[-8 * LINE_BYTES :]
        low = line.lower()
        bare = low.translate(None, _DIGITS)
        sure = {id(w): w for needle, wordings in self._plain if needle in low for w in wordings}
        perhaps: dict[int, _Numbered] = {}
        for needle, wordings in self._digits:
            if needle.translate(None, _DIGITS) in bare:
                for w in wordings:
                    if id(w) not in sure:
                        perhaps[id(w)] = (w, (*perhaps.get(id(w), (w, ()))[1], needle))
        numbered = tuple(perhaps.values())
        return self._ordered(sure.values()), numbered, _any_of(w for _, words in numbered for w in words)

    def _ordered(self, wordings: Iterable[Wording]) -> tuple[Wording, ...]:
        return tuple(sorted(wordings, key=lambda w: self._order[id(w)]))


@functools.cache
def gate() -> Gate:
    """The one gate of a process: to make one, and to look at a shape first, costs as much as a small file."""
    return Gate()


def matches(text: str, wordings: Iterable[Wording]) -> Iterator[tuple[str, dict[str, str], int]]:
    """Tag, fields and place of every wording that fits the text; each tag once."""
    said: set[str] = set()
    body: str | None = None
    for wording in wordings:
        if wording.tag in said:
            continue
        match = wording.pattern.search(text)
        if not match and wording.anchored:
            body = body_of(text) if body is None else body
            match = wording.pattern.search(body)
        if match:
            said.add(wording.tag)
            yield wording.tag, {k: v for k, v in match.groupdict().items() if v is not None}, match.start()


def excerpt(text: str, place: int) -> str:
    """The part of a line worth showing: all of it, or what surrounds the match."""
    if len(text) <= TEXT_CHARS:
        return text
    begin = max(0, min(place - 60, len(text) - TEXT_CHARS))
    return (
        ("..." if begin else "")
        + text[begin : begin + TEXT_CHARS]
        + ("..." if begin + TEXT_CHARS < len(text) else "")
    )
