"""A node's facts from what somebody pasted: the output of tools in any mix, all other lines ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ringup.facts import Interface, RdmaPort
from ringup.parse.addresses import parse_addresses
from ringup.parse.rdma import IN_LIBRARY_ORDER, merge, parse_rdma
from ringup.parse.topology import Matrix, parse_topo_matrix

MOST_CHARACTERS = 8 << 20
LONGEST_LINE = 2000
_NOISE = re.compile(r" NCCL (?:INFO|TRACE|WARN) ")


@dataclass(frozen=True)
class Pasted:
    """Facts found in text."""

    rdma_ports: tuple[RdmaPort, ...] = ()
    devices_in_library_order: bool = True
    interfaces: tuple[Interface, ...] = ()
    interfaces_in_kernel_order: bool = True
    matrix: Matrix = field(default_factory=Matrix)
    is_cut: bool = False
    """The text was longer than is read."""

    @property
    def is_empty(self) -> bool:
        """Nothing in it was understood."""
        return not (self.rdma_ports or self.interfaces or self.matrix.distance)


def parse_pasted(text: str) -> Pasted:
    """
    What all known tools' outputs in `text` say together.

    >>> made = parse_pasted("some log line\\nibdev2netdev: mlx5_0 port 1 ==> ib0 (Up)\\nepoch 1\\n")
    >>> made.rdma_ports[0].netdev
    'ib0'
    """
    cut = text[:MOST_CHARACTERS]
    interfaces = parse_addresses(_without_noise(cut, keep_json=True))
    lines = _without_noise(cut)
    return Pasted(
        parse_rdma(lines),
        any(parse(lines) for parse in IN_LIBRARY_ORDER),
        interfaces.found,
        interfaces.in_kernel_order,
        parse_topo_matrix(lines),
        len(text) > MOST_CHARACTERS,
    )


def _without_noise(text: str, *, keep_json: bool = False) -> str:
    """The text without lines no tool prints: NCCL's own, and those too long."""
    kept = []
    for line in text.splitlines():
        if (len(line) <= LONGEST_LINE and not _NOISE.search(line)) or (keep_json and '[{"ifindex"' in line):
            kept.append(line)
    return "\n".join(kept)


def together(one: Pasted, other: Pasted) -> Pasted:
    """Two pastes of one node as one; the first is believed where both tell."""
    first = one if one.interfaces else other
    return Pasted(
        merge([*one.rdma_ports, *other.rdma_ports]),
        one.devices_in_library_order and other.devices_in_library_order,
        first.interfaces,
        first.interfaces_in_kernel_order,
        Matrix({**other.matrix.distance, **one.matrix.distance}),
        one.is_cut or other.is_cut,
    )
