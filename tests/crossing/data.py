"""The data of all cases: small files of every kind, written once, and what they hold as plain Python values.

``data("store23")`` opens one of them, once per process. Records 2 and 5 of ``faulty(source, {2, 5})`` cannot be read.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.formats import token_files
from tests.pictures import pictures

import penstock as pen
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.records import Recipe, Source
from penstock.remote.url import url_path
from penstock.source import write_collection, write_documents, write_tokens

SIZES = (0, 1, 2, 3, 5, 8, 13, 23, 37, 60)
TOKENS = ((1, 3), (5, 7), (20, 4), (50, 7), (97, 16), (130, 5))
"""Token files: how many tokens, in blocks of how many."""
DOCUMENTS = (1, 3, 6, 14, 25)


@dataclass(frozen=True)
class Form:
    """The type of a field: its kind (fixed, ragged, bytes or text), and whether values may be missing."""

    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    nullable: bool = False


@dataclass(frozen=True)
class Known:
    """A data set as plain values: ``columns[name][i]`` is the value of record i, None where it is missing."""

    name: str
    forms: dict[str, Form]
    columns: dict[str, list[Any]]
    length: int
    opener: Callable[[], Source] = field(compare=False)
    is_remote: bool = False
    line: tuple[int, ...] | None = None  # the tokens of a token file
    block_size: int = 0
    has_documents: bool = False  # whether the records of a token file are documents, rather than blocks
    bad: frozenset[int] = frozenset()  # records whose pictures cannot be decoded


class Faulty(Source):
    """Another source, some records of which cannot be read."""

    def __init__(self, source: Source, bad: frozenset[int]) -> None:
        self._source, self._bad = source, bad

    def __len__(self) -> int:
        return len(self._source)

    @property
    def schema(self) -> Any:
        return self._source.schema

    @property
    def fingerprint(self) -> str:
        return self._source.fingerprint

    def lengths(self, field: str, ids: Any) -> IntArray:
        return self._source.lengths(field, ids)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        found = sorted(self._bad & set(ids.tolist()))
        if found:
            raise OSError(f"record {found[0]} lies on a bad sector")
        return self._source.read(ids, fields, out)

    def _recipe(self) -> Recipe:
        return (Faulty, (self._source, self._bad))


def faulty(source: Source, bad: set[int]) -> Source:
    return Faulty(source, frozenset(bad))


# Functions for map; the model calls them with plain values.


def doubled(record: dict[str, Any]) -> dict[str, Any]:
    """Of records with a number x and a name."""
    return {"x": None if record["x"] is None else record["x"] * 2, "name": None if record["name"] is None else record["name"] + "!"}


def reversed_text(record: dict[str, Any]) -> dict[str, Any]:
    """Of records with a text."""
    return {"text": None if record["text"] is None else record["text"][::-1]}


@cache
def _directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="crossing-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


_remote: tuple[str, dict[str, Any] | None] = ("memory://crossing", None)


@contextmanager
def remote_at(url: str, storage_options: dict[str, Any]) -> Iterator[None]:
    """Remote data is there, instead of in the memory of this process."""
    global _remote
    before = _remote
    close_data()
    _remote = (url, storage_options)
    try:
        yield
    finally:
        close_data()
        _remote = before


def _upload(path: Path) -> Source:
    """The same file or directory, read at a URL."""
    url, options = _remote
    root = url_path(f"{url}/{path.name}", options)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        key = "" if path.is_file() else str(file.relative_to(path))
        place = root / key if key else root
        place.objects.put(place.key, file.read_bytes())
    return pen.open(str(root)) if options is None else pen.open(str(root), storage_options=options)


def _upload_all(name: str, files: Sequence[Path], **options: Any) -> Source:
    """The same files next to one another, read at a URL."""
    url, storage = _remote
    root = url_path(f"{url}/{name}", storage)
    for file in files:
        place = root / file.name
        place.objects.put(place.key, file.read_bytes())
    return pen.open(f"{root}{options.pop('what')}", **options, **({} if storage is None else {"storage_options": storage}))


def _mixed_columns(n: int, salt: int, *, missing: bool) -> dict[str, list[Any]]:
    x: list[Any] = [1000 * salt + i for i in range(n)]
    if n == SIZES[-1]:
        x[-1] = -x[-1]  # which is no cost
    name: list[Any] = [f"{salt}:{i}" * (i % 3) for i in range(n)]
    pair: list[Any] = [[salt + i / 4, -float(i)] for i in range(n)]
    if missing:  # only in the second half: the first batches have none
        x = [None if i > n // 2 and i % 3 == 0 else value for i, value in enumerate(x)]
        name = [None if i > n // 2 and i % 4 == 1 else value for i, value in enumerate(name)]
        return {"x": x, "name": name}
    return {"x": x, "pair": pair, "name": name}


def _documents(n: int, salt: int) -> list[str]:
    return ["".join(chr(97 + (salt + i + j) % 26) for j in range((i * 7 + salt) % 11)) for i in range(n)]


VALUE = {"x": Form("fixed", "int64"), "pair": Form("fixed", "float32", (2,)), "name": Form("text", "uint8")}
NULLABLE = {"x": Form("fixed", "int64", nullable=True), "name": Form("text", "uint8", nullable=True)}


def _arrays(columns: dict[str, list[Any]], n: int) -> Source:
    return pen.open(
        {"x": np.array(columns["x"], "i8"), "pair": np.array(columns["pair"], "f4").reshape(n, 2), "name": columns["name"]}
        if n
        else {"x": np.zeros(0, "i8"), "pair": np.zeros((0, 2), "f4"), "name": pen.Ragged.from_items([], dtype="u1", kind="text")}
    )


def _value_sets() -> list[Known]:
    found = []
    for salt, n in enumerate(SIZES, 1):
        columns = _mixed_columns(n, salt, missing=False)

        def arrays(columns: Any = columns, n: int = n) -> Source:
            return _arrays(columns, n)

        def store(columns: Any = columns, n: int = n) -> Source:
            path = _directory() / f"value{n}.pen"
            if not path.exists():
                pen.convert(_arrays(columns, n), path)
            return pen.open(path)

        def remote(store: Any = store, n: int = n) -> Source:
            store().close()
            return _upload(_directory() / f"value{n}.pen")

        found.append(Known(f"array{n}", VALUE, columns, n, arrays))
        if n:
            found.append(Known(f"store{n}", VALUE, columns, n, store))
        if n in (5, 23, 37):
            found.append(Known(f"remote_store{n}", VALUE, columns, n, remote, is_remote=True))
    return found


def _plain_sets() -> list[Known]:
    """Plain .npy files, alone, in pieces and as a collection."""
    found = []
    form = {"data": Form("fixed", "int64")}
    for salt, n in enumerate((1, 8, 23, 60), 20):
        values = [1000 * salt + i for i in range(n)]

        def npy(values: Any = values, n: int = n) -> Source:
            path = _directory() / f"plain{n}.npy"
            if not path.exists():  # another source may have it open already
                np.save(path, np.array(values, "i8"))
            return pen.open(path)

        def remote(npy: Any = npy, n: int = n) -> Source:
            npy().close()
            return _upload(_directory() / f"plain{n}.npy")

        def collection(values: Any = values, n: int = n) -> Source:
            parts = [_directory() / f"part{n}-{i}.npy" for i in range(3)]
            if not (_directory() / f"collection{n}.json").exists():
                for i, path in enumerate(parts):
                    np.save(path, np.array(values[n * i // 3 : n * (i + 1) // 3], "i8"))
                write_collection(parts, _directory() / f"collection{n}.json")
            return pen.open(_directory() / f"collection{n}.json")

        found.append(Known(f"npy{n}", form, {"data": values}, n, npy))
        if n in (8, 23):
            found.append(Known(f"remote_npy{n}", form, {"data": values}, n, remote, is_remote=True))
        if n > 1:
            found.append(Known(f"collection{n}", form, {"data": values}, n, collection))
    return found


def _nullable_sets() -> list[Known]:
    found = []
    for salt, n in enumerate((3, 13, 37), 30):
        columns = _mixed_columns(n, salt, missing=True)

        def parquet(columns: Any = columns, n: int = n) -> Source:
            path = _directory() / f"nullable{n}.parquet"
            if not path.exists():
                pq.write_table(pa.table({"x": pa.array(columns["x"], pa.int64()), "name": columns["name"]}), path, row_group_size=5)
            return pen.open(path)

        def remote(parquet: Any = parquet, n: int = n) -> Source:
            parquet().close()
            return _upload(_directory() / f"nullable{n}.parquet")

        def store(parquet: Any = parquet, n: int = n) -> Source:
            path = _directory() / f"nullable{n}.pen"
            if not path.exists():
                pen.convert(parquet(), path)
            return pen.open(path)

        found.append(Known(f"parquet{n}", NULLABLE, columns, n, parquet))
        if n == 13:
            found.append(Known(f"remote_parquet{n}", NULLABLE, columns, n, remote, is_remote=True))
        found.append(Known(f"nullable_store{n}", NULLABLE, columns, n, store))
    return found


def _token_sets() -> list[Known]:
    """Every token tells its place; separators (0, or 0 and 1) are sprinkled in."""
    found = []
    for salt, (count, block_size) in enumerate(TOKENS):
        short = count % block_size and count > block_size  # blocks of one size are a fixed field
        form = {"tokens": Form("ragged", "uint16") if short else Form("fixed", "uint16", (min(block_size, count),))}
        line = [0 if (i * 5 + salt) % 9 in (0, 4) else 1 if (i * 5 + salt) % 9 == 5 else 100 + i for i in range(count)]
        blocks = [line[i : i + block_size] for i in range(0, count, block_size)]

        def rox(line: Any = line, count: int = count, block_size: int = block_size) -> Source:
            path = _directory() / f"tokens{count}.rox"
            if not path.exists():
                write_tokens([np.array(line, "u2")], path, dtype="u2", block_size=block_size)
            return pen.open(path)

        def remote(rox: Any = rox, count: int = count) -> Source:
            rox().close()
            return _upload(_directory() / f"tokens{count}.rox")

        extra = {"line": tuple(line), "block_size": block_size}
        found.append(Known(f"tokens{count}", form, {"tokens": blocks}, len(blocks), rox, **extra))
        if count in (50, 97):
            found.append(Known(f"remote_tokens{count}", form, {"tokens": blocks}, len(blocks), remote, is_remote=True, **extra))
    found.append(_token_shards())
    return found


def _token_shards() -> Known:
    """Two files with one line: blocks end with the files, pages do not."""
    lines = [[0 if i % 6 == 2 else 300 + i for i in range(20)], [0 if i % 5 == 4 else 400 + i for i in range(33)]]
    blocks = [line[i : i + 7] for line in lines for i in range(0, len(line), 7)]

    def rox() -> Source:
        paths = [_directory() / f"shard{number}.rox" for number in range(2)]
        for path, line in zip(paths, lines, strict=True):
            if not path.exists():
                write_tokens([np.array(line, "u2")], path, dtype="u2", block_size=7)
        return pen.open(paths)

    form = {"tokens": Form("ragged", "uint16")}
    return Known("tokens53", form, {"tokens": blocks}, len(blocks), rox, line=tuple(lines[0] + lines[1]), block_size=7)


def _document_sets() -> list[Known]:
    found = []
    for salt, n in enumerate(DOCUMENTS, 3):
        texts = _documents(n, salt)
        some: list[Any] = [None if i % 5 == 3 else text for i, text in enumerate(texts)]
        ragged = [[ord(letter) for letter in text] for text in texts]

        def text(texts: Any = texts) -> Source:
            return pen.open({"text": texts})

        def parquet(some: Any = some, ragged: Any = ragged, n: int = n) -> Source:
            path = _directory() / f"documents{n}.parquet"
            if not path.exists():
                table = pa.table({"text": pa.array(some, pa.string()), "ids": pa.array(ragged, pa.list_(pa.uint16()))})
                pq.write_table(table, path, row_group_size=4)
            return pen.open(path)

        def remote_parquet(parquet: Any = parquet, n: int = n) -> Source:
            parquet().close()
            return _upload(_directory() / f"documents{n}.parquet")

        def store(ragged: Any = ragged, n: int = n) -> Source:
            path = _directory() / f"documents{n}.pen"
            if not path.exists():
                pen.convert({"ids": pen.Ragged.from_items([np.array(row, "u2") for row in ragged], dtype="u2")}, path)
            return pen.open(path)

        def remote(store: Any = store, n: int = n) -> Source:
            store().close()
            return _upload(_directory() / f"documents{n}.pen")

        both = {"text": Form("text", "uint8", nullable=True), "ids": Form("ragged", "uint16", nullable=True)}
        found.append(Known(f"text{n}", {"text": Form("text", "uint8")}, {"text": list(texts)}, n, text))
        found.append(Known(f"documents{n}", both, {"text": some, "ids": list(ragged)}, n, parquet))
        found.append(Known(f"ragged{n}", {"ids": Form("ragged", "uint16")}, {"ids": list(ragged)}, n, store))
        if n == 14:
            found.append(
                Known(f"remote_documents{n}", both, {"text": some, "ids": list(ragged)}, n, remote_parquet, is_remote=True)
            )
            found.append(
                Known(f"remote_ragged{n}", {"ids": Form("ragged", "uint16")}, {"ids": list(ragged)}, n, remote, is_remote=True)
            )
    return found


def _documents_of_tokens(n: int, salt: int) -> list[list[int]]:
    """Every token tells its place; separators (0) are sprinkled in, and some documents are empty."""
    found: list[list[int]] = []
    for i in range(n):
        first = sum(map(len, found))
        found.append([0 if (first + j + salt) % 7 == 3 else 100 * salt + first + j for j in range((i * 5 + salt) % 9)])
    return found


def _masks_of(documents: list[list[int]]) -> list[list[int]]:
    return [[(token * 5 + i) % 3 and 1 for i, token in enumerate(document)] for document in documents]


def _arrays_of(documents: list[list[int]], dtype: str = "<u2") -> list[Any]:
    return [np.array(document, dtype) for document in documents]


@dataclass(frozen=True)
class Foreign:
    """A format of another tool: how files of that name are written in a directory of their own, what is opened there and how."""

    write: Callable[[Path, list[list[int]]], Any]
    what: str
    options: dict[str, Any] = field(default_factory=dict)
    has_mask: bool = False

    def open(self, name: str, documents: list[list[int]], *, is_remote: bool) -> Source:
        path = _directory() / name
        if not path.exists():
            path.mkdir()
            self.write(path, documents)
        options = dict(self.options)
        if not is_remote:
            mask = {"loss": f"{path}{options.pop('loss')}"} if isinstance(options.get("loss"), str) else {}
            return pen.open(f"{path}{self.what}", **options | mask)
        root = f"{_remote[0]}/{name}"
        mask = {"loss": url_path(f"{root}{options.pop('loss')}", _remote[1])} if isinstance(options.get("loss"), str) else {}
        return _upload_all(name, sorted(path.iterdir()), what=self.what, **options | mask)


def _write_megatron(path: Path, documents: list[list[int]]) -> None:
    write_documents(_arrays_of(documents), path / "x.idx", dtype="u2")


def _write_olmo(path: Path, documents: list[list[int]]) -> None:
    """Two files, and their label masks."""
    half = len(documents) // 2
    for name, part in (("a", documents[:half]), ("b", documents[half:])):
        if sum(map(len, part)):
            token_files.write_olmo(path / f"{name}.npy", _arrays_of(part))
            mask = [value for one in _masks_of(part) for value in one]
            (path / f"{name}.mask").write_bytes(np.array(mask, bool).tobytes())


def _write_datatrove(path: Path, documents: list[list[int]]) -> None:
    half = len(documents) // 3
    for name, part in (("a", documents[:half]), ("b", documents[half:])):
        if part:
            token_files.write_datatrove(path / f"{name}.ds", _arrays_of(part), _arrays_of(_masks_of(part), "?"))


def _write_litdata(path: Path, documents: list[list[int]]) -> None:
    half = len(documents) // 2
    chunks = [_arrays_of(part) for part in (documents[:half], documents[half:]) if part]
    token_files.write_litdata(path, chunks, "no_header_numpy:5")


FOREIGN = {
    "megatron": Foreign(_write_megatron, "/x.idx"),
    "olmo": Foreign(_write_olmo, "/*.npy", {"documents": True, "dtype": "u2"}),
    "datatrove": Foreign(_write_datatrove, "/*.ds", {"loss": False}),
    "litdata": Foreign(_write_litdata, ""),
    "masked_datatrove": Foreign(_write_datatrove, "/*.ds", {}, has_mask=True),
    "masked_olmo": Foreign(_write_olmo, "/*.npy", {"documents": True, "dtype": "u2", "loss": "/*.mask"}, has_mask=True),
}
"""Token files that know their documents."""


def _foreign_sets() -> list[Known]:
    found = []
    for salt, (name, foreign) in enumerate(FOREIGN.items(), 1):
        for n in (2, 6, 14, 25):
            documents = _documents_of_tokens(n, salt)
            if "olmo" in name:  # whose files without documents, and tokens without any, are none
                documents = [one or [100 * salt + 90] for one in documents]
            line = tuple(token for document in documents for token in document)
            forms, columns = {"tokens": Form("ragged", "uint16")}, {"tokens": documents}
            if foreign.has_mask:
                forms["loss_mask"], columns["loss_mask"] = Form("ragged", "uint8"), _masks_of(documents)
            extra = {"line": line, "block_size": -(-len(line) // n), "has_documents": True}
            for is_remote in (False, True) if n == 14 else (False,):

                def opened(
                    foreign: Any = foreign, own: str = f"{name}{n}", documents: Any = documents, at: bool = is_remote
                ) -> Source:
                    return foreign.open(own, documents, is_remote=at)

                full = f"{'remote_' * is_remote}{name}{n}"
                found.append(Known(full, forms, dict(columns), n, opened, is_remote=is_remote, **extra))
    return found


def _flat_sets() -> list[Known]:
    """nanoGPT's, which do not tell documents apart: two files in blocks, the last of each shorter."""
    found = []
    for salt, (count, size) in enumerate(((30, 6), (47, 10))):
        lines = [[0 if (i * 4 + salt) % 11 == 2 else 600 + i + 300 * part for i in range(count + part)] for part in range(2)]
        blocks = [line[i : i + size] for line in lines for i in range(0, len(line), size)]
        foreign = Foreign(
            lambda path, documents: [
                write_documents(_arrays_of([document]), path / f"{number}.bin", dtype="u2")
                for number, document in enumerate(documents)
            ],
            "/*.bin",
            {"dtype": "u2", "block_size": size, "check": False},
        )
        extra = {"line": tuple(lines[0] + lines[1]), "block_size": size}
        for is_remote in (False, True):

            def opened(foreign: Any = foreign, own: str = f"nanogpt{count}", lines: Any = lines, at: bool = is_remote) -> Source:
                return foreign.open(own, lines, is_remote=at)

            form = {"tokens": Form("ragged", "uint16")}
            full = f"{'remote_' * is_remote}nanogpt{count}"
            found.append(Known(full, form, {"tokens": blocks}, len(blocks), opened, is_remote=is_remote, **extra))
    return found


