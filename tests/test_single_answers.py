"""One question, one function: what each answers, and that nobody keeps a second copy."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ringup.checks  # noqa: F401  (fills the registry)
from ringup import addresses
from ringup import model as ranks
from ringup.collective_tests import job as prove_job
from ringup.model import Cluster, Gpu, Host, Job, Limits, PciDevice, SocketLimits
from ringup.network.predictions import Predictions, uses_nccl
from ringup.parse import interfaces
from ringup.planning import expected
from ringup.rules import CHECKS, run_checks

from .clusters import cluster, interface, node, unreached

H100 = PciDevice("0000:18:00.0", vendor=0x10DE, device=0x2330, class_code=0x0302)
NOT_COUNTED: dict[str, Any] = {"unknown": {"gpu_count": "no answer in time"}}


def with_gpus(name: str, count: int | None, **more: Any) -> Any:
    """A node with so many GPUs; None: they could not be counted."""
    given = NOT_COUNTED if count is None else {"gpu_count": count}
    return node(name, interface("eth0", f"10.0.0.{name[-1]}/24"), **{**given, **more})


@pytest.mark.parametrize(
    ("backend", "counts", "answer"),
    [
        ("nccl", (0, 0), "yes"),
        ("nccl", (None, None), "yes"),
        ("gloo", (8, 8), "no"),
        ("gloo", (None,), "no"),
        ("", (8, 8), "yes"),
        ("", (8, 0), "yes"),
        ("", (8, None), "yes"),
        ("", (0, 0), "no"),
        ("", (0, None), "unknown"),
        ("", (None, None), "unknown"),
    ],
)
def test_the_backend_asked_for_and_the_gpus_counted_say_whether_the_job_uses_nccl(
    backend: str, counts: tuple[int | None, ...], answer: str
) -> None:
    nodes = [with_gpus(f"n{i}", count) for i, count in enumerate(counts)]
    assert uses_nccl(cluster(*nodes, job=Job(backend=backend))) == answer


def test_a_node_that_was_not_reached_does_not_say_whether_the_job_uses_nccl() -> None:
    assert uses_nccl(cluster(with_gpus("n0", 0), unreached("n1", "refused"))) == "no"
    assert uses_nccl(cluster(unreached("n1", "refused"))) == "unknown"


def test_a_prediction_without_a_count_of_gpus_says_so_and_has_low_confidence() -> None:
    (found,) = expected(Predictions(cluster(with_gpus("n0", None))), None)
    assert found.prediction.network == "Socket" and found.prediction.confidence == "low"
    assert "the number of GPUs of n0 (no answer in time)" in found.prediction.missing
    (counted,) = expected(Predictions(cluster(with_gpus("n0", 0))), None)
    assert counted.prediction.network == "Gloo"


LIMITED: dict[str, Any] = {"limits": Limits(math.inf, 300), "socket_limits": SocketLimits(somaxconn=32)}


def found_in(judged: Cluster, rule: str) -> list[str]:
    return [finding.found + finding.wanted for finding in run_checks(judged, {rule: CHECKS[rule]})[0]]


def test_rules_count_a_nodes_ranks_as_the_plan_does() -> None:
    listed = [with_gpus(f"n{i}", 0, host=Host(f"n{i}", slots=64), **LIMITED) for i in range(2)]
    assert "for 128 ranks" in found_in(cluster(*listed), "open-files-too-low")[0]
    many = Job(arguments=("--num-workers=1",))
    loaded = cluster(*(replace(n, cpu_count=32) for n in listed), job=many)
    assert "for each of 64 ranks" in found_in(loaded, "dataloader-can-starve")[0]
    assert "128 ranks" in found_in(cluster(*listed), "backlog-overflow")[0]
    # Of a scheduler's tasks or CPUs nothing follows where there are GPUs.
    tasks = [with_gpus(f"n{i}", 8, host=Host(f"n{i}", slots=96, in_slurm=True), **LIMITED) for i in range(2)]
    assert found_in(cluster(*tasks), "backlog-overflow") == []


class TestOfCpusWhereGpusWereExpected:
    """`ringup test` and `bench` without --backend."""

    @pytest.mark.parametrize(
        ("more", "backend", "words"),
        [
            ({"gpu_count": 8}, "nccl", ""),
            ({"gpu_count": 0}, "gloo", ""),
            ({"gpu_count": 0, "pci": (H100,)}, "nccl", "1 NVIDIA GPU on the PCI bus"),
            ({**NOT_COUNTED, "pci": (H100,)}, "nccl", "1 NVIDIA GPU on the PCI bus"),
            ({"gpu_count": 0, "gpus": (Gpu(0), Gpu(1))}, "nccl", "2 GPUs listed"),
            (NOT_COUNTED, "gloo", "GPUs could not be counted: no answer in time"),
            ({"environment": {"SLURM_GPUS_ON_NODE": "8"}}, "gloo", "SLURM_GPUS_ON_NODE=8"),
            ({"environment": {"SLURM_GPUS_ON_NODE": "0"}}, "gloo", ""),
            ({"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}}, "gloo", "CUDA_VISIBLE_DEVICES=0,1"),
            ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "gloo", ""),
            ({"environment": {"CUDA_VISIBLE_DEVICES": ""}, "pci": (H100,)}, "gloo", "hides 1 NVIDIA GPU"),
            ({"environment": {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, "pci": (H100,)}, "gloo", "NoDevFiles"),
        ],
    )
    def test_every_sign_of_a_gpu_is_named_before_cpus_are_tested(
        self, more: dict[str, Any], backend: str, words: str
    ) -> None:
        found, warnings = prove_job.backend_of(cluster(with_gpus("n0", 0), with_gpus("n1", 0, **more)))
        assert found == backend
        assert len(warnings) == bool(words)
        if words:
            assert warnings[0].startswith("n1: ") and words in warnings[0]
        for asked in ("gloo", "nccl"):
            job = Job(backend=asked)
            assert prove_job.backend_of(cluster(with_gpus("n1", 0, **more), job=job)) == (asked, ())

    def test_equal_words_of_many_nodes_are_one_warning(self) -> None:
        _, warnings = prove_job.backend_of(cluster(*(with_gpus(f"n{i}", None) for i in range(8))))
        assert warnings == (
            "n0, n1, n2, n3 and 4 more: only CPUs are tested: GPUs could not be counted: no answer in time",
        )


SOURCE = Path(__file__).parent.parent / "src" / "ringup"
ANSWERS = {
    "does the job use NCCL?": ("network/predictions.py", "uses_nccl"),
    "which variables belong to a rank?": ("model/__init__.py", "left_over"),
    "is an interface called as virtual ones are?": ("addresses.py", "has_virtual_name"),
    "does an address only reach its own host?": ("addresses.py", "is_loopback"),
    "is this a literal address?": ("addresses.py", "parsed"),
    "how are a few of many names shown?": ("units.py", "summarize_names"),
    "how are ranks shown?": ("units.py", "show_ranks"),
    "how are numbers shown as ranges?": ("units.py", "ranges"),
    "how is a count shown with its noun?": ("units.py", "plural"),
    "how is a duration shown?": ("units.py", "show_seconds"),
    "how is a size shown?": ("units.py", "show_bytes"),
    "how is foreign text made safe for a terminal?": ("units.py", "printable"),
    "how is a variable exported?": ("units.py", "export_line"),
    "is this value a secret?": ("secret_names.py", "is_secret"),
    "what does a text show of its secrets?": ("secrets.py", "redact"),
    "how does every JSON answer begin?": ("output/terminal.py", "envelope"),
    "which nodes does a command line name?": ("cli/request.py", "nodes_from"),
    "which job does a command line ask for?": ("cli/request.py", "job_from"),
    "how many ranks has a node?": ("model/__init__.py", "ranks_on"),
    "which folder is this run's own?": ("runtime/claims.py", "claim"),
}
"""The question, the module that answers it, and the function."""

COPIES = {
    "a list of virtual interfaces' names": (
        re.compile(r"veth"),
        {
            "addresses.py": "the answer",
            "model/__init__.py": "",
            "model/network.py": "a kind, not a name",
            "parse/interfaces.py": "from a name to a kind; compared below",
            "agent/facts/counters.py": "runs on nodes; compared below",
            "link_kinds.py": "the kernel's kinds, not names",
            "agent/facts/network.py": "kinds, not names",
            "network/reachability.py": "kinds, not names",
            "checks/paths.py": "a kind, not a name",
            "rules/problems.py": "a text",
            "logs/causes/interface.py": "a text",
        },
    ),
    "a count of what is left out": (
        re.compile(r" and \{[^{}]+\} more\b"),
        {
            "units.py": "the answer",
            "checks/ports.py": "of that run",
            "output/prediction_report.py": "nodes in lines; doubts in --json",
            "output/logs_report.py": "lines and files",
            "hosts/folding.py": "nodes of sets",
            "output/collective_report.py": "lines",
            "output/console.py": "lines",
        },
    ),
    "a plural": (
        re.compile(r"'s' \* \(|'s' if "),
        {
            "hang/verdict.py": "a verb",
            "output/console.py": "the line that `ringup logs` reads",
            "lint/rule.py": "without a count",
            "output/logs_report.py": "a noun of three words",
            "cli/clean.py": "without a count",
        },
    ),
    "a list of rank variables": (
        re.compile(r'"LOCAL_RANK",|"LOCAL_WORLD_SIZE",'),
        {
            "model/__init__.py": "the answer",
            "agent/snapshot/main.py": "runs on nodes; compared below",
            "agent/facts/system.py": "runs on nodes; compared below",
            "agent/rank/rank.py": "runs on nodes",
            "agent/collective/world.py": "runs on nodes: one variable with its default",
            "lint/ranks.py": "those a script may set itself",
            "lint/values.py": "what a value means, name by name",
            "lint/fixes.py": "names that a misspelt one may mean",
        },
    ),
    "torchrun's prefixes": (
        re.compile(r'"PET_"'),
        {
            "model/__init__.py": "the answer",
            "agent/facts/system.py": "runs on nodes; compared below",
        },
    ),
    "a backend by the number of GPUs": (
        re.compile(r'"nccl" if (?!asked|all|r\b).*gpu|any\([^)]*gpu_count[^)]*\) else "gloo"'),
        {},
    ),
}
"""What a second copy looks like, and the modules in which that is something else, with the reason."""


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered_by_one_function_alone(question: str) -> None:
    module, function = ANSWERS[question]
    definition = re.compile(rf"^ *def _*{function}\(", re.MULTILINE)
    defined = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        for _ in definition.finditer(path.read_text())
    ]
    # `Story.show_ranks` only hands on.
    assert [m for m in defined if (m, function) != ("logs/evidence.py", "show_ranks")] == [module]


@pytest.mark.parametrize("copied", COPIES)
def test_nobody_keeps_a_second_copy(copied: str) -> None:
    pattern, known = COPIES[copied]
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if pattern.search(path.read_text())
    }
    assert found <= set(known), f"{copied}: import it in {sorted(found - set(known))}"


def on_nodes(module: str, name: str) -> tuple[str, ...]:
    """A constant of a module of `agent/`, which nobody imports."""
    tree = ast.parse((SOURCE / "agent" / f"{module}.py").read_text())
    values = [a.value for a in tree.body if isinstance(a, ast.Assign) and ast.unparse(a.targets[0]) == name]
    found: tuple[str, ...] = ast.literal_eval(values[0])
    return found


def test_what_runs_on_nodes_knows_the_same_names() -> None:
    assert on_nodes("snapshot/main", "KEYS") == ranks.RANKS
    assert on_nodes("snapshot/main", "LOCAL") == ranks.LOCAL_RANKS
    names, prefixes = on_nodes("facts/system", "NAMES"), on_nodes("facts/system", "PREFIXES")
    assert [n for n in ranks.RANK_VARIABLES if n not in names and not n.startswith(prefixes)] == []
    assert set(ranks.TORCHRUN_PREFIXES) <= set(prefixes)
    assert set(prove_job.SLURM_GPUS) <= set(names)
    cards = [
        name for name in on_nodes("facts/counters", "NO_CARD") if not addresses.has_virtual_name(f"{name}0")
    ]
    assert cards == ["lo"]
    names = [name for starts in interfaces.BY_NAME.values() for name in starts]
    assert [name for name in names if not addresses.has_virtual_name(f"{name}0")] == ["bond"]


@pytest.mark.parametrize(
    ("address", "answer"),
    [("127.0.1.1", True), ("::1", True), ("::1%lo", True), ("::ffff:127.0.0.1", True)]
    + [(text, False) for text in ("10.0.0.1", "fe80::1%eth0", "::", "localhost", "127.0.0", "")],
)
def test_an_address_of_loopback_is_known_in_every_form(address: str, answer: bool) -> None:
    assert addresses.is_loopback(address) is answer
