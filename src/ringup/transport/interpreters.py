"""The Python for a job: that of a training environment, never ringup's own tool environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
TRAINING = ("torch", "jax")


def default_interpreter(environ: Mapping[str, str]) -> str:
    """
    The Python of the active environment, else ours if that has torch; a node uses it if it has that path.

    >>> default_interpreter({"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"})
    '/v/bin/python'
    """
    prefixes = (environ.get(name, "").rstrip("/") for name in ACTIVE)
    made_for_us = os.path.realpath(sys.prefix) if _is_a_tools(environ) else ""
    chosen = (p for p in prefixes if p.startswith("/") and os.path.realpath(p) != made_for_us)
    active = next((f"{prefix}/bin/python" for prefix in chosen), "")
    in_environment = sys.prefix != sys.base_prefix
    return active or (sys.executable if in_environment and importlib.util.find_spec("torch") else "")


def for_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """
    The environment for a shell or srun here: `uvx` and `uv run` put ringup's own environment first on PATH,
    and `python3` would be found there.
    """
    env = dict(environ)
    if _is_a_tools(environ):
        own = _cache() or Path(sys.prefix).resolve()
        places = env.get("PATH", "").split(os.pathsep)
        env["PATH"] = os.pathsep.join(p for p in places if not Path(p).resolve().is_relative_to(own))
    return env


def _cache() -> Path | None:
    """The cache that contains our environment: `uv run --with ringup` makes two there and activates one."""
    parents = Path(sys.prefix).resolve().parents
    return next((parent for parent in parents if (parent / "CACHEDIR.TAG").is_file()), None)


def _is_a_tools(environ: Mapping[str, str]) -> bool:
    """Whether our environment is only for ringup: no training packages, and not activated by the user."""
    own = os.path.realpath(sys.prefix)
    active = any(os.path.realpath(environ.get(name) or "/") == own for name in ACTIVE)
    has_training = any(map(importlib.util.find_spec, TRAINING))
    return sys.prefix != sys.base_prefix and not has_training and (_cache() is not None or not active)
