"""Answers that are late, cut, broken or lies: unknown with a reason, never garbage, never an exception."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringup import collectors
from ringup.agent_bundle import pack, source
from ringup.collectors import pairs
from ringup.collectors.node_answer import Asked, clock_between, node_from
from ringup.collectors.probe_script import _BOOT, FIELDS, facts_script
from ringup.model import Clock, Host, Job, Node, ReachFailure, Unreached
from ringup.transport import Answer, Transport

TOKEN = "t0ken"
EVERY_FIELD = {field for fields in FIELDS.values() for field in fields}
ASKED = Asked(Host("n1"), TOKEN, tuple(FIELDS), {}, began_s=0.0)


def node_of(out: bytes, **rest: Any) -> Node:
    made = Answer("n1", out, **{"code": 0, **rest})
    return node_from(made, ASKED, heard_s=1e10)[0]


def framed(facts: bytes) -> bytes:
    head = f"\n\x1e{TOKEN} begin\n\n\x1e{TOKEN} ready {len(facts)}\n\x1e{TOKEN} facts\n".encode()
    return head + facts + f"\n\x1e{TOKEN} end\n".encode()


def told(parts: Mapping[str, Any]) -> Node:
    """The node that an answer with these parts describes."""
    return node_of(framed(json.dumps({"begin": 1.0, "end": 2.0, "failed": {}, "parts": parts}).encode()))


@pytest.fixture(scope="module")
def real() -> bytes:
    """What this machine answers."""
    request = {"python": sys.executable, "chdir": "/", "script": "", "names": ["localhost"], "env": {}}
    script = facts_script(TOKEN, request, parts=tuple(FIELDS))
    return subprocess.run(["sh", "-c", script], capture_output=True, stdin=subprocess.DEVNULL).stdout


def is_honest(node: Node) -> bool:
    """Whether every field that is unknown keeps its default, and none is missing without a reason."""
    defaults = Node("n1")
    return all(getattr(node, name) == getattr(defaults, name) for name in node.unknown)


# -- a broken node ---------------------------------------------------------------------------

BREAKAGES = {
    "raises": (
        "def questions(r, root):\n raise PermissionError(13, 'Permission denied')",
        "Permission denied",
    ),
    "syntax": ("def questions(:", "SyntaxError"),
    "hangs": ("import time\ndef questions(r, root):\n time.sleep(600)", "timed out after 0.2 s"),
    "dies": ("import os\ndef questions(r, root):\n os.kill(os.getpid(), 11)", "died without an answer"),
    "exits": ("import os\ndef questions(r, root):\n os._exit(0)", "died without an answer"),
    "floods": ("def questions(r, root):\n yield 'x', lambda: ['y' * 4000] * 400", "longer than"),
    "exit-call": ("import sys\ndef questions(r, root):\n sys.exit(3)", "SystemExit"),
    "closes-all": ("import os\ndef questions(r, root):\n os.closerange(0, 64)", "died without an answer"),
    "not-pairs": ("def questions(r, root):\n return 7", "TypeError"),
    "nothing-asked": ("def questions(r, root):\n return ()", "the node did not report it"),
}


def program(sources: Mapping[str, str], limit_s: float = 5.0) -> tuple[list[str], dict[str, str]]:
    """The program with these sources instead of its parts: its words and environment."""
    named = {f"ringup.agent.facts.{name}": text for name, text in sources.items()}
    ours = ("facts.main", "proc.command", "proc.files", "proc.process")
    named |= {f"ringup.agent.{name}": source(name) for name in ours}
    packed = pack(named, "ringup.agent.facts.main")
    request = {"parts": [*sources], "limits": dict.fromkeys(sources, limit_s), "root": ""}
    env = {"RU_PROGRAM": packed, "RU_TOKEN": TOKEN, "RU_REQUEST": repr(request)}
    return [sys.executable, "-E", "-S", "-c", _BOOT, "ringup-facts", sys.executable], env


def run_parts(sources: Mapping[str, str], limit_s: float = 5.0) -> bytes:
    """The program's answer with these sources instead of its parts."""
    words, env = program(sources, limit_s)
    done = subprocess.run(words, env=env, capture_output=True, timeout=60)
    return f"\n\x1e{TOKEN} begin\n".encode() + done.stdout


