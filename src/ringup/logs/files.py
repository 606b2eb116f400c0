"""
Input files: found, opened (plain or gzip, or standard input) and cut into blocks of whole lines.

The only module of `logs` that opens anything.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ringup import flight

BLOCK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 1 << 20
"""More of one line than this is dropped: a program that prints no newline must not fill memory."""

MAX_FILES = 20_000
_NOT_LOGS = (
    ".py",
    ".pyc",
    ".so",
    ".pt",
    ".pth",
    ".bin",
    ".safetensors",
    ".npy",
    ".npz",
    ".xml",
    ".yaml",
    ".yml",
    ".json",
    ".zip",
    ".tar",
    ".tgz",
    ".whl",
    ".png",
    ".jpg",
    ".pdf",
    ".html",
    ".lock",
    ".toml",
    ".md",
    ".jsonl",
    ".parquet",
    ".ckpt",
    ".db",
)
_MAY_BE_DUMPS = (".json", ".bin", ".pt")
_HEAD_BYTES = 4096


class Block(NamedTuple):
    """Whole lines of a file, and the number of the first one (from 1)."""

    data: bytes
    first_line: int


class Unreadable(NamedTuple):
    """A path that gave nothing, and why."""

    path: str
    reason: str


def find(paths: Iterable[str]) -> tuple[list[str], list[Unreadable]]:
    """
    The log files behind paths: files as given, directories walked in name order.

    Files inside a directory are left out by suffix where they cannot be logs (or a flight
    recorder's dump); a file named itself is always taken.  `-` stands for standard input.
    """
    found: list[str] = []
    refused: list[Unreadable] = []
    for path in paths:
        if path == "-":
            found.append(path)
            continue
        try:
            mode = Path(path).stat().st_mode
        except OSError as exc:
            refused.append(Unreadable(path, _why(exc)))
            continue
        if not stat.S_ISDIR(mode):
            found.append(path)
            continue
        before = len(refused)
        inside = list(_walk(path, refused))
        if not inside and len(refused) == before:
            refused.append(Unreadable(path, "a directory without any log"))
        found += inside
    if len(found) > MAX_FILES:
        left = f"not read, nor any file behind it: {len(found)} files, of which {MAX_FILES} are read"
        refused.append(Unreadable(found[MAX_FILES], left))
    return found[:MAX_FILES], refused


def _why(exc: OSError) -> str:
    return "no such file or directory" if isinstance(exc, FileNotFoundError) else exc.strerror or str(exc)


def _walk(directory: str, refused: list[Unreadable]) -> Iterator[str]:
    """The logs in a directory; what of it may not be looked at is put to `refused`."""

    def closed(exc: OSError) -> None:
        refused.append(Unreadable(str(exc.filename), _why(exc)))

    for folder, folders, names in os.walk(directory, onerror=closed):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        for name in sorted(names, key=_natural):
            path, kind = str(Path(folder) / name), name.lower()
            if name.startswith("."):
                continue
            try:
                if not Path(path).is_file():
                    continue
            except OSError as exc:
                closed(exc)
                continue
            if not kind.endswith(_NOT_LOGS) or (kind.endswith(_MAY_BE_DUMPS) and is_dump(path)):
                yield path


def _natural(name: str) -> tuple[object, ...]:
    """rank2.log before rank10.log."""
    parts: list[object] = []
    digits = ""
    for char in name + "\0":
        if char.isdigit():
            digits += char
            continue
        if digits:
            parts.append((0, int(digits[:18]), ""))
            digits = ""
        parts.append((1, 0, char))
    return tuple(parts)


class _Gunzip(io.RawIOBase):
    """
    Decompressed bytes of a gzip file, member after member.

    The standard library's reader gives nothing of a block in which the file breaks off; a log
    that was copied while it was written breaks off.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj(31)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while True:
            data = self._left or self._raw.read(256 << 10)
            try:
                out = self._inflate.decompress(data, len(view)) if data else self._inflate.flush()
            except zlib.error:
                return 0
            self._left = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._left = self._inflate.unused_data
                self._inflate = zlib.decompressobj(31)
            if out or not data:
                view[: len(out)] = out
                return len(out)

    def close(self) -> None:
        self._raw.close()
        super().close()


def opened(path: str) -> BinaryIO:
    """A file's bytes, decompressed where they are gzip.  Raises OSError."""
    if path == "-":
        return sys.stdin.buffer
    raw = open(path, "rb")  # noqa: SIM115 - handed on
    try:
        magic = raw.peek(2)[:2]
    except OSError:
        raw.close()
        raise
    if magic == b"\x1f\x8b":
        return io.BufferedReader(_Gunzip(raw), BLOCK_BYTES)
    return raw


def blocks(path: str) -> Iterator[Block]:
    """
    A file as blocks of whole lines.  Raises OSError when nothing can be read.

    A gzip file that breaks off gives what came before the break.
    """
    with opened(path) as stream:
        yield from blocks_of(stream)


def blocks_of(stream: BinaryIO) -> Iterator[Block]:
    """As `blocks`, of an open stream."""
    rest, number, runaway = b"", 1, False
    while True:
        data = stream.read(BLOCK_BYTES)
        if not data:
            break
        if runaway:
            end = data.find(b"\n")
            if end < 0:
                continue
            data, runaway = data[end:], False
        cut = data.rfind(b"\n")
        if cut < 0:
            if len(rest) < LONGEST_LINE_BYTES:
                rest += data[:LONGEST_LINE_BYTES]
            if len(rest) >= LONGEST_LINE_BYTES:
                runaway = True
            continue
        whole = rest + data[: cut + 1]
        rest = data[cut + 1 :][:LONGEST_LINE_BYTES]
        runaway = len(data) - cut - 1 > LONGEST_LINE_BYTES
        yield Block(whole, number)
        number += whole.count(b"\n")
    if rest:
        yield Block(rest, number)


class Again:
    """
    Files read a second time, by offsets into what `blocks` gave; the block last unpacked is kept.

    Calls for the same place in the files of many ranks then unpack a file that holds them all once.
    """

    def __init__(self) -> None:
        self._path = ""
        self._blocks: Iterator[Block] = iter(())
        self._at = 0
        self._block = b""

    def __call__(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """What stands between two offsets; ends early where the file does.  Raises OSError."""
        if path != self._path or start < self._at:
            self._path, self._blocks, self._at, self._block = path, blocks(path), 0, b""
        while start < end:
            after = self._at + len(self._block)
            if start < after:
                yield self._block[start - self._at : end - self._at]
                start = after
                continue
            block = next(self._blocks, None)
            if block is None:
                return
            self._at, self._block = after, block.data


def refusal(path: str) -> str:
    """Why a file cannot be read, "" when it can; pipes are not tried, for what is read of them is gone."""
    if path == "-" or not Path(path).is_file():
        return ""
    try:
        with opened(path):
            return ""
    except OSError as exc:
        return exc.strerror or str(exc)


def is_plain(path: str) -> bool:
    """Whether byte ranges of this file can be read: a regular file that is not compressed."""
    if path == "-" or not Path(path).is_file():
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(2) != b"\x1f\x8b"
    except OSError:
        return False


def is_dump(path: str) -> bool:
    """Whether a file begins as a dump of torch's flight recorder does, gzip or not."""
    if path == "-" or not Path(path).is_file():
        return False
    try:
        with opened(path) as stream:
            return flight.may_be(stream.read(_HEAD_BYTES))
    except OSError:
        return False


def whole(path: str, most_bytes: int) -> tuple[bytes, float]:
    """A small file's bytes, cut off after `most_bytes`, and when it was written (s since 1970).

    Raises OSError.
    """
    with opened(path) as stream:
        return stream.read(most_bytes), Path(path).stat().st_mtime


def ends(path: str, head_bytes: int, tail_bytes: int) -> tuple[bytes, bytes, int]:
    """The first and last bytes of a plain file, and its size.  Raises OSError."""
    with open(path, "rb") as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        head = stream.read(head_bytes)
        stream.seek(max(0, size_bytes - tail_bytes))
        return head, stream.read(tail_bytes), size_bytes
