"""
From the command to the last rank's first all-reduce: `ringup run` (check included) and `ringup run --detach`
against `ssh HOST torchrun` with static rendezvous in a shell loop, in turns, on the same healthy lab hosts.

    python bench/launch.py [--hosts 2] [--nproc 2] [--repeat 5]

Needs root (the lab) and torch.  Prints each round, the medians and their ratio.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402  (the checkout is no package)

JOB = str(ROOT / "bench" / "first_allreduce.py")
WANTED_RATIO = 1.2
WANTED_DETACHED_S = 0.3

# Without byte code on disk, each run would compile the changed files of ringup anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def plain_command(lab: Lab, nproc: int, out: str) -> list[str]:
    """What an article tells people to type: a loop of `ssh HOST torchrun` with static rendezvous."""
    head = lab.hosts[0].address
    torchrun = str(Path(sys.executable).parent / "torchrun")
    lines = [
        f"ssh {host.name} 'cd {ROOT} && BENCH_OUT={out} {torchrun} --nnodes={len(lab.hosts)}"
        f" --nproc-per-node={nproc} --node-rank={rank} --master-addr={head} --master-port=29500 {JOB}' &"
        for rank, host in enumerate(lab.hosts)
    ]
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def ringup_command(lab: Lab, nproc: int, out: str, *more: str) -> list[str]:
    """The same job through ringup."""
    hosts = ",".join(h.name for h in lab.hosts)
    run = [sys.executable, "-m", "ringup", "run", "-H", hosts, "--nproc", str(nproc), "--backend", "gloo"]
    return [
        *run,
        "--python",
        sys.executable,
        "--log-dir",
        f"{out}/logs",
        "--env",
        f"BENCH_OUT={out}",
        *more,
        "--",
        JOB,
    ]


def detached_command(lab: Lab, nproc: int, out: str) -> list[str]:
    return ringup_command(lab, nproc, out, "--detach")


def seconds(lab: Lab, command: list[str], out: str, ranks: int) -> float:
    """Start it on the first host; seconds to the last rank's first all-reduce."""
    began = time.time()
    done = lab.run(lab.hosts[0].name, command, timeout_s=120)
    until = time.monotonic() + 60
    # A detached run goes on when its command has ended.
    while len(list(Path(out).glob("rank*"))) < ranks and time.monotonic() < until and "--detach" in command:
        time.sleep(0.1)
    time.sleep(1 if "--detach" in command else 0)
    times = [float(p.read_text()) for p in Path(out).glob("rank*")]
    if len(times) != ranks:
        sys.exit(f"{command[:4]}: {len(times)} of {ranks} ranks\n{done.stdout}\n{done.stderr}")
    return max(times) - began


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    commands = {"torchrun": plain_command, "ringup": ringup_command, "--detach": detached_command}
    rounds: dict[str, list[float]] = {name: [] for name in commands}
    with Lab(hosts=args.hosts) as lab:
        for turn in range(args.repeat + 1):
            for name, command in commands.items():
                with tempfile.TemporaryDirectory(dir="/var/tmp") as out:
                    took = seconds(lab, command(lab, args.nproc, out), out, args.hosts * args.nproc)
                if turn:  # the first round warms the page cache
                    rounds[name].append(took)
                    print(f"{name:9} {took:6.2f} s", flush=True)
    plain, ours, detached = (statistics.median(rounds[name]) for name in commands)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}"
    print(f"\n{args.hosts} hosts x {args.nproc} ranks, {machine}")
    print(f"ssh + torchrun static: median {plain:.2f} s   ringup run: median {ours:.2f} s")
    print(f"ratio {ours / plain:.2f} (wanted at most {WANTED_RATIO})")
    print(
        f"detached: median {detached:.2f} s, {detached - ours:+.2f} s (wanted at most +{WANTED_DETACHED_S})"
    )
    return 0 if ours / plain <= WANTED_RATIO and detached - ours <= WANTED_DETACHED_S else 1


if __name__ == "__main__":
    sys.exit(main())
