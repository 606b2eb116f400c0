"""What starts the ranks, and what reaches them: further wrong and right cases for `test_lint`."""

from __future__ import annotations

from tests.launch_cases import JOBSET, shell, slurm

Files = dict[str, str]
FOUR = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\n"
STATEFUL_SET = """kind: StatefulSet
metadata: {{name: t}}
spec:
  replicas: 2
  {}
  template:
    spec:
      initContainers:
        - command: [sh, -c, "{}"]
      containers:
        - command: [bash, -c, "torchrun --nnodes=2 --node_rank=${{HOSTNAME##*-}} --master_addr=t-0.t t.py"]
"""
WAITS = "until nslookup t-$i.t; do sleep 2; done"
IN_A_POD = """kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker: {{replicas: 2, template: {{spec: {{containers: [{{command: [{}]}}]}}}}}}
"""
IN_TURN = "while read -r h; do\n{}\ndone < hosts\n"
SSH = 'ssh $h "torchrun --nnodes=2 --node_rank=$r --master_addr=n0 t.py > log 2>&1 &"'
RAY = "srun -N1 -n1 -w $n ray start --address $H"
DEEPSPEED = "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
ACCELERATE = "srun accelerate launch --num_machines 2 --num_processes {} --machine_rank $SLURM_NODEID t.py"
BY_HOSTS = "deepspeed --hostfile hosts t.py --deepspeed_config ds.json"
HOSTS = {"hosts": "a slots=4\nb slots=4\n"}
SIZES = '{{"train_batch_size": {}, "train_micro_batch_size_per_gpu": 2}}'
BY_MPI = "bash -c 'python t.py --rank $OMPI_COMM_WORLD_RANK --url tcp://$MASTER_ADDR:1'"
EXPORTS = "export MASTER_ADDR=10.0.0.1"
TWO_MACHINES = "num_machines: 2\nnum_processes: 8\n"
BY_PDSH = "deepspeed_config:\n  deepspeed_multinode_launcher: pdsh\n  deepspeed_hostfile: h\n"
BY_ITSELF = TWO_MACHINES + "deepspeed_config:\n  deepspeed_multinode_launcher: standard\n"
MEGATRON = (
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$H:1 t.py"
    " --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"
)
SLIME = "python t.py --actor-num-nodes 1 --actor-num-gpus-per-node {} --tensor-model-parallel-size 4"
TRAINER = "import lightning as L\nL.Trainer(devices=4, num_nodes=2).fit(m)\n"
ON_ONE = "import lightning as L\nL.Trainer(devices=4).fit(m)\n"
COUNTS_TASKS = "export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))"
BY_LINES = """#PBS -l select=2:mpiprocs=4
N=$({})
r=0
for h in $(sort -u $PBS_NODEFILE); do
  ssh $h "torchrun --nnodes=$N --node_rank=$r --master_addr=n0 --nproc_per_node=8 t.py" &
  r=$((r+1))
done
wait
"""
JSRUN = "#BSUB -nnodes 2\njsrun -n {} -r {} -a 1 -c 7 -g {} {}\n"
SIX = "torchrun --nnodes=2 --nproc_per_node=6 t.py"
BY_RANK = "accelerate launch --config_file a.yaml --num_machines 2 --machine_rank $R --main_process_ip h t.py"
BY_DEEPSPEED = "distributed_type: DEEPSPEED\nnum_processes: 8\n"
SOURCED = '. "$(cd "$(dirname "$0")" && pwd)/env.sh"'
SERVICE = "services:\n  a:\n    image: a\n    {}\n    command: torchrun --nproc_per_node 4 t.py\n"
AT_PORT = "python {} --num-gpus 4 --dist-url tcp://127.0.0.1:{}"
PASSED = 'torchrun --nnodes=$1 --nproc_per_node=8 --rdzv_endpoint=$2:1 --rdzv_backend=c10d "${@:3}"\n'
OF_RANK = "bash -c 'RANK=0 WORLD_SIZE={} python t.py'"

TWO = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=$H:1 t.py"
SOME = "#SBATCH --nodes=2-4\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8"
LOCAL = (
    "torchrun --nnodes=2 --nproc_per_node=1 --node_rank={} --master_addr=127.0.0.1 --master_port=1025 t.py"
)
ACCELERATES = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
VERL = "python -m verl.trainer.main_ppo trainer.n_gpus_per_node={}"
OPENRLHF = "deepspeed --include localhost:{} t.py --train_batch_size 256 --micro_train_batch_size 2"

