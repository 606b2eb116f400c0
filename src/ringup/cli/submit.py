"""`ringup run --slurm`: writes a job file, submits it with sbatch and follows the job."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringup.cli import options, request
from ringup.cli.launching import RankLines, claimed, follow_events, write_record
from ringup.cli.options import Options
from ringup.errors import UsageError
from ringup.jobfiles.quoting import quoted
from ringup.model import Host
from ringup.output import terminal
from ringup.runtime import claims, record, slurm
from ringup.secrets import holds_secret
from ringup.transport import srun
from ringup.transport.interrupts import Interrupts
from ringup.units import printable, summarize_names

WITH_RINGUP = """\
  # With ringup on this node the run is checked, watched and cleaned up.  Without it, what follows starts it.
  ringup={python}
  if "$ringup" -c 'import ringup' 2>/dev/null; then
    exec "$ringup" -m ringup run {words}
  fi
"""


def refuse_batch_options(args: argparse.Namespace) -> None:
    """Raises UsageError for an option of --slurm without --slurm: it would have no effect."""
    hint = "add --slurm to submit the run as a job, or leave the option out"
    for row in options.SCHEDULERS.rows:
        if row.dest != "nodes" and getattr(args, row.dest) != row.settings["default"]:
            raise UsageError(f"{row.names[0]} is only read with --slurm", hint=hint)


def check_node_count(args: argparse.Namespace, hosts: Sequence[Host]) -> None:
    """Raises UsageError if `--nodes` and the number of known nodes differ."""
    known = len(hosts)
    if args.nodes in (0, known):
        return
    if known == 1 and hosts[0].local and not args.from_file and not request.named(args):
        hint = "name the nodes with -H node0,node1 or --hostfile F, or submit the run with --slurm"
        raise UsageError(f"--nodes {args.nodes}, but only this machine is known", hint=hint)
    are, names = "s are" if known > 1 else " is", printable(summarize_names(host.name for host in hosts))
    hint = "leave --nodes out to use all of these, or name the nodes with -H"
    raise UsageError(f"--nodes {args.nodes}, but {known} node{are} known: {names}", hint=hint)


def run(args: argparse.Namespace, own: Options, words: list[str], run_id: str, log_dir: Path) -> int:
    """Write, submit, follow; the job's exit code.  Raises UsageError for named nodes: Slurm chooses them."""
    for option in (*request.named(args), *(["from"] if args.from_file else [])):
        raise UsageError(f"--slurm and --{option}: Slurm chooses the nodes", hint="say how many: --nodes N")
    from ringup.cli import script  # most runs need none of it
    from ringup.jobfiles.templating import render

    with claimed(log_dir.absolute(), run_id, is_wanted=not args.dry_run) as log_dir:
        asked = script.asked_from(args, words, "slurm")
        script.warn_of_secrets(asked.job)
        inner = [*script.inner_options(args, own, asked.job), f"--log-dir={log_dir}", "--", *words]
        asked = script.with_restarts(args, asked, "slurm", sys.executable, inner)
        text = render("slurm", asked)
        if not asked.restarts:
            start = WITH_RINGUP.format(python=quoted(sys.executable), words=" ".join(map(quoted, inner)))
            text = text.replace("main() {\n", "main() {\n" + start, 1)
        if not args.dry_run:
            return submitted(args, text, run_id, log_dir)
    if args.json:
        terminal.print_json(run=run_id, kind="slurm", text=text)
    else:
        print(text.rstrip("\n"))
    return 0


def submitted(args: argparse.Namespace, text: str, run_id: str, log_dir: Path) -> int:
    file = log_dir / "job.sh"
    terminal.write(file, text, executable=True)
    secrets = {k: v for k, v in request.environment_from(args.env).items() if holds_secret(k, v)}
    env = {**srun.environment(os.environ), **secrets}
    started = time.time()
    with Interrupts() as interrupts:
        job = slurm.submit(file, log_dir / "job.out", env)
        line = f"ringup: job {job.number}, logs in {terminal.path_shown(log_dir)}"
        terminal.say(terminal.Style(sys.stderr)("dim", line), quiet=args.quiet)
        by_hand = f"squeue -j {job.number}, scancel {job.number}"
        if args.detach:
            terminal.say(f"job {job.number} continues in Slurm: {by_hand}", quiet=args.quiet)
            if args.json:
                notes = [f"Slurm's job {job.number}"]
                known = record.run_json(run_id, outcome="running", exit_code=0, started=started, notes=notes)
                print(json.dumps(known))
            return 0
        write = RankLines(args)
        try:
            ended = slurm.follow(job, interrupts, write, follow_events(0, args))
        except BaseException:
            terminal.say(f"job {job.number} is still in Slurm: {by_hand}")
            raise
        interrupted = interrupts.exit_code if interrupts.count else 0
    content = recorded(log_dir)
    if not content:  # only Slurm's information is available
        by_slurm = ended.code or (0 if ended.state == "COMPLETED" else 1)
        content = record.run_json(
            run_id,
            outcome="interrupted" if interrupted else "launcher-error" if by_slurm else "ok",
            exit_code=interrupted or by_slurm,
            started=started,
            seconds=round(time.time() - started, 3),
            notes=[f"Slurm says: {ended.state}"],
        )
        write_record(log_dir, content)
    if args.json:
        print(json.dumps(content))
    code = interrupted or content["exit_code"]
    if ended.state not in ("COMPLETED", "FAILED", "GONE"):
        terminal.say(f"Slurm reports for job {job.number}: {ended.state}")
    elif not (log_dir / "job.out").exists():
        output = f"{terminal.path_shown(log_dir)}/job.out on {job.number}'s first node"
        terminal.say(f"the job's output cannot be seen here: {output}")
    return write.code(int(code))


def recorded(log_dir: Path) -> dict[str, Any]:
    """The run's own record, if the last ringup in the job finished; else empty."""
    try:
        content = json.loads((claims.newest(log_dir) / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("exit_code"), int) else {}
