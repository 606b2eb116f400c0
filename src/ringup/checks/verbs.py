"""The RDMA ports that rules judge: those that NCCL takes on a node, or would take if they had no fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from ringup.model import Cluster, Node, RdmaPort, Risen, once
from ringup.nccl import rdma_devices
from ringup.network.predictions import Selection, predicted
from ringup.rules import GIVEN, Place, Severity, Skipped, at_each

READS = ("rdma_ports", "interfaces")
LAYERS = ("InfiniBand", "Ethernet")
"""Only a plugin can use other link layers (EFA's)."""


def lacks_verbs(node: Node) -> bool:
    """Whether a program can use none of the devices: no library, or no character device."""
    return "verbs" not in node.unknown and bool(node.verbs.error or not node.verbs.has_char_devices)


class View:
    """NCCL's ports on every node, computed once; empty if RDMA does not matter."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        known = tuple(n for n in cluster.nodes if "rdma_ports" not in n.unknown)
        matters = not cluster.is_local and len(known) > 1 and cluster.job.backend != "gloo"
        self.nodes = known if matters else ()
        usable = {n.name: self.of(n) for n in self.nodes if not lacks_verbs(n)}
        self.taken = {n.name: usable[n.name].rdma_ports if n.name in usable else () for n in self.nodes}
        """Node -> ports NCCL takes."""
        self.main = {n.name: usable[n.name].main_ports if n.name in usable else [] for n in self.nodes}
        """Those that belong together, without management or storage ports."""
        self.users = Counter(p.name for ports in self.main.values() for p in ports)
        """Port -> number of nodes that have it as a main port."""
        self.owners = Counter(p.name for n in self.nodes for p in n.rdma_ports)
        self.active = Counter(p.name for n in self.nodes for p in n.rdma_ports if p.is_active)

    def of(self, node: Node) -> Selection:
        """The predicted selection of a node, without a plan."""
        return predicted(self.cluster).of(node)

    def allowed(self, node: Node) -> list[RdmaPort]:
        """Ports that NCCL_IB_HCA allows, whatever their state."""
        if not node.rdma_ports or not self.of(node).tries_rdma:
            return []
        accepted = rdma_devices.hca_filter(self.of(node).environment, self.of(node).version)
        return [p for p in node.rdma_ports if p.link_layer in LAYERS and accepted.accepts(p.device, p.number)]

    def ready(self, node: Node) -> list[RdmaPort]:
        return [p for p in self.allowed(node) if p.is_active]

    def roce(self, node: Node) -> list[RdmaPort]:
        """The main ports that are RoCE; iWARP's (irdma, erdma) have GIDs without a kind, and other needs."""
        ports = [p for p in self.main[node.name] if p.link_layer == "Ethernet"]
        return [p for p in ports if not p.gids or any("RoCE" in g.kind for g in p.gids)]

    def is_peers_main(self, node: Node, name: str) -> bool:
        return self.users[name] > any(p.name == name for p in self.main[node.name])

    def is_stranded(self, node: Node) -> bool:
        """Whether the node has no usable port while another uses RDMA: their ranks cannot connect."""
        return not self.taken[node.name] and bool(self.users)

    def loss(self, node: Node) -> Severity:
        """The severity of an unused port on this node: slower, or no connection at all."""
        return "error" if self.is_stranded(node) else "warning"


view_of = once(View)
GIVEN["view"] = view_of


def rose(node: Node, of: str) -> Risen:
    """The counters of one device that rose; empty if they were not read twice."""
    return next((r for r in node.rises if r.of == of), Risen(of, 0.0))


def counted_once(node: Node, concerned: Collection[object]) -> Iterator[Skipped]:
    """Why the counters of a node's relevant devices have no result."""
    if concerned and "rises" in node.unknown:
        yield Skipped("", node.name, f"rises: {node.unknown['rises']}")


def places(pairs: Iterable[tuple[Node, RdmaPort]], subject: str = "") -> Place:
    """The ports as text; only the node's name if it is a single node."""
    return at_each(((node, port.name) for node, port in pairs), subject)
