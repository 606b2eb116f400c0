"""What the ranks were doing."""

from __future__ import annotations

from ringup.problems.text import shared

RANK_FELL_BEHIND = shared(
    "rank-fell-behind",
    "error",
    """
    Some ranks wait in a collective that one or more never entered.

    Why: a branch taken by some ranks only is the usual fault; also slow data or a rank stopped.

    Fix: the stack of the missing rank (`ringup stacks`); then the code path only it took.

    In logs: `Ranks 2 failed to pass monitoredBarrier`, one sequence number on all that speak and a
    rank silent; a dump of torch's flight recorder that ends before the others'.
    """,
)
COLLECTIVE_MISMATCH = shared(
    "collective-mismatch",
    "error",
    """
    Ranks are in different collectives, or in the same one with another size or order.

    Why: each rank's calls on a communicator are matched by order alone.

    Fix: same operation, order and shape on all ranks; `TORCH_DISTRIBUTED_DEBUG=DETAIL` names both sides.

    In logs: `Detected mismatch between collectives on ranks`, other SeqNum, OpType or NumelIn in
    one group; another call under one `collective_seq_id` of torch's flight recorder dumps.
    """,
)
COLLECTIVES_DIFFER = shared(
    "collectives-differ",
    "error",
    """
    A checked collective had different operations or shapes on its ranks.

    Why: under TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares fingerprints before it runs.

    Fix: same call on all ranks; the message names both sides.
    """,
)
ALL_REDUCE_WRONG = shared(
    "all-reduce-wrong",
    "error",
    """
    A collective finished with wrong numbers.

    Why: broken peer copies (ACS, IOMMU), memory or link faults; never a rounding question at this size.

    Fix: `NCCL_P2P_DISABLE=1` as a test, ACS and IOMMU off, then the hardware of the ranks named.

    In logs: `#wrong` above 0, `Out of bounds values`.
    """,
)
