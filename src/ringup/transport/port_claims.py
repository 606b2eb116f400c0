"""The port of a run's rendezvous, reserved against other runs that begin on this machine."""

from __future__ import annotations

import contextlib
import errno
import socket


class PortClaims(contextlib.ExitStack):
    """
    Ports that no other run here may choose until the end of the block.

    Two runs that begin in the same seconds both find a port free, because neither listens yet.  A claim is a
    name of a Unix socket without a file: like a port it exists once per network namespace, and ends with us.
    """

    def take(self, port: int) -> bool:
        """Whether no other run has claimed the port; also true on systems without such names."""
        try:
            self.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0ringup-port-{port}")
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True
