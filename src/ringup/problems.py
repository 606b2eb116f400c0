"""
Texts of the problems that are seen both on live nodes and in logs.

One name, one text: a check and a log cause both take it from here.
"""

from __future__ import annotations

from ringup.rules import Problem, Severity, problem_from_docstring, register


def _problem(name: str, severity: Severity, text: str) -> Problem:
    return register(problem_from_docstring(name, severity, text))


# Meeting.
PORT_IN_USE = _problem(
    "port-in-use",
    "error",
    """
    Another process holds the port the store or launcher wants to listen on.

    Why: rank 0 cannot open the store, every other rank waits its full time-out and
    blames the network.  With c10d the busy port is even joined in silence.

    Fix: end the listener if it is a leftover of our own (`ringup clean`), else choose another port.

    In logs: `EADDRINUSE`, `errno: 98 - Address already in use`.
    """,
)
HOSTNAME_UNRESOLVABLE_FROM_PEER = _problem(
    "hostname-unresolvable-from-peer",
    "error",
    """
    A host name the job uses is not known on one of the nodes, or names an address its owner does
    not have.

    Why: the rendezvous endpoint, MASTER_ADDR and Gloo's own address all go through name resolution.

    Fix: put the name into the hosts file or DNS of every node, or use the IP address.

    In logs: `gai error: -2 - Name or service not known`, `socket.gaierror`.
    """,
)
HOSTNAME_RESOLVES_TO_LOOPBACK = _problem(
    "hostname-resolves-to-loopback",
    "error",
    """
    A node's own name maps to 127.x, so Gloo publishes an address no other node can use.

    Why: Gloo binds the address of the host name; peers then dial their own loopback and are refused.

    Fix: `GLOO_SOCKET_IFNAME=<the interface all nodes share>` on every process, or repair the hosts file.

    In logs: `connectFullMesh failed ... remote=[127.0.0.1]`, `Using the loopback address as fallback`.
    """,
)
NODE_RANK_DUPLICATE = _problem(
    "node-rank-duplicate",
    "error",
    """
    Two nodes or processes carry the same rank.

    Why: the meeting place counts one of them twice and waits for ever for the other.

    Fix: a distinct node rank per node; look at which variable the launcher really reads.

    In logs: `rank 1 of 3 ranks has already checked in`, one node rank on two hosts.
    """,
)
WORLD_SIZE_DISAGREES = _problem(
    "world-size-disagrees",
    "error",
    """
    The nodes computed different world sizes, or one that local processes times nodes cannot give.

    Why: every side waits for a number of peers that never comes.

    Fix: the same process count and node count on every node, or a launcher that takes a count per node.

    In logs: `mismatch in rank count from procs 2 : 3`, `world_size=` that differs.
    """,
)
SSH_NOT_PASSWORDLESS = _problem(
    "ssh-not-passwordless",
    "error",
    """
    The launcher cannot log in to a node (its own included) without being asked.

    Why: launchers that start remote processes over ssh run without a terminal; a question is a refusal.

    Fix: a key on every host including localhost, host keys accepted once; test with `ssh -o
    BatchMode=yes HOST true`.

    In logs: `Permission denied (publickey`, `Host key verification failed`, ssh's exit code 255.
    """,
)
PYTHON_OR_LAUNCHER_MISSING = _problem(
    "python-or-launcher-missing",
    "error",
    """
    The interpreter, launcher or working directory of the head does not exist on another node.

    Why: a non-interactive remote shell has another PATH, and paths of one node need not exist on
    the next.

    Fix: the same paths on every node (shared file system or image), an absolute interpreter, `--python`.

    In logs: `torchrun: command not found`, `No such file or directory` after `cd`, `No module
    named 'torch'`.
    """,
)
ORPHAN_OF_EARLIER_RUN = _problem(
    "orphan-of-earlier-run",
    "error",
    """
    Processes of an earlier run live on after their launcher.

    Why: they hold the port and GPU memory, and a new run may even join their store.

    Fix: end their process group or cgroup: `ringup clean` lists them, `ringup clean --kill` ends
    what is provably ours.

    In logs: workers with parent 1, keep-alive failures that repeat for minutes.
    """,
)
SAME_GPU_TWICE = _problem(
    "same-gpu-twice",
    "error",
    """
    Two ranks of a communicator sit on one GPU.

    Why: NCCL refuses it; most often no `set_device(LOCAL_RANK)`, or hosts that look like one
    (cloned identity).

    Fix: `torch.cuda.set_device(LOCAL_RANK)` before the process group; `NCCL_HOSTID` per node for
    cloned machines.

    In logs: `Duplicate GPU detected : rank 3 and rank 2 both on CUDA device e2000`.
    """,
)
NPROC_EXCEEDS_GPUS = _problem(
    "nproc-exceeds-gpus",
    "error",
    """
    More processes are started on a node than it has visible GPUs.

    Why: the surplus ranks ask for a device that is not there.

    Fix: `--nproc` equal to the visible devices; mind CUDA_VISIBLE_DEVICES.

    In logs: `invalid device ordinal`.
    """,
)

