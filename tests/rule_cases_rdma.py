"""Cases for the rules about RDMA and about counters and limits of the network, beside those of rule_cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ringup.model import Bond, Cluster, Gid, Interface, Job, RdmaPort, Risen, SocketLimits, Verbs
from tests import clusters as c
from tests.rule_cases import AND_ALSO, FIRES, QUIET, Case, on_node1

BEFORE = set(FIRES)

VERBS = Verbs(
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    providers=("mlx5",),
    modules=("ib_uverbs", "mlx5_core", "mlx5_ib"),
    bound=("0000:2e:00.0",),
)
CARD = {"driver": "mlx5_core", "firmware": "20.31.1014", "hca_type": "MT4123", "board_id": "MT_0000000222"}


def ib(number: int, **more: Any) -> RdmaPort:
    """Port 1 of an HDR InfiniBand device."""
    fields: dict[str, Any] = {
        "state": "ACTIVE", "physical_state": "LinkUp", "link_layer": "InfiniBand", "rate_gbit_s": 200.0,
        "width": 4, "netdev": f"ib{number}", "sm_lid": 6, "pkeys": (0xFFFF,), **CARD, **more,
    }  # fmt: skip
    return RdmaPort(f"mlx5_{number}", 1, **fields)


def table(address: str, kind: str = "RoCE v2", netdev: str = "eth2") -> tuple[Gid, ...]:
    """A RoCE port's GID table: link-local twice, the IPv4 address twice."""
    return (
        Gid(0, "fe80::a00:27ff:fe10:1001", "IB/RoCE v1", netdev),
        Gid(1, "fe80::a00:27ff:fe10:1001", kind, netdev),
        Gid(2, f"::ffff:{address}", "IB/RoCE v1", netdev),
        Gid(3, f"::ffff:{address}", kind, netdev),
    )


def roce(number: int, address: str, **more: Any) -> RdmaPort:
    """Port 1 of a 100 Gbit/s RoCE device with an IPv4 address."""
    fields: dict[str, Any] = {
        "state": "ACTIVE", "physical_state": "LinkUp", "link_layer": "Ethernet", "rate_gbit_s": 100.0,
        "width": 4, "netdev": f"eth{number}", "gids": table(address, netdev=f"eth{number}"), **CARD, **more,
    }  # fmt: skip
    return RdmaPort(f"mlx5_{number}", 1, **fields)


def nodes(ports: Callable[[int], tuple[RdmaPort, ...]], count: int = 2, **more: Any) -> Cluster:
    """Nodes with one Ethernet card, GPUs and these RDMA ports; `ports` is given the node's number."""
    made = [
        c.node(
            f"node{k}",
            c.interface("eno1", f"10.0.0.{k + 10}/24", speed_gbit_s=10.0),
            *(above(p, k) for p in ports(k) if p.netdev),
            gpu_count=8,
            rdma_ports=ports(k),
            verbs=VERBS,
        )
        for k in range(count)
    ]
    return c.cluster(*made, **more)


def above(port: RdmaPort, k: int) -> Interface:
    """The interface above a port."""
    number = int(port.device[-1])
    if port.link_layer == "InfiniBand":
        return c.interface(port.netdev, f"10.5{number}.0.{k + 10}/24", kind="infiniband", mtu_bytes=4092)
    own = next((g.gid.removeprefix("::ffff:") for g in port.gids if "ffff:" in g.gid), "")
    return c.interface(port.netdev, *([f"{own}/24"] if own else []), speed_gbit_s=100.0, mtu_bytes=9000)


def two_ib(k: int) -> tuple[RdmaPort, ...]:
    return ib(0), ib(1)


def two_rails(k: int) -> tuple[RdmaPort, ...]:
    return roce(0, f"10.10.0.{k + 10}"), roce(1, f"10.11.0.{k + 10}")


def with_port(base: Callable[[int], tuple[RdmaPort, ...]], **fields: Any) -> Case:
    """The second port of node1 with some fields replaced."""

    def ports(k: int) -> tuple[RdmaPort, ...]:
        one, other = base(k)
        return (one, replace(other, **fields)) if k == 1 else (one, other)

    return lambda: nodes(ports)


def changed_node(base: Case, **fields: Any) -> Case:
    return lambda: c.changed(base(), "node1", **fields)


def healthy_ib() -> Cluster:
    return nodes(two_ib)


def healthy_roce() -> Cluster:
    return nodes(two_rails)


def rising(of: str, base: Case = healthy_ib, over_s: float = 2.0, **by: int) -> Case:
    return changed_node(base, rises=(Risen(of, over_s, by),))


