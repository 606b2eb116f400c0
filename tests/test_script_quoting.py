"""
Every kind of job file hands script, arguments and variables on byte for byte, whatever they hold.

Files are run with stand-ins on PATH: for the scheduler's programs, ssh and docker, and for the interpreter,
which notes its argument list and its environment as the kernel has them.  YAML is read by two readers, and
what Kubernetes does to `$` is done.
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ringup.errors import LaunchError
from ringup.jobfiles import BATCH, KINDS, Asked
from ringup.jobfiles.quoting import enter
from ringup.jobfiles.templating import render
from ringup.model import Job
from ringup.planning import EnvVar, NodePlan, Plan
from ringup.planning.env_formats import Machine, k8s
from ringup.secrets import holds_secret
from ringup.transport import bootstrap

pytestmark = pytest.mark.slow

PROGRAMS = {
    # Where the ranks meet is what a file says; everything else that is started is noted.
    "python": """
case "$1,$3" in -c,lead) cat "$PLACES_FILE"; exit ;; -c,*) exit ;; esac
cat /proc/$$/cmdline >"$SHOWN/$$.words"
cat /proc/$$/environ >"$SHOWN/$$.env"
""",
    "scontrol": "echo node0\n",
    "srun": """
while [[ $1 == -* ]]; do shift; done
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
exec "$@"
""",
    "pbsdsh": 'while [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n',
    "blaunch": 'shift\nexec "$@"\n',
    "ssh": 'exec env -i PATH="$PATH" SHOWN="$SHOWN" bash -c "${@: -1}"\n',
    "docker": """
[ "$1" = run ] || exit 0
shift
env=("PATH=$PATH" "SHOWN=$SHOWN")
while [[ $1 == -* ]]; do
  case $1 in
    -e) env+=("$2=${!2}"); shift 2 ;;
    -v | -w | --name | --ulimit) shift 2 ;;
    *) shift ;;
  esac
