"""How a job of the tests ends: `RANK 3` exits with that code, `RANK kill` is killed, `RANK stay` stays."""

import os
import signal


def end_if_asked(rank, arguments):
    """End the way the two words say, if they name this rank."""
    if arguments[:1] == [str(rank)]:
        if arguments[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if arguments[1] == "stay":
            print("stays", flush=True)
            while True:
                signal.pause()
        os._exit(int(arguments[1]))


def trained(rank, world):
    """What a test waits for."""
    print(f"trained to the end: rank {rank} of {world} on {os.uname().nodename}", flush=True)


def formed(world, total):
    """How large the framework says its world is, and the sum of all ranks' numbers (from 1) over it."""
    print(f"a world of {world}, sum {total:g}", flush=True)
