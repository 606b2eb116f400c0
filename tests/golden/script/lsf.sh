#!/bin/bash
# main.py on 2 nodes with 8 ranks each: one torchrun a node.
# Written by `ringup script lsf`, yours to change; the nodes need no ringup.  Submit: bsub <FILE
#BSUB -J mingpt
#BSUB -n 192
# Slots per host, so that the job gets one host per node.
#BSUB -R "span[ptile=96]"
#BSUB -gpu "num=8/host:mode=shared"
#BSUB -o mingpt-%J.out
# Your site's; a second # makes a line a comment.
##BSUB -q NAME
##BSUB -P NAME
#BSUB -W 10:00
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
  # The job's hosts in order; the first is this one.
  read -ra hosts <<<"$(awk '{for (i = 1; i < NF; i += 2) printf "%s ", $i}' <<<"$LSB_MCPU_HOSTS")"
  # CSM systems list the launch node first, where this script then runs; it is not a compute node.
  case ${hosts[0]} in batch* | login*) stop "${hosts[0]} is a launch node: start this with jsrun" ;; esac
  export NNODES=${#hosts[@]} RUN_ID=$LSB_JOBID
  # What the other nodes need: this shell's environment and these functions, in a file that they see.
  NODE=$PWD/.job-$RUN_ID.sh
  MEET=$(meet_program)
  MEET_TOKEN=$("$PYTHON" -c 'import secrets; print(secrets.token_hex(16))')
  export NODE MEET MEET_TOKEN
  trap 'rm -f "$NODE"; jobs -p | xargs -r kill' EXIT
  (umask 077 && : >"$NODE")
  node_file >"$NODE"
  meet bash "$NODE" 0 everywhere join
  node_file >"$NODE"
  everywhere on_node
}

node_file() {
  export -p
  declare -p hosts
  declare -f stop on everywhere join on_node wait_all
  # How it is called: RANK FUNCTION ARGUMENTS
  echo 'export NODE_RANK=$1; shift; "$@"'
}

# Run a function on every node; the first failure ends the job and all other nodes.
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

on() {
  exec blaunch "${hosts[$1]}" bash "$NODE" "$@"
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
