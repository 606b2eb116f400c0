"""The program that looks at a node's ranks: real processes, a RAS server."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.agent_bundle import program, source
from ringup.flight_recorder.dump import from_data
from ringup.hang import grouping, ras
from ringup.hang.snapshots import NodeLook, RankLook, decode
from ringup.hang.stack_frames import doing, place_of
from ringup.transport import bootstrap
from tests.guards import wait_for

pytestmark = pytest.mark.slow

BARE = {"PATH": "/usr/bin:/bin"}
SOURCE = str(Path(ras.__file__).parents[2])
BRIEF = """\
import json, sys
from ringup.agent.snapshot import stacks
print(json.dumps(stacks.brief(json.load(sys.stdin), 60)))
"""
PYTHON = str(getattr(sys, "_base_executable", sys.executable))
"""The interpreter without what is installed beside this project: it has no py-spy."""
HERE = """\
import os, signal, subprocess, sys, time
def here():
    print("up", flush=True)
    {what}
here()
"""


class Rank:
    """A process with a rank's environment, under rank_main.py or (`plain`) not."""

    def __init__(
        self,
        folder: Path,
        what: str,
        *,
        plain: bool = False,
        env: dict[str, str] | None = None,
        python: str = PYTHON,
        module: str = "",
    ):
        """`module`: the script is installed as this, and started by its name."""
        self.run = "t" + secrets.token_hex(6)
        self.runner = folder / "rank_main.py"
        self.runner.write_text(source("rank.rank_main"))
        script = folder / f"site-packages/{module.replace('.', '/')}.py" if module else folder / "train.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(HERE.format(what=what))
        words = [
            python,
            *([] if plain else [str(self.runner)]),
            *(["-m", module] if module else ["train.py"]),
        ]
        own = {
            **BARE,
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "RINGUP_RUN": self.run,
            "PYTHONPATH": str(folder / "site-packages"),
            **(env or {}),
        }
        self.process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout and self.process.stdout.readline() == "up\n"

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def wait_for_state(self, state: str) -> None:
        def reached() -> bool:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
            return stat.rpartition(")")[2].split()[0] == state

        wait_for(reached, f"state {state}")

    def look(self, mode: str = "stacks", env: dict[str, str] | None = None, pyspy: str = "") -> NodeLook:
        """What the node says of this run; `pyspy`: what the launching side has sent."""
        words = (mode, self.run, "", *([pyspy] if pyspy else []))
        start, stdin = bootstrap.python_script(PYTHON, "look", program("snapshot.main"), words)
        done = subprocess.run(
            ["sh", "-c", start],
            input=stdin,
            capture_output=True,
            env={**os.environ, **BARE, **(env or {})},
        )
        assert done.returncode == 0, done.stderr
        return decode("n1", json.loads(done.stdout))

    def seen(self, mode: str = "stacks", env: dict[str, str] | None = None, pyspy: str = "") -> RankLook:
        """The one rank that there is."""
        (rank,) = self.look(mode, env, pyspy).ranks
        return rank

    def stack(self, function: str = "here") -> RankLook:
        """The one rank, once it waits in this function: until then it may not be signalled."""
        seen: list[RankLook] = []

        def reached() -> bool:
            seen[:] = [self.seen()]
            return any(frame.function == function for frame in seen[0].frames[:1])

        wait_for(reached, f"a stack in {function}")
        return seen[0]

    def with_child(self) -> RankLook:
        """The one rank, once both it and a child of it have told their stacks."""

        def both() -> RankLook | None:
            seen = self.seen()
            return seen if seen.frames and any(child.frames for child in seen.children) else None

        found: RankLook = wait_for(both, "the stacks of both")
        return found


