"""Launch files for each rule on schedulers, shells and operators: traps, and what looks alike and works."""

from __future__ import annotations

Files = dict[str, str]
TORCHRUN = (
    "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_id=1 --rdzv_endpoint=$H:29500 t.py"
)
STATIC = "torchrun --nnodes={} --node_rank={} --nproc_per_node=8 --master_addr=n0 --master_port=29500 t.py"
ASKED = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
NAMES = "scontrol show hostnames $SLURM_JOB_NODELIST"


def slurm(*lines: str, asked: str = ASKED) -> Files:
    return {"job.sh": "\n".join(["#!/bin/bash", asked.rstrip("\n"), *lines, ""])}


def pbs(*lines: str) -> Files:
    return {"job.pbs": "\n".join(["#!/bin/bash", "#PBS -l select=2:ngpus=8:mpiprocs=1", *lines, ""])}


def shell(*lines: str) -> Files:
    return {"a.sh": "\n".join([*lines, ""])}


def loop(start: str, hosts: str = "n0 n1", count: str = "i=$((i+1))", begin: str = "i=0") -> Files:
    return shell(begin, f"for h in {hosts}; do", start, count, "done", "wait")


def script(code: str) -> str:
    return f"import torch.distributed as dist\n{code}\ndist.destroy_process_group()\n"


POD = "kind: Job\nspec: {{containers: [{{command: [bash, -c, '{}']}}]}}\n"
VOLCANO = """kind: Job
spec:
  minAvailable: {}
  tasks:
    - {{name: a, replicas: 1, template: {{spec: {{containers: [{{command: [torchrun, t.py]}}]}}}}}}
    - {{name: b, replicas: 3, minAvailable: {}, template: {{spec: {{containers: []}}}}}}
"""
KUBEFLOW = """kind: PyTorchJob
spec:
  runPolicy: {{schedulingPolicy: {{minAvailable: {}}}}}
  pytorchReplicaSpecs: {{Master: {{replicas: 1}}, Worker: {{replicas: 3}}}}
"""
STATEFUL = """kind: Service
metadata: {{name: {}}}
spec: {{clusterIP: None, selector: {{app: t}}}}
---
kind: StatefulSet
metadata: {{name: t}}
spec:
  serviceName: {}
  template:
    metadata: {{labels: {{app: t, more: x}}}}
    spec: {{containers: [{{command: [torchrun, --nnodes=2, --node_rank=$(R), --master_addr={}, t.py]}}]}}
"""
JOBSET = """kind: JobSet
metadata: {{name: v}}
spec:
  network: {{{}}}
  replicatedJobs:
    - name: node
      replicas: 2
      template:
        spec:
          template:
            spec: {{containers: [{{command: [torchrun, --nnodes=2, --node_rank=$(R), --master_addr={}, t]}}]}}
"""
COMPOSE = """services:
  a: {{command: torchrun --nnodes=2 --node_rank=0 --master_addr=a t.py}}
  b: {{command: torchrun --nnodes=2 --node_rank=1 --master_addr=a t.py, depends_on: {}}}
  data: {{command: python prepare.py}}
"""
AFTER = """kind: JobSet
spec:
  replicatedJobs:
    - {{name: a, template: {{spec: {{command: [torchrun, --nnodes=2, --node_rank=0, --master_addr=h, t]}}}}}}
    - name: b
      dependsOn: [{{name: a, status: {}}}]
      template: {{spec: {{command: [torchrun, --nnodes=2, --node_rank=1, --master_addr=h, t]}}}}
"""

