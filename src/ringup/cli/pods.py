"""N equal pods without ssh: the first one leads the command, the others take part."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable

from ringup.cli.options import NODE_OPTIONS
from ringup.errors import RingupError, UsageError
from ringup.hosts import pod
from ringup.hosts.pod import Pod
from ringup.output import terminal

Command = Callable[[argparse.Namespace], int]


def here(args: argparse.Namespace) -> Pod | None:
    """This pod; None outside of one, or if nodes are named.  Raises UsageError, NodesError."""
    if any(getattr(args, name, None) is not None for name in (*NODE_OPTIONS, "from_file")):
        return None
    found = pod.from_environment(os.environ, os.uname().nodename)
    if found is not None and (getattr(args, "detach", False) or getattr(args, "slurm", False)):
        hint = "leave --detach and --slurm out"
        raise UsageError("pods that share a token run in the foreground", hint=hint)
    return found


def everywhere(command: Command) -> Command:
    """Decorator: if a command on nodes runs in one of N pods, the first pod leads it."""

    @functools.wraps(command)
    def run(args: argparse.Namespace) -> int:
        found = here(args)
        if found is None:
            return command(args)
        quiet = getattr(args, "quiet", False)

        def say(words: str) -> None:
            terminal.say(f"ringup: {words}", quiet=quiet)

        from ringup.transport import pod_peer, pods

        if found.index:
            return pod_peer.serve(found, say)
        args.pods = pods.gather(found, say)
        say(f"{found.count} pods have joined")
        code = 70
        try:
            code = command(args)
        except (RingupError, KeyboardInterrupt) as error:
            code = error.exit_code if isinstance(error, RingupError) else 130
            raise
        finally:
            args.pods.finish(code)
        return code

    return run
