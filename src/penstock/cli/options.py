"""Options that several commands share, and what they open: data, a loader of it, or a function of the user's."""

import importlib
import importlib.util
import inspect
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.terminal import UserCodeError, place_in, say
from penstock.formats.files import expand, has_pattern
from penstock.formats.open import companions_of, open_source
from penstock.formats.sidecar import sidecars_of
from penstock.formats.tokens import numbered_shards
from penstock.loader import Loader
from penstock.order import Shard
from penstock.records import Source
from penstock.remote.url import is_url
from penstock.report.trainer import core_of
from penstock.store.storage import MANIFEST_DIRECTORY
from penstock.stream import Stream
from penstock.system import is_directory, is_there, reading, status

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA", help="A path, a pattern or a URL; several are concatenated; NAME=PATH ... makes each a field of one record."
    ),
]
Pipeline = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA|MODULE:FUNCTION",
        help="Data as for info, or a function that returns a loader: train:make_loader is make_loader() of train.py.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Fields = Annotated[str | None, typer.Option(metavar="A,B", help="Only these fields.")]
Generation = Annotated[int | None, typer.Option(help="For a store: this generation instead of the newest.")]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", "-s", metavar="KEY=VALUE", help="An option of the object store, such as region=eu-west-1."),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of penstock.open, such as dtype=uint16."),
]
StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The path or URL of a store.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that compress and write.")]
World = Annotated[int, typer.Option(min=1, help="Number of ranks that share each batch.", rich_help_panel="Order")]

Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Examples for the end of a command's help page."""

    def add(command: Command) -> Command:
        command.__dict__["examples"] = lines
        return command

    return add


# Options of the data itself: those of token files without a header, above all


class _Given:
    """What the command that is running was given for the data that it opens. Threads of its own see it too."""

    pairs: Sequence[str] = ()
    is_used = False


