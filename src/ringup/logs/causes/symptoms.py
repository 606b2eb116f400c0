"""Facts about a log that several causes need: did it fail, did it hang, did it continue."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.outcome import PREPARES
from ringup.logs.rule import Cause, report
from ringup.logs.run_record import INTERRUPTED
from ringup.rules import Fix
from ringup.units import printable

Key = TypeVar("Key")

UNBACKED = "nonexistent physical address"
"""BUS_ADRERR in UCX's handler: a mapped page was not available, which a full tmpfs causes."""

LAUNCHER_FRAMES = re.compile(
    r"torch/distributed/(?:run|launch|elastic)|deepspeed/launcher|accelerate/commands|horovod/runner"
    r"|/bin/(?:accelerate|torchrun|deepspeed|horovodrun)(?::|$)"
)
"""Files of a launcher's own exceptions."""

OWN_MODULES = re.compile(
    r"^(?:torch|deepspeed|accelerate|colossalai|transformers|horovod|mpi4py|jax|vllm|llamafactory"
    r"|megatron)(?:\.|$)"
)
"""Frameworks and launchers; another missing module is the program's own problem."""

SHELL_TEXT = re.compile(r"[/=$\"']|\.(?:sh|bashrc)\b")
"""A "host name" with one of these is a path or an assignment: a broken shell line."""


def xid_codes(log: LogEvidence) -> list[int]:
    """The driver's printed fault codes, without duplicates, in order."""
    found = {e["code"] or e["code2"] for e in log.all("xid", "sxid")}
    return sorted(int(c) for c in found if c and len(c) < 6)


def is_of_a_peer(event: Event) -> bool:
    """Whether a bad device number came from a peer, not from this rank."""
    return "p2p.cc" in event.text and "WARN" in event.text


def broken_kernels(log: LogEvidence) -> list[Event]:
    """Errors of GPU kernels; those of DeepEP break on purpose when they have waited in vain."""
    return [] if log.all("hccl-timeout", has="DeepEP") else log.all("illegal-access")


def is_absurd(event: Event) -> bool:
    """Whether the counts in a root's complaint are nonsense: another release's message."""
    return not all(0 <= event.number(f) < 100_000 for f in ("roots_a", "roots_b", "a", "b"))


def ended_as(log: LogEvidence, rule: str) -> Cause | None:
    """The cause that the run itself recorded when it hung or was ended as hung, if it is this one."""
    end = log.ended
    if not end or end.outcome not in _ENDED_AS or end.verdict.rule != rule:
        return None
    text = f"{printable(end.verdict.text, 300)}; {_ENDED_AS[end.outcome]}"
    nodes = [printable(node, 64) for node in end.verdict.nodes]
    known = any(one.text.startswith("rank ") for one in end.proof)
    fix = None if rule != "rank-fell-behind" else _FROM_THERE if known else NEXT_TIME
    return report([*end.proof, end.line], text, ranks=end.verdict.ranks, nodes=nodes, fix=fix)


_FROM_THERE = Fix("read the code after the line where the rank is: it did not reach the others' collective.")
NEXT_TIME = Fix(
    "read the missing rank's last output; if it hangs again, run `ringup stacks` before you end it."
)
"""For a run that has ended: the stacks that the rule asks for are gone."""
_ENDED_AS = {
    "hung": "the run was ended as hung",
    **dict.fromkeys(INTERRUPTED, "the run was interrupted while it hung"),
}


def bars_at_a_limit(log: LogEvidence) -> list[Event]:
    """Progress bars that were at a timeout's limit (printed, else torch's), not full, when last drawn."""
    if log.has("sighup", "cancelled"):
        return []  # whenever the signal came, they stopped
    limits_s = {e.number("timeout") / 1000 for e in log.all("work") if e.number("timeout")}
    waited = {e.place for e in log.all("monitored-victim", "wait-poll", "store-get", "work")}

    def is_at_limit(event: Event) -> bool:
        parts = [int(p) for p in event["elapsed"].split(":") if p.isdigit()]
        elapsed_s = sum(p * 60**n for n, p in enumerate(reversed(parts)))
        # torch's defaults: 10 min with NCCL, else 30 min
        return any(0.93 * s <= elapsed_s <= 1.25 * s for s in limits_s or {600, 1800, 3600})

    last_drawn = {(e.file, e.label, e["what"]): e for e in log.all("progress")}
    bars = [e for e in last_drawn.values() if e.number("percent") < 100]
    # A bar on a waiter's own line was being drawn just then.
    return [e for e in bars if is_at_limit(e) or (e.place in waited and PREPARES.match(e["what"]))]


