"""Whatever `ringup COMMAND --json` prints in any test, and each run.json, is held against its schema."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from ringup.cli import command_line
from ringup.cli.schema import FOLDER, NAMES


@functools.cache
def validator(name: str) -> Any:
    """Of a schema, with unknown keys forbidden."""
    schema = json.loads((FOLDER / f"{name}.json").read_text())
    for part in schema["$defs"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return jsonschema.Draft202012Validator(schema)


def check(name: str, value: Any) -> None:
    """Raises AssertionError where an object is not as its schema says."""
    error = jsonschema.exceptions.best_match(validator(name).iter_errors(value))
    if error is not None:
        at = "".join(f"[{key!r}]" for key in error.absolute_path)
        raise AssertionError(
            f"`ringup {name} --json` is not as `ringup schema {name}`: {at}: {error.message[:400]}"
            " (the types are in tools/json_schemas.py; run it)"
        )


def command_of(words: Sequence[object]) -> str:
    """The command of a line that asks for JSON; "" for another line."""
    line = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    names = [i for i, word in enumerate(line[:-1]) if word == "ringup" or word.endswith("/ringup")]
    own = line[names[-1] + 1 :] if names else [""]
    own = own[: own.index("--")] if "--" in own else own
    wants = "--json" in own or "--format=json" in own or ("--format", "json") in itertools.pairwise(own)
    return own[0] if wants and own[0] in NAMES else ""


def check_output(command: str, out: str | bytes | None) -> None:
    text = out.decode("utf-8", "replace") if isinstance(out, bytes) else out or ""
    try:
        values = [json.loads(text)]
    except ValueError:
        try:  # one object a line
            values = [json.loads(line) for line in text.splitlines()]
        except ValueError:  # of a command that was ended, or of an error in place of an answer
            return
    for value in values:
        check(command, value)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._began = time.time()
        super().__init__(*args, **kwargs)

    def communicate(self, *args: Any, **kwargs: Any) -> Any:
        out, err = super().communicate(*args, **kwargs)
        words = [] if isinstance(self.args, (str, bytes, os.PathLike)) else [*self.args]
        if command := command_of(words):
            check_output(command, out)
        if "--log-dir" in words[:-1]:
            folder = Path(os.fspath(words[words.index("--log-dir") + 1]))
            for path in {*folder.glob("run.json"), *folder.glob("*/run.json")}:
                if path.stat().st_mtime > self._began:
                    check("run", json.loads(path.read_text()))
        return out, err


class Copy(io.TextIOBase):
    """A stream that keeps what is written to another."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.kept = stream, ""

    def write(self, text: str) -> int:
        self.kept += text
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def watched(dispatch: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        command = command_of(["ringup", *argv])
        if not command:
            return dispatch(argv)
        stream, copy = sys.stdout, Copy(sys.stdout)
        sys.stdout = copy  # type: ignore[assignment]
        try:
            code = dispatch(argv)
        finally:
            sys.stdout = stream
        check_output(command, copy.kept)
        return code

    return run


def install() -> None:
    subprocess.Popen = Popen  # type: ignore[misc]
    command_line.dispatch = watched(command_line.dispatch)
