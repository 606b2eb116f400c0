"""`ringup diff`: what differs between two runs, collections or environments, worst first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup import bundle
from ringup.cli.command_line import dispatch
from ringup.differences import Amount, Side, compare, not_compared
from ringup.differences.sides import step_s
from ringup.errors import BundleError, UsageError
from ringup.model import Cluster, Gpu, Limits, Space, Unreached
from tests import clusters as c
from tests import json_outputs

Saved = Callable[..., str]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Saved:
    """Writes a cluster as `--save` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def write(name: str, cluster: Cluster) -> str:
        bundle.save(cluster, tmp_path / name)
        return name

    return write


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = dispatch(["diff", *words])
    return code, capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    _, out = printed(capsys, *words, "--json")
    json_outputs.check("diff", json.loads(out))
    found: list[dict[str, Any]] = json.loads(out)["differences"]
    return found


def named(found: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {f"{d['topic']} {d['name']}": (d["before"], d["after"]) for d in found}


def record(folder: Path, **more: Any) -> str:
    """A run's folder; `env`, `versions` and `interface` hold for both of its nodes."""
    own = {name: more.pop(name, default) for name, default in (("env", {}), ("versions", {"torch": "2.7.1"}))}
    names, own["interface"] = more.pop("nodes", ["node0", "node1"]), more.pop("interface", "enp99s0")
    nodes = [
        {"node": n, "rank": i, "nproc": 8, "first_rank": 8 * i, "address": "", "words": [], **own}
        for i, n in enumerate(names)
    ]
    whole = {"run_id": "r", "job": {"script": "train.py"}, "nodes": nodes, "env": [], "master_port": 29500}
    plan = {**whole, "master_addr": more.pop("master_addr", "10.0.0.10"), "world_size": 8 * len(nodes)}
    content = {"run": folder.name, "outcome": "ok", "started": 100.0, "seconds": 3.0, "plan": plan, **more}
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(content))
    return str(folder)


# -- facts ---------------------------------------------------------------------------------------