_OF_A_MEETING = re.compile(r"barrier|init|worker|//(?:[a-z]{2,4}//|\d|$)|torchelastic|rank_?\d")
"""Keys for which torch itself waits during the rendezvous."""


def waits_of_the_program(log: LogEvidence) -> list[Event]:
    """Waits at the store for a key that the program's own code sets, or that torch sets for it."""
    return [e for e in log.all("store-wait") if not _OF_A_MEETING.search(e["key"] or e.text)]


def refused_semaphores(log: LogEvidence) -> list[Event]:
    """Exceptions that say `No space left` below the call that makes a lock in /dev/shm."""
    made = {(e.file, e.line + below) for e in log.all("semaphore") for below in range(4)}
    lines = made & {e.place for e in log.all("disk-full")}
    return [e for e in log.all("exception") if e.place in lines]


_GARBLED = r"more than 1EB|UnpicklingError|negative dimension"
_BELOW_ITS_CALL = 8


def garbled_objects(log: LogEvidence) -> list[Event]:
    """
    Exceptions of gather_object and its like that took the data of another collective for their own.

    They first exchange the sizes of what they pickle, then the bytes (torch 2.13, distributed_c10d.py).
    """
    calls = [e for e in log.all("collective-frame") if "object" in e["op"]]

    def is_below(event: Event) -> bool:
        near = (c for c in calls if (c.file, c.rank) == (event.file, event.rank))
        return any(0 < event.line - c.line <= _BELOW_ITS_CALL for c in near)

    return [e for e in log.all("exception", has=_GARBLED) if is_below(e)]


def first_value(events: Iterable[Event], *fields: str) -> str:
    """The first of these fields in any of the lines, else ""."""
    return next((e[name] for e in events for name in fields if e[name]), "")


def on(host: str) -> str:
    """A place for the end of a sentence: " on HOST", or ""."""
    return f" on {host}" if host else ""


def of_an_earlier_attempt(log: LogEvidence) -> list[Event]:
    """
    Gloo's refused connections after an elastic agent started its ranks again.

    In torch 2.13 all attempts share the agents' store, which still holds the addresses of the earlier ones.
    """
    ended, over = log.all("exit", has=r"failed \(exitcode")[:1], log.all("child-failed")[:1]
    dialled = log.all("gloo-connect", "gloo-mesh", has="refused")
    later = [e for e in dialled if any(x.file == e.file and x.line < e.line for x in ended)]
    return [e for e in later if not any(x.place < e.place for x in over)]


_WEB = re.compile(
    r"(?i)https?:|HTTPS?Connection|urllib3|requests\.exceptions|aiohttp|hugging|hf_hub|wandb|modelscope|mlflow"
    r"|urlopen error|clearml|comet|\bpip\b|conda|registry|github|NameResolutionError|MaxRetryError|\b40[13]\b"
    r"|'Connection aborted\.'|RemoteDisconnected|\bhttp(?:x|core)|botocore"
    r"|\b(?:curl|wget|apt(?:-get)?|ntpdate): |Could not resolve host: |Could not resolve '"
)
_PATH = re.compile(r"(?<![:/\w.])(?:/[\w.+@-]{1,80}){2,30}")
"""A file's path: a path below `conda` or `github` does not mean the web."""


def of_the_web(event: Event) -> bool:
    """Whether a line is about a web service (a hub, a tracker, an index), not about the job's own nodes."""
    return bool(_WEB.search(_PATH.sub("", event.text)))
