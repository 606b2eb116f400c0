"""`ringup attach` on the head (`attach.py RUN_DIR`): connects to the guard, else prints its journal."""

import contextlib
import os
import select
import shutil
import sys

import _socket as socket
from ringup.agent.rank.rank import connect

SOCKET = "attach.sock"


def pump(guard, out):
    while True:
        for fd in select.select([0, guard.fileno()], [], [])[0]:
            data = guard.recv(65536) if fd else os.read(0, 65536)
            if not data:
                return
            if fd:
                out.write(data)
                out.flush()
            else:
                guard.sendall(data)


def replay(journal, out):
    try:
        names = os.listdir(journal)
    except OSError:
        out.write(b'{"type":"gone"}\n')
        return
    numbers = sorted(int(name[4:]) for name in names if name.startswith("out-") and name[4:].isdigit())
    for name in ["out-%d" % number for number in numbers] + ["control", "lost"]:
        with contextlib.suppress(OSError), open(os.path.join(journal, name), "rb") as file:
            shutil.copyfileobj(file, out)
    out.write(b'\n{"type":"replayed"}\n')


if __name__ == "__main__":
    guard = connect(sys.argv[1], SOCKET, socket.SOCK_STREAM)
    with contextlib.suppress(OSError), sys.stdout.buffer as out:
        if guard is None:
            replay(sys.argv[1].rstrip("/") + ".journal", out)
        else:
            pump(guard, out)
