"""`clean --kill` on a host full of processes that look like leftovers: all real ones go, no other does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.agent_bundle import program, source
from tests.guards import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PATIENCE_S = 60.0
RUN = "20260101-000000-abcd"
SLEEPS = "import time\ntime.sleep(3600)\n"
RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.10",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
}
TAG = {"RINGUP_RUN": RUN, "RINGUP_NODE": "0"}
ORPHAN = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
DAEMON = 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'
NOHUP = 'nohup "$@" </dev/null >{log} 2>&1 & echo $!'

# A rank that has started a web server as a daemon, and is gone itself.
STARTS_SERVER = """
import os, sys
if os.fork():
    os.wait()
    sys.exit()
os.setsid()
if os.fork():
    sys.exit()
os.execv(sys.executable, [sys.executable, "-m", "http.server", "8099", "--bind", "127.0.0.1"])
"""

# A rank with a helper in its session, one in a session of its own, and one whose variables are gone.
STARTS_HELPERS = """
import subprocess, sys, time
sleeps = [sys.executable, "-c", "import time; time.sleep(3600)", "helper"]
subprocess.Popen(sleeps)
subprocess.Popen(sleeps, start_new_session=True)
subprocess.Popen(sleeps, start_new_session=True, env={})
print("up", flush=True)
time.sleep(3600)
"""


class Host:
    """One lab host, and what the test has started on it: name -> pids as the host sees them."""

    def __init__(self, lab: Any, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.started: dict[str, set[int]] = {}
        self.open: list[Any] = []
        for name in ("train.py", "daemon.py", "tensorboard", "ray/dashboard.py", f"{RUN}-0/rank.py"):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(SLEEPS)
        (folder / "server.py").write_text(STARTS_SERVER)

    def start(self, name: str, words: list[str], env: dict[str, str], how: str = ORPHAN) -> int:
        """Start something whose parent then is the host's init."""
        how = how.replace("{log}", str(self.folder / f"{name}.log").replace(" ", "-"))
        done = self.lab.run("node0", ["sh", "-c", how, "sh", *words], env=env, cwd=self.folder, check=True)
        pid = int(done.stdout)
        # It is printed while this is a copy of the shell.
        wait_for(lambda: not self._is_copy(pid), f"the program of {name}", PATIENCE_S)
        self.started[name] = {pid}
        return pid

    def _is_copy(self, pid: int) -> bool:
        """Whether a process is still the shell that is to start something."""
        return any(p.command[:2] == ("sh", "-c") for p in self.lab.processes("node0") if p.host_pid == pid)

    def keep(self, words: list[str], on: str = "node0") -> Any:
        """Start something that the test stays the parent of."""
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = self.lab.popen(on, words, **quiet)
        self.open.append(process)
        return process

    def matching(self, text: str) -> set[int]:
        """Processes of the host that mention a text in words or variables."""
        found = self.lab.processes("node0", text)
        return {p.host_pid for p in found if p.state not in "ZX" and p.command[:1] != ("ssh",)}

    def table(self) -> dict[int, tuple[int, str]]:
        """Every process of the host, containers too: pid -> (parent, state)."""
        rows = self.lab.run("node0", ["ps", "-eo", "pid=,ppid=,stat="], check=True).stdout.splitlines()
        return {int(pid): (int(above), state) for pid, above, state in map(str.split, rows)}

    def living(self) -> dict[str, set[int]]:
        """Of what was started, what lives."""
        alive = {pid for pid, (_, state) in self.table().items() if state[0] not in "ZX"}
        return {name: pids & alive for name, pids in self.started.items()}

    def end(self) -> None:
        for process in self.open:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        for p in self.lab.processes("node0"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGKILL)


@pytest.fixture
def host(lab: Any) -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="ringup-innocents-", dir="/var/tmp"))
    made = Host(lab(hosts=2), folder)
    yield made
    made.end()
    shutil.rmtree(folder)


