"""
Every command that the documentation shows runs, and prints what is shown.

A ```` ```console ```` block is a list of `$ COMMAND` lines, each with its output (stdout and stderr on a
terminal of 80 columns, no colour); after a command that ends in a backslash, lines `> ...` continue it.
`...` alone on a line is any number of lines.  The blocks of a page run in order in one copy of docs/examples
(shown as /home/you/job).  A comment on the line before a block says what else it needs:

    <!-- console: slow -->                      over a second: `make lab` runs it
    <!-- console: torch -->                     starts ranks that import torch: `make lab` runs it
    <!-- console: lab --fault article-002 -->   on node0 of a lab (options of `python -m tests.lab shell`)

Blocks with `-H node...` run on a lab without a comment, too.  RINGUP_DOCS=write rewrites stale outputs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.__main__ import arguments, broken_lab

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^ *<!-- console: (?P<how>[^\n]*) -->\n+)?^(?P<indent> *)```console\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
HOME = "/home/you"
ENVIRONMENT = {
    "COLUMNS": "80",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LC_ALL": "C.UTF-8",
    "PYTHONWARNINGS": "ignore",
}
ALIKE = {
    r"\d+(\.\d+)? (m?s|min|h|d)\b( \d+ (min|h)\b)?": "N s",
    r"\d+(\.\d+)? GB/s(, not \d+(\.\d+)?)?": "N GB/s",
    r"\bpids? \d+(, \d+)*": "pid N",
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?Z?)?|\b\d\d:\d\d:\d\d": "TIME",
    r"\b\d{8}-\d{6}-\w+": "RUN",
    r"\b29[5-9]\d\d\b": "PORT",
    r"\bloss \d+\.\d+": "loss N",
    r"(?<=\S)  +(?=\S)": "  ",  # a column is as wide as its widest cell
}
"""What differs from run to run, and what it counts as when two outputs are compared."""
OWN_WARNING = re.compile(r"^(\S+\| )?\[[WI]\d{4} [\d:.]+ ")
"""A warning of torch's own library: it depends on the moment and on how the machine names itself."""
TOO_BUSY, TRIES = ("no CPU time", "answered after ", "(tcp-retransmits-high)"), 3
"""What is said of a machine that is busy, and no page shows; then it is asked again, as is advised."""
SERVER = """
import importlib, json, os, pkgutil, pty, signal, sys
import ringup.checks, ringup.cli, ringup.cli.command_line, ringup.lint, ringup.logs.causes
for module in pkgutil.walk_packages(ringup.cli.__path__, "ringup.cli."):
    importlib.import_module(module.name)
for line in sys.stdin:
    argv, cwd = json.loads(line)
    pid, terminal = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(cwd)
        os.environ["HOME"] = os.path.dirname(cwd)
        if argv[0] != "ringup":
            # As in a shell of a person: a program whose reader (`| head`) has left ends in silence.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvp(argv[0], argv)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
        sys.argv = argv
        try:
            ringup.cli.command_line.main()
        except SystemExit as left:
            sys.stdout.flush()
            os._exit(left.code or 0)
    output, ends = b"", 0
    while ends < 2:  # the command has closed its end; its last line may come after the first error
        try:
            data = os.read(terminal, 65536)
        except OSError:
            data = b""
        output, ends = output + data, 0 if data else ends + 1
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps([output.decode("utf-8", "replace"), code]), flush=True)
"""
"""Has ringup imported and forks for each command, on a terminal of its own."""
IN_TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""

Runner = Callable[[str, int], tuple[str, int]]
"""A command and the exit code of the one before -> output, exit code."""


