"""What records of test runs (build/record/*.jsonl) say: each run, the tests that ever failed, the slowest."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.record import runs

BAD = ("failed", "error", "rerun")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--slowest", type=int, default=10, metavar="N")
    options = parser.parse_args()
    bad: defaultdict[str, list[str]] = defaultdict(list)
    why: defaultdict[str, set[str]] = defaultdict(set)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for file in options.files:
        for begun, tests in runs(file):
            count = Counter(entry["outcome"] for entry in tests)
            name = f"{file.stem} {begun['run']}"
            said = ", ".join(f"{count[word]} {word}" for word in ("passed", "skipped", *BAD) if count[word])
            print(f"{name} ({begun['commit']}, load {begun['load']:.1f}): {said or 'nothing'}")
            for entry in tests:
                if entry["outcome"] in BAD:
                    bad[entry["test"]].append(f"{entry['outcome']} in {name}")
                    why[entry["test"]].add(entry.get("why", "").partition("\n")[0])
                elif entry["outcome"] == "passed":
                    seconds[entry["test"]].append(entry["seconds"])
    print(f"\n{len(bad)} of {len(bad.keys() | seconds.keys())} tests ever failed:")
    for test in sorted(bad):
        print(f"  {test}: {', '.join(bad[test])}", *sorted(filter(None, why[test])), sep="\n      ")
    print("\nSlowest (median seconds):")
    middle = {test: statistics.median(each) for test, each in seconds.items()}
    for test in sorted(middle, key=lambda test: -middle[test])[: options.slowest]:
        print(f"  {middle[test]:6.1f}  {test}")


if __name__ == "__main__":
    main()
