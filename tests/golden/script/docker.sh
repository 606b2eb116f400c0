#!/bin/bash
# main.py on 2 nodes with 8 ranks each: one torchrun a node.
# Written by `ringup script docker`, yours to change; the nodes need no ringup.
# Start it on every node: bash FILE NUMBER
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
export PYTHON=/opt/venv/bin/python
IMAGE=registry.example/torch:2.13
# The same on all nodes; a parallel run needs a different one.
export RUN_ID=job
cd /home/ada/minGPT-ddp
# kept: set by you
export NCCL_DEBUG=WARN
: "${HF_TOKEN:?set it before you start this}"
env=(-e NNODES -e NPROC -e MASTER_ADDR -e MASTER_PORT -e PYTHON -e RUN_ID -e NODE_RANK -e ADDRESS -e INTERFACE -e NCCL_DEBUG -e HF_TOKEN)

main() {
  if ! [[ ${1:-} =~ ^[0-9]+$ && $1 -lt $NNODES ]]; then stop "usage: $0 NUMBER, the head's is 0"; fi
  NODE_RANK=$1 ADDRESS=${addresses[$1]} INTERFACE=${interfaces[$1]}
  export NODE_RANK ADDRESS INTERFACE
  name=mingpt-$RUN_ID-$NODE_RANK
  # A killed client leaves its container running, so it is ended by name.
  trap 'docker kill "$name" >/dev/null 2>&1 || true' EXIT
  options=(
    # Process 1 of the container must forward signals.
    --rm --init --name "$name"
    --gpus=all
    # Ranks use the machine's own addresses; docker0's are the same on every machine.
    --network=host
    # NCCL and data loaders share memory; docker's own /dev/shm has 64 MB.
    --ipc=host
    # RDMA registers memory.
    --ulimit memlock=-1 --ulimit stack=67108864 --cap-add=IPC_LOCK
    -v "$PWD:$PWD" -w "$PWD"
  )
  [ ! -d /dev/infiniband ] || options+=(--device=/dev/infiniband)
  docker run "${options[@]}" "${env[@]}" "$IMAGE" bash -c "$(declare -f on_node); on_node"
}

# The commands of each node.
on_node() {
  set -eu
  # NCCL and Gloo each choose an interface, maybe another one; yours has priority.
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$INTERFACE}
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$INTERFACE}
  exec "$PYTHON" -m torch.distributed.run "--nnodes=$NNODES" "--nproc-per-node=$NPROC" \
    "--node-rank=$NODE_RANK" "--master-addr=$MASTER_ADDR" "--master-port=$MASTER_PORT" \
    --rdzv-conf=timeout=300 --max-restarts=0 \
    main.py trainer_config.max_epochs=10
}

main "$@"
