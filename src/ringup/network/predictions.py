"""The selection of NCCL and Gloo on every node: computed once, then passed to rules, plan and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ringup.addresses import subnet
from ringup.model import Cluster, Job, Node, RdmaPort, once
from ringup.nccl import interface_choice, pci, rdma_devices, selection
from ringup.nccl.interface_choice import Choice
from ringup.nccl.selection import Known, Prediction
from ringup.network import gloo

GLOO = "Gloo"
MOST_COMPARED = 64
"""Every node is compared with this many others: enough to find one that differs."""


@once
def uses_nccl(cluster: Cluster) -> Literal["yes", "no", "unknown"]:
    """
    Whether NCCL carries the job's collectives: the only answer, also for checks, plan, `test` and `bench`.

        --backend   visible GPUs of the nodes                 answer
        nccl        any                                       yes
        gloo        any                                       no
        -           one node or more has some                 yes
        -           0 on every node                           no
        -           unknown on one or more, 0 on the others   unknown
        -           no node was reached                       unknown

    A count is of GPUs the job may use: CUDA_VISIBLE_DEVICES="" is 0.  Nodes that were not reached are left
    out, since no job starts there.  Callers say what they do with "unknown"; it is neither yes nor no.
    `uses_nccl(cluster.only([node]))` answers for one node.
    """
    if cluster.job.backend:
        return "yes" if cluster.job.backend == "nccl" else "no"
    nodes = [n for n in cluster.nodes if not n.unreached]
    if any("gpu_count" not in n.unknown and n.gpu_count for n in nodes):
        return "yes"
    return "no" if nodes and not uncounted(cluster) else "unknown"


def uncounted(cluster: Cluster) -> list[Node]:
    """Nodes that were reached but whose GPUs could not be counted."""
    return [n for n in cluster.nodes if not n.unreached and "gpu_count" in n.unknown]


def known(node: Node) -> Known:
    """A node's own facts as input of the prediction."""
    text, tree = node.interpreter.nccl, pci.topology(node)
    version = interface_choice.version_of(text)
    return Known(node, version, bool(text), topology=tree, is_live_tree=bool(tree.cpus))