def start_innocents(host: Host) -> None:
    """Processes that are wanted, each with what could pass for the mark of a lost run."""
    python, folder = sys.executable, host.folder
    train, shim = str(folder / "train.py"), str(folder / f"{RUN}-0" / "rank.py")
    tagged = {**RANK, **TAG}
    host.start("rank of another batch job", [python, "-u", train], {**RANK, "SLURM_JOB_ID": "4242"})
    host.start("shim of another batch job", [python, shim], {**tagged, "PBS_JOBID": "7.pbs"})
    host.start("daemon with rank variables", [python, str(folder / "daemon.py")], RANK, DAEMON)
    host.start("daemon with -u", [python, "-u", str(folder / "daemon.py")], RANK, DAEMON)
    host.start("daemon with the tag", [python, str(folder / "daemon.py")], tagged, DAEMON)
    host.start("web server by hand", [python, "-m", "http.server", "8098", "--bind", "127.0.0.1"], RANK)
    host.start("tagged train.py by hand", [python, "-u", train], TAG)
    host.start("train.py under nohup", [python, "-u", train], RANK, NOHUP)
    host.start("train.py with a log", [python, "-u", train], RANK, '"$@" </dev/null >{log} 2>&1 & echo $!')
    host.start("TensorBoard", [python, str(folder / "tensorboard"), "--logdir", "runs"], tagged)
    host.start("Ray", [python, "-u", str(folder / "ray" / "dashboard.py")], RANK, DAEMON)
    host.start("watcher with the run's words", [python, train, shim, f"ringup-guard:{RUN}x"], TAG)
    host.start("shim of another run's name", [python, shim], {**RANK, "RINGUP_RUN": RUN[:-1]})
    other = [
        "setpriv",
        "--reuid=65534",
        "--clear-groups",
        python,
        "-S",
        "-c",
        "import time; time.sleep(3600)",
    ]
    host.start("another user's", [*other, shim], tagged)
    outside = host.start("in a container", ["unshare", "-p", "-f", python, shim], tagged)
    host.started["in a container"] |= wait_for(
        lambda: {pid for pid, (above, _) in host.table().items() if above == outside},
        "a container",
        PATIENCE_S,
    )
    (folder / "tmux").symlink_to(python)
    host.start("tmux", [str(folder / "tmux"), "-S", "-E", "-c", SLEEPS], tagged, DAEMON)
    os.mkfifo(folder / "typed")  # where a shell waits for words
    host.start("shell", ["bash", "--norc", "-i"], tagged, DAEMON.replace("</dev/null", "0<>typed"))
    host.start("tagged server of a rank", [python, str(folder / "server.py")], tagged)
    host.started["tagged server of a rank"] = wait_for(lambda: host.matching("8099"), "a server", PATIENCE_S)
    line = f"RANK=1 WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=1 MARK=by-ssh {python} {train}; true"
    host.keep(["ssh", "node0", line], on="node1")
    host.started["child of sshd"] = wait_for(
        lambda: host.matching("MARK=by-ssh"), "a child of sshd", PATIENCE_S
    )
    guarded = {"RINGUP_RUN": "20260102-000000-beef", "RINGUP_NODE": "0"}
    host.start("guard", [python, "-c", SLEEPS, "ringup-guard:20260102-000000-beef"], {}, DAEMON)
    host.start("rank of a living run", [python, "-u", train], {**RANK, **guarded})


