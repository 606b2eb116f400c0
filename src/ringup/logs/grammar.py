"""
The few lines that counting must understand: collective calls, Init lines, transports, steps.

Wordings after NCCL's source, 2.4 to 2.30 (`enqueue.cc`, `init.cc`, `transport/*.cc`): a call is
printed when it is enqueued, `opCount` is hexadecimal and no sequence number of collectives.
"""

from __future__ import annotations

import json
import re

CALL_MARK = b": opCount "

HEAD = re.compile(
    rb"(?:(?<![\w.-])(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) )?(?:\[(?P<dev>\d+)\] )?"
    rb"NCCL INFO (?P<kind>\w{1,40}):(?= opCount )"
)
"""Process and kind of a collective line, up to the colon; excerpts may have lost HOST:PID:TID."""

FIELDS = re.compile(
    rb"([0-9a-fA-F]+) sendbuff (\S+) recvbuff (\S+)(?: acc \S+)? count (\d+)"
    rb" datatype (\d+) op (\d+) root (-?\d+)"
    rb" comm (0x[0-9a-fA-F]+|\(nil\)) \[nranks=(\d+)\] stream (0x[0-9a-fA-F]+|\(nil\))"
    rb"(?: task \d+ globalrank \d+)?\s*\Z"
)
"""The text after `KIND: opCount ` on a whole line; RCCL ends it with its queue's length and the rank."""

GLUED = re.compile(rb"(?::[ \t]|\[[^\]]{1,60}\](?:<std(?:out|err)>)?:?[ \t]?)\Z")
"""The label or stamp of a line that begins in the middle of another."""

PREFIX = re.compile(
    rb"(?<![\w.-])(?!\d{1,2}:\d\d:\d\d )(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) (?:\[(?P<dev>\d+)\] )?"
)
"""Process of any other NCCL line; searched, because a label or stamp may precede it; a clock is not one."""

LABEL = re.compile(rb"\A\s*(?:(\d+): |\[(?:rank(\d+)|([a-z]+\d+))\]:|\[\d+,(\d+)\]<std(?:out|err)>: ?)")
"""Prefixes of srun --label, torchrun --tee and mpirun --tag-output."""

INIT = re.compile(
    rb"comm (?P<pointer>0x[0-9a-fA-F]+) rank (?P<rank>\d+) n[rR]anks (?P<nranks>\d+) cudaDev (?P<dev>\d+)"
    rb"(?: nvmlDev -?\d+)?(?: busId [0-9a-fA-F]+)?"
    rb"(?: parent (?P<parent>0x[0-9a-fA-F]+)(?: (?:splitCount|childCount) (?P<split>-?\d+))?"
    rb" color (?P<color>-?\d+) key -?\d+)?"
    rb"(?: commId (?P<id>0x[0-9a-fA-F]+))?(?: localSize \d+)?(?: used -?\d+ bytes)?(?: on core -?\d+)?"
    rb" ?- Init (?P<state>START|COMPLETE)"
)
"""Start and end of a communicator's set-up; a split's child has no commId since 2.23; RCCL adds memory."""

VIA = re.compile(
    rb"(?:(?:Channel|Ring) \d+(?:/\d+)? : (?P<src>\d+)\[[0-9a-fA-F]+\] (?:-> )?(?P<dst>\d+)\[[0-9a-fA-F]+\]"
    rb"(?: \[(?:send|receive)\])?|CollNet \d+(?:/\d+)? : (?P<coll>\d+) \[(?:send|receive)\])"
    rb" via (?P<via>[^\r\n]{1,120}?)(?: comm 0x[0-9a-fA-F]+(?: nRanks \d+)?)?\s*\Z"
)
"""The transport between two ranks of a communicator; RCCL and NCCL 2.8 append the communicator."""

