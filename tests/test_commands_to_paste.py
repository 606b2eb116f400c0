"""Commands a finding offers to paste: a name from a node is data in both shells it passes through."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tests.test_rules_all  # noqa: F401  (the cases of every file)
from ringup.collectors import lying_here
from ringup.model import Cluster, Job
from ringup.output.console import on_all_nodes
from ringup.rules import Fix, run_checks, ssh, with_ssh_config
from tests import clusters
from tests.rule_cases import FIRES

HOSTILE = "e$(id)`id`;id #"


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The same data with some texts replaced, however deep they stand."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        return tuple(renamed(v, names) for v in value)
    if isinstance(value, Mapping):
        return {k: renamed(v, names) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: renamed(getattr(value, f.name), names) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **own)
    return value


def with_hostile_names(cluster: Cluster) -> Cluster:
    """The same cluster; every card, device, directory and interpreter has a name a shell would act on."""
    names = {i.name for n in cluster.nodes for i in n.interfaces} - {"lo"}
    names |= {p.device for n in cluster.nodes for p in n.rdma_ports}
    names |= {n.chdir.path for n in cluster.nodes} | {n.interpreter.path for n in cluster.nodes}
    made: Cluster = renamed(cluster, {name: name + HOSTILE for name in names if name})
    return made


def bare(command: str) -> str:
    """What a shell would act on: what is outside single quotes."""
    return re.sub(r"'[^']*'", "", command.replace('"\'"', ""))


@pytest.mark.parametrize("name", sorted(FIRES))
def test_names_from_nodes_do_nothing_in_a_pasted_command(name: str) -> None:
    findings, _ = run_checks(with_hostile_names(FIRES[name]()))
    for finding in findings:
        for command in finding.fix.commands if finding.fix else ():
            if "$(id)" not in command:
                continue
            assert "$(id)" not in bare(command), command
            words = shlex.split(command)
            if words[0] == "ssh":
                assert "$(id)" not in bare(" ".join(words[2:])), command


@pytest.mark.parametrize("name", sorted(FIRES))
def test_a_pasted_command_can_be_read_by_both_shells(name: str) -> None:
    for finding in run_checks(FIRES[name]())[0]:
        for command in finding.fix.commands if finding.fix else ():
            words = shlex.split(command)
            over_there = words[0] == "ssh" and not words[1].startswith("-")
            for text in (command, " ".join(words[2:]) if over_there else "true"):
                done = subprocess.run(["sh", "-nc", text], capture_output=True, text=True)
                assert done.returncode == 0, (text, done.stderr)


@pytest.mark.parametrize("name", sorted(n for n in FIRES if not n.startswith("ssh-")))
def test_nodes_played_on_this_machine_need_no_ssh_and_no_copies(name: str) -> None:
    nowhere = dataclasses.replace(FIRES[name](), is_local=True)
    for finding in run_checks(nowhere)[0]:
        for command in finding.fix.commands if finding.fix else ():
            assert command.partition(" ")[0] not in ("ssh", "rsync"), command


def test_a_script_that_no_node_has_may_have_another_name() -> None:
    cluster = FIRES["script-missing"]()
    lost = [dataclasses.replace(n, script=cluster.nodes[1].script) for n in cluster.nodes]
    fixes = {f.fix.text for f in run_checks(dataclasses.replace(cluster, nodes=tuple(lost)))[0] if f.fix}
    assert fixes == {"no node has it: correct its name, or copy it there"}


@pytest.mark.parametrize("name", sorted(FIRES))
def test_commands_reach_the_nodes_as_ringup_did_with_ssh_config(name: str) -> None:
    asked = dataclasses.replace(FIRES[name](), ssh_config="my conf/ssh")
    if asked.is_local:
        return
    for finding in run_checks(asked)[0]:
        for command in finding.fix.commands if finding.fix else ():
            words = shlex.split(command)
            words = words[words[0] == "time" :]
            if words[0] in ("ssh", "ssh-copy-id"):
                assert words[1:3] == ["-F", "my conf/ssh"], command
            if words[0] == "rsync":
                assert words[1:4] == ["-a", "-e", "ssh -F 'my conf/ssh'"], command


def test_commands_of_many_nodes_stay_one_loop_with_ssh_config() -> None:
    lines = [(f"n{i}", with_ssh_config(ssh(f"n{i}", "id; ls"), "a b")) for i in range(4)]
    (loop,) = on_all_nodes(lines)
    assert loop == """for node in n0 n1 n2 n3; do ssh -F 'a b' "$node" 'id; ls'; done"""
    assert subprocess.run(["sh", "-nc", loop]).returncode == 0


@pytest.mark.parametrize("name", sorted(FIRES))
def test_no_fix_exports_the_interface_that_it_is_about(name: str) -> None:
    for finding in run_checks(FIRES[name]())[0]:
        kind, _, rest = finding.subject.partition(":")
        bad = rest.partition("/")[2] if kind == "interface" else ""
        for value in finding.fix.env.values() if finding.fix and bad else ():
            assert bad not in value.lstrip("=").split(","), (finding.rule, finding.fix.env)


def missing(rule: str, here: Mapping[str, str]) -> Fix:
    """The fix of a rule about a file that one node lacks, where the launching machine has these."""
    (finding,) = run_checks(dataclasses.replace(FIRES[rule](), here=here))[0]
    assert finding.rule == rule and finding.fix
    return finding.fix


@pytest.mark.parametrize("rule", ["script-missing", "directory-missing"])
def test_a_copy_is_offered_only_of_what_lies_here(rule: str) -> None:
    (node, *_) = FIRES[rule]().nodes
    path = node.script.path if rule == "script-missing" else node.chdir.path
    elsewhere, here = missing(rule, {}), missing(rule, {path: ""})
    assert elsewhere.commands == () and "copy it there from" in elsewhere.text
    (command,) = here.commands
    assert command.startswith(f"rsync -a {path}") and "copy it there" in here.text


def test_a_script_that_exists_and_cannot_be_read_is_an_error() -> None:
    nodes = FIRES["script-missing"]().nodes
    script = dataclasses.replace(nodes[1].script, exists=True, error="Permission denied")
    cluster = dataclasses.replace(
        FIRES["script-missing"](), nodes=(nodes[0], dataclasses.replace(nodes[1], script=script))
    )
    (finding,) = run_checks(cluster)[0]
    assert (finding.rule, finding.where) == ("script-missing", "node1")
    assert finding.found == "/home/ada/project/train.py: Permission denied"
    assert finding.fix and finding.fix.commands == ("ssh node1 namei -l /home/ada/project/train.py",)


def test_a_changed_host_key_is_removed_under_the_name_that_ssh_keeps_it() -> None:
    words = (
        "Host key for [10.0.0.11]:2222 has changed and you have requested strict checking. / "
        "Offending ED25519 key in /home/ada/.ssh/known_hosts:2"
    )
    node = clusters.unreached("node1", "ssh-host-key-changed", words)
    (finding,) = run_checks(clusters.cluster(clusters.plain(0), node))[0]
    assert finding.fix and finding.fix.commands == (
        "ssh-keygen -f /home/ada/.ssh/known_hosts -R '[10.0.0.11]:2222'",
        "ssh node1 true",
    )


def test_an_environment_that_a_node_lacks_is_not_replaced_by_the_systems() -> None:
    """The node falls back to its own python3; pip there would not make the environments equal."""
    cluster = FIRES["torch-missing"]()
    (finding,) = [one for one in run_checks(cluster)[0] if one.rule == "torch-missing"]
    usual = cluster.nodes[0].interpreter.path
    assert finding.wanted.endswith(f"as on the other nodes: {usual}") and finding.fix
    assert finding.fix.commands == (f"ssh node1 ls -lL {usual}",)


def test_another_version_of_the_script_is_not_copied_over_the_nodes() -> None:
    node = FIRES["script-differs"]().nodes[0]
    assert missing("script-differs", {node.script.path: "0" * 64}).commands == ()
    assert missing("script-differs", {node.script.path: node.script.sha256}).commands != ()


def test_of_a_job_is_known_what_lies_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    digest = hashlib.sha256(b"print(1)\n").hexdigest()
    job = Job(script="train.py", chdir=str(tmp_path))
    assert lying_here(job) == {str(tmp_path): "", str(tmp_path / "train.py"): digest}
    assert lying_here(Job(script="other.py", chdir=str(tmp_path))) == {str(tmp_path): ""}
    assert lying_here(Job(script="/dev/zero", chdir=str(tmp_path / "no"))) == {}
