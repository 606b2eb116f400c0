"""Files that start the job without ringup: whole, valid, and safe with any value."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

from ringup import bundle, lint
from ringup.cli import command_line
from ringup.errors import LaunchError, UsageError
from ringup.jobfiles import BATCH, KINDS, templating
from ringup.jobfiles.quoting import quoted
from ringup.planning.launchers import LAUNCHERS
from tests import clusters as c
from tests.test_meet import by_itself

GOLDEN = Path(__file__).parent / "golden" / "script"
BASH = ("slurm", "pbs", "lsf", "ssh", "docker")
YAML = tuple(kind for kind in KINDS if kind not in BASH)
MINGPT = ("main.py", "trainer_config.max_epochs=10")
"""The job of a published Slurm example: minGPT on two nodes."""
USUAL = ("--python", "/opt/venv/bin/python", "--chdir", "/home/ada/minGPT-ddp", "--name", "mingpt")


def written(
    capsys: pytest.CaptureFixture[str], kind: str, *options: str, words: tuple[str, ...] = MINGPT
) -> str:
    """What `ringup script KIND` prints; of batch kinds the file that finds its network."""
    finds = ["--find-network"] * (kind in BATCH)
    assert command_line.dispatch(["script", kind, *finds, *options, "--", *words]) == 0
    return capsys.readouterr().out


def short(
    capsys: pytest.CaptureFixture[str], kind: str, *options: str, words: tuple[str, ...] = MINGPT
) -> str:
    """The batch file as a person writes it."""
    assert command_line.dispatch(["script", kind, *options, "--", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def facts(tmp_path: Path) -> str:
    """A file of saved facts: two nodes, of which one has a card that leads nowhere."""
    path = tmp_path / "facts.json"
    bundle.save(c.article_002(), path)
    return str(path)


def options_of(kind: str, facts: str) -> list[str]:
    """A job file as asked for on a login node; for ssh and docker the nodes are known."""
    options = [*USUAL, "--nproc", "8", "--env", "NCCL_DEBUG=WARN", "--env", "HF_TOKEN=hf_secret"]
    if kind in ("ssh", "docker"):
        return [*options, "--from", facts, "--image", "registry.example/torch:2.13"]
    options += ["--nodes", "2"]
    if kind in YAML:
        return [*options, "--image", "registry.example/torch:2.13", "--rdma", "rdma/hca_shared_devices_a"]
    return [*options, "--cpus", "96", "--time", "10:00:00"]


@pytest.mark.parametrize("kind", KINDS)
def test_golden_every_kind_is_written_as_before(
    capsys: pytest.CaptureFixture[str], kind: str, facts: str
) -> None:
    text = written(capsys, kind, *options_of(kind, facts))
    golden = GOLDEN / f"{kind}.{'sh' if kind in BASH else 'yaml'}"
    if os.environ.get("RINGUP_GOLDEN") == "write":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_value_without_a_quoting_filter_is_an_error() -> None:
    environment = templating._environment()
    for text in (
        "{{ value }}",
        "{{ value ~ value }}",
        "{{ value | upper }}",
        "{{ none }}",
        "{{ true }}",
        "{{ 'a' }}",
    ):
        with pytest.raises(TypeError, match="without a quoting filter"):
            environment.from_string(text).render(value="a b")
    with pytest.raises(UndefinedError):
        environment.from_string("{{ missing | sh }}").render()
    assert environment.from_string("{{ value | sh }} {{ 8 }}").render(value="a <b>") == "'a <b>' 8"


@pytest.mark.parametrize("filter_name", ["word", "line"])
def test_a_word_or_line_that_is_none_is_refused(filter_name: str) -> None:
    template = templating._environment().from_string(f"{{{{ value | {filter_name} }}}}")
    assert template.render(value="a-b") == "a-b"
    with pytest.raises(UsageError, match="is not one"):
        template.render(value="a\nrm -r x")


def needs(tool: str) -> str:
    """A program's path; without it the test is skipped, where all must run it fails."""
    path = shutil.which(tool)
    if path is None:
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail(f"RINGUP_REQUIRE_LAB=1, but there is no {tool}", pytrace=False)
        pytest.skip(f"needs {tool}")
    return path


