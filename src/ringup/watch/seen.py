"""One rank as two looks show it, and what is said of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ringup.looks import RankLook
from ringup.looks.moves import Move
from ringup.looks.places import Place, doing, reads

Kind = Literal["stalled", "busy", "flowing", "waiting", "meeting", "idle", "unknown"]
PENDING_S = 50.0
"""A collective that has been begun so long ago, and has not ended, is waited for."""
LEAST_FAULTS = 16
"""So many pages touched for the first time, while it stands in one read: what it reads arrives."""


@dataclass(frozen=True)
class Ended:
    """A rank that ended with code 0."""

    rank: int
    node: str


@dataclass(frozen=True)
class Missing:
    """A rank the others wait for."""

    rank: int
    """Below 0 when only its script knows it."""
    node: str
    where: str
    """"data.py:14 in fetch: ...", or what the kernel says."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a silence."""

    kind: Kind
    headline: str
    lines: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    collective: str = ""
    is_open: bool = False
    """Whether the flight recorder may tell more: everybody waits, somewhere."""

    @property
    def is_stalled(self) -> bool:
        """Whether it will not go on by itself, as far as can be told."""
        return self.kind == "stalled"


@dataclass(frozen=True)
class Seen:
    """One rank, judged."""

    look: RankLook
    place: Place
    move: Move | None
    disk_bytes_per_s: float = 0.0
    """Of its node, while it waits for that."""
    long_s: float = PENDING_S

    @property
    def is_idle(self) -> bool:
        if self.look.state in ("T", "t"):
            return True
        # Ready to run is not stuck: so little CPU time is what a crowded node has left for it.
        if self.look.state == "R" or self.move is None:
            return False
        # Who polls wakes often, for nothing.
        return self.move.is_idle or (self.move.uses_nothing and self.is_asleep)

    @property
    def is_asleep(self) -> bool:
        """Whether it has put itself to sleep, as who polls does."""
        return doing(self.look) == "asleep"

    @property
    def fills(self) -> bool:
        """Whether what it reads arrives: bytes are counted when the call ends, and one may be of 2 GiB."""
        return self.move is not None and self.move.faults >= LEAST_FAULTS and reads(self.look)

    @property
    def works(self) -> bool:
        """Whether it, or the disk it waits for, gets on."""
        on = self.disk_bytes_per_s > 0 or self.fills
        return not self.is_idle or (on and self.look.state not in ("T", "t"))

    @property
    def is_pending(self) -> bool:
        """Whether a collective that it has begun has not ended for long, by torch's flight recorder."""
        flight = self.look.flight
        pending = [e for e in flight.entries if not (e.is_done or e.is_p2p)] if flight else []
        return flight is not None and any(flight.age_s(e) >= self.long_s for e in pending)

    @property
    def may_compute(self) -> bool:
        """Whether it waits for the GPU, which may wait for others, or may as well have work to do."""
        return self.place.kind == "device" and not self.is_pending

    @property
    def spins(self) -> bool:
        """The same, with CPU time spent on it, as CUDA does."""
        return self.may_compute and not self.is_idle

    @property
    def waits(self) -> bool:
        """Whether it waits for others.  In backward() only idleness tells waiting from computing."""
        if self.look.state in ("T", "t"):
            return False
        if self.place.kind == "backward":
            return (self.is_idle or self.is_pending) and self.look.state != "D"
        return self.place.waits

    @property
    def is_open(self) -> bool:
        """Whether it may wait or not: no stack, and the kernel does not say either."""
        return self.place.kind == "unknown" and not doing(self.look)
