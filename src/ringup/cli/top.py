"""
Watch a running job: one row per rank, worst first, and why it hangs if it does.

RUN is a run of ringup's (its name or folder), detached or not, or the MASTER_ADDR:PORT of another job of
yours on the nodes named.  Without RUN and nodes it is the newest run that has not ended, else the largest job
on this machine.  A row shows where the rank is in its code, the step that its output shows, CPU, GPU, memory
and network; equal rows are one.

Keys: q or Ctrl-C leaves, s reads stacks now, f folds rows by state, by node or not at all, Enter opens a
folded row, / filters, e ends the run.  On anything but a terminal, or without the package rich (`pip install
'ringup[top]'`), pictures are printed one below the other.

On each node one process of the lowest priority reads counters, with less than 1 % of a core.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringup.agent_bundle import program
from ringup.cli import options
from ringup.cli.command_line import Ended
from ringup.cli.launching import watch_of
from ringup.cli.watched_job import WatchedJob, job_named
from ringup.hang import grouping
from ringup.hang.activity import rates, troubles
from ringup.hang.rank_rows import By, JobState, RowLine, job_of, lines_of, rank_rows
from ringup.hang.snapshots import JobLook
from ringup.hang.watched_node import Printed, WatchedNode
from ringup.output import folding, terminal
from ringup.output.screen import Screen, screen_for
from ringup.output.top_picture import View, picture
from ringup.runtime import Event, RankEnd
from ringup.runtime.ssh import use_interpreters
from ringup.transport import Transport
from ringup.units import plural, printable, show_seconds

_INTERVAL = options.number("a time from 1 to 3600 seconds", 1, 3600, options.seconds)
OPTIONS = (
    options.value("name", "RUN", "the run's name or folder, or a job's MASTER_ADDR:PORT", "", nargs="?"),
    options.NODES,
    options.PYTHON,
    options.RUNS_DIR,
    options.value("--every", "S", "seconds between pictures (2; 10 where they are printed)", None, _INTERVAL),
    options.WATCH[0],
    options.flag("--once", "print one picture and leave"),
    options.flag("--quiet", "print only the pictures"),
)
BEAT_S = 10.0
"""Seconds between lines to a node; its process ends after a minute without one."""
TURN_S = 0.5
"""Shortest time between two updates, except for the first picture."""
GONE_S = 5.0
"""Seconds after which a job is over if no rank of it was seen."""
FOLDS: dict[By, str] = {"state": "folded by state and place", "node": "folded by node", "rank": "not folded"}


class Top:
    """The state of the job, the keys typed, and the picture of both."""

    def __init__(self, job: WatchedJob, transport: Transport, screen: Screen, args: argparse.Namespace):
        self.job, self.transport, self.screen, self.once = job, transport, screen, args.once
        self.every_s = args.every or (2.0 if args.once else screen.every_s)
        self.hang, self.event = watch_of(args.hang_report, 0.0, transport), ""
        if self.hang:
            self.hang.keeps_times = False
        self.printed, self.seen, self.earlier = Printed(), JobState(), dict[int, str]()
        self.ranks: JobLook | None = None
        self.lines: list[RowLine] = []
        self.began_s = self.seen_s = time.monotonic()
        self.drawn_s, self.read_s = 0.0, -math.inf
        self.by: By = "state"
        self.opened: set[Hashable] = set()
        self.chosen: Hashable = None
        self.filter = self.note = self.end_words = ""
        self.asks = ""
        """The meaning of typed keys: "filter", or the answer to "end"."""
        local = tuple(host.name for host in transport.hosts if host.local)
        names = [host.name for host in transport.hosts if not host.local or host.name == local[0]]
        self.nodes = [WatchedNode(name, local if len(local) > 1 else (), self.is_wanted) for name in names]
        for number, node in enumerate(self.nodes):
            words = f"{self.every_s:g}", "" if number else job.journal
            way = transport.start(node.name, program("snapshot.watch"), words, node, label="ringup-top")
            node.send = way.write

    def is_wanted(self, rank: Mapping[str, Any]) -> bool:
        """Whether a rank, as a node describes it, belongs to the shown job."""
        if not self.ranks or rank["run"] != self.ranks.run:
            return False
        address = ":".join(word for word in rank["job"][:2] if word)
        return bool(self.ranks.run) or address == self.ranks.address

    # -- what is known -----------------------------------------------------------------------

    def update(self, now_s: float) -> None:
        """Process everything that was received."""
        job, printed = self.job, self.printed
        job.read_record()
        for node in self.nodes:
            printed.read_journal(node.printed, now_s)
            node.printed.clear()
        if job.folder and not job.journal and now_s - self.read_s >= self.every_s:
            self.read_s = now_s
            printed.read_files(job.folder, now_s)
        stalled = self.hang.stalled if self.hang else None
        plan = job.plan.nodes if job.plan else ()
        is_over = job.how_ended or printed.end  # the nodes may report it later
        nodes = [] if is_over else self.nodes
        self.seen = JobState(
            before=[node.before for node in nodes],
            now=[node.now for node in nodes],
            stacks={key: rank for node in self.nodes for key, rank in node.stacks.items()},
            moved={key: move for node in self.nodes for key, move in node.moved.items()},
            usage={key: used for node in self.nodes for key, used in node.usage.items()},
            missing=[*(m.rank for m in stalled.missing), *(n for n, _ in stalled.apart)] if stalled else (),
            codes={**job.codes, **printed.codes},
            failed=job.failure.rank if job.failure else None,
            planned={node.first_rank + i: node.node for node in plan for i in range(node.nproc)},
            earlier=self.earlier,
            steps={rank: step for rank, one in printed.ranks.items() if (step := one.step(now_s))},
        )
        before, self.ranks = self.ranks, job_of(self.seen, job.name)
        if self.ranks:
            self.seen_s = now_s
            if before and before.run != self.ranks.run:  # another attempt
                self.earlier.clear()
            self.earlier.update({rank.rank: rank.node for rank in self.ranks.ranks if rank.rank >= 0})
        is_told = any(node.answers for node in self.nodes)
        rows = rank_rows(self.seen, self.ranks) if is_told else []
        rows = [row for row in rows if self.filter in f"{row.name} {row.node} {row.state} {row.where}"]
        self.lines = lines_of(rows, self.by, self.opened)

    def unseen(self) -> list[int]:
        """Ranks of the job that no node has, and that have not ended well."""
        return [rank for rank in self.ranks.unseen if self.seen.codes.get(rank) != 0] if self.ranks else []

    def judge(self, now_s: float) -> None:
        """Detect a hang if every rank is seen: an unseen rank may be the one to blame."""
        is_whole = self.ranks and not self.unseen() and not any(node.now.problem for node in self.nodes)
        if not (self.hang and self.ranks and is_whole):
            return
        ended = [RankEnd(rank, -1, self.earlier.get(rank, ""), 0, 0) for rank in self.ranks.unseen]
        for node in self.nodes:
            node.output_s = self.printed.latest_s or node.moved_s
            here = [rank for rank in self.ranks.ranks if rank.node == node.name or node.places]
            ends = [RankEnd(r.rank, r.local_rank, r.node, r.pid, None) for r in here]
            ends += [end for end in ended if end.node == node.name or node.places]
            node.ranks, node.plan.nproc = dict(enumerate(ends)), len(ends)
        nodes: Sequence[Any] = self.nodes  # as much of a NodeRun as is needed
        self.hang.on_time(now_s, nodes, self.on_event)

    def on_event(self, event: Event) -> None:
        self.event = event.text

    def verdict(self, now_s: float) -> tuple[tuple[str, ...], str]:
        """Lines that say why the job makes no progress, and their colour."""
        hang = self.hang
        if not hang or not self.ranks:
            return (), ""
        quiet_s = hang.quiet_s(now_s)
        if quiet_s < hang.apart_s:
            self.event = ""
            return (), ""
        if hang.stalled:
            words = f"HANGS: no progress for {show_seconds(quiet_s)}: {hang.stalled.headline}"
            shown = set(grouping.lines(self.ranks.ranks))  # as rows
            return (words, *(line for line in hang.stalled.lines if line not in shown)), "error"
        if unseen := self.unseen():
            words = f"{plural(len(unseen), 'rank')} cannot be seen from here, so no hang is judged"
            return (words,), "warning"
        what = "printed" if self.printed.latest_s else "read, written or sent"
        words = f"Nothing was {what} for {show_seconds(quiet_s)}; verdict after {show_seconds(hang.window_s)}"
        return (*(self.event.splitlines() or [words]),), "warning"

    def title(self) -> str:
        ranks, plan = self.ranks, self.job.plan
        if not ranks:
            is_told = any(node.answers for node in self.nodes)
            return f"{self.job.name or 'job'}: {'no ranks run now' if is_told else 'no answer of a node yet'}"
        name = f"run {ranks.run}" if ranks.run else f"job at {ranks.address or 'no rendezvous'}"
        script = f" {Path(plan.job.script).name}," if plan else ""
        nodes = plural(len({rank.node for rank in ranks.ranks}), "node")
        age = show_seconds(max(rank.age_s for rank in ranks.ranks))
        title = f"{name}:{script} {plural(len(ranks.ranks), 'rank')} on {nodes}, {age} old"
        return f"{title}; filter: {self.filter}" if self.filter else title

    def view(self, now_s: float) -> View:
        keys, pairs = [line.key for line in self.lines], zip(self.seen.before, self.seen.now, strict=True)
        chosen = keys.index(self.chosen) if self.chosen in keys else 0
        self.chosen = keys[chosen] if keys else None
        words = ((new.node, new.problem or "; ".join(troubles(old.state, new.state))) for old, new in pairs)
        notes = folding.of_nodes({name: what for name, what in words if what})
        network: dict[str, dict[str, float]] = {}
        for name, interface, rate in rates(self.seen.before, self.seen.now):
            if rate >= 1:
                network.setdefault(name, {})[interface] = rate
        shown = self.printed.ranks.get(self.lines[chosen].rows[0].rank) if keys else None
        stacks_s = min((node.stacks_s for node in self.nodes if node.stacks_s), default=0.0)
        verdict, colour = self.verdict(now_s)
        return View(
            printable(self.title()),
            tuple(printable(text) for text in verdict),
            colour,
            self.lines,
            network,
            notes=[*map(printable, notes)],
            stacks_age_s=now_s - stacks_s if stacks_s else None,
            chosen=chosen,
            tail=[*shown.lines] if shown else (),
            no_tail="nothing printed yet" if self.printed.latest_s else "its output is not read here",
            prompt=printable(self.prompt(), 1000),
        )

    # -- what is typed -----------------------------------------------------------------------

    def prompt(self) -> str:
        if self.asks == "end":
            return f"End {self.job.name or 'this job'} on every node? y: yes, any other key: no"
        if self.asks == "filter":
            return f"filter: {self.filter}_   Enter: done, Escape: no filter"
        return self.note

    def press(self, key: str) -> None:
        keys, self.note = [line.key for line in self.lines], ""
        if self.asks == "filter":
            letter = key if len(key) == 1 and key.isprintable() else ""
            typed = self.filter[:-1] if key == "back" else self.filter + letter
            self.filter = "" if key == "escape" else typed
            self.asks = "" if key in ("enter", "escape") else "filter"
        elif self.asks == "end":
            self.asks, self.note = "", self.job.end() if key == "y" else "not ended"
        elif key in ("up", "k", "down", "j") and self.chosen in keys:
            at = keys.index(self.chosen) + (1 if key in ("down", "j") else -1)
            self.chosen = keys[max(0, min(at, len(keys) - 1))]
        elif key == "enter":
            self.opened ^= {self.chosen}
        elif key == "f":
            kinds = list(FOLDS)
            self.by = kinds[(kinds.index(self.by) + 1) % len(kinds)]
            self.note = FOLDS[self.by]
        elif key == "s":
            self.note = "stacks are being read"
            for node in self.nodes:
                node.tell(type="look", number=0, mode="stacks")
        elif key in ("/", "e"):
            self.asks = {"/": "filter", "e": "end"}[key]
        elif key == "q":
            raise KeyboardInterrupt

    # -- the loop ----------------------------------------------------------------------------

    def end_of_job(self, now_s: float) -> str:
        """Why there is nothing more to watch; "" while there is."""
        job, is_told = self.job, all(node.answers or node.state == "closed" for node in self.nodes)
        if how := job.how_ended:
            where = terminal.path_shown(job.folder or "")
            return f"The run has ended: {printable(how)}\nmore: ringup logs {where}"
        is_gone = not self.ranks and is_told and now_s - self.seen_s > GONE_S
        if self.printed.end or (is_gone and job.journal and self.earlier):
            return f"The run has ended. `ringup attach {job.name}` tells how."
        if all(node.state == "closed" for node in self.nodes):
            return "No node can be watched."
        if is_gone and not job.folder and self.earlier:
            return "The job's ranks are gone."
        if not self.ranks and ((is_gone and not job.folder) or (self.once and self.is_known())):
            return "You have no running ranks on these nodes (others: -H NODES)."
        if is_gone and not job.journal and not ((who := job.owner()) and who.is_alive):
            return "The process that has this run is gone. `ringup clean` finds what it left."
        return ""

    def is_known(self) -> bool:
        """Whether every node has reported enough for one picture."""
        open_ones = [node for node in self.nodes if node.state != "closed"]
        return all(node.stacks_s and not node.before.problem for node in open_ones)

    def is_due(self, now_s: float) -> bool:
        """Whether a picture is due; printed pictures start once there is something to show."""
        if self.once or not (self.screen.has_keys or self.drawn_s):
            is_late = not self.once and now_s - self.began_s >= self.every_s
            return is_late or self.is_known()
        return self.screen.has_keys or now_s - self.drawn_s >= self.every_s

    def draw(self, now_s: float, *, is_last: bool = False) -> None:
        """`is_last`: without the keys, as the picture stays on the screen."""
        self.drawn_s = now_s
        lines = picture(self.view(now_s), *self.screen.size(), self.screen.has_keys)
        self.screen.draw(lines[:-1] if is_last and self.screen.has_keys else lines)

    def run(self) -> int:
        """The exit code, once the job has ended; raises KeyboardInterrupt when the user leaves."""
        beat_s = updated_s = 0.0
        size = self.screen.size()
        while True:
            self.transport.turn(0.1)
            now_s, pressed = time.monotonic(), [*self.screen.typed()]
            for key in pressed:
                self.press(key)
            if now_s - beat_s >= BEAT_S:
                beat_s = now_s
                for node in self.nodes:
                    node.send(b"\n")
            is_awaited = not self.drawn_s and self.is_known()
            is_same = not pressed and not is_awaited and size == self.screen.size()
            if is_same and now_s - updated_s < TURN_S:
                continue
            updated_s, size = now_s, self.screen.size()
            self.judge(now_s)
            self.update(now_s)
            self.end_words = self.end_of_job(now_s)
            is_due = self.is_due(now_s)
            if is_due or (self.end_words and (self.screen.has_keys or self.earlier or not self.drawn_s)):
                self.draw(now_s, is_last=bool(self.end_words))
            if self.end_words or (self.once and is_due):
                return 0 if self.earlier or self.ranks else 1


def run(args: argparse.Namespace) -> int:
    job, code = job_named(args), 0
    job.read_record()
    with Transport(job.hosts, ssh_config=job.ssh_config, python=args.python) as transport:
        use_interpreters(transport, job.plan)
        with Screen() if args.once else screen_for() as screen:
            top = Top(job, transport, screen, args)
            try:
                code = top.run()
            except Ended:
                raise
            except KeyboardInterrupt:
                top.draw(time.monotonic(), is_last=True)
    if top.end_words:
        terminal.show(top.end_words)
    return code
