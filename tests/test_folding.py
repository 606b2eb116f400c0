"""Equal nodes, findings and paths are one entry; nothing is lost, and no name or address is changed."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup import hosts
from ringup.cli.command_line import dispatch
from ringup.collective_tests import CorrectnessReport, Pair, RankState
from ringup.hosts.folding import LONGEST_SET, folded, node_set
from ringup.model import Link
from ringup.nccl.selection import Prediction
from ringup.network.predictions import Expected
from ringup.output import collective_report, console, folding
from ringup.output.folding import NodeText, merge_equal
from ringup.output.prediction_report import prediction_lines
from ringup.output.terminal import Style
from ringup.planning import EnvVar
from ringup.planning.env_formats import Machine, shell
from ringup.rules import Finding, Fix, Skipped
from tests import clusters as c

PLAIN = Style(io.StringIO())

names = st.lists(
    st.one_of(
        st.integers(0, 40).map("node{}".format),
        st.integers(0, 40).map("node{:03}".format),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda p: "r{}-n{}".format(*p)),
        st.integers(1, 254).map("10.0.0.{}".format),
        st.sampled_from(["head", "gpu-a.cluster", "fe80::1", "x" * 60]),
    ),
    min_size=1,
    max_size=60,
    unique=True,
)


@given(names)
def test_a_node_set_holds_every_name_once_and_is_what_the_option_for_hosts_reads(chosen: list[str]) -> None:
    assert sorted(host.name for host in hosts.expand(folded(chosen))) == sorted(chosen)


def test_a_node_set_is_bounded_and_says_how_many_it_leaves_out() -> None:
    shown = node_set(f"node{k * k}" for k in range(1000))
    assert len(shown) < LONGEST_SET + 40
    left = int(re.findall(r"and ([\d,]+) more \(1,000 nodes\)", shown)[0].replace(",", ""))
    assert len(hosts.expand(shown.partition(" and ")[0])) + left == 1000


def test_names_that_differ_in_many_numbers_are_counted() -> None:
    many = [f"a{k}-b{k % 7}-c{k % 11}-d{k % 13}" for k in range(500)]
    assert folded(many) == ",".join(many[:3]) + " and 497 more"


WORDS = ["torch 2.{}", "torch 2.{}.1", "10.0.0.{}", "node{}", "GPU {} lost its link", "port {} is in use",
         "fe80::{}", "pid {} of root", "driver 570.{}", "mlx5_{}:1/IB", "MTU {}"]  # fmt: skip


@given(st.sampled_from(WORDS), st.lists(st.integers(1, 99), min_size=2, max_size=20, unique=True))
def test_versions_addresses_and_names_are_text(words: str, numbers: list[int]) -> None:
    texts = [words.format(n) for n in numbers]
    made = merge_equal([NodeText(f"n{k}", (text,)) for k, text in enumerate(texts)])
    assert [one.texts[0] for one in made] == texts


QUANTITIES = ["{} MiB of it free", "took {} s", "{} retransmitted packets", "{}% used", "eth0 at {} Gbit/s"]


@given(st.lists(st.tuples(st.sampled_from(QUANTITIES), st.integers(1, 99)), max_size=40))
def test_every_entry_is_in_one_fold_and_equal_text_is_one(rows: list[tuple[str, int]]) -> None:
    texts = [words.format(number) for words, number in rows]
    made = merge_equal([NodeText(f"n{k}", (text,)) for k, text in enumerate(texts)])
    assert sorted(place for one in made for place in one.places) == list(range(len(rows)))
    assert len(made) == len({words for words, _ in rows})
    exact = merge_equal([NodeText(f"n{k}", (text,)) for k, text in enumerate(texts)], numbers=False)
    assert [one.texts[0] for one in exact] == list(dict.fromkeys(texts))


def test_a_value_far_from_the_others_is_named() -> None:
    rates = {f"node{k}": 94 + k % 8 for k in range(10_000)} | {"node77": 9.4}
    (one,) = merge_equal([NodeText(name, (f"carries {rate} Gbit/s",)) for name, rate in rates.items()])
    found = "carries 97 Gbit/s (median of 94 Gbit/s to 101 Gbit/s); far from the others: node77 9.4 Gbit/s"
    assert one.texts == (found,)
    assert node_set(rates) == "node[0-9999] (10,000 nodes)"


def test_sizes_and_times_of_different_units_are_compared() -> None:
    sizes = ["900 KiB", "3 MiB", "1.5 GiB", "2 GiB", "4 MiB"]
    (one,) = merge_equal([NodeText("n", (f"{size} free",)) for size in sizes])
    assert one.texts == ("4 MiB (median of 900 KiB to 2 GiB) free",)
    (one,) = merge_equal([NodeText("n", (f"since {time}",)) for time in ("3.0 s", "1 h 5 min", "2 d 0 h")])
    assert one.texts == ("since 3.0 s / 1 h 5 min / 2 d 0 h",)


def finding(k: int, found: str, thing: str = "", rule: str = "torch-missing") -> Finding:
    name = f"node{k}"
    fix = Fix(f"repair {name}", commands=(f"ssh {name} true", f"ping {name}"))
    return Finding(f"{name} {thing}".strip(), found, "5 GiB", name, fix, "error", rule=rule, why="because")


def report(cluster: c.Cluster, findings: list[Finding], skipped: list[Skipped], **more: object) -> list[str]:
    made = console.Report(cluster, findings, skipped, None)
    return console.check_text(made, PLAIN, **more).split("\n")  # type: ignore[arg-type]


def test_a_thousand_nodes_with_three_problems_fit_a_screen_and_all_shows_each() -> None:
    nodes = tuple(
        c.node(f"node{k}", c.interface("eth0", f"10.0.{k // 250}.{k % 250}/16")) for k in range(1000)
    )
    down = tuple(c.unreached(n.name, "ssh-timeout", f"{n.name}: timed out") for n in nodes[500:510])
    nodes = (*nodes[:500], *down, *nodes[510:])
    findings = [finding(k, f"{k} MiB of it free", "/dev/shm") for k in range(100, 120)]
    findings += [finding(k, f"10.0.1.{k - 250} of node{k} is not in its hosts file") for k in range(300, 310)]
    findings += [finding(k, "broken", f"GPU {gpu}", "gpu-missing") for k in range(4) for gpu in range(8)]
    skipped = [Skipped(f"rule-{r}", n.name, f"limits: {n.name} slept for {k} s")
               for r in range(9) for k, n in enumerate(down)]  # fmt: skip
    cluster = c.Cluster(nodes)
    lines = report(cluster, findings, skipped)
    text = "\n".join(lines)
    assert len(lines) <= 60 and lines[-1] == "Not ready: fix the 3 errors above."
    assert "  node[0-499,510-999] (990 nodes, node0 shown)  eth0 10.0.0.0  |  " in text
    assert "node[500-509] (10 nodes, node500 shown)" in text and "not reached: node500: timed out" in text
    assert "error  node[100-119] (20 nodes, node100 shown) /dev/shm  torch-missing\n" in text
    assert "found      109 MiB (median of 100 MiB to 119 MiB) of it free" in text
    assert "found      10.0.1.50 of node300 is not in its hosts file" in text
    four = "node0, node1, node2, node3 (node0 shown) GPU 0, GPU 1, GPU 2, GPU 3 and 4 more  gpu-missing"
    assert f"error  {four}" in text
    assert "for node in node100 node101" in text and "# and likewise for the other 19 nodes" in text
    assert "rule-0, rule-1, rule-2 and 6 more: limits: node500 slept for 4 s (median" in text
    assert "some of" not in text
    unfolded = report(cluster, findings, skipped, unfolded=True)
    assert sum(line.startswith("error  ") for line in unfolded) == len(findings)
    assert sum(" eth0 10.0." in line for line in unfolded) == 990
    assert sum("slept for" in line for line in unfolded) == len(skipped)


def test_a_few_nodes_keep_their_own_lines() -> None:
    lines = report(c.healthy(3), [], [])
    assert [line.split()[0] for line in lines[1:4]] == ["node0", "node1", "node2"]


def test_one_rule_with_other_words_on_every_node_is_a_few_entries_and_a_count() -> None:
    shown = console.folded([finding(k, f"pid {k} of ada") for k in range(35)])
    assert [f.found for f in shown[:3]] == ["pid 0 of ada", "pid 1 of ada", "pid 2 of ada"]
    assert shown[3].found.startswith("32 more variants (--all shows them), the first: pid 3 of ada")
    assert shown[3].where.startswith("node[3-34] (32 nodes") and len(shown) == 4


def test_many_reasons_not_to_check_are_one_line_a_kind() -> None:
    facts = ("limits", "clock", "gpus")
    skipped = [
        Skipped(
            f"rule-{(k + r) % 17}", f"n{k}", f"{facts[r % 3]}: n{k} had no CPU time: load {k + r}, {r}.5 s"
        )
        for k in range(40)
        for r in range(k % 5 + 1)
    ]
    (line,) = console.skipped_lines(skipped)
    assert line.startswith(
        "  n[0-39] (40 nodes, n0 shown): some of rule-0, rule-1, rule-2 and 14 more: n0 had "
    )


def link(src: str, dst: str, interface: str, ok: bool) -> Link:
    return Link(src, dst, "eth0", interface, "10.0.0.1", 1, ok, large_packet_ok=ok or None)


def test_the_paths_that_do_not_work_are_named_as_sets() -> None:
    nodes = [f"n{k}" for k in range(6)]
    ways = [(a, b) for a in nodes for b in nodes if a != b]
    tried = [link(a, b, "eth0", b != "n5") for a, b in ways] + [link(a, b, "docker0", False) for a, b in ways]
    shown = folding.failed_paths(tried, [li for li in tried if not li.ok])
    assert shown == ["n[0-4] (5 nodes) -> n5 eth0 (5 paths)", "all 30 paths to docker0"]
    few = [link("a", "b", "eth0", False), link("b", "a", "eth0", False), link("a", "c", "eth0", True)]
    line = console.network_line(c.Cluster((c.node("a"), c.node("b")), tuple(few)))
    assert line.startswith("network: 1 of 3 paths work") and line.endswith("failed: a -> b eth0, b -> a eth0")


def test_equal_variables_of_many_nodes_are_one_entry() -> None:
    env = [EnvVar("NCCL_IB_HCA", "=mlx5_0", "it is the fast one", f"node{k}") for k in range(30)]
    assert console.env_lines(env, PLAIN) == [
        "  export NCCL_IB_HCA='=mlx5_0'",
        "      # on node[0-29] (30 nodes): it is the fast one",
    ]
    assert len(console.env_lines(env, PLAIN, unfolded=True)) == 60
    lines = shell(env[:3], Machine()).split("\n")
    assert lines[1] == "node0|node1|node2)" and len(lines) == 5


def test_logs_name_files_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.log").write_text(
        "n1:4:4 [0] init.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    )
    monkeypatch.chdir(tmp_path)
    dispatch(["logs", str(tmp_path), "--all"])
    shown = capsys.readouterr().out
    assert "  job.log:1  " in shown and str(tmp_path) not in shown


def test_what_predict_says_of_equal_nodes_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringup import bundle

    facts = tmp_path / "facts.json"
    bundle.save(replace(c.healthy(6), schedule="none"), facts)
    dispatch(["predict", "--from", str(facts)])
    folded_text = capsys.readouterr().out
    assert folded_text.startswith("node[0-5] (6 nodes, node0 shown)\n")
    dispatch(["predict", "--from", str(facts), "--all"])
    assert capsys.readouterr().out.count("confidence") == 6 * folded_text.count("confidence")


def test_facts_missing_for_other_reasons_are_one_selection() -> None:
    reasons = (f"n{k} had no CPU time: load {k}{' on 2 CPUs' * (k % 2)}" for k in range(8))
    made = (
        Prediction(f"n{k}", None, "", missing=(f"the interfaces ({why})",)) for k, why in enumerate(reasons)
    )
    found = prediction_lines([Expected(prediction) for prediction in made])
    assert [line for line in found if line.startswith("  n")] == ["  n[0-7] (8 nodes, n0 shown):"]
    assert "the interfaces (n0 had no CPU time" in found[-1]


def test_ranks_with_one_error_and_pairs_with_one_rate_are_one_line() -> None:
    at = [(k, f"node{k // 8}") for k in range(64)]
    ranks = [RankState(k, n, k % 8, f"cuda:{k % 8} H100", k > 30, f"{k} MiB free of {n}") for k, n in at]
    ranks = [replace(r, is_cause=not r.ok) for r in ranks]
    found = collective_report.test_lines(CorrectnessReport(tuple(ranks), ()))
    shown = "15 MiB (median of 0 MiB to 30 MiB) free of node0"
    assert found[0] == f"  ranks 0-30 on node0, node1, node2, node3: {shown}"
    assert len(found) == 2 and "33 ranks correct" in found[1]
    assert len(collective_report.test_lines(CorrectnessReport(tuple(ranks), ()), unfolded=True)) == 32
    pairs = [Pair((f"n{k}", f"n{k + 1}"), 2.5 if k == 7 else 11 + k / 100) for k in range(40)]
    assert collective_report._pair_lines([*pairs, Pair(("a", "b"), 1.0, 0.9)], False) == [
        "  40 pairs: 11.2 GB/s (median of 11 GB/s to 11.4 GB/s); far from the others: n7 - n8 2.5 GB/s",
        "  a - b: 1 GB/s (no CPU time for up to 90% of it)",
    ]
    assert len(collective_report._pair_lines(pairs, True)) == 40
