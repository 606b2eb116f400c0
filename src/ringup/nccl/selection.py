"""NCCL's choice on one node: bootstrap, network, devices, each GPU's device, its log line, confidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ringup.model import Node, RdmaPort
from ringup.nccl import interface_choice, plugins, rdma_devices, topology, traps
from ringup.nccl.interface_choice import Choice, Version
from ringup.parse.topology import Matrix, Topology


@dataclass(frozen=True)
class Known:
    """Facts about a node, and their quality."""

    node: Node
    """`node.unknown` has "interfaces" and "rdma_ports" if these could not be read."""
    version: Version = interface_choice.ASSUMED
    version_is_known: bool = True
    interfaces_in_kernel_order: bool = True
    devices_in_library_order: bool = True
    asked_counts: bool = True
    """False for another version or pasted output: NCCL's answer on the node does not apply to these."""
    topology: Topology = field(default_factory=Topology)
    is_live_tree: bool = False
    """The topology comes from sysfs, not from a dump of NCCL."""
    matrix: Matrix = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """NCCL's choice on one node."""

    name: str
    bootstrap: Choice | None
    network: str
    """"IB", "Socket", a plugin's name, or "" if NCCL fails (or it is unknown)."""
    interfaces: tuple[str, ...] = ()
    oob: str = ""
    used: tuple[topology.Use, ...] = ()
    bootstrap_line: str = ""
    log_line: str = ""
    because: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fell_back: str = ""
    """Why sockets carry the data although there are RDMA devices."""

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """Low if a fact is missing, medium if a known fact allows another outcome."""
        return "low" if self.missing else "medium" if self.doubts else "high"

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for nodes that choose alike, whatever their addresses."""
        boot = self.bootstrap.interface if self.bootstrap else ""
        names = device_names(self.network, self.interfaces)
        used = tuple((u.gpu, u.device) for u in self.used)
        return boot, self.network, names, self.oob, used, self.confidence, self.doubts, self.missing


def device_names(network: str, shown: Iterable[str]) -> tuple[str, ...]:
    """Devices without node-specific parts: `eth0:10.0.0.1` is eth0, `mlx5_0:1/IB` is mlx5_0:1."""
    return tuple(one.partition("/" if network == "IB" else ":")[0] for one in shown)


def predict(known: Known, env: Mapping[str, str]) -> Prediction:
    # PCI addresses of RDMA devices may be only in the topology's dump.
    if where := {net.name: way[-1].bus_id for _, way in known.topology.devices() for net in way[-1].nets}:
        ports = [
            p if p.bus_id else dataclasses.replace(p, bus_id=where.get(p.device, ""))
            for p in known.node.rdma_ports
        ]
        known = dataclasses.replace(known, node=dataclasses.replace(known.node, rdma_ports=tuple(ports)))
    return _Choosing(known, interface_choice.effective(known.node, env)).predict()


class _Choosing:
    """The state of one node's prediction."""

    def __init__(self, known: Known, environment: Mapping[str, str]) -> None:
        self.known, self.node, self.version = known, known.node, known.version
        self.environment = environment
        self.net = environment.get("NCCL_NET", "")
        self.because: list[str] = []
        self.doubts: list[str] = []
        self.missing: list[str] = []
        self.note, self.doubt, self.miss = self.because.append, self.doubts.append, self.missing.append
        self.fell_back = ""
        self.first: Choice | None = None
        """The bootstrap's interface."""

    def predict(self) -> Prediction:
        shown = ".".join(map(str, self.version))
        if not self.known.version_is_known:
            how = "" if self.node.interpreter.path else " (--nccl VERSION)"
            self.doubt(f"NCCL's version is not known, {shown} is assumed{how}")
        elif not (2, 18) <= self.version < (2, 33):
            self.doubt(f"NCCL {shown} is not among the releases that ringup knows (2.18 to 2.32)")
        self.first = self._bootstrap()
        if self.first or "interfaces" in self.node.unknown:
            made = self._with_network()
        else:
            self.note("no interface is left for the bootstrap: every communicator fails")
            line = "Bootstrap : no socket interface found"
            if self.environment.get("NCCL_COMM_ID"):
                line = "NET/Socket : No usable listening interface found"
            made = self._made("", line)
        found = traps.all_traps(self.environment, self.node.interfaces, self.node.rdma_ports, self.version)
        return dataclasses.replace(
            made,
            because=tuple(dict.fromkeys([*found, *self.because])),
            doubts=tuple(dict.fromkeys(self.doubts)),
            missing=tuple(dict.fromkeys(self.missing)),
            fell_back=self.fell_back if made.network == "Socket" else "",
        )

    def _made(self, network: str, log_line: str = "", **more: Any) -> Prediction:
        boot = interface_choice.bootstrap_line(self.first, self.version) if self.first else ""
        return Prediction(self.node.name, self.first, network, bootstrap_line=boot, log_line=log_line, **more)

    def _interfaces(self, limit: int) -> tuple[Choice, ...]:
        return interface_choice.interfaces(self.node.interfaces, self.environment, self.version, limit)

    def _bootstrap(self) -> Choice | None:
        if "interfaces" in self.node.unknown:
            self.miss(f"the interfaces and their addresses ({self.node.unknown['interfaces']})")
            return None
        first = self._as_asked(interface_choice.first(self.node, self.environment, self.version))
        if first is None:
            return None
        if first.is_link_local:
            self.note(
                f"{first.interface} has only a link-local address: peers connect only if it has the same"
                " index on every node"
            )
        is_sorted = not self.known.interfaces_in_kernel_order
        if is_sorted and (len(self._interfaces(2)) > 1 or len(self.node.interfaces) > 2):
            order = "the kernel's order (`ip addr` shows it)"
            self.doubt(f"ifconfig sorts interfaces by name, NCCL takes {order}")
        return first

    def _as_asked(self, ours: Choice | None) -> Choice | None:
        """NCCL's own answer if it was queried with this environment, with the contradictions; else ours."""
        answer = interface_choice.asked(self.node, self.environment) if self.known.asked_counts else None
        expected = f"{ours.interface} {interface_choice.shown(ours)}" if ours else "nothing"
        if ours:
            self.note(f"bootstrap on {expected}: {ours.because}")
        if not answer:
            return ours
        head = f"NCCL {answer.version} on this node reports"
        if (answer.interface, answer.address) == ((ours.interface, ours.address) if ours else ("", "")):
            self.note(f"{head} {'the same' if ours else '; '.join(answer.errors)}")
            return ours
        reported = f"{answer.interface} {answer.address}" if answer.interface else "; ".join(answer.errors)
        self.because[:] = [f"{head}: {reported}"]
        expected = f"{ours.interface} {ours.address}" if ours else "nothing"
        self.doubt(f"by the rules of its source it would take {expected}: please report this")
        return Choice(answer.interface, answer.address, "NCCL reported it") if answer.interface else None

    def _with_network(self) -> Prediction:
        plugin = self._plugin()
        if self.net.lower() == "socket":
            self.note(f"NCCL_NET={self.net}: RDMA devices are not used")
            self.fell_back = f"NCCL_NET={self.net}" if self.node.rdma_ports else ""
            return self._over_sockets()
        if self.net.lower() not in ("", "ib"):
            self.miss(f"whether a plugin with a network called {self.net} is there")
            self.note(f"NCCL_NET={self.net}: only a network of that name, from a plugin; else init fails")
            return self._made(self.net)
        made = self._verbs()
        if made.taken:
            return self._over_verbs(made)
        if any(p.device.startswith(("efa", "rdmap")) and p.can_open for p in self.node.rdma_ports):
            if plugin:
                self.note("EFA devices are the plugin's, through libfabric")
                return self._made("OFI")
            if plugin is None:
                self.miss("whether the OFI plugin is there, which drives EFA devices")
            else:
                self.note("no OFI plugin is there: NCCL does not use the EFA devices")
        if not self.net:
            return self._over_sockets()
        self.note(f"NCCL_NET={self.net} forbids falling back: init fails")
        line = f"Error: network {self.net} not found."
        return self._made("", line if self.version < (2, 27, 0) else "Failed to initialize any NET plugin")

    def _plugin(self) -> str | None:
        """The network plugin that NCCL loads first; "" for none, None if unknown."""
        named = self.environment.get("NCCL_NET_PLUGIN", "")
        found = plugins.loads(self.node, self.environment)
        if self.net.lower() in ("ib", "socket"):
            return found  # only a network of exactly this name is used
        if found:
            self.miss(f"the devices of the network plugin {found}: if it has any, NCCL uses it first")
        elif found is None and named:
            self.miss(f"whether the plugin NCCL_NET_PLUGIN={named} loads: if it does, NCCL uses it first")
        elif named and named.lower() != "none":
            self.note(f"NCCL_NET_PLUGIN={named}: no such plugin is found, NCCL's own networks are used")
        return found

    def _verbs(self) -> rdma_devices.Ports:
        """The RDMA ports that NCCL would take; if there are none, `because` and `fell_back` say why."""
        node = self.node
        if rdma_devices.is_disabled(self.environment):
            printed = " (it says `Failed to initialize NET plugin IB`)" if self.version >= (2, 27, 0) else ""
            value = self.environment["NCCL_IB_DISABLE"]
            self.note(f"NCCL_IB_DISABLE={value}: RDMA devices are not used{printed}")
            self.fell_back = f"NCCL_IB_DISABLE={value}" if node.rdma_ports else ""
            return rdma_devices.Ports()
        if "rdma_ports" in node.unknown:
            taken = "" if "interfaces" in node.unknown else "; taken as none"
            self.miss(f"the RDMA devices ({node.unknown['rdma_ports']}){taken}")
            return rdma_devices.Ports()
        if node.rdma_ports and "verbs" not in node.unknown and node.verbs.error:
            self.fell_back = f"no libibverbs: NCCL falls back to sockets ({node.verbs.error})"
            self.note(self.fell_back)
            return rdma_devices.Ports()
        in_order = self.known.devices_in_library_order
        made = rdma_devices.ports(node.rdma_ports, self.environment, self.version, in_library_order=in_order)
        self.because += made.because
        self.doubts += made.doubts
        self.missing += made.missing
        if not made.taken and node.rdma_ports:
            self.note("no RDMA port is left: NCCL says `NET/IB : No device found.` and falls back to sockets")
            self.fell_back = "; ".join(made.because)
        elif not made.taken:
            self.note("there is no RDMA device")
        return made

    def _over_verbs(self, made: rdma_devices.Ports) -> Prediction:
        oob, oob_shown = "", "INTERFACE:ADDRESS"
        if "interfaces" not in self.node.unknown:
            has_id = bool(self.environment.get("NCCL_COMM_ID"))
            first = next(iter(self._interfaces(1)), None) if has_id else self.first
            if not first:
                self.note("NET/IB : No IP interface found.")
                return self._over_sockets()
            oob, oob_shown = first.interface, f"{first.interface}:{interface_choice.shown(first)}"
        if len({p.link_layer for p in made.taken if p.link_layer}) > 1:
            self.note("RoCE and InfiniBand are both listed: NCCL prefers neither by its kind")
        for port in made.taken:
            if port.link_layer == "Ethernet":
                self.note(rdma_devices.gid_index(port, self.environment, self.version).because)
        devices = [
            topology.Where(d.name, "/".join(n for p in d.ports for n in (p.device, p.bus_id)), d.speed_mbit_s)
            for d in made.devices
        ]
        line = rdma_devices.line(made, self.environment, self.version, oob_shown)
        interfaces = tuple(rdma_devices.shown(p) for p in made.taken)
        return self._made("IB", line, interfaces=interfaces, oob=oob, used=self._devices_used(devices))

    def _over_sockets(self) -> Prediction:
        node = self.node
        if "interfaces" in node.unknown:
            passed_over = rdma_devices.is_disabled(self.environment) or self.net.lower() == "socket"
            is_known = passed_over or "rdma_ports" not in node.unknown  # else no network is likely
            return self._made("Socket" if is_known else "")
        if not (chosen := self._interfaces(interface_choice.MAX_INTERFACES)):
            self.note("no interface is left for sockets: init fails")
            return self._made("")
        if len(chosen) > 1:
            count = "both" if len(chosen) == 2 else f"all {len(chosen)}"
            self.note(f"{count} interfaces become devices that carry data")
        by_netdev = {p.netdev: p for p in node.rdma_ports if p.netdev}
        devices = []
        for one in chosen:
            port = by_netdev.get(one.interface, RdmaPort("", 0))
            interface = node.interface(one.interface)
            rate = (interface.speed_gbit_s if interface else None) or port.rate_gbit_s or 0.0
            place = f"{one.interface}/{port.device}/{port.bus_id}"
            devices.append(topology.Where(one.interface, place, rate * 1000))
        used = self._devices_used(devices)
        link_local = {c.interface for c in chosen if c.is_link_local}
        self.because += [
            f"data of GPU {use.gpu} goes over {use.device}, which has a link-local address only"
            for use in used
            if use.device in link_local
        ]
        interfaces = tuple(f"{c.interface}:{interface_choice.shown(c)}" for c in chosen)
        return self._made("Socket", interface_choice.sockets_line(chosen), interfaces=interfaces, used=used)

    def _devices_used(self, devices: list[topology.Where]) -> tuple[topology.Use, ...]:
        """The device of each GPU, if the tree (or the matrix) has enough information."""
        tree, matrix = self.known.topology, self.known.matrix
        gpus = sorted(way[-1].gpu for _, way in tree.devices() if way[-1].gpu is not None)
        # NCCL's own measured speed, if the dump lists exactly this device.
        listed = {n.name: n.speed_mbit_s for _, way in tree.devices() for n in way[-1].nets}
        listed |= {n.name: n.speed_mbit_s for cpu in tree.cpus for n in cpu.nets}
        for number, one in enumerate(devices):
            rate = listed.get(one.place.partition("/")[0], 0)
            if rate > 0 and (not one.speed_mbit_s or "+" not in one.name):
                devices[number] = dataclasses.replace(one, speed_mbit_s=float(rate))
        if tree.cpus:
            found = topology.paths(tree, devices, self.version, topology.gdr_level(self.environment))
        elif matrix:
            found = topology.matrix_paths(matrix, devices)
            self.doubt("nvidia-smi topo -m has no PCI bandwidth: gen 4 x16 is assumed")
        else:
            if len(devices) > 1:
                self.note("which of them a GPU uses depends on the PCI tree (--topo FILE)")
            return ()
        lost = sorted({d.name for d in devices} - {n for options in found.values() for n in options})
        if lost and gpus and len(devices) == 1:
            return tuple(topology.Use(gpu, devices[0].name, "the only one") for gpu in gpus)
        if lost or not found:
            what = ", ".join(lost) or "GPUs"
            shown = "PCI tree" if self.known.is_live_tree else "topology given"
            self.doubt(f"the {shown} does not show {what}: which device a GPU uses is unknown")
            return ()
        if self.known.is_live_tree:
            self._doubt_live_tree(len(found))
        uses, doubts = topology.choose(found, self.environment, self.version)
        self.doubts += doubts
        self.because += [f"GPU {u.gpu} uses {u.device}: {u.because}" for u in uses]
        return tuple(uses)

    def _doubt_live_tree(self, shown: int) -> None:
        """Differences between the tree from sysfs and NCCL's own."""
        self.doubts += [
            f"{name}={value} is read instead of the tree in sysfs (see `ringup predict --topo`)"
            for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
            if (value := self.environment.get(name))
        ]
        if self.node.virtual_machine:
            self.doubt("a virtual machine's PCI tree need not be the real one")
        if shown < self.node.gpu_count:
            self.doubt(f"the PCI tree shows {shown} of {self.node.gpu_count} GPUs")
