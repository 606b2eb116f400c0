"""
Input files: found, opened (plain, compressed, or standard input) and read in blocks.

The only module of `logs` that opens anything.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import importlib
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ringup.flight_recorder import dump
from ringup.safe_files import regular
from ringup.units import natural

END_FILE = "ringup.log"
"""In a run's folder, next to run.json: the last lines of `ringup run`."""
BLOCK_BYTES = 256 << 10
"""Bytes per read: text that is cut from a block then stays in the CPU's cache."""
MAX_FILES = 20_000
_NOT_A_LOG = re.compile(
    r".*\.(?:pyc?|so|pth?|bin|safetensors|np[yz]|xml|ya?ml|jsonl?|zip|tar|tgz|whl|png|jpg|pdf|html|lock|toml|md"
    r"|parquet|ckpt|db)|supervisor\.log"
)
_MAY_BE_DUMPS = (".json", ".bin", ".pt")
_HEAD_BYTES = 4096
_STARTED = re.compile(rb'"started": (\d{1,12}(?:\.\d{1,9})?)')


class Unreadable(NamedTuple):
    path: str
    reason: str


@dataclass
class FileInfo:
    path: str
    lines: int = 0
    last_line: str = ""
    last_line_number: int = 0
    host: str = ""
    pid: str = ""
    rank: int | None = None
    init_complete: bool | None = None
    cut: list[str] = field(default_factory=list)
    """Signs that it does not contain the whole output."""
    is_log: bool = True
    """False for a file of facts given with the logs, and for a flight recorder's dump."""


_ENDLESS = {os.makedev(1, minor) for minor in (5, 7, 8, 9)}
"""/dev/zero, full, random and urandom (Linux: Documentation/admin-guide/devices.txt)."""


def find(paths: Iterable[str]) -> tuple[list[str], list[Unreadable]]:
    """
    The log files of paths: files as given, directories walked in name order.

    Files inside a directory are left out by suffix if they cannot be logs (or a flight recorder's dump); a
    file on the command line is always taken.  `-` is standard input.  In a directory with several runs only
    the newest is taken, and a refusal reports that.
    """
    found: list[str] = []
    refused: list[Unreadable] = []
    for path in paths:
        if path == "-":
            found.append(path)
            continue
        try:
            status = Path(path).stat()
        except OSError as exc:
            refused.append(Unreadable(path, _why(exc)))
            continue
        if not stat.S_ISDIR(status.st_mode):
            if stat.S_ISCHR(status.st_mode) and status.st_rdev in _ENDLESS:
                refused.append(Unreadable(path, "not text: a device without end"))
            elif _is_binary(_head(path, opened) or b""):
                refused.append(Unreadable(path, "not text: a binary file"))
            else:
                found.append(path)
            continue
        before = len(refused)
        inside = _of_newest_run(path, list(_walk(path, refused)), refused)
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
    """The logs in a directory; paths that may not be read go to `refused`."""

    def closed(exc: OSError) -> None:
        refused.append(Unreadable(str(exc.filename), _why(exc)))

    for folder, folders, names in os.walk(directory, onerror=closed):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "__")))
        for name in sorted(names, key=natural):
            path, kind = str(Path(folder) / name), name.lower()
            if name.startswith("."):
                continue
            try:
                if not Path(path).is_file():
                    continue
            except OSError as exc:
                closed(exc)
                continue
            if not _NOT_A_LOG.fullmatch(kind) or (kind.endswith(_MAY_BE_DUMPS) and is_dump(path)):
                yield path


