"""
Ask NCCL itself: does `ringup.nccl` choose the bootstrap interface the library chooses?

    python bench/oracle.py --wheels DIR [--cases 1000] [--seed 1] [--json F]

Random sets of interfaces in a network namespace (needs root), each under random settings, in the
wheels found in DIR (`pip download --no-deps nvidia-nccl-cu12==2.20.5 -d DIR`, and so on).  A child
loads libnccl and calls ncclGetUniqueId, which needs no GPU; what it says it uses is compared with the
prediction from `ip addr`'s text.  Prints every disagreement; exit 1 if there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringup.model import Node
from ringup.nccl import interface_choice, selection
from ringup.nccl.selection import Known
from ringup.parse.nccl import parse_nccl_conf
from ringup.parse.pasted import parse_pasted

NAMES = (
    "eth0", "eth1", "eth10", "eno1", "eno2", "ens13np0", "ens21f0", "enp99s0", "ib0", "ib1", "ibp25s0",
    "bond0", "docker0", "br-1a2b3c4d", "virbr0", "veth1a2b3c", "cni0", "flannel.1", "lom0", "usb0", "wlan0",
    "tailscale0", "idrac", "hsn0",
)  # fmt: skip
"""Names from real machines."""
ENVIRONMENTS_PER_SET = 8
TRIES = 10
ASK = (
    "import ctypes, sys\n"
    "lib = ctypes.CDLL(sys.argv[1])\n"
    "number = ctypes.c_int()\n"
    "lib.ncclGetVersion(ctypes.byref(number))\n"
    "print('ORACLE', number.value, lib.ncclGetUniqueId(ctypes.create_string_buffer(128)), flush=True)\n"
)
_MOUNTED = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec "$@"'
# `ip netns exec` has mounts of its own, so /etc/nccl.conf is another there and stays as it is here.
_USING = re.compile(r"Bootstrap ?: Using ([^\s:]+):(\S+?)<\d+>")
_NOTHING = re.compile(r"no socket interface found|No usable listening interface found|No IP interface found")


@dataclass(frozen=True)
class Case:
    """One question to the library."""

    version: str
    environment: dict[str, str]
    conf: str
    addresses: str
    """`ip addr` in the namespace."""


@dataclass
class Tally:
    """What came out."""

    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, str]] = field(default_factory=list)


def libraries(wheels: Path) -> dict[str, Path]:
    """Version -> libnccl.so.2, unpacked beside its wheel."""
    found = {}
    for wheel in sorted(wheels.glob("nvidia_nccl_cu12-*.whl")):
        version = wheel.name.split("-")[1]
        place = wheels / version
        library = place / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if not library.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extract("nvidia/nccl/lib/libnccl.so.2", place)
        found[version] = library
    return found


@contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with lo up and nothing else."""
    name = f"oracle-{os.getpid()}"
    ip("netns", "add", name)
    try:
        for what in ("default", "all"):
            inside(name, "sysctl", "-qw", f"net.ipv6.conf.{what}.accept_dad=0")
        inside(name, "ip", "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)


def ip(*words: str) -> None:
    """Run `ip`; raises CalledProcessError when it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


def inside(name: str, *words: str, check: bool = False) -> str:
    """Output of a command in the namespace."""
    done = subprocess.run(["ip", "netns", "exec", name, *words], capture_output=True, text=True, check=check)
    return done.stdout


def furnish(name: str, chance: random.Random) -> None:
    """Random interfaces: IPv4, IPv6, both, link-local only, none; up, down, without carrier."""
    script = []
    for position, link in enumerate(chance.sample(NAMES, chance.randint(0, 6))):
        kind = chance.choice(("dummy", "dummy", "dummy", "bridge", "veth"))
        script.append(
            f"link add {link} type {kind}" + (f" peer name peer{position}" if kind == "veth" else "")
        )
        if chance.random() < 0.3:
            script.append(f"link set {link} addrgenmode none")
        for k in range(chance.choice((0, 1, 1, 1, 2))):
            script.append(f"addr add 10.{position}.{k}.{chance.randint(1, 250)}/24 dev {link}")
        for k in range(chance.choice((0, 0, 1, 2))):
            script.append(f"addr add 2001:db8:{position}:{k}::{chance.randint(1, 250)}/64 dev {link} nodad")
        if chance.random() < 0.85:
            script.append(f"link set {link} up")
        if kind == "veth" and chance.random() < 0.5:
            script.append(f"link set peer{position} up")
    with tempfile.NamedTemporaryFile("w", suffix=".ip") as batch:
        batch.write("\n".join(script) + "\n")
        batch.flush()
        inside(name, "ip", "-force", "-batch", batch.name)


def settings(chance: random.Random, links: list[str]) -> dict[str, str]:
    """A random NCCL_SOCKET_IFNAME, family and root address."""
    found = {}
    if chance.random() < 0.75:
        found["NCCL_SOCKET_IFNAME"] = a_filter(chance, links)
    if chance.random() < 0.3:
        found["NCCL_SOCKET_FAMILY"] = chance.choice(("AF_INET", "AF_INET6", "INET6", "", "AF_INET "))
    if chance.random() < 0.15:
        octet, third = chance.randint(0, 6), chance.randint(0, 2)
        found["NCCL_COMM_ID"] = chance.choice(
            (f"10.{octet}.{third}.77:5000", f"[2001:db8:{octet}:{third}::77]:5000", "192.0.2.7:5000")
        )
    return found


def a_filter(chance: random.Random, links: list[str]) -> str:
    """Names whole, cut, unknown, in lists, with the signs and mistakes people write."""
    known = [*links, "lo", "docker0", "eth7"]
    items = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        item = chance.choice(known)
        if chance.random() < 0.4:
            item = item[: chance.randint(1, len(item))]
        if chance.random() < 0.1:
            item += chance.choice((":1", ":", ":x", " "))
        items.append(item)
    head = chance.choice(("", "", "", "=", "=", "^", "^", "^=", "==", "=^"))
    text = head + chance.choice((",", ",", ",", ", ", ",,")).join(items)
    return chance.choice((text, text, text, text, text, f'"{text}"', "", "e", "^", ",", " "))


def can_lay_conf(name: str) -> bool:
    """Whether this machine lets a namespace have an /etc of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["ip", "netns", "exec", name, "sh", "-c", _MOUNTED, folder, "true"]
        return subprocess.run(words, capture_output=True).returncode == 0


def answer(name: str, library: Path, case: Case) -> str:
    """`INTERFACE ADDRESS`, "none", or "?" with the last words, of the library itself."""
    with tempfile.TemporaryDirectory() as folder:
        if case.conf:
            (Path(folder) / "nccl.conf").write_text(case.conf)
        done = subprocess.run(
            [
                "ip",
                "netns",
                "exec",
                name,
                "sh",
                "-c",
                _MOUNTED,
                folder,
                sys.executable,
                "-S",
                "-c",
                ASK,
                library,
            ],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "NCCL_DEBUG": "INFO", **case.environment},
            timeout=60,
        )
    if match := _USING.search(done.stdout):
        return f"{match[1]} {match[2]}"
    if _NOTHING.search(done.stdout):
        return "none"
    return f"? {(done.stdout + done.stderr)[-300:]}"


