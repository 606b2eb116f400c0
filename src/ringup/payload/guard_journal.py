"""
What the guards of a detached run have said, kept in bounds for whoever attaches.

In a directory: `out-N` hold output, oldest first, the oldest going when there is too much;
`control` holds everything else.  A disk that takes nothing loses output, never the run.
"""

import os
import shutil
import time

SEGMENT_BYTES = 2 << 20
OUTPUT_BYTES = 64 << 20
CONTROL_BYTES = 16 << 20
READ_BYTES = 64 << 10
SHORT_BYTES = 1000
KEPT_S = 7 * 86400
"""Journals of finished runs are kept that long."""
KEEP_EVERY_S = 3600.0


class Journal:
    """Written by the head's guard, read by any number of `Cursor`s."""

    def __init__(self, directory):
        self.directory = directory
        self.control = []
        self.control_bytes = self.control_saved = 0
        self.segments = []  # [number, bytes]
        self.lost_bytes = 0
        self.kept_at = 0.0
        self._prune(os.path.dirname(directory))
        os.mkdir(directory, 0o700)
        self._control_fd = self._create("control")
        self._out_fd = -1

    def _create(self, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(os.path.join(self.directory, name), flags, 0o600)

    def _prune(self, parent):
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            try:
                if name.endswith(".journal") and time.time() - os.stat(path).st_mtime > KEPT_S:
                    shutil.rmtree(path)
            except OSError:
                pass

    def add_control(self, line):
        """A message that is no output; kept whole until there are unreasonably many."""
        is_long = len(line) > SHORT_BYTES  # how the run ended is short, and what everybody wants to know
        if self.control_bytes + len(line) > CONTROL_BYTES * (1 if is_long else 2):
            return
        self.control.append(line)
        self.control_bytes += len(line)
        self._save_control()

    def _save_control(self):
        """Lines that a full disk has not taken are tried again with the next one."""
        try:
            while self.control_saved < len(self.control):
                line, at = self.control[self.control_saved], os.lseek(self._control_fd, 0, os.SEEK_CUR)
                if os.write(self._control_fd, line) < len(line):
                    os.ftruncate(self._control_fd, os.lseek(self._control_fd, at, os.SEEK_SET))
                    return
                self.control_saved += 1
        except OSError:
            pass

    def keep(self, now):
        """Be as young as a run that goes on, however little it says: runs beside it prune what is old."""
        if now - self.kept_at > KEEP_EVERY_S:
            self.kept_at = now
            try:
                os.utime(self.directory)
            except OSError:
                pass

    def add_output(self, line):
        """A message with output."""
        try:
            if self._out_fd < 0 or self.segments[-1][1] >= SEGMENT_BYTES:
                self._next_segment()
            whole = os.write(self._out_fd, line) == len(line)
            if not whole:
                raise OSError("disk full")
            self.segments[-1][1] += len(line)
        except OSError:
            self.lost_bytes += len(line)
            if self._out_fd >= 0 and self.segments:
                os.ftruncate(self._out_fd, self.segments[-1][1])

    def _next_segment(self):
        if self._out_fd >= 0:
            os.close(self._out_fd)
            self._out_fd = -1
        number = self.segments[-1][0] + 1 if self.segments else 0
        self._out_fd = self._create("out-%d" % number)
        self.segments.append([number, 0])
        while sum(size for _, size in self.segments) > OUTPUT_BYTES:
            gone, size = self.segments.pop(0)
            self.lost_bytes += size
            os.unlink(self.path(gone))

    def path(self, number):
        """The file of a segment."""
        return os.path.join(self.directory, "out-%d" % number)


class Cursor:
    """One reader's place in a journal; stands where a `Link` expects its spool."""

    def __init__(self, journal):
        self.journal = journal
        self.number, self.offset = 0, 0
        self.dropped = 0

    def __len__(self):
        """Bytes of output not yet read."""
        after = sum(size for number, size in self.journal.segments if number >= self.number)
        return max(0, after - self.offset)

    def wait_s(self):
        """0 when there is something to read."""
        return 0.0 if self.dropped or len(self) else float("inf")

    def pop(self):
        """(lines, their bytes), or None."""
        segments = self.journal.segments
        if not segments:
            return None
        if self.number < segments[0][0]:
            self.number, self.offset = segments[0][0], 0
        while self.number < segments[-1][0] and self.offset >= segments[self.number - segments[0][0]][1]:
            self.number, self.offset = self.number + 1, 0
        end = segments[self.number - segments[0][0]][1]
        try:
            with open(self.journal.path(self.number), "rb") as file:
                file.seek(self.offset)
                data = file.read(min(READ_BYTES, end - self.offset))
                if data and not data.endswith(b"\n"):
                    data += file.readline()
        except OSError:
            data = b""
        if not data:
            self.offset = end
            return None
        self.offset += len(data)
        return data, len(data)
