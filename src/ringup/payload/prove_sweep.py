"""
How fast?  Collectives over sizes, timed as nccl-tests does, their results checked, every rank's time kept.

busbw = algbw * factor, nccl-tests doc/PERFORMANCE.md; a size is that of the whole buffer as its
`src/*.cu` count it.  GB are 10**9 bytes.
"""

import time

import torch
import torch.distributed as dist

from prove_world import cpu_wait_s, say, short

WARM_UPS, ITERATIONS = 5, 20
LONG_ENOUGH_S, LONGEST_S, LARGEST_TAKES_S = 0.5, 5.0, 2.5
MOST_CALLS = {"cpu": 10000, "cuda": 400}
"""
In one batch.  A GPU's queue holds about a thousand launches; in a full one a call waits where no limit of
ours reaches it.
"""
ROOM = 4
"""A size needs so many times its bytes: what is given, what is taken, and the comparison of the two."""
PAIR_S = 1.5
PAIR_BYTES = 1 << 20
"""At least so much between two nodes, however little was asked for: less measures how soon, not how fast."""
LOOKS_SLOW = 0.75
ELEMENT_BYTES = 4

# Renamed in torch 2.13, where the old names warn on every rank.
gather_whole = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_whole = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def factor(op, n):
    """What makes a bus bandwidth of an algorithm bandwidth on n ranks."""
    if op == "all_reduce":
        return 2.0 * (n - 1) / n
    return (n - 1) / n if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def tensor(count, device, value=0.0):
    """`count` float32."""
    return torch.full((count,), value, device=device, dtype=torch.float32)


