"""penstock explain and where: which records are in the batch of a step, and when a record is seen."""

from typing import Annotated, Any

import numpy as np
import typer

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
from penstock.cli.record import read_record, shown
from penstock.cli.terminal import console, facts, number, print_json, say, table
from penstock.loader import Loader
from penstock.records import Source
from penstock.report.formatting import noun
from penstock.stream import MixedStream, RecordStream, Stream

Show = Annotated[bool, typer.Option("--show", help="Show the records too, as many as are listed of each rank.")]


@takes_order
@examples(
    "penstock explain train.pen 1000 --batch-size 256 --seed 7",
    "penstock explain train.pen 1000 --world 8 --most 4",
    "penstock explain train:make_loader 12 --show",
    "penstock explain train.pen 12 --json",
)
def explain(
    data: Pipeline,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The number of the batch, from 0 on.")],
    order: OrderOptions,
    show: Show = False,
    most: Annotated[int, typer.Option(min=1, help="How many samples of each rank are listed.")] = 8,
    world: World = 1,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say which records are in the batch of a step: ids, epoch and position, for every rank.

    Nothing is read, unless --show is given. With your own function, the batches are those of its loader.
    """
    data, step = data_first(data, step, "STEP", example="penstock explain train.pen 1000")
    wanted = _step_number(step)
    loader = need_loader(make_loader(data, order, world, storage))
    found = loader.explain(wanted)
    samples = _samples(found)
    ranks = loader.shard.world
    if as_json:
        print_json({**found, "world": ranks})
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


def _step_number(word: str) -> int:
    if not word.isdecimal():
        raise typer.BadParameter(f"expected the number of a batch, from 0 on, got {word!r}", param_hint="STEP")
    return int(word)


def _samples(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Of every sample the name of its data set (empty if there is one) and its id, or its runs of tokens."""
    if "source" not in found:
        return [("", one) for one in _own(found)]
    left = {name: iter(_samples(part)) for name, part in found["parts"].items()}
    return [(f"{name}:{inner}" if inner else name, one) for name in found["source"].tolist() for inner, one in [next(left[name])]]


def _own(found: dict[str, Any]) -> list[Any]:
    if "ids" in found:
        ids: list[Any] = found["ids"].tolist()
        return ids
    return [[tuple(run) for run in np.asarray(runs).tolist()] for runs in found["tokens"]]


def _rank_row(rank: int, world: int, position: int, samples: list[tuple[str, Any]], most: int) -> tuple[str, str, str]:
    mine = samples[rank::world]
    dots = f" … ({number(len(mine))})" if len(mine) > most else ""
    listed = ", ".join(_sample_name(name, one) for name, one in mine[:most])
    positions = ", ".join(number(position + rank + k * world) for k in range(min(2, len(mine))))
    return str(rank), f"{positions}{' …' if len(mine) > 2 else ''}", f"{listed}{dots}"


def _sample_name(name: str, one: Any) -> str:
    told = " + ".join(f"tokens {low}-{high}" for low, high in one) if isinstance(one, list) else str(one)
    return f"{name}:{told}" if name else told


def _show(stream: Stream, samples: list[tuple[str, Any]], world: int, most: int) -> None:
    out = console()
    for rank in range(world):
        for name, one in samples[rank::world][:most]:
            source = _source(stream, name)
            if source is None or isinstance(one, list):
                raise typer.BadParameter("sequences of tokens are no records that can be shown", param_hint="--show")
            record = read_record(source, one, list(source.schema))
            out.print()
            out.print(
                facts(f"rank {rank}, {_sample_name(name, one)}", {n: shown(value, preview=0) for n, value in record.values.items()})
            )


def _source(stream: Stream, name: str) -> Source | None:
    """The source of a data set by its name within mixtures."""
    for part in filter(None, name.split(":")):
        if isinstance(stream, MixedStream):
            stream = stream.streams[stream.names.index(part)]
    return stream.source if isinstance(stream, RecordStream) else None


@takes_order
@examples(
    "penstock where train.pen 425 --batch-size 256 --seed 7",
    "penstock where train.pen 425 --epochs 10 --world 8",
    "penstock where train:make_loader web:425 --json",
)
def where(
    data: Pipeline,
    record: Annotated[str, typer.Argument(metavar="ID", help="The id of the record; NAME:ID for a data set of a mixture.")],
    order: OrderOptions,
    epochs: Annotated[int, typer.Option(min=1, help="In how many epochs to look.")] = 3,
    world: World = 1,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say when a record is seen: epochs, positions, steps and ranks. Nothing is read."""
    data, record = data_first(data, record, "ID", example="penstock where train.pen 425")
    loader = need_loader(make_loader(data, order, world, storage))
    found = [{**one, "rank": _rank_of(loader, one)} for one in loader.where(_record_key(record, loader), epochs=range(epochs))]
    if as_json:
        print_json(found)
    elif found:
        columns = ("epoch", "position", "step", "rank")
        console().print(table(columns, [[number(one[name]) for name in columns] for one in found], right=columns))
    else:
        say(f"record {record} is in no batch of {number(epochs)} {noun(epochs, 'epoch')}")


def _record_key(word: str, loader: Loader) -> Any:
    name, colon, last = word.rpartition(":")
    if not last.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"expected the id of a record, got {word!r}", param_hint="ID")
    if isinstance(loader.stream, MixedStream) != bool(colon):
        kind = "NAME:ID, because this is a mixture" if not colon else "an id without a name, because this is no mixture"
        raise typer.BadParameter(f"expected {kind}, got {word!r}", param_hint="ID")
    return (name, int(last)) if colon else int(last)


def _rank_of(loader: Loader, one: dict[str, int]) -> int:
    """The rank that sees it: samples of a batch are dealt in turn."""
    first = loader.explain(one["step"])
    ahead = (first["epoch"], first["position"])
    before = one["position"] - ahead[1] if one["epoch"] == ahead[0] else one["position"] + loader.stream.axis - ahead[1]
    number: int = before // loader.stream.stride
    return number % loader.shard.world
