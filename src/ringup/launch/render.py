"""What each node is told: the very object the guards receive, and the same as text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ringup.bundle import HIDDEN, SECRETS
from ringup.launch import Rendered
from ringup.launch.program import main_source, rank_source
from ringup.plan import NodePlan, Plan
from ringup.units import printable

LONGEST_SHOWN = 2000


def is_secret(name: str) -> bool:
    """Whether a variable's value is never shown."""
    return any(word in name.upper() for word in SECRETS)


def order(plan: Plan, node: NodePlan, *, lease_s: float, grace_s: float) -> dict[str, Any]:
    """What one node's guard is told (see payload/guard.py)."""
    return {
        "run_id": plan.run_id,
        "node": node.rank,
        "words": list(node.words),
        "env": dict(node.env),
        "unset": list(node.unset),
        "chdir": node.chdir,
        "setup": node.setup,
        "run_dir": node.run_dir,
        "lease_s": lease_s,
        "grace_s": grace_s,
        "rank_source": rank_source(),
        "main_source": main_source(),
        "files": dict(plan.files),
    }


def render(plan: Plan, *, lease_s: float = 20.0, grace_s: float = 3.0) -> Rendered:
    """Orders and text for every node."""
    orders = {n.node: order(plan, n, lease_s=lease_s, grace_s=grace_s) for n in plan.nodes}
    reasons = {v.name: v.because for v in plan.env}
    text = "\n\n".join(_node_text(n.node, orders[n.node], {**n.reasons, **reasons}) for n in plan.nodes)
    return Rendered(orders, text)


def _node_text(name: str, told: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """
    One node's part, in shell syntax, though no shell sees it.

    Comments are ours; every value is quoted and safe for a terminal.
    """
    lines = [f"# {printable(name)}: node {told['node']}"]
    if told["chdir"]:
        lines.append(f"cd {_word(told['chdir'])}")
    lines += [f"unset {_word(variable)}" for variable in told["unset"]]
    for variable, value in told["env"].items():
        shown = HIDDEN if is_secret(variable) else _word(value)
        because = f"  # {printable(reasons[variable])}" if variable in reasons else ""
        lines.append(f"export {variable}={shown}{because}")
    if told["setup"]:
        lines.append(printable(told["setup"], LONGEST_SHOWN))
    lines.append("exec " + " ".join(_word(word) for word in told["words"]))
    return "\n".join(lines)


def _word(text: str) -> str:
    """
    Quoted for a shell, and safe for a terminal: what holds control characters is shown as $'...'.

    >>> _word("a b"), _word("a\\nb")
    ("'a b'", "$'a\\\\nb'")
    """
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{printable(escaped, LONGEST_SHOWN)}'"
