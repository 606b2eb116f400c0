"""Launch files as people write them: what is started, how often, and what is certainly wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ringup import lint
from ringup.cli.lint import files_of
from ringup.launchfiles import files, shell
from ringup.launchfiles.model import MOST_LAUNCHES, TOO_LARGE, Launch
from ringup.launchfiles.start import take_apart
from ringup.secrets import redact

TWO = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
FOUR = TWO.replace("2", "4")
HEAD = "HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)\n"
C10D = "--rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d"


def launches(text: str, path: str = "job.sh", **others: str) -> list[Launch]:
    return list(files.read(path, text, {"job.sh": text, **others}).launches)


def only(text: str, path: str = "job.sh", **others: str) -> Launch:
    (found,) = launches(text, path, **others)
    return found


def errors(text: str, path: str = "job.sh", severities: tuple[str, ...] = ("error",)) -> set[str]:
    return {f.rule for f in lint.lint({path: text}) if f.severity in severities}


class Case(NamedTuple):
    text: str
    summary: str
    errors: set[str]
    path: str = "job.sh"


CASES = {
    "launcher in a variable, run by bash -c": Case(
        f'#SBATCH --nodes=2\n{HEAD}RUN="torchrun --nnodes 2 --nproc_per_node 4 {C10D} --rdzv_endpoint $HEAD:29400"\n'
        'srun bash -c "$RUN fit.py"\n',
        "srun torchrun: 2 nodes x 4 ranks, one world",
        set(),
    ),
    "a torchrun per task without --nnodes": Case(
        f"{FOUR}srun torchrun --nproc_per_node=8 fit.py\n",
        "srun torchrun: 4 nodes x 8 ranks, 4 worlds",
        {"several-worlds"},
    ),
    "c10d without an endpoint": Case(
        f"{TWO}{HEAD}srun torchrun --nnodes=2 --nproc_per_node=4 {C10D} --master_addr=$HEAD --master_port=1 fit.py\n",
        "srun torchrun: 2 nodes x 4 ranks, 2 worlds",
        {"rendezvous-endpoint-missing"},
    ),
    "the first node's own name as endpoint": Case(
        f"{TWO}{HEAD}srun -K1 torchrun --nnodes=2 --nproc_per_node=4 {C10D} --rdzv_endpoint=$HEAD:29400 fit.py\n",
        "srun torchrun: 2 nodes x 4 ranks, one world",
        set(),
    ),
    "one node, whose rank is ignored": Case(
        "#SBATCH --nodes=1\nsrun torchrun --nnodes=1 --node_rank=$SLURM_NODEID --nproc_per_node=4 --rdzv_id=1"
        " --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29400 fit.py\n",
        "srun torchrun: 1 node x 4 ranks, one world",
        set(),
    ),
    "a comment behind the backslash": Case(
        "torchrun --nnodes=1 \\\n  --nproc_per_node=4 \\ # one per card\n  fit.py\n",
        "torchrun: 1 node x 4 ranks, one world",
        {"command-cut-short"},
    ),
    "python for the script": Case(
        "torchrun --standalone --nproc_per_node=4 python fit.py\n",
        "torchrun: 1 node x 4 ranks, one world",
        {"launcher-argument-misread"},
    ),
    "deepspeed per task without a host file": Case(
        f"{FOUR}srun deepspeed --num_gpus 8 fit.py --deepspeed ds.json\n",
        "srun deepspeed: 4 nodes x 8 ranks, 4 worlds",
        {"several-worlds"},
    ),
    "empty, misspelt and unfilled options": Case(
        "torchrun --nnodes= --nproc_per_node=4 --rdzc_backend=c10d --rdzv_endpoint=<host>:<port> fit.py\n",
        "torchrun: 1 node x 4 ranks, number of worlds unknown",
        {"launcher-option-wrong"},
    ),
    "a manifest whose nodes meet at localhost": Case(
        "kind: PyTorchJob\nspec:\n  containers: [{command: [torchrun, --nnodes=2, --nproc_per_node=8,"
        " --master_addr=localhost, fit.py]}]\n",
        "PyTorchJob torchrun: 2 nodes x 8 ranks, 2 worlds",
        {"rendezvous-endpoint-own"},
        "job.yaml",
    ),
    "Kubernetes leaves $(hostname) to the shell": Case(
        "kind: PyTorchJob\nspec:\n  containers: [{command: [sh, -c, 'torchrun --nnodes=2 --nproc_per_node=8"
        " --node_rank=$(RANK) --master_addr=$(hostname) --data $$(pwd)/a fit.py']}]\n",
        "PyTorchJob torchrun: 2 nodes x 8 ranks, number of worlds unknown",
        {"rendezvous-endpoint-own"},
        "job.yaml",
    ),
    "a page with a file in it": Case(
        "# Notes\n\nMy file is this:\n```bash\n#!/bin/bash\n#SBATCH --nodes=4 --gpus-per-node=8\n"
        "srun torchrun --nproc_per_node=8 fit.py\n```\nIt hangs. Why?\n```\n[rank0]: error\n```\n",
        "srun torchrun: 4 nodes x 8 ranks, 4 worlds",
        {"several-worlds"},
        "notes.md",
    ),
    "a sourced file may set the variable": Case(
        "source ./common.sh\nsrun torchrun --standalone --nproc_per_node=4 fit.py $more\n",
        "srun torchrun: ? nodes x 4 ranks, number of worlds unknown",
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_read_as_its_comment_says(name: str) -> None:
    case = CASES[name]
    assert only(case.text, case.path).summary == case.summary
    assert errors(case.text, case.path) == case.errors


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.errors])
def test_a_sound_file_gets_notes_at_most(name: str) -> None:
    assert errors(CASES[name].text, CASES[name].path, ("error", "warning")) == set()


READ = {
    "A=(x --nnodes=2); A+=(--nproc_per_node=4); torchrun ${A[@]:1} t.py": None,
    'ARGS=(--nnodes=2 "--nproc_per_node" 4)\ntorchrun "${ARGS[@]}" t.py': (2, 4),
    "N=2\nG=$((N * 2))\ntorchrun --nnodes $N --nproc_per_node $G t.py": (2, 4),
    "N=${N:-2}\ntorchrun --nnodes $N --nproc_per_node ${G:-4} t.py": (2, 4),
    'run() { torchrun --nnodes $1 --nproc_per_node "$2" t.py; }\nrun 2 4': (2, 4),
    "X='torchrun --nnodes 2'\neval $X --nproc_per_node 4 t.py": (2, 4),
    "if x; then N=2; else N=2; fi\ntorchrun --nnodes $N --nproc_per_node 4 t.py": (2, 4),
    "if x; then N=2; else N=3; fi\ntorchrun --nnodes $N --nproc_per_node 4 t.py": (None, 4),
    "apptainer exec --nv -B /a:/b i.sif torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "docker run --rm --gpus all -e A=1 image torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "numactl -N 0 uv run --extra x nsys profile -o f torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "conda run -n e --no-capture-output python -m torch.distributed.run --nnodes 2 --nproc_per_node 4 t.py": (
        2,
        4,
    ),
    "./wrap.sh torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "cat > go.sh <<'EOF'\ntorchrun --nnodes 2 --nproc_per_node 4 t.py\nEOF\nbash go.sh": (2, 4),
    "NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train a.yaml": (2, 4),
    "accelerate launch --num_machines 2 --num_processes 8 t.py": (2, 4),
    "(cd x && torchrun --nnodes 2 --nproc_per_node 4 t.py) &": (2, 4),
    "torchrun --nnodes 2 --nproc_per_node 4 t.py > log 2>&1 --lr 1": (2, 4),
    "if x; then C='python t.py'; else C='torchrun --nnodes 2 --nproc_per_node 4 t.py'; fi\n$C": (2, 4),
    "#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\nW=$((SLURM_NNODES * 4))\naccelerate launch --num_machines 2 "
    "--num_processes $W t.py": (2, 4),
    "D=a i=b F=c\nexport X=$D/$i/$F\ntorchrun --nnodes 2 --nproc_per_node 4 t.py $X": (2, 4),
    "node=$PWD/.job-$RUN_ID.sh  # a comment\ntorchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "N=2 P=4  # both\nA=1\n\ntorchrun --nnodes $N --nproc_per_node $P t.py": (2, 4),
    "N=2 P=4\\\n  torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "torchrun --nnodes 1:4 --nproc_per_node 4 t.py": (None, 4),
    "mpirun -np 1 -wdir $PWD torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "[ -f x ] || { echo no; exit 1; }\ntorchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "if ! torchrun --nnodes 2 --nproc_per_node 4 t.py; then exit 1; fi": (2, 4),
    "until torchrun --nnodes 2 --nproc_per_node 4 t.py; do sleep 5; done": (2, 4),
    "S=b\ncase $S in\n a) N=1;;\n b|c) N=2;;\n *) exit 1;;\nesac\ntorchrun --nnodes $N --nproc_per_node 4 t.py": (
        2,
        4,
    ),
    "for ((i=0; i<=$#; i=i+1)); do case ${@:$i:1} in -p) a=1;; esac; done\n"
    "torchrun --nnodes 2 --nproc_per_node 4 t.py": (2, 4),
    "#SBATCH -N 2\n#SBATCH --gpus-per-node=4\nW=$((SLURM_NNODES * SLURM_GPUS_ON_NODE))\n"
    "accelerate launch --num_machines $SLURM_NNODES --num_processes $W t.py": (2, 4),
    "NNODES=2 NPROC_PER_NODE=4 NODE_RANK=$1 ADDR=10.0.0.7 PORT=29500 xtuner train a.yaml": (2, 4),
    "P=4\n[ $DEBUG = 1 ] && P=1\ntorchrun --nnodes 2 --nproc_per_node $P t.py": (2, 4),
    "hyperpodrun --nnodes 2 --nproc_per_node 4 --server-port=8080 t.py": (2, 4),
}


@pytest.mark.parametrize("text", READ)
def test_values_are_followed_to_the_launcher(text: str) -> None:
    launch = only(text)
    if READ[text] is not None:
        assert (launch.nnodes, launch.ranks_per_node) == READ[text]
    assert launch.start.script in ("t.py", "a.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "if x; then A=(--nproc_per_node 8 --nnodes 2); else A=(--nproc_per_node 8); fi\n"
        'torchrun "${A[@]}" t.py --seed 1',
        "C='numactl -m 0'\nif x; then T='torchrun --nproc_per_node 8 t.py --a'; else T='torchrun "
        '--nproc_per_node 8 t.py\'; fi\nbash -c "$C $T"',
    ],
)
def test_each_value_that_a_branch_gives_is_a_start_of_its_own(text: str) -> None:
    assert [(one.script, one.ranks_per_node) for one in launches(text)] == [("t.py", 8)] * 2
    assert errors(text) == set()


STARTED = {
    f"{FOUR}srun -N2 torchrun t.py": ("srun", 2, 1),
    f"{FOUR}N=$SLURM_NNODES G=8\nsrun -n $((N*G)) --ntasks-per-node=$G python t.py": ("srun", 4, 8),
    "#PBS -l select=3:ncpus=8\nN=`wc -l < $PBS_NODEFILE`\nmpiexec -n $((N * 4)) --ppn 4 python t.py": (
        "mpiexec",
        3,
        4,
    ),
    "uv run python submit.py --gpus 8 -- torchrun --nproc_per_node=8 t.py": ("submit.py", None, None),
    f"{FOUR}my_launch python t.py": ("my_launch", None, None),
    "flux run -N 4 -n 32 --gpus-per-task=1 python t.py": ("flux", 4, 8),
    f"{FOUR}srun xtuner train a.py --launcher slurm": ("srun", 4, 1),
    f"{FOUR}srun -n 16 python t.py": ("srun", 4, 4),
    f"{FOUR}srun --nodes=1 --ntasks=1 torchrun t.py": ("srun", 1, 1),
    f"{FOUR}for i in $(seq 0 $((SLURM_NNODES - 1))); do\nsrun -N1 -n1 -w n$i torchrun t.py &\ndone": (
        "srun",
        4,
        1,
    ),
    f"{FOUR}for h in $(scontrol show hostnames); do ssh $h torchrun t.py & done": ("ssh", 4, 1),
    "for h in a b c; do ssh $h torchrun t.py & done": ("ssh", 3, 1),
    "pdsh -w n[1-4] 'cd /x; torchrun t.py'": ("pdsh", 4, 1),
    "mpirun -np 8 -H a:4,b:4 python t.py": ("mpirun", 2, 4),
    "#PBS -l select=2:ncpus=8\nmpiexec -n 2 --ppn 1 --hostfile $PBS_NODEFILE torchrun t.py": (
        "mpiexec",
        2,
        1,
    ),
    "for h in a b c; do docker -H ssh://$h run i torchrun t.py & done": ("docker", 3, 1),
    "docker --context gpu1 run i torchrun t.py": ("docker", 1, 1),
    "docker --context default run i torchrun t.py": ("shell", 1, 1),
    "docker -H unix:///var/run/docker.sock run i torchrun t.py": ("shell", 1, 1),
    "docker compose -f c.yml run --rm -e A=1 trainer torchrun t.py": ("shell", 1, 1),
    "docker run --entrypoint bash i -c 'torchrun t.py'": ("shell", 1, 1),
    "for h in a b c; do gcloud compute ssh $h --zone=z --command='torchrun t.py' & done": ("gcloud", 3, 1),
    "gcloud compute tpus tpu-vm ssh pod --worker=all --command 'torchrun t.py'": ("gcloud", None, 1),
    "gcloud compute tpus tpu-vm ssh pod --command='torchrun t.py'": ("gcloud", 1, 1),
    f"{FOUR}torchrun t.py": ("batch", 1, 1),
    "torchrun t.py": ("shell", 1, 1),
}


@pytest.mark.parametrize("text", STARTED)
def test_who_starts_it_on_how_many_nodes(text: str) -> None:
    launch = only(text)
    assert (launch.started_by, launch.nodes, launch.per_node) == STARTED[text]


MANIFESTS = {
    "PyTorchJob": (
        "kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Master: {replicas: 1, template: {spec: {containers: [&c\n"
        "      {name: pytorch, command: [torchrun, t.py]}]}}}\n    Worker: {replicas: 3}\n",
        ("PyTorchJob", 4, 1),
    ),
    "JobSet": (
        "kind: JobSet\nspec:\n  replicatedJobs:\n  - replicas: 1\n    template:\n      spec:\n        parallelism: 4\n"
        "        completions: 4\n        template:\n          spec:\n            containers:\n            - name: a\n"
        "              command: [bash, -c]\n              args:\n              - |\n                cd /x\n"
        "                torchrun --nproc_per_node=2 t.py\n",
        ("JobSet", 4, 4),
    ),
    "TrainJob": (
        "kind: TrainJob\nspec:\n  trainer:\n    numNodes: 3\n    numProcPerNode: 8\n    command: [torchrun, t.py]\n",
        ("TrainJob", 3, 1),
    ),
    "SkyPilot": (
        "num_nodes: 2\nrun: |\n  torchrun --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK \\\n"
        '    --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) t.py\n',
        ("SkyPilot", 2, 1),
    ),
    "dstack": (
        "type: task\nnodes: 2\ncommands:\n- cd x\n- |\n  torchrun --nnodes=$DSTACK_NODES_NUM \\\n"
        "    --node-rank=$DSTACK_NODE_RANK --master-addr=$DSTACK_MASTER_NODE_IP t.py\n",
        ("dstack", 2, 1),
    ),
    "Azure ML": (
        "command: cd x && torchrun --nnodes 2 --node_rank $NODE_RANK --master_addr $MASTER_ADDR t.py ${{inputs.d}}\n"
        "distribution: {type: pytorch, process_count_per_instance: 1}\nresources: {instance_count: 2}\n",
        ("Azure ML", 2, 1),
    ),
    "a PyTorchJob in an AppWrapper": (
        "apiVersion: workload.codeflare.dev/v1beta2\nkind: AppWrapper\nspec:\n  components:\n  - template:\n"
        "      apiVersion: kubeflow.org/v1\n      kind: PyTorchJob\n      spec:\n        pytorchReplicaSpecs:\n"
        "          Worker: {replicas: 3, template: {spec: {containers: [{name: a,\n"
        "            command: [torchrun, t.py]}]}}}\n",
        ("PyTorchJob", 3, 1),
    ),
    "compose": (
        "services:\n  a:\n    image: x\n    command: torchrun --nproc_per_node=2 t.py\n",
        ("manifest", 1, 1),
    ),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_are_read_by_form_with_their_lines(kind: str) -> None:
    text, (by, nodes, worlds) = MANIFESTS[kind]
    launch = only(text, "a.yaml")
    assert (launch.started_by, launch.nodes, launch.worlds) == (by, nodes, worlds)
    assert "torchrun" in text.split("\n")[launch.line - 1]


def test_determined_chooses_the_numbers() -> None:
    text = "entrypoint: python3 -m determined.launch.torch_distributed -- python3 t.py\n"
    assert only(f"name: a\n{text}", "a.yaml").unknown == ["nodes", "ranks_per_node", "worlds"]


def test_a_script_that_submits_the_start_line_behind_it_is_a_starter() -> None:
    start = "python submit.py --gpus 8 -- {} t.py --lr 1"
    launch = only(start.format("torchrun --nproc_per_node 8"))
    assert launch.summary == "submit.py torchrun: ? nodes x 8 ranks, number of worlds unknown"
    assert (launch.script, launch.start.arguments) == ("t.py", ("--lr", "1"))
    assert only(start.format("x")).script == "submit.py"
    # as allenai/open-instruct's mason.py, which adds the machine's rank
    assert errors(start.format("accelerate launch --num_machines 8 --num_processes 64")) == set()


def test_verl_in_a_rayjob_says_its_nodes_and_ranks() -> None:
    start = "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8"
    found = only(f"kind: RayJob\nspec:\n  entrypoint: {start}\n", "a.yaml")
    assert found.summary == "RayJob python: 2 nodes x 8 ranks, one world"


def test_a_test_in_front_of_an_assignment_makes_it_one_of_two_values() -> None:
    assert only("[ $X = 1 ] && N=2 || N=4\ntorchrun --nnodes $N --nproc_per_node 4 t.py").nnodes is None
    assert only("[ -z $N ] && N=2\ntorchrun --nnodes $N --nproc_per_node 4 t.py").nnodes == 2


def test_azure_ml_starts_the_processes_of_each_instance() -> None:
    text = "command: python t.py\ndistribution: {type: pytorch, process_count_per_instance: 8}\n"
    found = only(f"{text}resources: {{instance_count: 2}}\n", "a.yaml")
    assert found.summary == "Azure ML python: 2 nodes x 8 ranks, one world"
    torchrun = f"{text}resources: {{instance_count: 1}}\n".replace("python", "torchrun --nproc-per-node=8")
    assert errors(torchrun, "a.yaml") == {"launcher-started-per-task"}


def test_a_script_in_a_pod_of_pytorchjob_gets_its_address_from_the_operator() -> None:
    torchrun = "torchrun --nnodes=4 --nproc-per-node=8 t.py\n"
    manifest = "kind: PyTorchJob\nspec: {containers: [{command: [bash, run.sh]}]}\n"
    # The manifest may be elsewhere.
    assert errors(torchrun, "run.sh") == set()
    assert errors(torchrun, "run.sh", ("warning",)) == {"rendezvous-endpoint-missing"}
    numbered = torchrun.replace("t.py", "--node-rank=$RANK t.py")
    assert errors(numbered, "run.sh") == {"rendezvous-endpoint-missing"}
    assert errors(torchrun.replace("=4", "=$PET_NNODES"), "run.sh", ("error", "warning")) == set()
    assert not lint.lint({"run.sh": torchrun, "a.yaml": manifest})


def test_a_wrapper_in_another_file_may_set_the_rank_again() -> None:
    text = TWO + "export RANK=$SLURM_PROCID WORLD_SIZE=2 MASTER_ADDR=a\nsrun {}python t.py\n"
    assert errors(text.format("")) == {"node-variable-read-too-early"}
    assert errors(text.format("./with_environment.sh ")) == set()


def test_a_pasted_session_is_read_behind_its_prompts() -> None:
    text = "[me@n0 ~]$ cd x\n(env) me@n0:~/x$ torchrun --nnodes=2 --nproc-per-node=4 \\\n> --node-rank=0 \\\n> t.py\n"
    assert only(text).summary == "torchrun: 2 nodes x 4 ranks, one world"
    assert only("$ srun -N 2 --ntasks-per-node=4 python t.py\nepoch 1\n").summary.startswith(
        "srun python: 2 nodes"
    )


def test_the_launcher_of_gpt_neox_reads_its_options_from_a_configuration() -> None:
    launch = only("python ./deepy.py train.py conf.yml\n")
    assert (launch.launcher, launch.script, launch.ranks_per_node) == ("deepspeed", "train.py", None)
    assert only("torchrun_jsc --nproc-per-node=4 t.py\n").summary == "torchrun: 1 node x 4 ranks, one world"


def test_a_command_in_a_directive_of_a_here_document_is_one_value() -> None:
    text = "sbatch <<EOF\n#!/bin/bash\n#SBATCH --nodes=$(sinfo -h | grep -c up)\nsrun python t.py\nEOF\n"
    assert errors(text) == set()


@pytest.mark.parametrize(
    "start", ["srun torchrun --nnodes=0 --master_addr=$H", "jsrun -n 0 -r 1 torchrun --nnodes=2"]
)
def test_a_zero_in_place_of_a_number_is_read(start: str) -> None:
    assert only(f"{TWO}{start} --nproc_per_node=8 t.py\n").as_json()["launcher"] == "torchrun"


def test_each_line_that_reads_a_variable_early_has_its_own_advice() -> None:
    text = f"{TWO}export RANK=$SLURM_PROCID WORLD_SIZE=2\nsrun python train.py\n"
    text += "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$H train.py\n"
    found = [f for f in lint.lint({"job.sh": text}) if f.rule == "node-variable-read-too-early"]
    assert [f.wanted.split(",")[0] for f in found] == [
        "RANK set in each task",
        "single quotes around the command",
    ]


def test_accelerates_file_is_read_with_the_line() -> None:
    text = f"{TWO}srun accelerate launch --config_file c.yaml --machine_rank $R --main_process_ip $H t.py\n"
    known = only(text, **{"c.yaml": "num_machines: 2\nnum_processes: 16\n"})
    assert known.summary == "srun accelerate: 2 nodes x 8 ranks, one world"
    assert only(text).worlds is None and errors(text) == set()


PARTS_OF_TWO = f"""#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --nodes=3 --ntasks-per-node=1
{HEAD}GO="torchrun --nnodes=4 {C10D} --rdzv_endpoint=$HEAD:$P t.py"
srun --het-group=0 $GO &
srun --het-group=1 $GO &
wait
"""
SOUND = {
    "the host's own name": f"{TWO}H=$(hostname)\nsrun -K1 torchrun --nnodes=2 {C10D} --rdzv_endpoint=$H:$P t.py",
    "c10d ignores the node rank": f"{TWO}{HEAD}srun -K1 torchrun --nnodes=2 --node_rank=$SLURM_NODEID {C10D}"
    " --rdzv_endpoint=$HEAD:$P t.py",
    "a sourced file sets the variable": "source a.sh\ntorchrun --nproc_per_node $gpus t.py",
    "operators set PET_": "kind: TrainJob\nspec: {trainer: {numNodes: 4, command: [torchrun, t.py]}}",
    "ranks by mpirun": "#PBS -l select=2\nmpirun -np 8 --ppn 4 python t.py",
    "each node's rank in a loop": f"{TWO}i=0\nfor h in $(scontrol show hostnames); do\nssh $h torchrun --nnodes=2"
    " --node_rank=$i --master_addr=$A t.py &\n((i++))\ndone\nwait",
    "defaults for one node": "H=${MASTER_ADDR:-localhost}\nR=${NODE_RANK:-0}\nN=${NNODES:-1}\n"
    "torchrun --nnodes $N --node_rank $R --master_addr $H t.py",
}


SOUND |= {
    "another id for each run of a series": f"{TWO}{HEAD}for lr in 1 2; do\nsrun torchrun --nnodes=2 --rdzv_id=$RANDOM"
    " --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$P t.py --lr $lr\ndone",
    "a step for each node": f"{TWO}{HEAD}srun -N1 -w $HEAD torchrun --nnodes=2 --node_rank=0 --master_addr=$HEAD t.py &"
    "\nsrun -N1 -x $HEAD torchrun --nnodes=2 --node_rank=1 --master_addr=$HEAD t.py &\nwait",
    "a step for each part of a job": PARTS_OF_TWO,
    "Slurm gives each step its devices": "#SBATCH --nodes=1\n#SBATCH --gres=gpu:8\nexport CUDA_VISIBLE_DEVICES=0,1\n"
    "srun torchrun --standalone --nproc_per_node=8 t.py",
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_idioms_are_silent(name: str) -> None:
    path = "a.yaml" if SOUND[name].startswith("kind") else "job.sh"
    assert errors(SOUND[name], path, ("error", "warning")) - {"ssh-loop-leaves-ranks"} == set()


def test_a_launchers_name_as_an_options_value_starts_nothing() -> None:
    assert launches("./bench.sh --backend deepspeed --model m\n") == []
    assert errors("export A=$B/$C/$D\ntorchrun t.py\n", severities=("error", "warning")) == set()


def test_a_function_that_is_called_twice_starts_two_launches() -> None:
    text = "go() { torchrun --nnodes 1 --nproc_per_node $1 t.py; }\ngo 2\ngo 4\n"
    assert [one.ranks_per_node for one in launches(text)] == [2, 4]


# -- what is not read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("echo hello\n", "a.sh", "no launch line recognised"),
        ("$START train.py\n", "a.sh", "$START is the command, and this file does not set it"),
        ("srun ./other.sh\n", "a.sh", "what ./other.sh starts is in another file"),
        ("docker run --gpus all i:1 --lr 1\n", "a.sh", "the image i:1 chooses the program"),
        ("a: [\n", "a.yaml", "not YAML"),
        ("a: 1\n", "a.yaml", "no launch line recognised"),
    ],
)
def test_what_was_not_read_is_said_with_the_reason(text: str, path: str, said: str) -> None:
    read = files.read(path, text)
    assert not read.launches and said in read.not_read[-1].reason


def test_a_file_that_another_starts_is_read_where_it_is_at_hand() -> None:
    launch = only(f"{TWO}srun bash node.sh 8\n", **{"node.sh": "torchrun --nproc_per_node=$1 t.py\n"})
    assert (launch.worlds, launch.ranks_per_node, launch.line) == (2, 8, 3)


MANY = " ".join(f"--env A{n}=1" for n in range(40))


@pytest.mark.parametrize(
    ("text", "launcher", "ranks"),
    [
        ("NPROC_PER_NODE=8 \\\nmegatron sft --model m --report_to tensorboard swanlab\n", "swift", 8),
        ("ft_launcher --nproc_per_node=2 --ft-rank-heartbeat-timeout=9 t.py\n", "torchrun", 2),
        ("/isaac-sim/python.sh -m torch.distributed.run --nproc_per_node 8 t.py\n", "torchrun", 8),
        (f"gantry run {MANY} -- /bin/bash -c 'torchrun --nproc-per-node 8 t.py'\n", "torchrun", 8),
        ("CKPT=<Specify path>\nV=1\ntorchrun --nproc_per_node 8 t.py --load $CKPT\n", "torchrun", 8),
    ],
)
def test_a_line_as_public_files_have_it_is_read(text: str, launcher: str, ranks: int) -> None:
    launch = only(text)
    assert (launch.launcher, launch.ranks_per_node) == (launcher, ranks)
    assert "script" not in launch.unknown


def test_the_command_prints_what_it_read_and_strict_wants_all(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(CASES["a torchrun per task without --nnodes"].text)
    (tmp_path / "other.sh").write_text("echo hello\n")

    def ringup(*words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "ringup", "lint", *words)
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)

    found = ringup("job.sh")
    assert found.returncode == 1
    assert found.stdout.startswith("job.sh:3  srun torchrun: 4 nodes x 8 ranks, 4 worlds\n")
    said = json.loads(ringup("job.sh", "other.sh", "--json").stdout)
    assert said["launches"] == [
        {
            "file": "job.sh",
            "line": 3,
            "launcher": "torchrun",
            "started_by": "srun",
            "wrapping": [],
            "nodes": 4,
            "ranks_per_node": 8,
            "worlds": 4,
            "endpoint": None,
            "module": None,
            "script": "fit.py",
            "unknown": [],
        }
    ]
    assert said["not_read"] == [{"file": "other.sh", "line": 1, "reason": "no launch line recognised"}]
    assert ringup("other.sh").returncode == 0 and ringup("other.sh", "--strict").returncode == 3
    assert "other.sh:1  not read: no launch line recognised" in ringup("other.sh").stdout


# -- hostile files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 50_000,
        "( " * 20_000 + "torchrun t.py",
        "f() { f; f; }\nf\n",
        "A=x\n" + "A=$A$A\n" * 60 + "torchrun $A\n",
        "a() { b; b; }\nb() { c; c; }\nc() { a; a; }\na\n",
        "for i in {1..5000}; do for j in {1..5000}; do torchrun $i; done; done\n",
        "eval eval eval " * 30 + "torchrun t.py\n",
        "bash -c 'bash -c \"bash -c torchrun\"'\n" * 200,
        "\ue000\uf8ff torchrun \ue001 t.py",
        "torchrun " + "--x " * 50_000,
        "if x; then\n" * 3000,
        "cat <<EOF\n" * 500,
        "".join(f"A{n}=x\n" for n in range(20_000)) + "torchrun t.py\n" * 5000,
        "".join(f"export A{n}=x\n" for n in range(20_000)) + "if x; then ls; fi\n" * 5000,
    ],
    ids=range(14),
)
def test_hostile_shell_is_bounded(text: str) -> None:
    read = shell.read("x.sh", text)
    assert len(read.commands) <= shell.MOST_COMMANDS + 1
    assert all(len(word.text) <= 1 << 20 for command in read.commands for word in command.words)
    assert sum(len(command.variables) + len(command.env) for command in read.commands) < 4_000_000


def test_values_that_grow_end_the_reading() -> None:
    grows = "".join(f'A{n + 1}="$A{n}/x"; export B{n}="$A{n}"\n' for n in range(9000))
    read = shell.read("x.sh", "A0=/\n" + grows + "torchrun t.py\n")
    assert read.is_cut
    assert sum(len(word.text) for word in read.assigned) < 8_000_000


@pytest.mark.parametrize(
    ("path", "before", "line"),
    [
        ("x.sh", "", "torchrun t.py\n"),
        ("x.yaml", "", "- run: torchrun t.py\n"),
        ("x.yaml", "run: |\n", "  torchrun t.py\n"),
    ],
    ids=("shell", "many commands", "one command"),
)
def test_many_launch_lines_are_read_in_part_and_that_is_said(path: str, before: str, line: str) -> None:
    few, many = (files.read(path, before + line * n) for n in (MOST_LAUNCHES, MOST_LAUNCHES + 1))
    assert len(few.launches) == len(many.launches) == MOST_LAUNCHES
    assert [n.reason for n in few.not_read] == []
    assert [n.reason for n in many.not_read] == [TOO_LARGE]


def test_blocks_of_a_page_that_are_not_read_are_named() -> None:
    block = "```sh\ntorchrun --nnodes 2 t.py\n```\n"
    few, many = (lint.examine({"README.md": block * n}) for n in (files.MOST_BLOCKS, files.MOST_BLOCKS + 9))
    assert len(few.jobs) == len(many.jobs) == files.MOST_BLOCKS
    left = [(n.line, n.reason) for job in many.jobs for n in job.read.not_read]
    assert left == [(3 * files.MOST_BLOCKS + 2, f"behind the first {files.MOST_BLOCKS} blocks of the page")]
    assert [n for job in few.jobs for n in job.read.not_read] == []


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "a: &a [x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: &d [*c, *c, *c, *c]\n"
        + "".join(
            f"{n}: &{n} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n"
            for p, n in zip("defghij", "efghijk", strict=True)
        ),
        "command: !!python/object/apply:os.system [x]",
        "a: &x\n  b: *x\n",
    ],
    ids=range(4),
)
def test_hostile_yaml_is_bounded_and_nothing_is_built_from_it(text: str) -> None:
    assert not files.read("x.yaml", text).launches


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    gone = tmp_path / "ran"
    text = f"X=$(touch {gone})\n`touch {gone}`\nsource <(touch {gone})\n$(touch {gone}) torchrun t.py\n"
    files.read("x.sh", text)
    assert not gone.exists()


def test_the_parser_is_only_loaded_for_a_file() -> None:
    code = "import sys, ringup.cli.lint, ringup.launchfiles.start as s; s.take_apart(['torchrun', 'a.py']);"
    code += "print([m for m in ('tree_sitter', 'tree_sitter_bash', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_words_are_taken_apart_as_the_programs_do() -> None:
    found = take_apart(
        [
            "A=1",
            "srun",
            "-l",
            "-N2",
            "--label",
            "env",
            "B=2",
            "timeout",
            "-k",
            "5",
            "60",
            "torchrun",
            "--nproc-per-node",
            "8",
            "-m",
            "pkg.t",
            "--x",
        ]
    )
    assert [step.program for step in found.steps] == ["srun", "env", "timeout"]
    assert found.env == {"A": "1", "B": "2"} and (found.kind, found.script) == ("module", "pkg.t")
    assert found.arguments == ("--x",) and found.option("nproc-per-node") == "8"


# -- certain traps in sound files ----------------------------------------------------------------

SLURM = f"""#!/bin/bash
{FOUR}#SBATCH --gres=gpu:8
GPUS=8
{HEAD}srun --kill-on-bad-exit torchrun \\
  --nnodes=4 \\
  --nproc_per_node=$GPUS \\
  {C10D} \\
  --rdzv_endpoint=$HEAD:$PORT \\
  fit.py --tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 8
