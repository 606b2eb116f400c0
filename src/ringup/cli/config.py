"""
Print a command's options with their values, and where each comes from.

An option's value comes from, first to last: the command line; the variable RINGUP_NAME; the project's file
(ringup.toml, or [tool.ringup] in pyproject.toml, in the script's folder or one above); the user's file
(~/.config/ringup/config.toml).  A file's keys are the options' long names; a table such as [run] is for one
command.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ringup.cli import options
from ringup.cli.commands import COMMANDS, parser_for
from ringup.cli.options import NODE_OPTIONS
from ringup.errors import UsageError
from ringup.output import terminal
from ringup.units import printable

WHOSE = f"whose options: {', '.join(COMMANDS)} (run)"
OPTIONS = (options.value("name", "COMMAND", WHOSE, "run", nargs="?", choices=tuple(COMMANDS)), options.JSON)
FILE_BYTES = 1 << 20
OWN_TABLE = re.compile(rb"""tool["']?[ \t]{0,9}(?:\.[ \t]{0,9}["']?ringup|[]=])""")
"""Text in every pyproject.toml that has settings of ringup; other files are not parsed."""
EXECUTES = ("setup", "python", "ssh-config", "env", "launcher-args", "wrap", "option", "chdir", "with-py-spy")
WRITES = ("save", "html", "failing", "log-dir", "output", "plot")
NOT_FROM_A_PROJECT = (*EXECUTES, *WRITES)
"""A stranger may have written a project's file: it may not start a program or name a file to write."""
ONLY_TYPED = (
    *("json", "help", "from_file", "anyway", "kill", "detach", "dry_run", "slurm", "debug", "follow"),
    *("fix", "diff"),
)
OWN_VARIABLES = ("run", "nodes")
"""Not options: RINGUP_RUN marks a run's processes, RINGUP_NODES counts pods."""
OTHER_VARIABLES = (
    *("head", "index", "token", "token-file", "service", "port", "wait-s", "stacks", "script", "ranks"),
    *("golden", "require-lab", "docs"),
)
"""Further names after RINGUP_: of pods and ranks; in the last line those that only ringup's tests set."""


class Given(NamedTuple):
    value: Any
    origin: str
    """A file or the name of a variable."""


def project_file(folder: Path) -> Path | None:
    """The nearest file, from a folder up to the top of its repository or the home directory."""
    for place in (folder, *folder.parents):
        if not os.access(place, os.X_OK):  # is_file would raise
            continue
        for file in (place / "ringup.toml", place / "pyproject.toml"):
            if file.is_file() and is_own(file) and contents(file):
                return file
        if (place / ".git").exists() or place == Path.home():
            break
    return None


def is_own(file: Path) -> bool:
    """Whether only this user and root can have written it; else prints a note on stderr."""
    found = file.stat()
    if found.st_uid in (0, os.getuid()) and not found.st_mode & stat.S_IWOTH:
        return True
    terminal.say(f"note: {terminal.path_shown(file)} is not read: others can write it")
    return False


def contents(file: Path) -> dict[str, Any]:
    """ringup's part of a TOML file.  Raises UsageError if it cannot be read."""
    try:
        with file.open("rb") as opened:
            written = opened.read(FILE_BYTES)
        if file.name == "pyproject.toml" and not OWN_TABLE.search(written):
            return {}
        import msgspec

        found = msgspec.toml.decode(written)
        return dict(found.get("tool", {}).get("ringup", {}) if file.name == "pyproject.toml" else found)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        hint = "TOML: keys are ringup's long options, for example hosts = 'node[1-4]'"
        raise UsageError(f"{terminal.path_shown(file)}: {error}", hint=hint) from error


def of_file(file: Path, command: str, known: Mapping[str, argparse.Action]) -> Iterator[tuple[str, Any]]:
    """(option, value) for one command.  Raises UsageError for a key that no command has."""
    found = contents(file)
    tables = {key: value for key, value in found.items() if isinstance(value, dict)}
    for name in tables.keys() - COMMANDS.keys() - {"env"}:
        near = difflib.get_close_matches(name, COMMANDS, 1) or ["run"]
        raise UsageError(f"{terminal.path_shown(file)}: no command {name!r}", hint=f"[{near[0]}]")
    own = tables.get(command, {})
    for written, value in [*((k, v) for k, v in found.items() if k not in tables), *own.items()]:
        key = written.replace("_", "-")
        if key in known:
            yield key, value
        elif written in own or not is_option(key):
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"`ringup config {command}` shows the keys"
            raise UsageError(f"{terminal.path_shown(file)}: no option {written!r}", hint=hint)


def say_unknown(known: Collection[str]) -> None:
    """Name the variables RINGUP_X that set no option of any command; a rank has further ones."""
    keys = {n: n[7:].lower().replace("_", "-") for n in os.environ if n.startswith("RINGUP_")}
    for name, key in sorted(keys.items() if "RINGUP_RUN" not in keys else ()):
        if not (key in known or key in (*OWN_VARIABLES, *OTHER_VARIABLES) or is_option(key)):
            near = difflib.get_close_matches(key, known, 1)
            more = f"; did you mean RINGUP_{near[0].upper().replace('-', '_')}?" if near else ""
            terminal.say(f"note: {printable(name, 60)} is ignored: it sets no option{more}")


def is_option(key: str) -> bool:
    """Whether a command has that option; the modules of further commands are not imported."""
    from ringup.cli.parser import Parser

    modules = (importlib.import_module(f"ringup.cli.{name}") for name in COMMANDS)
    return any(key in configurable(Parser("", "", module.OPTIONS)) for module in modules)


def configurable(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Key -> option, for those of a command that a file or a variable can set."""
    return {
        name[2:]: action
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--") and action.dest not in ONLY_TYPED
    }


def read_as(action: argparse.Action, value: Any, where: str) -> Any:
    """A value as the option would parse it.  Raises UsageError."""
    try:
        if action.nargs == 0:
            if value not in (True, False, "1", "0", "true", "false"):
                raise ValueError("true or false")
            return value in (True, "1", "true")
        if isinstance(action.default, list):
            return [str(one) for one in (value if isinstance(value, list) else str(value).split())]
        if isinstance(value, (list, dict, bool)):
            raise ValueError("one value is wanted")
        found = (action.type if callable(action.type) else str)(str(value))
        if action.choices and found not in action.choices:
            raise ValueError(f"one of {', '.join(map(str, action.choices))}")
        return found
    except (ValueError, argparse.ArgumentTypeError) as error:
        option = next(name for name in action.option_strings if name.startswith("--"))
        raise UsageError(f"{where}: {option}: {error}", hint=f"as on the command line: {option}") from error


def given(parser: argparse.ArgumentParser, command: str, folder: Path) -> dict[str, Given]:
    """Option -> its value from files and variables, only the one of highest rank.  Raises UsageError."""
    known, project = configurable(parser), project_file(folder)
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ringup" / "config.toml"
    files = [user] if user.is_file() and is_own(user) else []
    levels = []
    for file in (*files, *([project] if project else [])):
        where, level = terminal.path_shown(file), {}
        for key, value in of_file(file, command, known):
            if file == project and key in NOT_FROM_A_PROJECT:
                what = f"{where}: {key} is not taken from a project's file"
                hint = f"write it into {terminal.path_shown(user)}: a project may be a stranger's"
                raise UsageError(what, hint=hint)
            level[key] = Given(read_as(known[key], value, where), str(file))
        levels.append(level)
    names = {"RINGUP_" + key.upper().replace("-", "_"): key for key in known if key not in OWN_VARIABLES}
    held = {name: os.environ[name] for name in names if os.environ.get(name)}
    levels.append({names[n]: Given(read_as(known[names[n]], v, n), n) for n, v in held.items()})
    say_unknown(known)
    found: dict[str, Given] = {}
    for level in levels:
        # Nodes that are named once more replace those from a source of lower rank.
        if any(name in level for name in NODE_OPTIONS):
            found = {key: one for key, one in found.items() if key not in NODE_OPTIONS}
        found |= level
    return found


def folder_of(words: Sequence[str]) -> Path:
    """The folder of a command line's script, else the current directory."""
    for word in words:
        with contextlib.suppress(OSError, ValueError):
            if word.endswith((".py", ".sh", ".yaml", ".yml")) and Path(word).is_file():
                return Path(word).absolute().parent
    with contextlib.suppress(OSError):  # the folder was deleted
        return Path.cwd()
    return Path("/")


def apply(parser: argparse.ArgumentParser, command: str, words: Sequence[str]) -> None:
    """Make them the parser's defaults; for nodes only if the command line names none."""
    found, known = given(parser, command, folder_of(words)), configurable(parser)
    strings = [string for name in NODE_OPTIONS if name in known for string in known[name].option_strings]
    before = words[: list(words).index("--")] if "--" in words else words
    is_typed = any(word.partition("=")[0] in strings or word[:2] in strings for word in before)
    left = {key: one.value for key, one in found.items() if not (is_typed and key in NODE_OPTIONS)}
    parser.set_defaults(**{known[key].dest: value for key, value in left.items()})


def run(args: argparse.Namespace) -> int:
    from ringup.secrets import redact, redact_data

    parser = parser_for(args.name)
    found = given(parser, args.name, folder_of(()))
    known = configurable(parser)
    # An option with several names has one row: with the name that the file uses, else the first.
    shown = {action.dest: key for key, action in reversed(known.items())}
    shown |= {known[key].dest: key for key in found}
    rows = {key: found.get(key, Given(known[key].default, "default")) for key in shown.values()}
    if args.json:
        terminal.print_json(options=redact_data({key: one._asdict() for key, one in rows.items()}))
        return 0
    width = max(map(len, rows))
    for name, one in sorted(rows.items(), key=lambda row: (row[1].origin == "default", row[0])):
        value = "-" if one.value in (None, "", []) else redact(f"{name}={one.value}").partition("=")[2]
        print(f"{name:<{width}}  {value}  ({terminal.path_shown(one.origin)})")
    return 0
