"""What surrounds a job, read from trees of files as kernels and containers lay them out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ringup.agent.facts import machine as agent_machine
from ringup.agent.facts import work as agent_work
from ringup.model import Container, Memory, Node, Numa
from tests.test_facts import ask, request_of

INF = float("inf")


def lay(root: Path, files: Mapping[str, str]) -> str:
    """A tree with these files; its path."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def machine(root: Path, files: Mapping[str, str], env: Mapping[str, str] | None = None) -> Node:
    return ask(request_of(root=lay(root, files)), parts=("machine",), env=env)


# Containers.


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        # A container of version 2 sees its own cgroup as the top.
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/cpu.max": "150000 100000\n",
                "sys/fs/cgroup/memory.max": "1073741824\n",
                "sys/fs/cgroup/pids.max": "max\n",
                "sys/fs/cgroup/memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
            },
            Container("", 1.5, 1 << 30, INF, 2),
        ),
        # The tightest of all above counts; what was killed above is other jobs' too.
        (
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "max 100000\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/slurm/cpu.max": "800000 100000\n",
                "sys/fs/cgroup/slurm/job_7/memory.events": "oom_kill 9\n",
            },
            Container("", 2.0),
        ),
        # The machine's path in a container that is shown its own cgroup alone.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 4\n",
            },
            Container("", INF, INF, INF, 4),
        ),
        # Version 1: no limit is -1, and 2^63 less a page.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n2:pids:/\n1:name=x:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 1\n",
                "sys/fs/cgroup/pids/pids.max": "512\n",
            },
            Container("", 0.5, INF, 512, 1),
        ),
        # In a container of version 1 the path is the machine's, and only the mount's top is there.
        (
            {
                "proc/self/cgroup": "3:cpu:/kubepods/pod1/abc\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "run/.containerenv": "",
            },
            Container("podman", 4.0),
        ),
        (
            {"proc/self/cgroup": "0::/user.slice/user-7.slice/session-3.scope\n"},
            Container(has_login_session=True),
        ),
    ],
)
def test_the_tightest_limit_of_all_cgroups_counts(
    tmp_path: Path, files: dict[str, str], wanted: Container
) -> None:
    assert machine(tmp_path, files).container == wanted


GROUP = "sys/fs/cgroup/job/step"
OLD_GROUP = "sys/fs/cgroup/memory/job"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/self/cgroup": "0::/job/step\n", f"{GROUP}/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                f"{GROUP}/memory.max": "max\n",
                f"{GROUP}/memory.current": "500\n",
                "sys/fs/cgroup/job/memory.max": "4096\n",
                "sys/fs/cgroup/job/memory.current": "3000\n",
                "sys/fs/cgroup/job/memory.stat": "anon 2000\ninactive_file 904\n",
            },
            2000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n",
                f"{OLD_GROUP}/memory.limit_in_bytes": "1000\n",
                f"{OLD_GROUP}/memory.usage_in_bytes": "1200\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "99\n",
            },
            0,
        ),
    ],
)
def test_what_a_bench_may_take_of_a_limited_memory(
    tmp_path: Path, files: dict[str, str], left: int | None
) -> None:
    assert agent_machine.memory_left(lay(tmp_path, files)) == left


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"var/run/secrets/kubernetes.io/x": ""}, {}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/images/a.sif"}, "apptainer"),
        ({"run/systemd/container": "lxc\n"}, {}, "lxc"),
        ({}, {}, ""),
    ],
)
def test_each_kind_of_container_is_known_by_what_it_leaves(
    tmp_path: Path, files: dict[str, str], env: dict[str, str], kind: str
) -> None:
    node = machine(tmp_path, {"proc/self/cgroup": "0::/\n", **files}, env)
    assert node.container.kind == kind


def test_without_a_proc_no_limit_is_not_no_limits(tmp_path: Path) -> None:
    node = machine(tmp_path, {"sys/fs/cgroup/cpu.max": "1 1\n"})
    assert "No such file" in node.unknown["container"] and "not there" in node.unknown["ptrace_scope"]
    assert {"memory", "numa"} <= set(node.unknown)


# Memory, NUMA, settings.

SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


def test_swap_on_a_disk_counts_and_compressed_memory_does_not(tmp_path: Path) -> None:
    rows = "/dev/sda2                               partition\t2048\t\t1024\t\t-2\n"
    rows += "/swap\\040file                           file\t\t1024\t\t512\t\t-3\n"
    rows += "/dev/zram0                              partition\t4096\t\t4096\t\t100\n"
    files = {
        "proc/swaps": SWAPS + rows,
        "proc/vmstat": "nr_free_pages 7\noom_kill 3\npswpin 9\n",
        "proc/pressure/memory": "some avg10=0.00 avg60=2.50 avg300=0.00 total=1\nfull avg60=9.00\n",
    }
    assert machine(tmp_path, files).memory == Memory(3072 * 1024, 1536 * 1024, 0.025, 3)


