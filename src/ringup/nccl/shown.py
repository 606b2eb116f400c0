"""Predictions for machines and for people."""

from __future__ import annotations

from typing import Any

from ringup.nccl import choice
from ringup.nccl.network import Prediction
from ringup.units import printable


def as_json(made: Prediction) -> dict[str, Any]:
    """One node as INTERFACE.md promises it."""
    boot = made.bootstrap
    return {
        "name": printable(made.name),
        "bootstrap": {"interface": printable(boot.interface), "address": choice.shown(boot)}
        if boot
        else None,
        "network": printable(made.network) or None,
        "interfaces": [printable(i) for i in made.interfaces],
        "oob": printable(made.oob) or None,
        "used": [{"gpu": u.gpu, "device": printable(u.device)} for u in made.used],
        "gpudirect": sorted({u.gpu for u in made.used if u.gpudirect}),
        "bootstrap_line": printable(made.bootstrap_line) or None,
        "log_line": printable(made.log_line, 4000) or None,
        "because": [printable(b) for b in reasons(made)],
        "confidence": made.confidence,
    }


def reasons(made: Prediction) -> list[str]:
    """Why, then what speaks against it."""
    return [
        *made.because,
        *(f"not sure: {d}" for d in made.doubts),
        *(f"not known: {m}" for m in made.missing),
    ]


def as_text(made: Prediction) -> str:
    """One node for people."""
    boot = made.bootstrap
    rows = [
        ("bootstrap", f"{boot.interface} {choice.shown(boot)}" if boot else "-"),
        ("network", made.network or "-"),
        ("devices", " ".join(made.interfaces) or "-"),
        ("out of band", made.oob or "-"),
        ("used", ", ".join(f"GPU {u.gpu}: {u.device}" for u in made.used) or "-"),
        ("NCCL will say", made.log_line or "-"),
        ("confidence", made.confidence),
    ]
    lines = [printable(made.name), *(f"  {name:<14} {printable(value, 4000)}" for name, value in rows)]
    return "\n".join([*lines, *(f"  - {printable(reason)}" for reason in reasons(made))])


def likeness(made: Prediction) -> tuple[object, ...]:
    """Equal for nodes that choose alike, whatever their addresses are."""
    boot = made.bootstrap.interface if made.bootstrap else ""
    cut = "/" if made.network == "IB" else ":"
    names = tuple(i.partition(cut)[0] for i in made.interfaces)
    used = tuple((u.gpu, u.device) for u in made.used)
    return boot, made.network, names, made.oob, used, made.confidence, made.doubts, made.missing
