"""
What is run for the traps: commands, files and the right answer, which was written before any was scored.

`$LAUNCHERS`, `$RAY`, `$MPICH`, `$OLD`, `$OLDER`: virtual environments (see make.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Run:
    """One trap made by running it: what starts on which host, and the causes that are right."""

    name: str
    accept: str
    """Causes, parted by blanks; `healthy` for a run that ends well."""

    why: str
    on: dict[str, str]
    """Host (and a word, where it has several) -> shell line; all start together."""

    files: dict[str, str] = field(default_factory=dict)
    symptom: str = "crash"
    env: dict[str, str] = field(default_factory=dict)
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    lab: dict[str, Any] = field(default_factory=dict)
    slurm: bool = False
    prefix: str = ""
    form: str = ""
    """Nothing: one file of all hosts; `hosts`: one each; else a pattern of files the job wrote."""

    cut: str = ""
    limit_s: float = 60


# fmt: off
def train(
    inside: str = "", *, imports: str = "", before: str = "", after: str = "", steps: int = 4, init: str = ""
) -> dict[str, str]:
    """A training script; `inside` stands in its loop, `before` in front of it."""

    def indented(text: str, by: int) -> str:
        return "".join(" " * by + line + "\n" for line in text.strip("\n").splitlines())

    return {
        "train.py": f'''"""Train a small model on every rank."""
import datetime
import os
import sys
import time
{imports}
import torch
import torch.distributed as dist


def main():
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    print(f"rank {{rank}} of {{world}} on {{os.uname().nodename}}: joining", flush=True)
    dist.init_process_group({init or '"gloo", timeout=datetime.timedelta(seconds=15)'})
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{indented(before, 4)}    for step in range({steps}):
{indented(inside, 8)}        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        print(f"[rank {{rank}}] step {{step}} loss {{loss.item():.4f}}", flush=True)
{indented(after or "dist.destroy_process_group()", 4)}

if __name__ == "__main__":
    main()
'''
    }


def plain(text: str, name: str = "train.py") -> dict[str, str]:
    """A script as it stands."""
    return {name: text.lstrip("\n")}


def both(line: str) -> dict[str, str]:
    """The same line on two hosts; `{n}` is the host's number."""
    return {f"node{n}": line.replace("{n}", str(n)) for n in range(2)}


def older(line: str) -> str:
    """A command with the option names of torch 1.13."""
    return re.sub(r"--[a-z-]+", lambda m: "--" + m[0][2:].replace("-", "_"), line)


C10D = "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id job7 train.py"
STATIC = "torchrun --nnodes 2 --node-rank {n} --nproc-per-node 1 --master-addr node0 --master-port 29500 train.py"
ENV = "RANK={n} WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 python train.py"
ONE = {"node0": "torchrun --standalone --nproc-per-node 2 train.py"}
FAST = "--rdzv-conf timeout=12"
JOIN = "--rdzv-conf join_timeout=12"
WITH_LAUNCHERS = "export PATH=$LAUNCHERS/bin:$PATH; "
WITH_RAY = "export PATH=$RAY/bin:$PATH; "
OLD, OLDER = "export PATH=$OLD/bin:$PATH; ", "export PATH=$OLDER/bin:$PATH; "

SLOW = train("time.sleep(1)", steps=60)
WRITES_PID = 'open(f"rank{rank}.pid", "w").write(str(os.getpid()))'
KILLS = "until [ -s rank1.pid ]; do sleep 0.2; done; sleep 4; kill -{signal} $(cat rank1.pid)"
RAISES = 'if rank == 1 and step == 2:\n    batch = {"input_ids": [1, 2]}\n    labels = batch["labels"]'

