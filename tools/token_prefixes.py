"""
Beginnings of the tokens that gitleaks knows, for src/ringup/token_prefixes.txt.

    python tools/token_prefixes.py gitleaks.toml > src/ringup/token_prefixes.txt

gitleaks (MIT licence) keeps one rule for each service: config/gitleaks.toml of github.com/gitleaks/gitleaks.
A rule counts whose pattern begins with one of its keywords; ours asks only that 16 random characters follow,
so that a token of another length, or one that is cut, is hidden too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

TOO_COMMON = {
    "api-", "pat.", "sat.", "sc_", "ext_", "s.", "ey", "sk", "q~", "eaaa", "4b1d", "ico-", "pul-", "intra",
    "-----begin", "<add key=", "curl", "_gitlab_session=", "v1.0-", "cmvmd", "zxlk",
}  # fmt: skip
"""Beginnings of ordinary words, and what is no beginning."""


OPENING = r"(\(\?i\)|\\b|\(\?:|\(|[\w\[\]-]+\|)*"
"""Of a pattern, before a literal beginning: flags, groups and other beginnings."""


def prefixes(rules: list[dict[str, object]]) -> set[str]:
    """Every literal beginning of a rule's token, in the rule's own letters."""
    found = set()
    for rule in rules:
        pattern = re.sub(r"\\([.-])", r"\1", str(rule.get("regex", "")))
        for keyword in rule.get("keywords") or ():  # type: ignore[attr-defined]
            place = pattern.lower().find(keyword)
            begins = place >= 0 and re.fullmatch(OPENING, pattern[:place])
            if begins and len(keyword) > 2 and keyword not in TOO_COMMON and "://" not in keyword:
                found.add(pattern[place : place + len(keyword)])
    return found


if __name__ == "__main__":
    rules = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rules"]
    print("# Made by tools/token_prefixes.py from gitleaks' config/gitleaks.toml (MIT licence).")
    print("\n".join(sorted(prefixes(rules))))
