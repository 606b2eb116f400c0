"""
The story of a run: what its files said, who is who, what each host used.

Pure: made of the files' scans; causes read it and nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringup.logs.lines import Event
from ringup.logs.scan import Communicator, Scan

if TYPE_CHECKING:
    from ringup.logs.counts import Mismatch, Run
    from ringup.logs.dumps import Recorded

_IB_ENTRY = re.compile(r"\[(\d+)\](?:=?\{)?([\w.+-]+):(\d+)[:\d]*/((?:\w+)(?:/\w+)?)")
_FUSED = re.compile(r"\[(\d+)\]=\{([^}]*)\}")
_IP_ENTRY = re.compile(r"\[(\d+)\]\s*([\w.@-]+):([0-9A-Fa-f.:]+(?:%[\w.@-]+)?)<\d+>")
_OOB = re.compile(r"OOB ([\w.@-]+):")
_USED = re.compile(r"\bNET/([\w ]+?)/(\d+)")
_VIRTUAL = re.compile(
    r"(?i)^(?:docker|br-|veth|virbr|vnet|flannel|cni|cali|tailscale|tun|tap|ip6tnl|wg\d|vxlan|kube"
    r"|lxc|lxd|podman|vmnet|vboxnet|zt|"
    r"nerdctl|weave|cilium|ovs|genev|gre|sit|dummy|tunl|nodelocaldns|antrea|utun|ppp|vethernet"
    r"|docker_gwbridge)"
)


@dataclass
class FileInfo:
    """One input file."""

    path: str
    lines: int = 0
    last_line: str = ""
    last_line_number: int = 0
    host: str = ""
    pid: str = ""
    rank: int | None = None
    init_complete: bool | None = None
    is_log: bool = True
    """False for a file of facts given beside the logs, and for a flight recorder's dump."""


@dataclass
class HostStory:
    """What one host's NCCL said about its networks; the events are kept for evidence."""

    name: str
    bootstrap: tuple[str, str] | None = None
    kind: str = ""
    ib_devices: dict[int, str] = field(default_factory=dict)
    made_of: dict[int, str] = field(default_factory=dict)
    """Virtual devices, numbered after those of the list (2.24 and later): `mlx5_0+mlx5_1`."""
    sockets: dict[int, tuple[str, str]] = field(default_factory=dict)
    oob: str = ""
    used: list[tuple[str, int]] = field(default_factory=list)
    no_ib: Event | None = None
    env: dict[str, Event] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    @property
    def interfaces(self) -> list[str]:
        """The devices of the network in use, in NCCL's order."""
        if self.kind.startswith("Socket") or self.kind == "FastSocket" or not self.ib_devices:
            return [f"{name}:{address}" for _, (name, address) in sorted(self.sockets.items())]
        return [name for _, name in sorted(self.ib_devices.items())]

    def device(self, net: str, index: int) -> str:
        """The device behind `NET/IB/1` or `NET/Socket/0`; "" where its list was not printed."""
        if net in ("Socket", "FastSocket"):
            return self.sockets.get(index, ("", ""))[0]
        return self.ib_devices.get(index) or self.made_of.get(index, "")

    def value(self, name: str) -> str:
        """A variable's value as printed, "" when it was not."""
        event = self.env.get(name)
        return event["value"] if event else ""


def is_virtual(interface: str) -> bool:
    """Whether an interface's name is one containers and tunnels get."""
    return bool(_VIRTUAL.match(interface))


def is_loopback(address: str) -> bool:
    """Whether an address only reaches its own host."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def is_link_local(address: str) -> bool:
    """Whether an address is valid on one link only: fe80::/10, or 169.254/16 as on a BMC's USB port."""
    return address.lower().startswith(("fe80:", "169.254."))


_ENDS = (
    "exit",
    "exit-signal",
    "child-failed",
    "nccl-remote",
    "closed-by-peer",
    "gloo-closed",
    "gloo-reset",
    "recv-vector",
    "work",
)
"""After one of these, what went before was not overcome."""


