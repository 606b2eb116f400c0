"""
A file of any kind as its launches.

    found = read("job.sh", text, {"hosts": "n1 slots=8"})
    for launch in found.launches: launch.summary
    found.not_read
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringup.launchfiles import make, manifests, shell
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import Launch, NotRead, hosts_of, launches_of, not_read
from ringup.launchfiles.settings_file import settings
from ringup.launchfiles.shell import PASTED, Job

Files = Mapping[str, str]
"""Path -> text."""
YAML = (".yaml", ".yml")
_OF_RST = re.compile(
    r"([ \t]{0,99})(?!\s)(?:\.\. (?:source)?code(?:-block)?::\s{0,9}([\w-]{0,20})|(?!\.\.).{0,400}::)\s{0,99}"
)
"""A line above indented code in reStructuredText; in Markdown it is empty."""
_EMPTY, _OPTION = re.compile(r"()()\s{0,999}"), re.compile(r"\s{0,99}(?::[\w-]{1,40}:.{0,400})?")
_DRAWN = re.compile(r"(?m)^\s{0,99}[→├└│┌]")
"""A diagram."""
_FENCE = re.compile(r"[ \t]{0,99}(`{3,9}|~{3,9})[ \t]{0,9}([\w-]{0,20})")
"""A line around code in Markdown."""
MOST_BLOCKS = 200
"""Blocks of a page that are read."""
_OF_SHELL = re.compile("(?:ba|z)?sh|shell|console|(?:shell-?)?session|terminal|slurm|sbatch|pbs")
"""Languages of the code that are a shell's."""
_IN_SHELL = re.compile(
    r"(?m)^ {0,9}(?:\$ |#!|#(?:SBATCH|PBS|BSUB) )|\b(?:torchrun|accelerate launch|deepspeed|srun|mpirun) "
)
_MANIFEST = re.compile(
    r"\s*(?:#.*\n\s*){0,20}(?:apiVersion|kind|type|resources|num_nodes|nodes|services|name|workdir|run"
    r"|commands):[ \n]"
)
"""The first key of a manifest, of a task of SkyPilot or dstack, of a compose file."""
_IN_MANIFEST = re.compile(
    r"\b(?:torchrun|deepspeed|torch\.distributed\.(?:run|launch)|accelerate\W{1,9}launch|mpirun|mpiexec)\b"
)
_BY_OPERATOR = re.compile(r"(?m)^kind: *['\"]?(?:PyTorchJob|TrainJob)\b")


@dataclass(frozen=True)
class LaunchFile:
    """A file after it was read."""

    job: Job
    launches: Sequence[Launch]
    not_read: Sequence[NotRead]


Nearby = Callable[[str, str], str | None]
"""(path of a file, a name in it) -> the text of the file with that name; None without one."""


def read(path: str, text: str, others: Files | None = None, nearby: Nearby | None = None) -> LaunchFile:
    """A file's launches; `others` and `nearby` have files that it may name: sourced ones, configurations."""
    known = others or {}

    def sibling(name: str) -> str | None:
        if not name or has_mark(name):
            return None
        found = named(name, path, known)
        return nearby(path, name) if found is None and nearby else found

    if path.endswith(YAML) or (path.endswith(PASTED) and _MANIFEST.match(text) and _IN_MANIFEST.search(text)):
        return LaunchFile(*manifests.read(path, text, sibling))
    if (parts := blocks(path, text)) != [text]:
        found = [read(path, part, others, nearby) for part in parts]
        return next((one for one in found if one.launches), found[0])
    is_make = make.is_makefile(path)
    job = shell.read(path, make.as_shell(text) if is_make else text, sibling)
    job.sources += [path] if is_make else []  # who calls make may set more
    launches = launches_of(job)
    for document, line in job.unread if not launches else ():
        inner = _inner(path, document, line, sibling)
        if inner and inner.launches:
            return inner
    named_by = [other for other in known.values() if posixpath.basename(path) in other]
    for launch in launches:
        _configure(launch, sibling)
        launch.is_in_a_pod = any(map(_BY_OPERATOR.search, named_by))
    return LaunchFile(job, launches, not_read(job, launches))


