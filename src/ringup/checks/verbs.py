"""
Which RDMA ports a job would use on each node: the ones that rules judge.

A port is judged where NCCL takes it, or would if nothing were wrong with it; what nobody picks is no finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ringup.facts import Cluster, Node, RdmaPort, Risen
from ringup.nccl import choice, rdma
from ringup.reachability import few
from ringup.rules import Severity, Skipped

READS = ("rdma_ports", "interfaces")
USES = ("environment", "nccl_conf", "interpreter", "gpu_count", "verbs")
"""Facts looked at here where they are known."""
LAYERS = ("InfiniBand", "Ethernet")
"""Others (EFA's) only a plugin can use."""


def lacks_verbs(node: Node) -> bool:
    """Whether devices are there and a program cannot use any: no library, or no character device."""
    return "verbs" not in node.unknown and bool(node.verbs.error or not node.verbs.has_char_devices)


def is_without_nccl(cluster: Cluster) -> bool:
    """Whether NCCL will surely not run: no backend is named, and there is no GPU anywhere."""
    if cluster.job.backend:
        return cluster.job.backend != "nccl"
    return all("gpu_count" not in n.unknown and not n.gpu_count for n in cluster.nodes)


class View:
    """What NCCL takes on every node as things are, worked out once; nothing where RDMA does not matter."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        matters = not cluster.is_local and len(cluster.nodes) > 1 and cluster.job.backend != "gloo"
        self.nodes = cluster.nodes if matters else ()
        self.taken: dict[str, tuple[RdmaPort, ...]] = {}
        """Node -> ports NCCL takes."""
        self.main: dict[str, list[RdmaPort]] = {}
        """Those of them that belong together: no management or storage port."""
        for node in self.nodes:
            own = () if lacks_verbs(node) else rdma.taken(node, cluster.job.env)
            self.taken[node.name], self.main[node.name] = own, rdma.wanted(own)
        self.users = Counter(p.name for ports in self.main.values() for p in ports)
        """Port -> on how many nodes it is a main one."""
        self.owners = Counter(p.name for n in self.nodes for p in n.rdma_ports)
        self.active = Counter(p.name for n in self.nodes for p in n.rdma_ports if p.state == "ACTIVE")

    def environment(self, node: Node) -> dict[str, str]:
        """What a rank would see without the plan."""
        return choice.effective(node, self.cluster.job.env)

    def is_asked(self, node: Node) -> bool:
        """Whether NCCL looks for RDMA devices at all."""
        return rdma.is_asked(node, self.cluster.job.env)

    def allowed(self, node: Node) -> list[RdmaPort]:
        """Ports NCCL_IB_HCA lets NCCL take, whatever their state."""
        if not node.rdma_ports or not self.is_asked(node):
            return []
        version = choice.version_of(node.interpreter.nccl)
        accepted = rdma.hca_filter(self.environment(node), version)
        return [p for p in node.rdma_ports if p.link_layer in LAYERS and accepted.accepts(p.device, p.number)]

    def ready(self, node: Node) -> list[RdmaPort]:
        """Those of them whose link is fine."""
        return [p for p in self.allowed(node) if p.state == "ACTIVE"]

    def roce(self, node: Node) -> list[RdmaPort]:
        """The main ports that are RoCE; iWARP's (irdma, erdma) have GIDs of no kind, and other needs."""
        return [
            p
            for p in self.main[node.name]
            if p.link_layer == "Ethernet" and (not p.gids or any("RoCE" in g.kind for g in p.gids))
        ]

    def is_peers_main(self, node: Node, name: str) -> bool:
        """Whether another node uses the port of that name."""
        return self.users[name] > any(p.name == name for p in self.main[node.name])

    def is_stranded(self, node: Node) -> bool:
        """Whether the node is left without any port while another uses RDMA: their ranks cannot connect."""
        return not self.taken[node.name] and any(self.main.values())

    def by_name(self) -> dict[str, dict[str, RdmaPort]]:
        """Main ports: name -> node -> port."""
        found: dict[str, dict[str, RdmaPort]] = {}
        for node, ports in self.main.items():
            for port in ports:
                found.setdefault(port.name, {})[node] = port
        return found

    def at_most(self, severity: Severity) -> Severity:
        """Where NCCL will not run it is only worth knowing."""
        return "note" if is_without_nccl(self.cluster) else severity

    def loss(self, node: Node) -> Severity:
        """How bad it is that a port of this node is not used: slower, or no connection at all."""
        return self.at_most("error" if self.is_stranded(node) else "warning")


_latest: list[View] = []


def view_of(cluster: Cluster) -> View:
    """The view of a cluster, kept for the rule that asks next: there are twenty, and a thousand nodes."""
    if not _latest or _latest[0].cluster is not cluster:
        _latest[:] = [View(cluster)]
    return _latest[0]


def known_part(cluster: Cluster) -> View:
    """The view of those nodes whose RDMA devices are known."""
    return view_of(cluster.only(n for n in cluster.nodes if "rdma_ports" not in n.unknown))


def usual(values: Mapping[str, float]) -> float:
    """
    The commonest value; of equally common ones the largest, as the other is what went wrong.

    >>> usual({"a": 100.0, "b": 200.0}), usual({"a": 1.0, "b": 1.0, "c": 2.0}), usual({})
    (200.0, 1.0, 0.0)
    """
    counts = Counter(values.values())
    return max(counts, key=lambda value: (counts[value], value), default=0.0)


def rose(node: Node, of: str) -> Risen:
    """What rose on one thing of a node; nothing where it was not looked at twice."""
    known = node.rises if "rises" not in node.unknown else ()
    return next((r for r in known if r.of == of), Risen(of, 0.0))


def counted_once(nodes: Sequence[Node], concerned: Collection[str]) -> Iterator[Skipped]:
    """Why nodes of which counters matter say nothing about what rises."""
    for node in nodes:
        if node.name in concerned and "rises" in node.unknown:
            yield Skipped("", node.name, f"rises: {node.unknown['rises']}")


def places(pairs: Sequence[tuple[Node, RdmaPort]]) -> tuple[str, str | None]:
    """Where (for people), and the node when it is one alone."""
    nodes = {node.name for node, _ in pairs}
    return few(f"{node.name} {port.name}" for node, port in pairs), nodes.pop() if len(nodes) == 1 else None
