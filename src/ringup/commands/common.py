"""Options that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ringup import hosts as hosts_module
from ringup.errors import LaunchError, NodesError, UsageError
from ringup.facts import Host, Job

if TYPE_CHECKING:
    from ringup.reach import Reach


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    """Who the nodes are and how they are reached."""
    group = parser.add_argument_group("nodes")
    group.add_argument(
        "-H", "--hosts", metavar="NODES", help="node[1-8],gpu3,user@host; the first is the head"
    )
    group.add_argument("--hostfile", metavar="F", help="one node per line; slots=N and host:N are understood")
    group.add_argument(
        "--local", type=int, metavar="N", help="N nodes played on this machine (no root, no ssh)"
    )
    group.add_argument("--groups", action="store_true", help="allow ClusterShell groups (@name) and * in -H")
    group.add_argument("--ssh-config", metavar="F", help="ssh's configuration file, instead of ~/.ssh/config")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """What surrounds the job on every node."""
    group = parser.add_argument_group("the job's surroundings")
    group.add_argument("--python", default="", metavar="PY", help="interpreter on the nodes")
    group.add_argument("--chdir", default="", metavar="D", help="directory on the nodes (default: this one)")
    group.add_argument(
        "--setup", default="", metavar="CMD", help="shell command before everything: module load ..."
    )
    group.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="set for the job; repeatable"
    )
    group.add_argument("--backend", choices=("nccl", "gloo"), default="", help="what the script will use")
    group.add_argument(
        "--link-gbit", type=above_zero, metavar="N", help="a link's rate where it cannot be read"
    )


def add_launcher_argument(group: argparse._ArgumentGroup, launchers: Iterable[str]) -> None:
    """`--with`, where ranks are started or a file is written that starts them."""
    group.add_argument(
        "--with",
        dest="launcher",
        choices=tuple(launchers),
        default="",
        metavar="LAUNCHER",
        help=f"what starts the ranks: {', '.join(launchers)} (what the script asks for, else torchrun)",
    )


def add_collection_arguments(parser: argparse.ArgumentParser, *, strict: bool = True) -> None:
    """Saving, loading and bounding what is collected; `strict` where an exit code judges it."""
    group = parser.add_argument_group("collecting")
    group.add_argument("--save", metavar="F", help="write everything collected to F")
    group.add_argument(
        "--from", dest="from_file", metavar="F", help="work on such a file; no node is reached"
    )
    group.add_argument(
        "--timeout", type=above_zero, default=60.0, metavar="S", help="bound of the whole check (60)"
    )
    if strict:
        group.add_argument("--strict", action="store_true", help="exit 3 when something could not be checked")


def number(text: str) -> float:
    """A number; the words of argparse's own message name the function that read it."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def above_zero(text: str) -> float:
    """A finite number above zero."""
    given = number(text)
    if not 0 < given < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return given


def count(text: str) -> int:
    """A count, none among them."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def positive(text: str) -> int:
    """A count of at least one."""
    if count(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of at least 1")
    return int(text)


MOST_RANKS = 4096
"""Of a node, whose guard refuses more (payload/guard_ranks.py)."""


def ranks(text: str) -> int:
    """Ranks of a node."""
    if positive(text) > MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text} ranks on a node; {MOST_RANKS} is the most")
    return int(text)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """How the result is shown."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    group.add_argument("--html", metavar="F", help="also write a self-contained page")
    group.add_argument("--quiet", action="store_true", help="no progress, only the result")


def nodes_from(args: argparse.Namespace) -> tuple[Host, ...]:
    """
    The nodes the command line (or the allocation) names; else this machine.

    Raises UsageError when two sources are named, NodesError when the list cannot be read.
    """
    given = [name for name in ("hosts", "hostfile", "local") if getattr(args, name) is not None]
    if len(given) > 1:
        raise UsageError(
            f"--{given[0]} and --{given[1]} both name the nodes", hint="give one of -H, --hostfile, --local"
        )
    if args.hosts is not None:
        named = hosts_module.expand(args.hosts, allow_groups=args.groups)
        return hosts_module.of_allocation(named, os.environ)
    if args.hostfile is not None:
        try:
            with Path(args.hostfile).open(encoding="utf-8", errors="replace") as file:
                text = file.read(hosts_module.LONGEST_HOSTFILE + 1)  # /dev/zero has no end
        except OSError as error:
            raise NodesError(f"{args.hostfile}: {error.strerror}", hint="name a readable file") from error
        return hosts_module.read_hostfile(text)
    if args.local is not None:
        return hosts_module.local_nodes(args.local)
    allocated = hosts_module.from_allocation(os.environ)
    for note in hosts_module.notes(os.environ) if allocated else ():
        say(f"note: {note}", quiet=args.quiet)
    return allocated or hosts_module.this_machine()


