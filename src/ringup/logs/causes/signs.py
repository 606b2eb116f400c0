"""Questions several causes ask of a story: did it fail, did it hang, did it go on."""

from __future__ import annotations

import re

from ringup.logs.lines import Event
from ringup.logs.story import Story

FAILED = (
    "exit",
    "exit-signal",
    "exception",
    "nccl-connect",
    "nccl-bind",
    "nccl-system",
    "nccl-internal",
    "nccl-remote",
    "nccl-cuda",
    "nccl-usage",
    "wc-error",
    "proxy-failed",
    "closed-by-peer",
    "client-timeout",
    "work",
    "child-failed",
    "init-stopped",
    "rdzv-timeout",
    "store-barrier",
    "eaddrinuse",
    "modify-qp",
    "unwind",
    "data-truncated",
    "bootstrap-truncated",
    "gloo-mesh",
    "gloo-connect",
    "cuda-failure",
    "root-info",
    "root-count",
    "address-family",
    "rank-checked-in",
    "no-socket-interface",
    "no-common-subnet",
    "gloo-no-address",
    "gloo-name-not-here",
    "shm-failed",
    "gpu-oom",
)

CONSEQUENCE_TAGS = frozenset(
    {
        "horovod-down",
        "gloo-closed",
        "gloo-reset",
        "recv-vector",
        "closed-by-peer",
        "nccl-reset",
        "nccl-remote",
        "pipe-broken",
        "reset-by-peer",
        "keepalive-failed",
        "proxy-failed",
        "work-aborted",
        "store-get",
        "num-nodes-waiting",
        "ray-died",
        "jax-died",
        "monitored-victim",
        "rdzv-connection",
        "rdzv-closed",
        "work",
        "work-async",
        "gloo-recv-timeout",
        "tcpstore-retry",
    }
)
"""What a rank prints because another one ended."""

NOT_EXPLAINING = frozenset(
    {
        "exception",
        "traceback",
        "frame",
        "world-size",
        "busy-word",
        "step",
        "loss",
        "progress",
        "env-set",
        "unwind",
        "nccl-version",
        "main-first",
        "spawn-call",
        "epoch-done",
        "exit",
        "visible-devices",
        "uneven-word",
        "command",
        "no-ipv6",
        "rdzv-create",
        "elastic-exit-barrier",
        "disk-full",
        "file-init",
        "node-rank",
        "min-nodes",
        "warn",
    }
)
"""Tags that do not tell what an exception on their line was."""

UNBACKED = "nonexistent physical address"
"""BUS_ADRERR, as UCX's handler words it: a mapped page could not be had, which is what a full tmpfs does."""


def is_unwinding(event: Event) -> bool:
    """
    Whether a `file.cc:line -> code` line tells of a failed call of the user's.

    Probing for plugins and sysfs paths prints such lines too, without reaching the upper layers.
    """
    return (
        event["code"] not in ("0", "7")
        and bool(
            re.search(
                r"(?:init|group|bootstrap|enqueue|transport|proxy|paths|topo|nvls|p2p|shm|net)\.(?:cc|cu)$",
                event["source"],
            )
        )
        and event["source"] not in ("net.cc", "include/net.h")
    )


HARMLESS_XID = {13, 31, 43, 45}
"""Codes that a faulty program raises, not faulty hardware (NVIDIA's Xid catalogue)."""


def xid_codes(story: Story) -> list[int]:
    """The driver's fault codes that were printed, each once, in order."""
    found = {e["code"] or e["code2"] for e in story.all("xid", "sxid")}
    return sorted(int(c) for c in found if c and len(c) < 6)


def is_of_a_peer(event: Event) -> bool:
    """Whether a bad device number is one a peer sent, not this rank's own."""
    return "p2p.cc" in event.text and "WARN" in event.text


def failure(story: Story, *apart: str) -> Event | None:
    """The first line that says something went wrong, `apart` from these tags; None in a sound log."""
    for event in story.all(*(tag for tag in FAILED if tag not in apart)):
        if event.tag == "exit" and event["code"] == "0":
            continue
        if event.tag == "unwind" and not is_unwinding(event):
            continue
        if event.tag == "nccl-connect" and "retrying" in event.text:
            continue
        return event
    return None


