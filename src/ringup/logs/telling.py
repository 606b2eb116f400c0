"""
The most informative line of a run: the clue to which an expert would point; the answer if no cause knows it.

Clues after which the run worked are left out.  Those that follow from another end count only if nothing else
is left.  Then the form decides, then the number of details, then time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from ringup.logs.blame import place
from ringup.logs.causes.symptoms import broken_kernels
from ringup.logs.forms import Clue, Form, severity_of
from ringup.logs.lines import Event, actor_of, ranks_of
from ringup.logs.outcome import ENOUGH, ENOUGH_OF_OTHERS
from ringup.logs.patterns import OF_ROLE
from ringup.logs.patterns.forms import MEANINGS, SPECIFIC
from ringup.logs.rule import MAX_EVIDENCE, Cause, report
from ringup.logs.scan import BELOW_A_FRAME
from ringup.rules import Fix

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence

TO_THE_END = 0.05
"""A wait whose last line is in this last share of its file is a heartbeat: the job makes no progress."""
BEATS = 3
SOME, MUCH = 20, 100
"""Lines behind a weak clue, and behind a program's own error, after which it does not explain an end."""
SURE = Form.FAILING
"""Up to this form a clue alone proves a failure."""
PER_DETAIL = 0.3
"""The weight of each concrete thing in a line, in steps of forms."""
_WAITS = re.compile(
    r"(?i)waiting (?:for|on)(?! application (?:startup|shutdown))|still waiting|may be stuck"
    r"|\b(?:hung|hanging|stuck|stalled)\b|no progress|\bnot (?:yet )?ready\b|only have \d{1,6} participants"
    r"|No available shared memory|clients joined|not all .{0,60}joined|heartbeat"
    r"|\berror\b.{0,200}\bretrying\b"
)

GENERIC = {"rank-raised-exception", "nccl-error-without-detail", "rank-crashed"}
"""Causes that describe a process's end and leave the reason to a line of its output."""
ABOVE = 40
"""Lines between a native library's error and the exception that reports it."""
BY_A_WORD = {"rank-killed"}
"""Causes that may rest on a single word, which a launcher prints about a process that it ended itself."""

_ENDED_WITH = re.compile(
    r"(?i)\b(?:exited|completed|terminated|finished|failed) with (?:(?:exit|return) )?(?:code|status)"
    r"(?: list)?:? \[?[1-9]"
    r"|CalledProcessError: .{1,800} returned non-zero exit status [1-9]"
)
_BUILD = re.compile(r"\S{1,160} (?:fatal )?(?:error|fatal) {0,8}: ")
"""A compiler's or a linker's error."""
_OF_THE_SCRIPT = re.compile(r"\S{1,160}\.py: error: ")
"""A script that refuses its arguments."""

_OF_A_TOOL = re.compile(
    r"\S{1,200}: line \d{1,6}: |(?:/\S{1,80}/)?(?:[bzdak]{0,2}sh|ls|cat|cp|mv|rm|rmdir|mkdir|ln|chmod|chown"
    r"|touch|df|du|stat|find|grep|sed|awk|head|tail|curl|wget|tar|unzip|nvcc|gcc|ld|collect2|sudo|id|which|pkill|kill"
    r"|ulimit|sysctl|modprobe|git|fatal|[WE]): "
)
"""Beginnings of the lines of a script's own commands (`W: `, `E: `: apt)."""

_ON_EACH_RANK = (
    "compare what the ranks do (`ringup stacks`, or py-spy on each): the rank that stands elsewhere holds up"
    " the rest"
)
_AROUND = "read the lines around it; the logs of all ranks with NCCL_DEBUG=INFO show whether others differ"


def follows(clue: Clue) -> bool:
    """Whether a line reports another process's end, or wraps another message."""
    return clue.follows or not clue.tags.isdisjoint(OF_ROLE["consequence"])


def weight(log: LogEvidence, clue: Clue) -> tuple[float, ...]:
    """The order of blame among clues: the smallest is the most informative."""
    place = (float(clue.event.file), float(clue.event.line))
    order = (clue.event.time_s or 0.0, *place) if log.is_dated else place
    return (float(follows(clue)), clue.form - PER_DETAIL * min(clue.specific, 3), *order)