CASES: dict[str, tuple[list[Files], list[Files]]] = {
    # Slurm: src/sbatch/opt.c reads a script's lines up to the first that is no comment, src/sbatch/sbatch.c
    # refuses CR LF; sbatch(1): "no variable expansion".  PBS: qsub(1B), "directives".
    "dos-line-ends": (
        [
            {"job.sh": slurm("H=n", f"srun {TORCHRUN}")["job.sh"].replace("\n", "\r\n")},
            {"a.sh": "torchrun \\\r\n  --standalone t.py\r\n"},
        ],
        [
            slurm("H=n", f"srun {TORCHRUN}"),
            {"a.yaml": "run: |\r\n  torchrun t.py\r\n"},
            {"data.sh": "cp a b\r\n"},
        ],
    ),
    "variable-in-directive": (
        [
            slurm(f"srun {TORCHRUN}", asked=ASKED.replace("nodes=2", "nodes=$N")),
            slurm(f"srun {TORCHRUN}", asked="#SBATCH -N ${N}"),
            slurm(f"srun {TORCHRUN}", asked=ASKED + "#SBATCH --output=$HOME/%j.log"),
            {"a.pbs": "#PBS -l select=$N:ngpus=8\nmpiexec python t.py\n"},
            {"a.lsf": "#BSUB -n $N\nblaunch python t.py\n"},
            shell("N=2", "sbatch <<'EOF'", "#!/bin/bash", "#SBATCH --nodes=$N", f"srun {TORCHRUN}", "EOF"),
        ],
        [
            slurm(f"srun {TORCHRUN}"),
            slurm(f"srun {TORCHRUN}", asked=ASKED + "#SBATCH --job-name=$USER\n##SBATCH --nodes=$N"),
            shell("N=2", "sbatch <<EOF", "#!/bin/bash", "#SBATCH --nodes=$N", f"srun {TORCHRUN}", "EOF"),
            shell("sbatch --nodes=$N job.sh"),
        ],
    ),
    "directive-behind-command": (
        [
            {"job.sh": f"#!/bin/bash\nN=2\n{ASKED}srun {TORCHRUN}\n"},
            {"a.pbs": "#!/bin/bash\nset -e\n#PBS -l select=2\nmpiexec python t.py\n"},
            slurm("set -e", "#SBATCH --ntasks-per-core=1", f"srun {TORCHRUN}"),
        ],
        [
            {"job.sh": f"#!/bin/bash\n# two nodes\n\n{ASKED}\n# more\n#SBATCH -c 4\nsrun {TORCHRUN}\n"},
            shell("N=2", f"cat > job.sh <<EOF\n#!/bin/bash\n{ASKED}srun {TORCHRUN}\nEOF", "sbatch job.sh"),
            slurm(f"srun {TORCHRUN}", "##SBATCH --nodes=4"),
            {"a.sh": f"cat job.sh\n#!/bin/bash\n{ASKED}srun {TORCHRUN}\n"},
            {"a.sh": "#!/bin/bash\n{% if n %}\n#SBATCH --nodes={{ n }}\n{% endif %}\nsrun torchrun t.py\n"},
        ],
    ),
    "background-not-waited-for": (
        [
            slurm("H=n", f"srun {TORCHRUN} &", "echo started"),
            slurm(
                "go() {", f"  srun -N1 -w $1 {STATIC.format(2, '$2')} &", "}", "go n0 0", "go n1 1", "date"
            ),
            pbs(f"mpiexec --ppn 1 {TORCHRUN} > log 2>&1 &"),
            {"a.yaml": f"kind: Job\nspec: {{command: [bash, -c, '{STATIC.format(1, 0)} &']}}\n"},
        ],
        [
            slurm("H=n", f"srun {TORCHRUN} &", "wait"),
            slurm("H=n", f"srun {TORCHRUN} &", "wait $!"),
            slurm("H=n", "trap 'wait' EXIT", f"srun {TORCHRUN} &"),
            slurm("H=n", f"srun {TORCHRUN} &", "while squeue -s -j $SLURM_JOB_ID; do sleep 9; done"),
            slurm("H=n", "nvidia-smi -l 5 > log &", f"srun {TORCHRUN}"),
            slurm("H=n", f"srun {TORCHRUN} &", "python watch.py"),
            shell("H=n", f"nohup {TORCHRUN} &"),
        ],
    ),
    "nodes-started-in-turn": (
        [
            loop(f'ssh $h "{STATIC.format(2, "$i")}"'),
            loop(f"srun -N1 -w $h {STATIC.format(2, '$i')}"),
            loop(f"blaunch $h {STATIC.format(2, '$i')}"),
            loop(f"kubectl exec $h -- {STATIC.format(2, '$i')}"),
            loop('ssh $h "MASTER_ADDR=n0 WORLD_SIZE=2 RANK=$i python t.py"'),
        ],
        [
            loop(f'ssh $h "{STATIC.format(2, "$i")}" &'),
            loop(f'ssh -f $h "{STATIC.format(2, "$i")}"'),
            loop(f'ssh $h "nohup {STATIC.format(2, "$i")} > log 2>&1 &"'),
            loop(f'ssh $h "docker run -d --network host img {STATIC.format(2, "$i")}"'),
            loop(f"ssh $h \"tmux new -d '{STATIC.format(2, '$i')}'\""),
            loop(f'( ssh $h "{STATIC.format(2, "$i")}" ) &'),
            loop(f'ssh $h "{STATIC.format(2, "$i")}" 2>&1 | tee $h.log &'),
            loop(f'ssh $h "{STATIC.format(1, 0)}"'),
            loop(f"ssh $h bash -s <<EOF &\n{STATIC.format(2, '$i')}\nEOF"),
            loop(f"srun {TORCHRUN} --lr $h", "1e-3 1e-4"),
        ],
    ),
    # ray 2.x scripts/scripts.py: `--block` sleeps until the processes end.
    "command-never-returns": (
        [
            slurm(
                "srun -N1 -w $H ray start --head --block",
                "srun ray start --address=$H --block &",
                "python t.py",
            ),
            slurm("srun bash -c 'ray start --head --block'", "python train.py"),
            shell("tensorboard --logdir runs", "torchrun t.py"),
            shell("nvidia-smi --loop=5 > gpu.log", "torchrun t.py"),
            shell("tail -f log", "torchrun t.py"),
        ],
        [
            slurm("srun -N1 -w $H ray start --head --block &", "sleep 9", "python train.py"),
            slurm("srun -N1 -w $H ray start --head", "python train.py"),
            shell(
                "if [ $R = 0 ]; then", "ray start --head", "python t.py", "else", "ray start --block", "fi"
            ),
            shell("tensorboard --logdir runs > log 2>&1 &", "torchrun t.py"),
            shell("torchrun t.py", "tail -f log"),
            shell("nvidia-smi", "tail -n 3 log", "sleep 5", "torchrun t.py"),
            shell("( ray start --head --block ) &", "torchrun t.py"),
            shell(
                "docker run -d img ray start --head --block",
                "ray start --address=h --block &",
                "torchrun t.py",
            ),
            shell("tmux new -d tensorboard --logdir runs", "nvidia-smi dmon -c 3", "torchrun t.py"),
        ],
    ),
    # bash(1), "Compound Commands": ((...)) ends with 1 where the value is 0; since 4.1 `set -e` looks at it.
    "zero-ends-script": (
        [
            {"a.sh": "set -e\n" + loop(f'ssh $h "{STATIC.format(2, "$i")}" &', count="((i++))")["a.sh"]},
            shell("#!/bin/bash -eu", "i=0", "let i++", "torchrun t.py"),
            shell("set -o errexit", "i=1", "((i--))", "((i--))", "torchrun t.py"),
            shell("set -euo pipefail", "((n = 0))", "torchrun t.py"),
        ],
        [
            loop(f'ssh $h "{STATIC.format(2, "$i")}" &', count="((i++))"),
            shell("set -e", "i=0", "((i++)) || true", "((i++))", "torchrun t.py"),
            shell("set -e", "i=0", "((++i))", "((i += 1))", "torchrun t.py"),
            shell("set -e", "set +e", "i=0", "((i++))", "torchrun t.py"),
            shell("set -e", "i=0", "if ((i++)); then date; fi", "i=$((i-0))", "torchrun t.py"),
            shell("set -e", "i=$(ls | wc -l)", "((i++))", "torchrun t.py"),
            shell("set -e", "(( i > 0 )) && date", "torchrun t.py"),
            shell("set -e", "up() {", "((i++))", "}", "i=0", "up || true", "torchrun t.py"),
        ],
    ),
    "variable-not-passed-on": (
        [
            slurm("export N=2", f"srun apptainer exec --cleanenv a.sif bash -c '{STATIC.format('$N', 0)}'"),
            slurm(f"srun apptainer exec -C a.sif bash -c '{STATIC.format('$SLURM_NNODES', 0)}'"),
            shell("export N=2", f"docker run --network host img bash -c '{STATIC.format('$N', 0)}'"),
            shell("export N=2", f"ssh n1 '{STATIC.format('$N', 0)}'"),
            shell("N=2", f"pdsh -w n1,n2 '{STATIC.format('${N}', '$(hostname | tail -c 1)')}'"),
            slurm("export N=2", f"srun --export=NONE bash -c '{STATIC.format('$N', '$SLURM_NODEID')}'"),
            shell("export N=2", f"env -i bash -c '{STATIC.format('$N', 0)}'"),
        ],
        [
            slurm(
                "export N=2", f"srun apptainer exec a.sif bash -c '{STATIC.format('$N', '$SLURM_NODEID')}'"
            ),
            slurm(
                "N=2", f"srun apptainer exec --cleanenv --env N=$N a.sif bash -c '{STATIC.format('$N', 0)}'"
            ),
            slurm(
                "export APPTAINERENV_N=2",
                f"srun apptainer exec --cleanenv a.sif bash -c '{STATIC.format('$N', 0)}'",
            ),
            shell("export N=2", f"docker run --network host -e N img bash -c '{STATIC.format('$N', 0)}'"),
            shell("export N=2", f"docker run --net host --env-file e img bash -c '{STATIC.format('$N', 0)}'"),
            shell("N=2", f'ssh n1 "{STATIC.format("$N", 0)}"'),
            shell(f"ssh n1 'N=2; {STATIC.format('$N', 0)}'"),
            slurm(f"srun --export=NONE bash -c '{STATIC.format('$SLURM_NNODES', '$SLURM_NODEID')}'"),
            slurm("N=2", f"srun --export=ALL,N=$N bash -c '{STATIC.format('$N', '$SLURM_NODEID')}'"),
            shell("export N=2", f"docker exec c bash -c '{STATIC.format('$N', 0)}'"),
            shell("N=2", f"ssh n1 '. ./settings.sh; {STATIC.format('$N', 0)}'"),
        ],
    ),
    "variable-of-subshell": (
        [
            slurm(f"{NAMES} | while read h; do H=$h; done", f"srun {TORCHRUN}"),
            slurm(f"{NAMES} | head -n1 | read H", f"srun {TORCHRUN}"),
            slurm(f"( H=$({NAMES} | head -n1) )", f"srun {TORCHRUN}"),
        ],
        [
            slurm(f"while read h; do H=$h; done < <({NAMES})", f"srun {TORCHRUN}"),
            slurm("shopt -s lastpipe", f"{NAMES} | head -n1 | read H", f"srun {TORCHRUN}"),
            slurm(f"H=$({NAMES} | head -n1)", "date | while read h; do H=$h; done", f"srun {TORCHRUN}"),
            slurm(f"{NAMES} | head -n1 | {{ read H; srun {TORCHRUN}; }}"),
            {"a.sh": "#!/bin/zsh\n" + f"{NAMES} | head -n1 | read H\nsrun {TORCHRUN}\n"},
        ],
    ),
    # sbatch(1), qsub(1B), bsub(1): the variables that each sets.
    "variable-of-other-scheduler": (
        [
            pbs("cd $PBS_O_WORKDIR", f"mpiexec --ppn 1 {STATIC.format('$SLURM_NNODES', '$PMI_RANK')}"),
            pbs("N=$SLURM_JOB_NUM_NODES", "cd $PBS_O_WORKDIR", f"mpiexec {STATIC.format('$N', '$PMI_RANK')}"),
            slurm(f"srun {STATIC.format('$PBS_NUM_NODES', '0')}"),
            {"a.yaml": POD.format(STATIC.format(2, "$SLURM_NODEID"))},
        ],
        [
            slurm(f"srun bash -c '{STATIC.format('$SLURM_NNODES', '$SLURM_NODEID')}'"),
            pbs("N=${SLURM_NNODES:-2}", f"mpiexec --ppn 1 {STATIC.format('$N', '$PMI_RANK')}"),
            pbs('[ -n "$SLURM_NNODES" ] && N=$SLURM_NNODES', f"mpiexec {STATIC.format('$N', '$PMI_RANK')}"),
            pbs("#SBATCH --nodes=2", f"mpiexec --ppn 1 {STATIC.format('$SLURM_NNODES', '$PMI_RANK')}"),
            shell(f"srun {STATIC.format('$SLURM_NNODES', '$SLURM_NODEID')}"),
            pbs("SLURM_NNODES=2", f"mpiexec --ppn 1 {STATIC.format('$SLURM_NNODES', '$PMI_RANK')}"),
            {"a.yaml": f"run: srun {STATIC.format('$SLURM_NNODES', '$SLURM_NODEID')}\n"},
        ],
    ),
    # torch 2.13 distributed/rendezvous.py: _env_rendezvous_handler.
    "master-address-not-exported": (
        [
            {
                **slurm("MASTER_ADDR=n0", "srun -n 16 python t.py"),
                "t.py": script("dist.init_process_group()"),
            },
            {
                **slurm("MASTER_ADDR=n0", "MASTER_PORT=1", "srun -n 16 python t.py"),
                "t.py": script("dist.init_process_group('nccl', init_method='env://', rank=r, world_size=w)"),
            },
        ],
        [
            {
                **slurm("export MASTER_ADDR=n0", "srun -n 16 python t.py"),
                "t.py": script("dist.init_process_group()"),
            },
            {
                **slurm("set -a", "MASTER_ADDR=n0", "srun -n 16 python t.py"),
                "t.py": script("dist.init_process_group()"),
            },
            {
                **slurm("MASTER_ADDR=n0 srun -n 16 python t.py"),
                "t.py": script("dist.init_process_group()"),
            },
            {
                **slurm("MASTER_ADDR=n0", "srun -n 16 python t.py --url tcp://$MASTER_ADDR:1"),
                "t.py": script("dist.init_process_group('nccl', init_method=url)"),
            },
            {
                **slurm("MASTER_ADDR=n0", "srun -n 16 python t.py"),
                "t.py": script("os.environ.setdefault('MASTER_ADDR', a)\ndist.init_process_group()"),
            },
        ],
    ),
    # Volcano: pkg/webhooks/admission/jobs/validate/admit_job.go.
    "gang-larger-than-job": (
        [
            {"a.yaml": VOLCANO.format(5, 3)},
            {"a.yaml": VOLCANO.format(4, 4)},
            {"a.yaml": KUBEFLOW.format(5)},
        ],
        [{"a.yaml": VOLCANO.format(4, 3)}, {"a.yaml": KUBEFLOW.format(4)}],
    ),
    # Kubernetes: concepts/services-networking/dns-pod-service; JobSet v1alpha2: spec.network.
    "pod-name-unknown": (
        [
            {"a.yaml": STATEFUL.format("t", "t-head", "t-0.t-head")},
            {"a.yaml": STATEFUL.format("t", "t", "t-0.t-head")},
            {"a.yaml": STATEFUL.format("t", "t", "t-0.u.ns.svc.cluster.local")},
            {"a.yaml": JOBSET.format("subdomain: net", "v-node-0-0.v")},
            {"a.yaml": JOBSET.format("subdomain: net", "v-other-0-0.net")},
        ],
        [
            {"a.yaml": STATEFUL.format("t-head", "t-head", "t-0.t-head")},
            {"a.yaml": STATEFUL.format("t", "t", "t-0.t.ns.svc.cluster.local")},
            {"a.yaml": STATEFUL.format("t", "t", "10.0.0.1")},
            {"a.yaml": STATEFUL.format("t", "u", "t-0.u"), "b.yaml": "kind: Service\nmetadata:\n  name: u\n"},
            {"a.yaml": STATEFUL.format("t", "u", "t-0.u").replace("{app: t}", "{app: other}", 1)},
            {"a.yaml": JOBSET.format("subdomain: net", "v-node-0-0.net")},
            {"a.yaml": JOBSET.format("enableDNSHostnames: true", "v-node-0-0.v")},
        ],
    ),
    "rank-starts-after-another": (
        [
            {"a.yaml": COMPOSE.format("{a: {condition: service_completed_successfully}}")},
            {"a.yaml": AFTER.format("Complete")},
        ],
        [
            {"a.yaml": COMPOSE.format("[a]")},
            {"a.yaml": COMPOSE.format("{a: {condition: service_started}}")},
            {"a.yaml": COMPOSE.format("{data: {condition: service_completed_successfully}}")},
            {"a.yaml": AFTER.format("Ready")},
        ],
    ),
    # docs.docker.com/engine/network/drivers/bridge.
    "container-on-own-network": (
        [
            shell(f"docker run --gpus all --ipc=host img {STATIC.format(2, '$R')}"),
            loop(f'ssh $h "podman run --gpus all img {STATIC.format(2, "$i")}" &'),
            shell("C=$(docker run -d --gpus all img sh)", f"docker exec $C {STATIC.format(2, '$R')}"),
            shell("docker create --name c img sh", f"docker exec c {STATIC.format(2, '$R')}"),
        ],
        [
            shell(f"docker run --network host --ipc=host img {STATIC.format(2, '$R')}"),
            shell(f"docker run --net=host --ipc=host img {STATIC.format(2, '$R')}"),
            shell(f"docker run --network overlay img {STATIC.format(2, '$R')}"),
            shell(f"docker run -p 29500:29500 img {STATIC.format(2, '$R')}"),
            shell(f"docker run --ipc=host img {STATIC.format(1, 0)}"),
            shell(f"docker run img {STATIC.format(2, '$R').replace('n0', '172.17.0.2')}"),
            shell(f"docker exec c {STATIC.format(2, '$R')}"),
            shell("C=$(docker run -d --net=host img sh)", f"docker exec $C {STATIC.format(2, '$R')}"),
            shell("docker run -d --name d img sh", f"docker exec c {STATIC.format(2, '$R')}"),
        ],
    ),
    # NCCL: src/bootstrap.cc takes its address from the same list as the sockets.
    "loopback-between-nodes": (
        [
            slurm("export NCCL_SOCKET_IFNAME=lo", f"srun {TORCHRUN}"),
            slurm("export NCCL_SOCKET_IFNAME==lo", f"srun {TORCHRUN}"),
            slurm("export GLOO_SOCKET_IFNAME=lo", f"srun {TORCHRUN} --backend gloo"),
        ],
        [
            slurm("export NCCL_SOCKET_IFNAME=^lo,docker0", f"srun {TORCHRUN}"),
            slurm("export NCCL_SOCKET_IFNAME=lo", "torchrun --standalone --nproc_per_node=8 t.py"),
            slurm("NCCL_SOCKET_IFNAME=lo", f"srun {TORCHRUN}"),
            slurm("export NCCL_SOCKET_IFNAME=lo0", f"srun {TORCHRUN}"),
            slurm("export NCCL_SOCKET_IFNAME=lo", STATIC.format(2, "$1").replace("n0", "localhost")),
        ],
    ),
    # torch 2.13 distributed/run.py: training_script_args is argparse.REMAINDER.
    "launcher-option-behind-script": (
        [
            shell("torchrun t.py --nproc_per_node=8"),
            shell("torchrun t.py cfg.yaml --standalone --nproc-per-node 8"),
            shell("accelerate launch t.py --num_machines 2 --machine_rank 0"),
            shell("python -m torch.distributed.launch t.py --nproc_per_node 8 --nnodes 2"),
        ],
        [
            shell("torchrun --nproc_per_node=8 t.py --nproc_per_node_check 8"),
            shell("torchrun --nproc_per_node=8 t.py --nnodes 1"),
            {**shell("torchrun t.py --nproc_per_node=8"), "t.py": "p.add_argument('--nproc_per_node')\n"},
            shell("torchrun $OPTIONS t.py --nproc_per_node=8"),
            shell("export PET_NPROC_PER_NODE=8", "torchrun t.py --nnodes 2"),
            shell("python t.py --nproc_per_node 8"),
        ],
    ),
}