class Story:
    """All files of one run."""

    def __init__(
        self,
        files: Sequence[FileInfo],
        scans: Sequence[Scan],
        run: Run | None = None,
        mismatches: Sequence[Mismatch] = (),
        recorded: Recorded | None = None,
    ) -> None:
        self.files = list(files)
        self.run = run
        self.mismatches = list(mismatches)
        self.recorded = recorded
        self.communicators: list[Communicator] = [c for s in scans for c in s.communicators]
        self.repeats: dict[str, int] = {}
        for scan in scans:
            for (tag, _), count in scan.repeats.items():
                self.repeats[tag] = self.repeats.get(tag, 0) + count
        events = [e for s in scans for e in s.events]
        self._labels(events)
        self.events = [self._attributed(e) for e in events]
        self.by_tag: dict[str, list[Event]] = defaultdict(list)
        self._by_file: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            self.by_tag[event.tag].append(event)
            self._by_file[event.file].append(event)
        self.hosts: dict[str, HostStory] = {}
        self._hosts()
        self._files()

    # Reading it.

    def all(self, *tags: str) -> list[Event]:
        """Events of any of these tags, file by file, in line order."""
        found = [e for tag in tags for e in self.by_tag.get(tag, ())]
        return sorted(found, key=lambda e: (e.file, e.line))

    def first(self, *tags: str) -> Event | None:
        """The first of them, or None."""
        return next(iter(self.all(*tags)), None)

    def has(self, *tags: str) -> bool:
        """Whether any of these was said."""
        return any(self.by_tag.get(tag) for tag in tags)

    def at(self, file: int, line: int, below: int = 0) -> Iterator[Event]:
        """What was said on a line, and on up to `below` lines after it."""
        events = self.by_file(file)
        for place in range(bisect_left(events, line, key=lambda e: e.line), len(events)):
            if events[place].line > line + below:
                return
            yield events[place]

    def tags_at(self, event: Event, below: int = 0) -> set[str]:
        """What else was said on an event's line, and on up to `below` lines after it."""
        return {e.tag for e in self.at(event.file, event.line, below)}

    @property
    def node_names(self) -> list[str]:
        """Hosts that spoke, in order of appearance."""
        return list(self.hosts)

    @property
    def ranks(self) -> set[int]:
        """Every rank that was seen."""
        found = {c.rank for c in self.communicators}
        found |= {e.rank for e in self.events if e.rank is not None}
        return found

    @property
    def spans_hosts(self) -> bool:
        """Whether the log itself shows more than one host in the job."""
        if len(self.hosts) > 1:
            return True
        if any(e.number("nodes") > 1 for e in self.all("topology")):
            return True
        nodes = [
            e.number(f)
            for e in self.all("min-nodes")
            for f in ("nodes", "nodes2", "nodes3", "nodes4", "nodes5")
        ]
        return any(n > 1 for n in nodes) or any("NET/" in e["via"] for e in self.all("channel"))

    @property
    def init_complete(self) -> bool:
        """Whether some communicator's ranks all completed, or a later stage was reached."""
        return any(c.completed for c in self.communicators) or self.has("init-timings")

    def overcome(self, event: Event) -> bool:
        """Whether training went on for two steps after a line and after all that broke later in its file."""
        later = {
            e.line
            for e in self.all("step", "loss", "epoch-done", "nccl-tests-row")
            if e.file == event.file and e.line > event.line and e.label == event.label
        }
        if len(later) < 2:
            return False
        broke = [e for e in self.all(*_ENDS) if e.file == event.file and e.line > event.line]
        broke = [e for e in broke if not (e.tag == "exit" and e["code"] == "0")]
        if any(e.tag in ("exit", "exit-signal", "child-failed") for e in broke):
            return False
        return sum(line > max((e.line for e in broke), default=0) for line in later) > 1

    # Building it.

    def _labels(self, events: Iterable[Event]) -> None:
        """Which host and rank stand behind a launcher's label, where it is one and the same all along."""
        self._ranks: dict[tuple[str, str, str], set[int]] = defaultdict(set)
        for comm in self.communicators:
            self._ranks[comm.host, comm.pid, comm.device].add(comm.rank)
            self._ranks[comm.host, comm.pid, ""].add(comm.rank)
        hosts: dict[tuple[int, str], set[str]] = defaultdict(set)
        label_ranks: dict[tuple[int, str], set[int]] = defaultdict(set)
        for event in events:
            if event.label and event.host:
                hosts[event.file, event.label].add(event.host)
            if event.label and event.pid:
                label_ranks[event.file, event.label] |= self._ranks.get((event.host, event.pid, ""), set())
            if event.label and event.tag == "global-ranks" and event["ranks"].strip().isdigit():
                label_ranks[event.file, event.label].add(event.number("ranks"))
            elif event.label and event.tag == "exit" and event.rank is not None:
                label_ranks[event.file, event.label].add(event.rank)
        self._label_host = {k: next(iter(v)) for k, v in hosts.items() if len(v) == 1}
        self._label_rank = {k: next(iter(v)) for k, v in label_ranks.items() if len(v) == 1}

    def _attributed(self, event: Event) -> Event:
        host, rank = event.host, event.rank
        if not host and event.label:
            host = self._label_host.get((event.file, event.label), "")
        if rank is None and event.pid:
            for device in (event.device, ""):
                known = self._ranks.get((event.host, event.pid, device), set())
                if len(known) == 1:
                    rank = next(iter(known))
                    break
        if rank is None and event.label:
            rank = self._label_rank.get((event.file, event.label))
        return replace(event, host=host, rank=rank) if (host, rank) != (event.host, event.rank) else event

    def host(self, event: Event) -> HostStory:
        """The host an event belongs to; files without host names stand for one each."""
        name = event.host or (f"file{event.file}" if len(self.files) > 1 else "")
        if name not in self.hosts:
            self.hosts[name] = HostStory(name)
        return self.hosts[name]

    def _hosts(self) -> None:
        reading = False
        for event in self.events:
            tag = event.tag
            if tag == "bootstrap":
                host = self.host(event)
                host.bootstrap = host.bootstrap or (event["interface"], event["address"])
            elif tag == "using-network":
                self.host(event).kind = event["net"]
            elif tag == "net-using":
                self._net_using(self.host(event), event)
            elif tag == "socket-list":
                if "OOB" not in event.text and "Bootstrap" not in event.text:
                    self.host(event).sockets.setdefault(
                        event.number("index"), (event["interface"], event["address"])
                    )
            elif tag == "virtual-device":
                self.host(event).made_of[event.number("index")] = event["name"]
            elif tag == "ib-none":
                self.host(event).no_ib = self.host(event).no_ib or event
            elif tag == "env-set":
                self.host(event).env[event["name"]] = event
            elif tag in ("channel", "channel-loose"):
                self._channel(self.host(event), event)
            elif not event.host:
                continue
            self.host(event).events[tag].append(event)
        del reading
        nameless = self.hosts.get("")
        if nameless and len(self.hosts) > 1:
            for host in self.hosts.values():
                for name, event in nameless.env.items():
                    host.env.setdefault(name, event)
            if not (nameless.kind or nameless.bootstrap or nameless.sockets or nameless.ib_devices):
                del self.hosts[""]

    def _net_using(self, host: HostStory, event: Event) -> None:
        listed, net = event["list"], event["net"] or "Socket"
        before_oob = listed.split("; OOB")[0]
        for index, name, port, kind in _IB_ENTRY.findall(before_oob):
            host.ib_devices.setdefault(int(index), f"{name}:{port}/{kind}")
        for index, inner in _FUSED.findall(before_oob):
            host.ib_devices[int(index)] = "{" + " ".join(inner.split()) + "}"
        oob = _OOB.search(listed)
        if oob:
            host.oob = oob[1]
        if net in ("Socket", "FastSocket"):
            for index, name, address in _IP_ENTRY.findall(listed):
                host.sockets.setdefault(int(index), (name, address))
            old = re.match(r"([\w.@-]+):(\S+)<\d+>", listed)
            if old and (old[1], old[2]) not in host.sockets.values():
                host.sockets[len(host.sockets)] = (old[1], old[2])
        if not host.kind and (host.ib_devices or host.sockets):
            host.kind = "IB" if net == "IB" else net

    def _channel(self, host: HostStory, event: Event) -> None:
        found = _USED.search(event["via"])
        if found and (use := (found[1], int(found[2]))) not in host.used:
            host.used.append(use)

    def _files(self) -> None:
        comms_of: dict[int, list[Communicator]] = defaultdict(list)
        for comm in self.communicators:
            comms_of[comm.file].append(comm)
        for number, info in enumerate(self.files):
            mine = [e for e in self.by_file(number) if e.host]
            hosts = {e.host for e in mine}
            pids = {(e.host, e.pid) for e in mine if e.pid}
            comms = comms_of[number]
            if len(hosts) == 1:
                info.host = next(iter(hosts))
            if len(pids) == 1:
                info.pid = next(iter(pids))[1]
            ranks = {c.rank for c in comms} or {e.rank for e in self.by_file(number) if e.rank is not None}
            if len(ranks) == 1:
                info.rank = next(iter(ranks))
            if comms:
                info.init_complete = all(c.completed for c in comms)
            elif any(e.tag == "init-timings" for e in self.by_file(number)):
                info.init_complete = True
            elif any(e.tag in ("bootstrap", "using-network") for e in self.by_file(number)):
                info.init_complete = False

    def by_file(self, number: int) -> Sequence[Event]:
        """Events of one file."""
        return self._by_file.get(number, ())

    def show_ranks(self, ranks: Iterable[int]) -> str:
        """Ranks for people: "0, 2, 5"."""
        return ", ".join(map(str, sorted(set(ranks))))


def versions_of(story: Story) -> Mapping[str, list[str]]:
    """Which releases were named: NCCL's own and the driver's CUDA."""
    nccl = {e["version"].rstrip(".") for e in story.all("nccl-version")}
    cuda = {e["version"] for e in story.all("cuda-driver")}
    found = {"nccl": sorted(nccl), "cuda_driver": sorted(cuda)}
    return {k: v for k, v in found.items() if v}
