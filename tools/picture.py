"""
Write docs/hang.svg, the picture in the README: the screen of a command that really runs, in docs/examples.

A test compares its words with what the command prints today, and with the picture's `alt` text.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "hang.svg"
COMMAND = ("logs", "runs/20261123-092413-aa73a799")
WIDTH = 88


def screen(*words: str) -> str:
    """What `ringup WORDS` writes to a terminal, with its colours."""
    start = "from ringup.__main__ import main; main()"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT / "docs" / "examples")
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("4H", 40, WIDTH, 0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        os.execve(sys.executable, [sys.executable, "-c", start, *words], {**env, "TERM": "xterm-256color"})
    shown = b""
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:  # how Linux tells the end of a terminal
            block = b""
        if not block:
            os.waitpid(child, 0)
            return shown.decode().replace("\r", "")
        shown += block


def picture() -> str:
    """The SVG: no font, and nothing else, is fetched."""
    from rich.console import Console
    from rich.text import Text

    with open(os.devnull, "w") as nowhere:
        console = Console(
            record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(Text("$ ringup " + " ".join(COMMAND), style="bold"))
        console.print(Text.from_ansi(screen(*COMMAND)))
        made = console.export_svg(title="ringup", unique_id="ringup")
    return re.sub(r"\s*@font-face \{.*?\}\n", "\n", made, flags=re.S)


def words(svg: str) -> list[str]:
    """The text of each line of a picture."""
    rows: dict[str, str] = {}
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        rows[y] = rows.get(y, "") + html.unescape(text).replace("\xa0", " ")
    return [row.strip() for row in rows.values()]


if __name__ == "__main__":
    PICTURE.write_text(picture())
