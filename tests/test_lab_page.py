"""The page about the lab says what the lab can do; needs no lab."""

from __future__ import annotations

from pathlib import Path

from tests.lab.faults import FAULTS
from tests.lab.wiring import TWO_CARDS, Nic, fabric_batch, host_batch, plug

PAGE = Path(__file__).parents[1] / "docs" / "how" / "lab.md"


def test_the_page_lists_every_fault_in_its_own_words() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 3]
    listed = [row for row in rows if row.split("`")[1] in FAULTS]
    assert listed == [f"| `{name}` | {FAULTS[name].summary} |" for name in sorted(FAULTS)]


def test_addresses_count_up_from_the_first_host() -> None:
    ports = plug(["a", "b"], TWO_CARDS)
    assert [p.address for p in ports["b"]] == ["10.0.0.11", "10.1.0.11"]
    assert [p.ifindex for p in ports["b"]] == [10, 20]


def test_more_hosts_than_addresses_is_refused() -> None:
    try:
        plug(["a", "b", "c"], [Nic(address="10.0.0.252/24")])
    except ValueError as exc:
        assert str(exc) == "3 hosts do not fit from 10.0.0.252/24 on"
    else:
        raise AssertionError("the gateway's address was given to a host")


def test_a_31_bit_network_is_a_cable_with_a_router_at_its_end() -> None:
    ports = plug(["a", "b"], [Nic("p0", "10.9.0.0/31")])
    assert not [line for line in fabric_batch(ports) if "bridge" in line]
    assert "route add 10.9.0.2/32 via 10.9.0.1" in host_batch(ports["a"], ports)
