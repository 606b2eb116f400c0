"""
Job files for Slurm, PBS and LSF: bash, the launcher started on every node of the allocation.

Which nodes they will be nobody knows when the file is written, so the file carries payload/meet.py and
finds, once it runs, the address that all nodes reach, a free port, and each node's own card on that network.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringup.launch.program import payload
from ringup.plan.formats import comment
from ringup.script import Asked
from ringup.script.words import (
    INTERFACE_NAMES,
    WAIT_ALL,
    counts_nodes,
    describe,
    exports,
    node_lines,
    quoted,
    variables,
    waits,
)

STALE = """\
  # What an earlier launcher left in the shell would change torchrun's defaults.
  unset RANK LOCAL_RANK WORLD_SIZE "${!PET_@}" "${!TORCHELASTIC_@}"
"""
PINNED = """\
  # NCCL and Gloo choose an interface each for themselves, and may choose another; yours wins.
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$INTERFACE}
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$INTERFACE}
"""

SLURM_MAIN = """\
main() {
  [ "${SLURM_NTASKS_PER_NODE:-1}" = 1 ] ||
    stop "ntasks-per-node is $SLURM_NTASKS_PER_NODE: @LAUNCHER@ wants one task a node"
  export NNODES=$SLURM_NNODES RUN_ID=$SLURM_JOB_ID
@COUNT@  # From Slurm 22.05 on srun does not take this over from sbatch: every node would have one core.
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  # One task on each node; when one fails, or a minute after one has ended, all are ended.
  srun=(srun --nodes="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=60 --export=ALL)
  MEET=$(meet_program)
  export MEET
  meet "${srun[@]}" bash -c 'exec "$PYTHON" -c "$MEET" join "$SLURM_NODEID" "$@"' join
  # What the nodes need is in the environment, and the function in the command.  The node's own number
  # is known on the node alone: here, in the batch script, it would be 0 for all.
  "${srun[@]}" --label bash -c "$(declare -f @FUNCTIONS@); NODE_RANK=\\$SLURM_NODEID on_node"
}
"""

MEET = """\
# Find the network: an address of this node, the first, that all nodes reach, and a free port there.
# `hostname -i` and the node's name may mean 127.0.1.1 or a card that leads nowhere.
meet() {
  PLACES=$("$PYTHON" -c "$MEET" lead "$NNODES" "$@") || stop "the nodes have found no common network"
  read -r MASTER_ADDR MASTER_PORT <<<"$PLACES"
  export PLACES MASTER_ADDR MASTER_PORT
  echo "ranks meet at $MASTER_ADDR port $MASTER_PORT"
}
"""

NODES_MAIN = """\
main() {
@HOSTS@
  export NNODES=${#hosts[@]} RUN_ID=$@ID@
@COUNT@  # What the other nodes need: this shell's environment and these functions, in a file that they see.
  NODE=$PWD/.job-$RUN_ID.sh
  MEET=$(meet_program)
  export NODE MEET
  trap 'rm -f "$NODE"; jobs -p | xargs -r kill' EXIT
  (umask 077 && : >"$NODE")
  node_file >"$NODE"
  meet bash "$NODE" 0 everywhere join
  node_file >"$NODE"
  everywhere on_node
}

node_file() {
  export -p
  declare -p @ARRAYS@
  declare -f stop on everywhere join on_node wait_all
  # How it is called: RANK FUNCTION ARGUMENTS
  echo 'export NODE_RANK=$1; shift; "$@"'
}

# Run a function on every node; the first that fails ends the job, and with it all others.
everywhere() {
  local rank started=()
  for rank in "${!hosts[@]}"; do
    on "$rank" "$@" &
    started+=("$!")
  done
  wait_all "${started[@]}" || stop "a node failed with $?"
}

join() {
  "$PYTHON" -c "$MEET" join "$NODE_RANK" "$@"
}

@ON@
"""

PBS_HOSTS = """\
  # The job's nodes in order, and for each its first line in the file, which is how pbsdsh counts.
  mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE")
  mapfile -t lines < <(awk '!seen[$0]++ {print NR - 1}' "$PBS_NODEFILE")"""
PBS_ON = """\
# pbsdsh alone would start one for each line of PBS_NODEFILE, so eight a node with mpiprocs=8.
on() {
  exec pbsdsh -n "${lines[$1]}" -- bash "$NODE" "$@"
}"""
LSF_HOSTS = """\
  # The job's hosts in order; the first is this one.
  read -ra hosts <<<"$(awk '{for (i = 1; i < NF; i += 2) printf "%s ", $i}' <<<"$LSB_MCPU_HOSTS")"
  # CSM systems list the launch node first, where this script then runs; it is no compute node.
  case ${hosts[0]} in batch* | login*) stop "${hosts[0]} is a launch node: start this with jsrun" ;; esac"""
LSF_ON = """\
on() {
  exec blaunch "${hosts[$1]}" bash "$NODE" "$@"
}"""


def _head(asked: Asked, kind: str, submit: str, directives: Sequence[str]) -> list[str]:
    return [
        "#!/bin/bash",
        f"# {describe(asked)}",
        f"# Written by `ringup script {kind}`, yours to change; the nodes need no ringup.  Submit: {submit}",
        *directives,
        "# shellcheck disable=SC2016  # what stands in single quotes is for the nodes to expand",
        "set -euo pipefail",
        "",
    ]


def _settings(asked: Asked) -> list[str]:
    """Directory, set-up, interpreter, counts, variables."""
    interface = common_interface(asked)
    lines = [
        'stop() { echo "$*" >&2; exit 1; }',
        "",
        f"cd {quoted(asked.job.chdir)}",
        *([asked.job.setup] if asked.job.setup else []),
        f"export PYTHON={quoted(asked.python)}",
        "# Ranks on each node, one for each GPU.",
        f"export NPROC={asked.nproc}",
    ]
    lines += exports(variables(asked))
    if asked.job.port:
        lines += [
            "# Yours; without it the first free port from 29500 on is taken.",
            f"export MASTER_PORT={asked.job.port}",
        ]
    lines += ["# The card that the ranks meet on; empty: the job finds the fastest that joins all nodes."]
    if interface:
        lines += ["# This one is yours, or joined every pair of the nodes that were looked at."]
    lines += [f"export INTERFACE={quoted(interface)}", ""]
    own = [v for v in asked.env if v.node is not None and v.name not in INTERFACE_NAMES]
    if own:
        lines.insert(-1, "# On single nodes, when the job gets them, this is needed besides:")
        for v in own:
            lines.insert(
                -1, f"#   {comment(v.node or '')}: {v.name}={comment(v.value)}  ({comment(v.because)})"
            )
    return lines


def common_interface(asked: Asked) -> str:
    """The user's own, else the one that the plan chose on every node by one name; "" where there is none."""
    for name in INTERFACE_NAMES:
        own = asked.job.env.get(name, "").lstrip("=")
        if own and not own.startswith("^") and "," not in own:
            return own
    names = {node.interface for node in asked.plan.nodes} if asked.plan else set()
    return next(iter(names)) if len(names) == 1 else ""


def _functions(asked: Asked) -> list[str]:
    """What every node does, how the network is found, and the end that begins it."""
    return [
        "# What each node executes.",
        "on_node() {",
        "  set -eu",
        "  # This node's own address and card on that network.",
        '  read -r _ ADDRESS INTERFACE <<<"$(grep "^$NODE_RANK " <<<"$PLACES")"',
        "  export ADDRESS",
        *PINNED.splitlines(),
        *STALE.splitlines(),
        *node_lines(asked),
        "}",
        "",
        *MEET.splitlines(),
        "",
        "meet_program() {",
        "  cat <<'END_OF_PROGRAM'",
        *payload("meet").splitlines(),
        "END_OF_PROGRAM",
        "}",
        "",
        "main",
    ]


def _count(asked: Asked) -> str:
    """A check where the number of nodes stands in the launcher's words."""
    if not counts_nodes(asked):
        return ""
    return (
        f'  [ "$NNODES" = {asked.nodes} ] || stop "written for {asked.nodes} nodes, this job has $NNODES"\n'
    )


def _option(given: str, line: str, example: str) -> str:
    """A directive, or an example of it that is commented out by one # more."""
    return f"#{line.format(given)}" if given else f"##{line.format(example)}"


def slurm(asked: Asked) -> str:
    """A file for sbatch."""
    directives = [
        f"#SBATCH --job-name={asked.name}",
        f"#SBATCH --nodes={asked.nodes}",
        "# One task a node: it starts all ranks of its node.",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={asked.gpus}"] if asked.gpus else []),
        *([f"#SBATCH --cpus-per-task={asked.cpus}"] if asked.cpus else []),
        f"#SBATCH --output={asked.name}-%j.out",
        "# A node that fails ends the job; Slurm would start it anew by itself.",
        "#SBATCH --no-requeue",
        "# Your site's; a second # makes a line a comment.",
        _option(asked.queue, "SBATCH --partition={}", "NAME"),
        _option(asked.account, "SBATCH --account={}", "NAME"),
        _option(asked.time, "SBATCH --time={}", "01:00:00"),
        *([] if asked.cpus else ["##SBATCH --cpus-per-task=8"]),
        *(f"#SBATCH {option}" for option in asked.options),
    ]
    main = SLURM_MAIN.replace("@LAUNCHER@", asked.job.launcher).replace("@COUNT@", _count(asked))
    functions = "on_node wait_all" if waits(asked) else "on_node"
    main = main.replace("@FUNCTIONS@", functions)
    lines = [
        *_head(asked, "slurm", "sbatch FILE", directives),
        *_settings(asked),
        *main.splitlines(),
        "",
        *waits(asked),
        *_functions(asked),
    ]
    return "\n".join(lines) + "\n"


def pbs(asked: Asked) -> str:
    """A file for qsub of OpenPBS and PBS Pro; the line for Torque is in it."""
    gpus = f":ngpus={asked.gpus}" if asked.gpus else ""
    torque = f":gpus={asked.gpus}" if asked.gpus else ""
    directives = [
        f"#PBS -N {asked.name[:15]}",
        "# A chunk is a node, each on a machine of its own; one line a node in PBS_NODEFILE.",
        f"#PBS -l select={asked.nodes}:ncpus={asked.cpus or asked.nproc}{gpus}:mpiprocs=1",
        "#PBS -l place=scatter",
        f"# With Torque instead: -l nodes={asked.nodes}:ppn={asked.cpus or asked.nproc}{torque}",
        "#PBS -j oe",
        "# Your site's; a second # makes a line a comment.",
        _option(asked.queue, "PBS -q {}", "NAME"),
        _option(asked.account, "PBS -A {}", "NAME"),
        _option(asked.time, "PBS -l walltime={}", "01:00:00"),
        *(f"#PBS {option}" for option in asked.options),
    ]
    return _nodes_file(asked, "pbs", "qsub FILE", directives, PBS_HOSTS, PBS_ON, "hosts lines", "PBS_JOBID")


def lsf(asked: Asked) -> str:
    """A file for bsub."""
    cpus = asked.cpus or asked.nproc
    directives = [
        f"#BSUB -J {asked.name}",
        f"#BSUB -n {asked.nodes * cpus}",
        "# So many slots a host, so that the job has as many hosts as nodes are wanted.",
        f'#BSUB -R "span[ptile={cpus}]"',
        *([f'#BSUB -gpu "num={asked.gpus}/host:mode=shared"'] if asked.gpus else []),
        f"#BSUB -o {asked.name}-%J.out",
        "# Your site's; a second # makes a line a comment.",
        _option(asked.queue, "BSUB -q {}", "NAME"),
        _option(asked.account, "BSUB -P {}", "NAME"),
        _option(asked.time[:-3] if asked.time.count(":") == 2 else asked.time, "BSUB -W {}", "01:00"),
        *(f"#BSUB {option}" for option in asked.options),
    ]
    return _nodes_file(asked, "lsf", "bsub <FILE", directives, LSF_HOSTS, LSF_ON, "hosts", "LSB_JOBID")


def _nodes_file(
    asked: Asked,
    kind: str,
    submit: str,
    directives: Sequence[str],
    hosts: str,
    on: str,
    arrays: str,
    job_id: str,
) -> str:
    """Where a start on every node is a loop over them."""
    main = NODES_MAIN
    for name, text in (
        ("@HOSTS@", hosts),
        ("@COUNT@", _count(asked)),
        ("@ON@", on),
        ("@ARRAYS@", arrays),
        ("@ID@", job_id),
    ):
        main = main.replace(name, text)
    lines = [
        *_head(asked, kind, submit, directives),
        *_settings(asked),
        *main.splitlines(),
        "",
        *WAIT_ALL.splitlines(),
        "",
        *_functions(asked),
    ]
    return "\n".join(lines) + "\n"
