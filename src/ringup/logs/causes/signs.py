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
    "gloo-no-address",
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


def failure(story: Story) -> Event | None:
    """The first line that says something went wrong, whatever it was; None in a sound log."""
    for event in story.all(*FAILED):
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
    return story.init_complete or story.has("nccl-tests-row") or story.repeats.get("step", 0) > 1


def busy(story: Story) -> list[Event]:
    """Lines that say a rank was tokenizing, downloading, saving, evaluating."""
    return story.all("main-first", "busy-word")


def nodes_wanted(story: Story) -> int:
    """The most nodes any command or launcher configuration asks for, 0 where none says."""
    names = ("nodes", "nodes2", "nodes3", "nodes4", "nodes5")
    return max((e.number(n) for e in story.all("min-nodes") for n in names), default=0)
