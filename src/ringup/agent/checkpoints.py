"""
How far a training got, by its checkpoints: `checkpoints.py PATH FOLDER LIMIT_S`.

PATH (--progress) is a file with a number, a checkpoint's file or a directory of checkpoints, "" for those
below FOLDER.  Prints one line of JSON: the newest complete checkpoint, and newer ones that are incomplete.
It reads only.
"""

import json
import os
import re
import stat
import sys
import time

from ringup.agent.proc.command import Child, wait
from ringup.agent.proc.files import listed, read

MOST_ENTRIES = 20000
MOST_DEPTH = 4
"""Below the working directory: outputs/RUN/checkpoints/checkpoint-500."""
MOST_INCOMPLETE = 4
LONGEST_NUMBER = 15
TAIL_BYTES = 66000
"""A ZIP file ends with its directory's end record and a comment of at most 64 KiB."""
SKIPPED = ("node_modules", "site-packages", "__pycache__", "wandb", "proc", "sys")
NUMBER = re.compile(
    r"(?<![\d.])-?\d{1,%d}(?:\.\d{1,%d})?(?:[eE][+-]?\d{1,2})?(?![\d])" % (LONGEST_NUMBER, LONGEST_NUMBER)
)
STEP = re.compile(r"(?:step|iter(?:ation)?|checkpoint|ckpt|ba)[-_=]?(\d{1,%d})(?!\d)" % LONGEST_NUMBER, re.I)
LAST = re.compile(r"(?<!\d)(\d{1,%d})(?!\d)\D*$" % LONGEST_NUMBER)
UNFINISHED = re.compile(
    r"(?i)^\.?te?mp[-_.]|[-_.](?:te?mp|part|partial|incomplete|writing|new|lock)(?:[-_.]\w{0,40})?$|~$"
)
NO_CHECKPOINT = re.compile(r"(?i)^\.|tfevents|\.(?:log|out|err|txt|json|jsonl|csv|ya?ml|md|py|sh)$")
POINTERS = ("latest_checkpointed_iteration.txt", "dlrover_latest.txt", "latest")
"""Files that Megatron-LM, DLRover and DeepSpeed write to name the newest complete checkpoint."""
MARKERS = ("trainer_state.json", ".metadata")
"""Files that transformers and torch.distributed.checkpoint write last into a checkpoint's directory."""
LATEST = re.compile(
    r"latest-rank0(?:\.pt)?$|last(?:-v\d{1,9})?\.ckpt$|(?=.{0,250}\.ckpt$).{0,200}step=\d|(?:snapshot|checkpoint|ckpt|last|latest)\.pth?$"
)
"""Names of single-file checkpoints: Composer, Lightning, PyTorch's examples."""


def number_in(name, pattern=STEP):
    """
    The step in the name of a checkpoint, None without one.

    >>> number_in("epoch=3-step=500.ckpt"), number_in("ep1-ba20-rank0.pt"), number_in("model_7.pt", LAST)
    (500, 20, 7)
    """
    found = pattern.findall(re.sub(r"\.[A-Za-z]\w{1,11}$", "", name))
    return int(found[-1]) if found else None


def number_of(data):
    """The first number in a text; None without one."""
    found = NUMBER.search(data.decode("utf-8", "replace"))
    return float(found.group()) if found and abs(float(found.group())) < 1e15 else None


def is_whole(path):
    """Whether a file is regular, not empty and, in torch.save's format (ZIP), has its end record."""
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode) or not info.st_size:
        return False
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            return True
        file.seek(max(0, info.st_size - TAIL_BYTES))
        return b"PK\5\6" in file.read(TAIL_BYTES)


def is_complete(path):
    """Whether a checkpoint (a file or a directory) looks complete."""
    try:
        if UNFINISHED.search(os.path.basename(path)):
            return False
        if not os.path.isdir(path):
            return is_whole(path)
        names = listed(path)[:MOST_ENTRIES]
        if not names or any(map(UNFINISHED.search, names)):
            return False
        if any(name.endswith(".distcp") for name in names):
            return ".metadata" in names
        files = [os.path.join(path, name) for name in names]
        return all(is_whole(file) for file in files if os.path.isfile(file))
    except OSError:
        return False


def entry(path, value, group, at_s):
    """With `value` None, the entry has a time only: `at_s`, in seconds since the epoch."""
    kind, value = ("time", at_s) if value is None else ("step", value)
    source, group = (os.fsencode(one).decode("utf-8", "backslashreplace") for one in (path, group))
    return {"value": value, "kind": kind, "source": source, "group": group, "at_s": at_s}