def standing(log: LogEvidence) -> list[Clue]:
    """The clues after which the run did not work, the most informative first."""
    trapped = set() if broken_kernels(log) else {"illegal-access"}

    def overcome(clue: Clue) -> bool:
        if clue.tags & trapped:
            return True
        if clue.form >= Form.PROGRAM and log.outcome.aftermath(clue.event):
            return True
        events = [clue.event, *log.at(clue.event.file, clue.event.line)]
        return log.outcome.after_the_end(clue.event) or any(map(log.outcome.overcome, events))

    def is_of_the_script(clue: Clue) -> bool:
        is_weak = clue.form in (Form.ERRNO, Form.FAILING) and log.outcome.set_up
        is_weak = is_weak or bool(_OF_A_TOOL.match(clue.message))
        return is_weak and log.outcome.is_above_the_ranks(clue.event)

    left = [clue for clue in log.clues if not overcome(clue) and not is_of_the_script(clue)]
    if log.good is not None:
        left = [clue for clue in left if not log.good.has(clue.event.text)]
    return sorted(left, key=lambda clue: weight(log, clue))


def _went_on(log: LogEvidence, clue: Clue) -> bool:
    """Whether much follows a line that only sounds like a failure: no exception, no library's error."""
    is_weak = clue.form >= Form.PROGRAM and clue.form != Form.ENDED and not _OF_THE_SCRIPT.match(clue.message)
    if not is_weak or len(log.clues) > MUCH:
        return False
    behind = log.files[clue.event.file].lines - clue.last_line
    return behind > (MUCH if clue.form <= Form.ERROR else SOME)


def heartbeat(log: LogEvidence) -> Clue | None:
    """A line about waiting that repeats to the end of its file, without work after it."""
    for clue in log.clues:
        lines = log.files[clue.event.file].lines
        if clue.count < BEATS or clue.last_line < lines - max(3, TO_THE_END * lines):
            continue
        waits = clue.form in (Form.WAIT, Form.INFO, Form.WARNING) and _WAITS.search(clue.message)
        if waits and not log.outcome.work_after(clue.event, clue.last_line):
            return clue
    return None


def with_telling(log: LogEvidence, causes: Iterable[Cause]) -> list[Cause]:
    """The causes with the most informative line first in their evidence."""
    at = {s.event.place: s for s in log.clues}

    def of(event: Event) -> tuple[float, ...]:
        return weight(log, at[event.file, event.line])

    def ordered(cause: Cause) -> Cause:
        if not cause.evidence:
            return cause
        first = cause.evidence[0]
        known = [event for event in cause.evidence if event.place in at]
        best = min(known, key=of, default=first)
        as_it_is = place(cause) < 8 or cause.rule == "unnamed-failure"
        if as_it_is or (first in known and of(first)[:2] <= of(best)[:2]):
            best = first
        rest = [event for event in cause.evidence if event is not best]
        return replace(cause, telling=best, evidence=(best, *rest))

    return [ordered(cause) for cause in causes]


# A failure without a cause's name.


