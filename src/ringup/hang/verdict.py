"""
The verdict on two snapshots of a silent run.

The verdict is *stalled* only if ranks wait and the missing ranks have gained neither CPU time nor bytes, or
if all ranks wait and nothing moves.  A rank's stack shows whether it waits, never its CPU time: NCCL polls
while it waits, Gloo sleeps.  Every other case is reported as busy, with its activity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ringup.flight_recorder.compare import Difference, compare, roots, show_group
from ringup.flight_recorder.dump import Entry, Flight
from ringup.hang import grouping, ras
from ringup.hang.activity import Move, busiest_child, flowing, identity, moves, troubles, written
from ringup.hang.snapshots import NodeLook, RankLook, spread
from ringup.hang.stack_frames import TRANSFERS, Place, doing, place_of, reads, waits_for_disk
from ringup.units import grouped, printable, show_bytes, show_ranks, show_seconds, summarize_names

MOST_NAMED = 8
GPU = ("the GPU", "the devices")
END = "destroy_process_group"
LEAST_ROUNDS = 3


Kind = Literal["stalled", "busy", "flowing", "waiting", "meeting", "idle", "unknown"]
PENDING_S = 50.0
"""A collective that is pending for this long counts as waiting."""
STUCK_S = 300.0
"""
Collectives that all ranks have had pending for this long never end: a GPU may first have other work queued,
but a queue holds about a thousand kernels.
"""
LEAST_SPIN, MOST_OF_A_SPIN = 0.5, 64 << 10
"""Cores that a rank which polls its GPU uses or waits for, and bytes that its sockets may carry meanwhile."""
LEAST_FAULTS = 16
"""Pages touched for the first time during one read; this many show that its data arrives."""


DONE = "ended with code 0"


@dataclass(frozen=True)
class Missing:
    rank: int
    """Negative if only its script knows it."""
    node: str
    where: str
    """"data.py:14 in fetch: ...", the kernel's state of it, or `DONE`."""
    pid: int = field(default=0, repr=False)


@dataclass(frozen=True)
class Verdict:
    kind: Kind
    headline: str
    lines: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    collective: str = ""
    is_open: bool = False
    """Whether torch's flight recorder may show more: every rank is in a wait."""
    in_init: bool = False
    """Whether all ranks wait at the start of a process group, so that no collective has been called yet."""
    in_loop: bool = False
    """Whether the waiting ranks go on with calls that they made before, as in another step of training."""
    apart: tuple[tuple[int, str], ...] = ()
    """Rank and node of those whose calls differ in one collective: the minority, or all in a tie."""

    @property
    def rule(self) -> str:
        """The problem's name in `ringup logs`; "" if the run may continue."""
        if not self.is_stalled:
            return ""
        if self.apart:
            return "collective-mismatch"
        if self.in_loop and self.missing and all(one.where == DONE for one in self.missing):
            return "uneven-batches-between-ranks"
        if self.missing:
            return "rank-fell-behind"
        return "init-never-finished" if self.in_init else "collective-stalled"

    @property
    def is_stalled(self) -> bool:
        return self.kind == "stalled"


