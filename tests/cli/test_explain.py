"""penstock explain."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import RECORDS, Run, Seen

import penstock as pen
from penstock.source import write_tokens

JOB = """
import numpy as np, penstock as pen

def mixture():
    web, code = pen.open({"x": np.arange(30)}), pen.open({"x": np.arange(100, 120)})
    mixed = pen.mix({"web": web.shuffle(seed=1), "co\\x1bde": code.shuffle(seed=2)}, weights={"web": 0.5, "co\\x1bde": 0.5}, seed=3)
    return pen.Loader(mixed, 8)

def sequences():
    tokens = pen.open(np.arange(400, dtype=np.uint16).reshape(4, 100), field="t")
    return pen.Loader(pen.open("tokens.rox").shuffle(seed=1).sequences(50), 4)

def number():
    return 7
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: Path) -> str:
    name = f"explain_job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_records_of_every_rank_are_listed(run: Run, store: Path) -> None:
    result = run("explain", store, 2, "--batch-size", 8, "--world", 2, "--seed", 7)
    ids = pen.open(store).shuffle(seed=7).order.indices(0, 16, 24).tolist()
    assert result.exit_code == 0, result.output
    for rank in (0, 1):
        assert ", ".join(map(str, ids[rank::2])) in result.stdout
    assert "16, 18 …" in result.stdout
    assert "17, 19 …" in result.stdout


