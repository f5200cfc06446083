"""What the page shows of loaders is what they deliver: documents of packs, shares of streams, and the losses of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.view.hostile import CORPUS, hostile_tokenizer
from tests.view.serving import Visitor, routes_of, serving
from typer.testing import CliRunner

import penstock as pen
from penstock.batch import Ragged
from penstock.cli.main import app
from penstock.trace import Run
from penstock.view.pipeline import ShownLoader
from penstock.view.server import Routes

TEXTS = [f"text number {number}, " + "word " * (number % 9) for number in range(60)]
BAD = 7  # a record of the first stream


def texts() -> pen.Source:
    return pen.open({"text": TEXTS})


def mixture(**options: Any) -> Any:
    web, code = pen.open({"text": TEXTS}), pen.open({"text": [f"code {number}" for number in range(40)]})
    weights = [(0, {"web": 0.5, "code": 0.5}), (8, {"web": 0.9, "code": 0.1})]
    streams = {"web": web.shuffle(seed=1), "code": code.shuffle(seed=2)}
    return pen.mix(streams, weights=weights, seed=5, stop="forever", **options)


def make_loader() -> pen.Loader:
    return pen.Loader(mixture(), batch_size=10)


def log_run(path: Path, steps: int = 30) -> None:
    """A run with one bad record, and losses that fall."""
    loader = make_loader()
    batches = loader.forever()
    with pen.LossLog(path, loader) as log:
        for step in range(steps):
            text = next(batches)["text"].to_list()
            log(np.array([9.0 if one == TEXTS[BAD] else 2.0 + 0.01 * len(one) % 0.1 - step / 100 for one in text]))
    batches.close()


@contextmanager
def visiting(loader: pen.Loader, run: Run | None = None, tokenizer: Any = None) -> Iterator[Visitor]:
    with serving(Routes(None, None, tokenizer, ShownLoader(loader, run), "train:make_loader")) as visitor:
        yield visitor


@pytest.mark.parametrize("samples", ["packs", "sequences"])
def test_the_documents_of_a_sequence_are_those_of_the_loader(samples: str) -> None:
    source = texts()
    with serving(routes_of(source)) as visitor:
        found = visitor.json(f"api/batch?seed=7&batch=4&step=2&samples={samples}&length=64")
    stream = source.shuffle(seed=7)
    loader = pen.Loader(stream.pack(64) if samples == "packs" else stream.sequences(64), 4)
    batch, told = loader.batch(2), loader.explain(2, documents=True)
    assert (found["samples"], found["steps"], found["text"]) == (4, len(loader), repr(stream.order))
    for row, documents, tokens in zip(found["rows"], told["documents"], batch["tokens"], strict=True):
        pieces = row["pieces"]
        assert [(one["id"], one["low"], one["high"]) for one in pieces] == [tuple(one) for one in documents.tolist()]
        assert all(one["of"] == len(TEXTS[one["id"]]) and one["is_record"] for one in pieces)
        whole = "".join(one["text"] for one in pieces)
        assert bytes(tokens.astype(np.uint8)).decode().rstrip("\0") == whole
        assert row["length"] == 64


def test_packs_say_where_a_document_comes() -> None:
    with serving(routes_of(texts())) as visitor:
        (place, *_) = visitor.json("api/where/33?seed=7&batch=4&samples=packs&length=64")["where"]
        rows = visitor.json(f"api/batch?seed=7&batch=4&samples=packs&length=64&step={place['step']}")["rows"]
    assert 33 in [piece["id"] for row in rows for piece in row["pieces"]]


def test_tokens_are_numbers_without_a_tokenizer_and_text_with_one() -> None:
    source = pen.open({"tokens": Ragged.from_items([[number, 999] for number in range(len(CORPUS))], dtype=np.uint16)})
    query = "api/batch?order=in-order&batch=50&samples=packs&length=4"
    with serving(routes_of(source)) as visitor:
        plain = visitor.json(query)["rows"][0]["pieces"][0]
    with serving(routes_of(source, tokenizer=hostile_tokenizer())) as visitor:
        reply = visitor.get(query)
    pieces = [piece for row in reply.json["rows"] for piece in row["pieces"]]
    assert plain["values"] == [plain["id"], 999]
    assert sorted(piece["text"] for piece in pieces) == sorted(f"{text}<999>" for text in CORPUS)
    assert b"<" not in reply.body


def test_sequences_without_documents_are_runs_of_tokens(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with serving(routes_of(pen.open(tmp_path / "a.bin", dtype="uint16"))) as visitor:
        found = visitor.json("api/batch?seed=7&batch=4&step=2&samples=sequences&length=96")
    loader = pen.Loader(pen.open(tmp_path / "a.bin", dtype="uint16").shuffle(seed=7).sequences(96), 4)
    told, tokens = loader.explain(2)["tokens"], loader.batch(2)["tokens"]
    for row, runs, expected in zip(found["rows"], told, tokens, strict=True):
        assert [(one["id"], one["id"] + one["high"]) for one in row["pieces"]] == [tuple(run) for run in runs.tolist()]
        assert [one["values"][0] for one in row["pieces"]] == [int(low) for low, _ in runs]
        assert row["pieces"][0]["values"] == expected[:16].tolist()
        assert not any(one["is_record"] for one in row["pieces"])


def test_a_mixture_is_shown_stream_by_stream() -> None:
    loader = make_loader()
    with visiting(loader) as visitor:
        about = visitor.json("api/about")
        assert [part["name"] for part in about["loader"]["parts"]] == ["web", "code"]
        assert (about["loader"]["is_mixture"], about["loader"]["has_losses"]) == (True, False)
        assert visitor.json("api/about?part=1")["data"]["records"] == 40
        assert visitor.json("api/record/3?part=1")["cells"][0]["text"] == "code 3"
        assert visitor.json("api/search?part=1&field=0&text=code")["total"] == 40
        found = visitor.json("api/batch?step=9")
        expected = loader.batch(9)["text"].to_list()
        assert [row["cells"][0]["text"] for row in found["rows"]] == expected
        assert found["steps"] is None
        place = visitor.json("api/where/3?part=1")["where"][0]
        assert any((row["part"], row["id"]) == (1, 3) for row in visitor.json(f"api/batch?step={place['step']}")["rows"])
        assert visitor.get("api/about?part=2").status == 400
        assert visitor.get("api/losses").status == visitor.get("api/blame?step=1").status == 404


def test_shares_over_steps_are_those_of_the_batches() -> None:
    loader = make_loader()
    with visiting(loader) as visitor:
        found = visitor.json("api/shares?steps=16")
        assert visitor.json("api/shares")["steps"] == 10_000
        assert visitor.get("api/shares?steps=0").status == 400
    assert found["edges"] == list(range(17))
    for step, shares in enumerate(found["shares"]):
        names = loader.explain(step)["source"].tolist()
        assert shares == [names.count("web") / 10, names.count("code") / 10]
    assert [stream["name"] for stream in found["streams"]] == ["web", "code"]
    assert sum(stream["samples"] for stream in found["streams"]) == 160


def test_a_plain_page_has_no_shares(visitor: Visitor) -> None:
    assert visitor.get("api/shares").status == visitor.get("api/losses").status == 404


def test_spikes_lead_to_the_record(tmp_path: Path) -> None:
    log_run(tmp_path / "run")
    loader = make_loader()
    with visiting(loader, Run.open(tmp_path / "run", make_loader())) as visitor:
        found = visitor.json("api/losses")
        assert (found["steps"], found["first"], found["last"], found["losses"]) == (30, 0, 29, 300)
        bad = [step for step in range(30) if TEXTS[BAD] in loader.batch(step)["text"].to_list()]
        assert sorted(spike["step"] for spike in found["spikes"]) == bad[1:]  # the level of the first step is its own loss
        assert [piece[0] for piece in found["pieces"]] == list(range(30))
        blamed = visitor.json(f"api/blame?step={bad[1]}")["records"][0]
        assert (blamed["part"], blamed["id"], blamed["loss"]) == (0, BAD, 9.0)
        batch = visitor.json(f"api/batch?step={bad[1]}")
        assert batch["has_losses"]
        assert [row["id"] for row in batch["rows"] if row["loss"] == 9.0] == [BAD]
        some = visitor.json("api/losses?from=5&to=10")
        assert [piece[0] for piece in some["pieces"]] == [5, 6, 7, 8, 9]
        assert all(5 <= spike["step"] < 10 for spike in some["spikes"])
        assert visitor.json("api/losses?from=100")["pieces"] == []
        assert not visitor.json("api/batch?step=77")["has_losses"]
        assert visitor.get("api/blame?step=77").status == 400


def test_a_run_that_goes_on_is_seen(tmp_path: Path) -> None:
    log_run(tmp_path / "run", 10)
    with visiting(make_loader(), Run.open(tmp_path / "run", make_loader())) as visitor:
        assert visitor.json("api/losses")["last"] == 9
        log_run(tmp_path / "run", 20)
        assert visitor.json("api/losses")["last"] == 19


def test_losses_that_are_not_finite_can_be_sent(tmp_path: Path) -> None:
    loader = pen.Loader(pen.open({"x": np.arange(40)}).shuffle(seed=7), batch_size=4)
    with pen.LossLog(tmp_path, loader) as log:
        for step, batch in enumerate(loader):
            log(np.where(batch["x"] == 3, np.nan, 1.0) if step != 5 else np.full(4, np.inf))
    with visiting(loader, Run.open(tmp_path, pen.Loader(loader.stream, batch_size=4))) as visitor:
        found = visitor.json("api/losses")
        assert {spike["z"] for spike in found["spikes"]} == {"inf"}
        assert found["pieces"][5][1:4] == [None, None, None]
        assert visitor.json("api/batch?step=5")["rows"][0]["loss"] == "inf"
        assert visitor.json("api/blame?step=5")["records"][0]["loss"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.npy", "--run", "run"], "either DATA or --run"),
        (["x.npy", "--of", "y.npy"], "go with --run"),
        (["x.npy", "--seed", "7"], "go with --run"),
        (["--run", "nothing-here"], "expected the directory of a run"),
    ],
)
def test_bad_arguments_of_a_run_end_with_one_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["view", *arguments, "--no-browser"])
    assert result.exit_code in (2, 3)
    assert words in " ".join(result.stderr.split()).replace("│ ", "")
    assert "Traceback" not in result.stderr
