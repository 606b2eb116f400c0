"""What is predicted of NCCL, and what links add up to, for many slightly different nodes and clusters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest

from ringup.model import Cluster, Interface, Job, Node
from ringup.nccl import interface_choice, selection, traps, variables
from ringup.nccl import topology as tree
from ringup.nccl.selection import Known
from ringup.network import gloo
from ringup.network import reachability as reach
from ringup.network.predictions import Selection, known, together, uses_nccl
from ringup.output import prediction_report
from ringup.parse.pasted import parse_pasted
from ringup.parse.topology import Cpu, Pci, parse_topology
from ringup.planning import env_formats, minimal_env, preset_variables
from ringup.planning.launchers import LAUNCHERS, Place
from tests import clusters as c
from tests import platforms
from tests import test_launchers as places
from tests.golden_files import compare
from tests.test_env_formats import EVERYWHERE, HERE, MACHINES, evil
from tests.test_nccl import played
from tests.test_platforms import built
from tests.test_predict import RECORDED
from tests.variations import below, difference, sweep

pytestmark = pytest.mark.slow

VALUES = {
    "NCCL_SOCKET_IFNAME": [
        "e",
        "=eth0",
        "^docker",
        "^=lo,docker0",
        "eth9",
        "=eth0,=ib0",
        "eth0:1",
        "",
        " ib",
        "lo",
    ],
    "NCCL_SOCKET_FAMILY": ["AF_INET6", "AF_INET", "x"],
    "NCCL_COMM_ID": ["10.0.0.1:5000", "[fe80::1]:1", "x"],
    "NCCL_IB_DISABLE": ["0", "1", "2", "yes", "-1", " 1"],
    "NCCL_IB_HCA": [
        "mlx5_0",
        "=mlx5_1",
        "^mlx5_0",
        "^=mlx5_0:1",
        "mlx5_0:1,mlx5_1:2",
        "ib0",
        "=mlx5",
        "",
        "mlx5_0:2",
    ],
    "NCCL_NET": ["Socket", "IB", "ib", "AWS Libfabric", "x"],
    "NCCL_NET_PLUGIN": ["none", "aws-ofi", "x", "libnccl-net-x.so"],
    "NCCL_NET_GDR_LEVEL": ["LOC", "PIX", "SYS", "0", "3", "9", "x", "-1"],
    "NCCL_NET_GDR_READ": ["0", "1"],
    "NCCL_IB_GID_INDEX": ["0", "3", "5", "-1", "99", "x"],
    "NCCL_IB_ROCE_VERSION_NUM": ["1", "2", "3"],
    "NCCL_IB_ADDR_FAMILY": ["AF_INET6"],
    "NCCL_IB_ADDR_RANGE": ["10.0.0.0/8", "::/0"],
    "NCCL_IB_MERGE_NICS": ["0", "1"],
    "NCCL_NET_MERGE_LEVEL": ["LOC", "PORT", "PIX", "SYS", "x"],
    "NCCL_NET_FORCE_MERGE": ["mlx5_0,mlx5_1", "x"],
    "NCCL_CROSS_NIC": ["0", "1", "2"],
    "NCCL_TOPO_FILE": ["/x.xml"],
    "NCCL_P2P_DISABLE": ["1"],
    "NCCL_SHM_DISABLE": ["1"],
    "NCCL_DEBUG": ["INFO", "WARN", "x"],
    "NCCL_DEBUG_SUBSYS": ["INIT,NET"],
    "NCCL_IB_TC": ["106", "x"],
    "NCCL_IB_SL": ["3"],
    "NCCL_IB_TIMEOUT": ["14", "22", "33"],
    "NCCL_IB_QPS_PER_CONNECTION": ["4"],
    "NCCL_IB_PCI_RELAXED_ORDERING": ["1"],
    "NCCL_SOCKET_NTHREADS": ["8", "99"],
    "NCCL_NSOCKS_PERTHREAD": ["8", "99"],
    "NCCL_CUMEM_ENABLE": ["0"],
    "NCCL_IGNORE_CPU_AFFINITY": ["1"],
    "NCCL_SOCKET_IFNAMES": ["eth0"],
    "NCCL_IB_HAC": ["mlx5_0"],
    "GLOO_SOCKET_IFNAME": ["eth0", "lo", "x", "=eth0"],
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ["0"],
    "NCCL_ASYNC_ERROR_HANDLING": ["1"],
}
ENVIRONMENTS: list[dict[str, str]] = [{}] + [{n: v} for n, values in VALUES.items() for v in values]
VERSIONS = [
    "2.4.8",
    "2.13.4",
    "2.17.1",
    "2.18.3",
    "2.20.5",
    "2.21.5",
    "2.23.4",
    "2.26.2",
    "2.27.3",
    "2.28.9",
    "",
]


def predicted(one: Known, env: Mapping[str, str]) -> Iterator[str]:
    yield from told(selection.predict(one, env))


def told(made: selection.Prediction) -> Iterator[str]:
    yield from (f"{name}: {value}" for name, value in prediction_report.as_json(made).items())
    yield f"shown in {len(prediction_report.as_text(made))} letters"


def judged(node: Node, env: Mapping[str, str]) -> Iterator[str]:
    """What is predicted, what is thought of each variable, Gloo's choice, RoCE's variables."""
    made = selection.predict(known(node), env)
    yield from told(made)
    yield from (f"kept {one}" for one in preset_variables.judged(Selection(node, Job(env=env), env)))
    yield from (f"gloo {one}" for one in gloo.announced(node, env))
    both = Cluster((node, replace(node, name="other")), (), job=Job(env=env))
    yield from preset_variables.roce_explained(both)
    yield from map(str, minimal_env.minimal_env(both, debug=True).env)
    yield f"uses NCCL: {uses_nccl(both)}"
    pair = together(both.nodes, [made, made])
    yield from (f"together {one.network} {one.because}" for one in pair)


def with_version(node: Node, version: str) -> Node:
    return replace(node, interpreter=replace(node.interpreter, nccl=version))


def node_called(name: str) -> Node:
    return played() if name == "played" else built(name).nodes[0]


NODES = [*platforms.NAMES, "played"]


def pairs(seed: str) -> list[dict[str, str]]:
    """Two variables at once."""
    found = [{**ENVIRONMENTS[below(len(ENVIRONMENTS), seed, n)], **one} for n, one in enumerate(ENVIRONMENTS)]
    return [*ENVIRONMENTS, *found[::3]]


@pytest.mark.alike
@pytest.mark.parametrize("name", NODES)
def test_variables_change_the_prediction_as_before(name: str) -> None:
    def answers() -> Iterator[str]:
        node = node_called(name)
        usual = [*judged(node, {})]
        yield from (f"{number}: {line}" for number, line in enumerate(usual))
        for number, env in enumerate(pairs(name)):
            version = VERSIONS[below(len(VERSIONS), name, number)] if number % 2 else node.interpreter.nccl
            lines = [*judged(with_version(node, version), env)]
            yield f"  {version} {env}"
            yield from difference(usual, lines)

    compare(f"variables-{name}.txt", answers())


CHANGES = 80


@pytest.mark.alike
@pytest.mark.parametrize("name", NODES)
def test_facts_change_the_prediction_as_before(name: str) -> None:
    def answers() -> Iterator[str]:
        for number in range(3):
            env = ENVIRONMENTS[below(len(ENVIRONMENTS), name, number)] if number else {}
            yield f"{env}"
            node = node_called(name)
            if number:
                node = with_version(node, VERSIONS[below(len(VERSIONS), name, number)])
            yield from sweep(node, lambda one, env=env: judged(one, env), seed=(name, number), most=CHANGES)

    compare(f"predictions-{name}.txt", answers())


def pasted() -> Known:
    """What `ringup predict` is given: output of tools, and NCCL's dump of the topology."""
    text = "".join((RECORDED / name).read_text() for name in ("hdr-node.txt", "hdr-addresses.txt"))
    found = parse_pasted(text)
    node = replace(Node("node0"), interfaces=found.interfaces, rdma_ports=found.rdma_ports)
    return Known(node, topology=parse_topology((RECORDED / "hdr-topology.xml").read_text()))


