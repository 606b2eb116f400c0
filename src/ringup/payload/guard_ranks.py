"""The ranks of this node as their shims announce them: output, last lines, how each ended."""

import array
import os
import struct
import time

import _socket as socket
from guard_spool import Tail
from guard_tree import stat

SOCKET = "guard.sock"
READ_BYTES = 64 << 10
MOST_RANKS = 4096


class Output:
    """A pipe some process of the job writes to."""

    def __init__(self, fd, rank, stream, tail, up):
        os.set_blocking(fd, False)
        self.fd, self.rank, self.stream, self.tail, self.up = fd, rank, stream, tail, up

    def read(self):
        """Take one piece; None when there is none now, False at the end of the stream."""
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return False
        at = time.monotonic()
        self.tail.feed(self.stream, at, data)
        self.up().push(self.rank, self.stream, at, data)
        return True


class Rank:
    """One shim and the rank below it."""

    def __init__(self, connection, shim):
        self.connection = connection
        self.shim = shim
        known = stat(shim)
        self.shim_started = known[1] if known else -1
        self.rank = self.local_rank = -1
        self.pid = 0
        self.outputs = []
        self.tail = Tail()
        self.ended = False

    def is_gone(self):
        """Whether the shim has ended since it connected."""
        return self.shim_started >= 0 and (stat(self.shim) or (0, -1))[1] != self.shim_started


def wait_code(status):
    """A wait status as an exit code, or minus the signal's number."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def listen_here(name, kind):
    """
    A listening socket of that name in the directory we stand in (the run's): (socket, its name).

    Where the file system has no sockets (some network ones), an abstract one, its name "@" and
    128 random bits; whoever connects is asked for its user either way.
    """
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(name)
        os.chmod(name, 0o600)
    except OSError:
        name = "@" + os.urandom(16).hex()
        listener.bind(b"\0" + name[1:].encode())
    listener.listen(128)
    listener.setblocking(False)
    return listener, name


class Ranks:
    """The listening socket and everything behind it; `loop` watches descriptors."""

    def __init__(self, loop, up, told_at):
        self.loop, self.up, self.told_at = loop, up, told_at
        self.all = []
        self.listener, self.name = listen_here(SOCKET, socket.SOCK_SEQPACKET)
        loop.watch(self.listener.fileno(), self._accept)

    def _accept(self):
        try:
            fd, _ = self.listener._accept()
        except OSError:
            return False
        connection = socket.socket(fileno=fd)
        shim, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid() or len(self.all) >= MOST_RANKS:
            connection.close()
            return True
        connection.setblocking(False)
        rank = Rank(connection, shim)
        self.all.append(rank)
        self.loop.watch(fd, lambda: self._hear(rank))
        return True

    def take_news(self):
        """Hear everything that was said until now; a shim that is gone without a word was killed."""
        while self._accept():
            pass
        gone = [rank for rank in self.all if rank.is_gone()]
        for rank in self.all:
            while rank.connection.fileno() >= 0 and self._hear(rank):
                pass
        for rank in gone:
            # The fork that is not yet the rank's program holds the connection, too: its end comes late.
            if rank.pid:
                self._end(rank, -9, time.monotonic(), lost=True)

    def _hear(self, rank):
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
        words = data.split()
        if words[:1] == [b"hello"] and len(words) == 5 and len(fds) == 2 and not rank.outputs:
            self._begin(rank, [int(w) for w in words[1:]], fds)
        else:
            for fd in fds:
                os.close(fd)
            if words[:1] == [b"exit"] and len(words) == 3:
                self._end(rank, wait_code(int(words[1])), float(words[2]))
        if not data:
            self._lost(rank)
        return True

    def _begin(self, rank, numbers, fds):
        rank.rank, rank.local_rank, _, rank.pid = numbers
        rank.outputs = [Output(fd, rank.rank, i + 1, rank.tail, self.up) for i, fd in enumerate(fds)]
        for output in rank.outputs:
            self.loop.watch(output.fd, lambda o=output: self._read(rank, o))
        self.up().send({
            "type": "rank", "rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid,
            "at": time.monotonic(),
        })  # fmt: skip

    def _read(self, rank, output):
        if output.read() is False:
            self._close(rank, output)

    def _close(self, rank, output):
        rank.outputs.remove(output)
        self.loop.forget(output.fd)
        os.close(output.fd)

    def _drain(self, rank):
        """Take what stands in the pipes; a rank that has ended adds nothing more."""
        for output in list(rank.outputs):
            for _ in range(64):
                more = output.read()
                if more is False:
                    self._close(rank, output)
                if not more:
                    break

    def _end(self, rank, code, at, lost=False):
        if rank.ended:
            return
        rank.ended = True
        self._drain(rank)
        now = time.monotonic()
        at = at if now - 5 < at <= now else now
        self.up().send({
            "type": "exit", "rank": rank.rank, "local_rank": rank.local_rank, "pid": rank.pid, "code": code,
            "at": at, "traceback_at": rank.tail.traceback_at, "told_at": self.told_at(), "lost": lost,
            "tail": rank.tail.text(),
        })  # fmt: skip

    def _lost(self, rank):
        """The shim is gone; without a word of its own it was killed, and its rank with it."""
        if rank.pid and not rank.ended:
            self._end(rank, -9, time.monotonic(), lost=True)
        self.loop.forget(rank.connection.fileno())
        rank.connection.close()
        if not rank.outputs:
            return
        self._drain(rank)

    def close(self):
        """Take the last output and give everything up."""
        self.take_news()
        for rank in self.all:
            self._drain(rank)
            for output in list(rank.outputs):
                self._close(rank, output)
        self.loop.forget(self.listener.fileno())
        self.listener.close()
