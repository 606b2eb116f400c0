"""The comparable facts of a run, of saved facts, or of an environment."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ringup.collective_tests import bandwidth, rank_records
from ringup.differences import TOPICS, UNKNOWN, Amount, Side, Value
from ringup.hosts.folding import node_set
from ringup.model import Cluster, Node
from ringup.nccl.selection import Prediction, device_names
from ringup.network.reachability import routed
from ringup.planning import Plan
from ringup.rules import Finding, Skipped
from ringup.saved_run import SavedPlan, SavedRun, SavedVariable
from ringup.secrets import HIDDEN, holds_secret, redact
from ringup.units import grouped, plural, show_bytes, show_seconds, word

OWN_VARIABLES = ("RINGUP_", "MASTER_", "TORCHELASTIC_")
TAIL_BYTES, LAST_STEPS = 256 << 10, 20
"""Bytes of a rank's output that are searched for times per step; and the number of steps for the median."""
_STEP_TIMES = {
    re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) ?s/(?:it|step|iter)\b"): (1.0, 1),
    re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) ?ms/(?:it|step|iter)\b"): (0.001, 1),
    re.compile(rb"(\d{1,9}(?:\.\d{1,9})?) ?(?:it|steps?|iters?)/s\b"): (1.0, -1),
    re.compile(rb"time per iteration \(ms\): (\d{1,9}(?:\.\d{1,9})?)"): (0.001, 1),
    re.compile(rb"\b(?:step|iter|iteration)[ _]time[ :=]{1,3}(\d{1,9}(?:\.\d{1,9})?) ?s\b"): (1.0, 1),
}
"""Patterns of tqdm, Megatron, DeepSpeed and others -> factor and power that convert the number to seconds."""


UNREAD = (
    *(("interface", "interfaces"), ("link", "interfaces"), ("interface", "rdma_ports")),
    *(("link", "rdma_ports"), ("version", "interpreter"), ("node", "gpus")),
)
"""Topics, and the facts that they need."""


def of_run(path: str, folder: Path, data: bytes) -> Side:
    """A run by its run.json and the output in its folder.  Raises ValueError for something else."""
    run = msgspec.json.decode(data, type=SavedRun)
    plan, cause = run.plan, run.cause or run.verdict
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
    side = Side(path, "run", f"{run.outcome} after {show_seconds(run.seconds)}, started {began}")
    side.add("outcome", "outcome", f"{run.outcome}: {cause.rule}" if cause and cause.rule else run.outcome)
    if plan is None:
        why = "this run was stopped by its check, and has no plan"
        side.unknown |= {(topic, ""): why for topic in ("selection", "variable", "version", "node", "job")}
    else:
        _plan(side, plan)
        side.head += f", {plural(len(plan.nodes), 'node')}, {plural(plan.world_size, 'rank')}"
        if not any(node.versions for node in plan.nodes):
            why = "an earlier ringup did not record all of it"
            side.unknown |= {("version", ""): why, ("variable", ""): why}
    for seen in run.transports.seen:
        side.add("selection", "network seen", seen.network, seen.node)
    for one in run.findings:
        side.problems[one.rule, one.node or ""] = (one.severity or "error", redact(one.found))
    why = "a run does not record it (`check --save` does)"
    side.unknown |= {(topic, ""): why for topic in ("path", "interface", "node")}
    _rates(side, folder)
    return side


def _plan(side: Side, plan: Plan | SavedPlan) -> None:
    side.nodes = tuple(node.node for node in plan.nodes)
    for node in plan.nodes:
        side.add("plan", "interface of the ranks", node.interface, node.node)
        side.add("job", "ranks per node", str(node.nproc), node.node)
        for name, version in node.versions.items():
            side.add("version", name, version, node.node)
        for name, value in {**node.preset, **node.env}.items():
            if not name.startswith(OWN_VARIABLES) and name not in node.reasons:
                side.add("variable", name, HIDDEN if holds_secret(name, value) else value or '""', node.node)
    for expected in plan.transports:
        _selected(side, expected.node, expected.network, expected.devices)
    job = plan.job
    side.add("job", "script", job.script)
    side.add("job", "arguments", " ".join(map(word, job.arguments)) or "none")
    side.add("job", "launcher", job.launcher)
    side.add("job", "rendezvous at", plan.master_addr)


def _selected(side: Side, node: str, network: str, devices: Sequence[str]) -> None:
    side.add("selection", "network", network or UNKNOWN, node)
    side.add("selection", "devices", " ".join(device_names(network, devices)) or "none", node)


def _rates(side: Side, folder: Path) -> None:
    """Bus bandwidths of a bench, and the time per step, from the output of the first rank."""
    file = next(iter(sorted(folder.glob("rank-*.log"))), None)
    text = b""
    if file:
        with contextlib.suppress(OSError), file.open("rb") as opened:
            opened.seek(-min(TAIL_BYTES, file.stat().st_size), 2)
            text = opened.read(TAIL_BYTES)
    lines = filter(None, map(rank_records.parse, text.decode("utf-8", "replace").splitlines()))
    rows = [bandwidth.row({"rank": 0, **line}) for line in lines if line["kind"] == "row"]
    for op, same in grouped((row.op, row) for row in rows).items():
        side.add("rate", f"{op} bus bandwidth", Amount(bandwidth.plateau(same)[0], "GB/s"))
    if seconds := step_s(text):
        side.add("rate", "time of a step", Amount(seconds, "s", "less"))
    elif not rows:
        side.unknown["rate", ""] = "its output shows no time per step"


