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
        "See it work: write images and captions, stream them, kill a training run, resume it exactly, mix, explain, report.",
    ),
    Entry("Look", "info", "info", "Show the fields, records and size of data."),
    Entry("Look", "info", "head", "Show the first records."),
    Entry("Look", "info", "show", "Show records by id."),
    Entry(
        "Look",
        "explain",
        "explain",
        "List the records in the batch of a step: ids, epoch and position, for every rank; for sequences, tokens or documents.",
    ),
    Entry(
        "Look",
        "explain",
        "where",
        "List when a record, or a document of sequences, is used: epochs, positions, steps and ranks. Reads no record.",
    ),
    Entry(
        "Look",
        "trace",
        "blame",
        "Find loss spikes and the records that caused them: unusual losses, their steps and streams.",
    ),
    Entry(
        "Look",
        "trace",
        "replay",
        "Make the exact global batch of a step again: read, decoded, transformed; with its losses, if DATA is a run.",
    ),
    Entry(
        "Look",
        "explain",
        "plan",
        "Compute what a run will use: epochs, tokens and repeats of every stream, padding, bytes, requests. Reads no record.",
    ),
    Entry("Make", "convert", "convert", "Write a new store from anything that can be opened."),
    Entry("Make", "maintenance", "index", "Build the indexes of files in advance, or remove them."),
    Entry("Make", "maintenance", "rebalance", "Rewrite a store into full chunks."),
    Entry("Make", "maintenance", "gc", "Remove old generations of a store."),
    Entry("Check", "maintenance", "verify", "Read everything and report errors."),
    Entry(
        "Check",
        "measure",
        "verify-resume",
        "Save and resume a loader at many points, and compare every batch with an uninterrupted run.",
    ),
    Entry(
        "Check",
        "trace",
        "certify",
        "Compute a digest of the batches of a run. It is the same on any number of ranks.",
    ),
    Entry(
        "Check",
        "trace",
        "diff",
        "Name the first step at which the batches of two runs differ, and why. Exit code 1 if they differ.",
    ),
    Entry(
        "Check",
        "measure",
        "bench",
        "Measure the throughput of data or a loader: samples and bytes per second, relative to a copy in memory.",
    ),
    Entry(
        "Check",
        "measure",
        "shuffle-report",
        "Measure a shuffle: how well it mixes batches, compared with a perfect shuffle, in six figures and two plots.",
    ),
    Entry(
        "Check",
        "measure",
        "doctor",
        "Check the machine and the location of data: cores, memory, disk, limits, versions; what is slow or broken, and remedies.",
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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Training data for PyTorch and JAX: every batch is a pure function of data, seed and step.

    Exit codes: 0 success, 1 verify, verify-resume, doctor or diff found something, 2 wrong arguments, 3 data cannot be
    read, 4 data cannot be written, 130 interrupted.
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
