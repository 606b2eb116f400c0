"""`ringup sweep`: the settings worth trying, the devices each used, and the best one.  Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ringup.collective_tests import BandwidthReport, at_best
from ringup.collective_tests.rank_records import Line
from ringup.model import Cluster
from ringup.nccl import rdma_devices
from ringup.nccl.plugins import network_name
from ringup.nccl.selection import Prediction, device_names
from ringup.planning import EnvVar, Plan
from ringup.units import grouped

DISABLE = {"NCCL_IB_DISABLE": "1"}
MOST_SINGLE = 4
"""Up to this many RDMA ports are also tried one by one; with more, each rank needs its own."""
AS_FAST = 0.9
"""Share of the fastest rate from which a setting is as good: repeated measurements differ this much."""
CARRIES = 0.1
"""Share of the busiest interface's bytes from which an interface counts as used."""
STACKED = ("bond", "vlan", "bridge", "macvlan", "tunnel")
"""Kinds of interfaces whose bytes the kernel also counts for the interface below."""

Env = Mapping[str, str]
Verdict = Literal["fastest", "as-fast", "slower", "not-judged", "wrong", "failed", "not-tried"]


@dataclass(frozen=True)
class DataPath:
    """The path of a node's data: "IB", "Socket", "Gloo" or a plugin's name, and the names of its devices."""

    node: str
    network: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    env: Env
    """Variables of the setting; {} leaves the choice to ringup."""
    predicted: tuple[DataPath, ...]
    also: tuple[Env, ...] = ()
    """Settings with the same prediction, which are not tried."""
    adds: tuple[EnvVar, ...] = ()
    """Further variables that ringup's plan sets."""
    used: tuple[DataPath, ...] = ()
    busbw_gbyte_s: float | None = None
    starved: float = 0.0
    """As in `Row`."""
    as_predicted: bool | None = None
    """None if it was not measured or is unknown."""
    verdict: Verdict = "not-tried"
    because: str = ""


def candidates(cluster: Cluster, backend: str) -> list[dict[str, str]]:
    """Settings worth a prediction, the fewest variables first; the user's variables for the job are kept."""
    nodes = cluster.nodes
    named = [{i.name: i for i in n.interfaces if i.kind != "loopback" and i.usable_addresses} for n in nodes]
    shared = [name for name in named[0] if all(name in own for own in named)] if not cluster.is_local else []
    if backend == "gloo":
        found: list[dict[str, str]] = [{"GLOO_SOCKET_IFNAME": name} for name in shared]
    else:
        sockets = [{"NCCL_SOCKET_IFNAME": f"={name}"} for name in shared]
        found = [*({"NCCL_IB_HCA": value} for value in _hca_values(cluster)), *sockets]
        if any(node.rdma_ports for node in nodes):
            found += [DISABLE, *({**DISABLE, **one} for one in sockets)]
    return [{}, *(env for env in found if not env.keys() & cluster.job.env.keys())]


def _hca_values(cluster: Cluster) -> list[str]:
    """Lists of RDMA ports that every node has: by kind and rate, and few ports one by one."""
    known = [{p.name: p for p in n.rdma_ports if p.state == "ACTIVE"} for n in cluster.nodes]
    ports = [port for name, port in known[0].items() if all(name in own for own in known)]
    kinds = [*grouped(((p.link_layer, p.rate_gbit_s), p) for p in ports).values()]
    kinds += [[port] for port in ports] if len(ports) <= MOST_SINGLE else []
    every = [port for node in cluster.nodes for port in node.rdma_ports]
    return [*dict.fromkeys(rdma_devices.hca_value(kind, every) for kind in kinds)]


def ways(predictions: Iterable[Prediction]) -> tuple[DataPath, ...]:
    return tuple(DataPath(p.name, p.network, device_names(p.network, p.interfaces)) for p in predictions)