@pytest.mark.parametrize("how", BREAKAGES)
def test_when_every_probe_is_broken_every_field_is_unknown_with_the_reason(how: str) -> None:
    source, words = BREAKAGES[how]
    node = node_of(run_parts(dict.fromkeys(FIELDS, source), 0.2 if how == "hangs" else 5.0))
    assert node.unreached is None
    assert set(node.unknown) == EVERY_FIELD
    assert all(words in reason for reason in node.unknown.values())
    assert is_honest(node)


def test_the_program_and_its_parts_end_when_nobody_reads_the_answer(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    held = f"import time\ndef questions(r, root):\n with open({str(fifo)!r}, 'w'): time.sleep(900)"
    words, env = program({"system": held}, limit_s=900.0)
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as asked, fifo.open() as part:
        assert asked.stdout
        asked.stdout.close()
        assert part.read() == ""  # its end of file: the part has ended
        assert asked.wait(60) == 1


def test_a_broken_probe_leaves_the_others_alone() -> None:
    good = "def questions(r, root):\n yield 'hostname', lambda: 'n1'\n yield 'uid', lambda: 7\n"
    good += " yield 'ports', none\ndef none():\n raise OSError(2, 'none here')"
    node = node_of(run_parts({"system": good, "network": BREAKAGES["dies"][0]}))
    assert (node.hostname, node.uid) == ("n1", 7)
    assert "none here" in node.unknown["ports"]
    assert "died" in node.unknown["interfaces"]


@pytest.mark.parametrize("end", ["time.sleep(600)", "os.kill(os.getpid(), 11)", "[0] * (1 << 60)"])
def test_what_was_told_before_a_probe_broke_is_kept(end: str) -> None:
    source = f"import os, time\ndef questions(r, root):\n yield 'shm', space\n yield 'tmp', lambda: {end}\n"
    source += "def space():\n return {'path': '/dev/shm', 'total_bytes': 7, 'free_bytes': 7}"
    node = node_of(run_parts({"machine": source}, 0.3 if "sleep" in end else 5.0))
    assert node.shm.total_bytes == 7
    assert "tmp" in node.unknown and "shm" not in node.unknown


def test_data_that_holds_itself_is_unknown() -> None:
    source = "def questions(r, root):\n a = []\n a.append(a)\n yield 'routes', lambda: a"
    assert "RecursionError" in node_of(run_parts({"network": source})).unknown["routes"]


# -- lies ------------------------------------------------------------------------------------

LINK = {"name": "eth0", "index": 2, "kind": "physical", "is_up": True, "has_carrier": True, "mtu_bytes": 1500}


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("system", "hostname", 7),
        ("system", "cpu_count", -1),
        ("system", "cpu_count", "many"),
        ("system", "memory_bytes", 10**30),
        ("system", "limits", {"memlock_bytes": "a lot", "open_files": 1}),
        ("system", "limits", []),
        ("system", "ports", {"ephemeral_first": 0, "ephemeral_last": 70000}),
        ("system", "environment", {"NCCL_DEBUG": ["x"]}),
        ("network", "interfaces", [{**LINK, "kind": "warp-drive"}]),
        ("network", "interfaces", [{**LINK, "mtu_bytes": -5}]),
        ("network", "interfaces", [{**LINK, "addresses": [{"address": "10.0.0.999", "prefix_length": 24}]}]),
        ("network", "interfaces", [{**LINK, "addresses": [{"address": "10.0.0.9", "prefix_length": 99}]}]),
        ("network", "interfaces", "eth0"),
        ("names", "own_name", {"name": "n1", "addresses": ["; rm -rf /"]}),
        ("names", "reverse_lookup_s", -1.0),
        ("processes", "listeners", [{"address": "0.0.0.0", "port": 70000}]),
        ("processes", "leftovers", [{"pid": "1"}]),
        ("machine", "shm", {"path": "/dev/shm", "total_bytes": -1, "free_bytes": 0}),
        ("home", "nccl_conf", [["NCCL_DEBUG=INFO"], 7]),
        ("home", "nccl_conf", None),
        ("software", "interpreter", None),
        ("pci", "pci", [{"bus_id": "0000:18:00.0", "above": ["0000:17:00.0"] * 2000}]),
    ],
)
def test_a_value_that_cannot_be_is_garbage_and_not_a_fact(part: str, field: str, value: Any) -> None:
    node = told({part: {field: value}})
    assert node.unknown[field].startswith("garbage: ")
    assert is_honest(node)


