"""penstock convert: every source to every target, and what an interruption leaves."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import PATIENCE_S, RECORDS, Run, Seen, finish, pictures, start
from tests.pictures import pictures as encoded_pictures
from tests.text import documents, trained

import penstock as pen
from penstock import _core
from penstock.cli.convert import parse_codecs
from penstock.conversion import convert as library


def test_arrays_become_a_store(run: Run, run_json: Callable[..., Any], images: Path, labels: Path, tmp_path: Path) -> None:
    found = run_json(
        "convert", f"image={images}", f"label={labels}", tmp_path / "a.pen", "--codec", "zstd:1", "--codec", "label=raw"
    )
    with pen.open(tmp_path / "a.pen") as data:
        assert np.array_equal(data["image"][:], pictures(RECORDS))
        assert data["label"][:].tolist() == list(range(RECORDS))
        assert [repr(field.codec) for field in data.schema.values()] == ["Zstd(1)", "Raw()"]
    written = sum(path.stat().st_size for path in (tmp_path / "a.pen").rglob("*") if path.is_file())
    assert (found["records"], found["first_record"], found["bytes_out"]) == (RECORDS, 0, written)
    assert found["bytes_in"] == images.stat().st_size + labels.stat().st_size
    assert found["ratio"] == written / found["bytes_in"]
    assert found["seconds"] > 0


def test_people_get_a_summary(run: Run, images: Path, tmp_path: Path) -> None:
    result = run("convert", images, tmp_path / "a.pen", columns=200)
    assert (result.exit_code, result.stderr) == (0, f"{RECORDS} records\n")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["to", "records", "written", "read", "time"]


@pytest.mark.parametrize("name", ["a.rox", "a.shard"])
def test_one_field_becomes_rows_or_tokens(run: Run, tokens: Path, tmp_path: Path, name: str) -> None:
    assert run("convert", tokens, tmp_path / name, "--fields", "tokens").exit_code == 0
    with pen.open(tmp_path / name) as data:
        assert np.concatenate(list(data[next(iter(data.schema))][:])).tolist() == list(range(400))


def test_documents_of_tokens_get_a_separator(run: Run, store: Path, tmp_path: Path) -> None:
    assert run("convert", store, tmp_path / "a.rox", "--fields", "tokens", "--separator", 9999).exit_code == 0
    with pen.open(tmp_path / "a.rox") as data:
        line = np.concatenate(list(data["tokens"][:]))
    assert line.tolist() == [token for length in range(RECORDS) for token in [*range(length), 9999]]


def test_a_store_at_a_url_is_written_and_read(run: Run, run_json: Callable[..., Any], store: Path, tmp_path: Path) -> None:
    found = run_json("convert", store, "memory://cli-convert/a.pen", "--chunk-bytes", "4KiB")
    assert (found["records"], found["bytes_out"] > 0) == (RECORDS, True)
    back = run_json("convert", "memory://cli-convert/a.pen", tmp_path / "back.pen")
    assert back["bytes_in"] > 0
    with pen.open(tmp_path / "back.pen") as copy, pen.open(store) as original:
        assert copy[7]["caption"] == original[7]["caption"]


def test_a_shard_at_a_url_is_measured(run_json: Callable[..., Any], tmp_path: Path) -> None:
    pen.convert({"row": np.zeros((10, 4))}, "memory://cli-convert/first.shard")
    found = run_json("convert", "memory://cli-convert/first.shard", "memory://cli-convert/a.shard")
    assert found["bytes_out"] == found["bytes_in"] > 0


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * batch["data"]}


@pytest.mark.parametrize("options", [[], ["--engine", "threads", "--workers", "2"]])
def test_a_map_of_the_users_changes_records(run: Run, labels: Path, tmp_path: Path, options: list[str]) -> None:
    result = run("convert", labels, tmp_path / "a.pen", "--map", "tests.cli.test_convert:doubled", "--codec", "lz4", *options)
    assert result.exit_code == 0, result.output
    with pen.open(tmp_path / "a.pen") as data:
        assert data["twice"][:].tolist() == list(range(0, 2 * RECORDS, 2))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["{images}", "{there}"], 4),
        (["{images}", "/proc/nowhere/a.pen"], 4),
        (["{images}", "{images}/a.pen"], 4),
        (["{there}/nothing.npy", "{new}"], 3),
        (["{broken}", "{new}"], 3),
        (["{images}"], 2),
        (["{images}", "{new}", "--codec", "gzip"], 2),
        (["{images}", "{new}", "--codec", "zstd:99"], 2),
        (["{images}", "{new}", "--codec", "raw:1"], 2),
        (["{images}", "{new}", "--codec", "zstd:high"], 2),
        (["{images}", "{new}", "--codec", "nothing=zstd"], 2),
        (["{images}", "{new}", "--fields", "nothing"], 2),
        (["{images}", "{new}", "--chunk-bytes", "many"], 2),
        (["{images}", "{new}", "--threads", "0"], 2),
        (["{images}", "{new}", "--engine", "magic"], 2),
        (["{images}", "{new}", "--map", "nothing"], 2),
        (["{images}", "{new}", "--image", "quality=90"], 2),
        (["{images}", "{new}", "--image", "max_side=x"], 2),
        (["{images}", "{new}", "--image", "max_side=8,quality=0"], 2),
        (["{images}", "{new}", "--image", "max_side=8,size=1"], 2),
        (["{images}", "{new}", "--map", "no_such_module:f"], 2),
        (["{images}", "{new}", "--map", "json:nothing"], 2),
        (["{images}", "{new}", "--map", "json:dumps", "--codec", "raw", "--codec", "data=lz4"], 2),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, images: Path, tmp_path: Path, words: list[str], code: int) -> None:
    (tmp_path / "broken.npy").write_bytes(images.read_bytes()[:50])
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a").write_text("mine")
    names = {"images": images, "there": tmp_path / "there", "new": tmp_path / "new.pen", "broken": tmp_path / "broken.npy"}
    result = run("convert", *(word.format(**names) for word in words))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.output
    assert not (tmp_path / "new.pen").exists()


def test_codecs_for_all_and_for_some() -> None:
    assert parse_codecs(None, ["a"]) is None
    assert parse_codecs(["lz4"], ["a"]) == pen.LZ4()
    assert parse_codecs(["a=zstd:5"], ["a", "b"]) == {"a": pen.Zstd(5)}
    assert parse_codecs(["deflate:9", "a=raw"], ["a", "b"]) == {"a": pen.Raw(), "b": pen.Deflate(9)}


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_map_that_fails_in_a_worker_is_told_with_its_line(labels: Path, tmp_path: Path, engine: str) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\ndef tag(batch):\n    return {'x': np.reshape(batch['data'], (7, 7))}\n"
    )
    words = ["convert", labels, tmp_path / "a.pen", "--map", "mine:tag", "--engine", engine, "--workers", "1"]
    done = finish(*words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("penstock: mine:tag raised ValueError: cannot reshape array")
    assert done.stderr.splitlines()[0].endswith(" (mine.py:4)")  # a pool that ends may complain behind it


def test_processes_do_the_work(labels: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n\n\ndef tag(batch):\n    return batch | {'by': [os.getpid()] * len(batch['data'])}\n"
    )
    words = ["convert", labels, tmp_path / "a.pen", "--map", "mine:tag", "--engine", "processes", "--workers", "1"]
    with start(*words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, output
    with pen.open(tmp_path / "a.pen") as data:
        assert data["data"][:].tolist() == list(range(RECORDS))
        assert process.pid not in set(data["by"][:].tolist())


# Texts


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts in a file, and a tokenizer next to it."""
    trained().save(str(tmp_path / "tokenizer.json"))
    pq.write_table(pa.table({"text": documents(100), "url": ["x"] * 100}), tmp_path / "corpus.parquet")
    return tmp_path / "corpus.parquet"


