"""Ranks whose data takes a slower transport than their peers', although nothing failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event, ranks_of
from ringup.logs.rule import Found, cause, report
from ringup.units import first_of_each, grouped, plural, printable, show_ranks, summarize_names

Key = TypeVar("Key", bound=Hashable)

Process = tuple[str, str]
"""Host, and process id or label."""

MOST_GB_S = 1000.0
"""NCCL's graph lines print larger numbers for links that are not PCIe."""


class _Slower(NamedTuple):
    """Ranks that have less than most of their peers: a sentence, lines of both, their owners."""

    text: str
    events: list[Event]


def channels(log: LogEvidence, via: str) -> list[Event]:
    """Lines of channels; `via` is a pattern of the whole transport, such as `NET/IB/0/GDRDMA`."""
    return log.all("channel", "channel-loose", via=via)


def parted(
    events: Iterable[Event], mark: Callable[[Event], object]
) -> tuple[dict[Process, Event], dict[Process, Event]]:
    """A line of each process: of those without a mark on any, and of those with it."""
    without: dict[Process, Event] = {}
    having: dict[Process, Event] = {}
    for process, own in grouped((_process(e), e) for e in events).items():
        marked = [e for e in own if mark(e)]
        (having if marked else without)[process] = (marked or own)[0]
    return without, having


def _process(event: Event) -> Process:
    """The process of a line; without a process id, its label or its file."""
    return event.host, event.pid or event.label or str(event.file)


def name_ranks(events: list[Event]) -> str:
    """The ranks of these lines: "rank 3 on n1", or the number of processes and their hosts."""
    ranks = ranks_of(events)
    who = show_ranks(ranks) if ranks else plural(len(events), "process", "processes")
    hosts = [*dict.fromkeys(e.host for e in events if e.host)]
    return f"{who} on {summarize_names(hosts)}" if hosts else who


@cause("transport-differs-between-ranks", severity="warning", overcome="warning")
def transport_differs(log: LogEvidence) -> Found:
    """
    Some ranks move their data over a slower way than their peers: every collective waits for them.

    Why: P2P between GPUs is off in one container or VM, a PCIe link or a network port runs at a lower width
    or generation, or a host uses fewer of its network devices than the others.
    Fix: on the named hosts compare `nvidia-smi topo -p2p r`, `lspci -vv` (LnkSta against LnkCap) and `ibstat`
    (Rate) with a host that is not named; equal NCCL_* variables and container options everywhere.
    In logs: `via SHM` on some ranks and `via P2P` on most; `speed=100000` where peers have `speed=400000`;
    `+ PCI[6.0]` where peers have `+ PCI[24.0]`.
    """
    found = [*_p2p_off(log), *_fewer_devices(log), *_slow_ports(log), *_slow_slots(log)]
    events = [event for one in found for event in one.events]
    return report(events, "; ".join(one.text for one in found), "medium")


def _p2p_off(log: LogEvidence) -> Iterator[_Slower]:
    """Processes that reach GPUs of their own host only through shared memory, if most use P2P."""
    within = channels(log, "(?!NET/).*")
    without, having = parted(within, lambda e: not e["via"].startswith("SHM"))
    if not without or len(without) >= len(having):
        return
    why = log.all("p2p-off") + log.all("env-set", name="NCCL_P2P_(?:DISABLE|LEVEL)")
    why = [e for e in why if _process(e) in without or (not e.pid and e.host in {h for h, _ in without})]
    reason = f" (its log: {printable(why[0].text[-120:])})" if why else ": a container, a VM or ACS on PCIe?"
    text = f"{name_ranks([*without.values()])} without P2P, {len(having)} others with it{reason}"
    yield _Slower(text, [*list(without.values())[:2], *why[:1], next(iter(having.values()))])


def _fewer_devices(log: LogEvidence) -> Iterator[_Slower]:
    """Hosts whose channels use fewer network devices than those of most hosts with as many ranks."""
    used: dict[str, dict[str, Event]] = defaultdict(dict)
    ranks: Counter[str] = Counter()
    on_tcp: set[str] = set()
    for (host, _), events in grouped((_process(e), e) for e in channels(log, ".*")).items():
        ranks[host] += 1
        for event in events:
            network, _, device = event["via"].partition("NET/")[2].partition("/")
            if network == "Socket":
                on_tcp.add(host)  # another cause
            elif network.startswith("IB"):
                used[host].setdefault(device.split("/")[0].split("(")[0], event)
    usual = ranks.most_common(1)[0][1] if ranks else 0
    counts = {
        host: len(devices) for host, devices in used.items() if ranks[host] == usual and host not in on_tcp
    }
    low, most = _below_most(counts)
    if low:
        text = (
            f"{summarize_names(low)}: channels use {counts[low[0]]} network devices, on other hosts {most:g}"
        )
        yield _Slower(text, [*(next(iter(used[host].values())) for host in low[:2])])


def _slow_ports(log: LogEvidence) -> Iterator[_Slower]:
    """Ports that are slower than those of the same name on most hosts."""
    ports = first_of_each(((e["device"], e.host), e) for e in log.all("ib-speed") if e.host)
    for name in sorted({device for device, _ in ports}):
        of_name = {host: e for (device, host), e in ports.items() if device == name}
        low, most = _below_most({host: e.number("speed") for host, e in of_name.items()})
        if low:
            has = of_name[low[0]].number("speed") / 1000
            text = (
                f"{name} of {summarize_names(low)} runs at {has:g} Gbit/s, on other hosts at {most / 1000:g}"
            )
            yield _Slower(text, [of_name[host] for host in low[:2]])


def _slow_slots(log: LogEvidence) -> Iterator[_Slower]:
    """GPUs and NICs whose PCIe link carries less than that of most others of their kind."""
    for kind in ("GPU", "NIC"):
        lines = (e for e in log.all("pci-path", kind=kind) if float(e["speed"]) < MOST_GB_S)
        links = first_of_each(((e.host, e["id"]), e) for e in lines)
        low, most = _below_most({key: float(e["speed"]) for key, e in links.items()})
        if low:
            names = summarize_names(f"{kind} {device} of {host}" for host, device in low)
            text = f"PCIe to {names} carries {links[low[0]]['speed']} GB/s, to the others {most:g}: "
            yield _Slower(text + "a lower width or generation", [links[key] for key in low[:2]])


def _below_most(values: Mapping[Key, float]) -> tuple[list[Key], float]:
    """Those with a value below that of more than half of three or more, and that value."""
    most, n = Counter(values.values()).most_common(1)[0] if len(values) > 2 else (0.0, 0)
    low = [key for key, value in values.items() if value < most]
    return (low, most) if 2 * n > len(values) else ([], most)
