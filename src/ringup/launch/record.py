"""`run.json`: what was planned, what became of it, what was left; INTERFACE.md names its fields."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ringup import __version__
from ringup.bundle import HIDDEN
from ringup.launch import Failure, RankEnd
from ringup.launch.render import is_secret
from ringup.plan import Plan
from ringup.redact import redact
from ringup.rules import Finding

FILE = "run.json"


def _shown(env: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name) else value for name, value in env.items()}


def _words(words: Iterable[str]) -> tuple[str, ...]:
    """
    Values of secret-looking options hidden, be they in one word with it or the next.

    >>> _words(["train.py", "--hf-token", "abc", "--api-key=abc", "--tokenizer", "gpt2"])
    ('train.py', '--hf-token', '(hidden)', '--api-key=(hidden)', '--tokenizer', 'gpt2')
    """
    found, option = [], ""
    for word in words:
        is_value = option and redact(f"{option} x") != f"{option} x"
        found.append(HIDDEN if is_value else redact(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return tuple(found)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan with its reasons, secrets hidden."""
    job = dataclasses.replace(
        plan.job,
        env=_shown(plan.job.env),
        setup=redact(plan.job.setup),
        arguments=_words(plan.job.arguments),
        launcher_arguments=_words(plan.job.launcher_arguments),
    )
    nodes = [
        dataclasses.replace(n, env=_shown(n.env), setup=redact(n.setup), words=_words(n.words))
        for n in plan.nodes
    ]
    env = [dataclasses.replace(v, value=HIDDEN) if is_secret(v.name) else v for v in plan.env]
    whole = dataclasses.replace(plan, job=job, nodes=tuple(nodes), env=tuple(env), files={})
    plain: dict[str, Any] = msgspec.to_builtins(whole)
    if math.isinf(plan.job.time_left_s):  # JSON has no infinity
        del plain["job"]["time_left_s"]
    return plain


def run_json(
    plan: Plan,
    *,
    outcome: str,
    exit_code: int | None,
    started: float,
    seconds: float,
    findings: Iterable[Finding] = (),
    ranks: Iterable[RankEnd] = (),
    failure: Failure | None = None,
    cleanup: Iterable[Finding] = (),
    notes: Iterable[str] = (),
    detached: bool = False,
    hangs: Iterable[Mapping[str, Any]] = (),
    transports: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The object; `started` in seconds since the epoch, `exit_code` None while it runs."""
    return {
        "ringup": __version__,
        "schema": 1,
        "run": plan.run_id,
        "outcome": outcome,
        "exit_code": exit_code,
        "started": started,
        "seconds": round(seconds, 3),
        "detached": detached,
        "plan": plan_json(plan),
        "findings": msgspec.to_builtins(list(findings)),
        "ranks": msgspec.to_builtins(sorted(ranks, key=lambda r: (r.rank, r.node, r.pid))),
        "first_failure": msgspec.to_builtins(failure),
        "cleanup": msgspec.to_builtins(list(cleanup)),
        "hangs": list(hangs),
        "transports": dict(transports or {}),
        "notes": list(notes),
    }


def unstarted_json(
    run_id: str,
    *,
    outcome: str,
    exit_code: int,
    started: float,
    seconds: float = 0.0,
    findings: Iterable[Finding] = (),
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """The same object of a run whose ranks nobody of ours has seen: stopped before, or another's."""
    return {
        "ringup": __version__,
        "schema": 1,
        "run": run_id,
        "outcome": outcome,
        "exit_code": exit_code,
        "started": started,
        "seconds": round(seconds, 3),
        "detached": False,
        "plan": None,
        "findings": msgspec.to_builtins(list(findings)),
        "ranks": [],
        "first_failure": None,
        "cleanup": [],
        "hangs": [],
        "transports": {},
        "notes": list(notes),
    }


def write(log_dir: Path, content: Mapping[str, Any]) -> None:
    """
    Replace run.json; a reader sees the old or the new one, never half.

    Raises OSError.
    """
    # Names of nodes and files may hold bytes that are no text; they are shown as escapes.
    text = json.dumps(content, indent=1, ensure_ascii=True)
    fresh = log_dir / f".{FILE}.{os.getpid()}"
    try:
        fresh.write_text(text + "\n", encoding="ascii")
        fresh.replace(log_dir / FILE)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
