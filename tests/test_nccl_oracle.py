"""NCCL itself is asked, without a GPU, and must agree with the prediction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench import oracle

VERSIONS = ("2.20.5", "2.24.3", "2.28.9")
"""Before and after the changes of 2.24.3 (the line, the error) and 2.28.3 (links that are down)."""
FETCH_LIMIT_S = 80
CACHE = Path(os.environ.get("RINGUP_NCCL_WHEELS") or Path.home() / ".cache" / "ringup-nccl-wheels")


def fetched(versions: tuple[str, ...] = VERSIONS) -> str:
    """Get the missing wheels into the cache, 170 to 300 MB each; why not, "" when all are there."""
    for version in versions:
        if any(CACHE.glob(f"nvidia_nccl_cu12-{version}-*.whl")):
            continue
        if os.environ.get("RINGUP_REQUIRE_LAB") != "1":
            return f"no wheel of NCCL {version} in {CACHE}; RINGUP_REQUIRE_LAB=1 fetches them"
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-deps", f"nvidia-nccl-cu12=={version}", "-d", str(CACHE)]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", *wanted],
                capture_output=True,
                text=True,
                timeout=FETCH_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return f"the wheel of NCCL {version} did not come within {FETCH_LIMIT_S} s"
        if done.returncode:
            return f"the wheel of NCCL {version} cannot be had: {done.stderr.strip()[-200:]}"
    return ""


@pytest.mark.lab
@pytest.mark.slow
def test_the_library_takes_the_interface_we_say_in_60_random_cases() -> None:
    reason = fetched()
    if reason:
        pytest.skip(reason)
    found = {v: library for v, library in oracle.libraries(CACHE).items() if v in VERSIONS}
    tally = oracle.run(found, 60, seed=60)
    assert tally.wrong == [] and tally.cases == 60
    assert len(tally.kinds) > 1