@dataclass(frozen=True)
class Selection:
    """One node's selection with `env` added to the node's environment.  Each part is computed once."""

    node: Node
    job: Job
    env: Mapping[str, str]

    @cached_property
    def environment(self) -> Mapping[str, str]:
        return interface_choice.effective(self.node, self.env)

    @cached_property
    def version(self) -> interface_choice.Version:
        return interface_choice.version_of(self.node.interpreter.nccl)

    @cached_property
    def tries_rdma(self) -> bool:
        """Whether NCCL tries its built-in RDMA transport."""
        network = self.environment.get("NCCL_NET", "").lower()
        return network in ("", "ib") and not rdma_devices.is_disabled(self.environment)

    @cached_property
    def rdma_ports(self) -> tuple[RdmaPort, ...]:
        """The ports that NCCL takes."""
        if not self.tries_rdma:
            return ()
        return rdma_devices.ports(self.node.rdma_ports, self.environment, self.version).taken

    @cached_property
    def main_ports(self) -> list[RdmaPort]:
        """NCCL's ports that belong together, without management or storage ports."""
        return rdma_devices.wanted(self.rdma_ports)

    @cached_property
    def roce_ports(self) -> list[RdmaPort]:
        return [p for p in self.main_ports if p.link_layer == "Ethernet"]

    def gid(self, port: RdmaPort) -> rdma_devices.GidChoice:
        """NCCL's GID entry for one of the node's ports."""
        return rdma_devices.gid_index(port, self.environment, self.version)

    @cached_property
    def bootstrap(self) -> Choice | None:
        """Where NCCL's bootstrap listens, None for nowhere; NCCL's own answer comes first."""
        if answer := interface_choice.asked(self.node, self.env):
            because = f"NCCL {answer.version} was queried on the node"
            return Choice(answer.interface, answer.address, because) if answer.interface else None
        return interface_choice.first(self.node, self.environment, self.version)

    @cached_property
    def sockets(self) -> tuple[Choice, ...]:
        """Every IP interface that carries data if NCCL uses sockets, in NCCL's order."""
        most = interface_choice.MAX_INTERFACES
        return interface_choice.interfaces(self.node.interfaces, self.environment, self.version, most)

    @cached_property
    def interfaces(self) -> tuple[Choice, ...]:
        """The IP interfaces that NCCL uses: with RDMA the bootstrap's, else all with data."""
        # RDMA devices carry no data if they are unknown or the library is missing.
        unknown = "rdma_ports" in self.node.unknown or "verbs" in self.node.unknown
        if unknown or self.node.verbs.error or not self.rdma_ports:
            return self.sockets
        return (self.bootstrap,) if self.bootstrap else ()

    @cached_property
    def gloo(self) -> tuple[Choice, ...]:
        return gloo.announced(self.node, self.env)

    @cached_property
    def gloo_of_job(self) -> tuple[Choice, ...]:
        """The same for this job's launcher."""
        if self.job.launcher != "jax":
            return self.gloo
        # JAX uses Gloo only on CPUs, without an interface variable (jax 0.10 `xla_bridge.make_cpu_client`).
        on_gpus = "gpu_count" not in self.node.unknown and self.node.gpu_count > 0
        return () if on_gpus else self.with_env(GLOO_SOCKET_IFNAME="").gloo

    @cached_property
    def picks(self) -> tuple[Choice, ...]:
        """The interfaces of Gloo and NCCL for this job, Gloo first; without unknown ones."""
        found = list(self.gloo_of_job if "own_name" not in self.node.unknown else ())
        for one in self.interfaces if self.job.backend != "gloo" else ():
            because, first = f"NCCL would pick it: {one.because}", self.bootstrap
            if one.because == interface_choice.FIRST and first and first.interface != one.interface:
                because = "NCCL would also carry data over it"
            found.append(replace(one, because=because))
        return tuple(found)

    @cached_property
    def prediction(self) -> Prediction:
        return selection.predict(known(self.node), self.env)

    @cached_property
    def choice(self) -> Prediction:
        """The same without each GPU's device, which takes most of the time."""
        return selection.predict(Known(self.node, self.version, bool(self.node.interpreter.nccl)), self.env)

    def with_env(self, **env: str) -> Selection:
        return replace(self, env={**self.env, **env})

    def nccl_leaves(self, wanted: str, good: Collection[str] = ()) -> str:
        """Why NCCL would leave interface `wanted` or the equally `good` ones; "" if it would not."""
        name, first = self.node.name, self.bootstrap
        if first is None:
            return f"NCCL finds no interface on {name}"
        if first.interface not in {wanted, *good}:
            return f"by default NCCL takes {first.interface} {first.address} on {name}: {first.because}"
        for also in self.interfaces:
            if also.interface not in {wanted, *good}:
                return f"by default NCCL also carries data over {also.interface} {also.address} on {name}"
        return ""

    def gloo_leaves(self, good: Collection[str]) -> str:
        """Why Gloo would announce none of the `good` addresses; "" if it would."""
        if len(self.gloo) == 1 and self.gloo[0].address in good:
            return ""
        if not self.gloo:
            named = self.environment.get("GLOO_SOCKET_IFNAME", "")
            return f"Gloo finds no address for GLOO_SOCKET_IFNAME={named} on {self.node.name}"
        chosen = self.gloo[0]
        return f"by default Gloo announces {chosen.interface} {chosen.address}: {chosen.because}"

    def announced(self) -> Prediction:
        """Gloo's choice as a prediction: the address that its ranks announce."""
        node = self.node
        absent = (name for name in ("interfaces", "own_name") if name in node.unknown)
        missing = [f"{name} ({node.unknown[name]})" for name in absent]
        named = self.environment.get("GLOO_SOCKET_IFNAME", "")
        if not missing and node.own_name.is_late and not named:
            missing = [f"own_name ({node.own_name.error})"]
        if missing:
            return Prediction(node.name, None, GLOO, missing=tuple(missing))
        shown = tuple(f"{c.interface}:{interface_choice.shown(c)}" for c in self.gloo)
        because = tuple(c.because for c in self.gloo) or (f"GLOO_SOCKET_IFNAME={named} has no address here",)
        first = next(iter(self.gloo), None)
        return Prediction(node.name, first, GLOO if first else "", shown, because=because)


@dataclass(frozen=True)
class _Seen:
    """A node with its prediction, and the compared values."""

    node: Node
    prediction: Prediction
    subnet: str
    """Of the bootstrap's IPv4 address; "" for one that is not routed."""
    kinds: tuple[str, ...]
    """Link layers of its RDMA devices, in order."""


