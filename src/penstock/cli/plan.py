"""penstock plan: what a run is going to see, before it."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson, OrderOptions, Storage, World, examples, make_loader, need_loader, takes_order
from penstock.cli.terminal import console, facts, number, print_json, say, table
from penstock.loader import Loader
from penstock.order import Shard
from penstock.report import write_page
from penstock.report.formatting import command_line, count, percent, size
from penstock.report.page import need_plots
from penstock.report.sections import PLAN_COLUMNS, PLAN_METHOD, plan_rows, plan_section
from penstock.run_plan import RunPlan
from penstock.run_plan import plan as plan_run
from penstock.stream import load_mixture

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
    steps: Annotated[int | None, typer.Option(min=0, help="Steps of the run; one epoch, or all phases, unless given.")] = None,
    more_than: Annotated[int, typer.Option(min=0, metavar="K", help="Count samples that come more than K times.")] = 1,
    network: Annotated[bool, typer.Option(help="Also what is fetched from object stores.")] = True,
    world: World = 1,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run is going to see: epochs, tokens and repeats of every stream, padding, bytes, requests. No record is read.

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
        _show(found)


def _of_mixture(data: list[str], order: OrderOptions, world: int, storage: list[str] | None) -> Loader:
    """The loader of a mixture file, which says itself how its sources are opened and shuffled."""
    if len(data) > 1:
        raise typer.BadParameter(f"expected one mixture file, got {len(data)} arguments")
    given = [name for name in order.given() if name not in ("batch-size", "tail")] + ["storage"] * bool(storage)
    if given:
        raise typer.BadParameter(f"{data[0]} says itself how data is opened and shuffled: leave out --{', --'.join(given)}")
    return Loader(load_mixture(data[0]), order.batch_size, tail=order.tail, shard=Shard(0, world))


def _show(found: RunPlan) -> None:
    rows: dict[str, object] = {"steps": number(found.steps), "samples": number(found.samples), "epochs": found.epochs}
    if found.tokens is not None:
        rows["tokens"] = count(found.tokens)
    rows["bytes of a batch"] = size(found.batch_bytes)
    if found.requests:
        rows |= {"from object stores": f"{size(found.bytes)} in {number(found.requests)} requests"}
        rows |= {"of that in memory": size(found.peak_bytes)}
    shown = console()
    shown.print(facts("The run", rows))
    shown.print(table(PLAN_COLUMNS, plan_rows(found), right=PLAN_COLUMNS[1:]))
    if found.samples:
        often = sum(one.repeated or 0 for one in found.streams)
        say(f"{number(often)} samples come more than {found.seen_more_than} times: {percent(often / found.samples)} of all")
