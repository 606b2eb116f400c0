"""
Hours of faults: `ringup run --max-restarts` trains on 4 lab hosts and a spare; every few minutes one breaks.

    python bench/soak.py [--minutes 120] [--every 300] [--seed 1] [--json F] [FAULT ...]

Trains examples/chargpt (paced_training.py).  Faults come in random order; hosts come back later.  A scheduler
is played: a run that ends with 75, for want of nodes, is started again on the hosts that are there; one that
a full disk stopped, once there is room.  Ends with 1 if a step is missing in the log of steps or was taken
back beyond the last checkpoint, if the loss did not fall, if a process was left or ran beside a later
attempt, if a run ended by any other cause, or did not train for 10 minutes.  Needs root (the lab) and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.jobs.launched import is_sshd, words  # noqa: E402  (the checkout is no package)
from tests.lab import Lab, Process  # noqa: E402

JOB = ROOT / "bench" / "paced_training.py"
NODES = [f"node{n}" for n in range(5)]
USED, LEAST, STEP_S = 4, 3, 0.7
LEFT_S, TRAINS_S, ROOM_BYTES = 30, 600, 16 << 20
NO_NODES, DO_NOT_REQUEUE = 75, 93
Fault = Callable[["Soak", str], contextlib.AbstractContextManager[None]]


# -- faults: on a node that trains; what stands after `yield` heals it, so many seconds later -----------


def signalled(number: int) -> Fault:
    @contextlib.contextmanager
    def fault(soak: Soak, node: str) -> Iterator[None]:
        for rank in soak.ranks(node):
            os.kill(rank.pid, number)
        yield

    return fault


def named(name: str) -> Fault:
    return lambda soak, node: soak.lab.broken(name, host=node)


@contextlib.contextmanager
def flapping(soak: Soak, node: str) -> Iterator[None]:
    for _ in range(5):
        with soak.lab.broken("nic-down", host=node):
            time.sleep(3)
        time.sleep(3)
    yield


def filled(name: str) -> Fault:
    @contextlib.contextmanager
    def fault(soak: Soak, _node: str) -> Iterator[None]:
        path = soak.folder / name / "filling"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass
        yield
        path.unlink()

    return fault


FAULTS: dict[str, tuple[Fault, float]] = {
    "kill": (signalled(signal.SIGKILL), 0),
    "stop": (signalled(signal.SIGSTOP), 0),
    "cut-5-s": (named("link-cut"), 5),
    "cut-40-s": (named("link-cut"), 40),
    "power-off": (named("power-off"), 240),
    "checkpoint-disk-full": (filled("checkpoints"), 60),
    "log-disk-full": (filled("logs"), 60),
    "flapping-link": (flapping, 0),
}
"""Fault, and the seconds after which it heals."""


class Soak:
    def __init__(self, lab: Lab, folder: Path, dice: random.Random) -> None:
        self.lab, self.folder, self.dice = lab, folder, dice
        self.process: subprocess.Popen[bytes] | None = None
        self.hosts: list[str] = []
        self.log_dir = folder
        self.broken: list[tuple[float, str, str, contextlib.ExitStack]] = []
        """When it heals, the fault, its node and its undo."""
        self.runs: list[dict[str, Any]] = []
        self.faults: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.trained_s = time.monotonic()
        """When a checkpoint was seen last."""
        self.step = 0

    def say(self, text: str) -> None:
        print(time.strftime("%H:%M:%S"), text, flush=True)

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.say(f"PROBLEM: {text}")

    # -- runs ------------------------------------------------------------------------------------

    def start(self) -> None:
        off = {node for _, _, node, _ in self.broken}
        self.hosts = [node for node in NODES if node not in off]
        if len(self.hosts) < LEAST or any("full" in name for _, name, _, _ in self.broken):
            return
        spares = max(0, len(self.hosts) - USED)
        number = len(self.runs) + 1
        self.log_dir = self.folder / "logs" / f"{number}"
        options = ["--max-restarts", "1000", "--spares", str(spares), "--min-nodes", str(LEAST)]
        options += ["--progress", str(self.folder / "step"), "--hang-timeout", "60", "--hang-report", "30"]
        options += ["--log-dir", str(self.log_dir)]
        command = words(
            str(JOB), str(self.folder), str(STEP_S), hosts=",".join(self.hosts), nproc=1, options=options
        )
        with (self.folder / f"said-{number}").open("wb") as said:
            self.process = self.lab.popen(
                "laptop",
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env={"SLURM_JOB_ID": "soak"},  # so that the exit code is for a scheduler
            )
        self.trained_s = time.monotonic()
        self.say(f"run {number} on {','.join(self.hosts)}")

    def record(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.log_dir / "run.json").read_text())
            return found
        return {}

    def ended(self, wanted: bool = False) -> None:
        """Note how a run ended; what it left."""
        assert self.process is not None
        code, record = self.process.wait(), self.record()
        self.process = None
        attempts = record.get("attempts", [])
        self.runs.append({"exit": code, "hosts": self.hosts, "ended": time.time(), "attempts": attempts})
        last = attempts[-1] if attempts else {}
        rule = (last.get("cause") or {}).get("rule", "")
        self.say(f"run {len(self.runs)} ended: exit {code} {rule}")
        is_full = code == DO_NOT_REQUEUE and "checkpoint-disk-full" in [one[1] for one in self.broken]
        if not (wanted or code == NO_NODES or is_full):
            self.problem(f"run {len(self.runs)} ended with {code}: {rule}: {last.get('because')}")
        until = time.monotonic() + LEFT_S
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(1)
        if left:
            self.problem(f"left after run {len(self.runs)}: {left}")

    def processes(self, node: str) -> list[Process]:
        return [p for p in self.lab.processes(node) if p.state not in "ZX" and not is_sshd(p)]

    def left(self) -> list[str]:
        return [
            f"{node}: {p.pid} {' '.join(p.command)[-80:]}" for node in NODES for p in self.processes(node)
        ]

    def ranks(self, node: str) -> list[Process]:
        return [p for p in self.processes(node) if "RANK" in p.environ and str(JOB) in p.command]

    # -- time ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What is due: a host that heals, a run that ended, a run to start."""
        for one in [one for one in self.broken if one[0] <= time.monotonic()]:
            self.broken.remove(one)
            one[3].close()
            self.say(f"healed: {one[1]} on {one[2]}")
        if self.process is None:
            self.start()
        elif self.process.poll() is not None:
            self.ended()
        step = self.saved()
        if step > self.step:
            self.step, self.trained_s = step, time.monotonic()
        if self.process and time.monotonic() - self.trained_s > TRAINS_S:
            self.problem(f"no checkpoint for {TRAINS_S} s")
            self.stop()

    def saved(self) -> int:
        path = self.folder / "step"
        return int(path.read_text()) if path.exists() else 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.problem("SIGINT did not end the run within 60 s")
                os.killpg(self.process.pid, signal.SIGKILL)
            self.ended(wanted=True)

    def inject(self, name: str) -> None:
        """Break a node of the attempt that runs."""
        assert self.process is not None
        attempts = self.record().get("attempts") or [{"nodes": self.hosts}]
        node = self.dice.choice(attempts[-1]["nodes"])
        tags = {p.environ.get("RINGUP_RUN", "") for n in NODES for p in self.processes(n)} - {""}
        if len(tags) > 1:
            self.problem(f"processes of two attempts: {sorted(tags)}")
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        rss_mib = int(status.partition("VmRSS:")[2].split()[0]) >> 10
        files = len([*Path(f"/proc/{self.process.pid}/fd").iterdir()])
        known = {"run": len(self.runs) + 1, "attempt": len(attempts), "rss_mib": rss_mib, "files": files}
        self.faults.append({"fault": name, "node": node, "t": time.time(), "step": self.saved(), **known})
        self.say(f"{name} on {node}; ringup: {rss_mib} MiB, {files} files")
        fault, heals_s = FAULTS[name]
        stack = contextlib.ExitStack()
        stack.enter_context(fault(self, node))
        self.broken.append((time.monotonic() + heals_s, name, node, stack))

    def go(self, names: list[str], seconds: float, every_s: float) -> None:
        until = time.monotonic() + seconds
        due, before, bag = time.monotonic() + every_s / 2, 0, list[str]()
        while time.monotonic() < until:
            time.sleep(0.5)
            self.turn()
            # Only a training that got on since the last fault is broken again.
            if due < time.monotonic() < until - 90 and self.process and self.step > before:
                bag = bag or self.dice.sample(names, len(names))
                before = self.saved()
                self.inject(bag.pop())
                due = time.monotonic() + every_s


