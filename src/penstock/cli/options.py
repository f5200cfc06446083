"""Options that several commands share, and what they open."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli.failure import UserCodeError, place_in
from penstock.cli.output import say
from penstock.loader import Loader
from penstock.order import Shard
from penstock.records import Source
from penstock.remote.url import is_url
from penstock.source.registry import open_source
from penstock.store.format import MANIFEST_DIRECTORY
from penstock.system import is_directory, is_there

__all__ = [
    "AsJson",
    "BatchSize",
    "Block",
    "Data",
    "Fields",
    "Generation",
    "InOrder",
    "Lanes",
    "Pipeline",
    "Seed",
    "Storage",
    "StorePath",
    "Tail",
    "Threads",
    "Window",
    "World",
    "check_storage",
    "data_first",
    "examples",
    "function_named",
    "make_loader",
    "open_data",
    "places",
    "storage_options",
    "told_of_map",
]

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="A path, a pattern or a URL; several are put one after the other; NAME=PATH ... puts fields side by side.",
        show_default=False,
    ),
]
Pipeline = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA|MODULE:FUNCTION",
        help="Data as for info, or a function of yours that gives a loader: train.py's make_loader() is train:make_loader.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Fields = Annotated[str | None, typer.Option(metavar="A,B", help="Only these fields.", show_default=False)]
Generation = Annotated[int | None, typer.Option(help="Of a store: this generation instead of the newest.", show_default=False)]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage", "-s", metavar="KEY=VALUE", help="An option of the object store, such as region=eu-west-1.", show_default=False
    ),
]
StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The path or URL of a store.", show_default=False)]
Threads = Annotated[int, typer.Option(min=1, help="Threads that compress and write.")]
Seed = Annotated[int, typer.Option(help="The seed of the shuffle.", rich_help_panel="Order")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples of a batch of the whole job.", rich_help_panel="Order")]
Block = Annotated[
    int | None, typer.Option(min=1, help="Shuffle blocks of so many records; global if left out.", rich_help_panel="Order")
]
Window = Annotated[int | None, typer.Option(min=1, help="Blocks that are mixed together.", rich_help_panel="Order")]
Lanes = Annotated[int, typer.Option(min=1, help="Lanes that keep ranks apart.", rich_help_panel="Order")]
InOrder = Annotated[bool, typer.Option("--in-order", help="Do not shuffle.", rich_help_panel="Order")]
World = Annotated[int, typer.Option(min=1, help="How many ranks share a batch.", rich_help_panel="Order")]
Tail = Annotated[str, typer.Option(help="A last, short batch: keep, drop, pad or wrap.", rich_help_panel="Order")]


DEFAULT_BATCH_SIZE = 256


def examples(*lines: str) -> str:
    """The end of a help page."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[green]{line.replace('[', chr(92) + '[')}[/green]" for line in lines)])


def storage_options(pairs: Sequence[str] | None) -> dict[str, str] | None:
    """KEY=VALUE pairs as a dict; None if there are none."""
    if not pairs:
        return None
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise typer.BadParameter(f"expected KEY=VALUE, got {wrong[0]!r}", param_hint="--storage")
    return dict(pair.split("=", 1) for pair in pairs)


def check_storage(words: Sequence[str], storage: Sequence[str] | None) -> None:
    """Options of an object store go with a URL."""
    if storage and not any(map(is_url, places(words))):
        raise typer.BadParameter(f"an option of an object store goes with a URL, got {' '.join(words)}", param_hint="--storage")


def open_data(
    paths: Sequence[str],
    *,
    generation: int | None = None,
    storage: Sequence[str] | None = None,
    record_bytes: int | None = None,
) -> Source:
    """What the words of a command line name: one thing, several one after the other, or fields side by side.

    Stores on disk refuse to read more than ``record_bytes`` at a time.
    """
    if "" in places(paths):
        raise typer.BadParameter("expected a path, got an empty word")
    check_storage(paths, storage)
    options: dict[str, Any] = {} if generation is None else {"generation": generation}
    if record_bytes is not None and all(is_directory(os.path.join(path, MANIFEST_DIRECTORY)) for path in paths):
        options["max_batch_bytes"] = record_bytes
    given = storage_options(storage)
    if given is not None:
        options["storage_options"] = given
    if all(_is_field(path) for path in paths):
        fields = dict(path.split("=", 1) for path in paths)
        if len(fields) < len(paths):
            raise typer.BadParameter(f"expected a different name for every field, got {' '.join(paths)}")
        return _open(fields, options)
    return _open(paths[0] if len(paths) == 1 else list(paths), options)