def test_it_worked_yesterday_is_answered_in_about_ten_lines(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    """Overnight node0 got a first card that node1 cannot reach, and node1 an older torch."""
    before = replace(c.article_002().nodes[0], interfaces=c.article_002().nodes[1].interfaces)
    fast = c.interface("enp99s0", "90.91.33.64/24", speed_gbit_s=10.0)
    before = c.node("node0", fast)
    a = saved("yesterday", c.cluster(before, c.article_002().nodes[1]))
    now = c.changed(c.article_002(), "node1", interpreter=replace(c.TORCH, torch="2.6.0"))
    code, out = printed(capsys, a, saved("today", now))
    lines = out.splitlines()
    assert code == 1 and len(lines) <= 16 and max(map(len, lines)) <= 80
    assert lines[3].startswith("error    new problem torch-versions-differ on node1")
    found = named(told(capsys, "yesterday", "today"))
    assert found["version torch"] == ("2.13.0", "2.6.0")
    assert found["variable GLOO_SOCKET_IFNAME"] == ("", "enp99s0")
    assert "problem peer-unreachable-on-interface" in found
    assert found["machine own name"] == ("90.91.33.64", "10.12.5.64")


def test_equal_facts_do_not_differ(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, saved("a", c.healthy(4)), saved("b", c.healthy(4)))
    assert code == 0 and out.splitlines()[-1] == "No difference that matters was found."
    assert "not compared" not in out


def test_gpus_that_a_run_or_an_environment_does_not_record_are_not_gone(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = (Gpu(0, name="H100"), Gpu(1, name="H100"))
    facts = saved("facts", c.changed(c.healthy(2), "node0", gpus=gpus))
    (tmp_path / "env").write_text('{"env": [], "kept": []}')
    for other in (record(tmp_path / "run"), "env"):
        for pair in ((facts, other), (other, facts)):
            assert not [d for d in told(capsys, *pair) if d["name"] == "GPUs"]
            assert "node" in printed(capsys, *pair)[1].partition("not compared: ")[2].partition(":")[0]


def test_what_differs_on_many_nodes_alike_is_one_line(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    now = c.healthy(64)
    now = replace(now, nodes=tuple(replace(n, kernel="6.8.1") if n.name != "node7" else n for n in now.nodes))
    code, out = printed(capsys, saved("a", c.healthy(64)), saved("b", now))
    assert "version kernel on node[0-6,8-63] (63 nodes): 6.8.0 -> 6.8.1" in out
    assert code == 0 and len(out.splitlines()) == 4


def test_a_node_that_is_not_reached_any_more_is_the_first_and_its_facts_are_not_gone(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = c.unreached("node1", "ssh-timeout")
    assert isinstance(lost.unreached, Unreached)
    b = saved("b", c.cluster(c.plain(0), lost))
    found = told(capsys, saved("a", c.healthy(2)), b)
    assert {(d["topic"], d["severity"]) for d in found[:2]} == {("problem", "error"), ("ssh", "error")}
    assert named(found)["ssh to the node"] == ("works", "ssh-timeout")
    assert not [d for d in found if d["topic"] in ("interface", "version", "link")]


def test_facts_of_the_machine_that_could_not_be_read_are_not_zero(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    before = c.changed(c.healthy(2), "node1", cpu_count=64, limits=Limits(65536, 1024))
    unread = dict.fromkeys(("cpu_count", "limits", "shm", "boot_id", "own_name"), "no answer in time")
    empty = c.node("node1")
    blank = {name: getattr(empty, name) for name in unread}
    now = c.changed(before, "node1", **blank, unknown=unread)
    lost = replace(before, nodes=(before.nodes[0], c.unreached("node1", "ssh-timeout")))
    a = saved("a", before)
    for b in (saved("b", now), saved("lost", lost)):
        assert not [d for pair in ((a, b), (b, a)) for d in told(capsys, *pair) if d["topic"] == "machine"]
    assert "memlock" in printed(capsys, a, "b")[1].partition("not compared: ")[2]


def test_facts_that_could_not_be_read_on_many_nodes_are_one_line(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = {"interfaces": "no answer", "gpu_driver": "no answer"}
    nodes = tuple(replace(n, unknown=hidden) if n.name != "node3" else n for n in c.healthy(40).nodes)
    _, out = printed(capsys, saved("a", c.healthy(40)), saved("b", Cluster(nodes)))
    lines = [line for line in out.splitlines() if line.startswith("not compared")]
    assert "not compared: interface, link: b: node[0-2,4-39] (39 nodes): no answer" in lines
    assert "not compared: driver: b: node[0-2,4-39] (39 nodes): could not be read" in lines
    assert len(lines) < 6


def test_a_problem_that_one_of_the_two_could_not_check_is_neither_new_nor_gone(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    small = c.changed(c.healthy(2), "node1", shm=Space("/dev/shm", 64 << 20, 60 << 20))
    hidden = c.changed(c.healthy(2), "node1", unknown={"shm": "df: permission denied"})
    (found,) = [d for d in told(capsys, saved("a", hidden), saved("b", small)) if d["topic"] == "problem"]
    assert (found["name"], found["before"]) == ("shm-too-small", "not checked")
    assert [d for d in told(capsys, "b", "a") if d["topic"] == "problem"] == []
    (found,) = [d for d in told(capsys, "b", saved("c", c.healthy(2))) if d["topic"] == "problem"]
    assert (found["severity"], found["after"]) == ("note", "")


def test_what_got_better_is_a_note(saved: Saved, capsys: pytest.CaptureFixture[str]) -> None:
    cut = c.healthy(2, broken=[("node1", "node0", "10.0.0.10", "timed out")])
    found = told(capsys, saved("a", cut), saved("b", c.healthy(2)))
    assert found and {d["severity"] for d in found} == {"note"}
    assert named(found)["path to enp99s0"] == ("fails from node1", "works")


def test_a_new_node_is_held_against_what_most_others_have(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [c.plain(k) for k in range(3)]
    new = c.plain(3, kernel="5.15.0")
    found = told(capsys, saved("a", c.cluster(*nodes)), saved("b", c.cluster(*nodes[:2], new)))
    assert named(found)["node nodes gone"] == ("node2", "")
    assert named(found)["node nodes new"] == ("", "node3")
    assert next(d for d in found if d["name"] == "kernel")["nodes"] == ["node3"]
    assert "link enp99s0 address" not in named(found)  # each node has its own


def test_a_fact_that_changed_on_each_node_in_its_own_way_is_one_line(
    saved: Saved, capsys: pytest.CaptureFixture[str]
) -> None:
    def moved(k: int) -> Any:
        return c.node(f"node{k}", c.interface("enp99s0", f"10.7.0.{10 + k}/24", speed_gbit_s=100.0))

    a = saved("a", c.cluster(*(c.plain(k) for k in range(9))))
    code, out = printed(capsys, a, saved("b", c.cluster(*map(moved, range(9)))))
    lines = [line for line in out.splitlines() if "address" in line]
    assert code == 0
    assert lines == ["warning  link enp99s0 address: 10.0.0.10 and 8 others -> 10.7.0.10 and 8 others"]
    assert printed(capsys, "a", "b", "--all")[1].count("link enp99s0 address") == 9


# -- runs ----------------------------------------------------------------------------------------


def test_two_runs_are_compared_by_what_was_set_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = [{"node": n, "network": "IB", "devices": [], "said": []} for n in ("node0", "node1")]
    tcp = [{**one, "network": "Socket"} for one in seen]
    a = record(tmp_path / "a", env={"NCCL_IB_HCA": "mlx5"}, transports={"seen": seen})
    cause = {"rule": "fell-back-to-sockets", "text": "x"}
    now = {"versions": {"torch": "2.6.0"}, "env": {"NCCL_IB_DISABLE": "1"}, "interface": "eno1"}
    end = {"outcome": "hung", "cause": cause, "transports": {"seen": tcp}}
    b = record(tmp_path / "b", nodes=["node1", "node0"], **now, **end)
    found = told(capsys, a, b)
    assert (found[0]["severity"], found[0]["before"]) == ("error", "ok")
    assert found[0]["after"] == "hung: fell-back-to-sockets"
    assert named(found) | {
        "selection network seen": ("IB", "Socket"),
        "plan interface of the ranks": ("enp99s0", "eno1"),
        "variable NCCL_IB_HCA": ("mlx5", ""),
        "variable NCCL_IB_DISABLE": ("", "1"),
        "version torch": ("2.7.1", "2.6.0"),
        "node order": ("node0 node1", "node1 node0"),
    } == named(found)


def test_values_of_secrets_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = record(tmp_path / "a", env={"WANDB_API_KEY": "0123456789abcdef"})
    _, out = printed(capsys, a, record(tmp_path / "b", env={}))
    assert "WANDB_API_KEY" in out and "0123456789abcdef" not in out


def test_rates_of_a_bench_and_times_of_a_step_are_compared_beyond_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(rate: float) -> str:
        fields = {
            "kind": "row",
            "op": "all_reduce",
            "size_bytes": 1024,
            "busbw_gbyte_s": rate,
            "correct": True,
        }
        return f"@ringup {json.dumps(fields)}\n"

    folders = [record(tmp_path / name) for name in ("a", "b", "c")]
    for folder, rate, step in zip(folders, (12.0, 11.5, 4.0), ("0.50", "0.52", "1.00"), strict=True):
        text = row(rate) + "".join(f"step {n} {step}s/it\n" for n in range(5))
        (Path(folder) / "rank-00000-node0.log").write_text(text)
    assert told(capsys, *folders[:2]) == []
    found = told(capsys, folders[0], folders[2])
    assert [(d["name"], round(d["change"], 2), d["severity"]) for d in found] == [
        ("all_reduce bus bandwidth", -0.67, "warning"),
        ("time of a step", 1.0, "warning"),
    ]
    assert {d["severity"] for d in told(capsys, folders[2], folders[0])} == {"note"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"40%|#| 4/9 [00:01<00:08, 2.00it/s]\r" * 3, 0.5),
        (b"step 7: 250.0 ms/step\n" * 3, 0.25),
        (b" elapsed time per iteration (ms): 1500.0 | loss\n" * 3, 1.5),
        (b"step_time: 2.5 s\niter time=3.5s\nstep time 4.5s\n", 3.5),
        (b"1.0s/it\n", None),
        (b"0.00it/s\n" * 3, None),
        (b"lr 0.1 step 3\n" * 5, None),
    ],
)
def test_the_time_of_a_step_is_read_as_programs_print_it(text: bytes, seconds: float | None) -> None:
    assert step_s(text) == seconds


def test_a_run_and_facts_are_compared_by_what_both_have(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = record(tmp_path / "run", versions={"torch": "2.7.1", "python": "3.11.7"})
    _, out = printed(capsys, run, saved("facts", c.healthy(2)))
    assert "version torch: 2.7.1 -> 2.13.0" in out
    assert "link" not in out.partition("not compared")[0]
    assert "outcome" not in out and "script" not in out
    assert "not compared: path, interface: run: a run does not record it" in " ".join(out.split())


def test_a_record_without_versions_is_said_and_nothing_is_called_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = record(tmp_path / "a", versions={}), record(tmp_path / "b")
    _, out = printed(capsys, a, b)
    assert "not compared: version: a: an earlier ringup did not record" in " ".join(
        out.replace(f"{tmp_path}/", "").split()
    )
    assert "torch" not in out


def test_the_run_of_a_real_plan_holds_what_is_compared(saved: Saved) -> None:
    """What `run` writes down for a plan is what `diff` reads of it."""
    from ringup.planning import network
    from ringup.runtime.record import plan_json

    env = {"NCCL_IB_HCA": "mlx5_0", "WANDB_API_KEY": "0123456789abcdef"}
    plan = network.decide(c.cluster(*(c.plain(k, environment=env) for k in range(2))))
    assert plan
    (node, _) = plan_json(plan)["nodes"]
    assert node["versions"]["torch"] == "2.13.0" and node["preset"]["NCCL_IB_HCA"] == "mlx5_0"
    assert "0123456789abcdef" not in json.dumps(plan_json(plan))


# -- environments --------------------------------------------------------------------------------


def test_environments_are_compared_by_variable_and_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def env(name: str, *variables: tuple[str, str, str | None]) -> str:
        rows = [{"name": n, "value": v, "because": "", "node": node} for n, v, node in variables]
        (tmp_path / name).write_text(json.dumps({"env": rows, "kept": [], "notes": []}))
        return str(tmp_path / name)

    a = env("a", ("NCCL_DEBUG", "INFO", None), ("NCCL_SOCKET_IFNAME", "=eth0", None))
    b = env("b", ("NCCL_SOCKET_IFNAME", "=eth0", "n0"), ("NCCL_SOCKET_IFNAME", "=eth1", "n1"))
    found = told(capsys, a, b)
    assert [(d["name"], d["nodes"], d["before"], d["after"]) for d in found] == [
        ("NCCL_SOCKET_IFNAME", ["n1"], "=eth0", "=eth1"),
        ("NCCL_DEBUG", [], "INFO", ""),
    ]
    assert [d["severity"] for d in found] == ["warning", "note"]  # a log level breaks nothing
    assert not_compared(Side("a", "environment"), Side("b", "environment")) == []


# -- words, pages, errors ------------------------------------------------------------------------


def test_amounts_are_compared_with_their_direction() -> None:
    a, b = Side("a", "run"), Side("b", "run")
    a.add("rate", "x", Amount(1.0, "s", "less"))
    b.add("rate", "x", Amount(0.5, "s", "less"))
    assert [(d.severity, d.change) for d in compare(a, b)] == [("note", -0.5)]
    assert [(d.severity, d.change) for d in compare(b, a)] == [("warning", 1.0)]


def test_hostile_words_reach_neither_the_terminal_nor_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J<script>alert(1)</script>"
    a = record(tmp_path / "a")
    b = record(
        tmp_path / "b", env={bad: bad}, nodes=[bad, "node1"], versions={bad: bad}, interface=bad, outcome=bad
    )
    _, out = printed(capsys, a, b, "--all", "--html", str(tmp_path / "page.html"))
    assert "\x1b" not in out and "<script>" in out
    page = (tmp_path / "page.html").read_text()
    assert "&lt;script&gt;" in page and "<script" not in page and "\x1b" not in page


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{}", ": not a run, saved facts or an environment"),
        ('{"ringup": "1", "nodes": [], "pairs": [], "env": [], "kept": []}', ": not a run, saved facts"),
        ("hello", "malformed"),
        ('{"run": ' + "[" * 100_000, "recursion"),
        ('{"run": "x", "outcome": 3, "started": 1}', "Expected `str`"),
        ('{"env": [{"name": "A"}], "kept": []}', "missing required field"),
    ],
)
def test_what_is_none_of_them_is_one_clear_error(text: str, what: str, tmp_path: Path) -> None:
    good = record(tmp_path / "good")
    (tmp_path / "bad").write_text(text)
    with pytest.raises(UsageError, match=f"(?i){what}"):
        dispatch(["diff", good, str(tmp_path / "bad")])
    with pytest.raises(UsageError, match="No such file"):
        dispatch(["diff", good, str(tmp_path / "missing")])
    (tmp_path / "bad").write_text('{"schema": 1, "cluster": {}}')
    with pytest.raises(BundleError, match="bad: not a saved collection: it has no nodes"):
        dispatch(["diff", good, str(tmp_path / "bad")])


def test_a_run_is_also_named_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("a", "b"):
        record(tmp_path / "runs" / name)
    assert printed(capsys, "a", "b")[0] == 0
