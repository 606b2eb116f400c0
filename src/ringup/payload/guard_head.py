"""
A detached run: the head node's guard takes the launcher's place.

Before the job starts the other guards connect to it, prove themselves by a token, and have a
lease with it as they had with the launcher.  Then they let go of the launcher; when all have, so
does the head, and the job starts.  The head writes a journal, ends every node at the first failure,
and lets `ringup attach` in through a socket in the run's directory: the journal is replayed and
followed, `look` asks one node what its ranks do, and `end` ends the run.
"""

import os
import struct
import time

import _socket as socket
from guard_journal import Cursor, Journal
from guard_link import Link
from guard_ranks import listen_here
from guard_sentinel import journal_dir
from guard_spool import encode

ATTACH = "attach.sock"
BEAT_S = 2.0
FIRST_BEATS_S = 0.1
"""In the first second, for a good idea of the clocks."""
ACKNOWLEDGE_EVERY_BYTES = 64 << 10
CONNECT_S = 8.0
LINGER_S = 15.0
"""How long after the end a reader may still be busy reading."""


def family(address):
    """The address family of a literal address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def as_link(connection, spool):
    """A Link over a connected socket, which lives as long as the process."""
    fd = connection.detach()
    os.set_blocking(fd, False)
    return Link(fd, fd, spool)


def finish(link):
    """
    Say that nothing more will come, on a link whose other side may still be sending.

    Closing at once would make the kernel answer what arrives with a reset, and the other side lose
    what it has not read yet.
    """
    connection = socket.socket(fileno=os.dup(link.write_fd))
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    connection.close()


def join(message, node, spool):
    """Connect to the head and be recognised: (link, "") or (None, why not)."""
    address, port = str(message["address"]), int(message["port"])
    connection = socket.socket(family(address), socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_S)
        connection.connect((address, port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.send(encode({"type": "hello", "token": message["token"], "node": node}))
        if connection.recv(8) != b"welcome\n":
            raise OSError("it does not know us")
    except OSError as error:
        connection.close()
        return None, "no connection to the head at %s port %d: %s" % (address, port, error)
    return as_link(connection, spool), ""


class Peer:
    """Another node's guard."""

    def __init__(self, link):
        self.link = link
        self.heard = time.monotonic()
        self.received = self.acknowledged = 0
        self.ranks_ok = self.ranks_bad = 0
        self.over = False


