"""What each node or rank is given by the line that starts it: wrong and right cases for `test_lint`."""

from __future__ import annotations

Files = dict[str, str]
HEAD = "H=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)"
C10D = "srun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=1 --rdzv-backend=c10d --rdzv-endpoint="
BY_MPI = "mpirun -np 2 -npernode 1 "
READS_RANK = 'import os, torch\nrank = int(os.environ.get("RANK", 0))\n'
READS_LOCAL = 'n = int(os.environ["LOCAL_RANK"])\n'
NEEDS_RANK = "import os\n" + READS_LOCAL
BY_COLOSSALAI = "import colossalai\ndef main():\n    colossalai.launch_from_torch({})\nmain()\n"
TPU_SSH = 'gcloud compute tpus tpu-vm ssh t {} --command="{}"\n'
TPU = "gcloud compute tpus tpu-vm create t --accelerator-type=v4-{}\n" + TPU_SSH
LIGHTNING = "import lightning as L\nL.Trainer(devices=4, num_nodes=2).fit(m)\n"
ALL_NAMES = "H=$(scontrol show hostnames $SLURM_JOB_NODELIST);"
BY_LOCAL_ID = 'import os, torch\nn = int(os.environ["SLURM_LOCALID"])\ntorch.cuda.set_device(n)\n'
ON_ALL = 'import os\nN = int(os.environ["SLURM_GPUS_ON_NODE"])\n' + LIGHTNING.replace("=4", "=N")
ONE = "--gpus-per-node=8 --ntasks-per-node=1"
EIGHT = "--gpus-per-node=8 --ntasks-per-node=8"
BOUND = "--ntasks-per-node=4 --gpus-per-task=1"


def job(*lines: str, asks: str = ONE) -> Files:
    return {"job.sh": "\n".join(["#!/bin/bash", f"#SBATCH --nodes=2 {asks}", *lines, ""])}


JSRUN = "#!/bin/bash\n#BSUB -nnodes {}\njsrun --nrs 32 --rs_per_host 2 python train.py\n"
HF = "torchrun --nproc-per-node=2 t.py --per_device_train_batch_size {} {} --deepspeed ds.json\n"
DS = '{{"fp16": {{"enabled": {}}}, "train_micro_batch_size_per_gpu": {}}}'
FSDP = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
    "  fsdp_cpu_ram_efficient_loading: {}\n  fsdp_sync_module_states: {}\n"
    "  fsdp_transformer_layer_cls_to_wrap: {}\nnum_processes: 2\n"
)
VLLM = (
    "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - name: a\n"
    "    command: [vllm, serve, qwen, --tensor-parallel-size, '{}'{}]\n"
    "    resources: {{limits: {{nvidia.com/gpu: {}}}}}\n"
)
VLLM_IMAGE = VLLM.replace(
    "    command: [vllm, serve, qwen,", "    image: x/vllm/vllm-openai:v1\n    args: [--model, qwen,"
)
COMPOSE = (
    "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.0\n    ipc: host\n    command: >\n      --model x\n"
    "      --tensor-parallel-size {}\n    deploy:\n      resources:\n"
    "        reservations: {{devices: [{{count: {}}}]}}\n"
)
PBS_MPI = "#!/bin/bash\n#PBS -l select={}\nmodule load gcc/6 openmpi/2.0.2\nmpirun {} python t.py\n"
TESTS = "srun --mpi=pmix /opt/build/all_reduce_perf -b 8 -e 1G -g "
FAIRSEQ = "srun fairseq-train /data --task masked_lm"
HYDRA = "srun fairseq-hydra-train task.data=/d --config-dir ./conf --config-name base"
LITGPT = "srun litgpt pretrain --config c.yaml"
FSDP_ARGS = (
    "torchrun --nproc-per-node=2 t.py --model_name_or_path {} --fsdp 'full_shard auto_wrap'"
    " --fsdp_transformer_layer_cls_to_wrap {}\n"
)
BERT = "model = AutoModel.from_pretrained('bert-base-cased')\n"


