"""`ringup predict`: NCCL's choice from pasted output, on made-up machines like those of real reports."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import bundle
from ringup.cli import command_line
from ringup.cli import predict as command
from ringup.errors import PastedError, UsageError
from ringup.model import Node
from ringup.nccl import selection, variables
from ringup.nccl.selection import Known, predict
from ringup.output import prediction_report
from ringup.parse.pasted import hosts_in, parse_pasted
from tests import clusters as c

RECORDED = Path(__file__).parent / "recorded" / "predict"


def predicted(
    capsys: pytest.CaptureFixture[str], *words: str, nccl: str = "2.20.5", **env: str
) -> dict[str, Any]:
    """The first node of `ringup predict --json` with these words; names of files are of recorded ones."""
    given = [str(RECORDED / w) if (RECORDED / w).is_file() else w for w in words]
    options = [f"--env={k}={v}" for k, v in env.items()]
    assert command_line.dispatch(["predict", "--nccl", nccl, "--json", *given, *options]) == 0
    node: dict[str, Any] = json.loads(capsys.readouterr().out)["nodes"][0]
    return node


HDR = ("--output", "hdr-node.txt", "--output", "hdr-addresses.txt", "--topo", "hdr-topology.xml")


def because(node: dict[str, Any], words: str) -> bool:
    return any(words in reason for reason in node["because"])


# What the author of the sixteen runs found, sentence by sentence, on a made-up node of the same build.


@pytest.mark.parametrize("value", ["ib0", "ib1", "ens13np0", "ens17np0", "ens21f0"])
def test_an_interface_name_as_hca_leaves_no_device_and_falls_back_to_sockets(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="0", NCCL_IB_HCA=value)
    assert node["network"] == "Socket"
    assert node["used"] == [{"gpu": 0, "device": "ib0"}]
    assert node["log_line"] == (
        "NET/Socket : Using [0]ib1:10.20.20.11<0> [1]ib0:fe80::1270:fd03:11:aa01%ib0<0>"
    )
    assert because(node, f"{value} is an interface") and because(node, "No device found")


@pytest.mark.parametrize(("value", "kind"), [("mlx5_0", "RoCE"), ("mlx5_1", "IB"), ("mlx5_3", "IB")])
def test_a_device_name_as_hca_is_followed(capsys: pytest.CaptureFixture[str], value: str, kind: str) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="0", NCCL_IB_HCA=value)
    assert (node["network"], node["interfaces"]) == ("IB", [f"{value}:1/{kind}"])
    assert node["used"] == [{"gpu": 0, "device": f"{value}:1"}]
    assert node["log_line"] == f"NET/IB : Using [0]{value}:1/{kind} [RO]; OOB ib1:10.20.20.11<0>"


def test_a_device_that_is_down_falls_back_to_sockets(capsys: pytest.CaptureFixture[str]) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="0", NCCL_IB_HCA="mlx5_2")
    assert node["network"] == "Socket" and because(node, "mlx5_2:1 is DOWN")


def test_left_alone_nccl_lists_every_active_port_and_uses_the_fastest_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="0")
    assert node["interfaces"] == ["mlx5_0:1/RoCE", "mlx5_1:1/IB", "mlx5_3:1/IB"]
    # The RoCE card is closer, the third card is as fast but behind the other CPU.
    assert node["used"] == [{"gpu": 0, "device": "mlx5_1:1"}]
    assert node["bootstrap"] == {"interface": "ib1", "address": "10.20.20.11"} and node["oob"] == "ib1"
    assert node["confidence"] == "high"
    assert because(node, "better: NCCL_IB_HCA='=mlx5_1,mlx5_3', which leaves out mlx5_0:1/RoCE (100 Gbit/s)")


@pytest.mark.parametrize("value", ["ib0", "ib1", "ens13np0", "ens21f0"])
def test_with_rdma_disabled_the_interface_named_is_used(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME=value)
    assert node["network"] == "Socket" and node["bootstrap"]["interface"] == value
    assert [i.split(":")[0] for i in node["interfaces"]] == [value]


def test_with_rdma_disabled_an_interface_without_address_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="ens17np0")
    assert (node["bootstrap"], node["network"]) == (None, None)
    assert node["log_line"] == "Bootstrap : no socket interface found"


def test_with_rdma_disabled_and_nothing_named_both_ib_interfaces_are_found_and_the_near_one_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = predicted(capsys, *HDR, NCCL_IB_DISABLE="1")
    assert [i.split(":")[0] for i in node["interfaces"]] == ["ib1", "ib0"]
    assert node["used"] == [{"gpu": 0, "device": "ib0"}]
    assert because(node, "link-local")


# The examples of the debugging guide.


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth0,eth1", ["eth0", "eth1"]),
        ("^docker", ["eth0", "eth1", "lo"]),
        ("^=docker0", ["eth0", "eth1", "lo"]),
    ],
)
def test_a_filter_takes_the_interfaces_the_guide_says(
    capsys: pytest.CaptureFixture[str], value: str, taken: list[str]
) -> None:
    node = predicted(capsys, "--output", "desktop.txt", NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME=value)
    assert [i.split(":")[0] for i in node["interfaces"]] == taken


def test_on_a_desktop_docker0_and_lo_are_left_out_and_ifconfigs_order_is_doubted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = predicted(capsys, "--output", "desktop.txt", NCCL_IB_DISABLE="1")
    assert node["log_line"] == "NET/Socket : Using [0]eth0:10.0.0.23<0> [1]eth1:10.0.1.23<0>"
    assert node["confidence"] == "medium" and because(node, "ifconfig sorts")


ALL_EIGHT = [f"mlx5_{n}:1/IB" for n in range(8)]


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", [*ALL_EIGHT, "mlx5_bond_0:1/RoCE"]),
        ("mlx5", [*ALL_EIGHT, "mlx5_bond_0:1/RoCE"]),
        ("=mlx5_0:1,mlx5_1:1", ALL_EIGHT[:2]),
        ("^=mlx5_1,mlx5_4", [d for d in [*ALL_EIGHT, "mlx5_bond_0:1/RoCE"] if d[5] not in "14"]),
        ("^mlx5_bond_0:1", ALL_EIGHT),
        ("=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", ALL_EIGHT),
    ],
)
def test_a_device_filter_takes_the_devices_the_guide_says(
    capsys: pytest.CaptureFixture[str], value: str, taken: list[str]
) -> None:
    node = predicted(capsys, "--output", "eight-hcas.txt", NCCL_IB_HCA=value)
    assert node["interfaces"] == taken
    assert node["log_line"].endswith("[RO]; OOB ibp25s0:10.0.12.82<0>")


def test_a_list_of_devices_alone_says_what_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "grep.txt"
    path.write_text("".join(f"CA 'mlx5_{n}'\n" for n in range(8)))
    node = predicted(capsys, "--output", str(path))
    assert len(node["interfaces"]) == 8 and node["confidence"] == "low"
    which = "of mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1 and 4 more"
    assert because(node, f"the state {which}") and because(node, f"the link layer {which}")


def test_the_matrix_of_nvidia_smi_gives_each_gpu_its_own_card(capsys: pytest.CaptureFixture[str]) -> None:
    node = predicted(
        capsys, "--output", "eight-hcas.txt", "--output", "eight-gpus-topo-m.txt", NCCL_IB_HCA="^mlx5_bond_0"
    )
    assert node["used"] == [{"gpu": n, "device": f"mlx5_{n}:1"} for n in range(8)]
    assert node["confidence"] == "medium"


def test_roce_says_which_gid_is_taken_and_a_vlan_listed_first_wins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = predicted(capsys, "--output", "roce.txt", nccl="2.27.7")
    assert because(node, "GID index 3 of mlx5_0:1: ::ffff:10.50.50.5")
    assert because(node, "GID index 3 of mlx5_1:1: ::ffff:10.200.200.6")
    assert because(
        predicted(capsys, "--output", "roce.txt"), "GID index 0 of mlx5_0:1: the default before 2.21"
    )


# Each platform's whole answer.

PLATFORMS = {
    "hdr": ("2.20.5", *HDR),
    "eight-hcas": ("2.18.3", "--output", "eight-hcas.txt", "--output", "eight-gpus-topo-m.txt"),
    "roce": ("2.27.7", "--output", "roce.txt"),
    "desktop": ("2.28.9", "--output", "desktop.txt"),
    "efa": ("2.27.7", "--output", "efa.txt"),
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platforms_answer_is_the_golden_one(capsys: pytest.CaptureFixture[str], platform: str) -> None:
    nccl, *words = PLATFORMS[platform]
    given = [str(RECORDED / w) if (RECORDED / w).is_file() else w for w in words]
    assert command_line.dispatch(["predict", "--nccl", nccl, *given]) == 0
    text = capsys.readouterr().out
    golden = Path(__file__).parent / "golden" / "predict" / f"{platform}.txt"
    if os.environ.get("RINGUP_GOLDEN") == "write":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


# The command.


def test_text_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    node = predicted(capsys, *HDR)
    given = [str(RECORDED / w) if (RECORDED / w).is_file() else w for w in HDR]
    assert command_line.dispatch(["predict", "--nccl", "2.20.5", *given]) == 0
    text = capsys.readouterr().out
    for value in (node["log_line"], node["confidence"], *node["because"], *node["interfaces"]):
        assert value in text


def test_nodes_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for pair in ("a=hdr-node.txt", "b=eight-hcas.txt", "a=hdr-addresses.txt"):
        name, _, file = pair.partition("=")
        words += ["--output", f"{name}={RECORDED / file}"]
    assert command_line.dispatch(["predict", "--json", *words]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [n["name"] for n in nodes] == ["a", "b"]
    assert nodes[0]["bootstrap"]["interface"] == "ib1" and nodes[1]["bootstrap"]["interface"] == "ibp25s0"


def test_a_saved_collection_is_predicted_and_pasted_output_counts_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "cluster.json"
    bundle.save(c.healthy(), saved)
    assert command_line.dispatch(["predict", "--json", "--from", str(saved)]) == 0
    before = json.loads(capsys.readouterr().out)["nodes"]
    assert all(n["network"] == "Socket" for n in before)
    name = before[0]["name"]
    words = ["--output", f"{name}={RECORDED / 'hdr-node.txt'}", "--from", str(saved)]
    assert command_line.dispatch(["predict", "--json", *words]) == 0
    after = json.loads(capsys.readouterr().out)["nodes"]
    assert after[0]["network"] == "IB" and after[0]["bootstrap"] == before[0]["bootstrap"]


def test_a_collection_of_before_rdma_facts_leaves_them_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "old.json"
    bundle.save(c.healthy(), saved)
    whole = json.loads(saved.read_text())
    for node in whole["cluster"]["nodes"]:
        del node["rdma_ports"]
    saved.write_text(json.dumps(whole))
    assert command_line.dispatch(["predict", "--json", "--from", str(saved)]) == 0
    node = json.loads(capsys.readouterr().out)["nodes"][0]
    assert node["confidence"] == "low" and because(node, "an earlier version did not collect it")


@pytest.mark.parametrize(
    "words",
    [
        ["--nccl", "newest", "--output", "hdr-node.txt"],
        ["--output", "no-such-file.txt"],
        ["--output", "hdr-node.txt", "--topo", "hdr-node.txt"],
        ["--output", "a=hdr-node.txt", "--output", "b=hdr-node.txt", "--output", "hdr-addresses.txt"],
        ["--output", "hdr-node.txt", "--nccl", "1.2"],
    ],
)
def test_what_cannot_be_is_a_usage_error(words: list[str]) -> None:
    given = [w.replace("hdr", str(RECORDED / "hdr")) if ".txt" in w else w for w in words]
    with pytest.raises(UsageError):
        command_line.dispatch(["predict", *given])


def test_a_release_whose_source_was_not_read_leaves_a_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    for version, is_doubted in (("2.8.3", True), ("2.18.1", False), ("2.32.1", False), ("2.99.1", True)):
        node = predicted(capsys, *HDR, nccl=version)
        assert because(node, "not among the releases that ringup knows") == is_doubted


def test_a_node_whose_devices_were_not_pasted_contradicts_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"a": RECORDED / "hdr-node.txt", "b": tmp_path / "b.txt", "c": tmp_path / "c.txt"}
    files["b"].write_text(ADDRESSES.format("eno1", "10.0.0.1"))
    files["c"].write_text(f"{ADDRESSES.format('eno1', '10.0.0.2')}mlx5_0 port 1 ==> eno1 (Down)\n")
    for names, is_apart in (("ab", False), ("ac", True)):
        words = [f"--output={name}={files[name]}" for name in names]
        assert command_line.dispatch(["predict", "--json", *words]) == 0
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert [node["network"] for node in nodes] == ["IB", "Socket"]
        assert [because(node, "their ranks do not connect") for node in nodes] == [is_apart] * 2


def test_a_pasted_file_needs_no_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = f"n1={RECORDED / 'hdr-node.txt'}"
    answers = []
    for words in ([file], ["--output", file]):
        assert command_line.dispatch(["predict", "--nccl", "2.20.5", "--json", *words]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_a_pasted_file_may_be_in_utf_16(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, answers = tmp_path / "node.txt", []
    for encoding in ("utf-8", "utf-16"):
        file.write_text((RECORDED / "hdr-node.txt").read_text(), encoding=encoding)
        assert command_line.dispatch(["predict", "--nccl", "2.20.5", "--json", str(file)]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_a_path_that_holds_an_equals_sign_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a=b.txt"
    path.write_text("")
    assert command._split(str(path)) == ("", str(path))


@pytest.mark.slow
def test_standard_input_can_be_the_paste() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ringup", "predict", "--nccl", "2.20.5", "--json", "--output", "-"],
        input=(RECORDED / "hdr-node.txt").read_text(),
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["nodes"][0]["network"] == "IB", done.stderr


def test_control_characters_in_pasted_names_are_shown_not_sent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "paste.txt"
    path.write_text("2: eth\x1b[31m0    inet 10.0.0.5/24 scope global eth0\n")
    assert command_line.dispatch(["predict", "--output", str(path), "--env", "NCCL_IB_DISABLE=1"]) == 0
    assert "\x1b" not in capsys.readouterr().out


LINES = [line for path in sorted(RECORDED.glob("*.txt")) for line in path.read_text().splitlines()]
VALUES = st.text("^=:,. abeth0123456789xmlx5_ib\x1b'\"/-", max_size=30)


NAMES = sorted(name for name, row in variables.TABLE.items() if row.by == "NCCL")


@given(
    st.lists(st.sampled_from([*LINES, "2: eth0    inet nonsense/99 scope global eth0"]), max_size=80),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    st.sampled_from([(2, 18, 3), (2, 20, 5), (2, 27, 7), (2, 30, 7)]),
)
def test_no_paste_and_no_setting_breaks_a_prediction(
    lines: list[str], env: dict[str, str], version: tuple[int, ...]
) -> None:
    made = command._known(
        Node("n", unknown=dict(command.NOT_PASTED)), parse_pasted("\n".join(lines)), None, version
    )
    predicted = selection.predict(made, env)
    assert json.dumps(prediction_report.as_json(predicted))
    assert "\x1b" not in prediction_report.as_text(predicted)


@pytest.mark.parametrize("text", ["", "epoch 1\nloss 0.3\n", "\0\x1b[31m" * 100])
def test_what_is_not_understood_at_all_is_an_error_and_no_prediction(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    (tmp_path / "x").write_text(text)
    for words in (["--output", str(tmp_path / "x")], ["--output", f"n1={tmp_path / 'x'}", "--json"]):
        with pytest.raises(PastedError, match="x: no output of a supported tool"):
            command_line.dispatch(["predict", *words])
    assert capsys.readouterr().out == "" and PastedError.exit_code == 4


def test_a_file_not_understood_among_others_is_told_and_its_node_not_guessed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("epoch 1\n")
    words = ["--output", f"n1={RECORDED / 'hdr-addresses.txt'}", "--output", f"n2={tmp_path / 'x'}"]
    assert command_line.dispatch(["predict", "--json", *words]) == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"{tmp_path / 'x'}: no output")
    first, second = json.loads(said.out)["nodes"]
    assert (first["network"], second["network"], second["confidence"]) == ("Socket", None, "low")


@pytest.mark.parametrize(
    ("env", "network"), [({}, ""), ({"NCCL_IB_DISABLE": "1"}, "Socket"), ({"NCCL_NET": "Socket"}, "Socket")]
)
def test_a_node_of_which_nothing_is_known_gets_a_network_only_where_it_was_forced(
    env: dict[str, str], network: str
) -> None:
    nothing = Node("n", unknown=dict(command.NOT_PASTED))
    assert predict(Known(nothing), env).network == network


@pytest.mark.parametrize(
    "cell, said",
    [("OK", "all pairs of GPUs have peer access"), ("CNS", "GPU0-GPU1 CNS; NCCL uses shared memory between")],
)
def test_a_table_of_peer_access_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cell: str, said: str
) -> None:
    table = tmp_path / "p2p.txt"
    table.write_text(f" \tGPU0\tGPU1\n GPU0\tX\t{cell}\n GPU1\t{cell}\tX\n\nLegend:\n\n  X    = Self\n")
    assert command_line.dispatch(["predict", "--output", str(table)]) == 0
    matrix = "\n\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    table.write_text(table.read_text() + matrix)
    assert command_line.dispatch(["predict", "--output", str(table)]) == 0
    told = capsys.readouterr()
    assert told.err.count(said) == 2 and "no output of a supported tool" not in told.err


# -- as people paste it ------------------------------------------------------------------------------

GIDS = "    mlx5_0  1  3  0000:0000:0000:0000:0000:ffff:0a00:0001  10.0.0.1  v2  ens1\n"
ADDRESSES = (
    "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536\nlink/loopback 00:00:00:00:00:00\ninet 127.0.0.1/8\n"
    "2: {0}: <BROADCAST,UP,LOWER_UP> mtu 1500\nlink/ether 02:00:00:00:00:01\n"
    "inet {1}/24 brd 10.0.0.255 scope global {0}\nvalid_lft forever preferred_lft forever\n"
)
TOPO = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\t X \tNV4\tPIX\tSYS\nGPU1\tNV4\t X \tSYS\tPIX\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
)
IP_JSON = json.dumps(
    [
        {"ifindex": 1, "ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "link_type": "loopback"},
        {
            "ifindex": 2,
            "ifname": "eno1",
            "flags": ["UP", "LOWER_UP"],
            "mtu": 1500,
            "link_type": "ether",
            "addr_info": [{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"}],
        },
    ]
)
RDMA_JSON = '[{"ifindex":0,"ifname":"mlx5_0","port":1,"state":"ACTIVE","netdev":"eno1"}]'


def pasted(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[Any], str]:
    """The nodes predicted from a paste, and what was said on stderr."""
    (tmp_path / "p.txt").write_text(text)
    assert command_line.dispatch(["predict", "--json", "--output", str(tmp_path / "p.txt")]) == 0
    out, err = capsys.readouterr()
    return json.loads(out)["nodes"], " ".join(err.split())


def test_show_gids_alone_tells_roce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node,), _ = pasted(tmp_path, GIDS, capsys)
    assert node["interfaces"] == ["mlx5_0:1/RoCE"]
    (port,) = parse_pasted(GIDS).rdma_ports
    assert (port.link_layer, port.netdev, port.gids[0].index) == ("Ethernet", "ens1", 3)


@pytest.mark.parametrize("text", [ADDRESSES.format("eno1", "10.0.0.1"), IP_JSON, f"$ ip -j a\n{IP_JSON}\n"])
def test_addresses_are_read_without_indentation_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (node,), _ = pasted(tmp_path, text, capsys)
    assert node["bootstrap"] == {"interface": "eno1", "address": "10.0.0.1"}


def test_a_table_made_by_column_and_rdmas_json_are_read() -> None:
    (port,) = parse_pasted("mlx5_0   port  1  ==>  ib0   (Up)\n").rdma_ports
    assert (port.name, port.netdev) == ("mlx5_0:1", "ib0")
    (port,) = parse_pasted(RDMA_JSON).rdma_ports
    assert (port.name, port.state, port.link_layer) == ("mlx5_0:1", "ACTIVE", "Ethernet")


def test_the_matrix_alone_tells_the_nic_of_each_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node,), _ = pasted(tmp_path, TOPO, capsys)
    assert node["used"] == [{"gpu": 0, "device": "mlx5_0:1"}, {"gpu": 1, "device": "mlx5_1:1"}]


@pytest.mark.parametrize(
    "text",
    [
        "me@n1:~$ ip a\n{}me@n2:~$ ip a\n{}me@n2:~$ \n",
        "[root@n1 ~]# ip addr show\n{}[root@n2 ~]# ip addr show\n{}",
        "n1:~ # ip addr\n{}n2:~ # ip addr\n{}",
        "((sglang-0.5) ) [me@n1 ~]$ ip a\n{}((sglang-0.5) ) [me@n2 ~]$ ip a\n{}",
    ],
)
def test_two_hosts_in_one_paste_are_two_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    parts = ADDRESSES.format("eno1", "10.0.0.1"), ADDRESSES.format("ib0", "10.0.0.2")
    nodes, _ = pasted(tmp_path, text.format(*parts), capsys)
    assert [(n["name"], n["bootstrap"]["interface"]) for n in nodes] == [("n1", "eno1"), ("n2", "ib0")]


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("n{}: ", ["n1", "n2"]),
        ("[pod/w-{}/c] ", ["w-1/c", "w-2/c"]),
        ("worker-{}  | ", ["worker-1", "worker-2"]),
        ("{}: ", ["1", "2"]),
    ],
)
def test_lines_are_split_by_what_is_in_front_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str, names: list[str]
) -> None:
    parts = ADDRESSES.format("eno1", "10.0.0.1"), ADDRESSES.format("ib0", "10.0.0.2")
    text = "".join(
        prefix.format(n) + f"{line}\n" for n, part in enumerate(parts, 1) for line in part.splitlines()
    )
    nodes, _ = pasted(tmp_path, text, capsys)
    assert [(n["name"], n["bootstrap"]["interface"]) for n in nodes] == [
        (names[0], "eno1"),
        (names[1], "ib0"),
    ]


def test_numbers_of_lines_and_a_pages_source_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ADDRESSES.format("eno1", "10.0.0.1")
    lines = enumerate(given.splitlines(), 1)
    numbered = "".join(f"{n:4}  {line}\n" for n, line in lines)
    for text in (numbered, html.escape(given), given.replace("\n", "\n\n")):
        nodes, said = pasted(tmp_path, text, capsys)
        assert nodes[0]["bootstrap"]["interface"] == "eno1" and "not understood" not in said


def test_devices_of_rdma_are_no_tasks_of_srun() -> None:
    text = "0: mlx5_0: node_type ca fw 20.1 node_guid a\n1: mlx5_1: node_type ca fw 20.1 node_guid b\n"
    assert list(hosts_in(text * 3)) == [""]


def test_hosts_of_dshbak_are_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"n1": ADDRESSES.format("eno1", "10.0.0.1"), "n2": ADDRESSES.format("ib0", "10.0.0.2")}
    rule = "-" * 16
    text = "".join(f"{rule}\n{host}\n{rule}\n{part}" for host, part in parts.items())
    nodes, said = pasted(tmp_path, text, capsys)
    assert [(n["name"], n["bootstrap"]["interface"]) for n in nodes] == [("n1", "eno1"), ("n2", "ib0")]
    assert "not understood" not in said
    nodes, _ = pasted(tmp_path, "".join(parts.values()), capsys)
    assert [n["bootstrap"]["interface"] for n in nodes] == ["eno1", "ib0"]


TWICE = "mlx5_0 port 1 ==> eno1 ({0})\nmlx5_1 port 1 ==> eno2 ({1})\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ADDRESSES.format("eno1", "10.0.0.1"), ADDRESSES.format("eno1", "10.0.0.2")),
        (TWICE.format("Up", "Down"), TWICE.format("Down", "Up")),
        (GIDS, GIDS.replace("0a00:0001", "0a00:0002")),
        (TWICE.format("Up", "Up") + GIDS, GIDS.replace("mlx5_0", "hrn_0") + GIDS.replace("0001", "0002")),
    ],
)
def test_the_same_devices_with_other_values_are_another_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str
) -> None:
    nodes, said = pasted(tmp_path, f"on the server:\n\n{first}\non the client:\n\n{second}", capsys)
    assert [n["name"] for n in nodes] == ["part 1", "part 2"]
    assert "the same devices again with other values: 2 nodes" in said
    (_,), said = pasted(tmp_path, f"{first}\nonce more:\n\n{first}", capsys)
    assert "again" not in said


def test_the_name_of_an_interface_tells_its_link_layer_and_a_roce_port_is_down_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "mlx5_0 port 1 ==> ibp3s0 (Down)\nrocep1s0f0 port 1 ==> x (Down)\nmlx5_2 port 1 ==> net1 (Down)\n"
    (node,), _ = pasted(tmp_path, text, capsys)
    assert node["interfaces"] == ["mlx5_0:1/IB", "mlx5_2:1/?"]
    assert because(node, "rocep1s0f0:1 is DOWN") and because(node, "the state of mlx5_0:1, mlx5_2:1")


def test_pasted_variables_of_nccl_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text(
        "mlx5_an0 port 1 ==> eth0 (Up)\nmlx5_ib0 port 1 ==> ib0 (Up)\n"
        "$ env | grep NCCL\nNCCL_IB_HCA=mlx5_ib\nexport NCCL_DEBUG='INFO'\n"
    )
    assert command_line.dispatch(["predict", str(tmp_path / "a")]) == 0
    out, err = capsys.readouterr()
    assert "mlx5_an0:1 is left out by NCCL_IB_HCA=mlx5_ib" in out and "not understood" not in err


def test_a_rate_that_nobody_pasted_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node,), _ = pasted(tmp_path, TOPO, capsys)
    assert because(node, "GPU 0 uses mlx5_0:1: the closest (mlx5_0:1 PIX, mlx5_1:1 SYS)")
    assert because(node, "the rates of some devices are not known") and not because(node, "GB/s")


@pytest.mark.parametrize("name", ["eight-hcas.txt", "hdr-addresses.txt", "roce.txt", "desktop.txt"])
@pytest.mark.parametrize(
    "form", ["    {}", "> {}", "\t{}", "\x1b[32m{}\x1b[0m", "gpu01: {}", "2026-11-27T10:00:00.5Z {}"]
)
def test_a_paste_is_read_behind_what_each_of_its_lines_begins_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    lines = (RECORDED / name).read_text(encoding="utf-8").splitlines()
    (tmp_path / "wrapped.txt").write_text("\n".join(map(form.format, lines)) + "\n", encoding="utf-8")
    as_it_is = predicted(capsys, "--output", name)
    assert predicted(capsys, "--output", str(tmp_path / "wrapped.txt")) == as_it_is


def test_a_part_of_the_interfaces_is_said_to_be_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "3: eno2: <BROADCAST,MULTICAST> mtu 1500\n    link/ether 02:00:00:00:00:02\n    inet 10.1.0.1/24\n"
    (node,), said = pasted(tmp_path, text, capsys)
    assert "a part of the interfaces" in said
    assert not because(node, "every communicator fails") and because(node, "only a part was pasted")


def test_what_was_not_understood_or_not_needed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        ADDRESSES.format("eno1", "10.0.0.1")
        + "and then it hung again!\nSettings for eno1:\n\tSpeed: 100Mb/s\n"
    )
    said = pasted(tmp_path, text, capsys)[1]
    assert "line 8 not understood ('and then it hung again!')" in said
    assert "ethtool: NCCL's choice does not depend on it" in said


def test_the_legend_and_the_hardware_lines_of_tools_are_no_strange_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    legend = "Legend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    peers = f"\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\n{legend}"
    assert "not understood" not in pasted(tmp_path, ADDRESSES.format("eno1", "10.0.0.1") + peers, capsys)[1]
    card = "eth0: flags=4163<UP,RUNNING>  mtu 1500\n        inet 10.0.0.2  netmask 255.255.255.0\n"
    memory = "        device memory 0xa3b00000-a3bfffff\n"
    assert "not understood" not in pasted(tmp_path, card + memory, capsys)[1]
