"""Launch files that contradict themselves, a scheduler or an operator: cases for `test_lint`."""

from __future__ import annotations

from tests.launch_cases import pbs, shell, slurm
from tests.launch_starters import DEEPSPEED, Files

GPU_JOB = """apiVersion: batch/v1
kind: Job
metadata: {{name: t}}
spec:
  {}completions: 2
  template:
    spec:
      volumes: [{}]
      containers:
      - name: t
        image: a
        {}
        command: [{}]
        resources: {{limits: {{nvidia.com/gpu: 4}}}}
"""
BY_INDEX = 'bash, -c, "torchrun --nnodes=2 --node-rank=$JOB_COMPLETION_INDEX --master-addr=h t.py"'
SHM = "{name: s, emptyDir: {medium: Memory}}"
OF_OPERATOR = """kind: PyTorchJob
metadata: {{name: t}}
spec:
  pytorchReplicaSpecs:
    {}:
      replicas: {}
      template: {{spec: {{containers: [{{name: {}, command: [torchrun, t.py]}}]}}}}
"""
SERVED = """kind: Service
metadata: {{name: {}}}
spec: {{{}}}
---
kind: Deployment
metadata: {{name: v}}
spec:
  template: {{spec: {{containers: [{{name: v, command: [vllm, serve, qwen]}}]}}}}
"""
GPUS_OF = "services:\n  a:\n    image: a\n    command: torchrun --standalone t.py\n    {}\n"
DEVICE = "deploy: {{resources: {{reservations: {{devices: [{{{}}}]}}}}}}"
FOUR_RANKS = (
    "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=$H:1 t.py"
)
EACH_NODE = [
    f"torchrun --nnodes=2 --node_rank={rank} --rdzv_backend=c10d --rdzv_endpoint={host}:1 t.py"
    for rank, host in enumerate(("localhost", "10.1.0.4"))
]
DRAWN = FOUR_RANKS.replace("srun ", "srun bash -c '").replace(":1 t.py", ":$((20000 + RANDOM % 999)) t.py'")
BY_X = "mpirun -np 4 -H a:2,b:2 -x PATH {}python t.py"
COUNTS_NODES = 'import os\nworld_size = int(os.environ["SLURM_NNODES"])\ninit_process_group("nccl")\n'
BY_PYTORCH = "python t.py c.py --launcher {}"
SETS_GPU = 'import os, torch\nn = int(os.environ["SLURM_LOCALID"])\ntorch.cuda.set_device(n{})\n'
INCLUDED = "CUDA_VISIBLE_DEVICES={} deepspeed --include localhost:0,1 t.py"
LSF_NODES = """#BSUB -n 8
#BSUB -R span[ptile=4]
N=$({})
for h in $(echo $LSB_HOSTS | tr ' ' '\\n' | uniq); do
  blaunch $h torchrun --nnodes=$N --rdzv_backend=c10d --rdzv_endpoint=$H:1 --rdzv_id=1 t.py &
done
wait
"""
ON_SIGNAL = ("trap again USR1", "python t.py")
FROM_PBS = (
    "#PBS -l select=2:ngpus=4:mpiprocs={}\ncat $PBS_NODEFILE{} > hosts\n{}deepspeed --hostfile=hosts t.py\n"
)
ADDS_SLOTS = "sed -i 's/$/ slots=4/' hosts\n"
BY_FILE = "deepspeed --num_gpus 4 t.py --deepspeed_config ds.json"
CHECKPOINTS = "--per_device_train_batch_size 4 --gradient_checkpointing"
TRAINER_LINE = "torchrun --standalone t.py --per_device_train_batch_size 4"
SERVER = """kind: Deployment
metadata: {{name: v}}
spec:
  selector: {{matchLabels: {{app: a}}}}
  template:
    metadata: {{labels: {{app: {}}}}}
    spec:
      volumes: [{{name: m, emptyDir: {{}}}}]
      containers:
      - name: v
        command: [vllm, serve, qwen]
        resources: {{{}}}
        volumeMounts: [{{name: {}, mountPath: /m}}]
"""
TWO_SERVICES = """services:
  rank0:
    image: a
    environment: [MASTER_ADDR={}, MASTER_PORT=29500, WORLD_SIZE=2, RANK=0]
    command: python t.py
  rank1:
    image: a
    environment: [MASTER_ADDR={}, MASTER_PORT=29500, WORLD_SIZE=2, RANK=1]
    command: python t.py
"""
TWO_ON_ONE = "services:\n" + "".join(
    f"  node{rank}:\n    image: a\n    NETWORK\n    shm_size: 8gb\n    command: torchrun --nnodes=2"
    f" --nproc_per_node=2 --node_rank={rank} --master_addr=127.0.0.1 --master_port=29400 t.py\n"
    for rank in (0, 1)
)
STATIC_RANK = "torchrun --nnodes 2 --node_rank 0 --master_addr a --master_port 1 t.py"
BY_RANK = "torchrun --nnodes=2 --node_rank=$OMPI_COMM_WORLD_RANK --master_addr=h t.py"
TWO_MACHINES = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmain_process_ip: 10.0.0.1\n"
    "num_machines: 2\nnum_processes: 16\n"
)
MPI_JOB = """kind: MPIJob
metadata: {{name: t}}
spec:
  slotsPerWorker: 4
  mpiReplicaSpecs:
    Launcher:
      template: {{spec: {{containers: [{{name: l, command: [mpirun, -np, "{}", python, t.py]}}]}}}}
    Worker:
      replicas: 2
"""
POD = """containers:
          - name: a
            command: [bash, -c, "torchrun --nnodes=2 --node_rank=$INDEX --master_addr=h t.py"]
"""
TWO_TASKS = f"""apiVersion: batch.volcano.sh/v1alpha1
kind: Job
spec:
  tasks:
  - name: a
    replicas: 1
    template:
      spec:
        {POD}
  - name: b
    replicas: 1
    template:
      spec:
        {POD}"""
