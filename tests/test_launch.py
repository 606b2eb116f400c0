"""A run of two nodes simulated on this machine, from the plan to run.json."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringup import hosts
from ringup.model import Host, Job
from ringup.output import console
from ringup.planning import EnvVar, NodePlan, Plan
from ringup.runtime import Event, RunResult, Save, record, ssh
from ringup.runtime.node_state import NodeRun
from ringup.runtime.output import Output
from ringup.runtime.record import plan_json, plan_text
from ringup.transport import Transport
from tests.guards import alive, tagged, wait_for

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"), pytest.mark.slow]

LAUNCHER = """
import os, select, subprocess, sys
run_dir, first, nproc = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shim = [sys.executable, "-S", "-E", run_dir + "/rank.py"]
def start(i):
    env = {**os.environ, "RANK": str(first + i), "LOCAL_RANK": str(i)}
    return subprocess.Popen(shim, start_new_session=True, env=env)
ranks = [start(i) for i in range(nproc)]
while True:
    codes = [r.poll() for r in ranks]
    if any(codes):
        for r in ranks: r.terminate()
        for r in ranks: r.wait()
        sys.exit(1)
    if all(c == 0 for c in codes): break
    select.select([], [], [], 0.02)  # time.sleep fails under libfaketime
"""
"""What torchrun does: one failing rank ends its siblings, and the answer is always 1."""


def make_plan(
    folder: Path, script: str, *, nodes: int = 2, nproc: int = 2, hosts_: tuple[Host, ...] = (), **job: Any
) -> Plan:
    """`nodes` local nodes (or `hosts_`) whose ranks run `script`, a Python source."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launcher.py").write_text(LAUNCHER)
    (folder / "script.py").write_text("import os, sys, time\nrank = int(os.environ['RANK'])\n" + script)
    run_id = "t" + secrets.token_hex(6)
    plans = []
    for rank, host in enumerate(hosts_ or hosts.local_nodes(nodes)):
        run_dir = str(folder / f"{run_id}-{rank}")
        words = (sys.executable, str(folder / "launcher.py"), run_dir, str(rank * nproc), str(nproc))
        env = {"RINGUP_SCRIPT": str(folder / "script.py"), **job.get("env", {})}
        plans.append(
            NodePlan(
                host.name,
                rank,
                nproc,
                rank * nproc,
                "lo",
                host.address,
                words,
                env,
                chdir=str(folder),
                run_dir=run_dir,
            )
        )
    env_vars = tuple(EnvVar(k, v, "asked for") for k, v in job.get("env", {}).items())
    return Plan(
        run_id,
        Job(script="script.py", env=job.get("env", {})),
        tuple(plans),
        env_vars,
        "127.0.0.2",
        1,
        nodes * nproc,
    )


class Run:
    """A finished run and everything it showed."""

    def __init__(self, folder: Path, script: str, *, nodes: int = 2, nproc: int = 2, **options: Any) -> None:
        self.shown: list[str] = []
        self.events: list[Event] = []
        self.log_dir = folder / "logs"
        self.plan = make_plan(folder, script, nodes=nodes, nproc=nproc, **options.pop("job", {}))
        with Transport(hosts.local_nodes(nodes)) as door:
            self.result: RunResult = ssh.run(
                self.plan,
                door,
                log_dir=self.log_dir,
                write=self.shown.append,
                on_event=self.events.append,
                **options,
            )
        assert not tagged(self.plan.run_id)

    @property
    def text(self) -> str:
        return "".join(self.shown)

    @property
    def record(self) -> dict[str, Any]:
        return json.loads((self.log_dir / "run.json").read_text())


def test_healthy_run_shows_every_rank_and_is_written_down(tmp_path: Path) -> None:
    run = Run(tmp_path, "print('hello from', rank)")
    assert (run.result.outcome, run.result.exit_code) == ("ok", 0)
    for rank in range(4):
        node = f"127.0.0.{2 + rank // 2}"
        assert f"{node}:{rank}| hello from {rank}\n" in run.text
        assert (run.log_dir / f"rank-{rank:05d}-{node}.log").read_text() == f"hello from {rank}\n"
    assert run.record["outcome"] == "ok"
    assert [(r["rank"], r["code"]) for r in run.record["ranks"]] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert run.record["cleanup"] == [] and run.record["first_failure"] is None
    assert not list(tmp_path.glob(f"{run.plan.run_id}-*"))


def test_run_json_is_json_to_strict_readers_too(tmp_path: Path) -> None:
    run = Run(tmp_path, "", nodes=1, nproc=1)
    assert "a guard on the node" in [event.text for event in run.events]
    text = (run.log_dir / "run.json").read_text()
    assert "Infinity" not in text and "NaN" not in text


