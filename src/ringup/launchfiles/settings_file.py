"""The file of `accelerate launch --config_file`, YAML or JSON, as `accelerate config` or people write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def settings(text: str) -> list[tuple[str, str]]:
    """
    (key, value) of every scalar at the top and in the blocks below it, "" for null.

    Raises ValueError if it is not understood.

    >>> settings("num_machines: 2  # nodes\\nmain_process_ip: '10.0.0.1'\\nfsdp_config:\\n  a: 2\\n")
    [('num_machines', '2'), ('main_process_ip', '10.0.0.1'), ('fsdp_config', ''), ('a', '2')]
    """
    import yaml

    try:  # PyYAML's loader in C does not limit its recursion
        root = yaml.compose(text.expandtabs(2) if text.lstrip()[:1] == "{" else text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        words = getattr(error, "problem", None) or error
        raise ValueError(f"line {mark.line + 1 if mark else 1} is not understood: {words}") from error
    except RecursionError:
        raise ValueError("line 1 is not understood: nested too deeply") from None
    if getattr(root, "id", "mapping") != "mapping":
        raise ValueError("line 1 is not understood: no NAME: VALUE")
    found = list(_scalars(root, 0)) if root else []
    if twice := {name for name, _ in found if [n for n, _ in found].count(name) > 1}:
        raise ValueError(f"{min(twice)} is there twice")
    return found


def _scalars(node: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Deeper than in a block there are neither counts nor addresses."""
    for key, value in node.value:
        if key.id != "scalar":
            raise ValueError(f"line {key.start_mark.line + 1} is not understood: a name is a single word")
        is_known = value.id == "scalar" and not value.tag.endswith(":null")
        yield str(key.value), str(value.value) if is_known else ""
        if value.id == "mapping" and not depth:
            yield from _scalars(value, 1)
