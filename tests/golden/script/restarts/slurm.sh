#!/bin/bash
# main.py by `ringup run` on 2 nodes with 8 ranks each, 1 spare.
# Written by `ringup script slurm`, yours to change; its Python needs ringup.  Submit: sbatch FILE
#SBATCH --job-name=mingpt
#SBATCH --nodes=3
# One task per node: it starts all ranks of its node.
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --output=mingpt-%j.out
# ringup continues without a lost node; otherwise Slurm would end the job.
#SBATCH --no-kill
# If the first node is lost, where ringup runs, or the job is preempted, Slurm starts it again; this file
# does so after exit code 75 ...
#SBATCH --requeue
# ... and the output continues in the same file.
#SBATCH --open-mode=append
# Before the time limit this script gets SIGUSR1: time for the ranks to save, and to end.
#SBATCH --signal=B:USR1@300
# Your site's; a second # makes a line a comment.
##SBATCH --partition=NAME
##SBATCH --account=NAME
#SBATCH --time=10:00:00
##SBATCH --cpus-per-task=8
# shellcheck disable=SC2016  # the nodes expand the text in single quotes
set -euo pipefail

cd /home/ada/minGPT-ddp
# kept: set by you
export NCCL_DEBUG=WARN
: "${HF_TOKEN:?set it before you start this}"

main() {
  local code=0 ringup
  # It checks the nodes, names the cause of a failure, and decides whether and where to restart.
  set -m  # else the shell makes it ignore SIGINT
  /opt/venv/bin/python -m ringup run --nproc=8 --with=torchrun --python=/opt/venv/bin/python \
    --max-restarts=3 --spares=1 --save-signal=USR1 --save-grace=240.0 --env=NCCL_DEBUG --env=HF_TOKEN -- main.py \
    trainer_config.max_epochs=10 &
  ringup=$!
  set +m
  # Slurm sends SIGTERM to every process of a job that it ends, other signals only to this shell.
  trap : TERM
  trap 'kill -INT "$ringup" || true' INT
  trap 'kill -USR1 "$ringup" || true' USR1
  # `wait` alone may miss a signal that comes close behind another.
  while kill -0 "$ringup" 2>/dev/null; do sleep 1 || true; done
  wait "$ringup" || code=$?
  # 75: no node is left, or the ranks have saved their state.  93 would fail again and is not started again.
  if [ "$code" = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] &&
    [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then  # it was not cancelled
    scontrol requeue "$SLURM_JOB_ID" || true
  fi
  exit "$code"
}

main
