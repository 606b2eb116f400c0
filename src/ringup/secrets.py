"""
Removes secrets from text that leaves this process: files, job scripts, records, messages.

Lines are read one by one, but only those with a word that may introduce a secret.  Four kinds are replaced:
values of secret names (`secret_names`), passwords in URLs and in options of well-known commands, tokens with
a service's prefix (`token_prefixes.txt`, from gitleaks), and parts of private keys.  Every pattern takes
linear time, and lines are bounded before any pattern sees them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ringup.secret_names import HIDDEN as HIDDEN
from ringup.secret_names import is_secret as is_secret
from ringup.secret_names import looks_random, strength, without_password
from ringup.secret_names import shown_words as _shown_words
from ringup.units import COLOURS, grouped, printable

LONGEST_LINE = 1 << 18
"""Most characters of a line that are shown; the rest is left out, and counted."""
LONGEST_KEY_LINES = 400

# Words in lower case; a line without any of them cannot contain a secret of these kinds.
_NAMES = (
    "pass", "pwd", "_pw", "-pw", "psk", "secret", "token", "key", "cred", "cookie", "auth", "bearer", "sig",
    "session", "sid", "jwt", "otp", "mnemonic", "psw",
)  # fmt: skip
_OWN_PREFIXES = (
    "sk-", "sk_live", "sk_test", "rk_live", "rk_test", "whsec_", "ya29.", "GOCSPX-", "1//0", "nvapi-",
    "gsk_", "r8_", "tgp_v1_", "wandb_v1_", "xoxa-", "xoxp-", "xoxr-", "xoxs-", "xoxo-", "sq0csp-",
    "eyJhcGlf", "NRAK-", "ATATT", "ATCTT",
    "dckr_pat_", "tskey-", "phc_", "lsv2_", "key-", "SK", "pk_live_", "secret_", "ghs_",
    "ghu_", "fw_", "jina_", "tvly-", "co_api_", "ak-", "as-", "rpa_", "vastai-", "syt_",
    "cfut_",
)  # fmt: skip
"""Prefixes of tokens without a rule in gitleaks, or with a rule of another form."""


@functools.cache
def _prefixes() -> tuple[str, ...]:
    kept = Path(__file__).with_name("token_prefixes.txt").read_text("utf-8").split("\n")
    return tuple(sorted({*_OWN_PREFIXES, *(line for line in kept if line and not line.startswith("#"))}))


def _tree(words: Iterable[str]) -> str:
    """A pattern for any of these words that reads each character once."""
    branches = grouped((word[:1], word[1:]) for word in words)
    if not branches:
        return ""
    ordered = sorted(branches.items(), reverse=True)
    made = [re.escape(first) + _tree(rest) if first else "" for first, rest in ordered]
    return made[0] if len(made) == 1 else f"(?:{'|'.join(made)})"


@functools.cache
def _triggers() -> tuple[re.Pattern[str], ...]:
    """For text in lower case.  Each begins with few characters, so that `re` skips most positions."""
    known = [p.lower() for p in _prefixes() if p not in ("SK", "key-", "ak-", "as-", "secret_")]
    words = [*_NAMES, *(word for word, _ in _OPTIONS), *known]
    words += ["://", "eyj", "-----", "---- begin", "private-", "hooks."]
    first = "".join(sorted({re.escape(word[0]) for word in words}))
    others = (
        r"@(?=[\w.-]{1,200}[(:/])", r":(?<=\d{8}:)[a-z0-9_-]{34}", r"-us(?<=[0-9a-f]{32}-us)\d", "q~",
        r"-(?<=key-)[0-9a-f]{32}",
        r"sk(?<!\wsk)[0-9a-f]{32}", r"pat(?![a-z])",
    )  # fmt: skip
    return tuple(re.compile(pattern) for pattern in (f"(?=[{first}]){_tree(words)}", *others))


def _may_hold_secret(line: str) -> bool:
    low = line.lower()
    return any(pattern.search(low) for pattern in _triggers())


_NAME_HIT = re.compile(rf"(?i){_tree(_NAMES)}|pat\Z")
_QUOTE = r"""(?:\\{0,31}["'`]|&quot;|&\#39;|%22|%27|\\{1,31}u0022)"""
_QUOTE_BEFORE = re.compile(rf"{_QUOTE}\Z")
_SEPARATOR = re.compile(
    rf"(?P<close>(?:{_QUOTE})?[\])]?)(?:\s\[[^\]\n]{{0,24}}\])?\s{{0,9}}"
    rf"(?P<sep>=>|->|:=|={{1,3}}|:|%3[dD]|%3A|\\u003d|(?P<xml>>))"
    rf"[^\S\n]{{0,40}}"
)
_PAIR = re.compile(rf"{_QUOTE}\s?,\s{{0,4}}(?={_QUOTE})")
_LAST_OF_PAIR = re.compile(rf"""(?P<quote>{_QUOTE})[^"'`\n]{{0,999}}(?P=quote)\s{{0,9}}[)\]]""")
_FIELD = re.compile(
    rf"(?P<close>{_QUOTE})\s?,?\s{{0,4}}(?:{_QUOTE})?[vV]alue(?:{_QUOTE})?\s?[:=]\s{{0,4}}(?={_QUOTE})"
)
_COMMA = re.compile(r",[^\S\n]{1,9}(?=[^\s\[{])")
"""Between an option and its value in a YAML list without quotes."""
_SPACE = re.compile(r"[^\S\n]{1,40}(?:\|[^\S\n]{1,40})?(?=\S)")
_PROSE = re.compile(
    r"(?i:\s(?:(?:is|was|are|set to|changed to|equals)\s|(?:for|of) [^\s:]{1,80}:\s)\s{0,4})"
    r"(?=\S{0,200}[\d!@#$%^&*\u0080-\uffff])"
)
_OPENER = re.compile(rf"(?:[bBurRfF]|Some\(|@)?(?P<quote>{_QUOTE})")
_SCHEME = re.compile(
    r"(?i)(?:basic|bearer|token|digest|negotiate|apikey|api-key|aws4-hmac-sha256|key)\s{1,4}(?=\S)"
)
_STOP = re.compile(
    r"""(?<!\\)\s|["'`](?=[ ,;)\]}\\:]|$)|&quot;|[)\]}](?=[ ,;)\]}"'\\]|$)|<|(?<= )\|"""
    r"""|[,;&](?=\s*(?:$|["'\\\])}]|\s|[A-Za-z_][\w.\[\]-]{0,80}\\?["']?\s?[=:]|amp;))"""
)
"""End of a value without quotes."""
_BEARER = re.compile(
    r"(?i)\b(?P<head>(?:bearer|basic|negotiate|apikey)\s{1,4})"
    r"(?=[\w+/.~-]{0,200}[\d=]|[\w+/.~-]{24})[\w+/=.~-]{8,}"
)
_VERSION = re.compile(r"\d{1,9}(?:\.\w{1,20}){1,9}\Z")
_REST = ("authorization", "cookie", "setcookie", "set-cookie", "proxy-authorization", "x-api-key")


@functools.cache
def _known() -> re.Pattern[str]:
    heads = _tree(p for p in _prefixes() if p not in ("SK", "key-"))
    return re.compile(
        rf"(?<![A-Za-z0-9])(?:{heads})(?P<body>[\w.~+/=-]{{10,}})"
        r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?"
        r"|(?<!\d)\d{8,10}:[A-Za-z0-9_-]{34,36}(?![\w-])"
        r"|\bSK[0-9a-fA-F]{32}\b|\bkey-[0-9a-f]{32}\b|\b[0-9a-f]{32}-us\d{1,2}\b"
        r"|(?<=anaconda.org/t/)[\w-]{10,}|(?<=webhooks/)\d{10,30}/[\w-]{20,}|(?<=webhookb2/)\S{20,}"
        r"|(?<=hooks.slack.com/)(?:services|workflows|triggers)/[\w/]{20,}"
        r"|\b[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}|(?<![\w.~-])[\w~.]{3}\dQ~[\w~.-]{31,}"
        r"|\b[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{20,}"
    )


_ARG = r"""(?:'(?P<a>[^']*)'|"(?P<b>[^"]*)"|(?P<c>[^\s'",)\]]+))"""
_GAP = r"""(?:=|\s{1,8}|["'],\s{0,4}["']?)"""
_OPTIONS = tuple(
    (word, re.compile(pattern))
    for word, pattern in (
        ("curl", rf"(?<![\w-])(?:-u|--user|-U|--proxy-user){_GAP}?(?:[\"']?[^\s:\"'/]{{1,100}}:){_ARG}"),
        ("curl", rf"(?<![\w-])(?:-b|--cookie|--oauth2-bearer|--pass){_GAP}{_ARG}"),
        ("wget", rf"(?<![\w-])--(?:http-|ftp-|proxy-)?password{_GAP}{_ARG}"),
        *((word, rf"(?<![\w-])-p{_ARG}") for word in ("mysql", "maria", "7z")),
        ("sshpass", rf"(?<![\w-])-p(?:{_GAP})?{_ARG}"),
        ("redis-cli", rf"(?<![\w-])-a{_GAP}{_ARG}"),
        ("login", rf"\blogin\b.{{0,200}}?(?<![\w-])(?:-p|--password|--token){_GAP}(?!/){_ARG}"),
        ("login", rf"\blogin\(\s*key\s?=\s?{_ARG}"),
        ("vault login", rf"\bvault login\s(?:-\S{{1,40}}\s){{0,4}}(?!-){_ARG}"),
        ("-token <<<", rf"-token\s?<<<\s?{_ARG}"),
        ("wandb", rf"\blogin\s(?:--\S{{1,40}}\s){{0,4}}(?=[0-9a-zA-Z_]{{32}}){_ARG}"),
        ("mongo", rf"(?<![\w-])-p{_GAP}{_ARG}"),
        ("ldap", rf"(?<![\w-])-w{_GAP}{_ARG}"),
        ("smbclient", rf"(?<![\w-])-U{_GAP}(?:[\"']?[^\s%\"']{{1,100}}%){_ARG}"),
        ("ipmitool", rf"(?<![\w-])-P{_GAP}{_ARG}"),
        ("htpasswd", rf"(?<![\w-])-\w{{0,8}}b\w{{0,8}}(?:\s{{1,4}}\S{{1,200}}){{2}}\s{{1,4}}{_ARG}"),
        ("chpasswd", rf"\becho\s+[\"']?[\w.-]{{1,100}}:{_ARG}"),
        ("sudo -s", rf"\becho\s+{_ARG}\s*\|"),
        ("-stdin", rf"\becho\s+(?:-n\s+)?{_ARG}\s*\|"),
        ("zip ", rf"(?<![\w-])-P{_GAP}{_ARG}"),
        ("identified by", rf"(?i)\bidentified by\s+(?:password\s+)?{_ARG}"),
        ("pass:", rf"(?<![\w])pass:{_ARG}"),
        ("from-literal", rf"--from-literal{_GAP}[\w.-]{{1,200}}={_ARG}"),
        ("configure set", rf"(?i)configure set [\w.]{{0,60}}?(?:secret|key|token)\w{{0,40}} {_ARG}"),
    )
)
"""Options of commands that take a password under another name."""

_MARK = re.compile(
    r"(?P<begin>-{4,5} ?BEGIN [A-Z0-9 ]{0,60}PRIVATE KEY[A-Z ]{0,10}-{4,5}|Private-Lines: \d+"
    r"|-{4} BEGIN SSH2 ENC)"
    r"|(?P<end>-{4,5} ?END [A-Z0-9 ]{0,60}PRIVATE KEY[A-Z ]{0,10}-{4,5}|Private-MAC:)"
)
_KEY_HEADER = re.compile(r"\W{0,40}(?:Proc-Type|DEK-Info|Comment|Version|Subject)\b")
_SECRET_KIND = re.compile(r"""(?m)^[ -]{0,40}["']?kind["']?: {0,8}["']?Secret\b""")
_DATA = re.compile(r"""["'{]{0,2}(?:data|stringData)["']?: {0,8}\{?""")
_NETRC = re.compile(
    r"\b(?:machine|login)\s{1,8}\S{1,100}\s{1,8}(?:account\s{1,8}\S{1,100}\s{1,8})?password\s"
    r"|^\s{0,80}password\s{1,8}\S{1,500}\s{0,80}$"
)
_BLOCK = re.compile(r"(?:- )?(?P<name>[\"']?[\w.-]{1,100}[\"']?):\s{0,8}(?P<mark>[|>][-+\d]{0,3})?$")
_FIELD_NAME = re.compile(
    r"""(?:- )?["']?(?:name|key|Name|Key)["']?\s?:\s?["']?(?P<name>[\w.-]{1,100})["']?,?$"""
)
_FIELD_VALUE = re.compile(r"""(?:- {1,8})?["']?[vV]alue["']?\s?:\s{0,8}""")
_OPTION_ALONE = re.compile(r"--?[A-Za-z][\w-]{0,100}$")
_ITEM = re.compile(
    r"(?:- {1,8})?(?! |- |[\"']?(?:[\w\"'.-]{1,100}\s?:(?:\s|$)|--|[\[{(]\s{0,200}$|[\d.,\s]{0,200}$))"
)
"""Text before an item of a list, or before an argument of a continued command; other lines have no value."""


def redact(text: str) -> str:
    """
    The text with secrets replaced by "(hidden)".

    A secret without any recognizable form is not found, unless it is the value of a variable of this process
    with a secret name: read the text before you send it.

    >>> redact("export HF_TOKEN=hf_x1 WANDB_API_KEY='a b' n=3")
    "export HF_TOKEN=(hidden) WANDB_API_KEY='(hidden)' n=3"
    >>> redact("http://ada:pw@proxy:3128/ Authorization: Basic abc")
    'http://(hidden)@proxy:3128/ Authorization: (hidden)'
    """
    return (_short if len(text) <= SHORT_TEXT else _redacted)(text, _own_values())


def _redacted(text: str, own_values: tuple[str, ...]) -> str:
    for value in own_values:
        text = text.replace(value, HIDDEN)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if len(line) > LONGEST_LINE:
            lines[number] = f"{line[:LONGEST_LINE]} (... {len(line) - LONGEST_LINE} characters left out)"
    plain = [COLOURS.sub("", line) for line in lines]
    found = {
        number
        for number, line in enumerate(plain)
        if _may_hold_secret(line) or (" " not in line[-60:] and _is_body_alone(line))
    }
    if found:
        lines = _document(plain, lines, found, _SECRET_KIND.search(text) is not None)
    return "\n".join(lines)


SHORT_TEXT = 200
_short = functools.lru_cache(maxsize=1 << 14)(_redacted)
"""For short texts: the facts of a cluster repeat most of them."""
SHORTEST_OWN_VALUE = 8
"""Shorter values are also ordinary words."""


@functools.cache
def _own_values() -> tuple[str, ...]:
    """Values of secrets in this process's environment, the longest first."""
    found = {v for n, v in os.environ.items() if len(v) >= SHORTEST_OWN_VALUE and is_secret(n, v)}
    return tuple(sorted((v for v in found if "/" not in v and "\n" not in v), key=len, reverse=True))


def safe(text: str, limit: int = 400) -> str:
    """Text from other programs for people: without secrets, safe for a terminal, with a bounded length."""
    return printable(redact(text), limit)


def _document(lines: list[str], coloured: list[str], found: set[int], is_k8s_secret: bool) -> list[str]:
    """
    Lines in order: private keys, blocks of YAML, and options whose values are on the next line.

    `coloured` are the same lines with a terminal's colours; a line with a secret loses its colours.
    """
    parts = _key_parts(lines, found)
    shown: list[str] = []
    next_is, data_indent = None, -1
    for at, line in enumerate(lines):
        if at in parts:
            shown += [HIDDEN] * (at - 1 not in parts)
            continue
        if is_k8s_secret:
            data_indent, line = _secret_data(line, data_indent)
        if next_is:
            line, next_is = next_is(line)
        if at in found:
            next_is = next_is or _expected(line)
            line = _line(_without_key(line))
        shown.append(coloured[at] if line == lines[at] else line)
    return shown


def _without_key(line: str) -> str:
    """A line without private keys, including parts of a key that begins or ends on it."""
    shown, done, is_open = "", 0, False
    for mark in _MARK.finditer(line):
        if not is_open:
            before = line[done : mark.start()]
            shown += (before if mark["begin"] else before.rstrip(_BASE64 + "\\")) + HIDDEN
        is_open, done = mark["begin"] is not None, mark.end()
    return shown if is_open else shown + line[done:]


def _key_parts(lines: list[str], found: set[int]) -> set[int]:
    """Numbers of the lines that contain only a part of a private key."""
    parts: set[int] = set()
    for at in sorted(found):
        marks, below = [mark.lastgroup for mark in _MARK.finditer(lines[at])], "".join(lines[at + 1 : at + 2])
        if marks[:1] == ["end"]:
            parts.update(_touching(lines, at, -1))
        if marks[-1:] == ["begin"]:
            parts.update(_touching(lines, at, 1))
        elif not marks and at not in parts and _is_body_alone(lines[at]) and _is_body(below):
            parts.update([at, *_touching(lines, at, 1)])
    return parts


def _touching(lines: list[str], at: int, step: int) -> Iterator[int]:
    """Lines of a key below its first line (step 1), or above its last line (-1)."""
    for count in range(1, LONGEST_KEY_LINES):
        number = at + count * step
        line = lines[number] if 0 <= number < len(lines) else "?"
        is_header = step > 0 and count < 7 and (not line.strip() or _KEY_HEADER.match(line))
        if not (_is_body(line) or is_header or (step < 0 and count == 1 and _is_last_body(line))):
            return
        yield number


_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def _body(line: str) -> str:
    """The base64 text at a line's end, if it is a separate word."""
    text = line[-2000:].rstrip(" \t\r\"',+\\")
    while text.endswith(("\\n", "\\r")):
        text = text[:-2]
    before = text.rstrip(_BASE64)
    return text[len(before) :] if not before or before[-1] in " \t\"'>|" else ""


def _is_body(line: str) -> bool:
    """Whether a line ends with a line of a base64 key."""
    size = len(_body(line))
    return size >= 40 or (size >= 16 and size == len(line.strip()))


def _is_last_body(line: str) -> bool:
    """The same for a key's last line, which is short."""
    size = len(_body(line))
    return size > 1 and not {*"=:"} & {*line[:-size].rstrip("=")} and len(line) - size <= 40


def _is_body_alone(line: str) -> bool:
    """The same without other signs of a key: long, and not a checksum."""
    text = _body(line)
    is_mixed = any(c.isupper() for c in text) and any(c.islower() for c in text)
    return 60 <= len(text) <= 80 and is_mixed and any(c.isdigit() for c in text)


def _secret_data(line: str, indent: int) -> tuple[int, str]:
    """A line of a Kubernetes Secret: (indentation of `data:` or -1, the line without values)."""
    own = len(line) - len(line.lstrip())
    if _DATA.fullmatch(line.strip()):
        return own, line
    if indent < 0 or not line.strip():
        return indent, line
    if own <= indent:
        return -1, line
    name, colon, value = line.partition(":")
    if not colon:
        return indent, " " * own + HIDDEN
    return indent, line if not value.strip() or value.strip() in "{}" else f"{name}: {HIDDEN}"


def _expected(line: str) -> Any:
    """How to read the next line: a function line -> (line, the next such function or None)."""
    text = line.strip()
    if (field := _FIELD_NAME.match(text)) and strength(field["name"]):
        return lambda line: (_behind(f"{field['name']}: ", line, _FIELD_VALUE), None)
    last = re.split(r"[\s\[\"']", text.rstrip(" \\\"',")[-200:])[-1]
    if _OPTION_ALONE.match(last) and strength(last):
        return lambda line: (_behind(f"{last}=", line, _ITEM), None)
    if (block := _BLOCK.match(text)) and strength(block["name"]) == 2:
        indent = len(line) - len(line.lstrip())

        def inside(line: str) -> tuple[str, Any]:
            own = len(line) - len(line.lstrip())
            if own <= indent and line.strip() and not (line.lstrip().startswith("- ") and own == indent):
                return line, None
            if block["mark"] is not None and line.strip():
                return " " * own + HIDDEN, inside
            return _behind(f"{block['name']}: ", line, _ITEM), inside

        return inside
    return None


def _behind(lead: str, line: str, before: re.Pattern[str]) -> str:
    """A line with the value of the name `lead`, which is at the end of the previous line."""
    text = line.lstrip()
    if (head := before.match(text)) is None:
        return line
    return line[: len(line) - len(text)] + head[0] + _named(lead + text[head.end() :])[len(lead) :]


def _line(line: str) -> str:
    if "://" in line:
        line = without_password(line)
    elif "@" in line:
        line = _ACCOUNT.sub(rf"\g<user>:{HIDDEN}@", line)
    low = line.lower()
    for word, pattern in _OPTIONS:
        if word in low:
            line = pattern.sub(_without_groups, line)
    line = _named(line)
    line = _BEARER.sub(rf"\g<head>{HIDDEN}", line)
    return _known().sub(_token, line)


_ACCOUNT = re.compile(
    r"(?<![\w/.-])(?P<user>[\w.-]{1,60}):[^\s/@:\"']{1,100}@(?!sha\d)(?=(?:tcp|unix)\(|[\w.-]{1,200}[:/]\S)"
)


def _without_groups(found: re.Match[str]) -> str:
    """The match with the text of its groups hidden."""
    for group, value in found.groupdict().items():
        if value and is_secret("password", value):  # not a placeholder
            start, end = (place - found.start() for place in found.span(group))
            return found.group()[:start] + HIDDEN + found.group()[end:]
    return found.group()


def _token(found: re.Match[str]) -> str:
    """A token with a service's prefix, hidden."""
    if (body := found["body"]) is None:
        return HIDDEN
    kinds = (str.isdigit, str.isupper, str.islower)
    is_mixed = any(all(any(map(kind, run)) for kind in kinds) for run in re.findall(r"[A-Za-z0-9]{9,}", body))
    return HIDDEN if is_mixed or looks_random(body) else found.group()


def _named(line: str) -> str:
    pieces, done = [], 0
    for word in _WORD.finditer(line):
        whole = word[0].rstrip(".-$")
        end, name = word.start() + len(whole), whole[-_LONGEST_NAME:]
        if word.start() < done or not _NAME_HIT.search(name) or not _strength(name):
            continue
        if found := _secret_of(line, end - len(name), end, name):
            pieces += [line[done : found[0]], HIDDEN]
            done = found[1]
    return "".join(pieces) + line[done:]


_strength = functools.lru_cache(maxsize=4096)(strength)
_LONGEST_NAME = 100
_BEFORE_KEY = "api|access|secret|private|account|auth|encryption|signing|shared|license"
_WORD = re.compile(rf"(?i)(?:(?:{_BEFORE_KEY}) (?=(?:key|token)\b))?[a-z0-9_.$-]+")
""""API key" is also a name."""


def _secret_of(line: str, start: int, end: int, name: str) -> tuple[int, int] | None:
    """Position of the value of the secret name at start:end; None if there is none."""
    before = _QUOTE_BEFORE.search(line, max(0, start - 33), start)
    opened = before[0] if before else ""
    found = _SEPARATOR.match(line, end)
    if found and (not found["xml"] or found["close"].rstrip(")]") or line[start - 1 : start] == "<"):
        if line[start - 2 : start] == "${" and line[found.end() : found.end() + 1] in ("?", "+"):
            return None
        return _value(line, found.end(), name, "" if found["close"] else opened, found)
    if opened and (field := _FIELD.match(line, end)):
        return _value(line, field.end(), name)
    is_option = name.startswith("-")
    if opened and (is_option or line[: start - len(opened)].rstrip()[-1:] in ("(", "[")):
        pair = _PAIR.match(line, end)
        is_value = pair and (is_option or _LAST_OF_PAIR.match(line, pair.end()))
        return _value(line, pair.end(), name) if pair and is_value else None
    if is_option and not opened and (comma := _COMMA.match(line, end)) and _is_listed(line, start):
        return _value(line, comma.end(), name) if _follows(line, comma, start, name, opened) else None
    gap = (None if is_option else _PROSE.match(line, end)) or _SPACE.match(line, end)
    if gap and (gap.re is _PROSE or _follows(line, gap, start, name, opened)):
        return _value(line, gap.end(), name, opened)
    return None


def _is_listed(line: str, at: int) -> bool:
    before = line[max(0, at - 999) : at]
    return before.rstrip()[-1:] in ("[", ",") and before.rfind("[") > before.rfind("]")


def _follows(line: str, gap: re.Match[str], start: int, name: str, opened: str) -> bool:
    """Whether a value follows the space: --token X, setenv TOKEN X, password "X", requirepass X."""
    value = line[gap.end() : gap.end() + 300].split(None, 1)[0]
    has_digit = any(c.isdigit() for c in value)
    if name.startswith("-"):
        return not value.startswith("--") and (value[0] != "-" or has_digit)
    before = line[max(0, start - 24) : start].split()
    command = before[-1].lower() if before else ""
    if command in _SETTERS and not (value.isalpha() and len(value) < 8):
        return True
    if name.isupper() and _strength(name) == 2 and line.split() == [name, value] and not value.isupper():
        return True
    is_netrc = name.lower() == "password" and _NETRC.search(line, max(0, start - 300), start + 600)
    if is_netrc or name.lower() in _SETTINGS:
        return True
    if _strength(name) < 2 or opened:
        return False
    inner = value.strip("\"'`,;.)")
    if gap[0][-1] == "\t" or "|" in gap[0]:  # a table
        return True
    if inner != value and _OPENER.match(value):
        if (bare := _bare(name)) in ("token", "key", "secret", "pass"):
            return not inner.isalpha() and looks_random(inner)
        return bare in ("password", "passphrase") or not inner.isalpha()
    # After HF_TOKEN or "with password" a value may follow without a separator.
    is_loud = name.isupper() and "_" in name
    is_loud = is_loud or (command in ("with", "using", "use") and _bare(name) == "password")
    is_mixed = len(value) > 5 and has_digit and any(c.isalpha() for c in value)
    return not {*"/="} & {*value} and (looks_random(value) or (is_loud and is_mixed))


_SETTERS = ("setenv", "env", "arg", "-x", "-gx", "-ux", "-e", "set", "set-env", "putenv")
_SETTINGS = ("requirepass", "masterauth", "_authtoken", "auth-pass")


def _value(
    line: str, at: int, name: str, enclosing: str = "", found: re.Match[str] | None = None
) -> tuple[int, int] | None:
    """Position of the value at `at`, if it is a secret; `enclosing` is the quote around name and value."""
    is_rest = _bare(name) in _REST and found is not None and ":" in found["sep"]
    quoted = _OPENER.match(line, at)
    if line[at : at + 1] == "[" and _strength(name) == 2:
        if not re.search(r"[\"']", line[at + 1 : at + 401].partition("]")[0]):
            return None
        inside = line[at + 1 :].partition("]")[0]
        return (at + 1, at + 1 + len(inside)) if is_secret(name, inside.strip("\"' ")) else None
    if quoted and quoted["quote"] != enclosing:
        first, last = _quoted(line, quoted)
        at = first if line[last : last + 1] else at
    elif line.startswith(("{", "("), at):
        return None
    else:
        if not is_rest and (scheme := _SCHEME.match(line, at)):
            at = scheme.end()
        first, last = at, _end_of(line, at, enclosing, is_rest or _is_all(line, at, name, found), found)
    value = line[first:last]
    if found and found["sep"] == "==" and _VERSION.match(value):  # secretstorage==3.3.3, of pip
        return None
    return (at, last) if is_secret(name, value) or (is_rest and value.strip()) else None


def _bare(name: str) -> str:
    return name.lower().lstrip("-")


def _quoted(line: str, quoted: re.Match[str]) -> tuple[int, int]:
    """Begin and end of the quoted text; a shell joins text that follows without a space."""
    quote, first = quoted["quote"], quoted.end()
    close = re.compile(rf"(?<!\\){re.escape(quote)}").search(line, first)
    if close is None:
        return first, len(line)
    end = close.end()
    if len(quote) == 1 and (after := _OPENER.match(line, end)):
        return quoted.start(), _quoted(line, after)[1]
    if len(quote) == 1 and line[end : end + 1].isalnum():
        return first, _end_of(line, end, "", False, None)
    return first, close.start()


def _is_all(line: str, at: int, name: str, found: re.Match[str] | None) -> bool:
    """Whether a line is only a name and its value, as in YAML and INI files: such values may have spaces."""
    if not found or _strength(name) < 2 or _bare(name).split("_")[-1] in ("token", "tokens", "key", "keys"):
        return False
    is_first = not line[: found.start() - len(name)].strip(" -\t")
    return is_first and (found["sep"] == ":" or found[0][0] == " ") and line[at : at + 1] != "|"


def _end_of(line: str, at: int, enclosing: str, to_end: bool, found: re.Match[str] | None) -> int:
    stops = [line.find(enclosing, at) if enclosing else -1]
    if found and found["xml"]:
        stops.append(line.find("<", at))
    elif not to_end and (stop := _STOP.search(line, at)):
        stops.append(stop.start())
    return min((stop for stop in stops if stop >= 0), default=len(line))


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: _shown_value(name, value) for name, value in env.items()}


def _shown_value(name: str, value: str) -> str:
    return HIDDEN if is_secret(name) or is_secret(name, value) else redact(value)


def holds_secret(name: str, value: str) -> bool:
    """Whether a variable's value must be hidden, because of its name or of the value itself."""
    return _shown_value(name, value) != value


def redact_words(words: Iterable[str]) -> tuple[str, ...]:
    """The arguments of a command without secrets, in the same argument as their option or in the next."""
    return tuple(redact(word) for word in _shown_words([*words]))


def redact_data(value: Any) -> Any:
    """
    The same for JSON data: every text, lists of words, and values under a secret name.

    >>> redact_data({"API_KEY": "x", "args": ["--hf-token", "abc"], "env": {"name": "MY_PW", "value": "x"}})
    {'API_KEY': '(hidden)', 'args': ['--hf-token', '(hidden)'], 'env': {'name': 'MY_PW', 'value': '(hidden)'}}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        words = _shown_words([v if isinstance(v, str) else "" for v in value])
        shown = [redact_data(word if isinstance(v, str) else v) for v, word in zip(value, words, strict=True)]
        return shown if isinstance(value, list) else tuple(shown)
    return _mapping(value) if isinstance(value, dict) else value


def _mapping(value: Mapping[Any, Any]) -> dict[Any, Any]:
    name = value.get("name", value.get("key"))
    is_pair = isinstance(name, str) and "value" in value
    is_k8s = value.get("kind") == "Secret"
    shown = {}
    for key, inner in value.items():
        if is_k8s and key in ("data", "stringData") and isinstance(inner, dict):
            shown[key] = dict.fromkeys(inner, HIDDEN)
        else:
            shown[key] = _under(name if is_pair and key == "value" else key, inner)
    return shown


def _under(name: Any, value: Any) -> Any:
    if not isinstance(name, str) or not _strength(name):
        return redact_data(value)
    if isinstance(value, list):
        return [_under(name, inner) for inner in value]
    return HIDDEN if isinstance(value, str) and is_secret(name, value) else redact_data(value)