_given = _Given()


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --option, if it opens data: what is given there goes to all that it opens."""
    signature = inspect.signature(command)
    if "storage" not in signature.parameters or "store" in signature.parameters:  # only a store, which has no options
        return command

    @wraps(command)
    def run(*, option: Sequence[str] | None = None, **given: Any) -> None:
        _given.pairs, _given.is_used = tuple(option or ()), False
        try:
            command(**given)
            if _given.pairs and not _given.is_used:
                raise _wrong_option("it goes with data that is opened, and none was")
        finally:
            _given.pairs = ()

    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index("storage") + 1
    added = inspect.Parameter("option", parameters[place - 1].kind, default=None, annotation=DataOption)
    run.__signature__ = signature.replace(parameters=[*parameters[:place], added, *parameters[place:]])  # type: ignore[attr-defined]
    return run


def given_options() -> Sequence[str]:
    """The KEY=VALUE pairs of --option, as they were given, for a command that passes them on."""
    _given.is_used = True
    return _given.pairs


def data_options() -> dict[str, Any]:
    """The same for penstock.open: a value is JSON (true, 4096, [1, 2], "text"), or else a text."""
    found: dict[str, Any] = {}
    for pair in _given.pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise _wrong_option(f"expected KEY=VALUE, got {pair!r}")
        if key in found:
            raise _wrong_option(f"expected {key} once, got it twice")
        found[key] = _value(value)
    _given.is_used = True
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _wrong_option(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="--option")


# The order of batches: one group of options for every command that computes batches


@dataclass(frozen=True)
class ShuffleOptions:
    """The options of a shuffle. Every field is an option of the commands that :func:`takes_order` decorates."""

    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch, over all ranks.", rich_help_panel="Order")] = 256
    seed: Annotated[int, typer.Option(help="The seed of the shuffle.", rich_help_panel="Order")] = 0
    block: Annotated[
        int | None, typer.Option(min=1, help="Records per block. Default: shuffle records globally.", rich_help_panel="Order")
    ] = None
    window: Annotated[int | None, typer.Option(min=1, help="Blocks that are shuffled together.", rich_help_panel="Order")] = None
    lanes: Annotated[
        int, typer.Option(min=1, help="Lanes: ranks in different lanes read different blocks.", rich_help_panel="Order")
    ] = 1

    def stream(self, source: Source) -> Stream:
        return source.shuffle(seed=self.seed, block=self.block, window=self.window, lanes=self.lanes)

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, as they are written on a command line."""
        values = {field.name.replace("_", "-"): (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True)
class OrderOptions(ShuffleOptions):
    """The options of any order, shuffled or not."""

    in_order: Annotated[bool, typer.Option("--in-order", help="Do not shuffle.", rich_help_panel="Order")] = False
    tail: Annotated[str, typer.Option(help="A last, short batch: keep, drop, pad or wrap.", rich_help_panel="Order")] = "keep"

    def stream(self, source: Source) -> Stream:
        return source.in_order() if self.in_order else super().stream(source)


def takes_order(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its parameter ``order`` as an option of its own."""
    signature = inspect.signature(command)
    kind = signature.parameters["order"].annotation
    options = list(inspect.signature(kind).parameters.values())

    @wraps(command)
    def run(**given: Any) -> None:
        command(order=kind(**{option.name: given.pop(option.name) for option in options}), **given)

    parameters = [[one] if one.name != "order" else options for one in signature.parameters.values()]
    run.__signature__ = signature.replace(parameters=[one for group in parameters for one in group])  # type: ignore[attr-defined]
    return run


def make_loader(paths: Sequence[str], order: OrderOptions, world: int = 1, storage: Sequence[str] | None = None) -> Any:
    """What the user's own function returns, or the loader of rank 0 of data in an order."""
    if len(paths) == 1 and is_function(paths[0]):
        if order != OrderOptions() or world != 1:
            raise typer.BadParameter(f"{paths[0]} sets batch size, order and ranks itself: leave those options out")
        if _given.pairs:
            raise _wrong_option(f"{paths[0]} opens the data itself: leave it out")
        return _call(paths[0])
    if order.in_order and (order.block, order.window, order.lanes) != (None, None, 1):
        raise typer.BadParameter("--in-order does not shuffle: leave --block, --window and --lanes out")
    stream = order.stream(open_data(paths, storage=storage))
    return Loader(stream, order.batch_size, tail=order.tail, shard=Shard(0, world))


def need_loader(made: Any) -> Loader:
    """The penstock loader in what a function returned."""
    loader = core_of(made)
    if loader is None:
        raise typer.BadParameter(f"expected a function that returns a penstock loader, got {type(made).__name__}")
    return loader


def data_first(data: list[str], number: str, name: str, *, example: str) -> tuple[list[str], str]:
    """DATA and the number after it. The number before DATA, as in version 1, is accepted where it cannot be mistaken for data:
    there is no such file, and the last word is no number. A note says so.
    """
    if not (_is_number(data[0]) and not _is_number(number) and not is_there(data[0])):
        return data, number
    say(f"note: DATA comes first, then {name}, as in {example}")
    return [*data[1:], number], data[0]


def _is_number(word: str) -> bool:
    """Whether this is 7, -7 or NAME:7."""
    return word.rpartition(":")[2].removeprefix("-").isdecimal()


# Data


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
        raise typer.BadParameter(f"an object store option needs a URL, got {' '.join(words)}", param_hint="--storage")


def open_data(
    paths: Sequence[str], *, generation: int | None = None, storage: Sequence[str] | None = None, record_bytes: int | None = None
) -> Source:
    """What the words of a command line name: one thing, several one after the other, or fields side by side.

    Stores on disk refuse to read more than ``record_bytes`` at a time.
    """
    if "" in places(paths):
        raise typer.BadParameter("expected a path, got an empty argument")
    check_storage(paths, storage)
    options: dict[str, Any] = {} if generation is None else {"generation": generation}
    if record_bytes is not None and all(is_directory(os.path.join(path, MANIFEST_DIRECTORY)) for path in paths):
        options["max_batch_bytes"] = record_bytes
    given = storage_options(storage)
    if given is not None:
        options["storage_options"] = given
    options |= data_options()
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
        if refused is None or refused[1] not in options:
            raise
        if refused[1] != "generation":
            raise _wrong_option(f"data of this kind has no option {refused[1]}") from error
        raise typer.BadParameter("only a store has generations, and this is not one", param_hint="--generation") from error


def places(words: Sequence[str]) -> list[str]:
    """The paths and URLs among the words of a command line, without the names of fields."""
    return [word.partition("=")[2] for word in words] if all(map(_is_field, words)) else list(words)


def _is_field(path: str) -> bool:
    """Whether this is NAME=PATH, and not a file whose name has such a form."""
    name, equals, _ = path.partition("=")
    return bool(equals) and name.isidentifier() and not is_there(path)


@dataclass(frozen=True)
class Extent:
    """Files and their bytes."""

    files: int
    bytes: int


def extent(words: Sequence[str], source: Source) -> Extent | None:
    """The files that the words of a command line name; None where that is not known, as of the parts of a collection."""
    if source.remote is not None:
        return Extent(len(source.remote.files), sum(info.size for _, info in source.remote.files))
    paths = places(words)
    return None if any(is_url(path) or path.endswith(".json") for path in paths) else extent_on_disk(paths)


def indexes_of(words: Sequence[str]) -> list[Path]:
    """The sidecars of the files that the words of a command line name, or that are under what they name."""
    named = places(words)
    files = list(dict.fromkeys(file for word in named if not is_url(word) for file in _files(word)))
    known, urls = {os.path.realpath(file) for file in files}, [word.rstrip("/") for word in named if is_url(word)]

    def is_meant(file: str) -> bool:
        return file in known or any(file == url or file.startswith(f"{url}/") or fnmatchcase(file, url) for url in urls)

    return sidecars_of(is_meant, files)


def extent_on_disk(paths: Iterable[str | os.PathLike[str]]) -> Extent:
    """Files with those that belong to them, patterns, directories with all that is below them, and prefixes of token files."""
    named = dict.fromkeys(file for path in paths for file in _files(os.fspath(path)))
    found = [status(file) for file in named]
    sizes = [one.st_size for one in found if one is not None and stat.S_ISREG(one.st_mode)]
    return Extent(len(sizes), sum(sizes))


def _files(text: str) -> Iterator[Path]:
    path = Path(text.removeprefix("file://"))
    if has_pattern(text) and not is_there(text):
        for found in expand(text, ()):
            yield from _files(str(found))
    elif is_directory(path):
        yield from _files_below(path)
    elif is_there(path):
        yield from (path, *(path.with_name(name) for name in companions_of(path.name)))
    else:
        yield from (shard for _, shard in numbered_shards(path))
        yield from (path.with_name(path.name + end) for end in (".idx", ".bin"))


def _files_below(path: Path) -> Iterator[Path]:
    """All that is in a directory and below it, without following links to others."""
    with reading(path, "listing the directory"), os.scandir(path) as entries:
        inside = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for inner, is_folder in inside:
        yield from _files_below(inner) if is_folder else [inner]


# Functions of the user


def is_function(word: str) -> bool:
    """Whether this names a function, as in module:function, and not a file."""
    module, colon, name = word.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split(".")) and not is_there(word)


def _call(word: str) -> Any:
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
    file = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), "__file__", None)
    return None if file is None else os.path.realpath(file)
