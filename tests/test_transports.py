"""What NCCL says it uses is held against what was expected, said once, and kept out of the job's output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringup.model import Job
from ringup.planning import ExpectedTransport, NodePlan, Plan
from ringup.planning.minimal_env import sets_nccl_debug, with_nccl_debug
from ringup.runtime import Event
from ringup.runtime.output import Output
from ringup.runtime.transports import Transports
from tests.clusters import cluster, interface, node

FELL_BACK = [
    b"n1:7:9 [0] NCCL INFO NET/IB : No device found.",
    b"n1:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>",
    b"n1:7:9 [0] NCCL INFO Using network Socket",
]
AS_EXPECTED = [
    b"n0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    b"n0:7:9 [0] NCCL INFO Using network IB",
    b"n0:7:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
]


def node_plan(name: str, rank: int = 0) -> NodePlan:
    return NodePlan(name, rank, 1, rank, "eth0", "", ("python",), {})


def plan(network: str = "IB", *, devices: tuple[str, ...] = ("mlx5_0:1/IB", "mlx5_1:1/IB")) -> Plan:
    nodes = (node_plan("n0"), node_plan("n1", 1))
    expected = tuple(ExpectedTransport(n.node, network, devices, "high") for n in nodes)
    return Plan("r", Job(backend="nccl"), nodes, (), "", 29500, 2, transports=expected)


def heard(planned: Plan, lines: dict[str, list[bytes]]) -> tuple[Transports, list[Event]]:
    said: list[Event] = []
    made = Transports(planned, said.append)
    for name, own in lines.items():
        made.read(next(n for n in planned.nodes if n.node == name), own)
    return made, said


def test_a_fall_back_to_tcp_is_said_once_with_the_node_and_what_was_expected() -> None:
    made, said = heard(plan(), {"n0": AS_EXPECTED, "n1": FELL_BACK * 3})
    assert [e.node for e in said] == ["n1"]
    assert "n1: NCCL uses Socket, not IB over mlx5_0:1/IB, mlx5_1:1/IB as expected" in said[0].text
    assert made.as_json()["differ"] == ["n1"]


def test_what_was_expected_is_not_said() -> None:
    made, said = heard(plan(), {"n0": AS_EXPECTED})
    assert said == []
    told = made.as_json()
    wanted = {"node": "n0", "network": "IB", "devices": ("mlx5_0:1/IB", "mlx5_1:1/IB"), "said": []}
    assert told["seen"] == [wanted]


def test_the_newest_wording_is_understood() -> None:
    line = [b"n1:7:9 [0] NCCL INFO Assigned NET plugin Socket to comm"]
    assert [e.node for e in heard(plan(), {"n1": line})[1]] == ["n1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"n1:7:9 [0] NCCL INFO NET/IB : No device found.", "NET/IB : No device found"),
        (
            b"n1:7:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.",
            "NCCL_IB_DISABLE set by environment to 1",
        ),
        (b"n1:7:9 [0] NCCL INFO NCCL_IB_HCA set to mlx5_9", "NCCL_IB_HCA set to mlx5_9"),
        (b"n1:7:9 [0] NCCL INFO Failed to open libibverbs.so[.1]", "Failed to open libibverbs.so[.1]"),
        (b"n1:7:9 [0] NCCL INFO Failed to initialize NET plugin IB", "Failed to initialize NET plugin IB"),
        (
            b"[2026-05-05 06:16:47] n1:7:9 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_open_device failed",
            "Call to ibv_open_device failed",
        ),
    ],
)
def test_the_reason_is_quoted_as_nccl_gave_it(line: bytes, reason: str) -> None:
    _, said = heard(plan(), {"n1": [line, *FELL_BACK[1:]]})
    assert f'NCCL says: "{reason}"' in said[0].text


def test_without_a_reason_none_is_made_up() -> None:
    _, said = heard(plan(), {"n1": FELL_BACK[2:]})
    assert "NCCL says" not in said[0].text and "ringup explain fell-back-to-sockets" in said[0].text


def test_what_to_do_is_said_with_the_first_node_only() -> None:
    _, said = heard(plan(), {"n0": FELL_BACK, "n1": FELL_BACK})
    assert ["ringup explain" in e.text for e in said] == [True, False]


def test_a_card_that_was_expected_and_is_not_used_is_named() -> None:
    one = b"n0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    made, said = heard(plan(), {"n0": [one, AS_EXPECTED[1]]})
    assert [e.text for e in said] == ["n0: NCCL uses mlx5_0:1, not mlx5_1:1 that was expected too"]
    assert made.as_json()["differ"] == ["n0"]


@pytest.mark.parametrize(
    "devices", [b"[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [RO]; OOB", b"[0]mlx5_0:1:0:1/IB [RO]; OOB"]
)
def test_names_that_cannot_be_compared_are_not(devices: bytes) -> None:
    line = b"n0:7:9 [0] NCCL INFO NET/IB : Using " + devices
    assert heard(plan(), {"n0": [line, AS_EXPECTED[1]]})[1] == []


def test_sharp_behind_a_device_is_no_other_device() -> None:
    line = b"n0:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0"
    assert heard(plan(), {"n0": [line, b"n0:7:9 [0] NCCL INFO Using network IBext_v8"]})[1] == []


def test_a_plugins_own_name_is_no_difference() -> None:
    lines = [
        b"n0:7:9 [0] NCCL INFO Using network AWS Libfabric",
        b"n0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/5(3)/GDRDMA/Shared",
    ]
    made, said = heard(plan("OFI", devices=()), {"n0": lines})
    assert said == []
    assert made.as_json()["seen"][0]["network"] == "OFI"


def test_many_nodes_that_fall_back_do_not_fill_the_terminal() -> None:
    nodes = tuple(node_plan(f"n{i}", i) for i in range(9))
    many = replace(
        plan(), nodes=nodes, transports=tuple(ExpectedTransport(n.node, "IB", (), "high") for n in nodes)
    )
    made, said = heard(many, {n.node: FELL_BACK for n in nodes})
    assert (len(said), len(made.as_json()["differ"])) == (3, 9)
    assert said[-1].text.endswith("what other nodes use is in run.json")


def test_lines_that_only_look_like_it_are_not_heard() -> None:
    made, said = heard(plan(), {"n1": [b"Using network Socket", b"\xff NCCL INFO \x00", b"via NET/Socket"]})
    assert said == [] and made.as_json()["seen"] == []


# Asking NCCL to say it


def two(backend: str = "nccl", **more: object):  # type: ignore[no-untyped-def]
    one = node("n0", interface("eth0", "10.0.0.1/24"), **more)
    return replace(cluster(one, node("n1", interface("eth0", "10.0.0.2/24"))), job=Job(backend=backend))


def test_nccl_is_asked_to_say_it_where_it_could_fall_back() -> None:
    made = with_nccl_debug(plan(), two())
    assert sets_nccl_debug(made)
    assert {n.env["NCCL_DEBUG"] for n in made.nodes} == {"INFO"}
    assert {n.env["NCCL_DEBUG_SUBSYS"] for n in made.nodes} == {"INIT,ENV,NET"}


def test_where_only_tcp_is_expected_nothing_is_set() -> None:
    assert with_nccl_debug(plan("Socket"), two()) == plan("Socket")


def test_a_users_own_nccl_debug_stays() -> None:
    users = two(environment={"NCCL_DEBUG": "WARN"})
    assert with_nccl_debug(plan(), users) == plan()


def test_gloo_is_never_asked_for_nccl_lines() -> None:
    assert with_nccl_debug(plan(), two("gloo"), always=True) == plan()


# The lines have a file of their own


def written(tmp_path: Path, *pieces: bytes, apart: bool = True) -> tuple[bytes, bytes, str]:
    shown: list[str] = []
    output = Output(tmp_path, shown.append, nccl_apart=apart)
    for piece in pieces:
        output.on_rank_output(node_plan("n0"), 0, 1, piece)
    output.close()
    rank, nccl = tmp_path / "rank-00000-n0.log", tmp_path / "nccl-00000-n0.log"
    return rank.read_bytes(), nccl.read_bytes() if nccl.exists() else b"", "".join(shown)


def test_nccl_lines_are_not_in_the_ranks_file_nor_on_the_terminal(tmp_path: Path) -> None:
    text = b"step 1\n" + AS_EXPECTED[1] + b"\nstep 2\n"
    rank, nccl, shown = written(tmp_path, text[:20], text[20:])
    assert rank == b"step 1\nstep 2\n"
    assert nccl == AS_EXPECTED[1] + b"\n"
    assert "NCCL INFO" not in shown and "n0:0| step 2" in shown


def test_an_unfinished_line_reaches_the_ranks_file(tmp_path: Path) -> None:
    assert written(tmp_path, b"one\ntwo without an end")[0] == b"one\ntwo without an end"


def test_warnings_of_nccl_stay_with_the_rank(tmp_path: Path) -> None:
    warning = b"n0:7:9 [0] misc/socket.cc:50 NCCL WARN socketProgress failed\n"
    rank, nccl, shown = written(tmp_path, warning)
    assert (rank, nccl) == (warning, b"") and "NCCL WARN" in shown


def test_a_users_own_nccl_lines_stay_where_they_are(tmp_path: Path) -> None:
    rank, nccl, shown = written(tmp_path, AS_EXPECTED[1] + b"\n", apart=False)
    assert (rank, nccl) == (AS_EXPECTED[1] + b"\n", b"") and "NCCL INFO" in shown


@pytest.mark.parametrize(
    ("replayed", "now", "kept"),
    [
        ([b"a\nb", b"\nc\n", b"d\n"], b"a\nb\nc\nd\n", None),
        ([b"a\n"], b"a\nb\nc\n", None),  # left before the end of the replay
        ([b"b\n", b"c\nd\n"], b"b\nc\nd\n", b"a\nb\nc\n"),
        ([b"a\n", b"c\nd\n"], b"a\nc\nd\n", b"a\nb\nc\n"),
    ],
)
def test_a_replay_loses_nothing_of_what_was_saved(
    tmp_path: Path, replayed: list[bytes], now: bytes, kept: bytes | None
) -> None:
    file = tmp_path / "rank.log"
    file.write_bytes(b"a\nb\nc\n")
    output = Output(tmp_path, None)
    output.continue_files()
    for data in replayed:
        output.to_file("rank.log", data)
    output.close()
    before = tmp_path / "__before-attach-1"
    assert file.read_bytes() == now
    assert ((before / "rank.log").read_bytes() if before.exists() else None) == kept
    assert (f"kept in {before}" in output.problem) == (kept is not None)


def test_two_attach_do_not_write_the_same_files(tmp_path: Path) -> None:
    outputs, shown = [], list[str]()
    for _ in range(2):
        outputs.append(Output(tmp_path, shown.append))
        outputs[-1].continue_files()
    for output in outputs[::-1]:
        output.to_file("rank.log", b"a\n")
        output.close()
    assert (tmp_path / "rank.log").read_bytes() == b"a\n"
    assert len(shown) == 1 and "this one only shows the output" in shown[0]
    again = Output(tmp_path, None)
    again.continue_files()
    again.to_file("rank.log", b"a\nb\n")
    again.close()
    assert (tmp_path / "rank.log").read_bytes() == b"a\nb\n"
