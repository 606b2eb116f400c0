"""Versions, topology and settings."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, hang, went_on
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_MARKS: dict[str, tuple[int, int]] = {
    "v0204": (2_00, 2_08),
    "vold": (2_04, 2_23),
    "v0217": (2_17, 2_18),
    "vdev": (2_19, 2_21),
    "v0219": (2_19, 2_20),
    "v0221": (2_21, 2_21),
    "v0222": (2_22, 2_25),
    "v0224": (2_24, 9_99),
    "v0226": (2_26, 9_99),
    "v0227": (2_27, 9_99),
}
"""Releases (major and minor) whose source holds that phrase, first and last; read off 62 tags of NCCL."""

_PLANNING = re.compile(
    r"NCCL_(?:ALGO|PROTO|BUFFSIZE|LL_BUFFSIZE|NTHREADS|M(?:IN|AX)_N?CHANNELS|M(?:IN|AX)_CTAS|NRINGS"
    r"|P2P_\w+|SHM_DISABLE|NVLS_ENABLE|COLLNET_ENABLE|"
    r"NET|CROSS_NIC|IB_DISABLE|NET_GDR_LEVEL|IB_QPS_PER_CONNECTION|IB_SPLIT_DATA\w*"
    r"|NSOCKS_PERTHREAD|SOCKET_NTHREADS|TREE_THRESHOLD|LL_THRESHOLD|PXN_DISABLE)$"
)


@cause(problems.NCCL_VERSIONS_DIFFER)
def nccl_versions_differ(story: Story) -> Iterator[Cause]:
    said = story.all("version-mismatch")
    if said:
        yield seen(said, "NCCL says itself that its releases differ between ranks")
        return
    printed = _printed(story)
    failed = failure(story) or hang(story)
    bootstrap = story.all("bootstrap-truncated") + [
        e for e in story.all("address-family") if e.number("family") == 0
    ]
    absurd = [
        e
        for e in story.all("root-info")
        if any(abs(e.number(f)) > 100_000 for f in ("a", "b", "roots_a", "roots_b"))
    ]
    if len(printed) > 1:
        known = ", ".join(sorted(printed))
        confidence = "high" if bootstrap or absurd else "medium"
        if went_on(story) and not (bootstrap or absurd):
            yield seen(
                printed.values(), f"ranks print different NCCL releases: {known}", "low", severity="note"
            )
        else:
            yield seen(
                [*bootstrap, *absurd, *printed.values()],
                f"ranks run different NCCL releases: {known}",
                confidence,  # type: ignore[arg-type]
                severity=None if failed or bootstrap or absurd else "warning",
            )
        return
    apart = _phrased_apart(story)
    if absurd or (apart and (bootstrap or (failed and not went_on(story)))):
        yield seen(
            [*bootstrap, *absurd, *apart],
            "the ranks' lines are phrased as different NCCL releases phrase them",
            "high" if bootstrap or absurd else "medium",
        )
    elif bootstrap:
        family = bootstrap[0].tag == "address-family"
        yield seen(
            bootstrap,
            "a bootstrap message has a size or address of another release: compare the NCCL "
            "versions of all ranks",
            "medium" if family else "low",
        )


def _of_nccl_itself(story: Story) -> list[Event]:
    """Versions that NCCL prints; torch's messages name the one it was linked with, not the one loaded."""
    return [e for e in story.all("nccl-version") if not re.search("compiled with|NCCL error in", e.text)]


def _printed(story: Story) -> dict[str, Event]:
    """One line per release named by NCCL itself, where processes differ in what they name."""
    found: dict[str, Event] = {}
    said: dict[tuple[int, str, str, str], set[str]] = defaultdict(set)
    lines = _of_nccl_itself(story)
    hosts = {e.host for e in lines}
    lone = len(hosts) == 2 and "" in hosts
    for event in lines:
        version = ".".join(event["version"].rstrip(".").split(".")[:3])
        if not version.count("."):
            continue
        known = next((v for v in found if v.startswith(version) or version.startswith(v)), version)
        found.setdefault(known, event)
        who = ("", "") if lone else (event.host, event.pid)
        said[event.file, event.label, who[0], who[1]].add(known)
    sets = list(said.values())
    apart = any(not a & b for n, a in enumerate(sets) for b in sets[:n])
    return found if apart or len(found) < 2 else {}


def _phrased_apart(story: Story) -> list[Event]:
    """A line of each of two hosts whose phrases no single release holds together."""
    spans: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
    for event in story.all("made-of"):
        for mark, (first, last) in _MARKS.items():
            if event[mark]:
                spans[event.host or str(event.file)].append((first, last, event))
    for event in _of_nccl_itself(story):
        match = re.match(r"(\d+)\.(\d+)", event["version"])
        if match and event.host:
            number = int(match[1]) * 100 + int(match[2])
            spans[event.host].append((number, number, event))
    limits = {
        host: (max(f for f, _, _ in s), min(last for _, last, _ in s), s[-1][2]) for host, s in spans.items()
    }
    sane = [(host, low, high, e) for host, (low, high, e) in limits.items() if low <= high]
    for host, low, high, event in sane:
        for other, other_low, other_high, other_event in sane:
            if host != other and (low > other_high or other_low > high):
                return [event, other_event]
    return []


