"""
The process that supervises a detached run, in the background of the machine where the run was started.

Its output goes to a log in the run's folder.  A lock there shows whether it lives: `ringup attach` shows the
log while it does, and starts another supervisor after it has died (cli/supervising.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ringup import progress
from ringup.cli.command_line import handling
from ringup.errors import LaunchError
from ringup.model import Host
from ringup.runtime.detach import SUPERVISOR
from ringup.transport import Transport
from ringup.transport.interrupts import ENDING

LOG = "supervisor.log"
READ_EVERY_S = 0.2
LOOK_AGAIN_S, LOOKS = 0.01, 1000
NOTE_BYTES = 4 << 20


class Supervised(NamedTuple):
    """The process that holds, or held, the lock."""

    pid: int
    host: str
    is_alive: bool
    more: str = ""
    """The rest of what it wrote there."""


class Background:
    """In the supervisor: its lock, and the terminal until it leaves it."""

    def __init__(self, link: int) -> None:
        self._link, self._lock = link, -1

    def hold(self, folder: Path) -> None:
        """Take the run's lock until this process ends.  Raises LaunchError if another supervisor has it."""
        self._lock = os.open(folder / SUPERVISOR, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for look in range(LOOKS):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # `supervised` also holds the lock for a moment.
                who = supervised(folder)
                if (who and who.is_alive) or look == LOOKS - 1:
                    hint = "`ringup attach` shows it"
                    raise LaunchError(f"{folder} has a supervisor already", hint=hint) from None
                time.sleep(LOOK_AGAIN_S)
        # It overwrites the earlier text: an empty file would mean that no supervisor ever existed.
        text = f"{os.getpid()} {os.uname().nodename}".encode()
        os.pwrite(self._lock, text, 0)
        os.ftruncate(self._lock, len(text))

    def leave(self, folder: Path) -> None:
        """Leave the terminal: from now on output goes to the log."""
        if self._link < 0:
            return
        progress.allow(False)
        sys.stdout.flush()
        sys.stderr.flush()
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        os.write(self._link, b".")
        os.close(self._link)
        self._link = -1


def start(work: Callable[[Background], int]) -> int:
    """Run `work` in a separate process; 0 once it has left the terminal, else its exit code."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise SystemExit(work(Background(theirs)))
    os.close(theirs)
    numbers = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    with open(ours, "rb", buffering=0) as link, handling(numbers, lambda number, _: os.kill(pid, number)):
        if link.read(1):
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code


LAUNCHER = ".launcher"
"""A file in the folder of a run that is not detached: locked by the process that started it."""


class Reach(msgspec.Struct, frozen=True):
    hosts: tuple[Host, ...]
    ssh_config: str | None


@contextlib.contextmanager
def noted(folder: Path, transport: Transport, *, is_wanted: bool) -> Iterator[None]:
    """Record for `ringup top` the process of this run and its nodes, until the block ends."""
    path, config = folder / LAUNCHER, transport.ssh_config
    reach = Reach(transport.hosts, str(Path(config).absolute()) if config else None)
    text = f"{os.getpid()} {os.uname().nodename}\n".encode() + msgspec.json.encode(reach)
    lock = -1
    try:
        with contextlib.suppress(OSError):  # the run starts anyway
            if is_wanted:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(lock, text)
        yield
    finally:
        if lock >= 0:
            with contextlib.suppress(OSError):  # the folder may be deleted
                path.unlink()
            os.close(lock)


def supervised(folder: Path, name: str = SUPERVISOR) -> Supervised | None:
    """The latest process that supervised a folder's run, or (LAUNCHER) started it; None if there was none."""
    try:
        with (folder / name).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                is_alive = False
            except BlockingIOError:
                is_alive = True
            line, _, more = file.read(NOTE_BYTES).decode("utf-8", "replace").partition("\n")
    except OSError:
        return None
    pid, _, host = line.partition(" ")
    return Supervised(int(pid), host, is_alive, more) if pid.isascii() and pid.isdecimal() else None


def show(folder: Path, write: Callable[[str], object]) -> None:
    """Copy the supervisor's log, from its beginning until it ends; passes Ctrl-C on to the supervisor."""

    def forward(number: int, _frame: object) -> None:
        if (who := supervised(folder)) and who.is_alive:
            os.kill(who.pid, number)

    opened = (folder / LOG).open(encoding="utf-8", errors="replace")
    with handling([signal.SIGINT], forward), opened as file:
        while True:
            who = supervised(folder)
            if text := file.read(1 << 16):
                write(text)
            elif not (who and who.is_alive):
                return
            else:
                time.sleep(READ_EVERY_S)
