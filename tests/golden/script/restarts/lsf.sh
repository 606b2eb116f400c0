#!/bin/bash
# main.py by `ringup run` on 2 nodes with 8 ranks each, 1 spare.
# Written by `ringup script lsf`, yours to change; its Python needs ringup.  Submit: bsub <FILE
#BSUB -J mingpt
#BSUB -n 24
# Slots per host, so that the job gets one host per node.
#BSUB -R "span[ptile=8]"
#BSUB -gpu "num=8/host:mode=shared"
#BSUB -o mingpt-%J.out
# After the loss of the first host, where ringup runs, LSF starts the job again ...
#BSUB -r
# ... and after exit code 75: no host is left, or the ranks have saved their state.  How often at most is the
# queue's MAX_JOB_REQUEUE.  93 would fail the same way and is not started again.
#BSUB -Q "75"
# Before the time limit LSF sends a signal only if you ask for it (-wa and -wt), and then to every process.
# Your site's; a second # makes a line a comment.
##BSUB -q NAME
##BSUB -P NAME
#BSUB -W 10:00
# shellcheck disable=SC2016  # the nodes expand the text in single quotes
set -euo pipefail

cd /home/ada/minGPT-ddp
# kept: set by you
export NCCL_DEBUG=WARN
: "${HF_TOKEN:?set it before you start this}"

# It checks the nodes, names the cause of a failure, and decides whether and where to restart.
exec /opt/venv/bin/python -m ringup run --nproc=8 --with=torchrun --python=/opt/venv/bin/python \
  --max-restarts=3 --spares=1 --save-signal=USR1 --save-grace=240.0 --env=NCCL_DEBUG --env=HF_TOKEN -- main.py \
  trainer_config.max_epochs=10
