"""The facts script, run by a real shell on this machine, and what is made of its answer."""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ringup import agent_bundle, collectors
from ringup.collectors.node_answer import AFTER_SETUP, Asked, node_from
from ringup.collectors.probe_script import FIELDS, facts_script
from ringup.model import Host, Job, Node
from ringup.transport import Answer
from tests.guards import ROOM, wait_for

TOKEN = "t0ken"
EVERY_FIELD = {field for fields in FIELDS.values() for field in fields}


def request_of(**values: Any) -> dict[str, Any]:
    return {"python": sys.executable, "chdir": "/", "script": "", "names": [], "env": {}, **values}


@pytest.mark.parametrize("part", sorted(set(FIELDS) - {"gpu"}))  # its answers are put together first
def test_each_answer_of_a_part_has_its_field(part: str) -> None:
    tree = ast.parse(
        Path(agent_bundle.__file__).with_name("agent").joinpath("facts", f"{part}.py").read_text()
    )
    (questions,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "questions"]
    answers = [n.value for n in ast.walk(questions) if isinstance(n, ast.Yield)]
    names = {ast.literal_eval(n.elts[0]) for n in answers if isinstance(n, ast.Tuple)}
    assert names == set(FIELDS[part]), "agent/facts and FIELDS in collectors/probe_script.py differ"


def ask(
    request: dict[str, Any],
    *,
    parts: tuple[str, ...] = tuple(FIELDS),
    setup: str = "",
    env: Mapping[str, str] | None = None,
    change: Callable[[str], str] = lambda script: script,
    shell: str = "sh",
    scale: float = ROOM,
    job_env: Mapping[str, str] | None = None,
) -> Node:
    """The node that this machine is, as the script and its reader see it."""
    script = change(facts_script(TOKEN, request, parts=parts, setup=setup, scale=scale))
    kept = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ}
    done = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        env={**kept, **(env or {})},
        stdin=subprocess.DEVNULL,
        timeout=180,
    )
    return read(done.stdout, done.stderr, parts, job_env or {})


def read(out: bytes, err: bytes, parts: tuple[str, ...], env: Mapping[str, str]) -> Node:
    asked = Asked(Host("n1"), TOKEN, parts, env, began_s=0.0)
    return node_from(Answer("n1", out, err, 0), asked, heard_s=1e10)[0]


@pytest.fixture(scope="module")
def here() -> Node:
    return ask(request_of(names=["localhost"]))


def test_everything_is_known_of_a_healthy_machine(here: Node) -> None:
    assert dict(here.unknown) == {}
    assert here.hostname == socket.gethostname()
    assert here.uid == os.getuid()
    assert here.cpu_count == len(os.sched_getaffinity(0))
    assert here.interface("lo") is not None
    assert here.peer_names[0].addresses
    assert here.interpreter.path == sys.executable
    assert here.interpreter.version == ".".join(map(str, sys.version_info[:3]))


def test_a_listening_port_is_shown_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = ask(request_of(), parts=("processes",))
        port = server.getsockname()[1]
    found = next(li for li in node.listeners if li.port == port)
    assert found.address == "127.0.0.1"
    assert found.process is not None and found.process.pid == os.getpid()
    assert found.process.age_s >= 0


def test_versions_are_read_without_importing_torch(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.7.1+cu128'\ncuda: Optional[str] = '12.8'\n"
    )
    for name in ("torch-2.7.1+cu128", "nvidia_nccl_cu12-2.26.2", "Accelerate-1.2.0", "not_torch-9"):
        (site / f"{name}.dist-info").mkdir()
    for name in ("nvidia_nccl_cu11-2.21.5", "nvidia_nccl_cu13-2.28.9"):  # left there by another torch
        (site / f"{name}.dist-info").mkdir()
    node = ask(request_of(), parts=("software",), env={"PYTHONPATH": str(site)})
    found = node.interpreter
    assert (found.torch, found.cuda, found.nccl) == ("2.7.1+cu128", "12.8", "2.26.2")
    assert found.packages["accelerate"] == "1.2.0" and "not_torch" not in found.packages


