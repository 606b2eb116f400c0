"""
What a check of many nodes costs to judge and takes on the screen: facts as recorded of N nodes of which 40
have one of three problems, judged by `ringup check --from`; then 10,000 nodes folded.

    python bench/many_nodes.py [--nodes 1000] [--repeat 3] [--keep F]

Prints seconds, CPU seconds and lines; ends with 1 where that is more than 2 CPU seconds or 60 lines.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import clusters as c  # noqa: E402

from ringup import bundle, collectors  # noqa: E402
from ringup.collectors import pair_schedule  # noqa: E402
from ringup.hosts.folding import node_set  # noqa: E402
from ringup.model import Cluster, FileFact, Link, Node, Resolution, Space  # noqa: E402
from ringup.output.folding import NodeText, merge_equal  # noqa: E402

WANTED_S, WANTED_LINES = 2.0, 60


def equal_node(k: int) -> Node:
    """Node k of N alike: a card in 10.0.0.0/16 at 100 Gbit/s, docker0."""
    card = c.interface("enp99s0", f"10.0.{k // 250}.{k % 250 + 1}/16", speed_gbit_s=100.0)
    docker = c.interface("docker0", "172.17.0.1/16", kind="bridge", has_carrier=False)
    return c.node(f"node{k}", card, docker)


def recorded(count: int) -> Cluster:
    """`count` nodes, of which 20 have little /dev/shm, 10 no project directory and 10 are not reached."""
    dice = random.Random(1)
    nodes = [equal_node(k) for k in range(count)]
    for k in range(100, 120):
        nodes[k] = replace(nodes[k], shm=Space("/dev/shm", 64 * c.GIB, int(dice.uniform(0.01, 0.05) * c.GIB)))
    for k in range(300, 310):
        nodes[k] = replace(nodes[k], chdir=FileFact("/home/ada/project", False))
    for k in range(500, 510):
        words = f"ssh: connect to host node{k} port 22: Connection timed out"
        nodes[k] = c.unreached(f"node{k}", "ssh-timeout", words)
    hosts = [node.host for node in nodes]
    address = {n.name: (n.interfaces[1].addresses[0].address,) for n in nodes if not n.unreached}
    for k, node in enumerate(nodes):
        peers = (peer.name for peer in collectors.peers_of(k, hosts))
        names = tuple(Resolution(peer, address[peer]) for peer in peers if peer in address)
        nodes[k] = node if node.unreached else replace(node, peer_names=names)
    return Cluster(tuple(nodes), paths(nodes), schedule=pair_schedule.describe(count - 10))


def paths(nodes: list[Node]) -> tuple[Link, ...]:
    """What the round of pairs tries between nodes that were reached; all of it works."""
    ready = {n.name: pair_schedule.endpoints(n) for n in nodes if not n.unreached}
    ports = {(name, end.address): 40123 for name, ends in ready.items() for end in ends}
    ephemeral = dict.fromkeys(ready, (35000, 41000, 47000, 58000))
    rows = pair_schedule.targets(nodes, ready, ports, ephemeral, (29500, 29501, 29502))
    return tuple(
        Link(
            *(t.src, t.endpoint.node, "enp99s0", t.endpoint.interface, t.endpoint.address, t.port, True),
            rtt_ms=0.2,
            large_packet_ok=t.purpose == "interface" or None,
            purpose=t.purpose,
        )
        for t in itertools.chain.from_iterable(rows.values())
    )


def measure(file: Path) -> tuple[float, float, int]:
    """Seconds, CPU seconds and lines of one `ringup check`."""
    command = [sys.executable, "-m", "ringup", "check", "--from", str(file)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 1 or done.stderr:
        sys.exit(f"exit {done.returncode}\n{done.stderr}\n{done.stdout}")
    return took, after.ru_utime - before.ru_utime, len(done.stdout.splitlines())


def show_folding(pattern: str) -> None:
    """What 10,000 names and findings cost to fold."""
    is_grid = "-n" in pattern
    names = [pattern.format(*divmod(k, 100)) if is_grid else pattern.format(k) for k in range(10_000)]
    began = time.process_time()
    shown = node_set(names)
    named = time.process_time() - began
    texts = [NodeText(name, (f"{name}: {k % 97} MiB free",), (name,)) for k, name in enumerate(names)]
    merge_equal(texts)
    both = time.process_time() - began
    print(f"10,000 names: {named:.2f} s, their findings {both - named:.2f} s: {shown}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the facts here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = args.keep or Path(folder) / "facts.json"
        bundle.save(recorded(args.nodes), file)
        print(f"{args.nodes} nodes, {file.stat().st_size / 1e6:.1f} MB of facts")
        rounds = [measure(file) for _ in range(args.repeat)]
    for pattern in ("node{}", "r{}-n{}", "a{0}-b{0}-c{0}-d{0}"):
        show_folding(pattern)
    for took, cpu, lines in rounds:
        print(f"ringup check --from: {took:.2f} s, {cpu:.2f} s of CPU, {lines} lines")
    best, lines = min(cpu for _, cpu, _ in rounds), rounds[-1][2]
    return int(best > WANTED_S or lines > WANTED_LINES)


if __name__ == "__main__":
    sys.exit(main())
