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
    # Kubernetes, "Extended resources": requests equal limits
    "manifest-refused": (
        [{"a.yaml": ASCEND.format("cpu: 8", "huawei.com/ascend-1980")}],
        [{"a.yaml": ASCEND.format("cpu: 8", "cpu")}],
    ),
    "accelerate-config-wrong": (
        [{"a.yaml": OFFLOAD.format(2, "cpu")}],
        [{"a.yaml": OFFLOAD.format(3, "cpu")}, {"a.yaml": OFFLOAD.format(2, "none")}],
    ),
}
