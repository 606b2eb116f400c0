"""Causes that one line proves: rows, whose wordings are in the table of tags."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ringup.logs.causes.symptoms import first_value, of_the_web
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.outcome import made_do
from ringup.logs.rule import Confidence, Found, cause, report
from ringup.units import first_of_each


@dataclass(frozen=True)
class Row:
    """A cause, the tags that prove it and its text; `{field}` is the first value of a tag's field."""

    name: str
    tags: str
    text: str
    has: str = ""
    lacks: str = ""
    confidence: Confidence = "high"
    unless: str = ""
    """More specific tags."""
    beside: str = ""
    """Tags of lines that are also quoted."""
    needs: bool = False
    """Whether there must be one of those."""
    unsure: str = ""
    """Words, between `|`, of lines that alone do not make it certain."""
    repeats: str = ""
    """Words of lines that, below another warning of NCCL in their file, repeat that failure."""
    until: str = ""
    """A tag whose later line, with the same `pod` and `image` if both are printed, ends it."""


_MEDIUM: Confidence = "medium"

ROWS = (
    # GPUs and the links between them.
    Row("imex-not-working", "mnnvl-failed", "NVLink reaches other nodes, but IMEX does not let NCCL use it"),
    Row("peer-mappings-exhausted", "peers-exhausted", "a GPU cannot map the memory of one more GPU"),
    Row("no-gpu-visible", "no-cuda", "the program needs a GPU, and its host or its build of torch has none",
        unless="gpu-lost xid driver-library no-device"),
    Row("driver-library-mismatch", "driver-library",
        "the driver's kernel module and user library are of different releases"),
    # The launch line.
    Row("local-rank-argument-rejected", "local-rank-argument",
        "the script refuses the local-rank argument its launcher passes"),
    Row("rendezvous-variables-missing", "variable-unset",
        "{variable} is not set: the script runs without a launcher, or its launcher does not pass it on"),
    Row("port-privileged", "listen-denied", "only root may listen on port {port}: it is below 1024"),
    Row("not-enough-slots", "no-slots", "more slots are wanted than the host list, job or cluster has",
        unsure="generic resource", until="job-allocated"),
    Row("placement-not-possible", "no-placement", "Ray has no room for what a placement asks for",
        lacks="'node:(?!__)[A-Za-z]", unsure="startup timed out|'node:", until="job-allocated"),
    Row("job-step-not-launched", "step-unlaunched", "the program was not started on a node: {why}"),
    Row("sidecar-intercepts-ranks", "sidecar", "the proxy of a service mesh answers in a rank's place",
        beside="sidecar-there"),
    Row("ssh-connection-refused", "ssh-connect", "nothing listens on port {port} of {host}",
        has="Connection refused"),
    Row("ssh-timeout", "ssh-connect", "{host} does not answer on port {port}", has="timed out"),
    Row("ssh-no-route", "ssh-connect", "there is no route to {host}", has="No route|unreachable"),
    Row("pod-not-scheduled", "pod-unscheduled", "Kubernetes finds no node for a pod: {why}",
        until="pod-assigned"),
    Row("container-not-started", "container-unstarted", "a container does not start: {image} {why}",
        until="container-started"),
    Row("container-restarts", "container-restarts", "a container is restarted again and again; see its log",
        confidence=_MEDIUM),
    # The program.
    Row("parameter-ready-twice", "ddp-ready-twice", "a parameter's gradient came twice in one iteration"),
    Row("process-group-started-twice", "group-twice", "the process starts its default process group twice"),
    Row("nccl-called-wrongly", "nccl-misused", "the program calls NCCL in a way that it refuses: {said}",
        repeats="before the previous operation returned"),
    Row("build-lock-left", "build-lock", "a rank waits for the lock {path} of a build that is gone"),
    Row("communicator-left-over", "group-left", "the server holds the communicator of an earlier client"),
    # Resources.
    Row("process-limit-reached", "no-more-threads", "a process may start no more threads or processes"),
    Row("host-memory-refused", "no-host-memory", "a process got no host memory",
        lacks=r"(?i)ibv_|mlx5|efadv|/dev/shm|unable to mmap"),
    Row("disk-full", "disk-full disk-failed", "a file cannot be written: the disk or the quota is full",
        lacks=r"^ringup: |nccl-|posix_fallocate|torch_\d|shared memory|\bshm|inotify|namespace: |cgroup/",
        unless="semaphore", unsure="StreamWriter failed"),
    # Versions, settings, addresses.
    Row("nccl-library-too-old", "nccl-too-old", "the NCCL that is loaded is older than the program needs",
        beside="installed-nccl"),
    Row("two-nccl-libraries", "nccl-symbol", "the NCCL that is loaded has no {symbol}: it is another one",
        beside="installed-nccl"),
    Row("network-plugin-too-old", "plugin-register", "the network plugin cannot register this kind of memory",
        confidence=_MEDIUM),
    Row("kernel-cannot-pin-memory", "ib-no-memory",
        "memory cannot be pinned for RDMA although memlock is unlimited",
        has="Cannot allocate|Resource temporarily", confidence=_MEDIUM, beside="memlock-unlimited",
        needs=True),
    Row("nccl-setting-invalid", "bad-setting no-algorithm", "NCCL refuses: {said}", confidence=_MEDIUM),
    Row("address-families-differ", "family-differs", "one rank has an IPv4 address, another an IPv6 one"),
    Row("path-mtu-black-hole", "mtu-too-large", "packets of full size do not pass", confidence=_MEDIUM),
)  # fmt: skip


