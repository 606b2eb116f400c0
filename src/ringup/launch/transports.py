"""What NCCL says it uses, node by node, held against what was expected; said once, and early."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ringup.launch import Event
from ringup.nccl.plugins import network_name
from ringup.plan import NodePlan, Plan, Transport
from ringup.units import printable

MOST_SAID = 3
MOST_CHANNELS = 64
MOST_REASONS = 2
HINT = "Ways out: `ringup explain fell-back-to-sockets`; the lines: `ringup logs` on the log directory"
_NETWORK = re.compile(rb"NCCL INFO (?:\[?Using network |Assigned NET plugin )([\w-][\w -]{0,40})")
_DEVICES = re.compile(rb"NCCL INFO NET/([\w-]{1,40}) ?: Using (\[0\].{1,2000})")
_DEVICE = re.compile(rb"\[\d+\]([^\s\[;]{1,80})")
_CHANNEL = re.compile(rb"NCCL INFO Channel .{1,120} via ([A-Za-z0-9/ ()]{1,60})")
_REASON = re.compile(
    rb"NCCL (?:INFO|WARN) ((?:NET/IB ?: No device|NCCL_(?:IB_DISABLE|IB_HCA|NET|NET_PLUGIN) set "
    rb"|Failed to open lib|Failed to initialize NET plugin (?!Socket)|.{0,60}\bibv_\w+ failed"
    rb"|.{0,60}libibverbs).{0,160})"
)
"""Lines in which NCCL 2.4 to 2.30 tell why InfiniBand was not taken."""
_PLAIN = re.compile(r"([\w.-]+:\d+)/(?:IB|RoCE)(?:/SHARP)?")
"""A device that stands for one port: `mlx5_0:1/IB`; one made of several has other names."""
NCCL_LINE = b" NCCL INFO "
_WARNING = b" NCCL WARN "


class Transports:
    """Hears the ranks' lines."""

    def __init__(self, plan: Plan, tell: Callable[[Event], object]) -> None:
        self._expected = {t.node: t for t in plan.transports}
        self._tell = tell
        self._said: set[str] = set()
        self._reasons: dict[str, list[str]] = {}
        self.network: dict[str, str] = {}
        """Node -> the network its NCCL took."""
        self.devices: dict[str, tuple[str, ...]] = {}
        self.channels: dict[str, int] = {}
        """What follows `via` (device numbers left out) -> lines."""

    def hear(self, node: NodePlan, lines: Sequence[bytes]) -> None:
        """Whole lines of one rank."""
        for line in lines:
            if NCCL_LINE not in line and _WARNING not in line:
                continue
            if found := _CHANNEL.search(line):
                self._channel(node.node, found[1].decode())
            elif found := _NETWORK.search(line):
                self._took(node.node, found[1].decode())
            elif found := _DEVICES.search(line):
                names = tuple(name.decode("utf-8", "replace") for name in _DEVICE.findall(found[2]))
                self.devices.setdefault(node.node, names)
            elif found := _REASON.search(line):
                self._keep(node.node, printable(found[1].decode("utf-8", "replace").strip().rstrip("."), 120))

    def _keep(self, node: str, reason: str) -> None:
        kept = self._reasons.setdefault(node, [])
        if reason not in kept and len(kept) < MOST_REASONS:
            kept.append(reason)

    def _channel(self, node: str, via: str) -> None:
        kind = "/".join(part for part in via.strip().split("/") if not part[:1].isdigit())
        if kind in self.channels or len(self.channels) < MOST_CHANNELS:
            self.channels[kind] = self.channels.get(kind, 0) + 1
        if via.startswith("NET/"):
            self._took(node, via.split("/")[1])

    def _took(self, node: str, said: str) -> None:
        network = network_name(said)
        if self.network.get(node) == network:
            return
        self.network[node] = network
        expected = self._expected.get(node)
        if expected is None or not expected.network or node in self._said:
            return
        words = self._difference(node, network, expected)
        if not words:
            return
        self._said.add(node)
        if len(self._said) > MOST_SAID:
            return
        if len(self._said) == MOST_SAID < len(self._expected):
            words += "; what other nodes use is in run.json"
        self._tell(Event("transport", f"{printable(node, 64)}: NCCL uses {words}", node))

    def _difference(self, node: str, network: str, expected: Transport) -> str:
        """What is used in place of what; "" where it is as expected."""
        if network == expected.network:
            return self._lacking(node, expected)
        over = f" over {', '.join(expected.devices)}" if expected.devices else ""
        words = f"{network}, not {expected.network}{over} as expected"
        if network != "Socket":
            return words
        words += "; this is TCP, many times slower"
        if self._said:  # the first one has told what to do
            return words
        reasons = self._reasons.get(node)
        if reasons:
            words += ". NCCL says: " + " and ".join(f'"{reason}"' for reason in reasons)
        return f"{words}. {HINT}"

    def _lacking(self, node: str, expected: Transport) -> str:
        """Devices that were expected beside those which are used; "" where names cannot be compared."""
        used = [_PLAIN.fullmatch(name) for name in self.devices.get(node, ())]
        meant = [_PLAIN.fullmatch(name) for name in expected.devices]
        if not used or not all(used) or not all(meant):
            return ""
        names = [m[1] for m in used if m]
        lacking = [m[1] for m in meant if m and m[1] not in names]
        return f"{', '.join(names)}, not {', '.join(lacking)} that was expected too" if lacking else ""

    def as_json(self) -> dict[str, Any]:
        """For run.json: what was expected and what was seen."""
        expected = [
            {"node": t.node, "network": t.network, "devices": list(t.devices), "confidence": t.confidence}
            for t in self._expected.values()
        ]
        seen = [
            {
                "node": node,
                "network": network,
                "devices": list(self.devices.get(node, ())),
                "said": list(self._reasons.get(node, ())),
            }
            for node, network in self.network.items()
        ]
        return {
            "expected": expected,
            "seen": seen,
            "channels": dict(self.channels),
            "differ": sorted(self._said),
        }