def test_a_topology_changes_the_prediction_as_before() -> None:
    def answers() -> Iterator[str]:
        for version in ((2, 17, 1), (2, 20, 5), (2, 28, 9)):
            for env in ({}, {"NCCL_NET_GDR_LEVEL": "PXB"}, {"NCCL_CROSS_NIC": "0"}):
                yield f"{version} {env}"
                one = replace(pasted(), version=version)
                yield from sweep(one, partial(predicted, env=env), seed=(version, env), most=CHANGES)

    compare("topology.txt", answers())


FILTERS = [
    "^", "x", "==eth0", "=^eth0", "'eth0'", "eth0, eth1", "eth", "^eth", "^=eth0", "eth0:2", "mlx5_0", "mlx5_", "=mlx5_0",
    "^mlx5_1", "mlx5_0:1", "mlx5_0:9", "bond0", "=bond0,nosuch", "ib0", ",".join(f"eth{n}" for n in range(40)),
]  # fmt: skip
OTHERS: list[dict[str, str]] = [
    {"NCCL_COMM_ID": "10.0.0.1:5"}, {"NCCL_SOCKET_FAMILY": "AF_INET"}, {"NCCL_SOCKET_FAMILY": "inet"},
    {"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": "no"}, {"NCCL_IB_DISABLE": "+0"}, {"NCCL_IB_GID_INDEX": "3"},
    {"NCCL_IB_GID_INDEX": "-"}, {"NCCL_OOB_NET_IFNAME": "eth0"},
    {"NCCL_OOB_NET_IFNAME": "eth0", "NCCL_OOB_NET_ENABLE": "1"}, {"NCCL_OOB_NET_ENABLE": "1"},
]  # fmt: skip


