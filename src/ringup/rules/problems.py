"""
Texts of problems that several rules find (live and in logs), and of rules that are rows of a table.

Each is `name, severity: summary`, then its sections, with blank lines between them.
"""

TEXTS = """
shm-too-small, error: /dev/shm is full or small (64 MiB is Docker's default).
Why: NCCL's shared-memory transport and DataLoader workers live there.
Fix: use `--shm-size=8g`, an emptyDir with `medium: Memory`, or `--ipc=host`.
In logs: `failed to extend /dev/shm/nccl-`, `DataLoader worker ... Bus error`.

open-files-too-low, error: A process ran out of file descriptors, or may open too few.
Why: sockets to every peer and loader pipes all count.
Fix: `ulimit -n 65536` in the job's own shell; `torch.multiprocessing.set_sharing_strategy("file_system")` for
loaders.
In logs: `Too many open files`.

ecc-uncorrectable, error: A GPU has an uncorrectable memory error.
Why: the driver ends the process that touched it.
Fix: drain the node, reset the GPU, replace it when it returns.
In logs: `uncorrectable ECC error encountered`.

gpu-missing, error: A GPU vanished, does not answer, or fewer are there than expected.
Why: ranks on it fail, all others wait for them.
Fix: reset or reseat it, drain the node.
In logs: `GPU is lost`, `fallen off the bus`, `Unable to determine the device handle for GPU`.

pcie-errors, error: A PCIe device reports bus errors.
Why: every replay costs bandwidth, and the device may soon drop off the bus.
Fix: reseat the device or riser, then replace it.
In logs: `AER: ... PCIe Bus Error` in floods for one slot.

xid-in-kernel-log, error: The NVIDIA driver reported a fault code (Xid).
Why: it is the first message about a GPU that failed; 13, 31, 43 and 45 usually come from the application.
Fix: see the code: 48, 63, 64, 94, 95 memory; 74 NVLink; 79 off the bus; 119, 120 GSP: drain, reset, replace.
In logs: `NVRM: Xid (PCI:0000:3b:00): 79`.

fabric-manager-not-running, error: An NVSwitch machine has no working fabric manager of the driver's version.
Why: CUDA does not start, or NVLink and NVLS stay off.
Fix: start `nvidia-fabricmanager` in exactly the driver's version; reset the GPUs after a restart.
In logs: `Cuda failure 802 'system not yet initialized'`, a failed fabric manager unit.

oom-killer-ran, error: The kernel, cgroup or scheduler killed a process for host memory.
Why: a rank vanishes without a message and the others hang or report a network error.
Fix: use less host memory per rank (loader workers, pinned buffers), or request more per node.
In logs: `oom-kill`, `OOMKilled`, `Out of memory: Killed process`.

interface-name-missing, error: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME matches no usable interface on a host.
Why: an interface that is absent, down or without address leaves NCCL or Gloo with nothing to bind.
Fix: set the name that exists on that host (it may differ per node), or an exclusion such as `^lo,docker`.
In logs: `Bootstrap : no socket interface found`, `Unable to find address for: eth7`.

interface-down, error: An interface the job names is down or has no address.
Why: NCCL skips it, and fails if no other one is named; before NCCL 2.28.3, and in Gloo, it is taken, and the
connections hang.
Fix: bring it up, or name another one.
In logs: `no socket interface found` for an interface the host lists as Down.

virtual-interface-chosen, error: Docker, bridge, veth, CNI or tunnel interfaces are among the ones NCCL or
Gloo uses.
Why: their addresses exist on every host or on none: connections reach the host itself, or nothing.
Fix: `NCCL_SOCKET_IFNAME=<the routable one>`, or exclude: `NCCL_SOCKET_IFNAME=^docker,br-,veth,virbr,lo`.
In logs: `NET/Socket : Using ... [1]veth1234:fe80::...`, channels `via NET/Socket/1`.

same-address-on-two-nodes, error: Two nodes carry the same address.
Why: docker0 is 172.17.0.1 everywhere, cloned machines keep their NIC's address: the wrong peer answers.
Fix: leave that interface out, or give every node its own address.
In logs: the same address in `Bootstrap : Using` of two hosts.

peer-unreachable-on-interface, error: A peer's advertised address cannot be reached from here, although the
interface looks right.
Why: the peer announced that address: it is on another network, a route is missing or a firewall blocks it.
Fix: set `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME` to the interface of the common subnet on every node
(also inside containers); then repair routes and firewall.
In logs: `Connect to 10.12.5.64<port> failed : No route to host`, `Connection timed out`.

firewall-drops-high-ports, error: New connections to high ports are dropped while low ones pass.
Why: NCCL, Gloo and the worker store listen on ports that the kernel chooses, not only on the one opened.
Fix: open all ports between the nodes, or narrow `net.ipv4.ip_local_port_range` and open that range.
In logs: `errno: 110 - Connection timed out` on an ephemeral port of a host that answers elsewhere.

duplicate-hostname, error: Two nodes have the same host name.
Why: NCCL and Gloo compare it to find ranks of one host: they take the two nodes for one host.
Fix: rename one, or set another `NCCL_HOSTID` on each node.

duplicate-boot-id, warning: Two nodes have the same boot id.
Why: NCCL takes cloned machines for one host and tries shared memory between them.
Fix: set another `NCCL_HOSTID` on each node.

loopback-interface-chosen, error: NCCL or Gloo uses the loopback interface in a job of several nodes.
Why: every rank tells its peers 127.0.0.1, and they connect to themselves. A filter set by the user, such as
`NCCL_SOCKET_IFNAME=^docker`, no longer excludes `lo`.
Fix: `NCCL_SOCKET_IFNAME=^lo,docker`, or the name of the interface the nodes share.
In logs: `Bootstrap : Using lo:127.0.0.1<0>`, `NET/Socket : Using [0]lo:127.0.0.1<0>`.

unknown-nccl-variable, warning: A variable looks like one of NCCL's or Gloo's, but they have no such variable.
Why: NCCL and Gloo ignore a name that they do not know, without a message: the setting has no effect.
Fix: correct the spelling.

gloo-ifname-in-nccl-syntax, error: GLOO_SOCKET_IFNAME holds NCCL's list, exclusion or exact-match syntax.
Why: Gloo takes one plain name; `^docker` is the name of no interface.
Fix: `GLOO_SOCKET_IFNAME=<one interface>`.
In logs: `Unable to find address for: ^docker,lo`.

local-rank-argument-rejected, error: `torch.distributed.launch` passes `--local-rank=N`, the script knows only
another spelling or none.
Why: torch 2.0 changed the underscore to a dash; argument parsers refuse what they do not know.
Fix: use torchrun and read `LOCAL_RANK` from the environment, or accept both spellings.
In logs: `unrecognized arguments: --local-rank=0`.

parallel-sizes-do-not-divide, error: Tensor, pipeline, context or expert parallel sizes do not divide the
number of ranks, or a batch does not.
Why: Megatron's ranks are a multiple of tensor x pipeline x context sizes (`megatron/training/arguments.py`),
its global batch one of micro batch x data-parallel size (`num_microbatches_calculator.py`); heads, layers and
experts are split evenly.  verl, EasyR1 and OpenRLHF assert the like, and in torchtitan the product of all
degrees is the number of ranks: every rank ends at the start.
Fix: choose sizes whose product divides the number of ranks.

launcher-argument-misread, error: The launcher does not know an option, or takes a value for something else.
Why: an option of another launcher or release, or of the script; the first word that a launcher does not know
is the script, and a flag that needs no value takes none.
Fix: read the launcher's `--help` and the entrypoint it prints; write options of the script behind its name.
In logs: `torchrun: error: unrecognized arguments: --nproc-per-nod`, `entrypoint : false`.

rendezvous-ids-differ, error: Every node made its own run id, so each waits in its own rendezvous.
Why: each node drew its own: an empty `--rdzv-id`, or `$(uuidgen)` and similar on every node.
Fix: give the same `--rdzv-id` on every node.
In logs: `generated a random run_id` with different numbers on different nodes.

launcher-started-per-task, error: The launcher itself was started once per Slurm or MPI task, each copy
starting all local ranks.
Why: K copies start K times the local ranks, in K worlds or too many in one, and all want one port.
Fix: use `--ntasks-per-node=1` for launchers, or no launcher and one task per rank.
In logs: the launcher's banner K times on a node, `worker_count` = K x `world_size`.

world-never-formed, warning: The ranks of a run never formed one world: each of them, or each node, trained
alone.
Why: N ranks apart train N models and not one, each as slowly as a single rank, and nothing fails. Frameworks
do so without a message where they see no GPU (Accelerate), a script does where it spawns its own ranks,
writes localhost as MASTER_ADDR, or gives its own world size.
Fix: `ringup lint train.py` names the line if the script has one. Accelerate and Trainer on CPUs need
ACCELERATE_USE_CPU=true, Lightning num_nodes= and devices=, JAX `jax.distributed.initialize()` first. If every
rank shall work alone, nothing is wrong.
In logs: `no connection was seen between 2 parts of the run` in a run's `ringup.log`.

rank-fell-behind, error: Some ranks wait in a collective that one or more never entered.
Why: usually only some ranks take a branch of the code; sometimes data is slow or a rank is stopped.
Fix: look at the stack of the missing rank (`ringup stacks`), then at the code path that only it took.
In logs: `Ranks 2 failed to pass monitoredBarrier`, one sequence number on all ranks but a silent one; a dump
of torch's flight recorder that ends before the others'.

collective-mismatch, error: Ranks are in different collectives, or in the same one with another size or order.
Why: each rank's calls on a communicator are matched by order alone.
Fix: make the same calls (kind, size, order) on all ranks; `TORCH_DISTRIBUTED_DEBUG=DETAIL` names both sides.
In logs: `Detected mismatch between collectives on ranks`, other SeqNum, OpType or NumelIn in one group;
another call under one `collective_seq_id` of torch's flight recorder dumps.

all-reduce-wrong, error: A collective finished with wrong numbers.
Why: broken peer copies (ACS, IOMMU), memory or link faults; rounding cannot explain errors of this size.
Fix: try `NCCL_P2P_DISABLE=1`; turn ACS and IOMMU off; then test the hardware of the ranks named.
In logs: `#wrong` above 0, `Out of bounds values`.

rdma-port-not-active, error: An RDMA port is not in state ACTIVE.
Why: NCCL uses only ACTIVE ports. When a node has none left it falls back to TCP without an error, and the job
is slow rather than broken.
Fix: bring the link up, or leave the device out: `NCCL_IB_HCA=^mlx5_2`.
In logs: `NET/Socket` where other nodes say `NET/IB`.

uverbs-not-accessible, error: An RDMA device is visible but cannot be opened in this process or container.
Why: without `/dev/infiniband/uverbs*` NCCL finds no device and falls back to TCP.
Fix: pass `/dev/infiniband` into the container with IPC_LOCK; add the user to group `rdma`.
In logs: `Call to ibv_open_device failed`, `NET/IB : Unable to open device mlx5_0`.

rdma-device-set-differs, error: Hosts offer different sets of RDMA devices.
Why: ranks plan channels over devices their peers do not have, and wait for ever on them.
Fix: set `NCCL_IB_HCA=<the common set>` everywhere; repair the host that differs.
In logs: `NET/IB : Using` lists of different length.

mixed-link-layers-selected, error: InfiniBand and Ethernet (RoCE, bond) ports are among the devices NCCL uses.
Why: an InfiniBand and a RoCE port cannot be connected to each other, and the slower one slows all down.
Fix: name one kind: `NCCL_IB_HCA=<the InfiniBand devices>`.
In logs: `/IB` and `/RoCE` in one `NET/IB : Using` line.

gid-missing-or-wrong, error: RoCE uses a GID index without a routable v2 address, or one that differs between
peers.
Why: queue pairs cannot be brought up, or their packets are not answered.
Fix: unset NCCL_IB_GID_INDEX on NCCL 2.21 or newer, else the index of the RoCE v2 IPv4 row (`show_gids`); give
the port an address.
In logs: `ibv_modify_qp failed with error Invalid argument`, status 12 right after init.

link-flapped, error: An RDMA port went down during the run.
Why: transfers on it fail, and the peers report timeouts.
Fix: check cable, transceiver and switch port; read the port's error counters.
In logs: `Got async event : port error`.

memlock-too-low, error: The job may not lock enough memory for RDMA.
Why: registering buffers and creating queues needs locked memory; the limit of the running process counts, not
the login shell's.
Fix: set memlock to unlimited in limits.conf and in the daemon that starts the job (Slurm:
PropagateResourceLimits; docker: `--ulimit memlock=-1`; a pod: the capability IPC_LOCK).
In logs: `ibv_reg_mr failed with error Cannot allocate memory`, `ibv_create_qp failed`.

acs-enabled, error: PCIe access control keeps GPU and NIC from reaching each other's memory.
Why: peer transfers are sent up to the root complex (or refused); GPUDirect fails or is slow.
Fix: turn ACS off on the PCIe bridges (BIOS or setpci); in virtual machines turn ATS on; update the firmware.
If the job works with `NCCL_NET_GDR_LEVEL=0`, this is the cause.
In logs: `error 4 ... vendor err 81` after a complete init.

gpudirect-module-missing, warning: GPUDirect RDMA is off: the peer-memory module is absent, or has a name this
NCCL does not look for.
Why: every transfer is copied through host memory.
Fix: run `modprobe nvidia-peermem` on that host, or use DMA-BUF or a newer NCCL.
In logs: `GPU Direct RDMA Disabled for HCA`, channels without `/GDRDMA` on one host.

ipoib-used-for-data, warning: Data goes over TCP on an InfiniBand interface instead of over verbs.
Why: IPoIB is several times slower than the same port's RDMA.
Fix: find out why NET/IB was not used (NCCL_IB_HCA, NCCL_IB_DISABLE, devices in the container).
In logs: `Using network Socket`, `NET/Socket : Using [0]ib0`.

network-plugin-missing, error: A network plugin is loaded on some hosts and not on others, or not at all where
the platform needs it.
Why: ranks speak different networks, or fall back to plain TCP.
Fix: use one image on all hosts, or `NCCL_NET_PLUGIN=none` everywhere.
In logs: `Loaded net plugin` on some hosts, `Could not find: libnccl-net.so` on others.

rdma-device-name-missing, error: NCCL_IB_HCA names nothing that exists or is ACTIVE.
Why: it takes RDMA device names (mlx5_0), not interface names (ib0, ens13np0); without a match NCCL falls back
to TCP without a message.
Fix: set device names as `ibv_devinfo -l` or `rdma link` prints them, or unset it.
In logs: `NCCL_IB_HCA set to ib0`, then `NET/IB : No device found`.

port-in-use, error: Another process holds the port the store or launcher wants to listen on.
Why: rank 0 cannot open the store, every other rank waits its full timeout and blames the network. With c10d a
rank may even join the wrong store without an error.
Fix: end the process that listens if an earlier run left it (`ringup clean`), else choose another port.
In logs: `EADDRINUSE`, `errno: 98 - Address already in use`.

port-privileged, error: The port of the rendezvous is below 1024, or above 65535.
Why: below 1024 only root may listen; for anybody else the head ends with "Permission denied". torch refuses a
port above 65535 (`_create_c10d_store`).
Fix: choose a port from 1024 to 65535.
In logs: `server socket has failed to bind. port: 512, ... EACCES`.

hostname-unresolvable-from-peer, error: A host name the job uses is not known on one of the nodes, or names an
address its owner does not have.
Why: the rendezvous endpoint, MASTER_ADDR and Gloo's own address all go through name resolution.
Fix: put the name into the hosts file or DNS of every node, or use the IP address. Pods know each other as
POD.SERVICE, with a headless Service of the name that their `subdomain` has.
In logs: `gai error: -2 - Name or service not known`, `socket.gaierror`.

hostname-resolves-to-loopback, error: A node's own name maps to 127.x or to an address it does not have, which
no other node can use.
Why: Gloo binds the address of the host name; peers then dial their own loopback and are refused.
Fix: `GLOO_SOCKET_IFNAME=<the interface all nodes share>` on every process, or repair the hosts file.
In logs: `connectFullMesh failed ... remote=[127.0.0.1]`, `Using the loopback address as fallback`, `rp !=
nullptr. Unable to find address for: HOST`.

node-rank-duplicate, error: Two nodes or processes carry the same rank.
Why: the rendezvous counts one of them twice and waits for the other for ever.
Fix: give each node a rank of its own; check which variable the launcher really reads.
In logs: `rank 1 of 3 ranks has already checked in`, one node rank on two hosts.

world-size-disagrees, error: The nodes computed different world sizes, or one that local processes times nodes
cannot give.
Why: every side waits for a number of peers that never comes.
Fix: use the same process count and node count on every node, or a launcher that takes a count per node.
In logs: `mismatch in rank count from procs 2 : 3`, `world_size=` that differs.

ssh-not-passwordless, error: The launcher cannot log in to a node (its own included) without a question.
Why: a launcher runs ssh without a terminal, so nobody can answer and the login ends.
Fix: install a key on every host including localhost, and accept the host keys once; test with `ssh -o
BatchMode=yes HOST true`.
In logs: `Permission denied (publickey`, `Host key verification failed`, ssh's exit code 255.

python-or-launcher-missing, error: The interpreter, launcher or working directory of the head does not exist
on another node.
Why: a shell that ssh starts has another PATH, and a path of one node may be missing on another.
Fix: use the same paths on every node (shared file system or image), or name the interpreter with `--python`.
In logs: `torchrun: command not found`, `No such file or directory` after `cd`, `No module named 'torch'`.

orphan-of-earlier-run, error: Processes of an earlier run live on after their launcher.
Why: they hold the port and GPU memory, and a new run may even join their store.
Fix: end their process group or cgroup: `ringup clean` lists them, `ringup clean --kill` ends proven
leftovers.
In logs: workers with parent 1, keep-alive failures that repeat for minutes.

same-gpu-twice, error: Two ranks of a communicator sit on one GPU.
Why: NCCL refuses it; most often no `set_device(LOCAL_RANK)`, or hosts that look like one (cloned identity).
Fix: `torch.cuda.set_device(LOCAL_RANK)` before the process group; `NCCL_HOSTID` if machines are cloned.
In logs: `Duplicate GPU detected : rank 3 and rank 2 both on CUDA device e2000`.

nproc-exceeds-gpus, error: More processes are started on a node than it has visible GPUs.
Why: the surplus ranks request a device that does not exist.
Fix: `--nproc` must equal the number of visible devices: look at CUDA_VISIBLE_DEVICES.
In logs: `invalid device ordinal`.

meeting-point-differs, error: The lines of two nodes, or a script and its launch line, name different
rendezvous addresses, or each node chooses its own port.
Why: each side waits at its own address until the timeout.
Fix: use one address and one port for all, best set in one place, before the nodes are started.

nccl-versions-differ, error: Ranks run different NCCL releases.
Why: their bootstrap messages have different sizes: the start hangs, or fails with a truncated message or an
address without family.
Fix: install one NCCL wheel (or image) everywhere.
In logs: `Mismatched NCCL version detected`, `NCCL version` lines that differ, `family 0 is neither AF_INET`.

environment-differs-between-nodes, error: NCCL settings differ between ranks, so both sides plan different
transfers.
Why: with different algorithms, protocols or buffer sizes, the two sides expect messages of different sizes.
Fix: export the same set through the launcher on every node.
In logs: `collective mismatch error, local size 8 remote size 4`, other `set by environment` lines per host.

driver-too-old-for-cuda, error: The NVIDIA driver does not support the CUDA runtime in use.
Why: every CUDA call of the process fails.
Fix: install a newer driver on that host, or a wheel for the installed one.
In logs: `CUDA driver version is insufficient for CUDA runtime version`.

driver-library-mismatch, error: The kernel module and the user library of the NVIDIA driver are of different
releases.
Why: the driver was updated without a reboot, or a container carries its own libcuda.
Fix: reboot or reload the module; remove the library from the image.
In logs: `Failed to initialize NVML: Driver/library version mismatch`, CUDA error 803.

ssh-host-key-unknown, error: ssh does not know the node's host key yet.
Why: without a terminal ssh refuses rather than asks; a launcher that accepts any key would talk to any
machine.
Fix: log in once by hand and compare the fingerprint, or add the key from a trusted source to
`~/.ssh/known_hosts`.
In logs: `Host key verification failed.`

ssh-host-key-changed, error: The node shows another host key than the one known for it.
Why: it was reinstalled, another machine has its address, or somebody intercepts the connection.
Fix: ask the node's administrators; if it was reinstalled, remove the old key and accept the new one.
In logs: `REMOTE HOST IDENTIFICATION HAS CHANGED`, `Host key verification failed.`

ssh-key-refused, error: The node accepts none of the user's keys.
Why: nothing can be checked or started there without a password.
Fix: put the public key into the user's `authorized_keys` on the node; check user name and agent.
In logs: `Permission denied (publickey).`

ssh-connection-refused, error: Nothing listens on the node's ssh port.
Why: sshd is not running there, listens on another port, or a firewall refuses.
Fix: start sshd on the node, or give its port in `~/.ssh/config`.
In logs: `ssh: connect to host node1 port 22: Connection refused`.

ssh-no-route, error: There is no route to the node's address.
Why: the node is off, its network interface is down, or a route is missing.
Fix: check its power and its link, and compare the address with the one that it should have.
In logs: `ssh: connect to host node1 port 22: No route to host`.

ssh-timeout, error: The node does not answer on its ssh port at all.
Why: it is off, has another address, or a firewall drops the packets. ssh itself would wait two minutes.
Fix: check its power, its address, and whether a firewall on the way drops port 22.
In logs: nothing for two minutes, then `Connection timed out`.

ssh-name-unknown, error: The name of a node cannot be resolved here.
Why: neither the hosts file, DNS nor ssh's configuration has it; most often a spelling mistake.
Fix: correct the name, use the address, or add a `Host` entry with `HostName` to `~/.ssh/config`.
In logs: `ssh: Could not resolve hostname node1: Name or service not known`.

ssh-key-exchange-hangs, error: The node accepts the connection, and then ssh's key exchange never ends.
Why: small packets pass and full-size ones vanish: an MTU black hole on the way to the node. The training job
would hang in the same way. Where not even sshd's banner came, which is short, the node or its sshd hangs or
is overloaded.
Fix: set the same MTU along the whole path and let ICMP "fragmentation needed" through; until then set a
smaller MTU here or on the node. Without a banner, look at the node's console.
In logs: `expecting SSH2_MSG_KEX_ECDH_REPLY` as the last line of `ssh -v`.

ssh-long-answer-lost, error: The node can be logged in to and answers briefly, but a long answer never
arrives.
Why: full-size packets from the node vanish: an MTU black hole on the way back. The training job would hang in
the same way.
Fix: set the same MTU along the whole path and let ICMP "fragmentation needed" through; until then set a
smaller MTU on the node.

ssh-failed, error: ssh to the node failed for a reason not listed here.
Why: nothing can be checked or started there.
Fix: read ssh's message; `ssh -v` prints more.

srun-failed, error: Slurm could not start a step of one task on a node of the allocation, or the step was
lost.
Why: inside an allocation, a job reaches its nodes only by `srun`.
Fix: try `srun --overlap -N1 -n1 -w NODE hostname`; if the node is gone, request a new allocation; without a
working srun, `--ssh-config ~/.ssh/config` reaches the nodes by ssh.
In logs: `srun: error: Unable to create step for job`

no-answer, error: The node was reached but did not answer within the deadline.
Why: a node that is overloaded or hangs (a dead network file system, a start-up file that waits, lost packets)
would delay every rank.
Fix: log in by hand and find what hangs; `--timeout` allows more time.

symbol-errors, warning: An RDMA port receives damaged symbols.
Why: each may cost a packet, which is sent again: the link works, but it is slow and unreliable.
Fix: clean or change cable and transceiver.

receive-errors, warning: An RDMA port drops packets that it receives.
Why: they arrived damaged, or faster than the port could take them; each is sent again.
Fix: check cable, transceiver and switch port, at both ends of the cable.

transmit-discards, warning: An RDMA port drops packets that it should send.
Why: the receiver or a switch on the way accepts no more; one slow node or congested link delays all others.
Fix: find the slow receiver: the port's peer, congestion control, a host that is slow to receive.

transport-retries, warning: The RDMA transport retransmits messages.
Why: packets are lost on the way or answers come too late; when retries run out the job dies (status 12).
Fix: on RoCE check flow control and ECN on every switch, on InfiniBand the cables; look for a slow receiver.
In logs: `Got completion ... status=12`, later.

hostname-resolves-to-ipv6-only, error: A node's own name has only an IPv6 address while its peers' names have
IPv4 ones.
Why: Gloo compares the addresses of both ends and gives up on two families.
Fix: give the name an IPv4 address, or set `GLOO_SOCKET_IFNAME` on every node.
In logs: `ss1.ss_family == ss2.ss_family. 2 vs 10`.

hostname-resolves-to-wrong-address, error: A node's own name gives an address that none of its interfaces has.
Why: Gloo cannot bind it and falls back to loopback; c10d's rendezvous takes the node for another.
Fix: put the node's own address into its hosts file or DNS, or set `GLOO_SOCKET_IFNAME`.
In logs: `Unable to resolve hostname to a (local) address. Using the loopback address as fallback`.

own-hostname-unresolvable, error: A node cannot resolve its own name.
Why: torch's launcher looks it up and dies; Gloo falls back to loopback, where no peer finds it.
Fix: put its name and address on the shared network into its hosts file, or set `GLOO_SOCKET_IFNAME`.
In logs: `socket.gaierror: [Errno -3] Temporary failure in name resolution`, with no name in it.

launcher-versions-differ, warning: The nodes have different versions of the requested launcher.
Why: options, defaults and the variables of the ranks change between releases; JAX also changes its protocol.
Fix: use one environment for all nodes: a shared file system or an image.

torch-versions-differ, error: The nodes have different versions of torch.
Why: the store's protocol, pickles and collectives' fingerprints change between releases; it may train for a
while and then hang.
Fix: use one environment for all nodes: a shared file system or an image.

cuda-versions-differ, warning: The nodes' torch is built for different CUDA releases.
Why: NCCL and kernels then differ, and so do speed and results.
Fix: install the same wheel on every node.

python-versions-differ, warning: The nodes have different minor versions of Python.
Why: a pickle or a compiled package of one version may not load in another.
Fix: use one environment for all nodes; `--python` names it.

disk-full, error: The run cannot write its files: the disk or the quota is full, or it may not write there.
Why: logs, checkpoints and NCCL's own files fail, and workers die without a message.
Fix: free space (`df -h`, `df -i`, `quota -s`), or set TMPDIR to a file system that has some.
In logs: `No space left on device`, `Disk quota exceeded`, `Read-only file system`.

nfs-mount-slow, error: Access to the job's directory, its script, a path it uses or TMPDIR takes seconds, or
never ends.
Why: a rank that waits for a file server, or for a bad disk, cannot be interrupted, and its peers time out
in NCCL; the most common cause of an "NCCL timeout" without a network fault.
Fix: `stat -f` names the file system: repair the server or the disk, or use a copy elsewhere; on a local
disk first find the programs that keep it busy.  `mount -o remount` does not help a dead server.
In logs: `nfs: server NAME not responding, still trying`.

path-mtu-black-hole, error: Small packets pass and full-size ones vanish.
Why: connections open, the first tensor never arrives, and there is no error: ping and ssh work.
Fix: set the same MTU on every node and switch of the network, and let ICMP "fragmentation needed" through;
until then set a smaller MTU on the nodes, or `sysctl net.ipv4.tcp_mtu_probing=1`.
In logs: `Timed out waiting 10000ms for recv operation to complete`, like a hang of the program.

nvlink-failed, error: A link between GPUs failed for good during the run.
Why: the link, its connector or the NVSwitch is damaged; it is not a memory error of a GPU.
Fix: run `nvidia-smi nvlink -e` and `dmesg | grep -i -e xid -e nvlink` on that node; drain it, reset the GPUs,
replace what fails again.
In logs: `uncorrectable NVLink error detected during the execution`.

imex-not-working, error: NVLink reaches other nodes (MNNVL), and NCCL may not use it.
Why: the IMEX service does not run on every node of the domain, or its channel device is not in the container.
Fix: `nvidia-imex-ctl -N` shows the domain, `systemctl restart nvidia-imex` on the nodes that lack it; give
/dev/nvidia-caps-imex-channels to the container; `NCCL_MNNVL_ENABLE=0` continues over the network.
In logs: `MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration`.

peer-mappings-exhausted, error: A GPU cannot map the memory of another one: CUDA's table of peers is full.
Why: a GPU without NVSwitch has at most eight peers, over all processes together.
Fix: use one process per GPU and at most eight GPUs in a process (`CUDA_VISIBLE_DEVICES`), or
`NCCL_P2P_DISABLE=1`.
In logs: `CUDA error: peer mapping resources exhausted`.

no-gpu-visible, error: The program needs a GPU, and its host or its build of torch has none.
Why: a machine or container without GPUs or driver, or a build of torch without CUDA.
Fix: run `nvidia-smi -L` and `python -c "import torch; print(torch.version.cuda, torch.cuda.device_count())"`
in the job's own shell; `--gpus-per-node` in Slurm, `--gpus all` in Docker; on CPUs, `backend="gloo"`.
In logs: `Torch not compiled with CUDA enabled`, `ProcessGroupNCCL is only supported with GPUs`.

rendezvous-variables-missing, error: The variables that tell a rank its number and its head are not set.
Why: the script was started without a launcher, or its starter (srun, ssh, sudo, a container) drops them.
Fix: `torchrun --nproc_per_node N train.py`; for `srun` alone set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR
and MASTER_PORT from Slurm's variables.
In logs: `environment variable RANK expected, but not set`.

pod-not-scheduled, error: Kubernetes finds no node for a pod of the job, so its ranks never start.
Why: no node has as many free GPUs, RDMA devices, CPUs or memory as the pod requests, or taints and selectors
leave none.
Fix: `kubectl describe pod POD` names the reason of each node; `kubectl describe node NODE` shows what is
allocated; for a gang of pods a scheduler that places all or none (Kueue, Volcano).
In logs: `0/12 nodes are available: 8 Insufficient nvidia.com/gpu`.

container-not-started, error: A container of the job does not start: its image, a volume or its settings.
Why: the image's name or tag is wrong, the registry asks for credentials, a volume or secret is missing, or
the runtime for GPUs (nvidia-container-toolkit) is missing or fails.
Fix: in Kubernetes `kubectl describe pod POD`, its last events, and `imagePullSecrets`; elsewhere the same
`docker run` on that node, with `nvidia-smi` as the program.
In logs: `Failed to pull image`, `ImagePullBackOff`, `CreateContainerConfigError`.

job-step-not-launched, error: Slurm did not start the program: its container, a plugin or the node failed.
Why: the image cannot be imported or started, a prolog or a plugin (pyxis) fails, or slurmd on that node does.
Fix: read slurmd's log on that node; with pyxis the lines of enroot above, and try `enroot start IMAGE` there;
for an MPI type `srun --mpi=list`.
In logs: `pyxis: couldn't start container`, `task 3 launch failed`.

sidecar-intercepts-ranks, error: The proxy of a service mesh takes the connections between ranks.
Why: Istio's and Linkerd's sidecars redirect every connection of a pod to themselves; NCCL and Gloo then
talk to 127.0.0.6 and read nothing.
Fix: annotate these pods: `sidecar.istio.io/inject: "false"` (`linkerd.io/inject: disabled`).
In logs: a peer 127.0.0.6, `received 0 bytes instead of 4`.

placement-not-possible, error: Ray has fewer free GPUs, CPUs or nodes than a placement asks for.
Why: the parallel sizes need more GPUs than the cluster has, another job holds them, or nodes are missing.
Fix: `ray status` lists what is free and what waits; smaller parallel sizes, or the missing nodes.
In logs: `Cannot provide a placement group`, `No available node types can fulfill resource request`.

container-restarts, error: Kubernetes starts a container again and again, since it ends with an error.
Why: the program in it fails; the event does not give the reason.
Fix: `kubectl logs POD --previous` is the log of the attempt before; `kubectl describe pod POD` has its exit
code (137: killed, often for memory).
In logs: `Back-off restarting failed container`, `CrashLoopBackOff`.

ray-node-address-differs, error: A placement is bound to an address that no node of the Ray cluster has.
Why: vLLM asks for `node:ADDRESS` with VLLM_HOST_IP; Ray knows its nodes by `--node-ip-address`, by default
the address of another interface. The request waits for ever.
Fix: `ray start --node-ip-address=$VLLM_HOST_IP` on every node, with an address that the node has;
`ray status -v` lists the nodes by address.
In logs: `No available node types can fulfill resource request {'node:10.0.0.7': 0.001}`.

not-enough-slots, error: More processes are requested than the hosts have slots.
Why: mpirun and horovodrun count one slot a host (or a core) where the host list does not say more.
Fix: write `-H node0:8,node1:8`, or `slots=8` in the host file; `--oversubscribe` only on CPUs.
In logs: `There are not enough slots available in the system to satisfy the 16 slots`.

parameter-ready-twice, error: DDP got the gradient of one parameter twice in one iteration.
Why: reentrant activation checkpointing, or a module that is used several times in one forward pass.
Fix: `use_reentrant=False` for checkpointing (`gradient_checkpointing_kwargs={"use_reentrant": False}`), or
`static_graph=True`.
In logs: `Expected to mark a variable ready only once`.

process-group-started-twice, error: A process starts its default process group a second time.
Why: the script and its framework (Accelerate, DeepSpeed, Lightning) both call init_process_group.
Fix: leave it to the framework, or ask `torch.distributed.is_initialized()` first.
In logs: `trying to initialize the default process group twice!`

nccl-called-wrongly, error: The program calls NCCL in a way that it refuses.
Why: a tensor of another GPU than the communicator's, a wrong root, a destroyed communicator, groups or CUDA
graphs that are mixed.
Fix: `torch.cuda.set_device(LOCAL_RANK)` before the first tensor; then the call that the message names.
In logs: `Broadcast : sendbuff allocated on device 1 mismatchs with NCCL device 0`.

build-lock-left, error: A rank waits for the lock of a build (a torch extension, a data set) that is
gone.
Why: an earlier process was killed while it built, and its lock file stays; all ranks then wait for ever.
Fix: `find ~/.cache/torch_extensions -name lock` lists them: delete them while no job builds; build before the
job starts.
In logs: a stack in `file_baton.py`, `Waited on lock file`.

communicator-left-over, error: A server still holds the communicator of an earlier client.
Why: the client that opened it ended without closing it.
Fix: `curl -X POST http://SERVER:8000/close_communicator/`, or restart the server.
In logs: `Weight update group already initialized. Call close_communicator first.`

process-limit-reached, error: A process may start no more threads or processes.
Why: `ulimit -u`, the cgroup's pids.max (containers, Slurm) or loader workers times BLAS threads.
Fix: run `ulimit -u` and `cat /sys/fs/cgroup/pids.max` in the job's shell; set `OMP_NUM_THREADS=1`, use fewer
loader workers.
In logs: `can't start new thread`, `pthread_create failed`, `fork: retry: Resource temporarily unavailable`.

host-memory-refused, error: A process requested host memory and got none.
Why: the model, the data or pinned buffers of all ranks of a node do not fit; a limit of the shell or cgroup.
Fix: run `free -g` and `ulimit -v` in the job's shell; use fewer loader workers, load the checkpoint on one
rank or with `mmap=True`.
In logs: `DefaultCPUAllocator: can't allocate memory`, `MemoryError`, `std::bad_alloc`.

nccl-library-too-old, error: The NCCL that is loaded is older than the program was built for.
Why: LD_LIBRARY_PATH or an installed package puts another libnccl.so.2 before the one of torch.
Fix: `python -c "import torch; print(torch.cuda.nccl.version())"`, `ldconfig -p | grep nccl`; take the old one
off LD_LIBRARY_PATH, or install the NCCL that torch names.
In logs: `NCCL library version is too old`.

two-nccl-libraries, error: Another NCCL is loaded than the one that torch was built or installed with.
Why: LD_PRELOAD, LD_LIBRARY_PATH or a second wheel puts another libnccl.so.2 in front: functions are missing,
or its own faults and variables apply.
Fix: `unset LD_PRELOAD`, take the directory out of LD_LIBRARY_PATH; `pip list | grep nccl` shows two wheels.
In logs: `undefined symbol: ncclCommRegister`.

network-plugin-too-old, error: The network plugin is older than this NCCL or this kind of memory needs.
Why: memory of newer allocators (VMM, DMA-BUF) needs newer releases of libfabric and the plugin.
Fix: install the plugin and libfabric of this NCCL's release; until then set `NCCL_CUMEM_ENABLE=0`.
In logs: `NET/OFI Unable to register memory ... RC: -22`.

kernel-cannot-pin-memory, error: Memory cannot be pinned for RDMA, and the memlock limit is not the reason.
Why: the adapter or the IOMMU has no more entries, memory is fragmented, or the kernel has a fault.
Fix: read `dmesg` of that moment; use kernel and driver of a node that works, or fewer or smaller buffers.
In logs: `ibv_reg_mr failed with error Cannot allocate memory` beside `ulimit -l: unlimited`.

user-buffers-not-registrable, error: RDMA cannot register the buffers that the program gives to NCCL.
Why: memory of expandable segments or of another virtual allocator is not pinned in one piece.
Fix: use no `expandable_segments:True`, or no registered user buffers (`use_nccl_ub`, NCCL_LOCAL_REGISTER).
In logs: `ibv_reg_mr_iova2 failed with error Bad address`.

nccl-setting-invalid, error: NCCL refuses the value of one of its settings.
Why: the value has another form, or no way that it allows fits this machine and call.
Fix: unset that variable (also in /etc/nccl.conf and ~/.nccl.conf); `ringup env` shows what it does.
In logs: `Invalid NCCL_COMM_ID`, `no algorithm/protocol available`.

address-families-differ, error: One rank has an IPv4 address and another an IPv6 one.
Why: a host's own name resolves to IPv6 alone, or to IPv6 first, and on other hosts to IPv4.
Fix: give every host's name an IPv4 address, or set `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY=AF_INET` on
every node.
In logs: `ss1.ss_family == ss2.ss_family. 2 vs 10`.

file-not-shared, error: A file is missing on some ranks or nodes alone.
Why: rank 0 made it in a folder that other nodes do not share, or NFS shows it late.
Fix: use a folder on a shared file system, or let each node make its own; `ls` the path on every node.
In logs: `FileNotFoundError` on some ranks only.

shared-file-raced, error: A file on a shared path changed under some ranks.
Why: several ranks create, move or delete the same path at once, or NFS shows it late.
Fix: let only rank 0 create and delete (`exist_ok=True`), then a barrier; `ls` the path on every node.
In logs: `Stale file handle`, `FileExistsError` on some ranks only.

open-mpi-slots, error: Open MPI is given hosts without slots, and more ranks than hosts.
Why: mpirun ends with "There are not enough slots available".
Why, hosts: Each host of -H counts as one slot where it has no `:N`, and the first ones are filled first.
Why, horovodrun: Horovodrun wants a slot for each rank; a host has one where it has no `:N`.
Why, PBS: PBS Professional writes a line into the node file for each of a chunk's mpiprocs, which are 1
where the file lacks them; each line is a slot.
Why, Slurm: Inside an allocation Slurm's tasks are the slots.
Fix: `-H node1:8,node2:8`, or a host file with slots=8.
Fix, PBS: `select=2:ncpus=8:mpiprocs=8`.
Fix, Slurm: request as many tasks as ranks in the job file; `--oversubscribe` shares cores.

directive-wrong, error: sbatch, srun or bsub refuses an option, or takes another thing from it than it seems
to say.
Why, option: sbatch and srun end at an option that they do not know (they write two hyphens, and hyphens
inside, `--ntasks-per-node`), and at a value that is not a number, a time or a size of memory.
Why, word: sbatch ends at "Invalid directive" (22.05; older releases ignored the options behind it).
Why, first line: sbatch wants the program that runs the file: "This does not look like a batch script".
Why, comment: a scheduler reads `#SBATCH` alone, without a blank behind `#`.
Why, last one: an option that stands twice has the value of its last line.
Why, memory: no rank starts in so little memory: sbatch(1), --mem.
Why, exclusive: they are mutually exclusive: sbatch(1).
Why, template: the file is a template, which somebody has to fill in.
Why, LSF group: bsub's -g is the job group, which begins with a slash.
Why, LSF time: bsub(1): -W takes hours and minutes.
Why, PBS: a job has chunks, or the older form of requests.
Fix: write options as sbatch(1) spells them, and values with blanks in quotes.
Fix, word: put the value in quotes, or `#` in front of a comment.
Fix, first line: `#!/bin/bash` in the first line.
Fix, comment: leave out the blank behind `#`.
Fix, last one: write one line with everything that it lists.
Fix, memory: write the number with its unit.
Fix, exclusive: leave one of them out.
Fix, template: write the value.
Fix, LSF group: request GPUs with `-gpu num=N`.
Fix, LSF time: write hours and minutes, `-W 4:00`.
Fix, PBS: write all of it in `select=`.

launcher-option-wrong, error: An option of the launcher is misspelt, empty or still a placeholder.
Why, option: the launcher ends with a usage message.
Why, value: the launcher ends with a usage message, or takes the next word for the value.
Why, placeholder: the shell takes `<` for a file to read, and ends with a syntax error or "No such file".
Why, accelerate: accelerate takes one of --cpu, --multi_gpu, --tpu, --use_deepspeed and --use_fsdp, and
--multi_gpu from two processes on (`commands/launch.py`).
Why, rendezvous: torchrun has c10d, static, etcd and etcd-v2; the backend of the collectives, such as nccl,
is named in the script.
Why, port: with c10d torchrun reads `--rdzv-endpoint` alone.
Fix: write the option as the launcher spells it, with a value.
Fix, placeholder: write the value in its place.
Fix, accelerate: use one of these options, or none: the configuration file has the kind.
Fix, rendezvous: `--rdzv-backend=c10d` with `--rdzv-endpoint`.
Fix, port: write the port in the endpoint.

several-worlds, error: The launcher is started on several nodes without their number: each start forms a
world of its own, or finds no place in the one world.
Why: every node trains the same model on the same data, and writes the same checkpoint.
Why, torchrun: Without the number of nodes torchrun trains on its node alone.
Why, accelerate: Without the number of machines accelerate trains on its node alone.
Why, DeepSpeed: Without a host file DeepSpeed trains on its node alone.
Why, fairseq: Only with a port fairseq reads Slurm's variables (fairseq/distributed/utils.py,
infer_init_method).
Why, one endpoint: With c10d the first nodes train, and a node too many waits for a place until they end.
With static rendezvous the ranks of every start are counted from 0.
Fix, torchrun: `--nnodes=$SLURM_NNODES`, and `--rdzv-endpoint` with the first node's name.
Fix, accelerate: `--num_machines`, `--machine_rank` and `--main_process_ip`.
Fix, DeepSpeed: start it once, on the first node and without srun, with `--hostfile`; or use torchrun.
Fix, fairseq: `--distributed-port`.
Fix, one endpoint: give the number of nodes that start it in the launcher's option.
"""
