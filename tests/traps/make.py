"""
Make the run traps anew: `python -m tests.traps.make [NAME ...]`, as root, from the checkout's root.

Each trap of `runs.RUNS` is started on a lab of its own (tests/lab), its output kept below tests/traps/logs.
Programs beside torch come from virtual environments that are named in the environment: TRAPS_LAUNCHERS
(accelerate, deepspeed, jax, lightning), TRAPS_RAY (ray, openmpi), TRAPS_MPICH, TRAPS_OLD (torch 2.4),
TRAPS_OLDER (torch 1.13).  A trap whose environment is not given is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import Lab
from tests.lab.machine import CHECKOUT
from tests.lab.slurm import Slurm
from tests.traps.runs import RUNS, Run

LOGS = Path(__file__).with_name("logs")
INDEX = LOGS.with_name("index.jsonl")
VENVS = {name: os.environ.get(f"TRAPS_{name}", "") for name in ("LAUNCHERS", "RAY", "MPICH", "OLD", "OLDER")}

PREFIXES: dict[str, Callable[[float, str], str]] = {
    "": lambda at, host: "",
    "colon": lambda at, host: f"{host}: ",
    "bracket": lambda at, host: f"[{host}] ",
    "kubectl": lambda at, host: f"[pod/train-job-worker-{host[-1]}/pytorch] ",
    "stern": lambda at, host: f"train-job-worker-{host[-1]} pytorch ",
    "docker": lambda at, host: f"{host}_1  | ",
    "iso": lambda at, host: (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{at % 1 * 1000:03.0f}Z {host} "
    ),
    "journal": lambda at, host: time.strftime("%b %d %H:%M:%S ", time.gmtime(at)) + f"{host} train[2071]: ",
}
"""What a collector writes before each line."""


def neutral(text: str, job: Path) -> str:
    """The text without paths of this machine."""
    base = sys.base_prefix
    known = {str(job): "/home/you/job", str(CHECKOUT): "/home/you/ringup"}
    known |= {venv: f"/home/you/{name.lower()}" for name, venv in VENVS.items() if venv}
    known |= {str(Path(venv).resolve()): f"/home/you/{name.lower()}" for name, venv in VENVS.items() if venv}
    known |= {sys.prefix: "/home/you/venv", str(Path(sys.prefix).resolve()): "/home/you/venv"}
    known |= {base: "/opt/python", str(Path(base).resolve()): "/opt/python"}
    site = [p for p in sys.path if p.endswith("site-packages")]
    known |= {str(Path(p).resolve().parents[2]): "/home/you/venv" for p in site}
    for path in sorted(known, key=len, reverse=True):
        text = text.replace(path, known[path])
    text = re.sub(r"/var/tmp/ringup-slurm-\w+", "/var/spool/slurm", text)
    return re.sub(r"/root\b", "/home/you", text)


class Output:
    """Lines of all commands with the time and the host they came from, in order of arrival."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str]] = []
        self.readers: list[threading.Thread] = []

    def read(self, host: str, child: subprocess.Popen[Any]) -> None:
        def reading() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                self.lines.append((time.time(), host, line))

        self.readers.append(threading.Thread(target=reading, daemon=True))
        self.readers[-1].start()

    def text(self, prefix: str, only: str | None = None) -> str:
        label = PREFIXES[prefix]
        return "".join(label(at, host) + line for at, host, line in self.lines if only in (None, host))


def played(run: Run, job: Path) -> Output:
    """Start a run's commands together on a new lab; what they print until all ended or the limit passed."""
    for name, text in run.files.items():
        (job / name).write_text(text)
    output, env = Output(), {"OMP_NUM_THREADS": "1", **VENVS, **run.env}
    with Lab(**{"hosts": 3 if run.slurm else 2, "ttl_s": 300, **run.lab}) as lab:
        slurm = Slurm(lab, cpus=2) if run.slurm else None
        for name, options in run.faults.items():
            lab.fault(name, **options)
        children = []
        for where, line in run.on.items():
            shell = ["bash", "-c", line]
            own = {**env, **(slurm.env if slurm else {})}
            child = lab.popen(
                where.split()[0], shell, env=own, cwd=job, text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            output.read(where.split()[0], child)
            children.append(child)
        until = time.monotonic() + run.limit_s
        started = zip(run.on, children, strict=True)
        for where, child in sorted(started, key=lambda one: one[0].endswith(" other")):
            try:
                child.wait(0.1 if where.endswith(" other") else max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.terminate()
        for reader in output.readers:
            reader.join(5)
        if slurm:
            slurm.close()
    return output


def cut(text: str, how: str) -> str:
    """The first or last part of a text, as `head:60` and `tail:50` per cent, in whole lines."""
    if not how:
        return text
    end, _, share = how.partition(":")
    lines = text.splitlines(keepends=True)
    count = max(1, len(lines) * int(share) // 100)
    return "".join(lines[:count] if end == "head" else lines[-count:])


def make(run: Run) -> str:
    """Write a trap's log; a line about it."""
    lacking = [name for name in VENVS if f"${name}/" in " ".join(run.on.values()) and not VENVS[name]]
    if lacking:
        return f"{run.name}: left, needs TRAPS_{lacking[0]}"
    with tempfile.TemporaryDirectory(prefix="trap-", dir="/var/tmp") as folder:
        job = Path(folder)
        job.chmod(0o755)
        output = played(run, job)
        parts = {f"{run.name}.log": output.text(run.prefix)}
        if run.form == "hosts":
            hosts = dict.fromkeys(host for _, host, _ in output.lines)
            parts = {f"{run.name}/{host}.log": output.text(run.prefix, host) for host in hosts}
        elif run.form:  # the files that the job itself wrote
            found = sorted(p for p in job.glob(run.form) if p.is_file() and p.stat().st_size)
            parts = {
                f"{run.name}/{'-'.join(p.relative_to(job).parts[-3:])}": p.read_text(errors="replace")
                for p in found
            }
        shutil.rmtree(LOGS / run.name, ignore_errors=True)
        for name, text in parts.items():
            path = LOGS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(cut(neutral(text, job), run.cut))
    return f"{run.name}: {len(parts)} files, {sum(map(len, parts.values()))} characters"


def index(written: list[dict[str, Any]]) -> None:
    """Write index.jsonl: the traps of the table whose log is here, then those written by hand."""
    rows = []
    for run in RUNS:
        file = next((f"logs/{n}" for n in (f"{run.name}.log", run.name) if (LOGS / n).exists()), "")
        symptom = "healthy" if run.accept == "healthy" else run.symptom
        row = {"id": run.name, "file": file, "accept": run.accept.split(), "scored": True}
        rows += [{**row, "symptom": symptom, "kind": "run", "cause_text": run.why}] if file else []
    INDEX.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *written]))


def main() -> None:
    """The traps named, or all."""
    wanted = sys.argv[1:]
    for run in RUNS:
        if not wanted or run.name in wanted:
            start = time.monotonic()
            print(f"{make(run)}, {time.monotonic() - start:.0f} s", flush=True)
    known = map(json.loads, INDEX.read_text().splitlines()) if INDEX.exists() else []
    index([row for row in known if row["kind"] == "written"])


if __name__ == "__main__":
    main()
