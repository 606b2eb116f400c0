"""
The command line: find the command, show errors, exit with the documented code.

Only the module of the command is imported, so `ringup --help` costs a few milliseconds over bare Python.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from ringup.cli.commands import COMMANDS, parser_for
from ringup.errors import RingupError, UsageError
from ringup.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType


EPILOG = {
    "nodes:      ": "-H 'node[1-8],gpu3' | --hostfile F | --local N | none: allocation, or this machine",
    "exit codes: ": "0 fine, 1 error found, 2 wrong usage, 3 not checked (--strict), 4 see the message",
    "start with: ": "ringup demo; ringup check -H n1,n2; ringup run -H n1,n2 -- train.py",
}


MEANT = {"watch": "top", "status": "runs", "list": "runs", "start": "run", "launch": "run", "kill": "clean"}
"""Names of other tools' commands."""


def overview() -> str:
    """The output of `ringup --help`, as wide as COLUMNS or the terminal."""
    import shutil
    import textwrap

    width = max(map(len, COMMANDS))
    lines = [
        ("", "usage: ringup COMMAND ..."),
        ("", ""),
        ("", "Check, launch and guard multi-node GPU training; name the root cause when it hangs."),
        ("", ""),
        ("", "commands:"),
        *((f"  {name:<{width}}  ", text) for name, text in COMMANDS.items()),
        ("", ""),
        ("", "`ringup COMMAND --help` shows a command's options, `ringup --version` the version."),
        *EPILOG.items(),
    ]
    columns = max(40, shutil.get_terminal_size((100, 24)).columns)
    wrapped = (textwrap.wrap(t, columns, initial_indent=h, subsequent_indent=" " * len(h)) for h, t in lines)
    return "".join(f"{line}\n" for part in wrapped for line in part or [""])


def dispatch(argv: list[str]) -> int:
    """Run one command; returns the exit code.  Raises RingupError for errors that the user can act on."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if argv else 2
    name = argv[0]
    if name in ("-V", "--version"):
        try:
            import ringup.logs.counts.core  # type: ignore[import-not-found]  # noqa: F401

            engine = "native"
        except ImportError:
            engine = "plain Python, slower: the native one was not compiled"
        print(f"ringup {__version__} (engine for logs: {engine})")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        meant = [MEANT[name]] if name in MEANT else get_close_matches(name, COMMANDS, 1)
        near = "".join(f"did you mean {one}? " for one in meant)
        raise UsageError(f"no command {name!r}", hint=f"{near}`ringup --help` lists them")
    args = options_of(argv)
    from ringup import progress

    progress.allow(not getattr(args, "quiet", False))
    with ending_signals():
        code: int = args.run_command(args)
    broken = broken_rules()
    # A run exits with the code of its ranks: a bug in a rule must not fail a successful training.
    return OUR_BUG if broken and name not in ("run", "attach") else code


def options_of(argv: list[str]) -> argparse.Namespace:
    """A command's options, with values from configuration files."""
    parser = parser_for(argv[0])
    if argv[0] not in ("config", "completion", "demo", "explain", "schema"):
        from ringup.cli import config

        config.apply(parser, argv[0], argv[1:])
    return parser.read(argv[1:])


def broken_rules() -> bool:
    """Report the rules that raised since the last call; True if there are any."""
    rules = sys.modules.get("ringup.rules")
    found = list(rules.INTERNAL_ERRORS.values()) if rules else []
    for rule in found:
        tell(f"ringup: {rule.reason}; everything else was checked")
    if rules and found:
        rules.INTERNAL_ERRORS.clear()
        tell(f"ringup {__version__}: please report this bug with the file that `ringup bundle` writes")
    return bool(found)


