"""What `lint --fix` repairs is certain, and every other byte of a file stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringup.cli import command_line, fixing
from ringup.errors import UsageError
from ringup.lint import fixes
from ringup.nccl import variables

REPAIRED = {
    "export GLOO_SOCKET_IFNAM=eth0": "export GLOO_SOCKET_IFNAME=eth0",
    "docker run -e NCCL_SOCKET_IFNAMES=eth0 image": "docker run -e NCCL_SOCKET_IFNAME=eth0 image",
    "NCCL_DEUBG=INFO NCCL_SOCKET_IFNAM='=a' ls": "NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME='=a' ls",
    "export MASTER_ADDR==10.0.0.1": "export MASTER_ADDR=10.0.0.1",
    "export NCCL_DEBUG='=INFO'": "export NCCL_DEBUG='INFO'",
    "export GLOO_SOCKET_IFNAME==eth0": "export GLOO_SOCKET_IFNAME=eth0",
    "export NCCL_SOCKET_IFNAME===eth0  # é": "export NCCL_SOCKET_IFNAME==eth0  # é",
    'export NCCL_SOCKET_IFNAME="==eth0, eth1"': 'export NCCL_SOCKET_IFNAME="=eth0,eth1"',
    "export NCCL_IB_HCA==^mlx5_0": "export NCCL_IB_HCA=^=mlx5_0",
    'NCCL_IB_HCA="mlx5_0 , mlx5_1,  mlx5_2" python t.py': 'NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2" python t.py',
    "export OMP_NUM_THREADS = 8": "export OMP_NUM_THREADS=8",
    "docker run —shm-size=1g –network host image": "docker run --shm-size=1g --network host image",
    "torchrun \\ \t\n  --nnodes=2 train.py": "torchrun \\\n  --nnodes=2 train.py",
}
KEPT = [
    "export NCCL_SOCKET_IFNAME==eth0",  # exactly eth0, as NCCL's documentation writes it
    "export NCCL_SOCKET_IFNAM=eth0  # ringup: ignore",
    "export NCCL_SOCKET_IFNAM=eth0; NCCL_IB_HCA===mlx5_0 python t.py  # ringup: ignore[port-in-file]",
    "export NCCL_SOCKET_IFNAM=eth0\necho $NCCL_SOCKET_IFNAM",
    "export NCCL_SOCKET_IFNAM=eth0\nexport NCCL_SOCKET_IFNAME=eth1",
    "export NCCL_MX_NCHANNELS=4",  # MIN or MAX
    "export NCCL_DEBUG2=INFO",
    "export MY_OWN==x",
    "mpirun –n 4 hostname",
    "ls \\ \nnext",
    "export A = b c",
    "export NCCL_IB_HCA=ib0",
]


@pytest.mark.parametrize("before", REPAIRED)
def test_what_is_certain_is_repaired(before: str) -> None:
    files, done, left = fixes.repair({"job.sh": before})
    assert files == {"job.sh": REPAIRED[before]} and done
    assert not {f.rule for f in left} & {f.rule for f in done}


@pytest.mark.parametrize("text", KEPT)
def test_what_is_not_certain_stays(text: str) -> None:
    assert fixes.repair({"job.sh": text})[:2] == ({"job.sh": text}, [])


def test_a_name_that_another_file_reads_stays() -> None:
    reader = 'import os\nos.environ.get("NCCL_SOCKET_IFNAM")\n'
    files = {"job.sh": "export NCCL_SOCKET_IFNAM=eth0\n", "train.py": reader}
    assert fixes.repair(files)[:2] == (files, [])


def test_a_script_is_repaired_and_stays_one() -> None:
    text = 'import os\nos.environ["GLOO_SOCKET_IFNAM"] = "a"\nos.environ.update(NCCL_IB_HCA="x, y")\n'
    files, done, _ = fixes.repair({"t.py": text})
    assert files["t.py"] == text.replace("IFNAM", "IFNAME").replace("x, y", "x,y") and len(done) == 2


def test_only_one_variable_is_meant_or_none() -> None:
    for name in ("NCCL_IB_HCA", "NCCL_MIN_NCHANNELS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        for spelt in (name[:-1], f"{name}S", name[:8] + name[9:], name[:7] + name[8] + name[7] + name[9:]):
            if meant := variables.only_candidate(spelt):
                near = [
                    k for k in variables.TABLE if variables.edits(k, spelt) <= variables.edits(meant, spelt)
                ]
                assert near == [meant] != [spelt]


# -- files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


BAD = b"\xef\xbb\xbf#!/bin/bash\r\n# caf\xe9 \x00 \x0c\r\n"
BAD += b"export GLOO_SOCKET_IFNAM=eth0\r\nexport MASTER_ADDR==h\rls"
GOOD = BAD.replace(b"IFNAM=", b"IFNAME=").replace(b"ADDR==", b"ADDR=")


def names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def lint(*words: str) -> int:
    return command_line.dispatch(["lint", *words])


def test_line_ends_marks_and_bytes_of_no_text_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "job.sh"
    file.write_bytes(BAD)
    file.chmod(0o751)
    assert lint("job.sh", "--fix") == 0
    assert file.read_bytes() == GOOD and stat.S_IMODE(file.stat().st_mode) == 0o751
    said = capsys.readouterr().out
    assert "fixed  job.sh:3  unknown-nccl-variable\n  now        export GLOO_SOCKET_IFNAME=eth0" in said
    assert said.endswith("no problems found\n") and names(folder) == ["job.sh"]
    assert lint("job.sh") == 0 and "fixed by" not in capsys.readouterr().out


def test_the_exit_code_and_json_are_of_what_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.sh").write_text("export GLOO_SOCKET_IFNAM=e\nexport A=b c\n")
    assert lint("job.sh") == 1
    assert capsys.readouterr().out.endswith("1 error, 1 warning (1 fixed by --fix)\n")
    assert lint(str(Path.cwd())) == 1  # the launches and the findings have the same short name
    assert str(Path.cwd()) not in capsys.readouterr().out
    assert lint("job.sh", "--fix", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [f["rule"] for f in said["fixed"]] == ["unknown-nccl-variable"]
    assert [f["rule"] for f in said["findings"]] == ["export-takes-further-words"]


@pytest.mark.slow
def test_a_difference_is_shown_and_nothing_is_changed(folder: Path) -> None:
    (folder / "job.sh").write_bytes(BAD)
    for words in (["--diff"], ["--diff", "--fix"]):
        done = subprocess.run([sys.executable, "-m", "ringup", "lint", "job.sh", *words], capture_output=True)
        assert done.returncode == 1 and done.stderr == b"2 findings would be fixed; nothing else found\n"
        assert (folder / "job.sh").read_bytes() == BAD
    if shutil.which("patch"):
        subprocess.run(["patch", "--binary", "-p0"], input=done.stdout, check=True, capture_output=True)
        assert (folder / "job.sh").read_bytes() == GOOD
    assert lint("job.sh", "--fix") == 0 == lint("job.sh", "--diff")


@pytest.mark.slow
def test_standard_input_is_shown_and_never_written(folder: Path) -> None:
    words = [sys.executable, "-m", "ringup", "lint", "-"]
    shown = subprocess.run([*words, "--diff"], input=b"export MASTER_ADDR==h\n", capture_output=True)
    assert shown.returncode == 1 and b"\n+export MASTER_ADDR=h\n" in shown.stdout
    refused = subprocess.run([*words, "--fix"], input=b"export MASTER_ADDR==h\n", capture_output=True)
    assert refused.returncode == 2 and b"standard input cannot be written" in refused.stderr


def test_a_link_out_of_what_is_named_is_refused_before_anything_is_written(
    folder: Path,
) -> None:
    for name in ("jobs/a.sh", "jobs/deep/c.sh", "else/b.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("export MASTER_ADDR==h\n")
    (folder / "jobs/b.sh").symlink_to("../else/b.sh")
    with pytest.raises(UsageError, match=r"--fix changed nothing: jobs/b\.sh is a link to"):
        lint("jobs", "--fix")
    assert all("==" in file.read_text() for file in folder.rglob("*.sh"))
    (folder / "jobs/b.sh").unlink()
    (folder / "jobs/c.sh").symlink_to("deep/c.sh")
    assert lint("jobs", "--fix") == 0 and (folder / "jobs/c.sh").is_symlink()
    assert not any("==" in file.read_text() for file in (folder / "jobs").rglob("*.sh"))


def test_a_file_that_cannot_be_written_is_one_error(folder: Path) -> None:
    for parent in (folder, *folder.parents):
        if Path(tempfile.gettempdir()) in parent.parents:  # the user below may enter
            parent.chmod(parent.stat().st_mode | 0o011)
    (folder / "a.sh").write_text("export MASTER_ADDR==h\n")
    folder.chmod(0o555)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # an ordinary user, where the tests are root's
        said = "written"
        try:
            if not os.geteuid():
                os.setuid(65534)
            fixing.refuse([str(folder)], [str(folder / "a.sh")])
        except BaseException as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    folder.chmod(0o755)
    assert re.fullmatch(r"--fix changed nothing: (/.*/)?a\.sh cannot be written", said)


def test_a_file_changed_meanwhile_is_not_overwritten(folder: Path) -> None:
    (folder / "a.sh").write_text("new")
    with pytest.raises(UsageError, match="changed meanwhile"):
        fixing.write("a.sh", b"old", b"x")
    with pytest.raises(UsageError, match="changed meanwhile"):
        fixing.apply(["a.sh"], {"a.sh": "old"}, {"a.sh": "x"}, show=False)
    assert names(folder) == ["a.sh"] and (folder / "a.sh").read_text() == "new"


PIECES = [
    line.encode()
    for line in [*REPAIRED, *KEPT, "", "# x", "python train.py", "cat <<EOF", "EOF", "if x; then"]
]
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n"])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*PIECES, b"# \xff\xfe"]), ENDS), max_size=8))
def test_a_second_run_finds_nothing_to_repair_and_all_else_stays(parts: list[tuple[bytes, bytes]]) -> None:
    raw = b"".join(piece + end for piece, end in parts)
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    files, done, left = fixes.repair({"x.sh": text})
    again, none, same = fixes.repair(files)
    assert (again, none) == (files, []) and same == left
    lines = {fixes.place(f.where)[1] for f in done}
    now = fixing.patched(raw, text, files["x.sh"]).split(b"\n")
    assert len(now) == raw.count(b"\n") + 1
    for number, (a, b) in enumerate(zip(raw.split(b"\n"), now, strict=True), 1):
        assert (a != b) == (number in lines) and a.endswith(b"\r") == b.endswith(b"\r")


def test_that_nothing_was_checked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.sh").write_text("hello\n")
    assert command_line.dispatch(["lint", str(tmp_path / "notes.sh")]) == 0
    out = capsys.readouterr().out
    assert "nothing was checked: no launch line and no training script\n" in out and "no problems" not in out


def test_a_folder_that_cannot_be_read_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_path: str) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(os, "scandir", closed)
    assert command_line.dispatch(["lint", str(folder)]) == 0
    assert "  not read: Permission denied\n" in capsys.readouterr().err
