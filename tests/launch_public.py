"""Launch files in the forms that public repositories have: placeholders, defaults, other launchers."""

from __future__ import annotations

from tests.launch_cases import shell, slurm
from tests.launch_starters import Files

EIGHT = "torchrun --nproc_per_node 8 t.py"
OF_TWO = "torchrun --nnodes=2 --nproc_per_node=4 --node_rank={} --master_addr={} t.py"
DENSE = "--num-layers 24 --hidden-size 1024 --micro-batch-size 4 --global-batch-size {}"
SIZES = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2"
NODES = "torchrun --nnodes $N --nproc_per_node 8 --node_rank $RANK --master_addr $A p.py " + SIZES
LAYERS = "deepspeed --num_gpus 64 p.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 16"
LAYERS += " --num-layers 24"
BATCH = (
    "deepspeed --num_gpus 2 p.py --global-batch-size 1 --micro-batch-size 1 --tensor-model-parallel-size 1"
)
EXPERTS = "--tensor_model_parallel_size 2 --expert_model_parallel_size 8"
LOGGED = """apiVersion: batch/v1
kind: Job
metadata: {{name: t}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: t
        image: i
        command: [torchrun, --nproc_per_node=1, t.py]
        env: [{{name: NCCL_DEBUG, value: "{}"}}]
"""
ELASTIC = """kind: PyTorchJob
spec:
  {1}
  pytorchReplicaSpecs:
    Worker:
      replicas: {0}
      template: {{spec: {{containers: [{{name: a, command: [torchrun, --nnodes=3, t.py]}}]}}}}
"""
INDEXED = """kind: Job
metadata: {name: j}
spec:
  completions: 2
  completionMode: Indexed
  template:
    spec:
      subdomain: s
      containers:
      - name: t
        command: [torchrun, --nnodes=2, --node_rank=$(JOB_COMPLETION_INDEX), --master_addr=j-0.s, t.py]
"""
RAY = "srun -N1 -n1 ray start --head --block &"
VERL = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes={}"
RANKS = "RANK=$R WORLD_SIZE=$W"
BY_ENVIRONMENT = {"t.py": "import torch.distributed as dist\ndist.init_process_group('nccl')\n"}
AT = "--rdzv_backend=c10d --rdzv_id=1 --rdzv_endpoint={}:29500"
OF_SKY = """num_nodes: 1
run: |
  torchrun \\
  --nproc_per_node=8 \\{}
  {}--nnodes=1 \\
  t.py
"""
DIRECTIVES = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"