def door(args: argparse.Namespace) -> Reach:
    """The way to the nodes: the pods that have come, else what the command line or the allocation names."""
    from ringup import reach

    pods = getattr(args, "pods", None)
    if pods is not None:
        return reach.open(pods.hosts, pods=pods)
    return reach.open(nodes_from(args), ssh_config=args.ssh_config)


def environment_from(pairs: list[str]) -> dict[str, str]:
    """
    `--env K=V` as a mapping.

    Raises UsageError for a word without `=` or a name no shell could export.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.replace("_", "a").isalnum() or name[0].isdigit() or not name.isascii():
            raise UsageError(
                f"--env {pair.split('=')[0]!r} is not NAME=VALUE", hint="for example --env NCCL_DEBUG=INFO"
            )
        if "\0" in value:
            raise UsageError(f"--env {name}: a value cannot hold a NUL byte", hint="leave it out")
        found[name] = value
    return found


def launcher_words(text: str) -> tuple[str, ...]:
    """
    `--launcher-args` as words, quoted as in a shell.

    Raises UsageError for a quote that is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"--launcher-args {text!r}: {error}", hint="quote it as in a shell: '--a 1 --b \"x y\"'"
        ) from error


def without_command(launcher: str, words: list[str]) -> list[str]:
    """
    LLaMA-Factory's own command left out: the file it is given is what must be on every node.

    >>> without_command("llamafactory", ["llamafactory-cli", "train", "sft.yaml", "learning_rate=1e-5"])
    ['sft.yaml', 'learning_rate=1e-5']
    """
    if launcher == "llamafactory":
        for own in ("llamafactory-cli", "train"):
            words = words[1:] if words[:1] == [own] and len(words) > 1 else words
    return words


def time_left_s(end: str, now_s: float) -> float:
    """
    Seconds until the moment that Slurm writes into SLURM_JOB_END_TIME of an allocation; infinity without it.

    >>> time_left_s("1700000600", 1700000000.0), time_left_s("", 0.0)
    (600.0, inf)
    """
    return max(0.0, int(end) - now_s) if end.isascii() and end.isdigit() else math.inf


def directory(given: str) -> str:
    """
    `--chdir`, from where we stand; else that place itself.

    Raises UsageError where that was removed.
    """
    if given.startswith("/"):
        return given
    try:
        return str(Path.cwd() / given)
    except OSError as error:
        raise UsageError(
            f"the current directory: {error.strerror}",
            hint="`cd` to one that is there, or name one with --chdir /...",
        ) from error


def job_from(args: argparse.Namespace, words: list[str] | None = None) -> Job:
    """
    The job as asked; `words` are the script and its arguments (for `run`).

    Raises UsageError for values that cannot be.
    """
    launcher = getattr(args, "launcher", "torchrun")
    script, *arguments = without_command(launcher, words or [""])
    env = environment_from(args.env)
    port = env.get("MASTER_PORT", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"MASTER_PORT={port!r} is not a port", hint="a number from 1 to 65535")
    return Job(
        script=script,
        arguments=tuple(arguments),
        chdir=directory(args.chdir),
        setup=args.setup,
        python=args.python,
        nproc=getattr(args, "nproc", None) or 0,
        launcher=launcher,
        launcher_arguments=launcher_words(getattr(args, "launcher_args", "")),
        backend=args.backend,
        rendezvous=getattr(args, "rdzv", "static"),
        port=int(port) if port else 0,
        env=env,
        debug=getattr(args, "debug", False),
        link_gbit_s=args.link_gbit,
        time_left_s=time_left_s(os.environ.get("SLURM_JOB_END_TIME", ""), time.time()),
    )


def write(path: Path, text: str, *, executable: bool = False) -> None:
    """
    A file that was asked for.

    Raises LaunchError when it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        if executable:
            path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}", hint="name a file that can be written") from error


def say(text: str, *, quiet: bool = False) -> None:
    """A line for people, on stderr; a reader that has left or a full disk is no reason to end a run."""
    if not quiet:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def writable(*paths: str | None) -> None:
    """
    Look whether files that are asked for can be written, before a minute is spent on what goes into them.

    Raises LaunchError.
    """
    for path in filter(None, paths):
        why = why_not_writable(Path(path))
        if why:
            raise LaunchError(f"{path} cannot be written: {why}", hint="name a file that can be written")


def why_not_writable(path: Path) -> str:
    """The system's words, "" for a file that can be written as far as can be told without writing."""
    try:
        if path.is_dir():
            return os.strerror(errno.EISDIR)
        if not stat.S_ISDIR(path.parent.stat().st_mode):
            return os.strerror(errno.ENOTDIR)
        is_allowed = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        return error.strerror or str(error)
    return "" if is_allowed else os.strerror(errno.EACCES)
