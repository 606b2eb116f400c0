"""How commands end: signals, streams that take no more, folders that cannot be written, hostile names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringup import rules
from ringup.cli import pipeline
from ringup.planning.network import PORTS
from tests import clusters as c
from tests.guards import free_port, wait_for

RINGUP = [sys.executable, "-m", "ringup"]
HERE = Path(__file__).parent


def ringup(folder: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    asked: dict[str, object] = {
        "capture_output": True,
        "text": True,
        "cwd": folder,
        "timeout": 120,
        **options,
    }
    return subprocess.run([*RINGUP, *words], **asked)  # type: ignore[call-overload, no-any-return]


def script(folder: Path, name: str = "train.py", text: str = "print('said')\n") -> str:
    (folder / name).write_text(text)
    return name


def job(*more: str) -> list[str]:
    return ["run", "--local", "1", "--nproc", "1", "--with", "python", "--anyway", *more, "--"]


def in_session_of(pid: int) -> Iterator[str]:
    """What a process and those it has started left: found by a variable only they have."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"LEAVING={pid}".encode() in (entry / "environ").read_bytes():
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_check_that_is_ended_by_a_signal_leaves_no_process(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    env = {**os.environ, "PATH": f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    mark = os.getpid() * 10 + number
    env["LEAVING"] = str(mark)
    words = [*RINGUP, "check", "-H", "stuck-logged-in,stuck-dropped-silent", "--timeout", "300"]
    with subprocess.Popen(words, env=env, cwd=tmp_path, stderr=subprocess.PIPE) as checking:
        # Not for both: ten seconds of silence end one of them, and a busy machine takes as long to start two.
        wait_for(lambda: any("sleep" in p for p in in_session_of(mark)), "a client runs")
        checking.send_signal(number)
        assert checking.wait(120) == code
        assert checking.stderr
        assert b"Traceback" not in checking.stderr.read()
    wait_for(lambda: list(in_session_of(mark)) == [], "the end of what was killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_an_import_is_answered_after_it(tmp_path: Path, number: signal.Signals) -> None:
    """An exception while msgspec makes a class ends Python by SIGSEGV."""
    (tmp_path / "many.py").write_text(
        f"import os\nos.kill(os.getpid(), {number.value})\nfor _ in range(1000):\n    pass\nis_whole = True\n"
    )
    text = (
        "import sys, time\nfrom ringup.cli.command_line import ending_signals\n"
        "try:\n    with ending_signals():\n        import many\n        time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(5 if sys.modules['many'].is_whole else 6)\n"
    )
    started = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, timeout=60, capture_output=True)
    assert started.returncode == 5, started.stderr


@pytest.mark.slow
def test_a_wrapper_with_a_process_group_of_its_own_leaves_nothing(tmp_path: Path) -> None:
    script(tmp_path, text="import time\nprint('up', flush=True)\ntime.sleep(3600)\n")
    mark = os.getpid() * 10 + 7
    words = [*RINGUP, *job("--wrap", "timeout 3000 nice -n 1"), "train.py"]
    env = {**os.environ, "LEAVING": str(mark)}
    with subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert any("up" in line for line in running.stdout)
        assert any(line.startswith("timeout 3000 nice") for line in in_session_of(mark))
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130
    wait_for(lambda: not any("train.py" in p for p in in_session_of(mark)), "nothing left", 60)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_ranks_lines_that_cannot_be_shown_are_no_success(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = ringup(
            tmp_path,
            *job("--log-dir", "logs"),
            script(tmp_path),
            stdout=full,
            stderr=-1,
            capture_output=False,
        )
    assert done.returncode == 4
    assert "output: No space left on device" in done.stderr
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"] == "ok"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_result_that_is_lost_exits_4_whatever_it_was(tmp_path: Path) -> None:
    code = "import os\nimport torch.distributed as dist\n"
    code += "os.environ['MASTER_ADDR'] = 'localhost'\ndist.init_process_group('nccl')\n"
    with open("/dev/full", "wb") as full:
        done = ringup(
            tmp_path, "lint", script(tmp_path, text=code), stdout=full, stderr=-1, capture_output=False
        )
    assert done.returncode == 4
    assert "output: No space left on device" in done.stderr


@pytest.mark.slow
def test_a_reader_that_left_is_no_loss_to_speak_of(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = ringup(tmp_path, *job(), script(tmp_path), stdout=write, stderr=-1, capture_output=False)
    os.close(write)
    assert done.returncode == 0
    assert "output:" not in done.stderr


@pytest.mark.slow
def test_a_check_of_a_node_that_floods_names_that_and_exits_1(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = ringup(tmp_path, "check", "-H", "floods", env=env)
    assert done.returncode == 1
    assert "its output does not end" in done.stdout
    assert "CPU time" not in done.stdout


@pytest.mark.parametrize("command", ["run", "test", "bench"])
def test_a_log_directory_that_cannot_be_written_is_found_before_any_node_is_asked(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").touch()
    played = tmp_path / "played"
    env = {**os.environ, "SSH_PLAYED": str(played)}
    env["PATH"] = f"{HERE / 'bin'}{os.pathsep}{env['PATH']}"
    words = [command, "-H", "first-refused", "--log-dir", "file/logs"]
    done = ringup(tmp_path, *words, *(["--", script(tmp_path)] if command == "run" else []), env=env)
    assert done.returncode == 2
    assert "file/logs cannot be written" in done.stderr
    assert not played.exists()


def test_a_detached_run_that_cannot_be_noted_is_found_before_any_node_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    played = tmp_path / "played"
    env = {**os.environ, "SSH_PLAYED": str(played), "XDG_CACHE_HOME": str(tmp_path / "file")}
    env["PATH"] = f"{HERE / 'bin'}{os.pathsep}{env['PATH']}"
    done = ringup(tmp_path, "run", "-H", "first-refused", "--detach", "--", script(tmp_path), env=env)
    assert done.returncode == 4
    assert "XDG_CACHE_HOME" in done.stderr
    assert not played.exists()


@pytest.mark.torch
def test_a_quiet_run_prints_the_ranks_lines_and_its_end_alone(tmp_path: Path) -> None:
    # A process that stays after its job is a note, and is ended.
    text = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('said')\n"
    own = ("--quiet", "--master-port", str(free_port()))  # the usual one is everybody's
    done = ringup(tmp_path, *job(*own)[:-1], "--", script(tmp_path, text=text))
    assert done.stdout == "127.0.0.2:0| said\n"
    assert "note" not in done.stderr and "ringup:" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


HOSTILE = "a\x1b[2J\x1b]0;x\x07\rb"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        [*job("--log-dir", HOSTILE), "train.py"],
        [*job(), HOSTILE],
        ["check", "--hostfile", HOSTILE],
        ["check", "--local", "1", "--save", f"{HOSTILE}/x"],
        ["lint", HOSTILE],
        ["logs", HOSTILE],
        ["bundle", "--no-nodes", HOSTILE, "-o", f"{HOSTILE}.tgz"],
        ["script", "slurm", "--nodes", "2", "--nproc", "2", "-o", f"{HOSTILE}.sh", "--", "train.py"],
        ["env", "--from", HOSTILE],
        ["attach", HOSTILE],
        ["explain", HOSTILE],
    ],
    ids=lambda words: words[0],
)
def test_no_control_character_of_a_name_reaches_the_terminal(tmp_path: Path, words: list[str]) -> None:
    script(tmp_path)
    script(tmp_path, HOSTILE)
    done = ringup(tmp_path, *words)
    shown = done.stdout + done.stderr
    assert shown
    assert not [char for char in shown if char in "\x1b\x07\r"], shown


def test_rules_are_judged_once_however_many_ports_are_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    times, tried = [], []
    judge = rules.run_checks
    monkeypatch.setattr(rules, "run_checks", lambda *a, **k: times.append(1) or judge(*a, **k))

    def claim(port: int) -> bool:
        tried.append(port)
        return len(tried) == 3

    plan = pipeline.judge(c.healthy(1), "", claim).plan
    assert plan is not None
    assert plan.master_port == tried[-1]
    assert tried == list(PORTS[:3])
    assert times == [1]