def test_traps_of_the_settings_are_known_as_before() -> None:
    def answers() -> Iterator[str]:
        for name in ("eight-hcas-bond", "ethernet-docker", "roce", "played"):
            yield name
            node = node_called(name)
            own = [value for i in node.interfaces[:2] for value in (i.name, f"={i.name[:-1]}", f"^{i.name}")]
            own += [value for p in node.rdma_ports[:2] for value in (p.device, f"={p.device}:{p.number}")]
            both = [
                {variable: v} for v in FILTERS + own for variable in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
            ]
            for number, env in enumerate([*both, *({**one, **more} for one in both[:2] for more in OTHERS)]):
                for version in ((2, 18, 5), (2, 23, 4))[number % 2 :][:1]:
                    yield from traps.all_traps(env, node.interfaces, node.rdma_ports, version)

    compare("traps.txt", answers())


CPUS = [("x86_64", "GenuineIntel", 6, model) for model in (0x54, 0x55, 0x8E, 0x8F, 0xCE, 0xCF, 0xD0)] + [
    ("x86_64", "GenuineIntel", 5, 0x8F),
    ("x86_64", "AuthenticAMD", 25, 1),
    ("x86_64", "", 0, 0),
    ("arm64", "ARM", 0, 0),
    ("ppc64", "IBM", 0, 0),
    ("x86_64", "CentaurHauls", 7, 1),
]
PEX = {
    4: (0x1000, 0xC010, 0x1000, 0xA000),
    50: (0x1000, 0xC030, 0x1000, 0),
    51: (0x1000, 0xC030, 0x1000, 0x1000),
}


