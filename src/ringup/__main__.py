"""`python -m ringup`, and the console script."""

import sys


def main() -> None:
    """The command line.  Ctrl-C has the same effect while modules are loaded as it has later."""
    try:
        from ringup.cli import command_line
    except KeyboardInterrupt:
        exec("")  # see cli.forget_ctrl_c
        print("ringup: interrupted", file=sys.stderr)
        sys.exit(130)
    command_line.main()


if __name__ == "__main__":
    main()
