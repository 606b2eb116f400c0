"""Start lines as public projects print them, and what each asks for."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ringup.cli import request
from ringup.cli.commands import parser_for
from ringup.errors import UsageError
from ringup.launchfiles.settings_file import settings
from ringup.model import Job
from ringup.planning import start_line
from ringup.planning.launchers import Place, shown_to_shim, start
from ringup.planning.start_line import StartLine, take_apart

TABLE = Path(__file__).with_name("start_lines.txt").read_text()
ROWS = re.findall(r"(?m)^\$ (.+)\n  (.+)$", TABLE)
UNDERSTOOD = [row for row in ROWS if not row[1].startswith("refused: ")]
SAID = ("launcher", "python", "nodes", "nproc", "world_size", "port", "hosts", "hostfile", "rendezvous")


def shown(line: StartLine) -> str:
    """As a row of the table: variables, what became ringup's, what ringup replaces, the script."""
    parts = [f"{name}={value}" for name, value in line.env.items()]
    parts += [f"{name} {getattr(line, name)}" for name in SAID if getattr(line, name)]
    if line.launcher_arguments:
        parts.append(f"to the launcher {shlex.join(line.launcher_arguments)}")
    if line.replaced:
        parts.append(f"replaced {shlex.join(what for what, _ in line.replaced)}")
    if line.scheduled:
        parts.append(f"scheduled {shlex.join(line.scheduled)}")
    parts += [f"forwarded {name}" for name in line.forwarded]
    parts += [f"{name} {shlex.quote(v)}" for name in ("setup", "chdir") if (v := getattr(line, name))]
    kept = {"wrap": line.wrapper, "image": (line.image,) * bool(line.image), "container": line.container}
    parts += [f"{name} {shlex.join(words)}" for name, words in kept.items() if words]
    kind = {"script": "", "module": "-m ", "command": "--no-python "}[line.kind]
    return "; ".join([*parts, kind + shlex.join((line.script, *line.arguments))])


@pytest.mark.parametrize(("text", "asked"), UNDERSTOOD, ids=range(len(UNDERSTOOD)))
def test_a_line_is_understood_as_its_authors_mean_it(text: str, asked: str) -> None:
    assert shown(take_apart(shlex.split(text))) == asked


def test_nine_of_ten_lines_are_understood_and_every_row_was_read() -> None:
    assert len(ROWS) == TABLE.count("\n$ ") >= 130
    assert len(UNDERSTOOD) >= 0.9 * len(ROWS)
    for part in TABLE.split("\n\n")[1:]:
        assert re.match(r"## [^:\n]+(: [^\n]*|, put together)\n\$ ", part), part


