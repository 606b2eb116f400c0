"""
Bytes to events: the meaning of a line (its tag and fields) and its origin.

Pure: lines in, events out.  A line is decoded and matched only if it contains one of the patterns' words,
which the counting core finds.
"""

from __future__ import annotations

import functools
import html
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ringup.logs.grammar import bare
from ringup.logs.labels import Labels, owner_in, rank_in, unpacked, words_in
from ringup.logs.mentions import SETTINGS, is_mention, quotations, says_no
from ringup.logs.patterns import PATTERNS
from ringup.logs.patterns.forms import WRAPPING
from ringup.logs.patterns.tags import Pattern
from ringup.units import ESCAPES, LONGEST_LINE, grouped

LINE_BYTES = LONGEST_LINE
"""Bytes of one line that are read: its head and, of a longer one, its tail.  NCCL cuts lines at 1 KiB."""

DAY_S = 86400
"""`seconds_of` returns more if the line has a date."""

TEXT_CHARS = 300
"""Characters of a line that are stored as evidence."""


class Head(NamedTuple):
    """The prefixes of a message: its process and time."""

    host: str = ""
    pid: str = ""
    device: str = ""
    rank: int | None = None
    label: str = ""
    time_s: float | None = None

    @property
    def source(self) -> str:
        """Lines of the same source are one text: a rank's, else a label's or a host's."""
        return f"rank {self.rank}" if self.rank is not None else self.label or self.host


@dataclass(frozen=True, slots=True)
class Event:
    """One message: `file` is an index into the evidence's files, `line` counts from 1."""

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
        """A field's text, "" if the pattern has no such field."""
        return self.fields.get(name) or ""

    @property
    def place(self) -> tuple[int, int]:
        return self.file, self.line

    def number(self, name: str) -> int:
        """A field as a number, 0 if the pattern has no such field."""
        text = self.fields.get(name) or ""
        return int(text) if text.lstrip("-").isdigit() and len(text) < 19 else 0


def ranks_of(events: Iterable[Event]) -> set[int]:
    """The ranks that printed these lines, as far as known."""
    return {event.rank for event in events if event.rank is not None}


def by_rank(events: Iterable[Event]) -> dict[int, Event]:
    """The last of these lines of each rank."""
    return {event.rank: event for event in events if event.rank is not None}


