"""
Prefixes of a program's own text: labels of any form, learnt from the file, and JSON records.

Pure.  A form is accepted if most lines at the file's beginning have it; launchers' usual forms are known
without learning (`lines.head_of`).
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

MOST_LINES = 400
LONGEST_LABEL = 160
SHARE = 0.75
FEW_LINES = 8
"""In a file with fewer lines, all must have the form."""

_FORMS = (
    re.compile(r"\s?\[(?P<label>[^\s\[\]][^\[\]]{0,62})\]:? ?"),
    re.compile(r"\s?<(?P<label>[^\s<>][^<>]{0,62})>:? ?"),
    re.compile(r"\s?\((?P<label>[^\s()][^()]{0,62})\):? ?"),
    re.compile(r"\s?(?P<label>(?=[\w./@-]{0,62}[\d-])[\w./@-]{1,63}) ?(?:: |\| ?|> ?)"),
    re.compile(r"\s?(?P<label>(?:[A-Za-z_]\w{0,30}=[^\s|=,]{1,63}[ ,]{1,2}){1,4})\|? ?"),
    re.compile(r"(?P<label>(?=[A-Za-z][\w.-]{0,40}\d)[\w.-]{2,63}) "),
)
_LEVEL = re.compile(
    r"(?i)(?:trace|debug|info|note|notice|warn(?:ing)?|err(?:or)?|fatal|crit(?:ical)?|std(?:out|err)|c10d|nccl|line|file"
    r"|(?:step|iter|iteration|epoch|batch|loss|lr|ep|it|train|val|test|eval)[\W_]{0,3}[\d/]{0,20}"
    r"|(?-i:[EWIF])\d.{0,80}|[\W\dTZ]{1,80})"
)
"""Words for a severity or a step, not for a process; and clocks."""
_RANK = re.compile(r"(?i)(?<![a-z_])(?:global[_-]?)?(?:rank|rk|r)[ =:_-]{0,3}(\d{1,6})\b")
_OWNER = re.compile(r"(?i)\b(?:host(?:name)?|node(?:name)?|pod(?:[_-]?name)?|server)[=:] ?([\w.-]{1,63})")
_SPLIT = re.compile(r"[\s,/|=@()\[\]]+")

_PAIR = re.compile(r'([\w.@-]{1,40})=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))(?:\s+|$)')
MOST_PAIRS = 40
_ESCAPE = re.compile(r"\\(.)")

_TEXT_KEYS = "message msg log text @message MESSAGE textPayload data event body line".split()  # noqa: SIM905
_MORE_KEYS = ("exc_info", "exception", "traceback", "stack_trace", "stack", "error", "err")
_OWNER_KEYS = ("host", "hostname", "node", "node_name", "pod", "pod_name", "_HOSTNAME", "instance")
_RANK_KEYS = ("rank", "global_rank", "RANK")


class Labels:
    """The form of label of a file's lines, once it is known."""

    def __init__(self) -> None:
        self._form: re.Pattern[str] | None = None
        self._seen: dict[re.Pattern[str], Counter[str]] = {form: Counter() for form in _FORMS}
        self._lines = 0

    @property
    def learning(self) -> bool:
        """Whether the file's beginning is not complete yet."""
        return self._lines < MOST_LINES

    def learn(self, lines: Iterable[str]) -> None:
        """Take lines, without their time stamps."""
        for text in filter(str.strip, lines):
            self._lines += 1
            for form, labels in self._seen.items():
                match = form.match(text)
                if match and _of_somebody(match):
                    labels[match["label"]] += 1
        best = max(self._seen, key=lambda form: self._seen[form].total())
        labels = self._seen[best]
        few = self._lines < FEW_LINES
        # A label repeats: a word that differs on every line is the message.
        repeats = len(labels) < labels.total() if few else 2 * len(labels) <= labels.total()
        self._form = best if repeats and labels.total() >= self._lines * (1 if few else SHARE) else None

    def split(self, text: str) -> tuple[str, str]:
        """A line's label, "" without one of the learnt form, and the rest."""
        match = self._form.match(text) if self._form else None
        if match is None or not _of_somebody(match):
            return "", text
        return match["label"].strip(" ,"), text[match.end() :]


