"""penstock explain, where and plan: which records or documents are in the batch of a step, as text too; when a record is seen; what
a run is going to see, before it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import ConsoleRenderable, Group

from penstock.cli.options import (
    AsJson,
    OrderOptions,
    Pipeline,
    Storage,
    World,
    data_first,
    examples,
    make_loader,
    need_loader,
    takes_order,
)
from penstock.cli.record import JSON_LETTERS, MOST_LETTERS, chosen, read_record, shown
from penstock.cli.terminal import clip, console, facts, number, print_json, safe, say, table
from penstock.cli.terminal import text as text_line
from penstock.loader import Loader
from penstock.order import Shard
from penstock.records import Source
from penstock.report import write_page
from penstock.report.formatting import command_line, count, noun, size
from penstock.report.page import need_plots
from penstock.report.sections import PLAN_METHOD, plan_section, plan_tables
from penstock.run_plan import RunPlan
from penstock.run_plan import plan as plan_run
from penstock.stream import DocumentTable, ImageStream, MixedStream, PackStream, RecordStream, SequenceStream, Stream, load_mixture
from penstock.stream.documents import TOKENS_OF_LETTER, has_tokens, text_of
from penstock.tokenizer import TextTokenizer, load_tokenizer

Show = Annotated[bool, typer.Option("--show", help="Also show the listed records.")]
AsText = Annotated[bool, typer.Option("--text", help="Show the samples as text: documents, or texts and tokens of records.")]
TokenizerFile = Annotated[
    str | None, typer.Option("--tokenizer", metavar="FILE", help="The tokenizer.json that decodes tokens, for --text.")
]
NameField = Annotated[
    str | None, typer.Option("--name-field", metavar="FIELD", help="For --text: name documents by this field, such as url.")
]

MOST_PIECES, MOST_PIECES_JSON = 64, 1000
MOST_NAME = 300


@takes_order
@examples(
    "penstock explain train.pen 1000 --batch-size 256 --seed 7",
    "penstock explain train.pen 1000 --world 8 --most 4",
    "penstock explain train:make_loader 12 --show",
    "penstock explain train:make_loader 12 --text --tokenizer tokenizer.json",
    "penstock explain train.pen 12 --json",
)
def explain(
    data: Pipeline,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The number of the batch, from 0.")],
    order: OrderOptions,
    show: Show = False,
    text: AsText = False,
    tokenizer: TokenizerFile = None,
    name_field: NameField = None,
    most: Annotated[int, typer.Option(min=1, help="Number of samples to list per rank.")] = 8,
    world: World = 1,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """List the records in the batch of a step: ids, epoch and position, for every rank; for sequences, tokens or documents.

    Reads nothing, except with --show or --text. With your own function, the batches are those of its loader.
    """
    data, step = data_first(data, step, "STEP", example="penstock explain train.pen 1000")
    if not text and (tokenizer is not None or name_field is not None):
        raise typer.BadParameter("expected --text too, which shows texts and names", param_hint="--text")
    wanted = step_number(step)
    made = None if tokenizer is None else load_tokenizer(tokenizer)
    loader = need_loader(make_loader(data, order, world, storage))
    found = loader.explain(wanted, documents=text and has_known_documents(loader.stream))
    samples = list(samples_of(found))
    ranks = loader.shard.world
    if made is not None:
        _compare_tokenizers(loader.stream, made)
    if as_json:
        reader = SampleReader(loader.stream, made, name_field, JSON_LETTERS, MOST_PIECES_JSON)
        texts = {"texts": [reader.as_json(*one) for one in _listed(samples, ranks, most)]} if text else {}
        print_json({**found, "world": ranks, **texts})
        return
    out = console()
    rows = {"epoch": number(found["epoch"]), "position": number(found["position"]), "samples": number(len(samples))}
    out.print(facts(f"step {wanted}", rows))
    out.print()
    out.print(
        table(("rank", "positions", "samples"), [_rank_row(rank, ranks, found["position"], samples, most) for rank in range(ranks)])
    )
    if show:
        _show(loader.stream, samples, ranks, most)
    if text:
        reader = SampleReader(loader.stream, made, name_field, MOST_LETTERS, MOST_PIECES)
        for rank, place, sample in _listed(samples, ranks, most):
            out.print()
            out.print(reader.as_table(rank, place, sample))


def step_number(word: str) -> int:
    if not word.isdecimal():
        raise typer.BadParameter(f"expected the number of a batch, from 0, got {word!r}", param_hint="STEP")
    return int(word)


@dataclass(frozen=True)
class Sample:
    """A sample by the names of its data sets in mixtures: its id, or its runs of tokens, and (document, from, to) if known."""

    names: tuple[str, ...]
    id: int | None = None
    runs: Sequence[tuple[int, int]] = ()
    documents: Sequence[tuple[int, int, int]] | None = None

    def __str__(self) -> str:
        if self.id is not None:
            told = str(self.id)
        elif self.documents is not None:
            told = " + ".join(f"document {document}[{low}:{high}]" for document, low, high in self.documents)
        else:
            told = " + ".join(f"tokens {low}-{high}" for low, high in self.runs)
        return ":".join([*self.names, told or "padding"])


def samples_of(found: dict[str, Any], names: tuple[str, ...] = ()) -> Iterator[Sample]:
    if "source" in found:
        left = {name: samples_of(part, (*names, name)) for name, part in found["parts"].items()}
        yield from (next(left[name]) for name in found["source"].tolist())
    elif "ids" in found:
        yield from (Sample(names, one) for one in found["ids"].tolist())
    else:
        told = found.get("documents", [None] * len(found["tokens"]))
        for runs, documents in zip(found["tokens"], told, strict=True):
            spans = None if documents is None else [(one, low, high) for one, low, high in documents.tolist()]
            yield Sample(names, None, [(low, high) for low, high in np.asarray(runs).tolist()], spans)


def _listed(samples: list[Sample], world: int, most: int) -> Iterator[tuple[int, int, Sample]]:
    """The first samples of each rank: the rank, the place in the batch, and the sample."""
    for rank in range(world):
        yield from ((rank, place, samples[place]) for place in range(rank, len(samples), world)[:most])


def _rank_row(rank: int, world: int, position: int, samples: list[Sample], most: int) -> tuple[str, str, str]:
    mine = samples[rank::world]
    dots = f" … ({number(len(mine))})" if len(mine) > most else ""
    positions = ", ".join(number(position + rank + k * world) for k in range(min(2, len(mine))))
    return str(rank), f"{positions}{' …' if len(mine) > 2 else ''}", f"{', '.join(map(str, mine[:most]))}{dots}"


def _show(stream: Stream, samples: list[Sample], world: int, most: int) -> None:
    out = console()
    for rank, _, sample in _listed(samples, world, most):
        part = _part(stream, sample.names)
        if not isinstance(part, ImageStream | RecordStream) or sample.id is None:
            raise typer.BadParameter("sequences of tokens cannot be shown as records: use --text", param_hint="--show")
        record = read_record(part.source, sample.id, list(part.source.schema))
        out.print()
        out.print(facts(f"rank {rank}, {sample}", {n: shown(value, preview=0) for n, value in record.values.items()}))


def _part(stream: Stream, names: Sequence[str]) -> Stream:
    """A stream by its names within mixtures."""
    for name in names:
        assert isinstance(stream, MixedStream)
        stream = stream.streams[stream.names.index(name)]
    return stream


def has_known_documents(stream: Stream) -> bool:
    """Whether the documents of all sequences can be told."""
    return all(part.has_documents for part in stream.parts if isinstance(part, SequenceStream))


def _compare_tokenizers(stream: Stream, tokenizer: TextTokenizer) -> None:
    """Say so if data names another tokenizer as the one that made its tokens."""
    for part in stream.parts:
        about = part.source.metadata.get("tokenizer")
        digest = about.get("sha256") if isinstance(about, Mapping) else None
        if digest not in (None, tokenizer.sha256):
            found = f"{str(digest)[:12]}, not {tokenizer.sha256[:12]}"
            say(f"note: the tokens were made by another tokenizer ({found}): texts may be wrong")
            return


@dataclass(frozen=True)
class _Piece:
    """A part of a sample as text: a document or a run of tokens [low, high), or a field of a record."""

    what: str
    low: int
    high: int
    text: str
    name: str | None = None
    document: int | None = None
    is_cut: bool = False


@dataclass(frozen=True)
class SampleReader:
    """Samples as text, of at most N letters a piece."""

    stream: Stream
    tokenizer: TextTokenizer | None
    name_field: str | None
    letters: int
    most: int

    def as_table(self, rank: int, place: int, sample: Sample) -> ConsoleRenderable:
        rows = [(one.what, f"{one.low}-{one.high}", *_name_cell(one.name), self._shown(one)) for one in self.pieces(sample)]
        names = ("name",) if rows and len(rows[0]) > 3 else ()
        left = len(sample.documents or ()) - len(rows)
        more = [text_line(f"… and {number(left)} documents more")] if left > 0 else []
        made = table(("document" if sample.documents is not None else "part", "from-to", *names, "text"), rows)
        return Group(text_line(", ".join([f"rank {rank}", f"sample {place}", *sample.names]), "bold"), made, *more)

    def _shown(self, piece: _Piece) -> str:
        return f"{safe(piece.text)}{'…' if piece.is_cut else ''}"

    def as_json(self, rank: int, place: int, sample: Sample) -> dict[str, Any]:
        pieces = [
            {
                **({"part": one.what} if one.document is None else {"document": one.document}),
                "from": one.low,
                "to": one.high,
                **({} if one.name is None else {"name": one.name[:MOST_NAME]}),
                "text": one.text,
                "is_cut": one.is_cut,
            }
            for one in self.pieces(sample)
        ]
        return {"rank": rank, "sample": place, "source": list(sample.names), "pieces": pieces}

    def pieces(self, sample: Sample) -> list[_Piece]:
        part = _part(self.stream, sample.names)
        if isinstance(part, ImageStream | RecordStream) and sample.id is not None:
            return list(self._of_record(part.source, sample.id))
        if isinstance(part, SequenceStream | PackStream) and sample.documents is not None:
            return [self._of_document(part.documents, *one) for one in sample.documents[: self.most]]
        if isinstance(part, SequenceStream):
            return [self._of_run(part, *one) for one in sample.runs[: self.most]]
        raise typer.BadParameter(f"samples of {type(part).__name__} cannot be shown as text", param_hint="--text")

    def _of_document(self, documents: DocumentTable, document: int, low: int, high: int) -> _Piece:
        end = min(high, low + TOKENS_OF_LETTER * self.letters)
        if documents.has_tokens and self.tokenizer is None:
            raise _needs_tokenizer()
        text = documents.text(document, low, end, tokenizer=self.tokenizer)
        name = documents.name(document, self.name_field)
        return self._piece(str(document), low, high, text, end < high, None if name == str(document) else name, document)

    def _of_run(self, stream: SequenceStream, low: int, high: int) -> _Piece:
        if self.tokenizer is None:
            raise _needs_tokenizer()
        end = min(high, low + TOKENS_OF_LETTER * self.letters)
        return self._piece("tokens", low, high, text_of(self.tokenizer, stream.read_tokens(low, end)), end < high)

    def _of_record(self, source: Source, record: int) -> Iterator[_Piece]:
        name = None
        if self.name_field is not None:
            (value,) = read_record(source, record, chosen(source, self.name_field)).values.values()
            name = "missing" if value is None else str(value)
        fields = [name for name, field in source.schema.items() if field.kind == "text" or has_tokens(field)]
        texts = {n: v for n, v in read_record(source, record, fields).values.items() if self.tokenizer or isinstance(v, str)}
        if not texts:
            raise _needs_tokenizer() if fields else typer.BadParameter("there is no field of texts or tokens", param_hint="--text")
        for field, value in texts.items():
            if isinstance(value, np.ndarray) and self.tokenizer is not None:
                end = min(value.size, TOKENS_OF_LETTER * self.letters)
                yield self._piece(field, 0, value.size, text_of(self.tokenizer, value[:end]), end < value.size, name)
            elif isinstance(value, str):
                yield self._piece(field, 0, len(value), value, False, name)
            else:
                yield self._piece(field, 0, 0, "missing" if value is None else str(value), False, name)

    def _piece(
        self, what: str, low: int, high: int, text: str, is_cut: bool, name: str | None = None, document: int | None = None
    ) -> _Piece:
        return _Piece(what, low, high, text[: self.letters], name, document, is_cut or len(text) > self.letters)


def _name_cell(name: str | None) -> tuple[str, ...]:
    """A name that is a path below the working directory without that."""
    return () if name is None else (clip(name.removeprefix(f"{os.getcwd()}{os.sep}"), MOST_NAME),)


def _needs_tokenizer() -> Exception:
    return typer.BadParameter(
        "tokens need a tokenizer to become text: pass --tokenizer FILE, a tokenizer.json", param_hint="--text"
    )


@takes_order
@examples(
    "penstock where train.pen 425 --batch-size 256 --seed 7",
    "penstock where train.pen 425 --epochs 10 --world 8",
    "penstock where train:make_loader web:425 --json",
)
def where(
    data: Pipeline,
    record: Annotated[str, typer.Argument(metavar="ID", help="The id of the record or document; NAME:ID in a mixture.")],
    order: OrderOptions,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs to search.")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of steps to search, instead of epochs, for streams that never end.")
    ] = None,
    world: World = 1,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """List when a record, or a document of sequences, is used: epochs, positions, steps and ranks. Reads no record."""
    data, record = data_first(data, record, "ID", example="penstock where train.pen 425")
    loader = need_loader(make_loader(data, order, world, storage))
    places = {"epochs": range(epochs)} if steps is None else {"steps": range(steps)}
    found = [{**one, "rank": _rank_of(loader, one)} for one in loader.where(_record_key(record, loader), **places)]
    if as_json:
        print_json(found)
    elif found:
        columns = ("epoch", "position", "step", "rank")
        console().print(table(columns, [[number(one[name]) for name in columns] for one in found], right=columns))
    else:
        looked = f"{number(epochs)} {noun(epochs, 'epoch')}" if steps is None else f"{number(steps)} {noun(steps, 'step')}"
        say(f"record {record} is in no batch of {looked}")


def _record_key(word: str, loader: Loader) -> Any:
    name, colon, last = word.rpartition(":")
    if not last.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"expected the id of a record, got {word!r}", param_hint="ID")
    if isinstance(loader.stream, MixedStream) != bool(colon):
        kind = "NAME:ID, because this is a mixture" if not colon else "an id without a name, because this is no mixture"
        raise typer.BadParameter(f"expected {kind}, got {word!r}", param_hint="ID")
    return _key_in(loader.stream, name, int(last)) if colon else int(last)


def _key_in(stream: Stream, name: str, record: int) -> Any:
    """A record by the names of its data sets: outer:inner for a mixture within another."""
    for outer in stream.names if isinstance(stream, MixedStream) else ():
        part = _part(stream, [outer])
        if isinstance(part, MixedStream) and name.startswith(f"{outer}:"):
            return outer, _key_in(part, name.removeprefix(f"{outer}:"), record)
    return name, record


def _rank_of(loader: Loader, one: dict[str, int]) -> int:
    """The rank that sees it: samples of a batch are dealt in turn."""
    first = loader.explain(one["step"])
    ahead = (first["epoch"], first["position"])
    before = one["position"] - ahead[1] if one["epoch"] == ahead[0] else one["position"] + loader.stream.axis - ahead[1]
    number: int = before // loader.stream.stride
    return number % loader.shard.world


# The plan

FILES = (".yaml", ".yml")


@takes_order
@examples(
    "penstock plan mix.yaml --steps 10000 --batch-size 256",
    "penstock plan mix.yaml --steps 10000 --batch-size 256 --html plan.html",
    "penstock plan train:make_loader --steps 100000 --json",
    "penstock plan train.pen --batch-size 512",
)
def plan(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="MIXTURE|DATA|MODULE:FUNCTION",
            help="A mixture as a YAML file, data as for info, or a function that returns a loader.",
        ),
    ],
    order: OrderOptions,
    steps: Annotated[int | None, typer.Option(min=0, help="Steps of the run. Default: one epoch, or all phases.")] = None,
    more_than: Annotated[int, typer.Option(min=0, metavar="K", help="Count samples that are used more than K times.")] = 1,
    network: Annotated[bool, typer.Option(help="Include what is fetched from object stores.")] = True,
    world: World = 1,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Compute what a run will use: epochs, tokens and repeats of every stream, padding, bytes, requests. Reads no record.

    A mixture file is described on the page about mixing.
    """
    if html is not None:
        need_plots()
    if any(one.endswith(FILES) for one in data):
        loader = _of_mixture(data, order, world, storage)
    else:
        loader = need_loader(make_loader(data, order, world, storage))
    found = plan_run(loader, steps, seen_more_than=more_than, network=network)
    if html is not None:
        options = {"steps": steps, "more-than": more_than, **order.given(), "batch-size": order.batch_size, "world": world}
        made = command_line("plan", data, options)
        write_page(html, [plan_section(found)], title="What is the run going to see?", command=made, notes=PLAN_METHOD)
        say(f"wrote {html}")
    if as_json:
        print_json(found)
    else:
        _show_plan(found)


