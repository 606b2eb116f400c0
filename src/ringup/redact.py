"""Secrets taken out of text that leaves the machine: bug reports are read by strangers."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
_WORD = r"(?:TOKEN(?!S\b|IZ|_COUNT)|SECRET|PASSW(?:OR)?D|CREDENTIAL|(?:API|ACCESS|PRIVATE|[_-])KEY)"
_SECRET = re.compile(rf"(?i){_WORD}")
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s,;"'&]+)"""
# No pattern looks far ahead for what a hostile line of megabytes may lack: names are bounded, and what
# stands before the word that makes one secret is looked for only where an option begins.
_REST = r"[\w.-]{0,200}"
_ASSIGNED = re.compile(rf"(?i)(?P<name>{_WORD}{_REST})(?P<sep>['\"]?\s?[=:]\s?)(?P<value>{_VALUE})")
_OPTION = re.compile(rf"(?i)(?P<name>(?<![\w.-])--?{_REST}?{_WORD}{_REST})(?P<sep>\s)(?P<value>{_VALUE})")
_HEADER = re.compile(
    r"(?i)(?P<name>\b(?:authorization|proxy-authorization|bearer)\b)(?P<sep>[:\s]+)(?P<value>\S.*)"
)
_URL = re.compile(
    r"(?P<name>\b[a-z][a-z0-9+.-]{0,30}://)(?P<value>[^/\s:@]{1,1000}:[^/\s@]{1,2000})(?P<sep>@)"
)
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[A-Z0-9]{16}"
    r"|sk-[A-Za-z0-9_-]{20,}|xox[abp]-[A-Za-z0-9-]{10,}|eyJ[\w-]{10,1000}\.[\w-]{10,20000}\.[\w-]{10,})"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def redact(text: str) -> str:
    """
    The text with the values of secret-looking names, well-known tokens and passwords in URLs hidden.

    What looks like a secret only to its owner stays: read what you send.

    >>> redact("export HF_TOKEN=hf_x1 WANDB_API_KEY='a b' n=3")
    'export HF_TOKEN=(hidden) WANDB_API_KEY=(hidden) n=3'
    >>> redact("http://ada:pw@proxy:3128/ Authorization: Basic abc")
    'http://(hidden)@proxy:3128/ Authorization: (hidden)'
    """
    text = _PEM.sub(HIDDEN, text)
    for pattern in (_HEADER, _ASSIGNED, _OPTION):
        text = pattern.sub(lambda found: found["name"] + found["sep"] + HIDDEN, text)
    text = _URL.sub(lambda found: f"{found['name']}{HIDDEN}@", text)
    return _KNOWN.sub(HIDDEN, text)


def redact_data(value: Any) -> Any:
    """
    The same for data of JSON: every text, and whatever stands under a secret-looking name.

    >>> redact_data({"API_KEY": "x", "args": ["--hf-token abc"]})
    {'API_KEY': '(hidden)', 'args': ['--hf-token (hidden)']}
    """
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redact_data(v) for v in value]
    if isinstance(value, dict):
        return {
            k: HIDDEN if isinstance(v, str) and v and _is_secret(k) else redact_data(v)
            for k, v in value.items()
        }
    return value


def _is_secret(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+", name) and _SECRET.search(name))
