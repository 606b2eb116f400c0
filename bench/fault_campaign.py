"""
Faults through the whole path of `ringup run --max-restarts`: is each answered by the right action?

    python bench/fault_campaign.py [--json F] [WORD ...]     (only faults whose name has one of the words)

3 lab hosts and a spare, one rank each (faulty_training.py).  Ends with 1 unless 28 of 30 answers are right,
no run is stopped that should go on, no healthy node is left out, no failure that comes again is restarted
more often than docs/how/restarts.md allows, and no process is left.  Needs root (the lab) and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.guards import wait_for  # noqa: E402  (the checkout is no package)
from tests.jobs.launched import is_sshd, words  # noqa: E402
from tests.lab import Lab, Process  # noqa: E402

JOB = ROOT / "bench" / "faulty_training.py"
NODES, SPARE = ["node0", "node1", "node2"], "node3"
RIGHT_SHARE = 28 / 30
RUN_S, LEFT_S = 240, 60


class Run:
    """One `ringup run`, from a host that is no node."""

    def __init__(self, lab: Lab, row: Row, launcher: str) -> None:
        self.lab, self.undo = lab, contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="ringup-campaign-", dir="/var/tmp"))
        options = ["--with", launcher, "--max-restarts", "3", "--lease", "6", "--min-nodes", "2"]
        options += ["--progress", f"{self.folder}/step", "--log-dir", f"{self.folder}/logs", *row.options]
        hosts = [*NODES, SPARE] if row.has_spare else NODES
        options += ["--spares", "1"] if row.has_spare else []
        job = [str(JOB), str(self.folder), str(row.steps), *row.faults.split()]
        command = words(*job, hosts=",".join(hosts), nproc=1, options=options)
        with (self.folder / "said").open("wb") as said:
            self.process = lab.popen(
                "laptop", command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
            )

    def processes(self, host: str) -> list[Process]:
        return [p for p in self.lab.processes(host) if p.state not in "ZX" and not is_sshd(p)]

    def rank(self, host: str) -> Process:
        return next(p for p in self.processes(host) if "RANK" in p.environ and str(JOB) in p.command)

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def wait_for_step(self, step: int) -> None:
        path = self.folder / "step"

        def reached() -> bool:
            return self.process.poll() is not None or (path.exists() and int(path.read_text()) >= step)

        wait_for(reached, f"step {step}: {self.folder}", RUN_S)

    def attempts(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            found: list[dict[str, Any]] = json.loads((self.folder / "logs" / "run.json").read_text())[
                "attempts"
            ]
            return found
        return []

    def finish(self) -> int:
        try:
            return self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return -1


# -- from outside ------------------------------------------------------------------------------------


def signals(number: int, *hosts: str) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        for host in hosts:
            os.kill(run.rank(host).pid, number)

    return act


def breaks(*faults: tuple[str, str], for_s: float = 0.0, apart_s: float = 0.0) -> Callable[[Run], None]:
    """(fault, host) ...; healed after `for_s`, at the end of the run without."""

    def act(run: Run) -> None:
        for name, host in faults:
            run.undo.enter_context(run.lab.broken(name, host=host))
            time.sleep(apart_s)
        if for_s:
            time.sleep(for_s)
            run.undo.close()

    return act


def flaps(run: Run) -> None:
    for _ in range(5):
        with run.lab.broken("nic-down", host="node1"):
            time.sleep(3)
        time.sleep(3)


def out_of_memory(run: Run) -> None:
    breaks(("oom-killed", "node1"))(run)
    signals(signal.SIGKILL, "node1")(run)


def fails_the_check(run: Run) -> None:
    breaks(("torch-missing", "node1"))(run)
    signals(signal.SIGKILL, "node2")(run)


def link_returns(run: Run) -> None:
    with run.lab.broken("link-cut", host="node1"):
        wait_for(
            lambda: "asking again" in run.said() or run.process.poll() is not None, "the question", RUN_S
        )


def terminates(run: Run) -> None:
    run.process.send_signal(signal.SIGTERM)


# -- the faults --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    name: str
    right: str
    """The decisions after each attempt; "|" between sequences that are as good."""
    faults: str = ""
    """Of faulty_training.py."""
    act: Callable[[Run], None] | None = None
    """From outside, after step 5."""
    faulty: tuple[str, ...] = ()
    """Nodes that may be left out."""
    steps: int = 20
    options: tuple[str, ...] = ()
    launcher: str = ""
    has_spare: bool = True


ONE = ("node1",)
ROWS = [
    Row("NameError before the first step, all ranks", "stop", "name:all:0:*"),
    Row("ImportError before the first step, all ranks", "stop", "import:all:0:*"),
    Row("module missing on one node", "exclude finished", "local:all:0:*", None, ONE),
    Row("wrong arguments: exit 2 of argparse", "same stop|stop", "arguments:all:0:*"),
    Row("ValueError at step 7, once", "same finished", "value:1:7:1"),
    Row("ValueError at step 7, always", "same stop", "value:1:7:*"),
    Row("TypeError at step 7 of all ranks, always", "same stop", "type:all:7:*"),
    Row("exit 3 at step 7, once", "same finished", "exit:1:7:1"),
    Row("exit 3 at step 7, always", "same stop", "exit:1:7:*"),
    Row("exit 3 at steps 7, 9, 11", "same same same finished", "exit:1:7:1 exit:1:9:2 exit:1:11:3"),
    Row("two failures in turn before the first step", "same same stop", "value:1:0:1+3 exit:2:0:2+4"),
    Row("rank killed once", "same finished", act=signals(signal.SIGKILL, "node1")),
    Row("rank of one node killed at each start", "same exclude finished", "kill:node1:0:*", None, ONE),
    Row("all ranks killed", "same finished", act=signals(signal.SIGKILL, *NODES)),
    Row("segmentation fault once", "same finished", "segv:1:7:1"),
    Row("rank ended by the OOM killer", "same finished", act=out_of_memory),
    Row("CUDA out of memory before the first step", "stop", "oom:all:0:*"),
    Row("CUDA out of memory at step 7, once", "same finished", "oom:1:7:1"),
    Row("uncorrectable ECC error", "exclude finished", "ecc:node1:7:*", None, ONE),
    Row("ConnectionError twice", "same same finished", "connection:1:7:1+2"),
    Row("port in use", "same finished", "port:0:0:1", launcher="python"),
    Row("disk full", "stop", "full:0:7:*"),
    Row("checkpoint cut off", "same same stop", "truncate:0:7:1"),
    Row("DataLoader worker killed once", "same finished", "loader:1:7:1"),
    Row("fewer batches on one rank, always", "same stop", "uneven:1:7:*"),
    Row("another shape on one rank, always", "same stop", "shape:1:7:*"),
    Row("child that ignores SIGTERM left", "same finished", "leave:1:7:1"),
    Row(
        "rank stopped (hang)",
        "same finished",
        act=signals(signal.SIGSTOP, "node1"),
        options=("--hang-timeout", "15"),
    ),
    Row("node off", "exclude finished", act=breaks(("power-off", "node1")), faulty=ONE),
    Row("head off", "exclude finished", act=breaks(("power-off", "node0")), faulty=("node0",)),
    Row(
        "two nodes off, 1 s apart",
        "shrink finished",
        act=breaks(("power-off", "node1"), ("power-off", "node2"), apart_s=1),
        faulty=("node1", "node2"),
    ),
    Row(
        "node off, spare not reachable",
        "shrink finished",
        act=breaks(("ssh-dropped", SPARE), ("power-off", "node1")),
        faulty=ONE,
    ),
    Row(
        "link cut for 3 s",
        "finished",
        act=breaks(("link-cut", "node1"), for_s=3),
        steps=60,
        options=("--lease", "20"),
    ),
    Row(
        "link cut for 30 s",
        "exclude finished",
        act=breaks(("link-cut", "node1"), for_s=30),
        faulty=ONE,
        steps=60,
    ),
    Row(
        "link cut, no spare, comes back",
        "same finished",
        act=link_returns,
        steps=40,
        has_spare=False,
        options=("--min-nodes", "3"),
    ),
    Row(
        "flapping link",
        "finished|same finished|same same finished|exclude finished|same exclude finished",
        act=flaps,
        faulty=ONE,
        steps=60,
    ),
    Row("rank killed, another node fails the check", "exclude finished", act=fails_the_check, faulty=ONE),
    Row("SIGTERM to ringup", "stop", act=terminates),
]


def judged(lab: Lab, row: Row, launcher: str) -> dict[str, Any]:
    """One row, through the whole path."""
    for host in (*NODES, SPARE):
        missing = row.faults.startswith("local") and host in row.faulty
        lab.sh(
            host, "rm -rf /root/lib; mkdir /root/lib" + ("" if missing else "; touch /root/lib/only_local.py")
        )
    run, began_s = Run(lab, row, launcher), time.monotonic()
    if row.act:
        run.wait_for_step(5)
        row.act(run)
    code, took_s = run.finish(), time.monotonic() - began_s
    run.undo.close()
    until = time.monotonic() + LEFT_S
    while (left := [p for host in (*NODES, SPARE) for p in run.processes(host)]) and time.monotonic() < until:
        time.sleep(0.2)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    attempts = run.attempts()
    decisions = " ".join(one["decision"] or "?" for one in attempts)
    out = sorted(set(NODES) - set(attempts[-1]["nodes"])) if attempts else []
    wanted = row.right.split("|")
    problems = ["left: " + " ".join(left[0].command)[-100:]] if left else []
    if wanted[0].endswith("finished") and not decisions.endswith("finished"):
        problems.append("stopped")
    if set(out) - set(row.faulty):
        problems.append(f"left out {out}")
    if wanted[0].endswith("stop") and len(attempts) > len(wanted[0].split()):
        problems.append("restarted too often")
    causes = [
        "{} ({}) {}".format(
            one["cause"]["rule"] or "no cause", one["cause"]["confidence"], ",".join(one["cause"]["nodes"])
        )
        for one in attempts
        if one["cause"]
    ]
    is_right = decisions in wanted and not problems
    if is_right:
        shutil.rmtree(run.folder)
    return {
        "fault": row.name, "right": row.right, "launcher": launcher, "decisions": decisions,
        "is_right": is_right, "problems": problems, "out": out, "causes": causes, "exit": code,
        "because": [one["because"] for one in attempts], "seconds": round(took_s, 1),
        "folder": "" if is_right else str(run.folder),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", default="")
    parser.add_argument("word", nargs="*")
    args = parser.parse_args()
    rows = [(n, row) for n, row in enumerate(ROWS) if not args.word or any(w in row.name for w in args.word)]
    found = []
    print("| fault | decisions | causes | s | |\n| --- | --- | --- | --- | --- |", flush=True)
    with Lab(hosts=[*NODES, SPARE, "laptop"], ttl_s=3 * 3600) as lab:
        for number, row in rows:
            one = judged(lab, row, row.launcher or ("torchrun", "python")[number % 2])
            found.append(one)
            verdict = (
                "right" if one["is_right"] else f"WRONG, not {row.right}: {one['problems']} {one['folder']}"
            )
            causes = "; ".join(one["causes"])
            print(
                f"| {row.name} | {one['decisions']} | {causes} | {one['seconds']:.0f} | {verdict} |",
                flush=True,
            )
    right, problems = sum(one["is_right"] for one in found), [p for one in found for p in one["problems"]]
    machine = f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, {platform.machine()}"
    print(f"\n{right} of {len(found)} right; {len(problems)} problems; 3 hosts and a spare, {machine}")
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))
    return 0 if right >= RIGHT_SHARE * len(found) and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
