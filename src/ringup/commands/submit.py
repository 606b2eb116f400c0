"""`ringup run --slurm`: a job file, handed to sbatch and followed."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringup.commands import common, script
from ringup.errors import LaunchError, UsageError
from ringup.script import kinds
from ringup.script.words import is_secret

OURS = {
    *("slurm", "nodes", "name", "queue", "account", "time", "cpus", "gpus", "option"),
    *("script", "help", "hosts", "hostfile", "local", "ssh_config", "from_file", "save", "html"),
    *("detach", "dry_run", "log_dir", "env", "json", "chdir"),
}
"""Options that the job itself is not given as they are."""

WITH_RINGUP = """\
  # With ringup on this node the run is checked, watched and cleaned up.  Without it, what follows starts it.
  ringup={python}
  if "$ringup" -c 'import ringup' 2>/dev/null; then
    exec "$ringup" -m ringup run {words}
  fi
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup run` that only --slurm reads."""
    parser.add_argument("--slurm", action="store_true", help="submit it as a job of Slurm's, and follow it")
    script.add_batch_arguments(parser)


def run(args: argparse.Namespace, words: list[str], run_id: str, log_dir: Path) -> int:
    """
    Write, submit, follow; what the job ended with.

    Raises UsageError where nodes are named: Slurm chooses them.
    """
    for name in ("hosts", "hostfile", "local", "from_file"):
        if getattr(args, name) is not None:
            option = "from" if name == "from_file" else name
            raise UsageError(
                f"--slurm and --{option}: Slurm chooses the nodes", hint="say how many: --nodes N"
            )
    log_dir = log_dir.absolute()
    asked = script.asked_from(args, words, "slurm")
    text = kinds()["slurm"](asked).replace(
        "main() {\n",
        "main() {\n"
        + WITH_RINGUP.format(
            python=shlex.quote(sys.executable),
            words=shlex.join([*options(args), f"--log-dir={log_dir}", "--", *words]),
        ),
        1,
    )
    if args.dry_run:
        from ringup.report import envelope

        print(json.dumps(envelope(run=run_id, kind="slurm", text=text)) if args.json else text.rstrip("\n"))
        return 0
    return submitted(args, text, run_id, log_dir)


def options(args: argparse.Namespace) -> Iterator[str]:
    """The options that the run inside the job is given: all that differ from their defaults."""
    from ringup.commands import run as command

    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    for action in parser._actions:
        value: Any = getattr(args, action.dest, None)
        if action.dest in OURS or not action.option_strings or value == action.default:
            continue
        name = max(action.option_strings, key=len)
        yield name if value is True else f"{name}={value}"
    for name, value in common.environment_from(args.env).items():
        if not is_secret(name):
            yield f"--env={name}={value}"


def submitted(args: argparse.Namespace, text: str, run_id: str, log_dir: Path) -> int:
    """From the text to the end of the job."""
    from ringup import report
    from ringup.launch import slurm
    from ringup.launch.interrupts import Interrupts
    from ringup.reach import srun

    style = report.Style(sys.stderr)
    file = log_dir / "job.sh"
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        for name in ("run.json", "job.out"):  # of an earlier run
            (log_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise LaunchError(f"{log_dir}: {error.strerror}", hint="name another with --log-dir") from error
    common.write(file, text, executable=True)
    secrets = {k: v for k, v in common.environment_from(args.env).items() if is_secret(k)}
    env = {**srun.environment(os.environ), **secrets}
    started = time.time()
    with Interrupts() as interrupts:
        job = slurm.submit(file, log_dir / "job.out", env)
        common.say(style("dim", f"ringup: job {job.number}, logs in {log_dir}"), quiet=args.quiet)
        if args.detach:
            common.say(
                f"it goes on without this: squeue -j {job.number}, scancel {job.number}", quiet=args.quiet
            )
            if args.json:
                print(json.dumps(left_to_slurm(run_id, job.number, started)))
            return 0
        from ringup.commands.run import follow_events, write_to

        stream = sys.stderr if args.json else sys.stdout
        ended = slurm.follow(job, interrupts, write_to(stream), follow_events(0, args.quiet))
        interrupted = interrupts.exit_code if interrupts.count else 0
    content = recorded(log_dir)
    if not content:
        content = own_record(run_id, ended.state, ended.code, interrupted, started)
        write_record(log_dir, content)
    if args.json:
        print(json.dumps(content))
    code = interrupted or content["exit_code"]
    if ended.state not in ("COMPLETED", "FAILED", "GONE"):
        common.say(f"Slurm says of job {job.number}: {ended.state}")
    elif not (log_dir / "job.out").exists():
        common.say(f"the job's output is not to be seen here: {log_dir}/job.out on {job.number}'s first node")
    return int(code)


def recorded(log_dir: Path) -> dict[str, Any]:
    """The run's own record, where ringup ran in the job to the end; else empty."""
    try:
        content = json.loads((log_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("exit_code"), int) else {}


def left_to_slurm(run_id: str, number: str, started: float) -> dict[str, Any]:
    """What is known of a job that nobody here follows."""
    from ringup.launch import record

    notes = [f"Slurm's job {number}"]
    return record.unstarted_json(run_id, outcome="running", exit_code=0, started=started, notes=notes)


def own_record(run_id: str, state: str, code: int | None, interrupted: int, started: float) -> dict[str, Any]:
    """run.json by what Slurm knows."""
    from ringup.launch import record

    by_slurm = code if code else 0 if state == "COMPLETED" else 1
    outcome = "interrupted" if interrupted else "ok" if by_slurm == 0 else "launcher-error"
    return record.unstarted_json(
        run_id,
        outcome=outcome,
        exit_code=interrupted or by_slurm,
        started=started,
        seconds=time.time() - started,
        notes=[f"Slurm says: {state}"],
    )


def write_record(log_dir: Path, content: dict[str, Any]) -> None:
    """run.json, if it can be written."""
    from ringup.launch import record

    try:
        record.write(log_dir, content)
    except OSError as error:
        common.say(f"ringup: {log_dir}/run.json was not written: {error.strerror}")