def _finder(row: Row) -> Callable[[LogEvidence], Found]:
    def find(log: LogEvidence) -> Found:
        if (row.unless and log.has(*row.unless.split())) or (row.needs and not log.has(row.beside)):
            return None
        found = log.all(*row.tags.split(), has=row.has, lacks=row.lacks)
        if not found:
            return None
        ends = log.all(row.until) if row.until else []
        found = [e for e in found if not (made_do(e) or any(_ends(end, e) for end in ends))]
        above = first_of_each((e.file, e.line) for e in log.all("warn")) if row.repeats else {}
        found = [e for e in found if row.repeats not in e.text or above.get(e.file, e.line) >= e.line]
        if row.until:  # what the kubelet repeats lasts: `4m (x93 over 24m)`
            found.sort(key=lambda e: not re.search(r"\(x\d{1,6} over ", e.text))
        if row.tags == "step-unlaunched":  # a plugin's own reason, then srun's report of it
            found.sort(key=lambda e: bool(e["why2"]))
        if row.tags == "ssh-connect":
            found = [e for e in found if not of_the_web(e)]
        names = re.findall(r"\{(\w+)\}", row.text)
        fields = {
            name: first_value(found, name, *(f"{name}{n}" for n in range(2, 8)))[:120] for name in names
        }
        text = " ".join(row.text.format(**fields).split()).rstrip(": ")
        # A row of pods has a state but not its reason, which may be temporary.
        said = not (row.until and names) or any(fields.values())
        said = said and not (
            row.unsure and all(any(one in e.text for one in row.unsure.split("|")) for e in found)
        )
        beside = log.all(row.beside) if row.beside else []
        return report([*found, *beside], text, row.confidence if said else _MEDIUM)

    return find


def _ends(end: Event, event: Event) -> bool:
    """Whether a line reports the end of another line's state; events are not always listed by time."""
    same = [end[key] == event[key] for key in ("pod", "image") if end[key] and event[key]]
    return end.file == event.file and all(same) and (end.line > event.line or bool(same))


for _row in ROWS:
    cause(_row.name, overcome=None)(_finder(_row))


@cause("path-mtu-black-hole", overcome=None, fallback=True)
def large_pings_lost(log: LogEvidence) -> Found:
    """No packet of 1,400 bytes or more comes back from an address, and smaller ones do."""
    lost, came = {}, set()
    for ping, answer in pairwise(log.all("ping")):
        if ping["to"] and answer["got"]:
            if answer.number("got"):
                came.add(ping["to"])
            elif ping.number("size") >= 1400:
                lost[ping["to"]] = ping, answer
    pings = next((lost[to] for to in lost if to in came), ())
    text = f"{first_value(pings, 'size')}-byte packets to {first_value(pings, 'to')} vanish, small ones pass"
    return report(pings, text, "medium")
