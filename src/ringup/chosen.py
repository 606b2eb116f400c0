"""What NCCL or Gloo will choose, shown: lines below the findings of a check, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringup.nccl import shown
from ringup.nccl.network import Prediction
from ringup.plan.expected import GLOO, Expected
from ringup.units import printable

MOST_KINDS = 8
"""Groups of nodes that choose alike, of which lines are shown."""


def expected_json(one: Expected) -> dict[str, Any]:
    """A prediction as `predict --json` has it, and what it would be without the recommended variables."""
    return {**shown.as_json(one.prediction), "alone": shown.as_json(one.alone) if one.alone else None}


def prediction_lines(predictions: Sequence[Expected]) -> list[str]:
    """What NCCL or Gloo will choose, nodes that choose alike as one."""
    groups: dict[tuple[object, ...], list[Expected]] = {}
    for one in predictions:
        also = shown.likeness(one.alone) if one.alone else None
        groups.setdefault((*shown.likeness(one.prediction), also), []).append(one)
    lines = []
    for same in list(groups.values())[:MOST_KINDS]:
        names = [printable(p.prediction.name, 64) for p in same]
        who = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines += [f"  {who}{', for example' if len(names) > 1 else ''}:", *_one_prediction(same[0])]
    rest = sum(len(same) for same in list(groups.values())[MOST_KINDS:])
    return lines + ([f"  and {rest} more nodes that choose otherwise: see --json"] if rest else [])


def _one_prediction(one: Expected) -> list[str]:
    made = one.prediction
    lines = [f"    {line}" for line in _said(made)]
    used: dict[str, list[str]] = {}
    for use in made.used:
        used.setdefault(use.device, []).append(str(use.gpu))
    if used:
        told = ", ".join(f"{printable(device)} by GPU {' '.join(gpus)}" for device, gpus in used.items())
        lines.append(f"    used: {told}")
    if made.fell_back:
        lines.append(f"    not over RDMA: {printable(made.fell_back, 300)}")
    if one.alone:
        other = [line for line in _said(one.alone) if line not in _said(made)]
        lines.append(f"    without the variables above: {' | '.join(other) or 'other devices by GPU'}")
    doubts = [*made.missing, *made.doubts]
    if doubts:
        more = f" (and {len(doubts) - 1} more in --json)" if len(doubts) > 1 else ""
        lines.append(f"    confidence {made.confidence}: {printable(doubts[0], 200)}{more}")
    return lines


def _said(made: Prediction) -> list[str]:
    """The lines of the log that tell it; Gloo prints none."""
    boot = made.bootstrap
    if made.network == GLOO:
        told = (
            f"Gloo announces {boot.interface} {boot.address}" if boot else "what Gloo announces is not known"
        )
        return [printable(told)]
    plugin = f"network {made.network}, of a plugin" if made.network and not made.log_line else ""
    said = [printable(line, 2000) for line in (made.bootstrap_line, made.log_line or plugin) if line]
    return said or ["what NCCL chooses is not known"]
