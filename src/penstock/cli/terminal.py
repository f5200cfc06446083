"""What a terminal gets: tables for people, JSON for scripts, text out of data made safe; errors as one line and an exit code."""

import dataclasses
import io
import json
import math
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import PurePath
from typing import Any

import typer
import typer.core
from rich.console import Console, ConsoleRenderable
from rich.table import Table
from rich.text import Text

from penstock.errors import BatchError, PenstockError, StoreError

NAME_WIDTH = 24  # names of facts are folded beyond this
MOST_NAME = 128
MOST_LETTERS = 2000  # longer texts are cut: a name in a file may be as long as it likes
UsageError: type[Any] = typer.BadParameter.__mro__[1]  # the class of typer's errors about arguments, which it does not export


# What commands print


def safe(text: str) -> str:
    """The text with everything but printable characters written out, such as ``\\x1b``."""
    return text if text.isprintable() else "".join(map(_shown, text))


def clip(text: str, most: int) -> str:
    """At most ``most`` characters, followed by the full length if the text is longer. Safe as well."""
    if len(text) <= most:
        return safe(text)
    return f"{safe(text[:most])}… ({len(text):,} characters)"


def _shown(character: str) -> str:
    if character.isprintable() and unicodedata.category(character) != "Cf":
        return character
    return character.encode("unicode_escape").decode("ascii") if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def console(*, to_stderr: bool = False) -> Console:
    """Where a command writes. A new one each time, because it reads the terminal, NO_COLOR and COLUMNS when it is made."""
    return Console(stderr=to_stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)


def say(remark: str) -> None:
    """A remark for a person, on stderr: stdout has the result and nothing else."""
    console(to_stderr=True).print(text(remark), soft_wrap=True)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Dataclasses, arrays and paths as plain JSON types; figures that JSON cannot hold are null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # an array or a number of numpy, which is not imported for a help page
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | range):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | bool) or value is None:
        return value
    return str(value) if isinstance(value, PurePath) else safe(str(value))


def text(value: object, style: str = "") -> Text:
    """Text that is shown as it is: no markup, no escapes."""
    return Text(safe(str(value)), style=style)


def facts(title: str, rows: Mapping[str, object]) -> Table:
    """Names and values, one pair a line. A value may be something that draws itself."""
    heading = text(title, "bold")
    width = min(heading.cell_len, NAME_WIDTH)  # a heading is folded where its table ends
    made = Table(box=None, show_header=False, title=heading, title_justify="left", pad_edge=False, min_width=width)
    made.add_column(style="cyan", overflow="fold", max_width=NAME_WIDTH)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        shown = value if isinstance(value, ConsoleRenderable) else text(clip(str(value), MOST_LETTERS))
        made.add_row(text(clip(name, MOST_NAME)), shown)
    return made


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table; the columns named in ``right`` hold figures."""
    made = Table(box=None, header_style="bold cyan", pad_edge=False)
    for name in columns:
        made.add_column(text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(text(clip(str(cell), MOST_LETTERS)) for cell in row))
    return made


def number(value: float) -> str:
    """A count for people: 1,234,567; 0.34 of something below ten."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


# What goes wrong


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
        """Run a command. An interrupt becomes a StoppedError: typer would exit silently."""
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
    if isinstance(error, BrokenPipeError):  # the reader of our output has seen enough
        _discard_stdout()
        return Code.CLOSED_PIPE
    if isinstance(error, StoppedError):
        _print_failure(str(error) or "interrupted; nothing that was committed is lost")
        return Code.INTERRUPTED
    code = _code_of(error)
    if code is None:
        raise error
    if not (isinstance(error, UsageError) and not error.format_message()):  # the help page was shown instead
        _print_failure(_message(error))
    return code


def _discard_stdout() -> None:
    """Discard buffered output: Python would try to flush it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _code_of(error: Exception) -> int | None:
    """None for unexpected errors, which are shown with their traceback."""
    if isinstance(error, UsageError | UserCodeError):
        return Code.USAGE
    if isinstance(error, StoreError):
        return Code.WRITE
    if isinstance(error, PenstockError | OSError | ImportError | UnicodeError | MemoryError):
        return Code.READ
    if isinstance(error, ValueError | TypeError | KeyError | IndexError):
        return Code.USAGE
    return None


def _message(error: Exception) -> str:
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx is not None else "penstock"
        return f"{error.format_message().rstrip('.')}; see {command} --help"
    if isinstance(error, BatchError) and (place := place_in(error)) is not None:  # a transform of the user's
        return f"{error} ({place})"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this: {error}".removesuffix(": ")
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error) or type(error).__name__


def _print_failure(line: str) -> None:
    print(f"penstock: {clip(' '.join(line.split()), MOST_LETTERS)}", file=sys.stderr)  # noqa: T201 - the one place that does