# Ports.
FIRES["rdma-port-not-active"] = with_port(two_ib, state="DOWN", physical_state="Polling")
QUIET["rdma-port-not-active"] = lambda: nodes(
    lambda k: (ib(0), ib(1, state="DOWN", physical_state="Disabled"))
)
FIRES["no-subnet-manager"] = with_port(two_ib, state="INIT", sm_lid=0)
QUIET["no-subnet-manager"] = with_port(two_ib, state="DOWN", physical_state="Polling", sm_lid=0)
FIRES["rdma-rate-low"] = with_port(two_ib, rate_gbit_s=100.0, width=2)
QUIET["rdma-rate-low"] = with_port(
    two_ib, state="DOWN", rate_gbit_s=10.0
)  # The rate of a DOWN port means nothing.
FIRES["rdma-device-set-differs"] = lambda: nodes(lambda k: two_ib(k) if k != 1 else (ib(0),), 3)
QUIET["rdma-device-set-differs"] = healthy_ib
FIRES["mixed-link-layers-selected"] = lambda: nodes(
    lambda k: (ib(0), replace(roce(1, f"10.11.0.{k + 10}", rate_gbit_s=50.0), device="mlx5_bond_1"))
)
QUIET["mixed-link-layers-selected"] = healthy_roce
FIRES["management-port-selected"] = lambda: nodes(
    lambda k: (roce(0, f"10.10.0.{k + 10}", netdev="eno1", rate_gbit_s=25.0), roce(1, f"10.11.0.{k + 10}"))
)
QUIET["management-port-selected"] = healthy_roce

# Access.
FIRES["uverbs-not-accessible"] = with_port(two_ib, can_open=False)
QUIET["uverbs-not-accessible"] = with_port(two_ib, can_open=False, state="DOWN")
FIRES["ib-char-device-without-module"] = changed_node(
    healthy_ib, verbs=replace(VERBS, has_char_devices=False)
)
QUIET["ib-char-device-without-module"] = lambda: nodes(lambda k: ())
FIRES["ib-userspace-missing"] = changed_node(
    healthy_ib, verbs=replace(VERBS, library="", error="libibverbs.so.1: cannot open shared object file")
)
QUIET["ib-userspace-missing"] = lambda: c.changed(nodes(lambda k: ()), "node1", verbs=Verbs(error="none"))
FIRES["rdma-device-name-missing"] = changed_node(healthy_ib, environment={"NCCL_IB_HCA": "ib0"})
QUIET["rdma-device-name-missing"] = changed_node(healthy_ib, environment={"NCCL_IB_HCA": "mlx5"})


def over_tcp(**env: str) -> Case:
    return lambda: replace(healthy_ib(), job=Job(env=env))


FIRES["ipoib-used-for-data"] = over_tcp(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="ib0")
AND_ALSO["ipoib-used-for-data"] = {"ipoib-used-for-data"}  # On each of the two nodes.
QUIET["ipoib-used-for-data"] = over_tcp(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="eno1")

# What traffic is addressed by and marked with.
FIRES["gid-missing-or-wrong"] = changed_node(healthy_roce, environment={"NCCL_IB_GID_INDEX": "2"})
AND_ALSO["gid-missing-or-wrong"] = {"gid-missing-or-wrong", "environment-differs-between-nodes"}
QUIET["gid-missing-or-wrong"] = changed_node(
    healthy_ib, rdma_ports=(ib(0, gids=table("10.0.0.9")[:1]), ib(1))
)
FIRES["gid-subnets-differ"] = lambda: nodes(
    lambda k: two_rails(k) if k != 1 else (roce(0, "10.11.0.11"), roce(1, "10.10.0.11")), 3
)
QUIET["gid-subnets-differ"] = lambda: nodes(lambda k: (roce(0, f"10.1{k}.0.1"), roce(1, f"10.2{k}.0.1")))


def low_mtu(*mtus: int) -> Case:
    """eth1 of the nodes with these MTUs."""

    def build() -> Cluster:
        base = healthy_roce()
        for node, mtu in zip(base.nodes, mtus, strict=True):
            own = tuple(replace(i, mtu_bytes=mtu) if i.name == "eth1" else i for i in node.interfaces)
            base = c.changed(base, node.name, interfaces=own)
        return base

    return build


