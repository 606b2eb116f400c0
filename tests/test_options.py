"""Options shared by commands: bad ones are one clear error."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ringup.cli import options, request
from ringup.errors import UsageError


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add(parser, (options.NODES, options.JOB))
    return parser.parse_args(words)


def test_an_environment_value_may_hold_anything_but_nul() -> None:
    found = request.environment_from(["A=x y", "B=$(id);'\"\n", "C=", "D=a=b"])
    assert found == {"A": "x y", "B": "$(id);'\"\n", "C": "", "D": "a=b"}


@pytest.mark.parametrize("word", ["A", "=x", "1A=x", "A-B=x", "A B=x", "Ä=x", "A\n=x", "A=\0"])
def test_a_word_no_shell_could_export_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        request.environment_from([word])


def test_two_sources_of_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="both name the nodes"):
        request.nodes_from(parse("-H", "a", "--local", "2"))


def test_a_missing_host_file_is_one_error() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="No such file"):
        options.readable("/nonexistent/hosts")


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="not a port"):
        request.job_from(parse("--env", "MASTER_PORT=99999"))


def test_script_and_arguments_are_kept_word_for_word() -> None:
    job = request.job_from(parse("--chdir", "/data"), ["train.py", "--name", "a b", "$(x)"])
    assert (job.script, job.arguments) == ("train.py", ("--name", "a b", "$(x)"))


def test_a_directory_is_named_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes stand elsewhere: in a home directory, in the run's own."""
    monkeypatch.chdir(tmp_path)
    assert request.job_from(parse("--chdir", "src/train")).chdir == str(tmp_path / "src" / "train")
    assert request.job_from(parse("--chdir", ".")).chdir == request.job_from(parse()).chdir == str(tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("25", 25), ("25s", 25), ("1.5m", 90), ("2h", 7200), ("0", 0), ("30d", 2592000)]
)
def test_a_time_may_have_its_unit(text: str, seconds: float) -> None:
    assert options.window(text) == seconds


@pytest.mark.parametrize("text", ["1s", "31d", "5 minutes", "s", "-5m", "1_0s", "nan", "infd", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not 0 or a time"):
        options.window(text)
