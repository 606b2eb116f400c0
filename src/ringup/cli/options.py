"""The options of all commands; options that several commands share are declared once, as sets of rows."""

from __future__ import annotations

import argparse
import errno
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ringup.errors import UsageError
from ringup.units import duration_s

# -- values --------------------------------------------------------------------------------------


def number(
    words: str, least: float, most: float, kind: Callable[[str], float] = float, zero: bool = False
) -> Any:
    """A parser of numbers from `least` to `most`, or 0 if `zero`; `words` describe the expected value."""

    def read(text: str) -> float:
        try:
            given = kind(text)
        except ValueError:
            given = math.nan
        is_plain = text.isascii() and "_" not in text
        if is_plain and (least <= given <= most or (zero and given == 0)):
            return given
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")

    return read


def seconds(text: str) -> float:
    """Seconds, or a number with its unit.  Raises ValueError."""
    found = duration_s(text)
    return float(text) if found is None else found


above_zero = number("a number above 0", 5e-324, sys.float_info.max)
limit = number("a time above 0, such as 90 or 15m", 5e-324, sys.float_info.max, seconds)
count = number("a count", 0, sys.maxsize, int)
positive = number("a count of at least 1", 1, sys.maxsize, int)
MOST_RANKS = 4096
"""Of a node; its guard refuses more (agent/guard/messages.py)."""
ranks = number(f"a count of ranks from 1 to {MOST_RANKS}", 1, MOST_RANKS, int)


def gpus_or(kind: Callable[[str], float]) -> Callable[[str], float | None]:
    """A count; `gpu` and `auto`, torchrun's values, select the default."""
    return lambda text: None if text in ("gpu", "auto") else kind(text)


port = number("a port from 1 to 65535", 1, 65535, int)
lease = number("a time from 5 to 86400 seconds", 5, 86400, seconds)
"""At least as long as heartbeats can keep."""
window = number("0 or a time from 2 seconds to 30 days, such as 90 or 15m", 2, 86400 * 30, seconds, zero=True)
"""Seconds without progress, 0 for never; a node needs a moment for a snapshot."""


def path_that(problem: Callable[[Path], int | None], verb: str) -> Callable[[str], str]:
    """A parser of paths that can be read or written; `problem` raises, or gives the error's number."""

    def read(text: str) -> str:
        try:
            number = problem(Path(text))
            words = os.strerror(number) if number else ""
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
        if words:
            raise argparse.ArgumentTypeError(f"{text} cannot be {verb}: {words}")
        return text

    return read


def _reading(path: Path) -> int:
    """It is not opened, because a pipe can be read only once."""
    if stat.S_ISDIR(path.stat().st_mode):
        return errno.EISDIR
    return 0 if os.access(path, os.R_OK) else errno.EACCES


def _writing(path: Path) -> int:
    """Tested before the minutes of work for its contents, without writing."""
    if path.is_dir():
        return errno.EISDIR
    if not stat.S_ISDIR(path.parent.stat().st_mode):
        return errno.ENOTDIR
    return 0 if os.access(path if path.exists() else path.parent, os.W_OK) else errno.EACCES


def _adding_files(path: Path) -> int:
    """If the directory does not exist, it must be possible to create it."""
    place = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not place.is_dir():
        return errno.ENOTDIR
    return 0 if os.access(place, os.W_OK | os.X_OK) else errno.EACCES


readable = path_that(_reading, "read")
listable = path_that(lambda path: os.scandir(path).close(), "read")
writable, folder = path_that(_writing, "written"), path_that(_adding_files, "written")


def there(text: str) -> str:
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"{text}: no such file or directory")
    return text


def some_exist(paths: Iterable[str]) -> None:
    """Raises UsageError if none of the named files and directories exists; `-` always does."""
    reasons = {path: "" if path == "-" else _why_absent(path) for path in paths}
    if reasons and all(reasons.values()):
        hint = "name files or directories that exist, or a run: `ringup runs` lists them"
        raise UsageError(": ".join(next(iter(reasons.items()))), hint=hint)


def _why_absent(path: str) -> str:
    try:
        os.lstat(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


# -- rows ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    names: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def dest(self) -> str:
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.settings.get("dest") or long.lstrip("-").replace("-", "_"))


class Set(NamedTuple):
    title: str
    rows: tuple[Row, ...]


Options = tuple[Row | Set, ...]
"""All options of a command, in the order of its help."""


def flag(name: str, help_: str, **more: Any) -> Row:
    return Row(tuple(name.split()), {"action": "store_true", "help": help_, **more})


def value(
    name: str, metavar: str, help_: str, default: Any = None, kind: Callable[[str], Any] = str, **more: Any
) -> Row:
    settings = {"metavar": metavar, "help": help_, "default": default, "type": kind, **more}
    return Row(tuple(name.split()), settings)


def choice(name: str, choices: tuple[str, ...], help_: str, default: str = "", **more: Any) -> Row:
    return Row((name,), {"choices": choices, "help": help_, "default": default, **more})


def many(name: str, metavar: str, help_: str) -> Row:
    return Row((name,), {"metavar": metavar, "help": help_, "default": [], "action": "append"})


