"""
What ringup answers to many slightly different clusters and logs, compared whole with golden files.

The other tests say which answers are right.  These notice that an answer is another one than before, and show
which: `make golden` rewrites them; read the difference before you commit it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

import ringup.checks  # noqa: F401
from ringup.checks.privileges import would_add
from ringup.errors import RingupError
from ringup.logs.read import Diagnosis, read_logs
from ringup.model import Cluster
from ringup.network.predictions import Predictions
from ringup.output import prediction_report
from ringup.planning import expected, mitigations, network, preset_variables
from ringup.planning.minimal_env import minimal_env, with_nccl_debug
from ringup.rules import CHECKS, INTERNAL_ERRORS, Finding, run_checks
from tests import rule_cases_gpu, rule_cases_machine, rule_cases_rdma  # noqa: F401 (they add their cases)
from tests.golden_files import compare, part_of
from tests.logs_said import HEALTHY, SAID
from tests.rule_cases import FIRES, QUIET
from tests.variations import below, compared, difference, sweep, texts

RULE_CHANGES = 60
PLAN_CHANGES = 24
LOG_CHANGES = 12

pytestmark = pytest.mark.slow


def in_a_line(finding: Finding) -> str:
    fix = finding.fix
    parts = [finding.severity or "", finding.rule, finding.where, finding.found, finding.wanted]
    parts += [finding.worked_around_by or ""]
    if fix:
        parts += [fix.text, " ".join(f"{k}={v}" for k, v in fix.env.items()), "; ".join(fix.commands)]
    return " | ".join(parts)


def judged(rule: str, cluster: Cluster) -> Iterator[str]:
    """One rule's answers."""
    findings, skipped = run_checks(cluster, {rule: CHECKS[rule]})
    yield from map(in_a_line, findings)
    yield from (f"not checked: {s.node} {s.reason} {s.as_root}" for s in skipped)


def decided(rules: list[str], cluster: Cluster) -> Iterator[str]:
    """Some rules' findings as the plan settles them, the plan, its variables and the prediction."""
    findings, _ = run_checks(cluster, {rule: CHECKS[rule] for rule in rules})
    try:
        plan = network.decide(cluster, "run")
    except RingupError as error:
        yield f"{error}: {error.hint}"
        return
    yield from map(in_a_line, mitigations.weigh(findings, plan, cluster))
    yield from (f"kept {one}" for one in preset_variables.kept(cluster))
    if plan is None:
        yield "no plan"
        return
    yield f"meets at {plan.master_addr}:{plan.master_port}"
    yield from (f"plan notes {note}" for note in plan.notes)
    yield from (f"sets {v}" for v in plan.env)
    yield from (f"{n}" for n in plan.nodes)
    for always in (False, True):
        yield from (
            f"listens {v}" for v in with_nccl_debug(plan, cluster, always=always).env[len(plan.env) :]
        )
    smallest = minimal_env(cluster)
    yield from (f"env {v}" for v in smallest.env)
    yield from (f"env notes {note}" for note in smallest.notes)
    for one in expected(Predictions(cluster), plan):
        for name, value in prediction_report.expected_json(one).items():
            yield f"{one.prediction.name} expects {name}: {value}"


def seen_by_all(names: list[str]) -> Iterator[str]:
    """What every rule says of each case, and what root would add; that of a job of another kind."""
    rules = {rule: CHECKS[rule] for rule in NAMES}  # they are registered in the order of imports
    for name in names:
        for number, made in enumerate((FIRES[name](), QUIET[name]())):
            nodes = tuple(replace(n, uid=1000) for n in made.nodes)
            job = replace(made.job, **OTHER_JOBS[below(len(OTHER_JOBS), name, number)])  # type: ignore[arg-type]
            findings, skipped = run_checks(replace(made, nodes=nodes, job=job), rules)
            yield f"{name} {number} {job.launcher} {job.backend}"
            yield from (f"  {f.severity} {f.rule} {f.where} | {f.found}" for f in findings)
            more = would_add(made, skipped)
            yield from (f"  root: {s.rule} {s.node} {s.reason} {s.as_root} {s.is_partial}" for s in more)


OTHER_JOBS: tuple[dict[str, object], ...] = (
    {},
    {"backend": "gloo"},
    {"launcher": "jax"},
    {"backend": "nccl", "port": 29500},
    {"launcher": "deepspeed", "env": {"TMPDIR": "/scratch", "NCCL_SOCKET_IFNAME": "eth0"}},
)


def words_of(rule: str) -> tuple[str, ...]:
    return compared(rule, sys.modules[getattr(CHECKS[rule].function, "__module__", __name__)])


def variations(names: list[str]) -> Iterator[str]:
    """Each case of each rule, changed in one of the facts that the rule reads."""
    for name in names:
        for title, case in ((f"{name} fires", FIRES[name]), (f"{name} quiet", QUIET[name])):
            yield title
            yield from sweep(
                case(), partial(judged, name), seed=title, most=RULE_CHANGES, words=words_of(name)
            )


