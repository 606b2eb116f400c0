"""
`ringup check` on two hosts with something wrong around the job: named once, and no other rule speaks.

Limits, memory, processes, file systems, code, environment and users; real hosts over real ssh.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.guards import ROOM, but_load, wait_for
from tests.lab import Lab
from tests.lab.faults.rdma import CARDS
from tests.test_faults_hardware_rdma import above_note

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]


@dataclass(frozen=True)
class Case:
    """What is wrong, and what a person reads about it."""

    severity: str
    where: str
    word: str
    fault: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Of the command line."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the shell that ringup is started from."""


def variables(**values: str) -> dict[str, Any]:
    return {"fault": "variables", "options": values}


PROJECT = ("--chdir", "/root/project")
SYSTEM: dict[str, Case] = {
    "cgroup-limits-tight": Case("warning", "node1", "0.5 CPUs", "cgroup-tight"),
    "numa-balancing-on": Case("note", "node1", "2 memory nodes", "numa-balancing"),
    "swap-in-use": Case("warning", "node1", "4 GiB of 8 GiB swap used", "swapping"),
    "oom-killer-ran": Case("warning", "node1", "3 processes of this container", "oom-killed"),
    "stuck-processes": Case("warning", "node1", "are zombies", "zombies"),
    "nfs-mount-slow": Case("error", "node1 /run/dead", "no answer within", "dead-tmpdir"),
    "disk-full": Case("warning", "node1 /run/scratch", "100% used", "full-tmpdir"),
    "shm-left-over": Case("note", "node1 /dev/shm", "80 MiB in 1 files of root", "shm-left"),
    "yama-forbids-ptrace": Case("note", "node1", "ptrace_scope is 3", "ptrace-forbidden"),
    "fork-of-code-differs": Case(
        "warning", "node1 /root/project", "bbbbbbbbbbbb", "commits-differ", words=PROJECT
    ),
    "directory-missing": Case("error", "node1", "/root/project", "script-elsewhere", words=PROJECT),
    "two-nccl-libraries": Case("warning", "node1", "2.18.3) is loaded", "two-nccl"),
    "timeout-longer-than-scheduler": Case(
        "note", "the allocation", "left", words=("--backend", "nccl"), env={"SLURM_JOB_END_TIME": "1"}
    ),
    "stale-nccl-config": Case("note", "node1 nccl.conf", "NCCL_SOCKET_NTHREADS=2", "nccl-conf"),
    "ssh-banner-or-rc-output": Case("note", "node1", "Welcome to the cluster", "rc-prints"),
    "duplicate-hostname": Case("warning", "node0", "all called node0", "same-name"),
    "duplicate-boot-id": Case("note", "node0", "one boot id", "cloned"),
    "setup-fails": Case("error", "node0", "exit status 7", words=("--setup", "sh -c 'exit 7'")),
    "ports-reserved-or-ephemeral": Case("note", "node0", "50000", words=("--env", "MASTER_PORT=50000")),
    "address-not-of-rank0": Case(
        "error", "node0 MASTER_ADDR", "not an address of node0", words=("--env", "MASTER_ADDR=192.0.2.7")
    ),
    "harmful-env-left-on": Case("warning", "NCCL_P2P_DISABLE", "=1", **variables(NCCL_P2P_DISABLE="1")),
    "unknown-nccl-variable": Case(
        "warning", "NCCL_SOKET_IFNAME", "node1", **variables(NCCL_SOKET_IFNAME="x")
    ),
    "launcher-environment-preset": Case("warning", "node1", "RANK=3", **variables(RANK="3")),
    "environment-differs-between-nodes": Case(
        "error", "NCCL_BUFFSIZE", "node1: 1048576", **variables(NCCL_BUFFSIZE="1048576")
    ),
    "proxy-variables-set": Case("note", "node1", "https_proxy", **variables(https_proxy="http://proxy:3128")),
}
"""Rule -> the one fault that makes it speak, and what it says."""

AND_ALSO = {"stale-nccl-config": {"environment-differs-between-nodes"}}
"""What else is truly wrong then: a file on one node alone makes the nodes differ."""