def test_texts_become_tokens_with_their_counts(run: Run, run_json: Callable[..., Any], corpus: Path, tmp_path: Path) -> None:
    words = ["convert", corpus, tmp_path / "a.idx", "--tokenizer", tmp_path / "tokenizer.json", "--field", "text"]
    found = run_json(*words)
    expected = [trained().encode(text).ids for text in documents(100)]
    tokens = sum(map(len, expected))
    with pen.open(tmp_path / "a.idx") as data:
        assert [one.tolist() for one in data["tokens"][:]] == expected
    assert (found["records"], found["documents"], found["tokens"], found["token_bytes"]) == (100, 100, tokens, 2 * tokens)
    assert found["tokens_per_s"] == pytest.approx(tokens / found["seconds"])
    assert found["bytes_out"] == (tmp_path / "a.idx").stat().st_size + (tmp_path / "a.bin").stat().st_size
    words[2] = tmp_path / "b.idx"
    result = run(*words, "--eos", "<eos>", columns=200)
    rows = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert list(rows) == ["to", "records", "written", "tokens", "read", "time"]
    assert f"{tokens + 100:,}, " in rows["tokens"]
    with pen.open(tmp_path / "b.idx") as data:
        assert [one.tolist() for one in data["tokens"][:]] == [[*one, 0] for one in expected]


