"""Files for nodes that are known: over ssh from one place, or a container on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ringup.errors import LaunchError
from ringup.plan import Plan
from ringup.plan.formats import comment
from ringup.script import Asked
from ringup.script.batch import PINNED, STALE
from ringup.script.words import (
    INTERFACE_NAMES,
    WAIT_ALL,
    describe,
    export,
    exports,
    is_secret,
    node_lines,
    quoted,
    variables,
    waits,
)

SSH_MAIN = """\
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
  # The first that fails ends this script, and the nodes end with it.
  wait_all "${nodes[@]}" || stop "a node failed with $?: the others are ended"
}

# One connection a node.  Its stdin carries the functions, then a line every 2 seconds while this lives.
on() {
  set +o pipefail
  { node_file "$1"; lease; } |
    ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3 \\
      "${hosts[$1]}" 'exec bash -s'
}

lease() {
  while kill -0 "$$" 2>/dev/null && echo; do sleep 2; done
}

node_file() {
  declare -p NPROC NNODES PYTHON MASTER_ADDR MASTER_PORT@SECRETS@
  echo "NODE_RANK=$1 ADDRESS=${addresses[$1]} INTERFACE=${interfaces[$1]}"
  echo "export RUN_ID=$RUN_ID"
  declare -f on_node guarded end_all wait_all
  echo guarded
}

