"""The expected selection of NCCL or Gloo, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringup.nccl.interface_choice import shown
from ringup.nccl.selection import Prediction
from ringup.network.predictions import GLOO, Expected
from ringup.output.folding import NodeText, merge_equal, who
from ringup.units import grouped, plural, printable

MOST_KINDS = 8
"""Groups of nodes with the same selection that are shown."""


def as_json(made: Prediction) -> dict[str, Any]:
    boot = made.bootstrap
    return {
        "name": printable(made.name),
        "bootstrap": {"interface": printable(boot.interface), "address": shown(boot)} if boot else None,
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
    unsure = [f"not sure: {d}" for d in made.doubts]
    return [*made.because, *unsure, *(f"not known: {m}" for m in made.missing)]


def as_text(made: Prediction, nodes: str = "") -> str:
    """One selection; `nodes`: all that have it."""
    boot = made.bootstrap
    rows = [
        ("bootstrap", f"{boot.interface} {shown(boot)}" if boot else "-"),
        ("network", made.network or "-"),
        ("devices", " ".join(made.interfaces) or "-"),
        ("out of band", made.oob),
        ("used", ", ".join(f"GPU {u.gpu}: {u.device}" for u in made.used)),
        ("NCCL will say", made.log_line or "-"),
        ("confidence", made.confidence),
    ]
    lines = [f"  {name:<14} {printable(value, 4000)}" for name, value in rows if value]
    lines += [f"  - {printable(reason)}" for reason in reasons(made)]
    return "\n".join([printable(nodes or made.name), *lines])


def expected_json(one: Expected) -> dict[str, Any]:
    """A prediction as in `predict --json`, and the prediction without the recommended variables."""
    return {**as_json(one.prediction), "alone": one.alone and as_json(one.alone)}


def _kinds(predictions: Sequence[Expected], unfolded: bool) -> tuple[list[tuple[str, Expected]], list[str]]:
    """Nodes and the first of selections alike but for addresses and quantities; a line counts the others."""
    if unfolded:
        return [(printable(p.prediction.name), p) for p in predictions], []
    entries = []
    for p in predictions:
        made = p.prediction
        # On a busy cluster, the reason of a missing fact differs from node to node.
        facts = (fact.partition(" (")[0] for fact in made.missing)
        is_known = bool(made.bootstrap or made.interfaces)
        unsure = "; ".join([*facts, *made.doubts]) if is_known else ""
        own = {made.name, *([made.bootstrap.address] if made.bootstrap else [])}
        key = (made.likeness[:-2], p.alone and p.alone.likeness) if is_known else made.network
        entries.append(NodeText(printable(made.name, 64), (unsure,), own, key))
    kinds = [
        (who([entries[n].who for n in one.places], len(one.places) > 1), predictions[one.places[0]])
        for one in merge_equal(entries)
    ]
    left = len(kinds) - MOST_KINDS
    more = [f"and {plural(left, 'other selection')}: --all shows them"] if left > 0 else []
    return kinds[:MOST_KINDS], more


def prediction_lines(predictions: Sequence[Expected], *, unfolded: bool = False) -> list[str]:
    """The expected selection; nodes with the same one are folded unless `unfolded`."""
    kinds, more = _kinds(predictions, unfolded)
    lines = [line for nodes, one in kinds for line in (f"  {nodes}:", *_one_prediction(one))]
    return [*lines, *(f"  {line}" for line in more)]


def predict_text(predictions: Sequence[Prediction], *, unfolded: bool = False) -> str:
    """`ringup predict` for people: a paragraph for each selection, or with `unfolded` for each node."""
    kinds, more = _kinds([Expected(p) for p in predictions], unfolded)
    return "\n\n".join([*(as_text(one.prediction, nodes) for nodes, one in kinds), *more])


def _one_prediction(one: Expected) -> list[str]:
    made = one.prediction
    lines = [f"    {line}" for line in _log_lines(made)]
    used = grouped((use.device, str(use.gpu)) for use in made.used)
    devices = [f"{printable(device)} for GPU {' '.join(gpus)}" for device, gpus in used.items()]
    lines += [f"    devices: {', '.join(devices)}"] if devices else []
    if made.fell_back:
        lines.append(f"    not over RDMA: {printable(made.fell_back, 300)}")
    if one.alone:
        other = [line for line in _log_lines(one.alone) if line not in _log_lines(made)]
        lines.append(f"    without the variables above: {' | '.join(other) or 'other devices for the GPUs'}")
    doubts = [*(f"{m} is not known" for m in made.missing), *made.doubts]
    if doubts:
        more = f" (and {len(doubts) - 1} more in --json)" if len(doubts) > 1 else ""
        lines.append(f"    confidence {made.confidence}: {printable(doubts[0], 200)}{more}")
    return lines


def _log_lines(made: Prediction) -> list[str]:
    """The log lines that show it; Gloo prints none."""
    boot = made.bootstrap
    if made.network == GLOO:
        announced = f"Gloo announces {boot.interface} {boot.address}" if boot else ""
        return [printable(announced) or "Gloo's address is unknown"]
    by = ", its interfaces are unknown" if made.network in ("IB", "Socket") else ", from a plugin"
    network = f"network {made.network}{by}" if made.network else ""
    lines = [printable(line, 2000) for line in (made.bootstrap_line, made.log_line or network) if line]
    return lines or ["NCCL's selection is unknown"]
