#!/bin/bash
# main.py on 2 nodes with 8 ranks each: one torchrun a node.
# Written by `ringup script slurm`, yours to change; the nodes need no ringup.  Submit: sbatch FILE
#SBATCH --job-name=mingpt
#SBATCH --nodes=2
# One task per node: it starts all ranks of its node.
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --output=mingpt-%j.out
# A node that fails ends the job; Slurm alone would start it again.
#SBATCH --no-requeue
# Your site's; a second # makes a line a comment.
##SBATCH --partition=NAME
##SBATCH --account=NAME
#SBATCH --time=10:00:00
# shellcheck disable=SC2016  # the nodes expand the text in single quotes
set -euo pipefail

stop() { echo "$*" >&2; exit 1; }

cd /home/ada/minGPT-ddp
export PYTHON=/opt/venv/bin/python
# Ranks on each node, one for each GPU.
export NPROC=8
# kept: set by you
export NCCL_DEBUG=WARN
: "${HF_TOKEN:?set it before you start this}"
# The NIC of the ranks; empty: the job finds the fastest one that reaches all nodes.
export INTERFACE=''

main() {
  [ "${SLURM_NTASKS_PER_NODE:-1}" = 1 ] ||
    stop "ntasks-per-node is $SLURM_NTASKS_PER_NODE: torchrun needs one task per node"
  export NNODES=$SLURM_NNODES RUN_ID=$SLURM_JOB_ID
  # From Slurm 22.05 on srun does not take this over from sbatch: every node would have one core.
  [ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
  # One task on each node; when one fails, or a minute after one has ended, all are ended.
  srun=(srun --nodes="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=60 --export=ALL)
  MEET=$(meet_program)
  export MEET
  meet "${srun[@]}" bash -c 'exec "$PYTHON" -c "$MEET" join "$SLURM_NODEID" "$@"' join
  # The nodes get settings by the environment, and the function in the command.  The node's own number
  # is known only on the node: here, in the batch script, it would be 0 for all.
  "${srun[@]}" --label bash -c "$(declare -f on_node); NODE_RANK=\$SLURM_NODEID on_node"
}

# The commands of each node.
on_node() {
  set -eu
  # This node's own address and NIC on that network.
  read -r _ ADDRESS INTERFACE <<<"$(grep "^$NODE_RANK " <<<"$PLACES")"
  export ADDRESS
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

# Find the network: an address of this node, the first, that all nodes reach, and a free port there.
# `hostname -i` and the node's name may give 127.0.1.1 or an unreachable NIC.
meet() {
  PLACES=$("$PYTHON" -c "$MEET" lead "$NNODES" "$@") || stop "the nodes have found no common network"
  read -r MASTER_ADDR MASTER_PORT <<<"$PLACES"
  export PLACES MASTER_ADDR MASTER_PORT
  echo "ranks meet at $MASTER_ADDR port $MASTER_PORT"
}

meet_program() {
  cat <<'END_OF_PROGRAM'
"""
Finds the rendezvous address: an address of the head node that every node of the job reaches.

    lead COUNT COMMAND...       on the head; COMMAND starts `join` once on every node, also on the head
    join RANK PORTS ADDRESSES   on a node; the last two are appended to COMMAND

MEET_TOKEN in the environment, which COMMAND passes on, tells the nodes from strangers.  `lead` prints
"ADDRESS PORT", then for each node "RANK ADDRESS INTERFACE", its own on that network.
INTERFACE and MASTER_PORT in the environment leave no choice.
"""

import fcntl
import os
import resource
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time

PORTS = range(29500, 29517)  # torch's default first, all below Linux's ephemeral range
OFFERED, TRY_S, ALL_S = 3, 4, 90
PAYLOAD = b"x" * 65536  # many full packets: some paths lose only large ones


def cards():
    """(interface, address) of this node, the fastest interface first."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(s, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    try:
        rows = [row.split() for row in open("/proc/net/if_inet6")]
    except OSError:
        rows = []
    found += [(r[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(r[0]))) for r in rows if r[3] == "00"]
    return sorted((c for c in found if not c[1].startswith("127.")), key=lambda c: -speed(c[0]))


def speed(name):
    try:
        return int(open("/sys/class/net/" + name + "/speed").read())
    except (OSError, ValueError):
        return 0


def listen(port):
    """A socket that listens on IPv4 and IPv6, None if the port is in use."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both)
    except OSError:
        return None


def read(s, size):
    """Read exactly so many bytes; TRY_S limits the whole read, even with a slow peer."""
    data, until = b"", time.monotonic() + TRY_S
    while len(data) < size:
        s.settimeout(max(0.001, until - time.monotonic()))
        piece = s.recv(65536)
        if not piece:
            raise OSError("closed")
        data += piece
    return data


def hear(s, token, reached):
    """Record one attempt of one node in `reached`: (address, port) -> rank -> the node's own NIC there."""
    try:
        with s:
            words = read(s, 256 + len(PAYLOAD))[:256].decode().split()
            if words[0] == token:
                reached.setdefault((words[1], int(words[2])), {}).setdefault(int(words[3]), words[4:])
                s.sendall(b"ok")
    except (OSError, ValueError, IndexError):
        pass


def accept(listener, token, reached):
    while True:
        try:
            s = listener.accept()[0]
            threading.Thread(target=hear, args=(s, token, reached), daemon=True).start()
        except (OSError, RuntimeError):
            # No descriptor or thread is left: strangers may hold them, for at most TRY_S.
            time.sleep(0.05)


def allow_files():
    """Raise the limit of open files to the machine's maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        pass


def lead(count, command):
    allow_files()
    token, reached, here = os.environ.setdefault("MEET_TOKEN", secrets.token_hex(16)), {}, os.uname().nodename
    port = os.environ.get("MASTER_PORT")
    listeners = [s for s in map(listen, [int(port)] if port else PORTS) if s][:OFFERED]
    ports = [s.getsockname()[1] for s in listeners]
    addresses = [a for name, a in cards() if os.environ.get("INTERFACE", "") in ("", name)]
    if not ports or not addresses:
        what = "free port from %s" % (port or PORTS[0]) if addresses else "address"
        sys.exit("no %s on %s" % (what, here))
    for s in listeners:
        threading.Thread(target=accept, args=(s, token, reached), daemon=True).start()
    words = [*command, ",".join(map(str, ports)), ",".join(addresses)]
    started = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2)
    until = time.monotonic() + ALL_S
    while started.poll() is None and time.monotonic() < until:
        if len(reached.get((addresses[0], ports[0]), ())) == count:
            break  # further waiting would not help
        time.sleep(0.05)
    for place in [(a, p) for a in addresses for p in ports]:
        nodes = reached.get(place, {})
        if len(nodes) == count and nodes.get(0, [""])[0] == place[0]:  # rank 0 is here
            print(*place)
            for rank, card in sorted(nodes.items()):
                print(rank, *card)
            sys.exit(started.wait())
    seen = "; ".join("%s port %s by %s" % (*k, sorted(v)) for k, v in sorted(reached.items()))
    found = seen or "by nobody"
    sys.exit("no address of %s (%s) was reached by all %d nodes: %s" % (here, addresses, count, found))


def attempt(rank, token, address, port):
    try:
        with socket.create_connection((address, int(port)), timeout=TRY_S) as s:
            own = s.getsockname()[0]
            name = next((name for name, a in cards() if a == own), "")
            s.sendall(" ".join((token, address, port, rank, own, name)).encode().ljust(256) + PAYLOAD)
            read(s, 2)
    except OSError:
        pass


def join(rank, ports, addresses):
    """Try every address and port of the head in parallel."""
    token = os.environ["MEET_TOKEN"]
    places = [(rank, token, a, p) for a in addresses.split(",") for p in ports.split(",")]
    threads = [threading.Thread(target=attempt, args=place, daemon=True) for place in places]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TRY_S + 1
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))


if __name__ == "__main__":
    if sys.argv[1] == "lead":
        lead(int(sys.argv[2]), sys.argv[3:])
    join(*sys.argv[2:])
END_OF_PROGRAM
}

main
