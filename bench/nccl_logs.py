"""
NCCL logs of any size with their truth: for measuring and proving `ringup logs`.

    python bench/nccl_logs.py --size 1G --ranks 64 --out DIR [--layout merged|per-rank] [--fault missing|...]

What is true is noted while each line is written (truth.json beside the logs), by other code than the code
that reads.  Lines follow NCCL's source of the version asked for; opCount is hexadecimal, counts only calls
with network work, and is shared by the calls of a group, as in NCCL.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.nccl_lines import (
    FAULTS,
    LABELS,
    POINT_TO_POINT,
    VERSIONS,
    Op,
    Plan,
    Rank,
    Truth,
    call_text,
    comm_name,
    make_ranks,
    minor,
    program,
    setup_lines,
)


class Writer:
    """Writes lines and notes what is true."""

    def __init__(self, plan: Plan, out: Path, rng: random.Random) -> None:
        self.plan = plan
        self.rng = rng
        self.truth = Truth()
        self._out = out
        self._files: dict[str, IO[bytes]] = {}
        self._current: dict[str, int] = {}
        self._rows: list[dict[str, Any]] = []
        self._row_of_rank: dict[int, int] = {}
        self._held: tuple[Rank, bytes, tuple[Rank, Op] | None] | None = None
        self._end = b"\r\n" if plan.carriage_returns else b"\n"
        self._new_row(None)

    def _new_row(self, name: str | None) -> int:
        self._rows.append({"iteration": name, "counts": {}, "by_rank": {}})
        return len(self._rows) - 1

    def file_of(self, rank: Rank) -> str:
        """Name of the file a rank writes to."""
        if self.plan.layout == "merged":
            return "job.log"
        return f"nccl.{rank.host}.{rank.pid}.log"

    def _stamp(self, label: str) -> str:
        """The label with the time of a line behind it."""
        fraction = self.rng.randrange(10**9)
        clock = f"06:{self.truth.lines // 60 % 60:02d}:{self.truth.lines % 60:02d}"
        if self.plan.stamps == "nccl":
            return f"{label}[2026-05-05 {clock}.{fraction // 1000:06d}] "
        if self.plan.stamps == "kubectl":
            digits = f"{fraction:09d}".rstrip("0")
            return f"{label}2026-05-05T{clock}.{digits}Z "
        return label

    def raw(self, rank: Rank, data: bytes) -> None:
        """Bytes into the rank's file."""
        name = self.file_of(rank)
        if name not in self._files:
            self._files[name] = (self._out / name).open("wb")
            self.truth.files.append(name)
        self._files[name].write(data)
        self.truth.bytes += len(data)
        self.truth.lines += data.count(b"\n")
        text = data.rstrip(b"\r\n").rpartition(b"\n")[2]
        if text.strip():
            self.truth.last_lines[name] = text.rstrip(b"\r").decode()

    def line(self, rank: Rank, text: str) -> None:
        """A line that is no call."""
        self.settle()
        stamped = self._stamp(rank.label) + text.removeprefix(rank.label) if text else text
        self.raw(rank, stamped.encode() + self._end)

    def mark(self, rank: Rank, name: str) -> None:
        """The trainer's line."""
        self.line(rank, f"{rank.label} iteration {name:>8}/ 500000 | lm loss: 2.345 | grad norm: 1.2")
        if self.plan.layout == "per-rank" or (self.plan.marks == "all" and self.plan.label != "none"):
            self._row_of_rank[rank.rank] = self._find_row(name)
        elif self._rows[-1]["iteration"] != name:
            self._new_row(name)

    def _find_row(self, name: str) -> int:
        for i in range(len(self._rows) - 1, -1, -1):
            if self._rows[i]["iteration"] == name:
                return i
        return self._new_row(name)

    def call(self, rank: Rank, op: Op, op_count: int) -> None:
        """A collective call, now and then with another rank's line written into it."""
        prefix = self._stamp(rank.label) + rank.prefix.removeprefix(rank.label)
        text = (prefix + call_text(rank, op, self.plan, op_count, self.rng)).encode()
        if self._held:
            other = self._held[0]
            if other.rank != rank.rank and self.file_of(other) == self.file_of(rank):
                self._tear(rank, text, op)
                return
            self.settle()
        if self.plan.torn and self.rng.random() < self.plan.torn:
            self._held = (rank, text, (rank, op))
            return
        self._count(rank, op)
        self.raw(rank, text + self._end)

    def _tear(self, rank: Rank, text: bytes, op: Op) -> None:
        assert self._held and self._held[2]
        other, held, (_, torn_op) = self._held
        self._held = None
        mark = held.index(b": opCount ") + len(b": opCount ")
        place = self.rng.choice(("head", "fields", "fields", "end"))
        if place == "end":
            cut = len(held)
        elif place == "head":
            cut = held.index(other.host.encode()) + self.rng.randrange(1, len(other.host) - 3)
        else:
            cut = self.rng.randrange(mark, len(held) - 30)
        # Cut inside the host's name the call is whole on a line of its own.
        self._count(other, torn_op, torn=mark <= cut < len(held))
        self._count(rank, op)
        rest = held[cut:] + self._end if cut < len(held) else b""
        self.raw(rank, held[:cut] + text + self._end + rest)

    def settle(self) -> None:
        """Write what was held back to be torn."""
        if self._held and self._held[2]:
            rank, text, (_, op) = self._held
            self._held = None
            self._count(rank, op)
            self.raw(rank, text + self._end)

    def _count(self, rank: Rank, op: Op, torn: bool = False) -> None:
        name = str(rank.rank)
        at = self._row_of_rank.get(rank.rank)
        if at is None:
            at = 0 if self.plan.layout == "per-rank" else len(self._rows) - 1
            if self.plan.marks == "all" and self.plan.label != "none" and self.plan.layout == "merged":
                at = 0
        row = self._rows[at]
        row["counts"][op.kind] = row["counts"].get(op.kind, 0) + 1
        mine = row["by_rank"].get(name)
        if mine is None:
            mine = row["by_rank"][name] = {}
        mine[op.kind] = mine.get(op.kind, 0) + 1
        if torn:
            self.truth.torn[name] = self.truth.torn.get(name, 0) + 1
            return
        comm = comm_name(rank, op.comm, self.plan)
        kinds = self.truth.comm_kinds.setdefault(comm, {}).setdefault(name, {})
        kinds[op.kind] = kinds.get(op.kind, 0) + 1
        positions = self.truth.positions.setdefault(comm, {})
        positions[name] = positions.get(name, 0) + (op.kind not in POINT_TO_POINT)

    def close(self) -> Truth:
        """Write out; sum up."""
        self.settle()
        for stream in self._files.values():
            stream.close()
        truth = self.truth
        rows = [r for r in self._rows if r["iteration"] is not None or r["counts"]]
        truth.by_iteration = rows
        for row in rows:
            for rank, kinds in row["by_rank"].items():
                mine = truth.by_rank.setdefault(rank, {})
                for kind, n in kinds.items():
                    mine[kind] = mine.get(kind, 0) + n
                    truth.collectives[kind] = truth.collectives.get(kind, 0) + n
        return truth