def test_json_has_epoch_position_and_ids(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("explain", store, 7, "--batch-size", 8, "--in-order")
    assert found == {"step": 7, "epoch": 1, "position": 16, "ids": list(range(16, 24)), "world": 1}


def test_the_records_themselves_are_shown(run: Run, store: Path) -> None:
    result = run("explain", store, 0, "--batch-size", 8, "--in-order", "--most", 2, "--show")
    assert result.exit_code == 0, result.output
    assert "caption 0" in result.stdout
    assert "caption 1" in result.stdout
    assert "caption 2" not in result.stdout


def test_a_mixture_names_its_data_sets(run: Run, job: str) -> None:
    result = run("explain", f"{job}:mixture", 1, "--show", columns=200)
    assert result.exit_code == 0, result.output
    assert "web:" in result.stdout
    assert "co\\x1bde:" in result.stdout
    assert "\x1b" not in result.stdout
    found = run("explain", f"{job}:mixture", 1, "--json")
    assert found.exit_code == 0
    assert '"source"' in found.stdout


def test_sequences_are_named_by_their_tokens_and_cannot_be_shown(run: Run, job: str) -> None:
    result = run("explain", f"{job}:sequences", 0)
    assert result.exit_code == 0, result.output
    assert "tokens " in result.stdout
    assert run("explain", f"{job}:sequences", 0, "--show").exit_code == 2


def test_a_step_costs_the_same_wherever_it_is(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("explain", 10**9, store, "--batch-size", 8)
    assert found["epoch"] == 10**9 // (RECORDS // 8)
    assert len(np.unique(found["ids"])) == 8


def test_it_is_legible_in_40_columns_and_a_terminal_sees_colors(run: Run, in_terminal: Callable[..., Seen], store: Path) -> None:
    result = run("explain", store, 0, "--batch-size", 40, columns=40)
    assert max(map(len, result.stdout.splitlines())) <= 40
    assert "\x1b[" in in_terminal("explain", store, 0, "--batch-size", 8).output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nothing.pen", "0"], 3, "no such file"),
        (["DATA", "x"], 2, "STEP"),
        (["DATA", "--", "-1"], 2, "STEP"),
        (["DATA", "0", "--batch-size", "9", "--world", "2"], 2, "cannot be divided among 2 ranks"),
        (["DATA", "5", "--tail", "drop", "--batch-size", "99"], 2, "drops every epoch whole"),
        (["JOB:number", "0"], 2, "expected a function that returns a penstock loader, got int"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, job: str, words: list[str], code: int, told: str) -> None:
    result = run("explain", *[store if word == "DATA" else word.replace("JOB", job) for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_records_that_cannot_be_read_are_exit_code_3(run: Run, damaged: Path) -> None:
    assert run("explain", damaged, 0, "--batch-size", 8).exit_code == 0
    assert run("explain", damaged, 0, "--batch-size", 8, "--show", "--most", 40).exit_code == 3


# Documents and their text

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\u202e"
WORDS = ["zero", "cat", "sat", "mat", ESCAPES, "naïve", "<eos>"]
SPOKEN = [[1, 2, 3], [5], [4, 4, 2], [3, 3, 3, 3, 3, 3, 3, 3, 3], [], [1, 1000, 2]]

DOCUMENT_JOB = """
import penstock as pen

def packs():
    return pen.Loader(pen.open("a.rox").shuffle(seed=1).pack(12, separator=6), 8, shard=pen.Shard(0, 2))

def sequences():
    return pen.Loader(pen.open("a.rox").shuffle(seed=1).sequences(5, separator=6), 8)

def blocks():
    return pen.Loader(pen.open("a.rox").shuffle(seed=1).sequences(5), 3)

def mixture():
    tokens = pen.open("a.rox")
    one, two = tokens.shuffle(seed=1).pack(12, separator=6), tokens.in_order().pack(12, separator=6)
    return pen.Loader(pen.mix({"in:side": pen.mix({"x": one, "y": two}, seed=1), "z": two}, seed=2), 16)

def endless():
    tokens = pen.open("a.rox")
    streams = {"a": tokens.shuffle(seed=1).pack(12, separator=6), "b": tokens.in_order().pack(12, separator=6)}
    return pen.Loader(pen.mix(streams, seed=2, stop="forever"), 4)

def texts():
    return pen.Loader(pen.open("texts.pen").in_order().pack(40, field="text"), 200)
"""


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from tokenizers import Tokenizer, models

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="zero"))
    made.save(str(tmp_path / "tokenizer.json"))
    write_tokens(SPOKEN, tmp_path / "a.rox", dtype="u2", separator=6, block_size=4)
    with pen.create(
        tmp_path / "texts.pen", {"text": pen.Field.text(), "url": pen.Field.text(), "ids": pen.Field.ragged("u2")}
    ) as out:
        out.extend({"text": ["ein Text", ESCAPES, "x" * 5000], "url": ["http://a", ESCAPES, "u" * 5000], "ids": SPOKEN[:3]})
    name = f"document_job_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(DOCUMENT_JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def spoken(document: int, low: int, high: int) -> str:
    """What a span should read."""
    tokens = [*SPOKEN[document], 6][low:high]
    words = [f"<{token}>" if token >= len(WORDS) else WORDS[token] for token in tokens]
    return "".join(words).replace(" ", "")


@pytest.mark.parametrize("job", ["packs", "sequences"])
def test_texts_of_documents_are_those_of_their_spans(run_json: Callable[..., Any], documents: str, job: str) -> None:
    plain = run_json("explain", f"{documents}:{job}", 0)
    assert ("documents" in plain) == (job == "packs"), "separators of sequences are searched only for --text"
    found = run_json("explain", f"{documents}:{job}", 0, "--text", "--tokenizer", "tokenizer.json")
    ranks = [one["rank"] for one in found["texts"]]
    assert ranks == sorted(ranks)
    by_rank = [spans for rank in range(found["world"]) for spans in found["documents"][rank :: found["world"]]]
    assert [[[one["document"], one["from"], one["to"]] for one in sample["pieces"]] for sample in found["texts"]] == by_rank
    pieces = [one for sample in found["texts"] for one in sample["pieces"]]
    assert len(pieces) > 3
    for one in pieces:
        assert one["text"].replace(" ", "") == spoken(one["document"], one["from"], one["to"]).replace(" ", "")


def test_documents_are_listed_by_number_and_span(run: Run, run_json: Callable[..., Any], documents: str) -> None:
    listed = run("explain", f"{documents}:packs", 0, columns=400).stdout
    told = [span for sample in run_json("explain", f"{documents}:packs", 0)["documents"] for span in sample]
    assert told
    assert all(f"document {document}[{low}:{high}]" in listed for document, low, high in told)


def test_a_terminal_sees_documents_with_spans_and_escaped_text(run: Run, documents: str) -> None:
    for job in ("packs", "sequences", "mixture"):
        result = run("explain", f"{documents}:{job}", 0, "--text", "--tokenizer", "tokenizer.json", "--most", 99, columns=200)
        assert result.exit_code == 0, result.output
        assert "cat sat mat" in result.stdout
        assert "<1000>" in result.stdout
        assert "\\x1b[2J\\x1b]0;owned\\x07\\r\\u202e" in result.stdout
        assert not set(ESCAPES) & set(result.stdout) - set("[2J]0;owned")


def test_texts_and_tokens_of_records_are_shown(run: Run, documents: str) -> None:
    plain = run("explain", "texts.pen", 0, "--in-order", "--text", columns=300)
    assert plain.exit_code == 0, plain.output
    assert "ein Text" in plain.stdout
    assert "cat sat mat" not in plain.stdout
    assert "x" * 200 in plain.stdout.replace("\n", "").replace(" ", "")
    assert "x" * 1000 not in plain.stdout.replace("\n", "").replace(" ", ""), "long texts are cut"
    decoded = run("explain", "texts.pen", 0, "--in-order", "--text", "--tokenizer", "tokenizer.json", columns=300)
    assert "cat sat mat" in decoded.stdout
    blocks = run("explain", "a.rox", 0, "--in-order", "--text", "--tokenizer", ".", columns=300)
    assert "cat sat mat <eos>" in blocks.stdout


def test_another_tokenizer_than_that_of_the_store_is_noted(run: Run, documents: str) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"ein": 0, "Text": 1, "?": 2}, unk_token="?")).save("other.json")
    pen.convert("texts.pen", "made.pen", fields=["text"], tokenizer="other.json")
    same = run("explain", "made.pen", 0, "--text", "--tokenizer", "other.json")
    assert (same.exit_code, same.stderr) == (0, "")
    other = run("explain", "made.pen", 0, "--text", "--tokenizer", "tokenizer.json")
    assert other.exit_code == 0
    assert "another tokenizer" in other.stderr