_NUMBER = re.compile(rb" {0,10}(\d{1,8})[\t ]")
_NUMBERED = (
    re.compile(rb" {0,10}\d{1,8}\t"),
    re.compile(rb" {0,10}\d{1,8}  "),
    re.compile(rb" {0,10}\d{1,8}[\t ]"),
)
_OF_ACTIONS = re.compile(rb"[^\t]{1,120}\t[^\t]{1,120}\t(?=\d{4}-\d\d-\d\dT\d)")
"""The job and the step, as `gh run view --log` prints them."""
_OF_GREP = re.compile(
    rb"(?P<file>[^\s:]{1,200}\.(?:log|out|err|txt|stderr|stdout))(?::(?:\d{1,9}:)?|-(?:\d{1,9}-)?)"
)
"""The file's name, as grep prints it where it reads several."""
_COLLECTED = re.compile(
    rb"[^\n]{0,80}?\b(?P<level>INFO|ERROR)\b[\]:]?(?: - | {1,8}\| | {1,2})"
    rb"(?:\[?[\w/.-]{1,80}\.\w{1,3}:\d{1,6}\]?:? |[\w.<>]{1,80}:[\w<>]{1,60}:\d{1,6} - )?"
)
_PLACE_IN_CODE = re.compile(rb"[\w/]{1,80}\.\w{1,3}:\d{1,6}|[\w.<>]{1,80}:[\w<>]{1,60}:\d{1,6} - ")
_PASSED_ON = re.compile(
    rb"Traceback \(most|  File \"|[^\n]{0,40}?\b(?:NCCL INFO|WARN(?:ING)?|ERROR|CRITICAL)\b[\]:]? "
)
FEWEST_NUMBERED = 4


def front_of(lines: Sequence[bytes]) -> re.Pattern[bytes] | None:
    """
    The prefix that a viewer adds to every line (`cat -n`, `less -N`, `gh run view --log`); None without one.

    >>> front_of([b"%7d  step" % n for n in range(1, 9)]).sub(b"", b"    123    loss", 1)
    b'  loss'
    >>> front_of([b"1.err:%d:step" % n for n in range(9, 13)]).sub(b"", b"1.err-13-loss")
    b'loss'
    >>> front_of([b"8 GPUs", b"9 ranks", b"10 steps", b"2 hours"]) is None
    True
    """
    if len(lines) < FEWEST_NUMBERED:
        return None
    if all(map(_OF_ACTIONS.match, lines)):
        return _OF_ACTIONS
    found = [match for match in map(_OF_GREP.match, lines) if match]
    if len(found) == len(lines) and len({match["file"] for match in found}) == 1:
        return _OF_GREP
    found = [match for match in map(_NUMBER.match, lines) if match]
    first = int(found[0][1]) if found else 0
    if len(found) < len(lines) or [int(match[1]) for match in found] != [*range(first, first + len(lines))]:
        return None
    return next(form for form in _NUMBERED if all(map(form.match, lines)))


def collected_as(lines: Sequence[bytes]) -> str:
    """
    The severity with which a collector marks every line, also those that have one of their own; "" without.

    >>> collected_as([b"INFO - step 1", b"INFO - WARNING: no cache"]), collected_as([b"INFO - step 1"])
    ('info', '')
    >>> collected_as([b"10:00:00 | INFO     | a:log:31 - 1", b"10:00:01 | INFO     | a:log:31 - 2"])
    'info'
    """
    found = [match for match in map(_COLLECTED.match, lines) if match]
    levels = {match["level"].decode().lower() for match in found}
    if len(levels) != 1 or len(found) < len(lines):
        return ""
    # One line of code prints every line: it passes on what others print.
    places = {tuple(_PLACE_IN_CODE.findall(match[0])) for match in found}
    by_one = len(places) == 1 and () not in places
    passed_on = by_one or any(_PASSED_ON.match(match.string, match.end()) for match in found)
    return levels.pop() if passed_on else ""


def _of_somebody(match: re.Match[str]) -> bool:
    return not _LEVEL.fullmatch(match["label"].strip(" :;,.-<>[]()"))


