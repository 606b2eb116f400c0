"""A node's facts from what somebody pasted: the output of tools in any mix, all other lines ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringup.model import Interface, RdmaPort
from ringup.parse.gpus import parse_square
from ringup.parse.interfaces import parse_addresses
from ringup.parse.rdma_output import IN_LIBRARY_ORDER, merge, parse_rdma
from ringup.parse.topology import Matrix, parse_topo_matrix
from ringup.units import LONGEST_LINE, lines_of

MOST_CHARACTERS = 8 << 20
_PEER_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Of the table of `nvidia-smi topo -p2p`; `topo -m` has others."""
_NOISE = re.compile(r" NCCL (?:INFO|TRACE|WARN) ")


@dataclass(frozen=True)
class Pasted:
    """Facts found in text."""

    rdma_ports: tuple[RdmaPort, ...] = ()
    devices_in_library_order: bool = True
    interfaces: tuple[Interface, ...] = ()
    interfaces_in_kernel_order: bool = True
    matrix: Matrix = field(default_factory=dict)
    is_cut: bool = False
    """The text was longer than is read."""
    peers: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Pairs of GPUs -> what `nvidia-smi topo -p2p` says of them, "OK" or why not."""

    @property
    def is_empty(self) -> bool:
        """Nothing in it was understood."""
        return not (self.rdma_ports or self.interfaces or self.matrix or self.peers)


def parse_pasted(text: str) -> Pasted:
    """
    What all known tools' outputs in `text` say together.

    >>> made = parse_pasted("some log line\\nibdev2netdev: mlx5_0 port 1 ==> ib0 (Up)\\nepoch 1\\n")
    >>> made.rdma_ports[0].netdev
    'ib0'
    """
    cut = text[:MOST_CHARACTERS]
    # Without lines no tool prints: NCCL's own, and those too long.
    kept = (line for line in cut.splitlines() if len(line) <= LONGEST_LINE and not _NOISE.search(line))
    lines = "\n".join(kept)
    return Pasted(
        parse_rdma(lines),
        any(parse(lines) for parse in IN_LIBRARY_ORDER),
        *parse_addresses(lines),
        parse_topo_matrix(lines),
        len(text) > MOST_CHARACTERS,
        {pair: cell for pair, cell in parse_square(lines_of(lines)).items() if cell in _PEER_STATES},
    )


def together(one: Pasted, other: Pasted) -> Pasted:
    """Two pastes of one node as one; the first is believed where both tell."""
    first = one if one.interfaces else other
    return Pasted(
        merge([*one.rdma_ports, *other.rdma_ports]),
        one.devices_in_library_order and other.devices_in_library_order,
        first.interfaces,
        first.interfaces_in_kernel_order,
        {**other.matrix, **one.matrix},
        one.is_cut or other.is_cut,
        {**other.peers, **one.peers},
    )
