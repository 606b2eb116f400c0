"""
Pack facts, findings and logs into one archive for a bug report, secrets removed.

Logs are files or directories, such as a run's log directory.  Read the archive before you send it: it
contains names of hosts and users, addresses and paths.

A link that leads out of a log directory is not followed.  LEFT-OUT in the archive lists the files that are
missing from it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import stat
import tarfile
import time
from pathlib import Path

from ringup import progress, secrets
from ringup.cli import options, pipeline
from ringup.errors import BundleError, RingupError, UsageError, writing
from ringup.output import terminal
from ringup.units import plural
from ringup.version import __version__

MOST_FILES = 200
HEAD_BYTES, TAIL_BYTES = 1 << 20, 4 << 20
"""Of each log: how a job begins and how it ends."""
MOST_BYTES = 256 << 20
"""Of all logs; with many logs each has a smaller share."""


NAME = time.strftime("ringup-%Y%m%d-%H%M%S.tar.gz")
ARCHIVE = options.group(
    "the archive",
    options.value("-o --output", "F", "its name (default: ringup-DATE.tar.gz here)", NAME, options.writable),
    options.flag("--no-nodes", "only logs; contact no node"),
)
LOGS = options.words("logs", "LOG", "log files or directories")
OPTIONS = (options.NODES, options.JOB, options.COLLECTING, ARCHIVE, options.QUIET, LOGS)


def run(args: argparse.Namespace) -> int:
    from ringup.logs.read import read_logs
    from ringup.output import logs_report as show
    from ringup.rules import INTERNAL_ERRORS

    target = Path(args.output)
    options.some_exist(args.logs)
    parts = {"README": f"Made by ringup {__version__}; secrets were searched for and replaced.\n"}
    if not args.no_nodes:
        parts |= of_nodes(args)
    logs, packed, left_out = of_logs(args.logs)
    if args.no_nodes and not logs:
        why = "; ".join(left_out[:3]) or "--no-nodes packs only logs, and no log file was given"
        raise UsageError(f"nothing to pack: {why}", hint="ringup bundle --no-nodes runs/RUN")
    parts |= logs
    if packed:
        with contextlib.suppress(RingupError):
            parts["logs.json"] = json.dumps(show.as_json(read_logs(packed)))
    if INTERNAL_ERRORS:
        parts["internal-errors.txt"] = "\n".join(broken.traceback for broken in INTERNAL_ERRORS.values())
    if left_out:
        parts["LEFT-OUT"] = "\n".join(left_out) + "\n"
    pack(parts, target)
    terminal.say(*(f"left out: {words}" for words in left_out))
    files, shown = plural(len(parts), "file"), terminal.path_shown(target)
    terminal.show(f"{shown}: {files}. Unpack and read them before you send it: tar xzf {shown}")
    return 0


def of_nodes(args: argparse.Namespace) -> dict[str, str]:
    """The collected facts, for `--from`, and the check of them."""
    from ringup import bundle
    from ringup.output import console

    judged = pipeline.judge(pipeline.cluster_of(args))
    return {
        "facts.json": bundle.to_json(judged.cluster).decode(),
        "check.json": json.dumps(console.check_json(judged.report)),
        "check.txt": console.check_text(judged.report, terminal.Style(io.StringIO())) + "\n",
    }


def of_logs(paths: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Name in the archive -> beginning and end of a log; the logs packed; the logs left out, and why."""
    from ringup.logs import files

    found, unreadable = files.find(paths) if paths else ([], [])
    left_out = [f"{one.path}: {one.reason}" for one in unreadable]
    found = [run for path in paths if os.access(run := f"{path}/run.json", os.R_OK)] + found
    left_out += [f"{path}: more than {MOST_FILES} files" for path in found[MOST_FILES:]]
    parts, packed = {}, []
    readable = [path for path in paths if os.access(path, os.F_OK)]
    roots = [os.path.realpath(path if Path(path).is_dir() else Path(path).parent) for path in readable]
    left_out += [f"{path}: {reason}" for path in paths if (reason := leads_away(path))]
    share = min(1.0, MOST_BYTES / (HEAD_BYTES + TAIL_BYTES) / max(1, len(found[:MOST_FILES])))
    head_bytes, tail_bytes = int(share * HEAD_BYTES), int(share * TAIL_BYTES)
    for number, path in enumerate(found[:MOST_FILES]):
        if any(leads_away(named) and Path(path).is_relative_to(named) for named in paths):
            continue
        try:
            text, is_whole = ends(path, head_bytes, tail_bytes, roots)
        except OSError as error:
            left_out.append(f"{path}: {error.strerror or error}")
            continue
        if Path(path).name != "run.json":
            packed.append(path)
        if not is_whole:
            left_out.append(f"{path}: all but its first {head_bytes} and last {tail_bytes} bytes")
        parts[f"logs/{number:03d}-{Path(path).name}"] = text
    return parts, packed, left_out


