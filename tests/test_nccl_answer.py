"""NCCL asked on a node before the job: the real library, and libraries that fail, hang or lie."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench import oracle

from ringup.model import Job, NcclAnswer, Node
from ringup.nccl import interface_choice, selection
from ringup.nccl.selection import Known
from ringup.network.predictions import Selection
from ringup.parse.nccl import parse_nccl_answer
from tests import clusters as c
from tests.guards import ROOM
from tests.lab import TWO_CARDS
from tests.test_facts import ask, request_of
from tests.test_nccl_oracle import CACHE, fetched

SAID = (
    "ringup-nccl library /opt/site/nvidia/nccl/lib/libnccl.so.2",
    "ringup-nccl version 22809",
    "n1:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eth0",
    "n1:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>",
    "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.",
    "ringup-nccl result 0",
)


def test_what_nccl_said_is_read() -> None:
    told = parse_nccl_answer(SAID, {"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_COMM_ID": ""})
    assert (told.version, told.interface, told.address) == ("2.28.9", "eth0", "10.0.0.5")
    assert told.environment == {"NCCL_SOCKET_IFNAME": "=eth0"} == told.asked_with
    assert told.plugins == ("NET/Plugin: Could not find: libnccl-net.so.",) and told.errors == ()


def test_an_error_is_kept_in_nccls_own_words() -> None:
    said = [*SAID[:2], "n1:7:7 [0] bootstrap.cc:48 NCCL WARN Bootstrap : no socket interface found"]
    told = parse_nccl_answer([*said, "ringup-nccl result 5"], {})
    assert (told.interface, told.result, told.errors) == ("", 5, ("Bootstrap : no socket interface found",))


def test_an_ipv6_address_is_told_without_its_scope() -> None:
    said = [*SAID[:2], "n1:7:7 [0] NCCL INFO Bootstrap : Using ib0:fe80::1%ib0<0>", SAID[-1]]
    assert parse_nccl_answer(said, {}).address == "fe80::1"


@pytest.mark.parametrize("said", [(), SAID[:1], SAID[:-1], ("ringup-nccl result x",), ("\x00" * 50,)])
def test_half_an_answer_is_none(said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="did not answer"):
        parse_nccl_answer(said, {})


# The answer and the prediction.


def asked(node: Node, answer: NcclAnswer) -> Node:
    return replace(node, nccl_answer=answer)


TOLD = NcclAnswer("/l", "", "2.28.9", 0, "enp99s0", "10.0.0.10")


def test_an_answer_that_agrees_is_said_and_changes_nothing() -> None:
    alone = selection.predict(Known(c.plain(0), (2, 28, 9)), {})
    with_it = selection.predict(Known(asked(c.plain(0), TOLD), (2, 28, 9)), {})
    assert with_it.bootstrap == alone.bootstrap and with_it.confidence == alone.confidence
    assert any("on this node reports the same" in b for b in with_it.because)


def test_a_failure_that_both_see_is_told_in_nccls_words() -> None:
    env = {"NCCL_SOCKET_IFNAME": "=eth7"}
    told = NcclAnswer(
        "/l", "", "2.28.9", 5, asked_with=env, errors=("Bootstrap : no socket interface found",)
    )
    made = selection.predict(Known(asked(c.plain(0), told), (2, 28, 9)), env)
    assert (made.bootstrap, made.network, made.confidence) == (None, "", "high")
    assert any("reports Bootstrap : no socket interface found" in b for b in made.because)


def test_an_answer_that_disagrees_wins_and_both_are_shown() -> None:
    made = selection.predict(Known(asked(c.plain(0), replace(TOLD, interface="ib7")), (2, 28, 9)), {})
    assert made.bootstrap is not None and made.bootstrap.interface == "ib7"
    assert any("ib7" in b for b in made.because) and any("enp99s0" in d for d in made.doubts)
    assert Selection(asked(c.plain(0), replace(TOLD, interface="ib7")), Job(), {}).bootstrap is not None


@pytest.mark.parametrize(
    ("env", "counts"),
    [
        ({}, True),
        ({"NCCL_DEBUG": "INFO"}, True),
        ({"NCCL_SOCKET_IFNAME": "=enp99s0"}, False),
        ({"NCCL_COMM_ID": "10.0.0.1:1"}, False),
    ],
)
def test_an_answer_counts_only_for_the_settings_it_was_given_under(env: dict[str, str], counts: bool) -> None:
    assert bool(interface_choice.asked(asked(c.plain(0), TOLD), env)) is counts


def test_pasted_output_is_not_judged_by_what_the_node_said() -> None:
    known = Known(asked(c.plain(0), replace(TOLD, interface="ib7")), (2, 28, 9), asked_counts=False)
    made = selection.predict(known, {})
    assert made.bootstrap is not None and made.bootstrap.interface == "enp99s0"


# Asking.

STEERING = interface_choice.STEERING
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable


def answer_of(site: Path, env: dict[str, str] | None = None, **request: Any) -> Node:
    """This machine, asked with a libnccl below `site`; no torch is installed for this interpreter."""
    wanted = request_of(**{"python": PYTHON, "backend": "nccl", "nccl_steering": STEERING, **request})
    scale = request.pop("scale", ROOM)
    return ask(wanted, parts=("software",), env={"PYTHONPATH": str(site), **(env or {})}, scale=scale)


def test_without_a_gpu_nobody_is_asked(tmp_path: Path) -> None:
    told = ask(request_of(root=str(empty(tmp_path))), parts=("software",)).nccl_answer
    assert (told.library, told.not_asked) == ("", "no GPU on this node")


def test_a_job_over_gloo_asks_nobody(tmp_path: Path) -> None:
    told = answer_of(tmp_path, backend="gloo").nccl_answer
    assert told.not_asked == "the job uses gloo"


def test_where_no_library_is_there_it_is_said(tmp_path: Path) -> None:
    told = answer_of(tmp_path).nccl_answer
    assert "no libnccl" in told.not_asked or "without CUDA" in told.not_asked


def empty(root: Path) -> Path:
    (root / "dev").mkdir(parents=True)
    (root / "proc").mkdir()
    return root


FAKE = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int ncclGetVersion(int *v) { *v = %(version)s; return 0; }
int ncclGetUniqueId(void *id) { %(body)s }
"""
USING = 'printf("n:1:1 [0] NCCL INFO Bootstrap: Using %s:10.9.8.7<0>\\n", getenv("NCCL_SOCKET_IFNAME"));'
CC = shutil.which("cc") or shutil.which("gcc")
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler")