def test_first_failing_rank_gives_code_and_last_words(tmp_path: Path) -> None:
    run = Run(
        tmp_path, "print('a\\nb', flush=True)\nif rank == 3: time.sleep(0.1); sys.exit(3)\ntime.sleep(300)"
    )
    failure = run.result.failure
    assert (run.result.outcome, run.result.exit_code) == ("rank-failed", 3)
    assert (failure.rank, failure.node, failure.code, failure.lines) == (3, "127.0.0.3", 3, ("a", "b"))
    assert failure.what == "rank 3 on 127.0.0.3: exit code 3"
    assert Path(failure.file).read_text() == "a\nb\n"
    assert run.record["first_failure"]["rank"] == 3
    assert {r["code"] for r in run.record["ranks"]} == {3, -15}


@pytest.mark.parametrize(
    ("how", "code"), [("os.kill(os.getpid(), 9)", 137), ("raise KeyError('loss')", 1), ("os.abort()", 134)]
)
def test_way_a_rank_ends_is_the_exit_code(tmp_path: Path, how: str, code: int) -> None:
    run = Run(tmp_path, f"if rank == 2: {how}\ntime.sleep(300)")
    assert run.result.exit_code == code
    assert run.result.failure.rank == 2


def test_victim_that_ends_first_is_not_blamed(tmp_path: Path) -> None:
    script = f"""
import pathlib, threading
raised, other = [pathlib.Path({str(tmp_path)!r}, name) for name in ("raised", "other")]
def until(path):
    while not path.exists():
        time.sleep(0.01)
if rank == 0:
    # The process ends after its traceback is printed, and after the other rank has failed.
    def stay():
        threading.main_thread().join()
        raised.touch()
        until(other)
    threading.Thread(target=stay).start()
    raise ValueError("the cause")
until(raised)
other.touch()
raise RuntimeError("Connection closed by peer")
"""
    run = Run(tmp_path, script)
    assert run.result.failure.rank == 0
    assert run.result.failure.lines[-1] == "ValueError: the cause"
    assert not run.result.failure.is_consequence


def test_launcher_that_fails_before_any_rank_is_quoted(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "")
    nodes = (
        plan.nodes[0],
        *(
            n.__class__(**{**n.__dict__, "words": ("sh", "-c", "echo no torch >&2; exit 7", n.run_dir)})
            for n in plan.nodes[1:]
        ),
    )
    plan = Plan(**{**plan.__dict__, "nodes": nodes})
    (tmp_path / "script.py").write_text("import time; time.sleep(300)")
    with Transport(hosts.local_nodes(2)) as door:
        result = ssh.run(plan, door, log_dir=tmp_path / "logs")
    assert (result.outcome, result.exit_code) == ("launcher-error", 7)
    assert result.failure.lines == ("no torch",)
    assert (tmp_path / "logs" / "node1-launcher.log").read_text() == "no torch\n"


def test_job_without_shims_is_shown_and_judged_itself(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "", nodes=1)
    node = dataclasses.replace(plan.nodes[0], words=("sh", "-c", "echo plain; exit 6"))
    shown: list[str] = []
    with Transport(hosts.local_nodes(1)) as door:
        plan = dataclasses.replace(plan, nodes=(node,))
        result = ssh.run(plan, door, log_dir=tmp_path / "logs", write=shown.append)
    assert "127.0.0.2| plain\n" in shown
    assert (result.outcome, result.exit_code) == ("rank-failed", 6)
    assert result.failure.what == "the job on 127.0.0.2: exit code 6"


def test_hostile_output_is_shown_without_its_power(tmp_path: Path) -> None:
    script = "os.write(1, b'\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\xff\\x00 10%\\r20%\\n' + b'z' * 1000000)"
    run = Run(tmp_path, script, nproc=1, nodes=1)
    assert "\x1b" not in run.text and "\x07" not in run.text and "\x00" not in run.text
    assert "127.0.0.2:0| 20%\n" in run.text
    assert max(len(line) for line in run.text.splitlines()) < 5000
    assert (run.log_dir / "rank-00000-127.0.0.2.log").stat().st_size > 1000000


