"""Stacks by py-spy, where a rank does not tell its own: the real one, and fakes that fail."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from ringup.looks.places import doing, place_of
from tests.guards import wait_for
from tests.test_look import Rank

pytestmark = pytest.mark.slow

PYSPY = Path(sys.executable).with_name("py-spy")
no_pyspy = pytest.mark.skipif(not PYSPY.exists(), reason="no py-spy beside this Python")


@no_pyspy
@pytest.mark.parametrize("plain", [False, True])
def test_py_spy_tells_the_line_of_a_stopped_rank(plain: bool, tmp_path: Path) -> None:
    what = "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
    with Rank(tmp_path, what, plain=plain, python=sys.executable) as rank:
        rank.wait_for_state("T")
        seen = rank.seen()
        assert seen.how == "py-spy", seen.why_not
        place = place_of(seen.frames)
        assert (place.where, place.function, place.source) == ("train.py:4", "here", what)
        assert [(f.line, f.function) for f in seen.frames] == [(4, "here"), (5, "<module>")]
        rank.process.send_signal(signal.SIGCONT)
        wait_for(lambda: doing(rank.seen()) == "asleep", "its sleep")  # it was not left stopped


@no_pyspy
def test_py_spy_tells_the_threads_apart_and_names_functions_as_python_does(tmp_path: Path) -> None:
    what = (
        "import queue, threading; end = threading.Event();"
        " threading.Thread(target=end.wait, name='beat', daemon=True).start(); queue.Queue().get()"
    )
    with Rank(tmp_path, what, plain=True, python=sys.executable) as rank:

        def both() -> bool:
            seen = rank.seen("threads")
            return bool(seen.threads) and seen.frames[0].function == "wait"

        wait_for(both, "two threads")
        seen = rank.seen("threads")
        assert [f.function for f in seen.frames] == ["wait", "get", "here", "<module>"]
        ((name, frames),) = seen.threads
        assert name == "beat" and "run" in [f.function for f in frames]


@no_pyspy
def test_py_spy_tells_the_line_of_a_worker_that_was_not_forked(tmp_path: Path) -> None:
    what = "subprocess.run([sys.executable, 'below.py'])"
    (tmp_path / "below.py").write_text("import time\n\ntime.sleep(60)\n")
    with Rank(tmp_path, what, python=sys.executable) as rank:
        wait_for(lambda: any(doing_child.frames for doing_child in rank.seen().children), "a stack below")
        (child,) = rank.seen().children
        assert place_of(child.frames).where == "below.py:3"
        os.kill(child.pid, signal.SIGKILL)


FAKE = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
echo '[{"pid": 1, "thread_name": "Thread-1", "os_thread_id": 5, "frames": []},
 {"pid": 1, "thread_name": "MainThread", "os_thread_id": 1, "frames": [
 {"name": "here", "filename": "/home/u/train.py", "line": 4},
 {"name": "<module>", "filename": "/home/u/train.py", "line": 5}]}]'
"""


def test_py_spy_is_asked_where_the_node_has_it(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(FAKE)
    tool.chmod(0o755)
    with Rank(tmp_path, "time.sleep(60)", plain=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"}) as rank:
        seen = rank.seen()
        assert seen.how == "py-spy" and place_of(seen.frames).where == "train.py:4"
        asked = (tool.parent / "asked").read_text().split("\n")[0]
        assert asked == f"dump --json --nonblocking --pid {rank.process.pid}"


def test_what_py_spy_complains_of_is_said_without_its_own_calls(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\nprintf 'Error: Failed to look\\n\\nCaused by:\\n    0: Outer\\n    1: Permission denied"
        "\\n\\nStack backtrace:\\n   0: py_spy::main\\n' >&2; exit 1\n"
    )
    tool.chmod(0o755)
    with Rank(tmp_path, "time.sleep(60)", plain=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"}) as rank:
        assert rank.seen().why_not.endswith("; py-spy: Failed to look; Permission denied")


@pytest.mark.parametrize("answer", ["exit 3", "echo no json", "echo '[{}]'", "echo '[]'"])
def test_a_py_spy_that_fails_is_a_reason_and_no_more(answer: str, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    with Rank(tmp_path, "time.sleep(60)", plain=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"}) as rank:
        seen = rank.seen()
        assert not seen.frames and "py-spy" in seen.why_not
