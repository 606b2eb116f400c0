"""
Which error messages of the field does `ringup logs` know?

    python tools/wordings.py SOURCE... [--show unread|generic|named] [--grep WORD]

A SOURCE is a file or folder of the programs whose messages logs hold:

    *.json     NCCL's warnings: {"entries": [{"level": "WARN", "template": "...", "severity": "error"}]}
    *.so       a shared library: its printable strings about ranks, stores and connections (torch's libraries)
    folder     sources: raise and parser.error() of Python, warning and error macros of C and C++, and the
               help-*.txt of Open MPI and PRRTE

Each message, with its placeholders filled, becomes a log of its own and is diagnosed.  It is named (a cause
reads it), generic (an exception or an NCCL error that is only quoted) or unread.  The table counts them by
source; a share of 100 % is no aim: many messages are a programmer's mistake, which its exception explains.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ringup.logs.read import read_logs

GENERIC = {"rank-raised-exception", "nccl-error-without-detail"}
"""Causes that quote a message and do not know it."""
STATES = ("named", "generic", "unread")

ABOUT = re.compile(
    r"(?i)\b(?:ranks?|store|rendezvous|process ?group|collectives?|nccl|gloo|socket|timed? ?out|watchdog|peer"
    r"|connect\w*|world.?size|barrier|listen|address|host(?:name)?|interface|worker)\b"
)
FAILS = re.compile(
    r"(?i)fail|error|unable|cannot|can't|could not|invalid|not (?:found|supported|enough|set|allowed)|refused"
    r"|unexpected|mismatch|timed? ?out|timeout|exceed|missing|must|expected|abort|already|different|closed"
)
MACRO = re.compile(
    r"\b(?:\w*(?:WARN|ERR|ERROR|FATAL|CHECK\w*|ENFORCE\w*|THROW\w*)\w*|ucs_\w*(?:error|warn|fatal|diag))\s*\("
)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
PLACEHOLDER = re.compile(r"%[-+ #0]*\d*(?:\.\d+|\.\*)?(?:hh|h|ll|l|z|j|t)?(?P<kind>[a-zA-Z])|\{[^{}]*\}")


def filled(template: str) -> str:
    """A message with values where its placeholders are."""

    def value(match: re.Match[str]) -> str:
        kind = match["kind"] or "s"
        return {"s": "word", "p": "0x7f10", "x": "1f", "c": "c"}.get(
            kind, "3" if kind in "diufgeEGX" else "word"
        )

    text = template.replace('" PRIu64 "', "3").replace("\\n", " ").replace('\\"', '"').replace("\\t", " ")
    return " ".join(PLACEHOLDER.sub(value, text.replace("%%", "%")).split())


def of_nccl(path: Path) -> Iterator[tuple[str, str]]:
    for entry in json.loads(path.read_text())["entries"]:
        if entry["level"] == "WARN" and entry["severity"] in ("error", "fatal", "secondary"):
            yield f"NCCL ({entry['severity']})", f"n0:5:9 [0] any.cc:50 NCCL WARN {filled(entry['template'])}"


def of_library(path: Path) -> Iterator[tuple[str, str]]:
    data = path.read_bytes()
    for raw in dict.fromkeys(re.findall(rb"[\x20-\x7e]{24,400}", data)):
        text = raw.decode().strip()
        if (
            text.count(" ") > 3
            and ABOUT.search(text)
            and FAILS.search(text)
            and not re.match(r"[\w:]+\(", text)
        ):
            yield path.name, f"[rank1]: RuntimeError: {filled(text)}"


def literal(node: ast.AST | None) -> str:
    """The text of a string expression; what is computed becomes {}."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        right = literal(node.right) if isinstance(node.op, ast.Add) else ""
        return literal(node.left) + right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return literal(node.func.value)
    return ""


def of_python(path: Path, name: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call) or not call.args or not (text := literal(call.args[0])):
            continue
        said = filled(text)
        if len(said) < 12:
            continue
        if isinstance(node, ast.Raise):
            raised = ast.unparse(call.func).rpartition(".")[2]
            where = '  File "/job/train.py", line 9, in <module>'
            yield name, f"Traceback (most recent call last):\n{where}\n{raised}: {said}"
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("error", "critical", "fatal"):
            of_usage = "parser" in ast.unparse(call.func.value)
            yield name, f"{'launch.py: error: ' if of_usage else '[ERROR] '}{said}"


def of_c(path: Path, name: str) -> Iterator[tuple[str, str]]:
    source = path.read_text(encoding="utf-8", errors="replace")
    for match in MACRO.finditer(source):
        call = source[match.end() : match.end() + 800].split(";")[0]
        said = filled("".join(LITERAL.findall(call)))
        if said.count(" ") > 1 and FAILS.search(said):
            yield name, said


def of_help(path: Path, name: str) -> Iterator[tuple[str, str]]:
    """One message a topic, as mpirun prints it."""
    for topic in re.split(r"^\[[^\]]+\]\n", path.read_text(errors="replace"), flags=re.M)[1:]:
        lines = [filled(line) for line in topic.splitlines() if line.strip() and line[0] != "#"]
        if lines and FAILS.search(topic):
            yield name, "\n".join(lines)


def messages(sources: list[Path]) -> Iterator[tuple[str, str]]:
    """Source and message, each once."""
    for source in sources:
        name = f"{source.parent.name}/{source.name}"
        if source.suffix == ".json":
            yield from of_nccl(source)
        elif source.suffix == ".so":
            yield from of_library(source)
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if re.search(r"tests?[/_.]|testing", str(path.relative_to(source))):
                continue
            if path.suffix == ".py":
                yield from of_python(path, name)
            elif path.suffix in (".c", ".cc", ".cpp", ".h", ".hpp", ".cu"):
                yield from of_c(path, name)
            elif path.name.startswith("help-") and path.suffix == ".txt":
                yield from of_help(path, name)


def answer(log: Path, text: str) -> str:
    """The name of the first cause of a log that holds nothing else, "" for none."""
    log.write_text(text + "\n", encoding="utf-8")
    causes = read_logs([str(log)]).causes
    return causes[0].rule if causes else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0].strip())
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE")
    parser.add_argument("--show", choices=STATES, help="list the messages of this state")
    parser.add_argument("--grep", default="", help="only messages that hold this expression")
    args = parser.parse_args()
    counted: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for source, text in dict.fromkeys(messages(args.sources)):
            if not re.search(args.grep, text):
                continue
            rule = answer(Path(folder) / "one.log", text)
            state = "unread" if not rule else "generic" if rule in GENERIC else "named"
            counted.setdefault(source, Counter())[state] += 1
            if state == args.show:
                print(f"{source:16} {rule:28} {text.splitlines()[-1][:220]}")
    total = sum(counted.values(), Counter[str]())
    print(f"{'source':24} {'messages':>8} " + " ".join(f"{state:>13}" for state in STATES))
    for source, states in [*counted.items(), ("all", total)]:
        number = sum(states.values())
        shares = " ".join(f"{states[s]:5} ({states[s] / max(1, number):4.0%})" for s in STATES)
        print(f"{source:24} {number:8} {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