def rank_in(label: str) -> int | None:
    """
    The rank in a label.

    >>> rank_in("node1, rank 3"), rank_in("r12"), rank_in("worker-3")
    (3, 12, None)
    """
    match = _RANK.search(label)
    return int(match[1]) if match else None


def owner_in(label: str) -> str:
    """
    The host or pod that a label marks as such, "" without one.

    >>> owner_in("host=alpha rank=3"), owner_in("alpha")
    ('alpha', '')
    """
    match = _OWNER.search(label)
    return match[1] if match else ""


def words_in(label: str) -> Iterator[str]:
    """The words of a label that may be a host's name."""
    return (re.sub(r"(?<=\w):\d+$", "", word) for word in _SPLIT.split(label) if not _RANK.fullmatch(word))


_ROW = re.compile(r'"?(\d[\dT:. /+-]{7,40}Z?)"?,(?!\d{3}\b)(?:[^ ].{0,400},)?"[^"]')
"""Of a collector's table (CSV), where the longest field is the message."""
FEWEST_ESCAPED = 3
"""Escaped ends of lines, from which on a line is a text that a program quotes."""


def unpacked(text: str) -> list[str]:
    """
    The lines in a record of a logger or collector (JSON, logfmt), with its host and rank before each.

    >>> unpacked('{"level": "ERROR", "host": "n7", "rank": 3, "message": "ValueError: no"}')
    ['n7: [rank3]: ValueError: no']
    >>> unpacked('level=error msg="ValueError: no" rank=3')
    ['[rank3]: ValueError: no']
    >>> unpacked('2026-11-20T10:00:00.123Z,n7,"ValueError: no ""x"" is there"')
    ['2026-11-20T10:00:00.123Z ValueError: no "x" is there']
    """
    if text.startswith(_NOT_OFFERED):
        return []
    if row := _ROW.match(text):
        return [f"{row[1]} {max(next(csv.reader([text])), key=len)}"]
    record = _record(text)
    said = list(_texts(record)) if record else []
    if not said:
        is_escaped = text.count("\\n") >= FEWEST_ESCAPED
        return [one for one in text.split("\\n") if one.strip()][:400] if is_escaped else [text]
    inner = record.get("kubernetes")
    fields = {**inner, **record} if isinstance(inner, dict) else record
    owner = _first(fields, _OWNER_KEYS)
    rank = _first(fields, _RANK_KEYS)
    before = (f"{owner[:63]}: " if re.fullmatch(r"[\w.-]{1,63}", owner) else "") + (
        f"[rank{rank}]: " if rank.isdigit() and len(rank) < 7 else ""
    )
    return [before + line for part in said for line in part.splitlines()][:400]


_OF_A_TEST = "@ringup "
"""Prefix of reports of the ranks of `ringup test` and `ringup bench`."""
_NOT_OFFERED = _OF_A_TEST + '{"kind": "unsupported"'
"""An operation that the backend lacks, or that needs more ranks."""


def _record(text: str) -> dict[str, object]:
    """The fields of a record, {} if a line is not a record."""
    text = text.removeprefix(_OF_A_TEST)
    if text.startswith("{") and text.endswith("}"):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}
    return _logfmt(text.strip()) if "msg=" in text else {}


def _logfmt(text: str) -> dict[str, object]:
    """The pairs of a line that is `key=value key="quoted value"` throughout, else empty."""
    found: dict[str, object] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if not pair or len(found) == MOST_PAIRS:
            return {}
        key, quoted, plain = pair.groups()
        found[key] = _ESCAPE.sub(_unescaped, quoted) if quoted else plain or ""
        at = pair.end()
    return found if len(found) > 1 else {}


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(match[1], match[1])


def _texts(record: dict[str, object]) -> Iterator[str]:
    for keys, most in ((_TEXT_KEYS, 1), (_MORE_KEYS, len(_MORE_KEYS))):
        texts = [record.get(key) for key in keys]
        yield from [text for text in texts if isinstance(text, str) and text.strip()][:most]


def _first(fields: dict[str, object], keys: Sequence[str]) -> str:
    found = (fields.get(key) for key in keys)
    return next((str(v) for v in found if isinstance(v, str | int) and str(v)), "")
