"""What goes wrong, as one line on stderr and an exit code that scripts can use."""

import io
import os
import re
import sys
import traceback
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import typer
import typer.core

from penstock.cli.safe import clip
from penstock.errors import BatchError, PenstockError, StoreError

__all__ = ["Code", "Program", "StoppedError", "UserCodeError", "place_in"]

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""The class of typer's errors about arguments, which it does not export."""


MOST_LETTERS = 2000
"""A line is cut here: it may name what is as long as it likes."""


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
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character gets its number instead
                stream.reconfigure(errors="backslashreplace")
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
            sys.stdout.flush()
        except Exception as error:
            code = _report(error)
        except SystemExit as error:  # what typer and rich make of a closed pipe
            code = _report(error.__context__) if isinstance(error.__context__, BrokenPipeError) else error.code
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, context: Any) -> Any:
        """Run a command. An interrupt is passed on as an error of ours: typer would end without a word."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:
            raise StoppedError(*error.args) from error


class UserCodeError(Exception):
    """A function of the user's raised something."""


class StoppedError(Exception):
    """Ctrl-C, and what it means for the work that was being done if a command has said so."""


def place_in(error: BaseException, file: str | None = None) -> str | None:
    """Where in a file an error was raised, or passed through, such as train.py:12; None if it was not there. Without a file: in
    code that is neither penstock's nor installed.
    """
    found = [(name, line) for name, line in _frames(error) if (_is_own(name) if file is None else os.path.realpath(name) == file)]
    return f"{os.path.basename(found[-1][0])}:{found[-1][1]}" if found else None


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Files and lines, then those of the cause. What was raised in another process is a text."""
    yield from ((frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__))
    if error.__traceback__ is None:
        yield from ((name, int(line)) for name, line in re.findall(r'File "([^"\n]+)", line (\d+)', str(error)))
    if error.__cause__ is not None:
        yield from _frames(error.__cause__)


def _is_own(file: str) -> bool:
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    return os.path.isfile(file) and not os.path.realpath(file).startswith((package, sys.prefix, sys.base_prefix))


def _report(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):  # whoever read our output has seen enough
        _let_go_of_stdout()
        return Code.CLOSED_PIPE
    if isinstance(error, StoppedError):
        _say(str(error) or "interrupted; nothing that was committed is lost")
        return Code.INTERRUPTED
    code = _code_of(error)
    if code is None:
        raise error
    if not (isinstance(error, UsageError) and not error.format_message()):  # the help page was shown instead
        _say(_line(error))
    return code


def _let_go_of_stdout() -> None:
    """Lets what is still to be written vanish: Python would try once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _code_of(error: Exception) -> int | None:
    """None for what nobody foresaw: that shall be seen with its trace."""
    if isinstance(error, UsageError | UserCodeError):
        return Code.USAGE
    if isinstance(error, StoreError):
        return Code.WRITE
    if isinstance(error, PenstockError | OSError | ImportError | UnicodeError | MemoryError):
        return Code.READ
    if isinstance(error, ValueError | TypeError | KeyError | IndexError):
        return Code.USAGE
    return None


def _line(error: Exception) -> str:
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx is not None else "penstock"
        return f"{error.format_message().rstrip('.')}; see {command} --help"
    if isinstance(error, BatchError) and (place := place_in(error)) is not None:  # a transform of the user's
        return f"{error} ({place})"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this: {error}".removesuffix(": ")
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error) or type(error).__name__


def _say(text: str) -> None:
    print(f"penstock: {clip(' '.join(text.split()), MOST_LETTERS)}", file=sys.stderr)  # noqa: T201 - the one place that does