def _masked_sets() -> list[Known]:
    """Ragged arrays with a mask for every token, in a store."""
    found = []
    for salt, n in ((21, 5), (22, 17)):
        documents = _documents_of_tokens(n, salt)
        masks = _masks_of(documents)

        def store(documents: Any = documents, masks: Any = masks, n: int = n) -> Source:
            path = _directory() / f"masked{n}.pen"
            if not path.exists():
                columns = {"tokens": (documents, "u2"), "loss_mask": (masks, "u1")}
                made = {name: pen.Ragged.from_items(_arrays_of(v, t), dtype=t) for name, (v, t) in columns.items()}
                pen.convert(made, path)
            return pen.open(path)

        def remote(store: Any = store, n: int = n) -> Source:
            store().close()
            return _upload(_directory() / f"masked{n}.pen")

        forms = {"tokens": Form("ragged", "uint16"), "loss_mask": Form("ragged", "uint8")}
        columns: dict[str, list[Any]] = {"tokens": documents, "loss_mask": masks}
        found.append(Known(f"masked_store{n}", forms, columns, n, store))
        if n == 17:
            found.append(Known(f"remote_masked_store{n}", forms, columns, n, remote, is_remote=True))
    return found


def _picture_sets() -> list[Known]:
    """Small pictures of several formats and a number: all there, some missing, one that is none."""
    found = []
    for name, n in (
        ("picture", 1),
        ("picture", 8),
        ("picture", 23),
        ("picture_parquet", 9),
        ("nullable_picture", 13),
        ("broken_picture", 11),
    ):
        images: list[Any] = pictures(n, sides=(5, 7))
        bad = frozenset({5}) if name == "broken_picture" else frozenset[int]()
        if bad:
            images[5] = b"no picture"
        if name == "nullable_picture":
            images = [None if i % 4 == 2 else one for i, one in enumerate(images)]
        columns: dict[str, list[Any]] = {"image": images, "x": [7 * n + i for i in range(n)]}
        forms = {"image": Form("bytes", "uint8", nullable=None in images), "x": Form("fixed", "int64")}

        def store(columns: Any = columns, own: str = f"{name}{n}") -> Source:
            path = _directory() / f"{own}.pen"
            if not path.exists():
                pen.convert({"image": columns["image"], "x": np.array(columns["x"], "i8")}, path)
            return pen.open(path)

        def parquet(columns: Any = columns, own: str = f"{name}{n}") -> Source:
            path = _directory() / f"{own}.parquet"
            if not path.exists():
                pq.write_table(
                    pa.table({"image": pa.array(columns["image"], pa.binary()), "x": columns["x"]}), path, row_group_size=4
                )
            return pen.open(path)

        def remote(store: Any = store, own: str = f"{name}{n}") -> Source:
            store().close()
            return _upload(_directory() / f"{own}.pen")

        found.append(Known(f"{name}{n}", forms, columns, n, parquet if "parquet" in name else store, bad=bad))
        if n == 8:
            found.append(Known(f"remote_{name}{n}", forms, columns, n, remote, is_remote=True))
    return found


KNOWN = {
    known.name: known
    for known in (
        *_value_sets(),
        *_plain_sets(),
        *_nullable_sets(),
        *_token_sets(),
        *_document_sets(),
        *_foreign_sets(),
        *_flat_sets(),
        *_masked_sets(),
        *_picture_sets(),
    )
}


_open: dict[str, Source] = {}


def data(name: str) -> Source:
    """One of the data sets, open."""
    if name not in _open:
        _open[name] = KNOWN[name].opener()
    return _open[name]


def close_data() -> None:
    """Close everything that :func:`data` has opened."""
    for source in _open.values():
        source.close()
    _open.clear()