REFUSED = [
    # Horovod and Open MPI
    ("horovodrun -np 16 -H server1:4,server2:4 python train.py", "horovodrun -np", "Horovod"),
    ("mpirun -np 8 -H host1:4,host2:2 python train.py", "-H host1:4,host2:2", "slots=N"),
    ("mpirun -np 8 -N 4 torchrun train.py", "-N 4", "ppr:1:node"),
    ("numactl -N '$SLURM_LOCALID' torchrun train.py", "$SLURM_LOCALID", "only the ranks"),
    ("apptainer exec --nv --cleanenv x.sif torchrun train.py", "apptainer --cleanenv", "leave it out"),
    ("docker exec x torchrun train.py", "docker exec", "in the container"),
    ("vllm serve meta-llama/Llama-3.1-8B -tp 4", "vllm serve", "starts its own ranks"),
    ("python -m sglang.launch_server --tp 8", "python -m sglang.launch_server", "starts its own ranks"),
    ("python -m determined.launch.torch_distributed -- python train.py", "determined", "itself"),
    # copied from pages and editors, or cut
    ("torchrun \u2013\u2013nnodes 2 train.py", "typographic dash", "--nnodes"),
    ("torchrun --nproc_per_node 8 train.py \u2014lr 1", "typographic dash", "--lr"),
    (r"torchrun --nnodes 2 \ --nproc_per_node 8 train.py", "' --nproc_per_node' is one word", "end its line"),
    (r"torchrun --nproc_per_node 8 train.py \\", "ends with a backslash", "all lines"),
    ("torchrun --nproc_per_node=8 'train.py --lr 1'", "'train.py --lr 1' is not a script", "behind it"),
    ("torchrun --nproc_per_node=8 [script.py]", "'[script.py]' is not a script", "name alone"),
    ("torchrun --nproc_per_node=8 ...", "'...' is not a script", "name alone"),
    ("my-wrapper --x 1 torchrun train.py", "my-wrapper --x", "--wrap"),
    ("env -i A=1 torchrun train.py", "env -i", "NAME=VALUE"),
    ("pdm run train", "pdm run train", "task"),
    ("hatch run cuda:python train.py", "hatch run cuda:python", "task"),
    ("ssh -p 2222 n1 torchrun train.py", "ssh -p 2222", "--ssh-config"),
    ("pdsh -w ^hosts torchrun train.py", "pdsh ^hosts", "-H"),
    ("bash -c 'torchrun train.py --data $DATA'", "$DATA", "its value"),
    ("bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python train.py'", "$SLURM_LOCALID", "only the ranks"),
    ("sbatch job.sh", "sbatch job.sh", "--from FILE"),
    ("bash -c 'torchrun a.py; torchrun b.py'", "is not one line", "2 launchers"),
    ("bash -c 'torchrun t.py  # two nodes\n  --lr 1'", "--lr 1", "too early"),
    ("bash -c 'torchrun t.py \\ \n  --lr 1'", "--lr 1", "too early"),
    ("torchrun --nproc_per_node 8 t.py --name \u201crun one\u201d", "typographic quote", "again"),
    ("torchrun \u2013-nnodes 2 train.py", "typographic dash", "--nnodes"),
    ("bash -c 'make data; torchrun a.py'", "make: ringup cannot", "--setup"),
    ("torchrun --nproc_per_node 8 python train.py", "torchrun python", "leave python out"),
    ("torchrun --rdzc_backend=c10d train.py", "torchrun --rdzc_backend", "did you mean --rdzv-backend?"),
    ("uv run --with x torchrun train.py", "uv run --with x", "uv sync"),
    ("fabric run --nproc 8 train.py", "fabric run --nproc", "behind it"),
    # PyTorch's documentation of elastic jobs
    ("torchrun --nnodes=1:4 --nproc-per-node=8 --max-restarts=3 train.py", "--nnodes=1:4", "--nodes 4"),
    ("torchrun --nproc-per-node=8 --max-restarts=many train.py", "'many' is not a number", "number"),
    ("torchrun --nproc_per_node number_of_gpu_you_have train.py", "is not a number", "number"),
    ("torchrun --nproc_per_node=8 --rdzv_backend=etcd train.py", "--rdzv_backend=etcd", "c10d"),
    ("torchrun --learning-rate 3 train.py", "torchrun --learning-rate", "behind it"),
    ("torchrun --nproc_per_node", "--nproc_per_node needs a value", "VALUE"),
    ("torchrun --nproc_per_node 8", "no training script", "--"),
    ("torchrun --r 3 train.py", "torchrun --r", "behind it"),
    ("deepspeed --include worker-1:0,1@worker-2:0 train.py", "--include worker-1:0,1@worker-2:0", "same"),
    ("deepspeed --exclude worker-1:0 train.py", "--exclude worker-1:0", "-H"),
    ("accelerate config", "accelerate config", "accelerate launch"),
    ("accelerate launch --tpu train.py", "--tpu", "TPU"),
    ("llamafactory-cli chat examples/inference/llama3.yaml", "llamafactory-cli chat", "train"),
    ("trl vllm-serve --model x", "trl vllm-serve", "trl sft"),
    ("trl sft --accelerate_config zero2 --model_name_or_path x", "--accelerate_config zero2", "zero2.yaml"),
    # huggingface/pytorch-image-models: a shell script that starts torchrun itself
    ("./distributed_train.sh 4 --data-dir /data", "./distributed_train.sh", "starts the ranks"),
    ("bash run.sh 8", "bash run.sh", "--no-python"),
    ("docker run --gpus 2 img torchrun train.py", "--gpus 2", "CUDA_VISIBLE_DEVICES"),
    ("make train", "make train", "make -n"),
    ("litgpt chat x", "litgpt chat", "litgpt pretrain"),
    ("deepspeed --hostfile F --include w0@w1 train.py", "--include without GPUs", "-H w0,w1"),
    ("srun --cpu-bind=none python train.py", "srun --cpu-bind", "srun out"),
    ("python -c 'import train'", "python -c", "train.py"),
    ("NCCL_DEBUG=INFO", "no training script", "--"),
    ("", "no training script", "--"),
]
REFUSED += [(text, *why[9:].split(" | ")) for text, why in ROWS if why.startswith("refused: ")]


