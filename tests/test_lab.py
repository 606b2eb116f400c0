"""The lab itself: hosts see each other, every fault does what it says and heals, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.lab import Lab, Nic
from tests.lab.faults import FAULTS, gpu

pytestmark = [pytest.mark.lab, pytest.mark.slow]
Probe = Callable[[Lab], object]

CONNECT = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("open")
except TimeoutError:
    print("silence")
except OSError as exc:
    print(errno.errorcode.get(exc.errno or 0, type(exc).__name__))
"""


# --- what the probes see: the same question while healthy, broken and healed ----------------------


def connects(source: str, target: str, port: int, patience_s: float = 3) -> Probe:
    """Whether `source` opens a connection; `target` is an address or a name as `source` understands it."""
    argv = [sys.executable, "-I", "-S", "-c", CONNECT, target, str(port), str(patience_s)]
    return lambda lab: lab.run(source, argv, check=True).stdout.strip()


def says(host: str, script: str) -> Probe:
    """What a shell on the host prints."""
    return lambda lab: lab.run(host, ["sh", "-c", script], cwd="/").stdout.strip()


def python_says(host: str, script: str) -> Probe:
    """What this interpreter prints there."""
    return lambda lab: lab.run(host, [sys.executable, "-c", script], cwd="/").stdout.strip()


def ssh_says(host: str, script: str = "echo in", patience_s: float = 60) -> Probe:
    """What ssh from outside to the host prints, or its own complaint; `hangs` past the patience."""

    def probe(lab: Lab) -> str:
        try:
            done = lab.ssh(host, script, timeout_s=patience_s)
        except subprocess.TimeoutExpired:
            return "hangs"
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    return probe


def inner_ssh(script: str = "true", patience_s: int = 50) -> Probe:
    """What the host node0's own ssh to node1 says, without the words that differ from run to run."""

    def probe(lab: Lab) -> str:
        done = lab.run("node0", ["ssh", "-o", f"ConnectTimeout={patience_s}", "node1", script])
        return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1].strip()

    return probe


def both(*probes: Probe) -> Probe:
    return lambda lab: tuple(probe(lab) for probe in probes)


def resolves(host: str, name: str) -> Probe:
    return says(host, f"getent ahosts {name} | awk '{{print $1}}' | sort -u | tr '\\n' ' '")


def stale_ranks(lab: Lab) -> list[tuple[str, str]]:
    left = lab.processes("node0", "earlier/train.py")
    return [("orphan" if p.ppid == lab.hosts[0].pid else "", p.environ["RANK"]) for p in left]


HALF_LOST = "ping -c 60 -i 0.002 -W 1 10.0.0.10 | sed -n 's/.* \\([0-9.]*\\)% packet loss.*/\\1/p'"
PINGS = "for size in 56 1450; do ping -qc1 -W1 -s $size node1 >/dev/null; echo $?; done"
LARGE = "head -c 40000 /dev/zero | tr '\\0' x"
TORCH = """
import importlib.metadata, importlib.util, pathlib, runpy
try:
    print(importlib.metadata.version("torch"), end=" ")
except importlib.metadata.PackageNotFoundError:
    print("none", end=" ")
spec = importlib.util.find_spec("torch")
print(spec and runpy.run_path(str(pathlib.Path(spec.origin).with_name("version.py")))["__version__"])
"""

