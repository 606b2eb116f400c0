"""Launch files of one cluster or one MPI: LSF, Open MPI, pods, programs with their own launch."""

from __future__ import annotations

from tests.launch_cases import shell, slurm
from tests.launch_starters import Files

OF_LSF = "#!/bin/bash\n#BSUB -n 4\n#BSUB -q gpu\ntorchrun --standalone t.py\n"
ON_SUMMIT = "#!/bin/bash\n#BSUB {}\n{}python -m torch.distributed.launch --nproc_per_node=6 t.py\n"
ON_HOST = """kind: Service
metadata: {{name: {}}}
---
kind: Pod
metadata: {{name: w}}
spec:
  hostNetwork: true
  {}containers:
  - name: t
    image: a
    command: [python, t.py]
    env: [{{name: MASTER_ADDR, value: m}}, {{name: RANK, value: "1"}}]
"""
DETECTRON = "from detectron2.engine import DefaultTrainer, launch\nlaunch(main, num_machines={})\n"
ASCEND = """kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: t
        image: a
        command: [torchrun, t.py]
        resources: {{limits: {{huawei.com/ascend-1980: "8", {}}}, requests: {{{}: "6"}}}}
"""
OFFLOAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: {}\n  offload_param_device: {}\n"  # noqa: E501

IN_POD = """kind: Pod
metadata: {{name: t}}
spec:
  containers:
  - name: t
    image: a
    {}
    env:
    - name: MASTER_PORT
      value: {}
"""
NAMED = """services:
  a:
    image: a
    container_name: w
    command: torchrun --standalone t.py
    deploy: {{replicas: {}}}
"""
IN_DOCKER = "docker run --ipc=host --gpus '{}' -e CUDA_VISIBLE_DEVICES={} a torchrun --standalone t.py"
MEETS = "torchrun --nnodes=2 --nproc_per_node=4 --node_rank=1 --master_addr={} --master_port=29500 t.py"
MEETS_AT = "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_id=1 --rdzv_endpoint={} t.py"
FOUR_GPUS = "#SBATCH --gres=gpu:4"
OF_ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nfsdp_config:\n  fsdp_version: 2\n"
SUBMITTED = "#!/bin/bash\n#SBATCH -p gpu\n{}srun python t.py\n"
ON_PBS = "#!/bin/bash\n#PBS -l select=1:ngpus=4\n{}torchrun --standalone t.py\n"
BY_DS = "torchrun --standalone t.py --deepspeed ds.json"
WITH_DS = "accelerate launch --config_file a.yaml t.py"
DS_FILE = "deepspeed_config:\n  deepspeed_config_file: ds.json\n"
OWN_OPTIMIZER = "o = torch.optim.AdamW(p)\nm, o = accelerator.prepare(m, o)\n"
NEEDS = 'n = os.environ["NODE_RANK"]\n'
ADDS = 'p.add_argument("--{}")\n'
IN_COMPOSE = """services:
  a:
    image: a
    ipc: host
    environment: [CUDA_VISIBLE_DEVICES={}]
    command: torchrun --standalone t.py
    deploy: {{resources: {{reservations: {{devices: [{{device_ids: ["2", "3"], capabilities: [gpu]}}]}}}}}}
"""

