"""GPUs, memory and limits of a host."""

from __future__ import annotations

from ringup.problems.text import shared

SHM_TOO_SMALL = shared(
    "shm-too-small",
    "error",
    """
    /dev/shm is full or small (64 MiB is Docker's default).

    Why: NCCL's shared-memory transport and DataLoader workers live there.

    Fix: `--shm-size=8g`, an emptyDir with `medium: Memory`, or `--ipc=host`.

    In logs: `failed to extend /dev/shm/nccl-`, `DataLoader worker ... Bus error`.
    """,
)
OPEN_FILES_TOO_LOW = shared(
    "open-files-too-low",
    "error",
    """
    A process ran out of file descriptors, or may open too few.

    Why: sockets to every peer and loader pipes all count.

    Fix: `ulimit -n 65536` in the job's own shell;
    `torch.multiprocessing.set_sharing_strategy("file_system")` for loaders.

    In logs: `Too many open files`.
    """,
)
ECC_UNCORRECTABLE = shared(
    "ecc-uncorrectable",
    "error",
    """
    A GPU has an uncorrectable memory error.

    Why: the driver ends the process that touched it.

    Fix: drain the node, reset the GPU, replace it when it returns.

    In logs: `uncorrectable ECC error encountered`.
    """,
)
GPU_MISSING = shared(
    "gpu-missing",
    "error",
    """
    A GPU vanished, does not answer, or fewer are there than expected.

    Why: ranks on it fail, all others wait for them.

    Fix: reset or reseat it, drain the node.

    In logs: `GPU is lost`, `fallen off the bus`, `Unable to determine the device handle for GPU`.
    """,
)
PCIE_ERRORS = shared(
    "pcie-errors",
    "error",
    """
    A PCIe device reports bus errors.

    Why: replays eat bandwidth, and a device that drops off the bus follows.

    Fix: reseat the device or riser, then replace it.

    In logs: `AER: ... PCIe Bus Error` in floods for one slot.
    """,
)
XID_IN_KERNEL_LOG = shared(
    "xid-in-kernel-log",
    "error",
    """
    The NVIDIA driver reported a fault code.

    Why: it names the GPU that failed before anything else does; 13, 31, 43 and 45 are usually the
    application.

    Fix: by code: 48, 63, 64, 94, 95 memory; 74 NVLink; 79 off the bus; 119, 120 GSP: drain, reset,
    replace.

    In logs: `NVRM: Xid (PCI:0000:3b:00): 79`.
    """,
)
FABRIC_MANAGER_NOT_RUNNING = shared(
    "fabric-manager-not-running",
    "error",
    """
    An NVSwitch machine has no working fabric manager of the driver's version.

    Why: CUDA does not start, or NVLink and NVLS stay off.

    Fix: start `nvidia-fabricmanager` in exactly the driver's version; reset the GPUs after a restart.

    In logs: `Cuda failure 802 'system not yet initialized'`, a failed fabric manager unit.
    """,
)
P2P_CORRUPTS_OR_HANGS = shared(
    "p2p-corrupts-or-hangs",
    "error",
    """
    Copies between two GPUs of a node never end or arrive wrong.

    Why: IOMMU or ACS on boards without a working peer path.

    Fix: `iommu=pt` or IOMMU and ACS off; `NCCL_P2P_DISABLE=1` as a test.
    """,
)
OOM_KILLER_RAN = shared(
    "oom-killer-ran",
    "error",
    """
    The kernel, cgroup or scheduler killed a process for host memory.

    Why: a rank vanishes without a word of its own and the others hang or report a network error.

    Fix: less host memory per rank (loader workers, pinned buffers), or more per node.

    In logs: `oom-kill`, `OOMKilled`, `Out of memory: Killed process`.
    """,
)