REFUSED = (
    *("--ntask-per-node=2", "--gpus_per_node=4", "-nodes=2", "-mem=4G", "-N=2", "--nodes=two", "--ntasks=8k"),
    *("--time=24h", "--time=2d", "--time=1.5", "--mem=4GiB", "--mem=4.5G", "--mem=all", "--gres=4"),
    *("--cpus-per-task=", "--ntasks-per-node=0", "--cpu_bind=cores"),
)
"""Options of sbatch that it does not take."""
TAKEN = (
    *(
        "--ntasks-per-no=2",
        "-n2",
        "--nodes=2-4",
        "-N 2",
        "--ntasks=8",
        "--time=1-0",
        "-t 10",
        "--time=1-02:03",
    ),
    *("--time=UNLIMITED", "--time=00:30:00", "--mem=4gb", "--mem=0", "--mem=100K", "--cpus-per-task=04"),
)
"""Options that it takes."""
CASES: dict[str, tuple[list[Files], list[Files]]] = {
    "gpu-by-global-rank": (
        [
            slurm("srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_PROCID python t.py'", asked=FOUR),
            slurm("srun bash -c 'export LOCAL_RANK=${SLURM_PROCID}; python t.py'", asked=FOUR),
        ],
        [
            slurm("srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python t.py'", asked=FOUR),
            slurm("srun bash -c 'RANK=$SLURM_PROCID python t.py'", asked=FOUR),
            slurm("srun -N1 -n4 bash -c 'LOCAL_RANK=$SLURM_PROCID python t.py'", asked=FOUR),
            slurm("# LOCAL_RANK=$SLURM_PROCID", "srun python t.py", asked=FOUR),
        ],
    ),
    # ssh(1), -n
    "loop-loses-its-list": (
        [shell(IN_TURN.format(SSH)), shell("cat hosts | while read h; do", SSH, "done")],
        [
            shell(IN_TURN.format(SSH.replace("ssh", "ssh -n"))),
            shell(IN_TURN.format(SSH.replace("ssh", "ssh -fn"))),
            shell(IN_TURN.format(SSH + " < /dev/null")),
            shell(IN_TURN.format(SSH + " &")),
            shell("while read -r -u 3 h; do", SSH, "done 3< hosts"),
            shell("for h in $(cat hosts); do", SSH, "done"),
        ],
    ),
    # srun(1), MULTIPLE PROGRAM CONFIGURATION
    "multi-prog-incomplete": (
        [
            {**slurm("srun -n 4 --multi-prog tasks"), "tasks": "# who\n0-1 python a.py\n2 python b.py\n"},
            {**slurm("srun --multi-prog tasks", asked="#SBATCH -n 3"), "tasks": "0,1 python a.py\n"},
        ],
        [
            {**slurm("srun -n 4 --multi-prog tasks"), "tasks": "0-1 python a.py\n2,3 python b.py\n"},
            {**slurm("srun -n 4 --multi-prog tasks"), "tasks": "0 python a.py\n* python b.py\n"},
            slurm("srun -n 4 --multi-prog tasks"),
        ],
    ),
    # ray 2.x scripts/scripts.py: without --block `start` returns when its processes run.
    "ray-ends-with-its-step": (
        [
            slurm(RAY, "python t.py"),
            slurm(RAY + " &", "python t.py"),
            slurm("srun -N1 apptainer exec r.sif ray start --head"),
        ],
        [
            slurm(RAY + " --block &", "python t.py"),
            slurm("ray start --head", "python t.py"),
            slurm("srun bash -c 'ray start --address=$H; sleep infinity' &", "python t.py"),
        ],
    ),
    # Kubernetes: concepts/workloads/controllers/statefulset, Pod Management Policies
    "pods-start-in-turn": (
        [{"a.yaml": STATEFUL_SET.format("", WAITS)}],
        [
            {"a.yaml": STATEFUL_SET.format("podManagementPolicy: Parallel", WAITS)},
            {"a.yaml": STATEFUL_SET.format("", WAITS.replace("t-$i", "t-0"))},
            {"a.yaml": STATEFUL_SET.format("", "cp /data/t-1 /tmp")},
        ],
    ),
    # Kubernetes: tasks/inject-data-application/define-command-argument-container
    "variable-without-shell": (
        [
            {"a.yaml": IN_A_POD.format("torchrun, --nnodes=2, --node_rank=$RANK, t.py")},
            {"a.yaml": IN_A_POD.format('torchrun, --nnodes=2, "--node_rank=${RANK}", t.py')},
        ],
        [
            {"a.yaml": IN_A_POD.format("torchrun, --nnodes=2, --node_rank=$(RANK), t.py")},
            {"a.yaml": IN_A_POD.format("bash, -c, torchrun --nnodes=2 --node_rank=$RANK t.py")},
            {"a.yaml": IN_A_POD.format("torchrun, --nnodes=2, t.py, --cost=5$")},
            {"docker-compose.yaml": "services:\n  a: {command: [torchrun, --node_rank=$RANK, t.py]}\n"},
        ],
    ),
    # accelerate 1.15 utils/dataclasses.py: DeepSpeedPlugin._deepspeed_config_checks
    "deepspeed-settings-twice": (
        [
            {"a.yaml": DEEPSPEED + "  zero_stage: 3\n"},
            {"a.yaml": DEEPSPEED + "  zero3_init_flag: true\n  gradient_clipping: 1.0\n"},
        ],
        [
            {"a.yaml": DEEPSPEED + "  zero3_init_flag: true\n"},
            {"a.yaml": DEEPSPEED.replace("deepspeed_config_file: ds.json", "zero_stage: 3")},
        ],
    ),
    # accelerate 1.15 utils/launch.py: prepare_multi_gpu_env, prepare_deepspeed_cmd_env
    "accelerate-config-wrong": (
        [
            {"a.yaml": TWO_MACHINES + "gpu_ids: 0,1\n"},
            {"a.yaml": TWO_MACHINES + "deepspeed_config:\n  deepspeed_multinode_launcher: pdsh\n"},
        ],
        [
            {"a.yaml": TWO_MACHINES + "gpu_ids: all\n"},
            {"a.yaml": TWO_MACHINES + "gpu_ids: 0,1,2,3\n"},
            {"a.yaml": TWO_MACHINES + "deepspeed_config:\n  deepspeed_multinode_launcher: standard\n"},
            {"a.yaml": TWO_MACHINES + BY_PDSH},
        ],
    ),
    "port-privileged": (
        [
            shell("torchrun --nnodes=2 --node_rank=$R --master_addr=h --master_port=97 t.py"),
            shell("accelerate launch --num_processes 8 --main_process_port 00097 t.py"),
        ],
        [shell("torchrun --nnodes=2 --node_rank=$R --master_addr=h --master_port=1097 t.py")],
    ),
    # BasicSR and OpenMMLab: init_dist(launcher) of utils/dist_util.py
    "rank-not-set": (
        [
            shell("python train.py -opt o.yml --launcher pytorch"),
            slurm(COUNTS_TASKS, "python t.py --distributed", asked=FOUR),
        ],
        [
            shell("torchrun --nproc_per_node=8 train.py -opt o.yml --launcher pytorch"),
            shell("RANK=0 WORLD_SIZE=1 python train.py -opt o.yml --launcher pytorch"),
            shell("python train.py -opt o.yml --launcher none"),
            slurm(COUNTS_TASKS, "srun python t.py --distributed", asked=FOUR),
            {**slurm(COUNTS_TASKS, "python t.py", asked=FOUR), "t.py": "mp.spawn(f)\n"},
        ],
    ),
    "hostfile-wrong": (
        [{**shell(BY_HOSTS.replace("hosts", "hosts --include=a:4,5")), **HOSTS}],
        [{**shell(BY_HOSTS.replace("hosts", "hosts --include=a:2,3@b:0")), **HOSTS}],
    ),
    "port-used-twice": (
        [
            shell("torchrun a.py &", "torchrun b.py &", "wait"),
            shell(AT_PORT.format("a.py", 50152) + " &", AT_PORT.format("b.py", 50152)),
        ],
        [
            shell("torchrun a.py &", "torchrun --master_port=29501 b.py &", "wait"),
            shell(AT_PORT.format("a.py", 50152) + " &", AT_PORT.format("b.py", 50153)),
            shell(AT_PORT.format("a.py", 50152), AT_PORT.format("b.py", 50152)),
        ],
    ),
    "container-keeps-out": (
        [
            {
                "a.sh": "docker run --gpus all img /bin/bash run.sh\n",
                "run.sh": "torchrun --nproc_per_node=8 t.py\n",
            },
            {"a.yaml": SERVICE.format("devices: [/dev/null]")},
        ],
        [
            {
                "a.sh": "docker run --ipc=host img bash run.sh\n",
                "run.sh": "torchrun --nproc_per_node=8 t.py\n",
            },
            {"a.yaml": SERVICE.format("shm_size: 8gb")},
            {"a.yaml": SERVICE.format("ipc: host")},
            {"a.yaml": SERVICE.format("extends: {service: b}")},
        ],
    ),
    "rendezvous-endpoint-missing": (
        [{**shell("accelerate launch --config_file a.yaml t.py"), "a.yaml": BY_ITSELF}],
        [
            {
                **shell("accelerate launch --config_file a.yaml t.py"),
                "a.yaml": BY_ITSELF + "main_process_ip: h\n",
            }
        ],
    ),
    "parallel-sizes-do-not-divide": (
        [
            slurm(f"srun {MEGATRON} --num-layers 70"),
            shell(SLIME.format(6)),
            shell(VERL.format(1) + " actor_rollout_ref.rollout.tensor_model_parallel_size=2"),
            shell(VERL.format(6) + " data.train_batch_size=64"),
            shell(OPENRLHF.format("1,2,3")),
            shell(
                "read -r -d '' C <<E",
                OPENRLHF.format("0").partition("0 ")[2],
                "E",
                "deepspeed --include h:1,2,3 $C",
            ),
        ],
        [
            shell(VERL.format(2) + " actor_rollout_ref.rollout.tensor_model_parallel_size=2"),
            shell(VERL.format(6) + " data.train_batch_size=64 actor_rollout_ref.rollout.n=3"),
            shell(VERL.format("$N") + " data.train_batch_size=64"),
            shell(OPENRLHF.format("1,2")),
            shell(OPENRLHF.format("1,2,3") + " --ring_attn_size 3"),
            slurm(f"srun {MEGATRON} --num-layers 70 --pp-partition-method type:transformer"),
            slurm(f"srun {MEGATRON} --num-layers 70 --hybrid-layer-pattern M*-"),
            shell(SLIME.format(8)),
        ],
    ),
    # accelerate's utils/launch.py, prepare_deepspeed_cmd_env: pdsh unless told otherwise
    "several-worlds": (
        [
            {**shell(BY_RANK), "a.yaml": BY_DEEPSPEED},
            shell(BY_RANK.replace("--config_file a.yaml", "--use_deepspeed")),
            {**slurm("srun bash run.sh 1 $H t.py"), "run.sh": PASSED},
            {**slurm(SOURCED, "srun bash run.sh $N $H t.py"), "run.sh": PASSED, "env.sh": "N=1\n"},
        ],
        [
            {**shell(BY_RANK), "a.yaml": BY_DEEPSPEED.replace("DEEPSPEED", "MULTI_GPU")},
            {**shell(BY_RANK.replace("a.yaml", "a.yaml --deepspeed_hostfile h")), "a.yaml": BY_DEEPSPEED},
            {**shell(BY_RANK), "a.yaml": BY_ITSELF + BY_DEEPSPEED.partition("\n")[0]},
            {**shell(BY_RANK.replace("$R", "0")), "a.yaml": BY_DEEPSPEED},
            {**slurm("srun bash run.sh 2 $H t.py"), "run.sh": PASSED},
            {**slurm(SOURCED, "srun bash run.sh $N $H t.py"), "run.sh": PASSED, "env.sh": "N=2\n"},
            {
                **slurm("srun bash run.sh 1 $H t.py"),
                "run.sh": "while [ $# -gt 0 ]; do shift; done\n" + PASSED,
            },
            slurm("srun bash -s <<'E'", "if [ $SLURM_PROCID -lt 1 ]; then", "torchrun t.py", "fi", "E"),
        ],
    ),
    "launcher-on-first-node-alone": (
        [
            {**shell("sbatch -N 2 -n2 --wrap='. e; bash run.sh 2 $H t.py' -J a"), "run.sh": PASSED},
            shell('sbatch --wrap "torchrun --nnodes=2 --rdzv_endpoint=$H:1 --rdzv_backend=c10d t.py" -N 2'),
        ],
        [
            {**shell("sbatch -N 2 --wrap='. e; srun bash run.sh 2 $H t.py' -J a"), "run.sh": PASSED},
            {**shell("sbatch -N 1 --wrap='bash run.sh 1 $H t.py'"), "run.sh": PASSED},
            {**shell("sbatch -N $N --wrap='bash run.sh 1 $H t.py'"), "run.sh": PASSED},
        ],
    ),
    "variable-never-set": (
        [
            shell("docker run --ipc=host -e P=$no_proxies img torchrun --standalone t.py"),
            shell("S=$((64 / (per_gpu * 4)))", "torchrun --standalone t.py --steps $S"),
            slurm("L='torchrun --nnodes=2'", "srun bash -c '$L t.py'"),
        ],
        [
            shell("docker run --ipc=host -e P=$no_proxy img torchrun --standalone t.py"),
            shell("per_gpu=2", "S=$((64 / (per_gpu * 4)))", "torchrun --standalone t.py --steps $S"),
            shell('[ -z "$per_gpu" ] && exit 1', "S=$((64 / per_gpu))", "torchrun --standalone t.py"),
            slurm("export L='torchrun --nnodes=1'", "srun bash -c '$L t.py'"),
        ],
    ),
    "launcher-option-wrong": (
        [
            shell("torchrun --nnodes=all --nproc_per_node=8 t.py"),
            shell("torchrun --nproc_per_node=8 --batch 4 t.py --batch 4"),
            shell("accelerate launch --num_cpu_threads_per_process --num_processes 2 t.py"),
        ],
        [
            shell("torchrun --nnodes=1:4 --nproc_per_node=gpu t.py"),
            shell("torchrun --nnodes=$N --nproc_per_node=xpu t.py --batch 4"),
            shell("deepspeed --launcher_args '-p 22' --hostfile /h t.py"),
        ],
    ),
    # deepspeed/launcher/runner.py: user_script and user_args, argparse.REMAINDER
    "launcher-option-behind-script": (
        [shell("deepspeed t.py --hostfile hosts")],
        [shell("deepspeed --hostfile hosts t.py"), shell("deepspeed --hostfile hosts t.py --hostfile h")],
    ),
    "launcher-argument-misread": (
        [
            shell("python t.py -m torch.distributed.launch --nproc_per_node=2"),
            shell("deepspeed /hostfile t.py"),
            shell("torchrun 4 t.py"),
        ],
        [
            shell("python -m torch.distributed.launch --nproc_per_node=2 t.py"),
            shell("deepspeed --hostfile /hostfile t.py"),
            shell("python t.py -m resnet"),
        ],
    ),
    # bash(1), -c: "-c: option requires an argument"
    "command-cut-short": (
        [shell("docker run img bash -c \\", "", "torchrun --standalone t.py")],
        [shell("docker run --ipc=host img bash -c \\", "'torchrun --standalone t.py'")],
    ),
    "launcher-started-per-task": (
        [slurm("srun mpirun -np 8 python t.py", asked=FOUR)],
        [
            slurm("mpirun -np 8 python t.py", asked=FOUR),
            slurm("srun -N1 -n1 mpirun -np 8 python t.py", asked=FOUR),
        ],
    ),
    "nproc-exceeds-gpus": (
        [
            shell("torchrun --nproc_per_node 8 t.py --device 0,1"),
            slurm("srun torchrun --nnodes=2 --nproc_per_node=4 t.py", asked="#SBATCH -N 2\n#SBATCH -G 4"),
            {"a.lsf": JSRUN.format(2, 1, 1, SIX)},
        ],
        [
            slurm("srun torchrun --nnodes=2 --nproc_per_node=4 t.py", asked="#SBATCH -N 2\n#SBATCH -G 8"),
            {"a.lsf": JSRUN.format(2, 1, 6, SIX)},
        ],
    ),
    "gpus-left-idle": (
        [slurm(ACCELERATE.format(8))],
        [slurm(ACCELERATE.format(16))],
    ),
    "open-mpi-slots": (
        [
            shell("horovodrun -np 16 -H a:4,b:4 python t.py"),
            shell("horovodrun -np 2 -H localhost python t.py"),
        ],
        [shell("horovodrun -np 8 -H a:4,b:4 python t.py"), shell("horovodrun -np 8 -H $H python t.py")],
    ),
    "lightning-tasks-mismatch": (
        [
            slurm("srun python t.py fit --trainer.devices 8"),
            slurm("srun python t.py trainer.devices=8 trainer.num_nodes=2"),
            {**slurm("python t.py", asked=FOUR), "t.py": TRAINER},
            {**slurm("srun python t.py", asked=FOUR.replace("gpu:4", "gpu:2")), "t.py": TRAINER},
            {**slurm("srun python t.py", asked="#SBATCH -N 2\n#SBATCH --gres=gpu:4"), "t.py": TRAINER},
        ],
        [
            slurm("srun python t.py fit --trainer.devices 4", asked=FOUR),
            {**slurm("srun python t.py", asked=FOUR), "t.py": TRAINER},
            {**slurm("python t.py", asked=FOUR), "t.py": TRAINER.replace("lightning", "lighting")},
            {**slurm("python t.py", asked="#SBATCH -N 1\n#SBATCH --gres=gpu:4"), "t.py": ON_ONE},
        ],
    ),
    "pod-name-unknown": (
        [{"a.yaml": JOBSET.format("subdomain: net", "v-node-0.net")}],
        [{"a.yaml": JOBSET.format("subdomain: net", "v-other-0.net")}],
    ),
    "deepspeed-batch-disagrees": (
        [{**shell(BY_HOSTS), **HOSTS, "ds.json": SIZES.format(24)}],
        [
            {**shell(BY_HOSTS), **HOSTS, "ds.json": SIZES.format(32)},
            {**shell(BY_HOSTS.replace("hosts", "hosts --include a")), **HOSTS, "ds.json": SIZES.format(24)},
        ],
    ),
    # mpirun(1) of Open MPI, -x
    "variable-not-passed-on": (
        [
            shell(EXPORTS, f"mpirun -np 2 -H a,b -x PATH {BY_MPI}"),
            slurm(EXPORTS, "srun --export=A=1 bash -c 'python t.py --url tcp://$MASTER_ADDR:1'"),
        ],
        [
            shell(EXPORTS, f"mpirun -np 2 -H a,b -x MASTER_ADDR {BY_MPI}"),
            shell(EXPORTS, f"mpirun -np 2 -H a,b {BY_MPI}"),
            shell(EXPORTS, f"mpirun -np 2 -x PATH {BY_MPI}"),
            slurm(EXPORTS, f"mpirun -np 2 -H a,b -x PATH {BY_MPI}"),
            slurm(EXPORTS, "srun --export=ALL,A=1 bash -c 'python t.py --url tcp://$MASTER_ADDR:1'"),
        ],
    ),
    "world-size-disagrees": (
        [
            {"a.pbs": BY_LINES.format("wc -l < $PBS_NODEFILE")},
            {"a.pbs": BY_LINES.format("cat $PBS_NODEFILE | wc -l")},
            {"a.lsf": JSRUN.format(4, 2, 1, OF_RANK.format(2))},
            slurm(f"srun {TWO.replace('nnodes=2', 'nnodes=5')}", asked=SOME),
        ],
        [
            slurm(f"srun {TWO.replace('nnodes=2', 'nnodes=4')}", asked=SOME),
            {"a.pbs": BY_LINES.format("sort -u $PBS_NODEFILE | wc -l")},
            {"a.pbs": BY_LINES.format("wc -l < $PBS_NODEFILE").replace("mpiprocs=4", "mpiprocs=1")},
            {"a.lsf": JSRUN.format(4, 2, 1, OF_RANK.format(4))},
        ],
    ),
}
BY_SRUN = 'import os, torch.distributed as dist\nr = int(os.environ["{}"])\nn = os.environ["SLURM_LOCALID"]\n'