HOSTILE = ("train it's.py", "$HOME `id` $(id)", 'a"b\\c', "-x=!$$", "é\nline\ttab", "$(NPROC) ${NPROC}", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "launcher"),
    [("slurm", launcher) for launcher in LAUNCHERS]
    + [(kind, launcher) for kind in BASH[1:] for launcher in ("torchrun", "python")],
)
def test_shellcheck_finds_nothing(
    capsys: pytest.CaptureFixture[str], kind: str, launcher: str, facts: str, tmp_path: Path
) -> None:
    shellcheck = needs("shellcheck")
    options = [*options_of(kind, facts), "--with", launcher, "--setup", "module load cuda", "--debug"]
    file = tmp_path / "job.sh"
    file.write_text(written(capsys, kind, *options, words=HOSTILE))
    done = subprocess.run([shellcheck, str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


SHOW = """\
import json, os, sys
with open(os.environ["SHOWN"], "ab", buffering=0) as file:  # several write, each its line at once
    file.write(json.dumps({"words": sys.argv[1:], "env": dict(os.environ)}).encode() + b"\\n")
"""


def shown(path: Path) -> list[dict[str, Any]]:
    """What the interpreter that `SHOW` plays was started with, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs that play others, first on PATH; in it an interpreter that notes its words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    program(folder / "python-played", f"exec {sys.executable} -S - \"$@\" <<'EOF'\n{SHOW}EOF\n")
    # What asks where the ranks meet is real.
    program(
        folder / "python-job",
        f'case "$1" in -c) exec {sys.executable} "$@" ;; *) exec python-played "$@" ;; esac\n',
    )
    return folder


def program(path: Path, text: str) -> None:
    """A shell script of that name."""
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


PLAYS_SRUN = """\
# Plays srun on one machine: one task a node; writes down what it was asked.
echo "$*" | head -1 >>"$SHOWN.srun"
nodes=1 codes=0
while [[ $1 == -* ]]; do case $1 in --nodes=*) nodes=${1#*=} ;; esac; shift; done
pids=()
for ((i = 0; i < nodes; i++)); do SLURM_NODEID=$i "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait $pid || codes=$?; done
exit $codes
"""


def run_file(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A job file, run as its scheduler would run it on the first node."""
    path = folder / "job.sh"
    path.write_text(by_itself(text) if "range(29500, " in text else text)
    words, known = ["bash", str(path)], {**os.environ, **env}
    return subprocess.run(words, capture_output=True, text=True, env=known, cwd=folder, timeout=180)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "pbs", "lsf"])