"""
STATIC = f"""#!/bin/bash
{FOUR}{HEAD}LAUNCHER="torchrun --nproc_per_node 4 --nnodes 4 --master_addr $HEAD --master_port $PORT"
export LAUNCHER
srun --kill-on-bad-exit bash -c '$LAUNCHER --node_rank $SLURM_PROCID fit.py'
"""
ACCELERATE = f"""#!/bin/bash
{FOUR}#SBATCH --gres=gpu:4
{HEAD}export LAUNCHER="accelerate launch --num_processes 16 --num_machines $SLURM_NNODES --rdzv_backend c10d \\
  --main_process_ip $HEAD --main_process_port $PORT"
CMD="$LAUNCHER fit.py"
srun --kill-on-bad-exit $CMD
"""
TRAPS = [
    (SLURM, "  --nnodes=4 \\\n", "", "several-worlds"),
    (SLURM, "--nnodes=4", "--nnodes=1", "several-worlds"),
    (SLURM, "--nnodes=4", "--nnodes=2", "several-worlds"),
    (SLURM, "  --nnodes=4 \\\n", "  --standalone \\\n", "several-worlds"),
    (SLURM, "--ntasks-per-node=1", "--ntasks-per-node=8", "launcher-started-per-task"),
    (SLURM, "srun --kill-on-bad-exit", "mpirun -np 32 -npernode 8", "launcher-started-per-task"),
    (SLURM, "srun --kill-on-bad-exit ", "", "launcher-on-first-node-alone"),
    (SLURM, "  --rdzv_endpoint=$HEAD:$PORT \\\n", "", "rendezvous-endpoint-missing"),
    (SLURM, "--rdzv_endpoint=$HEAD:$PORT", "--master_addr=$HEAD", "rendezvous-endpoint-missing"),
    (SLURM, "--rdzv_endpoint=$HEAD", "--rdzv_endpoint=localhost", "rendezvous-endpoint-own"),
    (SLURM, "--rdzv_backend=c10d", "", "node-rank-duplicate"),
    (SLURM, "--nproc_per_node=$GPUS \\", "--nproc_per_node=$GPUS \\ # GPUs", "command-cut-short"),
    (SLURM, "--nproc_per_node=$GPUS \\\n", "--nproc_per_node=$GPUS \\\n# GPUs\n", "command-cut-short"),
    (SLURM, "--nproc_per_node=$GPUS \\", "--nproc_per_node=$GPUS", "command-cut-short"),
    (SLURM, "--nproc_per_node=$GPUS \\", "--nproc_per_node=$GPUS \\ ", "backslash-before-space"),
    (SLURM, "GPUS=8", "GPUS=", "launcher-option-wrong"),
    (SLURM, "--rdzv_backend", "--rdzv_backed", "launcher-option-wrong"),
    (SLURM, "--nnodes=4", "\u2013\u2013nnodes=4", "dash-is-no-hyphen"),
    (SLURM, "  fit.py", "  python fit.py", "launcher-argument-misread"),
    (SLURM, "--nnodes=4", "--nnodes=8", "world-size-disagrees"),
    (SLURM, "gpu:8", "gpu:4", "nproc-exceeds-gpus"),
    (SLURM, "parallel-size 8", "parallel-size 3", "parallel-sizes-do-not-divide"),
    (SLURM, "batch-size 8", "batch-size 6", "parallel-sizes-do-not-divide"),
    (STATIC, " --node_rank $SLURM_PROCID", "", "node-rank-duplicate"),
    (STATIC, "$SLURM_PROCID", "0", "node-rank-duplicate"),
    (STATIC, "--master_addr $HEAD ", "", "rendezvous-endpoint-missing"),
    (STATIC, "export LAUNCHER\n", "", "variable-never-set"),
    (ACCELERATE, "--ntasks-per-node=1", "--ntasks-per-node=4", "launcher-started-per-task"),
    (ACCELERATE, "srun --kill-on-bad-exit ", "", "launcher-on-first-node-alone"),
    (ACCELERATE, "--main_process_ip $HEAD", "--main_process_ip localhost", "rendezvous-endpoint-own"),
    (ACCELERATE, "--num_machines", "--num_machine_s", "launcher-option-wrong"),
]


@pytest.mark.parametrize("text", [SLURM, STATIC, ACCELERATE])
def test_a_sound_file_before_the_trap_has_no_finding(text: str) -> None:
    assert errors(text, severities=("error", "warning")) <= {"rendezvous-host-unsure"}


@pytest.mark.parametrize(("text", "old", "new", "rule"), TRAPS)
def test_a_certain_trap_is_named(text: str, old: str, new: str, rule: str) -> None:
    assert old in text
    severities = ("error", "warning") if rule == "variable-never-set" else ("error",)
    assert rule in errors(text.replace(old, new), severities=severities)


SSH = """rank=0
for h in n1 n2 n3; do
  ssh $h "torchrun --nnodes=3 --node_rank=$rank --nproc_per_node=8 --master_addr=n1 --master_port=2000 t.py" &
  rank=$((rank + 1))