class Ended(KeyboardInterrupt):
    """SIGTERM or SIGHUP, handled like Ctrl-C: everything that was started is ended first."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


AGAIN_S, MOST_AGAIN = 0.02, 250


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """
    Raise Ended for signals that would otherwise kill this process before it has ended what it started.

    One that comes during an import is sent again after it: msgspec 0.22 ends Python by SIGSEGV where an
    exception is raised while it makes a class.
    """
    import signal
    import threading

    again = 0

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal again
        again += 1
        if again < MOST_AGAIN and is_importing(frame):
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()
            return
        raise KeyboardInterrupt if number == signal.SIGINT else Ended(number)

    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    is_main = threading.current_thread() is threading.main_thread()
    with handling([n for n, handler in usual.items() if is_main and signal.getsignal(n) is handler], end):
        yield


@contextlib.contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """In the block, `handler` gets these signals."""
    import signal

    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "_find_and_load":
        frame = frame.f_back
    return frame is not None


def main(argv: list[str] | None = None) -> None:
    """The console script.  Only this function shows errors."""
    prepare_streams()
    try:
        if sys.flags.optimize > 1:
            raise RingupError(
                "Python's -OO removes docstrings, and the texts of ringup's rules are docstrings",
                hint="-O at most, or `env -u PYTHONOPTIMIZE ringup ...`; for the job: --env PYTHONOPTIMIZE=2",
            )
        code = dispatch(sys.argv[1:] if argv is None else argv)
    except SystemExit as left:  # raised by argparse after --help
        code = left.code if isinstance(left.code, int) else 0
    except RingupError as error:
        from ringup.secrets import redact, safe
        from ringup.units import printable

        what = "\n        ".join(printable(line, 2000) for line in redact(str(error)).splitlines() or [""])
        tell(f"ringup: {what}\nhint: {safe(error.hint, 2000)}")
        code = error.exit_code
    except Ended as ended:
        tell("ringup: ended by a signal")
        code = 128 + ended.number
    except KeyboardInterrupt:
        tell("ringup: interrupted")
        code = 130
    except BrokenPipeError:  # the reader (`| head`) closed the pipe
        code = 141
    except OSError as error:
        code = no_access(error) if error.errno in (FIXABLE if error.filename else FULL) else our_bug()
    except Exception:
        code = our_bug()
    lost = let_go_of_closed_pipes()
    forget_ctrl_c()
    sys.exit(no_access(lost) if lost else code)


OUR_BUG = 70
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
FIXABLE = (*FULL, errno.EACCES, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG)
"""The user can do something about the path."""


def forget_ctrl_c() -> None:
    """
    Keep the exit code of `python -m ringup` after a handled Ctrl-C.

    CPython notes each KeyboardInterrupt that leaves `exec` of a text (which makes dataclasses), even if a
    caller catches it, and then ends by SIGINT instead of the requested code.  The next exec clears the note:
    run_eval_code_obj and Py_RunMain in CPython's Python/pythonrun.c, Modules/main.c.
    """
    exec("")


def no_access(error: OSError) -> int:
    from ringup.units import printable

    where = printable(str(error.filename), 500) if error.filename else "output"
    rights = "check who may use it (`ls -ld`), or name another path"
    hint = "make room there (`df -h`, `quota`), or write elsewhere" if error.errno in FULL else rights
    tell(f"ringup: {where}: {error.strerror}\nhint: {hint}")
    return RingupError.exit_code


def our_bug() -> int:
    import traceback

    from ringup.secrets import redact

    tell(redact(traceback.format_exc().rstrip()))
    tell(f"ringup {__version__}: this is a bug in ringup, please report it with the lines above")
    return OUR_BUG


def tell(text: str) -> None:
    """Print to stderr, if it is still open."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """
    Make stdin, stdout and stderr usable.

    A stream closed by the shell (`>&-`) becomes /dev/null: otherwise the next opened file would get its
    number.  Characters that the locale lacks (`LC_ALL=C`) are escaped.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, number <= 2)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115  (it stays)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def let_go_of_closed_pipes() -> OSError | None:
    """Flush both streams; the error, unless the reader closed the pipe (Python would exit with 120)."""
    lost = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            lost = lost if isinstance(error, BrokenPipeError) else error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost
