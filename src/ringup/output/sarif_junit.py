"""
Findings for other programs: SARIF and GitHub's annotations for lint, JUnit for checks.

Sources: SARIF 2.1.0 (OASIS) with the fields of GitHub's code scanning ("SARIF support for code scanning",
docs.github.com), GitHub's workflow commands, the JUnit XML that GitLab and Jenkins read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from ringup.rules import PROBLEMS, Finding, Skipped
from ringup.secrets import redact, safe
from ringup.units import grouped, printable
from ringup.version import __version__

LONGEST_TEXT = 1000
"""Of a rule's description; GitHub takes 1024 characters."""
SHOWN_PER_KIND = 10
"""Annotations of one severity in one step of a workflow; GitHub silently drops the rest."""
GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def place(finding: Finding) -> tuple[str, int]:
    """(path, line) of a finding of lint; line 1 if it is about the file."""
    path, _, line = finding.where.rpartition(":")
    return (path, max(1, int(line))) if path and line.isdigit() else (finding.where, 1)


def text_of(finding: Finding) -> str:
    fix = f" Fix: {finding.fix.text}" if finding.fix and finding.fix.text else ""
    return safe(f"{finding.found}; wanted: {finding.wanted}.{fix}", LONGEST_TEXT)


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF 2.1.0 log of one run, with relative paths below %SRCROOT%."""
    rules = sorted({finding.rule for finding in findings})
    driver = {"name": "ringup", "semanticVersion": __version__, "rules": [*map(_sarif_rule, rules)]}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "where lint was started"}}},
        "results": [_sarif_result(finding, rules.index(finding.rule)) for finding in findings],
    }
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _sarif_rule(name: str) -> dict[str, Any]:
    problem = PROBLEMS[name]
    return {
        "id": name,
        "shortDescription": {"text": problem.summary[:LONGEST_TEXT] or name},
        "fullDescription": {"text": (problem.why or problem.summary)[:LONGEST_TEXT] or name},
        "helpUri": problem.page,
        "help": {"text": problem.fix[:LONGEST_TEXT] or f"ringup explain {name}"},
        "defaultConfiguration": {"level": problem.severity},
    }


def _sarif_result(finding: Finding, rule: int) -> dict[str, Any]:
    path, line = place(finding)
    print_of = hashlib.sha256(f"{finding.rule} {path} {finding.found}".encode("utf-8", "replace"))
    uri = quote(str(PurePosixPath(path)), errors="replace")
    artifact = {"uri": uri} if path.startswith("/") else {"uri": uri, "uriBaseId": "%SRCROOT%"}
    region = {"startLine": line, "startColumn": 1, "endLine": line, "endColumn": 2}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": text_of(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        "partialFingerprints": {"ringup/v1": print_of.hexdigest()[:32]},
    }


def github(findings: Sequence[Finding]) -> list[str]:
    """Workflow commands, the worst findings first; the last of a kind has the number of hidden ones."""
    by_kind = grouped((GITHUB[finding.severity or "note"], finding) for finding in findings)
    lines = []
    for kind in GITHUB.values():
        found = by_kind.get(kind, [])
        for number, finding in enumerate(found[:SHOWN_PER_KIND], 1):
            path, line = place(finding)
            left = len(found) - number if number == SHOWN_PER_KIND else 0
            more = f" ({left} more are not shown here)" if left else ""
            place_of = f"file={_property(path)},line={line},endLine={line},title={_property(finding.rule)}"
            lines.append(f"::{kind} {place_of}::{_data(text_of(finding) + more)}")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable(text, LONGEST_TEXT)).replace(":", "%3A").replace(",", "%2C")


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(
    nodes: Sequence[str], findings: Sequence[Finding], skipped: Iterable[Skipped], strict: bool = False
) -> str:
    """A suite per node and one for shared findings, a case per rule; warnings fail only with `strict`."""
    root = ElementTree.Element("testsuites", name="ringup")
    skips, add = list(skipped), ElementTree.SubElement
    for node in (*nodes, ""):
        name = _xml(node or "cluster")
        suite, of = add(root, "testsuite", name=name), {"classname": f"ringup.{name}"}
        for finding in (f for f in findings if (f.node or "") == node):
            fails = finding.severity == "error" or (strict and finding.severity == "warning")
            case = add(suite, "testcase", of, name=_xml(finding.rule))
            text = _xml(f"{finding.where}: {text_of(finding)}")
            add(case, "failure" if fails else "system-out").text = text
        for one in (s for s in skips if (s.node or "") == node):
            case, why = add(suite, "testcase", of, name=_xml(one.rule)), _xml(redact(one.reason))
            add(case, "skipped", message=why).text = why
        if len(suite) == 0:
            add(suite, "testcase", of, name="all rules")
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False)


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
