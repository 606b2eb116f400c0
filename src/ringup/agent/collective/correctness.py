"""Compare every element with a value computed without communication; inputs differ by rank and position."""

import functools

import torch
import torch.distributed as dist

from ringup.agent.collective.world import is_own, report, short

COUNTS = (1, 1021, 262147)
"""Elements: one, and two primes.  The larger prime is about 1 MiB of float32."""
LARGE_COUNT = 8388608
GATHERED_COUNT = 2 * LARGE_COUNT - 3
"""For the parts of all ranks together; every rank holds them twice, so more could fill a GPU."""
MEMORY_BYTES = 64 << 20
PATTERN = 251


def positions(count, device):
    """0, 1, ... 250, 0, 1, ...: the period is a prime, so a shift by any power of two is detected."""
    return torch.arange(count, device=device, dtype=torch.int64) % PATTERN


def first_difference(found, wanted):
    """Index, found value and expected value of the first difference; None if equal."""
    wrong = (found != wanted).nonzero()
    if not len(wrong):
        return None
    at = int(wrong[0])
    return {"index": at, "wrong": len(wrong), "found": found[at].item(), "wanted": wanted[at].item()}


def all_reduce(world, members, group, count, kind=torch.int64):
    """The sum of (rank + 1) * (position + 1): exact in integers, and in float32 below 2**24."""
    base = positions(count, world.device).to(kind) + 1
    total = sum(rank + 1 for rank in members)
    if kind == torch.float32 and total * PATTERN >= 1 << 24:
        return None
    value = base * (world.rank + 1)
    dist.all_reduce(value, group=group)
    world.wait()
    return first_difference(value, base * total)


def broadcast(world, members, group, count):
    """From the last member: (root + 1) * 1000 + position."""
    root = members[-1]
    base = positions(count, world.device)
    value = base + (root + 1) * 1000 if world.rank == root else torch.zeros_like(base)
    dist.broadcast(value, root, group=group)
    world.wait()
    return first_difference(value, base + (root + 1) * 1000)


def all_gather(world, members, group, count):
    """Each member's (rank + 1) * 1000 + position, in order."""
    count = max(1, min(count, GATHERED_COUNT // len(members)))
    base = positions(count, world.device)
    parts = [torch.zeros_like(base) for _ in members]
    dist.all_gather(parts, base + (world.rank + 1) * 1000, group=group)
    world.wait()
    for rank, part in zip(members, parts):
        if wrong := first_difference(part, base + (rank + 1) * 1000):
            wrong.update({"count": count, "from": rank})
            return wrong
    return None


CHECKS = {
    "all_reduce": all_reduce,
    "all_reduce float32": functools.partial(all_reduce, kind=torch.float32),
    "broadcast": broadcast,
    "all_gather": all_gather,
}


def memory(world):
    """Write a pattern to the device's memory and read it back; None if it is unchanged."""
    written = torch.arange(PATTERN, dtype=torch.uint8).repeat(MEMORY_BYTES // PATTERN)
    back = (written.to(world.device) ^ 255).to("cpu")
    return first_difference(back, written ^ 255)


def wrong_results(world, members, group, counts):
    """Operations with a wrong result here, each with its first difference; an exception ends the list."""
    found = []
    for name, check in CHECKS.items():
        for count in counts:
            world.begin()
            try:
                wrong = check(world, members, group, count)
            except Exception as error:
                if is_own(error):
                    raise
                return found + [{"op": name, "count": count, "error": short(error)}]
            # Continue after a wrong result: other ranks may have right results and continue.
            if wrong and not any(one["op"] == name for one in found):
                found.append({"op": name, "count": count, **wrong})
    return found


class Broken(Exception):
    """A whole group failed, so the rank that caused it is unknown."""


class Search:
    """Tests of smaller groups; every rank calls every method with the same arguments."""

    def __init__(self, world, counts):
        self.world, self.counts, self.round = world, counts, 0

    def test(self, groups):
        """Whether each group (a list of ranks, disjoint) gets right results, in order.  Raises Broken."""
        self.round += 1
        world, found = self.world, []
        made = [world.group(members) for members in groups]
        for members, group in zip(groups, made):
            if world.rank in members:
                found = wrong_results(world, members, group, self.counts)
        is_broken = any("error" in one for one in found)
        fine = world.agree("round%d" % self.round, None if is_broken else not found)
        if None in fine:
            raise Broken("a group of ranks failed during the search for the faulty rank")
        return [all(fine[rank] for rank in members) for members in groups]

    def failing(self, units, good):
        """The units (lists of ranks) that fail with a `good` unit, or in pairs if no good one is known."""
        last = len(units) // 2 * 2
        pairs = [sorted(units[i] + units[i + 1]) for i in range(0, last, 2)]
        suspects = []
        for i, is_fine in enumerate(self.test(pairs) if pairs else ()):
            good = good or units[2 * i] if is_fine else good
            suspects += [] if is_fine else units[2 * i : 2 * i + 2]
        suspects += units[last:]
        for unit in units[:last][:2] if units[last:] else ():
            if not good and self.test([sorted(unit + units[-1])])[0]:
                good = units[-1]
        others = [unit for unit in suspects if unit is not good]
        return [unit for unit in others if not good or not self.test([sorted(unit + good)])[0]]


def isolate(world, counts):
    """The ranks with wrong results, perhaps several: test nodes, then their ranks, or nodes in pairs."""
    search = Search(world, counts)
    nodes = sorted(world.nodes.values())
    several = [ranks for ranks in nodes if len(ranks) > 1]
    fine = search.test(several) if several else []
    bad = [ranks for ranks, is_fine in zip(several, fine) if not is_fine]
    good = next((ranks[:1] for ranks, is_fine in zip(several, fine) if is_fine), None)
    found = [search.failing([[rank] for rank in ranks], good) or [ranks] for ranks in bad]
    if not bad and (len(nodes) > 1 or not several):
        found = [search.failing(nodes, None)]
    return [rank for units in found for unit in units for rank in unit]


def test(world):
    """`ringup test` on this rank; True if all is right."""
    wrong = memory(world)
    found = [dict(wrong, op="memory", count=MEMORY_BYTES)] if wrong else []
    counts = COUNTS + ((LARGE_COUNT,) if world.device.type == "cuda" else ())
    found += wrong_results(world, list(range(world.size)), None, counts)
    report("result", ok=not found, wrong=found[:8])
    if any("error" in one for one in found):
        world.roll_call()
    by_rank = world.agree("results", [["error" in one, one["op"], one["count"]] for one in found])
    everything = [one for ones in by_rank for one in ones]
    if not everything or any(is_broken for is_broken, _, _ in everything):
        return not everything  # a broken group cannot be used to search
    suspects = [rank for rank, ones in enumerate(by_rank) if any(op == "memory" for _, op, _ in ones)]
    counts = sorted({count for _, op, count in everything if op != "memory"})
    try:
        report("suspects", ranks=suspects or isolate(world, counts[:2]))
    except Broken as error:
        report("suspects", ranks=[], error=str(error))
    return False
