"""Launch files whose lines say one thing and whose starter, container or operator another."""

from __future__ import annotations

from tests.launch_cases import pbs, shell, slurm
from tests.launch_starters import Files

TWO = "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4"
NODE = "torchrun --nnodes=2 --nproc_per_node=4 --master_addr=a --master_port=29500 --node_rank={} t.py"
MACHINES = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_machines: 2
num_processes: 16
main_process_ip: 10.1.0.4
main_process_port: 29520
rdzv_backend: {}
same_network: {}
"""
ADDRESS = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
IN_IMAGE = "\n".join(["#!/bin/bash", TWO, ADDRESS, "srun apptainer exec --nv {}t.sif python t.py", ""])
BY_CONFIG = "accelerate launch --config_file c.yaml --num_machines 2 {}t.py"
TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: t}}
spec:
  runtimeRef: {{name: {}}}
  trainer:
    numNodes: 2
    command: [torchrun]
    args: ["--rdzv_endpoint={}", --rdzv_backend=c10d, --nnodes=2, t.py]
"""
RAY = """apiVersion: ray.io/v1
kind: RayCluster
spec:
  headGroupSpec:
    rayStartParams: {{num-cpus: {}}}
"""
MAP = 'kind: ConfigMap\napiVersion: v1\nmetadata: {{name: c, labels: {{a: "1"}}}}\ndata: {{PORT: {}}}\n'
WORDS = """apiVersion: batch/v1
kind: Job
metadata: {{name: e}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: e
        command: [torchrun, --standalone, t.py, --port, {}]
"""
TITAN = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=a:1 -m torchtitan.train --job.config_file {}"
DEGREES = "[parallelism]\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = 2\n"
OF_FOLDER = '#PBS -l select=2\nD="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$D/../common.sh"\n'

EIGHT_TASKS = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8"
BY_C10D = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=a:29500 t.py"
PBS_NODES = "#PBS -l nodes=2:ppn=8\npbsdsh {}" + BY_C10D + "\n"
IN_BOX = (
    'srun apptainer exec --cleanenv t.sif bash -c "torchrun --nnodes=2 --master_addr=\\$MASTER_ADDR t.py"'
)
BY_MACHINE = "accelerate launch --config_file c.yaml --machine_rank {} t.py"
IN_TASK = "srun bash -c '{}'"
IN_TURN = "if [ $N = 0 ]; then {}; else ray start --address=$H:6379 --block; fi"
PAGE = "A\n\n.. code-block:: {}\n   :caption: c\n\n   SEQ_LEN = 1\n   torchrun --standalone t.py\n\nDone.\n"

TRAPS = ("trap 'touch STOP' USR1", "python t.py &", "wait")

OF_MPI = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 8
  {}
  mpiReplicaSpecs:
    Launcher: {{template: {{spec: {{containers: [{{command: [mpirun, -np, "{}", python, t.py]}}]}}}}}}
    Worker: {{replicas: 1}}
"""

BY_CDI = """services:
  a:
    image: a
    deploy: {{resources: {{reservations: {{devices: [{{device_ids: ["nvidia.com/gpu={}"]}}]}}}}}}
    command: torchrun --standalone --nproc-per-node=8 t.py
"""

BY_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: e}}
spec:
  completions: 2
  {}
  template:
    spec:
      containers:
      - {{name: e, image: a, command: [torchrun, "{}", --master-addr=e-0.e, t.py]}}
"""

RANKED = "command: [torchrun, --nnodes={}, '--node_rank={}', --master_addr=a, --master_port=1, t.py]"


def workload(master: str, worker: str, workers: int, kind: str = "Volcano") -> Files:
    """A master and its workers with their node ranks."""
    parts = [("master", master, 1), ("worker", worker, workers)]
    if kind == "LeaderWorkerSet":
        words = [f"{part}Template" for part in ("leader", "worker")]
        head = f"kind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n    size: {workers + 1}\n"
        form = "    {}: {{spec: {{containers: [{{{}}}]}}}}\n"
        texts = [form.format(w, RANKED.format(workers + 1, p[1])) for w, p in zip(words, parts, strict=True)]
        return {"a.yaml": head + "".join(texts)}
    form = "  - {{name: {}, replicas: {}, template: {{spec: {{containers: [{{{}}}]}}}}}}\n"
    head = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec:\n  tasks:\n"
    if kind == "PyTorchJob":
        form = "    {}: {{replicas: {}, template: {{spec: {{containers: [{{{}}}]}}}}}}\n"
        head = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n"
    texts = [form.format(name, pods, RANKED.format(workers + 1, rank)) for name, rank, pods in parts]
    return {"a.yaml": head + "".join(texts)}


