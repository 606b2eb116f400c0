"""`ringup logs --html F`: a diagnosis as one self-contained page.  No script, nothing fetched."""

from __future__ import annotations

from ringup import __version__
from ringup.logs.causes import Cause
from ringup.logs.read import Diagnosis
from ringup.logs.show import used_devices
from ringup.page import STYLE, table, text
from ringup.units import export_line


def cause_html(cause: Cause, diagnosis: Diagnosis) -> str:
    """One cause: what, where, the lines, the fix."""
    where = ", ".join([*cause.nodes[:16], *(f"rank {r}" for r in cause.ranks[:16])])
    lines = "\n".join(
        f"{text(diagnosis.story.files[e.file].path)}:{e.line}  {text(e.text, 500)}" for e in cause.evidence
    )
    fix = cause.fix
    commands = [export_line(k, v) for k, v in fix.env.items()] + list(fix.commands) if fix else []
    code = f"<pre>{chr(10).join(text(c) for c in commands)}</pre>" if commands else ""
    return (
        f'<div class="f {cause.severity or "error"}"><strong>{cause.severity}</strong> '
        f"<code>{text(cause.rule)}</code> "
        f"({cause.confidence} confidence) {text(where)}<p>{text(cause.text)}</p><pre>{lines}</pre>"
        f"<dl><dt>fix</dt><dd>{text(fix.text if fix else '')}</dd></dl>{code}</div>"
    )


def page(diagnosis: Diagnosis) -> str:
    """The whole page."""
    causes = (
        "\n".join(cause_html(c, diagnosis) for c in diagnosis.causes)
        or "<p>No cause of a failure was found.</p>"
    )
    hosts = [h for h in diagnosis.story.hosts.values() if h.kind or h.bootstrap]
    networks = table(
        ("node", "network", "bootstrap", "used", "offered"),
        [
            (
                text(h.name or "-"),
                text(h.kind or "-"),
                text(" ".join(h.bootstrap) if h.bootstrap else "-"),
                text(", ".join(used_devices(h)) or "-"),
                text(", ".join(h.interfaces) or "-"),
            )
            for h in hosts
        ],
    )
    files = table(
        ("file", "host", "rank", "lines", "init", "last line"),
        [
            (
                text(i.path),
                text(i.host),
                text("" if i.rank is None else i.rank),
                str(i.lines),
                {True: "complete", False: "not complete", None: ""}[i.init_complete],
                text(i.last_line, 200),
            )
            for i in diagnosis.story.files[:2000]
        ],
    )
    counts = table(
        ("what", "count"),
        [
            (text(k), str(v))
            for k, v in [*diagnosis.run.transports.items(), *diagnosis.run.collectives.items()]
        ],
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ringup '
        f"logs</title><style>{STYLE}</style>"
        f"<h1>ringup logs</h1>{causes}<h2>Networks</h2>{networks}<h2>Transports and collectives</h2>{counts}"
        f"<h2>Files</h2>{files}<p>ringup {__version__}</p></html>\n"
    )
