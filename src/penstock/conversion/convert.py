"""convert: anything that can be opened into a new store, in one go or in several if it is interrupted; or into a row or token file.

A file has one field of a source, and its name says what it is. Tokens that a tokenizer made have what other tools want next to
them: ``x.ds`` of texts gets an ``x.ds.metadata`` that names the tokenizer, and ``x.ds.loss`` if there is a loss mask; that of
``x.npy`` is ``labels_mask_x.npy``, a byte of 0 or 1 for every token, as OLMo's trainers have it.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from penstock.batch import Batch, Ragged, unmasked
from penstock.conversion.reading import load, next_span, read_spans, spans_of
from penstock.conversion.record_map import (
    LOSS_MASK,
    TOKENS,
    BatchMap,
    ImageMap,
    ShrinkImages,
    TextMap,
    as_map,
    as_shrink,
    as_tokenize,
)
from penstock.conversion.tasks import Conversion, Input, Note, about_conversion, is_committed
from penstock.errors import EmptySourceError, SchemaMismatchError, StoreError
from penstock.formats.files import listing
from penstock.formats.open import has_urls, is_at_url, open_source
from penstock.formats.publish import NewFile, Staging, new_file, refuse_existing
from penstock.formats.rows import write_rows
from penstock.formats.token_line import as_elements
from penstock.formats.tokens_writer import check_dtype, files_of, write_documents, write_tokens
from penstock.progress import Progress, reporting
from penstock.records import Source
from penstock.remote.url import UrlPath
from penstock.schema import Codec, Field
from penstock.store.fragment import adopt_chunks, keep_chunks
from penstock.store.local import Filesystem
from penstock.store.maintenance import gc
from penstock.store.reader import Store
from penstock.store.storage import DIRECTORIES, MANIFEST_DIRECTORY, Location, as_location
from penstock.store.writer import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_RECORDS, ChunkLimits, Writer, begin_store, create
from penstock.system import is_directory, is_there, names_in, status, writing
from penstock.tokenizer import TextTokenizer, TokenizerLike

__all__ = ["DOCUMENTS", "Converted", "coded", "convert"]

BATCH_BYTES = 32 << 20
DOCUMENTS = (".idx", ".ds", ".bin")
ONE_FIELD = (".shard", ".rox", *DOCUMENTS)
MASKED = (".ds", ".npy")
"""Of texts: those that can have a loss mask. .npy is OLMo's, which only texts become."""
COUNTED = 1 << 20
"""Documents that are counted at a time."""


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote: records, which are documents where they are tokens, and then how many tokens, of how many bytes, and
    how many of them count in the loss, if there is a mask.
    """

    records: int
    tokens: int | None = None
    token_bytes: int | None = None
    loss_tokens: int | None = None


@dataclass(frozen=True)
class FileForm:
    """What a row or token file is made of: one field, and for texts what goes next to it."""

    path: Path
    field: str
    dtype: np.dtype[Any]
    tokenizer: TextTokenizer | None
    has_mask: bool

    @classmethod
    def of(cls, path: Path, fields: Mapping[str, Field], made_by: object) -> "FileForm":
        """ValueError if the fields do not fit the file."""
        tokenizer = made_by.tokenizer if isinstance(made_by, TextMap) else None
        names = [name for name in fields if tokenizer is None or name != LOSS_MASK]
        check_one_field(path, names, fields)
        dtype = fields[names[0]].dtype
        if tokenizer is not None and path.suffix == ".idx" and dtype.itemsize == 4:
            dtype = np.dtype("<i4")  # Megatron has no other type of 4 bytes
        if path.suffix in (*DOCUMENTS, *MASKED):
            check_dtype(path, dtype)
        return cls(path, names[0], dtype, tokenizer, len(names) < len(fields))

    @property
    def files(self) -> list[Path]:
        """All that is written, the target last."""
        made = files_of(self.path) if self.path.suffix in (*DOCUMENTS, *MASKED) else [self.path]
        mask = [self.path.with_name(self.mask)] if self.has_mask else []
        about = [self.path.with_name(f"{self.path.name}.metadata")] if self._says_tokenizer else []
        return [*mask, *about, *made]

    @property
    def mask(self) -> str:
        """The name of the file with the loss mask: datatrove's, or one as OLMo's trainers have it."""
        return f"{self.path.name}.loss" if self.path.suffix == ".ds" else f"labels_mask_{self.path.name}"

    @property
    def _says_tokenizer(self) -> bool:
        return self.tokenizer is not None and self.path.suffix == ".ds"

    def write(self, source: Source, path: Path, separator: object, counts: Converted) -> None:
        """Write the files next to each other; none of them appears under its name."""
        write_one_field(source, path, self.field, self.dtype, separator, None)
        if not is_there(path):
            return
        if self.has_mask:
            file = NewFile(path.with_name(self.mask))
            for batch in read_spans(source, [LOSS_MASK], range(len(source)), BATCH_BYTES, as_columns=False):
                masks = _whole(path, LOSS_MASK, batch)
                file.write(masks.values[masks.offsets[0] : masks.offsets[-1]])
            file.finish()
        if self._says_tokenizer and self.tokenizer is not None:
            file = NewFile(path.with_name(f"{path.name}.metadata"))
            file.write(_about_tokens(self.tokenizer, self.dtype, counts.tokens or 0))
            file.finish()


def _about_tokens(tokenizer: TextTokenizer, dtype: np.dtype[Any], tokens: int) -> bytes:
    """The metadata of datatrove: the tokenizer as it was named, and behind what datatrove writes its digest."""
    digest = f"sha256:{tokenizer.sha256}"
    name = digest if tokenizer.name is None or set("|\r\n") & set(tokenizer.name) else tokenizer.name
    steps = min(3, (len(str(tokens)) - 1) // 3)
    size = f"{tokens / 1000**steps:.3g} {'kMG'[steps - 1] if steps else ''}T"
    return f"{name}|{dtype.itemsize}\n{tokens}\n{size}\n{digest}".encode()


def count_tokens(made: Source) -> Converted:
    """How many documents and tokens there are."""
    tokens = sum(
        int(np.sum(made.lengths(TOKENS, np.arange(low, min(low + COUNTED, len(made)))))) for low in range(0, len(made), COUNTED)
    )
    counted = None
    if LOSS_MASK in made.schema:
        spans = read_spans(made, [LOSS_MASK], range(len(made)), BATCH_BYTES, as_columns=False)
        counted = sum(int(np.count_nonzero(batch[LOSS_MASK].values)) for batch in spans)
    return Converted(len(made), tokens, tokens * made.schema[TOKENS].dtype.itemsize, counted)


def check_one_field(path: Path, names: Sequence[str], schema: Mapping[str, Field]) -> None:
    """ValueError if a file has no place for these fields."""
    if len(names) != 1:
        raise ValueError(f"{path}: such a file has one field, the source has {list(names)}: choose one with fields=[...]")
    field = schema[names[0]]
    if path.suffix != ".shard" and field.is_fixed and len(field.shape) != 1:
        raise ValueError(f"{path}: tokens have one dimension, field {names[0]!r} is {field!r}")
    if path.suffix == ".shard" and not (field.is_fixed and len(field.shape) == 1):
        raise ValueError(f"{path}: rows have one dimension and one width, field {names[0]!r} is {field!r}")


def write_one_field(
    source: Source, path: Path, name: str, dtype: np.dtype[Any], separator: object, report: Progress | None
) -> None:
    """Write a field as the name of the file says; no file for no tokens at all."""
    batches = read_spans(source, [name], range(len(source)), BATCH_BYTES, as_columns=False)
    if path.suffix == ".shard":
        write_rows((_whole(path, name, batch) for batch in batches), path, progress=report)
        return
    documents = (_as_documents(_whole(path, name, batch)) for batch in batches)
    if path.suffix in (*DOCUMENTS, *MASKED):
        write_documents(documents, path, dtype=dtype, separator=separator, progress=report)
    else:
        write_tokens(documents, path, dtype=dtype, separator=separator, progress=report)


def _as_documents(column: Any) -> Ragged:
    """Rows of one width as documents."""
    if isinstance(column, Ragged):
        return column
    return Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])


def _whole(path: Path, name: str, batch: Batch) -> Any:
    """A column for a file that has no place for missing values."""
    column = unmasked(batch[name])
    is_missing = column.present is not None and not column.present.all() if isinstance(column, Ragged) else False
    if is_missing or isinstance(column, np.ma.MaskedArray):
        raise SchemaMismatchError(f"{path}: field {name!r} has missing records, which such a file cannot hold: select the others")
    return column


FOREIGN = (".npy", ".npz", ".h5", ".hdf5", ".parquet", ".arrow", ".feather", ".array_record", ".json", ".csv", ".tar", ".zip")
"""Names that promise another format."""


def convert(
    source: Any,
    path: str | os.PathLike[str] | UrlPath,
    *,
    fields: Sequence[str] | None = None,
    codec: Codec | Mapping[str, Codec] | None = None,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    threads: int = 2,
    separator: object = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    map: Callable[[Batch], Mapping[str, Any]] | BatchMap | None = None,  # noqa: A002 - what it is
    executor: Executor | None = None,
    tokenizer: TokenizerLike | None = None,
    image: ShrinkImages | Mapping[str, Any] | None = None,
) -> Converted | None:
    """Write a new store from a source, or from anything that :func:`penstock.open` opens.

    ``fields`` selects fields; ``codec`` is one for all fields, or a dict for some. ``progress`` is True for a progress bar, or a
    function that is called with the records and bytes of every chunk written. The store appears under its name when it is complete;
    until then it is ``<path>.partial``. Start an interrupted conversion again, and it continues.

    A ``path`` that ends in .shard or .rox writes row shards or token blocks instead, from one field. One that ends in .idx, .ds or
    .bin writes token files of Megatron, datatrove or nanoGPT. ``separator`` is then written after every document. An interrupted
    conversion to such a file starts over, unless there is a map, an executor or a tokenizer.

    ``tokenizer`` converts texts to tokens: the path of a tokenizer.json, a ``tokenizers.Tokenizer``, or a
    :class:`~penstock.source.Tokenize` with more options. The one text field becomes documents of tokens, in a token file or in
    the field ``tokens`` of a store; .npy is then a file of OLMo, without a header.

    ``map`` is a function from batch to batch, or a :class:`~penstock.source.BatchMap` with more options. It may change the fields
    and the number of records. ``executor`` is any ``concurrent.futures.Executor``: its threads, processes or machines read, map and
    write parts of the source, which become one commit. The store has the same records in the same order with any executor, or
    none. On a shared disk, an interrupted conversion does only the remaining tasks when it is started again. A row or token file is
    written from such a store when the store is complete, and needs its disk space until then.

    ``image`` shrinks images: a :class:`~penstock.source.ShrinkImages`, or its options, as ``{"max_side": 512}``. Interrupted, it
    continues like a map.

    Returns a :class:`~penstock.source.Converted` if there is a tokenizer, or if a map or an executor makes a row or token file.

    ``source`` and ``path`` may be URLs; ``storage_options`` are for both (open the source first if it needs others). A conversion
    to a URL starts over after an interruption; the store is visible only when it is complete.

    >>> import tempfile, numpy as np, penstock as pen
    >>> path = tempfile.mkdtemp() + "/x.pen"
    >>> pen.convert({"x": np.arange(100)}, path, codec=pen.Zstd(3))
    >>> pen.open(path)["x"][-3:]
    array([97, 98, 99])
    """
    layout = ChunkLimits(chunk_bytes, chunk_records)
    for_source = {"storage_options": storage_options} if storage_options is not None and has_urls(source) else {}
    target = as_location(path, None if for_source and not is_at_url(path) else storage_options)
    if target.suffix in FOREIGN and not (tokenizer is not None and target.suffix in MASKED):
        raise ValueError(
            f"{target}: convert writes a store, which may have any other name, or {', '.join(ONE_FIELD)}, not {target.suffix}"
        )
    opened = open_source(source, **for_source)
    try:
        if tokenizer is not None:
            if image is not None:
                raise ValueError("image is for images and tokenizer is for texts: pass one of them")
            reads = _texts(opened, fields, as_map(map), tokenizer, target, separator)
            return _convert_in_tasks(Conversion.of(reads, layout, executor, threads), target, codec, None, progress)
        names = _chosen(opened.schema, fields)
        if map is not None or executor is not None or image is not None:
            reads = Input(opened, tuple(names), as_map(map))
            if image is not None:
                reads = _pictures(reads, as_shrink(image), target)
            return _convert_in_tasks(Conversion.of(reads, layout, executor, threads), target, codec, separator, progress)
        schema = coded({name: opened.schema[name] for name in names}, codec)
        options: dict[str, Any] = {"chunk_bytes": chunk_bytes, "chunk_records": chunk_records}
        if target.suffix in ONE_FIELD:
            with new_file(target) as file:
                _convert_one_field(opened, file, list(schema), separator, progress)
        elif isinstance(target, UrlPath):
            _convert_to_url(opened, target, schema, options, threads, progress)
        else:
            _convert(opened, target.absolute(), schema, layout, threads, progress)
    finally:
        if opened is not source:
            opened.close()
    return None


def _texts(
    source: Source,
    fields: Sequence[str] | None,
    before: BatchMap | None,
    tokenizer: TokenizerLike,
    target: Location,
    separator: object,
) -> Input:
    """Texts on their way to tokens. ValueError if the target has no place for what they become."""
    how = as_tokenize(tokenizer)
    if separator is not None:
        raise ValueError("separator: with a tokenizer, pass Tokenize(tokenizer, eos=...) (--eos) instead")
    is_file = target.suffix in (*ONE_FIELD, *MASKED)
    if target.suffix == ".shard":
        raise ValueError(f"{target}: row shards cannot store tokens: the target must be a store, .rox, .idx, .ds, .bin or .npy")
    if how.is_chat and is_file and target.suffix not in MASKED:
        raise ValueError(f"{target}: such a file cannot store the loss mask of conversations; a store, .ds and .npy can")
    names = _chosen(source.schema, fields)
    if before is None:
        names = [how.field_of(source.schema, fields)]
    missing = f"and a {target.suffix} file cannot store missing documents: select the others, or convert to a store"
    is_nullable = before is None and source.schema[names[0]].nullable
    return Input(source, tuple(names), TextMap.of(how, before, missing if is_file else None, is_nullable=is_nullable))


def _pictures(reads: Input, how: ShrinkImages, target: Location) -> Input:
    """Pictures on their way into a smaller size. ValueError if the target has no place for them, or if something else maps them."""
    if reads.map is not None:
        raise ValueError("image= shrinks images with its own map: pass image or map, and the other in a second conversion")
    if target.suffix in (*ONE_FIELD, *MASKED):
        raise ValueError(f"{target}: such a file cannot store images: the target must be a store")
    return replace(reads, map=ImageMap.of(how, {name: reads.source.schema[name] for name in reads.names}))


def _convert_in_tasks(
    work: Conversion,
    target: Location,
    codec: Codec | Mapping[str, Codec] | None,
    separator: object,
    progress: Progress | bool | None,
) -> Converted | None:
    texts = work.input.map if isinstance(work.input.map, TextMap) else None
    if target.suffix in ONE_FIELD or (texts is not None and target.suffix in MASKED):
        with new_file(target) as file:
            return _convert_to_file(work, file.absolute(), separator, progress)
    if isinstance(target, UrlPath):
        _check_url(target)
        work.to_url(target, coded(work.guess_fields(), codec), progress)
    else:
        path = target.absolute()
        partial, note = _growing(path)
        schema = coded(work.guess_fields(), codec)
        is_begun = _check_partial(partial, note)
        work.to_path(partial, schema, progress, Note.of(note, work.about(schema), is_begun=is_begun))
        _give_name(partial, note, path)
    if texts is None:
        return None
    with open_source(target) as made:
        return count_tokens(made)


def _convert_to_file(work: Conversion, path: Path, separator: object, progress: Progress | bool | None) -> Converted:
    """A row or token file, by way of a store: that can be made in tasks, and gone on with. Killed at any point, what is left to do
    is done when it is started again, and the file has the same bytes.
    """
    partial, place = _partial(path)
    fields = work.guess_fields()
    form = FileForm.of(path, fields, work.input.map)
    if separator is not None:
        as_elements("separator", separator, form.dtype)  # an error before the work, not behind it
    is_begun = _check_partial(partial, place)
    if not is_committed(partial):  # else these may be its own files, of a run that was killed while they got their names
        for file in form.files:
            refuse_existing(file, "choose another name")
    work.to_path(partial, fields, progress, Note.of(place, work.about(fields), is_begun=is_begun))
    with Staging(path) as staging:
        with open_source(partial) as made:
            written = count_tokens(made) if form.tokenizer is not None else Converted(len(made))
            form.write(made, staging.path(path.name), separator, written)
        files = [file for file in form.files if is_there(staging.path(file.name))]
        staging.publish(files, again=True)
        staging.remove(partial)
    with suppress(OSError):  # without its store the note says nothing
        place.unlink()
    if not files:
        raise EmptySourceError(f"{path}: there is nothing to write: no records, or none with a token")
    return written


def _growing(path: Path) -> tuple[Path, Path]:
    """Where a store grows until it gets its name, and the note next to it; StoreError if the name is taken."""
    if status(path) is not None and (not is_directory(path) or names_in(path)):
        raise StoreError(f"{path}: it exists already; choose another name, or remove it")
    return _partial(path)


def _partial(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.partial"), path.with_name(f"{path.name}.partial.json")


def _give_name(partial: Path, note: Path, path: Path) -> None:
    """Let a finished store appear."""
    files = Filesystem()
    for directory in (partial / MANIFEST_DIRECTORY, partial):  # who committed may have been killed before it could see to that
        files.sync_directory(directory)
    with writing(path, "publishing"):
        os.rename(partial, path)  # in place of an empty directory too
    files.sync_directory(path.parent)
    with suppress(OSError):  # without its store the note says nothing
        note.unlink()


def _convert(
    source: Source,
    path: Path,
    schema: Mapping[str, Field],
    layout: ChunkLimits,
    threads: int,
    progress: Progress | bool | None,
) -> None:
    partial, place = _growing(path)
    was_begun = _check_partial(partial, place)
    note = Note.of(place, about_conversion(source, layout, schema), is_begun=was_begun)
    if not note.is_finished(partial):
        _fill(source, partial, schema, layout, threads, progress, note)
        if was_begun:
            gc(partial, keep=1, keep_hours=0)
    _give_name(partial, place, path)


def _check_partial(partial: Path, note: Path) -> bool:
    """Whether a conversion was begun before; StoreError for something else that is where the store is to grow."""
    found = status(partial, follow=False)
    if found is not None and stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{partial}: expected a directory for the store to grow in, found a symbolic link; remove it")
    if found is not None and not is_there(note):
        raise StoreError(f"{partial}: expected nothing here, for the store to grow in; remove it")
    return found is not None


def _fill(
    source: Source,
    partial: Path,
    schema: Mapping[str, Field],
    layout: ChunkLimits,
    threads: int,
    progress: Progress | bool | None,
    note: Note,
) -> None:
    """Write the records into one commit, behind the chunks that an interrupted conversion has left."""
    reports: list[Progress] = []

    def report(rows: int, size: int) -> None:
        for one in reports:
            one(rows, size)

    options: dict[str, Any] = {"threads": threads, "progress": report, "metadata": source.metadata}
    with begin_store(partial, schema, layout, dataset=note.dataset, **options) as out:  # locked: no other process adds to the note
        done = adopt_chunks(out, note.receipts())
        note.forget_after(done)
        with reporting(progress, note.title, len(source), done=done) as given:
            reports.extend([] if given is None else [given])
            _copy(source, out, list(schema), done, note)
            out.commit()


def _convert_to_url(
    source: Source,
    target: UrlPath,
    schema: Mapping[str, Field],
    options: Mapping[str, Any],
    threads: int,
    progress: Progress | bool | None,
) -> None:
    """In one commit: nothing can be renamed there, so what is not complete must not be published."""
    _check_url(target)
    with (
        reporting(progress, target.name, len(source)) as report,
        create(target, schema, threads=threads, progress=report, metadata=source.metadata, **options) as out,
    ):
        _copy(source, out, list(schema), 0)


def _check_url(target: UrlPath) -> None:
    depth = len(PurePosixPath(target.key).parts)
    if any(PurePosixPath(info.key).parts[depth] not in DIRECTORIES for info in listing(target)):
        raise StoreError(f"{target}: it exists already; choose another name, or remove it")


def _convert_one_field(
    source: Source, path: Path, fields: Sequence[str], separator: object, progress: Progress | bool | None
) -> None:
    check_one_field(path, fields, source.schema)
    with reporting(progress, path.name, len(source)) as report:
        write_one_field(source, path, fields[0], source.schema[fields[0]].dtype, separator, report)


def _copy(source: Source, out: Writer, fields: Sequence[str], first: int, note: Note | None = None) -> None:
    """Batch after batch, the next one read while the last is written; ``note`` gets a receipt of every chunk that is written."""
    with (
        ThreadPoolExecutor(1, thread_name_prefix="penstock-convert") as ahead,
        closing(spans_of(source, fields, range(first, len(source)), BATCH_BYTES)) as spans,
        _noting(out, note) as note_down,
    ):
        span = next(spans, None)
        pending = None if span is None else ahead.submit(load, source, *span, fields)
        while pending is not None:
            batch, size = pending.result()
            span = next_span(spans, size)
            pending = None if span is None else ahead.submit(load, source, *span, fields)
            if isinstance(source, Store):
                out.extend_columns(batch)
            else:
                out.extend(batch)
            note_down()


@contextmanager
def _noting(out: Writer, note: Note | None) -> Iterator[Callable[[], None]]:
    """A function that notes down the chunks that are written by now; called once more at the end, also after a failure."""

    def note_down() -> None:
        if note is not None:
            for receipt in keep_chunks(out):
                note.add(receipt)

    try:
        yield note_down
    finally:
        note_down()


def _chosen(schema: Mapping[str, Field], fields: Sequence[str] | None) -> list[str]:
    chosen = list(schema) if fields is None else list(fields)
    unknown = [name for name in chosen if name not in schema]
    if unknown:
        raise ValueError(f"unknown fields {unknown}; the source has {list(schema)}")
    return chosen


def coded(schema: Mapping[str, Field], codec: Codec | Mapping[str, Codec] | None) -> dict[str, Field]:
    """Fields with their codecs: one for all, or a dict for some."""
    unknown = [name for name in codec if name not in schema] if isinstance(codec, Mapping) else []
    if unknown:
        raise ValueError(f"unknown fields {unknown} in codec; there are {list(schema)}")
    return {name: one.with_codec(codec.get(name) if isinstance(codec, Mapping) else codec) for name, one in schema.items()}
