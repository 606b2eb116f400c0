"""
A rank that goes on for ever, politely or not; no torch.

`stays.py plain|stubborn FOLDER`: a stubborn one ignores every signal that asks, and so do the
three it starts: one in a session of its own, one there without any of our environment, and one
that has besides left its parent, as daemons do.  All have FOLDER in their command line.
"""

import os
import signal
import subprocess
import sys
import time

mode, folder = sys.argv[1:3]
WAIT = [sys.executable, "-S", "-E", "-c", "import time; print(flush=True); time.sleep(3600)", folder]
LEAVE = f"import os; os.fork() or os.execv({sys.executable!r}, {WAIT!r}); os._exit(0)"


def start(words: list[str], **options: object) -> None:
    """Start it and wait until it runs."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True, **options)
    assert child.stdout
    child.stdout.readline()


if mode == "stubborn":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    start(WAIT)
    start(WAIT, env={})
    start([sys.executable, "-S", "-E", "-c", LEAVE], env={})
print("up", os.environ["RANK"], flush=True)
time.sleep(3600)
