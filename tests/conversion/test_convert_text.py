"""Texts into tokens: every target, what the tokenizer is asked for, what is refused, and what a kill leaves."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli import warm
from tests.text import documents, trained
from tokenizers import Tokenizer, processors

import penstock as pen
from penstock.conversion.record_map import TextMap
from penstock.errors import EmptySourceError, SchemaMismatchError, StoreError
from penstock.source import BatchMap, Converted, Tokenize

TEXTS = documents(300)
SMALL = {"chunk_bytes": 4096}
"""Several tasks."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained()


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text).ids for text in TEXTS]


def wide(tokenizer: Tokenizer) -> Tokenizer:
    """The same with an id that 2 bytes do not hold."""
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"]["far"] = 70_000
    return Tokenizer.from_str(json.dumps(content))


def read(path: Path, **options: Any) -> list[list[int]]:
    with pen.open(path, **options) as data:
        return [tokens.tolist() for tokens in data["tokens"][:]]


def line(path: Path, **options: Any) -> list[int]:
    return [token for block in read(path, **options) for token in block]


# Targets


@pytest.mark.parametrize(("name", "options"), [("a.pen", {}), ("a.idx", {}), ("a.ds", {}), ("a.npy", {"documents": True})])
def test_documents_are_kept_with_the_tokens_of_the_package(
    tmp_path: Path, tokenizer: Tokenizer, expected: list[list[int]], name: str, options: dict[str, Any]
) -> None:
    made = pen.convert({"text": TEXTS}, tmp_path / name, tokenizer=tokenizer, **SMALL)
    assert read(tmp_path / name, **options) == expected
    tokens = sum(map(len, expected))
    assert made == Converted(len(TEXTS), tokens, 2 * tokens)
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name or path.name.startswith(".")]


@pytest.mark.parametrize(("name", "options"), [("a.rox", {}), ("a.bin", {"dtype": "uint16"})])
def test_files_without_documents_have_all_tokens_in_a_line(
    tmp_path: Path, tokenizer: Tokenizer, expected: list[list[int]], name: str, options: dict[str, Any]
) -> None:
    pen.convert({"text": TEXTS}, tmp_path / name, tokenizer=Tokenize(tokenizer, eos="<eos>"), **SMALL)
    assert line(tmp_path / name, **options) == [token for one in expected for token in [*one, 0]]


@pytest.mark.parametrize("name", ["a.pen", "a.rox", "a.idx", "a.ds", "a.bin", "a.npy"])
def test_large_vocabularies_take_four_bytes(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    made = pen.convert({"text": ["the cat", "far"]}, tmp_path / name, tokenizer=Tokenize(wide(tokenizer), eos=70_000))
    assert made is not None
    assert made.tokens is not None
    assert made.token_bytes == 4 * made.tokens
    flat: dict[str, Any] = {"dtype": "uint32"} if name in ("a.bin", "a.npy") else {}
    assert line(tmp_path / name, **flat).count(70_000) == 2
    with pen.open(tmp_path / name, **flat) as data:
        assert data.schema["tokens"].dtype == (np.int32 if name == "a.idx" else np.uint32)


def test_a_file_of_parquet_at_a_url_becomes_tokens_at_a_url(
    tmp_path: Path, tokenizer: Tokenizer, expected: list[list[int]]
) -> None:
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": TEXTS}), tmp_path / "a.parquet", row_group_size=50)
    for name in ("tokens.idx", "tokens.pen"):
        target = f"memory://convert-text/{name}"
        made = pen.convert(tmp_path / "a.parquet", target, fields=["text"], tokenizer=tokenizer, **SMALL)
        assert made is not None
        assert made.records == len(TEXTS)
        with pen.open(target) as data:
            assert [tokens.tolist() for tokens in data["tokens"][:]] == expected


def test_an_executor_gives_the_same_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    with ThreadPoolExecutor(2) as pool:
        pen.convert({"text": TEXTS}, tmp_path / "b.idx", tokenizer=Tokenize(tokenizer, batch_bytes=500), executor=pool, **SMALL)
    for end in (".idx", ".bin"):
        assert (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"b{end}").read_bytes()


def test_the_digest_of_the_tokenizer_is_where_it_has_a_place(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pen.create(tmp_path / "texts.pen", {"text": pen.Field.text()}, metadata={"origin": "here"}) as out:
        out.extend({"text": TEXTS})
    for name in ("a.pen", "a.ds"):
        pen.convert(tmp_path / "texts.pen", tmp_path / name, tokenizer=Tokenize(str(tmp_path), eos=0))
    with pen.open(tmp_path / "a.pen") as data:
        about = data.metadata
    assert about["origin"] == "here"
    assert about["tokenizer"] == {
        "sha256": about["tokenizer"]["sha256"],
        "vocab_size": tokenizer.get_vocab_size(),
        "special_tokens": True,
        "eos": 0,
    }
    said = (tmp_path / "a.ds.metadata").read_text().splitlines()
    tokens = sum(map(len, read(tmp_path / "a.ds")))
    assert said == [f"{tmp_path}|2", str(tokens), f"{tokens / 1000:.3g} kT", f"sha256:{about['tokenizer']['sha256']}"]


# What the tokenizer is asked for


@pytest.fixture(scope="module")
def adding(tokenizer: Tokenizer) -> Tokenizer:
    """With a post-processor, as those of Llama and BERT have one."""
    made = Tokenizer.from_str(tokenizer.to_str())
    made.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 0)])
    return made