MEETING = [
    Run("port-taken-static", "port-in-use", "another program listens on the master's port",
        {"node0 other": "exec nc -l -k -p 29500 >/dev/null", "node0": "sleep 1; " + STATIC.replace("{n}", "0"),
         "node1": "sleep 1; " + STATIC.replace("{n}", "1").replace("torchrun", f"torchrun {FAST}")}, train(),
        form="hosts", limit_s=40),
    Run("port-taken-script", "port-in-use", "the script's own fixed port is taken by another run on this node",
        {"node0 other": "exec nc -l -k -p 23456 >/dev/null", "node0": "sleep 1; " + ENV.replace("{n}", "0").replace("SIZE=2", "SIZE=1")},
        train(init='"gloo", init_method="tcp://node0:23456", rank=rank, world_size=world')),
    Run("master-port-differs", "store-unreachable", "node1 was given port 29501, the head listens on 29500",
        {"node0": f"set -x; torchrun {FAST} " + STATIC.replace("{n}", "0")[9:],
         "node1": f"set -x; torchrun {FAST} " + STATIC.replace("{n}", "1").replace("29500", "29501")[9:]}, train(), prefix="colon"),
    Run("master-address-of-nobody", "store-unreachable", "node1 dials an address that no host has",
        {"node1": f"torchrun {FAST} " + STATIC.replace("{n}", "1").replace("master-addr node0", "master-addr 10.0.0.77")[9:]}, train()),
    Run("three-nodes-asked", "peers-never-joined", "--nnodes 3 with two nodes, c10d",
        both(f"torchrun {JOIN} " + C10D.replace("--nnodes 2", "--nnodes 3")[9:]), train(), prefix="bracket"),
    Run("three-nodes-asked-static", "peers-never-joined", "--nnodes 3 with two nodes, static",
        both(f"torchrun {FAST} " + STATIC.replace("--nnodes 2", "--nnodes 3")[9:]), train(), form="hosts"),
    Run("both-are-node-rank-0", "node-rank-duplicate", "both nodes start with --node-rank 0",
        both(f"set -x; torchrun {FAST} " + STATIC.replace("{n}", "0")[9:]), train(), prefix="colon"),
    Run("env-rank-twice", "node-rank-duplicate", "two processes of one node both have RANK=0",
        {"node0 a": ENV.replace("{n}", "0"), "node0 b": "sleep 1; " + ENV.replace("{n}", "0")}, train(init='"gloo", timeout=datetime.timedelta(seconds=10)'), limit_s=40),
    Run("env-world-size-differs", "world-size-disagrees", "WORLD_SIZE is 2 on node0 and 4 on node1",
        {"node0": ENV.replace("{n}", "0"), "node1": ENV.replace("{n}", "1").replace("SIZE=2", "SIZE=4")}, train(init='"gloo", timeout=datetime.timedelta(seconds=12)')),
    Run("env-rank-too-large", "world-size-disagrees node-rank-duplicate", "ranks count from 1: RANK=2 of WORLD_SIZE=2",
        {"node0": ENV.replace("{n}", "1"), "node1": ENV.replace("{n}", "2")}, train(init='"gloo", timeout=datetime.timedelta(seconds=10)')),
    Run("env-not-set", "rendezvous-variables-missing", "python train.py without a launcher",
        {"node0": "python train.py"}, train()),
    Run("env-no-master", "rendezvous-variables-missing", "RANK and WORLD_SIZE are set, MASTER_ADDR is not",
        {"node0": "RANK=0 WORLD_SIZE=2 python train.py"}, train()),
    Run("firewall-drops-store", "store-unreachable", "the head's firewall drops port 29500",
        both(f"torchrun {FAST} " + STATIC[9:]), train(), faults={"fw-ports": {}}, prefix="stern"),
    Run("firewall-rejects-store", "store-unreachable", "the head's firewall rejects port 29500",
        both(ENV), train(init='"gloo", timeout=datetime.timedelta(seconds=12)'), faults={"fw-reject": {}}, form="hosts"),
    Run("firewall-high-ports", "firewall-drops-high-ports peer-unreachable-on-interface", "only port 29500 passes; Gloo's own ports do not",
        both(ENV), train(init='"gloo", timeout=datetime.timedelta(seconds=12)'), faults={"fw-highports": {}}, prefix="iso", limit_s=150),
    Run("name-is-loopback", "hostname-resolves-to-loopback", "each node's own name is 127.0.1.1 in its hosts file, as Debian's installer writes it",
        both("sed \"/\\b$(hostname)$/d\" /etc/hosts >/tmp/hosts; (echo \"127.0.1.1 $(hostname)\"; cat /tmp/hosts) >/etc/hosts; " + ENV.replace("=node0", "=10.0.0.10")),
        train(init='"gloo", timeout=datetime.timedelta(seconds=12)'), limit_s=100),
    Run("gloo-interface-absent", "interface-name-missing", "GLOO_SOCKET_IFNAME=eth7 is on no host",
        both(C10D), train(), env={"GLOO_SOCKET_IFNAME": "eth7"}),
    Run("gloo-interface-nccl-syntax", "gloo-ifname-in-nccl-syntax", "GLOO_SOCKET_IFNAME=^docker0,lo",
        both(ENV), train(), env={"GLOO_SOCKET_IFNAME": "^docker0,lo"}, prefix="docker"),
    Run("gloo-on-loopback", "loopback-interface-chosen hostname-resolves-to-loopback", "GLOO_SOCKET_IFNAME=lo in a job of two nodes",
        both("set -x; export GLOO_SOCKET_IFNAME=lo; " + ENV), train(init='"gloo", timeout=datetime.timedelta(seconds=12)'), prefix="colon"),
    Run("name-unknown", "hostname-unresolvable-from-peer", "node1 does not know the head's name",
        {"node1": f"torchrun {JOIN} " + C10D.replace("node0", "gpu-head")[9:]}, train()),
    Run("rendezvous-ids", "rendezvous-ids-differ", "each node makes a run id of its own from the time",
        both(f"set -x; torchrun {JOIN} " + C10D.replace("job7", "$(date +%N)")[9:]), train(), prefix="colon"),
    Run("nobody-hosts-the-store", "rendezvous-host-not-recognised", "neither node takes the endpoint for its own",
        both("torchrun --rdzv-conf is_host=false,read_timeout=10 " + C10D.replace("node0:", "10.0.0.10:")[9:]), train(), form="hosts"),
    Run("store-file-left", "stale-rendezvous-state", "the file of init_method file:// is from a run that was killed",
        {"node0": "(for r in 0 1; do RANK=$r WORLD_SIZE=2 timeout -s KILL 10 python train.py & done; wait) >/dev/null 2>&1; for r in 0 1; do RANK=$r WORLD_SIZE=2 python train.py & done; wait"},
        train("time.sleep(1)", steps=20, init='"gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=6)'), limit_s=90),
    Run("head-never-started", "store-unreachable", "the head's command was never started",
        {"node1": ENV.replace("{n}", "1")}, train(init='"gloo", timeout=datetime.timedelta(seconds=8)')),
    Run("key-never-set", "rank-busy-while-others-wait", "rank 0 tokenizes for longer than the store waits",
        both(ENV), train(before='''
store = dist.distributed_c10d._get_default_store()
store.set_timeout(datetime.timedelta(seconds=6))
if rank == 0:
    for part in range(0, 100, 4):
        print(f"tokenizing: {part}% {part * 120}/12000 examples", flush=True)
        time.sleep(0.5)
    store.set("dataset", "ready")
else:
    store.get("dataset")'''), prefix="colon"),
    Run("only-rank-0-prepares", "rank-busy-while-others-wait", "rank 0 builds the index while rank 1 stands in a barrier",
        ONE, train(before='''
if rank == 0:
    for part in range(1, 26):
        print(f"Building index: {part * 4}%|{'#' * part} | {part * 4}/100 [00:{part:02d}<00:{25 - part:02d}]", flush=True)
        time.sleep(0.5)
dist.barrier()''', init='"gloo", timeout=datetime.timedelta(seconds=6)')),
    Run("old-torch-store", "store-unreachable", "torch 1.13, nobody at the master's port",
        {"node1": OLDER + older(f"torchrun {FAST} " + STATIC.replace("{n}", "1")[9:])}, train(), prefix="journal"),
    Run("old-torch-dashes", "launcher-argument-misread", "torch 1.13's torchrun knows --node_rank and not --node-rank",
        {"node0": OLDER + STATIC.replace("{n}", "0")}, train(), prefix="journal"),
    Run("old-torch-port", "port-in-use", "torch 1.13, the port is taken",
        {"node0 other": "exec nc -l -k -p 29500 >/dev/null", "node0": "sleep 1; " + OLDER + older(STATIC.replace("{n}", "0"))}, train(), limit_s=30),
    Run("old-torch-new-python", "rank-raised-exception", "torchrun of torch 1.13 does not work with Python 3.11",
        {"node1": OLDER + older(C10D), "node0": OLDER + older(C10D)}, train(), prefix="bracket"),
    Run("own-name-unknown", "hostname-unresolvable-from-peer", "torchrun --standalone on a node whose own name is unknown",
        {"node0": "hostname unknown-host; " + ONE["node0"]}, train()),
    Run("twice-initialised", "process-group-started-twice", "a library had started the process group before",
        {"node0": ENV.replace("{n}", "0").replace("SIZE=2", "SIZE=1")}, train(before='dist.init_process_group("gloo")')),
    Run("big-packets-vanish", "path-mtu-black-hole collective-stalled", "packets over 1400 bytes are dropped between the nodes",
        both(ENV), train(before="dist.barrier()\nprint(f'rank {rank}: barrier passed', flush=True)\nbig = torch.ones(1 << 20)\ndist.all_reduce(big)"),
        faults={"mtu-blackhole": {}}, symptom="hang", prefix="colon"),
]