def of_directory(folder):
    """Complete and incomplete entries of a directory of checkpoints; a pointer file has priority."""
    names = [n for n in listed(folder)[:MOST_ENTRIES] if n in POINTERS or not NO_CHECKPOINT.search(n)]
    # All names are read in the same way: the number after "step", else the last number, else none.
    numbered = [p for p in (STEP, LAST) if any(number_in(name, p) is not None for name in names)]
    complete, incomplete, pointed = [], [], []
    for name in names:
        path = os.path.join(folder, name)
        value = number_in(name, numbered[0]) if numbered else None
        try:
            if name in POINTERS:
                pointed += pointed_at(folder, name)
            elif value is not None or not numbered:
                found = complete if is_complete(path) else incomplete
                found.append(entry(path, value, folder, os.lstat(path).st_mtime))
        except OSError:
            continue
    return pointed or complete, incomplete


def pointed_at(folder, name):
    """The entry that a pointer file names, if that checkpoint exists (a bare number needs no directory)."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return []
    words = read(path, 256).decode("utf-8", "replace").strip()
    value = number_in(words, LAST)
    is_there = name != "latest" or os.path.isdir(os.path.join(folder, os.path.basename(words)))
    return [entry(path, value, folder, os.lstat(path).st_mtime)] if value is not None and is_there else []


def below(top, until):
    """Directories to a bounded depth, and the names in each; links are not followed."""
    todo, seen = [(top, 0)], 0
    while todo and seen < MOST_ENTRIES and time.monotonic() < until:
        folder, depth = todo.pop(0)
        folders, files = [], []
        try:
            with os.scandir(folder) as found:
                for one in found:
                    seen += 1
                    if seen > MOST_ENTRIES:
                        break
                    (folders if one.is_dir(follow_symlinks=False) else files).append(one.name)
        except OSError:
            continue
        yield folder, files
        if depth < MOST_DEPTH:
            inner = [n for n in sorted(folders) if not n.startswith(".") and n not in SKIPPED]
            todo += [(os.path.join(folder, name), depth + 1) for name in inner]


def of_markers(top, until):
    """The checkpoints below a directory that have a marker file of a known framework."""
    complete, incomplete = [], []
    for folder, files in below(top, until):
        for name in files:
            path, parent = os.path.join(folder, name), os.path.dirname(folder)
            try:
                if name in POINTERS:
                    complete += pointed_at(folder, name)
                elif name in MARKERS:
                    value = number_in(os.path.basename(folder), LAST)
                    (complete if is_complete(folder) else incomplete).append(
                        entry(folder, value, parent, os.lstat(path).st_mtime)
                    )
                elif LATEST.match(name):
                    target = os.path.basename(os.readlink(path)) if os.path.islink(path) else name
                    (complete if is_complete(path) else incomplete).append(
                        entry(path, number_in(target), folder, os.lstat(path).st_mtime)
                    )
            except OSError:
                continue
    return [one for one in complete if one["kind"] == "step"] or complete, incomplete


def of_file(path):
    """The entry of a file with a number, or of a checkpoint that is written again and again."""
    data, at_s = read(path, 4096), os.stat(path).st_mtime
    if b"\0" in data:
        found = [entry(path, None, path, at_s)]
        return (found, []) if is_complete(path) else ([], found)
    value = number_of(data)
    return [] if value is None else [entry(path, value, path, at_s)], []


def answer(path, folder, limit_s):
    """The newest complete checkpoint ({} without), and newer incomplete ones."""
    top = os.path.join(folder or os.getcwd(), path)
    if path and not os.path.isdir(top):
        complete, incomplete = of_file(top) if os.path.isfile(top) else ([], [])
    elif path:
        complete, incomplete = of_directory(top)
    else:
        complete, incomplete = of_markers(top, time.monotonic() + 0.8 * limit_s)
    best = max(complete, key=lambda one: (one["at_s"], one["value"]), default=None)
    later = [one["source"] for one in incomplete if best is None or one["at_s"] >= best["at_s"]]
    return {"best": best, "incomplete": sorted(later)[:MOST_INCOMPLETE]}


def main(path, folder, limit_s):
    """The answer, computed in a child process: a file server that is down would block this process."""

    def work(write_end):
        data = json.dumps(answer(path, folder, limit_s)).encode("ascii")
        while data:
            data = data[os.write(write_end, data) :]

    child = Child(work)
    if wait([child], child.began + limit_s):
        child.give_up()
        return {"best": None, "incomplete": [], "late": True}
    return json.loads(child.output() or "{}")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))), flush=True)
