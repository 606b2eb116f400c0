"""Causes that are reported only if nothing else is found: consequences, and logs that end too early."""

from __future__ import annotations

import re
from dataclasses import replace

from ringup.addresses import is_loopback
from ringup.logs.causes.symptoms import broken_kernels, ended_as, of_the_web
from ringup.logs.evidence import LogEvidence
from ringup.logs.forms import Clue
from ringup.logs.lines import Event, ranks_of
from ringup.logs.outcome import is_teardown, is_unwinding, made_do
from ringup.logs.patterns import OF_ROLE
from ringup.logs.patterns.forms import HARMLESS
from ringup.logs.rule import Confidence, Found, cause, report
from ringup.rules import Fix
from ringup.units import ranges, show_ranks

_GONE = r"was previously responsive|previously established|but handshake failed"
"""Messages of libfabric's EFA provider and rdma-core about a peer that was lost after a first answer."""

_MAY_BE_ALIVE = {"recv-vector", "store-get", "keepalive-failed", "pipe-broken"}
"""A proxy, a firewall or a late start also causes these: no process need have ended."""
_OF_ANY_END = _MAY_BE_ALIVE | {"reset-by-peer", "ray-died"}
"""Messages of any program about any other's end, without its name and its reason."""

_FAILED_CALL = re.compile(r"Call to (\w+) failed with error ([^,;.\n]{1,80})")


_ABOVE_AN_END = 60
"""Lines of the ranks that lost one, above the line of their launcher on its end."""


@cause("peer-died-first", overcome=None, ending=True)
def peer_died_first(log: LogEvidence) -> Found:
    """
    This log holds only the consequence of another process ending.

    Why: a rank, the agent that hosts the store, a coordinator or a worker ended first, and these
    lines follow.
    Fix: read the log of the peer named here, from its earliest error; then its host's kernel log.
    In logs: `Connection closed by remote peer`, `Connection reset by peer`, `num_nodes_waiting` tracebacks.
    """
    zero = log.all("ddp-same-model", theirs="0")
    lost = log.all(*(tag for tag in OF_ROLE["consequence"] if tag not in OF_ROLE["weak"]))
    lost = [e for e in lost if not (made_do(e) or of_the_web(e) or log.outcome.overcome(e))]
    lost = [e for e in lost if not ((is_teardown(e) and log.outcome.ended_well) or log.outcome.closes(e))]
    # An attempt after which another worked took its peers along.
    passed = [e for e in log.all("exit") if log.outcome.overcome(e)]
    after = [(x.file, range(x.line - _ABOVE_AN_END, x.line)) for x in passed]
    lost = [e for e in lost if not any(e.file == file and e.line in lines for file, lines in after)]
    lost = [e for e in lost if e.tag != "store-get" or not re.search(r"(?i)time", e["reason"])]
    lost = [e for e in lost if not any(x["thread"] for x in log.at(e.file, e.line))]
    lost = [e for e in lost if not any(_after(r, e) and r.line - e.line < 4 for r in log.all("ray-retried"))]
    # A peer that has ended closes its connections at once: who waits in vain waits for one that lives.
    late = log.all("gloo-recv-timeout")
    lost = [e for e in lost if not (e.tag.startswith("gloo-") and any(_after(e, w) for w in late))]
    if log.has("jax-register"):  # the title of a call in which a process waits for the others
        lost = [e for e in lost if e.tag != "jax-died" or "Terminating process because" not in e.text]
    lost += log.all("ofi-request", has=_GONE)
    weak = log.all("keepalive-failed", "pipe-broken")
    weak = [e for e in weak if not (made_do(e) or (is_teardown(e) and log.outcome.ended_well))]
    if not (lost or zero or log.outcome.stopped) and all(map(is_teardown, weak)):
        return None
    if {e.tag for e in lost} == {"ray-died"} and not (zero or weak):
        # A worker's end, as Ray or an engine reports it, is that of a failed NCCL call above it.
        failed = log.has("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage", "cuda-failure")
        if failed or any(all(_after(e, w) for e in lost) for w in log.all("work", "watchdog-stuck")[:1]):
            return None
    proxied = [e for e in lost if e.tag != "proxy-failed"]
    if log.outcome.went_on and not (log.outcome.failed or proxied or zero):
        return None
    if {e.tag for e in lost} <= {"recv-vector"}:
        if log.outcome.ended_well and not log.has("exit", "exception"):
            return None
        if log.has("tcpstore-retry") and not log.outcome.went_on:
            return None  # no rank had reached the store's owner yet
    peers = sorted({e["peer"] or e["address"] for e in lost} - {""})
    had_saved = {e.host for e in log.all("saved")}
    # A process that has saved its model and ends closes its connections: this fails no call of another.
    mild = bool(peers) and {p.split("<")[0] for p in peers} <= had_saved
    mild = mild and log.outcome.failure("closed-by-peer") is None
    # A store that goes away looks alike after a job that ended well.
    lone = all(map(is_teardown, [*lost, *weak])) and not (zero or log.outcome.stopped)
    mild |= lone or (bool(lost) and not (zero or weak) and all("preemption notice" in e.text for e in lost))
    own = {a for h in log.hosts.values() for _, a in h.sockets.values()} | set(log.hosts)
    others = [p for p in peers if p.split("<")[0] not in own or len(log.hosts) > 1]
    others = [p for p in others if not is_loopback(p.split("<")[0].strip("[]"))]
    shown = f" ({', '.join(others[:3])})" if others else ""
    text = f"a peer ended first{shown}{_where(log, lost)}"
    dead = zero or {e.tag for e in [*proxied, *weak]} - _OF_ANY_END
    sure: Confidence = "medium" if dead and not lone else "low"
    events = [*zero, *(proxied or lost), *weak]
    return report(events, text, sure, severity="warning" if mild else None, ranks=())


