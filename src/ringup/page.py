"""`--html F`: the result of a check as one self-contained page.  No script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ringup import __version__
from ringup.chosen import prediction_lines
from ringup.facts import Cluster
from ringup.plan import Plan
from ringup.plan.expected import Expected
from ringup.plan.kept import Kept
from ringup.report import counts, kept_lines, pairs_line, root_lines, skipped_lines
from ringup.rules import Finding, Skipped
from ringup.units import export_line, printable

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}
:root{color-scheme:light dark}
h1{font-size:1.4rem} h2{font-size:1.1rem;margin-top:2rem} code,pre{font:13px/1.5 ui-monospace,monospace}
table{border-collapse:collapse} td,th{border:1px solid #8888;padding:.25rem .6rem;text-align:left}
td,th{vertical-align:top} pre{background:#8882;padding:.5rem;overflow-x:auto}
.f{border-left:5px solid;padding:.1rem 1rem;margin:1rem 0} .error{border-color:#c62828}
.warning{border-color:#ef8e00} .note{border-color:#1e88e5}
dl{display:grid;grid-template-columns:6rem 1fr;margin:.3rem 0} dd{margin:0} dt{opacity:.7}
.ok{background:#2e7d3244} .bad{background:#c6282866} .part{background:#ef8e0055}
"""


def text(value: object, limit: int = 2000) -> str:
    """Anything from a node as harmless HTML text."""
    return escape(printable(str(value), limit))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    lines = ["<table><tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr>"]
    lines += [
        "<tr>" + "".join(c if c.startswith("<td") else f"<td>{c}</td>" for c in row) + "</tr>" for row in rows
    ]
    return "\n".join([*lines, "</table>"])


def finding_html(finding: Finding) -> str:
    """One finding with its reason and fix."""
    parts = [("found", finding.found), ("wanted", finding.wanted), ("avoided", finding.worked_around_by)]
    parts += [("why", finding.why), ("fix", finding.fix.text if finding.fix else None)]
    rows = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in parts if value)
    commands = [export_line(k, v) for k, v in finding.fix.env.items()] if finding.fix else []
    commands += list(finding.fix.commands) if finding.fix else []
    code = f"<pre>{chr(10).join(text(c) for c in commands)}</pre>" if commands else ""
    head = (
        f"<strong>{text(finding.severity)}</strong> {text(finding.where)} <code>{text(finding.rule)}</code>"
    )
    return f'<div class="f {escape(finding.severity or "error")}">{head}<dl>{rows}</dl>{code}</div>'


def matrix_html(cluster: Cluster, limit: int = 32) -> str:
    """Who reached whom: good paths of all tried, per direction."""
    names = [n.name for n in cluster.nodes][:limit]
    tried: dict[tuple[str, str], list[bool]] = {}
    for link in cluster.links:
        if link.purpose == "interface" and link.bound == "routed":
            tried.setdefault((link.src, link.dst), []).append(link.ok and link.large_packet_ok is not False)
    rows = []
    for src in names:
        cells = [f"<td>{text(src, 64)}</td>"]
        for dst in names:
            results = tried.get((src, dst))
            if not results:
                cells.append("<td></td>")
                continue
            mark = "ok" if all(results) else "part" if any(results) else "bad"
            cells.append(f'<td class="{mark}">{sum(results)}/{len(results)}</td>')
        rows.append(cells)
    return table(["from \\ to", *(text(n, 64) for n in names)], rows)


def node_rows(cluster: Cluster) -> list[list[str]]:
    """One row a node: addresses, interpreter, torch, GPUs."""
    rows = []
    for node in cluster.nodes:
        if node.unreached:
            rows.append([text(node.name, 64), f"not reached: {text(node.unreached.words)}", "", "", ""])
            continue
        interfaces = "<br>".join(
            f"{text(i.name, 64)} {text(', '.join(a.address for a in i.addresses) or 'no address')}"
            f"{'' if i.is_up and i.has_carrier else ' (down)'}"
            for i in node.interfaces
        )
        software = node.interpreter
        rows.append(
            [
                text(node.name, 64),
                interfaces,
                text(software.path),
                text(software.torch or "none"),
                str(node.gpu_count),
            ]
        )
    return rows


def check_page(
    cluster: Cluster,
    findings: Sequence[Finding],
    skipped: Sequence[Skipped],
    plan: Plan | None,
    predictions: Sequence[Expected] = (),
    kept: Sequence[Kept] = (),
) -> str:
    """The whole page: all that the text says, and who reached whom."""
    env = plan.env if plan else ()
    env_rows = [[text(v.name), text(v.value), text(v.node or "every node"), text(v.because)] for v in env]
    chosen = escape("\n".join(prediction_lines(predictions)))
    body = [
        f"<h1>ringup check: {text(counts(findings))}</h1>",
        f"<p>{len(cluster.nodes)} node{'s' * (len(cluster.nodes) != 1)}; {text(pairs_line(cluster))}.</p>",
        *(finding_html(f) for f in findings),
        "<h2>Environment</h2>",
        table(["variable", "value", "node", "because"], env_rows) if env_rows else "<p>Nothing to set.</p>",
        *(f"<p>{text(note)}</p>" for note in ((*plan.notes, *plan.open) if plan else ())),
        *(["<h2>What will be chosen</h2>", f"<pre>{chosen}</pre>"] if chosen else []),
        "<h2>Nodes</h2>",
        table(["node", "interfaces", "python", "torch", "GPUs"], node_rows(cluster)),
    ]
    if cluster.links:
        body += ["<h2>Paths that carry small and large messages</h2>", matrix_html(cluster)]
    for title, told in (
        ("Set already", kept_lines(kept)),
        ("Not checked", skipped_lines(skipped)),
        ("Root would also see", root_lines(skipped)),
    ):
        if told:
            body += [f"<h2>{title}</h2>", "<ul>", *(f"<li>{escape(s.strip())}</li>" for s in told), "</ul>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>ringup check</title>'
        f"<style>{STYLE}</style></head><body>{chr(10).join(body)}"
        f"<p><small>ringup {__version__}</small></p></body></html>\n"
    )