def test_a_launcher_in_a_checkout_is_there_though_no_record_tells_its_version(tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "colossalai").mkdir()
    node = ask(request_of(), parts=("software",), env={"PYTHONPATH": str(tmp_path)})
    assert node.interpreter.packages["deepspeed"] == ""
    assert "colossalai" not in node.interpreter.packages


def test_no_interpreter_is_a_known_fact_and_not_an_unknown_one() -> None:
    node = ask(request_of(python="/no/such/python"), parts=("software",))
    assert node.interpreter.path == "" and "interpreter" not in node.unknown


def test_an_interpreter_that_fails_is_unknown_with_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython3.so: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    node = ask(request_of(python=str(broken)), parts=("software",))
    assert "libpython3.so: cannot open" in node.unknown["interpreter"]


def test_what_the_setup_changes_is_what_the_job_gets() -> None:
    setup = "export NCCL_DEBUG='IN FO' && ulimit -n 77 && echo loaded"
    node = ask(request_of(), setup=setup)
    assert node.environment["NCCL_DEBUG"] == "IN FO"
    assert node.limits.open_files == 77
    assert (node.setup_error, dict(node.unknown)) == ("", {})


@pytest.mark.parametrize(
    ("mapped", "rights", "freely"),
    [
        ("0 0 4294967295", "000001ffffffffff", True),
        ("0 0 4294967295", "00000000a80425fb", False),  # docker's root
        ("0 1000 1", "000001ffffffffff", False),  # of a user namespace
        ("0 0 4294967295", "", False),
    ],
)
def test_who_may_lock_all_memory_is_root_of_the_machine_itself(
    tmp_path: Path, mapped: str, rights: str, freely: bool
) -> None:
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "uid_map").write_text(f"{mapped}\n")
    (own / "status").write_text(f"Name:\tsh\nCapEff:\t{rights}\nSeccomp:\t0\n")
    assert ask(request_of(root=str(tmp_path)), parts=("system",)).limits.locks_freely is freely


def test_another_python_from_the_setup_wins_over_the_launchers(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    node = ask(
        request_of(python="", default_python=sys.executable),
        setup=f"PATH={shlex.quote(str(other.parent))}:$PATH",
        parts=("software",),
    )
    assert node.interpreter.path == str(other)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("echo 'no such module: cuda/99'; false", "exit status 1: no such module: cuda/99"),
        ("exit 3", "it ended the shell with exit status 3"),
        ("if", "syntax error"),
        ("no-such-command-here", "exit status 127"),
    ],
)
def test_a_failing_setup_is_told_and_the_rest_is_known(setup: str, words: str) -> None:
    node = ask(request_of(), setup=setup)
    assert words in node.setup_error
    assert set(node.unknown) == set(AFTER_SETUP)
    assert node.interfaces


@pytest.mark.slow
def test_a_setup_that_never_ends_is_stopped() -> None:
    node = ask(request_of(), setup="sleep 600", scale=0.3)
    assert "took too long" in node.setup_error and node.hostname == socket.gethostname()


