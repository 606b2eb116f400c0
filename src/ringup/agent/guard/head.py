"""
The head node's guard takes the launcher's place in a detached run.

Before the job starts, the other guards connect (gate.py) and hold a lease with the head as with the launcher.
Then they leave the launcher; after all have left, the head leaves, and the job starts.  The head writes a
journal, ends every node at the first failure, and serves `ringup attach` through a socket in the run's
directory: a reader gets the journal, `look` takes a snapshot of one node's ranks, `end` ends the run.
"""

import os
import time

import _socket as socket
from ringup.agent.guard.gate import Gate, as_link
from ringup.agent.guard.journal import Cursor, Journal
from ringup.agent.guard.messages import ACKNOWLEDGE_EVERY_BYTES, BEAT_S, DRIFT, FIRST_BEATS_S, FROM_READER
from ringup.agent.guard.ranks import listen_here, own_peers
from ringup.agent.guard.sentinel import journal_dir
from ringup.agent.guard.spool import encode
from ringup.agent.guard.tls import missing

ATTACH = "attach.sock"
COMPARE_EVERY_S = 600.0
"""Times a tenth of the nodes: clocks drift for days, and the journal has little room."""
MOST_REQUESTED = 64
MOST_CLIENTS = 16
LINGER_S = 15.0
"""After the end: seconds to wait for a reader or a node that neither takes nor sends output."""


class Peer:
    def __init__(self, link):
        self.link = self.source = link
        self.contact_at = time.monotonic()
        self.received = self.acknowledged = 0
        self.ranks_begun = self.ranks_ok = self.ranks_bad = 0
        self.over = False


