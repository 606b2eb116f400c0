"""
Certain repairs; each changes one line and nothing else in it.

    repaired, done, left = repair({"job.sh": text})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ringup.launchfiles.files import Nearby
from ringup.launchfiles.programs import DASHES
from ringup.lint import NOT_READABLE, lint
from ringup.lint.settings import FILTERS
from ringup.nccl import variables
from ringup.rules import Finding

LINE_CHARACTERS = 4096
_IGNORED = re.compile(r"#\s*ringup:\s*ignore(?:\[([\w\s,-]{0,400})\])?")
PASSES = 20
"""A line may have several faults, and one is repaired at a time."""


def place(where: str) -> tuple[str, int]:
    """
    >>> place("job.sh:3"), place("job.sh")
    (('job.sh', 3), ('job.sh', 0))
    """
    path, _, line = where.rpartition(":")
    return (path, int(line)) if line.isascii() and line.isdigit() else (where, 0)


def line_of(files: Mapping[str, str], finding: Finding) -> str:
    path, number = place(finding.where)
    lines = files.get(path, "").split("\n")
    return lines[number - 1].removesuffix("\r") if 0 < number <= len(lines) else ""


def not_ignored(findings: Sequence[Finding], files: Mapping[str, str]) -> list[Finding]:
    """The findings without those that an ignore comment on their line covers."""

    def is_ignored(finding: Finding) -> bool:
        found = _IGNORED.search(line_of(files, finding)[:LINE_CHARACTERS])
        return found is not None and (found[1] is None or finding.rule in re.split(r"[\s,]+", found[1]))

    return [finding for finding in findings if not is_ignored(finding)]


# -- one line --------------------------------------------------------------------------------------


def _name(finding: Finding) -> str:
    return finding.subject.removeprefix("env:")


def _value_of(name: str) -> str:
    """The text in front of a value: NAME=, NAME=" in a shell; "NAME"] = " and similar in Python."""
    return rf"""(\b{re.escape(name)}(?:=["']?|["']\]?\s*[=,:]\s*["']))"""


def _in_order(line: str, finding: Finding, following: str) -> str:
    """NCCL's `^` and `=` once and in this order, the names after them without blanks."""
    signs = re.compile(_value_of(_name(finding)) + r"(=*\^=*|==+)")
    line = signs.sub(lambda m: f"{m[1]}{'^' * ('^' in m[2])}{'=' * ('=' in m[2])}", line)
    value = re.compile(_value_of(_name(finding)) + r"""([^"'\n]*)(?=["'])""")
    return value.sub(lambda m: m[1] + _without_blanks(m[2]), line)


def _without_blanks(names: str) -> str:
    """
    >>> _without_blanks(" a , b,\tc ")
    ' a,b,c '
    """
    parts = names.split(",")
    parts[1:] = [part.lstrip(" \t") for part in parts[1:]]
    parts[:-1] = [part.rstrip(" \t") for part in parts[:-1]]
    return ",".join(parts)


REPAIRS: dict[str, Callable[[str, Finding, str], str]] = {
    "unknown-nccl-variable": lambda line, finding, following: re.sub(
        rf"\b{re.escape(_name(finding))}\b", finding.wanted, line
    ),
    "value-begins-with-equals": lambda line, finding, following: re.sub(
        _value_of(_name(finding)) + r"=+", r"\1", line
    ),
    "nccl-filter-never-matches": _in_order,
    # Text editors and web pages turn two hyphens into one dash, but never a single hyphen.
    "dash-is-no-hyphen": lambda line, finding, following: re.sub(
        rf"(?<=\s)[{DASHES}]{{1,2}}(?=[A-Za-z][\w-]{{2}})", "--", line
    ),
    "backslash-before-space": lambda line, finding, following: (
        line.rstrip(" \t") if following.lstrip().startswith("-") else line
    ),
    "export-takes-further-words": lambda line, finding, following: re.sub(
        r"^(\s*export\s+[A-Za-z_]\w*)\s+=\s+(?=[^\s=]+\s*$)", r"\1=", line
    ),
}
"""Rule -> the corrected line, from the line, the finding and the next line; unchanged if no repair."""
KNOWN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "OMP_NUM_THREADS")


def _is_certain(files: Mapping[str, str], findings: Sequence[Finding], finding: Finding) -> bool:
    name, path = _name(finding), place(finding.where)[0]
    if finding.rule == "value-begins-with-equals":
        return name in KNOWN or (name in variables.TABLE and name not in FILTERS)
    if finding.rule != "unknown-nccl-variable":
        return True
    # If the name is read or set elsewhere, or the right one is set next to it, it may be intended.
    word = re.compile(rf"\b{re.escape(name)}\b")
    used = sum(bool(word.search(line)) for text in files.values() for line in text.split("\n"))
    found = sum(f.rule == finding.rule and f.subject == finding.subject for f in findings)
    is_set = re.search(rf"\b{re.escape(finding.wanted)}\b[\"']?\]?\s*[=,]", files[path])
    return used == found and not is_set and variables.only_candidate(name) == finding.wanted


def _repaired_line(files: Mapping[str, str], findings: Sequence[Finding], finding: Finding) -> str | None:
    line = line_of(files, finding)
    is_kept = finding.rule not in REPAIRS or _IGNORED.search(line) or "\ufffd" in line
    if is_kept or len(line) > LINE_CHARACTERS or not _is_certain(files, findings, finding):
        return None
    path, number = place(finding.where)
    new = REPAIRS[finding.rule](line, finding, (*files[path].split("\n")[number : number + 1], "")[0])
    return new if new != line else None


# -- all of them -----------------------------------------------------------------------------------


def repair(
    files: Mapping[str, str], nearby: Nearby | None = None, findings: list[Finding] | None = None
) -> tuple[dict[str, str], list[Finding], list[Finding]]:
    """
    The files with certain repairs, the findings that these ended, and the remaining ones.

    `findings`: those of the files as they are, if they are known.  A repair is undone if its finding is
    still there, or if Python can no longer read the script.
    """
    now, done = dict(files), list[Finding]()
    findings = not_ignored(lint(now, nearby) if findings is None else findings, now)
    given_up: set[tuple[str, str]] = set()
    for _ in range(PASSES):
        touched: set[str] = set()
        trial, tried = dict(now), list[Finding]()
        for finding in findings:
            new = _repaired_line(now, findings, finding)
            if new is None or finding.where in touched or (finding.rule, finding.where) in given_up:
                continue
            path, number = place(finding.where)
            lines = trial[path].split("\n")
            trial[path] = "\n".join([*lines[: number - 1], new, *lines[number:]])
            touched.add(finding.where)
            tried.append(finding)
        if not tried:
            break
        after = not_ignored(lint(trial, nearby), trial)
        left = {(f.rule, f.where, f.found) for f in after}
        broken = {place(f.where)[0] for f in after if f.rule == NOT_READABLE.name}
        bad = [f for f in tried if (f.rule, f.where, f.found) in left or place(f.where)[0] in broken]
        given_up |= {(f.rule, f.where) for f in bad}
        if not bad:
            now, findings, done = trial, after, done + tried
    return now, done, findings
