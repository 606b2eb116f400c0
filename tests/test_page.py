"""The page of `report` and `--html`: nothing is fetched, nothing runs, words stay words."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import bundle
from ringup.cli.command_line import dispatch
from ringup.collective_tests import BandwidthReport, LinkRate, Pair, Row, Slow
from ringup.draw import boxes, curve, lanes, matrix
from ringup.model import Gpu, Interpreter, RdmaPort
from ringup.output import console, html_page, network_pictures
from tests import clusters, run_folders
from tests.run_folders import Planted, call

EVIL = (
    "</script><script>document.title='bad'</script>"
    "<img src=x onerror=\"document.title='bad'\"><svg onload=alert(1)>"
)
VOID = {"meta", "img", "br", "path", "rect", "circle"}
OURS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "div",
        "h1",
        "h2",
        "dl",
        "dt",
        "dd",
        "pre",
        "code",
    ),
    *(
        "strong",
        "small",
        "p",
        "table",
        "tr",
        "th",
        "td",
        "span",
        "figure",
        "figcaption",
        "details",
        "summary",
        "img",
    ),
    *("svg", "defs", "pattern", "rect", "path", "text", "circle"),
}


class Reader(HTMLParser):
    """Takes a page apart; raises AssertionError where a tag is not closed, or is none of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in OURS, tag
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> Reader:
    """A page's parts, once it was seen that it needs nothing and runs nothing."""
    reader = Reader()
    reader.feed(page)
    first = next(attrs for tag, attrs in reader.tags if tag == "meta")
    assert first["http-equiv"] == "Content-Security-Policy"
    assert str(first["content"]).startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    for tag, attrs in reader.tags:
        for name, value in attrs.items():
            assert not name.startswith("on") and name != "href", (tag, name)
            assert name != "src" or str(value).startswith("data:image/png;base64,")
    links = re.findall(r"url\(([^)]*)\)|@import", page)
    assert set(links) <= {f"#p-{name}" for name in ("wait", "init", "launch", "bad", "unknown")}
    return reader


def reported(*paths: Path | str, to: Path) -> str:
    assert dispatch(["report", *map(str, paths), "-o", str(to), "--quiet"]) == 0
    return to.read_text(encoding="utf-8")


def hang(folder: Path, ranks: int = 4, missing: int = 2) -> Path:
    planted = [
        Planted(
            n,
            f"node{n // 2}",
            output=[(6.0 + s, f"step {s}") for s in range(3)],
            ended_s=31.0,
            code=-15,
            calls=[call(1, 8.0, 8.1)] + ([] if n == missing else [call(2, 10.0, None)]),
        )
        for n in range(ranks)
    ]
    return run_folders.write(folder, planted, "hung", **run_folders.hang(missing))


def test_the_page_of_a_hang_begins_with_it_and_marks_the_planted_rank(tmp_path: Path) -> None:
    page = reported(hang(tmp_path / "run"), to=tmp_path / "r.html")
    reader = read(page)
    assert "The run hung after 40 s" in page.partition("</h1>")[0]
    rows = re.findall(r'<tr class="named">.*?</tr>', page, re.DOTALL)
    assert len(rows) == 1 and "rank 2" in rows[0] and "data.py:14" in rows[0]
    assert page.index("<h1>") < page.index("rank-fell-behind") < page.index("<h2>Timeline")
    assert sum(attrs.get("role") == "img" for _, attrs in reader.tags) == 4


def test_times_on_the_page_are_those_of_run_json(tmp_path: Path) -> None:
    failure = {"node": "node0", "rank": 1, "code": 1, "what": "rank 1 on node0: exit code 1", "at_s": 12.5}
    ranks = [Planted(0, ended_s=25.0, code=-15), Planted(1, ended_s=12.6, code=1)]
    folder = run_folders.write(tmp_path / "run", ranks, "rank-failed", first_failure=failure, seconds=26.0)
    page = reported(folder, to=tmp_path / "r.html")
    read(page)
    sign = re.search(r'<text class="sign" x="([\d.]+)%"[^>]*>✖<title>([^<]*)', page)
    assert sign and float(sign[1]) == pytest.approx(100 * 12.5 / 25.0) and sign[2] == "first failure, 12 s"