def test_a_line_of_tokens_is_told_to_have_no_documents(run: Run, corpus: Path, tmp_path: Path) -> None:
    words = [corpus, "--tokenizer", tmp_path, "--field", "text"]
    said = run("convert", *words, tmp_path / "a.rox").stderr
    assert (
        said == "documents run together in a .rox file: --eos puts a token behind each; .idx and .ds keep them apart\n100 records\n"
    )
    assert run("convert", *words, tmp_path / "b.rox", "--eos", "0").stderr == "100 records\n"
    assert run("convert", *words, tmp_path / "c.pen").stderr == "100 records\n"


def test_conversations_become_tokens_with_a_mask(run_json: Callable[..., Any], tmp_path: Path) -> None:
    trained().save(str(tmp_path / "tokenizer.json"))
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    pq.write_table(pa.table({"messages": [chat] * 3}), tmp_path / "chats.parquet")
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    (tmp_path / "chat.jinja").write_text(template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    ids = trained().encode("user: the cat<eos>assistant: sat<eos>").ids
    spoken = len(trained().encode("sat<eos>").ids)
    for number, options in enumerate((["--chat"], ["--chat-template", tmp_path / "chat.jinja"])):
        target = tmp_path / f"{number}.ds"
        found = run_json("convert", tmp_path / "chats.parquet", target, "--tokenizer", tmp_path, *options)
        assert (found["documents"], found["tokens"], found["loss_tokens"]) == (3, 3 * len(ids), 3 * spoken)
        with pen.open(target) as data:
            assert data[2]["tokens"].tolist() == ids
            assert data[2]["loss_mask"].tolist() == [0] * (len(ids) - spoken) + [1] * spoken


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--eos", "0"], 2, "pass --tokenizer too"),
        (["--chat"], 2, "pass --tokenizer too"),
        (["--tokenizer", "{tmp}/nothing.json"], 3, "nothing.json: expected a tokenizer.json, found nothing"),
        (["--tokenizer", "{tmp}"], 2, "one field of texts to encode, found ['text', 'url']"),
        (["--tokenizer", "{tmp}", "--field", "text", "--separator", "3"], 2, "(--eos) instead"),
        (["--tokenizer", "{tmp}", "--field", "text", "--eos", "<pad>"], 2, "'<pad>', which is not in its vocabulary"),
        (["--tokenizer", "{tmp}", "--field", "text", "--chat"], 2, "cannot store the loss mask"),
        (["--tokenizer", "{tmp}", "--field", "text", "--no-chat", "--chat-template", "x"], 2, "contradicts --no-chat"),
        (["--tokenizer", "{tmp}", "--codec", "lz4"], 2, "not compressed"),
    ],
)
def test_what_cannot_be_encoded_is_one_line(
    run: Run, corpus: Path, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    result = run("convert", corpus, tmp_path / "a.idx", *(word.format(tmp=tmp_path) for word in words))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.output
    assert message in result.stderr
    assert not (tmp_path / "a.idx").exists()


def test_an_interrupted_token_file_goes_on(run: Run, corpus: Path, tmp_path: Path) -> None:
    def tear(records: int, size: int) -> None:
        raise TornError

    how: dict[str, Any] = {"tokenizer": tmp_path / "tokenizer.json", "fields": ["text"], "chunk_bytes": 4096}
    texts = [corpus, corpus]
    with pytest.raises(TornError):
        pen.convert(texts, tmp_path / "a.ds", progress=tear, **how)
    words = ["convert", *texts, tmp_path / "a.ds", "--tokenizer", tmp_path / "tokenizer.json", "--field", "text"]
    result = run(*words, "--chunk-bytes", "4KiB", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("resumes from record ")
    found = json.loads(result.stdout)
    assert (found["documents"], found["tokens_per_s"]) == (200, None)
    with pen.open(tmp_path / "a.ds") as data:
        assert [one.tolist() for one in data["tokens"][:]] == [trained().encode(text).ids for text in documents(100) * 2]


# Interruption


class TornError(Exception):
    pass


@pytest.fixture
def unfinished(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A conversion that was torn off after 24 records."""
    monkeypatch.setattr(library, "BATCH_BYTES", 8 * 576)

    def tear(records: int, size: int, done: list[int] = []) -> None:  # noqa: B006 - it counts
        done.append(records)
        if len(done) > 3:
            raise TornError

    with pytest.raises(TornError):
        pen.convert(str(images), tmp_path / "a.pen", progress=tear, chunk_bytes=8 * 576)
    return tmp_path / "a.pen"


def test_the_same_command_goes_on(run: Run, images: Path, unfinished: Path) -> None:
    result = run("convert", images, unfinished, "--chunk-bytes", 8 * 576)
    assert (result.exit_code, result.stderr) == (0, f"resumes from record 24 of {RECORDS}\n")
    with pen.open(unfinished) as data:
        assert np.array_equal(data["data"][:], pictures(RECORDS))


def test_another_command_does_not_go_on(run: Run, images: Path, unfinished: Path) -> None:
    result = run("convert", images, unfinished, "--chunk-bytes", 8 * 576, "--codec", "lz4")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert "unfinished conversion" in result.stderr


def interrupt(words: list[object], *lines: str) -> str:
    """What a command says that is interrupted after it has said these lines."""
    with start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in lines] == list(lines)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (130, ""), errors
    return errors


def test_an_interrupted_store_is_begun_anew(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 40, (6_000, 4096), np.uint8))
    words: list[object] = ["convert", tmp_path / "a.npy", tmp_path / "a.pen", "--codec", "zstd:9"]
    assert interrupt(words, "6,000 records\n") == "penstock: interrupted; the same command starts over\n"
    assert not (tmp_path / "a.pen").exists()
    assert run(*words[:-1], "zstd:1").exit_code == 4  # what was begun is not forgotten
    assert run(*words).exit_code == 0
    with pen.open(tmp_path / "a.pen") as data:
        assert len(data) == 6_000


def test_an_interrupted_file_leaves_nothing(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint16, (500_000, 4096))  # 4 GB of zeros, which take no space
    said = interrupt(["convert", tmp_path / "a.npy", tmp_path / "a.rox"], "500,000 records\n")
    assert said == "penstock: interrupted; nothing remains of it, the same command starts over\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


STUCK = """
import signal, sys
from pathlib import Path

def stop(batch):
    if batch["data"][0] == 1024 and not Path(__file__).with_name("once").exists():
        Path(__file__).with_name("once").touch()
        print("half is done", file=sys.stderr, flush=True)
        signal.pause()
    return batch
"""


def test_interrupted_tasks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(2048))
    (tmp_path / "stuck.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words: list[object] = ["convert", tmp_path / "a.npy", tmp_path / "a.pen", "--map", "stuck:stop", "--chunk-bytes", "4KiB"]
    said = interrupt(words, "2,048 records\n", "half is done\n")
    assert said == "penstock: interrupted; the same command does what is left to do\n"
    done = finish(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "resumes from record 1,024 of 2,048\n")
    with pen.open(tmp_path / "a.pen") as data:
        assert data["data"][:].tolist() == list(range(2048))


# Progress


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_gets_a_bar_that_fits(in_terminal: Callable[..., Seen], images: Path, tmp_path: Path, columns: int) -> None:
    seen = in_terminal("convert", images, tmp_path / "a.pen", columns=columns)
    assert seen.exit_code == 0
    assert ("━" in seen.output) == (columns == 120)
    assert "100%" in seen.output or f"{RECORDS}/{RECORDS}" in seen.output
    assert "MB/s" in seen.output


def test_without_a_terminal_there_is_no_bar(images: Path, tmp_path: Path) -> None:
    env = {**os.environ, "NO_COLOR": "1"}
    words = ["convert", images, tmp_path / "a.pen", "--json"]
    done = finish(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 0
    assert done.stderr == f"{RECORDS} records\n"
    assert done.stdout.startswith("{")


def test_pictures_are_made_smaller(run: Run, tmp_path: Path) -> None:
    pen.convert({"photo": encoded_pictures(3), "label": np.arange(3)}, tmp_path / "a.pen")
    result = run("convert", tmp_path / "a.pen", tmp_path / "b.pen", "--image", "max_side=16,quality=70,field=photo")
    assert result.exit_code == 0, result.stderr
    with pen.open(tmp_path / "b.pen") as made:
        sides = [max(_core.probe_image(np.frombuffer(one, np.uint8))[1:3]) for one in made["photo"]]
        assert (sides, made["label"][:].tolist()) == ([16] * 3, [0, 1, 2])
