"""What earlier runs left is found, only what is proven is ended, and nothing else is touched."""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import clean as command
from ringup.cli import command_line, request
from ringup.model import Unreached
from ringup.runtime import clean
from ringup.transport import Answer
from tests.guards import free_port, wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S, Launched

OWN = f"test-{os.getpid()}"
"""Names of this process's runs: the same tests may run beside it, as the same user."""
TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": OWN,
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": OWN, "MASTER_PORT": "29400"}
SLEEPS = "import time; time.sleep(600)"
LISTENS = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)"

# Stands where init does: what is started by a shell that ends falls to it.  Its first line is the
# pid of the job; it goes when its stdin ends, and the job with it.
FOSTER = """
import ctypes, json, subprocess, sys
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)
subprocess.run(["sh", "-c", *sys.argv[3:]], env=json.loads(sys.argv[2]), check=True)
sys.stdin.read()
"""
DETACHED = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
Start = Callable[..., int]


@pytest.fixture
def payload() -> Iterator[Any]:
    """agent/clean/main.py as a module, as it is on a node."""
    yield importlib.import_module("ringup.agent.clean.main")
    for name in [name for name in sys.modules if name.startswith("ringup.agent.clean")]:
        del sys.modules[name]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a job whose parent has gone (or, `above` other than "systemd", lives); gives its pid."""
    fosters: list[tuple[subprocess.Popen[str], int]] = []

    def started(
        code: str = SLEEPS,
        env: dict[str, str] | None = None,
        *,
        above: str = "systemd",
        how: str = DETACHED,
        words: tuple[str, ...] = (),
        become: str = "",
    ) -> int:
        variables = json.dumps({"PATH": os.environ["PATH"], **(TORCHRUN if env is None else env)})
        job = words or (sys.executable, "-c", code)
        foster = subprocess.Popen(
            [sys.executable, "-c", FOSTER, above, variables, how, "sh", *job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert foster.stdout is not None
        pid = int(foster.stdout.readline())
        fosters.append((foster, pid))
        # Until it has become what it is to be, it is a copy of the shell.
        wanted = os.fsencode(become or job[0])
        while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted):
            assert foster.poll() is None
        # The kernel shows the words of a new program before its environment.
        said = {f"{k}={v}".encode() for k, v in json.loads(variables).items()}
        while not said <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            assert foster.poll() is None
        return pid

    yield started
    for foster, pid in fosters:
        for one in (pid, *descendants(pid)):
            if parent_of(one) is not None:
                os.kill(one, signal.SIGKILL)
                # It has gone before its foster parent goes: init's child would pass for a living job's.
                wait_for(lambda one=one: parent_of(one) is None, "it has ended")
        foster.communicate()


def parent_of(pid: int) -> int | None:
    """A living process's parent; None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[1])


def descendants(pid: int) -> list[int]:
    """Children, their children, ..."""
    try:
        below = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return below + [deeper for child in below for deeper in descendants(child)]


def found(entries: list[dict[str, Any]], pid: int) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["pid"] == pid), None)


def left(payload: Any, pid: int) -> dict[str, Any]:
    """The entry of a job that must be left over."""
    look = payload.Jobs()
    # A look may come while /proc does not show a fresh process whole; the next one does.
    while not (found(look.left, pid) or found(look.running, pid)):
        look = payload.Jobs()
    entry = found(look.left, pid)
    if entry is None and "service " in str(found(look.running, pid)):
        pytest.skip("this test runs inside a systemd service, and so does the job")
    assert entry is not None, look.running
    return entry


def program(folder: Path, source: str, name: str = "train.py") -> tuple[str, ...]:
    """Words that run a script as torchrun runs one."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return sys.executable, "-u", str(path)


def shim(folder: Path, run: str) -> tuple[str, ...]:
    """Words that run what ringup starts a run's ranks by, which here only lasts."""
    return program(folder, SLEEPS, f"{run}-0/rank.py")