@pytest.mark.parametrize("where", ["node", "log", "op", "env"])
def test_hostile_words_stay_words(tmp_path: Path, where: str) -> None:
    ranks = [
        Planted(
            0,
            EVIL.replace("/", "\\") if where == "node" else "node0",
            output=[(3.0, EVIL if where == "log" else "x")],
            ended_s=9.0,
            code=-15,
            calls=[call(1, 5.0, None, op=EVIL if where == "op" else "all_reduce", where=EVIL)],
        )
    ]
    for one in ranks:
        one.node = one.node[:200]
    if where == "node":
        ranks[0] = replace(ranks[0], output=())
    folder = run_folders.write(tmp_path / "run", ranks, "hung", **run_folders.hang(0, EVIL))
    if where == "env":
        content = json.loads((folder / "run.json").read_text())
        content["plan"]["env"] = [{"name": EVIL, "value": EVIL, "because": EVIL, "node": EVIL}]
        (folder / "run.json").write_text(json.dumps(content))
    reader = read(reported(folder, to=tmp_path / "r.html"))
    assert "document.title='bad'" in "".join(reader.words)


@given(st.text(max_size=60))
def test_no_text_opens_a_tag_in_a_picture(text: str) -> None:
    pictures = [
        lanes.lane(text, 2.0, [lanes.Bar("work", 0, 1)], [0.5], [0.7], [lanes.Sign(1, text, text)]),
        boxes.boxes(
            [boxes.Box(text, text)], [boxes.Box(text, text, True)], [boxes.Tie(0, 0, text, True)], text
        ),
        curve.curves({text: [(4, 1), (8, 2)]}, 2.0, text),
        matrix.image([[1]], text),
    ]
    for picture in pictures:
        read_alone = Reader()
        read_alone.feed(picture)
        assert all(tag in OURS for tag, _ in read_alone.tags)


@given(st.floats(), st.one_of(st.none(), st.floats()))
def test_no_rate_is_too_odd_for_a_curve(rate: float, limit: float | None) -> None:
    picture = curve.curves({"x": [(4, rate), (8, 2)]}, limit, "w")
    assert not picture or ElementTree.fromstring(picture).tag == "svg"


def test_pictures_are_svg_that_an_xml_reader_takes() -> None:
    picture = lanes.lane("a & b", 10.0, [lanes.Bar("wait", 1, 2)], range(9), range(9))
    root = ElementTree.fromstring(picture)
    assert root.attrib["role"] == "img" and root[0].tag == "title" and root[0].text == "a & b"
    bar = root.find("rect")
    assert bar is not None and bar.attrib["x"] == "10.00%" and bar.attrib["width"] == "10.00%"


def pixels(image: bytes) -> list[bytes]:
    """Rows of palette numbers of a PNG."""
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(image):
        (size,) = struct.unpack(">I", image[at : at + 4])
        parts[image[at + 4 : at + 8]] = image[at + 8 : at + 8 + size]
        at += 12 + size
    width, height = struct.unpack(">II", parts[b"IHDR"][:8])
    raw = zlib.decompress(parts[b"IDAT"])
    return [raw[row * (width + 1) + 1 : (row + 1) * (width + 1)] for row in range(height)]


def test_an_image_has_the_cells_of_its_matrix() -> None:
    cells = [[0, 1, 2], [3, 4, 0], [1, 1, 1]]
    assert pixels(matrix.png(cells)) == [bytes(row) for row in cells]
    assert pixels(matrix.png(cells, scale=2))[3] == bytes([3, 3, 4, 4, 0, 0])


def many(count: int, bad: str = "") -> console.Report:
    """A check of so many nodes; no path to `bad` works."""
    cluster = clusters.healthy()
    link = cluster.links[0]
    names = [f"n{number}" for number in range(count)]
    nodes = tuple(replace(cluster.nodes[0], name=name) for name in names)
    links = tuple(
        replace(link, src=a, dst=b, ok=b != bad, error="timed out" * (b == bad))
        for a in names
        for b in names
        if a != b
    )
    return console.Report(replace(cluster, nodes=nodes, links=links), [], [], None)


def test_the_row_or_column_that_fails_is_named() -> None:
    figure = next(network_pictures.of_cluster(many(4, "n2")))
    assert figure.words.startswith("9 of 12 paths work (row: from, column: to). No path to n2 works.")
    assert [row[2][1] for row in figure.cells] == ["bad", "bad", "same", "bad"]


