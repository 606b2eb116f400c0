"""Launch files with steps, places or directives that do not fit together: a full world, a held node."""

from __future__ import annotations

from tests.launch_cases import shell, slurm
from tests.launch_contradictions import BY_FILE, INITIALIZES
from tests.launch_starters import Files

TWO_NODES = "#SBATCH --nodes=2 --ntasks-per-node=1"
WITH_GPUS = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4"
AT_HEAD = "--rdzv_backend=c10d --rdzv_endpoint=$HEAD:29500 t.py"
MONITOR = "srun --ntasks-per-node=1 {}bash -c 'nvidia-smi -l 10 > gpu.csv' &"
PROCESSES = (
    'printf "a slots=8\\nb slots=8\\n" > h',
    "mpirun -np {} --hostfile h --map-by slot torchrun --nnodes=2 --nproc_per_node=8 " + AT_HEAD,
)
OWN_FOLDER = 'HERE="$(cd "$(dirname "$0")" && pwd)"'
FLAT = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n{}fsdp_offload_params: false\n"
LORA = "deepspeed --include localhost:{} t.py > {}.log 2>&1 &"
ON_HOSTS = """#!/bin/bash
#PBS -l select=2:ngpus=4:mpiprocs=4
sed 's/$/ slots=4/' $PBS_NODEFILE {}> hosts.$PBS_JOBID
deepspeed --hostfile hosts.$PBS_JOBID t.py
"""
FOR_LSF = "#!/bin/bash\n#BSUB -n 4\n#BSUB -W {}\ntorchrun --standalone t.py\n"

STEPS: dict[str, tuple[list[Files], list[Files]]] = {
    # torch 2.13, rendezvous/dynamic_rendezvous.py: two agents at one endpoint, run with one place
    "several-worlds": (
        [
            slurm(f"srun torchrun {AT_HEAD}", asked=TWO_NODES),
            slurm("srun torchrun --master_addr=$HEAD t.py", asked=TWO_NODES),
        ],
        [slurm(f"srun torchrun --nnodes=2 {AT_HEAD}", asked=TWO_NODES)],
    ),
    # srun(1), --exact and --overlap: since 20.11 a step shares nothing
    "step-holds-nodes": (
        [
            slurm(MONITOR.format(""), "srun python t.py", asked=WITH_GPUS),
            slurm("srun -N 2 nvidia-smi dmon &", "srun python t.py", asked=WITH_GPUS),
        ],
        [
            slurm(MONITOR.format("--overlap "), "srun python t.py", asked=WITH_GPUS),
            slurm(MONITOR.format("").replace("-l 10", ""), "srun python t.py", asked=WITH_GPUS),
            slurm(MONITOR.format(""), "srun --overlap python t.py", asked=WITH_GPUS),
            slurm(MONITOR.format("-w n1 "), "srun python t.py", asked=WITH_GPUS),
            slurm("export SLURM_OVERLAP=1", MONITOR.format(""), "srun python t.py", asked=WITH_GPUS),
            slurm(MONITOR.format(""), "srun python t.py", asked=TWO_NODES),
        ],
    ),
    "launcher-started-per-task": (
        [shell(*(line.format(16) for line in PROCESSES))],
        [shell(*(line.format(2) for line in PROCESSES))],
    ),
    # sbatch(1): the script is copied
    "job-file-is-a-copy": (
        [
            slurm(OWN_FOLDER, "torchrun --standalone $HERE/t.py"),
            {"a.pbs": f"#!/bin/bash\n#PBS -l select=1\n{OWN_FOLDER}\npython ${{HERE}}/t.py\n"},
        ],
        [
            slurm("HERE=$SLURM_SUBMIT_DIR", "torchrun --standalone $HERE/t.py"),
            slurm(OWN_FOLDER, '[ "$SLURM_SUBMIT_DIR" ] && HERE=$SLURM_SUBMIT_DIR', "python $HERE/t.py"),
            shell("#!/bin/bash", OWN_FOLDER, "torchrun --standalone $HERE/t.py"),
            shell(OWN_FOLDER, "cat > j <<E", "#SBATCH -N 1", "E", "torchrun --standalone $HERE/t.py"),
        ],
    ),
    # Slurm 22.05: "Invalid directive found in batch script"; bsub(1), -W
    "directive-wrong": (
        [
            slurm("srun python t.py", asked="#SBATCH --nodes=2   (two of them)"),
            {"a.lsf": FOR_LSF.format("24:00:00")},
        ],
        [
            slurm("srun python t.py", asked="#SBATCH --nodes=2   # (two of them)"),
            {"a.lsf": FOR_LSF.format("24:00")},
        ],
    ),
    # accelerate 1.15, config_args.py: "had unknown keys"
    "accelerate-config-wrong": (
        [{"a.yaml": FLAT.format("")}],
        [{"a.yaml": FLAT.format("fsdp_config:\n  ")}],
    ),
    # DeepSpeed 0.19, launcher/constants.py: port 29500
    "port-used-twice": (
        [shell(LORA.format("0,1", "a"), LORA.format("2,3", "b"), "wait")],
        [shell(LORA.format("0,1", "a"), LORA.format("2,3 --master_port 29501", "b"), "wait")],
    ),
    # DeepSpeed 0.19, runtime/lr_schedules.py
    "script-unfit-for-configuration": (
        [{**shell(BY_FILE), "ds.json": '{"scheduler": {"warmup_max_lr": "auto"}}', "t.py": INITIALIZES}],
        [{**shell(BY_FILE), "ds.json": '{"scheduler": {"warmup_max_lr": 1e-4}}', "t.py": INITIALIZES}],
    ),
    # DeepSpeed 0.19, launcher/runner.py: "Hostfile contains multiple entries"
    "hostfile-wrong": (
        [{"a.pbs": ON_HOSTS.format("")}],
        [{"a.pbs": ON_HOSTS.format("| sort -u ")}],
    ),
}
