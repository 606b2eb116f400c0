"""A command on this machine, run to its end: a scheduler's own, which needs no connection of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringup.errors import LaunchError
from ringup.units import printable, show_seconds

TOO_LATE = 124
"""As timeout(1) says it."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """The last it said about what went wrong, in one safe line."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return printable(" / ".join(lines[-3:]), 600) or f"it ended with {self.code}"


def run(words: Sequence[str], *, env: Mapping[str, str], limit_s: float = 60.0) -> Ended:
    """
    Run it and wait, for at most `limit_s`; code TOO_LATE where it took longer.

    Raises LaunchError when there is no such program here.
    """
    try:
        done = subprocess.run(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    except OSError as error:
        raise LaunchError(
            f"{words[0]} cannot be started here: {error.strerror}",
            hint="run this where the scheduler's commands are, on a login node",
        ) from error
    except subprocess.TimeoutExpired:
        return Ended(TOO_LATE, "", f"{words[0]} did not answer within {show_seconds(limit_s)}")
    return Ended(done.returncode, done.stdout, done.stderr)
