"""
A job file for Slurm: submitted, followed to its end, cancelled on request.

Texts are those of Slurm 22.05.  Its controller is queried every two seconds at first, and every ten for a job
that waits or runs long; the output is read from its file.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringup.errors import LaunchError
from ringup.runtime import Event
from ringup.runtime.output import clean
from ringup.transport import srun
from ringup.transport.interrupts import Interrupts
from ringup.units import printable

READ_S, ASK_S, ASK_SELDOM_S = 0.3, 2.0, 10.0
SELDOM_AFTER_S = 60.0
READ_BYTES = 1 << 20
LAST_WORDS_S = 3.0
"""Seconds that a shared file system may need to show the end of the output."""
SOFT_S = 10.0
"""Seconds for a job file to end before scancel."""
GIVE_UP_S = 120.0
"""Seconds after scancel; Slurm itself waits KillWait (30 s) between SIGTERM and SIGKILL."""

ALIVE = ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"]
"""Slurm's states of a job that is not over (squeue(1)), without requeued ones."""
AGAIN = ["REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT", "RESIZING"]


@dataclass(frozen=True)
class Ended:
    state: str
    """Slurm's state; GONE if Slurm no longer knows the job."""
    code: int | None
    """Exit code of the job file, 128 + N for a signal; None if Slurm has none."""


class Submitted:
    def __init__(self, number: str, output: Path, env: Mapping[str, str]) -> None:
        self.number, self.output = number, output
        self._env = env
        self._offset = 0

    def _run(self, *words: str) -> Any:
        return srun.run_here(words, env=self._env)

    def state(self) -> tuple[str, str]:
        """Slurm's state of the job, and why it waits; ("", "") if the controller does not answer."""
        said = self._run("squeue", "--noheader", "--states=all", f"--jobs={self.number}", "--format=%T|%r")
        if said.returncode == 0:
            state, _, reason = said.stdout.strip().partition("|")
            return (state or "GONE", printable(reason, 80))
        return ("GONE", "") if "Invalid job id" in said.stderr else ("", "")

    def ask_to_end(self) -> None:
        """SIGINT only for the job file: a ringup in it ends the ranks itself, and checks for leftovers."""
        self._run("scancel", "--batch", "--signal=INT", self.number)

    def cancel(self) -> None:
        """scancel: SIGTERM, then SIGKILL after Slurm's KillWait."""
        self._run("scancel", self.number)

    def read(self, write: Callable[[str], object]) -> bool:
        """Pass new output on; returns whether there was any."""
        try:
            with self.output.open("rb") as file:
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except OSError:
            return False
        self._offset += len(data)
        if data:
            write("\n".join(map(clean, data.decode("utf-8", "replace").split("\n"))))
        return bool(data)

    def ended(self, state: str) -> Ended:
        """How it ended; the controller remembers it for some minutes."""
        said = self._run("scontrol", "show", "job", "--oneliner", self.number)
        found = re.search(r"\bExitCode=(\d+):(\d+)", said.stdout) if said.returncode == 0 else None
        if not found:
            return Ended(state, None)
        code, number = int(found[1]), int(found[2])
        return Ended(state, code or (128 + number if number else 0))


def submit(file: Path, output: Path, env: Mapping[str, str]) -> Submitted:
    """Submit the file with sbatch; LaunchError with sbatch's error text if it refuses or does not answer."""
    literal = str(output).replace("%", "%%")  # sbatch would replace "%j", and a backslash is special, too
    said = srun.run_here(["sbatch", "--parsable", f"--output={literal}", str(file)], env=env)
    number, why = said.stdout.strip().partition(";")[0], srun.last_words(said)
    if said.returncode == srun.TOO_LATE:
        raise LaunchError(why, hint="it may have accepted the job anyway: check `squeue --me`")
    if said.returncode or not number.isdecimal():
        hint = f"the file is {file}; --queue, --account and --option change it"
        raise LaunchError(f"sbatch refused the job: {why}", hint=hint)
    return Submitted(number, output, env)


def follow(
    job: Submitted, interrupts: Interrupts, write: Callable[[str], object], on_event: Callable[[Event], None]
) -> Ended:
    """
    Show the job's output until it ends, or until GIVE_UP_S after an interrupt.

    The first interrupt requests the job file to end what it started; the second is scancel.
    """
    began, asked, handled = time.monotonic(), 0.0, 0
    shown, state, missed = "", "", False
    cancel_at = give_up = float("inf")
    while state in ("", *ALIVE, *AGAIN) and time.monotonic() < give_up:
        if interrupts.count > handled:
            handled = interrupts.count
            is_soft = handled == 1 and (job.state()[0] or state) == "RUNNING"
            if is_soft:
                on_event(Event("ending", f"job {job.number} is being cancelled"))
                job.ask_to_end()
            cancel_at = min(cancel_at, time.monotonic() + (SOFT_S if is_soft else 0))
            give_up = min(give_up, time.monotonic() + GIVE_UP_S)
            asked = 0.0
        if time.monotonic() >= cancel_at:
            cancel_at = float("inf")
            on_event(Event("ending", f"job {job.number} is cancelled"))
            job.cancel()
        now = time.monotonic()
        seldom = now - began > SELDOM_AFTER_S and not handled
        if now - asked >= (ASK_SELDOM_S if seldom else ASK_S):
            asked = now
            known, reason = job.state()
            if known != "GONE" or missed:  # a single empty answer is not trusted
                state = known or state
            missed = known == "GONE"
            if state == "PENDING" and reason not in ("", "None", shown):
                shown = reason
                on_event(Event("note", f"job {job.number} waits: {reason}"))
        if not job.read(write):
            time.sleep(READ_S)
    quiet_since = time.monotonic()
    until = quiet_since + LAST_WORDS_S
    while (now := time.monotonic()) < until and now - quiet_since < 2 * READ_S:
        if job.read(write):
            quiet_since = now
        else:
            time.sleep(READ_S / 3)
    return job.ended(state)
