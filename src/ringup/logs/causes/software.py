"""Versions, topology and settings."""

from __future__ import annotations

import re
from collections import defaultdict

from ringup.logs.causes.symptoms import first_value, is_absurd
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.rule import Confidence, Found, cause, report
from ringup.units import first_of_each

_PLANNING = re.compile(
    r"NCCL_(?:ALGO|PROTO|BUFFSIZE|LL_BUFFSIZE|NTHREADS|M(?:IN|AX)_N?CHANNELS|M(?:IN|AX)_CTAS|NRINGS"
    r"|P2P_\w+|SHM_DISABLE|NVLS_ENABLE|COLLNET_ENABLE|NET|CROSS_NIC|IB_DISABLE|NET_GDR_LEVEL"
    r"|IB_QPS_PER_CONNECTION|IB_SPLIT_DATA\w*|NSOCKS_PERTHREAD|SOCKET_NTHREADS|TREE_THRESHOLD"
    r"|LL_THRESHOLD|PXN_DISABLE|CUMEM_ENABLE)$"
)


@cause("nccl-versions-differ")
def nccl_versions_differ(log: LogEvidence) -> Found:
    if refused := log.all("version-mismatch"):
        return report(refused, "NCCL reports that its releases differ between ranks")
    bootstrap = log.all("bootstrap-truncated") + log.all("address-family", family="0*")
    absurd = [e for e in log.all("root-info", "root-count") if is_absurd(e)]
    proof = [*bootstrap, *absurd]
    if printed := _printed(log):
        known = ", ".join(sorted(printed))
        if log.outcome.went_on and not proof:
            text = f"ranks print different NCCL releases: {known}"
            return report(printed.values(), text, "low", severity="note")
        text = f"ranks run different NCCL releases: {known}"
        sure: Confidence = "high" if proof else "medium"
        mild = not (log.outcome.stopped or proof)
        return report([*proof, *printed.values()], text, sure, severity="warning" if mild else None)
    if absurd:
        return report(proof, "the counts in a bootstrap message are nonsense: another release sent it")
    family = bootstrap and bootstrap[0].tag == "address-family"
    text = (
        "a bootstrap message has a size or address of another release: compare the NCCL versions of all ranks"
    )
    return report(bootstrap, text, "medium" if family else "low")


def _printed(log: LogEvidence) -> dict[str, Event]:
    """One line per release that NCCL itself names, if processes differ in it."""
    found: dict[str, Event] = {}
    by_process: dict[tuple[int | str, ...], set[str]] = defaultdict(set)
    # torch's messages name the release that it was linked with, not the loaded one
    lines = log.all("nccl-version", lacks="compiled with|NCCL error in") or log.all("installed-nccl")
    hosts = {e.host for e in lines}
    lone = len(hosts) == 2 and "" in hosts
    for event in lines:
        version = ".".join(event["version"].rstrip(".").split(".")[:3])
        if version.count("."):
            known = next((v for v in found if v.startswith(version) or version.startswith(v)), version)
            found.setdefault(known, event)
            who = (event.file, event.label, *(("", "") if lone else (event.host, event.pid)))
            by_process[who].add(known)
    sets = list(by_process.values())
    apart = any(not a & b for n, a in enumerate(sets) for b in sets[:n])
    return found if apart else {}


@cause("environment-differs-between-nodes")
def environment_differs(log: LogEvidence) -> Found:
    sizes, truncated, apart = log.all("size-mismatch"), log.all("data-truncated"), _settings_apart(log)
    if (sizes or truncated) and not apart:
        # Settings that one host prints, but not another whose set-up is here.
        hosts = [h for h in log.hosts.values() if h.name and h.bootstrap]
        printed = [event for h in hosts for name, event in h.env.items() if _PLANNING.match(name)]
        apart = [event for event in printed if any(event["name"] not in other.env for other in hosts)]
    if sizes and not apart and len({e["op"] for e in log.all("work")}) > 1:
        return None  # ranks in different collectives
    if sizes:
        text = "two ranks plan different message sizes for one transfer"
        return report([*sizes, *apart], text, "high" if apart else "medium")
    if apart and (truncated or (log.outcome.stopped and not log.outcome.went_on)):
        shown = ", ".join(sorted({e["name"] for e in apart} - {""}))
        names = shown or "NCCL_CUMEM_ENABLE (P2P/CUMEM, P2P/IPC)"
        handles = [*log.all("cuda-failure", where="(?i).*p2p.*"), *_handles_apart(log)]
        refused = "CUMEM" in names and len(handles) > 2
        sure: Confidence = "high" if truncated else "medium" if refused else "low"
        text = f"processes have different settings: {names}"
        return report([*truncated, *apart, *handles], text, sure)
    return None


