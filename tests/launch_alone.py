"""Launch files whose ranks stay alone, and how jobs are submitted one after another."""

from __future__ import annotations

from tests.launch_cases import pbs, shell, slurm
from tests.launch_starters import Files

PLAIN = "import torch\nfrom net import Net\nm = Net()\nfor x in d:\n    m(x).sum().backward()\n"
NET = "import torch.nn as nn\nclass Net(nn.Module): pass\n"
JOINED = PLAIN.replace("m = Net()", "torch.distributed.init_process_group()\nm = Net()")
EIGHT = "torchrun --standalone --nproc_per_node=8 {}"
MODEL = "from pkg.sub.a import A\n" + PLAIN
IN_PACKAGE = {"net.py": NET, "pkg/sub/__init__.py": "from .a import A\n"}
LIGHTNING = "import lightning as L\nL.Trainer(devices=4, num_nodes=2).fit(m)\n"
CONFIG = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nnum_processes: 4\n{}\n"
BY_CONFIG = "accelerate launch --config_file c.yaml t.py"
WRAP = "fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: {}"
PIPELINE = "e = deepspeed.initialize(model=PipelineModule(l, num_stages=2), optimizer=o)\n"
STAGE = '{{"train_batch_size": 8, "zero_optimization": {{"stage": {}}}}}'
BY_STAGE = "deepspeed --num_gpus 4 t.py --deepspeed_config ds.json"
BY_HOSTS = {"job.sh": "deepspeed --hostfile hosts t.py\n", "hosts": "a slots=4\nb slots=4\n"}
EACH_BOX = "torchrun {} --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29500 t.py"
ON_TWO = (
    "mpirun -np 2 --host a:1,b:1 {} -x PATH torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d {}"
)
AT_A = "--rdzv_endpoint=a:29500 t.py"
AGAIN = "B=$(sbatch --dependency=afterok:${} b.sh)"
PART = 'case "$1" in\n-*) exit;;\n*) CFG="$1";;\nesac\n'
INDEXED = """apiVersion: batch/v1
kind: Job
metadata: {name: e}
spec:
  completionMode: Indexed
  completions: 4
  parallelism: 4
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: e
        command: ["sh", "-c", "torchrun --standalone --nproc-per-node=2 e.py --shard $JOB_COMPLETION_INDEX"]
"""
AT_ONE = "--nnodes=4 --node-rank=$JOB_COMPLETION_INDEX --master-addr=e-0"
AT_POD = INDEXED.replace("--standalone", AT_ONE)
OWN = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nROOT="$(cd "$HERE/.." && pwd)"'