@pytest.mark.parametrize(("text", "what", "hint"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_honoured_is_an_error_that_says_what_to_do(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        take_apart(shlex.split(text))
    assert what in str(caught.value)
    assert hint in caught.value.hint


NAMES_THE_KIND = {
    "python",
    "python3",
    "-u",
    "-O",
    "-m",
    "-H",
    "--",
    "train",
    "launch",
    "run",
    "sft",
    "dpo",
    "trl",
}
NAMES_THE_KIND |= {"torchrun", "accelerate", "deepspeed", "colossalai", "axolotl", "llamafactory-cli", "uv"}
NAMES_THE_KIND |= {"torch.distributed.run", "torch.distributed.launch", "--launcher", "--no-python"}
NAMES_THE_KIND |= {"--accelerate_config", "--module", "fabric", "lightning", "model"}


@pytest.mark.parametrize("text", [text for text, _ in UNDERSTOOD], ids=range(len(UNDERSTOOD)))
def test_no_word_of_a_line_is_dropped(text: str) -> None:
    found = repr(take_apart(shlex.split(text)))
    if any(word in text for word in ("bash", " sh -c", "ssh", "conda", "mpirun", "/bin/torchrun")):
        return  # their words are read again
    for word in shlex.split(text):
        name, _, value = word.partition("=")
        assert word in NAMES_THE_KIND or word in found or (repr(name) in found and repr(value) in found)


# -- on ringup's command line ----------------------------------------------------------------------


def asked(text: str, command: str = "run") -> tuple[argparse.Namespace, Job]:
    args = parser_for(command).read(shlex.split(text))
    words = request.script_words(args)
    return args, request.job_from(args, words)


@pytest.mark.parametrize(
    "text",
    [
        "-H a,b -- torchrun --nproc_per_node 8 --nnodes 2 train.py --lr 1",
        "-H a,b torchrun --nproc_per_node 8 --nnodes 2 train.py --lr 1",
        "-H a,b --nproc 8 --with torchrun -- train.py --lr 1",
        "-H a,b --nproc-per-node=8 --nnodes 2 -- torchrun train.py --lr 1",
        "--quiet --hosts=a,b --nproc_per_node 8 python -m torch.distributed.run train.py --lr 1",
    ],
)
def test_several_spellings_are_one_job(text: str) -> None:
    args, job = asked(text)
    assert (args.hosts, job.nproc, args.launcher) == ("a,b", 8, "torchrun")
    assert (job.kind, job.script, job.arguments) == ("script", "train.py", ("--lr", "1"))


def test_accelerates_number_of_processes_is_that_of_all_nodes() -> None:
    assert asked("-H a,b -- accelerate launch --num_processes 16 train.py")[1].nproc == 8
    assert asked("-- accelerate launch --num_machines 4 --num_processes 16 train.py")[1].nproc == 4


@pytest.mark.parametrize(
    "words", ["sft.yaml lr=1", "train sft.yaml lr=1", "llamafactory-cli train sft.yaml lr=1"]
)
def test_llamafactorys_own_words_may_stand_before_the_file(words: str) -> None:
    job = asked(f"--with llamafactory -- {words}")[1]
    assert (job.launcher, job.script, job.arguments) == ("llamafactory", "sft.yaml", ("lr=1",))


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("python3.9 train.py", "python3.9"),
        ("python3.9 -m torch.distributed.run train.py", "python3.9"),
        ("apptainer exec x.sif python3.9 train.py", "python3.9"),
        ("python3 train.py", ""),
    ],
)
def test_a_version_of_python_is_not_replaced_by_another(text: str, python: str) -> None:
    assert take_apart(shlex.split(text)).python == python


def test_a_line_in_quotes_is_the_same_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args, job = asked("-- 'torchrun --nproc_per_node 4 t.py -x'")
    assert (args.nproc, job.script, job.arguments) == (4, "t.py", ("-x",))
    assert asked("-- '/data/my dir/t.py'")[1].script == "/data/my dir/t.py"
    text = "$ export A=1\n$ torchrun --nproc_per_node 2 \\\n>   t.py --lr 1 2>&1 | tee log  # start\n"
    args, job = asked(f"-- {shlex.quote(text)}")
    assert (args.nproc, job.script, job.arguments) == (2, "t.py", ("--lr", "1")) and "A=1" in args.env
    text = "torchrun --nnodes 2 --node_rank {} --nproc_per_node 2 t.py"
    two = shlex.quote("\n".join(map(text.format, (0, 1))))
    assert asked(f"-H a,b -- {two}")[1].arguments == ()
    with pytest.raises(UsageError, match="is not one line"):
        asked("-- '> torchrun t.py'")
    (tmp_path / "python t.py").touch()
    assert asked("-- 'python t.py'")[1].script == "python t.py"


def test_llamafactory_takes_options_in_place_of_a_file() -> None:
    job = asked("-- NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train --stage sft")[1]
    assert (job.launcher, job.kind, job.script) == ("torchrun", "module", "llamafactory.launcher")
    assert job.arguments == ("--stage", "sft") and job.nproc == 4


def test_a_module_and_a_command_are_no_files() -> None:
    module = asked("-- python -m pkg.train -x")[1]
    assert (module.kind, module.script, module.file, module.arguments) == (
        "module",
        "pkg.train",
        "pkg/train.py",
        ("-x",),
    )
    command = asked("--no-python ./go.sh 1")[1]
    assert (command.kind, command.script, command.file, command.arguments) == (
        "command",
        "./go.sh",
        "./go.sh",
        ("1",),
    )
    assert asked("-- fairseq-train data")[1].file == ""


def test_what_a_line_and_the_command_line_say_is_put_together() -> None:
    line = "A=0 B=2 MASTER_PORT=1234 torchrun --tee 3 --start-method=spawn train.py"
    job = asked(f"--env A=1 --launcher-args='--role x' -- {line}")[1]
    assert job.env == {"A": "1", "B": "2"} and job.port == 1234
    assert job.launcher_arguments == ("--start-method", "spawn", "--role", "x")
    assert asked("--master-port 4321 -- train.py")[1].port == 4321


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("--nproc 4 -- torchrun --nproc_per_node 8 train.py", "--nproc 4, but the start line says 8"),
        ("--nodes 4 -- torchrun --nnodes 2 train.py", "--nodes 4, but the start line says 2"),
        ("--with deepspeed -- torchrun train.py", "--with deepspeed, but the start line says torchrun"),
        (
            "--master-port 1 -- torchrun --master_port 2 train.py",
            "--master-port 1, but the start line says 2",
        ),
        ("-H a -- deepspeed --hostfile b train.py", "--hosts and the start line both name the nodes"),
        ("-H a,b,c -- accelerate launch --num_processes 8 train.py", "8 ranks on 3 nodes"),
        ("-- -c 'print(1)'", "'-c' is not a script"),
        ("-- ''", "'' is not a script"),
    ],
)
def test_where_both_say_something_else_it_is_an_error(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)):
        asked(text)