def test_words_and_variables_reach_the_launcher_as_they_were_given(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, kind: str
) -> None:
    options = ["--nodes", "1", "--nproc", "2", "--chdir", str(tmp_path), "--python", "python-job"]
    hostile = "it's $HOME `id`\n\\"
    text = written(capsys, kind, *options, "--env", f"ODD={hostile}", "--env", "API_KEY=k", words=HOSTILE)
    assert "API_KEY=k" not in text
    program(played / "srun", PLAYS_SRUN)
    program(played / "pbsdsh", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    program(played / "blaunch", 'shift; exec "$@"\n')
    (tmp_path / "nodes").write_text("node0\n")
    env = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "PBS_JOBID": "7.pbs", "LSB_JOBID": "7"}
    env |= {"PBS_NODEFILE": str(tmp_path / "nodes"), "LSB_MCPU_HOSTS": "node0 2", "API_KEY": "k"}
    done = run_file(text, tmp_path, **env)
    assert done.returncode == 0, done.stderr
    (call,) = shown(tmp_path / "shown")
    at = call["words"].index(HOSTILE[0])
    assert tuple(call["words"][at:]) == HOSTILE
    assert call["env"]["ODD"] == hostile
    assert call["env"]["API_KEY"] == "k"
    assert call["words"][:2] == ["-m", "torch.distributed.run"]
    assert "--nnodes=1" in call["words"]
    assert "--nproc-per-node=2" in call["words"]
    assert "--node-rank=0" in call["words"]
    assert call["env"]["GLOO_SOCKET_IFNAME"]
    assert call["env"]["NCCL_SOCKET_IFNAME"] == "=" + call["env"]["GLOO_SOCKET_IFNAME"]
    assert not list(tmp_path.glob(".job-*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCH)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_batch_file_is_short_and_shellcheck_finds_nothing(
    capsys: pytest.CaptureFixture[str], kind: str, launcher: str, tmp_path: Path
) -> None:
    usual = short(
        capsys, kind, "--nodes", "2", "--nproc", "8", "--with", launcher, words=("train.py", "--lr", "1")
    )
    assert usual.count("\n") <= 45
    options = [*options_of(kind, ""), "--with", launcher, "--setup", "module load cuda"]
    file = tmp_path / "job.sh"
    file.write_text(short(capsys, kind, *options, words=HOSTILE))
    done = subprocess.run([needs("shellcheck"), str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCH)
@pytest.mark.parametrize("launcher", ["torchrun", "python"])
def test_a_short_file_starts_every_node_with_its_own_number(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, kind: str, launcher: str
) -> None:
    options = ["--nodes", "2", "--nproc", "2", "--chdir", str(tmp_path), "--python", "python-job"]
    hostile = "it's $HOME `id`\n\\"
    options += ["--env", f"ODD={hostile}", "--with", launcher]
    text = short(capsys, kind, *options, words=HOSTILE)
    tasks = 2 if launcher == "python" else 1
    loops = "for ((i = 0; i < 2; i++)); do for ((j = 0; j < TASKS; j++)); do\n"
    numbers = "SLURM_NODEID=$i SLURM_LOCALID=$j SLURM_PROCID=$((i * TASKS + j))"
    body = f'{loops}{numbers} "$@" & done; done; wait\n'
    program(played / "srun", f"while [[ $1 == -* ]]; do shift; done\n{body}")
    program(played / "scontrol", 'printf "node0\\nnode1\\n"\n')
    program(played / "pbsdsh", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    program(played / "blaunch", 'shift; exec "$@"\n')
    (tmp_path / "nodes").write_text("node0\nnode1\n")
    env = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]", "TASKS": str(tasks)}
    env |= {"PBS_JOBID": "7.pbs", "LSB_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes")}
    done = run_file(text, tmp_path, **env, LSB_MCPU_HOSTS="node0 2 node1 2")
    assert done.returncode == 0, done.stderr
    calls = shown(tmp_path / "shown")
    assert {call["env"]["ODD"] for call in calls} == {hostile}
    assert all(tuple(call["words"][-len(HOSTILE) :]) == HOSTILE for call in calls)
    assert {call["env"]["MASTER_ADDR"] for call in calls} == {"node0"}
    if launcher == "torchrun":
        ranks = sorted(word for call in calls for word in call["words"] if word.startswith("--node-rank"))
        assert ranks == ["--node-rank=0", "--node-rank=1"]
    else:
        assert sorted(call["env"]["RANK"] for call in calls) == ["0", "1", "2", "3"]
        assert {call["env"]["WORLD_SIZE"] for call in calls} == {"4"}
    assert not list(tmp_path.glob(".job-*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pbs", "lsf"])
def test_a_node_that_fails_ends_a_short_file_and_the_others(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, kind: str
) -> None:
    text = short(capsys, kind, "--nodes", "2", "--nproc", "1", "--chdir", str(tmp_path), "--python", "x")
    start = '[ "${@: -1}" = 1 ] && exit 3; exec sleep 600\n'
    for name in ("pbsdsh", "blaunch"):
        program(played / name, start)
    (tmp_path / "nodes").write_text("node0\nnode1\n")
    env = {"PBS_JOBID": "7.pbs", "LSB_JOBID": "7", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert run_file(text, tmp_path, **env, LSB_MCPU_HOSTS="node0 2 node1 2").returncode != 0


def test_a_node_that_fails_ends_also_what_has_not_begun(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path
) -> None:
    text = short(capsys, "pbs", "--nodes", "2", "--nproc", "1", "--chdir", str(tmp_path), "--python", "x")
    program(played / "grep", f'case "$*" in *node0*) sleep 2;; esac; exec {shutil.which("grep")} "$@"\n')
    program(played / "pbsdsh", '[ "${@: -1}" = 1 ] && exit 3; exec sleep 600\n')
    (tmp_path / "nodes").write_text("node0\nnode1\n")
    env = {"PBS_JOBID": "7.pbs", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert run_file(text, tmp_path, **env).returncode != 0


def test_an_image_of_a_pasted_line_is_that_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("torchrun", "--nproc_per_node=8", "train.py")
    docker = ("docker", "run", "--rm", "--gpus", "all", "-v", "/data:/data", "-e", "A=1", "img:1", *line)
    text = short(capsys, "k8s-job", "--nodes", "2", words=("docker", "run", "--gpus", "all", "img:1", *line))
    assert "image: img:1" in text or 'image: "img:1"' in text
    with pytest.raises(UsageError, match="docker run img:1: ringup cannot use it here"):
        command_line.dispatch(["script", "k8s-job", "--nodes", "2", "--", *docker])
    pyxis = ("srun", "--container-image=img.sqsh", "--container-mounts=/data:/data", *line)
    text = short(capsys, "slurm", "--nodes", "2", words=pyxis)
    assert "--label --container-image=img.sqsh --container-mounts=/data:/data bash -c" in text
    assert "export PYTHON=python3 NPROC=8" in text
    for command in (["run"], ["script", "pbs", "--nodes", "2"], ["script", "slurm", "--find-network"]):
        with pytest.raises(UsageError, match="srun --container-image=img"):
            command_line.dispatch([*command, "--", *pyxis])


def test_the_options_of_docker_are_kept(capsys: pytest.CaptureFixture[str], facts: str) -> None:
    line = ("docker", "run", "-v", "/data:/data", "-e", "A=1", "img:1", "torchrun", "train.py")
    text = short(capsys, "docker", "--from", facts, "--nproc", "2", words=line)
    assert "IMAGE=img:1\n" in text and "    -v /data:/data\n" in text and "export A=1\n" in text


def test_a_wrapper_stands_in_front_of_what_each_node_starts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("numactl", "--localalloc", "singularity", "exec", "--nv", "x.sif", "torchrun", "train.py")
    text = short(capsys, "slurm", "--nodes", "2", "--nproc", "2", words=words)
    assert 'exec numactl --localalloc singularity exec --nv x.sif "$PYTHON" -m torch' in text
    assert (
        short(capsys, "slurm", "--nodes=2", "--nproc=2", "--wrap", "nice -n 5", words=("train.py",)).count(
            'exec nice -n 5 "$PYTHON"'
        )
        == 1
    )


TORCHRUN = "srun torchrun --nproc_per_node=8 t.py --lr 1\n"
FOUR = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n#SBATCH --partition=gpu\n#SBATCH --gres=gpu:8\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            f"{FOUR}module load cuda\nexport NCCL_DEBUG=INFO MASTER_PORT=1\n{TORCHRUN}",
            [
                "--nodes=4",
                "--partition=gpu",
                "--gpus-per-node=8",
                "module load cuda",
                "NCCL_DEBUG=INFO",
                "t.py",
            ],
        ),
        (f"{FOUR}srun deepspeed --num_gpus 8 t.py\n", ["deepspeed.launcher.launch", "NPROC=8"]),
        ("torchrun --standalone --nproc_per_node=4 python t.py\n", ["--nodes=1", "NPROC=4", "    t.py"]),
        (f"{FOUR}srun accelerate launch --num_processes 8 -m pkg.t\n", ["accelerate", "--module", "pkg.t"]),
    ],
)
def test_a_wrong_file_is_answered_with_the_one_it_means(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, wanted: list[str]
) -> None:
    (tmp_path / "job.sh").write_text(text)
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job.sh")]) == 0
    said = capsys.readouterr()
    assert all(word in said.out for word in wanted), said.out
    assert "job.sh:" in said.err and "; here: " in said.err
    (tmp_path / "right.sh").write_text(said.out)
    found = lint.lint({"right.sh": said.out})
    assert [f for f in found if f.severity != "note"] == [], found
    assert command_line.dispatch(["lint", "--fix", str(tmp_path / "job.sh")]) == 1
    assert said.out in capsys.readouterr().out
    assert (tmp_path / "job.sh").read_text() == text