def words(name: str, metavar: str, help_: str, nargs: str = "*") -> Row:
    return Row((name,), {"metavar": metavar, "help": help_, "nargs": nargs})


def group(title: str, *rows: Row) -> Set:
    return Set(title, rows)


def add(parser: argparse.ArgumentParser, options: Options) -> None:
    for one in options:
        target = parser if isinstance(one, Row) else parser.add_argument_group(one.title)
        for names, settings in (one,) if isinstance(one, Row) else one.rows:
            target.add_argument(*names, **settings)


# -- shared sets ---------------------------------------------------------------------------------

JSON = flag("--json", "JSON on stdout, everything else on stderr")
QUIET = flag("--quiet", "print only the result")
PYTHON = value("--python", "PY", "interpreter on the nodes (python3)", "")
NPROC = value(
    "--nproc --nproc-per-node --nproc_per_node",
    "N",
    "ranks per node (default, gpu, auto: visible GPUs)",
    None,
    gpus_or(ranks),
)
MASTER_PORT = value("--master-port --master_port", "PORT", "port of the rendezvous (a free one)", 0, port)
WRAP = value("--wrap", "'...'", "a command in front of what each node starts: 'numactl --localalloc'", "")
RENDEZVOUS = choice("--rdzv", ("static", "c10d"), "rendezvous of torchrun (static)", "static")
DRY_RUN = flag("--dry-run", "print the commands of each node, and stop")
ANYWAY = flag("--anyway", "start despite errors")
LOG_DIR = value("--log-dir", "D", "one file per rank, run.json (default: runs/RUN)", None, folder)
RUNS_DIR = value("--log-dir", "D", "where the runs' folders are (runs)", None, listable)
SCRIPT_WORDS = "-- SCRIPT ARGS"
"""Metavar of the arguments after `--`."""
LINE_WORDS = "-- START LINE"
"""Metavar of a start line whose nodes, ranks and variables are used."""
KIND_WORDS = "KIND -- SCRIPT ARGS"
"""Like SCRIPT_WORDS, after the kind of file."""
SCRIPT = words("script", SCRIPT_WORDS, "the training script and its arguments")
_FROM = "use a file written by --save; no node is contacted"

NODE_OPTIONS = ("hosts", "hostfile", "local")
"""Of NODES, those that name the nodes."""
NODES = group(
    "nodes",
    value("-H --hosts", "NODES", "node[1-8],gpu3,user@host; the first is the head"),
    value("--hostfile", "F", "one node per line; slots=N and host:N are accepted", None, readable),
    value("--exclude-from", "F", "leave out the nodes named in F, one per line", None, readable),
    value("--local", "N", "N nodes simulated on this machine (no root, no ssh)", None, positive),
    flag("--groups", "allow ClusterShell groups (@name) and * in -H"),
    value("--ssh-config", "F", "ssh's configuration file, instead of ~/.ssh/config", None, readable),
)
JOB = group(
    "the job's environment",
    value("--python", "PY", "interpreter on the nodes", ""),
    value("--chdir", "D", "directory on the nodes (default: this one)", ""),
    value("--setup", "CMD", "shell command to run first: module load ...", ""),
    many("--env", "K=V", "set for the job (K alone: with its value here); repeatable"),
    flag("--no-forward", "do not pass exported NCCL_*, TORCH*, HF_*, ... on"),
    choice("--backend", ("nccl", "gloo"), "backend that the script uses"),
    value("--link-gbit", "N", "link rate where it cannot be read", None, above_zero),
)
COLLECTING = group(
    "collecting",
    value("--save", "F", "write everything collected to F", None, writable),
    value("--from", "F", _FROM, None, readable, dest="from_file"),
    value("--timeout", "S", "time limit of the whole check (60)", 60.0, limit),
)
STRICT = group("collecting", *COLLECTING.rows, flag("--strict", "exit 3 when something could not be checked"))
"""Like COLLECTING, for commands whose exit code judges the facts."""
ALL = flag("--all", "list every node, finding and path, equal ones too", dest="unfolded")
HTML = value("--html", "F", "also write a self-contained page", None, writable)
OUTPUT = group("output", JSON, ALL, HTML, QUIET)
CHECK = (NODES, JOB, STRICT, OUTPUT)
"""Options of every command that checks before it acts."""
_REPORT = "report a hang after this time without progress (60; 0: never)"
WATCH = (
    value("--hang-report", "S", _REPORT, 60.0, window),
    value("--hang-timeout", "S", "stop a run that hangs for this time, with exit code 124", 0.0, window),
)
SCHEDULERS = group(
    "schedulers",
    value("--nodes --nnodes", "N", "how many nodes", 0, positive),
    value("--name", "NAME", "the job's name (default: the script's)", ""),
    value("--queue --partition", "Q", "partition (Slurm) or queue (PBS, LSF, Volcano)", ""),
    value("--account", "A", "who pays", ""),
    value("--time", "H:M:S", "time limit", ""),
    value("--gpus", "N", "GPUs per node (default: as many as ranks)", None, count),
    value("--cpus", "N", "CPUs per node", 0, positive),
    many("--option", "OPT", "further option of the scheduler, e.g. --option=--qos=high; repeatable"),
)