def checked(cluster: Lab, *words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a check on node0 says of both hosts."""
    command = [sys.executable, "-m", "ringup", "check", "-H", "node0,node1", "--python", sys.executable]
    done = cluster.run("node0", [*command, "--json", *words], env=env, timeout_s=300)
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def told(answer: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    """Findings above a note, and those of the rule itself."""
    return but_load([f for f in answer["findings"] if f["severity"] != "note" or f["rule"] == rule], rule)


def test_healthy_hosts_give_nothing_above_a_note_and_everything_is_checked(
    shared_lab: Callable[..., Lab],
) -> None:
    answer = checked(shared_lab(hosts=2))
    assert but_load(f for f in answer["findings"] if f["severity"] != "note") == []
    assert answer["not_checked"] == [] and answer["kept"] == []
    assert not {f["rule"] for f in answer["findings"]} & set(SYSTEM)


@pytest.mark.parametrize("rule", SYSTEM)
def test_what_is_wrong_around_the_job_is_named_once(shared_lab: Callable[..., Lab], rule: str) -> None:
    case = SYSTEM[rule]
    cluster = shared_lab(hosts=2)
    if case.fault:
        cluster.fault(case.fault, **case.options)
    found = told(checked(cluster, *case.words, env=case.env), rule)
    own = [f for f in found if f["rule"] == rule]
    assert {f["rule"] for f in found} - AND_ALSO.get(rule, set()) <= {rule}, found
    assert own and {f["severity"] for f in own} == {case.severity}, found
    assert case.where in own[0]["where"] and case.word in own[0]["found"], own
    assert own[0]["fix"]["text"] and own[0]["wanted"]


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_both_kinds_of_cgroup_are_read(shared_lab: Callable[..., Lab], version: int) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("cgroup-tight", version=version)
    limits = checked(cluster)["nodes"][1]["container"]
    assert (limits["cpus"], limits["processes"]) == (0.5, 32)


def test_a_process_that_waits_in_the_kernel_is_named(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("stuck-process")
    found = told(checked(cluster), "stuck-processes")
    assert [f["rule"] for f in found] == ["stuck-processes"]
    assert "stat (pid " in found[0]["found"] and "waiting in the kernel" in found[0]["found"]


def test_gpus_with_an_older_torch_keep_no_record_of_collectives(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("gpu-machines")
    cluster.fault("torch-with-cuda", version="2.4.1")
    found = told(checked(cluster), "flight-recorder-off")
    assert [(f["rule"], f["where"]) for f in found] == [("flight-recorder-off", "node0, node1")]
    assert found[0]["fix"]["env"]["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"


def test_gpus_with_efa_and_without_its_plugin_are_named(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2, nics=CARDS)
    for host in ("node0", "node1"):
        cluster.fault("rdma", host=host, kind="efa")
    cluster.fault("gpu-machines")
    cluster.fault("torch-with-cuda")
    found = above_note(checked(cluster))
    assert [(f["rule"], f["node"]) for f in found] == [
        ("network-plugin-missing", "node0"), ("network-plugin-missing", "node1"),
    ]  # fmt: skip
    assert "rdmap0s6" in found[0]["found"]


# Nothing is accused of what could not be checked.


def accused(answer: dict[str, Any], node: str) -> list[str]:
    found = [f for f in answer["findings"] if f["node"] == node and f["severity"] != "note"]
    return [f["rule"] for f in but_load(found)]


def test_of_a_host_whose_proc_and_sys_are_empty_nothing_is_said_but_that(
    shared_lab: Callable[..., Lab],
) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("blind")
    answer = checked(cluster)
    assert accused(answer, "node1") == []
    skipped = {s["rule"]: s["reason"] for s in answer["not_checked"] if s["node"] == "node1"}
    assert len(skipped) >= 15
    assert all(reason for reason in skipped.values())
    assert not [s for s in answer["not_checked"] if s["node"] == "node0"]


def test_of_a_host_without_python_and_tools_one_thing_is_said(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("venv-missing")
    cluster.fault("no-python")
    answer = checked(cluster)
    assert accused(answer, "node1") in ([], ["python-or-launcher-missing"])
    reasons = {s["reason"] for s in answer["not_checked"] if s["node"] == "node1"}
    assert any("no python3 on this node" in r or "said nothing" in r for r in reasons)


DEAD = {
    "/run/project": ({"looks"}, ("--chdir", "/run/project")),
    "/dev/shm": ({"shm"}, ()),
    "/sys/class/net": ({"interfaces"}, ()),
    "/sys/fs/cgroup": ({"container"}, ()),
    "/sys/devices/system/node": ({"numa"}, ()),
    "/root/.cache": ({"cache"}, ()),
}


@pytest.mark.parametrize("path", DEAD)
def test_a_look_that_never_ends_costs_its_own_answer_alone(shared_lab: Callable[..., Lab], path: str) -> None:
    fields, words = DEAD[path]
    cluster = shared_lab(hosts=2)
    cluster.fault("dead-mount", path=path)
    answer: Any = {}

    def is_whole() -> bool:
        """Without CPU time the whole part is late: asked again until the look has its own answer."""
        answer.update(checked(cluster, *words))
        return not words or not fields & set(answer["nodes"][1]["unknown"])

    wait_for(is_whole, f"an answer about {fields}")
    unknown = answer["nodes"][1]["unknown"]
    late = {name for name, why in unknown.items() if "timed out" in why}
    wanted = {f["rule"] for f in answer["findings"] if f["node"] == "node1" and f["severity"] == "error"}
    if words:
        assert wanted == {"nfs-mount-slow"}
    else:
        # Where no interface is known no pair can be tried, and no job be started.
        assert fields <= late and wanted <= ({"pairs-not-tested"} if "interfaces" in fields else set())
    # One part of the program at most is lost.
    assert len(late) <= 9 and not {"hostname", "interpreter", "uid"} & set(unknown)
    answer_s = answer["nodes"][1]["answer_s"]
    print(f"answered after {answer_s:.1f} s")
    assert answer_s < 5 * ROOM


# Users.


def as_user(cluster: Lab, *words: str) -> Any:
    """A check by the ordinary user ada, on both hosts."""
    ringup = [sys.executable, "-m", "ringup", "check", "-H", "node0,node1", "--python", sys.executable]
    command = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", *ringup, *words]
    env = {"HOME": "/run/ada", "USER": "ada", "LOGNAME": "ada"}
    return cluster.run("node0", command, env=env, timeout_s=300)


def test_an_ordinary_user_is_told_what_root_would_add(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("ordinary-user")
    done = as_user(cluster, "--json", "--strict")
    assert done.returncode == 0, done.stderr + done.stdout
    answer = json.loads(done.stdout)
    assert {n["user"] for n in answer["nodes"]} == {"ada"}
    assert but_load(f for f in answer["findings"] if f["severity"] != "note") == []
    assert answer["not_checked"] and all(s["is_partial"] and s["as_root"] for s in answer["not_checked"])
    text = as_user(cluster).stdout
    assert "more checks as root" in text and "$ sudo ss -ltnp" in text and "Ready to run" in text


def test_shared_memory_that_systemd_takes_away_is_a_fault_of_ordinary_users(
    shared_lab: Callable[..., Lab],
) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("ordinary-user")
    cluster.fault("remove-ipc")
    found = told(json.loads(as_user(cluster, "--json").stdout), "shm-cleaned-by-systemd")
    assert [(f["rule"], f["node"], f["severity"]) for f in found] == [
        ("shm-cleaned-by-systemd", "node1", "warning")
    ]
    assert told(checked(cluster), "shm-cleaned-by-systemd") == []  # Root's files are left alone.


# While a job runs.

KILLED = """
import os, signal, socket, time
if socket.gethostname() == "node1":
    # What the kernel does to a process, as /proc would tell it afterwards.
    with open("/run/instead_proc_vmstat", "w") as counters:
        counters.write("oom_kill 4\\n")
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def test_a_run_that_lost_a_rank_says_that_the_kernel_ended_processes_for_memory(
    shared_lab: Callable[..., Lab],
) -> None:
    cluster = shared_lab(hosts=2)
    cluster.fault("counters-of-memory", oom_kills=3)
    for host in ("node0", "node1"):
        cluster.run(
            host, ["sh", "-c", "mkdir -p /run/job; cat > /run/job/killed.py"], text=KILLED, check=True
        )
    words = [
        "run",
        "-H",
        "node0,node1",
        "--python",
        sys.executable,
        "--chdir",
        "/run/job",
        "--with",
        "python",
    ]
    command = [
        sys.executable,
        "-m",
        "ringup",
        *words,
        "--nproc",
        "1",
        "--log-dir",
        "/run/job/logs",
        "--",
        "killed.py",
    ]
    done = cluster.run("node0", command, timeout_s=300)
    told = done.stdout + done.stderr
    assert done.returncode == 137, told
    assert "node1: the kernel ended 1 process there for memory meanwhile (oom-killer-ran)" in told
    assert "node0: the kernel ended" not in told
