"""The programs for the nodes: a main file of `agent/` and the modules it imports, as one source text."""

from __future__ import annotations

import base64
import functools
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

# Modules have the names of the source tree, and are compiled at their first import.  Files of the current
# folder, such as the user's own random.py, must not take the place of the standard library's.
_LOADER = """\
import sys
sys.path[:1] = filter(None, sys.path[:1])
import zlib
from _frozen_importlib import ModuleSpec
from binascii import a2b_base64
class Bundle:
    def __init__(self, packed):
        words = zlib.decompress(a2b_base64(packed)).decode().split("\\0")
        self.sources = dict(zip(words[::2], words[1::2]))
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=not self.sources[name]) if name in self.sources else None
    def create_module(self, spec):
        return None
    def code(self, name):
        return compile(self.sources[name], name.replace(".", "/") + ".py", "exec")
    def exec_module(self, module):
        exec(self.code(module.__name__), module.__dict__)
sys.meta_path.insert(0, Bundle({packed!r}))
exec(sys.meta_path[0].code({main!r}), globals())
"""
_IMPORT = re.compile(r"^ *from (ringup[\w.]*) import (\([^)]*\)|[^#\n]*)", re.MULTILINE)
_TEXT = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL)


def source(name: str) -> str:
    """The text of one file of `agent/`, by its dotted name there: "guard.main"."""
    return _read(f"ringup.agent.{name}") or ""


@functools.cache
def program(name: str, *others: str) -> str:
    """One source text: a file of `agent/`, ringup's modules that it imports, and the same for `others`."""
    found: dict[str, str] = {}
    todo = [f"ringup.agent.{one}" for one in (name, *others)]
    while todo:
        if (module := todo.pop()) not in found:
            text = _read(module) or ""
            found[module] = without_docstrings(text)
            todo += imported(text)
    return pack(found, f"ringup.agent.{name}")


def pack(sources: Mapping[str, str], main: str) -> str:
    """One source text that runs `main` of several modules; compressed, as an argument has at most 128 KiB."""
    packages = {".".join(name.split(".")[:end]) for name in sources for end in range(1, name.count(".") + 1)}
    whole = {**dict.fromkeys(sorted(packages), ""), **dict(sorted(sources.items()))}
    text = "\0".join(word for pair in whole.items() for word in pair)
    packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
    return _LOADER.format(packed=packed, main=main)


def imported(text: str) -> Iterator[str]:
    """ringup's modules that a source imports, anywhere in it."""
    # A parser takes 40 ms for the programs of one check.
    for name, words in _IMPORT.findall(text):
        if _read(name) is not None:
            yield name
        else:
            yield from (f"{name}.{word.split()[0]}" for word in words.strip("()").split(",") if word.strip())


def without_docstrings(text: str) -> str:
    """A source with unchanged line numbers, for tracebacks, but a quarter shorter to send."""

    def short(match: re.Match[str]) -> str:
        is_docstring = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        return '""' + "\n" * match[0].count("\n") if is_docstring else match[0]

    return _TEXT.sub(short, text)


@functools.cache
def _read(module: str) -> str | None:
    """The source of a module of ringup; None for a package or an unknown name."""
    *folders, name = module.split(".")[1:]
    file = Path(__file__).parent.joinpath(*folders, f"{name}.py")
    return file.read_text("utf-8") if file.is_file() else None