PLACES: dict[str, tuple[list[Files], list[Files]]] = {
    # bsub(1), lsf.conf(5): LSB_BSUB_PARSE_SCRIPT
    "bsub-reads-no-directives": (
        [{**shell("bsub ./job.lsf"), "job.lsf": OF_LSF}],
        [
            {**shell("bsub < ./job.lsf"), "job.lsf": OF_LSF},
            {**shell("bsub ./job.sh"), "job.sh": "torchrun --standalone t.py\n"},
        ],
    ),
    "launch-node-has-no-gpu": (
        [{"job.lsf": ON_SUMMIT.format("-nnodes 1", "")}],
        [
            {"job.lsf": ON_SUMMIT.format("-nnodes 1", "jsrun -n1 -a1 -g6 -c42 ")},
            {"job.lsf": ON_SUMMIT.format("-n 6", "")},
        ],
    ),
    # mpirun(1) of Open MPI 4 and 5
    "mpirun-takes-name-for-program": (
        [shell("mpirun -np 4 -x PATH LD_LIBRARY_PATH python t.py")],
        [
            shell("mpirun -np 4 -x PATH -x LD_LIBRARY_PATH python t.py"),
            shell("mpirun -np 4 -x PATH MYPROGRAM"),
        ],
    ),
    "mpirun-binds-to-core": (
        [
            shell("mpirun -np 2 -x OMP_NUM_THREADS=14 ./a"),
            shell("module load openmpi/4", "export OMP_NUM_THREADS=8", "mpirun -n 1 python t.py"),
        ],
        [
            shell("mpirun -np 2 --bind-to none -x OMP_NUM_THREADS=14 ./a"),
            shell("mpirun -np 2 -x OMP_NUM_THREADS=1 ./a"),
            shell("mpirun -np 4 -x OMP_NUM_THREADS=14 ./a"),
            shell("module load mpich", "export OMP_NUM_THREADS=8", "mpirun -n 1 python t.py"),
        ],
    ),
    "pod-without-cluster-names": (
        [{"a.yaml": ON_HOST.format("m", "")}],
        [
            {"a.yaml": ON_HOST.format("m", "dnsPolicy: ClusterFirstWithHostNet\n  ")},
            {"a.yaml": ON_HOST.format("other", "")},
        ],
    ),
    # detectron2 0.6, engine/launch.py
    "ranks-have-no-address": (
        [{**slurm("srun python t.py"), "t.py": DETECTRON.format("2, num_gpus_per_machine=f(4)")}],
        [
            {**slurm("srun python t.py"), "t.py": DETECTRON.format('2, dist_url="tcp://h:1"')},
            {**slurm("srun python t.py"), "t.py": DETECTRON.format("1")},
        ],
    ),
    # fairseq, ParlAI: a rank above the world size does not fit into it
    "world-size-disagrees": (
        [slurm("srun python train.py --distributed-world-size 2", asked="#SBATCH -N 2 --ntasks-per-node=8")],
        [slurm("srun python train.py --distributed-world-size 16", asked="#SBATCH -N 2 --ntasks-per-node=1")],
    ),
    # Kubernetes, "Extended resources": requests equal limits; core/v1: Container.command is []string,
    # EnvVar.value a string
    "manifest-refused": (
        [
            {"a.yaml": ASCEND.format("cpu: 8", "huawei.com/ascend-1980")},
            {"a.yaml": IN_POD.format("command: torchrun t.py", '"1"')},
            {"a.yaml": IN_POD.format("command: [torchrun, t.py]", "29500")},
        ],
        [
            {"a.yaml": ASCEND.format("cpu: 8", "cpu")},
            {"a.yaml": IN_POD.format("command: [torchrun, t.py]", '"29500"')},
            {"a.yaml": IN_POD.format("command: [torchrun, t.py]", "h-0.h")},
        ],
    ),
    "accelerate-config-wrong": (
        [{"a.yaml": OFFLOAD.format(2, "cpu")}, {"a.yaml": OF_ACCELERATE.format("MULTI_GPU")}],
        [
            {"a.yaml": OFFLOAD.format(3, "cpu")},
            {"a.yaml": OFFLOAD.format(2, "none")},
            {"a.yaml": OF_ACCELERATE.format("FSDP")},
            {**shell("accelerate launch --use_fsdp t.py"), "a.yaml": OF_ACCELERATE.format("MULTI_GPU")},
        ],
    ),
    "assignment-without-effect": (
        [
            shell("#!/bin/bash", "set MASTER_ADDR=10.0.0.1", "echo $MASTER_ADDR", "torchrun t.py"),
            shell("export $MASTER_ADDR=10.0.0.1", "torchrun t.py"),
            shell("MASTER_ADDR = 10.0.0.1", "torchrun t.py"),
        ],
        [
            shell("#!/bin/csh", "set A=10", "echo $A", "torchrun t.py"),
            shell("set -e", "export MASTER_ADDR=10.0.0.1", "torchrun t.py"),
            shell('set -- A=1 "$@"', "torchrun t.py $A"),
        ],
    ),
    "compose-refused": ([{"c.yml": NAMED.format(2)}], [{"c.yml": NAMED.format(1)}]),
    # docker: the devices of a container count from 0
    "gpu-hidden-from-container": (
        [
            shell(IN_DOCKER.format('"device=2,3"', "2,3")),
            shell(IN_DOCKER.format("2", "0,2")),
            {"c.yml": IN_COMPOSE.format("2,3")},
        ],
        [
            shell(IN_DOCKER.format('"device=2,3"', "0,1")),
            shell(IN_DOCKER.format("all", "2,3")),
            {"c.yml": IN_COMPOSE.format("0,1")},
        ],
    ),
    # apptainer.conf: always use nv
    "image-without-gpus": (
        [
            slurm("srun apptainer exec a.sif python t.py", asked=FOUR_GPUS),
            shell("docker run --network host i torchrun --nnodes=2 --node_rank=$1 --master_addr=a t.py"),
        ],
        [
            slurm("srun apptainer exec --nv a.sif python t.py", asked=FOUR_GPUS),
            slurm("srun apptainer exec rocm.sif python t.py", asked=FOUR_GPUS),
            slurm("export APPTAINER_NV=1", "srun apptainer exec a.sif python t.py", asked=FOUR_GPUS),
            shell("docker run --gpus all i torchrun --nnodes=2 --node_rank=$1 --master_addr=a t.py"),
            shell("docker run i python prepare.py"),
        ],
    ),
    # torch 2.13, elastic/rendezvous/utils.py
    "rendezvous-address-wrong": (
        [
            shell(MEETS.format("10.0.0.1:29500")),
            shell(MEETS.format("10.0.0.256")),
            shell(MEETS_AT.format("http://10.0.0.1:29500")),
        ],
        [
            shell(MEETS.format("10.0.0.1")),
            shell(MEETS.format("fd00::1:29500")),
            shell(MEETS_AT.format("10.0.0.1:29500")),
        ],
    ),
    "background-not-waited-for": (
        [slurm("srun python t.py | tee log &")],
        [slurm("srun python t.py | tee log &", "wait"), slurm("srun python t.py | tee log")],
    ),
    # sbatch(1)
    "submit-options-misplaced": (
        [
            {**shell("sbatch job.sh --nodes=2"), "job.sh": SUBMITTED.format("")},
            shell("sbatch --parsable N48 --ntasks-per-node=8 job.sub"),
        ],
        [
            {**shell("sbatch --nodes=2 job.sh"), "job.sh": SUBMITTED.format("")},
            {**shell("sbatch -p gpu job.sh --lr=2"), "job.sh": SUBMITTED.format("")},
            {**shell("sbatch job.sh --nodes=2"), "job.sh": SUBMITTED.format('run "$@"\n')},
        ],
    ),
    "time-limit-in-minutes": (
        [
            slurm("srun python t.py", asked="#SBATCH -t 24"),
            {"a.pbs": ON_PBS.format("#PBS -l walltime=12:00\ncd $PBS_O_WORKDIR\n")},
        ],
        [
            slurm("srun python t.py", asked="#SBATCH -t 30"),
            {"a.pbs": ON_PBS.format("#PBS -l walltime=12:00:00\ncd $PBS_O_WORKDIR\n")},
        ],
    ),
    "job-starts-at-home": (
        [{"a.pbs": ON_PBS.format("")}],
        [{"a.pbs": ON_PBS.format("cd /work\n")}, {"a.pbs": ON_PBS.format("#PBS -d .\n")}],
    ),
    # torch 2.0, distributed/run.py
    "option-of-later-torch": (
        [shell("docker run pytorch/pytorch:1.10.0 torchrun --nproc-per-node=2 t.py")],
        [
            shell("docker run pytorch/pytorch:1.10.0 torchrun --nproc_per_node=2 t.py"),
            shell("docker run pytorch/pytorch:2.4.0 torchrun --nproc-per-node=2 t.py"),
        ],
    ),
    # DeepSpeed 0.19.8, runtime/zero/config.py
    "deepspeed-config-wrong": (
        [
            {**shell(BY_DS), "ds.json": '{"zero_optimazation": {"stage": 2}}'},
            {**shell(BY_DS), "ds.json": '{"zero_optimization": {"stage3_param_persitence_threshold": 1}}'},
        ],
        [
            {**shell(BY_DS), "ds.json": '{"zero_optimization": {"stage3_param_persistence_threshold": 1}}'},
            {**shell(BY_DS), "ds.json": '{"my_own_settings": {"stage": 2}}'},
        ],
    ),
    # accelerate 1.15, accelerator.py
    "script-unfit-for-configuration": (
        [{**shell(WITH_DS), "a.yaml": DS_FILE, "ds.json": '{\n"optimizer": {}}', "t.py": OWN_OPTIMIZER}],
        [
            {**shell(WITH_DS), "a.yaml": DS_FILE, "ds.json": '{\n"scheduler": {}}', "t.py": OWN_OPTIMIZER},
            {**shell(WITH_DS), "a.yaml": DS_FILE, "ds.json": '{\n"optimizer": {}}', "t.py": "train()\n"},
        ],
    ),
    "launcher-option-behind-script": (
        [{**shell("accelerate launch t.py --multi_gpu --num_processes 4"), "t.py": ADDS.format("lr")}],
        [{**shell("accelerate launch t.py --num_processes 4"), "t.py": ADDS.format("num_processes")}],
    ),
    # Open MPI 5.0.11: "multiple definitions of the slot count for at least one node"
    "hostfile-wrong": (
        [{**shell("mpirun -np 2 --hostfile h python t.py"), "h": "a slots=4\na slots=2\n"}],
        [{**shell("mpirun -np 2 --hostfile h python t.py"), "h": "a slots=4\nb slots=2\n"}],
    ),
    "variable-in-directive": (
        [slurm("srun python t.py", asked="#SBATCH -o $HOME/logs/%j.out")],
        [slurm("srun python t.py", asked="#SBATCH -o logs/%j.out")],
    ),
    # a file of settings has no commands
    "slashes-are-no-comment": (
        [shell("torchrun t.py // one node")],
        [{**shell(BY_DS), "ds.json": '{"stage": 2, // gradients\n"a": 1}'}],
    ),
    # qsub of PBS Professional and Torque
    "pbs-directive-refused": (
        [
            {"a.pbs": "#!/bin/bash\n#PBS walltime=1:00:00\ntorchrun t.py\n"},
            {"a.pbs": "#!/bin/bash\n#PBS -l select= 2:ngpus=4\ntorchrun t.py\n"},
        ],
        [{"a.pbs": "#!/bin/bash\n#PBS -l select=2:ngpus=4 -l walltime=1:00:00\ntorchrun t.py\n"}],
    ),
    # Open MPI's FAQ, "running jobs under Slurm"
    "open-mpi-slots": (
        [slurm("module load openmpi", "mpirun -np 12 a", asked="#SBATCH --ntasks=1 --cpus-per-task=12")],
        [
            slurm("module load openmpi", "mpirun -np 12 a", asked="#SBATCH --ntasks=12"),
            slurm("module load openmpi", "mpirun -np 12 a", asked="#SBATCH -N 1"),
            slurm("module load openmpi", "mpirun -np 2 a", asked="#SBATCH -N $N --ntasks-per-node=1"),
            slurm("module load openmpi", "mpirun --oversubscribe -np 12 a", asked="#SBATCH --ntasks=1"),
        ],
    ),
    # detectron2 0.6, GPT-NeoX
    "workers-started-per-task": (
        [
            slurm("srun python tools/train_net.py --num-gpus 4", asked="#SBATCH --ntasks-per-node=4"),
            slurm("srun python deepy.py train.py", asked="#SBATCH -N 2 --ntasks-per-node=4"),
        ],
        [
            slurm("srun python tools/train_net.py --num-gpus 4", asked="#SBATCH --ntasks-per-node=1"),
            slurm("python deepy.py train.py", asked="#SBATCH -N 2 --ntasks-per-node=4"),
            slurm("srun python t.py --num-gpus 4", asked="#SBATCH --ntasks-per-node=4"),
        ],
    ),
    "variable-not-of-launcher": (
        [{**shell("torchrun --standalone t.py"), "t.py": NEEDS}],
        [
            {
                **shell("export NODE_RANK=0", "torchrun --standalone t.py"),
                "t.py": 'n = os.environ["NODE_RANK"]\n',
            },
            {**shell("torchrun --standalone t.py"), "t.py": 'n = os.environ.get("NODE_RANK", 0)\n'},
        ],
    ),
}