def test_a_directory_is_a_script_where_python_would_run_it(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    node = ask(request_of(chdir=str(tmp_path), script="job"), parts=("work",))
    assert not node.script.exists and node.script.path == str(tmp_path / "job" / "__main__.py")
    (tmp_path / "job" / "__main__.py").write_bytes(b"print(1)")
    node = ask(request_of(chdir=str(tmp_path), script="job"), parts=("work",))
    assert node.script.exists and node.script.sha256 == hashlib.sha256(b"print(1)").hexdigest()


def test_a_script_that_cannot_be_read_is_no_missing_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to("train.py")  # also root cannot open it
    node = ask(request_of(chdir=str(tmp_path), script="train.py"), parts=("work",))
    assert not node.script.exists and node.script.error == os.strerror(errno.ELOOP)
    assert dict(node.unknown) == {}


@pytest.mark.parametrize("name", ["a b", "it's", "$(touch x)", "-rf", "new\nline", ";touch x", "ü"])
def test_no_name_of_a_directory_or_script_is_executed(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / name).write_text("print(1)")
    node = ask(request_of(chdir=str(directory), script=name), parts=("work",))
    assert node.chdir.exists and node.script.sha256 == hashlib.sha256(b"print(1)").hexdigest()
    assert sorted(p.name for p in directory.iterdir()) == [name]


@pytest.mark.slow
def test_a_path_on_a_dead_file_server_does_not_hold_up_the_rest() -> None:
    def dead(script: str) -> str:
        return script.replace('[ -e "$ru_p" ]', "sleep 600")

    node = ask(request_of(chdir="/tmp"), change=dead, scale=1.0)
    assert node.unreached is None and node.hostname == socket.gethostname()


def test_a_missing_directory_is_a_fact_and_the_rest_is_known() -> None:
    node = ask(request_of(chdir="/no/such/place", script="train.py"))
    assert not node.chdir.exists and not node.script.exists
    assert dict(node.unknown) == {}


def test_values_of_secrets_stay_on_the_node() -> None:
    env = {
        "NCCL_AUTH_TOKEN": "abc123",
        "http_proxy": "http://me:hunter2@proxy:3128/",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "hf_1",
    }
    node = ask(request_of(), parts=("system",), env=env)
    assert dict(node.environment) == {
        "NCCL_AUTH_TOKEN": "(hidden)",
        "http_proxy": "http://(hidden)@proxy:3128/",
        "NCCL_DEBUG": "INFO",
    }


def test_a_megabyte_in_a_variable_is_cut() -> None:
    node = ask(request_of(), parts=("system",), env={"NCCL_DEBUG": "x" * 120_000})
    assert len(node.environment["NCCL_DEBUG"]) == 4096 and not node.unknown


def test_the_users_nccl_file_wins_over_the_machines(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "nccl.conf").write_text("NCCL_NET=IB\nNCCL_DEBUG=WARN\n")
    (tmp_path / ".nccl.conf").write_text("#NCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=INFO\n")
    (tmp_path / "etc" / "passwd").write_text(f"ada:x:{os.getuid()}:0::{tmp_path}:/bin/sh\n")
    node = ask(request_of(root=str(tmp_path)), parts=("home",), env={"HOME": "/nonexistent"})
    assert dict(node.nccl_conf) == {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB"}


@pytest.mark.parametrize(("nccl", "value"), [("2.20.5", "PASSWD"), ("2.27.7", "NAMED"), ("2.30.7", "NAMED")])
def test_which_file_of_the_user_counts_depends_on_the_release(tmp_path: Path, nccl: str, value: str) -> None:
    node = conf_node(tmp_path, nccl, {"NCCL_CONF_FILE": str(tmp_path / "named.conf")})
    assert dict(node.nccl_conf) == {"NCCL_NET": value}


@pytest.mark.parametrize(("nccl", "value"), [("2.29.7", "PASSWD"), ("2.30.3", "HOME")])
def test_before_2_30_the_home_of_passwd_counts_and_then_the_variable(
    tmp_path: Path, nccl: str, value: str
) -> None:
    assert dict(conf_node(tmp_path, nccl, {}).nccl_conf) == {"NCCL_NET": value}


def conf_node(tmp_path: Path, nccl: str, env: dict[str, str]) -> Node:
    """A node with three files of the user's, each setting NCCL_NET to where it lies."""
    (tmp_path / "etc").mkdir()
    site = tmp_path / "site"
    for name in ("torch", f"nvidia_nccl_cu12-{nccl}.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "torch" / "__init__.py").touch()
    (site / "torch" / "version.py").write_text("__version__ = '2.7.1'\ncuda = '12.8'\n")
    (tmp_path / "etc" / "passwd").write_text(f"ada:x:{os.getuid()}:0::{tmp_path}/passwd:/bin/sh\n")
    for home in ("passwd", "home"):
        (tmp_path / home).mkdir()
        (tmp_path / home / ".nccl.conf").write_text(f"NCCL_NET={home.upper()}\n")
    (tmp_path / "named.conf").write_text("NCCL_NET=NAMED\n")
    kept = {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(site), **env}
    return ask(request_of(root=str(tmp_path)), parts=("home", "software"), env=kept)


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("", 0)])
def test_gpus_are_those_the_job_will_see(tmp_path: Path, visible: str | None, count: int) -> None:
    for name in ("0000:18:00.0", "0000:2a:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    node = ask(request_of(root=str(tmp_path)), parts=("system", "software"), env=env)
    assert node.gpu_count == count
    node = ask(request_of(root=str(tmp_path)), parts=("software",), job_env=env)
    assert node.gpu_count == count


def test_settings_of_arp_that_are_not_shown_are_not_zero(tmp_path: Path) -> None:
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and (lo.arp_ignore, lo.arp_announce) == (None, None)
    shown = tmp_path / "proc/sys/net/ipv4/conf/all"
    shown.mkdir(parents=True)
    (shown / "arp_ignore").write_text("1\n")
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and (lo.arp_ignore, lo.arp_announce) == (1, None)


def test_a_speed_is_believed_only_with_a_device_behind_it(tmp_path: Path) -> None:
    index = socket.if_nametoindex("lo")
    folder = tmp_path / "sys/class/net/lo"
    folder.mkdir(parents=True)
    (folder / "ifindex").write_text(f"{index}\n")
    (folder / "speed").write_text("10000\n")
    node = ask(request_of(root=str(tmp_path)), parts=("network",))
    lo = node.interface("lo")
    assert lo is not None and lo.speed_gbit_s is None
    (folder / "device").mkdir()
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and lo.speed_gbit_s == 10.0
    # As of a VLAN of a bond of a card.
    (folder / "device").rmdir()
    (folder / "lower_bond0").mkdir()
    (folder.parent / "bond0" / "lower_eth0").mkdir(parents=True)
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and lo.speed_gbit_s is None
    (folder.parent / "eth0" / "device").mkdir(parents=True)
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and lo.speed_gbit_s == 10.0


def test_another_namespaces_sysfs_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/net/lo"
    (folder / "device").mkdir(parents=True)
    (folder / "ifindex").write_text("4711\n")
    (folder / "speed").write_text("10000\n")
    lo = ask(request_of(root=str(tmp_path)), parts=("network",)).interface("lo")
    assert lo is not None and lo.speed_gbit_s is None


def test_a_tree_without_proc_is_unknown_and_not_zero(tmp_path: Path) -> None:
    node = ask(request_of(root=str(tmp_path)))
    for field in ("boot_id", "memory_bytes", "ports", "listeners", "leftovers", "shm", "gpu_count"):
        assert "No such file" in node.unknown[field], field


# -- processes of earlier runs ---------------------------------------------------------------

RANK = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.7", "PATH": os.environ["PATH"]}


@pytest.fixture
def started() -> Iterator[Callable[..., int]]:
    """Start a program of one of these forms, get the pid of its `sleep`; all are ended afterwards."""
    groups: list[subprocess.Popen[bytes]] = []

    def start(form: str, env: Mapping[str, str]) -> int:
        child = subprocess.Popen(
            ["sh", "-c", form], env=dict(env), stdout=subprocess.PIPE, start_new_session=True
        )
        groups.append(child)
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        # Its number is printed while it is still a copy of the shell.
        wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() != "sh\n", "its program")
        return pid

    yield start
    for child in groups:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def leftover(node: Node, pid: int) -> str:
    return next((p.evidence for p in node.leftovers if p.pid == pid), "")


def test_a_rank_whose_launcher_lives_is_said_to_be_running(started: Callable[..., int]) -> None:
    pid = started("sleep 60 & echo $!; wait", RANK)
    evidence = leftover(ask(request_of(), parts=("processes",)), pid)
    assert evidence.startswith("running: its parent is ") and "rank 1 of 4, MASTER_ADDR=10.0.0.7" in evidence


def test_a_rank_whose_parents_are_gone_is_an_orphan(started: Callable[..., int]) -> None:
    pid = started("sh -c 'sleep 60 & echo $!' ; exit", RANK)
    node = ask(request_of(), parts=("processes",))
    found = next(p for p in node.leftovers if p.pid == pid)
    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != "1":
        pytest.skip("a subreaper stands above this test")
    one = Path("/proc/1/comm").read_text().strip()
    inits = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "sleep", "tail", "sshd")
    if one in inits:
        assert found.evidence.startswith("orphan: its parent is gone; rank 1 of 4")
    else:
        # In a container whose first process is a shell or the job itself nobody can tell.
        assert found.evidence.startswith("running: started by process 1")