done
shift
exec env -i "${env[@]}" "$@"
""",
    "sleep": "exec /bin/sleep 0.01\n",
}
FINDS = " --find-network"
FORMS = (*KINDS, *(kind + FINDS for kind in BATCH))
CLOUD = [kind for kind in KINDS if kind not in {*BATCH, "ssh", "docker"}]
FOLDER = "it's $HOME `id` {node_rank} é\U0001f600\n%j"
PORT = 29500
FILLED = {
    "{node_rank}": "0",
    "{node_count}": "1",
    "{nproc}": "1",
    "{world_size}": "1",
}
HOSTILE = (
    "it's", "$HOME", "`touch P`", "$(touch P)", "$(NPROC)", "$PYTHON", "$$", "$", "\\", '"', "'", "\n", "\t",
    "{node_rank}", "--rank={node_rank};$(touch P)", "-x", "--", "*", "~", "#", "&", ";", "|", "<", "\x1b[31m",
    "é", "$é", "\U0001f600", "\u2028", "\x7f", "\x85", "\ufeff", "\ufffe", "yes", "null", "1e3", "0x1f", "!",
    "a: b", "- a", "", " ", "%j", "END_OF_PROGRAM", "$NODE_RANK", "${NODE_RANK}", "@LAUNCHER@", "@COUNT@",
    "@ON@", "@SECRETS@", "@NAME@", "main() {",
)  # fmt: skip
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
words = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(characters, max_size=12),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=4).map("".join),
)
scripts = words.filter(lambda w: bool(w.strip()) and not w.startswith("-"))
names = st.from_regex(r"X_[A-Z][A-Z0-9_]{0,6}", fullmatch=True)
plain_variables = st.dictionaries(names, words, max_size=4).map(
    lambda env: {k: v for k, v in env.items() if not holds_secret(k, v)}  # a Secret of the cluster has those
)
# dev_valid_name of Linux: no space, slash or colon; 15 bytes.
interfaces = st.one_of(
    st.sampled_from(
        ["eth0", "$(id)", "a;b", "'", "`id`", 'a"b', "~", "-x", "*", "\\", "é", "a&b", "#x", "!"]
    ),
    st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/:"), min_size=1, max_size=15
    ),
)


@dataclass(frozen=True)
class Given:
    """What somebody asked for."""

    script: str
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    interface: str = "eth0"
    launcher: str = "torchrun"


asked_for = st.builds(
    Given,
    script=scripts,
    arguments=st.lists(words, max_size=5).map(tuple),
    options=st.lists(words, max_size=2).map(tuple),
    env=plain_variables,
    interface=interfaces,
    launcher=st.sampled_from(["torchrun", "python", "spawn", "deepspeed", "jax"]),
)


class Stage:
    """A folder with the stand-ins, and what they have noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self.programs, self.shown = folder / "bin", folder / "shown"
        for path in (self.folder, self.programs, self.shown):
            path.mkdir()
        for name, text in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/bash\n{text}")
            (self.programs / name).chmod(0o755)
        (self.folder / "python 3").symlink_to(self.programs / "python")
        self.python = str(self.folder / "python 3")
        self.env = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SHOWN": str(self.shown),
            "PLACES_FILE": str(folder / "places"),
            "SLURM_NNODES": "1",
            "SLURM_JOB_NODELIST": "node0",
            "SLURM_JOB_ID": "7",
            "PBS_JOBID": "7.pbs",
            "PBS_NODEFILE": str(folder / "nodes"),
            "LSB_JOBID": "7",
            "LSB_MCPU_HOSTS": "node0 2",
        }
        (folder / "nodes").write_text("node0\n")

    def asked(self, what: Given, form: str) -> Asked:
        """The same as `ringup script KIND` would be asked for."""
        job = Job(
            script=what.script,
            arguments=what.arguments,
            chdir=str(self.folder),
            launcher=what.launcher,
            launcher_arguments=what.options if what.launcher in ("torchrun", "deepspeed") else (),
            env=what.env,
        )
        node = NodePlan("node0", 0, 1, 0, what.interface, "10.0.0.1", (), {})
        plan = Plan("20260101-000000-abcd", job, (node,), (), "10.0.0.1", PORT, 1)
        own = tuple(EnvVar(k, v, "yours\n$(touch P)") for k, v in what.env.items())
        is_finding = form.endswith(FINDS)  # then nobody knows yet where the job runs
        return Asked(
            job,
            1,
            1,
            0,
            "job",
            self.python,
            None if is_finding else plan,
            own,
            image="registry.example/i:1",
            finds_network=is_finding,
        )

    def run(self, what: Given, form: str) -> tuple[list[bytes], dict[bytes, bytes]]:
        """The interpreter's own words and environment, once the file has run."""
        for path in self.shown.iterdir():
            path.unlink()
        (self.folder.parent / "places").write_text(f"10.0.0.1 {PORT}\n0 10.0.0.1 {what.interface}\n")
        kind = form.removesuffix(FINDS)
        text = render(kind, self.asked(what, form))
        if kind in CLOUD:
            self._in_pod(text)
        else:
            path = self.folder.parent / "job.sh"
            path.write_text(text, encoding="utf-8")
            self._execute(["bash", str(path), *["0"][: kind == "docker"]], self.env)
        assert not (self.folder / "P").exists() and not (self.folder.parent / "P").exists(), text
        (noted,) = self.shown.glob("*.words")
        started = noted.read_bytes().split(b"\0")[:-1]
        environment = noted.with_suffix(".env").read_bytes().split(b"\0")[:-1]
        pairs = (entry.partition(b"=") for entry in environment)
        return started[2:], {name: value for name, _, value in pairs}

    def _execute(self, command: list[str], env: Mapping[str, str]) -> None:
        # SIGPIPE stays ignored, as Python and some login shells have it: bash then speaks of broken pipes.
        done = subprocess.run(
            command,
            env=env,
            cwd=self.folder.parent,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            restore_signals=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode(errors="replace")

    def _in_pod(self, text: str) -> None:
        """The container of the first pod, started as the kubelet starts it."""
        documents = list(yaml.safe_load_all(text))
        assert documents == [plain(d) for d in YAML(typ="safe", pure=True).load_all(io.StringIO(text))]
        container = next(found for document in documents for found in containers(document))
        variables = {
            "JOB_COMPLETION_INDEX": "0",
            "RANK": "0",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": str(PORT),
        }
        variables |= {f"PET_{name}": value for name, value in variables.items()} | {"PET_NODE_RANK": "0"}
        variables |= {"PATH": self.env["PATH"], "SHOWN": self.env["SHOWN"]}
        for entry in container.get("env", ()):
            variables[entry["name"]] = expanded(entry["value"], variables) if "value" in entry else "10.0.0.1"
        command = [expanded(word, variables) for word in [*container["command"], *container["args"]]]
        self._execute(command, variables)


def plain(value: Any) -> Any:
    """Mappings and lists of a reader as Python's own."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def containers(value: Any) -> Iterator[dict[str, Any]]:
    """What has a command, in the order of the file."""
    if isinstance(value, dict):
        if "command" in value:
            yield value
        for entry in value.values():
            yield from containers(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from containers(entry)


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Expand of kubernetes/third_party/forked/golang/expansion, which works on bytes."""
    data, out, at = text.encode(), b"", 0
    while at < len(data):
        piece = data[at : at + 1]
        if piece != b"$" or at + 1 == len(data):
            out += piece
            at += 1
            continue
        follows = data[at + 1 : at + 2]
        end = data.find(b")", at + 2) if follows == b"(" else -1
        if follows == b"$":
            out += b"$"
        elif end >= 0:
            name = data[at + 2 : end].decode()
            out += variables.get(name, f"$({name})").encode()
            at = end + 1
            continue
        elif follows == b"(":
            out += b"$("
        else:
            out += b"$" + chr(follows[0]).encode()  # string(byte): a byte beyond ASCII becomes two
        at += 2
    return out.decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="ringup-quoting-"))
    yield Stage(folder)
    shutil.rmtree(folder)


