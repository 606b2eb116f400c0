"""What is said only when nothing else is found: consequences, and logs that end too early."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup.logs.causes.signs import (
    CONSEQUENCE_TAGS,
    failure,
    hang,
    is_unwinding,
    made_do,
    of_the_web,
    went_on,
)
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_NAMED_ELSEWHERE = {
    "ib-open-failed",
    "ib-library-missing",
    "plugin-init-failed",
    "sharp-off",
    "async-event",
    "gdr-disabled",
    "cumem-host",
}
"""Warnings another cause reads; alone they are no failure without detail."""

_WEAK = {
    "work",
    "rdzv-connection",
    "gloo-recv-timeout",
    "work-aborted",
    "tcpstore-retry",
    "pipe-broken",
    "keepalive-failed",
}

_GONE = re.compile(r"was previously responsive|previously established|but handshake failed")
"""What libfabric's EFA provider and rdma-core say of a peer that answered once, or whose process is gone."""

_FAILED_CALL = re.compile(r"Call to (\w+) failed with error ([^,;.\n]{1,80})")


@cause("peer-died-first", passing=True)
def peer_died_first(story: Story) -> Iterator[Cause]:
    """
    This log holds only the consequence of another process ending.

    Why: a rank, the agent that hosts the store, a coordinator or a worker ended first, and these
    lines follow.

    Fix: the log of the peer named here, its earliest line; then its host's kernel log.

    In logs: `Connection closed by remote peer`, `Connection reset by peer`, `num_nodes_waiting` tracebacks.
    """
    zero = [e for e in story.all("ddp-same-model") if e["theirs"] == "0"]
    said = [
        e
        for e in story.all(*(CONSEQUENCE_TAGS - _WEAK))
        if not _on_shutdown(e) and not (e.tag == "reset-by-peer" and story.overcome(e))
    ]
    said = [
        e for e in said if e.tag != "store-get" or re.search(r"(?i)reset|closed|broken|refused", e["reason"])
    ]
    said = [e for e in said if not (made_do(e) or of_the_web(e))]
    said += [e for e in story.all("ofi-request") if _GONE.search(e.text)]
    weak = [e for e in story.all("keepalive-failed", "pipe-broken") if not made_do(e)]
    if {e.tag for e in said} == {"ray-died"} and not (zero or weak) and _is_a_wrapping(story, said):
        return
    proxied = [e for e in said if e.tag != "proxy-failed"]
    if not (zero or said or weak):
        return
    if went_on(story) and not (proxied or zero) and failure(story) is None:
        return
    ended_well = went_on(story) or story.has("unclosed-group")
    if ended_well and {e.tag for e in said} <= {"recv-vector"} and not story.has("exit", "exception"):
        return
    if ended_well and not zero and failure(story) is None and all(map(_of_a_store, [*said, *weak])):
        return
    peers = sorted({e["peer"] or e["address"] for e in said if e["peer"] or e["address"]})
    own = {a for h in story.hosts.values() for _, a in h.sockets.values()} | set(story.hosts)
    others = [p for p in peers if p.split("<")[0] not in own or len(story.hosts) > 1]
    text = "a peer ended first"
    if others:
        text += f" ({', '.join(others[:3])})"
    text += "; this log holds only what followed: read that peer's log"
    yield seen(
        [*zero, *(proxied or said), *weak], text, "medium" if zero or proxied or weak else "low", ranks=()
    )


def _on_shutdown(event: Event) -> bool:
    """torch's agents and heartbeats print these after a job that ended well (5 of 28 sound runs measured)."""
    return bool(
        re.search(r"sendBytes failed.*HeartbeatMonitor|HeartbeatMonitor|Heartbeat monitor", event.text)
    ) or (event.tag == "recv-vector" and "TCPStore" in event.text and "[W" in event.text)


def _is_a_wrapping(story: Story, died: list[Event]) -> bool:
    """Whether a worker's end, as Ray or an engine tells it, is that of an NCCL call that failed above it."""
    category = story.all("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage", "cuda-failure")
    waits = story.all("work", "watchdog-stuck")
    return bool(category) or any(all(_after(e, w) for e in died) for w in waits[:1])


def _of_a_store(event: Event) -> bool:
    """Whether a line is a warning about torch's store: rank 0 holds it, and need not be the last to end."""
    return bool(
        re.search(
            r"flag on TCPStore|TCPStore\S{0,40}\] \[c10d\]"
            r"|(?:sendBytes|recvBytes|recvV\w+)(?: failed on SocketImpl| at \S{1,80}Utils\.hpp)",
            event.text,
        )
    )


