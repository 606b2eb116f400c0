"""Imports point down the list of layers, and only the doors touch machines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ringup"

LAYERS = {
    "units": 0,
    "errors": 0,
    "redact": 0,
    "facts": 1,
    "rules": 1,
    "problems": 1,
    "hosts": 1,
    "parse": 1,
    "nccl": 1,
    "gloo": 1,
    "reachability": 1,
    "bundle": 1,
    "flight": 1,
    "ras": 1,
    "looks": 2,
    "reach": 2,
    "lint": 2,
    "probes": 3,
    "checks": 3,
    "plan": 3,
    "logs": 3,
    "launch": 4,
    "prove": 5,
    "watch": 5,
    "clean": 5,
    "stacks": 5,
    "chosen": 5,
    "script": 5,
    "report": 6,
    "page": 7,
    "commands": 8,
    "cli": 9,
    "__main__": 10,
}
"""Layer of each part; siblings in layer 3 and up never import each other."""

PURE = ("checks", "plan", "nccl", "parse", "gloo", "reachability")
PURE += ("logs/lines", "logs/story", "logs/causes", "logs/counts", "logs/tails")
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p.parent.name != "payload")


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> list[str]:
    """Dotted names of everything a module imports, wherever the import stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    own = part(path)
    if own == "__init__":
        return
    for name in imports(ast.parse(path.read_text())):
        pieces = name.split(".")
        if pieces[0] != "ringup" or len(pieces) < 2 or pieces[1] in (own, "__version__"):
            continue
        other = pieces[1]
        assert other != "payload", f"{path} imports what is sent to the nodes"
        assert LAYERS[other] < LAYERS[own] or LAYERS[other] == LAYERS[own] == 1, f"{own} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_reach_and_payload_start_processes_or_open_sockets(path: Path) -> None:
    if part(path) == "reach":
        return
    for name in imports(ast.parse(path.read_text())):
        assert name.split(".")[0] not in ("subprocess", "socket", "asyncio", "multiprocessing.popen"), (
            f"{path} imports {name}"
        )


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_thinks_is_pure(path: Path) -> None:
    relative = str(path.relative_to(SOURCE)).removesuffix(".py")
    if not any(relative == p or relative.startswith(p + "/") for p in PURE):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open", f"{path}:{node.lineno} opens a file"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            impure = (node.value.id, node.attr) == ("os", "environ") or node.value.id == "time"
            assert not impure, f"{path}:{node.lineno} reads the clock or the environment"


def test_the_page_about_the_layers_shows_them_as_they_are() -> None:
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown: dict[str, int] = {}
    for number, names in re.findall(r"^\| (\d) \| ([^|:]+)", page, re.MULTILINE):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), int(number))
    expected = {name: layer for name, layer in LAYERS.items() if name != "__main__"}
    assert shown | {"cli": 9} == expected
    parts = {part(path) for path in MODULES} - {"__init__"}
    assert parts == set(LAYERS), "a part without a layer, or a layer without a part"


def test_payload_uses_the_standard_library_alone() -> None:
    import sys

    for path in sorted((SOURCE / "payload").glob("*.py")):
        for name in imports(ast.parse(path.read_text())):
            top = name.split(".")[0]
            # Parts of one program travel together; see launch/program.py.
            travels = (path.parent / f"{top}.py").exists()
            # Until Python 3.11; see payload/facts_files.py for what is taken instead.
            known = sys.stdlib_module_names | {"_sha256", "torch"}
            assert top in known or travels, f"{path.name} imports {name}"
