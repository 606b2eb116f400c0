"""
Collectives over sizes, timed as nccl-tests does, with their results checked.

busbw = algbw * factor, nccl-tests doc/PERFORMANCE.md.  A size is that of the whole buffer, as in `src/*.cu`
there.  GB are 10**9 bytes.
"""

import time

import torch
import torch.distributed as dist

from ringup.agent.collective.world import report, short
from ringup.agent.proc.files import paired, traffic
from ringup.agent.proc.process import waits_s

WARM_UPS, ITERATIONS = 5, 20
LONG_ENOUGH_S, LONGEST_S, LARGEST_TAKES_S = 0.5, 5.0, 2.5
MOST_CALLS = {"cpu": 10000, "cuda": 400}
"""Calls in one batch: a GPU queues about a thousand; then a call blocks outside the limit of `World.wait`."""
ROOM = 4
"""Memory per byte of a size: the input, the output, and their comparison."""
PAIR_S = 1.5
PAIR_BYTES = 1 << 20
"""Smallest size between two nodes, whatever the request: less would measure latency, not bandwidth."""
LOOKS_SLOW = 0.75
ELEMENT_BYTES = 4

# Renamed in torch 2.13, where the old names warn on every rank.
gather_whole = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_whole = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def factor(op, n):
    """Bus bandwidth / algorithm bandwidth, on n ranks."""
    if op == "all_reduce":
        return 2.0 * (n - 1) / n
    return (n - 1) / n if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def tensor(count, device):
    return torch.zeros((count,), device=device, dtype=torch.float32)


