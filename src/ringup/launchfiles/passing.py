"""
Environment variables that reach a program through srun, ssh, a container and similar.

Sources: srun(1), ssh(1) and pdsh(1), `docker run --help`, Apptainer's "Environment and Metadata",
env(1), sudo(8); mpirun(1) of Open MPI 4 and 5: over ssh it exports the variables of -x alone.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.programs import MPI_OPTIONS
from ringup.launchfiles.start import Step
from ringup.model import CONTAINERS

DOCKER = ("docker", "podman", "nvidia-docker", "podman-hpc")
REMOTE = ("ssh", "pdsh", "clush", "dsh", "pssh", "gcloud")
"""They start a login on the other machine."""
MPIRUN = ("mpirun", "mpiexec", "prterun")
_HOSTS = (*MPI_OPTIONS["hosts"], *MPI_OPTIONS["hostfile"])
OF_SLURM = ("SLURM_", "SLURMD_")
_FOR_APPTAINER = re.compile("(?:APPTAINER|SINGULARITY)ENV_")


def passed_on(step: Step, env: Mapping[str, str], in_job: bool = False) -> dict[str, str]:
    """
    The environment of a program that `step` starts, with the variables that the step adds.

    `in_job`: inside a job of a scheduler, whose daemons give the whole environment to Open MPI's ranks.
    """
    program = posixpath.basename(step.program)
    if program in DOCKER:
        given = _given(step, "-e", "--env")
        # A running container already has its own environment.
        is_whole = step.has("--env-file", "--env-host") or step.subcommand == "exec"
        return _kept(env, given, is_whole)
    if program in CONTAINERS:
        given = _given(step, "--env")
        given |= {_FOR_APPTAINER.sub("", n): v for n, v in env.items() if _FOR_APPTAINER.match(n)}
        is_whole = step.has("--env-file") or not step.has("-e", "--cleanenv", "-C", "--containall")
        return _kept(env, given, is_whole)
    if program == "srun":
        given = _given(step, "--export")
        is_whole = not given or "ALL" in given or "NIL" in given
        return _kept(env, given, is_whole)
    if program in MPIRUN and not in_job and step.has(*_HOSTS) and step.has("-x"):
        return _kept(env, _given(step, "-x"), False)
    is_bare = program == "env" and step.has("-i", "-", "--ignore-environment")
    is_bare = is_bare or (program == "sudo" and not step.has("-E", "--preserve-env", "-i"))
    return {} if is_bare or program in REMOTE else dict(env)


def keeps(step: Step, name: str, in_job: bool = False) -> bool:
    """Whether an exported variable reaches the command of `step`, with this value or the step's own."""
    is_of_step = posixpath.basename(step.program) == "srun" and name.startswith(OF_SLURM)
    return is_of_step or name in passed_on(step, {name: "x"}, in_job)


def _given(step: Step, *options: str) -> dict[str, str | None]:
    """NAME -> value, None if it is taken from outside."""
    words = [o.value for o in step.options if o.name in options]
    is_one = "-e" in options or "-x" in options
    parts = [part for word in words for part in ([word] if is_one else word.split(","))]
    named = (part.partition("=") for part in parts if part)
    return {name: value if equals else None for name, equals, value in named}


def _kept(env: Mapping[str, str], given: Mapping[str, str | None], is_whole: bool) -> dict[str, str]:
    own = {name: value for name, value in given.items() if value is not None}
    is_whole = is_whole or any(map(has_mark, given))
    return {n: v for n, v in env.items() if is_whole or n in given} | own
