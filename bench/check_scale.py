"""
What looking at a whole cluster costs: `ringup check` against ClusterShell running a bare `true` on the
same hosts, in turns, from the first host of a healthy lab.

    python bench/check_scale.py [--hosts 16 64] [--repeat 3]

Needs root (the lab).  Prints each round, the medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab import Lab  # noqa: E402  (the checkout is no package)

WANTED_RATIO = 4.0
"""At the largest number of hosts."""


def clush_command(nodes: str) -> list[str]:
    """The same fan-out as ours, 64 at a time."""
    return [sys.executable, "-m", "ClusterShell.CLI.Clush", "-S", "-f", "64", "-w", nodes, "true"]


def check_command(nodes: str) -> list[str]:
    """Facts, all rules, the pairs."""
    return [sys.executable, "-m", "ringup", "check", "-H", nodes, "--python", sys.executable, "--json"]


def seconds(lab: Lab, command: list[str], hosts: int) -> float:
    """Run it on the first host; the end of this program if it does not do all of its work."""
    began = time.monotonic()
    done = lab.run(lab.hosts[0], command, timeout_s=180)
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    if done.stdout:
        told = json.loads(done.stdout)
        bad = [f for f in told["findings"] if f["severity"] != "note"]
        if len(told["nodes"]) != hosts or not told["pairs"] or bad:
            sys.exit(f"not a healthy check of {hosts} hosts: {bad[:3]}")
    return took


def measure(hosts: int, repeat: int) -> float:
    """The ratio of the medians."""
    nodes = f"node[0-{hosts - 1}]"
    commands = {"clush true": clush_command(nodes), "ringup check": check_command(nodes)}
    rounds: dict[str, list[float]] = {name: [] for name in commands}
    with Lab(hosts=hosts) as lab:
        for turn in range(repeat + 1):
            for name, command in commands.items():
                took = seconds(lab, command, hosts)
                if turn:  # the first round warms the page cache
                    rounds[name].append(took)
                    print(f"{hosts:3} hosts  {name:12} {took:6.2f} s", flush=True)
    bare, ours = (statistics.median(rounds[name]) for name in commands)
    print(f"{hosts:3} hosts: clush true {bare:.2f} s   ringup check {ours:.2f} s   ratio {ours / bare:.2f}\n")
    return ours / bare


def main() -> int:
    """Print the figures; 1 when the largest cluster costs more than wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}")
    ratios = [measure(hosts, args.repeat) for hosts in sorted(args.hosts)]
    print(f"ratio at {max(args.hosts)} hosts {ratios[-1]:.2f} (wanted at most {WANTED_RATIO})")
    return 0 if ratios[-1] <= WANTED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
