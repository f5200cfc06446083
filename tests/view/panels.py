"""Data as people have it, for screenshots of every panel, and keys with what they do."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
from tests.view.conftest import encoded, routes_at
from tests.view.serving import Visitor, serving

import penstock as pen
from penstock.trace import Run
from penstock.view.pipeline import ShownLoader
from penstock.view.server import Routes

Shown = tuple[str, Visitor, Mapping[str, tuple[str, str]]]
"""A name, the page, and panels by name: where each is, and words in it."""

ANIMALS = ["cat", "dog", "heron", "newt", "otter", "wren"]
PICTURES = {
    "overview": ("overview", "fields"),
    "records": ("records", "go to id"),
    "table": ("records?layout=table", "go to id"),
    "search": ("records?find=otter&in=2", "found"),
    "nothing": ("records?find=zebra&in=2", "0 found"),
    "record": ("record/7", "when it comes"),
    "batch": ("batch?step=3&batch=24&seed=7", "steps an epoch"),
    "order": ("order?seed=7&block=16&window=4", "class mix"),
    "chunks": ("chunks", "most to gain"),
    "live": ("live", "samples a second"),
    "refused": ("batch?step=x", "whole number"),
}
KEYS = (
    ("the next record", "record/7", ["ArrowRight"], "location.hash.startsWith('#record/8')"),
    ("the record before", "record/7", ["ArrowLeft"], "location.hash.startsWith('#record/6')"),
    ("the next page of records", "records", ["ArrowRight"], "location.hash.includes('start=48')"),
    ("the next step", "batch?step=3", ["ArrowRight"], "location.hash.includes('step=4')"),
    ("the search", "records", ["/"], "document.activeElement.id === 'find'"),
    ("the search, from another page", "order", ["/"], "document.activeElement.id === 'find'"),
    ("out of the search", "records", ["/", "Escape"], "document.activeElement === document.body"),
    ("what is typed", "records", ["/", "2", "?"], "document.activeElement.value === '2?' && !document.querySelector('dialog')"),
    ("the third page", "overview", ["3"], "location.hash.startsWith('#batch')"),
    ("the help", "overview", ["?"], "document.querySelector('dialog').open"),
    ("the help closes", "overview", ["?", "Escape"], "document.querySelector('dialog') && !document.querySelector('dialog').open"),
    ("the second record", "records", ["j", "ArrowDown"], "document.activeElement.textContent === '1'"),
    ("the record that is marked", "records", ["j", "j", "Enter"], "location.hash.startsWith('#record/1')"),
)  # fmt: skip
"""What, the page, keys that are pressed there, and what is true then."""


def shown() -> list[AbstractContextManager[Shown]]:
    return [pictures(), documents()]


@contextmanager
def pictures() -> Iterator[Shown]:
    """A store of pictures with labels and captions, some of them deleted, and a loader that runs."""
    count = 400
    random = np.random.default_rng(3)
    labels = random.integers(0, len(ANIMALS), count)
    fields = {
        "image": pen.Field("u1", (32, 32, 3)),
        "label": pen.Field("i4"),
        "caption": pen.Field.text(codec=pen.Zstd(3)),
        "thumbnail": pen.Field.bytes(),
        "embedding": pen.Field("f4", (384,)),
        "score": pen.Field("f8"),
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "animals.pen")
        with pen.create(path, fields, chunk_records=32, metadata={"label": ANIMALS}) as out:
            out.extend(
                {
                    "image": np.stack([_picture(number, int(label)) for number, label in enumerate(labels)]),
                    "label": labels,
                    "caption": [_caption(number, ANIMALS[label]) for number, label in enumerate(labels)],
                    "thumbnail": [encoded("PNG", number % 120) for number in range(count)],
                    "embedding": random.normal(size=(count, 384)).astype(np.float32).cumsum(axis=1),
                    "score": random.random(count),
                }
            )
        with pen.open(path, mode="a") as out:
            out.delete(list(range(40, 100)))
        watched = Path(directory, "run.jsonl")
        watched.write_text("".join(json.dumps(_line(second)) + "\n" for second in range(1, 200)))
        with serving(routes_at(path, watched=watched)) as visitor:
            yield "pictures", visitor, PICTURES


DOCUMENTS = {
    "overview": ("overview", "fields"),
    "batch": ("batch?step=20", "largest part in the loss"),
    "mixture": ("mixture", "first epoch ends"),
    "losses": ("losses", "not finite"),
    "stretch": ("losses?from=10&to=12", "spikes"),
    "record": ("record/3?part=1", "when it comes"),
}


def _loader() -> pen.Loader:
    kinds = {
        "web": "A page about weirs and the otters that live near them. ",
        "code": "def pour(water): return water - spilled  # ",
    }
    random = np.random.default_rng(11)
    sizes = {name: random.integers(1, 16, 300) for name in kinds}
    streams = {
        name: pen.open({"text": [f"{name} {number}: {words * int(size)}" for number, size in enumerate(sizes[name])]})
        .shuffle(seed=3)
        .pack(1024)
        for name, words in kinds.items()
    }
    weights = [(0, {"web": 0.8, "code": 0.2}), (40, {"web": 0.3, "code": 0.7})]
    return pen.Loader(pen.mix(streams, weights=weights, seed=5, stop="forever"), batch_size=8)


@contextmanager
def documents() -> Iterator[Shown]:
    """A run over packed documents of two streams, with two bad steps."""
    with tempfile.TemporaryDirectory() as directory:
        loader, random = _loader(), np.random.default_rng(1)
        with pen.LossLog(directory, loader, per="document") as log:
            for step in range(120):
                told = loader.explain(step)
                counts = [len(one) for part in told["parts"].values() for one in part["documents"]]
                losses = 2 + 3 * np.exp(-step / 30) + random.normal(scale=0.15, size=sum(counts))
                if step in (20, 77):
                    losses[3] = 60
                log(losses, step=step)
        run = Run.open(directory, _loader())
        with serving(Routes(None, None, None, ShownLoader(run.given, run), "run-a")) as visitor:
            yield "documents", visitor, DOCUMENTS


def _picture(number: int, label: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Rings around a place, in a colour for each label."""
    y, x = np.mgrid[0:32, 0:32]
    rings = np.sin(np.hypot(x - number % 32, y - number % 29) / (1.5 + label / 3)) * 0.5 + 0.5
    colour = np.array([(label * 53) % 200 + 55, (label * 97) % 200 + 55, (label * 151) % 200 + 55])
    return (rings[:, :, None] * colour).astype(np.uint8)


def _caption(number: int, animal: str) -> str:
    place = ("in the reeds", "on a wall", "near the weir", "under the old bridge")[number % 4]
    rest = " It was a long day, and the light was going." * (number % 7 == 0)
    return f"A {animal} {place}, number {number}.{rest}"


def _line(second: int) -> dict[str, object]:
    speed = 5000 + 900 * np.sin(second / 9)
    figures = {"batches": 40 * second, "samples": int(speed * second), "bytes": int(3e6 * second), "wait_s": 0.06 * second}
    return {"time_s": 1.7e9 + second, **figures, "busy_s": 0.94 * second, "skipped": 3, "advice": "the loader is fast enough"}