_STEP = re.compile(
    rb"(?i)(?<![\w/.-])(?:(?:global[_ -]?step|step|iter(?:ation)?)['\"]?[ \t:=#\[]{1,16}"
    rb"(\d{1,3}(?:[,_]\d{3}){1,3}|\d{1,12})(k?)(?![\d.]*\.\d|\w|\.\w)"
    rb"(?! ?(?:[mun]?s|sec(?:ond)?s?)(?![\w/=:]))"  # a duration
    rb"|steps: (\d{1,12}) loss|epoch:? \[(\d{1,9}\]\[ {0,9}\d{1,12})/)"
)
_NOT_A_POSITION = re.compile(
    rb"(?i)\b(?:per|every|each|max(?:imum)?|min(?:imum)?|total|num(?:ber)?(?: of)?|warm[- ]?up|accum\w*|micro"
    rb"|save|log(?:ging)?|decay|eval\w*|val(?:idation)?|inference|sampling|diffusion|denoising) ?$"
)
"""Before "step": a limit, an interval or a step of something else."""
_BEFORE = 24
"""Bytes before "step" that are searched for such a word."""

WORDS = (b"nccl ", b"- init ", b"iter", b"step", b"epoch")
"""Every line that counting reads, besides the calls, contains one of these, in any case."""

POINT_TO_POINT = frozenset({"Send", "Recv"})
"""Not called by every rank of a communicator at the same position: counted, never numbered."""

_COLOUR = re.compile(rb"\x1b\[[\d;]*[mK]")  # as find_bare_words in counts/core.c


def bare(raw: bytes) -> bytes:
    """
    A line without colours, and without the record of Docker's json-file driver.

    >>> bare(b'{"log":"\\\\u001b[32miteration 3\\\\u001b[0m\\\\n","stream":"stdout"}')
    b'iteration 3'
    """
    if raw.startswith(b'{"log":"'):
        try:
            raw = str(json.loads(raw)["log"]).rstrip("\n").encode("utf-8", "replace")
        except (ValueError, RecursionError):
            return raw
    return _COLOUR.sub(b"", raw) if b"\x1b" in raw else raw


def fields_of(raw: bytes, head: re.Match[bytes], end: int | None = None) -> re.Match[bytes] | None:
    """The fields of a call; `end` is where the next one's head begins.  None if they are cut off."""
    begin = head.end() + len(" opCount ")
    if end is None:
        return FIELDS.match(raw, begin)
    label = GLUED.search(raw, begin, end)
    return FIELDS.match(raw, begin, label.start() if label else end)


def label_of(prefix: bytes, whole: bool = False) -> str:
    """
    The rank in a launcher's prefix, "" without one; `whole`: if only a stamp follows it.

    >>> label_of(b" 3: "), label_of(b"[rank12]:"), label_of(b"[1,3]<stdout>:"), label_of(b"[default3]:")
    ('3', '12', '3', 'default3')
    """
    match = LABEL.match(prefix)
    if not match:
        return ""
    rest = prefix[match.end() :].strip()
    if whole and rest and rest[:1] not in b"[0123456789":
        return ""
    return match[match.lastindex or 0].decode()


def step_in(line: bytes) -> re.Match[bytes] | None:
    """
    The step that a trainer's line shows: Megatron, DeepSpeed, Detectron2, timm, torch's ImageNet example.

    Groups: the number, "k" for thousands; or DeepSpeed's number; or ImageNet's epoch and number.

    >>> step_in(b"global step: 1,200 | loss")[1], step_in(b"max step 9"), step_in(b"STEP 166448.0")
    (b'1,200', None, None)
    """
    for found in _STEP.finditer(line):
        if not _NOT_A_POSITION.search(line[max(0, found.start() - _BEFORE) : found.start()]):
            return found
    return None


def iteration_of(line: bytes, pattern: re.Pattern[bytes] | None = None) -> str | None:
    """
    The iteration a trainer's line begins, None for another line.

    >>> iteration_of(b" iteration       10/     500 | loss: 2.1")
    '10'
    """
    if b" NCCL " in line:
        return None
    text = bare(line)[:2000]
    match = pattern.search(text) if pattern else step_in(text)
    if not match:
        return None
    name = next((g for g in match.groups() if g is not None), match[0])
    return name[:80].decode("utf-8", "replace").replace("][", "/").replace(" ", "")
