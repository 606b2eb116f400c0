"""
How soon a hang is reported, and whether the right rank, node and line are named; and false alarms.

    python bench/hangs.py [--lab] [--hosts 2] [--nproc 2] [--window 10] [--healthy-minutes 0] [HOW ... | none]

Each fault of tests/jobs/stuck.py is planted in the last rank of a real run, on nodes played on this
machine or (`--lab`, root) on lab hosts.  The time counts from the faulty rank's last line.  Healthy runs of
different scripts then go on for as many minutes as asked, with the same window.  Needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402  (the checkout is no package)
from tests.test_hangs import SLOW, free_port, line_of  # noqa: E402

JOBS = ROOT / "tests" / "jobs"
LINES = {how: line_of(how) for how in ("sleep", "read", "disk", "other_kind", "other_shape", "stop")}
LINES |= {"loader": line_of("__getitem__"), "oom": "", "leave": ""}
LINES["skip"] = next(
    f"stuck.py:{number}"
    for number, line in enumerate((JOBS / "stuck.py").read_text().splitlines(), 1)
    if "dist.broadcast(" in line
)
LIMIT_S = 150


class Run:
    """One `ringup run`."""

    def __init__(self, args: argparse.Namespace, lab: Lab | None, script: str, *words: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hangs-", dir="/var/tmp"))
        names = ",".join(host.name for host in lab.hosts) if lab else ""
        nodes = ["-H", names] if lab else ["--local", str(args.hosts)]
        command = [sys.executable, "-m", "ringup", "run", *nodes, "--nproc", str(args.nproc)]
        command += ["--backend", "gloo", "--hang-report", str(args.window)]
        command += ["--log-dir", str(self.folder / "log"), "--env", f"MASTER_PORT={free_port()}"]
        command += ["--", str(JOBS / script), *(word.replace("{}", str(self.folder)) for word in words)]
        out, err = (self.folder / "out").open("w"), (self.folder / "err").open("w")
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        if lab:
            self.process = lab.popen(lab.hosts[0].name, command, **options)
        else:
            self.process = subprocess.Popen(command, cwd=self.folder, start_new_session=True, **options)

    def said(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def record(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / "log" / "run.json").read_text())
            return found
        return {}

    def hangs(self) -> list[dict[str, Any]]:
        return [one for one in self.record().get("hangs", ()) if one["verdict"] == "stalled"]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        self.process.wait()


def planted(args: argparse.Namespace, lab: Lab | None, how: str) -> str:
    """One fault; its row."""
    rank = args.hosts * args.nproc - 1
    run = Run(args, lab, "stuck.py", how, str(rank), "{}")
    mark = f"rank {rank} {how}" if how != "loader" else f":{rank}| step 2"
    until, began_s, seen_s = time.monotonic() + LIMIT_S, 0.0, 0.0
    while time.monotonic() < until and not seen_s:
        time.sleep(0.05)
        now = time.monotonic()
        if not began_s and mark in run.said("out"):
            began_s = now
        if run.process.poll() is not None or "no progress for" in run.said("err"):
            seen_s = now
    deadline = time.monotonic() + 5
    while not run.hangs() and run.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    right, words = verdict(run, how, rank)
    run.end()
    return f"| {how} | {seen_s - began_s:.1f} | {right} | {words} |"


def verdict(run: Run, how: str, rank: int) -> tuple[str, str]:
    """(right or wrong, what was named)."""
    if run.process.poll() is not None:  # it failed by itself; the first failure is what is named
        lines = [line for line in run.said("err").splitlines() if f"rank {rank} on" in line]
        return ("right" if lines else "WRONG"), (lines or ["?"])[-1].strip()[:110]
    hangs = run.hangs()
    if not hangs:
        return "MISSED", ""
    missing = hangs[0]["missing"]
    text = "; ".join([*(one["where"] for one in missing), *hangs[0]["lines"]])
    right = [one["rank"] for one in missing] == [rank] and LINES[how] in text
    line = f", {LINES[how]}" if LINES[how] in text else ""
    return ("right" if right else "WRONG"), f"ranks {[one['rank'] for one in missing]}{line}"


def healthy(args: argparse.Namespace, lab: Lab | None) -> None:
    """Runs that are only slow, one after the other."""
    until = time.monotonic() + 60 * args.healthy_minutes
    runs, alarms, began_s = 0, 0, time.monotonic()
    while time.monotonic() < until:
        how = SLOW[runs % len(SLOW)]
        run = Run(args, lab, "slow_but_well.py", how, str(4 * args.window))
        code = run.process.wait()
        runs += 1
        alarms += len(run.hangs())
        if run.hangs() or code:
            print(f"{how}: exit {code}, {run.folder}, {run.hangs()}", flush=True)
    minutes = (time.monotonic() - began_s) / 60
    print(f"\nhealthy: {runs} runs in {minutes:.0f} minutes, {alarms} false alarms", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--healthy-minutes", type=float, default=0)
    parser.add_argument("how", nargs="*", default=[*LINES])
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=args.hosts)) if args.lab else None
        print(f"{args.hosts} hosts x {args.nproc} ranks, window {args.window:g} s", flush=True)
        if args.how != ["none"]:
            print("| fault | reported after s | | named |\n| --- | --- | --- | --- |", flush=True)
            for how in args.how:
                print(planted(args, lab, how), flush=True)
        if args.healthy_minutes:
            healthy(args, lab)
    return 0


if __name__ == "__main__":
    sys.exit(main())