@dataclass(frozen=True)
class JudgedRank:
    look: RankLook
    place: Place
    move: Move | None
    disk_bytes_per_s: float = 0.0
    """Disk writes of its node, while it waits for the disk."""
    long_s: float = PENDING_S

    @property
    def is_idle(self) -> bool:
        # A runnable rank is not stuck: a crowded node may leave it this little CPU time.
        if self.look.state in ("T", "t", "R") or self.move is None:
            return self.look.state in ("T", "t")
        # A polling rank wakes often without doing anything.
        return self.move.is_idle or (self.move.uses_nothing and self.is_asleep)

    @property
    def is_asleep(self) -> bool:
        """Whether it sleeps between two polls."""
        return doing(self.look) == "asleep"

    @property
    def fills(self) -> bool:
        """Whether data of its read arrives: bytes are counted only at the call's end, maybe after 2 GiB."""
        return self.move is not None and self.move.faults >= LEAST_FAULTS and reads(self.look)

    @property
    def tcp_rate(self) -> str:
        """ "1 MiB/s over TCP"."""
        rate = self.move.tcp_bytes / self.move.seconds if self.move else 0.0
        where = "on the interfaces of its network namespace" if self.look.namespace else "over TCP"
        return f"{show_bytes(rate)}/s {where}"

    @property
    def works(self) -> bool:
        """Whether it, or the disk it waits for, makes progress."""
        on = self.disk_bytes_per_s > 0 or self.fills
        return not self.is_idle or (on and self.look.state not in ("T", "t"))

    @property
    def is_pending(self) -> bool:
        """Whether it has a collective that is pending for long, by torch's flight recorder."""
        return self.pending_s >= self.long_s

    @property
    def pending_s(self) -> float:
        """The age of its oldest pending collective."""
        flight = self.look.flight
        return max((flight.age_s(e) for e in self.pending), default=0.0) if flight else 0.0

    @property
    def pending(self) -> list[Entry]:
        flight = self.look.flight
        return [e for e in flight.entries if not (e.is_done or e.is_p2p)] if flight else []

    @property
    def repeats(self) -> bool:
        """Whether it waits in backward(), or in a call that it has ended before at the same line."""
        entries = self.look.flight.entries if self.look.flight else ()
        ended = {(e.group, e.signature, e.where) for e in entries if e.is_done}
        pending = [e for e in entries if not e.is_done]
        again = pending and all((e.group, e.signature, e.where) in ended for e in pending)
        return self.place.kind == "backward" or bool(again)

    @property
    def only_computes(self) -> bool:
        """
        Whether it uses CPU time and nothing else.

        `float(loss)` and `if done:` wait for the GPU inside C, in a line that may also compute.
        """
        if self.move is None or self.move.transfers or self.place.kind != "own":
            return False
        is_quiet = 0 <= self.move.io_bytes <= MOST_OF_A_SPIN
        return is_quiet and self.move.cpu_s + self.move.queued_s >= LEAST_SPIN * self.move.seconds

    @property
    def may_compute(self) -> bool:
        """Whether it waits for the GPU, which may wait for other ranks or may still have work."""
        return self.place.kind == "device" and not self.is_pending

    @property
    def spins(self) -> bool:
        """The same, while it uses CPU time, as CUDA does."""
        return self.may_compute and not self.is_idle

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks.  In backward() only idleness separates waiting from computing."""
        if self.look.state in ("T", "t"):
            return False
        if self.place.kind == "backward":
            return (self.is_idle or self.is_pending) and self.look.state != "D"
        return self.place.waits

    @property
    def is_elsewhere(self) -> bool:
        """Whether it waits in a call that NCCL's RAS does not count: a transfer, the start of a group."""
        return self.place.kind == "meeting" or self.place.what.startswith(TRANSFERS)

    @property
    def is_open(self) -> bool:
        """Whether its state is unknown: no stack, and no answer from the kernel."""
        return self.place.kind == "unknown" and not doing(self.look)


def judge(
    first: Sequence[NodeLook],
    second: Sequence[NodeLook],
    *,
    ended: Iterable[Missing] = (),
    expected: int = 0,
    long_s: float = PENDING_S,
) -> Verdict:
    """
    `first` was taken some seconds before `second`, which has stacks; `ended` are ranks that exited with 0.

    A collective that is pending for `long_s` counts as waiting.
    """
    return _Case(first, second, ended, long_s).verdict(expected)


