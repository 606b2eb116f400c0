"""What the other pods do: find the first one, open waiting shells to it, end as told."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from types import FrameType

from ringup.errors import NodesError
from ringup.hosts.pod import Pod, without_secrets
from ringup.reach import boot, proof
from ringup.reach.pods import SHELLS, Say
from ringup.reach.proof import Refused
from ringup.units import show_seconds

AGAIN_S = 1.0
DIAL_S = 5.0
END_S = 30.0
"""What guards may take to end their job when the first pod is gone: the lease is watched by them."""
LOST = 4


class _Peer:
    """This pod's connections and shells."""

    def __init__(self, pod: Pod, say: Say) -> None:
        self.pod, self.say = pod, say
        self.instance = secrets.token_hex(8)
        self.shells: dict[subprocess.Popen[bytes], socket.socket] = {}
        """Each with our own hold on its stdin."""
        self.stopped_by = 0

    def dial(self, role: str, until: float, loop: str = "") -> socket.socket:
        """
        A proven connection to the first pod; tried again until it is there.

        Raises NodesError when it is not there in time, or says no.
        """
        told = {
            "index": self.pod.index,
            "count": self.pod.count,
            "name": self.pod.name,
            "instance": self.instance,
            "role": role,
            "loop": loop,
        }
        where, waits_for = f"{self.pod.head} port {self.pod.port}", ""
        while True:
            try:
                address = (self.pod.head, self.pod.port)
                return proof.dial(address, self.pod.token, told, wait_s=DIAL_S)[0]
            except Refused as refused:
                if refused.final:
                    raise NodesError(
                        f"the first pod at {where}: {refused}",
                        hint="every pod needs the same token and count, and an index of its own",
                    ) from refused
                why = str(refused)
            except (OSError, UnicodeError) as error:
                why = str(error.strerror or error) if isinstance(error, OSError) else str(error)
            if time.monotonic() > until:
                raise NodesError(
                    f"no first pod at {where} within {show_seconds(self.pod.wait_s)}: {why}",
                    hint="is index 0 running, is its name in the DNS (headless service), is the port open?",
                )
            if why != waits_for:
                self.say(f"waiting for the first pod at {where}: {why}")
                waits_for = why
            self._sleep(AGAIN_S)

    def _sleep(self, seconds: float) -> None:
        select.select([], [], [], seconds)
        if self.stopped_by:
            raise KeyboardInterrupt

    def open_shell(self, number: int, until: float) -> None:
        """A shell that waits on two connections for what the first pod asks."""
        loop = boot.new_token()
        out = self.dial(f"out {number}", until, loop)
        with self.dial(f"err {number}", until, loop) as err:
            shell = subprocess.Popen(
                ["sh", "-c", boot.loop_script(loop)],
                stdin=out.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
                start_new_session=True,
                env=without_secrets(),
            )
        self.shells[shell] = out

    def let_go(self) -> None:
        """Close our hold on what belonged to shells that have ended, so that the first pod sees it, too."""
        for shell, out in self.shells.items():
            if shell.poll() is not None:
                out.close()

    def heed(self, control: socket.socket) -> int:
        """Wait for the end and say how it came: the run's own exit code, or why there is none."""
        while True:
            ready, _, _ = select.select([control], [], [], 1.0)
            self.let_go()
            if self.stopped_by:
                self.end_shells()
                return 128 + self.stopped_by
            if not ready:
                continue
            try:
                said = proof.decode(proof.read_line(control))
            except OSError:
                said = {}
            self.end_shells()
            code = said.get("end")
            if isinstance(code, int) and 0 <= code < 256:
                words = f": {said['words']}" if isinstance(said.get("words"), str) else ""
                self.say(f"the first pod ended with {code}{words}")
                return code
            self.say("the first pod is gone; nothing of its run is left here")
            return LOST

    def end_shells(self) -> None:
        """
        End of file for all: guards then end what they guard, and say so; what does not go is ended.

        A signal would not do: a guard has a session of its own, and does not go before its job has.
        """
        for shell, out in self.shells.items():
            if shell.poll() is None:
                with contextlib.suppress(OSError):
                    out.shutdown(socket.SHUT_RD)
        until = time.monotonic() + END_S
        while any(shell.poll() is None for shell in self.shells) and time.monotonic() < until:
            self.let_go()
            select.select([], [], [], 0.05)
        for shell in self.shells:
            if shell.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        self.let_go()


def serve(pod: Pod, say: Say) -> int:
    """
    Take part in a run that the first pod leads; its exit code.

    Raises NodesError when the first pod is not found in time or says no, KeyboardInterrupt when told to end.
    """
    peer = _Peer(pod, say)

    def stop(number: int, _frame: FrameType | None) -> None:
        peer.stopped_by = number

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        until = time.monotonic() + pod.wait_s
        with peer.dial("control", until) as control:
            for number in range(SHELLS):
                peer.open_shell(number, until)
            say(f"index {pod.index} of {pod.count}: taking part in the run of {pod.head}")
            return peer.heed(control)
    except KeyboardInterrupt:
        return 128 + peer.stopped_by
    finally:
        peer.end_shells()
        for number, handler in before.items():
            signal.signal(number, handler)