@cause(problems.ENVIRONMENT_DIFFERS_BETWEEN_NODES)
def environment_differs(story: Story) -> Iterator[Cause]:
    sizes = story.all("size-mismatch")
    apart = _settings_apart(story)
    if sizes:
        yield seen(
            [*sizes, *apart],
            "two ranks plan different message sizes for one transfer",
            "high" if apart else "medium",
        )
    elif apart and (failure(story) or hang(story)) and not went_on(story):
        names = ", ".join(sorted({e["name"] for e in apart}))
        truncated = story.all("data-truncated")
        yield seen(
            [*truncated, *apart], f"hosts have different settings: {names}", "high" if truncated else "low"
        )
    elif truncated := story.all("data-truncated"):
        yield seen(truncated, "two ranks plan different message sizes: compare their settings", "low")


def _settings_apart(story: Story) -> list[Event]:
    """Settings that plan transfers and that two hosts print with different values (or one does not print)."""
    hosts = [h for h in story.hosts.values() if h.name and h.env]
    found: list[Event] = []
    for name in sorted({n for h in hosts for n in h.env if _PLANNING.match(n)}):
        values = {h.value(name) for h in hosts}
        if len(hosts) > 1 and len(values - {""}) > 1:
            found += [h.env[name] for h in hosts if name in h.env]
    return found


@cause("topology-detection-failed", passing=True)
def topology_detection_failed(story: Story) -> Iterator[Cause]:
    """
    NCCL cannot build its PCI picture, or an injected topology or graph file does not fit this machine.

    Why: a file made on another machine or for another set of GPUs, a USB network device, a virtual
    PCI tree, or a
    plugin's unknown device.

    Fix: remove NCCL_TOPO_FILE and NCCL_GRAPH_FILE from the environment and nccl.conf; newer NCCL or plugin;
    dump what NCCL sees with NCCL_TOPO_DUMP_FILE.

    In logs: `Attribute busid of node nic not found`, `XML Import Channel : dev 3 not found`.
    """
    # Where NCCL tries and has another way it turns the warning into a note.
    broken = [e for e in story.all("topology-broken") if "NCCL INFO" not in e.text]
    files = [e for e in story.all("env-set") if e["name"] in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")]
    usb = story.all("not-pci")
    if broken:
        text = "NCCL's topology detection fails"
        if files:
            text += f"; {files[0]['name']} is set"
        elif usb:
            text += " on a network device that is not on PCI"
        yield seen([*broken, *usb, *files], text, "high", severity="warning" if went_on(story) else None)
        return
    unwinding = [e for e in story.all("unwind") if e["code"] == "3"]
    firsts = [
        e
        for e in unwinding
        if re.search(r"graph/(?:paths|topo|xml|search|connect)\.cc$", e["source"])
        and _begins_unwinding(story, e)
    ]
    if firsts and not story.has("warn") and not story.has("wc-error", "closed-by-peer"):
        yield seen(
            firsts,
            "an internal error out of the topology graph, without a message: a NIC or GPU is missing there",
            "medium",
        )


def _begins_unwinding(story: Story, event: Event) -> bool:
    """Whether no return-code line of the same process stands just above."""
    return not any(e.tag == "unwind" for e in story.at(event.file, event.line - 1) if e.pid == event.pid)


@cause(problems.DRIVER_TOO_OLD_FOR_CUDA, passing=True)
def driver_too_old(story: Story) -> Iterator[Cause]:
    said = story.all("driver-old")
    if said:
        yield seen(said, "the installed NVIDIA driver does not support the CUDA runtime of this build")
        return
    strange = [
        e
        for e in story.events
        if e.device.lstrip("-").isdigit()
        and (int(e.device) > 512 or int(e.device) < 0)
        and e.tag in ("bootstrap", "plugin-none", "made-of", "warn", "cuda-driver")
    ]
    old = [e for e in story.all("cuda-driver") if 0 < e.number("version") < 11050]
    if strange and old:
        yield seen(
            [*strange[:2], *old], "the device numbers are nonsense and the driver is an old one", "low"
        )


@cause(problems.DRIVER_LIBRARY_MISMATCH, passing=True)
def driver_library_mismatch(story: Story) -> Iterator[Cause]:
    said = story.all("driver-library")
    if said:
        yield seen(said, "the driver's kernel module and user library are of different releases")


@cause("gpu-architecture-not-built", passing=True)
def gpu_architecture_not_built(story: Story) -> Iterator[Cause]:
    """
    This NCCL, torch or extension holds no code for the GPU.

    Why: it was built for other compute capabilities.

    Fix: a build for that compute capability.

    In logs: `no kernel image is available for execution on the device`, `invalid device function`.
    """
    said = story.all("no-kernel")
    only_warned = all("not compatible with the current PyTorch" in e.text for e in said)
    if said:
        yield seen(
            said,
            "the library holds no code for this GPU",
            "high",
            severity="warning" if only_warned and failure(story) is None else None,
        )
