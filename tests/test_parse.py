"""Recorded outputs of the programs that `parse` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup.parse import frames, gpus, interfaces, nccl

RECORDED = Path(__file__).parent / "recorded"


def recorded(path: Path) -> str:
    """A recording without the line that says where it is from."""
    head, _, body = path.read_text().partition("\n")
    assert head.startswith("# from: "), path
    return body


def interfaces_in_short(text: str) -> list[list[Any]]:
    """Name, kind, up, carrier, MTU, master and addresses: one readable line each."""
    return [
        [i.name, i.kind, i.is_up, i.has_carrier, i.mtu_bytes, i.master]
        + [f"{a.address}/{a.prefix_length} {a.scope}" for a in i.addresses]
        for i in interfaces.parse_addresses(text)[0]
    ]


@pytest.mark.parametrize("path", sorted(RECORDED.glob("ip/*.json")), ids=lambda p: p.stem)
def test_recorded_ip_output_gives_the_facts_beside_it(path: Path) -> None:
    assert interfaces_in_short(recorded(path.with_suffix(".txt"))) == json.loads(path.read_text())


def test_slices_of_a_gpu_are_not_counted_as_gpus() -> None:
    assert len(gpus.gpu_uuids(recorded(RECORDED / "nvidia" / "mig.txt"))) == 2


def test_an_infiniband_link_is_known_by_its_type_not_its_name() -> None:
    text = (
        "4: fast0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 2044 qdisc mq state UP qlen 256\n"
        "    link/infiniband 80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:29:3e:bb brd 00:ff\n"
        "    inet 10.0.0.5/24 scope global fast0\n"
    )
    assert interfaces.parse_addresses(text)[0][0].kind == "infiniband"


def test_a_link_without_carrier_is_up_and_has_none() -> None:
    text = (
        "3: eno2: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 state DOWN\n    link/ether 18:03:73:ff:b4:5b\n"
        "    inet 10.0.0.5/24 scope global eno2\n"
    )
    found = interfaces.parse_addresses(text)[0][0]
    assert found.is_up and not found.has_carrier


def test_nccl_ignores_a_commented_line_and_keeps_a_blank_in_a_name() -> None:
    lines = ["#NCCL_DEBUG=INFO", "NCCL_DEBUG =WARN", "NCCL_NET=Socket # not a comment"]
    assert nccl.parse_nccl_conf(lines) == {"NCCL_DEBUG ": "WARN", "NCCL_NET": "Socket # not a comment"}


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("3,1", 2),
        ("0,4,1", 1),
        ("-1,0", 0),
        ("NoDevFiles", 0),
        ("1,1", 0),
        ("0, 1", 2),
    ],
)
def test_cuda_visible_devices_counts_as_the_runtime_reads_it(value: str | None, count: int) -> None:
    assert gpus.visible_count(4, value) == count


@given(st.binary(max_size=400))
def test_no_output_breaks_a_parser(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    interfaces.parse_addresses(text)
    gpus.gpu_uuids(text)
    gpus.visible_count(8, text)
    nccl.parse_nccl_conf(text.splitlines())
    frames.split_frames(data, "t")
    frames.split_frames(b"\x1et begin\n\x1et " + data + b"\n\x1et end\n", "t")


def test_a_mark_without_the_token_is_not_a_mark() -> None:
    found = frames.split_frames(b"\n\x1eother facts\n{}\n\x1et begin\n\n\x1et facts\n[]\n\x1et end\n", "t")
    assert found.facts == b"[]" and b"other" in found.noise
