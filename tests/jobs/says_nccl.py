"""
Says what NCCL says while a communicator is made: `says_nccl.py VERSION NETWORK FILE`.

NETWORK is IB or Socket, or one of them for every rank with commas between; it stays until FILE is there.
The lines are invented, in the forms that NCCL's source has for each version.
"""

import os
import socket
import sys
import time
from pathlib import Path

version = tuple(int(part) for part in sys.argv[1].split("."))
rank, device = int(os.environ["RANK"]), os.environ.get("LOCAL_RANK", "0")
networks = sys.argv[2].split(",")
network = networks[rank % len(networks)]
who = f"{socket.gethostname().partition('.')[0]}:{os.getpid()}:{os.getpid()} [{device}]"
address = f"ib0:10.1.0.1{rank}<0>"
found = {
    "IB": f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB {address}",
    "Socket": "NET/IB : No device found.",
}


def say(words: str) -> None:
    print(f"{who} NCCL INFO {words}", flush=True)


def plugins() -> str:
    """What is tried before NCCL's own networks."""
    name = "libnccl-net.so"
    if version < (2, 19):
        return f"NET/Plugin : No plugin found ({name}), using internal implementation"
    if version < (2, 21):
        missing = f"dlerror={name}: cannot open shared object file: No such file or directory"
        return f"NET/Plugin : {missing} No plugin found ({name}), using internal implementation"
    internal = "Using internal network plugin." if version < (2, 26) else ""
    return f"NET/Plugin: Could not find: {name}. {internal}"


if os.environ.get("NCCL_DEBUG") == "INFO":
    say(("Bootstrap : Using " if version < (2, 24) else "Bootstrap: Using ") + address)
    say(plugins())
    say(found[network])
    if network == "Socket":
        if version >= (2, 27):
            say("Failed to initialize NET plugin IB")
        say(f"NET/Socket : Using [0]{address} [1]enp99s0:10.0.0.1{rank}<0>")
    if version >= (2, 27):
        say(f"Initialized NET plugin {network}")
        say(f"Assigned NET plugin {network} to comm")
    else:
        say("Using non-device net plugin version 0")
    say(f"Using network {network}")
    via = "NET/IB/0/GDRDMA" if network == "IB" else "NET/Socket/0"
    say(f"Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via {via}")
    say(f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via {via}")
    say("Connected all rings")
print(f"step 1 of rank {rank}", flush=True)
until = time.monotonic() + 300
while not Path(sys.argv[3]).exists() and time.monotonic() < until:
    time.sleep(0.05)
print("trained to the end", flush=True)
