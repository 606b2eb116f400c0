"""Commands a finding offers to paste: a name from a node is data in both shells it passes through."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

import tests.test_rules_all  # noqa: F401  (the cases of every file)
from ringup.facts import Cluster
from ringup.rules import run_checks
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
