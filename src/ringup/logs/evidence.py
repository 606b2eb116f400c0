"""
The evidence of a run: the events of its files, the hosts and ranks that printed them, their networks.

Pure: made of the files' scans; causes read it and nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from ringup.logs.counts.model import Comm
from ringup.logs.dumps import Recorded
from ringup.logs.files import FileInfo
from ringup.logs.lines import Event
from ringup.logs.outcome import Outcome
from ringup.logs.patterns import SETTING_UP
from ringup.logs.scan import LISTED_SOCKET, Scan
from ringup.nccl import lines
from ringup.units import grouped

if TYPE_CHECKING:
    from ringup.logs.counts import Mismatch, Run
    from ringup.logs.forms import Reference
    from ringup.logs.run_record import RunEnd

_T = TypeVar("_T")

_IB_ENTRY = re.compile(lines.bounded(lines.LISTED_PORT))
_FUSED = re.compile(r"\[(\d+)\]=\{([^{}]*)\}")
_OOB = re.compile(r"OOB ([\w.@-]+):")
_OF_WORK = {"step", "loss", "epoch-done", "finished", "saved"}
_NUMBERED = re.compile(r"\[(\d{1,6})\] |(\d{1,6}): ")
_OF_ONE_RANK = re.compile(r"(?:.*/)?rank-(\d{5,8})-([^/]*)\.log", re.DOTALL)
"""The output of one rank and its node, as `ringup run` writes it."""
_NAMED_BY_RANK = re.compile(
    r"(?:^|[._-])(?:global)?rank[._-]?(\d{1,6})(?=[._-])|^(?:workerlog|log\.rank)[._-]?(\d{1,6})$"
)
"""Files of one rank as scripts, Paddle and torchrun's --log-dir name them."""
_USED = re.compile(r"\bNET/([\w ]+?)/(\d+)")


@dataclass
class HostNetworks:
    """The lines of one host's NCCL about its networks; the events are stored for evidence."""

    name: str
    bootstrap: tuple[str, str] | None = None
    kind: str = ""
    ib_devices: dict[int, str] = field(default_factory=dict)
    made_of: dict[int, str] = field(default_factory=dict)
    """Virtual devices, numbered after those of the list (2.24 and later): `mlx5_0+mlx5_1`."""
    sockets: dict[int, tuple[str, str]] = field(default_factory=dict)
    oob: str = ""
    used: list[tuple[str, int]] = field(default_factory=list)
    env: dict[str, Event] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))

    @property
    def interfaces(self) -> list[str]:
        """The devices of the network in use, in NCCL's order."""
        if self.kind.startswith("Socket") or self.kind == "FastSocket" or not self.ib_devices:
            return [f"{name}:{address}" for _, (name, address) in sorted(self.sockets.items())]
        return [name for _, name in sorted(self.ib_devices.items())]

    def device(self, net: str, index: int) -> str:
        """The device of `NET/IB/1` or `NET/Socket/0`; "" if its list was not printed."""
        if net in ("Socket", "FastSocket"):
            return self.sockets.get(index, ("", ""))[0]
        return self.ib_devices.get(index) or self.made_of.get(index, "")

    def value(self, name: str) -> str:
        """A variable's value as printed, "" if it was not."""
        event = self.env.get(name)
        return event["value"] if event else ""

    def learn(self, event: Event) -> None:
        self.events[event.tag].append(event)
        match event.tag:
            case "bootstrap":
                self.bootstrap = self.bootstrap or (event["interface"], event["address"])
            case "using-network":
                self.kind = event["net"]
            case "net-using":
                self._devices(event["list"], event["net"] or "Socket")
            case "socket-list" if "OOB" not in event.text and "Bootstrap" not in event.text:
                self.sockets.setdefault(event.number("index"), (event["interface"], event["address"]))
            case "virtual-device":
                self.made_of[event.number("index")] = event["name"]
            case "env-set":
                self.env[event["name"]] = event
            case "channel" | "channel-loose":
                found = _USED.search(event["via"])
                if found and (use := (found[1], int(found[2]))) not in self.used:
                    self.used.append(use)

    def _devices(self, listed: str, net: str) -> None:
        before_oob = listed.split("; OOB")[0]
        for index, name, port, kind in _IB_ENTRY.findall(before_oob):
            self.ib_devices.setdefault(int(index), f"{name}:{port}/{kind}")
        for index, inner in _FUSED.findall(before_oob):
            self.ib_devices[int(index)] = "{" + " ".join(inner.split()) + "}"
        if oob := _OOB.search(listed):
            self.oob = oob[1]
        if net in ("Socket", "FastSocket"):
            for index, name, address in LISTED_SOCKET.findall(listed):
                self.sockets.setdefault(int(index), (name, address))
            old = re.match(r"([\w.@-]+):(\S+)<\d+>", listed)
            if old and (old[1], old[2]) not in self.sockets.values():
                self.sockets[len(self.sockets)] = (old[1], old[2])
        if not self.kind and (self.ib_devices or self.sockets):
            self.kind = net


