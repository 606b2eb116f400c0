"""
What each cause looks like in logs: short self-written excerpts in the words of the programs' sources.

(cause, excerpt) pairs.  No line here is copied from anybody's log; hosts, addresses and
numbers are made up.  `test_logs_causes` runs each through the whole reader.
"""

from __future__ import annotations

SAID: list[tuple[str, str]] = [
    # --- meeting
    ("world-never-formed", "warning the run: no connection was seen between 2 parts of the run: rank 0 on node0, rank 1 on node1"),
    ("port-in-use", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    ("port-in-use", "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:6006 (errno: 98 - Address already in use)."),
    ("port-in-use", "RuntimeError: Address already in use\nTraceback (most recent call last):\n  File \"/job/t.py\", line 3, in <module>\nRuntimeError: Address already in use"),
    ("port-in-use", "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it. Please specify a different port (such as using the `--main_process_port` flag)"),
    ("port-in-use", "OSError: [Errno 98] Address already in use"),
    ("port-in-use", "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.\n[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (n0, 29500)."),
    ("store-unreachable", "[W socket.cpp:663] [c10d] The client socket has failed to connect to [head]:29500 (errno: 113 - No route to host).\n[E socket.cpp:957] [c10d] The client socket has timed out after 600s while trying to connect to (head, 29500)."),
    ("store-unreachable", "torch.distributed.DistNetworkError: The client socket has timed out after 900000ms while trying to connect to (10.3.4.5, 29400)."),
    ("store-unreachable", "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (10.3.4.5, 23456). The client socket has failed to connect to 10.3.4.5:23456 (errno: 110 - Connection timed out)."),
    ("store-unreachable", "RuntimeError: connect() timed out. Original timeout was 1800000 ms."),
    ("store-unreachable", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /tensorflow.CoordinationService/RegisterTask [type.googleapis.com/tensorflow.DerivedStatus='']"),
    ("rendezvous-host-not-recognised", "  rdzv_backend     : c10d\n  rdzv_endpoint    : 192.168.7.4:29500\n[E socket.cpp:858] [c10d] The client socket has timed out after 60s while trying to connect to (192.168.7.4, 29500).\ntorch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."),
    ("rendezvous-host-not-recognised", "n0: [E socket.cpp:858] [c10d] The client socket has timed out after 60s while trying to connect to (n0-ib, 29500).\nn1: [E socket.cpp:858] [c10d] The client socket has timed out after 60s while trying to connect to (n0-ib, 29500).\nn0: $ torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint n0-ib:29500 t.py\nn0: torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."),
    ("hostname-unresolvable-from-peer", "[W socket.cpp:697] [c10d] The IPv6 network addresses of (gpu7.cluster, 29500) cannot be retrieved (gai error: -3 - Temporary failure in name resolution).\n[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (gpu7.cluster, 29500)."),
    ("hostname-unresolvable-from-peer", "Traceback (most recent call last):\n  File \"/job/t.py\", line 9, in <module>\nsocket.gaierror: [Errno -2] Name or service not known"),
    ("hostname-unresolvable-from-peer", "ssh: Could not resolve hostname worker-3: Name or service not known"),
    ("hostname-resolves-to-loopback", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:21713: Connection refused"),
    ("hostname-resolves-to-loopback", "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error; failed to connect: SO_ERROR: Connection refused, remote=[127.0.0.1]:5871"),
    ("peers-never-joined", "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 8/16 clients joined."),
    ("peers-never-joined", "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 (world_size=16, num_workers_joined=8, timeout=0:30:00)"),
    ("peers-never-joined", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    ("peers-never-joined", "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. Timed out task names: /job:jax_worker/replica:0/task:3"),
    ("rendezvous-ids-differ", "n0: W0901 08:00:00.1 9 torch/distributed/launcher/api.py:155] config has no run_id, generated a random run_id: 1203947\nn1: W0901 08:00:00.4 9 torch/distributed/launcher/api.py:155] config has no run_id, generated a random run_id: 8834720"),
    ("stale-rendezvous-state", "File already exists: /scratch/rdzv/init_7\nRuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=4, worker_count=8, timeout=0:05:00)"),
    ("node-rank-duplicate", "n0:5:9 [0] bootstrap.cc:142 NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already checked in"),
    ("world-size-disagrees", "n0:5:9 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16"),
    ("world-size-disagrees", "n0:5:9 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 4\nn0:6:6 [1] include/socket.h:400 NCCL WARN Connect to 10.0.0.1<41001> failed : Connection refused"),
    ("world-size-disagrees", "n0:5:9 [0] bootstrap.cc:420 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 8 vs 16, nroots 1 vs 1, myRoot 0 vs 0"),
    ("launcher-started-per-task", "$ srun -n 8 torchrun --nproc_per_node 8 t.py\nRuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 (world_size=8, worker_count=64, timeout=0:30:00)"),
    ("slurm-tasks-mismatch", "ValueError: You set `devices=4` in Lightning, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` does not match. HINT: Set `devices=1`."),
    ("slurm-tasks-mismatch", "RuntimeError: You set `--ntasks=8` in your SLURM bash script, but this variable is not supported. HINT: Use `--ntasks-per-node=8` instead."),
    # --- launch
    ("launcher-argument-misread", "  entrypoint       : True\n  min_nodes        : 2\n"),
    ("launcher-argument-misread", "/usr/bin/python3: can't open file '/job/false': [Errno 2] No such file or directory"),
    ("launcher-argument-misread", "torchrun: error: the following arguments are required: training_script, training_script_args"),
    ("local-rank-argument-rejected", "usage: main.py [-h] [--lr LR]\nmain.py: error: unrecognized arguments: --local_rank=1"),
    ("local-rank-argument-rejected", "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--local-rank=0']"),
    ("hostfile-missing", "ValueError: Num nodes is >1 but no extra nodes available via hostfile"),
    ("device-ordinal-not-visible", "RuntimeError: CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."),
    ("device-ordinal-not-visible", "n1:7:7 [0] init.cc:901 NCCL WARN Cuda failure 'invalid device ordinal'"),
    ("device-ordinal-not-visible", "lightning_fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0, 1]\nRuntimeError: HIP error: invalid device ordinal"),
    ("same-gpu-twice", "n0:12:30 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 65000"),
    ("same-gpu-twice", "n0:4:4 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId a000 commId 0x9 - Init START\nn0:5:5 [0] NCCL INFO ncclCommInitRank comm 0x2 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId a000 commId 0x9 - Init START\nRuntimeError: NCCL error 'invalid usage (run with NCCL_DEBUG=WARN for details)'"),
    ("same-gpu-twice", "n0:12:30 [0] init.cc:99 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."),
    ("ssh-not-passwordless", "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no 10.0.0.9 hostname' returned non-zero exit status 255.\nRuntimeError: Using hostfile at hostfile but host=10.0.0.9 was not reachable via ssh. If you are running with a single node please remove hostfile or setup passwordless ssh."),
    ("ssh-not-passwordless", "Host key verification failed.\npdsh@n0: n1: ssh exited with exit code 255"),
    ("ssh-not-passwordless", "n1: user@n1: Permission denied (publickey,gssapi-keyex,gssapi-with-mic)."),
    ("environment-breaks-remote-shell", "bash: line 1: export: `Settings=1': not a valid identifier"),
    ("environment-breaks-remote-shell", "bash: /usr/bin/env: Argument list too long"),
    ("python-or-launcher-missing", "bash: line 1: torchrun: command not found"),
    ("python-or-launcher-missing", "n1: bash: /opt/conda/envs/train/bin/python: No such file or directory\npdsh@n0: n1: ssh exited with exit code 127"),
    ("python-or-launcher-missing", "slurmstepd: error: execve(): torchrun: No such file or directory\nsrun: error: n1: task 1: Exited with exit code 2"),
    ("python-or-launcher-missing", "n1: Traceback (most recent call last):\nn1:   File \"/job/t.py\", line 1, in <module>\nn1:     import torch\nn1: ModuleNotFoundError: No module named 'torch'"),
    # --- interfaces
    ("interface-name-missing", "n0:5:5 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found"),
    ("interface-name-missing", "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ens9f1"),
    ("interface-name-missing", "n1:5:5 [0] misc/socket.cc:358 NCCL WARN ncclSocketInit: connecting to address  with family 52428 is neither AF_INET(2) nor AF_INET6(10)"),
    ("interface-name-missing", "n1:5:5 [0] transport/net_socket.cc:41 NCCL WARN NET/Socket : no interface found"),
    ("gloo-ifname-in-nccl-syntax", "RuntimeError: [enforce fail at third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth0,eth1"),
    ("gloo-ifname-in-nccl-syntax", "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: =bond0"),
    ("virtual-interface-chosen", "n0:5:5 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nn1:5:5 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nn1:5:5 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41111> failed : Software caused connection abort"),
    ("virtual-interface-chosen", "n0:5:9 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.1<0> [1]virbr0:192.168.122.1<0> [2]flannel.1:10.244.0.0<0>\nn0:5:9 [0] NCCL INFO Channel 01 : 1[1000] -> 0[1000] [receive] via NET/Socket/1\nn0:5:9 [0] include/socket.h:395 NCCL WARN Connect to 192.168.122.1<50001> failed : Connection refused"),
    ("virtual-interface-chosen", "n0:5:9 [0] INFO NET : Using interface eno1:10.0.0.1<0>\nn0:5:9 [0] INFO NET : Using interface virbr0:192.168.122.1<0>\nn0:5:9 [0] INFO NET/Socket : 2 interfaces found\nn0:5:9 [0] INFO 7 -> 8 via NET/Socket/1\n\nn0:5:9 [0] include/socket.h:300 WARN Call to connect failed : Connection refused"),
    ("virtual-interface-chosen", "n0:5:9 [0] NCCL INFO NET : Using interface eno1:10.0.0.1<0>\nn0:5:9 [0] NCCL INFO NET : Using interface docker0:172.17.0.1<0>\nn0:5:9 [0] NCCL INFO rank 0 nranks 4\nn1:5:9 [0] NCCL INFO rank 2 nranks 4\n\nn1:5:9 [0] include/socket.h:300 NCCL WARN Call to connect timeout : Connection refused"),
    ("link-local-address-chosen", "n0:5:9 [0] misc/socket.cc:456 NCCL WARN Net : Connect to fe80::a1b:2c3d:4e5f:6071%eth1<50321> failed : Connection timed out"),
    ("link-local-address-chosen", "n3:7:7 [0] NCCL INFO Bootstrap : Using ib1:fe80::aa:1%ib1<0>\n\nn3:7:7 [0] misc/socket.cc:370 NCCL WARN Call to bind failed : Cannot assign requested address\nn3:7:7 [0] NCCL INFO bootstrap.cc:170 -> 2\nRuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error, NCCL version 2.18.1"),
    ("link-local-address-chosen", "n0:5:9 [0] NCCL INFO socketPollConnect: connect to fe80::5054:ff:fe12:3456%ens3<44001> returned No route to host, retrying (4/34) after sleep for 400 msec"),
    ("loopback-interface-chosen", "n0:5:9 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo\nn0:5:9 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\nn1:5:9 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>"),
    ("peer-unreachable-on-interface", "n0:5:9 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.88.1.4<50321> failed : No route to host"),
    ("peer-unreachable-on-interface", "n1:5:9 [0] include/socket.h:403 NCCL WARN Connect to 10.88.1.4<50321> failed : Connection timed out"),
    ("peer-unreachable-on-interface", "[rank2]: RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/socket.cc:99] rv != -1. -1 vs -1. connect: No route to host"),
    ("peer-unreachable-on-interface", "n1:5:9 [0] misc/socket.cc:900 NCCL WARN socketPollConnect: connect to 10.88.1.4<40111> returned Connection refused, exceeded error retry count after 35 attempts"),
    ("peer-unreachable-on-interface", "n1:5:9 [0] os/linux.cc:88 (ncclOsSocketPollConnect) NCCL WARN ncclOsSocketPollConnect: connect to 10.88.1.4<40111> returned Connection timed out, exceeded error retry count after 35 attempts"),
    ("peer-unreachable-on-interface", "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error; connect: SO_ERROR: No route to host, remote=[10.12.5.64]:21332"),
    ("peer-unreachable-on-interface", "n0:5:5 [0] NCCL INFO Bootstrap : Using eno1:10.9.1.4<0>\nn0:5:5 [0] NCCL INFO NET/Socket : Using [0]eno1:10.9.1.4<0> [1]enp5s0:192.168.50.4<0>\nn0:5:5 [0] NCCL INFO Using network Socket\nn1:5:5 [0] NCCL INFO Bootstrap : Using enp5s0:192.168.50.5<0>\nn1:5:5 [0] NCCL INFO NET/Socket : Using [0]enp5s0:192.168.50.5<0>\nn1:5:5 [0] NCCL INFO Using network Socket"),
    # --- rdma
    ("fell-back-to-sockets", "n0:5:9 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.\nn0:5:9 [0] NCCL INFO NET/IB : No device found.\nn0:5:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO Using network Socket"),
    ("fell-back-to-sockets", "n0:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>\nn0:5:9 [0] NCCL INFO Using network IB\nn1:5:9 [0] NCCL INFO NET/IB : No device found.\nn1:5:9 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.2<0>\nn1:5:9 [0] NCCL INFO Using network Socket"),
    ("uverbs-not-accessible", "n0:5:9 [0] transport/net_ib.cc:190 NCCL WARN NET/IB : Unable to open device mlx5_2\nn0:5:9 [0] NCCL INFO NET/IB : No device found.\nn0:5:9 [0] NCCL INFO Using network Socket"),
    ("rdma-device-name-missing", "n0:5:9 [0] NCCL INFO NCCL_IB_HCA set to ens13np0\nn0:5:9 [0] NCCL INFO NET/IB : No device found.\nn0:5:9 [0] NCCL INFO NET/Socket : Using [0]ens1:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO Using network Socket"),
    ("rdma-device-set-differs", "n0:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eno1:10.0.0.1<0>\nn1:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.2<0>\nn0:5:9 [0] NCCL INFO transport/net_ib.cc:700 -> 2\nn0:5:9 [0] proxy.cc:1533 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"),
    ("rdma-device-unusable", "n0:5:9 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error No such device"),
    ("rdma-device-unusable", "n0:5:9 [0] misc/ibvwrap.cc:310 NCCL WARN Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_11:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.4.0.1, remote GID ::ffff:10.4.0.2"),
    ("gid-missing-or-wrong", "n0:5:9 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument errno 22"),
    ("gid-missing-or-wrong", "n0:5:9 [0] misc/ibvwrap.cc:310 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_1:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::a00, remote GID ::ffff:10.4.0.2"),
    ("rdma-peer-unreachable", "n0:5:9 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110"),
    ("rdma-peer-unreachable", "n0:5:9 [0] misc/ibvwrap.cc:310 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR"),
    ("rdma-retry-exceeded", "n0:5:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.4.0.2<50231> with error 12, opcode 32612, len 0, vendor err 129 (Recv)"),
    ("rdma-retry-exceeded", "[2026-05-05 06:16:47] n0:5:9 [0] transport/net_ib/p2p.cc:900 NCCL WARN NET/IB: Got completion from peer 10.4.0.2<50231> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid ::ffff:10.4.0.1 remoteGids::ffff:10.4.0.2 hca mlx5_3"),
    ("link-flapped", "n0:5:9 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\nn1:5:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.4.0.2<50231> with status=12 opcode=0 len=0 vendor err 129 (Send)"),
    ("rdma-adapter-event", "n0:5:9 [0] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : local catastrophic error"),
    ("rdma-adapter-event", "n0:5:9 [0] transport/net_ib/common.cc:40 NCCL WARN NET/IB : mlx5_4:1 async fatal event: device fatal\nn0:5:9 [0] transport/net_ib/common.cc:90 NCCL WARN communicator encountered a fatal error (detected in ncclIbTest)"),
    ("memlock-too-low", "n0:5:9 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    ("memlock-too-low", "n0:5:9 [0] misc/ibvwrap.cc:280 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory errno 12"),
    ("acs-enabled", "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5 - Init COMPLETE\nn0:5:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.4.0.2<50231> with status=4 opcode=0 len=0 vendor err 81 (Send)"),
    ("gpudirect-module-missing", "n0:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eno1:10.0.0.1<0>\nn0:5:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ("network-plugin-missing", "n0:5:9 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)\nn1:5:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\nn1:5:9 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n0<4411>"),
    ("network-plugin-init-failed", "n0:5:9 [0] nccl_net_ofi_create_plugin:204 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\nn0:5:9 [0] NCCL INFO init.cc:400 -> 2"),
    ("network-plugin-init-failed", "n0:5:9 [0] plugin/net.cc:300 NCCL WARN Failed to initialize any NET plugin\nn0:5:9 [0] NCCL INFO init.cc:400 -> 5"),
    ("sharp-unavailable", "n0:5:9 [0] sharp_plugin.c:343 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)"),
    ("sharp-unavailable", "n1:5:9 [0] sharp_plugin.c:301 NCCL WARN SHARP group create: Streaming Tree lock failed (-18)\nn1:5:7 [0] NCCL INFO transport.cc:300 -> 2\nn0:5:7 [0] NCCL INFO init.cc:600 -> 2"),
    ("transport-differs-between-ranks", "n0:1:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\nn1:2:9 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[1] via P2P/CUMEM\nn2:3:9 [0] NCCL INFO Channel 00/0 : 4[0] -> 5[1] via P2P/CUMEM"),
    # --- software
    ("nccl-versions-differ", "n0:5:9 [0] init.cc:1026 NCCL WARN Mismatched NCCL version detected : rank 0 version 22304 rank 1 version 22005 rank 0 version 22304"),
    ("nccl-versions-differ", "n0:5:9 [0] NCCL INFO NCCL version 2.26.2+cuda12.4\nn1:5:9 [0] NCCL INFO NCCL version 2.27.5+cuda12.8\nn0:5:12 [0] bootstrap.cc:420 NCCL WARN Bootstrap Root : mismatch in info from procs, nranks 2 vs 2, nroots 1 vs 1092705114, myRoot 0 vs 0"),
    ("environment-differs-between-nodes", "n0:5:9 [0] transport/net_ib.cc:1117 NCCL WARN NET/IB : req 0/1 tag 5 peer 10.4.0.2<40011> collective mismatch error, local size 524288 remote size 1048576"),
    ("topology-detection-failed", "n0:5:9 [0] graph/xml.h:101 NCCL WARN Attribute coll of node net not found\nn0:5:9 [0] NCCL INFO graph/topo.cc:493 -> 3"),
    ("topology-detection-failed", "n0:5:9 [0] NCCL INFO NCCL_GRAPH_FILE set by environment to /etc/graph.xml\nn0:5:9 [0] graph/search.cc:700 NCCL WARN XML Import Channel : dev 6 not found."),
    ("driver-too-old-for-cuda", "n0:5:9 [0] enqueue.cc:55 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'"),
    ("driver-too-old-for-cuda", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"),
    ("gpu-architecture-not-built", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("gpu-architecture-not-built", "n0:5:9 [0] enqueue.cc:102 NCCL WARN Cuda failure 'invalid device function'"),
    # --- devices
    ("shm-too-small", "n0:5:9 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Xa3bQ1 to 9637892 bytes, error: No space left on device (28)"),
    ("shm-too-small", "RuntimeError: DataLoader worker (pid 811) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
    ("shm-too-small", "RuntimeError: unable to open shared memory object </torch_82_1>: No space left on device (28)"),
    ("shm-too-small", "RuntimeError: unable to write to file </torch_411_77>: No space left on device (28)"),
    ("open-files-too-low", "RuntimeError: unable to open shared memory object </torch_40_1> in read-write mode: Too many open files (24)"),
    ("open-files-too-low", "n0:5:9 [0] misc/socket.cc:300 NCCL WARN ncclSocketInit: Socket creation failed : Too many open files"),
    ("gpu-out-of-memory", "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB"),
    ("gpu-out-of-memory", "n0:5:9 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 10485760 bytes"),
    ("gpu-out-of-memory", "n0:5:9 [0] init.cc:1500 NCCL WARN Cuda failure 2 'out of memory'"),
    ("ecc-uncorrectable", "[rank5]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 5] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"),
    ("gpu-missing", "Unable to determine the device handle for GPU 0000:89:00.0: Unknown Error"),
    ("gpu-missing", "[ 9812.1] NVRM: Xid (PCI:0000:89:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("xid-in-kernel-log", "Mar  1 10:00:00 n3 kernel: NVRM: Xid (PCI:0000:3b:00): 94, pid=8112, name=python, Contained: SM (0x1). RST: No, D-RST: No"),
    ("fabric-manager-not-running", "n0:5:9 [0] init.cc:80 NCCL WARN Cuda failure 802 'system not yet initialized'"),
    ("fabric-manager-not-running", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    ("nvls-setup-failed", "n0:5:9 [0] transport/nvls.cc:281 NCCL WARN Cuda failure 401 'the operation cannot be performed in the present state'"),
    ("nvls-setup-failed", "n0:5:9 [0] transport/nvls.cc:170 NCCL WARN Cuda failure 1 'invalid argument'"),
    ("gpus-hidden-between-ranks", "n0:5:9 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found"),
    ("cumem-host-unusable", "n0:5:9 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'"),
    # --- process
    ("oom-killer-ran", "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\nsrun: error: n2: task 9: Out Of Memory"),
    ("oom-killer-ran", "[81231.2] Out of memory: Killed process 4411 (python) total-vm:912345kB, anon-rss:812345kB\nE0101 10:00:00.1 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 4411) of binary: /usr/bin/python"),
    ("rank-killed", "E0101 10:00:00.1 1 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 4411) of binary: /usr/bin/python"),
    ("rank-killed", "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"),
    ("rank-killed", "subprocess.CalledProcessError: Command '['/usr/bin/python', 't.py']' died with <Signals.SIGKILL: 9>."),
    ("rank-killed", "mpirun noticed that process rank 3 with PID 811 on node n1 exited on signal 9 (Killed)."),
    ("rank-killed", "[2026-01-02 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 't.py'] exits with return code = -9"),
    ("rank-crashed", "  exitcode  : -11 (pid: 511)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 511"),
    ("rank-crashed", "srun: error: n4: task 17: Segmentation fault (core dumped)"),
    ("rank-crashed", "Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):"),
    ("rank-crashed", "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV"),
    ("rank-raised-exception", "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"/job/train.py\", line 88, in <module>\n[rank2]:     main()\n[rank2]: ValueError: Expected more than 1 value per channel when training\n[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:41000\n  exitcode  : 1 (pid: 77)"),
    ("rank-raised-exception", "Traceback (most recent call last):\n  File \"/job/train.py\", line 88, in <module>\n    x = y[3]\nIndexError: list index out of range\nsrun: error: n1: task 3: Exited with exit code 1"),
    ("terminal-closed", "W0101 10:00:00.1 1 torch/distributed/elastic/agent/server/api.py:741] Received Signals.SIGHUP death signal, shutting down workers\nW0101 10:00:00.1 1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 12 closing signal SIGHUP"),
    ("terminal-closed", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 812 got signal: 1"),
    ("job-cancelled", "slurmstepd: error: *** STEP 812.0 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT ***"),
    ("job-cancelled", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 812 got signal: 2"),
    ("orphan-of-earlier-run", "$ ps -o pid,ppid,stat,cmd\n  PID  PPID STAT CMD\n 7711     1 Sl   /usr/bin/python -u train.py\n 7712     1 Sl   /usr/bin/python -u train.py"),
    # --- ranks disagree
    ("rank-busy-while-others-wait", "[rank1]:   File \"/job/run.py\", line 70, in main\n[rank1]:     with training_args.main_process_first(desc=\"tokenize\"):\n[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 1800000ms"),
    ("rank-busy-while-others-wait", "Map:  71%|#######   | 71000/100000 [30:02<12:01, 40.1 examples/s]\n[rank2]:[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800550 milliseconds before timing out."),
    ("rank-fell-behind", "[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 5000 ms"),
    ("rank-fell-behind", "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLGATHER, NumelIn=8, NumelOut=32, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLGATHER, NumelIn=8, NumelOut=32, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.\n[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLGATHER, NumelIn=8, NumelOut=32, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."),
    ("rank-fell-behind", "2026-01-02 10:00:00.1: F external/xla/xla/service/rendezvous.cc:98] Termination timeout for `collective permute` of 40s exceeded. Expected 8 threads to join the rendezvous, but not all of them arrived on time."),
    ("uneven-batches-between-ranks", "rank 0: training finished after 812 steps\n[rank0] Training completed\n[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("collective-mismatch", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[16]), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=BROADCAST)."),
    ("collective-mismatch", "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8000 vs 4000"),
    ("collective-mismatch", "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"),
    ("collective-stalled", "[rank3]:[E ProcessGroupNCCL.cpp:1375] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives."),
    ("model-differs-between-ranks", "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 230 params, while rank 0 has inconsistent 232 params."),
    ("model-differs-between-ranks", "RuntimeError: [1]: params[12] in this process with sizes [64, 3] appears not to match sizes of the same param in process 0."),
    ("ddp-unused-parameters", "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True`"),
    ("all-reduce-wrong", "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\n        1024           256     float     sum      -1    20.11    0.05    0.05     12    19.90    0.05    0.05     12"),
    ("all-reduce-wrong", "# Out of bounds values : 8 FAILED"),
    # --- aftermath
    ("peer-died-first", "n0:5:9 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<51231>\nn0:5:9 [0] NCCL INFO misc/socket.cc:752 -> 6"),
    ("peer-died-first", "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.7]:41231: Connection reset by peer"),
    ("peer-died-first", "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer"),
    ("peer-died-first", "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 230 params, while rank 0 has inconsistent 0 params."),
    ("peer-died-first", "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."),
    ("nccl-error-without-detail", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."),
    ("nccl-error-without-detail", "n0:5:9 [4] include/shm.h:40 NCCL WARN Cuda failure 'invalid argument'\nn0:5:9 [4] NCCL INFO transport/shm.cc:140 -> 1"),
    ("nccl-error-without-detail", "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL version 2.7.8"),
    ("init-never-finished", "n0:5:5 [0] NCCL INFO Bootstrap : Using eno1:10.9.1.4<0>\nn0:5:5 [0] NCCL INFO Using network Socket\nn0:5:5 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init START"),
    # --- met while reading how others got stuck
    ("topology-detection-failed", "a1:430:2237 [0] include/topo.h:27 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:02/../../0000:02:00.0\na1:430:2237 [0] NCCL INFO init.cu:864 -> 2"),
    ("store-unreachable", "W api.py:180] rdzv_endpoint : hub7:29400\ntorch.distributed.DistNetworkError: Connection reset by peer\ntorch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."),
    ("virtual-interface-chosen", "[w7][[3897,1],2][btl_tcp_endpoint.c:796:mca_btl_tcp_endpoint_complete_connect] connect() to 172.17.0.1 failed: Connection refused (111)"),
    ("rank-crashed", "[train-worker-0:02119] *** Process received signal ***\n[train-worker-0:02119] Signal: Bus error (7)\n[train-worker-0:02119] Signal code: Non-existant physical address (2)"),
    ("uneven-batches-between-ranks", "RuntimeError: Rank 3 exhausted all 41 inputs, but other ranks still have inputs"),
    ("hostfile-missing", "ValueError: Hostfile contains a bad entry: w2 lots=8, unable to proceed with launching"),
    ("device-ordinal-not-visible", "AssertionError: insufficient CUDA devices for DDP command"),
    ("nvls-setup-failed", "g1:49:50 [1] transport/nvls.cc:223 NCCL WARN Cuda failure 999 'unknown error\ng1:49:50 [1] NCCL INFO init.cc:872 -> 1"),
    ("rank-raised-exception", "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [3,0,0], thread: [9,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered"),
    ("rank-raised-exception", "[rank5]:[E101 11:00:00.1 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"),
    ("peer-unreachable-on-interface", "WARNING: Open MPI failed to TCP connect to a peer MPI process.\n  Local host: w1\n  Message:    connect() to 10.8.0.3:1024 failed\n  Error:      No route to host (113)"),
    ("peer-unreachable-on-interface", "ORTE daemon has unexpectedly failed after launch and before communicating back to mpirun."),
    ("ssh-not-passwordless", "ORTE was unable to reliably start one or more daemons."),
    ("store-unreachable", "w1: torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (10.3.4.5, 1040). The client socket has failed to connect to 10.3.4.5:1040 (errno: 113 - No route to host).\nw1: [2026-01-02 10:00:00,001] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 18507"),
    ("node-rank-duplicate", "machine_rank: 0\nmain_process_ip: 10.6.1.10\nnum_machines: 2\n---\nmachine_rank: 0\nmain_process_ip: 10.6.1.10\nnum_machines: 2\ntorch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 4/8 clients joined."),
    ("interface-name-missing", "w0:31:31 [0] include/socket.h:311 WARN Socket creation failed : Address family not supported by protocol\nNCCL failure common.cu:874 'unhandled system error'"),
    ("rank-raised-exception", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-02-05_01:02:51\n  host      : w3\n  rank      : 6 (local_rank: 2)\n  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>"),
    ("rank-crashed", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n[1]:\n  host      : w3\n  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 238)\n  traceback : Signal 6 (SIGABRT) received by PID 238"),
    # --- what threads of strangers showed
    ("gpu-architecture-not-built", "RuntimeError: HIP error: device kernel image is invalid\nSearch for `hipErrorInvalidImage' in the documentation for more information."),
    ("gpu-architecture-not-built", "terminate called after throwing an instance of 'std::runtime_error'\n  what():  rccl init: hipErrorInvalidKernelFile"),
    ("driver-too-old-for-cuda", "n0:5:9 [0] init.cc:388 NCCL WARN Cuda failure 'API call is not supported in the installed CUDA driver'\nn0:5:9 [0] NCCL INFO init.cc:1101 -> 1"),
    ("network-plugin-init-failed", "n0:5:9 [1] create_nccl_ofi_component:496 NCCL WARN NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory\nn0:5:9 [1] NCCL INFO include/net.h:24 -> 2"),
    ("hostname-resolves-to-loopback", "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:127] rp != nullptr. Unable to find address for: trainer-7"),
    ("hostname-resolves-to-loopback", "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:209] ifa != nullptr. Unable to find interface for: [10.9.0.3]"),
    ("gpudirect-module-missing", "n0:5:9 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 2 'mlx5_2'"),
    ("gpudirect-module-missing", "#  Rank  0 Group  0 Pid 91 on n0 device 0 [0x07] NVIDIA H100 80GB HBM3\nn0:91:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.4<0>\nn0:91:99 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0\nn0:91:99 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0"),
    ("peer-unreachable-on-interface", "n0:5:5 [0] misc/socket.cc:237 NCCL WARN Net : No interface found in the same subnet as remote address 10.9.9.9<1778>\nn0:5:5 [0] bootstrap.cc:39 NCCL WARN NET/Socket : No usable listening interface found"),
    ("virtual-interface-chosen", "[1690000000.100000] [n0:7356 :0]            sock.c:323  UCX  ERROR   connect(fd=48, dest_addr=172.17.0.1:42887) failed: Connection refused"),
    ("store-unreachable", "Traceback (most recent call last):\n  File \"main.py\", line 9, in <module>\n    store = TCPStore(master_addr, master_port, start_daemon)\nRuntimeError: No route to host"),
    ("rdma-peer-unreachable", "  link_layer: Ethernet (RoCE)\nFailed to modify QP to RTR: Connection timed out\nerrno: 110"),
    ("fell-back-to-sockets", "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\nn0:5:9 [0] NCCL INFO NET/IB : No device found.\nn0:5:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO Using network Socket"),
    ("gid-missing-or-wrong", "n0:5:9 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 7.\nn0:5:9 [0] misc/ibvwrap.cc:155 NCCL WARN Call to ibv_query_gid failed with error Invalid argument errno 22\nn0:5:9 [0] NCCL INFO transport/net_ib.cc:661 -> 2"),
    ("gpu-missing", "[  101.12] NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x26:0x56:1463)"),
    ("gpus-hidden-between-ranks", "n0:1:92 [0] transport/p2p.cc:291 NCCL WARN Cuda failure 101 'invalid device ordinal'\nn0:1:92 [0] NCCL INFO transport/p2p.cc:352 -> 1"),
    ("rank-raised-exception", "RuntimeError: CUDA error: an illegal memory access was encountered\n[12.1] NVRM: Xid (PCI:0000:47:00): 31, pid=1213, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"),
    ("xid-in-kernel-log", "RuntimeError: CUDA error: an illegal memory access was encountered\n[12.1] NVRM: Xid (PCI:0000:47:00): 74, pid=1213, NVLink: fatal error detected on link 6"),
    ("xid-in-kernel-log", "[9.1] NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 04 (0x1 0x2 0x3)\nRuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("rdma-retry-exceeded", "step 1200 loss 2.11\nstep 1201 loss 2.10\nn3:5:9 [4] transport/net_ib.cc:1795 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<37948> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 remoteGidsfe80::2 hca mlx5_4"),
    ("link-local-address-chosen", "n8:3:4 [0] NCCL INFO Bootstrap : Using usb0:169.254.3.2<0>\nn8:3:4 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 169.254.3.1<40815> failed : Software caused connection abort"),
    ("gpu-missing", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\nRuntimeError: No CUDA GPUs are available"),
    ("gpu-missing", "Failed to initialize NVML: Unknown Error"),
    ("rdma-adapter-event", "[33.1] mlx5_core 0000:3b:00.0: poll_health:795:(pid 0): device's health compromised - reached miss count\nn0:5:9 [0] transport/net_ib.cc:1795 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<37948> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_0"),
    ("memlock-too-low", "n9:5:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.9.0.3<0>\nn9:5:9 [0] NCCL INFO Using network Socket\nn0:5:9 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory"),
    ("network-plugin-missing", "n0:8:9 [0] NCCL INFO NCCL_NET set by environment to AWS Libfabric\nn0:8:9 [0] net.cc:290 NCCL WARN Error: network AWS Libfabric not found."),
    ("peer-unreachable-on-interface", "n0:5:9 [0] misc/socket.cc:58 NCCL WARN socketProgressOpt: Call to recv from 10.7.7.2<46494> failed : Connection timed out\nn0:5:9 [0] NCCL INFO misc/socket.cc:749 -> 2"),
    ("rdma-peer-unreachable", "n0:8:9 [0] process_completions:95 NCCL WARN NET/OFI Request 0x7f0 completed with error. RC: 113. Error: 9 (Unreachable remote (never received a response)). Completed length: 0"),
    ("rdma-peer-unreachable", "n0:8:9 [0] process_err_completion:901 NCCL WARN NET/OFI Request 0x7f8 completed with error. RC: 107. Error: 13 (Unresponsive receiver (connection never established or unknown)). Completed length: 0"),
    ("peer-died-first", "step 70 loss 3.2\nstep 71 loss 3.1\nn0:8:9 [0] process_err_completion:901 NCCL WARN NET/OFI Request 0x7f8 completed with error. RC: 107. Error: 4116 (Unresponsive receiver (connection previously established)). Completed length: 0\nn0:8:9 [0] NCCL INFO proxy.cc:694 -> 6"),
    ("peer-unreachable-on-interface", "n0:5:5 [0] NCCL INFO Bootstrap : Using eth1:10.7.7.1<0>\nn0:5:9 [0] misc/socket.cc:590 NCCL WARN socketPollConnect poll() returned 1, no POLLOUT events\nn0:5:9 [0] NCCL INFO bootstrap.cc:550 -> 6"),
    ("gid-missing-or-wrong", "n0:5:9 [0] NCCL INFO NET/IB: Dev 1 Port 1 qpn 871 mtu 5 GID 1 (80FE/C53DBAFEFF7E21A0)\nn0:5:9 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110"),
    ("gid-missing-or-wrong", "n0:5:9 [0] misc/ibvwrap.cc:310 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_1:1, curr state INIT, next state RTR, local GID index 1, local GID fe80::a288:c2ff:fe41:9, remote GID fe80::a288:c2ff:fe41:7"),
    ("rank-crashed", "(Worker_TP1 pid=88) !!!!!!! Segfault encountered !!!!!!!\n(EngineCore_DP0 pid=70) ERROR 05-19 03:20:11 [multiproc_executor.py:231] Worker proc VllmWorker-1 died unexpectedly, shutting down executor."),
    ("gpudirect-module-missing", "[168.1] [n0:77:0]  ib_md.c:401 UCX  ERROR ibv_reg_mr(address=0x7f10a2000000, length=8192, access=0xf) failed: Bad address\n[n0:77] pml_ucx.c:914  Error: ucx send failed: Input/output error\n[n0:77] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,"),
    ("rdma-peer-unreachable", "n0:8:9 [0] ofi_process_cq:77 NCCL WARN NET/OFI Request 0x7f3 completed with error. RC: 20. Error: unknown error. Completed length: 0\nn0:8:9 [0] NCCL INFO proxy.cc:394 -> 2 [Proxy Thread]"),
    ("nccl-versions-differ", "n0:8:8 [0] NCCL INFO NCCL version 2.22.3+cuda12.6\nn1:9:9 [0] NCCL INFO NCCL version 2.25.1+cuda12.8\nn0:8:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n1<36138>"),
    ("peer-died-first", "n0:8:8 [0] NCCL INFO NCCL version 2.22.3+cuda12.6\nn0:8:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n1<36138>\ntorch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, remote process exited or there was a network error, NCCL version 2.25.1"),
    ("peer-died-first", "RuntimeError: [/opt/conda/conda-bld/pytorch_1/src/third_party/gloo/gloo/transport/tcp/pair.cc:572] Connection closed by peer [10.1.0.5]:23917"),
    ("network-plugin-missing", "n0:5:9 [0] NCCL INFO Plugin Path : /opt/net/lib/libnccl-net.so\nn1:6:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\nn0:5:9 [0] NCCL INFO ncclCommInitRank comm 0x5a rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 18000 commId 0x77 - Init START"),
]  # fmt: skip

HEALTHY: list[str] = [
    # A software RDMA device is on no PCI bus, and works; strangers knock at NCCL's ports.
    "n0:5:9 [0] transport/net_ib.cc:115 NCCL WARN Could not find real path of rxe0 (/sys/class/infiniband/rxe0/device)\nn0:5:9 [0] NCCL INFO NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO Using network IB\nn0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\nstep 1 loss 3\nn0:5:11 [0] misc/socket.cc:432 NCCL WARN socketFinalizeAccept: wrong magic 47455420 != 5327f0e088587e42\nn0:5:12 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 203.0.113.9<46494>\nn0:5:12 [0] proxy.cc:1494 NCCL WARN [Service thread] Accept failed Success\nstep 2 loss 2\nstep 3 loss 1\nstep 4 loss 1",
    # What NCCL's topology tries and does without.
    "n0:5:9 [0] NCCL INFO Attribute coll of node net not found\nn0:5:9 [0] NCCL INFO Could not open XML topology file /var/run/topo.xml : No such file or directory\nn0:5:9 [0] NCCL INFO Setting affinity for GPU 0 to 3f",
    # An adapter's event that training survives.
    "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\nstep 1 loss 3\nn0:5:11 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_5:1 Got async event : port error\nstep 2 loss 2\nstep 3 loss 1\nstep 4 loss 1",
    "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\nn0:5:11 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration\nstep 2 loss 2\nstep 3 loss 1\nstep 4 loss 1",
    # Sound set-up lines with the warnings that mean nothing.
    "n0:5:5 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nn0:5:5 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0>\nn0:5:5 [0] NCCL INFO Using network Socket\nNCCL version 2.9.9+cuda11.3\nn0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    "[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).\n[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [n0]:29500 (errno: 97 - Address family not supported by protocol).\nEpoch 0 step 1 loss 2.1\nEpoch 0 step 2 loss 2.0",
    "W0101 10:00:00.1 1 torch/distributed/run.py:779] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded\nstep 1 loss 3\nstep 2 loss 2\nstep 3 loss 1",
    "n0:5:9 [0] NCCL INFO NET/IB : No device found.\nn0:5:9 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0>\nn0:5:9 [0] NCCL INFO Using network Socket",
    "n0:5:9 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.\nn0:5:9 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so\nn0:5:9 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - /lib/libmlx5.so.1: undefined symbol\nn0:5:9 [0] NCCL INFO Could not find real path of /sys/class/net/eth0/device",
    "n0:5:9 [0] NCCL INFO Cannot initialize CollNet, using point-to-point network instead\nn0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9 - Init COMPLETE",
    "[W ProcessGroupNCCL.cpp:1856] Warning: 0TORCH_NCCL_AVOID_RECORD_STREAMS=1 has no effect for point-to-point collectives. (function operator())",
    "/env/lib/python3.10/site-packages/torch/distributed/launch.py:180: FutureWarning: The module torch.distributed.launch is deprecated and will be removed in future. Use torchrun.\niter 10 loss 0.4\niter 20 loss 0.3",
    "[rank0]:[W1120 reducer.cpp:1360] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.\nstep 10\nstep 20",
    "n0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x9 - Init COMPLETE\nEpoch 1 | Iter 0 | Train Loss 4.2\nslurmstepd: error: *** JOB 81 ON n0 CANCELLED AT 2026-06-28T09:29:03 ***\nW0628 09:29:03.6 2 torch/distributed/elastic/agent/server/api.py:741] Received 15 death signal, shutting down workers\nW0628 09:29:03.6 2 torch/distributed/elastic/multiprocessing/api.py:851] Sending process 23 closing signal SIGTERM",
    "Running tokenizer on dataset:  12%|#2        | 12000/100000 [00:12<01:28, 998.1 examples/s]\nGenerating train split: 100000 examples\nstep 1 loss 2\nstep 2 loss 1.9",
    "[W1120 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3, addr=[n0]:4411, remote=[n1]:29500): Broken pipe\n[W1120 10:00:00.1 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0 Rank 1] Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe\nTraining completed\nstep 99 loss 0.1\nstep 100 loss 0.1",
]  # fmt: skip

SAID += [
    ("slurm-tasks-mismatch", "initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8\ninitializing ddp: GLOBAL_RANK: 2, MEMBER: 3/8\ninitializing ddp: GLOBAL_RANK: 0, MEMBER: 1/8\ninitializing ddp: GLOBAL_RANK: 3, MEMBER: 4/8"),
    ("launcher-argument-misread", "usage: Accelerate CLI tool <command> [<args>]\nAccelerate CLI tool: error: unrecognized arguments: --multinode standard"),
    ("rank-killed", "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Killed."),
    ("rank-crashed", "RuntimeError: DataLoader worker (pid 4411) is killed by signal: Segmentation fault."),
    ("terminal-closed", "W0701 03:52:22.5 13 torch/distributed/elastic/multiprocessing/api.py:868] Unable to shutdown process 42 via Signals.SIGHUP, forcefully exiting via Signals.SIGKILL\ntorch.distributed.elastic.multiprocessing.api.SignalException: Process 41 got signal: 1"),
    ("peer-died-first", "RuntimeError: Stop_waiting response is expected"),
    ("peer-unreachable-on-interface", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nsocketStartConnect: Connect to 10.77.1.14<52822> failed : No route to host"),
    ("peer-unreachable-on-interface", "n5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.77.1.4<56849> returned 113(No route to host) errno 115(Operation now in progress)"),
    ("peers-never-joined", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:\n/job:jax_worker/replica:0/task:1"),
    ("rank-fell-behind", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: multihost_broadcast_sync0. Timed out task names:\n/job:jax_worker/replica:0/task:3"),
    ("ssh-not-passwordless", "Error: failed to run torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 train.py on gpu-8, is localhost: False, exception: No authentication methods available"),
    ("rank-busy-while-others-wait", " 35%|####      | 7381/20814 [30:01<57:14, 3.9MB/s]\n[E ProcessGroupNCCL.cpp:485] [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802246 milliseconds before timing out."),
]  # fmt: skip
"""Words of other versions and frameworks."""

HEALTHY += [
    "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\nInitializing distributed: GLOBAL_RANK: 1, MEMBER: 2/4\ndistributed_backend=nccl\nAll distributed processes registered. Starting with 4 processes",
    "Exception ignored in atexit callback: <function _clean_up_worker at 0x7f>\nTraceback (most recent call last):\n  File \"/env/lib/python3.10/selectors.py\", line 1, in select\nValueError: negative file descriptor\nstep 3 loss 1\nstep 4 loss 1",
]  # fmt: skip

TRACE = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in main\n    step()\n'
SAID += [
    # torch/distributed/rendezvous.py, _env_rendezvous_handler
    ("rendezvous-variables-missing", TRACE + "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"),
    ("rendezvous-variables-missing", TRACE + "KeyError: 'LOCAL_RANK'"),
    # torch/csrc/distributed/c10d/reducer.cpp
    ("parameter-ready-twice", TRACE + "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: 1) Use of a module parameter outside the `forward` function."),
    ("parameter-ready-twice", "Parameter at index 127 with name blocks.7.mlp.weight has been marked as ready twice. This means that multiple autograd engine  hooks have fired for this particular parameter during this iteration."),
    # CUDA's text of cudaErrorNvlinkUncorrectable
    ("nvlink-failed", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    # aws-ofi-nccl, src/nccl_ofi_sendrecv.cpp and src/platform-aws.cpp; libfabric, prov/efa
    ("rdma-peer-unreachable", "n0:8:9 [1] ofi_connect:4021 NCCL WARN NET/OFI Unable to insert remote address into address vector for device 1. RC: -113\nn0:8:9 [1] NCCL INFO transport/net.cc:677 -> 2"),
    ("rdma-peer-unreachable", "* This error indicates that the security group on either this instance or the peer instance\n* is not setup correctly.  For more information, please see the AWS documentation at"),
    # torch/utils/file_baton.py as py-spy and as a traceback show it; filelock's Timeout
    ("build-lock-left", "    wait (torch/utils/file_baton.py:48)\n    _jit_compile (torch/utils/cpp_extension.py:2345)"),
    ("build-lock-left", '  File "/env/lib/python3.10/site-packages/torch/utils/file_baton.py", line 42, in wait\n    time.sleep(self.wait_seconds)\nKeyboardInterrupt'),
    ("build-lock-left", "filelock._error.Timeout: The file lock '/cache/datasets/c4.lock' could not be acquired."),
    # CUDA's text of cudaErrorTooManyPeers
    ("peer-mappings-exhausted", "[2026-06-20 02:14:03] n0:33:33 [0] allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'"),
    ("peer-mappings-exhausted", "RuntimeError: cuda runtime error (60) : peer mapping resources exhausted at aten/src/THC/THCGeneral.cpp:164"),
    # trl, scripts/vllm_serve.py
    ("communicator-left-over", "RuntimeError: Weight update group already initialized. Call close_communicator first."),
    # errno 116 and 17 by Python
    ("shared-file-raced", TRACE + "OSError: [Errno 116] Stale file handle: '/nfs/run/ckpt/latest'"),
    ("shared-file-raced", "[rank1]: step 3 loss 2.1\n[rank0]: FileExistsError: [Errno 17] File exists: '/nfs/run/ckpt/step3'\n[rank1]:[W1] x.cpp:1] [Rank 1] Warning: another rank may have failed"),
    ("shared-file-raced", "[rank8]: Traceback (most recent call last):\n[rank8]:   File \"<frozen os>\", line 225, in makedirs\n[rank8]: FileExistsError: [Errno 17] File exists: '/ckpt/epoch_0_step_297/model'"),
    ("store-unreachable", TRACE + "ray.exceptions.RpcError: Timed out while waiting for GCS to become available."),
    ("rdma-adapter-event", "[33.1] mlx5_core 0000:9a:00.0 eth2: TX timeout detected"),
    ("peers-never-joined", "/x/jax/_src/xla_bridge.py:146: UserWarning: TPU backend initialization is taking more than 60.0 seconds. Did you run your code on all TPU hosts?"),
    # OpenSSH
    ("ssh-connection-refused", "ssh: connect to host n7 port 22: Connection refused\npdsh@n0: n7: ssh exited with exit code 255"),
    ("ssh-timeout", "ssh: connect to host n7 port 2222: Connection timed out"),
    ("ssh-no-route", "ssh: connect to host 10.0.0.7 port 22: No route to host"),
    # prrte, src/mca/rmaps/base/help-prte-rmaps-base.txt; horovod, runner/launch.py; deepspeed, launcher/runner.py
    # Kubernetes: scheduler, kubelet, containerd
    ("pod-not-scheduled", "2m   Warning   FailedScheduling   pod/train-worker-3   0/12 nodes are available: 4 node(s) had untolerated taint {gpu: true}, 8 Insufficient nvidia.com/gpu. preemption: 0/12 nodes are available."),
    ("pod-not-scheduled", "  Warning  FailedScheduling  61s (x7 over 30m)  default-scheduler  0/9 nodes are available: 9 Insufficient cpu."),
    ("container-not-started", "5m   Warning   Failed   pod/train-0   Failed to pull image \"reg.example.com/train:2\": rpc error: code = NotFound desc = failed to resolve reference\n5m   Warning   Failed   pod/train-0   Error: ErrImagePull\n4m   Normal   BackOff   pod/train-0   Back-off pulling image \"reg.example.com/train:2\""),
    ("container-not-started", "NAME      READY   STATUS             RESTARTS   AGE\ntrain-0   0/1     ImagePullBackOff   0          5m\ntrain-1   1/1     Running            0          5m"),
    ("container-not-started", "  Warning  FailedMount  3s (x8 over 2m)  kubelet  MountVolume.SetUp failed for volume \"data\" : mount failed: exit status 32"),
    ("container-restarts", "  Normal   Pulled   12m   kubelet   Container image \"reg.example.com/train:1\" already present on machine\n  Warning  BackOff  2m (x8 over 10m)  kubelet  Back-off restarting failed container trainer in pod train-1_ml(0d3)"),
    ("oom-killer-ran", "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137"),
    ("disk-full", "3m   Warning   Evicted   pod/train-2   The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 2Gi."),
    # torch/cuda/__init__.py, torch/utils/cpp_extension.py, nvcc
    ("gpu-architecture-not-built", "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch installation.\nThe current PyTorch install supports CUDA capabilities sm_80 sm_90.\n" + TRACE + "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
    ("gpu-architecture-not-built", TRACE + "ValueError: Unknown CUDA arch (10.0) or GPU not supported"),
    ("gpu-architecture-not-built", "nvcc fatal   : Unsupported gpu architecture 'compute_100'"),
    # an epoch's end before ranks part
    ("uneven-batches-between-ranks", "[rank0]: step 99 loss 2.1\n[rank1]: step 99 loss 2.1\n[rank1]: epoch 0 done: 100 batches\n[rank1]:[E1120 10:09:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=201, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n[rank0]:[E1120 10:09:00.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=201, OpType=ALLREDUCE, NumelIn=255, NumelOut=255, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."),
    ("not-enough-slots", "There are not enough slots available in the system to satisfy the 16\nslots that were requested by the application:\n\n  python"),
    ("not-enough-slots", "ValueError: Requested more processes (16) than there are available slots (8)"),
    ("not-enough-slots", "ValueError: No slot '9' specified on host 'n1'"),
    # torch/cuda/__init__.py; ProcessGroupNCCL.cpp; deepspeed, launcher/runner.py
    ("device-ordinal-not-visible", TRACE + "RuntimeError: No CUDA GPUs are available"),
    ("no-gpu-visible", TRACE + "AssertionError: Torch not compiled with CUDA enabled"),
    ("no-gpu-visible", TRACE + "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    ("no-gpu-visible", TRACE + "RuntimeError: Unable to proceed, no GPU resources available"),
    # gloo/transport/tcp/device.cc
    ("address-families-differ", TRACE + "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:285] ss1.ss_family == ss2.ss_family. 2 vs 10"),
    # errno 28 and 122 by Python; caffe2/serialize/inline_container.cc
    ("disk-full", TRACE + "OSError: [Errno 28] No space left on device: '/data/ckpt/step_100.pt'"),
    ("disk-full", TRACE + "OSError: [Errno 122] Disk quota exceeded"),
    ("disk-full", TRACE + "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 5696 vs 5590"),
    # c10/core/impl/alloc_cpu.cpp; numpy; libstdc++
    ("host-memory-refused", TRACE + "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 549755813888 bytes. Error code 12 (Cannot allocate memory)"),
    ("host-memory-refused", TRACE + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 512. GiB for an array with shape (262144, 262144) and data type float64"),
    ("host-memory-refused", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"),
    ("host-memory-refused", TRACE + "OSError: [Errno 12] Cannot allocate memory"),
    # CPython's thread module; libgomp; bash
    ("process-limit-reached", TRACE + "RuntimeError: can't start new thread"),
    ("process-limit-reached", "libgomp: Thread creation failed: Resource temporarily unavailable"),
    ("process-limit-reached", "bash: fork: Resource temporarily unavailable"),
    # argparse, as torch/distributed/run.py and deepspeed use it
    ("launcher-argument-misread", "usage: torchrun [-h] [--nnodes NNODES] training_script ...\ntorchrun: error: unrecognized arguments: --nproc-per-nod=2"),
    # torch/distributed/distributed_c10d.py
    ("process-group-started-twice", TRACE + "ValueError: trying to initialize the default process group twice!"),
    # accelerate, commands/launch.py
    ("launcher-argument-misread", 'Traceback (most recent call last):\n  File "/env/bin/accelerate", line 8, in <module>\n    sys.exit(main())\n  File "/env/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1209, in _validate\n    raise ValueError("You need")\nValueError: You need to use at least 2 processes to use `--multi_gpu`.'),
    # NCCL: misc/argcheck.cc, init.cc, mnnvl.cc, misc/socket.cc
    ("nccl-called-wrongly", "n0:5:9 [0] misc/argcheck.cc:60 NCCL WARN Broadcast : sendbuff allocated on device 1 mismatchs with NCCL device 0"),
    ("nccl-called-wrongly", "n0:5:9 [0] NCCL WARN comm 0x7f10 has already been destroyed"),
    ("imex-not-working", "n0:5:9 [0] mnnvl.cc:75 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."),
    ("nccl-setting-invalid", "n0:5:9 [0] bootstrap.cc:110 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>"),
    ("two-nccl-libraries", "ImportError: /env/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister"),
    ("mixed-link-layers-selected", "n0:5:9 [0] NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA"),
    # PALS, Cray's launcher; ROCr; LSF; Slurm before StepId=; Ray before 2.0
    ("rank-crashed", "x4213c4s7b0n0: rank 274 died from signal 6\nx4417c3s5b0n0: rank 481 died from signal 15"),
    ("rank-crashed", "HW Exception by GPU node-4 (Agent handle: 0x63) reason :GPU Hang\nAborted (core dumped)"),
    ("job-cancelled", "TERM_THREADLIMIT: job killed after reaching LSF thread limit.\nExited with exit code 143."),
    ("job-step-not-launched", "srun: error: Task launch for 36.0 failed on node n7: Job credential expired\nsrun: error: Application launch failed: Job credential expired"),
    ("node-lost", "The node with node id: 75b2eec8a61c and ip: 10.4.4.7 has been marked dead because the detector has missed too many heartbeats from it."),
    ("rank-raised-exception", "2026-10-31 03:11:02,475 - trainer - INFO - [rank7]: Traceback (most recent call last):\n2026-10-31 03:11:02,475 - trainer - INFO - [rank7]:   File \"/env/loader.py\", line 250, in step\n2026-10-31 03:11:02,475 - trainer - INFO - [rank7]:     assert metadata is not None\n2026-10-31 03:11:02,475 - trainer - INFO - [rank7]: AssertionError"),
    # Linux's EMSGSIZE; OpenSSH's debug line where a login stops
    ("path-mtu-black-hole", TRACE + "OSError: [Errno 90] Message too long"),
    # prrte, src/mca/odls/base/help-odls
    ("python-or-launcher-missing", "prterun was unable to launch the specified application as it could not access\nor execute an executable:\n\nExecutable: /job/env/bin/python\nprterun was unable to find the specified executable file, and therefore did not launch the job."),
    ("port-in-use", "[ERROR] HCCL(77,python3): [hccl_socket.cc:100] [77][HcclSocket][Listen] listen on ip[10.0.0.5] and specific port[16666] fail. Please check the port status and whether the port is been using by other process."),
    ("world-never-formed", "$ mpirun -np 2 -N 1 ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 4\n# nThread 1 nGpus 4 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n# Using devices\n# nThread 1 nGpus 4 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n#\n# Using devices"),
]  # fmt: skip
"""Names with one line of proof; the comments name the sources of the wordings."""

HEALTHY += [
    # slurmd goes on with the next directory; advice of libraries.
    "slurmstepd: error: xcpuinfo_hwloc_topo_load: failed (load will be required after read failures).\nslurmstepd: error: Could not run slurm task_prolog [/etc/slurm/prolog]: No such file or directory\nslurmstepd: error: TMPDIR [/scratch/u] is not writeable\nslurmstepd: error: Setting TMPDIR to /tmp",
    "Expanding inputs for audio tokens should be done in processing.\nstep 1 loss 2\nstep 2 loss 1",
    "`rope_scaling`'s original_max_position_embeddings field must be less than max_position_embeddings, got 4096 and 4096",
    # Kubernetes: it took a while. torch: a warning.
    "30m  Warning  FailedScheduling  pod/train-1  0/9 nodes are available: 9 Insufficient cpu.\n12m  Normal  Scheduled  pod/train-1  Successfully assigned ml/train-1 to gpu-7",
    "  Normal   Scheduled  12m  default-scheduler  Successfully assigned ml/train-1 to gpu-7\n  Warning  Failed  11m  kubelet  Failed to pull image \"reg.example.com/train:2\": context deadline exceeded\n  Warning  Failed  11m  kubelet  Error: ErrImagePull\n  Normal  Pulled  9m  kubelet  Successfully pulled image \"reg.example.com/train:2\" in 91s\n  Normal  Started  9m  kubelet  Started container trainer",
    "NVIDIA B200 with CUDA capability sm_100 is not compatible with the current PyTorch installation.\nstep 1 loss 2.0\nstep 2 loss 1.0\nstep 3 loss 1.0",
    # XLA takes it back
    "E0000 00:00:1.1 9 rendezvous.cc:31] This thread has been waiting for `first call` for 10 seconds and may be stuck. Expected 2 threads to join the rendezvous, but not all of them arrived on time.\nE0000 00:00:2.1 9 rendezvous.cc:36] Thread is unstuck! Warning above was a false-positive. Perhaps the timeout is too short.",
    # Every rank ends its epoch, one a little earlier.
    "[rank0]: step 99 loss 2.1\n[rank1]: step 99 loss 2.1\n[rank1]: epoch 0 done\n[rank0]: epoch 0 done\n[rank0]: step 100 loss 2.1\n[rank1]: step 100 loss 2.1",
    # False friends: counted as zero, on the web, tried and done without, or of a file of no rank.
    "GPU 0: uncorrectable NVLink errors: 0\nstep 1 loss 2\nstep 2 loss 1",
    "Waited on lock file \"/root/.cache/x/lock\" for 30 seconds.\nstep 1 loss 2\nstep 2 loss 1\nstep 3 loss 1",
    "WARNING: [Errno 28] No space left on device: could not write the cache, ignored\nstep 1 loss 2\nstep 2 loss 1",
    "wandb: ERROR KeyError: 'RANK' (https://wandb.ai)\nstep 1 loss 2\nstep 2 loss 1\nstep 3 loss 1",
    "n0:5:9 [0] NCCL INFO MNNVL 0 cliqueId 0\nn0:5:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
    "n0:5:9 [0] NCCL INFO NET/Plugin: dlsym failed on ncclNetPlugin_v9 - libnccl-net.so: undefined symbol: ncclNetPlugin_v9\nn0:5:9 [0] NCCL INFO Using network IB",
    "torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "debug1: expecting SSH2_MSG_KEX_ECDH_REPLY\ndebug1: Host 'n1' is known and matches the ED25519 host key.",
    "memory: MemoryErrorPolicy=warn\nthreads: can start new threads\nstep 1 loss 2\nstep 2 loss 1",
    "n0:291:292 [0] misc/nvmlwrap.cc:100 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch\nn0:291:292 [0] NCCL INFO misc/nvmlwrap.cc:181 -> 2\n\nn0:291:292 [0] graph/xml.cc:634 NCCL WARN No NVML device handle. Skipping nvlink detection.\nn0:291:292 [0] NCCL INFO comm 0x8b017a0 rank 0 nranks 1 cudaDev 0 busId ca000 commId 0x287f1dbe111c81ff - Init COMPLETE\nloss: 0.61\nstep 100\nstep 101",
    "Cannot find suitable count function for <class 'paddle.nn.layer.activation.PReLU'>. Treat it as zero FLOPs.",
    "Installed CUDA version 11.7 does not match the version torch was compiled with 11.8 but since the APIs are compatible, accepting this combination",
    "INFO:     Shutting down\nINFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\nINFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\nINFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.",
]  # fmt: skip

NOISE: list[str] = [
    "[rank0]:[W1010 10:10:10.1 ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.",
    "WARNING: No module named 'flash_attn', falling back to eager attention",
    "ModuleNotFoundError: No module named 'apex'",
    "Could not import deepspeed: No module named 'deepspeed'",
    "| WARNING: OOM detected, attempting to recover: skipping batch",
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB, skipping batch",
    "[WARNING] [runner.py:196:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources only.",
    "[W socket.cpp:697] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - Name or service not known).",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 113 - No route to host).",
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 97 - Address family not supported by protocol).",
    "cat: write error: Broken pipe",
    "wandb: ERROR authentication failed, logging offline",
    "huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized. Authentication failed",
    "OSError: [Errno 98] Address already in use",
    "TensorBoard could not bind to port 6006, it was already in use",
    "bash: no job control in this shell",
    "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
    "tput: No value for $TERM and no -T specified",
    "Warning: Permanently added 'n2' (ED25519) to the list of known hosts.",
    "No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'",
    "Received signal 15 (SIGTERM), saving a checkpoint",
    "rm: cannot remove '/tmp/x': Permission denied",
    "PermissionError: [Errno 13] Permission denied: '/root/.cache/x'",
    "mkdir: cannot create directory '/x': File exists",
    "kernel: mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged",
    "n1:11:30 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "n1:11:30 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
    "n1:11:30 [0] NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
    "UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 8",
    "UserWarning: resource_tracker: There appear to be 4 leaked semaphore objects to clean up at shutdown",
    "FutureWarning: The module torch.distributed.launch is deprecated",
    "[W reducer.cpp:1298] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters in the forward pass.",
    "Grad overflow on iteration: skipping step. Attempted loss scale: 65536",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    "Timeout, server 10.0.0.9 not responding.",
    "NFS: server n9 not responding, still trying",
    "urllib3.exceptions.NewConnectionError: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
    "WARNING urllib3.connectionpool: Retrying after connection broken by 'NameResolutionError: Failed to resolve hub.example.com ([Errno -2] Name or service not known)'",
    "WARNING: Retrying (Retry(total=4)) after connection broken by 'ConnectTimeoutError(timed out)': /simple/pip/",
    "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.",
    "socket.timeout: timed out",
    "Exception ignored in: <function _ConnectionBase.__del__ at 0x7f>",
    "OSError: [Errno 9] Bad file descriptor",
    "free(): invalid pointer",
    "/bin/sh: 1: nvidia-smi: not found",
    "ldconfig: /usr/lib/x is not a symbolic link",
    "libibverbs: Warning: couldn't load driver 'libmlx4-rdmav34.so': libmlx4-rdmav34.so: cannot open shared object file: No such file or directory",
    "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
    "[n1:0011] mca: base: component_find: unable to open mca_pml_ucx",
    "--------------------------------------------------------------------------",
    "WARNING: There was an error initializing an OpenFabrics device.",
    "Open MPI accelerated with CUDA but could not find libcuda",
    "hwloc x86 backend cannot work under Valgrind",
    "dmesg: read kernel buffer failed: Operation not permitted",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python",
    "GPU 3 has ECC errors: 0 uncorrectable",
    "ulimit: max open files 1024",
    "Setting ulimit -l failed",
    "env: CUDA_VISIBLE_DEVICES=0,1",
    "retrying in 5 seconds: Connection reset by peer",
    "worker 3 died, restarting it",
    "Skipping corrupt sample: error -3 while decompressing data",
    "Error: Corrupt JPEG data: premature end of data segment",
    "assert failed but ignored",
    "[E thread_pool.cpp:109] Exception in thread pool task: mutex lock failed",
    "[rank1]:[W Utils.hpp:133] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated",
    "exit code: 0",
    "job 123 on n1: TIME LIMIT in 600 s",
    "Process 1234 exited with code 0",
    "[INFO] agent: [default] worker group successfully finished. Waiting 300 seconds for other agents to finish",
    "raise ValueError(\"x\")",
    "0 killed, 0 failed, 2 succeeded",
    "Epoch 3 timed out of patience: early stopping",
    "INFO nan detected in loss, skipping",
    "AMP: found inf in gradient",
]  # fmt: skip
"""Lines sound runs print too: harmless where training goes on after them."""

UNREADABLE = {
    # A value that is no address is looked up before it is refused.
    "looked up": """\
n0:5:5 [0] misc/socket.cc:298 NCCL WARN Net : error encountered when getting address info : Temporary failure in name resolution

n0:5:5 [0] bootstrap.cc:102 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port>
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3135, invalid argument""",
    # Two simulated nodes on one GPU, told apart by NCCL_HOSTID: that is not what NCCL refuses.
    "on one GPU": """\
n0:5:5 [0] NCCL INFO ncclCommInitRankConfig comm 0x2d05 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x58 - Init START
n0:6:6 [0] NCCL INFO ncclCommInitRankConfig comm 0x139d rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0x58 - Init START
n0:5:5 [0] graph/tuning.cc:104 NCCL WARN Unrecognized element token "Nonsense" when parsing "Nonsense"
[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage
[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank0]: Last error:
[rank0]: Unrecognized element token "Nonsense" when parsing "Nonsense\"""",
}
"""Settings that NCCL cannot read, with other words around that have a name of their own."""
SAID += [
    (
        "unnamed-failure",
        "slurmstepd: error: spank: required plugin spank_x.so: init() failed with rc=-1\nslurmstepd: error: pyxis:     [ERROR] hook 40-mounts.sh: cannot bind /scratch: Permission denied\nsrun: Job step aborted",
    ),
    (
        "unnamed-failure",
        "".join(
            f"(Engine pid=7) INFO 10:{m:02}:00 [bus.py:4] No free slot after 60 s, still waiting for the workers\n"
            for m in range(4)
        ),
    ),
    (
        "unnamed-failure",
        '[1700000000.1] [n3:70:0]     ep.c:44   UCX  ERROR Remote access on mlx5_1:1 failed (synd 0x13)\nTraceback (most recent call last):\n  File "/job/kv.py", line 3, in <module>\nkv.errors.TransferError: backend',
    ),
    (
        "ephemeral-ports-exhausted",
        "[2026-01-02 06:11:43] n7:19:57 [3] misc/socket.cc:400 NCCL WARN Call to bind failed: Address already in use\nn7:19:57 [3] NCCL INFO transport/net.cc:711 -> 2",
    ),
    (
        "ray-node-address-differs",
        "INFO worker.py:16 -- Connecting to existing Ray cluster at address: 172.20.0.4:6379...\n(autoscaler +13s) Error: No available node types can fulfill resource request {'node:198.51.100.7': 0.001, 'GPU': 1.0}. Add suitable node types to this cluster to resolve this issue.",
    ),
    (
        "stale-rendezvous-state",
        '  run_id           : none\n  rdzv_backend     : etcd-v2\nTraceback (most recent call last):\n  File "/env/bin/torchrun", line 8, in <module>\ntorch.distributed.elastic.rendezvous.api.RendezvousClosedError',
    ),
    (
        "gid-missing-or-wrong",
        "n2:71:129 [0] misc/ibvwrap.cc:300 NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f1:1, curr state INIT, next state RTR, local GID index 3, local GID ::,",
    ),
    (
        "gid-missing-or-wrong",
        "/src/nvshmem/modules/transport/ibrc/ibrc.cpp:400: non-zero status: 22 ibv_modify_qp failed\n/src/nvshmem/modules/transport/ibrc/ibrc.cpp:1433: non-zero status: 7 ep_connect failed\n/src/nvshmem/host/transport/transport.cpp:400: non-zero status: 7 connect EPS failed",
    ),
    (
        "rdma-peer-unreachable",
        "n1:71:129 [0] misc/ibvwrap.cc:300 NCCL WARN Call to ibv_modify_qp failed with 113 No route to host, on dev mlx5_0:1, local GID ::ffff:10.1.0.4",
    ),
    (
        "network-plugin-too-old",
        "0: n1:61:33 [4] register_rail:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument\n1: n2:58:59 [4] proxy.cc:1488 NCCL WARN [Proxy Service 12] Failed to execute operation Connect from rank 12, retcode 2\n0: [rank4]: torch.distributed.DistBackendError: NCCL error in: ../torch/P.cpp:19, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.4",
    ),
    (
        "disk-full",
        "slurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis:     [INFO] Creating squashfs filesystem...\nslurmstepd: error: pyxis:     Write failed because No space left on device\nslurmstepd: error: pyxis: couldn't start container",
    ),
    (
        "job-step-not-launched",
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory\nslurmstepd: error: pyxis: couldn't start container",
    ),
    # Ray, NCCL's sockets and verbs, slurmctld
    (
        "file-not-shared",
        "[rank8]: Traceback (most recent call last):\n[rank8]:   File \"/job/t.py\", line 5, in <module>\n[rank8]:     torch.load(p)\n[rank8]: FileNotFoundError: [Errno 2] No such file or directory: '/local/idx/shuffle_doc_idx.npy'\n[rank9]: Traceback (most recent call last):\n[rank9]:   File \"/job/t.py\", line 5, in <module>\n[rank9]:     torch.load(p)\n[rank9]: FileNotFoundError: [Errno 2] No such file or directory: '/local/idx/shuffle_doc_idx.npy'\n[rank0]: building index on rank 0\n[rank1]: torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
    ),
    (
        "placement-not-possible",
        "(autoscaler +1m0s) Error: No available node types can fulfill resource request {'GPU': 1.0}. Add suitable node types to this cluster to resolve this issue.\nERROR 05-26 18:53:53 core.py:400] ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}, {'GPU': 1.0}] within 1800 seconds. See `ray status` to make sure the cluster has enough resources.",
    ),
    (
        "kernel-cannot-pin-memory",
        "$ ulimit -l\nunlimited\nmax locked memory       (kbytes, -l) unlimited\nn1:88:120 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\nn1:88:120 [0] NCCL INFO transport/net_ib.cc:1700 -> 2",
    ),
    (
        "user-buffers-not-registrable",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nn1:88:120 [0] NCCL INFO NCCL_LOCAL_REGISTER set by environment to 1.\nargs: use_nccl_ub ................................... True\nn1:88:120 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address errno 14\nn1:88:120 [0] NCCL INFO transport/net_ib.cc:1700 -> 2\ntorch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled system error",
    ),
    (
        "sidecar-intercepts-ranks",
        "worker-0:88:120 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>\nworker-0:88:120 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 127.0.0.6<41233>\nworker-1:88:120 [0] bootstrap.cc:77 NCCL WARN Message truncated : received 0 bytes instead of 4\nistio-proxy  2025-01-01T00:00:00Z info Envoy proxy is ready",
    ),
    (
        "job-step-not-launched",
        "srun: error: task 3 launch failed: Unspecified error\nsrun: launch/slurm: launch_p_step_launch: StepId=77.0 aborted before step completely launched.\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    ),
    ("nccl-library-too-old", "RuntimeError: NCCL library is too old, please upgrade"),
    (
        "rank-killed",
        "[rank1]: RuntimeError: DataLoader worker (pid 22825) is killed by signal: Killed. \n[rank0]:[E1127 07:46:23.166 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8320, NumelOut=8320, Timeout(ms)=600000) raised the following async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer \nException raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2770 (most recent call first):\n\n[rank0]:[E1127 07:46:23.167 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 4, last completed work: 3\n",
    ),
    (
        "rank-crashed",
        "[rank1]: terminate called after throwing an instance of 'std::length_error'\n[rank1]:   what():  vector::_M_default_append\n[rank0]:[E1127 07:46:23.166 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8320, NumelOut=8320, Timeout(ms)=600000) raised the following async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer \nException raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2770 (most recent call first):\n\n[rank0]:[E1127 07:46:23.167 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 4, last completed work: 3\nfirst failure: rank 1 on node1: killed by SIGABRT (6): a failed assertion in native code, or NCCL's watchdog, 33 s after the start",
    ),
    (
        "rank-raised-exception",
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 51, in <module>\n[rank1]:     step(x)\n[rank1]:   File "/venv/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", line 1034, in compile_wrapper\n[rank1]:     raise e.with_traceback(None) from e.__cause__  # User compiler error\n[rank1]: torch._dynamo.exc.UserError: Consider annotating your code using torch._check*(). Could not guard on data-dependent expression zuf0 > 0.0 (unhinted: zuf0 > 0.0).  (Size-like symbols: none)\n\n[rank1]: Caused by: if y.sum().item() > 0:  # job/train.py:47 in step (_dynamo/variables/tensor.py:1951 in evaluate_expr)',
    ),
    (
        "rank-raised-exception",
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 46, in <module>\n[rank1]:     dist.broadcast_object_list(box, src=0)\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.',
    ),
    (
        "rank-raised-exception",
        "[rank0]:[E1127 07:46:23.166 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8320, NumelOut=8320, Timeout(ms)=600000) raised the following async exception: NCCL error: remote process exited or there was a network error, NCCL version 2.28.9\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer \nException raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2770 (most recent call first):\n\n[rank0]:[E1127 07:46:23.167 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 4, last completed work: 3\nW1127 07:44:29.111000 15008 torch/distributed/elastic/multiprocessing/api.py:1012] Sending process 15307 closing signal SIGTERM\nE1127 07:44:29.539000 15008 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 7) local_rank: 1 (pid: 15308) of binary: /venv/bin/python3",
    ),
    (
        "rank-raised-exception",
        '[2023-05-19 20:09:43,494][__main__][ERROR] - Error in training loop\nTraceback (most recent call last):\n  File "/job/train.py", line 173, in estimate\n    th.bmm(a, b)\nRuntimeError: batch1 must be a 3D tensor\nError executing job with overrides: []\nTraceback (most recent call last):\n  File "/job/train.py", line 994, in main\n    train(cfg)\n  File "/job/train.py", line 173, in estimate\n    th.bmm(a, b)\nRuntimeError: batch1 must be a 3D tensor\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.',
    ),
    (
        "rank-raised-exception",
        'Traceback (most recent call last):\n  File "/job/train.py", line 183, in <module>\n    X, Y = next(batches)\nStopIteration',
    ),
    (
        "job-cancelled",
        "step 428 loss 0.31\nstep 429 loss 0.30\n*** SIGTERM received at time=1755448771 on cpu 72 ***\nPC: @     0x7fb868051117  (unknown)  (unknown)\n[2025-08-17 16:39:31,431 E 531 531] logging.cc:460: *** SIGTERM received at time=1755448771 on cpu 72 ***\n[2025-08-17 16:39:31,431 E 531 531] logging.cc:460: PC: @     0x7fb868051117  (unknown)  (unknown)",
    ),
    (
        "unnamed-failure",
        'UserWarning: \nA40 with CUDA capability sm_86 is not compatible with the current PyTorch installation.\nThe current PyTorch install supports CUDA capabilities sm_37 sm_50.\nTraceback (most recent call last):\n  File "main.py", line 104, in <module>\n    import tinycudann as tcnn\nImportError: libtorch_cuda_cu.so: cannot open shared object file: No such file or directory',
    ),
    (
        "disk-full",
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/job/train.py", line 9, in <module>\n[rank3]: RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/3: file write failed',
    ),
    (
        "gpu-out-of-memory",
        "ValueError: Free memory on device (12.5/80.0 GiB) on startup is less than desired GPU memory utilization (0.9, 72.0 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    ("gpu-out-of-memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
    (
        "gpu-out-of-memory",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    ),
    (
        "ray-node-address-differs",
        "(autoscaler +10m11s) Error: No available node types can fulfill resource request {'node:n1.example.org': 0.001, 'GPU': 1.0}. Add suitable node types to this cluster.",
    ),
    (
        "job-step-not-launched",
        "srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation\nsrun: Job step aborted",
    ),
    (
        "job-step-not-launched",
        "srun: error: Task launch for StepId=125452.4 failed on node n1: Unable to layout tasks on given cpus",
    ),
    (
        "peer-unreachable-on-interface",
        "n1:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.1.9<54263> failed : No route to",
    ),
    (
        "slurm-tasks-mismatch",
        "[unset]:   This singleton init program attempted to access some feature\n[unset]:   for which process manager support was required, e.g. spawn or universe_size.",
    ),
    ("local-rank-argument-rejected", "train.py: error: unrecognized arguments: --local-rank=0"),
    (
        "nfs-mount-slow",
        "[Mon Mar  2 10:11:40 2026] nfs: server nas01 not responding, still trying\n[rank1]:[E302 10:21:44.2 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=311, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
    ),
    (
        "rank-fell-behind",
        "EI9999: 2026-10-21-10:42:00.204.495  The error from device(chipId:2, dieId:0), serial number is 9, hccl fftsplus task timeout occurred during task execution, stream_id:5, sq_id:5, task_id:388, stuck notify num:1, timeout:30min(default).",
    ),
    ("rank-crashed", "free(): corrupted unsorted chunks\n[n1:186] *** Process received signal ***"),
    (
        "user-buffers-not-registrable",
        "n1:9:9 [0] misc/ibvwrap.cc:182 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument",
    ),
    (
        "no-gpu-visible",
        'Traceback (most recent call last):\n  File "/w/t.py", line 2, in <module>\nRuntimeError: Distributed package doesn\'t have NCCL built in',
    ),
    (
        "gpu-out-of-memory",
        "oneCCL: ze_call.cpp:28 do_call: EXCEPTION: ze error at zeMemAllocDevice, code: ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    ),
    (
        "gpu-out-of-memory",
        "E tensorflow/compiler/xla/xla_client/xla_util.cc:88] (1) RESOURCE_EXHAUSTED: Attempting to reserve 3.10G at the bottom of memory. That was not possible.",
    ),
    (
        "rank-raised-exception",
        "[rank0]: RuntimeError: decoder world_size (12) is not divisible by expert_tensor_model_pipeline_parallel size (8)",
    ),
    (
        "rank-raised-exception",
        "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(3) * cp(1) * tp(4) * pp(1) != WORLD_SIZE(16)",
    ),
    (
        "rank-raised-exception",
        "ValueError: The number of heads is fine\nAssertionError: num_layers should be divisible by pipeline_model_parallel_size",
    ),
    (
        "rank-raised-exception",
        "RuntimeError: Mesh should not be bigger than default world size 4, but found 8 ranks!",
    ),
    (
        "store-unreachable",
        "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s while trying to connect to (10.3.4.5\n, 44737).",
    ),
    # Schedulers and platforms around a run, as users paste them.
    ("gpu-missing", "[   84.3] NVRM: GPU6 _kgspLogRpcTimeout: ******** GSP Timeout **********"),
    ("node-lost", "   State=DOWN+NOT_RESPONDING\n   Reason=Not responding [slurm@2026-05-02T10:11:12]"),
    (
        "node-lost",
        "REASON               USER      TIMESTAMP           NODELIST\nNode unexpectedly re slurm     2026-05-02T10:11:12 n7",
    ),
    (
        "node-lost",
        "n7      1     gpu*       down*   12   12:1:1  64267        0      1   (null) Not responding",
    ),
    ("rank-killed", "[2026-05-02T11:37:57.377] _job_complete: JobId=127 WTERMSIG 9"),
    (
        "rank-killed",
        "/var/spool/slurm/job7/slurm_script: line 31:  6521 Killed singularity exec a.sif python -W ignore t.py",
    ),
    ("rank-crashed", "job.sh: line 9:  77 Segmentation fault      python -W ignore t.py"),
    ("oom-killer-ran", "[2026-05-02T11:37:57.377] _job_complete: JobId=127 OOM failure"),
    (
        "job-cancelled",
        "step 1 loss 2\nstep 2 loss 1\n[2026-05-02T11:37:57] Time limit exhausted for JobId=127",
    ),
    (
        "job-step-not-launched",
        "salloc: Prolog failure on node n7\nsalloc: Job allocation 9 has been revoked.",
    ),
    ("disk-full", "worker-3   0/1   Evicted   0   3m   Pod The node had condition: [DiskPressure]."),
    (
        "unnamed-failure",
        "n0:9:8 [2] process_err_completion:15 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 5. Error: Invalid receiver queue pair number (QPN) My EFA addr: fi_addr_efa://[fe80::1]:0:6 My host id: i-00",
    ),
    (
        "unnamed-failure",
        "(head, rank=0, pid=9) Epoch: 0\nERROR: Job 7 failed with return code list: [137, 1, 137] (A worker failed with return code 1, SkyPilot cleaned up the processes on other nodes with return code 137)",
    ),
    (
        "gpu-missing",
        "|   3  ERR!                           On  |   00000000:5D:00.0 Off |                 ERR! |\n| ERR! ERR! ERR!            ERR! /  ERR!  |       0MiB /  81559MiB |      0%      Default |",
    ),
    ("node-lost", "[2026-05-01T10:00:00.000] requeue job JobId=12 due to failure of node n3"),
    ("node-lost", "[2026-05-01T10:00:00.000] error: Nodes n[1-2] not responding, setting DOWN"),
    ("node-lost", "3m   Warning   NodeNotReady   pod/train-worker-1    Node is not ready"),
    ("node-lost", "JobId=471 JobName=train\n   JobState=NODE_FAIL Reason=NodeDown Dependency=(null)"),
    (
        "oom-killer-ran",
        "slurmstepd: error: StepId=1.0 exceeded memory limit (8454444 > 8388608), being killed",
    ),
    ("job-cancelled", "JobId=471 JobName=train\n   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)"),
    ("job-cancelled", "2m  Normal   Preempted    pod/train-worker-1    Preempted by pod 8c8d2 on node gpu-7"),
    (
        "job-cancelled",
        "  Normal   EvictedDueToPreempted  2m   kueue-workload-controller  Preempted to accommodate a workload",
    ),
    ("job-cancelled", "Exit_status = 271\nresources_used.walltime = 02:00:12"),
    ("rank-killed", "Exit_status = 265\nresources_used.walltime = 02:00:12"),
    (
        "job-step-not-launched",
        "JobId=471 JobName=train\n   JobState=PENDING Reason=launch_failed_requeued_held Dependency=(null)",
    ),
    (
        "container-not-started",
        "  Warning  UnexpectedAdmissionError  2m   kubelet  Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected",
    ),
    (
        "container-restarts",
        "  Normal   Killing    2m                kubelet  Container vllm failed liveness probe, will be restarted",
    ),
    (
        "disk-full",
        "ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local object store is full",
    ),
    (
        "rank-killed",
        "[2026-05-01 10:00:00] Rank 0 scheduler is dead. Please check if there are relevant logs.\n[2026-05-01 10:00:00] Exit code: -9",
    ),
    (
        "rank-killed",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
    ),
    (
        "unnamed-failure",
        "  Warning  BackoffLimitExceeded  5m    job-controller  Job has reached the specified backoff limit",
    ),
    (
        "unnamed-failure",
        '  Warning  FailedCreate  2m   job-controller  Error creating: pods "train-0" is forbidden: exceeded quota: gpu',
    ),
    (
        "rank-fell-behind",
        'Traceback (most recent call last):\n  File "/job/train.py", line 8, in step\nRuntimeError: InnerRun:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6\nEI0006: [PID: 5] 2026-04-08-18:07:20.444.436 Getting socket times out. Reason: Remote Rank did not send the data in time.',
    ),
    (
        "ecc-uncorrectable",
        "RuntimeError: npuSynchronizeDevice:torch_npu.dir/compiler_depend.ts:508 NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 507054\n        rtDeviceSynchronize execute failed, reason=[hbm Multi-bit ECC error]",
    ),
    ("unnamed-failure", "RuntimeError: Did not receive response from front-end process within 5 minutes"),
    (
        "collective-stalled",
        'Thread 42 (idle): "MainThread"\n    backward (torch/autograd/__init__.py:266)\n    <module> (train.py:9)\nThread 79 (active)\n    all_gather_into_tensor (torch/distributed/distributed_c10d.py:2709)\n    fetch (zero3.py:9)',
    ),
    (
        "container-not-started",
        "Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: error running hook #0: exit status 1, stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: detection error: nvml error: unknown error: unknown",
    ),
    (
        "unnamed-failure",
        "ERROR:  nhc:  Health check failed:  check_gpu_bw: P2P test on GPU 1 to GPU 0 failed. Bandwidth 256.63 is less than 335.",
    ),
    (
        "rdma-port-not-active",
        "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Initializing\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand",
    ),
    (
        "rdma-port-not-active",
        "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tLink layer: InfiniBand",
    ),
    ("rdma-port-not-active", "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_INIT (2)"),
    (
        "ecc-uncorrectable",
        "|   1  NVIDIA A100-SXM...  On   | 00000000:0A:00.0 Off |                    3 |\n| N/A   31C    P0    60W / 400W |      0MiB / 81920MiB |      0%      Default |",
    ),
    (
        "unnamed-failure",
        "10:00:01 INFO - starting\n10:00:02 INFO - WARNING: low memory\n10:00:03 INFO - Task 3 failed: runner not available\n10:00:03 INFO - closing",
    ),
    (
        "node-lost",
        "   State=IDLE+DRAIN\n   Reason=gres/gpu count reported lower than configured (0 < 8) [slurm@2026-05-02T10:11:12]",
    ),
    (
        "node-lost",
        "REASON               USER      TIMESTAMP           NODELIST\nKill task failed     root      2026-05-02T10:11:12 n7",
    ),
    ("node-lost", "    job_state = F\n    comment = Not Running: Node is in an ineligible state: offline"),
    (
        "not-enough-slots",
        "    job_state = Q\n    comment = Can Never Run: Insufficient amount of resource: ngpus (R: 16 A: 8 T: 8)",
    ),
    (
        "job-step-not-launched",
        "slurmstepd: error: common_file_write_uints: write value '9' to '/sys/fs/cgroup/cpuset/slurm/job_1/cgroup.procs' failed: No space left on device\nslurmstepd: error: job_manager: exiting abnormally: Slurmd could not execve job",
    ),
    ("job-step-not-launched", "srun: error: Invalid MPI type 'pmix_v5', --mpi=list for acceptable types"),
    (
        "container-not-started",
        'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
    ),
    (
        "rdma-peer-unreachable",
        "n0:9:8 [2] cm_req_handle_error_entry:46 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA device but handshake failed) My EFA addr: fi_addr_efa://[fe80::1]:0:6",
    ),
    (
        "ssh-not-passwordless",
        "Error: failed to run torchrun --nnodes=2 t.py on n1, is localhost: False, exception: not a valid RSA private key file",
    ),
    (
        "rank-crashed",
        "step 1\nstep 2\n*** SIGABRT received at time=1766666 on cpu 3 ***\nPC: @ 0x7f (unknown) raise",
    ),
    (
        "port-privileged",
        "RuntimeError: The server socket has failed to bind. port: 512, useIpv6: 0, code: -13, name: EACCES, message: permission denied",
    ),
    (
        "node-lost",
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[7,0],0] on node job-launcher\n  Remote daemon: [[7,0],2] on node job-worker-1",
    ),
    (
        "world-never-formed",
        "No PMIx server was reachable, but a PMI1/2 was detected.\nIf srun is being used to launch application, 2 singletons will be started.",
    ),
    (
        "orphan-of-earlier-run",
        "EJ0001: 2025-01-02-03:04:05.600.700 Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
    ),
    (
        "rdma-device-set-differs",
        "n0:5:9 [0] accept_wait:49 NCCL WARN NET/OFI Unexpected number of remote rails for dev 1. Expected 4 but got 3",
    ),
    (
        "store-unreachable",
        "[proxy:0:1@n1] main (pm/pmiserv/pmip.c:183): unable to connect to server n0 at port 54762 (check for firewalls!)",
    ),
    (
        "no-gpu-visible",
        "ERROR 02-09 02:31:11 engine.py:389] Ray does not allocate any GPUs on the driver node.",
    ),
    (
        "rdma-retry-exceeded",
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0",
    ),
    (
        "ecc-uncorrectable",
        "[  90.785329] amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    ),
    (
        "node-lost",
        "[2026-05-01T10:00:00.000] error: Node n7 has low real_memory size (63622 < 64000)\n[2026-05-01T10:00:00.000] error: Setting node n7 state to DRAIN",
    ),
    (
        "node-lost",
        "slurmctld: error: Setting node n8 state to INVAL with reason:gres/gpu count reported lower than configured (3 < 4)",
    ),
    (
        "container-not-started",
        "FATAL:   While checking container encryption: could not open image /data/torch.sif: no such file or directory",
    ),
    (
        "container-not-started",
        "FATAL:   container creation failed: can't mount image /proc/self/fd/5: failed to mount squashfs filesystem",
    ),
    (
        "nfs-mount-slow",
        "[Mon Oct 16 10:00:12 2023] Lustre: 2449:0:(client.c:2141:ptlrpc_expire_one_request()) @@@ Request sent has failed due to network error: [sent 1/real 2] req@ff x1/t0(0) o38->work-MDT0000-mdc-ff88@10.0.0.8@o2ib:12/10 lens 520/544 rc 0/-1",
    ),
    (
        "rank-killed",
        "Epoch 3: 100%|##########| 120/120 [04:02<00:00,  1.4it/s]\n/var/spool/job7/slurm_script: line 31:  6521 Killed                  python -u train.py",
    ),
    (
        "xid-in-kernel-log",
        "2026/08/10 19:09:42 XidCriticalError: Xid=69 on Device=GPU-7540a9b3, the device will go unhealthy.",
    ),
    (
        "node-lost",
        "  Ready            False   Mon, 03 Jun 2024 13:54:18 +0000   Sun, 02 Jun 2024 21:39:37 +0000   KubeletNotReady              PLEG is not healthy",
    ),
    (
        "node-lost",
        "NAME   STATUS     ROLES    AGE   VERSION\nn7     NotReady   worker   12d   v1.31.2\nn8     Ready      worker   12d   v1.31.2",
    ),
    (
        "not-enough-slots",
        "Your job has requested more processes than the ppr for\nthis topology can support:\n\n  App: ./a.out\n  Number of procs:  32\n  PPR: 8:node",
    ),
    (
        "launcher-argument-misread",
        "[mpiexec@n1] match_arg (utils/args/args.c:163): unrecognized argument allow-run-as-root\n[mpiexec@n1] HYDU_parse_array (utils/args/args.c:178): argument matching returned error",
    ),
    (
        "gid-missing-or-wrong",
        " local address: LID 0000 QPN 0x003b PSN 0xab3a5e RKey 0x015b1a VAddr 0x007f72e9620000\n GID: 00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00\nFailed to modify QP 59 to RTR\n Unable to Connect the HCA's through the link",
    ),
    ("rdma-port-not-active", " Port number 1 state is Down"),
]