NUMBERS: dict[str, tuple[list[Files], list[Files]]] = {
    # jsrun's manual page: -r resource sets on a host
    "resource-sets-exceed-hosts": ([{"a.lsf": JSRUN.format(15)}], [{"a.lsf": JSRUN.format(16)}]),
    "gpus-exceed-pod": (
        [
            {"a.yaml": VLLM.format(4, "", 2)},
            {"a.yaml": VLLM_IMAGE.format(4, "", 2)},
            {"a.yaml": COMPOSE.format(2, 1)},
        ],
        [
            {"a.yaml": VLLM_IMAGE.format(4, "", 4)},
            {"a.yaml": COMPOSE.format(2, 2)},
            {"a.yaml": COMPOSE.format(2, "all")},
            {"a.yaml": VLLM.format(2, "", 2)},
            {"a.yaml": VLLM.format(4, ", --nnodes, '2'", 2)},
            {"a.yaml": VLLM.format(4, "", 2).replace("name: a}", "name: ray}")},
        ],
    ),
    # transformers 5.23 integrations/deepspeed.py: fill_match
    "deepspeed-config-disagrees": (
        [
            {"a.sh": HF.format(4, "--bf16"), "ds.json": DS.format("true", 4)},
            {"a.sh": HF.format(8, "--fp16"), "ds.json": DS.format("true", 4)},
        ],
        [
            {"a.sh": HF.format(4, "--fp16"), "ds.json": DS.format("true", 4)},
            {"a.sh": HF.format(4, "--bf16"), "ds.json": DS.format('"auto"', '"auto"')},
            {"a.sh": HF.format(4, "--bf16 False"), "ds.json": DS.format("true", 4)},
            {"a.sh": HF.format(4, "--bf16"), "ds.json": "[" * 9000},
        ],
    ),
    # accelerate 1.15 utils/dataclasses.py set_auto_wrap_policy, utils/launch.py prepare_multi_gpu_env
    "fsdp-layer-unknown": (
        [
            {"a.yaml": FSDP.format("false", "true", "GPT2Block"), "t.py": BERT},
            {"a.yaml": FSDP.format("true", "false", "BertLayer"), "t.py": BERT},
            {"a.sh": FSDP_ARGS.format("EleutherAI/pythia-1b", "LlamaDecoderLayer")},
            {"a.sh": FSDP_ARGS.format("/models/llama-7b", "LLaMADecoderLayer")},
            {
                "a.yaml": FSDP.format("false", "true", "BertLayer"),
                "t.py": BERT.replace("bert", "xlm-roberta"),
            },
        ],
        [
            {"a.yaml": FSDP.format("true", "true", "BertLayer"), "t.py": BERT},
            {"a.yaml": FSDP.format("false", "false", "OwnLayer"), "t.py": BERT},
            {"a.yaml": FSDP.format("false", "true", "RobertaLayer"), "t.py": BERT.replace("bert", "roberta")},
            {"a.yaml": FSDP.format("false", "true", "GPT2Block"), "t.py": BERT.replace("bert", "ownbert")},
            {"a.sh": FSDP_ARGS.format("EleutherAI/pythia-1b", "GPTNeoXLayer")},
            {"a.sh": FSDP_ARGS.format("/models/vicuna-7b", "LlamaDecoderLayer")},
            {"a.sh": FSDP_ARGS.format("/models/llama-7b", "OwnLayer")},
            {"a.sh": FSDP_ARGS.format("/llama-recipes/gpt-neo-2.7B", "GPTNeoBlock")},
        ],
    ),
    "rendezvous-endpoint-list": (
        [
            job(C10D + "$SLURM_JOB_NODELIST:29500 t.py"),
            job("H=$(scontrol show hostnames $SLURM_JOB_NODELIST)", C10D + "$H:29500 t.py"),
            job(C10D + "gpu[01-02]:29500 t.py"),
            job(C10D + "$SLURM_SUBMIT_HOST:29500 t.py"),
            job(f'{ALL_NAMES} A=("$H")', "srun --nodes=1 --ntasks=1 -w ${A[0]} ray start --head"),
        ],
        [
            job(f"{ALL_NAMES} A=($H)", "srun --nodes=1 --ntasks=1 -w ${A[0]} ray start --head"),
            job(f'{ALL_NAMES} A=("$H")', "srun -w ${A[0]} python t.py"),
            job("torchrun --nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=$SLURM_SUBMIT_HOST:0 t.py"),
            job(HEAD, C10D + "$H:29500 t.py"),
            job("H=${SLURM_JOB_NODELIST%%,*}", C10D + "$H:29500 t.py"),
            {"a.sh": "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=[fe80::1]:29500 t.py"},
        ],
    ),
    # deepspeed/launcher/runner.py of 0.19.8: main
    "deepspeed-options-exclude": (
        [
            {"a.sh": "deepspeed --include localhost:0,1 --num_gpus 2 t.py"},
            {"a.sh": "deepspeed --hostfile h --exclude n3 --num_nodes 2 t.py"},
            {"a.sh": "deepspeed --num_nodes=$1 --node_rank=$2 --master_addr=$3 t.py"},
        ],
        [
            {"a.sh": "deepspeed --num_nodes=$1 --no_ssh --node_rank=$2 --master_addr=$3 t.py"},
            {"a.sh": "deepspeed --num_nodes=1 --node_rank=0 --master_addr=$3 t.py"},
            {"a.sh": "deepspeed --include localhost:0,1 t.py --num_gpus 2"},
            {"a.sh": "deepspeed --num_gpus 2 t.py"},
        ],
    ),
    "visible-devices-ignored": (
        [{"a.sh": "CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus=2 t.py"}],
        [
            {"a.sh": "CUDA_VISIBLE_DEVICES=2,3 deepspeed t.py"},
            {"a.sh": "CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus=2 t.py"},
            {"a.sh": "CUDA_VISIBLE_DEVICES=2,3 deepspeed --hostfile h --num_gpus=2 t.py"},
            {"a.sh": "CUDA_VISIBLE_DEVICES=$G deepspeed --num_gpus=2 t.py"},
        ],
    ),
    "port-used-twice": (
        [
            {"a.sh": "torchrun --master-port=29500 a.py &\ntorchrun --master-port=29500 b.py &\nwait\n"},
            {"a.sh": 'run() { torchrun --master-port=29500 "$1"; }\nrun a.py &\nrun b.py &\nwait\n'},
        ],
        [
            {"a.sh": "torchrun --master-port=29500 a.py\ntorchrun --master-port=29500 b.py\n"},
            {"a.sh": "torchrun --master-port=29500 a.py &\nwait\ntorchrun --master-port=29500 b.py\n"},
            {"a.sh": "torchrun --master-port=29500 a.py &\ntorchrun --master-port=29501 b.py &\nwait\n"},
            {"a.sh": "torchrun --standalone a.py &\ntorchrun --standalone b.py &\nwait\n"},
            {
                "a.sh": "if [ $A ]; then\ntorchrun --master-port=29500 a.py &\nelse\n"
                "torchrun --master-port=29500 b.py &\nfi\n"
            },
        ],
    ),
    "gpus-left-idle": (
        [job(HEAD, (C10D + "$H:29500 t.py").replace("--nproc-per-node=8", ""))],
        [
            job(HEAD, C10D + "$H:29500 t.py"),
            job(HEAD, (C10D + "$H:29500 t.py").replace("--nproc-per-node=8", ""), asks="--gres=gpu:1"),
            job("export PET_NPROC_PER_NODE=8", HEAD, C10D + "$H:29500 t.py"),
        ],
    ),
    "gpu-count-with-type": (
        [
            job(
                HEAD,
                (C10D + "$H:29500 t.py").replace("=8", "=$SLURM_GPUS_PER_NODE"),
                asks="--gpus-per-node=a100:8",
            )
        ],
        [
            job(HEAD, (C10D + "$H:29500 t.py").replace("=8", "=$SLURM_GPUS_PER_NODE")),
            job(
                HEAD,
                (C10D + "$H:1 t.py").replace("=8", "=$SLURM_GPUS_ON_NODE"),
                asks="--gpus-per-node=a100:8",
            ),
        ],
    ),
    # lightning/fabric/plugins/environments/slurm.py: validate_settings
    "lightning-tasks-mismatch": (
        [
            {**job("srun python t.py", asks="--ntasks-per-node=1"), "t.py": LIGHTNING},
            {
                **job("srun python t.py --devices 4", asks="--ntasks-per-node=2"),
                "t.py": LIGHTNING.replace("=4", "=args.devices"),
            },
            {**job("srun python t.py", asks="--ntasks=1 --ntasks-per-node=4"), "t.py": LIGHTNING},
            {
                **job("srun python t.py", asks="--ntasks=1 --ntasks-per-node=4"),
                "t.py": LIGHTNING.replace("devices=4, num_nodes=2", ""),
            },
            # fabric/plugins/environments/slurm.py, validate_settings
            {**job("srun python t.py"), "t.py": LIGHTNING.replace("=4", "='auto'")},
            {**job("srun python t.py"), "t.py": ON_ALL},
            # litgpt's pretrain.py: L.Fabric(devices=devices, num_nodes=num_nodes)
            {**job(LITGPT), "c.yaml": "devices: 8\nnum_nodes: 2\n"},
            job("srun litgpt finetune_lora --devices 4"),
        ],
        [
            {**job("srun python t.py", asks="--ntasks-per-node=4"), "t.py": LIGHTNING},
            {**job(LITGPT, asks=EIGHT), "c.yaml": "devices: 8\n"},
            {**job(LITGPT), "c.yaml": "devices: auto\n"},
            {**job("srun litgpt download --config c.yaml"), "c.yaml": "devices: 8\n"},
            {**job("srun python t.py", asks="--ntasks-per-node=1"), "t.py": ON_ALL},
            {**job("srun python t.py", asks=EIGHT), "t.py": LIGHTNING.replace("=4", "=-1")},
            {**job("srun python t.py", asks=f"{ONE} --gpu-bind=single:1"), "t.py": ON_ALL},
            {**job("srun python t.py"), "t.py": LIGHTNING.replace("=4", "='auto', accelerator='cpu'")},
            {**job("srun --ntasks-per-node=4 python t.py"), "t.py": LIGHTNING},
            {**job("srun python t.py", asks="--ntasks=8 --ntasks-per-node=4"), "t.py": LIGHTNING},
            job("srun python t.py", asks="--ntasks=1 --ntasks-per-node=4"),
            {**job("srun python t.py"), "t.py": LIGHTNING.replace("lightning", "lighting")},
            job("srun python t.py --devices 4"),
        ],
    ),
    "directive-misspelt": (
        [
            {"a.sh": "#!/bin/bash\n#SABTCH --nodes=2\n#SBATCH -J a\nsrun python t.py\n"},
            {"a.sh": "#!/bin/bash\n#sbatch --nodes=2\nsrun python t.py\n"},
        ],
        [
            {"a.sh": "#!/bin/bash\n##SBATCH --nodes=2\n# SBATCH -N 3\n#SBATCH -J a\nsrun python t.py\n"},
            {"a.sh": "#!/bin/bash\n#BATCHES -- of 64\nexport A=1\n#sbatch -N 2 once\npython t.py\n"},
        ],
    ),
    # deepspeed/launcher/runner.py of 0.19.8, colossalai/cli/launcher/run.py of 0.5.0
    "launcher-spreads-itself": (
        [
            job("srun deepspeed --hostfile hosts t.py"),
            job("srun --ntasks-per-node=1 colossalai run --hostfile hosts --nproc_per_node 8 t.py"),
        ],
        [
            job("deepspeed --hostfile hosts t.py"),
            job("srun -N 1 -n 1 deepspeed --hostfile hosts t.py"),
            job("srun deepspeed --hostfile hosts --no_ssh --node_rank $SLURM_NODEID t.py"),
        ],
    ),
    # https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html
    "open-mpi-slots": (
        # PBS Professional's Reference Guide: mpiprocs, PBS_NODEFILE; open-mpi/ompi, issue 3133
        [
            {"a.sh": "mpirun -np 8 -H n1,n2 -bind-to none -x PATH python t.py"},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 56")},
            {"a.pbs": PBS_MPI.format("1:ncpus=24", "-np 24")},
            {"a.pbs": PBS_MPI.format("2:ncpus=8", "-np 16 -x PATH").replace("openmpi", "cuda")},
        ],
        [
            {"a.pbs": PBS_MPI.format("2:ncpus=28:mpiprocs=28", "-np 56")},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 2")},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 56 --oversubscribe")},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 56 --hostfile hosts")},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 56").replace("openmpi", "impi")},
            {"a.pbs": PBS_MPI.format("1:ncpus=8", "-np 8 -x PATH").replace("openmpi", "cuda")},
            {"a.pbs": PBS_MPI.format("2:ncpus=28", "-np 56").replace("select=2:ncpus", "nodes=2:ppn")},
            {"a.sh": "mpirun -np 8 -H n1:4,n2:4 -x PATH python t.py"},
            {"a.sh": "mpirun -np 2 -H n1,n2 -x PATH python t.py"},
            {"a.sh": "mpirun -np 8 -H n1,n2 --map-by :OVERSUBSCRIBE -x PATH python t.py"},
            {"a.sh": "mpirun -np 8 -H n1,n2 python t.py"},
            job("mpirun -np 8 -H n1,n2 -x PATH python t.py"),
            {"a.sh": "mpirun -np 8 -H $HOSTS -x PATH python t.py"},
        ],
    ),
    # MPICH 5.0.2 and Open MPI 5.0, each run with all these options
    "mpi-option-of-another": (
        [
            job("mpirun -np 8 -ppn 4 --mca btl tcp,self python t.py"),
            job("module load openmpi/4.1.5", "mpirun -np 8 -genv NCCL_DEBUG INFO python t.py"),
            job("ml purge; ml GCC/12 impi/2021.9", "mpiexec -n 8 -x NCCL_DEBUG python t.py"),
        ],
        [
            job("module load openmpi/4.1.5", "mpirun -np 8 -x A=1 --bind-to none python t.py -ppn 3"),
            job("module load intel-oneapi-mpi", "mpirun -np 8 -ppn 4 --bind-to none python t.py -x 3"),
            job("module load openmpi/4.1.5 mpich", "mpirun -np 8 -ppn 4 python t.py"),
        ],
    ),
    # jax/_src/distributed.py and clusters/slurm_cluster.py of 0.10.2
    "jax-device-per-task": (
        [{**job("srun python t.py"), "t.py": "import jax\njax.distributed.initialize()\n"}],
        [
            {**job("srun python t.py"), "t.py": "jax.distributed.initialize(local_device_ids=range(8))\n"},
            {
                **job("srun python t.py", asks="--gpus-per-node=8 --ntasks-per-node=8"),
                "t.py": "import jax\njax.distributed.initialize()\n",
            },
        ],
    ),
    # gcloud compute tpus tpu-vm ssh --help: --worker is 0; JAX, "multi-process": on every host of the slice
    "tpu-host-alone": (
        [
            {"a.sh": TPU.format(32, "--worker=0", "cd a; python3 train.py --b 1")},
            {"a.sh": TPU.format(32, "", "python -m pkg.train")},
        ],
        [
            {"a.sh": TPU.format(8, "--worker=0", "python3 train.py")},
            {"a.sh": TPU.format(32, "--worker=all", "python3 train.py")},
            {"a.sh": TPU.format(32, "--worker=$i", "python3 train.py")},
            {"a.sh": TPU.format(32, "--worker=0", "python3 prepare.py")},
            {
                "a.sh": TPU.format(32, "--worker=all", "nohup ./run.sh")
                + TPU_SSH.format("", "python train.py")
            },
        ],
    ),
    # sbatch(1), --gpus-per-task: it sets --tres-bind=gres/gpu:per_task; jax/_src/clusters/cluster.py
    "gpu-hidden-from-task": (
        [
            {**job("srun python t.py", asks=BOUND), "t.py": LIGHTNING},
            {**job("srun python t.py", asks=BOUND), "t.py": "import jax\njax.distributed.initialize()\n"},
            {**job("srun python t.py", asks=BOUND), "t.py": BY_LOCAL_ID},
            # NVIDIA/nccl-tests, src/common.cu: cudaDev = localRank * nThreads * nGpus
            job(TESTS + "1", asks=BOUND),
            job(TESTS.replace("srun", "srun --tres-bind=gres/gpu:per_task:1") + "1", asks=EIGHT),
            job(TESTS + "1", asks="--ntasks-per-node=2 --tres-per-task=gres/gpu:a100:1"),
            job(TESTS + "8", asks=EIGHT),
        ],
        [
            job(TESTS + "1", asks=EIGHT),
            job(TESTS + "8", asks=ONE),
            job(TESTS + "1", asks=BOUND + " --gpu-bind=none"),
            job("export NCCL_TESTS_DEVICE=0", TESTS + "1", asks=BOUND),
            job(TESTS + "1", asks=BOUND.replace("=4", "=1")),
            job(TESTS.replace("srun", "srun --gpus-per-node=16") + "2", asks=EIGHT),
            {**job("srun python t.py", asks=BOUND), "t.py": LIGHTNING.replace("=4", "=1")},
            {**job("srun python t.py", asks=BOUND + " --gpu-bind=none"), "t.py": LIGHTNING},
            {**job("srun --tres-bind=none python t.py", asks=BOUND), "t.py": BY_LOCAL_ID},
            {**job("srun python t.py", asks="--ntasks-per-node=4 --gpus-per-node=4"), "t.py": BY_LOCAL_ID},
            {**job("srun python t.py", asks=BOUND.replace("=4", "=1")), "t.py": BY_LOCAL_ID},
            {**job("srun python t.py", asks=BOUND), "t.py": BY_LOCAL_ID.replace("(n)", "(0)")},
            {
                **job("srun python t.py", asks=BOUND),
                "t.py": "jax.distributed.initialize(local_device_ids=[0])\n",
            },
        ],
    ),
    "rank-not-set": (
        [
            {"a.sh": "mpirun -np 8 python t.py", "t.py": READS_RANK},
            {**job("srun python t.py", asks="--ntasks-per-node=8"), "t.py": READS_RANK},
            {**job("python t.py"), "t.py": NEEDS_RANK},
            {"a.sh": "cd x\npython -m pkg.t c.py\n", "pkg/t.py": BY_COLOSSALAI},
        ],
        [
            {**job("export LOCAL_RANK=0", "python t.py"), "t.py": NEEDS_RANK},
            {**job("torchrun --standalone t.py"), "t.py": NEEDS_RANK},
            {**job("python t.py"), "t.py": "import os\nif 'LOCAL_RANK' in os.environ:\n    " + READS_LOCAL},
            {**job("python t.py"), "t.py": "import os\nos.environ['LOCAL_RANK'] = '0'\n" + READS_LOCAL},
            {**job("source env.sh", "python t.py"), "t.py": NEEDS_RANK},
            {"a.sh": "python -m other.t c.py\n", "pkg/t.py": BY_COLOSSALAI},
            {"a.sh": "torchrun --nproc-per-node 8 t.py", "t.py": READS_RANK},
            {"a.sh": "mpirun -np 8 python t.py", "t.py": READS_RANK + "import mpi4py\n"},
            {"a.sh": "mpirun -np 8 python t.py", "t.py": READS_RANK + "from own import setup\n"},
            {"a.sh": "mpirun -np 8 python t.py", "t.py": READS_RANK + 'os.environ["OMPI_COMM_WORLD_RANK"]\n'},
            {**job("srun bash -c 'RANK=$SLURM_PROCID python t.py'"), "t.py": READS_RANK},
        ],
    ),
}
MANY_WORLDS: list[Files] = [
    # fairseq/distributed/utils.py, infer_init_method
    job(FAIRSEQ),
    {"a.sh": FAIRSEQ.replace("srun", "srun --ntasks=16 --ntasks-per-node=8")},
    {**job(HYDRA), "base.yaml": "distributed_training:\n  distributed_world_size: 16\n"},
]
ONE_WORLD: list[Files] = [
    job(FAIRSEQ + " --distributed-port 12345"),
    job(FAIRSEQ + " --distributed-world-size 1"),
    job(FAIRSEQ + " $EXTRA_ARGS"),
    job(FAIRSEQ.replace("srun", "srun -N 1 -n 1")),
    job(FAIRSEQ.replace("srun ", "")),
    job("srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=2 fairseq-train /data'"),
    job("srun torchrun --nnodes=2 --rdzv-endpoint=h:1 --rdzv-backend=c10d --no-python fairseq-train /d"),
    job(HYDRA),
    job(HYDRA + " distributed_training.distributed_port=12345"),
    {**job(HYDRA), "base.yaml": "distributed_training:\n  distributed_port: 29671\n"},
]
EARLY: list[Files] = [
    job("export RANK=$SLURM_PROCID", "srun python t.py", asks="--ntasks-per-node=8"),
    {"a.sh": BY_MPI + "torchrun --nnodes=2 --node-rank=$OMPI_COMM_WORLD_RANK --master-addr=h t.py"},
]
IN_TIME: list[Files] = [
    job("srun bash -c 'RANK=$SLURM_PROCID python t.py'", asks="--ntasks-per-node=8"),
    {"a.sh": BY_MPI + "bash -c 'torchrun --nnodes=2 --node-rank=$OMPI_COMM_WORLD_RANK --master-addr=h t.py'"},
]
AT_ITSELF: list[Files] = [
    job("srun python t.py --coordinator localhost:1234 --process_id $SLURM_PROCID"),
    job("srun python t.py --dist-url tcp://127.0.0.1:2345"),
]
AT_THE_HEAD: list[Files] = [
    job(HEAD, "srun python t.py --coordinator $H:1234"),
    {"a.sh": "python t.py --dist-url tcp://127.0.0.1:2345 --world-size 1"},
]
