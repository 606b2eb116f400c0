"""
What reading a log costs, against one `LC_ALL=C grep -ac 'NCCL INFO AllGather'` of the same file.

    python bench/logs.py [--size 1G] [--rounds 5] [--only counts,...] [--dir D]

Every measurement is a process of its own from start to end (interpreter and imports included), its CPU time
paired with a grep run just before; the median of the ratios counts.  The files are read once before, so the
page cache is warm.  They are made by `nccl_logs.py` in a temporary folder and removed afterwards.  Modules
are loaded from bytecode, as an installation has them.

`many-files` is not compared with grep: of 1,000 ranks with 10 MB each the stuck one must be named within
10 s.  Each file has a hole in the middle, which is never read and takes no disk.
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
import sys
from ringup.logs import counts, files
run = counts.join({path: counts.scan(files.blocks(path), engine=sys.argv[1]) for path in sys.argv[2:]})
cells = sum(n for i in run.by_iteration for n in i.counts.values())
print(sum(run.collectives.values()), cells, len(run.by_iteration), run.transports)
"""

TAILS = """
import sys
from ringup.logs import files, quick_scan
sizes = quick_scan.HEAD_BYTES, quick_scan.TAIL_BYTES
ends = ((p, *files.ends(p, *sizes)) for p in sys.argv[1:])
print([(s.rank, s.confidence) for s in quick_scan.look(ends)])
"""

FIRST_LOOK = """
import sys
from ringup.logs import read
print([(s.rank, s.confidence) for s in read.first_look(sys.argv[1:])])
"""

MANY_RANKS, MANY_BYTES, WRITTEN_BYTES = 1000, 10 * 10**6, 200 << 20
MANY_LIMIT_S = 10.0
MEMORY_LIMIT_MIB = 100


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


def count_command(engine: str) -> Callable[[list[str]], list[str]]:
    """A process that counts files."""
    return lambda files: [sys.executable, "-c", COUNT, engine, *files]


MEASURES = (
    Measure("tails", "per-rank", 0.25, lambda files: [sys.executable, "-c", TAILS, *files]),
    Measure("counts-python", "merged", 60.0, count_command("python")),
    Measure("counts-native", "merged", 2.0, count_command("native")),
    Measure(
        "diagnosis", "merged", 4.0, lambda files: [sys.executable, "-m", "ringup", "logs", "--json", *files]
    ),
)


def spend(command: list[str]) -> Cost:
    """Run a command; its CPU time with its children's, and the most memory one of them held."""
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        child = subprocess.Popen(command, stdout=out, env={**env, "LC_ALL": "C"})
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            raise SystemExit(f"{command[:4]} ended with {child.returncode}")
        out.seek(0)
        text = out.read(2000).decode("utf-8", "replace").strip()
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024, text)


def measure(what: Measure, files: list[str], rounds: int) -> dict[str, object]:
    """Ratios of CPU time, round by round."""
    ratios, peak, costs = [], 0, []
    for _ in range(rounds):
        yardstick = spend(["grep", "-ac", PATTERN, *files])
        costs.append(spend(what.command(files)))
        ratios.append(costs[-1].cpu_s / yardstick.cpu_s)
        peak = max(peak, costs[-1].peak_bytes)
    return {
        "name": what.name,
        "ratio": round(statistics.median(ratios), 2),
        "limit": what.limit,
        "ratios": [round(r, 2) for r in ratios],
        "cpu_s": round(statistics.median(c.cpu_s for c in costs), 3),
        "wall_s": round(statistics.median(c.wall_s for c in costs), 3),
        "peak_mib": round(peak / (1 << 20), 1),
        "output": costs[-1].output.splitlines()[0][:120] if costs[-1].output else "",
    }


def many_files(folder: Path, rounds: int) -> dict[str, object]:
    """Time and memory of the first look at one file a rank; ends the program where it names another rank."""
    for path in make(folder, "per-rank", WRITTEN_BYTES, MANY_RANKS):
        with open(path, "r+b") as file:
            half = os.fstat(file.fileno()).st_size // 2
            file.seek(half)
            rest = file.read()
            file.truncate(half)
            file.seek(MANY_BYTES - len(rest))
            file.write(rest)
    command = [sys.executable, "-c", FIRST_LOOK, str(folder)]
    costs = [spend(command) for _ in range(rounds + 1)][1:]  # the first reads from the disk
    if costs[-1].output != f"[('{MANY_RANKS // 2 + 1}', 'medium')]":
        raise SystemExit(f"many-files names {costs[-1].output}")
    return {
        "name": "many-files",
        "limit_s": MANY_LIMIT_S,
        "wall_s": round(statistics.median(c.wall_s for c in costs), 3),
        "cpu_s": round(statistics.median(c.cpu_s for c in costs), 3),
        "peak_mib": round(max(c.peak_bytes for c in costs) / (1 << 20), 1),
        "output": costs[-1].output,
    }


def is_over(result: dict[str, object]) -> bool:
    """Whether a result is over its limit or needs too much memory."""
    of, limit = ("ratio", "limit") if "ratio" in result else ("wall_s", "limit_s")
    over = float(str(result[of])) > float(str(result[limit]))
    return over or float(str(result["peak_mib"])) > MEMORY_LIMIT_MIB


def shown(result: dict[str, object]) -> str:
    """A result in a line."""
    if "ratio" in result:
        head = f"{result['ratio']:6}x of grep (limit {result['limit']}x)"
    else:
        head = f"{MANY_RANKS} x {MANY_BYTES / 1e6:.0f} MB (limit {result['limit_s']} s)"
    times = f"cpu {result['cpu_s']} s  wall {result['wall_s']} s  peak {result['peak_mib']} MiB"
    return f"{result['name']:16} {head}  {times}  {result.get('ratios', '')}  {result['output']}"


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
    """The log files: training with a call that differs (merged), or that hangs in its last iteration."""
    words = {
        "--layout": layout,
        "--label": "srun" if layout == "merged" else "none",
        "--size": str(size_bytes),
    }
    words |= {
        "--ranks": str(ranks),
        "--fault": "count" if layout == "merged" else "stalled",
        "--fault-rank": str(ranks // 2 + 1),
    }
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
    names = [*(m.name for m in MEASURES), "many-files"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=1 << 30)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help=f"names, by comma: {', '.join(names)}")
    parser.add_argument("--dir", type=Path, help="where the files are made (a temporary folder)")
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when a ratio or the memory is over its limit"
    )
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    chosen = [m for m in MEASURES if not words.only or m.name in words.only.split(",")]
    results = []
    if words.dir:
        words.dir.mkdir(parents=True, exist_ok=True)
    for layout in sorted({m.layout for m in chosen}):
        with tempfile.TemporaryDirectory(dir=words.dir, prefix="ringup-bench-") as folder:
            files = make(Path(folder), layout, words.size, words.ranks)
            spend(["grep", "-ac", PATTERN, *files])
            results += [measure(m, files, words.rounds) for m in chosen if m.layout == layout]
    if not words.only or "many-files" in words.only.split(","):
        with tempfile.TemporaryDirectory(dir=words.dir, prefix="ringup-bench-") as folder:
            results.append(many_files(Path(folder), words.rounds))
    if words.json:
        print(json.dumps({"machine": machine(), "size_bytes": words.size, "results": results}, indent=1))
    else:
        print(f"{words.size / (1 << 30):.2f} GiB, {words.ranks} ranks, {words.rounds} rounds on {machine()}")
        for r in results:
            print(shown(r))
    sys.exit(1 if words.check and any(map(is_over, results)) else 0)


if __name__ == "__main__":
    main()
