"""``python -m penstock`` and the program ``penstock`` are the command line."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program. Ctrl-C while it is still being imported ends it with a line, too."""
    try:
        from penstock.cli.main import main as run
    except KeyboardInterrupt:
        print("penstock: interrupted; nothing was begun", file=sys.stderr)  # noqa: T201 - there is nothing else yet
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
