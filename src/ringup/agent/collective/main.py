"""
One rank of `ringup test` or `ringup bench`; see world.py.

    main.py test|bench BACKEND ARRIVE_S LIMIT_S [OPS SIZES PAIRS]

Needs Python 3.8+ and torch.  Exits with 1 after it has reported a problem.
"""

import os
import sys
import traceback

from ringup.agent.collective import correctness
from ringup.agent.collective import bandwidth
from ringup.agent.collective.world import Refused, World, is_own, report, short


def main(mode, backend, arrive_s, limit_s, *rest):
    world = None
    try:
        world = World(backend, float(arrive_s), float(limit_s))
        world.arrive()
        world.join()
        if mode == "test":
            fine = correctness.test(world)
        else:
            ops, sizes, pairs = rest
            bandwidth.bench(world, ops.split(","), [int(size) for size in sizes.split(",")], pairs == "1")
            fine = True
        world.leave(fine)
    except Refused as error:
        report("refused", error=str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        report("error", error=short(error))
        if world is not None and not is_own(error):
            world.roll_call()
        return 1
    report("done", ok=fine)
    return 0 if fine else 1


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])
    except Refused:  # and reported the missing ranks
        pass
    finally:
        sys.stdout.flush()
        # A broken group may wait in its destructor for missing ranks, and an open group may end Python with
        # SIGABRT, which would look like a crash of this rank.
        os._exit(code)
