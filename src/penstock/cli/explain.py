"""penstock explain: which records are in the batch of any step, past or future."""

from typing import Annotated, Any

import numpy as np
import typer

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
from penstock.cli.output import console, facts, number, print_json, table
from penstock.cli.record import read_record
from penstock.cli.value import shown
from penstock.loader import Loader
from penstock.order import Shard
from penstock.records import Source
from penstock.report.runner import core_of
from penstock.stream import MixedStream, RecordStream, Stream

__all__ = ["EXAMPLES", "explain", "need_loader"]

EXAMPLES = (
    "penstock explain train.pen 1000 --batch-size 256 --seed 7",
    "penstock explain train.pen 1000 --world 8 --most 4",
    "penstock explain train:make_loader 12 --show",
    "penstock explain train.pen 12 --json",
)

Step = Annotated[str, typer.Argument(metavar="STEP", help="The number of the batch, from 0 on.", show_default=False)]
Show = Annotated[bool, typer.Option("--show", help="Show the records too, as many as are listed of each rank.")]
Most = Annotated[int, typer.Option(min=1, help="How many samples of each rank are listed.")]


def explain(
    data: Pipeline,
    step: Step,
    show: Show = False,
    most: Most = 8,
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
    """Say which records are in the batch of a step: ids, epoch and position, for every rank.

    Nothing is read, unless --show is given. The batches of a function of yours are those of its loader.
    """
    data, step = data_first(data, step, "STEP", example="penstock explain train.pen 1000")
    wanted = _number(step)
    order: dict[str, Any] = {"seed": seed, "in_order": in_order, "block": block, "window": window, "lanes": lanes, "tail": tail}
    loader = need_loader(make_loader(data, batch_size=batch_size, shard=Shard(0, world), storage=storage, **order))
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
        table(("rank", "positions", "samples"), [_rank(rank, ranks, found["position"], samples, most) for rank in range(ranks)])
    )
    if show:
        _show(loader.stream, samples, ranks, most)


def _number(word: str) -> int:
    if not word.isdecimal():
        raise typer.BadParameter(f"expected the number of a batch, from 0 on, got {word!r}", param_hint="STEP")
    return int(word)


def need_loader(made: Any) -> Loader:
    """The penstock loader in what a function gave."""
    loader = core_of(made)
    if loader is None:
        raise typer.BadParameter(f"expected a function that gives a penstock loader, got {type(made).__name__}")
    return loader


def _samples(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Of every sample the name of its data set (empty if there is one) and its id, or its runs of tokens."""
    if "source" not in found:
        return [("", one) for one in _own(found)]
    left = {name: iter(_samples(part)) for name, part in found["parts"].items()}
    return [(_joined(name, inner), one) for name in found["source"].tolist() for inner, one in [next(left[name])]]


def _joined(name: str, inner: str) -> str:
    return f"{name}:{inner}" if inner else name


def _own(found: dict[str, Any]) -> list[Any]:
    if "ids" in found:
        ids: list[Any] = found["ids"].tolist()
        return ids
    return [[tuple(run) for run in np.asarray(runs).tolist()] for runs in found["tokens"]]


def _rank(rank: int, world: int, position: int, samples: list[tuple[str, Any]], most: int) -> tuple[str, str, str]:
    mine = samples[rank::world]
    dots = f" … ({number(len(mine))})" if len(mine) > most else ""
    listed = ", ".join(_named(name, one) for name, one in mine[:most])
    positions = ", ".join(number(position + rank + k * world) for k in range(min(2, len(mine))))
    return str(rank), f"{positions}{' …' if len(mine) > 2 else ''}", f"{listed}{dots}"


def _named(name: str, one: Any) -> str:
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
                facts(f"rank {rank}, {_named(name, one)}", {n: shown(value, preview=0) for n, value in record.values.items()})
            )


def _source(stream: Stream, name: str) -> Source | None:
    """The source of a data set by its name within mixtures."""
    for part in filter(None, name.split(":")):
        if isinstance(stream, MixedStream):
            stream = stream.streams[stream.names.index(part)]
    return stream.source if isinstance(stream, RecordStream) else None