@cause("nccl-error-without-detail", passing=True)
def nccl_error_without_detail(story: Story) -> Iterator[Cause]:
    """
    NCCL or CUDA failed and no line says why.

    Why: without NCCL_DEBUG only the category is printed.

    Fix: run again with `NCCL_DEBUG=INFO` on all ranks and compare host with host.

    In logs: `unhandled system error` without `Last error:`, a lone `Cuda failure`.
    """
    category = story.all("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage")
    cuda = story.all("cuda-failure", "illegal-access", "peer-access")
    warned = [
        e for e in story.all("warn") if not _harmless_warning(e) and not story.tags_at(e) & _NAMED_ELSEWHERE
    ]
    vague = story.all(
        "proxy-failed",
        "ofi-request",
        "wrong-socket",
        "nccl-calloc",
        "no-algorithm",
        "mnnvl-failed",
        "net-not-found",
    )
    other = list(story.all("wc-error"))
    codes = [e for e in story.all("unwind") if is_unwinding(e) and e["code"] in ("1", "2", "3", "4", "5")]
    if story.has("sharp-off") and not any("group." in e["source"] for e in codes):
        codes = []  # NCCL unwinds from the refused offer and goes on; an error of the call passes its group
    if story.has("ib-open-failed") and not (cuda or other or story.init_complete):
        return  # the device that could not be opened is the detail
    if category or cuda or warned or vague or other or codes:
        worst = (cuda or other or vague or warned or category or codes)[0]
        detail = worst["text"] or ""
        text = "NCCL or CUDA failed and no line says why"
        if worst.tag == "cuda-failure":
            text = f"a CUDA call inside NCCL failed ({detail}) and no line says why"
        elif call := next(filter(None, (_FAILED_CALL.search(e["text"]) for e in warned)), None):
            text = f"NCCL's call to {call[1]} failed ({call[2]}) and no line says why"
        timed_out = story.all("work")[:1]
        late = timed_out and not cuda and all(_after(e, timed_out[0]) for e in category)
        sure = bool(category or cuda) and not late  # the watchdog aborts what then fails
        telling = any(
            re.search(r"(?i)fail|error|abort|invalid|unable|could not|not found|no such", e["text"])
            for e in warned
        )
        mild = not (category or cuda or vague or other or codes) and (went_on(story) or not telling)
        yield seen(
            [*category, *cuda, *other, *vague, *warned, *codes],
            text,
            "medium" if sure else "low",
            severity="warning" if mild else None,
        )


def _after(event: Event, other: Event) -> bool:
    return event.file == other.file and event.line > other.line


def _harmless_warning(event: Event) -> bool:
    return bool(
        re.search(
            r"libibverbs|No device found|Could not find: lib|plugin|Missing \"iommu=pt\"|iommu|NUMA"
            r"|affinity|Failed to find CUDA library|NCCL_\w+ value|deprecated"
            r"|Could not enable P2P|NCCL_THREADS|User asked for|dlvsym|dlsym|gdrwrap|GDRCOPY"
            r"|FastSocket|incoming CPU|Maximum retry|hugepages|NET/OFI (?:Using|Selected)",
            event.text,
            re.IGNORECASE,
        )
    )


@cause("init-never-finished")
def init_never_finished(story: Story) -> Iterator[Cause]:
    """
    Some ranks started init and never completed it, and the log ends.

    Why: a peer never came, or the first connections between ranks go nowhere; the stage where it
    stops tells which.

    Fix: the logs of all ranks with NCCL_DEBUG=INFO; stacks of those that wait; stop after `via P2P` points to
    ACS or IOMMU, after `via NET` to the peer or the fabric, before Init START to the bootstrap network.

    In logs: `Init START` without `Init COMPLETE`.
    """
    begun = [c for c in story.communicators if c.started and not c.completed]
    boot = story.all("bootstrap", "using-network")
    if not boot and not begun:
        return
    if story.init_complete and not begun:
        return
    if any(c.completed for c in story.communicators) and not hang(story):
        return
    stood = hang(story)
    failed = failure(story)
    if stood is None and failed is not None:
        return
    events: list[Event | None] = [*_last_stage(story), stood]
    ranks = [c.rank for c in begun]
    text = f"communicator init was begun and not completed; it stops {_stage(story)}"
    wanted = max((c.nranks for c in begun), default=0)
    absent = sorted(set(range(min(wanted, 100_000))) - {c.rank for c in story.communicators})
    if absent and len(absent) < wanted:
        text += f"; of {wanted} ranks {story.show_ranks(absent[:8])} left no Init line"
    yield seen(
        events,
        text,
        "medium" if stood else "low",
        severity=None if stood else "note",
        ranks=ranks or None,
    )


def _stage(story: Story) -> str:
    vias = [e["via"] for e in story.all("channel")]
    if any("NET/" in v for v in vias):
        return "while channels over the network are connected (peer or fabric)"
    if vias:
        return "after channels over P2P or shared memory (ACS, IOMMU)"
    if any(c.started for c in story.communicators):
        return "after Init START, before the topology exchange (a peer is missing or cannot be reached)"
    return "before Init START, in the bootstrap (a peer is missing or its address cannot be reached)"


def _last_stage(story: Story) -> list[Event]:
    """The last set-up line of each file or process."""
    last: dict[tuple[int, str], Event] = {}
    for event in story.all("bootstrap", "using-network", "init", "channel", "connected"):
        last[event.file, event.pid] = event
    return list(last.values())[:4]
