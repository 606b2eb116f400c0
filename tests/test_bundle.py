"""Saving what was collected, and reading it again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from pathlib import Path

import pytest

from ringup import bundle
from ringup.errors import BundleError
from ringup.model import (
    Address,
    Cluster,
    Host,
    Interface,
    Job,
    Limits,
    Link,
    Listener,
    Node,
    Process,
    Unreached,
    unreached_node,
)


def cluster() -> Cluster:
    """A value in every kind of field that JSON could lose."""
    process = Process(7, "me", 3.5, "python3 train.py", "run-1", "orphan: its parent is gone")
    node = Node(
        "n1",
        host=Host("n1", user="me", slots=8),
        interfaces=(
            Interface("eth0", 2, "physical", True, True, 9000, 25.0, addresses=(Address("10.0.0.1", 24),)),
        ),
        listeners=(Listener("0.0.0.0", 29500, "me", process), Listener("::", 22, "root")),
        limits=Limits(math.inf, 1024),
        environment={"NCCL_DEBUG": "ü\n"},
        unknown={"own_name": "no answer within 5.5 s"},
    )
    lost = unreached_node(Host("n2"), Unreached("ssh-timeout", "timed out"))
    link = Link("n1", "n2", "eth0", "eth1", "10.0.0.2", 4711, False, "timed out")
    return Cluster(
        (node, lost), (link,), Job("train.py", ("--lr", "1e-3"), env={"A": "1"}), "ring", {"n2": "lost"}
    )


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    bundle.save(cluster(), path)
    assert bundle.load(path) == cluster()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json"]


def test_a_secret_in_the_jobs_environment_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    bundle.save(Cluster((), job=Job(env={"HF_TOKEN": "hf_abc", "wandb_api_key": "k1"})), path)
    assert "hf_abc" not in path.read_text() and "k1" not in path.read_text()


def test_a_name_that_is_no_utf8_can_be_saved() -> None:
    named = dataclasses.replace(cluster(), job=Job("tr\udce4in.py"))
    assert bundle.from_json(bundle.to_json(named)).job.script == "tr\\udce4in.py"


def test_a_field_of_a_later_version_is_skipped_and_a_missing_one_is_unknown() -> None:
    whole = json.loads(bundle.to_json(cluster()))
    whole["cluster"]["nodes"][0]["colour"] = "blue"
    whole["cluster"]["links"][0]["colour"] = "blue"
    del whole["cluster"]["nodes"][0]["kernel"]
    first, *others = cluster().nodes
    first = dataclasses.replace(
        first, unknown={**first.unknown, "kernel": "an earlier version did not collect it"}
    )
    expected = dataclasses.replace(cluster(), nodes=(first, *others))
    assert bundle.from_json(json.dumps(whole).encode()) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\xff\xfe\x00",
        b"[]",
        b"{}",
        b'{"cluster": {}}',
        b'{"schema": 1, "cluster": null}',
        b'{"schema": 1, "cluster": {}}',
        b'{"schema": 1, "cluster": {"nodes": 7}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n1", "limits": 7}]}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": 7}]}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n", "interfaces": [{"kind": "warp"}]}]}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n", "gpu_count": 4611686018427387904}]}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n", "gpu_count": -1}]}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n"}], "job": {"nproc": 4611686018427387904}}}',
        b'{"schema": 1, "cluster": {"nodes": [{"name": "n"}], "job": {"backend": "carrier pigeon"}}}',
        b"[" * 100_000,
        b'{"schema": 1, "cluster": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_anything_else_is_refused_in_two_lines(data: bytes) -> None:
    with pytest.raises(BundleError) as caught:
        bundle.from_json(data)
    assert "ringup check --save" in caught.value.hint


def test_a_refused_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text("")
    with pytest.raises(BundleError, match=r"facts\.json: not a saved collection"):
        bundle.load(tmp_path / "facts.json")


@pytest.mark.parametrize("cluster", ["{}", '{"nodes": []}'])
def test_a_file_without_nodes_is_refused(cluster: str) -> None:
    with pytest.raises(BundleError, match="it has no nodes"):
        bundle.from_json(f'{{"schema": 1, "cluster": {cluster}}}'.encode())


def test_a_later_schema_names_the_version_that_wrote_it() -> None:
    with pytest.raises(BundleError, match=r"schema 2, made by ringup 9\.9"):
        bundle.from_json(b'{"schema": 2, "ringup": "9.9", "cluster": {}}')


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No such file"):
        bundle.load(tmp_path / "none.json")
    with pytest.raises(BundleError, match="Is a directory"):
        bundle.load(tmp_path)


def test_a_place_that_cannot_be_written_is_said_so_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be written"):
        bundle.save(cluster(), tmp_path / "none" / "c.json")
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="cannot be written"):
        bundle.save(cluster(), tmp_path / "file" / "c.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(BundleError, match="cannot be written"):
        bundle.save(cluster(), tmp_path / "taken")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]


def test_what_is_no_file_is_written_into_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # as /dev/stdout may be; root could put a file in the place of /dev/null
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    bundle.save(cluster(), pipe)
    assert os.read(reader, 1 << 16).startswith(b"{") and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "newest").symlink_to("facts.json")
    bundle.save(cluster(), tmp_path / "newest")
    assert (tmp_path / "newest").is_symlink() and bundle.load(tmp_path / "facts.json") == cluster()
