"""Versions, drivers and settings."""

from __future__ import annotations

from ringup.problems.text import shared

NCCL_VERSIONS_DIFFER = shared(
    "nccl-versions-differ",
    "error",
    """
    Ranks run different NCCL releases.

    Why: the bootstrap messages have other sizes; it fails with a truncated message or an address
    without family, or hangs.

    Fix: one NCCL wheel (or image) everywhere.

    In logs: `Mismatched NCCL version detected`, `NCCL version` lines that differ, `family 0 is
    neither AF_INET`.
    """,
)
ENVIRONMENT_DIFFERS_BETWEEN_NODES = shared(
    "environment-differs-between-nodes",
    "error",
    """
    NCCL settings differ between ranks, so both sides plan different transfers.

    Why: algorithm, protocol or buffer sizes that differ make message sizes that do not fit.

    Fix: export the same set through the launcher on every node.

    In logs: `collective mismatch error, local size 8 remote size 4`, other `set by environment`
    lines per host.
    """,
)
DRIVER_TOO_OLD_FOR_CUDA = shared(
    "driver-too-old-for-cuda",
    "error",
    """
    The NVIDIA driver does not support the CUDA runtime in use.

    Why: every CUDA call of the process fails.

    Fix: a newer driver on that host, or a wheel for the installed one.

    In logs: `CUDA driver version is insufficient for CUDA runtime version`.
    """,
)
DRIVER_LIBRARY_MISMATCH = shared(
    "driver-library-mismatch",
    "error",
    """
    The kernel module and the user library of the NVIDIA driver are of different releases.

    Why: the driver was updated without a reboot, or a container carries its own libcuda.

    Fix: reboot or reload the module; remove the library from the image.

    In logs: `Failed to initialize NVML: Driver/library version mismatch`, CUDA error 803.
    """,
)
