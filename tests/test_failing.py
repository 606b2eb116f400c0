"""The nodes with errors as a file, and nodes left out by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli import command_line, request
from ringup.cli.commands import parser_for
from ringup.errors import UsageError
from ringup.model import Unreached, unreached_node
from tests import clusters as c


def test_the_nodes_with_errors_are_written_one_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = c.article_002()
    lost = unreached_node(replace(cluster.nodes[0].host, name="node9"), Unreached("ssh-timeout", "no answer"))
    bundle.save(replace(cluster, nodes=(*cluster.nodes, lost)), tmp_path / "facts.json")
    words = ["check", "--from", str(tmp_path / "facts.json"), "--failing", str(tmp_path / "bad")]
    assert command_line.dispatch(words) == 1
    assert "node9\n" in (tmp_path / "bad").read_text()
    assert "node9" in capsys.readouterr().out


def test_nodes_named_in_a_file_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("node2 # slow\nnode[4-5], node7\n\n")
    words = ["-H", "node[1-5]", "--exclude-from", str(tmp_path / "bad")]
    hosts = request.nodes_from(parser_for("check").read(words))
    assert [host.name for host in hosts] == ["node1", "node3"]
    assert "node2, node4, node5" in capsys.readouterr().err
    (tmp_path / "bad").write_text("node1\n")
    with pytest.raises(UsageError, match="leaves no node"):
        request.nodes_from(parser_for("check").read(["-H", "node1", "--exclude-from", str(tmp_path / "bad")]))


def test_a_file_of_nodes_beside_saved_facts_is_refused(tmp_path: Path) -> None:
    bundle.save(c.article_002(), tmp_path / "facts.json")
    (tmp_path / "bad").write_text("node1\n")
    words = ["check", "--from", str(tmp_path / "facts.json"), "--exclude-from", str(tmp_path / "bad")]
    with pytest.raises(UsageError, match="--exclude-from has no effect with --from"):
        command_line.dispatch(words)