def is_link_local(address: str) -> bool:
    """Whether an address is valid on one link only: fe80::/10, or 169.254/16 as on a BMC's USB port."""
    return address.lower().startswith(("fe80:", "169.254."))


def _only(found: Collection[_T]) -> _T | None:
    """The only element, None for several or none."""
    return next(iter(found)) if len(found) == 1 else None


def _ranks_of_names(paths: Sequence[str], events: Iterable[Event]) -> list[int | None]:
    """The ranks in the files' names; None where two files have the same one, or a line names another."""
    ranks = [_rank_of_name(path) for path in paths]
    kinds = Counter(
        (rank, path.rpartition("/")[2]) for rank, path in zip(ranks, paths, strict=True) if rank is not None
    )
    if any(count > 1 for count in kinds.values()):
        return [None] * len(ranks)  # of several nodes, each numbered from 0
    spoken = {(e.file, e.rank) for e in events if e.rank is not None}
    strange = {file for file, rank in spoken if file < len(ranks) and rank != ranks[file]}
    return [None if number in strange else rank for number, rank in enumerate(ranks)]


def _rank_of_name(path: str) -> int | None:
    """
    The rank in a file's name.

    >>> [_rank_of_name(name) for name in ("train_rank_3.out", "log/attempt_0/1/stderr.log", "franky1.log")]
    [3, 1, None]
    """
    *_, attempt, folder, name = ["", "", *path.split("/")]
    if attempt.startswith("attempt_") and folder.isdecimal() and name in ("stdout.log", "stderr.log"):
        return int(folder[:6])
    found = _NAMED_BY_RANK.search(name[:255])
    return int(found[1] or found[2]) if found else None


def _number_of(event: Event) -> int | None:
    """The number that begins a line about work, if scripts or Slurm print the rank there."""
    match = _NUMBERED.match(event.text) if event.tag in _OF_WORK else None
    return int(match[1] or match[2]) if match else None


