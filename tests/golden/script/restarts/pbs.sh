#!/bin/bash
# main.py by `ringup run` on 2 nodes with 8 ranks each, 1 spare.
# Written by `ringup script pbs`, yours to change; its Python needs ringup.  Submit: qsub FILE
#PBS -N mingpt
# A chunk is a node on its own machine; one line per node in PBS_NODEFILE.
#PBS -l select=3:ncpus=8:ngpus=8:mpiprocs=1
#PBS -l place=scatter
# With Torque instead: -l nodes=3:ppn=8:gpus=8
#PBS -j oe
# ringup continues without a lost node; otherwise PBS would end the job.  (Torque: leave it out.)
#PBS -W tolerate_node_failures=all
# After the loss of the first node, where ringup runs, PBS starts the job again.  It does so after no exit
# code: submit the file again after 75, and not after 93, which would fail the same way.
#PBS -r y
# PBS sends SIGTERM at the time limit, and SIGKILL the site's kill_delay (10 s) later: too short to save much.
# Your site's; a second # makes a line a comment.
##PBS -q NAME
##PBS -A NAME
#PBS -l walltime=10:00:00
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
