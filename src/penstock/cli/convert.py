"""penstock convert: anything that can be opened into a store, row shards or token files; texts into tokens."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from penstock.argument import byte_size
from penstock.cli.options import (
    AsJson,
    Storage,
    Threads,
    check_storage,
    examples,
    extent,
    extent_on_disk,
    function_named,
    open_data,
    places,
    storage_options,
    told_of_map,
)
from penstock.cli.record import chosen
from penstock.cli.terminal import console, facts, number, print_json, say
from penstock.conversion.convert import DOCUMENTS, ONE_FIELD, Converted
from penstock.conversion.convert import convert as convert_source
from penstock.conversion.record_map import ShrinkImages, Tokenize, as_shrink
from penstock.conversion.tasks import records_noted
from penstock.errors import PenstockError, StoreError
from penstock.formats.files import listing
from penstock.formats.open import open_source
from penstock.formats.tokens_writer import files_of
from penstock.process import need
from penstock.progress import ProgressMeter
from penstock.remote.url import is_url, url_path
from penstock.report.formatting import noun, size
from penstock.schema import LZ4, Codec, Deflate, Raw, Zstd
from penstock.tokenizer import load_tokenizer

T = TypeVar("T")
_WITH_LEVEL: dict[str, type[Deflate] | type[Zstd] | type[LZ4]] = {"deflate": Deflate, "zstd": Zstd, "lz4": LZ4}


def parse_codecs(words: Sequence[str] | None, fields: Sequence[str] | None) -> Codec | dict[str, Codec] | None:
    """One codec for all fields, a dict for some, or None. A codec for all others next to some for single fields needs the names of
    the ``fields``.
    """
    given = dict(_parse_codec(word) for word in words or ())
    for_all = given.pop("", None)
    if for_all is None or not given:
        return for_all or given or None
    if fields is None:
        raise _wrong_codec("with --map, give one codec for all fields, or one for each")
    return dict.fromkeys(fields, for_all) | given


def _parse_codec(word: str) -> tuple[str, Codec]:
    field, _, codec = word.rpartition("=")
    name, colon, level = codec.partition(":")
    if codec == "raw":
        return field, Raw()
    if name not in _WITH_LEVEL or (colon and not level.isdecimal()):
        raise _wrong_codec(f"expected raw, or {', '.join(_WITH_LEVEL)} with or without :LEVEL, got {codec!r}")
    try:
        return field, _WITH_LEVEL[name](int(level)) if colon else _WITH_LEVEL[name]()
    except ValueError as error:
        raise _wrong_codec(f"{name}: {error}") from error


def _wrong_codec(what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="--codec")


class WorkEngine(StrEnum):
    """Where work is done."""

    threads = "threads"
    processes = "processes"
    ray = "ray"


Workers = Annotated[
    int | None, typer.Option(min=1, help="Workers of the engine. Default: one per processor.", rich_help_panel="Scale")
]


@contextmanager
def running(engine: WorkEngine, workers: int | None) -> Iterator[Executor | None]:
    """The executor of an engine; None for the threads that the work has anyway."""
    if engine is WorkEngine.threads and workers is None:
        yield None
        return
    with _executor(engine, workers) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _executor(engine: WorkEngine, workers: int | None) -> Iterator[Executor]:
    count = workers or os.cpu_count() or 1
    if engine is WorkEngine.threads:
        with ThreadPoolExecutor(count, thread_name_prefix="penstock-work") as threads:
            yield threads
    elif engine is WorkEngine.processes:
        # Spawned: a forked child would have the locks of threads that it does not have.
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent) as processes:
            yield processes
    else:
        with _ray(workers) as tasks:
            yield tasks


@contextmanager
def _ray(workers: int | None) -> Iterator[Executor]:
    """Tasks of the Ray that RAY_ADDRESS names, or of one of our own."""
    need("ray", "ray")
    import ray

    from penstock.cluster.ray import RayExecutor

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    own: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
    try:
        yield RayExecutor()
    finally:
        ray.shutdown()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@examples(
    "penstock convert 'part-*.parquet' train.pen --codec zstd",
    "penstock convert image=images.npy label=labels.npy train.pen",
    "penstock convert data.h5 train.pen --fields image,label --codec image=lz4 --codec label=raw",
    "penstock convert train.pen tokens.rox --fields tokens --separator 50256",
    "penstock convert raw.pen clean.pen --map clean:tidy --engine processes",
    "penstock convert corpus.parquet tokens.rox --tokenizer tokenizer.json --field text --eos '<|endoftext|>'",
    "penstock convert chats.parquet chats.ds --tokenizer model/ --chat",
    "penstock convert photos/ train.pen --image max_side=512,quality=90",
)
def convert(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Data as for info.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The new store; or a name that ends in .shard, .rox, .idx, .ds or .bin.")
    ],
    fields: Annotated[str | None, typer.Option("--fields", "--field", metavar="A,B", help="Only these fields.")] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec",
            metavar="[FIELD=]NAME[:LEVEL]",
            help="raw, deflate, zstd or lz4; for all fields, or for one. Repeatable.",
        ),
    ] = None,
    chunk_bytes: Annotated[str | None, typer.Option(help="Bytes of a chunk, such as 64MiB.")] = None,
    separator: Annotated[int | None, typer.Option(help="For token files: the token after every document.")] = None,
    map_name: Annotated[
        str | None,
        typer.Option("--map", metavar="MODULE:FUNCTION", help="Your own function from batch to batch; it may change fields."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A tokenizer.json, or a directory with one: texts become tokens.", rich_help_panel="Text"
        ),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Append this token, a name or an id, to every document.", rich_help_panel="Text"),
    ] = None,
    special_tokens: Annotated[
        bool, typer.Option(help="Keep the special tokens that the tokenizer's post-processor adds.", rich_help_panel="Text")
    ] = True,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Treat records as conversations and render them with the tokenizer's chat template, or treat them as texts.",
            rich_help_panel="Text",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="max_side=N[,quality=Q][,field=F]",
            help="Shrink images: to JPEGs whose longer side has at most N pixels.",
            rich_help_panel="Images",
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Treat records as conversations and render them with this Jinja template.", rich_help_panel="Text"
        ),
    ] = None,
    engine: Annotated[
        WorkEngine, typer.Option("--engine", help="Where records are read, mapped and written.", rich_help_panel="Scale")
    ] = WorkEngine.threads,
    workers: Workers = None,
    threads: Threads = 2,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Write a new store from anything that can be opened.

    If it is interrupted, run the same command again: it continues where it stopped.

    A target that ends in .shard, .rox, .idx, .ds or .bin takes one field. It continues only with --tokenizer, --map or --engine.
    """
    _check_target(target, separator, codec)
    how = _tokenize(tokenizer, eos, special_tokens, chat, chat_template)
    _remark(how, target)
    check_storage([*sources, target], storage)
    for_sources = storage if any(map(is_url, places(sources))) else None
    function = None if map_name is None else function_named(map_name)
    began, meter = time.monotonic(), _Begun()
    with open_data(sources, storage=for_sources) as source, running(engine, workers) as executor:
        options: dict[str, Any] = {
            "fields": None if how is not None and fields is None else chosen(source, fields),
            "codec": parse_codecs(codec, chosen(source, fields) if map_name is None and how is None else None),
            "separator": separator,
            "threads": threads,
            "storage_options": storage_options(storage) if is_url(target) else None,
            "map": function,
            "executor": executor,
            "tokenizer": how,
            "image": None if image is None else _shrink(image),
            **({} if chunk_bytes is None else {"chunk_bytes": byte_size("chunk-bytes", chunk_bytes)}),
        }
        in_tasks = map_name is not None or executor is not None or how is not None or image is not None
        with told_of_map(map_name, function):
            made = _run(lambda: convert_source(source, target, progress=meter, **options), target, len(source), in_tasks=in_tasks)
        found, written = extent(sources, source), _bytes_out(target, storage)
        read = None if found is None else found.bytes
        records = _records_in(target, storage, len(source)) if made is None else made.records
        summary = {"target": target, "records": records, "first_record": meter.first}
        summary |= {"bytes_in": read, "bytes_out": written, "seconds": time.monotonic() - began}
    summary["ratio"] = written / read if read else None
    if made is not None and made.tokens is not None:
        summary |= _tokens(made, summary)
    if as_json:
        print_json(summary)
    else:
        _show(summary)


