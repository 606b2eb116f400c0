"""GPUs a job would use: are they all there, free, alike, and able to reach each other."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ringup import problems
from ringup.checks.software import usual
from ringup.facts import Cluster, Gpu, KernelEvent, Node
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, Skipped, check
from ringup.units import printable, show_bytes

Rule = Callable[[Cluster], Iterator[Finding | Skipped]]

MIB = 1024**2
HELD_BYTES = 500 * MIB
UNSEEN_BYTES = 1024 * MIB
"""Older drivers count their own reserve, some hundred MiB, as used."""
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons that are faults; idle, power cap and application clocks are not."""
PEER_WORDS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a driver option",
    "U": "unknown",
}
"""The legend of `nvidia-smi topo -p2p`."""


def for_gpus(rule: Rule) -> Rule:
    """A rule that has nothing to say of a job on processors alone, which broken GPUs do not stop."""

    @functools.wraps(rule)
    def judged(cluster: Cluster) -> Iterator[Finding | Skipped]:
        if cluster.job.backend != "gloo":
            yield from rule(cluster)

    return judged


def seen(node: Node) -> tuple[Gpu, ...]:
    """The GPUs that the job sees."""
    return tuple(g for g in node.gpus if g.is_visible)


def known(node: Node, field: str) -> bool:
    return field not in node.unknown


def named(gpus: Iterable[Gpu]) -> str:
    """ "GPU 0, 3"."""
    return "GPU " + few([str(g.index) for g in gpus], 8)


