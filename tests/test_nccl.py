"""NCCL's choice of interfaces; expected answers are the library's own, 2.18.3 to 2.32.3."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ringup.model import Interface, Job, Node, Resolution
from ringup.nccl import interface_choice, variables
from ringup.nccl.interface_choice import ANY, parse_names
from ringup.network import gloo
from ringup.network.predictions import Selection
from ringup.planning.preset_variables import OF_IMAGES
from tests import clusters as c
from tests import trees

OLD, NEW = "2.20.5", "2.28.9"
KINDS = "NCCL|GLOO|TORCH_NCCL|TORCH_FR|TORCH_DISTRIBUTED|CUDA_LAUNCH|UCX_NET|FI"
VARIABLE = re.compile(rf"(?:{KINDS})_[A-Z0-9_]*[A-Z0-9]")


def played(nccl: str = OLD, *interfaces: Interface) -> Node:
    """The host on which the library was asked: veth with fe80 only, eno1, enp99s0, ib0, docker0."""
    cards = interfaces or (
        c.interface("veth1", "fe80::1/64", kind="veth"),
        c.interface("eno1", "10.0.0.10/24", "fe80::2/64"),
        c.interface("enp99s0", "192.168.99.10/24", "fe80::3/64"),
        c.interface("ib0", "10.10.0.10/24", "fe80::4/64", kind="veth"),
        c.interface("docker0", "172.17.0.1/16", kind="bridge"),
    )
    interpreter = c.TORCH.__class__("/usr/bin/python3", nccl=nccl)
    return c.node("node0", *cards, interpreter=interpreter)


def first(env: dict[str, str], node: Node | None = None) -> str:
    """ "interface address" of the bootstrap, "" for none."""
    found = Selection(node or played(), Job(), env).bootstrap
    return f"{found.interface} {found.address}" if found else ""


@pytest.mark.parametrize(
    ("env", "answer"),
    [
        ({}, "ib0 10.10.0.10"),
        ({"NCCL_SOCKET_IFNAME": "enp"}, "enp99s0 192.168.99.10"),
        ({"NCCL_SOCKET_IFNAME": "^ib,docker"}, "lo 127.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": "=eno"}, ""),
        ({"NCCL_SOCKET_IFNAME": "=eno1"}, "eno1 10.0.0.10"),
        ({"NCCL_SOCKET_IFNAME": "==eno1"}, ""),
        ({"NCCL_SOCKET_IFNAME": "e"}, "ib0 10.10.0.10"),
        ({"NCCL_SOCKET_IFNAME": ""}, "ib0 10.10.0.10"),
        ({"NCCL_SOCKET_IFNAME": "eth9, eno1"}, ""),
        ({"NCCL_SOCKET_IFNAME": "eth9,eno1"}, "eno1 10.0.0.10"),
        ({"NCCL_SOCKET_IFNAME": "^=ib0,docker0,lo"}, "eno1 10.0.0.10"),
        ({"NCCL_COMM_ID": "192.168.99.11:5000"}, "enp99s0 192.168.99.10"),
        ({"NCCL_COMM_ID": "192.168.98.11:5000"}, ""),
        ({"NCCL_COMM_ID": "head:5000"}, ""),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "ib0 fe80::4"),
        ({"NCCL_SOCKET_FAMILY": "INET6"}, "ib0 10.10.0.10"),
    ],
)
def test_the_bootstrap_interface_is_the_one_the_library_names(env: dict[str, str], answer: str) -> None:
    assert first(env) == answer


def test_without_an_ib_name_the_first_ipv4_address_in_the_kernels_order_wins() -> None:
    node = played(OLD, c.interface("veth1", "fe80::1/64"), c.interface("eno1", "fe80::2/64", "10.0.0.1/24"))
    assert first({}, node) == "eno1 10.0.0.1"
    assert [s.interface for s in Selection(node, Job(), {}).sockets] == ["eno1", "veth1"]


@pytest.mark.parametrize(("version", "answer"), [(OLD, "ib0 10.10.0.10"), (NEW, "eno1 10.0.0.1")])
def test_a_link_that_is_down_is_taken_up_to_2_27(version: str, answer: str) -> None:
    node = played(version, c.interface("eno1", "10.0.0.1/24"), c.interface("ib0", "10.10.0.10/24", up=False))
    assert first({}, node) == answer


@pytest.mark.parametrize(("version", "answer"), [(OLD, "virbr0 192.168.122.1"), (NEW, "enp1s0 10.0.0.1")])
def test_virbr_goes_last_from_2_28_on(version: str, answer: str) -> None:
    node = played(
        version,
        c.interface("virbr0", "192.168.122.1/24", kind="bridge"),
        c.interface("enp1s0", "10.0.0.1/24"),
    )
    assert first({}, node) == answer


def test_docker_is_better_than_loopback_and_loopback_better_than_nothing() -> None:
    assert first({}, played(OLD, c.interface("docker0", "172.17.0.1/16"))) == "docker0 172.17.0.1"
    assert first({}, played(OLD, c.interface("eno1"))) == "lo 127.0.0.1"


def test_nccl_conf_counts_below_the_shell_and_the_shell_below_the_plan() -> None:
    node = played()
    node = c.changed(c.cluster(node), "node0", nccl_conf={"NCCL_SOCKET_IFNAME": "eno1"}).nodes[0]
    assert first({}, node) == "eno1 10.0.0.10"
    node = c.changed(c.cluster(node), "node0", environment={"NCCL_SOCKET_IFNAME": "enp99s0"}).nodes[0]
    assert first({}, node) == "enp99s0 192.168.99.10"
    assert first({"NCCL_SOCKET_IFNAME": "ib0"}, node) == "ib0 10.10.0.10"


def test_at_most_16_names_of_a_list_count() -> None:
    listed = ",".join([*(f"no{k}" for k in range(16)), "eno1"])
    assert first({"NCCL_SOCKET_IFNAME": listed}) == ""


@pytest.mark.parametrize(
    ("text", "name", "port", "taken"),
    [
        ("mlx5_1", "mlx5_10", 1, True),
        ("=mlx5_1", "mlx5_10", 1, False),
        ("^mlx5_1", "mlx5_10", 1, False),
        ("^=mlx5_1", "mlx5_10", 1, True),
        ("mlx5_1:2", "mlx5_1", 1, False),
        ("mlx5_1:2", "mlx5_1", 2, True),
        ("mlx5_1:", "mlx5_1", 7, True),
        ("mlx5_1:x", "mlx5_1", 1, False),
        ("mlx5_1:1:3", "mlx5_1", 1, True),
        ("eth0:5", "eth0", ANY, True),
        ("^", "eth0", 1, False),
        ("", "eth0", 1, True),
        ("=^eth0", "^eth0", 1, True),
    ],
)
def test_the_name_filter_matches_as_nccl_does(text: str, name: str, port: int, taken: bool) -> None:
    assert parse_names(text).accepts(name, port) is taken


def test_lines_are_printed_as_nccl_prints_them() -> None:
    chosen = interface_choice.Choice("ib0", "10.10.0.10", "")
    local = interface_choice.Choice("ib1", "fe80::1", "")
    assert interface_choice.bootstrap_line(chosen, (2, 20, 5)) == "Bootstrap : Using ib0:10.10.0.10<0>"
    assert interface_choice.bootstrap_line(chosen, (2, 24, 3)) == "Bootstrap: Using ib0:10.10.0.10<0>"
    assert interface_choice.sockets_line([chosen, local]) == (
        "NET/Socket : Using [0]ib0:10.10.0.10<0> [1]ib1:fe80::1%ib1<0>"
    )


@pytest.mark.parametrize("text", ["", "unknown", "2", "abc.def", "2.²"])
def test_a_version_that_cannot_be_read_is_assumed(text: str) -> None:
    assert interface_choice.version_of(text) == interface_choice.ASSUMED


def test_a_pin_is_needed_only_where_nccl_would_leave_the_proven_interfaces() -> None:
    node = c.two_networks(0)
    assert Selection(node, Job(), {}).nccl_leaves("em1", {"enp99s0"}) == ""
    assert "also carries data over enp99s0" in Selection(node, Job(), {}).nccl_leaves("em1")
    assert "takes em1" in Selection(node, Job(), {}).nccl_leaves("enp99s0")
    assert Selection(node, Job(), {"NCCL_SOCKET_IFNAME": "=enp99s0"}).nccl_leaves("enp99s0") == ""
    assert "no interface" in Selection(node, Job(), {"NCCL_SOCKET_IFNAME": "=eth7"}).nccl_leaves("enp99s0")


# Gloo.


def announced(node: Node, **env: str) -> list[str]:
    return [f"{a.interface} {a.address}" for a in gloo.announced(node, env)]


def test_gloo_announces_the_first_address_of_its_name_that_it_can_bind() -> None:
    node = c.two_networks(0)
    other = Resolution("node0", ("10.9.9.9", "90.91.33.64", "10.12.5.64"))
    node = c.changed(c.cluster(node), "node0", own_name=other).nodes[0]
    assert announced(node) == ["enp99s0 90.91.33.64"]


@pytest.mark.parametrize("addresses", [("127.0.1.1",), ("10.9.9.9",), ()])
def test_gloo_falls_back_to_loopback_without_a_name_of_its_own(addresses: tuple[str, ...]) -> None:
    node = c.changed(c.healthy(), "node0", own_name=Resolution("node0", addresses)).nodes[0]
    assert announced(node)[0].startswith("lo 127.")


def test_gloo_takes_exact_names_and_lists_of_them() -> None:
    node = c.two_networks(0)
    assert announced(node, GLOO_SOCKET_IFNAME="em1") == ["em1 10.12.5.64"]
    assert announced(node, GLOO_SOCKET_IFNAME="em1,enp99s0") == ["em1 10.12.5.64", "enp99s0 90.91.33.64"]
    assert announced(node, GLOO_SOCKET_IFNAME="em") == []
    assert announced(node, GLOO_SOCKET_IFNAME="^em1") == []


def test_an_address_with_a_label_is_an_interface_of_that_name() -> None:
    card = c.interface("eth0", "10.0.0.1/24", "10.9.0.1/24")
    own = (card.addresses[0], replace(card.addresses[1], label="eth0:1"))
    node = c.node("node0", replace(card, addresses=own))
    assert announced(node, GLOO_SOCKET_IFNAME="eth0:1") == ["eth0 10.9.0.1"]
    assert announced(node, GLOO_SOCKET_IFNAME="eth0") == ["eth0 10.0.0.1"]

    def taken(text: str) -> list[str]:
        found = interface_choice.interfaces(node.interfaces, {"NCCL_SOCKET_IFNAME": text}, (2, 27, 7), 16)
        return [one.address for one in found]

    assert taken("eth0") == taken("eth0:1") == ["10.0.0.1", "10.9.0.1"]  # NCCL reads :1 as a port
    assert taken("=eth0") == taken("=eth0:1") == ["10.0.0.1"]


def test_gloo_needs_a_pin_only_where_it_would_announce_another_address() -> None:
    node = c.two_networks(0)
    assert Selection(node, Job(), {}).gloo_leaves(["90.91.33.64"]) == ""
    assert "em1 10.12.5.64" in Selection(node, Job(), {"GLOO_SOCKET_IFNAME": "em1"}).gloo_leaves(
        ["90.91.33.64"]
    )
    assert "eth7" in Selection(node, Job(), {"GLOO_SOCKET_IFNAME": "eth7"}).gloo_leaves(["90.91.33.64"])


# Variables.


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_P2P_DISABLED", "NCCL_P2P_DISABLE"),
        ("NCCL_SOCKET_IFNAME", ""),
        ("NCCL_MY_OWN_THING", ""),
        ("NCCL_OFI_TOPO_DUMP", ""),
        ("MASTER_ADDR", ""),
    ],
)
def test_a_misspelt_variable_is_told_from_a_known_one(name: str, meant: str) -> None:
    assert variables.meant(name) == meant


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [("DEBUG", "DEUBG", 1), ("IFNAM", "IFNAME", 1), ("", "ab", 2), ("abc", "cab", 2)],
)
def test_two_letters_that_changed_places_are_one_edit(a: str, b: str, count: int) -> None:
    assert variables.edits(a, b) == variables.edits(b, a) == count


def test_every_variable_that_the_source_names_has_a_row() -> None:
    found = set()
    for path in (path for path in trees.modules() if VARIABLE.search(path.read_text())):
        strings = (n.value for n in trees.nodes(path) if isinstance(n, ast.Constant))
        found |= {s for s in strings if isinstance(s, str) and VARIABLE.fullmatch(s)}
    assert len(found) > 30 and found <= {*variables.TABLE, *OF_IMAGES}


def test_the_rows_are_in_order_and_each_says_something_once() -> None:
    names = [*variables.TABLE]
    text = Path(variables.__file__).with_name("variables.json").read_text()
    assert names == sorted(names) and text.count('"name"') == len(names)
    assert {cloud for row in variables.TABLE.values() for cloud in row.clouds} == set(variables.MACHINES)