# fault: (options, probe, what it sees while broken); a callable judges what cannot be written down.
LOOKS = "timeout -s KILL 5 stat /run/dead >/dev/null 2>&1; echo $?"
# What stays in a state: on a busy machine others are in it for a moment.
STAYS = "for try in 1 2 3 4 5; do grep -l '^State:.{}' /proc/[0-9]*/status 2>/dev/null; sleep 0.1; done"
STAYS += " | sort | uniq -c | grep -c '^ *5 '"
CASES: dict[str, tuple[dict[str, Any], Probe, Any]] = {
    "article-002": (
        {},
        both(resolves("node0", "node0"), resolves("node1", "node0"), connects("node1", "10.12.5.64", 22)),
        ("10.12.5.64", "90.91.33.64", "silence"),
    ),
    "article-002-no-route": ({}, connects("node1", "10.12.5.64", 22), "ENETUNREACH"),
    "asym-route": (
        {},
        both(connects("node1", "10.1.0.10", 22), connects("node1", "10.0.0.10", 22)),
        ("silence", "open"),
    ),
    "clock": (
        {},
        both(ssh_says("node1", "echo $(($(date +%s) / 80))"), says("node0", "echo ok")),
        lambda seen, before: seen != before,
    ),
    "conntrack-full": ({}, says("node1", "cat /proc/sys/net/netfilter/nf_conntrack_count"), "65530"),
    "crc-errors": (
        {},
        says("node1", "cat /sys/class/net/enp99s0/statistics/rx_crc_errors"),
        lambda seen, before: (len(seen), before) == (8, "0"),
    ),
    "data-cut": ({}, both(connects("node0", "node1", 29600), ssh_says("node1")), ("silence", "in")),
    "duplicate-address": (
        {},
        says("node1", "hostname -I | tr ' ' '\\n' | grep -v :"),
        "10.0.0.11\n10.0.0.10",
    ),
    "full-tmp": ({}, says("node1", "echo text >/tmp/new && cat /tmp/new; rm /tmp/new"), ""),
    "fw-highports": (
        {"ports": "29600"},
        both(connects("node1", "node0", 29600), connects("node1", "node0", 29700)),
        ("open", "silence"),
    ),
    "fw-oneway": (
        {},
        both(
            connects("node1", "node0", 29600),
            connects("node1", "node0", 22),
            connects("node0", "node1", 29600),
        ),
        ("silence", "open", "open"),
    ),
    "fw-ports": (
        {"ports": "29600"},
        both(connects("node1", "node0", 29600), connects("node1", "node0", 29700)),
        ("silence", "open"),
    ),
    "fw-reject": ({"ports": "29600"}, connects("node1", "node0", 29600), "ECONNREFUSED"),
    "gpu-machines": (
        {"what": "lost"},
        both(ssh_says("node1", "nvidia-smi -L | wc -l"), ssh_says("node0", "nvidia-smi -L | wc -l")),
        ("3", "4"),
    ),
    "half-duplex": ({}, says("node1", "cat /sys/class/net/enp99s0/duplex"), "half"),
    "host-off": ({}, connects("node0", "node1", 22, 60), "EHOSTUNREACH"),
    "ifname-absent": (
        {},
        both(ssh_says("node1", "echo /$GLOO_SOCKET_IFNAME"), says("node1", "echo /$GLOO_SOCKET_IFNAME")),
        ("/eth7", "/eth7"),
    ),
    "link-cut": ({}, connects("node0", "node1", 22), "silence"),
    "loss": ({"percent": 30}, says("node1", HALF_LOST), lambda seen, _: 5 < float(seen) < 95),
    "loss-ssh": ({"every": 3}, says("node1", HALF_LOST), lambda seen, _: 5 < float(seen) < 95),
    "low-memlock": ({}, ssh_says("node1", "ulimit -l"), "64"),
    "low-nofile": ({}, ssh_says("node1", "ulimit -n"), "64"),
    "mtu": ({"size_bytes": 1400}, says("node1", "cat /sys/class/net/enp99s0/mtu"), "1400"),
    "mtu-blackhole": ({}, says("node0", PINGS), "0\n1"),
    "mtu-blackhole-after-login": ({}, both(ssh_says("node1"), ssh_says("node1", LARGE, 2)), ("in", "hangs")),
    "mtu-blackhole-ssh": ({}, ssh_says("node1", patience_s=2), "hangs"),
    "name-dead": (
        {},
        both(resolves("node1", "node0"), connects("node1", "node0", 22, 60)),
        ("10.0.0.252", "EHOSTUNREACH"),
    ),
    "name-docker0": (
        {},
        both(resolves("node0", "node0"), says("node0", "ip -br addr show docker0 | cut -c 33-46")),
        ("172.17.0.1", "172.17.0.1/16"),
    ),
    "name-ipv6-only": (
        {},
        both(resolves("node1", "node0"), connects("node1", "node0", 22)),
        ("fd00:99::a", "open"),
    ),
    "name-loopback": (
        {},
        both(resolves("node0", "node0"), resolves("node1", "node0")),
        ("127.0.1.1", "10.0.0.10"),
    ),
    "name-unknown": ({}, both(resolves("node1", "node0"), resolves("node0", "node0")), ("", "10.0.0.10")),
    "names-unknown": (
        {},
        both(resolves("node1", "node0"), resolves("node0", "node0"), inner_ssh()),
        ("", "", "exit 0"),
    ),
    "nic-down": (
        {},
        says("node1", "cat /sys/class/net/enp99s0/operstate; ip route | grep -c default"),
        "down\n0",
    ),
    "no-carrier": ({}, says("node1", "cat /sys/class/net/enp99s0/carrier"), "0"),
    "no-default-route": ({}, connects("node1", "192.0.2.1", 80), "ENETUNREACH"),
    "own-name-unknown": ({}, both(resolves("node1", "node1"), resolves("node0", "node1")), ("", "10.0.0.11")),
    "port-busy": (
        {},
        both(connects("node1", "node0", 29500), lambda lab: lab.listening("node0", 29500)),
        ("open", True),
    ),
    "rdma": (
        {"kind": "roce", "changes": {"mlx5_1/ports/1/state": "1: DOWN"}},
        says("node1", "cat /sys/class/infiniband/*/ports/1/state; ls /sys/class/net | grep -c eth"),
        "4: ACTIVE\n1: DOWN\n2",
    ),
    "rdma-counters": (
        {},
        says("node1", "cat /sys/class/infiniband/mlx5_1/ports/1/counters/symbol_error"),
        lambda seen, before: seen.isdigit() and before == "",
    ),
    "short-backlog": ({"host": "node1"}, says("node1", "cat /proc/sys/net/core/somaxconn"), "12"),
    "slow-nic": ({}, says("node1", "tc qdisc show dev enp99s0 | grep -o 'rate [^ ]*'"), "rate 100Mbit"),
    "small-buffers": ({}, says("node1", "cat /proc/sys/net/ipv4/tcp_wmem | cut -f 3"), "212992"),
    "small-shm": ({}, says("node1", "df --output=size /dev/shm | tail -n 1"), "64"),
    "ssh-dropped": (
        {},
        inner_ssh(patience_s=8),
        "ssh: connect to host 10.0.0.11 port 22: Connection timed out",
    ),
    "ssh-key-changed": ({}, inner_ssh(), "Host key verification failed."),
    "ssh-key-refused": ({}, inner_ssh(), "root@10.0.0.11: Permission denied (publickey)."),
    "ssh-key-unknown": ({}, both(inner_ssh(), ssh_says("node1")), ("Host key verification failed.",) * 2),
    "ssh-name-unknown": (
        {},
        inner_ssh(),
        "ssh: Could not resolve hostname node1: Temporary failure in name resolution",
    ),
    "ssh-no-route": ({}, inner_ssh(), "ssh: connect to host 10.0.0.11 port 22: No route to host"),
    "ssh-refused": ({}, inner_ssh(), "ssh: connect to host 10.0.0.11 port 22: Connection refused"),
    "ssh-slow-shell": ({"delay_s": 60}, ssh_says("node1", patience_s=2), "hangs"),
    "stale-run": ({}, stale_ranks, [("orphan", "0")]),
    "strict-twins": ({}, says("node1", "cat /proc/sys/net/ipv4/conf/enp100s0/rp_filter"), "1"),
    "torch-missing": ({}, python_says("node1", TORCH), "none None"),
    "torch-version": ({}, python_says("node1", TORCH), "2.6.0 2.6.0"),
    "venv-missing": ({}, both(says("node1", f"ls {sys.executable}"), says("node0", "echo ok")), ("", "ok")),
    "blind": (
        {},
        says("node1", "ls /proc /sys | grep -v '^[0-9]' | wc -w"),
        lambda seen, before: int(seen) == 2 < int(before),
    ),
    "cgroup-tight": (
        {},
        says("node1", "cat /sys/fs/cgroup/cpu.max 2>/dev/null || echo none"),
        "50000 100000",
    ),
    "cloned": (
        {},
        both(*(says(n, "cat /proc/sys/kernel/random/boot_id") for n in ("node0", "node1"))),
        lambda seen, before: len(set(seen)) == 1 < len(set(before)),
    ),
    "commits-differ": ({}, says("node1", "cat /root/project/.git/HEAD 2>/dev/null || echo none"), "b" * 40),
    "dead-mount": ({}, says("node1", LOOKS), "137"),
    "dead-tmpdir": ({}, ssh_says("node1", "echo /$TMPDIR"), "//run/dead"),
    "full-tmpdir": ({}, ssh_says("node1", "df --output=pcent ${TMPDIR:-/dev/shm} | tail -n 1"), "100%"),
    "nccl-conf": (
        {},
        says("node1", "cat /root/.nccl.conf 2>/dev/null || echo none"),
        "NCCL_SOCKET_NTHREADS=2",
    ),
    "no-python": ({}, ssh_says("node1", "/usr/bin/python3 -c 0 2>/dev/null; echo $? $PATH"), "126 /run/bin"),
    "numa-balancing": (
        {},
        says("node1", "ls -d /sys/devices/system/node/node* | wc -l; cat /proc/sys/kernel/numa_balancing"),
        "2\n1",
    ),
    "oom-killed": (
        {},
        says("node1", "grep oom_kill /sys/fs/cgroup/memory.events 2>/dev/null || echo none"),
        "oom_kill 3",
    ),
    "ordinary-user": (
        {},
        both(*(says(n, "getent passwd ada | cut -d: -f 3") for n in ("node0", "node1"))),
        ("4242", "4242"),
    ),
    "ptrace-forbidden": (
        {},
        says("node1", "cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo none; hostname"),
        "3\nnode1",
    ),
    "rc-prints": ({}, ssh_says("node1", "echo in"), "Welcome to the cluster\nin"),
    "remove-ipc": (
        {},
        says("node1", "cat /run/systemd/logind.conf.d/* 2>/dev/null || echo none"),
        "[Login]\nRemoveIPC=yes",
    ),
    "same-name": ({}, says("node1", "hostname"), "node0"),
    "script-elsewhere": (
        {},
        both(*(says(n, "ls -d /root/project 2>/dev/null || echo none") for n in ("node0", "node1"))),
        ("/root/project", "none"),
    ),
    "shm-left": ({}, says("node1", "ls /dev/shm | grep -v faketime"), "torch_99999_1234567890_0"),
    "stuck-process": ({}, says("node1", STAYS.format("D")), "1"),
    "swapping": ({}, says("node1", "wc -l < /proc/swaps"), "2"),
    "counters-of-memory": ({"oom_kills": 7}, says("node1", "grep oom_kill /proc/vmstat"), "oom_kill 7"),
    "torch-with-cuda": (
        {},
        ssh_says("node0", "cat $PYTHONPATH/torch/version.py 2>/dev/null || echo none"),
        "__version__ = '2.8.0'\ncuda = '12.8'",
    ),
    "two-nccl": (
        {},
        both(ssh_says("node1", "echo /$LD_PRELOAD"), ssh_says("node0", "echo /$LD_PRELOAD $PYTHONPATH")),
        ("//run/libnccl.so.2.18.3", "/ /run/site"),
    ),
    "variables": ({"A": "b c"}, ssh_says("node1", "echo /$A"), "/b c"),
    "zombies": ({}, says("node1", STAYS.format("Z")), "60"),
}
NEEDS_TORCH = {"torch-missing", "torch-version"}
# Their probe is no answer while healthy: it would take as long as the fault allows to say so.
ONCE = {"ssh-reset", "power-off"}


