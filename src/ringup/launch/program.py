"""The programs sent to the nodes: files of `payload/`, joined into one source each."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import resources

GUARD_PARTS = (
    "guard_tree",
    "guard_spool",
    "guard_link",
    "guard_ranks",
    "guard_job",
    "guard_journal",
    "guard_sentinel",
    "guard_head",
    "guard_look",
)
"""What `guard.py` imports, each after what it imports itself."""

# Parts become modules, so that they import each other on the node as they do in the tree.
_JOIN = """\
import sys, types
def _part(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
"""


def payload(name: str) -> str:
    """The source of one file of `payload/`."""
    return (resources.files("ringup") / "payload" / f"{name}.py").read_text("utf-8")


def joined(parts: Iterable[str], main: str) -> str:
    """One source of several files of `payload/`; `main` runs, and finds the others as modules."""
    before = "".join(f"_part({name!r}, {payload(name)!r})\n" for name in parts)
    return f"{_JOIN}{before}exec(compile({payload(main)!r}, {main + '.py'!r}, 'exec'), globals())\n"


@functools.cache
def guard_program() -> str:
    """The guard; its order comes on stdin."""
    return joined(GUARD_PARTS, "guard")


def last_look_program() -> str:
    """The last look after a run; arguments: run, port, seconds to wait for its guards."""
    return payload("guard_tree")


@functools.cache
def look_program() -> str:
    """A look at the ranks of a node; arguments: mode, run, node."""
    return joined(("guard_tree", "look_stacks", "look_node"), "look")


@functools.cache
def prove_program() -> str:
    """One rank of `ringup test` and `ringup bench`; see its arguments there."""
    return joined(("prove_world", "prove_correct", "prove_sweep"), "prove_ranks")


def main_source() -> str:
    """What a rank's script is run by, so that its stack can be read."""
    return payload("rank_main")


def rank_source() -> str:
    """The shim every rank is started by."""
    return payload("rank")