class _Case:
    """Two snapshots of the same ranks, sorted into waiting, working and missing ranks."""

    def __init__(
        self, first: Sequence[NodeLook], second: Sequence[NodeLook], ended: Iterable[Missing], long_s: float
    ) -> None:
        self.first, self.second = first, second = spread(first, second)
        known, disks, ranks = moves(first, second), written(first, second), []
        for node in second:
            for look in node.ranks:
                is_at_disk = waits_for_disk(look) or any(map(waits_for_disk, look.children))
                rate, move = disks.get(node.node, 0.0) if is_at_disk else 0.0, known.get(identity(look))
                ranks.append(JudgedRank(look, place_of(look.frames), move, rate, long_s))
        self.ranks = sorted(ranks, key=lambda seen: (seen.look.rank, seen.look.node))
        self.waiting = [seen for seen in self.ranks if seen.waits]
        self.missing = [seen for seen in self.ranks if not seen.waits and not seen.is_open]
        self.busy = [seen for seen in self.missing if seen.works]
        self.gone = [one for one in ended if one.rank not in {seen.look.rank for seen in ranks}]
        self.is_idle = all(seen.is_idle for seen in ranks)
        # The call of most waiting ranks: "all_reduce".
        places = Counter(seen.place.what for seen in self.waiting)
        self.what = places.most_common(1)[0][0] if places else ""
        self.folded = grouping.lines(seen.look for seen in ranks)
        self.lines = (*_recorder_lines(second), *grouping.ras_lines(second), *_node_lines(first, second))

    def _say(
        self,
        kind: Kind,
        headline: str,
        named: Iterable[Missing] = (),
        *,
        lines: Sequence[str] = (),
        **more: Any,
    ) -> Verdict:
        """`more`: other fields of the verdict."""
        shown = (*(lines or self.folded), *self.lines)
        if len(calls := {seen.place.what for seen in self.waiting}) > 1 and "new_group" in calls:
            shown += ("new_group waits until every rank of the job has called it, members or not",)
        return Verdict(kind, headline, shown, tuple(named), **{"collective": self.what, **more})

    def verdict(self, expected: int) -> Verdict:
        """The verdict on the silence; `expected` is the number of ranks of the job."""
        if not self.ranks:
            return self._say("unknown", "no rank is seen on the nodes")
        if self.busy:
            return self._if_it_spins() or self._some_are_busy()
        if not self.waiting:
            return self._nobody_waits()
        if silent := [printable(node.node, 64) for node in self.second if node.problem]:
            names = ", ".join(silent[:MOST_NAMED])
            return self._say("unknown", f"what the ranks on {names} do is not known", collective="")
        if round_about := self._goes_round():
            return self._say("idle" if self.is_idle else "waiting", round_about, collective="")
        if self.missing or self.gone:
            return self._some_are_missing()
        if len(self.ranks) < expected:
            count = f"{len(self.ranks)} of {expected} ranks have started"
            return self._say("meeting", f"{count}, and wait for the others", collective="")
        return self._all_wait()

    def _is_proven(self) -> bool:
        """
        Whether the waiting ranks certainly wait for others.

        A rank that spins at its GPU may wait for the GPU's own work.  If all waiting ranks do, the missing
        ones may have done their part: they have ended, or poll with time.sleep until the others have.
        """
        if not all(seen.spins for seen in self.waiting):
            return True
        if any(seen.look.flight and seen.look.flight.entries for seen in self.waiting):
            return False  # none of their collectives has been pending for long
        if not all(seen.is_asleep for seen in self.missing):
            return True
        late = {seen.look.rank for behind, seen in self._ras_named() if behind.is_counted}
        return not self.gone and all(seen.look.rank in late for seen in self.missing)

    def _goes_round(self) -> str:
        """
        The evidence that the ranks loop and do next to nothing; "" without it.

        The flight recorder has collectives begun after the first snapshot; or every main thread has woken
        several times (our own signals wake it twice), and the missing ranks sleep.
        """
        for seen in self.ranks:
            flight = seen.look.flight
            newest = max(flight.entries, key=lambda e: e.begun_ns, default=None) if flight else None
            if flight and newest and seen.move and 0 < flight.age_s(newest) < seen.move.seconds:
                return f"{grouping.name(seen.look)} has begun a collective {flight.age_s(newest):.0f} s ago"
        woke = all(seen.move and seen.is_idle and seen.move.switches >= LEAST_ROUNDS for seen in self.ranks)
        if woke and all(seen.is_asleep for seen in self.missing):
            return "the ranks wake now and then, but use almost no resources"
        return ""

    def _some_are_missing(self) -> Verdict:
        names = [f"{grouping.name(seen.look)} ({seen.look.node})" for seen in self.missing]
        gone = [f"rank {one.rank} ({one.node})" for one in self.gone]
        if not self._is_proven():
            who = [f"{name} uses nothing" for name in names]
            who += [f"{name} has {DONE}" for name in gone]
            return self._say(
                "waiting", f"{summarize_names(who, MOST_NAMED)}; {_at_gpu(self.waiting)}", is_open=True
            )
        names += [f"{name}, which has {DONE}," for name in gone]
        verb = "is" if len(names) == 1 else "are"
        of = f": the others wait for {self.what}" if self.what in GPU else f" from {self.what}"
        asleep = not self.gone and all(seen.is_asleep for seen in self.missing)
        is_open = all(seen.spins for seen in self.waiting) or asleep
        words = f"{summarize_names(names, MOST_NAMED)} {verb} missing{of}"
        in_loop = any(seen.repeats for seen in self.waiting)
        named = [*_named(self.missing), *self.gone]
        return self._say("stalled", words, named, is_open=is_open, in_loop=in_loop)

    def _if_it_spins(self) -> Verdict | None:
        """
        The verdict where all busy ranks may only poll their GPUs; None if they may as well compute.

        Calls that do not match never end, whatever the ranks do meanwhile.  Else the ranks that have not
        called what is pending must use nothing, and not sleep: such a rank may wait for one that computes.
        """
        if not all(seen.only_computes and seen.is_pending for seen in self.busy):
            return None
        if known := self._by_recorder(only="mismatch"):
            return known
        quiet = [seen for seen in self.missing if seen not in self.busy]
        unseen = any(node.problem for node in self.second)
        if self.waiting or unseen or not (quiet or self.gone) or any(seen.is_asleep for seen in quiet):
            return None
        calls = Counter(entry.op.lstrip("_") for seen in self.busy for entry in seen.pending)
        self.what = calls.most_common(1)[0][0]
        place = Place("collective", self.what, "")
        self.waiting, self.missing = [replace(seen, place=place) for seen in self.busy], quiet
        return self._some_are_missing()

    def _some_are_busy(self) -> Verdict:
        lines = [self._busy_line(seen) for seen in self.busy[:3]]
        lines += grouping.lines(seen.look for seen in self.ranks if not (seen.works or seen.waits))
        lines += grouping.lines(seen.look for seen in self.waiting)
        words = "ranks are busy"
        if self.waiting:
            verb = "is" if len(self.busy) == 1 else "are"
            words = f"{_who(self.busy)} {verb} busy; {len(self.waiting)} wait {_in(self.what)}"
        is_open = all(seen.place.kind == "backward" or seen.only_computes for seen in self.busy)
        return self._say("busy", words, lines=lines, is_open=is_open)

    def _busy_line(self, seen: JudgedRank) -> str:
        """ "rank 0 (node0): tokenize.py:33 in main; 98 % of a core, 12 MiB read or written"."""
        place = grouping.where(seen.place, doing(seen.look))
        line, move = f"{grouping.name(seen.look)} ({seen.look.node}): {place}", seen.move
        if move is None or move.seconds <= 0:
            return f"{line}; it has just begun"
        line += f"; {move.cpu_s / move.seconds:.0%} of a core, {show_bytes(move.io_bytes)} read or written"
        line += f" in {move.seconds:.0f} s"
        if move.transfers:
            line += f", {seen.tcp_rate}"
        if move.is_idle and seen.look.state == "R":
            line += "; it is ready to run but gets hardly any CPU time"
        if seen.disk_bytes_per_s:
            line += f"; its node writes {show_bytes(seen.disk_bytes_per_s)}/s to disks and file servers"
        if move.is_idle and seen.fills:
            line += "; the data it reads arrives"
        same = (rank for node in self.first for rank in node.ranks if identity(rank) == identity(seen.look))
        old = next(same, None)
        child = busiest_child(old, seen.look) if old else ""
        return f"{line}, most by {printable(child, 80)}" if child else line

    def _nobody_waits(self) -> Verdict:
        if not self.is_idle:
            return self._say("unknown", "no stack could be read")
        if held := [seen for seen in self.ranks if seen.look.state in ("T", "t", "D")]:
            words = f"{_who(held)} cannot continue, and no rank does anything"
            return self._say("stalled", words, _named(held))
        return self._say("idle", "no rank computes, reads or writes")

    def _all_wait(self) -> Verdict:
        if flows := flowing(self.first, self.second):
            # The traffic may be another program's; calls that do not match never end, with or without
            # traffic.
            known = self._by_recorder(only="mismatch") if self.is_idle else None
            node, name, rate = flows[0]
            words = f"{self._waiters()}, and data flows ({show_bytes(rate)}/s on {node} {name})"
            return known or Verdict("flowing", words, tuple(self.folded), (), self.what, self.is_idle)
        # Between processes of one node, data takes the loopback interface.
        if found := [(s.move.tcp_bytes, s) for s in self.waiting if s.move and s.move.transfers]:
            seen = max(found, key=lambda pair: pair[0])[1]
            words = f"{grouping.name(seen.look)} ({seen.look.node}) transfers {seen.tcp_rate}"
            return Verdict("flowing", f"{self._waiters()}, and {words}", tuple(self.folded), (), self.what)
        # The recorder comes first, because it knows each call's size and type.  In RAS, a rank that waits in
        # a call which does not match the others' also looks behind.
        if known := self._by_recorder() or self._by_ras():
            return known
        if not self.is_idle:
            pending_s = min(seen.pending_s for seen in self.ranks)
            if pending_s >= STUCK_S:
                words = f"each has a collective pending for {show_seconds(pending_s)} or longer"
                return self._say("stalled", f"{self._waiters()}; {words}, and no interface carries data")
            words = "CPU is spent, as NCCL does while it waits, so it is unknown whether they make progress"
            if pending_s:
                words += f" (a hang once all ranks' collectives are pending for {show_seconds(STUCK_S)})"
            return self._say("waiting", f"{self._waiters()}; {words}", is_open=True)
        if all(seen.may_compute for seen in self.waiting):
            words = f"{self._waiters()}; whether the GPU computes is unknown"
            return self._say("waiting", words, is_open=True)
        return self._by_place()

    def _waiters(self) -> str:
        """A sentence: the number of waiting ranks, and the ranks that cannot be seen."""
        unseen = [seen for seen in self.ranks if not seen.waits]
        if not unseen:
            return f"every rank waits {_in(self.what)}"
        count = len(self.ranks) - len(unseen)
        return f"{count} wait {_in(self.what)}; what {_who(unseen)} does is unknown"

    def _ras_named(self) -> list[tuple[ras.RankBehind, JudgedRank]]:
        """Ranks that NCCL reports as behind in both reports.  Containers may share pids."""
        found = []
        for behind in grouping.ras_behind(self.first) & grouping.ras_behind(self.second):
            same = [seen for seen in self.ranks if seen.look.pid == behind.pid]
            if len(same) > 1:
                same = [seen for seen in same if seen.look.node == behind.host]
            found += [(behind, seen) for seen in same]
        return found

    def _by_ras(self) -> Verdict | None:
        """
        Ranks that have launched less than the others in both reports, and no more in the second; or do not
        answer.

        If ranks wait for the GPU, or in a collective that some other ranks have not called, the majority may
        be the one that is wrong: then only a minority is named.
        """
        known = self._ras_named()
        counted = [(behind, seen) for behind, seen in known if behind.is_counted]
        if differing := {seen.look.rank: seen for behind, seen in counted if behind.is_apart}:
            # Each has launched more of one kind and less of another: no order of calls fits all of them.
            if any(seen.may_compute for seen in self.waiting):
                return None
            ranks = [*differing.values()]
            words = f"{_who(ranks)}: NCCL counts more collectives of one kind and fewer of another"
            apart = tuple(sorted((seen.look.rank, seen.look.node) for seen in ranks))
            return self._say("stalled", words, _named(ranks), is_open=True, apart=apart)
        late = {seen.look.rank: seen for _, seen in counted or known}
        if not late or any(seen.place.kind == "device" or seen.is_pending for seen in late.values()):
            return None
        if any(not behind.is_minor and not seen.is_elsewhere for behind, seen in counted):
            return None
        ranks = [late[number] for number in sorted(late)]
        words = "NCCL counts fewer collectives than on the others" if counted else "no answer to NCCL's RAS"
        return self._say("stalled", f"{_who(ranks)}: {words}", _named(ranks), is_open=True)

    def _by_recorder(self, only: str = "") -> Verdict | None:
        """
        Ranks that call something else or are behind, by torch's flight recorder; none if that is in doubt.

        If ranks use CPU time, only calls that are pending for long count: a rank that spins at its GPU and is
        behind may compute.
        """
        flights = {seen.look.rank: seen.look.flight for seen in self.ranks if seen.look.flight}
        differences = compare(flights)
        causes = {id(one): ranks for one, ranks in roots(differences)}
        for difference in differences:
            if difference.doubt or (only and difference.kind != only):
                continue
            blamed = causes.get(id(difference), ()) if difference.kind == "behind" else difference.ranks
            late = [seen for seen in self.ranks if seen.look.rank in blamed]
            if difference.kind == "behind" and any(seen.may_compute for seen in late):
                continue
            if difference.kind == "behind" and len(late) > len(difference.usual or ()):
                continue  # it is the majority: the others may be the ones that are wrong
            if not self.is_idle and not _is_long(difference, flights, self.ranks[0].long_s):
                continue
            named = _named(late)
            if difference.where and (difference.kind == "mismatch" or not all(s.place.where for s in late)):
                named = [replace(one, where=difference.where) for one in named]
            if difference.kind == "mismatch":
                apart = difference.ranks or (*(difference.odd or ()), *(difference.usual or ()))
                differ = tuple((s.look.rank, s.look.node) for s in self.ranks if s.look.rank in apart)
                return self._say("stalled", difference.text, named, apart=differ)
            if named:
                return self._say("stalled", difference.text, named)
        return None

    def _by_place(self) -> Verdict:
        """Ranks that wait at another place than most."""
        by_place = grouped(((seen.place.what, seen.place.where), seen) for seen in self.waiting)
        first, *rest = sorted(by_place.values(), key=len, reverse=True)
        odd = [seen for group in rest for seen in group]
        at_gpu = [seen for seen in odd if seen.may_compute]
        # A transfer needs only its two ranks, not the others.
        if odd and len(first) > len(odd) and not at_gpu and not first[0].place.what.startswith(TRANSFERS):
            where = " and ".join(sorted({grouping.where(seen.place) for seen in odd})[:2])
            others = grouping.where(first[0].place)
            words = f"{_who(odd)} wait{'s' * (len(odd) == 1)} in {where}, the others in {others}"
            return self._say("stalled", words, _named(odd), is_open=True)
        if at_gpu:
            return self._say("waiting", _at_gpu(at_gpu), is_open=True)
        if rest:
            return self._say("stalled", "the ranks wait in different collectives", is_open=True)
        if len(self.waiting) < len(self.ranks):
            return self._say("stalled", self._waiters(), is_open=True)
        in_init = all(seen.place.kind == "meeting" for seen in self.waiting) and self.what != END
        hint = "no interface carries data; they may disagree about which call this is, its shape or its type"
        cut = next((s.look for s in self.ranks if s.look.unanswered), None)
        if cut:
            hint = "the network is cut, or a node is down: `ringup check` tests it"
        if in_init:
            hint = "they may wait at an address where nobody listens, or for more ranks than were started"
        if len(groups := grouped((e.group, s.look.rank) for s in self.waiting for e in s.pending[:1])) > 1:
            places = [f"{show_ranks(ranks)} in {show_group(name)}" for name, ranks in groups.items()]
            shown = summarize_names(places, MOST_NAMED, "; ")
            hint = f"flight recorder: {shown} (ranks that share groups must enter them in the same order)"
        moves_not = f"{cut.node} gets no answer from {cut.unanswered[0]}" if cut else "nothing moves"
        words = f"every rank waits in {self.what}, at the same line, and {moves_not}"
        return self._say("stalled", words, lines=[*self.folded, hint], is_open=True, in_init=in_init)