def test_secrets_stand_in_no_record_and_no_dry_run(tmp_path: Path) -> None:
    env = {"HF_TOKEN": "hf_abcdef", "GREETING": "it's $(x)\n"}
    run = Run(tmp_path, "print(os.environ['HF_TOKEN'] == 'hf_' + 'abcdef')", nproc=1, job={"env": env})
    assert "127.0.0.2:0| True" in run.text
    assert "hf_abcdef" not in (run.log_dir / "run.json").read_text()
    told = ("train.py", "--hub-token", "hf_abcdef", "--api-key=hf_abcdef", "--steps", "3")
    job = dataclasses.replace(run.plan.job, setup="export HF_TOKEN=hf_abcdef; module load x", arguments=told)
    nodes = [dataclasses.replace(n, setup=job.setup, words=told) for n in run.plan.nodes]
    shown = json.dumps(plan_json(dataclasses.replace(run.plan, job=job, nodes=tuple(nodes))))
    assert "hf_abcdef" not in shown and "module load x" in shown and '"--steps", "3"' in shown
    text = plan_text(run.plan)
    assert "hf_abcdef" not in text and "export HF_TOKEN=(hidden)" in text
    assert r"export GREETING=$'it\'s $(x)\n'  # asked for" in text


def test_reader_that_never_reads_does_not_hold_up_the_run(tmp_path: Path) -> None:
    script = "for i in range(200): print('y' * 50000)"
    plan = make_plan(tmp_path, script, nodes=1, nproc=1)
    read_end, write_end = os.pipe()
    try:
        with Transport(hosts.local_nodes(1)) as door:
            result = ssh.run(
                plan,
                door,
                log_dir=tmp_path / "logs",
                write=lambda text: os.write(write_end, text.encode()),
                lease_s=5,
            )
        assert result.outcome == "ok"
        assert (tmp_path / "logs" / "rank-00000-127.0.0.2.log").stat().st_size == 200 * 50001
    finally:
        os.close(read_end)
        os.close(write_end)


def test_log_directory_that_cannot_be_made_is_said_before_anything_starts(tmp_path: Path) -> None:
    from ringup.errors import LaunchError

    (tmp_path / "file").write_text("")
    with Transport(hosts.local_nodes(1)) as door, pytest.raises(LaunchError, match="cannot be written"):
        ssh.run(make_plan(tmp_path, "", nodes=1), door, log_dir=tmp_path / "file" / "logs")


@pytest.mark.parametrize(
    "lost", ["shutil.rmtree(logs, ignore_errors=True)", "logs.rename(logs.with_name('elsewhere'))"]
)
def test_a_log_directory_that_vanishes_hides_no_failure(tmp_path: Path, lost: str) -> None:
    script = f"""
import pathlib, shutil
logs = pathlib.Path({str(tmp_path / "logs")!r})
print("the data is bad", flush=True)
while rank == 0 and logs.exists():
    {lost}
if rank == 0:
    sys.exit(7)
time.sleep(300)
"""
    run = Run(tmp_path, script)
    assert (run.result.outcome, run.result.exit_code) == ("rank-failed", 7)
    assert any("run.json" in note for note in run.result.notes)
    assert run.result.record["exit_code"] == 7 and run.result.record["notes"] == list(run.result.notes)
    told = console.run_lines(run.result, console.Style(io.StringIO()))
    assert "  | the data is bad" in told and "  it printed nothing" not in told


