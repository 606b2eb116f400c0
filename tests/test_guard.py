"""The guard, alone on this machine: what ends, what does not, and what it says."""

from __future__ import annotations

import base64
import errno
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringup.agent.guard import tree
from ringup.agent.guard.job import Job
from ringup.agent.guard.link import Loop
from ringup.agent.guard.spool import TAIL_LINES, Tail
from ringup.agent_bundle import program, source
from ringup.runtime.blame import End
from tests.guards import SHIM, GuardedNode, alive, python_job, tagged, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux")

FOREVER = ["sleep", "300"]


def tail(message: dict) -> str:
    return base64.b64decode(message["tail"]).decode()


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize(("frames", "later", "is_kept"), [(5, 3, True), (90, 3, True), (90, 70, False)])
def test_a_long_traceback_keeps_its_title(
    prefix: str, size: int, frames: int, later: int, is_kept: bool
) -> None:
    title, exception = f"{prefix}Traceback (most recent call last):", f"{prefix}KeyError: 'label'"
    traced = [title, *[f'{prefix}  File "a.py", line 1, in f'] * frames, exception]
    data = "".join(f"{line}\n" for line in ["step 1", *traced, *["bye, then"] * later]).encode()
    tail = Tail()
    for at in range(0, len(data), size):
        tail.feed(2, 1.0, data[at : at + size])
        tail.feed(1, 1.0, b"")
    lines = base64.b64decode(tail.text()).decode().split("\n")
    assert len(lines) <= TAIL_LINES
    assert (title in lines and exception in lines) == is_kept
    assert End("rank", "n", 0.0, code=1, lines=tuple(lines)).raised == (
        "KeyError: 'label'" if is_kept else ""
    )


def test_job_that_ends_well_leaves_nothing_and_no_directory(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["sh", "-c", "echo out; echo err >&2"]) as node:
        assert node.go().wait_end() == 0
        assert node.get("launcher-exit")["code"] == 0
        assert node.get("ended")["left"] == []
        assert sorted(node.output(-1).split()) == [b"err", b"out"]
        assert not node.run_dir.exists()


def test_rank_keeps_its_own_exit_code_and_last_lines(tmp_path: Path) -> None:
    job = python_job(tmp_path, "import sys; print('one\\ntwo'); print(sys.argv[1:]); sys.exit(3)")
    with GuardedNode(
        tmp_path, ["sh", "-c", '"$@"; exit 1', "launcher", *SHIM, "a b", "--local-rank=0"], env=job
    ) as node:
        node.go().wait_end()
        exit_ = node.get("exit", rank=0)
        assert exit_["code"] == 3
        assert tail(exit_) == "one\ntwo\n['a b', '--local-rank=0']"
        assert node.get("launcher-exit")["code"] == 1
        assert node.output(0) == b"one\ntwo\n['a b', '--local-rank=0']\n"


def test_shim_ends_as_its_rank_ended(tmp_path: Path) -> None:
    job = python_job(tmp_path, "import os; os.kill(os.getpid(), 9)")
    with GuardedNode(tmp_path, SHIM, env=job) as node:
        node.go().wait_end()
        assert node.get("exit", rank=0)["code"] == -9
        assert node.get("launcher-exit")["code"] == -9


def test_rank_whose_shim_is_killed_counts_as_killed(tmp_path: Path) -> None:
    job = python_job(tmp_path, "import time; print('up', flush=True); time.sleep(300)")
    with GuardedNode(tmp_path, SHIM, env=job) as node:
        rank = node.go().wait("rank")
        os.kill(node.wait("started")["pid"], signal.SIGKILL)
        exit_ = node.wait("exit", rank=0)
        assert (exit_["code"], exit_["lost"], exit_["sigterm_at"]) == (-9, True, 0)
        node.wait_end()
        assert not alive(rank["pid"])


SLOW_TO_BEGIN = """
import os, time
_setpgid = os.setpgid
def setpgid(*words):
    time.sleep(1)
    _setpgid(*words)
os.setpgid = setpgid
"""