def test_a_rank_that_serves_its_jobs_port_is_proven_and_a_server_of_another_port_is_not(
    payload: Any, start: Start, tmp_path: Path
) -> None:
    port = free_port()
    listens = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    words = program(tmp_path, listens)
    pid = start(env={**TORCHRUN, "MASTER_PORT": str(port)}, words=words)
    proof = f"a socket of its job's port {port}"
    entry = wait_for(lambda: proof in (e := left(payload, pid))["evidence"] and e, "it listens")
    assert entry["evidence"].startswith("orphan: its parent is gone")
    assert "rank 0 of 4, MASTER_ADDR=10.0.0.7" in entry["evidence"]
    assert (entry["doubt"], entry["processes"], entry["ports"]) == ("", 1, [port])
    os.kill(pid, signal.SIGKILL)
    other = start(words=words)
    wait_for(lambda: left(payload, other)["ports"], "it listens")
    assert left(payload, other)["doubt"]


def test_a_worker_is_proven_by_the_directory_that_torchrun_has_made_for_it(
    payload: Any, start: Start, tmp_path: Path
) -> None:
    made = tmp_path / "attempt_0" / "0"
    made.mkdir(parents=True)
    env = {**TORCHRUN, "TORCHELASTIC_ERROR_FILE": str(made / "error.json")}
    how = 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'
    words = program(tmp_path, SLEEPS)
    worker, daemon = (
        start(env=env, words=words, how=how),
        start(env=env, words=(words[0], *words[2:]), how=how),
    )
    os.utime(made, (time.time(), Path(f"/proc/{worker}").stat().st_mtime))
    entry = left(payload, worker)
    assert f"torchrun has made {made} for it" in entry["evidence"] and not entry["doubt"]
    assert "only have inherited" in left(payload, daemon)["doubt"]
    os.utime(made, (0, 0))
    assert "only have inherited" in left(payload, worker)["doubt"], "begun long after"


