"""The README: renders on an index, its addresses lead somewhere, its picture is what a command prints."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import ringup

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]


def test_the_readme_renders_on_an_index_and_fetches_nothing_by_a_relative_address() -> None:
    markdown = pytest.importorskip("readme_renderer.markdown")
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    shown = markdown.render(text)
    if shown is None:
        pytest.skip("readme_renderer has no Markdown (`make dev` gets it)")
    addresses = re.findall(r'(?:src|href)="([^"]*)"', shown)
    assert len(addresses) > 10
    assert [a for a in addresses if not a.startswith(("https://", "#"))] == []
    assert "hang.svg" in shown and "<table>" in shown


def test_every_address_in_the_readme_is_a_page_or_a_file() -> None:
    generated = runpy.run_path(str(ROOT / "tools" / "docs.py"))["generated"]()
    for address in re.findall(r"https://[^\s)>\"]+", (ROOT / "README.md").read_text()):
        if address.startswith(ringup.SITE):
            page = address.removeprefix(ringup.SITE).partition("#")[0].strip("/")
            names = {f"{page}.md", f"{page}/index.md".lstrip("/")}
            assert names & {*generated} or any((ROOT / "docs" / name).is_file() for name in names), address
        elif (file := re.sub(r"^.*?/ringup(/blob)?/main/", "", address)) != address:
            assert (ROOT / file).is_file(), address
        else:
            assert address in URLS.values(), address


def test_the_picture_shows_what_the_command_prints_today(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import picture

    svg = picture.PICTURE.read_text()
    shown = picture.words(svg)
    assert shown == picture.words(picture.picture()), "run `make docs`"
    assert "http" not in re.sub(r"<!--.*?-->|xmlns=\S+", "", svg) and "<script" not in svg
    [alt] = re.findall(r'<img alt="([^"]+)"', (ROOT / "README.md").read_text())
    rule, confidence = re.findall(r"([\w-]+) \((\w+) confidence\)", " ".join(shown))[0]
    for words in (rule, f"{confidence} confidence", "rank 0", "hangs.py:19", "hangs.py:23"):
        assert words in alt and words in " ".join(shown)
