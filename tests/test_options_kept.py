"""An option that a command takes does something there, and a file that cannot be written is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli import collective
from ringup.cli.command_line import dispatch, parser_for
from ringup.errors import UsageError
from ringup.model import Job
from tests import clusters as c


@pytest.fixture
def facts(tmp_path: Path) -> str:
    """Two healthy nodes, of which one did not tell its clock."""
    nodes = c.healthy().nodes
    shy = replace(nodes[1], unknown={"clock": "no answer"})
    bundle.save(replace(c.healthy(), nodes=(nodes[0], shy)), tmp_path / "facts.json")
    return str(tmp_path / "facts.json")


def test_a_strict_run_starts_nothing_while_something_was_not_checked(
    facts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["run", "--from", facts, "--dry-run", "--nproc", "1", "--strict"]
    assert dispatch([*asked, "--", "train.py"]) == 3
    assert "--anyway starts despite unchecked rules" in capsys.readouterr().err
    assert dispatch([*asked, "--anyway", "--", "train.py"]) == 0


def test_a_run_writes_the_page_of_its_check(facts: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["run", "--from", facts, "--dry-run", "--nproc", "1", "--html", str(page), "--", "train.py"]
    assert dispatch(asked) == 0
    assert "<!doctype html>" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["test", "bench"])
def test_a_proof_writes_the_page_of_its_check(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [command, "--local", "2", "--nproc", "1", "--dry-run", "--anyway", "--html", "page.html"]
    assert dispatch(asked) == 0
    assert "<!doctype html>" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "asked",
    [
        ["check", "--from", "FACTS", "--html", "NOWHERE/page.html"],
        ["logs", "LOG", "--html", "NOWHERE/page.html"],
        ["bundle", "--from", "FACTS", "-o", "NOWHERE/all.tar.gz"],
        ["script", "slurm", "--nodes", "2", "--nproc", "1", "--output", "NOWHERE/job.sh", "--", "train.py"],
        ["bench", "--plot", "NOWHERE/rate.svg"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_that_cannot_be_written_is_told(
    asked: list[str], facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rank.log"
    log.write_text("step 1\n", encoding="utf-8")
    places = {"FACTS": facts, "LOG": str(log), "NOWHERE": f"{log}"}
    with pytest.raises(SystemExit) as left:
        dispatch([_placed(word, places) for word in asked])
    assert left.value.code == 2 and "cannot be written: Not a directory" in capsys.readouterr().err


def _placed(word: str, places: dict[str, str]) -> str:
    first, slash, rest = word.partition("/")
    return places.get(first, first) + slash + rest


@pytest.mark.slow
def test_a_bundle_saves_what_was_collected(tmp_path: Path) -> None:
    saved = tmp_path / "facts.json"
    asked = ["bundle", "--local", "1", "--save", str(saved), "-o", str(tmp_path / "all.tar.gz")]
    assert dispatch(asked) == 0
    assert json.loads(saved.read_text(encoding="utf-8"))


@pytest.mark.parametrize("option", ["--timeout", "--link-gbit"])
@pytest.mark.parametrize("value", ["0", "-5", "nan", "inf", "x"])
def test_a_number_that_cannot_be_blames_no_node(option: str, value: str, facts: str) -> None:
    with pytest.raises(SystemExit) as ended:
        dispatch(["check", "--from", facts, f"{option}={value}"])
    assert ended.value.code == 2


@pytest.mark.parametrize("option", ["--save", "--html"])
@pytest.mark.parametrize(
    ("place", "why"),
    [("", "Is a directory"), ("none/f", "No such file or directory"), ("file/f", "Not a directory")],
)
def test_a_file_that_cannot_be_written_is_said_before_a_node_is_asked(
    option: str, place: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as left:
        dispatch(["check", "-H", "host.invalid", option, f"{tmp_path}/{place}"])
    assert left.value.code == 2 and f"cannot be written: {why}" in capsys.readouterr().err


def test_json_of_a_dry_run_is_json(facts: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "--from", facts, "--dry-run", "--nproc", "1", "--json"]
    assert dispatch([*asked, "--env", "HF_TOKEN=s3cret", "--", "train.py"]) == 0
    told = json.loads(said := capsys.readouterr().out)
    assert "torch.distributed.run" in told["text"] and told["plan"]["run_id"] == told["run"]
    assert "s3cret" not in said


def test_json_of_a_run_that_was_stopped_says_so(facts: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "--from", facts, "--dry-run", "--nproc", "1", "--json", "--strict", "--", "train.py"]
    assert dispatch(asked) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["exit_code"]) == ("check-stopped", 3) and told["not_checked"]
    assert len(told["nodes"]) == 2


@pytest.mark.parametrize(
    ("command", "promised"),
    [
        ("test", {"ranks", "ok"}),
        (
            "bench",
            {
                *("op", "nodes", "ranks", "rows", "link_gbit_s", "expected_busbw_gbyte_s", "verdict", "slow"),
            },
        ),
    ],
)
def test_json_where_nothing_could_be_started_has_the_promised_keys(command: str, promised: set[str]) -> None:
    told = collective.unstarted(parser_for(command).read([]), 2)
    assert set(told) >= promised
    assert told.get("ok", False) is False and told.get("verdict", "not_judged") == "not_judged"


@pytest.fixture
def article(tmp_path: Path) -> str:
    """Two nodes of which one has a card that leads nowhere, and a job that was asked for when they were."""
    asked = Job(chdir="/data", setup="module load x", nproc=2, env={"OLD": "1"})
    bundle.save(replace(c.article_002(), job=asked), tmp_path / "article.json")
    return str(tmp_path / "article.json")


def test_a_dry_run_of_saved_facts_shows_the_job_that_is_asked_for(
    article: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["run", "--from", article, "--dry-run", "--nproc", "4", "--env", "A=B", "--with", "launch"]
    assert dispatch([*asked, "--", "train.py", "--lr", "1"]) == 0
    text = capsys.readouterr().out
    assert text.count("--nproc-per-node=4") == 2 and text.count("RINGUP_SCRIPT=/data/train.py") == 2
    assert "export A=B" in text and "torch.distributed.launch" in text and "--lr 1" in text
    assert "OLD" not in text and "cd /data" in text and "module load x" in text


def test_a_dry_run_says_beside_the_words_what_a_run_would_say_first(
    article: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["run", "--from", article, "--dry-run", "--", "train.py"]) == 0
    said = capsys.readouterr()
    assert "warning node0 em1: " in said.err and "rendezvous at 90.91.33.64 port 29500" in said.err
    assert "warning" not in said.out


def test_what_was_saved_of_another_script_says_nothing_of_this_one(
    article: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["run", "--from", article, "--dry-run", "--strict", "--", "train.py"]) == 3
    told = capsys.readouterr().err
    assert "script-missing" in told and "it was not checked when this was saved" in told


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ([], {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}),
        (["--backend", "gloo"], {"GLOO_SOCKET_IFNAME"}),
        (["--env", "GLOO_SOCKET_IFNAME=enp99s0"], {"NCCL_SOCKET_IFNAME"}),
    ],
)
def test_saved_facts_are_judged_for_what_is_said_beside_them(
    more: list[str], wanted: set[str], article: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["check", "--json", "--from", article, *more]) == 0
    assert {v["name"] for v in json.loads(capsys.readouterr().out)["env"]} == wanted
    assert dispatch(["env", "--json", "--from", article, *more]) == 0
    assert {v["name"] for v in json.loads(capsys.readouterr().out)["env"]} == wanted


@pytest.mark.parametrize(
    "more",
    [["-H", "a"], ["--local", "2"], ["--hostfile", "/dev/null"], ["--python", "p"], ["--setup", "true"]],
)
def test_what_saved_facts_cannot_tell_is_refused(more: list[str], article: str) -> None:
    for command in ("check", "env", "predict"):
        with pytest.raises(UsageError, match="--from"):
            dispatch([command, "--from", article, *more])
