"""penstock where: when is a record seen."""

from typing import Annotated, Any

import typer

from penstock.cli.explain import need_loader
from penstock.cli.options import (
    AsJson,
    BatchSize,
    Block,
    InOrder,
    Lanes,
    Pipeline,
    Seed,
    Storage,
    Tail,
    Window,
    World,
    data_first,
    make_loader,
)
from penstock.cli.output import console, number, print_json, say, table
from penstock.loader import Loader
from penstock.order import Shard
from penstock.report.words import noun
from penstock.stream import MixedStream

__all__ = ["EXAMPLES", "where"]

EXAMPLES = (
    "penstock where train.pen 425 --batch-size 256 --seed 7",
    "penstock where train.pen 425 --epochs 10 --world 8",
    "penstock where train:make_loader web:425 --json",
)

Record = Annotated[
    str,
    typer.Argument(metavar="ID", help="The id of the record; NAME:ID for a data set of a mixture.", show_default=False),
]
Epochs = Annotated[int, typer.Option(min=1, help="In how many epochs to look.")]


def where(
    data: Pipeline,
    record: Record,
    epochs: Epochs = 3,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    in_order: InOrder = False,
    block: Block = None,
    window: Window = None,
    lanes: Lanes = 1,
    world: World = 1,
    tail: Tail = "keep",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say when a record is seen: epochs, positions, steps and ranks. Nothing is read."""
    data, record = data_first(data, record, "ID", example="penstock where train.pen 425")
    order: dict[str, Any] = {"seed": seed, "in_order": in_order, "block": block, "window": window, "lanes": lanes, "tail": tail}
    loader = need_loader(make_loader(data, batch_size=batch_size, shard=Shard(0, world), storage=storage, **order))
    found = [{**one, "rank": _rank(loader, one)} for one in loader.where(_named(record, loader), epochs=range(epochs))]
    if as_json:
        print_json(found)
    elif found:
        columns = ("epoch", "position", "step", "rank")
        console().print(table(columns, [[number(one[name]) for name in columns] for one in found], right=columns))
    else:
        say(f"record {record} is in no batch of {number(epochs)} {noun(epochs, 'epoch')}")


def _named(word: str, loader: Loader) -> Any:
    """The id, with the name of its data set if there is one."""
    name, colon, last = word.rpartition(":")
    if not last.removeprefix("-").isdecimal():
        raise typer.BadParameter(f"expected the id of a record, got {word!r}", param_hint="ID")
    if isinstance(loader.stream, MixedStream) != bool(colon):
        kind = "NAME:ID, because this is a mixture" if not colon else "an id without a name, because this is no mixture"
        raise typer.BadParameter(f"expected {kind}, got {word!r}", param_hint="ID")
    return (name, int(last)) if colon else int(last)


def _rank(loader: Loader, one: dict[str, int]) -> int:
    """The rank that sees it: samples of a batch are dealt in turn."""
    first = loader.explain(one["step"])
    ahead = (first["epoch"], first["position"])
    before = one["position"] - ahead[1] if one["epoch"] == ahead[0] else one["position"] + loader.stream.axis - ahead[1]
    number: int = before // loader.stream.stride
    return number % loader.shard.world
