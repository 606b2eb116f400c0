"""
The command line: find the command, show errors, leave with the promised exit code.

Nothing is imported for a command but the module of that command, so `ringup --help`
costs a few milliseconds over bare Python.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING

from ringup import __version__
from ringup.errors import RingupError, UsageError

if TYPE_CHECKING:
    from ringup.commands.parser import Parser

COMMANDS = {
    "check": "look at every node and prove every pair before anything is started",
    "run": "check, decide, launch, watch, clean up",
    "attach": "go back to a run started with --detach",
    "stacks": "where every rank of a running job is in its code, merged",
    "lint": "what in a training script or job file breaks on several nodes",
    "test": "every rank: device, memory, collectives with checked results; who did not arrive",
    "bench": "collectives over sizes, checked, judged against the link's rate; names the slow node",
    "script": "the file that starts the job without ringup: Slurm, PBS, LSF, ssh, docker, Kubernetes",
    "clean": "list what earlier runs left on the nodes, and end what is proven",
    "env": "the environment variables that change something here, each with its reason",
    "predict": "which interfaces and devices NCCL will choose, and why",
    "logs": "name the root cause from NCCL, torch and launcher output",
    "explain": "what a problem means and how to fix it",
    "bundle": "facts, findings and logs in one archive for a bug report, secrets taken out",
    "demo": "a real two-node run on this one machine: no root, no ssh, no GPU",
}
"""Name -> one line.  The module is `ringup.commands.NAME`."""

EPILOG = (
    (
        "nodes:      ",
        "-H node[1-8],gpu3 | --hostfile F | --local N | none: allocation, or this machine",
    ),
    (
        "exit codes: ",
        "0 fine, 1 an error was found, 2 wrong usage, 3 not checked (--strict), 4 see the message",
    ),
    ("start with: ", "ringup demo; ringup check -H n1,n2; ringup run -H n1,n2 -- train.py"),
)
"""Label and text."""


def overview() -> str:
    """What `ringup --help` prints, as wide as COLUMNS or the terminal."""
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
        *EPILOG,
    ]
    columns = max(40, shutil.get_terminal_size((100, 24)).columns)
    wrapped = (textwrap.wrap(t, columns, initial_indent=h, subsequent_indent=" " * len(h)) for h, t in lines)
    return "".join(f"{line}\n" for part in wrapped for line in part or [""])


def parser_for(name: str) -> Parser:
    """The parser of one command, with its own options."""
    from ringup.commands.parser import Parser

    module = importlib.import_module(f"ringup.commands.{name}")
    parser = Parser(f"ringup {name}", module.__doc__)
    module.add_arguments(parser)
    parser.set_defaults(run_command=module.run)
    return parser


def dispatch(argv: list[str]) -> int:
    """Run one command; the exit code.  Raises RingupError for what the user can act on."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if argv else 2
    name = argv[0]
    if name in ("-V", "--version"):
        print(f"ringup {__version__}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = "".join(f"did you mean {one}? " for one in get_close_matches(name, COMMANDS, 1))
        raise UsageError(f"no command {name!r}", hint=f"{near}`ringup --help` lists them")
    args = parser_for(name).read(argv[1:])
    code: int = args.run_command(args)
    return code


def main(argv: list[str] | None = None) -> None:
    """The console script.  Errors are shown here and nowhere else."""
    prepare_streams()
    try:
        if sys.flags.optimize > 1:
            raise RingupError(
                "Python's -OO takes the docstrings away, and the rules' texts are docstrings",
                hint="-O at most, or `env -u PYTHONOPTIMIZE ringup ...`; for the job: --env PYTHONOPTIMIZE=2",
            )
        code = dispatch(sys.argv[1:] if argv is None else argv)
    except SystemExit as left:  # argparse, when it has shown its help
        code = left.code if isinstance(left.code, int) else 0
    except RingupError as error:
        from ringup.units import printable

        what = "\n        ".join(printable(line, 2000) for line in str(error).splitlines() or [""])
        tell(f"ringup: {what}\nhint: {printable(error.hint, 2000)}")
        code = error.exit_code
    except KeyboardInterrupt:
        tell("ringup: interrupted")
        code = 130
    except BrokenPipeError:  # the reader (`| head`) left
        code = 141
    except Exception as error:
        code = no_room(error) if isinstance(error, OSError) and error.errno in FULL else our_bug()
    lost = let_go_of_closed_pipes()
    forget_ctrl_c()
    sys.exit(no_room(lost) if lost and code == 0 else code)


FULL = (errno.ENOSPC, errno.EDQUOT)


def forget_ctrl_c() -> None:
    """
    Make the exit code of `python -m ringup` our own after a Ctrl-C that was dealt with.

    CPython notes each KeyboardInterrupt that leaves `exec` of a text (dataclasses are made by such an exec),
    though it is caught further out, and then ends by SIGINT instead of the code asked for.  The next exec
    takes the note back: run_eval_code_obj and Py_RunMain in CPython's Python/pythonrun.c, Modules/main.c.
    """
    exec("")


def no_room(error: OSError) -> int:
    """Say what could not be written."""
    where = f"{error.filename!r}" if error.filename else "output"
    tell(f"ringup: {where}: {error.strerror}\nhint: make room there (`df -h`, `quota`), or write elsewhere")
    return RingupError.exit_code


def our_bug() -> int:
    """Show the exception at hand and ask for a report."""
    import traceback

    tell(traceback.format_exc().rstrip())
    tell(f"ringup {__version__}: this is a bug of ringup's, please report it with the lines above")
    return 70


def tell(text: str) -> None:
    """Words on stderr, if anybody can be told."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """
    Streams that take whatever is said.

    `>&-` leaves none, and its number to the next file that is opened: /dev/null is there instead.
    A locale without a character (`LC_ALL=C`) shows its number.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, number <= 2)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115  (it stays)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def let_go_of_closed_pipes() -> OSError | None:
    """
    Write what still waits; why it could not be, unless the reader left.

    Python would complain of it once more while it ends, and exit with 120.
    """
    lost = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            lost = lost if isinstance(error, BrokenPipeError) else error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost
