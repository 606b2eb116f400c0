"""Launch files that give a launcher variables and options which it does not get, or reads otherwise."""

from __future__ import annotations

from tests.launch_cases import shell, slurm
from tests.launch_starters import Files

TWO_NODES = "#SBATCH --nodes=2 --ntasks-per-node=1"
C10D = "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29621 t.py"
HOSTS = ["cat > hosts <<EOF", "a slots=4", "b slots=4", "EOF", "export MASTER_ADDR=a"]
BY_HOSTS = "mpirun -np 8 --hostfile hosts {} python t.py"
BY_LINES = """#!/bin/bash
#PBS -l select=2:ncpus=32:{}
cd $PBS_O_WORKDIR
NP=$(wc -l < $PBS_NODEFILE)
mpirun -np $NP --hostfile $PBS_NODEFILE -x PATH python t.py
"""
READS = 'import os\nurl = os.environ["MASTER_ADDR"]\n'
REMAINDER = "import torch\nlocal = rank % torch.cuda.device_count()\n"
OF_SET = 'local = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])\ntorch.cuda.set_device(local)\n'
IN_SETS = "#!/bin/bash\n#BSUB -nnodes 2\njsrun -n 12 -r 6 -a {} -g {} python t.py\n"
COMPOSE = "services:\n  t:\n    image: a\n    command: torchrun --standalone t.py\n{}"
LIMITS = "    deploy:\n      resources:\n        limits:\n          memory: 8G\n"
SEES = (
    "    environment: [CUDA_VISIBLE_DEVICES=2]\n    deploy:\n      resources:\n        reservations:\n"
    "          devices:\n            - capabilities: [gpu]\n"
)
BATCHES = (
    "deepspeed --hostfile h t.py --deepspeed ds.json --per_device_train_batch_size 2"
    " --gradient_accumulation_steps 8"
)
BOXED = "-e MASTER_ADDR=a -e MASTER_PORT=12356 -e RANK=0 image"
BY_SCONTROL = "MASTER_ADDR=$(scontrol show hostnames | head -n 1) torchrun t.py"
SERVED = """kind: Service
metadata: {{name: s}}
spec:
  clusterIP: None
  selector: {{app: {}}}
---
kind: Job
metadata: {{name: j}}
spec:
  completions: 2
  completionMode: Indexed
  template:
    metadata: {{labels: {{app: {}}}}}
    spec:
      subdomain: s
      containers:
      - name: t
        image: a
        command: [torchrun, --nnodes=2, --master-addr=j-0.s, t.py]
"""
MACHINE = "machine_rank: {}\nmain_process_ip: 10.0.0.1\nmain_process_port: 29507\nnum_machines: 2\n"
WRAPPED = "distributed_type: FSDP\nfsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: {}\nnum_processes: 4\n"
BY_CONFIG = "accelerate launch --config_file f.yaml t.py --model_name_or_path BAAI/bge-m3"
EIGHT = "deepspeed --num_gpus=8 --hostfile=h --master_port={} t.py > a.log 2>&1&"
FAR = 'pbsdsh -n $n -v run.sh "$n" &'

MERGED = """x-trainer: &trainer
  image: i
  command: bash -c "torchrun --nnodes=2 --node-rank=$$NODE --master-addr=$$MASTER_ADDR t.py"
services:
  a:
    <<: *trainer
    environment: {{NODE: "0", MASTER_ADDR: {0}}}
  b:
    <<: *trainer
    environment: {{NODE: "1", MASTER_ADDR: {0}}}
"""
STATIC = "--master-addr=$2 --master-port=29501 t.py"

GIVEN: dict[str, tuple[list[Files], list[Files]]] = {
    # sbatch(1) and srun(1), environment variables
    "slurm-variable-empty": (
        [
            slurm(f"srun torchrun --nnodes=$SLURM_JOB_NUMNODES {C10D}", asked=TWO_NODES),
            slurm(f"srun torchrun --nnodes=$SLURM_NUM_NODES {C10D}", asked=TWO_NODES),
        ],
        [
            slurm(f"srun torchrun --nnodes=$SLURM_JOB_NUM_NODES {C10D}", asked=TWO_NODES),
            slurm(f"srun torchrun --nnodes=${{SLURM_NUM_NODES:-2}} {C10D}", asked=TWO_NODES),
            slurm("SLURM_NUM_NODES=2", f"srun torchrun --nnodes=$SLURM_NUM_NODES {C10D}", asked=TWO_NODES),
            slurm("srun torchrun --standalone t.py $SLURM_OF_MY_SITE", asked=TWO_NODES),
        ],
    ),
    # a word in place of a variable
    "launcher-variable-misspelt": (
        [
            shell("node_rank=$2", "NODE_RANK=node_rank WORLD_SIZE=2 python t.py"),
            shell("first=n0", "torchrun --nnodes=2 --node-rank=$1 --master-addr=first t.py"),
        ],
        [
            shell("node_rank=$2", "NODE_RANK=$node_rank WORLD_SIZE=2 python t.py"),
            shell("hostfile=/tmp/h", "deepspeed --hostfile=hostfile t.py"),
        ],
    ),
    # bash(1): only exported variables are in the environment of a command
    "assignment-without-effect": (
        [
            shell("CUDA_VISIBLE_DEVICES=2,3", "horovodrun -np 2 -H localhost:2 python t.py"),
            slurm('export CMD="torchrun --standalone t.py"', "echo done"),
            slurm("srun --exact LD_PRELOAD=$X torchrun --standalone t.py"),
        ],
        [
            shell("export CUDA_VISIBLE_DEVICES=2,3", "horovodrun -np 2 -H localhost:2 python t.py"),
            shell("CUDA_VISIBLE_DEVICES=2,3", "export CUDA_VISIBLE_DEVICES", "torchrun --standalone t.py"),
            shell("set -a", "CUDA_VISIBLE_DEVICES=2,3", "torchrun --standalone t.py"),
            slurm("CUDA_VISIBLE_DEVICES=2,3", "torchrun --standalone t.py"),
            slurm('export CMD="torchrun --standalone t.py"', "srun $CMD"),
            slurm("export N=4 \\", "torchrun --standalone t.py"),
            slurm("LD_PRELOAD=$X srun --export ALL=1 env A=b torchrun --standalone t.py"),
        ],
    ),
    # mpirun(1) of Open MPI: -x
    "step-without-environment": (
        [
            {**shell(*HOSTS, BY_HOSTS.format("-x PATH")), "t.py": READS},
            shell(*HOSTS, BY_HOSTS.format("--mca btl tcp,self")),
            shell("export MASTER_ADDR=a", BY_HOSTS.format("--oversubscribe")),
        ],
        [
            {**shell(*HOSTS, BY_HOSTS.format("-x PATH -x MASTER_ADDR")), "t.py": READS},
            {
                **shell(*HOSTS, BY_HOSTS.format("-x PATH")),
                "t.py": READS.replace('["MASTER_ADDR"]', '["HOME"]'),
            },
            {**slurm(*HOSTS, BY_HOSTS.format("-x PATH")), "t.py": READS},
            shell(*HOSTS, BY_HOSTS.format("")),  # MPICH passes all on
            shell(*HOSTS, BY_HOSTS.format("--mca btl tcp,self -x MASTER_ADDR")),
            shell("export MASTER_ADDR=a", "mpirun --oversubscribe -np 8 python t.py"),
        ],
    ),
    # two hosts of four: 0, 2, 4, 6 on the first
    "gpu-by-global-rank": (
        [{**shell(*HOSTS, BY_HOSTS.format("--map-by node")), "t.py": REMAINDER}],
        [
            {**shell(*HOSTS, BY_HOSTS.format("--map-by slot")), "t.py": REMAINDER},
            {**shell(*HOSTS, BY_HOSTS.format("--map-by node").replace("8", "2")), "t.py": REMAINDER},
        ],
    ),
    # jsrun(1): a resource set's GPUs are numbered from 0
    "gpu-hidden-from-task": (
        [{"a.lsf": IN_SETS.format(1, 1), "t.py": OF_SET}],
        [
            {"a.lsf": IN_SETS.format(1, 6), "t.py": OF_SET},
            {"a.lsf": IN_SETS.format(1, 1), "t.py": OF_SET.replace("set_device(local)", "set_device(0)")},
        ],
    ),
    # compose-spec.json: additionalProperties
    "compose-refused": (
        [{"compose.yml": COMPOSE.format(LIMITS + "          shm_size: 2G\n")}],
        [{"compose.yml": COMPOSE.format(LIMITS + "          pids: 99\n    shm_size: 2G\n")}],
    ),
    # GPUs in any way of writing
    "gpu-hidden-from-container": (
        [
            {
                "compose.yml": COMPOSE.format(
                    SEES + "              device_ids:\n                - '2'\n                - '3'\n"
                )
            }
        ],
        [{"compose.yml": COMPOSE.format(SEES + "              count: 4\n")}],
    ),
    # transformers 5.17, XLMRobertaPreTrainedModel
    "fsdp-layer-unknown": (
        [{**shell(BY_CONFIG), "f.yaml": WRAPPED.format("BertLayer")}],
        [
            {**shell(BY_CONFIG), "f.yaml": WRAPPED.format("XLMRobertaLayer")},
            {**shell(BY_CONFIG.replace("bge-m3", "else")), "f.yaml": WRAPPED.format("BertLayer")},
        ],
    ),
    # DeepSpeed 0.19, launcher/runner.py: the first host of the file listens
    "port-used-twice": (
        [
            shell(EIGHT.format(54321), EIGHT.format(54321)),
            shell("if [ $1 ]; then", EIGHT.format(54321), EIGHT.format(54321), "fi"),
        ],
        [
            shell(EIGHT.format(54321), EIGHT.format(54322)),
            shell(EIGHT.format(54321), "wait", EIGHT.format(54321)),
            shell("if [ $1 ]; then", EIGHT.format(1234), "else", EIGHT.format(1234), "fi"),
            shell(EIGHT.format(54321), EIGHT.format(54321).replace("=h ", "=other ")),
        ],
    ),
    "background-not-waited-for": (
        [{"a.pbs": f"#!/bin/bash\n#PBS -l select=2\nfor n in 0 1; do\n{FAR}\ndone\n"}],
        [
            {"a.pbs": f"#!/bin/bash\n#PBS -l select=2\nfor n in 0 1; do\n{FAR}\ndone\nwait\n"},
            {"a.sh": f"for n in 0 1; do\n{FAR}\ndone\n"},
        ],
    ),
    # bash(1): the arguments of a function are those of its call
    "rendezvous-endpoint-own": (
        [
            shell("f() {", f"torchrun --nnodes=2 --node-rank=$1 {STATIC}", "}", "f 0 localhost"),
            {"compose.yml": MERGED.format("localhost")},
        ],
        [
            shell("main() {", f"torchrun --nnodes=2 --node-rank=$1 {STATIC}", "}", 'main "$@"'),
            {"compose.yml": MERGED.format("a")},
        ],
    ),
    # torch 2.13, rendezvous/c10d_rendezvous_backend.py: DEFAULT_PORT
    "launcher-option-wrong": (
        [shell("torchrun --rdzv_backend=c10d --rdzv_endpoint=n0 --master_port=1234 t.py")],
        [
            shell("torchrun --rdzv_backend=c10d --rdzv_endpoint=n0:1234 t.py"),
            shell("main() {", "torchrun --nnodes=$3 --node-rank=$4 t.py", "}", 'main a "$@"'),
        ],
    ),
    "gpus-left-idle": (
        [
            shell('export CUDA_VISIBLE_DEVICES="1,2"', "torchrun t.py"),
            # pbs_resources(7): a chunk has one process without mpiprocs
            {"job.pbs": BY_LINES.format("ngpus=4")},
        ],
        [
            shell('export CUDA_VISIBLE_DEVICES="1,2"', "torchrun --nproc-per-node=2 t.py"),
            shell("export CUDA_VISIBLE_DEVICES=1", "torchrun t.py"),
            {"job.pbs": BY_LINES.format("ngpus=4:mpiprocs=4")},
            {"job.pbs": BY_LINES.format("ngpus=1")},
        ],
    ),
    # nccl 2.30, src/debug.cc
    "preset-without-effect": (
        [shell("export NCCL_DEBUG=DEBUG", "torchrun --standalone t.py")],
        [shell("export NCCL_DEBUG=info", "torchrun --standalone t.py")],
    ),
    # its own launch line, inside `$(...)`
    "submit-options-misplaced": (
        [shell("id=$(sbatch --parsable N48 --ntasks-per-node=8 run.sub)")],
        [shell("id=$(sbatch --parsable -N48 --ntasks-per-node=8 run.sub)")],
    ),
    # LSF and Slurm run the file on the first host
    "launcher-on-first-node-alone": (
        [
            {"a.lsf": '#BSUB -n 32\n#BSUB -R "span[ptile=16]"\ntorchrun --standalone t.py\n'},
            slurm("ray start --address=$HEAD:6379 --num-gpus $N --block", asked=TWO_NODES),
            slurm("deepspeed t.py", asked=TWO_NODES),
        ],
        [
            {"a.lsf": '#BSUB -n 16\n#BSUB -R "span[ptile=16]"\ntorchrun --standalone t.py\n'},
            slurm("srun ray start --address=$HEAD:6379 --num-gpus $N --block", asked=TWO_NODES),
            slurm("deepspeed --hostfile h t.py", asked=TWO_NODES),
        ],
    ),
    # ray 2.55, scripts/scripts.py: start
    "ray-port-differs": (
        [shell("ray start --head", "ray start --address=")],
        [shell("ray start --head", "ray start --address=$1:6379"), shell("ray start --head --port 5678")],
    ),
    # DeepSpeed 0.19, launcher/runner.py: --num_gpus is the number on each node
    "world-size-disagrees": (
        [
            shell(
                "ALL=$(($GPUS*$NODES))", "deepspeed --hostfile h --num_nodes ${NODES} --num_gpus ${ALL} t.py"
            )
        ],
        [
            shell(
                "ALL=$(($GPUS*$NODES))",
                "deepspeed --hostfile h --num_nodes ${NODES} --num_gpus $GPUS t.py $ALL",
            )
        ],
    ),
    # bash(1): single quotes inside double quotes quote nothing
    "node-variable-read-too-early": (
        [
            shell(
                """ssh n1 "pgrep -fl python | awk '{print $1}' | xargs kill\"""", "torchrun --standalone t.py"
            )
        ],
        [
            shell(
                """ssh n1 "pgrep -fl python | awk '{print \\$1}' | xargs kill\"""",
                "torchrun --standalone t.py",
            ),
            shell("""echo "RAM: $(free -h | awk '{print $4}')\"""", "torchrun --standalone t.py"),
        ],
    ),
    # the first task answers, which is on the first node
    "head-is-elsewhere": (
        [],
        [
            slurm(
                "head=`srun sh -c 'if test $SLURM_PROCID -eq 0; then hostname; fi'`",
                "srun torchrun --nnodes=2 --node-rank=$SLURM_NODEID --master-addr $head t.py",
                asked=TWO_NODES,
            )
        ],
    ),
    "launcher-argument-misread": (
        [],
        [shell("pip install datasets deepspeed"), {"a.pbs": "#PBS -l select=2\nmulti.sh torchrun.py\n"}],
    ),
    # Docker's documentation, "Networking": the default bridge has no names
    "container-on-own-network": (
        [shell(f"docker run -d --name a {BOXED}", f"docker run -d --name b {BOXED}")],
        [
            shell(
                f"docker run -d --network n --name a {BOXED}", f"docker run -d --network n --name b {BOXED}"
            ),
            shell(f"docker run -d --name c {BOXED}"),
        ],
    ),
    "container-keeps-out": (
        [slurm(f"srun apptainer exec --nv a.sif bash -c '{BY_SCONTROL}'", asked=TWO_NODES)],
        [
            slurm(
                f"srun apptainer exec --nv -B /usr/lib64/slurm a.sif bash -c '{BY_SCONTROL}'", asked=TWO_NODES
            ),
            slurm(f"srun bash -c '{BY_SCONTROL}'", asked=TWO_NODES),
        ],
    ),
    # Kubernetes: a Service without pods has no addresses
    "pod-name-unknown": (
        [{"job.yaml": SERVED.format("llm", "trainer")}],
        [{"job.yaml": SERVED.format("llm", "llm")}],
    ),
    # accelerate 1.15: machine_rank 0 is the host of the rendezvous
    "accelerate-config-wrong": (
        [{"one.yaml": MACHINE.format(0), "two.yaml": MACHINE.format(0)}],
        [
            {"one.yaml": MACHINE.format(0), "two.yaml": MACHINE.format(1)},
            {"one.yaml": MACHINE.format(0), "two.yaml": MACHINE.format(0) + "mixed_precision: fp16\n"},
        ],
    ),
    # transformers 5.17, integrations/deepspeed.py: whatever the number of ranks is
    "deepspeed-config-disagrees": (
        [{**shell(BATCHES), "ds.json": '{"train_batch_size": 8}'}],
        [{**shell(BATCHES), "ds.json": '{"train_batch_size": 64}'}],
    ),
}
