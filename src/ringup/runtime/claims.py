"""The folder of one run's files."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from ringup.errors import LaunchError, writing

OWNER = ".run"
"""A file in the folder with the run's id; created with O_EXCL, so that only one run gets the folder."""
SUBMITTED = {"job.sh", "job.out"}
"""Written by `ringup run --slurm` for the run inside the job."""


def claim(asked: Path, run_id: str) -> Path:
    """`asked` if absent, empty or this run's own, else `asked`/RUN-ID; LaunchError if unwritable."""
    hint = "name another directory with --log-dir"
    with writing(asked, hint):
        for folder in (asked, asked / run_id):
            folder.mkdir(parents=True, exist_ok=True)
            if _is_ours(folder, run_id):
                return folder
    raise LaunchError(f"{asked / run_id} is in use", hint=hint)


def release(own: Path, run_id: str) -> None:
    """Release a claimed folder that is still empty; a folder made only for this run is removed."""
    with contextlib.suppress(OSError):
        if [p.name for p in own.iterdir()] == [OWNER]:
            (own / OWNER).unlink()
            if own.name == run_id:
                own.rmdir()


def _is_ours(folder: Path, run_id: str) -> bool:
    owner = folder / OWNER
    with contextlib.suppress(FileNotFoundError):
        if owner.read_text(encoding="utf-8", errors="replace") == run_id:
            return True
    if _names(folder):
        return False
    try:
        with owner.open("x", encoding="utf-8") as file:
            file.write(run_id)
    except FileExistsError:  # the folder of a run that starts at the same time
        return False
    return True


def submitted(folder: Path) -> str:
    """The id of the run that `ringup run --slurm` submitted as this job with `folder`, else ""."""
    with contextlib.suppress(OSError):
        if "SLURM_JOB_ID" in os.environ and (names := _names(folder)) and names <= SUBMITTED:
            known = (folder / OWNER).read_text(encoding="utf-8", errors="replace")
            return known if re.fullmatch(r"[0-9a-f-]{1,40}", known) else ""
    return ""


def _names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if not p.name.startswith(".")}


def newest(folder: Path) -> Path:
    """The folder of the latest run in `folder`: itself, or a folder inside it of a later run."""
    owners = (folder / OWNER, *folder.glob(f"*/{OWNER}"))
    begun = {p.parent: p.stat().st_mtime_ns for p in owners if p.exists()}
    return max(begun, key=lambda p: begun[p], default=folder)
