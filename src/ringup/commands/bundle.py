"""
Facts, findings and logs in one archive for a bug report, secrets taken out.

Logs are files or directories, such as a run's log directory.  Read what is in it before you send it:
names of hosts and users, addresses and paths stay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tarfile
import time
from pathlib import Path

from ringup import __version__
from ringup.commands import check, common
from ringup.errors import BundleError

MOST_FILES = 200
HEAD_BYTES, TAIL_BYTES = 1 << 20, 4 << 20
"""Of each log: how a job begins and how it ends."""
MOST_BYTES = 256 << 20
"""Of all logs; where there are many, each gives less."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup bundle`."""
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser, strict=False)
    group = parser.add_argument_group("the archive")
    group.add_argument("-o", "--output", metavar="F", help="its name (default: ringup-DATE.tar.gz here)")
    group.add_argument("--no-nodes", action="store_true", help="only logs; no node is looked at")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    parser.set_defaults(json=False, html=None)
    parser.add_argument("logs", nargs="*", metavar="LOG", help="log files or directories")


def run(args: argparse.Namespace) -> int:
    """Collect, judge, redact, pack."""
    target = Path(args.output or time.strftime("ringup-%Y%m%d-%H%M%S.tar.gz"))
    common.writable(str(target), args.save)
    parts = {"README": f"Made by ringup {__version__}; secrets were looked for and replaced.\n"}
    if not args.no_nodes:
        parts |= of_nodes(args)
    logs, left_out = of_logs(args.logs)
    if args.no_nodes and not logs:
        why = "; ".join(left_out[:3]) or "no log was named, and --no-nodes leaves only logs"
        raise BundleError(f"nothing to pack: {why}", hint="ringup bundle --no-nodes runs/RUN")
    parts |= logs
    if left_out:
        parts["LEFT-OUT"] = "\n".join(left_out) + "\n"
    pack(parts, target)
    for words in left_out:
        common.say(f"left out: {words}")
    files = f"{len(parts)} file{'s' * (len(parts) != 1)}"
    print(f"{target}: {files}. Read them before you send them: tar tzf {target}")
    return 0


def of_nodes(args: argparse.Namespace) -> dict[str, str]:
    """What was collected (to be read with `--from`), and what a check says of it."""
    from ringup import bundle, report
    from ringup.plan.expected import expected
    from ringup.plan.kept import kept

    if args.from_file:
        cluster = check.loaded(args)
    else:
        with common.door(args) as door:
            cluster = check.collect(door, common.job_from(args), args, check.Progress(args.quiet))
        check.save(cluster, args)
    findings, skipped, plan = check.judge(cluster)
    told = (cluster, findings, skipped, plan)
    style = report.Style(io.StringIO())
    more = (expected(cluster, plan), kept(cluster))
    return {
        "facts.json": bundle.to_json(cluster).decode(),
        "check.json": json.dumps(report.check_json(*told, *more)),
        "check.txt": report.check_text(*told, style, *more) + "\n",
    }


def of_logs(paths: list[str]) -> tuple[dict[str, str], list[str]]:
    """The beginning and the end of each log, by its name in the archive; and what was left out, and why."""
    from ringup.logs import files

    found, unreadable = files.find(paths) if paths else ([], [])
    left_out = [f"{one.path}: {one.reason}" for one in unreadable]
    found = [str(run) for path in paths if (run := Path(path) / "run.json").is_file()] + found
    left_out += [f"{path}: more than {MOST_FILES} files" for path in found[MOST_FILES:]]
    parts = {}
    share = min(1.0, MOST_BYTES / (HEAD_BYTES + TAIL_BYTES) / max(1, len(found[:MOST_FILES])))
    head_bytes, tail_bytes = int(share * HEAD_BYTES), int(share * TAIL_BYTES)
    for number, path in enumerate(found[:MOST_FILES]):
        try:
            text, is_whole = ends(path, head_bytes, tail_bytes)
        except OSError as error:
            left_out.append(f"{path}: {error.strerror}")
            continue
        if not is_whole:
            left_out.append(f"{path}: all but its first {head_bytes} and last {tail_bytes} bytes")
        parts[f"logs/{number:03d}-{Path(path).name}"] = text
    return parts, left_out


def ends(path: str, head_bytes: int, tail_bytes: int) -> tuple[str, bool]:
    """
    How a log begins and ends, and whether that is all of it; of a compressed one only the beginning.

    Raises OSError.
    """
    from ringup.logs import files

    with files.opened(path) as stream:
        head = stream.read(head_bytes)
        rest = stream.read(tail_bytes)
        is_whole = not stream.read(1)
        if not is_whole and isinstance(stream, io.BufferedReader) and stream.seekable():
            stream.seek(-tail_bytes, io.SEEK_END)
            rest = b"\n[...]\n" + stream.read()
    return (head + rest).decode("utf-8", "backslashreplace"), is_whole


def without_secrets(name: str, text: str) -> str:
    """A part of the archive as it may leave; JSON stays JSON."""
    from ringup.redact import redact, redact_data

    if name.endswith(".json"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(redact_data(json.loads(text)))
    return redact(text)


def pack(parts: dict[str, str], target: Path) -> None:
    """Write the archive; it is whole or not there.  Raises BundleError."""
    from ringup import bundle

    folder = target.name.removesuffix(".gz").removesuffix(".tar") or "ringup"
    try:
        with bundle.whole(target) as place, tarfile.open(place, "w:gz") as archive:
            for name, text in parts.items():
                data = without_secrets(name, text).encode("utf-8", "backslashreplace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise BundleError(
            f"{target} cannot be written: {error.strerror or error}", hint="name another place with --output"
        ) from error