def test_special_tokens_are_those_of_the_post_processor_unless_left_out(tmp_path: Path, adding: Tokenizer) -> None:
    pen.convert({"text": ["", "cat"]}, tmp_path / "with.idx", tokenizer=adding)
    assert read(tmp_path / "with.idx") == [[1, 0], [1, *adding.encode("cat", add_special_tokens=False).ids, 0]]
    pen.convert({"text": ["", "cat"]}, tmp_path / "without.idx", tokenizer=Tokenize(adding, special_tokens=False, eos="<bos>"))
    assert read(tmp_path / "without.idx") == [[1], [*adding.encode("cat", add_special_tokens=False).ids, 1]]


def test_a_token_in_front_of_documents_may_end_them_too(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = Tokenizer.from_str(tokenizer.to_str())
    made.post_processor = processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    pen.convert({"text": ["", "cat"]}, tmp_path / "a.idx", tokenizer=Tokenize(made, eos="<eos>"))
    documents = pen.open(tmp_path / "a.idx")
    assert documents[0]["tokens"].tolist() == [0, 0]
    assert documents[1]["tokens"].tolist() == [0, *tokenizer.encode("cat").ids, 0]


def test_an_end_that_is_there_already_is_not_written_twice(tmp_path: Path, adding: Tokenizer) -> None:
    with pytest.raises(ValueError, match="appends token 0 to every document already"):
        pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=Tokenize(adding, eos="<eos>"))
    with pytest.raises(ValueError, match="'<pad>', which is not in its vocabulary"):
        pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=Tokenize(adding, eos="<pad>"))
    assert list(tmp_path.iterdir()) == []


def shout(batch: dict[str, Any]) -> dict[str, Any]:
    return {"loud": [text.upper() for text in batch["text"] if text]}


def test_a_map_comes_before_the_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    data = {"text": TEXTS, "number": np.arange(len(TEXTS))}
    pen.convert(data, tmp_path / "a.idx", tokenizer=tokenizer, map=BatchMap(shout, batch_bytes=300), **SMALL)
    assert read(tmp_path / "a.idx") == [tokenizer.encode(text.upper()).ids for text in TEXTS if text]


def test_a_map_says_how_many_records_a_task_has(tokenizer: Tokenizer) -> None:
    assert TextMap.of(Tokenize(tokenizer), BatchMap(shout, task_records=7), None, is_nullable=False).task_records == 7
    assert (
        TextMap.of(Tokenize(tokenizer, task_records=9), BatchMap(shout, task_records=7), None, is_nullable=False).task_records == 9
    )


