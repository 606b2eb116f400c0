"""
`ringup bench` on links of known rate, against iperf3 on the same link in the same run.

    sudo python bench/rates.py [--rounds 3]

Two hosts played by network namespaces, their link shaped by the kernel (tbf); one rank a host, Gloo.
Prints the median of busbw / iperf3's rate over the rounds.  Needs root, torch and iperf3.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.guards import wait_for
from tests.lab import Lab

LINKS = (("50mbit", 0.05, "2M"), ("100mbit", 0.1, "4M"), ("1gbit", 1.0, "32M"))


def bench(lab: Lab, most: str, gbit_s: float) -> dict[str, Any]:
    """What `ringup bench --json` says of the two hosts."""
    folder = tempfile.mkdtemp(prefix="ringup-bench-", dir="/var/tmp")
    words = ["bench", "-H", "node0,node1", "--nproc", "1", "--backend", "gloo", "--json", "--log-dir", folder]
    words += ["--min", "256K", "--max", most, "--link-gbit", str(gbit_s)]
    try:
        done = lab.run("node0", [sys.executable, "-m", "ringup", *words], timeout_s=300)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def iperf_gbyte_s(lab: Lab) -> float:
    """What iperf3 gets from node0 to node1 within 5 s: payload of TCP, as received."""
    address = lab.host("node1").address
    server = lab.popen("node1", ["iperf3", "--server", "--one-off", "--bind", address])
    wait_for(lambda: lab.listening("node1", 5201), "iperf3 listens")
    done = lab.run("node0", ["iperf3", "--client", address, "--time", "5", "--json"], timeout_s=60)
    server.wait(60)
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9


def main() -> None:
    """A line per rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}")
    for rate, gbit_s, most in LINKS:
        lab = Lab(hosts=2)
        try:
            lab.fault("slow-nic", rate=rate)
            ratios = []
            for _ in range(rounds):
                told = bench(lab, most, gbit_s)
                best = max(row["busbw_gbyte_s"] for row in told["rows"])
                ratios.append(best / iperf_gbyte_s(lab))
                print(f"{rate}: busbw/iperf3 {ratios[-1]:.3f}, verdict {told['verdict']}")
        finally:
            lab.close()
        print(f"{rate}: median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
