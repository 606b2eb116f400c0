"""An invalid command line: two lines with the problem and what to do."""

from __future__ import annotations

import argparse
import copy
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any, NoReturn

from ringup.cli.options import KIND_WORDS, LINE_WORDS, SCRIPT_WORDS, Options, add
from ringup.errors import UsageError


class Paragraphs(argparse.HelpFormatter):
    """Keeps the paragraphs of a description; each is wrapped at the terminal's width."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [name for name in action.option_strings if "_" not in name]
        return super()._format_action_invocation(shown)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (" ".join(part.split()) for part in text.strip().split("\n\n"))
        return "\n\n".join(textwrap.fill(p, width, initial_indent=indent) for p in parts)


class Parser(argparse.ArgumentParser):
    """Reports one problem and one thing to do; the usage stays in --help."""

    def __init__(self, prog: str, description: str | None, options: Options) -> None:
        super().__init__(prog=prog, description=description, formatter_class=Paragraphs, allow_abbrev=False)
        add(self, options)
        self.kinds: Sequence[str] = ()
        """One of these names precedes the script; options may come before and after it."""

    def read(self, words: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:
        """
        Parse the arguments of a command line.

        Without `--`, an option after the script may belong to ringup or to the script: that is an error.
        """
        words = self._separated(self._joined(words))
        found, left = self.parse_known_args(words, namespace)
        script = getattr(found, "script", None)
        script = script[bool(self.kinds) :] if isinstance(script, list) else []
        hosts = getattr(found, "hosts", None)
        if left:
            self._refuse(*self._unknown(left, hosts))
        if len(script) > 1 and hosts in words[:-1] and words[words.index(hosts) + 1] == script[0]:
            # `-H node0 node1 train.py`: the second node would become the script.
            is_program = "." in script[0] or "/" in script[0] or Path(script[0]).exists() or which(script[0])
            if not is_program and any(word.endswith((".py", ".sh", ".yaml")) for word in script[1:]):
                hint = f"name nodes as one word: -H {hosts},{script[0]}"
                self._refuse(f"{script[0]} is not a script", hint)
        for action in self._actions:  # Python 3.11's argparse makes an empty list of `--chdir=--`
            takes_one = action.option_strings and action.nargs is None and action.default != []
            if takes_one and getattr(found, action.dest, None) == []:
                self.error(f"argument {'/'.join(action.option_strings)}: -- is not a value")
        if script and "--" not in words:
            places = range(len(words) - len(script), -1, -1)
            at = next((i for i in places if list(words[i : i + len(script)]) == script), len(words))
            if behind := words[at + len(script) :]:
                self._refuse(
                    f"{behind[0].partition('=')[0]} after {script[0]}: an option of ringup or of the script?",
                    f"for ringup write it before {script[0]}; {self.prog} ... -- {script[0]} {behind[0]} "
                    "is for the script",
                )
        return found

    def _joined(self, words: Sequence[str]) -> list[str]:
        """`--launcher-args --x` as one word, and the kind of file behind the options."""
        end = words.index("--") if "--" in words else len(words)
        head, at, kind_at = list(words[:end]), 0, -1
        while at < len(head):
            if head[at] == "--launcher-args" and at + 1 < len(head):
                head[at : at + 2] = [f"--launcher-args={head[at + 1]}"]
            elif head[at] in self.kinds and kind_at < 0:
                kind_at = at
            elif not head[at].startswith("-") and self.kinds:
                break
            option = self._option_string_actions.get(head[at])
            at += 2 if option and option.nargs is None else 1
        if kind_at >= 0:
            self.prog += f" {head[kind_at]}"
            if at <= len(head):  # else the last option lacks its value
                head.insert(at - 1, head.pop(kind_at))
        return [*head, *words[end:]]

    def _separated(self, words: Sequence[str]) -> list[str]:
        """The arguments with `--` before a start line that begins with a launcher, an interpreter or -m."""
        known, at = self._option_string_actions, 0
        given = {action.metavar for action in self._actions}
        if "--" in words or not given & {SCRIPT_WORDS, KIND_WORDS, LINE_WORDS}:
            return list(words)
        from ringup.launchfiles.start import starts_ranks  # other commands start faster without it

        while at < len(words):
            word = words[at]
            if word in ("-m", "--no-python", "--no_python") or starts_ranks(word):
                return [*words[:at], "--", *words[at:]]
            option = known.get(word.partition("=")[0]) or known.get(word[:2])
            if not option and not word.startswith("-"):
                break
            takes = option and option.nargs is None and "=" not in word and word in known
            at += 2 if takes else 1
        return list(words)

    def _refuse(self, what: str, hint: str) -> NoReturn:
        from ringup.secrets import safe

        what, hint = safe(what), safe(hint)
        self.exit(UsageError.exit_code, f"{self.prog}: {what}\nhint: {hint}\n")

    def error(self, message: str) -> NoReturn:
        message = message.replace("the following arguments are required", "missing arguments")
        message = re.sub(r"^(--[\w-]+)(?:/--[\w-]+)+", r"\1", message.removeprefix("argument "))
        is_file = " cannot be read: " in message or " cannot be written: " in message
        another = f"name another {'directory' if message.startswith('--log-dir') else 'file'}"
        message = re.sub(": ignored explicit argument .*", ": it takes no value", message)
        option = self._option_string_actions.get(re.split("[:/]", message, maxsplit=1)[0])
        self._refuse(message, another if is_file else self._meaning(option))

    def _meaning(self, option: argparse.Action | None = None) -> str:
        """The meaning of an option; without one, of the arguments that are not options."""
        if option:
            return f"{option.option_strings[0]} {option.metavar or ''}: {option.help}".replace(" :", ":")
        taken = [action for action in self._actions if not action.option_strings]
        names = " ".join(str(action.metavar) for action in taken)
        meanings = "; ".join(f"{action.metavar}: {action.help}" for action in taken)
        return f"usage: {self.prog} {names} ({meanings})" if taken else f"options only: `{self.prog} --help`"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from difflib import get_close_matches

            choices, name = [*action.choices], " ".join(action.option_strings[:1])
            near = [f"did you mean {one}?" for one in get_close_matches(str(value), choices, 1)]
            what = f"{name or action.metavar}: {value!r} is not one of {', '.join(choices)}"
            self._refuse(what, "".join(near) or f"for example {self.prog} {name and name + ' '}{choices[0]}")

    def print_help(self, file: Any = None) -> None:
        """Raises OSError where it cannot be written; argparse's own drops that error."""
        print(self.format_help(), end="", file=file)

    def _unknown(self, words: list[str], hosts: str | None) -> tuple[str, str]:
        shows = f"`{self.prog} --help` shows the options"
        known = self._option_string_actions
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        if option == "--" and self.kinds:
            return "no kind of file comes before --", f"name one of {' '.join(self.kinds)}"
        if not option:
            shows = self._meaning()
            if words and "-H" in known:
                shows = f"name nodes as one word: -H {','.join([*([hosts] if hosts else []), *words[:3]])}"
            return f"unexpected argument {' '.join(words[:3]) or repr('')}", shows
        import difflib

        longer = [one for one in known if len(option) > 4 and one.endswith(option[1:])]
        near = difflib.get_close_matches(option, known, 1, 0.75) or longer[:1]
        hints = [f"did you mean {one}?" for one in near]
        if any(action.metavar in (SCRIPT_WORDS, KIND_WORDS) for action in self._actions):
            hints.append(f"options of the script go after --: {self.prog} ... -- train.py {option}")
        if option == "--slurm":
            hints = [f"in an allocation (salloc --nodes=2), {self.prog} takes the nodes from it"]
        if "--min" in known and re.search("size|bytes", option):
            hints = ["the sizes are --min and --max: --min 1G --max 1G"]
        return f"no option {option}", " ".join(hints) or shows