def _tokenize(
    tokenizer: str | None, eos: str | None, special_tokens: bool, chat: bool | None, chat_template: str | None
) -> Tokenize | None:
    if tokenizer is None:
        for name, value in (("--eos", eos), ("--chat", chat), ("--chat-template", chat_template)):
            if value is not None:
                raise typer.BadParameter("is for converting texts to tokens: pass --tokenizer too", param_hint=name)
        return None
    if chat is False and chat_template is not None:
        raise typer.BadParameter("contradicts --no-chat", param_hint="--chat-template")
    template = chat if chat_template is None else Path(chat_template)
    token = int(eos) if eos is not None and eos.isdecimal() else eos
    return Tokenize(load_tokenizer(tokenizer), eos=token, special_tokens=special_tokens, chat_template=template)


def _shrink(text: str) -> ShrinkImages:
    """What --image says."""
    given = dict(part.partition("=")[::2] for part in text.split(","))
    unknown = [name for name in given if name not in ("max_side", "quality", "field")]
    if unknown or "max_side" not in given:
        raise typer.BadParameter(
            f"expected max_side=N, and quality=Q and field=NAME if need be, got {text!r}", param_hint="--image"
        )
    if wrong := [name for name, value in given.items() if name != "field" and not value.isdecimal()]:
        raise typer.BadParameter(f"{wrong[0]} must be a whole number, got {given[wrong[0]]!r}", param_hint="--image")
    try:
        return as_shrink({name: value if name == "field" else int(value) for name, value in given.items()})
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--image") from error