def hang(story: Story) -> Event | None:
    """A line that says the job stood still or was ended for it."""
    return story.first(
        "init-stopped", "work", "watchdog-stuck", "rdzv-timeout", "store-barrier", "client-timeout"
    )


def trained(story: Story) -> bool:
    """Whether steps went by: data did flow."""
    return max(story.repeats.get(tag, 0) for tag in ("step", "loss")) > 1


def went_on(story: Story) -> bool:
    """Whether ranks completed their communicators or trained: what came before was no failure."""
    return story.init_complete or story.has("nccl-tests-row") or trained(story)


def busy(story: Story) -> list[Event]:
    """Lines that say a rank was tokenizing, downloading, saving, evaluating."""
    return story.all("main-first", "busy-word")


def bars_at_a_limit(story: Story) -> list[Event]:
    """Progress bars that stood at a time-out's limit, not yet full, when they were last drawn."""
    limits = _limits_s(story)
    waited = {(e.file, e.line) for e in story.all("monitored-victim", "wait-poll", "store-get", "work")}
    return [
        e
        for e in story.all("progress")
        if _near_limit(e, limits)
        or ((e.file, e.line) in waited and _PREPARES.match(e["what"]) and e.number("percent") < 100)
    ]


_PREPARES = re.compile(r"(?i)\W*(?:map|filter|tokeni|preprocess|generat|download|convert|group|pack|prepar)")
"""What one rank does before others may go on; a bar on a waiter's own line was being drawn just then."""


def _limits_s(story: Story) -> set[float]:
    """Time-outs in force: those printed, else torch's defaults (NCCL 10 min, everything 30 min)."""
    printed = {e.number("timeout") / 1000 for e in story.all("work") if e.number("timeout")}
    return printed or {600.0, 1800.0, 3600.0}


def _near_limit(event: Event, limits: set[float]) -> bool:
    parts = [int(p) for p in event["elapsed"].split(":") if p.isdigit()]
    elapsed = sum(p * 60**n for n, p in enumerate(reversed(parts)))
    return event.number("percent") < 100 and any(0.93 * s <= elapsed <= 1.25 * s for s in limits)


def refused_semaphores(story: Story) -> list[Event]:
    """Exceptions that say `No space left` below the call that makes a lock in /dev/shm."""
    made = {(e.file, e.line + below) for e in story.all("semaphore") for below in range(4)}
    if not made:
        return []
    full = [e for e in story.all("disk-full") if (e.file, e.line) in made]
    lines = {(e.file, e.line) for e in full}
    return [e for e in story.all("exception") if (e.file, e.line) in lines]


def nodes_wanted(story: Story) -> int:
    """The most nodes any command or launcher configuration asks for, 0 where none says."""
    names = ("nodes", "nodes2", "nodes3", "nodes4", "nodes5")
    return max((e.number(n) for e in story.all("min-nodes") for n in names), default=0)


_WEB = re.compile(
    r"(?i)https?:|HTTPS?Connection|urllib3|requests\.exceptions|aiohttp|hugging|hf_hub|wandb|modelscope|mlflow"
    r"|clearml|comet|\bpip\b|conda|registry|github|NameResolutionError|MaxRetryError|\b40[13]\b"
)
_PATH = re.compile(r"(?<![:/\w.])(?:/[\w.+@-]{1,80}){2,30}")
"""A file's path: that it lies under `conda` or `github` says nothing of the web."""

_MADE_DO = re.compile(
    r"(?i)\bretry|skipping|skipped|falling back|fall back|attempting to recover|recovering|optional"
    r"|not installed|ignor(?:ed|ing)|could not import|write error: Broken pipe"
    r"|trying (?:the )?(?:next|another)|using (?:port )?\d{2,5} instead|already in use, using"
)


def of_the_web(event: Event) -> bool:
    """Whether a line is about a web service (a hub, a tracker, an index), not about the job's own nodes."""
    return bool(_WEB.search(_PATH.sub("", event.text)))


def made_do(event: Event) -> bool:
    """Whether the line itself says that the program goes on without."""
    return bool(_MADE_DO.search(event.text))