class Case:
    """One operation at one size: `call()` does it once, `check()` once more on values that can be told."""

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
        """Once."""
        if self.op == "all_reduce":
            dist.all_reduce(self.given, group=self.group)
        elif self.op == "broadcast":
            dist.broadcast(self.given, self.members[0], group=self.group)
        elif self.op == "all_gather":
            gather_whole(self.taken, self.given, group=self.group)
        elif self.op == "reduce_scatter":
            scatter_whole(self.taken, self.given, group=self.group)
        elif self.op == "all_to_all":
            dist.all_to_all_single(self.taken, self.given, group=self.group)
        else:
            n = len(self.members)
            right, left = self.members[(self.me + 1) % n], self.members[(self.me - 1) % n]
            both = [
                dist.P2POp(dist.isend, self.given, right, self.group),
                dist.P2POp(dist.irecv, self.taken, left, self.group),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()

    def check(self):
        """Whether the operation gives what arithmetic gives; leaves zeros behind."""
        n, me = len(self.members), self.me
        self.given.fill_(me + 1)
        self.call()
        self.world.wait()
        total = float(n * (n + 1) // 2)
        each = torch.arange(1, n + 1, device=self.taken.device, dtype=torch.float32)
        wanted = {
            "all_reduce": total,
            "broadcast": 1.0,
            "reduce_scatter": total,
            "send_recv": float((me - 1) % n + 1),
        }.get(self.op)
        if wanted is None:
            fine = bool((self.taken.view(n, -1) == each[:, None]).all())
        else:
            fine = bool((self.taken == wanted).all())
        self.given.zero_()
        self.taken.zero_()
        return fine


class Clock:
    """Times of single calls: events on a GPU, the clock on a CPU, where a call returns when it is done."""

    def __init__(self, world):
        self.world, self.cuda = world, world.device.type == "cuda"
        self.stamps = []

    def stamp(self):
        """Now, in the order of what the device was given."""
        if not self.cuda:
            self.stamps.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.stamps.append(event)

    def seconds(self):
        """Between each stamp and the next."""
        self.world.wait()
        pairs = zip(self.stamps, self.stamps[1:])
        if self.cuda:
            return [first.elapsed_time(second) / 1000 for first, second in pairs]
        return [second - first for first, second in pairs]


def most(world, group, value):
    """The greatest of all members' values."""
    there = torch.tensor([value], device=world.device, dtype=torch.float64)
    dist.all_reduce(there, op=dist.ReduceOp.MAX, group=group)
    world.wait()
    return float(there)


def together(world, group):
    """
    A barrier.

    NCCL's own waits in the driver, where no limit ends it, and guesses the device where none is bound.
    """
    world.begin()
    if world.device.type == "cuda":
        most(world, group, 0.0)
    else:
        dist.barrier(group=group)


def spent(world, group, case, count):
    """Seconds of each of `count` calls in one batch, as this rank saw them."""
    together(world, group)
    clock = Clock(world)
    clock.stamp()
    for _ in range(count):
        case.call()
        clock.stamp()
    return clock.seconds()


def measure(world, group, case, budget_s=LONGEST_S):
    """
    One size: every member's mean, median, p99 and least time in seconds, whether results are right, and how
    long its threads waited for a processor meanwhile and had one; all per call.

    Warm-ups first (NCCL sets up channels on the first call of a size); then max(20 calls, 0.5 s),
    but no more than `budget_s`.
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
    before_s, ran_s = cpu_wait_s(), time.process_time()
    times = spent(world, group, case, count)
    waited_s, ran_s = cpu_wait_s() - before_s, time.process_time() - ran_s
    ordered = sorted(times)
    mine = [
        sum(times) / count,
        ordered[count // 2],
        ordered[min(count - 1, int(count * 0.99))],
        ordered[0],
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
    """
    The part of a call's time that may have been lost for want of a processor, at most.

    Of the two ranks that waited longest: a step needs both ends of a link, and further ones wait beside them.
    """
    seconds = sum(one[0] for one in by_rank) / len(by_rank)
    return min(1.0, sum(sorted(one[5] for one in by_rank)[-2:]) / max(seconds, 1e-9))


def is_unsupported(world, error):
    """Whether every rank is told alike that this torch or backend lacks the operation; NCCL has them all."""
    if world.backend == "nccl":
        return False
    words = str(error).lower()
    return isinstance(error, NotImplementedError) or "support" in words or "not implemented" in words


def sweep(world, op, sizes):
    """All sizes of one operation; rank 0 tells each.  The largest size that was measured, its time."""
    members = list(range(world.size))
    last = None
    if op == "send_recv" and world.size == 1 and sizes:
        say("unsupported", op=op, size_bytes=sizes[0], error="one rank has nobody to send to")
        return None
    for size_bytes in sizes:
        try:
            case = Case(op, size_bytes, world, members, None)
            by_rank, count = measure(world, None, case)
        except (RuntimeError, ValueError) as error:
            if not is_unsupported(world, error):
                raise  # a time-out or a lost peer: the run has failed, and says so
            say("unsupported", op=op, size_bytes=size_bytes, error=short(error))
            return last
        seconds = sum(one[0] for one in by_rank) / len(by_rank)
        algbw = case.size_bytes / seconds / 1e9
        last = (case.size_bytes, seconds)
        if world.rank == 0:
            say(
                "row",
                op=op,
                size_bytes=case.size_bytes,
                time_us=seconds * 1e6,
                algbw_gbyte_s=algbw,
                busbw_gbyte_s=algbw * factor(op, world.size),
                correct=all(one[4] == 1.0 for one in by_rank),
                wrong_ranks=[rank for rank, one in enumerate(by_rank) if one[4] != 1.0][:64],
                iterations=count,
                median_us=[round(one[1] * 1e6, 1) for one in by_rank][:256],
                p99_us=max(one[2] for one in by_rank) * 1e6,
                least_us=min(one[3] for one in by_rank) * 1e6,
                starved=round(starved(by_rank), 3),
                waited_us=[round(one[5] * 1e6, 1) for one in by_rank][:256],
                busy=round(max(one[6] for one in by_rank) / seconds, 3) if world.backend == "gloo" else 0.0,
            )
        if seconds > LARGEST_TAKES_S and size_bytes != sizes[-1]:
            if world.rank == 0:
                say("stopped", op=op, size_bytes=case.size_bytes, seconds=seconds)
            return last
    return last


def pair_rounds(world, size_bytes):
    """
    Nodes in pairs: neighbours, then the fastest pairs with the slowest, then who looks slow once more.

    Who would be named is measured again beside healthy pairs, which tell what the machines give just now.
    Rank 0 tells each pair's bus bandwidth; a node alone in its round is not measured in it.
    """
    names = [name for name, _ in sorted(world.nodes.items(), key=lambda item: item[1])]
    first = [(names[i], names[i + 1]) for i in range(0, len(names) - 1, 2)]
    results = one_round(world, "pairs1", first, size_bytes)
    ranked = [pair for _, _, pair in sorted((speed, n, pair) for n, (pair, speed, _) in enumerate(results))]
    left = [name for name in names if name not in {n for pair in first for n in pair}]
    second = []
    while len(ranked) > 1:
        slow, fast = ranked.pop(0), ranked.pop()
        second += [(fast[0], slow[0]), (fast[1], slow[1])]
    if left:
        # An odd node meets the first of a pair that has been measured; that one sits out otherwise.
        partner = (ranked or first)[0][0]
        second = [pair for pair in second if partner not in pair] + [(partner, left[0])]
    results += one_round(world, "pairs2", second, size_bytes)
    third = meetings(names, results, doubtful(names, results))
    if len(names) == 3:
        third = [(names[1], names[2])]
    if third:
        results += one_round(world, "pairs3", third, size_bytes)
    still = doubtful(names, results)
    again = meetings(names, results, still) if still else []
    if again:
        one_round(world, "again", again, size_bytes)
        good = [name for name in names if name not in still]
        if len(good) > 1 and not any(a in good and b in good for a, b in again):
            one_round(world, "again", [(good[0], good[1])], size_bytes)


def doubtful(names, results):
    """The nodes whose best pair is below LOOKS_SLOW of the median."""
    best = {name: max([speed for pair, speed, _ in results if name in pair] or [0.0]) for name in names}
    usual = sorted(best.values())[len(names) // 2]
    return [name for name in names if best[name] < LOOKS_SLOW * usual]


def meetings(names, results, suspects):
    """
    Each of these nodes with another that is none of them, best one it has not met; the rest in pairs.

    One slow meeting proves nothing: the other may have been slow, or the moment.
    """
    good = [name for name in names if name not in suspects]
    pairs = []
    for suspect in suspects:
        met = {name for pair, _, _ in results if suspect in pair for name in pair}
        partner = next((name for name in good if name not in met), good[0] if good else None)
        if partner is not None:
            good.remove(partner)
            pairs.append((partner, suspect))
    beside = [(good[i], good[i + 1]) for i in range(0, len(good) - 1, 2)]
    return pairs + beside if pairs else []


def one_round(world, stage, pairs, size_bytes):
    """All pairs at once: (pair, bus bandwidth in GB/s, the part of its time lost for want of a processor)."""
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
    told = world.agree("pairs%d" % world.rounds, mine)
    results = [(pair, *told[members[0]]) for pair, members in zip(pairs, groups)]
    if world.rank == 0:
        for (a, b), speed, share in results:
            ranks = [min(world.nodes[a]), min(world.nodes[b])]
            say("pair", stage=stage, ranks=ranks, busbw_gbyte_s=speed, starved=share, size_bytes=size_bytes)
    return results


def tcp_counters():
    """Segments sent and sent again by this network namespace, /proc/net/snmp; None where unreadable."""
    try:
        with open("/proc/net/snmp") as file:
            names, values = [line.split() for line in file if line.startswith("Tcp:")]
        table = dict(zip(names, values))
        return int(table["OutSegs"]), int(table["RetransSegs"])
    except (OSError, ValueError, KeyError):
        return None


def that_fit(world, sizes):
    """The sizes for which every rank has memory; rank 0 tells of those that are left out."""
    told = world.agree("memory", world.free_bytes())
    known = [(free, rank) for rank, free in enumerate(told) if free is not None]
    if not known:
        return sizes
    free, rank = min(known)
    fit = [size for size in sizes if size * ROOM <= free]
    if len(fit) < len(sizes) and world.rank == 0:
        say("left_out", size_bytes=sizes[len(fit)], of=rank, free_bytes=free)
    return fit


def bench(world, ops, sizes, with_pairs):
    """`ringup bench` on this rank."""
    sizes = that_fit(world, sizes)
    before = tcp_counters()
    largest = None
    for op in ops:
        last = sweep(world, op, sizes)
        largest = largest or last
    if with_pairs and largest and len(world.nodes) > 2:
        # As much as takes about a tenth of a second, so that a pair is measured in a second.
        size_bytes = int(max(PAIR_BYTES, min(largest[0], largest[0] / largest[1] * 0.1)))
        pair_rounds(world, size_bytes // ELEMENT_BYTES * ELEMENT_BYTES)
    after = tcp_counters()
    if before and after and world.local_rank == 0:
        say("tcp", segments=after[0] - before[0], retransmitted=after[1] - before[1])
