"""
Write the recorded collections and logs that the commands in docs/ read, below docs/examples.

    python tools/examples.py

They come from the builders of the tests and benchmarks, so they name no real machine: collections in
the format of `ringup check --save`, pasted output, logs in the words of NCCL's source.  The folders in
docs/examples/runs are recorded: two hosts of the lab ran the scripts beside them (docs/how/lab.md).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.nccl_lines import Plan  # noqa: E402
from bench.nccl_logs import generate  # noqa: E402
from tests import clusters, platforms  # noqa: E402

from ringup import bundle  # noqa: E402
from ringup.model import Cluster, Space  # noqa: E402

EXAMPLES = ROOT / "docs" / "examples"


def platform(name: str) -> Cluster:
    """Two nodes of a recorded platform."""
    with tempfile.TemporaryDirectory() as folder:
        return platforms.cluster(name, Path(folder))


def two_networks() -> Cluster:
    """node0 has a first card, em1, that node1 cannot reach, and its own name resolves to it."""
    return clusters.article_002()


def one_network() -> Cluster:
    """The same nodes before node0 had em1."""
    other = replace(clusters.article_002().nodes[1], peer_names=())
    fast = clusters.interface("enp99s0", "90.91.33.64/24", speed_gbit_s=10.0)
    return clusters.cluster(clusters.node("node0", fast), other)


def twelve() -> Cluster:
    """Twelve nodes: four have another torch, three a small /dev/shm, one path fails in one direction."""
    special: dict[int, dict[str, Any]] = {
        k: {"interpreter": replace(clusters.TORCH, torch="2.6.0")} for k in range(4, 8)
    }
    special |= {k: {"shm": Space("/dev/shm", 64 * 1024**2, 60 * 1024**2)} for k in (8, 9, 11)}
    nodes = [clusters.plain(k, **special.get(k, {})) for k in range(12)]
    made = clusters.cluster(*nodes, broken=[("node3", "node10", "10.0.0.20", "timed out")])
    return replace(made, links=tuple(link for link in made.links if link.purpose == "interface"))


COLLECTIONS = {
    "two-networks": two_networks,
    "one-network": one_network,
    "infiniband": lambda: platform("hdr-roce-down"),
    "roce": lambda: platform("roce"),
    "cluster": twelve,
}
RECORDED = {
    "logs/fell-back.log": "logs/fell-back.log",
    "logs/sound.log": "logs/sound.log",
    "logs/two-networks": "logs/two-networks",
    "predict/hdr-node.txt": "gpu-a.txt",
    "predict/desktop.txt": "desktop.txt",
    "predict/eight-hcas.txt": "eight-cards.txt",
}
"""Below tests/recorded -> below docs/examples."""
LOGS = {
    "counted": Plan(ranks=4, ranks_per_node=2, layers=2, point_to_point=False, split=False),
    "missing": Plan(ranks=4, ranks_per_node=2, layers=2, layout="per-rank", fault="missing", split=False),
}


def main() -> None:
    """Write them."""
    for name, made in COLLECTIONS.items():
        bundle.save(made(), EXAMPLES / f"{name}.json")
    for source, target in RECORDED.items():
        path = ROOT / "tests" / "recorded" / source
        if path.is_dir():
            shutil.copytree(path, EXAMPLES / target, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, EXAMPLES / target)
    no_access = platforms.table(["GPU0", "GPU1"], [[" X ", "CNS"], ["CNS", " X "]])
    (EXAMPLES / "p2p.txt").write_text(no_access)
    for name, plan in LOGS.items():
        (EXAMPLES / "logs" / name).mkdir(exist_ok=True)
        generate(plan, EXAMPLES / "logs" / name)
        (EXAMPLES / "logs" / name / "truth.json").unlink()


if __name__ == "__main__":
    main()