def test_a_path_much_slower_than_the_others_is_named() -> None:
    report = many(4)
    links = [replace(link, rtt_ms=0.2) for link in report.cluster.links]
    links[5] = replace(links[5], rtt_ms=12.0)
    figure = next(
        network_pictures.of_cluster(report._replace(cluster=replace(report.cluster, links=tuple(links))))
    )
    slow = f"{links[5].src} to {links[5].dst} {links[5].dst_interface} (12 ms)"
    assert figure.words.endswith("Median round trip: 0.2 ms.")
    assert list(figure.lines) == [f"Much slower: {slow}."]


def test_more_than_32_nodes_are_an_image_with_the_words_as_its_alternative() -> None:
    page = html_page.check_page(many(40, "n7"))
    image = next(attrs for tag, attrs in read(page).tags if tag == "img")
    assert "No path to n7 works." in str(image["alt"])
    assert len(page) < 100_000


def test_what_is_not_known_of_a_node_is_not_called_absent() -> None:
    lost = clusters.changed(
        clusters.healthy(2),
        "node0",
        unknown=dict.fromkeys(
            ("interpreter", "gpu_count", "gpus", "gpu_driver", "cpu_count"), "no answer in time"
        ),
        interpreter=Interpreter(""),
        cpu_count=0,
    )
    row = html_page.node_row(lost.nodes[0])
    assert row[2:] == ("unknown", "unknown", "unknown")
    assert html_page.node_row(lost.nodes[1])[3:] == ("2.13.0", "0")
    (table,) = html_page._versions(lost.nodes)
    assert ("torch", "unknown", "node0", "") in table.rows
    figures = [*network_pictures.of_cluster(console.Report(lost, [], [], None))]
    words = [figure.words for figure in figures]
    assert any("The GPUs are not known." in one for one in words)
    assert any("CPUs not known" in one.picture for one in figures)
    assert not any("0 CPUs" in one.picture for one in figures)
    assert sum("No GPU was found." in one for one in words) == len(words) - 2


def test_what_nodes_say_of_themselves_holds_no_control_characters_in_a_picture() -> None:
    evil = EVIL + "\x1b[2J\u202e"
    report = many(2)
    node = report.cluster.nodes[0]
    ports = (RdmaPort(evil, 1, evil, link_layer=evil, rate_gbit_s=100.0),)
    gpus = (Gpu(0, evil),)
    interfaces = tuple(replace(one, name=evil) for one in node.interfaces)
    nodes = (
        replace(node, name=evil, rdma_ports=ports, gpus=gpus, interfaces=interfaces),
        report.cluster.nodes[1],
    )
    page = html_page.check_page(report._replace(cluster=replace(report.cluster, nodes=nodes)))
    read(page)
    assert "\x1b" not in page and "\u202e" not in page and "Node map" in page


def bench(**known: object) -> BandwidthReport:
    rows = tuple(Row("all_reduce", 1 << n, 10.0, n / 2, n / 2, True, 5, (1.0,), 1.0) for n in range(10, 20))
    pairs = tuple(
        Pair((a, b), 1.0 if "n2" in (a, b) else 9.0)
        for a in ("n0", "n1", "n2", "n3")
        for b in ("n0", "n1", "n2", "n3")
        if a < b
    )
    slow = (Slow("n2", "slow with every other node", 1.0, 9.0),)
    made = BandwidthReport(
        ("all_reduce",),
        4,
        4,
        "gloo",
        rows,
        pairs,
        LinkRate(100.0, "ethtool"),
        11.0,
        "slow",
        "n2 is slow",
        slow,
        (),
        {},
    )
    return replace(made, **known)  # type: ignore[arg-type]


def test_a_slow_node_among_four_is_marked_in_the_pairs_and_in_the_verdict() -> None:
    page = html_page.Page("bench")
    html_page.add_bench(page, bench())
    text = html_page.render(page)
    read(text)
    assert "Bandwidth slow: n2 is slow" in text.partition("</h1>")[0]
    figure = page.figures[1]
    assert figure.words.endswith("Slow: n2.")
    assert [[how for _, how in row] for row in figure.cells][2] == ["bad", "bad", "same", "bad"]
    assert "limit 11" in page.figures[0].picture