def start_lost_run(host: Host) -> None:
    """A real guard and its job, of which everything that would have cleaned up is killed or stopped."""
    run = "20260103-000000-cafe"
    folder = host.folder / f"{run}-0"
    (host.folder / "rank_job.py").write_text(STARTS_HELPERS)
    guard = host.keep([sys.executable, "-c", program("guard.main"), f"ringup-guard:{run}"])
    order = {
        "run_id": run,
        "node": 0,
        "words": ["sh", "-c", f"{sys.executable} -S {folder}/rank.py & wait"],  # stands for torchrun
        "env": {"RINGUP_SCRIPT": str(host.folder / "rank_job.py"), "RANK": "0", "LOCAL_RANK": "0"},
        "chdir": str(host.folder),
        "run_dir": str(folder),
        "lease_s": 600.0,
        "grace_s": 1.0,
        "rank_source": program("rank.rank"),
        "main_source": source("rank.rank_main"),
        "look_source": "",
    }
    guard.stdin.write(json.dumps(order).encode() + b'\n{"type": "go"}\n')
    guard.stdin.flush()
    wait_for(lambda: len(host.matching("helper")) == 3, "a rank with its helpers", PATIENCE_S)
    helpers = host.matching("helper")
    found = {p.host_pid: p for p in host.lab.processes("node0") if run in " ".join(p.command)}
    guards = [p for p in found.values() if p.command[-1] == f"ringup-guard:{run}"]
    shims = [p for p in found.values() if p.command[-1].endswith("/rank.py")]
    ranks = [p for p in found.values() if p.command[-1].endswith("/rank_job.py")]
    assert len(guards) == 2 and len(shims) == 1 and len(ranks) == 1
    for p in shims:
        os.kill(p.pid, signal.SIGSTOP)
    for p in guards:
        os.kill(p.pid, signal.SIGKILL)
    host.started["guard, sentinel killed: shim, rank, helpers"] = {
        shims[0].host_pid,
        ranks[0].host_pid,
    } | helpers


@pytest.mark.torch
def test_every_leftover_is_ended_and_no_innocent(host: Host) -> None:
    start_innocents(host)
    living = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    agents = {}
    for name, port, how in (("living nohup torchrun", "29610", NOHUP), ("killed torchrun", "29620", ORPHAN)):
        agents[name] = host.start(
            name, [sys.executable, *living, port, str(host.folder / "train.py")], {}, how
        )
        workers = f"MASTER_PORT={port}"
        wait_for(lambda w=workers: len(host.matching(w)) == 2, f"two workers of {name}", 180)
        host.started[name] |= host.matching(workers)
    innocents = set(host.started) - {"killed torchrun"}
    assert len(innocents) >= 20 and all(host.started.values()), host.started
    (agent,) = (p for p in host.lab.processes("node0") if p.host_pid == agents["killed torchrun"])
    os.kill(agent.pid, signal.SIGKILL)
    host.started["killed torchrun"].discard(agent.host_pid)
    start_lost_run(host)
    shared = "/dev/shm/torch_999999_1_0 /dev/shm/nccl-lost"
    host.lab.sh("node0", f"umask 077; for f in {shared}; do echo x >$f; touch -d '1 hour ago' $f; done")
    with host.lab.broken("stale-run", host="node0", port=29500):
        stale = host.matching("earlier/train.py")
        host.started["rank that serves its port"] = stale
        before = host.living()
        listed = host.lab.run("node0", ["ringup", "clean", "-H", "node0", "--json"], timeout_s=300)
        assert host.living() == before and listed.returncode == 1, listed.stderr
        # Files younger than a minute by their change time are nobody's proof yet.
        killed = host.lab.run("node0", ["ringup", "clean", "-H", "node0", "--kill", "--json"], timeout_s=300)
        (node,) = json.loads(killed.stdout)["nodes"]
        after = host.living()
        assert {name: after[name] for name in innocents} == {name: before[name] for name in innocents}, node
        assert {name: after[name] for name in after if name not in innocents and after[name]} == {}, (
            json.dumps(node, indent=1)
        )
    assert {one["path"] for one in node["files"]} == set(shared.split())
    text = host.lab.run("node0", ["ringup", "clean", "-H", "node0"]).stdout
    for one in node["left"]:
        assert one["doubt"] and f"kill {one['pid']}" in text
    running = {one["pid"]: one["evidence"] for one in node["running"]}
    assert "its launcher lives" in running[agents["living nohup torchrun"]]
