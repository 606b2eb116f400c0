"""
Build the documentation site from docs/ and from pages generated here: build/docs, then build/site.

    python tools/docs.py            by zensical
    python tools/docs.py --twice    and again by ProperDocs, so that either may die

Both fail for a dead link, a missing anchor and a page that `nav` of mkdocs.yml names but that does not exist.
Generated: a page for each rule, with the finding of its test, the causes of `ringup logs`, the Python API.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
Pages = dict[str, str]
"""Path below docs -> text."""


def text(words: str) -> str:
    """Words of a rule as Markdown: what is not in backticks means nothing else."""
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(p if p.startswith("`") else re.sub(r"([\\*<\[]|\b_|_\b)", r"\\\1", p) for p in parts)


def fenced(lines: str, kind: str = "text") -> list[str]:
    return [f"```{kind}", *lines.strip("\n").splitlines(), "```", ""]


CASES = ("rule_cases_gpu", "rule_cases_machine", "rule_cases_rdma", "rule_cases", "logs_said", "test_lint")


class Registry:
    """Every rule that ringup knows, who finds it, and the cases of its tests."""

    def __init__(self) -> None:
        sys.path.insert(0, str(ROOT))
        import ringup.checks
        import ringup.lint
        from ringup.lint.rule import ACROSS, SCRIPT, SHELL
        from ringup.logs.causes import CAUSES
        from ringup.output.terminal import Style
        from ringup.recovery.table import ROWS
        from ringup.rules import CHECKS, PROBLEMS

        self.problems = sorted(PROBLEMS.values(), key=lambda p: p.name)
        self.checks, self.causes, self.restarts = CHECKS, CAUSES, ROWS
        self.faults = {*SCRIPT, *SHELL, *ACROSS, ringup.lint.NOT_READABLE.name}
        cases = {name: importlib.import_module(f"tests.{name}") for name in CASES}
        self.clusters = cases["rule_cases"].FIRES
        self.files = {rule: cases[0][0] for rule, cases in cases["test_lint"].CASES.items()}
        self.excerpts = dict(reversed(cases["logs_said"].SAID))
        self.style = Style(io.StringIO())
        self.style.width = 80

    def finders(self, name: str) -> list[str]:
        found = {"check": self.checks, "logs": self.causes, "lint": self.faults}
        return [command for command, names in found.items() if name in names]

    def checked(self, name: str) -> list[str]:
        """What `check` prints for the case of the rule's test."""
        from ringup.output.console import finding_lines, folded
        from ringup.rules import run_checks

        found = folded(run_checks(self.clusters[name](), {name: self.checks[name]})[0])
        printed = "\n\n".join("\n".join(finding_lines(finding, self.style)) for finding in found[:2])
        return ["From `ringup check`:", "", *fenced(printed)]

    def linted(self, name: str) -> list[str]:
        """The files of the rule's test and what `lint` prints for them."""
        from ringup import lint
        from ringup.output.console import finding_lines

        files = self.files.get(name)
        if not files:
            return []
        lines = ["`ringup lint` reads:", ""]
        for path, content in files.items():
            lines += fenced(content, "python" if path.endswith(".py") else "sh")
        found = [finding for finding in lint.lint(files) if finding.rule == name]
        return [*lines, "and prints:", "", *fenced("\n".join(finding_lines(found[0], self.style)))]

    def logged(self, name: str) -> list[str]:
        """The log of the cause's test and what `logs` prints for it."""
        from ringup.logs.read import read_logs
        from ringup.output.logs_report import cause_lines

        excerpt = self.excerpts.get(name)
        if not excerpt:
            return []
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "job.log").write_text(excerpt + "\n", encoding="utf-8")
            read = read_logs([f"{folder}/job.log"])
        (first, *_) = [cause for cause in read.causes if cause.rule == name]
        printed = "\n".join(cause_lines(first, read.story, self.style)).replace(f"{folder}/", "")
        lines = ["`ringup logs` reads:", "", *fenced(shortened(excerpt)), "and prints:", ""]
        return [*lines, *fenced(printed)]


def shortened(excerpt: str, most: int = 14) -> str:
    lines = excerpt.splitlines()
    return "\n".join(
        lines if len(lines) <= most else [*lines[: most - 1], f"... {len(lines) - most + 1} more lines"]
    )


