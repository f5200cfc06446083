"""What a log says of its loader makes the same loader again, or says that it does not; and nothing in it opens or runs anything."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.trace.test_odd_runs import STREAMS, documents, mixed, pack, records, shuffled

import penstock as pen
from penstock.errors import CorruptError, UnsafePathError
from penstock.formats.tokens_writer import write_tokens
from penstock.trace import LossTable, Run, certify, certify_run
from penstock.trace.recipe import by_stream, make_loader, recipe_of


def images() -> pen.Stream:
    def encoded(shape: tuple[int, ...]) -> bytes:
        file = io.BytesIO()
        Image.fromarray(np.zeros(shape, np.uint8)).save(file, "PNG")
        return file.getvalue()

    photos, masks = [encoded((9, 12, 3))] * 40, [encoded((9, 12))] * 40
    data = pen.open({"image": photos, "second": photos, "mask": masks, "x": np.arange(40)})
    ordered = data.shuffle(seed=7).without([3, 4], from_step=2)
    made = ordered.images("image", (8, 6), crop="center", flip=0, dtype="f4", mean=[0.1, 0.2, 0.3], std=0.5, seed=11)
    return made.images("second", 16, crop="center", channels=1).masks("mask", of="image", fill=255)


def tokens(tmp_path: Path) -> pen.Source:
    texts = [np.full(5 + n % 13, 1 + n, np.uint16) for n in range(90)]
    write_tokens(texts, tmp_path / "a.rox", separator=65535)
    return pen.open(tmp_path / "a.rox")


OTHERS: dict[str, Callable[[Path], pen.Stream]] = {
    "images and masks": lambda _: images(),
    "mixture of images": lambda _: pen.mix({"a": images(), "b": images()}, seed=2, temperature=2.0),
    "strata": lambda _: records().design(size=40, seed=3, strata=[30, 50, 30]),
    "masses": lambda _: records().design(size=40, seed=3, masses=np.arange(1, 111)),
    "tokens": lambda path: tokens(path).shuffle(seed=5).sequences(16),
    "tokens with separators": lambda path: (
        tokens(path).shuffle(seed=5).sequences(16, separator=65535, documents=True, page=32).without([3, 7], from_step=2)
    ),
    "packed tokens": lambda path: tokens(path).shuffle(seed=5).pack(32, separator=65535, split="never", eos=9),
    "pages in blocks": lambda path: tokens(path).shuffle(seed=5, block=1, window=2).sequences(16, page=16),
    "packs of many options": lambda _: (
        documents()
        .shuffle(seed=7)
        .pack(32, field="tokens", split="always", bos=3, multiple_of=2, first_segment=1, window=50, fields=["tokens", "labels"])
    ),
    "mixture by tokens": lambda _: mixed(pack, by="tokens", weights={"a": 0.3, "b": 0.7}),
}


def data_of(stream: pen.Stream) -> Any:
    """The sources of a stream, by name if it is a mixture."""
    if not isinstance(stream, pen.stream.MixedStream):
        return stream.parts[0].source
    return by_stream({name: part.source for name, part in zip(stream.leaf_names, stream.parts, strict=True)})


def named(data: Any) -> Any:
    return {name: named(one) for name, one in data.items()} if isinstance(data, dict) else "somewhere"


def assert_made_again(path: Path, loader: pen.Loader, steps: int) -> None:
    data = data_of(loader.stream)
    with pen.LossLog(path, loader, per="document", data=named(data)) as log:
        for _, _ in zip(loader.forever(), range(steps), strict=False):
            log([1.0])
    loader.close()
    run = Run.open(path, data=data)
    assert run.given.state_at(0) == loader.state_at(0)
    assert certify_run(run).chain == certify(loader, range(steps)).chain


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "weighted"])
def test_stream_is_made_again_as_the_log_says(tmp_path, name):
    assert_made_again(tmp_path, pen.Loader(STREAMS[name](), 12, threads=0), 6)


@pytest.mark.parametrize("name", OTHERS)
def test_stream_of_another_kind_is_made_again_as_the_log_says(tmp_path, name):
    assert_made_again(tmp_path / "run", pen.Loader(OTHERS[name](tmp_path), 4, threads=0, tail="wrap"), 6)


def test_loader_with_phases_is_made_again(tmp_path):
    phases = [pen.Phase(batch_size=2, steps=3, seq_len=16), pen.Phase(batch_size=4, epochs=0.5, seq_len=32)]
    assert_made_again(tmp_path / "a", pen.Loader(pack(), phases=phases, threads=0), 5)
    weighted = [pen.Phase(batch_size=4, steps=3), pen.Phase(batch_size=2, steps=3, weights={"a": 1, "b": 9})]
    assert_made_again(tmp_path / "b", pen.Loader(mixed(shuffled), phases=weighted, threads=0), 6)


def test_stream_that_no_call_makes_again_asks_for_the_loader(tmp_path):
    from fractions import Fraction

    streams = (
        STREAMS["weighted"](),
        mixed(shuffled, weights={"a": Fraction(1, 3), "b": 1}),
        shuffled().without(range(109)),
        mixed(shuffled, weights={"a": np.float32(0.5), "b": 1}),
        pen.open({"x": np.arange(400_000)}).in_order().without(range(200_000)),
    )
    for number, stream in enumerate(streams):
        loader = pen.Loader(stream, 12, threads=0)
        path = tmp_path / str(number)
        with pen.LossLog(path, loader, data=named(data_of(stream))) as log:
            next(batches := loader.forever())
            log(np.zeros(12))
            batches.close()
        if number == 2:  # many records, but not too many
            assert Run.open(path, data=data_of(stream)).given.state_at(0) == loader.state_at(0)
            continue
        with pytest.raises(ValueError, match="the log does not say how its stream is made: pass the loader"):
            Run.open(path, data=data_of(stream), trust=True)


def test_data_is_opened_only_if_it_is_given_or_trusted(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(50))
    loader = pen.Loader(pen.open(tmp_path / "x.npy").shuffle(seed=1), 5, ids="id", threads=0)
    with pen.LossLog(tmp_path / "run", loader, data=tmp_path / "x.npy") as log:
        for batch in loader:
            log(batch["id"])
    with pytest.raises(UnsafePathError, match=r"names its data, '.*x\.npy', and a log may come from anyone"):
        Run.open(tmp_path / "run")
    for run in (Run.open(tmp_path / "run", trust=True), Run.open(tmp_path / "run", data=tmp_path / "x.npy")):
        assert run.batch(3)["id"].tolist() == loader.batch(3)["id"].tolist()


def told(**changes: Any) -> dict[str, Any]:
    """What a log says of a loader, with changes; as JSON gives it back."""
    return json.loads(json.dumps(recipe_of(pen.Loader(shuffled(), 12), "somewhere") | changes))


HOSTILE: dict[str, Any] = {
    "another method": [["shuffle", {"seed": 1}], ["close", {}]],
    "a private method": [["shuffle", {"seed": 1}], ["__reduce__", {}]],
    "a file of bans": [["shuffle", {"seed": 1}], ["without", {"ids": "/etc/passwd"}]],
    "bans by name": [["shuffle", {"seed": 1}], ["without", {"ids": {"a": [1]}}]],
    "an option that is none": [["shuffle", {"seed": 1, "executor": 1}]],
    "no stream": [],
    "no calls": 7,
    "a text": "shuffle",
    "no pair": [["shuffle"]],
    "samples of 2^50": [["shuffle", {"seed": 1}], ["sequences", {"seq_len": 2**50, "field": "text"}]],
    "a mixture without parts": {"mix": {}, "streams": {}},
    "a mixture of nothing": {"mix": {"seed": 1}},
    "an option of no mixture": {"mix": {"seed": 1, "phases": []}, "streams": {"a": [["shuffle", {"seed": 1}]]}},
    "seeds beyond all bounds": [["shuffle", {"seed": 10**400}]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_recipes_are_refused(tmp_path, monkeypatch, name):
    data = {"a": records()} if isinstance(HOSTILE[name], dict) else records()
    with pytest.raises((CorruptError, ValueError)) as caught:
        make_loader(told(calls=HOSTILE[name]), 12, "keep", tmp_path, data)
    assert "passwd" not in str(caught.value) or "expected a list of ids" in str(caught.value)


@pytest.mark.parametrize("changes", [{"phases": [{"steps": 2**70}]}, {"phases": 5}, {"phases": [{"seq_len": 2**60, "steps": 1}]}])
def test_hostile_phases_are_refused(tmp_path, changes):
    with pytest.raises(CorruptError):
        make_loader(told(**changes), 12, "keep", tmp_path, records())


def test_names_of_a_mixture_are_asked_for(tmp_path):
    calls = told(calls=recipe_of(pen.Loader(mixed(shuffled), 12), {"a": "x", "b": "y"})["calls"])
    for wrong in (records(), {"a": records()}, {"a": records(), "c": records()}):
        with pytest.raises(ValueError, match="expected data by name, of the streams 'a', 'b', got"):
            make_loader(calls, 12, "keep", tmp_path, wrong)


def test_head_without_a_recipe_is_that_of_any_run(tmp_path):
    loader = pen.Loader(shuffled(), 12, threads=0)
    with pen.LossLog(tmp_path, loader) as log:
        for batch in loader:
            log(batch["x"])
    assert LossTable.open(tmp_path).made_by[0] is None
    with pytest.raises(ValueError, match="does not say how"):
        Run.open(tmp_path, data=records(), trust=True)