def fake(place: Path, body: str, version: str = "22707") -> Path:
    """A libnccl with this ncclGetUniqueId in `place`; the site directory it is in."""
    lib = place / "nvidia" / "nccl" / "lib"
    lib.mkdir(parents=True)
    source = place / "nccl.c"
    source.write_text(FAKE % {"version": version, "body": body})
    subprocess.run([str(CC), "-shared", "-fPIC", "-o", str(lib / "libnccl.so.2"), str(source)], check=True)
    return place


@needs_cc
@pytest.mark.slow
def test_the_jobs_env_reaches_nccl_and_its_debug_file_does_not_take_the_answer(tmp_path: Path) -> None:
    site = fake(tmp_path, USING + " return 0;")
    env = {"NCCL_DEBUG_FILE": str(tmp_path / "log"), "NCCL_SOCKET_IFNAME": "shell0"}
    told = answer_of(site, env, nccl_env={"NCCL_SOCKET_IFNAME": "job0"}).nccl_answer
    assert (told.interface, told.version) == ("job0", "2.27.7")
    assert told.asked_with == {"NCCL_SOCKET_IFNAME": "job0"} and not (tmp_path / "log").exists()


@needs_cc
@pytest.mark.slow
def test_what_is_preloaded_or_on_the_library_path_is_asked_before_the_wheel(tmp_path: Path) -> None:
    wheel = fake(tmp_path / "wheel", "return 0;", "22005")
    other = fake(tmp_path / "other", USING + "return 0;", "22104") / "nvidia/nccl/lib"
    env = {"NCCL_SOCKET_IFNAME": "x"}
    own = answer_of(wheel, env).nccl_answer
    assert (own.version, own.library) == ("2.20.5", f"{wheel}/nvidia/nccl/lib/libnccl.so.2")
    node = answer_of(wheel, {**env, "LD_LIBRARY_PATH": str(other)})
    assert node.nccl_answer.version == node.interpreter.nccl == "2.21.4"
    assert answer_of(wheel, {**env, "LD_PRELOAD": f"{other}/libnccl.so.2"}).nccl_answer.version == "2.21.4"