def answered(log: LogEvidence, causes: list[Cause]) -> list[Cause]:
    """
    The causes, and the unnamed failure if the log has better evidence than they do.

    A cause with weaker evidence than the best clue gets that line as its first evidence, or comes after it.
    """
    clues = [clue for clue in standing(log) if clue.form <= Form.WAIT]
    best = next(iter(clues), None)
    errors = [one for one in causes if one.severity == "error"]
    if not errors:
        alone = _alone(log, best, causes)
        return [alone, *causes] if alone else causes
    first = errors[0]
    own = _clues_of(log, first)
    by_a_word = first.rule in BY_A_WORD and {e.tag for e in first.evidence} == {"killed-word"}
    if by_a_word:
        lines = {clue.event.line for clue in own}
        best = next((s for s in clues if s not in own and s.event.line < max(lines, default=0)), None)
    if best is None or follows(best):
        return causes
    at = causes.index(first)
    if by_a_word:
        return [*causes[:at], described(log, best), *causes[at:]]
    named = {e.place for one in causes if one is not first for e in one.evidence}
    is_detail = best.form == Form.LIBRARY and "cuda-failure" not in best.tags
    is_detail = is_detail and best.event.place not in named
    if first.rule == "nccl-error-without-detail" and is_detail:
        return [*causes[:at], described(log, best), *causes[at + 1 :]]
    if first.rule == "rank-raised-exception" and (reason := _reason_above(log, own)):
        return [*causes[:at], described(log, reason), replace(first, confidence="low"), *causes[at + 1 :]]
    if first.rule == "rank-crashed" and (led := _with_an_error_above(log, first)):
        return [*causes[:at], led, *causes[at + 1 :]]
    strongest = min((clue.form for clue in own if not follows(clue)), default=Form.INFO)
    if best.form >= strongest:
        return causes
    # An exception may report the failure of a library below it; NCCL meets a broken GPU again at its end.
    at_the_end = "cuda-failure" in best.tags and any(
        e.file == best.event.file and e.line < best.event.line for e in first.evidence
    )
    came_up = first.rule == "rank-raised-exception" and best.form < Form.EXCEPTION <= strongest
    came_up = came_up and not at_the_end
    is_weak = place(first) == 8 or first.confidence == "low"
    wraps = not is_weak and _wraps(own, best)
    is_generic = first.rule in GENERIC and first.confidence == "low" and not came_up
    own_words = best.form > Form.ERRNO or bool(_OF_THE_SCRIPT.match(best.message))
    if is_generic and first.rule == "rank-raised-exception" and not own_words:
        return [*causes[:at], described(log, best), *causes[at:]]
    if wraps or is_generic:
        text = f"{first.text}; first failure: {best.message[:160]}"
        led = replace(first, evidence=(best.event, *first.evidence)[:MAX_EVIDENCE], text=text)
        return [*causes[:at], led, *causes[at + 1 :]]
    most = SURE if first.confidence == "low" else Form.PROGRAM
    is_bare = best.form == Form.ENDED and place(first) < 8 and _is_below(best, own)
    if not came_up and (is_bare or not is_weak or best.form > most):
        return causes
    holder = next((one for one in errors[1:] if best in _clues_of(log, one)), None)
    better = holder or described(log, best)
    return [*causes[:at], better, *(one for one in causes[at:] if one is not better)]


def _wraps(own: list[Clue], best: Clue) -> bool:
    if not own or best.form == Form.ENDED or best.event.file != own[0].event.file:
        return False
    is_later = _is_below(best, own) and all(clue.form == Form.ENDED for clue in own)  # of the next attempt
    return all(map(follows, own)) and not is_later


def _is_below(clue: Clue, others: list[Clue]) -> bool:
    return all(other.event.line < clue.event.line for other in others)


def _with_an_error_above(log: LogEvidence, crash: Cause) -> Cause | None:
    above = next(_errors_above(log, crash.evidence[0], Form.LIBRARY), None)
    if above is None:
        return None
    text = f"{crash.text}; an error just above: {above.message[:160]}"
    return replace(crash, evidence=(*crash.evidence, above.event)[-MAX_EVIDENCE:], text=text)


def _clues_of(log: LogEvidence, cause: Cause) -> list[Clue]:
    places = {e.place for e in cause.evidence}
    return [clue for clue in log.clues if clue.event.place in places]


def _reason_above(log: LogEvidence, own: list[Clue]) -> Clue | None:
    """An error with an errno or an object just above an exception that names none."""
    raised = next((clue for clue in own if clue.form == Form.EXCEPTION and not follows(clue)), None)
    if raised is None or any(one.regex.search(raised.message) for one in SPECIFIC[:2]):
        return None  # it names an errno or an object itself
    if "illegal-access" in raised.tags:
        return None  # the GPU's own lines above it report the same
    return next((clue for clue in _errors_above(log, raised.event) if clue.specific > raised.specific), None)


