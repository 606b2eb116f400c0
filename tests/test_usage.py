"""Wrong words on the command line: the cause, then one thing to do, and nothing else; help of any width."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli import command_line, options
from ringup.planning.start_line import take_apart
from tests import clusters


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """The two lines on stderr, without what each begins with."""
    with pytest.raises(SystemExit) as left:
        command_line.main(list(words))
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    what, hint = said.err.splitlines()
    assert hint.startswith("hint: ")
    return what, hint.removeprefix("hint: ")


@pytest.mark.parametrize(
    ("words", "said", "advice"),
    [
        ("check --tmieout 3", "ringup check: no option --tmieout", "did you mean --timeout?"),
        (
            "run -H n1 --port 3 -- t.py",
            "ringup run: no option --port",
            "did you mean --master-port? options of the script go after --: ringup run ... -- train.py",
        ),
        (
            "run -H n1 --master-port 29631 --env MASTER_PORT=29600 -- t.py",
            "ringup: --master-port 29631, and --env MASTER_PORT=29600",
            "leave one of them out",
        ),
        ("run -H n1 -- /", "ringup: / is a directory", "name a script: -- /train.py"),
        (
            "explain raised-exc",
            "ringup: no problem is named 'raised-exc'",
            "did you mean rank-raised-exception?",
        ),
        (
            "script k8s -- t.py",
            "ringup: 'k8s' is not a kind of file",
            "did you mean k8s-job? one of slurm pbs lsf ssh docker k8s-job jobset",
        ),
        (
            "script kubernetes --nodes 2 -- t.py",
            "ringup script: no kind of file comes before --",
            "name one of slurm pbs lsf ssh docker k8s-job",
        ),
        (
            "run -H n1 --launcher-args foo -- /t.py",
            "ringup: --launcher-args foo: the launcher's options begin with --",
            "words of the script go behind it",
        ),
        (
            f"logs {__file__} --digest --json",
            "ringup: --digest is a text for people, --json is not",
            "leave one of them out",
        ),
        (
            "check --from no/file",
            "ringup check: --from: no/file cannot be read: No such file or directory",
            "name another file",
        ),
        (
            "check --save no/file",
            "ringup check: --save: no/file cannot be written: No such file or directory",
            "name another file",
        ),
        (
            f"run --log-dir {__file__} -- train.py",
            f"ringup run: --log-dir: {__file__} cannot be written: Not a directory",
            "name another directory",
        ),
        (
            "check --hostfile /dev/null",
            "ringup: --hostfile /dev/null: no node is named",
            "for example -H 'node[1-8],gpu3'",
        ),
        ("check --xyz", "ringup check: no option --xyz", "`ringup check --help` shows the options"),
        ("check n1 n2", "ringup check: unexpected argument n1 n2", "name nodes as one word: -H n1,n2"),
        ("stacks -H n1 n2", "ringup: 'n2' is not the name of a run", "name nodes as one word: -H n1,n2;"),
        ("watch", "ringup: no command 'watch'", "did you mean top?"),
        (
            "check --slurm",
            "ringup check: no option --slurm",
            "in an allocation (salloc --nodes=2), ringup check",
        ),
        (
            "check -H",
            "ringup check: -H/--hosts: expected one argument",
            "-H NODES: node[1-8],gpu3,user@host; the first is the head",
        ),
        ("chekc", "ringup: no command 'chekc'", "did you mean check? `ringup --help` lists them"),
        (
            "run -H n1,n2 train.py --epochs 3",
            "ringup run: no option --epochs",
            "options of the script go after --: ringup run ... -- train.py --epochs",
        ),
        (
            "script slurm --nodes 2 train.py --lr 3",
            "ringup script slurm: no option --lr",
            "options of the script go after --: ringup script slurm ... -- train.py --lr",
        ),
        (
            "bench --size 1G",
            "ringup bench: no option --size",
            "the sizes are --min and --max: --min 1G --max 1G",
        ),
        ("bench --lr 3", "ringup bench: no option --lr", "`ringup bench --help` shows the options"),
        ("test --size 1G", "ringup test: no option --size", "`ringup test --help` shows the options"),
        (
            "run --nodes 2 -- train.py",
            "ringup: --nodes 2, but only this machine is known",
            "name the nodes with -H node0,node1",
        ),
        (
            "run --nodes 3 -H node0,node1 -- train.py",
            "ringup: --nodes 3, but 2 nodes are known: node0, node1",
            "leave --nodes out",
        ),
        (
            "run --local 4 --nodes 3 -- train.py",
            "ringup: --nodes 3, but 4 nodes are known: 127.0.0.2, 127.0.0.3, 127.0.0.4, 127.0.0.5",
            "leave --nodes out",
        ),
        (
            "run -H node0 --queue gpu -- train.py",
            "ringup: --queue is only read with --slurm",
            "add --slurm to submit the run as a job",
        ),
        (
            "explain address already in use",
            "ringup: no problem is named 'address already in use'",
            "did you mean port-in-use, ephemeral-ports-exhausted",
        ),
        (
            "explain xyzzy of nothing",
            "ringup: no problem is named 'xyzzy of nothing'",
            "`ringup explain` lists all; `ringup logs FILE` finds the cause",
        ),
        (
            "script slurm --nodes 2 -- train.py",
            "ringup: the number of ranks per node is not known",
            "give --nproc N, or name the nodes with -H",
        ),
        (
            "run -H n1 -- torchrun --foo train.py",
            "ringup: torchrun --foo: ringup does not know this option",
            "options of the script go behind it: train.py --lr 0.1",
        ),
        (
            "schema run now",
            "ringup schema: unexpected argument now",
            "usage: ringup schema NAME (NAME: one of attach, ",
        ),
        (
            "completion",
            "ringup completion: missing arguments: SHELL",
            "usage: ringup completion SHELL (SHELL: one of bash, zsh, fish)",
        ),
        (
            "completion tcsh",
            "ringup completion: SHELL: 'tcsh' is not one of bash, zsh, fish",
            "for example ringup completion bash",
        ),
        (
            "env --format x",
            "ringup env: --format: 'x' is not one of shell, json, slurm, docker, k8s",
            "for example ringup env --f",
        ),
        (
            "diff a",
            "ringup diff: missing arguments: B",
            "usage: ringup diff A B (A: what worked: runs/RUN,",
        ),
        ("runs x", "ringup runs: unexpected argument x", "options only: `ringup runs --help`"),
        ("runs --json=x", "ringup runs: --json: it takes no value", "--json: JSON on stdout"),
        (
            "script slurm --nproc",
            "ringup script slurm: --nproc: expected one argument",
            "--nproc N: ranks per",
        ),
    ],
)
def test_a_mistake_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], words: str, said: str, advice: str
) -> None:
    what, hint = refused(capsys, *words.split())
    assert what == said
    assert hint.startswith(advice)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check --timeout soon", "--timeout: 'soon' is not a time above 0, such as 90 or 15m"),
        ("check --timeout=-1", "--timeout: '-1' is not a time above 0, such as 90 or 15m"),
        ("check --link-gbit 0", "--link-gbit: '0' is not a number above 0"),
        ("run --lease x -- a.py", "--lease: 'x' is not a time from 5 to 86400 seconds"),
        ("run --lease 1 -- a.py", "--lease: '1' is not a time from 5 to 86400 seconds"),
        (
            "run --hang-report 1 -- a.py",
            "--hang-report: '1' is not 0 or a time from 2 seconds to 30 days, such as 90 or 15m",
        ),
        ("run --nproc 0 -- a.py", "--nproc: '0' is not a count of ranks from 1 to 4096"),
        ("script slurm --nodes -2 -- a.py", "--nodes: '-2' is not a count of at least 1"),
        ("script slurm --gpus -1 -- a.py", "--gpus: '-1' is not a count"),
        ("demo --nodes none", "--nodes: 'none' is not a count of at least 1"),
        ("logs --processes -3 a.log", "--processes: '-3' is not a count of at least 1"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_words_of_the_user(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert refused(capsys, *words.split())[0].endswith(f": {said}")


def test_hostile_words_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    what, hint = refused(capsys, "check", "--\x1b[31m\n\u202ered")
    assert "\x1b" not in what + hint and "\\x1b[31m" in what
    what, _ = refused(capsys, "check", "")
    assert what == "ringup check: unexpected argument ''"


@pytest.mark.parametrize("option", ["--chdir", "--python", "--save", "--html", "--log-dir", "--setup"])
def test_two_dashes_as_a_value_are_no_crash(option: str) -> None:
    try:
        found = command_line.parser_for("run").read([f"{option}=--", "--", "train.py"])
    except SystemExit as left:
        assert left.code == 2
    else:  # a newer argparse hands it on
        assert getattr(found, option[2:].replace("-", "_")) == "--"


@pytest.mark.parametrize("name", command_line.COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_is_no_wider_than_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for text in (command_line.parser_for(name).format_help(), command_line.overview()):
        assert [line for line in text.splitlines() if len(line) > columns] == []


def test_help_keeps_the_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = command_line.parser_for("clean").format_help()
    assert "\n\nExit code 0 if nothing is left" in text


def test_every_choice_stands_in_the_help() -> None:
    for name in command_line.COMMANDS:
        parser = command_line.parser_for(name)
        text = " ".join(parser.format_help().split())
        choices = [action.choices for action in parser._actions]
        missing = [c for several in choices for c in several or () if c not in text]
        assert missing == [], name


def test_what_looks_at_nodes_can_be_told_to_be_quiet() -> None:
    for name in command_line.COMMANDS:
        known = command_line.parser_for(name)._option_string_actions
        assert ("-H" in known) <= ("--quiet" in known), name


def test_clean_within_slurm_says_what_slurm_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    from ringup.cli import request

    args = command_line.parser_for("clean").parse_args([])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_JOB_NODELIST", "n[1-2]")
        patched.setenv("SLURM_NTASKS_PER_NODE", "4")
        assert [host.name for host in request.nodes_from(args)] == ["n1", "n2"]
    assert capsys.readouterr().err.startswith("note: ntasks-per-node is 4")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_help_on_a_full_disk_is_told_in_two_lines(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ringup", "check", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    assert done.returncode == 4
    assert done.stderr.startswith(b"ringup: output: No space left on device\nhint: ")


def test_fewer_allocated_nodes_than_asked_for_start_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    what, _ = refused(capsys, "run", "--nodes", "4", "--", "train.py")
    assert what == "ringup: --nodes 4, but 2 nodes are known: node1, node2"


def test_more_ranks_than_a_guard_takes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Path(options.__file__).parents[1] / "agent" / "guard" / "messages.py"
    assert f"\nMOST_RANKS = {options.MOST_RANKS}\n" in guard.read_text(encoding="utf-8")
    what, _ = refused(capsys, "run", "--local", "1", "--nproc", str(options.MOST_RANKS + 1), "--", "train.py")
    assert f"is not a count of ranks from 1 to {options.MOST_RANKS}" in what


NODE_LISTS = (
    ("-H", "node[0-1"),
    ("-H", ""),
    ("-H", "a,,b"),
    ("--local", "0"),
    ("--local", "201"),
    ("--local", "two"),
    ("--hostfile", "/nope/hosts"),
)
READ = ("--hostfile", "--ssh-config", "--from")
WRITTEN = ("--html", "--failing", "--log-dir", "--output", "--plot", "--save")
NUMBERS = ("--local", "--nproc", "--nodes", "--timeout", "--link-gbit", "--wait", "--limit", "--min", "--max")
NUMBERS += (
    "--master-port",
    "--port",
    "--max-restarts",
    "--lease",
    "--hang-report",
    "--hang-timeout",
    "--gpus",
    "--cpus",
    "--steps",
    "--processes",
)


def wrong_uses() -> Iterator[list[str]]:
    """Every command with every option that names nodes, a file or a number, wrongly."""
    for name in command_line.COMMANDS:
        parser = command_line.parser_for(name)
        known = parser._option_string_actions
        head = [name, "slurm"] if name == "script" else [name]
        tail = ["--", "train.py"] if name in ("run", "script") else []
        nodes = [] if name in ("run", "script") else ["--no-nodes"] * (name == "bundle")
        if "--hosts" in known and name != "bundle":
            tail_of_nodes = ["--nodes", "2", *tail] if name == "script" else tail
            yield from ([*head, *words, *tail_of_nodes] for words in NODE_LISTS)
        for option in known:
            if option in READ or (option == "--output" and name == "predict"):
                yield [*head, *nodes, option, "/nope/file.png", *tail]
            if option in READ:
                yield [*head, *nodes, option, "/", *tail]
            if option in WRITTEN and name not in ("env", "predict", "runs"):
                # In a file, where no directory can be made either.
                yield [*head, *nodes, option, "/dev/null/file.svg", *tail]
            if option in NUMBERS:
                yield [*head, *nodes, option, "-1", *tail]
                yield [*head, *nodes, option, "many", *tail]
    yield ["run", "--env", "MASTER_PORT=70000", "--", "train.py"]
    for words in (
        "runs --log-dir /nope",
        "logs /nope",
        "lint /nope.py",
        "bundle --no-nodes /nope",
        "stacks --flight /nope",
    ):
        yield words.split()
    for words in (
        "explain nope",
        "attach nope",
        "predict --output /nope",
        "predict --topo n=/nope --local 1",
    ):
        yield words.split()


@pytest.mark.parametrize("words", list(wrong_uses()), ids=" ".join)
def test_wrong_usage_ends_with_2_in_every_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        command_line.main(words)
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, ""), said.err
    assert said.err.splitlines()[1].startswith("hint: ")


@pytest.mark.parametrize(
    "words", ["check -H node0 node1", "run -H node0 node1 -- train.py", "run -H node0 node1 train.py"]
)
def test_nodes_given_as_two_words_are_shown_as_one(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *words.split())[1] == "name nodes as one word: -H node0,node1"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("torchrun --nnodes --nproc_per_node --rdzv_backend c10d train.py", "--nnodes"),
        ("torchrun --nnodes= --nproc_per_node 8 train.py", "--nnodes"),
        ("torchrun --nproc_per_node 8 --master_addr --master_port 29500 train.py", "--master_addr"),
        ("torchrun --nproc_per_node 8 --rdzv_id train.py --lr 1", "--rdzv_id"),
        ("accelerate launch --num_machines 2 --machine_rank train.py", "--machine_rank"),
    ],
)
def test_a_variable_that_was_empty_when_a_line_was_pasted_swallows_no_word(
    line: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said, hint = refused(capsys, "run", "--local", "2", "--", *line.split())
    assert said == f"ringup: {option} needs a value" and "empty in this shell" in hint


def test_world_size_in_front_of_a_plain_script_is_the_number_of_ranks() -> None:
    words = ["MASTER_ADDR=10.0.0.9", "WORLD_SIZE=2", "RANK=1", "LOCAL_RANK=0", "python", "train.py"]
    line = take_apart(words)
    assert (line.world_size, line.env, line.taken) == (2, {}, ("WORLD_SIZE=2",))
    assert [what for what, _ in line.replaced] == ["MASTER_ADDR=10.0.0.9", "RANK=1", "LOCAL_RANK=0"]
    line = take_apart(["WORLD_SIZE=16", "torchrun", "--nproc_per_node", "8", "train.py"])
    assert (line.world_size, line.nproc, line.env) == (0, 8, {})


@pytest.mark.parametrize("command", ["env", "predict"])
def test_a_node_that_was_not_reached_is_said_and_ends_with_1(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = clusters.node("node0", clusters.interface("eth0", "10.0.0.1/24"))
    nodes = (sound, clusters.unreached("nope", "ssh-key-refused"))
    bundle.save(clusters.cluster(*nodes), tmp_path / "saved")
    for more in ([], ["--json"], ["--strict"]):
        assert command_line.dispatch([command, "--from", str(tmp_path / "saved"), *more]) == 1
        assert "ringup: nope: not reached: ssh's own words\n" in capsys.readouterr().err


def test_a_job_for_slurm_is_not_told_to_name_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    what, hint = refused(capsys, *["run", "--slurm", "--nodes", "2", "--", "train.py"])
    assert what == "ringup: the number of ranks per node is not known" and "-H" not in hint
