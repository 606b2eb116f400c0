"""What one node executes as lines of bash, and variables with their reasons."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ringup.bundle import SECRETS
from ringup.errors import LaunchError
from ringup.plan import EnvVar
from ringup.plan.command import LAUNCHERS, Place, Start, start
from ringup.plan.formats import comment
from ringup.script import Asked

INTERFACE_NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
LINE = 100
"""Longer commands are broken, one word a line."""


class Named(int):
    """A count that the file names instead of repeating it."""

    text = ""

    def __str__(self) -> str:
        return self.text

    def __format__(self, how: str) -> str:
        return self.text


def named(count: int, text: str) -> Named:
    """`count`, written as `text`."""
    made = Named(count)
    made.text = text
    return made


def is_secret(name: str) -> bool:
    """Whether a variable's value never stands in a file."""
    return any(word in name.upper() for word in SECRETS)


def quoted(text: str) -> str:
    """
    A word that stays what it is in bash, on one line.

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


def export(variable: EnvVar) -> list[str]:
    """Lines that set a variable, its reason above; a secret is taken from the shell that submits."""
    reason = comment(variable.because)
    if is_secret(variable.name):
        return [f"# {reason}", f': "${{{variable.name}:?set it before you start this}}"']
    return [f"# {reason}", f"export {variable.name}={quoted(variable.value)}"]


def exports(env: Iterable[EnvVar]) -> list[str]:
    """Lines that set variables."""
    return [line for variable in env for line in export(variable)]


def variables(asked: Asked) -> list[EnvVar]:
    """What is set alike on every node; the interface only where it is the user's own, else it is found."""
    return [
        v for v in asked.env if v.node is None and (v.name in asked.job.env or v.name not in INTERFACE_NAMES)
    ]


def place(asked: Asked) -> Place:
    """A node as the file knows it: by names of shell variables."""
    return Place(
        python="$PYTHON",
        node_count=named(asked.nodes, "$NNODES"),
        node_rank="$NODE_RANK",
        nproc=named(asked.nproc, "$NPROC"),
        nproc_all=(asked.nproc,) * asked.nodes,
        address="$ADDRESS",
        master_addr="$MASTER_ADDR",
        master_port="$MASTER_PORT",
        run_id="$RUN_ID",
        gpu_count=asked.gpus,
    )


def started(asked: Asked) -> Start:
    """
    The launcher's words and variables, with names of shell variables in them.

    Raises LaunchError for a launcher that is not known or cannot do what is asked.
    """
    for word in (asked.job.script, *asked.job.arguments, *asked.job.launcher_arguments):
        if "\0" in word:
            raise LaunchError("an argument holds a NUL byte", hint="leave it out")
    return start(place(asked), asked.job)


def counts_nodes(asked: Asked) -> bool:
    """Whether the number of nodes stands in the words, so that a job of another size would be wrong."""
    return asked.nodes > 0 and started(asked) != started(replace(asked, nodes=asked.nodes + 1))


def word(text: str, own: Sequence[str]) -> str:
    """One word of a command: the user's own stay as they are, in the launcher's names are expanded."""
    if text in own or "$" not in text:
        return quoted(text)
    return f'"{text}"'


def command(asked: Asked, words: Sequence[str], indent: str = "  ") -> list[str]:
    """A command as lines: one where it fits, else an option a line."""
    own = (asked.job.script, *asked.job.arguments, *asked.job.launcher_arguments)
    shown = [word(w, own) for w in words]
    line = " ".join(shown)
    if len(line) <= LINE:
        return [indent + line]
    groups = [shown[:1]]
    for previous, text in itertools.pairwise(shown):
        takes_value = previous.startswith("-") and "=" not in previous and not text.startswith(("-", '"-'))
        if takes_value or text in ("-u", "-m"):
            groups[-1].append(text)
        else:
            groups.append([text])
    lines = [indent + ("  " if i else "") + " ".join(group) for i, group in enumerate(groups)]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def per_rank(asked: Asked) -> bool:
    """Whether the launcher's words start one rank, and are to be started once for each."""
    return asked.job.launcher in ("python", "jax")


def node_lines(asked: Asked) -> list[str]:
    """What a node executes, once NODE_RANK, MASTER_ADDR, MASTER_PORT, ADDRESS and RUN_ID are known."""
    begun = started(asked)
    lines = []
    for variable in begun.env:
        value = variable.value.replace("{rank}", "$RANK").replace("{local_rank}", "$LOCAL_RANK")
        lines += [f"  # {comment(variable.because)}", f"  export {variable.name}={_expanded(value)}"]
    if not per_rank(asked):
        return [*lines, *_executed(asked, begun.words)]
    return [
        "  # One process a rank.",
        "  ranks=()",
        "  for ((LOCAL_RANK = 0; LOCAL_RANK < NPROC; LOCAL_RANK++)); do",
        "    export LOCAL_RANK RANK=$((NODE_RANK * NPROC + LOCAL_RANK))",
        *(f"  {line}" for line in lines),
        *_in_background(command(asked, begun.words, "    ")),
        '    ranks+=("$!")',
        "  done",
        '  wait_all "${ranks[@]}"',
    ]


def _executed(asked: Asked, words: Sequence[str]) -> list[str]:
    first, *rest = command(asked, words)
    return ["  exec " + first.strip(), *rest]


WAIT_ALL = """\
# Until all these processes have ended, or one has failed.  (`wait -n` of bash before 5.3 misses those
# that end before it is called.)
wait_all() {
  local pid pids=("$@") left
  while [ "${#pids[@]}" -gt 0 ]; do
    left=()
    for pid in "${pids[@]}"; do
      if kill -0 "$pid" 2>/dev/null; then left+=("$pid"); else wait "$pid" || return $?; fi
    done
    pids=("${left[@]}")
    sleep 0.2
  done
}
"""


def waits(asked: Asked) -> list[str]:
    """The function that `node_lines` calls, where it calls one."""
    return WAIT_ALL.splitlines() if per_rank(asked) else []


def _in_background(lines: Sequence[str]) -> list[str]:
    return [*lines[:-1], lines[-1] + " &"]


def _expanded(value: str) -> str:
    return f'"{value}"' if "$" in value else quoted(value)


def describe(asked: Asked) -> str:
    """One line: what is started."""
    launcher = LAUNCHERS[asked.job.launcher]
    ranks = f"{asked.nproc} rank{'s' * (asked.nproc != 1)}"
    one = "one process" if launcher.is_bare else f"one {asked.job.launcher}"
    each = "one process a rank" if per_rank(asked) else f"{one} a node"
    nodes = f"{asked.nodes} node{'s' * (asked.nodes != 1)}"
    return f"{comment(asked.job.script)} on {nodes} with {ranks} each: {each}."
