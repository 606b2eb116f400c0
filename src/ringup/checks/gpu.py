"""GPUs a job would use: all present, free, of one kind, and able to reach each other."""

from __future__ import annotations

import functools
import operator
import shlex
from collections.abc import Callable, Iterable, Iterator

from ringup.checks.software import most_common_number, usual
from ringup.model import Cluster, Gpu, Node
from ringup.rules import Finding, at, check
from ringup.units import grouped, printable, show_bytes, summarize_names

MIB = 1024**2
HELD_BYTES = 500 * MIB
UNSEEN_BYTES = 1024 * MIB
"""Older drivers count their own reserve, a few hundred MiB, as used."""
RETIRED_FULL = 60
"""Pages; Azure/azurehpc-health-checks removes a node from service near this many."""
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


def visible(node: Node) -> tuple[Gpu, ...]:
    return tuple(g for g in node.gpus if g.is_visible)


def named(gpus: Iterable[Gpu]) -> str:
    """ "GPU 0, 3"."""
    return "GPU " + summarize_names([str(g.index) for g in gpus], 8)


def by_model(cluster: Cluster, value: Callable[[Gpu], float]) -> dict[str, list[float]]:
    return grouped((g.name, value(g)) for n in cluster.nodes for g in visible(n))


def of_gpu(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({printable(gpu.bus_id or gpu.uuid, 60)})"


def has_memory_fault(gpu: Gpu) -> bool:
    retired = (gpu.retired_pages or 0) >= RETIRED_FULL or bool(gpu.retirement_pending)
    return bool(gpu.ecc_uncorrected or gpu.remap_pending or gpu.remap_failed or retired)


def without_driver(node: Node) -> list[str]:
    """PCI addresses of NVIDIA GPUs where no NVIDIA driver is loaded."""
    return [] if node.gpu_driver.version else [d.bus_id for d in node.pci if d.is_own_gpu]


@check("gpu-missing", reads=("gpu_driver", "pci"), scope="gpus")
def gpu_missing(cluster: Cluster) -> Iterator[Finding]:
    """Only proven cases: a GPU hidden by a container or a scheduler is not missing."""
    elsewhere = any(n.gpu_count for n in cluster.nodes)
    for node in cluster.nodes:
        lost = [*node.gpu_driver.lost, *(g.bus_id for g in node.gpus if "lost" in g.trouble)]
        for bus in dict.fromkeys(lost):
            events = [e for e in node.kernel_events if e.kind == "xid" and e.bus_id == bus]
            last = f"; Xid {events[-1].code}: {printable(events[-1].text, 120)}" if events else ""
            yield at(node, f"GPU {bus}").finding(
                found=f"the driver lists it but nvidia-smi gets no answer{last}",
                wanted="every GPU of the machine answers",
                fix="drain the node and power it off and on; replace the GPU if it disappears again",
                run="sudo dmesg | grep -i -e Xid -e AER | tail",
            )
        own = sum(device.is_own_gpu for device in node.pci)
        if without_driver(node):
            why = f", {printable(node.gpu_driver.error or 'no NVIDIA driver is loaded', 120)}"
            wanted, command = "a driver that drives them", "sudo modprobe nvidia"
            fix = "load or install the driver, as on the other nodes"
        elif own and node.gpu_driver.error.startswith("No devices were found") and not lost:
            why = ", and none for the job's shell: nvidia-smi finds no device there"
            wanted, command = "GPUs that the job may use", "ls -l /dev/nvidia*"
            fix = "request GPUs from the scheduler or container (--gres, --gpus), or read the driver's log"
        else:
            continue
        yield at(node).finding(
            found=f"{own} NVIDIA GPUs on the PCI bus{why}",
            wanted=wanted,
            severity="error" if elsewhere or cluster.job.backend == "nccl" else "note",
            fix=fix,
            run=f"{command}; sudo dmesg | grep -i nvrm | tail",
        )


@check("gpu-held-by-other-process", reads=("gpus", "gpu_processes"), severity="warning", scope="gpus")
def gpu_held_by_other_process(node: Node) -> Iterator[Finding]:
    """
    GPU memory is in use before the job starts.

    Why: another job, or a rank left over from an earlier run; the new job runs out of memory or
    shares the GPU and slows every rank.
    Fix: find its owner: `ringup clean` for your own leftovers, the scheduler for others'.
    """
    # Other rules name ranks of an earlier or another run.
    named_elsewhere = {p.pid for p in node.leftovers}
    holders = [p for p in node.gpu_processes if p.pid not in named_elsewhere]
    taken = []
    for gpu in visible(node):
        own = [p for p in holders if p.gpu == gpu.index]
        used = sum(p.used_bytes or 0 for p in own)
        much = min(HELD_BYTES, gpu.memory_bytes // 20)
        nobody = not any(p.gpu == gpu.index for p in node.gpu_processes)
        hidden = nobody and (gpu.used_bytes or 0) > max(UNSEEN_BYTES, gpu.memory_bytes // 20)
        if hidden or (own and (used >= much or any(p.used_bytes is None for p in own))):
            taken.append(gpu)
    if not taken:
        return
    pids = [p for p in holders if p.gpu in {g.index for g in taken}]
    shown = summarize_names([f"pid {p.pid} {printable(p.name, 60)}" for p in pids], 3)
    used = max(sum(g.used_bytes or 0 for g in taken), sum(p.used_bytes or 0 for p in pids))
    numbers = " ".join(str(p) for p in sorted({p.pid for p in pids})[:20])
    yield at(node, named(taken)).finding(
        found=f"{show_bytes(used)} in use by {shown or 'a process that is hidden here'}",
        wanted="free GPUs",
        run=f"ps -o user,pid,lstart,args -p {shlex.quote(numbers)}" if pids else "nvidia-smi",
    )


@check("gpu-throttled", reads=("gpus",), severity="warning", scope="gpus")
def gpu_throttled(node: Node) -> Iterator[Finding]:
    """
    A GPU slows its clocks down because of heat or power.

    Why: collectives wait for the slowest rank, so one hot GPU of sixteen slows all sixteen.
    Fix: cooling, dust, power supply and its cables of that machine; leave the node out until then.
    """
    slowed = [g for g in visible(node) if (g.throttle_reasons or 0) & sum(SLOWED)]
    if slowed:
        together = functools.reduce(operator.or_, (g.throttle_reasons or 0 for g in slowed))
        reasons = [word for bit, word in SLOWED.items() if together & bit]
        heat = max(g.temperature_c or 0.0 for g in slowed)
        yield at(node, named(slowed)).finding(
            found=", ".join(reasons) + (f", {heat:g} °C" if heat else ""),
            wanted="clocks limited only by the load",
            run="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        )


@check("nvidia-smi-hangs", reads=("gpu_driver",), scope="gpus")
def nvidia_smi_hangs(node: Node) -> Iterator[Finding]:
    """
    nvidia-smi gives no answer.

    Why: inside the kernel it means a wedged driver, and CUDA will hang there too.  It may also only be
    slow: without persistence mode the driver initializes every GPU for every query.
    Fix: `nvidia-smi -pm 1` (or nvidia-persistenced) where it is slow; reboot the node where it hangs.
    """
    driver = node.gpu_driver
    if driver.silent_s:
        how = ", stuck inside the kernel" if driver.is_stuck else ""
        yield at(node).finding(
            found=f"no answer within {driver.silent_s:.1f} s{how}",
            wanted="an answer within a second or two",
            severity="error" if driver.is_stuck else "warning",
            run=('sudo dmesg | grep -i -e nvrm -e "blocked for more" | tail', "sudo nvidia-smi -pm 1"),
        )


@check("mig-or-compute-mode", reads=("gpus",), scope="gpus")
def mig_or_compute_mode(node: Node) -> Iterator[Finding]:
    """
    A GPU is cut into MIG slices, or set to refuse programs.

    Why: a process sees one slice only, NCCL has no peer access between slices, and ranks that share one
    GPU are refused (`Duplicate GPU detected`).  A GPU in mode Prohibited runs nothing at all.
    Fix: other GPUs, since `nvidia-smi -mig 0` destroys the slices of all users of a GPU; for the mode
    `sudo nvidia-smi -c DEFAULT` on that GPU while nothing runs on it.
    """
    closed = [g for g in visible(node) if g.compute_mode == "Prohibited"]
    sliced = [g for g in visible(node) if g.is_mig]
    for gpus in filter(None, (closed, sliced)):
        numbers, is_closed = ",".join(str(g.index) for g in gpus), gpus is closed
        yield at(node, named(gpus)).finding(
            found="compute mode Prohibited" if is_closed else "MIG mode is on",
            wanted="whole GPUs that any process may use",
            severity="error" if is_closed else "warning",
            run=f"sudo nvidia-smi -i {numbers} -c DEFAULT" if is_closed else "nvidia-smi -L",
        )


def kinds(node: Node) -> str:
    models = {f"{g.name} {round(g.memory_bytes / 1024**3)} GiB" for g in visible(node) if g.name}
    return ", ".join(sorted(models))


@check("gpus-not-alike", reads=("gpus",), severity="warning", scope="gpus")
def gpus_not_alike(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes' GPUs are of different models or have different power limits.

    Why: every step waits for the slowest GPU, and a batch that fits one may not fit another.
    Fix: nodes of one kind in one job; the same `nvidia-smi -pl` everywhere.
    """
    wanted = usual(cluster, kinds)
    limits = by_model(cluster, lambda gpu: gpu.power_limit_w or 0.0)
    usually = {model: most_common_number(filter(None, own)) for model, own in limits.items()}
    for node in cluster.nodes:
        own = kinds(node)
        if own and own != wanted:
            yield at(node).finding(
                found=printable(own, 200),
                wanted=f"{printable(wanted, 200)}, as on the other nodes",
                run="nvidia-smi -L",
            )
            continue
        for gpu in visible(node):
            limit = usually[gpu.name]
            if gpu.power_limit_w and limit and gpu.power_limit_w < 0.95 * limit:
                yield at(node, of_gpu(gpu)).finding(
                    found=f"power limit {gpu.power_limit_w:g} W",
                    wanted=f"{limit:g} W, as other GPUs of its kind",
                    run=f"sudo nvidia-smi -i {gpu.index} -pl {limit:g}",
                )


@check("p2p-not-supported", reads=("gpu_links",), severity="warning", scope="gpus")
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
    alike = len({code for found in pairs.values() for code in found}) == 1
    for node in cluster.nodes:
        found = pairs[node.name]
        if not found:
            continue
        words = ", ".join(f"{c} ({PEER_WORDS.get(c, 'not explained')})" for c in sorted(set(found)))
        yield at(node).finding(
            found=f"{len(found)} of {len(node.gpu_links)} pairs of GPUs: {printable(words, 120)}",
            wanted="OK between all of them",
            severity="note" if everywhere and alike else "warning",
            run="nvidia-smi topo -p2p r",
        )


def refused_pairs(node: Node) -> list[str]:
    """Why GPUs have no access to each other, one reason per pair; empty if MIG is the reason."""
    hidden = {g.index for g in node.gpus if not g.is_visible}
    links = () if any(g.is_mig for g in node.gpus) else node.gpu_links
    return [x.peer for x in links if x.peer not in ("OK", "") and not hidden & {x.first, x.second}]
