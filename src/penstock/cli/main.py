"""The program: its commands, in the order in which a person meets them."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    bench,
    convert,
    demo,
    doctor,
    explain,
    gc,
    head,
    info,
    rebalance,
    shuffle_report,
    verify,
    verify_resume,
    view,
    where,
)
from penstock.cli.failure import Program
from penstock.cli.options import examples

__all__ = ["app", "main"]

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


def _add(function: Callable[..., None], lines: Sequence[str], panel: str) -> None:
    app.command(epilog=examples(*lines), rich_help_panel=panel)(function)


_add(demo.demo, demo.EXAMPLES, "Start")
_add(info.info, info.EXAMPLES, "Look")
_add(head.head, head.HEAD_EXAMPLES, "Look")
_add(head.show, head.SHOW_EXAMPLES, "Look")
_add(explain.explain, explain.EXAMPLES, "Look")
_add(where.where, where.EXAMPLES, "Look")
_add(convert.convert, convert.EXAMPLES, "Make")
_add(rebalance.rebalance, rebalance.EXAMPLES, "Make")
_add(gc.gc, gc.EXAMPLES, "Make")
_add(verify.verify, verify.EXAMPLES, "Check")
_add(verify_resume.verify_resume, verify_resume.EXAMPLES, "Check")
_add(bench.bench, bench.EXAMPLES, "Check")
_add(shuffle_report.shuffle_report, shuffle_report.EXAMPLES, "Check")
_add(doctor.doctor, doctor.EXAMPLES, "Check")
_add(view.view, view.EXAMPLES, "Start")


def main() -> None:
    """Run the program, and end the process with its exit code."""
    app(prog_name="penstock")
