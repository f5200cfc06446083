"""The program: its commands, in the order in which a person meets them. Only the one that is called is imported."""

import importlib
import os
import sys
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock import __version__
from penstock.cli.terminal import Program


class Entry(NamedTuple):
    """A command as the help page of the program shows it: the first line of its own page, in its panel."""

    panel: str
    module: str
    name: str
    summary: str

    def function(self) -> Callable[..., None]:
        found = getattr(importlib.import_module(f"penstock.cli.{self.module}"), self.name.replace("-", "_"))
        command: Callable[..., None] = importlib.import_module("penstock.cli.options").takes_options(found)
        return command


ENTRIES = (
    Entry(
        "Start",
        "demo",
        "demo",
        "See it work: write pictures and captions, stream them, kill a training run, resume it exactly, mix, explain, report.",
    ),
    Entry("Look", "info", "info", "Show what is there."),
    Entry("Look", "info", "head", "Show the first records."),
    Entry("Look", "info", "show", "Show records by id."),
    Entry(
        "Look",
        "explain",
        "explain",
        "Say which records are in the batch of a step: ids, epoch and position, for every rank; of sequences, tokens or documents.",
    ),
    Entry(
        "Look",
        "explain",
        "where",
        "Say when a record is seen, or a document of sequences: epochs, positions, steps and ranks. No record is read.",
    ),
    Entry(
        "Look",
        "trace",
        "blame",
        "Find spikes of the loss, and the records that are to blame: losses out of the ordinary, their steps and streams.",
    ),
    Entry(
        "Look",
        "trace",
        "replay",
        "Make the exact batch of a step again, that of all ranks: read, decoded, transformed; with its losses, if DATA is a run.",
    ),
    Entry(
        "Look",
        "explain",
        "plan",
        "Say what a run is going to see: epochs, tokens and repeats of every stream, padding, bytes, requests. No record is read.",
    ),
    Entry("Make", "convert", "convert", "Write a new store from anything that can be opened."),
    Entry("Make", "maintenance", "index", "Build the indexes of data that has none of its own, or remove them."),
    Entry("Make", "maintenance", "rebalance", "Rewrite a store into full chunks."),
    Entry("Make", "maintenance", "gc", "Remove old generations of a store."),
    Entry("Check", "maintenance", "verify", "Read everything and report what is wrong."),
    Entry(
        "Check",
        "measure",
        "verify-resume",
        "Save and resume my loader at many places, and compare every batch with a run that was never interrupted.",
    ),
    Entry(
        "Check",
        "trace",
        "certify",
        "Say which batches a run was given, as a digest that is the same on any number of ranks.",
    ),
    Entry(
        "Check",
        "trace",
        "diff",
        "Name the first step at which two runs were given other batches, and why. The exit code is 1 if they differ.",
    ),
    Entry(
        "Check",
        "measure",
        "bench",
        "Measure my data with my batch size: samples and bytes per second, relative to a plain copy in memory.",
    ),
    Entry(
        "Check",
        "measure",
        "shuffle-report",
        "Judge a shuffle: how well batches are mixed, compared with a perfect shuffle, in six figures and two pictures.",
    ),
    Entry(
        "Check",
        "measure",
        "doctor",
        "Check the machine and the location of data: cores, memory, disk, limits, versions; what will hurt, and what to do.",
    ),
    Entry(
        "Start",
        "view",
        "view",
        "Look at data in a browser: records with images, batches, the order, chunks; a running loader; the losses of a run.",
    ),
)
NAMES = frozenset(entry.name for entry in ENTRIES)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def _penstock(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version it is.")] = False,
) -> None:
    """Training data for PyTorch and JAX: every batch is a pure function of data, seed and step.

    Exit codes: 0 all is well, 1 something was found (verify, verify-resume, doctor, diff), 2 wrong arguments, 3 data that cannot be
    read, 4 data that cannot be written, 130 interrupted.
    """


def _epilog(lines: Sequence[str]) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[green]{line.replace('[', chr(92) + '[')}[/green]" for line in lines)])


def _nothing() -> None:
    """In the place of a command that is not called."""


def program(loaded: Container[str] = NAMES) -> typer.Typer:
    """The program. Of commands that are not loaded, only the line on the help page of the program is there."""
    made = typer.Typer(
        name="penstock",
        cls=Program,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    made.callback()(_penstock)
    for entry in ENTRIES:
        if entry.name in loaded:
            function = entry.function()
            made.command(epilog=_epilog(function.__dict__["examples"]), rich_help_panel=entry.panel)(function)
        else:
            made.command(entry.name, help=entry.summary, rich_help_panel=entry.panel)(_nothing)
    return made


if TYPE_CHECKING:
    app: typer.Typer  # the program with all commands loaded, made when it is asked for
else:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()["app"] = program()
        return globals()["app"]


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]  # no option of the program itself takes a word
    loaded = NAMES if "_PENSTOCK_COMPLETE" in os.environ else frozenset(words[:1])
    program(loaded)(prog_name="penstock")