class Case:
    """One operation at one size: `call()` runs it, `check()` runs it on known values."""

    def __init__(self, op, size_bytes, world, members, group):
        self.op, self.world, self.group, self.members = op, world, group, members
        n = len(members)
        self.me = members.index(world.rank)
        count = max(1, size_bytes // ELEMENT_BYTES)
        self.per_rank = op in ("all_gather", "reduce_scatter", "all_to_all")
        self.count = max(1, count // n) if self.per_rank else count
        self.size_bytes = self.count * ELEMENT_BYTES * (n if self.per_rank else 1)
        whole, part = self.count * n, self.count
        given = whole if op in ("reduce_scatter", "all_to_all") else part
        taken = whole if op in ("all_gather", "all_to_all") else part
        self.given = tensor(given, world.device)
        self.taken = self.given if op in ("all_reduce", "broadcast") else tensor(taken, world.device)

    def call(self):
        given, taken, group = self.given, self.taken, self.group
        if self.op == "all_reduce":
            dist.all_reduce(given, group=group)
        elif self.op == "broadcast":
            dist.broadcast(given, self.members[0], group=group)
        elif self.op == "send_recv":
            right, left = self.members[(self.me + 1) % len(self.members)], self.members[self.me - 1]
            both = [dist.P2POp(dist.isend, given, right, group), dist.P2POp(dist.irecv, taken, left, group)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        else:
            operation = {"all_gather": gather_whole, "reduce_scatter": scatter_whole}
            operation.get(self.op, dist.all_to_all_single)(taken, given, group=group)

    def check(self):
        """Whether the result is right; leaves the buffers zeroed."""
        n, me = len(self.members), self.me
        self.given.fill_(me + 1)
        self.call()
        self.world.wait()
        if self.op in ("all_gather", "all_to_all"):
            each = torch.arange(1, n + 1, device=self.taken.device, dtype=torch.float32)
            fine = bool((self.taken.view(n, -1) == each[:, None]).all())
        else:
            total = float(n * (n + 1) // 2)
            wanted = {"broadcast": 1.0, "send_recv": float((me - 1) % n + 1)}.get(self.op, total)
            fine = bool((self.taken == wanted).all())
        self.given.zero_()
        self.taken.zero_()
        return fine


def most(world, group, value):
    there = torch.tensor([value], device=world.device, dtype=torch.float64)
    dist.all_reduce(there, op=dist.ReduceOp.MAX, group=group)
    world.wait()
    return float(there)


def together(world, group):
    """A barrier.  NCCL's own blocks in the driver, where no limit ends it, and guesses the device."""
    world.begin()
    if world.device.type == "cuda":
        most(world, group, 0.0)
    else:
        dist.barrier(group=group)


def spent(world, group, case, count):
    """Seconds of each of `count` calls in one batch on this rank: by GPU events, or by the clock on a CPU."""
    together(world, group)
    cuda, stamps = world.device.type == "cuda", []
    for n in range(count + 1):
        if n:
            case.call()
        stamps.append(torch.cuda.Event(enable_timing=True) if cuda else time.perf_counter())
        if cuda:
            stamps[-1].record()
    world.wait()
    return [a.elapsed_time(b) / 1000 if cuda else b - a for a, b in zip(stamps, stamps[1:])]


def measure(world, group, case, budget_s=LONGEST_S):
    """
    One size, for every rank: mean, median and p99 time in seconds, whether results are right, and the time
    its threads waited for a CPU and ran on one.  All times are per call.

    Warm-ups first (NCCL sets up channels on a size's first call), then max(20 calls, 0.5 s) in `budget_s`.
    """
    world.begin()
    fine = case.check()
    began = time.perf_counter()
    once = most(world, group, min(spent(world, group, case, 1)))
    for _ in range(WARM_UPS - 1):
        if most(world, group, time.perf_counter() - began) > budget_s / 4:
            break
        once = min(once, most(world, group, max(spent(world, group, case, 1))))
    once = max(once, 1e-7)
    most_calls = min(budget_s / once, MOST_CALLS[world.device.type])
    count = max(1, int(min(max(ITERATIONS, LONG_ENOUGH_S / once), most_calls)))
    before_s, ran_s = sum(waits_s("self")), time.process_time()
    times = spent(world, group, case, count)
    waited_s, ran_s = sum(waits_s("self")) - before_s, time.process_time() - ran_s
    ordered = sorted(times)
    mine = [
        sum(times) / count,
        ordered[count // 2],
        ordered[min(count - 1, int(count * 0.99))],
        float(fine),
        max(0.0, waited_s / count),
        ran_s / count,
    ]
    there = torch.tensor(mine, device=world.device, dtype=torch.float64)
    all_there = [torch.zeros_like(there) for _ in case.members]
    dist.all_gather(all_there, there, group=group)
    world.wait()
    return [list(map(float, one)) for one in all_there], count


def starved(by_rank):
    """The largest share of a call's time that may be lost to waiting for a CPU, 0 to 1."""
    # Of the two ranks that waited longest: a step needs both ends of a link; others wait meanwhile.
    seconds = sum(one[0] for one in by_rank) / len(by_rank)
    return min(1.0, sum(sorted(one[4] for one in by_rank)[-2:]) / max(seconds, 1e-9))


def is_unsupported(world, error):
    """Whether this torch or backend lacks the operation, on every rank; NCCL has all of them."""
    if world.backend == "nccl":
        return False
    words = str(error).lower()
    return isinstance(error, NotImplementedError) or "support" in words or "not implemented" in words


def sweep(world, op, sizes):
    """Measure all sizes of one operation; (the largest size measured, its time) or None."""
    members = list(range(world.size))
    last = None
    if op == "send_recv" and world.size == 1 and sizes:
        report("unsupported", op=op, size_bytes=sizes[0], error="one rank has no rank to send to")
        return None
    for size_bytes in sizes:
        try:
            case = Case(op, size_bytes, world, members, None)
            by_rank, count = measure(world, None, case)
        except (RuntimeError, ValueError) as error:
            if not is_unsupported(world, error):
                raise  # a timeout or a lost peer: the run has failed
            report("unsupported", op=op, size_bytes=size_bytes, error=short(error))
            return last
        seconds = sum(one[0] for one in by_rank) / len(by_rank)
        algbw = case.size_bytes / seconds / 1e9
        last = (case.size_bytes, seconds)
        wrong = [rank for rank, one in enumerate(by_rank) if one[3] != 1.0]
        if world.rank == 0:
            report(
                "row",
                op=op,
                size_bytes=case.size_bytes,
                time_us=seconds * 1e6,
                algbw_gbyte_s=algbw,
                busbw_gbyte_s=algbw * factor(op, world.size),
                correct=not wrong,
                wrong_ranks=wrong[:64],
                iterations=count,
                median_us=[round(one[1] * 1e6, 1) for one in by_rank][:256],
                p99_us=max(one[2] for one in by_rank) * 1e6,
                starved=round(starved(by_rank), 3),
                waited_us=[round(one[4] * 1e6, 1) for one in by_rank][:256],
                busy=round(max(one[5] for one in by_rank) / seconds, 3) if world.backend == "gloo" else 0.0,
            )
        if seconds > LARGEST_TAKES_S and size_bytes != sizes[-1]:
            if world.rank == 0:
                report("stopped", op=op, size_bytes=case.size_bytes, seconds=seconds)
            return last
    return last


def pair_rounds(world, size_bytes):
    """
    Pairs of nodes, three rounds with different partners; then each slow node again with a fast one.

    That last round measures fast pairs too: they show the speed of the machines at that time.  With an odd
    number of nodes, one pauses in each round.
    """
    names = [name for name, _ in sorted(world.nodes.items(), key=lambda item: item[1])]
    results = []
    for turn in range(3):
        # Round robin by the circle method: all nodes except the first move on by one place.
        others = names[1:] + [None] * (len(names) % 2)
        circle = names[:1] + others[turn % len(others) :] + others[: turn % len(others)]
        pairs = [(a, b) for a, b in zip(circle[: len(circle) // 2], reversed(circle)) if a and b]
        results += one_round(world, "pairs%d" % (turn + 1), pairs, size_bytes)
    best = {name: max(speed for pair, speed in results if name in pair) for name in names}
    usual = sorted(best.values())[len(names) // 2]
    slow = [name for name in names if best[name] < LOOKS_SLOW * usual]
    fast = [name for name in names if name not in slow]
    rest = fast[len(slow) :]
    if slow:
        one_round(world, "again", list(zip(fast, slow)) + list(zip(rest[::2], rest[1::2])), size_bytes)
    if slow and len(rest) < 2 <= len(fast):
        one_round(world, "again", [tuple(fast[:2])], size_bytes)


def one_round(world, stage, pairs, size_bytes):
    """Measure all pairs at once: [(pair, bus bandwidth in GB/s)]."""
    groups = [sorted(world.nodes[a] + world.nodes[b]) for a, b in pairs]
    made = [world.group(members) for members in groups]
    mine = [0.0, 0.0]
    for members, group in zip(groups, made):
        if world.rank in members:
            case = Case("all_reduce", size_bytes, world, members, group)
            by_rank, _ = measure(world, group, case, PAIR_S)
            seconds = sum(one[0] for one in by_rank) / len(by_rank)
            speed = case.size_bytes / seconds / 1e9 * factor("all_reduce", len(members))
            mine = [speed, round(starved(by_rank), 3)]
    world.rounds += 1
    by_rank = world.agree("pairs%d" % world.rounds, mine)
    results = [(pair, by_rank[members[0]]) for pair, members in zip(pairs, groups)]
    for (a, b), (speed, share) in results if world.rank == 0 else ():
        ranks = [min(world.nodes[a]), min(world.nodes[b])]
        report("pair", stage=stage, ranks=ranks, busbw_gbyte_s=speed, starved=share, size_bytes=size_bytes)
    return [(pair, speed) for pair, (speed, _) in results]


def tcp_counters():
    """Segments sent and retransmitted in this network namespace; 0 where unreadable."""
    counts = paired("/proc/net/snmp", "Tcp:")
    return counts.get("OutSegs", 0), counts.get("RetransSegs", 0)


def that_fit(world, sizes):
    """The sizes for which every rank has enough memory; rank 0 reports the others."""
    by_rank = world.agree("memory", world.free_bytes())
    if not (known := [(free, rank) for rank, free in enumerate(by_rank) if free is not None]):
        return sizes
    free, rank = min(known)
    fit = [size for size in sizes if size * ROOM <= free]
    if len(fit) < len(sizes) and world.rank == 0:
        report("left_out", size_bytes=sizes[len(fit)], of=rank, free_bytes=free)
    return fit


def bench(world, ops, sizes, with_pairs):
    sizes = that_fit(world, sizes)
    before, sent = tcp_counters(), traffic()
    largest = next(filter(None, [sweep(world, op, sizes) for op in ops]), None)
    if with_pairs and largest and len(world.nodes) > 2:
        # A size that takes about a tenth of a second, so that a pair takes about a second.
        size_bytes = int(max(PAIR_BYTES, min(largest[0], largest[0] / largest[1] * 0.1)))
        pair_rounds(world, size_bytes // ELEMENT_BYTES * ELEMENT_BYTES)
    after = tcp_counters()
    if world.local_rank == 0:
        sent = {name: now - sent[name][1] for name, (_, now) in traffic().items() if name in sent}
        report("tcp", segments=after[0] - before[0], retransmitted=after[1] - before[1], sent_bytes=sent)
