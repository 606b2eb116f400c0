"""The pages people read say what the program does."""

from __future__ import annotations

import functools
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringup import SITE, SOURCE
from ringup.cli import command_line
from ringup.rules import PROBLEMS

ROOT = Path(__file__).parent.parent


LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?[^)]*\)")


@functools.cache
def pages() -> dict[str, str]:
    """Path below the root -> text, without its code: every Markdown file, and the pages made for the site."""
    generated = runpy.run_path(str(ROOT / "tools" / "docs.py"))["generated"]()
    files = [
        *ROOT.glob("*.md"),
        *(p for folder in ("docs", "examples") for p in ROOT.glob(f"{folder}/**/*.md")),
    ]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    texts |= {f"docs/{name}": text for name, text in generated.items()}
    return {name: re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S) for name, text in texts.items()}


def anchors(text: str) -> set[str]:
    """As Python-Markdown names headings; a second one of the same name has "_1"."""
    found: list[str] = re.findall(r'<a (?:id|name)="([^"]+)"', text)
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words.replace("`", "")).strip().lower())
        found.append(slug if slug not in found else f"{slug}_{found.count(slug)}")
    return set(found)


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    texts = pages()
    dead = []
    for name, text in texts.items():
        for target in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            path, _, anchor = target.partition("#")
            there = os.path.normpath(str(Path(name).parent / path)) if path else name
            there = re.sub(r"^docs/schemas/\d+", "src/ringup/schemas", there)
            if re.match(r"(https?|mailto):", target):
                continue
            if not (there in texts or (ROOT / there).exists()) or (
                anchor and anchor not in anchors(texts[there])
            ):
                dead.append(f"{name}: {target}")
    assert dead == []
    assert len(texts) > 100


def test_every_page_of_the_site_has_its_place_in_the_menu() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def listed(part: Any) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [name for one in (part.values() if isinstance(part, dict) else part) for name in listed(one)]

    written = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    written -= {name for name in written if name.startswith("examples/")}
    assert written - set(listed(config["nav"])) == set()


def test_the_site_follows_the_systems_colours_at_every_visit() -> None:
    # The theme keeps its first choice in the browser: light or dark itself would stay for ever.
    palette = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["theme"]["palette"]
    assert palette[0] == {"media": "(prefers-color-scheme)"}
    assert [one.get("scheme") for one in palette[1:]] == ["default", "slate"]


def test_the_readme_names_every_command_and_no_other() -> None:
    named = set(re.findall(r"`ringup ([a-z]+)", (ROOT / "README.md").read_text()))
    assert named == set(command_line.COMMANDS)


def test_every_command_has_a_section_with_an_example_and_its_options() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    _, *sections = re.split(r"^## ringup ([a-z]+)$", page, flags=re.MULTILINE)
    assert sections[::2] == list(command_line.COMMANDS)
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        shown = re.findall(rf"^\$ .*\bringup {name}\b.*$", section, re.MULTILINE)
        assert len(shown) >= 2 and shown[-1] == f"$ ringup {name} --help"


def test_no_tracked_text_names_a_path_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = (
        listed.stdout.split()
        if listed.returncode == 0
        else [str(p.relative_to(ROOT)) for p in ROOT.glob("src/**/*.py")]
    )
    here = str(ROOT.parent) + "/"
    for name in names:
        path = ROOT / name
        if path.is_file() and len(here) > 6 and here not in ("/root/", "/home/", "/tmp/", "/var/tmp/"):
            assert here.encode() not in path.read_bytes(), name


def test_the_address_of_a_rule_that_ringup_prints_is_a_page_of_the_site(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    site, texts = config["site_url"].rstrip("/"), pages()
    assert site == SITE and {"Source": SOURCE} in config["nav"]
    assert command_line.dispatch(["explain", "clock-skew"]) == 0
    assert f"Page: {site}/reference/rules/clock-skew/\n" in capsys.readouterr().out
    for problem in PROBLEMS.values():
        assert problem.page.replace(site, "docs").rstrip("/") + ".md" in texts


ELSEWHERE = {"doc/PERFORMANCE.md": "nccl-tests", "docs/configuration/nic-health-monitor.md": "NVSentinel"}
"""Pages of other projects, and whose they are."""


def test_every_page_that_the_code_cites_exists() -> None:
    cited = 0
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        for match in re.finditer(r"[\w./-]*\w\.md\b", text):
            if match[0] in ELSEWHERE:
                assert ELSEWHERE[match[0]] in text[max(0, match.start() - 80) : match.end()], path
            elif match[0] != "torchrun.md":  # a file somebody edits
                cited += 1
                assert (ROOT / match[0]).is_file(), f"{path} cites {match[0]}"
    assert cited > 2