def step_s(text: bytes) -> float | None:
    """
    Seconds per step in the output; None with fewer than three steps.

    >>> step_s(b"10%| 1/9 [00:01<00:08, 2.00it/s]\\r 20%| 2/9 [..., 4.00it/s]\\r 30%| 3/9 [..., 4.00it/s]")
    0.25
    """
    for pattern, (factor, power) in _STEP_TIMES.items():
        numbers = [float(found) for found in pattern.findall(text)][-LAST_STEPS:]
        if len(numbers) > 2 and all(numbers):
            return factor * float(statistics.median(numbers)) ** power
    return None


def of_facts(
    path: str,
    cluster: Cluster,
    findings: Sequence[Finding | Skipped],
    plan: Plan | None,
    selected: Sequence[Prediction],
) -> Side:
    """Saved facts, with the check's findings, the plan and the selection."""
    nodes = tuple(node.name for node in cluster.nodes)
    side = Side(path, "facts", f"facts of {plural(len(nodes), 'node')}", nodes)
    if plan:
        _plan(side, plan)
    else:
        side.unknown |= {(topic, ""): "no plan is possible there" for topic in ("variable", "job")}
    for made in selected:
        _selected(side, made.name, made.network, made.interfaces)
    for one in findings:
        if isinstance(one, Finding):
            side.problems[one.rule, one.node or ""] = (one.severity or "error", redact(one.found))
        else:
            side.not_checked.add((one.rule, one.node or ""))
    for node in cluster.nodes:
        side.add("ssh", "to the node", node.unreached.kind if node.unreached else "works", node.name)
        for topic, name, value in () if node.unreached else _facts(node):
            side.add(topic, name, value, node.name)
        for topic, fact in UNREAD:
            if fact in node.unknown:
                side.unknown[topic, node.name] = node.unknown[fact]
    links = grouped(((link.dst, link.dst_interface), link) for link in routed(cluster))
    for (name, interface), tried in links.items():
        bad = dict.fromkeys(li.src for li in tried if not li.works)
        side.add("path", f"to {interface}", f"fails from {node_set(bad)}" if bad else "works", name)
    if not cluster.links and len(nodes) > 1:
        side.unknown["path", ""] = "the paths were not tested"
    return side


def _facts(node: Node) -> Iterator[tuple[str, str, Value]]:
    """Topic, name and value of those facts of one node that matter to jobs."""
    for name, version in node.versions.items():
        yield "version", name, version
    for i in node.interfaces:
        if i.kind == "loopback" or not (i.usable_addresses or i.kind in ("physical", "infiniband", "bond")):
            continue
        yield "interface", f"{i.name} state", "up" if i.is_linked else "no carrier" if i.is_up else "down"
        if i.is_linked:
            yield "link", f"{i.name} rate", Amount(i.speed_gbit_s, "Gbit/s") if i.speed_gbit_s else ""
            yield "link", f"{i.name} MTU", str(i.mtu_bytes)
            yield "link", f"{i.name} address", " ".join(a.address for a in i.usable_addresses)
    for port in node.rdma_ports:
        yield "interface", f"{port.name} state", "up" if port.is_active else port.state
        yield "link", f"{port.name} rate", Amount(port.rate_gbit_s, "Gbit/s") if port.rate_gbit_s else ""
    kinds = grouped((gpu.name, gpu) for gpu in node.gpus if gpu.is_visible)
    yield "node", "GPUs", ", ".join(f"{len(same)} x {name}" for name, same in kinds.items())
    yield "job", "script's content", node.script.sha256[:12]
    yield "job", "revision", node.revision[:12]
    for name, value, fact in (
        ("own name", " ".join(node.own_name.addresses), "own_name"),
        ("started", node.boot_id[:8], "boot_id"),
        ("memlock", show_bytes(node.limits.memlock_bytes), "limits"),
        ("open files", f"{node.limits.open_files:g}", "limits"),
        ("/dev/shm", show_bytes(node.shm.total_bytes), "shm"),
        ("CPUs", str(node.cpu_count), "cpu_count"),
    ):
        yield "machine", name, UNKNOWN if fact in node.unknown else value


class _Env(msgspec.Struct):
    env: list[SavedVariable]
    kept: list[SavedVariable]


def of_environment(path: str, data: bytes) -> Side:
    """The output of `ringup env --json`.  Raises ValueError for other text."""
    found = msgspec.json.decode(data, type=_Env)
    side = Side(path, "environment", f"{plural(len(found.env) + len(found.kept), 'variable')}")
    for one in (*found.env, *found.kept):
        side.add("variable", one.name, one.value, one.node or "")
    side.nodes = tuple(dict.fromkeys(v.node for v in (*found.env, *found.kept) if v.node))
    other = (topic for topic in TOPICS if topic not in ("ssh", "plan", "link", "variable"))
    side.unknown |= {(topic, ""): "it holds variables only" for topic in other}
    return side