def beside(one: Cluster, other: Cluster) -> Cluster:
    """Both in one cluster, the other's nodes under names of their own."""
    more = [
        replace(n, name=f"{n.name}-b", hostname=f"{n.hostname}-b", boot_id=n.boot_id and f"{n.boot_id}-b")
        for n in other.nodes
    ]
    links = [replace(link, src=f"{link.src}-b", dst=f"{link.dst}-b") for link in other.links]
    return replace(one, nodes=(*one.nodes, *more), links=(*one.links, *links))


def together(names: list[str]) -> Iterator[str]:
    """A case twice in one cluster, and beside a sound one, before and after it."""
    for name in names:
        fires, quiet = FIRES[name](), QUIET[name]()
        for title, one, other in (("twice", fires, fires), ("first", fires, quiet), ("last", quiet, fires)):
            yield f"{name} {title}"
            yield from (f"  {line}" for line in judged(name, beside(one, other)))


def decisions(names: list[str]) -> Iterator[str]:
    """Each case that fires, as it is and changed anywhere: everything that is made of it."""
    for name in names:
        yield name
        yield from sweep(FIRES[name](), partial(decided, [name]), seed=name, most=PLAN_CHANGES, each=1)


NAMES = sorted(CHECKS)
PARTS = {f"{n:02d}": part_of(NAMES, n, 8) for n in range(8)}


@pytest.mark.alike
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="== of a dataclass reads fewer fields: others would be changed"
)
@pytest.mark.parametrize("part", PARTS)
def test_a_rule_answers_a_changed_fact_as_before(part: str) -> None:
    INTERNAL_ERRORS.clear()
    compare(f"rules-{part}.txt", variations(PARTS[part]))
    assert not INTERNAL_ERRORS


@pytest.mark.alike
@pytest.mark.parametrize("part", PARTS)
def test_a_plan_is_made_of_a_changed_cluster_as_before(part: str) -> None:
    compare(f"plans-{part}.txt", decisions(PARTS[part]))


@pytest.mark.parametrize("part", range(2))
def test_all_rules_answer_each_case_as_before(part: int) -> None:
    compare(f"all-rules-{part}.txt", seen_by_all(part_of(NAMES, part, 2)))


def test_a_rule_answers_two_cases_in_one_cluster_as_before() -> None:
    compare("rules-together.txt", together(NAMES))


@cache
def excerpts() -> list[str]:
    return [text for _, text in SAID] + list(HEALTHY)


def shown(diagnosis: Diagnosis) -> Iterator[str]:
    """Everything but the paths."""
    for cause in diagnosis.causes:
        where = f"{','.join(cause.nodes)} {','.join(map(str, cause.ranks))}"
        lines = " ".join(str(e.line) for e in cause.evidence)
        yield f"    {cause.severity} {cause.confidence} {cause.rule} [{where}] {cause.text} (lines {lines})"


def read(folder: Path, text: str) -> Iterator[str]:
    log = folder / "job.log"
    log.write_text(f"{text}\n", encoding="utf-8")
    yield from shown(read_logs([str(log)]))


def from_two(one: str, other: str) -> str:
    return "\n".join(
        [f"[rank0]: {x}" for x in one.split("\n")] + [f"[rank1]: {x}" for x in other.split("\n")]
    )


ORDERS: dict[str, Callable[[str, str], str]] = {
    "then": lambda one, two: f"{one}\n{two}",
    "from two ranks": from_two,
}
HOSTS: dict[str, Callable[[str], str]] = {
    "by a host": lambda text: "\n".join(f"n7: {line}" for line in text.split("\n")),
    "by a rank": lambda text: "\n".join(f"[rank5]: {line}" for line in text.split("\n")),
    "by two hosts": lambda text: "\n".join(f"n{n % 2}: {line}" for n, line in enumerate(text.split("\n"))),
    "twice": lambda text: f"{text}\n{text}",
    "turned": lambda text: "\n".join(text.split("\n")[::-1]),
}
LOG_PARTS = 8


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("part", range(4))
def test_logs_of_two_troubles_are_read_as_before(tmp_path: Path, order: str, part: int) -> None:
    def answers() -> Iterator[str]:
        known = excerpts()
        for text in part_of(known, part, 4):
            # A new excerpt becomes the other one of few.
            other = min(known, key=lambda one, text=text: zlib.crc32(f"{text[:100]}{one}".encode()))
            yield f"{text[:60]!r} and {other[:60]!r}"
            yield from read(tmp_path, ORDERS[order](text, other))

    compare(f"logs-{order.replace(' ', '-')}-{part}.txt", answers())


@pytest.mark.parametrize(
    "part", [pytest.param(n, marks=[pytest.mark.slow] if n % 2 else []) for n in range(LOG_PARTS)]
)
def test_a_changed_log_is_read_as_before(tmp_path: Path, part: int) -> None:
    def answers() -> Iterator[str]:
        for text in part_of(excerpts(), part, LOG_PARTS):
            usual = [*read(tmp_path, text)]
            yield f"{text[:100]!r} {zlib.crc32(text.encode()):08x}"
            yield from usual
            others = [(name, change(text)) for name, change in HOSTS.items()]
            for done, changed in (*others, *texts(text, LOG_CHANGES, text)):
                lines = [*read(tmp_path, changed)]
                if lines != usual:
                    yield f"  {done}"
                    yield from difference(usual, lines)

    compare(f"logs-changed-{part}.txt", answers())