def test_a_sleeping_rank_is_seen_with_its_line(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as rank:
        seen = rank.stack()
        assert (seen.rank, seen.local_rank, seen.world_size, seen.run) == (3, 1, 4, rank.run)
        assert seen.pid == rank.process.pid and seen.how == "signal"
        place = place_of(seen.frames)
        assert (place.where, place.function, place.source) == ("train.py:4", "here", "time.sleep(60)")
        assert doing(seen) == "asleep"
        assert rank.process.poll() is None


def test_bytes_that_a_rank_writes_for_its_stack_are_counted_apart(tmp_path: Path) -> None:
    with Rank(tmp_path, "if os.fork(): time.sleep(60)\n    else: time.sleep(60)") as rank:
        first = rank.with_child()
        assert 0 < first.answer_bytes == rank.seen().io_bytes - first.io_bytes


def test_a_script_that_is_installed_itself_is_seen_with_its_line(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "package" / "operations.py"
    library.parent.mkdir(parents=True)
    library.write_text("import time\ndef gather():\n    time.sleep(60)\n")
    what = "from package.operations import gather; gather()"
    with Rank(tmp_path, what, module="package.scripts.test_loop") as rank:
        place = place_of(rank.stack("gather").frames)
        assert (place.where, place.function) == ("test_loop.py:4", "here")


def test_a_wait_for_the_gpu_in_a_librarys_line_is_seen_as_one(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "scaler.py").write_text(
        "import time\nclass Tensor:\n    item = staticmethod(time.sleep)\n"
        "def step():\n    return Tensor().item(60)\n"
    )
    with Rank(tmp_path, "sys.path.insert(0, 'site-packages'); import scaler; scaler.step()") as rank:
        place = place_of(rank.stack("step").frames)
        assert (place.kind, place.what, place.where) == ("device", "the GPU", "train.py:4")


@pytest.mark.skipif(os.geteuid() != 0, reason="another root needs root")
def test_the_line_of_a_rank_with_another_root_is_not_taken_from_ours(tmp_path: Path) -> None:
    with Rank(tmp_path, "os.mkdir('root'); os.chroot('root'); time.sleep(60)") as rank:
        wait_for(lambda: Path(f"/proc/{rank.process.pid}/root").readlink() != Path("/"), "the other root")
        (frame, _) = rank.stack().frames
        assert frame.line == 4 and frame.source == ""


def test_of_a_flight_recorder_what_is_read_is_passed_on_and_no_more() -> None:
    frames = [{"filename": f"/v/site-packages/lib{n}.py", "line": n, "name": "f" * 99} for n in range(40)]
    frames += [{"filename": "/home/u/train.py", "line": 88, "name": "main"}] * 2
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
    }
    entry |= {"frames": frames, "input_sizes": [[8]], "output_sizes": [[8]], "state": "scheduled"}
    dump = {"version": "2.10", "entries": [{**entry, "record_id": n} for n in range(200)], "now_ns": 5}
    done = subprocess.run(
        [PYTHON, "-c", BRIEF],
        input=json.dumps(dump),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr
    flight = from_data(json.loads(done.stdout))
    assert [len(flight.entries), flight.entries[-1].record, flight.now_ns] == [60, 199, 5]
    assert (flight.entries[0].where, flight.entries[0].call) == ("train.py:88", "all_reduce [8]")
    assert len(done.stdout) / 60 < 400  # 64 ranks of a node tell this in one answer


def test_of_an_installed_scripts_recorder_the_scripts_own_line_is_passed_on() -> None:
    script = "/v/lib/python3.11/site-packages/accelerate/test_utils/scripts/test_loop.py"
    files = ["/v/lib/python3.11/site-packages/torch/c10d.py", script, "<frozen runpy>", "/r/rank_main.py"]
    frames = [{"filename": file, "line": n} for n, file in enumerate(files)]
    done = subprocess.run(
        [PYTHON, "-c", BRIEF],
        input=json.dumps({"entries": [{"frames": frames}]}),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SOURCE},
        check=True,
    )
    assert json.loads(done.stdout)["entries"][0]["frames"] == [frames[1]]


def test_a_rank_that_reads_a_fifo_is_seen_with_the_fifo(tmp_path: Path) -> None:
    what = "os.mkfifo('in.fifo'); fd = os.open('in.fifo', os.O_RDWR); os.read(fd, 1)"
    with Rank(tmp_path, what) as rank:
        wait_for(lambda: "in.fifo" in rank.seen().syscall, "the read")
        assert doing(rank.seen()) == f"in read of {tmp_path}/in.fifo"


@pytest.mark.parametrize("call", ["flock", "lockf"])
def test_the_process_that_holds_a_file_lock_is_named(tmp_path: Path, call: str) -> None:
    lock = (
        f"import fcntl, time; f = open({str(tmp_path / 'cache.lock')!r}, 'a'); fcntl.{call}(f, fcntl.LOCK_EX)"
    )
    holder = subprocess.Popen(
        [PYTHON, "-c", f"{lock}; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout
        holder.stdout.readline()
        with Rank(tmp_path, lock) as rank:
            held = f"cache.lock, held by process {holder.pid} ("
            wait_for(lambda: held in doing(rank.seen()), "the holder")
        holder.kill()


@pytest.mark.parametrize("call", ["recv(9)", "send(bytes(99 << 20))"])
def test_the_other_end_of_a_connection_that_does_not_answer_is_named(tmp_path: Path, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        what = f"import socket; socket.create_connection(('127.0.0.1', {port})).{call}"
        with Rank(tmp_path, what) as rank:
            expected = f" of the connection to 127.0.0.1 port {port}"
            wait_for(lambda: rank.seen().syscall.endswith(expected), "the call")


def test_a_rank_in_state_d_is_asked_through_another_thread(tmp_path: Path) -> None:
    what = "import _thread; _thread.start_new_thread(time.sleep, (60,)); os.mkfifo('f'); " + (
        "f = [(os.POSIX_SPAWN_OPEN, 0, 'f', os.O_RDONLY, 0)];"
        " os.posix_spawn('/bin/true', ['true'], {}, file_actions=f)"
    )
    with Rank(tmp_path, what) as rank:
        rank.wait_for_state("D")
        seen = rank.stack()
        place = place_of(seen.frames)
        assert place.where == "train.py:4" and "posix_spawn" in place.source
        assert "cannot be interrupted (state D)" in doing(seen)
        os.close(os.open(tmp_path / "f", os.O_RDWR))  # lets both go


BUSY = "exec('while True: sum(map(len, [str(n) for n in range(99)]))')"
HELD = {"sleeps": "__import__('ctypes').PyDLL(None).sleep(60)", "computes": "sum(range(10**15))"}
"""C code that keeps the interpreter's lock."""


def written(pid: int, name: str) -> int:
    """How many bytes a process has in its file in memory of that name."""
    folder = Path(f"/proc/{pid}/fd")
    (found,) = (fd for fd in folder.iterdir() if str(fd.readlink()).startswith(f"/memfd:{name}"))
    return found.stat().st_size


def with_framework(folder: Path, what: str) -> str:
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "torch.py").write_text("")
    return "import torch; " + what


def test_no_signal_interrupts_python_code(tmp_path: Path) -> None:
    """A handler that reads a frame being made ends the process."""
    with Rank(tmp_path, BUSY) as rank:
        seen = rank.seen()
        assert not seen.frames and seen.why_not.startswith("it runs Python code, which a signal may not")
        assert written(rank.process.pid, "ringup-stack") == 0


def test_with_a_framework_a_thread_tells_the_line_of_python_code(tmp_path: Path) -> None:
    with Rank(tmp_path, with_framework(tmp_path, BUSY)) as rank:
        seen = wait_for(lambda: (one := rank.seen()).frames and one, "its thread")
        assert seen.how == "thread" and place_of(seen.frames).where == "train.py:4"
        (other,) = (r for r in rank.look("threads").ranks)
        assert [len(threads) for threads in (seen.threads, other.threads)] == [0, 0]
        assert written(rank.process.pid, "ringup-stack") == 0
        assert rank.process.poll() is None


@pytest.mark.parametrize("how", HELD)
def test_c_code_that_keeps_the_lock_is_interrupted_by_a_signal(how: str, tmp_path: Path) -> None:
    with Rank(tmp_path, with_framework(tmp_path, HELD[how])) as rank:
        seen = rank.stack()
        assert seen.how == "signal" and place_of(seen.frames).where == "train.py:4"


def test_a_forked_child_is_not_mistaken_for_its_parent(tmp_path: Path) -> None:
    """It has its parent's files and not its parent's thread."""
    what = with_framework(
        tmp_path, "time.sleep(60) if os.fork() else __import__('select').select([], [], [])"
    )
    with Rank(tmp_path, what) as rank:
        seen = rank.with_child()
        (child,) = seen.children
        assert "time.sleep" in seen.frames[0].source and child.frames[0].line == 4
        assert written(child.pid, "ringup-stack") > 0
        os.kill(child.pid, signal.SIGKILL)


def test_a_script_that_closes_every_file_lives_on(tmp_path: Path) -> None:
    with Rank(tmp_path, with_framework(tmp_path, "os.closerange(3, 99); time.sleep(60)")) as rank:
        wait_for(lambda: rank.seen().why_not.startswith("it was not started by ringup"), "no files")
        assert rank.process.poll() is None


def test_a_stopped_rank_is_not_signalled_and_named_as_stopped(tmp_path: Path) -> None:
    with Rank(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)") as rank:
        rank.wait_for_state("T")
        seen = rank.seen()
        assert not seen.frames and "stopped" in doing(seen)
        assert seen.why_not == "it is stopped and answers nothing; no py-spy on this node"


def test_a_process_that_did_not_ask_for_signals_gets_none(tmp_path: Path) -> None:
    what = (
        "[signal.signal(n, lambda *_: open('signalled', 'w')) for n in (signal.SIGWINCH, signal.SIGURG)];"
        " time.sleep(60)"
    )
    with Rank(tmp_path, what, plain=True) as rank:
        wait_for(lambda: doing(rank.seen()) == "asleep", "its sleep")
        seen = rank.seen()
        assert not seen.frames and "not started by ringup" in seen.why_not
        assert not (tmp_path / "signalled").exists()


def test_a_forked_worker_tells_its_line_too(tmp_path: Path) -> None:
    what = "os.fork(); time.sleep(60)"
    with Rank(tmp_path, what) as rank:
        (child,) = rank.with_child().children
        assert place_of(child.frames).where == "train.py:4"
        os.kill(child.pid, signal.SIGKILL)


def test_a_file_server_that_does_not_answer_holds_nothing_up() -> None:
    program = (
        "import time\nfrom ringup.agent.snapshot import machine\n"
        "def work():\n yield 1\n yield [2]\n time.sleep(600)\n yield 3\n"
        "print(machine.bounded(work(), 5.0), machine.bounded(iter([4]), 60.0))"
    )
    done = subprocess.run(
        [PYTHON, "-c", program], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": SOURCE}
    )
    assert done.stdout == "[1, [2]] [4]\n", done.stderr


@pytest.mark.parametrize("env", [{"NCCL_RAS_ADDR": "x" * 80 + ":²"}, {"PMI_RANK": "²", "RANK": ""}])
def test_an_environment_of_odd_values_spoils_no_look(env: dict[str, str], tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)", env=env) as rank:
        assert len(rank.look("count").ranks) == ("RANK" not in env)


STARTS = (
    "ends = [sys.executable, '-c', 'import sys; sys.stdin.read()']; "
    "numbers = [dict(os.environ, RANK=str(n), WORLD_SIZE='2') for n in range(2)]; "
    "started = [subprocess.Popen(ends, env=env, stdin=subprocess.PIPE) for env in numbers]; started[0].wait()"
)


@pytest.mark.parametrize(("rank", "size", "seen"), [("0", "1", [0, 1]), ("3", "8", [3])])
def test_a_script_that_starts_the_ranks_of_a_larger_world_is_none_of_them(
    rank: str, size: str, seen: list[int], tmp_path: Path
) -> None:
    """But a rank stays one, and the only one, if it starts a small world for some work of its own."""
    with Rank(tmp_path, STARTS, env={"RANK": rank, "WORLD_SIZE": size}) as one:
        folder = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children")
        wait_for(lambda: len(folder.read_text().split()) == 2, "both processes")
        below = sorted(map(int, folder.read_text().split()))
        wait_for(
            lambda: all(b"WORLD_SIZE=2" in Path(f"/proc/{pid}/environ").read_bytes() for pid in below),
            "both started",
        )
        ranks = one.look("count").ranks
        assert [found.rank for found in ranks] == seen
        assert [found.pid for found in ranks] == (below if size == "1" else [one.process.pid])


@pytest.mark.parametrize("script", ["train.py", "torchrun"])
def test_what_a_rank_of_mpi_starts_is_no_rank_though_it_inherits_a_rank_s_variables(
    script: str, tmp_path: Path
) -> None:
    """A launcher of the same numbers, one process a node, is none."""
    ends = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()']"
    own = "dict(__import__('os').environ, RANK='1', WORLD_SIZE='2')"
    (tmp_path / script).write_text(f"{ends}, env={own}, stdin=subprocess.PIPE).wait()\n")
    mark = "t" + secrets.token_hex(6)
    known = {**os.environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "RINGUP_RUN": mark}
    with subprocess.Popen([PYTHON, script], cwd=tmp_path, env=known) as process:
        try:
            folder = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_for(lambda: folder.read_text().split(), "the child")
            (child,) = map(int, folder.read_text().split())
            wait_for(lambda: b"\0RANK=" in Path(f"/proc/{child}/environ").read_bytes(), "its start")
            start, stdin = bootstrap.python_script(
                PYTHON, "look", program("snapshot.main"), ("count", mark, "")
            )
            done = subprocess.run(["sh", "-c", start], input=stdin, capture_output=True, check=True)
            (seen,) = decode("n1", json.loads(done.stdout)).ranks
            assert seen.pid == (process.pid if script == "train.py" else child)
        finally:
            process.kill()


def test_counting_asks_nobody(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as rank:
        seen = rank.seen("count")
        assert not seen.frames and not seen.how
        assert written(rank.process.pid, "ringup-stack") == 0


def test_a_rank_below_a_shell_is_found_once(tmp_path: Path) -> None:
    with Rank(tmp_path, "subprocess.run(['sleep', '60'])") as rank:
        assert len(rank.look().ranks) == 1


class Ras(socketserver.StreamRequestHandler):
    """NCCL's RAS as its user guide describes it; `server.knows_json` from 2.28.7 on."""

    def handle(self) -> None:
        form = "text"
        for raw in self.rfile:
            words = raw.decode().strip().upper()
            if words.startswith("CLIENT PROTOCOL"):
                self.wfile.write(b"SERVER PROTOCOL 2\n")
            elif words.startswith("TIMEOUT"):
                self.wfile.write(b"OK\n")
            elif words == "SET FORMAT JSON" and self.server.knows_json:  # type: ignore[attr-defined]
                form = "json"
                self.wfile.write(b"OK\n")
            elif words.endswith("STATUS"):
                self.wfile.write({"json": JSON_REPORT, "text": TEXT_REPORT}[form].encode())
                return
            else:
                self.wfile.write(b"ERROR: Invalid format\n")


JSON_REPORT = json.dumps(
    {
        "nccl_version": "2.30.7",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "ab12",
                "size": 4,
                "ranks": [
                    {
                        "rank": n,
                        "host": "n1",
                        "pid": 100 + n,
                        "collective_counts": {"AllReduce": 42 - (n == 1)},
                    }
                    for n in range(3)
                ],
                "missing_ranks": [
                    {
                        "rank": 3,
                        "host": "n2",
                        "pid": 7,
                        "status": {"unresponsive": True, "considered_dead": True},
                    }
                ],
            }
        ],
    }
)
TEXT_REPORT = """\
NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Communicators... (0.00s)
=============

Errors
======

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 job process
  The missing rank: 6

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 16 on node 172.16.64.213
"""


@contextlib.contextmanager
def serving(knows_json: bool) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ras) as server:
        server.knows_json = knows_json  # type: ignore[attr-defined]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("knows_json", [True, False])
def test_ras_is_asked_where_it_listens(knows_json: bool, tmp_path: Path) -> None:
    with (
        serving(knows_json) as address,
        Rank(tmp_path, "time.sleep(60)", env={"NCCL_RAS_ADDR": address}) as rank,
    ):
        answer = rank.look("count").ras
    assert answer and not answer.problem and answer.format == ("json" if knows_json else "text")
    report = ras.read(answer.format, answer.report)
    found = {(one.rank, one.what) for one in report}
    if knows_json:
        assert found == {(1, "AllReduce: 41 launched, the others 42"), (3, "is considered dead")}
    else:
        assert found == {(5, "AllReduce: 6649 launched, the others 6650"), (6, "does not answer")}
        assert {one.pid for one in report} == {16, 0}


def test_where_nobody_listens_there_is_no_ras(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)", env={"NCCL_RAS_ADDR": "127.0.0.1:1"}) as rank:
        assert rank.look("count").ras is None


class Silent(socketserver.BaseRequestHandler):
    """Somebody else on that port."""

    def handle(self) -> None:
        self.request.sendall(b"220 mail\n" * 3)


def test_somebody_else_on_the_port_is_no_ras(tmp_path: Path) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with Rank(tmp_path, "time.sleep(60)", env={"NCCL_RAS_ADDR": address}) as rank:
            answer = rank.look("count").ras
        server.shutdown()
        thread.join()
    assert answer and (answer.problem or not ras.read(answer.format, answer.report))


@pytest.mark.parametrize(
    "report", ["", "[]", "{", '{"communicators": 3}', '{"communicators": [{"ranks": [1]}]}']
)
def test_a_ras_report_that_is_none_names_nobody(report: str) -> None:
    assert not ras.read("json", report) and not ras.read("text", report)


def test_a_ras_report_with_numbers_without_end_names_nobody() -> None:
    text = f"NCCL version 2.28\n#0-0 (ab) MISMATCH\nRank {'9' * 5000} has launched up to operation 5\n"
    assert not ras.read("text", text + f"The missing rank: {'9' * 6000}\n")


@pytest.mark.parametrize("said", [{}, {"ranks": 3}, {"problem": "x\x1b[2J"}, {"type": "look", "at": "now"}])
def test_a_node_that_says_anything_else_is_a_problem_in_safe_words(said: dict[str, Any]) -> None:
    look = decode("n1", said)
    assert look.problem and look.problem.isprintable() and not look.ranks


def said_of_rank(**fields: Any) -> dict[str, Any]:
    """A node's answer that holds one rank."""
    rank = {
        "rank": 0, "local_rank": 0, "world_size": 1, "run": "r", "node": "", "job": ["", "", ""], "pid": 1,
        "started": 1, "age_s": 1.0, "state": "S", "wchan": "", "syscall": "", "cpu_s": 1.0, "io_bytes": 1,
        "switches": 1, "command": "c", "children": [], **fields,
    }  # fmt: skip
    node = dict.fromkeys(("memory_bytes", "memory_available_bytes", "swapped_pages", "oom_kills"), 0)
    node |= {"cgroup_oom_kills": 0, "disks": [], "interfaces": {}}
    return {"at": 1.0, "mode": "stacks", "ranks": [rank], "node": node}


@pytest.mark.parametrize(
    "odd",
    [{"io_bytes": 10**400}, {"threads": [[[["f.py", float("inf"), "g"]], "t"]]}, {"cpu_s": 10**400}],
)
def test_numbers_that_nothing_can_hold_are_a_problem_and_no_traceback(odd: dict[str, Any]) -> None:
    look = decode("n1", said_of_rank(**odd))
    assert look.problem.startswith("its answer cannot be read")


def test_command_lines_and_source_lines_of_ranks_are_shown_without_secrets() -> None:
    frames = [["/x/train.py", 4, "main", 'login(token="tok3nAb12")']]
    command = "python train.py --url https://ada:tok3n@host"
    child = {"pid": 2, "command": command, "state": "S", "wchan": "", "syscall": "", "cpu_s": 1.0}
    look = decode("n1", said_of_rank(command=command, threads=[[frames, "t"]], children=[child]))
    assert look.ranks and look.ranks[0].children and "tok3n" not in repr(look)


def test_ranks_are_folded_into_few_lines(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as rank:
        assert grouping.lines([rank.stack()]) == ["rank 3 (n1): train.py:4 in here: time.sleep(60), asleep"]