def _where(log: LogEvidence, lost: list[Event]) -> str:
    listed = ranks_of(log.all("exit")) if log.has("child-failed") else set()  # all that failed on this node
    if listed and listed <= ranks_of(lost):
        return ": a rank of another node, or one of this node that ended with exit code 0"
    return "; this log holds only what followed: read that peer's log"


def _after(event: Event, other: Event) -> bool:
    return event.file == other.file and event.line > other.line


def _is_of_torch(clue: Clue, category: Event) -> bool:
    """Whether a line is torch's own reason below the category of NCCL's error, not that category again."""
    is_below = clue.event.place == (category.file, category.line + 1)
    return is_below and "DistBackendError" in category.text and not re.match(r"nccl[A-Z]\w+: ", clue.message)


_ABOVE_A_CLEANUP = 8
_TELLING = r"(?i)fail|error|abort|invalid|unable|could not|not found|no such"
_VAGUE = ("proxy-failed", "ofi-request", "wrong-socket", "nccl-calloc", "no-algorithm", "mnnvl-failed")


@cause("nccl-error-without-detail", overcome=None, ending=True)
def nccl_error_without_detail(log: LogEvidence) -> Found:
    """
    NCCL or CUDA failed, and the lines name no reason that ringup knows.

    Why: without NCCL_DEBUG only the category is printed.
    Fix: run again with `NCCL_DEBUG=INFO` on all ranks and compare host with host.
    In logs: `unhandled system error` without `Last error:`, a lone `Cuda failure`.
    """
    category = log.all("nccl-system", "nccl-cuda", "nccl-internal", "nccl-usage")
    cuda = log.all("cuda-failure", "peer-access") + broken_kernels(log)
    warned = [e for e in log.all("warn") if not (HARMLESS.regex.search(e["text"]) or made_do(e))]
    warned = [e for e in warned if not log.tags_at(e) & OF_ROLE["detail"]]
    vague, other = log.all(*_VAGUE, "net-not-found"), log.all("wc-error")
    vague, warned = ([e for e in lines if not log.outcome.closes(e)] for lines in (vague, warned))
    codes = [e for e in log.all("unwind", code="[1-5]") if is_unwinding(e)]
    if log.has("sharp-off") and not any("group." in e["source"] for e in codes):
        codes = []  # NCCL unwinds from the refused offer and continues; an error of the call passes its group
    if log.has("ib-open-failed") and not (cuda or other or log.outcome.set_up):
        return None  # the device that could not be opened is the detail
    text, fix = "NCCL or CUDA failed; only the category of the error is printed", None
    said = [e for e in warned if re.search(_TELLING, e["text"])]  # the detail, which no cause knows
    # The last NCCL WARN of each process that says something, then what torch quotes as the last error.
    ends = {(e.file, e.host, e.pid, e.label): e for e in said}
    last = [] if cuda else [*ends.values(), *log.all("last-error")][-4:]
    if cuda and cuda[0].tag == "cuda-failure":
        where = " inside NCCL" if category or "NCCL" in cuda[0].text else ""
        text = f"a CUDA call{where} failed ({cuda[0]['text']})"
    elif call := next(filter(None, (_FAILED_CALL.search(e["text"]) for e in warned)), None):
        text = f"NCCL's call to {call[1]} failed ({call[2]})"
    elif added := [c for c in log.clues if category and _is_of_torch(c, category[0])]:
        text = f"NCCL failed; torch adds: {added[0].message[:160]}"
        category = [category[0], added[0].event, *category[1:]]
    elif last:
        text = f"NCCL failed; its last error: {last[-1]['text'].strip()[:160]!r}"
        where = f" of {show_ranks(ranks)}" if (ranks := ranks_of(last)) else ""
        fix = Fix(f"run again with NCCL_DEBUG=INFO on all ranks; collect the lines{where} before this one")
    timed_out = log.all("work")[:1]
    late = timed_out and not cuda and all(_after(e, timed_out[0]) for e in category)
    # the watchdog aborts calls that then fail
    sure = (category or cuda) and not late and not last and not said
    mild = not (category or cuda or vague or other or codes) and (log.outcome.went_on or not said)
    cleaned = {e.pid: e.line for e in warned if "commReclaim: cleanup " in e.text}  # NCCL goes on after it
    at_the_end = all(0 <= cleaned.get(e.pid, -1) - e.line < _ABOVE_A_CLEANUP for e in [*cuda, *warned])
    mild |= bool(cleaned) and at_the_end and not (category or vague or other)
    events = [*last, *category, *cuda, *other, *vague, *warned, *codes]
    return report(events, text, "medium" if sure else "low", severity="warning" if mild else None, fix=fix)


