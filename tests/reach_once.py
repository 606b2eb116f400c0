"""Asks nodes from inside a lab host: `reach_once.py NODES SCRIPT...`; one JSON line per script."""

from __future__ import annotations

import json
import sys
import time

from ringup import hosts, reach


def main() -> None:
    began = time.monotonic()
    with reach.open(hosts.expand(sys.argv[1])) as door:
        for script in sys.argv[2:]:
            answers = door.ask(dict.fromkeys(hosts.names(door.hosts), script), deadline_s=40)
            found = {
                name: {
                    "stdout_bytes": len(answer.stdout),
                    "kind": answer.error and answer.error.kind,
                    "words": answer.error and answer.error.words,
                    "took_s": answer.took_s,
                    "noise": door.noise(name),
                }
                for name, answer in answers.items()
            }
            print(json.dumps(found), flush=True)
    print(json.dumps({"all_s": time.monotonic() - began}))


if __name__ == "__main__":
    main()
