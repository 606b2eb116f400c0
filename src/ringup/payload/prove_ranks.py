"""
One rank of `ringup test` or `ringup bench`; see prove_world.

    prove_ranks.py test|bench BACKEND ARRIVE_S LIMIT_S [OPS SIZES PAIRS]

Needs Python 3.8+ and torch.  Exits with 1 when something is wrong and has been told.
"""

import os
import sys
import traceback

import prove_correct
import prove_sweep
from prove_world import Refused, World, is_own, say, short


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
        world.leave(fine)
    except Refused as error:
        say("refused", error=str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        say("error", error=short(error))
        if world is not None and not is_own(error):
            world.roll_call()
        return 1
    say("done", ok=fine)
    return 0 if fine else 1


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])
    except Refused:  # and told who is missing
        pass
    finally:
        sys.stdout.flush()
        # A group that is broken may wait in its destructor for ranks that are gone, and one that is still
        # open may end Python with SIGABRT, which would be taken for this rank's own crash.
        os._exit(code)
