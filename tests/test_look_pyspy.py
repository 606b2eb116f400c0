"""Stacks by py-spy, where a rank does not tell its own: the real one, and fakes that fail."""

from __future__ import annotations

import base64
import os
import signal
import sys
import zlib
from pathlib import Path

import pytest

from ringup.agent.snapshot import stacks
from ringup.errors import LaunchError
from ringup.hang import pyspy
from ringup.hang.snapshots import RankLook
from ringup.hang.stack_frames import doing, place_of
from tests.guards import wait_for
from tests.test_look import PYTHON, Rank

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

        def below() -> list[RankLook]:
            return [child for child in rank.seen().children if child.frames]

        (child,) = wait_for(below, "a stack below")
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
        words = "; py-spy: Error: Failed to look Caused by: 0: Outer 1: Permission denied ("
        assert words in rank.seen().why_not


def test_why_py_spy_may_not_read_a_process_is_said() -> None:
    assert "SYS_PTRACE" in stacks.forbidden("") and "SYS_PTRACE" in stacks.forbidden("0")
    assert "ptrace_scope is 1: only its parent may read a process; root can" in stacks.forbidden("1")
    assert "ptrace_scope is 2: only root may" in stacks.forbidden("2")
    assert stacks.forbidden("3").endswith("is 3: nobody may read a process)")


@pytest.mark.parametrize("answer", ["exit 3", "echo no json", "echo '[{}]'", "echo '[]'"])
def test_a_py_spy_that_fails_is_a_reason_and_no_more(answer: str, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{answer}\n")
    tool.chmod(0o755)
    with Rank(tmp_path, "time.sleep(60)", plain=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"}) as rank:
        seen = rank.seen()
        assert not seen.frames and "py-spy" in seen.why_not


def sent(text: str, machine: str = os.uname().machine) -> str:
    """A stand-in for py-spy as the launching side sends it."""
    return f"{machine}:{base64.b64encode(zlib.compress(text.encode())).decode()}"


def test_a_py_spy_that_was_sent_runs_from_a_private_file_that_no_directory_holds(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    noting = f"#!/bin/sh\n(stat -Lc %a $0; ls -A {folder}) >> {tmp_path}/noted\n" + FAKE.partition("\n")[2]
    noting = noting.replace('echo "$@" >> "$(dirname "$0")/asked"\n', "")
    with Rank(tmp_path, "time.sleep(60)", plain=True) as rank:
        seen = rank.seen(env={"TMPDIR": str(folder)}, pyspy=sent(noting))
        assert seen.how == "py-spy" and place_of(seen.frames).where == "train.py:4", seen.why_not
        # Killed while it runs, it leaves nothing either: the file has no name any more.
        assert (tmp_path / "noted").read_text() == "700\n"
        assert list(folder.iterdir()) == []


def test_a_py_spy_for_another_machine_is_not_started(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)", plain=True) as rank:
        why = rank.seen(pyspy=sent(f"#!/bin/sh\ntouch {tmp_path}/ran\n", "s390x")).why_not
        assert f"the py-spy that was sent is for s390x, this node is {os.uname().machine}" in why
    assert not (tmp_path / "ran").exists()


@no_pyspy
def test_our_own_py_spy_is_sent_whole(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)", plain=True) as rank:
        look = rank.look()
        assert list(pyspy.lacking([look])) == ["n1"]
        assert Path(look.ranks[0].python).samefile(PYTHON)
        again = rank.seen(pyspy=pyspy.packed())
        assert again.how == "py-spy" and place_of(again.frames).where == "train.py:4", again.why_not


def test_what_cannot_be_sent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="has no py-spy to send"):
        pyspy.packed()
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec pyenv py-spy\n")
    (tmp_path / "py-spy").chmod(0o755)
    with pytest.raises(LaunchError, match="is not a program for Linux"):
        pyspy.packed()