def test_what_a_job_file_asks_the_scheduler_for_is_taken_over_where_one_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "-- srun -p gpu -A me -t 1:00:00 -c 8 --gres=gpu:a100:4 torchrun --nproc_per_node=4 train.py"
    args = asked(f"--slurm --nodes 2 {line}")[0]
    assert (args.queue, args.account, args.time, args.cpus, args.gpus) == ("gpu", "me", "1:00:00", 8, 4)
    capsys.readouterr()
    assert asked(f"-H a {line}")[0].queue == ""
    assert "-p gpu: the allocation has its own" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("torchrun", "--nproc-per-node 4"),
        ("torchrun", "--rdzv_backend=c10d"),
        ("accelerate", "--num_machines=3 --machine_rank=0"),
        ("deepspeed", "--hostfile=h"),
    ],
)
def test_an_option_that_ringup_sets_is_refused_in_launcher_args(launcher: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--launcher-args {words[:9]}.*ringup sets"):
        asked(f"-H a --with {launcher} --launcher-args '{words}' -- train.py")
    assert asked("-H a --launcher-args --tee=3 -- train.py")[1].launcher_arguments == ("--tee=3",)


def test_gpu_and_auto_stand_for_the_gpus_there_are() -> None:
    for word in ("gpu", "auto"):
        assert asked(f"-H a --nproc {word} -- train.py")[1].nproc == 0


@pytest.mark.parametrize(
    "text",
    [
        "script --nodes 2 slurm --nproc 8 -- train.py --epochs 3",
        "script slurm --nodes 2 --nproc 8 -- train.py --epochs 3",
        "script --nodes 2 --nproc 8 slurm -- torchrun train.py --epochs 3",
    ],
)
def test_options_of_script_stand_before_or_behind_the_kind(text: str) -> None:
    args = parser_for("script").read(shlex.split(text)[1:])
    assert (args.script[0], args.nodes, args.nproc) == ("slurm", 2, 8)
    assert args.script[-3:] == ["train.py", "--epochs", "3"]


def test_restarts_of_a_launcher_become_the_runs_own_and_nobody_elses() -> None:
    line = shlex.split("-H a,b -- torchrun --nproc-per-node=2 --max-restarts=3 train.py")
    args = parser_for("run").read(line)
    assert request.script_words(args) == ["train.py"] and args.max_restarts == 3
    del args.max_restarts
    args.script, args.nproc = line[3:], None
    with pytest.raises(UsageError, match="only `ringup run` restarts"):
        request.script_words(args)


def test_what_became_of_a_line_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked("-H a,b -- nohup torchrun --nproc_per_node 8 --nnodes=1 --node_rank=0 train.py")
    taken, replaced = capsys.readouterr().err.splitlines()
    assert taken == "ringup: taken over from the start line: --nproc_per_node 8"
    assert replaced.startswith("ringup: replaced: nohup: --detach lets")
    assert "--node_rank=0: ringup gives each node its rank" in replaced
    assert "--nnodes=1: the nodes are those that ringup is given" in replaced


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("torchrun", ["--module", "pkg.train"]),
        ("deepspeed", ["--module", "pkg.train"]),
        ("accelerate", ["--module", "pkg.train"]),
        ("python", ["-u", "-m", "pkg.train"]),
        ("spawn", ["-u", "-m", "pkg.train"]),
    ],
)
def test_every_launcher_starts_a_module(launcher: str, words: list[str]) -> None:
    place = Place("py", 2, 1, 4, (4, 4), "10.0.0.2", "10.0.0.1", 29500, "run")
    job = Job(script="pkg.train", kind="module", launcher=launcher)
    assert list(start(place, job).words)[-len(words) :] == words
    shim = start(replace(place, shim="/run/rank.py", run_dir="/run"), job).words
    assert "pkg.train" not in shim or launcher == "spawn"
    assert shown_to_shim(job) == "-m pkg.train"
    assert shown_to_shim(replace(job, kind="command", script="./x", chdir="/d")) == "--no-python /d/./x"
    assert shown_to_shim(replace(job, kind="command", script="fairseq-train")) == "--no-python fairseq-train"


