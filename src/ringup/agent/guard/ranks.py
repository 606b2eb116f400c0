"""The ranks of this node as their shims report them: output, last lines, end."""

import array
import os
import struct
import time

import _socket as socket
from ringup.agent.guard.messages import MOST_RANKS
from ringup.agent.guard.spool import Tail
from ringup.agent.guard.tree import note_session
from ringup.agent.proc.process import stat

SOCKET = "guard.sock"
READ_BYTES = 64 << 10
LISTEN_BACKLOG = 128
MOST_IN_WORLD = 1 << 24
LAST_SIGNAL = 64


class Output:
    """A pipe that a process of the job writes to; its bytes go to the launcher and into `tail`."""

    def __init__(self, fd, rank, stream, tail, loop, up):
        os.set_blocking(fd, False)
        self.fd, self.rank, self.stream, self.tail, self.loop, self.up = fd, rank, stream, tail, loop, up
        loop.watch(fd, self.read)

    def read(self):
        """Read one piece; whether there was one."""
        try:
            data = os.read(self.fd, READ_BYTES) if self.fd >= 0 else b""
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        at = time.monotonic()
        self.tail.feed(self.stream, at, data)
        self.up().spool.push(self.rank, self.stream, at, data)
        return True

    def drain(self):
        """Read the bytes that are in the pipe now, no more: a process may still write."""
        for _ in range(64):
            if not self.read():
                break

    def close(self):
        if self.fd >= 0:
            self.loop.forget(self.fd)
            os.close(self.fd)
            self.fd = -1


class Rank:
    def __init__(self, connection, shim):
        self.connection, self.shim = connection, shim
        self.shim_started = (stat(shim) or (0, -1))[1]
        note_session(shim, self.shim_started)
        self.rank = self.local_rank = -1
        self.pid = 0
        self.world = 0
        """World size of its framework at the end; 0 unknown, -1 not to be judged."""
        self.late = 0
        """The signal that ended it after its script had finished."""
        self.outputs = []
        self.tail = Tail()
        self.ended = False

    def is_gone(self):
        return self.shim_started >= 0 and (stat(self.shim) or (0, -1))[1] != self.shim_started


def wait_code(status):
    """A wait status as an exit code, or as minus the signal's number."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def parse_shim(data):
    """A shim's message: `hello RANK LOCAL_RANK SHIM PID` or `exit STATUS TIME WORLD LATE`; else (b"", [])."""
    kind, *words = data.split() or [b""]
    kinds = {b"hello": (int, int, int, int), b"exit": (int, float, int, int)}.get(kind, ())
    try:
        numbers = [number(word) for number, word in zip(kinds, words)]
        if len(words) == len(kinds) and all(abs(number) < 1 << 31 for number in numbers):
            return kind, numbers
    except ValueError:
        pass
    return b"", []


def listen_here(name, kind):
    """A listening Unix socket in the current directory, the run's (0700)."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(name)
    os.chmod(name, 0o600)
    listener.listen(LISTEN_BACKLOG)
    listener.setblocking(False)
    return listener


def own_peers(listener):
    """(connection, pid) of the waiting processes of our own user; closes the others."""
    for _ in range(2 * LISTEN_BACKLOG):
        try:
            fd, _ = listener._accept()
        except OSError:
            return
        connection = socket.socket(fileno=fd)
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.geteuid():
            connection.setblocking(False)
            yield connection, pid
        else:
            connection.close()


class Ranks:
    def __init__(self, loop, up, sigterm_at):
        self.loop, self.up, self.sigterm_at = loop, up, sigterm_at
        self.all = []
        self.listener = listen_here(SOCKET, socket.SOCK_SEQPACKET)
        loop.watch(self.listener.fileno(), self._accept)

    def _accept(self):
        for connection, shim in own_peers(self.listener):
            if len(self.all) < MOST_RANKS:
                rank = Rank(connection, shim)
                self.all.append(rank)
                self.loop.watch(connection.fileno(), lambda rank=rank: self._receive(rank))
            else:
                connection.close()

    def receive_all(self):
        """Read every message that has arrived; a shim that is gone without an `exit` was killed."""
        self._accept()
        gone = [rank for rank in self.all if rank.is_gone()]
        for rank in self.all:
            while rank.connection.fileno() >= 0 and self._receive(rank):
                pass
        for rank in gone:
            # The fork that is not yet the rank's program also holds the connection, so its end comes late.
            if rank.pid:
                self._end(rank, -9, time.monotonic(), lost=True)

    def _receive(self, rank):
        try:
            data, extra, _, _ = rank.connection.recvmsg(4096, socket.CMSG_SPACE(8 * 4))
        except BlockingIOError:
            return False
        except OSError:
            data, extra = b"", []
        fds = array.array("i")
        for level, kind, body in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(body[: len(body) - len(body) % fds.itemsize])
        kind, numbers = parse_shim(data)
        if kind == b"hello" and len(fds) == 2 and not rank.outputs:
            self._begin(rank, numbers, fds)
        else:
            for fd in fds:
                os.close(fd)
            if kind == b"exit":
                rank.world = max(-1, min(numbers[2], MOST_IN_WORLD))
                rank.late = max(0, min(numbers[3], LAST_SIGNAL))
                self._end(rank, wait_code(numbers[0]), numbers[1])
        if not data:
            # A shim that sends no `exit` was killed, and its rank with it.
            if rank.pid:
                self._end(rank, -9, time.monotonic(), lost=True)
            self.loop.forget(rank.connection.fileno())
            rank.connection.close()
        return True

    def _begin(self, rank, numbers, fds):
        rank.rank, rank.local_rank, _, rank.pid = numbers
        own = (rank.tail, self.loop, self.up)
        rank.outputs = [Output(fd, rank.rank, stream, *own) for stream, fd in enumerate(fds, 1)]
        self.up().send({
            "type": "rank", "rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid,
            "at": time.monotonic(),
        })  # fmt: skip

    def _end(self, rank, code, at, lost=False):
        if rank.ended:
            return
        rank.ended = True
        for output in rank.outputs:  # an ended rank adds nothing more
            output.drain()
        now = time.monotonic()
        at = at if now - 5 < at <= now else now
        self.up().send({
            "type": "exit", "rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid, "code": code,
            "at": at, "traceback_at": rank.tail.traceback_at, "sigterm_at": self.sigterm_at(), "lost": lost,
            "tail": rank.tail.text(), "late": rank.late,
        })  # fmt: skip

    def close(self):
        self.receive_all()
        for output in (output for rank in self.all for output in rank.outputs):
            output.drain()
            output.close()
        self.loop.forget(self.listener.fileno())
        self.listener.close()
