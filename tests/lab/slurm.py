"""
A real Slurm on the hosts of a lab: slurmctld on the first, a slurmd on each of the others.

Debian 12's 22.05 (`slurm-wlm munge`).  What the settings are for: without `proctrack/linuxproc`,
`task/none` and cgroup v1 slurmd dies where cgroups are not mounted; `config_overrides` keeps nodes
from being drained for having fewer CPUs than they say; munged runs once, its socket is a file that
every host sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cluster import Lab
from .machine import which

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "scancel", "squeue", "scontrol")
PACKAGES = "slurm-wlm munge"
KILL_WAIT_S = 8
"""Slurm's SIGTERM to SIGKILL; 30 by default."""
START_S = 60
"""Bound; 1 to 3 s were measured on a machine at rest."""

CONF = """\
ClusterName=lab
SlurmctldHost={controller}({controller_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
ReturnToService=2
SlurmdParameters=config_overrides
KillWait={kill_wait}
SlurmdTimeout=10
InactiveLimit=0
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
{nodes}
PartitionName=train Nodes={names} Default=YES MaxTime=60 State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty when there can."""
    absent = [name for name in PROGRAMS if not which(name)]
    return f"needs {', '.join(absent)} (Debian: {PACKAGES})" if absent else ""


class Slurm:
    """Slurm over a lab; `lab.hosts[0]` is the login node, jobs run on the others."""

    def __init__(self, lab: Lab, cpus: int = 4) -> None:
        self.lab = lab
        self.login = lab.hosts[0]
        self.nodes = [host.name for host in lab.hosts[1:]]
        # Not below /run or /tmp, which every host has for itself.
        self.folder = Path(tempfile.mkdtemp(prefix="ringup-slurm-", dir="/var/tmp"))
        self.daemons: dict[str, subprocess.Popen[Any]] = {}
        for name in ["state", *(f"spool-{node}" for node in self.nodes)]:
            (self.folder / name).mkdir()
        rows = [
            f"NodeName={node} NodeAddr={self._address(node)} CPUs={cpus} RealMemory=1000 State=UNKNOWN"
            for node in self.nodes
        ]
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(
            CONF.format(
                controller=self.login.name,
                controller_address=self._address(self.login.name),
                folder=self.folder,
                kill_wait=KILL_WAIT_S,
                nodes="\n".join(rows),
                names=",".join(self.nodes),
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        try:
            self._start_munge()
            self._start(self.login.name, "slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self.start_slurmd(node)
            self.wait(self.is_idle, "all nodes idle", START_S)
        except BaseException:
            self.close()
            raise

    def _address(self, host: str) -> str:
        return self.lab.host(host).port(self.lab.names_switch).address

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        words = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket"]
        words += [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
        with (self.folder / "munge.out").open("wb") as out:
            self.daemons["munged"] = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
        self.wait((self.folder / "munge.socket").exists, "munge's socket", START_S)

    def _start(self, host: str, name: str, *words: str) -> None:
        program = which(name)
        assert program
        with (self.folder / f"{name}-{host}.out").open("wb") as out:
            self.daemons[f"{name}-{host}"] = self.lab.popen(
                host, [program, *words], env={"SLURM_CONF": str(self.conf)}, cwd="/", stdout=out, stderr=out
            )

    def start_slurmd(self, node: str) -> None:
        """The daemon of one node."""
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """What a dead node leaves: nothing of Slurm or of any job runs there any more."""
        self.daemons[f"slurmd-{node}"].send_signal(signal.SIGKILL)
        self.daemons[f"slurmd-{node}"].wait()
        for process in self.lab.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the daemons; the lab ends what they started."""
        for daemon in self.daemons.values():
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what users do -----------------------------------------------------------------------------

    @property
    def env(self) -> dict[str, str]:
        """What Slurm's commands need."""
        return {"SLURM_CONF": str(self.conf)}

    def run(self, *words: str, timeout_s: float = 60, check: bool = True) -> str:
        """A command on the login node; its output."""
        return self.lab.run(
            self.login, words, env=self.env, cwd="/var/tmp", timeout_s=timeout_s, check=check
        ).stdout

    def is_idle(self) -> bool:
        """Whether every node waits for a job."""
        said = self.lab.run(self.login, ["sinfo", "-h", "-N", "-o", "%T"], env=self.env, cwd="/").stdout
        return said.split() == ["idle"] * len(self.nodes)

    def state(self, job: str) -> str:
        """COMPLETED, RUNNING, ...; empty for a job that is forgotten."""
        said = self.run("scontrol", "-o", "show", "job", job, check=False)
        return next((w.removeprefix("JobState=") for w in said.split() if w.startswith("JobState=")), "")

    def wait_end(self, job: str, within_s: float = 180) -> str:
        """Until a job is over; its last state."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        seen = ""

        def is_over() -> bool:
            nonlocal seen
            seen = self.state(job)
            return seen in over

        self.wait(is_over, f"the end of job {job}", within_s)
        return seen

    def wait(self, what: Callable[[], object], why: str, within_s: float) -> None:
        """Poll until `what()` is true."""
        until = time.monotonic() + within_s
        while not what():
            if time.monotonic() > until:
                raise AssertionError(f"not within {within_s} s: {why}\n{self.said()}")
            time.sleep(0.1)

    def said(self) -> str:
        """The ends of all logs, for the message of a failed assertion."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def about(self, job: str) -> str:
        """The last lines of all logs that name a job."""
        logs = sorted(self.folder.glob("*.log"))
        texts = {log.stem: log.read_text(errors="replace") for log in logs}
        lines = [f"{name}: {line}" for name, text in texts.items() for line in text.splitlines()]
        own = [line for line in lines if re.search(rf"(?i)\bjob(?:id)?[ =]*{job}\b", line)]
        return "\n".join(sorted(own, key=lambda line: line.partition("[")[2])[-24:])

    def left(self, known: Sequence[str] = ("slurmd", "slurmctld"), program: str = "") -> list[str]:
        """What runs on the nodes beside Slurm's own daemons and connections of ssh; of a program alone."""
        return [
            f"{node}: {process.pid} {' '.join(process.command)[-160:]}"
            for node in self.nodes
            for process in self.lab.processes(node)
            if process.state not in "ZX"
            and process.command
            and program in process.command[0]
            and not any(Path(process.command[0]).name.startswith(name) for name in (*known, "sshd"))
        ]
