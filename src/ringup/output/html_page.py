"""`--html F`: a check or a diagnosis as one self-contained page.  No script, nothing fetched."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from ringup.model import Cluster, Node
from ringup.output.console import Report, counts, network_line, sections
from ringup.output.terminal import Style
from ringup.rules import Fix
from ringup.secrets import redact
from ringup.units import export_line, plural, printable
from ringup.version import __version__

if TYPE_CHECKING:
    from ringup.logs.read import Diagnosis

MOST_IN_MATRIX = 32
MOST_FILES = 2000


def _harmless(value: object) -> object:
    """Anything from a node without secrets and control characters; `autoescape` makes it text of HTML."""
    if isinstance(value, Markup | jinja2.Undefined):
        return value
    return "\n".join(printable(redact(line), 2000) for line in str(value).split("\n"))


def _commands(fix: Fix) -> list[str]:
    return [*(export_line(k, v) for k, v in fix.env.items()), *fix.commands]


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ringup.output"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["commands"] = _commands
    return made


def _render(command: str, **fields: Any) -> str:
    return _environment().get_template(f"{command}.j2").render(command=command, version=__version__, **fields)


def node_row(node: Node) -> tuple[str, ...]:
    if node.unreached:
        return (node.name, f"not reached: {node.unreached.words}", "", "", "")
    interfaces = "\n".join(
        f"{i.name} {', '.join(a.address for a in i.addresses) or 'no address'}"
        f"{'' if i.is_up and i.has_carrier else ' (down)'}"
        for i in node.interfaces
    )
    software = node.interpreter
    return (node.name, interfaces, software.path, software.torch or "none", str(node.gpu_count))


def paths(cluster: Cluster) -> dict[str, list[list[bool]]]:
    """Of each node to each other, the paths that were tested: whether each works."""
    names = [n.name for n in cluster.nodes][:MOST_IN_MATRIX]
    tried: dict[tuple[str, str], list[bool]] = {}
    for link in cluster.links:
        if link.purpose == "interface" and link.bound == "routed":
            tried.setdefault((link.src, link.dst), []).append(link.ok and link.large_packet_ok is not False)
    return {src: [tried.get((src, dst), []) for dst in names] for src in names} if cluster.links else {}


def check_page(report: Report) -> str:
    return _render(
        "check",
        counts=counts(report.findings),
        size=plural(len(report.cluster.nodes), "node"),
        network=network_line(report.cluster),
        findings=report.findings,
        nodes=map(node_row, report.cluster.nodes),
        paths=paths(report.cluster),
        sections=sections(report, Style(io.StringIO())),
    )


def logs_page(diagnosis: Diagnosis) -> str:
    from ringup.output.logs_report import used_devices

    files = diagnosis.story.files
    init = {True: "complete", False: "not complete", None: ""}
    causes = []
    for cause in diagnosis.causes:
        places = ", ".join([*cause.nodes[:16], *(f"rank {r}" for r in cause.ranks[:16])])
        lines = [f"{files[e.file].path}:{e.line}  {printable(e.text, 500)}" for e in cause.evidence]
        causes.append((cause, f"({cause.confidence} confidence) {places}", lines))
    return _render(
        "logs",
        causes=causes,
        networks=[
            [h.name, h.kind, " ".join(h.bootstrap or ()), ", ".join(used_devices(h)), ", ".join(h.interfaces)]
            for h in diagnosis.story.hosts.values()
            if h.kind or h.bootstrap
        ],
        counts=[*diagnosis.run.transports.items(), *diagnosis.run.collectives.items()],
        files=[
            (i.path, i.host, "" if i.rank is None else i.rank, i.lines, init[i.init_complete], i.last_line)
            for i in files[:MOST_FILES]
        ],
    )


def diff_page(heads: Sequence[str], rows: Sequence[Sequence[str]], lacking: Sequence[str]) -> str:
    """What is compared, a row for each difference, and what could not be compared."""
    return _render("diff", heads=heads, rows=rows, lacking=lacking)
