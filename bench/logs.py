"""
What reading a log costs, against one `LC_ALL=C grep -ac 'NCCL INFO AllGather'` of the same file.

    python bench/logs.py [--size 1G] [--rounds 5] [--only counts,...] [--dir D]

Every measurement is a process of its own from start to end (interpreter and imports included), its CPU time
paired with a grep run just before; the median of the ratios counts.  The files are read once before, so the
page cache is warm.  They are made by `nccl_logs.py` in a temporary folder and removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.nccl_logs import parse_size

PATTERN = "NCCL INFO AllGather"

COUNT = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `ringup logs` does
from ringup.logs import counting, counts
engine, processes, sequences = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
parts, _ = counting.run(sys.argv[4:], engine=engine, processes=processes, sequences=sequences)
run = counts.join(parts)
cells = sum(n for i in run.by_iteration for kinds in i.by_rank.values() for n in kinds.values())
print(sum(run.collectives.values()), cells, len(run.by_iteration), run.transports, len(run.warnings))
"""

TAILS = """
import sys
from ringup.logs import counting, tails
print([(s.rank, s.confidence) for s in tails.look(counting.ends(sys.argv[1:])).stuck])
"""


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    output: str


@dataclass(frozen=True)
class Measure:
    """One thing to measure, and the most it may cost as a multiple of grep."""

    name: str
    layout: str
    limit: float
    command: Callable[[list[str]], list[str]]
    against: str = "grep"


def count_command(engine: str, processes: int = 1, sequences: int = 0) -> Callable[[list[str]], list[str]]:
    """A process that counts files."""
    words = [sys.executable, "-c", COUNT, engine, str(processes), str(sequences)]
    return lambda files: [*words, *files]


MEASURES = (
    Measure("tails", "per-rank", 0.75, lambda files: [sys.executable, "-c", TAILS, *files]),
    Measure("counts-stdlib", "merged", 7.0, count_command("stdlib")),
    Measure("counts-numpy", "merged", 5.0, count_command("numpy")),
    Measure("sequences-numpy", "merged", 12.0, count_command("numpy", sequences=1)),
    Measure(
        "diagnosis", "merged", 12.0, lambda files: [sys.executable, "-m", "ringup", "logs", "--json", *files]
    ),
    Measure("two-processes", "merged", 0.6, count_command("numpy", 2, 1), against="one process"),
)


def spend(command: list[str]) -> Cost:
    """Run a command; its CPU time with its children's, and the most memory one of them held."""
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, env={**os.environ, "LC_ALL": "C"})
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            raise SystemExit(f"{command[:4]} ended with {child.returncode}")
        out.seek(0)
        text = out.read(2000).decode("utf-8", "replace").strip()
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024, text)


def grep(files: list[str]) -> Cost:
    """The yardstick."""
    return spend(["grep", "-ac", PATTERN, *files])


def measure(what: Measure, files: list[str], rounds: int) -> dict[str, object]:
    """Ratios of CPU time (of wall time against one process), round by round."""
    ratios, peak, costs = [], 0, []
    for _ in range(rounds):
        if what.against == "grep":
            ratios.append((cost := pair(what, files))[0].cpu_s / cost[1].cpu_s)
        else:
            one = spend(count_command("numpy", 1, 1)(files))
            cost = (spend(what.command(files)), one)
            ratios.append(cost[0].wall_s / cost[1].wall_s)
        peak = max(peak, cost[0].peak_bytes)
        costs.append(cost[0])
    return {
        "name": what.name,
        "ratio": round(statistics.median(ratios), 2),
        "limit": what.limit,
        "against": what.against,
        "ratios": [round(r, 2) for r in ratios],
        "cpu_s": round(statistics.median(c.cpu_s for c in costs), 3),
        "wall_s": round(statistics.median(c.wall_s for c in costs), 3),
        "peak_mib": round(peak / (1 << 20), 1),
        "output": costs[-1].output.splitlines()[0][:120] if costs[-1].output else "",
    }


def pair(what: Measure, files: list[str]) -> tuple[Cost, Cost]:
    """One run and the grep before it."""
    yardstick = grep(files)
    return spend(what.command(files)), yardstick


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    version = subprocess.run(["grep", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "grep": version}


def make(folder: Path, layout: str, size_bytes: int, ranks: int) -> list[str]:
    """The log files: a run of sharded training that hangs in its last iteration."""
    words = {
        "--layout": layout,
        "--label": "srun" if layout == "merged" else "none",
        "--size": str(size_bytes),
    }
    words |= {"--ranks": str(ranks), "--fault": "stalled", "--fault-rank": str(ranks // 2 + 1)}
    words |= {"--fault-iteration": "-1", "--socket-rank": "9", "--warnings": "20", "--seed": "1"}
    script = str(Path(__file__).with_name("nccl_logs.py"))
    # A process of its own: what it held would count as the peak of every process started after it.
    options = [f"{name}={value}" for name, value in words.items()]
    subprocess.run(
        [sys.executable, script, f"--out={folder}", *options], check=True, stdout=subprocess.DEVNULL
    )
    return sorted(str(p) for p in folder.glob("*.log"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=1 << 30)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="names, by comma: " + ", ".join(m.name for m in MEASURES))
    parser.add_argument("--dir", type=Path, help="where the files are made (a temporary folder)")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a ratio or the memory is over its limit"
    )
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    chosen = [m for m in MEASURES if not words.only or m.name in words.only.split(",")]
    results = []
    for layout in sorted({m.layout for m in chosen}):
        with tempfile.TemporaryDirectory(dir=words.dir, prefix="ringup-bench-") as folder:
            files = make(Path(folder), layout, words.size, words.ranks)
            grep(files)
            results += [measure(m, files, words.rounds) for m in chosen if m.layout == layout]
    over = [
        r
        for r in results
        if float(str(r["ratio"])) > float(str(r["limit"])) or float(str(r["peak_mib"])) > 100
    ]
    if words.json:
        print(json.dumps({"machine": machine(), "size_bytes": words.size, "results": results}, indent=1))
    else:
        print(f"{words.size / (1 << 30):.2f} GiB, {words.ranks} ranks, {words.rounds} rounds on {machine()}")
        for r in results:
            print(
                f"{r['name']:16} {r['ratio']:6}x of {r['against']} (limit {r['limit']}x)  cpu {r['cpu_s']} s"
                f"  wall {r['wall_s']} s  peak {r['peak_mib']} MiB  {r['ratios']}  {r['output']}"
            )
    sys.exit(1 if words.check and over else 0)


if __name__ == "__main__":
    main()