def switches() -> Iterator[Pci]:
    """Switches of two levels, of one kind or of two."""
    for upper in PEX.values():
        for lower in [*PEX.values(), (0x15B3, 0x1976, 0, 0)]:
            leaf = Pci("0000:03:00.0", 3, gpu=0)
            below_it = Pci("0000:02:00.0", 2, ids=lower, children=(leaf,))
            yield Pci("0000:01:00.0", 1, ids=upper, children=(below_it, Pci("0000:04:00.0", 4, ids=lower)))


def test_distances_and_shares_are_reckoned_as_before() -> None:
    def answers() -> Iterator[str]:
        for arch, vendor, family, model in CPUS:
            cpu = Cpu(0, arch, vendor, family, model)
            yield f"{cpu} {[tree.cpu_gbyte_s(cpu, version) for version in ((2, 25, 1), (2, 26, 0))]}"
        for speed in ("2.5 GT/s PCIe", "5", "8.0 GT/s", "16 GT/s", "32.0", "64.0 GT/s", "128 GT/s", ""):
            yield f"{speed} {[tree.pci_gbyte_s(Pci('x', 0, speed, width)) for width in (0, 1, 8, 16)]}"
        for pci in switches():
            yield f"{tree.flattened(Cpu(0, 'x86_64', 'AuthenticAMD', 25, 1, children=(pci,)))}"
        yield f"{[[tree.mirrored(n, power) for n in range(power)] for power in (1, 2, 4, 8)]}"
        for seed in range(60):
            kinds = tree.ORDER
            gpus = range(1 + below(4, seed, "gpus"))
            paths = {
                gpu: {
                    f"mlx5_{n}": tree.Path(
                        (12.0, 24.0)[below(2, seed, gpu, n)], kinds[below(len(kinds), seed, gpu, n)]
                    )
                    for n in range(below(5, seed, "cards"))
                }
                for gpu in gpus
            }
            env = ({}, {}, {"NCCL_NETDEVS_POLICY": "all"}, {"NCCL_NETDEVS_POLICY": "MAX:2"})[below(4, seed)]
            for version in ((2, 18, 5), (2, 19, 1), (2, 28, 3), (2, 30, 7)):
                uses, doubts = tree.choose(paths, env, version)
                yield f"{seed} {version} Used(uses={tuple(uses)}, doubts={tuple(doubts)})"

    compare("distances.txt", answers())


def test_names_and_versions_are_known_as_before() -> None:
    def answers() -> Iterator[str]:
        for name in sorted(n for n, row in variables.TABLE.items() if row.since or row.until):
            apart = {
                variables.unread(name, interface_choice.version_of(v)).partition(": ")[2]
                for v in VERSIONS
                if v
            }
            yield f"{name}: {' / '.join(sorted(apart))}"
        names = sorted(n for n, row in variables.TABLE.items() if row.by in ("NCCL", "Gloo"))
        for name in names[::12]:
            unread = [v for v in VERSIONS if variables.unread(name, interface_choice.version_of(v))]
            typos = [
                name[:-1],
                f"{name}S",
                name.replace("_", "", 1),
                name[:6] + name[7:6:-1] + name[8:],
                f"X{name}",
            ]
            yield f"{name} unread by {unread} meant by {[t for t in typos if variables.meant(t)]}"
            other = names[below(len(names), name)]
            yield f"  {other} {[variables.meant(t) for t in typos]}"

    compare("variable-names.txt", answers())


def test_variables_are_written_as_before() -> None:
    def answers() -> Iterator[str]:
        for name, form in env_formats.FORMATS.items():
            for env, machine in itertools.product(([], [EVERYWHERE], [EVERYWHERE, HERE], evil()), MACHINES):
                yield f"{name} {len(env)} {machine}"
                yield from ascii(form(env, machine)).split("\\n")

    compare("formats.txt", answers())