@pytest.mark.parametrize(
    "gpus",
    [
        {},
        [],
        "two",
        None,
        {"proc": "2", "devices": 2},
        {"proc": None, "devices": -1, "driver": True},
        {"listed": 7},
    ],
)
def test_a_lie_about_gpus_is_no_count(gpus: Any) -> None:
    node = told({"software": {"gpus": gpus}})
    assert node.gpu_count == 0
    assert "gpu_count" in node.unknown


def test_control_characters_from_a_node_are_shown_and_not_obeyed() -> None:
    node = told({"system": {"hostname": "n1\x1b[2J\u202e", "?boot_id": "\x07no"}})
    assert node.hostname == "n1\\x1b[2J\\u202e"
    assert node.unknown["boot_id"] == "\\x07no"


def test_command_lines_of_a_node_are_shown_without_secrets() -> None:
    holder = {
        "pid": 7,
        "user": "ada",
        "age_s": 1.0,
        "command": "python train.py --url https://ada:tok3n@host",
    }
    node = told(
        {"processes": {"listeners": [{"address": "::", "port": 22, "user": "ada", "process": holder}]}}
    )
    assert node.listeners[0].process and "tok3n" not in repr(node)


def test_a_megabyte_of_text_is_cut() -> None:
    assert len(told({"system": {"hostname": "x" * (1 << 20)}}).hostname) <= 4096


def test_a_field_that_is_left_out_is_unknown() -> None:
    assert told({"system": {"hostname": "n1"}}).unknown["boot_id"] == "the node did not report it"


def test_fields_of_a_later_version_are_skipped() -> None:
    node = told({"network": {"interfaces": [{**LINK, "colour": "blue"}], "more": 1}})
    assert node.interfaces[0].name == "eth0"


def test_an_unlimited_limit_is_infinite() -> None:
    limits = {"memlock_bytes": None, "open_files": 1024, "processes": None}
    assert told({"system": {"limits": limits}}).limits.memlock_bytes == math.inf


@pytest.mark.parametrize("depth", [50, 100_000])
def test_a_bomb_of_brackets_is_garbage(depth: int) -> None:
    bomb = b"[" * depth + b"]" * depth
    for facts in (bomb, b'{"begin":1,"end":2,"parts":{"system":' + bomb + b"}}"):
        node = node_of(framed(facts))
        assert node.unknown["hostname"].startswith("garbage: ")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_to_an_answer_breaks_its_reader(real: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(real)))
    end = data.draw(st.integers(start, min(len(real), start + 300)))
    damaged = real[:start] + data.draw(st.binary(max_size=40)) + real[end:]
    node = node_of(damaged)
    assert is_honest(node)
    if node.unreached is None:
        for name in EVERY_FIELD - set(node.unknown):
            assert type(getattr(node, name)) is type(getattr(Node("n1"), name)) or name == "gpu_count"


# -- no answer -------------------------------------------------------------------------------


def unreached(out: bytes, kind: ReachFailure | None = None, **rest: Any) -> Unreached:
    error = Unreached(kind, "ssh's own words") if kind else None
    node = node_of(out, error=error, **rest)
    assert node.unreached is not None
    assert set(node.unknown) >= EVERY_FIELD
    return node.unreached


def test_a_login_that_is_no_shell_is_told_in_its_own_words() -> None:
    found = unreached(b"This account is currently not available.\n", code=1)
    assert (found.kind, found.words) == (
        "no-answer",
        "it did not answer with facts but with: This account is currently not available.",
    )


def test_binary_instead_of_facts_is_no_answer() -> None:
    assert unreached(bytes(range(256)) * 50).kind == "no-answer"
    assert unreached(b"").words.endswith("nothing at all")


def test_what_reach_says_of_a_failure_is_kept() -> None:
    assert unreached(b"", "ssh-key-refused") == Unreached("ssh-key-refused", "ssh's own words")


def test_an_announced_answer_that_never_came_is_a_lost_long_answer() -> None:
    out = framed(b"{}").partition(b"facts\n")[0][:-6]
    found = unreached(out, "no-answer")
    assert found.kind == "ssh-long-answer-lost"
    assert "2 bytes" in found.words


