"""The commands of one node as lines of bash, and variables with their reasons."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ringup.errors import LaunchError, UsageError
from ringup.jobfiles import VARIABLE, Asked
from ringup.planning import EnvVar
from ringup.planning.env_formats import comment
from ringup.planning.launchers import LAUNCHERS, Place, Start, start
from ringup.planning.mitigations import PINS
from ringup.secrets import holds_secret
from ringup.units import plural, printable

_WORD = re.compile(r"[\w.,:@/+=%-]*")
_NEEDS_QUOTES = re.compile(r"[^A-Za-z0-9_@%+=:,./-]")
LINE = 100
"""Longer commands are broken."""


class Named(int):
    """A count that is written as a shell variable."""

    text: str

    def __new__(cls, count: int, name: str) -> Named:
        made = super().__new__(cls, count)
        made.text = variable(name)
        return made

    def __str__(self) -> str:
        return self.text


def variable(name: str) -> str:
    """
    A shell variable or `((arithmetic))` as part of a word, which `expanded` writes as $NAME.

    It is enclosed in NUL bytes, which no argument can contain, so a user's own `$NAME` is never mistaken for
    one.
    """
    return f"\0{name}\0"


def quoted(text: str) -> str:
    """
    A word quoted for bash, on one line.

    >>> quoted("a b"), quoted("it's"), quoted("a\\nb")
    ("'a b'", '\\'it\\'"\\'"\\'s\\'', "$'a\\\\nb'")
    """
    if text.isprintable():
        return shlex.quote(text)
    shown = "".join(c if c.isprintable() and c not in "\\'" else _escaped(c) for c in text)
    return f"$'{shown}'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character == "\n":
        return "\\n"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def word(text: str, option: str = "") -> str:
    """A value that a scheduler reads as one word: its quoting differs from a shell's.  Else UsageError."""
    if not _WORD.fullmatch(text):
        wrong = f"{option}{text!r} is not one word of letters, digits and .,:@/+=%-"
        raise UsageError(wrong, hint="give a plain word")
    return text


def line(text: str, option: str = "") -> str:
    """A single printable line; else UsageError."""
    if not text.isprintable():
        raise UsageError(f"{option}{text!r} is not one line of text", hint="give a plain word")
    return text


def enter(folder: str) -> str:
    """
    The line that changes to a directory; `cd -x` would read an option, `cd -` go back.

    >>> enter("a b"), enter("-")
    ("cd 'a b'", 'cd ./-')
    """
    return f"cd {quoted(f'./{folder}' if folder.startswith('-') else folder)}"


def expanded(text: str) -> str:
    r"""
    A word of bash in which only the result of `variable` is expanded.

    >>> expanded(f"--node-rank={variable('NODE_RANK')}"), expanded(f"$HOME {variable('RANK')}1")
    ('"--node-rank=$NODE_RANK"', '\'$HOME \'"$RANK"1')
    """
    parts = text.split("\0")
    if len(parts) == 1:
        return quoted(text)
    first, *others = parts[::2]
    if _NEEDS_QUOTES.search(first) or any(_NEEDS_QUOTES.search(o) or re.match(r"\w", o) for o in others):
        return "".join(f'"${part}"' if i % 2 else quoted(part) for i, part in enumerate(parts) if part)
    return '"' + "".join(f"${part}" if i % 2 else part for i, part in enumerate(parts)) + '"'


def exports(settings: Sequence[EnvVar]) -> str:
    """Lines that set variables, each reason once above; a secret comes from the submitting shell."""
    lines = []
    for reason, same in itertools.groupby(settings, key=lambda one: one.because):
        lines.append(f"# {comment(reason)}")
        for one in same:
            is_secret = holds_secret(one.name, one.value)
            there = f': "${{{one.name}:?set it before you start this}}"'
            lines.append(there if is_secret else f"export {one.name}={quoted(one.value)}")
    return "\n".join(lines)


def seconds(limit: str) -> str:
    """
    A time limit as seconds; UsageError if it has another form.

    >>> seconds("10:00:00"), seconds("90:00"), seconds("1-00:00:00")
    ('36000', '5400', '86400')
    """
    match = re.fullmatch(r"(?:(\d{1,4})-)?(?:(\d{1,5}):)?(\d{1,5}):(\d{1,2})", limit)
    if not match:
        hint = "hours:minutes:seconds, for example --time 25:00:00"
        raise UsageError(f"--time {printable(limit, 40)!r} is not a time limit", hint=hint)
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return str(days * 86400 + hours * 3600 + minutes * 60 + rest)


def variables(asked: Asked) -> list[EnvVar]:
    """Variables that are equal on all nodes; an interface only if the user named it, else found later."""
    common = (v for v in asked.env if v.node is None)
    return [v for v in common if v.name in asked.job.env or v.name not in PINS]


def common_interface(asked: Asked) -> str:
    """The user's interface, else the plan's if it has the same name on every node; else ""."""
    for name in PINS:
        own = asked.job.env.get(name, "").lstrip("=")
        if own and not own.startswith("^") and "," not in own:
            return own
    names = {node.interface for node in asked.plan.nodes} if asked.plan else set()
    return next(iter(names)) if len(names) == 1 else ""


def started(asked: Asked) -> Start:
    """The launcher's words and environment with `variable`s in them; LaunchError if it has no support."""
    for word in (asked.job.script, *asked.job.arguments, *asked.job.launcher_arguments, *asked.job.wrapper):
        if "\0" in word:
            raise LaunchError("an argument holds a NUL byte", hint="leave it out")
    place = Place(
        python=variable("PYTHON"),
        node_count=Named(asked.nodes, "NNODES"),
        node_rank=variable("NODE_RANK"),
        nproc=Named(asked.nproc, "NPROC"),
        nproc_all=(asked.nproc,) * asked.nodes,
        address=variable("ADDRESS"),
        master_addr=variable("MASTER_ADDR"),
        master_port=variable("MASTER_PORT"),
        run_id=variable("RUN_ID"),
        head=variable("((NODE_RANK == 0))"),
        gpu_count=asked.gpus,
        wait_s=asked.wait_s,
    )
    arguments = tuple(_live(text, asked.live) for text in asked.job.arguments)
    begun = start(place, replace(asked.job, arguments=arguments))
    env = tuple(replace(setting, value=_of_rank(setting.value)) for setting in begun.env)
    words = tuple(map(_of_rank, begun.words)) if per_rank(asked) else begun.words
    return replace(begun, env=env, words=words)


def _live(text: str, names: Sequence[str]) -> str:
    return re.sub(VARIABLE, lambda m: variable(n) if (n := m[1] or m[2]) in names else m[0], text)


def per_rank(asked: Asked) -> bool:
    """Whether the launcher's words start one rank, and must be started once for each."""
    return asked.job.launcher in ("python", "jax")


def _of_rank(text: str) -> str:
    """A word with shell variables for `{rank}` and `{local_rank}`, which otherwise the shim fills in."""
    return text.replace("{rank}", variable("RANK")).replace("{local_rank}", variable("LOCAL_RANK"))


def used(start: Start) -> set[str]:
    texts = [*start.words, *(setting.value for setting in start.env)]
    return {name for text in texts for part in text.split("\0")[1::2] for name in re.findall(r"\w+", part)}


def command(words: Sequence[str]) -> str:
    """A command on one line, or on several: an option with its value, the script at the start of a line."""
    shown = [expanded(word) for word in words]
    if len(line := " ".join(shown)) <= LINE:
        return line
    lines = shown[:1]
    for previous, text in itertools.pairwise(shown):
        options = [word.startswith(("-", '"-')) for word in (previous, text)]
        is_value = options == [True, False] and "=" not in previous
        is_script = options == [True, False] and not is_value
        if is_value or text in ("-u", "-m") or (len(lines[-1]) + len(text) < LINE and not is_script):
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return " \\\n  ".join(lines)


def describe(asked: Asked) -> str:
    spares = asked.restarts.spares if asked.restarts else 0
    ranks, nodes = plural(asked.nproc, "rank"), plural(asked.nodes - spares, "node")
    if asked.restarts:
        more = f", {plural(spares, 'spare')}" if spares else ""
        return f"{comment(asked.job.script)} by `ringup run` on {nodes} with {ranks} each{more}."
    one = "process" if LAUNCHERS[asked.job.launcher].is_bare else asked.job.launcher
    each = "rank" if per_rank(asked) else "node"
    return f"{comment(asked.job.script)} on {nodes} with {ranks} each: one {one} a {each}."
