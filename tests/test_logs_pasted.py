"""What people paste beside a log (ss, ip addr, pip list, nvidia-smi, /proc, py-spy) is read as facts and joined with it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ringup.logs.read import read_logs


class Case(NamedTuple):
    """A log and what was pasted; the cause, what it says, and what a quoted line of the paste holds."""

    name: str
    rule: str
    says: str
    quotes: str
    text: str


CASES = (
    Case(
        "scancel",
        "job-cancelled",
        "ended from outside",
        "scancel 4471",
        "step 1 loss 2\nstep 2 loss 1\n[u@login ~]$ scancel 4471\n",
    ),
    Case(
        "ss-syn",
        "store-unreachable",
        "SYN-SENT",
        "SYN-SENT",
        "$ tail -2 rank1.log\n"
        "[W1126 08:11:02.1 socket.cpp:767] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.7.0.4, 29500).\n"
        "$ ss -tnp\n"
        "State     Recv-Q Send-Q Local Address:Port  Peer Address:Port Process\n"
        'SYN-SENT  0      1      10.7.0.5:41822      10.7.0.4:29500    users:(("python",pid=812,fd=9))\n'
        'ESTAB     0      0      10.7.0.5:22         10.7.0.1:51234    users:(("sshd",pid=100,fd=4))\n',
    ),
    Case(
        "ss-only",
        "peer-unreachable-on-interface",
        "10.7.0.4 does not answer",
        "SYN-SENT",
        "State     Recv-Q Send-Q Local Address:Port  Peer Address:Port Process\n"
        'LISTEN    0      128    0.0.0.0:22          0.0.0.0:*         users:(("sshd",pid=100,fd=4))\n'
        'SYN-SENT  0      1      10.7.0.5:41822      10.7.0.4:47113    users:(("python",pid=812,fd=9))\n'
        'SYN-SENT  0      1      10.7.0.5:41824      10.7.0.4:40021    users:(("python",pid=813,fd=9))\n',
    ),
    Case(
        "ss-listen",
        "port-in-use",
        "pt_main_thread (pid 77121) listens there",
        "77121",
        "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        "$ ss -ltnp\n"
        "State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n"
        'LISTEN 0      4096   0.0.0.0:29500      0.0.0.0:*         users:(("pt_main_thread",pid=77121,fd=12))\n',
    ),
    Case(
        "ip-down",
        "interface-name-missing",
        "listed as Down",
        "ib0: <BROADCAST",
        "node1:71:71 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ib0\n"
        "node1:71:71 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
        "$ ip addr\n"
        "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000\n"
        "    inet 127.0.0.1/8 scope host lo\n"
        "2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000\n"
        "    inet 10.7.0.5/24 brd 10.7.0.255 scope global eno1\n"
        "3: ib0: <BROADCAST,MULTICAST> mtu 4092 qdisc mq state DOWN group default qlen 256\n",
    ),
    Case(
        "pip-two",
        "two-nccl-libraries",
        "it is another one",
        "nvidia-nccl-cu11",
        "ImportError: /opt/conda/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclMemFree\n"
        "$ pip list | grep -i -E 'nccl|torch'\n"
        "nvidia-nccl-cu11         2.14.3\n"
        "nvidia-nccl-cu12         2.20.5\n"
        "torch                    2.4.1\n",
    ),
    Case(
        "smi-held",
        "gpu-out-of-memory",
        "process 99123, another one, holds 70.21 GiB",
        "99123",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free. Process 99123 has 70.21 GiB memory in use. Including non-PyTorch memory, this process has 7.80 GiB memory in use.\n"
        "$ nvidia-smi\n"
        "| Processes:                                                                              |\n"
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
        "|    0   N/A  N/A           99123      C   python                                71890MiB |\n",
    ),
    Case(
        "held-by-itself",
        "gpu-out-of-memory",
        "process 12345, perhaps this rank itself, seen from outside its container, holds 78.02 GiB",
        "12345",
        "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.15 GiB of which 1.12 GiB is free. Process 12345 has 78.02 GiB memory in use. Of the allocated memory 74.50 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated.\n",
    ),
    Case(
        "more-than-a-gpu",
        "gpu-out-of-memory",
        "rank 1 asked for 2048.00 GiB at once, more than its whole GPU has (139.80 GiB)",
        "2048.00",
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2048.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 126.94 GiB is free. Process 11891 has 984.00 MiB memory in use.\n",
    ),
    Case(
        "cmdline",
        "node-rank-duplicate",
        "node rank 0",
        "torchrun",
        "$ head -c 300 /proc/812/cmdline\n"
        "node0: torchrun\x00--nnodes\x002\x00--node_rank\x000\x00--nproc_per_node\x008\x00--master_addr\x0010.0.0.4\x00train.py\x00\n"
        "node1: torchrun\x00--nnodes\x002\x00--node_rank\x000\x00--nproc_per_node\x008\x00--master_addr\x0010.0.0.4\x00train.py\x00\n"
        "node0: torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 8/16 clients joined.\n",
    ),
    Case(
        "pyspy-one-line",
        "rank-busy-while-others-wait",
        "rank 1 is in _serialize",
        "_serialize",
        'Process 71 (rank 0): Thread 0x7f (active): "MainThread"  all_reduce (torch/distributed/distributed_c10d.py:2501)\n'
        'Process 72 (rank 1): Thread 0x7f (active): "MainThread"  _serialize (torch/serialization.py:944) save_checkpoint (trainer.py:411)\n'
        'Process 73 (rank 2): Thread 0x7f (active): "MainThread"  all_reduce (torch/distributed/distributed_c10d.py:2501)\n',
    ),
    Case(
        "cumem-two-sides",
        "environment-differs-between-nodes",
        "NCCL_CUMEM_ENABLE",
        "CUMEM_ENABLE",
        "trainer: gpu-1:100:140 [0] NCCL INFO NCCL_CUMEM_ENABLE set by environment to 0.\n"
        "engine: gpu-1:900:940 [1] NCCL INFO NCCL_CUMEM_ENABLE set by environment to 1.\n"
        "gpu-1:100:140 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
        "gpu-1:900:940 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
        "gpu-1:900:940 [1] transport/p2p.cc:270 NCCL WARN Cuda failure 1 'invalid argument'\n"
        "gpu-1:900:940 [1] NCCL INFO init.cc:1312 -> 1\n"
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n",
    ),
    Case(
        "addr-not-own",
        "store-unreachable",
        "10.7.0.40 is not among the addresses shown here (10.7.0.4)",
        "timed out after",
        "node1: [E1126 08:11:02.1 socket.cpp:1019] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.7.0.40, 29500).\n"
        "node1: torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.7.0.40, 29500).\n"
        "node0: $ ip -br addr\n"
        "node0: lo               UNKNOWN        127.0.0.1/8 ::1/128\n"
        "node0: eno1             UP             10.7.0.4/24 fe80::1/64\n"
        "node0: torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.\n",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_is_pasted_is_joined_with_the_log(tmp_path: Path, case: Case) -> None:
    log = tmp_path / "job.log"
    log.write_text(case.text, encoding="utf-8")
    first = read_logs([str(log)]).causes[0]
    assert first.rule == case.rule
    assert case.says in first.text
    assert any(case.quotes in event.text for event in first.evidence)


PEERS = (
    "State     Recv-Q Send-Q Local Address:Port  Peer Address:Port Process\n"
    'SYN-SENT  0      1      10.7.0.5:41822      10.7.0.4:29500    users:(("python",pid=812,fd=9))\n'
)


def test_a_connection_that_was_being_opened_is_no_failure_of_a_run_that_went_on(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(PEERS + "".join(f"[rank0]: step {n} loss 2.{n}\n" for n in range(9)), encoding="utf-8")
    assert read_logs([str(log)]).healthy


def test_the_tasks_that_jax_names_are_the_ranks_that_did_not_come(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. "
        "Barrier_id: PjRT_Client_Connect. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:113\n",
        encoding="utf-8",
    )
    first = read_logs([str(log)]).causes[0]
    assert (first.rule, first.ranks) == ("peers-never-joined", (3, 113))


REFUSED = (
    "[W822 03:54:49.6 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=15, addr=[n1]:60560, "
    "remote=[n0]:29500): failed to recv, got 0 bytes\n"
    "[W822 03:54:49.6 TCPStore.cpp:347] [c10d] TCP client failed to connect/validate to host n0:29500 - "
    "retrying (try=0, timeout=60000ms, delay=25ms): failed to recv, got 0 bytes\n"
)


def test_a_store_that_closes_each_connection_is_no_peer_that_died(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(REFUSED, encoding="utf-8")
    first = read_logs([str(log)]).causes[0]
    assert first.rule == "store-unreachable"
    assert "ends them at once" in first.text


def test_a_message_of_another_size_alone_does_not_show_that_settings_differ(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "n0:5:9 [0] transport/net_socket.cc:558 NCCL WARN NET/Socket : peer 10.4.0.2<40011> message truncated : "
        "receiving 1048576 bytes instead of 524288\n",
        encoding="utf-8",
    )
    assert [one.rule for one in read_logs([str(log)]).causes] == ["collective-mismatch"]