def leads_away(path: str) -> str:
    """
    Why a path on the command line is not followed; "" if it is.

    A job may put links into its log directory, and `runs/*` matches them.  A link that stays in its directory
    (latest -> 20260112-1) is followed, and so is a link of root or of our user above the last name (/home).
    """
    for link in (Path(path), *Path(path).parents):
        try:
            is_ours = link != Path(path) and link.lstat().st_uid in (0, os.getuid())
            if not link.is_symlink() or is_ours:
                continue
        except OSError:
            continue
        target = os.path.realpath(link)
        if not Path(target).is_relative_to(os.path.realpath(link.parent)):
            return f"a symbolic link to {target}, outside its directory: name that path itself"
    return ""


def of_directory(path: str, roots: list[str]) -> int:
    """A regular file of the named directories, opened without following links.  Raises OSError."""
    if Path(path).is_symlink():
        raise OSError(f"a symbolic link to {os.path.realpath(path)}")
    # A FIFO without a writer would block.
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(opened)
        real = os.path.realpath(path)
        if not stat.S_ISREG(state.st_mode):
            raise OSError("not a regular file")
        if not any(Path(real).is_relative_to(root) for root in roots):
            raise OSError(f"outside the log directory: {real}")
        if state.st_nlink > 1 and state.st_uid != Path(real).parent.stat().st_uid:
            raise OSError("a second name (hard link) of another user's file")
    except BaseException:
        os.close(opened)
        raise
    return opened


def ends(path: str, head_bytes: int, tail_bytes: int, roots: list[str]) -> tuple[str, bool]:
    """A log's beginning and end (compressed: its beginning), and whether that is all.  Raises OSError."""
    from ringup.logs import files

    with files.opened(path if path == "-" else of_directory(path, roots)) as stream:
        head = stream.read(head_bytes)
        rest = stream.read(tail_bytes)
        is_whole = not stream.read(1)
        if not is_whole and isinstance(stream, io.BufferedReader) and stream.seekable():
            stream.seek(-tail_bytes, io.SEEK_END)
            # Without its name, a secret's value cannot be recognized: partial lines are dropped.
            rest = b"\n[...]\n" + stream.read().partition(b"\n")[2]
    return (head + rest).decode("utf-8", "backslashreplace"), is_whole


def without_secrets(name: str, text: str) -> str:
    """A file of the archive without secrets; JSON stays valid JSON."""
    if name.endswith(".json"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(secrets.redact_data(json.loads(text)))
    return secrets.redact(text)


@progress.line()
def pack(parts: dict[str, str], target: Path) -> None:
    """Write the archive; it is complete or absent.  Raises BundleError."""
    from ringup import bundle

    folder = target.name.removesuffix(".gz").removesuffix(".tar") or "ringup"
    with (
        writing(target, kind=BundleError),
        bundle.whole(target) as place,
        tarfile.open(place, "w:gz") as archive,
    ):
        for number, (name, text) in enumerate(parts.items()):
            progress.show(f"taking secrets out: {number} of {len(parts)} files")
            data = without_secrets(name, text).encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
