"""Notes that ringup reads again may have been changed: JSON of any depth is an answer or one clear error."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import cast

import pytest

from ringup.cli import submit, supervising
from ringup.errors import LaunchError
from ringup.runtime import detach
from tests import trees

DEEP = '{"x": ' + "[" * 200_000
DECODERS = ("json.loads", "json.load", "msgspec.json.decode")
OWN = {"nccl/variables.py", "cli/schema.py", "logs/defects.py"}
"""Of the package itself."""
FROM_PARENT = {
    "agent/guard/sentinel.py",
    "agent/pairtest/main.py",
    "agent/snapshot/machine.py",
    "agent/checkpoints.py",
}
"""What a process reads of the one that started it, or of its own child."""
CAUGHT_BY_CALLER = {
    *("launchfiles/settings_file.py", "agent/rank/rank_main.py", "agent/collective/world.py"),
    "differences/sides.py",
}


def test_a_note_of_a_detached_run_nested_without_end_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    detach.runs_dir().mkdir(parents=True)
    (detach.runs_dir() / "r1.json").write_text(DEEP)
    with pytest.raises(LaunchError, match="cannot be read"):
        detach.load("r1")


def test_a_record_of_a_run_nested_without_end_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(DEEP)
    assert submit.recorded(tmp_path) == {}
    with pytest.raises(LaunchError, match="cannot be read"):
        supervising.record_of(tmp_path)


def decoders() -> list[tuple[str, bool]]:
    """Every call that decodes JSON: (file, whether a RecursionError of it is caught in the same function)."""
    found = []
    # Parsing all files takes seconds.
    for path in (path for path in trees.modules() if "json" in path.read_text()):
        calls = [
            n for n in trees.nodes(path) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        ]
        decoding = [call for call in calls if ast.unparse(call.func) in DECODERS]
        above = {child: n for n in trees.nodes(path) for child in ast.iter_child_nodes(n)} if decoding else {}
        for node in decoding:
            caught, at = "", cast(ast.AST, node)
            while at in above:
                at = above[at]
                if isinstance(at, ast.Try):
                    caught += " ".join(ast.unparse(h.type) if h.type else "Exception" for h in at.handlers)
                elif isinstance(at, ast.With):
                    caught += ast.unparse(at.items[0].context_expr)
            where = str(path.relative_to(trees.SOURCE))
            found.append((where, "RecursionError" in caught or "Exception" in caught))
    return found


def test_every_decoder_of_json_expects_any_depth() -> None:
    found = decoders()
    assert len(found) > 20
    missing = {where for where, is_caught in found if not is_caught}
    assert missing <= OWN | FROM_PARENT | CAUGHT_BY_CALLER, missing