def test_a_job_with_a_living_parent_is_never_offered(payload: Any, start: Start) -> None:
    pid = start(env=TORCHRUN, above="sshd-session")
    look = payload.Jobs()
    assert found(look.left, pid) is None
    assert any("running: its parent is sshd-session" in entry["evidence"] for entry in look.running)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("init", "session", "later_s", "has_elder", "fate"),
    [
        ("tini", 7, 0.1, False, "running: started by process 1 (tini)"),
        ("docker-init", 1, 0.1, False, "running: started by process 1 (docker-init)"),
        ("tini", 7, 60, False, "orphan: its parent is gone"),
        ("tini", 7, 0.1, True, "orphan: its parent is gone"),
        ("sleep", 1, 60, True, "running: started by process 1 (sleep)"),
        ("sleep", 7, 60, True, "orphan: its parent is gone"),
        ("systemd", 7, 60, True, "orphan: its parent is gone"),
    ],
)
def test_what_a_container_was_started_for_is_no_orphan(
    payload: Any, tmp_path: Path, init: str, session: int, later_s: float, has_elder: bool, fate: str
) -> None:
    """Process 1 is its parent, as that of an orphan is; `has_elder`: and of another, begun before."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text("1000.00 1000.00\n")
    ticks = os.sysconf("SC_CLK_TCK")
    begun = {1: 500, 6: 500 + ticks // 50, 7: 500 + int(later_s * ticks)}
    processes = [(1, init, 0, 1), (7, "torchrun", 1, session)]
    for pid, name, parent, its_session in processes + [(6, "sleep", 1, 1)] * has_elder:
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir()
        fields = [str(n) for n in (parent, pid, its_session, *[0] * 15, begun[pid], 0)]
        (folder / "stat").write_text(f"{pid} ({name}) S {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nSigIgn:\t0000000000000000\n")
        (folder / "cgroup").write_text("0::/\n")
    table = payload.processes.ProcessTable(str(tmp_path))
    assert payload.processes.fate(table, 7, {7: "a torchrun process"}) == fate


def test_a_run_whose_guard_lives_is_no_leftover(payload: Any, start: Start) -> None:
    tag = {"RINGUP_RUN": f"{OWN}-guarded"}
    pid = start(env=tag)
    assert left(payload, pid)["run"] == f"{OWN}-guarded"
    start(env={}, words=(sys.executable, "-c", SLEEPS, f"ringup-guard:{OWN}-guarded"))
    look = payload.Jobs()
    assert found(look.left, pid) is None
    assert found(look.running, pid)["evidence"].startswith("running: the guard of its run lives")  # type: ignore[index]


@pytest.mark.slow
def test_another_runs_guard_keeps_nobody_alive(payload: Any, start: Start, tmp_path: Path) -> None:
    pid = start(env={"RINGUP_RUN": f"{OWN}-lost"}, words=shim(tmp_path, f"{OWN}-lost"))
    start(env={}, words=(sys.executable, "-c", SLEEPS, f"ringup-guard:{OWN}-lost-2"))
    assert left(payload, pid)["doubt"] == ""


@pytest.mark.parametrize(
    ("options", "doubt"),
    [
        ({"how": "trap '' HUP; " + DETACHED}, "nohup"),
        ({"env": BY_HAND, "words": ("sleep", "600")}, "does not run a Python script"),
        ({"env": BY_HAND, "how": DETACHED.replace(">/dev/null", ">{file}")}, "goes to a file"),
        ({"words": (sys.executable, "-c", SLEEPS, "jupyter-lab")}, "keeps running by design"),
        ({"env": BY_HAND}, "does not run a Python script"),
        ({"env": BY_HAND, "words": "{train}"}, "only have inherited"),
        (
            {"env": {"RINGUP_RUN": f"{OWN}-x"}, "words": "{train}"},
            "only have inherited the tag of run {own}-x",
        ),
        (
            {"env": {"RINGUP_RUN": f"{OWN}-y"}, "words": "{shim}"},
            "only have inherited the tag of run {own}-y",
        ),
        ({"env": {"RINGUP_RUN": f"{OWN}-x"}, "words": "{watcher}"}, "only have inherited the tag"),
        ({"env": {"RINGUP_RUN": f"{OWN}-x", "SLURM_JOB_ID": "77"}, "words": "{shim}"}, "SLURM_JOB_ID=77"),
        ({"env": {"RINGUP_RUN": f"{OWN}-x"}, "words": "{shim}"}, ""),
        ({"env": {"RINGUP_RUN": f"{OWN}-x"}, "how": "trap '' HUP; " + DETACHED, "words": "{shim}"}, ""),
    ],
)
def test_what_may_be_wanted_is_listed_but_not_proven(
    payload: Any, start: Start, tmp_path: Path, options: dict[str, Any], doubt: str
) -> None:
    if "how" in options:
        options = {**options, "how": options["how"].replace("{file}", str(tmp_path / "log"))}
    of_run, train = shim(tmp_path, f"{OWN}-x"), program(tmp_path, SLEEPS)
    words = {"{train}": train, "{shim}": of_run, "{watcher}": (*train, of_run[-1], "ringup-guard:test")}
    if str(options.get("words")) in words:
        options = {**options, "words": words[options["words"]]}
    said = left(payload, start(**options))["doubt"]
    doubt = doubt.replace("{own}", OWN)
    assert doubt in said and bool(doubt) == bool(said)


def test_what_runs_in_a_session_that_the_guard_has_noted_is_of_the_run(
    payload: Any, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / f"{OWN}-noted-0"
    folder.mkdir(mode=0o700)
    env = {"RINGUP_RUN": f"{OWN}-noted", "RINGUP_RUN_DIR": str(folder)}
    pid = start(env=env)
    table = payload.processes.ProcessTable("")
    session, began = int(table.sessions[pid]), table.starts[pid]
    noted = folder / "sessions"
    own = table.starts.get(session, began)
    noted.write_text(f"{session} {own}\n")
    entry = left(payload, pid)
    assert f"its session is in the directory of run {OWN}-noted" in entry["evidence"] and not entry["doubt"]
    for text in (f"{session} {began + 1}\n", f"{session + 1} {own}\n", f"{own}\n", "x y\n", ""):
        noted.write_text(text)
        assert left(payload, pid)["doubt"], text
    noted.write_text(f"{session} {own}\n")
    folder.chmod(0o755)
    assert left(payload, pid)["doubt"], "others may have written it"


@pytest.mark.slow
def test_a_daemon_that_a_living_job_has_started_belongs_to_it(payload: Any, start: Start) -> None:
    older = start()
    start(above="sshd-session")
    younger = start()
    look = payload.Jobs()
    while not (found(look.left, younger) or found(look.running, younger)):
        look = payload.Jobs()
    if not found(look.left, older):
        left(payload, older)
    assert found(look.left, younger) is None
    assert "began after it" in found(look.running, younger)["evidence"]  # type: ignore[index]


@pytest.mark.slow
def test_ending_takes_children_and_leaves_strangers(payload: Any, start: Start) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}])"
    victim, stranger = start(code), start(env={"RINGUP_RUN": f"{OWN}-other"})
    while not descendants(victim):
        assert parent_of(victim)
    (child,) = descendants(victim)
    look = payload.Jobs()
    assert set(look.victims(victim)) == {victim, child}
    assert payload.end(look.victims(victim), 60.0) == (False, {})
    assert parent_of(victim) is None and parent_of(child) is None and parent_of(stranger)


@pytest.mark.slow
def test_who_ignores_term_is_killed_after_the_grace(payload: Any, start: Start) -> None:
    pid = start(how="trap '' TERM; " + DETACHED)
    assert payload.end(payload.Jobs().victims(pid), 0.1) == (True, {})
    assert parent_of(pid) is None


def test_a_pid_used_anew_is_left_alone(payload: Any, start: Start) -> None:
    pid = start()
    left(payload, pid)
    ((_, started),) = payload.Jobs().victims(pid).items()
    assert payload.end({pid: started - 1}, 0.1) == (False, {})
    assert parent_of(pid)


@pytest.mark.slow
@pytest.mark.parametrize(("other", "goes"), [("", True), ("sleep 600 & ", False)])
def test_a_shell_above_the_job_goes_unless_it_has_other_work(
    payload: Any, start: Start, tmp_path: Path, other: str, goes: bool
) -> None:
    inner = f'exec 3>&1 </dev/null >/dev/null 2>&1; {other}"$@" & echo $$ >&3; exec 3>&-; wait'
    variables = [f"{name}={value}" for name, value in TORCHRUN.items()]
    job = ("env", *variables, f"RINGUP_RUN={OWN}-shell", *shim(tmp_path, f"{OWN}-shell"))
    shell = start(env={}, how=f"sh -c '{inner}' sh \"$@\" &", words=job, become="sh")
    while not any(found(entries, shell) for entries in (payload.Jobs().left, payload.Jobs().running)):
        assert parent_of(shell)
    entry = left(payload, shell)
    assert entry["command"].startswith("sh -c") and entry["doubt"] == ""
    assert (shell in payload.Jobs().victims(shell)) is goes
    assert entry["processes"] == 1 + goes


def test_only_unused_old_files_of_shared_memory_go(payload: Any, tmp_path: Path) -> None:
    def names(entries: list[dict[str, Any]]) -> list[str]:
        return [Path(entry["path"]).name for entry in entries]

    def listed(first_namespace: bool = True) -> Any:
        return payload.shm.shared_files(str(tmp_path), first_namespace)

    free = ["nccl-free", "nccl-new", "torch_free"]
    for name in (*free, "nccl-open", "nccl-mapped", "psm_other", f"torch_{os.getpid()}_1"):
        (tmp_path / name).write_bytes(b"x" * 4096)
        (tmp_path / name).chmod(0o600)
    kept = os.open(tmp_path / "nccl-open", os.O_RDONLY)
    fd = os.open(tmp_path / "nccl-mapped", os.O_RDWR)
    mapped = mmap.mmap(fd, 4096)
    os.close(fd)
    assert names([entry for entry, _ in listed()]) == free
    assert all(entry["doubt"] for entry, _ in listed()), "younger than a minute"
    payload.shm.FRESH_S = -1.0
    assert all("container" in entry["doubt"] for entry, _ in listed(False))
    files = listed()
    (tmp_path / "nccl-fresh").write_bytes(b"another file by now")
    (tmp_path / "nccl-fresh").rename(tmp_path / "nccl-new")
    gone = names(payload.shm.remove(files))
    mapped.close()
    os.close(kept)
    if any(entry["doubt"] for entry, _ in files):
        assert gone == [], "some process here cannot be looked at"
    else:
        assert gone == ["nccl-free", "torch_free"]
    assert {"nccl-open", "nccl-mapped", "nccl-new", "psm_other"} <= {p.name for p in tmp_path.iterdir()}


def hearing(data: bytes, **options: Any) -> clean.NodeLeftovers:
    return clean._decode(Answer("n1", data, code=0, **options))


NOT_A_NUMBER = b"""{"left": [{"pid": 1, "age_s": NaN, "command": "c", "evidence": "orphan:"}], "ended": [],
"running": [], "files": [], "removed": [], "unseen": []}"""
EMPTY = {"left": [], "ended": [], "running": [], "files": [], "removed": [], "unseen": []}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"left": 3}',
        b"\xff",
        json.dumps(EMPTY).encode()[:-3],
        b'{"x":' + b"[" * 100_000,
        NOT_A_NUMBER,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_an_answer_that_is_none_is_no_clean_node(data: bytes) -> None:
    node = hearing(data)
    assert node.error and not node.is_clean
    assert list(command.node_lines(node, False)) == [f"not checked: {node.error}"]


def test_many_equal_nodes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = [hearing(json.dumps(EMPTY).encode()) for _ in range(9)]
    nodes = [replace(node, node=f"n{number}") for number, node in enumerate(fine)]
    lost = [replace(node, node=f"lost{number}", error="no answer") for number, node in enumerate(fine)]
    monkeypatch.setattr(command, "leftovers", lambda *_, **__: (*nodes, *lost))
    assert command_line.dispatch(["clean", "--local", "1"]) == 1
    said = capsys.readouterr().out
    assert said == "n[0-8] (9 nodes): no leftovers\nlost[0-8] (9 nodes): not checked: no answer\n"


def test_a_lost_connection_is_said_in_its_words() -> None:
    lost = Answer("n1", error=Unreached(kind="ssh-timeout", words="timed \x1b[31mout"))
    assert clean._decode(lost).error == "timed \\x1b[31mout"


def test_what_a_node_says_cannot_reach_the_terminal_raw() -> None:
    one = {"pid": 1, "age_s": 9.0, "command": "a\x1b]0;x\x07b\nnode2: c", "evidence": "orphan\x1b[2J: gone"}
    node = hearing(json.dumps({**EMPTY, "left": [one]}).encode())
    assert not node.error
    text = "\n".join(command.node_lines(node, False))
    assert "\x1b" not in text and "\x07" not in text and "\nnode2" not in text


def test_the_hint_is_a_command_for_the_same_nodes() -> None:
    proven = clean.Left(pid=1, age_s=9.0, command="python t.py", evidence="orphan: its parent is gone")
    given = {"hosts": "node[0-1],gpu 3", "ssh_config": "a.cfg", "hostfile": None, "exclude_from": None}
    args = argparse.Namespace(**given, local=None, python="", groups=True, kill=False)
    (hint,) = command.hints((clean.NodeLeftovers("node0", left=(proven,)),), args)
    pasted = "ringup clean --kill -H 'node[0-1],gpu 3' --ssh-config a.cfg --groups"
    assert hint == f"to end the proven leftovers: {pasted}"


@pytest.mark.lab
@pytest.mark.slow
def test_a_stale_run_is_listed_then_ended_and_its_neighbours_live(lab: Any) -> None:
    cluster = lab(hosts=2)
    rank = [sys.executable, "-c", SLEEPS]
    living = cluster.popen("node0", ["sh", "-c", '"$@"; :', "sh", *rank], env=TORCHRUN)
    detached = ["sh", "-c", DETACHED, "sh", *rank]
    meant = int(
        cluster.run("node0", ["sh", "-c", "trap '' HUP; " + DETACHED, "sh", *rank], env=BY_HAND).stdout
    )
    plain = int(cluster.run("node0", detached).stdout)
    lost = {"RINGUP_RUN": "20260101-000000-abcd", "RINGUP_NODE": "1"}
    cluster.run("node1", ["mkdir", "-p", "/root/20260101-000000-abcd-1"], check=True)
    path = "/root/20260101-000000-abcd-1/rank.py"
    cluster.run("node1", ["sh", "-c", f"cat >{path}"], text=SLEEPS, check=True)
    of_run = ["sh", "-c", DETACHED, "sh", sys.executable, "-S", path]
    tagged = int(cluster.run("node1", of_run, env=lost).stdout)

    def begun(host: str, pid: int) -> bool:
        """Whether it has become its program: its number is printed while it is a copy of the shell."""
        own = [p.command for p in cluster.processes(host) if p.host_pid == pid]
        return bool(own and own[0]) and own[0][0] == sys.executable

    for host, pid in (("node0", meant), ("node0", plain), ("node1", tagged)):
        wait_for(lambda h=host, p=pid: begun(h, p), "its program")
    with cluster.broken("stale-run", host="node0", port=29500):
        asked = ["ringup", "clean", "-H", "node0,node1", "--json"]
        listed = cluster.run("node0", asked)
        assert listed.returncode == 1, listed.stderr
        first, second = json.loads(listed.stdout)["nodes"]
        assert {tuple(one["ports"]): bool(one["doubt"]) for one in first["left"]} == {
            (29500,): False,
            (): True,
        }
        assert [one["pid"] for one in second["left"]] == [tagged]
        assert cluster.listening("node0", 29500)

        killed = cluster.run("node0", [*asked, "--kill"])
        assert killed.returncode == 1, "the one with nohup is left"
        first, second = json.loads(killed.stdout)["nodes"]
        assert [one["ports"] for one in first["ended"]] == [[29500]]
        assert [one["pid"] for one in first["left"]] == [meant]
        assert [one["pid"] for one in second["ended"]] == [tagged] and not second["left"]
        assert not cluster.listening("node0", 29500)
        alive = {process.host_pid for process in cluster.processes("node0")}
        assert {meant, plain} <= alive and living.poll() is None

        cluster.sh("node0", f"kill {meant}")
        again = cluster.run("node0", ["ringup", "clean", "-H", "node0,node1", "--kill"])
        assert again.returncode == 0, again.stdout
        assert "node0: no leftovers" in again.stdout and living.poll() is None
        living.kill()


@pytest.mark.smoke
@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.torch
def test_what_a_killed_ssh_loop_leaves_is_ended_beside_the_same_script_alive(lab: Any) -> None:
    cluster = lab(hosts=2)

    def ranks(port: int) -> list[int]:
        wanted = f"MASTER_PORT={port}"
        return [p.pid for p in cluster.processes("node1", wanted) if p.state not in "ZX"]

    def launched(port: int) -> subprocess.Popen[bytes]:
        line = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 --master-port {port}"
        script = Path(__file__).parent / "jobs" / "stays.py"
        command = f"{line} {script} plain /var/tmp"
        client: subprocess.Popen[bytes] = cluster.popen("node0", ["ssh", "node1", command])
        wait_for(lambda: len(ranks(port)) >= 2, "two ranks", CHECKED_AND_ENDED_S)
        return client

    lost, living = launched(29510), launched(29520)
    lost.kill()
    listing = ["ringup", "clean", "-H", "node1"]
    wait_for(lambda: cluster.run("node0", listing, timeout_s=180).returncode == 1, "orphans", 180)
    done = cluster.run("node0", [*listing, "--kill", "--json"], timeout_s=180)
    assert done.returncode == 0, done.stdout
    (node,) = json.loads(done.stdout)["nodes"]
    (ended,) = node["ended"]
    assert ended["processes"] >= 3 and 29510 in ended["ports"]
    assert "a torchrun process" in ended["evidence"]
    assert not ranks(29510) and len(ranks(29520)) >= 2 and living.poll() is None
    living.kill()


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.torch
def test_a_detached_run_is_no_leftover(lab: Any) -> None:
    with Launched(lab(hosts=2), "stays.py", "plain", "{folder}", options=["--detach"]) as run:
        assert run.wait() == 0, run.said()

        def there(host: str) -> set[str]:
            return {entry.split()[0] for entry in run.of_the_job(host)}

        def has_rank(host: str) -> bool:
            return any("stays.py plain" in entry for entry in run.of_the_job(host))

        wait_for(lambda: has_rank("node0") and has_rank("node1"), "both ranks", CHECKED_AND_ENDED_S)
        before = [(host, there(host)) for host in ("node0", "node1")]
        done = run.lab.run("node0", ["ringup", "clean", "-H", "node0,node1", "--kill"], timeout_s=180)
        assert done.returncode == 0 and "ended" not in done.stdout, done.stdout
        assert done.stdout.count("the guard of its run lives") >= 2
        assert all(pids <= there(host) for host, pids in before), (before, run.of_the_job("node0"))


def test_a_process_that_keeps_becoming_another_program_is_always_known_by_its_variables(
    payload: Any, tmp_path: Path
) -> None:
    again = tmp_path / "again.sh"
    again.write_text(f"exec /bin/sh {again}\n")
    process = subprocess.Popen(["/bin/sh", str(again)], env={"RINGUP_RUN": f"{OWN}-exec"})
    try:
        raw_environ = payload.processes.raw_environ
        wait_for(lambda: f"{OWN}-exec".encode() in raw_environ(process.pid), "its variables")
        for _ in range(2000):  # one plain reading in thirty finds nothing
            assert f"{OWN}-exec".encode() in raw_environ(process.pid)
            assert payload.tree.is_tagged(process.pid, f"{OWN}-exec", "")
    finally:
        process.kill()
        process.wait()


JAX = {"JAX_COORDINATOR_ADDRESS": "10.0.0.7:1234"}
FORK = (sys.executable, "-S", "-E", "-c", SLEEPS, "--multiprocessing-fork")
OPENS = "import sys, time; f = open(sys.argv[1]); time.sleep(600)"


def test_a_jax_process_whose_output_nobody_can_read_any_more_is_left_over(
    payload: Any, start: Start, tmp_path: Path
) -> None:
    how = 'exec 3>&1; { "$@" </dev/null 2>/dev/null & echo $! >&3; } | true'
    words = program(tmp_path, SLEEPS)
    lost, silent = start(env=JAX, words=words, how=how), start(env=JAX, words=words)
    entry = wait_for(lambda: (e := left(payload, lost)) and not e["doubt"] and e, "true has ended")
    assert "no process reads its output any more" in entry["evidence"]
    assert "coordinator 10.0.0.7:1234" in entry["evidence"]
    assert "only have inherited" in left(payload, silent)["doubt"]


@pytest.mark.parametrize(("env", "doubt"), [({"MASTER_PORT": "29500"}, ""), ({}, "no other sign of a job")])
def test_a_spawned_rank_is_proven_only_by_what_else_it_shows(
    payload: Any, start: Start, env: dict[str, str], doubt: str
) -> None:
    entry = left(payload, start(env=env, words=FORK))
    assert "spawned by a Python process that is gone" in entry["evidence"]
    assert doubt in entry["doubt"] and bool(doubt) == bool(entry["doubt"])


def test_a_spawned_process_whose_parent_lives_is_not_even_listed(payload: Any, start: Start) -> None:
    pid = start(env={"MASTER_PORT": "29500"}, words=FORK, above="sshd-session")
    look = payload.Jobs()
    assert not found(look.left, pid) and not found(look.running, pid)


@pytest.mark.parametrize(
    ("said", "doubt"),
    [
        ("torchrun train.py", ""),
        ("cd /a && MASTER_ADDR=n0 RANK=1 python train.py", ""),
        ("bash -lc 'source e; exec accelerate launch t.py'", ""),
        ("python serve.py", "no other sign"),
        ("tail -f log", None),
        ("rsync -a /data/deepspeed-ckpt/ /backup/torchrun", None),
    ],
)
def test_an_ssh_that_outlived_its_start_loop_is_left_over_when_it_started_ranks(
    payload: Any, start: Start, tmp_path: Path, said: str, doubt: str | None
) -> None:
    ssh = tmp_path / "ssh"
    ssh.symlink_to(sys.executable)
    pid = start(env={}, words=(str(ssh), "-S", "-E", "-c", SLEEPS, "node1", said))
    look = payload.Jobs()
    if doubt is None:
        assert not found(look.left, pid)
        return
    entry = left(payload, pid)
    assert "ssh that started" in entry["evidence"]
    assert doubt in entry["doubt"] and bool(doubt) == bool(entry["doubt"])


def test_who_holds_a_gpu_or_the_usual_port_without_a_parent_is_listed_and_never_ended(
    payload: Any, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "nvidia0").touch()
    payload.proof.GPUS = str(tmp_path / "nvidia")
    words = (sys.executable, "-S", "-E", "-c", OPENS, str(tmp_path / "nvidia0"))
    holds = start(env={}, words=words)
    while not found(payload.Jobs().left, holds):
        assert parent_of(holds)
    entry = left(payload, holds)
    assert "holds a GPU" in entry["evidence"] and "may still be wanted" in entry["doubt"]
    listens = start(LISTENS, env={})
    while not (
        ports := [p for _, p, _, _ in payload.processes.listening("") if p in ports_of(payload, listens)]
    ):
        assert parent_of(listens)
    payload.proof.PORTS = tuple(ports)
    entry = left(payload, listens)
    assert f"listens on port {ports[0]}" in entry["evidence"] and entry["doubt"]
    assert entry["ports"] == ports


def ports_of(payload: Any, pid: int) -> set[int]:
    """TCP ports a process listens on."""
    held = payload.descriptors(pid)
    return {port for _, port, _, inode in payload.processes.listening("") if f"socket:[{inode}]" in held}


def test_whose_output_is_read_is_not_proven_to_be_unwanted(payload: Any, start: Start) -> None:
    pid = start(env=BY_HAND, how='"$@" </dev/null 2>/dev/null & echo $!')
    assert "reads its output" in left(payload, pid)["doubt"]


@pytest.mark.slow
def test_a_shell_that_is_just_ending_does_not_stand_for_the_job_it_started(
    payload: Any, start: Start
) -> None:
    # Its memory is gone before its children are given away: the job was listed by the shell's pid.
    for _ in range(12):
        pid = start()
        look = payload.Jobs()
        assert found(look.left, pid) or found(look.running, pid), [e["command"] for e in look.left]


def test_semaphores_of_a_process_that_lives_are_kept(payload: Any, tmp_path: Path) -> None:
    for name in (f"sem.loky-{os.getpid()}-a", "sem.loky-999999999-a", "sem.mp-abc", "sem.of_a_database"):
        (tmp_path / name).write_bytes(b"x")
        (tmp_path / name).chmod(0o600)
    listed = [Path(e["path"]).name for e, _ in payload.shm.shared_files(str(tmp_path), True)]
    assert listed == ["sem.loky-999999999-a", "sem.mp-abc"]


def test_a_node_without_python_comes_with_the_option_that_names_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = argparse.Namespace(quiet=False)
    request.hint_python(["Permission denied (publickey)."], args)
    assert capsys.readouterr().err == ""
    request.hint_python(["ringup: no python3 on this node; its PATH is /bin"], args)
    assert capsys.readouterr().err.startswith("hint: --python PATH names a Python (3.8 or newer)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace")
def test_the_sweep_of_a_run_leaves_a_container_alone_that_carries_its_tag(payload: Any) -> None:
    words = ["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"]
    process = subprocess.Popen(words, env={**os.environ, "RINGUP_RUN": f"{OWN}-container"})
    try:
        (inside,) = wait_for(lambda: descendants(process.pid), "a container")
        wait_for(lambda: payload.tree.environ(inside).get(b"RINGUP_RUN"), "its variables")
        assert payload.tree.is_tagged(process.pid, f"{OWN}-container", "")
        assert not payload.tree.is_tagged(inside, f"{OWN}-container", "")
    finally:
        process.kill()
        process.wait()


def test_a_command_line_of_a_node_is_shown_without_secrets() -> None:
    words = "python train.py --url https://ada:tok3n@host hf_tok3nAbcdefghijklmnopqrst0123456789"
    one = {"pid": 1, "age_s": 1.0, "command": words, "evidence": "orphan: gone"}
    node = hearing(json.dumps({**EMPTY, "left": [one]}).encode())
    assert node.left[0].command == "python train.py --url https://(hidden)@host (hidden)"
