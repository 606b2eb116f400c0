"""How ranks meet: store, ports, names, counts, launch lines."""

from __future__ import annotations

from ringup.problems.text import shared

PORT_IN_USE = shared(
    "port-in-use",
    "error",
    """
    Another process holds the port the store or launcher wants to listen on.

    Why: rank 0 cannot open the store, every other rank waits its full time-out and
    blames the network.  With c10d the busy port is even joined in silence.

    Fix: end the listener if it is a leftover of our own (`ringup clean`), else choose another port.

    In logs: `EADDRINUSE`, `errno: 98 - Address already in use`.
    """,
)
HOSTNAME_UNRESOLVABLE_FROM_PEER = shared(
    "hostname-unresolvable-from-peer",
    "error",
    """
    A host name the job uses is not known on one of the nodes, or names an address its owner does
    not have.

    Why: the rendezvous endpoint, MASTER_ADDR and Gloo's own address all go through name resolution.

    Fix: put the name into the hosts file or DNS of every node, or use the IP address.

    In logs: `gai error: -2 - Name or service not known`, `socket.gaierror`.
    """,
)
HOSTNAME_RESOLVES_TO_LOOPBACK = shared(
    "hostname-resolves-to-loopback",
    "error",
    """
    A node's own name maps to 127.x or to an address it does not have, which no other node can use.

    Why: Gloo binds the address of the host name; peers then dial their own loopback and are refused.

    Fix: `GLOO_SOCKET_IFNAME=<the interface all nodes share>` on every process, or repair the hosts file.

    In logs: `connectFullMesh failed ... remote=[127.0.0.1]`, `Using the loopback address as fallback`,
    `rp != nullptr. Unable to find address for: HOST`.
    """,
)
NODE_RANK_DUPLICATE = shared(
    "node-rank-duplicate",
    "error",
    """
    Two nodes or processes carry the same rank.

    Why: the meeting place counts one of them twice and waits for ever for the other.

    Fix: a distinct node rank per node; look at which variable the launcher really reads.

    In logs: `rank 1 of 3 ranks has already checked in`, one node rank on two hosts.
    """,
)
WORLD_SIZE_DISAGREES = shared(
    "world-size-disagrees",
    "error",
    """
    The nodes computed different world sizes, or one that local processes times nodes cannot give.

    Why: every side waits for a number of peers that never comes.

    Fix: the same process count and node count on every node, or a launcher that takes a count per node.

    In logs: `mismatch in rank count from procs 2 : 3`, `world_size=` that differs.
    """,
)
SSH_NOT_PASSWORDLESS = shared(
    "ssh-not-passwordless",
    "error",
    """
    The launcher cannot log in to a node (its own included) without being asked.

    Why: launchers that start remote processes over ssh run without a terminal; a question is a refusal.

    Fix: a key on every host including localhost, host keys accepted once; test with `ssh -o
    BatchMode=yes HOST true`.

    In logs: `Permission denied (publickey`, `Host key verification failed`, ssh's exit code 255.
    """,
)
PYTHON_OR_LAUNCHER_MISSING = shared(
    "python-or-launcher-missing",
    "error",
    """
    The interpreter, launcher or working directory of the head does not exist on another node.

    Why: a non-interactive remote shell has another PATH, and paths of one node need not exist on
    the next.

    Fix: the same paths on every node (shared file system or image), an absolute interpreter, `--python`.

    In logs: `torchrun: command not found`, `No such file or directory` after `cd`, `No module
    named 'torch'`.
    """,
)
ORPHAN_OF_EARLIER_RUN = shared(
    "orphan-of-earlier-run",
    "error",
    """
    Processes of an earlier run live on after their launcher.

    Why: they hold the port and GPU memory, and a new run may even join their store.

    Fix: end their process group or cgroup: `ringup clean` lists them, `ringup clean --kill` ends
    what is provably ours.

    In logs: workers with parent 1, keep-alive failures that repeat for minutes.
    """,
)
SAME_GPU_TWICE = shared(
    "same-gpu-twice",
    "error",
    """
    Two ranks of a communicator sit on one GPU.

    Why: NCCL refuses it; most often no `set_device(LOCAL_RANK)`, or hosts that look like one
    (cloned identity).

    Fix: `torch.cuda.set_device(LOCAL_RANK)` before the process group; `NCCL_HOSTID` per node for
    cloned machines.

    In logs: `Duplicate GPU detected : rank 3 and rank 2 both on CUDA device e2000`.
    """,
)
NPROC_EXCEEDS_GPUS = shared(
    "nproc-exceeds-gpus",
    "error",
    """
    More processes are started on a node than it has visible GPUs.

    Why: the surplus ranks ask for a device that is not there.

    Fix: `--nproc` equal to the visible devices; mind CUDA_VISIBLE_DEVICES.

    In logs: `invalid device ordinal`.
    """,
)