def plugin(place: Path, name: str, body: str = "") -> str:
    """A network plugin that runs `body` when it is loaded; its path."""
    place.mkdir(exist_ok=True)
    source = place / "plugin.c"
    source.write_text(f"#include <unistd.h>\n__attribute__((constructor)) void begin(void) {{ {body} }}\n")
    subprocess.run([str(CC), "-shared", "-fPIC", "-o", str(place / name), str(source)], check=True)
    return str(place / name)


@needs_cc
@pytest.mark.slow
def test_the_network_plugin_is_the_one_the_loader_finds(tmp_path: Path) -> None:
    site, place = fake(tmp_path / "site", "return 0;"), tmp_path / "plugins"
    usual, named = plugin(place, "libnccl-net.so"), plugin(place, "libnccl-net-ofi.so")
    env = {"LD_LIBRARY_PATH": str(place)}
    assert answer_of(site).nccl_answer.net_plugin == ""
    assert answer_of(site, env).nccl_answer.net_plugin == usual
    assert answer_of(site, env, nccl_env={"NCCL_NET_PLUGIN": "ofi"}).nccl_answer.net_plugin == named
    assert answer_of(site, env, nccl_env={"NCCL_NET_PLUGIN": "none"}).nccl_answer.net_plugin == ""


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize("body", ["_exit(1);", "for (;;) pause();"])
def test_a_plugin_that_dies_or_hangs_when_loaded_costs_no_more_than_its_own_name(
    tmp_path: Path, body: str
) -> None:
    site = fake(tmp_path / "site", USING + "return 0;")
    plugin(tmp_path / "plugins", "libnccl-net.so", body)
    env = {"LD_LIBRARY_PATH": str(tmp_path / "plugins"), "NCCL_SOCKET_IFNAME": "x0"}
    told = answer_of(site, env).nccl_answer
    assert (told.interface, told.net_plugin) == ("x0", None)


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "version"), [("--disable-new-dtags", "2.20.5"), ("--enable-new-dtags", "2.21.4")]
)
def test_a_library_path_reaches_torch_only_where_its_own_path_is_a_runpath(
    tmp_path: Path, tag: str, version: str
) -> None:
    own = fake(tmp_path / "site", "return 0;", "22005")
    other = fake(tmp_path / "other", "return 0;", "22104") / "nvidia/nccl/lib"
    torch = own / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("raise SystemExit('torch is never imported')\n")
    (torch / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda = '12.8'\n")
    (own / "user.c").write_text("int ncclGetVersion(int *); int user(int *v) { return ncclGetVersion(v); }\n")
    words = [str(CC), "-shared", "-fPIC", str(own / "user.c"), "-o", str(torch / "lib/libtorch_cuda.so")]
    # The name it needs is the soname, which the fake has none of: the file's.
    library = own / "nvidia/nccl/lib"
    (library / "libnccl.so").symlink_to("libnccl.so.2")
    link = ["-Wl,--no-as-needed", f"-Wl,{tag}", "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib", f"-L{library}"]
    subprocess.run([*words, *link, "-l:libnccl.so.2"], check=True)
    assert answer_of(own, {"LD_LIBRARY_PATH": str(other)}).nccl_answer.version == version


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("abort();", "signal 6"),
        ("*(volatile int *)0 = 1; return 0;", "signal 11"),
        ("exit(3);", "exit status 3"),
        ('for (;;) puts("x");', "signal 9|no answer within|timed out"),
        ("_exit(0);", "did not answer"),
    ],
)
def test_a_library_that_dies_or_talks_without_end_leaves_the_answer_unknown_alone(
    tmp_path: Path, body: str, words: str
) -> None:
    node = answer_of(fake(tmp_path, body), scale=1.0 if "puts" in body else ROOM)
    assert set(node.unknown) - {"clock"} == {"nccl_answer"} and node.interpreter.path
    assert re.search(words, node.unknown["nccl_answer"])


