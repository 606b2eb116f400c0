"""
Slurm's own client as the way to a node of the allocation: one step of one task a node.

`--overlap` lets the step stand beside whatever else runs there; without `--exact` it has every CPU of
the allocation on its node, and without options of its own every GPU (srun(1), 20.11 and later).
srun passes stdin, its end of file and both streams on, so the loop of `boot` works over it as over ssh.

What `#SBATCH` lines left in the environment would change the step (SLURM_NTASKS_PER_NODE,
SLURM_GPUS_PER_TASK, SLURM_STDOUTMODE, ...): srun is started without it, and the node's shell finds it
again.  There a step of its own would call every node the only one; the shell is told what one step over
all nodes would say.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ringup.facts import Host, Unreached
from ringup.reach.ssh import Phase
from ringup.units import printable, show_seconds

_READ_BY_SRUN = ("SLURM_", "SRUN_")
_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_WORKING_CLUSTER")
"""Which Slurm it is; srun needs these."""
_OF_THE_JOB = (
    "SLURM_JOB",
    "SLURM_ARRAY_",
    "SLURM_SUBMIT_",
    "SLURM_GPUS",
    "SLURM_CPUS_PER_",
    "SRUN_CPUS_PER_TASK",
    "SLURM_MEM_",
    "SLURM_RESTART_COUNT",
)
"""Prefixes of what the job's own programs may want to know."""
_HARMLESS = "lacks support for cpu binding"
_OWN = (b"srun: ", b"slurmstepd: ", b"slurmstepd-")


def is_here(environ: Mapping[str, str]) -> bool:
    """Whether this process stands in an allocation and has srun (a container may lack it)."""
    job = environ.get("SLURM_JOB_ID", "")
    return job.isdigit() and shutil.which("srun", path=environ.get("PATH")) is not None


def command(host: Host, hosts: Sequence[Host], loop: str, environ: Mapping[str, str]) -> list[str]:
    """The words of one connection; `loop` is what the node's `sh` runs."""
    position = next(i for i, other in enumerate(hosts) if other.name == host.name)
    return [
        "srun",
        f"--jobid={environ['SLURM_JOB_ID']}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={host.name}",
        "--mem=0",  # all of the allocation's on that node (srun(1))
        "--cpu-bind=none",
        "--mpi=none",
        "--chdir=/",
        "--quiet",
        "--job-name=ringup",
        "env",
        *_told(position, hosts, environ),
        "/bin/sh",
        "-c",
        loop,
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What srun is started with."""
    return {k: v for k, v in environ.items() if k in _CLUSTER or not k.startswith(_READ_BY_SRUN)}


def _told(position: int, hosts: Sequence[Host], environ: Mapping[str, str]) -> list[str]:
    """`NAME=value` words: the job's variables, and those of one step of one task a node."""
    names = environ.get("SLURM_JOB_NODELIST") or ",".join(host.name for host in hosts)
    count, each = str(len(hosts)), "1" if len(hosts) == 1 else f"1(x{len(hosts)})"
    step = {
        "SLURM_NODEID": str(position),
        "SLURM_PROCID": str(position),
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": count,
        "SLURM_NPROCS": count,
        "SLURM_NNODES": count,
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_TASKS_PER_NODE": each,
        "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_NODES": count,
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_TASKS_PER_NODE": each,
    }
    job = {k: v for k, v in environ.items() if k.startswith(_OF_THE_JOB) and k not in _CLUSTER}
    return [f"{name}={value}" for name, value in {**job, **step}.items()]


class Errors:
    """srun's stderr: its own lines are kept as the reason of a failure, the node's are passed on."""

    KEPT_LINES = 20
    LONGEST_LINE = 8192
    phase = Phase.LOGGED_IN
    """No login stands before the node's shell."""

    def __init__(self) -> None:
        self._own: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._others: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._line = b""
        self._passed = False
        """Whether the beginning of this line was already given out."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that are the node's; the beginning of a line that may be srun's is held back."""
        *lines, last = data.split(b"\n")
        passed = [self._piece(line + b"\n") for line in lines]
        if last:
            passed.append(self._piece(last))
        return b"".join(passed)

    def _piece(self, piece: bytes) -> bytes:
        line, passed, ends = self._line + piece, self._passed, piece.endswith(b"\n")
        self._passed = not ends
        self._line = b"" if ends else line[: self.LONGEST_LINE]
        if not passed and any(line.startswith(own) or own.startswith(line) for own in _OWN):
            if not ends and len(line) < self.LONGEST_LINE:
                self._passed = False
                return b""
            if ends and any(line.startswith(own) for own in _OWN):
                self._own.append(line.decode("utf-8", "replace").strip())
                return b""
        if ends:
            self._others.append(line.decode("utf-8", "replace").strip())
        return piece if passed else line

    def words(self) -> str:
        """srun's errors, else its last words, else the node's."""
        own = [line for line in self._own if _HARMLESS not in line]
        return self._errors() or printable(" / ".join((own or [*self._others])[-3:]), 400)

    def _errors(self) -> str:
        return printable(" / ".join([line for line in self._own if "error: " in line][-3:]), 400)

    def was_dropped(self) -> bool:
        """Never: srun itself waits its turn."""
        return False

    def ended_early(self, code: int, noise: str) -> Unreached:
        """Why a step ended before the node's shell had answered."""
        return Unreached("srun-failed", self.words() or noise or f"srun ended with {code} and said nothing")

    def stuck(self, silent_s: float) -> Unreached:
        """A step that does not begin."""
        said, words = self.words(), f"no step began within {show_seconds(silent_s)}"
        return Unreached("srun-failed", f"{words}: {said}" if said else words)

    def lost(self, code: int, show_signal: Callable[[int], str]) -> Unreached:
        """Why a step that had served ended."""
        how = f"srun was ended by {show_signal(-code)}" if code < 0 else f"srun ended with {code}"
        return Unreached("srun-failed", f"step lost: {self._errors() or how}")
