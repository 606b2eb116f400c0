"""Who the nodes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import hosts
from ringup.errors import NodesError
from ringup.model import Host


def expanded(text: str) -> list[str]:
    return [host.name for host in hosts.expand(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[1-3],gpu3", ["node1", "node2", "node3", "gpu3"]),
        ("gpu3,node[1-2]", ["gpu3", "node1", "node2"]),
        ("node[3,1-2]", ["node3", "node1", "node2"]),
        ("r[2,1]n[1-2]", ["r2n1", "r2n2", "r1n1", "r1n2"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[1-9/4]-ib", ["node1-ib", "node5-ib", "node9-ib"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("fe80::1%eth0,[2001:db8::7]", ["fe80::1%eth0", "2001:db8::7"]),
        ("b, a", ["b", "a"]),
    ],
)
def test_nodes_come_in_the_order_as_written(text: str, names: list[str]) -> None:
    assert expanded(text) == names


def test_a_user_is_kept_apart_from_the_name() -> None:
    assert hosts.expand("alice@node[1-2],bob@[::1],c") == (
        Host("node1", "alice"),
        Host("node2", "alice"),
        Host("::1", "bob"),
        Host("c"),
    )


@pytest.mark.parametrize("text", ["node1:2222", "node0,node1:2"])
def test_a_number_behind_a_name_is_a_port_or_a_count_that_has_another_place(text: str) -> None:
    with pytest.raises(NodesError, match="is not a host name") as refused:
        hosts.expand(text)
    assert "~/.ssh/config" in str(refused.value.hint) and "--nproc" in str(refused.value.hint)


@pytest.mark.parametrize(
    "text", ["node[1-999999999]", "a[1-10001]", "a[1-101]b[1-100]", "a[1-6000],b[1-6000]"]
)
def test_too_many_nodes_are_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(NodesError, match="more than 10,000 nodes"):
        hosts.expand(text)


def test_ten_thousand_nodes_are_allowed() -> None:
    assert len(hosts.expand("a[1-10000]")) == 10_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,,b",
        "-oProxyCommand=reboot",
        "a b",
        "a;b",
        "$(reboot)",
        "`x`",
        "a'b",
        'a"b',
        "a\nb",
        "a\0b",
        "a\x1b[2J",
        "a\u202eb",
        "é",
        "..",
        "/etc",
        "a/b",
        "a|b",
        "a&b",
        "a*b",
        "@all",
        "u ser@node1",
        "-l@node1",
        "user@",
        "@",
        "[",
        "a]b[",
        "a[1-3",
        "a[3-1]",
        "a[1-3/0]",
        "a[x-y]",
        "a[]",
        "a[[1]]",
        "::gg",
        "a:22",
        "x" * 254,
        "x" * (2 << 20),
    ],
)
def test_what_is_no_node_list_is_refused_in_words(text: str) -> None:
    with pytest.raises(NodesError) as caught:
        hosts.expand(text)
    assert caught.value.hint
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@given(st.text(max_size=60) | st.text("[]-,/0123456789abc@:*%.", max_size=40))
def test_any_text_is_nodes_or_a_nodes_error(text: str) -> None:
    try:
        found = hosts.expand(text)
    except NodesError:
        return
    for host in found:
        assert not host.name.startswith("-")
        assert not set(host.name) & set(" '\"`$;&|<>\\/\n")


def test_a_node_written_twice_is_refused_by_name() -> None:
    with pytest.raises(NodesError, match="node2 is named twice"):
        hosts.expand("node[1-3],alice@node2")


def test_groups_need_to_be_allowed() -> None:
    with pytest.raises(NodesError) as caught:
        hosts.expand("@gpus")
    assert "--groups" in caught.value.hint


def test_a_host_file_is_read_in_all_three_dialects() -> None:
    text = (
        "# cluster\nnode1 slots=8 max_slots=9\n\nnode2:4   # MPICH\nalice@node[3-4] slots=2\n[::1]:3\nnode1\n"
    )
    found = [(h.name, h.user, h.slots) for h in hosts.read_hostfile(text)]
    assert found == [
        ("node1", "", 9),
        ("node2", "", 4),
        ("node3", "alice", 2),
        ("node4", "alice", 2),
        ("::1", "", 3),
    ]


@pytest.mark.parametrize(
    "text", ["", "#\n", "a b", "a slots=x", "a slots=-1", "ok\n$(x)", "a\x0bb", "a slots=1\x1b"]
)
def test_a_broken_host_file_is_refused(text: str) -> None:
    with pytest.raises(NodesError):
        hosts.read_hostfile(text)


def test_the_line_of_a_host_file_is_named() -> None:
    with pytest.raises(NodesError, match="line 3") as raised:
        hosts.read_hostfile("a\nb\nc;d\n")
    assert raised.value.hint == "one node per line: node1 slots=8"


def test_no_allocation_is_none() -> None:
    assert hosts.from_allocation({}) is None


def test_slurm_gives_nodes_and_tasks() -> None:
    environ = {"SLURM_JOB_NODELIST": "gpu[01-02],login", "SLURM_TASKS_PER_NODE": "4(x2),1"}
    found = hosts.from_allocation(environ)
    assert found is not None
    assert [(h.name, h.slots) for h in found] == [("gpu01", 4), ("gpu02", 4), ("login", 1)]


def test_slurm_counts_that_do_not_fit_are_left_out() -> None:
    environ = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x999999999)"}
    found = hosts.from_allocation(environ)
    assert found is not None
    assert [h.slots for h in found] == [0, 0]


def test_pbs_lines_are_slots(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("n1\nn1\nn2\nn2\n")
    found = hosts.from_allocation({"PBS_NODEFILE": str(file)})
    assert found and all(host.in_batch for host in found)
    assert [(h.name, h.slots) for h in found] == [("n1", 2), ("n2", 2)]


def test_a_pbs_file_that_is_gone_is_named(tmp_path: object) -> None:
    with pytest.raises(NodesError, match=r"PBS_NODEFILE names .*gone: No such file"):
        hosts.from_allocation({"PBS_NODEFILE": f"{tmp_path}/gone"})


@pytest.mark.parametrize("environ", [{"LSB_MCPU_HOSTS": "n1 4 n2 4"}, {"LSB_DJOB_HOSTFILE": "nodes"}])
def test_lsf_gives_nodes_and_slots(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes").write_text("n1\n" * 4 + "n2\n" * 4)
    found = hosts.from_allocation({"LSB_JOBID": "1", **environ})
    assert found and all(host.in_batch for host in found)
    assert [(h.name, h.slots) for h in found] == [("n1", 4), ("n2", 4)]


def test_an_indexed_job_names_its_pods() -> None:
    environ = {
        "JOB_COMPLETION_INDEX": "1",
        "JOB_COMPLETIONS": "2",
        "HOSTNAME": "train-1",
        "SERVICE_NAME": "svc",
    }
    found = hosts.from_allocation(environ)
    assert found is not None
    assert [host.name for host in found] == ["train-0.svc", "train-1.svc"]


def test_local_nodes_are_called_by_their_addresses() -> None:
    first, second = hosts.local_nodes(2)
    assert (first.name, first.address, first.local) == ("127.0.0.2", "127.0.0.2", True)
    assert second.name == "127.0.0.3"


@pytest.mark.parametrize("count", [0, -1, 201])
def test_a_silly_number_of_local_nodes_is_refused(count: int) -> None:
    with pytest.raises(NodesError):
        hosts.local_nodes(count)


def test_this_machine_is_one_local_node() -> None:
    (host,) = hosts.this_machine()
    assert host.local
    assert host.name