def _settings_apart(log: LogEvidence) -> list[Event]:
    """A line for each value of the settings that plan transfers, if the value differs by process."""
    found: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in log.all("env-set"):
        if _PLANNING.match(event["name"]) and event.host:
            found[event["name"]].setdefault(event["value"], event)
    values = [list(of.values()) for of in found.values() if len({(e.host, e.pid) for e in of.values()}) > 1]
    return [event for events in values for event in events] or _handles_apart(log)


def _handles_apart(log: LogEvidence) -> list[Event]:
    """A channel line of each of two processes that share GPU memory in different ways."""
    ways = first_of_each((e["via"].split("/")[1], e) for e in log.all("channel", via="P2P/(?:CUMEM|IPC).*"))
    return list(ways.values()) if len({(e.host, e.pid) for e in ways.values()}) > 1 else []


@cause("topology-detection-failed", overcome=None)
def topology_detection_failed(log: LogEvidence) -> Found:
    """
    NCCL cannot build its PCI picture, or an injected topology or graph file does not fit this machine.

    Why: a file made on another machine or for another set of GPUs, a USB network device, a virtual PCI tree,
    or a plugin's unknown device.
    Fix: remove NCCL_TOPO_FILE and NCCL_GRAPH_FILE from the environment and nccl.conf; newer NCCL or plugin;
    dump what NCCL sees with NCCL_TOPO_DUMP_FILE.
    In logs: `Attribute busid of node nic not found`, `XML Import Channel : dev 3 not found`.
    """
    # If NCCL tries this and has an alternative, it turns the warning into a note.
    if broken := log.all("topology-broken", lacks="NCCL INFO"):
        files, usb = log.all("env-set", name="NCCL_TOPO_FILE|NCCL_GRAPH_FILE"), log.all("not-pci")
        text = "NCCL's topology detection fails"
        if files:
            text += f"; {files[0]['name']} is set"
        elif usb:
            text += " on a network device that is not on PCI"
        return report([*broken, *usb, *files], text, severity="warning" if log.outcome.went_on else None)
    if log.has("warn", "wc-error", "closed-by-peer"):
        return None
    graph = r".*graph/(?:paths|topo|xml|search|connect)\.cc"
    unwinding = log.all("unwind", code="3", source=graph)
    text = "an internal error out of the topology graph, without a message: a NIC or GPU is missing there"
    below = {(e.file, e.line + 1, e.pid) for e in log.all("unwind")}
    return report([e for e in unwinding if (*e.place, e.pid) not in below], text, "medium")


@cause("driver-too-old-for-cuda", overcome=None)
def driver_too_old(log: LogEvidence) -> Found:
    apart = log.all("driver-library", has="NVML")  # CUDA reports it as error 804
    refused = [e for e in log.all("driver-old") if not (apart and "driver-library" in log.tags_at(e))]
    if refused:
        text = "the installed NVIDIA driver does not support the CUDA runtime of this build"
        # A library in the driver's place (a GPU sharing layer) lacks functions, too.
        is_sure = any("PFN functions" not in e.text for e in refused)
        return report(refused, text, "high" if is_sure else "low" if log.has("crash-word") else "medium")
    printed = log.all("bootstrap", "plugin-none", "warn", "cuda-driver")
    strange = [e for e in printed if re.fullmatch(r"-\d+|\d+", e.device) and not 0 <= int(e.device) <= 512]
    old = [e for e in log.all("cuda-driver") if 0 < e.number("version") < 11050]
    text = "the device numbers are nonsense and the driver is an old one"
    return report([*strange[:2], *old], text, "low") if strange and old else None


@cause("gpu-architecture-not-built", overcome=None)
def gpu_architecture_not_built(log: LogEvidence) -> Found:
    """
    This NCCL, torch or extension holds no code for the GPU.

    Why: it was built for other compute capabilities: the GPU's generation is newer than the build, or so old
    that the build left it out.
    Fix: install a build for that compute capability: `torch.cuda.get_arch_list()` shows what the build holds,
    `nvidia-smi --query-gpu=name,compute_cap --format=csv` what the GPU has.
    In logs: `no kernel image is available for execution on the device`, `invalid device function`.
    """
    events = log.all("no-kernel")
    warned = [e for e in events if e["gpu"]]
    text = "the library holds no code for this GPU"
    if gpu := first_value(warned, "gpu"):
        text += f": {gpu.strip()} ({first_value(warned, 'arch')})"
    elif arch := first_value(events, "arch", "arch2", "arch3"):
        text = f"the compiler does not know this GPU ({arch}): its CUDA toolkit is older than the GPU"
    # An import that fails has not come as far as a kernel.
    imports = warned == events and log.all("exception", has="ImportError|ModuleNotFoundError")
    failed = (warned != events or log.outcome.failed) and not imports
    return report(events, text, severity=None if failed else "warning")
