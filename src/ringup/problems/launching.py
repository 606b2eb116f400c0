"""The launch line: what is started how often, and with which words."""

from __future__ import annotations

from ringup.problems.text import shared

LOCAL_RANK_ARGUMENT_REJECTED = shared(
    "local-rank-argument-rejected",
    "error",
    """
    `torch.distributed.launch` passes `--local-rank=N`, the script knows only another spelling or none.

    Why: torch 2.0 changed the underscore to a dash; argument parsers refuse what they do not know.

    Fix: torchrun and `LOCAL_RANK` from the environment, or accept both spellings.

    In logs: `unrecognized arguments: --local-rank=0`.
    """,
)

LAUNCHER_ARGUMENT_MISREAD = shared(
    "launcher-argument-misread",
    "error",
    """
    An option's value was taken for something else (the script, an address).

    Why: launchers take the first word they do not know for the script, and flags that need no value eat none.

    Fix: look at the resolved entrypoint; put the script after `--`, and no value after a flag.

    In logs: `entrypoint : false`, `can't open file '/job/True'`.
    """,
)

RENDEZVOUS_IDS_DIFFER = shared(
    "rendezvous-ids-differ",
    "error",
    """
    Every node made its own run id, so each waits in a rendezvous of its own.

    Why: without an id the c10d backend draws a random one per node.

    Fix: the same `--rdzv-id` on every node.

    In logs: `generated a random run_id` with different numbers on different nodes.
    """,
)

LAUNCHER_STARTED_PER_TASK = shared(
    "launcher-started-per-task",
    "error",
    """
    The launcher itself was started once per Slurm or MPI task, each copy starting all local ranks.

    Why: K copies times the local ranks join one world, and fight for one port.

    Fix: `--ntasks-per-node=1` for launchers, or no launcher and one task per rank.

    In logs: the launcher's banner K times on a node, `worker_count` = K x `world_size`.
    """,
)