def of_gpu(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({printable(gpu.bus_id or gpu.uuid, 60)})"


def has_memory_fault(gpu: Gpu) -> bool:
    """Whether a rule about its memory names it already."""
    retired = (gpu.retired_pages or 0) >= 60 or bool(gpu.retirement_pending)
    return bool(gpu.ecc_uncorrected or gpu.remap_pending or gpu.remap_failed or retired)


def on(node: Node, *words: str) -> str:
    """A command to paste."""
    return " ".join(["ssh", shlex.quote(node.name), *words])


def without_driver(node: Node) -> list[str]:
    """PCI addresses of NVIDIA GPUs where no NVIDIA driver is loaded; a virtual machine's are not ours."""
    if node.gpu_driver.version:
        return []
    return [d.bus_id for d in node.pci if d.is_nvidia_gpu and d.driver != "vfio-pci"]


@check(problems.GPU_MISSING, reads=("gpu_driver", "pci"), uses=("gpus", "kernel_events", "gpu_count"))
@for_gpus
def gpu_missing(cluster: Cluster) -> Iterator[Finding]:
    """Only what is proved: a GPU hidden by a container or a scheduler is not missing."""
    elsewhere = any(known(n, "gpu_count") and n.gpu_count for n in cluster.nodes)
    for node in cluster.nodes:
        gpus = node.gpus if known(node, "gpus") else ()
        lost = [*node.gpu_driver.lost, *(g.bus_id for g in gpus if "lost" in g.trouble)]
        for bus in dict.fromkeys(lost):
            yield Finding(
                f"{node.name} GPU {bus}",
                found=f"the driver has it and nvidia-smi gets no answer{last_xid(node, bus)}",
                wanted="every GPU of the machine answers",
                node=node.name,
                fix=Fix(
                    "drain the node and power it off and on; replace the GPU if it goes again",
                    commands=(on(node, "'sudo dmesg | grep -i -e Xid -e AER | tail'"),),
                ),
            )
        needed = elsewhere or cluster.job.backend == "nccl"
        if without_driver(node):
            yield none_driven(node, "error" if needed else "note")
        elif node.gpu_driver.error.startswith("No devices were found") and not lost:
            yield none_allowed(node, "error" if needed else "note")


def none_driven(node: Node, severity: Severity) -> Finding:
    """GPUs that no driver has."""
    why = f", {printable(node.gpu_driver.error or 'no NVIDIA driver is loaded', 120)}"
    fix = "load or install the driver, as on the other nodes"
    return unusable(node, severity, why, "a driver that drives them", fix, "sudo modprobe nvidia")


def none_allowed(node: Node, severity: Severity) -> Finding:
    """GPUs that the driver has and this user may not open: a scheduler or container gave none."""
    why = ", and none for the job's shell: nvidia-smi finds no device there"
    fix = "ask the scheduler or container for GPUs (--gres, --gpus); if given, the driver's log says more"
    return unusable(node, severity, why, "GPUs that the job may use", fix, "ls -l /dev/nvidia*")


def unusable(node: Node, severity: Severity, why: str, wanted: str, fix: str, command: str) -> Finding:
    """GPUs on the bus that nobody can use; the driver's own words come behind the command."""
    return Finding(
        node.name,
        found=f"{sum(d.is_nvidia_gpu for d in node.pci)} NVIDIA GPUs on the PCI bus{why}",
        wanted=wanted,
        node=node.name,
        severity=severity,
        fix=Fix(fix, commands=(on(node, f"'{command}; sudo dmesg | grep -i nvrm | tail'"),)),
    )


def last_xid(node: Node, bus: str) -> str:
    """The driver's own word about a GPU, where the kernel log may be read."""
    events: Sequence[KernelEvent] = node.kernel_events if known(node, "kernel_events") else ()
    told = [e for e in events if e.kind == "xid" and e.bus_id == bus]
    return f"; Xid {told[-1].code}: {printable(told[-1].text, 120)}" if told else ""


@check("gpu-held-by-other-process", reads=("gpus", "gpu_processes"), uses=("leftovers",), severity="warning")
@for_gpus
def gpu_held_by_other_process(cluster: Cluster) -> Iterator[Finding]:
    """
    GPU memory is in use before the job starts.

    Why: another job, or a rank of an earlier run that nobody ended; the new job runs out of memory or
    shares the GPU and slows every rank.

    Fix: look who it is; `ringup clean` for your own leftovers, the scheduler for others'.
    """
    for node in cluster.nodes:
        # Ranks of an earlier or another run are named by their own rules.
        told = {p.pid for p in node.leftovers} if known(node, "leftovers") else set()
        holders = [p for p in node.gpu_processes if p.pid not in told]
        taken = []
        for gpu in seen(node):
            own = [p for p in holders if p.gpu == gpu.index]
            used = sum(p.used_bytes or 0 for p in own)
            much = min(HELD_BYTES, gpu.memory_bytes // 20)
            nobody = not any(p.gpu == gpu.index for p in node.gpu_processes)
            hidden = nobody and (gpu.used_bytes or 0) > max(UNSEEN_BYTES, gpu.memory_bytes // 20)
            if hidden or (own and (used >= much or any(p.used_bytes is None for p in own))):
                taken.append(gpu)
        if not taken:
            continue
        pids = [p for p in holders if p.gpu in {g.index for g in taken}]
        who = (
            few([f"pid {p.pid} {printable(p.name, 60)}" for p in pids], 3) or "no process that is shown here"
        )
        used = max(sum(g.used_bytes or 0 for g in taken), sum(p.used_bytes or 0 for p in pids))
        numbers = " ".join(str(p) for p in sorted({p.pid for p in pids})[:20])
        look = on(node, "ps", "-o", "user,pid,lstart,args", "-p", shlex.quote(numbers)) if pids else ""
        yield Finding(
            f"{node.name} {named(taken)}",
            found=f"{show_bytes(used)} in use by {who}",
            wanted="free GPUs",
            node=node.name,
            fix=Fix("see who it is; end it if it is yours", commands=(look or on(node, "nvidia-smi"),)),
        )


@check("gpu-throttled", reads=("gpus",), severity="warning")
@for_gpus
def gpu_throttled(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU slows its clocks down because of heat or power.

    Why: collectives wait for the slowest rank, so one hot GPU of sixteen slows all sixteen.

    Fix: cooling, dust, power supply and its cables of that machine; leave the node out until then.
    """
    for node in cluster.nodes:
        slowed = [g for g in seen(node) if (g.throttle_reasons or 0) & sum(SLOWED)]
        if slowed:
            bits = [
                word for bit, word in SLOWED.items() if any((g.throttle_reasons or 0) & bit for g in slowed)
            ]
            heat = max((g.temperature_c or 0.0 for g in slowed), default=0.0)
            yield Finding(
                f"{node.name} {named(slowed)}",
                found=", ".join(bits) + (f", {heat:g} °C" if heat else ""),
                wanted="clocks that only the load decides",
                node=node.name,
                fix=Fix(
                    "cooling and power of that machine; `--hosts` without it until then",
                    commands=(on(node, "nvidia-smi", "-q", "-d", "PERFORMANCE,TEMPERATURE,POWER"),),
                ),
            )


@check("nvidia-smi-hangs", reads=("gpu_driver",))
@for_gpus
def nvidia_smi_hangs(cluster: Cluster) -> Iterator[Finding]:
    """
    nvidia-smi gives no answer.

    Why: inside the kernel it means a wedged driver, and CUDA will hang there too.  It may also only be
    slow: without persistence mode the driver starts every GPU anew for every question.

    Fix: `nvidia-smi -pm 1` (or nvidia-persistenced) where it is slow; reboot the node where it hangs.
    """
    for node in cluster.nodes:
        driver = node.gpu_driver
        if driver.silent_s:
            how = ", stuck inside the kernel" if driver.is_stuck else ""
            yield Finding(
                node.name,
                found=f"no answer within {driver.silent_s:.1f} s{how}",
                wanted="an answer within a second or two",
                node=node.name,
                severity="error" if driver.is_stuck else "warning",
                fix=Fix(
                    "reboot the node" if driver.is_stuck else "persistence mode; if it still hangs, reboot",
                    commands=(
                        on(node, "'sudo dmesg | grep -i -e nvrm -e \"blocked for more\" | tail'"),
                        on(node, "sudo", "nvidia-smi", "-pm", "1"),
                    ),
                ),
            )


@check("mig-or-compute-mode", reads=("gpus",), uses=("environment",))
@for_gpus
def mig_or_compute_mode(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU is cut into MIG slices, or set to refuse programs.

    Why: a process sees one slice only, NCCL has no peer access between slices, and ranks that share one
    GPU are refused (`Duplicate GPU detected`).  A GPU in mode Prohibited runs nothing at all.

    Fix: `sudo nvidia-smi -mig 0`, `sudo nvidia-smi -c DEFAULT` on that GPU while nothing runs on it.
    """
    for node in cluster.nodes:
        closed = [g for g in seen(node) if g.compute_mode == "Prohibited"]
        sliced = [g for g in seen(node) if g.is_mig]
        groups: tuple[tuple[list[Gpu], str, Severity, str], ...] = (
            (closed, "compute mode Prohibited", "error", "-c DEFAULT"),
            (sliced, "MIG mode is on", "warning", "-mig 0"),
        )
        for gpus, what, severity, option in groups:
            if gpus:
                numbers = ",".join(str(g.index) for g in gpus)
                yield Finding(
                    f"{node.name} {named(gpus)}",
                    found=what,
                    wanted="whole GPUs that any process may use",
                    node=node.name,
                    severity=severity,
                    fix=Fix(
                        "turn it off while nothing runs there",
                        commands=(on(node, "sudo", "nvidia-smi", "-i", numbers, option),),
                    ),
                )


def kinds(node: Node) -> str:
    """The models of a node's GPUs."""
    found = sorted({f"{g.name} {round(g.memory_bytes / 1024**3)} GiB" for g in seen(node) if g.name})
    return ", ".join(found)


@check("gpus-not-alike", reads=("gpus",), severity="warning")
@for_gpus
def gpus_not_alike(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes' GPUs are of different models or have different power limits.

    Why: every step waits for the slowest GPU, and a batch that fits one may not fit another.

    Fix: nodes of one kind in one job; the same `nvidia-smi -pl` everywhere.
    """
    wanted = usual(cluster, kinds)
    limits = usual_power(cluster)
    for node in cluster.nodes:
        own = kinds(node)
        if own and own != wanted:
            yield Finding(
                node.name,
                found=printable(own, 200),
                wanted=f"{printable(wanted, 200)}, as elsewhere",
                node=node.name,
                fix=Fix("nodes of one kind in one job", commands=(on(node, "nvidia-smi", "-L"),)),
            )
            continue
        for gpu in seen(node):
            limit = limits.get(gpu.name, 0.0)
            if gpu.power_limit_w and limit and gpu.power_limit_w < 0.95 * limit:
                yield Finding(
                    f"{node.name} {of_gpu(gpu)}",
                    found=f"power limit {gpu.power_limit_w:g} W",
                    wanted=f"{limit:g} W, as other GPUs of its kind",
                    node=node.name,
                    fix=Fix(
                        "set it as elsewhere",
                        commands=(on(node, "sudo", "nvidia-smi", "-i", str(gpu.index), "-pl", f"{limit:g}"),),
                    ),
                )


def usual_power(cluster: Cluster) -> dict[str, float]:
    """Model -> the power limit most GPUs of it have, W; the larger in a tie."""
    limits: dict[str, Counter[float]] = {}
    for gpu in (g for n in cluster.nodes for g in seen(n) if g.power_limit_w):
        limits.setdefault(gpu.name, Counter())[gpu.power_limit_w or 0.0] += 1
    return {name: max(counts, key=lambda w: (counts[w], w)) for name, counts in limits.items()}


@check("p2p-not-supported", reads=("gpu_links",), uses=("gpus",), severity="warning")
@for_gpus
def p2p_not_supported(cluster: Cluster) -> Iterator[Finding]:
    """
    GPUs of one node cannot read each other's memory.

    Why: NCCL then copies through host memory, which is several times slower.  Consumer and small
    data-centre boards (L4) have no such path; elsewhere IOMMU, ACS or the driver forbid it.

    Fix: `nvidia-smi topo -p2p r` names the reason; IOMMU and ACS off, a driver of another release.
    `NCCL_P2P_DISABLE=1` where copies hang.
    """
    pairs = {n.name: refused_pairs(n) for n in cluster.nodes}
    everywhere = all(len(pairs[n.name]) == len(n.gpu_links) for n in cluster.nodes if n.gpu_links)
    alike = len({code for found in pairs.values() for _, code in found}) == 1
    for node in cluster.nodes:
        found = pairs[node.name]
        if not found:
            continue
        codes = sorted({code for _, code in found})
        words = ", ".join(f"{c} ({PEER_WORDS.get(c, 'not explained')})" for c in codes)
        yield Finding(
            node.name,
            found=f"{len(found)} of {len(node.gpu_links)} pairs of GPUs: {printable(words, 120)}",
            wanted="OK between all of them",
            node=node.name,
            # All boards of all nodes: that is how they are made.
            severity="note" if everywhere and alike else "warning",
            fix=Fix(
                "see what forbids it: IOMMU, ACS, the driver's release, the board itself",
                commands=(on(node, "nvidia-smi", "topo", "-p2p", "r"),),
            ),
        )


def refused_pairs(node: Node) -> list[tuple[tuple[int, int], str]]:
    """Pairs without peer access and why; none where MIG makes it so."""
    gpus = node.gpus if known(node, "gpus") else ()
    if any(g.is_mig for g in gpus):
        return []
    hidden = {g.index for g in gpus if not g.is_visible}
    return [
        ((link.first, link.second), link.peer)
        for link in node.gpu_links
        if link.peer not in ("OK", "") and not hidden & {link.first, link.second}
    ]
