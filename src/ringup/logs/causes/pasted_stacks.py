"""Pasted stacks (py-spy dump): the process that is at another place than the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ringup.logs.causes.symptoms import first_value
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, report

INNERMOST = 12
"""Frames of the main thread that show the activity of a process; below them are loops of the program."""
_IN_A_COLLECTIVE = re.compile(
    r"distributed_c10d|c10d_logger|pynccl|/nccl|collectives?\.py|torch/cuda/__init__|torch/distributed/utils|streams\.py"
)
_INLINE = re.compile(r"(?P<function>[\w<>.]{1,80}) \((?P<file>[\w./@+-]{1,200}\.pyx?):(?P<number>\d{1,6})\)")
"""A frame where a stack is pasted as one line."""
_WAITS = re.compile(
    r"\b(?:wait|barrier|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|all_to_all\w*|synchronize)$"
)


@dataclass
class Stack:
    """The main thread of one process, innermost frame first."""

    head: Event
    frames: list[Event] = field(default_factory=list)

    @property
    def name(self) -> str:
        rank = self.head["rank"] or ("" if self.head.rank is None else str(self.head.rank))
        return f"rank {rank}" if rank else f"process {self.head['pid']}"

    @property
    def collective(self) -> Event | None:
        """The frame of a collective or of a wait for the GPU, None if the process does something else."""
        inner = self.frames[:INNERMOST]
        found = (f for f in inner if _IN_A_COLLECTIVE.search(f["file"]) or _WAITS.search(f["function"]))
        return next(found, None)


def stacks(log: LogEvidence) -> list[Stack]:
    found: list[Stack] = []
    is_main = False
    for event in log.all("stack-process", "stack-thread", "stack-frame"):
        if event.tag == "stack-process":
            inline = [replace(event, fields=m.groupdict()) for m in _INLINE.finditer(event.text)]
            found.append(Stack(event, inline[:INNERMOST] if "MainThread" in event.text else []))
            is_main = False
        elif event.tag == "stack-thread":
            is_main = "MainThread" in event.text
        elif found and is_main and len(found[-1].frames) < INNERMOST:
            found[-1].frames.append(event)
    return [stack for stack in found if stack.frames]


def standing_elsewhere(log: LogEvidence) -> Cause | None:
    """The few processes that are in no collective while most are."""
    every = stacks(log)
    busy = [stack for stack in every if stack.collective is None]
    waiting = [stack for stack in every if stack.collective is not None]
    if not busy or len(busy) >= len(waiting):
        return None
    first = busy[0].frames[0]
    who = ", ".join(stack.name for stack in busy[:4])
    ops = sorted({stack.collective["function"] for stack in waiting if stack.collective})
    place = f"{first['function']} ({first['file']}:{first['number']})"
    text = f"{who} is in {place}, {len(waiting)} others in {ops[0]}"
    ranks = [int(stack.head["rank"]) for stack in busy if stack.head["rank"]]
    return report([*(s.frames[0] for s in busy[:3]), waiting[0].collective], text, "medium", ranks=ranks)


def standing_together(log: LogEvidence) -> Cause | None:
    """All processes of the pasted stacks in the same collective, or the only one in any."""
    every = stacks(log)
    if len(every) < 2:
        # In any thread: autograd calls those of a backward pass in its own.
        there = [f for f in log.all("stack-frame") if _IN_A_COLLECTIVE.search(f["file"])]
        text = f"the process whose stack is here is in {first_value(there, 'function')}"
        return report(there[:1] if log.has("stack-thread") else [], text, "low")
    frames = [stack.collective for stack in every if stack.collective is not None]
    if len(frames) < len(every) or len({frame["function"] for frame in frames}) > 1:
        return None
    text = f"all {len(every)} processes whose stacks are here are in {frames[0]['function']}"
    return report(frames, text, "low")