FURTHER: dict[str, tuple[list[Files], list[Files]]] = {
    # sbatch(1); slurm's get_script_buffer; bsub's -g
    "directive-wrong": (
        [
            slurm("srun python t.py", asked="#SBATCH --ntasks_per_node=4"),
            slurm("srun python t.py", asked="#SBATCH --job-name=Big run\n#SBATCH --nodes=2"),
            slurm("srun python t.py", asked="#SBATCH --export=A=1\n#SBATCH --export=B"),
            slurm("srun python t.py", asked="#SBATCH --account \n#SBATCH --time 1:00:00"),
            *(slurm("srun python t.py", asked=f"#SBATCH {words}") for words in REFUSED),
            slurm("srun --ntask-per-node=2 python t.py"),
            slurm("srun -N two python t.py"),
            slurm("srun -nodes=2 python t.py"),
            {"job.sbatch": "#SBATCH --nodes=2\nsrun python t.py\n"},
            {"job.lsf": "#!/bin/bash\n#BSUB -nnodes 2\n#BSUB -g 1\njsrun -n 2 python t.py\n"},
        ],
        [
            slurm("srun python t.py", asked="#SBATCH --ntasks-per-node=4\n#SBATCH --job=a\n#SBATCH --x_y=1"),
            slurm("srun python t.py", asked="#SBATCH --job-name='Big run' # a run\n#SBATCH --nodes 2"),
            slurm("srun python t.py", asked="#SBATCH --exclusive --nodes 2 -J run -n2 --constraint=a\\|b"),
            slurm("srun python t.py", asked="#SBATCH --export=A=1,B\n#SBATCH --time=1:00:00"),
            *(slurm("srun python t.py", asked=f"#SBATCH {words}") for words in TAKEN),
            slurm(
                "srun --ntasks-per-n=2 --kill-on-bad-exit -K1 -lu --container-image=x --mpi pmix python t.py"
            ),
            slurm("srun -N $N -n ${N} --nodes=$((2)) python t.py"),
            slurm("srun python t.py", asked="#SBATCH --exclusive\n#SBATCH --nice\n#SBATCH --account x"),
            {"job.sbatch": "#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n"},
            {"part.sh": "#SBATCH --nodes=2\nsrun python t.py\n"},
            {"job.lsf": "#!/bin/bash\n#BSUB -nnodes 2\n#BSUB -g /team/a\njsrun -n 2 python t.py\n"},
        ],
    ),
    "port-privileged": (
        [shell("deepspeed --master_port 66664 t.py"), shell("torchrun --master_port=80 t.py")],
        [shell("deepspeed --master_port 65535 t.py")],
    ),
    "backslash-before-space": (
        [shell("deepspeed t.py --lr 1 \\ --deepspeed ds.json")],
        [
            shell("deepspeed t.py --lr 1 \\", "  --deepspeed ds.json"),
            shell("deepspeed t.py --say 'a \\ --b'"),
        ],
    ),
    "launcher-argument-misread": (
        [shell("torchrun a.py --cfg a.yamlpython -m torch.distributed.run b.py")],
        [shell("torchrun a.py --cfg a.yaml", "python -m torch.distributed.run b.py")],
    ),
    # NCCL's findInterfaces: a list of the user's replaces ^docker,lo
    "loopback-between-nodes": (
        [slurm("export NCCL_SOCKET_IFNAME=^docker0", f"srun {TWO}")],
        [
            slurm("export NCCL_SOCKET_IFNAME=^docker0,lo", f"srun {TWO}"),
            slurm("export NCCL_SOCKET_IFNAME=^docker0", "srun -N1 -n1 torchrun --standalone t.py"),
            slurm("export GLOO_SOCKET_IFNAME=^docker0", f"srun {TWO}"),
        ],
    ),
    "node-rank-duplicate": (
        [shell(f"{LOCAL.format(0)} &", LOCAL.format(0))],
        [shell(f"{LOCAL.format(0)} &", LOCAL.format(1))],
    ),
    "rendezvous-endpoint-own": (
        [shell(LOCAL.format(0)), shell(LOCAL.format(0), LOCAL.format(1))],
        [shell(f"{LOCAL.format(0)} &", LOCAL.format(1))],
    ),
    # accelerate's config_args.py, launch.py
    "accelerate-config-wrong": (
        [
            {"a.yaml": ACCELERATES + "main_process_port: 99999\n"},
            {"a.yaml": ACCELERATES + "main_process_ip: 2333\n"},
            {"a.yaml": ACCELERATES + "machine_rnk: 0\n"},
            {"a.yaml": ACCELERATES + "num_machines: 2\nmachine_rank: 2\n"},
            {"a.yaml": ACCELERATES + "gpu_ids: '0'\n"},
        ],
        [
            {"a.yaml": ACCELERATES + "main_process_port: null\nmain_process_ip: head\nmachine_rank: 1\n"},
            {"a.yaml": ACCELERATES + "main_process_ip: 10.0.0.1\nmain_process_port: 65535\ngpu_ids: all\n"},
            {"a.yaml": ACCELERATES + "num_machines: 2\nmachine_rank: 1\ngpu_ids: '0'\nmy_own: 1\n"},
        ],
    ),
    # accelerate's _validate_launch_command
    "launcher-option-wrong": (
        [
            shell("accelerate launch --multi_gpu --num_processes 1 t.py"),
            shell("accelerate launch --multi_gpu --use_fsdp t.py"),
        ],
        [
            shell("accelerate launch --multi_gpu --num_processes 2 t.py --cpu"),
            shell("accelerate launch --num_processes 1 t.py"),
        ],
    ),
    "rank-not-set": (
        [{**slurm("srun python t.py", asked=FOUR), "t.py": BY_SRUN.format("RANK")}],
        [{**slurm("srun python t.py", asked=FOUR), "t.py": BY_SRUN.format("SLURM_PROCID")}],
    ),
    # srun: "can't honor --ntasks-per-node set to 1 which doesn't match the requested tasks 8"
    "launcher-started-per-task": (
        [slurm(f"srun --ntasks-per-node=1 {TWO}", asked=FOUR)],
        [
            slurm(f"srun -N 2 --ntasks-per-node=1 {TWO}", asked=FOUR),
            slurm(f"srun -n 2 --ntasks-per-node=1 {TWO}", asked=FOUR),
            slurm(f"srun --ntasks-per-node=1 {TWO}"),
        ],
    ),
}
SHARDED = """kind: Deployment
spec:
  containers:
    - image: ghcr.io/huggingface/text-generation-inference:3.0
      env:
        - {{name: MODEL_ID, value: m}}
        - name: NUM_SHARD
          value: "{}"
{}"""
WRITTEN = 'echo "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node={}\nsrun {}\n" > a.job\nsbatch a.job\n'
VARIABLES: dict[str, tuple[list[Files], list[Files]]] = {
    # sbatch(1), OUTPUT ENVIRONMENT VARIABLES
    "slurm-variable-empty": (
        [
            slurm("srun torchrun --nproc_per_node=$SLURM_GPUS t.py"),
            slurm("if [ -z ${SLURM_GPUS} ]; then exit; fi", "srun python t.py"),
            slurm("srun torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE t.py"),
        ],
        [
            slurm("srun torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE t.py"),
            slurm("srun torchrun --nproc_per_node=$SLURM_GPUS t.py", asked="#SBATCH -N 2 --gpus=8"),
            slurm("srun torchrun --nproc_per_node=$SLURM_GPUS t.py", asked="#SBATCH -N 2"),
            slurm("srun torchrun --nproc_per_node=${SLURM_GPUS:-8} t.py"),
            slurm("SLURM_GPUS=8", "srun torchrun --nproc_per_node=$SLURM_GPUS t.py"),
            slurm('echo "GPUs: $SLURM_GPUS"', "srun python t.py"),
            slurm('if [ -n "$SLURM_GPUS" ]; then N=$SLURM_GPUS; else N=4; fi', "srun python t.py"),
        ],
    ),
    "launcher-variable-misspelt": (
        [
            shell("FORCE_TORCHRUN=1 NPROC_PER_NOD=4 llamafactory-cli train a.yaml"),
            shell("export MASTER_ADR=n0", "torchrun --nnodes=1 t.py"),
        ],
        [
            shell("FORCE_TORCHRUN=1 NPROC_PER_NODE=4 llamafactory-cli train a.yaml"),
            shell("export MASTER_ADR=n0", "torchrun --nnodes=2 --master_addr=$MASTER_ADR t.py"),
            shell("export NODES=2 MASTERPORT=29500", "torchrun --standalone t.py"),
            {**shell("LOCAL_RANKS=0 python t.py"), "t.py": 'import os\nos.environ["LOCAL_RANKS"]\n'},
        ],
    ),
    # bash(1), Command Substitution
    "program-is-an-output": (
        [
            shell("mpirun -np 4 -H a:4 `python train.py --lr 1`"),
            slurm("srun $(torchrun --standalone t.py)"),
        ],
        [
            shell("mpirun -np 4 -H a:4 python train.py --n `python count.py`"),
            slurm("srun $(which torchrun) --standalone t.py"),
            slurm("srun $(python -c 'import sys; print(sys.executable)') t.py"),
            shell("N=`python count.py`"),
        ],
    ),
    "rendezvous-ids-differ": (
        [slurm(f"srun bash -c '{TWO.replace('_id=1', '_id=$NODE_RANK')}'")],
        [
            slurm(f"srun bash -c '{TWO.replace('_id=1', '_id=$SLURM_JOB_ID')}'"),
            shell("torchrun --nnodes=1 --rdzv_id=$NODE_RANK t.py"),
        ],
    ),
    # sbatch(1): with --ntasks, --ntasks-per-node is the most that a node gets; a file that echo writes
    "launcher-started-per-task": (
        [shell(WRITTEN.format(4, TWO).rstrip("\n"))],
        [
            slurm(f"srun {TWO}", asked="#SBATCH --nodes=2 --ntasks=2 --ntasks-per-node=4"),
            shell(WRITTEN.format(1, TWO).rstrip("\n")),
        ],
    ),
    # huggingface/text-generation-inference, README, "A note on Shared Memory"
    "container-keeps-out": (
        [{"a.yaml": SHARDED.format(4, "")}],
        [
            {"a.yaml": SHARDED.format(1, "")},
            {"a.yaml": SHARDED.format(4, "      volumeMounts: [{mountPath: /dev/shm, name: s}]\n")},
            {"a.yaml": SHARDED.format(4, "").replace("text-generation-inference", "own")},
        ],
    ),
    # jsrun(1): -a tasks and -g GPUs of each resource set
    "nproc-exceeds-gpus": (
        [{"a.lsf": "#BSUB -nnodes 1\njsrun -n6 -a6 -c7 -g1 -b packed:7 python t.py\n"}],
        [
            {"a.lsf": "#BSUB -nnodes 1\njsrun -n6 -a1 -c7 -g1 -b packed:7 python t.py\n"},
            {"a.lsf": "#BSUB -nnodes 1\njsrun -n1 -a6 -c7 -g6 python t.py\n"},
            {"a.lsf": "#BSUB -nnodes 1\njsrun -n1 -a6 -c7 -g0 python t.py\n"},
        ],
    ),
}
for _rule, (_wrong, _right) in (*FURTHER.items(), *VARIABLES.items()):
    _before = CASES.get(_rule, ([], []))
    CASES[_rule] = ([*_before[0], *_wrong], [*_before[1], *_right])