def has_network(rank: Rank, op: Op, plan: Plan) -> bool:
    """Whether the call makes work for the proxy: opCount grows only then, and not on every rank."""
    return op.comm == "world" and plan.ranks > plan.ranks_per_node and rank.rank % 4 != 3


def generate(plan: Plan, out: Path) -> Truth:
    """Write the logs into a folder, truth.json beside them."""
    rng = random.Random(plan.seed)
    ranks = make_ranks(plan, rng)
    ops = program(plan, rng)
    writer = Writer(plan, out, rng)
    comms = ["world", "node"] if plan.split else ["world"]
    setups = [list(setup_lines(r, plan, writer.truth, comms)) for r in ranks]
    while any(setups):
        for rank, lines in zip(ranks, setups, strict=True):
            if lines:
                writer.line(rank, rank.prefix + lines.pop(0))
    if plan.fault == "no-init":
        writer.truth.incomplete = [str(r.rank) for r in ranks] if minor(plan.version) >= 18 else []
        return finish(writer, plan, out)
    for i in range(plan.warnings):
        rank = ranks[i % len(ranks)]
        before = rank.prefix.replace("NCCL INFO ", "transport/net_ib.cc:75 NCCL WARN ")
        text = f"NET/IB : mlx5_{i % 3}:1 Got async event : port error"
        writer.line(rank, "")
        writer.line(rank, before + text)
    train(plan, writer, ranks, ops, rng)
    return finish(writer, plan, out)


