"""RDMA devices as trees that are mounted over a host's /sys, and counters that rise."""

from __future__ import annotations

import contextlib
import resource
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.rdma_tree import HARDWARE, Tree, tree

from ..cluster import Lab
from ..wiring import Nic
from .base import done_and_undone, environment, fault
from .node import sshd_of

CARDS = (
    Nic("enp99s0", "10.0.0.10/24"),
    Nic("ib0", "10.1.0.10/24", "ib"),
    Nic("eth2", "10.2.0.10/24", "rail0", mtu_bytes=9000),
    Nic("eth3", "10.3.0.10/24", "rail1", mtu_bytes=9000),
)
LIBRARIES = f"/{HARDWARE}/lib"

# Mount points cannot be made in sysfs, so /sys/class becomes a tmpfs with all of the old one bound into it.
COVER = """
mkdir -p /run/class /run/rdma
mount --bind /sys/class /run/class
mount -t tmpfs -o mode=755 tmpfs /sys/class
cd /run/class
for name in *; do mkdir /sys/class/$name; mount --bind /run/class/$name /sys/class/$name; done
"""
UNCOVER = "umount -l /sys/class; umount -l /run/class; rm -r /run/rdma"


@contextlib.contextmanager
def locking(lab: Lab, host: str) -> Iterator[None]:
    """Sessions may lock all memory, as RDMA needs it, where this machine lets its root say so."""
    sshd, kind = sshd_of(lab, host), resource.RLIMIT_MEMLOCK
    before = resource.prlimit(sshd, kind)
    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    with contextlib.suppress(PermissionError):  # in most containers root lacks CAP_SYS_RESOURCE
        resource.prlimit(sshd, kind, most)
    try:
        yield
    finally:
        resource.prlimit(sshd, kind, before)


def script(made: Tree) -> str:
    """Shell words that write a tree below /."""
    q = shlex.quote
    folders = sorted({f"/{Path(path).parent}" for path in (*made.files, *made.links)})
    folders += [f"/{path}" for path in (*made.folders, *made.links.values())]
    lines = [f"mkdir -p {' '.join(q(f) for f in folders)}"]
    lines += [f"echo {q(text)} > {q('/' + path)}" for path, text in made.files.items()]
    lines += [f"ln -s {q('/' + target)} {q('/' + path)}" for path, target in made.links.items()]
    return "\n".join(lines)


@fault("rdma", nics=CARDS)
def rdma(
    lab: Lab,
    host: str = "node1",
    kind: str = "ib",
    library: bool = True,
    modules: bool = True,
    changes: Mapping[str, str | None] | None = None,
) -> Iterator[None]:
    """A host has RDMA devices (ib, roce, mixed, efa), with `changes` below /sys/class/infiniband."""
    own = lab.host(host)
    made = tree(kind, own.addresses).changed(changes or {})
    if not modules:
        made.files = {p: t for p, t in made.files.items() if "infiniband_verbs" not in p}
    with contextlib.ExitStack() as stack:
        stack.enter_context(done_and_undone(lab, host, COVER, UNCOVER))
        lab.run(host, ["sh", "-e"], text=script(made), check=True)
        # Any library that loads will do: nobody calls it.
        find = "ldconfig -p | sed -n 's/.*libm.so.6.* => //p' | head -n 1"
        put = f"cp -L $({find})" if library else "printf broken | tee"
        lab.sh(host, f"{put} {LIBRARIES}/libibverbs.so.1")
        stack.enter_context(locking(lab, host))
        stack.enter_context(environment(lab, host, LD_LIBRARY_PATH=LIBRARIES))
        yield


@contextlib.contextmanager
def counting(lab: Lab, host: str, steps: Mapping[str, int]) -> Iterator[None]:
    """Files on a host whose number of eight digits grows by these steps, twenty times a second."""
    # Written over in place, never cut off: a reader always finds a number.
    writes = "; ".join(f"printf '%08d' $((n * {step})) 1<> {shlex.quote(p)}" for p, step in steps.items())
    loop = lab.popen(host, ["sh", "-c", f"n=0; while :; do n=$((n + 1)); {writes}; sleep 0.05; done"])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


@fault("rdma-counters", nics=CARDS)
def rdma_counters(
    lab: Lab,
    host: str = "node1",
    kind: str = "ib",
    rising: Mapping[str, int] | None = None,
    changes: Mapping[str, str | None] | None = None,
) -> Iterator[None]:
    """A host has RDMA devices whose counters rise (by the steps of `rising`, twenty times a second)."""
    steps = rising or {"mlx5_1/ports/1/counters/symbol_error": 100}
    files = {f"/sys/class/infiniband/{path}": step for path, step in steps.items()}
    with rdma(lab, host, kind, changes=changes), counting(lab, host, files):
        yield
