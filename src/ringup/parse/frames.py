"""A node's answer to the facts script: separates our output from the shell's."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_HEADER = 200
_COUNTS = {"ready": "announced_bytes", "setup-end": "setup_code", "setup-failed": "setup_failed"}
_WORDS = {"unusable": "python", "setup": "setup_words"}
"""Mark -> field of `Frames`."""


@dataclass(frozen=True)
class Frames:
    """The parts of one answer; everything in it is untrusted."""

    noise: bytes = b""
    """Output before our script began."""
    begun: bool = False
    ended: bool = False
    announced_bytes: int | None = None
    """Announced length of the facts, None if the announcement is missing."""
    facts: bytes = b""
    python: str | None = None
    """Paths of Pythons that could not run the program; None if one answered."""
    setup_words: str = ""
    setup_code: int | None = None
    """Exit status of --setup, None without --setup or if it did not finish."""
    setup_failed: int | None = None
    """Exit status of the shell that --setup ended, or 124 if it was stopped for its time."""


def number(text: str) -> int | None:
    """
    A count from a header, None for anything else.

    >>> number("12"), number("-1"), number("99999999999999")
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def split_frames(out: bytes, token: str) -> Frames:
    r"""
    Split an answer at the marks that contain `token`.

    >>> made = split_frames(b"motd\n\n\x1et begin\n\n\x1et ready 2\n\x1et facts\n{}\n\x1et end\n", "t")
    >>> made.noise, made.announced_bytes, made.facts, made.ended
    (b'motd\n', 2, b'{}', True)
    """
    pieces = ("\n" + out.decode("latin-1")).split(f"\n\x1e{token} ")
    noise = pieces[0][1:].encode("latin-1")
    found: dict[str, object] = {}
    for piece in pieces[1:]:
        header, _, body = piece.partition("\n")
        content = body.encode("latin-1")
        match header[:LONGEST_HEADER].split():
            case ["ready" | "setup-end" | "setup-failed" as mark, count]:
                found[_COUNTS[mark]] = number(count)
            case ["unusable" | "setup" as mark]:
                found[_WORDS[mark]] = content.decode("utf-8", "replace").strip()
            case ["facts"]:
                found["facts"] = content
            case ["begin" | "end" as mark]:
                found["begun" if mark == "begin" else "ended"] = True
    return Frames(noise=noise, **found)  # type: ignore[arg-type]