def test_srun_python_stays_one_process_a_task_in_a_line_and_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    head = FOUR.replace("tasks-per-node=1", "tasks-per-node=8")
    (tmp_path / "job.sh").write_text(f"{head}srun numactl -l python t.py\n")
    line = ["--nodes=4", "--nproc=8", "--", "srun", "numactl", "-l", "python", "t.py"]
    for words in (["--from", str(tmp_path / "job.sh")], line):
        assert command_line.dispatch(["script", "slurm", *words]) == 0
        said = capsys.readouterr()
        assert "on 4 nodes with 8 ranks each: one process a rank." in said.out
        assert "numactl -l" in said.out and "replaced" not in said.err


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("")
    with pytest.raises(UsageError, match=r"job\.sh:1: no launch line recognised"):
        command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job.sh")])


def test_what_the_written_file_does_not_have_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = (
        "#!/bin/bash\n#SBATCH -N 2\n#SBATCH --constraint=a100\n#SBATCH --mem=0\n#SBATCH --cpus-per-task=12\n"
    )
    commands = "set -e\nsource ~/venv/bin/activate\ncp -r /data/set $TMPDIR\n"
    (tmp_path / "job.sh").write_text(f"{asked}{commands}srun torchrun --nproc_per_node=8 t.py\n")
    words = ["script", "slurm", "--from", str(tmp_path / "job.sh")]
    assert command_line.dispatch(words) == 0
    said = capsys.readouterr()
    for kept in ("--constraint=a100", "--mem=0", "--cpus-per-task=12", "source ~/venv/", "PYTHON=python3"):
        assert kept in said.out
    assert [line for line in said.err.splitlines() if line.startswith("left out")] == [
        "left out: line 8: cp -r /data/set $TMPDIR"
    ]


OF_PBS = """#PBS -N swin
#PBS -P xy12
#PBS -q gpu
#PBS -l select=2:ncpus=48:ngpus=4:mpiprocs=1:mem=380gb
#PBS -l walltime=12:00:00,filesystems=home
#PBS -o swin.log
source $RC
mpiexec -n 2 apptainer exec --nv img.sif torchrun --nproc_per_node=4 t.py
"""
OF_LSF = """#BSUB -J bert
#BSUB -nnodes 2
#BSUB -W 2:00
#BSUB -o b.%J
#BSUB -e b.%J.err
#BSUB -alloc_flags "gpumps smt4"
#BSUB -R "span[ptile=6] rusage[mem=32GB]"
#BSUB -R "span[ptile=6]"
jsrun -n2 torchrun t.py
"""


OF_SITE = """#SBATCH -N 2 --gpus-per-node=4
ENVS=/opt/envs
NOW=$(date +%s)
eval "$(conda shell.bash hook)"
cd $SLURM_SUBMIT_DIR
cd $WORK/proj
source $ENVS/a/bin/activate
module load cuda/$NOW
export PATH=/opt/bin:$PATH DATA=$SCRATCH/data STARTED=$NOW
export VLLM_USE_V1=1 NPROC_PER_NODE=4
numactl --localalloc ./with.sh nohup torchrun --nproc_per_node=4 t.py --out $SCRATCH/${SLURM_JOB_ID}b \\
  --rank $SLURM_NODEID
"""


def test_the_environment_of_a_file_is_kept_or_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "job").write_text(OF_SITE)
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job")]) == 0
    out, err = capsys.readouterr()
    setup = """eval "$(conda shell.bash hook)" &&
  cd "$WORK/proj" &&
  source /opt/envs/a/bin/activate &&
  export PATH="/opt/bin:${PATH:-}" &&
  export DATA="$SCRATCH/data"
# from job
export VLLM_USE_V1=1
export PYTHON"""
    assert setup in out
    assert "exec numactl --localalloc " in out and '--out "$SCRATCH"/"$SLURM_JOB_ID"b' in out
    assert "--rank '$SLURM_NODEID'" in out and "only the run knows $SLURM_NODEID:" in err
    for lost in ("line 8: module load cuda/$NOW", "STARTED=$(date +%s)", "the wrapper, with.sh nohup"):
        assert f"left out: {lost}\n" in err
    assert err.count("left out") == 3