# -- what became of it ----------------------------------------------------------------------------


def judge_steps(lines: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Problems in the log of steps; figures.  An attempt goes on after the last checkpoint or a later one."""
    problems, losses, kept_s = [], list[float](), dict[int, float]()
    last, saved, run, t = 0, 0, "", 0.0
    for one in lines:
        if "saved" in one:
            saved = one["saved"]
            continue
        step = one["step"]
        if one["run"] == run and step != last + 1:
            problems.append(f"step {step} after {last} in {run}")
        if one["run"] != run and not saved < step <= last + 1:
            problems.append(f"{one['run']} began with step {step}; last checkpoint {saved}, last step {last}")
        kept_s[step] = one["t"] - t if one["run"] == run else STEP_S
        last, run, t = step, one["run"], one["t"]
        losses.append(one["loss"])
    if len(losses) < 40:
        return [*problems, f"only {len(losses)} steps"], {"steps": last}
    first, end = statistics.mean(losses[:20]), statistics.mean(losses[-20:])
    if end >= first:
        problems.append(f"loss {first:.3f} at first, {end:.3f} at the end")
    known = {"steps": last, "repeated": len(losses) - last, "loss_first": first, "loss_last": end}
    return problems, {**known, "kept_s": sum(kept_s.values())}


def rows(soak: Soak) -> Iterator[str]:
    """Each fault and the attempts that ended from then to the next one."""
    entries = [one for run in soak.runs for one in run["attempts"]]
    times = [one["t"] for one in soak.faults[1:]] + [float("inf")]
    yield "| fault | node | step | attempts that ended then: cause -> decision |\n| --- | --- | --- | --- |"
    for fault, until in zip(soak.faults, times, strict=True):
        ended = [e for e in entries if e["ended"] and fault["t"] <= e["ended"] < until]
        words = [
            f"{e['cause']['rule']} {','.join(e['cause']['nodes'])} -> {e['decision']}"
            for e in ended
            if e["cause"]
        ]
        yield f"| {fault['fault']} | {fault['node']} | {fault['step']} | {'; '.join(words) or 'none'} |"


def report(soak: Soak, seconds: float, path: str) -> int:
    lines = [json.loads(line) for line in (soak.folder / "steps.jsonl").read_text().splitlines()]
    problems, figures = judge_steps(lines)
    problems = soak.problems + problems
    figures |= {"seconds": seconds, "share": figures.get("kept_s", 0) / seconds, "problems": problems}
    print("\n".join(rows(soak)))
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, {platform.machine()}"
    print(f"\n{USED} hosts and a spare, {machine}: {seconds / 60:.0f} minutes, {len(soak.faults)} faults")
    attempts = sum(len(run["attempts"]) for run in soak.runs)
    print(f"{len(soak.runs)} runs (exit codes {[run['exit'] for run in soak.runs]}), {attempts} attempts")
    if "kept_s" in figures:
        again, share = figures["repeated"], figures["share"]
        print(f"{figures['steps']} steps, {again} of them made twice; {share:.1%} of the time was training")
        print(f"loss {figures['loss_first']:.3f} -> {figures['loss_last']:.3f}")
    if soak.faults:
        sizes = [f"{one['rss_mib']} MiB, {one['files']} files" for one in (soak.faults[0], soak.faults[-1])]
        print(f"ringup at the first fault: {sizes[0]}; at the last: {sizes[1]}")
    print("\n".join(f"PROBLEM: {one}" for one in problems) or "no problem")
    if path:
        Path(path).write_text(json.dumps({**figures, "faults": soak.faults, "runs": soak.runs}, indent=1))
    return 1 if problems else 0


@contextlib.contextmanager
def small_disks(folder: Path) -> Iterator[None]:
    """Directories with a small file system each; hosts built meanwhile see them, too."""
    places = [folder / "checkpoints", folder / "logs"]
    for place in places:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "soak", place], check=True)
    try:
        yield
    finally:
        for place in places:
            subprocess.run(["umount", "-l", place], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="")
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS], metavar="FAULT", help=", ".join(FAULTS))
    args = parser.parse_args()
    folder, seconds = Path(tempfile.mkdtemp(prefix="ringup-soak-", dir="/var/tmp")), 60 * args.minutes
    print(f"{folder}: logs, what ringup said, steps.jsonl", flush=True)
    ttl_s = seconds + 1800
    with small_disks(folder), Lab(hosts=[*NODES, "laptop"], ttl_s=ttl_s) as lab:
        soak, began_s = Soak(lab, folder, random.Random(args.seed)), time.monotonic()
        with contextlib.suppress(KeyboardInterrupt):  # ends it early
            soak.go(args.faults or [*FAULTS], seconds, args.every)
        soak.stop()
        for *_, stack in soak.broken:
            stack.close()
        return report(soak, time.monotonic() - began_s, args.json)


if __name__ == "__main__":
    sys.exit(main())