def test_shim_killed_before_its_rank_has_begun_was_not_told_to_end(tmp_path: Path) -> None:
    job = python_job(tmp_path, "import time; time.sleep(300)")
    slow = SLOW_TO_BEGIN + program("rank.rank")
    with GuardedNode(tmp_path, SHIM, env=job, rank_source=slow) as node:
        node.go().wait("rank")
        os.kill(node.wait("started")["pid"], signal.SIGKILL)
        exit_ = node.wait("exit", rank=0)
        assert (exit_["code"], exit_["lost"], exit_["sigterm_at"]) == (-9, True, 0)


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    job = {"RINGUP_SCRIPT": "--no-python no-such-command", "RANK": "0", "LOCAL_RANK": "0"}
    with GuardedNode(tmp_path, SHIM, env=job) as node:
        node.go().wait_end()
        assert node.get("exit", rank=0)["code"] == 127
        # Permission denied if PATH has a folder that this user may not read.
        assert b"ringup: cannot start no-such-command: [Errno " in node.output(0)


def test_shim_without_a_guard_becomes_the_script(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(source("rank.rank"))
    env = python_job(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(5)")
    ran = subprocess.run(
        [sys.executable, tmp_path / "rank.py", "x"], env={**os.environ, **env}, capture_output=True
    )
    assert (ran.returncode, ran.stdout) == (5, b"['x']\n")


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_no_process_is_ended_that_has_a_pid_anew(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pidfd:  # Python 3.8
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with subprocess.Popen(FOREVER) as other:
        try:
            started = tree.descendants(os.getpid())[other.pid]
            assert not tree.send(other.pid, started - 1, signal.SIGKILL)
            assert alive(other.pid)
            assert tree.send(other.pid, started, signal.SIGKILL)
            assert other.wait(60) == -signal.SIGKILL
            assert not tree.send(other.pid, started, signal.SIGKILL)
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("own", "theirs", "is_ours"),
    [({}, {}, True), ({}, {"SLURM_JOB_ID": "8"}, False), ({"SLURM_JOB_ID": "7"}, {}, True)]
    + [({name: "7"}, {name: "7"}, True) for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")]
    + [({name: "7"}, {name: "8"}, False) for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")],
)
def test_a_job_that_a_rank_has_submitted_is_not_the_runs(
    own: dict[str, str], theirs: dict[str, str], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    with subprocess.Popen(FOREVER, env={**os.environ, **theirs, "RINGUP_RUN": "test-next"}) as job:
        try:
            for name, value in own.items():
                monkeypatch.setenv(name, value)
            assert (job.pid in tree.members("test-next")) == is_ours
        finally:
            job.kill()


def test_a_run_directory_that_takes_no_socket_is_said(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["true"]) as node:
        node.wait("ready")
        (node.run_dir / "guard.sock").mkdir()  # nothing can be bound there now
        node.go().wait_end()
        assert "no socket in the run's directory" in node.get("problem")["words"]
        assert node.get("ended")["left"] == []


def test_module_is_started_as_a_module(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, [*SHIM, "-h"], env={"RINGUP_SCRIPT": "-m json.tool", "RANK": "0"}) as node:
        node.go().wait_end()
        assert node.output(0).startswith(b"usage:")


def test_traceback_dates_the_failure(tmp_path: Path) -> None:
    source = """
import threading, time
def stay():
    threading.main_thread().join()  # after its traceback
    time.sleep(0.4)
threading.Thread(target=stay).start()
try:
    raise KeyError("inner")
except KeyError:
    raise ValueError("outer")
"""
    with GuardedNode(tmp_path, SHIM, env=python_job(tmp_path, source)) as node:
        node.go().wait_end()
        exit_ = node.get("exit", rank=0)
        assert exit_["at"] - exit_["traceback_at"] > 0.2
        assert tail(exit_).endswith("ValueError: outer")


def test_setup_runs_in_the_shell_that_becomes_the_job(tmp_path: Path) -> None:
    with GuardedNode(
        tmp_path,
        [
            "sh",
            "-c",
            'echo "$GREETING/$PLAIN/$GONE/$RINGUP_SETUP/$PWD"; printf "%s." "$@"',
            "sh",
            "a b",
            "$(x)",
            "'",
        ],
        setup="export GREETING='hi there'",
        env={"PLAIN": "a\nb"},
        unset=["GONE"],
    ) as node:
        node.go().wait_end()
        assert node.output(-1).decode() == f"hi there/a\nb///{tmp_path}\na b.$(x).'."


def test_words_that_cannot_start_are_said(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["/nowhere/python", "x"]) as node:
        node.go().wait_end()
        assert node.get("problem")["words"] == "cannot start /nowhere/python: No such file or directory"
        assert node.get("ended")["left"] == [] and not node.get("started")


def test_missing_directory_is_said(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["true"], chdir="/nowhere") as node:
        node.go().wait_end()
        assert node.get("problem")["words"] == "cannot enter /nowhere: No such file or directory"


def test_run_directory_that_exists_already_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with GuardedNode(tmp_path, ["true"], run_dir=str(tmp_path / "taken")) as node:
        assert node.wait_end() == 1
        assert "cannot be made: File exists" in node.get("problem")["words"]
        assert (tmp_path / "taken").exists()


def test_end_before_go_starts_nothing(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["sh", "-c", "echo started"]) as node:
        node.tell({"type": "end", "reason": "never mind"})
        node.go().wait_end()
        assert node.get("started") is None
        assert node.get("ended")


@pytest.mark.slow
def test_job_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]) as node:
        node.go().wait("out", rank=-1)
        node.tell({"type": "end", "reason": "test", "grace_s": 0.3})
        node.wait_end()
        assert node.get("launcher-exit")["code"] == -9
        assert node.get("ended")["left"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "flee",
    [
        "setsid sleep 300 &",
        "env -i setsid sleep 300 &",
        "(env -i setsid sh -c 'trap \"\" TERM HUP; sleep 300' &) &",
    ],
)
def test_process_that_flees_its_session_is_ended(tmp_path: Path, flee: str) -> None:
    path = shutil.which("sleep")
    script = f"{flee.replace('sleep', str(path))} echo $(pgrep -n -f 'sleep 300') up; exec sleep 300"
    with GuardedNode(tmp_path, ["sh", "-c", script]) as node:
        node.go().wait("out", rank=-1)
        known = children_of(node)
        node.tell({"type": "end", "reason": "test", "grace_s": 0.3})
        node.wait_end()
        assert not [pid for pid in known if alive(pid)]


def children_of(node: GuardedNode) -> list[int]:
    """Every descendant of the guard's inner half."""
    guard = node.wait("ready")["guard"]
    found, todo = [], [guard]
    while todo:
        listed = subprocess.run(
            ["pgrep", "-P", str(todo.pop())], capture_output=True, text=True
        ).stdout.split()
        found += [int(pid) for pid in listed]
        todo += [int(pid) for pid in listed]
    return found


@pytest.mark.slow
def test_what_a_good_job_leaves_may_end_by_itself(tmp_path: Path) -> None:
    upload = "(trap 'echo told > told' TERM; sleep 0.5; echo uploaded > upload) & exit 0"
    with GuardedNode(tmp_path, ["sh", "-c", upload]) as node:
        node.go().wait_end()
        assert (tmp_path / "upload").exists() and not (tmp_path / "told").exists()
        assert node.get("ended")["stayed"] == []


@pytest.mark.slow
def test_what_a_good_job_leaves_for_ever_is_ended_and_said(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["sh", "-c", "setsid sleep 300 & exit 0"]) as node:
        node.go().wait_end()
        assert [words for _, words in node.get("ended")["stayed"]] == ["sleep 300"]
        assert node.get("ended")["left"] == []


@pytest.mark.slow
def test_rank_that_saves_its_state_hears_sigterm_once(tmp_path: Path) -> None:
    source = """
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("up", flush=True)
end = time.monotonic() + 300
while not heard and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.8)
print("heard", len(heard), flush=True)
"""
    with GuardedNode(tmp_path, SHIM, env=python_job(tmp_path, source)) as node:
        node.go().wait("out", rank=0)
        node.tell({"type": "end", "reason": "test", "grace_s": 20})
        node.wait_end()
        assert b"heard 1" in node.output(0)
        assert node.get("exit")["code"] == 0


@pytest.mark.slow
def test_a_signal_that_asks_a_rank_to_save_reaches_it_once_and_nothing_else(tmp_path: Path) -> None:
    source = """
import signal, time
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
print("up", flush=True)
end = time.monotonic() + 300
while not got and time.monotonic() < end: time.sleep(0.01)
time.sleep(0.3)
print("saved", len(got), flush=True)
"""
    words = ["sh", "-c", 'trap "echo launcher" USR1; "$@"; exit 0', "launcher", *SHIM]
    with GuardedNode(tmp_path, words, env=python_job(tmp_path, source)) as node:
        node.go().wait("out", rank=0)
        for _ in range(2):
            node.tell({"type": "signal", "name": "SIGUSR1"})
        assert node.wait_end() == 0
        assert node.output(0) == b"up\nsaved 1\n" and node.output(-1) == b""
        assert node.get("exit")["code"] == 0 and node.get("ending") is None


@pytest.mark.slow
def test_end_of_file_on_stdin_ends_everything(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, FOREVER) as node:
        pid = node.go().wait("started")["pid"]
        node.process.stdin.close()
        node.wait_end()
        assert not alive(pid)
        assert node.get("ending")["reason"] == "the launcher is gone"
        assert not node.run_dir.exists()


@pytest.mark.slow
def test_silence_of_the_launcher_ends_everything_within_the_lease(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], lease_s=5.0) as node:
        started = node.go().wait("started")
        node.wait_end()
        assert not alive(started["pid"])
        assert node.get("ending")["reason"].startswith("no contact with the launcher")
        assert node.get("ended")["left"] == []


@pytest.mark.slow
@pytest.mark.parametrize("half", ["sentinel", "guard"])
def test_killing_one_half_of_the_guard_ends_everything(tmp_path: Path, half: str) -> None:
    job = python_job(
        tmp_path,
        "import os, signal, subprocess, time\nsignal.signal(15, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '300'], env={}, start_new_session=True)\n"
        "print('up', flush=True); time.sleep(300)",
    )
    with GuardedNode(tmp_path, SHIM, env=job) as node:
        ready = node.go().wait("ready")
        node.wait("out", rank=0)
        pids = children_of(node)
        assert len(pids) >= 3
        os.kill(ready["pid" if half == "sentinel" else "guard"], signal.SIGKILL)
        wait_for(lambda: not [p for p in pids if alive(p)], "the job's processes are gone")
        if half == "guard":
            assert node.wait("guard-lost")["left"] == []
        wait_for(lambda: not node.run_dir.exists(), "the run's directory is gone")


@pytest.mark.slow
def test_killing_both_halves_at_once_ends_the_rank(tmp_path: Path) -> None:
    job = python_job(tmp_path, "import time; print('up', flush=True); time.sleep(300)")
    with GuardedNode(tmp_path, SHIM, env=job) as node:
        ready = node.go().wait("ready")
        rank = node.wait("rank")
        os.kill(ready["pid"], signal.SIGKILL)
        os.kill(ready["guard"], signal.SIGKILL)
        wait_for(lambda: not alive(rank["pid"]) and not tagged(node.run_id), "all is gone")


@pytest.mark.slow
def test_another_process_of_the_user_is_not_touched(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, FOREVER) as node:
        node.go().wait("started")
        env = {**os.environ, "RINGUP_RUN": node.run_id + "x", "RINGUP_NODE": "0"}
        others = [
            subprocess.Popen(FOREVER),
            subprocess.Popen(FOREVER, env=env),
            # The same run's other node, played on this machine.
            subprocess.Popen(FOREVER, env={**env, "RINGUP_RUN": node.run_id, "RINGUP_NODE": "1"}),
        ]
        try:
            node.tell({"type": "end", "reason": "test", "grace_s": 0})
            node.wait_end()
            assert [p.poll() for p in others] == [None] * 3
        finally:
            for process in others:
                process.kill()
                process.wait()


@pytest.mark.slow
def test_tagged_process_started_outside_the_tree_is_ended(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, FOREVER) as node:
        node.go().wait("started")
        env = {**os.environ, "RINGUP_RUN": node.run_id, "RINGUP_NODE": "0"}
        stranger = subprocess.Popen(FOREVER, env=env)
        node.tell({"type": "end", "reason": "test", "grace_s": 0})
        assert stranger.wait(60) == -9
        node.wait_end()


@pytest.mark.slow
def test_stuck_reader_never_blocks_a_rank_and_the_loss_is_said(tmp_path: Path) -> None:
    source = (
        "import os\nfor i in range(12000): os.write(1, b'%08d' % i + b'x' * 4000 + b'\\n')\nopen('done', 'w')"
    )
    with GuardedNode(tmp_path, SHIM, env=python_job(tmp_path, source)) as node:
        node.go()
        wait_for(lambda: (tmp_path / "done").exists(), "the rank has written everything")
        node.wait("ended")
        received = seen = 0
        for _ in range(20_000):
            new, seen = node.messages[seen:], len(node.messages)
            received += sum(len(base64.b64decode(m["data"])) for m in new if m["type"] == "out")
            try:
                node.tell({"type": "ack", "acknowledged": received})
            except BrokenPipeError:
                break  # it has everything and has ended
            node.read(0.05)
        node.wait_end()
        dropped = sum(m["bytes"] for m in node.messages if m["type"] == "dropped")
        assert dropped > 0
        assert len(node.output(0)) + dropped == 12_000 * 4009
        assert node.output(0).endswith(b"x\n")
        assert node.get("exit")["code"] == 0


@pytest.mark.slow
def test_launcher_that_reads_nothing_still_lets_the_guard_end(tmp_path: Path) -> None:
    source = "import os\nwhile True: os.write(1, b'x' * 60000)"
    with GuardedNode(tmp_path, SHIM, env=python_job(tmp_path, source), lease_s=10.0) as node:
        node.go().wait("rank")
        wait_for(lambda: not tagged(node.run_id), "the job's processes are gone")
        wait_for(lambda: node.process.poll() is not None, "the guard has ended")


def test_a_guard_that_cannot_look_lets_the_run_go_on(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, FOREVER) as node:
        guard = node.wait("ready")["guard"]
        started = node.go().wait("started")
        soft, hard = resource.prlimit(guard, resource.RLIMIT_NOFILE)
        used = {int(entry.name) for entry in Path(f"/proc/{guard}/fd").iterdir()}
        resource.prlimit(guard, resource.RLIMIT_NOFILE, (min({*range(100)} - used), hard))
        node.tell({"type": "look", "mode": "count", "number": 7})
        assert "Too many open files" in node.wait("look", number=7)["problem"]
        resource.prlimit(guard, resource.RLIMIT_NOFILE, (soft, hard))
        assert alive(started["pid"]) and not node.get("ending")


def test_a_node_without_room_for_a_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", refused)
    sent: list[dict] = []
    order = {
        "run_id": f"t{secrets.token_hex(6)}",
        "node": 0,
        "words": FOREVER,
        "env": {},
        "chdir": str(tmp_path),
    }
    node = Job(order, Loop(), lambda: SimpleNamespace(send=sent.append), 0)
    node.start()
    node.on_time(0.0)
    assert [message["type"] for message in sent] == ["problem", "ending", "ended"]
    assert sent[0]["words"] == (
        "no process can be started (`ulimit -u`, `ulimit -n`): Resource temporarily unavailable"
    )
    assert node.over


TOLD_AS_IT_REAPS = """
import os, signal
_waitpid, _self = os.waitpid, os.getpid()
def waitpid(pid, options):
    ended = _waitpid(pid, options)
    if ended[0] and os.getpid() == _self:
        signal.raise_signal(signal.SIGTERM)
    return ended
os.waitpid = waitpid
"""


def test_a_signal_in_the_moment_the_guard_has_gone_is_no_hang(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["true"], before=TOLD_AS_IT_REAPS) as node:
        assert node.go().wait_end() == 0
        assert not node.run_dir.exists()


def test_a_run_directory_that_cannot_be_filled_does_not_stay(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, FOREVER, files={"no/such/folder": "x"}) as node:
        assert "cannot be made" in node.wait("problem")["words"]
        node.wait_end()
        assert not node.run_dir.exists()


def test_binary_output_and_endless_lines_arrive_unchanged(tmp_path: Path) -> None:
    source = "import os\nos.write(1, bytes(range(256)) * 10)\nos.write(2, b'y' * 300000)"
    with GuardedNode(tmp_path, SHIM, env=python_job(tmp_path, source)) as node:
        node.go().wait_end()
        by_stream = {1: b"", 2: b""}
        for m in node.messages:
            if m["type"] == "out":
                by_stream[m["fd"]] += base64.b64decode(m["data"])
        assert by_stream == {1: bytes(range(256)) * 10, 2: b"y" * 300000}
        assert len(node.get("exit")["tail"]) < 50_000


def test_stranger_on_the_socket_changes_nothing(tmp_path: Path) -> None:
    source = """
import os, socket, struct
os.chdir(os.environ["RUN_DIR"])
for data in (b"", b"hello", b"hello a b c d", b"exit 1", b"\\xff" * 3000, b"hello 9 9 1 1",
             b"exit x y", b"exit 1e9 nan", b"exit 99999999999999999999 1.0"):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect("guard.sock")
    fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 1, 2))]
    try: s.send(data); s.sendmsg([data], fds if data == b"hello a b c d" else [])
    except OSError: pass
    s.close()
print("done")
"""
    node_dir = {"RUN_DIR": "{RUN_DIR}"}
    with GuardedNode(tmp_path, SHIM, env={**python_job(tmp_path, source), **node_dir}) as node:
        node.go().wait_end()
        assert node.get("exit", rank=0)["code"] == 0


def test_garbage_from_the_launcher_is_left_out(tmp_path: Path) -> None:
    with GuardedNode(tmp_path, ["true"]) as node:
        for line in (
            b"\xff\xfe\n",
            b"[1]\n",
            b"{}\n",
            b'{"type": 7}\n',
            b'{"type":"beat"}\n',
            b'{"acknowledged":"x"}\n',
        ):
            node.process.stdin.write(line)
        node.go()
        assert node.wait_end() == 0
        assert node.get("launcher-exit")["code"] == 0


OLD = [
    *(str(p) for p in sorted(Path(sys.base_prefix).parent.glob("3.[89]*/bin/python"))),  # pyenv's layout
    *filter(None, (shutil.which("python3.8"), shutil.which("python3.9"))),
]


@pytest.mark.parametrize("python", [p for p in OLD if os.access(p, os.X_OK) and "shims" not in p][:1])
def test_guard_runs_on_the_oldest_python(tmp_path: Path, python: str) -> None:
    job = python_job(tmp_path, "raise SystemExit(4)")
    with GuardedNode(tmp_path, [python, "{RUN_DIR}/rank.py"], env=job, python=python) as node:
        node.go().wait_end()
        assert node.get("exit", rank=0)["code"] == 4


KEEPS_SHARED_MEMORY = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def made(path):
    file = open(path, "w+b")
    file.truncate(4096)
    return mmap.mmap(file.fileno(), 4096)
kept = [made(path) for path in (MAPPED, "/dev/shm/torch_%d_1_0" % os.getpid(), NAMED_OTHERWISE)]
print("ready", flush=True)
time.sleep(1e6)
"""


def test_shared_memory_of_a_killed_job_goes_with_it_and_no_other(tmp_path: Path) -> None:
    tag = secrets.token_hex(6)
    mapped, other, data = (Path("/dev/shm", name + tag) for name in ("nccl-", "nccl-other-", "checkpoint-"))
    names = f"MAPPED, NAMED_OTHERWISE = {str(mapped)!r}, {str(data)!r}"
    job = python_job(tmp_path, names + KEEPS_SHARED_MEMORY)
    other.write_bytes(b"of another job")
    try:
        with GuardedNode(tmp_path, SHIM, env=job) as node:
            node.go().wait("rank", rank=0)
            wait_for(lambda: node.read(0.02) and b"ready" in node.output(0), "its files")
            (own,) = Path("/dev/shm").glob(f"torch_{node.get('rank', rank=0)['pid']}_*")
            node.tell({"type": "end", "reason": "a test", "grace_s": 0.5})
            node.wait("ended", left=[])
            assert not (mapped.exists() or own.exists())
            assert other.exists() and data.exists()
    finally:
        for path in (mapped, other, data):
            path.unlink(missing_ok=True)


def test_last_look_ends_what_carries_the_tag_and_says_so(tmp_path: Path) -> None:
    run = f"t-last-look-{os.getpid()}"
    env = {**os.environ, "RINGUP_RUN": run, "RINGUP_NODE": "3"}
    process = subprocess.Popen(FOREVER, env=env)
    words = [sys.executable, "-c", program("guard.final_sweep"), run, "1", "0"]
    said = subprocess.run(words, capture_output=True, check=True).stdout
    assert process.wait(60) == -9
    answer = json.loads(said)
    assert answer["killed"] == [[process.pid, "sleep 300"]]
    assert answer["left"] == [] and answer["port_held"] is False
