"""Posts: the errors that people's sentences quote, as lines of their own.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ringup.logs.lines import Event, clean, excerpt
from ringup.logs.mentions import BY_A_PERSON
from ringup.logs.rule import Cause, report
from ringup.logs.wrapped import Wrapped
from ringup.rules import Fix

MOST_BYTES, MOST_LINES, MOST_PARTS = 64 << 10, 200, 12
"""Of a post that is read so, and of a line's parts; a longer one pastes the log itself."""
_QUOTED = re.compile(r"`{1,3}([^`]{8,600})`{1,3}|「([^「」]{8,600})」|\"([^\"]{12,600})\"(?![\w.])")
_PERSON = re.compile(
    BY_A_PERSON.pattern + r"|(?:^|\s)(?:I|[Ww]e) [a-z]{2,12}(?=[\s,])|大家好|请问|求助"
    r"|^[A-Z][a-z]{1,12} [\w, ]{2,80} (?:shows?|says?|prints?|(?:end|fail|crashe)s with) [`\"]"
)
"""More words than that: these say only that a file with no error of a program is a post."""
_SENTENCES = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"])|(?<=[。!?])")
_DOUBTED = re.compile(
    r"(?i)\b(?:fix(?:ed|es)\b|solv|resolv|no longer|used to\b|instead of|went away|gone\b|disappear|avoid"
    r"|I (?:do not|don't|did not|didn't|never)|not (?:see|get|have)\b|without (?:the|any|an|this)\b"
    r"|(?:if|when(?:ever)?) (?:an?|any|some)\b|propos|(?:works?|runs?) (?:fine|well|now)"
    r"|(?:what|how) (?:does|do|is)\b.{0,200}\bmean)|已解决|解决了"
)
"""Words in which people speak of an error that is over, that did not come, or that they only ask about."""
_SEVERAL_WORDS = re.compile(r"\w\W{1,4}\w{2,40}\W{1,4}\w{2}")
_STANDS = re.compile(
    r"(?i)\b(?:hang(?:s|ing)?|hung|stuck|stall(?:s|ed|ing)?|freez(?:e|es|ing)|froze|frozen|deadlock\w{0,4}"
    r"|never (?:start|finish|return|end|proceed|complete)\w{0,3}|nothing happens"
    r"|no (?:progress|output|response)|(?:does not|doesn't|not) (?:start|continue|proceed|progress)\w{0,3})\b"
    r"|卡住|卡死|挂起|无响应"
)
_FAILS = re.compile(r"(?i)\b(?:fail(?:s|ed|ing)?|crash(?:es|ed|ing)?|errors? out|broken|killed)\b|报错|失败")
_NEXT_TIME = {
    _STANDS: "while it hangs, run `ringup stacks`; else give the logs of all ranks, with NCCL_DEBUG=INFO",
    _FAILS: "give the output of the failed rank, with its traceback, or the logs of all ranks",
}


class Post(NamedTuple):
    lines: Wrapped
    """Each person's line replaced by its parts that may be a program's."""
    written: list[tuple[int, str]]
    """Those parts and the title above an empty line, with their line numbers."""


def quoted(data: bytes) -> Post | None:
    """
    The post that a file is; None if nobody writes in it.

    >>> quoted(b"I get `RuntimeError: NCCL error 2 here`").lines.data
    b'RuntimeError: NCCL error 2 here'
    >>> quoted(b"I fixed `RuntimeError: NCCL error 2 here`"), quoted(b"RuntimeError: NCCL error 2 here")
    (None, None)
    """
    lines = data.split(b"\n")
    if len(data) > MOST_BYTES or len(lines) > MOST_LINES:
        return None
    found: list[bytes] = []
    first_lines: list[int] = []
    has_title = lines[0].startswith(b"#") or (len(lines) > 1 and not lines[1].strip())
    written = [(1, clean(lines[0]))] if has_title else []
    is_post = False
    for number, raw in enumerate(lines, 1):
        text = clean(raw)
        parts = [raw]
        person = _PERSON.search(text)
        if person and "NCCL " in text[: person.start()]:
            person = None  # a program's, about itself
        if person or _QUOTED.search(text):
            texts = [*_parts(text)][:MOST_PARTS]
            parts = [part.encode() for part in texts]
            written += [(number, part) for part in texts]
            is_post = is_post or bool(person)
        found += parts
        first_lines += [number] * len(parts)
    if not is_post or not found:
        return None
    return Post(Wrapped(b"\n".join(found), first_lines, len(lines) - (not lines[-1])), written)


def _parts(text: str) -> Iterator[str]:
    """The quotations of a line; without any, its parts between the words of a person."""
    for sentence in _SENTENCES.split(text):
        if _DOUBTED.search(_QUOTED.sub("", sentence)):
            continue
        quotes = [next(filter(None, match.groups())).strip() for match in _QUOTED.finditer(sentence)]
        if quotes:
            yield from (one for one in quotes if _SEVERAL_WORDS.search(one))
        else:
            yield from (part.strip() for part in _PERSON.split(sentence) if part.strip())


def reported_failure(post: Post) -> Cause | None:
    """The failure that only people's own words report."""
    for words, fix in _NEXT_TIME.items():
        for number, text in post.written:
            if words.search(text) and not _DOUBTED.search(text):
                what = "stands still" if words is _STANDS else "failed"
                text = excerpt(text.strip(), 0)
                said = f"a post says that the job {what}, and no line shows why: {text[:160]}"
                one = report([Event("clue", 0, number, text, {})], said, "low", fix=Fix(fix))
                return one and replace(one, rule="unnamed-failure", severity="error")
    return None
