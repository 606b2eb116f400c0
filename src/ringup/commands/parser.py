"""A command line that cannot be: what is wrong and what to do, in two lines."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from ringup.errors import UsageError
from ringup.units import printable

SCRIPT_WORDS = "-- SCRIPT ARGS"
"""Metavar of what stands behind `--`."""


class Paragraphs(argparse.HelpFormatter):
    """A description keeps its paragraphs; each is as wide as the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (" ".join(part.split()) for part in text.strip().split("\n\n"))
        return "\n\n".join(textwrap.fill(p, width, initial_indent=indent) for p in parts)


class Parser(argparse.ArgumentParser):
    """Says what is wrong and one thing to do; the usage stays in --help."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, formatter_class=Paragraphs, allow_abbrev=False)

    def read(self, words: Sequence[str], namespace: argparse.Namespace | None = None) -> argparse.Namespace:
        """
        Parse the words of a command line.

        Without `--` an option behind the script could be either's: nobody is given it in silence.
        """
        found = self.parse_args(words, namespace)
        for action in self._actions:  # Python 3.11's argparse makes a list of nothing of `--chdir=--`
            takes_one = action.option_strings and action.nargs is None and action.default != []
            if takes_one and getattr(found, action.dest, None) == []:
                self.error(f"argument {'/'.join(action.option_strings)}: -- is no value")
        script = getattr(found, "script", None)
        if isinstance(script, list) and script and "--" not in words:
            places = range(len(words) - len(script), -1, -1)
            at = next((i for i in places if list(words[i : i + len(script)]) == script), len(words))
            if behind := words[at + len(script) :]:
                self._refuse(
                    f"{behind[0].partition('=')[0]} stands behind {script[0]}: whose option is it?",
                    f"-- parts them: {self.prog} ... -- {script[0]} {behind[0]} for the script's own",
                )
        return found

    def _refuse(self, what: str, hint: str) -> NoReturn:
        self.exit(UsageError.exit_code, f"{self.prog}: {printable(what)}\nhint: {printable(hint)}\n")

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        unknown = message.removeprefix("unrecognized arguments:")
        if unknown != message:
            what, hint = self._unknown(unknown.split())
        else:
            what = message.removeprefix("argument ")
            hint = f"`{self.prog} --help` shows the options"
        self._refuse(what, hint)

    def _unknown(self, words: list[str]) -> tuple[str, str]:
        """What there is no place for, and where it belongs."""
        shows = f"`{self.prog} --help` shows the options"
        known = self._option_string_actions
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        if not option:
            shows = f"name nodes as one word: -H {','.join(words[:3])}" if words and "-H" in known else shows
            return f"there is no place for {' '.join(words[:3]) or repr('')}", shows
        import difflib

        hints = [f"did you mean {near}?" for near in difflib.get_close_matches(option, known, 1, 0.75)]
        if any(action.metavar == SCRIPT_WORDS for action in self._actions):
            hints.append(f"the script's own options stand behind --: {self.prog} ... -- train.py {option}")
        return f"no option {option}", " ".join(hints) or shows
