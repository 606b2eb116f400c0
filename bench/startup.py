"""
CPU time of `ringup --help` over a bare Python that does nothing, in a clean environment.

    python bench/startup.py [--repeat 15]

Makes a venv with ringup alone; prints the medians and their difference (wanted: at most 60 ms).
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED_MS = 60.0


def cpu_ms(command: list[str]) -> float:
    """User and system time of one run, milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        binaries = Path(place) / "bin"
        install = [
            str(binaries / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            str(ROOT),
        ]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
        bare, ours = [str(binaries / "python"), "-c", "pass"], [str(binaries / "ringup"), "--help"]
        times: dict[str, list[float]] = {"bare": [], "help": []}
        for turn in range(args.repeat + 1):
            for name, command in (("bare", bare), ("help", ours)):
                took = cpu_ms(command)
                if turn:
                    times[name].append(took)
    bare_ms, help_ms = (statistics.median(times[n]) for n in ("bare", "help"))
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    over_ms = help_ms - bare_ms
    print(f"bare python {bare_ms:.1f} ms   ringup --help {help_ms:.1f} ms   over bare: {over_ms:.1f} ms")
    return 0 if over_ms <= WANTED_MS else 1


if __name__ == "__main__":
    sys.exit(main())
