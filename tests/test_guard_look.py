"""A guard that is asked what its ranks do: it answers, goes on beating, and leaves nothing."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from ringup.hang.snapshots import RankLook, decode
from tests.guards import GuardedNode, tagged, wait_for

pytestmark = pytest.mark.slow

WAITS = "print('up', flush=True); import time; time.sleep(60)"


def node(folder: Path, **order: str) -> GuardedNode:
    return GuardedNode(
        folder,
        [sys.executable, "{RUN_DIR}/rank.py"],
        env={"RINGUP_SCRIPT": str(folder / "train.py"), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        **order,
    )


def test_a_look_is_answered_with_the_line_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with node(tmp_path) as one:
        one.go()
        one.wait("out")
        numbers = itertools.count(7)

        def seen() -> RankLook | None:
            """The rank, once it sleeps: while it runs Python code it may not be asked."""
            number = next(numbers)
            one.tell({"type": "look", "number": number, "mode": "stacks"})
            one.tell({"type": "beat", "sent": 1.0})
            (rank,) = decode("n1", one.wait("look", number=number)).ranks
            return rank if rank.frames else None

        rank = wait_for(seen, "its line")
        assert rank.rank == 0 and rank.frames[0].file.endswith("train.py")
        number = next(numbers)
        one.tell({"type": "look", "number": number, "mode": "count"})
        assert one.wait("look", number=number)["mode"] == "count"  # its program is known
        run_id = one.run_id
    assert not tagged(run_id)


def test_a_look_that_gives_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with node(tmp_path, look_source="raise SystemExit(3)") as one:
        one.go()
        one.wait("out")
        one.tell({"type": "look", "number": 1, "mode": "count"})
        answer = one.wait("look")
        assert decode("n1", answer).problem


def test_a_look_does_not_hold_up_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with node(tmp_path, look_source="import time; time.sleep(60)") as one:
        one.go()
        one.wait("out")
        one.tell({"type": "look", "number": 1, "mode": "count"})
        one.tell({"type": "end", "reason": "enough", "grace_s": 0.5})
        assert one.wait("ended")["left"] == []


def test_a_program_that_comes_with_a_message_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    with node(tmp_path) as one:
        one.go()
        one.wait("out")
        source = f"open({str(tmp_path / 'ran')!r}, 'w')"
        one.tell({"type": "look", "number": 1, "mode": "count", "source": source})
        one.tell({"type": "look", "number": 2, "mode": source})
        assert decode("n1", one.wait("look", number=1)).ranks
        one.tell({"type": "look", "number": 3, "mode": "count"})
        one.wait("look", number=3)
        assert not (tmp_path / "ran").exists() and one.get("look", number=2) is None
