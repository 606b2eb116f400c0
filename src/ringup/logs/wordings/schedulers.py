"""What schedulers, and the programs they stop, print when a job is taken away."""

from __future__ import annotations

from ringup.logs.wordings import say

TAKEN_AWAY = (
    say(
        "cancelled",
        r"CANCELLED(?: AT| DUE TO| by|\+)(?:.{0,40}DUE TO (?P<why9>[A-Z]+(?: [A-Z]+)?))?|\b(?P<why10>TIMEOUT|PREEMPTED|NODE_FAIL) +\d+:\d+ *$|\bCANCELLED\b.{0,20}\*\*\*|DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE)|slurmstepd: error: \*\*\* (?:JOB|STEP)(?:.{0,120}DUE TO (?P<why11>[A-Z]+(?: [A-Z]+)?))?|(?:PBS|qdel|bkill).{0,40}(?:(?P<why2>walltime)|killed|deleted)|(?P<why3>walltime) .{0,20}exceeded limit|exceeded (?:its )?(?P<why4>wall ?(?:time|clock)|time) limit|(?P<why5>time limit) for job execution has been reached|KeyboardInterrupt|Received 15 death signal|Received 2 death signal|got signal: (?:2|15)\b|Received Signals\.SIG(?:TERM|INT)|TERM_RUNLIMIT|job .{0,20}(?:(?P<why6>preempted)|deleted)|this job is (?P<why7>timed-out)|\(state: (?P<why8>TIMEOUT|PREEMPTED|NODE_FAIL|CANCELLED)|Received SIG(?:TERM|INT): \d|[Hh]andling (?:SLURM )?auto-requeue signal|DeadlineExceeded: Job was active|\b(?P<why12>Evicted) +(?:\d+[smh]|pod/|kubelet)|[Rr]eason: +(?P<why13>Evicted|Preempt\w+|NodeShutdown|NodeLost)|low on resource: (?P<why14>ephemeral-storage)|^(?!.{0,300}(?:handl|regist|install|ignor|SIGTERM|SIGHUP)).{0,300}\bSIGINT\b",
        "cancelled",
        "due to ",
        "time limit",
        "wallclock",
        "slurmstepd",
        "walltime",
        "keyboardinterrupt",
        "death signal",
        "got signal",
        "term_runlimit",
        "this job is",
        "timeout  ",
        "(state: ",
        "received sig",
        "auto-requeue",
        "preempted",
        "deleted",
        "deadlineexceeded",
        "evicted",
        "reason: ",
        "low on resource: e",
        "sigint",
    ),
    say(
        "node-failed",
        r"NODE[ _]FAIL(?:URE)?|DUE TO NODE FAILURE|[Nn]ode failure on",
        "node_fail",
        "node fail",
    ),
)
