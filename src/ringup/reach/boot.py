"""
What is sent to a node: the loop that waits there, and how requests and answers are framed.

The loop is one line of POSIX sh, given as ssh's remote command: a shell that took it from
stdin would read ahead and swallow requests.  It avoids single quotes, "!" and newlines, so
that csh, fish and zsh as login shells hand it on unchanged.  Requests are read with
`read -r` (byte by byte on a pipe, in dash and bash alike) and `head -c` (which never reads
past its count), so what follows belongs to the program that is started.

Marks carry a random token; everything on stdout between two marks is the script's own.
They begin with byte 1, which text does not hold, so no line of live output waits for the
next one to prove that it is not a mark.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterator

MARK = b"\x01"
UNHEARD = 75
"""A program's exit code that says: nobody speaks on this connection any more.  The loop ends with it, for
where a cable was cut sshd notices nothing for up to two hours."""

# A PATH that start-up files broke must not lose the request.
# ru_* because an exported variable of the user named "n" would otherwise reach the scripts changed.
# `ready` and `end` go to both streams: sshd forwards them in no fixed order, and noise is over,
# or an answer complete, when both have said so.
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

# Reads exactly its own bytes from fd 0 and leaves the rest to the program; short, because `ps` shows it.
_READER = 'import os;s=b""\nwhile len(s)<{size}:s+=os.read(0,{size}-len(s))or os._exit(74)\nexec(s)'

# Runs under any Python up to the version test, so that an old one says so instead of a syntax error.
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


def new_token() -> str:
    """128 random bits in hex: nothing a node prints by accident."""
    return secrets.token_hex(16)


def loop_script(token: str) -> str:
    """The waiting loop, for `sh -c`."""
    return _LOOP.format(token=token, unheard=UNHEARD)


def login_command(token: str) -> str:
    """
    The same as a line for any login shell.

    >>> "'" in loop_script("t") or "!" in loop_script("t") or chr(10) in loop_script("t")
    False
    """
    return f"exec /bin/sh -c '{loop_script(token)}'"


def request(token: str, kind: str, number: int, script: str) -> bytes:
    """The bytes that make the loop run `script`; the leading newline ends whatever garbage came before."""
    body = script.encode("utf-8", "surrogateescape")
    return f"\n{token} {kind} {number} {len(body)}\n".encode() + body


def python_request(
    token: str, number: int, interpreter: str, label: str, program: str, arguments: tuple[str, ...]
) -> bytes:
    """The bytes that start a Python program with the rest of stdin; `ps` shows `label`, never `arguments`."""
    source = f"{_PRELUDE}run({label!a},{[*arguments]!a},{program!a})\n".encode()
    python = shlex.quote(interpreter)
    reader = shlex.quote(_READER.format(size=len(source)))
    missing = shlex.quote(f"ringup: no {interpreter} on this node; its PATH is")
    script = (
        f'command -v {python} >/dev/null 2>&1 || {{ printf "%s %s\\n" {missing} "$PATH" >&2; exit 127; }}\n'
        f"exec {python} -c {reader} {shlex.quote(label)}"
    )
    return request(token, "run", number, script) + source


class MarkedStream:
    """
    Cuts a byte stream into data and marks, in whatever pieces it arrives.

    >>> stream = MarkedStream("t")
    >>> list(stream.feed(b"ab" + MARK + b"t en")) + list(stream.feed(b"d 1 0" + b"\\n" + b"cd"))
    [b'ab', ('end', '1', '0'), b'cd']
    """

    LONGEST_MARK = 200

    def __init__(self, token: str) -> None:
        self._head = MARK + token.encode() + b" "
        self._held = b""

    def feed(self, data: bytes) -> Iterator[bytes | tuple[str, ...]]:
        """Data (never empty) and marks (their words) in order; an unfinished mark is held back."""
        data, self._held = self._held + data, b""
        while data:
            at = data.find(self._head)
            if at < 0:
                at = self._beginning(data)
                self._held = data[at:]
                if at:
                    yield data[:at]
                return
            if at:
                yield data[:at]
                data = data[at:]
            end = data.find(b"\n", 0, self.LONGEST_MARK)
            if end >= 0:
                yield tuple(data[len(self._head) : end].decode("ascii", "replace").split())
                data = data[end + 1 :]
            elif len(data) < self.LONGEST_MARK:
                self._held = data
                return
            else:
                yield data[:1]
                data = data[1:]

    def rest(self) -> bytes:
        """What is held back when the stream has ended."""
        held, self._held = self._held, b""
        return held

    def _beginning(self, data: bytes) -> int:
        """Where at the end of `data` a mark may have begun; len(data) if nowhere."""
        at = data.find(MARK, max(0, len(data) - len(self._head)))
        while at >= 0:
            if self._head.startswith(data[at:]):
                return at
            at = data.find(MARK, at + 1)
        return len(data)