def test_variables_that_the_whole_container_has_make_no_rank(started: Callable[..., int]) -> None:
    pid = started("sleep 60 & echo $!; wait", RANK)
    assert leftover(ask(request_of(), parts=("processes",), env=RANK), pid) == ""


def test_a_run_tag_is_told(started: Callable[..., int]) -> None:
    pid = started("sleep 60 & echo $!; wait", {"RINGUP_RUN": "run-7", "PATH": os.environ["PATH"]})
    found = next(p for p in ask(request_of(), parts=("processes",)).leftovers if p.pid == pid)
    assert found.run_id == "run-7"


def part(name: str) -> Any:
    """A part of the program, as a module; nothing of ours imports it."""
    path = Path(collectors.__file__).parent.parent / "agent" / "facts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_look_up_waits_for_none_that_is_stuck() -> None:
    names, quick = part("names"), threading.Event()

    def look(name: str) -> str:
        if name == "quick":
            quick.set()
        return "told" if quick.wait(60) else "late"

    jobs = [(look, "stuck"), (look, "stuck too"), (look, "quick")]
    assert names.answers(jobs, 30.0) == dict.fromkeys(jobs, "told")


def test_a_reverse_look_up_for_which_no_time_was_left_is_not_called_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, stuck = part("names"), threading.Event()
    monkeypatch.setattr(names, "reverse", lambda address: stuck.wait(60))
    own = {"addresses": ["10.0.0.9"], "error": "", "took_s": 0.0}
    monkeypatch.setattr(names, "forward", lambda name: {"name": name, **own})
    found = dict(names.questions({"names": ["peer"], "limits": {"names": 0.6}}, ""))
    stuck.set()
    with pytest.raises(OSError, match="used up all the time"):
        found["reverse_lookup_s"]()


