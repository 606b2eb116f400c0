"""
Plant small faults in the pure code, one at a time, and see whether the tests notice.

    python tools/mutation.py [--count 200] [--seed 1] [--workers 2] [--only PATH] [--resume]

Cosmic Ray makes the faults (a comparison turned round, `and` for `or`, a number one off, ...); a sample of
them is drawn by seed.  Each is planted in the modules of a new process, by a hook on the import, and the
tests that execute its line are run there until one fails, quick ones first.  Which tests those are is
measured before by coverage.py's contexts, one file of tests at a time, and kept in .pytest_cache/mutation
until the sources or that file change.  Tests that fail without a fault, or start processes, are left out.
The last lines are every survivor as a diff and the share noticed, per package.

Results are kept beside it: `--resume` goes on with a run that was cut off; after new tests it tries the
survivors again and takes the rest as noticed.
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import ClusterShell.NodeSet  # noqa: F401 (the processes with a fault need not import these again)
import coverage
import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".pytest_cache" / "mutation"
TREE = CACHE / "tree"
"""A copy of the tracked files, made at the start: whoever edits meanwhile disturbs nothing."""
PACKAGES = (
    *("checks", "nccl", "planning", "parse", "logs/causes", "flight_recorder", "hang"),
    "network/reachability.py",
)
TURNED = ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt")
AT_THE_EDGE = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")
ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul")
KINDS = (
    *(f"core/ReplaceComparisonOperator_{kind}" for kind in (*TURNED, *AT_THE_EDGE)),
    *(f"core/ReplaceBinaryOperator_{kind}" for kind in ARITHMETIC),
    *(
        "core/ReplaceAndWithOr",
        "core/ReplaceOrWithAnd",
        "core/AddNot",
        "core/ReplaceUnaryOperator_Delete_Not",
    ),
    *("core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue", "core/NumberReplacer"),
    *("core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak", "core/ZeroIterationForLoop"),
)
"""Faults that a person makes; Cosmic Ray also knows many that no person would."""
NUMBERS_SHARE = 0.2
"""Of all faults two in five would be a number one off, many of them a length that a text is cut at."""
FAST_TESTS = "not lab and not torch and (alike or not slow)"
BUDGET_S = 40.0
"""CPU time of the tests that one fault is tried with; golden answers come first."""
TEST_LIMIT_S = 60
"""A test that takes longer hangs: noticed."""
MEMORY = 4 << 30
OWN_FAULT = 70
NO_FAULT = 71


@dataclass(frozen=True)
class Fault:
    """One change to one file; `text` is a checksum of the file."""

    path: str
    operator: str
    occurrence: int
    line: int
    text: int

    @property
    def package(self) -> str:
        return self.path.split("/")[2]

    @property
    def key(self) -> str:
        return f"{self.path} {self.operator} {self.occurrence} {self.text:08x}"

    def rank(self, seed: int) -> int:
        """A number by which a sample is drawn: a change in one file moves no fault of another."""
        return zlib.crc32(f"{seed} {self.path} {self.operator} {self.occurrence}".encode())


def faults(paths: list[Path], seed: int) -> list[Fault]:
    """Every fault that Cosmic Ray knows for these files, in the order of the seed."""
    found = [Fault(str(path.relative_to(TREE)), *place) for path in paths for place in places(path)]
    numbers = NUMBERS_SHARE * (1 << 32)
    found = [f for f in found if f.operator != "core/NumberReplacer" or f.rank(-seed - 1) < numbers]
    return sorted(found, key=lambda f: f.rank(seed))


def places(path: Path) -> list[tuple[str, int, int, int]]:
    """(operator, occurrence, line, checksum of the file) of each fault; cached by the file's text."""
    text = zlib.crc32(path.read_bytes())
    kept = CACHE / "places" / f"{path.stem}-{text:08x}.json"
    if not kept.exists():
        nodes, found = list(ast_nodes(get_ast_from_path(path))), []
        for name in KINDS:
            operator = get_operator(name)()
            lines = (line for node in nodes for (line, _), _ in operator.mutation_positions(node))
            found += [(name, number, line, text) for number, line in enumerate(lines)]
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(found))
    return [tuple(one) for one in json.loads(kept.read_text())]


def planted(fault: Fault) -> str:
    """The file's text with the fault; "" when Cosmic Ray makes no program of it (`not` before `:=`)."""
    code = (TREE / fault.path).read_text()
    changed = mutate_code(code, get_operator(fault.operator)(), fault.occurrence)
    try:
        if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(code)):
            return ""
    except SyntaxError:
        return ""
    return str(changed)


