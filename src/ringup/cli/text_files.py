"""Texts of files that the command line names."""

from __future__ import annotations

import codecs
import io
import re
import sys
from pathlib import Path

from ringup.errors import UsageError

NEARBY_BYTES = 1 << 18


def read_text(
    path: str, most: int, hint: str = "name a readable file, or - for stdin", newline: str | None = None
) -> str:
    """
    The first `most` characters of a file in UTF-8 or UTF-16, - for stdin; `newline` "" keeps CR LF.

    Raises UsageError.
    """
    try:
        if path == "-":
            return sys.stdin.read(most)
        with Path(path).open("rb") as raw:
            is_utf16 = raw.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            encoding = "utf-16" if is_utf16 else "utf-8-sig"
            return io.TextIOWrapper(raw, encoding, "replace", newline).read(most)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: {words}", hint=hint) from error


def read_script(path: str, newline: str | None = None) -> str:
    """A file's text; `newline` "" keeps CR LF.  Raises UsageError if it is too long or unreadable."""
    from ringup.lint import LONGEST

    hint = "name a script or a job file"
    text = read_text(path, LONGEST + 1, hint, newline)
    text = re.sub("\r(?!\n)", "\n", text) if newline == "" else text
    if len(text) > LONGEST:
        raise UsageError(f"{path} is longer than {LONGEST >> 20} Mi characters", hint=hint)
    return text


def nearby(path: str, name: str) -> str | None:
    """The text of a file that another file names, below its folder or the current one."""
    if len(name) > 1000 or "\0" in name:
        return None
    for folder in dict.fromkeys((Path(path).parent, Path())):
        try:
            file = folder / name
            if file.is_file() and file.stat().st_size <= NEARBY_BYTES:
                return file.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue
    return None