def test_a_look_up_that_has_no_time_at_all_took_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names, stuck = part("names"), threading.Event()
    monkeypatch.setattr(names, "forward", lambda name: stuck.wait(60))
    found = dict(names.questions({"names": ["peer"], "limits": {"names": 0.1}}, ""))
    stuck.set()
    assert found["peer_names"]()[0]["took_s"] == 0.0


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("/opt/venv/bin/python3.11 -u /opt/venv/bin/torchrun --nnodes 2 t.py", "torchrun"),
        ("python -m torch.distributed.run t.py", "torchrun"),
        ("python -u -m accelerate.commands.launch t.py", "accelerate launch"),
        ("torchrun t.py", "torchrun"),
        ("vim torchrun", ""),
        ("ssh node1 torchrun t.py", ""),
        ("python train.py torchrun", ""),
        ("python -m", ""),
        ("python", ""),
        ("", ""),
    ],
)
def test_a_launcher_is_known_by_its_command_line(line: str, launcher: str) -> None:
    assert part("processes").launcher(line.split()) == launcher


def test_a_secret_on_a_command_line_stays_on_the_node(started: Callable[..., int]) -> None:
    words = ["sleep", "60", "--wandb-key", "k1", "--hf_token=t1"]
    told = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    program = f"import os; os.execv({sys.executable!r}, ['python', '-c', {told!r}, *{words!r}])"
    pid = started(f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)}", RANK)
    found = next(p for p in ask(request_of(), parts=("processes",)).leftovers if p.pid == pid)
    assert "--wandb-key (hidden) --hf_token=(hidden)" in found.command


# -- a node without python -------------------------------------------------------------------


def without_python(script: str) -> str:
    return script.replace("python", "no-such-snake")