def test_a_separator_that_is_no_token_of_the_type_is_refused_before_anything_is_mapped(tmp_path: Path) -> None:
    called: list[int] = []

    def tokens(batch: dict[str, Any]) -> dict[str, Any]:
        called.append(len(batch["x"]))
        return batch

    data = {"x": np.zeros((2000, 4), np.uint16)}
    with pytest.raises(ValueError, match="separator"):
        pen.convert(data, tmp_path / "a.bin", map=BatchMap(tokens, fields={"x": pen.Field("u2", (4,))}), separator=70000)
    assert called == []
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_at_a_url_is_to_be_copied(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got the URL s3://bucket/tokenizer\.json: copy it to a disk"):
        pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer="s3://bucket/tokenizer.json")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch | {"more": [1] * len(batch["text"])}, r"one field of texts to encode, got \['text', 'more'\]"),
        (lambda batch: {"x": [b"raw"]}, "expected texts to encode, got bytes"),
        (lambda batch: {"x": [["a", "b"]]}, "expected texts to encode, got list"),
    ],
)
def test_a_map_must_give_texts(tmp_path: Path, tokenizer: Tokenizer, function: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=tokenizer, map=function)


# What is missing or of another type


def test_missing_texts_stay_missing_in_a_store(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pen.convert({"text": ["cat", None, "", None]}, tmp_path / "a.pen", tokenizer=Tokenize(tokenizer, eos=0))
    with pen.open(tmp_path / "a.pen") as data:
        found = data["tokens"][:].to_list()
        assert data.schema["tokens"].nullable
    assert [None if one is None else one.tolist() for one in found] == [[*tokenizer.encode("cat").ids, 0], None, [0], None]


@pytest.mark.parametrize("name", ["a.rox", "a.idx", "a.ds", "a.bin", "a.npy"])
def test_missing_texts_have_no_place_in_a_file(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    texts = ["cat"] * 40 + [None] + ["dog"] * 9
    with pytest.raises(SchemaMismatchError, match=r"record 40: the text is missing, and a \.\w+ file cannot store"):
        pen.convert({"text": texts}, tmp_path / name, tokenizer=Tokenize(tokenizer, batch_bytes=30, task_records=20))
    assert not (tmp_path / name).exists()


def test_the_field_must_be_one_of_texts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    data = {"text": ["a"], "title": ["b"], "label": [3]}
    with pytest.raises(ValueError, match=r"one field of texts to encode, found \['text', 'title'\]: choose one"):
        pen.convert(data, tmp_path / "a.rox", tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"field 'label': expected texts .* texts are in \['text', 'title'\]"):
        pen.convert(data, tmp_path / "a.rox", tokenizer=tokenizer, fields=["label"])
    with pytest.raises(ValueError, match="unknown fields"):
        pen.convert(data, tmp_path / "a.rox", tokenizer=tokenizer, fields=["body"])
    pen.convert({"text": ["cat"], "label": [3]}, tmp_path / "a.rox", tokenizer=tokenizer)
    assert line(tmp_path / "a.rox") == tokenizer.encode("cat").ids


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.shard", {}, "row shards cannot store tokens"),
        ("a.parquet", {}, "convert writes a store"),
        ("a.rox", {"separator": 0}, "eos=.* instead"),
    ],
)
def test_targets_without_a_place_for_tokens_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pen.convert({"text": TEXTS}, tmp_path / name, tokenizer=tokenizer, **options)
    assert list(tmp_path.iterdir()) == []


def test_conversations_are_not_taken_for_texts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    data = {"messages": [json.dumps([{"role": "user", "content": "cat"}])]}
    with pytest.raises(SchemaMismatchError, match="record 0: expected a text, found messages with role and content"):
        pen.convert(data, tmp_path / "a.idx", tokenizer=tokenizer)
    pen.convert(data, tmp_path / "b.idx", tokenizer=Tokenize(tokenizer, chat_template=False))
    assert read(tmp_path / "b.idx") == [tokenizer.encode(data["messages"][0]).ids]