class Head:
    """Where a `Guard` expects its link: takes this node's messages, and everybody else's."""

    ended = gone = False
    read_fd = -1

    def __init__(self, order, loop, job, look, spool, message):
        self.order, self.loop, self.job, self.look, self.spool = order, loop, job, look, spool
        self.own = order["node"]
        self.token = str(message["token"])
        self.awaited = {int(n) for n in message["nodes"]} - {self.own}
        self.peers = {self.own: Peer(None)}
        self.leaving, self.then = set(), None
        self.clients = []
        self.half_open = []
        self.began = self.beaten = 0.0
        self.ending = ""
        self.end_by = float("inf")
        self.finished_at = 0.0
        self.round_trips = {}
        self.port, self.problem = 0, ""
        try:
            self.journal = Journal(journal_dir(order))
            self.listener = self._listen(str(message["address"]), message["ports"])
            self.port = self.listener.getsockname()[1]
            self.attach, name = listen_here(ATTACH, socket.SOCK_STREAM)
            if name.startswith("@"):
                with open(ATTACH + ".name", "w") as file:
                    file.write(name)
        except OSError as error:
            self.problem = "the head cannot take the run over: %s" % error
            return
        loop.watch(self.listener.fileno(), self._accept)

    def _listen(self, address, ports):
        last = OSError("no port")
        for port in [int(p) for p in ports] + [0]:
            listener = socket.socket(family(address), socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(1024)
                listener.setblocking(False)
                return listener
            except OSError as error:
                listener.close()
                last = error
        raise last

    # -- the other guards ----------------------------------------------------------------------

    def is_complete(self):
        """Whether every node has joined."""
        return not self.problem and not self.awaited

    def _accept(self):
        try:
            fd, _ = self.listener._accept()
        except OSError:
            return
        connection = socket.socket(fileno=fd)
        while len(self.half_open) > len(self.awaited) + 64:
            self._turn_away(self.half_open[0])
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = as_link(connection, None)
        self.half_open.append(link)
        self.loop.watch(link.read_fd, lambda: self._greet(link))

    def _greet(self, link):
        """A connection's first words: the token, or it is a stranger."""
        messages = link.receive()
        if not messages and not link.ended and 0 < len(link.lines.rest) < 4096:
            return  # not a whole line yet
        hello = messages[0] if messages else {}
        node = hello.get("node")
        if hello.get("token") != self.token or not isinstance(node, int) or node not in self.awaited:
            self._turn_away(link)
            return
        self.half_open.remove(link)
        os.write(link.write_fd, b"welcome\n")
        link.spool = Nothing()
        self.awaited.discard(node)
        peer = self.peers[node] = Peer(link)
        self.loop.watch(link.read_fd, lambda: self._hear_peer(node, peer))

    def _turn_away(self, link):
        self.half_open.remove(link)
        self.loop.forget(link.read_fd)
        os.close(link.read_fd)

    def begin(self, then):
        """Have everybody let go of the launcher, then call `then`; let readers in."""
        self.leaving, self.then = set(self.peers) - {self.own}, then
        self.loop.forget(self.listener.fileno())
        self.listener.close()
        self.began = time.monotonic()
        self.loop.watch(self.attach.fileno(), self._admit)
        self._write({"type": "began", "at": self.began, "wall": time.time()})
        for peer in self._linked():
            peer.heard = self.began
            peer.link.send({"type": "leave"})
        self._beat(self.began)
        if not self.leaving:
            then()

    def go(self):
        """Start the others' jobs."""
        for peer in self._linked():
            peer.link.send({"type": "go"})

    def _linked(self):
        return [peer for peer in self.peers.values() if peer.link]

    def _beat(self, now):
        self.beaten = now
        for peer in self._linked():
            peer.acknowledged = peer.received
            peer.link.send({"type": "beat", "sent": now, "acknowledged": peer.received})

    def _hear_peer(self, node, peer):
        for message in peer.link.receive():
            peer.heard = time.monotonic()
            if message.get("type") == "beat":
                self._set_clock(node, message, peer.heard)
            else:
                self.hear(node, message)
        if peer.link.ended:
            self._lose(node, peer, "its guard closed the connection")
        elif peer.received - peer.acknowledged >= ACKNOWLEDGE_EVERY_BYTES:
            peer.acknowledged = peer.received
            peer.link.send({"type": "ack", "acknowledged": peer.received})

    def _set_clock(self, node, message, now):
        """Tell readers how far a node's clock is ahead of ours, by the quickest beat so far."""
        try:
            sent, clock = float(message["echo"]), float(message["clock"])
        except (KeyError, TypeError, ValueError):
            return
        if 0 <= now - sent < self.round_trips.get(node, float("inf")):
            self.round_trips[node] = now - sent
            self._write({"node": node, "type": "clock", "ahead": clock - (sent + now) / 2})

    def _lose(self, node, peer, words):
        self.loop.forget(peer.link.read_fd)
        os.close(peer.link.read_fd)
        if not peer.over:
            peer.over = True
            self._write({"node": node, "type": "lost", "words": words, "at": time.monotonic()})
            peer.link = None
            self.end("node %s was lost" % node, self.order["grace_s"])
        peer.link = None

    # -- what is said --------------------------------------------------------------------------

    def send(self, message):
        """This node's own message."""
        self.hear(self.own, message)

    def push(self, rank, stream, at, data):
        """This node's own output."""
        self.spool.push(rank, stream, at, data)

    def hear(self, node, message):
        """Write it down; decide."""
        peer, kind = self.peers[node], message.get("type")
        if kind == "out":
            text = message.get("data")
            peer.received += len(text) * 3 // 4 - text[-2:].count("=") if isinstance(text, str) else 0
            self.journal.add_output(encode(dict(message, node=node)))
            return
        if kind == "left":
            self.leaving.discard(node)
            if not self.leaving:
                self.then()
            return
        if kind == "look":
            for client in self.clients:
                client.send({"type": kind, "node": node, "told": message})
            return
        self._write(dict(message, node=node))
        failed = kind in ("problem", "guard-lost")
        if kind == "exit":
            failed = message.get("code") != 0
            peer.ranks_ok += not failed
            peer.ranks_bad += failed
        elif kind == "launcher-exit":
            failed = message.get("code") != 0 and (peer.ranks_bad or not peer.ranks_ok)
        elif kind in ("ended", "guard-lost"):
            peer.over = True
        if failed:
            self.end("the first failure", self.order["grace_s"])

    def _write(self, message):
        line = encode(message)
        self.journal.add_control(line)
        for client in self.clients:
            client.control.append(line)

    def end(self, reason, grace_s):
        """End every node; a later call can only make it sooner."""
        if time.monotonic() + grace_s >= self.end_by:
            return
        self.end_by = time.monotonic() + grace_s
        self.ending = self.ending or reason
        for peer in self._linked():
            peer.link.send({"type": "end", "reason": reason, "grace_s": grace_s})
        self.job.end(reason, grace_s)

    # -- readers -------------------------------------------------------------------------------

    def _admit(self):
        try:
            fd, _ = self.attach._accept()
        except OSError:
            return
        connection = socket.socket(fileno=fd)
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid() or len(self.clients) >= 16:
            connection.close()
            return
        client = as_link(connection, Cursor(self.journal))
        client.control.extend(self.journal.control)
        self.clients.append(client)
        self.loop.watch(client.read_fd, lambda: self._hear_client(client))

    def _hear_client(self, client):
        for message in client.receive():
            if message.get("type") == "end":
                grace_s = message.get("grace_s")
                grace_s = float(grace_s) if isinstance(grace_s, (int, float)) else self.order["grace_s"]
                self.end(str(message.get("reason", ""))[:200], max(0.0, grace_s))
            elif message.get("type") == "beat":
                client.send({"type": "beat", "echo": message.get("sent"), "clock": time.monotonic()})
            elif message.get("type") == "look" and not self.ending:
                for peer in [peer for node, peer in self.peers.items() if node == message.get("node")]:
                    (peer.link.send if peer.link else self.look.start)(message)

    # -- as a link -----------------------------------------------------------------------------

    def _links(self):
        return [peer.link for peer in self._linked()] + self.clients

    def wait_s(self):
        """Seconds until something may go out."""
        return min([link.wait_s() for link in self._links()] + [self.spool.wait_s()])

    def writing(self):
        """Descriptors to wait for."""
        return [link.write_fd for link in self._links() if link.wants_to_write()]

    def flush(self):
        """Write down our own output, and to everybody what they take."""
        while self.spool.wait_s() <= 0:
            popped = self.spool.pop()
            if popped is None:
                break
            self.journal.add_output(b'{"node":%d,' % self.own + popped[0][1:])
        for link in self._links():
            link.flush()
        for client in [c for c in self.clients if c.ended or c.gone]:
            self.loop.forget(client.read_fd)
            self.clients.remove(client)
            os.close(client.read_fd)

    def on_time(self, now):
        """Beats, silence, the end."""
        self.journal.keep(now)
        often_s = FIRST_BEATS_S if now - self.began < 1 else min(BEAT_S, self.order["lease_s"] / 5)
        if now - self.beaten >= often_s:
            self._beat(now)
        for node, peer in self.peers.items():
            if not peer.link:
                continue
            if peer.link.gone:
                self._lose(node, peer, "its guard took no more messages")
            elif not peer.over and now - peer.heard > 0.7 * self.order["lease_s"]:
                self._lose(
                    node,
                    peer,
                    "nothing heard for %.0f s: the node or its network is gone" % (now - peer.heard),
                )
        if not self.finished_at and all(peer.over for peer in self.peers.values()):
            self.finished_at = now
            self.flush()
            self._write(
                {"type": "finished", "at": now, "reason": self.ending, "lost_bytes": self.journal.lost_bytes}
            )

    def is_drained(self):
        """Whether nobody needs us any more: the others' last output is here, and readers have all."""
        if not self.finished_at:
            return False
        if time.monotonic() - self.finished_at > LINGER_S:
            return True
        if self._linked():
            return False  # their last output is still to come
        return all(client.is_drained() for client in self.clients)


class Nothing:
    """A spool for links that carry no output from us."""

    dropped = 0

    def __len__(self):
        return 0

    def wait_s(self):
        """Never."""
        return float("inf")

    def pop(self):
        """Nothing."""