@pytest.fixture(scope="module")
def listeners() -> Iterator[Callable[[Lab], Lab]]:
    """Two ports on every host that somebody listens on."""
    had: set[int] = set()

    def start(lab: Lab) -> Lab:
        if id(lab) not in had:
            had.add(id(lab))
            for host in lab.hosts:
                for port in (29600, 29700):
                    lab.popen(host, ["nc", "-lk", str(port)], stdin=subprocess.DEVNULL)
                for port in (29600, 29700):
                    lab.sh(host, f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.01; done")
        return lab

    return start


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.torch] if n in NEEDS_TORCH else []) for n in sorted(CASES)]
)
def test_a_fault_does_what_it_says_and_heals(
    name: str, shared_lab: Callable[..., Lab], listeners: Callable[[Lab], Lab]
) -> None:
    if name == "gpu-machines" and gpu.missing():
        pytest.skip(f"{gpu.missing()} not here")
    lab = listeners(shared_lab(**FAULTS[name].wants))
    options, probe, wanted = CASES[name]
    if name == "ssh-slow-shell" or name.startswith("mtu-blackhole-"):
        assert "in" in str(ssh_says("node1")(lab))
        before = None
    else:
        before = probe(lab)
    with lab.broken(name, **options):
        seen = probe(lab)
        if callable(wanted):
            assert wanted(seen, before)
        else:
            assert seen == wanted
            assert before != wanted
    if before is None:
        assert ssh_says("node1")(lab) == "in"
    elif name != "clock":
        assert probe(lab) == before