ALONE: dict[str, tuple[list[Files], list[Files]]] = {
    # Kubernetes: a Job whose pods speak to each other needs a headless Service and its name
    "pod-name-unknown": (
        [{"j.yaml": AT_POD}],
        [
            {
                "j.yaml": AT_POD.replace("e-0", "e-0.s").replace(
                    "restartPolicy", "subdomain: s\n      restartPolicy"
                ),
                "s.yaml": "kind: Service\nmetadata: {name: s}\nspec: {clusterIP: None}\n",
            },
            {"j.yaml": f"kind: Service\nmetadata: {{name: e-0}}\n---\n{AT_POD}"},
            {
                "j.yaml": AT_POD.replace(
                    "restartPolicy", "dnsConfig: {searches: [s.n.svc]}\n      restartPolicy"
                )
            },
        ],
    ),
    "ranks-train-alone": (
        [
            {**shell(EIGHT.format("t.py")), "t.py": PLAIN, "net.py": NET},
            {**shell(EIGHT.format("-m t")), "t.py": PLAIN, "net.py": NET},
            {**shell(EIGHT.format("t.py")), "t.py": MODEL, **IN_PACKAGE, "pkg/sub/a.py": "A = 1\n"},
        ],
        [
            {**shell(EIGHT.format("t.py")), "t.py": JOINED, "net.py": NET},
            {**shell(EIGHT.format("t.py")), "t.py": PLAIN},  # net.py is not at hand: it may join them
            {**shell(EIGHT.format("t.py")), "t.py": PLAIN, "net.py": "from ddp import setup\n" + NET},
            {**shell(EIGHT.format("t.py")), "t.py": "import other\n" + PLAIN, "net.py": NET},
            {
                **shell(EIGHT.format("t.py")),
                "t.py": MODEL,
                **IN_PACKAGE,
                "pkg/sub/a.py": "import fairscale\n",
            },
            {**shell(EIGHT.format("t.py")), "t.py": PLAIN.replace("backward", "mean"), "net.py": NET},
            {**shell("torchrun --nproc_per_node=1 t.py"), "t.py": PLAIN, "net.py": NET},
            {**shell(EIGHT.format("t.py")), "t.py": PLAIN, "net.py": "def f(:\n"},
        ],
    ),
    "gradients-never-averaged": (
        [
            {"t.py": JOINED, "net.py": NET},
            {"t.py": JOINED.replace("from net import Net\n", "") + "class Net: pass\n"},
        ],
        [
            {"t.py": JOINED},  # net.py is not at hand
            {"t.py": JOINED + "dist.all_reduce(g)\n", "net.py": NET},
            {"t.py": JOINED, "net.py": "from torch.nn.parallel import DistributedDataParallel\n" + NET},
            {"t.py": PLAIN, "net.py": NET},
        ],
    ),
    # sbatch(1), --parsable
    "job-id-with-words": (
        [
            shell("A=$(sbatch a.sh)", AGAIN.format("A")),
            shell("A=$(sbatch -N 2 \\\n  a.sh)", AGAIN.format("{A}")),
        ],
        [
            shell("A=$(sbatch --parsable a.sh)", AGAIN.format("A")),
            shell("A=$(sbatch a.sh | awk '{print $4}')", AGAIN.format("A")),
            shell("A=$(sbatch a.sh)", AGAIN.format("{A##* }")),
            shell("A=$(sbatch a.sh)", "A=${A##* }", AGAIN.format("A")),
        ],
    ),
    # sed's own message; bsub(1), -J
    "array-index-0": (
        [
            slurm(
                'O=$(sed -n "${SLURM_ARRAY_TASK_ID}p" grid.txt)',
                "python t.py $O",
                asked="#SBATCH --array=0-11%4",
            ),
            slurm(
                "O=$(head -n $SLURM_ARRAY_TASK_ID g | tail -n 1)", "python t.py $O", asked="#SBATCH -a 0-3"
            ),
            {"a.lsf": '#!/bin/bash\n#BSUB -J "f[0-4]"\npython t.py $LSB_JOBINDEX\n'},
        ],
        [
            slurm(
                'O=$(sed -n "${SLURM_ARRAY_TASK_ID}p" grid.txt)',
                "python t.py $O",
                asked="#SBATCH --array=1-12",
            ),
            slurm(
                'O=$(sed -n "$((SLURM_ARRAY_TASK_ID+1))p" g)', "python t.py $O", asked="#SBATCH --array=0-3"
            ),
            slurm("python t.py $SLURM_ARRAY_TASK_ID", asked="#SBATCH --array=0-3"),
            {"a.lsf": '#!/bin/bash\n#BSUB -J "f[1-5]"\npython t.py $LSB_JOBINDEX\n'},
        ],
    ),
    "variable-of-other-scheduler": (
        [{"a.pbs": "#!/bin/bash\n#PBS -J 1-6\npython t.py $PBS_ARRAYID\n"}],
        [
            {"a.pbs": "#!/bin/bash\n#PBS -J 1-6\npython t.py $PBS_ARRAY_INDEX\n"},
            {"a.pbs": "#!/bin/bash\n#PBS -t 1-6\npython t.py ${PBS_ARRAYID:-$PBS_ARRAY_INDEX}\n"},
            pbs("python t.py $PBS_ARRAYID"),
        ],
    ),
    # sbatch 24.11 --test-only
    "directive-wrong": (
        [{"a.sh": "\n#!/bin/bash\n#SBATCH -N 1\npython t.py\n"}],
        [{"a.sh": "#!/bin/bash\n\n#SBATCH -N 1\npython t.py\n"}],
    ),
    # lightning 2.6, fabric/plugins/environments/slurm.py
    "lightning-tasks-mismatch": (
        [{**slurm("srun python t.py", asked="#SBATCH --ntasks=8"), "t.py": LIGHTNING}],
        [
            {
                **slurm("srun python t.py", asked="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4"),
                "t.py": LIGHTNING,
            },
            {**slurm("srun python t.py", asked="#SBATCH --ntasks=8"), "t.py": "import torch\n"},
        ],
    ),
    # mpirun(1) of Open MPI 4 and 5, --bind-to
    "mpirun-binds-to-core": (
        [shell(ON_TWO.format("--map-by ppr:1:node", AT_A))],
        [shell(ON_TWO.format("--map-by ppr:1:node --bind-to none", AT_A))],
    ),
    # horovod 0.28, argparse
    "launcher-option-wrong": (
        [shell('horovodrun -np 4 --mpi-args "--tag-output" python t.py')],
        [
            shell('horovodrun -np 4 --mpi-args="--tag-output" python t.py'),
            shell('horovodrun -np 4 --mpi-args "--tag-output -x A" python t.py'),
            shell('CFG=""', PART + "accelerate launch --config_file $CFG t.py"),
        ],
    ),
    # accelerate 1.15, tried: AttributeError: 'bool' object has no attribute 'lower'
    "accelerate-config-wrong": (
        [{"c.yaml": CONFIG.format("MULTI_GPU", "mixed_precision: no")}],
        [
            {"c.yaml": CONFIG.format("MULTI_GPU", "mixed_precision: 'no'")},
            {"c.yaml": CONFIG.format("MULTI_GPU", "mixed_precision: bf16")},
        ],
    ),
    # accelerate 1.15, utils/launch.py: str() of the value
    "fsdp-layer-unknown": (
        [{"c.yaml": CONFIG.format("FSDP", WRAP.format("[LlamaDecoderLayer, A]")), **shell(BY_CONFIG)}],
        [{"c.yaml": CONFIG.format("FSDP", WRAP.format("LlamaDecoderLayer,A")), **shell(BY_CONFIG)}],
    ),
    # DeepSpeed 0.19.8, runtime/pipe/engine.py
    "script-unfit-for-configuration": (
        [{**shell(BY_STAGE), "t.py": PIPELINE, "ds.json": STAGE.format(2)}],
        [
            {**shell(BY_STAGE), "t.py": PIPELINE, "ds.json": STAGE.format(1)},
            {**shell(BY_STAGE), "t.py": PIPELINE.replace("Pipeline", "Own"), "ds.json": STAGE.format(2)},
        ],
    ),
    # DeepSpeed 0.19.8, launcher/runner.py
    "deepspeed-config-wrong": (
        [{**BY_HOSTS, ".deepspeed_env": "# ours\nNCCL_DEBUG=INFO\n"}],
        [{**BY_HOSTS, ".deepspeed_env": "NCCL_DEBUG=INFO\n"}],
    ),
    # torch 2.13, distributed/run.py
    "rendezvous-endpoint-own": (
        [shell(EACH_BOX.format("--standalone"))],
        [shell(EACH_BOX.format(""))],
    ),
    "several-worlds": ([slurm("srun -N 2 torchrun --standalone t.py")], [{"j.yaml": INDEXED}]),
    "launcher-variable-misspelt": (
        [shell("export CUDA_VISIBAL_DEVICES=2,3", "torchrun --standalone --nproc_per_node=2 t.py")],
        [shell("export CUDA_VISIBLE_DEVICES=2,3", "torchrun --standalone --nproc_per_node=2 t.py")],
    ),
    "job-file-is-a-copy": (
        [slurm(OWN, 'cd "$ROOT"', "torchrun --standalone -m src.main")],
        [
            slurm(OWN, 'cd "$SLURM_SUBMIT_DIR"', "torchrun --standalone -m src.main"),
            shell(OWN, 'cd "$ROOT"', "torchrun --standalone -m src.main"),
        ],
    ),
}
