"""
What a restart costs after a rank was killed: seconds from the last step before to the first step after.

    python bench/restarts.py [--hosts 2] [--nproc 2] [--rounds 5] [--off] [--json F]

In turns, on the same lab hosts: `ringup run --max-restarts` (its phases are those of run.json; first_step
counts from the begin of the new attempt), torchrun's own `--max-restarts` (c10d, and without
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torch 2.13 never comes back), and on each node a shell loop
`until torchrun ...; do sleep 1; done`.
With --off also a run whose last node is powered off, all its processes killed and its link cut, while a spare
waits: its gap has the lease (20 s) in it.
Each resumes examples/chargpt from its checkpoint (paced_training.py).  Needs root (the lab) and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.guards import wait_for  # noqa: E402  (the checkout is no package)
from tests.jobs.launched import is_sshd, words  # noqa: E402
from tests.lab import Lab  # noqa: E402

JOB = str(ROOT / "bench" / "paced_training.py")
STEP_S, STEPS_BEFORE, STEPS_AFTER, PATIENCE_S = 0.1, 40, 5, 180
PHASES = ("notice", "end", "recheck", "start", "first_step")


def torchrun(lab: Lab, count: int, nproc: int, folder: Path, way: str) -> list[str]:
    """torchrun on the first `count` hosts, started from the first."""
    lines = []
    for number, host in enumerate(lab.hosts[:count]):
        run = f"{sys.executable} -m torch.distributed.run --nnodes={count} --nproc-per-node={nproc}"
        head = lab.hosts[0].address
        if way == "torchrun":
            run = f"TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 {run} --max-restarts=3 --rdzv-backend=c10d"
            run += f" --rdzv-endpoint={head}:29500 --rdzv-id=bench {JOB} {folder} {STEP_S}"
        else:
            run += f" --node-rank={number} --master-addr={head} --master-port=29500 {JOB} {folder} {STEP_S}"
            run = f"until {run}; do sleep 1; done"
        lines.append(f"ssh {host.name} 'cd {ROOT}; {run}' &")
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def ringup(hosts: list[str], nproc: int, folder: Path, spares: int) -> list[str]:
    options = ["--max-restarts", "3", "--progress", f"{folder}/step", "--log-dir", f"{folder}/logs"]
    options += ["--spares", str(spares)]
    return words(JOB, str(folder), str(STEP_S), hosts=",".join(hosts), nproc=nproc, options=options)


def steps(folder: Path) -> list[dict[str, Any]]:
    """Lines of steps, whole ones."""
    path = folder / "steps.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [one for one in map(json.loads, lines) if "step" in one]


def end(lab: Lab, process: subprocess.Popen[Any]) -> None:
    """ringup ends by SIGINT; of the others nothing but SIGKILL ends a shell loop on another host."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    while left := [
        p for host in lab.hosts for p in lab.processes(host) if p.state not in "ZX" and not is_sshd(p)
    ]:
        for one in left:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)


def one_round(lab: Lab, count: int, nproc: int, way: str, folder: Path) -> dict[str, float]:
    """
    Start on `count` hosts, break it, wait for steps of the restarted run; the gap, and phases of ringup's.

    The last rank is killed, or in way "off" the last of the hosts powered off.
    """
    names = [host.name for host in lab.hosts]
    if way == "off":
        command = ringup(names[: count + 1], nproc, folder, 1)
    elif way == "ringup":
        command = ringup(names[:count], nproc, folder, 0)
    else:
        command = torchrun(lab, count, nproc, folder, way)
    undo = contextlib.ExitStack()
    with (folder / "said").open("wb") as said:
        process = lab.popen(lab.hosts[0], command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_for(lambda: len(steps(folder)) >= STEPS_BEFORE, f"{way}: first steps, {folder}", PATIENCE_S)
        last, host = str(count * nproc - 1), lab.hosts[count - 1]
        (rank,) = [p for p in lab.processes(host) if p.environ.get("RANK") == last and JOB in p.command]
        killed = time.time()
        if way == "off":
            undo.enter_context(lab.broken("power-off", host=host.name))
        else:
            os.kill(rank.pid, signal.SIGKILL)

        def after() -> bool:
            return len([one for one in steps(folder) if one["t"] > killed + 1]) >= STEPS_AFTER

        wait_for(after, f"{way}: steps after the restart, {folder}", PATIENCE_S)
    finally:
        end(lab, process)
        undo.close()
    times = [one["t"] for one in steps(folder)]
    gap_s = max(after - before for before, after in pairwise(times) if after > killed)
    if way not in ("ringup", "off"):
        return {"gap": gap_s}
    first, second = (
        one["seconds"] for one in json.loads((folder / "logs" / "run.json").read_text())["attempts"]
    )
    phases = {name: (first if name in PHASES[:3] else second)[name] for name in PHASES}
    return {"gap": gap_s, **phases}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--off", action="store_true")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"ringup": [], "torchrun": [], "loop": []}
    if args.off:
        rounds["off"] = []
    with Lab(hosts=args.hosts + 1, ttl_s=3600) as lab:
        for _ in range(args.rounds):
            for way, found in rounds.items():
                with tempfile.TemporaryDirectory(prefix="ringup-restarts-", dir="/var/tmp") as name:
                    (Path(name) / "checkpoints").mkdir()
                    found.append(one_round(lab, args.hosts, args.nproc, way, Path(name)))
                shown = "  ".join(f"{k} {v:.2f}" for k, v in found[-1].items() if v is not None)
                print(f"{way:9} {shown}", flush=True)
    medians = {way: statistics.median(one["gap"] for one in found) for way, found in rounds.items()}
    load = os.getloadavg()[1]
    machine = f"{os.cpu_count()} cores, load {load:.1f}, {platform.machine()}"
    print(f"\n{args.hosts} hosts x {args.nproc} ranks, {machine}")
    for way, median in medians.items():
        print(
            f"{way:9} median {median:.2f} s of {args.rounds}, ringup / this {medians['ringup'] / median:.2f}"
        )
    phases = {}
    for way in ("ringup", "off") if args.off else ("ringup",):
        phases[way] = {n: statistics.median(one[n] for one in rounds[way]) for n in PHASES}
        shown = ", ".join(f"{name} {value:.2f} s" for name, value in phases[way].items())
        print(f"phases of {way}, medians: {shown}")
    if args.json:
        Path(args.json).write_text(
            json.dumps({"rounds": rounds, "medians": medians, "phases": phases}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
