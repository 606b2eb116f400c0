"""Hostile names, paths, values and nodes: nothing executes, nothing hangs, one clear error."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.guards import free_port
from tests.jobs.launched import JOBS, Launched
from tests.test_launch import Run

ENDS_WITHIN_S = 180
"""Nothing here waits for anything; a loaded machine may be slow."""
CANARY = "canary"
EVIL = [
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY} ;",
    f"x; touch {CANARY} #",
    f"' ; touch {CANARY} ; '",
    f'" ; touch {CANARY} ; "',
    f"a\ntouch {CANARY}\n",
    f"| touch {CANARY}",
    f"& touch {CANARY} &",
    f"-oProxyCommand=touch {CANARY}",
    f"-oProxyCommand=touch\t{CANARY}",
    "--",
    "-",
    " ",
    "",
    "\x1b]0;title\x07\x1b[2J",
    "\u202egnp.txt",
    "é" * 300,
    "x" * 100_000,
    "../../../../etc/passwd",
    "%s%n%x{0}{}",
    "~root",
    "*",
    "@all",
    "a,,b",
    "[[[",
    "node[1-99999999]",
    "node[1-8]" * 20,
]


def ringup(
    words: Sequence[str], cwd: Path, *, env: dict[str, str] | None = None, text: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run it; what it must never do is checked here."""
    done = subprocess.run(
        [sys.executable, "-m", "ringup", *words],
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd), "XDG_CACHE_HOME": str(cwd / "cache"), **(env or {})},
        input=None if text is None else text.encode(),
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        timeout=ENDS_WITHIN_S,
    )
    said = done.stdout + done.stderr
    assert not list(cwd.rglob(CANARY)) and not Path.home().joinpath(CANARY).exists()
    assert b"Traceback" not in done.stderr, done.stderr[-3000:].decode(errors="replace")
    assert done.returncode != 70, done.stderr[-3000:]
    assert not set(said) & ({*range(32), 127} - {9, 10}), said[-3000:]
    assert len(done.stderr) < 20_000, done.stderr[:3000]
    return done


def refused(done: subprocess.CompletedProcess[bytes], codes: tuple[int, ...] = (2, 4)) -> None:
    """One clear error: what, and a hint."""
    lines = done.stderr.decode().splitlines()
    assert done.returncode in codes, lines
    assert 1 <= len(lines) <= 3, lines


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize("name", EVIL, ids=range(len(EVIL)))
def test_node_name_that_no_host_can_have_is_refused(tmp_path: Path, command: str, name: str) -> None:
    script = ["--", "train.py"] if command == "run" else []
    done = ringup(
        [
            command,
            f"-H{name}" if name.startswith("-") else "-H",
            *([] if name.startswith("-") else [name]),
            *script,
        ],
        tmp_path,
    )
    refused(done)


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize("user", [e for e in EVIL if "@" not in e and e.strip()][:14], ids=range(14))
def test_user_that_no_user_can_be_is_refused(tmp_path: Path, user: str) -> None:
    refused(ringup(["check", f"--hosts={user}@127.0.0.1"], tmp_path))


@pytest.mark.slow
def test_host_file_of_such_names_is_refused(tmp_path: Path) -> None:
    for content in (*EVIL[:11], "x" * (1 << 20), "\0" * 4096, "a slots=$(touch canary)\nb slots=-1\n"):
        (tmp_path / "hosts").write_text(content)
        refused(ringup(["check", "--hostfile", "hosts"], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--hostfile", "--from"])
def test_file_without_an_end_is_refused(tmp_path: Path, option: str) -> None:
    refused(ringup(["check", option, "/dev/zero"], tmp_path))


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--env", "A B=1"],
        ["--env", "$(touch canary)=1"],
        ["--env", "A"],
        ["--env", "=x"],
        ["--env", "-x=1"],
        ["--env", "A\nB=1"],
        ["--env", "MASTER_PORT=1;touch canary"],
        ["--env", f"{'A' * 100_000}"],
    ],
    ids=range(8),
)
def test_variable_that_no_shell_can_have_is_refused(tmp_path: Path, words: list[str]) -> None:
    refused(ringup(["run", "--local", "1", *words, "--", "train.py"], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["-c", "--version", "-", ""])
def test_script_that_is_an_option_is_refused(tmp_path: Path, script: str) -> None:
    refused(ringup(["run", "--local", "1", "--nproc", "1", "--", script], tmp_path))


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [e for e in EVIL if not e.startswith("-") and e.strip()], ids=lambda e: e[:30]
)
def test_script_that_is_not_there_is_named_safely(tmp_path: Path, name: str) -> None:
    done = ringup(["run", "--local", "1", "--nproc", "1", "--", name], tmp_path)
    assert done.returncode in (1, 2, 4)


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize("option", ["--python", "--chdir", "--ssh-config", "--log-dir", "--from", "--save"])
@pytest.mark.parametrize("value", EVIL[:13], ids=range(13))
def test_option_that_takes_a_path_takes_any_string_as_one(tmp_path: Path, option: str, value: str) -> None:
    ringup(
        ["run", "--local", "1", "--nproc", "1", f"{option}={value}", "--dry-run", "--", "train.py"], tmp_path
    )


