"""A node's answer to the facts script: what is ours in it, what the shell added."""

from __future__ import annotations

from dataclasses import dataclass, field

LONGEST_HEADER = 200


@dataclass(frozen=True)
class Frames:
    """The pieces of one answer; everything in it is still the node's word."""

    noise: bytes = b""
    """What came before our script began."""
    begun: bool = False
    ended: bool = False
    announced_bytes: int | None = None
    """Length of the facts as told ahead, None when that was not reached."""
    facts: bytes = b""
    plain: dict[str, str] = field(default_factory=dict)
    """Output of each plain command, where no python answered."""
    setup_words: str = ""
    setup_code: int | None = None
    """Exit status of --setup, None when it was not asked or did not come to its end."""
    setup_failed: int | None = None
    """Exit status of the shell that --setup ended, or 124 when it was stopped for its time."""


def number(text: str) -> int | None:
    """
    A count from a header, None for anything else.

    >>> number("12"), number("-1"), number("99999999999999")
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def split_frames(out: bytes, token: str) -> Frames:
    r"""
    Cut an answer at the marks that carry `token`.

    >>> made = split_frames(b"motd\n\n\x1et begin\n\n\x1et ready 2\n\x1et facts\n{}\n\x1et end\n", "t")
    >>> made.noise, made.announced_bytes, made.facts, made.ended
    (b'motd\n', 2, b'{}', True)
    """
    pieces = ("\n" + out.decode("latin-1")).split(f"\n\x1e{token} ")
    noise = pieces[0][1:].encode("latin-1")
    found: dict[str, object] = {}
    plain: dict[str, str] = {}
    for piece in pieces[1:]:
        header, _, body = piece.partition("\n")
        words = header[:LONGEST_HEADER].split()
        content = body.encode("latin-1")
        match words:
            case ["begin"]:
                found["begun"] = True
            case ["ready", count]:
                found["announced_bytes"] = number(count)
            case ["facts"]:
                found["facts"] = content
            case ["plain", name]:
                plain[name] = content.decode("utf-8", "replace").strip("\n")
            case ["setup"]:
                found["setup_words"] = content.decode("utf-8", "replace").strip()
            case ["setup-end", code]:
                found["setup_code"] = number(code)
            case ["setup-failed", code]:
                found["setup_failed"] = number(code)
            case ["end"]:
                found["ended"] = True
    return Frames(noise=noise, plain=plain, **found)  # type: ignore[arg-type]
