"""What lint says of sbatch's options, against sbatch itself, which reads them before it needs a cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.guards import free_port
from tests.launch_starters import REFUSED, TAKEN

CONF = """
ClusterName=none
SlurmctldHost=localhost
SlurmctldPort={port}
GresTypes=gpu
NodeName=localhost CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.mark.slow
@pytest.mark.skipif(not which("sbatch"), reason="needs sbatch (Debian: slurm-client)")
def test_sbatch_refuses_what_lint_says_it_does(tmp_path: Path) -> None:
    conf, job = tmp_path / "slurm.conf", tmp_path / "job.sh"
    conf.write_text(CONF.format(port=free_port()))
    job.write_text("#!/bin/bash\ntrue\n")
    env = {**os.environ, "SLURM_CONF": str(conf)}

    def start(option: str) -> subprocess.Popen[str]:
        words = ["sbatch", *option.split(), str(job)]
        return subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    started = {option: start(option) for option in (*REFUSED, *TAKEN)}
    said = {option: one.communicate(timeout=300)[0] for option, one in started.items()}
    reached = {option for option, text in said.items() if "Unable to contact slurm controller" in text}
    assert reached == {*TAKEN}, said