PROCESS = [
    Run("key-error-one-rank", "rank-raised-exception", "rank 1's batch has no labels",
        both(C10D), train(RAISES), form="hosts"),
    Run("key-error-log-dir", "rank-raised-exception", "the same, as torchrun's --log-dir keeps it",
        {"node0": ONE["node0"].replace("train.py", "--log-dir out -r 3 train.py")}, train(RAISES), form="out/**/*.log"),
    Run("import-fails", "rank-raised-exception", "the script imports a name that the module does not have",
        ONE, {**train(imports="from model import build_model"), "model.py": "def make_model():\n    return None\n"}),
    Run("compiled-module-broken", "rank-raised-exception", "an extension was built against another library",
        {"node0": "set -e; printf 'int missing_symbol_of_v2(void);\\n#include <Python.h>\\nPyObject *PyInit_fastops(void) { missing_symbol_of_v2(); return 0; }' >fastops.c;"
                  " gcc -shared -fPIC -I$(python -c 'import sysconfig; print(sysconfig.get_paths()[\"include\"])') fastops.c -o fastops.so; " + ONE["node0"]},
        train(imports="import fastops")),
    Run("no-torch-on-node1", "python-or-launcher-missing", "node1's python has no torch",
        {"node0": C10D.replace("torchrun", f"torchrun {JOIN}"), "node1": C10D.replace("torchrun", "/usr/bin/python3 -m torch.distributed.run")}, train(), prefix="colon", limit_s=30),
    Run("no-torchrun-over-ssh", "python-or-launcher-missing", "torchrun is not on the PATH that ssh gives",
        {"node0": "for n in 0 1; do (ssh node$n 'cd /var/tmp && " + C10D + "' 2>&1 | sed \"s/^/node$n: /\") & done; wait"}, train()),
    Run("segfault", "rank-crashed", "rank 1 reads address 0",
        ONE, train("if rank == 1 and step == 2:\n    import ctypes\n    ctypes.string_at(0)")),
    Run("segfault-faulthandler", "rank-crashed", "the same on another node, with faulthandler",
        both(C10D), train("if rank == 1 and step == 2:\n    import ctypes\n    ctypes.string_at(0)"), env={"PYTHONFAULTHANDLER": "1"}, prefix="kubectl"),
    Run("abort", "rank-crashed", "rank 0 calls abort in native code",
        ONE, train("if rank == 0 and step == 1:\n    os.abort()"), env={"PYTHONFAULTHANDLER": "1"}),
    Run("kill-9", "rank-killed", "kill -9 of rank 1",
        {**both(C10D), "node1 killer": KILLS.replace("{signal}", "9")}, {**train("time.sleep(1)", before=WRITES_PID, steps=60)}, form="hosts"),
    Run("kill-9-only-the-peer", "peer-died-first", "kill -9 of rank 1; only node0's log is here",
        {"node0": ENV.replace("{n}", "0"), "node1": "exec >/dev/null 2>&1; " + ENV.replace("{n}", "1"), "node1 killer": KILLS.replace("{signal}", "9")},
        train("time.sleep(1)", before=WRITES_PID, steps=60)),
    Run("cgroup-out-of-memory", "oom-killer-ran", "a memory cgroup of 700 MB, rank 1 keeps what it reads",
        {"node0": "mkdir -p cg && mount -t cgroup -o memory none cg && mkdir -p cg/trap && echo 700000000 >cg/trap/memory.limit_in_bytes && (echo $BASHPID >cg/trap/cgroup.procs; exec " + ONE["node0"]
                  + "); echo '--- dmesg'; dmesg -T | grep -iE 'oom|killed process' | tail -4; rmdir cg/trap; umount cg"},
        train("if rank == 1:\n    kept = globals().setdefault('kept', [])\n    kept.append(torch.ones(50_000_000))", steps=20)),
    Run("address-space-limit", "host-memory-refused", "ulimit -v, the loader asks for 40 GB",
        {"node0": "ulimit -v 12000000; " + ONE["node0"]}, train("if rank == 1 and step == 1:\n    cache = torch.empty(10_000_000_000)")),
    Run("memory-error", "host-memory-refused", "ulimit -v, Python's own MemoryError",
        {"node0": "ulimit -v 12000000; " + ONE["node0"]}, train("if step == 1:\n    cache = bytearray(40_000_000_000)"), prefix="iso"),
    Run("sigterm-from-outside", "job-cancelled", "somebody sends SIGTERM to torchrun",
        {"node0": "echo $$ >agent.pid; exec " + ONE["node0"], "node0 killer": "sleep 14; kill $(cat agent.pid)"}, SLOW),
    Run("timeout-1", "job-cancelled", "timeout(1) ends the run after 15 s",
        {"node0": "timeout 15 " + ONE["node0"] + "; echo \"exit code $?\""}, SLOW),
    Run("ctrl-c", "job-cancelled", "Ctrl-C",
        {"node0": "exec python -c 'import os, signal, subprocess, sys, time; p = subprocess.Popen(sys.argv[1:]); time.sleep(13); p.send_signal(signal.SIGINT); p.wait()' " + ONE["node0"]}, SLOW),
    Run("sighup", "terminal-closed", "the terminal was closed",
        {"node0": "echo $$ >agent.pid; exec " + ONE["node0"], "node0 killer": "sleep 13; kill -HUP $(cat agent.pid)"}, SLOW),
    Run("checkpoint-no-space", "disk-full", "the file system of the checkpoints is full",
        {"node0": "mkdir ckpt; mount -t tmpfs -o size=64k none ckpt; " + ONE["node0"] + "; umount ckpt"},
        train(after='if rank == 0:\n    torch.save({"model": torch.nn.Linear(512, 512).state_dict()}, "ckpt/step4.pt")\ndist.barrier()')),
    Run("log-dir-no-space", "disk-full", "the file system of torchrun's own logs has no inode left",
        {"node0": "mkdir out; mount -t tmpfs -o nr_inodes=1 none out; torchrun --standalone --nproc-per-node 2 --log-dir out -r 3 train.py; umount out"}, train()),
    Run("checkpoint-read-only", "disk-full rank-raised-exception", "the file system of the checkpoints is mounted read-only",
        {"node0": "mkdir ckpt; mount -t tmpfs -o ro none ckpt; " + ONE["node0"] + "; umount ckpt"},
        train(after='if rank == 0:\n    os.makedirs("ckpt/run7", exist_ok=True)\ndist.barrier()')),
    Run("checkpoint-permission", "disk-full rank-raised-exception", "the folder of the checkpoints belongs to another user",
        {"node0": "mkdir ckpt; chmod 755 ckpt .; setpriv --reuid 4242 --clear-groups env HOME=/tmp " + ONE["node0"]},
        train(after='if rank == 0:\n    torch.save(model.state_dict(), "ckpt/final.pt")\ndist.barrier()')),
    Run("shm-64k", "shm-too-small", "/dev/shm of 64 kB, loaders with workers",
        {"node0": "mount -t tmpfs -o size=64k none /dev/shm; " + ONE["node0"] + "; umount /dev/shm"},
        train(before='''
data = torch.utils.data.TensorDataset(torch.randn(512, 4096))
for batch in torch.utils.data.DataLoader(data, batch_size=64, num_workers=2):
    pass''')),
    Run("loader-worker-killed", "rank-killed rank-raised-exception oom-killer-ran", "a DataLoader worker got SIGKILL",
        ONE, train(before='''
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 9 and rank == 1:
            os.kill(os.getpid(), 9)
        return torch.randn(16)


for batch in torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2):
    pass''')),
    Run("open-files-40", "open-files-too-low", "ulimit -n 40",
        {"node0": "ulimit -n 40; " + ENV.replace("{n}", "0").replace("SIZE=2", "SIZE=1")},
        train(before='shards = [open(f"/tmp/shard-{n}.bin", "wb") for n in range(64)]')),
    Run("cuda-on-a-cpu-build", "no-gpu-visible", "model.cuda() with a torch without CUDA",
        ONE, train(before='model = model.cuda(int(os.environ["LOCAL_RANK"]))')),
    Run("nccl-on-a-cpu-build", "no-gpu-visible rank-raised-exception", "backend nccl with a torch without NCCL",
        both(C10D), train(init='"nccl"'), prefix="bracket"),
    Run("nccl-without-driver", "no-gpu-visible", "torch with CUDA on a machine without a GPU, backend nccl",
        {"node0": OLD + ONE["node0"]}, train(init='"nccl"')),
    Run("cuda-without-driver", "no-gpu-visible", "torch with CUDA on a machine without a driver, model.cuda()",
        {"node0": OLD + ONE["node0"]}, train(before="model = model.cuda()")),
    Run("loss-is-nan", "rank-raised-exception", "the script stops at a loss that is NaN",
        both(C10D), train("if step == 3:\n    raise FloatingPointError(f'loss is nan at step {step}, lr 0.01, last good checkpoint step 2')"), prefix="colon"),
    Run("assertion", "rank-raised-exception", "an assertion of the script on rank 0",
        {"node0": ONE["node0"].replace("train.py", "--log-dir out -r 3 -t 3 train.py")}, train("assert not (rank == 0 and step == 1), 'sequence length 4096 exceeds the rotary cache (2048)'"), cut="head:60"),
    Run("restarts-exhausted", "rank-raised-exception", "elastic: three attempts, each with the same error",
        {"node0": ONE["node0"].replace("train.py", "--max-restarts 2 train.py")}, train("if rank == 1 and step == 1:\n    raise ValueError('tokenizer has 32000 entries, embedding 32064')"), limit_s=90),
    Run("data-missing", "rank-raised-exception", "the data set's folder is wrong on every node",
        both(ENV), train(before='tokens = open("/data/pile/train-00000.bin", "rb").read()'), form="hosts"),
    Run("data-missing-node1", "file-not-shared rank-raised-exception", "the data set is not mounted on node1",
        both("[ {n} = 1 ] || touch /tmp/train-00000.bin; " + ENV), train(before='tokens = open("/tmp/train-00000.bin", "rb").read()'), prefix="colon"),
    Run("spawn-raises", "rank-raised-exception", "mp.spawn, one child raises",
        {"node0": "python train.py"}, plain('''
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29577")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.Linear(8, 8)
    x = torch.randn(4, 8 if rank == 0 else 16)
    loss = model(x).sum()
    dist.all_reduce(loss)


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
''')),
    Run("spawn-killed", "rank-killed", "mp.spawn, one child gets SIGKILL",
        {"node0": "python train.py"}, plain('''
import os
import signal
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29578")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for step in range(5):
        loss = torch.ones(1)
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(loss)
        print(f"rank {rank} step {step}", flush=True)


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
''')),
]

