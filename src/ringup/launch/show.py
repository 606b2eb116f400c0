"""How a rank's output and its end are put in words: safe for a terminal whatever the job printed."""

from __future__ import annotations

import re
import signal

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|[\]P^_X][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"  # OSC and the other strings: titles, links, clipboard
    r"|[ -/]*[0-~])"  # two- and three-byte sequences
)
LONGEST_LINE = 4000
"""Characters of one line on the terminal; files hold all of it."""

SIGNAL_HINTS = {
    signal.SIGKILL: "often the kernel's out-of-memory killer (see `dmesg` on the node)",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "a failed assertion in native code, or NCCL's watchdog",
    signal.SIGBUS: "often /dev/shm is full",
    signal.SIGILL: "an instruction this processor does not have: a build for another one",
    signal.SIGTERM: "ended from outside",
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "its terminal or session ended",
    signal.SIGXCPU: "its CPU time limit",
    signal.SIGXFSZ: "its file size limit",
}


def clean(text: str, longest: int = LONGEST_LINE) -> str:
    """
    One line of a job's output without anything a terminal would act on; tabs stay.

    A progress bar that draws over itself shows its last state.

    >>> clean("\\x1b[31mred\\x1b[0m\\x07  50%\\r 100%"), clean("a\\tb\\x00")
    (' 100%', 'a\\tb')
    """
    if not text.isprintable():
        text = text.rstrip("\r\n").rpartition("\r")[2]
        text = _ESCAPES.sub("", text)
        text = "".join(c for c in text if c.isprintable() or c == "\t")
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters)"


def signal_words(number: int) -> str:
    """
    A signal by name, with what it usually means here.

    >>> signal_words(11)
    'SIGSEGV (11): a crash in native code'
    """
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    hint = SIGNAL_HINTS.get(known)
    return f"{known.name} ({number})" + (f": {hint}" if hint else "")


def end_words(code: int) -> str:
    """
    How a process ended; negative is a signal.

    >>> end_words(3), end_words(-15)
    ('exit code 3', 'killed by SIGTERM (15): ended from outside')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {signal_words(-code)}"


def shell_code(code: int) -> int:
    """
    The exit status a shell would show.

    >>> shell_code(3), shell_code(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code