_OF_WORKERS = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher: {{template: {{spec: {{containers: [{{command: [mpirun, -np, "16", python, t.py]}}]}}}}}}
    Worker:
      replicas: 2
      template: {{spec: {{containers: [{{{}resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}
"""
READ: dict[str, tuple[list[Files], list[Files]]] = {
    # Slurm and PBS run the file on the first node; accelerate 1.15 launch.py: a launcher of DeepSpeed's
    "launcher-on-first-node-alone": (
        [
            slurm("python train.py", asked=TWO),
            slurm(BY_CONFIG.format("--machine_rank $SLURM_PROCID "), asked=TWO),
            {"job.sh": "#$ -l f_node=2\npython3 train.py\n"},
            slurm(f"{NODE.format(0)} $@".replace(" t.py", ""), asked=TWO),
            slurm("accelerate launch --multi_gpu --config_file c.yaml t.py", asked=TWO),
        ],
        [
            slurm("python train.py", asked=TWO.replace("2", "1", 1)),
            slurm("python train.py --hosts $SLURM_JOB_NODELIST", asked=TWO),
            slurm("python launch.py", asked=TWO),
            slurm("coproc srun torchrun --nnodes=2 --rdzv_endpoint=a:1 t.py", "wait $COPROC_PID", asked=TWO),
            slurm(BY_CONFIG.format(""), asked=TWO),
            slurm("torchrun --nproc_per_node=4 $@", asked=TWO),
            {"job.sh": "#$ -l f_node=1\npython3 train.py\n"},
        ],
    ),
    # torch 2.13 run.py: node 0 waits in the rendezvous until all nodes have come
    "nodes-started-in-turn": (
        [
            shell(NODE.format(0), NODE.format(1)),
            shell("if x; then", NODE.format(0), NODE.format(1), "fi"),
        ],
        [
            shell(NODE.format(0) + " &", NODE.format(1)),
            shell(NODE.format(0)),
            shell(f"if x; then {NODE.format(0)}; else {NODE.format(1)}; fi"),
            shell(f"ssh a '{NODE.format(0)}' &", f"ssh b '{NODE.format(1)}'"),
        ],
    ),
    # accelerate 1.15 utils/launch.py (prepare_multi_gpu_env); torch 2.13 run.py
    "accelerate-config-wrong": (
        [{"c.yaml": MACHINES.format("c10d", "true")}],
        [
            {"c.yaml": MACHINES.format("static", "true")},
            {"c.yaml": MACHINES.format("c10d", "false")},
            {"c.yaml": MACHINES.format("c10d", "true").replace("num_machines: 2", "num_machines: 1")},
        ],
    ),
    # Apptainer's user guide, "Environment and metadata": --cleanenv
    "variable-not-passed-on": (
        [{"job.sh": IN_IMAGE.format("--cleanenv ")}],
        [
            {"job.sh": IN_IMAGE.format("")},
            {"job.sh": IN_IMAGE.format("--cleanenv --env MASTER_ADDR=$MASTER_ADDR ")},
            {"job.sh": IN_IMAGE.format("--cleanenv ").replace("srun ", "").replace("nodes=2", "nodes=1")},
            {"job.sh": IN_IMAGE.format("--cleanenv "), "t.py": 'os.environ["MASTER_ADDR"] = first()\n'},
        ],
    ),
    # Kubernetes, "Define dependent environment variables"; Trainer 2.3 framework/plugins/torch
    "variable-without-shell": (
        [{"t.yaml": TRAIN_JOB.format("torch-distributed", "$(MASTER_ADDR):29500")}],
        [
            {"t.yaml": TRAIN_JOB.format("torch-distributed", "$(PET_MASTER_ADDR):29500")},
            {"t.yaml": TRAIN_JOB.format("ours", "$(MASTER_ADDR):29500")},
        ],
    ),
    # KubeRay: map[string]string; Kubernetes v1: ConfigMap's data, Container's command
    "manifest-refused": (
        [
            {"r.yaml": RAY.format(0)},
            {"m.yaml": MAP.format(29500)},
            {"j.yaml": WORDS.format(29500)},
        ],
        [
            {"r.yaml": RAY.format('"0"')},
            {"m.yaml": MAP.format('"29500"')},
            {"j.yaml": WORDS.format('"29500"')},
        ],
    ),
    # lsf.conf(5)
    "bsub-reads-no-directives": (
        [{**shell("bsub ./t.lsf"), "t.lsf": "#BSUB -n 2\nblaunch torchrun --nnodes=2 t.py\n"}],
        [{**shell("bsub ./t.lsf"), "t.lsf": "#BSUB -nnodes 2\njsrun torchrun t.py\n"}],
    ),
    # mpiexec of MPICH 5 prints its help for -H; Open MPI: mpirun(1)
    "step-without-environment": (
        [shell("export MASTER_ADDR=a", "mpirun -np 8 -H a:4,b:4 --bind-to none python t.py")],
        [shell("export MASTER_ADDR=a", "mpirun -np 8 -H a:4,b:4 -x MASTER_ADDR python t.py")],
    ),
    # torchtitan distributed/parallel_dims.py
    "parallel-sizes-do-not-divide": (
        [
            {"job.sh": TITAN.format("c.toml"), "c.toml": DEGREES.format(16)},
            {
                "job.sh": TITAN.format("c.toml --parallelism.tensor_parallel_degree=3"),
                "c.toml": DEGREES.format(-1),
            },
        ],
        [
            {"job.sh": TITAN.format("c.toml"), "c.toml": DEGREES.format(8)},
            {"job.sh": TITAN.format("c.toml"), "c.toml": DEGREES.format(-1)},
            {"job.sh": TITAN.format("missing.toml")},
        ],
    ),
    # qsub(1B): the server keeps a copy of the script
    "job-file-is-a-copy": (
        [{"job.sh": OF_FOLDER + "torchrun --standalone t.py\n"}],
        [
            {"job.sh": OF_FOLDER.replace("#PBS -l select=2\n", "") + "torchrun --standalone t.py\n"},
            {"job.sh": OF_FOLDER.replace("$D/..", "/sw") + "torchrun --standalone t.py\n"},
        ],
    ),
    # schedulers of other vendors: Donau's #DSUB, Kyoto University's and NQS's #QSUB
    "directive-misspelt": (
        [pbs("true") | {"b.sh": "#!/bin/bash\n#SBTCH --nodes=2\ntorchrun --standalone t.py\n"}],
        [
            {"b.sh": "#!/bin/bash\n#QSUB -q gr1\n#QSUB -A p=2\nmpirun -np 2 python t.py\n"},
            {"b.sh": "#!/bin/bash\n#DSUB -n 2\n#DSUB -R 'gpu=8'\ntorchrun --standalone t.py\n"},
        ],
    ),
    # DeeperSpeed's deepy.py starts jsrun itself (GPT-NeoX, deepy.py)
    "launch-node-has-no-gpu": (
        [{"job.lsf": "#BSUB -nnodes 4\ntorchrun --nproc_per_node=6 t.py\n"}],
        [{"job.lsf": "#BSUB -nnodes 4\npython3 /a/deepy.py train.py c.yml\n"}],
    ),
    # Torque's pbsdsh(1B): -u is once on each node
    "launcher-started-per-task": (
        [
            slurm(f"if srun {BY_C10D}; then echo ok; fi", asked=EIGHT_TASKS),
            slurm(f"until srun {BY_C10D}; do sleep 5; done", asked=EIGHT_TASKS),
            slurm(IN_TASK.format(f'[ -n "$SLURM_LOCALID" ] || exit 1; {BY_C10D}'), asked=EIGHT_TASKS),
            slurm(IN_TASK.format(f'if [ -z "$RANK" ]; then exit 1; fi; {BY_C10D}'), asked=EIGHT_TASKS),
            {"job.pbs": PBS_NODES.format("")},
        ],
        [
            slurm(IN_TASK.format(f"if [ $SLURM_LOCALID -eq 0 ]; then {BY_C10D}; fi"), asked=EIGHT_TASKS),
            slurm(IN_TASK.format(f"[ $SLURM_LOCALID = 0 ] || exit 0; {BY_C10D}"), asked=EIGHT_TASKS),
            slurm(IN_TASK.format(f"[ $SLURM_LOCALID = 0 ] && {BY_C10D}"), asked=EIGHT_TASKS),
            slurm(IN_TASK.format(f"if ((SLURM_LOCALID)); then exit; fi; {BY_C10D}"), asked=EIGHT_TASKS),
            {"job.pbs": PBS_NODES.format("-u ")},
        ],
    ),
    # Apptainer's user guide, "Environment and metadata": APPTAINERENV_
    "variable-never-set": (
        [slurm("APPTAINERENV_MASTER_ADDR=a", "MASTER_ADDR=a", IN_BOX, asked=TWO)],
        [
            slurm("export APPTAINERENV_MASTER_ADDR=a", IN_BOX, asked=TWO),
            slurm("export SINGULARITYENV_MASTER_ADDR=a", IN_BOX, asked=TWO),
            shell("if x; then printf -v heads %s $1; fi", "torchrun --nnodes=2 --master_addr=$heads t.py"),
            shell("N=$(($(grep -c . /a/llama-8b/hosts) - 1))", "torchrun --nnodes=$N --master_addr=a t.py"),
        ],
    ),
    # sbatch(1), --signal: the steps get the signal
    "signal-not-for-shell": (
        [slurm("trap 'touch STOP' SIGUSR1 TERM", "srun python t.py", asked="#SBATCH --signal=USR1@90")],
        [slurm("srun bash <<'EOF'", *TRAPS, "EOF", asked="#SBATCH --signal=USR1@90")],
    ),
    # mpi-operator v2beta1: runLauncherAsWorker, mpiImplementation
    "mpi-job-slots": (
        [{"a.yaml": OF_MPI.format("runLauncherAsWorker: true", 17)}],
        [
            {"a.yaml": OF_MPI.format("runLauncherAsWorker: true", 16)},
            {"a.yaml": OF_MPI.format("mpiImplementation: Intel", 17)},
            {"a.yaml": OF_MPI.format("mpiImplementation: MPICH", 17)},
        ],
    ),
    # Container Device Interface: nvidia.com/gpu=all
    "nproc-exceeds-gpus": (
        [{"a.yaml": BY_CDI.format("0")}],
        [{"a.yaml": BY_CDI.format("all")}],
    ),
    # bash(1): export takes names too
    "export-takes-further-words": (
        [shell("export A=b c", "torchrun --standalone t.py")],
        [
            shell("export PATH=/x/bin/`uname`:$PATH", "A=/l/`date +%F`/x", "torchrun --standalone t.py"),
            shell("export PATH=/x:$PATH LD_LIBRARY_PATH", "torchrun --standalone t.py"),
            shell("export MASTER_ADDR addr MASTER_PORT=1", "torchrun --standalone t.py"),
            shell("export NCCL_IB_HCA=a,\\", "b,\\", "c", "torchrun --standalone t.py"),
        ],
    ),
    # sbatch(1), qsub(1B): round minutes are common
    "time-limit-in-minutes": (
        [slurm("srun python t.py", asked="#SBATCH -t 48")],
        [
            slurm("srun python t.py", asked="#SBATCH -t 120"),
            {"a.pbs": "#PBS -l select=2\n#PBS -l walltime=30:00\nmpiexec -n 2 python t.py\n"},
        ],
    ),
    # DeepSpeed 0.19.6 launcher/runner.py
    "launcher-option-wrong": (
        [shell("deepspeed --hostfile hf --min_elastic_node_count 1 t.py")],
        [shell("deepspeed -H hf --elastic_training --min_elastic_nodes 1 --max_elastic_nodes 4 t.py")],
    ),
    # Kubernetes batch/v1, JobSpec: parallelism defaults to 1
    "pods-start-in-turn": (
        [{"a.yaml": BY_JOB.format("", "--nnodes=2")}],
        [
            {"a.yaml": BY_JOB.format("parallelism: 2", "--nnodes=2")},
            {"a.yaml": BY_JOB.format("", "--standalone")},
        ],
    ),
    # torch refuses a port above 65535; Slurm's MaxJobId is 67043328
    "port-privileged": (
        [slurm("P=$((10000 + SLURM_JOB_ID))", NODE.format(0).replace("29500", "$P"))],
        [slurm("P=$((10000 + SLURM_JOB_ID % 10000))", NODE.format(0).replace("29500", "$P"))],
    ),
    # training-operator 1.9, Volcano's Job, LeaderWorkerSet v1: one command for all pods of a part
    "node-rank-duplicate": (
        [
            workload("0", "1", 2),
            workload("0", "1", 2, "PyTorchJob"),
            workload("0", "0", 1),
            shell("Rank 1:", NODE.format(0), "Rank 2:", NODE.format(0)),
            shell("# node 0", BY_MACHINE.format(0), "# node 1", BY_MACHINE.format(0)),
        ],
        [
            shell("Rank 1:", NODE.format(0), "Rank 1:", NODE.format(0)),
            shell("# node 0", BY_MACHINE.format(0), "# node 1", BY_MACHINE.format(1)),
            workload("0", "1", 1),
            workload("0", "1", 1, "PyTorchJob"),
            workload("0", "1", 1, "LeaderWorkerSet"),
            workload("0", "$(RANK)", 2, "PyTorchJob"),
        ],
    ),
    # mpi-operator v2beta1: mpirun in the launcher's pod starts the ranks in those of the workers
    "container-keeps-out": (
        [{"a.yaml": _OF_WORKERS.format("")}],
        [{"a.yaml": _OF_WORKERS.format("volumeMounts: [{mountPath: /dev/shm, name: s}], ")}],
    ),
    # sbatch(1): no directive behind the first command, also in the body of a function
    "directive-behind-command": (
        [{"j.sh": f"#!/bin/bash\n#SBATCH -N2\nf() {{\n#SBATCH --gres=gpu:8\nsrun {BY_C10D}\n}}\nf\n"}],
        [slurm("cat > a.sh <<EOF", "#SBATCH --gres=gpu:8", "EOF", "srun python t.py")],
    ),
    # sbatch(1): --ntasks takes precedence over --ntasks-per-node
    "lightning-tasks-mismatch": (
        [slurm("srun python train_lightning.py", asked="#SBATCH -N1 --ntasks=1 --ntasks-per-node=2")],
        [slurm("srun python train_lightning.py", asked="#SBATCH -N1 --ntasks=2 --ntasks-per-node=2")],
    ),
    # a list of options in a page is no command
    "command-cut-short": (
        [shell("torchrun --standalone \\", "--nproc_per_node=2", "--max_restarts=1 t.py")],
        [shell("# options", "--nproc_per_node=2", "--max_restarts=1", "torchrun --standalone t.py")],
    ),
    # Slurm's opt.c, _get_argument: an un-escaped # begins a comment
    "directive-wrong": (
        [slurm("true", asked="#SBATCH --mail-type=ALL Mail events")],
        [slurm("true", asked="#SBATCH --mail-type=ALL# Mail events\n#SBATCH --comment='a # b' -N2")],
    ),
    # Blender's manual, command line arguments: // is the folder of the scene
    "slashes-are-no-comment": (
        [shell("torchrun --standalone t.py // one", "blender -b a //frame_")],
        [shell("blender -b a.blend --render-output //frame_ -f 1", "torchrun --standalone t.py")],
    ),
    # docutils: the language of a code block
    "assignment-without-effect": (
        [{"a.rst": PAGE.format("bash")}],
        [{"a.rst": PAGE.format("python")}],
    ),
    # bash(1): a test of SLURM_LOCALID selects tasks
    "command-never-returns": (
        [
            slurm(f"sleep infinity; srun {BY_C10D}"),
            shell(IN_TURN.format("ray start --head --block"), "ray job submit -- python train.py"),
        ],
        [
            slurm(IN_TASK.format(f"if [ $SLURM_LOCALID != 0 ]; then sleep infinity; fi; {BY_C10D}")),
            shell(IN_TURN.format("ray start --head"), "python train.py"),
        ],
    ),
}
