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


def went_on(story: Story) -> bool:
    """Whether ranks completed their communicators or trained: what came before was no failure."""
    steps = max(story.repeats.get(tag, 0) for tag in ("step", "loss"))
    return story.init_complete or story.has("nccl-tests-row") or steps > 1


def busy(story: Story) -> list[Event]:
    """Lines that say a rank was tokenizing, downloading, saving, evaluating."""
    return story.all("main-first", "busy-word")


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
)


def of_the_web(event: Event) -> bool:
    """Whether a line is about a web service (a hub, a tracker, an index), not about the job's own nodes."""
    return bool(_WEB.search(_PATH.sub("", event.text)))


def made_do(event: Event) -> bool:
    """Whether the line itself says that the program goes on without."""
    return bool(_MADE_DO.search(event.text))