def test_tasks_of_srun_remain_tasks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "job").write_text("#SBATCH -N 2 --ntasks-per-node=4\nsrun python t.py\n")
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job")]) == 0
    out = capsys.readouterr().out
    assert (
        "--ntasks-per-node=4\n" in out
        and "LOCAL_RANK=$SLURM_LOCALID" in out
        and "torch.distributed" not in out
    )


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mpirun -np 16 -H a:8,b:8 python t.py", "on 2 nodes with 8 ranks each: one process a rank."),
        ("mpirun -H a:4,b:4 python t.py", "on 2 nodes with 4 ranks each: one process a rank."),
        ("deepspeed --hostfile absent --num_nodes 3 --num_gpus 8 t.py", "on 3 nodes with 8 ranks each"),
        ("srun -w n[1-4] torchrun --nproc_per_node 8 t.py", "on 4 nodes with 8 ranks each: one torchrun"),
        ("srun -N2 --ntasks-per-node=8 python -u t.py", "on 2 nodes with 8 ranks each: one process a rank."),
    ],
)
def test_named_nodes_count_where_the_scheduler_chooses_them(
    capsys: pytest.CaptureFixture[str], line: str, wanted: str
) -> None:
    assert wanted in short(capsys, "slurm", words=tuple(line.split()))


def test_a_value_that_no_shell_can_expand_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
        "HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)\nexport URL=tcp://$HEAD:1234\n"
        "cd {{ folder }}\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d "
        "--rdzv_endpoint=$HEAD:29500 t.py --store $HEAD:55 --job $SLURM_JOB_ID\n"
    )
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job")]) == 0
    text, said = capsys.readouterr()
    assert "URL" not in text and "{{" not in text and 'SLURM_JOB_ID"' in text
    assert "left out: URL=tcp://(first node):1234" in said and "left out: line 6: cd {{ folder }}" in said
    assert "only the run knows (first node):55:" in said


@pytest.mark.parametrize(
    ("line", "module"), [("swift sft", "cli.sft"), ("megatron rlhf", "cli._megatron.rlhf")]
)
def test_ms_swift_is_started_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, module: str
) -> None:
    (tmp_path / "job").write_text(f"NNODES=2 NPROC_PER_NODE=4 {line} --model a\n")
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job")]) == 0
    out = capsys.readouterr().out
    assert (
        f"--module swift.{module} --model a\n" in out and "NPROC=4\n" in out and "NPROC_PER_NODE" not in out
    )


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        (
            OF_PBS,
            "pbs",
            [
                *("-N swin", "-P xy12", "-q gpu", ":ncpus=48:ngpus=4:mpiprocs=1:mem=380gb\n", "-o swin.log"),
                *("-l walltime=12:00:00\n", "-l filesystems=home\n", "exec apptainer exec --nv img.sif"),
                '\nsource "$RC"\n',
            ],
        ),
        (
            OF_PBS,
            "slurm",
            ["--time=12:00:00", "--job-name=swin", "--output=swin-%j", "left out: line 4: l select=2:"],
        ),
        (
            OF_LSF,
            "lsf",
            [
                *("-W 2:00\n", "-o b.%J\n", "-e b.%J.err\n", "left out: line 6: alloc_flags gpumps smt4\n"),
                "left out: line 7: R span[ptile=6] rusage[mem=32GB]\n",
            ],
        ),
        (OF_LSF, "slurm", ["--time=2:00:00\n", "--job-name=bert"]),
        (
            "#SBATCH -N 4 -J a -t 30\nsrun --container-image=a.sqsh torchrun --nproc_per_node=8 t.py\n",
            "slurm",
            ["--job-name=a\n", "--nodes=4", "--time=30\n", "--label --container-image=a.sqsh bash"],
        ),
        (
            "#SBATCH -N 4 -t 1-12\nsrun torchrun --nproc_per_node=8 t.py\n",
            "pbs",
            ["-l walltime=36:00:00\n", "select=4:"],
        ),
        (
            "#SBATCH -N 2\nsrun singularity exec -e i.sif torchrun --nproc_per_node=8 t.py\n",
            "slurm",
            ["left out: the container, singularity exec -e i.sif"],
        ),
        (
            "#SBATCH -N 2 -J llm\nmodule load cuda\nNCCL_DEBUG=INFO srun torchrun --nproc_per_node=8 t.py\n",
            "jobset",
            ["name: llm\n", "left out: line 2: module load cuda\n", "# from job\n"],
        ),
    ],
)
def test_the_requests_of_every_scheduler_are_kept_or_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, kind: str, wanted: list[str]
) -> None:
    (tmp_path / "job").write_text(text)
    assert command_line.dispatch(["script", kind, "--from", str(tmp_path / "job")]) == 0
    said = capsys.readouterr()
    assert not [word for word in wanted if word not in said.out + said.err], said


@pytest.mark.parametrize(
    ("text", "why"),
    [("echo hello\n", "no launch line recognised"), ("torchrun a.py\ntorchrun b.py\n", "several things")],
)
def test_a_file_that_means_no_one_job_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "job.sh").write_text(text)
    with pytest.raises(UsageError, match=why):
        command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job.sh")])


@pytest.mark.parametrize(
    ("kind", "limit"), [("slurm", "25h"), ("pbs", "90min"), ("k8s-job", "1.5h"), ("jobset", "90")]
)
def test_a_limit_that_the_scheduler_does_not_read_is_wrong_usage(kind: str, limit: str) -> None:
    words = ["script", kind, "--nodes", "2", "--nproc", "8", "--time", limit, "--", "train.py"]
    with pytest.raises(UsageError, match=f"--time '{limit}' is not a time limit"):
        command_line.dispatch(words)