class LogEvidence:
    """All files of one run."""

    def __init__(
        self,
        files: Sequence[FileInfo],
        scans: Sequence[Scan],
        run: Run | None = None,
        mismatches: Sequence[Mismatch] = (),
        recorded: Recorded | None = None,
        ended: RunEnd | None = None,
        good: Reference | None = None,
    ) -> None:
        self.files = list(files)
        self.run = run
        self.mismatches = list(mismatches)
        self.recorded = recorded or Recorded()
        self.ended = ended
        self.good = good
        self.communicators: list[Comm] = [c for s in scans for c in s.communicators]
        self.began = [scan.began for scan in scans]
        self.repeats = sum((scan.repeats for scan in scans), Counter[str]())
        events = [e for s in scans for e in s.events]
        own = [_OF_ONE_RANK.fullmatch(info.path) for info in self.files]
        named = _ranks_of_names([info.path for info in self.files], events)
        self._file_ranks = [int(one[1]) if one else rank for one, rank in zip(own, named, strict=True)]
        self._labels(events)
        self.events = [self._attributed(e) for e in events]
        self.clues = [replace(s, event=self._attributed(s.event)) for scan in scans for s in scan.clues]
        self.is_dated = all(s.event.time_s is not None for s in self.clues)
        self.by_tag = grouped((e.tag, e) for e in self.events)
        self._by_file = grouped((e.file, e) for e in self.events)
        self.hosts: dict[str, HostNetworks] = {}
        self._hosts()
        self._files(scans)

    # Reading it.

    def all(self, *tags: str, has: str = "", lacks: str = "", **fields: str) -> list[Event]:
        """Events of these tags in order; `has`, `lacks`: patterns of the line, `fields`: of whole fields."""
        found = [e for tag in tags if tag in self.by_tag for e in self.by_tag[tag]]
        if not found:  # nearly always
            return found
        if has:
            found = [e for e in found if re.search(has, e.text)]
        if lacks:
            found = [e for e in found if not re.search(lacks, e.text)]
        for name, pattern in fields.items():
            found = [e for e in found if re.fullmatch(pattern, e[name])]
        return sorted(found, key=lambda e: e.place)

    def has(self, *tags: str) -> bool:
        return any(self.by_tag.get(tag) for tag in tags)

    def at(self, file: int, line: int, below: int = 0) -> Iterator[Event]:
        """The events of a line, and of up to `below` lines after it."""
        events = self._by_file.get(file, [])
        for place in range(bisect_left(events, line, key=lambda e: e.line), len(events)):
            if events[place].line > line + below:
                return
            yield events[place]

    def tags_at(self, event: Event, below: int = 0) -> set[str]:
        """The tags on an event's line, and on up to `below` lines after it."""
        return {e.tag for e in self.at(event.file, event.line, below)}

    def nodes_of_files(self, ranks: Collection[int]) -> tuple[str, ...]:
        """The nodes of these ranks in the names of a run's files."""
        names = [one for info in self.files if (one := _OF_ONE_RANK.fullmatch(info.path))]
        return tuple(dict.fromkeys(one[2] for one in names if int(one[1]) in ranks))

    def last_words(self, rank: int | None) -> Event | None:
        """The last line of a rank whose output is a file of its own; None without such a file."""
        for number, (info, own) in enumerate(zip(self.files, self._file_ranks, strict=False)):
            if own is not None and own == rank and info.last_line:
                text, line = info.last_line, info.last_line_number
                return Event("last-words", number, line, text, host=info.host, rank=rank)
        return None

    @property
    def spans_hosts(self) -> bool:
        """Whether the log itself shows more than one host in the job."""
        return (
            len(self.hosts) > 1
            or self.nodes_wanted() > 1
            or any(e.number("nodes") > 1 for e in self.all("topology"))
            or any("NET/" in e["via"] for e in self.all("channel"))
        )

    def nodes_wanted(self, fields: Sequence[str] = ("nodes", "nodes2", "nodes3", "nodes4", "nodes5")) -> int:
        """The largest number of nodes in a command or launcher configuration, 0 without any."""
        return max((e.number(name) for e in self.all("min-nodes") for name in fields), default=0)

    @cached_property
    def outcome(self) -> Outcome:
        """How the run continued after a line, and the reason of its end."""
        return Outcome(self)

    # Building it.

    def _labels(self, events: Iterable[Event]) -> None:
        """The host and rank of a launcher's label, if it is always the same."""
        self._ranks: dict[tuple[str, str, str], set[int]] = defaultdict(set)
        for comm in self.communicators:
            for device in (comm.device, ""):
                self._ranks[comm.host, comm.pid, device].add(comm.rank)
        self._label_hosts: dict[tuple[int, str], set[str]] = defaultdict(set)
        self._label_ranks: dict[tuple[int, str], set[int]] = defaultdict(set)
        self._numbers: dict[int, set[int]] = defaultdict(set)
        """Numbers that begin lines of a file, while they may be ranks."""
        self._ended: dict[tuple[int, str], set[int]] = defaultdict(set)
        """The ranks of processes in the launcher's table of those that ended."""
        spoken: dict[int, set[int]] = defaultdict(set)
        for event in events:
            if event.tag == "exit" and event.rank is not None:
                self._ended[event.file, event["pid"]].add(event.rank)
                self._ended[event.file, f"local {event['local']}"].add(event.rank)
            if (number := _number_of(event)) is not None:
                self._numbers[event.file].add(number)
            if event.rank is not None:
                spoken[event.file].add(event.rank if number in (None, event.rank) else -1)
            if not event.label:
                continue
            key = event.file, event.label
            if event.host:
                self._label_hosts[key].add(event.host)
            if event.pid:
                self._label_ranks[key] |= self._ranks.get((event.host, event.pid, ""), set())
            if event.tag == "global-ranks" and event["ranks"].strip().isdigit():
                self._label_ranks[key].add(event.number("ranks"))
            elif event.tag == "exit" and event.rank is not None:
                self._label_ranks[key].add(event.rank)

        for file, numbers in self._numbers.items():
            if not spoken[file] or not spoken[file] <= numbers or numbers != set(range(len(numbers))):
                numbers.clear()

    def _attributed(self, event: Event) -> Event:
        key = event.file, event.label
        host = event.host or (event.label and _only(self._label_hosts.get(key, ()))) or ""
        rank = event.rank
        if rank is None and event.pid:
            process = event.host, event.pid
            rank = _only(self._ranks.get((*process, event.device), ()))
            rank = _only(self._ranks.get((*process, ""), ())) if rank is None else rank
        if rank is None and event.label:
            rank = _only(self._label_ranks.get(key, ()))
        if rank is None and event["pid"]:
            keys = [event["pid"], *([f"local {event['local']}"] if event["local"] else [])]
            rank = _only(next(filter(None, (self._ended.get((event.file, key)) for key in keys)), ()))
        if rank is None and (number := _number_of(event)) in self._numbers.get(event.file, ()):
            rank = number
        if rank is None and event.file < len(self._file_ranks):
            rank = self._file_ranks[event.file]
        return replace(event, host=host, rank=rank) if (host, rank) != (event.host, event.rank) else event

    def host(self, event: Event) -> HostNetworks:
        """The host of an event; files without host names count as one host each."""
        name = event.host or (f"file{event.file}" if len(self.files) > 1 else "")
        if name not in self.hosts:
            self.hosts[name] = HostNetworks(name)
        return self.hosts[name]

    def _hosts(self) -> None:
        for event in self.events:
            if event.host or event.tag in SETTING_UP:  # those also count without a host name in front
                self.host(event).learn(event)
        nameless = self.hosts.get("")
        if nameless and len(self.hosts) > 1:
            for host in self.hosts.values():
                for name, event in nameless.env.items():
                    host.env.setdefault(name, event)
            if not (nameless.kind or nameless.bootstrap or nameless.sockets or nameless.ib_devices):
                del self.hosts[""]

    def _files(self, scans: Sequence[Scan]) -> None:
        for number, info in enumerate(self.files):
            events = self._by_file.get(number, [])
            comms = scans[number].communicators if number < len(scans) else []
            process = _only({(e.host, e.pid) for e in events if e.host and e.pid})
            ranks = {c.rank for c in comms} or {e.rank for e in events if e.rank is not None}
            info.host = _only({e.host for e in events if e.host}) or info.host
            info.pid = process[1] if process else info.pid
            info.rank = info.rank if len(ranks) != 1 else _only(ranks)
            tags = {e.tag for e in events}
            if comms:
                info.init_complete = all(c.complete for c in comms)
            elif tags & {"init-timings", "bootstrap", "using-network"}:
                info.init_complete = "init-timings" in tags
