"""penstock verify-resume: does my own loader resume exactly, also after kill -9."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.failure import Code
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
    make_loader,
)
from penstock.cli.output import console, number, print_json, text
from penstock.errors import StateMismatchError
from penstock.loader import verify_resume as verify
from penstock.loader.verify import BEYOND_EPOCH, MOST_STEPS, SPREAD, fields_of
from penstock.progress import reporting
from penstock.report import train, verify_kills
from penstock.report.words import noun

__all__ = ["EXAMPLES", "verify_resume"]

EXAMPLES = (
    "penstock verify-resume train:make_loader",
    "penstock verify-resume train.pen --batch-size 64 --seed 7",
    "penstock verify-resume train:make_loader --steps 50 --points 0,7,49",
    "penstock verify-resume train:make_loader --kill --json",
)

Steps = Annotated[
    int | None, typer.Option(min=1, help="Batches of the run; an epoch and a little more if left out.", show_default=False)
]
Points = Annotated[str | None, typer.Option(metavar="A,B,...", help="After which batches to save and resume.", show_default=False)]
Kill = Annotated[bool, typer.Option("--kill", help="Kill a training process (kill -9) and go on in a new one, three times.")]
Log = Annotated[Path | None, typer.Option("--train-log", hidden=True)]

KILL_STEPS = 60


def verify_resume(
    data: Pipeline,
    steps: Steps = None,
    points: Points = None,
    kill: Kill = False,
    batch_size: BatchSize = 256,
    seed: Seed = 0,
    in_order: InOrder = False,
    block: Block = None,
    window: Window = None,
    lanes: Lanes = 1,
    tail: Tail = "keep",
    storage: Storage = None,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Save and resume my loader at many places, and compare every batch with a run that was never interrupted.

    Exit code 1, with the point, the step and the field, if a batch differs.
    """
    order: dict[str, Any] = {"seed": seed, "in_order": in_order, "block": block, "window": window, "lanes": lanes, "tail": tail}

    def make() -> Any:
        return make_loader(data, batch_size=batch_size, storage=storage, **order)

    if log is not None:
        train(make, log, steps or KILL_STEPS, pace=0)
        return
    chosen = _numbers(points)
    try:
        if kill:
            found = _killed(_options(batch_size, storage, order), data, steps or KILL_STEPS, chosen)
        else:
            found = _resumed(make, steps, chosen)
    except StateMismatchError as error:
        _print({"resumes": False, "killed": kill, "difference": str(error)}, as_json)
        raise typer.Exit(Code.FOUND) from error
    if found["batches"] == 0:
        raise ValueError("an epoch has no batch, so there is nothing to compare: give a smaller batch size, or another tail")
    _print({"resumes": True, "killed": kill, **found}, as_json)


def _numbers(points: str | None) -> list[int] | None:
    if points is None:
        return None
    words = [word.strip() for word in points.split(",")]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"expected numbers of batches such as 0,7,49, got {points!r}", param_hint="--points")
    return [int(word) for word in words]


def _resumed(make: Callable[[], Any], steps: int | None, points: list[int] | None) -> dict[str, Any]:
    number_of = steps or _expected_steps(make)
    places = SPREAD + 5 if points is None else len(points)
    with reporting(sys.stderr.isatty(), "comparing batches", 2 * number_of + places * number_of * 3 // 2) as told:

        def digest(batch: Any) -> Any:
            if told is not None:
                told(1, 0)
            return fields_of(batch)

        report = verify(make, steps=steps, points=points, digest=digest)
    return {"steps": report.steps, "points": report.points, "batches": report.batches}


def _expected_steps(make: Callable[[], Any]) -> int:
    loader = make()
    return min(MOST_STEPS, len(loader) + BEYOND_EPOCH) if hasattr(loader, "__len__") else MOST_STEPS


def _options(batch_size: int, storage: list[str] | None, order: dict[str, Any]) -> list[str]:
    """The options that make the same loader in another process."""
    words = ["--batch-size", str(batch_size)]
    for name, value in order.items():
        option = f"--{name.replace('_', '-')}"
        if value is not None and value is not False:
            words += [option] if value is True else [option, str(value)]
    return words + [word for pair in storage or () for word in ("--storage", pair)]


def _killed(options: list[str], data: list[str], steps: int, points: list[int] | None) -> dict[str, Any]:
    """This very command, as the process that is killed."""

    def command(log: str, steps: int) -> list[str]:
        own = ["--steps", str(steps), "--train-log", log]
        return [sys.executable, "-m", "penstock", "verify-resume", *options, *own, "--", *data]

    with reporting(sys.stderr.isatty(), "training and dying", 2 * steps) as told:
        found = verify_kills(command, steps=steps, points=points, progress=told)
    return {"steps": found.steps, "points": found.points, "batches": found.steps}


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    if not found["resumes"]:
        out.print(text("does not resume", "bold red"))
        out.print(text(found["difference"]))
        return
    out.print(text("resumes exactly", "bold green"))
    count = len(found["points"])
    times = f"{'killed' if found['killed'] else 'saved and resumed'} at {number(count)} {noun(count, 'place')}"
    out.print(text(f"a run of {_batches(found['steps'])}, {times}: {_batches(found['batches'])} compared, all equal"))


def _batches(count: int) -> str:
    return f"{number(count)} {noun(count, 'batch', 'batches')}"
