"""Files in folders that other users may also write: opened and made without following their traps."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def regular(path: Path) -> BinaryIO:
    """A regular file, opened for reading: a FIFO would block for ever.  Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "not a regular file", str(path))
    return os.fdopen(number, "rb")


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """
    A new, empty file in the folder of `path`, which replaces it if the block succeeds.  Raises OSError.

    Its name cannot be guessed, so nobody has put a link there; the umask applies to `mode`.
    """
    fresh = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}")
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
    try:
        yield fresh
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
