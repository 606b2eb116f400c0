"""Output that no terminal should see as it is, then exit code 3; no torch."""

import os
import sys
import time

WILD = (
    b"\x1b]0;a new title\x07\x1b[2J\x1b[31mred\x1b[0m\n"
    b"\xff\xfe\x00\x01\x02 no UTF-8 \xc3\n"
    b"\x01"
    * 300
    + b"\n\x9b31m one-byte CSI \xc2\x9b31m\n"
    + bytes(range(256)) * 40
    + b"\n"
    + b"x" * (1 << 20)
    + b"\n"
)

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        for fd in (1, 2):
            data = WILD
            while data:
                data = data[os.write(fd, data) :]
        os.write(2, b"\x1b[5m the end\n")
        sys.exit(3)
    time.sleep(600)