done
wait
"""
DOCUMENT = """for h in n1 n2; do
N=$((N + 1))
ssh $h bash -s <<EOS &
torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$N --master_addr=n1 --master_port=2000 t.py
EOS
done
wait
"""
COUNTED = """H=(n1 n2 n3)
for ((i = 0; i < 3; i++)); do
  ssh ${H[$i]} "torchrun --nnodes=3 --node_rank=$i --nproc_per_node=8 --master_addr=n1 --master_port=2000 t.py" &
done
wait
"""
BARE = """#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export MASTER_ADDR=$head WORLD_SIZE=16
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python t.py'
srun --ntasks-per-node=1 torchrun --nnodes=2 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=$head:2000 t.py
"""
MEGATRON = """torchrun --nproc_per_node=8 pretrain_gpt.py --num-layers 12 --num-attention-heads 16 --num-experts 8 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --expert-model-parallel-size 1
"""
OPENMPI = """printf x
cat > hosts <<E
n1 slots=8
n2 slots=8
E
mpirun -np 16 --hostfile hosts python t.py
"""
SKY = """num_nodes: 2
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK --nproc_per_node=8 --master_addr=n t.py
"""
PLACES = """#BSUB -n 16
#BSUB -R "span[ptile=8]"
H=($(sort -u $LSB_DJOB_HOSTFILE))
for i in "${!H[@]}"; do
  blaunch -z "${H[$i]}" torchrun --nproc_per_node=8 --nnodes=${#H[@]} --node_rank=$i --master_addr=${H[0]} t.py &
done
wait
"""
WORKERS = """#SBATCH --nodes=4
H=($(scontrol show hostnames $SLURM_JOB_NODELIST))
for ((i = 1; i < SLURM_NNODES; i++)); do
  srun -N 1 -n 1 -w ${H[$i]} ray start --address ${H[0]}:6379 --block &
done
"""
BY_SRUN = """#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
export FORCE_TORCHRUN=1 NNODES=2 MASTER_PORT=29666
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
srun bash -c 'NODE_RANK=$SLURM_NODEID llamafactory-cli train a.yaml'
"""
COMPOSE = """services:
  a: {command: 'sh -c "torchrun --nnodes=2 --node_rank=$$R --master_addr=a t.py"', environment: [R=0]}
  b: {command: torchrun --nnodes=2 --node_rank=1 --master_addr=a t.py}
"""
INDEXED = """kind: Job
spec:
  completions: 4
  parallelism: 4
  completionMode: Indexed
  template: {spec: {containers: [{command: [bash, -c, "torchrun --nnodes=4 --nproc_per_node=8
    --node_rank=$JOB_COMPLETION_INDEX --master_addr=a-0.a --master_port=2000 t.py"]}]}}
"""
SETTINGS = "distributed_type: FSDP\nnum_machines: 4\nnum_processes: 32\n"
IDS = f"""{FOUR}export HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export ID=$(uuidgen)
srun bash -c 'torchrun --nnodes=4 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_id=$ID --rdzv_endpoint=$HEAD:1 t.py'
"""
FACTORY = """pdsh -w n1,n2 "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=\\$(cat rank) MASTER_ADDR=n1 MASTER_PORT=1 \\
  NPROC_PER_NODE=8 llamafactory-cli train a.yaml"
"""
FROM_LIST = """for i in 0 1 2; do
  ssh node$i "torchrun --nnodes=3 --node_rank=$i --nproc_per_node=8 --master_addr=node0 --master_port=1 t.py" &
done
wait
"""
LWS = """kind: LeaderWorkerSet
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
      spec:
        containers:
          - command:
              - sh
              - -c
              - torchrun --nnodes=4 --node_rank=$LWS_WORKER_INDEX --master_addr=$LWS_LEADER_ADDRESS t.py
"""
OPERATED = """kind: PyTorchJob
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{command: [torchrun, t.py], resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
COLOSSAL = """cat > hosts <<EOF
n1
n2
EOF
colossalai run --nproc_per_node 8 --hostfile hosts --master_addr n1 t.py
"""
MACHINES = f"""{FOUR}#SBATCH --gres=gpu:8
{HEAD}srun bash -c "accelerate launch --num_processes 32 --num_machines 4 --machine_rank \\$SLURM_NODEID \\
  --main_process_ip $HEAD --main_process_port 1 t.py"
"""
VISIBLE = "export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --standalone --nproc_per_node=4 t.py\n"
PARTS = f"""#SBATCH --nodes=1 --ntasks-per-node=1
#SBATCH hetjob
#SBATCH --nodes=3 --ntasks-per-node=1
{HEAD}srun --het-group=0,1 torchrun --nnodes=4 --nproc_per_node=8 {C10D} --rdzv_endpoint=$HEAD:1 t.py
"""
ONE = "accelerate launch --multi_gpu --num_processes=4 t.py\n"
SLIP = """MASTER_ADDR=n1
torchrun --nnodes=2 --node_rank=$1 --nproc_per_node=8 --master_addr $MASTER_ADDR --master_port 1 t.py
"""
BY_HOST = "docker --context a run -d {0}0 t.py\ndocker --context b run -d {0}1 t.py\n".format(
    "--network host i torchrun --nnodes=2 --master-addr=a --master-port=29500 --node-rank="
)
BY_GCLOUD = "".join(
    f"gcloud compute ssh {host} --command='torchrun --nnodes=2 --master-addr=10.0.0.2 --node-rank={n} t.py' &\n"
    for n, host in enumerate(("a", "b"))
)
CRON = """apiVersion: batch/v1
kind: CronJob
spec:
  jobTemplate:
    spec:
      completionMode: Indexed
      parallelism: 2
      completions: 2
      template: {spec: {containers: [{name: a, command: [bash, -c,
        "torchrun --nnodes=2 --node-rank=$JOB_COMPLETION_INDEX --master-addr=a t.py"]}]}}
"""
ELASTIC = """kind: PyTorchJob
spec:
  elasticPolicy: {minReplicas: 2, maxReplicas: 4}
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: pytorch, command: [torchrun, t.py]}]}}}
"""
ON_GPUS = """num_nodes: 2
resources: {accelerators: "H100:8"}
run: torchrun --nnodes=2 --node-rank=$SKYPILOT_NODE_RANK --master-addr=a --nproc-per-node=8 t.py
"""
GROUP = """kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate: {spec: {containers: [{name: a, command: [bash, -c,
      "torchrun --nnodes=2 --node-rank=$LWS_WORKER_INDEX --master-addr=$LWS_LEADER_ADDRESS t.py"]}]}}
"""
UNCOUNTED = """N=0
for h in $(awk '{print $1}' hosts); do
  ssh $h "torchrun --nnodes=$(wc -l < hosts) --node_rank=$N --nproc_per_node=8 --master_addr=n1 --master_port=1 t.py" &
  N=$((N + 1))
done
wait
"""
BY_SRUN_EARLY = '"NODE_RANK=$SLURM_NODEID llamafactory-cli train a.yaml"'
CUT_SRUN = f"{FOUR}srun --mpi=pmix \\\n  bash -c 'MASTER_ADDR=a MASTER_PORT=1 RANK=$SLURM_PROCID WORLD_SIZE=4 python t.py'\n"
WRITTEN = (
    f"{FOUR}cat > w.sh <<'EOF'\nexport RANK=$SLURM_PROCID\nexec \"$@\"\nEOF\nsrun ./w.sh python train.py\n"
)
INCLUDED = "deepspeed --include=n1:0,1@n2:0,1 --hostfile=hosts t.py\n"
TRAIN = """kind: TrainJob
spec:
  trainer:
    numNodes: 2
    numProcPerNode: 8
    command: [torchrun, t.py]
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""
VERL = """python3 -m verl.trainer.main_ppo data.train_batch_size=256 trainer.n_gpus_per_node=8 trainer.nnodes=2 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64
"""
OTHER_TRAPS = [
    ("a.sh", BY_HOST, "--network host ", "", "container-on-own-network"),
    ("a.sh", SSH, "=n1", "=$h", "rendezvous-endpoint-own"),
    ("a.sh", UNCOUNTED, "=n1", "=$h", "rendezvous-endpoint-own"),
    ("a.sh", WRITTEN, "<<'EOF'", "<<EOF", "node-variable-read-too-early"),
    ("a.sh", SLURM, "GPUS=8", "GPUS=$SLURM_GPUS_ON_NODES", "slurm-variable-empty"),
    (
        "a.sh",
        MACHINES.replace("gres=gpu:8", "gpus-per-task=8"),
        "processes 32",
        "processes 8",
        "gpus-left-idle",
    ),
    ("a.sh", UNCOUNTED, "--nnodes=$(", "\u2013-nnodes=$(", "dash-is-no-hyphen"),
    ("a.sh", SLURM, "--nnodes=4", "--nnodes=\u201c$SLURM_NNODES\u201d", "shell-reads-other-words"),
    ("a.yaml", ON_GPUS, "--nnodes=2", "--nnodes=\u201c2\u201d", "launcher-option-wrong"),
    (
        "a.sh",
        BY_SRUN,
        "'NODE_RANK=$SLURM_NODEID llamafactory-cli train a.yaml'",
        BY_SRUN_EARLY,
        "node-variable-read-too-early",
    ),
    ("a.sh", BY_SRUN, "export MASTER_ADDR", "MASTER_ADDR", "master-address-not-exported"),
    ("a.sh", INCLUDED, "--include=", "--master_addr=localhost --include=", "rendezvous-endpoint-own"),
    ("a.sh", SLURM, "$HEAD:$PORT \\\n", "$HEAD:$PORT\n", "launcher-argument-misread"),
    ("a.sh", CUT_SRUN, "pmix \\\n", "pmix\n", "command-cut-short"),
    ("a.sh", UNCOUNTED, "  N=$((N + 1))\n", "", "node-rank-duplicate"),
    ("a.sh", SLURM, "$HEAD:$PORT", "${HEAD[0]:$PORT", "shell-reads-other-words"),
    ("a.sh", SLURM, "$HEAD:$PORT", "$HEAD :29500", "launcher-argument-misread"),
    ("a.sh", INCLUDED, "--include=", "--exclude=n2 --include=", "deepspeed-options-exclude"),
    ("a.yaml", TRAIN, "Node: 8", "Node: 16", "nproc-exceeds-gpus"),
    ("a.sh", COUNTED, "=n1", "=${H[$i]}", "rendezvous-endpoint-own"),
    ("a.sh", BARE, "RANK=$SLURM_PROCID", "RANK=$SLURM_NODEID", "node-rank-duplicate"),
    ("a.sh", MACHINES, "processes 32", "processes 2", "launcher-option-wrong"),
    ("a.sh", SLURM, "HEAD=$(", "HEAD =$(", "assignment-without-effect"),
    ("a.sh", SLURM, "$HEAD:$PORT", "${HEAD:$PORT", "shell-reads-other-words"),
    ("a.sh", SLURM, "torchrun ", "torchrun\u00a0", "shell-reads-other-words"),
    ("a.sh", SLURM, "  fit.py", "  fit.py --name \u201ca b\u201d", "shell-reads-other-words"),
    (
        "a.sh",
        SLURM,
        "fit.py",
        "fit.py --max-position-embeddings 2 --seq-length 4",
        "parallel-sizes-do-not-divide",
    ),
    ("a.sh", VERL, "batch_size=64", "batch_size=512", "parallel-sizes-do-not-divide"),
    ("a.sh", BY_GCLOUD, "rank=1", "rank=0", "node-rank-duplicate"),
    ("a.yaml", CRON, "completionMode: Indexed", "suspend: false", "job-without-index"),
    ("a.yaml", ELASTIC, "minReplicas: 2", "minReplicas: 3", "gang-larger-than-job"),
    ("a.yaml", ON_GPUS, "H100:8", "H100:4", "nproc-exceeds-gpus"),
    ("a.yaml", ON_GPUS, '"H100:8"', "{H100: 4}", "nproc-exceeds-gpus"),
    ("a.yaml", GROUP, "WORKER", "GROUP", "node-rank-duplicate"),
    ("a.sh", IDS, "export ID=", "ID=", "variable-never-set"),
    ("a.sh", IDS, "=$ID", "=$(uuidgen)", "rendezvous-ids-differ"),
    ("a.sh", IDS, "=$ID", "=$RANDOM", "rendezvous-ids-differ"),
    ("a.sh", FACTORY, "\\$(cat rank)", "0", "node-rank-duplicate"),
    ("a.sh", FROM_LIST, "in 0 1 2", "in 1 2 3", "world-size-disagrees"),
    ("a.sh", SSH, "rank=0\n", "rank=1\n", "world-size-disagrees"),
    ("a.yaml", LWS, "size: 4", "size: 1", "world-size-disagrees"),
    ("a.yaml", LWS, "--nnodes=4", "--nnodes=8", "world-size-disagrees"),
    ("a.yaml", OPERATED, "gpu: 8", "gpu: 4", "nproc-exceeds-gpus"),
    # ColossalAI 0.5.0 cli/launcher/run.py: fetch_hostfile.
    ("a.sh", COLOSSAL, "n2", "n2 slots=8", "hostfile-wrong"),
    ("a.sh", COLOSSAL, "n2", "n1", "hostfile-wrong"),
    # Accelerate 1.15 utils/launch.py: nproc_per_node = num_processes // num_machines.
    ("a.sh", MACHINES, "num_processes 32", "num_processes 8", "gpus-left-idle"),
    ("a.sh", VISIBLE, "--nproc_per_node=4", "--nproc_per_node=8", "nproc-exceeds-gpus"),
    ("a.sh", VISIBLE, "0,1,2,3", "GPU-1a,GPU-2b", "nproc-exceeds-gpus"),
    ("a.sh", PARTS, " --het-group=0,1", "", "world-size-disagrees"),
    # Accelerate 1.15 commands/launch.py: parse_args, allow_abbrev=False.
    ("a.sh", ONE, "--num_processes", "--nproc_per_node", "launcher-option-wrong"),
    ("a.sh", ONE, "accelerate launch --multi_gpu", "torchrun", "launcher-option-wrong"),
    ("a.sh", SLIP, "$MASTER_ADDR", "$MASTER_ADR", "variable-never-set"),
    ("a.sh", SSH, "--nnodes=3", "--nnodes=2", "world-size-disagrees"),
    ("a.sh", SSH, "  rank=$((rank + 1))\n", "", "node-rank-duplicate"),
    ("a.sh", DOCUMENT, "N=$((N + 1))\n", "", "node-rank-duplicate"),
    ("a.sh", COUNTED, "rank=$i", "rank=0", "node-rank-duplicate"),
    ("a.sh", COUNTED, "--nnodes=3", "--nnodes=2", "world-size-disagrees"),
    ("a.sh", BARE, "WORLD_SIZE=16", "WORLD_SIZE=8", "world-size-disagrees"),
    ("a.sh", BARE, "torchrun", "python torchrun", "launcher-argument-misread"),
    ("a.sh", BARE, "$head:", "$heads:", "variable-never-set"),
    ("a.sh", MEGATRON, "heads 16", "heads 15", "parallel-sizes-do-not-divide"),
    ("a.sh", MEGATRON, "layers 12", "layers 13", "parallel-sizes-do-not-divide"),
    (
        "a.yaml",
        "kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Worker: {replicas: 2, template: {spec: {containers: [{\n"
        "      name: pytorch, command: [bash, -c, 'torchrun --nnodes=${PET_NNODES} --node-rank=${RANK} t.py']}]}}}\n",
        "${RANK}",
        "0",
        "node-rank-duplicate",
    ),
    (
        "a.sh",
        MEGATRON,
        "expert-model-parallel-size 1",
        "expert-model-parallel-size 3",
        "parallel-sizes-do-not-divide",
    ),
    ("a.sh", OPENMPI, "n2 slots=8", "n2 slots=4", "hostfile-wrong"),
    ("a.yaml", SKY, "SKYPILOT_NODE_RANK", "{NODE_RANK:-0}", "node-rank-duplicate"),
    ("a.yaml", SKY, "SKYPILOT_NUM", "SKPILOT_NUM", "variable-never-set"),
    ("a.sh", PLACES, " &\n", "\n", "nodes-started-in-turn"),
    ("a.sh", WORKERS, "--block &", "--block", "command-never-returns"),
    ("a.sh", BY_SRUN, "bash -c 'NODE_RANK=$SLURM_NODEID ", "bash -c '", "node-rank-duplicate"),
    ("a.yaml", COMPOSE, "R=0", "R=1", "node-rank-duplicate"),
    ("a.yaml", INDEXED, "parallelism: 4", "parallelism: 2", "world-size-disagrees"),
    ("a.yaml", SETTINGS, "32", "30", "world-size-disagrees"),
]


@pytest.mark.parametrize(("path", "text", "old", "new", "rule"), OTHER_TRAPS)
def test_a_trap_is_named_and_its_sound_form_is_not(
    path: str, text: str, old: str, new: str, rule: str
) -> None:
    assert old in text
    assert not errors(text, path)
    assert rule in errors(text.replace(old, new), path)


def test_what_looks_like_a_trap_and_works() -> None:
    scaled = ELASTIC.replace("{min", "{metrics: [{type: Resource}], min").replace("s: 2, max", "s: 3, max")
    assert not errors(scaled, "a.yaml")
    assert not errors(ON_GPUS.replace('"H100:8"', "{H100: 4, A100: 8}"), "a.yaml")
    assert not errors(MEGATRON.replace("layers 12", "layers 13 --decoder-last-pipeline-num-layers 4"))
    assert not errors(OPENMPI.replace("slots=8", "slots=4").replace("mpirun", "mpirun --oversubscribe"))
    assert "t.py" in only("H=($(uniq $LSB_DJOB_HOSTFILE))\nblaunch -z ${H[0]} torchrun t.py\n").script


def test_the_length_of_a_list_that_is_read_elsewhere_is_no_variable() -> None:
    text = COUNTED.replace("(n1 n2 n3)", "($(cat hosts))").replace("=3", "=${#H[@]}")
    assert not errors(text, severities=("error", "warning")) - {"ssh-loop-leaves-ranks"}


@pytest.mark.parametrize("name", ["SLURM_JOBID", "SLURM_CPUS_PER_TASK", "MASTER_PORT"])
def test_a_variable_of_slurm_that_is_like_another_is_no_slip(name: str) -> None:
    text = f"{TWO}{HEAD}srun torchrun --nnodes=2 {C10D} --rdzv_endpoint=$HEAD:1 t.py\n"
    assert not errors(text.replace("SLURM_JOB_ID", name))
    assert errors(text.replace("SLURM_JOB_ID", "SLRUM_JOB_ID")) == {"variable-never-set"}


def test_words_are_counted_as_the_shell_counts_them() -> None:
    assert only("G=$(echo 0 1 2 | wc -w)\ntorchrun --nproc_per_node=$G t.py\n").ranks_per_node == 3
    assert only("G=$(echo 0,1,2 | wc -w)\ntorchrun --nproc_per_node=$G t.py\n").ranks_per_node == 1


def test_an_array_without_an_index_is_its_first_element() -> None:
    start = "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$nodes t.py"
    listed = "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))"
    launch = only(f"#SBATCH --nodes=2\n{listed}\nsrun {start}\n")
    assert launch.worlds == 1 and "first" in launch.shown(launch.host)


def test_a_value_with_a_command_in_it_is_whole() -> None:
    launch = only("export F=/a/$(whoami)/b/$LSB_JOBID-hosts\ntorchrun --standalone t.py $F\n")
    assert launch.start.arguments[0].endswith("-hosts")


def test_the_parts_of_one_world_that_ssh_starts_are_of_all_its_nodes() -> None:
    start = "torchrun --nnodes=2 --nproc_per_node=4 --master_addr=a --node_rank=1 t.py"
    launch = only(f"ssh b '{start}'\n")
    assert (launch.nodes_shown, launch.worlds) == (2, 1)


def test_commands_in_steps_and_charts_are_read_as_far_as_they_are_known() -> None:
    steps = "name: a\nimage: i\nrun:\n- command: |\n    pip install x\n    torchrun --nproc_per_node=4 t.py\n"
    assert [(one.line, one.ranks_per_node) for one in files.read("a.yaml", steps).launches] == [(6, 4)]
    chart = "train:\n  command: [torchrun]\n  args: [$DISTRIBUTED_ARGS, t.py]\n"
    assert [one.ranks_per_node for one in files.read("a.yaml", chart).launches] == [None]


def test_a_word_is_whole_where_the_grammar_cuts_it() -> None:
    launch = only('srun --output=$D/%j_$NOW.log sh -c "python t.py"\n')
    assert launch.summary.startswith("srun python")
    assert launch.steps[0].option("--output") is not None


def test_of_scripts_of_one_name_the_nearest_is_meant() -> None:
    spawns = "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n"
    line = "torchrun --nproc_per_node 2 main.py\n"
    found = lint.lint({"a/run.sh": line, "a/x/main.py": "", "b/main.py": spawns, "c/main.py": spawns})
    assert "ranks-started-twice" not in {f.rule for f in found}
    found = lint.lint({"a/run.sh": line, "a/x/main.py": spawns, "b/main.py": ""})
    assert "ranks-started-twice" in {f.rule for f in found}


def test_more_ranks_than_the_pod_has_gpus_is_an_error() -> None:
    text = (
        "kind: Job\nspec: {template: {spec: {containers: [{command: [torchrun, --nproc_per_node=8, t.py],\n"
    )
    text += "  resources: {limits: {nvidia.com/gpu: 4}}}]}}}\n"
    assert "nproc-exceeds-gpus" in errors(text, "a.yaml")


def test_a_template_that_starts_ranks_is_listed_in_its_directory(tmp_path: Path) -> None:
    chart = {"a.yaml": "torchrun --nnodes={{ .n }} t.py", "b.yaml": "true"}
    for name, line in chart.items():
        (tmp_path / name).write_text(f"{{{{- if .x }}}}\nkind: Job\nrun: {line}\n{{{{- end }}}}\n")
    run = subprocess.run(
        [sys.executable, "-m", "ringup", "lint", "--strict", str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 3 and "a.yaml:1  not read" in run.stdout and "b.yaml" not in run.stdout


def test_a_group_of_a_heterogeneous_job_has_its_own_tasks() -> None:
    text = "#SBATCH -N 2 --ntasks-per-node=8\n#SBATCH hetjob\n#SBATCH -N 1 --ntasks-per-node=1\n"
    shown = [only(f"{text}srun --het-group={group} python train.py\n").summary for group in (0, 1)]
    assert shown == ["srun python: 2 nodes x 8 ranks, one world", "srun python: 1 node x 1 rank, one world"]


def test_the_ranks_of_several_launchers_on_a_node_are_summed() -> None:
    torchrun = "torchrun --nnodes=4 --node-rank=$SLURM_PROCID --nproc-per-node=4 --master-addr=$HEAD t.py"
    text = f"#SBATCH -N 2 --ntasks-per-node=2\nexport {HEAD}srun bash -c '{torchrun}'\n"
    assert only(text).summary == "srun torchrun: 2 nodes x 8 ranks, one world"


def test_a_range_of_nodes_is_no_number() -> None:
    launch = (
        "srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=a:1 t.py"
    )
    text = f"#SBATCH --nodes=2-4 --ntasks-per-node=1\n{launch}\n"
    assert only(text).summary == "srun torchrun: ? nodes x 8 ranks, one world"


def test_a_launch_in_the_words_of_a_function_is_read_once() -> None:
    retry = 'retry() { for i in 1 2; do "$@" && return; done; }\n'
    text = f"{TWO}{retry}retry srun torchrun --nnodes=2 --rdzv-endpoint=a:1 --rdzv-backend=c10d t.py\n"
    assert only(text).started_by == "srun"


def test_only_a_whole_document_with_run_is_a_task_of_skypilot() -> None:
    run = "run: torchrun --standalone --nproc-per-node=2 t.py\n"
    assert only(f"num_nodes: 1\n{run}", "a.yaml").started_by == "SkyPilot"
    assert only(f"jobs:\n  t:\n    steps:\n    - {run}", "a.yaml").started_by == "manifest"


def test_looking_for_a_launcher_starts_none() -> None:
    looks = "if ! command -v torchrun; then exit 1; fi\ntorchrun --version\nif torchrun --help; then x; fi\n"
    assert launches(looks) == [] and errors(looks, severities=("error", "warning")) == set()
    assert only(f"{looks}command torchrun --standalone t.py\n").line == 4


def test_tests_below_a_directory_are_left_out(tmp_path: Path) -> None:
    for name in ("train.py", "test_train.py", "conftest.py"):
        (tmp_path / name).write_text("")
    assert files_of([str(tmp_path)]) == [str(tmp_path / "train.py")]
    assert files_of([str(tmp_path / "conftest.py")]) == [str(tmp_path / "conftest.py")]


def test_ray_starts_the_ranks_of_verl() -> None:
    line = "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node={}\n"
    for count, ranks in (("8", 8), ("$N", None)):
        assert only(line.format(count)).ranks_per_node == ranks


def test_a_gang_of_fewer_pods_than_its_world_is_a_warning() -> None:
    words = "torchrun --nnodes=2 --node-rank=$RANK --master-addr=a t.py"
    pods = f"{{spec: {{containers: [{{name: a, command: [bash, -c, '{words}']}}]}}}}"
    text = "kind: Job\nspec:\n  minAvailable: {}\n  tasks: [{{name: a, replicas: 2, template: {}}}]\n"
    rule = "gang-larger-than-job"
    assert rule in errors(text.format(1, pods), "a.yaml", ("warning",))
    assert rule not in errors(text.format(2, pods), "a.yaml", ("error", "warning"))


def test_a_line_after_a_placeholder_with_a_comment_is_read() -> None:
    line = "srun torchrun --nnodes=2 --rdzv-endpoint=a:1 --rdzv-backend=c10d t.py\n"
    assert only(f"{TWO}export KEY=<api key> # or offline\n{line}").line == 4


def test_a_word_goes_on_at_the_beginning_of_the_next_line() -> None:
    found = only("export NCCL_IB_HCA=a,\\\nb,\\\nc\ntorchrun --rdzv-endpoint=n0:\\\n29500 --nnodes=2 t.py\n")
    assert found.env["NCCL_IB_HCA"] == "a,b,c" and found.line == 4
    assert (found.host, found.port, found.nnodes) == ("n0", "29500", 2)
    assert only("# torchrun a.py \\\ntorchrun --standalone t.py\n").line == 2


def test_the_head_of_c10d_may_reach_its_own_store_at_localhost() -> None:
    line = "torchrun --nnodes=2 --node-rank={} --rdzv-backend=c10d --rdzv-endpoint={}:1 t.py\n"
    assert errors(line.format(0, "localhost")) == {"rendezvous-endpoint-own"}
    assert errors(line.format(0, "localhost") + line.format(1, "10.1.0.4")) == set()


IN_DOCUMENT = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec: {pytorchReplicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [
  {name: pytorch, command: [torchrun, --nnodes=4, --nproc_per_node=8, --rdzv_backend=c10d, t.py]}]}}}}}
EOF
"""


@pytest.mark.parametrize("begin", ["cat <<EOF | kubectl apply -f -", "kubectl create -n a -f - <<'EOF'"])
def test_a_manifest_in_a_here_document_for_kubectl_is_read(begin: str) -> None:
    found = only(f"set -e\n{begin}\n{IN_DOCUMENT}")
    assert (found.started_by, found.nodes, found.line) == ("PyTorchJob", 2, 6)
    assert "world-size-disagrees" in errors(f"{begin}\n{IN_DOCUMENT}")


def test_a_job_file_that_is_written_and_not_run_is_read() -> None:
    text = f"cat <<'EOF' > a.slurm\n#!/bin/bash\n{TWO}srun torchrun --nproc_per_node=4 t.py\nEOF\n"
    assert only(text).line == 5 and errors(text) == {"several-worlds"}
    assert launches(text.replace("#!/bin/bash", "notes")) == []
    assert only(f"{text}torchrun --standalone t.py\n").line == 7


@pytest.mark.parametrize("writes", ["cat > a.sh", "tee ./a.sh"])
def test_the_line_of_a_script_that_is_written_is_its_own(writes: str) -> None:
    text = f"set -e\n{writes} <<'EOF'\n#!/bin/bash\necho\ntorchrun --standalone t.py\nEOF\nchmod +x a.sh\nbash a.sh\n"
    assert only(text).line == 5


@pytest.mark.parametrize("sign", ["<", "<<<"])
def test_a_redirection_from_nothing_is_an_unknown_input(sign: str) -> None:
    text = f"cat > a.sh <<'EOF'\nN=$(wc -l {sign} $1)\ntorchrun --standalone t.py $N\nEOF\nbash a.sh\n"
    assert only(text).line == 3


def test_python_runs_the_script_of_its_debugger() -> None:
    run = "-m torch.distributed.run --nnodes=2 t.py\n"
    assert only(f"python -m debugpy --listen 5678 --wait-for-client {run}").launcher == "torchrun"
    assert only("python -u -m cProfile -o a.prof t.py --lr 1\n").script == "t.py"
    assert only("python -m pdb -c continue t.py\n").script == "t.py"


def test_two_backslashes_end_a_command() -> None:
    text = "torchrun --nproc_per_node=4 t.py \\\\\n    --lr 1\n"
    assert errors(text) == {"command-cut-short"}
    assert errors(text.replace("\\\\", "\\")) == set()


def test_the_mpi_launchers_of_deepspeed_refuse_a_number_of_gpus() -> None:
    line = "deepspeed --hostfile /job/h --launcher {} --num_gpus 1 t.py\n"
    rules = [errors(line.format(by), severities=("warning",)) for by in ("OpenMPI", "pdsh")]
    assert ["deepspeed-options-exclude" in one for one in rules] == [True, False]


def test_a_branch_for_one_node_may_start_deepspeed_alone() -> None:
    several = "if [ $SLURM_NNODES -gt 1 ]; then\ndeepspeed {}t.py\nelse\ndeepspeed t.py\nfi\n"
    rule = "launcher-on-first-node-alone"
    assert rule not in errors(f"{TWO}{several.format('--launcher slurm --hostfile h ')}")
    assert rule in errors(f"{TWO}{several.format('')}")


def test_standard_input_is_a_script() -> None:
    assert errors("torchrun --nproc_per_node=4 - <<EOF\nprint(1)\nEOF\n") == set()
    assert launches("python - <<EOF\nprint(1)\nEOF\n") == []


def test_parallel_sizes_may_fit_more_nodes_than_the_default() -> None:
    sizes = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4"
    text = "N={}\ntorchrun --nnodes $N --nproc_per_node 8 t.py " + sizes + "\n"
    assert errors(text.format("${NNODES:-1}")) == set()
    assert errors(text.format("1")) == {"parallel-sizes-do-not-divide"}


def test_a_node_rank_of_0_beside_an_unused_one_is_a_warning() -> None:
    text = "NODE_RANK=${RANK}\ntorchrun --nnodes=2 --node_rank=%s --master_addr=$HEAD t.py\n"
    rule = "node-rank-duplicate"
    assert rule in errors(text % "0", severities=("warning",))
    assert rule not in errors(text % "$NODE_RANK", severities=("warning", "error"))


def test_one_task_a_node_is_no_number_of_ranks() -> None:
    text = f"{TWO}#SBATCH --gpus-per-node=8\nsrun torchrun --nproc_per_node=$SLURM_NTASKS_PER_NODE t.py\n"
    assert "gpus-left-idle" in errors(text, severities=("warning",))
    assert "gpus-left-idle" not in errors(text.replace("=8", "=1"), severities=("warning",))


@pytest.mark.parametrize(("path", "severity"), [("a.sh", "error"), ("a.md", "warning")])
def test_a_placeholder_of_a_page_is_for_its_reader(path: str, severity: str) -> None:
    text = "```bash\ntorchrun --nproc-per-node <gpus> -m a.train\n```\n"
    found = lint.lint({path: text if path == "a.md" else text.split("\n")[1]})
    assert [f.severity for f in found if f.rule == "launcher-option-wrong"] == [severity]


def test_the_placeholder_of_a_secret_leaves_the_finding_readable() -> None:
    start = "torchrun --standalone t.py\n"
    for line in ("export HF_TOKEN=<YOUR_HF_TOKEN>\n", "export HF_TOKEN=<YOUR_HF_TOKEN>_1\n"):
        (found,) = (f.found for f in lint.lint({"job.sh": line + start}) if f.severity == "error")
        assert "(hidden)" not in redact(found)
    assert "command-cut-short" not in errors(
        f"export A=1\nHF_TOKEN=<TOKEN> torchrun --standalone t.py\n{start}"
    )


def test_each_container_has_its_own_shell() -> None:
    head = "{{name: {}, command: [bash, -c, 'ray start --head --block{}']}}"
    text = "kind: Pod\nspec:\n  containers:\n  - {}\n  - {}\n"
    assert "command-never-returns" not in errors(
        text.format(head.format("a", ""), head.format("b", "")), "a.yaml"
    )
    twice = head.format("a", "; ray start --head --block")
    assert "command-never-returns" in errors(text.format(twice, head.format("b", "")), "a.yaml")


_TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=1\n"
_BY_NODES = "import torch.distributed as dist\nworld_size = int(os.environ['SLURM_NNODES'])\ndist.init_process_group()"
_OFFLOAD = '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}'


@pytest.mark.parametrize(
    ("rule", "line", "more"),
    [
        (
            "gpus-exceed-pod",
            f"{_TWO}srun vllm serve m --tensor-parallel-size 32 --distributed-executor-backend ray",
            {},
        ),
        ("open-mpi-slots", "mpirun -np 4 -H a:4,b:4 -x PATH python t.py", {}),
        ("open-mpi-slots", "horovodrun -np 8 -H a:4, b:4 python t.py", {}),
        ("deepspeed-config-wrong", "deepspeed t.py --deepspeed ds.json", {"ds.json": _OFFLOAD}),
        ("mpi-option-of-another", "mpiexec.hydra -n 8 bash -c 'RANK=$OMPI_COMM_WORLD_RANK python t.py'", {}),
        ("rank-not-set", f"{_TWO}python t.py", {"t.py": f"import os\n{_BY_NODES}\n"}),
    ],
)
def test_what_several_nodes_do_not_get(rule: str, line: str, more: dict[str, str]) -> None:
    assert rule in {one.rule for one in lint.lint({"job.sh": f"{line}\n", **more})}


_SPLIT = "NODE_RANK=0\nexport NODE_RANK\nMASTER_ADDR=$HEAD\nexport MASTER_PORT=29500\nsrun python t.py\n"
_TWO_OF_COMPOSE = "services:\n  a: {{image: x, command: {0} 0}}\n  b: {{image: x, command: {0} {1}}}\n"
_SKY = (
    "resources:\n  accelerators: {}\nnum_nodes: 2\nrun: |\n"
    "  torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE --nnodes=$SKYPILOT_NUM_NODES "
    '--node_rank=$SKYPILOT_NODE_RANK --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) t.py\n'
)
_DSTACK = (
    "type: task\nnodes: 2\nresources: {{gpu: {}}}\ncommands:\n  - torchrun --nproc-per-node=$DSTACK_GPUS_PER_NODE "
    "--node-rank=$DSTACK_NODE_RANK --nnodes=$DSTACK_NODES_NUM --master-addr=$DSTACK_MASTER_NODE_IP t.py\n"
)
_BY_TOTAL = (
    "type: task\nnodes: 2\nresources: {gpu: 80GB:8}\ncommands:\n  - accelerate launch --num_machines 2 "
    "--num_processes=$DSTACK_GPUS_NUM --machine_rank=$DSTACK_NODE_RANK --main_process_ip a t.py\n"
)
_MPI_JOB = (
    "kind: MPIJob\nspec:\n  slotsPerWorker: 4\n  mpiReplicaSpecs:\n"
    "    Launcher: {{template: {{spec: {{containers: [{{command: [mpirun, -np, '{}', python, t.py]}}]}}}}}}\n"
    "    Worker: {{replicas: 2}}\n"
)
_MAKE = (
    "N ?= 2\nHOST = $(shell head -1 hosts)\nifdef p\nP = ${p}\nelse\nP = 4\nendif\n\ntrain: deps\n"
    "\t@torchrun --nnodes=$(N) --nproc_per_node=$(P) \\\n\t  --node_rank=$$RANK --master_addr=$(HOST) t.py\n"
)
_JUST = (
    'n := "2"\nhost := env("HOST")\n\ntrain rank gpus="4":\n'
    "    NCCL_DEBUG=INFO torchrun --nnodes={{n}} --nproc_per_node={{gpus}} --node_rank={{rank}} \\\n"
    "        --master_addr={{host}} t.py\n"
)


@pytest.mark.parametrize(
    ("path", "text", "summary"),
    [
        (
            "job.slurm",
            "srun torchrun --nproc_per_node={{ gpus }} --nnodes {{nodes}} --rdzv_backend c10d "
            "--rdzv_endpoint {{ head | first }}:29500 t.py\n",
            "srun torchrun: ? nodes x ? ranks, number of worlds unknown",
        ),
        ("Makefile", _MAKE, "torchrun: 2 nodes x ? ranks, one world"),
        ("justfile", _JUST, "torchrun: 2 nodes x ? ranks, one world"),
        ("a.yaml", _SKY.format("H100:8"), "SkyPilot torchrun: 2 nodes x 8 ranks, one world"),
        ("a.yaml", _SKY.format("H100"), "SkyPilot torchrun: 2 nodes x 1 rank, one world"),
        ("a.yaml", _DSTACK.format("H100:80GB:8"), "dstack torchrun: 2 nodes x 8 ranks, one world"),
        ("a.yaml", _DSTACK.format("{name: H100}"), "dstack torchrun: 2 nodes x 1 rank, one world"),
        ("a.yaml", _BY_TOTAL, "dstack accelerate: 2 nodes x 8 ranks, one world"),
        ("a.yaml", _DSTACK.format("1..8"), "dstack torchrun: 2 nodes x ? ranks, one world"),
        (
            "job.sh",
            "ray job submit -- python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8\n",
            "ray python: 2 nodes x 8 ranks, one world",
        ),
        (
            "job.sh",
            "torchrun --standalone --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.lora=8\n",
            "torchrun: 1 node x 8 ranks, one world",
        ),
        ("a.yaml", _MPI_JOB.format(8), "mpirun python: 2 nodes x 4 ranks, one world"),
        ("a.yaml", _MPI_JOB.format(3), "mpirun python: 1 node x 3 ranks, one world"),
        ("a.yaml", _MPI_JOB.format(6), "mpirun python: ? nodes x ? ranks, number of worlds unknown"),
        (
            "a.yaml",
            "num_nodes: 2\nrun: |\n  if [ $SKYPILOT_NODE_RANK = 0 ]; then\n    python train.py\n  fi\n",
            "SkyPilot python: ? nodes x 1 rank, number of worlds unknown",
        ),
        (
            "job.sh",
            "oumi distributed torchrun -m oumi train -c a.yaml\n",
            "oumi torchrun: ? nodes x ? ranks, one world",
        ),
        (
            "job.sh",
            f"{TWO}#SBATCH --gpus-per-node=4\n{HEAD}srun bash -c 'FORCE_TORCHRUN=1 NNODES=2 "
            "NODE_RANK=$SLURM_NODEID MASTER_ADDR='$HEAD' MASTER_PORT=1 llamafactory-cli train a.yaml'\n",
            "srun llamafactory: 2 nodes x 4 ranks, one world",
        ),
        (
            "job.sh",
            "cat <<EOF > run.sh\ntorchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=a:1 $@ > log\nEOF\nbash run.sh\n",
            "bash torchrun: 2 nodes x ? ranks, one world",
        ),
    ],
)
def test_values_that_a_template_make_or_a_service_fills_in(path: str, text: str, summary: str) -> None:
    assert only(text, path).summary.removeprefix("bash ") == summary.removeprefix("bash ")
    assert errors(text, path) == set()


@pytest.mark.parametrize(
    ("rule", "severity", "text", "right"),
    [
        (
            "rendezvous-endpoint-list",
            "error",
            f"{TWO}LIST=$(scontrol show hostnames)\nHEAD=$(echo \"$LIST\" | awk '{{print $NF,$1}}')\n"
            f"srun torchrun --nnodes=2 {C10D} --rdzv_endpoint=$HEAD:1 t.py\n",
            ("$NF,$1", "$1"),
        ),
        (
            "rendezvous-endpoint-own",
            "warning",
            "torchrun --standalone --nnodes=$WORLD_SIZE --node_rank=$RANK --master_addr=$A t.py\n",
            ("--standalone ", ""),
        ),
        (
            "container-on-own-network",
            "error",
            "docker run --gpus all x torchrun --nnodes=2 --node_rank=1 --master_addr=172.25.0.81 t.py\n",
            ("--gpus", "--network=host --gpus"),
        ),
        (
            "node-rank-duplicate",
            "error",
            "# node 0\ntorchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 t.py\n"
            "# node 1\ntorchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 t.py\n",
            ("# node 1", "# with profiling"),
        ),
        (
            "master-address-not-exported",
            "warning",
            f"{TWO}{HEAD}{_SPLIT}",
            ("MASTER_ADDR", "export MASTER_ADDR"),
        ),
    ],
)
def test_one_node_left_to_itself(rule: str, severity: str, text: str, right: tuple[str, str]) -> None:
    found = {f.rule for f in lint.lint({"job.sh": text}) if f.severity == severity}
    assert rule in found
    assert rule not in errors(text.replace(*right), severities=("error", "warning"))


def test_two_services_of_compose_with_one_rank() -> None:
    line = "python t.py --world-size 2 --rank"
    assert "node-rank-duplicate" in errors(_TWO_OF_COMPOSE.format(line, 0), "compose.yaml")
    assert "node-rank-duplicate" not in errors(_TWO_OF_COMPOSE.format(line, 1), "compose.yaml")
    assert "node-rank-duplicate" not in errors(
        _TWO_OF_COMPOSE.format("python t.py --rank", 0), "compose.yaml"
    )


def test_the_address_behind_the_script_is_the_cause() -> None:
    text = "torchrun --nnodes 2 --nproc-per-node 8 generate.py --node-rank $R --master-addr $A\n"
    (found,) = (f for f in lint.lint({"job.sh": text}) if f.severity == "error")
    assert found.found.startswith("--master-addr behind the script")


def test_master_and_worker_with_one_rank_are_one_finding() -> None:
    pod = "{{replicas: 1, template: {{spec: {{containers: [{{command: [{}]}}]}}}}}}"
    line = pod.format("torchrun, --nnodes=2, --node_rank=0, --master_addr=x-master-0, t.py")
    text = f"kind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Master: {line}\n    Worker: {line}\n"
    found = [f.where for f in lint.lint({"a.yaml": text}) if f.rule == "node-rank-duplicate"]
    assert found == ["a.yaml:4"]


def test_an_argument_chooses_the_branch_of_a_function() -> None:
    text = (
        'run() {\n  local mode="$1"\n  if [[ "$mode" == torchrun:* ]]; then\n'
        '    torchrun --standalone --nproc_per_node="${mode#torchrun:}" t.py\n'
        '  elif [ "$mode" != here ]; then\n'
        '    local rest="${mode#srun:}"\n    srun --nodes="${rest%%:*}" --ntasks="${rest#*:}" python t.py\n'
        "  else\n    python one.py\n  fi\n}\n"
    )
    found = [one.summary for one in launches(f"{text}run torchrun:4\nrun srun:2:8\n")]
    assert found == ["torchrun: 1 node x 4 ranks, one world", "srun python: 2 nodes x 4 ranks, one world"]
    assert len(launches(f"{text}run $1\n")) == 2 and errors(f"{text}run torchrun:4\nrun srun:2:8\n") == set()


def test_an_installed_module_does_not_need_the_job_files_folder() -> None:
    text = '#!/bin/bash\n#SBATCH --nodes=1\ncd "$(dirname "$0")"\ntorchrun --nproc_per_node=8 {}\n'
    assert "job-file-is-a-copy" in errors(text.format("t.py"))
    assert "job-file-is-a-copy" not in errors(text.format("-m pkg.train"))
    assert "job-file-is-a-copy" in errors(text.format("-m pkg.train"), severities=("warning",))


def test_the_words_behind_an_unknown_script_are_its_own() -> None:
    found = only("torchrun --nproc_per_node=8 --nnodes=2 $SCRIPT --cfg=x ++trainer.num_nodes=4\n")
    assert (found.ranks_per_node, found.start.arguments) == (8, ("--cfg=x", "++trainer.num_nodes=4"))
    assert only("torchrun $ARGS train.py 8\n").script == "train.py"


def test_a_description_starts_nothing() -> None:
    text = "kind: CustomResourceDefinition\nspec:\n  jobName:\n    {}: the id for torchrun and others\n"
    assert not launches(text.format("description"), "a.yaml") and launches(text.format("start"), "a.yaml")


def test_a_pod_that_downloads_first_has_one_launch() -> None:
    text = "num_nodes: 2\nrun: |\n  python scripts/{}_model.py\n  torchrun --standalone t.py\n"
    assert [one.script for one in launches(text.format("download"), "a.yaml")] == ["t.py"]
    assert len(launches(text.format("train"), "a.yaml")) == 2


_PAGE = """# torchrun on nodes
Type this // on each node - and wait:
--nnodes is the count.
```python
RANK = os.environ["RANK"]
```
1. the first
   ```bash
   torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 t.py
   ```
2. or
   ~~~ sh
   torchrun --nnodes=2 --node_rank=0 --master_addr=10.0.0.7 t.py
   ~~~
```
tail -f log
```
````
$ srun torchrun --nnodes=4 t.py
````
"""


def test_a_pages_blocks_are_files_of_their_own() -> None:
    examined = lint.examine({"README.md": _PAGE})
    assert [one.line for job in examined.jobs for one in job.launches] == [9, 13, 19]
    assert {f.where for f in examined.findings if f.severity == "error"} == {"README.md:19"}
    assert only("```sh\npip install a\n```\n\n```bash\ntorchrun --standalone t.py\n", "a.md").line == 6
    assert not launches("# torchrun t.py\n```yaml\nstep: torchrun t.py\n```\n", "a.md")
    assert not launches("```\ntest()\n  → torchrun command\n```\n", "a.md")
    assert only("Type `torchrun`:\n\n    torchrun --standalone t.py\n\nor srun `x`.\n", "a.md").line == 3
    assert only("Type::\n\n  $ torchrun --standalone t.py\n\nDone, srun.\n", "a.rst").line == 3
    page = "```bash\nif true; then\n\n    torchrun --standalone a.py\nfi\ntorchrun --standalone t.py\n```\n"
    assert [one.script for one in launches(page, "a.md")] == ["a.py", "t.py"]
    job = "apiVersion: batch/v1\nkind: Job\nspec: {parallelism: 2, template: {spec: {containers: [{command: [sh, -c, 'torchrun t.py']}]}}}"
    assert (
        only(f"A job:\n```yaml\n{job}\n```\n", "a.md").summary == "Job torchrun: 2 nodes x 1 rank, 2 worlds"
    )
    assert not launches(".. note::\n\n  torchrun t.py\n", "a.rst")
    assert only("#!/bin/bash\necho '```' > a.md\ntorchrun --standalone t.py\n", "-").line == 3


_BRANCHES = """#!/bin/bash
#SBATCH --nodes=2
{}
if {}; then
  srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=h:1 a.py
else
  torchrun b.py
fi
"""


@pytest.mark.parametrize(
    ("sets", "test", "scripts"),
    [
        ("MODE=many", '[ "$MODE" = "many" ]', ["a.py"]),
        ("MODE=one", '[[ "$MODE" == many ]]', ["b.py"]),
        ("N=3", "(( N > 2 ))", ["a.py"]),
        ("N=2", "[ $N -gt 2 ]", ["b.py"]),
        ("", "[ $SLURM_JOB_NUM_NODES -gt 1 ]", ["a.py"]),
        ("", "[ $SLURM_NNODES -eq 1 ]", ["b.py"]),
        ("MODE=${MODE:-one}", '[ "$MODE" = "many" ]', ["a.py", "b.py"]),
        ("MODE=one; [ $1 ] && MODE=many", '[ "$MODE" = "many" ]', ["a.py", "b.py"]),
        ("MODE=one\nread MODE", '[ "$MODE" = "many" ]', ["a.py", "b.py"]),
        ("MODE=one\nsource ./more.sh", '[ "$MODE" = "many" ]', ["a.py", "b.py"]),
        ("MODE=one", '[ "$MODE" = "many" ] || [ $A ]', ["a.py", "b.py"]),
    ],
)
def test_of_an_if_on_a_known_value_one_branch_is_read(sets: str, test: str, scripts: list[str]) -> None:
    text = _BRANCHES.format(sets, test)
    assert [one.script for one in launches(text)] == scripts
    shown = "DRY=no\nif [ $DRY = yes ]; then echo torchrun c.py; fi\n"
    left = [one.line for one in files.read("job.sh", text + shown).not_read]
    begin = text[: text.index("if ")].count("\n") + 1
    assert left == {"a.py": [begin + 3], "b.py": [begin + 1], "a.pyb.py": []}["".join(scripts)]


@pytest.mark.parametrize(
    ("line", "nodes", "ranks"),
    [
        ("srun -n 32 --ntasks-per-node=8 python t.py", 4, 8),
        ("srun -N 2 -n 8 --ntasks-per-node=4 python t.py", 2, 4),
        ("tune run --nnodes 2 --nproc_per_node 8 --rdzv_endpoint h:1 recipe --config c", 2, 8),
        ("debugpy-run -p 5678 -m torch.distributed.run -- --nproc_per_node=2 t.py", 1, 2),
        ("debugpy-run -m torch.distributed.run -p 5678 -- --nproc_per_node=2 t.py", 1, 2),
        (
            "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun tune run --nnodes 2 --nproc_per_node 8 --rdzv_endpoint h:1 r",
            2,
            8,
        ),
        ("debugpy-run t.py", None, 1),
        ("ray job submit --address a:1 -- python t.py --nodes 2", None, None),
        (
            "ray job submit -- python -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=4",
            2,
            4,
        ),
        ("#SBATCH --ntasks=1\nsrun accelerate launch --num_processes=4 t.py", 1, 4),
    ],
)
def test_counts_are_those_of_the_starter(line: str, nodes: int | None, ranks: int | None) -> None:
    found = only(f"#!/bin/bash\n{line}\n")
    assert (found.nodes_shown, found.ranks_shown) == (nodes, ranks)


def test_tasks_and_services_between_fences_are_read() -> None:
    sky = "```yaml\nnum_nodes: 2\nrun: |\n  torchrun --nnodes=2 --node_rank=$SKYPILOT_NODE_RANK t.py\n```\n"
    assert only(sky, "a.md").summary.startswith("SkyPilot torchrun: 2 nodes")
    dstack = "```yaml\ntype: task\nnodes: 2\ncommands:\n  - torchrun --nnodes=2 t.py\n```\n"
    assert only(dstack, "a.md").summary.startswith("dstack torchrun: 2 nodes")
    assert not launches("```yaml\nmodel: m\ndeepspeed: ds.json\n```\n", "a.md")


def test_lists_of_lines_and_of_words_are_commands() -> None:
    assert [
        (one.line, one.nodes_shown, one.per_node)
        for one in launches(
            "a:\n  script:\n    - cd x\n    - srun -N 2 --ntasks-per-node=4 python t.py\n"
            "b:\n  - srun\n  - --nodes 2\n  - --ntasks-per-node 4\n  - python\n  - t.py\n",
            "ci.yml",
        )
    ] == [(4, 2, 4), (6, 2, 4)]
    assert not launches("tags: [ddp, torchrun, release]\nname: t\n", "ci.yml")


@pytest.mark.parametrize("value", ["X", "NUM_GPUS", "your_gpu_count", "{gpus}", "[N]", "..."])
def test_a_count_that_a_page_leaves_to_its_reader_is_a_warning(value: str) -> None:
    line = f"torchrun --nproc_per_node={value} t.py\n"
    assert not errors(f"```bash\n{line}```\n", "a.md")
    assert errors(f"```bash\n{line}```\n", "a.md", ("warning",)) == errors(line) == {"launcher-option-wrong"}


def test_a_placeholder_in_a_directive_of_a_page_is_a_warning() -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=<N>\nsrun python t.py\n"
    assert errors(text) == errors(f"```bash\n{text}```\n", "a.md", ("warning",)) == {"directive-wrong"}
    assert not errors(f"```bash\n{text}```\n", "a.md")


def test_an_unknown_option_before_unknown_words_is_the_launchers() -> None:
    line = "python -m torch.distributed.launch --nodes=$1 --nproc_per_node=$2 {} t\n"
    assert "launcher-option-wrong" in errors(line.format('"${@:3}"'))
    assert "launcher-option-wrong" not in errors('torchrun $SCRIPT --nodes=$1 "$@"\n')


def test_a_host_file_that_the_file_writes_is_no_missing_one() -> None:
    text = "H=./h.txt\n{}deepspeed --hostfile=$H t.py\n"
    makes = "cat $NODES | sort -u | sed 's/$/ slots=4/' > $H\n"
    found = lint.lint({"j.sh": text.format("")}, nearby=lambda path, name: None)
    assert "hostfile-wrong" in {f.rule for f in found}
    found = lint.lint({"j.sh": text.format(makes)}, nearby=lambda path, name: None)
    assert "hostfile-wrong" not in {f.rule for f in found}


@pytest.mark.parametrize("ranks, is_wrong", [(16, False), (32, True)])
def test_a_host_file_made_of_echoed_lines_is_read(ranks: int, is_wrong: bool) -> None:
    text = f'{{ echo "n1 slots=8"; echo "n2 slots=8"; }} > hosts\nmpirun -np {ranks} --hostfile hosts python t.py\n'
    assert ("hostfile-wrong" in {f.rule for f in lint.lint({"j.sh": text})}) == is_wrong
    assert files.read("j.sh", text).launches[0].nodes == 2


@pytest.mark.parametrize(
    "writes",
    [
        "scontrol show hostnames $SLURM_JOB_NODELIST | awk '{print $1\" slots=8\"}' > f",
        "scontrol show hostnames | awk -v g=8 '{print $1\" slots=\"g}' > f",
        "scontrol show hostnames | sed 's/$/ slots=8/' > f",
        "scontrol show hostnames > f\nsed -i 's/$/ slots=8/' f",
        'for h in $(scontrol show hostnames); do echo "$h slots=8" >> f; done',
        'for h in $(scontrol show hostnames); do echo "$h slots=8"; done > f',
        'scontrol show hostnames | while read -r h; do printf "%s slots=%d\\n" $h 8; done > f',
        'for h in a b c d; do echo "$h slots=8" >> f; done',
        'put() { echo "$1 slots=8"; }\n{ put a; put b; put c; put d; } > f',
        'printf "a slots=8\\nb slots=8\\nc slots=8\\nd slots=8\\n" > f',
        'echo old > f\nprintf "a slots=8\\nb slots=8\\nc slots=8\\nd slots=8\\n" > f',
    ],
)
def test_a_host_file_that_the_file_writes_gives_the_nodes_and_ranks(writes: str) -> None:
    launch = only(f"{FOUR}{writes}\ndeepspeed --hostfile=f --master_port=1 t.py\n")
    assert launch.summary == "deepspeed: 4 nodes x 8 ranks, one world, on the batch node alone"
    assert "hostfile-wrong" not in errors(f"{FOUR}{writes}\nmpirun -np 32 --hostfile f python t.py\n")
    by_mpi = only(f"{writes}\nmpirun -np 32 --hostfile f python t.py\n")
    known = "scontrol" not in writes
    assert (by_mpi.nodes, by_mpi.per_node) == ((4, 8) if known else (None, None))


def test_a_host_file_with_a_list_from_outside_has_an_unknown_number_of_hosts() -> None:
    writes = 'echo "$M slots=8" > f\nfor h in $WORKERS; do echo "$h slots=8" >> f; done\n'
    assert only(f"{writes}deepspeed --hostfile=f t.py\n").unknown == ["nodes", "ranks_per_node"]
    assert errors(f"{writes}mpirun -np 32 --hostfile f python t.py\n") == set()


def test_a_host_file_of_names_alone_gives_colossalais_nodes() -> None:
    text = "cat > f <<E\na\nb\nE\ncolossalai run --nproc_per_node 8 --hostfile f t.py\n"
    assert only(text).summary == "colossalai: 2 nodes x 8 ranks, one world"


def test_equal_findings_are_shown_once_with_their_lines() -> None:
    from ringup.cli.lint import folded

    found = lint.lint({"j.sh": "torchrun --nproc_per_nodes=8 t.py\n" * 9 + "torchrun --nnode 2 t.py\n" * 2})
    first, *rest = [one for one in folded(found) if one.rule == "launcher-option-wrong"]
    assert first.where == "j.sh:1" and first.found.endswith("(also lines 2, 3, 4, 5, 6 ...)")
    assert len({one.found for one in rest}) == len(rest)


_TWO_SLOTS = """kind: MPIJob
spec:
  slotsPerWorker: 1
  mpiReplicaSpecs:
    Launcher: {{template: {{spec: {{containers: [{{command: [mpirun, -n, "{}", /home/user/pi]}}]}}}}}}
    Worker: {{replicas: 2}}
"""
_PBS = "#!/bin/bash\n#PBS -l select=2\nmpiexec -n {} -ppn 4 python train.py\n"
_ADDRESS = "#!/bin/bash\n#SBATCH --nodes=2\n{}MASTER_ADDR=$(hostname)\nexport MASTER_PORT=6000\n"
_ADDRESS += 'echo $MASTER_ADDR\nsrun bash -c "\n  export RANK=\\$SLURM_PROCID\n  python train.py"\n'


@pytest.mark.parametrize(
    ("wrong", "right", "path", "rule"),
    [
        (_TWO_SLOTS.format(8), _TWO_SLOTS.format(2), "a.yaml", "mpi-job-slots"),
        (_TWO_SLOTS.format(8), _TWO_SLOTS.format(8).rsplit("    W", 1)[0], "a.yaml", "mpi-job-slots"),
        (_PBS.format(16), _PBS.format(8), "j.pbs", "step-exceeds-job"),
        (_ADDRESS.format(""), _ADDRESS.format("export "), "j.sh", "master-address-not-exported"),
        (
            "#!/bin/bash\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=2\nsrun python train.py\n",
            "#!/bin/bash\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\nsrun python train.py\n",
            "j.sh",
            "nproc-exceeds-gpus",
        ),
        (
            "#!/bin/bash\n#SBATCH --nodes=...\nsrun python train.py\n",
            "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
            "j.sh",
            "directive-wrong",
        ),
    ],
)
def test_a_trap_of_any_program_is_named(wrong: str, right: str, path: str, rule: str) -> None:
    assert rule in errors(wrong, path, ("error", "warning"))
    assert rule not in errors(right, path, ("error", "warning"))


def test_an_unknown_option_is_shown_as_it_is_written() -> None:
    found = lint.lint({"j.sh": "torchrun --nproc_per_nodes=$N t.py\n"})
    assert "torchrun has no option --nproc_per_nodes=$N" in {one.found for one in found}


def test_srun_of_torchtune_without_a_count_forms_a_world_on_each_node() -> None:
    line = (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun tune run {}--nproc_per_node 8 r\n"
    )
    assert only(line.format("--nnodes 2 --rdzv_backend c10d --rdzv_endpoint h:29500 ")).worlds == 1
    assert only(line.format("")).worlds == 2


def test_a_job_of_submitit_is_shown_with_its_nodes_and_tasks() -> None:
    text = (
        "import submitit\nN = 4\nexecutor = submitit.AutoExecutor(folder='l')\n"
        "executor.update_parameters(nodes=N, tasks_per_node=8, gpus_per_node=8, timeout_min=60{})\n"
        "job = executor.submit(main)\n"
    )
    examined = lint.examine({"a.py": text.format("")})
    (launch,) = [one for job in examined.jobs for one in job.launches]
    assert (launch.summary, launch.line) == ("srun python: 4 nodes x 8 ranks, one world", 5)
    assert not examined.findings
    open_ones = [
        text.format(", **more").replace("tasks_per_node=8, ", ""),
        text.replace("=8", "=args.n").format(""),
    ]
    for other in open_ones:
        (launch,) = [one for job in lint.examine({"a.py": other}).jobs for one in job.launches]
        assert launch.unknown == ["ranks_per_node", "worlds"]
    assert lint.examine({"a.py": text.format("").replace("import submitit", "")}).jobs == []


def test_many_equal_launches_of_a_file_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    file.write_text("torchrun --nproc_per_node 8 a.py\n" * 3 + "torchrun --standalone b.py\n" * 6)
    shown = subprocess.run(
        [sys.executable, "-m", "ringup", "lint", "a.sh"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.splitlines()
    eight = [f"a.sh:{at}  torchrun: 1 node x 8 ranks, one world" for at in (1, 2, 3)]
    one = "a.sh:4  torchrun: 1 node x 1 rank, one world (also lines 5, 6, 7, 8, 9)"
    assert [line for line in shown if "world" in line] == [*eight, one]


def test_branches_that_a_known_value_rules_out_are_few_lines() -> None:
    arms = "".join(f"a{i}) torchrun --nproc_per_node {i} t.py;;\n" for i in range(1, 9))
    found = files.read("j.sh", f"X=a5\ncase $X in\n{arms}esac\n")
    assert [one.ranks_per_node for one in found.launches] == [5]
    reason = "values in this file rule this branch out"
    assert [(one.line, one.reason) for one in found.not_read] == [
        (3, reason),
        (4, reason),
        (5, f"{reason}, and 4 later ones"),
    ]


LWS_COUNTED = LWS.replace("--nnodes=4", "--nnodes=$LWS_GROUP_SIZE --nproc_per_node=8")
READ_OTHERWISE = [
    # LSF's blaunch(1): the command is one text for a shell; Hydra's options take NAME=VALUE, too
    (
        "a.sh",
        "#BSUB -n 2\nblaunch -z 'n1 n2' 'cd w; torchrun --nnodes=2 --nproc_per_node=4 t.py'\n",
        "torchrun",
        2,
        4,
    ),
    ("a.sh", "mpiexec.hydra -n 12 -ppn 6 -genv A=1 python t.py\n", "python", 2, 6),
    ("a.sh", "mpiexec.hydra -n 12 -ppn 6 -genv A 1 python t.py\n", "python", 2, 6),
    ("a.sh", "deepspeed --include=n1:0@n2:0 --num_gpus=1 t.py\n", "deepspeed", 2, 1),
    ("a.sh", "composer -n 8 t.py\n", "composer", 1, 8),
    ("a.sh", "composer --nproc=8 --world_size=16 --node_rank=$N t.py\n", "composer", 2, 8),
    ("a.sh", "horovodrun -np 8 -H a:4,b:4 python t.py\n", "horovod", 2, 4),
    ("-", "root@n0:/w# torchrun --nnodes=2 --nproc_per_node=8 t.py\n", "torchrun", 2, 8),
    ("a.sh", "colossalai run --nproc_per_node 4 t.py\n", "colossalai", 1, 4),
    ("a.yaml", LWS_COUNTED, "torchrun", 4, 8),
]


@pytest.mark.parametrize(("path", "text", "launcher", "nodes", "ranks"), READ_OTHERWISE)
def test_forms_of_other_schedulers_are_read(
    path: str, text: str, launcher: str, nodes: int, ranks: int
) -> None:
    (launch,) = launches(text, path)
    assert (launch.launcher, launch.nodes_shown, launch.ranks_shown) == (launcher, nodes, ranks)


@pytest.mark.parametrize("line", ["torchrun --nnodes 2", "torchrun --nproc_per_node {number of gpus} t.py"])
def test_what_a_page_leaves_to_its_reader_is_no_error(line: str) -> None:
    assert lint.examine({"a.sh": f"{line}\n"}).findings[0].severity == "error"
    page = lint.examine({"README.md": f"```bash\n{line}\n```\n"})
    assert {finding.severity for finding in page.findings} <= {"warning", "note"} and page.findings
