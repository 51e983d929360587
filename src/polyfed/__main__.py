"""`python -m polyfed` is the command."""

from polyfed.cli.app import main

main()