def used(
    cluster: Cluster,
    plan: Plan,
    lines: Sequence[Line],
    record: Mapping[str, Any],
    channels: Mapping[str, Mapping[str, int]],
) -> tuple[DataPath, ...]:
    """
    The devices that carried the data on each node: from the kernel's counters for TCP, else from NCCL's log.

    `lines` are the ranks' reports, `record` is run.json, `channels` as `collective.channels`.
    """
    planned = plan.transports
    expected = {t.node: DataPath(t.node, t.network, device_names(t.network, t.devices)) for t in planned}
    seen = {one["node"]: one for one in record.get("transports", {}).get("seen", ())}
    found = []
    for node, part in zip(cluster.nodes, plan.nodes, strict=True):
        used_here = seen.get(node.name, {"network": "", "devices": ()})
        network = used_here["network"] or ("Gloo" if not seen else "")
        if network not in ("Gloo", "Socket"):
            devices = device_names(network, used_here["devices"])
            by_number = {str(n): name for n, name in enumerate(devices)}
            vias = [via.split("/") for host in (node.name, node.hostname) for via in channels.get(host, ())]
            own = {via[2].partition("(")[0] for via in vias if via[0] == "NET" and len(via) > 2}
            taken = tuple(name for n, name in by_number.items() if n in own)
            found.append(DataPath(node.name, network_name(network), taken or devices))
            continue
        ranks = range(part.first_rank, part.first_rank + part.nproc)
        own_lines = [line for line in lines if line["kind"] == "tcp" and line["rank"] in ranks]
        wanted = expected[node.name].devices if node.name in expected else ()
        kinds = {i.name: i.kind for i in node.interfaces}
        busy = _busy(own_lines[0].get("sent_bytes") if own_lines else None)
        if any(kinds.get(name) in STACKED for name in wanted) and set(wanted) <= set(busy):
            busy = wanted
        found.append(DataPath(node.name, network, busy))
    return tuple(found)


def _busy(sent: object) -> tuple[str, ...]:
    """The interfaces that sent most, from a node's counters."""
    rows = sent.items() if isinstance(sent, dict) else ()
    counts = {str(name): n for name, n in rows if isinstance(n, int) and n > 0}
    most = max(counts.values(), default=0)
    return tuple(name for name, n in counts.items() if n >= CARRIES * most)


def measured(trial: Trial, report: BandwidthReport, taken: tuple[DataPath, ...], failed: str) -> Trial:
    """The trial with its measurements; `failed`: why it did not finish, or ""."""
    best = max(report.rows, key=lambda row: row.busbw_gbyte_s, default=None)
    if failed or best is None:
        return replace(trial, verdict="failed", because=failed or "nothing was measured")
    both = list(zip(trial.predicted, taken, strict=True))
    # NCCL may not use every listed device, and fused devices share one number.
    is_same = all({*used.devices} <= {*expected.devices} for expected, used in both)
    is_known = all(expected.network and used.devices for expected, used in both)
    notes = "; ".join(note for note in report.notes if "packets are lost" in note)
    as_predicted = is_same if is_known else None
    made = replace(trial, used=taken, as_predicted=as_predicted, verdict="slower", because=notes)
    made = replace(made, busbw_gbyte_s=best.busbw_gbyte_s, starved=best.starved)
    if not report.correct:
        wrong = sorted({rank for row in report.rows for rank in row.wrong_ranks})
        return replace(made, verdict="wrong", because=f"wrong results on ranks {wrong[:8]}")
    return made


def judged(trials: Sequence[Trial]) -> tuple[tuple[Trial, ...], Trial | None]:
    """The trials with their verdicts, and the best one: the first of those as fast as the fastest."""
    most = max((t.busbw_gbyte_s or 0.0 for t in trials if t.verdict == "slower"), default=0.0)
    made = []
    for trial in trials:
        rate, share = trial.busbw_gbyte_s or 0.0, trial.starved
        if trial.verdict == "slower" and rate >= AS_FAST * most:
            trial = replace(trial, verdict="fastest" if rate == most else "as-fast")
        elif trial.verdict == "slower" and at_best(rate, share) >= AS_FAST * most:
            words = f"its ranks had no CPU time for up to {share:.0%} of it: measure again on idle nodes"
            trial = replace(trial, verdict="not-judged", because=words)
        made.append(trial)
    return tuple(made), next((t for t in made if t.verdict in ("fastest", "as-fast")), None)
