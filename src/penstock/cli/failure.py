"""What goes wrong, as one line on stderr and an exit code that scripts can use."""

import os
import sys
from enum import IntEnum
from typing import Any

import typer
import typer.core

from penstock.cli.safe import safe
from penstock.errors import PenstockError, StoreError

__all__ = ["Code", "Program"]

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""The class of typer's errors about arguments, which it does not export."""


class Code(IntEnum):
    """Exit codes."""

    FOUND = 1
    USAGE = 2
    READ = 3
    WRITE = 4
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class Program(typer.core.TyperGroup):
    """A group of commands that ends with one line instead of a trace."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command; SystemExit with its exit code."""
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
            sys.stdout.flush()
        except Exception as error:
            code = _report(error)
        except KeyboardInterrupt:
            _say("interrupted; nothing that was committed is lost")
            code = Code.INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.CLOSED_PIPE
    code = _code_of(error)
    if code is None:
        raise error
    _say(_line(error))
    return code


def _code_of(error: Exception) -> int | None:
    """None for what nobody foresaw: that shall be seen with its trace."""
    if isinstance(error, UsageError):
        return Code.USAGE
    if isinstance(error, StoreError):
        return Code.WRITE
    if isinstance(error, PenstockError | OSError | ImportError):
        return Code.READ
    if isinstance(error, ValueError | TypeError | KeyError | IndexError):
        return Code.USAGE
    return None


def _line(error: Exception) -> str:
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx is not None else "penstock"
        return f"{error.format_message().rstrip('.')}; see {command} --help"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error) or type(error).__name__


def _say(text: str) -> None:
    print(f"penstock: {safe(' '.join(text.split()))}", file=sys.stderr)  # noqa: T201 - the one place that does
