"""A pytest plugin (`-p tests.spread`): with `--dist loadscope`, whoever is free takes the next test."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "tests/test_faults_hardware_gpu.py",
    "tests/test_package.py",
    "tests/test_slurm_lab.py",
    "tests/test_slurm_restarts_lab.py",
    "tests/test_traps.py",
}
"""Files whose tests share what takes long to begin: one process has them all, and begins with them."""


class Spread(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spread | None:
    return Spread(config, log) if config.getvalue("dist") == "loadscope" else None