SCOPES = {
    "": "All jobs.",
    "machines": "Jobs on several machines.",
    "gpus": "Jobs that may use GPUs (not with `--backend gloo`).",
    "rdma": "Jobs on several machines that may use GPUs (not with `--backend gloo`); a note without NCCL.",
}
SILENCE = {
    "check": "`ringup check` always lists it. Only an error stops `ringup run`, except with `--anyway`.",
    "lint": "`ringup lint`: `# ringup: ignore[{name}]` at the end of the line leaves it out.",
    "logs": "`ringup logs` names the first cause alone; `--all` shows the others.",
}
LOWER = (
    "torch",
    "torchrun",
    "ringup",
    "nccl",
    "ssh",
    "chrony",
    "numactl",
    "srun",
    "sbatch",
    "docker",
    "kubectl",
)


def sentence(words: str) -> str:
    """With a capital, where it begins with a plain word."""
    first = words.partition(" ")[0]
    return text(words[0].upper() + words[1:] if first.isalpha() and first not in LOWER else words)


def rule_page(known: Registry, problem: Any) -> str:
    """One rule: what it looks at, why it matters, an example, the fix."""
    name, finders = problem.name, known.finders(problem.name)
    by = ", ".join(f"`ringup {command}`" for command in finders)
    lines = [
        f"# {name}",
        "",
        text(problem.summary),
        "",
        f"At worst: **{problem.severity}**. Found by {by}.",
        "",
    ]
    for label, title in {"Why": "Why it matters", "Fix": "Fix", "In logs": "In logs"}.items():
        parts = [(case, sentence(told)) for of, case, told in problem.parts if of == label]
        lines += [f"## {title}", ""] if parts else []
        lines += [line for case, told in parts for line in (f"**{case}:** {told}" if case else told, "")]
    if name in known.restarts:
        lines += ["## Restart", "", sentence(known.restarts[name].sentence), ""]
    examples = {"check": known.checked, "lint": known.linted, "logs": known.logged}
    shown = [line for command in finders for line in examples[command](name)]
    if shown:
        lines += ["## Example", "", *shown]
    if name in known.checks:
        rule = known.checks[name]
        reads = ", ".join(f"`{fact}`" for fact in rule.reads)
        lines += ["## What it looks at", "", SCOPES[rule.scope], ""]
        if reads:
            lines += [
                f"Facts of each node, as `ringup check --json` names them: {reads}. A node where one of them "
            ]
            lines[-1] += "could not be read is listed as not checked."
            lines += [""]
    lines += ["## Silence it", "", *(f"* {SILENCE[command].format(name=name)}" for command in finders), ""]
    return "\n".join([*lines, "[All rules](index.md)", ""])


def table(known: Registry, names: set[str], folder: str = "") -> list[str]:
    rows = ["| rule | problem |", "| --- | --- |"]
    for problem in known.problems:
        if problem.name in names:
            by = ", ".join(known.finders(problem.name))
            link, words = f"[{problem.name}]({folder}{problem.name}.md)", text(problem.summary)
            rows.append(f"| {link} | {words} ({problem.severity}; {by}) |")
    return rows


RULES = """# Rules

{count} problems that ringup can name, each with a page; `ringup explain NAME` prints its text. One name means
the same problem in `check`, `lint` and `logs`. In brackets: its worst severity and the commands that find it.
"""
ROOT_CAUSES = """# Root causes in logs

{count} causes that `ringup logs` can name, and `ringup run` at the end of a failed run. Each has the page of
its rule: `check` and `lint` find many of them before a job starts, under the same name.
"""


def rule_pages() -> Pages:
    """A page for each rule, the list of them, and the list of those that logs show."""
    known = Registry()
    names, causes = {problem.name for problem in known.problems}, set(known.causes)
    return {
        **{f"reference/rules/{problem.name}.md": rule_page(known, problem) for problem in known.problems},
        "reference/rules/index.md": "\n".join([RULES.format(count=len(names)), *table(known, names), ""]),
        "reference/causes.md": "\n".join(
            [ROOT_CAUSES.format(count=len(causes)), *table(known, causes, "rules/"), ""]
        ),
    }


