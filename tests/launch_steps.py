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

BY_NUMBER = "srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; python t.py --backend {}'"
SLOTS = '#!/bin/bash\n#BSUB -n 16\n#BSUB -gpu "num=4"\ntorchrun --standalone --nproc_per_node=${} t.py\n'
SERVICE = """services:
  t:
    image: a
    command: torchrun --standalone t.py
    {}
    deploy:
      replicas: {}
      resources:
        reservations:
          devices:
            - capabilities: [gpu]
              {}
"""
ARRAY = "#!/bin/bash\n#PBS {}\n#PBS {}\ncd $PBS_O_WORKDIR\ntorchrun --standalone t.py\n"
BY_SGD = f"o = torch.optim.SGD(p)\n{INITIALIZES}"
UNTESTED = '{"zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 2}}'
BY_FSDP = "accelerate launch --config_file c.yaml t.py"
ON = "num_processes: 4\nfsdp_config:\n  "
OWN_FLAT = "fsdp_use_orig_params: false\n  "

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
            slurm(f"srun torchrun --nnodes=2 {AT_HEAD}", asked="# SBATCH --nodes=2\n#SBATCH --gres=gpu:4"),
        ],
        [
            slurm("srun python t.py", asked="#SBATCH --nodes=2   # (two of them)"),
            {"a.lsf": FOR_LSF.format("24:00")},
            slurm(f"srun torchrun --nnodes=2 {AT_HEAD}", asked="# SBATCH --nodes=4\n#SBATCH --nodes=2"),
            slurm(f"srun torchrun --nnodes=1 {AT_HEAD}", asked="# SBATCH --nodes=2\n#SBATCH --gres=gpu:4"),
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
        [
            {**shell(BY_FILE), "ds.json": '{"scheduler": {"warmup_max_lr": "auto"}}', "t.py": INITIALIZES},
            {**shell(BY_FILE), "ds.json": '{"zero_optimization": {"stage": 2}}', "t.py": BY_SGD},
            {**shell(BY_FSDP), "c.yaml": FLAT.format(ON), "t.py": "B(load_in_4bit=True)\nSFTTrainer(m)\n"},
        ],
        [
            {**shell(BY_FILE), "ds.json": '{"scheduler": {"warmup_max_lr": 1e-4}}', "t.py": INITIALIZES},
            {**shell(BY_FILE), "ds.json": '{"zero_optimization": {"stage": 0}}', "t.py": BY_SGD},
            {**shell(BY_FILE), "ds.json": UNTESTED, "t.py": BY_SGD},
            {**shell(BY_FSDP), "c.yaml": FLAT.format(ON), "t.py": "B(load_in_8bit=True)\nSFTTrainer(m)\n"},
            {**shell(BY_FSDP), "c.yaml": FLAT.format(ON + OWN_FLAT), "t.py": "LoraConfig()\nSFTTrainer(m)\n"},
        ],
    ),
    # DeepSpeed 0.19, launcher/runner.py; MPICH, hydra: "slots not supported"; horovod, runner/util/hosts.py
    "hostfile-wrong": (
        [
            {"a.pbs": ON_HOSTS.format("")},
            shell(LORA.format("0-3", "a"), "wait"),
            {**shell("mpiexec.hydra -f h -n 8 -ppn 4 python t.py"), "h": "a slots=4\nb slots=4\n"},
            {**shell("horovodrun -np 8 --hostfile h python t.py"), "h": "a:4\nb:4\n"},
        ],
        [
            {"a.pbs": ON_HOSTS.format("| sort -u ")},
            shell(LORA.format("0,3", "a"), "wait"),
            {**shell("mpiexec.hydra -f h -n 8 -ppn 4 python t.py"), "h": "a:4\nb:4\n"},
            {**shell("horovodrun -np 8 --hostfile h python t.py"), "h": "a slots=4\nb slots=4\n"},
        ],
    ),
    # sbatch(1): --gres counts for each node; bsub(1): a slot is no GPU
    "nproc-exceeds-gpus": (
        [
            slurm(BY_NUMBER.format("nccl"), asked="#SBATCH --nodes=1 --ntasks=4\n#SBATCH --gres=gpu:1"),
            {"a.lsf": SLOTS.format("LSB_DJOB_NUMPROC")},
        ],
        [
            slurm(BY_NUMBER.format("nccl"), asked="#SBATCH --nodes=1 --ntasks=4\n#SBATCH --gres=gpu:4"),
            slurm(BY_NUMBER.format("gloo"), asked="#SBATCH --nodes=1 --ntasks=4\n#SBATCH --gres=gpu:1"),
            {"a.lsf": SLOTS.format("GPUS")},
        ],
    ),
    # sbatch(1), SLURM_JOB_NODELIST
    "variable-of-other-scheduler": (
        [
            slurm(
                "for h in $(cat $SLURM_JOB_NODELIST); do", "ssh $h true", "done", "torchrun --standalone t.py"
            )
        ],
        [
            slurm('echo "$SLURM_JOB_NODELIST"', "torchrun --standalone t.py"),
            slurm("scontrol show hostnames $SLURM_JOB_NODELIST | sort", "torchrun --standalone t.py"),
        ],
    ),
    # the Compose specification, deploy.md and services.md
    "compose-refused": (
        [
            {"compose.yml": SERVICE.format("networks: [a]\n    network_mode: host", "1", "count: 1")},
            {"compose.yml": SERVICE.format("ipc: host", "4", "count: 1")},
        ],
        [
            {"compose.yml": SERVICE.format("networks: [a]", "1", "count: 1")},
            {"compose.yml": SERVICE.format("ipc: host", "4", "count: all")},
        ],
    ),
    # PBS Professional's qsub(1B): -J
    "pbs-directive-refused": (
        [{"a.pbs": ARRAY.format("-l select=1:ngpus=2", "-t 1-4")}],
        [
            {"a.pbs": ARRAY.format("-l select=1:ngpus=2", "-J 1-4")},
            {"a.pbs": ARRAY.format("-l nodes=1:ppn=4", "-t 1-4")},
        ],
    ),
    # nohup(1): COMMAND
    "assignment-without-effect": (
        [shell("nohup CUDA_VISIBLE_DEVICES=2,3 torchrun --standalone t.py &")],
        [shell("CUDA_VISIBLE_DEVICES=2,3 nohup torchrun --standalone t.py &")],
    ),
    # transformers 5.17, hf_argparser.py: "Some specified arguments are not used"
    "trainer-refuses-arguments": (
        [shell("torchrun --standalone t.py --per_device_train_batch_size 4 --fsdp full_shard auto_wrap")],
        [shell("torchrun --standalone t.py --per_device_train_batch_size 4 --fsdp 'full_shard auto_wrap'")],
    ),
}
