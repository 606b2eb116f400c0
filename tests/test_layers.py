"""Imports point down the list of layers, and only the doors touch machines."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tests import trees
from tests.trees import SOURCE

LAYERS = {
    "version": 0,
    "units": 0,
    "safe_files": 0,
    "addresses": 0,
    "errors": 0,
    "secret_names": 0,
    "link_kinds": 0,
    "keys": 0,
    "agent_bundle": 0,
    "model": 1,
    "progress": 1,
    "rules": 1,
    "hosts": 1,
    "parse": 1,
    "nccl": 1,
    "network": 1,
    "launchfiles": 1,
    "secrets": 1,
    "bundle": 1,
    "saved_run": 1,
    "flight_recorder": 1,
    "draw": 1,
    "transport": 2,
    "lint": 2,
    "collectors": 3,
    "checks": 3,
    "planning": 3,
    "logs": 3,
    "recovery": 4,
    "timeline": 4,
    "runtime": 5,
    "hang": 6,
    "collective_tests": 6,
    "jobfiles": 6,
    "output": 7,
    "differences": 7,
    "cli": 8,
    "__main__": 9,
}
"""Layer of each part; siblings in layer 3 and up never import each other."""

SHARED = (
    "ringup.agent.guard.arrivals",
    "ringup.agent.guard.messages",
    "ringup.agent.guard.tls",
    "ringup.agent.proc.process",
    "ringup.agent.snapshot.stack_frames",
)
"""The files of the agent that the launching side imports: both sides check, trust and choose alike."""
PURE = ("recovery", "checks", "planning", "nccl", "parse", "network", "draw")
PURE += ("logs/lines", "logs/evidence", "logs/causes", "logs/counts", "logs/grammar", "logs/quick_scan")
MODULES = sorted(p for p in SOURCE.rglob("*.py") if "agent" not in p.relative_to(SOURCE).parts)


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path) -> list[str]:
    """Dotted names of everything a module imports, wherever the import stands."""
    found = []
    for node in trees.nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_imports_point_down() -> None:
    for path in MODULES:
        own = part(path)
        for name in imports(path):
            pieces = name.split(".")
            is_inside = pieces[0] != "ringup" or len(pieces) < 2 or pieces[1] == own
            if own == "__init__" or is_inside or name in SHARED:
                continue
            other = pieces[1]
            assert other != "agent", f"{path} imports what is sent to the nodes"
            assert LAYERS[other] < LAYERS[own] or LAYERS[other] == LAYERS[own] == 1, f"{own} imports {other}"


def test_only_the_transport_and_the_agent_start_processes_or_open_sockets() -> None:
    doors = {"subprocess", "socket", "asyncio", "multiprocessing.popen"}
    for path in MODULES:
        for name in imports(path) if part(path) != "transport" else ():
            assert name.split(".")[0] not in doors, f"{path} imports {name}"


def test_what_thinks_is_pure() -> None:
    names = {path: str(path.relative_to(SOURCE)).removesuffix(".py") for path in MODULES}
    pure = [path for path, name in names.items() if any(f"{name}/".startswith(f"{p}/") for p in PURE)]
    assert len(pure) > 70
    for path in pure:
        for node in trees.nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", f"{path}:{node.lineno} opens a file"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                impure = (node.value.id, node.attr) == ("os", "environ") or node.value.id == "time"
                assert not impure, f"{path}:{node.lineno} reads the clock or the environment"


def circles(package: Path) -> set[frozenset[str]]:
    """Modules that import each other, types included; a package counts as its `__init__`."""
    modules = {".".join(p.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): p
               for suffix in ("py", "c") for p in package.rglob(f"*.{suffix}")}  # fmt: skip
    names: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = (n.removeprefix("ringup.") for n in imports(path) if n[:6] == "ringup")
        # What is no module is a name of its package; the whole package's are in the outermost `__init__`.
        names[module] = {
            next((m for m in (n, n.rpartition(".")[0]) if m in modules), "__init__") for n in found
        }

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(names[start])
        while left:
            if (module := left.pop()) not in seen:
                seen.add(module)
                left += names[module]
        return seen

    every = {module: reached(module) for module in modules}
    return {
        frozenset(other for other in seen if module in every[other]) | {module}
        for module, seen in every.items()
        if module in seen
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(SOURCE) == set()


def test_the_page_about_the_layers_shows_them_as_they_are() -> None:
    page = (SOURCE.parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    shown: dict[str, int] = {}
    for number, names in re.findall(r"^\| (\d) \| ([^|:]+)", page, re.MULTILINE):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), int(number))
    expected = {name: layer for name, layer in LAYERS.items() if name != "__main__"}
    assert shown == expected
    parts = {part(path) for path in MODULES} - {"__init__"}
    assert parts == set(LAYERS), "a part without a layer, or a layer without a part"


def test_the_agent_uses_the_standard_library_alone() -> None:
    import sys

    for path in sorted((SOURCE / "agent").rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            # What a program imports of ours travels with it; see agent_bundle.py.
            travels = name.startswith(("ringup.agent.", "ringup.secret_names.", "ringup.link_kinds."))
            # Until Python 3.11; see agent/facts/work.py for what is taken instead.
            known = sys.stdlib_module_names | {"_sha256", "torch"}
            assert top in known or travels, f"{path.name} imports {name}"