RANKS = [
    Run("shapes-differ", "collective-mismatch", "rank 1 reduces a tensor of another size",
        both(ENV), train("if step == 2:\n    x = torch.ones(1024 if rank == 0 else 512)\n    dist.all_reduce(x)"), prefix="colon"),
    Run("shapes-differ-detail", "collective-mismatch", "the same with TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ONE, train("if step == 2:\n    x = torch.ones(1024 if rank == 0 else 512)\n    dist.all_reduce(x)"), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, cut="tail:60"),
    Run("order-differs", "collective-mismatch", "rank 0 broadcasts where rank 1 reduces",
        both(C10D), train("if step == 2:\n    x = torch.ones(64)\n    if rank == 0:\n        dist.broadcast(x, 0)\n    else:\n        dist.all_reduce(x)"), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, form="hosts"),
    Run("monitored-barrier", "rank-fell-behind", "rank 1 never comes to the monitored barrier",
        ONE, train("if step == 2:\n    if rank == 1:\n        time.sleep(14)\n    dist.monitored_barrier(timeout=datetime.timedelta(seconds=5))"), symptom="hang"),
    Run("rank-skips-a-step", "rank-fell-behind collective-mismatch uneven-batches-between-ranks", "rank 1 skips a bad batch with `continue`, the others do not",
        ONE, train("if rank == 1 and step == 2:\n    print('[rank 1] step 2: empty batch, skipped', flush=True)\n    continue"), symptom="hang"),
    Run("uneven-data", "uneven-batches-between-ranks", "rank 1 has two batches fewer",
        both(C10D), train("if rank == 1 and step == 4:\n    break", steps=6, after="print(f'[rank {rank}] epoch 0 done after {step} steps', flush=True)\ntime.sleep(1)\ndist.destroy_process_group()"), prefix="colon"),
    Run("model-differs", "model-differs-between-ranks", "DDP: rank 1 has another hidden size",
        ONE, train(before="model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64 + 64 * rank))")),
    Run("model-lacks-a-layer", "model-differs-between-ranks", "DDP: rank 1 has a layer less",
        both(ENV), train(before="layers = [torch.nn.Linear(64, 64) for _ in range(3 - rank)]\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))"), prefix="colon"),
    Run("unused-parameters", "ddp-unused-parameters", "DDP: a branch of the model is not used",
        ONE, train('''
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.used(x)


if step == 0:
    model = torch.nn.parallel.DistributedDataParallel(Net())
model(torch.randn(4, 64)).sum().backward()''')),
    Run("ready-twice", "parameter-ready-twice", "DDP: a reentrant checkpoint uses a layer twice",
        ONE, train('''
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        x = checkpoint(self.layer, x, use_reentrant=True)
        return checkpoint(self.layer, x, use_reentrant=True)


if step == 0:
    model = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
model(torch.randn(4, 64, requires_grad=True)).sum().backward()
continue''')),
    Run("rank-exits-early", "uneven-batches-between-ranks", "rank 1 ends with exit code 0 after its last batch",
        {"node0": ENV.replace("{n}", "0"), "node1": ENV.replace("{n}", "1")},
        train("if rank == 1 and step == 3:\n    print('rank 1: no more batches, training finished', flush=True)\n    return", steps=8), form="hosts"),
]

LAUNCH = [
    Run("torchrun-unknown-option", "launcher-argument-misread", "an option torchrun does not have",
        {"node0": "torchrun --standalone --num-gpus 2 train.py"}, train()),
    Run("script-misspelt", "launcher-argument-misread python-or-launcher-missing", "the script's name is misspelt",
        {"node0": "torchrun --standalone --nproc-per-node 2 trian.py"}, train()),
    Run("option-without-value", "launcher-argument-misread", "an option that wants a value swallowed the next option",
        {"node0": "torchrun --standalone --nproc-per-node --max-restarts 0 train.py"}, train()),
    Run("nproc-is-gpu", "no-gpu-visible launcher-argument-misread", "--nproc-per-node gpu on a machine without one",
        {"node0": "torchrun --standalone --nproc-per-node gpu train.py"}, train()),
    Run("script-option-unknown", "rank-raised-exception launcher-argument-misread", "the script's own argparse refuses an option",
        {"node0": ONE["node0"] + " --learning-rate 0.1"}, train(before="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\nargs = parser.parse_args()")),
    Run("local-rank-dashes", "local-rank-argument-rejected", "torch.distributed.launch and a script that knows --local_rank only",
        {"node0": "python -m torch.distributed.launch --nproc-per-node 2 train.py --epochs 1"},
        train(before="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--local_rank', type=int)\nparser.add_argument('--epochs', type=int)\nargs = parser.parse_args()")),
    Run("old-launch-new-python", "rank-raised-exception", "torch.distributed.launch of torch 1.13 does not work with Python 3.11",
        {"node0": OLDER + "python -m torch.distributed.launch --nproc_per_node 2 train.py --epochs 1"},
        train(before="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\nargs = parser.parse_args()")),
    Run("accelerate-cpu-starts-one", "rendezvous-variables-missing", "accelerate launch --cpu starts one process without the variables, though two were asked",
        {"node0": WITH_LAUNCHERS + "accelerate launch --cpu --num_processes 2 --main_process_port 29500 train.py"}, train(), limit_s=60),
    Run("accelerate-unknown-option", "launcher-argument-misread", "accelerate: an option it does not have",
        {"node0": WITH_LAUNCHERS + "accelerate launch --cpu --nproc_per_node 2 --machine-rank 0 train.py"}, train()),
    Run("accelerate-raises", "rank-raised-exception", "accelerate: an exception on one process",
        {"node0": WITH_LAUNCHERS + "export ACCELERATE_USE_CPU=true; accelerate launch --multi_gpu --num_machines 1 --num_processes 2 train.py"}, plain('''
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(4):
    x = torch.randn(8, 16)
    y = torch.randint(0, 2 if accelerator.process_index == 0 or step < 2 else 5, (8,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(f"step {step} loss {loss.item():.3f}")
'''), limit_s=90),
    Run("accelerate-machine-alone", "peers-never-joined", "accelerate: two machines configured, machine 1 was never started",
        {"node0": WITH_LAUNCHERS + "accelerate launch --multi_gpu --num_machines 2 --num_processes 2 --machine_rank 0 --main_process_ip node0 --main_process_port 29500 --rdzv_backend static --rdzv_conf timeout=12 train.py"}, train(), limit_s=70),
    Run("deepspeed-no-hostfile", "hostfile-missing", "deepspeed --num_nodes 2 without a host file",
        {"node0": WITH_LAUNCHERS + "deepspeed --num_nodes 2 --master_addr node0 train.py"}, train(), limit_s=60),
    Run("deepspeed-no-pdsh", "python-or-launcher-missing", "deepspeed: pdsh is not installed",
        {"node0": WITH_LAUNCHERS + "printf 'node0 slots=1\\nnode1 slots=1\\n' >hostfile; deepspeed --hostfile hostfile train.py"}, train(), limit_s=60),
    Run("deepspeed-no-key", "ssh-not-passwordless", "deepspeed: the first host refuses the key",
        {"node0": WITH_LAUNCHERS + "printf 'node1 slots=1\\nnode0 slots=1\\n' >hostfile; deepspeed --hostfile hostfile train.py"}, train(), faults={"ssh-key-refused": {}}, limit_s=60),
    Run("deepspeed-raises", "rank-raised-exception", "deepspeed: an exception on rank 1",
        {"node0": WITH_LAUNCHERS + "deepspeed --num_accelerators 2 --no_local_rank train.py"}, train(RAISES), limit_s=90,
        env={"DS_ACCELERATOR": "cpu"}),
    Run("deepspeed-slots", "not-enough-slots launcher-argument-misread rank-raised-exception", "deepspeed --include names a slot the host does not have",
        {"node0": WITH_LAUNCHERS + "printf 'node0 slots=2\\n' >hostfile; deepspeed --hostfile hostfile --include node0:4 train.py"}, train(), limit_s=60),
    Run("ssh-port-closed", "ssh-connection-refused", "node1's sshd is down; a loop over ssh starts the nodes",
        {"node0": "for n in 0 1; do (ssh node$n 'echo started on $(hostname)' 2>&1 | sed \"s/^/node$n: /\") & done; wait; echo 'launch.sh: node1 failed with 255'"}, train(), faults={"ssh-refused": {}}),
    Run("ssh-silent", "ssh-timeout", "node1's firewall drops ssh",
        {"node0": "ssh -o ConnectTimeout=5 node1 torchrun --version; echo 'launch.sh: node1 failed with 255'"}, train(), faults={"ssh-dropped": {}}),
    Run("ssh-host-key", "ssh-not-passwordless", "node1's host key changed",
        {"node0": "ssh node1 torchrun --version; echo \"launch.sh: node1 failed with $?\""}, train(), faults={"ssh-key-changed": {}}),
    Run("mpirun-slots", "not-enough-slots", "mpirun -np 8 on two slots",
        {"node0": WITH_RAY + "mpirun --allow-run-as-root -H node0:2 -np 8 python train.py"}, train()),
    Run("mpirun-no-program", "python-or-launcher-missing", "mpirun cannot find the interpreter",
        {"node0": WITH_RAY + "mpirun --allow-run-as-root -H node0:2 -np 2 python3.12 train.py"}, train()),
    Run("mpirun-segfault", "rank-crashed", "mpirun: rank 1 reads address 0",
        {"node0": WITH_RAY + "mpirun --allow-run-as-root -H node0:2 -np 2 python train.py"}, plain('''
import ctypes, os, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
print(f"rank {rank}: solver starts", flush=True)
time.sleep(1)
if rank == 1:
    ctypes.string_at(8)
time.sleep(20)
''')),
    Run("mpirun-raises", "rank-raised-exception", "mpirun: rank 1 raises",
        {"node0": WITH_RAY + "mpirun --allow-run-as-root --tag-output -H node0:2 -np 2 python train.py"}, plain('''
import json, os, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
print(f"rank {rank}: reading the configuration", flush=True)
config = json.loads('{"lr": 0.1}' if rank == 0 else '{"lr": 0.1,}')
time.sleep(10)
''')),
    Run("mpich-killed", "rank-killed", "mpiexec of MPICH: rank 1 gets SIGKILL",
        {"node0": "export PATH=$MPICH/bin:$PATH; mpiexec -np 2 python train.py"}, plain('''
import os, time
rank = int(os.environ["PMI_RANK"])
print(f"rank {rank}: solver starts", flush=True)
time.sleep(1)
if rank == 1:
    os.kill(os.getpid(), 9)
time.sleep(10)
''')),
    Run("ray-task-raises", "rank-raised-exception", "Ray: an actor's method raises",
        {"node0": WITH_RAY + "python train.py"}, plain('''
import ray

ray.init(num_cpus=2, include_dashboard=False)


@ray.remote
class Trainer:
    def __init__(self, rank):
        self.rank = rank

    def fit(self):
        print(f"rank {self.rank} starts")
        rows = [3, 1, 2]
        if self.rank == 1:
            rows = []
        return max(rows)


trainers = [Trainer.remote(rank) for rank in range(2)]
print(ray.get([trainer.fit.remote() for trainer in trainers]))
'''), limit_s=90),
    Run("ray-actor-segfault", "rank-crashed", "Ray: an actor's process dies of SIGSEGV",
        {"node0": WITH_RAY + "python train.py"}, plain('''
import ctypes, time
import ray

ray.init(num_cpus=2, include_dashboard=False)


@ray.remote
class Trainer:
    def fit(self, rank):
        time.sleep(1)
        if rank == 1:
            ctypes.string_at(0)
        return rank


trainers = [Trainer.remote() for _ in range(2)]
print(ray.get([trainer.fit.remote(rank) for rank, trainer in enumerate(trainers)]))
'''), limit_s=90),
    Run("ray-no-head", "store-unreachable", "Ray: nobody at the head's address",
        {"node1": WITH_RAY + "RAY_gcs_rpc_server_reconnect_timeout_s=5 ray start --address node0:6379"}, {}, limit_s=90),
    Run("jax-no-coordinator", "store-unreachable", "JAX: the coordinator was never started",
        {"node1": WITH_LAUNCHERS + "python train.py"}, plain('''
import jax

jax.distributed.initialize("node0:1234", num_processes=2, process_id=1, initialization_timeout=8)
print(jax.devices())
'''), limit_s=60, cut="head:50"),
    Run("jax-peer-absent", "peers-never-joined store-unreachable", "JAX: process 1 was never started",
        {"node0": WITH_LAUNCHERS + "python train.py"}, plain('''
import jax

jax.distributed.initialize("node0:1234", num_processes=2, process_id=0, initialization_timeout=8)
print(jax.devices())
'''), limit_s=60),
    Run("jax-raises", "rank-raised-exception", "JAX: process 1 raises between two reductions",
        both(WITH_LAUNCHERS + "ID={n} python train.py"), plain('''
import os
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

me = int(os.environ["ID"])
jax.distributed.initialize("node0:1234", num_processes=2, process_id=me, initialization_timeout=60, heartbeat_timeout_seconds=10)
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.devices()}", flush=True)
for step in range(4):
    batch = jnp.ones((8, 16 if me == 0 or step < 2 else 12))
    weights = jnp.ones((16, 4))
    total = multihost_utils.process_allgather((batch @ weights).sum())
    print(f"process {me} step {step} {total}", flush=True)
'''), limit_s=60, prefix="colon"),
    Run("jax-peer-killed", "rank-killed peer-died-first", "JAX: process 1 is killed",
        both(WITH_LAUNCHERS + "ID={n} python train.py"), plain('''
import os, time
import jax
from jax.experimental import multihost_utils

me = int(os.environ["ID"])
jax.distributed.initialize("node0:1234", num_processes=2, process_id=me, initialization_timeout=60, heartbeat_timeout_seconds=10)
for step in range(40):
    if me == 1 and step == 3:
        os.kill(os.getpid(), 9)
    multihost_utils.sync_global_devices(f"step{step}")
    print(f"process {me} step {step}", flush=True)
'''), limit_s=70, form="hosts"),
    Run("lightning-raises", "rank-raised-exception", "Lightning: the training step raises on rank 1",
        {"node0": WITH_LAUNCHERS + "python train.py"}, plain('''
import torch
import lightning as L


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, index):
        if self.global_rank == 1 and index == 2:
            batch = batch[:, :16]
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.randn(64, 32), batch_size=4)
    L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False).fit(Net(), data)
'''), limit_s=120, cut="tail:50"),
]

SLURM_TRAIN = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=node1 MASTER_PORT=29500 python train.py"
BATCH = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --output=slurm-%j.out\n"
WAIT = "; while [ -n \"$(squeue -h)\" ]; do sleep 0.5; done; sleep 1"
SLURM = [
    Run("slurm-scancel", "job-cancelled", "sbatch, then scancel",
        {"node0": "sbatch job.sh; sleep 16; scancel 1" + WAIT}, {**SLOW, "job.sh": BATCH + f"srun --label bash -c '{SLURM_TRAIN}'\n"}, slurm=True, form="slurm-*.out", limit_s=70),
    Run("slurm-time-limit", "job-cancelled", "the job's time limit of one minute",
        {"node0": "sbatch --time 1 job.sh" + WAIT}, {**train("time.sleep(3)", steps=60), "job.sh": BATCH + f"srun --label bash -c '{SLURM_TRAIN}'\n"}, slurm=True, form="slurm-*.out", limit_s=150),
    Run("slurm-raises", "rank-raised-exception", "srun --label, rank 1 raises",
        {"node0": f"srun -N2 -n2 --label --kill-on-bad-exit=1 bash -c '{SLURM_TRAIN}'"}, train(RAISES), slurm=True),
    Run("slurm-segfault", "rank-crashed", "srun, rank 0 dies of SIGSEGV",
        {"node0": f"srun -N2 -n2 --kill-on-bad-exit=1 bash -c '{SLURM_TRAIN.replace('python', 'exec python')}'"}, train("if rank == 0 and step == 2:\n    import ctypes\n    ctypes.string_at(0)"), slurm=True),
    Run("slurm-launcher-per-task", "launcher-started-per-task", "two tasks per node, each starts torchrun with two processes",
        {"node0": "set -x; srun -N2 --ntasks-per-node 2 --label bash -c 'torchrun --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 --rdzv-conf timeout=15 --master-addr node1 --master-port 29500 train.py'"},
        train(init='"gloo", timeout=datetime.timedelta(seconds=10)'), slurm=True, limit_s=70),
    Run("slurm-no-program", "python-or-launcher-missing", "srun starts a program that the nodes do not have",
        {"node0": "srun -N2 -n2 /opt/conda/envs/train/bin/python train.py"}, train(), slurm=True),
    Run("slurm-kill-9", "rank-killed", "srun, rank 1 gets SIGKILL",
        {"node0": f"srun -N2 -n2 --label --kill-on-bad-exit=1 bash -c '{SLURM_TRAIN.replace('python', 'exec python')}'"}, train("if rank == 1 and step == 2:\n    os.kill(os.getpid(), 9)"), slurm=True),
]

SOUND = [
    Run("ok-name-is-loopback", "healthy", "node1's own name is 127.0.1.1: with two nodes Gloo meets all the same",
        both(ENV), train(), faults={"name-loopback": {"host": "node1"}}),
    Run("ok-restart-recovers", "healthy", "elastic: the first attempt raises, the second finishes",
        {"node0": ONE["node0"].replace("train.py", "--max-restarts 2 train.py")},
        train("if rank == 1 and step == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise ConnectionError('lost the connection to the data server')", after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), limit_s=90),
    Run("ok-handled-exception", "healthy", "a bad sample's traceback is logged, the sample skipped",
        both(C10D), train('''
try:
    if step == 1:
        {}["image"]
except KeyError:
    import logging
    logging.exception("cannot decode sample 8812, skipping it")''', after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), prefix="colon"),
    Run("ok-head-is-late", "healthy", "node1 dials for some seconds before the head listens",
        {"node1": ENV.replace("{n}", "1"), "node0": "sleep 8; " + ENV.replace("{n}", "0")}, train(init='"gloo", timeout=datetime.timedelta(seconds=60)', after="dist.destroy_process_group()\nprint(f'rank {rank}: done', flush=True)"), form="hosts"),
    Run("ok-head-is-late-torchrun", "healthy", "the same under torchrun of torch 2.4",
        {"node1": OLD + C10D, "node0": "sleep 8; " + OLD + C10D}, train(after="print(f'rank {rank}: done', flush=True)"), prefix="bracket"),
    Run("ok-error-in-names", "healthy", "metrics called error, failed: 0",
        ONE, train("print(f'step {step} train_error=0.1{step} word_error_rate=0.0{step} failed: 0 timeouts: 0 nccl_errors: 0', flush=True)", after="print('eval: 120 passed, failed: 0, errors: 0, fatal: 0', flush=True)\ndist.destroy_process_group()")),
    Run("ok-unequal-nodes", "healthy", "one process on node0, two on node1: torchrun counts them",
        {"node0": STATIC.replace("{n}", "0"), "node1": STATIC.replace("{n}", "1").replace("--nproc-per-node 1", "--nproc-per-node 2")}, train(), prefix="colon"),
    Run("ok-test-suite", "healthy", "a test suite whose cases expect failures",
        {"node0": "python -m pytest -p no:cacheprovider -rA -q test_fail.py"}, plain('''
import logging
import pytest
import torch
import torch.distributed as dist


def test_a_missing_variable_is_reported():
    with pytest.raises(ValueError) as caught:
        dist.init_process_group("gloo")
    logging.error("as expected: %s", caught.value)


@pytest.mark.xfail(reason="no GPU here")
def test_nccl():
    raise RuntimeError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")


def test_out_of_memory_is_handled(capfd):
    try:
        torch.empty(10**15)
    except RuntimeError as error:
        print(error)
''', "test_fail.py")),
    Run("ok-deprecated-launch", "healthy", "torch.distributed.launch with all its warnings",
        {"node0": "python -m torch.distributed.launch --use-env --nproc-per-node 2 train.py"}, train(after="print(f'rank {rank}: done', flush=True)"), env={"OMP_NUM_THREADS": ""}),
    Run("ok-loopback-fallback", "healthy", "one node whose name is unknown: Gloo falls back to loopback",
        {f"node0 {n}": "hostname unknown-host; " + ENV.replace("{n}", str(n)).replace("=node0", "=127.0.0.1") for n in range(2)},
        train(after="dist.destroy_process_group()\nprint(f'rank {rank}: done', flush=True)")),
    Run("ok-port-tried-again", "healthy", "a taken port is handled: the next one is taken",
        {"node0 other": "exec nc -l -k -p 29500 >/dev/null", "node0": "sleep 1; python train.py"}, plain('''
import logging
import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO)
for port in range(29500, 29510):
    try:
        store = dist.TCPStore("node0", port, 1, True)
        break
    except RuntimeError:
        logging.exception("port %d is taken, trying the next one", port)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
x = torch.ones(4)
dist.all_reduce(x)
logging.info("sum %s; finished", x)
dist.destroy_process_group()
'''), limit_s=30),
    Run("ok-memory-refused-once", "healthy", "the batch is halved after a refusal of memory",
        {"node0": "ulimit -v 12000000; " + ONE["node0"]}, train('''
size = 10_000_000_000
while step == 1:
    try:
        torch.empty(size)
        break
    except RuntimeError as error:
        print(f"[rank {rank}] {error}; halving the batch", flush=True)
        size //= 16''', after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)")),
    Run("ok-checkpoint-second-place", "healthy", "the first place for checkpoints is full, the second is taken",
        {"node0": "mkdir full; mount -t tmpfs -o size=4k none full; " + ONE["node0"] + "; umount full"}, train('''
if rank == 0 and step == 1:
    for place in "full", ".":
        try:
            with open(f"{place}/model.bin", "wb") as file:
                file.write(bytes(100_000))
            print(f"saved a checkpoint in {place}", flush=True)
            break
        except OSError as error:
            print(f"WARNING cannot save in {place}: {error!r}", flush=True)
dist.barrier()''', after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)")),
    Run("ok-usr1-checkpoint", "healthy", "SIGUSR1 asks for a checkpoint, the run goes on",
        {"node0": ENV.replace("{n}", "0").replace("SIZE=2", "SIZE=1")}, train("if step == 1:\n    os.kill(os.getpid(), 10)", before="import signal\nsignal.signal(signal.SIGUSR1, lambda number, frame: print(f'caught signal {number}, saving a checkpoint', flush=True))", after="dist.destroy_process_group()\nprint('training finished', flush=True)")),
    Run("ok-ray-retries", "healthy", "Ray: a task's worker dies once and is run again",
        {"node0": WITH_RAY + "python train.py"}, plain('''
import os
import ray

ray.init(num_cpus=2, include_dashboard=False)


@ray.remote(max_retries=3)
def shard(n):
    flag = f"/tmp/tried-{n}"
    if n == 1 and not os.path.exists(flag):
        open(flag, "w").close()
        os._exit(1)
    return n * n


print(sum(ray.get([shard.remote(n) for n in range(4)])))
print("training finished")
'''), limit_s=90),
    Run("ok-accelerate-port-taken", "healthy", "accelerate: the main process's port is taken, so it takes another one",
        {"node0 other": "exec nc -l -k -p 29500 >/dev/null", "node0": "sleep 1; " + WITH_LAUNCHERS + "accelerate launch --multi_gpu --num_machines 1 --num_processes 2 --main_process_port 29500 train.py"}, train(), limit_s=60),
    Run("ok-accelerate", "healthy", "accelerate on CPUs with its warnings",
        {"node0": WITH_LAUNCHERS + "accelerate launch --cpu --num_processes 2 train.py"}, plain('''
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model, optimizer = torch.nn.Linear(16, 2), None
model = accelerator.prepare(model)
for step in range(4):
    loss = model(torch.randn(8, 16)).square().mean()
    accelerator.backward(loss)
    accelerator.print(f"step {step} loss {loss.item():.3f}")
accelerator.print("done")
'''), limit_s=90),
    Run("ok-deepspeed", "healthy", "deepspeed on CPUs with its warnings",
        {"node0": WITH_LAUNCHERS + "deepspeed --num_accelerators 2 --no_local_rank train.py"}, train(after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), limit_s=90, env={"DS_ACCELERATOR": "cpu"}),
    Run("ok-jax", "healthy", "JAX on two nodes, with the platforms it looks for in vain",
        both(WITH_LAUNCHERS + "ID={n} python train.py"), plain('''
import os
import logging
logging.basicConfig(level=logging.INFO)
import jax
from jax.experimental import multihost_utils

me = int(os.environ["ID"])
jax.distributed.initialize("node0:1234", num_processes=2, process_id=me, initialization_timeout=60)
print(f"process {jax.process_index()} of {jax.process_count()}: {jax.devices()}", flush=True)
for step in range(4):
    multihost_utils.sync_global_devices(f"step{step}")
    print(f"process {me} step {step}", flush=True)
'''), limit_s=60, prefix="colon"),
    Run("ok-slurm", "healthy", "srun --label, a run that ends well",
        {"node0": f"srun -N2 -n2 --label bash -c '{SLURM_TRAIN}'"}, train(after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), slurm=True),
    Run("ok-lightning", "healthy", "Lightning with its warnings",
        {"node0": WITH_LAUNCHERS + "python train.py"}, plain('''
import torch
import lightning as L


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)

    def training_step(self, batch, index):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    data = torch.utils.data.DataLoader(torch.randn(64, 32), batch_size=4)
    L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False).fit(Net(), data)
'''), limit_s=120),
    Run("ok-mpirun", "healthy", "mpirun, an error norm and a solver's warnings",
        {"node0": WITH_RAY + "mpirun --allow-run-as-root --tag-output -H node0:2 -np 2 python train.py"}, plain('''
import os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
for n in range(4):
    print(f"iteration {n}: error {0.5 ** n:.5f}, failed lines 0", flush=True)
print("WARNING: Signal 11 handler is not installed (no libunwind)", file=sys.stderr, flush=True)
print(f"rank {rank}: converged, final error 1e-05", flush=True)
''')),
    Run("ok-overflow-skipped", "healthy", "a scaler skips steps with inf and nan",
        both(C10D), train("if step in (1, 2):\n    print(f'[rank {rank}] OVERFLOW! Skipping step {step}: grad norm nan. Attempted loss scale: {2 ** (16 - step)}, reducing to {2 ** (15 - step)}', flush=True)", steps=8, after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), prefix="kubectl"),
    Run("ok-old-torch-nccl-absent", "healthy", "torch with CUDA, no driver: warnings, then a sound run on CPUs",
        {"node0": OLD + ONE["node0"]}, train(before="print('cuda:', torch.cuda.is_available())\ntry:\n    model.cuda()\nexcept Exception as error:\n    print(f'falling back to the CPU: {error}')")),
    Run("ok-not-destroyed", "healthy", "the script never destroys its process group",
        both(ENV), train(after="print(f'rank {rank}: done', flush=True)"), form="hosts"),
]

LATER = [
    Run("torch-versions-differ", "store-unreachable nccl-versions-differ", "torch 2.4 on node0, 2.13 on node1: its store resets what it does not know",
        {"node0": OLD + C10D, "node1": C10D}, train(), prefix="colon"),
    Run("rank-stopped", "rank-fell-behind collective-stalled", "rank 1 was stopped (SIGSTOP) and not continued",
        {**both(ENV), "node1 killer": KILLS.replace("{signal}", "STOP")}, train("time.sleep(1)", before=WRITES_PID, steps=40), symptom="hang", form="hosts"),
    Run("syntax-error", "rank-raised-exception", "the script has a syntax error",
        ONE, train("batch = [1, 2")),
    Run("checkpoint-truncated", "rank-raised-exception", "the checkpoint to resume from was cut off",
        {"node0": "python -c 'import torch; torch.save(torch.ones(9999), \"last.pt\")'; truncate -s 20000 last.pt; " + ONE["node0"]}, train(before='state = torch.load("last.pt")'), prefix="iso"),
    Run("checkpoint-of-another-model", "rank-raised-exception", "the checkpoint's shapes are another model's",
        both(ENV), train(before='model.load_state_dict(torch.nn.Linear(32, 64).state_dict())'), prefix="stern"),
    Run("download-without-network", "rank-raised-exception hostname-unresolvable-from-peer", "the tokenizer is downloaded, the nodes have no DNS",
        both(C10D), train(before='import urllib.request\nurllib.request.urlopen("https://models.example.org/tokenizer.json")'), prefix="bracket"),
    Run("etcd-not-installed", "rank-raised-exception python-or-launcher-missing", "--rdzv-backend etcd-v2 without the package",
        {"node0": C10D.replace("c10d", "etcd-v2").replace("29500", "2379")}, train()),
    Run("endpoint-port-is-a-word", "launcher-argument-misread", "--rdzv-endpoint node0:PORT, the variable was not replaced",
        {"node0": C10D.replace("29500", "PORT")}, train()),
    Run("master-port-too-large", "launcher-argument-misread rank-raised-exception", "--master-port 295000",
        {"node0": STATIC.replace("{n}", "0").replace("29500", "295000")}, train()),
    Run("slurm-too-many-tasks", "not-enough-slots slurm-tasks-mismatch job-cancelled", "srun asks for more CPUs than the nodes have",
        {"node0": "srun -N2 -n64 python train.py"}, train(), slurm=True),
    Run("ok-node-joins-late", "healthy", "elastic 1:2: the second node joins, the workers are started again and finish",
        {"node0": C10D.replace("--nnodes 2", "--nnodes 1:2 --max-restarts 3"), "node1": "sleep 14; " + C10D.replace("--nnodes 2", "--nnodes 1:2 --max-restarts 3")},
        train("time.sleep(1)", steps=16, after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), prefix="colon", limit_s=90),
    Run("ok-node-leaves", "healthy", "elastic 1:2: the second node is taken back, the first one finishes alone",
        {"node0": C10D.replace("--nnodes 2", "--nnodes 1:2 --max-restarts 3"), "node1": "echo $$ >agent.pid; exec " + C10D.replace("--nnodes 2", "--nnodes 1:2 --max-restarts 3"), "node1 killer": "sleep 20; kill $(cat agent.pid)"},
        train("time.sleep(1)", steps=14, after="dist.destroy_process_group()\nprint(f'rank {rank}: training finished', flush=True)"), form="hosts", limit_s=120),
    Run("slurm-step-too-large", "not-enough-slots slurm-tasks-mismatch", "two steps ask for more CPUs than the job has",
        {"node0": "sbatch job.sh; sleep 1" + WAIT}, {**train(after="print('training finished', flush=True)"), "job.sh": BATCH + "srun --exclusive -N2 -n2 -c2 sleep 8 &\nsleep 1\nsrun --exclusive -N2 -n2 -c2 --label bash -c '" + SLURM_TRAIN + "'\nwait\n"}, slurm=True, form="slurm-*.out", limit_s=90),
]
"""Added when the first ones had been read; labelled, too, before they were."""

RUNS = [*MEETING, *PROCESS, *RANKS, *LAUNCH, *SLURM, *SOUND, *LATER]
# fmt: on
