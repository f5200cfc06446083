"""penstock doctor: is this machine fit to train from, and what will hurt."""

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.failure import Code
from penstock.cli.options import AsJson, Storage, open_data, places
from penstock.cli.output import console, print_json, text
from penstock.remote.url import is_url
from penstock.report import Finding, examine
from penstock.source.paths import matching
from penstock.system import is_there

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = (
    "penstock doctor",
    "penstock doctor train.pen",
    "penstock doctor 'part-*.parquet' --json",
)

MaybeData = Annotated[list[str] | None, typer.Argument(metavar="DATA", help="Data as for info.", show_default=False)]
STYLES = {"ok": "green", "hurts": "yellow", "breaks": "bold red"}


def doctor(data: MaybeData = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Look at the machine, and at where data lies: cores, memory, disk, limits, versions; what will hurt, and what to do.

    A file of 64 MB is written beside the data, or in the directory for temporary files, and removed. Exit code 1 if something
    will not work.
    """
    findings = examine() if not data else _about(data, storage)
    if as_json:
        print_json({"findings": findings, "fit": all(one.level != "breaks" for one in findings)})
    else:
        show(findings)
    if any(one.level == "breaks" for one in findings):
        raise typer.Exit(Code.FOUND)


def _about(data: Sequence[str], storage: Sequence[str] | None) -> list[Finding]:
    with open_data(data, storage=storage) as source:
        words = [word for word in places(data) if not is_url(word)]
        paths = [path for word in words for path in ([word] if is_there(word) else sorted(matching(word)))]
        findings = examine(paths, source)
        if not paths:
            remedy = f"shuffle in blocks (block={source.blocks.size}), and give a cache on disk for later epochs"
            findings.append(Finding("data", "hurts", f"{len(source):,} records in an object store", remedy))
        return findings


def show(findings: Sequence[Finding]) -> None:
    """For a person: a line for each thing, with what to do below it."""
    out = console()
    for one in findings:
        line = text(f"{one.level:<7}", STYLES[one.level])
        line.append_text(text(f"{one.name}: ", "bold")).append_text(text(one.found))
        out.print(line)
        if one.remedy:
            out.print(text(f"        {one.remedy}"))
    worst = [name for name in ("breaks", "hurts") if any(one.level == name for one in findings)]
    told = {"breaks": "Something here will not work.", "hurts": "It works, but something here will hurt."}
    out.print()
    out.print(text(told[worst[0]] if worst else "This machine is fit.", "bold"))
