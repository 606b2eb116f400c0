"""
Counts steps and saves each, as a training does: `checkpointing.py FOLDER STEPS STEP_S [FAULT ...]`.

A fault is `HOW:RANK:STEP[:ATTEMPT]`; HOW is raise, name, import, exit, kill, hang or wait, ATTEMPT a number
(1) or *.  Who hangs leaves `FOLDER/hangs-ATTEMPT-RANK`; who waits goes on once there is `FOLDER/go-STEP`, or
on SIGUSR1.
Every rank begins after the step that rank 0 has saved.  On SIGUSR1 it saves and ends.  Every rank writes
`FOLDER/seen-ATTEMPT-RANK`: its pid, node and what it was given.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

NAMES = ("RINGUP_RUN", "RINGUP_ATTEMPT", "RINGUP_RESTART_CAUSE", "TORCHELASTIC_RESTART_COUNT")
NAMES += ("RINGUP_LAST_WORLD_SIZE", "RINGUP_EXCLUDED", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
NAMES += ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_RESTART_COUNT")


def save(saved: Path, step: int) -> None:
    fresh = saved.with_suffix(".new")
    fresh.write_text(str(step))
    fresh.replace(saved)


def reached(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def fail(how: str) -> None:
    if how == "raise":
        raise ValueError("bad batch")
    if how == "name":
        raise NameError("name 'modle' is not defined")
    if how == "import":
        import module_of_other_nodes  # noqa: F401
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1e6)


def main() -> None:
    folder, steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rank, attempt = int(os.environ["RANK"]), os.environ["RINGUP_ATTEMPT"]
    world_size = int(os.environ["WORLD_SIZE"])
    saved = folder / "latest_checkpointed_iteration.txt"
    seen = {name: os.environ.get(name) for name in NAMES}
    seen.update(pid=os.getpid(), node=os.uname().nodename)
    (folder / f"seen-{attempt}-{rank}").write_text(json.dumps(seen))
    first = reached(saved) + 1
    asked = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    for step in range(first, steps + 1):
        until = time.monotonic() + step_s
        while not asked and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.05))
        for fault in sys.argv[4:]:
            how, who, when, tried = (*fault.split(":"), "1")[:4]
            if (int(who), int(when)) == (rank, step) and tried in ("*", attempt):
                if how == "hang":
                    (folder / f"hangs-{attempt}-{rank}").touch()
                while how == "wait" and not asked and not (folder / f"go-{step}").exists():
                    time.sleep(0.02)
                if how != "wait":
                    fail(how)
        # A collective: nobody goes on alone, but to save, as the others may have saved one step earlier.
        save(folder / f"at-{attempt}-{rank}", step)
        all_at = [folder / f"at-{attempt}-{one}" for one in range(world_size)]
        while not asked and not all(reached(path) >= step for path in all_at):
            time.sleep(0.02)
        if rank == 0:
            save(saved, step)
            print(f"step {step}", flush=True)
        if asked:
            print(f"rank {rank} saved on {len(asked)} signal", flush=True)
            return
    print(f"rank {rank} finished", flush=True)


main()
