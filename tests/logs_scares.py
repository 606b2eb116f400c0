"""
Lines that frighten and do not matter: what programs print before they go on well, in the words of their sources.

(where the line stands, the line) pairs: "setting up" before communicators are complete, "running" among the
steps, "ending" after the last of them.
"""

from __future__ import annotations

C10D = "[rank1]:[W1120 10:00:01.200 socket.cpp:752] [c10d] The client socket has failed to connect to"

SCARES: list[tuple[str, str]] = [
    # torch's store and rendezvous: tried again
    ("setting up", f"{C10D} [n0]:29500 (errno: 111 - Connection refused)."),
    ("setting up", f"{C10D} [n0]:29500 (errno: 110 - Connection timed out)."),
    ("setting up", f"{C10D} [n0]:29500 (errno: 113 - No route to host)."),
    ("setting up", "[W1120 10:00:01.200 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host n0:29500 - retrying (try=1, timeout=600000ms, delay=1422ms): Connection reset by peer"),
    ("setting up", "[W1120 10:00:01.200 socket.cpp:436] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."),
    ("setting up", "[W1120 10:00:01.200 socket.cpp:697] [c10d] The IPv6 network addresses of (n0, 29500) cannot be retrieved (gai error: -2 - Name or service not known)."),
    ("setting up", "\n".join(f"[rank{r}]:[W1120 10:00:01.200 socket.cpp:697] [c10d] The IPv6 network addresses of (n0, 29500) cannot be retrieved (gai error: -9 - Address family for hostname not supported)." for r in range(8))),
    ("setting up", "[W ProcessGroupGloo.cpp:559] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())"),
    # NCCL: retries, other networks, what it does without
    ("setting up", "n1:11:30 [0] NCCL INFO socketPollConnect: connect to 10.0.0.2<44001> returned Connection refused, retrying (4/34) after sleep for 400 msec"),
    ("setting up", "n1:11:30 [0] NCCL INFO Call to connect returned Connection refused, retrying"),
    ("setting up", "n1:11:30 [0] nccl_net_ofi_create_plugin:204 NCCL WARN NET/OFI aws-ofi-nccl initialization failed"),
    ("setting up", "n1:11:30 [0] transport/net_ib.cc:190 NCCL WARN NET/IB : Unable to open device mlx5_2"),
    ("setting up", "n1:11:30 [0] init.cc:1202 NCCL WARN Detected mixed local Net device counts between peers: rank 0 sees 8, rank 1 sees 4. Ignoring."),
    ("setting up", "n1:11:30 [0] graph/xml.cc:300 NCCL WARN Could not find real path of /sys/class/net/ib4/device"),
    ("setting up", "n1:11:30 [0] NCCL INFO cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation."),
    ("setting up", "n1:11:30 [0] sharp_plugin.c:343 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)"),
    ("setting up", "n1:11:30 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 300. Ignoring, value is out of range"),
    ("running", "n1:11:40 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 203.0.113.9<46494>"),
    ("running", "n1:11:40 [0] misc/socket.cc:432 NCCL WARN socketFinalizeAccept: wrong magic 47455420 != 5327f0e088587e42"),
    ("running", "n1:11:40 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_5:1 Got async event : port error"),
    # stalls that pass
    ("running", "E0000 00:00:1732100400.1 901 rendezvous.cc:31] This thread has been waiting for `first call to collective operation 0` for 10 seconds and may be stuck. Expected 2 threads to join the rendezvous, but not all of them arrived on time.\nE0000 00:00:1732100412.1 901 rendezvous.cc:42] Thread is unstuck! Warning above was a false-positive. Perhaps the timeout is too short."),
    ("running", "[1,0]<stderr>:[2026-11-20 10:00:00.1: W /tmp/pip/horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds."),
    ("running", "[rank0]:[E1120 10:00:01.2 ProcessGroupNCCL.cpp:1537] [PG ID 0 PG GUID 0 Rank 0] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."),
    # pasted states
    ("setting up", "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000"),
    ("setting up", "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tLink layer: InfiniBand\nCA 'mlx5_2'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled"),
    ("setting up", "|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |"),
    ("setting up", "CUDA Version                              : Not Found"),
    ("setting up", "      --fail-on-init-error=false"),
    ("setting up", "srun: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1"),
    # hosts and libraries
    ("running", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python, Ch 00000008"),
    ("running", "kernel: nfs: server n9 not responding, still trying\nkernel: nfs: server n9 OK"),
    ("running", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"),
    ("running", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("running", "Traceback (most recent call last):\n  File \"/job/data.py\", line 9, in fetch\n    return decode(path)\nOSError: image file is truncated"),
    ("running", "huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://hub.example.com/api"),
    ("running", "RuntimeError: DataLoader worker (pid(s) 4411, 4412) exited unexpectedly"),
    ("running", "ModuleNotFoundError: No module named 'apex'"),
    ("running", "OSError: [Errno 24] Too many open files: '/proc/1/stat'"),
    # the end of a job that ended well
    ("ending", "[rank1]:[W1120 10:09:00.100 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3, addr=[n0]:4411, remote=[n1]:29500): Broken pipe"),
    ("ending", "[rank1]:[W1120 10:09:00.100 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0 Rank 1] Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"),
    ("ending", "[rank1]:[W1120 10:09:00.100 ProcessGroupNCCL.cpp:1662] HeartbeatMonitor: Connection closed by peer"),
    ("ending", "[rank0]:[W1120 10:09:00.100 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources."),
    ("ending", "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 4 leaked semaphore objects to clean up at shutdown"),
    ("ending", "W1120 10:09:00.100 9 torch/distributed/elastic/agent/server/api.py:943] The node 'n1_9_0' has failed to send a keep-alive heartbeat to the rendezvous 'none' due to an error of type RendezvousConnectionError."),
]  # fmt: skip
