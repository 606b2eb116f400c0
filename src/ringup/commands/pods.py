"""N equal pods without ssh: the first one leads `ringup run`, the others take part."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from ringup.commands import common
from ringup.errors import RingupError, UsageError
from ringup.hosts import pod
from ringup.hosts.pod import Pod
from ringup.reach import Reach


def here(args: argparse.Namespace) -> Pod | None:
    """
    The pod this command runs in; None where no token is set, or where the command names the nodes itself.

    Raises UsageError for what pods cannot do, NodesError for variables that do not fit together.
    """
    if any(getattr(args, name) is not None for name in ("hosts", "hostfile", "local")) or args.from_file:
        return None
    found = pod.from_environment(os.environ, os.uname().nodename)
    if found is None:
        return None
    if args.detach or getattr(args, "slurm", False):
        raise UsageError(
            "pods that share a token run in view of their first one", hint="leave --detach and --slurm out"
        )
    return found


def join(found: Pod, *, quiet: bool) -> int:
    """Take part in the run that the first pod leads; its exit code."""
    from ringup.reach import pod_peer

    return pod_peer.serve(found, lambda words: common.say(f"ringup: {words}", quiet=quiet))


@contextlib.contextmanager
def led(found: Pod, *, quiet: bool) -> Iterator[tuple[Reach, list[int]]]:
    """
    The way to all pods once they have come, and a list to put the run's exit code into.

    Raises NodesError when not all have come in time, KeyboardInterrupt when told to end before.
    """
    from ringup import reach
    from ringup.reach import pods

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # As process 1 of its container it would not hear SIGTERM at all without a handler.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        gathered = pods.gather(found, lambda words: common.say(f"ringup: {words}", quiet=quiet))
    finally:
        signal.signal(signal.SIGTERM, before)
    codes: list[int] = []
    code = 70
    try:
        with reach.open(gathered.hosts, pods=gathered) as door:
            common.say(f"ringup: {found.count} pods are here", quiet=quiet)
            yield door, codes
            code = codes[-1] if codes else 0
    except RingupError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    finally:
        gathered.finish(code)