def test_a_kernel_without_swap_numa_or_pressure_is_no_riddle(tmp_path: Path) -> None:
    node = machine(tmp_path, {"proc/vmstat": "nr_free_pages 7\n", "sys/devices/system/cpu/online": "0\n"})
    assert node.memory == Memory(0, 0, None, 0) and node.numa == Numa(1, False)
    assert not {"memory", "numa"} & set(node.unknown)


def test_memory_nodes_are_counted_and_the_switch_read(tmp_path: Path) -> None:
    files = {f"sys/devices/system/node/node{k}/cpulist": "0\n" for k in range(4)}
    files |= {"sys/devices/system/node/online": "0-3\n", "proc/sys/kernel/numa_balancing": "2\n"}
    assert machine(tmp_path, files).numa == Numa(4, True)


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({}, "no"),
        ({"run/systemd/system/x": ""}, ""),
        ({"run/systemd/system/x": "", "etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n"}, ""),
        ({"run/systemd/system/x": "", "etc/systemd/logind.conf": "[Login]\nRemoveIPC = No\n"}, "no"),
        (
            {
                "run/systemd/system/x": "",
                "etc/systemd/logind.conf": "RemoveIPC=no\n",
                "usr/lib/systemd/logind.conf.d/90-vendor.conf": "RemoveIPC=yes\n",
                "etc/systemd/logind.conf.d/10-site.conf": "RemoveIPC=no\n",
            },
            "yes",
        ),
        (
            {
                "run/systemd/system/x": "",
                "usr/lib/systemd/logind.conf.d/50-a.conf": "RemoveIPC=yes\n",
                "etc/systemd/logind.conf.d/50-a.conf": "RemoveIPC=no\n",
            },
            "no",
        ),
        ({"run/systemd/system/x": "", "var/lib/systemd/linger/ada": ""}, "no"),
    ],
)
def test_remove_ipc_is_read_in_logind_confs_own_order(
    tmp_path: Path, files: dict[str, str], value: str
) -> None:
    node = machine(tmp_path, {"proc/self/cgroup": "0::/\n", **files}, {"USER": "ada"})
    assert node.remove_ipc == value


def test_the_machines_maker_and_its_drivers_are_told(tmp_path: Path) -> None:
    files = {
        "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/class/dmi/id/product_name": "p5.48xlarge\n",
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
    }
    node = machine(tmp_path, files)
    assert (node.product, node.ptrace_scope) == ("Amazon EC2 p5.48xlarge", 1)


# Files and paths.


def test_files_of_runs_in_shared_memory_are_told_with_their_makers(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name, size in (
        ("nccl-AbC", 5000),
        (f"torch_{gone.pid}_7_0", 9000),
        (f"torch_{os.getpid()}_7_1", 10),
        ("sem.of_a_database", 1),
        ("x", 1),
    ):
        (tmp_path / "dev" / "shm").mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / "shm" / name).write_bytes(b"x" * size)
    (tmp_path / "proc").symlink_to("/proc")
    node = ask(request_of(root=str(tmp_path)), parts=("machine",))
    found = {f.name: (f.owner, f.user) for f in node.shm_files}
    me = str(os.getuid())
    assert found == {
        f"torch_{gone.pid}_7_0": ("gone", me),
        "nccl-AbC": ("unknown", me),
        f"torch_{os.getpid()}_7_1": ("lives", me),
    }
    assert next(iter(found)) == f"torch_{gone.pid}_7_0"  # the largest first
    assert all(f.age_s < 60 for f in node.shm_files)


def test_each_file_system_of_the_job_is_told_once(tmp_path: Path) -> None:
    env = {"TMPDIR": "/dev/shm", "NCCL_DEBUG_FILE": str(tmp_path / "%h.log")}
    request = request_of(chdir=str(tmp_path), script="no.py", paths=["/", str(tmp_path)])
    node = ask(request, parts=("work",), env=env)
    assert [d.path for d in node.disks] == [str(tmp_path), "/dev/shm"]
    assert [(x.path, x.answered) for x in node.looks] == [
        (str(tmp_path), True), ("/dev/shm", True), (str(tmp_path / "no.py"), True), ("/", True),
    ]  # fmt: skip


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, env={**env, **names}, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("how", ["loose", "packed", "detached", "worktree", "below"])
def test_the_commit_is_the_one_git_names(tmp_path: Path, how: str) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q", "-b", "main")
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    where = main
    if how == "packed":
        git(main, "pack-refs", "--all")
    if how == "detached":
        git(main, "checkout", "-q", "--detach")
    if how == "worktree":
        where = tmp_path / "other"
        git(main, "worktree", "add", "-q", "-b", "side", str(where))
        git(where, "commit", "-q", "--allow-empty", "-m", "two")
    if how == "below":
        where = main / "a" / "b"
        where.mkdir(parents=True)
    node = ask(request_of(chdir=str(where)), parts=("work",))
    assert node.revision == git(where, "rev-parse", "HEAD")


