"""N equal pods without ssh: the first one leads the command, the others take part."""

from __future__ import annotations

import argparse
import functools
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from ringup.commands import common
from ringup.errors import RingupError, UsageError
from ringup.hosts import pod
from ringup.hosts.pod import Pod

if TYPE_CHECKING:
    from ringup.reach.pods import Pods

Command = Callable[[argparse.Namespace], int]


def here(args: argparse.Namespace) -> Pod | None:
    """
    The pod this command runs in; None where no token is set, or where the command names the nodes itself.

    Raises UsageError for what pods cannot do, NodesError for variables that do not fit together.
    """
    given = ("hosts", "hostfile", "local", "from_file")
    if any(getattr(args, name, None) is not None for name in given):
        return None
    found = pod.from_environment(os.environ, os.uname().nodename)
    if found is not None and (getattr(args, "detach", False) or getattr(args, "slurm", False)):
        raise UsageError(
            "pods that share a token run in view of their first one", hint="leave --detach and --slurm out"
        )
    return found


def everywhere(command: Command) -> Command:
    """Have a command that looks at nodes led by the first of N pods, where it runs in one of them."""

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> int:
        found = here(args)
        if found is None:
            return command(args)
        quiet = getattr(args, "quiet", False)

        def say(words: str) -> None:
            common.say(f"ringup: {words}", quiet=quiet)

        if found.index:
            from ringup.reach import pod_peer

            return pod_peer.serve(found, say)
        args.pods = gathered(found, say)
        say(f"{found.count} pods are here")
        return _led(command, args)

    return run


def gathered(found: Pod, say: Callable[[str], None]) -> Pods:
    """
    All pods once they have come.

    Raises NodesError when not all have in time, KeyboardInterrupt when told to end before.
    """
    from ringup.reach import pods

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # As process 1 of its container it would not hear SIGTERM at all without a handler.
    before = signal.signal(signal.SIGTERM, stop)
    try:
        return pods.gather(found, say)
    finally:
        signal.signal(signal.SIGTERM, before)


def _led(command: Command, args: argparse.Namespace) -> int:
    """The command's exit code, which every pod is told."""
    code = 70
    try:
        code = command(args)
    except RingupError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    finally:
        args.pods.finish(code)
    return code