def _errors_above(log: LogEvidence, event: Event, *more: Form) -> Iterator[Clue]:
    """Errors of the same stream just above a line, the most informative first."""
    for clue in standing(log):
        is_error = clue.severity in ("error", "fatal") or bool(_BUILD.match(clue.message))
        is_error = is_error and clue.form in (Form.PROGRAM, Form.ERROR, Form.ERRNO, *more)
        is_above = clue.event.file == event.file and 0 < event.line - clue.event.line <= ABOVE
        if is_error and is_above and not follows(clue) and actor_of(clue.event.text) == actor_of(event.text):
            yield clue


def _alone(log: LogEvidence, best: Clue | None, causes: list[Cause]) -> Cause | None:
    """The failure of a log without a cause of severity error, None if it went well."""
    if log.outcome.all_ended_with_0:
        return None
    beat = heartbeat(log)
    is_error = best is not None and best.severity in ("error", "fatal") and best.form <= Form.ERROR
    if beat is not None and not (best and is_error and not follows(best) and beat.severity == "info"):
        return described(log, beat)
    if (one := _of_a_clue(log, best, causes)) or any(one.rule == "job-cancelled" for one in causes):
        return one
    return _cut_traceback(log) or _failed_command(log) or _refused(log)


def unfinished(log: LogEvidence) -> str:
    """How a log without a failure ends before its training does, "" where it does not."""
    if log.has("unclosed-group") or log.all("finished", eval="") or log.ended or log.outcome.from_outside:
        return ""
    last, begun = log.all("step")[-1:], log.all("training-begins")[-1:]
    if begun and log.outcome.work_after(begun[0]) < ENOUGH:  # a title names its number of epochs
        return "training began, and the log ends before its first step"
    # A count from 0 ends one below the total.
    if not last or last[0].number("step") + 1 >= last[0].number("of"):
        return ""
    return f"the log ends at {last[0]['step']} of {last[0]['of']} steps or epochs"


_COMMANDS_OUTPUT = Fix("read the output of that command above the line, or its own log (`kubectl logs POD`).")


def _failed_command(log: LogEvidence) -> Cause | None:
    """The last line of a program around the job, if it reports that the command failed."""
    done = log.all("pod-assigned", has=" (?:Running|Completed) ")
    for last in reversed(log.all("command-failed")):
        pod, many = last["pod"], last["one"]  # a Job's next pod has another suffix
        later = (e for e in done if e["pod"] == pod + many or (many and e["pod"][:-6] == pod))
        if log.outcome.work_after(last) < ENOUGH_OF_OTHERS and not (pod and any(later)):
            text = f"a command or container failed, and no line names the reason: {last.text[:160]}"
            one = report([last], text, "low", fix=_COMMANDS_OUTPUT)
            return replace(one, rule="unnamed-failure", severity="error") if one else None
    return None


_NO_END = re.compile(
    r"(?i)\b(?:ignored|used instead|(?<!cannot )continu(?:e|ing)|fall(?:ing)? back|deprecated|disabled)\b"
)
BELOW_THE_LAST = 8
"""Lines below the last framed text: the number of processes that printed it too, and a launcher's end."""


def _refused(log: LogEvidence) -> Cause | None:
    """The last text that Open MPI framed, if it ends a log and says no word of going on."""
    rows = log.all("ruled-off")
    at = max((n for n, e in enumerate(rows) if not e["text"]), default=0)
    block = list(takewhile(lambda e: e["text"], reversed(rows[:at])))[::-1]
    if not block or log.files[rows[at].file].lines - rows[at].line > BELOW_THE_LAST:
        return None
    if any(_NO_END.search(e["text"]) for e in block) or severity_of(block[0].text, "") == "warning":
        return None
    text = f"Open MPI ends the job: {block[0]['text'][:160]}"
    one = report(
        block,
        text,
        "low",
        fix=Fix("read the whole text from this line on: Open MPI says there what to change"),
    )
    return replace(one, rule="unnamed-failure", severity="error") if one else None


MOST_ABOVE = 2
_OF_AN_ERROR = r"^(?:\[rank\d+\]: |.{0,80}\b(?:ERROR|CRITICAL)\b.{0,120}\] ) {0,8}File "
"""A frame that torch's hook or a logger prints of an exception, though its head is missing."""