def test_a_secret_must_be_set_where_the_file_is_submitted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--nodes", "1", "--nproc", "1", "--chdir", str(tmp_path), "--env", "API_KEY=k"]
    done = run_file(written(capsys, "slurm", *options), tmp_path)
    assert done.returncode != 0
    assert "API_KEY: set it before you start this" in done.stderr


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("train.py", "--api-key", "tok3nab1"), ()),
        (("train.py", "--data", "https://ada:tok3nab1@host/x"), ()),
        (MINGPT, ("--setup", "export HF_TOKEN=tok3nab1")),
    ],
)
@pytest.mark.parametrize("command", [("script", "slurm"), ("run", "--slurm", "--dry-run")])
def test_a_secret_that_the_file_must_contain_is_warned_of(
    command: tuple[str, ...],
    words: tuple[str, ...],
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ("--nodes", "2", "--nproc", "1")
    assert command_line.dispatch([*command, *sizes, *options, "--", *words]) == 0
    told = capsys.readouterr().err
    assert "warning: the job file contains a secret" in told and "tok3n" not in told
    assert command_line.dispatch([*command, *sizes, "--env", "API_KEY=tok3nab1", "--", *MINGPT]) == 0
    assert "contains a secret" not in capsys.readouterr().err


def test_several_tasks_a_node_are_refused_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = written(capsys, "slurm", "--nodes", "2", "--nproc", "8", "--chdir", str(tmp_path))
    done = run_file(text, tmp_path, SLURM_NTASKS_PER_NODE="8")
    assert done.returncode == 1
    assert done.stderr == "ntasks-per-node is 8: torchrun needs one task per node\n"


def test_a_job_of_another_size_is_refused_where_the_launcher_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--nodes", "2", "--nproc", "8", "--chdir", str(tmp_path)]
    env = {"SLURM_NNODES": "3", "SLURM_JOB_ID": "7"}
    done = run_file(written(capsys, "slurm", *options, "--with", "accelerate"), tmp_path, **env)
    assert done.returncode == 1
    assert done.stderr == "this file is for 2, but the number of nodes is 3\n"
    assert "written for" not in written(capsys, "slurm", *options)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["python", "jax"])
def test_a_rank_each_is_started_where_no_launcher_does(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, launcher: str
) -> None:
    options = ["--nodes", "2", "--nproc", "2", "--chdir", str(tmp_path), "--python", "python-job"]
    text = written(capsys, "slurm", *options, "--with", launcher)
    program(played / "srun", PLAYS_SRUN)
    done = run_file(text, tmp_path, SLURM_NNODES="2", SLURM_JOB_ID="7")
    assert done.returncode == 0, done.stderr
    calls = shown(tmp_path / "shown")
    assert sorted(int(call["env"]["RANK"]) for call in calls) == [0, 1, 2, 3]
    assert sorted(call["env"]["LOCAL_RANK"] for call in calls) == ["0", "0", "1", "1"]
    assert {call["env"]["WORLD_SIZE"] for call in calls} == {"4"}
    assert len({call["env"]["MASTER_ADDR"] for call in calls}) == 1


@pytest.mark.slow
def test_the_first_node_that_fails_ends_a_pbs_job(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path
) -> None:
    options = ["--nodes", "2", "--nproc", "1", "--chdir", str(tmp_path), "--python", "python-job"]
    text = written(capsys, "pbs", *options)
    (tmp_path / "nodes").write_text("node0\nnode0\nnode1\nnode1\n")
    # Line 2 of the file is the second node's first.
    program(
        played / "pbsdsh",
        'echo "$2" >>"$SHOWN.lines"; line=$2; shift 3\n'
        'case "$*" in *on_node) [ "$line" = 0 ] && exec sleep 600; exit 3 ;; esac\nexec "$@"\n',
    )
    done = run_file(text, tmp_path, PBS_JOBID="7", PBS_NODEFILE=str(tmp_path / "nodes"))
    assert done.returncode == 1
    assert "a node failed" in done.stderr
    assert sorted(set((tmp_path / "shown.lines").read_text().split())) == ["0", "2"]


@pytest.mark.parametrize(
    ("kind", "submit", "wanted"),
    [
        ("pbs", "qsub", ["#PBS -l select=2:ncpus=96:ngpus=8:mpiprocs=1", "#PBS -q gpu", "#PBS -A team"]),
        ("lsf", "bsub", ["#BSUB -n 192", '#BSUB -R "span[ptile=96]"', "#BSUB -q gpu", "#BSUB -P team"]),
        ("slurm", "sbatch", ["#SBATCH --nodes=2", "#SBATCH --partition=gpu", "#SBATCH --account=team"]),
    ],
)
def test_the_scheduler_is_asked_for_what_was_wanted(
    capsys: pytest.CaptureFixture[str],
    played: Path,
    tmp_path: Path,
    kind: str,
    submit: str,
    wanted: list[str],
) -> None:
    """A scheduler that reads what a scheduler reads: the directives above the first command."""
    program(
        played / submit,
        "awk 'NR == 1 && !/^#!/ {exit 1} /^#(PBS|BSUB|SBATCH) / {print} !/^#/ {exit}' \"${1:-/dev/stdin}\"\n",
    )
    options = ["--nodes", "2", "--nproc", "8", "--cpus", "96", "--queue", "gpu", "--account", "team"]
    file = tmp_path / "job.sh"
    assert command_line.dispatch(["script", kind, "--output", str(file), *options, "--", *MINGPT]) == 0
    assert os.access(file, os.X_OK)
    done = subprocess.run([submit], stdin=file.open(), capture_output=True, text=True)
    assert done.returncode == 0
    assert set(wanted) <= set(done.stdout.splitlines()), done.stdout


