"""Every error a user can act on; only `cli` shows them.  Any other exception is a bug of ours: exit 70."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class RingupError(Exception):
    """Something the user can act on; shown as two lines, never a traceback."""

    exit_code = 4

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class UsageError(RingupError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class NodesError(RingupError):
    """The list of nodes cannot be read, is empty or too long."""


class BundleError(RingupError):
    """A saved collection (`--from`) cannot be read."""


class NodeUnreachable(RingupError):
    """One node could not be reached; carries ssh's own words."""


class PastedError(RingupError):
    """Nothing of what was pasted was understood."""


class LaunchError(RingupError):
    """The job cannot be started as asked."""


class LogsError(RingupError):
    """None of the logs could be read."""


@contextlib.contextmanager
def writing(path: object, hint: str, kind: type[RingupError] = LaunchError) -> Iterator[None]:
    """Turns an OSError of the block into an error that says that `path` cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path} cannot be written: {error.strerror or error}", hint=hint) from error
