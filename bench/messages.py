#!/usr/bin/env python3
"""
Messages of other programs, one log each: which of them does `ringup logs` name with confidence?

Give folders of their sources (a checkout, an unpacked wheel).  Python: what is raised, and what is logged;
C, C++ and Go: strings given to a call whose name contains err, warn or fatal.  Nearly all of them mean
something else than a known cause, so each row that is printed is to be read: a wrong one is a pattern that
is too wide.  With --sound the message stands in a training that goes on: then every row is a false alarm.

Ends with 1 if --most is given and more messages than that are named.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ringup.logs.read import read_logs

STEPS = "".join(f"step {n}/5000 | loss {3 - n * 0.01:.3f} | lr 1e-4\n" for n in range(1, 30))
SHORTEST, MOST_CHARS = 10, 2000
_FORMAT = re.compile(r"%(?:%|[-+ #0]*\d*\.?\d*(?:hh|h|ll|l|z|j)?[sdiuxXpPfcmgv]|\(\w+\)s)|\{[^{}]{0,40}\}")
_STRING = r"\"((?:[^\"\\]|\\.)*)\""
_CALL = re.compile(
    rf"\b(\w*(?:[Ee]rr|ERR|[Ww]arn|WARN|[Ff]atal|FATAL)\w*)\s*\((?:[^\"();]{{0,80}},)?\s*((?:{_STRING}\s*)+)"
)
_LOGGED = {"error", "warning", "critical", "exception"}
_RAISED_BY_ITS_NAME = "rank-raised-exception"
"""The right answer for what a program raises."""


def filled(text: str) -> str:
    """The message with something in the place of each value."""
    text = _FORMAT.sub("4", text.replace("\\n", " ").replace('\\"', '"').replace("\\t", " "))
    return " ".join(text.split())[:MOST_CHARS]


def constant(node: ast.expr) -> str:
    """The text of a string, of an f-string, or of the parts of a sum."""
    match node:
        case ast.Constant(str() as text):
            return text
        case ast.JoinedStr(parts):
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "4" for p in parts)
        case ast.BinOp(left, ast.Add(), right):
            return constant(left) + constant(right)
        case ast.BinOp(left, ast.Mod(), _) | ast.Call(ast.Attribute(left, "format")):
            return constant(left)
    return ""


def of_python(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(_, level), [first, *_]) if level in _LOGGED:
                if text := constant(first):
                    name = "ERROR" if level == "exception" else level.upper()
                    yield f"{name} 08-12 10:00:01 [{path.name}:{node.lineno}] {filled(text)}"
            case ast.Raise(ast.Call(ast.Name(kind) | ast.Attribute(_, kind), [first, *_])):
                if text := constant(first):
                    yield (
                        f'Traceback (most recent call last):\n  File "/site-packages/{path.name}", line '
                        f"{node.lineno}, in forward\n    raise {kind}(\n{kind}: {filled(text)}"
                    )


def of_c(path: Path) -> Iterator[str]:
    for call, strings, _ in _CALL.findall(path.read_text(encoding="utf-8", errors="replace")):
        level = "WARNING" if "warn" in call.lower() else "FATAL" if "fatal" in call.lower() else "ERROR"
        text = filled("".join(re.findall(_STRING, strings)))
        if len(text) >= SHORTEST:
            yield f"[{level}] {path.name}:120: {text}"


def messages(folders: list[Path]) -> Iterator[str]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".py":
                yield from of_python(path)
            elif path.suffix in (".c", ".cc", ".cpp", ".h", ".go") and path.is_file():
                yield from of_c(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--sound", action="store_true", help="within a training that goes on")
    parser.add_argument("--most", type=int, help="named messages that are allowed")
    args = parser.parse_args()
    seen: set[str] = set()
    named = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        for text in messages(args.folders):
            if text in seen or (args.sound and text.startswith("Traceback")):
                continue
            seen.add(text)
            log.write_text(f"{STEPS}{text}\n{STEPS}" if args.sound else f"{text}\n", encoding="utf-8")
            first = next((c for c in read_logs([str(log)]).causes if c.severity == "error"), None)
            if first is None or (first.rule == _RAISED_BY_ITS_NAME and not args.sound):
                continue
            if args.sound or first.confidence != "low":
                named += 1
                print(f"{first.rule} ({first.confidence}): {text.splitlines()[-1][:160]}")
    print(f"{len(seen)} messages, {named} named")
    return int(args.most is not None and named > args.most)


if __name__ == "__main__":
    sys.exit(main())
