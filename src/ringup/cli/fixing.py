"""`lint --fix`: writes changed lines back, each file at once, without other changes; or shows the change."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringup.errors import RingupError, UsageError
from ringup.output.terminal import path_shown
from ringup.units import printable, summarize_names

BOM = b"\xef\xbb\xbf"


def content(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


def patched(raw: bytes, before: str, after: str) -> bytes:
    """
    A file's bytes with the lines that `after` changes in `before`; line ends and other lines are kept.

    >>> patched(b"a\\r\\n\\xff\\nc", "a\\n\\ufffd\\nc", "b\\n\\ufffd\\nc")
    b'b\\r\\n\\xff\\nc'
    """
    mark = BOM if raw.startswith(BOM) else b""
    lines = raw.removeprefix(BOM).splitlines(keepends=True)
    for number, (old, new) in enumerate(zip(before.split("\n"), after.split("\n"), strict=True)):
        if old != new:
            bare = lines[number].rstrip(b"\r\n")
            if bare != old.removesuffix("\r").encode():
                raise UsageError("the file was changed meanwhile", hint="run it again")
            lines[number] = new.removesuffix("\r").encode() + lines[number][len(bare) :]
    return mark + b"".join(lines)


def refuse(named: Sequence[str], changed: Sequence[str]) -> None:
    """Raises UsageError if a file may not or cannot be written; then nothing has been changed."""
    roots = {(path if path.is_dir() else path.parent).resolve() for path in map(Path, named)}
    wrong = []
    for path in changed:
        target = Path(path).resolve()
        if path == "-":
            wrong.append("standard input cannot be written")
        elif not any(target.is_relative_to(root) for root in roots):
            wrong.append(f"{path_shown(path)} is a link to {path_shown(target)}, which is not named")
        elif not os.access(target, os.W_OK) or not os.access(target.parent, os.W_OK):
            wrong.append(f"{path_shown(path)} cannot be written")
    if wrong:
        what = f"--fix changed nothing: {summarize_names(wrong, 5, '; ')}"
        raise UsageError(what, hint="name a link's target, make the file writable, or use --diff")


def write(path: str, raw: bytes, new: bytes) -> None:
    """Write a file's new bytes in place of `raw`, with the same mode and owner.  Raises RingupError."""
    target = Path(path).resolve()
    try:
        state = target.stat()
        number, name = tempfile.mkstemp(dir=target.parent, prefix=".ringup-")
        beside = Path(name)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(new)
                with contextlib.suppress(PermissionError):
                    os.fchown(number, state.st_uid, state.st_gid)
                os.fchmod(number, state.st_mode & 0o7777)
            if target.read_bytes() != raw:
                raise UsageError(f"{path_shown(path)} was changed meanwhile", hint="run it again")
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        what = f"{path_shown(path)}: {error.strerror or error}"
        raise RingupError(what, hint="files before it are fixed: run it again") from error


def apply(named: Sequence[str], before: dict[str, str], after: Mapping[str, str], *, show: bool) -> bool:
    """Write the files that differ, or `show` how; True if any differ.  After UsageError none was written."""
    # A file and a link to it count as one.
    changed = [*{Path(p).resolve(): p for p in reversed(before) if before[p] != after[p]}.values()][::-1]
    if not show:
        refuse(named, changed)
    for path in changed:
        raw = before[path].encode() if path == "-" else content(path)
        new = patched(raw, before[path], after[path])
        if show:
            print_diff(path, raw, new)
        else:
            write(path, raw, new)
    return bool(changed)


def print_diff(path: str, raw: bytes, new: bytes) -> None:
    """Print a difference: escaped for a terminal, else as exact bytes, as `patch` needs them."""
    old, now = ([*map(os.fsdecode, io.BytesIO(side))] for side in (raw, new))
    for line in difflib.unified_diff(old, now, path, path):
        if sys.stdout.isatty():
            print(printable(line.rstrip("\r\n"), len(line)))
        else:
            end = "" if line.endswith("\n") else "\n\\ No newline at end of file\n"
            sys.stdout.flush()
            sys.stdout.buffer.write(os.fsencode(line + end))