_CONTROL = re.compile(rf"{ESCAPES.pattern}|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ESCAPED = re.compile(r"&(?:lt|gt|amp|quot|#39|#x27);")
_MARKDOWN = re.compile(r"\\([_*#\[\]])")
_COLOUR_AS_TEXT = re.compile(r"(?:\^\[|\\(?:x1b|033|e|u001b))?\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""A colour whose escape character a page, a journal or a quoting program made text of, or left out."""
_REPEATED = re.compile(r" {0,4}\[repeated \d{1,6}x across cluster\].{0,200}$")
_CLOCK = re.compile(
    r"(?:(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _])?"
    r"(?<!\d)(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?"
)
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905
_SYSLOG = re.compile(
    rf"\b(?P<month>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d{{1,2}}) "
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>\.\d{1,9})?"
)
_GLOG = re.compile(r"\[?[EWIF](?P<date>\d{3,4}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>\.\d+)?")
_OF_A_NODE = re.compile(
    r"\[(?: {0,8}\d{1,9}\.\d{1,9}|[A-Z]\w\w [A-Z]\w\w [ \d]\d [\d:]{8} \d{4})\] "
    r"|(?:slurmstepd(?:-[\w.-]{1,63})?|srun|NVRM|kernel): "
)
"""Beginning of a line of the kernel (dmesg, `dmesg -T`) or of Slurm: no rank wrote it."""
_NCCL = re.compile(
    r"(?<![\w.-])(?!\d{1,2}:\d\d:\d\d )(?P<host>[A-Za-z0-9][\w.-]{0,80}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<device>-?\d+)\] )?(?=.{0,160}(?:NCCL|INFO|WARN|NET/OFI) )"
)
_RANK = re.compile(
    r"\[(?:[Rr]ank|RANK) ?(\d{1,7})\]|\[PG [^\]]{0,80}?Rank (\d{1,7})\]|\[(?:\d+,)?(\d{1,7})\]<std"
    r"|\(\w{1,60}(?:\[rank=| rank=)(\d{1,7})\b"
    r"|\bon rank:? (\d{1,7})\b|\[trainer(\d{1,7})\]:|^[Rr]ank (\d{1,7})(?::| of \d)"
)
_LOCAL = re.compile(r"\[default(\d{1,4})\]:")
_RAY = re.compile(
    r"\((?P<name>\w+)(?:\[rank=\d{1,7}\]| rank=\d{1,7})? pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?\)"
)
_STAMP = re.compile(
    r"[\s|]*(?:\d{13}\s)?\[?\d{4}-\d\d-\d\d(?:[T ]|, )[\d:.,+Z-]{8,40}(?: UTC)?\]?"
    r"(?: std(?:out|err) [FP] | \{[\w./]{1,80}:\d{1,6}\} [A-Z]{4,8} - (?:\[[\w.-]{1,63}\](?= ))?)?[\s|]*"
)
_SECONDS = re.compile(
    r"\[?1\d{9}\.\d{1,9}\]? |\[ {0,8}\d{1,9}\.\d{6}\] |(?:#\d{1,4} )?\d{1,5}\.\d{2,3} (?=[A-Za-z/\[(<' ])"
)
"""Seconds since 1970 or, in the kernel's log, since its start."""
_TASK = re.compile(r"\s*(\d{1,6}): ")
_SRUN = re.compile(r"(?:srun|slurmstepd)\S{0,60}: error: ([A-Za-z][\w.-]{0,80}): task")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,62}): ?")
_POD = re.compile(
    r"(?:pod/(?P<host>[\w.-]{1,80})|(?P<row>[a-z0-9.]{1,60}-[a-z0-9.-]{1,80}) {2,60}\d{1,3}/\d{1,3} ) "
)
"""Beginning of a pod's row or event from kubectl."""
_NOT_A_HOST = re.compile(
    r"(?i).*(?:error|exception|warning|warn|info|note|hint|debug|fatal|usage|traceback)$|.*\.(?:py"
    r"|sh|cc|cu|cpp|h|c|so|yaml|json|log)(?::\d.*)?$"
    r"|\d+|\d\d?(?::\d\d){1,2}(?:[.,]\d+)?|(?:bash|sh|zsh|ssh|srun|sbatch|slurmstepd(?:-[\w.-]+)?|python\d*|torchrun|deepspeed|accelerate|mpirun"
    r"|pdsh\S*|[a-z-]{1,40}-cli|line|file|rank\d*|step\d*|epoch\d*|ids?|gpu\d*"
    r"|mlx5|nvrm|iter\d*|utf-8|http|https|tcp|udp|ipv[46]|ucx|cuda\d*|nccl\d*|net|e\d+|w\d+|i\d+"
    r"|f\d+|v\d+|(?:engine|worker|\w{1,40}_)(?:\w{0,20}_)?(?:tp|dp|pp|ep)\d{1,6}|e[a-z]\d{4}|\d{4}-\d\d-.*|pid|host|time|exitcode|sha\d+|md5|fp\d+|bf\d+|int\d+)"
)
_LABEL = re.compile(
    r"\s*(?:\[\d+(?:,\d+)?\]<std\w{3}>:|\[(?:[Rr]ank|default|trainer) ?\d+(?:\|\d+)?\]:"
    r"|\(\w+ pid=\d+(?:, ip=[\d.]+)?\)|[A-Z][a-z]{2} [ \d]\d [\d:]{8} \S{1,80} \S{1,80}\[\d+\]:"
    r"|\[std(?:out|err)\]|\[[\w.-]{1,63}\] (?:out|err):|[\w./-]{1,80} {0,8}\||\||>|\d{1,6}:|\[\d{1,7}\]"
    r"|\[[\w.-]{1,63}:\d+\]:"
    r"|\[?[EWIF]\d{3,4} [\d:.]{8,18} (?:\d+ )?[\w/.-]{1,120}:\d+\]|\[(?:INFO|WARNING|ERROR|DEBUG)\]"
    r"|\[[\w.]{1,80}:\d+:\w{1,80}\]|- [\w.-]{1,60} - (?:INFO|WARNING|ERROR|DEBUG|CRITICAL) -"
    r"|(?:INFO|WARNING|ERROR|DEBUG)(?: \d\d-\d\d [\d:]{8} \[?[\w./]{1,80}:\d+\]|:| -)?)(?: |(?=\S))"
)
_DIGITS = b"0123456789"
_QUOTES = str.maketrans("‘’“”", "''\"\"")
"""An editor or a chat makes others of a program's quotation marks."""
_MAX_KNOWN = 20_000


