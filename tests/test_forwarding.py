"""Which variables go along to the nodes, and what is said of them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli import command_line, request
from ringup.cli.commands import parser_for
from ringup.errors import UsageError
from ringup.model import Cluster, Job
from tests import clusters

TOKEN = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm12345678"[:34]


@pytest.fixture(autouse=True)
def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(request.os.environ):
        if name.startswith(request.FORWARDED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for pair in ["TORCH_HOME=/t", "MYVAR=3", "DS_ACCELERATOR=cpu"]:
        monkeypatch.setenv(*pair.split("="))
    for pair in ["CUDA_VISIBLE_DEVICES=0", "NCCL_HOSTID=here", "TORCHELASTIC_RUN_ID=x"]:
        monkeypatch.setenv(*pair.split("="))
    for pair in ["CUDA_VERSION=13.0.2", "NCCL_VERSION=2.28.3-1"]:  # set by NVIDIA's images
        monkeypatch.setenv(*pair.split("="))


def job(text: str, command: str = "run") -> Job:
    args = parser_for(command).read(shlex.split(text))
    return request.job_from(args, request.script_words(args) if command == "run" else None)


@pytest.mark.parametrize("command", ["run", "check", "test", "bench", "env", "predict"])
def test_exported_variables_of_the_field_go_along(command: str) -> None:
    found = job("-H a" + (" -- train.py" if command == "run" else ""), command).env
    assert found == {"NCCL_DEBUG": "INFO", "HF_TOKEN": TOKEN, "TORCH_HOME": "/t"}


def test_what_the_command_line_sets_wins() -> None:
    assert job("--env NCCL_DEBUG=WARN --env MYVAR -- train.py").env == {
        "NCCL_DEBUG": "WARN",
        "MYVAR": "3",
        "HF_TOKEN": TOKEN,
        "TORCH_HOME": "/t",
    }


def test_nothing_goes_along_where_that_is_turned_off() -> None:
    assert job("--no-forward --env A=1 -- train.py").env == {"A": "1"}


def test_a_launchers_own_variables_go_along_with_it_alone(tmp_path: Path) -> None:
    (tmp_path / ".deepspeed_env").write_text("NCCL_IB_DISABLE=1\nNCCL_DEBUG=WARN\n\nno variable\n1X=2\n")
    assert "DS_ACCELERATOR" not in job("-- train.py").env
    found = job("-- deepspeed train.py").env
    assert (found["DS_ACCELERATOR"], found["NCCL_IB_DISABLE"], found["NCCL_DEBUG"]) == ("cpu", "1", "WARN")
    assert found.keys().isdisjoint({"no variable", "1X"})


def test_a_variable_that_is_not_set_cannot_go_along() -> None:
    with pytest.raises(UsageError, match="--env NOSUCH names a variable that is not set here"):
        job("--env NOSUCH -- train.py")


def test_one_line_says_what_went_along_and_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    args = parser_for("run").read(["--", "train.py"])
    request.show_forwarded(args, request.job_from(args, request.script_words(args)))
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == "ringup: forwarded to the nodes: HF_TOKEN, NCCL_DEBUG=INFO, TORCH_HOME=/t (--no-forward: none)"
    )


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_gets_them_and_no_argument_list_shows_a_secret(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(
        "import os, pathlib\n"
        "paths = pathlib.Path('/proc').glob('[0-9]*/cmdline')\n"
        "lists = [path.read_bytes() for path in paths if os.access(path, os.R_OK)]\n"
        "shown = any(os.environ['HF_TOKEN'].encode() in one for one in lists)\n"
        "print(os.environ['HF_TOKEN'][:3], os.environ['NCCL_DEBUG'], os.environ.get('NCCL_HOSTID'), shown)\n"
    )
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", "1", "--with", "python"]
    done = subprocess.run(
        [*words, "--backend", "gloo", "--", "show.py"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.count("| hf_ INFO here False") + done.stdout.count("| hf_ INFO None False") == 2, done
    assert TOKEN not in done.stdout + done.stderr
    assert not any(TOKEN in p.read_text() for p in tmp_path.rglob("runs/**/*") if p.is_file())


def test_one_line_says_which_exported_variables_saved_facts_leave_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "facts.json"
    bundle.save(Cluster((clusters.node("n0"),), job=Job(env={"TORCH_HOME": "/t"})), saved)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth9")

    def said(*options: str) -> str:
        with pytest.raises(SystemExit):
            command_line.main(["check", "--from", str(saved), *options])
        return capsys.readouterr().err

    line = "exported here and ignored, since --from judges saved facts: "
    assert f"{line}HF_TOKEN, NCCL_DEBUG, NCCL_SOCKET_IFNAME (" in said()
    assert f"{line}HF_TOKEN, NCCL_DEBUG (" in said("--env", "NCCL_SOCKET_IFNAME")
    assert said("--no-forward") == said("--quiet") == ""


def test_without_forwarding_nodes_on_this_machine_inherit_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = parser_for("run").read(shlex.split("--local 2 --no-forward --env HF_TOKEN -- train.py"))
    found = request.job_from(args, request.script_words(args))
    with request.open_transport(args):
        pass
    left = {name for name in ("NCCL_DEBUG", "HF_TOKEN", "TORCH_HOME", "MYVAR") if name in request.os.environ}
    assert left == {"MYVAR"} and found.env["HF_TOKEN"] == TOKEN
