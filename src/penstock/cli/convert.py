"""penstock convert: anything that can be opened into a store, row shards or token blocks."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.argument import byte_size
from penstock.cli.codec_option import parse_codecs
from penstock.cli.engine import Engine, EngineName, Workers, running
from penstock.cli.extent import extent, extent_on_disk
from penstock.cli.options import (
    AsJson,
    Fields,
    Storage,
    Threads,
    check_storage,
    function_named,
    open_data,
    places,
    storage_options,
    told_of_map,
)
from penstock.cli.output import console, facts, number, print_json, say
from penstock.cli.record import chosen
from penstock.errors import PenstockError, StoreError
from penstock.progress import Meter
from penstock.records import Source
from penstock.remote.url import is_url, url_path
from penstock.report.words import noun, size
from penstock.source.convert import ONE_FIELD
from penstock.source.convert import convert as convert_source
from penstock.source.convert_note import records_noted
from penstock.source.registry import open_source
from penstock.source.url_names import listing

__all__ = ["EXAMPLES", "convert"]

EXAMPLES = (
    "penstock convert 'part-*.parquet' train.pen --codec zstd",
    "penstock convert image=images.npy label=labels.npy train.pen",
    "penstock convert data.h5 train.pen --fields image,label --codec image=lz4 --codec label=raw",
    "penstock convert train.pen tokens.rox --fields tokens --separator 50256",
    "penstock convert raw.pen clean.pen --map clean:tidy --engine processes",
)

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE", help="Data as for info.", show_default=False)]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="The new store; or a name that ends in .shard or .rox.", show_default=False)
]
CodecOption = Annotated[
    list[str] | None,
    typer.Option(
        "--codec",
        metavar="[FIELD=]NAME[:LEVEL]",
        help="raw, deflate, zstd or lz4; for all fields, or for one. As often as you like.",
        show_default=False,
    ),
]
ChunkBytes = Annotated[str | None, typer.Option(help="Bytes of a chunk, such as 64MiB.", show_default=False)]
Separator = Annotated[int | None, typer.Option(help="Of .rox: the token behind every document.", show_default=False)]
MapOption = Annotated[
    str | None,
    typer.Option(
        "--map",
        metavar="MODULE:FUNCTION",
        help="A function of yours from batch to batch; it may change fields.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Summary:
    """What a conversion did. ``ratio`` is bytes out for a byte in, on disk; None where they are not known."""

    records: int
    first_record: int
    bytes_in: int | None
    bytes_out: int
    seconds: float

    @property
    def ratio(self) -> float | None:
        """Bytes out over bytes in."""
        return self.bytes_out / self.bytes_in if self.bytes_in else None


def convert(
    sources: Sources,
    target: Target,
    fields: Fields = None,
    codec: CodecOption = None,
    chunk_bytes: ChunkBytes = None,
    separator: Separator = None,
    map_name: MapOption = None,
    engine: EngineName = Engine.threads,
    workers: Workers = None,
    threads: Threads = 2,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Write a new store from anything that can be opened.

    If it is interrupted, the same command goes on where it was. A target that ends in .shard or .rox gets one field, in one go.
    """
    _check_target(target, separator, codec)
    check_storage([*sources, target], storage)
    for_sources = storage if any(map(is_url, places(sources))) else None
    function = None if map_name is None else function_named(map_name)
    began, meter = time.monotonic(), _Begun()
    with open_data(sources, storage=for_sources) as source, running(engine, workers) as executor:
        options: dict[str, Any] = {
            "fields": chosen(source, fields),
            "codec": parse_codecs(codec, chosen(source, fields) if map_name is None else None),
            "separator": separator,
            "threads": threads,
            "storage_options": storage_options(storage) if is_url(target) else None,
            "map": function,
            "executor": executor,
            **({} if chunk_bytes is None else {"chunk_bytes": byte_size("chunk-bytes", chunk_bytes)}),
        }
        in_tasks = map_name is not None or executor is not None
        with told_of_map(map_name, function):
            _run(lambda: convert_source(source, target, progress=meter, **options), target, len(source), in_tasks=in_tasks)
        summary = Summary(
            _records_in(target, storage, len(source)),
            meter.first,
            _bytes_in(sources, source),
            _bytes_out(target, storage),
            time.monotonic() - began,
        )
    _print(summary, target, as_json=as_json)


def _check_target(target: str, separator: object, codec: object) -> None:
    """Options that mean nothing for a target."""
    is_tokens, is_rows = target.endswith(".rox"), target.endswith(".shard")
    if separator is not None and not is_tokens:
        raise typer.BadParameter(
            "a separator stands between documents of tokens: the target must end in .rox", param_hint="--separator"
        )
    if codec and (is_tokens or is_rows):
        raise typer.BadParameter("row shards and token blocks are not compressed: leave it out", param_hint="--codec")


def _records_in(target: str, storage: Sequence[str] | None, records: int) -> int:
    """How many records a new store has: a map may give others than there were."""
    if target.endswith((".shard", ".rox")):
        return records
    options = storage_options(storage) if is_url(target) else None
    with open_source(target, **({} if options is None else {"storage_options": options})) as made:
        return len(made)


class _Begun(Meter):
    """Says where a conversion goes on."""

    first: int = 0

    def __init__(self) -> None:
        super().__init__(self._say)

    def _say(self, done: int, records: int) -> None:
        self.first = done
        say(f"goes on from record {number(done)} of {number(records)}" if done else f"{number(records)} {noun(records, 'record')}")


def _run(work: Callable[[], None], target: str, records: int, *, in_tasks: bool) -> None:
    try:
        work()
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_after_interrupt(target, records, in_tasks=in_tasks)) from error
    except BrokenExecutor as error:
        raise StoreError("a worker process died, for want of memory perhaps; the same command goes on where it was") from error
    except OSError as error:
        if isinstance(error, PenstockError) or not str(error.filename or "").startswith(str(Path(target).absolute())):
            raise
        raise StoreError(f"{target}: {error.strerror}") from error


def _after_interrupt(target: str, records: int, *, in_tasks: bool) -> str:
    """What the same command will do."""
    if is_url(target) or Path(target).suffix in ONE_FIELD:
        return "interrupted; nothing of it is left to be seen, the same command begins anew"
    if in_tasks:
        return "interrupted; the same command goes on with what is left to do"
    done = records_noted(Path(f"{target}.partial.json"))
    where = f"goes on from record {number(done)} of {number(records)}" if done else "begins anew"
    return f"interrupted; the same command {where}"


def _bytes_in(words: Sequence[str], source: Source) -> int | None:
    found = extent(words, source)
    return None if found is None else found.bytes


def _bytes_out(target: str, storage: Sequence[str] | None) -> int:
    if not is_url(target):
        return extent_on_disk([target]).bytes
    place = url_path(target, storage_options(storage))
    return sum(info.size for info in listing(place)) or place.objects.head(place.key).size


def _print(summary: Summary, target: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"target": target, **asdict(summary), "ratio": summary.ratio})
        return
    rows: dict[str, object] = {"to": target, "records": number(summary.records), "written": size(summary.bytes_out)}
    if summary.bytes_in is not None and summary.ratio is not None:
        rows["read"] = f"{size(summary.bytes_in)}, {summary.ratio:.2f} bytes written for each"
    rows["time"] = f"{summary.seconds:.1f} s, {size(summary.bytes_out / max(1e-9, summary.seconds))}/s"
    console().print(facts("converted", rows))