def _of_mixture(data: list[str], order: OrderOptions, world: int, storage: list[str] | None) -> Loader:
    """The loader of a mixture file, which says itself how its sources are opened and shuffled."""
    if len(data) > 1:
        raise typer.BadParameter(f"expected one mixture file, got {len(data)} arguments")
    given = [name for name in order.given() if name not in ("batch-size", "tail")] + ["storage"] * bool(storage)
    if given:
        raise typer.BadParameter(f"{data[0]} says itself how data is opened and shuffled: leave out --{', --'.join(given)}")
    return Loader(load_mixture(data[0]), order.batch_size, tail=order.tail, shard=Shard(0, world))


def _show_plan(found: RunPlan) -> None:
    rows: dict[str, object] = {"steps": number(found.steps), "samples": number(found.samples), "epochs": found.epochs}
    if found.tokens is not None:
        rows["tokens"] = count(found.tokens)
    rows["bytes of a batch"] = size(found.batch_bytes)
    if found.requests:
        rows |= {"from object stores": f"{size(found.bytes)} in {number(found.requests)} requests"}
        rows |= {"of that in memory": size(found.peak_bytes)}
    shown = console()
    shown.print(facts("The run", rows))
    for columns, rows_of_streams in plan_tables(found):
        shown.print()
        shown.print(table(columns, rows_of_streams, right=columns[1:]))
    counted = [one for one in found.streams if one.repeated is not None]
    if counted:
        often, total = sum(one.repeated or 0 for one in counted), sum(one.length for one in counted)
        times = found.seen_more_than
        say(f"{number(often)} of {number(total)} samples come more than {times} {noun(times, 'time')}")