def train(plan: Plan, writer: Writer, ranks: list[Rank], ops: list[Op], rng: random.Random) -> None:
    """Iterations until there are enough; ranks run a few calls apart, as processes do."""
    fault_at = next(i for i, op in enumerate(ops) if op.kind == "ReduceScatter")
    if plan.fault == "root":
        fault_at = 0
    iteration = 0
    last = False
    while not last and (iteration < plan.iterations or plan.size_bytes):
        last = writer.truth.bytes >= plan.size_bytes if plan.size_bytes else iteration == plan.iterations - 1
        at_fault = last if plan.fault_iteration < 0 else iteration == plan.fault_iteration
        faulty = plan.fault != "none" and at_fault
        lag = [rng.randrange(4) for _ in ranks]
        order = [(i + lag[r.rank], rng.random(), i, r) for i in range(len(ops)) for r in ranks]
        order.sort(key=lambda at: at[:2])
        # Send and Recv of a group, and all else of one rank, stay in order: lag moves whole ranks.
        groups: dict[tuple[int, int], int] = {}
        for _, _, i, rank in order:
            if i == 0 and (plan.marks == "all" or (plan.marks == "first" and rank.rank == 0)):
                writer.mark(rank, str(iteration))
            op = ops[i]
            if faulty and plan.hang and stopped(plan, rank, i, fault_at):
                continue
            if faulty and rank.rank == plan.fault_rank and i == fault_at:
                op_or_none = broken(plan, op)
                note_mismatch(plan, writer, rank, op, fault_at)
                if op_or_none is None:
                    continue
                op = op_or_none
            key = (rank.rank, op.group)
            if key not in groups:
                groups[key] = rank.op_counts[op.comm]
                rank.op_counts[op.comm] += has_network(rank, op, plan)
            writer.call(rank, op, groups[key])
        iteration += 1
        if faulty and plan.hang:
            break


def stopped(plan: Plan, rank: Rank, index: int, fault_at: int) -> bool:
    """After the fault ranks call on for a little, since a call only enqueues; then nobody does."""
    if plan.fault == "stalled":
        return index >= fault_at if rank.rank == plan.fault_rank else index > fault_at + rank.rank % 3
    return index > fault_at + 2


def broken(plan: Plan, op: Op) -> Op | None:
    """What the faulty rank calls in place of the right thing; None: nothing."""
    words = asdict(op)
    if plan.fault == "missing":
        return None
    if plan.fault == "count":
        words["count"] += 1
    elif plan.fault == "datatype":
        words["datatype"] = 7
    elif plan.fault == "root":
        words["root"] = 0
    elif plan.fault == "kind":
        words["kind"] = "AllGather"
    return Op(**words)


def note_mismatch(plan: Plan, writer: Writer, rank: Rank, op: Op, fault_at: int) -> None:
    """The truth about the fault."""
    comm = comm_name(rank, op.comm, plan)
    writer.settle()
    if plan.fault == "stalled":
        return
    index = writer.truth.positions.get(comm, {}).get(str(rank.rank), 0)
    differs = {"count": ["count"], "datatype": ["datatype"], "root": ["root"], "kind": ["kind"]}
    writer.truth.mismatch = {
        "communicator": comm,
        "index": index,
        "ranks": [str(rank.rank)],
        "skipped": plan.fault == "missing",
        "differs": differs.get(plan.fault),
    }


def finish(writer: Writer, plan: Plan, out: Path) -> Truth:
    """Close the files and write the truth."""
    truth = writer.close()
    for comm, positions in truth.positions.items():
        judged = {r: n for r, n in positions.items() if r not in truth.torn}
        if judged and min(judged.values()) < max(judged.values()):
            low = min(judged.values())
            truth.behind += sorted(f"{comm} {r}" for r, n in judged.items() if n == low)
    (out / "truth.json").write_text(json.dumps({"plan": asdict(plan), **asdict(truth)}, indent=1))
    return truth


def parse_size(text: str) -> int:
    """Bytes of `1G`, `300M`, `20000`."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if scale > 1 else text) * scale)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=parse_size, default=0)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--layout", choices=("merged", "per-rank"), default="merged")
    parser.add_argument("--label", choices=LABELS, default="none")
    parser.add_argument("--marks", choices=("first", "all", "none"), default="first")
    parser.add_argument("--version", choices=VERSIONS, default="2.20")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--fault-iteration", type=int, default=1)
    parser.add_argument("--no-hang", dest="hang", action="store_false")
    parser.add_argument("--socket-rank", type=int, default=-1)
    parser.add_argument("--torn", type=float, default=0.0)
    parser.add_argument("--warnings", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    words = vars(parser.parse_args())
    out = words.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    words["size_bytes"] = words.pop("size")
    truth = generate(Plan(**words), out)
    print(f"{truth.lines} lines, {truth.bytes} bytes in {len(truth.files)} files under {out}")


if __name__ == "__main__":
    main()
