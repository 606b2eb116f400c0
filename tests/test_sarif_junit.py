"""Findings as other programs read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from ringup import bundle
from ringup.cli.command_line import main
from ringup.lint import lint
from ringup.output.sarif_junit import GITHUB, SHOWN_PER_KIND, github, junit, sarif
from ringup.rules import Finding, Skipped
from tests import clusters

SCHEMA = json.loads(Path(__file__).with_name("schemas").joinpath("sarif-2.1.0-rtm.5.json").read_text())
"""From schemastore.org (Apache-2.0)."""
EVIL = "a%b\r\nc:d,e\x1b[2J\x00\ufffe\ud800<x>&\"'é"
SCRIPT = """import torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", rank=0, world_size=2)
"""


def findings(path: str = "jobs/train.py") -> list[Finding]:
    return lint({path: SCRIPT, "job.sh": "#!/bin/bash\nexport NCCL_IB_HCA=ib0\npython jobs/train.py\n"})


def evil(severity: str = "error") -> Finding:
    return Finding(
        where=f"{EVIL}:7",
        found=EVIL,
        wanted=EVIL,
        rule="script-not-readable",
        severity=severity,  # type: ignore[arg-type]
    )


def test_sarif_is_valid_and_has_what_github_asks_for() -> None:
    found = [*findings(), evil()]
    log = json.loads(json.dumps(sarif(found)))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len(found) == len(run["results"]) > 2
    for rule in rules:
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["helpUri"].endswith(f"/reference/rules/{rule['id']}/")
        assert rule["id"] and rule["shortDescription"]["text"] and rule["help"]["text"]
    for result, finding in zip(run["results"], found, strict=True):
        (location,) = result["locations"]
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.rule
        assert result["level"] == finding.severity
        assert result["message"]["text"] and all(result["partialFingerprints"].values())
        assert not location["physicalLocation"]["artifactLocation"]["uri"].startswith("/")
        assert location["physicalLocation"]["region"]["startLine"] >= 1
    assert '""' not in json.dumps(log)


def test_a_fingerprint_stays_when_lines_are_added_above() -> None:
    def prints(text: str) -> set[str]:
        (run,) = sarif(lint({"train.py": text}))["runs"]
        return {result["partialFingerprints"]["ringup/v1"] for result in run["results"]}

    assert prints(SCRIPT) == prints(f"\n\n\n{SCRIPT}") != set()


def test_an_absolute_path_has_no_base() -> None:
    (run,) = sarif(findings("/home/u/train.py"))["runs"]
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert {"uri": "/home/u/train.py"} in places


def test_annotations_are_escaped_and_say_where() -> None:
    (line,) = github([evil()])
    assert re.fullmatch(
        r"::error file=[^,:]+,line=7,endLine=7,title=script-not-readable::[^\r\n\x00\x1b]+", line
    )
    assert "%25" in line and "%3A" in line and "%2C" in line


def test_annotations_beyond_githubs_limit_are_counted() -> None:
    found = [evil("note"), *(evil("warning") for _ in range(30)), evil("error")]
    lines = github(found)
    kinds = [line[2:].partition(" ")[0] for line in lines]
    assert kinds == ["error", *["warning"] * SHOWN_PER_KIND, "notice"]
    assert "(20 more are not shown here)" in lines[SHOWN_PER_KIND]
    assert set(kinds) <= set(GITHUB.values())


def test_junit_has_a_suite_per_node_and_survives_hostile_words() -> None:
    found = [
        Finding(where="n1 eth0", found=EVIL, wanted="x", node="n1", rule="mtu-differs", severity="error"),
        Finding(where="n1 eth1", found="slow", wanted="x", node="n1", rule="link-slow", severity="warning"),
        Finding(where="both", found="no path", wanted="x", rule="no-path", severity="error"),
    ]
    skipped = [Skipped("gpu-memory-in-use", "n2", EVIL)]
    text = junit(["n1", "n2", "n3"], found, skipped)
    suites = {s.get("name"): s for s in ElementTree.fromstring(text)}
    counts = {n: (s.get("tests"), s.get("failures"), s.get("skipped")) for n, s in suites.items()}
    assert counts == {
        "n1": ("2", "1", "0"),
        "n2": ("1", "0", "1"),
        "n3": ("1", "0", "0"),
        "cluster": ("1", "1", "0"),
    }
    assert suites["n1"][0].get("classname") == "ringup.n1"
    failure = suites["n1"][0].find("failure")
    assert failure is not None and failure.text and "n1 eth0" in failure.text
    strict = ElementTree.fromstring(junit(["n1"], found, [], strict=True))
    assert strict[0].get("failures") == "2"


# -- on the command line ---------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["lint", *words])
    assert ended.value.code == code
    return capsys.readouterr().out


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs/.hidden").mkdir(parents=True)
    (tmp_path / "jobs/node_modules").mkdir()
    for name in ("train.py", "jobs/other.py", "jobs/.hidden/a.py", "jobs/node_modules/b.py"):
        (tmp_path / name).write_text(SCRIPT)
    (tmp_path / "jobs/notes.txt").write_text(SCRIPT)
    return tmp_path


def test_a_directory_stands_for_the_scripts_below_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(printed(capsys, ".", "train.py", "--format", "json"))
    assert {f["where"].rpartition(":")[0] for f in found["findings"]} == {"train.py", "jobs/other.py"}
    assert found["start"].keys() == {"train.py", "jobs/other.py"}
    assert json.loads(printed(capsys, ".", "train.py", "--json"))["findings"] == found["findings"]


def test_behind_two_dashes_a_start_line_and_its_script_are_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["NCCL_IB_HCA=ib0", "torchrun", "--nproc_per_node=8", "train.py", "--lr", "1"]
    found = json.loads(printed(capsys, "--json", "--", *line))
    assert [(x["file"], x["nodes"], x["ranks_per_node"]) for x in found["launches"]] == [("-", 1, 8)]
    rules = {(f["where"], f["rule"]) for f in found["findings"]}
    assert {("-:1", "rdma-device-name-missing"), ("train.py:2", "world-size-in-code")} <= rules
    same = json.loads(printed(capsys, "--json", "train.py"))["findings"]
    assert json.loads(printed(capsys, "--json", "--", "train.py", "--lr", "1"))["findings"] == same
    module = ["--json", "--", "torchrun", "-m", "jobs.other"]
    assert {f["where"] for f in json.loads(printed(capsys, *module))["findings"]} == {"jobs/other.py:2"}
    printed(capsys, "--", "torchrun", "gone.py", code=2)
    printed(capsys, "--", "-m", "gone.py", "--lr", "1", code=2)
    with pytest.raises(SystemExit):
        main(["lint", "--", "torchrun", "-m", "pkg.gone"])
    assert "pkg.gone was not read" in capsys.readouterr().err


def test_the_other_formats_hold_the_same_findings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "train.py", "--json"))["findings"]
    (run,) = json.loads(printed(capsys, "train.py", "--format=sarif"))["runs"]
    assert [r["ruleId"] for r in run["results"]] == [f["rule"] for f in found]
    lines = printed(capsys, "train.py", "--format=github").splitlines()
    assert len(lines) == len(found) and all(",line=2,endLine=2," in line for line in lines)


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# ringup: ignore", set()),
        ("# ringup: ignore[master-address-in-code, world-size-in-code]", {"master-port-in-code"}),
        (
            "# ringup:ignore[no-such-rule]",
            {"master-port-in-code", "master-address-in-code", "world-size-in-code"},
        ),
    ],
)
def test_a_comment_leaves_out_what_is_found_on_its_line(
    comment: str, left: set[str], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(SCRIPT.rstrip() + f"  {comment}\ndist.destroy_process_group()\n")
    code = int("world-size-in-code" in left)
    found = json.loads(printed(capsys, "train.py", "--json", code=code))["findings"]
    assert {f["rule"] for f in found} == left


def test_a_directory_of_everything_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ringup.cli.lint.MOST_FILES", 1)
    printed(capsys, ".", code=2)


def test_check_prints_junit_and_keeps_the_text_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle.save(clusters.healthy(), tmp_path / "facts.json")
    check = ["check", "--from", str(tmp_path / "facts.json")]
    with pytest.raises(SystemExit):
        main([*check, "--format", "junit"])
    printed = capsys.readouterr()
    suites = ElementTree.fromstring(printed.out)
    assert [suite.get("name") for suite in suites] == ["node0", "node1", "cluster"]
    with pytest.raises(SystemExit):
        main(check)
    assert capsys.readouterr().out.splitlines()[-1] == printed.err.splitlines()[-1] != ""


def test_no_format_shows_a_secret_of_a_finding() -> None:
    told = "nothing says which node is tcp://ada:tok3n@node0:29500"
    findings = [Finding("train.py:4", told, "node 0", severity="warning", rule="rendezvous-host-unsure")]
    shown = [json.dumps(sarif(findings)), *github(findings), junit(["node0"], findings, [])]
    assert all("(hidden)@node0" in text and "tok3n" not in text for text in shown)
