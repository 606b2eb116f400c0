#!/bin/bash
# main.py on 2 nodes with 8 ranks each: one torchrun a node.
# Written by `ringup script ssh`, yours to change; the nodes need no ringup.
# Start it with: bash FILE
# shellcheck disable=SC2016,SC2034  # the nodes expand the text in single quotes
set -euo pipefail

stop() { echo "$*" >&2; exit 1; }

# The nodes, with address and NIC on the network that works between all pairs.
hosts=(node0 node1)
addresses=(90.91.33.64 90.91.33.65)
interfaces=(enp99s0 enp99s0)
export NNODES=2 NPROC=8
# An address, not a name: a name may resolve to 127.0.1.1 on its own node.  The port was free there.
export MASTER_ADDR=90.91.33.64 MASTER_PORT=29500
PYTHON=/opt/venv/bin/python
# kept: set by you
: "${HF_TOKEN:?set it before you start this}"
export HF_TOKEN

main() {
  trap 'exit 130' INT
  trap 'exit 143' TERM
  trap 'exit 129' HUP
  RUN_ID=$(date +%Y%m%d-%H%M%S)-$$
  local rank nodes=()
  for rank in "${!hosts[@]}"; do
    on "$rank" &
    nodes+=("$!")
  done
  # The first failure ends this script, and all nodes with it.
  wait_all "${nodes[@]}" || stop "a node failed with $?: the others are ended"
}

# One connection per node.  Its stdin carries the functions, then a line every 2 seconds while this runs.
on() {
  set +o pipefail
  { node_file "$1"; lease; } |
    ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \
      "${hosts[$1]}" 'exec bash -s'
}

lease() {
  # The end of the connection is not an error here.
  while kill -0 "$$" 2>/dev/null && echo 2>/dev/null; do sleep 2; done
}

node_file() {
  declare -p NPROC NNODES PYTHON MASTER_ADDR MASTER_PORT HF_TOKEN
  printf 'NODE_RANK=%q ADDRESS=%q INTERFACE=%q\n' "$1" "${addresses[$1]}" "${interfaces[$1]}"
  echo "export RUN_ID=$RUN_ID"
  declare -f on_node guarded end_all wait_all
  echo guarded
}

# On the node: run the job, and end it after 20 seconds without a line.  A launcher that is only killed
# leaves its ranks behind, so all processes with this run's RUN_ID in their environment are ended.
guarded() {
  exec 3<&0
  (on_node) </dev/null 3<&- &
  local job=$! code=0
  { while read -r -t 20 -u 3 _; do :; done; end_all; } &
  local heard=$!
  wait "$job" || code=$?
  kill "$heard" 2>/dev/null || true
  end_all
  exit "$code"
}

end_all() {
  local signal file pid found
  for signal in TERM TERM TERM KILL; do
    found=
    for file in /proc/[0-9]*/environ; do
      pid=${file#/proc/}
      if grep -qzx "RUN_ID=$RUN_ID" "$file" 2>/dev/null; then
        found=1
        kill -s "$signal" "${pid%/environ}" 2>/dev/null || true
      fi
    done
    [ -n "$found" ] || return 0
    sleep 1
  done
}

# Until all these processes have ended, or one has failed.  (`wait -n` of bash before 5.3 misses those
# that end before it is called.)
wait_all() {
  local pid pids=("$@") left
  while [ "${#pids[@]}" -gt 0 ]; do
    left=()
    for pid in "${pids[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then left+=("$pid"); else wait "$pid" || return $?; fi
    done
    pids=("${left[@]}")
    sleep 0.2
  done
}

# The commands of each node.
on_node() {
  set -eu
  cd /home/ada/minGPT-ddp
  # kept: set by you
  export NCCL_DEBUG=WARN
  # NCCL and Gloo each choose an interface, maybe another one; yours has priority.
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$INTERFACE}
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$INTERFACE}
  # Variables of an earlier launcher in the shell would change torchrun's defaults.
  unset RANK LOCAL_RANK WORLD_SIZE "${!PET_@}" "${!TORCHELASTIC_@}"
  exec "$PYTHON" -m torch.distributed.run "--nnodes=$NNODES" "--nproc-per-node=$NPROC" \
    "--node-rank=$NODE_RANK" "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" \
    --rdzv-conf=timeout=300 --max-restarts=0 \
    main.py trainer_config.max_epochs=10
}

main
