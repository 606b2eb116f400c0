"""A look at the ranks (look.py), in a process of its own: asking for stacks may take seconds."""

import json
import os
import signal
import sys
import time

import guard_tree as tree

LONGEST_ANSWER_BYTES = 6 << 20
LIMIT_S = 45.0


class Look:
    """At most one at a time."""

    def __init__(self, loop, up, run_id, place):
        self.loop, self.up, self.words = loop, up, (run_id, place)
        self.source = ""
        self.pid, self.fd, self.until = 0, -1, 0.0
        self.number, self.data = 0, b""

    def start(self, message):
        """Begin; the source comes with the first message alone."""
        self.source = message.get("source") or self.source
        if self.pid or not self.source:
            return
        self.number, self.data = message.get("number"), b""
        self.until = time.monotonic() + LIMIT_S
        words = [sys.executable, "-c", self.source, str(message.get("mode", "count"))] + list(self.words)
        try:
            self.fd, write_end = os.pipe()
        except OSError as error:
            self._tell_problem(error)
            return
        try:
            self.pid = os.fork()
        except OSError as error:
            os.close(self.fd)
            self._tell_problem(error)
        else:
            if self.pid == 0:
                self._become(words, write_end)
            self.loop.watch(self.fd, self._read)
        os.close(write_end)

    def _tell_problem(self, error):
        """Not being able to look is no reason to end what runs."""
        words = "no process to look with can be started: %s" % error.strerror
        self.up().send({"type": "look", "problem": words, "number": self.number})

    def _become(self, words, write_end):
        """In the child; never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for source, target in ((null, 0), (write_end, 1), (null, 2)):
                os.dup2(source, target)
            os.execv(words[0], words)
        finally:
            os._exit(127)

    def _read(self):
        piece = os.read(self.fd, 1 << 20)
        self.data += piece
        if piece and len(self.data) < LONGEST_ANSWER_BYTES:
            return
        self._close()
        try:
            answer = json.loads(self.data)
        except ValueError:
            answer = {"type": "look", "problem": "the look at this node's ranks gave nothing"}
        answer["number"] = self.number
        self.up().send(answer)

    def _close(self):
        self.loop.forget(self.fd)
        os.close(self.fd)
        self.pid, self.fd = 0, -1

    def on_time(self, now, ending):
        """End one that takes too long, or that the job's end has overtaken."""
        if self.pid and (ending or now > self.until):
            known = tree.stat(self.pid)
            if known and known[0] == os.getpid():
                tree.send(self.pid, known[1], signal.SIGKILL)
