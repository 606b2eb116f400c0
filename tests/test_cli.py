"""The edge: help, unknown commands, errors in two lines, exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ringup import __version__
from ringup.cli import command_line
from ringup.errors import UsageError


def ringup(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringup", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_names_every_command() -> None:
    text = command_line.overview()
    for name in command_line.COMMANDS:
        assert f"  {name} " in text


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_has_its_own_help(name: str) -> None:
    parser = command_line.parser_for(name)
    assert parser.prog == f"ringup {name}"
    assert parser.description


def test_no_command_is_wrong_usage_and_shows_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.dispatch([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage() -> None:
    done = ringup("chekc")
    assert done.returncode == 2
    assert "chekc" in done.stderr
    assert done.stdout == ""


def test_the_version_is_printed_with_the_engine_that_reads_logs(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['ringup.logs.counts.core'] = None; from ringup.__main__ import main; main()"
    )
    plain = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert f"ringup {__version__} (engine for logs: plain Python, slower" in plain.stdout, plain.stderr
    assert ringup("--version").stdout in (plain.stdout, f"ringup {__version__} (engine for logs: native)\n")


def test_an_error_is_two_lines_and_no_traceback() -> None:
    done = ringup("check", "-H", "node1", "--local", "2")
    assert done.returncode == UsageError.exit_code == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["ringup", "hint"]


def test_control_characters_in_an_error_are_shown_not_sent() -> None:
    done = ringup("explain", "a\x1b[31mb")
    assert "\x1b" not in done.stderr
    assert "\\x1b[31m" in done.stderr


def test_help_imports_nothing_of_the_commands() -> None:
    code = (
        "import sys; from ringup.cli import command_line\n"
        "command_line.dispatch(['--help'])\n"
        "heavy = {'ClusterShell', 'jinja2', 'msgspec', 'numpy', 'torch', 'json', 'asyncio', 'subprocess'}\n"
        "sys.exit(','.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_bug_of_ours_leaves_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "dispatch", lambda argv: 1 // 0)
    with pytest.raises(SystemExit) as left:
        command_line.main([])
    assert left.value.code == 70
    assert "please report" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_bug(tmp_path: Path, closed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('fine')\n", encoding="utf-8")
    words = shlex.join([sys.executable, "-m", "ringup", "lint", str(script)])
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_stdout_is_told_in_two_lines(buffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ringup", "explain", "clock-skew"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": buffered},
            timeout=60,
        )
    assert done.returncode == 4
    assert re.fullmatch(rb"ringup: output: No space left on device\nhint: .*\n", done.stderr)


def test_a_path_that_may_not_be_used_is_told_in_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "dispatch", lambda argv: Path("\x1b[2J" + "a" * 300).stat())
    with pytest.raises(SystemExit) as left:
        command_line.main([])
    assert left.value.code == 4
    assert re.fullmatch(r"ringup: [^\x1b]*a{300}: File name too long\nhint: .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("logs shut/a.log", 2, "ringup: shut/a.log: Permission denied"),
        ("logs open.log shut/a.log", 0, "ringup logs: shut/a.log: Permission denied"),
        ("lint shut/a.log", 2, "ringup: shut/a.log: Permission denied"),
        ("diff shut/a.log open.log", 4, "ringup: shut/a.log: Permission denied"),
        ("report -o r.html shut/a.log", 2, "ringup: shut/a.log: Permission denied"),
        ("bundle --no-nodes open.log shut shut/a.log", 0, "left out: shut/a.log: Permission denied"),
        ("runs --log-dir shut", 2, "ringup runs: --log-dir: shut cannot be read: Permission denied"),
        ("runs --log-dir open.log", 2, "ringup runs: --log-dir: open.log cannot be read: Not a directory"),
    ],
)
def test_a_directory_that_may_not_be_searched_is_named(
    tmp_path: Path, words: str, code: int, told: str
) -> None:
    (tmp_path / "open.log").write_text("hello\n", encoding="utf-8")
    (tmp_path / "shut").mkdir(mode=0)
    no_root = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    done = subprocess.run(
        [*(no_root if os.geteuid() == 0 else []), sys.executable, "-m", "ringup", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, told in done.stderr.splitlines()) == (code, True), done.stderr


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_locale_without_a_character_shows_its_number(tmp_path: Path) -> None:
    script = tmp_path / "tr\u00e4in.py"
    script.write_text("print('fine')\n", encoding="utf-8")
    words = [sys.executable, "-m", "ringup"]
    asked = [*words, "lint", str(script)]
    done = subprocess.run(asked, capture_output=True, env={**os.environ, **ASCII}, timeout=60)
    assert done.returncode == 0 and b"in.py: start it with `ringup run" in done.stdout, done.stderr
    asked = [*words, "script", "slurm", "--nodes", "2", "--nproc", "2", "--", "tr\u00e4in.py"]
    done = subprocess.run(asked, capture_output=True, env={**os.environ, **ASCII}, timeout=60)
    assert done.returncode == 0 and rb"$'tr\xc3\xa4in.py'" in done.stdout, done.stderr


def test_a_python_without_docstrings_is_told_in_two_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "ringup", "explain"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4 and "-OO" in done.stderr and len(done.stderr.splitlines()) == 2


def test_ctrl_c_within_an_exec_is_130_and_not_death_by_the_signal(tmp_path: Path) -> None:
    program = """
from ringup.cli import command_line
command_line.dispatch = lambda words: exec('raise KeyboardInterrupt')
command_line.main([])
"""
    (tmp_path / "interrupted_here.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted_here"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "ringup: interrupted\n")


@pytest.mark.parametrize("words", [["-m", "ringup"], ["-c", "from ringup.__main__ import main; main()"]])
def test_ctrl_c_while_it_is_loaded_is_no_traceback(tmp_path: Path, words: list[str]) -> None:
    """The second is the console script."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ringup.errors":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "ringup: interrupted\n")


def test_the_console_script_is_that_of_the_package() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'ringup = "ringup.__main__:main"' in text


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_current_directory_that_was_removed_is_said(tmp_path: Path, command: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "ringup", command]
    words += ["--local", "1", "--", "train.py"] if command == "run" else ["--local", "1"]
    done = subprocess.run(words, cwd=gone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2].startswith("ringup: the current directory:")


@pytest.mark.parametrize("words", [("run",), ("script", "slurm", "--nodes", "2", "--nproc", "1")])
def test_an_option_behind_the_script_is_given_to_nobody_in_silence(words: tuple[str, ...]) -> None:
    done = ringup(*words, "train.py", "--backend", "gloo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--backend after train.py: an option of ringup or of the script?" in done.stderr
    assert "before train.py; ringup" in done.stderr
    assert "-- train.py --backend is for the script" in done.stderr and len(done.stderr.splitlines()) == 2


def test_options_before_a_script_are_ours_with_or_without_two_hyphens() -> None:
    for between in ((), ("--",)):
        done = ringup("script", "slurm", "--nodes", "2", "--nproc=1", "--quiet", *between, "train.py", "3")
        assert done.returncode == 0, done.stderr
        assert re.search(r"train\.py(?: \\\n +| )3\n", done.stdout)
