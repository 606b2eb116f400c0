"""
Fills the templates: every value needs a filter that defines its quoting.

A value without one of `_FILTERS` raises TypeError; whole numbers need none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace

import jinja2
from markupsafe import Markup

from ringup.agent_bundle import source
from ringup.errors import LaunchError
from ringup.jobfiles import BATCH, KNOWN_NODES, PODS, Asked, quoting
from ringup.planning import env_formats
from ringup.planning.mitigations import PINS
from ringup.secrets import holds_secret
from ringup.units import grouped, printable

_HOST_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words that YAML 1.1 reads as another type than text."""


def render(kind: str, asked: Asked) -> str:
    """The file that starts the job; LaunchError if this kind cannot start it."""
    _refuse(kind, asked)
    start = quoting.started(asked)
    per_rank = quoting.per_rank(asked)
    own = (v for v in asked.env if v.node is not None and v.name not in PINS)
    nodes = asked.plan.nodes if asked.plan else ()
    is_short = kind in BATCH and not asked.restarts and not asked.finds_network
    template = _environment().get_template(f"{'short' if is_short else kind}.j2")
    return template.render(
        kind=kind,
        asked=asked,
        job=asked.job,
        plan=asked.plan if kind in KNOWN_NODES else None,
        title=Markup(quoting.describe(asked)),
        name=_host_name(asked.name) if kind in PODS else "",
        hosts=[asked.targets.get(n.node, n.node) for n in nodes],
        node_ranks={n.node: n.rank for n in nodes},
        interface=quoting.common_interface(asked),
        common=quoting.variables(asked),
        own=[v for same in grouped((v.node, v) for v in own).values() for v in same],
        secrets=[v for v in asked.env if holds_secret(v.name, v.value)],
        start=start,
        per_rank=per_rank,
        used=set() if asked.restarts else quoting.used(start) | ({"NODE_RANK"} if per_rank else set()),
        # Whether the command contains the number of nodes: it is wrong for a job of another size.
        counts_nodes=asked.nodes > 0 and start != quoting.started(replace(asked, nodes=asked.nodes + 1)),
    )


def _refuse(kind: str, asked: Asked) -> None:
    """Raises LaunchError for jobs that a kind with named nodes cannot start."""
    if kind not in KNOWN_NODES:
        return
    wrong = hint = ""
    counts = sorted({n.nproc for n in asked.plan.nodes}) if asked.plan else []
    if asked.restarts:
        wrong = f"a file for {kind} cannot restart a run, nor ask it to save"
        hint = "`ringup run` with the same options does"
    elif asked.plan is None:
        wrong = f"a file for {kind} names the nodes and their network, which are not known"
        hint = "name the nodes with -H (ringup checks them), or give --from F, a file of `check --save F`"
    elif len(counts) > 1:
        wrong = f"the nodes have different numbers of ranks ({', '.join(map(str, counts))})"
        hint = "give all the same with --nproc, or use `ringup run`"
    elif kind == "docker" and ":" in asked.job.chdir:
        folder = printable(asked.job.chdir)
        wrong = f"docker cannot mount {folder}: it takes the colon for the end of the path"
        hint = "--chdir names a directory without a colon"
    if wrong:
        raise LaunchError(wrong, hint=hint)


def _host_name(text: str) -> str:
    """The job's name as part of host names (RFC 1035 label); raises LaunchError if that is impossible."""
    name = text.lower().replace("_", "-").replace(".", "-")
    if not _HOST_NAME.fullmatch(name):
        hint = "--name takes small letters, digits and -, at most 52 of them"
        raise LaunchError(f"{name!r} cannot be part of a host name", hint=hint)
    return name


@jinja2.pass_context  # with it constants also come here, and are not HTML-escaped at compile time
def _quoted_only(_: object, value: object) -> Markup:
    """Accept a template's output: the result of a filter, or a whole number."""
    if isinstance(value, Markup):
        return value
    if type(value) is int:
        return Markup(value)
    raise TypeError(f"{value!r} is written without a quoting filter")


def _directive(given: str, line: str, example: str) -> str:
    """A scheduler's directive; without a value an example, commented out by one more #."""
    return ("#" if given else "##") + line.format(quoting.word(given or example))


def yaml_scalar(text: str, indent: str = "") -> str:
    """
    Text as a scalar: plain if YAML reads it as text, else a block of lines, else in double quotes.

    >>> yaml_scalar("a/b"), yaml_scalar("8"), yaml_scalar("no"), yaml_scalar("a: b")
    ('a/b', '"8"', '"no"', '"a: b"')
    """
    if _PLAIN_YAML.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    lines = text.split("\n")
    # A block preserves exactly these texts: printable lines, the first not indented, one line end at the end.
    is_block = len(lines) > 2 and lines[-1] == "" and lines[-2] != "" and not text.startswith((" ", "\n"))
    if is_block and all(line.isprintable() and line == line.rstrip() for line in lines):
        return "|\n" + "\n".join(f"{indent}  {line}" if line else "" for line in lines[:-1])
    return env_formats.quoted(text)


def _marked(function: Callable[..., str]) -> Callable[..., Markup]:
    return lambda value, *options: Markup(function(value, *options))


_FILTERS: dict[str, Callable[..., str]] = {
    "sh": quoting.quoted,  # one word of bash
    "words": lambda words: " ".join(map(quoting.quoted, words)),
    "cd": quoting.enter,
    "exports": quoting.exports,  # lines that set variables, with their reasons above
    "command": quoting.command,  # the launcher's words
    "expanded": quoting.expanded,  # a word of bash with shell variables in it (`quoting.variable`)
    "comment": env_formats.comment,  # after #, on one line
    "yaml": yaml_scalar,
    "directive": _directive,
    "seconds": quoting.seconds,  # of a limit such as 10:00:00
    # unchanged; an error if it contains other characters than letters, digits and .,:@/+=%-
    "word": quoting.word,
    "line": quoting.line,  # unchanged; an error if it is not one printable line
    "code": str,  # unchanged: shell text of the user or of ringup
}


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ringup.jobfiles"),
        undefined=jinja2.StrictUndefined,
        # Nothing is HTML-escaped, because `finalize` accepts only Markup; blocks and filters keep that type.
        autoescape=True,
        finalize=_quoted_only,
        comment_start_string="{##",
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name, function in _FILTERS.items():
        made.filters[name] = _marked(function)
    made.filters["unexpanded"] = lambda text: env_formats.unexpanded(str(text))
    made.filters["string"] = str
    made.tests["secret"] = lambda v: holds_secret(v.name, v.value)
    made.globals["source"] = source
    return made
