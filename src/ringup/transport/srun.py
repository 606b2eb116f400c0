"""
Slurm's own client reaches a node of the allocation: one step of one task per node.

`--overlap` lets the step run in parallel with others; without `--exact` it has every CPU of the allocation on
its node, and without GPU options every GPU (srun(1), 20.11 and later). srun forwards stdin, its end of file
and both output streams, so the loop of `bootstrap` works over srun as over ssh.

`#SBATCH` lines leave variables that would change the step (SLURM_NTASKS_PER_NODE, SLURM_GPUS_PER_TASK, ...):
srun is started without them, and the node's shell gets those of one step over all nodes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ringup.errors import LaunchError
from ringup.model import Host, Unreached
from ringup.transport.client_errors import ClientErrors, how_ended
from ringup.units import printable, show_seconds

_READ_BY_SRUN = ("SLURM_", "SRUN_")
_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_WORKING_CLUSTER")
"""Identify the Slurm cluster; srun needs these."""
_OF_THE_JOB: tuple[str, ...] = ("SLURM_JOB", "SLURM_ARRAY_", "SLURM_SUBMIT_", "SLURM_GPUS", "SLURM_CPUS_PER_")
_OF_THE_JOB += ("SRUN_CPUS_PER_TASK", "SLURM_MEM_", "SLURM_RESTART_COUNT")
"""Prefixes of variables that the job's own programs may read."""
TOO_LATE = 124
"""The exit code of timeout(1)."""
_HARMLESS = "lacks support for cpu binding"


def is_here(environ: Mapping[str, str]) -> bool:
    """Whether this process runs in an allocation and has srun (a container may lack it)."""
    job = environ.get("SLURM_JOB_ID", "")
    return job.isdigit() and shutil.which("srun", path=environ.get("PATH")) is not None


def command(host: Host, hosts: Sequence[Host], loop: str, environ: Mapping[str, str]) -> list[str]:
    """The command line of one connection; the node's `sh` runs `loop`."""
    position = next(i for i, other in enumerate(hosts) if other.name == host.name)
    words = ["srun", f"--jobid={environ['SLURM_JOB_ID']}", f"--nodelist={host.name}", "--overlap"]
    # --mem=0: all memory of the allocation on that node (srun(1)).
    words += ["--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--chdir=/", "--quiet"]
    variables = _variables(position, hosts, environ)
    return [*words, "--job-name=ringup", "env", *variables, "/bin/sh", "-c", loop]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k in _CLUSTER or not k.startswith(_READ_BY_SRUN)}


def _variables(position: int, hosts: Sequence[Host], environ: Mapping[str, str]) -> list[str]:
    """`NAME=value` words: the job's variables, and those of one step of one task per node."""
    names = environ.get("SLURM_JOB_NODELIST") or ",".join(host.name for host in hosts)
    count = str(len(hosts))
    each = "1" if count == "1" else f"1(x{count})"
    job = {k: v for k, v in environ.items() if k.startswith(_OF_THE_JOB) and k not in _CLUSTER}
    step = {"LOCALID": "0", "NTASKS_PER_NODE": "1", "STEP_NODELIST": names}
    step |= dict.fromkeys(("NODEID", "PROCID"), str(position))
    step |= dict.fromkeys(("NTASKS", "NPROCS", "NNODES", "STEP_NUM_NODES", "STEP_NUM_TASKS"), count)
    step |= dict.fromkeys(("TASKS_PER_NODE", "STEP_TASKS_PER_NODE"), each)
    job |= {f"SLURM_{name}": value for name, value in step.items()}
    return [f"{name}={value}" for name, value in job.items()]


class Errors(ClientErrors):
    """srun's stderr: its own lines explain a failure, the node's lines are passed on."""

    CHATTER = MARKS = (b"srun: ", b"slurmstepd: ", b"slurmstepd-")

    def _is_own(self, line: bytes) -> bool:
        return line.startswith(self.CHATTER)

    def words(self) -> str:
        """srun's errors, else its last lines, else the node's."""
        own = [line for line in self._own if _HARMLESS not in line]
        return self._errors() or printable(" / ".join((own or [*self._others])[-3:]), 400)

    def _errors(self) -> str:
        return printable(" / ".join([line for line in self._own if "error: " in line][-3:]), 400)

    def ended_early(self, code: int, noise: str) -> Unreached:
        words = self.words() or noise or f"srun ended with {code} and printed nothing"
        return Unreached("srun-failed", words)

    def stuck(self, silent_s: float) -> Unreached:
        said, words = self.words(), f"no step began within {show_seconds(silent_s)}"
        return Unreached("srun-failed", f"{words}: {said}" if said else words)

    def lost(self, code: int) -> Unreached:
        return Unreached("srun-failed", f"step lost: {self._errors() or how_ended('srun', code)}")


def run_here(
    words: Sequence[str], *, env: Mapping[str, str], limit_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's command here; returncode TOO_LATE after `limit_s`, LaunchError if it is missing."""
    try:
        return subprocess.run(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            start_new_session=True,  # we handle Ctrl-C ourselves
        )
    except OSError as error:
        hint = "run this where the scheduler's commands are, on a login node"
        raise LaunchError(f"{words[0]} cannot be started here: {error.strerror}", hint=hint) from error
    except subprocess.TimeoutExpired:
        why = f"{words[0]} did not answer within {show_seconds(limit_s)}"
        return subprocess.CompletedProcess(words, TOO_LATE, "", why)


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Its last output about the failure, in one safe line."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return printable(" / ".join(lines[-3:]), 600) or f"it ended with {done.returncode}"
