#!/bin/bash
#SBATCH --job-name=clean
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
set -euo pipefail
HOSTS=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export MASTER_ADDR=${HOSTS[0]}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# one torchrun a node
srun --kill-on-bad-exit=1 --wait=60 --label bash -c 'exec torchrun \
    --nnodes=$SLURM_NNODES --nproc-per-node=8 --node-rank=$SLURM_NODEID \
    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT \
    clean_elastic.py --epochs 3'   # each task reads its own rank
