"""
One rank of `ringup test` or `ringup bench`; see prove_world.

    prove_ranks.py test|bench BACKEND ARRIVE_S LIMIT_S [OPS SIZES PAIRS]

Needs Python 3.8+ and torch.  Exits with 1 when something is wrong and has been told.
"""

import os
import sys

import prove_correct
import prove_sweep
from prove_world import Refused, World, say, short


def main(mode, backend, arrive_s, limit_s, *rest):
    """Do what was asked; the exit code."""
    world = None
    try:
        world = World(backend, float(arrive_s), float(limit_s))
        world.arrive()
        world.join()
        if mode == "test":
            fine = prove_correct.test(world)
        else:
            ops, sizes, pairs = rest
            prove_sweep.bench(world, ops.split(","), [int(size) for size in sizes.split(",")], pairs == "1")
            fine = True
        world.leave()
    except Refused as error:
        say("refused", error=str(error))
        return 1
    except Exception as error:
        say("error", error=short(error))
        if world is not None:
            world.roll_call()
        raise
    say("done", ok=fine)
    return 0 if fine else 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    # A group that is broken may wait in its destructor for ranks that are gone.
    os._exit(code)
