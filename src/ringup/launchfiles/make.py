"""A Makefile or justfile as a shell script with the same lines: its variables, and the recipes' commands."""

from __future__ import annotations

import posixpath
import re

_NAMES = re.compile(r"(?i)(?:gnu)?makefile|\.?justfile|.{1,99}\.(?:mk|just)")
_ASSIGNED = re.compile(r"(export |override )? *([A-Za-z_]\w{0,60}) *(\?|:{1,3}|\+|)= *(.*)")
_CONDITION = re.compile(r"(else )?(if(n?)def {1,9}(\w{1,60})|ifn?eq\b.*)")
_HEAD = re.compile(r"[\w@%$.][^\n]{0,300}:(?: |$)")
"""Of a recipe: `train: deps`."""
_VARIABLE = re.compile(r"\$\((\w{1,60})\)|\{\{ *(\w{1,60}) *\}\}")


def is_makefile(path: str) -> bool:
    return bool(_NAMES.fullmatch(posixpath.basename(path)))


def as_shell(text: str) -> str:
    """
    The lines as a shell would read them; those of make alone are empty.

    >>> as_shell("N ?= 2\\nall: x\\n\\t@torchrun --nnodes=$(N) $$HOME/a.py\\n")
    'N="${N:-2}"\\n\\ntorchrun --nnodes=${N} $HOME/a.py\\n'
    """
    made, goes_on, is_below = [], False, False
    for line in text.split("\n"):
        is_recipe = goes_on or line.startswith("\t") or (is_below and line[:1] == " ")
        is_below = bool(_HEAD.match(line)) or (is_below and (is_recipe or not line))
        line = re.sub(r"^\s{1,20}[@+-]{0,3}", "", line) if is_recipe and not goes_on else line
        made.append(_expanded(line) if is_recipe else _of_make(line))
        goes_on = is_recipe and line.endswith("\\")
    return "\n".join(made)


def _expanded(line: str) -> str:
    line = _VARIABLE.sub(lambda m: f"${{{m[1] or m[2]}}}", line.replace("$(shell ", "$("))
    return line.replace("$$", "$")


def _of_make(line: str) -> str:
    if match := _CONDITION.fullmatch(line.strip()):
        test = f'-{"z" if match[3] else "n"} "${match[4]}"' if match[4] else '"$CONDITION"'
        return f"{'elif' if match[1] else 'if'} [ {test} ]; then :"
    if line.strip() in ("else", "endif"):
        return {"else": "else :", "endif": "fi"}[line.strip()]
    if not (match := _ASSIGNED.fullmatch(line)) or match[3] == "+" or line.endswith("\\"):
        return line if line.startswith("#") else ""
    name, value = match[2], _expanded(match[4].partition(" #")[0].strip().strip("\"'")).replace('"', '\\"')
    if "(" in value.replace("$(", ""):  # a function of just
        return ""
    value = f"${{{name}:-{value}}}" if match[3] == "?" else value
    return f'{"export " if match[1] == "export " else ""}{name}="{value}"'
