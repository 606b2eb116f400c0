"""What is sent to the nodes: all modules that are needed, the same code, less text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ringup import agent_bundle
from ringup.transport import bootstrap

SOURCE = Path(agent_bundle.__file__).parent
SENT = [*sorted((SOURCE / "agent").rglob("*.py")), SOURCE / "secret_names.py", SOURCE / "link_kinds.py"]
BY_NAME = [path.relative_to(SOURCE).as_posix() for path in SENT]


class Undocumented(ast.NodeTransformer):
    """Every text that stands alone becomes an empty one."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
        return node


@pytest.mark.parametrize("path", SENT, ids=BY_NAME)
def test_only_docstrings_are_left_out(path: Path) -> None:
    text = path.read_text()
    sent = agent_bundle.without_docstrings(text)
    assert ast.dump(ast.parse(sent)) == ast.dump(Undocumented().visit(ast.parse(text)))
    assert sent.count("\n") == text.count("\n")
    code = [line for line in sent.splitlines() if '""' not in line and line.strip()]
    numbers = {line: number for number, line in enumerate(text.splitlines(), 1) if text.count(line) == 1}
    at = {line: number for number, line in enumerate(sent.splitlines(), 1)}
    assert all(at[line] == numbers[line] for line in code if line in numbers)


@pytest.mark.parametrize("path", SENT, ids=BY_NAME)
def test_imports_are_found_as_the_parser_finds_them(path: Path) -> None:
    expected = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringup"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            is_module = (SOURCE.parent / f"{str(node.module).replace('.', '/')}.py").is_file()
            expected |= {str(node.module)} if is_module else set(names)
    assert set(agent_bundle.imported(path.read_text())) == expected


def test_a_program_fits_into_one_argument() -> None:
    """Linux takes 128 KiB; variables of the job travel beside it."""
    for name in ("facts.main", "guard.main", "pairtest.main", "snapshot.main", "clean.main"):
        parts = [f"facts.{path.stem}" for path in (SOURCE / "agent" / "facts").glob("*.py")]
        assert len(agent_bundle.program(name, *(parts if name == "facts.main" else ()))) < 96 << 10


@pytest.mark.parametrize("how", ["request", "argument"])
def test_files_of_the_current_folder_take_no_modules_place(tmp_path: Path, how: str) -> None:
    """A training folder may have a re.py or queue.py, and a stranger's project a selectors.py."""
    for name in ("re", "zlib", "selectors", "tokenize", "queue", "subprocess"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')\n")
    packed = agent_bundle.pack(
        {"ringup.agent.x": "import re, selectors, queue, subprocess\nprint('own')"}, "ringup.agent.x"
    )
    words, data = [sys.executable, "-S", "-c", packed], b""
    if how == "request":
        script, data = bootstrap.python_script(sys.executable, "ringup-x", packed, ())
        words = ["sh", "-c", script]
    done = subprocess.run(words, input=data, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.stdout == b"own\n", done.stderr
