"""Asks nodes from inside a lab host: `ask_nodes.py NODES SCRIPT...`; one JSON line per script."""

from __future__ import annotations

import json
import sys
import time

from ringup import hosts
from ringup.transport import Transport


def main() -> None:
    began = time.monotonic()
    with Transport(hosts.expand(sys.argv[1])) as transport:
        for script in sys.argv[2:]:
            answers = transport.ask({host.name: script for host in transport.hosts}, deadline_s=120)
            found = {
                name: {
                    "stdout_bytes": len(answer.stdout),
                    "kind": answer.error and answer.error.kind,
                    "words": answer.error and answer.error.words,
                    "took_s": answer.took_s,
                    "noise": transport.noise(name),
                }
                for name, answer in answers.items()
            }
            print(json.dumps(found), flush=True)
    print(json.dumps({"all_s": time.monotonic() - began}))


if __name__ == "__main__":
    main()