class Head:
    """Takes the messages of this node, as `Guard.up`, and of all other nodes."""

    ended = gone = False
    read_fd = -1

    def __init__(self, order, loop, job, snapshots, spool, message):
        self.order, self.loop, self.job, self.snapshots, self.spool = order, loop, job, snapshots, spool
        self.own = order["node"]
        self.awaited = set(message["nodes"]) - {self.own}
        self.peers = {self.own: Peer(None)}
        self.leaving, self.then = set(), None
        self.clients = []
        self.requested = {}
        """Node -> numbers of the snapshots that a reader waits for."""
        self.began = self.beaten = self.finished_at = self.moved_at = 0.0
        self.ending, self.end_by = "", float("inf")
        self.compared = {}
        """Node -> round trip and time of the beat by which its clock was compared."""
        self.gate, self.port, self.problem = None, 0, missing() if self.awaited else ""
        if self.problem:
            return
        try:
            self.journal = Journal(journal_dir(order))
            if self.awaited:
                self.gate = Gate(loop, message, self.awaited, self._welcome)
                self.port = self.gate.port
            self.attach = listen_here(ATTACH, socket.SOCK_STREAM)
        except OSError as error:
            self.problem = "the head cannot take the run over: %s" % error

    # -- the other guards ----------------------------------------------------------------------

    def is_complete(self):
        return not self.problem and not self.awaited

    def _welcome(self, node, link):
        peer = self.peers[node] = Peer(link)
        self.loop.watch(link.read_fd, lambda: self._receive_peer(node, peer))

    def begin(self, then):
        """Make all other guards leave the launcher, then call `then`; admit readers."""
        self.leaving, self.then = set(self.peers) - {self.own}, then
        if self.gate:
            self.gate.close()
            self.gate = None
        self.began = time.monotonic()
        self.loop.watch(self.attach.fileno(), self._admit)
        self._write({"type": "began", "at": self.began, "wall": time.time()})
        for peer in self._linked():
            peer.contact_at = self.began
        self.send_others({"type": "leave"})
        self._beat(self.began)
        if not self.leaving:
            then()

    def send_others(self, message):
        for peer in self._linked():
            peer.link.send(message)

    def _linked(self):
        return [peer for peer in self.peers.values() if peer.link]

    def _beat(self, now):
        self.beaten = now
        for peer in self._linked():
            peer.acknowledged = peer.received
            peer.link.send({"type": "beat", "sent": now, "acknowledged": peer.received})

    def _receive_peer(self, node, peer):
        for message in peer.link.receive():
            now = peer.contact_at = time.monotonic()
            if message["type"] != "beat":
                self.take(node, message)
            else:
                self._compare(node, message, now)
        if peer.link.ended:
            self._lose(node, peer, "its guard closed the connection")
        elif peer.received - peer.acknowledged >= ACKNOWLEDGE_EVERY_BYTES:
            peer.acknowledged = peer.received
            peer.link.send({"type": "ack", "acknowledged": peer.received})

    def _compare(self, node, beat, now):
        """How far a node's clock is ahead of this node's, by its quickest beat, allowing for drift."""
        round_trip = now - beat["echo"]
        least, at = self.compared.get(node, (float("inf"), now))
        age = now - at
        if age > COMPARE_EVERY_S * max(1.0, len(self.peers) / 10):
            least += 2 * DRIFT * age
        if 0 <= round_trip < least:
            self.compared[node] = round_trip, now
            ahead = beat["clock"] - (beat["echo"] + now) / 2
            self._write({"node": node, "type": "clock", "ahead": ahead, "error": round_trip / 2})

    def _lose(self, node, peer, words):
        self.loop.forget(peer.link.read_fd)
        os.close(peer.link.read_fd)
        peer.link = None
        if not peer.over:
            peer.over = True
            self._write({"node": node, "type": "lost", "words": words, "at": time.monotonic()})
            self.end("node %s was lost" % node, self.order["grace_s"])

    # -- messages ------------------------------------------------------------------------------

    def send(self, message):
        self.take(self.own, message)

    def take(self, node, message):
        peer, kind = self.peers[node], message.get("type")
        if kind == "out":
            text, self.moved_at = message["data"], time.monotonic()
            peer.received += len(text) * 3 // 4 - text[-2:].count("=")
            self.journal.add_output(encode(dict(message, node=node)))
        elif kind == "left":
            if node in self.leaving:
                self.leaving.discard(node)
                if not self.leaving:
                    self.then()
        elif kind == "look":
            if message.get("number") in self.requested.get(node, ()):
                self.requested[node].discard(message["number"])
                for client in self.clients:
                    client.send({"type": kind, "node": node, "answer": message})
        else:
            self._write(dict(message, node=node))
            failed = kind in ("problem", "guard-lost")
            peer.ranks_begun += kind == "rank"
            if kind == "exit":
                failed = message.get("code") != 0
                peer.ranks_ok += not failed
                peer.ranks_bad += failed
            elif kind == "launcher-exit":
                # Its ranks may all be done: torchrun's own shutdown can fail.
                is_done = peer.ranks_ok and peer.ranks_ok >= peer.ranks_begun
                failed = message.get("code") != 0 and (peer.ranks_bad or not is_done)
            elif kind in ("ended", "guard-lost"):
                peer.over = True
            if failed:
                self.end("the first failure", self.order["grace_s"])

    def _write(self, message):
        line = encode(message)
        if self.journal.add_control(line):
            for client in self.clients:
                client.send_line(line)

    def end(self, reason, grace_s):
        """End every node; a later call can only make it sooner."""
        if time.monotonic() + grace_s >= self.end_by:
            return
        self.end_by = time.monotonic() + grace_s
        self.ending = self.ending or reason
        self.send_others({"type": "end", "reason": reason, "grace_s": grace_s})
        self.job.end(reason, grace_s)

    # -- readers -------------------------------------------------------------------------------

    def _admit(self):
        for connection, _ in own_peers(self.attach):
            if len(self.clients) >= MOST_CLIENTS:
                connection.close()
                continue
            client = as_link(connection, Cursor(self.journal), FROM_READER)
            for line in self.journal.control:
                client.send_line(line)
            self.clients.append(client)
            self.loop.watch(client.read_fd, lambda client=client: self._receive_client(client))

    def _receive_client(self, client):
        before, messages = client.acknowledged, client.receive()
        if client.acknowledged > before:
            self.moved_at = time.monotonic()
        for message in messages:
            if message["type"] == "end":
                self.end(message.get("reason", "")[:200], message.get("grace_s", self.order["grace_s"]))
            elif message["type"] == "look" and not self.ending and message["node"] in self.peers:
                node = message.pop("node")
                requested = self.requested.setdefault(node, set())
                if len(requested) >= MOST_REQUESTED:
                    requested.clear()
                requested.add(message["number"])
                if node == self.own:
                    self.snapshots.start(message)
                elif self.peers[node].link:  # not lost
                    self.peers[node].link.send(message)

    # -- as a link -----------------------------------------------------------------------------

    def _links(self):
        return [peer.link for peer in self._linked()] + self.clients

    def wait_s(self):
        return min([link.wait_s() for link in self._links()] + [self.spool.wait_s()])

    def writing(self):
        return [fd for link in self._links() for fd in link.writing()]

    def flush(self):
        """Write this node's output to the journal, and to each link as much as it takes without waiting."""
        while self.spool.wait_s() <= 0:
            if (popped := self.spool.pop()) is None:
                break
            self.journal.add_output(b'{"node":%d,' % self.own + popped[0][1:])
        for link in self._links():
            link.flush()
        for client in [c for c in self.clients if c.ended or c.gone]:
            self.loop.forget(client.read_fd)
            self.clients.remove(client)
            os.close(client.read_fd)

    def on_time(self, now):
        if not self.began:
            if self.gate:
                self.gate.on_time(now)
            return
        self.journal.keep(now)
        often_s = FIRST_BEATS_S if now - self.began < 1 else min(BEAT_S, self.order["lease_s"] / 5)
        if now - self.beaten >= often_s:
            self._beat(now)
        for node, peer in self.peers.items():
            silence_s = now - peer.contact_at
            if peer.link and peer.link.gone:
                self._lose(node, peer, "its guard accepted no more messages")
            elif peer.link and not peer.over and silence_s > 0.7 * self.order["lease_s"]:
                words = "no contact for %.0f s: the node or its network is down"
                self._lose(node, peer, words % silence_s)
        if not self.finished_at and all(peer.over for peer in self.peers.values()):
            self.finished_at = now
            self.flush()
            for node, peer in self.peers.items():
                if peer.source and peer.source.refused():
                    self._write({"node": node, "type": "refused", "count": peer.source.refused()})
            lost_bytes = self.journal.lost_bytes
            self._write({"type": "finished", "at": now, "reason": self.ending, "lost_bytes": lost_bytes})

    def is_drained(self):
        """Whether the other nodes' last output has arrived, and readers have everything."""
        if not self.finished_at or time.monotonic() - max(self.finished_at, self.moved_at) > LINGER_S:
            return bool(self.finished_at)
        return not self._linked() and all(client.is_drained() for client in self.clients)