def test_a_pair_that_lacked_cpu_time_is_not_called_slow() -> None:
    starved = tuple(replace(pair, starved=0.9) for pair in bench().pairs)
    figure = list(network_pictures.of_bench(bench(pairs=starved, slow=())))[1]
    assert {how for row in figure.cells for _, how in row} == {"", "same"}
    assert figure.words.endswith("Pairs in brackets lacked CPU time.")


def test_pairs_of_more_than_32_nodes_are_an_image_with_the_slow_and_the_starved_marked() -> None:
    names = [f"n{number}" for number in range(40)]
    pairs = [
        Pair((a, b), 1.0 if "n7" in (a, b) else 9.0)
        for a in names
        for b in names
        if names.index(a) < names.index(b)
    ]
    pairs[0] = replace(pairs[0], busbw_gbyte_s=2.0, starved=0.9)  # n0 - n1
    pairs = [pair for pair in pairs if pair.nodes != ("n3", "n4")]
    figure = list(network_pictures.of_bench(bench(pairs=tuple(pairs), slow=(Slow("n7", "slow", 1.0, 9.0),))))[
        1
    ]
    data = re.search(r"base64,([^\"]*)", figure.picture)
    assert data and figure.words.endswith("Slow: n7.")
    rows = pixels(b64decode(data[1]))
    scale = len(rows) // 40

    def cell(a: int, b: int) -> int:
        return max(rows[a * scale + 1][b * scale : (b + 1) * scale])

    fast = matrix.rate(1.0)
    assert [cell(7, n) for n in (0, 7, 39)] == [matrix.FAILS, matrix.SAME, matrix.FAILS]
    assert [cell(0, n) for n in (1, 2, 7)] == [matrix.PARTLY, fast, matrix.FAILS]
    assert cell(3, 4) == cell(4, 3) == matrix.NOT_TRIED and cell(39, 38) == fast
    assert figure.lines[0].startswith("Nodes in order, from n0 ") and "0 to 9 GB/s" in figure.lines[1]
    assert figure.lines[2].startswith("Slowest: n") and figure.lines[2].count("n7 1 GB/s") == 7


def test_an_hour_of_64_ranks_fits_one_megabyte_where_no_two_ticks_join(tmp_path: Path) -> None:
    ranks = [
        Planted(
            n,
            f"node{n // 8}",
            output=[(7.2 + s * 14.4, f"step {s} loss 0.1") for s in range(250)],
            ended_s=3605.0,
            code=0,
            calls=[call(s, s * 14.4, s * 14.4 + 1) for s in range(1, 250)],
        )
        for n in range(64)
    ]
    folder = run_folders.write(tmp_path / "run", ranks, seconds=3610.0)
    bundle.save(many(8).cluster, folder / "facts.json")
    page = reported(folder, to=tmp_path / "r.html")
    assert len(page.encode()) <= 1_000_000, len(page)
    assert page.count('scope="row">rank ') == 64


def test_a_check_a_run_and_logs_give_the_same_page(tmp_path: Path) -> None:
    bundle.save(clusters.healthy(), tmp_path / "facts.json")
    folder = hang(tmp_path / "run")
    shutil.copy(tmp_path / "facts.json", folder / "facts.json")
    whole = reported(folder, to=tmp_path / "r.html")
    facts = reported(tmp_path / "facts.json", to=tmp_path / "f.html")
    assert (
        dispatch(
            ["check", "--from", str(tmp_path / "facts.json"), "--html", str(tmp_path / "c.html"), "--quiet"]
        )
        == 0
    )
    assert dispatch(["logs", str(folder), "--html", str(tmp_path / "l.html"), "--quiet"]) == 1
    check = (tmp_path / "c.html").read_text(encoding="utf-8")
    logs = (tmp_path / "l.html").read_text(encoding="utf-8")
    heads = [re.findall(r"<h2>(.*?)</h2>", page) for page in (whole, facts, check, logs)]
    assert heads[1] == heads[2] and heads[3] == ["Timeline"]
    assert heads[0] == [*heads[3], *heads[1]]
    for page in (whole, facts, check, logs):
        read(page)


