"""Every launcher's words and variables: compared whole, and each trap it has by name."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup.agent.facts.software import PACKAGES
from ringup.agent_bundle import source
from ringup.cli import pipeline, request
from ringup.collectors import in_image
from ringup.errors import LaunchError, UsageError
from ringup.model import Cluster, Interpreter, Job
from ringup.planning import Plan, network
from ringup.planning.launchers import LAUNCHERS, Place, start
from ringup.runtime.blame import TRACEBACK, End
from ringup.runtime.record import plan_text
from ringup.runtime.ssh import order
from tests.clusters import TORCH, article_002, changed, healthy, job

on_nodes = pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux")
GOLDEN = Path(__file__).parent / "golden" / "run"
EVERYTHING = {
    "accelerate": "1.15.0",
    "deepspeed": "0.19.8",
    "colossalai": "0.5.0",
    "llamafactory": "0.9.5",
    "jax": "0.10.2",
}
RUNS = [(name, rdzv) for name, launcher in LAUNCHERS.items() for rdzv in launcher.rendezvous]


def plan_of(cluster: Cluster, **of_job: Any) -> Plan:
    plan = network.decide(replace(cluster, job=job(**of_job)), "20260131-142530-9f3c")
    assert plan is not None
    return plan


def with_gpus(cluster: Cluster, *counts: int) -> Cluster:
    for i, count in enumerate(counts):
        cluster = changed(cluster, f"node{i}", gpu_count=count)
    return cluster


def place(rank: int = 1, *, nproc_all: tuple[int, ...] = (2, 2), **more: Any) -> Place:
    """Node `rank` of some."""
    given: dict[str, Any] = {
        "python": "/py",
        "node_count": len(nproc_all),
        "node_rank": rank,
        "nproc": nproc_all[rank],
        "nproc_all": nproc_all,
        "address": "10.0.0.11",
        "master_addr": "10.0.0.10",
        "master_port": 29501,
        "run_id": "r1",
        "run_dir": "/run",
        "shim": "/run/rank.py",
    }
    return Place(**{**given, **more})


def option(words: tuple[str, ...], name: str) -> str:
    """The value of `--name=value`; an AssertionError where there is none."""
    found = [w.partition("=")[2] for w in words if w.startswith(f"{name}=")]
    assert len(found) == 1, (name, words)
    return found[0]


@pytest.mark.parametrize(("name", "rdzv"), RUNS)
def test_dry_run_is_the_golden_one(name: str, rdzv: str) -> None:
    script = "sft.yaml" if name == "llamafactory" else "train.py"
    plan = plan_of(
        with_gpus(article_002(), 8, 8),
        launcher=name,
        rendezvous=rdzv,
        script=script,
        arguments=("--lr", "1e-4", "a b"),
        chdir="/home/ada/project",
        backend="nccl",
    )
    text = plan_text(plan) + "\n"
    file = GOLDEN / f"{name}-{rdzv}.txt"
    if os.environ.get("RINGUP_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{file} is not there: `make golden` writes it"
    assert text == file.read_text(), f"{file}: if the new text is right, run `make golden`"


@pytest.mark.parametrize(("name", "rdzv"), RUNS)
def test_what_is_shown_is_what_the_guard_is_told(name: str, rdzv: str) -> None:
    plan = plan_of(article_002(), launcher=name, rendezvous=rdzv)
    text = plan_text(plan)
    for node in plan.nodes:
        told = order(plan, node, lease_s=20, grace_s=3)
        assert told["words"] == node.words
        assert told["env"] == node.env
        assert all(f"export {variable}=" in text for variable in node.env)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_package_of_a_launcher_is_looked_for_on_the_nodes(name: str) -> None:
    package = Job(launcher=name).launcher_package
    assert package in ("", *PACKAGES), "add it to PACKAGES in agent/facts/software.py: every node lacks it"


def test_every_launcher_is_on_its_page() -> None:
    page = (Path(__file__).parent.parent / "docs/how/launchers.md").read_text("utf-8")
    assert [name for name in LAUNCHERS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_nothing_is_looked_up_on_path(name: str) -> None:
    for node in plan_of(healthy(), launcher=name).nodes:
        assert node.words[0] == TORCH.path


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_variable_has_its_reason(name: str) -> None:
    for rdzv in LAUNCHERS[name].rendezvous:
        assert all(v.because for v in start(place(), job(launcher=name, rendezvous=rdzv)).env)


@pytest.mark.parametrize("name", [n for n, x in LAUNCHERS.items() if "c10d" not in x.rendezvous])
def test_a_rendezvous_it_does_not_have_is_an_error(name: str) -> None:
    with pytest.raises(LaunchError, match="no c10d rendezvous"):
        plan_of(healthy(), launcher=name, rendezvous="c10d")


@pytest.mark.parametrize("name", [n for n, x in LAUNCHERS.items() if x.is_even])
def test_different_counts_where_it_cannot_are_an_error(name: str) -> None:
    with pytest.raises(LaunchError, match=r"different numbers of ranks on the nodes \(8, 4\)") as error:
        plan_of(with_gpus(healthy(), 8, 4), launcher=name, nproc=0)
    assert error.value.exit_code == 4
    assert "--nproc" in error.value.hint


@pytest.mark.parametrize("name", [n for n, x in LAUNCHERS.items() if not x.is_even and not x.by_node])
def test_different_counts_are_started_where_it_can(name: str) -> None:
    plan = plan_of(with_gpus(healthy(), 8, 4), launcher=name, nproc=0)
    assert [(n.nproc, n.first_rank) for n in plan.nodes] == [(8, 0), (4, 8)]


@pytest.mark.parametrize("name", [n for n, x in LAUNCHERS.items() if not x.is_bare])
def test_the_users_options_come_last_but_the_script(name: str) -> None:
    asked = job(launcher=name, launcher_arguments=("--max-restarts=3",), arguments=("--x",))
    words = start(place(), asked).words
    at = words.index("--max-restarts=3")
    assert words[at + 1] == "/run/rank.py"
    assert words[-1] == "--x"


@pytest.mark.parametrize("name", [n for n, x in LAUNCHERS.items() if x.is_bare])
def test_options_for_a_launcher_that_is_none_are_an_error(name: str) -> None:
    with pytest.raises(LaunchError, match="no launcher that could take"):
        plan_of(healthy(), launcher=name, launcher_arguments=("--tee=3",))


def test_launcher_args_are_read_as_a_shell_would() -> None:
    assert request.launcher_words("--tee 3 --role 'a b'") == ("--tee", "3", "--role", "a b")
    with pytest.raises(UsageError, match="launcher-args"):
        request.launcher_words("--role 'a")


# -- words in front --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_wrapper_comes_first(name: str) -> None:
    words = start(place(), job(launcher=name, wrapper=("nice", "-n", "5"))).words
    assert words[:3] == ("nice", "-n", "5")
    assert words[3:] == start(place(), job(launcher=name)).words


def test_an_image_is_given_the_runs_directory_and_a_python_of_its_own() -> None:
    wrapper = ("timeout", "5", "apptainer", "exec", "--nv", "x.sif")
    words = start(replace(place(), run_dir="/cache/r1"), job(wrapper=wrapper)).words
    assert words[:7] == (*wrapper[:4], "--bind=/cache/r1", *wrapper[4:])
    (node,) = article_002().nodes[:1]
    inside = in_image(node, job(wrapper=wrapper))
    assert inside.interpreter == Interpreter("python3")
    assert inside.unknown["interpreter"] == "it is in an image, behind timeout"


# -- accelerate ------------------------------------------------------------------------------------


def test_accelerate_is_told_the_total_and_never_same_network() -> None:
    words = start(place(nproc_all=(8, 8)), job(launcher="accelerate")).words
    assert option(words, "--num_processes") == "16"
    assert option(words, "--num_machines") == "2"
    assert not any("same_network" in word for word in words)


def test_accelerates_c10d_gets_id_and_address_by_torchruns_own_variables() -> None:
    for rank, host in ((0, "1"), (1, "0")):
        begun = start(place(rank), job(launcher="accelerate", rendezvous="c10d"))
        assert option(begun.words, "--rdzv_conf").startswith(f"is_host={host},")
        assert {v.name: v.value for v in begun.env} == {"PET_RDZV_ID": "r1", "PET_LOCAL_ADDR": "10.0.0.11"}


@pytest.mark.parametrize(
    "own", [("--config_file", "fsdp.yaml"), ("--config_file=fsdp.yaml",), ("--use_fsdp",)]
)
def test_accelerates_own_kind_of_job_is_left_to_the_user(own: tuple[str, ...]) -> None:
    words = start(place(), job(launcher="accelerate", launcher_arguments=own)).words
    assert "--multi_gpu" not in words
    assert "--mixed_precision=no" not in words
    assert "--multi_gpu" in start(place(), job(launcher="accelerate")).words


def test_accelerate_never_starts_pdsh() -> None:
    words = start(place(), job(launcher="accelerate", launcher_arguments=("--use_deepspeed",))).words
    assert option(words, "--deepspeed_multinode_launcher") == "standard"


def test_accelerate_with_one_rank_in_all_still_has_one() -> None:
    begun = start(place(0, nproc_all=(1,)), job(launcher="accelerate"))
    assert "--multi_gpu" not in begun.words
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} == {v.name for v in begun.env}


# -- deepspeed -------------------------------------------------------------------------------------


def world_info(words: tuple[str, ...]) -> dict[str, list[object]]:
    return dict(json.loads(base64.urlsafe_b64decode(option(words, "--world_info"))))


def test_deepspeed_gets_the_ids_of_visible_gpus_and_counts_that_differ() -> None:
    given = place(1, nproc_all=(1, 3), devices=("4", "6", "GPU-0d1e", "7"))
    words = start(given, job(launcher="deepspeed")).words
    assert world_info(words) == {"node0": [0], "node1": [4, 6, "GPU-0d1e"]}
    assert option(words, "--node_rank") == "1"


def test_visible_gpus_are_taken_from_the_users_env_or_the_nodes_shell() -> None:
    cluster = changed(with_gpus(healthy(), 2, 2), "node1", environment={"CUDA_VISIBLE_DEVICES": "2,3"})
    words = plan_of(cluster, launcher="deepspeed", nproc=0).nodes[1].words
    assert world_info(words)["node1"] == [2, 3]
    asked = plan_of(cluster, launcher="deepspeed", nproc=0, env={"CUDA_VISIBLE_DEVICES": "5,1"})
    assert world_info(asked.nodes[1].words)["node1"] == [5, 1]


def test_deepspeed_is_started_without_its_own_ways_to_the_nodes() -> None:
    words = start(place(), job(launcher="deepspeed")).words
    assert "deepspeed.launcher.launch" in words
    assert not any("hostfile" in w or "pdsh" in w for w in words)


# -- llamafactory, colossalai ----------------------------------------------------------------------


def test_llamafactorys_module_is_started_and_its_command_is_not() -> None:
    plan = plan_of(
        healthy(), launcher="llamafactory", script="sft.yaml", chdir="/home/ada", arguments=("lr=1",)
    )
    node = plan.nodes[1]
    assert node.env["RINGUP_SCRIPT"] == "-m llamafactory.launcher"
    assert node.words[-2:] == ("/home/ada/sft.yaml", "lr=1")
    assert node.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    untuned = plan_of(healthy(), launcher="llamafactory", env={"OPTIM_TORCH": "0"})
    assert "PYTORCH_CUDA_ALLOC_CONF" not in untuned.nodes[0].env


def test_colossalai_is_started_as_torchrun_starts() -> None:
    asked = job(launcher="colossalai", arguments=("-c", "./ckpt"))
    assert start(place(), asked) == start(place(), replace(asked, launcher="torchrun"))


# -- jax -------------------------------------------------------------------------------------------


def test_jax_has_one_process_a_node_with_all_its_gpus() -> None:
    plan = plan_of(with_gpus(healthy(), 4, 8), launcher="jax", nproc=0)
    assert [n.nproc for n in plan.nodes] == [1, 1]
    assert [n.env["JAX_LOCAL_DEVICE_IDS"] for n in plan.nodes] == ["0,1,2,3", "0,1,2,3,4,5,6,7"]
    assert {n.env["JAX_COORDINATOR_ADDRESS"] for n in plan.nodes} == {"10.0.0.10:29500"}


def test_jax_with_several_processes_a_node_gives_each_its_own_gpu() -> None:
    plan = plan_of(with_gpus(healthy(), 4, 4), launcher="jax", nproc=4)
    env = plan.nodes[1].env
    assert "JAX_LOCAL_DEVICE_IDS" not in env
    assert (env["OMPI_COMM_WORLD_SIZE"], env["OMPI_COMM_WORLD_LOCAL_RANK"]) == ("8", "{local_rank}")


def test_jaxs_coordinator_is_excepted_from_a_proxy_where_there_is_one() -> None:
    proxied = changed(healthy(), "node1", environment={"HTTPS_PROXY": "http://proxy:3128"})
    nodes = plan_of(proxied, launcher="jax").nodes
    assert [n.env.get("no_grpc_proxy") for n in nodes] == [None, "10.0.0.10"]


def test_jax_on_cpus_is_stopped_where_no_variable_helps_and_torch_is_not() -> None:
    def judged(**of_job: Any) -> tuple[dict[str, str], Plan]:
        cluster = replace(article_002(), job=job(backend="gloo", **of_job))
        for name in ("node0", "node1"):
            cluster = changed(cluster, name, interpreter=replace(TORCH, packages=EVERYTHING))
        _, findings, _, plan, *_ = pipeline.judge(cluster).brief
        assert plan is not None
        return {f.rule: f.severity or "error" for f in findings}, plan

    by_jax, plan = judged(launcher="jax")
    assert by_jax["peer-unreachable-on-interface"] == "error"
    assert "GLOO_SOCKET_IFNAME" not in {v.name for v in plan.env}
    by_torch, plan = judged(launcher="torchrun")
    assert by_torch["peer-unreachable-on-interface"] == "warning"
    assert "GLOO_SOCKET_IFNAME" in {v.name for v in plan.env}


def test_jax_on_gpus_is_not_judged_by_what_gloo_announces() -> None:
    cluster = with_gpus(replace(article_002(), job=job(launcher="jax", backend="nccl")), 8, 8)
    for name in ("node0", "node1"):
        cluster = changed(cluster, name, interpreter=replace(TORCH, packages=EVERYTHING))
    _, findings, _, plan, *_ = pipeline.judge(cluster).brief
    assert plan is not None
    assert "error" not in {f.severity or "error" for f in findings}


# -- spawn, plain ----------------------------------------------------------------------------------


def test_a_spawning_script_is_started_once_a_node_and_told_the_node() -> None:
    node = plan_of(with_gpus(healthy(), 8, 8), launcher="spawn", nproc=0).nodes[1]
    assert node.words == (TORCH.path, "-u", "train.py")
    assert (node.env["RANK"], node.env["WORLD_SIZE"], node.env["LOCAL_WORLD_SIZE"]) == ("1", "2", "8")


def test_arguments_may_ask_for_where_they_are() -> None:
    asked = ("--dist-url", "tcp://{master_addr}:{master_port}", "--rank={node_rank}", '{"lr": 1}', "{rank}")
    for name in ("spawn", "python"):
        words = start(place(), job(launcher=name, arguments=asked)).words
        assert words[-5:] == ("--dist-url", "tcp://10.0.0.10:29501", "--rank=1", '{"lr": 1}', "{rank}")


def test_a_job_file_may_leave_the_node_to_its_shell() -> None:
    given = place(
        shim="",
        node_rank="$SLURM_NODEID",
        head="$((SLURM_NODEID == 0))",
        master_addr="$MASTER_ADDR",
        nproc=2,
        rank=0,
    )
    words = start(given, job(rendezvous="c10d", arguments=("--x",))).words
    assert option(words, "--rdzv-conf").startswith("is_host=$((SLURM_NODEID == 0)),")
    assert words[-2:] == ("train.py", "--x")
    factory = start(given, job(launcher="llamafactory", script="sft.yaml"))
    assert factory.words[-3:] == ("-m", "llamafactory.launcher", "sft.yaml")


# -- findings --------------------------------------------------------------------------------------


def test_a_launcher_that_one_node_lacks_is_named_with_the_command_that_installs_it() -> None:
    cluster = replace(healthy(), job=job(launcher="deepspeed"))
    cluster = changed(cluster, "node0", interpreter=replace(TORCH, packages={"deepspeed": "0.19.8"}))
    found = [f for f in pipeline.judge(cluster).findings if f.rule == "python-or-launcher-missing"]
    assert [(f.node, f.severity or "error", f.found) for f in found] == [
        ("node1", "error", f"{TORCH.path} has no deepspeed")
    ]
    assert found[0].fix is not None
    assert found[0].fix.commands == (f"ssh node1 {TORCH.path} -m pip install deepspeed==0.19.8",)


def test_a_launcher_of_torchs_own_needs_no_package() -> None:
    for name in ("torchrun", "launch", "python", "spawn"):
        cluster = replace(healthy(), job=job(launcher=name))
        assert not [f for f in pipeline.judge(cluster).findings if f.severity == "error"]


def test_jax_needs_no_torch() -> None:
    cluster = replace(healthy(), job=job(launcher="jax"))
    for name in ("node0", "node1"):
        python = Interpreter("/py", "3.11.7", packages={"jax": "0.10.2"})
        cluster = changed(cluster, name, interpreter=python)
    assert not [f for f in pipeline.judge(cluster).findings if (f.severity or "error") == "error"]


# -- the shim --------------------------------------------------------------------------------------


TAKES = {
    "the hyphen": ("p.add_argument('--local-rank')\n", ["--local-rank=1"]),
    "the underscore": ("p.add_argument('--local_rank')\n", ["--local_rank=1"]),
    "both": ("p.add_argument('--local-rank', '--local_rank')\n", ["--local_rank=1"]),
    "neither": ("from options import parser\nparser.parse_args()\n", ["--local_rank=1"]),
}


@on_nodes
@pytest.mark.parametrize("case", TAKES)
def test_the_script_gets_the_local_rank_as_it_takes_it(tmp_path: Path, case: str) -> None:
    text, wanted = TAKES[case]
    (tmp_path / "rank.py").write_text(source("rank.rank"))
    (tmp_path / "train.py").write_text(f"import sys\nprint(sys.argv[1:])\n'''\n{text}'''\n")
    env = {**os.environ, "RINGUP_SCRIPT": str(tmp_path / "train.py"), "LOCAL_RANK": "1"}
    words = [sys.executable, str(tmp_path / "rank.py"), "--local_rank=1", "--local_rank=7", "x"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[*wanted, '--local_rank=7', 'x']}\n"


# -- what mp.spawn tells ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code"), [("exit code 3", 3), ("signal SIGKILL", -9), ("exit code 3 and more", 1)]
)
def test_the_exit_code_of_a_spawned_process_is_its_own(how: str, code: int) -> None:
    said = f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with {how}"
    assert End("job", "node1", 0.0, code=1, lines=(TRACEBACK, '  File "x"', said)).own_code == code


# -- the shim without a launcher -------------------------------------------------------------------

TELLS = """
import os, sys
env = os.environ
told = [env["RANK"], env["LOCAL_RANK"], env["COPY"], str(sys.argv[1:]), str("RINGUP_RANKS" in env)]
os.write(1, (" ".join(told) + "\\n").encode())  # at once: two ranks have one pipe
sys.exit(int(os.environ["RANK"]) if len(sys.argv) > 2 else 0)
"""


def start_ranks(folder: Path, ranks: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The shim as starter, without a guard."""
    (folder / "rank.py").write_text(source("rank.rank"))
    (folder / "train.py").write_text(TELLS)
    env = {**os.environ, "RINGUP_SCRIPT": str(folder / "train.py"), "RINGUP_RANKS": ranks, "COPY": "{rank}"}
    words = [sys.executable, str(folder / "rank.py"), *arguments]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


@on_nodes
def test_the_shim_starts_every_rank_of_a_node_with_its_own_numbers(tmp_path: Path) -> None:
    done = start_ranks(tmp_path, "4:2", "--id={rank}/{local_rank}")
    assert sorted(done.stdout.splitlines()) == ["4 0 4 ['--id=4/0'] False", "5 1 5 ['--id=5/1'] False"]
    assert done.returncode == 0


@on_nodes
def test_the_starter_ends_with_the_code_of_the_rank_that_failed(tmp_path: Path) -> None:
    assert start_ranks(tmp_path, "0:2", "a", "b").returncode == 1
    assert start_ranks(tmp_path, "7:1", "a", "b").returncode == 7
