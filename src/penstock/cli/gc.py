"""penstock gc: what old generations and crashed writers have left, removed."""

from typing import Annotated

import typer

from penstock.cli.options import AsJson, Storage, StorePath, storage_options
from penstock.cli.output import console, number, print_json, text
from penstock.report.words import noun, size
from penstock.store import Collected
from penstock.store import gc as collect

__all__ = ["EXAMPLES", "gc"]

EXAMPLES = (
    "penstock gc train.pen --dry-run",
    "penstock gc train.pen --keep 3",
    "penstock gc train.pen --keep 1 --keep-hours 0",
    "penstock gc s3://bucket/train.pen --keep-hours 24",
)

Keep = Annotated[int, typer.Option(min=1, help="So many of the newest generations stay.")]
KeepHours = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Younger generations and other files stay too: 24 hours on a disk and 168 at a URL unless given.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would go.")]


def gc(
    store: StorePath,
    keep: Keep = 10,
    keep_hours: KeepHours = None,
    dry_run: DryRun = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Remove old generations of a store.

    Files that no generation needs, such as those of crashed writers, go too,
    once they are as old: they may belong to a commit or a copy under way.
    What stays is untouched, also for those who are reading it.
    """
    done = collect(store, keep=keep, keep_hours=keep_hours, dry_run=dry_run, storage_options=storage_options(storage))
    if as_json:
        print_json({"dry_run": dry_run, **_as_json(done)})
        return
    out = console()
    for file in done.files:
        out.print(text(file), soft_wrap=True)
    kept = done.kept_generations
    freed = f"{number(len(done.files))} {noun(len(done.files), 'file')}, {size(done.freed_bytes)}"
    stay = f"generation {kept[0]} stays" if len(kept) == 1 else f"generations {kept[0]} to {kept[-1]} stay"
    out.print(text(f"{'would free' if dry_run else 'freed'} {freed}; {stay}"))


def _as_json(done: Collected) -> dict[str, object]:
    return {"files": done.files, "freed_bytes": done.freed_bytes, "kept_generations": done.kept_generations}