JOBS = [
    Job(
        launcher=name,
        rendezvous=rendezvous,
        script="train.py",
        arguments=("--rank={node_rank}", "a b"),
        **more,
    )  # type: ignore[arg-type]
    for name, launcher in LAUNCHERS.items()
    for rendezvous in launcher.rendezvous
    for more in ({}, {"launcher_arguments": ("--cpu",), "env": {"OPTIM_TORCH": "0"}})
]


def test_launchers_are_started_as_before() -> None:
    def answers() -> Iterator[str]:
        for number, job in enumerate(JOBS):
            counts = ((2, 2), (1, 1), (1,), (4, 2, 1))[number % 4]
            where = places.place(
                number % len(counts), nproc_all=counts, gpu_count=number % 3, devices=("0", "GPU-1")
            )

            def started(one: Place, job: Job = job) -> Iterator[str]:
                start = LAUNCHERS[job.launcher].start(one, job)
                yield from start.words
                yield from map(str, start.env)

            yield f"{job.launcher} {job.rendezvous}"
            yield from sweep(where, started, seed=number, most=40)

    compare("launchers.txt", answers())


# --- links


ERRORS = ["timed out", "refused", "no route", "large message lost", "large answer lost"]


def cards(seed: int, k: int) -> list[Interface]:
    """One to three cards of node k: some fast, some v6 only, some of an odd kind."""
    found = []
    for number in range(1 + below(3, seed, "cards")):

        def draw(limit: int, *what: object, number: int = number) -> int:
            return below(limit, seed, number, what)

        kind = ("physical", "physical", "infiniband", "bridge", "tunnel", "bond")[draw(6, "kind")]
        own = [f"10.{number}.0.{k + 1}/24"] if draw(5, "v4") else []
        own += [f"fd00:{number}::{k + 1}/64"] if draw(3, "v6") == 0 or not own else []
        same = number if draw(4, "name") else number + k % 2
        speed = (None, 1.0, 10.0, 100.0, 200.0)[draw(5, "speed")]
        found.append(c.interface(f"eth{same}", *own, kind=kind, speed_gbit_s=speed))  # type: ignore[arg-type]
    return found


def linked(seed: int) -> Cluster:
    """Two to five nodes, some of whose paths fail, in one way or several."""
    count = 2 + below(4, seed, "nodes")
    made = [c.node(f"n{k}", *cards(seed, k)) for k in range(count)]
    links = c.links(made)
    addresses = sorted({link.address for link in links})
    for number in range(below(4, seed, "broken")):
        src, dst = (("*", *(n.name for n in made))[below(count + 1, seed, number, end)] for end in (0, 1))
        target = ("*", *addresses)[below(len(addresses) + 1, seed, number, "address")]
        ports = ("all", "high", "29500")[below(3, seed, number, "ports")]
        links = c.breaks(links, src, dst, target, ERRORS[below(5, seed, number, "how")], ports)
    if below(3, seed, "slow") == 0:
        links = tuple(
            replace(link, mbyte_s=link.mbyte_s and 9.0 * (1 + below(40, seed, link.address)), segments=1000,
                    retransmitted=below(30, seed, link.address, link.port))
            for link in links
        )  # fmt: skip
    return c.cluster(*made, links=links)


def added_up(cluster: Cluster) -> Iterator[str]:
    for net in reach.networks(cluster):
        yield f"network {net}"
    yield f"cut {reach.cut_pairs(cluster)}"
    for name, rows in reach.places(cluster).items():
        yield from (f"{name} {p.interface} {p.works} failed {len(p.failed)}" for p in rows)
    yield from (f"filter {where} {ports}" for where, ports in reach.port_filters(cluster).items())
    yield from (f"repeats {where} {count}" for where, count in reach.repeats(cluster).items())


@pytest.mark.parametrize("part", range(4))
def test_links_add_up_as_before(part: int) -> None:
    def answers() -> Iterator[str]:
        for seed in range(part, 48, 4):
            yield f"cluster {seed}"
            yield from sweep(linked(seed), added_up, seed=seed, most=30, each=1)

    compare(f"links-{part}.txt", answers())