FIRES["rdma-mtu-low"] = low_mtu(9000, 1500)
QUIET["rdma-mtu-low"] = low_mtu(9000, 4500)
FIRES["dscp-not-trusted"] = lambda: replace(
    nodes(lambda k: (roce(0, f"10.10.0.{k + 10}", trust="pcp" if k else "dscp"),)),
    job=Job(env={"NCCL_IB_TC": "106"}),
)
QUIET["dscp-not-trusted"] = lambda: nodes(lambda k: (roce(0, f"10.10.0.{k + 10}", trust="pcp"),))
FIRES["pfc-not-configured"] = lambda: nodes(
    lambda k: (roce(0, f"10.10.0.{k + 10}", pfc=0 if k == 1 else 8, trust="dscp"),), 3
)
QUIET["pfc-not-configured"] = lambda: nodes(lambda k: (roce(0, f"10.10.0.{k + 10}", pfc=0),))
FIRES["pkey-table-empty"] = with_port(two_ib, pkeys=(0x0000,))
QUIET["pkey-table-empty"] = with_port(two_ib, pkeys=(0x7FFF,))  # One limited member talks to full ones.

# What rises.
FIRES["link-flapped"] = rising("rdma:mlx5_1:1", link_downed=1)
QUIET["link-flapped"] = rising("rdma:mlx5_7:1", link_downed=1)
FIRES["symbol-errors"] = rising("rdma:mlx5_1:1", symbol_error=400, port_rcv_errors=90)
QUIET["symbol-errors"] = rising("rdma:mlx5_1:1", port_rcv_errors=1)
FIRES["receive-errors"] = rising("rdma:mlx5_1:1", port_rcv_errors=90)
QUIET["receive-errors"] = rising("rdma:mlx5_1:1", symbol_error=400, port_rcv_errors=90)
FIRES["transmit-discards"] = rising("rdma:mlx5_1:1", port_xmit_discards=1000)
QUIET["transmit-discards"] = rising("rdma:mlx5_1:1", port_xmit_wait=1000)
FIRES["transport-retries"] = rising("rdma:mlx5_1:1", base=healthy_roce, local_ack_timeout_err=40)
QUIET["transport-retries"] = rising("rdma:mlx5_1:1", base=healthy_roce, out_of_sequence=4000)


def efa(k: int) -> tuple[RdmaPort, ...]:
    return (
        RdmaPort("rdmap0s6", 1, "ACTIVE", "LinkUp", "Unspecified", 100.0, driver="efa"),
        RdmaPort("rdmap0s7", 1, "ACTIVE", "LinkUp", "Unspecified", 100.0, driver="efa"),
    )


def with_plugin() -> Cluster:
    base = nodes(efa)
    plugin = ("/opt/amazon/ofi-nccl/lib/libnccl-net.so",)
    return replace(base, nodes=tuple(replace(n, nccl_plugins=plugin) for n in base.nodes))


FIRES["efa-underneath"] = rising("rdma:rdmap0s6:1", base=with_plugin, rx_drops=7)
QUIET["efa-underneath"] = with_plugin
FIRES["interface-errors"] = on_node1(rises=(Risen("interface:enp99s0", 2.0, {"rx_crc_errors": 3}),))
QUIET["interface-errors"] = on_node1(rises=(Risen("interface:docker0", 2.0, {"rx_crc_errors": 3}),))


# Limits and bonds.
def limited(node: str = "node0", **fields: int) -> Case:
    return lambda: c.changed(c.healthy(), node, socket_limits=SocketLimits(**fields))


FIRES["backlog-overflow"] = lambda: replace(limited(somaxconn=8)(), job=Job(nproc=8))
QUIET["backlog-overflow"] = limited("node1", somaxconn=1)
FIRES["socket-buffers-small"] = limited(tcp_rmem_max_bytes=212992, tcp_wmem_max_bytes=212992)
QUIET["socket-buffers-small"] = limited(tcp_rmem_max_bytes=6291456, tcp_wmem_max_bytes=4194304)
FIRES["conntrack-nearly-full"] = limited(conntrack_count=60000, conntrack_max=65536)
QUIET["conntrack-nearly-full"] = limited(conntrack_count=60000, conntrack_max=262144)


def bonded(*down: str) -> Cluster:
    mode = "IEEE 802.3ad Dynamic link aggregation"
    bonds = (Bond("bond0", mode, "layer3+4", ("eth0", "eth1"), down),)
    made = [c.node(f"node{k}", c.interface("bond0", f"10.0.0.{k + 1}/24", kind="bond")) for k in range(2)]
    return c.changed(c.cluster(*made), "node1", bonds=bonds)


FIRES["bond-misconfigured"] = lambda: bonded("eth1")
QUIET["bond-misconfigured"] = bonded

OWN = sorted(set(FIRES) - BEFORE)
"""The rules this file has cases for."""
