"""The program: its commands, in the order in which a person meets them."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.convert import convert
from penstock.cli.demo import demo
from penstock.cli.explain import explain, where
from penstock.cli.info import head, info, show
from penstock.cli.maintenance import gc, rebalance, verify
from penstock.cli.measure import bench, doctor, shuffle_report, verify_resume
from penstock.cli.terminal import Program
from penstock.cli.view import view

COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("Start", demo),
    ("Look", info),
    ("Look", head),
    ("Look", show),
    ("Look", explain),
    ("Look", where),
    ("Make", convert),
    ("Make", rebalance),
    ("Make", gc),
    ("Check", verify),
    ("Check", verify_resume),
    ("Check", bench),
    ("Check", shuffle_report),
    ("Check", doctor),
    ("Start", view),
)
"""Every command, and its panel on the help page."""

app = typer.Typer(
    name="penstock",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version it is.")] = False,
) -> None:
    """Training data for PyTorch and JAX: every batch is a pure function of data, seed and step.

    Exit codes: 0 all is well, 1 something was found (verify, verify-resume, doctor), 2 wrong arguments, 3 data that cannot be read,
    4 data that cannot be written, 130 interrupted.
    """


def _epilog(lines: Sequence[str]) -> str:
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[green]{line.replace('[', chr(92) + '[')}[/green]" for line in lines)])


for _panel, _command in COMMANDS:
    app.command(epilog=_epilog(_command.__dict__["examples"]), rich_help_panel=_panel)(_command)


def main() -> None:
    app(prog_name="penstock")
