"""Wrong words on the command line: the cause, then one thing to do, and nothing else; help of any width."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringup import cli
from ringup.commands import common


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The two lines on stderr, without what each begins with."""
    with pytest.raises(SystemExit) as left:
        cli.main(list(words))
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    what, hint = said.err.splitlines()
    assert hint.startswith("hint: ")
    return what, hint.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("words", "said", "advice"),
    [
        ("check --tmieout 3", "ringup check: no option --tmieout", "did you mean --timeout?"),
        ("check --xyz", "ringup check: no option --xyz", "`ringup check --help` shows the options"),
        ("check n1 n2", "ringup check: there is no place for n1 n2", "name nodes as one word: -H n1,n2"),
        (
            "check -H",
            "ringup check: -H/--hosts: expected one argument",
            "`ringup check --help` shows the options",
        ),
        ("chekc", "ringup: no command 'chekc'", "did you mean check? `ringup --help` lists them"),
        (
            "run -H n1,n2 train.py --epochs 3",
            "ringup run: no option --epochs",
            "the script's own options stand behind --: ringup run ... -- train.py --epochs",
        ),
        (
            "script slurm --nodes 2 train.py --lr 3",
            "ringup script slurm: no option --lr",
            "the script's own options stand behind --: ringup script slurm ... -- train.py --lr",
        ),
        (
            "explain clock-skew now",
            "ringup explain: there is no place for now",
            "`ringup explain --help` shows",
        ),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], words: str, said: str, advice: str
) -> None:
    what, hint = refused(capsys, *words.split())
    assert what == said
    assert hint.startswith(advice)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check --timeout soon", "--timeout: 'soon' is not a number"),
        ("check --timeout=-1", "--timeout: -1 is not a number above 0"),
        ("check --link-gbit 0", "--link-gbit: 0 is not a number above 0"),
        ("run --lease x -- a.py", "--lease: 'x' is not a number"),
        ("run --lease 1 -- a.py", "--lease: 1 is not from 5 to 86400 seconds"),
        ("run --hang-report 1 -- a.py", "--hang-report: 1 is neither 0 nor from 2 seconds to 30 days"),
        ("run --nproc 0 -- a.py", "--nproc: 0 is not a count of at least 1"),
        ("script slurm --nodes -2 -- a.py", "--nodes: '-2' is not a count"),
        ("script slurm --gpus -1 -- a.py", "--gpus: '-1' is not a count"),
        ("demo --nodes none", "--nodes: 'none' is not a count"),
        ("logs --processes -3 a.log", "--processes: '-3' is not a count"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_words_of_the_user(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert refused(capsys, *words.split())[0].endswith(f": {said}")


def test_hostile_words_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    what, hint = refused(capsys, "check", "--\x1b[31m\n\u202ered")
    assert "\x1b" not in what + hint and "\\x1b[31m" in what
    what, _ = refused(capsys, "check", "")
    assert what == "ringup check: there is no place for ''"


@pytest.mark.parametrize("option", ["--chdir", "--python", "--save", "--html", "--log-dir", "--setup"])
def test_two_dashes_as_a_value_are_no_crash(option: str) -> None:
    try:
        found = cli.parser_for("run").read([f"{option}=--", "--", "train.py"])
    except SystemExit as left:
        assert left.code == 2
    else:  # a newer argparse hands it on
        assert getattr(found, option[2:].replace("-", "_")) == "--"


@pytest.mark.parametrize("name", cli.COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_is_no_wider_than_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for text in (cli.parser_for(name).format_help(), cli.overview()):
        assert [line for line in text.splitlines() if len(line) > columns] == []


def test_help_keeps_the_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = cli.parser_for("clean").format_help()
    assert "\n\nExit code 0 when nothing is left" in text


def test_every_choice_stands_in_the_help() -> None:
    for name in cli.COMMANDS:
        parser = cli.parser_for(name)
        text = " ".join(parser.format_help().split())
        choices = [action.choices for action in parser._actions]
        missing = [c for several in choices for c in several or () if c not in text]
        assert missing == [], name


def test_what_looks_at_nodes_can_be_told_to_be_quiet() -> None:
    for name in cli.COMMANDS:
        known = cli.parser_for(name)._option_string_actions
        assert ("-H" in known) <= ("--quiet" in known), name


def test_clean_within_slurm_says_what_slurm_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from ringup.commands import common

    args = cli.parser_for("clean").parse_args([])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_JOB_NODELIST", "n[1-2]")
        patched.setenv("SLURM_NTASKS_PER_NODE", "4")
        assert [host.name for host in common.nodes_from(args)] == ["n1", "n2"]
    assert capsys.readouterr().err.startswith("note: ntasks-per-node is 4")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_help_on_a_full_disk_is_told_in_two_lines() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ringup", "check", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "",
            },  # argparse itself overlooks a write that fails at once
            timeout=60,
        )
    assert done.returncode == 4
    assert done.stderr.startswith(b"ringup: output: No space left on device\nhint: ")


def test_more_ranks_than_a_guard_takes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Path(common.__file__).parents[1] / "payload" / "guard_ranks.py"
    assert f"\nMOST_RANKS = {common.MOST_RANKS}\n" in guard.read_text(encoding="utf-8")
    what, _ = refused(capsys, "run", "--local", "1", "--nproc", str(common.MOST_RANKS + 1), "--", "train.py")
    assert f"{common.MOST_RANKS} is the most" in what