def test_a_known_network_is_the_only_one_the_job_looks_at(
    capsys: pytest.CaptureFixture[str], facts: str
) -> None:
    text = written(capsys, "slurm", "--from", facts, "--nproc", "8")
    assert "export INTERFACE=enp99s0" in text
    assert "em1" not in text


@pytest.mark.parametrize(("kind", "is_told"), [("ssh", True), ("slurm", True), ("docker", False)])
def test_what_will_stop_the_job_is_said_beside_the_file(
    kind: str, is_told: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An image has its own torch."""
    saved = tmp_path / "facts.json"
    bundle.save(c.changed(c.healthy(), "node1", interpreter=replace(c.TORCH, torch="")), saved)
    asked = ["script", kind, "--from", str(saved), "--nproc", "2", "--image", "i", "--", "train.py"]
    assert command_line.dispatch(asked) == 0
    said = capsys.readouterr()
    assert ("error node1: " in said.err and "torch" in said.err) == is_told
    assert "train.py" in said.out and "error node1" not in said.out


def test_another_number_of_nodes_than_are_named_is_refused(facts: str) -> None:
    with pytest.raises(UsageError, match="--nodes 3, but 2 are named"):
        command_line.dispatch(
            ["script", "ssh", "--from", facts, "--nodes", "3", "--nproc", "8", "--", "train.py"]
        )


@pytest.mark.parametrize("kind", ["ssh", "docker"])
def test_nodes_that_are_not_known_are_asked_for(kind: str) -> None:
    with pytest.raises(LaunchError, match="names the nodes"):
        command_line.dispatch(["script", kind, "--nodes", "2", "--nproc", "8", "--", "train.py"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nproc", "8"], "the number of nodes is not known"),
        (["--nodes", "2"], "the number of ranks per node is not known"),
        (["--nodes", "2", "--nproc", "1", "--queue", "a\n#SBATCH --wrap=x"], "not one word"),
        (["--nodes", "2", "--nproc", "1", "--account", "a b"], "not one word"),
        (["--nodes", "2", "--nproc", "1", "--option", "a\nrm -r x"], "not one line"),
    ],
)
def test_what_is_missing_or_would_be_more_than_a_directive_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command_line.dispatch(["script", "slurm", *options, "--", "train.py"])


@pytest.mark.parametrize("word", [*HOSTILE, "\x1b[31m", "\udcff", "a\\'\n"])
def test_a_quoted_word_is_that_word_on_one_line(word: str) -> None:
    text = quoted(word)
    assert "\n" not in text
    assert "\x1b" not in text
    said = subprocess.run(
        ["bash", "-c", f"printf %s {text}"], capture_output=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert said.stdout == word.encode("utf-8", "surrogateescape")


def test_the_users_own_network_and_port_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--nodes",
        "2",
        "--nproc",
        "8",
        "--env",
        "GLOO_SOCKET_IFNAME=ib1",
        "--env",
        "MASTER_PORT=23456",
    ]
    text = written(capsys, "slurm", *options)
    assert {"export GLOO_SOCKET_IFNAME=ib1", "export INTERFACE=ib1", "export MASTER_PORT=23456"} <= set(
        text.splitlines()
    )
    pod = written(capsys, "k8s-job", *options)
    assert "- name: GLOO_SOCKET_IFNAME\n          value: ib1\n" in pod


def test_an_address_for_a_job_whose_nodes_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="the job finds that address"):
        options = ["--nodes", "2", "--nproc", "8", "--env", "MASTER_ADDR=10.0.0.1"]
        command_line.dispatch(["script", "slurm", *options, "--", "train.py"])


def test_the_text_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "2", "--nproc", "8"]
    text = written(capsys, "slurm", *options)
    made = json.loads(written(capsys, "slurm", *options, "--json"))
    assert (made["kind"], made["text"], made["schema"]) == ("slurm", text, 1)


def test_one_process_of_jax_is_given_all_gpus_of_its_node(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "slurm", "--nodes", "2", "--gpus", "4", "--with", "jax")
    assert "#SBATCH --gpus-per-node=4" in text
    assert "export NPROC=1" in text
    assert "export JAX_LOCAL_DEVICE_IDS=0,1,2,3" in text


def test_the_file_starts_a_script_as_the_script_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spawns = "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=4)\n"
    (tmp_path / "main.py").write_text(spawns, encoding="utf-8")
    options = ["script", "slurm", "--nodes", "2", "--nproc", "4", "--chdir", str(tmp_path)]
    assert command_line.dispatch([*options, "--", "main.py"]) == 0
    done = capsys.readouterr()
    assert "torch.distributed.run" not in done.out and "--with spawn" in done.err
    assert "main.py:2: always 4 processes" in done.err
    assert command_line.dispatch([*options, "--with", "torchrun", "--", "main.py"]) == 0
    assert "torch.distributed.run" in capsys.readouterr().out


def test_what_to_type_for_a_file_is_no_run() -> None:
    with pytest.raises(UsageError) as told:
        command_line.dispatch(["script", "slurm", "--nodes", "2"])
    assert told.value.hint.startswith("ringup script KIND")


@pytest.mark.parametrize(
    ("kind", "script", "options", "warned"),
    [
        ("slurm", "nix.py", (), True),
        ("slurm", "here.py", (), False),
        ("slurm", "nix.py", ("--chdir", "/only/on/the/cluster"), False),
        ("k8s-job", "nix.py", (), False),
    ],
)
def test_a_script_that_is_not_here_is_a_warning(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    script: str,
    options: tuple[str, ...],
    warned: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("print(1)\n")
    words = ["script", kind, "--nodes", "2", "--nproc", "1", "--quiet", *options, "--", script]
    assert command_line.dispatch(words) == 0
    said = capsys.readouterr()
    assert script in said.out
    assert (f"warning: no {script} in" in said.err) is warned


def test_a_relative_directory_is_that_of_where_the_file_is_submitted(
    capsys: pytest.CaptureFixture[str], facts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over ssh nobody stands there: it is taken from here."""
    monkeypatch.chdir(tmp_path)
    assert "\ncd sub\n" in written(capsys, "slurm", "--nodes", "2", "--nproc", "1", "--chdir", "sub")
    text = written(capsys, "ssh", "--from", facts, "--nproc", "1", "--chdir", "sub")
    assert f"\n  cd {tmp_path}/sub\n" in text


@pytest.mark.parametrize("kind", ["slurm", "pbs", "lsf", "k8s-job", "jobset", "pytorchjob", "volcano"])
@pytest.mark.parametrize("asked", ["DB_PASSWD=tr0ub4dor9", "proxy=http://ada:tr0ub4dor9@proxy:3128"])
def test_a_secret_is_in_no_job_file(capsys: pytest.CaptureFixture[str], kind: str, asked: str) -> None:
    text = written(capsys, kind, "--nodes", "2", "--nproc", "8", "--image", "x/y:1", "--env", asked)
    assert "tr0ub4dor9" not in text and asked.split("=")[0] in text


OWN_JOB = """apiVersion: batch/v1
kind: Job
metadata: {name: bert, namespace: ml, labels: {kueue.x-k8s.io/queue-name: gpu}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {gpu: h100}
      containers:
      - name: train
        image: reg/bert:1
        workingDir: /workspace
        command: [torchrun, --nnodes=2, --nproc_per_node=8, --node_rank=$(JOB_COMPLETION_INDEX),
                  --master_addr=bert-0.bert, train.py]
        env:
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}
        resources: {limits: {nvidia.com/gpu: 8, rdma/hca: 1, memory: 900Gi}}
        volumeMounts: [{name: data, mountPath: /data}]
      volumes:
      - {name: data, persistentVolumeClaim: {claimName: data}}
"""


def test_a_manifest_is_kept_or_its_fields_are_named_as_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(OWN_JOB)
    assert command_line.dispatch(["script", "k8s-job", "--from", str(tmp_path / "job.yaml")]) == 0
    said = capsys.readouterr()
    for kept in (
        "name: bert",
        "namespace: ml",
        '"reg/bert:1"',
        'nvidia.com/gpu: "8"',
        "rdma/hca:",
        "cd /workspace",
    ):
        assert kept in said.out, kept
    left = [line for line in said.err.splitlines() if line.startswith("left out: ")]
    for part in ("labels", "nodeSelector gpu", "HF_TOKEN", "limits: memory 900Gi", "volume data"):
        assert any(part in line for line in left), part


def test_an_option_without_effect_in_a_kind_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", "2", "--nproc", "8"]
    assert command_line.dispatch(["script", "volcano", *options, "--time", "1:00:00", "--", "t.py"]) == 0
    said = capsys.readouterr().err
    assert "--time has no effect in volcano" in said and "IMAGE" in said
    for kind in ("slurm", "pbs"):
        assert command_line.dispatch(["script", kind, *options, "--image", "a/b", "--", "t.py"]) == 0
        said = capsys.readouterr().err
        assert f"--image has no effect in {kind}" in said
        assert ("srun --container-image" in said) == (kind == "slurm")


@pytest.mark.parametrize("kind", ["k8s-job", "jobset", "pytorchjob", "trainjob"])
def test_the_queue_and_the_time_limit_are_in_a_manifest(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--nodes", "2", "--nproc", "8", "--image", "a/b:1", "--queue", "gpu", "--time", "1:00:00"]
    assert command_line.dispatch(["script", kind, *options, "--", "t.py"]) == 0
    text = capsys.readouterr().out
    assert "kueue.x-k8s.io/queue-name: gpu" in text and "timeout=900" in text
    assert ("activeDeadlineSeconds: 3600" in text) == (kind != "trainjob")
    assert "IPC_LOCK" not in text


def test_gpus_give_the_number_of_ranks_that_a_line_leaves_open(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["torchrun", "--nproc_per_node", "gpu", "t.py"]
    text = short(capsys, "slurm", "--nodes", "2", "--gpus", "4", words=tuple(line))
    assert "NPROC=4" in text and "#SBATCH --gpus-per-node=4" in text


def test_a_torchrun_for_each_task_is_one_node_with_as_many_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    start = "srun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1 --rdzv_backend=c10d --rdzv_id=1"
    asked = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n"
    head = "H=$(scontrol show hostnames | head -n1)\n"
    (tmp_path / "job").write_text(f"#!/bin/bash\n{asked}{head}{start} --rdzv_endpoint=$H:29500 t.py\n")
    assert command_line.dispatch(["script", "slurm", "--from", str(tmp_path / "job")]) == 0
    made = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n" in made and "NPROC=8\n" in made