PUBLIC: dict[str, tuple[list[Files], list[Files]]] = {
    # bash: "syntax error near unexpected token `newline'"
    "launcher-option-wrong": (
        [
            shell("DATA=<Specify path>", EIGHT),
            shell("DATA=<Specify path> (e.g., /data)", EIGHT),
            shell("export PYTHONPATH=$PYTHONPATH:<your_path>", EIGHT),
            shell("swift rollout --port <node1_port>", "", f"NPROC_PER_NODE=8 {EIGHT}"),
            shell("OUT=$ROOT/<NAME>-logs", EIGHT),
            shell(OF_TWO.format(1, "xxx.xxx.xxx.xxx")),
            # argparse: a word with a blank in it is no option
            shell('E="--bf16 --lr 1"', 'torchrun --nproc_per_node 8 "$E" t.py'),
        ],
        [
            shell('echo "usage: a <path>"', EIGHT),
            shell("cat <<EOF", "  --data <path>", "EOF", EIGHT),
            shell("# DATA=<path>", EIGHT),
            shell("sort <in >out", EIGHT),
            shell('E="--standalone --nnodes 1"', "torchrun --nproc_per_node 8 $E t.py"),
            shell("export HF_TOKEN=${HF_TOKEN:-<YOUR_HF_TOKEN>}", EIGHT),
            shell("hyperpodrun --nproc_per_node=1 --server-port=8080 t.py"),
            shell("ft_launcher --nproc_per_node=1 --ft-rank-heartbeat-timeout=9 t.py"),
            shell(OF_TWO.format(1, "10.0.0.1")),
        ],
    ),
    # megatron/training/arguments.py; ms-swift: expert_tensor_parallel_size is 1
    "parallel-sizes-do-not-divide": (
        [
            shell("N=1", NODES),
            shell(LAYERS),
            shell(f"NPROC_PER_NODE=4 megatron sft --model m {EXPERTS}"),
            shell(BATCH),
            shell("torchrun --nproc_per_node 8 p.py " + DENSE.format(36)),
        ],
        [
            shell("N=${WORLD_SIZE:-1}", NODES),
            shell("N=${NODES:-1}", NODES),
            shell("torchrun --nproc_per_node 8 p.py " + DENSE.format(64)),
            shell(f"{LAYERS} --deepspeed"),
            shell(f"NPROC_PER_NODE=8 megatron sft --model m {EXPERTS}"),
        ],
    ),
    # bash: a backslash in front of a blank, and # in quotes, are characters
    "launcher-argument-misread": (
        [
            shell('A="', "--nproc_per_node 8 \\ # GPUs", "--nnodes 1", '"', "torchrun $A t.py"),
            shell('A="', "--lr 1", "# --bf16", '"', f"{EIGHT} $A"),
        ],
        [shell('A="', "--nproc_per_node 8 \\", "--nnodes 1", '"', "torchrun $A t.py  # GPUs")],
    ),
    "command-cut-short": (
        [{"j.yaml": OF_SKY.format(" # GPUs", "")}, {"j.yaml": OF_SKY.format("", "  # --lr 1 \\\n  ")}],
        [
            {"j.yaml": OF_SKY.format("", "")},
            shell(
                EIGHT,
                "if x; then",
                "  ssh h bash -c 'sync' # && \\",
                "#   ssh h date",
                "else",
                "  date",
                "fi",
            ),
        ],
    ),
    "assignment-without-effect": (
        [shell("NCCL_DEBUG=INFO", EIGHT)],
        [shell("NCCL_TEST=1", EIGHT), shell("ray stop", EIGHT)],
    ),
    # training-operator 1.9, elastic.go and hpa.go
    "world-size-disagrees": (
        [{"j.yaml": ELASTIC.format(2, "a: 1")}, slurm(RAY, VERL.format(4))],
        [
            {"j.yaml": ELASTIC.format(2, "elasticPolicy: {minReplicas: 1, maxReplicas: 36}")},
            slurm(RAY, VERL.format(2)),
            slurm(VERL.format(4)),
        ],
    ),
    # lightning/fabric/plugins/environments/slurm.py, validate_settings
    "lightning-tasks-mismatch": (
        [slurm("srun --ntasks-per-node=8 python n.py trainer.devices=8 trainer.num_nodes=4")],
        [slurm("srun --ntasks-per-node=8 python n.py trainer.devices=8 trainer.num_nodes=2")],
    ),
    "launcher-on-first-node-alone": (
        [slurm("python main.py --n_nodes 2 --gpus 8 --strategy ddp")],
        [slurm("srun python main.py --n_nodes 2 --gpus 8"), slurm("python launch.py --nodes 2")],
    ),
    "variable-never-set": (
        [
            slurm(
                "MASTER_ADDR=a",
                "srun torchrun --nnodes=2 --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT t.py",
            ),
            slurm(
                "source env.sh", "HEAD_NODE=a", f"srun torchrun --nnodes=2 {AT.format('$HEAD_NODES')} t.py"
            ),
            slurm(
                "source e.sh",
                "export MASTER_ADDR=a",
                f"srun torchrun --nnodes=2 {AT.format('$MASTER_ADDRS')} t.py",
            ),
            slurm("export HEAD_NODE=a", f"srun torchrun --nnodes=2 {AT.format('$HEAD_NODES')} t.py"),
        ],
        [slurm("srun torchrun --nnodes=2 --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT t.py")],
    ),
    "master-address-not-exported": (
        [
            slurm(f"export MASTER_ADDR=a {RANKS}", "srun ./wrap python t.py"),
            slurm(f"export MASTER_ADDR=a {RANKS}", "srun ./wrap python t.py") | BY_ENVIRONMENT,
        ],
        [
            slurm(f"export MASTER_ADDR=a {RANKS}", "source env.sh", "srun ./wrap python t.py"),
            slurm("export MASTER_ADDR=a", "srun python t.py"),
            slurm(f"export MASTER_ADDR=a MASTER_PORT=1 {RANKS}", "srun python t.py") | BY_ENVIRONMENT,
        ],
    ),
    "pod-name-unknown": (
        [{"j.yaml": INDEXED}],
        [
            {"j.yaml": INDEXED, "s.yaml": "kind: Service\nmetadata: {name: s}\nspec: {clusterIP: None}\n"},
            {"j.yaml": INDEXED.replace("j-0.s", "10.0.0.1")},
        ],
    ),
    "preset-without-effect": (
        [{"j.yaml": LOGGED.format("DETAIL")}],
        [{"j.yaml": LOGGED.format("${NCCL_DEBUG}")}],
    ),
    "unknown-nccl-variable": (
        [shell("export NCCL_HOMES=/opt/nccl", EIGHT)],
        [shell("NCCL_HOMES=/opt/nccl", "docker run -v $NCCL_HOMES:/nccl i", EIGHT)],
    ),
    "head-address-guessed": (
        [shell("IP=$(hostname -I)", f"{EIGHT} --ip $IP")],
        [shell("OWN_IP=$(hostname -I)", 'if [ "$OWN_IP" = "$CONTROLLER" ]; then useradd a; fi')],
    ),
    # Slurm's has_shebang() looks at the first two bytes
    "directive-wrong": (
        [
            {"j.slurm": f"# a job\n\n#!/bin/bash\n{DIRECTIVES}srun python t.py\n"},
            {"j.slurm": "#!/bin/bash\n#SBATCH <OPTIONS> --nodes=2\nsrun python t.py\n"},
            {"j.slurm": f"#!/bin/bash\n{DIRECTIVES.replace('#', '# ')}srun python t.py\n"},
            slurm("srun python t.py", asked="#SBATCH --partition"),
        ],
        [
            {"j.slurm": f"#!/bin/bash\n# a job\n{DIRECTIVES}srun python t.py\n"},
            slurm(
                "srun python t.py", asked="#SBATCH --partition=gpu-partition\n#SBATCH --account=our-account"
            ),
        ],
    ),
}
