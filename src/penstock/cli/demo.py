"""penstock demo: a data set, a run that dies, and the same run again, in under a minute."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.cli.options import AsJson, examples
from penstock.cli.record import can_draw, drawing, small_pixels
from penstock.cli.terminal import Code, console, number, print_json, table, text
from penstock.demo import CLASSES, FIELDS, LOG, batches, checkpoint, make_loader
from penstock.errors import StoreError
from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.order import Shuffle
from penstock.records import Source
from penstock.report import Figure, Section, Tile, field_labels, measure_loader, measure_order, write_page
from penstock.report.formatting import size
from penstock.store.writer import create
from penstock.stream import mix

MARK = ".penstock-demo"
SECONDS = 1.5
STEPS = 150
DIES_AT = 73
FAR = 1_000_000


@examples("penstock demo", "penstock demo /tmp/try --records 100000 --framework numpy", "penstock demo --json")
def demo(
    directory: Annotated[Path, typer.Argument(help="The directory to write to.")] = Path("penstock-demo"),
    records: Annotated[int, typer.Option(min=2000, max=2_000_000, help="Images to draw.")] = 16_000,
    framework: Annotated[str, typer.Option(help="The framework of the tiny model: auto, numpy or torch.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """See it work: write images and captions, stream them, kill a training run, resume it exactly, mix, explain, report.

    Writes everything into one directory, with a report to open in a browser. Downloads nothing.
    """
    _make_room(directory)
    story = Story(console(to_stderr=as_json))
    story.write(directory, records)
    story.look(directory)
    story.stream(directory)
    story.die_and_resume(directory, framework)
    story.mix(directory)
    story.explain(directory)
    story.report(directory)
    if as_json:
        print_json(story.found)
    if not story.found["resumed_exactly"]:
        raise typer.Exit(Code.FOUND)


def _make_room(directory: Path) -> None:
    """A new directory, in place of an older demo at most."""
    if directory.exists() and not (directory / MARK).exists():
        raise typer.BadParameter(f"{directory}: it exists already and is not a demo; choose another directory")
    try:
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        (directory / MARK).touch()
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}; choose another directory") from error


class Story:
    """The chapters, in order; ``found`` keeps the figures."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self.found: dict[str, Any] = {}

    def write(self, directory: Path, records: int) -> None:
        """Two stores: many shapes sorted by class, and a few that are only dots and diamonds."""
        intro = f"{number(records)} images with captions, sorted by class, and a smaller second set."
        self._chapter("1", "Write a data set", intro)
        few = records // 4
        sets = (("shapes.pen", batches(records, seed=1)), ("rare.pen", batches(few, seed=2, classes=("diamond", "dots"))))
        with self._bar("drawing and writing", records + few) as advance:
            for name, drawn in sets:
                with create(directory / name, FIELDS) as out:
                    for batch in drawn:
                        advance(len(out.extend(batch)))
        written = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        self.found["bytes"] = written
        self._say(f"{size(written)} in {directory}/shapes.pen and rare.pen. Leaving the `with` block committed them.")

    def look(self, directory: Path) -> None:
        self._chapter("2", "Look at it", "Fields, and one record of each class. Nothing is read but these.")
        with open_source(directory / "shapes.pen") as data:
            ids = [(2 * number + 1) * len(data) // (2 * len(CLASSES)) for number in range(len(CLASSES))]
            self._pictures(data, ids[:: 1 if self.out.width >= 8 * 17 else 2])
            rows = [(place, data[place]["label"], data[place]["caption"]) for place in ids]
        self.out.print(table(("id", "label", "caption"), rows, right=("id", "label")))

    def stream(self, directory: Path) -> None:
        intro = "Every epoch is another order of all records, compared with plain copies in memory."
        self._chapter("3", "Stream it, shuffled", intro)
        data = str(directory / "shapes.pen")
        with self._bar("one epoch", len(make_loader(data))) as advance, make_loader(data) as loader:
            classes = []
            for batch in loader:
                classes.append(len(set(batch["label"].tolist())))
                advance(1)
        found = f"{min(classes)} to {max(classes)} of {len(CLASSES)} classes"
        self._say(f"every batch held {found}, although the data is sorted by class")
        self.speed = measure_loader(lambda: make_loader(data), seconds=SECONDS)
        rate, share = self.speed.samples_per_s.median, self.speed.ratio
        self.found |= {"samples_per_s": rate, "of_limit": share}
        self._say(f"{number(rate)} images per second, {share:.2f} of what bare memory copies by as many threads reach")

    def die_and_resume(self, directory: Path, framework: str) -> None:
        """Three processes: an uninterrupted run, one that is killed, and one that resumes from its checkpoint."""
        intro = f"A tiny model learns for {STEPS} steps. A second run is killed (SIGKILL) in step {DIES_AT}, and started again."
        self._chapter("4", "Kill a run, resume it exactly", intro)
        whole, broken = directory / "run-whole", directory / "run-killed"
        self._train(directory, whole, framework, "uninterrupted")
        code = self._train(directory, broken, framework, "until it dies", "--die-at", str(DIES_AT))
        self._say(f"killed: exit code {code}. The last checkpoint is of step {_step_of(broken)}; its loader state is plain JSON.")
        self._train(directory, broken, framework, "again")
        same = {"batches": _log(whole) == _log(broken), "weights": _weights(whole) == _weights(broken)}
        self.found |= {"exit_code": code, "steps": len(_log(broken)), "resumed_exactly": all(same.values()) and code == -9}
        self.found["losses"] = [line["loss"] for line in _log(broken)]
        for name, equal in same.items():
            words = f"all {STEPS} {name} are" if name == "batches" else "the final weights are, bit for bit,"
            self._say(f"{words} {'' if equal else 'NOT '}those of the uninterrupted run", "green" if equal else "red")

    def mix(self, directory: Path) -> None:
        self._chapter("5", "Mix two data sets", "70 % shapes and 30 % rare ones; any step is computed from its number alone.")
        with open_source(directory / "shapes.pen") as many, open_source(directory / "rare.pen") as few:
            streams = {"shapes": many.shuffle(seed=1), "rare": few.shuffle(seed=1)}
            mixed = mix(streams, weights={"shapes": 0.7, "rare": 0.3}, seed=5, stop="forever")
            with Loader(mixed, 1024) as loader:
                loader.seek(FAR)
                drawn = Counter(loader.explain(FAR)["source"].tolist())
                labels = Counter(CLASSES[label] for label in next(loader.forever())["label"].tolist())
        self.found["mixture"] = dict(drawn)
        self._say(f"step {FAR:,}, which is in neither's first epoch: {drawn['shapes']} of shapes, {drawn['rare']} of rare")
        self._say("in it: " + ", ".join(f"{count} {name}" for name, count in labels.most_common()))

    def explain(self, directory: Path) -> None:
        self._chapter("6", "Explain a batch", f"Which records were in step {DIES_AT}? When does one of them come again?")
        with make_loader(str(directory / "shapes.pen")) as loader:
            told = loader.explain(DIES_AT)
            first = int(told["ids"][0])
            seen = loader.where(first, epochs=range(3))
        self.found["explained"] = {"step": DIES_AT, "ids": told["ids"][:8].tolist(), "where": seen}
        self._say(f"step {DIES_AT}, epoch {told['epoch']}: records {', '.join(map(str, told['ids'][:8].tolist()))}, ...")
        self._say(f"record {first} is seen in " + "; ".join(f"epoch {place['epoch']}, step {place['step']}" for place in seen))

    def report(self, directory: Path) -> None:
        self._chapter("7", "Read the report", "Throughput, where the time goes, how well the records are mixed.")
        with open_source(directory / "shapes.pen") as data:
            order, labels = Shuffle(len(data), seed=7), field_labels(data, "label")
            mixing = measure_order(order, batch_size=128, block=256, labels=labels, num_labels=8)
        sections = [self.speed.section(), mixing.section(), self._section()]
        try:
            page = write_page(directory / "report.html", sections, title="penstock demo", command="penstock demo")
        except ImportError as error:
            self._say(f"no report: {error}")
        else:
            self.found["report"] = str(page)
            self._say(f"open {page} in a browser")
        self._say(f"then try: penstock head {directory}/shapes.pen; penstock view {directory}/shapes.pen; penstock --help")

    def _section(self) -> Section:
        """The run that died, for the page."""
        losses = self.found["losses"]

        def draw(figure: Any, narrow: bool) -> None:
            axes = figure.add_subplot()
            axes.plot(range(len(losses)), losses)
            axes.axvline(DIES_AT, linestyle=":")
            axes.annotate("killed", (DIES_AT, max(losses)), xytext=(6, -10), textcoords="offset points")
            axes.set_xlabel("step")
            axes.set_ylabel("loss")

        caption = f"The run was killed in step {DIES_AT}, resumed, and saw the same batches as an uninterrupted one."
        verdict = "exact" if self.found["resumed_exactly"] else "NOT exact"
        resume = Tile("resume", verdict, "batches and weights, bit for bit")
        tiles = (resume, Tile("final loss", f"{losses[-1]:.2f}", f"{STEPS} steps"))
        figure = Figure("loss", "Loss, step by step", caption, draw)
        return Section("A run that died", "A tiny model learned the shapes.", tiles, (figure,))

    # How it is told

    def _chapter(self, which: str, title: str, intro: str) -> None:
        self.out.print()
        self.out.rule(text(f"{which}  {title}", "bold cyan"), align="left", style="cyan")
        self.out.print(text(intro, "dim"))

    def _say(self, line: str, style: str = "") -> None:
        self.out.print(text(line, style))

    @contextmanager
    def _bar(self, title: str, total: int) -> Iterator[Callable[..., None]]:
        note = TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), note)
        with Progress(*columns, console=self.out, disable=not self.out.is_terminal) as bars:
            task = bars.add_task(title, total=total, note="")

            def advance(count: int, note: str = "") -> None:
                bars.update(task, advance=count, note=note)

            yield advance

    def _train(self, directory: Path, run: Path, framework: str, title: str, *more: str) -> int:
        """One run in a process of its own, followed as it goes; its exit code."""
        command = [sys.executable, "-m", "penstock.demo", str(directory / "shapes.pen"), str(run)]
        command += ["--steps", str(STEPS), "--framework", framework, *more]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            self._bar(f"{title:14}", STEPS) as advance,
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            done = 0
            for line in process.stdout:
                step = json.loads(line)
                advance(step["step"] + 1 - done, f"loss {step['loss']:.2f}")
                done = step["step"] + 1
            problem = process.stderr.read()
        if process.returncode not in (0, -9):
            raise RuntimeError(f"the training run failed:\n{problem}")
        return process.returncode

    def _pictures(self, data: Source, ids: list[int]) -> None:
        """Pictures side by side, two pixels a character; only where colours are shown."""
        if not can_draw(self.out):
            return
        images = data[ids]["image"]
        self.out.print(drawing(np.concatenate([small_pixels(image, 16) for image in images], axis=1)))


def _step_of(run: Path) -> int:
    saved = checkpoint(run)
    return 0 if saved is None else int(saved[1]["step"])


def _log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / LOG).read_text().splitlines()]


def _weights(run: Path) -> list[bytes]:
    saved = checkpoint(run)
    return [] if saved is None else [weight.tobytes() for weight in saved[0]]