def test_no_repository_is_no_commit(tmp_path: Path) -> None:
    assert ask(request_of(chdir=str(tmp_path)), parts=("work",)).revision == ""


# Processes.


def test_zombies_are_counted_with_whose_they_are() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    with open(f"/proc/{child.pid}/stat", encoding="utf-8") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
    stuck = ask(request_of(), parts=("processes",)).stuck
    child.wait()
    assert stuck.own_zombies >= 1 and stuck.zombies >= stuck.own_zombies and stuck.processes > stuck.zombies


def test_ringups_own_children_are_no_zombies_of_the_node(tmp_path: Path) -> None:
    # Named as the launcher is: 40 ended children that nobody has waited for yet.
    source = (
        "import os, sys\nfor _ in range(40): os.fork() or os._exit(0)\nprint(flush=True)\nsys.stdin.read()"
    )
    (tmp_path / "ringup.py").write_text(source)
    before = ask(request_of(), parts=("processes",)).stuck
    words = [sys.executable, "-m", "ringup"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=env) as parent:
        assert parent.stdout and parent.stdin
        parent.stdout.readline()
        node = ask(request_of(), parts=("processes",))
        parent.stdin.close()
    assert node.stuck.own_zombies < before.own_zombies + 40
    assert all(process.pid != parent.pid for process in node.leftovers)


# Libraries.


def test_every_nccl_a_job_could_load_is_told_with_its_release_and_plugins_apart(tmp_path: Path) -> None:
    site, other = tmp_path / "site", tmp_path / "other"
    for name in ("torch", "nvidia/nccl/lib", "nvidia_nccl_cu12-2.27.3.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    (site / "nvidia" / "nccl" / "lib" / "libnccl.so.2").touch()
    other.mkdir()
    (other / "libnccl.so.2.18.3").touch()
    (other / "libnccl.so.2").symlink_to("libnccl.so.2.18.3")
    (other / "libnccl-net-ofi.so").touch()
    env = {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": f"{tmp_path}/none:{other}"}
    node = ask(request_of(root=str(tmp_path)), parts=("software",), env=env)
    found = [(x.source, x.path, x.version) for x in node.nccl_libraries if x.path.startswith(str(tmp_path))]
    assert found == [
        ("LD_LIBRARY_PATH", str(other / "libnccl.so.2"), "2.18.3"),
        ("wheel", str(site / "nvidia/nccl/lib/libnccl.so.2"), "2.27.3"),
    ]
    assert str(other / "libnccl-net-ofi.so") in node.nccl_plugins


def ended(pid: int) -> str:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return "Z"


def stuck(pid: int) -> str:
    return "D"


@pytest.mark.parametrize(("seen", "answered"), [(ended, True), (stuck, False)])
def test_a_path_that_answers_while_we_have_no_cpu_is_not_slow(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[[int], str], answered: bool
) -> None:
    read_end, write_end = os.pipe()

    def stat_each(paths: list[str], answer: int) -> None:
        os.close(write_end)
        os.read(read_end, 1)  # until the state is asked for, after the time for an answer
        if answered:
            os.write(answer, b"0.001\n")
        else:
            signal.pause()

    def state(pid: int) -> str:
        os.write(write_end, b".")
        return seen(pid)

    monkeypatch.setattr(agent_work, "LOOK_S", 0.05)
    monkeypatch.setattr(agent_work, "stat_each", stat_each)
    monkeypatch.setattr(agent_work, "state", state)
    looks = agent_work.looks(["/data"])
    os.close(read_end), os.close(write_end)
    assert [look.get("answered", True) for look in looks] == [answered]


@pytest.mark.parametrize(("queued_s", "late"), [(4.0, False), (0.1, True)])
def test_a_path_that_waits_for_a_cpu_is_not_slow(
    monkeypatch: pytest.MonkeyPatch, queued_s: float, late: bool
) -> None:
    """A sample of its state may meet a moment's sleep."""
    counted = iter([0.0, queued_s, queued_s, queued_s])
    monkeypatch.setattr(agent_work, "LOOK_S", 0.05)
    monkeypatch.setattr(agent_work, "waited_s", lambda pid: next(counted) * 0.01)
    monkeypatch.setattr(agent_work, "stat_each", lambda paths, answer: signal.pause())
    asked: list[int] = []
    monkeypatch.setattr(agent_work, "state", lambda pid: asked.append(pid) or "S")
    assert [look["answered"] for look in agent_work.looks(["/data"])] == [False]
    assert len(asked) == (1 if late else 2)  # the second time it had no wait for a CPU