def test_every_fault_has_a_case() -> None:
    assert set(FAULTS) == set(CASES) | ONCE


def test_a_host_without_power_comes_back_without_its_processes(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    boot = lab.host(1).state.joinpath("boot_id").read_text()
    child = lab.popen("node1", ["sleep", "1000"])
    with lab.broken("power-off", host="node1"):
        assert child.wait() == -signal.SIGKILL and connects("node0", "node1", 22, 60)(lab) == "EHOSTUNREACH"
    assert ssh_says("node1", "cat /proc/sys/kernel/random/boot_id")(lab) + "\n" != boot


# --- hosts ----------------------------------------------------------------------------------------


def test_hosts_reach_each_other_by_name_and_are_told_apart(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    assert lab.run(0, ["ssh", "node1", "hostname"]).stdout == "node1\n"
    assert lab.run(1, ["ssh", "node0", "hostname"]).stdout == "node0\n"
    assert lab.ssh("node1", "hostname").stdout == "node1\n"
    boot = "/proc/sys/kernel/random/boot_id"
    assert lab.sh(0, f"cat {boot}") == lab.ssh("node0", "cat", boot).stdout != lab.sh(1, f"cat {boot}")
    lab.sh(0, "touch /tmp/a /root/a /run/a /dev/shm/a")
    assert lab.run(1, ["ls", "/tmp/a", "/root/a", "/run/a", "/dev/shm/a"]).stdout == ""
    assert set(lab.sh(0, "ls /sys/class/net").split()) == {"lo", "enp99s0"}


def test_the_venv_is_on_every_host_but_not_on_ssh_path(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    assert lab.ssh("node1", "echo $PATH").stdout == "/usr/local/bin:/usr/bin:/bin\n"
    assert (
        lab.ssh("node1", sys.executable, "-c", "'import sys; print(sys.prefix)'").stdout == f"{sys.prefix}\n"
    )
    assert lab.run("node1", ["python", "-c", "import sys; print(sys.prefix)"]).stdout == f"{sys.prefix}\n"


def test_ssh_finds_the_venv_when_asked_to(lab: Callable[..., Lab]) -> None:
    cluster = lab(venv_on_path=True)
    assert cluster.ssh("node1", "command -v python").stdout == f"{sys.prefix}/bin/python\n"


def test_names_cards_mtu_and_switches_are_as_asked_for(lab: Callable[..., Lab]) -> None:
    cards = [
        Nic(("eth0", "ens5f0", "p1p1"), "192.168.7.10/24", address6="fd00:7::10/64"),
        Nic("ib0", "10.9.0.10/16", "ib", mtu_bytes=9000, hosts=("a", "b")),
    ]
    cluster = lab(["a", "b", "c"], nics=cards, mgmt="172.20.0.1/24", names="mgmt", docker0=True)
    assert [host.name for host in cluster.hosts] == ["a", "b", "c"]
    assert cluster.host("b").addresses == {"ens5f0": "192.168.7.11", "ib0": "10.9.0.11", "eno1": "172.20.0.2"}
    assert cluster.sh("a", "cat /sys/class/net/ib0/mtu") == "9000\n"
    assert cluster.sh("a", "ping -qc1 -W2 -M do -s 8972 b-ib >/dev/null && echo passes") == "passes\n"
    assert cluster.run("c", ["ping", "-c1", "-W2", "fd00:7::10"]).returncode == 0
    assert cluster.sh("a", "getent hosts b").split()[0] == "172.20.0.2"
    assert cluster.sh("c", "ls /sys/class/net").split() == ["docker0", "eno1", "lo", "p1p1", "veth1a2b3c2"]
    assert cluster.ssh("c", "echo $SSH_CONNECTION").stdout.split()[2] == "172.20.0.3"


def test_routed_links_reach_all_hosts(lab: Callable[..., Lab]) -> None:
    cluster = lab(3, "10.9.0.0/31")
    assert [host.address for host in cluster.hosts] == ["10.9.0.0", "10.9.0.2", "10.9.0.4"]
    assert connects("node0", "10.9.0.4", 22)(cluster) == "open"
    assert cluster.ssh("node2", "hostname").stdout == "node2\n"


def test_an_unreachable_network_times_out(shared_lab: Callable[..., Lab]) -> None:
    assert connects("node0", "192.0.2.1", 80, 0.5)(shared_lab()) == "silence"


def test_reset_breaks_open_connections_and_spares_new_ones(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    outside = subprocess.Popen(["ssh", "-F", lab.ssh_config, "node1", "echo up; cat"], **pipes)
    inside = lab.popen(0, ["ssh", "node1", "echo up; cat"], **pipes)
    assert [child.stdout.readline() for child in (outside, inside)] == ["up\n", "up\n"]
    lab.fault("ssh-reset")
    assert [child.wait(60) for child in (outside, inside)] == [255, 255]
    assert lab.ssh("node1", "echo again").stdout == "again\n"
    for child in (outside, inside):
        child.stdin.close()
        child.stdout.close()


def test_faults_heal_in_reverse_order(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    before = lab.host(0).etc("hosts").read_text()
    lab.fault("name-loopback")
    lab.fault("names-unknown")
    lab.fault("name-unknown", host="node0", of="node1")
    lab.heal()
    assert lab.host(0).etc("hosts").read_text() == before


def test_a_process_of_a_host_is_seen_signalled_and_gone(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    child = lab.popen(0, ["sleep", "1000"], env={"TAG": "abc"})

    def seen() -> list[tuple[int, tuple[str, ...]]]:
        return [(p.pid, p.command) for p in lab.processes(0, "TAG=abc")]

    wait_for(lambda: seen() == [(child.pid, ("sleep", "1000"))], "its program")
    assert lab.processes(1, "TAG=abc") == []
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM
    assert lab.processes(0, "TAG=abc") == []


def test_a_command_past_its_time_is_ended(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab()
    with pytest.raises(subprocess.TimeoutExpired):
        lab.run(0, ["sh", "-c", "sleep 1001 & sleep 1002"], timeout_s=0.5)
    wait_for(lambda: lab.processes(0, "sleep 100") == [], "its end")


# --- life and death -------------------------------------------------------------------------------


def spaces_of(pid: int) -> set[int]:
    return {Path(f"/proc/{pid}/ns/{kind}").stat().st_ino for kind in ("net", "mnt", "pid", "uts", "ipc")}


def own_links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def users_of(spaces: set[int]) -> list[str]:
    """Processes that are in any of these namespaces."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if spaces_of(int(path.name)) & spaces:
                found.append((path / "cmdline").read_bytes().decode())
        except OSError:
            pass  # it ended meanwhile
    return found


def test_closing_leaves_no_process_no_namespace_and_no_file(lab: Callable[..., Lab]) -> None:
    cluster = lab()
    own = spaces_of(os.getpid())
    spaces = set().union(*(spaces_of(pid) for pid in (cluster.pid, *(h.pid for h in cluster.hosts)))) - own
    ssh = subprocess.Popen(
        ["ssh", "-F", cluster.ssh_config, "node0", "echo up; sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    child = cluster.popen(1, ["sleep", "1000"])
    assert ssh.stdout is not None and ssh.stdout.readline() == b"up\n"
    rules = "table inet cut { chain in { type filter hook input priority 0; drop; }; }"
    cluster.run(0, ["nft", "-f", "-"], text=rules, check=True)
    links = own_links()
    cluster.close()
    assert child.wait(60) == -signal.SIGKILL
    assert ssh.wait(60) == 255
    ssh.stdout.close()
    wait_for(lambda: users_of(spaces) == [], "the end of what was killed")
    assert not cluster.state.exists()
    assert own_links() == links


def test_a_killed_owner_takes_its_lab_along() -> None:
    build = "from tests.lab import Lab; lab = Lab(); print(lab.pid, flush=True)"
    script = f"{build}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    waited = subprocess.run(["tail", f"--pid={pid}", "-s", "0.05", "-f", "/dev/null"], timeout=60)
    assert waited.returncode == 0


def test_a_lab_ends_by_itself_after_its_time(lab: Callable[..., Lab]) -> None:
    cluster = lab(1, ttl_s=10)  # it begins before this process hears that the lab is there
    assert cluster._init is not None
    cluster._init.wait(60)
    assert not Path(f"/proc/{cluster.hosts[0].pid}").exists()
    assert not cluster.state.exists()


def test_labs_with_the_same_names_and_addresses_do_not_meet(lab: Callable[..., Lab]) -> None:
    first, second = lab(), lab()
    first.sh(0, "touch /root/first")
    assert second.ssh("node0", "ls /root").stdout == ""
    first.close()
    assert second.run(0, ["ssh", "node1", "hostname"]).stdout == "node1\n"


def test_the_command_runs_words_on_a_broken_cluster_and_hands_back_their_code() -> None:
    words = [
        "-m",
        "tests.lab",
        "shell",
        "--fault",
        "article-002",
        "--",
        "sh",
        "-c",
        "getent hosts node0; exit 7",
    ]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert done.stdout.split() == ["10.12.5.64", "node0"]
    assert "node1: enp99s0 90.91.33.65" in done.stderr


def test_the_command_lists_every_fault_with_its_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "faults"], capture_output=True, text=True, timeout=60
    )
    assert len(done.stdout.splitlines()) == len(FAULTS)
    assert "percent=5" in done.stdout
