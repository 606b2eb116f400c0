"""
The JSON Schema of a command's --json; `run` is also the schema of run.json.  Without a name, the list.

A release may add keys; one that changes or removes any raises "schema", the number in every object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ringup.cli import options

FOLDER = Path(__file__).parent.parent / "schemas"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
OPTIONS = (options.value("name", "NAME", f"one of {', '.join(NAMES)}", nargs="?", choices=NAMES),)


def run(args: argparse.Namespace) -> int:
    if args.name:
        print(json.dumps(json.loads((FOLDER / f"{args.name}.json").read_bytes()), indent=1))
    else:
        print("\n".join(NAMES))
    return 0