TWO_JOBS = f"""kind: JobSet
spec:
  replicatedJobs:
  - name: w
    replicas: 2
    template:
      spec:
        parallelism: 1
        {POD}"""
RAY_HEAD = "srun -N1 -n1 -w $H ray start --head{} --block &"
RAY_NODE = "srun -N1 -n1 --exclude=$H ray start --address=$H:6379 --block &"
OPEN_MPI = "/usr/mpi/gcc/openmpi-4.1.5/bin/mpirun"
MPICH = "dependencies:\n  - mpi4py\n  - mpich=4.1\n"
BY_MAP = 'device_map="auto"'
BY_FSDP = "accelerate launch --config_file c.yaml t.py"
FLAT = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
    "  fsdp_use_orig_params: {}\nnum_processes: 4\n"
)
OFFLOADS = (
    '{"train_batch_size": 4, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
)
CONFIGURES = "e = deepspeed.initialize(model=m, config={})\n"
LOADS = f"cfg = json.load(open('ds.json'))\n{CONFIGURES.format('cfg')}"
FILLS = LOADS.replace("\n", "\ncfg['train_batch_size'] = 8\n", 1)
INITIALIZES = "e = deepspeed.initialize(model=m, optimizer=o)\n"
BY_GPUS = "import lightning as L\nL.Trainer(devices=args.gpus)\n"
GPU_IDS = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: NO\ngpu_ids: 0,1\n"
    "num_machines: 1\nnum_processes: {}\n"
)
BY_TRAINER = (
    "torchrun --nproc-per-node=4 t.py --per_device_train_batch_size 4 --gradient_accumulation_steps 4"
    " --deepspeed ds.json"
)
CONTRADICTIONS: dict[str, tuple[list[Files], list[Files]]] = {
    # sbatch(1), --export: steps inherit it; mpirun(1) of Open MPI, -x
    "step-without-environment": (
        [
            slurm("export MASTER_ADDR=$H", "srun python t.py", asked="#SBATCH -N 2 --export=NONE"),
            slurm("export MASTER_PORT=1", "srun --export=MASTER_ADDR=$H python t.py"),
            {
                **slurm("export DATA=1", "srun --export=A=1 python t.py"),
                "t.py": 'import os\nos.environ["DATA"]\n',
            },
            slurm("srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1 python t.py"),
            shell("export NCCL_IB_HCA=mlx5_0", BY_X.format("")),
        ],
        [
            slurm(
                "export MASTER_ADDR=$H", "srun --export=ALL python t.py", asked="#SBATCH -N 2 --export=NONE"
            ),
            slurm(
                "unset SLURM_EXPORT_ENV",
                "export MASTER_PORT=1",
                "srun python t.py",
                asked="#SBATCH --export=NONE",
            ),
            slurm("export MASTER_PORT=1", "srun --export=ALL,MASTER_ADDR=$H python t.py"),
            slurm("srun python t.py", asked="#SBATCH -N 2 --export=NONE"),
            slurm("srun --export=ALL,NCCL_DEBUG=INFO,MASTER_ADDR python t.py"),
            shell("export NCCL_IB_HCA=mlx5_0", BY_X.format("-x NCCL_IB_HCA ")),
            shell("export NCCL_IB_HCA=mlx5_0", BY_X.format("").replace(",b:2", "")),
        ],
    ),
    # sbatch itself: "mutually exclusive"; sbatch(1), --mem
    "directive-wrong": (
        [
            slurm("srun torchrun t.py", asked="#SBATCH --mem=64"),
            slurm("srun python t.py", asked="#SBATCH --time=<hours>"),
            {"a.pbs": "#PBS -l select=2:ngpus=4\n#PBS -l ncpus=8\nmpirun python t.py\n"},
            slurm("srun python t.py", asked="#SBATCH --mem=64G --mem-per-cpu=4G"),
            slurm("./a", asked="#SBATCH --gres=gpu:4 --mem=80"),
            slurm("srun python t.py", asked="#SBATCH --account=<your_account>"),
            slurm("srun python t.py", asked="#SBATCH --gres=[4 A100 80g]"),
        ],
        [
            slurm("srun python t.py", asked="#SBATCH --mem=0"),
            slurm("srun python t.py", asked="#SBATCH --mem=64G"),
            slurm("srun python t.py", asked="#SBATCH --mem=64000"),
            slurm("srun python t.py", asked="#SBATCH --nodelist=gpu[01-04] --constraint=[a|b]"),
            slurm("srun python t.py", asked="#SBATCH --mem=500"),
        ],
    ),
    # sbatch(1), --signal
    "signal-not-for-shell": (
        [slurm(*ON_SIGNAL, asked="#SBATCH --signal=USR1@120")],
        [
            slurm(*ON_SIGNAL, asked="#SBATCH --signal=B:USR1@120"),
            slurm("trap clean EXIT", "srun python t.py", asked="#SBATCH --signal=USR1@120"),
        ],
    ),
    # sbatch: "can't run 1 processes on 2 nodes, setting nnodes to 1"
    "world-size-disagrees": (
        [
            {"a.lsf": LSF_NODES.format("echo $LSB_HOSTS | wc -w")},
            slurm(FOUR_RANKS, asked="#SBATCH --nodes=2 --ntasks=1 --gpus-per-node=4"),
        ],
        [
            {"a.lsf": LSF_NODES.format("echo $LSB_HOSTS | xargs -n1 | sort -u | wc -l")},
            slurm(FOUR_RANKS, asked="#SBATCH --nodes=2 --ntasks=2 --gpus-per-node=4"),
        ],
    ),
    # srun(1): --gpus-per-task and a step's own numbers; `docker run --gpus`
    "nproc-exceeds-gpus": (
        [
            slurm(FOUR_RANKS, asked="#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-task=1"),
            slurm(FOUR_RANKS.replace("srun", "srun --gpus-per-node=1"), asked="#SBATCH -N 2 --gres=gpu:4"),
            shell("CUDA_VISIBLE_DEVICES=0-3 torchrun --standalone --nproc-per-node=4 t.py"),
            shell("docker run --gpus 2 a torchrun --standalone --nproc-per-node=4 t.py"),
            shell("docker run --gpus '\"device=0,1\"' a torchrun --standalone --nproc-per-node=4 t.py"),
            {
                **slurm("srun python t.py", asked="#SBATCH -N 2 --ntasks-per-node=8 --gpus-per-node=4"),
                "t.py": SETS_GPU.format(""),
            },
        ],
        [
            slurm(FOUR_RANKS, asked="#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-task=4"),
            slurm(FOUR_RANKS.replace("srun", "srun --gpus-per-node=4"), asked="#SBATCH -N 2"),
            shell("docker run --gpus all a torchrun --standalone --nproc-per-node=4 t.py"),
            {
                **slurm("srun python t.py", asked="#SBATCH -N 2 --ntasks-per-node=8 --gpus-per-node=4"),
                "t.py": SETS_GPU.format(" % torch.cuda.device_count()"),
            },
        ],
    ),
    "gpu-hidden-from-task": (
        [
            {
                **slurm("srun --gpus=8 --ntasks-per-gpu=1 python t.py", asked="#SBATCH -N 2"),
                "t.py": SETS_GPU.format(""),
            },
        ],
        [
            {
                **slurm("srun --gpus=8 python t.py", asked="#SBATCH -N 2 --ntasks-per-node=4"),
                "t.py": SETS_GPU.format(""),
            },
        ],
    ),
    "gpus-exceed-pod": (
        [
            slurm("vllm serve m --tensor-parallel-size 16", asked="#SBATCH -N 2 --gpus-per-node=8"),
            shell("CUDA_VISIBLE_DEVICES=0,1 vllm serve m --tensor-parallel-size 4"),
        ],
        [
            slurm("vllm serve m --tensor-parallel-size 8", asked="#SBATCH -N 1 --gpus-per-node=8"),
            slurm(
                "vllm serve m --tensor-parallel-size 16 --distributed-executor-backend ray",
                asked="#SBATCH -N 2 --gpus-per-node=8",
            ),
        ],
    ),
    "open-mpi-slots": (
        [
            {"a.pbs": "#PBS -l select=2:ngpus=4:mpiprocs=4\nmpirun -np 16 python t.py\n"},
            {"a.pbs": "#PBS -l select=2:mpiprocs=4\nmpirun -np 16 --hostfile $PBS_NODEFILE python t.py\n"},
        ],
        [{"a.pbs": "#PBS -l select=2:ngpus=4:mpiprocs=4\nmpirun -np 8 python t.py\n"}],
    ),
    # RANDOM differs in each shell
    "meeting-point-differs": (
        [slurm(DRAWN)],
        [slurm("P=$((20000 + RANDOM % 999))", FOUR_RANKS.replace(":1", ":$P")), shell(*EACH_NODE)],
    ),
    # Volcano: an index for each task; JobSet: one for each of its Jobs
    "node-rank-duplicate": (
        [
            {"a.yaml": TWO_TASKS.replace("INDEX", "VC_TASK_INDEX")},
            slurm("for n in a b; do", f"srun -N1 -n1 -w $n {STATIC_RANK} &", "done", "wait"),
            {"a.yaml": TWO_JOBS.replace("INDEX", "JOB_COMPLETION_INDEX")},
            slurm(
                "export WORLD_SIZE=8",
                "srun bash -c 'RANK=$SLURM_LOCALID python t.py'",
                asked="#SBATCH -N 2 --ntasks-per-node=4",
            ),
        ],
        [
            {"a.yaml": TWO_TASKS.replace("INDEX", "RANK")},
            {
                "a.yaml": TWO_JOBS.replace("INDEX", "JOB_COMPLETION_INDEX").replace(
                    "parallelism: 1", "parallelism: 2"
                )
            },
            slurm(
                "export WORLD_SIZE=8",
                "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python t.py'",
                asked="#SBATCH -N 2 --ntasks-per-node=4",
            ),
        ],
    ),
    "several-worlds": (
        [slurm("srun ray start --head --port=6379 --block &", "wait", asked="#SBATCH -N 2")],
        [slurm("srun -N1 -n1 ray start --head --port=6379 --block &", "wait", asked="#SBATCH -N 2")],
    ),
    # mmengine/dist/utils.py, _init_dist_pytorch
    "rank-not-set": (
        [
            shell(f"mpirun -np 4 {BY_PYTORCH.format('pytorch')}"),
            slurm(f"srun {BY_PYTORCH.format('pytorch')}"),
        ],
        [
            shell(f"mpirun -np 4 {BY_PYTORCH.format('mpi')}"),
            {**slurm("srun python t.py"), "t.py": COUNTS_NODES},
            slurm(f"srun bash -c 'RANK=$SLURM_PROCID {BY_PYTORCH.format('pytorch')}'"),
        ],
    ),
    # DeepSpeed 0.19.8, launcher/runner.py, main()
    "visible-devices-ignored": (
        [
            {
                **shell("CUDA_VISIBLE_DEVICES=2,3 deepspeed --hostfile hosts t.py"),
                "hosts": "a slots=8\nb slots=8\n",
            },
            shell(INCLUDED.format("2,3")),
            shell(INCLUDED.format("$GPUS")),
        ],
        [
            {**shell("deepspeed --hostfile hosts t.py"), "hosts": "a slots=8\nb slots=8\n"},
            shell(INCLUDED.format("0,1")),
        ],
    ),
    "hostfile-wrong": (
        [
            {"a.pbs": FROM_PBS.format(4, "", ADDS_SLOTS)},
            slurm("scontrol show hostnames $SLURM_JOB_NODELIST > hosts", "deepspeed --hostfile hosts t.py"),
        ],
        [
            {"a.pbs": FROM_PBS.format(1, "", ADDS_SLOTS)},
            {"a.pbs": FROM_PBS.format(4, " | sort -u", ADDS_SLOTS)},
        ],
    ),
    "command-cut-short": (
        [
            slurm(
                "mpirun -npernode 1 \\",
                "  apptainer run --nv a.sif",
                "  torchrun --nnodes=2 --nproc_per_node=4 t.py",
            )
        ],
        [slurm("mpirun -npernode 1 \\", "  hostname", "torchrun --nnodes=2 --nproc_per_node=4 t.py")],
    ),
    "background-not-waited-for": (
        [slurm(f"nohup {FOUR_RANKS} &", "sleep 5", "echo started")],
        [slurm(f"nohup {FOUR_RANKS} &", "sleep 7200"), slurm(f"{FOUR_RANKS} &", "sleep 5", "wait")],
    ),
    "launcher-started-per-task": (
        [slurm("srun vllm serve m", asked="#SBATCH -N 1 --gpus=2 --ntasks-per-gpu=1")],
        [
            slurm("srun vllm serve m", asked="#SBATCH -N 1 --ntasks=1 --gpus=2"),
            slurm("singularity exec a.sif mpirun --host localhost:3 -n 3 python t.py"),
        ],
    ),
    # kubernetes.io, "Define a Command and Arguments for a Container", "Indexed Job"
    "command-in-one-string": (
        [{"a.yaml": GPU_JOB.format("", "", "", '"torchrun --nproc-per-node=4 t.py"')}],
        [
            {"a.yaml": GPU_JOB.format("", "", "", "torchrun, --nproc-per-node=4, t.py")},
            {"a.yaml": GPU_JOB.format("", "", "", 'bash, -c, "torchrun --nproc-per-node=4 t.py"')},
        ],
    ),
    "job-without-index": (
        [{"a.yaml": GPU_JOB.format("", "", "", BY_INDEX)}],
        [{"a.yaml": GPU_JOB.format("completionMode: Indexed\n  ", "", "", BY_INDEX)}],
    ),
    "volume-not-mounted": (
        [{"a.yaml": GPU_JOB.format("", SHM, "", "torchrun, --nproc-per-node=4, t.py")}],
        [
            {
                "a.yaml": GPU_JOB.format(
                    "",
                    SHM,
                    "volumeMounts: [{name: s, mountPath: /dev/shm}]",
                    "torchrun, --nproc-per-node=4, t.py",
                )
            },
        ],
    ),
    # kubeflow/training-operator 1.9, pytorchjob_webhook.go, validatePyTorchReplicaSpecs
    "pytorchjob-refused": (
        [
            {"a.yaml": OF_OPERATOR.format("Master", 1, "trainer")},
            {"a.yaml": OF_OPERATOR.format("Master", 2, "pytorch")},
            {"a.yaml": OF_OPERATOR.format("Chief", 1, "pytorch")},
        ],
        [
            {"a.yaml": OF_OPERATOR.format("Master", 1, "pytorch")},
            {"a.yaml": OF_OPERATOR.format("Worker", 2, "pytorch")},
        ],
    ),
    # vllm/envs.py, get_vllm_port
    "service-named-vllm": (
        [{"a.yaml": SERVED.format("vllm", "selector: {app: v}")}],
        [
            {"a.yaml": SERVED.format("llm", "selector: {app: v}")},
            {"a.yaml": SERVED.format("vllm", "clusterIP: None")},
        ],
    ),
    # compose-spec.json
    "compose-refused": (
        [
            {"compose.yaml": GPUS_OF.format("resources: {limits: {}}")},
            {"compose.yaml": GPUS_OF.format("shm-size: 8gb")},
            {
                "compose.yaml": GPUS_OF.format(
                    DEVICE.format("count: 2, device_ids: ['0'], capabilities: [gpu]")
                )
            },
            {"compose.yaml": GPUS_OF.format(DEVICE.format("driver: nvidia, count: 2"))},
        ],
        [
            {"compose.yaml": GPUS_OF.format("shm_size: 8gb")},
            {"compose.yaml": GPUS_OF.format(DEVICE.format("count: 2, capabilities: [gpu]"))},
        ],
    ),
    # accelerate 1.15, utils/dataclasses.py, _deepspeed_config_checks
    "deepspeed-settings-twice": (
        [{"a.yaml": DEEPSPEED + "mixed_precision: bf16\n"}],
        [
            {"a.yaml": DEEPSPEED + "mixed_precision: null\n"},
            {
                "a.yaml": DEEPSPEED + "mixed_precision: bf16\n",
                **shell("accelerate launch --mixed_precision bf16 t.py"),
            },
        ],
    ),
    # NCCL, src/graph/paths.cc, ncclGetLevel
    "preset-without-effect": (
        [shell("export NCCL_NET_GDR_LEVEL=PBH", "torchrun --nnodes=2 t.py")],
        [shell("export NCCL_NET_GDR_LEVEL=PHB NCCL_P2P_LEVEL=3", "torchrun --nnodes=2 t.py")],
    ),
    # DeepSpeed 0.19.8, runtime/config.py
    "deepspeed-config-wrong": (
        [
            {**shell(BY_FILE), "ds.json": '{"train_batch_size": 4, "zero_optimization": {"stage": 4}}'},
            {
                **shell(BY_FILE),
                "ds.json": '{"train_batch_size": 4, "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
            },
            {**shell(f"{TRAINER_LINE} --deepspeed ds.json"), "ds.json": '{"train_batch_size": 4,}'},
            {
                **shell("torchrun --standalone t.py --deepspeed ds.json"),
                "ds.json": '{"train_batch_size": 4} // ours',
                "t.py": "from transformers import Trainer\nTrainer(m).train()\n",
            },
            {**shell(BY_FILE), "ds.json": '{"gradient_accumulation_steps": 4}'},
            {**shell(BY_FILE), "ds.json": '{"gradient_accumulation_steps": 4}', "t.py": INITIALIZES},
        ],
        [
            {
                **shell(BY_FILE),
                "ds.json": '{"train_batch_size": 4, "fp16": {"enabled": false}, "bf16": {"enabled": true}}',
            },
            {**shell(BY_FILE), "ds.json": '{"gradient_accumulation_steps": 4}', "t.py": FILLS},
            {**shell(BY_FILE), "ds.json": '{"train_batch_size": 4,}'},
            {**shell(BY_FILE), "ds.json": '{"gradient_accumulation_steps": 4}', "t.py": FILLS},
            {**shell(BY_FILE), "ds.json": '{\n# hjson\n"train_batch_size": 4\n}', "t.py": INITIALIZES},
            {
                **shell("torchrun --standalone t.py --deepspeed ds.json"),
                "ds.json": '{"train_batch_size": 4,}',
                "t.py": f"import transformers\n{INITIALIZES}",
            },
            {
                **shell("torchrun t.py --deepspeed ds.json"),
                "ds.json": '{"gradient_accumulation_steps": "auto"}',
            },
        ],
    ),
    # transformers 5.17, training_args.py
    "trainer-refuses-arguments": (
        [
            shell(f"{TRAINER_LINE} --fp16 --bf16 True"),
            {
                **shell(f"{BY_FSDP} {CHECKPOINTS}"),
                "c.yaml": FLAT.format("true\n  fsdp_activation_checkpointing: true"),
            },
            shell(f"{TRAINER_LINE} --load_best_model_at_end --eval_strategy epoch --save_strategy steps"),
        ],
        [
            shell(f"{TRAINER_LINE} --fp16 False --bf16 True"),
            {**shell(f"{BY_FSDP} {CHECKPOINTS}"), "c.yaml": FLAT.format("true")},
            shell(f"{TRAINER_LINE} --load_best_model_at_end --eval_strategy epoch --save_strategy epoch"),
            shell("torchrun t.py --fp16 --bf16"),
        ],
    ),
    "launcher-option-wrong": (
        [
            slurm(FOUR_RANKS.replace("c10d", "nccl")),
            shell("mpirun -np 8 -hosts python -m a.b"),
            shell("C=' a.toml'", "accelerate launch --num_processes 2 t.py --config_file=$C"),
            {
                **shell("accelerate launch --multi_gpu --config_file c.yaml t.py"),
                "c.yaml": FLAT.format("true"),
            },
        ],
        [
            shell("mpirun -np 8 -hosts a,b python -m a.b"),
            slurm(FOUR_RANKS),
            slurm(FOUR_RANKS.replace("c10d", "etcd-v2")),
        ],
    ),
    "launcher-argument-misread": (
        [shell("torchrun --standalone -m train.py"), shell("python -m torchrun --standalone train.py")],
        [
            shell("torchrun --standalone -m pkg.train"),
            shell("python -m torch.distributed.run --standalone train.py"),
        ],
    ),
    # srun: "Only allocated 2 nodes asked for 4"
    "step-exceeds-job": (
        [slurm("srun -N4 python t.py"), slurm("srun -N5 python t.py", asked="#SBATCH -N 2-4")],
        [
            slurm("srun -N2 python t.py"),
            shell("srun -N4 python t.py"),
            slurm("srun -N4 python t.py", asked="#SBATCH -N 2-4"),
        ],
    ),
    "port-privileged": (
        [
            slurm("export MASTER_PORT=$((SLURM_JOB_ID % 1000))", FOUR_RANKS.replace(":1 ", ":$MASTER_PORT ")),
            slurm("P=$((30000 + RANDOM % 50000))", FOUR_RANKS.replace(":1 ", ":$P ")),
        ],
        [slurm("P=$((20000 + RANDOM % 10000))", FOUR_RANKS.replace(":1 ", ":$P "))],
    ),
    # kubernetes.io, "Job", "Schedule GPUs", "Deployments"
    "manifest-refused": (
        [
            {"a.yaml": SERVER.format("b", "limits: {nvidia.com/gpu: 2}", "m")},
            {"a.yaml": SERVER.format("a", "requests: {nvidia.com/gpu: 2}", "m")},
            {"a.yaml": SERVER.format("a", "limits: {nvidia.com/gpu: 2}", "n")},
            {"a.yaml": GPU_JOB.format("", "", "", "torchrun, t.py")},
        ],
        [
            {"a.yaml": SERVER.format("a", "limits: {nvidia.com/gpu: 2}", "m")},
            {
                "a.yaml": GPU_JOB.format("", "", "", "torchrun, t.py").replace(
                    "      volumes", "      restartPolicy: Never\n      volumes"
                )
            },
        ],
    ),
    "rendezvous-endpoint-own": (
        [
            {"compose.yaml": TWO_SERVICES.format("localhost", "localhost")},
            {"compose.yaml": TWO_ON_ONE.replace("NETWORK", "networks: [default]")},
        ],
        [
            {"compose.yaml": TWO_SERVICES.format("rank0", "rank0")},
            {"compose.yaml": TWO_ON_ONE.replace("NETWORK", "network_mode: host")},
        ],
    ),
    # srun(1), scontrol(1): the list of nodes is compressed
    "rendezvous-endpoint-list": (
        [slurm("H=$(echo $SLURM_NODELIST | cut -d',' -f1)", FOUR_RANKS)],
        [
            slurm("H=$(scontrol show hostnames $SLURM_NODELIST | head -n1)", FOUR_RANKS),
            slurm("H=$(echo $SLURM_NODELIST | sed 's/[],].*//g; s/\\[//g')", FOUR_RANKS),
        ],
    ),
    "node-variable-read-too-early": (
        [{"a.lsf": f"#BSUB -nnodes 2\njsrun -n2 -r1 -a1 -g6 {BY_RANK}\n"}],
        [{"a.lsf": f"#BSUB -nnodes 2\njsrun -n2 -r1 -a1 -g6 bash -c '{BY_RANK}'\n"}],
    ),
    "launcher-on-first-node-alone": (
        [
            {"a.lsf": f"#BSUB -n 8\n#BSUB -R span[ptile=4]\n#BSUB -R rusage[mem=32GB]\n{STATIC_RANK}\n"},
            {**slurm("accelerate launch --config_file c.yaml t.py"), "c.yaml": TWO_MACHINES},
            pbs(STATIC_RANK),
        ],
        [{**slurm("srun accelerate launch --config_file c.yaml t.py"), "c.yaml": TWO_MACHINES}],
    ),
    # DeepSpeed 0.19.8, launcher/runner.py: DLTS_HOSTFILE
    "deepspeed-without-hosts": (
        [shell("deepspeed --num_nodes 2 t.py"), shell("deepspeed --include n0:0,1@n1:0,1 t.py")],
        [shell("deepspeed --num_gpus 2 t.py"), shell("deepspeed --hostfile h --num_nodes 2 t.py")],
    ),
    # kubeflow/mpi-operator v2beta1, slotsPerWorker
    "mpi-job-slots": ([{"a.yaml": MPI_JOB.format(16)}], [{"a.yaml": MPI_JOB.format(8)}]),
    # ray start --help: 6379 by default
    "ray-port-differs": (
        [
            slurm(RAY_HEAD.format(" --port=6380"), RAY_NODE),
            slurm(RAY_HEAD.format(""), RAY_NODE.replace("6379", "6380")),
        ],
        [slurm(RAY_HEAD.format(" --port=6379"), RAY_NODE), slurm(RAY_HEAD.format(""), RAY_NODE)],
    ),
    "variable-never-set": (
        [shell("export SCRIPT=train.py", "accelerate launch --num_machines 1 $PYTHON_FILE $ARGS")],
        [shell("export SCRIPT=train.py", "accelerate launch --num_machines 1 $SCRIPT $ARGS")],
    ),
    # sbatch(1): SLURM_TASKS_PER_NODE is a list, "4(x2)"
    "gpu-count-with-type": (
        [slurm(FOUR_RANKS.replace("node=4", "node=$SLURM_TASKS_PER_NODE"))],
        [slurm(FOUR_RANKS.replace("node=4", "node=$SLURM_GPUS_ON_NODE"))],
    ),
    "slurm-variable-empty": (
        [slurm("N=$((2 * $SLURM_NTASKS_PER_NODE))", "srun python t.py", asked="#SBATCH -N 2 --ntasks=8")],
        [
            slurm(
                "N=$((2 * $SLURM_NTASKS_PER_NODE))",
                "srun python t.py",
                asked="#SBATCH -N 2 --ntasks-per-node=4",
            )
        ],
    ),
    # mpi4py: its documentation, "Using mpi4py with another MPI"; Hydra's own message
    "mpi-option-of-another": (
        [
            {
                "run.sh": "mpirun -np 2 -x PATH python t.py\n",
                "Dockerfile": "RUN apt-get install -y mpich libmpich-dev\n",
            },
            {
                "run.sh": f"{OPEN_MPI} -np 4 python t.py\n",
                "t.py": "from mpi4py import MPI\n",
                "environment.yml": MPICH,
            },
        ],
        [
            {
                "run.sh": "mpirun -np 2 -x PATH python t.py\n",
                "Dockerfile": "RUN apt-get install -y openmpi-bin\n",
            },
            {"run.sh": f"{OPEN_MPI} -np 4 python t.py\n", "t.py": "import torch\n", "environment.yml": MPICH},
        ],
    ),
    # accelerate 1.15 accelerator.py; torch 2.13 fsdp/_flat_param.py; DeepSpeed 0.19.8 runtime/engine.py
    "script-unfit-for-configuration": (
        [
            {
                **shell("torchrun --standalone --nproc_per_node=4 t.py"),
                "t.py": f"m = f({BY_MAP})\nTrainer(m)\n",
            },
            {**shell(BY_FSDP), "c.yaml": FLAT.format("false"), "t.py": "get_peft_model(m, LoraConfig())\n"},
            {**shell(BY_FILE), "ds.json": OFFLOADS, "t.py": f"o = torch.optim.AdamW(p)\n{INITIALIZES}"},
            {**shell(BY_FILE), "ds.json": '{"train_batch_size": "auto"}', "t.py": INITIALIZES},
            *(
                {**shell(BY_FILE), "ds.json": '{"train_batch_size": "auto"}', "t.py": one}
                for one in (LOADS, CONFIGURES.format("args.deepspeed_config"), CONFIGURES.format('"ds.json"'))
            ),
        ],
        [
            {
                **shell("torchrun --standalone --nproc_per_node=1 t.py"),
                "t.py": f"m = f({BY_MAP})\nTrainer(m)\n",
            },
            {
                **shell("torchrun --standalone --nproc_per_node=4 t.py"),
                "t.py": f"m = f({BY_MAP})\ngenerate(m)\n",
            },
            {**shell(BY_FSDP), "c.yaml": FLAT.format("true"), "t.py": "get_peft_model(m, LoraConfig())\n"},
            {**shell(BY_FILE), "ds.json": OFFLOADS, "t.py": f"o = DeepSpeedCPUAdam(p)\n{INITIALIZES}"},
            *(
                {**shell(BY_FILE), "ds.json": '{"train_batch_size": "auto"}', "t.py": one}
                for one in (FILLS, LOADS.replace("\n", "\nfill(cfg)\n", 1), CONFIGURES.format("made(args)"))
            ),
            {
                **shell(BY_FILE),
                "ds.json": '{"train_batch_size": "auto"}',
                "t.py": f"Trainer(m)\n{INITIALIZES}",
            },
        ],
    ),
    # docker run --help: --gpus takes a list separated by commas
    "docker-gpus-in-quotes": (
        [shell("docker run --gpus device=0,1 a torchrun t.py")],
        [
            shell("docker run --gpus '\"device=0,1\"' a torchrun t.py"),
            shell("docker run --gpus device=0 a torchrun t.py"),
        ],
    ),
    "mpirun-option-behind-program": (
        [shell("mpirun -np 4 -H a:2,b:2 python t.py --mca btl tcp -x NCCL_DEBUG=INFO")],
        [shell("mpirun -np 4 -H a:2,b:2 --mca btl tcp -x NCCL_DEBUG=INFO python t.py -x 1")],
    ),
    "lightning-tasks-mismatch": (
        [{**slurm("python t.py --gpus 4", asked="#SBATCH --ntasks-per-node=4"), "t.py": BY_GPUS}],
        [{**slurm("srun python t.py --gpus 4", asked="#SBATCH --ntasks-per-node=4"), "t.py": BY_GPUS}],
    ),
    # accelerate 1.15, commands/launch.py
    "accelerate-config-wrong": (
        [{"a.yaml": GPU_IDS.format(1)}],
        [{"a.yaml": GPU_IDS.format(2)}],
    ),
    "deepspeed-config-disagrees": (
        [{**shell(BY_TRAINER), "ds.json": '{"train_batch_size": 32}'}],
        [{**shell(BY_TRAINER), "ds.json": '{"train_batch_size": 64}'}],
    ),
}