def _cut_traceback(log: LogEvidence) -> Cause | None:
    """The innermost frame of a traceback that the end of its file cuts off."""
    begun = {e.file: e.line for e in log.all("traceback")}
    begun |= {e.file: e.line for e in log.all("frame", has=_OF_AN_ERROR) if e.file not in begun}
    ended = {e.file for e in log.all("exception") if e.line > begun.get(e.file, 0)}
    for last in reversed(log.all("frame", "traceback")):
        # The frame is stored only if no exception came below it.
        is_end = log.files[last.file].lines - last.line < (BELOW_A_FRAME if last.tag == "frame" else 2)
        if is_end and last.file in begun and last.file not in ended:
            start = begun[last.file]
            above = [c for c in standing(log) if c.event.file == last.file and c.event.line < start]
            near = (
                c for c in above if c.severity in ("error", "fatal") and start - c.event.line <= MOST_ABOVE
            )
            # People also paste an exception first, and below it its traceback.
            if head := next(near, None) or next((c for c in above if c.form == Form.EXCEPTION), None):
                return described(log, head)
            text = "the log ends inside a traceback: the line with the exception is missing"
            fix = Fix("look for the rest of this output, or run it again")
            one = report([last, *log.at(last.file, start)], text, "low", fix=fix)
            return replace(one, rule="unnamed-failure", severity="error") if one else None
    return None


_OF_A_LAUNCHER = {"exit", "child-failed", "wrapping", "closing-signal"}


def _of_a_clue(log: LogEvidence, best: Clue | None, causes: list[Cause]) -> Cause | None:
    """The failure by the best clue; None where its meaning is known, or it explains no end."""
    named = {e.place for one in causes for e in one.evidence}
    if best is not None and best.event.place in named:
        if causes[0].rule == "rank-raised-exception" and (reason := _reason_above(log, [best])):
            return described(log, reason)
        return None  # its meaning is known, and it is not an error
    is_mild = best is None or (best.severity in ("warning", "info") and "closing-signal" not in best.tags)
    is_mild = best is None or (is_mild and best.form > Form.KERNEL)  # `INFO: task python blocked`
    if best is None or is_mild or best.form > SURE:
        return None
    # A line that follows from another end may yet prove that the job failed.
    proves = bool(best.tags & _OF_A_LAUNCHER or _ENDED_WITH.search(best.message))
    proves = proves or any(e["uncaught"] for e in log.at(*best.event.place))
    if (follows(best) and not proves) or best.message.startswith("wandb: "):
        return None
    if _went_on(log, best):
        return None
    if log.outcome.work_after(best.event) >= ENOUGH_OF_OTHERS:
        return None  # whichever program prints it, the job continued
    if any(one.rule == "job-cancelled" for one in causes) and best.form > Form.EXCEPTION:
        return None
    return described(log, best)


def described(log: LogEvidence, clue: Clue) -> Cause:
    where = f" ({len(clue.ranks)} ranks print it)" if len(clue.ranks) > 1 else ""
    meaning = next((text for pattern, text in MEANINGS if pattern.regex.search(clue.message)), "")
    text, fix = f"no known cause fits; the first line that reports a failure{where}", meaning or _AROUND
    if clue.count >= BEATS and clue.form >= Form.WAIT:
        text = f"no known cause fits; the job makes no progress, this line repeats to the end{where}"
        fix = meaning if meaning and clue.severity == "error" else _ON_EACH_RANK
    near = [o for o in standing(log)[:6] if o is not clue and not follows(o) and o.form <= SURE]
    evidence = [clue.event, *(other.event for other in near[:3])]
    text, ranks = f"{text}: {clue.message[:200].strip()}", clue.ranks | ranks_of([clue.event])
    ranks |= ranks_of(log.at(*clue.event.place))
    one = report(evidence, text, "low", fix=Fix(fix), ranks=ranks)
    assert one is not None, "a clue is a line"
    return replace(one, rule="unnamed-failure", severity="error")