# Interfaces.
INTERFACE_NAME_MISSING = _problem(
    "interface-name-missing",
    "error",
    """
    NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME matches no usable interface on a host.

    Why: an interface that is absent, down or without address leaves NCCL or Gloo with nothing to bind.

    Fix: the name that exists on that host; per node where they differ, or an exclusion such as
    `^lo,docker`.

    In logs: `Bootstrap : no socket interface found`, `Unable to find address for: eth7`.
    """,
)
INTERFACE_DOWN = _problem(
    "interface-down",
    "error",
    """
    An interface the job names is down or has no address.

    Why: NCCL and Gloo skip it, and fail when it is the only one named.

    Fix: bring it up, or name another one.

    In logs: `no socket interface found` for an interface the host lists as Down.
    """,
)
VIRTUAL_INTERFACE_CHOSEN = _problem(
    "virtual-interface-chosen",
    "error",
    """
    Docker, bridge, veth, CNI or tunnel interfaces are among the ones NCCL or Gloo uses.

    Why: their addresses exist on every host or on none: connections reach the host itself, or nothing.

    Fix: `NCCL_SOCKET_IFNAME=<the routable one>`, or exclude:
    `NCCL_SOCKET_IFNAME=^docker,br-,veth,virbr,lo`.

    In logs: `NET/Socket : Using ... [1]veth1234:fe80::...`, channels `via NET/Socket/1`.
    """,
)
SAME_ADDRESS_ON_TWO_NODES = _problem(
    "same-address-on-two-nodes",
    "error",
    """
    Two nodes carry the same address.

    Why: docker0 is 172.17.0.1 everywhere, cloned machines keep their NIC's address: the wrong peer
    answers.

    Fix: leave that interface out, or give the nodes addresses of their own.

    In logs: the same address in `Bootstrap : Using` of two hosts.
    """,
)
NO_COMMON_SUBNET = _problem(
    "no-common-subnet",
    "error",
    """
    The interfaces two nodes would use share no subnet and no route.

    Why: each node chooses by itself; one announces an address the other cannot reach.

    Fix: name the interface of the common subnet on every node: `NCCL_SOCKET_IFNAME`,
    `GLOO_SOCKET_IFNAME`.

    In logs: `Bootstrap : Using` addresses of different networks, then silence.
    """,
)
PEER_UNREACHABLE_ON_INTERFACE = _problem(
    "peer-unreachable-on-interface",
    "error",
    """
    A peer's advertised address cannot be reached from here, though the interface is a sane one.

    Why: the address is the peer's choice; a management network, a missing route or a filter stands
    in between.

    Fix: `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` = the interface of the common subnet on
    every node (also
    inside containers); then routes and firewall.

    In logs: `Connect to 10.12.5.64<port> failed : No route to host`, `Connection timed out`.
    """,
)
FIREWALL_DROPS_HIGH_PORTS = _problem(
    "firewall-drops-high-ports",
    "error",
    """
    New connections to high ports are dropped while low ones pass.

    Why: NCCL, Gloo and the worker store listen on ports the kernel gives out, not on the one that
    was opened.

    Fix: open all ports between the nodes, or narrow `net.ipv4.ip_local_port_range` and open that range.

    In logs: `errno: 110 - Connection timed out` on an ephemeral port of a host that answers elsewhere.
    """,
)
DUPLICATE_HOSTNAME = _problem(
    "duplicate-hostname",
    "error",
    """
    Two nodes have the same host name.

    Why: NCCL's and Gloo's notion of "same host" is built from it; local ranks collapse.

    Fix: rename one; `NCCL_HOSTID` per node.
    """,
)
DUPLICATE_BOOT_ID = _problem(
    "duplicate-boot-id",
    "warning",
    """
    Two nodes have the same boot id.

    Why: NCCL takes cloned machines for one host and tries shared memory between them.

    Fix: `NCCL_HOSTID` different on every node.
    """,
)

