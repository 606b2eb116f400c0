"""
Are the results right?  Every element on every rank against a value computed without communication.

Inputs differ by rank and by position, so that a missing, repeated or shifted contribution shows.
"""

import torch
import torch.distributed as dist

from prove_world import is_own, say, short

COUNTS = (1, 1021, 262147)
"""Elements: one, an odd number in one packet, and about a mebibyte that is no multiple of anything."""
LARGE_COUNT = 8388608
GATHERED_COUNT = 2 * LARGE_COUNT - 3
"""Of all ranks' parts together, which every rank holds twice over: a thousand large ones would fill a GPU."""
MEMORY_BYTES = 64 << 20
PATTERN = 251


def positions(count, device):
    """0, 1, ... 250, 0, 1, ...: a prime, so that a shift by any power of two shows."""
    return torch.arange(count, device=device, dtype=torch.int64) % PATTERN


def first_difference(found, wanted):
    """Index, value found and value wanted of the first difference; None where there is none."""
    wrong = (found != wanted).nonzero()
    if not len(wrong):
        return None
    at = int(wrong[0])
    return {"index": at, "wrong": len(wrong), "found": found[at].item(), "wanted": wanted[at].item()}


def all_reduce(world, members, group, count):
    """The sum of (rank + 1) * (position + 1): exact, in integers."""
    base = positions(count, world.device) + 1
    value = base * (world.rank + 1)
    dist.all_reduce(value, group=group)
    world.wait()
    return first_difference(value, base * sum(rank + 1 for rank in members))


def all_reduce_float(world, members, group, count):
    """The same in float32, as gradients are; sums stay below 2**24 and so exact."""
    base = positions(count, world.device).to(torch.float32) + 1
    total = sum(rank + 1 for rank in members)
    if total * PATTERN >= 1 << 24:
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
        wrong = first_difference(part, base + (rank + 1) * 1000)
        if wrong:
            wrong.update({"count": count, "from": rank})
            return wrong
    return None


CHECKS = {
    "all_reduce": all_reduce,
    "all_reduce float32": all_reduce_float,
    "broadcast": broadcast,
    "all_gather": all_gather,
}


def memory(world):
    """A pattern written to the device's memory and read back; None where it is as written."""
    written = torch.arange(PATTERN, dtype=torch.uint8).repeat(MEMORY_BYTES // PATTERN)
    there = written.to(world.device)
    back = (there ^ 255).to("cpu")
    return first_difference(back, written ^ 255)


def wrong_results(world, members, group, counts=COUNTS):
    """
    Operations whose result is wrong here, each with its first difference.

    An operation that raises is told as wrong with the exception's words, and the rest is left out:
    the group is of no more use.
    """
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
            # On with the rest even so: the others may have seen nothing wrong, and go on.
            if wrong and not any(one["op"] == name for one in found):
                found.append({"op": name, "count": count, **wrong})
    return found


class Broken(Exception):
    """A group failed altogether, which says nothing of who makes results wrong."""


class Rounds:
    """Tests of several groups at once; every rank calls `test` with the same groups."""

    def __init__(self, world, counts):
        self.world, self.counts, self.number = world, counts, 0

    def test(self, groups):
        """Which groups (lists of ranks, disjoint) get right results, in their order.  Raises Broken."""
        self.number += 1
        world = self.world
        made = [world.group(members) for members in groups]
        found = []
        for members, group in zip(groups, made):
            if world.rank in members:
                found = wrong_results(world, members, group, self.counts)
        is_broken = any(kind_of(one) == "broken" for one in found)
        told = world.agree("round%d" % self.number, None if is_broken else not found)
        if None in told:
            raise Broken("a group of ranks failed while the one at fault was searched for")
        return [all(told[rank] for rank in members) for members in groups]

    def narrow(self, members, good):
        """The ranks of a failing group that fail with others too; by halves, pairs with a good rank last."""
        if len(members) == 1:
            return members
        if len(members) == 2:
            if not good:
                return members
            results = [self.test([sorted((rank, good[0]))])[0] for rank in members]
            return [rank for rank, fine in zip(members, results) if not fine] or members
        half = len(members) // 2
        halves = [members[:half], members[half:]]
        tested = [part for part in halves if len(part) > 1]
        results = dict(zip(map(tuple, tested), self.test(tested)))
        bad = [part for part in halves if not results.get(tuple(part), True)]
        good = good + [rank for part in tested if results[tuple(part)] for rank in part]
        if not bad:
            # Fine by themselves: a half of one rank, or only both together fail.
            alone = [part for part in halves if len(part) == 1 and good]
            if alone and not self.test([sorted((alone[0][0], good[0]))])[0]:
                return alone[0]
            return members
        return [rank for part in bad for rank in self.narrow(part, good)]


def isolate(world, counts):
    """
    The ranks that give wrong results: each node by itself first, then nodes in pairs, a node by halves.

    More than one suspect may be left; two ranks alone cannot be told apart.  None where no smaller group
    gives a wrong result.
    """
    rounds = Rounds(world, counts)
    nodes = [ranks for _, ranks in sorted(world.nodes.items(), key=lambda item: item[1])]
    several = [ranks for ranks in nodes if len(ranks) > 1]
    results = rounds.test(several) if several else []
    bad = [ranks for ranks, fine in zip(several, results) if not fine]
    good = [rank for ranks, fine in zip(several, results) if fine for rank in ranks]
    if bad:
        return [rank for ranks in bad for rank in rounds.narrow(ranks, good)]
    if len(nodes) < 2:
        return [] if several else nodes[0]
    return between(rounds, nodes)


def between(rounds, nodes):
    """Nodes that fail in pairs: neighbours first, then each failing one with a node of a good pair."""
    pairs = [nodes[i] + nodes[i + 1] for i in range(0, len(nodes) - 1, 2)]
    results = rounds.test([sorted(pair) for pair in pairs])
    suspects, good = [], []
    for i, fine in enumerate(results):
        (good if fine else suspects).extend(nodes[2 * i : 2 * i + 2])
    if len(nodes) % 2:
        suspects.append(nodes[-1])
    if not good:
        return [rank for ranks in suspects for rank in ranks]
    return [rank for ranks in suspects if not rounds.test([sorted(ranks + good[0])])[0] for rank in ranks]


def test(world):
    """`ringup test` on this rank; whether all is right."""
    members = list(range(world.size))
    found = []
    wrong = memory(world)
    if wrong:
        found.append(dict(wrong, op="memory", count=MEMORY_BYTES))
    counts = COUNTS + ((LARGE_COUNT,) if world.device.type == "cuda" else ())
    found += wrong_results(world, members, None, counts)
    say("result", ok=not found, wrong=found[:8])
    if any(kind_of(one) == "broken" for one in found):
        world.roll_call()
    told = world.agree("results", [[kind_of(one), one["count"]] for one in found])
    all_told = [one for ones in told for one in ones]
    if not all_told:
        return True
    if any(kind == "broken" for kind, _ in all_told):
        return False  # the group is of no more use, and nothing else can be asked
    suspects = [rank for rank, ones in enumerate(told) if any(kind == "memory" for kind, _ in ones)]
    counts = sorted({count for kind, count in all_told if kind == "wrong"})
    try:
        say("suspects", ranks=suspects or isolate(world, counts[:2]))
    except Broken as error:
        say("suspects", ranks=[], error=str(error))
    return False


def kind_of(wrong):
    """Whether the memory, a result, or the group itself is at fault."""
    return "broken" if "error" in wrong else "memory" if wrong["op"] == "memory" else "wrong"
