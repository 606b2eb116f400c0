"""
The messages of a detached run on disk, in bounds, for `ringup attach`.

A directory: `out-N` hold output, and the oldest are deleted; `control` holds everything else.  A full
disk loses output, never the run.
"""

import contextlib
import os
import shutil
import time

SEGMENT_BYTES = 2 << 20
OUTPUT_BYTES = 64 << 20
CONTROL_BYTES = 16 << 20
READ_BYTES = 64 << 10
SHORT_BYTES = 1000
KEPT_S = 7 * 86400
"""Age at which the journal of a finished run is deleted."""
KEEP_EVERY_S = 3600.0


class Journal:
    """Written by the head's guard, read by any number of `Cursor`s."""

    def __init__(self, directory):
        self.directory = directory
        self.control, self.unsaved = [], b""
        self.control_bytes = self.lost_bytes = 0
        self.segments = {}  # number -> bytes, oldest first
        self.kept_at = 0.0
        for name in os.listdir(os.path.dirname(directory)):
            path = os.path.join(os.path.dirname(directory), name)
            with contextlib.suppress(OSError):
                if name.endswith(".journal") and time.time() - os.stat(path).st_mtime > KEPT_S:
                    shutil.rmtree(path)
        os.mkdir(directory, 0o700)
        self._control_fd = self._create("control")
        self._out_fd = -1

    def _create(self, name):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(os.path.join(self.directory, name), flags, 0o600)

    def add_control(self, line):
        """Add a message that is not output; False if the journal is full."""
        is_long = len(line) > SHORT_BYTES  # the messages of the run's end are short
        if self.control_bytes + len(line) > CONTROL_BYTES * (1 if is_long else 2):
            return False
        self.control.append(line)
        self.control_bytes += len(line)
        self.unsaved += line  # bytes that a full disk refuses are retried with the next line
        with contextlib.suppress(OSError):
            self.unsaved = self.unsaved[os.write(self._control_fd, self.unsaved) :]
        return True

    def keep(self, now):
        """Renew the directory's modification time, so that other runs do not delete it as old."""
        if now - self.kept_at > KEEP_EVERY_S:
            self.kept_at = now
            with contextlib.suppress(OSError):
                os.utime(self.directory)

    def add_output(self, line):
        try:
            if self._out_fd < 0 or self.segments[max(self.segments)] >= SEGMENT_BYTES:
                self._next_segment()
            if os.write(self._out_fd, line) < len(line):
                raise OSError("disk full")
            self.segments[max(self.segments)] += len(line)
        except OSError:
            self.lost_bytes += len(line)
            if self._out_fd >= 0:
                os.ftruncate(self._out_fd, self.segments[max(self.segments)])

    def _next_segment(self):
        if self._out_fd >= 0:
            os.close(self._out_fd)
            self._out_fd = -1
        number = max(self.segments, default=-1) + 1
        self._out_fd = self._create("out-%d" % number)
        self.segments[number] = 0
        while sum(self.segments.values()) > OUTPUT_BYTES:
            oldest = min(self.segments)
            self.lost_bytes += self.segments.pop(oldest)
            os.unlink(self.path(oldest))

    def path(self, number):
        return os.path.join(self.directory, "out-%d" % number)


class Cursor:
    """One reader's place in a journal, with the methods of a `Spool`."""

    def __init__(self, journal):
        self.journal = journal
        self.number, self.offset = 0, 0
        self.dropped = 0

    def __len__(self):
        after = sum(size for number, size in self.journal.segments.items() if number >= self.number)
        return max(0, after - self.offset)

    def wait_s(self):
        return 0.0 if self.dropped or len(self) else float("inf")

    def pop(self):
        """(lines, their bytes), or None."""
        if not (segments := self.journal.segments):
            return None
        if self.number < min(segments):
            self.number, self.offset = min(segments), 0
        while self.number < max(segments) and self.offset >= segments[self.number]:
            self.number, self.offset = self.number + 1, 0
        end = segments[self.number]
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