# RDMA.
RDMA_PORT_NOT_ACTIVE = _problem(
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
UVERBS_NOT_ACCESSIBLE = _problem(
    "uverbs-not-accessible",
    "error",
    """
    An RDMA device is visible but cannot be opened in this process or container.

    Why: without `/dev/infiniband/uverbs*` NCCL finds no device and falls back to TCP.

    Fix: pass `/dev/infiniband` into the container with IPC_LOCK; group `rdma` for the user.

    In logs: `Call to ibv_open_device failed`, `NET/IB : Unable to open device mlx5_0`.
    """,
)
RDMA_DEVICE_SET_DIFFERS = _problem(
    "rdma-device-set-differs",
    "error",
    """
    Hosts offer different sets of RDMA devices.

    Why: ranks plan channels over devices their peers do not have, and wait for ever on them.

    Fix: `NCCL_IB_HCA=<the common set>` everywhere; repair the odd host.

    In logs: `NET/IB : Using` lists of different length.
    """,
)
MIXED_LINK_LAYERS_SELECTED = _problem(
    "mixed-link-layers-selected",
    "error",
    """
    InfiniBand and Ethernet (RoCE, bond) ports are among the devices NCCL uses.

    Why: an InfiniBand and a RoCE port cannot be connected to each other, and the slower one drags.

    Fix: name one kind: `NCCL_IB_HCA=<the InfiniBand devices>`.

    In logs: `/IB` and `/RoCE` in one `NET/IB : Using` line.
    """,
)
GID_MISSING_OR_WRONG = _problem(
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
LINK_FLAPPED = _problem(
    "link-flapped",
    "error",
    """
    An RDMA port went down during the run.

    Why: outstanding transfers on it fail, on the peers as time-outs.

    Fix: cable, transceiver, switch port; read the port's error counters.

    In logs: `Got async event : port error`.
    """,
)
MEMLOCK_TOO_LOW = _problem(
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
ACS_ENABLED = _problem(
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
GPUDIRECT_MODULE_MISSING = _problem(
    "gpudirect-module-missing",
    "warning",
    """
    GPUDirect RDMA is off: the peer-memory module is absent, or has a name this NCCL does not look for.

    Why: every transfer is copied through host memory.

    Fix: `modprobe nvidia-peermem` on that host, DMA-BUF, or a newer NCCL.

    In logs: `GPU Direct RDMA Disabled for HCA`, channels without `/GDRDMA` on one host.
    """,
)
IPOIB_USED_FOR_DATA = _problem(
    "ipoib-used-for-data",
    "warning",
    """
    Data goes over TCP on an InfiniBand interface instead of over verbs.

    Why: IPoIB is several times slower than the same port's RDMA.

    Fix: see why NET/IB was refused (NCCL_IB_HCA, NCCL_IB_DISABLE, devices in the container).

    In logs: `Using network Socket`, `NET/Socket : Using [0]ib0`.
    """,
)
NETWORK_PLUGIN_MISSING = _problem(
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

# Software.
NCCL_VERSIONS_DIFFER = _problem(
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
ENVIRONMENT_DIFFERS_BETWEEN_NODES = _problem(
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
DRIVER_TOO_OLD_FOR_CUDA = _problem(
    "driver-too-old-for-cuda",
    "error",
    """
    The NVIDIA driver does not support the CUDA runtime in use.

    Why: every CUDA call of the process fails.

    Fix: a newer driver on that host, or a wheel for the installed one.

    In logs: `CUDA driver version is insufficient for CUDA runtime version`.
    """,
)
DRIVER_LIBRARY_MISMATCH = _problem(
    "driver-library-mismatch",
    "error",
    """
    The kernel module and the user library of the NVIDIA driver are of different releases.

    Why: the driver was updated without a reboot, or a container carries its own libcuda.

    Fix: reboot or reload the module; remove the library from the image.

    In logs: `Failed to initialize NVML: Driver/library version mismatch`, CUDA error 803.
    """,
)

# GPU, memory, limits.
SHM_TOO_SMALL = _problem(
    "shm-too-small",
    "error",
    """
    /dev/shm is full or small (64 MiB is Docker's default).

    Why: NCCL's shared-memory transport and DataLoader workers live there.

    Fix: `--shm-size=8g`, an emptyDir with `medium: Memory`, or `--ipc=host`.

    In logs: `failed to extend /dev/shm/nccl-`, `DataLoader worker ... Bus error`.
    """,
)
OPEN_FILES_TOO_LOW = _problem(
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
ECC_UNCORRECTABLE = _problem(
    "ecc-uncorrectable",
    "error",
    """
    A GPU has an uncorrectable memory error.

    Why: the driver ends the process that touched it.

    Fix: drain the node, reset the GPU, replace it when it returns.

    In logs: `uncorrectable ECC error encountered`.
    """,
)
GPU_MISSING = _problem(
    "gpu-missing",
    "error",
    """
    A GPU vanished, does not answer, or fewer are there than expected.

    Why: ranks on it fail, all others wait for them.

    Fix: reset or reseat it, drain the node.

    In logs: `GPU is lost`, `fallen off the bus`, `Unable to determine the device handle for GPU`.
    """,
)
PCIE_ERRORS = _problem(
    "pcie-errors",
    "error",
    """
    A PCIe device reports bus errors.

    Why: replays eat bandwidth, and a device that drops off the bus follows.

    Fix: reseat the device or riser, then replace it.

    In logs: `AER: ... PCIe Bus Error` in floods for one slot.
    """,
)
XID_IN_KERNEL_LOG = _problem(
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
FABRIC_MANAGER_NOT_RUNNING = _problem(
    "fabric-manager-not-running",
    "error",
    """
    An NVSwitch machine has no working fabric manager of the driver's version.

    Why: CUDA does not start, or NVLink and NVLS stay off.

    Fix: start `nvidia-fabricmanager` in exactly the driver's version; reset the GPUs after a restart.

    In logs: `Cuda failure 802 'system not yet initialized'`, a failed fabric manager unit.
    """,
)
P2P_CORRUPTS_OR_HANGS = _problem(
    "p2p-corrupts-or-hangs",
    "error",
    """
    Copies between two GPUs of a node never end or arrive wrong.

    Why: IOMMU or ACS on boards without a working peer path.

    Fix: `iommu=pt` or IOMMU and ACS off; `NCCL_P2P_DISABLE=1` as a test.
    """,
)
OOM_KILLER_RAN = _problem(
    "oom-killer-ran",
    "error",
    """
    The kernel, cgroup or scheduler killed a process for host memory.

    Why: a rank vanishes without a word of its own and the others hang or report a network error.

    Fix: less host memory per rank (loader workers, pinned buffers), or more per node.

    In logs: `oom-kill`, `OOMKilled`, `Out of memory: Killed process`.
    """,
)

# What the ranks were doing.
RANK_FELL_BEHIND = _problem(
    "rank-fell-behind",
    "error",
    """
    Some ranks wait in a collective that one or more never entered.

    Why: a branch taken by some ranks only is the usual fault; also slow data or a rank stopped.

    Fix: the stack of the missing rank (`ringup stacks`); then the code path only it took.

    In logs: `Ranks 2 failed to pass monitoredBarrier`, one sequence number on all that speak and a
    rank silent.
    """,
)
COLLECTIVE_MISMATCH = _problem(
    "collective-mismatch",
    "error",
    """
    Ranks are in different collectives, or in the same one with another size or order.

    Why: each rank's calls on a communicator are matched by order alone.

    Fix: same operation, order and shape on all ranks; `TORCH_DISTRIBUTED_DEBUG=DETAIL` names both sides.

    In logs: `Detected mismatch between collectives on ranks`, other SeqNum, OpType or NumelIn in
    one group.
    """,
)
COLLECTIVES_DIFFER = _problem(
    "collectives-differ",
    "error",
    """
    A checked collective had different operations or shapes on its ranks.

    Why: under TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares fingerprints before it runs.

    Fix: same call on all ranks; the message names both sides.
    """,
)
ALL_REDUCE_WRONG = _problem(
    "all-reduce-wrong",
    "error",
    """
    A collective finished with wrong numbers.

    Why: broken peer copies (ACS, IOMMU), memory or link faults; never a rounding question at this size.

    Fix: `NCCL_P2P_DISABLE=1` as a test, ACS and IOMMU off, then the hardware of the ranks named.

    In logs: `#wrong` above 0, `Out of bounds values`.
    """,
)