# -- the Python API ------------------------------------------------------------------------------

TYPES = (
    *("ringup.model.Cluster", "ringup.model.Node", "ringup.model.Interface", "ringup.model.Link"),
    *("ringup.model.Job", "ringup.rules.Finding", "ringup.rules.Fix", "ringup.rules.Skipped"),
    *(
        "ringup.planning.Plan",
        "ringup.planning.EnvVar",
        "ringup.logs.read.Diagnosis",
        "ringup.logs.rule.Cause",
    ),
)
"""What the functions give and take."""


def fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of each public field and property of a class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            said = following.value if isinstance(following, ast.Expr) else None
            words = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
            yield node.target.id, ast.unparse(node.annotation), " ".join(words.split())
        elif isinstance(node, ast.FunctionDef) and node.name[0] != "_" and ast.get_docstring(node):
            returns = ast.unparse(node.returns) if node.returns else ""
            given = ast.unparse(node.args).partition(", ")[2]
            arguments = "" if node.decorator_list else f"({given})"
            yield node.name + arguments, returns, " ".join((ast.get_docstring(node) or "").split())


def python_page() -> str:
    """Functions and types that `import ringup` promises, from their docstrings."""
    import ringup

    lines = [
        "# Python API",
        "",
        "Names below and in `ringup.__all__` keep their meaning; other modules may change.",
        "",
    ]
    lines += fenced(EXAMPLE, "python")
    for name in ringup.__all__:
        one = getattr(ringup, name)
        if callable(one):
            lines += [
                f"## ringup.{name}",
                "",
                *fenced(f"{name}{inspect.signature(one)}".replace("'", ""), "python"),
            ]
            lines += [text(inspect.getdoc(one) or ""), ""]
    for path in TYPES:
        module, _, name = path.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        doc = inspect.getdoc(cls) or ""
        lines += [
            f"## {name}",
            "",
            f"`{path}`",
            "",
            *([text(doc), ""] if not doc.startswith(f"{name}(") else []),
        ]
        lines += ["| field | type | |", "| --- | --- | --- |"]
        rows = ((f, kind.replace("|", "\\|"), words) for f, kind, words in fields(cls))
        lines += [*(f"| `{f}` | `{kind}` | {text(words)} |" for f, kind, words in rows), ""]
    return "\n".join(lines)


EXAMPLE = """
import ringup

cluster = ringup.collect("node[1-8]")             # facts and pairs, frozen
findings, not_checked = ringup.judge(cluster)
plan = ringup.decide(cluster)                     # None when nothing can start
diagnosis = ringup.read_logs("runs/RUN")
"""


def generated() -> Pages:
    """Each page that is not written by hand."""
    return {**rule_pages(), "reference/python.md": python_page()}


def main() -> int:
    """Build; the exit code of the first builder that fails."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", SOURCES, ignore=shutil.ignore_patterns("examples"))
    from ringup.output.terminal import SCHEMA

    shutil.copytree(ROOT / "src" / "ringup" / "schemas", SOURCES / "schemas" / str(SCHEMA))
    for name, page in generated().items():
        (SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
        (SOURCES / name).write_text(page, encoding="utf-8")
    commands = [["zensical", "build", "--strict", "--clean"]]
    if "--twice" in sys.argv[1:]:
        other = ["--theme", "mkdocs", "--site-dir", str(SITE) + "-properdocs"]
        commands.append(["properdocs", "build", "--strict", "--quiet", "--config-file", "mkdocs.yml", *other])
    for command in commands:
        if code := subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode:
            return code
    return outside()


FETCHED = re.compile(r"<(?:script|img|iframe|link[^>]*rel=\"?stylesheet)[^>]*(?:src|href)=\"?https?:[^>]*>")


def outside() -> int:
    """1 when a page of the site fetches something from elsewhere, naming it."""
    found = [
        f"{p}: {m}" for p in SITE.rglob("*.html") for m in FETCHED.findall(p.read_text(encoding="utf-8"))
    ]
    found += [
        str(p) for p in SITE.rglob("*.html") if 'data-md-component="source"' in p.read_text(encoding="utf-8")
    ]
    print("\n".join(f"fetches from elsewhere: {one}" for one in found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
