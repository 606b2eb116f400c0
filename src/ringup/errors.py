"""Errors that a user can act on; only `cli` shows them.  Any other exception is a bug in ringup: exit 70."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class RingupError(Exception):
    """An error that the user can act on; shown as two lines, never as a traceback."""

    exit_code = 4

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(RingupError):
    """The command line is invalid or cannot be honoured."""

    exit_code = 2


class NodesError(RingupError):
    """The list of nodes cannot be read, is empty or too long."""


class BundleError(RingupError):
    """A saved collection (`--from`) cannot be read."""


class NodeUnreachable(RingupError):
    """A node could not be reached; contains ssh's error text."""


class PastedError(RingupError):
    """Nothing in the pasted text was understood."""


class LaunchError(RingupError):
    """The job cannot be started as requested."""


class LogsError(RingupError):
    """None of the logs could be read."""


ANOTHER_FILE = "name a file in a directory with room that you may write"


@contextlib.contextmanager
def writing(path: object, hint: str = ANOTHER_FILE, kind: type[RingupError] = LaunchError) -> Iterator[None]:
    """Turns an OSError of the block into an error with `path` and the reason why it cannot be written."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be written: {error.strerror or error}", hint=hint) from error
