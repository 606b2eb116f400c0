"""
A case that fires and one that stays quiet, for every rule.

In a firing case the rule's own finding is the only one above a note, unless `AND_ALSO` says
what else is truly wrong there: each fault is named once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ringup.model import (
    Clock,
    Cluster,
    FileFact,
    Interpreter,
    Job,
    Limits,
    Listener,
    NcclAnswer,
    PortRanges,
    Process,
    Resolution,
    Space,
)
from tests import clusters as c

Case = Callable[[], Cluster]
FIRES: dict[str, Case] = {}
QUIET: dict[str, Case] = {}
AND_ALSO: dict[str, set[str]] = {}

PYTHON = c.TORCH


def on_node1(**fields: object) -> Case:
    """A healthy cluster with some facts of node1 replaced."""
    return lambda: c.changed(c.healthy(), "node1", **fields)


def everywhere(**fields: object) -> Case:
    """A healthy cluster with some facts of both nodes replaced."""
    return lambda: c.changed(c.changed(c.healthy(), "node0", **fields), "node1", **fields)


def with_job(base: Case, **fields: object) -> Case:
    return lambda: replace(base(), job=Job(**fields))  # type: ignore[arg-type]


def two(**more: object) -> Cluster:
    """Two nodes on two networks, em1 first, names on enp99s0."""
    return c.cluster(c.two_networks(0), c.two_networks(1), **more)  # type: ignore[arg-type]


def filtered(ports: str, error: str, *, target: str = "*", base: Case = c.healthy) -> Case:
    """A firewall on node0."""

    def build() -> Cluster:
        cluster = base()
        return replace(cluster, links=c.breaks(cluster.links, "*", "node0", target, error, ports))

    return build


def seen(name: str, *addresses: str, error: str = "") -> Resolution:
    return Resolution(name, addresses, error)


# Interfaces and paths.
FIRES["peer-unreachable-on-interface"] = c.article_002
QUIET["peer-unreachable-on-interface"] = two
FIRES["pairs-not-tested"] = lambda: c.healthy(3, pairs_unknown={"node1": "no answer within 20 s"})
QUIET["pairs-not-tested"] = lambda: c.cluster(
    c.plain(0), c.unreached("node1", "ssh-timeout"), pairs_unknown={"node1": "not reached"}
)
FIRES["no-common-network"] = lambda: two(broken=[("*", "*", "*", "timed out")])
QUIET["no-common-network"] = c.article_002
FIRES["asymmetric-reachability"] = lambda: two(broken=[("node1", "node0", "*", "timed out")])
QUIET["asymmetric-reachability"] = c.article_002
FIRES["firewall-drops-high-ports"] = filtered("high", "timed out")
QUIET["firewall-drops-high-ports"] = filtered("29500", "timed out")
FIRES["path-mtu-black-hole"] = lambda: two(broken=[("*", "node1", "10.12.5.65", "large message lost")])
QUIET["path-mtu-black-hole"] = c.article_002


def lossy(every: int) -> Case:
    """Every so-many-th connection had to send something again."""

    def build() -> Cluster:
        base = c.healthy()
        links = tuple(
            replace(li, segments=9, retransmitted=int(k % every == 0)) for k, li in enumerate(base.links)
        )
        return replace(base, links=links)

    return build


FIRES["tcp-retransmits-high"] = lossy(2)
QUIET["tcp-retransmits-high"] = lossy(1000)


def down(k: int, **more: object) -> Cluster:
    nodes = [c.two_networks(0), c.two_networks(1)]
    em1 = nodes[k].interface("em1")
    assert em1 is not None
    dead = replace(em1, **more)
    interfaces = tuple(dead if i.name == "em1" else i for i in nodes[k].interfaces)
    nodes[k] = replace(nodes[k], interfaces=interfaces)
    other = f"10.12.5.{65 - k}"
    return c.cluster(*nodes, broken=[("*", "*", other, "no route to host")])


FIRES["interface-down"] = lambda: down(1, is_up=False, has_carrier=False)
QUIET["interface-down"] = lambda: c.cluster(
    *(
        c.node(f"node{k}", c.interface("eno1", f"10.0.0.{k + 1}/24"), c.interface("eno2", up=False))
        for k in range(2)
    )
)


def doubled() -> Cluster:
    both = c.interface("enp99s0", "10.0.0.11/24", "10.0.0.10/24", speed_gbit_s=100.0)
    nodes = (c.plain(0), replace(c.plain(1), interfaces=c.numbered(both)))
    return c.cluster(
        *nodes, broken=[("node0", "node1", "*", "timed out"), ("node1", "node0", "*", "own address")]
    )


FIRES["same-address-on-two-nodes"] = doubled
QUIET["same-address-on-two-nodes"] = c.healthy  # docker0 is 172.17.0.1 on both.


def name_on_docker() -> Cluster:
    docker = c.interface("docker0", "172.17.0.1/16", kind="bridge")
    cards = [c.interface("enp99s0", f"192.168.7.{10 + k}/24", speed_gbit_s=10.0) for k in (0, 1)]
    nodes = (c.node("node0", cards[0], docker, own="172.17.0.1"), c.node("node1", cards[1], docker))
    return c.cluster(*nodes, broken=[("*", "*", "172.17.0.1", "own address")])


def bridged_host(bridge: str) -> Cluster:
    """Hosts whose only card is in a bridge that carries the address, as under KVM."""
    nodes = [
        c.node(
            f"node{k}",
            c.interface("eno1", master=bridge),
            c.interface(bridge, f"10.0.0.{k + 1}/24", kind="bridge"),
        )
        for k in range(2)
    ]
    return c.cluster(*nodes)


FIRES["virtual-interface-chosen"] = name_on_docker
QUIET["virtual-interface-chosen"] = lambda: bridged_host("br0")


def speeds(first: float, second: float, own: str = "") -> Cluster:
    nodes = []
    for k in range(2):
        cards = (
            c.interface("eno1", f"10.1.0.{k + 1}/24", speed_gbit_s=first),
            c.interface("enp99s0", f"10.2.0.{k + 1}/24", speed_gbit_s=second),
        )
        nodes.append(c.node(f"node{k}", *cards, own=own + str(k + 1) if own else None))
    return c.cluster(*nodes, job=Job(backend="gloo"))


FIRES["slow-interface-chosen"] = lambda: speeds(1.0, 100.0)
QUIET["slow-interface-chosen"] = lambda: speeds(1.0, 100.0, own="10.2.0.")
AND_ALSO["slow-interface-chosen"] = {"slow-interface-chosen"}  # On each of the two nodes.


def unlike(**fields: object) -> Cluster:
    nodes = [c.plain(0), c.plain(1), c.plain(2)]
    card = nodes[1].interface("enp99s0")
    assert card is not None
    odd = replace(card, **fields)  # type: ignore[arg-type]
    nodes[1] = replace(nodes[1], interfaces=c.numbered(odd))
    return c.cluster(*nodes)


FIRES["link-speed-below-peers"] = lambda: unlike(speed_gbit_s=10.0)
QUIET["link-speed-below-peers"] = lambda: unlike(speed_gbit_s=None)
FIRES["mtu-differs"] = lambda: unlike(mtu_bytes=9000)
QUIET["mtu-differs"] = lambda: c.healthy(3)


def twice_in_subnet(rp_filter: int) -> Cluster:
    nodes = []
    for k in range(2):
        cards = (
            c.interface("eno1", f"10.1.0.{k + 1}/24", speed_gbit_s=10.0),
            c.interface("eno2", f"10.1.0.{k + 101}/24", speed_gbit_s=10.0, rp_filter=rp_filter),
        )
        nodes.append(c.node(f"node{k}", *cards))
    return c.cluster(*nodes, broken=[("*", "*", "10.1.0.102", "timed out")] if rp_filter == 1 else ())


FIRES["several-interfaces-one-subnet"] = lambda: twice_in_subnet(1)
AND_ALSO["several-interfaces-one-subnet"] = {"several-interfaces-one-subnet"}  # On each of the two nodes.
QUIET["several-interfaces-one-subnet"] = lambda: twice_in_subnet(2)

# Names.
FIRES["hostname-resolves-to-loopback"] = on_node1(own_name=seen("node1", "127.0.1.1"))
QUIET["hostname-resolves-to-loopback"] = on_node1(own_name=seen("node1", "10.0.0.11", "127.0.1.1"))
FIRES["hostname-resolves-to-ipv6-only"] = on_node1(own_name=seen("node1", "fd00::11"))
QUIET["hostname-resolves-to-ipv6-only"] = on_node1(own_name=seen("node1", "10.0.0.11", "fd00::11"))
FIRES["hostname-resolves-to-wrong-address"] = on_node1(own_name=seen("node1", "10.9.9.9"))
QUIET["hostname-resolves-to-wrong-address"] = on_node1(own_name=seen("node1", "10.9.9.9", "10.0.0.11"))
FIRES["own-hostname-unresolvable"] = on_node1(
    own_name=seen("node1", error="Temporary failure in name resolution")
)
QUIET["own-hostname-unresolvable"] = c.healthy
FIRES["hostname-unresolvable-from-peer"] = on_node1(
    peer_names=(seen("node0", error="Name or service not known"),)
)
# The user's word is an alias of ssh's configuration: no resolver knows it.
QUIET["hostname-unresolvable-from-peer"] = lambda: c.changed(
    c.changed(c.healthy(), "node0", hostname="ip-10-0-0-10"),
    "node1",
    peer_names=(seen("node0", error="not known"),),
)
FIRES["reverse-dns-slow"] = on_node1(reverse_lookup_s=10.0)
QUIET["reverse-dns-slow"] = on_node1(reverse_lookup_s=0.4)

# Ports and leftovers.
STRANGER = Listener("0.0.0.0", 29500, "bob", Process(77, "bob", 3600.0, "nc -l 29500"))
STALE = c.process()
FIRES["port-in-use"] = lambda: c.changed(c.healthy(), "node0", listeners=(STRANGER,))
QUIET["port-in-use"] = on_node1(listeners=(STRANGER,))
FIRES["rendezvous-port-filtered"] = filtered("29500", "timed out")
QUIET["rendezvous-port-filtered"] = filtered("29500", "port held")
FIRES["orphan-of-earlier-run"] = lambda: c.changed(
    c.healthy(), "node0", leftovers=(STALE,), listeners=(Listener("0.0.0.0", 29500, "ada", STALE),)
)
QUIET["orphan-of-earlier-run"] = c.healthy
ALIVE = "running: its parent is sshd (pid 812)"
FIRES["other-job-running"] = on_node1(leftovers=(c.process(evidence=ALIVE),))
QUIET["other-job-running"] = on_node1(leftovers=(STALE,))
FIRES["ports-reserved-or-ephemeral"] = with_job(c.healthy, port=50000)
QUIET["ports-reserved-or-ephemeral"] = with_job(
    everywhere(ports=PortRanges(32768, 60999, (50000,))), port=50000
)

# ssh.
for kind in (
    "ssh-host-key-unknown",
    "ssh-host-key-changed",
    "ssh-key-refused",
    "ssh-connection-refused",
    "ssh-no-route",
    "ssh-timeout",
    "ssh-name-unknown",
    "ssh-key-exchange-hangs",
    "ssh-long-answer-lost",
    "ssh-failed",
    "srun-failed",
    "no-answer",
):
    FIRES[kind] = lambda kind=kind: c.cluster(c.plain(0), c.unreached("node1", kind))  # type: ignore[misc]
    QUIET[kind] = c.healthy
FIRES["answer-slow"] = on_node1(answer_s=8.0)
QUIET["answer-slow"] = everywhere(answer_s=8.0)  # A busy launcher makes all of them slow.
FIRES["ssh-banner-or-rc-output"] = on_node1(shell_noise="Welcome!\n")
QUIET["ssh-banner-or-rc-output"] = on_node1(shell_noise="\n")

# Software.
FIRES["setup-fails"] = on_node1(
    setup_error="module: command not found (exit 127)", interpreter=Interpreter("")
)
QUIET["setup-fails"] = c.healthy
FIRES["python-or-launcher-missing"] = on_node1(interpreter=Interpreter(""))
QUIET["python-or-launcher-missing"] = on_node1(torchrun_on_path="")


def with_accelerate(on_node1: str) -> Cluster:
    """Both nodes have accelerate, and the job is started by it."""
    versions = {"node0": "1.15.0", "node1": on_node1}
    cluster = c.healthy()
    for name, version in versions.items():
        cluster = c.changed(
            cluster, name, interpreter=replace(PYTHON, packages={"accelerate": version} if version else {})
        )
    return replace(cluster, job=Job(launcher="accelerate"))


FIRES["launcher-versions-differ"] = lambda: with_accelerate("1.2.1")
QUIET["launcher-versions-differ"] = lambda: with_accelerate("1.15.0")
FIRES["torch-missing"] = on_node1(interpreter=Interpreter("/usr/bin/python3", "3.11.2"))
QUIET["torch-missing"] = on_node1(interpreter=Interpreter(""))
FIRES["torch-without-cuda"] = lambda: c.changed(
    everywhere(gpu_count=4)(), "node1", interpreter=replace(PYTHON, cuda="", nccl="")
)
QUIET["torch-without-cuda"] = everywhere(
    interpreter=replace(PYTHON, torch="2.13.0+rocm7.0", cuda=""), gpu_count=4
)
FIRES["torch-versions-differ"] = on_node1(interpreter=replace(PYTHON, torch="2.6.0"))
QUIET["torch-versions-differ"] = on_node1(interpreter=Interpreter("/usr/bin/python3", "3.11.2"))
FIRES["nccl-versions-differ"] = on_node1(interpreter=replace(PYTHON, nccl="2.26.2"))
QUIET["nccl-versions-differ"] = on_node1(interpreter=replace(PYTHON, torch="2.6.0", nccl="2.21.5"))
FIRES["cuda-versions-differ"] = on_node1(interpreter=replace(PYTHON, cuda="12.6"))
QUIET["cuda-versions-differ"] = on_node1(interpreter=replace(PYTHON, torch="2.6.0", cuda="12.4"))
FIRES["python-versions-differ"] = on_node1(interpreter=replace(PYTHON, version="3.12.1"))
QUIET["python-versions-differ"] = on_node1(interpreter=replace(PYTHON, version="3.11.9"))
FIRES["launcher-not-on-path"] = on_node1(torchrun_on_path="")
QUIET["launcher-not-on-path"] = with_job(on_node1(torchrun_on_path=""), script="train.py")
FIRES["directory-missing"] = on_node1(
    chdir=FileFact("/home/ada/project", False), script=FileFact("/home/ada/project/train.py", False)
)
QUIET["directory-missing"] = on_node1(chdir=FileFact("", False))
FIRES["script-missing"] = on_node1(script=FileFact("/home/ada/project/train.py", False))
QUIET["script-missing"] = on_node1(script=FileFact("", False))
FIRES["script-differs"] = on_node1(script=FileFact("/home/ada/project/train.py", True, "cd" * 32, 2000))
QUIET["script-differs"] = on_node1(script=FileFact("/home/ada/project/train.py", True, "", 2000))

# System.
FIRES["same-machine-twice"] = on_node1(boot_id="boot-node0", hostname="node0")
QUIET["same-machine-twice"] = on_node1(boot_id="boot-node0")
FIRES["duplicate-hostname"] = on_node1(hostname="node0")
QUIET["duplicate-hostname"] = c.healthy
FIRES["duplicate-boot-id"] = on_node1(boot_id="boot-node0")
QUIET["duplicate-boot-id"] = c.healthy
FIRES["machines-not-alike"] = on_node1(machine="aarch64")
QUIET["machines-not-alike"] = c.healthy
FIRES["shm-too-small"] = on_node1(shm=Space("/dev/shm", 65536, 65536))
QUIET["shm-too-small"] = on_node1(shm=Space("/dev/shm", 2 * c.GIB, c.GIB))
FIRES["disk-full"] = on_node1(tmp=Space("/tmp", c.GIB, 4096))
QUIET["disk-full"] = on_node1(tmp=Space("/tmp", c.GIB, c.GIB // 2))
FIRES["open-files-too-low"] = on_node1(limits=Limits(float("inf"), 64))
QUIET["open-files-too-low"] = on_node1(limits=Limits(65536, 1024))


def infiniband(memlock: float) -> Cluster:
    nodes = [
        c.node(
            f"node{k}",
            c.interface("ib0", f"10.0.0.{k + 1}/24", kind="infiniband"),
            limits=Limits(memlock, 65536),
        )
        for k in range(2)
    ]
    return c.cluster(*nodes)


FIRES["memlock-too-low"] = lambda: c.changed(infiniband(float("inf")), "node1", limits=Limits(65536, 65536))
QUIET["memlock-too-low"] = on_node1(limits=Limits(65536, 65536))  # No RDMA here.
FIRES["clock-skew"] = on_node1(clock=Clock(90.0, 0.01))
QUIET["clock-skew"] = on_node1(clock=Clock(0.9, 1.0))
FIRES["nproc-exceeds-gpus"] = with_job(everywhere(gpu_count=4), nproc=8, backend="nccl")
AND_ALSO["nproc-exceeds-gpus"] = {"nproc-exceeds-gpus"}  # On each of the two nodes.
QUIET["nproc-exceeds-gpus"] = with_job(c.healthy, nproc=8)
FIRES["processors-fewer-than-ranks"] = on_node1(cpu_count=2)
QUIET["processors-fewer-than-ranks"] = everywhere(cpu_count=2)
FIRES["ranks-exceed-memory"] = with_job(on_node1(memory_bytes=15 * c.GIB, cpu_count=16), nproc=256)
QUIET["ranks-exceed-memory"] = with_job(on_node1(memory_bytes=16 * c.GIB, cpu_count=16), nproc=256)
FIRES["gpu-counts-differ"] = lambda: c.changed(everywhere(gpu_count=8)(), "node1", gpu_count=7)
QUIET["gpu-counts-differ"] = everywhere(gpu_count=8)

# Environment.
FIRES["interface-name-missing"] = on_node1(environment={"GLOO_SOCKET_IFNAME": "eth7"})
QUIET["interface-name-missing"] = on_node1(environment={"GLOO_SOCKET_IFNAME": "enp99s0"})
FIRES["gloo-ifname-in-nccl-syntax"] = on_node1(environment={"GLOO_SOCKET_IFNAME": "^docker,lo"})
QUIET["gloo-ifname-in-nccl-syntax"] = on_node1(environment={"NCCL_SOCKET_IFNAME": "^docker,lo"})
FIRES["loopback-interface-chosen"] = on_node1(environment={"NCCL_SOCKET_IFNAME": "^docker"})
QUIET["loopback-interface-chosen"] = on_node1(environment={"NCCL_SOCKET_IFNAME": "^docker,lo"})
FIRES["environment-differs-between-nodes"] = on_node1(environment={"NCCL_BUFFSIZE": "1048576"})
QUIET["environment-differs-between-nodes"] = everywhere(environment={"NCCL_BUFFSIZE": "1048576"})
FIRES["harmful-env-left-on"] = everywhere(environment={"NCCL_P2P_DISABLE": "1"})
QUIET["harmful-env-left-on"] = everywhere(environment={"NCCL_P2P_DISABLE": "0"})
FIRES["unknown-nccl-variable"] = everywhere(environment={"NCCL_SOCKET_IFNAMES": "enp99s0"})
QUIET["unknown-nccl-variable"] = everywhere(
    environment={"NCCL_OFI_TOPO": "x", "NCCL_SOCKET_IFNAME": "enp99s0"}
)
FIRES["stale-nccl-config"] = on_node1(nccl_conf={"NCCL_SOCKET_IFNAME": "enp99s0"})
QUIET["stale-nccl-config"] = c.healthy
FIRES["launcher-environment-preset"] = on_node1(environment={"WORLD_SIZE": "1", "RANK": "0"})
QUIET["launcher-environment-preset"] = c.healthy
FIRES["address-not-of-rank0"] = with_job(c.healthy, env={"MASTER_ADDR": "10.0.0.11"})
QUIET["address-not-of-rank0"] = with_job(c.healthy, env={"MASTER_ADDR": "10.0.0.10"})
FIRES["proxy-variables-set"] = on_node1(environment={"https_proxy": "http://proxy:3128"})
QUIET["proxy-variables-set"] = on_node1(
    environment={"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/24"}
)


def told_by_nccl(interface: str, address: str, *errors: str, env: dict[str, str] | None = None) -> Case:
    """NCCL was asked on node1 and answered this."""
    result = 0 if interface else 3
    answer = NcclAnswer("/l/libnccl.so.2", "", "2.28.9", result, interface, address, errors=errors)
    asked = replace(answer, asked_with=env or {})
    return with_job(on_node1(nccl_answer=asked), backend="nccl")


FIRES["nccl-answer-differs"] = told_by_nccl("enp99s0", "10.0.0.99")
QUIET["nccl-answer-differs"] = told_by_nccl("enp99s0", "10.0.0.11")
