"""
Write the generated pages, docs/rules.md and docs/commands.md.

    python tools/docs.py            write them
    python tools/docs.py --check    exit 1 when they are stale, naming them
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
INTRO = "<!-- Written by `make docs`; change the source, not this page. -->\n\n"


def rules_page() -> str:
    """Every problem with its text, by name."""
    import ringup.checks
    import ringup.lint
    from ringup.lint.rule import ACROSS, SCRIPT, SHELL
    from ringup.logs.causes import CAUSES
    from ringup.rules import CHECKS, PROBLEMS

    faults = {*SCRIPT, *SHELL, *ACROSS, ringup.lint.NOT_READABLE.name}
    seen_by = {"`check`": set(CHECKS), "`logs`": set(CAUSES), "`lint`": faults}

    lines = [
        "# What ringup can name",
        "",
        f"{len(PROBLEMS)} problems; `ringup explain NAME` prints the same text.",
        "",
    ]
    for problem in sorted(PROBLEMS.values(), key=lambda p: p.name):
        seen = ", ".join(by for by, names in seen_by.items() if problem.name in names)
        lines += [
            f"## {problem.name}",
            "",
            f"*At worst: {problem.severity}.  Seen by {seen}.*",
            "",
            problem.summary,
            "",
        ]
        lines += [f"**Why.** {problem.why}", "", f"**Fix.** {problem.fix}", ""]
        lines += [f"**In logs.** {problem.in_logs}", ""] if problem.in_logs else []
    return INTRO + "\n".join(lines)


def commands_page() -> str:
    """Every command's --help, as printed 100 columns wide."""
    from ringup import cli

    os.environ["COLUMNS"] = "100"
    lines = ["# Commands", "", "```", cli.overview().rstrip(), "```", ""]
    for name in cli.COMMANDS:
        lines += [f"## ringup {name}", "", "```", cli.parser_for(name).format_help().rstrip(), "```", ""]
    return INTRO + "\n".join(lines)


PAGES = {"rules.md": rules_page, "commands.md": commands_page}


def main() -> int:
    """Write or compare."""
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"stale: {', '.join(stale)}; run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