def as_meant(what: Given, word: str) -> bytes:
    """An argument as the rank has to see it."""
    if what.launcher in ("python", "jax", "spawn"):
        for name, value in {**FILLED, "{master_port}": str(PORT)}.items():
            word = word.replace(name, value)
    if what.launcher in ("python", "jax"):
        word = word.replace("{rank}", "0").replace("{local_rank}", "0")
    return word.encode()


@pytest.mark.alike
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@example(Given("train.py", ("--rank={node_rank};$(touch P)", "{node_rank}x", "{rank}"), launcher="python"))
@example(
    Given("$PYTHON", ("$PYTHON", "$NNODES"), ("$MASTER_ADDR",), {"X_A": "$(X_B) $$ \U0001f600", "X_B": "$é"})
)
@example(Given("a b.py", interface="$(touch P)"))
@given(asked_for)
def test_words_and_variables_reach_the_job_byte_for_byte(stage: Stage, form: str, what: Given) -> None:
    started, environment = stage.run(what, form)
    own = [as_meant(what, word) for word in (what.script, *what.arguments)]
    own[0] = what.script.encode()
    if what.launcher in ("torchrun", "deepspeed"):
        own = [word.encode() for word in what.options] + own
    assert started[-len(own) :] == own
    assert {k: environment.get(k.encode()) for k in what.env} == {k: v.encode() for k, v in what.env.items()}
    if form not in CLOUD:
        assert environment[b"GLOO_SOCKET_IFNAME"] == what.interface.encode()
        assert environment[b"NCCL_SOCKET_IFNAME"] == b"=" + what.interface.encode()


@settings(max_examples=200, deadline=None)
@given(st.text(characters), st.text(characters))
def test_values_of_ringup_env_for_a_pod_are_what_the_container_gets(value: str, because: str) -> None:
    text = k8s([EnvVar("X_A", value, because)], Machine())
    for loaded in (yaml.safe_load(text), YAML(typ="safe", pure=True).load(text)):
        (entry,) = loaded["containers"][0]["env"]
        assert expanded(entry["value"], {"X_A": "wrong", "NPROC": "wrong"}) == value


@pytest.mark.parametrize("form", FORMS)
def test_bytes_that_are_no_text_reach_the_job_or_are_refused(stage: Stage, form: str) -> None:
    assert stage.run(Given("train.py", ("a\udcffb",)), form)[0][-1] == b"a\xffb"
    what = Given("train.py", env={"X_A": "a\udcffb"})
    if form in CLOUD:
        with pytest.raises(LaunchError, match="not UTF-8"):
            stage.run(what, form)
    else:
        assert stage.run(what, form)[1][b"X_A"] == b"a\xffb"


def test_a_good_run_over_ssh_does_not_end_with_broken_pipes(stage: Stage) -> None:
    stage.run(Given("train.py"), "ssh")  # nothing on stderr


@pytest.mark.parametrize("folder", ["-", "-x", "$HOME"])
def test_a_directory_is_never_an_option_of_cd(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    done = subprocess.run(
        ["bash", "-c", f"{enter(folder)} && pwd"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == f"{tmp_path / folder}\n"


def test_a_directory_that_docker_cannot_mount_is_refused(stage: Stage) -> None:
    asked = stage.asked(Given("train.py"), "docker")
    with pytest.raises(LaunchError, match="cannot mount /a:b"):
        render("docker", replace(asked, job=replace(asked.job, chdir="/a:b")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_nul_byte_is_refused(stage: Stage, kind: str) -> None:
    with pytest.raises(LaunchError, match="NUL"):
        render(kind, stage.asked(Given("train.py", ("a\0b",)), kind))


SAYS = """
import os, sys
sys.stdout.buffer.write(b"\\0".join(os.fsencode(word) for word in sys.argv[1:]))
"""


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0"), max_size=12).filter(
            lambda t: not any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in t)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_a_node_is_asked_for_over_ssh_or_srun_reaches_its_program_byte_for_byte(
    words: list[str],
) -> None:
    """The loop that waits on a node is run by a real shell, as sshd or slurmd would run it."""
    token = secrets.token_hex(16)
    python = shutil.which("python3") or ""
    script, source = bootstrap.python_script(python, words[0], SAYS, tuple(words))
    asked = bootstrap.request(token, "run", 1, script) + source
    done = subprocess.run(
        ["/bin/sh", "-c", bootstrap.loop_script(token)], input=asked, capture_output=True, timeout=60
    )
    stream = bootstrap.MarkedStream(token)
    data = b"".join(piece for piece in stream.feed(done.stdout) if isinstance(piece, bytes))
    assert data == b"\0".join(os.fsencode(word) for word in words), done.stderr
