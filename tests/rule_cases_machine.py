"""Cases of the rules about the machine around a job and what the job brings along; see rule_cases.py."""

from __future__ import annotations

from dataclasses import replace

from ringup.model import (
    Cluster,
    Container,
    FileFact,
    Interpreter,
    Library,
    Look,
    Memory,
    NcclAnswer,
    Numa,
    PastRuns,
    RdmaPort,
    Risen,
    ShmFile,
    Stuck,
)
from tests import clusters as c
from tests.rule_cases import AND_ALSO, FIRES, QUIET, Case, everywhere, on_node1, with_job

MIB = 1024**2


def gpus(base: Case = c.healthy, count: int = 8) -> Case:
    """The same cluster with GPUs on every node."""

    def build() -> Cluster:
        cluster = base()
        return replace(cluster, nodes=tuple(replace(n, gpu_count=count) for n in cluster.nodes))

    return build


FIRES["cgroup-limits-tight"] = on_node1(container=Container("docker", cpus=0.5))
# Two CPUs of time where only two may be used: another rule's.
QUIET["cgroup-limits-tight"] = everywhere(
    container=Container("docker", cpus=2.0, processes=4096), cpu_count=2
)
FIRES["numa-balancing-on"] = gpus(lambda: c.changed(c.healthy(3), "node1", numa=Numa(2, True)))
QUIET["numa-balancing-on"] = everywhere(numa=Numa(1, True))
FIRES["swap-in-use"] = on_node1(memory=Memory(8 * c.GIB, c.GIB, 0.2), memory_bytes=64 * c.GIB)
QUIET["swap-in-use"] = on_node1(memory=Memory(8 * c.GIB, MIB, 0.0), memory_bytes=64 * c.GIB)
FIRES["oom-killer-ran"] = on_node1(rises=(Risen("memory", 3.0, {"oom_kill": 1}),))
QUIET["oom-killer-ran"] = everywhere(memory=Memory(oom_kills=4))  # Long ago, and on all alike.
FIRES["stuck-processes"] = on_node1(
    stuck=Stuck(200, 0, 0, (c.process(evidence="waiting in the kernel for 2 s and more"),))
)
QUIET["stuck-processes"] = on_node1(stuck=Stuck(200, 5, 2))
FIRES["shm-cleaned-by-systemd"] = on_node1(remove_ipc="yes", uid=1000)
QUIET["shm-cleaned-by-systemd"] = on_node1(
    remove_ipc="yes", uid=1000, container=Container(has_login_session=True)
)
FIRES["yama-forbids-ptrace"] = on_node1(ptrace_scope=3)
QUIET["yama-forbids-ptrace"] = on_node1(ptrace_scope=1, uid=1000)
FIRES["nfs-mount-slow"] = on_node1(looks=(Look("/data", 2.5, answered=False),))
QUIET["nfs-mount-slow"] = on_node1(looks=(Look("/data", 0.4),))

FIRES["fork-of-code-differs"] = lambda: c.changed(
    c.changed(c.healthy(), "node0", revision="a" * 40), "node1", revision="b" * 40
)
# The script itself differs: that is said already.
QUIET["fork-of-code-differs"] = lambda: c.changed(
    FIRES["fork-of-code-differs"](),
    "node1",
    script=FileFact("/home/ada/project/train.py", True, "cd" * 32, 2000),
)

WHEEL = Library("/opt/venv/nvidia/nccl/lib/libnccl.so.2", "2.28.9", "wheel")
OTHER = Library("/opt/nccl/lib/libnccl.so.2", "2.18.3", "LD_LIBRARY_PATH")
FIRES["two-nccl-libraries"] = everywhere(
    nccl_libraries=(OTHER, WHEEL), nccl_answer=NcclAnswer(OTHER.path, version="2.18.3")
)
AND_ALSO["two-nccl-libraries"] = {"two-nccl-libraries"}  # On each of the two nodes.
# Two are there, and the right one is loaded.
QUIET["two-nccl-libraries"] = everywhere(
    nccl_libraries=(OTHER, WHEEL), nccl_answer=NcclAnswer(WHEEL.path, version="2.28.9")
)

EFA = (RdmaPort("rdmap0s6", 1, "ACTIVE", link_layer="Unspecified", driver="efa", can_open=True),)
FIRES["network-plugin-missing"] = gpus(on_node1(rdma_ports=EFA, product="Amazon EC2 p5.48xlarge"))
QUIET["network-plugin-missing"] = gpus(
    everywhere(rdma_ports=EFA, nccl_plugins=("/opt/amazon/ofi-nccl/lib/libnccl-net.so",))
)
FIRES["timeout-longer-than-scheduler"] = with_job(c.healthy, time_left_s=300.0, backend="nccl")
QUIET["timeout-longer-than-scheduler"] = with_job(c.healthy, time_left_s=900.0, backend="nccl")
FIRES["flight-recorder-off"] = gpus(everywhere(interpreter=replace(c.TORCH, torch="2.4.1")))
QUIET["flight-recorder-off"] = everywhere(interpreter=Interpreter("/usr/bin/python3", "3.11.2", "2.4.1"))

FIRES["dataloader-can-starve"] = with_job(on_node1(cpu_count=16), arguments=("--num-workers=24",))
AND_ALSO["dataloader-can-starve"] = {"dataloader-can-starve"}  # On each of the two nodes.
QUIET["dataloader-can-starve"] = with_job(c.healthy, arguments=("--num-workers", "8"), nproc=2)
FIRES["shm-left-over"] = on_node1(
    shm_files=(
        ShmFile("torch_4242_x_0", 200 * MIB, "ada", 9000.0, "gone"),
        ShmFile("nccl-AbCdEf", 40 * MIB, "ada", 9000.0),
    )
)
QUIET["shm-left-over"] = on_node1(
    shm_files=(
        ShmFile("torch_4242_x_0", 200 * MIB, "ada", 9000.0, "lives"),
        ShmFile("nccl-AbCdEf", 400 * MIB, "ada", 60.0),
    )
)
PAST = PastRuns(9, 4, 3, 5, ("rank-killed", "link-flapped"))
FIRES["node-failed-often"] = lambda: replace(c.healthy(), past={"node1": PAST})
QUIET["node-failed-often"] = lambda: replace(c.healthy(), past={"node1": replace(PAST, ended_lately=2)})