def _remark(how: Tokenize | None, target: str) -> None:
    """Say that documents cannot be told apart, where neither the file nor a token does."""
    is_line = target.endswith((".rox", ".bin")) and how is not None and how.eos is None
    if how is not None and is_line and not (how.special_tokens and len(load_tokenizer(how.tokenizer).encode([""]).values)):
        say(f"documents run together in a {Path(target).suffix} file: --eos puts a token behind each; .idx and .ds keep them apart")


def _tokens(made: Converted, summary: dict[str, Any]) -> dict[str, Any]:
    """Counts of tokens; none a second where some were made before."""
    rate = made.tokens / max(1e-9, summary["seconds"]) if made.tokens is not None and not summary["first_record"] else None
    counts = {"documents": made.records, "tokens": made.tokens, "token_bytes": made.token_bytes, "tokens_per_s": rate}
    return counts if made.loss_tokens is None else {**counts, "loss_tokens": made.loss_tokens}


def _check_target(target: str, separator: object, codec: object) -> None:
    is_tokens, is_rows = target.endswith((".rox", ".idx", ".ds", ".bin", ".npy")), target.endswith(".shard")
    if separator is not None and not is_tokens:
        raise typer.BadParameter(
            "a separator stands between documents of tokens: the target must end in .rox, .idx, .ds or .bin",
            param_hint="--separator",
        )
    if codec and (is_tokens or is_rows):
        raise typer.BadParameter("row shards and token files are not compressed: leave it out", param_hint="--codec")


def _records_in(target: str, storage: Sequence[str] | None, records: int) -> int:
    """How many records a new store has: a map may give others than there were."""
    if target.endswith((".shard", ".rox", ".idx", ".ds", ".bin")):
        return records
    options = storage_options(storage) if is_url(target) else None
    with open_source(target, **({} if options is None else {"storage_options": options})) as made:
        return len(made)


class _Begun(ProgressMeter):
    """Says from which record a conversion resumes."""

    first: int = 0

    def __init__(self) -> None:
        super().__init__(self._say)

    def _say(self, done: int, records: int) -> None:
        self.first = done
        say(f"resumes from record {number(done)} of {number(records)}" if done else f"{number(records)} {noun(records, 'record')}")


def _run(work: Callable[[], T], target: str, records: int, *, in_tasks: bool) -> T:
    try:
        return work()
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_after_interrupt(target, records, in_tasks=in_tasks)) from error
    except BrokenExecutor as error:
        raise StoreError("a worker process died, perhaps for lack of memory; the same command resumes where it stopped") from error
    except OSError as error:
        if isinstance(error, PenstockError) or not str(error.filename or "").startswith(str(Path(target).absolute())):
            raise
        raise StoreError(f"{target}: {error.strerror}") from error


def _after_interrupt(target: str, records: int, *, in_tasks: bool) -> str:
    """What the same command will do."""
    if is_url(target) or (Path(target).suffix in ONE_FIELD and not in_tasks):
        return "interrupted; nothing remains of it, the same command starts over"
    if in_tasks:
        return "interrupted; the same command does what is left to do"
    done = records_noted(Path(f"{target}.partial.json"))
    where = f"resumes from record {number(done)} of {number(records)}" if done else "starts over"
    return f"interrupted; the same command {where}"


def _bytes_out(target: str, storage: Sequence[str] | None) -> int:
    if not is_url(target):
        return extent_on_disk(files_of(Path(target)) if Path(target).suffix in DOCUMENTS else [target]).bytes
    place = url_path(target, storage_options(storage))
    return sum(info.size for info in listing(place)) or place.objects.head(place.key).size


def _show(summary: dict[str, Any]) -> None:
    written, seconds = summary["bytes_out"], summary["seconds"]
    rows: dict[str, object] = {"to": summary["target"], "records": number(summary["records"]), "written": size(written)}
    if "tokens" in summary:
        rows |= _token_rows(summary)
    if summary["ratio"] is not None:
        rows["read"] = f"{size(summary['bytes_in'])}, {summary['ratio']:.2f} bytes written for each"
    rows["time"] = f"{seconds:.1f} s, {size(written / max(1e-9, seconds))}/s"
    console().print(facts("converted", rows))


def _token_rows(summary: dict[str, Any]) -> dict[str, object]:
    rate = "" if summary["tokens_per_s"] is None else f", {number(round(summary['tokens_per_s']))}/s"
    rows: dict[str, object] = {"tokens": f"{number(summary['tokens'])}, {size(summary['token_bytes'])}{rate}"}
    if "loss_tokens" in summary:
        rows["in the loss"] = f"{number(summary['loss_tokens'])} tokens"
    return rows
