"""Which network plugin NCCL loads, from files and from its own words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringup.model import NcclAnswer, Node
from ringup.nccl import plugins, selection
from ringup.nccl.selection import Known
from tests import clusters as c

HPCX = "/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
OFI = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"


def node(*paths: str, said: str = "") -> Node:
    answer = NcclAnswer("/l", "", "2.28.9", 0, "enp99s0", "10.0.0.10", plugins=(said,) if said else ())
    return replace(c.plain(0), nccl_plugins=paths, nccl_answer=answer)


@pytest.mark.parametrize(
    ("paths", "value", "path"),
    [
        ((), "", ""),
        ((HPCX,), "", HPCX),
        ((OFI,), "", ""),
        ((OFI,), "ofi", OFI),
        ((OFI,), OFI, OFI),
        ((OFI,), "libnccl-net-ofi.so", OFI),
        ((HPCX, OFI), "none", ""),
        ((HPCX, OFI), "aws,ofi", OFI),
        ((HPCX,), "ofi", ""),
    ],
)
def test_a_plugin_is_found_by_the_name_that_is_asked_for(
    paths: tuple[str, ...], value: str, path: str
) -> None:
    assert plugins.loads(node(*paths), {"NCCL_NET_PLUGIN": value}) == path


def test_nccls_own_word_counts_for_more_than_a_file() -> None:
    none = "NET/Plugin : dlerror=libnccl-net.so: cannot open: No plugin found (libnccl-net.so)"
    assert plugins.loads(node(HPCX, said=none), {}) == ""
    assert plugins.loads(node(OFI, said=none), {"NCCL_NET_PLUGIN": "ofi"}) == OFI
    loaded = "NET/Plugin: Loaded net plugin Libfabric (v9)"
    assert plugins.loads(node(said=loaded), {})


def test_what_is_not_known_is_none() -> None:
    unknown = replace(c.plain(0), unknown={"nccl_plugins": "timed out"})
    assert plugins.loads(unknown, {}) is None
    assert plugins.loads(Node("pasted"), {}) is None


def test_a_plugin_that_loads_makes_the_prediction_low_and_one_that_is_not_there_is_named() -> None:
    made = selection.predict(Known(node(HPCX), (2, 28, 9)), {})
    assert made.confidence == "low" and any(HPCX in m for m in made.missing)
    made = selection.predict(Known(node(), (2, 28, 9)), {"NCCL_NET_PLUGIN": "ofi"})
    assert made.confidence == "high" and any("no such plugin is found" in b for b in made.because)


def test_what_the_loader_finds_on_the_node_counts_for_more_than_files_beside_its_path() -> None:
    found = replace(node(OFI), nccl_answer=NcclAnswer("/l", "", "2.28.9", net_plugin=HPCX))
    assert plugins.loads(found, {}) == HPCX
    none = replace(node(HPCX), nccl_answer=NcclAnswer("/l", "", "2.28.9", net_plugin=""))
    assert plugins.loads(none, {}) == ""
    assert plugins.loads(none, {"NCCL_NET_PLUGIN": HPCX}) == HPCX, "it was not asked that"


def test_a_plugin_changes_nothing_where_one_of_nccls_own_networks_is_asked_for() -> None:
    made = selection.predict(Known(node(HPCX), (2, 28, 9)), {"NCCL_NET": "Socket"})
    assert made.network == "Socket" and made.confidence == "high"