def _who(ranks: Iterable[JudgedRank]) -> str:
    return grouping.who([seen.look for seen in ranks])


def _named(ranks: Iterable[JudgedRank]) -> list[Missing]:
    return [
        Missing(s.look.rank, s.look.node, grouping.where(s.place, doing(s.look)), s.look.pid) for s in ranks
    ]


def _in(what: str) -> str:
    """ "in all_reduce", "for the GPU"."""
    return f"for {what}" if what in GPU else f"in {what}"


def _at_gpu(waiting: Sequence[JudgedRank]) -> str:
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{_who(waiting)} {verb} for the GPU; whether the GPU computes is unknown"


def _is_long(difference: Difference, flights: Mapping[int, Flight], long_s: float) -> bool:
    """Whether the calls that do not match, or that some rank lacks, have been pending for long."""
    calls: list[tuple[int, Entry | None]] = [*(difference.usual or {}).items()]
    if difference.kind == "mismatch":
        # A broadcast ends on its root, whatever the other ranks call.
        calls += (difference.odd or {}).items()
        calls = [(rank, call) for rank, call in calls if call and not call.is_done]
    return bool(calls) and all(
        not call.is_done and flights[rank].age_s(call) >= long_s for rank, call in calls if call
    )


def _recorder_lines(second: Sequence[NodeLook]) -> Iterable[str]:
    """Differences in torch's flight recorder, or the note that it was read and has no entries of any rank."""
    flights = {rank.rank: rank.flight for node in second for rank in node.ranks if rank.flight}
    for difference in compare(flights)[:3]:
        doubt = f" (in doubt: {difference.doubt})" if difference.doubt else ""
        yield f"flight recorder: {difference.text}{doubt}"
    if flights and not any(flight.entries or flight.problem for flight in flights.values()):
        off = "it is off (`ringup env --debug` names its variable), or no collective has begun"
        yield f"torch's flight recorder has no entries: {off}"


def _node_lines(first: Sequence[NodeLook], second: Sequence[NodeLook]) -> Iterable[str]:
    before = {node.node: node.state for node in first if not node.problem}
    uncounted = []
    for node in second:
        name = printable(node.node, 64)
        if node.problem:
            yield f"{name}: {node.problem}"
        else:
            yield from (f"{name}: {words}" for words in troubles(before.get(node.node), node.state))
            if ends := dict.fromkeys(end for rank in node.ranks for end in rank.unanswered):
                shown = printable(summarize_names(ends, MOST_NAMED))
                yield f"{name}: no answer from {shown}, though the kernel sent the data again and again"
            if elsewhere := [rank for rank in node.ranks if rank.namespace]:
                words = "only the traffic of its interfaces is known, not that of each rank"
                yield f"{name}: another network namespace has {grouping.who(elsewhere)}; {words}"
            elif node.ranks and node.transfers is None:
                uncounted.append(name)
    if uncounted:
        words = "the kernel does not report them; a rank that only transfers data looks idle"
        yield f"{summarize_names(uncounted, 1)}: bytes over TCP are not counted: {words}"