def commands(block: str) -> list[tuple[str, list[str]]]:
    """The `$ ` lines of a block, each with the output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1] and line.startswith("> "):
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            assert found, f"a console block begins with a `$ ` line, not with {line!r}"
            found[-1][1].append(line)
    return found


def comparable(line: str) -> str:
    for pattern, same in ALIKE.items():
        line = re.sub(pattern, same, line)
    return line.rstrip()


def matches(shown: list[str], printed: list[str]) -> bool:
    wanted = "".join(r"(?:.*\n)*?" if s.strip() == "..." else re.escape(comparable(s)) + r"\n" for s in shown)
    lines = [comparable(line) for line in printed if not OWN_WARNING.match(line)]
    return bool(re.fullmatch(wanted, "".join(f"{line}\n" for line in lines)))


def rewritten(shown: list[str], printed: list[str]) -> list[str]:
    """What was printed, with `...` where the page left the same lines out."""
    lines: list[str] = []
    old, new = [comparable(line) for line in shown], [comparable(line) for line in printed]
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        is_kept = tag == "equal" or [line.strip() for line in old[i1:i2]] == ["..."]
        lines += shown[i1:i2] if is_kept else printed[j1:j2]
    return lines


def blocks(page: Path) -> list[tuple[re.Match[str], str]]:
    """Blocks of a page with their kind: "", slow, torch, or "lab ..."."""
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        needs_nodes = re.search(r"^\$ ringup .*(-H|--hosts) ?'?node", match["text"], re.MULTILINE)
        found.append((match, match["how"] or ("lab" if needs_nodes else "")))
    return found


def check(page: Path, kind: str, run: Runner) -> None:
    """Run the blocks of this kind; stale ones are rewritten with RINGUP_DOCS=write, else they fail."""
    text, stale = page.read_text(encoding="utf-8"), []
    for match, how in blocks(page):
        code, new = 0, []
        for command, shown in commands(re.sub(f"^{match['indent']}", "", match["text"], flags=re.M)) * (
            how == kind
        ):
            if command.endswith("--help") and sys.version_info[:2] != (3, 11):
                continue  # argparse's layout differs between versions; the pages are written with 3.11
            for _ in range(TRIES):
                output, ended = run(command, code)
                printed = output.replace("\r\n", "\n").splitlines()
                said = " ".join(output.split())
                is_busy = any(words in said for words in TOO_BUSY)
                if matches(shown, printed) or not is_busy:
                    break
            code = ended
            if not matches(shown, printed) and not is_busy:  # rates and load are told by tests of their own
                stale += [
                    f"$ {command}",
                    *difflib.unified_diff(shown, printed, "shown", "printed", "", "", 3, ""),
                ]
                shown = rewritten(shown, printed)
            new += [*f"$ {command}".replace("\n", "\n> ").splitlines(), *shown]
        if new:
            body = "".join(f"{match['indent']}{line}".rstrip() + "\n" for line in new)
            text = text.replace(match[0], match[0].replace(match["text"], body), 1)
    if stale and os.environ.get("RINGUP_DOCS") == "write":
        page.write_text(text, encoding="utf-8")
    elif stale:
        pytest.fail(
            f"stale output in {page.relative_to(ROOT)}; run `make docs`:\n" + "\n".join(stale), pytrace=False
        )


def cases() -> list[Any]:
    found = []
    marks = {"slow": [pytest.mark.slow], "torch": [pytest.mark.torch], "lab": [pytest.mark.lab]}
    for page in PAGES:
        for kind in dict.fromkeys(how for _, how in blocks(page)):
            name = f"{page.relative_to(ROOT)}{f'-{kind}' if kind else ''}"
            found.append(pytest.param(page, kind, id=name, marks=marks.get(kind.split(" ")[0], [])))
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[list[str], Path], tuple[str, int]]]:
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("RINGUP_", "NCCL_", "SLURM_", "PYTEST_"))
    }
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**kept, **ENVIRONMENT, "PATH": path},
    ) as process:
        assert process.stdin and process.stdout

        def ask(argv: list[str], cwd: Path) -> tuple[str, int]:
            print(json.dumps([argv, str(cwd)]), file=process.stdin, flush=True)
            output, code = json.loads(process.stdout.readline())
            return output, code

        yield ask
        process.stdin.close()


@pytest.fixture
def job() -> Iterator[Path]:
    """A copy of docs/examples, where the hosts of a lab see it, too."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        shutil.copytree(ROOT / "docs" / "examples", Path(folder) / "job")
        yield Path(folder) / "job"


@pytest.mark.parametrize(("page", "kind"), cases())
def test_a_shown_command_prints_what_is_shown(page: Path, kind: str, job: Path, server: Any) -> None:
    def run_here(command: str, last: int) -> tuple[str, int]:
        words = shlex.split(command) if not re.search(r"[|&;<>$*?(){}~`\\#]", command) else []
        argv = words if words[:1] == ["ringup"] else ["bash", "-c", f"(exit {last})\n{command}"]
        output, code = server(argv, job)
        return output.replace(str(job.parent), HOME).replace(sys.prefix, f"{HOME}/venv"), code

    if not kind.startswith("lab"):
        check(page, kind, run_here)
        return
    with broken_lab(arguments().parse_args(["shell", "--venv-on-path", *kind.split()[1:]])) as lab:

        def run_in_lab(command: str, last: int) -> tuple[str, int]:
            argv = [sys.executable, "-c", IN_TERMINAL, "bash", "-c", f"(exit {last})\n{command}"]
            done = lab.run(lab.hosts[0], argv, env=ENVIRONMENT, cwd=job, timeout_s=300)
            return (done.stdout + done.stderr).replace(str(job.parent), HOME).replace(
                sys.prefix, f"{HOME}/venv"
            ), done.returncode

        check(page, kind, run_in_lab)


def test_three_dots_are_any_lines_and_nothing_else_is() -> None:
    printed = ["one", "two", "three 1.5 s", "pid 77"]
    assert matches(["one", "...", "pid 8"], printed) and matches(["...", "three 20 ms", "..."], printed)
    assert not matches(["one", "two"], printed) and not matches(["one", "...", "three 3 s"], printed)
    assert not matches(["one", "... two", "three 1.5 s", "pid 77"], printed)


def test_a_rewritten_output_leaves_out_what_was_left_out() -> None:
    shown, printed = ["one", "...", "four", "five"], ["one", "2", "3", "four", "5"]
    assert rewritten(shown, printed) == ["one", "...", "four", "5"]
    assert rewritten([], printed) == printed
    assert rewritten(["took 1 s", "...", "end"], ["took 2 s", "x", "END"])[:1] == ["took 1 s"]


def test_a_block_is_commands_with_their_outputs() -> None:
    assert commands("$ a \\\n> b\nc\n$ d\n") == [("a \\\nb", ["c"]), ("d", [])]


def test_a_program_whose_reader_has_left_says_nothing(server: Any, tmp_path: Path) -> None:
    assert server(["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"], tmp_path) == ("y\r\n141\r\n", 0)
