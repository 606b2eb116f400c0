"""`python -m ringup`."""

from ringup.cli import main

main()
