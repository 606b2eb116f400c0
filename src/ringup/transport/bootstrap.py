"""
The program that waits on a node, and the framing of requests and answers.

The loop is one line of POSIX sh, passed as ssh's remote command: a shell that read it from stdin would read
ahead and swallow requests.  It has no single quotes, "!" and newlines, so that csh, fish and zsh as login
shells pass it on unchanged.  `read -r` (byte by byte on a pipe) and `head -c` never read past a request.

Marks contain a random token; everything on stdout between two marks belongs to the script.  They begin with
byte 1, which text does not contain, so no line of live output is held back for the next one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

MARK = b"\x01"
UNHEARD = 75
"""Exit code for a lost launcher; it ends the loop, as sshd notices no cut cable for up to two hours."""

# A PATH broken by start-up files must not lose the request.  The names begin with ru_, because an exported
# variable of the user named "n" would otherwise reach the scripts changed.  `ready` and `end` go to both
# streams: sshd forwards them in no fixed order, so only both marks end the noise, or complete an answer.
_LOOP = (
    ": ringup; ru_T={token}; "
    'printf "\\001$ru_T ready\\n"; printf "\\001$ru_T ready\\n" >&2; '
    "while read -r ru_t ru_k ru_i ru_n; do "
    'case "$ru_t" in "$ru_T") '
    'ru_s=$(PATH=$PATH:/usr/bin:/bin; head -c "$ru_n"); '
    'printf "\\001$ru_T begin $ru_i\\n"; '
    'case "$ru_k" in ask) (eval "$ru_s") </dev/null ;; *) (eval "$ru_s") ;; esac; '
    "ru_r=$?; "
    'printf "\\001$ru_T end $ru_i $ru_r\\n"; printf "\\001$ru_T end $ru_i $ru_r\\n" >&2; '
    'case "$ru_k$ru_r" in run{unheard}) exit ;; esac ;; '
    "esac; done"
)

# Reads exactly its own bytes from fd 0 and leaves the rest to the program; short, because `ps` shows it.  A
# user's own re.py in the current folder, the first of sys.path, must not take the place of Python's.
_READER = (
    "import sys;sys.path[:1]=filter(None,sys.path[:1])\n"
    'import os;s=b""\nwhile len(s)<{size}:s+=os.read(0,{size}-len(s))or os._exit(74)\nexec(s)'
)

# Runs under any Python up to the version test, so that an old one reports its version, not a syntax error.
_PRELUDE = """\
import sys
def run(name,arguments,program):
 import linecache
 if sys.version_info<(3,8):
  sys.exit("ringup: needs Python 3.8 or later, %s is %s"%(sys.executable,sys.version.split()[0]))
 linecache.cache[name]=(len(program),None,program.splitlines(True),name)
 sys.argv=[name]+arguments
 exec(compile(program,name,"exec"),{"__name__":"__main__","__builtins__":__builtins__})
"""


def loop_script(token: str) -> str:
    """The waiting loop, for `sh -c`."""
    return _LOOP.format(token=token, unheard=UNHEARD)


def login_command(token: str) -> str:
    """
    The loop as a command line for any login shell.

    >>> "'" in loop_script("t") or "!" in loop_script("t") or chr(10) in loop_script("t")
    False
    """
    return f"exec /bin/sh -c '{loop_script(token)}'"


def request(token: str, kind: str, number: int, script: str) -> bytes:
    """The bytes that make the loop run `script`; the leading newline ends any garbage before it."""
    body = script.encode("utf-8", "surrogateescape")
    return f"\n{token} {kind} {number} {len(body)}\n".encode() + body


def python_script(python: str, label: str, program: str, arguments: tuple[str, ...]) -> tuple[str, bytes]:
    """A script that starts a Python program, and its stdin; `ps` shows `label`, never `arguments`."""
    source = f"{_PRELUDE}run({label!a},{[*arguments]!a},{program!a})\n".encode()
    name = shlex.quote(python)
    reader = shlex.quote(_READER.format(size=len(source)))
    missing = shlex.quote(f"ringup: no {python} on this node; its PATH is")
    script = (
        f'command -v {name} >/dev/null 2>&1 || {{ printf "%s %s\\n" {missing} "$PATH" >&2; exit 127; }}\n'
        f"exec {name} -c {reader} {shlex.quote(label)}"
    )
    return script, source


class MarkedStream:
    """
    Splits a byte stream into data and marks, from pieces of any size.

    >>> stream = MarkedStream("t")
    >>> list(stream.feed(b"ab" + MARK + b"t en")) + list(stream.feed(b"d 1 0" + b"\\n" + b"cd"))
    [b'ab', ('end', '1', '0'), b'cd']
    """

    LONGEST_MARK = 200

    def __init__(self, token: str) -> None:
        self._head = MARK + token.encode() + b" "
        self._mark = re.compile(b"%b([^\n]{0,%d})\n" % (re.escape(self._head), self.LONGEST_MARK))
        self._held = b""

    def feed(self, data: bytes) -> Iterator[bytes | tuple[str, ...]]:
        """Data (never empty) and marks (their words) in order; an unfinished mark is held back."""
        pieces = self._mark.split(self._held + data)
        data = pieces.pop()
        for before, words in zip(pieces[::2], pieces[1::2], strict=True):
            if before:
                yield before
            yield tuple(words.decode("ascii", "replace").split())
        at = data.find(MARK, max(0, len(data) - len(self._head) - self.LONGEST_MARK))
        while at >= 0 and not (data.startswith(self._head, at) or self._head.startswith(data[at:])):
            at = data.find(MARK, at + 1)
        self._held = data[at:] if at >= 0 else b""
        if data := data[: len(data) - len(self._held)]:
            yield data

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held