@needs_cc
@pytest.mark.slow
def test_a_library_that_hangs_is_ended_in_time_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    body = f'FILE *f = fopen("{mark}", "w"); fprintf(f, "%d", getpid()); fclose(f); for (;;) pause();'
    node = answer_of(fake(tmp_path, body), scale=1.0)
    assert "gave no answer within" in node.unknown["nccl_answer"]
    assert "version 22707" in node.unknown["nccl_answer"], "what it said before is told"
    assert not Path(f"/proc/{mark.read_text()}").exists()


# The real library.


def real_site() -> Path:
    """A directory with the real libnccl as a wheel installs it; skips where it cannot be had."""
    reason = fetched(("2.20.5",))
    if reason:
        pytest.skip(reason)
    return oracle.libraries(CACHE)["2.20.5"].parents[3]


@pytest.mark.lab
@pytest.mark.slow
def test_the_real_library_answers_as_predicted_and_names_its_failure() -> None:
    site = real_site()
    node = ask(
        request_of(python=PYTHON, backend="nccl"),
        parts=("software", "network"),
        env={"PYTHONPATH": str(site)},
    )
    told, one = node.nccl_answer, Selection(node, Job(), {})
    ours = interface_choice.first(node, one.environment, one.version)
    assert ours is not None and (told.interface, told.address) == (ours.interface, ours.address)
    assert told.version == "2.20.5" and told.result == 0 and told.plugins
    none = answer_of(site, nccl_env={"NCCL_SOCKET_IFNAME": "eth7x"}).nccl_answer
    assert (none.interface, none.result) == ("", 3)
    assert none.errors == ("Bootstrap : no socket interface found",)
    assert none.environment["NCCL_SOCKET_IFNAME"] == "eth7x"
    assert not [p for p in Path("/dev/shm").glob("nccl-*") if p.stat().st_uid == os.getuid()]


# In `check`, on hosts with networks of their own.


@pytest.fixture
def site() -> Iterator[Path]:
    """The real library where hosts of a lab see it: /root and /tmp are their own."""
    library = real_site() / "nvidia/nccl/lib/libnccl.so.2"
    with tempfile.TemporaryDirectory(prefix="ringup-nccl-", dir="/var/tmp") as folder:
        place = Path(folder) / "nvidia/nccl/lib"
        place.mkdir(parents=True)
        try:
            os.link(library, place / library.name)
        except OSError:  # another file system
            shutil.copyfile(library, place / library.name)
        yield Path(folder)


def checked(lab: Any, site: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a check on node0 of two hosts with two cards each, NCCL asked on both."""
    hosts = lab(hosts=2, nics=TWO_CARDS)
    words = [sys.executable, "-m", "ringup", "check", "-H", "node0,node1", "--json", "--backend", "nccl"]
    words += ["--python", PYTHON, "--setup", f"export PYTHONPATH={site}", *options]
    done = hosts.run("node0", words, timeout_s=300)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.lab
@pytest.mark.slow
def test_check_asks_the_real_library_on_every_host_and_says_so(lab: Any, site: Path) -> None:
    _, answer = checked(lab, site)
    for node, made in zip(answer["nodes"], answer["predictions"], strict=True):
        told = node["nccl_answer"]
        assert told["library"].endswith("libnccl.so.2") and told["version"] == "2.20.5"
        assert node["interpreter"]["nccl"] == "2.20.5"
        alone = made["alone"] or made
        assert alone["bootstrap"] == {"interface": told["interface"], "address": told["address"]}
        assert any("on this node reports the same" in b for b in alone["because"])
    assert not [f for f in answer["findings"] if f["rule"] == "nccl-answer-differs"]


@pytest.mark.lab
@pytest.mark.slow
def test_what_nccl_itself_refuses_is_the_finding_that_predicts_it(lab: Any, site: Path) -> None:
    code, answer = checked(lab, site, "--env", "NCCL_SOCKET_IFNAME=eth7")
    found = [f for f in answer["findings"] if f["rule"] == "interface-name-missing"]
    assert code == 1 and {f["node"] for f in found} == {"node0", "node1"}
    assert answer["nodes"][0]["nccl_answer"]["errors"] == ["Bootstrap : no socket interface found"]
