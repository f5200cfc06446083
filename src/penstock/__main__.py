"""``python -m penstock`` is the command line."""

from penstock.cli.main import main

main()
