"""Compares NCCL's transports with the expected ones, node by node; reports a difference once, and early."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ringup.nccl.plugins import network_name
from ringup.planning import ExpectedTransport, NodePlan, Plan
from ringup.runtime import Event
from ringup.units import printable

MOST_REPORTED = 3
MOST_REASONS = 2
HINT = "Fixes: `ringup explain fell-back-to-sockets`; the lines: `ringup logs` on the log directory"
_NETWORK = re.compile(
    rb"NCCL INFO (?:\[?Using network |Assigned NET plugin |Channel .{1,120} via NET/)([\w-][\w -]{0,40})"
)
_DEVICES = re.compile(rb"NCCL INFO NET/[\w-]{1,40} ?: Using (\[0\].{1,2000})")
_DEVICE = re.compile(rb"\[\d+\]([^\s\[;]{1,80})")
_REASON = re.compile(
    rb"NCCL (?:INFO|WARN) ((?:NET/IB ?: No device|NCCL_(?:IB_DISABLE|IB_HCA|NET|NET_PLUGIN) set "
    rb"|Failed to open lib|Failed to initialize NET plugin (?!Socket)|.{0,60}\bibv_\w+ failed"
    rb"|.{0,60}libibverbs).{0,160})"
)
"""Lines of NCCL 2.4 to 2.30 with the reason why InfiniBand is not used."""
_PLAIN = re.compile(r"([\w.-]+:\d+)/(?:IB|RoCE)(?:/SHARP)?")
"""A device of one port: `mlx5_0:1/IB`; one of several ports has another name."""
NCCL_LINE = b" NCCL INFO "
_WARNING = b" NCCL WARN "


@dataclass
class _Seen:
    node: str
    network: str = ""
    devices: tuple[str, ...] = ()
    said: list[str] = field(default_factory=list)
    """NCCL's reasons for not using a network."""


class Transports:
    def __init__(self, plan: Plan, on_event: Callable[[Event], object]) -> None:
        self._expected = {t.node: t for t in plan.transports}
        self._on_event = on_event
        self._seen = {node.node: _Seen(node.node) for node in plan.nodes}
        self._differ: set[str] = set()

    def read(self, node: NodePlan, lines: Sequence[bytes]) -> None:
        seen = self._seen[node.node]
        for line in lines:
            if NCCL_LINE not in line and _WARNING not in line:
                continue
            if found := _NETWORK.search(line):
                self._uses(seen, network_name(found[1].decode()))
            elif found := _DEVICES.search(line):
                names = (name.decode("utf-8", "replace") for name in _DEVICE.findall(found[1]))
                seen.devices = seen.devices or tuple(names)
            elif (found := _REASON.search(line)) and len(seen.said) < MOST_REASONS:
                reason = printable(found[1].decode("utf-8", "replace").strip().rstrip("."), 120)
                seen.said += [reason] if reason not in seen.said else []

    def _uses(self, seen: _Seen, network: str) -> None:
        expected = self._expected.get(seen.node)
        is_news, seen.network = seen.network != network, network
        if not is_news or not expected or not expected.network or seen.node in self._differ:
            return
        if not (words := self._difference(seen, expected)):
            return
        self._differ.add(seen.node)
        if len(self._differ) > MOST_REPORTED:
            return
        if len(self._differ) == MOST_REPORTED < len(self._expected):
            words += "; what other nodes use is in run.json"
        self._on_event(Event("transport", f"{printable(seen.node, 64)}: NCCL uses {words}", seen.node))

    def _difference(self, seen: _Seen, expected: ExpectedTransport) -> str:
        """The used and the expected transport; "" if they agree, or if their devices cannot be compared."""
        if seen.network == expected.network:
            used, wanted = ([_PLAIN.fullmatch(name) for name in one.devices] for one in (seen, expected))
            if not used or not all(used) or not all(wanted):
                return ""
            names = [m[1] for m in used if m]
            lacking = [m[1] for m in wanted if m and m[1] not in names]
            return f"{', '.join(names)}, not {', '.join(lacking)} that was expected too" if lacking else ""
        over = f" over {', '.join(expected.devices)}" if expected.devices else ""
        words = f"{seen.network}, not {expected.network}{over} as expected"
        if seen.network != "Socket":
            return words
        words += "; this is TCP, many times slower"
        if self._differ:  # the fixes were printed with the first difference
            return words
        if seen.said:
            words += ". NCCL says: " + " and ".join(f'"{reason}"' for reason in seen.said)
        return f"{words}. {HINT}"

    def as_json(self) -> dict[str, Any]:
        """For run.json: the expected and the reported transports."""
        return {
            "expected": [asdict(expected) for expected in self._expected.values()],
            "seen": [asdict(seen) for seen in self._seen.values() if seen.network],
            "differ": sorted(self._differ),
        }