def blocks(path: str, text: str) -> list[str]:
    """
    A page's code for the shell, each part between Markdown's fences with the lines above it empty.

    At most one more than MOST_BLOCKS.

    >>> blocks("README.md", "Type:\\n```sh\\ntorchrun t.py\\n```\\n")
    ['\\n\\ntorchrun t.py\\n']
    """
    lines = text.split("\n")
    is_part = text.startswith("\n")  # one of these blocks
    if path.endswith(".rst") and not is_part:
        return _indented(lines) or [""]
    is_page = path.endswith(PASTED) and not text.startswith("#!")
    marks = [(n, m[1], m[2].lower()) for n, line in enumerate(lines) if is_page and (m := _FENCE.match(line))]
    found, begun = list[str](), None
    for at, fence, kind in [*marks, (len(lines), "", "")]:
        if len(found) > MOST_BLOCKS:  # one more says that the page goes on
            break
        if begun is None:
            begun = (at, fence, kind)
        elif not kind and fence[: len(begun[1])] in (begun[1], ""):
            body = textwrap.dedent("\n".join(lines[begun[0] + 1 : at]))
            if _is_code(begun[2], body):
                found.append("\n" * (begun[0] + 1) + body + "\n")
            begun = None
    if is_page and not (marks or is_part) and path.endswith((".md", ".mdx")):
        found = _indented([line.expandtabs(4) for line in lines], False)
    return found or ["" if marks and path != "-" else text]


def _is_code(language: str, body: str) -> bool:
    """Whether a block is a shell's, or a manifest with a launcher."""
    if language in ("yaml", "yml"):
        return _MANIFEST.match(body) is not None and _IN_MANIFEST.search(body) is not None
    if language:
        return _OF_SHELL.fullmatch(language) is not None
    return _IN_SHELL.search(body) is not None and not _DRAWN.search(body)


def _indented(lines: Sequence[str], is_rst: bool = True) -> list[str]:
    """
    The code of a page without fences, like `blocks`.

    >>> _indented(["Type::", "", "  $ srun python t.py", "Done", ".. code:: python", "", "  A = 1"])
    ['\\n\\n$ srun python t.py\\n']
    """
    found, end = list[str](), 0
    for at, line in enumerate(lines):
        mark = (_OF_RST if is_rst else _EMPTY).fullmatch(line)
        if mark is None or at < end or len(found) > MOST_BLOCKS:
            continue
        begin, margin = at + 1, mark[1] + " " * (1 if is_rst else 4)
        while begin < len(lines) and _OPTION.fullmatch(lines[begin]):
            begin += 1
        end = begin
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(margin)):
            end += 1
        body = textwrap.dedent("\n".join(lines[begin:end])).rstrip()
        if body and _is_code((mark[2] or "").lower(), body):
            found.append("\n" * begin + body + "\n")
    return found


def _inner(path: str, document: str, above: int, sibling: shell.Sibling) -> LaunchFile | None:
    """A manifest or a script in a here-document, with its lines as in the file around it."""
    text = "\n" * above + document
    if re.search(r"(?m)^kind: ", document):
        return LaunchFile(*manifests.read(path, text, sibling))
    if not document.lstrip().startswith("#!"):
        return None
    job = shell.read(path, text, sibling)
    return LaunchFile(job, launches_of(job), ())


def named(name: str, path: str, others: Files) -> str | None:
    """The text of a file that another one names: below its folder, or the only one with its last part."""
    wanted, folder = posixpath.normpath(name), posixpath.dirname(path)
    last = posixpath.basename(wanted)
    same = {posixpath.normpath(p): t for p, t in others.items() if p.endswith(last) and p != path}
    same = {place: text for place, text in same.items() if posixpath.basename(place) == last}
    for place in (wanted, posixpath.normpath(posixpath.join(folder, wanted))):
        if place in same:
            return same[place]
    return next(iter(same.values())) if len(same) == 1 else None


def _configure(launch: Launch, sibling: shell.Sibling) -> None:
    """Add the settings of accelerate's configuration or DeepSpeed's host file to a launch."""
    by_hosts = dict.fromkeys(("deepspeed", "colossalai"), "hostfile")
    option = {"accelerate": "config-file", **by_hosts}.get(launch.launcher, "")
    if not (name := launch.start.option(option)):
        return
    written = launch.job.files.get(name)
    text = written if written is not None else sibling(name)
    if launch.launcher != "accelerate":
        launch.hosts = hosts_of(launch, text or "")
    elif text is not None:
        try:
            launch.config = dict(settings(text))
        except (ValueError, RecursionError, AttributeError):
            return