# On the node: the job, and its end when nothing is heard for 20 seconds.  A launcher that is only killed
# leaves its ranks behind, so whatever has this run's RUN_ID in its environment is ended.
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
"""

DOCKER_MAIN = """\
main() {
  if ! [[ ${1:-} =~ ^[0-9]+$ && $1 -lt $NNODES ]]; then stop "usage: $0 NUMBER, the head's is 0"; fi
  NODE_RANK=$1 ADDRESS=${addresses[$1]} INTERFACE=${interfaces[$1]}
  export NODE_RANK ADDRESS INTERFACE
  name=@NAME@-$RUN_ID-$NODE_RANK
  # A client that is killed leaves its container running: it is ended by name.
  trap 'docker kill "$name" >/dev/null 2>&1 || true' EXIT
  options=(
    # Process 1 of the container must hand signals on.
    --rm --init --name "$name"
@GPUS@    # Ranks meet at the machine's own addresses; docker0's are the same on every machine.
    --network=host
    # NCCL and data loaders share memory; docker's own /dev/shm has 64 MB.
    --ipc=host
    # RDMA registers memory.
    --ulimit memlock=-1 --ulimit stack=67108864 --cap-add=IPC_LOCK
    -v "$PWD:$PWD" -w "$PWD"
  )
  [ ! -d /dev/infiniband ] || options+=(--device=/dev/infiniband)
  docker run "${options[@]}" "${env[@]}" "$IMAGE" bash -c "$(declare -f @FUNCTIONS@); on_node"
}
"""


def decided(asked: Asked, kind: str) -> Plan:
    """
    The plan, which these kinds cannot do without.

    Raises LaunchError where no nodes were looked at, or no plan could be made.
    """
    if asked.plan is None:
        raise LaunchError(
            f"a file for {kind} names the nodes and their network, which are not known",
            hint="name nodes that ringup may look at, with -H, or facts saved earlier, with --from",
        )
    return asked.plan


def _nodes(plan: Plan, users: Mapping[str, str]) -> list[str]:
    def row(values: Iterable[str]) -> str:
        return " ".join(quoted(v) for v in values)

    return [
        "# The nodes, and each one's address and card on the network that every pair of them reached.",
        f"hosts=({row(users.get(n.node, n.node) for n in plan.nodes)})",
        f"addresses=({row(n.address for n in plan.nodes)})",
        f"interfaces=({row(n.interface for n in plan.nodes)})",
        f"export NNODES={len(plan.nodes)} NPROC={plan.nodes[0].nproc}",
        "# An address, not a name: names may mean 127.0.1.1 on their own node.  The port was free there.",
        f"export MASTER_ADDR={quoted(plan.master_addr)} MASTER_PORT={plan.master_port}",
    ]


def _even(plan: Plan) -> None:
    """Raises LaunchError where nodes have different numbers of ranks."""
    counts = {n.nproc for n in plan.nodes}
    if len(counts) > 1:
        raise LaunchError(
            f"the nodes have different numbers of ranks ({', '.join(map(str, sorted(counts)))})",
            hint="give all the same with --nproc, or use `ringup run`",
        )


def _own(plan: Plan, asked: Asked) -> list[str]:
    """Variables of single nodes."""
    own: dict[str, list[str]] = {}
    for v in asked.env:
        if v.node is not None and v.name not in INTERFACE_NAMES:
            own.setdefault(v.node, []).extend(export(v))
    if not own:
        return []
    ranks = {n.node: n.rank for n in plan.nodes}
    lines = ["  case $NODE_RANK in"]
    for node, exported in own.items():
        lines += [
            f"  {ranks.get(node, -1)})  # {comment(node)}",
            *(f"    {line}" for line in exported),
            "    ;;",
        ]
    return [*lines, "  esac"]


def _on_node(asked: Asked, plan: Plan, *, inside: bool) -> list[str]:
    """The function every node executes; `inside` a container, variables come from outside."""
    before = [] if inside else [f"  cd {quoted(asked.job.chdir)}"]
    setup = [f"  {asked.job.setup}"] if asked.job.setup else []
    common = variables(asked)
    pinned = PINNED.splitlines() if any(n.interface for n in plan.nodes) else []
    return [
        "# What each node executes.",
        "on_node() {",
        "  set -eu",
        *before,
        *setup,
        *([] if inside else (f"  {line}" for line in exports(v for v in common if not is_secret(v.name)))),
        *_own(plan, asked),
        *pinned,
        *([] if inside else STALE.splitlines()),
        *node_lines(asked),
        "}",
        "",
    ]


def _top(asked: Asked, kind: str, how: str) -> list[str]:
    return [
        "#!/bin/bash",
        f"# {describe(asked)}",
        f"# Written by `ringup script {kind}`, yours to change; the nodes need no ringup.",
        f"# {how}",
        "# shellcheck disable=SC2016,SC2034  # what stands in single quotes is for the nodes to expand",
        "set -euo pipefail",
        "",
        'stop() { echo "$*" >&2; exit 1; }',
        "",
    ]


def ssh(asked: Asked) -> str:
    """A script that starts all nodes over ssh, and ends them when it ends, however that is."""
    plan = decided(asked, "ssh")
    _even(plan)
    secret = [v for v in asked.env if is_secret(v.name)]
    main = SSH_MAIN.replace("@SECRETS@", "".join(f" {v.name}" for v in secret))
    lines = [
        *_top(asked, "ssh", "Start it with: bash FILE"),
        *_nodes(plan, asked.targets),
        f"PYTHON={quoted(asked.python)}",
        *exports(secret),
        *(f"export {v.name}" for v in secret),
        "",
        *main.splitlines(),
        "",
        *WAIT_ALL.splitlines(),
        "",
        *_on_node(asked, plan, inside=False),
        "main",
    ]
    return "\n".join(lines) + "\n"


def docker(asked: Asked) -> str:
    """A script to be started on every node with the node's number; the job runs in a container."""
    plan = decided(asked, "docker")
    _even(plan)
    gpus = "    --gpus=all\n" if asked.gpus else ""
    main = DOCKER_MAIN.replace("@NAME@", asked.name).replace("@GPUS@", gpus)
    main = main.replace("@FUNCTIONS@", "on_node wait_all" if waits(asked) else "on_node")
    lines = [
        *_top(asked, "docker", "Start it on every node: bash FILE NUMBER"),
        *_nodes(plan, asked.targets),
        f"export PYTHON={quoted(asked.python)}",
        f"IMAGE={quoted(asked.image or 'IMAGE')}" + ("" if asked.image else "  # yours: --image"),
        "# The same on all nodes; another run beside this one needs another.",
        f"export RUN_ID={quoted(plan.run_id or 'run')}",
        f"cd {quoted(asked.job.chdir)}",
        *_docker_env(asked),
        "",
        *main.splitlines(),
        "",
        *waits(asked),
        *_on_node(asked, plan, inside=True),
        'main "$@"',
    ]
    return "\n".join(lines) + "\n"


def _docker_env(asked: Asked) -> Sequence[str]:
    """Options that hand variables on by name alone, so that no value stands in a list of arguments."""
    common = variables(asked)
    names = ["NNODES", "NPROC", "MASTER_ADDR", "MASTER_PORT", "PYTHON", "RUN_ID"]
    names += ["NODE_RANK", "ADDRESS", "INTERFACE", *(v.name for v in common)]
    return [
        *exports(common),
        "env=(" + " ".join(f"-e {name}" for name in names) + ")",
    ]