def _open(what: Any, options: dict[str, Any]) -> Source:
    try:
        return open_source(what, **options)
    except TypeError as error:
        refused = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if "generation" not in options or refused is None or refused[1] != "generation":
            raise
        raise typer.BadParameter("only a store has generations, and this is none", param_hint="--generation") from error


def places(words: Sequence[str]) -> list[str]:
    """The paths and URLs among the words of a command line, without the names of fields."""
    return [word.partition("=")[2] for word in words] if all(map(_is_field, words)) else list(words)


def data_first(data: list[str], number: str, name: str, *, example: str) -> tuple[list[str], str]:
    """DATA and the number behind it. The number in front of DATA, as in version 1, is understood where it cannot be mistaken for
    data: there is no such file, and the last word is no number. A note says so.
    """
    if not (_is_number(data[0]) and not _is_number(number) and not is_there(data[0])):
        return data, number
    say(f"note: DATA comes first, then {name}, as in {example}")
    return [*data[1:], number], data[0]


def _is_number(word: str) -> bool:
    """Whether this is 7, -7 or NAME:7."""
    return word.rpartition(":")[2].removeprefix("-").isdecimal()


def _is_field(path: str) -> bool:
    """Whether this is NAME=PATH, and not a file whose name has such a form."""
    name, equals, _ = path.partition("=")
    return bool(equals) and name.isidentifier() and not is_there(path)


def make_loader(
    paths: Sequence[str],
    *,
    batch_size: int,
    seed: int = 0,
    in_order: bool = False,
    block: int | None = None,
    window: int | None = None,
    lanes: int = 1,
    tail: str = "keep",
    shard: Shard | None = None,
    storage: Sequence[str] | None = None,
) -> Any:
    """The loader of the user's own function, or one of data in an order."""
    if len(paths) == 1 and is_function(paths[0]):
        given = (batch_size, seed, in_order, block, window, lanes, tail, shard or Shard())
        if given != (DEFAULT_BATCH_SIZE, 0, False, None, None, 1, "keep", Shard()):
            raise typer.BadParameter(f"{paths[0]} decides about batch size, order and ranks itself: leave those options out")
        return call(paths[0])
    if in_order and (block, window, lanes) != (None, None, 1):
        raise typer.BadParameter("--in-order does not shuffle: leave --block, --window and --lanes out")
    source = open_data(paths, storage=storage)
    stream = source.in_order() if in_order else source.shuffle(seed=seed, block=block, window=window, lanes=lanes)
    return Loader(stream, batch_size, tail=tail, shard=shard)


def is_function(word: str) -> bool:
    """Whether this names a function, as in module:function, and not a file."""
    module, colon, name = word.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split(".")) and not is_there(word)


def call(word: str) -> Any:
    """What the user's function gives."""
    function = function_named(word)
    if not callable(function):
        raise typer.BadParameter(f"{word}: expected a function without arguments, got a {type(function).__name__}")
    with _told(word, function):
        return function()


def function_named(word: str) -> Any:
    """The user's function; modules of the working directory are found too."""
    if not is_function(word):
        raise typer.BadParameter(f"expected MODULE:FUNCTION, got {word!r}")
    module, _, name = word.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not _is_there(module):
        raise typer.BadParameter(f"expected a module that can be imported, got {module!r}: No module named {module!r}")
    with _told(word):
        found = importlib.import_module(module)
    if not hasattr(found, name):
        raise typer.BadParameter(f"{module} has no function {name!r}")
    return getattr(found, name)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def _told(word: str, function: Any = None) -> Iterator[None]:
    """What the user's own code raises is told as such, with the place in it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _of_user(word, error, place_in(error, _file_of(function)) or place_in(error)) from error


@contextmanager
def told_of_map(word: str | None, function: Any) -> Iterator[None]:
    """The same for a function that is called among other things: what did not pass through its file is not its own."""
    try:
        yield
    except (Exception, SystemExit) as error:
        file = _file_of(getattr(function, "function", function))  # that of a BatchMap
        place = None if word is None or file is None else place_in(error, file)
        if word is None or place is None:
            raise
        raise _of_user(word, error, place) from error


def _of_user(word: str, error: BaseException, place: str | None) -> UserCodeError:
    return UserCodeError(f"{word} raised {type(error).__name__}: {error}{'' if place is None else f' ({place})'}")


def _file_of(function: Any) -> str | None:
    """The file of a function's module."""
    file = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), "__file__", None)
    return None if file is None else os.path.realpath(file)