class Planted(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Loads one module from another text than its file's."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec")


@dataclass
class Recorder:
    """What pytest is told to remember: each test's CPU time, and which may be used to look for faults."""

    cover: coverage.Coverage
    times: dict[str, float] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)
    running: str = ""
    began_s: float = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running, self.began_s = nodeid, time.process_time()
        self.cover.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.times[nodeid] = time.process_time() - self.began_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.unfit.add(report.nodeid)

    def audit(self, event: str, _: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self.unfit.add(self.running)


def in_a_process(work: Callable[[], int]) -> int:
    """The id of a new process that does this, its output thrown away."""
    if pid := os.fork():
        return pid
    code = OWN_FAULT
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silent, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        code = work()
    except BaseException:
        (CACHE / "error.txt").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def pytest_here(words: Sequence[str], *plugins: object) -> int:
    """Run tests of the copy, of which nothing is imported yet."""
    os.chdir(TREE)
    sys.path[:0] = [str(TREE / "src"), str(TREE)]
    os.environ.pop("RINGUP_GOLDEN", None)
    usual = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", f"--timeout={TEST_LIMIT_S}"]
    return int(pytest.main([*usual, *words], plugins=[*plugins]))


def together(workers: int, jobs: Iterable[tuple[Any, Callable[[], int]]]) -> Iterator[tuple[Any, int]]:
    """(what, exit status) of jobs as they end; so many at a time."""
    running: dict[int, Any] = {}
    left = iter(jobs)
    while True:
        for what, work in itertools.islice(left, workers - len(running)):
            running[in_a_process(work)] = what
        if not running:
            return
        pid, status = os.wait()
        if os.waitstatus_to_exitcode(status) == OWN_FAULT:
            sys.exit(f"this tool failed: {(CACHE / 'error.txt').read_text()}")
        yield running.pop(pid), status


# --- which test executes which line


def measure(path: str, to: Path) -> int:
    """Run one file of tests and keep its lines and times."""
    cover = coverage.Coverage(data_file=str(to), source=[str(TREE / "src" / "ringup")])
    recorder = Recorder(cover)
    sys.addaudithook(recorder.audit)
    cover.start()
    code = pytest_here(["-m", FAST_TESTS, path], recorder)
    cover.stop()
    cover.save()
    fit = {name: time for name, time in recorder.times.items() if name not in recorder.unfit}
    to.with_suffix(".json").write_text(json.dumps(fit))
    return code


def checksum(paths: Iterable[Path]) -> int:
    return functools.reduce(lambda crc, path: zlib.crc32(path.read_bytes(), crc), sorted(paths), 0)


def is_worth_it(text: str) -> bool:
    """Whether a file of tests is about these packages, and few of its tests start programs."""
    names = "|".join(name.partition("/")[0].removesuffix(".py") for name in PACKAGES)
    about = re.search(rf"ringup\.(?:{names})\b|from ringup import .*\b(?:{names})\b", text)
    return bool(about) and 5 * len(re.findall(r"subprocess|lab\(", text)) <= text.count("\ndef test")


class Tests:
    """The tests that execute a line, from what was measured."""

    def __init__(self, pattern: str, workers: int) -> None:
        helpers = (p for p in (TREE / "tests").glob("*.py") if not p.name.startswith("test_"))
        digest = checksum([*(TREE / "src").rglob("*.py"), *helpers])
        self.times: dict[str, float] = {}
        self.data = []
        jobs, wanted = [], []
        for path in sorted((TREE / "tests").glob(pattern)):
            text = path.read_text()
            to = CACHE / f"{path.stem}-{zlib.crc32(text.encode(), digest):08x}.cover"
            if is_worth_it(text):
                wanted.append(to)
                if not to.with_suffix(".json").exists():
                    for old in CACHE.glob(f"{path.stem}-????????.*"):
                        old.unlink()
                    jobs.append((path.name, functools.partial(measure, f"tests/{path.name}", to)))
        for name, status in together(workers, jobs):
            print(f"measured {name}{f' (exit status {status})' if status else ''}", flush=True)
        for to in wanted:
            self.times.update(json.loads(to.with_suffix(".json").read_text()))
            self.data.append(coverage.CoverageData(str(to)))
            self.data[-1].read()

    @functools.cache  # noqa: B019 (one object a run)
    def by_line(self, path: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = collections.defaultdict(set)
        for data in self.data:
            for line, contexts in data.contexts_by_lineno(str(TREE / path)).items():
                found[line].update(name for name in contexts if name in self.times)
        return found

    def of(self, fault: Fault) -> list[str]:
        """Of a fault's statement, its file or its folder; as many as there is time for, quick ones first."""
        by_line = self.by_line(fault.path)
        first, last = statement((TREE / fault.path).read_text(), fault.line)
        found = {name for line in range(first, last + 1) for name in by_line.get(line, ())}
        found = found or set().union(*by_line.values())
        if not found:
            folder = (TREE / fault.path).parent.glob("*.py")
            files = [self.by_line(str(path.relative_to(TREE))) for path in folder]
            found = set().union(*(names for lines in files for names in lines.values()))
        chosen, left = [], BUDGET_S
        for name in sorted(found, key=lambda name: ("test_golden" not in name, self.times[name])):
            left -= self.times[name]
            if left > 0:
                chosen.append(name)
        return sorted(chosen, key=lambda name: self.times[name])


def statement(text: str, line: int) -> tuple[int, int]:
    """First and last line of the smallest statement that a line is in."""
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]
    around = [(n.lineno, n.end_lineno or n.lineno) for n in nodes if n.lineno <= line <= (n.end_lineno or 0)]
    return min(around, key=lambda lines: lines[1] - lines[0], default=(line, line))


# --- faults, one at a time


def try_it(fault: Fault, tests: list[str]) -> int:
    """0 when no test of these notices the fault."""
    text = planted(fault)
    if not text:
        return NO_FAULT
    name = fault.path[len("src/") : -len(".py")].replace("/", ".").removesuffix(".__init__")
    sys.meta_path.insert(0, Planted(name, str(TREE / fault.path), text))
    sys.dont_write_bytecode = True
    limit = int(BUDGET_S) * 3
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    listed = TREE / f"tests-{os.getpid()}.txt"
    listed.write_text("\n".join(tests))
    return pytest_here(["-x", f"@{listed}"])


def copy_the_tree() -> None:
    """Bring the copy up to date; compiled modules that still fit stay."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    names = {name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in TREE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and str(path.relative_to(TREE)) not in names:
            path.unlink()
    for name in names:
        source, copy = ROOT / name, TREE / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.stat().st_mtime_ns != source.stat().st_mtime_ns:
            shutil.copy2(source, copy)


class Results:
    """Fault -> NOTICED, NONE or the checksum of the tests that it survived; kept in a file."""

    NOTICED, NONE = "noticed", "none"

    def __init__(self, resume: bool) -> None:
        self.path = CACHE / "results.jsonl"
        lines = self.path.read_text().splitlines() if resume and self.path.exists() else []
        self.known: dict[str, str] = dict(map(json.loads, lines))
        self.path.write_text("".join(f"{line}\n" for line in lines))

    def of(self, fault: Fault) -> str:
        return self.known.get(fault.key, "")

    def add(self, fault: Fault, result: str) -> None:
        self.known[fault.key] = result
        with self.path.open("a") as file:
            file.write(json.dumps([fault.key, result]) + "\n")


def tried(sample: list[Fault], pattern: str, workers: int, results: Results) -> None:
    """Try what has not been noticed yet with the tests in files of this pattern."""
    files = [p for p in (TREE / "tests").rglob("*") if p.suffix in (".py", ".txt")]
    digest = f"{checksum(files):08x} {pattern}"
    left = [f for f in sample if results.of(f) not in (Results.NOTICED, Results.NONE, digest)]
    compiled = functools.partial(pytest_here, ["--collect-only", *map(str, TREE.glob(f"tests/{pattern}"))])
    next(iter(together(1, [(None, compiled)])))
    tests = Tests(pattern, workers)
    jobs = (((f, len(chosen := tests.of(f))), functools.partial(try_it, f, chosen)) for f in left)
    for number, ((fault, count), status) in enumerate(together(workers, jobs), 1):
        code = os.waitstatus_to_exitcode(status)
        results.add(fault, {0: digest, 5: digest, NO_FAULT: Results.NONE}.get(code, Results.NOTICED))
        word = {0: f"survived {count} tests", NO_FAULT: "no program"}.get(code, f"noticed ({code})")
        print(f"{number}/{len(left)} {word} {fault.path} {fault.line} {fault.operator}", flush=True)


def show(sample: list[Fault], results: Results) -> float:
    """Print the survivors and the share noticed, per package; the whole share."""
    sample = [fault for fault in sample if results.of(fault) != Results.NONE]
    alive = [fault for fault in sample if results.of(fault) != Results.NOTICED]
    for fault in sorted(alive, key=lambda one: (one.path, one.line)):
        lines = [t.splitlines(True) for t in ((TREE / fault.path).read_text(), planted(fault))]
        print(f"\n{fault.path}:{fault.line} {fault.operator}")
        print("".join([*difflib.unified_diff(*lines, n=3)][2:]))
    count, survivors = (collections.Counter(fault.package for fault in some) for some in (sample, alive))
    for package, number in sorted(count.items()):
        print(f"{package}: {number - survivors[package]} of {number} noticed")
    share = 1 - len(alive) / max(1, len(sample))
    print(f"noticed: {len(sample) - len(alive)} of {len(sample)}, {share:.0%}")
    return share


def main() -> int:
    """Print what was noticed; 1 when it is less than asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="a file or folder below src/ringup")
    parser.add_argument("--resume", action="store_true", help="take the last run's results as known")
    parser.add_argument("--golden", action="store_true", help="no other tests than the golden answers")
    parser.add_argument("--at-least", type=float, default=0.85)
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    copy_the_tree()
    found = [TREE / "src" / "ringup" / name for name in options.only or PACKAGES]
    paths = sorted(p for place in found for p in (place.rglob("*.py") if place.is_dir() else [place]))
    known = faults(paths, options.seed)
    sample = known[: options.count]
    print(f"{len(known)} faults in {len(paths)} files; {len(sample)} of them planted", flush=True)
    results = Results(options.resume)
    for pattern in ("test_golden_*.py", "test_[!g]*.py")[: 1 if options.golden else 2]:
        tried(sample, pattern, options.workers, results)
    return show(sample, results) < options.at_least


if __name__ == "__main__":
    sys.exit(main())