def test_noise_of_start_up_files_is_kept_and_does_no_harm(real: bytes) -> None:
    node = node_of(b"Welcome to node1!\n\x1b[31mquota 99%\n" + real)
    assert node.shell_noise == "Welcome to node1! / \\x1b[31mquota 99%"
    assert dict(node.unknown) == {}


# -- clocks ----------------------------------------------------------------------------------


def test_a_clock_that_is_right_is_within_its_error() -> None:
    clock = clock_between(100.0, 100.3, 100.4, 100.6)
    assert clock is not None and abs(clock.offset_s) <= clock.error_s


@pytest.mark.parametrize("times", [(None, 1.0), ("x", 2), (1e300, 1e300), (True, []), (10**400, 0)])
def test_times_that_cannot_be_are_no_clock(times: tuple[Any, Any]) -> None:
    node = node_of(framed(json.dumps({"begin": times[0], "end": times[1], "parts": {}}).encode()))
    assert "clock" in node.unknown


def test_a_node_that_ended_before_it_began_has_no_clock() -> None:
    assert clock_between(100.0, 200.0, 300.0, 101.0) is None


# -- all nodes together ----------------------------------------------------------------------


class Canned:
    """A `Transport` whose nodes have answered already; what a test gives it is what they said."""

    def __init__(self, said: Mapping[str, Callable[[str], Answer]]) -> None:
        self.hosts = tuple(Host(name) for name in said)
        self.interpreters: dict[str, str] = {}
        self.said = said

    def ask(self, scripts: Mapping[str, str], *, deadline_s: float, on_answer: Any = None, **_: Any) -> Any:
        found = {name: self.said[name](script) for name, script in scripts.items()}
        for made in found.values():
            on_answer(made)
        return found

    def noise(self, node: str) -> str:
        return ""


def runs(name: str) -> Callable[[str], Answer]:
    def answer(script: str) -> Answer:
        done = subprocess.run(["sh", "-c", script], capture_output=True, stdin=subprocess.DEVNULL)
        return Answer(name, done.stdout, done.stderr, done.returncode, took_s=0.1)

    return answer


def test_one_bad_node_is_a_result_and_the_others_are_known() -> None:
    lost = Unreached("ssh-timeout", "connect to host n2 port 22: timed out")
    reach = Canned(
        {
            "n1": runs("n1"),
            "n2": lambda script: Answer("n2", error=lost),
            "n3": lambda script: Answer("n3", b"\xff\xfe binary", code=0),
        }
    )
    nodes = collectors.facts(reach, Job(), 5.0)  # type: ignore[arg-type]
    assert [n.name for n in nodes] == ["n1", "n2", "n3"]
    assert nodes[0].unreached is None and nodes[0].hostname
    assert nodes[1].unreached == lost
    assert nodes[2].unreached is not None and nodes[2].unreached.kind == "no-answer"
    assert reach.interpreters.keys() == {"n1"}


def test_names_learnt_in_the_second_round_join_the_first() -> None:
    from ringup.model import Resolution

    node = Node("n1", hostname="n1", peer_names=(Resolution("10.0.0.2"),), unknown={"reverse_lookup_s": "?"})
    talk = pairs.Round(Transport([]), [node], Job())
    client = talk.clients["n1"] = pairs.PairClient(node, "ab" * 16)
    client.names = (Resolution("n1"), Resolution("gpu2", ("10.0.0.2",)), Resolution("10.0.0.2"))
    client.reverse_s = (0.1, 2.5)
    made = collectors.with_names(node, talk)
    assert [r.name for r in made.peer_names] == ["10.0.0.2", "gpu2"]
    assert (made.reverse_lookup_s, dict(made.unknown)) == (2.5, {})


def test_a_played_node_shows_the_one_address_it_plays_on(real: bytes) -> None:
    asked = dataclasses.replace(ASKED, host=Host("local1", local=True, address="127.0.0.3"))
    node, python = node_from(Answer("local1", real, b"", 0), asked, heard_s=1e10)
    assert [i.name for i in node.interfaces] == ["lo"]
    assert [a.address for a in node.interfaces[0].usable_addresses] == ["127.0.0.3"]
    assert python == sys.executable


def test_a_clock_far_off_is_told_with_its_error() -> None:
    clock = clock_between(1000.0, 1090.5, 1090.6, 1001.0)
    assert clock == Clock(offset_s=90.05, error_s=0.45)