@pytest.mark.parametrize("name", ["a.rox", "a.idx", "a.ds"])
def test_no_documents_are_no_file(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    with pen.create(tmp_path / "none.pen", {"text": pen.Field.text()}):
        pass
    with pytest.raises(EmptySourceError, match="nothing to write"):
        pen.convert(tmp_path / "none.pen", tmp_path / name, tokenizer=tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["none.pen"]


def test_empty_documents_are_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("a.idx", "a.ds", "a.pen"):
        made = pen.convert({"text": ["", "", ""]}, tmp_path / name, tokenizer=tokenizer)
        assert made == Converted(3, 0, 0)
    assert read(tmp_path / "a.pen") == read(tmp_path / "a.ds") == [[], [], []]


def test_a_file_that_is_there_is_not_touched(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.bin"):
        pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.bin", b"mine")]


# Interrupted


KILLED = """
import os, signal, sys, threading
import penstock as pen
from penstock.source import Tokenize
from penstock.tokenizer import TextTokenizer
calls, lock, encode = 0, threading.Lock(), TextTokenizer.encode
def killed(self, *args, **options):
    global calls
    with lock:
        calls += 1
        if calls > int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
    return encode(self, *args, **options)
TextTokenizer.encode = killed
how, tasks = Tokenize(sys.argv[2], eos="<eos>", batch_bytes=500), []
pen.convert(sys.argv[1], sys.argv[3], tokenizer=how, chunk_bytes=4096, progress=lambda *_: tasks.append(1))
print(len(tasks))
"""


@pytest.mark.parametrize("name", ["a.idx", "a.rox"])
def test_a_killed_conversion_goes_on_and_gives_the_same_bytes(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """In the middle of a task, twice, while two batches are encoded."""
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pen.convert({"text": documents(600)}, tmp_path / "texts.pen")
    for most in (25, 40, 10**9):
        words = [str(tmp_path / "texts.pen"), str(tmp_path / "tokenizer.json"), str(tmp_path / name), str(most)]
        done = warm.run([sys.executable, "-c", KILLED, *words], check=False, timeout=600, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if most < 10**9 else 0), done.stderr
        assert (tmp_path / name).exists() == (most == 10**9)
    whole = tmp_path / "whole"
    whole.mkdir()
    tasks: list[int] = []
    how = Tokenize(tokenizer, eos="<eos>")
    pen.convert(tmp_path / "texts.pen", whole / name, tokenizer=how, progress=lambda *_: tasks.append(1), **SMALL)
    assert 0 < int(done.stdout) < len(tasks), "what was noted before the kills is not done again"
    made = sorted(path.name for path in whole.iterdir())
    assert {one: (tmp_path / one).read_bytes() for one in made} == {one: (whole / one).read_bytes() for one in made}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*made, "texts.pen", "tokenizer.json", "whole"])


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("published", [0, 1, 2])
def test_one_killed_while_its_files_got_their_names_only_gives_them(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    """After none, one and both of them."""
    from penstock.formats import publish

    pen.convert({"text": TEXTS}, tmp_path / "whole.idx", tokenizer=tokenizer)

    def stop(self: Any, finals: Any, **options: Any) -> None:
        for final in finals[:published]:
            (tmp_path / final.name).write_bytes(self.path(final.name).read_bytes())
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("penstock.conversion.convert.Staging", type("Torn", (publish.Staging,), {"publish": stop}))
        with pytest.raises(StoppedError):
            pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    seen: list[int] = []
    pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer, progress=lambda *_: seen.append(1))
    assert seen == []
    for end in (".idx", ".bin"):
        assert (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"whole{end}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx", "whole.bin", "whole.idx"]


def test_a_file_of_others_is_not_taken_for_ones_own(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr("penstock.conversion.convert.Staging.publish", stop)
        with pytest.raises(StoppedError):
            pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    (tmp_path / "a.idx").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    assert (tmp_path / "a.idx").read_bytes() == b"mine"
    assert not (tmp_path / "a.bin").exists()
    (tmp_path / "a.idx").unlink()
    pen.convert({"text": TEXTS}, tmp_path / "a.idx", tokenizer=tokenizer)
    assert read(tmp_path / "a.idx") == [tokenizer.encode(text).ids for text in TEXTS]


def test_another_tokenizer_or_other_options_do_not_go_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def stop(records: int, size: int) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=tokenizer, progress=stop, **SMALL)
    keeping = Tokenizer.from_str(tokenizer.to_str())
    keeping.encode_special_tokens = True
    for other in (trained(300), Tokenize(tokenizer, eos=0), Tokenize(tokenizer, special_tokens=False), keeping):
        with pytest.raises(StoreError, match="other data or with other options"):
            pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=other, **SMALL)
    pen.convert({"text": TEXTS}, tmp_path / "a.rox", tokenizer=tokenizer, **SMALL)
    assert line(tmp_path / "a.rox") == [token for text in TEXTS for token in tokenizer.encode(text).ids]
