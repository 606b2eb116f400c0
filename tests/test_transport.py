"""Asking and starting on nodes played here, and through a client that plays ssh."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringup import hosts
from ringup.model import Host, Unreached
from ringup.transport import Answer, Transport, bootstrap, connections
from ringup.transport.client import Client

Children = Callable[[], list[str]]

HERE = Path(__file__).parent

ECHO = """
import sys
print(sys.argv, flush=True)
for line in sys.stdin:
    if line == "end\\n":
        sys.exit(3)
    print("got", line, end="", flush=True)
"""


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.output = b""
        self.errors = b""
        self.exits: list[tuple[int | None, Unreached | None]] = []

    def on_output(self, data: bytes) -> None:
        self.output += data

    def on_errors(self, data: bytes) -> None:
        self.errors += data

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        self.exits.append((code, error))

    def until_exit(self, transport: Transport) -> None:
        turn_until(transport, lambda: bool(self.exits))


def turn_until(transport: Transport, done: object, within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not done():  # type: ignore[operator]
        assert time.monotonic() < until, "nothing came"
        transport.turn(1.0)


@pytest.fixture
def ssh_played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`ssh` is tests/bin/ssh, which plays the host that its name says."""
    monkeypatch.setenv("PATH", f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SSH_PLAYED", str(tmp_path / "played"))


def ask_one(script: str, **more: object) -> Answer:
    with Transport(hosts.local_nodes(1)) as transport:
        return transport.ask({"127.0.0.2": script}, deadline_s=60, **more)["127.0.0.2"]  # type: ignore[arg-type]


# -- ask -------------------------------------------------------------------------------------------


def test_an_answer_keeps_the_streams_and_the_code_apart() -> None:
    answer = ask_one("echo out; echo err >&2; exit 3")
    assert (answer.stdout, answer.stderr, answer.code, answer.error) == (b"out\n", b"err\n", 3, None)


def test_output_comes_back_byte_for_byte() -> None:
    answer = ask_one(r"printf 'no newline at the end \001\000\377\r\n\n'")
    assert answer.stdout == b"no newline at the end \x01\x00\xff\r\n\n"


def test_stdin_of_a_script_is_empty() -> None:
    assert ask_one("cat; echo end").stdout == b"end\n"


def test_a_script_longer_than_an_argument_may_be_runs() -> None:
    assert ask_one("# " + "x" * 300_000 + "\necho end").stdout == b"end\n"


def test_a_script_is_not_seen_in_the_process_list() -> None:
    answer = ask_one("secret=plain-to-see; tr '\\0' '\\n' < /proc/$$/cmdline")
    assert b"ringup" in answer.stdout
    assert b"plain-to-see" not in answer.stdout


def test_a_broken_script_is_an_answer() -> None:
    answer = ask_one("if then")
    assert answer.error is None
    assert answer.code == 2
    assert b"yntax error" in answer.stderr


def test_output_beyond_the_limit_is_cut_and_said_to_be() -> None:
    answer = ask_one("head -c 1000000 /dev/zero; echo end >&2", limit_bytes=1000)
    assert (len(answer.stdout), answer.truncated, answer.stderr) == (1000, True, b"end\n")


def test_nothing_leaks_from_one_script_to_the_next() -> None:
    with Transport(hosts.local_nodes(1)) as transport:
        transport.ask({"127.0.0.2": "cd /; leaked=1; set -e; exec 3</dev/null; exit 9"}, deadline_s=60)
        answer = transport.ask({"127.0.0.2": "echo ${leaked:-no}; pwd; false; echo end"}, deadline_s=60)[
            "127.0.0.2"
        ]
    assert answer.stdout == f"no\n{Path.cwd()}\nend\n".encode()


def test_a_slow_node_is_an_answer_with_an_error_and_what_came() -> None:
    seen: list[str] = []
    with Transport(hosts.local_nodes(2)) as transport:
        answers = transport.ask(
            {"127.0.0.2": "echo part; sleep 60", "127.0.0.3": "echo all"},
            deadline_s=0.2,
            on_answer=lambda answer: seen.append(answer.node),
        )
    assert seen == ["127.0.0.3", "127.0.0.2"]
    assert answers["127.0.0.3"].stdout == b"all\n"
    slow = answers["127.0.0.2"]
    assert (slow.stdout, slow.code) == (b"part\n", None)
    assert slow.error is not None
    assert slow.error.kind == "no-answer"
    assert list(answers) == ["127.0.0.2", "127.0.0.3"]


@pytest.mark.slow
def test_a_late_answer_is_not_taken_for_the_next() -> None:
    with Transport(hosts.local_nodes(1)) as transport:
        late = transport.ask({"127.0.0.2": "read x < /dev/null; sleep 0.4; echo late"}, deadline_s=0.1)[
            "127.0.0.2"
        ]
        after = transport.ask({"127.0.0.2": "echo after"}, deadline_s=60)["127.0.0.2"]
    assert late.error is not None
    assert after.stdout == b"after\n"


def test_a_shell_that_dies_is_an_answer_and_reopen_brings_it_back() -> None:
    with Transport(hosts.local_nodes(1)) as transport:
        dead = transport.ask({"127.0.0.2": "kill -9 $$"}, deadline_s=60)["127.0.0.2"]
        still = transport.ask({"127.0.0.2": "echo no"}, deadline_s=60)["127.0.0.2"]
        transport.reopen("127.0.0.2")
        back = transport.ask({"127.0.0.2": "echo back"}, deadline_s=60)["127.0.0.2"]
    assert dead.error is not None
    assert dead.error.kind == "no-answer"
    assert still.error == dead.error
    assert back.stdout == b"back\n"


def test_many_nodes_take_turns_through_a_narrow_window() -> None:
    with Transport(hosts.local_nodes(20), fanout=3) as transport:
        answers = transport.ask({host.name: "echo end" for host in transport.hosts}, deadline_s=60)
    assert [a.stdout for a in answers.values()] == [b"end\n"] * 20


def test_closing_twice_and_closing_early_are_fine() -> None:
    transport = Transport(hosts.local_nodes(3))
    transport.close()
    transport.close()


def test_an_interrupt_inside_popen_does_not_block_the_end(new_children: Children) -> None:
    """CPython: an exception of a signal handler inside Popen.poll can leave its lock taken."""
    with Transport(hosts.local_nodes(1)) as transport:
        transport.ask({"127.0.0.2": "true"}, deadline_s=60)
        for session in transport._opened:
            assert isinstance(session.client, Client)
            session.client._process._waitpid_lock.acquire()  # type: ignore[attr-defined]
    assert new_children() == []


def test_no_client_runs_before_the_block_is_entered() -> None:
    def children() -> int:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    opened = Transport(hosts.local_nodes(2))
    assert children() == before
    with opened:
        assert children() == before + 2


def test_a_closed_door_answers_that_it_is_closed() -> None:
    with Transport(hosts.local_nodes(1)) as transport:
        pass
    answer = transport.ask({"127.0.0.2": "echo no"}, deadline_s=60)["127.0.0.2"]
    assert answer.error is not None
    assert answer.error.words == "closed"


@pytest.mark.slow
def test_a_listener_may_close_the_door() -> None:
    class Closing(Recorder):
        def on_output(self, data: bytes) -> None:
            super().on_output(data)
            transport.close()

    recorder = [Closing(), Closing()]
    transport = Transport(hosts.local_nodes(2))
    for node, listener in zip([host.name for host in transport.hosts], recorder, strict=True):
        transport.start(node, "print(1)", (), listener)
    turn_until(transport, lambda: all(h.exits for h in recorder))
    assert any(h.output for h in recorder)


def test_a_broken_path_on_a_node_loses_no_request(noisy: Noisy) -> None:
    noisy("PATH=/nowhere")
    answer = ask_one("echo end; true-is-not-there")
    assert (answer.stdout, answer.code) == (b"end\n", 127)


@pytest.mark.slow
def test_closing_ends_what_an_overrun_script_left() -> None:
    with Transport(hosts.local_nodes(1)) as transport:
        answer = transport.ask({"127.0.0.2": "echo $$; exec sleep 600"}, deadline_s=3.0)["127.0.0.2"]
    until = time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        # Its new parent may take a moment to reap it.
        while time.monotonic() < until:
            os.killpg(int(answer.stdout), 0)
            time.sleep(0.01)


# -- start -----------------------------------------------------------------------------------------


def test_a_program_is_talked_to_until_it_ends() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        channel = transport.start(
            "127.0.0.2", ECHO, ("a b", "$(x)", "é\udc80\n"), recorder, label="ringup-guard r1"
        )
        channel.write(b"one\n")
        turn_until(transport, lambda: b"one" in recorder.output)
        channel.write(b"end\n")
        recorder.until_exit(transport)
        after = transport.ask({"127.0.0.2": "echo after"}, deadline_s=60)["127.0.0.2"]
    first, *rest = recorder.output.decode().splitlines()
    assert first == str(["ringup-guard r1", "a b", "$(x)", "é\udc80\n"])
    assert rest == ["got one"]
    assert recorder.exits == [(3, None)]
    assert after.stdout == b"after\n"


def test_the_process_list_shows_the_label_and_no_argument() -> None:
    recorder = Recorder()
    program = "print(open('/proc/self/cmdline').read())"
    with Transport(hosts.local_nodes(1)) as transport:
        transport.start("127.0.0.2", program, ("plain-to-see",), recorder, label="ringup-guard r1")
        recorder.until_exit(transport)
    assert recorder.output.rstrip(b"\n\0").endswith(b"ringup-guard r1")
    assert b"plain-to-see" not in recorder.output


@pytest.mark.slow
def test_end_of_file_reaches_the_program() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        channel = transport.start("127.0.0.2", "import sys; print(len(sys.stdin.read()))", (), recorder)
        channel.write(b"x" * 3_000_000)
        channel.close_stdin()
        channel.write(b"lost")
        recorder.until_exit(transport)
    assert recorder.output == b"3000000\n"
    assert recorder.exits == [(0, None)]


def test_bytes_a_program_left_unread_are_no_request() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        channel = transport.start("127.0.0.2", "pass", (), recorder)
        channel.write(b"heartbeat\n" * 1000 + b"no newline")
        recorder.until_exit(transport)
        channel.write(b"more\n")
        answer = transport.ask({"127.0.0.2": "echo fine"}, deadline_s=60)["127.0.0.2"]
    assert answer.stdout == b"fine\n"


def test_a_killed_program_is_told_by_its_code_and_the_node_stays() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        transport.start("127.0.0.2", "import os; os.kill(os.getpid(), 9)", (), recorder)
        recorder.until_exit(transport)
        answer = transport.ask({"127.0.0.2": "echo fine"}, deadline_s=60)["127.0.0.2"]
    assert recorder.exits == [(128 + signal.SIGKILL, None)]
    assert answer.stdout == b"fine\n"


def test_a_traceback_shows_the_program_lines() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        program = "import traceback\ntry:\n  open('/no/such')\nexcept OSError:\n  traceback.print_exc()"
        transport.start("127.0.0.2", program, (), recorder, label="named")
        recorder.until_exit(transport)
    assert b'File "named", line 3' in recorder.errors
    assert b"open('/no/such')" in recorder.errors


def test_a_missing_interpreter_is_told_in_words() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        transport.interpreters["127.0.0.2"] = "/no/such dir/$(x)/python3"
        transport.start("127.0.0.2", "print(1)", (), recorder)
        recorder.until_exit(transport)
    assert recorder.exits == [(127, None)]
    assert recorder.errors.startswith(b"ringup: no /no/such dir/$(x)/python3 on this node; its PATH is /")


def test_a_question_during_a_program_waits_no_longer_than_its_deadline() -> None:
    recorder = Recorder()
    with Transport(hosts.local_nodes(1)) as transport:
        channel = transport.start("127.0.0.2", ECHO, (), recorder)
        answer = transport.ask({"127.0.0.2": "echo no"}, deadline_s=0.2)["127.0.0.2"]
        channel.write(b"end\n")
        recorder.until_exit(transport)
    assert answer.error is not None
    assert "a program runs" in answer.error.words


@pytest.mark.slow
def test_a_program_hears_end_of_file_when_the_launcher_is_killed(tmp_path: Path) -> None:
    seen = str(tmp_path / "eof")
    launcher = f"""
import os, signal
from ringup import hosts
from ringup.transport import Transport
from tests.test_transport import Recorder, turn_until
program = "import sys; print('up', flush=True); sys.stdin.read(); open({seen!r}, 'w').close()"
recorder = Recorder()
transport = Transport(hosts.local_nodes(1))
transport.start("127.0.0.2", program, (), recorder)
turn_until(transport, lambda: recorder.output.endswith(b'up\\n'))
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", launcher], cwd=HERE.parent, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    until = time.monotonic() + 60
    while not (tmp_path / "eof").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


# -- ssh, played -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("ssh_played")
def test_a_failing_node_is_a_result_and_the_others_answer() -> None:
    names = [
        "fine",
        "refused",
        "host-key-changed",
        "host-key-unknown",
        "key-refused",
        "name-unknown",
        "no-route",
    ]
    with Transport([Host(n) for n in names]) as transport:
        answers = transport.ask(dict.fromkeys(names, "echo end; echo err >&2"), deadline_s=60)
    assert (answers["fine"].stdout, answers["fine"].stderr) == (b"end\n", b"err\n")
    assert [a.error.kind if a.error else None for a in answers.values()] == [
        None,
        "ssh-connection-refused",
        "ssh-host-key-changed",
        "ssh-host-key-unknown",
        "ssh-key-refused",
        "ssh-name-unknown",
        "ssh-no-route",
    ]


@pytest.mark.usefixtures("ssh_played")
@pytest.mark.slow
def test_silence_is_named_by_how_far_ssh_got() -> None:
    names = [
        "stuck-dropped-silent",
        "stuck-long-packets-dropped",
        "stuck-no-banner-silent",
        "stuck-logged-in",
    ]
    with Transport([Host(n) for n in names], connect_timeout_s=3.0, answer_timeout_s=3.0) as transport:
        answers = transport.ask(dict.fromkeys(names, "echo end"), deadline_s=60)
    assert [a.error and a.error.kind for a in answers.values()] == [
        "ssh-timeout",
        "ssh-key-exchange-hangs",
        "ssh-key-exchange-hangs",
        "no-answer",
    ]


@pytest.mark.usefixtures("ssh_played")
@pytest.mark.slow
def test_a_connection_dropped_by_a_busy_sshd_is_tried_again() -> None:
    with Transport([Host("once-dropped-by-sshd")]) as transport:
        answer = transport.ask({"once-dropped-by-sshd": "echo end"}, deadline_s=60)["once-dropped-by-sshd"]
    assert answer.stdout == b"end\n"


@pytest.mark.usefixtures("ssh_played")
@pytest.mark.slow
def test_a_silent_node_gets_one_second_connection_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_children: Children
) -> None:
    name, played = "first-dropped-silent", tmp_path / "played"
    counts = []
    monkeypatch.setattr(connections, "OVERDUE_S", 60.0)
    with Transport([Host(name)]) as transport:
        transport.ask({name: "echo end"}, deadline_s=60)
        monkeypatch.setattr(connections, "OVERDUE_S", 0.1)
        # Silent until the second connection has begun, and ten ticks longer.
        script = f'while [ "$(grep -c . {played})" -lt 2 ]; do sleep 0.1; done; sleep 1'
        transport.ask({name: script}, deadline_s=60, on_answer=lambda _: counts.append(len(new_children())))
    assert played.read_text().split() == [name, name]
    assert counts == [2]
    assert new_children() == []


@pytest.mark.usefixtures("ssh_played")
@pytest.mark.parametrize("stage", ["on_answer", "on_output", "on_exit", "close"])
def test_whatever_raises_no_client_and_no_descriptor_is_left(stage: str, new_children: Children) -> None:
    class Failing(Recorder):
        def on_output(self, data: bytes) -> None:
            fail("on_output")

        def on_exit(self, code: int | None, error: Unreached | None) -> None:
            fail("close" if error else "on_exit")

    def fail(now: str) -> None:
        if now == stage:
            raise KeyboardInterrupt(now)

    def use() -> None:
        nodes = [Host("fine"), Host("stuck-logged-in"), *hosts.local_nodes(1)]
        with Transport(nodes) as transport:
            transport.ask({"fine": "echo end"}, deadline_s=60, on_answer=lambda _: fail("on_answer"))
            listener = Failing()
            transport.start("127.0.0.2", ECHO, (), listener).close_stdin()
            turn_until(transport, lambda: listener.exits or stage == "close")

    before = {*Path("/proc/self/fd").iterdir()}
    with pytest.raises(KeyboardInterrupt, match=stage):
        use()
    assert new_children() == []
    assert {*Path("/proc/self/fd").iterdir()} <= before


@pytest.mark.usefixtures("ssh_played")
def test_a_client_that_was_given_up_is_reaped_while_others_go_on(new_children: Children) -> None:
    with Transport([Host("stuck-logged-in"), Host("fine")]) as transport:
        transport.reopen("stuck-logged-in")
        turn_until(transport, lambda: len(new_children()) == 2, within_s=60)


@pytest.mark.usefixtures("ssh_played")
def test_a_node_that_prints_without_end_is_said_to_and_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, new_children: Children
) -> None:
    # However long we had no processor meanwhile.
    monkeypatch.setattr("ringup.transport.cpu.waited_s", lambda pid="self": time.monotonic())
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Transport([Host("fine")]) as transport:
        for script in ("exec yes", "exec yes >&2"):
            answer = transport.ask({"fine": script}, deadline_s=3600)["fine"]
            assert answer.error and answer.error.kind == "no-answer"
            assert "its output does not end" in answer.error.words
            transport.reopen("fine")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000
    assert new_children() == []


@pytest.mark.usefixtures("ssh_played")
def test_no_ssh_here_is_every_node_unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with Transport([Host("fine")]) as transport:
        answer = transport.ask({"fine": "echo end"}, deadline_s=60)["fine"]
    assert answer.error == Unreached("ssh-failed", "ssh cannot be started here: No such file or directory")


@pytest.mark.usefixtures("ssh_played")
def test_a_program_on_a_node_that_is_lost_ends_with_the_reason() -> None:
    recorder = Recorder()
    with Transport([Host("fine")]) as transport:
        transport.start("fine", "import os; os.kill(os.getppid(), 9)", (), recorder)
        recorder.until_exit(transport)
    ((code, error),) = recorder.exits
    assert code is None
    assert error is not None
    assert error.kind == "ssh-failed"


@pytest.mark.usefixtures("ssh_played")
def test_a_program_on_an_unreached_node_ends_with_the_reason() -> None:
    recorder = Recorder()
    with Transport([Host("refused")]) as transport:
        channel = transport.start("refused", ECHO, (), recorder)
        channel.write(b"one\n")
        recorder.until_exit(transport)
        channel.write(b"lost\n")
        channel.close_stdin()
        again = Recorder()
        transport.start("refused", ECHO, (), again)
        again.until_exit(transport)
    assert recorder.exits[0][1] is not None
    assert recorder.exits[0][1].kind == "ssh-connection-refused"
    assert again.exits == recorder.exits


# -- what the node's shell prints ------------------------------------------------------------------


class Noisy:
    """A `sh` that prints before it runs what it was given, as start-up files do."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.monkeypatch = monkeypatch

    def __call__(self, start_up: str) -> None:
        shell = self.directory / "sh"
        shell.write_text(f'#!/bin/sh\n{start_up}\nexec /bin/sh "$@"\n')
        shell.chmod(0o755)
        self.monkeypatch.setenv("PATH", f"{self.directory}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def noisy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noisy:
    return Noisy(tmp_path, monkeypatch)


def test_noise_of_a_shell_is_kept_and_in_no_answer(noisy: Noisy) -> None:
    noisy("echo 'Welcome to \033[31mnode1'; echo quota >&2; printf 'no newline'")
    with Transport(hosts.local_nodes(1)) as transport:
        answer = transport.ask({"127.0.0.2": "echo end"}, deadline_s=60)["127.0.0.2"]
        noise = transport.noise("127.0.0.2")
    assert (answer.stdout, answer.stderr) == (b"end\n", b"")
    assert "Welcome to \\x1b[31mnode1" in noise
    assert "quota" in noise
    assert noise.isprintable()


def test_binary_noise_is_survived(noisy: Noisy) -> None:
    noisy("head -c 200000 /dev/urandom; head -c 200000 /dev/urandom >&2")
    assert ask_one("echo end").stdout == b"end\n"


def test_endless_noise_is_cut_and_named(noisy: Noisy) -> None:
    noisy("exec yes")
    answer = ask_one("echo end")
    assert answer.error is not None
    assert answer.error.kind == "no-answer"
    assert answer.error.words.startswith("the shell printed 4 MiB before it answered: y / y")


def test_a_shell_that_ends_early_is_named_with_its_words(noisy: Noisy) -> None:
    noisy("echo This account is currently not available.; exit 1")
    answer = ask_one("echo end")
    assert answer.error == Unreached(
        "no-answer", "the shell here ended with 1: This account is currently not available."
    )


# -- frames ----------------------------------------------------------------------------------------


def test_the_boot_line_passes_through_every_login_shell() -> None:
    line = bootstrap.login_command("t0ken")
    assert line.count("'") == 2
    assert not set(line) & set("!\n`")
    token = secrets.token_hex(16)
    asked = bootstrap.request(token, "ask", 1, "echo 'a!b'; exit 7")
    for shell in ("dash", "bash", "zsh", "fish", "tcsh", "ksh", "mksh", "busybox"):
        words = [shell, "sh"] if shell == "busybox" else [shell]
        try:
            ended = subprocess.run(
                [*words, "-c", bootstrap.login_command(token)],
                input=asked,
                capture_output=True,
                timeout=60,
                check=False,
            )
        except (FileNotFoundError, PermissionError):  # a folder of PATH that only root may look into
            continue
        pieces = [*bootstrap.MarkedStream(token).feed(ended.stdout)]
        assert pieces == [("ready",), ("begin", "1"), b"a!b\n", ("end", "1", "7")], shell
