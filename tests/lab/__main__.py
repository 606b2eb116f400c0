"""
A cluster on this machine, for people: `python -m tests.lab shell --hosts 2 --fault article-002`.

    shell    build it, break it, open a shell on its first host (or run `-- COMMAND`), take it down
    faults   what can be broken, one line each
"""

from __future__ import annotations

import argparse
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import Lab, missing
from .faults import FAULTS, Fault


def options_of(one: Fault) -> dict[str, Any]:
    """A fault's options with their defaults."""
    return {p.name: p.default for p in list(inspect.signature(one.inject).parameters.values())[1:]}


def parsed_fault(text: str) -> tuple[str, dict[str, Any]]:
    """
    >>> parsed_fault("loss:percent=20,host=node0")
    ('loss', {'percent': 20, 'host': 'node0'})
    """
    name, _, rest = text.partition(":")
    if name not in FAULTS:
        raise argparse.ArgumentTypeError(f"no fault {name!r}; see `python -m tests.lab faults`")
    known, given = options_of(FAULTS[name]), {}
    for word in filter(None, rest.split(",")):
        key, _, value = word.partition("=")
        if key not in known:
            raise argparse.ArgumentTypeError(f"{name} has no option {key!r}, but {', '.join(known)}")
        given[key] = type(known[key])(value) if isinstance(known[key], (int, float)) else value
    return name, given


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("faults", help="list the faults")
    shell = commands.add_parser("shell", help="a cluster for as long as a shell or a command lasts")
    shell.add_argument("--hosts", type=int, default=2)
    shell.add_argument("--net", help="the first host's address, e.g. 10.0.0.10/24")
    shell.add_argument(
        "--mgmt", default="", metavar="ADDRESS", help="a management card for ssh, e.g. 192.168.50.10/24"
    )
    shell.add_argument("--docker0", action="store_true", help="Docker's bridge on every host")
    shell.add_argument("--venv-on-path", action="store_true", help="ssh commands find this venv's programs")
    shell.add_argument(
        "--fault", action="append", default=[], type=parsed_fault, metavar="NAME[:OPTION=VALUE,...]"
    )
    shell.add_argument(
        "--on", default="", metavar="HOST", help="where the shell or command runs (the first host)"
    )
    shell.add_argument(
        "--outside", action="store_true", help="run it on this machine; $LAB_SSH_CONFIG is ssh's -F"
    )
    shell.add_argument(
        "--ttl", type=float, default=4 * 3600, metavar="SECONDS", help="end all of it after this time"
    )
    shell.add_argument("words", nargs="*", metavar="-- COMMAND", help="instead of a shell")
    return parser


def broken_lab(args: argparse.Namespace) -> Lab:
    """A lab as the options describe it, with its faults."""
    wanted: dict[str, Any] = {}
    for name, _ in args.fault:
        wanted |= FAULTS[name].wants
    wanted |= {"net": args.net} if args.net else {}
    wanted |= {"mgmt": args.mgmt} if args.mgmt else {}
    wanted |= {"docker0": True} if args.docker0 else {}
    lab = Lab(args.hosts, venv_on_path=args.venv_on_path, ttl_s=args.ttl, **wanted)
    for name, options in args.fault:
        lab.fault(name, **options)
    return lab


def shell(args: argparse.Namespace) -> int:
    """Build, break, run, take down; the command's exit code."""
    with broken_lab(args) as lab:
        for host in lab.hosts:
            cards = "  ".join(f"{card} {address}" for card, address in host.addresses.items())
            print(f"{host.name}: {cards}", file=sys.stderr)
        print(f"from outside: ssh -F {lab.ssh_config} {lab.hosts[0].name}", file=sys.stderr)
        code = run(lab, args.words or ["bash", "-i"], args.on, args.outside)
    return 128 - code if code < 0 else code


def run(lab: Lab, words: list[str], on: str, outside: bool) -> int:
    """A command with this terminal; Ctrl-C is for it alone, and the lab goes when it has ended."""
    signal.signal(signal.SIGINT, lambda *_: None)  # a handler, unlike "ignore", is not inherited
    if outside:
        return subprocess.run(words, env={**os.environ, "LAB_SSH_CONFIG": str(lab.ssh_config)}).returncode
    return lab.popen(on or lab.hosts[0], words, cwd=Path.cwd(), start_new_session=False).wait()


def main() -> int:
    args = arguments().parse_args()
    if args.command == "faults":
        width = max(map(len, FAULTS))
        for one in sorted(FAULTS.values(), key=lambda one: one.name):
            options = ", ".join(f"{key}={value}" for key, value in options_of(one).items())
            print(f"{one.name:{width}}  {one.summary}  [{options}]")
        return 0
    if reason := missing():
        print(f"no lab: {reason}", file=sys.stderr)
        return 4
    return shell(args)


if __name__ == "__main__":
    sys.exit(main())
