"""Print the completion of a shell for ringup's commands and options."""

from __future__ import annotations

import argparse
import importlib

from ringup.cli import options
from ringup.errors import RingupError

SHELLS = ("bash", "zsh", "fish")
OPTIONS = (options.value("shell", "SHELL", f"one of {', '.join(SHELLS)}", choices=SHELLS),)
WHERE = {
    "bash": "~/.local/share/bash-completion/completions/ringup",
    "zsh": "a folder of $fpath, as _ringup",
    "fish": "~/.config/fish/completions/ringup.fish",
}
"""Files that the shell reads at the first Tab; running this at each start would take half a second."""
HOSTS = (
    '_ringup_hosts() { compgen -W "$(awk \'$1 == "Host" { for (i = 2; i <= NF; i++)'
    ' if ($i !~ /[*?!]/) print $i }\' ~/.ssh/config 2>/dev/null)" -- "$1"; }'
)
"""For bash; the other shells have a function of their own."""
FILES = ("F", "PY", "PATH", options.SCRIPT_WORDS, options.LINE_WORDS, "SCRIPT")
HOSTS_OF = {"bash": "_ringup_hosts", "zsh": "_hosts", "fish": "(__fish_print_hostnames)"}
"""Names of nodes, from ssh's configuration."""


def whole_parser() -> argparse.ArgumentParser:
    import shtab

    import ringup.checks
    import ringup.lint
    import ringup.logs.causes  # noqa: F401  (all three fill the registry)
    from ringup.cli.commands import COMMANDS
    from ringup.rules import PROBLEMS

    root = argparse.ArgumentParser("ringup", description="multi-node GPU training")
    root.add_argument("--version", action="store_true", help="the version")
    commands = root.add_subparsers(metavar="COMMAND")
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"ringup.cli.{name}")
        parser = commands.add_parser(name, help=text, description=text)
        options.add(parser, module.OPTIONS)
        for action in parser._actions:
            if action.dest == "name" and name == "explain":
                action.choices = sorted(PROBLEMS)
            elif action.dest == "hosts":
                action.complete = HOSTS_OF  # type: ignore[attr-defined]
            elif action.dest in ("chdir", "log_dir"):
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in FILES or action.dest in ("before", "after"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root


def run(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        hint = "pip install 'ringup[completion]' where you write the file; using it then needs no package"
        raise RingupError("completion needs the package shtab", hint=hint) from None
    print(f"# ringup completion {args.shell} > {WHERE[args.shell]}")
    print(shtab.complete(whole_parser(), shell=args.shell, preamble=HOSTS if args.shell == "bash" else ""))
    return 0
