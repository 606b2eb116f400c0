"""`ringup bundle`: one archive, and no secret in it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ringup.secrets import redact
from tests import clusters

SECRETS = {
    "assigned": "export HF_TOKEN=tok3n-a",
    "quoted": "WANDB_API_KEY='tok3n b'",
    "option": "train.py --api-key tok3n-c --lr 1",
    "header": "> Authorization: Bearer tok3n-d",
    "url": "fetching https://ada:tok3n-e@host/x",
    "json": '{"aws_secret_access_key": "tok3n-f"}',
    "known": "login with hf_tok3nabcdefghijklmnopqrstuvwx",
    "pem": "-----BEGIN RSA PRIVATE KEY-----\ntok3n\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_hidden(text: str) -> None:
    assert "tok3n" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "NCCL INFO comm 0x55 rank 0 nranks 2 - Init COMPLETE",
        "n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>",
        "keys: 12, tokenizer loaded, 4096 tokens per second",
        "tcp://10.0.0.1:29500",
        "step 3 tokens: 8192 tokenizer=fast",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def packed(tmp_path: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    target = tmp_path / "b.tar.gz"
    command = [sys.executable, "-m", "ringup", "bundle", "-o", str(target), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    if not target.exists():
        return done, {}
    with tarfile.open(target) as archive:
        return done, {m.name: archive.extractfile(m).read().decode() for m in archive}  # type: ignore[union-attr]


def test_facts_findings_and_logs_are_in_it_and_can_be_read_back(tmp_path: Path) -> None:
    from ringup import bundle

    saved = tmp_path / "facts"
    bundle.save(clusters.healthy(), saved)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"plan": {"env": {"MY_TOKEN": "tok3n"}}}))
    (run / "rank-00000-n0.log").write_text("step 1\nMY_TOKEN=tok3n\n")
    (run / "old.log.gz").write_bytes(gzip.compress(b"password: tok3n\n"))
    done, parts = packed(tmp_path, "--from", str(saved), str(run))
    assert done.returncode == 0, done.stderr
    assert {Path(name).name.lstrip("0123456789-") for name in parts} == {
        "README", "facts.json", "check.json", "check.txt", "run.json", "rank-00000-n0.log", "old.log.gz",
        "logs.json",
    }  # fmt: skip
    assert "tok3n" not in "".join(parts.values())
    assert bundle.from_json(parts["b/facts.json"].encode()) == clusters.healthy()
    assert json.loads(parts["b/check.json"])["schema"] == 1


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\n")
    done, parts = packed(tmp_path, "--no-nodes", str(tmp_path / "nothing.log"), str(tmp_path / "a.log"))
    assert done.returncode == 0
    assert "nothing.log: no such file" in done.stderr and "nothing.log" in parts["b/LEFT-OUT"]


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("first\n" + ("x" * 99 + "\n") * 75_000 + "last\n")
    _, parts = packed(tmp_path, "--no-nodes", str(log))
    text = parts["b/logs/000-long.log"]
    assert text.startswith("first\n") and text.endswith("last\n") and "[...]" in text
    assert len(text) < 6 << 20


def test_an_archive_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringup", "bundle", "--no-nodes", "-o", str(tmp_path / "no" / "b.tgz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("cannot be written: No such file or directory")


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x", "a-", "--", "=a", "a://"])
def test_a_log_of_one_long_line_is_read_once_and_not_once_a_character(piece: str) -> None:
    """By the square of its length such a line would take hours; the suite's time limit ends that."""
    line = piece * ((4 << 20) // len(piece))
    shown = redact(f"HF_TOKEN=abc {line}\nnext HF_TOKEN=abc {line}\n")
    assert shown.startswith(f"HF_TOKEN=(hidden) {piece}") and "\nnext HF_TOKEN=(hidden) " in shown
    assert shown.count("characters left out)") == 2 and "abc" not in shown


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("my.HF_TOKEN_2: 'a b' x", "my.HF_TOKEN_2: '(hidden)' x"),
        ("my.HF_TOKEN_FILE: /run/secrets/hf x", "my.HF_TOKEN_FILE: /run/secrets/hf x"),
        ("train.py --wandb-api-key abc --n 3", "train.py --wandb-api-key (hidden) --n 3"),
        ("tokens=5 tokenizer=bpe keys=3", "tokens=5 tokenizer=bpe keys=3"),
        ("https://ada:pw@host/x", "https://(hidden)@host/x"),
    ],
)
def test_secrets_are_hidden_wherever_in_its_name_the_word_stands(text: str, hidden: str) -> None:
    assert redact(text) == hidden


@pytest.mark.parametrize("words", [[], ["nosuch"]])
def test_an_archive_of_nothing_is_an_error(tmp_path: Path, words: list[str]) -> None:
    done, parts = packed(tmp_path, "--no-nodes", *words)
    assert (done.returncode, parts, done.stdout) == (2, {}, "")
    what = "nosuch: No such file" if words else "nothing to pack: "
    assert done.stderr.startswith(f"ringup: {what}") and len(done.stderr.splitlines()) == 2


def test_many_long_logs_share_the_room_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringup.cli import bundle as command

    for number in range(40):
        (tmp_path / f"rank-{number:05d}-n0.log").write_text("first\n" + "x" * 99_999 + "\nlast\n")
    monkeypatch.setattr(command, "MOST_BYTES", 200_000)
    parts, _, left_out = command.of_logs([str(tmp_path)])
    assert len(parts) == len(left_out) == 40
    assert sum(map(len, parts.values())) <= 200_000 + 40 * len("\n[...]\n")
    assert all(text.startswith("first\n") and text.endswith("\nlast\n") for text in parts.values())


@pytest.mark.parametrize("how", ["a link", "a link with ..", "a linked directory", "a named link", "a FIFO"])
def test_nothing_outside_the_log_directory_is_packed(tmp_path: Path, how: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "shadow.log").write_text("root:tok3n\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.log").write_text("step 1\n")
    named = [str(run)]
    if how == "a link":
        (run / "rank1.log").symlink_to(outside / "shadow.log")
    elif how == "a link with ..":
        (run / "rank1.log").symlink_to("../run/../outside/shadow.log")
    elif how == "a linked directory":
        (run / "more").symlink_to(outside)
        named.append(str(run / "more"))
    elif how == "a named link":
        (run / "rank1.log").symlink_to(outside / "shadow.log")
        named = [str(run / "rank0.log"), str(run / "rank1.log")]
    else:
        os.mkfifo(run / "rank1.log")
        named.append(str(run / "rank1.log"))
    done, parts = packed(tmp_path, "--no-nodes", *named)
    assert done.returncode == 0, done.stderr
    assert "tok3n" not in "".join(parts.values()) and "step 1" in "".join(parts.values())
    reason = "not a regular file" if how == "a FIFO" else "a symbolic link to"
    assert reason in parts["b/LEFT-OUT"] and reason in done.stderr


def test_a_link_to_the_newest_run_beside_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "rank0.log").write_text("step 1\n")
    (tmp_path / "latest").symlink_to("run1")
    _, parts = packed(tmp_path, "--no-nodes", str(tmp_path / "latest"))
    assert any("step 1" in text for text in parts.values()) and "b/LEFT-OUT" not in parts


def test_half_a_line_whose_name_is_cut_off_is_not_packed(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("first\n" + "x" * (2 << 20) + " DB_PASS=" + "tok3n" * 900_000 + "\nlast\n")
    _, parts = packed(tmp_path, "--no-nodes", str(log))
    assert "tok3n" not in "".join(parts.values()) and parts["b/logs/000-long.log"].endswith("last\n")
