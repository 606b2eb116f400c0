"""Network interfaces and their addresses."""

from __future__ import annotations

from ringup.problems.text import shared

INTERFACE_NAME_MISSING = shared(
    "interface-name-missing",
    "error",
    """
    NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME matches no usable interface on a host.

    Why: an interface that is absent, down or without address leaves NCCL or Gloo with nothing to bind.

    Fix: the name that exists on that host; per node where they differ, or an exclusion such as
    `^lo,docker`.

    In logs: `Bootstrap : no socket interface found`, `Unable to find address for: eth7`.
    """,
)
INTERFACE_DOWN = shared(
    "interface-down",
    "error",
    """
    An interface the job names is down or has no address.

    Why: NCCL and Gloo skip it, and fail when it is the only one named.

    Fix: bring it up, or name another one.

    In logs: `no socket interface found` for an interface the host lists as Down.
    """,
)
VIRTUAL_INTERFACE_CHOSEN = shared(
    "virtual-interface-chosen",
    "error",
    """
    Docker, bridge, veth, CNI or tunnel interfaces are among the ones NCCL or Gloo uses.

    Why: their addresses exist on every host or on none: connections reach the host itself, or nothing.

    Fix: `NCCL_SOCKET_IFNAME=<the routable one>`, or exclude:
    `NCCL_SOCKET_IFNAME=^docker,br-,veth,virbr,lo`.

    In logs: `NET/Socket : Using ... [1]veth1234:fe80::...`, channels `via NET/Socket/1`.
    """,
)
SAME_ADDRESS_ON_TWO_NODES = shared(
    "same-address-on-two-nodes",
    "error",
    """
    Two nodes carry the same address.

    Why: docker0 is 172.17.0.1 everywhere, cloned machines keep their NIC's address: the wrong peer
    answers.

    Fix: leave that interface out, or give the nodes addresses of their own.

    In logs: the same address in `Bootstrap : Using` of two hosts.
    """,
)
NO_COMMON_SUBNET = shared(
    "no-common-subnet",
    "error",
    """
    The interfaces two nodes would use share no subnet and no route.

    Why: each node chooses by itself; one announces an address the other cannot reach.

    Fix: name the interface of the common subnet on every node: `NCCL_SOCKET_IFNAME`,
    `GLOO_SOCKET_IFNAME`.

    In logs: `Bootstrap : Using` addresses of different networks, then silence.
    """,
)
PEER_UNREACHABLE_ON_INTERFACE = shared(
    "peer-unreachable-on-interface",
    "error",
    """
    A peer's advertised address cannot be reached from here, though the interface is a sane one.

    Why: the address is the peer's choice; a management network, a missing route or a filter stands
    in between.

    Fix: `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` = the interface of the common subnet on
    every node (also
    inside containers); then routes and firewall.

    In logs: `Connect to 10.12.5.64<port> failed : No route to host`, `Connection timed out`.
    """,
)
FIREWALL_DROPS_HIGH_PORTS = shared(
    "firewall-drops-high-ports",
    "error",
    """
    New connections to high ports are dropped while low ones pass.

    Why: NCCL, Gloo and the worker store listen on ports the kernel gives out, not on the one that
    was opened.

    Fix: open all ports between the nodes, or narrow `net.ipv4.ip_local_port_range` and open that range.

    In logs: `errno: 110 - Connection timed out` on an ephemeral port of a host that answers elsewhere.
    """,
)
DUPLICATE_HOSTNAME = shared(
    "duplicate-hostname",
    "error",
    """
    Two nodes have the same host name.

    Why: NCCL's and Gloo's notion of "same host" is built from it; local ranks collapse.

    Fix: rename one; `NCCL_HOSTID` per node.
    """,
)
DUPLICATE_BOOT_ID = shared(
    "duplicate-boot-id",
    "warning",
    """
    Two nodes have the same boot id.

    Why: NCCL takes cloned machines for one host and tries shared memory between them.

    Fix: `NCCL_HOSTID` different on every node.
    """,
)


LOOPBACK_INTERFACE_CHOSEN = shared(
    "loopback-interface-chosen",
    "error",
    """
    NCCL or Gloo uses the loopback interface in a job of several nodes.

    Why: every rank tells its peers 127.0.0.1, and they connect to themselves.  A filter of one's own,
    such as `NCCL_SOCKET_IFNAME=^docker`, no longer excludes `lo`.

    Fix: `NCCL_SOCKET_IFNAME=^lo,docker`, or the name of the interface the nodes share.

    In logs: `Bootstrap : Using lo:127.0.0.1<0>`, `NET/Socket : Using [0]lo:127.0.0.1<0>`.
    """,
)
GLOO_IFNAME_IN_NCCL_SYNTAX = shared(
    "gloo-ifname-in-nccl-syntax",
    "error",
    """
    GLOO_SOCKET_IFNAME holds NCCL's list, exclusion or exact-match syntax.

    Why: Gloo takes one plain name; `^docker` is the name of no interface.

    Fix: `GLOO_SOCKET_IFNAME=<one interface>`.

    In logs: `Unable to find address for: ^docker,lo`.
    """,
)
