"""
Two ranks that fail by themselves, one shortly after the other; no torch.

`ends_in_order.py FIRST FOLDER`: rank FIRST exits 3, the other exits 4 six tenths of a second later.
"""

import os
import signal
import sys
import time
from pathlib import Path

first, folder = int(sys.argv[1]), Path(sys.argv[2])
rank = int(os.environ["RANK"])
# The launcher's SIGTERM must not decide which of them ends by itself.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / f"up{rank}").touch()
while not all((folder / f"up{other}").exists() for other in range(2)):
    time.sleep(0.01)
if rank == first:
    time.sleep(0.3)
    print("the first to go", flush=True)
    (folder / "failed").touch()
    os._exit(3)
while not (folder / "failed").exists():
    time.sleep(0.005)
time.sleep(0.6)  # as far as the clocks of a busy machine's hosts are compared
print("the second to go", flush=True)
os._exit(4)