_ALL_THERE = Fix(
    "every rank was started: print the address, rank and world size that the script gives to"
    " init_process_group (MASTER_ADDR, MASTER_PORT, init_method) and compare them with what ringup set."
)


@cause("init-never-finished")
def init_never_finished(log: LogEvidence) -> Found:
    """
    Some ranks started init and never completed it, and the log ends.

    Why: a peer never came, or the first connections between ranks fail; the stage where it stops
    shows which.
    Fix: read all logs with NCCL_DEBUG=INFO, and stacks of the ranks that wait. A stop after `via P2P` points
    to ACS or IOMMU, after `via NET` to the peer or the fabric, before Init START to the bootstrap network.
    In logs: `Init START` without `Init COMPLETE`.
    """
    if ended := ended_as(log, "init-never-finished"):
        return replace(ended, fix=_ALL_THERE)
    begun = [c for c in log.communicators if c.started and not c.complete]
    stood = log.outcome.hang
    done = any(c.complete for c in log.communicators)
    if (log.outcome.set_up and not begun) or (not stood and (done or log.outcome.failed)):
        return None
    last: dict[tuple[int, str], Event] = {}  # the last set-up line of each file or process
    for event in log.all("bootstrap", "using-network", "init", "channel", "connected"):
        last[event.file, event.pid] = event
    text = f"NCCL's init began and did not complete; it stops {_stage(log)}"
    wanted = max((c.nranks for c in begun), default=0)
    absent = sorted(set(range(min(wanted, 100_000))) - {c.rank for c in log.communicators})
    if absent and len(absent) < wanted:
        text += f"; of {wanted} ranks {ranges(absent[:8])} left no Init line"
    ranks = [c.rank for c in begun] or None
    if not (begun or log.has("bootstrap", "using-network")):
        return None
    if stood:
        return report([*list(last.values())[:4], stood], text, "medium", ranks=ranks)
    return report(list(last.values())[:4], text, "low", severity="note", ranks=ranks)


def _stage(log: LogEvidence) -> str:
    if log.all("channel", via=".*NET/.*"):
        return "while channels over the network are connected (peer or fabric)"
    if log.has("channel"):
        return "after channels over P2P or shared memory (ACS, IOMMU)"
    if any(c.started for c in log.communicators):
        return "after Init START, before the topology exchange (a peer is missing or cannot be reached)"
    return "before Init START, in the bootstrap (a peer is missing or its address cannot be reached)"


@cause("unnamed-failure", overcome=None)
def unnamed_failure(log: LogEvidence) -> Found:
    """
    The log shows a failure that ringup has no name for.

    Why: the quoted line is the most telling one by its form: who prints it, with which severity and error
    number, and what was printed before it.
    Fix: read that line on that rank and host; the answer says what an error of its kind means in general.
    In logs: any error that no other cause knows.
    """
    return None  # `unnamed.answered` decides it, when all other causes are known
