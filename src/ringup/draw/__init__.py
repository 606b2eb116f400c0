"""
Pictures for pages: pure functions from data to SVG text or PNG bytes.  No script, nothing fetched.

Colours are Okabe and Ito's, which people with any colour vision can distinguish, and colour is never the only
sign: bars have patterns, marks have shapes, cells have words.  `STYLE` and `PATTERNS` are once in each page.
All text is escaped here; numbers are ours.
"""

from __future__ import annotations

from html import escape

SHADES = {
    "launch": ("#9aa3ad", "#7d8792"),
    "start": ("#c3cad1", "#59636d"),
    "init": ("#56b4e9", "#56b4e9"),
    "work": ("#0072b2", "#3d9bd8"),
    "wait": ("#e69f00", "#e69f00"),
    "bad": ("#d55e00", "#ef7a2a"),
    "unknown": ("#c3cad1", "#59636d"),
}
"""For a light and for a dark page."""


_HATCHES = {
    "wait": "M0 6L6 0M-1 1L1 -1M5 7L7 5", "init": "M3 0V6", "launch": "M0 3H6", "bad": "M0 0L6 6M0 6L6 0",
    "unknown": "M1 1h1M4 4h1",
}  # fmt: skip
PATTERNS = (
    '<svg width="0" height="0" aria-hidden="true" class="defs"><defs>'
    + "".join(
        f'<pattern id="p-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="var(--{name})"/><path d="{shape}" class="hatch"/></pattern>'
        for name, shape in _HATCHES.items()
    )
    + "</defs></svg>"
)
"""Fills that differ without colour, for every picture of a page."""

STYLE = (
    ":root{"
    + "".join(f"--{name}:{light};" for name, (light, _) in SHADES.items())
    + "--ink:#111;--paper:#fff;--soft:#0002}@media (prefers-color-scheme:dark){:root{"
    + "".join(f"--{name}:{dark};" for name, (_, dark) in SHADES.items())
    + "--ink:#eee;--paper:#16181b;--soft:#fff3}}"
    ".defs{position:absolute}.hatch{stroke:#0009;fill:none}"
    "svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .small{font-size:10px}"
    ".box{fill:var(--soft);stroke:var(--ink)}"
    ".b-work{fill:var(--work)}.b-start{fill:var(--start)}"
    + "".join(f".b-{name}{{fill:url(#p-{name})}}" for name in _HATCHES)
    + ".tick{stroke:var(--paper);fill:var(--paper);vector-effect:non-scaling-stroke}"
    ".call{stroke:var(--ink);fill:var(--ink);vector-effect:non-scaling-stroke}"
    "svg text.sign{font-weight:bold;font-size:15px;paint-order:stroke;stroke:var(--paper);stroke-width:3px}"
    ".axis{stroke:var(--ink);stroke-opacity:.25}.line{fill:none;stroke-width:2}"
)


def svg(words: str, body: str, size: str, kind: str = "") -> str:
    """A picture with its text for screen readers."""
    name = escape(words, quote=True)
    kind = f' class="{kind}"' if kind else ""
    return f'<svg role="img" aria-label="{name}" {size}{kind}><title>{name}</title>{body}</svg>'
