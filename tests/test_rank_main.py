"""A script run by rank_main.py is run as Python runs it, and its stack can be read."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringup.agent_bundle import source
from tests.guards import wait_for

SAYS = """\
import os, pickle, sys
class Own: pass
pickle.loads(pickle.dumps(Own()))
print(sys.argv, sys.path[0], __name__, __file__, __spec__ is None, __package__, sorted(globals()))
print(sys.modules["__main__"].__dict__ is globals())
"""
ENDS = ["", "raise ValueError('the end')", "sys.exit(7)", "sys.exit('words')", "def (", "1/0", "os._exit(3)"]


def said(words: list[str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-u", *words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def runner(tmp_path: Path) -> str:
    path = tmp_path / "run" / "rank_main.py"
    path.parent.mkdir()
    path.write_text(source("rank.rank_main"))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS, ids=range(len(ENDS)))
def test_a_script_cannot_tell_who_runs_it(end: str, tmp_path: Path, runner: str) -> None:
    (tmp_path / "train.py").write_text(SAYS + end + "\n")
    (tmp_path / "link.py").symlink_to("train.py")
    for words in (["train.py", "a", "-b"], [str(tmp_path / "link.py")], ["-m", "train", "x"]):
        assert said([runner, *words], tmp_path) == said(words, tmp_path)


STARTS = """\
import inspect, multiprocessing, sys
def child(queue):
    queue.put((__name__, sys.argv))
if __name__ == "__main__":
    for how in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(how)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(how, queue.get(timeout=60), process.join(), process.exitcode)
    print(inspect.getsource(child))
"""


@pytest.mark.slow
def test_its_children_find_the_script_however_they_are_started(tmp_path: Path, runner: str) -> None:
    (tmp_path / "train.py").write_text(STARTS)
    for words in (["train.py", "a"], ["-m", "train", "a"]):
        code, out, errors = said([runner, *words], tmp_path)
        assert (code, out, errors) == said(words, tmp_path) and code == 0, errors


def waiting(folder: Path, runner: str, before: str = "") -> subprocess.Popen[str]:
    body = "def here():\n    print('up', flush=True)\n    time.sleep(60)\nhere()\n"
    (folder / "waits.py").write_text(f"import signal, time\n{before}\n{body}")
    process = subprocess.Popen(
        [sys.executable, runner, "waits.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    return process


def stack_of(pid: int) -> str:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if str(fd.readlink()).startswith("/memfd:ringup-stack"):
            return fd.read_text()
    return ""


def test_a_running_script_tells_where_it_is(tmp_path: Path, runner: str) -> None:
    process = waiting(tmp_path, runner)
    for number in (signal.SIGWINCH, signal.SIGURG):
        before = len(stack_of(process.pid))
        process.send_signal(number)
        wait_for(lambda before=before: "rank_main.py" in stack_of(process.pid)[before:], "its stack")
        # Its fourth line says that it is there, the fifth waits.
        assert re.search(r'waits.py", line [45] in here', stack_of(process.pid)[before:])
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "taken", ["signal.signal(signal.SIGWINCH, signal.SIG_DFL)", "signal.signal(signal.SIGWINCH, print)", ""]
)
def test_a_script_that_took_the_signal_back_lives_on(taken: str, tmp_path: Path, runner: str) -> None:
    process = waiting(tmp_path, runner, taken)
    process.send_signal(signal.SIGWINCH)
    process.send_signal(signal.SIGURG)
    wait_for(lambda: "in here" in stack_of(process.pid), "an answer to the other signal")
    assert process.poll() is None
    process.kill()
    process.wait()
