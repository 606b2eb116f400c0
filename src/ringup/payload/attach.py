"""
The way back into a detached run, on its head node: stdin and stdout joined to the guard's socket.

Started as `attach.py RUN_DIR`.  Where the guard has ended, what its journal holds is printed.
"""

import os
import select
import sys

import _socket as socket

SOCKET = "attach.sock"
PIECE_BYTES = 4096


def connect(run_dir):
    """A connection to the guard; None when there is none any more."""
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
        base = "/proc/self/fd/%d/%s" % (folder, SOCKET)
        if os.path.exists(base + ".name"):  # a file system without sockets
            with open(base + ".name") as file:
                guard.connect(b"\0" + file.read(64)[1:].encode())
        else:
            # Through /proc because a socket's path may have 107 bytes and a home directory more.
            guard.connect(base)
        return guard
    except OSError:
        guard.close()
        return None


def write_all(data):
    """To stdout, whole."""
    while data:
        data = data[os.write(1, data) :]


def pump(guard):
    """Bytes both ways until the guard has no more, or the launcher is gone."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(guard.fileno(), select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                data = os.read(0, 65536)
                if not data:
                    return
                guard.sendall(data)
            else:
                data = guard.recv(65536)
                if not data:
                    return
                write_all(data)


def replay(journal):
    """What is left of the journal: output, then everything else."""
    try:
        names = os.listdir(journal)
    except OSError:
        write_all(b'{"type":"gone"}\n')
        return
    numbers = sorted(int(name[4:]) for name in names if name.startswith("out-") and name[4:].isdigit())
    for name in ["out-%d" % number for number in numbers] + ["control", "lost"]:
        try:
            with open(os.path.join(journal, name), "rb") as file:
                for data in iter(lambda: file.read(65536), b""):
                    write_all(data)
        except OSError:
            pass
    write_all(b'{"type":"replayed"}\n')


def main():
    """Live if it lives, else from the journal."""
    run_dir = sys.argv[1]
    guard = connect(run_dir)
    if guard is not None:
        try:
            pump(guard)
        except OSError:
            pass
        return
    replay(run_dir.rstrip("/") + ".journal")


if __name__ == "__main__":
    main()