# -- accelerate's file -----------------------------------------------------------------------------

DUMPED = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 1
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 1234
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
use_cpu: false
"""
SINGLE = 'distributed_type: "NO"  # one GPU\nmixed_precision: "bf16"'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(DUMPED)
    return tmp_path / "f.yaml"


LAUNCH = "-- accelerate launch --config_file f.yaml"


def test_accelerates_file_says_how_many_and_the_rest_reaches_accelerate(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args, job = asked(f"-H a,b {LAUNCH} train.py")
    assert (args.nodes, job.nproc, job.port, job.launcher) == (2, 8, 1234, "accelerate")
    assert job.launcher_arguments == ("--config_file", "f.yaml")
    said = capsys.readouterr().err.replace("\n", " ")
    assert "f.yaml: taken over: main_process_port: 1234, num_machines: 2, num_processes: 16; repl" in said
    for name in ("machine_rank: 0", "main_process_ip: 10.0.0.1", "same_network: true", "launcher: standard"):
        assert name in said
    assert said.rstrip().endswith("the rest goes to accelerate") and "zero_stage" not in said


def test_the_command_line_goes_before_accelerates_file(file: Path) -> None:
    args, job = asked(
        f"-H a,b,c,d {LAUNCH} --num_machines 4 --num_processes 8 --main_process_port 9 train.py"
    )
    assert (args.nodes, job.nproc, job.port) == (4, 2, 9)


def test_accelerates_file_may_be_json(file: Path) -> None:
    file.with_name("f.json").write_text('{"num_processes": 4, "same_network": false, "gpu_ids": "0,1"}')
    job = asked("-- accelerate launch --config_file=f.json --num_machines 2 train.py")[1]
    assert (job.nproc, job.env) == (2, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("text", "nodes", "said"),
    [
        (None, "a,b", "No such file"),
        (DUMPED.replace("zero_stage: 2", "zero_stage: [a: 1}"), "a,b", "line 6 is not understood: expected"),
        (DUMPED.replace("zero_stage: 2", "[a]: 2"), "a,b", "line 6 is not understood: a name"),
        (DUMPED.replace("machine_rank: 0", "machine_rank: *x"), "a,b", "line 10 is not understood"),
        (DUMPED + "num_processes: 8\n", "a,b", "num_processes is there twice"),
        ("num_processes\t: 4\n", "a", "line 1 is not understood"),
        ("num_processes: four\n", "a", "'four' is not a number"),
        ("- num_processes: 8\n", "a", "line 1 is not understood"),
        ("a: 1\n  b: 1\n", "a", "line 2 is not understood"),
        ("{broken", "a", "f.yaml: line 1 is not understood: expected"),
        ("[" * 9_000, "a", "line 1 is not understood"),
        ('{"a":' + "[" * 9_000, "a", "f.yaml: "),
        (DUMPED.replace("DEEPSPEED", "XLA"), "a,b", "f.yaml: XLA: ringup cannot use it"),
        (DUMPED.replace("DEEPSPEED", "MULTI_CPU"), "a,b", "MULTI_CPU: ringup cannot use it"),
        (SINGLE, "a,b", "distributed_type: NO is one process on one node"),
        (SINGLE + "\nnum_processes: 8\nnum_machines: 1\n", "a,b", "one process on one node"),
    ],
)
def test_an_accelerate_file_that_is_not_understood_is_an_error(
    file: Path, text: str | None, nodes: str, said: str
) -> None:
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(UsageError) as caught:
        asked(f"-H {nodes} {LAUNCH} train.py")
    assert said in str(caught.value)


def test_one_process_of_accelerate_on_one_node_is_started(file: Path) -> None:
    file.write_text(SINGLE)
    assert asked(f"-H a {LAUNCH} train.py")[1].nproc == 1


def test_accelerates_own_files_are_read_as_yaml_reads_them() -> None:
    yaml = pytest.importorskip("yaml")
    for text in (DUMPED, SINGLE, "\n# x\na: b#c  # d\nf:\n    g: -1\n    h: '#'\ntpu_env:\n- a\nz: 'q'\n"):
        flat: dict[str, object] = {}
        for name, value in yaml.safe_load(text).items():
            flat[name] = None if isinstance(value, dict | list) else value
            flat |= value if isinstance(value, dict) else {}
        shown = {n: "" if v is None else str(v).lower() for n, v in flat.items()}
        assert {name: value.lower() for name, value in settings(text)} == shown


def test_deepspeeds_own_host_file_is_read_where_none_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "DEEPSPEED_HOSTFILE", str(file))
    file.write_text("w0 slots=4\nw1 slots=4\n")
    assert asked("-- deepspeed train.py")[0].hostfile == str(file)
    assert str(file) in capsys.readouterr().err.replace("\n", " ")
    for text in ("-H a -- deepspeed train.py", "-- deepspeed --include localhost:0 train.py"):
        assert asked(text)[0].hostfile is None
    args, job = asked("-- deepspeed --hostfile F --include w0:0,1@w1:0,1 train.py")
    assert (args.hosts, args.hostfile, job.env) == ("w0,w1", None, {"CUDA_VISIBLE_DEVICES": "0,1"})


def test_hints_about_programs_name_only_options_that_exist() -> None:
    known = {"--no-python"}
    for command in ("run", "script"):
        known |= set(re.findall(r"--[\w-]+", parser_for(command).format_help()))
    hints = " ".join((*start_line._INSTEAD.values(), *start_line._BEFORE.values(), start_line._AROUND))
    assert set(re.findall(r"--[\w-]+", hints)) <= known | {"--nproc_per_node"}