def _of_newest_run(directory: str, found: list[str], refused: list[Unreadable]) -> list[str]:
    """The files of the newest run below a directory; all of them unless there are several runs."""
    started, top = functools.cache(_run_started), Path(directory)

    def run_of(path: str) -> Path | None:
        inside = (folder for folder in Path(path).parents if folder.is_relative_to(top))
        return next((folder for folder in inside if started(folder) is not None), None)

    owner = {path: run_of(path) for path in found}
    runs = {run for run in owner.values() if run}
    if len(runs) < 2:
        return found
    newest = max(runs, key=lambda run: (started(run), str(run)))
    attempts = [run for run in runs if run.parent == newest.parent and run.name.startswith("attempt-")]
    is_restarted = newest in attempts and runs <= {*attempts, newest.parent}
    what = f"{len(attempts)} attempts of a run" if is_restarted else f"{len(runs)} runs"
    reason = f"{what}: only the newest is read, {newest} (name another to read it)"
    refused.append(Unreadable(directory, reason))
    return [path for path in found if owner[path] == newest]


def attempts(paths: Sequence[str]) -> list[str]:
    """The folders of a restarted run's attempts, in order; [] for any other paths."""
    if len(paths) != 1 or paths[0] == "-":
        return []
    found = [folder for folder in Path(paths[0]).glob("attempt-*") if _run_started(folder) is not None]
    return sorted(map(str, found), key=natural) if len(found) > 1 else []


def _run_started(folder: Path) -> float | None:
    """When the run in a folder began (s since 1970), by its run.json; None without one."""
    try:
        with regular(folder / "run.json") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    started = _STARTED.search(head)
    return float(started[1]) if started and b'"ringup"' in head else None


def _zstd(raw: BinaryIO) -> BinaryIO:
    """A reader of zstd streams: Python 3.14's own module, else the package `zstandard`.  Raises OSError."""
    for module, name in (("compression.zstd", "ZstdFile"), ("zstandard", "open")):
        with contextlib.suppress(ImportError):
            found: BinaryIO = getattr(importlib.import_module(module), name)(raw, "rb")
            return found
    raise OSError("compressed with zstd, which needs Python 3.14 or `pip install zstandard`")


class _Text:
    """Text as UTF-8 with plain spaces: PowerShell writes UTF-16, a copied page has no-break spaces."""

    def __init__(self, raw: BinaryIO, encoding: str = "utf-16") -> None:
        self._raw, self._left = raw, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def read(self, size: int) -> bytes:
        while len(self._left) < size and (data := self._raw.read(size)):
            self._left += self._decoder.decode(data).replace("\u00a0", " ").encode(errors="replace")
        part, self._left = self._left[:size], self._left[size:]
        return part


_UNPACK: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    b"\x28\xb5\x2f\xfd": _zstd,
    codecs.BOM_UTF16_LE: _Text,
    codecs.BOM_UTF16_BE: _Text,
}
_HEAD = 4096
_NO_BREAK = "\u00a0".encode()
_BROKEN_OFF = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)


def _packed(head: bytes) -> Callable[[BinaryIO], Any] | None:
    of_a_page = _NO_BREAK in head and head.count(_NO_BREAK) > head.count(b" ")
    text = (lambda raw: _Text(raw, "utf-8")) if of_a_page else None
    return next((reader for magic, reader in _UNPACK.items() if head.startswith(magic)), text)


class _Unpacked(io.RawIOBase):
    """A file that is compressed (perhaps without its end, as a copy of a growing log), or not UTF-8."""

    def __init__(self, raw: BinaryIO, reader: Callable[[BinaryIO], Any]) -> None:
        self._raw, self._reader, self.is_broken_off = raw, reader, False
        self._begin()

    def _begin(self) -> None:
        if self._raw.seekable():  # standard input need not be
            self._raw.seek(0)
        self._stream, self._at = self._reader(self._raw), 0

    @property
    def position(self) -> int:
        """Position in the packed bytes; of standard input, in the unpacked ones."""
        return self._raw.tell() if self._raw.seekable() else self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts, left = [], size
        take = getattr(self._stream, "read1", self._stream.read)
        try:
            while left > 0 and (data := take(left)):
                parts.append(data)
                left -= len(data)
                self._at += len(data)
        except _BROKEN_OFF:
            self.is_broken_off = True
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Only from the beginning; the bytes before are unpacked once more."""
        if offset < self._at:
            self._begin()
        while self._at < offset and self.read(min(BLOCK_BYTES, offset - self._at)):
            pass
        return self._at


@contextlib.contextmanager
def opened(path: str | int) -> Iterator[BinaryIO | _Unpacked]:
    """A file's bytes (by name or descriptor), decompressed if they are packed.  Raises OSError."""
    with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as raw:
        peek = getattr(raw, "peek", None)
        reader = _packed(peek(_HEAD)[:_HEAD]) if peek else None
        yield _Unpacked(raw, reader) if reader else raw


