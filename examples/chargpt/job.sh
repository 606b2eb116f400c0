#!/bin/bash
# train.py on 2 nodes with 8 ranks each: one torchrun a node.
# Written by `ringup script slurm`, yours to change.  Submit: sbatch FILE
#SBATCH --job-name=chargpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --output=chargpt-%j.out
#SBATCH --partition=PARTITION
#SBATCH --account=ACCOUNT
#SBATCH --time=1:00:00
# shellcheck disable=SC2016  # the nodes expand the text in single quotes
set -euo pipefail
cd .
export PYTHON=python3 NPROC=8
export NNODES=$SLURM_NNODES RUN_ID=$SLURM_JOB_ID
# All nodes know the first one by its name; the port is this job's own.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=$((20000 + ${RUN_ID//[^0-9]/} % 10000))
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

on_node() {  # on every node; only the node knows its number
  exec "$PYTHON" -m torch.distributed.run "--nnodes=$NNODES" "--nproc-per-node=$NPROC" \
    "--node-rank=$NODE_RANK" "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" \
    --rdzv-conf=timeout=300 --max-restarts=0 \
    train.py config.toml
}
srun --kill-on-bad-exit=1 --wait=60 --label bash -c "$(declare -f on_node); NODE_RANK=\$SLURM_NODEID on_node"