def test_sequences_without_documents_are_shown_as_runs_of_tokens(run_json: Callable[..., Any], documents: str) -> None:
    found = run_json("explain", f"{documents}:blocks", 0, "--text", "--tokenizer", "tokenizer.json")
    line = [token for one in SPOKEN for token in (*one, 6)]
    for runs, sample in zip(found["tokens"], found["texts"], strict=True):
        assert [[one["from"], one["to"]] for one in sample["pieces"]] == runs
        for one in sample["pieces"]:
            words = [f"<{token}>" if token >= len(WORDS) else WORDS[token] for token in line[one["from"] : one["to"]]]
            assert one["text"].replace(" ", "") == "".join(words)


def test_documents_are_named_by_a_field_and_outputs_are_bounded(run: Run, run_json: Callable[..., Any], documents: str) -> None:
    found = run_json("explain", f"{documents}:texts", 0, "--text", "--name-field", "url", "--most", 200)
    named = {one["document"]: one["name"] for sample in found["texts"] for one in sample["pieces"]}
    assert (named[0], named[1]) == ("http://a", ESCAPES)
    seen = run("explain", f"{documents}:texts", 0, "--text", "--name-field", "url", "--most", 200, columns=120)
    assert "http://a" in seen.stdout
    assert not set(ESCAPES) & set(seen.stdout) - set("[2J]0;owned")
    record = run("explain", "texts.pen", 0, "--in-order", "--text", "--name-field", "url", columns=120)
    assert "http://a" in record.stdout
    assert len(record.stdout) < 20_000


def test_where_takes_documents_of_mixtures_within_mixtures(run_json: Callable[..., Any], documents: str) -> None:
    found = run_json("where", f"{documents}:mixture", "in:side:x:3", "--epochs", 1)
    told = [run_json("explain", f"{documents}:mixture", one["step"]) for one in found]
    assert found
    for one in told:
        spans = [span for sample in one["parts"]["in:side"]["parts"]["x"]["documents"] for span in sample]
        assert 3 in [document for document, _, _ in spans]


def test_where_looks_at_steps_of_a_mixture_that_never_ends(run: Run, run_json: Callable[..., Any], documents: str) -> None:
    refused = run("where", f"{documents}:endless", "a:3")
    assert refused.exit_code == 2
    assert "never ends" in refused.stderr
    found = run_json("where", f"{documents}:endless", "a:3", "--steps", 30)
    assert len(found) > 3
    for one in found:
        told = run_json("explain", f"{documents}:endless", one["step"])
        assert 3 in [document for sample in told["parts"]["a"]["documents"] for document, _, _ in sample]
    first = run_json("explain", f"{documents}:endless", 0)["parts"]["a"]["documents"]
    absent = next(iter(set(range(len(SPOKEN))) - {document for sample in first for document, _, _ in sample}))
    assert f"record a:{absent} is in no batch of 1 step" in run("where", f"{documents}:endless", f"a:{absent}", "--steps", 1).stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["JOB:packs", "0", "--text"], 2, "--tokenizer FILE"),
        (["JOB:blocks", "0", "--text"], 2, "--tokenizer FILE"),
        (["JOB:packs", "0", "--tokenizer", "tokenizer.json"], 2, "expected --text too"),
        (["JOB:packs", "0", "--name-field", "url"], 2, "expected --text too"),
        (["JOB:packs", "0", "--text", "--tokenizer", "nothing.json"], 3, "nothing.json"),
        (["JOB:packs", "0", "--text", "--tokenizer", "texts.pen"], 3, "tokenizer"),
        (["JOB:packs", "0", "--text", "--tokenizer", "tokenizer.json", "--name-field", "url"], 2, "documents are no records here"),
        (["JOB:texts", "0", "--text", "--name-field", "path"], 2, "no field 'path'"),
        (["texts.pen", "0", "--text", "--name-field", "path"], 2, "unknown fields ['path']"),
        (["a.rox", "0", "--text"], 2, "--tokenizer FILE"),
        (["x.npy", "0", "--text", "--tokenizer", "tokenizer.json"], 2, "no field of texts or tokens"),
    ],
)
def test_mistakes_with_texts_are_one_line(run: Run, documents: str, words: list[str], code: int, told: str) -> None:
    np.save("x.npy", np.zeros((5, 2, 2), np.float32))
    result = run("explain", *[word.replace("JOB", documents) for word in words])
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
