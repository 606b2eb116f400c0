"""
The file of `accelerate launch --config_file`, as `accelerate config` and people write it: flat YAML, or JSON.

A reader of that form alone: what is another form of YAML is an error, not a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_ENTRY = re.compile(r"( *)([A-Za-z_]\w*):(?:[ \t]+(.*))?")
_PLAIN = re.compile(r"[^\s\[\]{}&*!|>'\"%@`,?#:-](?:[^\s:#]|:(?=\S)|(?<=\S)#|[ \t](?!#))*|-\d+")
NULL = ("", "null", "Null", "NULL", "~", "{}", "[]")


def settings(text: str) -> list[tuple[str, str]]:
    """
    (key, value) of every scalar at the top and in the blocks below it, "" for null.

    Raises ValueError for what is not understood.

    >>> settings("num_machines: 2  # nodes\\nmain_process_ip: '10.0.0.1'\\nfsdp_config:\\n  a: 2\\n")
    [('num_machines', '2'), ('main_process_ip', '10.0.0.1'), ('fsdp_config', ''), ('a', '2')]
    """
    found = list(_of_json(text) if text.lstrip()[:1] == "{" else _of_yaml(text))
    twice = {name for name, _ in found if [n for n, _ in found].count(name) > 1}
    if twice:
        raise ValueError(f"{min(twice)} is there twice")
    return found


def _of_json(text: str) -> Iterator[tuple[str, str]]:
    for name, value in json.loads(text).items():
        yield from [(name, "")] if isinstance(value, dict | list) else [(name, _shown(value))]
        inner = value.items() if isinstance(value, dict) else ()
        yield from ((key, _shown(each)) for key, each in inner if not isinstance(each, dict | list))


def _shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _of_yaml(text: str) -> Iterator[tuple[str, str]]:
    block, is_open = 0, False  # spaces before the entries of a block; whether the last key at the top has one
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#") or (bare == "---" and number == 1):
            continue
        entry = _ENTRY.fullmatch(line.rstrip())
        if (bare.startswith("- ") or bare == "-") and is_open:  # a list: accelerate's are for TPUs
            continue
        indent = len(entry[1]) if entry else 0
        is_inside = is_open and indent >= (block or 1)
        if entry is None or (indent and not is_inside):
            raise ValueError(f"line {number} is not understood: {bare[:60]}")
        block = 0 if not indent else block or indent
        if indent > block:  # deeper: neither counts nor addresses
            continue
        value = _scalar(entry[3] or "", number)
        is_open = is_open if indent else not value
        yield entry[2], value


def _scalar(written: str, number: int) -> str:
    quoted = re.fullmatch(r"""'([^']*)'(?:\s+#.*)?|"([^"\\]*)"(?:\s+#.*)?""", written)
    bare = re.split(r"(?:^|\s)#", written)[0].strip()
    if quoted:
        return quoted[1] or quoted[2] or ""
    if bare in NULL:
        return ""
    if not _PLAIN.fullmatch(bare):
        raise ValueError(f"line {number} is not understood: {bare[:60]}")
    return bare