@pytest.mark.slow
@pytest.mark.torch
def test_hostile_words_reach_the_ranks_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' \"c\" $(touch canary) ; é -x"
    folder.mkdir()
    script = folder / "-train; touch canary\n'$(touch canary)' \".py"
    shutil.copy(JOBS / "echoes.py", script)
    arguments = [e for e in EVIL if len(e) < 1000]
    values = {f"HOSTILE{i}": e for i, e in enumerate(EVIL)}
    options = [word for name, value in values.items() for word in ("--env", f"{name}={value}")]
    done = ringup(
        [
            "run", "--local", "1", "--nproc", "1", "--backend", "gloo", "--python", sys.executable,
            "--chdir", str(folder), "--log-dir", "logs of\nit 'x'", *options,
            "--master-port", str(free_port()),  # the usual one is everybody's
            "--", f"./{script.name}", "given", *arguments,
        ],
        tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    given = json.loads((folder / "given.0").read_text())
    assert given["argv"] == arguments
    assert given["cwd"] == str(folder)
    assert given["env"] == values


@pytest.mark.slow
@pytest.mark.torch
def test_interpreter_in_a_folder_with_blanks_and_quotes_works(tmp_path: Path) -> None:
    folder = tmp_path / "my 'py' $(touch canary)"
    folder.mkdir()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["run", "--local", "1", "--nproc", "1", "--backend", "gloo", "--python", str(python)]
    words += ["--master-port", str(free_port())]
    done = ringup([*words, "--", str(JOBS / "echoes.py"), str(tmp_path / "given")], tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads((tmp_path / "given.0").read_text())["argv"] == []


@pytest.mark.slow
def test_variable_of_a_megabyte_is_one_clear_error(tmp_path: Path) -> None:
    # Linux takes 128 KiB (MAX_ARG_STRLEN of execve(2)), so it can come from Python only.
    run = Run(tmp_path, "print('never')", job={"env": {"HOSTILE": "x" * (1 << 20)}})
    assert (run.result.outcome, run.result.exit_code) == ("launcher-error", 4)
    assert "Argument list too long" in run.result.failure.what
    assert len(run.result.failure.what) < 500
    assert run.text == ""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("streams", ["", "2>&1"])
def test_reader_that_leaves_changes_nothing_for_the_job(tmp_path: Path, streams: str) -> None:
    job = tmp_path / "job.py"
    job.write_text("for i in range(30000): print('line', i)\nopen('end', 'w')\nraise SystemExit(3)\n")
    words = [sys.executable, "-m", "ringup", "run", "--local", "1", "--nproc", "1", "--backend", "gloo"]
    words += ["--master-port", str(free_port()), "--with", "python"]
    command = f"{shlex.join([*words, '--', str(job)])} {streams} | head -12; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=ENDS_WITHIN_S
    )
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "end").exists()
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# -- nodes that say anything ---------------------------------------------------------------------

NOISE = {
    "binary": "head -c 200000 /dev/urandom; head -c 200000 /dev/urandom >&2",
    "escapes": r"printf '\033]0;title\007\033[2J\001\000\233'; printf '\033c' >&2",
    "marks": r"printf '\001 ready\n\001 end 1 0\n'; echo '{\"type\": \"ready\"}'",
    "an unfinished line": "printf 'Last login: never'",
    "a changed PATH": "PATH=/nowhere",
    "shell options": "set -u; set -f; IFS=x; alias printf=false; export LC_ALL=C n=1 i=2",
}


def begin_sessions_with(cluster: Any, host: str, startup: str) -> None:
    """Every ssh session there begins with it: bash reads ~/.bashrc when sshd starts it, terminal or not."""
    cluster.sh(host, f"printf '%s\\n' {shlex.quote('echo begun > /tmp/begun; ' + startup)} > /root/.bashrc")


@pytest.mark.lab
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
def test_shell_that_prints_anything_at_login_does_not_matter(lab: Any, noise: str) -> None:
    cluster = lab(hosts=2, net="192.168.7.10/24")
    for host in cluster.hosts:
        begin_sessions_with(cluster, host.name, NOISE[noise])
    with Launched(cluster, "echoes.py", "{folder}/given") as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("| given") == 2, run.said()
        assert cluster.sh("node1", "cat /tmp/begun") == "begun\n"
        assert not set(run.err.read_bytes()) & ({*range(32), 127} - {9, 10}), run.said()


@pytest.mark.lab
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("startup", ["yes", "exit 7", "sleep 3600", "exec cat"])
def test_shell_that_never_gets_there_is_one_error(lab: Any, startup: str) -> None:
    cluster = lab(hosts=2, net="192.168.7.10/24")
    begin_sessions_with(cluster, "node1", startup)
    with Launched(cluster, "echoes.py", "{folder}/given") as run:
        assert run.wait() == 1, run.said()
        errors = [f for f in run.record["findings"] if f["severity"] == "error"]
        assert [f["node"] for f in errors] == ["node1"], run.said()
        assert run.stdout == ""


@pytest.mark.lab
@pytest.mark.torch
@pytest.mark.slow
def test_host_and_card_with_evil_names_are_shown_and_used_safely(lab: Any) -> None:
    cluster = lab(hosts=2, net="192.168.7.10/24")
    evil = "x;$(touch canary)\x1b[2J"
    # hostname(1) would refuse it, the system call does not.
    call = f"import socket; socket.sethostname({evil!r})"
    cluster.run("node1", [sys.executable, "-c", call], check=True)
    card = "`id>canary`"
    for host in cluster.hosts:
        for words in (
            ["link", "add", card, "type", "veth", "peer", "name", "$(id);&|"],
            ["addr", "add", f"10.77.0.{1 + cluster.hosts.index(host)}/24", "dev", card],
            ["link", "set", card, "up"],
            ["link", "set", "$(id);&|", "up"],
        ):
            cluster.run(host, ["ip", *words], check=True)
    with Launched(cluster, "train.py") as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("trained to the end") == 2, run.said()
        assert not set(run.err.read_bytes()) & ({*range(32), 127} - {9, 10}), run.said()
        for host in cluster.hosts:
            assert cluster.sh(host, "find /root /tmp /run -name canary") == ""
