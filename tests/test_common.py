"""Options shared by commands: bad ones are one clear error."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ringup.commands import common
from ringup.errors import NodesError, UsageError


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    return parser.parse_args(words)


def test_an_environment_value_may_hold_anything_but_nul() -> None:
    found = common.environment_from(["A=x y", "B=$(id);'\"\n", "C=", "D=a=b"])
    assert found == {"A": "x y", "B": "$(id);'\"\n", "C": "", "D": "a=b"}


@pytest.mark.parametrize("word", ["A", "=x", "1A=x", "A-B=x", "A B=x", "Ä=x", "A\n=x", "A=\0"])
def test_a_word_no_shell_could_export_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        common.environment_from([word])


def test_two_sources_of_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="both name the nodes"):
        common.nodes_from(parse("-H", "a", "--local", "2"))


def test_a_missing_host_file_is_one_error() -> None:
    with pytest.raises(NodesError, match="No such file"):
        common.nodes_from(parse("--hostfile", "/nonexistent/hosts"))


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="not a port"):
        common.job_from(parse("--env", "MASTER_PORT=99999"))


def test_script_and_arguments_are_kept_word_for_word() -> None:
    job = common.job_from(parse("--chdir", "/data"), ["train.py", "--name", "a b", "$(x)"])
    assert (job.script, job.arguments) == ("train.py", ("--name", "a b", "$(x)"))


def test_a_directory_is_named_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes stand elsewhere: in a home directory, in the run's own."""
    monkeypatch.chdir(tmp_path)
    assert common.job_from(parse("--chdir", "src/train")).chdir == str(tmp_path / "src" / "train")
    assert common.job_from(parse("--chdir", ".")).chdir == common.job_from(parse()).chdir == str(tmp_path)