def clean(raw: bytes) -> str:
    """
    A line as text without terminal control sequences; of a long one its head and tail.

    >>> clean(b"a\\x1b[31mred\\x1b[0m\\r")
    'ared'
    >>> clean("error: “no such file”".encode())
    'error: "no such file"'
    >>> clean(b"[1;36m(Engine pid=271)[0;0m WARN^[[0m")
    '(Engine pid=271) WARN'
    """
    if len(raw) > LINE_BYTES:
        raw = raw[: LINE_BYTES * 3 // 4] + b" ... " + raw[-LINE_BYTES // 4 :]
    text = bare(raw).decode("utf-8", "replace")
    if "&" in text and _ESCAPED.search(text):
        text = html.unescape(text)
    if "[0m" in text or "[0;0m" in text:
        text = _COLOUR_AS_TEXT.sub("", text)
    if "\\_" in text:
        text = _MARKDOWN.sub(r"\1", text)
    if text.startswith("│"):
        text = text[1:].rstrip("│ \r").removeprefix(" ")
    if not text.isascii():
        text = text.translate(_QUOTES)
    if "[repeated " in text:
        text = _REPEATED.sub("", text)
    text = _CONTROL.sub("", text.rstrip("\0").replace("\0", " "))  # /proc/PID/cmdline has NUL for blank
    return text.rstrip().replace("\r", " ").replace("\n", " ")


def looks_like_host(name: str) -> bool:
    """
    Whether a word before a colon can be a host's name rather than a program's or an error's.

    >>> looks_like_host("node1.local"), looks_like_host("RuntimeError"), looks_like_host("src.step2")
    (True, False, False)
    """
    if name == "localhost":
        return True
    first = name.partition(".")[0]  # of a module it has no number
    return any(c.isdigit() or c == "-" for c in first) and not _NOT_A_HOST.fullmatch(name)


def short_name(host: str) -> str:
    return host.split(".")[0]


def is_syslog(text: str) -> bool:
    """Whether a line has its date as syslog and `dmesg -T` write it."""
    return bool(_SYSLOG.search(text[:120]))


def seconds_of(text: str) -> float | None:
    """Seconds of the first clock time in a line's head, from the year's start if it has a date."""
    head = text[:120]
    if head.count(":") < 2:
        return None
    if match := _GLOG.search(head):
        date = match["date"].zfill(4)
        days = int(date[:2]) * 31 + int(date[2:])
    elif match := _SYSLOG.search(head):
        days = (_MONTHS.index(match["month"]) + 1) * 31 + int(match["day"])
    elif match := _CLOCK.search(head):
        days = int(match["month"]) * 31 + int(match["day"]) if match["month"] else 0
    else:
        return None
    clock = int(match["h"]) * 3600 + int(match["m"]) * 60 + int(match["s"])
    return float(days * DAY_S) + clock + float((match["f"] or "").replace(",", ".") or 0)


def texts_of(raw: bytes) -> list[str]:
    """The lines in a line: one, or those in a logger's record."""
    return unpacked(clean(raw))


def begins_a_record(text: str) -> bool:
    """
    Whether a line begins with a record's own stamp (torch, the kernel, Slurm): it goes on with no other.

    >>> begins_a_record("E1127 13:25:39.151000 6064 torch/distributed/api.py:986] failed (exitcode: -11)")
    True
    """
    return bool(_GLOG.search(text[:120]) or _OF_A_NODE.match(text))


def unstamped(text: str) -> str:
    stamp = _STAMP.match(text) or _SECONDS.match(text)
    return text[stamp.end() :] if stamp else text


def actor_of(text: str) -> str:
    """The pid in Ray's label of a line, "" without one."""
    label = _RAY.match(text)
    return label["pid"] if label else ""


NO_LABELS = Labels()


def head_of(text: str, labels: Labels = NO_LABELS) -> Head:
    """The origin of a line: host, pid, device and rank from NCCL's own prefix and from launchers' labels."""
    host, pid, device, label = "", "", "", ""
    rank: int | None = None
    start = unstamped(text[:400])
    if task := _TASK.match(start):
        label, start = task[1], start[task.end() :]
    elif (named := _HOST.match(start)) and looks_like_host(named["host"]) and not _NCCL.match(start):
        host = label = named["host"]
    elif pod := _POD.match(start):
        host = label = pod["host"] or pod["row"]
    elif not _LOCAL.match(start):
        label, start = labels.split(start)
        host, rank = owner_in(label) or next(filter(looks_like_host, words_in(label)), ""), rank_in(label)
        label = label if host else ""  # a rank, a logger or a line of code is in any stream
    # Most lines contain none of the words of these forms: searching for words is much quicker.
    is_nccl = "NCCL " in start or "INFO " in start or "WARN " in start or "NET/OFI " in start
    if is_nccl and (nccl := _NCCL.search(start)):
        host, pid, device = short_name(nccl["host"]), nccl["pid"], nccl["device"] or ""
    has_rank = "ank" in start or "RANK" in start or "<std" in start or "[trainer" in start
    if has_rank and (found := _RANK.search(start)):
        # A task of mpirun may be a launcher, whose ranks name themselves.
        own = _RANK.search(start, found.end()) if found[3] else None
        found = own if own and (own[1] or own[2]) else found
        rank = int(next(g for g in found.groups() if g))
    if not pid and (ray := _RAY.search(start)):
        host, pid = ray["ip"] or host, ray["pid"]
    if srun := _SRUN.search(start):
        host = srun[1]
    if not label and (local := _LOCAL.match(start)):
        label = f"local{local[1]}"
    return Head(host, pid, device, rank, label, seconds_of(text))


def body_of(text: str, labels: Labels) -> str:
    """
    A line without the prefixes of launchers and log collectors, for patterns on a message's beginning.

    >>> body_of("worker-0: [rank3]:   exitcode  : -9", NO_LABELS)
    '  exitcode  : -9'
    """
    for _ in range(4):
        match = _LABEL.match(text) or _STAMP.match(text) or _SECONDS.match(text)
        if not match:
            match = _HOST.match(text)
            if not match or not looks_like_host(match["host"]):
                label, text = labels.split(text)
                if not label:
                    return text
                continue
        text = text[match.end() :]
    return text


MOST_LAYERS = 6


def message_of(text: str, labels: Labels = NO_LABELS) -> str:
    """
    A line's message: without the labels, clocks and severities of programs that passed it on.

    >>> message_of("22: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error")
    'nvidia-container-cli: ldcache error'
    >>> message_of("[rank3]:[E410 01:50:33.8 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank 3] watchdog")
    'watchdog'
    """
    for _ in range(MOST_LAYERS):
        body = body_of(text, labels)
        match = WRAPPING.match(body)
        rest = body[match.end() :] if match else body
        if rest == text:
            return text
        text = rest
    return text


class Gate:
    """The patterns that a line may contain, by its words."""

    def __init__(self, patterns: Iterable[Pattern] = PATTERNS) -> None:
        by_word: dict[bytes, list[Pattern]] = {}
        self._order: dict[int, int] = {}
        for number, pattern in enumerate(patterns):
            self._order[id(pattern)] = number
            for needle in pattern.needles:
                by_word.setdefault(needle.encode(), []).append(pattern)
        self.words = [*by_word]
        """In lower case; "" if it contains no pattern, unless its collector escaped some by & or \\."""
        self._patterns = [*by_word.values()]
        self._patterns_of = functools.lru_cache(_MAX_KNOWN)(self._with_words)
        self._likely: dict[bytes, list[tuple[int, bytes]]] = {}

    def __call__(self, line: bytes, words: bytes | None = None) -> tuple[Pattern, ...]:
        """The patterns worth trying on a line, mostly none; `words`: its words' numbers, two bytes each."""
        return self._patterns_of(self._words_in(line) if words is None else words)

    def _with_words(self, words: bytes) -> tuple[Pattern, ...]:
        numbers = (n for n in memoryview(words).cast("H") if n < len(self._patterns))
        every = {id(pattern): pattern for n in numbers for pattern in self._patterns[n]}
        return tuple(every[i] for i in sorted(every, key=self._order.__getitem__))

    @functools.cached_property
    def _by_start(self) -> dict[bytes, list[tuple[bytes, int, bytes]]]:
        """Words without and with their digits, by their first three bytes, of which a line has few."""
        bare = (word.translate(None, _DIGITS) for word in self.words)
        return grouped((plain[:3], (plain, n, self.words[n])) for n, plain in enumerate(bare))

    def _words_in(self, line: bytes) -> bytes:
        """The numbers of the words in a line, and in text that its collector escaped."""
        if len(line) > 16 * LINE_BYTES:
            line = line[: 8 * LINE_BYTES] + b" " + line[-8 * LINE_BYTES :]
        low = line.lower()
        if b"&" in line or b"\\" in line or b"\0" in line:
            low += "\n".join(texts_of(line)).lower().encode()
        shape = low.translate(None, _DIGITS)  # thousands of lines differ only in their numbers
        likely = self._likely.get(shape)
        if likely is None:
            starts = {shape[at : at + size] for size in (1, 2, 3) for at in range(len(shape))}
            words = (one for start in self._by_start.keys() & starts for one in self._by_start[start])
            likely = [(n, word) for plain, n, word in words if plain in shape]
            if len(self._likely) >= _MAX_KNOWN:
                self._likely.clear()
            if len(shape) <= LINE_BYTES:
                self._likely[shape] = likely
        return array("H", [number for number, word in likely if word in low]).tobytes()


@functools.cache
def gate() -> Gate:
    """The only gate of a process: making one costs as much as reading a small file."""
    return Gate()


def matches(
    text: str, patterns: Iterable[Pattern], labels: Labels = NO_LABELS, *, is_code: bool = False
) -> Iterator[tuple[str, dict[str, str], int]]:
    """Tag, fields and place of every pattern that fits the text, except in mentions; each tag once."""
    said: set[str] = set()
    body: str | None = None
    quoted: list[tuple[int, int]] | None = None
    for pattern in patterns:
        if pattern.tag in said:
            continue
        match = pattern.regex.search(text)
        if not match and pattern.anchored:
            body = body_of(text, labels) if body is None else body
            match = pattern.regex.search(body)
        if match is None:
            continue
        if pattern.tag not in SETTINGS:
            if body is None:
                body = body_of(text, labels)
            if quoted is None:
                quoted = [(0, len(text))] if is_code or is_mention(body) else quotations(text)
            while match and (
                says_no(match.string, match.end())
                or any(begin <= match.start() and match.end() <= end for begin, end in quoted)
            ):
                match = pattern.regex.search(match.string, match.end())
            if match is None:
                continue
        said.add(pattern.tag)
        yield pattern.tag, {k: v for k, v in match.groupdict().items() if v is not None}, match.start()


def excerpt(text: str, place: int) -> str:
    """The part of a line to show: all of it, or the text around the match."""
    if len(text) <= TEXT_CHARS:
        return text
    begin = max(0, min(place - 60, len(text) - TEXT_CHARS))
    end = begin + TEXT_CHARS
    return ("..." if begin else "") + text[begin:end] + ("..." if end < len(text) else "")