def test_a_record_that_does_not_fit_leaves_the_old_one_alone(tmp_path: Path) -> None:
    record.write(tmp_path, {"outcome": "running"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            record.write(tmp_path, {"outcome": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text()) == {"outcome": "running"}


def test_one_thing_that_cannot_be_written_loses_nothing_else(tmp_path: Path) -> None:
    output = Output(tmp_path, None)
    output.later(lambda: {}["changed while it was read"])
    output.to_file("rank.log", b"said\n")
    output.close()
    assert (tmp_path / "rank.log").read_bytes() == b"said\n"
    assert "changed while it was read" in output.problem


def test_files_that_are_not_complete_are_said_once_and_while_it_runs(tmp_path: Path) -> None:
    output, told = Output(tmp_path / "gone", None), list[Event]()
    output.show_problem(told.append)
    assert told == []
    output.to_file("rank.log", b"said\n")
    output.close()
    output.show_problem(told.append)
    output.show_problem(told.append)
    assert [event.kind for event in told] == ["problem"]
    lacks = "the log directory lacks output from then on; the run continues"
    assert told[0].text.endswith(f"rank.log: No such file or directory: {lacks}")


def test_a_guard_that_fails_by_itself_is_not_said_to_be_killed(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "", nodes=1)
    for status, stuck, words in (
        (9, False, "was killed by SIGKILL (9)"),
        (9, True, "made no progress"),
        (70 << 8, False, "failed with 70: OSError: [Errno 23] file table overflow"),
    ):
        node = NodeRun(plan.nodes[0], Output(tmp_path, None), lambda *_: None)
        node.errors = b"Traceback ...\nOSError: [Errno 23] file table overflow\n"
        told = {"status": status, "stuck": stuck, "at": 1.0, "killed": [], "left": []}
        node.hear({"type": "guard-lost", **told})
        assert words in node.ends[-1].words


def test_a_flood_of_problems_from_a_node_stays_bounded(tmp_path: Path) -> None:
    node = NodeRun(make_plan(tmp_path, "", nodes=1).nodes[0], Output(tmp_path, None), lambda *_: None)
    for _ in range(20_000):
        node.hear({"type": "problem", "words": "x", "at": 1.0})
    assert len(node.ends) <= 100


def test_what_is_left_behind_is_ended_and_is_a_finding(tmp_path: Path) -> None:
    from ringup.runtime.clean import final_sweep

    plan = make_plan(tmp_path, "", nodes=2)
    env = {**os.environ, "RINGUP_RUN": plan.run_id}
    left = subprocess.Popen(["sleep", "300"], env=env)
    with Transport(hosts.local_nodes(2)) as door:
        found = final_sweep(door, plan, reopen=(), wait_s=0, limit_s=30, lease_s=20)
    assert left.wait(60) == -9
    assert [(f.rule, f.severity, f.node) for f in found] == [("orphan-of-earlier-run", "note", "127.0.0.2")]
    assert f"{left.pid} sleep 300" in found[0].found


LAUNCH = """
import sys, pathlib
from ringup import hosts
from ringup.transport import Transport
from ringup.output import console
from ringup.runtime import ssh
from tests.test_launch import make_plan
folder = pathlib.Path(sys.argv[1])
plan = make_plan(folder, sys.argv[2])
(folder / "run_id").write_text(plan.run_id)
with Transport(hosts.local_nodes(2)) as door:
    lease_s = float(sys.argv[3])
    result = ssh.run(plan, door, log_dir=folder / "logs", write=sys.stdout.write, lease_s=lease_s)
print(result.outcome, file=sys.stderr)
sys.exit(result.exit_code)
"""

FOREVER = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up', rank, flush=True)\ntime.sleep(300)"

LONG_GRACE = (
    FOREVER.replace("signal.SIG_IGN", "lambda *_: print('asked to end', flush=True)") + " or time.sleep(300)"
)


@pytest.fixture
def launcher(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a `run` of its own process; gives it once all four ranks are up."""

    def start(
        script: str = FOREVER, prefix: tuple[str, ...] = (), lease_s: float = 20.0
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", LAUNCH, str(tmp_path), script, str(lease_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        seen = b""
        while seen.count(b"| up") < 4:
            data = os.read(process.stdout.fileno(), 65536)
            assert data, process.stderr.read()
            seen += data
        return process

    return start


@pytest.mark.alike
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_the_run_cleanly(launcher: Any, tmp_path: Path, number: int, code: int) -> None:
    process = launcher()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert errors.endswith(b"interrupted\n")
    assert not tagged((tmp_path / "run_id").read_text())
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"] == "interrupted"


def test_a_launcher_that_was_stopped_blames_itself_and_no_node(launcher: Any, tmp_path: Path) -> None:
    process = launcher(lease_s=5.0)
    process.send_signal(signal.SIGSTOP)
    run_id = (tmp_path / "run_id").read_text()
    wait_for(lambda: not tagged(run_id), "the nodes have ended the run by their lease")
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    what = json.loads((tmp_path / "logs" / "run.json").read_text())["first_failure"]["what"]
    assert "no contact with the launcher" in what and "the launching machine was suspended for" in what


def test_second_ctrl_c_does_not_wait_for_the_grace(launcher: Any, tmp_path: Path) -> None:
    process = launcher(LONG_GRACE)
    process.send_signal(signal.SIGINT)
    seen = b""
    while seen.count(b"| asked to end") < 4:
        seen += os.read(process.stdout.fileno(), 65536)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not tagged((tmp_path / "run_id").read_text())


def test_hangup_is_ignored_under_nohup(launcher: Any, tmp_path: Path) -> None:
    process = launcher(prefix=("nohup",))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_killed_launcher_leaves_nothing(launcher: Any, tmp_path: Path) -> None:
    process = launcher()
    process.kill()
    process.communicate(timeout=60)
    run_id = (tmp_path / "run_id").read_text()
    wait_for(lambda: not tagged(run_id), "nothing of the run is left")
    assert not alive(process.pid)


def test_ranks_save_before_the_time_limit_of_the_job(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(0))\n"
        "pathlib.Path(f'up{rank}').touch()\n"
        "time.sleep(300)\n"
    )
    save = Save("SIGUSR1", 60.0, lambda: all((tmp_path / f"up{n}").exists() for n in range(4)))
    run = Run(tmp_path, script, save=save)
    assert run.result.outcome == run.record["outcome"] == run.record["save"]["result"] == "saved"
    assert any("the job's time limit is near: SIGUSR1 sent" in event.text for event in run.events)
