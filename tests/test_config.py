"""Where an option's value comes from, and what a project's file cannot do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import config, options
from ringup.cli.command_line import main
from ringup.cli.commands import COMMANDS, parser_for
from ringup.errors import UsageError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a project in it, which is the current directory; no RINGUP_ variable is set."""
    (tmp_path / "project").mkdir()
    (tmp_path / ".config/ringup").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def user(home: Path, text: str) -> None:
    (home / ".config/ringup/config.toml").write_text(text)


def project(home: Path, text: str, name: str = "ringup.toml") -> None:
    (home / "project" / name).write_text(text)


def read(command: str, *words: str) -> Any:
    parser = parser_for(command)
    config.apply(parser, command, words)
    return parser.read(list(words))


def test_a_higher_rank_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read("run", "--local", "1", "x.py").lease == 20
    user(home, "lease = 30\n")
    assert read("run", "--local", "1", "x.py").lease == 30
    project(home, "lease = 40\n")
    assert read("run", "--local", "1", "x.py").lease == 40
    monkeypatch.setenv("RINGUP_LEASE", "50")
    assert read("run", "--local", "1", "x.py").lease == 50
    assert read("run", "--local", "1", "--lease", "60", "x.py").lease == 60


def test_variables_that_mean_something_else_set_no_option(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGUP_RUN", "20260101-000000-aaaaaaaa")
    monkeypatch.setenv("RINGUP_NODES", "3")
    assert (read("stacks").run, read("run", "x.py").nodes) == ("", 0)


def test_a_variable_that_sets_no_option_is_named_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RINGUP_HOTS", "RINGUP_JSON", "RINGUP_LEASE", "RINGUP_TOKEN"):
        monkeypatch.setenv(name, "30")
    read("check")
    notes = [
        "note: RINGUP_HOTS is ignored: it sets no option; did you mean RINGUP_HOSTS?",
        "note: RINGUP_JSON is ignored: it sets no option",
    ]
    assert capsys.readouterr().err.splitlines() == notes
    monkeypatch.setenv("RINGUP_RUN", "20260101-000000-aaaaaaaa")
    read("check")
    assert capsys.readouterr().err == ""


def test_a_table_is_for_one_command(home: Path) -> None:
    project(home, "strict = false\n[check]\nstrict = true\n")
    assert (read("check").strict, read("run", "x.py").strict) == (True, False)


def test_pyproject_has_a_table_for_ringup(home: Path) -> None:
    project(home, "[project]\nname = 'x'\n[tool.ringup]\nnproc = 3\n", "pyproject.toml")
    assert read("run", "x.py").nproc == 3
    project(home, "nproc = 4\n")
    assert read("run", "x.py").nproc == 4


def test_the_file_beside_the_script_counts(home: Path) -> None:
    (home / "other").mkdir()
    (home / "other/train.py").write_text("")
    (home / "other/ringup.toml").write_text("nproc = 5\n")
    project(home, "nproc = 4\n")
    assert read("run", "--", "../other/train.py").nproc == 5


@pytest.mark.parametrize("typed", [["-H", "b"], ["-Hb"], ["--hosts=b"], ["--local", "2"]])
def test_nodes_on_the_command_line_replace_those_of_a_file(home: Path, typed: list[str]) -> None:
    (home / "project/list").write_text("c\n")
    user(home, "hosts = 'a'\n")
    assert (read("check").hosts, read("check").hostfile) == ("a", None)
    project(home, "hostfile = 'list'\n")
    assert (read("check").hosts, read("check").hostfile) == (None, "list")
    found = read("check", *typed)
    assert [found.hosts, found.hostfile, found.local].count(None) == 2


def test_several_values_are_a_list(home: Path) -> None:
    user(home, "env = ['A=1', 'B=2']\n")
    assert read("run", "x.py").env == ["A=1", "B=2"]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("nprox = 3\n", "no option 'nprox'", "nproc"),
        ("[runn]\nnproc = 3\n", "no command 'runn'", "[run]"),
        ("[run]\nmin = '1K'\n", "no option 'min'", "`ringup config run`"),
        ("nproc = 'many'\n", "--nproc: 'many' is not a count of ranks", "--nproc"),
        ("nproc = [1, 2]\n", "--nproc: one value is wanted", "--nproc"),
        ("strict = 'perhaps'\n", "--strict: true or false", "--strict"),
        ("with = 'make'\n", "--with: one of auto, torchrun", "--with"),
        ("launcher = 'torchrun'\n", "no option 'launcher'", "launcher-args"),
        ("backend = 'mpi'\n", "--backend: one of nccl, gloo", "--backend"),
        ("nproc = \n", "ringup.toml", "TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_error(home: Path, text: str, what: str, hint: str) -> None:
    project(home, text)
    with pytest.raises(UsageError) as caught:
        read("run", "x.py")
    assert what in str(caught.value) and hint in caught.value.hint


def test_a_key_of_another_command_is_no_error(home: Path) -> None:
    project(home, "nproc = 3\nop = 'all'\n")
    assert read("check").strict is False
    assert read("bench").op == "all"


@pytest.mark.parametrize("key", config.NOT_FROM_A_PROJECT)
def test_a_projects_file_starts_nothing_and_writes_nothing(home: Path, key: str) -> None:
    commands = {"output": "bundle", "plot": "bench", "failing": "check", "with-py-spy": "stacks"}
    text = "['touch hacked']" if key in ("env", "option") else "'touch hacked'"
    project(home, f"{key} = {text}\n")
    with pytest.raises(UsageError, match="not taken from a project's file"):
        read(commands.get(key, "run"), "x.py")


def test_every_option_that_writes_a_file_is_kept_from_a_projects_file() -> None:
    actions = {a for name in COMMANDS for a in parser_for(name)._option_string_actions.items()}
    writing = {name for name, action in actions if action.type in (options.writable, options.folder)}
    assert {name.removeprefix("--") for name in writing if name.startswith("--")} <= {*config.WRITES}


def test_the_reference_names_what_a_projects_file_cannot_set() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/configuration.md").read_text()
    typed = {f"--{key.removesuffix('_file').replace('_', '-')}" for key in config.ONLY_TYPED} - {"--help"}
    named = {*re.findall("`([^`\n]+)`", page.replace("```", ""))}
    assert not {*config.NOT_FROM_A_PROJECT, *typed} - named


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_a_file_that_others_can_write_is_not_read(
    home: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    project(home, "nproc = 3\n")
    (home / "project/ringup.toml").chmod(mode)
    assert read("run", "x.py").nproc is None
    assert "others can write it" in capsys.readouterr().err


def test_folders_above_the_repository_are_not_searched(home: Path) -> None:
    project(home, "nproc = 3\n")
    (home / "project/sub/.git").mkdir(parents=True)
    (home / "project/sub/x.py").write_text("")
    assert read("run", "--", "sub/x.py").nproc is None


def test_every_value_is_shown_with_its_origin(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user(home, "hosts = 'a,b'\n[run]\nenv = ['WANDB_API_KEY=0123456789abcdef0123']\n")
    monkeypatch.setenv("RINGUP_NPROC", "2")
    with pytest.raises(SystemExit) as ended:
        main(["config"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "0123456789abcdef" not in said
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert f"hosts a,b ({home}/.config/ringup/config.toml)" in lines
    assert "nproc 2 (RINGUP_NPROC)" in lines
    assert "lease 20.0 (default)" in lines
    assert not any(line.startswith(("nproc-per-node", "nproc_per_node", "nnodes")) for line in lines), (
        "aliases"
    )
    with pytest.raises(SystemExit):
        main(["config", "check", "--json"])
    assert json.loads(capsys.readouterr().out)["options"]["hosts"]["value"] == "a,b"


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_secret_in_a_file_is_not_shown(
    home: Path, form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    user(home, '[run]\nenv = ["HF_TOKEN=tok3nab1"]\n')
    with pytest.raises(SystemExit):
        main(["config", "run", *form])
    shown = capsys.readouterr().out
    assert "HF_TOKEN" in shown and "tok3n" not in shown