def together(nodes: Sequence[Node], predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """
    The predictions of `nodes`, with contradictions between nodes added to `because`.

    Each node chooses independently, and NCCL compares nothing: src/plugin/net.cc chooses per process,
    src/transport/net_ib connects the n-th device with the n-th.
    """
    seen = [
        _Seen(n, p, _subnet_of_bootstrap(n, p), tuple(i.rpartition("/")[2] for i in p.interfaces))
        for n, p in zip(nodes, predictions, strict=True)
    ]
    made = ((one.prediction, _contradictions(one, seen[:MOST_COMPARED])) for one in seen)
    return tuple(replace(own, because=(*own.because, *found)) for own, found in made)


def _contradictions(one: _Seen, sample: Sequence[_Seen]) -> Iterator[str]:
    others = [s for s in sample if s.node.name != one.node.name]
    own, boot = one.prediction.network, one.prediction.bootstrap
    known = [s for s in others if s.prediction.network == "IB" or "rdma_ports" not in s.node.unknown]
    kinds = Counter(s.prediction.network for s in known if s.prediction.network)
    is_sure = own == "IB" or "rdma_ports" not in one.node.unknown  # else taken as without RDMA devices
    if own and is_sure and kinds and own not in kinds:
        kind = kinds.most_common(1)[0][0]
        who = next(s.node.name for s in known if s.prediction.network == kind)
        yield f"{who} chooses {kind}, this node {own}: their ranks do not connect, and no message explains it"
    # NCCL connects the n-th device of one node with the n-th of another.
    apart = (s for s in others if s.prediction.network == own and s.kinds != one.kinds)
    if own == "IB" and (other := next(apart, None)):
        yield (
            f"{other.node.name} lists {' '.join(other.prediction.interfaces)}: NCCL connects the n-th"
            " device here with the n-th there; NCCL_IB_HCA can name those that belong together"
        )
    apart = (s for s in others if one.subnet and s.subnet and s.subnet != one.subnet)
    if boot and (other := next(apart, None)) and (theirs := other.prediction.bootstrap):
        yield (
            f"{other.node.name} is reached at {theirs.address}, this node at {boot.address}: two subnets, "
            "which must be routed (`ringup check` tries it)"
        )
    # A link-local address is sent with this node's interface number, which peers use as their own.
    link = one.node.interface(boot.interface) if boot and boot.is_link_local else None
    for node in (s.node for s in others if link):
        same = node.interface(link.name) if link else None
        if link and same and same.index != link.index:
            yield (
                f"{link.name} is interface {link.index} here and {same.index} on {node.name}: "
                "a link-local address sent from one node names another interface on the other"
            )
            break


def _subnet_of_bootstrap(node: Node, one: Prediction) -> str:
    boot = one.bootstrap
    interface = node.interface(boot.interface) if boot else None
    for address in interface.addresses if interface else ():
        if boot and (address.address, address.family) == (boot.address, "inet"):
            return subnet(address.address, address.prefix_length)
    return ""


@dataclass(frozen=True)
class Expected:
    """One node: the selection with the plan's variables, and the selection without them if it differs."""

    prediction: Prediction
    alone: Prediction | None = None


@dataclass(frozen=True)
class Predictions:
    """The selections of a cluster's nodes.  `env` has a plan's variables for each node, besides the job's."""

    cluster: Cluster
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> dict[str, Selection]:
        job, nodes = self.cluster.job, self.cluster.nodes
        return {n.name: Selection(n, job, {**job.env, **self.env.get(n.name, {})}) for n in nodes}

    def of(self, node: Node) -> Selection:
        """A node's selection, even if a saved file has two nodes with one name."""
        found, job = self.nodes.get(node.name), self.cluster.job
        return found if found and found.node is node else Selection(node, job, job.env)

    def under(self, env: Mapping[str, Mapping[str, str]]) -> Predictions:
        """The same nodes with a plan's variables; unaffected selections are reused."""
        made = Predictions(self.cluster, env)
        for name, one in made.nodes.items():
            if one.env == self.nodes[name].env:
                made.nodes[name] = self.nodes[name]
        return made

    @cached_property
    def made(self) -> tuple[Prediction, ...]:
        """Predictions of all reached nodes, in order: Gloo's without GPUs, else NCCL's."""
        reached = [s for s in self.nodes.values() if not s.node.unreached]
        if uses_nccl(self.cluster) == "no":
            return tuple(s.announced() for s in reached)
        found = together([s.node for s in reached], [s.prediction for s in reached])
        if uses_nccl(self.cluster) != "unknown":
            return found
        first = uncounted(self.cluster)[:1]
        unsure = tuple(f"the number of GPUs of {n.name} ({n.unknown['gpu_count']})" for n in first)
        return tuple(replace(p, missing=(*p.missing, *unsure)) for p in found)

    def expected(self, planned: Predictions) -> tuple[Expected, ...]:
        """The expected selection under a plan, next to the prediction without it."""
        return tuple(
            Expected(p, None if p is alone or p.likeness[:5] == alone.likeness[:5] else alone)
            for p, alone in zip(planned.made, self.made, strict=True)
        )


predicted = once(Predictions)
"""The predictions without a plan."""


def picks(cluster: Cluster, node: Node) -> tuple[Choice, ...]:
    """The interfaces that a job would use on a node without a plan, for rules."""
    return predicted(cluster).of(node).picks
