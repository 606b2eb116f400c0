"""What NCCL says it uses, node by node, held against what was expected; said once, and early."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ringup.launch import Event
from ringup.plan import NodePlan, Plan
from ringup.units import printable

MOST_SAID = 3
MOST_CHANNELS = 64
_NETWORK = re.compile(rb"NCCL INFO (?:\[?Using network |Assigned NET plugin )([\w-]{1,40})")
_DEVICES = re.compile(rb"NCCL INFO NET/([\w-]{1,40}) ?: Using (\[0\].{1,2000})")
_DEVICE = re.compile(rb"\[\d+\]([^\s\[;]{1,80})")
_CHANNEL = re.compile(rb"NCCL INFO Channel .{1,120} via ([A-Za-z0-9/]{1,60})")
NCCL_LINE = b" NCCL INFO "


class Transports:
    """Hears the ranks' lines."""

    def __init__(self, plan: Plan, tell: Callable[[Event], object]) -> None:
        self._expected = {t.node: t for t in plan.transports}
        self._tell = tell
        self._said: set[str] = set()
        self.network: dict[str, str] = {}
        """Node -> the network its NCCL took."""
        self.devices: dict[str, tuple[str, ...]] = {}
        self.channels: dict[str, int] = {}
        """What follows `via` (device numbers left out) -> lines."""

    def hear(self, node: NodePlan, lines: Sequence[bytes]) -> None:
        """Whole lines of one rank."""
        for line in lines:
            if NCCL_LINE not in line:
                continue
            if found := _CHANNEL.search(line):
                self._channel(node.node, found[1].decode())
            elif found := _NETWORK.search(line):
                self._took(node.node, found[1].decode())
            elif found := _DEVICES.search(line):
                names = tuple(name.decode("utf-8", "replace") for name in _DEVICE.findall(found[2]))
                self.devices.setdefault(node.node, names)

    def _channel(self, node: str, via: str) -> None:
        kind = "/".join(part for part in via.split("/") if not part.isdigit())
        if kind in self.channels or len(self.channels) < MOST_CHANNELS:
            self.channels[kind] = self.channels.get(kind, 0) + 1
        if via.startswith("NET/"):
            self._took(node, via.split("/")[1])

    def _took(self, node: str, network: str) -> None:
        if self.network.get(node) == network:
            return
        self.network[node] = network
        expected = self._expected.get(node)
        if expected is None or not expected.network or expected.network == network or node in self._said:
            return
        self._said.add(node)
        if len(self._said) <= MOST_SAID:
            over = f" over {', '.join(expected.devices)}" if expected.devices else ""
            words = f"{printable(node, 64)}: NCCL uses {network}, not {expected.network}{over} as expected"
            slower = network == "Socket"
            hint = "this is TCP, many times slower; `ringup logs` on the log directory names the reason"
            self._tell(Event("transport", f"{words}; {hint}" if slower else words, node))

    def as_json(self) -> dict[str, Any]:
        """For run.json: what was expected and what was seen."""
        expected = [
            {"node": t.node, "network": t.network, "devices": list(t.devices), "confidence": t.confidence}
            for t in self._expected.values()
        ]
        seen = [
            {"node": node, "network": network, "devices": list(self.devices.get(node, ()))}
            for node, network in self.network.items()
        ]
        return {
            "expected": expected,
            "seen": seen,
            "channels": dict(self.channels),
            "differ": sorted(self._said),
        }
