"""
Text that mentions an error which did not happen.

Pure.  Commands that a shell echoes, source code, comments, help texts and remedies speak of what may happen.
A count of none reports that nothing did.  Text in quotation marks is somebody else's, unless the word
before them belongs to the speaker ("error: '...'").
"""

from __future__ import annotations

import re

from ringup.logs.patterns import OF_ROLE, SETTING_UP

SETTINGS = SETTING_UP | OF_ROLE["setting"]

NONE = re.compile(
    r"\b(?:errors?|count|failures?|failed|kills?|kill_total|errors_total(?:\{[^}]{0,80}\})?)\W{1,3}0\b"
    r"(?!/\d| of \d|[ -][a-z])"
    r"|\| {1,4}(?:pass(?:ed)?|ok|none|no)\b"
    r"|(?:\s[:=]|:)\s{1,4}(?:\[\]|none|no|not? active|false|0|n/a)\W{0,3}$",
    re.IGNORECASE,
)
CODE = re.compile(
    r"[\w./+-]{1,200}\.\w{1,5}[:-]\d{1,6}[:-](?:\s{2}|\t)|"
    r"(?:[-+](?= ))?\s*(?:\++ \S|#+ ?(?!of tasks|Avg bus|ERROR|FATAL)[^\W\d]|\$ \S"
    r"|(?:[*-] )?[Ff]ix(?:e[sd])?\b"
    r"|--?[a-z][\w-]{0,40}(?:,? -{0,2}[\w{<\[][^\s]{0,40}){0,3} {2,40}\S"
    r"|(?:if|elif|while|for|with|except|class|def|try|else)\b[^:]{0,200}:\s{0,4}"
    r"(?:$|#|(?:raise|return|continue|break|pass)\b|\w[\w.]{0,60}[(=])"
    r"|(?:raise|return(?! code| value| status)|assert|yield)\b[ (]|self\.\w"
    r"|(?:print|echo|export|import|trap)\b\W{1,3}\S{1,200}[=('\"]"
    r"|from \S{1,80} import\b)"
    r"|[-+]?\s+(?!what\(\): )\w[\w.]{0,80}\(.{0,400}[,)](?:\s{1,4}#.{0,200})?$"
    r"|[*|\\/ ]{0,12}(?=\d{0,9}[a-f])(?=[a-f]{0,9}\d)[0-9a-f]{7,10} (?:\([^)]{1,200}\) )?[A-Za-z\[]"
)
"""A shell's trace, prompt or comment, Python, its patch, an option's help, a remedy, `grep -n`, `git log`."""

_OPENS = re.compile(r"(?<![\w)\]])['\"`](?=\S)")
_CLOSES = {"'": re.compile(r"'(?!\w)"), '"': re.compile(r'"(?!\w)'), "`": re.compile(r"`(?!\w)")}
_OF_THE_SPEAKER = re.compile(
    r"(?i)(?:fail|err(?!ors\b)|exc|stat|reason|message|msg|detail|cause|warn|entry|what\(|say|said|got\b|stderr|returned\b"
    r"|with\b|thrown|instance of\b|\bat\b)[a-z]{0,12}(?: \([\w ]{1,40}| [\w./-]{1,80}\.[a-z]{1,3})?$"
)
_NO_WORD = " :=()[]{}'\"0123456789"
_ANSWERS_NO = re.compile(
    r"(?:[\w ()/'-]|\.(?! )){0,60}\s{0,40}[:=|]\s{0,4}"
    r"(?:(?:\[\]|none|no|false|0|n/a)(?=[,;|]|\s{2}|[.)\]]?$)|(?:pass(?:ed)?|ok|healthy)\b)",
    re.IGNORECASE,
)

_OF_A_MODEL = re.compile(
    r"(?i)(?:generated(?: text)?|sample|response|prediction|completion|prompt)[ \d#]{0,8}[:>] "
)
"""In front of text that a model reads or writes."""
BY_A_PERSON = re.compile(
    r"(?:^|\s)(?:[Mm]y(?! EFA| host id)|I'm|I've|I (?:am|was|have|had|get|got|can|cannot|tried|try|see|saw"
    r"|used?|run|ran|think|want|set|installed|followed|found|fixed|solved|did|do(?:n't)?))\s"
    r"|\b[Aa]ny (?:help|ideas?|suggestion|advice)|^(?:Hi|Hello|Hey)(?: \w{2,12})?[,!]"
)
"""Words in which people write of themselves, and programs do not."""


def is_mention(body: str) -> bool:
    """
    Whether a line is a command, code, a comment, a help text, a remedy, or a person's own sentence.

    >>> is_mention("+ pkill -9 train.py"), is_mention("    os.kill(pid, SIGKILL)"), is_mention("Killed")
    (True, True, False)
    >>> is_mention("Hi, my training fails on two nodes"), is_mention("/my/train.py failed")
    (True, False)
    >>> is_mention("Generated: srun: error: task 3: Segmentation fault")
    True
    """
    return bool(CODE.match(body) or _OF_A_MODEL.match(body) or BY_A_PERSON.search(body[:1000]))


def says_no(text: str, end: int) -> bool:
    """
    Whether a line asks for what its part up to `end` names, and answers with none of it.

    >>> says_no("oom-killer invoked since boot: no", 10), says_no("Xid (PCI:0000:3b:00): 94, RST: No", 24)
    (True, False)
    >>> says_no("error: unrecognized arguments: --local-rank=0", 43)
    False
    """
    is_option = text[max(0, end - 60) : end].rpartition(" ")[2].startswith("-")
    return not is_option and bool(_ANSWERS_NO.match(text, end))


def quotations(text: str) -> list[tuple[int, int]]:
    """
    Where a line quotes somebody else's words.

    >>> quotations("pred=oom text='exitcode: -9'"), quotations("Cuda failure 'out of memory'")
    ([(14, 28)], [])
    >>> quotations("- `RuntimeError: CUDA error`")
    []
    """
    found = []
    at, open_ones = 0, set()
    while (mark := _OPENS.search(text, at)) is not None:
        at = mark.end()
        if mark[0] in open_ones or not (closed := _CLOSES[mark[0]].search(text, at)):
            open_ones.add(mark[0])
            continue
        at = closed.end()
        before = text[max(0, mark.start() - 120) : mark.start()].rstrip(_NO_WORD)
        is_whole = before.strip(" -*>.") == "" and not text[at:].strip()  # a person marks a program's line
        if (before or mark[0] == "`") and not is_whole and not _OF_THE_SPEAKER.search(before):
            found.append((mark.start(), at))
    return found


def unquoted(text: str) -> str:
    """
    A line without the words that it quotes.

    >>> unquoted("pred=oom text='exitcode: -9' ok")
    "pred=oom text='' ok"
    """
    for begin, end in reversed(quotations(text)):
        text = text[: begin + 1] + text[end - 1 :]
    return text