def test_a_restarted_run_that_finished_is_no_failure_on_its_page(tmp_path: Path) -> None:
    run = tmp_path / "run"
    failure = {"node": "node0", "rank": 0, "code": 1, "what": "rank 0 on node0: exit code 1", "at_s": 3.5}
    text = [(3.0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")]
    planted = [Planted(0, output=text, ended_s=4.0, code=1)]
    run_folders.write(run / "attempt-1", planted, "rank-failed", first_failure=failure, seconds=5.0)
    run_folders.write(run / "attempt-2", [Planted(0, output=[(3.0, "step 1")], ended_s=9.0, code=0)])
    row = {"nodes": ["node0"], "started": 1.0, "ended": 9.0, "because": "another batch"}
    attempts = [
        {
            **row,
            "number": 1,
            "outcome": "rank-failed",
            "decision": "same",
            "cause": {"rule": "gpu-out-of-memory"},
        },
        {**row, "number": 2, "outcome": "ok", "decision": "finished", "cause": None},
    ]
    run_folders.write(run, [Planted(0, ended_s=9.0, code=0)], seconds=20.0, attempts=attempts)
    page = reported(run, to=tmp_path / "r.html")
    read(page)
    head, _, rest = page.partition("</h1>")
    assert head.endswith("The run finished after 20 s, in attempt 2: all ranks exited with 0")
    assert "attempt 1 of 2, the first that failed" in rest and "Attempts (2)" in rest


def test_a_run_that_is_named_is_found_and_without_a_name_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hang(tmp_path / "runs" / "a")
    assert dispatch(["report", "20260101-000000-abcd", "--quiet"]) == 0
    by_name = Path("report.html").read_text(encoding="utf-8")
    assert dispatch(["report", "--quiet"]) == 0
    assert Path("report.html").read_text(encoding="utf-8") == by_name


# -- in a browser ------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")


def browsed(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [
        *(
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--enable-logging=stderr",
        ),
        *(f"--user-data-dir={page.parent / 'profile'}", *options, f"file://{page}"),
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)


def console_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if ":CONSOLE" in line]


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[dict[str, Path]]:
    folder = hang(tmp_path / "run")
    bundle.save(clusters.healthy(), folder / "facts.json")
    reported(folder, to=tmp_path / "hang.html")
    failure = {"node": "n", "rank": 0, "code": 1, "what": EVIL, "at_s": 8.0}
    planted = [Planted(0, "n", output=[(3.0, EVIL)], ended_s=9.0, code=1)]
    known = {"first_failure": failure, "seconds": 9.0, "exit_code": 1}
    evil = run_folders.write(tmp_path / "evil", planted, "rank-failed", **known)
    reported(evil, to=tmp_path / "evil.html")
    yield {"hang": tmp_path / "hang.html", "evil": tmp_path / "evil.html"}


@pytest.mark.slow
@needs_browser
def test_a_browser_runs_nothing_asks_for_nothing_and_reports_no_error(pages: dict[str, Path]) -> None:
    log = pages["hang"].with_name("net.json")
    for name, page in pages.items():
        done = browsed(page, "--dump-dom", f"--log-net-log={log}")
        assert console_lines(done.stderr) == [], name
        assert "<title>ringup report: The run " in done.stdout
        named = re.findall(r'<tr class="named"><th scope="row">▶ (rank \d+)', done.stdout)
        assert named == [{"hang": "rank 2", "evil": "rank 0"}[name]]
        urls = set(re.findall(r'"url":"([^"]+)"', log.read_text(errors="replace")))
        assert not [url for url in urls if page.name not in url and url.startswith(("file:", "data:text"))]


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_is_light_or_dark_as_the_system_wants(pages: dict[str, Path], width: int) -> None:
    corner = {}
    for scheme in (0, 1):
        shot = pages["hang"].with_name(f"{scheme}.png")
        browsed(
            pages["hang"], f"--screenshot={shot}", f"--window-size={width},900",
            f"--blink-settings=preferredColorScheme={scheme}", "--hide-scrollbars",
        )  # fmt: skip
        assert struct.unpack(">II", shot.read_bytes()[16:24]) == (width, 900)
        corner[scheme] = zlib.crc32(shot.read_bytes())
    assert corner[0] != corner[1]
