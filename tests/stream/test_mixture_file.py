"""Mixtures as files: read, checked, written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import FormatError
from penstock.stream import MixtureFile

TEXT = """
seed: 5
stop: forever
by: tokens
sequences: {length: 4, field: ids}
sources:
  web: {path: web.npz, weight: 0.7, shuffle: 1}
  wiki: {path: [wiki.npz], weight: 0.3, shuffle: {seed: 2}, max_epochs: 4}
amendments:
  - step: 10
    weights: {web: 0.5, wiki: 0.2, code: 0.3}
    add:
      code: {path: code.npz, max_epochs: 2.5}
"""


def written(directory: Path, text: str = TEXT) -> Path:
    path = directory / "mix.yaml"
    path.write_text(text.replace(".npz", ".pen"))
    for name in ("web", "wiki", "code"):
        if not (directory / f"{name}.pen").exists():
            with pen.create(directory / f"{name}.pen", {"ids": pen.Field.ragged("i4")}) as out:
                out.extend({"ids": [np.arange(k % 7 + 1, dtype=np.int32) for k in range(60)]})
    return path


def test_a_file_is_the_mixture_it_describes(tmp_path: Path) -> None:
    path = written(tmp_path)

    def sequences(name: str, seed: int | None) -> pen.Stream:
        source = pen.open(tmp_path / f"{name}.pen") if name != "wiki" else pen.open([tmp_path / "wiki.pen"])
        return (source.in_order() if seed is None else source.shuffle(seed=seed)).sequences(4, field="ids")

    streams = {"web": sequences("web", 1), "wiki": sequences("wiki", 2)}
    mixed = pen.mix(streams, weights={"web": 0.7, "wiki": 0.3}, seed=5, stop="forever", by="tokens", max_epochs={"wiki": 4})
    mixed = mixed.amend(
        10, weights={"web": 0.5, "wiki": 0.2, "code": 0.3}, add={"code": sequences("code", None)}, max_epochs={"code": 2.5}
    )
    loaded = pen.load_mixture(path)
    assert loaded.plan() == mixed.plan()
    assert loaded.data_fingerprint == mixed.data_fingerprint


@pytest.mark.parametrize("name", ["again.yaml", "again.json"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    file = MixtureFile.read(written(tmp_path)).amend(20, weights={"web": 1, "wiki": 0, "code": 1})
    again = MixtureFile.read(file.write(tmp_path / name))
    assert again == file
    assert again.stream().plan() == file.stream().plan()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed: 5", "sead: 5", "unknown keys .'sead'.; there are"),
        ("seed: 5\n", "", "expected .'seed'., which are missing"),
        ("weight: 0.7", "wieght: 0.7", "sources.web: unknown keys .'wieght'."),
        ("weight: 0.7, ", "", ".'web'. have none"),
        ("path: web.npz, ", "", "sources.web: expected .'path'."),
        ("path: web.npz", "path: 7", "path must be a text"),
        ("length: 4, ", "", "sequences needs a length"),
        ("sequences:", "pack: {length: 3}\nsequences:", "exclude each other"),
        ("- step: 10", "- stop: 10", "amendments.0.: unknown keys"),
        ("amendments:", "amendments: {}\nmore:", "unknown keys"),
        ("code: {path", "7: {path", "expected texts as keys, got 7"),
        ("seed: 5", "seed: 5\nseed: 6", "the key 'seed' comes twice"),
        ("weight: 0.7", "weight: 0.7, weight: 0.1", "the key 'weight' comes twice"),
        ("weight: 0.7", "weight: '0.7'", "mix.yaml: the weight of 'web' must be a number, got '0.7'"),
        ("seed: 5", "seed: 010", "mix.yaml: seed must be a whole number, got '010'"),
        ("seed: 5", "seed: 1:30", "mix.yaml: seed must be a whole number, got '1:30'"),
        ("shuffle: 1", "shuffle: {sead: 1}", "sources.web: .*unexpected keyword argument 'sead'"),
        ("- step: 10", "- step: 0", "amendments.0.: step must be in"),
        ("max_epochs: 2.5", "weight: 0.3", "amendments.0..add: .'code'. have a weight"),
        ("weights: {web: 0.5, wiki: 0.2, code: 0.3}", "max_epochs: [1]", "amendments.0..max_epochs: expected keys and values"),
        ("path: web.npz", "path: ''", "path must be a text"),
        ("path: web.npz", "open: [1], path: web.npz", "sources.web: open: expected keys and values"),
        ("sources:", "sources: [", "cannot be read"),
        ("stop: forever", "stop: never", "stop must be one of"),
        ("by: tokens", "by: words", "expected a field of one size"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises((ValueError, TypeError, FormatError), match=words):
        pen.load_mixture(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pen.load_mixture(tmp_path / "mix.yaml")


def test_json_needs_no_library(tmp_path: Path, monkeypatch: Any) -> None:
    written(tmp_path)
    content = {"seed": 1, "sources": {"web": {"path": "web.pen"}}}
    (tmp_path / "mix.json").write_text(json.dumps(content))
    monkeypatch.setattr("penstock.stream.mixture_file._yaml", lambda: pytest.fail("not needed"))
    assert len(pen.load_mixture(tmp_path / "mix.json")) == 60


def test_numbers_and_names_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    path = written(tmp_path, "seed: 5\nsources:\n  no: {path: web.npz, weight: 1e-3}\n  on: {path: code.npz, weight: 1}\n")
    file = MixtureFile.read(path)
    assert {name: one["weight"] for name, one in file.content["sources"].items()} == {"no": 0.001, "on": 1}
    again = MixtureFile({**file.content, "sources": {"010": {"path": "web.pen"}, "1e5": {"path": "code.pen"}}}, tmp_path)
    assert MixtureFile.read(again.write(tmp_path / "again.yaml")) == again


def test_a_key_twice_in_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mix.json").write_text('{"seed": 1, "seed": 2, "sources": {}}')
    with pytest.raises(FormatError, match="the key 'seed' comes twice"):
        pen.load_mixture(tmp_path / "mix.json")


def test_patterns_are_those_of_the_file_not_of_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "v[1]"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(5))
    (folder / "mix.json").write_text('{"seed": 1, "sources": {"a": {"path": "*.npy"}}}')
    assert len(pen.load_mixture(folder / "mix.json")) == 5
