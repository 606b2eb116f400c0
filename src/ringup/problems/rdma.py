"""InfiniBand, RoCE and GPUDirect."""

from __future__ import annotations

from ringup.problems.text import shared

RDMA_PORT_NOT_ACTIVE = shared(
    "rdma-port-not-active",
    "error",
    """
    An RDMA port is not in state ACTIVE.

    Why: NCCL uses only ACTIVE ports.  When a node has none left it falls back to TCP without an error,
    and the job is slow rather than broken.

    Fix: bring the link up, or leave the device out: `NCCL_IB_HCA=^mlx5_2`.

    In logs: `NET/Socket` where other nodes say `NET/IB`.
    """,
)
UVERBS_NOT_ACCESSIBLE = shared(
    "uverbs-not-accessible",
    "error",
    """
    An RDMA device is visible but cannot be opened in this process or container.

    Why: without `/dev/infiniband/uverbs*` NCCL finds no device and falls back to TCP.

    Fix: pass `/dev/infiniband` into the container with IPC_LOCK; group `rdma` for the user.

    In logs: `Call to ibv_open_device failed`, `NET/IB : Unable to open device mlx5_0`.
    """,
)
RDMA_DEVICE_SET_DIFFERS = shared(
    "rdma-device-set-differs",
    "error",
    """
    Hosts offer different sets of RDMA devices.

    Why: ranks plan channels over devices their peers do not have, and wait for ever on them.

    Fix: `NCCL_IB_HCA=<the common set>` everywhere; repair the odd host.

    In logs: `NET/IB : Using` lists of different length.
    """,
)
MIXED_LINK_LAYERS_SELECTED = shared(
    "mixed-link-layers-selected",
    "error",
    """
    InfiniBand and Ethernet (RoCE, bond) ports are among the devices NCCL uses.

    Why: an InfiniBand and a RoCE port cannot be connected to each other, and the slower one drags.

    Fix: name one kind: `NCCL_IB_HCA=<the InfiniBand devices>`.

    In logs: `/IB` and `/RoCE` in one `NET/IB : Using` line.
    """,
)
GID_MISSING_OR_WRONG = shared(
    "gid-missing-or-wrong",
    "error",
    """
    RoCE uses a GID index without a routable v2 address, or one that differs between peers.

    Why: queue pairs cannot be brought up, or their packets are not answered.

    Fix: unset NCCL_IB_GID_INDEX on NCCL 2.21 or newer, else the index of the RoCE v2 IPv4 row
    (`show_gids`);
    give the port an address.

    In logs: `ibv_modify_qp failed with error Invalid argument`, status 12 right after init.
    """,
)
LINK_FLAPPED = shared(
    "link-flapped",
    "error",
    """
    An RDMA port went down during the run.

    Why: outstanding transfers on it fail, on the peers as time-outs.

    Fix: cable, transceiver, switch port; read the port's error counters.

    In logs: `Got async event : port error`.
    """,
)
MEMLOCK_TOO_LOW = shared(
    "memlock-too-low",
    "error",
    """
    The job may not lock enough memory for RDMA.

    Why: registering buffers and creating queues needs locked memory; the limit of the running
    process counts, not the login shell's.

    Fix: memlock unlimited in limits.conf and the daemon; Slurm's PropagateResourceLimits; docker
    `--ulimit memlock=-1`.

    In logs: `ibv_reg_mr failed with error Cannot allocate memory`, `ibv_create_qp failed`.
    """,
)
ACS_ENABLED = shared(
    "acs-enabled",
    "error",
    """
    PCIe access control keeps GPU and NIC from reaching each other's memory.

    Why: peer transfers are sent up to the root complex (or refused); GPUDirect fails or crawls.

    Fix: ACS off on the PCIe bridges (BIOS or setpci); in virtual machines ATS; newer firmware.
    `NCCL_NET_GDR_LEVEL=0` proves it.

    In logs: `error 4 ... vendor err 81` after a complete init.
    """,
)
GPUDIRECT_MODULE_MISSING = shared(
    "gpudirect-module-missing",
    "warning",
    """
    GPUDirect RDMA is off: the peer-memory module is absent, or has a name this NCCL does not look for.

    Why: every transfer is copied through host memory.

    Fix: `modprobe nvidia-peermem` on that host, DMA-BUF, or a newer NCCL.

    In logs: `GPU Direct RDMA Disabled for HCA`, channels without `/GDRDMA` on one host.
    """,
)
IPOIB_USED_FOR_DATA = shared(
    "ipoib-used-for-data",
    "warning",
    """
    Data goes over TCP on an InfiniBand interface instead of over verbs.

    Why: IPoIB is several times slower than the same port's RDMA.

    Fix: see why NET/IB was refused (NCCL_IB_HCA, NCCL_IB_DISABLE, devices in the container).

    In logs: `Using network Socket`, `NET/Socket : Using [0]ib0`.
    """,
)
NETWORK_PLUGIN_MISSING = shared(
    "network-plugin-missing",
    "error",
    """
    A network plugin is loaded on some hosts and not on others, or not at all where the platform
    needs it.

    Why: ranks speak different networks, or fall back to plain TCP.

    Fix: equal images; or `NCCL_NET_PLUGIN=none` everywhere.

    In logs: `Loaded net plugin` on some hosts, `Could not find: libnccl-net.so` on others.
    """,
)
RDMA_DEVICE_NAME_MISSING = shared(
    "rdma-device-name-missing",
    "error",
    """
    NCCL_IB_HCA names nothing that exists or is ACTIVE.

    Why: it takes RDMA device names (mlx5_0), not interface names (ib0, ens13np0); without a match NCCL falls
    back to TCP without a word.

    Fix: device names as in `ibv_devinfo -l` or `rdma link`, or unset it.

    In logs: `NCCL_IB_HCA set to ib0`, then `NET/IB : No device found`.
    """,
)