def steady(name: str, library: Path, case: Case) -> tuple[str, str]:
    """The library's answer, and the addresses of that time: links come up, and get theirs, when they will."""
    for _ in range(TRIES):
        true = answer(name, library, case)
        addresses = inside(name, "ip", "addr", check=True)
        if addresses == case.addresses:
            break
        case = dataclasses.replace(case, addresses=addresses)
    return true, case.addresses


def prediction(case: Case) -> str:
    """The same of ours."""
    read = parse_pasted(case.addresses)
    node = Node("n", interfaces=read.interfaces, nccl_conf=parse_nccl_conf(case.conf.splitlines()))
    known = Known(node, interface_choice.version_of(case.version))
    made = selection.predict(known, case.environment)
    return (
        f"{made.bootstrap.interface} {interface_choice.shown(made.bootstrap)}" if made.bootstrap else "none"
    )


def run(found: dict[str, Path], cases: int, seed: int) -> Tally:
    """Ask `cases` questions, spread over the versions."""
    chance, tally = random.Random(seed), Tally()
    while tally.cases < cases:
        with namespace() as name:
            furnish(name, chance)
            addresses = inside(name, "ip", "addr", check=True)
            with_conf = can_lay_conf(name)
            links = re.findall(r"^\d+: ([^\s:@]+)", addresses, re.MULTILINE)
            for _ in range(min(ENVIRONMENTS_PER_SET, cases - tally.cases)):
                version = chance.choice(sorted(found))
                environment, conf = settings(chance, links), ""
                if with_conf and chance.random() < 0.2:
                    conf = "".join(f"{k}={v}\n" for k, v in settings(chance, links).items())
                true, addresses = steady(name, found[version], Case(version, environment, conf, addresses))
                ours = prediction(Case(version, environment, conf, addresses))
                tally.cases += 1
                tally.kinds["none" if true == "none" else "ipv6" if "::" in true else "ipv4"] += 1
                if true != ours:
                    tally.wrong.append(
                        {
                            "version": version,
                            "env": json.dumps(environment),
                            "conf": conf,
                            "nccl": true,
                            "ringup": ours,
                            "addresses": addresses,
                        }
                    )
    return tally


def main() -> int:
    """Ask, count, show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, required=True, help="folder of nvidia-nccl-cu12 wheels")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the outcome here")
    args = parser.parse_args()
    found = libraries(args.wheels)
    if not found:
        parser.error(f"no wheel in {args.wheels}")
    began = time.monotonic()
    tally = run(found, args.cases, args.seed)
    took_s = time.monotonic() - began
    for wrong in tally.wrong:
        print(json.dumps(wrong, indent=1))
    print(
        f"{tally.cases} cases, NCCL {', '.join(sorted(found))}, seed {args.seed}: "
        f"{tally.cases - len(tally.wrong)} the same, {len(tally.wrong)} not; "
        f"{dict(tally.kinds)}; {took_s:.0f} s"
    )
    if args.json:
        whole = {
            "cases": tally.cases,
            "same": tally.cases - len(tally.wrong),
            "versions": sorted(found),
            "seed": args.seed,
            "kinds": dict(tally.kinds),
            "seconds": round(took_s),
            "wrong": tally.wrong,
        }
        args.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