def test_a_node_without_python_is_unknown_for_that_reason() -> None:
    node = ask(request_of(python="", default_python=""), change=without_python)
    assert node.interpreter.path == ""
    assert {*node.unknown} == EVERY_FIELD - {"interpreter"} | {"clock"}
    assert {why for name, why in node.unknown.items() if name != "clock"} == {"no python3 on this node"}


def test_a_python_that_cannot_run_our_program_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    node = ask(
        request_of(python=str(tmp_path / "python3")),
        change=lambda s: s.replace(" python3 /usr/bin/python3 python /usr/libexec/platform-python", ""),
    )
    assert "could not run ringup's program" in node.unknown["interpreter"]


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_every_shell_gives_the_same_answer(shell: str, here: Node) -> None:
    words = {"busybox": "busybox sh"}.get(shell, shell)
    if subprocess.run(["sh", "-c", f"command -v {shell}"], capture_output=True).returncode:
        pytest.skip(f"no {shell} here")
    script = facts_script(TOKEN, request_of(names=["localhost"]), parts=tuple(FIELDS), scale=ROOM)
    done = subprocess.run([*words.split(), "-c", script], capture_output=True)
    node = read(done.stdout, done.stderr, tuple(FIELDS), {})
    assert (node.hostname, node.interfaces, dict(node.unknown)) == (here.hostname, here.interfaces, {})


def test_every_other_name_is_asked_by_somebody_in_a_very_large_cluster() -> None:
    hosts = [Host(f"n{i}") for i in range(1000)]
    asked = {peer.name for i in range(1000) for peer in collectors.peers_of(i, hosts)}
    assert asked == {h.name for h in hosts}
    assert all(len(collectors.peers_of(i, hosts)) == collectors.MOST_NAMES for i in (0, 1, 999))
    assert all("n0" in {p.name for p in collectors.peers_of(i, hosts)} for i in (1, 500, 999))


def test_a_node_is_not_asked_for_its_secrets() -> None:
    job = Job(env={"HF_TOKEN": "hf_secret", "CUDA_VISIBLE_DEVICES": "0"})
    request = collectors.facts_request(0, [Host("a"), Host("b")], job, "")
    assert "hf_secret" not in facts_script(TOKEN, request, parts=tuple(FIELDS))


def other_pythons() -> list[str]:
    """Every Python from 3.8 on that this machine has, of whatever origin."""
    found = [p for minor in range(8, 16) if (p := shutil.which(f"python3.{minor}"))]
    found += map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")))
    return [p for p in found if "/shims/" not in p]


def test_the_program_is_written_for_the_oldest_python() -> None:
    todo, seen = [f"ringup.agent.facts.{part}" for part in ("main", *FIELDS)], set()
    while todo:
        module = todo.pop()
        if module not in seen:
            text = agent_bundle._read(module) or ""
            ast.parse(text, feature_version=(3, 6))
            todo += agent_bundle.imported(text)
        seen.add(module)
    assert "ringup.agent.proc.process" in seen


@pytest.mark.slow
@pytest.mark.parametrize("python", other_pythons() or [sys.executable])
def test_every_python_of_this_machine_runs_the_program(python: str, here: Node) -> None:
    node = ask(
        request_of(python=python, names=["localhost"]),
        change=lambda s: s.replace(" python3 /usr/bin/python3 python /usr/libexec/platform-python", ""),
    )
    assert dict(node.unknown) == {}
    assert node.interpreter.path == python
    assert (node.hostname, node.interfaces) == (here.hostname, here.interfaces)


def test_a_start_up_file_that_chatters_does_not_hide_the_version(tmp_path: Path) -> None:
    wrapper = tmp_path / "python3"
    wrapper.write_text(f"#!/bin/sh\necho 'loading site...'\nexec {shlex.quote(sys.executable)} \"$@\"\n")
    wrapper.chmod(0o755)
    other = ask(request_of(python=str(wrapper)), parts=("software",)).interpreter
    assert (other.path, other.version) == (str(wrapper), ".".join(map(str, sys.version_info[:3])))
