"""`ringup logs` from outside: exit codes, pure JSON, a short report, pages, growing files."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench.nccl_lines import Plan
from bench.nccl_logs import generate

from ringup.cli import command_line
from ringup.errors import BundleError, UsageError
from ringup.logs import files
from ringup.logs.follow import changes
from ringup.logs.read import read_logs
from ringup.output import logs_report as show
from ringup.output.terminal import Style
from tests.logs_said import SAID

RECORDED = Path(__file__).parent / "recorded" / "logs"
PROMISED = {
    "causes",
    "healthy",
    "files",
    "versions",
    "networks",
    "transports",
    "collectives",
    "by_rank",
    "by_iteration",
    "behind",
}


def ringup(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "ringup", "logs", *words],
        input=stdin,
        capture_output=True,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
    )


@pytest.mark.slow
def test_a_named_error_is_exit_1_and_the_json_is_what_was_promised() -> None:
    done = ringup(str(RECORDED / "key-error.log"), "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert set(answer) >= PROMISED | {"ringup", "schema"}
    cause = answer["causes"][0]
    assert set(cause) == {
        "rule",
        "severity",
        "confidence",
        "text",
        "nodes",
        "ranks",
        "evidence",
        "fix",
        "help",
        "telling",
        "known_defect",
    }
    assert set(cause["evidence"][0]) == {"file", "line", "text"}
    assert set(cause["fix"]) == {"text", "env", "commands"}


@pytest.mark.slow
def test_a_sound_run_is_exit_0_and_its_networks_are_told() -> None:
    done = ringup(str(RECORDED / "sound.log"), "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["healthy"], answer["causes"]) == (0, True, [])
    assert answer["networks"][0] == {
        "host": "alpha",
        "kind": "IB",
        "bootstrap": "eno1",
        "interfaces": ["mlx5_0:1/RoCE", "mlx5_1:1/IB"],
        "used": ["mlx5_1:1/IB"],
        "oob": "eno1",
    }
    assert answer["transports"] == {"NET/IB/1/GDRDMA": 4}
    assert answer["files"][0]["init_complete"] is True
    assert answer["versions"]["nccl"] == ["2.20.5"]


@pytest.mark.slow
def test_a_fall_back_to_tcp_is_a_warning_and_exit_0() -> None:
    done = ringup(str(RECORDED / "fell-back.log"))
    assert done.returncode == 0
    assert "rdma-device-name-missing" in done.stdout


@pytest.mark.slow
def test_standard_input_is_read_where_no_path_is_given() -> None:
    done = ringup("--json", stdin=(RECORDED / "key-error.log").read_bytes())
    assert json.loads(done.stdout)["causes"][0]["rule"] == "rank-raised-exception"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["/nowhere/x.log"], ["--json", "/nowhere/x.log"]])
def test_a_log_that_does_not_exist_is_wrong_usage_in_two_lines(words: list[str]) -> None:
    done = ringup(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ringup: ") and "\nhint: " in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2


@pytest.mark.slow
def test_a_bad_iteration_expression_is_wrong_usage() -> None:
    done = ringup(str(RECORDED / "sound.log"), "--by-iteration", "step (")
    assert done.returncode == 2
    assert "--by-iteration" in done.stderr


def test_a_path_behind_by_iteration_is_no_expression(capsys: pytest.CaptureFixture[str]) -> None:
    counted = str(Path(__file__).parent.parent / "docs" / "examples" / "logs" / "counted")
    assert command_line.dispatch(["logs", "--by-iteration", counted, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by_iteration"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "is_silent"),
    [
        ("hello\n", True),
        ("n0:4:4 [0] NCCL INFO NCCL version 2.20.5+cuda12.4\n", False),
        ("n0:4:4 [0] NCCL INFO NET/Socket : Using [0]ib0:192.0.2.4<0>\n", False),
    ],
)
def test_logs_without_a_cause_tell_what_tells_more(tmp_path: Path, text: str, is_silent: bool) -> None:
    (tmp_path / "x.log").write_text(text, encoding="utf-8")
    done = ringup(str(tmp_path / "x.log"))
    assert done.stdout.startswith("No failure found in 1 line of 1 file")
    assert done.returncode == 0 and "hint: while a job hangs" in done.stderr
    assert ("NCCL's INFO lines are missing" in done.stderr) is is_silent
    assert ringup(str(tmp_path / "x.log"), "--quiet").stderr == ""


@pytest.mark.slow
def test_output_that_is_no_terminal_has_no_colour() -> None:
    assert "\x1b" not in ringup(str(RECORDED / "key-error.log")).stdout


def test_the_report_says_cause_then_evidence_then_fix_in_twenty_lines(tmp_path: Path) -> None:
    for number, (_, text) in enumerate(SAID):
        (tmp_path / f"rank{number}.log").write_text(text + "\n", encoding="utf-8")
    diagnosis = read_logs([str(tmp_path)])
    report = show.as_text(diagnosis, Style(io.StringIO())).splitlines()
    assert len(report) <= show.MAX_LINES
    first = diagnosis.causes[0]
    assert first.rule in report[0]
    evidence = next(n for n, line in enumerate(report) if ".log:" in line)
    fix = next(n for n, line in enumerate(report) if line.lstrip().startswith("fix:"))
    assert 0 < evidence < fix
    assert len(show.as_text(diagnosis, Style(io.StringIO()), verbose=True).splitlines()) > show.MAX_LINES


def test_a_narrow_terminal_is_not_overrun_by_what_we_say(tmp_path: Path) -> None:
    for number, (_, text) in enumerate(SAID):
        (tmp_path / f"rank{number}.log").write_text(text + "\n", encoding="utf-8")
    style = Style(io.StringIO())
    style.width = 60
    report = show.as_text(read_logs([str(tmp_path)]), style, verbose=True).splitlines()
    prose = [line for line in report if line.startswith("  fix: ")]
    assert len(prose) > 20 and max(map(len, prose)) <= 60


def test_control_sequences_in_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    line = "n1:4:4 [0] init.cc:45 NCCL WARN Bootstrap : no socket interface found"
    evil = f"\x1b]0;owned\x07\x1b[2J\u202e{line} \u2066x\n"
    (tmp_path / "a\x1b[31m.log").write_text(evil, encoding="utf-8")
    diagnosis = read_logs([str(tmp_path)])
    text = show.as_text(diagnosis, Style(io.StringIO()), verbose=True)
    assert diagnosis.causes
    assert not any(c in text for c in "\x1b\x07\u202e\u2066")


def test_a_page_fetches_nothing_and_shows_hostile_text_as_text(tmp_path: Path) -> None:
    from ringup.output.html_page import logs_page as page

    evil = "n1:4:4 [0] init.cc:45 NCCL WARN Bootstrap : no socket interface found <script>alert(1)</script>\n"
    (tmp_path / "a.log").write_text(evil, encoding="utf-8")
    html = page(read_logs([str(tmp_path)]))

    seen: list[tuple[str, list[tuple[str, str | None]]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, attrs))

    Reader().feed(html)
    assert "script" not in [tag for tag, _ in seen]
    assert not [a for _, attrs in seen for a, _ in attrs if a in ("src", "href")]
    assert "&lt;script&gt;" in html


def test_pasted_hardware_beside_the_logs_explains_a_port_that_is_down(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    text = (RECORDED / "fell-back.log").read_text(encoding="utf-8").replace("ib1", "mlx5_2")
    log.write_text(text, encoding="utf-8")
    pasted = tmp_path / "ibdev2netdev.txt"
    pasted.write_text("mlx5_1 port 1 ==> ib0 (Up)\nmlx5_2 port 1 ==> ib9 (Down)\n", encoding="utf-8")
    alone = read_logs([str(log)]).causes[0].rule
    told = read_logs([str(log)], facts=str(pasted))
    assert alone == "fell-back-to-sockets"
    assert told.causes[0].rule == "rdma-port-not-active"
    assert [f["path"] for f in show.as_json(told)["files"]] == [str(log)]


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/facts.json", "/"])
def test_hardware_from_what_is_no_such_file_costs_no_memory_and_no_traceback(path: str) -> None:
    log = str(RECORDED / "fell-back.log")
    if path == "/dev/zero":
        told = read_logs([log], facts=path)
        assert told.causes == read_logs([log]).causes
        assert [(u.path, u.reason[:19]) for u in told.unreadable] == [(path, "no saved collection")]
    else:
        with pytest.raises(BundleError):
            read_logs([log], facts=path)


def test_growing_files_are_followed_and_each_change_is_said_once(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("n0:4:4 [0] NCCL INFO cudaDriverVersion 12040\n", encoding="utf-8")
    steps = iter(range(6))

    def stop() -> bool:
        step = next(steps)
        if step == 2:
            with log.open("a", encoding="utf-8") as stream:
                stream.write("RuntimeError: Connection reset by pe")
        if step == 3:
            with log.open("a", encoding="utf-8") as stream:
                stream.write("er\n")
            (tmp_path / "rank1.log").write_text(
                "torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8"
            )
        return step == 5

    said = [causes[0].rule for _, causes in changes([str(tmp_path)], stop, poll_s=0)]
    assert said == ["gpu-out-of-memory"]


@pytest.mark.parametrize(
    "fault, still_s, told",
    [
        ("count", 1e9, ["collective-mismatch"]),
        ("stalled", 1e9, []),
        ("stalled", 0, ["rank-fell-behind"]),
        ("none", 0, []),
    ],
)
def test_calls_are_counted_in_growing_files_and_a_rank_is_behind_once_nothing_is_written(
    tmp_path: Path, fault: str, still_s: float, told: list[str]
) -> None:
    generate(Plan(ranks=4, ranks_per_node=2, layout="per-rank", seed=3, fault=fault), tmp_path)
    (tmp_path / "truth.json").unlink()
    steps = iter(range(4))
    said = changes([str(tmp_path)], lambda: next(steps) == 3, poll_s=0, still_s=still_s)
    assert [causes[0].rule for _, causes in said] == told


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--follow"],
        ["--follow", "-"],
        ["--follow", "--html", "x.html", "x.log"],
        ["--follow", "--from=/dev/null", "."],
    ],
)
def test_what_cannot_be_followed_is_wrong_usage_and_waits_for_nothing(words: list[str]) -> None:
    done = ringup(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ringup: --follow ") and len(done.stderr.splitlines()) == 2


@pytest.mark.slow
def test_following_says_what_it_waits_for_and_each_cause_is_whole_json(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8")
    words = ["logs", "--follow", "--json", str(log), str(tmp_path / "later.log")]
    with subprocess.Popen(
        [sys.executable, "-m", "ringup", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stderr
        told = json.loads(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert child.returncode == 1
    assert (told["schema"], told["rule"]) == (1, "gpu-out-of-memory") and told["ringup"]
    assert said == (
        f"ringup logs: {tmp_path / 'later.log'}: no such file or directory yet\n"
        "following 1 file; Ctrl-C ends it\n"
    )


def test_a_log_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("x\n" * 1000, encoding="utf-8")
    steps = iter(range(4))

    def stop() -> bool:
        step = next(steps)
        if step == 1:
            log.write_text("torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8")
        return step == 3

    said = [c[0] for _, c in changes([str(log)], stop, poll_s=0)]
    assert [c.rule for c in said] == ["gpu-out-of-memory"]
    assert [e.line for e in said[0].evidence] == [1]


def test_compressed_and_plain_files_of_one_run_are_read_together(tmp_path: Path) -> None:
    for name in ("rank0.log", "rank1.log"):
        data = (RECORDED / "two-networks" / name).read_bytes()
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data)) if name == "rank1.log" else (
            tmp_path / name
        ).write_bytes(data)
    assert read_logs([str(tmp_path)]).causes[0].rule == "peer-unreachable-on-interface"


FAR_BACK = Plan(fault="count", fault_rank=3, iterations=40, hang=False, marks="none", layout="per-rank")


@pytest.mark.parametrize("packed", ["all", "one", "merged"])
def test_a_call_that_differs_far_back_is_found_in_compressed_files_too(tmp_path: Path, packed: str) -> None:
    """One packed file among others had hidden it in all of them: no cause was named."""
    plan = replace(FAR_BACK, layout="merged") if packed == "merged" else FAR_BACK
    generate(plan, tmp_path)
    logs = sorted(tmp_path.glob("*.log"))
    plain = read_logs(list(map(str, logs))).causes[0]
    for log in logs[: 1 if packed == "one" else None]:
        log.with_suffix(".log.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    cause = read_logs([str(p) for p in sorted(tmp_path.glob("*.log*"))]).causes[0]
    assert (cause.rule, cause.ranks, cause.text) == ("collective-mismatch", (3,), plain.text)
    assert [(e.line, e.text) for e in cause.evidence] == [(e.line, e.text) for e in plain.evidence]
    assert all(e.text for e in cause.evidence)


@pytest.mark.slow
def test_what_standard_input_cannot_tell_is_said(tmp_path: Path) -> None:
    generate(replace(FAR_BACK, layout="merged"), tmp_path)
    done = ringup("-", stdin=(tmp_path / "job.log").read_bytes())
    assert "-: cannot be read twice: whether its ranks called different things" in done.stderr
    assert "give a file" in done.stderr


def test_a_place_in_a_packed_file_is_read_again_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 512)
    data = b"".join(b"line %d\n" % n for n in range(2_000))
    (tmp_path / "a.gz").write_bytes(gzip.compress(data))
    again = files.Again()
    for start, end in [(0, 9), (5_000, 9_000), (5_100, 5_101), (100, 200), (len(data) - 3, len(data) + 9)]:
        assert b"".join(again(str(tmp_path / "a.gz"), start, end)) == data[start:end]


def test_a_line_too_long_to_be_read_whole_is_named(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("RuntimeError: CUDA out of memory. " + "x" * 5000 + "\n" + "step 1 | loss: 2.0\n" * 3)
    done = ringup(str(log))
    assert f"{log}: 1 line longer than 2,048 bytes: the middle was not read" in done.stderr
    log.write_text(
        "step 1 | loss: 2.0\n" + "\r".join(f"{n}%|#| {n}/100 [00:0{n}<00:01]" for n in range(9)) * 99
    )
    assert "longer than" not in ringup(str(log)).stderr


def test_without_a_path_a_terminal_gets_the_newest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="no run is in runs/"):
        command_line.dispatch(["logs"])
    for name, started in (("old", 1.0), ("new", 2.0)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(
            json.dumps({"run": name, "outcome": "ok", "started": started, "exit_code": 0})
        )
        (tmp_path / "runs" / name / "rank-00000-n0.log").write_text("step 1\n")
    assert command_line.dispatch(["logs"]) == 0
    assert "the newest run: runs/new\n" in capsys.readouterr().err