def blocks(
    path: str,
    on_read: Callable[[int], None] = lambda _bytes: None,
    on_break: Callable[[], object] = lambda: None,
) -> Iterator[bytes]:
    """
    A file's bytes, split anywhere.  Raises OSError if nothing can be read.

    An incomplete compressed file gives the bytes before its end, and then calls `on_break`.  `on_read` gets
    the number of bytes on disk for each block.
    """
    with opened(path) as stream:
        at = 0
        while data := stream.read(BLOCK_BYTES):
            now = stream.position if isinstance(stream, _Unpacked) else at + len(data)
            on_read(now - at)
            at = now
            yield data
        if isinstance(stream, _Unpacked) and stream.is_broken_off:
            on_break()


class Again:
    """Files read a second time, by offsets into the bytes of `blocks`; the last file stays open."""

    def __init__(self) -> None:
        self._path = ""
        self._open = contextlib.ExitStack()

    def __call__(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """The bytes between two offsets; ends early if the file does.  Raises OSError."""
        if path != self._path:
            self._open.close()
            stream = self._open.enter_context(opened(path))
            # Calls for one place in the files of many ranks are near each other: a packed block is kept.
            self._stream, self._path = io.BufferedReader(stream, BLOCK_BYTES), path  # type: ignore[type-var]
        self._stream.seek(start)
        while block := self._stream.read(min(end - start, BLOCK_BYTES)):
            start += len(block)
            yield block


def _head(path: str, open_file: Callable[[str], contextlib.AbstractContextManager[Any]]) -> bytes | None:
    """The first bytes of a regular file, None for anything else."""
    with contextlib.suppress(OSError):
        if path != "-" and Path(path).is_file():
            with open_file(path) as stream:
                return bytes(stream.read(_HEAD_BYTES))
    return None


_LEAST_BYTES = 256
"""A shorter file shows too little."""
_ODD = bytes((*range(1, 7), *range(14, 27), *range(28, 32), 127))
"""Control characters that neither text nor a terminal's output has; NUL fills holes in logs."""


def _is_binary(head: bytes) -> bool:
    """Whether a file's first bytes are neither text nor a dump of the flight recorder."""
    left = head.replace(b"\0", b"") if len(head) >= _LEAST_BYTES else b""
    odd = len(left) - len(left.translate(None, _ODD)) + left.decode("utf-8", "replace").count("\ufffd")
    return odd * 5 > len(left) > 0 and not dump.may_be(head)


def is_plain(path: str) -> bool:
    """Whether byte ranges of this file can be read: a regular file that is not compressed."""
    head = _head(path, functools.partial(open, mode="rb"))
    return head is not None and _packed(head) is None


def is_dump(path: str) -> bool:
    """Whether a file begins like a dump of torch's flight recorder, compressed or not."""
    return dump.may_be(_head(path, opened) or b"")


def whole(path: str, most_bytes: int) -> tuple[bytes, float]:
    """A small file's bytes, cut off after `most_bytes`, and its modification time.  Raises OSError."""
    with opened(path) as stream:
        return stream.read(most_bytes), Path(path).stat().st_mtime


def ends(path: str, head_bytes: int, tail_bytes: int) -> tuple[bytes, bytes, int]:
    """The first and last bytes of a plain file, and its size.  Raises OSError."""
    with open(path, "rb") as stream:
        size_bytes = os.fstat(stream.fileno()).st_size
        head = stream.read(head_bytes)
        stream.seek(max(0, size_bytes - tail_bytes))
        return head, stream.read(tail_bytes), size_bytes
