"""The matrix of paths on the terminal: small, whatever the cluster's size, and readable without colour."""

from __future__ import annotations

import io

import pytest

from ringup.model import Cluster
from ringup.output import console
from ringup.output.pair_matrix import pair_matrix
from ringup.output.terminal import Style
from tests import clusters as c


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def drawn(cluster: Cluster) -> list[str]:
    return pair_matrix(*console.tested_paths(cluster), Style(io.StringIO()))


def cells(line: str) -> list[str]:
    return line.split()


def test_where_every_path_works_nothing_is_drawn() -> None:
    assert drawn(c.healthy(4)) == []


def test_the_interface_that_nobody_reaches_stands_above_its_column() -> None:
    _, interfaces, letters, node0, node1 = drawn(c.article_002())
    assert cells(interfaces) == ["em1", "enp99s0"] and cells(letters) == ["a", "a", "b"]
    assert cells(node0) == ["a", "node0", ".", ".", "ok"]
    assert cells(node1) == ["b", "node1", "x", "ok", "."]
    assert interfaces.index("em1") == letters.index("a") == node1.index("x")


def test_one_path_in_one_direction_is_one_cell() -> None:
    lines = drawn(c.healthy(12, broken=[("node3", "node10", "10.0.0.20", "timed out")]))
    rest, node3, node10 = lines[3:]
    assert "node[0-2,4-" in rest and "(10 nodes)" in rest and cells(rest)[-3:] == ["ok", "ok", "ok"]
    assert cells(node3) == ["b", "node3", "ok", ".", "x"]
    assert cells(node10) == ["c", "node10", "ok", "ok", "."]


def test_a_dead_node_among_many_is_a_row_and_a_column_of_its_own() -> None:
    broken = [("*", "node9", "10.0.0.19", "timed out"), ("node9", "*", "*", "timed out")]
    lines = drawn(c.healthy(64, broken=broken))
    assert len(lines) == 5
    assert cells(lines[3])[-2:] == ["ok", "x"] and cells(lines[4]) == ["b", "node9", "x", "."]


def test_paths_that_fail_without_a_pattern_fit_a_screen() -> None:
    broken = [(f"node{n}", f"node{(7 * n + 3) % 40}", "*", "timed out") for n in range(0, 40, 2)]
    lines = drawn(c.healthy(40, broken=broken))
    assert len(lines) <= 20 and max(map(len, lines)) <= 80


def test_many_interfaces_and_long_names_fit_80_columns_and_what_is_left_out_is_counted() -> None:
    nodes = [
        c.node(
            f"gpu-{k:03d}.rack7.example.org",
            *(c.interface(f"enp{i}s0f0np0", f"10.{i}.0.{10 + k}/24") for i in range(9)),
        )
        for k in range(16)
    ]
    lines = drawn(c.cluster(*nodes, broken=[("*", nodes[4].name, "*", "timed out")]))
    assert max(map(len, lines)) <= 80
    shown = sum(name.startswith("enp") for name in cells(lines[1]))
    assert shown >= 2 and lines[-1] == f"  and {9 - shown} columns with failures: --all lists the paths"


def test_interfaces_without_a_failure_are_one_line() -> None:
    nodes = [
        c.node(f"n{k}", *(c.interface(f"enp{i}s0f0np0", f"10.{i}.0.{10 + k}/24") for i in range(9)))
        for k in range(4)
    ]
    lines = drawn(c.cluster(*nodes, broken=[("*", "n2", "10.4.0.12", "timed out")]))
    assert cells(lines[1]) == ["enp4s0f0np0"]
    assert lines[-1].startswith("  every path works to enp0s0f0np0, enp1s0f0np0, ")


def test_a_name_cannot_reach_the_terminal() -> None:
    nodes = [c.node(f"n{k}\x1b[2J", c.interface("e\x1b]0;x\x07", f"10.0.0.{k + 1}/24")) for k in range(2)]
    lines = drawn(c.cluster(*nodes, broken=[("*", nodes[1].name, "*", "timed out")]))
    assert not set("".join(lines)) & {"\x1b", "\x07"}


def test_check_draws_it_below_the_line_about_the_network() -> None:
    text = console.check_text(console.Report(c.article_002(), [], [], None), Style(io.StringIO()))
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("  paths from row to column"))
    assert "failed: node1 -> node0 em1" in " ".join(line.strip() for line in lines[at - 2 : at])
